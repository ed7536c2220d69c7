//! The expected result of every step of a bf16 pass, computed from the values on the GPU.
//!
//! In bf16 the GPU rounds every stored value: images, packed weights, the result of every step (of a fused step only
//! the last), and gradients at each contribution. Everything else is f32 or wider. Rounding is chaotic: after a few
//! layers, two passes that differ in the order of one sum differ as much as if they rounded differently throughout.
//! Comparing the ends of two passes therefore says little. Instead each step is computed here in f64 from the values
//! that the GPU had before it, and rounded where the GPU rounds. A value may then differ only where its sum is on the
//! edge between two neighbours.

use super::compile::Program;
use super::kernel_choice::{KernelChoice, LayerKernels};
use crate::op::cross_entropy;
use crate::scalar::Scalar;
use crate::{Error, Graph, Mode, Op, Tape};

/// The largest relative distance from a bf16 to the next.
const NEXT: f64 = 1.0 / 128.0;
/// The allowed relative error of sums in f32.
const SUMS: f64 = 1e-4;
/// The relative distance of two vectors in which few values are on an edge. Rounding every value up or down at random
/// would give 2e-3.
const APART: f64 = 1e-3;

/// The nearest bf16; ties to even.
fn rounded<T: Scalar>(x: T) -> T {
    let bits = (x.wide() as f32).to_bits();
    T::of(f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000).into())
}

fn round<T: Scalar>(numbers: &mut [T]) {
    numbers.iter_mut().for_each(|x| *x = rounded(*x));
}

fn size(numbers: &[f64]) -> f64 {
    (numbers.iter().map(|x| x * x).sum::<f64>() / numbers.len().max(1) as f64).sqrt()
}

/// Checks stored values against the expected ones.
fn near(what: &str, found: &[f32], expected: &[f64]) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{what}: {} numbers instead of {}", found.len(), expected.len()));
    }
    let all = size(expected);
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(found) - expected).abs();
        // Also for NaN.
        if off.is_nan() || off > NEXT * expected.abs() + SUMS * all {
            return Err(format!(
                "{what}: number {at} is {found}, not {expected} (all are of size {all:.1e})"
            ));
        }
    }
    let difference: Vec<f64> = found.iter().zip(expected).map(|(&a, &b)| f64::from(a) - b).collect();
    let apart = size(&difference) / all.max(1e-30);
    if apart > APART { Err(format!("{what}: off by {apart:.1e}")) } else { Ok(()) }
}

/// What a program stores, and the order of its steps.
pub(super) struct Rounded<'p> {
    program: &'p Program,
    /// Whether the result of a node is stored: of a fused step only the last is.
    stored: Vec<bool>,
    /// For each node, the node whose result its step stores.
    home: Vec<usize>,
    /// For each layer, whether cuDNN computes the gradients of its input and of its weights: it rounds them itself.
    cudnn: Vec<[bool; 2]>,
}

impl<'p> Rounded<'p> {
    /// For a program with these kernels; without any, with our own.
    pub(super) fn new(program: &'p Program, layer_kernels: &[LayerKernels]) -> Self {
        let nodes = program.graph.nodes();
        let steps = program.steps.iter().enumerate().filter(|(index, _)| !program.left_out(*index));
        let outputs: Vec<usize> = steps.map(|(_, step)| step.output).collect();
        let is_stored = |node: usize| node == 0 || outputs.contains(&node);
        let stored: Vec<bool> = (0..nodes.len()).map(is_stored).collect();
        let mut home: Vec<usize> = (0..nodes.len()).collect();
        // A concatenation that is not stored belongs to several steps: gradients pass through it.
        let within = |node: &usize| !stored[*node] && nodes[*node].op != Op::Concat;
        for node in (0..nodes.len()).rev().filter(within) {
            let user = (0..nodes.len()).find(|&user| nodes[user].inputs.iter().any(|input| input.0 == node));
            home[node] = user.map_or(node, |user| home[user]);
        }
        let is = |kernel: &KernelChoice| matches!(kernel, KernelChoice::Cudnn(_));
        let cudnn = (0..program.layers.len())
            .map(|layer| {
                layer_kernels
                    .get(layer)
                    .map_or([false; 2], |of| [is(&of.backward_data), is(&of.backward_weights)])
            })
            .collect();
        for (layer, layer_kernels) in program.layers.iter().zip(layer_kernels) {
            assert!(
                layer.bias.is_none() || !is(&layer_kernels.forward),
                "cuDNN rounds before a bias is added"
            );
        }
        Rounded { program, stored, home, cudnn }
    }

