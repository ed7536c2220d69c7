//! Concatenations that are never stored.
//!
//! A batch norm can read its channels from several tensors, eight at a time. If batch norms alone read a concatenation, no step
//! copies it: they read its parts, and add to the gradients of the parts.

use crate::plan::Step;
use crate::{Graph, Op};

/// The most tensors that a batch norm reads; see `Parts` in `norm.cu`.
pub(crate) const PARTS: usize = 64;

/// The steps without such concatenations. A batch norm that read one has its parts as inputs.
pub(crate) fn join(graph: &Graph, mut steps: Vec<Step>) -> Vec<Step> {
    // The parts of every node: of most the node itself.
    let mut parts: Vec<Vec<usize>> = (0..graph.nodes().len()).map(|node| vec![node]).collect();
    let is_concat = |step: &Step| step.op == Op::Concat;
    let mut joined: Vec<usize> =
        steps.iter().filter(|step| is_concat(step)).map(|step| step.output).collect();
    // A concatenation that must be stored makes those that it reads ones that must be stored.
    loop {
        let fits = |node: usize| {
            let whole = graph.nodes()[node]
                .inputs
                .iter()
                .all(|input| input.0 != 0 && graph.nodes()[input.0].shape.channels.is_multiple_of(8));
            let is_last = steps.last().is_some_and(|step| step.output == node);
            let is_reader = |step: &&Step| step.inputs.contains(&node);
            let reads = |step: &Step| match step.op {
                Op::BatchNorm { .. } => step.inputs.len() == 1,
                Op::Concat => joined.contains(&step.output),
                _ => false,
            };
            whole && !is_last && steps.iter().filter(is_reader).all(reads)
        };
        let kept: Vec<usize> = joined.iter().copied().filter(|&node| fits(node)).collect();
        if kept.len() == joined.len() {
            break;
        }
        joined = kept;
    }
    for step in steps.iter().filter(|step| joined.contains(&step.output)) {
        parts[step.output] = step.inputs.iter().flat_map(|&input| parts[input].clone()).collect();
    }
    // A gradient that is stored and added to in one launch would be a race.
    let repeats = |parts: &Vec<usize>| (1..parts.len()).any(|last| parts[..last].contains(&parts[last]));
    if parts.iter().any(|parts| parts.len() > PARTS || repeats(parts)) {
        return steps;
    }
    steps.retain(|step| !joined.contains(&step.output));
    for step in steps.iter_mut().filter(|step| matches!(step.op, Op::BatchNorm { .. })) {
        if let &[input] = step.inputs.as_slice() {
            step.inputs.clone_from(&parts[input]);
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fuse;
    use crate::{Builder, Conv, Shape};

    fn step_inputs(read_by_conv: bool, channels: usize) -> Vec<(Op, Vec<usize>)> {
        let mut net = Builder::new("joined", Shape::image(3, 4));
        let x = net.input();
        let a = net.conv(x, "a", Conv::same(8)).unwrap();
        let b = net.conv(x, "b", Conv::same(channels)).unwrap();
        let ab = net.concat(a, b).unwrap();
        let c = net.batch_norm(ab, "c").unwrap();
        let abc = net.concat(ab, c).unwrap();
        let y = if read_by_conv {
            net.conv(abc, "d", Conv::same(2)).unwrap()
        } else {
            net.batch_norm(abc, "d").unwrap()
        };
        let y = net.linear(y, "e", 2).unwrap();
        let graph = net.finish(y).unwrap();
        let steps = join(&graph, fuse(&graph));
        steps.into_iter().map(|step| (step.op, step.inputs)).collect()
    }

    #[test]
    fn only_batch_norms_read_parts() {
        let of = |steps: Vec<(Op, Vec<usize>)>, wanted: fn(&Op) -> bool| -> Vec<Vec<usize>> {
            steps.into_iter().filter(|(op, _)| wanted(op)).map(|(_, inputs)| inputs).collect()
        };
        let is_norm = |op: &Op| matches!(op, Op::BatchNorm { .. });
        // Nodes: 0 the image, 1 and 2 a and b, 3 both, 4 the batch norm, 5 all three.
        assert_eq!(of(step_inputs(false, 16), is_norm), [vec![1, 2], vec![1, 2, 4]]);
        assert!(of(step_inputs(false, 16), |op| *op == Op::Concat).is_empty());
        // A convolution reads memory in one piece, so everything is stored; so are channels that do not fill eight.
        assert_eq!(of(step_inputs(true, 16), is_norm), [vec![3]]);
        assert_eq!(of(step_inputs(false, 12), is_norm), [vec![3], vec![5]]);
    }

    #[test]
    fn a_part_that_occurs_twice_is_stored() {
        let mut net = Builder::new("twice", Shape::image(3, 4));
        let x = net.input();
        let a = net.conv(x, "a", Conv::same(8)).unwrap();
        let both = net.concat(a, a).unwrap();
        let y = net.batch_norm(both, "b").unwrap();
        let y = net.linear(y, "c", 2).unwrap();
        let graph = net.finish(y).unwrap();
        assert_eq!(join(&graph, fuse(&graph)), fuse(&graph));
    }
}
