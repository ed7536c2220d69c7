//! What every backend plans in the same way: which nodes run as one step, and which buffers hold the gradients.
//!
//! A backend adds its own kernels and memory layout. It dispatches on [`Step::op`] without a default arm, so that a new
//! operation does not compile before every backend says what it does with it.

use crate::error::expect_len;
use crate::{Error, Graph, Op};

/// Why no backend runs an input.
pub(crate) const NO_STEP: &str = "the input is no step";

/// One step of a pass: a node, and the sum and the ReLU behind it where they run in the same step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    /// The first of its nodes.
    pub(crate) node: usize,
    /// What that node computes. A batch norm then adds the second input, if there is one.
    pub(crate) op: Op,
    /// Whether the step ends with a ReLU.
    pub(crate) relu: bool,
    /// The nodes it reads.
    pub(crate) inputs: Vec<usize>,
    /// What happens to the gradient of each.
    pub(crate) flows: Vec<Flow>,
    /// The node whose result it writes.
    pub(crate) output: usize,
}

/// What happens to the gradient of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// It is not needed: the input is the image, or nothing uses the step's result.
    Nowhere,
    /// It is stored: the first contribution.
    Store,
    /// It is added to earlier contributions.
    Add,
    /// It is the gradient of the output itself, in the same buffer.
    Shared,
}

/// When the buffer of a gradient is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// Never: all gradients remain after a backward pass.
    Never,
    /// Once its contents are consumed. The shortcut that a batch norm adds takes it over: its gradient is the same, once the
    /// ReLU's zeros are in it.
    Consumed,
    /// The same, and the inputs of a plain sum share it: their gradients are equal to that of the sum.
    ConsumedOrEqual,
}

/// The steps of a network in the order they run, and the buffers of its gradients.
#[derive(Clone, Debug)]
pub(crate) struct Plan<L> {
    pub(crate) steps: Vec<Step>,
    /// For each node, the buffer of its gradient.
    pub(crate) slots: Vec<Option<usize>>,
    /// The layout of each buffer.
    pub(crate) buffers: Vec<L>,
}

impl<L: Copy + PartialEq> Plan<L> {
    /// Plans passes over a batch by these steps. `layouts` holds the memory layout of each node: a buffer serves nodes of one
    /// layout.
    pub(crate) fn new(
        mut steps: Vec<Step>,
        batch: usize,
        layouts: &[L],
        reuse: Reuse,
    ) -> Result<Self, Error> {
        expect_len("the batch", batch.min(1), 1)?;
        let mut slots: Vec<Option<usize>> = vec![None; layouts.len()];
        // The layout of each buffer, and how many gradients it holds.
        let mut buffers: Vec<(L, usize)> = Vec::new();
        let claim = |buffers: &mut Vec<(L, usize)>, wanted: L| {
            let free = buffers.iter().position(|&(layout, holders)| layout == wanted && holders == 0);
            let slot = free.unwrap_or_else(|| {
                buffers.push((wanted, 0));
                buffers.len() - 1
            });
            buffers[slot].1 += 1;
            Some(slot)
        };
        if let Some(last) = steps.last() {
            slots[last.output] = claim(&mut buffers, layouts[last.output]);
        }
        for index in (0..steps.len()).rev() {
            let step = &steps[index];
            // If nothing uses the result, the step has no backward pass, and must not count as the first contribution.
            let Some(own) = slots[step.output] else {
                steps[index].flows = vec![Flow::Nowhere; steps[index].inputs.len()];
                continue;
            };
            let mut flows = Vec::with_capacity(step.inputs.len());
            for (place, &input) in step.inputs.iter().enumerate() {
                flows.push(match (input, slots[input]) {
                    // Node 0 is the image: it needs no gradient.
                    (0, _) => Flow::Nowhere,
                    (_, Some(_)) => Flow::Add,
                    (_, None)
                        if (reuse != Reuse::Never
                            && takes_over(step, place)
                            && buffers[own] == (layouts[input], 1))
                            || (reuse == Reuse::ConsumedOrEqual
                                && may_share(&steps, &slots, index, place)) =>
                    {
                        slots[input] = Some(own);
                        buffers[own].1 += 1;
                        Flow::Shared
                    }
                    (_, None) => {
                        slots[input] = claim(&mut buffers, layouts[input]);
                        Flow::Store
                    }
                });
            }
            if reuse != Reuse::Never {
                buffers[own].1 -= 1;
            }
            steps[index].flows = flows;
        }
        Ok(Plan { steps, slots, buffers: buffers.into_iter().map(|(layout, _)| layout).collect() })
    }
}

