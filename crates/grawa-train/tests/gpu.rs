//! Runs on a GPU against the same runs on the CPU.

#![allow(clippy::unwrap_used)]

mod needs;
mod runs;

use grawa_core::norm::norm;
use grawa_core::{Key, Purpose};
use grawa_data::{Dataset, digits};
use grawa_nn::cuda::devices;
use grawa_nn::{Data, State, Tensors};
use grawa_train::{Checkpoint, Evaluator, Event, Recipe, Run};
use runs::{apart, go, methods, recipe, resumes_exactly};
use std::path::Path;
use tempfile::TempDir;

fn on_gpu(method: &str, settings: &[&str]) -> Recipe {
    let gpu =
        ["machine.device=cuda", "machine.cards=1", "machine.precision=f32", "machine.deterministic=true"];
    recipe(method, &[&gpu, settings].concat())
}

/// Everything in the newest checkpoint, and the wrong predictions of the last test.
fn state(recipe: &Recipe, data: &Dataset) -> (Tensors, u64, Vec<f64>) {
    let place = TempDir::new().unwrap();
    let (_, ear) = go(recipe, data, place.path());
    let losses = (ear.0.lock().unwrap().iter())
        .filter_map(|event| match event {
            Event::Round(round) => round.loss,
            _ => None,
        })
        .collect();
    (kept(place.path()), ear.last_wrong().0, losses)
}

/// Everything in the newest checkpoint of a folder.
fn kept(place: &Path) -> Tensors {
    let path = Checkpoint::newest(place).unwrap().path().join("state.safetensors");
    Tensors::read(&path, "the run").unwrap()
}

/// These tensors agree within a relative bound.
fn agree<'a>(
    method: &str,
    cpu: &Tensors,
    gpu: &Tensors,
    names: impl IntoIterator<Item = &'a str>,
    bound: f64,
) {
    for name in names {
        let data = |tensors: &Tensors| match tensors.find(name).map(|tensor| tensor.data.clone()) {
            Some(Data::F32(numbers)) => numbers,
            _ => Vec::new(),
        };
        let (expected, found) = (data(cpu), data(gpu));
        let difference: Vec<f32> = expected.iter().zip(&found).map(|(a, b)| a - b).collect();
        let off = norm(&difference) / norm(&expected).max(1e-6);
        assert!(
            !found.is_empty() && expected.len() == found.len() && off < bound,
            "{method}: {name} is off by {off:.1e}"
        );
    }
}

/// The same batches, draws, rounds and evaluations: only rounding differs.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn a_run_on_a_gpu_is_that_of_the_cpu_but_for_rounding() {
    needs::gpu();
    let data = digits().unwrap();
    let extras = [
        "train.optimizer=adamw",
        "train.sam=0.05",
        "data.split=dirichlet:0.5",
        "data.label_noise=worker 1: 0.5",
    ];
    let with_extras = extras.map(|extra| ("lgrawa:period=3".to_owned(), extra));
    for (method, extra) in methods().into_iter().map(|method| (method, "train.sam=0")).chain(with_extras) {
        // AdamW divides by the root of the second moment: noise near zero grows.
        let rate = if extra.ends_with("adamw") { "train.rate=0.001" } else { "train.rate=0.02" };
        let (cpu, wrong, losses) = state(&recipe(&method, &[rate, extra]), &data);
        let (gpu, wrong_there, losses_there) = state(&on_gpu(&method, &[rate, extra]), &data);
        assert_eq!(losses.len(), losses_there.len(), "{method}");
        for (here, there) in losses.iter().zip(&losses_there) {
            assert!((here / there - 1.0).abs() < 2e-3, "{method}: losses {losses:?} and {losses_there:?}");
        }
        assert_eq!(cpu.names().collect::<Vec<_>>(), gpu.names().collect::<Vec<_>>(), "{method}");
        agree(&method, &cpu, &gpu, cpu.names(), 5e-3);
        assert!(wrong.abs_diff(wrong_there) <= 4, "{method}: {wrong} wrong, and {wrong_there} there");
    }
}

