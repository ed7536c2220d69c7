//! What every process sends to all others at the end of a cycle: for each of its workers the report to the round, and the work since the
//! last report.

use crate::Error;
use crate::event::Times;
use grawa_core::Report;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The message of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessMessage {
    /// It was asked to stop.
    pub stop: bool,
    /// It writes checkpoints.
    pub keeps: bool,
    /// It reports to the coordinator, which has not acknowledged this many of its reports.
    pub is_reporter: bool,
    pub unacknowledged: u8,
    /// Reports that it would send again as the reporter.
    pub kept: u16,
    /// Its clock.
    pub elapsed: f64,
    /// Its workers, in order.
    pub workers: Vec<(u32, RoundMessage)>,
}

/// The part of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundMessage {
    /// It has taken all its steps.
    pub full: bool,
    /// Whether its vector is finite.
    pub finite: bool,
    /// Its local steps since the last round.
    pub steps: u64,
    /// Its local steps in all.
    pub taken: u64,
    pub scores: Vec<f64>,
    /// The learning rate of its last step that had one above 0.
    pub rate: f64,
    /// A digest of its vector, if steps have changed it; 0 where that is not known.
    pub digest: u64,
    /// Its work since the last event.
    #[serde(with = "whole_tally")]
    pub tally: Tally,
}

/// Bytes that a worker's part counts as, besides its scores: numbers are shorter or longer, and a forecast needs one length.
pub const LENGTH: u64 = 120;

/// The work of a worker since the last event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    pub steps: u64,
    pub loss: f64,
    /// Checkpoints keep times elsewhere.
    #[serde(skip)]
    pub times: Times,
    pub bytes: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.steps += other.steps;
        self.loss += other.loss;
        self.times += other.times;
        self.bytes += other.bytes;
    }
}

/// A tally with its times, which checkpoints keep elsewhere.
mod whole_tally {
    use super::{Tally, Times};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(tally: &Tally, to: S) -> Result<S::Ok, S::Error> {
        (tally, tally.times).serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Tally, D::Error> {
        let (tally, times): (Tally, Times) = Deserialize::deserialize(from)?;
        Ok(Tally { times, ..tally })
    }
}

impl ProcessMessage {
    /// What is wrong with it in an exchange in which each worker sends so many scores, if something is. An event with a time that is not
    /// finite could not be recorded.
    pub fn objection(&self, scores: usize) -> Option<String> {
        if !self.elapsed.is_finite() || self.elapsed < 0.0 {
            return Some(format!("its clock is at {:e} s", self.elapsed));
        }
        self.workers.iter().find_map(|(worker, message)| {
            let (found, mut times) = (message.scores.len(), message.tally.times.parts().into_iter());
            if found != scores {
                return Some(format!("worker {worker} reports {found} scores, and {scores} are needed"));
            }
            let (what, seconds) = times.find(|(_, seconds)| !seconds.is_finite())?;
            Some(format!("worker {worker} reports {seconds} s of {what}"))
        })
    }
}

impl RoundMessage {
    /// The report to a round.
    pub fn report(&self, worker: u32) -> Report {
        Report { worker, scores: self.scores.clone(), finite: self.finite, steps: self.steps }
    }

    /// Bytes that it counts as.
    pub fn bytes(&self) -> u64 {
        LENGTH + 8 * self.scores.len() as u64
    }
}

/// What two of these workers do alike, if their steps have led to the same vector, bit for bit. A worker that took no step, or whose steps
/// changed nothing, has no digest.
pub fn alike(messages: &[(u32, RoundMessage)]) -> Option<String> {
    let mut seen = std::collections::BTreeMap::new();
    messages.iter().filter(|(_, message)| message.digest != 0).find_map(|(worker, message)| {
        let other = seen.insert(message.digest, *worker)?;
        Some(format!(
            "workers {other} and {worker} have the same parameters after their steps, bit for bit: they train on the same batches, so \
             one of them is of no use; draw batches with another seed in each worker (seed + worker), or take those of the run's loader"
        ))
    })
}

/// The bytes of a message.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Error> {
    Ok(postcard::to_allocvec(message)
        .map_err(|error| grawa_comm::Error::Message { why: error.to_string() })?)
}

/// The message of a process, from its bytes.
pub fn decode<T: DeserializeOwned>(process: u32, bytes: &[u8]) -> Result<T, Error> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(Error::Garbled { worker: process, found: bytes.len() }),
    }
}

