//! A program that coordinates a run itself: it starts a coordinator, joins two workers over loopback, and reads how the run ended.
//!
//!     cargo run --release -p grawa-train --example 05_coordinator

use grawa_comm::group::{Joiner, Security};
use grawa_train::coordinate::{Connect, Control, CoordinatedRun, Outcome};
use grawa_train::observe::About;
use grawa_train::recipe::Overrides;
use grawa_train::{Recipe, Stop, folder, join};
use std::path::Path;
use std::time::Duration;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let place = std::env::args().nth(1).unwrap_or("runs/coordinator".into());
    let outcome = coordinate(Path::new(&place))?;
    let end = outcome.finished.ok_or("the workers have not reported an end")?;
    println!("{} steps, {} rounds, {} workers; see {place}", end.at.steps, end.at.rounds, end.workers.len());
    Ok(())
}

/// Coordinates a run of the digits in a new folder.
pub fn coordinate(place: &Path) -> Result<Outcome, Failure> {
    let said = Overrides::default()
        .method("lgrawa:period=4", "here")?
        .set("train.workers=2")?
        .set("train.budget=32step")?;
    let recipe = Recipe::resolve(&said)?;
    folder::create(place, &recipe)?;
    let connect = Connect {
        listen: None,
        wire: Security::Plain,
        patience: Duration::from_secs(60),
        stall: Connect::STALL,
        wait: None,
    };
    let run = CoordinatedRun::begin(&recipe, place, &connect, &About::here("coordinator", None))?;
    let address = run.address().to_string();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..recipe.train.workers).map(|_| scope.spawn(|| work(&address))).collect();
        let outcome =
            run.follow(&mut [], || match workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                true => Control::NoWorkers,
                false => Control::Continue,
            })?;
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        Ok(outcome)
    })
}

/// One worker. It could as well be another process on another machine.
fn work(address: &str) -> Result<(), Failure> {
    let guest = Joiner::new(address, Security::Plain, "127.0.0.1:0", None, Duration::from_secs(60))?;
    let text = String::from_utf8_lossy(&guest.charter).into_owned();
    let recipe = Recipe::resolve(
        &Overrides::default().file("the coordinator's recipe", &text)?.set("machine.threads=1")?,
    )?;
    let data = grawa_data::load(recipe.data.kind.name(), &recipe.data.dir)?;
    join(recipe, &data, guest, None, Stop::default(), &mut [])?;
    Ok(())
}
