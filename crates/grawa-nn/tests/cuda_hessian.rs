//! Products with the Hessian on a GPU against the plain path's in f64, and their errors.

#![allow(clippy::unwrap_used)]

mod needs;
mod networks;

use grawa_core::{Key, Purpose, norm::norm};
use grawa_nn::cuda::Curvature;
use grawa_nn::{Builder, Conv, Dual, Error, Graph, Mode, Shape, Tape, zoo};
use networks::{all_networks, everything, plain_names, plain_operations, smooth};

const BATCH: usize = 6;
const BATCHES: usize = 3;
const FACTOR: f64 = 1.0 / (BATCH * BATCHES) as f64;

/// Parameters, statistics, batches, and a direction of length 1.
struct Case {
    parameters: Vec<f32>,
    statistics: Vec<f32>,
    batches: Vec<(Vec<f32>, Vec<u32>)>,
    vector: Vec<f32>,
}

impl Case {
    fn new(graph: &Graph, seed: u64) -> Self {
        let (parameters, statistics) = smooth(graph, seed);
        let mut draws = Key::new(seed, Purpose::Problem).step(1).stream();
        let mut batch = || -> (Vec<f32>, Vec<u32>) {
            let images = (0..BATCH * graph.input().len()).map(|_| draws.normal() as f32).collect();
            (images, (0..BATCH).map(|_| draws.below(graph.classes() as u64) as u32).collect())
        };
        let batches = (0..BATCHES).map(|_| batch()).collect();
        let vector: Vec<f32> = parameters.iter().map(|_| draws.normal() as f32).collect();
        let length = norm(&vector) as f32;
        Case { parameters, statistics, batches, vector: vector.iter().map(|x| x / length).collect() }
    }

    fn batches(&self, count: usize) -> Vec<(&[f32], &[u32])> {
        self.batches[..count].iter().map(|(images, labels)| (&images[..], &labels[..])).collect()
    }

    /// Loss, gradient and product of the first batches, in f64.
    fn truth(&self, graph: &Graph, mode: Mode, count: usize) -> (f64, Vec<f64>, Vec<f64>) {
        let still = |x: &[f32]| x.iter().map(|&x| Dual { value: x.into(), tangent: 0.0 }).collect::<Vec<_>>();
        let along = |(&x, &v): (&f32, &f32)| Dual { value: f64::from(x), tangent: f64::from(v) };
        let parameters: Vec<Dual<f64>> = self.parameters.iter().zip(&self.vector).map(along).collect();
        let (mut all, mut gradient, mut product) =
            (0.0, vec![0.0; parameters.len()], vec![0.0; parameters.len()]);
        for (images, labels) in &self.batches[..count] {
            let tape =
                Tape::forward(graph, &parameters, &still(&self.statistics), &still(images), mode).unwrap();
            let (loss, found) = tape.backward(&parameters, labels, FACTOR).unwrap();
            all += loss;
            for (at, found) in found.iter().enumerate() {
                gradient[at] += found.value;
                product[at] += found.tangent;
            }
        }
        (all, gradient, product)
    }
}

/// ‖found − expected‖ / ‖expected‖.
fn distance(found: &[f32], expected: &[f64]) -> f64 {
    let square = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    square(&mut found.iter().zip(expected).map(|(&a, b)| f64::from(a) - b))
        / square(&mut expected.iter().copied())
}

/// Wide layers on many pixels, which the largest tiles compute.
fn wide_layers() -> Graph {
    let mut net = Builder::new("wide layers", Shape::image(3, 32));
    let x = net.input();
    let x = net.conv(x, "a", Conv::same(8)).unwrap();
    let x = net.batch_norm(x, "b").unwrap();
    let x = net.relu(x);
    let x = net.conv(x, "c", Conv::same(136)).unwrap();
    let x = net.batch_norm(x, "d").unwrap();
    let x = net.relu(x);
    let x = net.conv(x, "e", Conv::point(128)).unwrap();
    let x = net.global_average(x);
    let x = net.linear(x, "f", 4).unwrap();
    net.finish(x).unwrap()
}

