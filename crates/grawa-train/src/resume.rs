//! From where a run is resumed: the decision, and what the user should know about it.
//!
//! The newest checkpoint is used. Where that is damaged the one before is, and what is trained again is named; but a
//! run does not begin anew by itself: that needs a choice. The record must contain the checkpoint, or is put aside on
//! request. Nothing is changed here.

use crate::checkpoint::{Name, paths};
use crate::observe::{Files, record_continues_from};
use crate::{Checkpoint, Error, folder};
use std::path::Path;

/// What a resume does with the record of the run: `events.jsonl` and what is made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// It is cut back to the checkpoint and continued.
    Continued,
    /// It is put aside, see [`Files::set_aside`], and another begins.
    SetAside,
}

/// A checkpoint to resume from.
#[derive(Debug)]
pub struct ResumePoint {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// What is not as it should be: files that are not used, and what is trained again.
    pub notes: Vec<String>,
}

/// The checkpoint to resume a run from: the one of this name, or the newest that is whole.
pub fn resume_point(run: &Path, name: Option<&str>, record: Record) -> Result<ResumePoint, Error> {
    let mut notes = Vec::new();
    if let Err(error) = folder::best(run) {
        notes.push(format!("the best model so far cannot be used: {error}; the run continues without it"));
    }
    let checkpoint = match name {
        Some(name) => Checkpoint::named(run, name)?,
        None => newest(run, &mut notes)?,
    };
    let wrong = match record {
        Record::Continued => Files::check(run, checkpoint.path()).err(),
        Record::SetAside => None,
    };
    let Some(wrong) = wrong else { return Ok(ResumePoint { checkpoint, notes }) };
    match name.map_or_else(|| chosen_before(run, &checkpoint), |_| Ok(None))? {
        Some(earlier) => {
            let (newer, earlier_path) = (checkpoint.path().display(), earlier.path().display());
            notes.push(format!("{newer} is not used: the run was resumed from {earlier_path} since"));
            Ok(ResumePoint { checkpoint: earlier, notes })
        }
        None => Err(Error::RecordUnusable {
            run: run.into(),
            checkpoint: name.map(str::to_owned),
            why: Box::new(wrong),
        }),
    }
}

/// The newest whole checkpoint, which is not the start of a run that has been trained.
fn newest(run: &Path, notes: &mut Vec<String>) -> Result<Checkpoint, Error> {
    let found = Checkpoint::newest(run)?;
    if found.skipped().is_empty() {
        return Ok(found);
    }
    let why: Vec<String> = found.skipped().iter().map(ToString::to_string).collect();
    let (from, to) = (found.taken(), lost_steps(run, &found));
    if from == 0 && to > 0 {
        return Err(Error::OnlyTheStart {
            run: run.into(),
            why: why.join("; "),
            lost: to,
            start: found.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
            best: folder::best(run).ok().flatten(),
        });
    }
    notes.extend(why.iter().map(|why| format!("a newer checkpoint cannot be used: {why}")));
    notes.push(match to.saturating_sub(from) {
        0 => format!("resuming from {} instead", found.path().display()),
        _ => format!(
            "resuming from {} instead: steps {from} to {to} of each worker are lost, and trained again",
            found.path().display()
        ),
    });
    Ok(found)
}

/// The steps of each worker at the newest checkpoint that is skipped, by its name.
fn lost_steps(run: &Path, used: &Checkpoint) -> u64 {
    let skipped = paths(run).unwrap_or_default();
    let skipped = skipped.iter().take_while(|path| *path != used.path());
    let names = skipped.filter_map(|path| Name::parse(&path.file_name()?.to_string_lossy()));
    names.map(|name| name.steps_of_each(used.workers().count() as u64)).max().unwrap_or(0)
}

