//! Which kernel each layer gets: measured once on the card at hand, or settled by shape alone.

use super::card::{Context, Kernels, Memory, Stream, at};
use super::cudnn::{Cudnn, Plan as CudnnPlan, Way, timed};
use super::engine::{Engine, Ways, own, own_sums};
use super::fleet::Precision;
use super::plan::{Layer, Plan, Walk};
use crate::Error;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// What was chosen for a layer, in words.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The layer's tensor.
    pub layer: String,
    /// Forward, backward (data) or backward (kernels).
    pub way: &'static str,
    /// The kernel.
    pub chosen: String,
    /// Microseconds of ours, if it was measured.
    pub own: Option<f64>,
    /// Microseconds of cuDNN's best, if it was measured.
    pub cudnn: Option<f64>,
}

/// Everything that choosing needs.
pub(crate) struct Chooser<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) kernels: &'a Kernels,
    pub(crate) cudnn: Option<&'a Cudnn>,
    pub(crate) stream: &'a Stream,
    pub(crate) precision: Precision,
    pub(crate) replicas: usize,
    /// Take cuDNN's first advice instead of measuring, so that every start chooses alike.
    pub(crate) fixed: bool,
}

/// A passing of numbers through memory, in bytes a second: what a pass that a kernel saves is taken to cost.
const BANDWIDTH: f64 = 2.5e12;
/// How much faster alone a kernel of ours must be: beside others in a step it gains less than cuDNN's do.
const ALONE: f64 = 1.15;
/// What starting a kernel is taken to cost, in seconds.
const START: f64 = 3e-6;

type Cache = HashMap<(Walk, usize, usize, Way), (Engine, Option<f64>, Option<f64>)>;

