//! One member that says what it should not: the others go on, and nothing breaks down.

use super::message::{Call, Down, End, Record, Up, VERSION};
use super::{Action, Coordinator, Event, Settings, Stand};
use std::time::Duration;

const START: Stand = Stand { op: 0, digest: 5 };

fn hear(coordinator: &mut Coordinator, session: u64, up: Up) -> Vec<Action> {
    coordinator.on(Event::Heard { session, up }, Duration::from_millis(1))
}

fn hello(token: u64) -> Up {
    Up::Hello { version: VERSION, run: 0, token, worker: None, address: "nowhere".into() }
}

fn arrive(op: u64, call: Call) -> Up {
    Up::Arrive { op, call, steps: u64::MAX, knows: 0 }
}

/// A group of so many who have met once, the sessions being the numbers, and one more that waits to take part.
fn group(workers: u32) -> Coordinator {
    let settings = Settings { founders: workers, trigger: Some(1), ..Settings::default() };
    let mut coordinator = Coordinator::new(settings, 7, Vec::new(), &[]);
    for session in 0..=u64::from(workers) {
        hear(&mut coordinator, session, hello(100 + session));
        hear(&mut coordinator, session, Up::Enter(START));
    }
    for session in 0..u64::from(workers) {
        hear(&mut coordinator, session, arrive(0, Call::Barrier));
    }
    assert_eq!((coordinator.op(), coordinator.truth()), (1, Some(START)));
    coordinator
}

fn moving(workers: u32) -> Coordinator {
    let mut coordinator = group(workers);
    for session in 0..u64::from(workers) {
        hear(&mut coordinator, session, arrive(1, Call::Mix { plan: 1, centre: 0 }));
    }
    assert!(coordinator.reason(Duration::ZERO).contains("vectors are moving"));
    coordinator
}

fn ended(actions: &[Action]) -> Option<&End> {
    actions.iter().find_map(|action| match action {
        Action::Send { down: Down::Closed { end, .. }, .. } => Some(end),
        _ => None,
    })
}

#[test]
fn a_connection_is_one_member() {
    let mut coordinator = group(2);
    let before = coordinator.seats().len();
    for token in 1000..1010 {
        let actions = hear(&mut coordinator, 0, hello(token));
        assert!(actions.contains(&Action::End { session: 0 }), "{actions:?}");
    }
    assert_eq!(coordinator.seats().len(), before);
}

/// A complaint of nobody, of oneself, or by one who has no part in it would leave the round waiting.
#[test]
fn an_idle_complaint_changes_nothing() {
    let mut coordinator = moving(3);
    let epoch = coordinator.epoch();
    let complain = |peer: u32| Up::Broken { epoch, op: 1, attempt: 1, peer, why: "no reason".into() };
    for (by, of) in [(0, u32::MAX), (0, 0), (3, 0), (0, 3)] {
        assert_eq!(hear(&mut coordinator, by, complain(of)), [], "{by} complains of {of}");
    }
    let later = Duration::from_secs(1);
    for session in 0..4 {
        let up = Up::Beat { steps: 0, progress: 0 };
        coordinator.on(Event::Heard { session, up }, later);
    }
    assert_eq!(coordinator.on(Event::Tick, later), [], "nothing is tried again");
    let done = |coordinator: &mut Coordinator, session| {
        hear(coordinator, session, Up::Done { epoch, op: 1, attempt: 1, digest: 9 })
    };
    assert_eq!(ended(&done(&mut coordinator, 0)), None);
    assert_eq!(ended(&done(&mut coordinator, 3)), None, "one who has no part in it is done with nothing");
    assert_eq!(ended(&done(&mut coordinator, 1)), None);
    assert_eq!(ended(&done(&mut coordinator, 2)), Some(&End::Commit { lost: vec![] }));
}

/// Counts that no worker reaches neither stop the coordinator nor wrap.
#[test]
fn absurd_numbers_do_no_harm() {
    let mut coordinator = group(2);
    let stand = Stand { op: 1, digest: 6 };
    for session in 0..2 {
        hear(&mut coordinator, session, Up::Stands(stand));
        hear(&mut coordinator, session, Up::Beat { steps: u64::MAX, progress: u64::MAX });
    }
    let actions = hear(&mut coordinator, 0, Up::Beat { steps: u64::MAX, progress: 0 });
    assert!(actions.iter().all(|action| !matches!(action, Action::Say(_))), "{actions:?}");
    let mut fresh = Coordinator::new(Settings::default(), 7, Vec::new(), &[]);
    let far = Stand { op: u64::MAX, digest: 1 };
    hear(&mut fresh, 0, hello(1));
    hear(&mut fresh, 0, Up::Enter(far));
    hear(&mut fresh, 0, arrive(u64::MAX, Call::Barrier));
    assert_eq!(fresh.op(), u64::MAX);
}

