//! A run's folder: its recipe, its events, its checkpoints. Nothing that is there already is touched.

use crate::checkpoint::io;
use crate::recipe::Said;
use crate::{Error, Recipe};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a process that was killed may still hold a folder.
const DYING: Duration = Duration::from_secs(2);
/// The recipe as it was resolved.
pub(crate) const RECIPE: &str = "recipe.toml";

/// Makes a folder for a new run; one that exists must be empty.
pub fn create(path: &Path, recipe: &Recipe) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotADirectory => {
            Error::FolderInUse { path: path.into(), found: "a file of that name".into() }
        }
        _ => io("create", path)(source),
    })?;
    let mut entries = fs::read_dir(path).map_err(io("look into", path))?;
    if let Some(entry) = entries.next() {
        let name = entry.map_err(io("look into", path))?.file_name();
        return Err(Error::FolderInUse { path: path.into(), found: format!("'{}'", name.display()) });
    }
    let file = path.join(RECIPE);
    fs::write(&file, recipe.to_toml()).map_err(io("write", &file))
}

/// A folder in use, until this ends.
#[derive(Debug)]
pub struct Hold {
    _file: fs::File,
}

/// Takes a run's folder into use: by one process alone, or by a coordinator and its workers, of which each keeps something there.
pub fn hold(path: &Path, alone: bool) -> Result<Hold, Error> {
    let file = path.join(RECIPE);
    let file = fs::File::open(&file).map_err(io("open", &file))?;
    let began = Instant::now();
    loop {
        match if alone { file.try_lock() } else { file.try_lock_shared() } {
            Err(fs::TryLockError::WouldBlock) if began.elapsed() < DYING => std::thread::sleep(DYING / 50),
            Err(fs::TryLockError::WouldBlock) => return Err(Error::AtWork { path: path.into() }),
            // Where files cannot be locked it is up to the user.
            _ => return Ok(Hold { _file: file }),
        }
    }
}

/// The recipe of a run's folder.
pub fn recipe(path: &Path) -> Result<Recipe, Error> {
    if !path.join(RECIPE).exists() {
        return Err(Error::NoCheckpoint { path: path.into() });
    }
    Ok(Recipe::resolve(&Said::default().read(&path.join(RECIPE))?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_data::Kind;

    #[test]
    fn a_folder_is_for_one_run_and_says_which() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("deep/run");
        let recipe = Recipe::for_data(Kind::Digits, None).unwrap();
        create(&path, &recipe).unwrap();
        assert_eq!(super::recipe(&path).unwrap(), recipe);
        let again = create(&path, &recipe).unwrap_err().to_string();
        assert!(again.contains("already holds 'recipe.toml'"), "{again}");
        assert!(super::recipe(place.path()).unwrap_err().to_string().contains("no checkpoint"));
        let (first, second) = (hold(&path, false).unwrap(), hold(&path, false).unwrap());
        assert!(hold(&path, true).unwrap_err().to_string().contains("is at work"));
        drop((first, second));
        let alone = hold(&path, true).unwrap();
        assert!(hold(&path, false).is_err());
        drop(alone);
        assert!(hold(&path, false).is_ok());
        assert!(create(&path.join(RECIPE), &recipe).unwrap_err().to_string().contains("a file of that name"));
    }
}
