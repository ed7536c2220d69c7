//! Plain operations on a GPU: copies to pinned memory of the host, the plain form there, copies back.
//!
//! All of it is enqueued on the main stream, the computation as a host function, so a recorded graph holds it like any kernel. The
//! main stream runs one step at a time: one piece of pinned memory serves all steps.
#![allow(unsafe_code)]

use super::compile::{Program, pitch};
use super::device::{Context, failed};
use super::pass::Pass;
use super::pinned::Pinned;
use crate::op::plain::{Operands, Plain};
use crate::plan::{Flow, Step};
use crate::{Error, Op, Shape};
use cudarc::driver::{result, sys};
use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

/// For each number of a batch in plain order, its place among the stored numbers.
fn places(shape: Shape, batch: usize) -> impl Iterator<Item = usize> {
    let (pitch, area) = (pitch(shape.channels), shape.area());
    (0..batch * shape.len()).map(move |at| {
        let (image, channel, pixel) = (at / shape.len(), at / area % shape.channels, at % area);
        (image * area + pixel) * pitch + channel
    })
}

/// The stored number at a place, as bf16 or as f32.
fn get(stored: &[u8], at: usize, wide: usize) -> f32 {
    let bytes = &stored[at * wide..][..wide];
    match wide {
        2 => f32::from_bits(u32::from(bytemuck::pod_read_unaligned::<u16>(bytes)) << 16),
        _ => bytemuck::pod_read_unaligned(bytes),
    }
}

/// Stores a number as the kernels do: bf16 is rounded to the nearest, ties to even.
fn put(stored: &mut [u8], at: usize, wide: usize, x: f32) {
    let bits = x.to_bits();
    let rounded = if x.is_nan() { 0x7fff } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 };
    match wide {
        2 => stored[2 * at..][..2].copy_from_slice(&rounded.to_ne_bytes()),
        _ => stored[4 * at..][..4].copy_from_slice(&x.to_ne_bytes()),
    }
}

/// A stored batch in plain order.
pub(crate) fn unpack(shape: Shape, batch: usize, wide: usize, stored: &[u8]) -> Vec<f32> {
    places(shape, batch).map(|at| get(stored, at, wide)).collect()
}

/// What a step reads or writes: its place in a slab, and in the pinned memory of a replica.
#[derive(Clone, Debug)]
struct Part {
    /// The shape of an example; a tensor of parameters has none, and is stored as f32.
    shape: Option<Shape>,
    /// The offset in the slab; 0 if it is not wanted.
    offset: u64,
    start: usize,
    bytes: usize,
    /// Whether a result is added to what is there.
    add: bool,
}

/// One direction of a plain operation.
#[derive(Debug)]
struct HostStep {
    plain: Plain,
    batch: usize,
    wide: usize,
    inputs: Vec<Part>,
    tensors: Vec<Part>,
    /// The gradient of the operation's result; none in a forward pass.
    flow: Option<Part>,
    /// The operation's result, or the gradients of its inputs and tensors.
    results: Vec<Part>,
    /// Pinned memory of a replica.
    bytes: usize,
}

impl HostStep {
    /// A step of a program whose slab is allocated, if the step is a plain operation.
    fn new(program: &Program, step: &Step, backward: bool) -> Option<Self> {
        let Op::Plain { plain, tensors } = &step.op else { return None };
        let mut bytes = 0;
        let mut part = |shape, offset, length: usize, add| {
            let start = bytes;
            bytes += length.next_multiple_of(256);
            Part { shape, offset, start, bytes: length, add }
        };
        let mut batch = |node: usize, offset: u64, add: bool| {
            part(Some(program.shape(node)), offset, program.bytes(node), add)
        };
        let gradient = |node: usize| program.slots[node].map_or(0, |slot| program.buffers[slot]);
        let inputs = step.inputs.iter().map(|&node| batch(node, program.values[node], false)).collect();
        let flow = backward.then(|| batch(step.output, gradient(step.output), false));
        let mut results = Vec::new();
        if !backward {
            results.push(batch(step.output, program.values[step.output], false));
        }
        for (index, (&node, flow)) in step.inputs.iter().zip(&step.flows).enumerate().filter(|_| backward) {
            let mut part = match flow {
                Flow::Nowhere | Flow::Shared => batch(node, 0, false),
                Flow::Store | Flow::Add => batch(node, gradient(node), *flow == Flow::Add),
            };
            // Both gradients of a node that is read twice are added up in one place.
            if let Some(first) = step.inputs[..index].iter().position(|&other| other == node) {
                part.start = results[first].start;
            }
            results.push(part);
        }
        let mut vectors = |vector: u64| -> Vec<Part> {
            let spans = tensors.iter().map(|id| &program.spans[id.0]);
            spans.map(|s| part(None, vector + 4 * u64::from(s.start), 4 * s.length as usize, false)).collect()
        };
        let learnt = vectors(program.offsets.parameters);
        if backward {
            results.extend(vectors(program.offsets.gradient));
        }
        let (batch, wide) = (program.batch, program.wide);
        Some(HostStep { plain: *plain, batch, wide, inputs, tensors: learnt, flow, results, bytes })
    }

