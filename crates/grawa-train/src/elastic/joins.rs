//! Workers that join a run in each of its first rounds, on real sockets: nobody is lost, and nobody is dealt what another was.

use super::*;
use crate::Event;
use crate::engine::{CpuReplica, Engine};
use crate::recipe::Overrides;
use grawa_comm::group::{CoordinatorServer, RoundWait, Security, Settings};
use grawa_core::StateKind;
use grawa_core::{Key, Layout, Name, Optimizer, Prox, Replica};
use grawa_nn::State;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::time::Instant;

const FOUNDERS: u32 = 4;
const PERIOD: u64 = 4;
const BATCH: u64 = 4;
const LONG: Duration = Duration::from_secs(120);

fn recipe(method: &str) -> Recipe {
    let said = Overrides::default().method(&format!("{method}:period={PERIOD}"), "test").unwrap();
    let settings = [
        "model.width=4",
        &format!("train.batch={BATCH}"),
        &format!("train.workers={FOUNDERS}"),
        &format!("train.budget={}step", 10 * PERIOD),
        "evaluate.every=end",
        "machine.threads=1",
    ];
    let said = settings.iter().fold(said, |said, setting| said.set(setting).unwrap());
    let mut recipe = Recipe::resolve(&said).unwrap();
    recipe.evaluate.images = 64;
    recipe.checkpoint.every = None;
    // Workers join at rounds whose steps are known.
    recipe.method.qsr = 0.0;
    recipe
}

/// Who was dealt what: the place in the endless row of examples of each that was read.
type Dealt = Arc<Mutex<Vec<u64>>>;

/// A replica that notes what it is dealt, and waits before one of its steps.
struct Watched {
    net: CpuReplica,
    share: (u32, u32),
    dealt: Dealt,
    gate: Option<(u64, Arc<Gate>)>,
}

