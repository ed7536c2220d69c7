//! Rounds on one GPU: gradient norms by span, the weighted centre, the pull. No vector is copied to the host.

use super::device::{Grid, Memory, arguments};
use super::device_share::DeviceShare;
use super::limits;
use super::replica_set::ReplicaSet;
use crate::Error;
use crate::error::expect_len;
use grawa_core::Plan;
use grawa_core::method::{Centre, Share, Toward};

/// A round as the kernels read it; see `vector.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundArgument {
    members: i32,
    per_span: i32,
    moving: i32,
    toward_old: i32,
    rate: f32,
    pull: f32,
    momentum: f32,
    unit: f32,
    nesterov: i32,
    /// Whether workers are pushed afterwards, and left as they are until then.
    pushes: i32,
    absent: u64,
    replaced: u64,
    velocity: u64,
}

/// Which vectors of the workers a round mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vectors {
    /// The parameters.
    Parameters,
    /// The gradients.
    Gradients,
}

/// A checked round, and the addresses that its kernels read.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundLaunch {
    pub(super) round: RoundArgument,
    pub(super) base: u64,
    pub(super) vectors: u64,
    pub(super) centre: u64,
    /// Whether the packed weights follow the vectors.
    pub(super) copies: i32,
}

/// How the centre moves, as the kernels encode it, and its rate.
fn moves(plan: &Plan) -> (i32, f32) {
    match plan.centre {
        Centre::Weighted if plan.share == Share::Gradients => (2, 0.0),
        Centre::Weighted => (0, 0.0),
        Centre::Moving { rate } => (1, rate as f32),
        Centre::Outer(outer) => (3, outer.rate as f32),
    }
}

impl ReplicaSet {
    /// ‖Gₖ‖₂ of every span of every worker's gradient.
    pub fn norms(&mut self) -> Result<Vec<Vec<f64>>, Error> {
        let spans = self.program.spans.len();
        self.enqueue_norms()?;
        self.memory.read_each(&self.places(self.program.offsets.norms), spans)
    }

    fn enqueue_norms(&self) -> Result<(), Error> {
        self.context.bind()?;
        let (pass, offsets, slab) = (self.pass(None), &self.program.offsets, self.program.slab);
        let [gradient, squares, norms] =
            [offsets.gradient, offsets.squares, offsets.norms].map(|offset| pass.base + offset);
        let (spans, first) = (self.program.spans.len(), self.first_chunk.start);
        let (count, grid) = (spans as i32, Grid::row(self.program.chunks.len()));
        pass.start(&self.main, "squares", grid, arguments![self.chunks.start, gradient, squares, slab])?;
        let grid = Grid::row(spans.div_ceil(8));
        pass.start(&self.main, "norms", grid, arguments![first, count, squares, norms, slab])
    }

    /// SAM's ascent: saves the parameters of all workers and moves each by `radius` along its gradient.
    pub fn ascend(&mut self, radius: f32) -> Result<(), Error> {
        self.enqueue_norms()?;
        let (pass, offsets, slab) = (self.pass(None), &self.program.offsets, self.program.slab);
        let [norms, x, saved, gradient] =
            [offsets.norms, offsets.parameters, offsets.saved, offsets.gradient]
                .map(|offset| pass.base + offset);
        let (spans, chunks, base) = (self.spans.start, self.chunks.start, pass.base);
        let (count, grid) = (self.program.spans.len() as i32, Grid::row(self.program.chunks.len()));
        let arguments = arguments![spans, chunks, norms, count, radius, x, saved, gradient, base, slab];
        pass.start(&self.main, "ascend", grid, arguments)
    }

    /// Moves all workers back to where the ascent began.
    pub fn restore(&mut self) -> Result<(), Error> {
        self.copy_each(self.program.offsets.saved, self.program.offsets.parameters)?;
        self.pack_weights()
    }

    /// Sets how many consecutive workers make a group, and how many of the first group are on an earlier GPU. Drops the centres
    /// of the previous groups.
    pub fn group_by(&mut self, size: usize, lead: usize) -> Result<(), Error> {
        // The kernels count in 32 bits.
        let size = size.clamp(1, u32::MAX as usize - self.workers);
        if lead >= size {
            let why =
                format!("{lead} workers of the first group are on an earlier GPU, but it has only {size}");
            return Err(Error::device("group the workers", why));
        }
        (self.group, self.lead) = (size, lead);
        self.forget_jobs();
        self.centres[1] = None;
        Ok(())
    }