    /// The parameters as layers read them.
    fn read<T: Scalar>(&self, parameters: &[f32]) -> Vec<T> {
        let mut read: Vec<T> = parameters.iter().map(|&x| T::of(x.into())).collect();
        for layer in &self.program.layers {
            round(&mut read[self.program.graph.parameters().spans()[layer.weight.0].range()]);
        }
        read
    }

    /// A forward pass. `see` gets what each node stores, and returns what the pass continues with.
    fn forward<'g, T: Scalar>(
        &self,
        graph: &'g Graph,
        (parameters, statistics, images): (&[T], &[T], &[T]),
        mode: Mode,
        mut see: impl FnMut(usize, Vec<T>) -> Result<Vec<T>, String>,
    ) -> Result<Tape<'g, T>, String> {
        let batch = images.len() / graph.input().len();
        let mut tape = Tape { graph, mode, batch, values: Vec::new(), used: Vec::new() };
        for (index, node) in graph.nodes().iter().enumerate() {
            let (mut value, used) = tape.run(index, node, parameters, statistics, images);
            if self.stored[index] {
                round(&mut value);
                value = see(index, value)?;
            }
            tape.values.push(value);
            tape.used.push(used);
        }
        Ok(tape)
    }

    /// The stored gradient of the logits, and the loss.
    fn loss<T: Scalar>(
        &self,
        tape: &Tape<'_, T>,
        labels: &[u32],
        factor: f64,
    ) -> Result<(Vec<T>, f64), Error> {
        let mut flow = vec![T::zero(); tape.logits().len()];
        let classes = self.program.graph.classes();
        let loss = cross_entropy::loss(classes, tape.logits(), labels, T::of(factor), &mut flow)?;
        round(&mut flow);
        Ok((flow, loss))
    }

    /// One step backward: takes the gradient of its result, adds to those of its inputs and tensors.
    fn step_back<T: Scalar>(
        &self,
        tape: &Tape<'_, T>,
        step: usize,
        flows: &mut [Option<Vec<T>>],
        parameters: &[T],
        gradient: &mut [T],
    ) {
        let step = &self.program.steps[step];
        let is_layer = matches!(step.op, Op::Conv { .. } | Op::Linear { .. });
        let twice = is_layer && self.cudnn[self.program.part(step)][0];
        for node in (0..self.home.len()).rev().filter(|&node| self.home[node] == step.output) {
            let Some(flow) = flows[node].take() else { continue };
            self.pass_on(tape, (node, &flow, twice), flows, parameters, gradient);
        }
        // The layer masks the gradient of a batch norm behind it by what that has stored.
        let source = is_layer.then(|| self.program.layers[self.program.part(step)].source).flatten();
        let source = source.map(|source| &self.program.steps[source]);
        if let Some(norm) = source.filter(|norm| self.program.norms[self.program.part(norm)].masked_by_layer)
            && let Some(flow) = &mut flows[norm.output]
        {
            let masked =
                flow.iter_mut().zip(&tape.values[norm.output]).filter(|(_, result)| **result <= T::zero());
            masked.for_each(|(flow, _)| *flow = T::zero());
        }
    }

    /// Passes the gradient of a node on to its inputs; `twice` if it is rounded before it is added to what is there.
    fn pass_on<T: Scalar>(
        &self,
        tape: &Tape<'_, T>,
        (node, flow, twice): (usize, &[T], bool),
        flows: &mut [Option<Vec<T>>],
        parameters: &[T],
        gradient: &mut [T],
    ) {
        let inputs = || tape.graph.nodes()[node].inputs.iter().map(|input| input.0);
        let mut arriving: Vec<Vec<T>> = vec![Vec::new(); flows.len()];
        inputs().for_each(|input| arriving[input] = vec![T::zero(); tape.values[input].len()]);
        tape.flow_back(node, flow, &mut arriving, parameters, gradient);
        for input in inputs() {
            // If both inputs are the same node, the first got everything.
            let mut arriving = std::mem::take(&mut arriving[input]);
            if arriving.is_empty() {
                continue;
            }
            if !self.stored[input] && tape.graph.nodes()[input].op == Op::Concat {
                self.pass_on(tape, (input, &arriving, twice), flows, parameters, gradient);
                continue;
            }
            if let Some(there) = flows[input].take() {
                if twice {
                    round(&mut arriving);
                }
                arriving.iter_mut().zip(there).for_each(|(x, there)| *x += there);
            }
            round(&mut arriving);
            flows[input] = Some(arriving);
        }
    }

    /// The last operations on the gradient of the parameters.
    fn finish<T: Scalar>(&self, gradient: &mut [T], mode: Mode) {
        let spans = self.program.graph.parameters().spans();
        for (layer, [_, sums]) in self.program.layers.iter().zip(&self.cudnn) {
            if *sums {
                round(&mut gradient[spans[layer.weight.0].range()]);
            }
            // Batch norm removes the mean, and any bias with it: nothing is left to round.
            if let (Some(bias), true, Mode::Train { .. }) = (layer.bias, layer.norm.is_some(), mode) {
                gradient[spans[bias.0].range()].fill(T::zero());
            }
        }
    }
}

