//! The engine on a GPU against the plain path in f64. Where there is no GPU, these tests say so and prove nothing.

#![allow(clippy::unwrap_used)]

use grawa_core::{
    Key, Layout, Memory, Method, Purpose, Report, Sgd, mix, norm::norm, norm::norms, plan, step::descend,
};
use grawa_nn::cuda::{Bytes, Card, Fleet, Precision, Set, Settings, Vectors, View, cards, compile};
use grawa_nn::{Builder, Conv, Error, Graph, Mode, Shape, Tape, Window, zoo};

const BATCH: usize = 6;

/// The first GPU, or a word on why nothing was tested.
fn card(test: &str) -> Option<Card> {
    let found = cards().map(|cards| cards.into_iter().next());
    if !matches!(found, Ok(Some(_))) {
        eprintln!("{test}: skipped, no GPU here ({found:?})");
    }
    found.ok().flatten()
}

fn sisters() -> Vec<(&'static str, Graph)> {
    let image = |side| Shape::image(3, side);
    vec![
        ("resnet", zoo::resnet("resnet", image(13), 2, 8, 5).unwrap()),
        ("resnet wide", zoo::resnet("resnet wide", image(13), 1, 24, 5).unwrap()),
        ("vgg", zoo::vgg("vgg", image(4), &[8, 8, 0, 12, 0], 16, 5).unwrap()),
        ("pyramidnet", zoo::pyramidnet("pyramidnet", image(9), 14, 21, 5).unwrap()),
        ("densenet", zoo::densenet("densenet", image(8), &[2, 3, 1], 4, 5).unwrap()),
        ("wide", zoo::wide("wide", image(9), 10, 1, 5).unwrap()),
        ("resnet18", zoo::resnet18("resnet18", image(12), 1, 5).unwrap()),
        ("resnet50", zoo::resnet50("resnet50", image(45), &[1, 2, 1, 1], 8, 5).unwrap()),
        ("digits", zoo::digits("digits", Shape::image(1, 8), 6, 10).unwrap()),
        ("everything", everything().unwrap()),
    ]
}

/// A network with every operation.
fn everything() -> Result<Graph, Error> {
    let mut net = Builder::new("everything", Shape::image(2, 7));
    let x = net.input();
    let x = net.conv(x, "a", Conv { out: 3, kernel: 3, stride: 2, pad: 1, bias: true })?;
    let y = net.batch_norm(x, "b")?;
    let y = net.relu(y);
    let y = net.dropout(y, 0.3)?;
    let z = net.conv(y, "c", Conv::same(3).stride(2))?;
    let shortcut = net.subsample(x, 2)?;
    let z = net.add(z, shortcut)?;
    let pooled = net.average_pool(x, Window { kernel: 2, stride: 2, pad: 0, ceil: true })?;
    let z = net.concat(z, pooled)?;
    let z = net.pad_channels(z, 1, 2);
    let z = net.max_pool(z, Window { kernel: 3, stride: 1, pad: 1, ceil: false })?;
    let other = net.global_average(z);
    let z = net.linear(z, "d", 9)?;
    let z = net.add(z, other)?;
    let z = net.linear(z, "e", 4)?;
    net.finish(z)
}

