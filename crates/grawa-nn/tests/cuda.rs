//! The engine on a GPU against the plain path in f64, and its errors. The reference for bf16 is in
//! `src/cuda/rounded.rs`.

#![allow(clippy::unwrap_used)]

mod needs;
mod networks;

use grawa_core::{
    AdamW, Key, Layout, Memory, Method, Moments, Optimizer, Purpose, Report, Sgd, StateKind, mix, norm::norm,
    norm::norms, plan, step::descend,
};
use grawa_nn::cuda::{
    AllReduce, DatasetBytes, DeviceShare, Kept, Model, MultiGpu, Participant, ReplicaSet, Settings, Split,
    StateVector, Vectors, View, compile_kernels,
};
use grawa_nn::{Backend, Compiled, Cpu, Graph, Mode, Precision, Shape, Tape, zoo};
use networks::{all_networks, plain_names, plain_operations, smooth};

const BATCH: usize = 6;
/// SlowMo's kind of outer optimizer.
const OUTER_BY_RATE: &str = "mean:centre=outer,momentum=0.5,nesterov=false,by_rate=true";

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// ‖found − expected‖ / ‖expected‖.
fn error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let difference: Vec<f32> = found.iter().zip(expected).map(|(&a, &b)| (f64::from(a) - b) as f32).collect();
    let expected: Vec<f32> = expected.iter().map(|&x| x as f32).collect();
    norm(&difference) / norm(&expected).max(1e-30)
}

struct Bounds {
    loss: f64,
    logits: f64,
    gradient: f64,
    statistics: f64,
}