    /// The groups of a level that have workers here.
    fn groups(&self, level: usize) -> usize {
        if level == 1 { (self.lead + self.workers).div_ceil(self.group) } else { 1 }
    }

    /// The memory of a level's centres, if it has any, and where the centre of a group begins.
    fn centre_memory(&self, level: usize, group: usize) -> Result<Option<(&Memory, usize)>, Error> {
        limits::index("the centre of level", level, self.centres.len())?;
        let Some(memory) = &self.centres[level] else { return Ok(None) };
        limits::index("the centre of group", group, self.groups(level))?;
        Ok(Some((memory, 4 * self.program.graph.parameters().len() * group)))
    }

    /// The address of the centre of a group of a level, if the level has any.
    pub(crate) fn centre_address(&self, level: usize, group: usize) -> Result<Option<u64>, Error> {
        let found = self.centre_memory(level, group)?;
        let bytes = 4 * self.program.graph.parameters().len();
        found.map(|(memory, start)| memory.address(start, bytes)).transpose()
    }

    /// Sets the centre of a group; the velocity of an outer optimizer may follow that of all workers. Level 0 is the centre of all workers, 1 those of the groups, 2 the model to evaluate.
    pub fn load_centre(&mut self, level: usize, group: usize, centre: &[f32]) -> Result<(), Error> {
        let expected = self.program.graph.parameters().len();
        let (centre, velocity) = centre.split_at(centre.len().min(expected));
        expect_len("the centre", centre.len(), expected)?;
        if level == 0 && velocity.is_empty() {
            self.outer = None;
        } else if level == 0 {
            expect_len("the velocity of the centre", velocity.len(), expected)?;
            Memory::reserve(&mut self.outer, &self.context, 4 * expected)?;
            self.outer.as_ref().map_or(Ok(()), |outer| self.send_vector(velocity, outer, 0))?;
        }
        limits::index("the centre of level", level, self.centres.len())?;
        let groups = self.groups(level);
        limits::index("the centre of group", group, groups)?;
        if self.centres[level].is_none() {
            self.forget_jobs();
        }
        Memory::reserve(&mut self.centres[level], &self.context, 4 * expected * groups)?;
        let memory = self.centres[level].as_ref();
        memory.map_or(Ok(()), |memory| self.send_vector(centre, memory, 4 * expected * group))
    }

    /// The centre of a group, if there is one, and the velocity of its outer optimizer.
    pub fn centre(&self, level: usize, group: usize) -> Result<Option<Vec<f32>>, Error> {
        let mut centre = Vec::new();
        Ok(self.read_centre(level, group, &mut centre)?.then_some(centre))
    }

    /// Writes it to a vector, whose memory is used again: at each round fresh memory would cost more than the copy. False if there is
    /// none.
    pub fn read_centre(&self, level: usize, group: usize, to: &mut Vec<f32>) -> Result<bool, Error> {
        let Some((memory, start)) = self.centre_memory(level, group)? else { return Ok(false) };
        let length = self.program.graph.parameters().len();
        let outer = self.outer.as_ref().filter(|_| level == 0);
        to.resize(length * if outer.is_some() { 2 } else { 1 }, 0.0);
        let (centre, velocity) = to.split_at_mut(length);
        self.fetch_vector(memory, start, centre)?;
        outer.map_or(Ok(()), |outer| self.fetch_vector(outer, 0, velocity))?;
        Ok(true)
    }