/// Judges a message before anyone uses it: its bytes must be read, and there must be no objection to it.
pub fn check<T: DeserializeOwned>(
    process: u32,
    bytes: &[u8],
    objection: impl FnOnce(&T) -> Option<String>,
) -> Result<(), String> {
    let message = decode::<T>(process, bytes).map_err(|error| error.to_string())?;
    objection(&message).map_or(Ok(()), Err)
}

/// What is wrong with the workers of a process that may have these numbers, if something is.
pub fn not_own(numbers: &Range<u32>, workers: impl Iterator<Item = u32>) -> Option<String> {
    let workers: Vec<u32> = workers.collect();
    let is_own = workers.is_sorted_by(|a, b| a < b) && workers.iter().all(|worker| numbers.contains(worker));
    // A process without workers leaves.
    let why = || {
        let Range { start, end } = numbers;
        format!(
            "it speaks for {} workers, and not for some of its own, {start} to {}, in order",
            workers.len(),
            end - 1
        )
    };
    (!is_own || workers.is_empty()).then(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// CRC-32C, written out: this crate computes none otherwise.
    fn crc(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |crc, byte| {
            (0..8).fold(
                crc ^ u32::from(*byte),
                |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 },
            )
        })
    }

    /// Builds whose messages have other formats must have other fingerprints, so that they are not in one group.
    #[cfg(feature = "group")]
    #[test]
    fn the_fingerprint_knows_these_formats() {
        let times = Times {
            compute: 1.0,
            score: 2.0,
            queue: 3.0,
            data: 4.0,
            wait: 5.0,
            wire: 6.0,
            apply: 7.0,
            evaluate: 8.0,
        };
        let tally = Tally { steps: 500, loss: 2.5, times, bytes: 600 };
        let (scores, rate, digest) = (vec![1.0, 2.0], 0.5, 7);
        let worker =
            RoundMessage { full: true, finite: false, steps: 300, taken: 400, scores, rate, digest, tally };
        let message = ProcessMessage {
            stop: true,
            keeps: false,
            is_reporter: true,
            unacknowledged: 7,
            kept: 300,
            elapsed: 1.5,
            workers: vec![(3, worker)],
        };
        let view: Vec<(u32, f64, bool)> = vec![(3, 2.5, true)];
        let numbers: Vec<(u32, Vec<f64>)> = vec![(3, vec![1.0, 2.0])];
        let all = [encode(&message), encode(&view), encode(&numbers)].map(Result::unwrap).concat();
        let found = crc(&all);
        assert_eq!(
            found,
            grawa_comm::group::SESSION_FORMATS,
            "a format has changed: set SESSION_FORMATS (grawa-comm/src/group/fingerprint.rs) to 0x{found:08x}"
        );
    }

    #[test]
    fn workers_that_are_alike_are_named() {
        let all = |digests: &[u64]| -> Vec<(u32, RoundMessage)> {
            let message = |digest: &u64| RoundMessage { digest: *digest, ..RoundMessage::default() };
            digests.iter().map(message).zip(3..).map(|(message, worker)| (worker, message)).collect()
        };
        // Zero is no digest.
        for fine in [&[][..], &[7], &[0, 0, 0], &[7, 8, 9], &[0, 7, 0]] {
            assert_eq!(alike(&all(fine)), None);
        }
        let why = alike(&all(&[5, 0, 7, 5, 7])).unwrap();
        assert!(why.starts_with("workers 3 and 6 have the same parameters"), "{why}");
    }

    proptest! {
        #[test]
        fn messages_are_read_back(stop: bool, full: bool, finite: bool, keeps: bool, steps: u64, taken: u64,
                              digest: u64, scores in proptest::collection::vec(-1e300f64..1e300, 0..9), seconds in 0.0f64..1e9) {
            let times = Times { compute: seconds, evaluate: 2.0 * seconds, ..Times::default() };
            let tally = Tally { steps: steps / 2, loss: seconds, times, bytes: taken };
            let (elapsed, kept, is_reporter, unacknowledged) = (seconds, steps as u16, keeps, taken as u8);
            let worker = RoundMessage { full, finite, steps, taken, scores, rate: seconds, digest, tally };
            let workers = vec![(3, worker.clone()), (9, worker)];
            let message = ProcessMessage { stop, keeps, is_reporter, unacknowledged, kept, elapsed, workers };
            let bytes = encode(&message).unwrap();
            prop_assert_eq!(decode::<ProcessMessage>(3, &bytes).unwrap(), message);
            prop_assert!(decode::<ProcessMessage>(3, &bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<ProcessMessage>(0, &bytes);
            let _ = decode::<Vec<(u32, Vec<f64>)>>(0, &bytes);
        }
    }
}
