//! `grawa join`: one process of a coordinated run.

use crate::coordinate::SecurityArguments;
use crate::failure::Failure;
use crate::output::{print, warn};
use crate::stop::on_signal;
use crate::train::succeeded;
use crate::workers::Workers;
use clap::Args;
use grawa_comm::Error as CommError;
use grawa_comm::group::{Contact, Joiner, variables};
use grawa_train::recipe::Overrides;
use grawa_train::{Checkpoint, Error, Reason, Recipe, SessionError, Stop, join, make_room, shell};
use std::ffi::OsString;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Take part in a run, with one or more workers.
///
/// The coordinator sends the recipe; the data set must be on this machine. A process that joins late takes the state of the others. One
/// that loses its connection continues to train and reconnects. Ctrl-C leaves the run; the others continue.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa join HOST:7117 --key run.key --out kept\n  grawa join HOST:7117 --key run.key --workers 4 --device cuda --out kept\n  grawa join HOST:7117 --key run.key --restarts 3 -- python train.py"
)]
pub(crate) struct Arguments {
    /// Where the coordinator listens
    #[arg(value_name = "HOST:PORT", value_parser = crate::address::address)]
    address: String,
    #[command(flatten)]
    security: SecurityArguments,
    /// Workers of this process: they share its cores or its GPU, and vectors travel once for all of them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: u32,
    /// Where this process listens for the others; port 0 is any free one, and 0.0.0.0 all addresses of this machine [default: any port of
    /// the address that leads to the coordinator]
    #[arg(long, value_name = "HOST:PORT", value_parser = crate::address::address)]
    listen: Option<String>,
    /// The host by which other processes reach this one [default: the address that leads to the coordinator]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// The folder of the data set on this machine
    #[arg(long, value_name = "DIR")]
    dir: Option<String>,
    /// Device: cpu or cuda [default: the recipe's]
    #[arg(long)]
    device: Option<String>,
    /// Cores to use [default: all]
    #[arg(long)]
    threads: Option<u32>,
    /// Write checkpoints to this folder while this process is the first of those that have one; if all workers were lost, restore the
    /// last checkpoint
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// With a COMMAND: start it again if it fails, this many times
    #[arg(long, value_name = "N", default_value_t = 0, requires = "command")]
    restarts: u32,
    /// Start this program as the worker instead: it finds the group in GRAWA_COORDINATOR, GRAWA_KEY, GRAWA_WORKERS and GRAWA_LISTEN
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// A worker of `grawa launch`, which writes to its standard input when all are to stop
    #[arg(long, hide = true)]
    launched: bool,
    /// Seconds to wait for the coordinator
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let wire = arguments.security.wire()?;
    let here = way_to(&arguments.address)?;
    let patience = Duration::from_secs(arguments.patience);
    let listen = arguments.listen.clone().unwrap_or_else(|| format!("{here}:0"));
    // A listener at all addresses needs one that others can connect to.
    let is_anywhere = listen.starts_with("0.0.0.0:") || listen.starts_with("[::]:");
    let host = arguments.host.as_deref().or(is_anywhere.then_some(here.as_str()));
    if let Some((program, rest)) = arguments.command.split_first() {
        let mut command = Command::new(program);
        command.args(rest).env(variables::COORDINATOR, &arguments.address).env(variables::LISTEN, &listen);
        command.env(variables::WORKERS, arguments.workers.to_string());
        command.envs(host.map(|host| (variables::HOST, host)));
        // The program may change its folder before it joins.
        let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into());
        match &arguments.security.key {
            Some(key) => command.env(variables::KEY, whole(key)),
            None => command.env(variables::WIRE, "plain"),
        };
        command.envs(arguments.out.as_deref().map(|out| ("GRAWA_OUT", whole(out))));
        return attend(command, arguments.restarts);
    }
    let answered = note_silence(&arguments.address, patience);
    let wish = std::env::var(variables::WORKER).ok().filter(|_| arguments.launched);
    let numbers = (wish.and_then(|text| text.parse().ok()), arguments.workers);
    let joiner = Joiner::with_numbers(numbers, &arguments.address, wire, (&listen, host), patience)?;
    drop(answered);
    // Until it has found the coordinator, Ctrl-C simply ends it.
    let stop = if arguments.launched { Stop::from_launcher() } else { Stop::default() };
    listen_for_stop(&stop, arguments.launched)?;
    if joiner.charter.is_empty() {
        return Err(Failure::Usage(
            "the coordinator has no recipe: it waits for programs with a session; start yours with `grawa join HOST:PORT --key FILE -- COMMAND`",
        ));
    }
    let text = String::from_utf8_lossy(&joiner.charter).into_owned();
    let overrides = Overrides::default()
        .file("the coordinator's recipe", &text)?
        .options(&[("data.dir", &arguments.dir, "--dir"), ("machine.device", &arguments.device, "--device")])?
        .options(&[("machine.threads", &arguments.threads, "--threads")])?;
    let recipe = Recipe::resolve(&overrides)?;
    // The folder is held until the end.
    let room = arguments.out.as_deref().map(|out| make_room(out, &recipe, joiner.run())).transpose()?;
    for why in room.iter().flat_map(|(_hold, damaged)| damaged) {
        warn(&format!("a newer checkpoint cannot be used: {why}"));
    }
    let data = crate::train::load(&recipe)?;
    print(&match joiner.workers {
        1 => format!("taking part as worker {}", joiner.worker),
        several => format!("taking part as workers {} to {}", joiner.worker, joiner.worker + several - 1),
    });
    print(&format!("the run starts when {} workers have joined, if it has not started", joiner.founders));
    if arguments.out.is_none() {
        print("this process does not save the model: that needs --out DIR");
    }
    let contact = joiner.contact();
    std::thread::spawn(move || watch_contact(&contact));
    let together = Arc::clone(&stop.together);
    match join(recipe, &data, joiner, arguments.out.as_deref(), stop, &mut []) {
        Ok(end) if end.reason == Reason::Interrupted => {
            print(&stopped(end.at.steps, arguments.out.as_deref().filter(|_| !arguments.launched)));
            Ok(false)
        }
        Ok(end) => {
            let how = if end.diverged { ": it has diverged, no worker's parameters are finite" } else { "" };
            print(&format!(
                "the run is over after {} steps a worker and {} rounds{how}",
                end.at.steps, end.at.rounds
            ));
            if let Some(out) = arguments.out.as_ref().filter(|_| !arguments.launched) {
                let (place, word) = (out.display(), shell::path(out));
                print(&match Checkpoint::newest(out) {
                    Ok(checkpoint) if checkpoint.is_finished() => {
                        format!("the model is in {place}; evaluate it with: grawa eval {word}")
                    }
                    _ => "another worker saves the model".into(),
                });
            }
            Ok(succeeded(&end))
        }
        Err(Error::Session(SessionError::Left)) => {
            print("left the run; the others continue");
            Ok(false)
        }
        // A coordinator that is stopped while it waits for the first round sends all away.
        Err(Error::Comm(CommError::Refused { .. })) if together.load(Ordering::Relaxed) => {
            print("the coordinator stopped the run before its first round");
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// How a run ended that was stopped, and where its model is.
fn stopped(step: u64, out: Option<&Path>) -> String {
    let kept = out.filter(|out| Checkpoint::newest(out).is_ok_and(|kept| kept.steps() == step));
    match kept {
        Some(out) => {
            format!("the coordinator stopped the run at step {step}; the model is in {}", out.display())
        }
        None => format!("the coordinator stopped the run at step {step}"),
    }
}

/// Runs a program to its end, and starts it again where that was asked for. Ctrl-C reaches the program, too: it leaves the run.
fn attend(command: Command, restarts: u32) -> Result<bool, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    crate::train::listen_for_stop(&stop)?;
    let mut workers = Workers::new(restarts, 1);
    workers.start(command)?;
    loop {
        workers.watch();
        if stop.load(Ordering::Relaxed) {
            workers.let_end();
        }
        match workers.ended() {
            Some((_, status)) => return Ok(status.success()),
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Leaves at the first Ctrl-C or SIGTERM. A signal to all processes of a launch is followed by its request that all stop, which comes
/// a little later.
fn listen_for_stop(stop: &Stop, is_launched: bool) -> Result<(), Failure> {
    const ON_ITS_WAY: Duration = Duration::from_millis(300);
    let asked = Arc::clone(&stop.asked);
    on_signal(move || {
        if is_launched {
            std::thread::sleep(ON_ITS_WAY);
        }
        asked.store(true, Ordering::Relaxed);
    })
}

/// Prints that the coordinator has not answered yet, unless the result is dropped within two seconds.
fn note_silence(address: &str, patience: Duration) -> Sender<()> {
    const SILENCE: Duration = Duration::from_secs(2);
    let (answered, waiting) = channel();
    let note =
        format!("no answer from {address} yet; trying for {} s in all (--patience)", patience.as_secs());
    std::thread::spawn(move || {
        if waiting.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
            print(&note);
        }
    });
    answered
}

/// Prints when the connection to the coordinator is lost, again every minute, and when it is back.
fn watch_contact(contact: &Contact) {
    const ALONE: Duration = Duration::from_secs(1);
    const AGAIN: Duration = Duration::from_secs(60);
    let mut printed: Option<Duration> = None;
    while let Some(lost) = contact.lost_for() {
        match printed {
            None if lost > ALONE => {
                print(
                    "the coordinator is out of reach: no rounds until it is back; between rounds this worker trains alone",
                );
                printed = Some(lost);
            }
            Some(_) if lost.is_zero() => {
                print("in contact with the coordinator again");
                printed = None;
            }
            Some(last) if lost > last + AGAIN => {
                print(&format!("out of reach of the coordinator for {:.0} s", lost.as_secs_f64()));
                printed = Some(lost);
            }
            _ => {}
        }
        std::thread::sleep(ALONE / 5);
    }
}

/// The address of this machine on the route to another. Nothing is sent.
fn way_to(address: &str) -> Result<String, Failure> {
    let find = |from: &str| {
        let socket = UdpSocket::bind(from)?;
        socket.connect(address)?;
        socket.local_addr()
    };
    let found = find("0.0.0.0:0").or_else(|_| find("[::]:0"));
    let found =
        found.map_err(|error| grawa_comm::Error::Connection { why: format!("{address}: {error}") })?;
    Ok(if found.is_ipv6() { format!("[{}]", found.ip()) } else { found.ip().to_string() })
}
