//! Sessions against [`Sequential`] bit for bit, over threads and over sockets, and when workers come and go.

#![allow(clippy::unwrap_used)]

use grawa_comm::group::{self, CoordinatorServer, Joiner, Security, ServerEvent};
use grawa_comm::threads;
use grawa_core::{
    FunctionReplica, Key, Layout, Method, Name, Prox, Purpose, Replica, Sequential, Sgd, Share, StateKind,
};
use grawa_session::event::{Event, Finished, Reason, Round};
use grawa_session::event_codec::Report;
use grawa_session::{Due, Error, LocalStep, Pace, RoundResult, Session, Settings};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const WORKERS: u32 = 3;
const RATE: f32 = 0.05;
const SEED: u64 = 7;
const SGD: Sgd = Sgd { momentum: 0.9, weight_decay: 1e-3, nesterov: true };
const LONG: Duration = Duration::from_secs(60);

type Function = fn(&[f32], Key, &mut [f32]) -> f64;
type Toy = FunctionReplica<Function>;

/// ½‖x‖² with a push of each worker's own, so that workers part between rounds.
fn bowl(x: &[f32], key: Key, gradient: &mut [f32]) -> f64 {
    let push = key.stream().unit() - 0.5;
    gradient.iter_mut().zip(x).for_each(|(g, &x)| *g = x + push);
    x.iter().map(|&x| f64::from(x * x) / 2.0).sum()
}

fn layout() -> Layout {
    Layout::new([("a", vec![5]), ("b", vec![40])]).unwrap()
}

fn replica(start: f32) -> Toy {
    FunctionReplica::new(layout(), vec![start; 45], bowl as Function).unwrap()
}

fn settings(method: &str, budget: &str) -> Settings {
    let (method, budget) = (method.parse().unwrap(), budget.parse().unwrap());
    let seed = SEED;
    Settings {
        seed,
        evaluate: Some("8step".parse().unwrap()),
        ..Settings::new(method, layout(), WORKERS, budget)
    }
}

/// What a worker left.
#[derive(Debug, Default)]
struct Trained {
    parameters: Vec<f32>,
    rounds: Vec<Round>,
    models: Vec<Vec<f32>>,
    finished: Option<Finished>,
}

