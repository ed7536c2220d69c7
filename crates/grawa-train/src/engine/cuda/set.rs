//! The workers of one process on its GPUs.
//!
//! All workers of a GPU step in lock-step; several GPUs step at the same time. If a GPU fails, all its workers are lost.

use super::CudaSet;
use super::gpu::Gpu;
use crate::engine::cpu_replica::replica_error;
use crate::engine::{Counts, EvaluateShard};
use crate::recipe::BatchNorm;
use crate::worker_set::{
    Cycle, Evaluation, Fetch, Measured, PerWorker, Shard, Slot, StateVector, Vectors, WorkerSet, WorkerState,
    copy_now,
};
use grawa_comm::{Heartbeat, Outcome};
use grawa_core::{Key, Layout, Optimizer, Plan, StateKind, Toward};
use grawa_nn::cuda::{self, DeviceShare, Model, Participant};
use grawa_session::Error;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl CudaSet {
    /// The GPU of a worker, and its index there.
    fn gpu(&mut self, worker: usize) -> Result<(&mut Gpu, usize), Error> {
        let has = |gpu: &&mut Gpu| (gpu.first..gpu.first + gpu.workers.len()).contains(&worker);
        let gpu = self.gpus.iter_mut().flatten().find(has).ok_or(Error::Left)?;
        let at = worker - gpu.first;
        Ok((gpu, at))
    }

    /// Does something with all workers on every GPU at the same time. `args` are by worker, for all workers of a GPU or none.
    fn each<A: Send, T: Send>(
        &mut self,
        args: Vec<(usize, A)>,
        act: impl Fn(&mut Gpu, Vec<A>) -> Result<Vec<T>, crate::Error> + Sync,
    ) -> PerWorker<T> {
        let mut args: Vec<Option<(usize, A)>> = args.into_iter().map(Some).collect();
        let mut done = Vec::new();
        let act = &act;
        std::thread::scope(|scope| {
            let mut running = Vec::new();
            let is_alone = self.gpus.len() == 1;
            for gpu in self.gpus.iter_mut().flatten() {
                let indices = gpu.first..gpu.first + gpu.workers.len();
                let here = |arg: &&mut Option<(usize, A)>| {
                    arg.as_ref().is_some_and(|(index, _)| indices.contains(index))
                };
                let mine: Vec<A> =
                    args.iter_mut().filter(here).filter_map(|arg| Some(arg.take()?.1)).collect();
                if mine.is_empty() {
                    continue;
                }
                let work = move || (indices, act(gpu, mine));
                match is_alone {
                    true => done.push(work()),
                    false => running.push(scope.spawn(work)),
                }
            }
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            done.extend(running.into_iter().map(join));
        });
        for (indices, _) in done.iter().filter(|(_, done)| done.is_err()) {
            self.gpus.iter_mut().for_each(|gpu| drop(gpu.take_if(|gpu| gpu.first == indices.start)));
        }
        done.into_iter().flat_map(by_worker).collect()
    }

    /// Level and group of a centre on a GPU that has workers of the group; see `ReplicaSet::load_centre`.
    fn centre_place(&self, slot: Slot, gpu: &Gpu) -> Option<(usize, usize)> {
        match slot {
            Slot::All => Some((0, 0)),
            Slot::View => Some((2, 0)),
            Slot::Inner(at) => {
                // A GPU counts groups from its first one.
                let number = self.workers.start / self.group + at as u32;
                let (first, last) = (gpu.workers.start / self.group, (gpu.workers.end - 1) / self.group);
                (first..=last).contains(&number).then(|| (1, (number - first) as usize))
            }
        }
    }

    /// The workers of a centre's group on a GPU.
    fn members(&self, slot: Slot, gpu: &Gpu) -> Range<u32> {
        let Slot::Inner(at) = slot else { return gpu.workers.clone() };
        let start = (self.workers.start / self.group + at as u32) * self.group;
        gpu.workers.start.max(start)..gpu.workers.end.min(start + self.group)
    }

    /// The GPU that has a vector, and where it has it.
    fn locate(&self, vector: StateVector) -> Option<(usize, cuda::StateVector)> {
        let here = |gpu: &Gpu| match vector {
            StateVector::Worker(worker, what) => {
                let at = worker.checked_sub(gpu.first).filter(|at| *at < gpu.workers.len())?;
                Some(cuda::StateVector::Worker(at, what))
            }
            StateVector::Centre(slot) => {
                self.centre_place(slot, gpu).map(|(level, group)| cuda::StateVector::Centre { level, group })
            }
        };
        self.gpus.iter().enumerate().find_map(|(at, gpu)| Some((at, here(gpu.as_ref()?)?)))
    }

    /// Writes a centre to a vector, which is empty if there is none.
    fn read_centre(&self, slot: Slot, to: &mut Vec<f32>) -> Result<(), Error> {
        to.clear();
        let found = self.gpus.iter().flatten().find_map(|gpu| Some((gpu, self.centre_place(slot, gpu)?)));
        let Some((gpu, (level, group))) = found else { return Ok(()) };
        gpu.set.read_centre(level, group, to).map_err(crate::Error::from)?;
        Ok(())
    }

    fn model(&self, of: Measured) -> Model {
        match of {
            Measured::Own => Model::Own,
            // The levels of evaluated models have one group.
            Measured::Centre(Slot::View) => Model::Centre { level: 2, group: 0 },
            Measured::Centre(_) => Model::Centre { level: 0, group: 0 },
        }
    }
}

