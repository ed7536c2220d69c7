use super::*;
use proptest::prelude::*;

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn two_are_kept_and_stops_make_room_first() {
    let gone = |names: &[&str]| superfluous(&owned(names)).into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(gone(&["step-1"]), owned(&[]));
    assert_eq!(gone(&["step-1", "step-2"]), owned(&[]));
    assert_eq!(gone(&["step-1", "step-2", "step-3"]), ["step-1"]);
    // A stop that was gone on from is the first to go, so that the rest is as without it.
    assert_eq!(gone(&["step-1", "step-1-stopped-5", "step-2"]), ["step-1-stopped-5"]);
    assert_eq!(gone(&["step-1", "step-2", "step-2-stopped-5"]), ["step-1"]);
}

#[test]
fn names_sort_by_age() {
    let place = tempfile::tempdir().unwrap();
    for name in [
        "step-00000064",
        "step-00000064-stopped-000000000300",
        "step-100000000",
        "step-00000128",
        ".partial-7",
    ] {
        fs::create_dir(place.path().join(name)).unwrap();
    }
    let expected = ["step-00000064", "step-00000064-stopped-000000000300", "step-00000128", "step-100000000"];
    assert_eq!(names(place.path()).unwrap(), expected);
}

proptest! {
    /// Whatever was stopped and gone on with: the newest is kept, and two at most.
    #[test]
    fn never_fewer_than_the_newest(count in 1usize..9, stops in proptest::collection::vec(any::<bool>(), 9)) {
        let names: Vec<String> = (0..count)
            .map(|n| if stops[n] { format!("step-{n:08}-stopped-1") } else { format!("step-{n:08}") })
            .collect();
        let gone = superfluous(&names);
        prop_assert!(!gone.contains(&&names[count - 1]) && names.len() - gone.len() <= KEPT);
        prop_assert!(gone.iter().all(|name| names.contains(name)));
    }
}

#[test]
fn what_is_no_checkpoint_is_refused_with_words() {
    let place = tempfile::tempdir().unwrap();
    let words = |result: Result<Checkpoint, Error>| result.unwrap_err().to_string();
    assert!(words(Checkpoint::newest(place.path())).contains("holds no checkpoint"));
    let folder = place.path().join(FOLDER).join("step-00000001");
    fs::create_dir_all(&folder).unwrap();
    assert!(words(Checkpoint::newest(place.path())).contains("cannot read"));
    fs::write(folder.join(MANIFEST), "form = 99\n").unwrap();
    assert!(
        words(Checkpoint::newest(place.path())).contains("is not a checkpoint this program can go on from")
    );
}
