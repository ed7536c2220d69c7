//! Rounds on the GPU: norms of gradients by span, the weighted centre, the pull; no vector comes to the host.

use super::device::{Grid, Memory, at};
use super::limits;
use super::replica_set::ReplicaSet;
use crate::Error;
use grawa_core::Plan;
use grawa_core::method::{Centre, Share, Toward};

/// What a round does; see `vector.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Round {
    members: i32,
    per_span: i32,
    moving: i32,
    toward_old: i32,
    rate: f32,
    pull: f32,
    replaced: u64,
}

/// Which vectors of the workers a round is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vectors {
    /// The parameters.
    Parameters,
    /// The gradients.
    Gradients,
}

/// How the centre moves, as the kernels know it, and how fast.
pub(super) fn moves(plan: &Plan) -> (i32, f32) {
    match plan.centre {
        Centre::Weighted if plan.share == Share::Gradients => (2, 0.0),
        Centre::Weighted => (0, 0.0),
        Centre::Moving { rate } => (1, rate as f32),
    }
}

impl ReplicaSet {
    /// ‖Gₖ‖₂ of every span of every worker's gradient.
    pub fn norms(&mut self) -> Result<Vec<Vec<f64>>, Error> {
        let spans = self.program.spans.len();
        self.enqueue_norms()?;
        (0..self.workers)
            .map(|worker| {
                let mut norms = vec![0.0f64; spans];
                self.memory.read(self.offset(worker, self.program.offsets.norms), &mut norms)?;
                Ok(norms)
            })
            .collect()
    }

    fn enqueue_norms(&self) -> Result<(), Error> {
        self.context.bind()?;
        let pass = self.pass(None);
        let spans = self.program.spans.len();
        let [gradient, squares, norms] =
            [self.program.offsets.gradient, self.program.offsets.squares, self.program.offsets.norms]
                .map(|o| pass.base + o);
        let mut arguments = [at(&pass.chunks), at(&gradient), at(&squares), at(&self.program.slab)];
        pass.start(&self.main, "squares", Grid::row(self.program.chunks.len()), &mut arguments)?;
        let count = spans as i32;
        let mut arguments =
            [at(&self.first_chunk.start), at(&count), at(&squares), at(&norms), at(&self.program.slab)];
        pass.start(&self.main, "norms", Grid::row(spans.div_ceil(8)), &mut arguments)
    }

    /// SAM's ascent: saves the parameters of all workers and moves each by `radius` along its gradient.
    pub fn ascend(&mut self, radius: f32) -> Result<(), Error> {
        self.enqueue_norms()?;
        let pass = self.pass(None);
        let offsets = &self.program.offsets;
        let [norms, parameters, saved, gradient] =
            [offsets.norms, offsets.parameters, offsets.saved, offsets.gradient]
                .map(|offset| pass.base + offset);
        let count = self.program.spans.len() as i32;
        let mut arguments = [
            at(&pass.spans),
            at(&pass.chunks),
            at(&norms),
            at(&count),
            at(&radius),
            at(&parameters),
            at(&saved),
            at(&gradient),
            at(&pass.base),
            at(&self.program.slab),
        ];
        pass.start(&self.main, "ascend", Grid::row(self.program.chunks.len()), &mut arguments)
    }

    /// Takes all workers back to where the ascent began.
    pub fn restore(&mut self) -> Result<(), Error> {
        self.copy_each(|set| (set.program.offsets.saved, set.program.offsets.parameters))?;
        self.pack_weights()
    }