/// The word of one against two: the two are right. Who differs is told to take over what they hold.
#[test]
fn one_cannot_outvote_two() {
    let mut coordinator = group(3);
    for (session, digest) in [(0, 66), (1, 6), (2, 6)] {
        hear(&mut coordinator, session, Up::Stands(Stand { op: 1, digest }));
    }
    assert_eq!(coordinator.truth(), Some(Stand { op: 1, digest: 6 }));
    let actions = hear(&mut coordinator, 0, Up::NotTaken { donor: 1 });
    let taken = actions.iter().find_map(|action| match action {
        Action::Send { session: 0, down: Down::Take { stand, .. } } => Some(*stand),
        _ => None,
    });
    assert_eq!(taken, Some(Stand { op: 1, digest: 6 }), "{actions:?}");
}

/// A round that has begun: its words are moving, and one who was not there waits.
fn speaking(workers: u32) -> Coordinator {
    let mut coordinator = group(workers);
    for session in 0..u64::from(workers) {
        hear(&mut coordinator, session, Up::Stands(Stand { op: 1, digest: 6 }));
    }
    for session in 0..u64::from(workers) {
        hear(&mut coordinator, session, arrive(1, Call::Gather));
    }
    assert!(coordinator.reason(Duration::ZERO).contains("words are moving"));
    coordinator
}

fn done(coordinator: &mut Coordinator, session: u64, digest: u64) -> Vec<Action> {
    let epoch = coordinator.epoch();
    hear(coordinator, session, Up::Done { epoch, op: 1, attempt: 1, digest })
}

/// Who holds other words than most, or says so, has no part in what follows from them.
#[test]
fn other_words_are_not_those_of_most() {
    let mut coordinator = speaking(3);
    assert_eq!(ended(&done(&mut coordinator, 0, 9)), None);
    assert_eq!(ended(&done(&mut coordinator, 1, 8)), None);
    let actions = done(&mut coordinator, 2, 9);
    let differs = crate::Lost { worker: 1, why: crate::Why::Differs };
    assert_eq!(ended(&actions), Some(&End::Commit { lost: vec![differs] }));
    let told = |session: u64| {
        actions.iter().any(|action| matches!(action, Action::Send { session: to, .. } if *to == session))
    };
    assert!(told(0) && !told(1) && told(2), "{actions:?}");
}

/// What is said of where one stands while words move, and coming to them from elsewhere, changes nothing.
#[test]
fn a_round_that_has_begun_is_not_changed() {
    let mut coordinator = speaking(3);
    let (truth, epoch) = (coordinator.truth(), coordinator.epoch());
    hear(&mut coordinator, 0, Up::Stands(Stand { op: 1, digest: 66 }));
    for up in [Up::Took(Stand { op: 1, digest: 6 }), arrive(1, Call::Gather)] {
        let actions = hear(&mut coordinator, 3, up);
        assert!(!actions.iter().any(|action| matches!(action, Action::Send { .. })), "{actions:?}");
    }
    assert_eq!((coordinator.truth(), coordinator.epoch()), (truth, epoch));
    (0..2).for_each(|session| assert_eq!(ended(&done(&mut coordinator, session, 9)), None));
    assert_eq!(ended(&done(&mut coordinator, 2, 9)), Some(&End::Commit { lost: vec![] }));
}

fn told(actions: &[Action]) -> Vec<(u32, Vec<u8>)> {
    let told = actions.iter().filter_map(|action| match action {
        Action::Tell { worker, what } => Some((*worker, what.clone())),
        _ => None,
    });
    told.collect()
}

/// One that waits to take part reports nothing, until it does.
#[test]
fn only_members_report() {
    let mut coordinator = group(2);
    assert_eq!(told(&hear(&mut coordinator, 0, Up::Tell(vec![1]))), [(0, vec![1])]);
    assert_eq!(told(&hear(&mut coordinator, 2, Up::Tell(vec![2]))), []);
    hear(&mut coordinator, 9, hello(900));
    assert_eq!(told(&hear(&mut coordinator, 9, Up::Tell(vec![3]))), []);
    assert_eq!(told(&coordinator.on(Event::Ended { session: 9 }, Duration::from_millis(1))), []);
    // The one that waits takes over what the others hold, and comes.
    let stand = Stand { op: 1, digest: 6 };
    (0..2).for_each(|session| drop(hear(&mut coordinator, session, Up::Stands(stand))));
    hear(&mut coordinator, 2, Up::Took(stand));
    hear(&mut coordinator, 2, arrive(1, Call::Gather));
    let actions: Vec<Action> =
        (0..2).flat_map(|session| hear(&mut coordinator, session, arrive(1, Call::Gather))).collect();
    assert_eq!(told(&actions), [(2, vec![2])], "{actions:?}");
    assert!(actions.contains(&Action::Send { session: 2, down: Down::Heard }));
}

