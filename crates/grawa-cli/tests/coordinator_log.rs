//! A coordinator whose log is damaged or lost, and one that is stopped for a while.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod group;

use group::{Group, Process, grawa, text, until};
use std::fs;
use std::path::Path;
use std::time::Duration;

const ENDLESS: &str = "1000000000step";

/// The names and bytes of all files of a worker's checkpoints.
fn checkpoints(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for checkpoint in fs::read_dir(folder.join("checkpoints")).unwrap() {
        for file in fs::read_dir(checkpoint.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            all.push((path.display().to_string(), fs::read(path).unwrap()));
        }
    }
    all.sort();
    all
}

/// The log is gone, empty, cut to its beginning, or has one wrong bit: the coordinator refuses and names the way out; that way the run continues
/// from the checkpoint, and no checkpoint is lost. It never begins anew.
#[test]
fn a_run_without_its_log_is_not_begun_anew() {
    let line = ["--wire", "plain", "--patience", "3", "--page", "none"];
    let mut group =
        Group::begin(2, ENDLESS, &["--wire", "plain", "--patience", "3"], &["checkpoint.every=40step"]);
    let kept = group.folder.path().join("kept");
    let keeper = Process::start(group.joining(&group.address).args(["--out", "kept"]));
    let other = group.join();
    until("a checkpoint", || fs::read_dir(kept.join("checkpoints")).is_ok_and(|all| all.count() > 1));
    group.wait_rounds(5);
    group.coordinator.kill();
    drop((keeper, other));
    let (run, log) = (group.run(), group.run().join("coordinator.log"));
    let whole = fs::read(&log).unwrap();
    let before = checkpoints(&kept);
    let (rounds, _) = group.last_round();
    let refuses = |words: &str| {
        let mut command = grawa(group.folder.path(), &["coordinate", "--resume", "run", "--quiet"]);
        let output = command.args(line).args(["--listen", "127.0.0.1:0"]).output().unwrap();
        let text = text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains(words) && text.contains("--from-workers") && text.contains("--out KEPT"),
            "{text}"
        );
    };
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&log, bytes).unwrap();
    };
    damaged(&|bytes| bytes.clear());
    refuses("it is empty");
    fs::remove_file(&log).unwrap();
    refuses("it is missing");
    // Also if the record of the rounds is gone with it, in part or altogether.
    let (record, journal) = (run.join("events.jsonl"), fs::read(run.join("journal.jsonl")).unwrap());
    let events = fs::read_to_string(&record).unwrap();
    let first = events.lines().next().unwrap();
    for (kept, bytes) in [(format!("{first}\n"), None), (String::new(), Some(b""))] {
        fs::write(&record, kept).unwrap();
        if let Some(bytes) = bytes {
            fs::write(&log, bytes).unwrap();
        }
        refuses(if bytes.is_some() { "it is empty" } else { "it is missing" });
        let _ = fs::remove_file(&log);
    }
    fs::remove_file(&record).unwrap();
    let mut command = grawa(group.folder.path(), &["coordinate", "--resume", "run", "--quiet"]);
    let found = text(&command.args(line).output().unwrap());
    assert!(found.contains("move journal.jsonl and about.toml"), "{found}");
    fs::write(&record, &events).unwrap();
    assert!(
        !log.exists() && fs::read(run.join("journal.jsonl")).unwrap() == journal,
        "what was refused was changed"
    );
    damaged(&|bytes| bytes.truncate(16 + 3));
    refuses("no committed state");
    damaged(&|bytes| bytes[16 + 2] ^= 0x10);
    refuses("it is damaged");
    // The way out. Two new workers wait for the one with the checkpoint, however long.
    let address = group.address.clone();
    let mut command =
        grawa(group.folder.path(), &["coordinate", "--resume", "run", "--from-workers", "--quiet"]);
    let coordinator = Process::start(command.args(line));
    let new = [group.join(), group.join()];
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(group.last_round().0, rounds, "new workers began it anew");
    assert_eq!(checkpoints(&kept), before);
    let keeper = Process::start(group.joining(&address).args(["--out", "kept"]));
    let faults = || group.faults();
    until("the run continues", || {
        faults().iter().any(|fault| fault.contains("the run continues from operation"))
    });
    let at = group.last_round().0;
    until("rounds go on", || group.last_round().0 > at.max(rounds) + 3);
    let found: Vec<u64> =
        (group.events().iter())
            .filter_map(|(event, _)| {
                if let grawa_train::Event::Round(round) = event { Some(round.at.rounds) } else { None }
            })
            .collect();
    assert!(found.windows(2).all(|two| two[1] == two[0] + 1), "each round is read once: {found:?}");
    assert!(run.join("coordinator.log.cut").exists(), "what was cut off is kept");
    drop((coordinator, new, keeper));
}

/// One that is stopped for eight seconds, as when its machine is moved, drops nobody: not between rounds, and not inside one. Rounds wait for
/// five seconds, in the place of two: a worker of a busy machine may really be late.
#[test]
fn a_coordinator_that_is_stopped_drops_nobody() {
    for (period, wire) in
        [("4000", ["--wire", "plain", "--wait", "5"]), ("4", ["--key", "run.key", "--wait", "5"])]
    {
        let group = Group::begin(3, ENDLESS, &wire, &[&format!("method.period={period}")]);
        let workers = [group.join(), group.join(), group.join()];
        until("a round of three", || group.last_round().1.len() == 3);
        for _ in 0..2 {
            group.coordinator.signal("-STOP");
            std::thread::sleep(Duration::from_secs(8));
            group.coordinator.signal("-CONT");
            std::thread::sleep(Duration::from_secs(4));
        }
        let faults = group.faults();
        let is_loss = |fault: &String| fault.contains("go on without");
        assert!(!faults.iter().any(is_loss), "period {period}: {faults:#?}");
        group.wait_rounds(1);
        assert_eq!(group.last_round().1.len(), 3, "period {period}");
        drop(workers);
    }
}
