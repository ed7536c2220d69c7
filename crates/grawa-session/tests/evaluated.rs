//! Every model that a group evaluates or saves is the one that the vectors of its members make, whoever joins, is replaced or comes late.
//!
//! Each set notes the vector of its worker at every round and every evaluation, and what was made of them. Afterwards grawa-core alone makes
//! each model again from these vectors: in f32 with the same bits, in bf16 within the bound of the differences. All members must have the
//! same model, and so must what is handed over to be saved.

#![allow(clippy::unwrap_used)]

use grawa_comm::group::{CoordinatorServer, Joiner, RoundWait, Security, Settings, TransferOptions};
use grawa_comm::{Heartbeat, Outcome};
use grawa_core::norm::norms;
use grawa_core::{
    Evaluate, Key, Layout, Method, Optimizer, Plan, Prox, Schedule, Sgd, StateKind, mix, pull_part,
};
use grawa_session::enter::Entered;
use grawa_session::evaluate::viewing;
use grawa_session::event::Event;
use grawa_session::milestones::{MilestoneSettings, Milestones};
use grawa_session::process::{Clock, Common, Note};
use grawa_session::snapshot::{Part, Snapshots};
use grawa_session::worker_set::{
    Cycle, Evaluation, Measured, PerWorker, Shard, Slot, StepTaken, Vectors, WorkerSet, WorkerState,
};
use grawa_session::{BatchNorm, Counts, Error, Pace, Pacing, coordinator_settings};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const FOUNDERS: u32 = 3;
const PERIOD: u64 = 2;
const ROUNDS: u64 = 20;
/// Others wait so long for one that is late, and it is late by so much.
const WAIT: Duration = Duration::from_millis(700);
const LATE: Duration = Duration::from_millis(1800);
/// After so many rounds one joins, one is lost and replaced, and one is late: all wait at a gate until it has come, or come back. Later the
/// parameters of one are not finite.
const JOINS: u64 = 3;
const DIES: u64 = 6;
const SLEEPS: u64 = 11;
const GATES: [(u64, u32); 3] = [(JOINS, FOUNDERS), (DIES + 2, 1), (SLEEPS + 2, 2)];
const BREAKS: u64 = 16;
const RATE: f32 = 0.1;

fn layout() -> Layout {
    Layout::new([("a", vec![5]), ("b", vec![40])]).unwrap()
}

fn statistics() -> Layout {
    Layout::new([("bn.running_mean", vec![3]), ("bn.running_var", vec![3])]).unwrap()
}

/// A round, and the models that were made of the workers after it: 0 is the round itself.
type At = (u64, u32);

/// What members brought to an operation, and what they got.
#[derive(Default)]
struct Made {
    plan: Option<Plan>,
    before: Vec<f32>,
    vectors: BTreeMap<u32, Vec<f32>>,
    models: BTreeMap<u32, Vec<f32>>,
}

type Model = (Vec<f32>, Vec<f32>);

#[derive(Default)]
struct Notes {
    made: BTreeMap<At, Made>,
    /// What workers measured, with which statistics.
    measured: BTreeMap<At, BTreeMap<u32, Model>>,
    /// Rounds after which the model was evaluated.
    evaluated: BTreeSet<u64>,
    /// Models to be saved, by round; with statistics where these are those of an evaluation.
    saved: Vec<(u64, Vec<f32>, Option<Vec<f32>>)>,
}

/// What the sets of a run share.
struct Shared {
    notes: Mutex<Notes>,
    /// One may join; the late one is awake again.
    begins: AtomicBool,
    is_awake: AtomicBool,
    host: CoordinatorServer,
}

