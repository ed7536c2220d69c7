//! Runs on a GPU beside the same runs on the CPU.

#![allow(clippy::unwrap_used)]

mod needs;
mod runs;

use grawa_core::norm::norm;
use grawa_core::{Key, Purpose};
use grawa_data::{Dataset, digits};
use grawa_nn::cuda::cards;
use grawa_nn::{Data, State, Tensors};
use grawa_train::{Checkpoint, Event, Meter, Recipe, Run};
use runs::{apart, go, methods, recipe, resumes_exactly};
use std::path::Path;
use tempfile::TempDir;

fn on_card(method: &str, settings: &[&str]) -> Recipe {
    let card =
        ["machine.device=cuda", "machine.cards=1", "machine.precision=f32", "machine.deterministic=true"];
    recipe(method, &[&card, settings].concat())
}

/// Everything in the newest checkpoint, and how many of the last test were wrong.
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

/// What was kept there under these names is the same here, but for so much.
fn agree<'a>(
    method: &str,
    cpu: &Tensors,
    card: &Tensors,
    names: impl IntoIterator<Item = &'a str>,
    bound: f64,
) {
    for name in names {
        let data = |tensors: &Tensors| match tensors.find(name).map(|tensor| tensor.data.clone()) {
            Some(Data::F32(numbers)) => numbers,
            _ => Vec::new(),
        };
        let (expected, found) = (data(cpu), data(card));
        let difference: Vec<f32> = expected.iter().zip(&found).map(|(a, b)| a - b).collect();
        let off = norm(&difference) / norm(&expected).max(1e-6);
        assert!(
            !found.is_empty() && expected.len() == found.len() && off < bound,
            "{method}: {name} is off by {off:.1e}"
        );
    }
}

/// The same batches, draws, rounds and measurements: only rounding differs.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn a_run_on_a_card_is_that_of_the_cpu_but_for_rounding() {
    needs::gpu();
    let data = digits().unwrap();
    for method in methods() {
        let (cpu, wrong, losses) = state(&recipe(&method, &["train.rate=0.02"]), &data);
        let (card, wrong_there, losses_there) = state(&on_card(&method, &["train.rate=0.02"]), &data);
        assert_eq!(losses.len(), losses_there.len(), "{method}");
        for (here, there) in losses.iter().zip(&losses_there) {
            assert!((here / there - 1.0).abs() < 2e-3, "{method}: losses {losses:?} and {losses_there:?}");
        }
        assert_eq!(cpu.names().collect::<Vec<_>>(), card.names().collect::<Vec<_>>(), "{method}");
        agree(&method, &cpu, &card, cpu.names(), 5e-3);
        assert!(wrong.abs_diff(wrong_there) <= 4, "{method}: {wrong} wrong, and {wrong_there} there");
    }
}

/// Workers of which each knows of one worker on the card, connected by sockets, come to what those of one process come to there;
/// and while vectors travel beside the steps, to what workers on CPUs come to.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn a_group_apart_trains_on_a_card() {
    needs::gpu();
    let data = digits().unwrap();
    // A worker that comes back begins at the centre, so that its parameters are not kept as its own.
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
        let (together, wrong, _) = state(&on_card(method, &settings), &data);
        let (card, wrong_apart) = run("apart", &on_card(method, &settings));
        agree(method, &together, &card, names, 1e-5);
        assert_eq!(wrong, wrong_apart, "{method}");
        let (cpu, wrong) = run("cpu", &recipe(method, &overlapped));
        let (card, wrong_there) = run("card", &on_card(method, &overlapped));
        agree(method, &cpu, &card, names, 3e-2);
        assert!(wrong.abs_diff(wrong_there) <= 4, "{method}: {wrong} wrong, and {wrong_there} there");
    }
}

