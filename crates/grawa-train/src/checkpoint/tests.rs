use super::*;
use crate::Recipe;
use crate::durable::crash;
use crate::milestones::Position;
use crate::snapshot::{BestModel, fresh};
use grawa_core::Layout;
use grawa_data::DatasetKind;
use std::fs;
use tempfile::TempDir;

fn recipe() -> Recipe {
    Recipe::for_data(DatasetKind::Digits, None).unwrap()
}

/// A run of two workers at this step; `mark` is what its parameters are.
fn snapshot(steps: u64, mark: f32) -> Snapshot {
    let layout = Layout::new([("a", vec![3]), ("b", vec![4])]).unwrap();
    let starts = vec![(vec![mark; layout.len()], Vec::new()); 2];
    let at = Position { steps, ..Position::default() };
    Snapshot { at, ..fresh(&recipe().method, &layout, starts).unwrap() }
}

fn write(folder: &Path, steps: u64, mark: f32) -> Result<PathBuf, Error> {
    Writer::new(folder, &recipe(), None).write(snapshot(steps, mark))
}

/// A folder with checkpoints at these steps, written in this order.
fn folder(steps: &[u64]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for &steps in steps {
        write(folder.path(), steps, 1.0).unwrap();
    }
    folder
}

/// Steps and mark of the newest.
fn newest(folder: &Path) -> (u64, f32) {
    let checkpoint = Checkpoint::newest(folder).unwrap();
    (checkpoint.steps(), checkpoint.snapshot.parts[0].parameters[0])
}

/// Everything in the folder of checkpoints, by name.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join(FOLDER)).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let other = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &other);
        } else {
            fs::copy(&path, &other).unwrap();
        }
    }
}

/// The process ends after any of the changes that a write makes: the run goes on from the new checkpoint or from the newest before,
/// and the next write leaves nothing behind.
#[test]
fn a_process_that_ends_at_any_change_leaves_a_checkpoint_to_go_on_from() {
    // The first one; the next one; a second one of the same step, alone and among others; one of a run that went back.
    for (before, steps) in
        [(&[][..], 8), (&[8], 16), (&[8, 16], 24), (&[8], 8), (&[8, 16], 16), (&[8, 16], 8), (&[24, 32], 16)]
    {
        let start = folder(before);
        let mut changes = 0;
        loop {
            let place = tempfile::tempdir().unwrap();
            let run = place.path().join("run");
            copy(start.path(), &run);
            let written = crash::after(changes, || write(&run, steps, 2.0));
            // What a resume does first.
            tidy(&run.join(FOLDER)).unwrap();
            let words = format!("{before:?} then {steps}, ended after {changes} changes");
            let left = match before.last() {
                Some(&last) => [(steps, 2.0), (last, 1.0)].contains(&newest(&run)),
                None => Checkpoint::newest(&run).is_err() || newest(&run) == (steps, 2.0),
            };
            assert!(left, "{words}: {:?}", names(&run));
            assert!(Checkpoint::newest(&run).map_or(true, |found| found.skipped().is_empty()), "{words}");
            if written.is_ok() {
                assert_eq!(newest(&run), (steps, 2.0), "{words}");
                assert!(changes > 8, "{words}: the changes were not counted");
                break;
            }
            write(&run, 40, 3.0).unwrap();
            assert_eq!(newest(&run), (40, 3.0), "{words}");
            assert!(names(&run).iter().all(|name| name.starts_with("step-")), "{words}: {:?}", names(&run));
            assert!(names(&run).len() <= 2, "{words}: {:?}", names(&run));
            changes += 1;
        }
    }
}

/// After a run went back, what it writes is the newest, and what it abandoned does not come back.
#[test]
fn a_run_that_went_back_keeps_what_it_writes() {
    let place = folder(&[900, 1000]);
    write(place.path(), 850, 2.0).unwrap();
    assert_eq!((newest(place.path()), names(place.path()).len()), ((850, 2.0), 1));
    write(place.path(), 900, 3.0).unwrap();
    assert_eq!(newest(place.path()), (900, 3.0));
    assert_eq!(names(place.path()), ["step-00000850", "step-00000900"]);
}

/// Whatever file of the newest one is damaged, cut off or lost: that is said, and the one before is used.
#[test]
fn a_damaged_checkpoint_is_passed_over_with_words() {
    let files = fs::read_dir(folder(&[8]).path().join("checkpoints/step-00000008")).unwrap().count();
    assert_eq!(files, 4, "state, manifest, timing, checksums");
    for file in [STATE, MANIFEST, TIMING, checksums::CHECKSUMS] {
        for damage in ["flip", "cut", "lose"] {
            let place = folder(&[8, 16]);
            let path = place.path().join("checkpoints/step-00000016").join(file);
            let mut bytes = fs::read(&path).unwrap();
            match damage {
                "flip" => {
                    // In the middle: in a number, or in a checksum.
                    let digit = (bytes.len() / 2..bytes.len()).find(|&at| bytes[at] != b'1').unwrap();
                    bytes[digit] = b'1';
                    fs::write(&path, bytes).unwrap();
                }
                "cut" => {
                    bytes.truncate(bytes.len() / 2);
                    fs::write(&path, bytes).unwrap();
                }
                _ => fs::remove_file(&path).unwrap(),
            }
            let found = Checkpoint::newest(place.path()).unwrap();
            assert_eq!((found.steps(), found.skipped().len()), (8, 1), "{damage} {file}");
            let why = found.skipped()[0].to_string();
            assert!(why.contains("step-00000016"), "{why}");
            assert!(damage != "flip" || file == checksums::CHECKSUMS || why.contains("checksum"), "{why}");
            write(place.path(), 24, 2.0).unwrap();
            assert_eq!(newest(place.path()), (24, 2.0));
        }
    }
    let place = folder(&[8, 16]);
    for name in ["step-00000008", "step-00000016"] {
        fs::remove_file(place.path().join(FOLDER).join(name).join(STATE)).unwrap();
    }
    let error = Checkpoint::newest(place.path()).unwrap_err().to_string();
    assert!(error.contains("step-00000008") && error.contains("step-00000016"), "{error}");
}

