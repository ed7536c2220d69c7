//! What would my cluster do? A group of any size on a simulated network: the real coordinator and the real protocol of the members,
//! links with a rate and a latency, steps that take a stated time, and deaths if asked for. Prints a table with a row for every method.
//!
//! `cargo run --release -p grawa-comm --example far -- parameters=269722 layers=59 step=1.02 workers=12,50,200`

mod world;

use grawa_comm::group::forecast::Link;
use grawa_core::{Method, Name, Preset, Score, Share, Source, Weighting};
use std::collections::BTreeMap;
use std::process::ExitCode;
use world::{Cluster, Seen, World};

/// What can be said, with what is taken where it is not.
const WORDS: [(&str, &str, &str); 10] = [
    ("parameters", "269722", "of the network (ResNet-20)"),
    ("layers", "59", "its tensors, each with a score of its own in LGRAWA"),
    ("step", "1.02", "milliseconds of a local step"),
    ("workers", "12,50,200", "how many, one column each"),
    ("methods", "all", "which, as on the command line of `grawa train`, with semicolons between them"),
    ("gigabit", "1", "a second each way, every worker and the coordinator"),
    ("latency", "0.1", "milliseconds, one way"),
    ("spread", "2", "percent by which the time of a cycle varies, either way"),
    ("deaths", "0", "a minute; who dies is replaced after ten seconds"),
    ("minutes", "10", "that are simulated, or 50 rounds if nobody dies"),
];

fn usage() -> String {
    let line = |(word, value, what): &(&str, &str, &str)| format!("  {word}={value:<10} {what}\n");
    let lines: String = WORDS.iter().map(line).collect();
    format!(
        "What would a cluster do? Every setting is WORD=VALUE; these are taken where nothing is said:\n{lines}"
    )
}

fn settings() -> Result<BTreeMap<&'static str, String>, String> {
    let mut said: BTreeMap<_, _> =
        WORDS.iter().map(|(word, value, _)| (*word, (*value).to_owned())).collect();
    for argument in std::env::args().skip(1) {
        let known = argument.split_once('=').and_then(|(word, value)| Some((said.get_mut(word)?, value)));
        let Some((place, value)) = known else {
            return Err(format!("{argument}: not understood\n\n{}", usage()));
        };
        *place = value.into();
    }
    Ok(said)
}

/// A simulated group at work with a method.
fn simulate(said: &BTreeMap<&str, String>, method: &Method, workers: u32) -> Result<Seen, String> {
    let number = |word: &str| {
        said[word]
            .parse::<f64>()
            .ok()
            .filter(|x| x.is_finite() && *x >= 0.0)
            .ok_or(format!("{word}: {} is no number", said[word]))
    };
    let step = number("step")? / 1e3;
    // A batch to be judged by costs a gradient, and SAM two a step.
    let from_batch = matches!(method.score, Score::Norm { from: Source::Batch { .. }, .. });
    let passes = f64::from(method.period) * if method.radius.is_some() { 2.0 } else { 1.0 };
    let cluster = Cluster {
        link: Link { rate: number("gigabit")? * 125e6, latency: number("latency")? / 1e3 },
        workers,
        floats: number("parameters")? as usize,
        // 120 bytes and 8 for every score is what a worker says at a meeting.
        word: 120 + 8 * method.scores(number("layers")? as usize),
        steps: method.period.into(),
        cycle: passes * step,
        score: if from_batch { step } else { 0.0 },
        one_leads: method.weighting == Weighting::Smallest,
        spread: number("spread")? / 100.0,
        deaths: number("deaths")?,
        seconds: 60.0 * number("minutes")?,
    };
    Ok(World::new(cluster).run())
}

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument.contains("help")) {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    }
    match table() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

fn table() -> Result<(), String> {
    let said = settings()?;
    let methods: Vec<Method> = match said["methods"].as_str() {
        "all" => {
            let with_rounds = Name::ALL.into_iter().map(|name| Method::named(name, Preset::Paper));
            with_rounds.filter(|method| method.share != Share::Nothing).collect()
        }
        names => (names.split(';').map(str::parse))
            .collect::<Result<_, grawa_core::Error>>()
            .map_err(|error| error.to_string())?,
    };
    let workers = said["workers"]
        .split(',')
        .map(|word| word.parse().map_err(|_| format!("workers: {word} is no number")));
    let workers: Vec<u32> = workers.collect::<Result<_, _>>()?;
    println!(
        "| method | τ | workers | MB a worker and round | exchange, s | rounds an hour | GB a worker and hour | training, % of the time | \
         control, B/s a worker: signs of life | meetings | coordinator: messages/s | MB/s |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for method in &methods {
        for &workers in &workers {
            let seen = simulate(&said, method, workers)?;
            println!("| {} | {} | {workers} | {seen} |", method.name.title(), method.period);
        }
    }
    Ok(())
}
