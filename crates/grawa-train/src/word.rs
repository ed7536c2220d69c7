//! What a worker says at a meeting, as bytes: its report to the round, and what it has done since it was last told of.
//!
//! The form is fixed and little-endian, so that a meeting may cross machines.

use crate::{Error, Times};
use grawa_core::Report;
use serde::{Deserialize, Serialize};

/// A worker's word.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Word {
    /// It was asked to stop.
    pub(crate) stop: bool,
    /// It has taken all its steps.
    pub(crate) full: bool,
    /// Its clock.
    pub(crate) elapsed: f64,
    /// Its local steps since the last round.
    pub(crate) steps: u64,
    /// Its local steps in all.
    pub(crate) taken: u64,
    /// It keeps checkpoints.
    pub(crate) keeps: bool,
    /// Whether its vector is finite.
    pub(crate) finite: bool,
    /// Its scores.
    pub(crate) scores: Vec<f64>,
    /// What it has done.
    pub(crate) tally: Tally,
}

/// What a worker has done since it was last told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) steps: u64,
    pub(crate) loss: f64,
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

impl Word {
    /// The report to a round.
    pub(crate) fn report(&self, worker: u32) -> Report {
        Report { worker, scores: self.scores.clone(), finite: self.finite, steps: self.steps }
    }

    /// The bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let flags = [self.stop, self.full, self.finite, self.keeps];
        let flags = flags.iter().rev().fold(0, |flags, &flag| flags << 1 | u64::from(flag));
        let Tally { steps, loss, times, bytes } = &self.tally;
        let counts = [flags, self.steps, self.taken, *steps, *bytes, self.elapsed.to_bits(), loss.to_bits()];
        let times = times.parts().map(|(_, seconds)| seconds.to_bits());
        let scores = self.scores.iter().map(|score| score.to_bits());
        counts.into_iter().chain(times).chain(scores).flat_map(u64::to_le_bytes).collect()
    }

    /// The word of `worker`, from its bytes.
    pub(crate) fn decode(worker: u32, bytes: &[u8]) -> Result<Self, Error> {
        let garbled = || Error::Garbled { worker, found: bytes.len() };
        let (chunks, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = chunks.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let (Some(head), true) = (words.first_chunk::<15>(), rest.is_empty()) else { return Err(garbled()) };
        let [flags, in_cycle, taken, steps, tally_bytes, elapsed, loss, times @ ..] = *head;
        let [compute, score, queue, data, wait, wire, apply, evaluate] = times.map(f64::from_bits);
        let times = Times { compute, score, queue, data, wait, wire, apply, evaluate };
        Ok(Word {
            stop: flags & 1 > 0,
            full: flags & 2 > 0,
            finite: flags & 4 > 0,
            keeps: flags & 8 > 0,
            elapsed: f64::from_bits(elapsed),
            steps: in_cycle,
            taken,
            scores: words[15..].iter().map(|&bits| f64::from_bits(bits)).collect(),
            tally: Tally { steps, loss: f64::from_bits(loss), times, bytes: tally_bytes },
        })
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
        fn words_go_both_ways(stop: bool, full: bool, finite: bool, keeps: bool, steps: u64, taken: u64,
                              scores in proptest::collection::vec(-1e300f64..1e300, 0..9), seconds in 0.0f64..1e9) {
            let times = Times { compute: seconds, evaluate: 2.0 * seconds, ..Times::default() };
            let tally = Tally { steps: steps / 2, loss: seconds, times, bytes: taken };
            let word = Word { stop, full, finite, keeps, elapsed: seconds, steps, taken, scores, tally };
            prop_assert_eq!(Word::decode(3, &word.encode()).unwrap(), word);
        }

        #[test]
        fn any_bytes_are_a_word_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Word::decode(0, &bytes);
            let _ = from_bytes(0, &bytes, 3);
        }
    }

    #[test]
    fn a_word_cut_short_is_refused() {
        let bytes = Word::default().encode();
        assert!(Word::decode(0, &bytes[..bytes.len() - 1]).is_err());
        assert!(Word::decode(0, &bytes[..bytes.len() - 8]).is_err());
    }
}
