//! Members, and a coordinator, that say anything at any time. Neither side panics, connections are members one to one, epochs never
//! fall, and the coordinator goes on from its own records.
#![no_main]

use grawa_comm::group::message::{Call, Down, Stand, Up, VERSION, encode};
use grawa_comm::group::{Action, Coordinator, Event, Member, Record, Settings};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;

/// Connections that may be open at once.
const SESSIONS: u8 = 6;

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&first, mut rest)) = bytes.split_first() else { return };
    let settings = Settings {
        founders: u32::from(first % 4),
        at_least: u32::from(first / 4 % 3),
        trigger: (first & 64 > 0).then_some(3),
        ..Settings::default()
    };
    let mut records: Vec<Record> = Vec::new();
    let mut coordinator = Coordinator::new(settings, 7, Vec::new(), &records);
    let mut member = Member::new(1, "nowhere".into());
    let mut now = Duration::ZERO;
    // A number is never that of another connection again.
    let mut open: [u64; SESSIONS as usize] = std::array::from_fn(|session| session as u64);
    while let [kind, session, tail @ ..] = rest {
        rest = tail;
        let number = u64::from(session / SESSIONS);
        let session = u64::from(session % SESSIONS);
        now += Duration::from_millis(u64::from(kind >> 3) * 10);
        let event = match kind % 8 {
            0 => Event::Tick,
            1 => {
                let ended = open[session as usize];
                open[session as usize] += u64::from(SESSIONS);
                Event::Ended { session: ended }
            }
            // It dies, and another goes on from what it has written.
            2 => {
                let epoch = coordinator.epoch();
                coordinator = Coordinator::new(settings, 7, Vec::new(), &records);
                assert!(records.is_empty() || coordinator.epoch() > epoch);
                open.iter_mut().for_each(|session| *session += u64::from(SESSIONS));
                Event::Tick
            }
            3 => {
                let Ok((down, tail)) = postcard::take_from_bytes::<Down>(rest) else { return };
                rest = tail;
                let _ = member.hear(down);
                Event::Tick
            }
            4 => {
                let stand = Stand { op: number, digest: session };
                match session {
                    0 => drop(member.connected()),
                    1 => member.disconnected(),
                    2 => drop(member.enter(stand)),
                    3 => drop(member.stands(number)),
                    4 => drop(member.took(stand)),
                    _ => member.turn_away(),
                }
                Event::Tick
            }
            5 => {
                let tag = (number, member.op(), 0);
                match session {
                    0 | 1 => drop(member.come(Call::Gather, number)),
                    2 => drop(member.come(Call::Mix { plan: 1, centre: 0 }, number)),
                    3 => drop(member.done(tag, 5)),
                    4 => drop(member.broken(tag, 1, String::new())),
                    _ => drop(member.not_taken(1)),
                }
                Event::Tick
            }
            _ => {
                let Ok((up, tail)) = postcard::take_from_bytes::<Up>(rest) else { return };
                rest = tail;
                Event::Heard { session: open[session as usize], up }
            }
        };
        let epoch = coordinator.epoch();
        for action in coordinator.on(event, now) {
            match action {
                Action::Keep(record) => records.push(record),
                Action::Send { session, .. } | Action::End { session } => {
                    assert!(open.contains(&session), "something is to be done with a connection that has ended");
                }
                Action::Tell { .. } | Action::Say(_) => {}
            }
        }
        assert!(coordinator.epoch() >= epoch);
        let _ = coordinator.reason(now);
        let members = coordinator.seats().values().filter(|seat| seat.is_connected()).count();
        assert!(members <= SESSIONS.into(), "{members} members on {SESSIONS} connections");
    }
});

/// A meeting of two, a move of vectors, a newcomer, and a death.
fn seeds() {
    let Some(folder) = std::env::var_os("SEEDS") else { return };
    let mut bytes = vec![2u8];
    let mut say = |session: u8, up: &Up| {
        bytes.extend([7, session]);
        bytes.extend(encode(up).unwrap());
    };
    let start = Stand { op: 0, digest: 5 };
    for session in 0..3u8 {
        let token = 100 + u64::from(session);
        say(session, &Up::Hello { version: VERSION, run: 0, token, worker: None, address: "a:1".into() });
        say(session, &Up::Enter(start));
    }
    let arrive = |op, call| Up::Arrive { op, call, steps: 4, knows: 0 };
    let mix = Call::Mix { plan: 5, centre: 0 };
    for (op, call) in [(0, Call::Gather), (1, mix)] {
        (0..2).for_each(|session| say(session, &arrive(op, call)));
        (0..2).for_each(|session| say(session, &Up::Done { epoch: 1, op, attempt: 1, digest: 6 }));
    }
    let stand = Stand { op: 2, digest: 7 };
    (0..2).for_each(|session| say(session, &Up::Stands(stand)));
    say(2, &Up::Took(stand));
    for (op, call) in [(2, Call::Gather), (3, mix)] {
        (0..3).for_each(|session| say(session, &arrive(op, call)));
        (0..3).filter(|_| op == 2).for_each(|session| say(session, &Up::Done { epoch: 2, op, attempt: 1, digest: 6 }));
    }
    say(0, &Up::Broken { epoch: 2, op: 3, attempt: 1, peer: 2, why: String::new() });
    say(1, &Up::Beat { steps: 4, progress: 4 });
    bytes.extend([1, 2, 0xf8, 0, 0xf8, 0, 2, 0]);
    std::fs::write(std::path::Path::new(&folder).join("round"), bytes).unwrap();
}
