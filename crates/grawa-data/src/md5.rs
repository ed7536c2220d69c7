//! md5 sums of the official archives and files. They detect damage, not malice.

use crate::error::{Error, Result};
use ::md5::{Digest, Md5};
use std::path::Path;

/// What to do about a file of a data set that differs from the official one.
pub(crate) const GET_AGAIN: &str = "It is damaged or was changed; get it again";

/// The md5 of bytes, in hexadecimal.
pub(crate) fn of_bytes(bytes: &[u8]) -> String {
    Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that `bytes`, read from `path`, are those of the official file `what`.
pub(crate) fn check(bytes: &[u8], path: &Path, what: &str, expected: &str, hint: &str) -> Result<()> {
    let found = of_bytes(bytes);
    if found == expected {
        return Ok(());
    }
    Err(Error::File(format!("{path:?} has md5 {found}, but the official {what} has {expected}. {hint}")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn gives_the_published_values() {
        assert_eq!(super::of_bytes(b""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(super::of_bytes(b"abc"), "900150983cd24fb0d6963f7d28e17f72");
    }
}
