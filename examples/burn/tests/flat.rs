//! Parameters as one vector.

#![allow(clippy::unwrap_used)]

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor};
use grawa_burn::flat;

#[derive(Module, Debug)]
struct Net {
    norm: BatchNorm,
    linear: Linear,
    frozen: Linear,
    unused: Param<Tensor<1>>,
}

impl Net {
    fn new(device: &Device) -> Self {
        Net {
            norm: BatchNormConfig::new(4).init(device),
            linear: LinearConfig::new(4, 3).init(device),
            frozen: LinearConfig::new(3, 3).init(device).no_grad(),
            unused: Param::from_tensor(Tensor::ones([2], device)),
        }
    }

    fn loss(&self, device: &Device) -> Tensor<1> {
        let inputs = Tensor::<3>::random([5, 4, 1], Distribution::Default, device);
        let outputs = self.frozen.forward(self.linear.forward(self.norm.forward(inputs).squeeze_dim::<2>(2)));
        outputs.powi_scalar(2).sum()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Parameters come in the order of the fields, without frozen ones and running statistics, and back with the same bits.
#[test]
fn parameters_become_a_vector_and_back() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let layout = flat::layout(&net).unwrap();
    let names: Vec<_> = layout.spans().iter().map(|span| span.name()).collect();
    assert_eq!(names, ["norm.gamma", "norm.beta", "linear.weight", "linear.bias", "unused"]);

    let mut values: Vec<f32> = (0..layout.len()).map(|n| (n as f32).sin()).collect();
    values[..5].copy_from_slice(&[-0.0, f32::MIN_POSITIVE / 2.0, f32::MAX, f32::NAN, f32::NEG_INFINITY]);
    let frozen = net.frozen.weight.to_data();
    let net = flat::scatter(net, &values).unwrap();
    assert_eq!(bits(&flat::gather(&net).unwrap()), bits(&values));
    let weight = net.linear.weight.to_data().try_into_vec::<f32>().unwrap();
    assert_eq!(weight, values[layout.find("linear.weight").unwrap().range()]);
    assert_eq!(net.frozen.weight.to_data(), frozen);
    assert!(flat::scatter(net, &values[1..]).unwrap_err().to_string().contains("the parameters"));
}

/// What was scattered is still trained, with the gradient of the same place; what the loss does not use has none.
#[test]
fn gradients_have_the_same_places() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let layout = flat::layout(&net).unwrap();
    let before: Vec<f32> = (0..layout.len()).map(|n| (n as f32).cos()).collect();
    let net = flat::scatter(net, &before).unwrap();
    let gradients = GradientsParams::from_grads(net.loss(&device).backward(), &net);
    let gradient = flat::gradient(&net, &gradients).unwrap();
    let after = flat::gather(&SgdConfig::new().init().step(0.5, net, gradients)).unwrap();
    for ((after, before), gradient) in after.iter().zip(&before).zip(&gradient) {
        assert!((after - (before - 0.5 * gradient)).abs() < 1e-4, "{after} {before} {gradient}");
    }
    for span in layout.spans() {
        let is_zero = gradient[span.range()].iter().all(|&x| x == 0.0);
        assert_eq!(is_zero, span.name() == "unused", "{}", span.name());
    }
}

/// A parameter of another type is a vector of 32-bit floats, and keeps its type.
#[test]
fn types_are_kept() {
    let device = Device::flex().autodiff();
    let half = Param::from_tensor(Tensor::<1>::zeros([2], &device).cast(FloatDType::BF16));
    let half = flat::scatter(half, &[1.5, -3.0]).unwrap();
    assert_eq!(half.dtype(), DType::BF16);
    assert_eq!(flat::gather(&half).unwrap(), [1.5, -3.0]);
}
