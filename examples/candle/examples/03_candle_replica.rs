//! A Candle model as a replica: grawa has the training loop, the optimizer and the files of the run. Two processes with two workers each
//! join a coordinator; the processes are threads here, and `work` is what a program on another machine would do.
//!
//!     cargo run --release --example 03_candle_replica

use grawa_candle::{CandleReplica, EXAMPLES};
use grawa_comm::group::{Joiner, Security};
use grawa_core::Replica;
use grawa_train::coordinate::{Connect, Control, CoordinatedRun, Outcome};
use grawa_train::observe::About;
use grawa_train::recipe::Overrides;
use grawa_train::{Recipe, Run, Stop, folder};
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One process with two workers. The recipe comes from the coordinator.
fn work(address: &str) -> Result<(), Failure> {
    let listen = ("127.0.0.1:0", None);
    let joiner = Joiner::with_workers(2, address, Security::Plain, listen, Duration::from_secs(60))?;
    let text = String::from_utf8_lossy(&joiner.charter).into_owned();
    let recipe = Recipe::resolve(&Overrides::default().file("the coordinator's recipe", &text)?)?;
    let founders = recipe.train.workers;
    let layout = CandleReplica::new(0, founders)?.layout().clone();
    let make = move |shard| CandleReplica::new(shard, founders);
    let run = Run::of_replicas(recipe, "candle", layout, EXAMPLES, make)?;
    run.join(joiner, Stop::default(), &mut [])?;
    Ok(())
}

/// Coordinates a run of two processes in a new folder.
pub fn learn(place: &Path) -> Result<Outcome, Failure> {
    let overrides = Overrides::default()
        .method("lgrawa:period=16", "here")?
        .set("train.workers=4")?
        .set("train.rate=0.1")?
        .set("train.budget=512step")?;
    let recipe = Recipe::resolve(&overrides)?;
    folder::create(place, &recipe)?;
    let connect = Connect {
        listen: None,
        wire: Security::Plain,
        patience: Duration::from_secs(60),
        stall: Connect::STALL,
        wait: None,
    };
    let run = CoordinatedRun::begin(&recipe, place, &connect, &About::here("candle_replica", None))?;
    let address = run.address().to_string();
    thread::scope(|scope| {
        let processes = [scope.spawn(|| work(&address)), scope.spawn(|| work(&address))];
        let are_gone = || processes.iter().all(ScopedJoinHandle::is_finished);
        let outcome =
            run.follow(&mut [], || if are_gone() { Control::NoWorkers } else { Control::Continue })?;
        for process in processes {
            process.join().map_err(|_| "a process panicked")??;
        }
        Ok(outcome)
    })
}

fn main() -> Result<(), Failure> {
    let place = std::env::args().nth(1).unwrap_or("runs/candle-replica".into());
    let end = learn(Path::new(&place))?.finished.ok_or("the processes have not reported an end")?;
    println!("{} rounds of {} workers; see {place}", end.at.rounds, end.workers.len());
    Ok(())
}