    /// Says how many workers, in their order, make a group, and how many of the first group lie on an earlier GPU. Centres that
    /// groups had are given up: there are other groups now, and maybe more.
    pub fn group_by(&mut self, size: usize, lead: usize) -> Result<(), Error> {
        // The kernels count in 32 bits.
        let size = size.clamp(1, u32::MAX as usize - self.workers);
        if lead >= size {
            let why = format!(
                "{lead} workers of the first group are said to lie on an earlier GPU, but it has {size}"
            );
            return Err(Error::Device { action: "group the workers".into(), why });
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

    /// Where the centre of a group of a level lies, if that level has any.
    pub(crate) fn centre_address(&self, level: usize, group: usize) -> Result<Option<u64>, Error> {
        limits::index("the centre of level", level, self.centres.len())?;
        let Some(memory) = &self.centres[level] else { return Ok(None) };
        limits::index("the centre of group", group, self.groups(level))?;
        let bytes = 4 * self.program.graph.parameters().len();
        memory.address(bytes * group, bytes).map(Some)
    }

    /// Gives a group of a level its centre: level 0 is that of all workers, 1 that of the groups, 2 that of the model
    /// that is looked at.
    pub fn load_centre(&mut self, level: usize, group: usize, centre: &[f32]) -> Result<(), Error> {
        let (found, expected) = (centre.len(), self.program.graph.parameters().len());
        if found != expected {
            return Err(Error::WrongLength { what: "the centre".into(), found, expected });
        }
        limits::index("the centre of level", level, self.centres.len())?;
        let groups = self.groups(level);
        limits::index("the centre of group", group, groups)?;
        if self.centres[level].is_none() {
            self.centres[level] = Some(Memory::new(&self.context, 4 * expected * groups)?);
            self.forget_jobs();
        }
        let turned = self.relayout(centre, true);
        self.centres[level].as_ref().map_or(Ok(()), |memory| memory.write(4 * expected * group, &turned))
    }

    /// The centre of a group, if there is one.
    pub fn centre(&self, level: usize, group: usize) -> Result<Option<Vec<f32>>, Error> {
        limits::index("the centre of level", level, self.centres.len())?;
        let Some(memory) = &self.centres[level] else { return Ok(None) };
        limits::index("the centre of group", group, self.groups(level))?;
        let mut vector = vec![0.0f32; self.program.graph.parameters().len()];
        memory.read(4 * vector.len() * group, &mut vector)?;
        Ok(Some(self.relayout(&vector, false)))
    }

    /// Carries out a plan on the workers of a group of a level, the first of whom is `first`.
    pub fn mix(
        &mut self,
        plan: &Plan,
        (level, group): (usize, usize),
        first: usize,
        vectors: Vectors,
    ) -> Result<(), Error> {
        let members = plan.workers.len();
        limits::members(first, members, self.workers)?;
        if plan.share == Share::Nothing {
            return Ok(());
        }
        self.context.bind()?;
        let rows: Vec<f32> = plan.weights.rows().flat_map(<[f32]>::to_vec).collect();
        let expected = members * if plan.weights.is_per_span() { self.program.spans.len() } else { 1 };
        if rows.len() != expected {
            let what = "the round's table of weights".into();
            return Err(Error::WrongLength { what, found: rows.len(), expected });
        }
        let Some(centre) = self.centre_address(level, group)? else {
            return Err(Error::Device {
                action: "hold a round".into(),
                why: "this level has no centre yet".into(),
            });
        };
        self.weights.write(0, &rows)?;
        let (moving, rate) = moves(plan);
        let replaced = plan
            .replaced
            .iter()
            .take(members)
            .enumerate()
            .fold(0u64, |bits, (m, &lost)| bits | u64::from(lost) << m);
        let round = Round {
            members: members as i32,
            per_span: i32::from(plan.weights.is_per_span()),
            moving,
            toward_old: i32::from(plan.toward == Toward::Old),
            rate,
            pull: plan.pull,
            replaced,
        };
        let offset = match vectors {
            Vectors::Parameters => self.program.offsets.parameters,
            Vectors::Gradients => self.program.offsets.gradient,
        };
        let base = self.memory.start + self.program.slab * first as u64;
        let (of, copies) = (base + offset, i32::from(vectors == Vectors::Parameters));
        let pass = self.pass(None);
        let mut arguments = [
            at(&pass.spans),
            at(&pass.chunks),
            at(&round),
            at(&self.weights.start),
            at(&of),
            at(&centre),
            at(&base),
            at(&copies),
            at(&self.program.slab),
        ];
        pass.start_once("mix", Grid::row(self.program.chunks.len()), &mut arguments)?;
        // So that the time a round takes is counted as its own.
        self.main.synchronise()
    }
}
