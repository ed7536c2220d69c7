//! Small networks against their dense Hessians, computed by PyTorch in f64 (`oracle/flatness.py`).

#![allow(clippy::unwrap_used)]

use grawa_core::norm::norm;
use grawa_core::{Key, Purpose};
use grawa_flat::{
    Engine, Examples, Hessian, Line, Losses, Plane, Settings, filter_normalised, measure, power, sharpness,
};
use grawa_nn::{Graph, Mode, Shape, State, Tensors, zoo};
use std::path::Path;

const CPU: Engine = Engine::Cpu { threads: 2 };
const MODES: [(&str, Mode); 2] = [("train", Mode::Train { dropout: None }), ("eval", Mode::Evaluate)];

/// Numbers in [−1, 1), the same as in the script.
fn filled(count: usize, stream: u64) -> Vec<f64> {
    let number = |index: u64| {
        ((index * 2_654_435_761 + stream * 40_503 * 65_537) % 4_294_967_296) as f64 / 2_147_483_648.0 - 1.0
    };
    (1..=count as u64).map(number).collect()
}

/// A network, its state and examples, the same as in the script, and what PyTorch found.
struct Case {
    graph: Graph,
    state: State,
    examples: Examples,
    expected: Tensors,
}

impl Case {
    fn all() -> Vec<Self> {
        let digits = zoo::digits("digits", Shape::image(1, 8), 2, 10).unwrap();
        let resnet = zoo::resnet("resnet", Shape::image(3, 8), 1, 2, 5).unwrap();
        [digits, resnet].into_iter().map(Case::new).collect()
    }

    fn new(graph: Graph) -> Self {
        let (mut parameters, mut statistics, mut stream) = (Vec::new(), Vec::new(), 0);
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
            let value = |u: f64| if span.name().ends_with("var") { 1.0 + 0.5 * u } else { 0.2 * u };
            statistics.extend(filled(span.len(), stream).into_iter().map(|u| value(u) as f32));
        }
        let count = 24;
        let images =
            filled(count * graph.input().len(), 1000).into_iter().map(|u| (2.0 * u) as f32).collect();
        let labels = (0..count).map(|i| (i * 7 % graph.classes()) as u32).collect();
        let path = format!("tests/fixtures/{}.safetensors", graph.name());
        let expected =
            Tensors::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path), graph.name()).unwrap();
        let state = State { parameters, statistics, batches: 0 };
        Case { examples: Examples::new(images, labels, 6).unwrap(), state, graph, expected }
    }

    fn hessian(&self, mode: Mode, memory: usize) -> Hessian<'_> {
        Hessian::new(&self.graph, &self.state, &self.examples, mode, CPU, memory).unwrap()
    }

    fn number(&self, mode: &str, name: &str) -> f64 {
        self.expected.f32(&format!("{mode}.{name}"), &[1]).unwrap()[0].into()
    }

    fn numbers(&self, mode: &str, name: &str) -> &[f32] {
        self.expected.f32(&format!("{mode}.{name}"), &[self.state.parameters.len()]).unwrap()
    }
}

fn near(what: &str, found: f64, expected: f64, within: f64) {
    assert!((found / expected - 1.0).abs() <= within, "{what}: {found} and {expected}");
}

