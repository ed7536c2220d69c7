//! The CPU as a backend.

use super::{Arena, Program};
use crate::{Backend, Compiled, Error, Graph, Mode, PassResult, Precision};

/// The cores of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Cpu;

impl Backend for Cpu {
    type Program = Program;

    fn compile(&self, graph: &Graph, batch: usize, precision: Precision) -> Result<Program, Error> {
        match precision {
            Precision::F32 => Program::compile(graph, batch),
            Precision::Tf32 | Precision::Bf16 => Err(Error::NotOnCpu { found: precision }),
        }
    }
}

impl Compiled for Program {
    fn warnings(&self) -> Vec<String> {
        let names = self.graph.plain_operations();
        let warning = |name| format!("{name} has no CPU kernel: its plain form runs, slowly");
        names.into_iter().map(warning).collect()
    }

    fn pass(
        &mut self,
        (parameters, statistics): (&[f32], &[f32]),
        examples: (&[f32], &[u32]),
        mode: Mode,
        factor: f64,
    ) -> Result<PassResult, Error> {
        let mut arena = Arena::new(self, std::thread::available_parallelism().map_or(1, usize::from))?;
        let (mut gradient, mut statistics) = (vec![0.0; parameters.len()], statistics.to_vec());
        let model = (parameters, &*statistics);
        let loss = self.gradient(&mut arena, model, examples, mode, factor, &mut gradient)?;
        self.track(&arena, &mut statistics)?;
        Ok(PassResult { logits: arena.logits().to_vec(), loss, gradient, statistics })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::networks::{everything, plain_names, plain_operations};

    #[test]
    fn plain_operations_are_reported_once() {
        let warnings = Cpu.compile(&plain_operations(), 2, Precision::F32).unwrap().warnings();
        let expected = |name: &str| format!("{name} has no CPU kernel: its plain form runs, slowly");
        assert_eq!(warnings, plain_names(&plain_operations()).into_iter().map(expected).collect::<Vec<_>>());
        assert!(Cpu.compile(&everything(true), 2, Precision::F32).unwrap().warnings().is_empty());
    }

    #[test]
    fn the_cpu_has_one_precision() {
        for precision in [Precision::Tf32, Precision::Bf16] {
            let why = Cpu.compile(&everything(true), 2, precision).unwrap_err();
            assert_eq!(why.to_string(), format!("the CPU computes in f32, not in {precision}"));
        }
    }
}
