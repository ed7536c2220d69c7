//! Runs on the embedded digits: the engine under the run, every method, and what may not change a bit.

#![allow(clippy::unwrap_used)]

mod runs;

use grawa_core::{Replica, Sequential, Share, StateKind};
use grawa_data::digits;
use grawa_nn::State;
use grawa_train::engine::Engine;
use grawa_train::recipe::BatchNorm;
use grawa_train::{Checkpoint, Error, Event, Observer, Run};
use runs::{go, methods, recipe, resumes_exactly};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// The engine's replicas, taken in turn on one thread, end in the same bits as the run.
#[test]
fn a_run_of_networks_has_the_bits_of_the_sequential_one() {
    let data = digits().unwrap();
    for (method, setting) in [
        ("lgrawa:period=3", "train.sam=0"),
        ("easgd:period=2", "train.sam=0.1"),
        ("dp-sam", "train.optimizer=adamw"),
        ("local-mgrawa:period=3", "train.optimizer=sgd"),
        ("mean:period=3", "train.optimizer=adamw"),
        ("mgrawa:period=3", "data.split=dirichlet:0.5"),
        ("mean:period=3", "data.label_noise=worker 2: 0.4"),
    ] {
        // Enough lanes for all, since the sequential run holds the gradients of all at once.
        let recipe = recipe(method, &["machine.threads=4", "train.rate=0.1", setting]);
        let engine = Engine::new(&recipe, &data).unwrap();
        let state = State::initial(engine.graph(), recipe.train.seed);
        let replicas = (0..4).map(|worker| engine.worker(worker, state.clone(), 0).unwrap()).collect();
        let (train, method) = (&recipe.train, recipe.method_with_sam());
        let mut sequential = Sequential::new(method, train.local_optimizer(), train.seed, replicas).unwrap();
        for _ in 0..10 {
            sequential.advance(0.1).unwrap();
        }
        let place = TempDir::new().unwrap();
        go(&recipe, &data, place.path());
        let tensors = grawa_nn::Tensors::read(
            &Checkpoint::newest(place.path()).unwrap().path().join("state.safetensors"),
            "the run",
        )
        .unwrap();
        for (worker, replica) in sequential.replicas().iter_mut().enumerate() {
            for (name, expected) in [
                ("parameters", replica.parameters().to_vec()),
                ("momentum", replica.copy(StateKind::Velocity).unwrap()),
                ("second_moment", replica.copy(StateKind::SecondMoment).unwrap()),
                ("statistics", replica.copy(StateKind::Statistics).unwrap()),
            ] {
                // SGD has no second moment, and writes none.
                assert_eq!(
                    name == "second_moment" && expected.is_empty(),
                    tensors.find(&format!("worker.{worker}.{name}")).is_none()
                );
                if expected.is_empty() {
                    continue;
                }
                let found = tensors.f32(&format!("worker.{worker}.{name}"), &[expected.len()]).unwrap();
                assert!(found == expected, "{}: {name} of worker {worker}", recipe.method);
            }
        }
    }
}

#[test]
fn a_run_that_was_stopped_and_resumed_leaves_the_same_files() {
    let data = digits().unwrap();
    for method in methods() {
        let place = resumes_exactly(&recipe(&method, &[]), &data);
        assert!(Checkpoint::newest(place.path()).unwrap().is_finished());
        assert_eq!(Checkpoint::newest(place.path()).unwrap().history().len(), 2);
    }
    for (method, setting) in [
        ("lgrawa:period=3", "train.optimizer=adamw"),
        ("dp-sgd", "train.optimizer=adamw"),
        ("mgrawa:period=3", "train.sam=0.05"),
        ("mean:period=3", "data.split=classes:3"),
    ] {
        resumes_exactly(&recipe(method, &[setting]), &data);
    }
}

/// A worker that is made slower takes fewer steps of a cycle at a free pace; the cycle has as many as ever.
#[test]
fn a_slow_worker_takes_fewer_steps() {
    let data = digits().unwrap();
    let settings =
        ["train.pace=free", "train.slow=worker 2: 20x", "train.budget=40step", "machine.threads=4"];
    let place = TempDir::new().unwrap();
    let (end, _) = go(&recipe("mean:period=10", &settings), &data, place.path());
    let total: Vec<u64> = end.workers.iter().map(|share| share.total).collect();
    assert_eq!(total.iter().sum::<u64>(), 160);
    assert!(total[2] < 20 && [0, 1, 3].iter().all(|&other| total[other] > 2 * total[2]), "{total:?}");
}

