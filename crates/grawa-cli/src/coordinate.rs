//! `grawa coordinate`: a run whose workers are elsewhere, and come and go.

use crate::address::check_free;
use crate::desk::{Desk, Look};
use crate::failure::Failure;
use crate::say::say;
use crate::train;
use clap::Args;
use grawa_comm::group::Wire;
use grawa_train::recipe::Facts;
use grawa_train::{Reason, Recipe, objection};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Where workers find a coordinator that was not told otherwise.
const LISTEN: &str = "127.0.0.1:7117";

/// Coordinate a run whose workers are on other machines, and may come and go.
///
/// The coordinator says who meets and when; parameters move between the workers. The run begins when as many workers have joined
/// as the recipe says. Its record lies in the run's folder; checkpoints are left by workers that were given a folder.
///
/// A coordinator that died is replaced by `--resume DIR`: the workers have gone on training, and come back to it by themselves.
#[derive(Args)]
#[command(
    after_help = "Example, on three machines:\n  grawa key new run.key\n  grawa coordinate --data digits --method lgrawa --workers 2 --listen 0.0.0.0:7117 --key run.key\n  grawa join HOST:7117 --key run.key --out kept      (on each of the others)\n  grawa coordinate --resume runs/digits-lgrawa-36 --key run.key      (after the coordinator died)"
)]
// The options of `train` bring a group of this name.
#[group(skip)]
pub(crate) struct Arguments {
    #[command(flatten)]
    train: train::Arguments,
    /// Where to listen for workers [default: 127.0.0.1:7117; with --resume where the run was coordinated before]
    #[arg(long, value_name = "HOST:PORT", value_parser = crate::address::address)]
    listen: Option<String>,
    /// When nobody holds what the run had come to: how many seconds to wait for one who does, before it goes on from the newest that anyone
    /// holds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    #[command(flatten)]
    line: Line,
    #[command(flatten)]
    look: Look,
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
    if arguments.train.checkpoint.is_some() {
        return Err(Failure::OnlyTrain);
    }
    let wire = arguments.line.wire()?;
    let listen = arguments.listen.as_deref();
    let patience = Duration::from_secs(arguments.patience);
    let mut desk = match &arguments.train.resume {
        Some(place) => match Desk::go_on(place, listen, wire, patience)? {
            Some(desk) => desk,
            None => {
                say(&format!("the run in {} is finished: nothing to do", place.display()));
                return Ok(true);
            }
        },
        None => {
            let listen = listen.unwrap_or(LISTEN);
            let check = |recipe: &Recipe| {
                // The data lies with the workers: what is known of it without must fit.
                if let Some(facts) = Facts::published(recipe) {
                    facts.network(recipe)?;
                }
                check_free(listen)?;
                arguments.look.at(arguments.train.quiet).map_or(Ok(()), check_free)
            };
            let Some((recipe, place)) = prepare(&arguments.train, check)? else { return Ok(true) };
            Desk::begin(&recipe, &place, listen, wire, patience)?
        }
    };
    let (address, workers, place) = (desk.host.address(), desk.workers, desk.place.clone());
    // What listens at all addresses is found at none of that name.
    let host = if address.ip().is_unspecified() { "HOST".into() } else { address.ip().to_string() };
    let host = if address.is_ipv6() && host != "HOST" { format!("[{host}]") } else { host };
    say(&format!(
        "listening at {address} for {workers} workers; start each with: grawa join {host}:{} {} --out DIR",
        address.port(),
        arguments.line.key.as_ref().map_or("--wire plain".into(), |key| format!("--key {}", key.display()))
    ));
    desk.show(&arguments.look, arguments.train.quiet)?;
    let stop = Arc::new(AtomicBool::new(false));
    train::listen_for_stop(&stop)?;
    let host = Arc::clone(&desk.host);
    let (end, is_kept) = desk.follow(arguments.train.quiet, || stop.load(Ordering::Relaxed), || false)?;
    let diverged = end.as_ref().is_some_and(|end| end.diverged);
    let end = end.is_some_and(|end| end.reason == Reason::Spent);
    host.dismiss(if end { "the run is over" } else { "the run was stopped" });
    // What was said last must get out.
    std::thread::sleep(Duration::from_millis(300));
    let place = place.display();
    say(&match end {
        true if diverged => format!("diverged: no worker's parameters are finite; its files stay in {place}"),
        true => format!("done; see {place}"),
        false => format!("stopped, and its workers with it; what was recorded is in {place}"),
    });
    if !is_kept {
        say("no worker has kept the model: of those that join with --out DIR the first one does");
    }
    Ok(end && !diverged)
}

/// The recipe, which must pass a check, and the run's folder; nothing if only a plan was asked for.
pub(crate) fn prepare(
    arguments: &train::Arguments,
    check: impl FnOnce(&Recipe) -> Result<(), Failure>,
) -> Result<Option<(Recipe, PathBuf)>, Failure> {
    let recipe = train::recipe(arguments)?;
    if let Some(why) = objection(&recipe) {
        return Err(grawa_train::Error::NotElastic { why }.into());
    }
    if arguments.dry_run {
        return train::dry_run(&recipe).map(|()| None);
    }
    check(&recipe)?;
    let place = train::claim(arguments, &recipe)?;
    Ok(Some((recipe, place)))
}
