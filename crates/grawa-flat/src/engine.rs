//! Where losses and products are computed: on the CPU, or on a GPU. Both compute in f32.

use crate::{Error, Examples, LossAndError};
use grawa_nn::{Graph, Mode, State};

/// Where losses and products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// On threads of the CPU.
    Cpu {
        /// How many.
        threads: usize,
    },
    /// On the first NVIDIA GPU, in whatever memory it has free.
    Cuda,
}

/// Losses and gradients at any parameters, on fixed examples.
pub(crate) trait Passes: std::fmt::Debug {
    /// Loss and error at some parameters and statistics.
    fn at(&mut self, model: (&[f32], &[f32])) -> Result<LossAndError, Error>;

    /// The mean loss, and its gradient.
    fn gradient(&mut self, model: (&[f32], &[f32]), gradient: &mut [f32]) -> Result<f64, Error>;
}

/// Products with the Hessian at fixed parameters, on fixed examples.
pub(crate) trait Products: std::fmt::Debug {
    /// Visits every batch: keeps passes, and computes the mean loss and its gradient.
    fn visit(&mut self, gradient: &mut [f32]) -> Result<f64, Error>;

    /// out ← H·v.
    fn apply(&mut self, v: &[f32], out: &mut [f32]) -> Result<(), Error>;

    /// The number of batches whose passes are kept.
    fn kept(&self) -> usize;

    /// Bytes in use.
    fn bytes(&self) -> usize;
}

impl Engine {
    pub(crate) fn passes<'a>(
        self,
        graph: &Graph,
        examples: &'a Examples,
        mode: Mode,
    ) -> Result<Box<dyn Passes + 'a>, Error> {
        match self {
            Engine::Cpu { threads } => {
                Ok(Box::new(crate::cpu::CpuPasses::new(graph, examples, mode, threads)?))
            }
            #[cfg(feature = "cuda")]
            Engine::Cuda => Ok(Box::new(crate::cuda::Gpu::new(graph, examples, mode, None)?)),
            #[cfg(not(feature = "cuda"))]
            Engine::Cuda => Err(grawa_nn::Error::BuiltWithoutCuda.into()),
        }
    }

    pub(crate) fn products<'a>(
        self,
        graph: &Graph,
        state: &'a State,
        examples: &'a Examples,
        mode: Mode,
        memory: usize,
    ) -> Result<Box<dyn Products + 'a>, Error> {
        match self {
            Engine::Cpu { threads } => {
                let products = crate::cpu::CpuProducts::new(graph, state, examples, mode, threads, memory)?;
                Ok(Box::new(products))
            }
            #[cfg(feature = "cuda")]
            Engine::Cuda => Ok(Box::new(crate::cuda::Gpu::new(graph, examples, mode, Some(state))?)),
            #[cfg(not(feature = "cuda"))]
            Engine::Cuda => Err(grawa_nn::Error::BuiltWithoutCuda.into()),
        }
    }
}
