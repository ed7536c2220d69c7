//! A run's folder: its recipe, its events, its checkpoints. Existing files are never overwritten.

use crate::bounded_read::{self, SMALL};
use crate::checkpoint::{BEST, FOLDER, MODEL, best_error, crc, io, tidy};
use crate::recipe::{Overrides, TABLES};
use crate::{Error, Recipe, durable};
use grawa_nn::zoo;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use toml::{Table, Value};

/// How long a process that was killed may still have the lock of a folder.
const DYING: Duration = Duration::from_secs(2);
/// The file that identifies a coordinated run.
pub(crate) const COORDINATOR: &str = "coordinator.toml";
/// The recipe as it was resolved.
pub const RECIPE: &str = "recipe.toml";

/// In the place of a recipe: a run that its workers define, programs with a session.
const SESSION: &str = "session.toml";

/// The command that begins another run from the model of this one, whatever network it has.
pub fn begin_from(run: &Path) -> String {
    let recipe = crate::shell::path(&run.join(RECIPE));
    format!("grawa train --recipe {recipe} --init {}", crate::shell::path(run))
}

/// Makes a folder for a new run; one that exists must be empty.
pub fn create(path: &Path, recipe: &Recipe) -> Result<(), Error> {
    create_with(path, RECIPE, &recipe.to_toml())
}

/// Makes a folder for a run that its workers define.
pub fn create_for_sessions(path: &Path, workers: u32) -> Result<(), Error> {
    create_with(path, SESSION, &format!("# The programs that join define this run.\nworkers = {workers}\n"))
}

/// The workers of a run that they define themselves; `None` if it has a recipe.
#[cfg(feature = "group")]
pub(crate) fn session_workers(path: &Path) -> Result<Option<u32>, Error> {
    let file = path.join(SESSION);
    if !file.exists() {
        return Ok(None);
    }
    let text = bounded_read::read_text(&file, SMALL).map_err(io("read", &file))?;
    let said = text.parse::<Table>().ok().and_then(|mut said| said.remove("workers")?.try_into::<u32>().ok());
    let why = || "it must have a line such as 'workers = 4'".to_owned();
    let damaged = || Error::Damaged { path: file.clone(), line: 1, why: why() };
    said.filter(|workers| *workers > 0).map(Some).ok_or_else(damaged)
}

fn create_with(path: &Path, name: &str, text: &str) -> Result<(), Error> {
    durable::create_folders(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotADirectory => {
            Error::FolderInUse { path: path.into(), found: "a file of that name".into() }
        }
        _ => io("create", path)(source),
    })?;
    // One process at a time: workers that share a folder may be started at once. Where folders cannot be locked the user must see to it.
    let gate = fs::File::open(path);
    if let Ok(gate) = &gate {
        lock(path, || gate.try_lock())?;
    }
    let mut entries = fs::read_dir(path).map_err(io("look into", path))?;
    if let Some(entry) = entries.next() {
        let name = entry.map_err(io("look into", path))?.file_name();
        let is_run = path.join(RECIPE).is_file() || path.join(SESSION).is_file();
        let found = if is_run { "a run".into() } else { format!("'{}'", name.display()) };
        return Err(Error::FolderInUse { path: path.into(), found });
    }
    let file = path.join(name);
    durable::place(&file, text.as_bytes()).map(drop).map_err(io("write", &file))
}

/// A folder in use, until this ends.
#[derive(Debug)]
pub struct Hold {
    _file: fs::File,
}

/// Locks a run's folder: for one process alone, or shared by a coordinator and its workers, which write there too. The first process
/// cleans up what killed processes have left.
pub fn hold(path: &Path, alone: bool) -> Result<Hold, Error> {
    let session = path.join(SESSION);
    let name = if session.exists() { session } else { path.join(RECIPE) };
    let file = fs::File::open(&name).map_err(io("open", &name))?;
    if !alone && file.try_lock().is_ok() {
        tidy_all(path)?;
        file.unlock().map_err(io("unlock", &name))?;
    }
    lock(path, || if alone { file.try_lock() } else { file.try_lock_shared() })?;
    if alone {
        tidy_all(path)?;
    }
    Ok(Hold { _file: file })
}

/// Locks, as soon as a process that was killed is gone; an error if another process keeps its lock.
fn lock(path: &Path, attempt: impl Fn() -> Result<(), fs::TryLockError>) -> Result<(), Error> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(fs::TryLockError::WouldBlock) if began.elapsed() < DYING => std::thread::sleep(DYING / 50),
            Err(fs::TryLockError::WouldBlock) => return Err(Error::AtWork { path: path.into() }),
            // Where files cannot be locked the user must see to it.
            _ => return Ok(()),
        }
    }
}