/// Checkpoints of form 1 have neither checksums nor a number in the order of writing.
#[test]
fn those_of_form_1_are_still_read() {
    let place = folder(&[8, 16]);
    for name in names(place.path()) {
        let folder = place.path().join(FOLDER).join(name);
        fs::remove_file(folder.join(checksums::CHECKSUMS)).unwrap();
        let edit = |file: &str, edit: &dyn Fn(&str) -> String| {
            let text = fs::read_to_string(folder.join(file)).unwrap();
            let edited = edit(&text);
            assert_ne!(edited, text);
            fs::write(folder.join(file), edited).unwrap();
        };
        edit(MANIFEST, &|text| text.replace("form = 2", "form = 1").replace("[origin]\n", ""));
        edit(TIMING, &|text| {
            text.lines().filter(|line| !line.starts_with("order")).collect::<Vec<_>>().join("\n")
        });
    }
    assert_eq!(newest(place.path()), (16, 1.0));
    assert!(Checkpoint::newest(place.path()).unwrap().origin.is_none());
    write(place.path(), 12, 2.0).unwrap();
    assert_eq!(newest(place.path()), (12, 2.0));
}

#[test]
fn one_is_chosen_by_its_name() {
    let place = folder(&[8, 16]);
    assert_eq!(Checkpoint::named(place.path(), "step-00000008").unwrap().steps(), 8);
    let error = Checkpoint::named(place.path(), "step-8").unwrap_err();
    assert!(
        error.is_usage() && error.to_string().contains("there are: step-00000016, step-00000008"),
        "{error}"
    );
}

/// Two writers in one folder, as two workers of a group or two containers with the same process number, do not touch each other's.
#[test]
fn two_writers_do_not_disturb_each_other() {
    let place = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let place = place.path();
            scope.spawn(move || {
                for step in 0..20 {
                    write(place, 2 * step + writer, 1.0).unwrap();
                }
            });
        }
    });
    assert!(Checkpoint::newest(place.path()).unwrap().skipped().is_empty());
    assert!(names(place.path()).iter().all(|name| name.starts_with("step-")), "{:?}", names(place.path()));
}

#[test]
fn what_is_no_checkpoint_is_refused_with_words() {
    let place = tempfile::tempdir().unwrap();
    let words = |result: Result<Checkpoint, Error>| result.unwrap_err().to_string();
    assert!(words(Checkpoint::newest(place.path())).contains("holds no checkpoint"));
    let folder = place.path().join(FOLDER).join("step-00000001");
    fs::create_dir_all(&folder).unwrap();
    assert!(words(Checkpoint::newest(place.path())).contains("cannot read"));
    fs::write(folder.join(MANIFEST), "form = 1\n").unwrap();
    assert!(
        words(Checkpoint::newest(place.path())).contains("is not a checkpoint this program can resume from")
    );
    // One of a later version is not passed over for an older one.
    fs::remove_dir_all(&folder).unwrap();
    write(place.path(), 0, 1.0).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join(TIMING), "order = 9\n").unwrap();
    fs::write(folder.join(MANIFEST), "form = 99\n").unwrap();
    let error = words(Checkpoint::newest(place.path()));
    assert!(error.contains("form 99") && error.contains("the version of grawa that wrote it"), "{error}");
}

/// The process ends after any of the changes of a write: the best model is the old one or the new one, whole, and the file says which. A
/// model that is not better changes nothing, whoever offers it.
#[test]
fn the_best_model_is_whole_whenever_the_process_ends() {
    use grawa_nn::{Metadata, Shape, State, zoo};
    let graph = zoo::digits("digits", Shape::image(1, 8), 4, 10).unwrap();
    let offer = |folder: &Path, steps: u64, wrong: u64| {
        let State { parameters, statistics, .. } = State::initial(&graph, steps);
        let at = crate::Place { steps, ..crate::Place::default() };
        let models = vec![crate::Model { which: "mean".into(), loss: None, wrong, examples: 100 }];
        let evaluated = crate::Evaluated { at, models };
        let network = Some((graph.clone(), Metadata::new()));
        Writer::new(folder, &recipe(), network).write_best(BestModel { parameters, statistics, evaluated })
    };
    for changes in 0.. {
        let folder = tempfile::tempdir().unwrap();
        offer(folder.path(), 8, 20).unwrap();
        let written = crash::after(changes, || offer(folder.path(), 16, 10));
        let path = folder.path().join(BEST).join(MODEL);
        let (steps, error) = (State::load(&graph, &path).unwrap().batches, best_error(&path).unwrap());
        assert!(
            [(8, Some(0.2)), (16, Some(0.1))].contains(&(steps, error)),
            "after {changes}: {steps} {error:?}"
        );
        assert_eq!(State::load(&graph, &path).unwrap().parameters, graph.initial(steps));
        if written.is_ok() {
            assert_eq!(steps, 16);
            offer(folder.path(), 24, 10).unwrap();
            assert_eq!(State::load(&graph, &path).unwrap().batches, 16);
            break;
        }
    }
}