/// Parameters and statistics that keep ReLUs away from their kinks: shifts of five scales, some channels off.
fn smooth(graph: &Graph, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut draws = Key::new(seed, Purpose::Problem).stream();
    let mut parameters = graph.initial(seed);
    for span in graph.parameters().spans() {
        // Batch norm's own tensors are the vectors without a matrix of the same name before them.
        let of_norm = graph.statistics().find(&span.name().replace(".weight", ".running_mean")).is_some()
            || graph.statistics().find(&span.name().replace(".bias", ".running_mean")).is_some();
        if !of_norm {
            continue;
        }
        let range = span.range();
        for at in range.clone() {
            parameters[at] = if span.name().ends_with("weight") {
                0.75 + 0.5 * draws.unit()
            } else {
                let sign = if (at - range.start) % 4 == 0 { -1.0 } else { 1.0 };
                sign * (4.5 + draws.unit())
            };
        }
    }
    let mut statistics = graph.initial_statistics();
    statistics.iter_mut().for_each(|x| *x = 0.8 * *x + 0.3 * draws.unit());
    (parameters, statistics)
}

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
    let Some(card) = card("networks on a GPU") else { return };
    for (name, graph) in sisters() {
        let mut fleet =
            Fleet::new(&card, &graph, Settings { batch: BATCH, workers: 2, precision, fixed: true }).unwrap();
        let mut draws = Key::new(7, Purpose::Problem).stream();
        let mut batch = || -> (Vec<f32>, Vec<u32>) {
            let images = (0..BATCH * graph.input().len()).map(|_| draws.normal() as f32).collect();
            (images, (0..BATCH).map(|_| draws.below(graph.classes() as u64) as u32).collect())
        };
        let batches = [batch(), batch()];
        let states = [smooth(&graph, 1), smooth(&graph, 2)];
        fleet.show(&[(&batches[0].0, &batches[0].1), (&batches[1].0, &batches[1].1)]).unwrap();
        for mode in [
            Mode::Train { dropout: None },
            Mode::Train { dropout: Some(Key::new(3, Purpose::Dropout)) },
            Mode::Evaluate,
        ] {
            for (worker, (parameters, statistics)) in states.iter().enumerate() {
                fleet.load(worker, parameters, statistics).unwrap();
            }
            let outcomes = fleet.gradient(mode, 0.5, true).unwrap();
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
                judge("logits", error(&fleet.logits(worker).unwrap(), tape.logits()), bounds.logits);
                judge("gradient", error(&fleet.gradient_of(worker).unwrap(), &gradient), bounds.gradient);
                if !tracked.is_empty() {
                    judge(
                        "statistics",
                        error(&fleet.statistics(worker).unwrap(), &tracked),
                        bounds.statistics,
                    );
                }
                let again: Vec<u32> =
                    fleet.gradient_of(worker).unwrap().iter().map(|x| x.to_bits()).collect();
                if worker == 1 {
                    for (worker, (parameters, statistics)) in states.iter().enumerate() {
                        fleet.load(worker, parameters, statistics).unwrap();
                    }
                    fleet.gradient(mode, 0.5, true).unwrap();
                    let twice = fleet.gradient_of(1).unwrap();
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
fn f32_agrees_with_the_plain_path() {
    agrees(Precision::F32, &Bounds { loss: 1e-5, logits: 1e-5, gradient: 1e-4, statistics: 1e-5 });
}

#[test]
fn tf32_agrees_within_its_own_bounds() {
    agrees(Precision::Tf32, &Bounds { loss: 5e-3, logits: 1e-2, gradient: 3e-2, statistics: 5e-3 });
}

#[test]
fn bf16_agrees_within_its_own_bounds() {
    agrees(Precision::Bf16, &Bounds { loss: 3e-2, logits: 6e-2, gradient: 0.2, statistics: 2e-2 });
}

/// Steps, norms and rounds on the card against those of grawa-core on the same gradients.
#[test]
fn steps_and_rounds_are_those_of_the_cpu() {
    let Some(card) = card("steps and rounds on a GPU") else { return };
    let graph = zoo::resnet("resnet", Shape::image(3, 9), 1, 8, 5).unwrap();
    let settings = Settings { batch: BATCH, workers: 3, precision: Precision::F32, fixed: true };
    let mut fleet = Fleet::new(&card, &graph, settings).unwrap();
    let mut draws = Key::new(7, Purpose::Problem).stream();
    let images: Vec<f32> = (0..BATCH * graph.input().len()).map(|_| draws.normal() as f32).collect();
    let labels = [0, 1, 2, 3, 4, 0];
    fleet.show(&[(images.as_slice(), labels.as_slice()); 3]).unwrap();
    let mut workers: Vec<(Vec<f32>, Vec<f32>)> =
        (0..3).map(|seed| (smooth(&graph, seed).0, vec![0.0; graph.parameters().len()])).collect();
    for (worker, (parameters, _)) in workers.iter().enumerate() {
        fleet.load(worker, parameters, &graph.initial_statistics()).unwrap();
    }
    let mut centre = workers[0].0.clone();
    fleet.load_centre(0, 0, &centre).unwrap();
    let close = |what: &str, found: &[f32], expected: &[f32]| {
        let off = error(found, &wide(expected));
        assert!(off < 1e-6, "{what}: off by {off:.2e}");
    };
    let layout: &Layout = graph.parameters();
    fleet.gradient(Mode::Train { dropout: None }, 1.0, false).unwrap();
    fleet.ascend(0.5).unwrap();
    for (worker, (parameters, _)) in workers.iter().enumerate() {
        let (mut moved, mut saved) = (parameters.clone(), parameters.clone());
        grawa_core::step::ascend(0.5, &mut moved, &mut saved, &fleet.gradient_of(worker).unwrap()).unwrap();
        close("the ascent", &fleet.parameters(worker).unwrap(), &moved);
    }
    fleet.restore().unwrap();
    for (worker, (parameters, _)) in workers.iter().enumerate() {
        assert_eq!(fleet.parameters(worker).unwrap(), *parameters, "worker {worker} came back elsewhere");
    }
    let methods = ["lgrawa", "mgrawa:pull=1", "easgd", "lsgd", "mean"];
    for (round, method) in methods.into_iter().enumerate() {
        let sgd = Sgd { nesterov: round % 2 == 0, ..Sgd::default() };
        fleet.place(Key::new(5, Purpose::Augment).step(round as u64), &[0.05], [0.1, 0.0]).unwrap();
        fleet.learn().unwrap();
        let found = fleet.norms().unwrap();
        let gradients: Vec<Vec<f32>> = (0..3).map(|worker| fleet.gradient_of(worker).unwrap()).collect();
        // The step computes the same gradient once more and uses it at once; or it uses the one at hand.
        match round % 2 {
            0 => fleet.steps(sgd, 1).unwrap(),
            _ => fleet.descend(sgd).unwrap(),
        }
        for ((worker, (parameters, velocity)), gradient) in workers.iter_mut().enumerate().zip(gradients) {
            let prox = grawa_core::Prox { centre: centre.as_slice(), strength: 0.1 };
            descend(&sgd, 0.05, parameters, velocity, &gradient, &[prox]).unwrap();
            close("the step", &fleet.parameters(worker).unwrap(), parameters);
            close("the velocity", &fleet.velocity(worker).unwrap(), velocity);
            let mut expected = vec![0.0; layout.spans().len()];
            norms(layout, &gradient, &mut expected).unwrap();
            for (found, expected) in found[worker].iter().zip(&expected) {
                assert!((found - expected).abs() <= 1e-12 + 1e-9 * expected, "{found} and {expected}");
            }
            // The next round starts from the same bits on both sides.
            parameters.copy_from_slice(&fleet.parameters(worker).unwrap());
            velocity.copy_from_slice(&fleet.velocity(worker).unwrap());
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
        let decided = plan(&method, layout, &Memory::default(), &reports).unwrap();
        fleet.mix(&decided, (0, 0), 0, Vectors::Parameters).unwrap();
        let mut vectors: Vec<&mut [f32]> = workers.iter_mut().map(|worker| worker.0.as_mut_slice()).collect();
        mix(&decided, layout, &mut vectors, &mut centre).unwrap();
        close("the centre", &fleet.centre(0, 0).unwrap().unwrap(), &centre);
        for (worker, (parameters, _)) in workers.iter_mut().enumerate() {
            close("a pulled worker", &fleet.parameters(worker).unwrap(), parameters);
            parameters.copy_from_slice(&fleet.parameters(worker).unwrap());
        }
        centre.copy_from_slice(&fleet.centre(0, 0).unwrap().unwrap());
    }
}

/// Every kernel compiles for the oldest architecture we serve and for the one we measure on. Needs the compiler, no GPU;
/// `.ci/run` brings it.
#[test]
fn kernels_compile() {
    for architecture in ["sm_80", "sm_90"] {
        for narrow in [false, true] {
            match compile(architecture, narrow) {
                Ok(code) => assert!(code.starts_with(b"\x7fELF"), "{architecture}: not machine code"),
                Err(error @ Error::LibraryMissing { .. }) => return eprintln!("kernels: skipped, {error}"),
                Err(error) => panic!("{architecture}, bf16 {narrow}: {error}"),
            }
        }
    }
}

/// Batches from the data on the card are those that grawa-data fills, bit by bit.
#[test]
fn batches_are_those_of_the_cpu() {
    use grawa_data::{Augment, Feed, Kind, Order};
    let Some(card) = card("batches on a GPU") else { return };
    let mut draws = Key::new(9, Purpose::Problem).stream();
    let examples = 50;
    let bytes: Vec<u8> = (0..examples * 3 * 32 * 32).map(|_| draws.word() as u8).collect();
    let labels: Vec<u32> = (0..examples).map(|_| draws.below(10) as u32).collect();
    let shape = grawa_data::Shape::new(3, 32, 32);
    let part = grawa_data::Part::from_bytes(shape, bytes.clone(), labels.clone(), 10).unwrap();
    for text in ["flip+crop28", "flip+pad4crop32", "none"] {
        let augment: Augment = text.parse().unwrap();
        let feed = Feed::new(&part, &Kind::Cifar10.normalise(), augment).unwrap();
        let side = feed.output().height as usize;
        let graph = zoo::resnet("resnet", Shape::image(3, side), 1, 8, 10).unwrap();
        let settings = Settings { batch: 16, workers: 2, precision: Precision::F32, fixed: true };
        let mut fleet = Fleet::new(&card, &graph, settings).unwrap();
        let crop = match augment.crop {
            grawa_data::Crop::Random { pad, .. } => Some(pad),
            _ => None,
        };
        let data = Bytes { shape: Shape::image(3, 32), images: &bytes, labels: &labels, table: feed.table() };
        fleet.hold(Set::Train, data, View { flip: augment.flip, crop }, 4).unwrap();
        let order = Order::new(36, examples, 2, 16).unwrap();
        for worker in 0..2 {
            fleet.load(worker, &graph.initial(1), &graph.initial_statistics()).unwrap();
            let dealt: Vec<u32> =
                (100..103).flat_map(|step| order.batch(worker as u32, step).unwrap()).collect();
            fleet.deal(Set::Train, worker, &dealt).unwrap();
        }
        fleet.place(Key::new(36, Purpose::Augment).step(100), &[0.01], [0.0; 2]).unwrap();
        for step in 100..103 {
            fleet.steps(Sgd::default(), 1).unwrap();
            for worker in 0..2u32 {
                let (found, found_labels) = fleet.batch(worker as usize).unwrap();
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
fn it_learns() {
    let Some(card) = card("learning on a GPU") else { return };
    let graph = zoo::resnet("resnet", Shape::image(3, 8), 1, 16, 10).unwrap();
    for precision in [Precision::F32, Precision::Bf16] {
        let settings = Settings { batch: 32, workers: 4, precision, fixed: true };
        let mut fleet = Fleet::new(&card, &graph, settings).unwrap();
        let mut draws = Key::new(7, Purpose::Problem).stream();
        let images: Vec<f32> = (0..32 * graph.input().len()).map(|_| draws.normal() as f32).collect();
        let labels: Vec<u32> = (0..32).map(|_| draws.below(10) as u32).collect();
        fleet.show(&[(images.as_slice(), labels.as_slice()); 4]).unwrap();
        for worker in 0..4 {
            fleet.load(worker, &graph.initial(worker as u64), &graph.initial_statistics()).unwrap();
        }
        fleet.place(Key::new(5, Purpose::Augment), &[0.05], [0.0; 2]).unwrap();
        let before = fleet.forward(Mode::Train { dropout: None }).unwrap();
        fleet.steps(Sgd::default(), 60).unwrap();
        let after = fleet.forward(Mode::Train { dropout: None }).unwrap();
        for (before, after) in before.iter().zip(&after) {
            assert!(
                after.loss < 0.2 * before.loss && after.correct >= 30,
                "{precision}: {before:?}, then {after:?}"
            );
        }
    }
}
