//! Checks the record of a run, however often its processes died: what it says happened can have happened, once, and
//! the models that were saved are those that were evaluated.
//!
//! For tests of faults: a program that kills workers and coordinators checks with this what they left. A record that
//! holds each promise of `docs/protocol.md` gives no finding.

use crate::observe::{EVENTS, Entry, JOURNAL, read};
use crate::recipe::{BatchNorm, Overrides, Recipe};
use crate::{Checkpoint, Error, Evaluated, Evaluator, Event, find_model};
use grawa_nn::State;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// How far the loss of a saved model may be from the recorded one, as a share of it: members sum parts of the test set
/// in another order than one evaluator does.
const LOSS: f64 = 1e-4;

/// What was checked, and what was found wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordCheck {
    /// Rounds in the record.
    pub rounds: u64,
    /// Saved models that were measured again.
    pub models: usize,
    /// Pairs of saved models of the same moment, in the folders of different workers.
    pub pairs: usize,
    /// What is wrong: sentences.
    pub findings: Vec<String>,
}

/// Checks the record in a run's folder, and the models that its workers saved in these folders: that of the run
/// itself, or those of `grawa join --out`.
pub fn check_record(run: &Path, savers: &[&Path]) -> Result<RecordCheck, Error> {
    let events: Vec<Event> = read(run)?.into_iter().map(|(event, _)| event).collect();
    let mut check = RecordCheck { findings: check_events(&events), ..RecordCheck::default() };
    check.rounds = events.iter().filter(|event| matches!(event, Event::Round(_))).count() as u64;
    check.findings.extend(check_journal(run)?);
    check_models(&events, run, savers, &mut check)?;
    Ok(check)
}

/// What is wrong in a sequence of events.
pub fn check_events(events: &[Event]) -> Vec<String> {
    let mut findings = Vec::new();
    let method = events.iter().find_map(|event| match event {
        Event::Started(started) => Some(started.method.as_str()),
        _ => None,
    });
    // Where gradients are shared, one event stands for several rounds.
    let skips = method.is_some_and(|method| method.starts_with("dp"));
    let (mut round, mut steps) = (0, 0);
    // By worker: its steps so far. A process that takes the number of one that is lost continues its count.
    let mut totals: BTreeMap<u32, u64> = BTreeMap::new();
    let mut evaluated: Option<u64> = None;
    for event in events {
        let at = event.place();
        match event {
            Event::Round(found) => {
                if at.rounds <= round || (!skips && at.rounds != round + 1) {
                    findings.push(format!("round {} follows round {round}", at.rounds));
                }
                if at.steps < steps {
                    findings.push(format!(
                        "round {} is at step {}, and the one before at {steps}",
                        at.rounds, at.steps
                    ));
                }
                (round, steps) = (at.rounds, at.steps);
                for share in &found.workers {
                    let before = totals.insert(share.worker, share.total).unwrap_or(0);
                    if share.total != before + share.steps {
                        findings.push(format!(
                            "round {round}: worker {} took {} steps after {before}, and is said to have taken {} in all",
                            share.worker, share.steps, share.total
                        ));
                    }
                }
                let mut numbers: Vec<u32> = found.workers.iter().map(|share| share.worker).collect();
                numbers.dedup();
                if numbers.len() != found.workers.len() {
                    findings.push(format!("round {round} counts a worker twice: {numbers:?}"));
                }
                for mixed in &found.mixed {
                    for row in &mixed.weights {
                        let sum: f32 = row.iter().sum();
                        if (sum - 1.0).abs() > 1e-4 {
                            findings.push(format!("round {round}: the weights {row:?} sum to {sum}"));
                        }
                    }
                }
            }
            Event::Evaluated(_) => {
                if at.rounds < round || evaluated == Some(at.rounds) && !skips {
                    findings.push(format!(
                        "an evaluation of round {} comes after round {round}, or twice",
                        at.rounds
                    ));
                }
                evaluated = Some(at.rounds);
            }
            Event::Fault(fault) if fault.what.contains("other bits") => {
                findings.push(format!("a member held other bits: {}", fault.what));
            }
            Event::Finished(finished) => {
                for share in &finished.workers {
                    let counted = totals.get(&share.worker).copied().unwrap_or(0);
                    // Steps after the last round are in no round.
                    if share.total < counted {
                        findings.push(format!(
                            "worker {} ends with {} steps, and rounds counted {counted}",
                            share.worker, share.total
                        ));
                    }
                }
            }
            Event::Started(_)
            | Event::Checkpoint { .. }
            | Event::CheckpointWritten { .. }
            | Event::Fault(_) => {}
        }
    }
    findings
}

/// The journal has one line for each event, in order.
fn check_journal(run: &Path) -> Result<Vec<String>, Error> {
    let text = |name: &str| {
        let path = run.join(name);
        fs::read_to_string(&path).map_err(|source| Error::Io { action: "read", path, source })
    };
    let (events, journal) = (text(EVENTS)?, text(JOURNAL)?);
    let (mut findings, mut next) = (Vec::new(), 0);
    for line in journal.lines() {
        // A crash may leave a last line that is not complete.
        let Ok(entry) = serde_json::from_str::<Entry>(line) else { continue };
        if entry.event.is_none() {
            next += 1;
        }
        if entry.line != next {
            findings
                .push(format!("the journal is at line {} of the events, where {next} are known", entry.line));
            next = entry.line;
        }
    }
    let lines = events.lines().count() as u64;
    if next > lines || next + 1 < lines {
        findings.push(format!("the journal knows of {next} events, and there are {lines}"));
    }
    Ok(findings)
}

