//! Checks the record of a run, however often its processes died: what it says happened can have happened, once, and
//! the models that were saved are those that were evaluated.
//!
//! For tests of faults: a program that kills workers and coordinators checks with this what they left. A record that
//! holds each promise of `docs/protocol.md` gives no finding.

use crate::checkpoint::{BEST, MODEL};
use crate::observe::{EVENTS, Entry, JOURNAL, goes_back, read, read_all};
use crate::recipe::{BatchNorm, Overrides, Recipe};
use crate::{Checkpoint, Error, Evaluated, Evaluator, Event, Model, find_model};
use grawa_nn::{State, Tensors};
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
    /// Best models that were.
    pub bests: usize,
    /// Checkpoints whose state of the group is one that the coordinator's log has.
    pub states: usize,
    /// States in that log.
    pub committed: usize,
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
    // A checkpoint may be older than the moment to which the run went back.
    let all: Vec<Event> = read_all(run)?.into_iter().map(|(event, _)| event).collect();
    #[cfg(feature = "group")]
    let committed = states::check_log(run, &mut check)?;
    check_models(&all, run, savers, &mut check, &|_path, _check| {
        #[cfg(feature = "group")]
        states::check(_path, &committed, &all, _check)?;
        Ok(())
    })?;
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
                numbers.sort_unstable();
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
    check_state: &dyn Fn(&Path, &mut RecordCheck) -> Result<(), Error>,
) -> Result<(), Error> {
    let known = Known::of(events);
    let mut saved: BTreeMap<(u64, bool, u64), (PathBuf, State)> = BTreeMap::new();
    let mut evaluator: Option<Evaluator> = None;
    for folder in savers {
        for path in checkpoints(folder) {
            let found = find_model(&path)?;
            let checkpoint = Checkpoint::read(&path)?;
            let steps = checkpoint.steps();
            check_state(&path, check)?;
            let evaluator = match &mut evaluator {
                Some(evaluator) => evaluator,
                None => evaluator.insert(evaluator_of(run)?),
            };
            let state = State::load(evaluator.graph(), &found.model)?;
            // The model of those that took part in the evaluation, also where one of them was lost since. A worker that
            // came after it has the mean of those that were left.
            let took_part = has_evaluated(&path)?;
            // The run may have been at this step twice.
            let centre = checkpoint.snapshot.parts.iter().flat_map(|part| &part.centres).next();
            let centre = hash(centre.map_or(&[], |(_, _, centre)| &centre[..]));
            let key = (steps, took_part, centre);
            if let Some((first, model)) = saved.get(&key) {
                check.pairs += 1;
                if *model != state {
                    let why = format!("{} and {} hold different models", first.display(), path.display());
                    check.findings.push(why);
                }
            }
            // One that was written when all were asked to stop is of a moment between two rounds, which was not evaluated.
            let is_stopped = name_of(&path).contains("-stopped-");
            let own = checkpoint.history().iter().rev().find(|evaluated| evaluated.at.steps == steps);
            let recorded: Vec<&Evaluated> = known.at(steps).collect();
            let expected =
                if took_part { own.map_or(recorded.clone(), |own| vec![own]) } else { recorded.clone() };
            let is_due = !is_stopped && (took_part || !known.disturbed.contains(&steps));
            if is_due && expected.iter().any(|evaluated| evaluated.models.len() == 1) {
                check.models += 1;
                let why = check_model(evaluator, &state, &expected)?;
                check.findings.extend(why.map(|why| format!("{}: {why}", path.display())));
            }
            if let Some(own) = own
                && !recorded.is_empty()
                && !known.went_back
                && !recorded.iter().any(|evaluated| is_same(&evaluated.models, &own.models))
            {
                let why = format!(
                    "{} was evaluated as {:?}, and step {steps} of the record is {recorded:?}",
                    path.display(),
                    own.models
                );
                check.findings.push(why);
            }
            saved.entry(key).or_insert((path, state));
        }
        let best = folder.join(BEST).join(MODEL);
        if !best.is_file() {
            continue;
        }
        let evaluator = match &mut evaluator {
            Some(evaluator) => evaluator,
            None => evaluator.insert(evaluator_of(run)?),
        };
        let state = State::load(evaluator.graph(), &best)?;
        let metadata = Tensors::read(&best, "the best model")?.metadata;
        let said = |key: &str| metadata.get(key).map_or("", String::as_str);
        let steps = said("step").parse().ok();
        // Where those that evaluated it are lost before their report arrives, it is in no record.
        let recorded: Vec<&Evaluated> = steps.map_or(Vec::new(), |steps| known.at(steps).collect());
        if recorded.is_empty() {
            if !known.has_faults {
                check.findings.push(format!("{}: step {:?} was not evaluated", best.display(), said("step")));
            }
            continue;
        }
        check.bests += 1;
        let is_it = |evaluated: &&&Evaluated| {
            evaluated.error().is_some_and(|it| it.to_string() == said("test_error"))
        };
        if recorded.iter().find(is_it).is_none() && !known.went_back {
            check.findings.push(format!(
                "{}: its error is {}, and {recorded:?}",
                best.display(),
                said("test_error")
            ));
        }
        if let Some(why) = check_model(evaluator, &state, &recorded)?.filter(|_| !known.went_back) {
            check.findings.push(format!("{}: {why}", best.display()));
        }
    }
    Ok(())
}

