//! Batch norms that pool: the maximum over windows of 2 × 2 behind a batch norm runs in the batch norm's step.
//!
//! Most of the work of both is to move the result of the batch norm, which is four times as large as that of the pooling. In one
//! step it is not stored.

use crate::plan::Step;
use crate::{Graph, Node, Op};

/// Whether a node is a maximum over windows of 2 × 2 that tile its input: then each input is in one window, and the backward pass
/// finds the maximum again.
pub(crate) fn tiles(graph: &Graph, node: usize) -> bool {
    let Node { op: Op::MaxPool(window), shape: to, inputs } = &graph.nodes()[node] else {
        return false;
    };
    let from = graph.nodes()[inputs[0].0].shape;
    (window.kernel, window.stride, window.pad) == (2, 2, 0)
        && (from.height, from.width) == (2 * to.height, 2 * to.width)
}

/// Whether a step is a batch norm that pools.
pub(crate) fn is_pooled(graph: &Graph, step: &Step) -> bool {
    matches!(step.op, Op::BatchNorm { .. }) && tiles(graph, step.output)
}

/// The steps, where a batch norm without a shortcut takes the pooling behind it into its step.
pub(crate) fn pool(graph: &Graph, mut steps: Vec<Step>) -> Vec<Step> {
    let mut pooled = Vec::new();
    let is_plain = |step: &&mut Step| matches!(step.op, Op::BatchNorm { .. }) && step.inputs.len() == 1;
    for step in steps.iter_mut().filter(is_plain) {
        if let Some(user) = graph.only_user(step.output).filter(|&user| tiles(graph, user)) {
            step.output = user;
            pooled.push(user);
        }
    }
    steps.retain(|step| !pooled.contains(&step.node));
    // A step runs at the position of its last node.
    steps.sort_by_key(|step| step.output);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fuse;
    use crate::{Builder, Conv, Shape, Window};

    /// Pools, behind a batch norm with and without a ReLU, are part of its step; one that overlaps or that does not tile, one
    /// behind a shortcut, and one of two readers are not.
    #[test]
    fn a_batch_norm_pools_what_only_the_pooling_reads() {
        let pooled =
            |side: usize, window: Window, build: fn(&mut Builder, crate::NodeId) -> crate::NodeId| {
                let mut net = Builder::new("pooled", Shape::image(8, side));
                let x = net.input();
                let x = net.conv(x, "a", Conv::same(8)).unwrap();
                let y = build(&mut net, x);
                let y = net.max_pool(y, window).unwrap();
                let y = net.linear(y, "b", 2).unwrap();
                let graph = net.finish(y).unwrap();
                let steps = pool(&graph, fuse(&graph));
                assert!(steps.is_sorted_by_key(|step| step.output));
                steps.iter().any(|step| is_pooled(&graph, step))
            };
        let two = Window { kernel: 2, stride: 2, pad: 0, ceil: false };
        let norm = |net: &mut Builder, x| net.batch_norm(x, "n").unwrap();
        assert!(pooled(4, two, norm));
        assert!(pooled(4, two, |net, x| {
            let y = net.batch_norm(x, "n").unwrap();
            net.relu(y)
        }));
        assert!(!pooled(5, two, norm));
        assert!(!pooled(4, Window { kernel: 3, stride: 2, pad: 1, ceil: false }, norm));
        assert!(!pooled(4, two, |net, x| {
            let y = net.batch_norm(x, "n").unwrap();
            net.add(y, x).unwrap()
        }));
        assert!(!pooled(4, two, Builder::relu));
    }
}