/// A pass of one worker that is checked step by step.
pub(super) struct Check<'r> {
    rounded: &'r Rounded<'r>,
    parameters: Vec<f64>,
    statistics: Vec<f64>,
    tape: Tape<'r, f64>,
    /// The same with absolute values: how much was added.
    sizes: Tape<'r, f64>,
    flows: Vec<Option<Vec<f64>>>,
    gradient: Vec<f64>,
    magnitude: Vec<f64>,
    loss: f64,
}

impl<'r> Check<'r> {
    /// Checks a forward pass and the loss. `value` and `flow` return what the GPU stored for a node.
    pub(super) fn forward(
        rounded: &'r Rounded<'r>,
        (parameters, statistics): (&[f32], &[f32]),
        (images, labels): (&[f32], &[u32]),
        mode: Mode,
        factor: f64,
        value: impl Fn(usize) -> Vec<f32>,
        flow: impl Fn(usize) -> Vec<f32>,
    ) -> Result<Self, String> {
        let graph = &rounded.program.graph;
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let (parameters, statistics) = (rounded.read::<f64>(parameters), wide(statistics));
        let given = (parameters.as_slice(), statistics.as_slice(), &wide(images)[..]);
        let tape = rounded.forward(graph, given, mode, |node, expected| {
            let found = value(node);
            near(&format!("the result of node {node}, {:?}", graph.nodes()[node].op), &found, &expected)?;
            Ok(wide(&found))
        })?;
        let (expected, loss) = rounded.loss(&tape, labels, factor).map_err(|error| error.to_string())?;
        let last = tape.values.len() - 1;
        near("the gradient of the logits", &flow(last), &expected)?;
        let sizes = |x: &Vec<f64>| x.iter().map(|x| x.abs()).collect::<Vec<f64>>();
        let mut used = tape.used.clone();
        // Batch norm subtracts its mean: the absolute values of both are added.
        used.iter_mut().flat_map(|used| &mut used.mean).for_each(|mean| *mean = -mean.abs());
        let sizes = Tape { values: tape.values.iter().map(sizes).collect(), used, ..tape };
        let mut flows = vec![None; tape.values.len()];
        flows[last] = Some(wide(&flow(last)));
        let [gradient, magnitude] = [0, 1].map(|_| vec![0.0; parameters.len()]);
        Ok(Check { rounded, parameters, statistics, tape, sizes, flows, gradient, magnitude, loss })
    }

