//! Small variants of every network against PyTorch in f64 (`oracle/fixtures.py`), and against finite differences.

#![allow(clippy::unwrap_used)]

mod networks;

use grawa_core::{Key, Purpose, norm::norm};
use grawa_nn::{Arena, Builder, Conv, Graph, Mode, Program, Scalar, Shape, Tape, Tensors, zoo};
use networks::{all_networks, everything, plain_operations, small_networks, smooth};
use std::path::Path;

const BATCH: usize = 6;

/// Numbers in [−1, 1), the same as in the script.
fn filled(count: usize, stream: u64) -> Vec<f64> {
    let number = |index: u64| {
        ((index * 2_654_435_761 + stream * 40_503 * 65_537) % 4_294_967_296) as f64 / 2_147_483_648.0 - 1.0
    };
    (1..=count as u64).map(number).collect()
}

/// Parameters and statistics, the same as in the script.
fn fill(graph: &Graph) -> (Vec<f32>, Vec<f32>) {
    let mut stream = 0;
    let (mut parameters, mut statistics) = (Vec::new(), Vec::new());
    for span in graph.parameters().spans() {
        stream += 1;
        let fan_in = span.len() / span.shape()[0];
        let value = |u: f64| match span.shape().len() {
            2.. => u * (3.0 / fan_in as f64).sqrt(),
            _ if span.name().ends_with("weight") => 1.0 + 0.5 * u,
            _ => 0.3 * u,
        };
        parameters.extend(filled(span.len(), stream).into_iter().map(|u| value(u) as f32));
    }
    for span in graph.statistics().spans() {
        stream += 1;
        let is_variance = span.name().ends_with("var");
        statistics.extend(
            filled(span.len(), stream)
                .into_iter()
                .map(|u| (if is_variance { 1.0 + 0.5 * u } else { 0.2 * u }) as f32),
        );
    }
    (parameters, statistics)
}

/// ‖found − expected‖ / ‖expected‖.
fn error<T: Scalar>(found: &[T], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let difference: Vec<f32> =
        found.iter().zip(expected).map(|(&a, &b)| (a - T::of(b.into())).wide() as f32).collect();
    norm(&difference) / norm(expected)
}

/// Forward values within one bound, gradients within another.
fn agrees<T: Scalar>(within: f64, gradients_within: f64) {
    for (name, graph) in small_networks() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.safetensors"));
        let expected = Tensors::read(&path, name).unwrap();
        let (parameters, statistics) = fill(&graph);
        let of = |x: &[f32]| x.iter().map(|&x| T::of(x.into())).collect::<Vec<T>>();
        let (parameters, mut statistics) = (of(&parameters), of(&statistics));
        let images: Vec<T> = filled(BATCH * graph.input().len(), 1000)
            .into_iter()
            .map(|u| T::of(f64::from((2.0 * u) as f32)))
            .collect();
        let labels: Vec<u32> = (0..BATCH).map(|i| (i * 7 % graph.classes()) as u32).collect();
        let bounded = |what: &str, error: f64, bound: f64| {
            assert!(error <= bound, "{name}: {what} is off by {error:.2e}")
        };
        let judge = |what: &str, error: f64| bounded(what, error, within);

        let tape =
            Tape::forward(&graph, &parameters, &statistics, &images, Mode::Train { dropout: None }).unwrap();
        judge("logits", error(tape.logits(), expected.f32("logits", &[BATCH, graph.classes()]).unwrap()));
        let (loss, gradient) = tape.backward(&parameters, &labels, 1.0).unwrap();
        judge("loss", (loss / f64::from(expected.f32("loss_sum", &[1]).unwrap()[0]) - 1.0).abs());

        let evaluated = Tape::forward(&graph, &parameters, &statistics, &images, Mode::Evaluate).unwrap();
        tape.track(&mut statistics).unwrap();
        for span in graph.statistics().spans() {
            let name = format!("buffer_after.{}", span.name());
            judge(&name, error(&statistics[span.range()], expected.f32(&name, span.shape()).unwrap()));
        }
        let total = norm(&gradient.iter().map(|g| g.wide() as f32).collect::<Vec<_>>());
        for (k, span) in graph.parameters().spans().iter().enumerate() {
            let found: Vec<f32> = gradient[span.range()].iter().map(|g| g.wide() as f32).collect();
            let stored = |kind: &str, len: usize| {
                expected.f32(&format!("{kind}.{}", span.name()), &[len]).unwrap().to_vec()
            };
            // Errors in proportion to the whole gradient: a bias before batch norm has none of its own.
            let scaled = |what: &str, difference: f64| {
                bounded(&format!("{what} of {}", span.name()), difference.abs() / total, gradients_within);
            };
            scaled("norm", norm(&found) - f64::from(stored("norm", 1)[0]));
            let product: f64 =
                found.iter().zip(filled(found.len(), 2000 + k as u64)).map(|(&g, u)| f64::from(g) * u).sum();
            scaled("product", product - f64::from(stored("product", 1)[0]));
            for (g, e) in found.iter().zip(stored("head", found.len().min(32))) {
                scaled("number", f64::from(g - e));
            }
        }
        // After the pass: PyTorch evaluated with the statistics that training left.
        let after = Tape::forward(&graph, &parameters, &statistics, &images, Mode::Evaluate).unwrap();
        judge(
            "logits_eval",
            error(after.logits(), expected.f32("logits_eval", &[BATCH, graph.classes()]).unwrap()),
        );
        assert_ne!(evaluated.logits(), after.logits());
    }
}