/// The steps of a graph. A batch norm takes the sum and the ReLU behind it into its step, a sum the ReLU.
pub(crate) fn fuse(graph: &Graph) -> Vec<Step> {
    let nodes = graph.nodes();
    let mut taken = vec![false; nodes.len()];
    let mut steps: Vec<Step> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        if taken[index] || node.op == Op::Input {
            continue;
        }
        let (mut inputs, mut output): (Vec<usize>, _) =
            (node.inputs.iter().map(|input| input.0).collect(), index);
        let mut take = |last: &mut usize, wanted: fn(&Op) -> bool| {
            let user = graph.only_user(*last).filter(|&user| wanted(&nodes[user].op) && !taken[user])?;
            taken[user] = true;
            Some(std::mem::replace(last, user))
        };
        let (is_norm, is_sum) = (matches!(node.op, Op::BatchNorm { .. }), node.op == Op::Add);
        if is_norm && let Some(before) = take(&mut output, |op| *op == Op::Add) {
            let others = nodes[output].inputs.iter().map(|input| input.0);
            inputs.extend(others.filter(|&input| input != before));
        }
        let has_relu = (is_norm || is_sum) && take(&mut output, |op| *op == Op::Relu).is_some();
        let relu = has_relu || node.op == Op::Relu;
        steps.push(Step { node: index, op: node.op.clone(), relu, inputs, flows: Vec::new(), output });
    }
    // A step runs at the position of its last node: everything it reads is computed by then.
    steps.sort_by_key(|step| step.output);
    steps
}

/// Whether an input is the shortcut that a batch norm adds. No later step reads the gradient of its output, so the buffer can hold the
/// shortcut's from then on. (A GPU waits for steps that still read on its side stream.) A batch norm may leave its own reading to the convolution before it, the next step of the
/// backward pass: that one reads each image before it writes it.
fn takes_over(step: &Step, place: usize) -> bool {
    matches!(step.op, Op::BatchNorm { .. }) && place == 1
}