    /// Checks a step of the backward pass that the GPU has just completed.
    pub(super) fn step_back(&mut self, step: usize, flow: impl Fn(usize) -> Vec<f32>) -> Result<(), String> {
        let (rounded, done) = (self.rounded, &self.rounded.program.steps[step]);
        let mut sizes: Vec<Option<Vec<f64>>> = (self.flows.iter())
            .map(|flow| flow.as_ref().map(|flow| flow.iter().map(|x| x.abs()).collect()))
            .collect();
        rounded.step_back(&self.sizes, step, &mut sizes, &self.parameters, &mut self.magnitude);
        rounded.step_back(&self.tape, step, &mut self.flows, &self.parameters, &mut self.gradient);
        if let Op::Plain { tensors, .. } = &done.op {
            // Absolute values say nothing about a plain operation: its gradients are judged by the largest in the tensor.
            for id in tensors {
                let part = rounded.program.graph.parameters().spans()[id.0].range();
                let most = self.gradient[part.clone()].iter().fold(0.0f64, |most, x| most.max(x.abs()));
                self.magnitude[part].fill(most);
            }
        }
        let padded = rounded.program.padding(step).map(|(pad, _)| pad.inputs[0]);
        let is_stored = |input: &usize| rounded.stored[*input] && rounded.program.slots[*input].is_some();
        for input in done.inputs.iter().copied().chain(padded).filter(is_stored) {
            let what = format!("the gradient of node {input} after step {step}, {:?}", done.op);
            let (found, expected) = (flow(input), self.flows[input].take().unwrap_or_default());
            near(&what, &found, &expected)?;
            self.flows[input] = Some(found.into_iter().map(f64::from).collect());
        }
        Ok(())
    }

    /// Checks the results of a pass.
    pub(super) fn finish(
        mut self,
        loss: f64,
        gradient: &[f32],
        statistics: &[f32],
        track: bool,
    ) -> Result<(), String> {
        if (loss / self.loss - 1.0).abs() > SUMS {
            return Err(format!("the loss is {loss}, not {}", self.loss));
        }
        self.rounded.finish(&mut self.gradient, self.tape.mode);
        let spans = self.rounded.program.graph.parameters().spans();
        let by_cudnn = |at: usize| {
            (self.rounded.program.layers.iter().zip(&self.rounded.cudnn))
                .any(|(layer, [_, sums])| *sums && spans[layer.weight.0].range().contains(&at))
        };
        for (at, &found) in gradient.iter().enumerate() {
            let (expected, added) = (self.gradient[at], self.magnitude[at]);
            let next = if by_cudnn(at) { NEXT * expected.abs() } else { 0.0 };
            let off = (f64::from(found) - expected).abs();
            if off.is_nan() || off > next + SUMS * added + 1e-30 {
                let name =
                    spans.iter().find(|span| span.range().contains(&at)).map_or("", |span| span.name());
                return Err(format!("the gradient of {name}: {found}, not {expected} (of {added} added up)"));
            }
        }
        if track {
            self.tape.track(&mut self.statistics).map_err(|error| error.to_string())?;
        }
        for (&found, &expected) in statistics.iter().zip(&self.statistics) {
            let off = (f64::from(found) - expected).abs();
            if off.is_nan() || off > SUMS * expected.abs().max(size(&self.statistics)) {
                return Err(format!("a statistic is {found}, not {expected}"));
            }
        }
        Ok(())
    }
}

#[path = "../../tests/needs/mod.rs"]
mod needs;

mod tests {
    use super::*;
    use crate::Precision;
    use crate::cuda::compile::WorkspaceNeeds;
    use crate::cuda::pass::PassMode;
    use crate::cuda::replica_set::{ReplicaSet, Settings};
    use crate::networks::{all_networks, smooth};
    use grawa_core::{Key, Purpose};

    const BATCH: usize = 6;
    const FACTOR: f64 = 0.5;

    fn modes() -> [Mode; 3] {
        let dropout = Some(Key::new(3, Purpose::Dropout));
        [Mode::Train { dropout: None }, Mode::Train { dropout }, Mode::Evaluate]
    }

    fn batch(graph: &Graph, seed: u64) -> (Vec<f32>, Vec<u32>) {
        let mut draws = Key::new(seed, Purpose::Problem).stream();
        let images = (0..BATCH * graph.input().len()).map(|_| draws.normal() as f32).collect();
        (images, (0..BATCH).map(|_| draws.below(graph.classes() as u64) as u32).collect())
    }