/// The number of parameters.
fn parameters(gpus: &[Option<Gpu>]) -> usize {
    gpus.iter().flatten().next().map_or(0, |gpu| gpu.graph.parameters().len())
}

/// The results of a GPU's workers. An error is that of all of them.
fn by_worker<T>((indices, done): (Range<usize>, Result<Vec<T>, crate::Error>)) -> PerWorker<T> {
    match done {
        Ok(results) => indices.zip(results.into_iter().map(Ok)).collect(),
        Err(error) => {
            let error = replica_error(error);
            indices.map(|index| (index, Err(error.clone().into()))).collect()
        }
    }
}

impl WorkerSet for CudaSet {
    fn local_steps(&mut self, cycle: &Arc<Cycle>, workers: Vec<WorkerState>) -> PerWorker<WorkerState> {
        let heartbeat = self.heartbeat.clone();
        let step = || heartbeat.iter().for_each(|beat| beat());
        let workers = workers.into_iter().map(|worker| (worker.index, worker)).collect();
        self.each(workers, |gpu, workers| gpu.local_steps(cycle, workers, &step))
    }

    fn gradients(&mut self, keys: &[(usize, Key)], radius: Option<f32>) -> PerWorker<(f64, Vec<f64>)> {
        let heartbeat = self.heartbeat.clone();
        let found = self.each(keys.to_vec(), |gpu, keys| {
            let losses = gpu.gradients(&keys, radius)?;
            Ok(losses.into_iter().zip(gpu.set.norms()?).collect())
        });
        found.iter().for_each(|_| heartbeat.iter().for_each(|beat| beat()));
        found
    }

    fn descend(
        &mut self,
        workers: &[usize],
        optimizer: Optimizer,
        rate: f32,
        prox: [f32; 2],
    ) -> PerWorker<bool> {
        let workers = workers.iter().map(|&index| (index, ())).collect();
        self.each(workers, |gpu, _| gpu.descend(optimizer, rate, prox))
    }

    fn score(&mut self, keys: &[(usize, Key)], dropout: bool) -> PerWorker<Vec<f64>> {
        self.each(keys.to_vec(), |gpu, keys| gpu.score(&keys, dropout))
    }

    fn mix(&mut self, slot: Slot, plan: &Plan, members: &[usize], vectors: Vectors) -> Result<(), Error> {
        let vectors = match vectors {
            Vectors::Parameters => cuda::Vectors::Parameters,
            Vectors::Gradients => cuda::Vectors::Gradients,
        };
        let mut places = Vec::new();
        for (at, gpu) in self.gpus.iter().enumerate() {
            let Some(gpu) = gpu else { continue };
            // By index: in a group a process may have got other numbers since.
            let indices = gpu.first..gpu.first + gpu.workers.len();
            let first = members.iter().find(|index| indices.contains(index));
            if let (Some(centre), Some(first)) = (self.centre_place(slot, gpu), first) {
                places.push((at, centre, self.members(slot, gpu), first - gpu.first));
            }
        }
        let multi_gpu = self.multi_gpu.clone().filter(|_| places.len() > 1 || self.always_connect);
        match (multi_gpu, &places[..]) {
            (None, [(at, centre, _, first)]) => match &mut self.gpus[*at] {
                Some(gpu) => Ok(gpu.set.mix(plan, *centre, *first, vectors).map_err(crate::Error::from)?),
                None => Err(Error::Left),
            },
            (Some(multi_gpu), _) => {
                let mut participants: Vec<Participant<'_>> = Vec::new();
                for (at, gpu) in self.gpus.iter_mut().enumerate() {
                    let place = places.iter().find(|(place, ..)| *place == at);
                    if let (Some(gpu), Some((_, centre, members, first))) = (gpu, place) {
                        let share = DeviceShare::new(plan, members.clone(), *first);
                        participants.push(Participant { set: &mut gpu.set, share, centre: *centre });
                    }
                }
                Ok(multi_gpu.mix(&mut participants, plan, vectors).map_err(crate::Error::from)?)
            }
            (None, _) => Err(grawa_core::Error::WrongWorkers { found: plan.workers.clone() }.into()),
        }
    }