fn agrees(precision: Precision, bounds: &Bounds) {
    let device = needs::gpu();
    for (name, graph) in all_networks() {
        let mut set =
            ReplicaSet::new(&device, &graph, Settings { batch: BATCH, workers: 2, precision, fixed: true })
                .unwrap();
        let mut draws = Key::new(7, Purpose::Problem).stream();
        let mut batch = || -> (Vec<f32>, Vec<u32>) {
            let images = (0..BATCH * graph.input().len()).map(|_| draws.normal() as f32).collect();
            (images, (0..BATCH).map(|_| draws.below(graph.classes() as u64) as u32).collect())
        };
        let batches = [batch(), batch()];
        let states = [smooth(&graph, 1), smooth(&graph, 2)];
        set.load_batches(&[(&batches[0].0, &batches[0].1), (&batches[1].0, &batches[1].1)]).unwrap();
        for mode in [
            Mode::Train { dropout: None },
            Mode::Train { dropout: Some(Key::new(3, Purpose::Dropout)) },
            Mode::Evaluate,
        ] {
            for (worker, (parameters, statistics)) in states.iter().enumerate() {
                set.load(worker, parameters, statistics).unwrap();
            }
            let outcomes = set.gradient(mode, 0.5, true).unwrap();
            for worker in 0..2 {
                let (parameters, statistics) = &states[worker];
                let (images, labels) = &batches[worker];
                let tape =
                    Tape::forward(&graph, &wide(parameters), &wide(statistics), &wide(images), mode).unwrap();
                let (loss, gradient) = tape.backward(&wide(parameters), labels, 0.5).unwrap();
                let mut tracked = wide(statistics);
                tape.track(&mut tracked).unwrap();
                let judge = |what: &str, error: f64, bound: f64| {
                    assert!(
                        error <= bound,
                        "{precision} {name} {mode:?} worker {worker}: {what} off by {error:.2e}"
                    );
                };
                judge("loss", (outcomes[worker].loss / loss - 1.0).abs(), bounds.loss);
                judge("logits", error(&set.logits(worker).unwrap(), tape.logits()), bounds.logits);
                judge("gradient", error(&set.gradient_of(worker).unwrap(), &gradient), bounds.gradient);
                if !tracked.is_empty() {
                    judge("statistics", error(&set.statistics(worker).unwrap(), &tracked), bounds.statistics);
                }
                let again: Vec<u32> = set.gradient_of(worker).unwrap().iter().map(|x| x.to_bits()).collect();
                if worker == 1 {
                    for (worker, (parameters, statistics)) in states.iter().enumerate() {
                        set.load(worker, parameters, statistics).unwrap();
                    }
                    set.gradient(mode, 0.5, true).unwrap();
                    let twice = set.gradient_of(1).unwrap();
                    assert!(
                        twice.iter().map(|x| x.to_bits()).eq(again),
                        "{name}: other bits the second time"
                    );
                }
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn f32_agrees_with_the_plain_path() {
    agrees(Precision::F32, &Bounds { loss: 1e-5, logits: 1e-5, gradient: 1e-4, statistics: 1e-5 });
}

#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn tf32_agrees_within_its_own_bounds() {
    agrees(Precision::Tf32, &Bounds { loss: 5e-3, logits: 1e-2, gradient: 3e-2, statistics: 5e-3 });
}

/// A network with plain operations on a GPU is that of the CPU backend: passes in both modes, scores, and local steps, with one
/// worker and with several. In bf16 it learns.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn plain_operations_are_those_of_the_cpu() {
    let device = needs::gpu();
    let graph = plain_operations();
    let factor = 1.0 / BATCH as f64;
    let mut cpu = Cpu.compile(&graph, BATCH, Precision::F32).unwrap();
    let mut draws = Key::new(7, Purpose::Problem).stream();
    let mut batch = || -> (Vec<f32>, Vec<u32>) {
        let images = (0..BATCH * graph.input().len()).map(|_| draws.normal() as f32).collect();
        (images, (0..BATCH).map(|_| draws.below(graph.classes() as u64) as u32).collect())
    };
    for workers in [1usize, 3] {
        let settings = Settings { batch: BATCH, workers, precision: Precision::F32, fixed: true };
        let mut set = ReplicaSet::new(&device, &graph, settings).unwrap();
        let warning = |name| format!("{name} has no CUDA kernel: its plain form runs on the host, slowly");
        assert_eq!(set.warnings(), plain_names(&graph).into_iter().map(warning).collect::<Vec<_>>());
        let batches: Vec<(Vec<f32>, Vec<u32>)> = (0..workers).map(|_| batch()).collect();
        let given: Vec<_> = batches.iter().map(|(images, labels)| (&images[..], &labels[..])).collect();
        set.load_batches(&given).unwrap();
        let mut states: Vec<(Vec<f32>, Vec<f32>)> = (0..workers)
            .map(|worker| (graph.initial(worker as u64), vec![0.0; graph.parameters().len()]))
            .collect();
        for (worker, (parameters, _)) in states.iter().enumerate() {
            set.load(worker, parameters, &[]).unwrap();
        }
        let judge = |what: &str, found: &[f32], expected: &[f32], bound: f64| {
            let off = error(found, &wide(expected));
            assert!(off <= bound, "{workers} workers: {what} off by {off:.2e}");
        };
        for mode in [Mode::Train { dropout: None }, Mode::Evaluate] {
            let forward = set.forward(mode).unwrap();
            let outcomes = set.gradient(mode, factor, false).unwrap();
            for (worker, (parameters, _)) in states.iter().enumerate() {
                let expected = cpu.pass((parameters, &[]), given[worker], mode, factor).unwrap();
                assert_eq!(forward[worker], outcomes[worker]);
                assert!((outcomes[worker].loss / expected.loss - 1.0).abs() <= 1e-5, "{outcomes:?}");
                judge("logits", &set.logits(worker).unwrap(), &expected.logits, 1e-5);
                judge("the gradient", &set.gradient_of(worker).unwrap(), &expected.gradient, 1e-4);
            }
        }
        let at = Key::new(5, Purpose::Augment);
        let scores = set.score(&vec![at; workers], None, false).unwrap();
        for (worker, (parameters, _)) in states.iter().enumerate() {
            let mode = Mode::Train { dropout: None };
            let expected = cpu.pass((parameters, &[]), given[worker], mode, 1.0).unwrap();
            let mut of_spans = vec![0.0; graph.parameters().spans().len()];
            norms(graph.parameters(), &expected.gradient, &mut of_spans).unwrap();
            for (found, expected) in scores[worker].iter().zip(of_spans) {
                assert!((found / expected - 1.0).abs() < 1e-3, "{found}, not {expected}");
            }
        }
        // All steps are enqueued at once, as replays of one graph.
        set.set_position(at, &[0.05], [0.0; 2]).unwrap();
        set.steps(Sgd::default(), 5).unwrap();
        for (worker, (parameters, velocity)) in states.iter_mut().enumerate() {
            let start = parameters.clone();
            for _ in 0..5 {
                let mode = Mode::Train { dropout: None };
                let pass = cpu.pass((parameters, &[]), given[worker], mode, factor).unwrap();
                descend(&Sgd::default(), 0.05, parameters, velocity, &pass.gradient, &[]).unwrap();
            }
            assert!(error(&start, &wide(parameters)) > 1e-2, "worker {worker} did not move");
            judge("the parameters", &set.parameters(worker).unwrap(), parameters, 1e-4);
            judge("the velocity", &set.velocity(worker).unwrap(), velocity, 1e-3);
        }
        let settings = Settings { precision: Precision::Bf16, ..settings };
        let mut set = ReplicaSet::new(&device, &graph, settings).unwrap();
        set.load_batches(&given).unwrap();
        for worker in 0..workers {
            set.load(worker, &graph.initial(worker as u64), &[]).unwrap();
        }
        let before = set.forward(Mode::Evaluate).unwrap();
        set.set_position(at, &[0.05], [0.0; 2]).unwrap();
        set.steps(Sgd::default(), 40).unwrap();
        let after = set.forward(Mode::Evaluate).unwrap();
        for (before, after) in before.iter().zip(&after) {
            assert!(after.loss < 0.2 * before.loss, "bf16: {before:?}, then {after:?}");
        }
        assert!(!set.profile(Sgd::default()).unwrap().is_empty());
    }
}

/// Batches that are copied ahead are those that are loaded at once, also if others are loaded in between.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn batches_are_copied_ahead() {
    let device = needs::gpu();
    let graph = zoo::digits("digits", Shape::image(1, 8), 6, 10).unwrap();
    let settings = Settings { batch: BATCH, workers: 2, precision: Precision::F32, fixed: true };
    let mut set = ReplicaSet::new(&device, &graph, settings).unwrap();
    (0..2).for_each(|worker| {
        set.load(worker, &graph.initial(worker as u64), &vec![1.0; graph.statistics().len()]).unwrap()
    });
    let mut draws = Key::new(7, Purpose::Problem).stream();
    let mut batch = || -> (Vec<f32>, Vec<u32>) {
        let images = (0..BATCH * graph.input().len()).map(|_| draws.normal() as f32).collect();
        (images, (0..BATCH).map(|_| draws.below(graph.classes() as u64) as u32).collect())
    };
    let batches: Vec<[(Vec<f32>, Vec<u32>); 2]> = (0..4).map(|_| [batch(), batch()]).collect();
    let given = |at: usize| batches[at].each_ref().map(|(images, labels)| (&images[..], &labels[..]));
    assert!(set.load_ahead().is_err());
    let mode = Mode::Train { dropout: None };
    let expected: Vec<_> = (0..4)
        .map(|at| {
            set.load_batches(&given(at)).unwrap();
            set.forward(mode).unwrap()
        })
        .collect();
    set.copy_ahead(&given(0)).unwrap();
    for at in 0..4 {
        set.load_ahead().unwrap();
        let found = set.forward(mode);
        set.copy_ahead(&given((at + 1) % 4)).unwrap();
        assert_eq!(found.unwrap(), expected[at]);
        if at % 2 == 1 {
            // Others take the place of those that were copied ahead.
            set.load_batches(&given(0)).unwrap();
            assert_eq!(set.forward(mode).unwrap(), expected[0]);
        }
    }
}

/// Steps, norms and rounds on the GPU against those of grawa-core on the same gradients.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn steps_and_rounds_are_those_of_the_cpu() {
    let device = needs::gpu();
    let graph = zoo::resnet("resnet", Shape::image(3, 9), 1, 8, 5).unwrap();
    let settings = Settings { batch: BATCH, workers: 3, precision: Precision::F32, fixed: true };
    let mut set = ReplicaSet::new(&device, &graph, settings).unwrap();
    let mut draws = Key::new(7, Purpose::Problem).stream();
    let images: Vec<f32> = (0..BATCH * graph.input().len()).map(|_| draws.normal() as f32).collect();
    let labels = [0, 1, 2, 3, 4, 0];
    set.load_batches(&[(images.as_slice(), labels.as_slice()); 3]).unwrap();
    let mut workers: Vec<(Vec<f32>, Vec<f32>)> =
        (0..3).map(|seed| (smooth(&graph, seed).0, vec![0.0; graph.parameters().len()])).collect();
    for (worker, (parameters, _)) in workers.iter().enumerate() {
        set.load(worker, parameters, &graph.initial_statistics()).unwrap();
    }
    let mut centre = workers[0].0.clone();
    set.load_centre(0, 0, &centre).unwrap();
    let close = |what: &str, found: &[f32], expected: &[f32]| {
        let off = error(found, &wide(expected));
        assert!(off < 1e-6, "{what}: off by {off:.2e}");
    };
    let layout: &Layout = graph.parameters();
    set.gradient(Mode::Train { dropout: None }, 1.0, false).unwrap();
    set.ascend(0.5).unwrap();
    for (worker, (parameters, _)) in workers.iter().enumerate() {
        let (mut moved, mut saved) = (parameters.clone(), parameters.clone());
        grawa_core::step::ascend(0.5, &mut moved, &mut saved, &set.gradient_of(worker).unwrap()).unwrap();
        close("the ascent", &set.parameters(worker).unwrap(), &moved);
    }
    set.restore().unwrap();
    for (worker, (parameters, _)) in workers.iter().enumerate() {
        assert_eq!(set.parameters(worker).unwrap(), *parameters, "worker {worker} came back elsewhere");
    }
    let methods = [
        "lgrawa",
        "mgrawa:pull=1",
        "easgd",
        "lsgd",
        "mean",
        "mean:push=0.5",
        "mean:pull=1,centre=outer",
        OUTER_BY_RATE,
    ];
    for (round, method) in methods.into_iter().enumerate() {
        let sgd = Sgd { nesterov: round % 2 == 0, ..Sgd::default() };
        set.set_position(Key::new(5, Purpose::Augment).step(round as u64), &[0.05], [0.1, 0.0]).unwrap();
        set.compute_gradients().unwrap();
        let found = set.norms().unwrap();
        let gradients: Vec<Vec<f32>> = (0..3).map(|worker| set.gradient_of(worker).unwrap()).collect();
        // The step recomputes the same gradient and uses it at once, or uses the current one.
        match round % 2 {
            0 => set.steps(sgd, 1).unwrap(),
            _ => set.descend(sgd).unwrap(),
        }
        for ((worker, (parameters, velocity)), gradient) in workers.iter_mut().enumerate().zip(gradients) {
            let prox = grawa_core::Prox { centre: &centre[..layout.len()], strength: 0.1 };
            descend(&sgd, 0.05, parameters, velocity, &gradient, &[prox]).unwrap();
            close("the step", &set.parameters(worker).unwrap(), parameters);
            close("the velocity", &set.velocity(worker).unwrap(), velocity);
            let mut expected = vec![0.0; layout.spans().len()];
            norms(layout, &gradient, &mut expected).unwrap();
            for (found, expected) in found[worker].iter().zip(&expected) {
                assert!((found - expected).abs() <= 1e-12 + 1e-9 * expected, "{found} and {expected}");
            }
            // The next round starts from the same bits on both sides.
            parameters.copy_from_slice(&set.parameters(worker).unwrap());
            velocity.copy_from_slice(&set.velocity(worker).unwrap());
        }
        let method: Method = method.parse().unwrap();
        let scores = |worker: usize| match round {
            0 => found[worker].clone(),
            1 | 3 => vec![found[worker].iter().sum()],
            _ => Vec::new(),
        };
        let reports: Vec<Report> = (0..3)
            .map(|worker| Report { worker: worker as u32, scores: scores(worker), finite: true, steps: 32 })
            .collect();
        let decided = plan(&method.at(1.0, 0.05), layout, &Memory::default(), &reports).unwrap();
        if decided.centre.state_len(1) > centre.len() / layout.len() {
            centre.resize(2 * layout.len(), 0.01);
            set.load_centre(0, 0, &centre).unwrap();
        }
        set.mix(&decided, (0, 0), 0, Vectors::Parameters).unwrap();
        let mut vectors: Vec<&mut [f32]> = workers.iter_mut().map(|worker| worker.0.as_mut_slice()).collect();
        mix(&decided, layout, &mut vectors, &mut centre).unwrap();
        close("the centre", &set.centre(0, 0).unwrap().unwrap(), &centre);
        for (worker, (parameters, _)) in workers.iter_mut().enumerate() {
            close("a pulled worker", &set.parameters(worker).unwrap(), parameters);
            parameters.copy_from_slice(&set.parameters(worker).unwrap());
        }
        centre.copy_from_slice(&set.centre(0, 0).unwrap().unwrap());
    }
}