    /// What is copied to the host.
    fn read(&self) -> impl Iterator<Item = &Part> {
        let added = self.results.iter().filter(|part| part.add);
        self.inputs.iter().chain(&self.tensors).chain(&self.flow).chain(added)
    }

    /// What is copied back.
    fn written(&self) -> impl Iterator<Item = &Part> {
        self.results.iter().filter(|part| part.offset != 0)
    }

    /// Computes the results of one replica from its pinned memory.
    fn run(&self, memory: &mut [u8]) {
        let plain = |part: &Part| {
            let stored = &memory[part.start..][..part.bytes];
            match part.shape {
                Some(shape) => unpack(shape, self.batch, self.wide, stored),
                None => (0..part.bytes / 4).map(|at| get(stored, at, 4)).collect(),
            }
        };
        let operands = Operands {
            inputs: self.inputs.iter().filter_map(|part| Some((part.shape?, plain(part)))).collect(),
            tensors: self.tensors.iter().map(plain).collect(),
        };
        let found = match &self.flow {
            Some(flow) => {
                let found = self.plain.backward(&operands, &plain(flow));
                found.inputs.into_iter().map(|(_, dx)| dx).chain(found.tensors).collect()
            }
            None => {
                let length = self.results[0].shape.map_or(0, |shape| shape.len());
                vec![self.plain.forward(&operands, self.batch * length)]
            }
        };
        for (part, found) in self.results.iter().zip(found) {
            let stored = &mut memory[part.start..][..part.bytes];
            match part.shape {
                Some(shape) => {
                    if !part.add {
                        stored.fill(0);
                    }
                    for (at, x) in places(shape, self.batch).zip(found) {
                        let sum = if part.add { x + get(stored, at, self.wide) } else { x };
                        put(stored, at, self.wide, sum);
                    }
                }
                None => found.iter().enumerate().for_each(|(at, &x)| put(stored, at, 4, x)),
            }
        }
    }
}

/// A step with its memory: what the host function gets.
#[derive(Debug)]
struct Call {
    step: HostStep,
    memory: *mut u8,
    replicas: usize,
    /// Where a panic is reported; see [`Context::synchronise`].
    failure: Arc<OnceLock<String>>,
}

/// The host function: runs a [`Call`] for all replicas. It calls nothing of CUDA, and no panic leaves it.
///
/// # Safety
///
/// The argument points to a [`Call`] whose memory holds `replicas` times the bytes of its step, used by nobody else meanwhile.
unsafe extern "C" fn run_on_host(call: *mut c_void) {
    // SAFETY: the caller's promise.
    let call = unsafe { &*call.cast::<Call>() };
    // SAFETY: as above.
    let memory = unsafe { std::slice::from_raw_parts_mut(call.memory, call.replicas * call.step.bytes) };
    let work = || memory.chunks_exact_mut(call.step.bytes).for_each(|memory| call.step.run(memory));
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let why = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
        // The first failure is the one to report.
        let _ = call.failure.set(format!("{} failed: {why}", call.step.plain.name()));
    }
}

/// The plain operations of a program, and their pinned memory.
#[derive(Debug)]
pub(crate) struct HostSteps {
    context: Arc<Context>,
    /// By node and direction. The driver keeps addresses of these calls.
    calls: HashMap<(usize, bool), Box<Call>>,
    /// None without plain operations.
    memory: Option<Pinned>,
}

// SAFETY: the pinned memory is used by host functions alone, which the main stream runs one after the other.
unsafe impl Send for HostSteps {}
// SAFETY: as above.
unsafe impl Sync for HostSteps {}

