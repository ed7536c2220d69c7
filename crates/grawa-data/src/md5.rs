//! md5 sums of the official archives and files. They detect damage, not malice.

use crate::error::{Result, io};
use ::md5::{Digest, Md5};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The md5 of bytes, in hexadecimal.
pub(crate) fn of_bytes(bytes: &[u8]) -> String {
    hex(&Md5::digest(bytes))
}

/// The md5 of a file, in hexadecimal, read piece by piece.
pub(crate) fn of_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(io("open", path))?;
    let mut sum = Md5::new();
    let mut piece = vec![0; 1 << 18];
    loop {
        match file.read(&mut piece).map_err(io("read", path))? {
            0 => return Ok(hex(&sum.finalize())),
            n => sum.update(&piece[..n]),
        }
    }
}

fn hex(sum: &[u8]) -> String {
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn gives_the_published_values() {
        assert_eq!(super::of_bytes(b""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(super::of_bytes(b"abc"), "900150983cd24fb0d6963f7d28e17f72");
    }
}
