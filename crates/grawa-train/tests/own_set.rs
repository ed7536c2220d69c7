//! A set of one's own, written outside of the library: all workers step together on one thread. Its rounds pass the conformance suite,
//! and runs with it have the bits of [`Sequential`].

#![allow(clippy::unwrap_used)]

use grawa_comm::{Heartbeat, Outcome};
use grawa_core::norm::norms;
use grawa_core::step::ascend;
use grawa_core::{
    FunctionReplica, Key, Layout, Moments, Optimizer, Plan, Prox, Replica, Sequential, StateKind, mix,
    pull_part,
};
use grawa_session::worker_set::{
    Cycle, Evaluation, Measured, PerWorker, Shard, Slot, StepTaken, Vectors, WorkerSet, WorkerState,
    conformance,
};
use grawa_session::{Counts, Error};
use grawa_train::recipe::Overrides;
use grawa_train::{Checkpoint, Recipe, Run};
use std::sync::Arc;

/// ½‖x‖² with a push of each worker's own, so that workers part between rounds.
fn bowl(x: &[f32], key: Key, gradient: &mut [f32]) -> f64 {
    let push = key.stream().unit() - 0.5;
    gradient.iter_mut().zip(x).for_each(|(g, &x)| *g = x + push);
    x.iter().map(|&x| f64::from(x * x) / 2.0).sum()
}

fn layout() -> Layout {
    Layout::new([("a", vec![5]), ("b", vec![40])]).unwrap()
}

#[derive(Clone, Default)]
struct Worker {
    parameters: Vec<f32>,
    moments: Moments,
    gradient: Vec<f32>,
}

/// Workers that step together.
struct LockStep {
    layout: Layout,
    workers: Vec<Worker>,
    centres: [Arc<Vec<f32>>; 2],
    heartbeat: Option<Heartbeat>,
}

impl LockStep {
    fn new(layout: Layout, workers: usize) -> Self {
        let zeros = || vec![0.0; layout.len()];
        let worker = Worker { parameters: zeros(), moments: Moments::new(layout.len()), gradient: zeros() };
        let centres = [Arc::new(zeros()), Arc::new(zeros())];
        LockStep { workers: vec![worker; workers], centres, heartbeat: None, layout }
    }

    fn gradient(&mut self, index: usize, key: Key, radius: Option<f32>) -> (f64, Vec<f64>) {
        let worker = &mut self.workers[index];
        let loss = bowl(&worker.parameters, key, &mut worker.gradient);
        if let Some(radius) = radius {
            let (mut there, mut saved) = (worker.parameters.clone(), worker.parameters.clone());
            ascend(radius, &mut there, &mut saved, &worker.gradient).unwrap();
            bowl(&there, key, &mut worker.gradient);
        }
        let mut found = vec![0.0; self.layout.spans().len()];
        norms(&self.layout, &worker.gradient, &mut found).unwrap();
        (loss, found)
    }

