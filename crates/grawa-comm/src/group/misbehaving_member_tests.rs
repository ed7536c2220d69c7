//! A member that sends what it should not. The others continue, and nothing panics.

use super::Settings;
use super::coordinator::roster::MemberState;
use super::coordinator::{Action, Coordinator, Input};
use super::messages::{
    Call, End, Entry, Hello, Proposal, Record, StateVersion, ToCoordinator, ToMember, VERSION,
};
use std::time::Duration;

const START: StateVersion = StateVersion { op: 0, digest: 5 };

fn hear(coordinator: &mut Coordinator, session: u64, message: ToCoordinator) -> Vec<Action> {
    coordinator.handle(Input::Message { session, message }, Duration::from_millis(1))
}

fn hello(token: u64) -> ToCoordinator {
    ToCoordinator::Hello(Hello { version: VERSION, run: 0, token, worker: None, address: "nowhere".into() })
}

fn arrive(op: u64, call: Call) -> ToCoordinator {
    ToCoordinator::Arrive { op, call, steps: u64::MAX, known_epoch: 0 }
}

/// A group after its first operation, and one more member that waits. Sessions are the numbers of the workers.
fn group(workers: u32) -> Coordinator {
    let settings = Settings { founders: workers, trigger: Some(1), ..Settings::default() };
    let mut coordinator = Coordinator::new(settings, 7, Vec::new(), &[]);
    for session in 0..=u64::from(workers) {
        hear(&mut coordinator, session, hello(100 + session));
        hear(&mut coordinator, session, ToCoordinator::Enter(START));
    }
    for session in 0..u64::from(workers) {
        hear(&mut coordinator, session, arrive(0, Call::Gather));
    }
    let attempt = (coordinator.epoch, 0, 1);
    for session in 0..u64::from(workers) {
        hear(&mut coordinator, session, ToCoordinator::Done { attempt, digest: 0 });
    }
    assert_eq!((coordinator.op, coordinator.committed), (1, Some(START)));
    coordinator
}

fn moving(workers: u32) -> Coordinator {
    let mut coordinator = group(workers);
    for session in 0..u64::from(workers) {
        hear(&mut coordinator, session, arrive(1, Call::Mix { plan: 1, centre: 0 }));
    }
    assert!(coordinator.reason(Duration::ZERO).contains("transferring vectors"));
    coordinator
}

fn ended(actions: &[Action]) -> Option<&End> {
    actions.iter().find_map(|action| match action {
        Action::Send { message: ToMember::Ended { end, .. }, .. } => Some(end),
        _ => None,
    })
}

#[test]
fn a_connection_is_one_member() {
    let mut coordinator = group(2);
    let before = coordinator.roster.len();
    for token in 1000..1010 {
        let actions = hear(&mut coordinator, 0, hello(token));
        assert!(actions.contains(&Action::Disconnect { session: 0 }), "{actions:?}");
    }
    assert_eq!(coordinator.roster.len(), before);
}

/// A complaint about nobody, about oneself, or by a member that has no part in it would leave the round waiting.
#[test]
fn an_idle_complaint_changes_nothing() {
    let mut coordinator = moving(3);
    let epoch = coordinator.epoch;
    let complain =
        |peer: u32| ToCoordinator::Failed { attempt: (epoch, 1, 1), peer, why: "no reason".into() };
    for (by, of) in [(0, u32::MAX), (0, 0), (3, 0), (0, 3)] {
        assert_eq!(hear(&mut coordinator, by, complain(of)), [], "{by} complains about {of}");
    }
    let later = Duration::from_secs(1);
    for session in 0..4 {
        let message = ToCoordinator::Heartbeat { steps: 0, progress: 0, workers: 1 };
        coordinator.handle(Input::Message { session, message }, later);
    }
    assert_eq!(coordinator.handle(Input::Tick, later), [], "nothing is tried again");
    let done = |coordinator: &mut Coordinator, session| {
        hear(coordinator, session, ToCoordinator::Done { attempt: (epoch, 1, 1), digest: 9 })
    };
    assert_eq!(ended(&done(&mut coordinator, 0)), None);
    assert_eq!(ended(&done(&mut coordinator, 3)), None, "a member without a part in it cannot be done");
    assert_eq!(ended(&done(&mut coordinator, 1)), None);
    assert_eq!(ended(&done(&mut coordinator, 2)), Some(&End::Commit { lost: vec![] }));
}

