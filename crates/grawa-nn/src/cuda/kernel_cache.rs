//! Compiled kernels on disk, so that only the first start compiles.
//!
//! A file that is missing or damaged is compiled anew. Files are written aside and renamed: processes that start at once each see
//! a whole file or none. A folder that cannot be written costs time and one warning, never a run. Kernels are code: a
//! folder or a file that belongs to another user, or that others may write to, is not used.

use super::kernel_file::{self, Key};
use crate::Error;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

/// The variable that names the cache's folder, or turns it `off`.
pub const CACHE: &str = "GRAWA_CACHE";

/// The files used last are kept: a few programs, drivers and precisions of 1 to 2 MB each.
const KEPT: usize = 16;
/// Longer than it takes to write a file.
const WRITING: Duration = Duration::from_secs(600);

/// The folder of compiled kernels; none if the cache is off or there is no home folder.
pub fn kernel_cache() -> Option<PathBuf> {
    place(std::env::var_os(CACHE), std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
}

fn place(named: Option<OsString>, cache: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    // By the XDG standard a relative path there is ignored.
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = match named {
        Some(named) if named.is_empty() || named == "off" => return None,
        Some(named) => PathBuf::from(named),
        None => absolute(cache).or_else(|| Some(absolute(home)?.join(".cache")))?.join("grawa"),
    };
    Some(folder.join("kernels"))
}

/// The code of `key`: from its file, or compiled and written there. Also a warning if it could not be written.
pub(crate) fn load_or(
    folder: Option<&Path>,
    key: Key,
    compile: impl FnOnce() -> Result<Vec<u8>, Error>,
) -> Result<(Vec<u8>, Option<String>), Error> {
    let Some(folder) = folder else { return Ok((compile()?, None)) };
    if let Some(why) = fs::metadata(folder).ok().as_ref().and_then(distrust) {
        let warning = format!(
            "compiled kernels are not kept in {folder:?}, since {why}, so that every start compiles them; make it yours alone (chmod 700), \
             name another folder in {CACHE}, or turn the cache off: {CACHE}=off"
        );
        return Ok((compile()?, Some(warning)));
    }
    let path = folder.join(key.file_name());
    let kept = read_trusted(&path);
    if let Some(code) = kept.as_deref().and_then(|file| kernel_file::unpack(key, file)) {
        // Its time is that of its last use; where that cannot be set it may be compiled again one day.
        let _ = fs::File::options()
            .append(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()));
        return Ok((code.to_owned(), None));
    }
    let code = compile()?;
    let warning = write(folder, &path, &kernel_file::pack(key, &code)).err().map(|why| {
        format!(
            "compiled kernels cannot be kept in {folder:?} ({why}), so that every start compiles them; name another folder in \
             {CACHE}, or turn the cache off: {CACHE}=off"
        )
    });
    Ok((code, warning))
}

/// The content of a file that nobody else can have written.
fn read_trusted(path: &Path) -> Option<Vec<u8>> {
    let mut file = fs::File::open(path).ok()?;
    // Of the file that is read, whatever has its name by now.
    if distrust(&file.metadata().ok()?).is_some() {
        return None;
    }
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut file, &mut bytes).ok()?;
    Some(bytes)
}

/// Why what is there may be another user's, if it may.
#[cfg(unix)]
fn distrust(about: &fs::Metadata) -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt;
    // The folder of a process belongs to its user. Where there is none, only the mode is known.
    let own = fs::metadata("/proc/self").ok().map(|process| process.uid());
    match about {
        about if own.is_some_and(|own| own != about.uid()) => Some("it belongs to another user"),
        about if about.mode() & 0o022 != 0 => Some("other users may write to it"),
        _ => None,
    }
}

#[cfg(not(unix))]
fn distrust(_: &fs::Metadata) -> Option<&'static str> {
    None
}

/// Makes a folder that is its user's alone.
fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

fn write(folder: &Path, path: &Path, file: &[u8]) -> io::Result<()> {
    make_folder(folder)?;
    let mut aside = tempfile::Builder::new().suffix(".cubin.new").tempfile_in(folder)?;
    io::Write::write_all(&mut aside, file)?;
    aside.persist(path)?;
    // Files that cannot be listed or removed do no harm.
    let _ = prune(folder, path);
    Ok(())
}

