//! All workers on one thread, one after the other: the shortest complete implementation of a run.
//!
//! The workers take one local step in turn, and after τ steps a round follows. It needs no threads, no files and no
//! clock, drives the toy problems, and is the reference in tests of faster implementations.

use crate::method::{Evaluate, Score, Share, Source};
use crate::{
    Error, Key, Layout, Memory, Method, Optimizer, Plan, Prox, Purpose, Replica, Tracker, mix, norm, plan,
    weights,
};
use std::ops::Range;

/// Replicas that train in turn.
///
/// ```
/// use grawa_core::{Key, Layout, FunctionReplica, Sequential, Sgd};
/// let bowl = |x: &[f32], _: Key, gradient: &mut [f32]| {
///     gradient.copy_from_slice(x);
///     f64::from(x[0] * x[0]) / 2.0
/// };
/// let start = |x| FunctionReplica::new(Layout::flat(1), vec![x], bowl);
/// let mut run = Sequential::new("mgrawa:period=4".parse()?, Sgd::PLAIN, 0, vec![start(1.0)?, start(-3.0)?])?;
/// for _ in 0..100 {
///     run.advance(0.1)?;
/// }
/// assert!(run.evaluated()[0][0].abs() < 1e-3);
/// # Ok::<(), grawa_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Sequential<R> {
    method: Method,
    layout: Layout,
    optimizer: Optimizer,
    seed: u64,
    replicas: Vec<R>,
    /// The inner level, if there is one, then the level of all workers: the order of their rounds.
    levels: Vec<Level>,
    losses: Vec<f64>,
    norms: Vec<f64>,
    steps: u64,
    /// The steps of the whole run, where they are known.
    budget: Option<u64>,
    /// Steps between the last round and the next, and when that is due.
    period: u64,
    next: u64,
    /// The learning rate of the last step, and at the last round.
    rate: f64,
    round_rate: f64,
}

/// One level of rounds: groups of workers, each with its own centre and memory.
#[derive(Debug)]
struct Level {
    method: Method,
    trackers: Vec<Tracker>,
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    members: Range<usize>,
    centre: Vec<f32>,
    memory: Memory,
}

impl<R: Replica> Sequential<R> {
    /// A run of these replicas, all of one layout. The centre starts as the mean of the finite starts, of which there must
    /// be at least one; the others are set to it at the first round.
    pub fn new(
        method: Method,
        optimizer: impl Into<Optimizer>,
        seed: u64,
        mut replicas: Vec<R>,
    ) -> Result<Self, Error> {
        method.check()?;
        let workers = replicas.len();
        let Some(layout) = replicas.first().map(|replica| replica.layout().clone()) else {
            return Err(Error::WrongWorkers { found: Vec::new() });
        };
        if let Some(other) = replicas.iter().position(|replica| *replica.layout() != layout) {
            let what = format!("worker {other}'s layout differs from worker 0's, and");
            return Err(Error::WrongLength {
                what,
                found: replicas[other].layout().len(),
                expected: layout.len(),
            });
        }
        let lost = |replica: &mut R| !replica.parameters().iter().all(|x| x.is_finite());
        if replicas.iter_mut().all(lost) {
            return Err(Error::NothingFinite);
        }
        let levels = (method.levels(workers as u32).into_iter())
            .map(|(method, groups)| Level {
                trackers: (0..workers).map(|_| Tracker::new(&method, &layout)).collect(),
                groups: (groups.into_iter())
                    .map(|group| group.start as usize..group.end as usize)
                    .map(|members| {
                        let starts = replicas[members.clone()].iter_mut().map(|it| &*it.parameters());
                        let mut centre = mean(layout.len(), starts);
                        centre.resize(method.centre.state_len(layout.len()), 0.0);
                        Group { centre, memory: Memory::default(), members }
                    })
                    .collect(),
                method,
            })
            .collect();
        let norms = vec![0.0; layout.spans().len()];
        let period = u64::from(method.cycle());
        Ok(Sequential {
            method,
            layout,
            optimizer: optimizer.into(),
            seed,
            losses: vec![f64::NAN; workers],
            replicas,
            levels,
            norms,
            steps: 0,
            budget: None,
            period,
            next: period,
            rate: 0.0,
            round_rate: 0.0,
        })
    }

