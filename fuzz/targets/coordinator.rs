//! Members that say anything at any time: the coordinator must neither panic nor forget who is there.
#![no_main]

use grawa_comm::group::message::{Down, Up};
use grawa_comm::group::{Coordinator, Event, Member, Settings};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;

fuzz_target!(|bytes: &[u8]| {
    let settings = Settings { founders: 2, trigger: Some(3), ..Settings::default() };
    let mut coordinator = Coordinator::new(settings, 7, Vec::new(), &[]);
    let mut member = Member::new(1, "nowhere".into());
    let (mut now, mut rest) = (Duration::ZERO, bytes);
    while let [kind, session, tail @ ..] = rest {
        rest = tail;
        let session = u64::from(session % 4);
        now += Duration::from_millis(u64::from(kind >> 2) * 10);
        let event = match kind % 4 {
            0 => Event::Tick,
            1 => Event::Ended { session },
            2 => {
                if let Ok((down, tail)) = postcard::take_from_bytes::<Down>(rest) {
                    rest = tail;
                    let _ = member.hear(down);
                }
                Event::Tick
            }
            _ => match postcard::take_from_bytes::<Up>(rest) {
                Ok((up, tail)) => {
                    rest = tail;
                    Event::Heard { session, up }
                }
                Err(_) => return,
            },
        };
        let _ = coordinator.on(event, now);
        let _ = coordinator.reason(now);
        assert!(coordinator.seats().len() <= 4);
    }
});