/// What the events say of evaluations.
struct Known<'a> {
    evaluations: Vec<&'a Evaluated>,
    /// Steps at which, or on the way to which, something went wrong.
    disturbed: BTreeSet<u64>,
    has_faults: bool,
    /// Whether the run went back: evaluations may have been made again, by others.
    went_back: bool,
}

impl<'a> Known<'a> {
    fn of(events: &'a [Event]) -> Self {
        let mut known = Known {
            evaluations: Vec::new(),
            disturbed: BTreeSet::new(),
            has_faults: false,
            went_back: false,
        };
        let mut is_disturbed = false;
        for event in events {
            match event {
                Event::Evaluated(evaluated) => known.evaluations.push(evaluated),
                Event::Fault(fault) => {
                    known.disturbed.insert(fault.at.steps);
                    (is_disturbed, known.has_faults) = (true, true);
                    known.went_back |= goes_back(&fault.what);
                }
                Event::Round(round) if std::mem::take(&mut is_disturbed) => {
                    known.disturbed.insert(round.at.steps);
                }
                _ => {}
            }
        }
        known
    }

    fn at(&self, steps: u64) -> impl Iterator<Item = &'a Evaluated> {
        self.evaluations.iter().copied().filter(move |evaluated| evaluated.at.steps == steps)
    }
}

/// Why a model is none of those that were evaluated.
fn check_model(
    evaluator: &Evaluator,
    state: &State,
    evaluations: &[&Evaluated],
) -> Result<Option<String>, Error> {
    let measured = evaluator.measure(state, |_| {})?;
    let (wrong, loss) = (measured.total().wrong, measured.loss);
    let found = Model { which: String::new(), loss: Some(loss), wrong, examples: measured.total().examples };
    if evaluations.iter().any(|evaluated| is_same(&evaluated.models, std::slice::from_ref(&found))) {
        return Ok(None);
    }
    let models: Vec<&Vec<Model>> = evaluations.iter().map(|evaluated| &evaluated.models).collect();
    Ok(Some(format!("{wrong} wrong, loss {loss:.6}; it was evaluated as {models:?}")))
}

/// Whether two results are those of the same models.
fn is_same(these: &[Model], others: &[Model]) -> bool {
    let is_near = |(one, other): (&Model, &Model)| {
        let is_near = |(one, other): (f64, f64)| (one - other).abs() <= LOSS * other.abs().max(1e-3);
        one.wrong == other.wrong && one.loss.zip(other.loss).is_none_or(is_near)
    };
    these.len() == others.len() && these.iter().zip(others).all(is_near)
}

/// Whether who wrote a checkpoint took part in the evaluation of its moment.
fn has_evaluated(checkpoint: &Path) -> Result<bool, Error> {
    let path = checkpoint.join("manifest.toml");
    let text = fs::read_to_string(&path).map_err(|source| Error::Io { action: "read", path, source })?;
    Ok(text.lines().any(|line| line == "statistics = \"as evaluated\""))
}

