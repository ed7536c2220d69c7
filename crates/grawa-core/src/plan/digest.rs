//! The digest of a plan: members compare it before they execute the plan.

use super::{Plan, Weights};
use crate::method::Centre;
use crate::score::{Average, Memory};

/// FNV-1a over words of 32 bits. A change of any one word changes the sum, since every step is one to one.
struct Digest(u64);

impl Digest {
    fn word(&mut self, word: u32) {
        self.0 = (self.0 ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3);
    }

    fn long(&mut self, long: u64) {
        self.word(long as u32);
        self.word((long >> 32) as u32);
    }

    /// Lists begin with their length: otherwise an element could move from one list to the next unnoticed.
    fn list<T: Copy>(&mut self, list: &[T], mut take: impl FnMut(&mut Self, T)) {
        self.long(list.len() as u64);
        list.iter().for_each(|&one| take(self, one));
    }

    fn average(&mut self, Average { sums, weights }: &Average) {
        self.list(sums, |digest, sum| digest.long(sum.to_bits()));
        self.list(weights, |digest, weight| digest.long(weight.to_bits()));
    }

    fn memory(&mut self, Memory { rounds, averages }: &Memory) {
        self.long(*rounds);
        self.long(averages.len() as u64);
        for (worker, average) in averages {
            self.word(*worker);
            self.average(average);
        }
    }
}

impl Plan {
    /// A number that differs where plans differ in anything.
    pub fn digest(&self) -> u64 {
        // No `..` here and above: a new field must be added to the digest.
        let Plan { share, workers, weights, centre, pull, toward, replaced, reasons, memory } = self;
        let Weights { workers: columns, rows } = weights;
        let mut digest = Digest(0xcbf2_9ce4_8422_2325);
        digest.word(*share as u32);
        digest.list(workers, Digest::word);
        digest.long(*columns as u64);
        digest.list(rows, |digest, weight| digest.word(weight.to_bits()));
        match centre {
            Centre::Weighted => digest.word(0),
            Centre::Moving { rate } => {
                digest.word(1);
                digest.long(rate.to_bits());
            }
        }
        digest.word(pull.to_bits());
        digest.word(*toward as u32);
        digest.list(replaced, |digest, lost| digest.word(lost.into()));
        digest.long(reasons.len() as u64);
        for reason in reasons {
            digest.list(format!("{reason:?}").as_bytes(), |digest, byte| digest.word(byte.into()));
        }
        digest.memory(memory);
        digest.0
    }
}