    /// A fault: where to change stored values, and how.
    type Fault = (&'static str, fn(&mut [f32]));

    /// Simulates a pass that rounds as the GPU does, with sums in f32 and a fault. Returns the verdict of the check.
    fn played(graph: &Graph, mode: Mode, fault: Option<Fault>) -> Result<(), String> {
        let mut program = Program::new(graph, BATCH, 2).unwrap();
        let need = WorkspaceNeeds { splits: 1, flipped: true, masks: true, ..WorkspaceNeeds::default() };
        program.allocate(&vec![need; program.layers.len()], 1);
        let (rounded, (images, labels)) = (Rounded::new(&program, &[]), batch(graph, 7));
        let (parameters, statistics) = smooth(graph, 1);
        let spoil = |at: &str, numbers: &mut Vec<f32>| match fault {
            Some((place, how)) if place == at => how(numbers),
            _ => {}
        };
        let read = rounded.read::<f32>(&parameters);
        let tape = rounded
            .forward(graph, (&read, &statistics, &images), mode, |node, mut value| {
                if node == program.steps[program.steps.len() / 2].output {
                    spoil("value", &mut value);
                }
                Ok(value)
            })
            .unwrap();
        let (flow, loss) = rounded.loss(&tape, &labels, FACTOR).unwrap();
        let mut flows: Vec<Option<Vec<f32>>> = vec![None; tape.values.len()];
        *flows.last_mut().unwrap() = Some(flow);
        let mut gradient = vec![0.0; parameters.len()];
        let value = |node: usize| tape.values[node].clone();
        let flow_of = |flows: &[Option<Vec<f32>>], node: usize| flows[node].clone().unwrap_or_default();
        let state = (parameters.as_slice(), statistics.as_slice());
        let mut check = Check::forward(&rounded, state, (&images, &labels), mode, FACTOR, value, |node| {
            flow_of(&flows, node)
        })?;
        for step in (0..program.steps.len()).rev() {
            if program.slots[program.steps[step].output].is_none() {
                continue;
            }
            rounded.step_back(&tape, step, &mut flows, &read, &mut gradient);
            if let (true, Some(flow)) =
                (step == program.steps.len() / 2, &mut flows[program.steps[step].inputs[0]])
            {
                spoil("flow", flow);
            }
            check.step_back(step, |node| flow_of(&flows, node))?;
        }
        rounded.finish(&mut gradient, mode);
        spoil("gradient", &mut gradient);
        let mut tracked = statistics;
        tape.track(&mut tracked).unwrap();
        spoil("statistics", &mut tracked);
        check.finish(loss, &gradient, &tracked, true)
    }

    /// Sums of another precision pass, in every network and mode. Errors of one percent, of one bit, or from rounding
    /// toward zero do not.
    #[test]
    fn the_check_finds_what_is_wrong() {
        for (name, graph) in all_networks() {
            for mode in modes() {
                assert_eq!(played(&graph, mode, None), Ok(()), "{name}, {mode:?}");
            }
        }
        let graph = &all_networks()[0].1;
        let train = modes()[0];
        let wrong: [Fault; 7] = [
            ("value", |x| x.iter_mut().for_each(|x| *x = rounded(*x * 1.01))),
            ("value", |x| {
                let nonzero = x.iter_mut().filter(|x| **x != 0.0);
                nonzero.for_each(|x| *x = f32::from_bits(x.to_bits() - (1 << 16)));
            }),
            ("value", |x| x[17] *= 1.02),
            ("flow", |x| x.iter_mut().for_each(|x| *x = rounded(*x * 1.01))),
            ("flow", |x| x[5] = f32::NAN),
            ("gradient", |x| x.iter_mut().for_each(|x| *x *= 1.01)),
            ("statistics", |x| x.iter_mut().for_each(|x| *x *= 1.001)),
        ];
        for (number, fault) in wrong.into_iter().enumerate() {
            assert!(
                played(graph, train, Some(fault)).is_err(),
                "fault {number}, in {}, was not found",
                fault.0
            );
        }
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
    fn bf16_rounds_as_it_should_at_every_step() {
        let device = needs::gpu();
        for (name, graph) in all_networks() {
            let settings = Settings { batch: BATCH, workers: 2, precision: Precision::Bf16, fixed: true };
            let mut set = ReplicaSet::new(&device, &graph, settings).unwrap();
            let batches = [batch(&graph, 7), batch(&graph, 8)];
            let states = [smooth(&graph, 1), smooth(&graph, 2)];
            set.load_batches(&batches.each_ref().map(|(images, labels)| (&images[..], &labels[..]))).unwrap();
            let load = |set: &mut ReplicaSet| {
                for (worker, (parameters, statistics)) in states.iter().enumerate() {
                    set.load(worker, parameters, statistics).unwrap();
                }
            };
            let bits = |set: &ReplicaSet| {
                [0, 1].map(|worker| {
                    let (gradient, statistics) =
                        (set.gradient_of(worker).unwrap(), set.statistics(worker).unwrap());
                    gradient.into_iter().chain(statistics).map(f32::to_bits).collect::<Vec<u32>>()
                })
            };
            for mode in modes() {
                load(&mut set);
                let pass_mode = set.pass_mode(mode, true).unwrap();
                followed(&set, pass_mode, &states, &batches, mode)
                    .unwrap_or_else(|why| panic!("{name}, {mode:?}: {why}"));
                // As a recorded graph, with parallel kernels, the same steps give the same bits every time.
                let expected = bits(&set);
                for time in 0..3 {
                    load(&mut set);
                    set.gradient(mode, FACTOR, true).unwrap();
                    assert!(bits(&set) == expected, "{name}, {mode:?}: other bits as a graph, time {time}");
                }
            }
        }
    }

    /// A forward and a backward pass of two workers on a GPU, checked step by step.
    fn followed(
        set: &ReplicaSet,
        pass_mode: PassMode,
        states: &[(Vec<f32>, Vec<f32>); 2],
        batches: &[(Vec<f32>, Vec<u32>); 2],
        mode: Mode,
    ) -> Result<(), String> {
        let words = |error: Error| error.to_string();
        // A profiled pass runs one kernel after the other and waits for each.
        let times = crate::cuda::pass::Times::default();
        let (program, pass) = (&set.program, set.pass(Some(&times)));
        let rounded = Rounded::new(program, &pass.layer_kernels);
        let value = |worker: usize, node: usize| {
            set.planes(worker, program.values[node], program.shape(node)).unwrap_or_default()
        };
        let flow = |worker: usize, node: usize| {
            let place = program.slots[node].map_or(0, |slot| program.buffers[slot]);
            set.planes(worker, place, program.shape(node)).unwrap_or_default()
        };
        pass.forward(pass_mode).map_err(words)?;
        pass.loss(FACTOR as f32, true, None).map_err(words)?;
        let mut checks = Vec::new();
        for (worker, ((parameters, statistics), (images, labels))) in states.iter().zip(batches).enumerate() {
            let (state, batch) = ((&parameters[..], &statistics[..]), (&images[..], &labels[..]));
            let (value, flow) = (|node| value(worker, node), |node| flow(worker, node));
            checks.push(Check::forward(&rounded, state, batch, mode, FACTOR, value, flow)?);
        }
        let mut readers = vec![None; program.buffers.len()];
        for (number, step) in program.steps.iter().enumerate().rev() {
            if program.slots[step.output].is_none() {
                continue;
            }
            pass.step_backward(number, pass_mode, &mut readers).map_err(words)?;
            for (worker, check) in checks.iter_mut().enumerate() {
                check.step_back(number, |node| flow(worker, node))?;
            }
        }
        pass.collect(pass_mode).map_err(words)?;
        let outcomes = set.outcomes().map_err(words)?;
        for (worker, check) in checks.into_iter().enumerate() {
            let gradient = set.gradient_of(worker).map_err(words)?;
            let statistics = set.statistics(worker).map_err(words)?;
            check
                .finish(outcomes[worker].loss, &gradient, &statistics, true)
                .map_err(|why| format!("worker {worker}: {why}"))?;
        }
        Ok(())
    }
}