/// Every kernel compiles for the oldest supported architecture, for a newer one, and for the one we measure on. Needs the compiler, no
/// GPU.
#[test]
#[ignore = "needs NVIDIA's compiler, which .ci/run brings: pip install nvidia-cuda-nvrtc and --include-ignored"]
fn kernels_compile() {
    for architecture in ["sm_80", "sm_90", "sm_90a"] {
        for narrow in [false, true] {
            match compile_kernels(architecture, narrow) {
                Ok(code) => assert!(code.starts_with(b"\x7fELF"), "{architecture}: not machine code"),
                Err(error) => panic!("{architecture}, bf16 {narrow}: {error}"),
            }
        }
    }
}

/// Steps of AdamW with a pull on the GPU against those of grawa-core on the same gradients; its state goes both ways.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn adamw_is_that_of_the_cpu() {
    let device = needs::gpu();
    let graph = zoo::resnet("resnet", Shape::image(3, 9), 1, 8, 5).unwrap();
    let settings = Settings { batch: BATCH, workers: 2, precision: Precision::F32, fixed: true };
    let mut set = ReplicaSet::new(&device, &graph, settings).unwrap();
    let mut draws = Key::new(7, Purpose::Problem).stream();
    let images: Vec<f32> = (0..BATCH * graph.input().len()).map(|_| draws.normal() as f32).collect();
    set.load_batches(&[(images.as_slice(), [0, 1, 2, 3, 4, 0].as_slice()); 2]).unwrap();
    let length = graph.parameters().len();
    let mut workers: Vec<(Vec<f32>, Moments)> =
        (0..2).map(|seed| (smooth(&graph, seed).0, Moments::new(length))).collect();
    for (worker, (parameters, _)) in workers.iter().enumerate() {
        set.load(worker, parameters, &graph.initial_statistics()).unwrap();
        assert!(set.second_moment(worker).unwrap().is_empty());
    }
    let centre = workers[0].0.clone();
    set.load_centre(0, 0, &centre).unwrap();
    let adamw: Optimizer = AdamW { beta2: 0.99, weight_decay: 0.1, ..AdamW::default() }.into();
    for step in 0..6u64 {
        set.set_position(Key::new(5, Purpose::Augment).step(step), &[0.01], [0.1, 0.0]).unwrap();
        set.compute_gradients().unwrap();
        let gradients: Vec<Vec<f32>> = (0..2).map(|worker| set.gradient_of(worker).unwrap()).collect();
        match step % 2 {
            0 => set.steps(adamw, 1).unwrap(),
            _ => set.descend(adamw).unwrap(),
        }
        for (worker, (parameters, moments)) in workers.iter_mut().enumerate() {
            let prox = grawa_core::Prox { centre: centre.as_slice(), strength: 0.1 };
            moments.descend(&adamw, 0.01, parameters, &gradients[worker], &[prox]).unwrap();
            for (what, found, expected) in [
                ("the step", set.parameters(worker).unwrap(), parameters.clone()),
                ("the first moment", set.velocity(worker).unwrap(), moments.copy(StateKind::Velocity)),
                ("the second", set.second_moment(worker).unwrap(), moments.copy(StateKind::SecondMoment)),
            ] {
                let off = error(&found, &wide(&expected));
                assert!(off < 1e-5, "{what} of worker {worker} at {step}: off by {off:.2e}");
            }
            // The next step starts from the same bits on both sides, and a worker that was reset from none.
            parameters.copy_from_slice(&set.parameters(worker).unwrap());
            if (worker, step) == (1, 2) {
                moments.reset();
                set.load_second_moment(worker, &[]).unwrap();
                set.load_velocity(worker, &vec![0.0; length]).unwrap();
                assert!(set.second_moment(worker).unwrap().is_empty());
            }
            moments.put(StateKind::Velocity, &set.velocity(worker).unwrap()).unwrap();
            let second = set.second_moment(worker).unwrap();
            moments.put(StateKind::SecondMoment, &second).unwrap();
            set.load_second_moment(worker, &second).unwrap();
            assert_eq!(set.second_moment(worker).unwrap(), second);
        }
    }
    assert!(!set.profile(adamw).unwrap().is_empty());
}

