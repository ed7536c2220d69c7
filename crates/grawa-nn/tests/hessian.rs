//! Products with the Hessian: the plain path's in f64 against finite differences of its gradients, and the compiled engine's
//! against the plain path's.

#![allow(clippy::unwrap_used)]

mod networks;

use grawa_core::{Key, Purpose, norm::norm};
use grawa_nn::{Curvature, Dual, Graph, Mode, Shape, Tape, zoo};
use networks::{all_networks, everything};

const BATCH: usize = 6;

/// Small variants of every network, one with every operation, and one with those that have only their plain form.
fn networks() -> Vec<Graph> {
    let all = all_networks().into_iter().filter(|(name, _)| *name != "everything");
    all.map(|(_, graph)| graph).chain([everything(true)]).collect()
}

/// A network's parameters, statistics, images, labels, and a direction. Batch norms followed by a ReLU stay clearly on one
/// side of its kink, as in `oracle/values.py --smooth`: a sign that rounding flips would hide every smaller error.
struct Case {
    parameters: Vec<f32>,
    statistics: Vec<f32>,
    images: Vec<f32>,
    labels: Vec<u32>,
    vector: Vec<f32>,
}

impl Case {
    fn new(graph: &Graph, seed: u64) -> Self {
        let mut draws = Key::new(seed, Purpose::Problem).stream();
        let mut some =
            |len: usize, scale: f64| (0..len).map(|_| (scale * draws.normal()) as f32).collect::<Vec<_>>();
        let mut parameters = graph.initial(seed);
        for pair in graph.parameters().spans().windows(2) {
            let is_norm = pair[0].shape().len() == 1 && pair[0].name().ends_with("weight");
            if is_norm {
                parameters[pair[0].range()]
                    .copy_from_slice(&some(pair[0].len(), 0.2).iter().map(|x| 1.0 + x).collect::<Vec<_>>());
                for (place, at) in pair[1].range().enumerate() {
                    parameters[at] = if place % 4 == 0 { -5.0 } else { 5.0 };
                }
            }
        }
        let statistics = some(graph.statistics().len(), 0.2).iter().map(|x| 1.0 + x.abs()).collect();
        let images = some(BATCH * graph.input().len(), 1.0);
        let labels = (0..BATCH).map(|i| (i * 7 % graph.classes()) as u32).collect();
        let vector = some(parameters.len(), 1.0);
        let length = norm(&vector) as f32;
        Case { parameters, statistics, images, labels, vector: vector.iter().map(|x| x / length).collect() }
    }

    /// Gradient and Hessian times the vector, of the mean loss, in f64.
    fn truth(&self, graph: &Graph, mode: Mode) -> (Vec<f64>, Vec<f64>) {
        let still =
            |x: &[f32]| x.iter().map(|&x| Dual { value: f64::from(x), tangent: 0.0 }).collect::<Vec<_>>();
        let along = |(&x, &v): (&f32, &f32)| Dual { value: f64::from(x), tangent: f64::from(v) };
        let parameters: Vec<_> = self.parameters.iter().zip(&self.vector).map(along).collect();
        let tape =
            Tape::forward(graph, &parameters, &still(&self.statistics), &still(&self.images), mode).unwrap();
        let (_, gradient) = tape.backward(&parameters, &self.labels, 1.0 / BATCH as f64).unwrap();
        gradient.iter().map(|g| (g.value, g.tangent)).unzip()
    }
}

fn modes() -> [Mode; 3] {
    [
        Mode::Train { dropout: None },
        Mode::Train { dropout: Some(Key::new(3, Purpose::Dropout)) },
        Mode::Evaluate,
    ]
}

fn distance(found: &[f64], expected: &[f64]) -> f64 {
    let square = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    square(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / square(&mut expected.iter().copied())
}

#[test]
fn the_plain_product_is_the_slope_of_the_gradient() {
    for graph in networks() {
        let case = Case::new(&graph, 11);
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        for mode in modes() {
            let gradient = |step: f64| {
                let moved: Vec<f64> = case
                    .parameters
                    .iter()
                    .zip(&case.vector)
                    .map(|(&x, &v)| f64::from(x) + step * f64::from(v))
                    .collect();
                let tape = Tape::forward(&graph, &moved, &wide(&case.statistics), &wide(&case.images), mode)
                    .unwrap();
                tape.backward(&moved, &case.labels, 1.0 / BATCH as f64).unwrap().1
            };
            let (_, product) = case.truth(&graph, mode);
            let step = 1e-5;
            let slope: Vec<f64> = gradient(step)
                .iter()
                .zip(gradient(-step))
                .map(|(up, down)| (up - down) / (2.0 * step))
                .collect();
            let off = distance(&slope, &product);
            assert!(off < 1e-6, "{} {mode:?}: off by {off:.2e}", graph.name());
        }
    }
}

#[test]
fn the_compiled_product_is_the_plain_one() {
    for graph in networks() {
        let case = Case::new(&graph, 11);
        let curvature = Curvature::compile(&graph, BATCH).unwrap();
        for mode in modes() {
            let (gradient, product) = case.truth(&graph, mode);
            let mut bits: Option<Vec<u32>> = None;
            for threads in [1, 3] {
                let mut tangents = curvature.tangents(threads).unwrap();
                let mut point = curvature.point(&tangents);
                let (model, examples) =
                    ((&*case.parameters, &*case.statistics), (&*case.images, &*case.labels));
                let mut found = vec![0.0; case.parameters.len()];
                curvature
                    .visit(&mut point, &mut tangents, model, examples, (mode, 1.0 / BATCH as f64), &mut found)
                    .unwrap();
                let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
                let off = distance(&wide(&found), &gradient);
                assert!(off < 1e-4, "{} {mode:?}: gradient off by {off:.2e}", graph.name());
                // Twice: a product leaves its point as it was.
                for _ in 0..2 {
                    curvature
                        .product(&mut point, &mut tangents, &case.parameters, &case.vector, &mut found)
                        .unwrap();
                    let off = distance(&wide(&found), &product);
                    assert!(off < 1e-4, "{} {mode:?}: product off by {off:.2e}", graph.name());
                    let now: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(
                        bits.get_or_insert(now.clone()),
                        &now,
                        "{}: threads or repetition change bits",
                        graph.name()
                    );
                }
            }
        }
    }
}

#[test]
fn a_point_must_be_visited_and_lengths_must_fit() {
    let graph = zoo::digits("digits", Shape::image(1, 8), 2, 10).unwrap();
    let case = Case::new(&graph, 1);
    let curvature = Curvature::compile(&graph, BATCH).unwrap();
    let mut tangents = curvature.tangents(1).unwrap();
    let mut point = curvature.point(&tangents);
    let mut out = vec![0.0; case.parameters.len()];
    assert!(curvature.product(&mut point, &mut tangents, &case.parameters, &case.vector, &mut out).is_err());
    let model = (&*case.parameters, &*case.statistics);
    let examples = (&*case.images, &*case.labels);
    curvature.visit(&mut point, &mut tangents, model, examples, (Mode::Evaluate, 1.0), &mut out).unwrap();
    assert!(
        curvature.product(&mut point, &mut tangents, &case.parameters, &case.vector[1..], &mut out).is_err()
    );
    curvature.product(&mut point, &mut tangents, &case.parameters, &case.vector, &mut out).unwrap();
}
