//! How a vector is divided between members: into stripes, one after the other, and every stripe into one shard per member, at
//! whole cache lines.

use std::ops::Range;

/// Floats of a cache line.
const LINE: usize = 16;

/// The stripes of a vector, each of at most `stripe` floats.
#[cfg(any(feature = "group", feature = "mpi", test))]
pub(crate) fn stripes(len: usize, stripe: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    (0..len.div_ceil(stripe.max(1))).map(move |n| n * stripe..((n + 1) * stripe).min(len))
}

/// The shard of a stripe that the member of this rank reduces.
pub(crate) fn shard(stripe: &Range<usize>, rank: usize, members: usize) -> Range<usize> {
    let lines = stripe.len().div_ceil(LINE);
    let border = |rank: usize| stripe.start + (lines * rank / members * LINE).min(stripe.len());
    border(rank)..border(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_float_has_one_owner(len in 0usize..5000, size in 1usize..2000, members in 1usize..40) {
            let mut end = 0;
            for stripe in stripes(len, size) {
                for rank in 0..members {
                    let shard = shard(&stripe, rank, members);
                    prop_assert_eq!(shard.start, end);
                    end = shard.end;
                }
                prop_assert_eq!(end, stripe.end);
            }
            prop_assert_eq!(end, len);
        }
    }
}