/// Before it one waits for those who are to come.
#[derive(Default)]
struct Gate {
    is_reached: AtomicBool,
    is_open: AtomicBool,
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Replica for Watched {
    fn layout(&self) -> &Layout {
        self.net.layout()
    }

    fn assign_shard(&mut self, shard: u32, of: u32) -> Result<(), grawa_core::Error> {
        self.share = (shard, of);
        self.net.assign_shard(shard, of)
    }

    fn gradient(&mut self, key: Key) -> Result<f64, grawa_core::Error> {
        let (seat, step) = key.place();
        if let Some((_, gate)) = self.gate.take_if(|(at, _)| *at == step) {
            gate.is_reached.store(true, Ordering::Relaxed);
            until("the others have come", || gate.is_open.load(Ordering::Relaxed));
        }
        assert_eq!(seat, self.share.0);
        let places = (0..BATCH).map(|at| (step * BATCH + at) * u64::from(self.share.1) + u64::from(seat));
        self.dealt.lock().unwrap().extend(places);
        self.net.gradient(key)
    }

    fn descend(
        &mut self,
        optimizer: &Optimizer,
        rate: f32,
        prox: &[Prox<'_>],
    ) -> Result<bool, grawa_core::Error> {
        self.net.descend(optimizer, rate, prox)
    }

    fn ascend(&mut self, radius: f32) -> Result<(), grawa_core::Error> {
        self.net.ascend(radius)
    }

    fn restore(&mut self) -> Result<(), grawa_core::Error> {
        self.net.restore()
    }

    fn norms(&mut self, out: &mut [f64]) -> Result<(), grawa_core::Error> {
        self.net.norms(out)
    }

    fn score(&mut self, key: Key, dropout: bool, out: &mut [f64]) -> Result<(), grawa_core::Error> {
        self.net.score(key, dropout, out)
    }

    fn reset(&mut self) {
        self.net.reset();
    }

    fn parameters(&mut self) -> &mut [f32] {
        self.net.parameters()
    }

    fn gradients(&mut self) -> &mut [f32] {
        self.net.gradients()
    }

    fn copy(&mut self, what: StateKind) -> Result<Vec<f32>, grawa_core::Error> {
        self.net.copy(what)
    }

    fn put(&mut self, what: StateKind, values: &[f32]) -> Result<(), grawa_core::Error> {
        self.net.put(what, values)
    }
}

/// Workers, and the steps each took.
type Steps = Vec<(u32, u64)>;

/// The rounds of all workers: which, and who took how many steps.
#[derive(Clone, Default)]
struct Rounds(Arc<Mutex<BTreeMap<u64, Steps>>>);

impl Observer for Rounds {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        if let Event::Round(round) = event {
            let steps = round.workers.iter().map(|share| (share.worker, share.steps)).collect();
            self.0.lock().unwrap().insert(round.at.rounds, steps);
        }
        Ok(())
    }
}

/// `joiners` join a group of four, so that they take part in this round for the first time. Every process has `each` workers.
fn join_in_round(method: &str, round: u64, joiners: u32, each: u32, data: &Dataset) {
    let what = format!("{method}, {joiners} in round {round}, {each} in a process");
    let recipe = recipe(method);
    // The first founder is waited for while the others join, and a busy machine loses nobody.
    let round_wait = RoundWait { shortest: LONG, longest: LONG, ..RoundWait::default() };
    let settings = Settings { founders: FOUNDERS, round_wait, silence: LONG, ..Settings::default() };
    let host = CoordinatorServer::new(
        "127.0.0.1:0",
        Security::Plain,
        settings,
        1,
        recipe.to_toml().into_bytes(),
        None,
    )
    .unwrap();
    let guest = || {
        let (address, listen) = (host.address().to_string(), ("127.0.0.1:0", None));
        Joiner::with_workers(each, &address, Security::Plain, listen, LONG).unwrap()
    };
    let (dealt, gate, rounds) = (Dealt::default(), Arc::<Gate>::default(), Rounds::default());
    std::thread::scope(|scope| {
        let work = |guest: Joiner| {
            let worker = guest.worker;
            let gate = (worker == 0).then(|| ((round - 1) * PERIOD, Arc::clone(&gate)));
            let (recipe, dealt, rounds) = (recipe.clone(), Arc::clone(&dealt), rounds.clone());
            let recipe_seed = recipe.train.seed;
            scope.spawn(move || {
                let engine = Engine::new(&recipe, data).unwrap();
                let (layout, examples) = (engine.graph().parameters().clone(), engine.order().examples());
                let (evaluator, gate) = (engine.evaluator(&recipe), Mutex::new(gate));
                let make = move |shard: u32| {
                    let state = State::initial(engine.graph(), recipe_seed);
                    let net = engine.worker(shard, state, 0).map_err(grawa_core::Error::replica)?;
                    let gate = gate.lock().unwrap().clone().filter(|_| shard == 0);
                    let dealt = Arc::clone(&dealt);
                    Ok(Watched { net, share: (shard, FOUNDERS), dealt, gate })
                };
                let run = Run::of_replicas(recipe, "watched", layout, examples as usize, make).unwrap();
                let run = run.evaluate_by(move |_| Box::new(evaluator.clone()));
                run.join(guest, Stop::default(), &mut [Box::new(rounds)])
            })
        };
        // Numbers go by who says hello first.
        let founders: Vec<Joiner> = (0..FOUNDERS / each).map(|_| guest()).collect();
        let mut workers: Vec<_> = founders.into_iter().map(work).collect();
        until(&what, || gate.is_reached.load(Ordering::Relaxed));
        workers.extend((0..joiners / each).map(|_| work(guest())));
        let have_come = || {
            let come = host.status().workers.into_iter().filter(|worker| worker.has_arrived);
            come.filter(|standing| standing.worker >= FOUNDERS).count() == (joiners / each) as usize
        };
        until(&what, have_come);
        gate.is_open.store(true, Ordering::Relaxed);
        for worker in workers {
            let end = worker.join().unwrap().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!((end.at.rounds, end.workers.len()), (10, (FOUNDERS + joiners) as usize), "{what}");
        }
    });
    let rounds = rounds.0.lock().unwrap();
    assert_eq!(rounds.len(), 10, "{what}: {rounds:?}");
    for (number, steps) in rounds.iter() {
        let expected: Steps = (0..FOUNDERS + if *number < round { 0 } else { joiners })
            .map(|worker| (worker, if worker >= FOUNDERS && *number == round { 0 } else { PERIOD }))
            .collect();
        assert_eq!(*steps, expected, "{what}: round {number}");
    }
    let dealt = dealt.lock().unwrap();
    assert_eq!(
        dealt.iter().collect::<BTreeSet<_>>().len(),
        dealt.len(),
        "{what}: an example was dealt twice"
    );
}

/// The same in each of the first eight rounds. The runs mostly wait, so some run at the same time: not so many that the
/// machine starves a worker of the seconds after which it counts as out of contact.
fn in_each_round(method: &str, joiners: u32, each: u32, data: &Dataset) {
    for rounds in [1..5, 5..9] {
        std::thread::scope(|scope| {
            for round in rounds {
                scope.spawn(move || join_in_round(method, round, joiners, each, data));
            }
        });
    }
}

/// With every method that a group accepts.
fn with_each_method(joiners: u32, each: u32) {
    let data = grawa_data::load("digits", ".".as_ref()).unwrap();
    for name in Name::ALL {
        if objection(&Recipe { method: name.to_string().parse().unwrap(), ..recipe("mean") }).is_some() {
            continue;
        }
        in_each_round(&name.to_string(), joiners, each, &data);
    }
}

#[test]
fn one_and_five_join_a_group_of_four_in_each_of_the_first_rounds() {
    with_each_method(1, 1);
    with_each_method(5, 1);
}

/// Processes with two workers each: the numbers, the steps and the examples of workers are as if each had its own process.
#[test]
fn processes_with_two_workers_join_in_each_of_the_first_rounds() {
    with_each_method(2, 2);
}
