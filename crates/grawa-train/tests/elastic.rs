//! Workers that come and go, each by itself, on real sockets.

#![allow(clippy::unwrap_used)]

mod runs;

use grawa_comm::group::{CoordinatorServer, Security, ServerEvent, Settings};
use grawa_core::Amount;
use grawa_nn::State;
use grawa_train::recipe::BatchNorm;
use grawa_train::{
    Checkpoint, Error, Evaluator, Event, Finished, Observer, Run, SessionError, Stop, find_model, folder,
    join,
};
use runs::{Ear, apart, guest, host, recipe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(120);

fn evaluations(ear: &Ear) -> Vec<Event> {
    let mut events: Vec<Event> = ear.0.lock().unwrap().clone();
    for event in &mut events {
        if let Event::Evaluated(evaluated) = event {
            evaluated.at.elapsed = 0.0;
        }
    }
    events.into_iter().filter(|event| matches!(event, Event::Evaluated(_))).collect()
}

/// Processes on a network and threads of one process come to the same bits.
#[test]
fn a_group_trains_as_threads_do() {
    let data = grawa_data::load("digits", ".".as_ref()).unwrap();
    for (method, setting) in [
        ("lgrawa:period=3", "train.sam=0"),
        ("easgd:period=3", "train.sam=0.05"),
        ("lsgd:period=3", "data.split=dirichlet:0.5"),
        ("mean:period=3", "data.label_noise=worker 1: 0.5"),
        ("local-mgrawa:period=3", "train.optimizer=adamw"),
    ] {
        let recipe = recipe(method, &["train.workers=3", "machine.threads=1", setting]);
        let threads = Ear::default();
        Run::new(recipe.clone(), &data).unwrap().go(&mut [Box::new(threads.clone())]).unwrap();

        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("run");
        let group = apart(&recipe, &data, &place);
        // Only one speaks, and says the same.
        assert_eq!(evaluations(&group), evaluations(&threads), "{method}");
        assert!(Checkpoint::newest(&place).unwrap().is_finished());
    }
}

/// At a free pace all take steps until they are called; every step counts, also those taken before all had heard.
#[test]
fn a_group_goes_at_its_own_pace() {
    let data = grawa_data::load("digits", ".".as_ref()).unwrap();
    let settings = ["train.workers=3", "machine.threads=1", "train.pace=free", "train.budget=24step"];
    let recipe = recipe("mgrawa:period=4", &settings);
    let settings = Settings {
        founders: 3,
        trigger: Some(4),
        heartbeat: Duration::from_millis(20),
        ..Settings::default()
    };
    let charter = recipe.to_toml().into_bytes();
    let host = CoordinatorServer::new("127.0.0.1:0", Security::Plain, settings, 1, charter, None).unwrap();
    let ear = Ear::default();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let (guest, recipe) = guest(&host);
                let mut ears: [Box<dyn Observer>; 1] = [Box::new(ear.clone())];
                let end = join(recipe, &data, guest, None, Stop::default(), &mut ears).unwrap();
                assert!(end.at.steps >= 24 && (2..=6).contains(&end.at.rounds), "{:?}", end.at);
            });
        }
    });
    let events = ear.0.lock().unwrap();
    let mut rounds: Vec<u64> = Vec::new();
    let mut epochs = 0.0f64;
    for event in events.iter() {
        if let Event::Round(round) = event {
            rounds.push(round.workers.iter().map(|share| share.steps).sum());
            epochs = epochs.max(round.at.epochs);
        }
    }
    // Nobody goes on before all have come.
    assert!(rounds[0] == 12 && rounds.iter().all(|&steps| steps >= 12), "{rounds:?}");
    let all: u64 = rounds.iter().sum();
    // What one tells when it leaves has been heard when it has.
    let began = std::time::Instant::now();
    while !host.status().workers.is_empty() && began.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(host.status().extra_steps, all - 12 * rounds.len() as u64);
    assert!(
        (epochs - (16 * all) as f64 / data.train.len() as f64).abs() < 1e-6,
        "{epochs} epochs, {all} steps"
    );
}