/// Batches made on the GPU are those of grawa-data, bit for bit.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn batches_are_those_of_the_cpu() {
    use grawa_data::{Augment, DatasetKind, Feed, Sampler};
    let device = needs::gpu();
    let mut draws = Key::new(9, Purpose::Problem).stream();
    let examples = 50;
    let bytes: Vec<u8> = (0..examples * 3 * 32 * 32).map(|_| draws.word() as u8).collect();
    let labels: Vec<u32> = (0..examples).map(|_| draws.below(10) as u32).collect();
    let shape = grawa_data::Shape::new(3, 32, 32);
    let part = grawa_data::Split::from_bytes(shape, bytes.clone(), labels.clone(), 10).unwrap();
    for text in ["flip+crop28", "flip+pad4crop32", "none"] {
        let augment: Augment = text.parse().unwrap();
        let feed = Feed::new(&part, &DatasetKind::Cifar10.normalise(), augment).unwrap();
        let side = feed.output().height as usize;
        let graph = zoo::resnet("resnet", Shape::image(3, side), 1, 8, 10).unwrap();
        let settings = Settings { batch: 16, workers: 2, precision: Precision::F32, fixed: true };
        let mut set = ReplicaSet::new(&device, &graph, settings).unwrap();
        let crop = match augment.crop {
            grawa_data::Crop::Random { pad, .. } => Some(pad),
            _ => None,
        };
        let data =
            DatasetBytes { shape: Shape::image(3, 32), images: &bytes, labels: &labels, table: feed.table() };
        set.load_dataset(Split::Train, data, View { flip: augment.flip, crop }, 4).unwrap();
        let order = Sampler::new(36, examples, 2, 16).unwrap();
        for worker in 0..2 {
            set.load(worker, &graph.initial(1), &graph.initial_statistics()).unwrap();
            let assigned: Vec<u32> =
                (100..103).flat_map(|step| order.batch(worker as u32, step).unwrap()).collect();
            set.assign(Split::Train, worker, &assigned).unwrap();
        }
        set.set_position(Key::new(36, Purpose::Augment).step(100), &[0.01], [0.0; 2]).unwrap();
        for step in 100..103 {
            set.steps(Sgd::default(), 1).unwrap();
            for worker in 0..2u32 {
                let (found, found_labels) = set.batch(worker as usize).unwrap();
                let mut images = vec![0.0; 16 * feed.output().len()];
                let mut expected = vec![0; 16];
                let key = Key::new(36, Purpose::Augment).worker(worker).step(step);
                feed.augmented(key, &order.batch(worker, step).unwrap(), &mut images, &mut expected).unwrap();
                assert_eq!(found_labels, expected);
                assert!(
                    found.iter().zip(&images).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{text}, step {step}, worker {worker}"
                );
            }
        }
    }
}

