//! What every worker sends to all others at the end of a cycle: its report to the round, and its work since the last report.

use crate::{Error, Times};
use grawa_core::Report;
use serde::{Deserialize, Serialize};

/// The message of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoundMessage {
    /// It was asked to stop.
    pub(crate) stop: bool,
    /// It has taken all its steps.
    pub(crate) full: bool,
    /// Whether its vector is finite.
    pub(crate) finite: bool,
    /// It writes checkpoints.
    pub(crate) keeps: bool,
    /// It reports to the coordinator, which has not acknowledged this many of its reports.
    pub(crate) is_reporter: bool,
    pub(crate) unacknowledged: u8,
    /// Reports that it would send again as the reporter.
    #[serde(with = "postcard::fixint::le")]
    pub(crate) kept: u16,
    /// Its clock.
    pub(crate) elapsed: f64,
    /// Its local steps since the last round.
    #[serde(with = "postcard::fixint::le")]
    pub(crate) steps: u64,
    /// Its local steps in all.
    #[serde(with = "postcard::fixint::le")]
    pub(crate) taken: u64,
    /// Its scores, which are sent after the rest.
    #[serde(skip)]
    pub(crate) scores: Vec<f64>,
    /// Its work since the last event, which is sent before the scores: a checkpoint has another form of it.
    #[serde(skip)]
    pub(crate) tally: Tally,
}

/// Bytes of a message besides its scores. All numbers have a fixed length, so that traffic can be forecast.
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

impl RoundMessage {
    /// The report to a round.
    pub(crate) fn report(&self, worker: u32) -> Report {
        Report { worker, scores: self.scores.clone(), finite: self.finite, steps: self.steps }
    }

    /// The bytes.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Error> {
        let Tally { steps, loss, times, bytes } = self.tally;
        let head = postcard::to_allocvec(&(self, (steps.to_le_bytes(), loss, times, bytes.to_le_bytes())));
        let head = head.map_err(|error| grawa_comm::Error::Message { why: error.to_string() })?;
        Ok([head, to_bytes(&self.scores)].concat())
    }

    /// The message of `worker`, from its bytes.
    pub(crate) fn decode(worker: u32, bytes: &[u8]) -> Result<Self, Error> {
        match postcard::take_from_bytes(bytes) {
            Ok(((message, (steps, loss, times, sent)), rest)) => {
                let scores = from_bytes(worker, rest, rest.len() / 8)?;
                let (steps, bytes) = (u64::from_le_bytes(steps), u64::from_le_bytes(sent));
                Ok(RoundMessage { scores, tally: Tally { steps, loss, times, bytes }, ..message })
            }
            Err(_) => Err(Error::Garbled { worker, found: bytes.len() }),
        }
    }
}

/// The numbers of a vector as bytes.
pub(crate) fn to_bytes(numbers: &[f64]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The numbers in bytes of `worker`, of which there must be `expected`.
pub(crate) fn from_bytes(worker: u32, bytes: &[u8], expected: usize) -> Result<Vec<f64>, Error> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || chunks.len() != expected {
        return Err(Error::Garbled { worker, found: bytes.len() });
    }
    Ok(chunks.iter().map(|&x| f64::from_le_bytes(x)).collect())
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
            let message = RoundMessage {
                stop, full, finite, keeps, is_reporter, unacknowledged, kept, elapsed, steps, taken, scores, tally,
            };
            let bytes = message.encode().unwrap();
            prop_assert_eq!(bytes.len() as u64, LENGTH + 8 * message.scores.len() as u64);
            prop_assert_eq!(RoundMessage::decode(3, &bytes).unwrap(), message);
            prop_assert!(RoundMessage::decode(3, &bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = RoundMessage::decode(0, &bytes);
            let _ = from_bytes(0, &bytes, 3);
        }
    }
}