impl Shared {
    fn has_come(&self, (round, worker): (u64, u32)) -> bool {
        let workers = self.host.status().workers;
        let is_up = round != GATES[2].0 || self.is_awake.load(Ordering::Relaxed);
        is_up && workers.iter().any(|standing| standing.worker == worker && standing.has_arrived)
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// ½‖x‖² with a push of each worker's own, so that workers part between rounds.
fn bowl(x: &[f32], key: Key) -> (f64, Vec<f32>) {
    let mut stream = key.stream();
    let gradient = x.iter().map(|x| x + 4.0 * (stream.unit() - 0.5)).collect();
    (x.iter().map(|&x| f64::from(x * x) / 2.0).sum(), gradient)
}

/// A set of one worker.
struct Watched {
    shared: Arc<Shared>,
    /// Its number, if it is a founder.
    founder: Option<u32>,
    policy: BatchNorm,
    worker: u32,
    /// The next round at which there may be a gate; 0 for one that has just come.
    passed: u64,
    at: At,
    x: Vec<f32>,
    statistics: Vec<f32>,
    centres: [Arc<Vec<f32>>; 2],
    brought: Vec<f32>,
    heartbeat: Option<Heartbeat>,
}

impl Watched {
    fn notes<T>(&self, note: impl FnOnce(&mut Notes) -> T) -> T {
        note(&mut self.shared.notes.lock().unwrap())
    }

    fn norms(&self, key: Key) -> Vec<f64> {
        let mut found = vec![0.0; layout().spans().len()];
        norms(&layout(), &bowl(&self.x, key).1, &mut found).unwrap();
        found
    }

    /// What happens to founders in some rounds.
    fn fate(&mut self) -> Result<(), Error> {
        let round = self.at.0;
        if round >= JOINS {
            self.shared.begins.store(true, Ordering::Relaxed);
        }
        if self.founder == Some(1) && round >= DIES {
            return Err(Error::BrokeDown { worker: 1, why: "as it should".into() });
        }
        if self.founder == Some(2) && round >= SLEEPS && !self.shared.is_awake.load(Ordering::Relaxed) {
            std::thread::sleep(LATE);
            self.shared.is_awake.store(true, Ordering::Relaxed);
        }
        // One that has just come waits at none that the others have passed, and nobody for itself.
        let gates =
            GATES.iter().filter(|(gate, who)| *who != self.worker && (self.passed..=round).contains(gate));
        for gate in gates.filter(|_| self.passed > 0) {
            let what = format!("worker {} waits at {gate:?}", self.worker);
            until(&what, || self.shared.has_come(*gate));
        }
        self.passed = round + 1;
        Ok(())
    }
}

impl WorkerSet for Watched {
    fn local_steps(&mut self, cycle: &Arc<Cycle>, mut workers: Vec<WorkerState>) -> PerWorker<WorkerState> {
        if let Err(error) = self.fate() {
            return vec![(0, Err(error))];
        }
        let mut taken = 0;
        let is_free = matches!(cycle.common.pacing, Pacing::Called);
        let full = loop {
            if is_free {
                // Others must hear in time that there were enough.
                std::thread::sleep(Duration::from_millis(5));
            }
            if let Some(full) = cycle.is_over(&workers[0], taken).unwrap() {
                break full;
            }
            let worker = &mut workers[0];
            let rate = cycle.rate_after(worker.in_cycle);
            let key = worker.key(cycle);
            let ((loss, gradient), norms) = (bowl(&self.x, key), self.norms(key));
            self.x.iter_mut().zip(&gradient).for_each(|(x, g)| *x -= rate as f32 * g);
            if cycle.prox[0] > 0.0 {
                let centre = &self.centres[0][..self.x.len()];
                Prox { centre, strength: cycle.prox[0] }.apply(&mut self.x);
            }
            if self.founder == Some(0) && self.at.0 == BREAKS {
                self.x[7] = f32::NAN;
            }
            self.statistics.iter_mut().zip(&gradient).for_each(|(mean, g)| *mean += 0.1 * (g * g - *mean));
            let finite = self.x.iter().all(|x| x.is_finite());
            worker.record(cycle, &StepTaken { rate, loss, norms: &norms, finite });
            self.heartbeat.iter().for_each(|beat| beat());
            taken += 1;
        };
        workers[0].end_steps(cycle, full);
        workers.into_iter().map(|worker| (0, Ok(worker))).collect()
    }

    fn combine(
        &mut self,
        _: &Plan,
        _: &[usize],
        _: Vectors,
        send: &mut dyn FnMut(&[f32]) -> Result<Outcome, grawa_comm::Error>,
    ) -> Result<Outcome, Error> {
        self.brought = self.x.clone();
        Ok(send(&self.x)?)
    }

    fn pull(
        &mut self,
        plan: &Plan,
        members: &[(usize, usize)],
        (before, after): (&Arc<Vec<f32>>, &Arc<Vec<f32>>),
        _: Vectors,
    ) -> Result<(), Error> {
        // Only the round that makes a model pulls nobody.
        self.at = if plan.pull > 0.0 { (plan.memory.rounds, 0) } else { (self.at.0, self.at.1 + 1) };
        let rank = members[0].0;
        self.worker = plan.workers[rank];
        let (worker, brought, at) = (self.worker, self.brought.clone(), self.at);
        self.notes(|notes| {
            let made = notes.made.entry(at).or_default();
            made.plan = Some(plan.clone());
            if plan.pull > 0.0 {
                made.before = before.to_vec();
            }
            made.vectors.insert(worker, brought);
            made.models.insert(worker, after.to_vec());
        });
        pull_part(plan, rank, &mut self.x, before, after);
        Ok(())
    }

    fn test(&mut self, model: Measured, _: &[Shard], statistics: &[Arc<Vec<f32>>]) -> PerWorker<Counts> {
        let vector = match model {
            Measured::Centre(slot) => self.centre(slot).unwrap()[..self.x.len()].to_vec(),
            Measured::Own => self.x.clone(),
        };
        let (at, worker, statistics) = (self.at, self.worker, statistics[0].to_vec());
        self.notes(|notes| notes.measured.entry(at).or_default().insert(worker, (vector, statistics)));
        vec![(0, Ok(Counts { loss: 1.0, wrong: 100_u64.saturating_sub(self.at.0), examples: 100 }))]
    }

    fn gradients(&mut self, _: &[(usize, Key)], _: Option<f32>) -> PerWorker<(f64, Vec<f64>)> {
        unreachable!("gradients are not shared")
    }

    fn descend(&mut self, _: &[usize], _: Optimizer, _: f32, _: [f32; 2]) -> PerWorker<bool> {
        unreachable!("gradients are not shared")
    }

    fn score(&mut self, keys: &[(usize, Key)], _: bool) -> PerWorker<Vec<f64>> {
        keys.iter().map(|(_, key)| (0, Ok(self.norms(*key)))).collect()
    }

    fn mix(&mut self, _: Slot, _: &Plan, _: &[usize], _: Vectors) -> Result<(), Error> {
        unreachable!("members of a group have other processes")
    }

    fn centre(&self, slot: Slot) -> Result<Arc<Vec<f32>>, Error> {
        Ok(Arc::clone(&self.centres[usize::from(slot == Slot::View)]))
    }

    fn set_centre(&mut self, slot: Slot, centre: Arc<Vec<f32>>) -> Result<(), Error> {
        self.centres[usize::from(slot == Slot::View)] = centre;
        Ok(())
    }

    fn reset(&mut self, _: usize) {}

    fn copy(&mut self, _: usize, what: StateKind) -> Result<Vec<f32>, Error> {
        Ok(match what {
            StateKind::Parameters => self.x.clone(),
            StateKind::Statistics => self.statistics.clone(),
            _ => Vec::new(),
        })
    }

    fn put(&mut self, _: usize, what: StateKind, values: &[f32]) -> Result<(), Error> {
        if what == StateKind::Parameters {
            self.x = values.to_vec();
        }
        Ok(())
    }

    fn assign_shard(&mut self, _: usize, _: u32, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn evaluation(&self) -> Option<Evaluation> {
        Some(Evaluation { policy: self.policy, statistics: statistics() })
    }

    fn recalibrate(&mut self, model: Measured, shards: &[Shard]) -> PerWorker<(Vec<f64>, u64)> {
        // As if the batches of a shard had the model's first numbers, and so many examples.
        let vector = match model {
            Measured::Centre(slot) => self.centre(slot).unwrap(),
            Measured::Own => Arc::new(self.x.clone()),
        };
        let found = shards.iter().map(|shard| {
            let count = 1 + shard.shard as u64;
            let sums = vector[..statistics().len()].iter().map(|x| f64::from(*x) * count as f64).collect();
            (shard.index, Ok((sums, count)))
        });
        found.collect()
    }

    fn set_heartbeat(&mut self, heartbeat: Heartbeat) {
        self.heartbeat = Some(heartbeat);
    }

    fn waits(&mut self, _: usize) -> (f64, f64) {
        (0.0, 0.0)
    }
}

/// A run.
#[derive(Clone)]
struct Case {
    method: Method,
    options: TransferOptions,
    pace: Pace,
    policy: BatchNorm,
}

impl Case {
    fn name(&self) -> String {
        format!("{} {:?} {:?} {:?}", self.method, self.options, self.pace, self.policy)
    }
}

/// Makes models again.
struct Check<'a> {
    what: String,
    case: &'a Case,
    notes: &'a Notes,
}

fn bits(vector: &[f32]) -> Vec<u32> {
    vector.iter().map(|x| x.to_bits()).collect()
}

/// What the members of an operation should have got; `None` if one of them was lost in it.
fn again(made: &Made) -> Option<(Vec<Vec<f32>>, Vec<f32>)> {
    let plan = made.plan.as_ref()?;
    let brought = |worker| made.vectors.get(worker).cloned();
    let vectors: Option<Vec<Vec<f32>>> = plan.workers.iter().map(brought).collect();
    let (vectors, mut centre) = (vectors?, made.before.clone());
    if centre.is_empty() {
        centre = vec![0.0; layout().len()];
    }
    let mut copies = vectors.clone();
    let mut slices: Vec<&mut [f32]> = copies.iter_mut().map(Vec::as_mut_slice).collect();
    mix(plan, &layout(), &mut slices, &mut centre).unwrap();
    Some((vectors, centre))
}

/// What was compared, and what could not be.
#[derive(Debug, Default)]
struct Compared {
    models: usize,
    /// Rounds whose transfer failed for all: their centre is the one before.
    failed: Vec<At>,
    /// What a member that was lost had a part in, and the last round with overlap: nothing comes after it.
    unknown: Vec<At>,
}

impl Check<'_> {
    /// That two vectors are the same, but for what bf16 rounds off differences to `base`.
    fn agree(&self, at: At, found: &[f32], (vectors, expected): &(Vec<Vec<f32>>, Vec<f32>), base: &[f32]) {
        if !self.case.options.bf16 {
            let is_it = bits(found) == bits(&expected[..found.len()]);
            assert!(is_it, "{}: {at:?} is not what the vectors make", self.what);
            return;
        }
        // Of a summand 1/256, of the mean as much, and an outer step of 0.7·1.9.
        for n in 0..layout().len() {
            let farthest = vectors.iter().map(|x| (x[n] - base[n]).abs()).fold(0.0, f32::max);
            let bound = farthest * (3.0 / 256.0) + 1e-5 * (1.0 + expected[n].abs());
            let off = (found[n] - expected[n]).abs();
            assert!(off <= bound, "{}: {at:?} is off by {off} at {n}, more than {bound}", self.what);
        }
    }

    /// The centre of a round that overlaps with training, once it has come: it came with the next one. `None` if nothing came after it.
    fn next_centre(&self, round: u64) -> Option<&Vec<f32>> {
        self.notes.made.get(&(round + 1, 0)).map(|next| &next.before).filter(|before| !before.is_empty())
    }

    /// Whether the transfer of a round that overlaps with training failed: the next one has the same centre.
    fn has_failed(&self, round: u64) -> bool {
        let made = &self.notes.made[&(round, 0)];
        self.next_centre(round).is_some_and(|centre| bits(centre) == bits(&made.before))
    }

    /// Checks all that was made.
    fn made(&self) -> Compared {
        let mut compared = Compared::default();
        for (&at, made) in &self.notes.made {
            let Made { models, .. } = made;
            let first = models.values().next().unwrap();
            let is_same = models.values().all(|other| bits(other) == bits(first));
            assert!(is_same, "{}: at {at:?} workers {:?} differ", self.what, models.keys());
            let base = self.notes.made.get(&(at.0, 0)).map(|made| &made.before);
            let (Some(again), Some(base)) = (again(made), base) else {
                compared.unknown.push(at);
                continue;
            };
            let found = match (at.1 == 0 && self.case.options.overlap, self.next_centre(at.0)) {
                (false, _) => first,
                (true, Some(_)) if self.has_failed(at.0) => {
                    compared.failed.push(at);
                    continue;
                }
                (true, Some(centre)) => centre,
                (true, None) => {
                    compared.unknown.push(at);
                    continue;
                }
            };
            self.agree(at, found, &again, base);
            compared.models += 1;
        }
        compared
    }

    /// The model that was measured after a round, the same for all workers. `None` where each measures its own.
    fn measured(&self, round: u64) -> Option<Model> {
        let evaluate = self.case.method.evaluate;
        let (at, by_worker) = self.notes.measured.range((round, 0)..(round + 1, 0)).next()?;
        let (vector, statistics) = by_worker.values().next().filter(|_| evaluate != Evaluate::Each)?;
        for (worker, (other, others)) in by_worker {
            let is_same = bits(other) == bits(vector) && bits(others) == bits(statistics);
            assert!(is_same, "{}: at {at:?} worker {worker} measures another model", self.what);
        }
        self.is_model_of(*at, vector, "measured");
        Some((vector.clone(), statistics.clone()))
    }

    /// Where each measures its own: that this is what it had brought to the round, pulled. Returns how many were compared.
    fn measured_own(&self, round: u64) -> usize {
        let Some(made) = self.notes.made.get(&(round, 0)) else { return 0 };
        let (Some(plan), Some(measured)) = (&made.plan, self.notes.measured.get(&(round, 0))) else {
            return 0;
        };
        let mut compared = 0;
        for (worker, (vector, _)) in measured {
            // One that has just come has no part in the round, and measures what it took over.
            let rank = plan.workers.iter().position(|other| other == worker);
            let (Some(rank), Some(brought)) = (rank, made.vectors.get(worker)) else { continue };
            let mut expected = brought.clone();
            pull_part(plan, rank, &mut expected, &made.before, &made.models[worker]);
            let is_it = bits(&expected) == bits(vector);
            assert!(is_it, "{}: after round {round} worker {worker} measures another model", self.what);
            compared += 1;
        }
        compared
    }

    /// That this is the model that was made in this place.
    fn is_model_of(&self, at: At, vector: &[f32], verb: &str) {
        let made = &self.notes.made[&at];
        if at.1 == 0 && self.case.options.overlap {
            // The centre of this round, which comes with the next one.
            if self.has_failed(at.0) {
                let is_it = bits(vector) == bits(&made.before[..vector.len()]);
                assert!(is_it, "{}: {at:?} failed, and another model was {verb}", self.what);
            } else if let Some(again) = again(made) {
                self.agree(at, vector, &again, &made.before);
            }
            return;
        }
        let model = &made.models.values().next().unwrap()[..vector.len()];
        assert!(bits(model) == bits(vector), "{}: at {at:?} another model was {verb}", self.what);
    }

    /// The joiner comes, worker 1 is replaced, and worker 2 misses a round: all take part in later ones.
    fn came_and_went(&self) {
        let plans = self.notes.made.iter().filter(|(at, _)| at.1 == 0);
        let plans: Vec<(u64, &Plan)> =
            plans.filter_map(|(at, made)| Some((at.0, made.plan.as_ref()?))).collect();
        let has_later = |worker: u32, after: u64| {
            plans.iter().any(|(round, plan)| *round > after && plan.workers.contains(&worker))
        };
        let missed = |worker: u32, after: u64| {
            plans.iter().any(|(round, plan)| *round > after && !plan.workers.contains(&worker))
        };
        assert!(has_later(FOUNDERS, JOINS), "{}: nobody joined", self.what);
        assert!(has_later(1, DIES + 2), "{}: worker 1 was not replaced", self.what);
        assert!(missed(2, SLEEPS), "{}: worker 2 missed no round", self.what);
        assert!(has_later(2, SLEEPS + 2), "{}: worker 2 did not come back", self.what);
    }

    /// What is to be saved is what was measured, or the last that was made of the workers.
    fn saved(&self) -> usize {
        for (round, vector, statistics) in &self.notes.saved {
            let measured = self.measured(*round).filter(|_| self.notes.evaluated.contains(round));
            if let Some((model, of_model)) = measured {
                assert!(bits(vector) == bits(&model), "{}: round {round}: another model is saved", self.what);
                let found = statistics.as_ref().map(|statistics| bits(statistics));
                assert_eq!(found, Some(bits(&of_model)), "{}: round {round}", self.what);
                continue;
            }
            let last = self.notes.made.range((*round, 0)..(round + 1, 0)).next_back();
            last.into_iter().for_each(|(at, _)| self.is_model_of(*at, vector, "saved"));
        }
        self.notes.saved.len()
    }
}

/// Takes part in a run, as the founder of this number if it is one.
fn train(shared: &Arc<Shared>, case: &Case, joiner: Joiner, founder: Option<u32>) -> Result<(), Error> {
    let Case { method, options, pace, policy } = case;
    let (notes, inbox) = channel();
    let (written, acknowledged) = channel();
    written.send(()).unwrap();
    let began = Instant::now();
    let clock: Clock = Arc::new(move || began.elapsed());
    let every = |steps: u64| Some(format!("{steps}step").parse().unwrap());
    let milestones = Milestones::new(&MilestoneSettings {
        method,
        workers: FOUNDERS,
        batch: 1,
        examples: 10_000,
        // At a free pace rounds have as many steps as were taken before all had heard of the round.
        budget: format!("{}step", ROUNDS * PERIOD * if *pace == Pace::Free { 8 } else { 1 }).parse().unwrap(),
        evaluate: every(2 * PERIOD),
        checkpoint: every(3 * PERIOD),
    });
    let common = Arc::new(Common {
        method: method.clone(),
        layout: layout(),
        optimizer: Sgd::PLAIN.into(),
        rate: Schedule::constant(f64::from(RATE))?,
        slow: Vec::new(),
        seed: 7,
        milestones,
        pacing: if *pace == Pace::Free { Pacing::Called } else { Pacing::Even },
        stop: Arc::default(),
        clock,
        notes,
        reporter: None,
        together: Arc::default(),
        snapshots: Some(Snapshots::new(acknowledged, true)),
    });
    let start = vec![1.0; layout().len()];
    let (len, evaluate) = (start.len(), method.evaluate);
    let zeros = || Arc::new(vec![0.0; len]);
    let set = Watched {
        shared: Arc::clone(shared),
        founder,
        policy: *policy,
        worker: u32::MAX,
        passed: founder.map_or(0, |_| 1),
        at: (0, 0),
        x: start.clone(),
        statistics: vec![1.0; statistics().len()],
        centres: [zeros(), zeros()],
        brought: Vec::new(),
        heartbeat: None,
    };
    let entered = Entered::new(joiner, method, FOUNDERS, start.clone(), None, *options)?;
    let part = Part { parameters: start, finite: true, loss: f64::NAN, ..Part::default() };
    let mut process = entered.process(&common, Box::new(set), vec![part])?;
    drop(common);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for note in inbox {
                let mut saved = None;
                match note {
                    Note::Snapshot(pending) => {
                        let snapshot = pending.complete().unwrap();
                        written.send(()).unwrap_or_default();
                        let part = &snapshot.parts[0];
                        let vector = match evaluate {
                            Evaluate::Centre => &part.centres[0].2[..len],
                            _ => &part.parameters[..],
                        };
                        saved = Some((snapshot.at.rounds, vector.to_vec(), snapshot.calibrated));
                    }
                    Note::Best(pending) => {
                        let best = pending.complete().unwrap();
                        saved = Some((best.evaluated.at.rounds, best.parameters, Some(best.statistics)));
                    }
                    Note::Event(Event::Evaluated(evaluated)) => {
                        shared.notes.lock().unwrap().evaluated.insert(evaluated.at.rounds);
                    }
                    _ => {}
                }
                shared.notes.lock().unwrap().saved.extend(saved);
            }
        });
        let end = process.run();
        drop(process);
        end
    })
}

