//! Small runs for tests, and what they leave behind.

#![allow(clippy::unwrap_used, dead_code, reason = "every test uses some of it")]

use grawa_comm::group::{CoordinatorServer, Joiner, Security, Settings};
use grawa_core::{Amount, Name};
use grawa_data::Dataset;
use grawa_train::recipe::Overrides;
use grawa_train::{Checkpoint, Error, Event, Finished, Observer, Reason, Recipe, Run, Stop, join};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) fn recipe(method: &str, settings: &[&str]) -> Recipe {
    let said = Overrides::default().method(method, "test").unwrap();
    let said = ["model.width=4", "train.batch=16", "train.budget=10step", "evaluate.every=5step"]
        .iter()
        .chain(settings)
        .fold(said, |said, setting| said.set(setting).unwrap());
    let mut recipe = Recipe::resolve(&said).unwrap();
    recipe.evaluate.images = 64;
    recipe.checkpoint.every = Some(Amount::Steps(4));
    recipe
}

/// Every method, with rounds every three steps; the reference preset where it scores other batches; groups.
pub(crate) fn methods() -> Vec<String> {
    let mut all: Vec<String> = (Name::ALL.iter())
        .map(|name| match name {
            Name::DpSgd | Name::DpSam | Name::Sgd => name.to_string(),
            _ => format!("{name}:period=3"),
        })
        .collect();
    all.push("mgrawa:preset=reference,period=3".into());
    all.push("lsgd:period=4,inner.group=2,inner.period=2".into());
    all
}

#[derive(Clone, Default)]
pub(crate) struct Ear(pub(crate) Arc<Mutex<Vec<Event>>>);

impl Observer for Ear {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        self.0.lock().unwrap().push(event.clone());
        Ok(())
    }
}

impl Ear {
    pub(crate) fn last_wrong(&self) -> (u64, u64) {
        let events = self.0.lock().unwrap();
        let model = events.iter().rev().find_map(|event| match event {
            Event::Evaluated(evaluated) => Some(evaluated.models[0].clone()),
            _ => None,
        });
        model.map(|model| (model.wrong, model.examples)).unwrap()
    }
}

pub(crate) fn go(recipe: &Recipe, data: &Dataset, folder: &Path) -> (Finished, Ear) {
    let ear = Ear::default();
    let run = Run::new(recipe.clone(), data).unwrap().keep_in(folder);
    (run.go(&mut [Box::new(ear.clone())]).unwrap(), ear)
}

/// Who coordinates a run of workers that come and go.
pub(crate) fn host(recipe: &Recipe) -> CoordinatorServer {
    let settings = Settings { founders: recipe.train.workers, ..Settings::default() };
    CoordinatorServer::new("127.0.0.1:0", Security::Plain, settings, 1, recipe.to_toml().into_bytes(), None)
        .unwrap()
}

/// One who comes, and what it hears of the run.
pub(crate) fn guest(host: &CoordinatorServer) -> (Joiner, Recipe) {
    let long = Duration::from_secs(120);
    let guest = Joiner::new(&host.address().to_string(), Security::Plain, "127.0.0.1:0", None, long).unwrap();
    let text = String::from_utf8(guest.charter.clone()).unwrap();
    let recipe = Recipe::resolve(&Overrides::default().file("the run", &text).unwrap()).unwrap();
    (guest, recipe)
}

/// A run whose workers are connected by sockets and stay to its end.
pub(crate) fn apart(recipe: &Recipe, data: &Dataset, place: &Path) -> Ear {
    let (host, group) = (host(recipe), Ear::default());
    grawa_train::folder::create(place, recipe).unwrap();
    let workers = recipe.train.workers as usize;
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let (guest, heard) = guest(&host);
                let mut ears: [Box<dyn Observer>; 1] = [Box::new(group.clone())];
                let end = join(heard, data, guest, Some(place), Stop::default(), &mut ears).unwrap();
                assert_eq!((end.at.steps, end.workers.len()), (10, workers));
            });
        }
    });
    group
}

/// Every file below the checkpoints but those of times, with its bytes.
pub(crate) fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for checkpoint in fs::read_dir(folder.join("checkpoints")).unwrap() {
        for file in fs::read_dir(checkpoint.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            if !path.ends_with("timing.toml") && !path.ends_with("checksums.toml") {
                files.push((path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

pub(crate) fn names(files: &[(PathBuf, Vec<u8>)]) -> Vec<String> {
    files.iter().map(|(path, _)| path.display().to_string()).collect()
}

/// Stops a run at its n-th event.
pub(crate) struct Stopper(Arc<AtomicBool>, usize);

impl Observer for Stopper {
    fn event(&mut self, _: &Event) -> Result<(), Error> {
        self.1 = self.1.saturating_sub(1);
        if self.1 == 0 {
            self.0.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Runs a recipe in one piece, and again stopped and resumed many times: both must leave the same files. Returns the
/// folder of the latter.
pub(crate) fn resumes_exactly(recipe: &Recipe, data: &Dataset) -> TempDir {
    let method = &recipe.method;
    let (whole, broken) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    go(recipe, data, whole.path());
    let mut stops = 0;
    loop {
        let stop = Arc::new(AtomicBool::new(false));
        let mut run = Run::new(recipe.clone(), data).unwrap().keep_in(broken.path());
        if stops > 0 {
            run = run.resume(Checkpoint::newest(broken.path()).unwrap());
        }
        let stopper = Stopper(Arc::clone(&stop), 3);
        let end = run.stop_by(stop).go(&mut [Box::new(stopper)]).unwrap();
        if end.reason == Reason::Spent {
            break;
        }
        stops += 1;
        assert!(stops < 40, "{method} never ends");
    }
    assert!(stops > 0, "{method} was never stopped");
    let (found, expected) = (files(broken.path()), files(whole.path()));
    assert_eq!(names(&found), names(&expected), "{method}");
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        assert!(found == expected, "{method}: {} differs after {stops} stops", name.display());
    }
    broken
}
