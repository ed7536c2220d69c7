//! Unpacking a downloaded archive: a gzipped tar of files in one folder, and nothing else.
//!
//! The archive is untrusted input. Every entry must be a plain file or folder below the expected folder; absolute names,
//! `..`, links and devices are refused, and so is more data than any known data set contains.

use crate::error::{Error, Result};
use flate2::read::GzDecoder;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use tar::EntryType;

/// The CIFAR archives unpack to 185 MB.
const LARGEST: u64 = 256 << 20;

/// Reads a gzipped tar archive and passes each file, with its path, to `put`. `path` is only used in errors.
pub fn entries(
    archive: impl Read,
    path: &Path,
    folder: &str,
    mut put: impl FnMut(&Path, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    let broken = |e: std::io::Error| {
        let expected = format!("an intact .tar.gz of at most {LARGEST} bytes unpacked");
        Error::wrong_format(path, format!("an archive that does not unpack ({e})"), expected)
    };
    let mut tar = tar::Archive::new(GzDecoder::new(archive).take(LARGEST));
    for entry in tar.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let name = entry.path().map_err(broken)?.into_owned();
        let refuse = |why: &str| {
            let entry = format!("{path:?} holds the entry '{}', which {why}", name.display());
            Error::File(format!("{entry}; nothing was unpacked. It is not the official archive"))
        };
        match entry.header().entry_type() {
            EntryType::XGlobalHeader => continue,
            EntryType::Regular | EntryType::Continuous | EntryType::Directory => {}
            _ => return Err(refuse("is neither a file nor a folder")),
        }
        let Some(clean) = inside(&name) else { return Err(refuse("points out of the folder it belongs to")) };
        if !clean.starts_with(folder) {
            return Err(refuse(&format!("is not in the folder {folder}")));
        }
        if entry.header().entry_type() != EntryType::Directory {
            put(&clean, &mut entry)?;
        }
    }
    Ok(())
}

/// The path without `.` parts, or none if any part could lead outside.
fn inside(name: &Path) -> Option<PathBuf> {
    name.components()
        .filter(|part| !matches!(part, Component::CurDir))
        .map(|part| match part {
            Component::Normal(part) => Some(Path::new(part)),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;

    /// A gzipped tar of these files; names are written as they are, even those that the tar crate refuses.
    pub(crate) fn packed(files: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        for (name, kind, bytes) in files {
            let mut header = tar::Header::new_ustar();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(bytes.len() as u64);
            if *kind == EntryType::Symlink {
                header.set_link_name("/etc").unwrap();
            }
            header.set_cksum();
            tar.append(&header, *bytes).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap()
    }

    fn names(bytes: &[u8]) -> Result<Vec<(String, usize)>> {
        let mut seen = Vec::new();
        entries(bytes, Path::new("x.tar.gz"), "box", |name, from| {
            let size = std::io::copy(from, &mut std::io::sink()).unwrap();
            seen.push((name.display().to_string(), size as usize));
            Ok(())
        })?;
        Ok(seen)
    }

    #[test]
    fn hands_over_files_below_the_folder() {
        let bytes = packed(&[
            ("box/", EntryType::Directory, b""),
            ("./box/a.bin", EntryType::Regular, b"12345"),
            ("box/deep/b", EntryType::Regular, b""),
        ]);
        assert_eq!(names(&bytes).unwrap(), [("box/a.bin".to_owned(), 5), ("box/deep/b".to_owned(), 0)]);
    }

    #[test]
    fn refuses_entries_that_lead_elsewhere() {
        for (name, kind, why) in [
            ("../evil", EntryType::Regular, "points out"),
            ("box/../../evil", EntryType::Regular, "points out"),
            ("/etc/evil", EntryType::Regular, "points out"),
            ("other/evil", EntryType::Regular, "not in the folder box"),
            ("boxer/evil", EntryType::Regular, "not in the folder box"),
            ("box/evil", EntryType::Symlink, "neither a file nor a folder"),
            ("box/evil", EntryType::Link, "neither a file nor a folder"),
            ("box/evil", EntryType::Char, "neither a file nor a folder"),
        ] {
            let text = names(&packed(&[(name, kind, b"")])).unwrap_err().to_string();
            assert!(text.contains(why) && text.contains("x.tar.gz") && text.contains(name), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_archive() {
        assert!(names(b"<html>404</html>").unwrap_err().to_string().contains("does not unpack"));
        let whole = packed(&[("box/a", EntryType::Regular, &[7; 5000])]);
        assert!(
            names(&whole[..whole.len() / 2]).is_err()
                || names(&whole[..whole.len() / 2]).unwrap()[0].1 < 5000
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_or_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            zipped: bool,
        ) {
            // Changes before zipping reach the tar, changes after it the zip.
            let mut bytes = packed(&[("box/a", EntryType::Regular, b"12345"), ("box/b", EntryType::Regular, b"1")]);
            if !zipped {
                let mut plain = Vec::new();
                GzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
                bytes = plain;
            }
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if !zipped {
                let mut zip = GzEncoder::new(Vec::new(), Compression::fast());
                std::io::Write::write_all(&mut zip, &bytes).unwrap();
                bytes = zip.finish().unwrap();
            }
            let _ = entries(&bytes[..], Path::new("x"), "box", |name, from| {
                assert!(name.starts_with("box") && name.components().all(|c| matches!(c, Component::Normal(_))));
                std::io::copy(from, &mut std::io::sink()).map(drop).map_err(crate::error::io("read", name))
            });
        }
    }
}