fn networks() -> Vec<Graph> {
    let all = all_networks().into_iter().map(|(_, graph)| graph);
    all.filter(|graph| plain_names(graph).is_empty()).chain([everything(true), wide_layers()]).collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn products_on_a_gpu_are_the_plain_ones() {
    let device = needs::gpu();
    for graph in networks() {
        let case = Case::new(&graph, 11);
        let mut curvature = Curvature::new(&device, &graph, BATCH, BATCHES).unwrap();
        assert_eq!(curvature.at_once(), BATCHES);
        curvature.load(&case.parameters, &case.statistics).unwrap();
        let mut found = vec![0.0; case.parameters.len()];
        for mode in [Mode::Train { dropout: None }, Mode::Evaluate] {
            // Also with a replica that has no batch.
            for count in [BATCHES, BATCHES - 1] {
                let (loss, gradient, product) = case.truth(&graph, mode, count);
                let visited = curvature.visit(&case.batches(count), (mode, FACTOR), &mut found).unwrap();
                let judge = |what: &str, off: f64, bound: f64| {
                    assert!(off < bound, "{} {mode:?} {count}: {what} off by {off:.2e}", graph.name());
                };
                judge("loss", (visited / loss - 1.0).abs(), 1e-5);
                judge("gradient", distance(&found, &gradient), 1e-4);
                let mut bits: Option<Vec<u32>> = None;
                for _ in 0..2 {
                    curvature.product(&case.vector, &mut found).unwrap();
                    judge("product", distance(&found, &product), 1e-4);
                    let now: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(bits.get_or_insert(now.clone()), &now, "{}: other bits", graph.name());
                }
                // A product is linear: another direction in between leaves no trace.
                let opposite: Vec<f32> = case.vector.iter().map(|x| -x).collect();
                curvature.product(&opposite, &mut found).unwrap();
                let against: Vec<f64> = product.iter().map(|x| -x).collect();
                judge("opposite product", distance(&found, &against), 1e-4);
            }
        }
    }
}

/// Many batches and too little memory: fewer batches at once.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn as_many_batches_at_once_as_fit() {
    let device = needs::gpu();
    let graph = zoo::resnet("resnet", Shape::image(3, 13), 1, 8, 5).unwrap();
    let one = Curvature::new(&device, &graph, BATCH, 1).unwrap().bytes();
    // Each of many replicas needs less than one alone, whose sums are divided among more blocks; not an eighth.
    let many = 8 * device.memory / one;
    let curvature = Curvature::new(&device, &graph, BATCH, many).unwrap();
    assert!((1..=64).contains(&curvature.at_once()), "{}", curvature.at_once());
}

#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn what_has_no_tangent_or_was_not_visited_is_refused() {
    let device = needs::gpu();
    let refused = Curvature::new(&device, &plain_operations(), BATCH, 1).unwrap_err();
    assert!(refused.is_usage(), "{refused}");
    assert_eq!(
        refused.to_string(),
        "group norm has no tangent on a GPU, so products with the Hessian are not possible there; use the CPU"
    );
    let graph = zoo::resnet("resnet", Shape::image(3, 13), 1, 8, 5).unwrap();
    let case = Case::new(&graph, 1);
    let mut curvature = Curvature::new(&device, &graph, BATCH, 2).unwrap();
    let mut out = vec![0.0; case.parameters.len()];
    curvature.load(&case.parameters, &case.statistics).unwrap();
    assert!(matches!(curvature.product(&case.vector, &mut out), Err(Error::NotVisited)));
    let mode = Mode::Train { dropout: None };
    assert!(curvature.visit(&case.batches(3), (mode, 1.0), &mut out).is_err());
    assert!(curvature.visit(&[], (mode, 1.0), &mut out).is_err());
    let dropout = Mode::Train { dropout: Some(Key::new(3, Purpose::Dropout)) };
    assert!(matches!(
        curvature.visit(&case.batches(2), (dropout, 1.0), &mut out),
        Err(Error::NoTangent { .. })
    ));
    curvature.visit(&case.batches(2), (mode, 1.0), &mut out).unwrap();
    assert!(curvature.product(&case.vector[1..], &mut out).is_err());
    curvature.product(&case.vector, &mut out).unwrap();
    // New parameters are not visited.
    curvature.load(&case.parameters, &case.statistics).unwrap();
    assert!(matches!(curvature.product(&case.vector, &mut out), Err(Error::NotVisited)));
}