/// One joins, one is replaced and one is late. Checks all models.
fn come_and_go(case: &Case) {
    let what = case.name();
    let usual = coordinator_settings(&case.method, FOUNDERS, case.pace);
    let heartbeat = usual.heartbeat.min(Duration::from_millis(20));
    let round_wait = RoundWait { shortest: WAIT, longest: WAIT, ..RoundWait::default() };
    let settings = Settings { round_wait, silence: LONG, heartbeat, ..usual };
    let host = CoordinatorServer::new("127.0.0.1:0", Security::Plain, settings, 1, vec![1], None).unwrap();
    let address = host.address().to_string();
    let (begins, is_awake) = (AtomicBool::new(false), AtomicBool::new(false));
    let shared = &Arc::new(Shared { notes: Mutex::default(), begins, is_awake, host });
    let join = || Joiner::new(&address, Security::Plain, "127.0.0.1:0", None, LONG).unwrap();
    let join = &join;
    std::thread::scope(|scope| {
        // Numbers go by who says hello first.
        let founders: Vec<(u32, Joiner)> = (0..FOUNDERS).map(|founder| (founder, join())).collect();
        let founders = founders.into_iter().map(|(founder, joiner)| {
            scope.spawn(move || {
                let end = train(shared, case, joiner, Some(founder));
                if founder != 1 {
                    return end;
                }
                assert!(end.unwrap_err().to_string().contains("as it should"));
                // The next one gets its number when the coordinator knows that it has left.
                let has_left = || !shared.host.status().workers.iter().any(|it| it.worker == 1);
                until("worker 1 leaves", has_left);
                train(shared, case, join(), None)
            })
        });
        let mut workers: Vec<_> = founders.collect();
        until("the first rounds", || shared.begins.load(Ordering::Relaxed));
        workers.push(scope.spawn(move || train(shared, case, join(), None)));
        for worker in workers {
            worker.join().unwrap().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    });
    let notes = shared.notes.lock().unwrap();
    let check = Check { what: what.clone(), case, notes: &notes };
    let compared = check.made();
    check.came_and_went();
    // What was not compared has a reason, and is little. All overlapped transfers may fail from the death to its notice, and where one is late.
    let Compared { models, failed, unknown } = &compared;
    assert!(failed.len() <= 3 && unknown.len() <= 2, "{what}: {compared:?}");
    let has_views = viewing(case.method.evaluate).is_some();
    let least = ROUNDS as usize - 4 + if has_views { 12 } else { 0 };
    assert!(*models >= least, "{what}: only {models} models could be made again: {compared:?}");
    let is_each = case.method.evaluate == Evaluate::Each;
    let evaluated = notes.evaluated.iter();
    let measured = match is_each {
        false => evaluated.filter(|round| check.measured(**round).is_some()).count(),
        true => evaluated.map(|round| check.measured_own(*round)).sum(),
    };
    assert!(measured >= if is_each { 15 } else { 7 }, "{what}: {measured} were measured");
    let saved = check.saved();
    assert!(saved >= 5, "{what}: {saved} were saved");
    println!(
        "{what}: {models} made again, {failed:?} failed, {unknown:?} unknown, {measured} measured, {saved} saved"
    );
}

/// With all methods that may run elastically; every pair of a wire, overlap and a pace occurs with each, and all three with some.
/// A process has one worker: of several it would bring the sum, which is the same only within rounding.
#[test]
fn every_evaluated_and_saved_model_is_that_of_the_members() {
    let methods = [
        "easgd",
        "easgd:preset=reference",
        "easgd:evaluate=mean",
        "lsgd",
        "grawa",
        "mgrawa",
        "lgrawa",
        "local-mgrawa",
        "local-lgrawa",
        "mean:pull=0.5",
        "mean:pull=1",
        "mean:pull=0.5,evaluate=best",
        "mean:pull=0.5,evaluate=centre",
        "mean:pull=0.5,evaluate=each",
        "diloco",
        "diloco:evaluate=centre",
        "slowmo",
        "dppf",
        "qsr:qsr=0.1",
    ];
    // Every pair of choices for all methods; every triple for these, and with GRAWA_ALL=1 for all.
    let in_all = ["easgd", "lgrawa", "mean:pull=0.5", "mean:pull=0.5,evaluate=centre", "diloco"];
    let all = std::env::var_os("GRAWA_ALL").is_some();
    let mut cases = Vec::new();
    for name in methods {
        let method = format!("{name}{}period={PERIOD}", if name.contains(':') { "," } else { ":" });
        let method: Method = method.parse().unwrap();
        let pairs = [
            (false, false, Pace::Even),
            (false, true, Pace::Free),
            (true, true, Pace::Even),
            (true, false, Pace::Free),
        ];
        let others = [
            (true, false, Pace::Even),
            (false, true, Pace::Even),
            (false, false, Pace::Free),
            (true, true, Pace::Free),
        ];
        let kinds = pairs.into_iter().chain(others.into_iter().filter(|_| all || in_all.contains(&name)));
        for (at, (bf16, overlap, pace)) in kinds.enumerate() {
            let policy = [BatchNorm::Average, BatchNorm::Recalibrate, BatchNorm::Keep][at % 3];
            let overlap = overlap && method.overlap_objection().is_none();
            let pace = if method.qsr > 0.0 { Pace::Even } else { pace };
            let options = TransferOptions { overlap, bf16 };
            cases.push(Case { method: method.clone(), options, pace, policy });
        }
    }
    let chosen = std::env::var("GRAWA_CASE").unwrap_or_default();
    cases.retain(|case| case.name().contains(&chosen));
    assert!(!cases.is_empty(), "no case is {chosen}");
    // They mostly wait for the one that is late.
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    come_and_go(case);
                }
            });
        }
    });
}