/// Removes what processes that were killed have left: checkpoints, and files that were written aside.
fn tidy_all(path: &Path) -> Result<(), Error> {
    tidy(&path.join(FOLDER))?;
    let best = path.join(BEST);
    for place in [path, &best].into_iter().filter(|place| place.is_dir()) {
        for entry in fs::read_dir(place).map_err(io("look into", place))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_aside = |file: &&str| name.starts_with(&format!(".{file}-"));
            if [RECIPE, COORDINATOR, MODEL].iter().any(is_aside) {
                fs::remove_file(entry.path()).map_err(io("remove", &entry.path()))?;
            }
        }
    }
    Ok(())
}

/// The recipe of a run's folder.
pub fn recipe(path: &Path) -> Result<Recipe, Error> {
    Ok(Recipe::resolve(&overrides(path)?)?)
}

/// The folder of the best model of a run, and its test error from 0 to 1; none if it has none.
pub fn best(path: &Path) -> Result<Option<(PathBuf, f64)>, Error> {
    let best = path.join(BEST);
    Ok(best_error(&best.join(MODEL))?.map(|error| (best, error)))
}

/// What the recipe of a run's folder sets: every key.
pub fn overrides(path: &Path) -> Result<Overrides, Error> {
    let file = path.join(RECIPE);
    if !path.exists() {
        return Err(Error::NoFolder { path: path.into() });
    }
    if !file.exists() {
        let (has_checkpoints, path) = (path.join(crate::checkpoint::FOLDER).exists(), path.into());
        return Err(if has_checkpoints { Error::NoRecipe { path } } else { Error::NoCheckpoint { path } });
    }
    check_recipe(&file)?;
    Ok(Overrides::default().read(&file)?)
}

/// Writes the budget and the data's folder of a changed recipe to that of a folder, whose lock is `hold`. Returns the lock of the new
/// file. All other lines stay: keys that an older program did not write must not appear, since its checkpoints have a digest of them.
pub fn amend(path: &Path, recipe: &Recipe, hold: Hold) -> Result<Hold, Error> {
    let file = path.join(RECIPE);
    let damaged =
        |error: toml::de::Error| Error::Damaged { path: file.clone(), line: 1, why: error.message().into() };
    let read = |text: &str| text.parse::<Table>().map_err(damaged);
    let (mut said, now) =
        (read(&bounded_read::read_text(&file, SMALL).map_err(io("read", &file))?)?, read(&recipe.to_toml())?);
    let before = said.clone();
    for (table, key) in [("data", "dir"), ("train", "budget")] {
        let value = now.get(table).and_then(|table| table.get(key));
        if let (Some(Value::Table(table)), Some(value)) = (said.get_mut(table), value) {
            table.insert(key.into(), value.clone());
        }
    }
    if said == before {
        return Ok(hold);
    }
    durable::replace(&file, said.to_string().as_bytes()).map_err(io("write", &file))?;
    // Locks belong to files, not to names.
    let renewed = self::hold(path, true)?;
    drop(hold);
    Ok(renewed)
}

/// The seeds of a folder that holds a run for each of several.
const SEEDS: &str = "seeds.toml";

/// Makes a folder for runs of a recipe with `count` consecutive seeds from its own on.
pub fn create_for_seeds(path: &Path, recipe: &Recipe, count: u64) -> Result<(), Error> {
    create(path, recipe)?;
    let seeds: Vec<u64> = (recipe.train.seed..recipe.train.seed + count).collect();
    let (file, text) = (path.join(SEEDS), format!("# A run for each seed, in seed-N.\nseeds = {seeds:?}\n"));
    durable::place(&file, text.as_bytes()).map(drop).map_err(io("write", &file))
}

/// Whether a folder holds a run for each of several seeds.
pub fn has_seeds(path: &Path) -> bool {
    path.join(SEEDS).exists()
}

/// The seeds of such a folder.
pub fn seeds(path: &Path) -> Result<Vec<u64>, Error> {
    let file = path.join(SEEDS);
    let text = bounded_read::read_text(&file, SMALL).map_err(io("read", &file))?;
    let said = text.parse::<Table>().ok().and_then(|mut said| said.remove("seeds")?.try_into().ok());
    let why = || "it must have a line such as 'seeds = [36, 37]'".to_owned();
    said.ok_or_else(|| Error::Damaged { path: file.clone(), line: 1, why: why() })
}

/// Checks that a recipe was written by a run and is complete, and that its network can be built here. An empty or truncated file would
/// be read as the recipe of another run: keys that are missing have defaults.
pub(crate) fn check_recipe(file: &Path) -> Result<(), Error> {
    let text = bounded_read::read_text(file, SMALL).map_err(io("read", file))?;
    // The reader of the recipe names the wrong line.
    let Ok(said) = text.parse::<Table>() else { return Ok(()) };
    if let Some(missing) = TABLES.iter().find(|table| !said.contains_key(**table)) {
        let why = format!(
            "it has no [{missing}], and the recipe of a run has every table: it is damaged; put back the recipe that the run began with"
        );
        return Err(Error::Damaged { path: file.into(), line: text.lines().count().max(1), why });
    }
    let model = |key: &str| said.get("model").and_then(|model| model.get(key)).and_then(Value::as_str);
    match model("name") {
        Some(network) if zoo::find(network).is_err() && model("graph").is_none() => {
            Err(Error::OwnNetwork { path: file.into(), network: network.into() })
        }
        _ => Ok(()),
    }
}

