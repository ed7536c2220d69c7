//! Workers on threads of one process, each with its replica.
//!
//! A worker's replica moves to its thread with a job and comes back with the result, so that nothing is shared while they work and rounds
//! have all vectors at hand. A single worker works on the thread of the loop.

use crate::engine::{EvaluateShard, WaitTimes};
use crate::evaluate::Counts;
use crate::worker_set::{
    Cycle, Evaluation, Measured, PerWorker, Shard, Slot, StepTaken, Vectors, WorkerSet, WorkerState,
};
#[cfg(test)]
use crate::{Recipe, snapshot::Part};
use grawa_comm::{Heartbeat, Outcome};
use grawa_core::{Key, Layout, Optimizer, Plan, Prox, Replica, StateKind, StepRequest, mix_part, pull_part};
use grawa_session::Error;
use grawa_session::process::broke_down;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// A worker's replica and what goes with it.
pub(crate) struct Seat {
    pub(crate) worker: u32,
    pub(crate) replica: Box<dyn Replica + Send>,
    pub(crate) waits: Option<Arc<WaitTimes>>,
    pub(crate) evaluator: Option<Box<dyn EvaluateShard>>,
}

impl Seat {
    fn vector(&mut self, which: Vectors) -> &mut [f32] {
        match which {
            Vectors::Parameters => self.replica.parameters(),
            Vectors::Gradients => self.replica.gradients(),
        }
    }

    fn take_waits(&self) -> (f64, f64) {
        self.waits.as_ref().map_or((0.0, 0.0), |waits| waits.take())
    }
}

/// A seat, and what its worker does with it.
type Job = (Box<Seat>, Box<dyn FnOnce(Box<Seat>) + Send>);

/// Floats of a vector for which a thread of its own pays in a round.
const FLOATS_A_THREAD: usize = 1 << 16;

/// Workers on threads.
pub(crate) struct ThreadSet {
    layout: Layout,
    /// None while its worker works, and if it was lost.
    seats: Vec<Option<Box<Seat>>>,
    threads: Vec<Option<Sender<Job>>>,
    progress: Vec<Progress>,
    centres: Centres,
    /// A vector of all workers here, for other processes.
    combined: Vec<f32>,
    /// A worker that makes no progress for so long while others wait is given up.
    deadline: Duration,
    /// Threads for a round.
    cores: usize,
}

/// A worker's progress, for those who wait for it.
#[derive(Clone, Default)]
struct Progress {
    count: Arc<AtomicU64>,
    heartbeat: Option<Heartbeat>,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// The same, and whether to go on.
    fn goes_on(&self) -> bool {
        self.step();
        !self.stop.load(Ordering::Relaxed)
    }

    /// The worker has taken a step, or measured a batch.
    fn step(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.heartbeat.iter().for_each(|beat| beat());
    }
}

/// The centres, which all workers read in their steps.
#[derive(Clone, Default)]
struct Centres(Vec<Arc<Vec<f32>>>);

impl Centres {
    fn place(slot: Slot) -> usize {
        match slot {
            Slot::All => 0,
            Slot::View => 1,
            Slot::Inner(group) => 2 + group,
        }
    }

    fn at(&mut self, slot: Slot) -> &mut Arc<Vec<f32>> {
        let place = Self::place(slot);
        self.0.resize_with(self.0.len().max(place + 1), Arc::default);
        &mut self.0[place]
    }

    fn get(&self, slot: Slot) -> Option<&Arc<Vec<f32>>> {
        self.0.get(Self::place(slot))
    }

    /// The pulls of a step. That to the centre of all comes before that of the group, as in the authors' code.
    fn prox(&self, strengths: [f32; 2], inner: usize, len: usize) -> Vec<Prox<'_>> {
        ([Slot::All, Slot::Inner(inner)].into_iter().zip(strengths))
            .filter(|(_, strength)| *strength > 0.0)
            .filter_map(|(slot, strength)| Some(Prox { centre: self.get(slot)?.get(..len)?, strength }))
            .collect()
    }
}

