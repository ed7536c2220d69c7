//! The folder of an experiment's results. It never overwrites a user's files.
//!
//! Results are written to a temporary folder first and appear one after the other at the end. A folder that holds anything
//! else is refused. The results of the same run are accepted: they are the same bytes.

use crate::Error;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
#[cfg(feature = "plots")]
use {crate::Figure, rayon::prelude::*};

/// The file that says which run a folder belongs to.
const SETTINGS: &str = "settings.toml";

/// A folder claimed for results.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
}

impl Folder {
    /// Claims `path` for the run that `settings` describes. Writes nothing yet.
    pub fn claim(path: &Path, settings: &str) -> Result<Self, Error> {
        let files = BTreeMap::from([(SETTINGS.into(), settings.into())]);
        let is_of_run = || fs::read(path.join(SETTINGS)).is_ok_and(|found| found == settings.as_bytes());
        match Folder::entries(path)?.first() {
            Some(name) if !is_of_run() => Err(in_use(path, name)),
            _ => Ok(Folder { path: path.into(), files }),
        }
    }

    /// Claims the folder that the user named, or the first free one of `default`, `default-2`, `default-3`, …
    pub fn claim_or_next(named: Option<&Path>, default: &str, settings: &str) -> Result<Self, Error> {
        let mut number = 1;
        loop {
            let next = if number == 1 { default.to_owned() } else { format!("{default}-{number}") };
            match Folder::claim(named.unwrap_or(Path::new(&next)), settings) {
                Err(Error::FolderInUse { .. }) if named.is_none() => number += 1,
                claimed => return claimed,
            }
        }
    }

    /// The path of the results.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a file, which is written at the end.
    pub fn put(&mut self, name: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.files.insert(name.into(), bytes.into());
    }

    /// Adds pictures, each as `NAME.svg` and `NAME.png`.
    #[cfg(feature = "plots")]
    pub fn put_pictures(&mut self, figures: &[Figure]) -> Result<(), Error> {
        // Rasterising takes most of the time of an experiment with pictures.
        let images: Vec<Vec<u8>> =
            figures.par_iter().map(|figure| figure.picture.png()).collect::<Result<_, _>>()?;
        for (Figure { name, picture, .. }, png) in figures.iter().zip(images) {
            self.put(format!("{name}.svg"), picture.svg());
            self.put(format!("{name}.png"), png);
        }
        Ok(())
    }

    /// Writes everything: first into a temporary folder inside, so that no file is seen half-written.
    pub fn finish(self) -> Result<PathBuf, Error> {
        let entries = Folder::entries(&self.path)?;
        for name in &entries {
            if self.files.get(name) != fs::read(self.path.join(name)).ok().as_ref() {
                return Err(in_use(&self.path, name));
            }
        }
        if entries.len() == self.files.len() {
            return Ok(self.path);
        }
        fs::create_dir_all(&self.path).map_err(Error::io("create", &self.path))?;
        let aside = tempfile::tempdir_in(&self.path).map_err(Error::io("write to", &self.path))?;
        for (name, bytes) in &self.files {
            let file = aside.path().join(name);
            fs::write(&file, bytes).map_err(Error::io("write", &file))?;
        }
        for name in self.files.keys() {
            let file = self.path.join(name);
            fs::rename(aside.path().join(name), &file).map_err(Error::io("write", &file))?;
        }
        Ok(self.path)
    }

    /// The names in a folder, sorted; none if there is no folder. A file of that name is an error.
    pub fn entries(path: &Path) -> Result<Vec<String>, Error> {
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                return Err(Error::FolderInUse { folder: path.into(), found: "a file of that name".into() });
            }
            entries => entries.map_err(Error::io("look into", path))?,
        };
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
        let mut names: Vec<String> = names.collect::<Result<_, _>>().map_err(Error::io("look into", path))?;
        names.sort();
        Ok(names)
    }
}

fn in_use(folder: &Path, name: &str) -> Error {
    Error::FolderInUse { folder: folder.into(), found: format!("'{name}' of something else") }
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
        let next = Folder::claim_or_next(None, path.to_str().unwrap(), "a = 1").unwrap();
        assert!(next.path().to_string_lossy().ends_with("theirs-2"));
        assert!(Folder::claim_or_next(Some(&path), "out", "a = 1").unwrap_err().is_usage());
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
