//! A small network for the 8 × 8 digits: two convolutions, a pooling, a linear layer.

use crate::{Builder, Conv, Error, Graph, Shape, Window};

/// `width` channels, then twice as many.
pub fn digits(name: &str, input: Shape, width: usize, classes: usize) -> Result<Graph, Error> {
    let mut net = Builder::new(name, input);
    let x = net.input();
    let x = net.conv(x, "conv1", Conv::same(width))?;
    let x = net.norm_relu(x, "bn1")?;
    let x = net.max_pool(x, Window::tiles(2))?;
    let x = net.conv(x, "conv2", Conv::same(2 * width))?;
    let x = net.norm_relu(x, "bn2")?;
    let x = net.linear(x, "linear", classes)?;
    net.finish(x)
}