    /// The same for a run of this many steps, which what grows over a run goes by. Else it is as at the end of a run.
    pub fn over(self, steps: u64) -> Self {
        Sequential { budget: Some(steps), ..self }
    }

    /// One local step of every worker, and the round if one is due. Returns the executed plans.
    pub fn advance(&mut self, rate: f32) -> Result<Vec<Plan>, Error> {
        let mut plans = self.step(rate)?;
        if self.is_due() {
            plans.extend(self.round()?);
        }
        Ok(plans)
    }

    /// One local step of every worker. Where gradients are shared, that includes sharing them.
    pub fn step(&mut self, rate: f32) -> Result<Vec<Plan>, Error> {
        for (worker, replica) in self.replicas.iter_mut().enumerate() {
            let key = Key::new(self.seed, Purpose::Step).worker(worker as u32).step(self.steps);
            self.losses[worker] = replica.gradient(key)?;
            if let Some(radius) = self.method.radius {
                replica.ascend(radius as f32)?;
                replica.gradient(key)?;
                replica.restore()?;
            }
        }
        let mut plans = Vec::new();
        if self.method.share == Share::Gradients {
            plans.push(self.share_gradients()?);
        }
        for worker in 0..self.replicas.len() {
            let replica = &mut self.replicas[worker];
            if self.levels.iter().any(|level| level.trackers[worker].wants_norms()) {
                replica.norms(&mut self.norms)?;
            }
            // The pull to the centre of all comes before that of the group, as in the authors' code.
            let prox: Vec<Prox<'_>> = (self.levels.iter().rev())
                .filter(|level| level.method.prox > 0.0)
                .flat_map(|level| level.groups.iter().map(move |group| (level, group)))
                .filter(|(_, group)| group.members.contains(&worker))
                .map(|(level, group)| Prox {
                    centre: &group.centre[..self.layout.len()],
                    strength: level.method.prox_a_step(self.period.max(level.method.period.into())) as f32,
                })
                .collect();
            let finite = replica.descend(&self.optimizer, rate, &prox)?;
            for level in &mut self.levels {
                level.trackers[worker].step(self.losses[worker], &self.norms, finite);
            }
        }
        self.steps += 1;
        self.rate = rate.into();
        Ok(plans)
    }

    /// Whether a round is due: τ steps are done and the method has rounds.
    pub fn is_due(&self) -> bool {
        let is_end = match self.method.qsr {
            0.0 => self.steps.is_multiple_of(self.method.cycle().into()),
            // A period that was stretched ends with the run.
            _ => {
                let is_last = self.period > self.method.period.into() && Some(self.steps) == self.budget;
                self.steps == self.next || is_last
            }
        };
        self.method.share == Share::Parameters && is_end
    }

    /// The round: inside every group if there are groups, and of all workers when it is due.
    pub fn round(&mut self) -> Result<Vec<Plan>, Error> {
        self.period = self.method.period_after(self.rate, self.rate > self.round_rate);
        (self.next, self.round_rate) = (self.steps + self.period, self.rate);
        let cycle = self.steps / u64::from(self.method.cycle());
        let last = if self.method.is_outer(cycle) { self.levels.len() } else { self.levels.len() - 1 };
        let mut plans = Vec::new();
        for level in 0..last {
            for group in 0..self.levels[level].groups.len() {
                plans.push(self.round_of(level, group)?);
            }
            self.levels[level].trackers.iter_mut().for_each(Tracker::round);
        }
        Ok(plans)
    }

    fn round_of(&mut self, level: usize, group: usize) -> Result<Plan, Error> {
        let Level { method, trackers, groups } = &mut self.levels[level];
        let Group { members, centre, memory } = &mut groups[group];
        let mut reports = Vec::with_capacity(members.len());
        for worker in members.clone() {
            if let Score::Norm { from: Source::Batch { common, dropout }, .. } = method.score {
                let who = if common { 0 } else { worker as u32 };
                let key = Key::new(self.seed, Purpose::ScoreBatch).worker(who).step(memory.rounds);
                self.replicas[worker].score(key, dropout, &mut self.norms)?;
            }
            reports.push(trackers[worker].report(worker as u32, &self.norms));
        }
        let share = self.budget.map_or(1.0, |budget| self.steps as f64 / budget as f64);
        let plan = plan(&method.at(share, self.rate), &self.layout, memory, &reports)?;
        let replicas = &mut self.replicas[members.clone()];
        let mut vectors: Vec<&mut [f32]> = replicas.iter_mut().map(R::parameters).collect();
        mix(&plan, &self.layout, &mut vectors, centre)?;
        for (replica, _) in replicas.iter_mut().zip(&plan.replaced).filter(|(_, lost)| **lost) {
            replica.reset();
        }
        memory.clone_from(&plan.memory);
        Ok(plan)
    }

