//! A member whose messages can be read, and do not fit: the others finish, and it is named.

#![allow(clippy::unwrap_used)]

use super::{Due, LocalStep, Session};
use crate::elastic::{Counts, Remembered};
use crate::event::{Finished, Reason};
use crate::membership::Membership;
use crate::round_message::{ProcessMessage, decode, encode};
use crate::{Error, Pace, Settings};
use grawa_comm::group::{
    CoordinatorEvent, CoordinatorServer, Joiner, RoundWait, Security, ServerEvent, TransferOptions,
};
use grawa_comm::{Check, Collective, Elastic, Error as CommError, Gathered, Heartbeat, Lost, Outcome};
use grawa_core::{Layout, Memory, Plan};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const WORKERS: u32 = 4;
const LONG: Duration = Duration::from_secs(60);

/// Which messages are altered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum To {
    All,
    View,
    FinalBarrier,
    Finish,
}

type Alter = Box<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// What a member says in place of its messages, at which call of the session and to whom.
struct Lie {
    at: (Due, To),
    alter: Alter,
    now: Mutex<Due>,
}

impl Lie {
    fn new<T: Serialize + DeserializeOwned>(
        at: (Due, To),
        change: impl Fn(&mut T) + Send + Sync + 'static,
    ) -> Self {
        let alter = move |bytes: &[u8]| {
            let mut message = decode::<T>(0, bytes).ok()?;
            change(&mut message);
            encode(&message).ok()
        };
        Lie { at, alter: Box::new(alter), now: Mutex::new(Due::Step) }
    }

    fn of(&self, to: To, message: &[u8]) -> Vec<u8> {
        let is_it = (*self.now.lock().unwrap(), to) == self.at;
        is_it.then(|| (self.alter)(message)).flatten().unwrap_or_else(|| message.to_vec())
    }
}

/// A member's end of the group, through which it lies. It finds nothing wrong with any message.
struct Lying<C: ?Sized>(Box<C>, To, Arc<Lie>);

impl<C: Collective + ?Sized> Collective for Lying<C> {
    fn id(&self) -> u32 {
        self.0.id()
    }

    fn members(&self) -> &[u32] {
        self.0.members()
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, CommError> {
        self.0.gather(&self.2.of(self.1, message))
    }

    fn gather_readable(&mut self, message: &[u8], _: Check<'_>) -> Result<Gathered, CommError> {
        self.gather(message)
    }

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> Result<Outcome, CommError> {
        self.0.mix(plan, layout, mine)
    }

    fn centre(&self) -> &Arc<Vec<f32>> {
        self.0.centre()
    }

    fn heartbeat(&self) -> Heartbeat {
        self.0.heartbeat()
    }

    fn forget(&self, lost: &Lost) {
        self.0.forget(lost);
    }
}

impl Elastic for Lying<dyn Elastic> {
    fn round_due(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        self.0.round_due()
    }

    fn next_operation(&self) -> u64 {
        self.0.next_operation()
    }

    fn newest_centre(&self) -> Result<Arc<Vec<f32>>, CommError> {
        self.0.newest_centre()
    }

    fn set_workers(&mut self, workers: u32) {
        self.0.set_workers(workers);
    }

    fn publish(&mut self, memory: &[u8]) -> Result<(), CommError> {
        self.0.publish(memory)
    }

    fn keep_reports(&mut self, reports: Vec<u8>) {
        self.0.keep_reports(reports);
    }

    fn kept_reports(&self) -> Vec<u8> {
        self.0.kept_reports()
    }

    fn final_barrier(&mut self, message: &[u8], _: Check<'_>) -> Result<Gathered, CommError> {
        self.0.final_barrier(&self.2.of(To::FinalBarrier, message), &|_, _| Ok(()))
    }

    fn finish(&mut self, message: &[u8], _: Check<'_>) -> Result<Gathered, CommError> {
        self.0.finish(&self.2.of(To::Finish, message), &|_, _| Ok(()))
    }