impl HostSteps {
    /// For a program whose slab is allocated.
    pub(crate) fn new(context: &Arc<Context>, program: &Program, replicas: usize) -> Result<Self, Error> {
        let both = |step| [false, true].map(|backward| Some((step, HostStep::new(program, step, backward)?)));
        let steps: Vec<(&Step, HostStep)> = program.steps.iter().flat_map(both).flatten().collect();
        let bytes = steps.iter().map(|(_, step)| replicas * step.bytes).max().unwrap_or(0);
        let mut memory = (bytes > 0).then(|| Pinned::new(context, bytes)).transpose()?;
        let start = memory.as_mut().map_or(std::ptr::null_mut(), |memory| memory.as_mut_slice().as_mut_ptr());
        let calls = steps.into_iter().map(|(at, step)| {
            let key = (at.node, step.flow.is_some());
            (key, Box::new(Call { step, memory: start, replicas, failure: context.failure.clone() }))
        });
        Ok(HostSteps { calls: calls.collect(), context: context.clone(), memory })
    }
}

impl Drop for HostSteps {
    fn drop(&mut self) {
        // The main stream may still use the memory.
        if self.memory.is_some() && self.context.bind().is_ok() {
            let _ = self.context.synchronise();
        }
    }
}

impl Pass<'_> {
    /// Enqueues a plain operation for all replicas.
    pub(super) fn plain(&self, step: &Step, backward: bool) -> Result<(), Error> {
        let call: &Call = &self.host_steps.calls[&(step.node, backward)];
        let main = self.main.handle;
        let copy = |part: &Part, to_host: bool| {
            (0..self.workers).try_for_each(|replica| {
                let host = call.memory.wrapping_add(replica * call.step.bytes + part.start).cast();
                let device = self.base + part.offset + self.program.slab * replica as u64;
                // SAFETY: `HostStep::new` took the range in the slab from the program, and `HostSteps::new` allocated the
                // pinned memory of all parts. Both live until the GPU is done; only the main stream uses the latter.
                let status = unsafe {
                    match to_host {
                        true => sys::cuMemcpyDtoHAsync_v2(host, device, part.bytes, main),
                        false => sys::cuMemcpyHtoDAsync_v2(device, host, part.bytes, main),
                    }
                };
                status.result().map_err(failed("copy between host and GPU"))
            })
        };
        self.timed(call.step.plain.name(), || {
            self.context.bind()?;
            call.step.read().try_for_each(|part| copy(part, true))?;
            let argument = std::ptr::from_ref(call).cast_mut().cast();
            // SAFETY: the call and its memory live as long as the replica set, which waits for the GPU before it frees any.
            unsafe { result::stream::launch_host_function(main, run_on_host, argument) }
                .map_err(failed("enqueue a host function"))?;
            call.step.written().try_for_each(|part| copy(part, false))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::compile::WorkspaceNeeds;
    use crate::networks::plain_operations;

    const BATCH: usize = 2;

    fn program(wide: usize) -> Program {
        let mut program = Program::new(&plain_operations(), BATCH, wide).unwrap();
        let needs = WorkspaceNeeds { splits: 1, flipped: true, ..WorkspaceNeeds::default() };
        program.allocate(&vec![needs; program.layers.len()], 1);
        program
    }

    /// The plain operations of a network in one direction, before they have memory.
    fn steps(wide: usize, backward: bool) -> Vec<HostStep> {
        let program = program(wide);
        program.steps.iter().filter_map(|step| HostStep::new(&program, step, backward)).collect()
    }

    /// Numbers that bf16 holds exactly.
    fn fill(memory: &mut [u8], wide: usize) {
        for at in 0..memory.len() / wide {
            put(memory, at, wide, (at * 37 % 64) as f32 / 16.0 - 2.0);
        }
    }

    /// Results are those of the plain form, rounded where they are stored; padding channels stay zero.
    #[test]
    fn the_host_computes_the_plain_form() {
        for (wide, backward) in [(4, false), (4, true), (2, false), (2, true)] {
            let all = steps(wide, backward);
            let graph = plain_operations();
            let plain = graph.nodes().iter().filter(|node| matches!(node.op, Op::Plain { .. }));
            assert_eq!(all.len(), plain.count());
            for step in all {
                let mut memory = vec![0u8; step.bytes];
                for part in step.read() {
                    let wide = if part.shape.is_some() { wide } else { 4 };
                    fill(&mut memory[part.start..][..part.bytes], wide);
                }
                let before = memory.clone();
                step.run(&mut memory);
                let read = |memory: &[u8], part: &Part| match part.shape {
                    Some(shape) => unpack(shape, BATCH, wide, &memory[part.start..]),
                    None => {
                        (0..part.bytes / 4).map(|at| get(&memory[part.start..], at, 4)).collect::<Vec<_>>()
                    }
                };
                let input = |part: &Part| (part.shape.unwrap(), read(&before, part));
                let operands = Operands {
                    inputs: step.inputs.iter().map(input).collect(),
                    tensors: step.tensors.iter().map(|part| read(&before, part)).collect(),
                };
                let expected = match &step.flow {
                    None => {
                        let length = BATCH * step.results[0].shape.unwrap().len();
                        vec![step.plain.forward(&operands, length)]
                    }
                    Some(flow) => {
                        let found = step.plain.backward(&operands, &read(&before, flow));
                        found.inputs.into_iter().map(|(_, dx)| dx).chain(found.tensors).collect()
                    }
                };
                assert_eq!(step.results.len(), expected.len());
                for (part, mut expected) in step.results.iter().zip(expected) {
                    let old = read(&before, part);
                    assert!(part.add == old.iter().any(|&x| x != 0.0), "{part:?}");
                    expected.iter_mut().zip(old).for_each(|(x, old)| *x += old);
                    let places: Vec<usize> =
                        part.shape.map_or_else(Vec::new, |shape| places(shape, BATCH).collect());
                    for (at, (found, expected)) in read(&memory, part).into_iter().zip(&expected).enumerate()
                    {
                        let bound =
                            if wide == 2 && part.shape.is_some() { expected.abs() / 256.0 } else { 0.0 };
                        assert!((found - expected).abs() <= bound, "{part:?} {at}: {found}, not {expected}");
                    }
                    if let (Some(shape), false) = (part.shape, part.add) {
                        let padding = (0..BATCH * shape.area() * pitch(shape.channels))
                            .filter(|at| !places.contains(at));
                        assert!(padding.into_iter().all(|at| get(&memory[part.start..], at, wide) == 0.0));
                    }
                }
            }
        }
    }

    /// The second gradient of a node that is read twice is added to the first.
    #[test]
    fn gradients_of_one_node_are_added() {
        let program = program(4);
        let found = |twice: bool| {
            let mut step =
                program.steps.iter().find(|step| matches!(step.op, Op::Plain { .. })).unwrap().clone();
            step.flows = vec![Flow::Store];
            if twice {
                step.inputs.push(step.inputs[0]);
                step.flows.push(Flow::Add);
            }
            let host = HostStep::new(&program, &step, true).unwrap();
            let mut memory = vec![0u8; host.bytes];
            host.read().for_each(|part| fill(&mut memory[part.start..][..part.bytes], 4));
            host.run(&mut memory);
            let last = &host.results[host.inputs.len() - 1];
            (0..last.bytes / 4).map(|at| get(&memory[last.start..], at, 4)).collect::<Vec<f32>>()
        };
        // Group norm reads its first input alone: the gradient of the second is zero.
        assert!(found(true).iter().any(|&x| x != 0.0));
        assert_eq!(found(true), found(false));
    }

    #[test]
    fn numbers_are_rounded_as_on_the_gpu() {
        let mut stored = [0u8; 2];
        // Ties go to even; what is larger than bf16 holds becomes infinite, and what is not a number stays so.
        for (x, bits) in [
            (1.0f32, 0x3f80u16),
            (f32::from_bits(0x3f80_8000), 0x3f80),
            (f32::from_bits(0x3f81_8000), 0x3f82),
            (f32::from_bits(0x3f80_8001), 0x3f81),
            (-0.0, 0x8000),
            (f32::MAX, 0x7f80),
            (f32::NEG_INFINITY, 0xff80),
            (f32::NAN, 0x7fff),
            (f32::from_bits(u32::MAX), 0x7fff),
        ] {
            put(&mut stored, 0, 2, x);
            assert_eq!(u16::from_ne_bytes(stored), bits, "{x}");
        }
    }

    /// A panic must not reach the driver: it is kept as the failure of the replica set, the first one only.
    #[test]
    fn a_panic_is_reported() {
        let failure = Arc::new(OnceLock::new());
        for damage in
            [|step: &mut HostStep| step.tensors[0].bytes = 4, |step: &mut HostStep| step.results.clear()]
        {
            let mut step = steps(4, false).remove(0);
            damage(&mut step);
            let mut memory = vec![0u8; step.bytes];
            let mut call = Call { step, memory: memory.as_mut_ptr(), replicas: 1, failure: failure.clone() };
            // SAFETY: the memory has the bytes of one replica.
            unsafe { run_on_host(std::ptr::from_mut(&mut call).cast()) };
        }
        let why = failure.get().unwrap();
        assert!(why.starts_with("group norm failed: index out of bounds: the len is 1"), "{why}");
    }
}
