//! Members, and a coordinator, that send anything at any time. Neither side panics, every connection is one member, epochs never
//! decrease, and the coordinator continues from its own journal.
#![no_main]

use grawa_comm::group::Settings;
use grawa_comm::group::internals::messages::{
    Call, Entry, Hello, Proposal, StateVersion, ToCoordinator, ToMember, VERSION, encode,
};
use grawa_comm::group::internals::{Action, Coordinator, Input, Member};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;

/// Connections that may be open at once.
const SESSIONS: u8 = 6;

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&first, mut rest)) = bytes.split_first() else { return };
    let settings = Settings {
        founders: u32::from(first % 4),
        trigger: (first & 64 > 0).then_some(3),
        ..Settings::default()
    };
    let mut records: Vec<Entry> = Vec::new();
    let mut coordinator = Coordinator::new(settings, 7, Vec::new(), &records);
    let mut member = Member::new(1, "nowhere".into(), 1, None);
    let mut now = Duration::ZERO;
    // The number of a connection is never used again.
    let mut open: [u64; SESSIONS as usize] = std::array::from_fn(|session| session as u64);
    while let [kind, session, tail @ ..] = rest {
        rest = tail;
        let number = u64::from(session / SESSIONS);
        let session = u64::from(session % SESSIONS);
        now += Duration::from_millis(u64::from(kind >> 3) * 10);
        let input = match kind % 8 {
            0 => Input::Tick,
            1 => {
                let ended = open[session as usize];
                open[session as usize] += u64::from(SESSIONS);
                Input::Disconnected { session: ended }
            }
            // It dies, and another continues from its journal.
            2 => {
                let epoch = coordinator.epoch;
                coordinator = Coordinator::new(settings, 7, Vec::new(), &records);
                let has_committed = records.iter().any(|entry| matches!(entry, Entry::Committed(_)));
                assert!(!has_committed || coordinator.epoch > epoch);
                open.iter_mut().for_each(|session| *session += u64::from(SESSIONS));
                Input::Tick
            }
            3 => {
                let Ok((down, tail)) = postcard::take_from_bytes::<ToMember>(rest) else { return };
                rest = tail;
                let _ = member.handle(down);
                Input::Tick
            }
            4 => {
                let stand = StateVersion { op: number, digest: session };
                match session {
                    0 => drop(member.connected()),
                    1 => member.disconnected(),
                    2 => drop(member.enter(stand)),
                    3 => drop(member.publish(number)),
                    4 => drop(member.restored(stand)),
                    _ => member.abandon(),
                }
                Input::Tick
            }
            6 if session == 0 => Input::AskToStop,
            6 => Input::Paused(Duration::from_millis(number * 100)),
            5 => {
                let tag = (number, member.op, 0);
                match session {
                    0 => drop(member.call(Call::Gather, number)),
                    1 if number % 2 == 0 => drop(member.call(Call::FinalBarrier, number)),
                    1 => drop(member.call(Call::Finish, number)),
                    2 => drop(member.call(Call::Mix { plan: 1, centre: 0 }, number)),
                    3 => drop(member.done(tag, 5)),
                    4 => drop(member.failed(tag, 1, String::new())),
                    _ => drop(member.not_restored(1)),
                }
                Input::Tick
            }
            _ => {
                let Ok((up, tail)) = postcard::take_from_bytes::<ToCoordinator>(rest) else { return };
                rest = tail;
                Input::Message { session: open[session as usize], message: up }
            }
        };
        let epoch = coordinator.epoch;
        for action in coordinator.handle(input, now) {
            match action {
                Action::Log(entry) => records.push(entry),
                Action::Send { session, .. } | Action::Disconnect { session } => {
                    assert!(open.contains(&session), "an action concerns a connection that has ended");
                }
                Action::Report { .. } | Action::Emit(_) => {}
            }
        }
        assert!(coordinator.epoch >= epoch);
        let _ = coordinator.reason(now);
        let members = coordinator.roster.values().filter(|record| record.is_connected()).count();
        assert!(members <= SESSIONS.into(), "{members} members on {SESSIONS} connections");
    }
});

/// An operation of two, a transfer of vectors, a joiner, and a death; and the end of a run.
fn seeds() {
    let Some(folder) = std::env::var_os("SEEDS") else { return };
    let keep = |name: &str, bytes| std::fs::write(std::path::Path::new(&folder).join(name), bytes).unwrap();
    let say = |bytes: &mut Vec<u8>, session: u8, up: &ToCoordinator| {
        bytes.extend([7, session]);
        bytes.extend(encode(up).unwrap());
    };
    let start = StateVersion { op: 0, digest: 5 };
    let mut begun = vec![2u8];
    for session in 0..3u8 {
        let token = 100 + u64::from(session);
        let hello = Hello { version: VERSION, run: 0, token, worker: None, address: "a:1".into() };
        say(&mut begun, session, &ToCoordinator::Hello(hello));
        let proposal = Proposal { charter: vec![session + 1], trigger: None, wait: Some(500) };
        say(&mut begun, session, &ToCoordinator::Propose(proposal));
        say(&mut begun, session, &ToCoordinator::Enter(start));
    }
    let arrive = |op, call| ToCoordinator::Arrive { op, call, steps: 4, known_epoch: 0 };
    let done = |attempt| ToCoordinator::Done { attempt, digest: 6 };
    let mix = Call::Mix { plan: 5, centre: 0 };
    let mut bytes = begun.clone();
    for (op, call) in [(0, Call::Gather), (1, mix)] {
        (0..2).for_each(|session| say(&mut bytes, session, &arrive(op, call)));
        (0..2).for_each(|session| say(&mut bytes, session, &done((1, op, 1))));
    }
    let stand = StateVersion { op: 2, digest: 7 };
    (0..2).for_each(|session| say(&mut bytes, session, &ToCoordinator::Holds(stand)));
    say(&mut bytes, 2, &ToCoordinator::Enter(stand));
    for (op, call) in [(2, Call::Gather), (3, mix)] {
        (0..3).for_each(|session| say(&mut bytes, session, &arrive(op, call)));
        (0..3).filter(|_| op == 2).for_each(|session| say(&mut bytes, session, &done((2, op, 1))));
    }
    let unreadable = ToCoordinator::Unreadable { attempt: (2, 3, 1), peer: 1, why: String::new() };
    say(&mut bytes, 0, &ToCoordinator::Failed { attempt: (2, 3, 1), peer: 2, why: String::new() });
    say(&mut bytes, 2, &unreadable);
    say(&mut bytes, 1, &ToCoordinator::Heartbeat { steps: 4, progress: 4, workers: 1 });
    bytes.extend([1, 2, 0xf8, 0, 6, 7, 6, 0, 0xf8, 0, 2, 0]);
    keep("round", bytes);
    let mut bytes = begun;
    for (op, call) in [(0, Call::FinalBarrier), (1, Call::Finish)] {
        (0..2).for_each(|session| say(&mut bytes, session, &arrive(op, call)));
        (0..2).for_each(|session| say(&mut bytes, session, &done((1, op, 1))));
    }
    (0..2).for_each(|session| say(&mut bytes, session, &ToCoordinator::Report(b"{}".to_vec())));
    say(&mut bytes, 2, &ToCoordinator::Enter(start));
    (0..2).for_each(|session| say(&mut bytes, session, &ToCoordinator::Leave));
    keep("end", bytes);
}
