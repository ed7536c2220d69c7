//! How a run of sessions ends: with stragglers, joiners, a coordinator that is gone, and workers that ask all to stop.

#![allow(clippy::unwrap_used)]

use grawa_comm::group::{CoordinatorServer, Joiner, RoundWait, Security};
use grawa_core::{Evaluate, Layout};
use grawa_session::event::{Event, Finished, Reason};
use grawa_session::{Due, Error, LocalStep, Session, Settings};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WORKERS: u32 = 3;
const BUDGET: u64 = 40;
const LONG: Duration = Duration::from_secs(60);
/// Longer than the others wait for a worker that is late for a round.
const STALL: Duration = Duration::from_millis(400);

fn layout() -> Layout {
    Layout::new([("a", vec![3]), ("b", vec![4])]).unwrap()
}

fn settings(method: &str, budget: &str) -> Settings {
    let (method, budget) = (method.parse().unwrap(), budget.parse().unwrap());
    Settings { workers: WORKERS, ..Settings::new(method, layout(), WORKERS, budget) }
}

/// A coordinator that begins a round 100 ms after the first worker has arrived.
fn coordinator(founders: u32) -> CoordinatorServer {
    let wait = Duration::from_millis(100);
    let round_wait = RoundWait { shortest: wait, longest: wait, ..RoundWait::default() };
    let limits = grawa_comm::group::Settings { founders, round_wait, ..Default::default() };
    CoordinatorServer::new("127.0.0.1:0", Security::Plain, limits, 5, Vec::new(), None).unwrap()
}

fn join(server: &CoordinatorServer, settings: &Settings, x: &mut [f32]) -> Result<Session, Error> {
    join_within(LONG, server, settings, x)
}

fn join_within(
    patience: Duration,
    server: &CoordinatorServer,
    settings: &Settings,
    x: &mut [f32],
) -> Result<Session, Error> {
    let address = server.address().to_string();
    let joiner = Joiner::new(&address, Security::Plain, "127.0.0.1:0", None, patience).unwrap();
    Session::join(joiner, settings, x)
}

/// What a worker has when its loop ends.
#[derive(Debug)]
struct End {
    worker: u32,
    members: Vec<u32>,
    x: Vec<f32>,
    model: Option<Vec<f32>>,
    centre: Vec<f32>,
    was_late: bool,
    finished: Finished,
}

/// Trains to the end; `before` is called before each step with how many were taken here.
fn train(mut session: Session, mut x: Vec<f32>, mut before: impl FnMut(u64, &Session)) -> Result<End, Error> {
    let (mut steps, mut model, mut was_late) = (0, None, false);
    let spans = layout().spans().len();
    while session.due() != Due::End {
        match session.due() {
            Due::Step => {
                before(steps, &session);
                let pull = 1.0 + session.worker() as f32;
                x.iter_mut().for_each(|x| *x -= 0.1 * (*x - pull));
                steps += 1;
                let norms = vec![f64::from(pull); if session.wants_norms() { spans } else { 0 }];
                session.step(LocalStep { loss: f64::from(pull), norms: &norms, rate: 0.1 })?;
            }
            Due::Round => {
                let scores = session.score_batch().map_or(0, |_| spans);
                let result = session.round(&vec![1.0; scores], &mut x)?;
                let late = |event: &Event| matches!(event, Event::Fault(fault) if fault.what.contains("was late for the end"));
                was_late |= result.events.iter().any(late);
            }
            Due::Evaluate => model = session.evaluated_model(&x)?,
            Due::End => {}
        }
    }
    let (worker, members, centre) = (session.worker(), session.members(), session.centre().to_vec());
    Ok(End { worker, members, x, model, centre, was_late, finished: session.finish()? })
}

fn on_threads<T: Send>(count: u32, work: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..count).map(|which| scope.spawn(move || work(which))).collect();
        running.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

