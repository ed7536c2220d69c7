//! Events as they are told to a coordinator: the same events in few bytes.
//!
//! A round is told of every second or oftener, so it is packed; all other events are seldom, and are JSON. What a repetition of the
//! run would say again crosses bit for bit, and times to the nanosecond, which is what clocks count in.

use crate::Error;
use crate::event::{Event, Mixed, Place, Round, Share, Times};
use serde::{Deserialize, Serialize};

/// The first byte of a round. JSON begins with another.
const ROUND: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Packed {
    steps: u64,
    rounds: u64,
    epochs: f64,
    share: f64,
    elapsed: u64,
    rate: f64,
    loss: Option<f64>,
    workers: Vec<PackedShare>,
    mixed: Vec<Mixed>,
    bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct PackedShare {
    worker: u32,
    steps: u64,
    total: u64,
    loss: Option<f64>,
    times: [u64; 8],
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// The event as bytes.
pub fn pack(event: &Event) -> Result<Vec<u8>, Error> {
    let wrong = |why: String| Error::from(grawa_comm::Error::Message { why });
    let Event::Round(Round { at, rate, loss, workers, mixed, bytes }) = event else {
        return serde_json::to_vec(event).map_err(|error| wrong(error.to_string()));
    };
    let share = |share: &Share| PackedShare {
        worker: share.worker,
        steps: share.steps,
        total: share.total,
        loss: share.loss,
        times: share.times.parts().map(|(_, seconds)| nanoseconds(seconds)),
    };
    let packed = Packed {
        steps: at.steps,
        rounds: at.rounds,
        epochs: at.epochs,
        share: at.share,
        elapsed: nanoseconds(at.elapsed),
        rate: *rate,
        loss: *loss,
        workers: workers.iter().map(share).collect(),
        mixed: mixed.clone(),
        bytes: *bytes,
    };
    postcard::to_extend(&packed, vec![ROUND]).map_err(|error| wrong(error.to_string()))
}

/// The event in bytes.
pub fn unpack(bytes: &[u8]) -> Result<Event, Error> {
    let wrong = |why: String| Error::from(grawa_comm::Error::Message { why });
    let Some((&ROUND, rest)) = bytes.split_first() else {
        return serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()));
    };
    let (packed, rest) =
        postcard::take_from_bytes::<Packed>(rest).map_err(|error| wrong(error.to_string()))?;
    if !rest.is_empty() {
        return Err(wrong(format!("{} bytes too many", rest.len())));
    }
    let Packed { steps, rounds, epochs, share, elapsed, rate, loss, workers, mixed, bytes } = packed;
    // What is not finite could be written down, but not be read again.
    let losses = workers.iter().filter_map(|share| share.loss).chain(loss);
    let weights = mixed.iter().flat_map(|mixed| mixed.weights.iter().flatten().chain([&mixed.pull]));
    let numbers = [epochs, share, rate].into_iter().chain(losses).chain(weights.map(|&x| f64::from(x)));
    if !{ numbers }.all(f64::is_finite) {
        return Err(wrong("a number that is not finite".into()));
    }
    let unpacked = |share: PackedShare| {
        let [compute, score, queue, data, wait, wire, apply, evaluate] = share.times.map(seconds);
        Share {
            worker: share.worker,
            steps: share.steps,
            total: share.total,
            loss: share.loss,
            times: Times { compute, score, queue, data, wait, wire, apply, evaluate },
        }
    };
    let at = Place { steps, rounds, epochs, share, elapsed: seconds(elapsed) };
    let workers = workers.into_iter().map(unpacked).collect();
    Ok(Event::Round(Round { at, rate, loss, workers, mixed, bytes }))
}

/// One of each kind.
#[cfg(any(test, fuzzing))]
pub(crate) fn some() -> [Event; 2] {
    let at = Place { steps: 64, rounds: 2, epochs: 0.1 + 0.2, share: 1.0 / 3.0, elapsed: 3.123_456_789 };
    let times = Times { compute: 0.25, wire: 1e-9, ..Times::default() };
    let share =
        |worker| Share { worker, steps: 32, total: 64, loss: Some(0.7).filter(|_| worker > 0), times };
    let mixed = Mixed {
        workers: vec![0, 1],
        weights: vec![vec![0.1, 0.9], vec![0.3, 0.7]],
        pull: 0.3,
        reasons: vec!["worker 1 leads".into()],
    };
    let workers = vec![share(0), share(1)];
    let round = Round { at, rate: 0.1, loss: Some(2.2), workers, mixed: vec![mixed], bytes: 800 };
    [Event::Round(round), Event::Fault(crate::Fault { at, worker: Some(3), what: "it left".into() })]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn events_go_both_ways() {
        for event in some() {
            assert_eq!(unpack(&pack(&event).unwrap()).unwrap(), event);
        }
    }

    /// What ends up in the files is what the worker would have written there, and takes less than half the bytes.
    #[test]
    fn a_round_is_short_and_its_line_the_same() {
        let [round, _] = some();
        let packed = pack(&round).unwrap();
        let line = serde_json::to_vec(&round).unwrap();
        assert_eq!(serde_json::to_vec(&unpack(&packed).unwrap()).unwrap(), line);
        assert!(2 * packed.len() < line.len(), "{} bytes packed, {} as JSON", packed.len(), line.len());
    }

    #[test]
    fn what_is_left_over_is_refused() {
        let mut bytes = pack(&some()[0]).unwrap();
        bytes.push(0);
        assert!(unpack(&bytes).unwrap_err().to_string().contains("1 bytes too many"));
        assert!(unpack(&[]).is_err() && unpack(b"{}").is_err() && unpack(&[ROUND, 7]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_event_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = unpack(&bytes);
            let _ = unpack(&[&[ROUND], &bytes[..]].concat());
        }

        /// Times may be anything that a clock gives.
        #[test]
        fn times_cross_to_the_nanosecond(ticks in 0u64..1 << 50) {
            prop_assert_eq!(nanoseconds(seconds(ticks)), ticks);
        }
    }
}