/// Removes all but `newest` and the files used last before it, and what a killed process left half-written long ago.
fn prune(folder: &Path, newest: &Path) -> io::Result<()> {
    let is_ours = |name: &OsStr, written: SystemTime| {
        let name = name.to_string_lossy();
        // Another process may be writing a file that is still new.
        let is_left = || written.elapsed().is_ok_and(|age| age > WRITING);
        name.ends_with(".cubin") || name.ends_with(".cubin.new") && is_left()
    };
    let mut files: Vec<(SystemTime, PathBuf)> = fs::read_dir(folder)?
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .filter(|(used, path)| path.file_name().is_some_and(|name| is_ours(name, *used)) && path != newest)
        .collect();
    files.sort();
    let old = files.len().saturating_sub(KEPT - 1);
    files[..old].iter().try_for_each(|(_, path)| fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use super::super::kernel_file::Origin;
    use super::*;

    fn key(source: &str) -> Key {
        Origin { source, options: &[], compiler: (13, 0), driver: 13_000 }.key()
    }

    /// The code of a compiler that need not be asked.
    fn cached(folder: &Path, key: Key) -> Option<Vec<u8>> {
        let asked = || Err(Error::device("compile", "the file should have been used"));
        load_or(Some(folder), key, asked).ok().map(|(code, _)| code)
    }

    #[test]
    fn the_folder_is_the_user_s_own_unless_named() {
        let of = |named: Option<&str>, cache: Option<&str>, home: Option<&str>| {
            place(named.map(Into::into), cache.map(Into::into), home.map(Into::into))
        };
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(of(None, None, Some("/home/u")), path("/home/u/.cache/grawa/kernels"));
        assert_eq!(of(None, Some("/c"), Some("/home/u")), path("/c/grawa/kernels"));
        assert_eq!(of(None, Some("c"), Some("/home/u")), path("/home/u/.cache/grawa/kernels"));
        assert_eq!(of(Some("/mine"), Some("/c"), None), path("/mine/kernels"));
        assert_eq!(of(None, None, None), None);
        for off in ["", "off"] {
            assert_eq!(of(Some(off), Some("/c"), Some("/home/u")), None);
        }
    }

    #[test]
    fn only_a_missing_or_damaged_file_is_compiled() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("new/kernels");
        let code = vec![7; 1000];
        let compiled = |key| load_or(Some(&folder), key, || Ok(code.clone())).unwrap();
        assert_eq!(cached(&folder, key("a")), None);
        assert_eq!(compiled(key("a")), (code.clone(), None));
        assert_eq!(cached(&folder, key("a")), Some(code.clone()));
        assert_eq!(cached(&folder, key("b")), None);
        let path = folder.join(key("a").file_name());
        let file = fs::read(&path).unwrap();
        fs::write(&path, &file[..500]).unwrap();
        assert_eq!(cached(&folder, key("a")), None);
        assert_eq!(compiled(key("a")).1, None);
        assert_eq!(fs::read(&path).unwrap(), file);
        // A failed compilation is an error and leaves nothing.
        assert!(load_or(Some(&folder), key("b"), || Err(Error::device("compile", "no"))).is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert_eq!(load_or(None, key("a"), || Ok(vec![1])).unwrap(), (vec![1], None));
    }

    /// Code of another user is not run, whether the folder or the file is his, or may be.
    #[cfg(unix)]
    #[test]
    fn what_others_may_have_written_is_not_used() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("kernels");
        let code = vec![7; 100];
        let fill = || load_or(Some(&folder), key("a"), || Ok(code.clone())).unwrap();
        assert_eq!(fill(), (code.clone(), None));
        let path = folder.join(key("a").file_name());
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        for (what, open, closed) in [(&folder, 0o777, 0o700), (&folder, 0o770, 0o755), (&path, 0o666, 0o600)]
        {
            mode(what, open);
            assert_eq!(cached(&folder, key("a")), None, "{what:?} with mode {open:o}");
            mode(what, closed);
            assert_eq!(cached(&folder, key("a")), Some(code.clone()), "{what:?} with mode {closed:o}");
        }
        // Only root can give files away.
        for what in [&folder, &path] {
            if chown(what, Some(65_534), None).is_ok() {
                assert_eq!(cached(&folder, key("a")), None, "{what:?} of another user");
                chown(what, Some(0), None).unwrap();
            }
        }
        mode(&folder, 0o777);
        let (_, warning) = fill();
        assert!(warning.unwrap().contains("other users may write to it"));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_warning() {
        let place = tempfile::tempdir().unwrap();
        // A file where the folder should be; root may write to read-only folders.
        let folder = place.path().join("kernels");
        fs::write(&folder, "mine").unwrap();
        let (code, warning) = load_or(Some(&folder), key("a"), || Ok(vec![1, 2])).unwrap();
        assert_eq!(code, [1, 2]);
        let warning = warning.unwrap();
        assert!(warning.contains("kernels") && warning.contains("GRAWA_CACHE=off"), "{warning}");
        assert_eq!(fs::read(&folder).unwrap(), b"mine");
    }

    #[test]
    fn processes_may_start_at_once_and_the_files_used_last_are_kept() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        fs::write(folder.join("notes.txt"), "the user's").unwrap();
        let code = vec![3; 100_000];
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let (found, warning) = load_or(Some(folder), key("a"), || Ok(code.clone())).unwrap();
                        assert!(found == code && warning.is_none());
                        let _ = fs::remove_file(folder.join(key("a").file_name()));
                    }
                });
            }
        });
        fs::write(folder.join("x.cubin.new"), "half").unwrap();
        let begin = SystemTime::now() - Duration::from_secs(3600);
        let date = |path: &Path, second: usize| {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(begin + Duration::from_secs(second as u64)).unwrap();
        };
        date(&folder.join("x.cubin.new"), 0);
        for number in 0..2 * KEPT {
            let key = key(&number.to_string());
            load_or(Some(folder), key, || Ok(vec![1])).unwrap();
            date(&folder.join(key.file_name()), number);
            // The first one is old, but in use.
            assert!(cached(folder, self::key("0")).is_some());
        }
        assert_eq!(fs::read_dir(folder).unwrap().count(), KEPT + 1);
        assert!(folder.join("notes.txt").exists());
        for number in 0..2 * KEPT {
            let is_kept = number == 0 || number > KEPT;
            assert_eq!(cached(folder, key(&number.to_string())).is_some(), is_kept, "{number}");
        }
    }
}
