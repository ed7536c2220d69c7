//! Errors of the engine.

use crate::{Precision, Shape};
use std::path::PathBuf;
use thiserror::Error;

/// An error. Its text says what was found, what was expected, what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the methods.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
    /// An operation whose input does not fit.
    #[error("{operation} does not fit an input of {found}: {expected}")]
    DoesNotFit {
        /// The operation, by name.
        operation: String,
        /// The shape it was given.
        found: Shape,
        /// What it needs.
        expected: String,
    },
    /// Inputs of an operation whose shapes must be equal and are not.
    #[error("{operation} needs inputs of one shape{but}; found {left} and {right}")]
    ShapesDiffer {
        /// The operation, by name.
        operation: &'static str,
        /// In what they may differ.
        but: &'static str,
        /// One shape.
        left: Shape,
        /// The other.
        right: Shape,
    },
    /// A network that is not in the zoo.
    #[error("there is no network '{found}'{}; the networks are {}", nearest.as_ref().map(|name| format!(" (did you mean '{name}'?)")).unwrap_or_default(), crate::zoo::names().join(", "))]
    UnknownNetwork {
        /// The requested name.
        found: String,
        /// The closest known name.
        nearest: Option<String>,
    },
    /// A file of a network that cannot be read.
    #[error("{place}: {why}")]
    GraphFile {
        /// The node, or the file as a whole.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// Threads that could not be started.
    #[error("cannot start threads: {why}")]
    Threads {
        /// Why not.
        why: String,
    },
    /// A GPU was requested from a program that has no code for them.
    #[error("this program was built without the feature 'cuda'; build it with that feature, or use the CPU")]
    BuiltWithoutCuda,
    /// An NVIDIA library that is missing.
    #[cfg(feature = "cuda")]
    #[error("{library} was not found ({}): {remedy}, or name its folder in {}", tried.first().map_or("nothing of that name", |why| why), crate::cuda::VARIABLE)]
    LibraryMissing {
        /// Which one.
        library: String,
        /// What was tried, and why it failed.
        tried: Vec<String>,
        /// How to get it.
        remedy: String,
    },
    /// A GPU operation that failed.
    #[error("cannot {action}: {why}")]
    Device {
        /// What was tried.
        action: String,
        /// The message of the driver or library.
        why: String,
    },
    /// A GPU without enough free memory.
    #[cfg(feature = "cuda")]
    #[error("the GPU has {} MB free, but {} MB are needed; {fits}", free / 1_000_000, needed / 1_000_000)]
    OutOfDeviceMemory {
        /// Bytes that are needed.
        needed: usize,
        /// Bytes that are free.
        free: usize,
        /// What would fit.
        fits: String,
    },
    /// A precision that the CPU does not have.
    #[error("the CPU computes in f32, not in {found}")]
    NotOnCpu {
        /// The requested precision.
        found: Precision,
    },
    /// A precision that does not exist.
    #[error("there is no precision '{found}'; write f32, tf32 or bf16")]
    UnknownPrecision {
        /// The requested name.
        found: String,
    },
    /// A vector of the wrong length.
    #[error("{what}: {found} numbers were found, and {expected} are needed")]
    WrongLength {
        /// What it is.
        what: String,
        /// Its length.
        found: usize,
        /// The length it must have.
        expected: usize,
    },
    /// An operation without a tangent on GPUs.
    #[cfg(feature = "cuda")]
    #[error(
        "{operation} has no tangent on a GPU, so products with the Hessian are not possible there; use the CPU"
    )]
    NoTangent {
        /// The operation, by name.
        operation: String,
    },
    /// A product with the Hessian at a point that was not visited.
    #[error("a product with the Hessian needs a visited point; call Curvature::visit first")]
    NotVisited,
    /// A label that names no class.
    #[error("label {found} of example {example} names no class: there are {classes}")]
    LabelOutOfRange {
        /// Which example of the batch.
        example: usize,
        /// The label.
        found: i64,
        /// How many classes there are.
        classes: usize,
    },
    /// A file that cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file that is not safetensors.
    #[error("{} is not a safetensors file: {why}", path.display())]
    NotSafetensors {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        why: String,
    },
    /// A file whose content does not agree with its checksum.
    #[error(
        "{} is damaged: its checksum is {found}, and its metadata have {expected}; use another copy of it. If another program \
         changed it on purpose, let that program leave out the word 'crc32c' of its metadata",
        path.display()
    )]
    DamagedTensors {
        /// The file.
        path: PathBuf,
        /// The checksum of what it holds.
        found: String,
        /// The one it was written with.
        expected: String,
    },
    /// A tensor that is missing from a file.
    #[error("{} has no tensor '{name}', which {network} needs; is it of another network?", path.display())]
    TensorMissing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The network.
        network: String,
    },
    /// A tensor of another shape or type than the network's.
    #[error("tensor '{name}' of {} is {found}, but {network} needs {expected}", path.display())]
    TensorDiffers {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The network.
        network: String,
        /// What it is.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// A tensor that the network does not have.
    #[error("{} holds a tensor '{name}' that {network} does not have; is it of another network?", path.display())]
    TensorUnknown {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The network.
        network: String,
    },
}

/// Checks the length of a vector.
pub(crate) fn expect_len(what: &str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::WrongLength { what: what.into(), found, expected }) }
}

impl Error {
    /// An operation does not fit its input.
    pub(crate) fn misfit(operation: impl Into<String>, found: Shape, expected: impl Into<String>) -> Self {
        Error::DoesNotFit { operation: operation.into(), found, expected: expected.into() }
    }

    /// A GPU operation failed.
    #[cfg(feature = "cuda")]
    pub(crate) fn device(action: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Device { action: action.into(), why: why.into() }
    }

    /// Whether the request itself is wrong, rather than something that failed.
    pub fn is_usage(&self) -> bool {
        #[cfg(feature = "cuda")]
        if matches!(self, Error::NoTangent { .. }) {
            return true;
        }
        matches!(
            self,
            Error::UnknownNetwork { .. }
                | Error::UnknownPrecision { .. }
                | Error::GraphFile { .. }
                | Error::BuiltWithoutCuda
                | Error::NotOnCpu { .. }
                | Error::DoesNotFit { .. }
                | Error::ShapesDiffer { .. }
                | Error::Core(_)
        )
    }
}