/// A digest of those keys of the recipe in a run's folder that determine the training. Budget, intervals of evaluations and checkpoints,
/// paths and the machine may change between a stop and a resume, and are not in it.
pub(crate) fn digest(path: &Path) -> Option<String> {
    let mut said: Table = bounded_read::read_text(&path.join(RECIPE), SMALL).ok()?.parse().ok()?;
    for table in ["evaluate", "checkpoint", "machine"] {
        said.remove(table);
    }
    for (table, key) in [("data", "dir"), ("model", "init"), ("train", "budget")] {
        if let Some(Value::Table(table)) = said.get_mut(table) {
            table.remove(key);
        }
    }
    Some(crc(said.to_string().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_data::DatasetKind;

    /// The recipe of an older program has fewer keys. A resume keeps it, and with it the digest that checkpoints have.
    #[test]
    fn only_budget_and_data_folder_are_amended() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        let mut recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
        create(&path, &recipe).unwrap();
        let older = recipe.to_toml().replace("shrink = 0\n", "");
        fs::write(path.join(RECIPE), &older).unwrap();
        let before = digest(&path).unwrap();
        let locked = amend(&path, &recipe, hold(&path, true).unwrap()).unwrap();
        assert_eq!(fs::read_to_string(path.join(RECIPE)).unwrap(), older);
        (recipe.train.budget, recipe.data.dir) = ("77epoch".parse().unwrap(), "elsewhere".into());
        drop(amend(&path, &recipe, locked).unwrap());
        assert_eq!(digest(&path).unwrap(), before);
        assert_eq!(super::recipe(&path).unwrap(), recipe);
    }

    #[test]
    fn a_folder_is_for_one_run_and_says_which() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("deep/run");
        let recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
        create(&path, &recipe).unwrap();
        assert_eq!(super::recipe(&path).unwrap(), recipe);
        let kept = path.join("kept.toml");
        fs::rename(path.join(RECIPE), &kept).unwrap();
        assert!(matches!(super::recipe(&path), Err(Error::NoCheckpoint { .. })));
        fs::create_dir(path.join("checkpoints")).unwrap();
        assert!(matches!(super::recipe(&path), Err(Error::NoRecipe { .. })));
        fs::rename(&kept, path.join(RECIPE)).unwrap();
        let again = create(&path, &recipe).unwrap_err().to_string();
        assert!(again.contains("already holds a run"), "{again}");
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

    /// Another process may keep the lock of an empty folder for ever: the start ends with the reason.
    #[test]
    fn a_new_folder_is_not_waited_for_without_end() {
        let place = tempfile::tempdir().unwrap();
        let gate = fs::File::open(place.path()).unwrap();
        gate.lock().unwrap();
        let recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
        assert!(create(place.path(), &recipe).unwrap_err().to_string().contains("is at work"));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        drop(gate);
        create(place.path(), &recipe).unwrap();
    }

    /// What a killed process left goes when the next one comes, but not while others work there.
    #[test]
    fn the_first_to_come_tidies_up() {
        let place = tempfile::tempdir().unwrap();
        create(&place.path().join("run"), &Recipe::for_data(DatasetKind::Digits, None).unwrap()).unwrap();
        let path = place.path().join("run");
        let left = path.join(FOLDER).join(".partial-host-7");
        let aside = path.join(".recipe.toml-host-7");
        for alone in [false, true] {
            fs::create_dir_all(&left).unwrap();
            fs::write(&aside, "half of").unwrap();
            let first = hold(&path, alone).unwrap();
            assert!(!left.exists() && !aside.exists() && path.join(RECIPE).exists(), "alone: {alone}");
            fs::create_dir_all(&left).unwrap();
            assert_eq!(hold(&path, false).is_ok(), !alone);
            assert!(left.exists(), "it was removed under another's hands");
            drop(first);
        }
    }

    /// Only what may change between a stop and a resume leaves the digest as it is.
    #[test]
    fn a_digest_is_of_what_decides_the_training() {
        let digest = |change: fn(&mut Recipe)| {
            let place = tempfile::tempdir().unwrap();
            let mut recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
            change(&mut recipe);
            create(&place.path().join("run"), &recipe).unwrap();
            digest(&place.path().join("run")).unwrap()
        };
        let usual = digest(|_| {});
        assert_eq!(digest(|recipe| recipe.machine.threads = Some(3)), usual);
        assert_eq!(digest(|recipe| recipe.data.dir = "elsewhere".into()), usual);
        assert_eq!(digest(|recipe| recipe.train.budget = grawa_core::Amount::Steps(9)), usual);
        assert_ne!(digest(|recipe| recipe.train.seed = 9), usual);
        assert_ne!(digest(|recipe| recipe.model.width = Some(9)), usual);
        assert_ne!(digest(|recipe| recipe.method.prox = 0.125), usual);
        assert_eq!(super::digest(Path::new("nowhere")), None);
    }
}
