//! WideResNet: pre-activation blocks, few and wide.

use crate::{Builder, Conv, Error, Graph, NodeId, Shape};

/// A network of `depth` layers, `k` times as wide as a ResNet of 16, 32 and 64 channels.
pub fn wide(name: &str, input: Shape, depth: usize, k: usize, classes: usize) -> Result<Graph, Error> {
    let mut net = Builder::new(name, input);
    let x = net.input();
    let mut x = net.conv_normal(x, "conv1", Conv::same(16))?;
    let blocks = depth.saturating_sub(4) / 6;
    for stage in 0..3 {
        for index in 0..blocks {
            let stride = if stage > 0 && index == 0 { 2 } else { 1 };
            x = block(&mut net, x, &format!("blocks.{}", stage * blocks + index), (16 * k) << stage, stride)?;
        }
    }
    let x = net.norm_relu(x, "bn")?;
    let x = net.global_average(x);
    let x = net.linear_unbiased_start(x, "fc", classes)?;
    net.finish(x)
}

fn block(net: &mut Builder, x: NodeId, name: &str, out: usize, stride: usize) -> Result<NodeId, Error> {
    let h = net.norm_relu(x, &format!("{name}.bn1"))?;
    let y = net.conv_normal(h, &format!("{name}.conv1"), Conv::same(out).stride(stride))?;
    let y = net.norm_relu(y, &format!("{name}.bn2"))?;
    let y = net.conv_normal(y, &format!("{name}.conv2"), Conv::same(out))?;
    // Where widths differ the shortcut uses the activated input, otherwise the raw one.
    let shortcut = if net.shape(x).channels == out {
        x
    } else {
        net.conv_normal(h, &format!("{name}.shortcut"), Conv::point(out).stride(stride))?
    };
    net.add(y, shortcut)
}