/// All have one model and one first worker, and the model is that of the workers of the last round.
fn check_end(what: &str, settings: &Settings, ends: &[End]) {
    let members: Vec<u32> = ends.iter().map(|end| end.worker).collect::<BTreeSet<_>>().into_iter().collect();
    assert_eq!(members.len(), ends.len(), "{what}: {ends:?}");
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let model = ends[0].model.clone().unwrap_or_else(|| panic!("{what}: no model: {ends:?}"));
    for end in ends {
        assert_eq!(end.members, members, "{what}");
        assert_eq!(end.model.as_deref().map(bits), Some(bits(&model)), "{what}: {ends:?}");
        assert_eq!((end.finished.reason, end.finished.at.steps), (Reason::Spent, BUDGET), "{what}");
        if end.was_late {
            assert_eq!(bits(&end.x), bits(&end.centre[..end.x.len()]), "{what}: it took the final centre");
        }
    }
    if settings.method.evaluate == Evaluate::Mean {
        let took_part: Vec<&End> = ends.iter().filter(|end| !end.was_late).collect();
        for (at, found) in model.iter().enumerate() {
            let sum: f64 = took_part.iter().map(|end| f64::from(end.x[at])).sum();
            let expected = sum / took_part.len() as f64;
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{what}: {found} for {expected}: {ends:?}");
        }
    } else if settings.method.evaluate == Evaluate::Centre {
        assert_eq!(bits(&model), bits(&ends[0].centre[..model.len()]), "{what}");
    }
}

/// A straggler at each of the last 20 steps of a run of three: 20 runs of each method.
fn straggle(method: &str) {
    let settings = settings(method, &format!("{BUDGET}step"));
    let mut late = 0;
    for stall_at in BUDGET - 20..BUDGET {
        let server = coordinator(WORKERS);
        let ends = on_threads(WORKERS, |which| {
            let mut x = vec![f32::from(which as u8); layout().len()];
            let session = join(&server, &settings, &mut x).unwrap();
            train(session, x, |step, _| {
                if which == 2 && step == stall_at {
                    std::thread::sleep(STALL);
                }
            })
            .unwrap()
        });
        check_end(&format!("{method}, stalled at step {stall_at}"), &settings, &ends);
        late += ends.iter().filter(|end| end.was_late).count();
    }
    // Those of the last cycle, at least where the machine is no straggler itself.
    assert!(late >= 3, "{method}: {late} were late for the end");
}

#[test]
fn a_straggler_ends_with_the_model_of_all_easgd_and_lsgd() {
    on_threads(2, |which| straggle(["easgd:period=4", "lsgd:period=4"][which as usize]));
}

#[test]
fn a_straggler_ends_with_the_model_of_all_mean_and_lgrawa() {
    on_threads(2, |which| straggle(["mean:period=4,pull=0.5", "lgrawa:period=4"][which as usize]));
}

/// Also where the budget ends inside a cycle.
#[test]
fn a_straggler_ends_with_the_model_of_all_diloco_and_a_broken_cycle() {
    on_threads(2, |which| straggle(["diloco:period=4", "mean:period=6,pull=1"][which as usize]));
}

