//! The narrow ResNet-18 of the gradient-norm study: four stages of two blocks, projected shortcuts.

use crate::{Builder, Conv, Error, Graph, NodeId, Shape};

/// Stages of 8w, 16w, 32w and 64w channels; w = 8 is the usual ResNet-18.
pub fn resnet18(name: &str, input: Shape, w: usize, classes: usize) -> Result<Graph, Error> {
    let mut net = Builder::new(name, input);
    let x = net.input();
    let x = net.conv_normal(x, "conv1", Conv::same(8 * w))?;
    let mut x = net.norm_relu(x, "bn1")?;
    for index in 0..8 {
        let (stage, first) = (index / 2, index % 2 == 0);
        let stride = if stage > 0 && first { 2 } else { 1 };
        x = block(&mut net, x, &format!("blocks.{index}"), (8 * w) << stage, stride)?;
    }
    net.classify(x, "linear", classes)
}

fn block(net: &mut Builder, x: NodeId, name: &str, out: usize, stride: usize) -> Result<NodeId, Error> {
    let y = net.conv_normal(x, &format!("{name}.conv1"), Conv::same(out).stride(stride))?;
    let y = net.norm_relu(y, &format!("{name}.bn1"))?;
    let y = net.conv_normal(y, &format!("{name}.conv2"), Conv::same(out))?;
    let y = net.batch_norm(y, &format!("{name}.bn2"))?;
    let shortcut = if stride == 1 && net.shape(x).channels == out {
        x
    } else {
        let x = net.conv_normal(x, &format!("{name}.shortcut.0"), Conv::point(out).stride(stride))?;
        net.batch_norm(x, &format!("{name}.shortcut.1"))?
    };
    let y = net.add(y, shortcut)?;
    Ok(net.relu(y))
}
