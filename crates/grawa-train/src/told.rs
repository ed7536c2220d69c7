//! Events as they are told to a coordinator: the same events in few bytes.
//!
//! Rounds and evaluations may come many times a second, so they are packed; all other events are seldom, and are JSON. What a
//! repetition of the run would say again crosses bit for bit, and times to the microsecond. Text loses its control characters: it comes
//! from another process, and goes to a terminal.

use crate::Error;
use crate::event::{Evaluated, Event, Fault, Mixed, Model, Place, Round, Share, Started, Times};
use grawa_comm::group::Teller;
use grawa_comm::printable;
use serde::{Deserialize, Serialize};

/// The first byte of a round, and of an evaluation. JSON begins with another.
const ROUND: u8 = 1;
const EVALUATED: u8 = 2;

#[derive(Serialize, Deserialize)]
struct PackedPlace {
    steps: u64,
    rounds: u64,
    epochs: f64,
    share: f64,
    elapsed: u64,
}

impl PackedPlace {
    fn new(at: &Place) -> Self {
        let Place { steps, rounds, epochs, share, elapsed } = *at;
        PackedPlace { steps, rounds, epochs, share, elapsed: microseconds(elapsed) }
    }

    fn unpack(self) -> Place {
        let PackedPlace { steps, rounds, epochs, share, elapsed } = self;
        Place { steps, rounds, epochs, share, elapsed: seconds(elapsed) }
    }
}

#[derive(Serialize, Deserialize)]
struct PackedEvaluated {
    at: PackedPlace,
    models: Vec<Model>,
}