/// Workers in groups of one for each process, connected by sockets, agree with those of one process on the GPU; and
/// with overlapped rounds, with workers on CPUs.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn a_group_of_processes_trains_on_a_gpu() {
    needs::gpu();
    let data = digits().unwrap();
    // A returning worker starts at the centre, so its parameters are not kept.
    let names = ["centre.0.0", "worker.0.momentum", "worker.0.statistics"];
    for method in ["lgrawa:period=3", "mgrawa:period=3", "easgd:period=3", "lsgd:period=3"] {
        let settings = ["train.workers=3", "train.rate=0.02"];
        let overlapped = ["train.workers=3", "train.rate=0.02", "train.overlap=true"];
        let place = TempDir::new().unwrap();
        let run = |name: &str, recipe: &Recipe| {
            let place = place.path().join(name);
            let ear = apart(recipe, &data, &place);
            (kept(&place), ear.last_wrong().0)
        };
        let (together, wrong, _) = state(&on_gpu(method, &settings), &data);
        let (gpu, wrong_apart) = run("apart", &on_gpu(method, &settings));
        agree(method, &together, &gpu, names, 1e-5);
        assert_eq!(wrong, wrong_apart, "{method}");
        let (cpu, wrong) = run("cpu", &recipe(method, &overlapped));
        let (gpu, wrong_there) = run("gpu", &on_gpu(method, &overlapped));
        agree(method, &cpu, &gpu, names, 3e-2);
        assert!(wrong.abs_diff(wrong_there) <= 4, "{method}: {wrong} wrong, and {wrong_there} there");
    }
}

/// A model evaluated on a GPU and on the CPU: the same but for rounding, with its own or recalibrated statistics. The
/// last batch is partial, and there are more batches than fit in one request.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn a_model_is_measured_alike() {
    needs::gpu();
    let data = digits().unwrap();
    for policy in ["evaluate.batch_norm=keep", "evaluate.batch_norm=recalibrate"] {
        let settings = ["train.workers=1", "train.batch=8", "data.augment=flip+pad2crop8", policy];
        let (here, there) = (recipe("sgd", &settings), on_gpu("sgd", &settings));
        let (cpu, gpu) = (Evaluator::new(&here, &data).unwrap(), Evaluator::new(&there, &data).unwrap());
        let model = State::initial(cpu.graph(), 3);
        // Recalibration sees the same augmented batches.
        let (expected, found) = (cpu.statistics(&model).unwrap(), gpu.statistics(&model).unwrap());
        let difference: Vec<f32> = expected.iter().zip(&found).map(|(a, b)| a - b).collect();
        let off = norm(&difference) / norm(&expected);
        assert!(off < 1e-5, "{policy}: statistics are off by {off:.1e}");
        let (here, there) = (cpu.measure(&model, |_| {}).unwrap(), gpu.measure(&model, |_| {}).unwrap());
        assert!((here.loss / there.loss - 1.0).abs() < 1e-4, "{policy}: {} and {}", here.loss, there.loss);
        assert_eq!(here.total().examples, there.total().examples, "{policy}");
        assert!(here.total().wrong.abs_diff(there.total().wrong) <= 2, "{policy}");
        // It can be evaluated again.
        assert_eq!(gpu.measure(&model, |_| {}).unwrap(), there, "{policy}");
    }
}

/// A data set of images in files, and the settings of a run on it.
fn pictures(place: &Path) -> (Dataset, Vec<&'static str>) {
    for (part, count) in [("train", 20u8), ("val", 5)] {
        for (class, tint) in [("dusk", [60u8, 20, 40]), ("noon", [120, 180, 90])] {
            let folder = place.join(part).join(class);
            std::fs::create_dir_all(&folder).unwrap();
            for number in 0..count {
                let file = std::fs::File::create(folder.join(format!("{number}.png"))).unwrap();
                let mut encoder = png::Encoder::new(file, 20, 18);
                encoder.set_color(png::ColorType::Rgb);
                // Noise: where all pixels are equal, batch norm divides by almost zero.
                let mut draws = Key::new(number.into(), Purpose::Problem).worker(tint[0].into()).stream();
                let mut pixel = |channel: u8| channel + draws.below(60) as u8;
                let pixels: Vec<u8> = (0..20 * 18).flat_map(|_| tint.map(&mut pixel)).collect();
                encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
            }
        }
    }
    let data = grawa_data::load("folder", place).unwrap();
    let settings = [
        "data.kind=folder",
        "model.name=digits",
        "data.augment=flip+resized16",
        "train.batch=8",
        "train.workers=2",
    ];
    (data, [&settings[..], &["train.rate=0.01", "model.width=4", "train.budget=6step"]].concat())
}

