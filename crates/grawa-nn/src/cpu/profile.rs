//! How long each operation of a program took.

use super::program::{Kind, PlaneOp, Program};
use std::time::Duration;

/// A part of an operation's time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// The forward pass.
    Forward,
    /// All gradients.
    Backward,
    /// The gradient of a convolution's weights; part of `Backward`.
    Weights,
}

/// Times recorded by an arena, over all its passes.
#[derive(Clone, Debug)]
pub struct Profile {
    spent: Vec<[Duration; 3]>,
}

impl Profile {
    pub(crate) fn new(steps: usize) -> Self {
        Profile { spent: vec![[Duration::ZERO; 3]; steps] }
    }

    pub(crate) fn note(&mut self, step: usize, part: Part, time: Duration) {
        self.spent[step][part as usize] += time;
    }

    /// The operations of the program with their times: a name with kind and shape, and the times of the forward pass,
    /// of all gradients, and of a convolution's weight gradient.
    pub fn operations<'a>(
        &'a self,
        program: &'a Program,
    ) -> impl Iterator<Item = (String, [Duration; 3])> + 'a {
        program.steps.iter().zip(&self.spent).map(|(step, spent)| {
            let shape = |node: usize| program.graph.nodes()[node].shape;
            let (from, to) = (shape(step.inputs[0]), shape(step.output));
            let name = match &step.kind {
                Kind::Conv { geometry, .. } => format!(
                    "convolution {k}×{k}{by}, {} → {} channels, {}×{}",
                    from.channels,
                    to.channels,
                    to.height,
                    to.width,
                    k = geometry.kernel,
                    by = if geometry.stride > 1 { format!(" by {}", geometry.stride) } else { String::new() },
                ),
                Kind::Linear { .. } => format!("linear, {} → {}", from.len(), to.len()),
                kind => {
                    let plus = if step.inputs.len() > 1 { " + sum" } else { "" };
                    let word = match kind {
                        Kind::Norm { relu: true, .. } => format!("batch norm{plus} + ReLU"),
                        Kind::Norm { .. } => format!("batch norm{plus}"),
                        Kind::Add { relu: true } => "sum + ReLU".into(),
                        Kind::Add { .. } => "sum".into(),
                        Kind::Relu => "ReLU".into(),
                        Kind::Planes(PlaneOp::MaxPool(_)) => "max pool".into(),
                        Kind::Planes(PlaneOp::AveragePool(_)) => "average pool".into(),
                        Kind::GlobalAverage => "global average".into(),
                        Kind::Planes(PlaneOp::PadChannels { .. }) => "channel padding".into(),
                        Kind::Planes(PlaneOp::Subsample { .. }) => "subsampling".into(),
                        Kind::Planes(PlaneOp::Concat) => "concatenation".into(),
                        _ => "dropout".to_string(),
                    };
                    format!("{word}, {} channels, {}×{}", to.channels, to.height, to.width)
                }
            };
            (name, *spent)
        })
    }
}
