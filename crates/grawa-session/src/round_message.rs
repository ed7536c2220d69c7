//! What every process sends to all others at the end of a cycle: for each of its workers the report to the round, and the work since the
//! last report.

use crate::Error;
use crate::event::Times;
use grawa_core::Report;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

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
    /// The learning rate of its last step.
    pub rate: f64,
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_are_read_back(stop: bool, full: bool, finite: bool, keeps: bool, steps: u64, taken: u64,
                              scores in proptest::collection::vec(-1e300f64..1e300, 0..9), seconds in 0.0f64..1e9) {
            let times = Times { compute: seconds, evaluate: 2.0 * seconds, ..Times::default() };
            let tally = Tally { steps: steps / 2, loss: seconds, times, bytes: taken };
            let (elapsed, kept, is_reporter, unacknowledged) = (seconds, steps as u16, keeps, taken as u8);
            let worker = RoundMessage { full, finite, steps, taken, scores, rate: seconds, tally };
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