#[test]
fn products_losses_and_gradients_are_pytorchs() {
    for case in Case::all() {
        for (name, mode) in MODES {
            let mut hessian = case.hessian(mode, usize::MAX);
            near("loss", hessian.loss(), case.number(name, "loss"), 1e-5);
            near("gradient", norm(hessian.gradient()), case.number(name, "gradient"), 1e-4);
            let v: Vec<f64> = filled(hessian.len(), 77);
            let length = v.iter().map(|x| x * x).sum::<f64>().sqrt();
            let v: Vec<f32> = v.iter().map(|x| (x / length) as f32).collect();
            let mut product = vec![0.0; v.len()];
            hessian.apply(&v, &mut product).unwrap();
            let expected = case.numbers(name, "product");
            let gap: Vec<f32> = product.iter().zip(expected).map(|(a, b)| a - b).collect();
            let off = norm(&gap) / norm(expected);
            assert!(off < 1e-5, "{} {name}: off by {off:.1e}", case.graph.name());
            // With nothing kept every batch is visited again: the same bits.
            let mut poor = case.hessian(mode, 0);
            assert_eq!((hessian.kept(), poor.kept()), ((4, 4), (0, 4)));
            assert!(poor.bytes() < hessian.bytes());
            let mut again = vec![0.0; v.len()];
            poor.apply(&v, &mut again).unwrap();
            assert!(product.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}

#[test]
fn figures_are_those_of_the_dense_hessian() {
    for case in Case::all() {
        for (name, mode) in MODES {
            let settings = Settings { mode, engine: CPU, ..Settings::default() };
            let mut reports = 0;
            let found =
                measure(&case.graph, &case.state, &case.examples, &settings, || reports += 1).unwrap();
            assert_eq!(reports, settings.work());
            let values: Vec<f64> = case.numbers(name, "eigenvalues").iter().map(|&x| x.into()).collect();
            for run in &found.ritz {
                for (k, (ritz, known)) in run.values.iter().rev().zip(values.iter().rev()).take(5).enumerate()
                {
                    near(&format!("{} {name}: eigenvalue {k}", case.graph.name()), *ritz, *known, 1e-3);
                }
            }
            near("largest", found.largest().value, *values.last().unwrap(), 1e-4);
            near("smallest", found.smallest().value, values[0], 1e-2);
            near("layers", found.layers, case.number(name, "layers"), 1e-4);
            near("gradient", found.gradient, case.number(name, "gradient"), 1e-4);
            let inside = |what: &str, found: grawa_flat::Estimate, known: f64| {
                assert!(
                    (found.value - known).abs() <= 1.5 * found.error,
                    "{what}: {} and {known}",
                    found.text()
                );
            };
            inside("trace", found.trace(), case.number(name, "trace"));
            inside("Frobenius norm", found.frobenius(), case.number(name, "frobenius"));
            assert!(found.ritz_norm().value <= 1.01 * case.number(name, "frobenius"));
        }
    }
}

#[test]
fn figures_do_not_depend_on_threads_or_memory() {
    let case = &Case::all()[0];
    let with = |threads, memory| {
        let engine = Engine::Cpu { threads };
        let settings = Settings { steps: 20, draws: 2, extra: 2, engine, memory, ..Settings::default() };
        measure(&case.graph, &case.state, &case.examples, &settings, || ()).unwrap()
    };
    let (one, three) = (with(1, 4 << 30), with(3, 1 << 20));
    assert_eq!(one.kept.0, 4);
    assert!(three.kept.0 < 4);
    assert_eq!((one.ritz, one.forms, one.sharpness), (three.ritz, three.forms, three.sharpness));
    let poor = Settings { memory: 1000, ..Settings::default() };
    let refused = measure(&case.graph, &case.state, &case.examples, &poor, || ()).unwrap_err();
    assert!(refused.to_string().contains("100 steps on 752 parameters need 1 MB"), "{refused}");
}

#[test]
fn power_iteration_finds_the_largest_in_size() {
    for case in Case::all() {
        let mut hessian = case.hessian(Mode::Evaluate, usize::MAX);
        let values = case.numbers("eval", "eigenvalues");
        let largest = values.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max);
        let len = hessian.len();
        let key = Key::new(1, Purpose::Direction);
        let found = power(|v, out| hessian.apply(v, out), key, len, 1e-3, 2000).unwrap();
        near("eigenvalue", found.value.abs(), largest, 1e-3);
    }
}

#[test]
fn a_small_box_is_a_plane() {
    let case = &Case::all()[0];
    let mut losses = Losses::new(&case.graph, &case.examples, Mode::Evaluate, CPU).unwrap();
    let (x, statistics) = (&*case.state.parameters, &*case.state.statistics);
    let mut gradient = vec![0.0; x.len()];
    let loss = losses.gradient(x, statistics, &mut gradient).unwrap();
    near("loss", losses.at(x, statistics).unwrap().loss, loss, 1e-6);
    let radius = 1e-5;
    let found = sharpness(&mut losses, (x, statistics), radius, 3, || ()).unwrap();
    let plane: f64 =
        gradient.iter().zip(x).map(|(g, x)| radius * f64::from(g.abs()) * f64::from(x.abs() + 1.0)).sum();
    near("value", found, 100.0 * plane / (1.0 + loss), 2e-2);
    let wider = sharpness(&mut losses, (x, statistics), 1e-3, 10, || ()).unwrap();
    assert!(wider > 50.0 * found);
}

#[test]
fn slices_pass_through_the_states() {
    let case = &Case::all()[1];
    let other = State::initial(&case.graph, 3);
    for (_, mode) in MODES {
        let mut losses = Losses::new(&case.graph, &case.examples, mode, CPU).unwrap();
        let mut here = |state: &State| losses.at(&state.parameters, &state.statistics).unwrap();
        let ends = [here(&case.state), here(&other)];
        let line = Line::between(&mut losses, &case.state, &other, vec![-0.5, 0.0, 0.5, 1.0], || ()).unwrap();
        assert_eq!([line.values[1], line.values[3]], ends);
        assert!(Line::between(&mut losses, &other, &other, vec![0.0], || ()).is_err());
        let key = Key::new(2, Purpose::Direction);
        let direction = |n| filter_normalised(case.graph.parameters(), &case.state.parameters, key.step(n));
        let places = [vec![-0.5, 0.0, 0.5], vec![0.0, 1.0]];
        let mut count = 0;
        let plane =
            Plane::around(&mut losses, &case.state, &[direction(0), direction(1)], places, || count += 1)
                .unwrap();
        assert_eq!((plane.values.len(), count), (6, 6));
        assert_eq!(plane.values[1], ends[0]);
        assert_ne!(plane.values[0], plane.values[2]);
    }
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let case = &Case::all()[0];
    let text = Examples::new(vec![0.0; 640], vec![0; 10], 4).unwrap_err().to_string();
    assert!(text.contains("10 examples do not make whole batches of 4"), "{text}");
    let wrong = Examples::new(vec![0.0; 100], vec![0; 10], 5).unwrap();
    let text = Losses::new(&case.graph, &wrong, Mode::Evaluate, CPU).unwrap_err().to_string();
    assert!(text.contains("hold 10 numbers each, but digits takes 64"), "{text}");
    let lost = State { parameters: vec![f32::NAN; case.state.parameters.len()], ..case.state.clone() };
    let text =
        Hessian::new(&case.graph, &lost, &case.examples, Mode::Evaluate, CPU, 0).unwrap_err().to_string();
    assert!(text.contains("not finite"), "{text}");
    let none = Settings { steps: 0, ..Settings::default() };
    assert!(measure(&case.graph, &case.state, &case.examples, &none, || ()).is_err());
}