    fn share_gradients(&mut self) -> Result<Plan, Error> {
        let Some(Level { method, trackers, groups }) = self.levels.last_mut() else {
            return Err(Error::WrongWorkers { found: Vec::new() });
        };
        let group = &mut groups[0];
        let mut reports = Vec::with_capacity(self.replicas.len());
        for (worker, replica) in self.replicas.iter_mut().enumerate() {
            let finite = norm::norm(replica.gradients()).is_finite();
            reports.push(crate::Report { finite, ..trackers[worker].report(worker as u32, &[]) });
        }
        let plan = plan(method, &self.layout, &group.memory, &reports)?;
        let mut vectors: Vec<&mut [f32]> = self.replicas.iter_mut().map(R::gradients).collect();
        let mut shared = vec![0.0; self.layout.len()];
        mix(&plan, &self.layout, &mut vectors, &mut shared)?;
        group.memory.clone_from(&plan.memory);
        Ok(plan)
    }

    /// The evaluated model: one vector, or one for each worker. A mean has the bits of a round of equal weights, which is how
    /// separate processes compute it.
    pub fn evaluated(&mut self) -> Vec<Vec<f32>> {
        match self.method.evaluate {
            Evaluate::Mean => vec![mixed(&mut self.replicas)],
            Evaluate::Centre => vec![self.centre().to_vec()],
            Evaluate::Best => {
                let finite = (0..self.losses.len()).filter(|&worker| self.losses[worker].is_finite());
                match finite.min_by(|&a, &b| self.losses[a].total_cmp(&self.losses[b])) {
                    Some(best) => vec![self.replicas[best].parameters().to_vec()],
                    None => vec![mixed(&mut self.replicas)],
                }
            }
            Evaluate::Each => self.replicas.iter_mut().map(|replica| replica.parameters().to_vec()).collect(),
        }
    }

    /// The centre of all workers after the last round.
    pub fn centre(&self) -> &[f32] {
        self.levels
            .last()
            .and_then(|level| level.groups.first())
            .map_or(&[], |group| &group.centre[..self.layout.len()])
    }

    /// The workers.
    pub fn replicas(&mut self) -> &mut [R] {
        &mut self.replicas
    }

    /// The loss of each worker's last mini-batch, before its step; NaN before the first.
    pub fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// Local steps of each worker so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

/// The mean of the finite ones of these vectors of a length, summed in `f64` in their order; of equal ones it is their value.
pub fn mean<'a>(len: usize, vectors: impl IntoIterator<Item = &'a [f32]>) -> Vec<f32> {
    let (mut sums, mut count) = (vec![0.0f64; len], 0.0);
    for vector in vectors.into_iter().filter(|vector| vector.iter().all(|x| x.is_finite())) {
        sums.iter_mut().zip(vector).for_each(|(sum, &x)| *sum += f64::from(x));
        count += 1.0;
    }
    sums.into_iter().map(|sum| (sum / count) as f32).collect()
}

/// The same as a round computes it, in `f32` with equal weights; NaN if no worker is finite.
fn mixed<R: Replica>(replicas: &mut [R]) -> Vec<f32> {
    let mut mean = vec![f32::NAN; replicas.first().map_or(0, |replica| replica.layout().len())];
    let vectors: Vec<&mut [f32]> = replicas.iter_mut().map(R::parameters).collect();
    let present: Vec<bool> = vectors.iter().map(|x| x.iter().all(|x| x.is_finite())).collect();
    let mut weights = vec![0.0; vectors.len()];
    weights::uniform(&present, &mut weights);
    mix::average(&weights, &vectors, &mut mean);
    mean
}

#[cfg(test)]
mod tests;