/// Training lowers the loss, in every precision, with four workers at once.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn it_learns() {
    let device = needs::gpu();
    let graph = zoo::resnet("resnet", Shape::image(3, 8), 1, 16, 10).unwrap();
    for precision in [Precision::F32, Precision::Bf16] {
        let settings = Settings { batch: 32, workers: 4, precision, fixed: true };
        let mut set = ReplicaSet::new(&device, &graph, settings).unwrap();
        let mut draws = Key::new(7, Purpose::Problem).stream();
        let images: Vec<f32> = (0..32 * graph.input().len()).map(|_| draws.normal() as f32).collect();
        let labels: Vec<u32> = (0..32).map(|_| draws.below(10) as u32).collect();
        set.load_batches(&[(images.as_slice(), labels.as_slice()); 4]).unwrap();
        for worker in 0..4 {
            set.load(worker, &graph.initial(worker as u64), &graph.initial_statistics()).unwrap();
        }
        set.set_position(Key::new(5, Purpose::Augment), &[0.05], [0.0; 2]).unwrap();
        let before = set.forward(Mode::Train { dropout: None }).unwrap();
        set.steps(Sgd::default(), 60).unwrap();
        let after = set.forward(Mode::Train { dropout: None }).unwrap();
        for (before, after) in before.iter().zip(&after) {
            assert!(
                after.loss < 0.2 * before.loss && after.correct >= 30,
                "{precision}: {before:?}, then {after:?}"
            );
        }
    }
}

