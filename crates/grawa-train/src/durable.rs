//! Atomic changes of files and folders: a new file is written under another name, synced to the disk, and renamed.

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::path::Path;

/// Creates a file that appears under its name only when it is on the disk. No file may have that name yet.
pub fn place(path: &Path, bytes: &[u8]) -> io::Result<File> {
    match fs::symlink_metadata(path).is_ok() {
        true => Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is there already")),
        false => replace(path, bytes),
    }
}

/// The same for a file that may exist: whoever reads it finds the old content or the new.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().display();
    let aside = folder.join(format!(".{name}-{}", unique()));
    let placed = create(&aside, &[bytes]).and_then(|file| rename(&aside, path).map(|()| file));
    if placed.is_err() {
        // Already failing: the reason to report is the first one.
        let _ = fs::remove_file(&aside);
    }
    let file = placed?;
    sync(folder)?;
    Ok(file)
}

/// Creates a folder and its parents, and syncs their names to the disk.
pub(crate) fn create_folders(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    above.map_or(Ok(()), create_folders)?;
    match create_folder(path) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.and_then(|()| sync(above.unwrap_or(Path::new(".")))),
    }
}

/// A part of a file name that is unique on this host and others. Process ids are not: they repeat in containers.
pub(crate) fn unique() -> String {
    format!("{:016x}", std::hash::RandomState::new().build_hasher().finish())
}

pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    step()?;
    fs::create_dir(path)
}

/// Creates a file that must not exist yet, and syncs it to the disk. Its bytes may be in several places.
pub(crate) fn create(path: &Path, pieces: &[impl AsRef<[u8]>]) -> io::Result<File> {
    step()?;
    let mut file = File::create_new(path)?;
    // A crash here leaves a part of it.
    let half = |piece: &[u8]| piece[..piece.len() / 2].to_vec();
    let first = || pieces.first().map_or(Vec::new(), |piece| half(piece.as_ref()));
    step().inspect_err(|_| drop(file.write_all(&first())))?;
    pieces.iter().try_for_each(|piece| file.write_all(piece.as_ref()))?;
    file.sync_all()?;
    Ok(file)
}

pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    step()?;
    fs::rename(from, to)
}

/// Syncs the names in a folder to the disk.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    step()?;
    File::open(folder)?.sync_all()
}

/// Removes a folder and the files in it.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        step()?;
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    step()?;
    fs::remove_dir(folder)
}

/// Before every change: where a test lets the process end.
fn step() -> io::Result<()> {
    #[cfg(test)]
    crash::step()?;
    Ok(())
}

#[cfg(test)]
pub(crate) mod crash {
    use std::cell::Cell;
    use std::io;

    thread_local!(static LEFT: Cell<Option<usize>> = const { Cell::new(None) });

    /// Runs `work`, of whose changes this many are made; every later one fails, as if the process had ended.
    pub(crate) fn after<T>(changes: usize, work: impl FnOnce() -> T) -> T {
        LEFT.set(Some(changes));
        let done = work();
        LEFT.set(None);
        done
    }

    pub(super) fn step() -> io::Result<()> {
        match LEFT.get() {
            None => Ok(()),
            Some(0) => Err(io::Error::other("the process has ended")),
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        for changes in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("recipe.toml");
            let placed = crash::after(changes, || place(&path, b"all of it"));
            if path.exists() {
                assert_eq!(fs::read(&path).unwrap(), b"all of it", "after {changes}");
            }
            if placed.is_ok() {
                assert!(changes > 2 && path.exists());
                assert!(place(&path, b"other").is_err(), "it was overwritten");
                break;
            }
        }
    }

    #[test]
    fn names_are_those_of_nobody_else() {
        assert_ne!(unique(), unique());
    }

    #[test]
    fn folders_are_made_and_removed() {
        let place = tempfile::tempdir().unwrap();
        let deep = place.path().join("a/b");
        create_folders(&deep).unwrap();
        create_folders(&deep).unwrap();
        create(&deep.join("file"), &[b"x"]).unwrap();
        assert!(create_folders(&deep.join("file")).is_err());
        remove(&place.path().join("a")).unwrap();
        assert!(!place.path().join("a").exists());
    }
}