    fn step(&mut self, index: usize, optimizer: &Optimizer, rate: f32, strength: f32) -> bool {
        let prox = Prox { centre: &self.centres[0][..self.layout.len()], strength };
        let prox: &[Prox<'_>] = if strength > 0.0 { &[prox] } else { &[] };
        let Worker { parameters, moments, gradient } = &mut self.workers[index];
        moments.descend(optimizer, rate, parameters, gradient, prox).unwrap()
    }

    fn slot(&mut self, slot: Slot) -> &mut Arc<Vec<f32>> {
        &mut self.centres[usize::from(slot == Slot::View)]
    }

    fn vector(&mut self, index: usize, which: Vectors) -> &mut Vec<f32> {
        match which {
            Vectors::Parameters => &mut self.workers[index].parameters,
            Vectors::Gradients => &mut self.workers[index].gradient,
        }
    }

    fn mix_into(&mut self, plan: &Plan, members: &[usize], which: Vectors, centre: &mut [f32]) {
        let mut taken: Vec<Vec<f32>> =
            members.iter().map(|&index| std::mem::take(self.vector(index, which))).collect();
        let mut slices: Vec<&mut [f32]> = taken.iter_mut().map(Vec::as_mut_slice).collect();
        mix(plan, &self.layout, &mut slices, centre).unwrap();
        for (&index, vector) in members.iter().zip(taken) {
            *self.vector(index, which) = vector;
        }
    }
}

impl WorkerSet for LockStep {
    fn local_steps(&mut self, cycle: &Arc<Cycle>, mut workers: Vec<WorkerState>) -> PerWorker<WorkerState> {
        let mut taken_now = 0;
        let full = loop {
            if let Some(full) = cycle.is_over(&workers[0], taken_now).unwrap() {
                break full;
            }
            for worker in &mut workers {
                let (start, rate) = (cycle.now(), cycle.rate_after(worker.in_cycle));
                let (loss, norms) = self.gradient(worker.index, worker.key(cycle), cycle.radius());
                let finite = self.step(worker.index, &cycle.optimizer(), rate as f32, cycle.prox[0]);
                worker.record(cycle, &StepTaken { rate, loss, norms: &norms, finite });
                worker.spend(cycle.now().saturating_sub(start), (0.0, 0.0));
                self.heartbeat.iter().for_each(|beat| beat());
            }
            taken_now += 1;
        };
        workers.iter_mut().for_each(|worker| worker.end_steps(cycle, full));
        workers.into_iter().map(|worker| (worker.index, Ok(worker))).collect()
    }

    fn gradients(&mut self, keys: &[(usize, Key)], radius: Option<f32>) -> PerWorker<(f64, Vec<f64>)> {
        keys.iter().map(|&(index, key)| (index, Ok(self.gradient(index, key, radius)))).collect()
    }

    fn descend(
        &mut self,
        workers: &[usize],
        optimizer: Optimizer,
        rate: f32,
        prox: [f32; 2],
    ) -> PerWorker<bool> {
        workers.iter().map(|&index| (index, Ok(self.step(index, &optimizer, rate, prox[0])))).collect()
    }

    fn score(&mut self, keys: &[(usize, Key)], _: bool) -> PerWorker<Vec<f64>> {
        let score = |index: usize, key| {
            let mut replica = FunctionReplica::new(layout(), self.workers[index].parameters.clone(), bowl)?;
            let mut found = vec![0.0; self.layout.spans().len()];
            replica.score(key, false, &mut found)?;
            Ok(found)
        };
        keys.iter().map(|&(index, key)| (index, score(index, key))).collect()
    }

    fn mix(&mut self, slot: Slot, plan: &Plan, members: &[usize], vectors: Vectors) -> Result<(), Error> {
        let mut centre = self.slot(slot).to_vec();
        self.mix_into(plan, members, vectors, &mut centre);
        *self.slot(slot) = Arc::new(centre);
        Ok(())
    }

    fn combine(
        &mut self,
        plan: &Plan,
        members: &[usize],
        vectors: Vectors,
        send: &mut dyn FnMut(&[f32]) -> Result<Outcome, grawa_comm::Error>,
    ) -> Result<Outcome, Error> {
        if let [one] = members {
            return Ok(send(self.vector(*one, vectors))?);
        }
        let mut combined = vec![0.0; self.layout.len()];
        self.mix_into(plan, members, vectors, &mut combined);
        Ok(send(&combined)?)
    }

    fn pull(
        &mut self,
        plan: &Plan,
        members: &[(usize, usize)],
        (before, after): (&Arc<Vec<f32>>, &Arc<Vec<f32>>),
        vectors: Vectors,
    ) -> Result<(), Error> {
        for &(rank, index) in members {
            pull_part(plan, rank, self.vector(index, vectors), before, after);
        }
        Ok(())
    }

    fn centre(&self, slot: Slot) -> Result<Arc<Vec<f32>>, Error> {
        Ok(Arc::clone(&self.centres[usize::from(slot == Slot::View)]))
    }

