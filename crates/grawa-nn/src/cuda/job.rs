//! The work of a replica set: what each job enqueues, on which streams, and its recording as a CUDA graph.

use super::compile::{Chunk, HISTORY, Program};
use super::data::Source;
use super::device::{Context, Event, Grid, Stream, arguments};
use super::evaluation::Kept;
use super::floors::KernelTime;
use super::kernel_choice::{KernelChoice, LayerKernels};
use super::limits;
use super::pass::{Pass, PassMode, Times};
use super::replica_set::{BEHIND, ReplicaSet};
use crate::Error;
use grawa_core::{AdamW, Optimizer, Sgd};
use std::ops::Range;
use std::sync::Arc;

/// The settings of an update of AdamW; see `adamw.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct AdamWArgument {
    beta1: f64,
    beta2: f64,
    eps: f32,
    weight_decay: f32,
    gather: i32,
}

/// The settings of an update; see `vector.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Update {
    momentum: f32,
    weight_decay: f32,
    look_ahead: f32,
    direct: f32,
    gather: i32,
    last: i32,
}

/// Work of a replica set, recorded as a graph the first time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Job {
    /// A local step.
    Step { optimizer: Optimizer, from: Source },
    /// A gradient. Its loss is recorded in the history if `noted`.
    Gradient { pass_mode: PassMode, factor: f32, from: Source, noted: bool },
    /// The update with that gradient.
    Descend { optimizer: Optimizer },
    /// A forward pass and its loss.
    Forward { pass_mode: PassMode, from: Source },
    /// A pass of an evaluation, whose result is kept.
    Measure { kept: Kept, from: Source },
}

/// Streams for the passes of some replicas, and events between them. Replicas do not depend on each other, so chains run side by
/// side: one computes while another waits for memory.
#[derive(Debug)]
pub(super) struct Chain {
    main: Stream,
    side: Stream,
    events: Vec<Event>,
}

/// The most chains.
const CHAINS: usize = 8;
/// Events of a chain besides two for each layer: the end of the backward pass, the early update, the fork and join of chains, and
/// the loss.
const EVENTS: usize = 5;

/// The chains of a replica set. The host runs plain operations for all replicas at once; of kernels for wide layers, more than two
/// at a time hinder each other.
pub(super) fn chains(
    context: &Arc<Context>,
    program: &Program,
    layer_kernels: &[LayerKernels],
    workers: usize,
) -> Result<Vec<Chain>, Error> {
    let wide = layer_kernels.iter().any(|of| !matches!(of.forward, KernelChoice::Own { .. }));
    let most = match (program.graph.plain_operations().is_empty(), wide) {
        (false, _) => 1,
        (true, true) => 2,
        (true, false) => CHAINS,
    };
    let events = 2 * program.layers.len() + EVENTS;
    let chain = |index: usize| {
        Ok(Chain {
            main: if index == 0 { Stream::main(context) } else { Stream::new(context)? },
            side: Stream::new(context)?,
            events: (0..events).map(|_| Event::new(context, false)).collect::<Result<_, _>>()?,
        })
    };
    (0..workers.min(most)).map(chain).collect()
}

impl ReplicaSet {
    /// A pass of all replicas.
    pub(crate) fn pass<'a>(&'a self, profile: Option<&'a Times>) -> Pass<'a> {
        self.pass_of(0..self.workers, &self.chains[0], profile)
    }

