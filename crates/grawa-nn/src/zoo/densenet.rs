//! DenseNet for small images: every layer's new channels precede all earlier channels.

use crate::{Builder, Conv, Error, Graph, NodeId, Shape, Window};

/// Dense blocks of `blocks` layers that add `growth` channels each; transitions halve channels and sides.
pub fn densenet(
    name: &str,
    input: Shape,
    blocks: &[usize],
    growth: usize,
    classes: usize,
) -> Result<Graph, Error> {
    let mut net = Builder::new(name, input);
    let x = net.input();
    let mut x = net.conv(x, "conv1", Conv::same(2 * growth))?;
    let mut module = 0;
    for (index, &layers) in blocks.iter().enumerate() {
        for _ in 0..layers {
            x = layer(&mut net, x, &format!("body.{module}"), growth)?;
            module += 1;
        }
        if index + 1 < blocks.len() {
            let half = net.shape(x).channels / 2;
            x = net.batch_norm(x, &format!("body.{module}.bn"))?;
            x = net.conv(x, &format!("body.{module}.conv"), Conv::point(half))?;
            x = net.average_pool(x, Window::tiles(2))?;
            module += 1;
        }
    }
    let x = net.norm_relu(x, "bn")?;
    net.classify(x, "linear", classes)
}

fn layer(net: &mut Builder, x: NodeId, name: &str, growth: usize) -> Result<NodeId, Error> {
    let y = net.norm_relu(x, &format!("{name}.bn1"))?;
    let y = net.conv(y, &format!("{name}.conv1"), Conv::point(4 * growth))?;
    let y = net.norm_relu(y, &format!("{name}.bn2"))?;
    let y = net.conv(y, &format!("{name}.conv2"), Conv::same(growth))?;
    net.concat(y, x)
}
