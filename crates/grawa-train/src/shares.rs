//! Distributed measurement: every member measures its share of the batches, and all get the results of all.

use crate::Error;
use crate::round_message::{from_bytes, to_bytes};
use grawa_comm::{Collective, Lost};

/// Every one of `members` measures its share. If one is lost meanwhile its share is missing, and the others divide all batches again: so
/// the result covers all batches. No worker joins meanwhile, so each repetition has fewer members, and it ends. `members` becomes those
/// that are left.
pub(crate) fn measure_together<C: Collective>(
    talk: &mut C,
    members: &mut Vec<u32>,
    lost: &mut Vec<Lost>,
    mut share: impl FnMut((usize, usize), &mut dyn FnMut()) -> Result<Vec<f64>, Error>,
) -> Result<Vec<(u32, Vec<f64>)>, Error> {
    loop {
        let seat = members.iter().position(|&worker| worker == talk.worker()).unwrap_or(0);
        let mine = share((seat, members.len().max(1)), &mut || talk.alive())?;
        let gathered = talk.gather(&to_bytes(&mine))?;
        lost.extend(gathered.outcome.lost);
        let heard: Vec<u32> = gathered.messages.iter().map(|(worker, _)| *worker).collect();
        let is_whole = heard == *members;
        *members = heard;
        if is_whole {
            let numbers =
                |(worker, bytes): &(u32, Vec<u8>)| Ok((*worker, from_bytes(*worker, bytes, mine.len())?));
            return gathered.messages.iter().map(numbers).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_comm::threads;
    use proptest::prelude::*;
    use std::time::Duration;

    const BATCHES: usize = 11;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whoever is lost while they measure, and however often, every batch is in the result once.
        #[test]
        fn everything_is_measured_once(
            falls in proptest::collection::vec(proptest::option::of(0usize..3), 1..6),
            joiners in 0u32..2,
        ) {
            // At the measurement of this number a worker is lost; one stays.
            let falls: Vec<Option<usize>> = falls.into_iter().chain([None]).collect();
            let workers = falls.len() as u32;
            let ends = threads::group(0..workers, vec![0.0], Duration::from_secs(60));
            std::thread::scope(|scope| {
                let stay: Vec<_> = ends.into_iter().zip(falls).map(|(mut end, fall)| {
                    scope.spawn(move || {
                        // One that was lost before is not known to be.
                        let mut members: Vec<u32> = (0..workers + joiners).collect();
                        let (mut number, mut lost) = (0, Vec::new());
                        let result = measure_together(&mut end, &mut members, &mut lost, |(seat, seats), alive| {
                            alive();
                            if fall == Some(number) {
                                return Err(Error::Left);
                            }
                            number += 1;
                            let own = (0..BATCHES).skip(seat).step_by(seats);
                            Ok((0..BATCHES).map(|batch| f64::from(u8::from(own.clone().any(|own| own == batch)))).collect())
                        });
                        (end.worker(), result, members)
                    })
                }).collect();
                let ends: Vec<_> = stay.into_iter().map(|thread| thread.join().unwrap()).collect();
                let stayed: Vec<u32> =
                    ends.iter().filter(|(_, result, _)| result.is_ok()).map(|(worker, ..)| *worker).collect();
                for (_, result, members) in ends.iter().filter(|(_, result, _)| result.is_ok()) {
                    let shares = result.as_ref().unwrap();
                    assert_eq!(shares.iter().map(|(worker, _)| *worker).collect::<Vec<_>>(), *members);
                    assert!(stayed.iter().all(|worker| members.contains(worker)));
                    for batch in 0..BATCHES {
                        assert_eq!(shares.iter().map(|(_, share)| share[batch]).sum::<f64>(), 1.0);
                    }
                }
                assert!(stayed.contains(&(workers - 1)));
            });
        }
    }
}
