//! The example as processes, as `grawa launch` starts them.

#![allow(clippy::unwrap_used)]

use grawa_comm::group::{CoordinatorServer, Security, Settings};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The example, which cargo builds with the tests.
fn example() -> Command {
    let test = std::env::current_exe().unwrap();
    let folder: PathBuf = test.ancestors().nth(2).unwrap().join("examples");
    let mut command = Command::new(folder.join("06_burn_session"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// A coordinator that takes the settings of the first worker.
fn coordinate(founders: u32) -> CoordinatorServer {
    let settings = Settings { founders, ..Settings::default() };
    CoordinatorServer::new("127.0.0.1:0", Security::Plain, settings, 1, Vec::new(), None).unwrap()
}

fn join(coordinator: &CoordinatorServer, budget: &str) -> Child {
    let address = coordinator.address().to_string();
    example().env("GRAWA_COORDINATOR", address).env("GRAWA_WIRE", "plain").arg(budget).spawn().unwrap()
}

/// What a worker prints, to its end.
fn said(worker: Child) -> Vec<String> {
    let output = worker.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The number at the end of a line.
fn number(line: &str) -> f32 {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_model_is_trained_alone() {
    let said = said(example().spawn().unwrap());
    assert_eq!(said[0], "joined at step 0");
    assert!(number(said.last().unwrap()) > 0.9, "{said:?}");
}

/// All workers begin with random models of their own, and make the same one together.
#[test]
fn four_workers_train_one_model() {
    let coordinator = coordinate(4);
    let workers: Vec<_> = (0..4).map(|_| join(&coordinator, "256step")).collect();
    let said: Vec<_> = workers.into_iter().map(said).collect();
    let last = said[0].last().unwrap();
    assert!(said.iter().all(|lines| lines.last() == Some(last)), "{said:?}");
    assert!(last.starts_with("step 256:") && number(last) > 0.9, "{said:?}");
}

/// The others do not stop; the one that takes the place starts from their state.
#[test]
fn one_is_killed_and_replaced() {
    let coordinator = coordinate(4);
    let budget = "1024step";
    let mut killed = join(&coordinator, budget);
    let mut others: Vec<_> = (0..3).map(|_| join(&coordinator, budget)).collect();
    let first = BufReader::new(killed.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(first.into_iter().any(|line| line.starts_with("step 128:")));
    killed.kill().unwrap();
    killed.wait().unwrap();
    others.push(join(&coordinator, budget));
    let said: Vec<_> = others.into_iter().map(said).collect();
    let joined: Vec<f32> = said.iter().map(|lines| number(&lines[0])).collect();
    assert!(joined[..3] == [0.0; 3] && joined[3] >= 128.0, "{said:?}");
    let last = said[0].last().unwrap();
    assert!(last.starts_with("step 1024:") && number(last) > 0.9, "{said:?}");
    assert!(said.iter().all(|lines| lines.last() == Some(last)), "{said:?}");
}
