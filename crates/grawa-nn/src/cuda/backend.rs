//! A GPU as a backend.

use super::{Device, ReplicaSet, Settings};
use crate::{Backend, Compiled, Error, Graph, Mode, PassResult, Precision};

/// A GPU, and how many replicas of a network it holds.
#[derive(Clone, Debug)]
pub struct Cuda {
    /// The GPU.
    pub device: Device,
    /// Workers.
    pub workers: usize,
    /// Choose kernels by shape alone instead of by measurement, so that every run gives the same bits.
    pub fixed: bool,
}

impl Backend for Cuda {
    type Program = ReplicaSet;

    fn compile(&self, graph: &Graph, batch: usize, precision: Precision) -> Result<ReplicaSet, Error> {
        let settings = Settings { batch, workers: self.workers, precision, fixed: self.fixed };
        ReplicaSet::new(&self.device, graph, settings)
    }
}

impl Compiled for ReplicaSet {
    fn warnings(&self) -> Vec<String> {
        let names = self.program.graph.plain_operations();
        let warning = |name| format!("{name} has no CUDA kernel: its plain form runs on the host, slowly");
        names.into_iter().map(warning).chain(self.kernels.warning.clone()).collect()
    }

    /// A pass of the first worker; the others see the same examples.
    fn pass(
        &mut self,
        (parameters, statistics): (&[f32], &[f32]),
        examples: (&[f32], &[u32]),
        mode: Mode,
        factor: f64,
    ) -> Result<PassResult, Error> {
        self.load(0, parameters, statistics)?;
        self.load_batches(&vec![examples; self.workers])?;
        let outcomes = self.gradient(mode, factor, mode != Mode::Evaluate)?;
        Ok(PassResult {
            logits: self.logits(0)?,
            loss: outcomes[0].loss,
            gradient: self.gradient_of(0)?,
            statistics: self.statistics(0)?,
        })
    }
}