/// One leaves in the middle, and later another comes: the run goes on, and ends with those who are there. They have learned as much as
/// workers that stay, and the model that is saved at the end is the one that was evaluated.
#[test]
fn workers_come_and_go() {
    come_and_go(&[]);
}

/// The same at half the length of vectors, and while they travel beside the local steps.
#[test]
fn workers_come_and_go_in_bf16() {
    come_and_go(&["train.wire=bf16"]);
}

/// The same with both.
#[test]
fn workers_come_and_go_while_vectors_travel() {
    come_and_go(&["train.overlap=true", "train.wire=bf16"]);
}

fn come_and_go(more: &[&str]) {
    let data = grawa_data::load("digits", ".".as_ref()).unwrap();
    let settings =
        ["train.workers=3", "train.budget=3000step", "machine.threads=1", "evaluate.every=1000step"];
    let mut recipe = recipe("lgrawa:period=5", &[&settings, more].concat());
    recipe.checkpoint.every = Some(Amount::Steps(1000));
    let (place, ear) = (tempfile::tempdir().unwrap(), Ear::default());
    let place = place.path().join("kept");
    folder::create(&place, &recipe).unwrap();
    let host = host(&recipe);
    let work = |stop: Arc<AtomicBool>| -> Result<Finished, Error> {
        let (guest, recipe) = guest(&host);
        let mut ears: [Box<dyn Observer>; 1] = [Box::new(ear.clone())];
        join(recipe, &data, guest, Some(&place), Stop { asked: stop, ..Stop::default() }, &mut ears)
    };
    let (work, wait) = (&work, |what: &str| {
        while let Some(told) = host.next(LONG) {
            if matches!(&told, ServerEvent::Decision(notice) if notice.to_string().contains(what)) {
                return;
            }
        }
        panic!("nobody said {what:?}");
    });
    std::thread::scope(|scope| {
        let stayers: Vec<_> = (0..2).map(|_| scope.spawn(|| work(Arc::default()))).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let quitter = scope.spawn(move || work(asked));
        while host.status().op < 20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        wait("left");
        let newcomer = scope.spawn(|| work(Arc::default()));
        wait("fetches the state at operation");
        wait("takes part");
        for thread in stayers.into_iter().chain([newcomer]) {
            let end = thread.join().unwrap().unwrap();
            assert_eq!((end.at.steps, end.workers.len()), (3000, 3));
        }
        assert!(matches!(quitter.join().unwrap(), Err(Error::Session(SessionError::Left))));
    });
    // A model made of vectors in other places, or to another base, has no such error: it was 28 % where differences had two bases.
    let (wrong, examples) = ear.last_wrong();
    assert!(20 * wrong < examples, "{wrong} of {examples} wrong with {more:?}");
    let last = Checkpoint::newest(&place).unwrap();
    assert!(last.is_finished() && last.steps() == 3000, "{last:?}");
    recipe.evaluate.batch_norm = BatchNorm::Keep;
    let evaluator = Evaluator::new(&recipe, &data).unwrap();
    let model = State::load(evaluator.graph(), &find_model(last.path()).unwrap().model).unwrap();
    let measured = evaluator.measure(&model, |_| {}).unwrap().total();
    println!("{more:?}: {wrong} of {examples} wrong, and the saved model {}", measured.wrong);
    assert_eq!((measured.wrong, measured.examples), (wrong, examples), "with {more:?}");
}

/// What needs all workers from the beginning to the end is refused.
#[test]
fn methods_without_a_centre_are_refused() {
    let data = grawa_data::load("digits", ".".as_ref()).unwrap();
    let recipe = recipe("dp-sgd", &["train.workers=1"]);
    let host = host(&recipe);
    let (guest, recipe) = guest(&host);
    let stop = Arc::new(AtomicBool::new(false));
    let error =
        join(recipe, &data, guest, None, Stop { asked: Arc::clone(&stop), ..Stop::default() }, &mut [])
            .unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("use a method that has a centre"), "{error}");
    stop.store(true, Ordering::Relaxed);
}
