//! `grawa coordinate`: a run whose workers are elsewhere, and come and go.

use crate::failure::Failure;
use crate::say::say;
use crate::train;
use clap::Args;
use grawa_comm::group::{Host, Notice, Settings, Told, Wire};
use grawa_train::observe::{About, Files, Screen};
use grawa_train::{Event, Fault, Observer, Place, Recipe, objection};
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Coordinate a run whose workers are on other machines, and may come and go.
///
/// The coordinator says who meets and when; parameters move between the workers. The run begins when as many workers have joined
/// as the recipe says. Its record lies in the run's folder; checkpoints are left by workers that were given a folder.
#[derive(Args)]
#[command(
    after_help = "Example, on three machines:\n  grawa key new run.key\n  grawa coordinate --data digits --method lgrawa --workers 2 --listen 0.0.0.0:7117 --key run.key\n  grawa join HOST:7117 --key run.key      (on each of the others)"
)]
// The options of `train` bring a group of this name.
#[group(skip)]
pub(crate) struct Arguments {
    #[command(flatten)]
    train: train::Arguments,
    /// Where to listen for workers
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7117")]
    listen: String,
    #[command(flatten)]
    line: Line,
}

/// How connections are made.
#[derive(Args)]
pub(crate) struct Line {
    /// The run's key, made by `grawa key new`
    #[arg(long, value_name = "FILE", required_unless_present = "wire")]
    key: Option<PathBuf>,
    /// Without a key: everything in the clear, on a network that is trusted
    #[arg(long, value_parser = ["plain"], conflicts_with = "key")]
    wire: Option<String>,
}

impl Line {
    pub(crate) fn wire(&self) -> Result<Wire, Failure> {
        Ok(self.key.as_deref().map_or(Ok(Wire::Plain), Wire::with_key)?)
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let wire = arguments.line.wire()?;
    let Some((recipe, place)) = prepare(&arguments.train)? else { return Ok(true) };
    let host = host(&recipe, &place, &arguments.listen, wire)?;
    let (address, workers) = (host.address(), recipe.train.workers);
    say(&format!(
        "listening at {address} for {workers} workers; start each with: grawa join {address} {}",
        arguments.line.key.as_ref().map_or("--wire plain".into(), |key| format!("--key {}", key.display()))
    ));
    let stop = Arc::new(AtomicBool::new(false));
    train::listen_for_stop(&stop)?;
    let end = follow(&host, &place, arguments.train.quiet, || stop.load(Ordering::Relaxed))?;
    host.dismiss(if end { "the run is over" } else { "the run was stopped" });
    // What was said last must get out.
    std::thread::sleep(Duration::from_millis(300));
    Ok(end)
}

/// The recipe and the run's folder; nothing if only a plan was asked for.
pub(crate) fn prepare(arguments: &train::Arguments) -> Result<Option<(Recipe, PathBuf)>, Failure> {
    let recipe = train::recipe(arguments)?;
    if let Some(why) = objection(&recipe) {
        return Err(grawa_train::Error::NotElastic { why }.into());
    }
    if arguments.dry_run {
        return train::dry_run(&recipe).map(|()| None);
    }
    let place = train::claim(arguments, &recipe)?;
    Ok(Some((recipe, place)))
}

pub(crate) fn host(recipe: &Recipe, place: &Path, listen: &str, wire: Wire) -> Result<Host, Failure> {
    let settings = Settings { founders: recipe.train.workers, ..Settings::default() };
    // Random, so that a worker of another run is not taken for one of this.
    let run = std::hash::RandomState::new().build_hasher().finish() | 1;
    let charter = recipe.to_toml().into_bytes();
    Ok(Host::new(listen, wire, settings, run, charter, Some(&place.join("coordinator.log")))?)
}

/// Takes note of what the workers tell, until the run is finished, or it `is_over` and nothing more is told. Returns whether it is finished.
pub(crate) fn follow(
    host: &Host,
    place: &Path,
    quiet: bool,
    is_over: impl Fn() -> bool,
) -> Result<bool, Failure> {
    let about = About::here(concat!("grawa ", env!("CARGO_PKG_VERSION")), option_env!("GRAWA_COMMIT"));
    let mut observers: Vec<Box<dyn Observer>> = vec![Box::new(Files::create(place, &about)?)];
    if !quiet {
        observers.push(Box::new(Screen::new()));
    }
    let mut at = Place::default();
    let mut has_started = false;
    let mut last = Instant::now();
    loop {
        let event = match host.next(Duration::from_millis(100)) {
            None if is_over() => return Ok(false),
            None => {
                if last.elapsed() > Duration::from_secs(10) && !has_started && !quiet {
                    eprintln!("{}", host.status().reason);
                    last = Instant::now();
                }
                continue;
            }
            Some(Told::Word { what, .. }) => match serde_json::from_slice::<Event>(&what) {
                // Every worker says that it begins; the run begins once.
                Ok(Event::Started(_)) if std::mem::replace(&mut has_started, true) => continue,
                Ok(event) => event,
                Err(_) => continue,
            },
            Some(Told::Notice(Notice::Joined { .. } | Notice::Overshot { .. })) => continue,
            Some(Told::Notice(notice)) => {
                let worker = if let Notice::Lost(lost) = &notice { Some(lost.worker) } else { None };
                Event::Fault(Fault { at, worker, what: notice.to_string() })
            }
            Some(Told::Stranger { from, why }) => Event::Fault(Fault {
                at,
                worker: None,
                what: format!("a connection from {from} was refused: {why}"),
            }),
            Some(Told::Failed { why }) => return Err(Failure::Coordinator { why }),
        };
        at = *event.place();
        for observer in &mut observers {
            observer.event(&event)?;
        }
        if let Event::Finished(_) = event {
            return Ok(true);
        }
    }
}