/// One step of a training loop of its own.
fn local_step(session: &mut Session, replica: &mut Toy) -> Result<Due, Error> {
    let shard = session.shard();
    let key = Key::new(SEED, Purpose::Step).worker(shard.shard).step(shard.step);
    let loss = replica.gradient(key).unwrap();
    let mut norms = vec![0.0; if session.wants_norms() { 2 } else { 0 }];
    if session.wants_norms() {
        replica.norms(&mut norms).unwrap();
    }
    let centre = session.centre();
    let prox = Prox { centre: &centre, strength: session.prox() };
    let prox: &[Prox<'_>] = if prox.strength > 0.0 { &[prox] } else { &[] };
    replica.descend(&SGD.into(), RATE, prox).unwrap();
    session.step(LocalStep { loss, norms: &norms, rate: f64::from(RATE) })
}

fn round(session: &mut Session, replica: &mut Toy) -> Result<RoundResult, Error> {
    let mut scores = Vec::new();
    if let Some(batch) = session.score_batch() {
        scores.resize(2, 0.0);
        replica.score(batch.key, batch.dropout, &mut scores).unwrap();
    }
    let result = session.round(&scores, replica.parameters())?;
    if result.was_replaced {
        replica.reset();
    }
    Ok(result)
}

/// Trains to the end; `seen` is called before everything that is due.
fn train(
    mut session: Session,
    replica: &mut Toy,
    mut seen: impl FnMut(&Session) -> bool,
) -> Result<Trained, Error> {
    let mut trained = Trained::default();
    while session.due() != Due::End {
        if seen(&session) {
            return Ok(trained);
        }
        match session.due() {
            Due::Step => drop(local_step(&mut session, replica)?),
            Due::Round => trained.rounds.extend(round(&mut session, replica)?.round),
            Due::Evaluate => trained.models.extend(session.evaluated_model(replica.parameters())?),
            Due::End => {}
        }
    }
    trained.parameters = replica.parameters().to_vec();
    trained.finished = Some(session.finish()?);
    Ok(trained)
}

/// Starts workers on threads, and returns what they left.
fn all<T: Send>(make: impl Fn(u32) -> T + Sync, workers: u32) -> Vec<T> {
    std::thread::scope(|scope| {
        let make = &make;
        let running: Vec<_> = (0..workers).map(|worker| scope.spawn(move || make(worker))).collect();
        running.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

fn coordinator(settings: &Settings) -> (CoordinatorServer, String) {
    let server = settings.coordinate("127.0.0.1:0", Security::Plain, 5, None).unwrap();
    let address = server.address().to_string();
    (server, address)
}

fn joiner(address: &str) -> Joiner {
    Joiner::new(address, Security::Plain, "127.0.0.1:0", None, LONG).unwrap()
}

/// Every method that a session accepts.
fn methods() -> impl Iterator<Item = String> {
    let is_fit = |name: &&Name| {
        let method = Method::named(**name, grawa_core::Preset::Paper);
        method.share == Share::Parameters && method.inner.is_none()
    };
    // The α of the quadratic synchronization rule that leaves the period as it is.
    let knobs = |name: &Name| if *name == Name::Qsr { ",qsr=0.1" } else { "" };
    let presets = ["", ",preset=reference"];
    let of = move |name: &Name| presets.map(|preset| format!("{name}:period=4{}{preset}", knobs(name)));
    Name::ALL.iter().filter(is_fit).flat_map(of).chain(["lsgd:period=4,score_window=3".into()])
}

fn expected(method: &str, steps: usize) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let replicas = (0..WORKERS).map(|_| replica(1.0)).collect();
    let mut sequential =
        Sequential::new(method.parse().unwrap(), SGD, SEED, replicas).unwrap().over(steps as u64);
    (0..steps).for_each(|_| drop(sequential.advance(RATE).unwrap()));
    let models = sequential.evaluated();
    let parameters = sequential.replicas().iter_mut().map(|replica| replica.parameters().to_vec()).collect();
    (parameters, models)
}

fn check(method: &str, found: &[Trained], steps: usize) {
    let (parameters, models) = expected(method, steps);
    let mut found: Vec<&Trained> = found.iter().collect();
    found.sort_by_key(|trained| parameters.iter().position(|own| *own == trained.parameters));
    for (worker, trained) in found.iter().enumerate() {
        assert_eq!(trained.parameters, parameters[worker], "{method}: worker {worker}");
        assert_eq!(trained.models.last(), models.first(), "{method}: the model of worker {worker}");
        assert_eq!(trained.models.len(), steps.div_ceil(8), "{method}");
        assert_eq!(trained.rounds.len(), steps / 4, "{method}");
        assert!(trained.rounds.iter().all(|round| round.mixed[0].workers == [0, 1, 2]));
        let end = trained.finished.as_ref().unwrap();
        assert_eq!((end.at.steps, end.reason, end.workers.len()), (steps as u64, Reason::Spent, 3));
    }
}

/// All start from the first worker's parameters, whatever they bring.
#[test]
fn sessions_over_a_transport_have_the_bits_of_sequential() {
    for method in methods() {
        let settings = settings(&method, "24step");
        let transports: Vec<_> = threads::transports(WORKERS, LONG)
            .into_iter()
            .map(|it| std::sync::Mutex::new(Some(it)))
            .collect();
        let found = all(
            |worker| {
                let transport = transports[worker as usize].lock().unwrap().take().unwrap();
                let mut replica = replica(1.0 + worker as f32);
                let session = Session::over(&transport, &settings, replica.parameters()).unwrap();
                train(session, &mut replica, |_| false).unwrap()
            },
            WORKERS,
        );
        check(&method, &found, 24);
    }
}

#[test]
fn sessions_in_an_elastic_group_have_the_bits_of_sequential() {
    for method in methods() {
        let settings = settings(&method, "16step");
        let (_server, address) = coordinator(&settings);
        let found = all(
            |_| {
                let joiner = joiner(&address);
                let mut replica = replica(1.0 + joiner.worker as f32);
                let session = Session::join(joiner, &settings, replica.parameters()).unwrap();
                train(session, &mut replica, |_| false).unwrap()
            },
            WORKERS,
        );
        check(&method, &found, 16);
    }
}

#[test]
fn a_session_alone_is_one_worker() {
    let settings = Settings { workers: 1, ..settings("mean:period=4,pull=1", "10step") };
    let mut replica = replica(1.0);
    let session = Session::alone(&settings, replica.parameters()).unwrap();
    let trained = train(session, &mut replica, |_| false).unwrap();
    assert_eq!((trained.rounds.len(), trained.models.len()), (2, 2));
    assert_eq!(trained.models[1], trained.parameters);
}

/// Both ways to hold a round give the same bits; one of them uses the caller's own memory.
#[test]
fn a_round_needs_no_copy_of_the_parameters() {
    let settings = settings("mean:period=1,pull=0.5", "8step");
    let found = [false, true].map(|is_owned| {
        let settings = Settings { workers: 1, ..settings.clone() };
        let mut x = vec![2.0; layout().len()];
        let mut session = Session::alone(&settings, &mut x).unwrap();
        let place = x.as_ptr();
        for step in 1..4u8 {
            x.iter_mut().for_each(|x| *x += f32::from(step));
            session.step(LocalStep::new(0.0, 0.1)).unwrap();
            match is_owned {
                true => session.round_owned(&[], &mut x).unwrap(),
                false => session.round(&[], &mut x).unwrap(),
            };
            assert_eq!(x.as_ptr(), place);
        }
        x
    });
    assert_eq!(found[0], found[1]);
    assert!(found[0].iter().all(|x| *x > 2.0));
}

/// One leaves without a word, another joins later: it starts from the centre of the others, with their clock.
#[test]
fn workers_leave_and_join() {
    leave_and_join("mean:period=4,pull=1");
}

/// With the velocity of the outer optimizer: without it the centre of the one that joined would have other bits.
#[test]
fn who_joins_takes_over_the_outer_optimizer() {
    leave_and_join("diloco:period=4");
}

fn leave_and_join(method: &str) {
    let settings = Settings { evaluate: None, ..settings(method, "4000step") };
    let (_server, address) = coordinator(&settings);
    let (has_left, has_joined) = (AtomicBool::new(false), AtomicBool::new(false));
    let found = all(
        |which| {
            if which == 3 {
                while !has_left.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            let mut replica = replica(1.0);
            let session = Session::join(joiner(&address), &settings, replica.parameters()).unwrap();
            if which == 3 {
                assert!(session.progress().steps >= 40, "{:?}", session.progress());
                assert_eq!(*session.centre(), replica.parameters());
                assert_eq!(session.due(), Due::Round);
                has_joined.store(true, Ordering::Relaxed);
            }
            let leaves = |session: &Session| {
                let is_time = session.progress().steps >= 40;
                // A joiner is let in between two rounds.
                if is_time && !has_joined.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(2));
                }
                is_time && which == 2
            };
            let trained = train(session, &mut replica, leaves).unwrap();
            has_left.store(true, Ordering::Relaxed);
            trained
        },
        4,
    );
    let stayed: Vec<&Trained> = found.iter().filter(|trained| trained.finished.is_some()).collect();
    assert_eq!(stayed.len(), 3);
    for trained in &stayed {
        assert_eq!(trained.parameters, stayed[0].parameters);
        assert_eq!(trained.finished.as_ref().unwrap().at.rounds, 1000);
        assert_eq!(trained.rounds.last().unwrap().mixed[0].workers.len(), 3);
    }
}

/// All that took part in a round may be lost before it is recorded. One that has joined since reports it.
#[test]
fn who_joins_reports_what_is_not_recorded() {
    let settings = Settings { workers: 2, evaluate: None, ..settings("mean:period=4,pull=1", "240step") };
    let usual = grawa_session::coordinator_settings(&settings.method, settings.workers, settings.pace);
    let records = group::Settings { records: true, ..usual };
    let server =
        CoordinatorServer::new("127.0.0.1:0", Security::Plain, records, 5, Vec::new(), None).unwrap();
    let address = server.address().to_string();
    let (has_begun, takes_part) = (AtomicBool::new(false), AtomicBool::new(false));
    let train = &|which: u32| {
        while which == 2 && !has_begun.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut replica = replica(1.0);
        let session = Session::join(joiner(&address), &settings, replica.parameters()).unwrap();
        let first = session.progress().steps / 4;
        let leaves = |session: &Session| {
            let rounds = session.progress().steps / 4;
            if which == 2 {
                takes_part.fetch_or(rounds > first, Ordering::Relaxed);
                return false;
            }
            has_begun.fetch_or(rounds > 2, Ordering::Relaxed);
            // Few rounds until it is there.
            std::thread::sleep(Duration::from_millis(if rounds > 2 { 20 } else { 0 }));
            takes_part.load(Ordering::Relaxed)
        };
        train(session, &mut replica, leaves).unwrap();
        first
    };
    // Nothing is recorded until the founders are gone: no receipt is given.
    let unrecorded = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3).map(|which| scope.spawn(move || train(which))).collect();
        let (mut events, began) = (Vec::new(), std::time::Instant::now());
        let are_left = |status: &group::Status| status.workers.iter().any(|one| one.worker < 2);
        while !takes_part.load(Ordering::Relaxed) || are_left(&server.status()) {
            events.extend(server.next(Duration::from_millis(20)));
            assert!(began.elapsed() < LONG, "{:?}", server.status());
        }
        let mut rounds = Vec::new();
        while rounds.last() != Some(&60) {
            assert!(began.elapsed() < 2 * LONG, "{rounds:?}");
            if let Some(ServerEvent::Report { worker: 2, report, .. }) = server.next(LONG)
                && let Report::Shared { sequence, .. } = Report::decode(&report).unwrap()
            {
                rounds.push(sequence.rounds);
            }
        }
        drop(events);
        let since = server.status().workers.first().map(|one| (one.worker, one.since));
        let joined_after = workers.into_iter().map(|worker| worker.join().unwrap()).max().unwrap();
        assert!((1..60).contains(&joined_after), "{joined_after}");
        assert!(since.is_some_and(|(worker, since)| worker == 2 && since > joined_after), "{since:?}");
        rounds
    });
    assert_eq!(unrecorded, (1..=60).collect::<Vec<u64>>());
}