/// Absurd counts neither stop the coordinator nor overflow.
#[test]
fn absurd_numbers_do_no_harm() {
    let mut coordinator = group(2);
    let stand = StateVersion { op: 1, digest: 6 };
    for session in 0..2 {
        hear(&mut coordinator, session, ToCoordinator::Holds(stand));
        hear(
            &mut coordinator,
            session,
            ToCoordinator::Heartbeat { steps: u64::MAX, progress: u64::MAX, workers: 1 },
        );
    }
    let actions =
        hear(&mut coordinator, 0, ToCoordinator::Heartbeat { steps: u64::MAX, progress: 0, workers: 1 });
    assert!(actions.iter().all(|action| !matches!(action, Action::Emit(_))), "{actions:?}");
    let mut fresh = Coordinator::new(Settings::default(), 7, Vec::new(), &[]);
    let far = StateVersion { op: u64::MAX, digest: 1 };
    hear(&mut fresh, 0, hello(1));
    hear(&mut fresh, 0, ToCoordinator::Enter(far));
    hear(&mut fresh, 0, arrive(u64::MAX, Call::Gather));
    assert_eq!(fresh.op, u64::MAX);
}

/// Two outvote one. The one must fetch their state.
#[test]
fn one_cannot_outvote_two() {
    let mut coordinator = group(3);
    for (session, digest) in [(0, 66), (1, 6), (2, 6)] {
        hear(&mut coordinator, session, ToCoordinator::Holds(StateVersion { op: 1, digest }));
    }
    assert_eq!(coordinator.committed, Some(StateVersion { op: 1, digest: 6 }));
    let actions = hear(&mut coordinator, 0, ToCoordinator::NotRestored { donor: 1 });
    let taken = actions.iter().find_map(|action| match action {
        Action::Send { session: 0, message: ToMember::Restore { version, .. } } => Some(*version),
        _ => None,
    });
    assert_eq!(taken, Some(StateVersion { op: 1, digest: 6 }), "{actions:?}");
}

/// A round has begun: its messages are transferred, and a joiner waits.
fn speaking(workers: u32) -> Coordinator {
    let mut coordinator = group(workers);
    for session in 0..u64::from(workers) {
        hear(&mut coordinator, session, ToCoordinator::Holds(StateVersion { op: 1, digest: 6 }));
    }
    for session in 0..u64::from(workers) {
        hear(&mut coordinator, session, arrive(1, Call::Gather));
    }
    assert!(coordinator.reason(Duration::ZERO).contains("transferring messages"));
    coordinator
}

fn done(coordinator: &mut Coordinator, session: u64, digest: u64) -> Vec<Action> {
    let epoch = coordinator.epoch;
    hear(coordinator, session, ToCoordinator::Done { attempt: (epoch, 1, 1), digest })
}