impl ThreadSet {
    pub(crate) fn new(layout: Layout, seats: Vec<Seat>, deadline: Duration) -> Self {
        ThreadSet {
            layout,
            threads: seats.iter().map(|_| None).collect(),
            progress: seats.iter().map(|_| Progress::default()).collect(),
            seats: seats.into_iter().map(|seat| Some(Box::new(seat))).collect(),
            centres: Centres::default(),
            combined: Vec::new(),
            deadline,
            // To ask reads files, which takes longer than a round of small vectors.
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Does the work with each of these workers at the same time, and waits for all.
    fn each<T: Send + 'static, A: Send + 'static>(
        &mut self,
        jobs: Vec<(usize, A)>,
        work: impl Fn(&mut Seat, A, &Progress) -> Result<T, Error> + Clone + Send + 'static,
    ) -> PerWorker<T> {
        let (done, results) = channel();
        let (mut found, mut waiting): (PerWorker<T>, Vec<usize>) = (Vec::new(), Vec::new());
        let is_alone = jobs.len() == 1;
        for (index, args) in jobs {
            let Some(seat) = self.seats[index].take() else { continue };
            let (done, work, progress) = (done.clone(), work.clone(), self.progress[index].clone());
            let job = move |mut seat: Box<Seat>| {
                let result = catch_unwind(AssertUnwindSafe(|| work(&mut seat, args, &progress)));
                let result = result.unwrap_or_else(|panic| Err(broke_down(seat.worker, &*panic)));
                // What the work holds is free before the loop goes on.
                drop(work);
                let _ = done.send((index, seat, result));
            };
            if is_alone {
                job(seat);
            } else if let Err(error) = self.send(index, (seat, Box::new(job))) {
                found.push((index, Err(error)));
                continue;
            }
            waiting.push(index);
        }
        drop(done);
        let mut watch: Option<Vec<(u64, Instant)>> = None;
        while !waiting.is_empty() {
            let left = watch.as_mut().map(|watch| self.time_left(&waiting, watch));
            let received = match left {
                // Nobody waits for anybody yet.
                None => results.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(left) => results.recv_timeout(left),
            };
            match received {
                Ok((index, seat, result)) => {
                    waiting.retain(|&other| other != index);
                    if result.is_ok() {
                        self.seats[index] = Some(seat);
                    }
                    found.push((index, result));
                    if watch.is_none() {
                        watch = Some(
                            self.progress
                                .iter()
                                .map(|it| (it.count.load(Ordering::Relaxed), Instant::now()))
                                .collect(),
                        );
                    }
                }
                Err(error) => {
                    let silent = |index: &usize| match (&watch, error) {
                        (Some(watch), RecvTimeoutError::Timeout) => {
                            watch[*index].1.elapsed() >= self.deadline
                        }
                        _ => true,
                    };
                    let lost: Vec<usize> = waiting.iter().copied().filter(silent).collect();
                    waiting.retain(|index| !lost.contains(index));
                    for index in lost {
                        // Its thread has its replica for good.
                        self.threads[index] = None;
                        found.push((index, Err(Error::Stalled { after: self.deadline })));
                    }
                }
            }
        }
        found.sort_by_key(|(index, _)| *index);
        found
    }

    /// How long to wait until one of these workers has made no progress for too long.
    fn time_left(&self, waiting: &[usize], watch: &mut [(u64, Instant)]) -> Duration {
        let left = waiting.iter().map(|&index| {
            let now = self.progress[index].count.load(Ordering::Relaxed);
            if watch[index].0 != now {
                watch[index] = (now, Instant::now());
            }
            self.deadline.saturating_sub(watch[index].1.elapsed())
        });
        left.min().unwrap_or(self.deadline)
    }

    /// Sends a job to the worker's thread.
    fn send(&mut self, index: usize, job: Job) -> Result<(), Error> {
        if self.threads[index].is_none() {
            let (sender, jobs) = channel::<Job>();
            let name = format!("grawa-worker-{}", job.0.worker);
            let run = move || jobs.into_iter().for_each(|(seat, job)| job(seat));
            (std::thread::Builder::new().name(name).spawn(run))
                .map_err(|error| Error::workers(grawa_nn::Error::Threads { why: error.to_string() }))?;
            self.threads[index] = Some(sender);
        }
        let sent = self.threads[index].as_ref().map(|thread| thread.send(job));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(Error::workers(grawa_nn::Error::Threads { why: "a worker's thread ended".into() })),
        }
    }

    fn seat(&mut self, index: usize) -> Result<&mut Seat, Error> {
        self.seats[index].as_deref_mut().ok_or(Error::Left)
    }

    /// The model that all measure, if they measure one.
    fn model(&self, of: Measured) -> Option<Arc<Vec<f32>>> {
        match of {
            Measured::Centre(slot) => Some(self.centres.get(slot).cloned().unwrap_or_default()),
            Measured::Own => None,
        }
    }

    /// The vectors of these workers, in their order.
    fn vectors<'a>(
        seats: &'a mut [Option<Box<Seat>>],
        members: &[usize],
        which: Vectors,
    ) -> Vec<&'a mut [f32]> {
        let here = seats.iter_mut().enumerate().filter(|(index, _)| members.contains(index));
        here.filter_map(|(_, seat)| Some(seat.as_mut()?.vector(which))).collect()
    }
}

