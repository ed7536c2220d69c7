//! VGG with batch norm, and a classifier of three layers with dropout.

use crate::{Builder, Conv, Error, Graph, Shape, Window};

/// Channels of VGG-16's convolutions; 0 is a max pooling.
pub const VGG16: [usize; 18] = [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0];

/// The convolutions and poolings of `plan`, then two hidden layers of width `hidden`.
pub fn vgg(name: &str, input: Shape, plan: &[usize], hidden: usize, classes: usize) -> Result<Graph, Error> {
    let mut net = Builder::new(name, input);
    let mut x = net.input();
    // Modules are numbered consecutively: a convolution with its batch norm and ReLU takes three numbers.
    let mut module = 0;
    for &channels in plan {
        if channels == 0 {
            x = net.max_pool(x, Window::tiles(2))?;
            module += 1;
        } else {
            x = net.conv(x, &format!("features.{module}"), Conv::same(channels).biased())?;
            x = net.norm_relu(x, &format!("features.{}", module + 1))?;
            module += 3;
        }
    }
    let x = net.dropout(x, 0.5)?;
    let x = net.linear(x, "classifier.1", hidden)?;
    let x = net.relu(x);
    let x = net.dropout(x, 0.5)?;
    let x = net.linear(x, "classifier.4", hidden)?;
    let x = net.relu(x);
    let x = net.linear(x, "classifier.6", classes)?;
    net.finish(x)
}