/// A member whose digest differs from that of most has no part in what follows.
#[test]
fn a_member_that_differs_is_excluded() {
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

/// During a transfer neither a report of another state nor a late arrival changes anything.
#[test]
fn a_round_that_has_begun_is_not_changed() {
    let mut coordinator = speaking(3);
    let (truth, epoch) = (coordinator.committed, coordinator.epoch);
    hear(&mut coordinator, 0, ToCoordinator::Holds(StateVersion { op: 1, digest: 66 }));
    for up in [ToCoordinator::Enter(StateVersion { op: 1, digest: 6 }), arrive(1, Call::Gather)] {
        let actions = hear(&mut coordinator, 3, up);
        assert!(!actions.iter().any(|action| matches!(action, Action::Send { .. })), "{actions:?}");
    }
    assert_eq!((coordinator.committed, coordinator.epoch), (truth, epoch));
    (0..2).for_each(|session| assert_eq!(ended(&done(&mut coordinator, session, 9)), None));
    assert_eq!(ended(&done(&mut coordinator, 2, 9)), Some(&End::Commit { lost: vec![] }));
}

fn told(actions: &[Action]) -> Vec<(u32, Vec<u8>)> {
    let told = actions.iter().filter_map(|action| match action {
        Action::Report { worker, report, .. } => Some((*worker, report.clone())),
        _ => None,
    });
    told.collect()
}

/// Reports of a member that waits are held until it takes part.
#[test]
fn only_members_report() {
    let mut coordinator = group(2);
    assert_eq!(told(&hear(&mut coordinator, 0, ToCoordinator::Report(vec![1]))), [(0, vec![1])]);
    assert_eq!(told(&hear(&mut coordinator, 2, ToCoordinator::Report(vec![2]))), []);
    hear(&mut coordinator, 9, hello(900));
    assert_eq!(told(&hear(&mut coordinator, 9, ToCoordinator::Report(vec![3]))), []);
    assert_eq!(told(&coordinator.handle(Input::Disconnected { session: 9 }, Duration::from_millis(1))), []);
    // The waiting member fetches the state and arrives.
    let stand = StateVersion { op: 1, digest: 6 };
    (0..2).for_each(|session| drop(hear(&mut coordinator, session, ToCoordinator::Holds(stand))));
    hear(&mut coordinator, 2, ToCoordinator::Enter(stand));
    hear(&mut coordinator, 2, arrive(1, Call::Gather));
    let actions: Vec<Action> =
        (0..2).flat_map(|session| hear(&mut coordinator, session, arrive(1, Call::Gather))).collect();
    assert_eq!(told(&actions), [(2, vec![2])], "{actions:?}");
    assert!(actions.contains(&Action::Send { session: 2, message: ToMember::ReportAck }));
}

/// A restarted coordinator does not believe the first member that comes back.
#[test]
fn reports_wait_until_the_members_are_back() {
    let stand = StateVersion { op: 4, digest: 9 };
    let record = Record { run: 7, epoch: 1, version: stand, members: 3, tokens: vec![100, 101, 102] };
    let records = [Entry::Committed(record)];
    let mut coordinator = Coordinator::new(Settings::default(), 7, Vec::new(), &records);
    let back = |coordinator: &mut Coordinator, session: u64| {
        let (version, token, address) = (VERSION, 100 + session, "nowhere".into());
        let worker = Some(session as u32);
        let mut actions = hear(
            coordinator,
            session,
            ToCoordinator::Hello(Hello { version, run: 7, token, worker, address }),
        );
        actions.extend(hear(coordinator, session, ToCoordinator::Enter(stand)));
        actions.extend(hear(coordinator, session, ToCoordinator::Report(vec![session as u8])));
        told(&actions)
    };
    assert_eq!(back(&mut coordinator, 0), []);
    assert_eq!(back(&mut coordinator, 1), []);
    assert_eq!(back(&mut coordinator, 2).len(), 3);
}

/// Joiners that claim a later state do not move a restarted run, however many they are. Former members do.
#[test]
fn joiners_do_not_decide_where_the_run_continues() {
    let (stand, further) = (StateVersion { op: 4, digest: 9 }, StateVersion { op: 40, digest: 66 });
    let records = [
        Record {
            run: 7,
            epoch: 1,
            version: StateVersion { op: 2, digest: 8 },
            members: 2,
            tokens: vec![101, 102],
        },
        Record { run: 7, epoch: 1, version: stand, members: 2, tokens: Vec::new() },
    ];
    let records = records.map(Entry::Committed);
    let enter = |coordinator: &mut Coordinator, session: u64, token: u64| {
        let (version, worker, address) = (VERSION, None, "nowhere".into());
        hear(coordinator, session, ToCoordinator::Hello(Hello { version, run: 7, token, worker, address }));
        hear(coordinator, session, ToCoordinator::Enter(further));
    };
    let mut coordinator = Coordinator::new(Settings::default(), 7, Vec::new(), &records);
    (0..10).for_each(|session| enter(&mut coordinator, session, 900 + session));
    assert_eq!(coordinator.committed, Some(stand));
    enter(&mut coordinator, 10, 101);
    assert_eq!(coordinator.committed, Some(stand), "one of two");
    enter(&mut coordinator, 11, 102);
    assert_eq!(coordinator.committed, Some(further));
}

/// One of three that calls another operation is excluded, and the others continue. Of two there is no majority.
#[test]
fn one_member_out_of_step_does_not_end_the_run() {
    let mut coordinator = group(3);
    (0..3).for_each(|session| {
        drop(hear(&mut coordinator, session, ToCoordinator::Holds(StateVersion { op: 1, digest: 6 })))
    });
    hear(&mut coordinator, 0, arrive(1, Call::Mix { plan: 1, centre: 0 }));
    hear(&mut coordinator, 1, arrive(1, Call::Gather));
    let actions = hear(&mut coordinator, 2, arrive(1, Call::Gather));
    assert_eq!(ended(&actions), None, "{actions:?}");
    let (done, lost) = (&actions, crate::Lost { worker: 0, why: crate::Why::OutOfStep });
    let met = |session: u64| {
        done.iter().any(|action| {
            matches!(action, Action::Send { session: to, message: ToMember::Begin { lost: named, .. } }
                if *to == session && *named == [lost.clone()])
        })
    };
    assert!(!met(0) && met(1) && met(2), "{actions:?}");
    let mut coordinator = group(2);
    (0..2).for_each(|session| {
        drop(hear(&mut coordinator, session, ToCoordinator::Holds(StateVersion { op: 1, digest: 6 })))
    });
    hear(&mut coordinator, 0, arrive(1, Call::Mix { plan: 1, centre: 0 }));
    let actions = hear(&mut coordinator, 1, arrive(1, Call::Gather));
    assert!(matches!(ended(&actions), Some(End::OutOfStep { .. })), "{actions:?}");
}

/// Everyone in this group calls an operation and is done with it.
fn run_operation(coordinator: &mut Coordinator, op: u64, call: Call, sessions: &[u64]) -> Vec<Action> {
    let now = Duration::from_millis(1);
    let mut actions = Vec::new();
    for session in sessions {
        let message = arrive(op, call);
        actions.extend(coordinator.handle(Input::Message { session: *session, message }, now));
    }
    let epoch = coordinator.epoch;
    for session in sessions {
        let message = ToCoordinator::Done { attempt: (epoch, op, 1), digest: 3 };
        actions.extend(coordinator.handle(Input::Message { session: *session, message }, now));
    }
    actions
}

/// A member that complains about all others, and then ends the run alone, does not end it.
#[test]
fn complaints_do_not_end_the_run() {
    let mut coordinator = moving(2);
    let epoch = coordinator.epoch;
    let mut now = Duration::from_millis(1);
    for attempt in 1..=3 {
        let up = ToCoordinator::Failed { attempt: (epoch, 1, attempt), peer: 1, why: "no reason".into() };
        coordinator.handle(Input::Message { session: 0, message: up }, now);
        now += Duration::from_millis(250);
        coordinator.handle(Input::Tick, now);
    }
    assert_ne!(coordinator.roster[&1].state, MemberState::Active);
    run_operation(&mut coordinator, 2, Call::Finish, &[0]);
    assert_eq!((coordinator.op, coordinator.voters().len()), (3, 0));
}

/// Only members of the operation that ended the run have votes, by token; those that come later are told that it is over.
#[test]
fn those_that_ended_the_run_have_votes() {
    let mut coordinator = group(3);
    // One that has never arrived, though it claims the committed state.
    hear(&mut coordinator, 7, hello(900));
    let report = |coordinator: &mut Coordinator, session: u64| {
        let actions = hear(coordinator, session, ToCoordinator::Report(vec![1]));
        actions.iter().find_map(|action| match action {
            Action::Report { token, is_voter, .. } => Some(is_voter.then_some(*token)),
            _ => None,
        })
    };
    assert_eq!(report(&mut coordinator, 0), Some(None), "the run is not over");
    let actions = run_operation(&mut coordinator, 1, Call::Finish, &[0, 1, 2]);
    let over = |actions: &[Action], to: u64| {
        actions.iter().any(
            |action| matches!(action, Action::Send { session, message: ToMember::Over } if *session == to),
        )
    };
    assert!(over(&actions, 7) && !(0..3).any(|session| over(&actions, session)), "{actions:?}");
    assert_eq!(coordinator.voters().len(), 3);
    assert!(report(&mut coordinator, 0).flatten().is_some());
    assert_eq!(report(&mut coordinator, 7).flatten(), None);
    // Nobody else begins again where the others ended, also when all have left.
    (0..3).for_each(|session| drop(hear(&mut coordinator, session, ToCoordinator::Leave)));
    let actions = hear(&mut coordinator, 8, hello(901));
    assert!(over(&actions, 8), "{actions:?}");
    hear(&mut coordinator, 8, ToCoordinator::Enter(StateVersion { op: 1, digest: 5 }));
    let later = coordinator.handle(Input::Tick, Duration::from_secs(300));
    assert!(!later.iter().any(|it| matches!(it, Action::Send { message: ToMember::Ready { .. }, .. })));
}

/// A member that was refused because it sent too much does not get a new limit when it joins again.
#[test]
fn the_rate_limit_survives_a_refusal() {
    let mut coordinator = group(2);
    let flood = |coordinator: &mut Coordinator, session: u64| {
        let reports = (0..100).map(|_| ToCoordinator::Report(vec![0; 1 << 20]));
        let mut actions = reports.map(|report| hear(coordinator, session, report));
        actions.position(|actions| actions.contains(&Action::Disconnect { session })).unwrap()
    };
    assert!(flood(&mut coordinator, 0) > 20);
    hear(&mut coordinator, 10, hello(100));
    assert_eq!(flood(&mut coordinator, 10), 0);
    hear(&mut coordinator, 11, hello(777));
    assert!(flood(&mut coordinator, 11) > 20, "another member has a limit of its own");
}

/// Whoever says hello again and again, each time for the whole charter, uses up what it may send.
#[test]
fn hellos_count_toward_the_rate_limit() {
    let mut coordinator = Coordinator::new(Settings::default(), 7, vec![1; 1 << 20], &[]);
    let mut is_answered = |session: u64, token: u64| {
        let actions = hear(&mut coordinator, session, hello(token));
        actions.iter().any(|it| matches!(it, Action::Send { message: ToMember::Welcome { .. }, .. }))
    };
    assert_eq!((1..100).filter(|session| is_answered(*session, 9)).count(), 31);
    assert!(is_answered(100, 10), "another member has a limit of its own");
}

/// The first proposal is the charter, for all who join and for a coordinator that continues from the journal.
#[test]
fn the_first_proposal_counts() {
    let settings = Settings { founders: 2, ..Settings::default() };
    let mut coordinator = Coordinator::new(settings, 7, Vec::new(), &[]);
    let hello = |session: u64| {
        let (version, token, address) = (VERSION, 100 + session, "nowhere".into());
        ToCoordinator::Hello(Hello { version, run: 0, token, worker: None, address })
    };
    let propose = |charter: &[u8]| {
        ToCoordinator::Propose(Proposal { charter: charter.into(), trigger: Some(9), wait: Some(30_000) })
    };
    let sent = |actions: &[Action]| match actions {
        [.., Action::Send { message, .. }] => message.clone(),
        other => panic!("{other:?}"),
    };
    let open = sent(&hear(&mut coordinator, 0, hello(0)));
    assert!(
        matches!(&open, ToMember::Welcome { charter: Some(none), founders: 2, heartbeat: 500, .. } if none.is_empty())
    );
    hear(&mut coordinator, 1, hello(1));
    let answer = ToMember::Charter { charter: b"first".into(), heartbeat: 100 };
    let first = hear(&mut coordinator, 1, propose(b"first"));
    let [Action::Log(entry @ Entry::Adopted { .. }), ..] = &first[..] else { panic!("{first:?}") };
    assert_eq!(sent(&first), answer);
    let second = hear(&mut coordinator, 0, propose(b"second"));
    assert!(second.len() == 1 && sent(&second) == answer, "{second:?}");
    let mut again = Coordinator::new(settings, 7, Vec::new(), std::slice::from_ref(entry));
    let known = sent(&hear(&mut again, 5, hello(5)));
    assert!(
        matches!(&known, ToMember::Welcome { charter: Some(first), heartbeat: 100, .. } if first == b"first")
    );
    // A round waits as long as the proposal says, unless the coordinator was started with another wait.
    let wait = |coordinator: &Coordinator| coordinator.settings.round_wait().shortest.as_secs();
    assert_eq!((wait(&coordinator), wait(&again)), (30, 30));
    let settings = Settings { wait: Some(Duration::from_secs(5)), ..settings };
    assert_eq!(wait(&Coordinator::new(settings, 7, Vec::new(), std::slice::from_ref(entry))), 5);
    let refused = hear(&mut again, 5, propose(b""));
    assert!(
        matches!(&refused[0], Action::Send { message: ToMember::Refused { why }, .. } if why.contains("0 bytes"))
    );
}

/// A coordinator that was stopped for a while drops nobody: what the members sent meanwhile is read first. Without the news of the pause all are silent.
#[test]
fn a_pause_of_the_coordinator_drops_nobody() {
    let heartbeat = || ToCoordinator::Heartbeat { steps: 0, progress: 0, workers: 1 };
    for (pause, is_told) in [3, 6, 60, 3600].into_iter().flat_map(|pause| [(pause, true), (pause, false)]) {
        // Between rounds, in an operation that waits for two, and with a connection that had just ended.
        for state in 0..3 {
            let mut coordinator = group(3);
            let stand = StateVersion { op: 1, digest: 6 };
            (0..3).for_each(|session| drop(hear(&mut coordinator, session, ToCoordinator::Holds(stand))));
            if state == 1 {
                hear(&mut coordinator, 0, arrive(1, Call::Gather));
            } else if state == 2 {
                coordinator.handle(Input::Disconnected { session: 0 }, Duration::from_millis(1));
            }
            let now = Duration::from_secs(pause);
            if is_told {
                coordinator.handle(Input::Paused(now), now);
            }
            // Those that gave up their connection meanwhile, and have made another one.
            let mut later = now;
            for session in 0..4 {
                coordinator.handle(Input::Disconnected { session }, later);
                later += Duration::from_millis(400);
                let hello = ToCoordinator::Hello(Hello {
                    version: VERSION,
                    run: 7,
                    token: 100 + session,
                    worker: Some(session as u32),
                    address: "nowhere".into(),
                });
                for message in [hello, heartbeat()] {
                    coordinator.handle(Input::Message { session: 10 + session, message }, later);
                }
            }
            let active = coordinator.roster.values().filter(|record| record.state == MemberState::Active);
            let found = active.count();
            assert_eq!(
                found == 3,
                is_told,
                "after {pause} s, told: {is_told}, state {state}: {found} take part"
            );
        }
    }
}

/// One certificate is one member, whatever it says of its workers.
#[test]
fn a_token_has_one_seat() {
    let mut coordinator = group(2);
    let before = coordinator.roster.len();
    for workers in 2..9 {
        let ToCoordinator::Hello(hello) = hello(100) else { unreachable!() };
        let session = 50 + u64::from(workers);
        let actions = hear(&mut coordinator, session, ToCoordinator::HelloOfSet { workers, hello });
        let is_refused = |action: &Action| matches!(action, Action::Send { message: ToMember::Refused { why }, .. } if why.contains("each process needs its own"));
        assert!(actions.iter().any(is_refused), "{actions:?}");
    }
    assert_eq!(coordinator.roster.len(), before);
}

/// Who leaves and says hello again gets no new limit, however often; after a while it has earned all of it again.
#[test]
fn the_rate_limit_survives_a_leave() {
    let mut coordinator = group(2);
    let mut sent = 0;
    let mut flood = |coordinator: &mut Coordinator, session: u64, at: Duration| {
        let mut here = 0;
        for _ in 0..9 {
            let message = ToCoordinator::Report(vec![0; 3 << 20]);
            let actions = coordinator.handle(Input::Message { session, message }, at);
            if actions.contains(&Action::Disconnect { session }) {
                break;
            }
            here += 3 << 20;
        }
        sent += here;
        coordinator.handle(Input::Message { session, message: ToCoordinator::Leave }, at);
        here
    };
    for session in 20..40 {
        hear(&mut coordinator, session, hello(777));
        flood(&mut coordinator, session, Duration::from_millis(1));
    }
    let message = hello(777);
    coordinator.handle(Input::Message { session: 40, message }, Duration::from_secs(60));
    let again = flood(&mut coordinator, 40, Duration::from_secs(60));
    assert!(again > 20 << 20, "{again}");
    assert!(sent - again <= 32 << 20, "{sent} bytes at once");
}

/// Who only says that it holds the committed state is not waited for until it has arrived once.
#[test]
fn a_claim_is_no_membership() {
    let mut coordinator = group(2);
    let stand = StateVersion { op: 1, digest: 6 };
    (0..2).for_each(|session| drop(hear(&mut coordinator, session, ToCoordinator::Holds(stand))));
    hear(&mut coordinator, 9, hello(900));
    hear(&mut coordinator, 9, ToCoordinator::Enter(stand));
    let claims = |coordinator: &Coordinator| {
        let record = coordinator.roster.values().find(|record| record.token == 900).unwrap();
        record.state
    };
    assert_eq!(claims(&coordinator), MemberState::Ready);
    for session in [9, 0, 1] {
        hear(&mut coordinator, session, arrive(1, Call::Gather));
    }
    assert_eq!(claims(&coordinator), MemberState::Active);
    // A member that took part, and whose connection broke, is waited for.
    hear(&mut coordinator, 8, hello(100));
    assert_eq!(coordinator.roster[&0].state, MemberState::Active);
}

fn unreadable(coordinator: &mut Coordinator, session: u64, peer: u32) -> Vec<Action> {
    let attempt = (coordinator.epoch, 1, 1);
    hear(coordinator, session, ToCoordinator::Unreadable { attempt, peer, why: "100 bytes".into() })
}

fn lost(actions: &[Action]) -> Vec<u32> {
    match ended(actions) {
        Some(End::Shrunk { lost }) => lost.iter().map(|lost| lost.worker).collect(),
        other => panic!("{other:?}"),
    }
}

/// For every group of two to six and every set of members that others cannot read: if most others cannot read one, it goes; one that complains
/// alone goes itself. No member with readable messages that complains about nobody ever goes because of one other.
#[test]
fn who_cannot_be_read_is_dropped_and_a_liar_drops_nobody() {
    for workers in 2..7u32 {
        for bad in 0..workers {
            // Its message is garbage. All others cannot read it; it says that it is done.
            let mut coordinator = speaking(workers);
            let mut actions = Vec::new();
            for session in 0..workers {
                actions = match session == bad {
                    true => done(&mut coordinator, session.into(), 9),
                    false => unreadable(&mut coordinator, session.into(), bad),
                };
                assert!(session + 1 == workers || ended(&actions).is_none(), "before all have said");
            }
            assert_eq!(lost(&actions), [bad], "of {workers}");
            assert!(format!("{actions:?}").contains("Unreadable"), "it is named: {actions:?}");
            // One that complains falsely, about each other.
            for about in (0..workers).filter(|about| *about != bad && workers > 2) {
                let mut coordinator = speaking(workers);
                let mut actions = unreadable(&mut coordinator, bad.into(), about);
                for session in (0..workers).filter(|session| *session != bad) {
                    actions = done(&mut coordinator, session.into(), 9);
                }
                assert_eq!(lost(&actions), [bad], "of {workers}, about {about}");
            }
        }
    }
    // Nor is one for good that complains alone, however often: it may have been sent another message than the others.
    let mut coordinator = speaking(3);
    coordinator.roster.get_mut(&0).unwrap().blames = 2;
    unreadable(&mut coordinator, 0, 2);
    done(&mut coordinator, 1, 9);
    assert_eq!(lost(&done(&mut coordinator, 2, 9)), [0]);
    assert_eq!((coordinator.roster[&0].blames, coordinator.roster[&0].is_left_out), (2, true));
    // The third time it is refused, in words.
    let mut coordinator = speaking(3);
    coordinator.roster.get_mut(&2).unwrap().blames = 2;
    unreadable(&mut coordinator, 0, 2);
    unreadable(&mut coordinator, 1, 2);
    let actions = done(&mut coordinator, 2, 9);
    let refusal = actions.iter().find_map(|action| match action {
        Action::Send { session: 2, message: ToMember::Refused { why } } => Some(why.clone()),
        _ => None,
    });
    assert!(
        refusal.is_some_and(|why| why.contains("100 bytes") && why.contains("same build")),
        "{actions:?}"
    );
}

fn enters(
    coordinator: &mut Coordinator,
    session: u64,
    run: u64,
    version: StateVersion,
    now: u64,
) -> Vec<Action> {
    let now = Duration::from_secs(now);
    let hello =
        Hello { version: VERSION, run, token: 500 + session, worker: None, address: "nowhere".into() };
    let mut actions =
        coordinator.handle(Input::Message { session, message: ToCoordinator::Hello(hello) }, now);
    actions
        .extend(coordinator.handle(Input::Message { session, message: ToCoordinator::Enter(version) }, now));
    actions
}

/// Without its journal a run continues from the newest state that a worker brings, after a while, and never from the state of a new worker.
#[test]
fn a_run_without_a_journal_continues_from_its_workers() {
    let settings = Settings { founders: 2, recovery_wait: Duration::from_secs(5), ..Settings::default() };
    let first = StateVersion { op: 0, digest: 5 };
    // The journal is lost; or it has the initial state only; or the user says that it does not count.
    let record = |op| {
        let version = StateVersion { op, digest: 5 + op };
        Entry::Committed(Record { run: 7, epoch: 1, version, members: 2, tokens: vec![1, 2] })
    };
    for (entries, from_workers) in
        [(vec![], false), (vec![record(0)], false), (vec![record(0), record(4)], true)]
    {
        let mut coordinator = Coordinator::new(settings, 7, Vec::new(), &entries).begun(from_workers);
        let is_ready = |actions: &[Action]| {
            actions.iter().any(|it| matches!(it, Action::Send { message: ToMember::Ready { .. }, .. }))
        };
        for session in 0..3 {
            assert!(!is_ready(&enters(&mut coordinator, session, 0, first, 1)), "a new worker");
        }
        let beats = |coordinator: &mut Coordinator, seconds: std::ops::Range<u64>, sessions: u64| {
            let mut all = Vec::new();
            for second in seconds {
                for session in 0..sessions {
                    let message = ToCoordinator::Heartbeat { steps: 0, progress: 0, workers: 1 };
                    let at = Duration::from_secs(second);
                    all.extend(coordinator.handle(Input::Message { session, message }, at));
                }
            }
            all
        };
        assert!(!is_ready(&beats(&mut coordinator, 2..100, 3)), "however long it waits");
        // Two bring checkpoints, the older one first.
        let (older, newer) = (StateVersion { op: 6, digest: 1 }, StateVersion { op: 8, digest: 2 });
        enters(&mut coordinator, 3, 0, older, 100);
        enters(&mut coordinator, 4, 0, newer, 103);
        beats(&mut coordinator, 100..110, 5);
        assert_eq!(coordinator.committed, Some(newer));
    }
}

/// A worker whose checkpoint is of another course of the run, or of a later moment, does not get the state of the run: it would replace that
/// checkpoint. One whose checkpoint the run has passed does.
#[test]
fn a_checkpoint_of_another_course_is_kept() {
    let run = || {
        let mut coordinator = group(3);
        let stand = StateVersion { op: 1, digest: 6 };
        (0..3).for_each(|session| drop(hear(&mut coordinator, session, ToCoordinator::Holds(stand))));
        coordinator
    };
    let told = |actions: &[Action]| {
        let message = actions.iter().rev().find_map(|action| match action {
            Action::Send { session: 20, message } => Some(message.clone()),
            _ => None,
        });
        message.unwrap()
    };
    for version in [StateVersion { op: 272, digest: 9 }, StateVersion { op: 1, digest: 9 }] {
        let ToMember::Refused { why } = told(&enters(&mut run(), 20, 0, version, 0)) else {
            panic!("{version:?}")
        };
        assert!(why.contains("it is kept") && why.contains("--out"), "{why}");
        // A member that was there, and now holds other bits, takes those of the others.
        let answer = told(&enters(&mut run(), 20, 7, version, 0));
        assert!(matches!(answer, ToMember::Restore { .. }), "{answer:?}");
    }
    let passed = told(&enters(&mut run(), 20, 0, StateVersion { op: 0, digest: 5 }, 0));
    assert!(matches!(passed, ToMember::Restore { .. }), "{passed:?}");
    // One from before all that the run remembers may be of any course.
    let version = StateVersion { op: 10, digest: 5 };
    let record = Record { run: 7, epoch: 1, version, members: 1, tokens: vec![1] };
    let mut coordinator = Coordinator::new(Settings::default(), 7, Vec::new(), &[Entry::Committed(record)]);
    let answer = told(&enters(&mut coordinator, 20, 0, StateVersion { op: 8, digest: 5 }, 0));
    assert!(matches!(&answer, ToMember::Refused { why } if why.contains("it is kept")), "{answer:?}");
}