/// An older checkpoint that the run was resumed from before: the record continues there, and does not contain the
/// newest.
fn chosen_before(run: &Path, newest: &Checkpoint) -> Result<Option<Checkpoint>, Error> {
    for path in paths(run)?.iter().filter(|path| *path != newest.path()) {
        if Files::check(run, path).is_ok()
            && record_continues_from(run, path)
            && let Ok(checkpoint) = Checkpoint::read(path)
        {
            return Ok(Some(checkpoint));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::About;
    use crate::{Recipe, Run, recipe_copy};
    use grawa_core::{Amount, FunctionReplica, Key, Layout};
    use grawa_data::DatasetKind;
    use rayon::prelude::*;
    use std::fs;

    const OLDER: &str = "step-00000008";
    const NEWEST: &str = "step-00000016";

    fn bowl(x: &[f32], _: Key, gradient: &mut [f32]) -> f64 {
        gradient.copy_from_slice(x);
        x.iter().map(|&x| f64::from(x * x) / 2.0).sum()
    }

    fn recipe() -> Recipe {
        let mut recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
        recipe.method = "mean:period=8".parse().unwrap();
        (recipe.train.workers, recipe.train.budget) = (2, Amount::Steps(16));
        recipe.checkpoint.every = Some(Amount::Steps(8));
        recipe
    }

    fn run_to(steps: u64) -> Run {
        let layout = Layout::new([("a", vec![3])]).unwrap();
        let recipe = Recipe {
            train: crate::recipe::Train { budget: Amount::Steps(steps), ..recipe().train },
            ..recipe()
        };
        Run::of_replicas(recipe, "bowl", layout.clone(), 100, move |worker| {
            FunctionReplica::new(layout.clone(), vec![1.0 + worker as f32; 3], bowl)
        })
        .unwrap()
    }

    /// A run's folder with two checkpoints after its start.
    fn trained(folder: &Path) {
        crate::folder::create(folder, &recipe()).unwrap();
        let files = Files::create(folder, &About::here("test", None)).unwrap();
        run_to(16).keep_in(folder).go(&mut [Box::new(files)]).unwrap();
    }

    fn vectors(checkpoint: &Checkpoint) -> Vec<Vec<f32>> {
        checkpoint.workers().map(|(_, parameters, _)| parameters.to_vec()).collect()
    }

    fn copied(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().flatten() {
            let place = to.join(entry.file_name());
            match entry.path().is_dir() {
                true => copied(&entry.path(), &place),
                false => assert!(fs::copy(entry.path(), place).is_ok()),
            }
        }
    }

    /// Every bit of every small file of a run, flipped: a resume uses a checkpoint that is what was written, the newest
    /// or the one before with a note; or it refuses and names a way, and that way works.
    #[test]
    fn a_flipped_bit_in_a_small_file_is_harmless_or_has_a_way_out() {
        let good = tempfile::tempdir().unwrap();
        let run = good.path().join("run");
        trained(&run);
        let expected = |name: &str| vectors(&Checkpoint::named(&run, name).unwrap());
        let (newest, older) = (expected(NEWEST), expected(OLDER));
        assert_ne!(newest, older);
        let in_checkpoint = [NEWEST, OLDER].into_iter().flat_map(|name| {
            ["manifest.toml", "timing.toml", "checksums.toml", "recipe.toml"]
                .map(|file| format!("checkpoints/{name}/{file}"))
        });
        let files: Vec<String> = in_checkpoint
            .chain(["events.jsonl", "journal.jsonl", "recipe.toml", "about.toml"].map(String::from))
            .collect();
        let counts: Vec<(String, [usize; 4])> = files
            .par_iter()
            .map(|file| {
                let place = tempfile::tempdir().unwrap();
                let run = place.path().join("run");
                copied(&good.path().join("run"), &run);
                let path = run.join(file);
                let bytes = fs::read(&path).unwrap();
                let mut counts = [0; 4];
                for at in 0..bytes.len() {
                    for bit in 0..8 {
                        let mut flipped = bytes.clone();
                        flipped[at] ^= 1 << bit;
                        fs::write(&path, &flipped).unwrap();
                        let how = what_happens(&run, &newest, &older);
                        counts
                            [how.unwrap_or_else(|why| panic!("bit {bit} of byte {at} of {file}: {why}"))] +=
                            1;
                    }
                }
                (file.clone(), counts)
            })
            .collect();
        for (file, [used, before, refused, recipe]) in &counts {
            println!(
                "{file}: {used} harmless, {before} the one before, {refused} without the record, {recipe} the recipe's copy"
            );
        }
        let sum = |at: usize| counts.iter().map(|(_, counts)| counts[at]).sum::<usize>();
        assert!((0..4).all(|at| sum(at) > 0), "nothing shows that each way was taken");
    }

    /// Which of four ways a resume takes; an error if it is none of them.
    fn what_happens(run: &Path, newest: &[Vec<f32>], older: &[Vec<f32>]) -> Result<usize, String> {
        let check = |point: &ResumePoint| match point.checkpoint.path().ends_with(NEWEST) {
            // A number in the order of writing that cannot be read may be the newest: then a note says so.
            true if vectors(&point.checkpoint) == newest => Ok(usize::from(!point.notes.is_empty())),
            false if vectors(&point.checkpoint) == older && !point.notes.is_empty() => Ok(1),
            _ => Err(format!("it resumes from {:?} with {:?}", point.checkpoint.path(), point.notes)),
        };
        let point = match resume_point(run, None, Record::Continued) {
            Ok(point) => point,
            Err(error @ Error::RecordUnusable { .. }) => {
                if !error.to_string().contains("--without-record") {
                    return Err(format!("it names no way out: {error}"));
                }
                let point = resume_point(run, None, Record::SetAside).map_err(|error| error.to_string())?;
                return check(&point).map(|_| 2);
            }
            Err(error) => return Err(error.to_string()),
        };
        let how = check(&point)?;
        let recipe = folder::recipe(run).map(|found| found.train.seed).map_err(|error| error.to_string());
        match recipe.and_then(|_| point.checkpoint.check_recipe().map_err(|error| error.to_string())) {
            Ok(()) => Ok(how),
            Err(why) => {
                let copy = recipe_copy(run).ok_or(format!("there is no copy of the recipe: {why}"))?;
                let copy = fs::read_to_string(copy).unwrap();
                if copy == self::recipe().to_toml() {
                    Ok(3)
                } else {
                    Err("the copy is another recipe".into())
                }
            }
        }
    }

    /// The record is renamed as often as needed, nothing of it is lost, and the run ends in the same bits with a record
    /// that reads back.
    #[test]
    fn a_run_continues_without_its_record() {
        let place = tempfile::tempdir().unwrap();
        let (whole, run) = (place.path().join("whole"), place.path().join("run"));
        trained(&whole);
        copied(&whole, &run);
        let last = vectors(&Checkpoint::newest(&whole).unwrap());
        for number in 1..=2 {
            fs::write(run.join("journal.jsonl"), "damaged\n{}\n").unwrap();
            let error = resume_point(&run, Some(OLDER), Record::Continued).unwrap_err().to_string();
            assert!(error.contains("--checkpoint step-00000008 --without-record"), "{error}");
            let point = resume_point(&run, Some(OLDER), Record::SetAside).unwrap();
            assert_eq!(Files::set_aside(&run).unwrap(), Some(number));
            assert_eq!(
                fs::read_to_string(run.join(format!("journal.jsonl.aside-{number}"))).unwrap(),
                "damaged\n{}\n"
            );
            assert!(
                run.join(format!("events.jsonl.aside-{number}")).exists()
                    && !run.join("journal.jsonl").exists()
            );
            let files = Files::create(&run, &About::here("test", None)).unwrap();
            run_to(16).keep_in(&run).resume(point.checkpoint).go(&mut [Box::new(files)]).unwrap();
            assert_eq!(vectors(&Checkpoint::newest(&run).unwrap()), last);
            assert!(crate::observe::read(&run).unwrap().len() > 2);
            // It can be resumed again, with the new record.
            assert!(resume_point(&run, None, Record::Continued).unwrap().notes.is_empty());
        }
        assert_eq!(Files::set_aside(&place.path().join("none")).unwrap(), None);
    }

    /// To begin anew is a choice: with nothing but the start whole a resume refuses, says what would be lost, and names
    /// the command.
    #[test]
    fn a_run_does_not_begin_anew_by_itself() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        crate::folder::create(&run, &recipe()).unwrap();
        let files = Files::create(&run, &About::here("test", None)).unwrap();
        run_to(8).keep_in(&run).go(&mut [Box::new(files)]).unwrap();
        let state = run.join("checkpoints").join(OLDER).join("state.safetensors");
        let mut bytes = fs::read(&state).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&state, bytes).unwrap();
        let error = resume_point(&run, None, Record::Continued).unwrap_err();
        let words = error.to_string();
        assert!(matches!(error, Error::OnlyTheStart { lost: 8, .. }) && !error.is_usage(), "{words}");
        assert!(words.contains("all 8 steps") && words.contains("--checkpoint step-00000000"), "{words}");
        assert_eq!(
            resume_point(&run, Some("step-00000000"), Record::Continued).unwrap().checkpoint.steps(),
            0
        );
    }

    /// What was lost is named; a run that was sent back to an older checkpoint stays there.
    #[test]
    fn the_one_before_is_used_with_a_note() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        trained(&run);
        // Resumed from the older one, and killed before the next: its record continues there.
        let point = resume_point(&run, Some(OLDER), Record::Continued).unwrap();
        let files = Files::resume(&run, point.checkpoint.path()).unwrap();
        let stopped = run_to(16).resume(point.checkpoint).stop_by(std::sync::Arc::new(true.into()));
        stopped.go(&mut [Box::new(files)]).unwrap();
        let point = resume_point(&run, None, Record::Continued).unwrap();
        assert!(
            point.checkpoint.path().ends_with(OLDER) && point.notes[0].contains("was resumed from"),
            "{:?}",
            point.notes
        );
        let newest = run.join("checkpoints").join(NEWEST);
        fs::write(newest.join("manifest.toml"), "form = 2").unwrap();
        let notes = resume_point(&run, None, Record::Continued).unwrap().notes.join("; ");
        assert!(
            notes.contains("steps 8 to 16 of each worker are lost") && notes.contains("checksum"),
            "{notes}"
        );
    }
}