/// The saved models are the evaluated ones, and those of one moment are the same.
fn check_models(
    events: &[Event],
    run: &Path,
    savers: &[&Path],
    check: &mut RecordCheck,
) -> Result<(), Error> {
    let evaluations: Vec<&Evaluated> = events
        .iter()
        .filter_map(|event| if let Event::Evaluated(it) = event { Some(it) } else { None })
        .collect();
    // Where a worker is lost between an evaluation and the checkpoint, the checkpoint holds the mean of those that are left.
    let disturbed: BTreeSet<u64> = (events.iter())
        .filter_map(|event| if let Event::Fault(fault) = event { Some(fault.at.steps) } else { None })
        .collect();
    let mut saved: BTreeMap<(u64, bool), (PathBuf, State)> = BTreeMap::new();
    let mut evaluator: Option<Evaluator> = None;
    for folder in savers {
        for path in checkpoints(folder) {
            let found = find_model(&path)?;
            let steps = Checkpoint::read(&path)?.steps();
            if disturbed.contains(&steps) {
                continue;
            }
            let evaluator = match &mut evaluator {
                Some(evaluator) => evaluator,
                None => evaluator.insert(evaluator_of(run)?),
            };
            let state = State::load(evaluator.graph(), &found.model)?;
            // One that was written when all were asked to stop is of a moment between two rounds, which was not evaluated.
            let is_stopped = name_of(&path).contains("-stopped-");
            if let Some((first, model)) = saved.get(&(steps, is_stopped)) {
                check.pairs += 1;
                if *model != state {
                    let why = format!("{} and {} hold different models", first.display(), path.display());
                    check.findings.push(why);
                }
            }
            // The last of that moment: a run that was continued may have been there twice.
            let evaluation =
                evaluations.iter().rev().find(|evaluated| evaluated.at.steps == steps && !is_stopped);
            if let Some([model]) = evaluation.map(|evaluated| &*evaluated.models)
                && let Some(loss) = model.loss
            {
                let measured = evaluator.measure(&state, |_| {})?;
                check.models += 1;
                if measured.total().wrong != model.wrong
                    || (measured.loss - loss).abs() > LOSS * loss.abs().max(1e-3)
                {
                    check.findings.push(format!(
                        "{}: {} wrong, loss {:.6}; evaluated at step {steps}: {} wrong, loss {loss:.6}",
                        path.display(),
                        measured.total().wrong,
                        measured.loss,
                        model.wrong
                    ));
                }
            }
            saved.entry((steps, is_stopped)).or_insert((path, state));
        }
    }
    Ok(())
}

/// Measures models of the run as they were saved, with their own statistics of batch norm.
fn evaluator_of(run: &Path) -> Result<Evaluator, Error> {
    let overrides = Overrides::default().read(&run.join(crate::folder::RECIPE))?;
    let mut recipe = Recipe::resolve(&overrides)?;
    recipe.evaluate.batch_norm = BatchNorm::Keep;
    let data = recipe.load_data(&|_, _| {})?;
    Evaluator::new(&recipe, &data)
}

fn name_of(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// The checkpoints in a folder that are whole.
fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("checkpoints")).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    // What was being written when a process died has another name.
    paths.retain(|path| name_of(path).starts_with("step-") && Checkpoint::read(path).is_ok());
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Place, Round, Share, Times};

    fn round(rounds: u64, shares: &[(u32, u64, u64)]) -> Event {
        let at = Place { steps: 4 * rounds, rounds, ..Place::default() };
        let share = |&(worker, steps, total): &(u32, u64, u64)| Share {
            worker,
            steps,
            total,
            loss: Some(1.0),
            times: Times::default(),
        };
        let workers = shares.iter().map(share).collect();
        Event::Round(Round { at, rate: 0.1, loss: Some(1.0), workers, mixed: Vec::new(), bytes: 0 })
    }

    /// A worker may miss rounds and bring its steps later; the next process may take its number. Nothing else passes.
    #[test]
    fn events_that_cannot_have_happened_are_found() {
        let good = [
            round(1, &[(0, 4, 4), (1, 4, 4)]),
            round(2, &[(0, 4, 8)]),
            round(3, &[(0, 4, 12), (1, 9, 13), (2, 0, 0)]),
        ];
        assert_eq!(check_events(&good), [""; 0]);
        let bad = |events: Vec<Event>, what: &str| {
            let found = check_events(&events);
            assert!(found.len() == 1 && found[0].contains(what), "{found:?}, and not {what}");
        };
        bad(vec![round(1, &[(0, 4, 4)]), round(3, &[(0, 4, 8)])], "round 3 follows round 1");
        bad(vec![round(1, &[(0, 4, 4)]), round(1, &[(0, 4, 8)])], "round 1 follows round 1");
        bad(vec![round(1, &[(0, 4, 4)]), round(2, &[(0, 8, 8)])], "took 8 steps after 4");
        bad(vec![round(1, &[(0, 4, 4)]), round(2, &[(0, 4, 4)])], "took 4 steps after 4");
        bad(vec![round(1, &[(0, 2, 2), (0, 2, 4)])], "counts a worker twice");
        let what = "worker 1 holds other bits".to_owned();
        let fault = Event::Fault(crate::Fault { at: Place::default(), worker: Some(1), what });
        bad(vec![fault], "other bits");
    }
}
