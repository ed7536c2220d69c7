//! A network with one hidden layer.

use crate::FlatVars;
use crate::examples::example;
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::{Linear, VarBuilder, VarMap, linear, loss};

/// The layers. Their variables are in [`FlatVars`].
#[derive(Clone, Debug)]
pub struct Network {
    hidden: Linear,
    output: Linear,
}

impl Network {
    /// A network with random variables.
    pub fn new() -> Result<(Self, FlatVars)> {
        let map = VarMap::new();
        let builder = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let hidden = linear(2, 16, builder.pp("hidden"))?;
        let output = linear(16, 2, builder.pp("output"))?;
        let network = Network { hidden, output };
        let gradients = network.loss(&[0])?.backward()?;
        Ok((network, FlatVars::new(&map, &gradients)))
    }

    /// The mean loss on the examples with these numbers.
    pub fn loss(&self, numbers: &[u64]) -> Result<Tensor> {
        let (points, classes): (Vec<[f32; 2]>, Vec<u32>) =
            numbers.iter().map(|&number| example(number)).unzip();
        let points = Tensor::from_slice(points.as_flattened(), (numbers.len(), 2), &Device::Cpu)?;
        let outputs = self.output.forward(&self.hidden.forward(&points)?.relu()?)?;
        loss::cross_entropy(&outputs, &Tensor::new(classes, &Device::Cpu)?)
    }
}
