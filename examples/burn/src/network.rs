//! A network with one hidden layer, and made-up examples: points of a plane in two classes, inside a circle and outside.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use grawa_core::{Key, Purpose};

/// Examples to train on.
pub const EXAMPLES: u32 = 4096;
/// Examples of a batch.
pub const BATCH: u32 = 16;

/// The numbers of the examples that a worker is scored on.
pub fn score_batch(key: Key) -> Vec<u32> {
    let mut draws = key.stream();
    (0..BATCH).map(|_| draws.below(u64::from(EXAMPLES)) as u32).collect()
}

/// The numbers of examples that nobody trains on.
pub fn test_set() -> Vec<u32> {
    (EXAMPLES..).take(1000).collect()
}

/// The examples with these numbers, and their classes.
fn examples(numbers: &[u32], device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let example = |&number| {
        let mut draws = Key::new(1, Purpose::Problem).step(u64::from(number)).stream();
        let point = [0; 2].map(|_| draws.normal() as f32);
        (point, i32::from(point[0].hypot(point[1]) > 1.2))
    };
    let (points, classes): (Vec<[f32; 2]>, Vec<i32>) = numbers.iter().map(example).unzip();
    let points = TensorData::new(points.into_flattened(), [numbers.len(), 2]);
    (Tensor::from_data(points, device), Tensor::from_data(classes.as_slice(), device))
}

/// The layers.
#[derive(Module, Debug)]
pub struct Network {
    hidden: Linear,
    output: Linear,
}

impl Network {
    /// A network with random parameters.
    pub fn new(device: &Device) -> Self {
        let (hidden, output) = (LinearConfig::new(2, 16).init(device), LinearConfig::new(16, 2).init(device));
        Network { hidden, output }
    }

    fn forward(&self, points: Tensor<2>) -> Tensor<2> {
        self.output.forward(activation::relu(self.hidden.forward(points)))
    }

    /// The mean loss on the examples with these numbers.
    pub fn loss(&self, numbers: &[u32], device: &Device) -> Tensor<1> {
        let (points, classes) = examples(numbers, device);
        CrossEntropyLossConfig::new().init(device).forward(self.forward(points), classes)
    }

    /// The share of the examples with these numbers that it classifies rightly.
    pub fn accuracy(&self, numbers: &[u32], device: &Device) -> f32 {
        let (points, classes) = examples(numbers, device);
        let found = self.forward(points).argmax(1).squeeze_dim(1);
        found.equal(classes).float().mean().into_scalar()
    }
}