    fn set_centre(&mut self, slot: Slot, centre: Arc<Vec<f32>>) -> Result<(), Error> {
        *self.slot(slot) = centre;
        Ok(())
    }

    fn reset(&mut self, worker: usize) {
        self.workers[worker].moments.reset();
    }

    fn copy(&mut self, worker: usize, what: StateKind) -> Result<Vec<f32>, Error> {
        Ok(match what {
            StateKind::Parameters => self.workers[worker].parameters.clone(),
            what => self.workers[worker].moments.copy(what),
        })
    }

    fn put(&mut self, worker: usize, what: StateKind, values: &[f32]) -> Result<(), Error> {
        match what {
            StateKind::Parameters => self.workers[worker].parameters = values.to_vec(),
            StateKind::Statistics => {}
            what => self.workers[worker].moments.put(what, values)?,
        }
        Ok(())
    }

    fn assign_shard(&mut self, _: usize, _: u32, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn evaluation(&self) -> Option<Evaluation> {
        None
    }

    fn recalibrate(&mut self, _: Measured, _: &[Shard]) -> PerWorker<(Vec<f64>, u64)> {
        Vec::new()
    }

    fn test(&mut self, _: Measured, _: &[Shard], _: &[Arc<Vec<f32>>]) -> PerWorker<Counts> {
        Vec::new()
    }

    fn set_heartbeat(&mut self, heartbeat: Heartbeat) {
        self.heartbeat = Some(heartbeat);
    }

    fn waits(&mut self, _: usize) -> (f64, f64) {
        (0.0, 0.0)
    }
}

#[test]
fn its_rounds_conform() {
    for workers in [1, 2, 5] {
        conformance::check(&mut LockStep::new(layout(), workers as usize), &layout(), workers, true);
    }
}

#[test]
fn runs_have_the_bits_of_sequential() {
    for method in
        ["easgd:period=4", "lgrawa:period=4", "local-lgrawa:period=4", "lsgd:period=4", "dp-sgd", "dp-sam"]
    {
        let said = ["train.budget=24step", "train.rate=0.05", "train.workers=3", "train.seed=7"]
            .iter()
            .fold(Overrides::default().method(method, "test").unwrap(), |said, it| said.set(it).unwrap());
        let recipe = Recipe::resolve(&said).unwrap();
        let sgd = recipe.train.sgd;
        let folder = tempfile::TempDir::new().unwrap();
        let make =
            |workers: &[u32]| Ok(Box::new(LockStep::new(layout(), workers.len())) as Box<dyn WorkerSet>);
        let run = Run::of_set(recipe, "lock-step", layout(), 100, vec![1.0; 45], make).unwrap();
        grawa_train::folder::create(&folder.path().join("run"), run.recipe()).unwrap();
        let end = run.keep_in(&folder.path().join("run")).go(&mut []).unwrap();
        assert_eq!(end.at.steps, 24, "{method}");
        let replica = |_| FunctionReplica::new(layout(), vec![1.0; 45], bowl).unwrap();
        let mut expected =
            Sequential::new(method.parse().unwrap(), sgd, 7, (0..3).map(replica).collect()).unwrap();
        (0..24).for_each(|_| drop(expected.advance(0.05).unwrap()));
        let checkpoint = Checkpoint::newest(&folder.path().join("run")).unwrap();
        let path = checkpoint.path().join("state.safetensors");
        let tensors = grawa_nn::Tensors::read(&path, "the run").unwrap();
        for (worker, replica) in expected.replicas().iter_mut().enumerate() {
            let name = format!("worker.{worker}.parameters");
            let found = tensors.find(&name).map(|tensor| tensor.data.clone());
            let Some(grawa_nn::Data::F32(found)) = found else { panic!("no {name} in {}", path.display()) };
            assert_eq!(found, replica.parameters(), "{method}: worker {worker}");
        }
    }
}
