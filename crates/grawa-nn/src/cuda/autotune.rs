//! The kernel of each layer: measured once on this GPU, or chosen by shape alone.

use super::compile::{ConvGeometry, Layer, Program};
use super::cudnn::{Cudnn, Direction, timed};
use super::device::{Argument, Context, Device, Grid, Memory, Stream, WIDE, arguments};
use super::kernel_choice::{KernelChoice, LayerKernels, Machine, own, own_sums};
use super::kernels::Kernels;
use super::pass::{NormArgument, SumsArgument};
use super::wide;
use crate::{Error, Precision};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The kernel chosen for a layer, for people to read.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The layer's weight tensor.
    pub layer: String,
    /// Forward, backward (data) or backward (weights).
    pub direction: &'static str,
    /// The kernel.
    pub chosen: String,
    /// Microseconds of our fastest kernel, if it was measured.
    pub own: Option<f64>,
    /// Microseconds of the fastest cuDNN plan, if it was measured.
    pub cudnn: Option<f64>,
}

/// Chooses the kernels of a program.
pub(crate) struct Autotuner<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) kernels: &'a Kernels,
    pub(crate) cudnn: Option<&'a Cudnn>,
    pub(crate) stream: &'a Stream,
    pub(crate) precision: Precision,
    pub(crate) replicas: usize,
    /// Take cuDNN's first suggestion instead of measuring, so that every run chooses the same.
    pub(crate) fixed: bool,
}

/// Assumed memory bandwidth in bytes per second: the cost of a pass over memory that a kernel saves.
const BANDWIDTH: f64 = 4.5e12;
/// Assumed cost of a kernel that would not be needed, in seconds.
const LAUNCH: f64 = 3e-6;

type Cache =
    HashMap<(ConvGeometry, usize, usize, [bool; 6], Direction), (KernelChoice, Option<f64>, Option<f64>)>;

