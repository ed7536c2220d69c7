//! The state of an elastic group in a checkpoint. If all workers of a run are lost, a worker that is started with the folder of the
//! checkpoint restores it: the coordinator's log says whether the state was committed.

use crate::checkpoint::{Checkpoint, GROUP, io};
use crate::{Error, Recipe, bounded_read, folder};
use grawa_session::snapshot::GroupCheckpoint;
use std::path::Path;

/// The state in the newest complete checkpoint of a run's folder, the centre, and why newer ones are not complete. `None` if that
/// checkpoint is not of a group, or there is none.
pub(crate) fn newest(folder: &Path) -> Result<Option<Restored>, Error> {
    let checkpoint = match Checkpoint::newest(folder) {
        Err(Error::NoCheckpoint { .. }) => return Ok(None),
        found => found?,
    };
    let path = checkpoint.path().join(GROUP);
    let text = match bounded_read::read(&path, bounded_read::SMALL) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(io("read", &path))?,
    };
    let wrong = |why: String| Error::NotACheckpoint { path: path.clone(), why };
    let held = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    let skipped = checkpoint.skipped().iter().map(ToString::to_string).collect();
    let mut centres = checkpoint.snapshot.parts.into_iter().flat_map(|part| part.centres);
    let centre = centres.next().ok_or_else(|| wrong("it has no centre".into()))?;
    Ok(Some(Restored { held, centre: centre.2, skipped }))
}

/// What is restored from a checkpoint.
pub(crate) struct Restored {
    pub(crate) held: GroupCheckpoint,
    pub(crate) centre: Vec<f32>,
    skipped: Vec<String>,
}

/// Makes a folder for the checkpoints of a worker, or checks that it belongs to the same run. Returns its lock, and what is wrong with
/// checkpoints in it that are not complete.
pub fn make_room(path: &Path, recipe: &Recipe, run: u64) -> Result<(folder::Hold, Vec<String>), Error> {
    match folder::create(path, recipe) {
        // It was made before, or by another worker of this machine.
        Err(Error::FolderInUse { .. }) if path.join(folder::RECIPE).exists() => {}
        made => made?,
    }
    let hold = folder::hold(path, false)?;
    let kept = newest(path)?;
    match kept {
        Some(kept) if kept.held.run == run => Ok((hold, kept.skipped)),
        None if Checkpoint::newest_path(path).is_err() => Ok((hold, Vec::new())),
        _ => Err(Error::FolderInUse { path: path.into(), found: "checkpoints of another run".into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Writer;
    use crate::milestones::Position;
    use crate::snapshot::Snapshot;
    use crate::snapshot::fresh;
    use grawa_core::Layout;
    use grawa_data::DatasetKind;

    /// Workers that are started at once may share a folder.
    #[test]
    fn several_workers_make_one_folder() {
        let recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
        for _ in 0..20 {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("runs/kept");
            let start = std::sync::Barrier::new(6);
            std::thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| {
                        start.wait();
                        make_room(&path, &recipe, 7).unwrap();
                    });
                }
            });
            assert_eq!(folder::recipe(&path).unwrap(), recipe);
            assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1);
        }
    }

    /// A group that was rewound restores what it wrote since, not what it abandoned; a damaged checkpoint is skipped, and reported.
    #[test]
    fn a_group_goes_on_from_what_was_written_last() {
        let place = tempfile::tempdir().unwrap();
        let (path, recipe) =
            (place.path().join("kept"), Recipe::for_data(DatasetKind::Digits, None).unwrap());
        drop(make_room(&path, &recipe, 7).unwrap());
        let layout = Layout::new([("a", vec![3])]).unwrap();
        for (steps, meeting) in [(900, 90), (1000, 100), (850, 101), (875, 102)] {
            let at = Position { steps, ..Position::default() };
            let held = Some(GroupCheckpoint { run: 7, meeting, memory: String::new() });
            let start = fresh(&recipe.method, &layout, vec![(vec![1.0; 3], Vec::new())]).unwrap();
            Writer::new(&path, &recipe, None).write(Snapshot { at, held, ..start }).unwrap();
        }
        assert_eq!(newest(&path).unwrap().unwrap().held.meeting, 102);
        std::fs::write(path.join("checkpoints/step-00000875").join(GROUP), "{}").unwrap();
        let (_hold, damaged) = make_room(&path, &recipe, 7).unwrap();
        assert!(damaged.len() == 1 && damaged[0].contains("step-00000875"), "{damaged:?}");
        assert_eq!(newest(&path).unwrap().unwrap().held.meeting, 101);
        let other = make_room(&path, &recipe, 8).unwrap_err().to_string();
        assert!(other.contains("checkpoints of another run"), "{other}");
    }
}