    /// Checks a round and uploads its weights. Changes nothing else.
    pub(super) fn prepare_round(
        &mut self,
        plan: &Plan,
        share: &DeviceShare,
        (level, group): (usize, usize),
        vectors: Vectors,
    ) -> Result<RoundLaunch, Error> {
        limits::members(share.first, share.members, self.workers)?;
        let per_span = plan.weights.is_per_span();
        let expected = (share.members + 1) * if per_span { self.program.spans.len() } else { 1 };
        expect_len("the round's table of weights", share.rows.len(), expected)?;
        let Some(centre) = self.centre_address(level, group)? else {
            return Err(Error::device("hold a round", "this level has no centre yet"));
        };
        let (momentum, unit, nesterov, velocity) = match (plan.centre, level, &self.outer) {
            (Centre::Outer(outer), 0, Some(memory)) => {
                let unit = outer.by_rate.unwrap_or(1.0) as f32;
                (outer.momentum as f32, unit, outer.nesterov, memory.start)
            }
            (Centre::Outer(_), ..) => {
                let why = "the centre has no velocity for its outer optimizer";
                return Err(Error::device("hold a round", why));
            }
            _ => (0.0, 1.0, false, 0),
        };
        self.weights.write(0, &share.rows)?;
        let (moving, rate) = moves(plan);
        let offset = match vectors {
            Vectors::Parameters => self.program.offsets.parameters,
            Vectors::Gradients => self.program.offsets.gradient,
        };
        let base = self.memory.start + self.program.slab * share.first as u64;
        let round = RoundArgument {
            members: share.members as i32,
            per_span: per_span.into(),
            moving,
            toward_old: i32::from(plan.toward == Toward::Old),
            rate,
            pull: plan.pull,
            momentum,
            unit,
            nesterov: nesterov.into(),
            pushes: i32::from(plan.push > 0.0),
            absent: share.absent,
            replaced: share.replaced,
            velocity,
        };
        let copies = i32::from(vectors == Vectors::Parameters);
        Ok(RoundLaunch { round, base, vectors: base + offset, centre, copies })
    }

    /// Pulls and pushes the workers of a round whose centre is made: their distances to it are read back, and the pull of
    /// each is that of the plan.
    pub(super) fn push(&mut self, plan: &Plan, launch: &RoundLaunch) -> Result<(), Error> {
        let RoundLaunch { round, base, vectors, centre, copies } = *launch;
        let (members, blocks) = (round.members as usize, self.program.chunks.len());
        let sums = Memory::new(&self.context, 8 * blocks * (members + 1))?;
        let (pass, weights, slab, sums_start) =
            (self.pass(None), self.weights.start, self.program.slab, sums.start);
        let (spans, chunks, grid) = (self.spans.start, self.chunks.start, Grid::row(blocks));
        let arguments = arguments![chunks, round, vectors, centre, sums_start, slab];
        pass.start_once("distances", grid, arguments)?;
        self.main.synchronise()?;
        let mut squares = vec![0.0f64; blocks * (members + 1)];
        sums.read(0, &mut squares)?;
        let norm = |m: usize| squares.iter().skip(m).step_by(members + 1).sum::<f64>().sqrt();
        let pulls: Vec<f32> = (0..members).map(|m| plan.pull_at(norm(m), norm(members)) as f32).collect();
        self.weights.write(0, &pulls)?;
        let pass = self.pass(None);
        let arguments = arguments![spans, chunks, round, weights, vectors, centre, base, copies, slab];
        pass.start_once("push", grid, arguments)
    }

    /// Executes a plan on the workers of a group of a level, the first of which is `first`.
    pub fn mix(
        &mut self,
        plan: &Plan,
        centre: (usize, usize),
        first: usize,
        vectors: Vectors,
    ) -> Result<(), Error> {
        let count = plan.workers.len();
        limits::members(first, count, self.workers)?;
        if plan.share == Share::Nothing {
            return Ok(());
        }
        self.context.bind()?;
        let share = DeviceShare::at(plan, &(0..count).map(Some).collect::<Vec<_>>(), first);
        let launch = self.prepare_round(plan, &share, centre, vectors)?;
        let RoundLaunch { round, base, vectors, centre, copies } = launch;
        let (pass, weights, slab) = (self.pass(None), self.weights.start, self.program.slab);
        let (spans, chunks) = (self.spans.start, self.chunks.start);
        let grid = Grid::row(self.program.chunks.len());
        let arguments = arguments![spans, chunks, round, weights, vectors, centre, base, copies, slab];
        pass.start_once("mix", grid, arguments)?;
        if plan.push > 0.0 {
            self.push(plan, &launch)?;
        }
        // Wait, so that the caller measures the time of the round.
        self.main.synchronise()
    }
}