impl Chooser<'_> {
    /// Chooses for every layer of a plan.
    pub(crate) fn choose(&self, plan: &Plan) -> Result<(Vec<Ways>, Vec<Choice>), Error> {
        let mut scratch = None;
        let (mut cache, mut ways, mut choices) = (Cache::new(), Vec::new(), Vec::new());
        for layer in &plan.layers {
            let narrow = self.precision == Precision::Bf16;
            let (sums, stretch, splits) =
                own_sums(layer, narrow, self.context.card.processors, self.replicas);
            let name = plan.graph.parameters().spans()[layer.weight.0].name();
            let mut pick = |way: Way, ours: Engine| -> Result<Engine, Error> {
                let key = (layer.forth, layer.stride, layer.pad, way);
                let (engine, own, cudnn) = match cache.entry(key) {
                    Entry::Occupied(known) => known.get().clone(),
                    Entry::Vacant(new) => {
                        let found = self.pick(plan, layer, way, ours, (stretch, splits), &mut scratch)?;
                        new.insert(found).clone()
                    }
                };
                choices.push(Choice {
                    layer: name.to_owned(),
                    way: match way {
                        Way::Forth => "forward",
                        Way::Back => "backward (data)",
                        Way::Sums => "backward (kernels)",
                    },
                    chosen: match &engine {
                        Engine::Own { name, .. } => (*name).to_owned(),
                        Engine::Cudnn(_) => "cudnn".to_owned(),
                    },
                    own: own.map(|seconds| seconds * 1e6),
                    cudnn: cudnn.map(|seconds| seconds * 1e6),
                });
                Ok(engine)
            };
            ways.push(Ways {
                forth: pick(Way::Forth, own(&layer.forth, narrow))?,
                back: pick(Way::Back, own(&layer.back, narrow))?,
                sums: pick(Way::Sums, sums)?,
                stretch,
                splits,
            });
        }
        Ok((ways, choices))
    }

    /// One engine, with the times of ours and of cuDNN's.
    #[allow(unsafe_code, reason = "plans and kernels are tried on scratch memory")]
    fn pick(
        &self,
        plan: &Plan,
        layer: &Layer,
        way: Way,
        ours: Engine,
        stretches: (usize, usize),
        scratch: &mut Option<Memory>,
    ) -> Result<(Engine, Option<f64>, Option<f64>), Error> {
        let walk = &layer.forth;
        // cuDNN computes whole channels, and knows no padding among the outputs.
        let fits = walk.o == walk.op;
        let narrow_layer = walk.cp <= 32 && walk.op <= 32;
        let Some(cudnn) = self.cudnn.filter(|_| fits && (self.precision == Precision::Tf32 || !narrow_layer))
        else {
            return Ok((ours, None, None));
        };
        let plans = cudnn.plans(layer, way, self.precision == Precision::Bf16)?;
        if self.fixed {
            let first = plans.into_iter().next();
            return Ok((first.map_or(ours, Engine::Cudnn), None, None));
        }
        let sizes = tensors(plan, layer);
        let (_, splits) = stretches;
        let partial = splits * walk.o as usize * walk.columns() * 4;
        if scratch.is_none() {
            let most = |of: fn(&[usize; 3]) -> usize| {
                plan.layers.iter().map(|layer| of(&tensors(plan, layer))).max()
            };
            let all = [most(|s| s[0]), most(|s| s[1]), most(|s| s[2])].into_iter().flatten().sum::<usize>();
            *scratch = Some(Memory::new(self.context, all + (1 << 12))?);
        }
        let Some(memory) = scratch else { return Ok((ours, None, None)) };
        let mut start = memory.start;
        let places = sizes.map(|bytes| {
            let place = start;
            start = (start + bytes as u64).next_multiple_of(256);
            place
        });
        // SAFETY: the scratch memory holds the largest input, kernels and output of all layers, one behind the other.
        let best = unsafe { cudnn.quickest(plans, self.stream, places) }?;
        // SAFETY: as above.
        let own_time = unsafe { self.time_own(layer, way, &ours, places, stretches.0, partial) }?;
        let Some(best) = best else { return Ok((ours, Some(own_time), None)) };
        let cudnn_time = best.seconds;
        let (ours_all, theirs_all) = match way {
            Way::Forth if layer.norm.is_some() => {
                (own_time, cudnn_time + START + sizes[2] as f64 / BANDWIDTH)
            }
            Way::Sums => (own_time + partial as f64 / BANDWIDTH, cudnn_time),
            _ => (own_time, cudnn_time),
        };
        let ours_wins = ours_all * ALONE <= theirs_all && self.precision == Precision::Bf16;
        let engine = if ours_wins { ours } else { Engine::Cudnn(best) };
        Ok((engine, Some(own_time), Some(cudnn_time)))
    }

    /// Seconds that our kernel takes.
    ///
    /// # Safety
    ///
    /// Input, kernels and output lie at these places, each as large as the layer says; the sums of all stretches take up
    /// `partial` bytes.
    #[allow(unsafe_code, reason = "a kernel reads and writes wherever it is told")]
    unsafe fn time_own(
        &self,
        layer: &Layer,
        way: Way,
        engine: &Engine,
        [x, weight, y]: [u64; 3],
        stretch: usize,
        partial: usize,
    ) -> Result<f64, Error> {
        let Engine::Own { name, grid } = engine else { return Ok(f64::INFINITY) };
        let (none, no, stretch) = (0u64, 0i32, stretch as i32);
        // Left out by `moments = 0`, but the kernel expects one.
        let norm = [0u64; 10];
        let sums = if way == Way::Sums { Some(Memory::new(self.context, partial)?) } else { None };
        let sums_at = sums.as_ref().map_or(0, |memory| memory.start);
        timed(self.context, self.stream, || match way {
            Way::Forth | Way::Back => {
                let (walk, from, to) =
                    if way == Way::Forth { (&layer.forth, x, y) } else { (&layer.back, y, x) };
                let mut arguments = [
                    at(walk),
                    at(&from),
                    at(&weight),
                    at(&none),
                    at(&to),
                    at(&no),
                    at(&no),
                    at(&norm),
                    at(&none),
                ];
                // SAFETY: the arguments are those of `conv_*`; the places are the caller's promise, `timed` waits for the work,
                // and what is at 0 is left out.
                unsafe { self.stream.launch(self.kernels, name, *grid, 1, &mut arguments) }
            }
            Way::Sums => {
                let mut arguments = [at(&layer.forth), at(&x), at(&y), at(&sums_at), at(&stretch), at(&none)];
                // SAFETY: the arguments are those of `wgrad_*`; otherwise as above.
                unsafe { self.stream.launch(self.kernels, name, *grid, 1, &mut arguments) }
            }
        })
    }
}

/// Bytes of input, kernels and output.
fn tensors(plan: &Plan, layer: &Layer) -> [usize; 3] {
    let walk = &layer.forth;
    let input = (walk.n * walk.h * walk.w) as usize * walk.cp as usize;
    let kernels = walk.op as usize * walk.columns();
    let output = walk.pixels() * walk.op as usize;
    [input, kernels.max(layer.back.columns() * walk.cp as usize), output].map(|numbers| numbers * plan.wide)
}

/// Whether anything of a list was chosen from cuDNN.
pub(crate) fn uses_cudnn(ways: &[Ways]) -> bool {
    let is = |engine: &Engine| matches!(engine, Engine::Cudnn(CudnnPlan { .. }));
    ways.iter().any(|ways| is(&ways.forth) || is(&ways.back) || is(&ways.sums))
}