fn hash(vector: &[f32]) -> u64 {
    let mut crc = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    vector.iter().for_each(|x| crc.update(&x.to_le_bytes()));
    crc.finalize()
}

/// The states of an elastic group: those in the coordinator's log, and those in checkpoints.
#[cfg(feature = "group")]
mod states {
    use super::*;
    use crate::checkpoint::GROUP;
    use crate::snapshot::GroupCheckpoint;
    use grawa_comm::group::StateVersion;
    use grawa_comm::group::internals::{journal::content, messages};

    /// Reads the coordinator's log, and checks it: records that are whole, of one run; epochs never fall, and operations only
    /// in a later epoch, where the run went back.
    pub(super) fn check_log(run: &Path, check: &mut RecordCheck) -> Result<Vec<StateVersion>, Error> {
        let path = run.join("coordinator.log");
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(|source| Error::Io { action: "read", path, source })?,
        };
        let content = content(&bytes);
        let mut find = |why: String| check.findings.push(format!("coordinator.log: {why}"));
        if content.good < bytes.len() && !content.is_torn {
            find(format!("{} bytes at its end are no records", bytes.len() - content.good));
        }
        let records = content.entries.iter().filter_map(|entry| match entry {
            messages::Entry::Committed(record) if record.members > 0 => Some(record),
            _ => None,
        });
        let records: Vec<&messages::Record> = records.collect();
        for two in records.windows(2) {
            let (before, after) = (two[0], two[1]);
            let line = |record: &messages::Record| format!("epoch {}, {:?}", record.epoch, record.version);
            let (then, now) = (line(before), line(after));
            let went_back = after.version.op < before.version.op;
            let is_other = after.version.op == before.version.op && after.version != before.version;
            if after.run != before.run {
                find(format!("run {:x} follows run {:x}", after.run, before.run));
            } else if after.epoch < before.epoch || went_back && after.epoch == before.epoch || is_other {
                find(format!("{now} follows {then}"));
            }
        }
        check.committed = records.len();
        Ok(records.into_iter().map(|record| record.version).collect())
    }

    /// The state of the group in a checkpoint is one that was committed: with the same digest as in the log.
    pub(super) fn check(
        checkpoint: &Path,
        committed: &[StateVersion],
        events: &[Event],
        check: &mut RecordCheck,
    ) -> Result<(), Error> {
        let path = checkpoint.join(GROUP);
        let Ok(text) = fs::read(&path) else { return Ok(()) };
        let wrong = |why: String| Error::NotACheckpoint { path: path.clone(), why };
        let held: GroupCheckpoint =
            serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let read = Checkpoint::read(checkpoint)?;
        let centre = read.snapshot.parts.iter().flat_map(|part| &part.centres).next();
        let centre = centre.map_or(&[][..], |(_, _, centre)| centre);
        let memory = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, held.memory.as_bytes());
        let version = StateVersion { op: held.meeting, digest: memory << 32 | hash(centre) };
        let there: Vec<&StateVersion> = committed.iter().filter(|it| it.op == version.op).collect();
        if there.contains(&&version) {
            check.states += 1;
            return Ok(());
        }
        // Who held it may be lost before the coordinator hears of it, or the coordinator.
        let is_fault = |event: &Event| matches!(event, Event::Fault(_));
        if !there.is_empty() || !events.iter().any(is_fault) {
            check
                .findings
                .push(format!("{} holds {version:?}, and committed was {there:?}", checkpoint.display()));
        }
        Ok(())
    }
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
        bad(vec![round(1, &[(0, 2, 2), (1, 4, 4), (0, 2, 4)])], "counts a worker twice");
        let what = "worker 1 holds other bits".to_owned();
        let fault = Event::Fault(crate::Fault { at: Place::default(), worker: Some(1), what });
        bad(vec![fault], "other bits");
    }

    #[derive(Clone, Default)]
    struct Ear(std::sync::Arc<std::sync::Mutex<Vec<Event>>>);

    impl crate::Observer for Ear {
        fn event(&mut self, event: &Event) -> Result<(), Error> {
            self.0.lock().unwrap().push(event.clone());
            Ok(())
        }
    }

    /// Writes the record of a run in which something else was evaluated, and a fault says something at every step of it.
    fn check_with(kept: &Path, events: &[Event], change: impl Fn(&mut Evaluated)) -> RecordCheck {
        let place = tempfile::tempdir().unwrap();
        fs::copy(kept.join(crate::folder::RECIPE), place.path().join(crate::folder::RECIPE)).unwrap();
        let mut log = crate::observe::Log::create(place.path()).unwrap();
        for event in events {
            let mut event = event.clone();
            if let Event::Evaluated(evaluated) = &mut event {
                change(evaluated);
            }
            log.write(&event, 1.0).unwrap();
            if let Event::Evaluated(evaluated) = &event {
                let what = "worker 1 was silent for 2 s: the others go on without it".into();
                let fault = crate::Fault { at: evaluated.at, worker: Some(1), what };
                log.write(&Event::Fault(fault), 1.0).unwrap();
            }
        }
        check_record(place.path(), &[kept]).unwrap()
    }

    /// A saved model, and the best one, that are not those that were evaluated; also where a fault was recorded at that moment.
    #[test]
    fn models_that_were_not_evaluated_are_found() {
        let data = grawa_data::load("digits", ".".as_ref()).unwrap();
        let said = Overrides::default().method("mean:pull=1,period=4", "test").unwrap();
        let settings = [
            "model.width=4",
            "train.batch=16",
            "train.workers=2",
            "train.budget=24step",
            "evaluate.every=8step",
            "checkpoint.every=8step",
            "machine.threads=1",
        ];
        let said = settings.iter().fold(said, |said, setting| said.set(setting).unwrap());
        let recipe = Recipe::resolve(&said).unwrap();
        let kept = tempfile::tempdir().unwrap();
        let kept = kept.path().join("run");
        crate::folder::create(&kept, &recipe).unwrap();
        let ear = Ear::default();
        let run = crate::Run::new(recipe, &data).unwrap().keep_in(&kept);
        run.go(&mut [Box::new(ear.clone())]).unwrap();
        let events = ear.0.lock().unwrap().clone();
        let good = check_with(&kept, &events, |_| {});
        assert_eq!(good.findings, [""; 0]);
        assert!(good.models >= 2 && good.bests == 1, "{good:?}");
        let bad = check_with(&kept, &events, |evaluated| evaluated.models[0].wrong += 1);
        let found = |what: &str| bad.findings.iter().filter(|it| it.contains(what)).count();
        assert!(found("checkpoints") >= 2 && found("best") >= 1, "{bad:#?}");
    }

    /// Operations increase, epochs do not fall, and a step back begins another epoch.
    #[cfg(feature = "group")]
    #[test]
    fn a_log_that_cannot_be_is_found() {
        use grawa_comm::group::StateVersion;
        use grawa_comm::group::internals::{frame, messages};
        let check = |records: &[(u64, u64, u64)]| {
            let (mut bytes, mut numbers) = (Vec::new(), frame::Numbers::default());
            for &(epoch, op, digest) in records {
                let version = StateVersion { op, digest };
                let record = messages::Record { run: 7, epoch, version, members: 2, tokens: vec![1, 2] };
                let body = messages::Entry::Committed(record).encode().unwrap();
                frame::write(&mut bytes, &mut numbers, &body).unwrap();
            }
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("coordinator.log"), bytes).unwrap();
            let mut check = RecordCheck::default();
            states::check_log(folder.path(), &mut check).unwrap();
            assert_eq!(check.committed, records.len());
            check.findings
        };
        assert_eq!(check(&[(1, 0, 5), (1, 2, 6), (2, 2, 6), (2, 4, 7), (3, 2, 6), (3, 4, 8)]), [""; 0]);
        for bad in [[(1, 2, 6), (1, 0, 5)], [(2, 2, 6), (1, 4, 7)], [(1, 2, 6), (1, 2, 7)]] {
            assert_eq!(check(&bad).len(), 1, "{bad:?}");
        }
    }
}
