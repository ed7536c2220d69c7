//! Rounds between processes on this machine: `cargo bench -p grawa-comm --bench wire -- [WORKERS FLOATS ROUNDS plain|tls f32|bf16]`.
//!
//! Starts a coordinator and WORKERS processes, which mix vectors of FLOATS floats (by default those of WRN-28-10) over TCP. Prints the
//! seconds of every round of the slowest worker, and the bytes that a worker sent relative to the minimum.

use grawa_comm::group::{CoordinatorServer, Joiner, Security, Settings, TransferOptions, new_key};
use grawa_comm::{Collective, Error};
use grawa_core::{Layout, Memory, Method, Plan, Report, plan};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const CHILD: &str = "GRAWA_BENCH_WIRE";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Ok(text) = std::env::var(CHILD) {
        return child(&text);
    }
    // cargo itself adds --bench.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse::<u64>());
    let (workers, floats, rounds) = (number(0, 4)?, number(1, 36_536_884)?, number(2, 5)?);
    let folder = tempfile::tempdir()?;
    let key = folder.path().join("key");
    let encrypted = words.get(3).is_some_and(|word| word == "tls");
    let wire = if encrypted {
        new_key(&key)?;
        Security::with_key(&key)?
    } else {
        Security::Plain
    };
    let settings = Settings { founders: workers as u32, ..Settings::default() };
    let host = CoordinatorServer::new("127.0.0.1:0", wire, settings, 1, Vec::new(), None)?;
    let key = if encrypted { key.display().to_string() } else { String::new() };
    let format = words.get(4).map_or("f32", String::as_str);
    let text = format!("{} {floats} {rounds} {format} {key}", host.address());
    let mut children = Vec::new();
    for _ in 0..workers {
        let mut command = Command::new(std::env::current_exe()?);
        children.push(command.env(CHILD, &text).stdout(Stdio::piped()).spawn()?);
    }
    let mut slowest = vec![0.0f64; rounds as usize];
    for child in &mut children {
        let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        for (line, slowest) in lines.zip(&mut slowest) {
            *slowest = slowest.max(line?.parse()?);
        }
    }
    for child in &mut children {
        child.wait()?;
    }
    slowest.iter().for_each(|seconds| println!("{seconds:.4}"));
    slowest.sort_by(f64::total_cmp);
    let median = slowest[slowest.len() / 2];
    eprintln!(
        "{workers} processes, {floats} floats, {}, {format}: median {:.0} ms, {:.2} GB/s",
        if encrypted { "TLS" } else { "plain" },
        1e3 * median,
        4e-9 * floats as f64 / median
    );
    Ok(())
}

fn mean(members: &[u32], layout: &Layout) -> Result<Plan, grawa_core::Error> {
    let method: Method = "mean:pull=1".parse()?;
    let report = |&worker| Report { worker, scores: Vec::new(), finite: true, steps: 1 };
    plan(&method, layout, &Memory::default(), &members.iter().map(report).collect::<Vec<_>>())
}

fn child(text: &str) -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<&str> = text.split(' ').collect();
    let (floats, rounds): (usize, u64) = (words[1].parse()?, words[2].parse()?);
    let wire = if words[4].is_empty() { Security::Plain } else { Security::with_key(words[4].as_ref())? };
    let travel = TransferOptions { bf16: words[3] == "bf16", ..TransferOptions::default() };
    let guest = Joiner::new(words[0], wire, "127.0.0.1:0", None, Duration::from_secs(60))?;
    let (mut ends, _) = guest.enter(Vec::new(), vec![0.0; floats], &[], travel)?;
    let mut end = ends.remove(0);
    let layout = Layout::flat(floats);
    let mut mine: Vec<f32> = (0..floats).map(|n| (n % 1000) as f32 * 1e-3 + end.id() as f32).collect();
    // The first round connects and touches all memory. It does not count.
    for round in 0..=rounds {
        end.barrier()?;
        let plan = mean(end.members(), &layout)?;
        let (start, before) = (Instant::now(), end.bytes());
        end.mix_and_pull(&plan, &layout, &mut mine)?;
        let members = end.members().len();
        let least = 8.0 * floats as f64 * (members - 1) as f64 / members as f64;
        if round > 0 {
            println!("{}", start.elapsed().as_secs_f64());
        } else if end.id() == 0 && members > 1 {
            eprintln!("worker 0 sent {:.4} of the minimum", (end.bytes() - before) as f64 / least);
        }
    }
    // No worker leaves before all have measured.
    match end.barrier() {
        Ok(_) | Err(Error::Behind) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