/// The others hold rounds while a worker joins. It must not evaluate what became due for them before it takes part.
#[test]
fn a_late_worker_evaluates_when_the_others_do() {
    let evaluate = Some("40step".parse().unwrap());
    let settings = Settings { workers: 2, evaluate, ..settings("mean:period=4,pull=1", "1000000step") };
    let (_server, address) = coordinator(&settings);
    let (has_begun, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let join = || {
        let mut replica = replica(1.0);
        let session = Session::join(joiner(&address), &settings, replica.parameters()).unwrap();
        (session, replica)
    };
    all(
        |which| {
            if which == 2 {
                while !has_begun.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(2));
                }
                for _ in 0..5 {
                    let (session, mut replica) = join();
                    let mut calls = 0;
                    let leaves = |_: &Session| {
                        calls += 1;
                        if calls == 1 {
                            std::thread::sleep(Duration::from_millis(60));
                        }
                        calls > 20
                    };
                    train(session, &mut replica, leaves).unwrap();
                }
                is_over.store(true, Ordering::Relaxed);
                return;
            }
            let (session, mut replica) = join();
            let ends = |session: &Session| {
                has_begun.store(session.progress().steps >= 40, Ordering::Relaxed);
                // A joiner must have the time to fetch their state between two rounds.
                std::thread::sleep(Duration::from_micros(500));
                if is_over.load(Ordering::Relaxed) {
                    session.stop().together.store(true, Ordering::Relaxed);
                    session.stop().asked.store(true, Ordering::Relaxed);
                }
                false
            };
            train(session, &mut replica, ends).unwrap();
        },
        3,
    );
}