#[test]
fn the_plain_path_in_f64_is_pytorch() {
    // The fixtures are stored in f32.
    agrees::<f64>(3e-7, 3e-7);
}

#[test]
fn the_plain_path_in_f32_is_close_to_it() {
    // Single ReLUs flip in the last bit of any f32 engine, and move gradients more than values.
    agrees::<f32>(1e-5, 1e-2);
}

/// The gradient of every operation against finite differences of the loss, in f64, in all modes.
#[test]
fn gradients_are_those_of_the_loss() {
    gradients_are_right(&everything(false));
    gradients_are_right(&plain_operations());
}

fn gradients_are_right(graph: &Graph) {
    let mut draws = Key::new(5, Purpose::Problem).stream();
    let mut some = |len: usize| (0..len).map(|_| draws.normal()).collect::<Vec<f64>>();
    let parameters: Vec<f64> = some(graph.parameters().len()).iter().map(|x| 0.4 * x).collect();
    let statistics: Vec<f64> = some(graph.statistics().len()).iter().map(|x| 1.0 + 0.2 * x.abs()).collect();
    let (images, labels) = (some(3 * graph.input().len()), [1, 3, 0]);
    for mode in [
        Mode::Train { dropout: None },
        Mode::Train { dropout: Some(Key::new(9, Purpose::Dropout)) },
        Mode::Evaluate,
    ] {
        let loss_at = |parameters: &[f64]| {
            let tape = Tape::forward(graph, parameters, &statistics, &images, mode).unwrap();
            tape.backward(parameters, &labels, 1.0 / 3.0).unwrap()
        };
        let (_, gradient) = loss_at(&parameters);
        let mut moved = parameters.clone();
        for (index, span) in graph.parameters().spans().iter().enumerate() {
            // Some numbers of every tensor.
            for at in span.range().step_by(1 + span.len() / 5) {
                let step = 1e-6;
                let mut side = |by: f64| {
                    moved[at] = parameters[at] + by;
                    loss_at(&moved).0
                };
                let slope = (side(step) - side(-step)) / (2.0 * step) / 3.0;
                moved[at] = parameters[at];
                assert!(
                    (slope - gradient[at]).abs() < 1e-7 * (1.0 + slope.abs()),
                    "{mode:?}, tensor {index}: {slope} and {}",
                    gradient[at]
                );
            }
        }
    }
}

#[test]
fn dropout_drops_its_share_and_keeps_the_mean() {
    let mut net = Builder::new("drop", Shape::vector(1));
    let x = net.input();
    let x = net.dropout(x, 0.3).unwrap();
    let graph = net.finish(x).unwrap();
    let images = vec![1.0f64; 100_000];
    let drop = |seed| {
        Tape::forward(
            &graph,
            &[],
            &[],
            &images,
            Mode::Train { dropout: Some(Key::new(seed, Purpose::Dropout)) },
        )
        .unwrap()
    };
    let kept = drop(1).logits().to_vec();
    let share = kept.iter().filter(|&&x| x == 0.0).count() as f64 / 1e5;
    assert!((share - 0.3).abs() < 0.01, "{share}");
    assert!(kept.iter().all(|&x| x == 0.0 || (x - 1.0 / 0.7).abs() < 1e-12));
    assert_eq!(drop(1).logits(), kept);
    assert_ne!(drop(2).logits(), kept);
}

#[test]
fn what_does_not_fit_is_an_error() {
    let graph = zoo::digits("digits", Shape::image(1, 8), 2, 10).unwrap();
    let (p, s) = (graph.initial(1), graph.initial_statistics());
    let mode = Mode::Train { dropout: None };
    assert!(Tape::forward(&graph, &p[1..], &s, &[0.0; 64], mode).is_err());
    assert!(Tape::forward(&graph, &p, &s[1..], &[0.0; 64], mode).is_err());
    assert!(Tape::forward(&graph, &p, &s, &[0.0; 65], mode).is_err());
    assert!(Tape::forward(&graph, &p, &s, &[], mode).is_err());
    let tape = Tape::forward(&graph, &p, &s, &[0.0; 128], mode).unwrap();
    assert!(tape.backward(&p, &[1], 1.0).is_err());
    assert!(
        tape.backward(&p, &[1, 10], 1.0)
            .unwrap_err()
            .to_string()
            .contains("label 10 of example 1 names no class")
    );
    assert!(everything(false).to_string().contains("conv 3×3 /2 a"));
}

/// A batch norm that is added to its own input: both contributions go to one gradient.
fn added_to_its_input() -> Graph {
    let mut net = Builder::new("its own input", Shape::image(2, 5));
    let x = net.input();
    let x = net.conv(x, "a", Conv::same(4)).unwrap();
    let y = net.batch_norm(x, "b").unwrap();
    let y = net.add(x, y).unwrap();
    let y = net.relu(y);
    let y = net.linear(y, "c", 3).unwrap();
    net.finish(y).unwrap()
}