/// A split and wrong labels change what is learnt; a split that leaves an example to nobody is refused.
#[test]
fn examples_that_are_not_alike_change_the_run() {
    let data = digits().unwrap();
    let workers = |setting: &str| {
        let place = TempDir::new().unwrap();
        go(&recipe("mean:period=100", &[setting]), &data, place.path());
        let checkpoint = Checkpoint::newest(place.path()).unwrap();
        checkpoint.workers().map(|(_, parameters, _)| parameters.to_vec()).collect::<Vec<_>>()
    };
    let (alike, noisy) = (workers("data.split=iid"), workers("data.label_noise=worker 1: 0.5"));
    assert!(alike != noisy && alike != workers("data.split=dirichlet:0.3"));
    let error = Run::new(recipe("mean", &["data.split=classes:2"]), &data).unwrap_err().to_string();
    assert!(error.contains("10 classes need from 3 to 10 for each worker"), "{error}");
}

/// `train.sam` is SAM as a knob of the method.
#[test]
fn sam_is_a_key_or_a_knob() {
    let data = digits().unwrap();
    let state = |method: &str, setting: &str| {
        let place = TempDir::new().unwrap();
        go(&recipe(method, &[setting]), &data, place.path());
        fs::read(Checkpoint::newest(place.path()).unwrap().path().join("state.safetensors")).unwrap()
    };
    let with = state("lgrawa:period=3", "train.sam=0.05");
    assert!(with == state("lgrawa:period=3,radius=0.05", "train.sam=0"));
    assert!(with != state("lgrawa:period=3", "train.sam=0"));
}

/// 50 workers with batches of 32 need more examples for one step than there are.
#[test]
fn more_workers_than_batches_is_fine_and_more_than_examples_is_refused() {
    let data = digits().unwrap();
    for method in methods() {
        let mut recipe = recipe(&method, &["train.batch=32", "train.budget=4step"]);
        recipe.evaluate.every = None;
        if recipe.method.share != Share::Nothing {
            recipe.train.workers = 50;
        }
        let place = TempDir::new().unwrap();
        let (end, _) = go(&recipe, &data, place.path());
        assert_eq!((end.at.steps, end.workers.len() as u32), (4, recipe.train.workers), "{method}");
    }
    let mut recipe = recipe("mean", &[]);
    recipe.train.workers = 1439;
    let error = Run::new(recipe, &data).unwrap_err().to_string();
    assert!(error.contains("use fewer workers"), "{error}");
}

#[test]
fn neither_cores_nor_evaluations_change_a_bit() {
    let data = digits().unwrap();
    let parameters = |settings: &[&str]| {
        let place = TempDir::new().unwrap();
        go(&recipe("lgrawa:period=3", settings), &data, place.path());
        let state = Checkpoint::newest(place.path()).unwrap().path().join("state.safetensors");
        fs::read(state).unwrap()
    };
    let expected = parameters(&["machine.threads=1"]);
    assert!(parameters(&["machine.threads=3"]) == expected, "three cores");
    assert!(parameters(&["machine.threads=8"]) == expected, "two cores a worker");
    assert!(parameters(&["evaluate.every=1step"]) == expected, "evaluations");
    assert!(parameters(&["train.seed=8"]) != expected, "the seed must matter");
}

#[test]
fn it_learns_and_every_batch_norm_policy_can_tell() {
    let data = digits().unwrap();
    for policy in BatchNorm::ALL {
        let mut recipe = recipe("mgrawa:period=8", &["model.width=8", "train.budget=120step"]);
        recipe.evaluate.batch_norm = *policy;
        recipe.evaluate.every = None;
        let place = TempDir::new().unwrap();
        let (_, ear) = go(&recipe, &data, place.path());
        let (wrong, examples) = ear.last_wrong();
        assert_eq!(examples, 359, "the whole test set");
        assert!(wrong * 10 < examples, "{policy}: {wrong} of {examples} are wrong");
    }
}

