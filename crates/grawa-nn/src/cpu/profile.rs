//! How long each operation of a program took.

use super::program::Program;
use crate::Op;
use crate::plan::NO_STEP;
use std::time::Duration;

/// A part of an operation's time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// The forward pass.
    Forward,
    /// All gradients.
    Backward,
}

/// Times recorded by an arena, over all its passes.
#[derive(Clone, Debug)]
pub struct Profile {
    spent: Vec<[Duration; 2]>,
}

impl Profile {
    pub(crate) fn new(steps: usize) -> Self {
        Profile { spent: vec![[Duration::ZERO; 2]; steps] }
    }

    pub(crate) fn note(&mut self, step: usize, part: Part, time: Duration) {
        self.spent[step][part as usize] += time;
    }

    /// The operations of the program with their times: a name with kind and shape, and the times of the forward pass and
    /// of all gradients. A batch norm that a convolution next to it computes counts there.
    pub fn operations<'a>(
        &'a self,
        program: &'a Program,
    ) -> impl Iterator<Item = (String, [Duration; 2])> + 'a {
        program.steps.iter().zip(&self.spent).map(|(step, spent)| {
            let shape = |node: usize| program.graph.nodes()[node].shape;
            let (from, to) = (shape(step.inputs[0]), shape(step.output));
            let size = format!("{} channels, {}×{}", to.channels, to.height, to.width);
            let plus = if step.inputs.len() > 1 { " + sum" } else { "" };
            let relu = if step.relu { " + ReLU" } else { "" };
            let name = match &step.op {
                Op::Conv { conv, .. } => format!(
                    "convolution {k}×{k}{by}, {} → {size}",
                    from.channels,
                    k = conv.kernel,
                    by = if conv.stride > 1 { format!(" by {}", conv.stride) } else { String::new() },
                ),
                Op::Linear { .. } => format!("linear, {} → {}", from.len(), to.len()),
                Op::BatchNorm { .. } => format!("batch norm{plus}{relu}, {size}"),
                Op::Add => format!("sum{relu}, {size}"),
                Op::Relu => format!("ReLU, {size}"),
                Op::MaxPool(_) => format!("max pool, {size}"),
                Op::AveragePool(_) => format!("average pool, {size}"),
                Op::GlobalAverage => format!("global average, {size}"),
                Op::PadChannels { .. } => format!("channel padding, {size}"),
                Op::Subsample { .. } => format!("subsampling, {size}"),
                Op::Concat => format!("concatenation, {size}"),
                Op::Dropout { .. } => format!("dropout, {size}"),
                Op::Plain { plain, .. } => format!("{} (plain), {size}", plain.name()),
                Op::Input => unreachable!("{NO_STEP}"),
            };
            (name, *spent)
        })
    }
}
