//! A file with compiled kernels: what identifies it, its format, and whether it is undamaged. No access to files.
//!
//! ```text
//! "grawa kernels 1\n"   16 bytes
//! key                   16 bytes: MD5 of all that the machine code depends on
//! digest                16 bytes: MD5 of the key and the code
//! code                  the rest
//! ```
//!
//! MD5 finds damage, not malice: whoever can write to the user's cache can also replace the program.

use md5::{Digest, Md5};

const MAGIC: &[u8; 16] = b"grawa kernels 1\n";
const DIGEST: usize = 16;

/// All that the machine code depends on, and the driver that loads it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub(crate) source: &'a str,
    /// The compiler's options, the architecture among them.
    pub(crate) options: &'a [String],
    pub(crate) compiler: (i32, i32),
    pub(crate) driver: i32,
}

/// What identifies compiled kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key([u8; DIGEST]);

impl Origin<'_> {
    pub(crate) fn key(&self) -> Key {
        let numbers = [self.compiler.0, self.compiler.1, self.driver].map(i32::to_le_bytes).concat();
        let parts = [self.source.as_bytes(), &numbers].into_iter();
        let mut hash = Md5::new();
        for part in parts.chain(self.options.iter().map(String::as_bytes)) {
            // With its length, so that no two lists of parts are the same bytes.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Key(hash.finalize().into())
    }
}

impl Key {
    /// The name of its file.
    pub(crate) fn file_name(self) -> String {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{digits}.cubin")
    }
}

fn digest(key: Key, code: &[u8]) -> [u8; DIGEST] {
    Md5::new().chain_update(key.0).chain_update(code).finalize().into()
}

/// The bytes of a file.
pub(crate) fn pack(key: Key, code: &[u8]) -> Vec<u8> {
    [MAGIC, &key.0[..], &digest(key, code), code].concat()
}

/// The code in a file, if it is that of `key` and undamaged.
pub(crate) fn unpack(key: Key, file: &[u8]) -> Option<&[u8]> {
    let rest = file.strip_prefix(MAGIC)?.strip_prefix(&key.0)?;
    let (found, code) = rest.split_at_checked(DIGEST)?;
    (found == digest(key, code)).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn origin<'a>(source: &'a str, options: &'a [String]) -> Origin<'a> {
        Origin { source, options, compiler: (13, 0), driver: 13_000 }
    }

    #[test]
    fn everything_that_the_code_depends_on_is_in_the_key() {
        let options = ["-DBF16=1".to_owned(), "--gpu-architecture=sm_90".to_owned()];
        let joined = [options.concat()];
        let base = origin("kernel", &options);
        let keys = [
            base,
            Origin { source: "kernel ", ..base },
            Origin { options: &options[..1], ..base },
            Origin { options: &joined, ..base },
            Origin { compiler: (13, 1), ..base },
            Origin { compiler: (12, 0), ..base },
            Origin { driver: 13_010, ..base },
        ]
        .map(|origin| origin.key().file_name());
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{at}");
        }
        assert_eq!(keys[0], origin("kernel", &options.clone()).key().file_name());
    }

    proptest! {
        #[test]
        fn a_file_is_used_only_undamaged_and_with_its_key(code: Vec<u8>, at: usize, bit in 0u8..8, more in 1u8..) {
            let key = origin("a", &[]).key();
            let file = pack(key, &code);
            prop_assert_eq!(unpack(key, &file), Some(&code[..]));
            prop_assert_eq!(unpack(origin("b", &[]).key(), &file), None);
            let at = at % file.len();
            prop_assert_eq!(unpack(key, &file[..at]), None);
            let mut flipped = file.clone();
            flipped[at] ^= 1 << bit;
            prop_assert_eq!(unpack(key, &flipped), None);
            let longer = [&file[..], &vec![0; more.into()]].concat();
            prop_assert_eq!(unpack(key, &longer), None);
        }
    }
}