/// Whether the gradient of a step's input can share the buffer of its output's gradient. Both are equal for a plain sum.
/// But a step that adds to one gradient in the buffer must run after every step that reads another one there.
fn may_share(steps: &[Step], slots: &[Option<usize>], index: usize, place: usize) -> bool {
    let step = &steps[index];
    let (Op::Add, false, &[a, b]) = (&step.op, step.relu, step.inputs.as_slice()) else { return false };
    let users = |node: usize| (0..index).filter(move |&user| steps[user].inputs.contains(&node));
    let maker = |node: usize| steps.iter().position(|step| step.output == node);
    let (this, other) = if place == 0 { (a, b) } else { (b, a) };
    // The step that makes the other input reads the buffer; steps that add to this input's gradient must run after it.
    // Conversely, no step may write before the step that makes this input has read.
    let reads_first = |reader: usize, writers: usize| match (maker(reader), users(writers).max()) {
        (Some(reader), Some(writer)) => reader > writer,
        (_, writer) => writer.is_none(),
    };
    // An output that is an input of another plain sum shares its buffer already: its gradients also wait to be read.
    let is_waiting = |node: usize| maker(node).is_some_and(|maker| maker < index);
    let held = (0..slots.len()).filter(|&node| slots[node] == slots[step.output] && is_waiting(node));
    let mut others = held.filter(|&node| node != this).chain([other]);
    a != b && others.all(|other| reads_first(other, this) && reads_first(this, other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::networks::{all_networks, everything};
    use crate::{Builder, Conv, Shape, zoo};
    use proptest::prelude::*;
    use std::num::Wrapping;

    const REUSES: [Reuse; 3] = [Reuse::Never, Reuse::Consumed, Reuse::ConsumedOrEqual];

    fn plan(graph: &Graph, reuse: Reuse) -> Plan<Shape> {
        let shapes: Vec<Shape> = graph.nodes().iter().map(|node| node.shape).collect();
        Plan::new(fuse(graph), 2, &shapes, reuse).unwrap()
    }

    /// Runs the backward pass of a plan with one number for each gradient. Every step multiplies by an arbitrary factor;
    /// a plain sum, and a batch norm for its shortcut, by one. Each gradient must be complete when its step reads it, whatever else used its buffer.
    fn check(graph: &Graph, reuse: Reuse) {
        let Plan { steps, slots, buffers } = plan(graph, reuse);
        let factor = |index: usize, input: usize| match (&steps[index].op, steps[index].relu) {
            (Op::Add, false) => Wrapping(1),
            (Op::BatchNorm { .. }, _) if input == 1 => Wrapping(1),
            _ => Wrapping((2 * index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) + 2 * input as u64),
        };
        let mut expected = vec![Wrapping(0u64); slots.len()];
        let mut found = vec![Wrapping(0u64); buffers.len()];
        let last = steps.last().unwrap().output;
        expected[last] = Wrapping(1);
        found[slots[last].unwrap()] = Wrapping(1);
        for (index, step) in steps.iter().enumerate().rev() {
            // Nothing uses the result.
            let Some(slot) = slots[step.output] else { continue };
            let flow = found[slot];
            assert_eq!(flow, expected[step.output], "{}, {reuse:?}: step {index}, {step:?}", graph.name());
            for (input, &node) in step.inputs.iter().enumerate() {
                let part = factor(index, input) * flow;
                expected[node] += part;
                assert_eq!(step.flows[input] == Flow::Nowhere, node == 0, "{step:?}");
                match step.flows[input] {
                    Flow::Nowhere | Flow::Shared => {}
                    Flow::Store => found[slots[node].unwrap()] = part,
                    Flow::Add => found[slots[node].unwrap()] += part,
                }
                // A kernel must not read and write one buffer.
                assert!(step.flows[input] != Flow::Add || slots[node] != slots[step.output], "{step:?}");
                let layout = slots[node].map(|slot| buffers[slot]);
                assert!(layout.is_none_or(|shape| shape == graph.nodes()[node].shape));
            }
        }
        if reuse == Reuse::Never {
            let kept = slots.iter().enumerate().filter_map(|(node, slot)| Some((node, (*slot)?)));
            kept.for_each(|(node, slot)| assert_eq!(found[slot], expected[node]));
        }
    }

    #[test]
    fn gradients_are_complete_when_they_are_read() {
        let zoo = zoo::ZOO.iter().map(|entry| entry.build(entry.input, entry.classes).unwrap());
        let tests = all_networks().into_iter().map(|(_, graph)| graph);
        for graph in zoo.chain(tests).chain([everything(true)]) {
            REUSES.into_iter().for_each(|reuse| check(&graph, reuse));
        }
    }

    #[test]
    fn a_batch_norm_takes_the_sum_and_the_relu_behind_it() {
        let mut net = Builder::new("block", Shape::image(4, 5));
        let x = net.input();
        let y = net.batch_norm(x, "a").unwrap();
        let shortcut = net.conv(x, "b", Conv::point(4)).unwrap();
        let z = net.add(shortcut, y).unwrap();
        let z = net.relu(z);
        let z = net.global_average(z);
        let graph = net.finish(z).unwrap();
        let steps = fuse(&graph);
        let shapes: Vec<_> = steps.iter().map(|s| (s.node, s.inputs.clone(), s.relu, s.output)).collect();
        assert_eq!(shapes, [(2, vec![0], false, 2), (1, vec![0, 2], true, 4), (5, vec![4], false, 5)]);
        assert!(matches!(steps[1].op, Op::BatchNorm { .. }));
        assert!(Plan::new(fuse(&graph), 0, &[0; 6], Reuse::Never).is_err());
    }

    /// A network of operations that keep the shape, each on arbitrary earlier results.
    fn random_network(choices: &[(u8, prop::sample::Index, prop::sample::Index)]) -> Graph {
        let mut net = Builder::new("random", Shape::image(2, 3));
        let mut made = vec![net.input()];
        for (number, (op, a, b)) in choices.iter().enumerate() {
            let (a, b) = (*a.get(&made), *b.get(&made));
            made.push(match op % 6 {
                0 => net.relu(a),
                1 | 2 => net.add(a, b).unwrap(),
                3 => net.batch_norm(a, &number.to_string()).unwrap(),
                4 => net.conv(a, &number.to_string(), Conv::same(2)).unwrap(),
                _ => net.dropout(a, 0.5).unwrap(),
            });
        }
        let last = net.linear(made[made.len() - 1], "last", 2).unwrap();
        net.finish(last).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn gradients_of_random_networks_are_complete_when_they_are_read(
            choices in prop::collection::vec(any::<(u8, prop::sample::Index, prop::sample::Index)>(), 1..24),
        ) {
            let graph = random_network(&choices);
            REUSES.into_iter().for_each(|reuse| check(&graph, reuse));
        }

        /// Every node is computed by one step, after everything that the step reads.
        #[test]
        fn steps_run_after_what_they_read(
            choices in prop::collection::vec(any::<(u8, prop::sample::Index, prop::sample::Index)>(), 1..24),
        ) {
            let graph = random_network(&choices);
            let steps = fuse(&graph);
            let nodes: usize = steps.iter().map(|step| {
                let is_norm = matches!(step.op, Op::BatchNorm { .. });
                let own_relu = step.relu && step.op != Op::Relu;
                1 + usize::from(is_norm && step.inputs.len() > 1) + usize::from(own_relu)
            }).sum();
            prop_assert_eq!(nodes + 1, graph.nodes().len());
            let mut done = vec![false; graph.nodes().len()];
            done[0] = true;
            for step in &steps {
                prop_assert!(step.inputs.iter().all(|&input| done[input]));
                done[step.output] = true;
            }
        }
    }
}