/// Convolutions, batch norms, sums and ReLUs, each on arbitrary earlier results: on one of the last three, so that the network is
/// deep.
fn random_network(seed: u64) -> Graph {
    let mut draws = Key::new(seed, Purpose::Problem).stream();
    let mut net = Builder::new("random", Shape::image(3, 4 + seed as usize % 5));
    // One block, one and a part, and so many that threads share the sums of weight gradients.
    let width = [16, 16, 20, 64][draws.below(4) as usize];
    let mut made = vec![net.conv(net.input(), "first", Conv::same(width)).unwrap()];
    for number in 0..4 + draws.below(14) {
        let mut one = || made[made.len() - 1 - draws.below(made.len().min(3) as u64) as usize];
        let (a, b, name) = (one(), one(), number.to_string());
        made.push(match draws.below(9) {
            0 => net.relu(a),
            1 => net.add(a, b).unwrap(),
            2 => net.conv(a, &name, Conv::same(width).biased()).unwrap(),
            3 => net.conv(a, &name, Conv::point(width)).unwrap(),
            4 | 5 => net.conv(a, &name, Conv::same(width)).unwrap(),
            _ => net.batch_norm(a, &name).unwrap(),
        });
    }
    let last = net.global_average(made[made.len() - 1]);
    let last = net.linear(last, "last", 3).unwrap();
    net.finish(last).unwrap()
}

/// The compiled program against the plain path in f64, on every network, in every mode, with one and three threads.
#[test]
fn compiled_programs_agree_with_the_plain_path() {
    let own_input = ("its own input", added_to_its_input());
    for (name, graph) in all_networks().into_iter().chain([own_input]) {
        // Smooth values keep every ReLU behind a batch norm away from its kink; on others f32 and f64 may disagree about single ReLUs.
        agrees_with_the_plain_path(name, &graph, BATCH, smooth(&graph, 1), 1e-4);
        agrees_with_the_plain_path(name, &graph, BATCH, fill(&graph), 1e-2);
    }
}

/// Batch norms run inside the convolutions next to them, and gradients share buffers: whatever reads what.
#[test]
fn compiled_random_networks_agree_with_the_plain_path() {
    for seed in 0..150 {
        // With 37 images a group for weight gradients has two.
        let batch = if seed % 10 == 9 { 37 } else { 1 + seed as usize % 4 };
        let graph = random_network(seed);
        agrees_with_the_plain_path(&format!("network {seed}"), &graph, batch, fill(&graph), 1e-2);
    }
}

/// `values` are parameters and statistics, `most` is the largest relative error of the gradient.
fn agrees_with_the_plain_path(
    name: &str,
    graph: &Graph,
    batch: usize,
    (parameters, statistics): (Vec<f32>, Vec<f32>),
    most: f64,
) {
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let images: Vec<f32> =
        filled(batch * graph.input().len(), 1000).into_iter().map(|u| (2.0 * u) as f32).collect();
    let labels: Vec<u32> = (0..batch).map(|i| (i * 7 % graph.classes()) as u32).collect();
    let program = Program::compile(graph, batch).unwrap();
    let mut arenas = [1, 3].map(|threads| Arena::new(&program, threads).unwrap());
    for mode in [
        Mode::Train { dropout: None },
        Mode::Train { dropout: Some(Key::new(3, Purpose::Dropout)) },
        Mode::Evaluate,
    ] {
        let tape =
            Tape::forward(graph, &wide(&parameters), &wide(&statistics), &wide(&images), mode).unwrap();
        let (loss, gradient) = tape.backward(&wide(&parameters), &labels, 0.5).unwrap();
        let mut tracked = wide(&statistics);
        tape.track(&mut tracked).unwrap();
        let mut first: Option<Vec<f32>> = None;
        for arena in &mut arenas {
            let mut found = vec![f32::NAN; parameters.len()];
            let sum = program
                .gradient(arena, (&parameters, &statistics), (&images, &labels), mode, 0.5, &mut found)
                .unwrap();
            assert!((sum / loss - 1.0).abs() < 1e-5, "{name} {mode:?}: loss {sum} and {loss}");
            let narrow: Vec<f32> = gradient.iter().map(|&g| g as f32).collect();
            let off = error(&found, &narrow);
            assert!(off < most, "{name} {mode:?}: gradient off by {off:.2e}");
            let mut running = statistics.clone();
            program.track(arena, &mut running).unwrap();
            let off = if running.is_empty() {
                0.0
            } else {
                error(&running, &tracked.iter().map(|&x| x as f32).collect::<Vec<_>>())
            };
            assert!(off < 1e-5, "{name} {mode:?}: statistics off by {off:.2e}");
            assert!(
                first
                    .get_or_insert(found.clone())
                    .iter()
                    .map(|x| x.to_bits())
                    .eq(found.iter().map(|x| x.to_bits())),
                "{name}: threads change bits"
            );
        }
    }
}