impl Autotuner<'_> {
    /// Chooses the kernels of every layer.
    pub(crate) fn choose(&self, program: &Program) -> Result<(Vec<LayerKernels>, Vec<Choice>), Error> {
        let mut scratch = None;
        let (mut cache, mut layer_kernels, mut choices) = (Cache::new(), Vec::new(), Vec::new());
        let (narrow, machine) = (self.precision == Precision::Bf16, self.machine());
        for layer in &program.layers {
            let (sums, stretch) = own_sums(layer, narrow, machine);
            let name = program.graph.parameters().spans()[layer.weight.0].name();
            let mut pick = |direction: Direction, ours: KernelChoice| -> Result<KernelChoice, Error> {
                let has = [layer.bias.is_some(), layer.norm.is_some(), layer.moments.is_some()];
                let flags =
                    [layer.adds, layer.source.is_some(), masks(program, layer), has[0], has[1], has[2]];
                let key = (layer.forward, layer.stride, layer.pad, flags, direction);
                let (kernel, own, cudnn) = match cache.entry(key) {
                    Entry::Occupied(known) => known.get().clone(),
                    Entry::Vacant(new) => {
                        let found = self.pick(program, layer, direction, ours, stretch, &mut scratch)?;
                        new.insert(found).clone()
                    }
                };
                choices.push(Choice {
                    layer: name.to_owned(),
                    direction: match direction {
                        Direction::Forward => "forward",
                        Direction::BackwardData => "backward (data)",
                        Direction::BackwardWeights => "backward (weights)",
                    },
                    chosen: match &kernel {
                        KernelChoice::Own { name, .. } => (*name).to_owned(),
                        KernelChoice::Wide(wide) => wide.name.to_owned(),
                        KernelChoice::Cudnn(_) => "cudnn".to_owned(),
                    },
                    own: own.map(|seconds| seconds * 1e6),
                    cudnn: cudnn.map(|seconds| seconds * 1e6),
                });
                Ok(kernel)
            };
            layer_kernels.push(LayerKernels {
                forward: pick(
                    Direction::Forward,
                    own(&layer.forward, narrow, layer.bias.is_some(), machine),
                )?,
                backward_data: pick(Direction::BackwardData, own(&layer.backward, narrow, false, machine))?,
                backward_weights: pick(Direction::BackwardWeights, sums)?,
                stretch,
            });
        }
        Ok((layer_kernels, choices))
    }

    /// Chooses one kernel. Returns it with the times of our fastest kernel and of cuDNN.
    #[allow(unsafe_code, reason = "plans and kernels are timed on scratch memory")]
    fn pick(
        &self,
        program: &Program,
        layer: &Layer,
        direction: Direction,
        ours: KernelChoice,
        stretch: usize,
        scratch: &mut Option<Memory>,
    ) -> Result<(KernelChoice, Option<f64>, Option<f64>), Error> {
        let geometry = &layer.forward;
        let narrow_layer = geometry.cp <= 32 && geometry.op <= 32;
        // cuDNN rounds before a bias is added: classifiers, whose channels are often padded, stay exact with our kernels.
        let exact = geometry.o != geometry.op && layer.bias.is_some() && layer.norm.is_none();
        let wanted = !exact && (self.precision == Precision::Tf32 || !narrow_layer);
        let wide = self.wide(layer, direction).filter(|_| wanted);
        let plans = match self.cudnn.filter(|_| wanted) {
            Some(cudnn) if !self.fixed || wide.is_none() => {
                cudnn.plans(layer, direction, self.precision == Precision::Bf16)?
            }
            _ => Vec::new(),
        };
        if wide.is_none() && plans.is_empty() {
            return Ok((ours, None, None));
        }
        if self.fixed {
            let first = plans.into_iter().next().map(KernelChoice::Cudnn);
            return Ok((wide.or(first).unwrap_or(ours), None, None));
        }
        let sizes = tensors(program, layer);
        // Bytes of partial weight gradients, or at most of the sums for a batch norm.
        let (columns, pitch) = (geometry.columns(), geometry.op.max(geometry.cp) as usize);
        let sum = match direction {
            Direction::BackwardWeights => geometry.o as usize * columns * 4,
            Direction::Forward | Direction::BackwardData => 2 * pitch * 4,
        };
        let sums = |kernel: &KernelChoice| kernel.splits().unwrap_or(0) * sum;
        let memory = match scratch {
            Some(memory) => memory,
            None => {
                let most = |tensor: usize| {
                    program.layers.iter().map(|layer| tensors(program, layer)[tensor]).max().unwrap_or(0)
                };
                // What a batch norm before the layer has normalised is as large as the input.
                let all: usize = [0, 1, 2, 0].map(most).iter().sum();
                // Kernels for wide layers serve all replicas at once. Behind all the record of a batch norm.
                scratch.insert(Memory::new(self.context, self.replicas * (all + (1 << 16)))?)
            }
        };
        let slab = (memory.bytes / self.replicas) as u64 & !0xff;
        let mut start = memory.start;
        let [x, weight, y, values] = [sizes[0], sizes[1], sizes[2], sizes[0]].map(|bytes| {
            let address = start;
            start = (start + bytes as u64).next_multiple_of(256);
            address
        });
        let addresses = [x, weight, y];
        // What other kernels must do if this one is chosen: passes over a tensor, in seconds.
        let pass = |tensor: usize, times: f64| times * sizes[tensor] as f64 / BANDWIDTH;
        let more = |kernel: &KernelChoice| match (direction, kernel) {
            // The moments for the batch norm, if the layer does not sum for them.
            (Direction::Forward, _) if layer.moments.is_some() && kernel.rows().is_none() => {
                LAUNCH + pass(2, 1.0)
            }
            (Direction::Forward, _) => 0.0,
            (Direction::BackwardData, _) => {
                // cuDNN's result is added to earlier contributions by a kernel of its own.
                let adding = match kernel {
                    KernelChoice::Cudnn(_) if layer.adds => LAUNCH + pass(0, 3.0),
                    _ => 0.0,
                };
                // The backward sums of the batch norm before the layer. If it has a shortcut and the layer does not mask, it
                // stores the gradient of the shortcut.
                let summing = match (kernel, masks(program, layer)) {
                    _ if layer.source.is_none() => 0.0,
                    (KernelChoice::Own { .. }, _) => 0.0,
                    (KernelChoice::Cudnn(_), true) => LAUNCH + pass(0, 3.0),
                    (KernelChoice::Wide(_) | KernelChoice::Cudnn(_), _) => LAUNCH + pass(0, 2.0),
                };
                adding + summing
            }
            (Direction::BackwardWeights, _) => sums(kernel) as f64 / BANDWIDTH,
        };
        let best = match self.cudnn {
            // SAFETY: the scratch memory holds the largest input, weights and output of all layers, one after the other.
            Some(cudnn) => unsafe { cudnn.fastest(plans, self.stream, addresses) }?,
            None => None,
        };
        let cudnn_time = best.as_ref().map(|plan| plan.seconds);
        if let (Precision::Tf32, Some(plan)) = (self.precision, &best) {
            // Our kernels would be those of f32.
            return Ok((KernelChoice::Cudnn(plan.clone()), None, cudnn_time));
        }
        let mut times = Vec::new();
        for kernel in [Some(ours.clone()), wide].into_iter().flatten() {
            let (places, partial) = ((addresses, values, slab), sums(&kernel));
            // SAFETY: as above.
            let seconds = unsafe { self.time_own(layer, direction, &kernel, places, stretch, partial) }?;
            times.push((seconds, kernel));
        }
        let own_time = times.iter().map(|(seconds, _)| *seconds).min_by(f64::total_cmp);
        times.extend(best.map(|plan| (plan.seconds, KernelChoice::Cudnn(plan))));
        let all = |(seconds, kernel): &(f64, KernelChoice)| seconds + more(kernel);
        let least = times.into_iter().min_by(|a, b| all(a).total_cmp(&all(b)));
        Ok((least.map_or(ours, |(_, kernel)| kernel), own_time, cudnn_time))
    }

    /// The kernel for wide layers, where the GPU has it.
    fn wide(&self, layer: &Layer, direction: Direction) -> Option<KernelChoice> {
        if self.precision != Precision::Bf16 || self.context.device.capability != WIDE {
            return None;
        }
        let wide = match direction {
            Direction::Forward => wide::convolution(&layer.forward, false, self.machine()),
            Direction::BackwardData => wide::convolution(&layer.backward, true, self.machine()),
            Direction::BackwardWeights => wide::weight_gradient(&layer.forward, self.machine()),
        };
        wide.map(|wide| KernelChoice::Wide(Box::new(wide)))
    }

    fn machine(&self) -> Machine {
        let Device { processors, shared, .. } = self.context.device;
        Machine { processors, replicas: self.replicas, shared }
    }

    /// The time of one of our kernels in seconds, for one of the replicas that it serves, with all that it does in a step: additions
    /// and sums for a batch norm.
    ///
    /// # Safety
    ///
    /// Input, weights and output of the first replica are at these addresses, each as large as the layer requires, and so is what a
    /// batch norm normalised, as large as the input, with room for its record behind it; those of the others follow, `slab` bytes
    /// apart. The partial sums take `partial` bytes.
    #[allow(unsafe_code, reason = "a kernel accesses the addresses it is given")]
    unsafe fn time_own(
        &self,
        layer: &Layer,
        direction: Direction,
        kernel: &KernelChoice,
        ([x, weight, y], values, slab): ([u64; 3], u64, u64),
        stretch: usize,
        partial: usize,
    ) -> Result<f64, Error> {
        let (none, stretch) = (0u64, stretch as i32);
        let memory = Memory::new(self.context, (self.replicas - 1) * slab as usize + partial)?;
        let partial = memory.start;
        let (geometry, from, to) = match direction {
            Direction::Forward => (layer.forward, x, y),
            Direction::BackwardData => (layer.backward, y, x),
            Direction::BackwardWeights => (layer.forward, x, partial),
        };
        let add = i32::from(direction == Direction::BackwardData && layer.adds);
        // MOMENTS and FLOW in `conv.cu`. A kernel for wide layers only masks the gradient of a batch norm. All are timed as if bits
        // masked it, also where values do.
        let kind = match direction {
            _ if kernel.rows().is_none() => 0,
            Direction::Forward if layer.moments.is_some() => 1,
            Direction::BackwardData if layer.source.is_some() => 2,
            _ => 0i32,
        };
        let (moments, positive) = (i32::from(kind == 1), if kind == 2 { values } else { 0 });
        let norm = NormArgument::leaving(partial, values, geometry.op);
        let sums = SumsArgument::reading(values);
        let time = timed(self.context, self.stream, || {
            // SAFETY: the arguments are those of `conv_*`, `wgrad_*`, `conv_wide_*` or `wgrad_wide_*`. The addresses are the caller's
            // promise, and the sums have memory for every replica. `timed` waits for the kernel, and it skips what has address 0.
            let launch = |name: &'static str, grid: Grid, arguments: &mut [Argument<'_>]| unsafe {
                self.stream.launch(self.kernels, name, grid, self.replicas, arguments)
            };
            match (kernel, direction) {
                (KernelChoice::Own { name, grid, .. }, Direction::BackwardWeights) => {
                    launch(name, *grid, arguments![geometry, x, y, partial, stretch, slab])
                }
                (KernelChoice::Own { name, grid, rows }, _) => {
                    let arguments =
                        arguments![geometry, from, weight, none, to, add, kind, norm, sums, *rows, slab];
                    launch(name, *grid, arguments)
                }
                (KernelChoice::Wide(wide), Direction::BackwardWeights) => {
                    let [left, right] = wide.maps([x, y], slab, self.replicas)?;
                    launch(wide.name, wide.grid, arguments![left, right, partial, wide.tiles, slab])
                }
                (KernelChoice::Wide(wide), _) => {
                    let [left, right] = wide.maps([from, weight], slab, self.replicas)?;
                    let arguments =
                        arguments![left, right, none, to, wide.tiles, positive, add, moments, norm, slab];
                    launch(wide.name, wide.grid, arguments)
                }
                (KernelChoice::Cudnn(_), _) => unreachable!("cuDNN's plans are timed by `Cudnn::fastest`"),
            }
        })?;
        Ok(time / self.replicas as f64)
    }
}

/// Whether the gradient of a layer's input is that of a batch norm with a shortcut and a ReLU, which bits mask.
fn masks(program: &Program, layer: &Layer) -> bool {
    let source = layer.source.map(|step| &program.steps[step]);
    source.is_some_and(|step| step.relu && step.inputs.len() == 2)
}

/// Bytes of input, weights and output.
fn tensors(program: &Program, layer: &Layer) -> [usize; 3] {
    let geometry = &layer.forward;
    let input = (geometry.n * geometry.h * geometry.w) as usize * geometry.cp as usize;
    let kernels = geometry.op as usize * geometry.columns();
    let output = geometry.pixels() * geometry.op as usize;
    [input, kernels.max(layer.backward.columns() * geometry.cp as usize), output]
        .map(|numbers| numbers * program.wide)
}