/// Waits until some are at the final barrier, where they wait for the straggler.
fn await_final_barrier(server: &CoordinatorServer) {
    let began = Instant::now();
    while server.status().committed.is_none_or(|committed| committed.op == 0)
        || !server.status().reason.contains("final barrier")
    {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", server.status().reason);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A worker that joins while the others wait at the end gets the model like all.
#[test]
fn a_joiner_at_the_end_has_the_model_of_all() {
    let settings = settings("mean:period=4,pull=0.5", &format!("{BUDGET}step"));
    let server = coordinator(WORKERS);
    let ends = on_threads(WORKERS + 1, |which| {
        let mut x = vec![f32::from(which as u8); layout().len()];
        if which == WORKERS {
            await_final_barrier(&server);
        }
        let session = join(&server, &settings, &mut x).unwrap();
        let end = train(session, x, |step, _| {
            if which == 2 && step == BUDGET - 2 {
                std::thread::sleep(Duration::from_secs(2));
            }
        });
        let mut end = end.unwrap();
        // It has taken no step that could be dropped, and has no part in the mean either.
        end.was_late |= which == WORKERS;
        end
    });
    check_end("a joiner", &settings, &ends);
    assert_eq!(ends[0].members.len(), 4);
}

/// The budget counts on by the worker's own steps, or its own clock, and the share of it never exceeds 1.
#[test]
fn a_worker_without_a_coordinator_ends_at_its_budget() {
    for budget in ["30step", "2s"] {
        let settings = Settings { workers: 1, ..settings("mean:period=4", budget) };
        let mut server = Some(coordinator(1));
        let mut x = vec![1.0; layout().len()];
        let patience = Duration::from_secs(1);
        let mut session = join_within(patience, server.as_ref().unwrap(), &settings, &mut x).unwrap();
        let (began, mut elapsed) = (Instant::now(), Duration::ZERO);
        while session.due() != Due::End {
            match session.due() {
                Due::Step => {
                    std::thread::sleep(Duration::from_millis(20));
                    session.step(LocalStep::new(1.0, 0.1)).map(drop).unwrap();
                }
                Due::Round => drop(session.round(&[], &mut x).unwrap()),
                _ => drop(session.evaluated_model(&x).unwrap()),
            }
            if session.progress().steps >= 8 {
                drop(server.take());
            }
            assert!(session.progress().elapsed >= elapsed, "the clock goes on");
            elapsed = session.progress().elapsed;
            assert!(began.elapsed() < LONG, "{budget}: {:?}", session.progress());
        }
        assert!(session.has_ended_alone(), "{budget}: {:?}", session.progress());
        if budget == "30step" {
            assert_eq!(session.progress().steps, 30);
        }
        assert_eq!(session.finish().unwrap().reason, Reason::Spent);
    }
}

/// Founders are not awaited for ever, and the message says how many have come.
#[test]
fn founders_that_do_not_come_are_not_awaited_for_ever() {
    let server = coordinator(WORKERS);
    let settings = settings("mean:period=4", "40step");
    let errors = on_threads(2, |_| {
        let mut x = vec![1.0; layout().len()];
        join_within(Duration::from_millis(300), &server, &settings, &mut x).map(drop).unwrap_err().to_string()
    });
    let found = errors.iter().any(|error| error.contains("2 of the 3 workers that the run begins with"));
    assert!(found, "{errors:?}");
}

/// Who asks all to stop, and whether it leaves its loop at once; and who is late for it.
#[derive(Clone, Copy, Debug)]
enum Asks {
    Worker(u32),
    Leaves(u32),
    Coordinator,
}

/// All stop together: one state on all, one first worker, and nobody is refused.
#[test]
fn a_stop_is_an_orderly_end() {
    let settings = settings("mean:period=4,pull=0.5", "1000000step");
    let whole = [
        (Asks::Worker(1), Some(2)),
        (Asks::Leaves(0), None),
        (Asks::Leaves(0), Some(1)),
        (Asks::Coordinator, Some(0)),
        (Asks::Leaves(2), Some(2)),
    ];
    for (asks, late) in whole {
        let server = coordinator(WORKERS);
        let ends = on_threads(WORKERS, |which| {
            let mut x = vec![f32::from(which as u8); layout().len()];
            let mut session = join(&server, &settings, &mut x).unwrap();
            let mut steps = 0;
            while session.due() != Due::End {
                if session.due() == Due::Step {
                    steps += 1;
                    if steps == 30 && late == Some(which) {
                        std::thread::sleep(STALL);
                    }
                    x.iter_mut().for_each(|x| *x -= 0.1 * (*x - 1.0 - session.worker() as f32));
                    session.step(LocalStep::new(1.0, 0.1)).unwrap();
                    let is_asked = match asks {
                        Asks::Worker(worker) | Asks::Leaves(worker) => worker == which,
                        Asks::Coordinator => which == 1,
                    };
                    if steps != 30 || !is_asked {
                        continue;
                    }
                    if let Asks::Coordinator = asks {
                        server.ask_to_stop();
                        continue;
                    }
                    let stop = session.stop();
                    stop.together.store(true, Ordering::Relaxed);
                    stop.asked.store(true, Ordering::Relaxed);
                    if let Asks::Leaves(_) = asks {
                        session.end_stopped().unwrap();
                    }
                } else {
                    session.round(&[], &mut x).unwrap();
                }
            }
            assert!(!session.has_ended_alone(), "{asks:?}, {late:?} is late");
            let (worker, centre) = (session.worker(), session.centre().to_vec());
            let (finished, members) = session.finish_with_members().unwrap();
            End { worker, members, x, model: None, centre, was_late: false, finished }
        });
        let what = format!("{asks:?}, {late:?} is late: {ends:?}");
        for end in &ends {
            assert_eq!(end.members, [0, 1, 2], "{what}");
            assert_eq!(end.centre, ends[0].centre, "{what}");
            assert_eq!(
                (end.finished.reason, end.finished.at),
                (Reason::Interrupted, ends[0].finished.at),
                "{what}"
            );
        }
        let by_member = server.status().is_stopped_by_member;
        assert_eq!(by_member, !matches!(asks, Asks::Coordinator), "{what}");
    }
}

/// One that comes while the others wait at the end of a run that was stopped.
#[test]
fn a_joiner_at_a_stop_has_the_state_of_all() {
    let settings = settings("mean:period=4,pull=0.5", "1000000step");
    let server = coordinator(WORKERS);
    let straggles = AtomicBool::new(false);
    let ends = on_threads(WORKERS + 1, |which| {
        let mut x = vec![f32::from(which as u8); layout().len()];
        if which == WORKERS {
            await_final_barrier(&server);
        }
        let session = join(&server, &settings, &mut x).unwrap();
        train(session, x, |step, _| match (which, step) {
            // Only then: a straggler that hears of the stop first does not straggle.
            (0, 30) => {
                while !straggles.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                server.ask_to_stop();
            }
            (2, 30) => {
                straggles.store(true, Ordering::Relaxed);
                std::thread::sleep(Duration::from_secs(2));
            }
            _ => {}
        })
        .unwrap()
    });
    for end in &ends {
        assert_eq!((end.members.len(), &end.centre), (4, &ends[0].centre), "{ends:?}");
        assert_eq!(end.finished.reason, Reason::Interrupted);
    }
}

/// A worker that others went on without finds neither them nor the coordinator: it ends at its budget.
#[test]
fn a_worker_that_was_left_behind_and_alone_ends_at_its_budget() {
    let settings = Settings { workers: 2, ..settings("mean:period=4", "60step") };
    let server = std::sync::Mutex::new(Some(coordinator(2)));
    let (done, ended) = std::sync::mpsc::channel();
    let began = Instant::now();
    std::thread::spawn(move || {
        let ends = on_threads(2, |which| {
            let mut x = vec![1.0; layout().len()];
            let patience = Duration::from_secs(1);
            let mut session = {
                let address = server.lock().unwrap().as_ref().unwrap().address().to_string();
                let joiner = Joiner::new(&address, Security::Plain, "127.0.0.1:0", None, patience).unwrap();
                Session::join(joiner, &settings, &mut x).unwrap()
            };
            let mut steps = 0;
            while session.due() != Due::End {
                match session.due() {
                    Due::Step => {
                        steps += 1;
                        if which == 0 && steps == 40 {
                            drop(server.lock().unwrap().take());
                            return true;
                        }
                        if which == 1 && steps == 22 {
                            while server.lock().unwrap().is_some() {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                        }
                        session.step(LocalStep::new(1.0, 0.1)).map(drop).unwrap();
                    }
                    Due::Round => drop(session.round(&[], &mut x).unwrap()),
                    _ => drop(session.evaluated_model(&x).unwrap()),
                }
            }
            session.has_ended_alone()
                && !session.has_missed_end()
                && !session.members().contains(&session.worker())
        });
        done.send(ends).unwrap();
    });
    assert_eq!(ended.recv_timeout(LONG).unwrap(), [true, true], "after {:?}", began.elapsed());
}

/// A worker asks all to stop and leaves at once, without a further round; or the coordinator asks.
#[test]
fn all_stop_together_whoever_asks() {
    for by_worker in [true, false] {
        let settings = settings("mean:period=4", "1000000step");
        let server = coordinator(WORKERS);
        let reasons = on_threads(WORKERS, |which| {
            let mut x = vec![1.0; layout().len()];
            let mut session = join(&server, &settings, &mut x).unwrap();
            if which != 0 {
                let end = train(session, x, |_, _| std::thread::sleep(Duration::from_millis(1)));
                return Some(end.unwrap().finished.reason);
            }
            while session.progress().steps < 40 {
                match session.due() {
                    Due::Step => drop(session.step(LocalStep::new(1.0, 0.1)).unwrap()),
                    _ => drop(session.round(&[], &mut x).unwrap()),
                }
            }
            if by_worker {
                let stop = session.stop();
                stop.together.store(true, Ordering::Relaxed);
                stop.asked.store(true, Ordering::Relaxed);
                return None;
            }
            server.ask_to_stop();
            Some(train(session, x, |_, _| ()).unwrap().finished.reason)
        });
        let rest = if by_worker { &reasons[1..] } else { &reasons[..] };
        assert!(rest.iter().all(|reason| *reason == Some(Reason::Interrupted)), "{reasons:?}");
    }
}
