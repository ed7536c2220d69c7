//! The kernel of each layer: measured once on this GPU, or chosen by shape alone.

use super::compile::{ConvGeometry, Layer, Program};
use super::cudnn::{Cudnn, Direction, timed};
use super::device::{Argument, Context, Device, Grid, Memory, Stream, WIDE, arguments};
use super::kernel_choice::{KernelChoice, LayerKernels, Machine, own, own_sums};
use super::kernels::Kernels;
use super::pass::{NormArgument, SumsArgument};
use super::wide::{self, Wide};
use crate::{Error, Precision};
use bytemuck::Zeroable;
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
    HashMap<(ConvGeometry, usize, usize, [bool; 5], Direction), (KernelChoice, Option<f64>, Option<f64>)>;

impl Autotuner<'_> {
    /// Chooses the kernels of every layer.
    pub(crate) fn choose(&self, program: &Program) -> Result<(Vec<LayerKernels>, Vec<Choice>), Error> {
        let mut scratch = None;
        let (mut cache, mut layer_kernels, mut choices) = (Cache::new(), Vec::new(), Vec::new());
        for layer in &program.layers {
            let narrow = self.precision == Precision::Bf16;
            let machine = Machine {
                processors: self.context.device.processors,
                replicas: self.replicas,
                shared: self.context.device.shared,
            };
            let (sums, stretch) = own_sums(layer, narrow, machine);
            let name = program.graph.parameters().spans()[layer.weight.0].name();
            let mut pick = |direction: Direction, ours: KernelChoice| -> Result<KernelChoice, Error> {
                let has = [layer.bias.is_some(), layer.norm.is_some(), layer.moments.is_some()];
                let flags = [layer.adds, layer.source.is_some(), has[0], has[1], has[2]];
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
            return Ok((
                wide.map(|wide| KernelChoice::Wide(Box::new(wide))).or(first).unwrap_or(ours),
                None,
                None,
            ));
        }
        let sizes = tensors(program, layer);
        // Bytes of partial weight gradients, or at most of the sums for a batch norm.
        let (columns, pitch) = (geometry.columns(), geometry.op.max(geometry.cp) as usize);
        let sums = |grid: &Grid| match direction {
            Direction::BackwardWeights => grid.blocks.0 as usize * geometry.o as usize * columns * 4,
            Direction::Forward | Direction::BackwardData => grid.blocks.0 as usize * 2 * pitch * 4,
        };
        if scratch.is_none() {
            let most = |of: fn(&[usize; 3]) -> usize| {
                program.layers.iter().map(|layer| of(&tensors(program, layer))).max()
            };
            let all = [most(|s| s[0]), most(|s| s[1]), most(|s| s[2])].into_iter().flatten().sum::<usize>();
            // Kernels for wide layers serve all replicas at once.
            *scratch = Some(Memory::new(self.context, self.replicas * (all + (1 << 12)))?);
        }
        let Some(memory) = scratch else { return Ok((ours, None, None)) };
        let slab = (memory.bytes / self.replicas) as u64 & !0xff;
        let mut start = memory.start;
        let addresses = sizes.map(|bytes| {
            let address = start;
            start = (start + bytes as u64).next_multiple_of(256);
            address
        });
        // What other kernels must do if this one is chosen: passes over a tensor, in seconds.
        let pass = |tensor: usize, times: f64| times * sizes[tensor] as f64 / BANDWIDTH;
        let more = |kernel: &KernelChoice| match (direction, kernel) {
            // Our kernels compute the moments for the batch norm.
            (Direction::Forward, KernelChoice::Cudnn(_)) if layer.moments.is_some() => LAUNCH + pass(2, 1.0),
            (Direction::Forward, _) => 0.0,
            (Direction::BackwardData, _) => {
                // cuDNN's result is added to earlier contributions by a kernel of its own.
                let adding = match kernel {
                    KernelChoice::Cudnn(_) if layer.adds => LAUNCH + pass(0, 3.0),
                    KernelChoice::Own { .. } if layer.adds => pass(0, 1.0),
                    // A kernel for wide layers was measured adding.
                    _ => 0.0,
                };
                // Our kernels for narrow layers also compute the backward sums of the batch norm before the layer; then one
                // tensor less is read.
                let summing = match kernel {
                    _ if layer.source.is_none() => 0.0,
                    KernelChoice::Own { .. } => pass(0, 1.5),
                    _ => LAUNCH + pass(0, 2.5),
                };
                // cuDNN does not mask by bits: the batch norm then stores the gradient of its shortcut.
                let masking = match (kernel, layer.source.map(|step| &program.steps[step])) {
                    (KernelChoice::Cudnn(_), Some(step)) if step.relu && step.inputs.len() == 2 => {
                        pass(0, 1.0)
                    }
                    _ => 0.0,
                };
                adding + summing + masking
            }
            (Direction::BackwardWeights, KernelChoice::Own { grid, .. }) => sums(grid) as f64 / BANDWIDTH,
            (Direction::BackwardWeights, KernelChoice::Wide(wide)) => sums(&wide.grid) as f64 / BANDWIDTH,
            (Direction::BackwardWeights, KernelChoice::Cudnn(_)) => 0.0,
        };
        let best = match self.cudnn {
            // SAFETY: the scratch memory holds the largest input, weights and output of all layers, one after the other.
            Some(cudnn) => unsafe { cudnn.fastest(plans, self.stream, addresses) }?,
            None => None,
        };
        let cudnn_time = best.as_ref().map(|plan| plan.seconds);
        let KernelChoice::Own { grid, .. } = &ours else { return Ok((ours, None, cudnn_time)) };
        if let (Precision::Tf32, Some(plan)) = (self.precision, &best) {
            // Our kernels would be those of f32.
            return Ok((KernelChoice::Cudnn(plan.clone()), None, cudnn_time));
        }
        // SAFETY: as above.
        let mut own_time =
            unsafe { self.time_own(layer, direction, &ours, (addresses, slab), stretch, sums(grid)) }?;
        let (mut least, mut kernel) = (own_time + more(&ours), ours);
        if let Some(wide) = wide {
            // SAFETY: as above.
            let seconds =
                unsafe { self.time_wide(layer, &wide, direction, (addresses, slab), sums(&wide.grid)) }?;
            let choice = KernelChoice::Wide(Box::new(wide));
            own_time = own_time.min(seconds);
            if seconds + more(&choice) < least {
                (least, kernel) = (seconds + more(&choice), choice);
            }
        }
        if let (Some(seconds), Some(choice)) = (cudnn_time, best.map(KernelChoice::Cudnn))
            && seconds + more(&choice) < least
        {
            kernel = choice;
        }
        Ok((kernel, Some(own_time), cudnn_time))
    }

    /// The kernel for wide layers, where the GPU has it.
    fn wide(&self, layer: &Layer, direction: Direction) -> Option<Wide> {
        let Device { capability, processors, shared, .. } = self.context.device;
        if self.precision != Precision::Bf16 || capability != WIDE {
            return None;
        }
        let machine = Machine { processors, replicas: self.replicas, shared };
        match direction {
            Direction::Forward => wide::convolution(&layer.forward, false, machine),
            Direction::BackwardData => wide::convolution(&layer.backward, true, machine),
            Direction::BackwardWeights => wide::weight_gradient(&layer.forward, machine),
        }
    }

    /// The time of a kernel for wide layers in seconds, including addition and moments, for one of the replicas that it serves.
    ///
    /// # Safety
    ///
    /// As for [`Autotuner::time_own`]; `sums` is how many bytes of sums the kernel leaves.
    #[allow(unsafe_code, reason = "a kernel accesses the addresses it is given")]
    unsafe fn time_wide(
        &self,
        layer: &Layer,
        wide: &Wide,
        direction: Direction,
        ([x, weight, y], slab): ([u64; 3], u64),
        sums: usize,
    ) -> Result<f64, Error> {
        let none = 0u64;
        let sums = Memory::new(self.context, (self.replicas - 1) * slab as usize + sums)?;
        let (sources, to) = match direction {
            Direction::Forward => ([x, weight], y),
            Direction::BackwardData => ([y, weight], x),
            Direction::BackwardWeights => ([x, y], sums.start),
        };
        let [left, right] = wide.maps(sources, slab, self.replicas)?;
        let add = i32::from(direction == Direction::BackwardData && layer.adds);
        let moments = i32::from(direction == Direction::Forward && layer.moments.is_some());
        let norm = NormArgument::leaving(sums.start, wide.tiles.pitch);
        let time = timed(self.context, self.stream, || {
            let arguments: &mut [Argument<'_>] = match direction {
                Direction::BackwardWeights => arguments![left, right, to, wide.tiles, slab],
                _ => arguments![left, right, none, to, wide.tiles, none, add, moments, norm, slab],
            };
            // SAFETY: the arguments are those of `conv_wide_*` or `wgrad_wide_*`. The addresses are the caller's promise, and the
            // sums have memory for every replica. `timed` waits for the kernel.
            unsafe { self.stream.launch(self.kernels, wide.name, wide.grid, self.replicas, arguments) }
        })?;
        Ok(time / self.replicas as f64)
    }

    /// The time of our kernel in seconds, for one of the replicas that it serves.
    ///
    /// # Safety
    ///
    /// Input, weights and output of the first replica are at these addresses, each as large as the layer requires; those of the
    /// others follow, `slab` bytes apart. The partial sums take `partial` bytes.
    #[allow(unsafe_code, reason = "a kernel accesses the addresses it is given")]
    unsafe fn time_own(
        &self,
        layer: &Layer,
        direction: Direction,
        kernel: &KernelChoice,
        ([x, weight, y], slab): ([u64; 3], u64),
        stretch: usize,
        partial: usize,
    ) -> Result<f64, Error> {
        let KernelChoice::Own { name, grid, rows } = kernel else { return Ok(f64::INFINITY) };
        let (none, no, stretch) = (0u64, 0i32, stretch as i32);
        // Unused without sums, but the kernel has the parameter.
        let norm = NormArgument::unused();
        let sums = if direction == Direction::BackwardWeights {
            Some(Memory::new(self.context, (self.replicas - 1) * slab as usize + partial)?)
        } else {
            None
        };
        let sums_at = sums.as_ref().map_or(0, |memory| memory.start);
        let time = timed(self.context, self.stream, || match direction {
            Direction::Forward | Direction::BackwardData => {
                let (geometry, from, to) = if direction == Direction::Forward {
                    (&layer.forward, x, y)
                } else {
                    (&layer.backward, y, x)
                };
                let sums = SumsArgument::zeroed();
                let arguments =
                    arguments![*geometry, from, weight, none, to, no, no, norm, sums, *rows, slab];
                // SAFETY: the arguments are those of `conv_*`. The addresses are the caller's promise, `timed` waits for the
                // kernel, and it skips what has address 0.
                unsafe { self.stream.launch(self.kernels, name, *grid, self.replicas, arguments) }
            }
            Direction::BackwardWeights => {
                let arguments = arguments![layer.forward, x, y, sums_at, stretch, slab];
                // SAFETY: the arguments are those of `wgrad_*`; otherwise as above.
                unsafe { self.stream.launch(self.kernels, name, *grid, self.replicas, arguments) }
            }
        })?;
        Ok(time / self.replicas as f64)
    }
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
