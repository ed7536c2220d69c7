//! The folder an experiment leaves its results in. Nothing a user has is ever overwritten.
//!
//! Files are written aside and appear all at once when the experiment is done (in a folder that exists already, one
//! after the other). A folder that already holds
//! anything is refused, with one exception: the results of the very same run, which are the same bytes.

use crate::Error;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The file that tells which run a folder belongs to.
const SETTINGS: &str = "settings.toml";

/// A folder claimed for results.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
}

impl Folder {
    /// Claims `path` for the run that `settings` describes. Nothing is written yet.
    pub fn claim(path: &Path, settings: &str) -> Result<Self, Error> {
        let folder =
            Folder { path: path.into(), files: BTreeMap::from([(SETTINGS.into(), settings.into())]) };
        let entries = folder.entries()?;
        let ours = entries.is_empty()
            || read(&path.join(SETTINGS)).is_some_and(|found| found == settings.as_bytes());
        if ours { Ok(folder) } else { Err(folder.in_use(&entries[0])) }
    }

    /// Claims `path`, or `path-2`, `path-3`, … if it is taken: the default of a user who named no folder.
    pub fn claim_next(path: &Path, settings: &str) -> Result<Self, Error> {
        let mut number = 1;
        loop {
            let mut name = path.as_os_str().to_owned();
            if number > 1 {
                name.push(format!("-{number}"));
            }
            match Folder::claim(Path::new(&name), settings) {
                Err(Error::FolderInUse { .. }) => number += 1,
                claimed => return claimed,
            }
        }
    }

    /// Where the results will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps a file for the end.
    pub fn put(&mut self, name: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.files.insert(name.into(), bytes.into());
    }

    /// Writes everything: first into a folder beside it, which then takes its name.
    pub fn finish(self) -> Result<PathBuf, Error> {
        let entries = self.entries()?;
        for name in &entries {
            if self.files.get(name) != read(&self.path.join(name)).as_ref() {
                return Err(self.in_use(name));
            }
        }
        if !entries.is_empty() && entries.len() == self.files.len() {
            return Ok(self.path);
        }
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { action, path, source }
        };
        let parent =
            self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(io("create", parent))?;
        // Beside a new folder, inside one that exists: always on the same disk.
        let place = if self.path.exists() { &self.path } else { parent };
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let aside = place.join(format!(".{name}.partial-{}", std::process::id()));
        fs::create_dir(&aside).map_err(io("create", &aside))?;
        let write_all = || {
            for (name, bytes) in &self.files {
                let file = aside.join(name);
                fs::write(&file, bytes).map_err(io("write", &file))?;
            }
            if !self.path.exists() {
                return fs::rename(&aside, &self.path).map_err(io("write", &self.path));
            }
            // A folder that exists, empty or with a part of the very same files, keeps its name, rights and links.
            for name in self.files.keys() {
                let file = self.path.join(name);
                fs::rename(aside.join(name), &file).map_err(io("write", &file))?;
            }
            fs::remove_dir(&aside).map_err(io("remove", &aside))
        };
        write_all().inspect_err(|_| {
            // Already failing: the reason to report is the first one.
            let _ = fs::remove_dir_all(&aside);
        })?;
        Ok(self.path)
    }

    fn entries(&self) -> Result<Vec<String>, Error> {
        let io = |source| Error::Io { action: "look into", path: self.path.clone(), source };
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                return Err(Error::FolderInUse {
                    folder: self.path.clone(),
                    found: "a file of that name".into(),
                });
            }
            Err(error) => return Err(io(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry.map_err(io)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn in_use(&self, name: &str) -> Error {
        Error::FolderInUse { folder: self.path.clone(), found: format!("'{name}' of something else") }
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    fs::read(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("grawa-folder-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn leave(path: &Path, settings: &str, text: &str) -> Result<PathBuf, Error> {
        let mut folder = Folder::claim(path, settings)?;
        folder.put("table.csv", text);
        folder.finish()
    }

    #[test]
    fn results_appear_at_the_end_in_a_new_or_empty_folder() {
        let place = scratch("new");
        let path = place.join("deep/er");
        let mut folder = Folder::claim(&path, "a = 1").unwrap();
        folder.put("table.csv", "x");
        assert!(!path.exists());
        folder.finish().unwrap();
        assert_eq!(
            (names(&path), names(&place.join("deep"))),
            (vec![SETTINGS.into(), "table.csv".into()], vec!["er".into()])
        );
        let empty = scratch("empty");
        leave(&empty, "a = 1", "x").unwrap();
        assert_eq!(fs::read_to_string(empty.join("table.csv")).unwrap(), "x");
    }

    #[test]
    fn the_same_run_may_be_repeated_and_nothing_else() {
        let path = scratch("again");
        leave(&path, "a = 1", "x").unwrap();
        leave(&path, "a = 1", "x").unwrap();
        assert!(matches!(leave(&path, "a = 2", "x"), Err(Error::FolderInUse { .. })));
        // The same settings, but somebody changed a file, or added one.
        fs::write(path.join("table.csv"), "mine").unwrap();
        assert!(leave(&path, "a = 1", "x").unwrap_err().is_usage());
        assert_eq!(fs::read_to_string(path.join("table.csv")).unwrap(), "mine");
        fs::write(path.join("table.csv"), "x").unwrap();
        fs::write(path.join("notes.txt"), "mine").unwrap();
        assert!(leave(&path, "a = 1", "x").is_err());
        assert_eq!(names(&path).len(), 3);
    }

    #[test]
    #[cfg(unix)]
    fn an_empty_folder_stays_the_folder_it_is() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let place = scratch("linked");
        let real = place.join("real");
        fs::create_dir(&real).unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&real, place.join("link")).unwrap();
        leave(&place.join("link"), "a = 1", "x").unwrap();
        assert_eq!(names(&real), [SETTINGS, "table.csv"]);
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(fs::symlink_metadata(place.join("link")).unwrap().is_symlink());
    }

    #[test]
    fn a_part_of_the_same_run_is_completed() {
        let path = scratch("part");
        fs::write(path.join(SETTINGS), "a = 1").unwrap();
        leave(&path, "a = 1", "x").unwrap();
        assert_eq!(names(&path), [SETTINGS, "table.csv"]);
    }

    #[test]
    fn what_is_there_stays() {
        let path = scratch("theirs");
        fs::write(path.join("thesis.tex"), "years").unwrap();
        let refused = Folder::claim(&path, "a = 1").unwrap_err();
        assert!(refused.to_string().contains("thesis.tex") && refused.is_usage());
        assert!(
            Folder::claim(&path.join("thesis.tex"), "a = 1")
                .unwrap_err()
                .to_string()
                .contains("a file of that name")
        );
        let next = Folder::claim_next(&path, "a = 1").unwrap();
        assert!(next.path().to_string_lossy().ends_with("theirs-2"));
        assert_eq!(names(&path), ["thesis.tex"]);
    }

    #[test]
    fn a_name_that_is_a_file_below_cannot_be_claimed() {
        let path = scratch("below");
        fs::write(path.join("file"), "x").unwrap();
        let inside = path.join("file/inside");
        assert!(Folder::claim(&inside, "a").is_err());
    }
}