/// Makes the set of workers on threads: `make` makes a worker of its part.
#[cfg(test)]
pub(crate) fn on_threads(
    layout: Layout,
    deadline: Duration,
    make: impl Fn(&mut Part) -> Result<Seat, crate::Error>,
) -> impl FnOnce(&Recipe, &mut [Part]) -> Result<Box<dyn WorkerSet>, crate::Error> {
    move |_, parts| {
        let seats = parts.iter_mut().map(make).collect::<Result<_, _>>()?;
        Ok(Box::new(ThreadSet::new(layout, seats, deadline)))
    }
}

/// [`grawa_core::mix()`] on several threads where vectors are long: the bits do not depend on it.
fn mix_shared_out<'a>(
    cores: usize,
    plan: &Plan,
    layout: &Layout,
    vectors: Vec<&'a mut [f32]>,
    centre: &mut [f32],
) -> Result<(), grawa_core::Error> {
    let expected = plan.centre.state_len(layout.len());
    if centre.len() < expected {
        let what = "the centre".into();
        return Err(grawa_core::Error::WrongLength { what, found: centre.len(), expected });
    }
    let (centre, velocity) = centre.split_at_mut(layout.len());
    let threads = cores.min(vectors.len()).min(centre.len() / FLOATS_A_THREAD).max(1);
    let length = centre.len().div_ceil(threads).max(1);
    // Empty without an outer optimizer.
    let mut velocities = velocity.chunks_mut(length);
    let cut = |vector: &'a mut [f32]| {
        let len = layout.len().min(vector.len());
        vector[..len].chunks_mut(length)
    };
    let mut vectors: Vec<_> = vectors.into_iter().map(cut).collect();
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (part, offset) in centre.chunks_mut(length).zip((0..).step_by(length)) {
            let moved = velocities.next().unwrap_or_default();
            let mut parts: Vec<&mut [f32]> =
                vectors.iter_mut().map(|vector| vector.next().unwrap_or_default()).collect();
            let mut work = move || mix_part(plan, layout, offset, &mut parts, (&mut *part, &mut *moved));
            match threads {
                1 => work()?,
                _ => running.push(scope.spawn(work)),
            }
        }
        for thread in running {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(())
    })
}

/// The pauses of a worker that `train.slow` slows down are cut into naps of this length, each with a heartbeat.
const NAP: Duration = Duration::from_millis(50);

/// A worker's cycle of local steps.
fn take_steps(
    seat: &mut Seat,
    mut state: WorkerState,
    cycle: &Cycle,
    centres: &Centres,
    progress: &Progress,
) -> Result<WorkerState, Error> {
    let prox = centres.prox(cycle.prox, state.inner, seat.replica.layout().len());
    for taken_now in 0.. {
        if let Some(full) = cycle.is_over(&state, taken_now)? {
            state.end_steps(cycle, full);
            break;
        }
        let start = cycle.now();
        let rate = cycle.rate_after(state.in_cycle);
        let taken = seat.replica.steps(&StepRequest {
            key: state.key(cycle),
            rates: &[rate as f32],
            optimizer: &cycle.optimizer(),
            radius: cycle.radius(),
            prox: &prox,
            norms: cycle.norms,
        })?;
        let (loss, finite) = (taken.losses[0], taken.finite[0]);
        state.record(cycle, &StepTaken { rate, loss, norms: &taken.norms, finite });
        progress.step();
        let mut pause = cycle.pause(&state, cycle.now().saturating_sub(start));
        while !pause.is_zero() && !cycle.is_stopping() {
            let nap = pause.min(NAP);
            std::thread::sleep(nap);
            pause -= nap;
            progress.step();
        }
        state.spend(cycle.now().saturating_sub(start), seat.take_waits());
    }
    Ok(state)
}