    fn combine(
        &mut self,
        plan: &Plan,
        members: &[usize],
        vectors: Vectors,
        send: &mut dyn FnMut(&[f32]) -> Result<Outcome, grawa_comm::Error>,
    ) -> Result<Outcome, Error> {
        if members.is_empty() {
            return Ok(send(&vec![0.0; parameters(&self.gpus)])?);
        }
        // The model to be evaluated is made anew before every evaluation: its memory serves for this, too.
        self.mix(Slot::View, plan, members, vectors)?;
        let mut vector = std::mem::take(&mut self.combined);
        self.read_centre(Slot::View, &mut vector)?;
        let outcome = send(&vector);
        self.combined = vector;
        Ok(outcome?)
    }

    fn pull(
        &mut self,
        plan: &Plan,
        members: &[(usize, usize)],
        (before, after): (&Arc<Vec<f32>>, &Arc<Vec<f32>>),
        vectors: Vectors,
    ) -> Result<(), Error> {
        if members.is_empty() {
            return Ok(());
        }
        let target = if plan.toward == Toward::Old { before } else { after };
        self.set_centre(Slot::View, Arc::clone(target))?;
        let workers: Vec<u32> = members.iter().map(|(rank, _)| plan.workers[*rank]).collect();
        let indices: Vec<usize> = members.iter().map(|(_, index)| *index).collect();
        self.mix(Slot::View, &plan.toward_given_centre(&workers), &indices, vectors)?;
        let after = &after[..parameters(&self.gpus).min(after.len())];
        for &(_, index) in members.iter().filter(|(rank, _)| plan.replaced[*rank]) {
            let (gpu, worker) = self.gpu(index)?;
            match vectors {
                Vectors::Parameters => gpu.set.load_parameters(worker, after).map_err(crate::Error::from)?,
                Vectors::Gradients => gpu.set.load_gradient(worker, after).map_err(crate::Error::from)?,
            }
        }
        Ok(())
    }

    fn centre(&self, slot: Slot) -> Result<Arc<Vec<f32>>, Error> {
        let mut centre = Vec::new();
        self.read_centre(slot, &mut centre)?;
        Ok(Arc::new(centre))
    }

    fn set_centre(&mut self, slot: Slot, centre: Arc<Vec<f32>>) -> Result<(), Error> {
        // A run without rounds has no centre.
        if centre.is_empty() {
            return Ok(());
        }
        let places: Vec<_> =
            self.gpus.iter().map(|gpu| gpu.as_ref().and_then(|gpu| self.centre_place(slot, gpu))).collect();
        for (gpu, place) in self.gpus.iter_mut().zip(places) {
            if let (Some(gpu), Some((level, group))) = (gpu, place) {
                gpu.set.load_centre(level, group, &centre).map_err(crate::Error::from)?;
            }
        }
        Ok(())
    }

    fn reset(&mut self, worker: usize) {
        if let Ok((gpu, worker)) = self.gpu(worker) {
            let zeros = vec![0.0; gpu.graph.parameters().len()];
            // If the GPU fails, the next step reports it.
            let _ = gpu.set.load_velocity(worker, &zeros);
            let _ = gpu.set.load_second_moment(worker, &[]);
        }
    }

    fn copy(&mut self, worker: usize, what: StateKind) -> Result<Vec<f32>, Error> {
        let (gpu, worker) = self.gpu(worker)?;
        Ok(gpu.copy(worker, what)?)
    }

    fn copy_later(&mut self, wanted: &[StateVector]) -> Result<Fetch, Error> {
        // By GPU: which of the wanted vectors, and where they are.
        let mut by_gpu: Vec<(usize, Vec<usize>, Vec<cuda::StateVector>)> = Vec::new();
        for (at, vector) in wanted.iter().enumerate() {
            let Some((gpu, vector)) = self.locate(*vector) else { return copy_now(self, wanted) };
            match by_gpu.iter_mut().find(|(other, ..)| *other == gpu) {
                Some((_, places, vectors)) => {
                    places.push(at);
                    vectors.push(vector);
                }
                None => by_gpu.push((gpu, vec![at], vec![vector])),
            }
        }
        let mut snapshots = Vec::with_capacity(by_gpu.len());
        for (gpu, places, vectors) in by_gpu {
            let Some(gpu) = &mut self.gpus[gpu] else { return Err(Error::Left) };
            match gpu.set.snapshot(&vectors).map_err(crate::Error::from)? {
                Some(snapshot) => snapshots.push((places, snapshot)),
                None => return copy_now(self, wanted),
            }
        }
        let count = wanted.len();
        Ok(Box::new(move || {
            let mut copies = vec![Vec::new(); count];
            for (places, snapshot) in snapshots {
                let fetched = snapshot.fetch().map_err(crate::Error::from)?;
                places.into_iter().zip(fetched).for_each(|(at, vector)| copies[at] = vector);
            }
            Ok(copies)
        }))
    }