#[derive(Serialize, Deserialize)]
struct PackedRound {
    at: PackedPlace,
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

fn microseconds(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

fn seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}

fn wrong(why: String) -> Error {
    grawa_comm::Error::Message { why }.into()
}

fn packed(kind: u8, what: &impl Serialize) -> Result<Vec<u8>, Error> {
    postcard::to_extend(what, vec![kind]).map_err(|error| wrong(error.to_string()))
}

/// All of the bytes must belong to it.
fn whole<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Error> {
    let (found, rest) = postcard::take_from_bytes(bytes).map_err(|error| wrong(error.to_string()))?;
    match rest {
        [] => Ok(found),
        _ => Err(wrong(format!("{} bytes too many", rest.len()))),
    }
}

/// What is not finite could be written down, but not be read again.
fn check(at: &PackedPlace, numbers: impl IntoIterator<Item = f64>) -> Result<(), Error> {
    match [at.epochs, at.share].into_iter().chain(numbers).all(f64::is_finite) {
        true => Ok(()),
        false => Err(wrong("a number that is not finite".into())),
    }
}

/// The event as bytes.
pub fn pack(event: &Event) -> Result<Vec<u8>, Error> {
    let share = |share: &Share| PackedShare {
        worker: share.worker,
        steps: share.steps,
        total: share.total,
        loss: share.loss,
        times: share.times.parts().map(|(_, seconds)| microseconds(seconds)),
    };
    match event {
        Event::Round(Round { at, rate, loss, workers, mixed, bytes }) => {
            let (at, workers) = (PackedPlace::new(at), workers.iter().map(share).collect());
            let round =
                PackedRound { at, rate: *rate, loss: *loss, workers, mixed: mixed.clone(), bytes: *bytes };
            packed(ROUND, &round)
        }
        Event::Evaluated(Evaluated { at, models }) => {
            packed(EVALUATED, &PackedEvaluated { at: PackedPlace::new(at), models: models.clone() })
        }
        other => serde_json::to_vec(other).map_err(|error| wrong(error.to_string())),
    }
}

/// Tells those who watch elsewhere.
pub(crate) fn tell(teller: &Teller, event: &Event) -> Result<(), Error> {
    Ok(teller.tell(pack(event)?)?)
}

/// The event in bytes.
pub fn unpack(bytes: &[u8]) -> Result<Event, Error> {
    let mut event = match bytes.split_first() {
        Some((&ROUND, rest)) => round(whole(rest)?)?,
        Some((&EVALUATED, rest)) => {
            let PackedEvaluated { at, models } = whole(rest)?;
            check(&at, models.iter().filter_map(|model| model.loss))?;
            Event::Evaluated(Evaluated { at: at.unpack(), models })
        }
        _ => serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?,
    };
    texts(&mut event, |text| *text = printable(text));
    Ok(event)
}

/// Does something with every text of an event. Its parts are named one by one, so that no text is added without a place here.
fn texts(event: &mut Event, mut change: impl FnMut(&mut String)) {
    match event {
        Event::Started(Started {
            method,
            network,
            data,
            spans,
            at: _,
            workers: _,
            batch: _,
            seed: _,
            budget: _,
            steps: _,
            parameters: _,
            examples: _,
            resumed: _,
        }) => {
            [method, network, data].into_iter().for_each(&mut change);
            spans.iter_mut().for_each(change);
        }
        Event::Round(Round { mixed, at: _, rate: _, loss: _, workers: _, bytes: _ }) => {
            for Mixed { reasons, workers: _, weights: _, pull: _ } in mixed {
                reasons.iter_mut().for_each(&mut change);
            }
        }
        Event::Evaluated(Evaluated { models, at: _ }) => {
            for Model { which, loss: _, wrong: _, examples: _ } in models {
                change(which);
            }
        }
        Event::Checkpoint { path, at: _ } => {
            let mut text = path.to_string_lossy().into_owned();
            change(&mut text);
            *path = text.into();
        }
        Event::Fault(Fault { what, at: _, worker: _ }) => change(what),
        Event::Finished(crate::Finished { at: _, reason: _, workers: _, bytes: _, diverged: _ }) => {}
    }
}

fn round(packed: PackedRound) -> Result<Event, Error> {
    let PackedRound { at, rate, loss, workers, mixed, bytes } = packed;
    let losses = workers.iter().filter_map(|share| share.loss).chain(loss);
    let weights = mixed.iter().flat_map(|mixed| mixed.weights.iter().flatten().chain([&mixed.pull]));
    check(&at, losses.chain([rate]).chain(weights.map(|&x| f64::from(x))))?;
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
    let workers = workers.into_iter().map(unpacked).collect();
    Ok(Event::Round(Round { at: at.unpack(), rate, loss, workers, mixed, bytes }))
}

/// One of each kind.
#[cfg(any(test, fuzzing))]
pub(crate) fn some() -> [Event; 3] {
    let at = Place { steps: 64, rounds: 2, epochs: 0.1 + 0.2, share: 1.0 / 3.0, elapsed: 3.123_456 };
    let times = Times { compute: 0.25, wire: 1e-6, ..Times::default() };
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
    let model = Model { which: "mean".into(), loss: Some(0.1 + 0.2), wrong: 5, examples: 359 };
    let evaluated = Evaluated { at, models: vec![model.clone(), Model { loss: None, ..model }] };
    [
        Event::Round(round),
        Event::Evaluated(evaluated),
        Event::Fault(crate::Fault { at, worker: Some(3), what: "it left".into() }),
    ]
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
    fn rounds_and_evaluations_are_short_and_their_lines_the_same() {
        for event in &some()[..2] {
            let packed = pack(event).unwrap();
            let line = serde_json::to_vec(event).unwrap();
            assert_eq!(serde_json::to_vec(&unpack(&packed).unwrap()).unwrap(), line);
            assert!(2 * packed.len() < line.len(), "{} bytes packed, {} as JSON", packed.len(), line.len());
        }
    }

    #[test]
    fn what_is_left_over_is_refused() {
        let mut bytes = pack(&some()[0]).unwrap();
        bytes.push(0);
        assert!(unpack(&bytes).unwrap_err().to_string().contains("1 bytes too many"));
        assert!(unpack(&[]).is_err() && unpack(b"{}").is_err() && unpack(&[ROUND, 7]).is_err());
    }

    /// Whatever text a worker puts into an event, no terminal obeys it.
    #[test]
    fn text_is_printable_once_it_is_unpacked() {
        let evil = || String::from("\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}31m\r\n");
        let [Event::Round(round), Event::Evaluated(evaluated), Event::Fault(fault)] = some() else {
            unreachable!()
        };
        let mut mixed = round.mixed.clone();
        mixed[0].reasons = vec![evil()];
        let models = vec![Model { which: evil(), ..evaluated.models[0].clone() }];
        let started = Started {
            at: round.at,
            method: evil(),
            network: evil(),
            data: evil(),
            workers: 2,
            batch: 32,
            seed: 7,
            budget: grawa_core::Amount::Steps(64),
            steps: Some(64),
            parameters: 800,
            spans: vec![evil(); 2],
            examples: 359,
            resumed: false,
        };
        for (event, texts) in [
            (Event::Started(started), 5),
            (Event::Round(Round { mixed, ..round.clone() }), 1),
            (Event::Evaluated(Evaluated { models, ..evaluated }), 1),
            (Event::Checkpoint { at: round.at, path: evil().into() }, 1),
            (Event::Fault(Fault { what: evil(), ..fault }), 1),
        ] {
            let found = format!("{:?}", unpack(&pack(&event).unwrap()).unwrap());
            // `Debug` writes control characters as escapes.
            assert!(!found.contains('\\'), "{found}");
            let defused = "\u{fffd}[2J\u{fffd}]0;title\u{fffd}\u{fffd}31m  ";
            assert_eq!(found.matches(defused).count(), texts, "{found}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_event_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = unpack(&bytes);
            let _ = unpack(&[&[ROUND], &bytes[..]].concat());
        }

        /// Times may be anything that a clock gives.
        #[test]
        fn times_cross_to_the_microsecond(ticks in 0u64..1 << 50) {
            prop_assert_eq!(microseconds(seconds(ticks)), ticks);
        }
    }
}
