//! A small run as events, for tests of those who listen.

use crate::{Evaluated, Event, Fault, Finished, Mixed, Model, Place, Reason, Round, Share, Started, Times};
use grawa_core::Amount;
use std::path::Path;

/// A run of `workers` workers over `rounds` rounds of four steps, with an evaluation and a checkpoint every other round.
pub(crate) fn run(method: &str, workers: u32, rounds: u64) -> Vec<Event> {
    let place = |round: u64| Place {
        steps: 4 * round,
        rounds: round,
        epochs: round as f64 / 4.0,
        share: round as f64 / rounds as f64,
        elapsed: 1.5 * round as f64,
    };
    let spans: Vec<String> = ["conv1.weight", "bn1.weight", "linear.weight"].map(String::from).into();
    let started = Started {
        at: Place::default(),
        method: method.into(),
        network: "digits".into(),
        data: "digits".into(),
        workers,
        batch: 32,
        seed: 7,
        budget: Amount::Steps(4 * rounds),
        steps: Some(4 * rounds),
        parameters: 5_000,
        spans: spans.clone(),
        examples: 1_438,
        resumed: false,
    };
    let share = |worker: u32, round: u64, steps: u64| Share {
        worker,
        steps,
        total: 4 * round,
        loss: Some(2.0 / (round + u64::from(worker) + 1) as f64),
        times: Times { compute: 0.9, score: 0.2, wait: 0.1 * f64::from(worker), ..Times::default() },
    };
    let mut events =
        vec![Event::Started(started), Event::Checkpoint { at: place(0), path: "checkpoints/0".into() }];
    for round in 1..=rounds {
        let at = place(round);
        let total: u32 = (1..=workers).sum();
        let row: Vec<f32> = (1..=workers).map(|worker| worker as f32 / total as f32).collect();
        let rows = if method.contains("lgrawa") { spans.len() } else { 1 };
        let mixed =
            Mixed { workers: (0..workers).collect(), weights: vec![row; rows], pull: 0.5, reasons: vec![] };
        events.push(Event::Round(Round {
            at,
            rate: 0.1,
            loss: Some(2.0 / (round + 1) as f64),
            workers: (0..workers).map(|worker| share(worker, round, 4)).collect(),
            mixed: vec![mixed],
            bytes: 20_000,
        }));
        if round == 3 {
            let what = "worker 1 lost its parameters and starts again from the centre".into();
            events.push(Event::Fault(Fault { at, worker: Some(1), what }));
        }
        if round % 2 == 0 {
            // The checkpoint first, then an evaluation of the same step: it belongs to what comes after.
            events.push(Event::Checkpoint { at, path: format!("checkpoints/{}", at.steps).into() });
            let wrong = 360 / (round + 1);
            let model = Model { which: "mean".into(), loss: Some(0.5), wrong, examples: 359 };
            events.push(Event::Evaluated(Evaluated { at, models: vec![model] }));
        }
    }
    let workers = (0..workers).map(|worker| share(worker, rounds, 4 * rounds)).collect();
    events.push(Event::Finished(Finished {
        at: place(rounds),
        reason: Reason::Spent,
        workers,
        bytes: 20_000 * rounds,
        diverged: false,
    }));
    events
}

/// The start of a resumed run.
pub(crate) fn resumed(events: &[Event]) -> Event {
    match &events[0] {
        Event::Started(started) => Event::Started(Started { resumed: true, ..started.clone() }),
        event => event.clone(),
    }
}

/// The last checkpoint among these events, and which event it is.
pub(crate) fn last_checkpoint(events: &[Event]) -> Option<(usize, &Path)> {
    events.iter().enumerate().rev().find_map(|(at, event)| match event {
        Event::Checkpoint { path, .. } => Some((at, path.as_path())),
        _ => None,
    })
}