/// A model measured on a card and on the CPU: the same but for rounding, whether its statistics are its own or counted anew. The
/// last batch is not full, and there are more batches than are looked at together.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn a_model_is_measured_alike() {
    needs::gpu();
    let data = digits().unwrap();
    for policy in ["evaluate.batch_norm=keep", "evaluate.batch_norm=recalibrate"] {
        let settings = ["train.workers=1", "train.batch=8", "data.augment=flip+pad2crop8", policy];
        let (here, there) = (recipe("sgd", &settings), on_card("sgd", &settings));
        let (cpu, card) = (Meter::new(&here, &data).unwrap(), Meter::new(&there, &data).unwrap());
        let model = State::initial(cpu.graph(), 3);
        // Recalibration sees the same augmented batches.
        let (expected, found) = (cpu.statistics(&model).unwrap(), card.statistics(&model).unwrap());
        let difference: Vec<f32> = expected.iter().zip(&found).map(|(a, b)| a - b).collect();
        let off = norm(&difference) / norm(&expected);
        assert!(off < 1e-5, "{policy}: statistics are off by {off:.1e}");
        let (here, there) = (cpu.measure(&model, |_| {}).unwrap(), card.measure(&model, |_| {}).unwrap());
        assert!((here.loss / there.loss - 1.0).abs() < 1e-4, "{policy}: {} and {}", here.loss, there.loss);
        assert_eq!(here.total().examples, there.total().examples, "{policy}");
        assert!(here.total().wrong.abs_diff(there.total().wrong) <= 2, "{policy}");
        // It may be asked again.
        assert_eq!(card.measure(&model, |_| {}).unwrap(), there, "{policy}");
    }
}

/// A data set of pictures in files, and the settings of a run on it.
fn pictures(place: &Path) -> (Dataset, Vec<&'static str>) {
    for (part, count) in [("train", 20u8), ("val", 5)] {
        for (class, tint) in [("dusk", [60u8, 20, 40]), ("noon", [120, 180, 90])] {
            let folder = place.join(part).join(class);
            std::fs::create_dir_all(&folder).unwrap();
            for number in 0..count {
                let file = std::fs::File::create(folder.join(format!("{number}.png"))).unwrap();
                let mut encoder = png::Encoder::new(file, 20, 18);
                encoder.set_color(png::ColorType::Rgb);
                // Rough surfaces: where all pixels are equal, batch norm divides by next to nothing.
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

/// Pictures in files do not lie on the card: they are fed from the host, and give the same run.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn pictures_in_files_are_fed_from_the_host() {
    needs::gpu();
    let place = TempDir::new().unwrap();
    let (data, settings) = pictures(place.path());
    for method in ["lgrawa:period=3", "dp-sam", "local-mgrawa:period=3"] {
        let (cpu, wrong, losses) = state(&recipe(method, &settings), &data);
        let (card, wrong_there, losses_there) = state(&on_card(method, &settings), &data);
        agree(method, &cpu, &card, cpu.names(), 5e-3);
        assert_eq!((wrong, losses.len()), (wrong_there, losses_there.len()), "{method}");
    }
    resumes_exactly(&on_card("lgrawa:period=3", &settings), &data);
}

#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn a_run_on_a_card_that_was_stopped_and_resumed_leaves_the_same_files() {
    needs::gpu();
    let data = digits().unwrap();
    for method in methods() {
        resumes_exactly(&on_card(&method, &[]), &data);
    }
    resumes_exactly(&on_card("lgrawa:period=3", &["machine.precision=bf16"]), &data);
    // A network with dropout, whose draws must go on where they stopped.
    resumes_exactly(&on_card("mgrawa:preset=reference,period=3", &["model.name=digits"]), &data);
}

#[test]
fn what_a_card_cannot_do_is_said_before_anything_starts() {
    let said = grawa_train::recipe::Overrides::default();
    let said =
        ["machine.device=cuda", "train.pace=free"].iter().try_fold(said, |said, it| said.set(it)).unwrap();
    let error = Recipe::resolve(&said).unwrap_err().to_string();
    assert!(error.contains("on a GPU all workers step together"), "{error}");
}

/// A run that wants a GPU begins where there is one, and says so elsewhere.
#[test]
fn a_run_that_wants_a_gpu_begins_only_where_there_is_one() {
    let data = digits().unwrap();
    let begun = Run::new(on_card("mean", &[]), &data);
    match cards() {
        Ok(cards) if !cards.is_empty() => assert!(begun.is_ok(), "{:?}", begun.err()),
        _ => {
            let error = begun.unwrap_err().to_string();
            assert!(error.contains("GPU") || error.contains("libcuda"), "{error}");
        }
    }
}