impl WorkerSet for ThreadSet {
    fn local_steps(&mut self, cycle: &Arc<Cycle>, workers: Vec<WorkerState>) -> PerWorker<WorkerState> {
        let jobs = workers.into_iter().map(|worker| (worker.index, worker)).collect();
        let (cycle, centres) = (Arc::clone(cycle), self.centres.clone());
        self.each(jobs, move |seat, state, progress| take_steps(seat, state, &cycle, &centres, progress))
    }

    fn gradients(&mut self, keys: &[(usize, Key)], radius: Option<f32>) -> PerWorker<(f64, Vec<f64>)> {
        let spans = self.layout.spans().len();
        self.each(keys.to_vec(), move |seat, key, progress| {
            let loss = seat.replica.gradient(key)?;
            if let Some(radius) = radius {
                seat.replica.ascend(radius)?;
                seat.replica.gradient(key)?;
                seat.replica.restore()?;
            }
            progress.step();
            let mut norms = vec![0.0; spans];
            seat.replica.norms(&mut norms)?;
            Ok((loss, norms))
        })
    }

    fn descend(
        &mut self,
        workers: &[usize],
        optimizer: Optimizer,
        rate: f32,
        prox: [f32; 2],
    ) -> PerWorker<bool> {
        let centres = self.centres.clone();
        let jobs = workers.iter().map(|&index| (index, ())).collect();
        // Where gradients are shared there are no inner groups.
        self.each(jobs, move |seat, (), _| {
            let len = seat.replica.layout().len();
            Ok(seat.replica.descend(&optimizer, rate, &centres.prox(prox, 0, len))?)
        })
    }

    fn score(&mut self, keys: &[(usize, Key)], dropout: bool) -> PerWorker<Vec<f64>> {
        let spans = self.layout.spans().len();
        self.each(keys.to_vec(), move |seat, key, _| {
            let mut norms = vec![0.0; spans];
            seat.replica.score(key, dropout, &mut norms)?;
            Ok(norms)
        })
    }

    fn mix(&mut self, slot: Slot, plan: &Plan, members: &[usize], vectors: Vectors) -> Result<(), Error> {
        let centre = Arc::make_mut(self.centres.at(slot));
        let own = Self::vectors(&mut self.seats, members, vectors);
        mix_shared_out(self.cores, plan, &self.layout, own, centre)?;
        if plan.push > 0.0 {
            let own = Self::vectors(&mut self.seats, members, vectors).into_iter().enumerate();
            own.for_each(|(rank, vector)| pull_part(plan, rank, vector, &[], centre));
        }
        Ok(())
    }

    fn combine(
        &mut self,
        plan: &Plan,
        members: &[usize],
        vectors: Vectors,
        send: &mut dyn FnMut(&[f32]) -> Result<Outcome, grawa_comm::Error>,
    ) -> Result<Outcome, Error> {
        let mut vectors = Self::vectors(&mut self.seats, members, vectors);
        if let [one] = &mut vectors[..] {
            return Ok(send(one)?);
        }
        self.combined.resize(self.layout.len(), 0.0);
        mix_shared_out(self.cores, plan, &self.layout, vectors, &mut self.combined)?;
        Ok(send(&self.combined)?)
    }

    fn pull(
        &mut self,
        plan: &Plan,
        members: &[(usize, usize)],
        (before, after): (&Arc<Vec<f32>>, &Arc<Vec<f32>>),
        vectors: Vectors,
    ) -> Result<(), Error> {
        for &(rank, index) in members {
            pull_part(plan, rank, self.seat(index)?.vector(vectors), before, after);
        }
        Ok(())
    }

    fn centre(&self, slot: Slot) -> Result<Arc<Vec<f32>>, Error> {
        Ok(self.centres.get(slot).cloned().unwrap_or_default())
    }

    fn set_centre(&mut self, slot: Slot, centre: Arc<Vec<f32>>) -> Result<(), Error> {
        *self.centres.at(slot) = centre;
        Ok(())
    }

    fn reset(&mut self, worker: usize) {
        if let Ok(seat) = self.seat(worker) {
            seat.replica.reset();
        }
    }

