//! Reading the small files of a run: a link to a device, or a file that grew without limit, is an error and does not
//! fill the memory.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Recipes (with a network as JSON), manifests, checksums, times.
pub(crate) const SMALL: u64 = 64 << 20;
/// The record of a run: some hundred bytes for each round.
pub(crate) const RECORD: u64 = 4 << 30;

/// The bytes of a file, which must be one and have at most so many.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let wrong = |why: String| io::Error::new(ErrorKind::InvalidData, why);
    // A pipe would block, a device may never end.
    if !std::fs::metadata(path)?.is_file() {
        return Err(wrong("it is not a file".into()));
    }
    let file = File::open(path)?;
    let found = file.metadata()?.len();
    if found > most {
        return Err(wrong(format!("it has {found} bytes, and at most {most} are expected")));
    }
    let mut bytes = Vec::new();
    // A size that no memory holds is an error, too.
    bytes
        .try_reserve_exact(usize::try_from(found).unwrap_or(usize::MAX))
        .map_err(|_| ErrorKind::OutOfMemory)?;
    // It may grow meanwhile.
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The same as text.
pub(crate) fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let wrong = |_| io::Error::new(ErrorKind::InvalidData, "it is no text (UTF-8)");
    String::from_utf8(read(path, most)?).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_a_plausible_size_are_read() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read_text(&path, 3).unwrap(), "abc");
        assert!(read(&path, 2).unwrap_err().to_string().contains("it has 3 bytes, and at most 2"));
        assert_eq!(read(&place.path().join("none"), 9).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(read(place.path(), 9).unwrap_err().to_string().contains("not a file"));
        // Without its blocks: nothing is read of it.
        File::create(place.path().join("huge")).unwrap().set_len(RECORD + 1).unwrap();
        assert!(read(&place.path().join("huge"), RECORD).is_err());
        #[cfg(unix)]
        {
            let endless = place.path().join("endless");
            std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
            assert!(read(&endless, RECORD).unwrap_err().to_string().contains("not a file"));
        }
    }
}