/// An index that would become an address outside device memory is an error, and nothing is changed.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn what_does_not_exist_is_refused() {
    let device = needs::gpu();
    let graph = zoo::digits("digits", Shape::image(1, 8), 6, 10).unwrap();
    let settings = Settings { batch: BATCH, workers: 3, precision: Precision::F32, fixed: true };
    let mut set = ReplicaSet::new(&device, &graph, settings).unwrap();
    let start = graph.initial(1);
    for worker in 0..3 {
        set.load(worker, &start, &graph.initial_statistics()).unwrap();
    }
    let refused = |what: &str, done: Result<(), grawa_nn::Error>, why: &str| {
        let text = done.expect_err(what).to_string();
        assert!(text.contains(why), "{what}: {text}");
    };
    // Centres: one of all workers, two of groups.
    set.group_by(2, 0).unwrap();
    set.load_centre(0, 0, &start).unwrap();
    refused("a third group", set.load_centre(1, 2, &start), "there are 2");
    set.load_centre(1, 1, &start).unwrap();
    refused("a fourth level", set.load_centre(3, 0, &start), "there are 3");
    refused("a group's centre", set.centre(1, 2).map(|_| ()), "there are 2");
    refused("a far group", set.centre(1, usize::MAX).map(|_| ()), "there are 2");
    refused("a lead as large as a group", set.group_by(2, 2), "an earlier GPU");
    // New groups have new centres: a step must not read those of two groups as three.
    set.group_by(1, 0).unwrap();
    assert_eq!(set.centre(1, 0).unwrap(), None);
    set.load_centre(1, 2, &start).unwrap();

    let own = [Model::Own; 4];
    refused("four models for three workers", set.load_models(&own), "the list of models");
    let missing = Model::Centre { level: 0, group: 1 };
    refused("a model that is not there", set.load_models(&[missing]), "there are 1");
    refused(
        "a level without a centre",
        set.load_models(&[Model::Centre { level: 2, group: 0 }]),
        "not been made",
    );

    // Rounds.
    let reports: Vec<Report> =
        (0..3).map(|worker| Report { worker, scores: Vec::new(), finite: true, steps: 1 }).collect();
    let method: Method = "mean".parse().unwrap();
    let round = plan(&method, graph.parameters(), &Memory::default(), &reports).unwrap();
    refused("a round of others", set.mix(&round, (0, 1), 0, Vectors::Parameters), "there are 1");
    refused("a round beyond", set.mix(&round, (0, 0), 1, Vectors::Parameters), "list of workers");
    let far = set.mix(&round, (0, 0), usize::MAX, Vectors::Parameters);
    refused("a round far beyond", far, "list of workers");
    let multi_gpu = MultiGpu::new(AllReduce::Host, std::slice::from_ref(&device)).unwrap();
    let share = DeviceShare::new(&round, 0..3, 0);
    let participant = Participant { set: &mut set, share: share.clone(), centre: (0, 1) };
    refused(
        "a seat elsewhere",
        multi_gpu.mix(&mut [participant], &round, Vectors::Parameters),
        "there are 1",
    );
    let other = zoo::digits("digits", Shape::image(1, 8), 8, 10).unwrap();
    let mut others = ReplicaSet::new(&device, &other, settings).unwrap();
    let mut participants = [(&mut set, &share), (&mut others, &share)].map(|(set, share)| Participant {
        set,
        share: share.clone(),
        centre: (0, 0),
    });
    refused(
        "vectors of two lengths",
        multi_gpu.mix(&mut participants, &round, Vectors::Parameters),
        "another GPU",
    );

    // Steps: no more than batches are assigned, for each worker.
    let (images, labels) = (vec![7u8; 20 * 64], vec![3u32; 20]);
    let table = vec![[0.5; 256]];
    let data = DatasetBytes { shape: Shape::image(1, 8), images: &images, labels: &labels, table: &table };
    let nothing = DatasetBytes { images: &[], labels: &[], ..data };
    let view = View { flip: false, crop: None };
    refused("an empty set", set.load_dataset(Split::Train, nothing, view, 4), "the data set");
    set.load_dataset(Split::Train, data, view, 4).unwrap();
    let at = Key::new(5, Purpose::Augment);
    set.set_position(at, &[0.01], [0.0; 2]).unwrap();
    refused("a step without a batch", set.steps(Sgd::default(), 1), "assigned for 0 steps");
    refused("a gradient without a batch", set.compute_gradients(), "assigned for 0 steps");
    refused("a fourth worker", set.assign(Split::Train, 3, &[0; BATCH]), "there are 3");
    for worker in 0..3 {
        set.assign(Split::Train, worker, &[worker as u32; 3 * BATCH]).unwrap();
    }
    set.assign(Split::Train, 1, &[0; 2 * BATCH + 1]).unwrap();
    refused("three steps of two batches", set.steps(Sgd::default(), 3), "assigned for 2 steps");
    set.steps(Sgd::default(), 1).unwrap();
    set.compute_gradients().unwrap();
    set.compute_gradients().unwrap();
    set.descend(Sgd::default()).unwrap();
    refused("a third gradient", set.compute_gradients(), "assigned for 2 steps");
    refused("a third step", set.steps(Sgd::default(), 1), "assigned for 2 steps");
    refused("a profile of a third step", set.profile(Sgd::default()).map(|_| ()), "assigned for 2 steps");
    set.set_position(at, &[0.01], [0.0; 2]).unwrap();
    set.steps(Sgd::default(), 2).unwrap();
    set.synchronise().unwrap();
}

