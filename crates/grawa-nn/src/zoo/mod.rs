//! The paper's networks, and a small one for the digits.
//!
//! Tensor names and their order are those of the PyTorch networks in `oracle/nets.py`, so that checkpoints can be
//! exchanged. Widths and depths are parameters: a name such as `resnet20` is a row of [`ZOO`], and tests use small
//! variants.

mod densenet;
mod digits;
mod pyramidnet;
mod resnet;
mod resnet18;
mod resnet50;
mod vgg;
mod wide;

pub use densenet::densenet;
pub use digits::digits;
pub use pyramidnet::pyramidnet;
pub use resnet::resnet;
pub use resnet18::resnet18;
pub use resnet50::resnet50;
pub use vgg::{VGG16, vgg};
pub use wide::wide;

use crate::{Builder, Error, Graph, NodeId, Shape};

/// A network of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// The image shape of the paper.
    pub input: Shape,
    /// The number of classes in the paper.
    pub classes: usize,
    build: fn(&str, Shape, usize) -> Result<Graph, Error>,
}

const fn entry(
    name: &'static str,
    side: usize,
    classes: usize,
    build: fn(&str, Shape, usize) -> Result<Graph, Error>,
) -> Entry {
    Entry { name, input: Shape::image(3, side), classes, build }
}

/// The networks by name.
pub const ZOO: [Entry; 11] = [
    entry("resnet20", 28, 10, |name, input, classes| resnet(name, input, 3, 16, classes)),
    entry("resnet56", 32, 10, |name, input, classes| resnet(name, input, 9, 16, classes)),
    entry("vgg16", 32, 10, |name, input, classes| vgg(name, input, &VGG16, 512, classes)),
    entry("pyramidnet110", 32, 10, |name, input, classes| pyramidnet(name, input, 110, 270, classes)),
    entry("densenet121", 32, 100, |name, input, classes| {
        densenet(name, input, &[6, 12, 24, 16], 32, classes)
    }),
    entry("wrn28-10", 32, 100, |name, input, classes| wide(name, input, 28, 10, classes)),
    entry("resnet18-w4", 32, 10, |name, input, classes| resnet18(name, input, 4, classes)),
    entry("resnet18-w6", 32, 10, |name, input, classes| resnet18(name, input, 6, classes)),
    entry("resnet18-w8", 32, 10, |name, input, classes| resnet18(name, input, 8, classes)),
    entry("resnet50", 224, 1000, |name, input, classes| resnet50(name, input, &[3, 4, 6, 3], 64, classes)),
    Entry {
        name: "digits",
        input: Shape::image(1, 8),
        classes: 10,
        build: |name, input, classes| digits(name, input, 16, classes),
    },
];

impl Builder {
    /// Batch norm, then ReLU.
    fn norm_relu(&mut self, x: NodeId, name: &str) -> Result<NodeId, Error> {
        let x = self.batch_norm(x, name)?;
        Ok(self.relu(x))
    }

    /// The network with a linear layer on the mean of each channel.
    fn classify(mut self, x: NodeId, name: &str, classes: usize) -> Result<Graph, Error> {
        let x = self.global_average(x);
        let x = self.linear(x, name, classes)?;
        self.finish(x)
    }
}

impl Entry {
    /// The network for images of this shape and this number of classes.
    pub fn build(&self, input: Shape, classes: usize) -> Result<Graph, Error> {
        (self.build)(self.name, input, classes)
    }
}

/// The names of all networks.
pub fn names() -> Vec<&'static str> {
    ZOO.map(|entry| entry.name).into()
}

/// The network of this name.
pub fn find(name: &str) -> Result<&'static Entry, Error> {
    ZOO.iter().find(|entry| entry.name == name).ok_or_else(|| Error::UnknownNetwork {
        found: name.into(),
        nearest: grawa_core::nearest(name, names()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parameters and tensors of the networks, counted in PyTorch.
    #[test]
    fn counts_are_those_of_the_paper() {
        for (name, classes, parameters, tensors) in [
            ("resnet20", 10, 269_722, 59),
            ("resnet56", 10, 853_018, 167),
            ("resnet56", 100, 858_868, 167),
            ("vgg16", 10, 15_253_578, 58),
            ("pyramidnet110", 10, 28_485_477, 439),
            ("pyramidnet110", 100, 28_511_307, 439),
            ("densenet121", 10, 6_956_298, 362),
            ("densenet121", 100, 7_048_548, 362),
            ("wrn28-10", 10, 36_479_194, 80),
            ("wrn28-10", 100, 36_536_884, 80),
            ("resnet18-w4", 10, 2_797_610, 62),
            ("resnet18-w6", 10, 6_288_442, 62),
            ("resnet18-w8", 10, 11_173_962, 62),
            ("resnet50", 1000, 25_557_032, 161),
        ] {
            let entry = find(name).unwrap();
            let graph = entry.build(entry.input, classes).unwrap();
            let layout = graph.parameters();
            assert_eq!((layout.len(), layout.spans().len()), (parameters, tensors), "{name}");
            assert_eq!((graph.classes(), graph.input()), (classes, entry.input));
        }
    }

    /// Statistics (running means and variances), counted in PyTorch.
    #[test]
    fn statistics_are_counted_too() {
        for (name, scalars) in [
            ("resnet20", 1_376),
            ("vgg16", 8_448),
            ("pyramidnet110", 49_798),
            ("densenet121", 83_520),
            ("wrn28-10", 17_952),
            ("resnet50", 53_120),
        ] {
            let entry = find(name).unwrap();
            assert_eq!(
                entry.build(entry.input, entry.classes).unwrap().statistics().len(),
                scalars,
                "{name}"
            );
        }
    }

    #[test]
    fn biases_before_batch_norm_are_silent() {
        let entry = find("vgg16").unwrap();
        let graph = entry.build(entry.input, 10).unwrap();
        let silent: Vec<&str> = graph
            .parameters()
            .spans()
            .iter()
            .filter(|span| span.is_silent())
            .map(grawa_core::Span::name)
            .collect();
        assert_eq!((silent.len(), silent[0]), (13, "features.0.bias"));
    }

    #[test]
    fn an_unknown_network_suggests_the_nearest() {
        let error = find("resnet21").unwrap_err().to_string();
        assert!(error.contains("did you mean 'resnet20'?"), "{error}");
    }

    #[test]
    fn images_that_are_too_small_are_refused() {
        assert!(find("vgg16").unwrap().build(Shape::image(3, 16), 10).is_err());
        assert!(find("resnet20").unwrap().build(Shape::image(3, 0), 10).is_err());
    }
}