#[test]
fn each_best_and_centre_are_evaluated_as_asked() {
    let data = digits().unwrap();
    for (method, expected) in [
        ("mean:period=3,evaluate=each", vec!["worker 0", "worker 1", "worker 2", "worker 3"]),
        ("mean:period=3,evaluate=best", vec!["best"]),
        ("mean:period=3,evaluate=centre", vec!["centre"]),
        ("easgd:period=3", vec!["centre"]),
        ("lsgd:period=3", vec!["mean"]),
    ] {
        let recipe = recipe(method, &[]);
        let place = TempDir::new().unwrap();
        go(&recipe, &data, place.path());
        let checkpoint = Checkpoint::newest(place.path()).unwrap();
        for evaluated in checkpoint.history() {
            let found: Vec<&str> = evaluated.models.iter().map(|model| model.which.as_str()).collect();
            assert!(
                found.iter().zip(&expected).all(|(found, expected)| found.starts_with(expected)),
                "{found:?}"
            );
            assert!(evaluated.models.iter().all(|model| model.examples == 359 && model.loss.is_some()));
        }
        // The model can be had without the run.
        let engine = Engine::new(&recipe, &data).unwrap();
        State::load(engine.graph(), &checkpoint.path().join("model.safetensors")).unwrap();
    }
}

#[test]
fn a_folder_that_cannot_be_written_to_ends_the_run_at_once() {
    let data = digits().unwrap();
    let place = TempDir::new().unwrap();
    // A file where the folder of checkpoints should be: this refuses even the super-user.
    fs::write(place.path().join("checkpoints"), "").unwrap();
    let recipe = recipe("mean:period=3", &["train.budget=1000000step"]);
    let error = Run::new(recipe, &data).unwrap().keep_in(place.path()).go(&mut []).unwrap_err().to_string();
    assert!(error.contains("checkpoints"), "{error}");
}

/// The disk fills up in the middle: the run goes on, says so, fails at the end, and what was saved is whole.
#[test]
fn a_checkpoint_that_cannot_be_written_loses_nothing() {
    struct Vandal(PathBuf, Arc<Mutex<Vec<String>>>);
    impl Observer for Vandal {
        fn event(&mut self, event: &Event) -> Result<(), Error> {
            if let Event::Evaluated(_) = event {
                // From now on nothing can be written there.
                if !self.0.join("kept").exists() {
                    fs::rename(self.0.join("checkpoints"), self.0.join("kept")).unwrap();
                    fs::write(self.0.join("checkpoints"), "").unwrap();
                }
            }
            if let Event::Fault(fault) = event {
                self.1.lock().unwrap().push(fault.what.clone());
            }
            Ok(())
        }
    }
    let data = digits().unwrap();
    let place = TempDir::new().unwrap();
    let faults = Arc::new(Mutex::new(Vec::new()));
    let vandal = Vandal(place.path().into(), Arc::clone(&faults));
    let recipe = recipe("mean:period=3", &["train.budget=12step"]);
    let run = Run::new(recipe.clone(), &data).unwrap().keep_in(place.path());
    let error = run.go(&mut [Box::new(vandal)]).unwrap_err().to_string();
    assert!(error.contains("checkpoints"), "{error}");
    assert!(faults.lock().unwrap()[0].contains("the checkpoint before is complete"), "{faults:?}");
    // When there is room again the run goes on to the same end.
    fs::remove_file(place.path().join("checkpoints")).unwrap();
    fs::rename(place.path().join("kept"), place.path().join("checkpoints")).unwrap();
    let checkpoint = Checkpoint::newest(place.path()).unwrap();
    assert!(checkpoint.steps() < 12);
    let run = Run::new(recipe.clone(), &data).unwrap().keep_in(place.path()).resume(checkpoint);
    run.go(&mut []).unwrap();
    let whole = TempDir::new().unwrap();
    go(&recipe, &data, whole.path());
    let newest =
        |folder: &Path| fs::read(folder.join("checkpoints/step-00000012/state.safetensors")).unwrap();
    assert!(newest(place.path()) == newest(whole.path()));
}

/// What a run starts from is made once: the file may be gone when the check has passed.
#[test]
fn what_a_run_starts_from_is_read_once() {
    let data = digits().unwrap();
    let place = TempDir::new().unwrap();
    let mut recipe = recipe("mean:period=3", &[]);
    go(&recipe, &data, place.path());
    let init = place.path().join("init.safetensors");
    fs::copy(place.path().join("checkpoints/step-00000010/model.safetensors"), &init).unwrap();
    recipe.model.init = Some(init.clone());
    let run = Run::new(recipe, &data).unwrap();
    run.check().unwrap();
    fs::remove_file(&init).unwrap();
    assert_eq!(run.go(&mut []).unwrap().at.steps, 10);
}
