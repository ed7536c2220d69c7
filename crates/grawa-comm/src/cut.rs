//! How vectors are cut for the wire: into stripes one after the other, and every stripe into a share for each member, who
//! sums it up. Cut at whole cache lines.

use std::ops::Range;

const LINE: usize = 16;

/// The stripes of a vector, each of at most `stripe` floats.
pub(crate) fn stripes(len: usize, stripe: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    (0..len.div_ceil(stripe.max(1))).map(move |n| n * stripe..((n + 1) * stripe).min(len))
}

/// The share of a stripe that the member at `seat` sums up.
pub(crate) fn share(stripe: &Range<usize>, seat: usize, members: usize) -> Range<usize> {
    let lines = stripe.len().div_ceil(LINE);
    let cut = |seat: usize| stripe.start + (lines * seat / members * LINE).min(stripe.len());
    cut(seat)..cut(seat + 1)
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
                for seat in 0..members {
                    let share = share(&stripe, seat, members);
                    prop_assert_eq!(share.start, end);
                    end = share.end;
                }
                prop_assert_eq!(end, stripe.end);
            }
            prop_assert_eq!(end, len);
        }
    }
}