/// A weighted value that is not finite appears in the centre and in the pulled workers, as on the CPU.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn what_is_not_a_number_stays_so() {
    let device = needs::gpu();
    let graph = zoo::digits("digits", Shape::image(1, 8), 6, 10).unwrap();
    let settings = Settings { batch: BATCH, workers: 2, precision: Precision::F32, fixed: true };
    let mut set = ReplicaSet::new(&device, &graph, settings).unwrap();
    let mut workers = [graph.initial(1), graph.initial(2)];
    workers[1][3] = f32::NAN;
    workers[1][5] = f32::INFINITY;
    for (worker, parameters) in workers.iter().enumerate() {
        set.load(worker, parameters, &graph.initial_statistics()).unwrap();
    }
    let mut centre = graph.initial(3);
    set.load_centre(0, 0, &centre).unwrap();
    // Both are reported as finite, so that both have weight.
    let reports = [0, 1].map(|worker| Report { worker, scores: Vec::new(), finite: true, steps: 1 });
    let method: Method = "easgd".parse().unwrap();
    let decided = plan(&method, graph.parameters(), &Memory::default(), &reports).unwrap();
    let multi_gpu = MultiGpu::new(AllReduce::Host, std::slice::from_ref(&device)).unwrap();
    for by_link in [false, true] {
        match by_link {
            false => set.mix(&decided, (0, 0), 0, Vectors::Parameters).unwrap(),
            true => {
                let participant =
                    Participant { set: &mut set, share: DeviceShare::new(&decided, 0..2, 0), centre: (0, 0) };
                multi_gpu.mix(&mut [participant], &decided, Vectors::Parameters).unwrap();
            }
        }
        let mut vectors: Vec<&mut [f32]> = workers.iter_mut().map(Vec::as_mut_slice).collect();
        mix(&decided, graph.parameters(), &mut vectors, &mut centre).unwrap();
        let found = set.centre(0, 0).unwrap().unwrap();
        assert!(centre[3].is_nan() && found[3].is_nan(), "{by_link}: {} and {}", centre[3], found[3]);
        let near = (found[5] / centre[5] - 1.0).abs() < 1e-6 && found[5] > 1e37;
        assert!(near, "{by_link}: {} and {}", centre[5], found[5]);
        for (worker, parameters) in workers.iter().enumerate() {
            let found = set.parameters(worker).unwrap();
            assert!(parameters[3].is_nan() && found[3].is_nan(), "{by_link}, worker {worker}: {}", found[3]);
        }
    }
}

/// A data set of random images for a network: bytes, labels, and the values of bytes.
fn random_data(graph: &Graph, examples: usize) -> (Vec<u8>, Vec<u32>, Vec<[f32; 256]>) {
    let mut draws = Key::new(9, Purpose::Problem).stream();
    let bytes = (0..examples * graph.input().len()).map(|_| draws.word() as u8).collect();
    let labels = (0..examples).map(|_| draws.below(graph.classes() as u64) as u32).collect();
    let table =
        (0..graph.input().channels).map(|c| std::array::from_fn(|byte| (byte + c) as f32 / 64.0 - 2.0));
    (bytes, labels, table.collect())
}

/// Everything that training has of a worker.
fn state_of(set: &ReplicaSet, worker: usize) -> [Vec<f32>; 4] {
    [
        set.parameters(worker).unwrap(),
        set.velocity(worker).unwrap(),
        set.second_moment(worker).unwrap(),
        set.statistics(worker).unwrap(),
    ]
}