/// At a free pace workers take steps until the coordinator calls.
#[test]
fn a_free_pace_works() {
    let settings =
        Settings { pace: Pace::Free, evaluate: None, ..settings("mean:period=8,pull=1", "64step") };
    let (_server, address) = coordinator(&settings);
    let found = all(
        |which| {
            let mut replica = replica(1.0);
            let session = Session::join(joiner(&address), &settings, replica.parameters()).unwrap();
            let slow = |_: &Session| {
                std::thread::sleep(Duration::from_millis(u64::from(1 + which)));
                false
            };
            train(session, &mut replica, slow).unwrap()
        },
        WORKERS,
    );
    for trained in &found {
        assert!(trained.finished.as_ref().unwrap().at.steps >= 64);
        assert_eq!(trained.parameters, found[0].parameters);
    }
}

/// All workers are lost; those that come after them continue from the checkpoint of one.
#[test]
fn a_checkpoint_carries_the_run_over_the_loss_of_all() {
    let settings = Settings { workers: 2, evaluate: None, ..settings("easgd:period=4", "2000step") };
    let folder = std::env::temp_dir().join(format!("grawa-session-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.join("coordinator.log");
    let server = settings.coordinate("127.0.0.1:0", Security::Plain, 5, Some(&log)).unwrap();
    let address = server.address().to_string();
    let kept = all(
        |_| {
            let mut replica = replica(1.0);
            let session = Session::join(joiner(&address), &settings, replica.parameters()).unwrap();
            let mut kept = None;
            let gone = |session: &Session| {
                kept = session.checkpoint().unwrap();
                session.progress().steps >= 40
            };
            train(session, &mut replica, gone).unwrap();
            kept.unwrap()
        },
        2,
    );
    let joined = AtomicU32::new(0);
    let found = all(
        |which| {
            let mut replica = replica(9.0);
            let checkpoint = Some(&kept[which as usize][..]);
            let session =
                Session::join_from(joiner(&address), &settings, replica.parameters(), checkpoint).unwrap();
            assert!(session.progress().steps >= 36, "{:?}", session.progress());
            joined.fetch_add(1, Ordering::Relaxed);
            // The first must not be done before the other has come.
            let slow = |_: &Session| {
                if joined.load(Ordering::Relaxed) < 2 {
                    std::thread::sleep(Duration::from_millis(5));
                }
                false
            };
            train(session, &mut replica, slow).unwrap()
        },
        2,
    );
    let _ = std::fs::remove_dir_all(&folder);
    for trained in &found {
        let end = trained.finished.as_ref().unwrap();
        assert_eq!((end.at.steps, end.at.rounds), (2000, 500));
    }
}

#[test]
fn all_can_be_asked_to_stop() {
    let settings = Settings { evaluate: None, ..settings("mean:period=4", "100000step") };
    let (_server, address) = coordinator(&settings);
    let found = all(
        |which| {
            let mut replica = replica(1.0);
            let session = Session::join(joiner(&address), &settings, replica.parameters()).unwrap();
            let stop = |session: &Session| {
                if session.progress().steps >= 20 {
                    session.stop().together.store(true, Ordering::Relaxed);
                    session.stop().asked.store(which == 0, Ordering::Relaxed);
                }
                false
            };
            train(session, &mut replica, stop).unwrap()
        },
        WORKERS,
    );
    assert!(found.iter().all(|trained| trained.finished.as_ref().unwrap().reason == Reason::Interrupted));
}

#[test]
fn one_can_be_asked_to_leave() {
    let settings = settings("mean:period=4", "16step");
    let mut replica = replica(1.0);
    let (_server, address) = coordinator(&Settings { workers: 1, ..settings.clone() });
    let settings = Settings { workers: 1, ..settings };
    let mut session = Session::join(joiner(&address), &settings, replica.parameters()).unwrap();
    local_step(&mut session, &mut replica).unwrap();
    session.stop().asked.store(true, Ordering::Relaxed);
    assert_eq!(local_step(&mut session, &mut replica).unwrap(), Due::Round);
    assert!(matches!(round(&mut session, &mut replica), Err(Error::Left)));
}

#[test]
fn wrong_use_is_named() {
    let settings = Settings { workers: 1, ..settings("lgrawa:period=4", "16step") };
    let mut x = vec![0.0; 45];
    let mut session = Session::alone(&settings, &mut x).unwrap();
    let text = session.round(&[0.0; 2], &mut x).unwrap_err().to_string();
    assert_eq!(text, "round was called, but a step is due");
    let text = Session::alone(&settings, &mut [0.0; 3]).unwrap_err().to_string();
    assert!(text.contains("the parameters") && text.contains("45"), "{text}");
    while session.due() == Due::Step {
        session.step(LocalStep::new(0.0, 0.1)).unwrap();
    }
    for scores in [&[][..], &[1.0], &[1.0; 3]] {
        let text = session.round(scores, &mut x).unwrap_err().to_string();
        assert!(text.contains("the scores"), "{text}");
    }
    for length in [0, 44, 46] {
        assert!(session.apply_prox(&mut vec![0.0; length]).is_err(), "{length}");
    }
    // What is not asked for is a mistake.
    let mean = Settings { method: "mean:period=1".parse().unwrap(), ..settings.clone() };
    let mut session = Session::alone(&mean, &mut x).unwrap();
    assert!(session.step(LocalStep { loss: 1.0, norms: &[1.0; 2], rate: 0.1 }).is_err());
    session.step(LocalStep::new(1.0, 0.1)).unwrap();
    let text = session.round(&[1.0, 2.0], &mut x).unwrap_err().to_string();
    assert!(text.contains("the scores"), "{text}");
    let wrong: [fn(Settings) -> Settings; 4] = [
        |settings| Settings { workers: 0, ..settings },
        |settings| Settings { workers: 3, ..settings },
        |settings| Settings { examples: 0, ..settings },
        |settings| Settings { batch: 0, ..settings },
    ];
    for change in wrong {
        Session::alone(&change(settings.clone()), &mut x).unwrap_err();
    }
    for method in ["dp-sgd", "lsgd:inner.group=2"] {
        let settings = Settings { method: method.parse().unwrap(), ..settings.clone() };
        let error = Session::alone(&settings, &mut x).unwrap_err();
        assert!(matches!(error, Error::NotInSession { .. }), "{error}");
    }
    let local = Settings { method: "local-lgrawa".parse().unwrap(), ..settings };
    let mut session = Session::alone(&local, &mut x).unwrap();
    assert!(session.wants_norms() && session.score_batch().is_none());
    assert!(session.step(LocalStep::new(0.0, 0.1)).is_err());
}

/// A joiner with another model is told which tensor differs.
#[test]
fn another_model_is_refused() {
    let settings = Settings { workers: 1, ..settings("mean", "16step") };
    let (_server, address) = coordinator(&settings);
    let layout = Layout::new([("a", vec![5]), ("b", vec![4, 10])]).unwrap();
    let other = Settings { layout, ..settings.clone() };
    let error = Session::join(joiner(&address), &other, &mut [0.0; 45]).unwrap_err().to_string();
    assert!(
        error.contains("tensor b is \"number 2 of shape [4, 10]\" here and \"number 2 of shape [40]\" there"),
        "{error}"
    );
    let other = Settings { method: "mean:period=7".parse().unwrap(), ..settings };
    let error = Session::join(joiner(&address), &other, &mut [0.0; 45]).unwrap_err().to_string();
    assert!(error.contains("method.period is \"7\" here and \"32\" there"), "{error}");
}

/// What is done with buffers is compared where the run has it; one that was begun before has not.
#[test]
fn another_choice_of_buffers_is_refused() {
    let with = |buffers: Option<&str>| Settings {
        workers: 1,
        buffers: buffers.map(Into::into),
        ..settings("mean", "16step")
    };
    let (_server, address) = coordinator(&with(Some("keep")));
    let join = |address: &str, buffers| Session::join(joiner(address), &with(buffers), &mut [0.0; 45]);
    let error = join(&address, Some("recalibrate")).unwrap_err().to_string();
    assert!(error.contains("buffers is \"recalibrate\" here and \"keep\" there"), "{error}");
    let (_server, before) = coordinator(&with(None));
    join(&before, Some("recalibrate")).unwrap();
}

/// A worker whose parameters are not finite is set to the centre, and must drop its momentum.
#[test]
fn a_worker_that_is_not_finite_is_replaced() {
    let settings = Settings { workers: 2, evaluate: None, ..settings("mean:period=4,pull=0.5", "8step") };
    let (_server, address) = coordinator(&settings);
    let replaced = all(
        |_| {
            let mut replica = replica(1.0);
            let mut session = Session::join(joiner(&address), &settings, replica.parameters()).unwrap();
            while session.due() == Due::Step {
                local_step(&mut session, &mut replica).unwrap();
            }
            if session.worker() == 1 {
                replica.parameters()[3] = f32::NAN;
            }
            let result = round(&mut session, &mut replica).unwrap();
            assert!(replica.copy(StateKind::Parameters).unwrap().iter().all(|x| x.is_finite()));
            let replaced = (session.worker(), result.was_replaced);
            train(session, &mut replica, |_| false).unwrap();
            replaced
        },
        2,
    );
    assert!(replaced.contains(&(0, false)) && replaced.contains(&(1, true)), "{replaced:?}");
}

/// The record holds no infinity: a worker whose loss is infinite has one fault. NaN is what a loop without losses gives.
#[test]
fn a_loss_of_infinity_is_a_fault() {
    let settings = Settings { workers: 2, evaluate: None, ..settings("mean:period=4", "12step") };
    let transports: Vec<_> =
        threads::transports(2, LONG).into_iter().map(|it| std::sync::Mutex::new(Some(it))).collect();
    let mut faults = all(
        |worker| {
            let transport = transports[worker as usize].lock().unwrap().take().unwrap();
            let mut x = vec![1.0; 45];
            let mut session = Session::over(&transport, &settings, &mut x).unwrap();
            let mut faults = Vec::new();
            while session.due() != Due::End {
                match session.due() {
                    Due::Step => {
                        let loss = if worker == 1 { f64::INFINITY } else { f64::NAN };
                        x[0] += 1.0 + worker as f32;
                        session.step(LocalStep::new(loss, 0.1)).unwrap();
                    }
                    Due::Round => faults.extend(session.round(&[], &mut x).unwrap().events),
                    Due::Evaluate => drop(session.evaluated_model(&x).unwrap()),
                    Due::End => {}
                }
            }
            session.finish().unwrap();
            faults.retain(|event| matches!(event, Event::Fault(_)));
            faults
        },
        2,
    );
    let [Event::Fault(fault)] = &faults.remove(0)[..] else { panic!("one fault is expected: {faults:?}") };
    assert_eq!((fault.at.rounds, fault.worker), (1, Some(1)));
    assert!(fault.what.starts_with("worker 1's loss is infinite"), "{}", fault.what);
}

/// A worker is scored by the mean loss of its last batches, whether losses come with the steps or later.
#[test]
fn losses_of_a_window_count_whenever_they_are_measured() {
    let settings =
        Settings { workers: 2, evaluate: None, ..settings("lsgd:period=4,score_window=4", "8step") };
    for is_late in [false, true] {
        let transports: Vec<_> =
            threads::transports(2, LONG).into_iter().map(|it| std::sync::Mutex::new(Some(it))).collect();
        let leaders = all(
            |worker| {
                let transport = transports[worker as usize].lock().unwrap().take().unwrap();
                let mut x = vec![worker as f32; 45];
                let mut session = Session::over(&transport, &settings, &mut x).unwrap();
                let mut leaders = Vec::new();
                // In the first cycle worker 1 has the smaller mean; in the second worker 0, whose last loss is larger.
                for losses in [[[9.0, 9.0, 9.0, 1.0], [2.0; 4]], [[1.0, 1.0, 1.0, 4.0], [3.0; 4]]] {
                    for loss in losses[worker as usize] {
                        match is_late {
                            true => session.step_unmeasured(0.1).unwrap(),
                            false => session.step(LocalStep::new(loss, 0.1)).unwrap(),
                        };
                    }
                    if is_late {
                        losses[worker as usize].iter().for_each(|loss| session.measured(*loss, &[]).unwrap());
                    }
                    let round = session.round(&[], &mut x).unwrap().round.unwrap();
                    leaders.push(round.mixed[0].weights[0].iter().position(|weight| *weight == 1.0));
                }
                while session.due() == Due::Evaluate {
                    session.evaluated_model(&x).unwrap();
                }
                session.finish().unwrap();
                leaders
            },
            2,
        );
        assert_eq!(leaders, [[Some(1), Some(0)], [Some(1), Some(0)]], "measured late: {is_late}");
    }
}

/// What each of three workers says of settings that one of them has in its own way.
fn over(change: impl Fn(Settings) -> Settings + Sync) -> Vec<Result<(), String>> {
    let settings = Settings { evaluate: None, ..settings("mean:period=4,pull=1", "12step") };
    let transports: Vec<_> =
        threads::transports(WORKERS, LONG).into_iter().map(|it| std::sync::Mutex::new(Some(it))).collect();
    all(
        |worker| {
            let transport = transports[worker as usize].lock().unwrap().take().unwrap();
            let settings = if worker == 1 { change(settings.clone()) } else { settings.clone() };
            let mut replica = replica(1.0);
            let mut x = vec![1.0; settings.layout.len()];
            match Session::over(&transport, &settings, &mut x) {
                Ok(session) => train(session, &mut replica, |_| false).map(|_| ()).map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            }
        },
        WORKERS,
    )
}

/// Every setting counts. All workers are told what differs, and nobody waits.
#[test]
fn workers_with_other_settings_are_all_told_what_differs() {
    type Change = fn(Settings) -> Settings;
    let changes: [(&str, Change); 16] = [
        ("seed is 0 on worker 1 and 7 on worker 0", |s| Settings { seed: 0, ..s }),
        ("method.period is \"3\" on worker 1 and \"4\" on worker 0", |s| Settings {
            method: "mean:period=3,pull=1".parse().unwrap(),
            ..s
        }),
        ("method.name is \"lgrawa\"", |s| Settings {
            method: "lgrawa:period=4,pull=1".parse().unwrap(),
            ..s
        }),
        // Refused by itself: also then the others do not wait.
        ("method.name is \"dp-sgd\"", |s| Settings { method: "dp-sgd".parse().unwrap(), ..s }),
        ("budget is", |s| Settings { budget: "13step".parse().unwrap(), ..s }),
        ("evaluate is", |s| Settings { evaluate: Some("4step".parse().unwrap()), ..s }),
        ("batch is 2", |s| Settings { batch: 2, ..s }),
        ("examples is 9", |s| Settings { examples: 9, ..s }),
        ("examples is 0", |s| Settings { examples: 0, ..s }),
        ("workers is 4 on worker 1 and 3 on worker 0", |s| Settings { workers: 4, ..s }),
        ("pace is", |s| Settings { pace: Pace::Free, ..s }),
        ("name is", |s| Settings { name: "another".into(), ..s }),
        ("statistics m is", |s| Settings { statistics: Some(Layout::new([("m", vec![2])]).unwrap()), ..s }),
        ("buffers is \"keep\" on worker 1", |s| Settings { buffers: Some("keep".into()), ..s }),
        (
            "tensor a is \"number 2 of shape [5]\" on worker 1 and \"number 1 of shape [5]\" on worker 0",
            |s| Settings { layout: Layout::new([("b", vec![40]), ("a", vec![5])]).unwrap(), ..s },
        ),
        ("tensor b is \"number 2 of shape [4, 10]\"", |s| Settings {
            layout: Layout::new([("a", vec![5]), ("b", vec![4, 10])]).unwrap(),
            ..s
        }),
    ];
    for (expected, change) in changes {
        for (worker, found) in over(change).into_iter().enumerate() {
            let text = found.expect_err(expected);
            assert!(text.contains(expected), "worker {worker}: {text}");
        }
    }
    assert_eq!(over(|settings| settings), [Ok(()), Ok(()), Ok(())]);
}

/// More processes than workers, and more numbers than the layout has.
#[test]
fn numbers_that_do_not_fit_are_told_to_all() {
    let settings = Settings { evaluate: None, ..settings("mean:period=4", "12step") };
    for (workers, lengths, expected) in [
        (4, [45, 45, 45], "3 processes are connected, and the settings have 4 workers"),
        (3, [45, 44, 45], "the number of parameters is 44 on worker 1 and 45 on worker 0"),
    ] {
        let settings = Settings { workers, ..settings.clone() };
        let transports: Vec<_> = threads::transports(WORKERS, LONG)
            .into_iter()
            .map(|it| std::sync::Mutex::new(Some(it)))
            .collect();
        let found = all(
            |worker| {
                let transport = transports[worker as usize].lock().unwrap().take().unwrap();
                let mut x = vec![0.0; lengths[worker as usize]];
                Session::over(&transport, &settings, &mut x).unwrap_err().to_string()
            },
            WORKERS,
        );
        assert!(found.iter().all(|text| text.contains(expected)), "{found:?}");
    }
}

/// Methods that go by the learning rate do not train without one.
#[test]
fn a_method_that_goes_by_the_rate_needs_one() {
    let by_rate = ["slowmo", "qsr", "lgrawa:qsr=0.2", "mean:centre=outer,by_rate=true,pull=1"];
    for method in by_rate {
        let settings = Settings { workers: 1, evaluate: None, ..settings(method, "400step") };
        let mut x = vec![1.0; 45];
        for rate in [f64::NAN, -0.1, f64::INFINITY] {
            let mut session = Session::alone(&settings, &mut x).unwrap();
            for _ in 0..2 {
                let text = session.step(LocalStep::new(1.0, rate)).unwrap_err().to_string();
                assert!(text.contains("the learning rate of a step is"), "{text}");
            }
        }
        let mut session = Session::alone(&settings, &mut x).unwrap();
        while session.due() == Due::Step {
            session.step(LocalStep::new(1.0, 0.0)).unwrap();
        }
        let scores = vec![1.0; if session.score_batch().is_some() { 2 } else { 0 }];
        let text = session.round(&scores, &mut x).unwrap_err().to_string();
        assert!(
            text.contains("goes by the learning rate") && text.contains(&settings.method.to_string()),
            "{text}"
        );
        // A warm-up begins at 0.
        let mut session = Session::alone(&settings, &mut x).unwrap();
        session.step(LocalStep::new(1.0, 0.0)).unwrap();
        while session.due() == Due::Step {
            session.step(LocalStep::new(1.0, 0.1)).unwrap();
        }
        session.round(&scores, &mut x).unwrap();
    }
    // Others only record it.
    let settings = Settings { workers: 1, evaluate: None, ..settings("mean:period=4", "4step") };
    let mut x = vec![1.0; 45];
    let mut session = Session::alone(&settings, &mut x).unwrap();
    while session.due() == Due::Step {
        session.step(LocalStep::new(1.0, 0.0)).unwrap();
    }
    session.round(&[], &mut x).unwrap();
}

/// A schedule may end inside a cycle: the steps before are not undone. Steps that train without a rate would be.
#[test]
fn a_rate_of_zero_undoes_nothing() {
    let method = "slowmo:period=2,momentum=0.5";
    let settings = Settings { workers: 1, evaluate: None, ..settings(method, "400step") };
    // A cycle of two steps of this kind after one at 0.1; how far all go from 1.
    let found = [([0.1, 0.0], true), ([0.0, 0.1], true), ([0.0, 0.0], false), ([0.0, 0.0], true)].map(
        |(rates, trains)| {
            let mut x = vec![1.0; 45];
            let mut session = Session::alone(&settings, &mut x).unwrap();
            for (rates, trains) in [([0.1, 0.1], true), (rates, trains)] {
                for rate in rates {
                    x.iter_mut().filter(|_| trains).for_each(|x| *x -= 0.25);
                    session.step(LocalStep::new(1.0, rate)).unwrap();
                }
                session.round(&[], &mut x).map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(1.0 - x[0])
        },
    );
    // v ← Δ/γ + v/2 and x ← x − γ·v: 0.5, then 0.5 + 0.25 more.
    for (at, expected) in [1.25, 1.25, 0.5].into_iter().enumerate() {
        assert!((found[at].clone().unwrap() - expected).abs() < 1e-5, "{found:?}");
    }
    assert!(found[3].clone().unwrap_err().contains("goes by the learning rate"), "{found:?}");
}

/// Without training nothing changes, however differences are sent: the first centre is the model itself.
#[test]
fn differences_do_not_round_the_model_that_all_start_from() {
    for method in ["mean:period=4,pull=1", "easgd:period=4", "diloco:period=4", "lgrawa:period=4"] {
        let settings = Settings { wire: grawa_session::Format::Bf16, ..settings(method, "16step") };
        let (_server, address) = coordinator(&settings);
        let own: Vec<f32> = (0..45).map(|at| 1.0 + 0.001_234_5 * at as f32).collect();
        let found = all(
            |_| {
                let mut x = own.clone();
                let mut session = Session::join(joiner(&address), &settings, &mut x).unwrap();
                loop {
                    match session.due() {
                        Due::Step => {
                            let norms = vec![1.0; if session.wants_norms() { 2 } else { 0 }];
                            session.step(LocalStep { norms: &norms, ..LocalStep::new(1.0, 0.1) }).unwrap();
                        }
                        Due::Round => {
                            let scores = vec![1.0; if session.score_batch().is_some() { 2 } else { 0 }];
                            session.round(&scores, &mut x).unwrap();
                        }
                        Due::Evaluate => drop(session.evaluated_model(&x).unwrap()),
                        Due::End => break,
                    }
                }
                session.finish().unwrap();
                x
            },
            WORKERS,
        );
        // A mean of three equal numbers is rounded; bf16 would be wrong by up to 0.4 %.
        let is_own = |x: &Vec<f32>| x.iter().zip(&own).all(|(x, own)| (x - own).abs() < 1e-6);
        assert!(found.iter().all(is_own), "{method}: {found:?}");
    }
}

/// Between a round and the evaluation after it the state that others can take is that before the round, and so is its centre.
#[test]
fn a_checkpoint_is_one_state() {
    let settings = Settings { workers: 1, ..settings("mean:period=4,pull=1", "16step") };
    let (_server, address) = coordinator(&settings);
    let mut replica = replica(1.0);
    let mut session = Session::join(joiner(&address), &settings, replica.parameters()).unwrap();
    let (mut before, mut compared) = (None, 0);
    while session.due() != Due::End {
        match session.due() {
            Due::Step => {
                before = session.checkpoint().unwrap();
                local_step(&mut session, &mut replica).unwrap();
            }
            Due::Round => drop(round(&mut session, &mut replica).unwrap()),
            _ => {
                // At the end of a run its last state is published before it is evaluated.
                if session.progress().steps < 16 {
                    assert_eq!(session.checkpoint().unwrap(), before);
                    compared += 1;
                }
                session.evaluated_model(replica.parameters()).unwrap();
            }
        }
    }
    assert_eq!(compared, 1);
}
