//! What every process sends to all others at the end of a cycle: for each of its workers the report to the round, and the work since the
//! last report.

use crate::{Error, Times};
use grawa_core::Report;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The message of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcessMessage {
    /// It was asked to stop.
    pub(crate) stop: bool,
    /// It writes checkpoints.
    pub(crate) keeps: bool,
    /// It reports to the coordinator, which has not acknowledged this many of its reports.
    pub(crate) is_reporter: bool,
    pub(crate) unacknowledged: u8,
    /// Reports that it would send again as the reporter.
    pub(crate) kept: u16,
    /// Its clock.
    pub(crate) elapsed: f64,
    /// Its workers, in order.
    pub(crate) workers: Vec<(u32, RoundMessage)>,
}

/// The part of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoundMessage {
    /// It has taken all its steps.
    pub(crate) full: bool,
    /// Whether its vector is finite.
    pub(crate) finite: bool,
    /// Its local steps since the last round.
    pub(crate) steps: u64,
    /// Its local steps in all.
    pub(crate) taken: u64,
    pub(crate) scores: Vec<f64>,
    /// Its work since the last event.
    #[serde(with = "whole_tally")]
    pub(crate) tally: Tally,
}

/// Bytes that a worker's part counts as, besides its scores: numbers are shorter or longer, and a forecast needs one length.
pub(crate) const LENGTH: u64 = 120;

/// The work of a worker since the last event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) steps: u64,
    pub(crate) loss: f64,
    /// Checkpoints keep times elsewhere.
    #[serde(skip)]
    pub(crate) times: Times,
    pub(crate) bytes: u64,
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
    pub(crate) fn report(&self, worker: u32) -> Report {
        Report { worker, scores: self.scores.clone(), finite: self.finite, steps: self.steps }
    }

    /// Bytes that it counts as.
    pub(crate) fn bytes(&self) -> u64 {
        LENGTH + 8 * self.scores.len() as u64
    }
}

/// The bytes of a message.
pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Error> {
    Ok(postcard::to_allocvec(message)
        .map_err(|error| grawa_comm::Error::Message { why: error.to_string() })?)
}

/// The message of a process, from its bytes.
pub(crate) fn decode<T: DeserializeOwned>(process: u32, bytes: &[u8]) -> Result<T, Error> {
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
            let worker = RoundMessage { full, finite, steps, taken, scores, tally };
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