    fn copy(&mut self, worker: usize, what: StateKind) -> Result<Vec<f32>, Error> {
        Ok(self.seat(worker)?.replica.copy(what)?)
    }

    fn put(&mut self, worker: usize, what: StateKind, values: &[f32]) -> Result<(), Error> {
        Ok(self.seat(worker)?.replica.put(what, values)?)
    }

    fn assign_shard(&mut self, worker: usize, shard: u32, of: u32) -> Result<(), Error> {
        Ok(self.seat(worker)?.replica.assign_shard(shard, of)?)
    }

    fn evaluation(&self) -> Option<Evaluation> {
        let evaluator = self.seats.iter().flatten().find_map(|seat| seat.evaluator.as_ref())?;
        Some(Evaluation { policy: evaluator.policy(), statistics: evaluator.statistics().clone() })
    }

    fn recalibrate(&mut self, model: Measured, shards: &[Shard]) -> PerWorker<(Vec<f64>, u64)> {
        let centre = self.model(model);
        let jobs = shards.iter().map(|shard| (shard.index, (shard.shard, shard.of))).collect();
        self.each(jobs, move |seat, shard, progress| {
            measure(seat, centre.as_deref(), progress, |evaluator, model, alive| {
                evaluator.recalibrate(model, shard, alive)
            })
        })
    }

    fn test(&mut self, model: Measured, shards: &[Shard], statistics: &[Arc<Vec<f32>>]) -> PerWorker<Counts> {
        let centre = self.model(model);
        let jobs = (shards.iter().zip(statistics))
            .map(|(shard, statistics)| (shard.index, ((shard.shard, shard.of), Arc::clone(statistics))))
            .collect();
        self.each(jobs, move |seat, (shard, statistics), progress| {
            measure(seat, centre.as_deref(), progress, |evaluator, model, alive| {
                evaluator.test(model, &statistics, shard, alive)
            })
        })
    }

    fn set_heartbeat(&mut self, heartbeat: Heartbeat) {
        for progress in &mut self.progress {
            progress.heartbeat = Some(Arc::clone(&heartbeat));
        }
    }

    fn set_stop(&mut self, stop: Arc<AtomicBool>) {
        for progress in &mut self.progress {
            progress.stop = Arc::clone(&stop);
        }
    }

    fn waits(&mut self, worker: usize) -> (f64, f64) {
        self.seat(worker).map_or((0.0, 0.0), |seat| seat.take_waits())
    }
}

/// Measures a model, or the worker's own parameters.
fn measure<T>(
    seat: &mut Seat,
    model: Option<&Vec<f32>>,
    progress: &Progress,
    measure: impl FnOnce(&mut dyn EvaluateShard, &[f32], &mut dyn FnMut() -> bool) -> Result<T, crate::Error>,
) -> Result<T, Error> {
    let Seat { replica, evaluator, .. } = seat;
    let Some(evaluator) = evaluator else { return Err(Error::Left) };
    let mut alive = || progress.goes_on();
    let measured = match model {
        // The velocity of an outer optimizer follows the centre.
        Some(model) => {
            let len = replica.layout().len().min(model.len());
            measure(&mut **evaluator, &model[..len], &mut alive)
        }
        None => measure(&mut **evaluator, replica.parameters(), &mut alive),
    };
    if let Some(waits) = &seat.waits {
        waits.take();
    }
    Ok(measured?)
}

#[cfg(test)]
mod tests {
    use super::{Seat, ThreadSet};
    use grawa_core::{FunctionReplica, Key, Layout};
    use grawa_session::worker_set::conformance;
    use std::time::Duration;

    /// Long vectors are mixed on several threads: the bits are the same.
    #[test]
    fn threads_conform() {
        for (workers, length) in [(1, 40), (2, 1003), (5, 40), (3, 300_000)] {
            let layout = Layout::new([("a", vec![5]), ("b", vec![length - 5])]).unwrap();
            let seat = |worker: u32| {
                let function = |_: &[f32], _: Key, _: &mut [f32]| 0.0;
                let replica = FunctionReplica::new(layout.clone(), vec![0.0; length], function).unwrap();
                Seat { worker, replica: Box::new(replica), waits: None, evaluator: None }
            };
            let seats = (0..workers).map(seat).collect();
            let mut set = ThreadSet::new(layout.clone(), seats, Duration::from_secs(60));
            conformance::check(&mut set, &layout, workers, true);
        }
    }
}