    fn pass_of<'a>(
        &'a self,
        replicas: Range<usize>,
        chain: &'a Chain,
        profile: Option<&'a Times>,
    ) -> Pass<'a> {
        let (first, workers) = (replicas.start, replicas.len());
        let base = self.memory.start + self.program.slab * first as u64;
        let Chain { main, side, events } = chain;
        Pass { set: self, first, workers, base, main, side, events, profile }
    }

    /// Enqueues work for all replicas, in as many passes as there are chains.
    fn in_chains(
        &self,
        whole: &Pass<'_>,
        work: impl Fn(&Pass<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.chains.len() == 1 || whole.profile.is_some() {
            return work(whole);
        }
        let [fork, join] = [2, 3].map(|event| 2 * self.program.layers.len() + event);
        whole.main.mark(&whole.events[fork])?;
        let each = self.workers.div_ceil(self.chains.len());
        for (first, chain) in (0..self.workers).step_by(each).zip(&self.chains).rev() {
            let pass = self.pass_of(first..self.workers.min(first + each), chain, None);
            if first > 0 {
                pass.main.wait_for(&whole.events[fork])?;
            }
            work(&pass)?;
            if first > 0 {
                pass.main.mark(&chain.events[join])?;
            }
        }
        let others = (0..self.workers).step_by(each).zip(&self.chains).skip(1);
        others.into_iter().try_for_each(|(_, chain)| whole.main.wait_for(&chain.events[join]))
    }

    /// Checks that a job stays inside what it indexes by the number of the step, for `times` runs. The kernels do not check.
    pub(super) fn check_slots(&self, job: Job, times: usize) -> Result<(), Error> {
        let (from, noted) = match job {
            Job::Step { from, .. } => (from, from != Source::Loaded),
            Job::Gradient { from, noted, .. } => (from, noted),
            Job::Forward { from, .. } => (from, false),
            Job::Measure { from, .. } => {
                limits::steps_ahead("results can be kept", self.slot, times, self.passes_at_once())?;
                (from, false)
            }
            Job::Descend { .. } => return Ok(()),
        };
        if noted {
            limits::steps_ahead("there is room", self.slot, times, HISTORY)?;
        }
        match from.split().and_then(|split| self.datasets[split as usize].as_ref()) {
            Some(dataset) => {
                limits::steps_ahead("batches are assigned", self.slot, times, dataset.assigned_to_all())
            }
            None => Ok(()),
        }
    }

    /// Enqueues a job. Records it as a graph the first time.
    pub(crate) fn run(&mut self, job: Job) -> Result<(), Error> {
        self.check_slots(job, 1)?;
        self.context.bind()?;
        if !self.jobs.iter().any(|(known, _)| *known == job) {
            self.prepare(job)?;
            let captured = self.main.capture(|| self.enqueue(&self.pass(None), job))?;
            self.jobs.push((job, captured));
        }
        let found = self.jobs.iter().find(|(known, _)| *known == job);
        found.map_or(Ok(()), |(_, captured)| self.main.replay(captured))?;
        self.advance_slot(job);
        Ok(())
    }

    /// Allocates what a job needs and its recording must not.
    fn prepare(&mut self, job: Job) -> Result<(), Error> {
        match job {
            Job::Step { optimizer: Optimizer::AdamW(_), .. }
            | Job::Descend { optimizer: Optimizer::AdamW(_) } => self.reserve_second_moments().map(|_| ()),
            Job::Measure { .. } => self.reserve_kept(),
            _ => Ok(()),
        }
    }

    /// The update of a step and the end of a measured pass advance the GPU's count of steps.
    fn advance_slot(&mut self, job: Job) {
        let advances = matches!(job, Job::Step { .. } | Job::Descend { .. } | Job::Measure { .. });
        self.slot += usize::from(advances);
    }

    /// Drops recorded graphs, because addresses they use have changed.
    pub(crate) fn forget_jobs(&mut self) {
        self.jobs.clear();
    }

    /// Launches the kernels of a job.
    fn enqueue(&self, pass: &Pass<'_>, job: Job) -> Result<(), Error> {
        let batch = self.program.batch;
        match job {
            Job::Step { optimizer, from } => {
                self.fill(pass, from)?;
                let pass_mode = PassMode { of_batch: true, track: true, dropout: true };
                let notes = (from != Source::Loaded).then_some(self.rates.start);
                // The parameters that are done early are updated beside the rest of the backward pass.
                let early = match optimizer {
                    Optimizer::Sgd(_) if pass.profile.is_none() => self.program.early(),
                    _ => None,
                };
                let all = self.program.chunks.len();
                self.in_chains(pass, |pass| {
                    pass.forward(pass_mode)?;
                    pass.loss(1.0 / batch as f32, true, notes)?;
                    let Some((step, chunk)) = early else { return pass.backward(pass_mode, None) };
                    let update = || self.update(pass, pass.side, optimizer, true, (chunk..all, false));
                    pass.backward(pass_mode, Some((step, &update)))?;
                    self.update(pass, pass.main, optimizer, true, (0..chunk, true))
                })?;
                match early {
                    Some(_) => Ok(()),
                    None => self.update(pass, pass.main, optimizer, true, (0..all, true)),
                }
            }
            Job::Gradient { pass_mode, factor, from, noted } => {
                self.fill(pass, from)?;
                self.in_chains(pass, |pass| {
                    pass.forward(pass_mode)?;
                    pass.loss(factor, true, noted.then_some(self.rates.start))?;
                    pass.backward(pass_mode, None)?;
                    pass.collect(pass_mode)
                })
            }
            Job::Descend { optimizer } => {
                let all = 0..self.program.chunks.len();
                self.update(pass, pass.main, optimizer, false, (all, true))
            }
            Job::Forward { pass_mode, from } => {
                self.fill(pass, from)?;
                self.in_chains(pass, |pass| {
                    pass.forward(pass_mode)?;
                    pass.loss(1.0, false, None)
                })
            }
            Job::Measure { kept, from } => {
                self.fill(pass, from)?;
                self.in_chains(pass, |pass| {
                    pass.forward_for(kept)?;
                    pass.keep(kept)
                })
            }
        }
    }

    /// The update and its pulls for some chunks of the parameters, and whether they are the step's last. `gather`: the gradient is
    /// still where the backward pass left it. AdamW takes all chunks at once.
    fn update(
        &self,
        pass: &Pass<'_>,
        stream: &Stream,
        optimizer: Optimizer,
        gather: bool,
        (chunks, last): (Range<usize>, bool),
    ) -> Result<(), Error> {
        let [gather, last] = [gather, last].map(i32::from);
        let offsets = &self.program.offsets;
        let [x, velocity, gradient] =
            [offsets.parameters, offsets.velocity, offsets.gradient].map(|offset| pass.base + offset);
        let [outer, inner] =
            [0, 1].map(|which| self.centres[which].as_ref().map_or(0, |memory| memory.start));
        let (group, lead, slab) = (self.group as u32, (self.lead + pass.first) as u32, self.program.slab);
        let length = self.program.graph.parameters().len() as u64;
        let (spans, base, grid) = (self.spans.start, pass.base, Grid::row(chunks.len()));
        let first = self.chunks.start + (chunks.start * size_of::<Chunk>()) as u64;
        match optimizer {
            Optimizer::Sgd(Sgd { momentum, weight_decay, nesterov }) => {
                let (look_ahead, direct) = if nesterov { (momentum, 1.0) } else { (1.0, 0.0) };
                let settings = Update { momentum, weight_decay, look_ahead, direct, gather, last };
                let arguments = arguments![
                    spans, first, base, settings, x, velocity, gradient, outer, inner, group, lead, length,
                    base, slab
                ];
                pass.start(stream, "update", grid, arguments)
            }
            Optimizer::AdamW(AdamW { beta1, beta2, eps, weight_decay }) => {
                let Some(second) = self.second.as_ref().map(|memory| memory.start) else {
                    let why = "it has no memory for the second moment";
                    return Err(Error::device("take a step of AdamW", why));
                };
                let settings = AdamWArgument { beta1, beta2, eps, weight_decay, gather };
                let stride = length + BEHIND as u64;
                let arguments = arguments![base, settings, second, length, stride, slab];
                pass.start(stream, "adamw_position", Grid::row(1), arguments)?;
                let arguments = arguments![
                    spans, first, base, settings, x, velocity, second, gradient, outer, inner, group, lead,
                    length, stride, base, slab
                ];
                pass.start(stream, "adamw", grid, arguments)
            }
        }
    }

    /// Times of the kernels of one local step, each run alone; the longest first.
    pub fn profile(&mut self, optimizer: impl Into<Optimizer>) -> Result<Vec<KernelTime>, Error> {
        let times = Times::default();
        let job = Job::Step { optimizer: optimizer.into(), from: self.source() };
        self.check_slots(job, 1)?;
        self.context.bind()?;
        self.prepare(job)?;
        self.enqueue(&self.pass(Some(&times)), job)?;
        self.advance_slot(job);
        Ok(times.by_kernel())
    }
}