    fn put(&mut self, worker: usize, what: StateKind, values: &[f32]) -> Result<(), Error> {
        let (gpu, worker) = self.gpu(worker)?;
        Ok(gpu.put(worker, what, values)?)
    }

    fn assign_shard(&mut self, worker: usize, shard: u32, of: u32) -> Result<(), Error> {
        let (gpu, worker) = self.gpu(worker)?;
        Ok(gpu.assign_shard(worker, shard, of)?)
    }

    fn evaluation(&self) -> Option<Evaluation> {
        let gpu = self.gpus.iter().flatten().next()?;
        Some(Evaluation { policy: self.policy, statistics: gpu.graph.statistics().clone() })
    }

    fn recalibrate(&mut self, model: Measured, shards: &[Shard]) -> PerWorker<(Vec<f64>, u64)> {
        let (model, batches, heartbeat) = (self.model(model), self.batches, self.heartbeat.clone());
        let stop = Arc::clone(&self.stop);
        let step = || {
            heartbeat.iter().for_each(|beat| beat());
            !stop.load(Ordering::Relaxed)
        };
        let shards = shards.iter().map(|shard| (shard.index, shard.clone())).collect();
        self.each(shards, |gpu, shards| gpu.recalibrate(model, &shards, batches, &step))
    }

    fn test(&mut self, model: Measured, shards: &[Shard], statistics: &[Arc<Vec<f32>>]) -> PerWorker<Counts> {
        let (model, heartbeat) = (self.model(model), self.heartbeat.clone());
        let stop = Arc::clone(&self.stop);
        let step = || {
            heartbeat.iter().for_each(|beat| beat());
            !stop.load(Ordering::Relaxed)
        };
        let requests = (shards.iter().zip(statistics))
            .map(|(shard, statistics)| (shard.index, (shard.clone(), Arc::clone(statistics))))
            .collect();
        self.each(requests, |gpu, requests| {
            let (shards, statistics): (Vec<Shard>, Vec<Arc<Vec<f32>>>) = requests.into_iter().unzip();
            gpu.test(model, &shards, &statistics, &step)
        })
    }

    fn set_heartbeat(&mut self, heartbeat: Heartbeat) {
        self.heartbeat = Some(heartbeat);
    }

    fn set_stop(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    fn waits(&mut self, worker: usize) -> (f64, f64) {
        let Ok((gpu, worker)) = self.gpu(worker) else { return (0.0, 0.0) };
        (0.0, std::mem::take(&mut gpu.streams[worker].waited))
    }
}

/// A model by itself, in place of the first worker.
impl EvaluateShard for CudaSet {
    fn policy(&self) -> BatchNorm {
        self.policy
    }

    fn statistics(&self) -> &Layout {
        &self.statistics
    }

    fn recalibrate(
        &mut self,
        model: &[f32],
        (shard, of): (usize, usize),
        alive: &mut dyn FnMut() -> bool,
    ) -> Result<(Vec<f64>, u64), crate::Error> {
        alive();
        let batches = self.batches;
        let (gpu, worker) = self.gpu(0)?;
        gpu.put(worker, StateKind::Parameters, model)?;
        let shards = [Shard { index: 0, shard, of }];
        let found = gpu.recalibrate(Model::Own, &shards, batches, &|| true)?;
        found.into_iter().next().ok_or(Error::Left.into())
    }

    fn each(
        &mut self,
        model: &[f32],
        statistics: &[f32],
        (shard, of): (usize, usize),
        alive: &mut dyn FnMut() -> bool,
        show: &mut dyn FnMut(&[f32], usize),
    ) -> Result<(), crate::Error> {
        alive();
        let (gpu, worker) = self.gpu(0)?;
        gpu.put(worker, StateKind::Parameters, model)?;
        gpu.each(Model::Own, Shard { index: 0, shard, of }, Arc::new(statistics.to_vec()), show)
    }
}