#[test]
fn pictures_in_files_are_learnt_from() {
    let place = TempDir::new().unwrap();
    let (data, settings) = pictures(place.path());
    for method in ["lgrawa:period=3", "dp-sam", "local-mgrawa:period=3"] {
        let (_, _, losses) = state(&recipe(method, &settings), &data);
        assert!(!losses.is_empty() && losses.iter().all(|loss| loss.is_finite()), "{method}: {losses:?}");
    }
}

/// Images in files are not on the GPU: they come from the host and give the same run.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn pictures_in_files_are_fed_from_the_host() {
    needs::gpu();
    let place = TempDir::new().unwrap();
    let (data, settings) = pictures(place.path());
    for method in ["lgrawa:period=3", "dp-sam", "local-mgrawa:period=3"] {
        let (cpu, wrong, losses) = state(&recipe(method, &settings), &data);
        let (gpu, wrong_there, losses_there) = state(&on_gpu(method, &settings), &data);
        agree(method, &cpu, &gpu, cpu.names(), 5e-3);
        assert_eq!((wrong, losses.len()), (wrong_there, losses_there.len()), "{method}");
    }
    resumes_exactly(&on_gpu("lgrawa:period=3", &settings), &data);
}

/// The error of a run whose pictures break after they were found: it names a file.
fn error_of_broken_pictures(of: fn(&str, &[&str]) -> Recipe) -> String {
    let place = TempDir::new().unwrap();
    let (data, settings) = pictures(place.path());
    for number in 0..20 {
        std::fs::write(place.path().join(format!("train/noon/{number}.png")), "broken").unwrap();
    }
    let run = Run::new(of("lgrawa:period=3", &settings), &data).unwrap();
    run.go(&mut []).unwrap_err().to_string()
}

#[test]
fn broken_pictures_are_named() {
    let error = error_of_broken_pictures(recipe);
    assert!(error.contains("noon") && error.contains(".png"), "{error}");
}

/// Also if the batch was read ahead.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn broken_pictures_are_named_on_a_gpu() {
    needs::gpu();
    let error = error_of_broken_pictures(on_gpu);
    assert!(error.contains("noon") && error.contains(".png"), "{error}");
}

#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn a_run_on_a_gpu_that_was_stopped_and_resumed_leaves_the_same_files() {
    needs::gpu();
    let data = digits().unwrap();
    for method in methods() {
        resumes_exactly(&on_gpu(&method, &[]), &data);
    }
    resumes_exactly(&on_gpu("lgrawa:period=3", &["machine.precision=bf16"]), &data);
    for extra in ["train.optimizer=adamw", "train.sam=0.05", "data.label_noise=worker 1: 0.5"] {
        resumes_exactly(&on_gpu("lgrawa:period=3", &[extra]), &data);
    }
    // A network with dropout, whose draws must continue.
    resumes_exactly(&on_gpu("mgrawa:preset=reference,period=3", &["model.name=digits"]), &data);
}

#[test]
fn what_a_gpu_cannot_do_is_refused_before_anything_starts() {
    let said = grawa_train::recipe::Overrides::default();
    let said =
        ["machine.device=cuda", "train.pace=free"].iter().try_fold(said, |said, it| said.set(it)).unwrap();
    let error = Recipe::resolve(&said).unwrap_err().to_string();
    assert!(error.contains("on a GPU all workers step together"), "{error}");
}

/// A run that needs a GPU starts only where there is one.
#[test]
fn a_run_that_wants_a_gpu_begins_only_where_there_is_one() {
    let data = digits().unwrap();
    let begun = Run::new(on_gpu("mean", &[]), &data);
    match devices() {
        Ok(devices) if !devices.is_empty() => assert!(begun.is_ok(), "{:?}", begun.err()),
        _ => {
            let error = begun.unwrap_err().to_string();
            assert!(error.contains("GPU") || error.contains("libcuda"), "{error}");
        }
    }
}
