//! Bounds checks for device memory, made before an index becomes an address that nothing checks.

use crate::Error;

/// Checks that `bytes` bytes from `offset` on are inside memory of `size` bytes.
pub(crate) fn range(offset: usize, bytes: usize, size: usize) -> Result<(), Error> {
    match offset.checked_add(bytes) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::WrongLength {
            what: "a range of device memory".into(),
            found: offset.saturating_add(bytes),
            expected: size,
        }),
    }
}

/// Checks that an index is below `count`.
pub(crate) fn index(what: &str, number: usize, count: usize) -> Result<(), Error> {
    if number < count {
        return Ok(());
    }
    Err(Error::device(format!("use {what} {number}"), format!("there are {count}, counted from 0")))
}

/// Checks that consecutive workers exist. A round has one bit for each, so there are at most 64.
pub(crate) fn members(first: usize, members: usize, workers: usize) -> Result<(), Error> {
    match first.checked_add(members) {
        Some(end) if end <= workers && members <= 64 => Ok(()),
        end => Err(Error::WrongLength {
            what: "the round's list of workers".into(),
            found: end.unwrap_or(usize::MAX),
            expected: workers.min(64),
        }),
    }
}

/// Checks that the next `count` steps after `taken` have data: `what` exists for `there` steps.
pub(crate) fn steps_ahead(what: &str, taken: usize, count: usize, there: usize) -> Result<(), Error> {
    match taken.checked_add(count) {
        Some(end) if end <= there => Ok(()),
        _ => Err(Error::device(
            format!("take {count} more steps after {taken}"),
            format!(
                "{what} for {there} steps; assign more examples and set the positions of the workers again"
            ),
        )),
    }
}

/// Checks that the arguments of a kernel match its parameters in number and size.
pub(crate) fn arguments(
    name: &str,
    found: impl ExactSizeIterator<Item = usize>,
    expected: &[usize],
) -> Result<(), Error> {
    let found: Vec<usize> = found.collect();
    if found == expected {
        return Ok(());
    }
    Err(Error::device(
        format!("start {name}"),
        format!("its parameters have {expected:?} bytes, the arguments {found:?}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Nothing beyond the end passes, however large the numbers are.
        #[test]
        fn what_passes_is_inside(offset: usize, bytes: usize, size in 0usize..1 << 40) {
            for (offset, bytes) in [(offset, bytes), (offset % (2 * size + 1), bytes % (2 * size + 1))] {
                let inside = offset as u128 + bytes as u128 <= size as u128;
                prop_assert_eq!(range(offset, bytes, size).is_ok(), inside);
                prop_assert_eq!(steps_ahead("there are batches", offset, bytes, size).is_ok(), inside);
                prop_assert_eq!(members(offset, bytes, size).is_ok(), inside && bytes <= 64);
            }
        }
    }

    #[test]
    fn an_error_says_what_exists() {
        let why = |refused: Result<(), Error>| refused.unwrap_err().to_string();
        assert_eq!(why(index("group", 2, 2)), "cannot use group 2: there are 2, counted from 0");
        assert!(index("group", 1, 2).is_ok());
        let text = why(steps_ahead("batches are assigned", 3, 2, 4));
        assert!(
            text.starts_with("cannot take 2 more steps after 3: batches are assigned for 4 steps"),
            "{text}"
        );
        let text = why(arguments("mix", [8, 4].into_iter(), &[8, 8]));
        assert_eq!(text, "cannot start mix: its parameters have [8, 8] bytes, the arguments [8, 4]");
        assert!(arguments("mix", [8, 4].into_iter(), &[8, 4]).is_ok());
        assert!(arguments("mix", [8].into_iter(), &[8, 4]).is_err());
    }
}