/// A coordinator that goes on from a log does not take the first to come back at its word.
#[test]
fn reports_wait_until_the_members_are_back() {
    let stand = Stand { op: 4, digest: 9 };
    let records = [Record { run: 7, epoch: 1, stand, members: 3, tokens: vec![100, 101, 102] }];
    let mut coordinator = Coordinator::new(Settings::default(), 7, Vec::new(), &records);
    let back = |coordinator: &mut Coordinator, session: u64| {
        let (version, token, address) = (VERSION, 100 + session, "nowhere".into());
        let worker = Some(session as u32);
        let mut actions = hear(coordinator, session, Up::Hello { version, run: 7, token, worker, address });
        actions.extend(hear(coordinator, session, Up::Enter(stand)));
        actions.extend(hear(coordinator, session, Up::Tell(vec![session as u8])));
        told(&actions)
    };
    assert_eq!(back(&mut coordinator, 0), []);
    assert_eq!(back(&mut coordinator, 1), []);
    assert_eq!(back(&mut coordinator, 2).len(), 3);
}

/// Newcomers who say that they stand further on, however many they are, do not move a run that goes on from its log; those who
/// were members do.
#[test]
fn newcomers_do_not_say_where_the_run_stands() {
    let (stand, further) = (Stand { op: 4, digest: 9 }, Stand { op: 40, digest: 66 });
    let records = [
        Record { run: 7, epoch: 1, stand: Stand { op: 2, digest: 8 }, members: 2, tokens: vec![101, 102] },
        Record { run: 7, epoch: 1, stand, members: 2, tokens: Vec::new() },
    ];
    let enter = |coordinator: &mut Coordinator, session: u64, token: u64| {
        let (version, worker, address) = (VERSION, None, "nowhere".into());
        hear(coordinator, session, Up::Hello { version, run: 7, token, worker, address });
        hear(coordinator, session, Up::Enter(further));
    };
    let mut coordinator = Coordinator::new(Settings::default(), 7, Vec::new(), &records);
    (0..10).for_each(|session| enter(&mut coordinator, session, 900 + session));
    assert_eq!(coordinator.truth(), Some(stand));
    enter(&mut coordinator, 10, 101);
    assert_eq!(coordinator.truth(), Some(stand), "one of two");
    enter(&mut coordinator, 11, 102);
    assert_eq!(coordinator.truth(), Some(further));
}

/// One of three that calls something else is left out, and the others go on; of two there is no majority.
#[test]
fn one_out_of_step_does_not_end_the_run() {
    let mut coordinator = group(3);
    (0..3).for_each(|session| drop(hear(&mut coordinator, session, Up::Stands(Stand { op: 1, digest: 6 }))));
    hear(&mut coordinator, 0, arrive(1, Call::Barrier));
    hear(&mut coordinator, 1, arrive(1, Call::Gather));
    let actions = hear(&mut coordinator, 2, arrive(1, Call::Gather));
    assert_eq!(ended(&actions), None, "{actions:?}");
    let (done, lost) = (&actions, crate::Lost { worker: 0, why: crate::Why::OutOfStep });
    let met = |session: u64| {
        done.iter().any(|action| {
            matches!(action, Action::Send { session: to, down: Down::Met { lost: named, .. } }
                if *to == session && *named == [lost.clone()])
        })
    };
    assert!(!met(0) && met(1) && met(2), "{actions:?}");
    let mut coordinator = group(2);
    (0..2).for_each(|session| drop(hear(&mut coordinator, session, Up::Stands(Stand { op: 1, digest: 6 }))));
    hear(&mut coordinator, 0, arrive(1, Call::Barrier));
    let actions = hear(&mut coordinator, 1, arrive(1, Call::Gather));
    assert!(matches!(ended(&actions), Some(End::OutOfStep { .. })), "{actions:?}");
}

/// Who is complained of still has a vote on the end of the run.
#[test]
fn complaints_take_nobodys_vote() {
    let mut coordinator = moving(2);
    let epoch = coordinator.epoch();
    let mut now = Duration::from_millis(1);
    for attempt in 1..=3 {
        let up = Up::Broken { epoch, op: 1, attempt, peer: 1, why: "no reason".into() };
        coordinator.on(Event::Heard { session: 0, up }, now);
        now += Duration::from_millis(250);
        coordinator.on(Event::Tick, now);
    }
    let seat = &coordinator.seats()[&1];
    assert!(seat.state() != super::State::Active && seat.has_vote(), "{seat:?}");
    assert!(!coordinator.seats()[&2].has_vote(), "one that never took part has none");
}
