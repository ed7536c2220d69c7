//! The seam between networks and what executes them.
//!
//! ```
//! use grawa_nn::{Backend, Compiled, Cpu, Mode, Precision, Shape, zoo};
//! fn loss<B: Backend>(backend: &B, precision: Precision) -> Result<f64, grawa_nn::Error> {
//!     let net = zoo::digits("digits", Shape::image(1, 8), 4, 10)?;
//!     let mut program = backend.compile(&net, 2, precision)?;
//!     let (parameters, statistics) = (net.initial(7), net.initial_statistics());
//!     let images = vec![0.5; 2 * net.input().len()];
//!     let mode = Mode::Train { dropout: None };
//!     Ok(program.pass((&parameters, &statistics), (&images, &[3, 9]), mode, 1.0)?.loss)
//! }
//! assert!(loss(&Cpu, Precision::F32)? > 0.0);
//! # Ok::<(), grawa_nn::Error>(())
//! ```

use crate::{Error, Graph, Mode};
use std::str::FromStr;

/// What executes networks. All backends share the plan: which operations run as one step, and which buffers hold the
/// gradients.
pub trait Backend {
    /// A compiled network.
    type Program: Compiled;

    /// Compiles a network for batches of this size.
    fn compile(&self, graph: &Graph, batch: usize, precision: Precision) -> Result<Self::Program, Error>;
}

/// A network compiled by a backend.
pub trait Compiled {
    /// What the user of the network should know: one sentence for each operation that runs in its plain form.
    fn warnings(&self) -> Vec<String>;

    /// One pass on given parameters, statistics, images and labels, in memory that is kept no longer than the program:
    /// for a few passes, not for training. The gradient is that of the sum of the losses times `factor`.
    fn pass(
        &mut self,
        model: (&[f32], &[f32]),
        examples: (&[f32], &[u32]),
        mode: Mode,
        factor: f64,
    ) -> Result<PassResult, Error>;
}

/// What a pass computed.
#[derive(Clone, Debug)]
pub struct PassResult {
    /// The logits, example by example.
    pub logits: Vec<f32>,
    /// The sum of the losses.
    pub loss: f64,
    /// The gradient.
    pub gradient: Vec<f32>,
    /// The running statistics after the pass.
    pub statistics: Vec<f32>,
}

/// How numbers are stored and multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32 throughout; the only one on the CPU.
    F32,
    /// f32 in memory, multiplied on tensor cores in tf32.
    Tf32,
    /// Activations and packed weights in bf16; parameters, statistics, sums and updates in f32.
    Bf16,
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let all = [Precision::F32, Precision::Tf32, Precision::Bf16];
        let found = all.into_iter().find(|precision| precision.to_string() == text);
        found.ok_or_else(|| Error::UnknownPrecision { found: text.into() })
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
        })
    }
}