    fn rejoin(&mut self) -> Result<Vec<u8>, CommError> {
        self.0.rejoin()
    }
}

fn layout() -> Layout {
    Layout::new([("a", vec![3]), ("b", vec![4])]).unwrap()
}

fn settings() -> Settings {
    let (method, budget) = ("mgrawa:period=4".parse().unwrap(), "12step".parse().unwrap());
    Settings {
        workers: WORKERS,
        evaluate: Some("4step".parse().unwrap()),
        statistics: Some(Layout::new([("bn.running_mean", vec![2]), ("bn.running_var", vec![2])]).unwrap()),
        ..Settings::new(method, layout(), WORKERS, budget)
    }
}

fn join(server: &CoordinatorServer) -> Joiner {
    Joiner::new(&server.address().to_string(), Security::Plain, "127.0.0.1:0", None, LONG).unwrap()
}

fn train(server: &CoordinatorServer, settings: &Settings, lie: Option<&Arc<Lie>>) -> Result<Finished, Error> {
    let mut x = vec![1.0; layout().len()];
    let mut session = Session::join(join(server), settings, &mut x)?;
    if let Some(lie) = lie {
        let membership = std::mem::replace(&mut session.process.membership, Membership::Alone);
        let Membership::Elastic(all, state) = membership else { unreachable!() };
        let all = Box::new(Lying(all, To::All, Arc::clone(lie)));
        session.process.membership = Membership::Elastic(all, state);
        let lying = |view| Box::new(Lying(view, To::View, Arc::clone(lie))) as Box<dyn Collective>;
        session.process.view = session.process.view.take().map(lying);
    }
    loop {
        if let Some(lie) = lie {
            *lie.now.lock().unwrap() = session.due();
        }
        match session.due() {
            Due::Step => {
                x.iter_mut().for_each(|x| *x *= 0.9);
                session.step(LocalStep::new(1.0, 0.1))?;
            }
            Due::Round => drop(session.round(&[1.0, 2.0], &mut x)?),
            Due::Evaluate => drop(session.evaluate(&x, &[1.0; 4])?),
            Due::End => return session.finish(),
        }
    }
}

/// How the run ended for three members, and who was named with which reasons.
type Ended = (Vec<Result<Finished, Error>>, Vec<(u32, String)>);

/// How the run ended for three, and who was named with which reasons, where the fourth member is this one.
fn run(settings: &Settings, liar: impl FnOnce(&CoordinatorServer) + Send) -> Ended {
    let wait = Duration::from_millis(100);
    let round_wait = RoundWait { shortest: wait, longest: wait, ..RoundWait::default() };
    let limits = grawa_comm::group::Settings { founders: WORKERS, round_wait, ..Default::default() };
    let server = CoordinatorServer::new("127.0.0.1:0", Security::Plain, limits, 5, Vec::new(), None).unwrap();
    let ends = std::thread::scope(|scope| {
        let server = &server;
        let liar = scope.spawn(move || liar(server));
        let honest: Vec<_> =
            (1..WORKERS).map(|_| scope.spawn(move || train(server, settings, None))).collect();
        let ends = honest.into_iter().map(|thread| thread.join().unwrap()).collect();
        // It may end by its own lies.
        let _ = liar.join();
        ends
    });
    let events = std::iter::from_fn(|| server.next(Duration::from_millis(1)));
    let named = events.filter_map(|event| match event {
        ServerEvent::Decision(CoordinatorEvent::Unreadable { worker, why }) => Some((worker, why)),
        _ => None,
    });
    (ends, named.collect())
}

/// One of four lies. Returns who was named.
fn lies(settings: &Settings, lie: Lie) -> Ended {
    let lie = Arc::new(lie);
    // The others drop it, and in the end refuse it.
    run(settings, move |server| drop(train(server, settings, Some(&lie))))
}

/// The three have the end of the run, and one other was named, for this reason.
fn check(what: &str, (ends, named): Ended, why: &str) {
    for end in &ends {
        let end = end.as_ref().unwrap_or_else(|error| panic!("{what}: {error}; {named:?}"));
        assert_eq!((end.reason, end.at.steps), (Reason::Spent, 12), "{what}: {named:?}");
    }
    let named: Vec<_> = named
        .iter()
        .filter(|(worker, told)| {
            assert!(
                told.contains(&format!("what worker {worker} sent")) && told.contains(why),
                "{what}: {told}"
            );
            true
        })
        .collect();
    assert!(!named.is_empty() && named.iter().all(|(worker, _)| *worker == named[0].0), "{what}: {named:?}");
}

fn another(worker: u32) -> u32 {
    u32::from(worker == 0)
}

type View = Vec<(u32, f64, bool)>;
type Numbers = Vec<(u32, Vec<f64>)>;

#[test]
fn a_report_that_does_not_fit_drops_its_sender() {
    let at = (Due::Round, To::All);
    let of = |change: fn(&mut ProcessMessage)| Lie::new(at, change);
    for (what, why, lie) in [
        ("two scores", "reports 2 scores, and 1 are needed", of(|it| it.workers[0].1.scores.push(1.0))),
        ("no score", "reports 0 scores", of(|it| it.workers[0].1.scores.clear())),
        ("another's number", "speaks for 1 workers", of(|it| it.workers[0].0 = another(it.workers[0].0))),
        ("twice", "speaks for 2 workers", of(|it| it.workers.push(it.workers[0].clone()))),
        ("no worker", "speaks for 0 workers", of(|it| it.workers.clear())),
        ("a time", "reports NaN s of wait", of(|it| it.workers[0].1.tally.times.wait = f64::NAN)),
        ("a clock", "its clock is at NaN s", of(|it| it.elapsed = f64::NAN)),
        ("a clock before 0", "its clock is at -1e300 s", of(|it| it.elapsed = -1e300)),
    ] {
        check(what, lies(&settings(), lie), why);
    }
}

#[test]
fn what_does_not_fit_in_an_evaluation_drops_its_sender() {
    let (view, numbers) = ((Due::Evaluate, To::View), (Due::Evaluate, To::All));
    let view = |change: fn(&mut View)| Lie::new(view, change);
    let numbers = |change: fn(&mut Numbers)| Lie::new(numbers, change);
    for (what, why, lie) in [
        ("another's number", "speaks for 1 workers", view(|it| it[0].0 = another(it[0].0))),
        ("twice", "speaks for 2 workers", view(|it| it.push(it[0]))),
        ("no worker", "speaks for 0 workers", view(Vec::clear)),
        ("three numbers", "sends 3 numbers, and 4 are needed", numbers(|it| it[0].1.truncate(3))),
        ("no numbers", "sends 0 numbers", numbers(|it| it[0].1.clear())),
        ("another's numbers", "speaks for 1 workers", numbers(|it| it[0].0 = another(it[0].0))),
        ("nobody's numbers", "speaks for 0 workers", numbers(Vec::clear)),
    ] {
        check(what, lies(&settings(), lie), why);
    }
}

#[test]
fn what_does_not_fit_at_the_end_drops_its_sender() {
    let (barrier, finish) = ((Due::Round, To::FinalBarrier), (Due::End, To::Finish));
    let of = |at, change: fn(&mut ProcessMessage)| Lie::new(at, change);
    for at in [barrier, finish] {
        for (what, why, lie) in [
            ("a score", "reports 1 scores, and 0 are needed", of(at, |it| it.workers[0].1.scores.push(1.0))),
            (
                "another's number",
                "speaks for 1 workers",
                of(at, |it| it.workers[0].0 = another(it.workers[0].0)),
            ),
        ] {
            check(what, lies(&settings(), lie), why);
        }
    }
}

#[test]
fn what_does_not_fit_at_the_start_drops_its_sender() {
    let settings = &settings();
    let ended = run(settings, |server| {
        let mut joiner = join(server);
        settings.agree_with(&mut joiner).unwrap();
        let memories = vec![vec![Memory::default()]];
        let start = Remembered { memories, counts: Counts::new(WORKERS), ..Remembered::default() };
        let (worker, len) = (joiner.worker, layout().len());
        let (start, options) = (crate::elastic::encode(&start).unwrap(), TransferOptions::default());
        let (mut ends, _) = joiner.enter(start, vec![0.0; len], &[len], options).unwrap();
        let workers = vec![(another(worker), crate::round_message::RoundMessage::default())];
        let lie = ProcessMessage { workers, ..ProcessMessage::default() };
        ends[0].gather(&encode(&lie).unwrap()).unwrap_err();
    });
    check("the start", ended, "speaks for 1 workers");
}

/// Numbers that no worker reaches neither end the run nor name anyone; nor do they take the examples away from the others.
#[test]
fn absurd_numbers_end_nothing() {
    let all = [(Pace::Even, "12step"), (Pace::Free, "12step"), (Pace::Even, "1epoch")];
    for ((pace, budget), bytes) in all.into_iter().flat_map(|it| [(it, 0), (it, u64::MAX)]) {
        let settings = Settings { pace, budget: budget.parse().unwrap(), examples: 9999, ..settings() };
        let lie = Lie::new((Due::Round, To::All), move |it: &mut ProcessMessage| {
            (it.elapsed, it.kept, it.unacknowledged) = (f64::MAX, u16::MAX, u8::MAX);
            let worker = &mut it.workers[0].1;
            (worker.steps, worker.taken, worker.rate, worker.digest) = (u64::MAX, u64::MAX, f64::INFINITY, 1);
            worker.scores = vec![f64::NEG_INFINITY];
            let tally = &mut worker.tally;
            (tally.steps, tally.loss, tally.bytes) = (u64::MAX, f64::NAN, bytes);
            tally.times.compute = 1e300;
        });
        let (ends, named) = lies(&settings, lie);
        assert!(ends.iter().all(Result::is_ok) && named.is_empty(), "{pace:?}: {ends:?}; {named:?}");
    }
}

/// Whatever byte of whatever message is another one, if it can still be read: the others have an end of the run. (It may be that they were asked
/// to stop.)
#[test]
fn no_byte_of_a_message_ends_the_others() {
    let is_readable = |to: To, due: Due, bytes: &[u8]| match (to, due) {
        (To::View, _) => decode::<View>(0, bytes).is_ok(),
        (To::All, Due::Evaluate) => decode::<Numbers>(0, bytes).is_ok(),
        _ => decode::<ProcessMessage>(0, bytes).is_ok(),
    };
    let mut random = 7u64;
    for (due, to) in [
        (Due::Round, To::All),
        (Due::Evaluate, To::View),
        (Due::Evaluate, To::All),
        (Due::Round, To::FinalBarrier),
        (Due::End, To::Finish),
    ]
    .repeat(5)
    {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let seed = random >> 16;
        let alter = move |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            let at = seed as usize % bytes.len().max(1);
            let changes = (0..=255u8).map(|n| n.wrapping_add((seed >> 32) as u8));
            // The first other byte that leaves it readable.
            let before = *bytes.get(at)?;
            let other = changes.filter(|n| *n != before).find(|n| {
                bytes[at] = *n;
                is_readable(to, due, &bytes)
            });
            other.map(|_| bytes)
        };
        let lie = Lie { at: (due, to), alter: Box::new(alter), now: Mutex::new(Due::Step) };
        let (ends, named) = lies(&settings(), lie);
        assert!(ends.iter().all(Result::is_ok), "{due:?} {to:?} {seed:x}: {ends:?}; {named:?}");
    }
}