/// Passes that are enqueued together keep what each keeps by itself, which is what a plain pass computes; and the workers stay as they
/// were.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn passes_in_flight_do_not_mix_up_their_results() {
    const PASSES: usize = 5;
    let device = needs::gpu();
    for ((name, graph), precision) in
        all_networks().into_iter().flat_map(|net| [Precision::F32, Precision::Bf16].map(|p| (net.clone(), p)))
    {
        let settings = Settings { batch: BATCH, workers: 3, precision, fixed: true };
        let mut set = ReplicaSet::new(&device, &graph, settings).unwrap();
        let (bytes, labels, table) = random_data(&graph, 40);
        let data = DatasetBytes { shape: graph.input(), images: &bytes, labels: &labels, table: &table };
        for split in [Split::Train, Split::Test] {
            set.load_dataset(split, data, View { flip: true, crop: Some(1) }, PASSES).unwrap();
        }
        for worker in 0..3 {
            let (parameters, statistics) = smooth(&graph, worker as u64);
            set.load(worker, &parameters, &statistics).unwrap();
        }
        set.load_centre(2, 0, &smooth(&graph, 9).0).unwrap();
        let before = [0, 1, 2].map(|worker| state_of(&set, worker));
        let mut draws = Key::new(3, Purpose::Problem).stream();
        let mut examples = || (0..PASSES * BATCH).map(|_| draws.below(40) as u32).collect::<Vec<u32>>();
        let assigned = [examples(), examples(), examples()];
        let key = |worker: usize, pass: usize| {
            let apart = worker as u32 + 1;
            let step = 10 * worker + pass * apart as usize;
            (Key::new(5, Purpose::Augment).worker(worker as u32).step(step as u64), apart)
        };
        for (kept, split) in [(Kept::Statistics, Split::Train), (Kept::Logits, Split::Test)] {
            let run = |set: &mut ReplicaSet, passes: std::ops::Range<usize>| {
                set.begin_passes(kept, &[0, 1, 2].map(|worker| key(worker, passes.start))).unwrap();
                for (worker, examples) in assigned.iter().enumerate() {
                    let part = passes.start * BATCH..passes.end * BATCH;
                    set.assign(split, worker, &examples[part]).unwrap();
                }
                passes.for_each(|_| set.enqueue_pass(kept, true).unwrap());
                set.kept_results(kept).unwrap()
            };
            set.load_models(&[Model::Own, Model::Centre { level: 2, group: 0 }, Model::Own]).unwrap();
            let together = run(&mut set, 0..PASSES);
            for pass in 0..PASSES {
                let alone = run(&mut set, pass..pass + 1);
                let batches = [0, 1, 2].map(|worker| set.batch(worker).unwrap());
                let shown = [0, 1, 2].map(|worker: usize| (&batches[worker].0[..], &batches[worker].1[..]));
                set.load_batches(&shown).unwrap();
                let own_statistics = [0, 1, 2].map(|worker| set.statistics(worker).unwrap());
                match kept {
                    Kept::Statistics => {
                        drop(set.gradient(Mode::Train { dropout: None }, 1.0, true).unwrap());
                    }
                    Kept::Logits => drop(set.forward(Mode::Evaluate).unwrap()),
                }
                for worker in 0..3 {
                    let plain = match kept {
                        Kept::Statistics => set.statistics(worker),
                        Kept::Logits => set.logits(worker),
                    };
                    let what = format!("{name}, {precision}, {kept:?}, pass {pass}, worker {worker}");
                    assert!(together[worker].len() == PASSES && alone[worker].len() == 1, "{what}");
                    assert!(together[worker][pass] == alone[worker][0], "{what}: in flight");
                    assert!(plain.unwrap() == alone[worker][0], "{what}: plain");
                    set.load_statistics(worker, &own_statistics[worker]).unwrap();
                }
            }
            for results in &together {
                let is_distinct = results.windows(2).all(|pair| pair[0] != pair[1]);
                assert!(is_distinct || results[0].is_empty(), "{name}: {kept:?}");
            }
            // One more than batches are assigned.
            let refused = set.enqueue_pass(kept, true).unwrap_err().to_string();
            assert!(refused.contains("assigned for 1 steps"), "{refused}");
            set.unload_models().unwrap();
            let after = [0, 1, 2].map(|worker| state_of(&set, worker));
            assert!(after == before, "{name}, {precision}: {kept:?} changed a worker");
        }
    }
}

/// What is copied on the GPU is the state at that moment, however far training is when it is fetched.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn a_snapshot_does_not_see_later_steps() {
    let device = needs::gpu();
    let graph = zoo::resnet("resnet", Shape::image(3, 13), 2, 8, 5).unwrap();
    let settings = Settings { batch: BATCH, workers: 2, precision: Precision::F32, fixed: true };
    let mut set = ReplicaSet::new(&device, &graph, settings).unwrap();
    let (bytes, labels, table) = random_data(&graph, 40);
    let data = DatasetBytes { shape: graph.input(), images: &bytes, labels: &labels, table: &table };
    set.load_dataset(Split::Train, data, View { flip: true, crop: None }, 40).unwrap();
    for worker in 0..2 {
        set.load(worker, &graph.initial(worker as u64), &graph.initial_statistics()).unwrap();
        let examples: Vec<u32> = (0..40 * BATCH).map(|at| ((at * 7 + worker) % 40) as u32).collect();
        set.assign(Split::Train, worker, &examples).unwrap();
    }
    set.set_position(Key::new(5, Purpose::Step), &[0.01], [0.0; 2]).unwrap();
    let outer = [graph.initial(7), graph.initial(8)].concat();
    set.load_centre(0, 0, &outer).unwrap();
    let kinds = [StateKind::Parameters, StateKind::Velocity, StateKind::SecondMoment, StateKind::Statistics];
    let wanted: Vec<StateVector> = (0..2)
        .flat_map(|worker| kinds.map(|kind| StateVector::Worker(worker, kind)))
        .chain([StateVector::Centre { level: 0, group: 0 }, StateVector::Centre { level: 2, group: 0 }])
        .collect();
    let expected = |set: &ReplicaSet| -> Vec<Vec<f32>> {
        (0..2).flat_map(|worker| state_of(set, worker)).chain([outer.clone(), Vec::new()]).collect()
    };
    // Without second moments, then with them: other rooms, which the third and fourth use again.
    for round in 0..4 {
        let now = expected(&set);
        let pending = set.snapshot(&wanted).unwrap().unwrap();
        let centre = set.snapshot(&[StateVector::Centre { level: 0, group: 0 }]).unwrap().unwrap();
        let others = [0; 3].map(|_| set.snapshot(&wanted).unwrap().unwrap());
        assert!(set.snapshot(&wanted).unwrap().is_none(), "a sixth one at a time");
        drop(others);
        set.steps(AdamW::default(), 4).unwrap();
        let fetched = std::thread::spawn(|| pending.fetch().unwrap()).join().unwrap();
        assert!(fetched == now, "round {round}");
        assert!(centre.fetch().unwrap() == [outer.clone()]);
        assert!(expected(&set) != now, "round {round}: nothing was learnt");
    }
    let missing = set.snapshot(&[StateVector::Worker(2, StateKind::Parameters)]);
    assert!(missing.unwrap_err().to_string().contains("there are 2"));
}
