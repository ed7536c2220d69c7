//! The CIFAR ResNets: basic blocks in three stages, shortcuts without parameters.

use crate::{Builder, Conv, Error, Graph, NodeId, Shape};

/// `blocks` blocks in each stage, with `width`, 2·`width` and 4·`width` channels: ResNet-20 has 3 and 16.
pub fn resnet(name: &str, input: Shape, blocks: usize, width: usize, classes: usize) -> Result<Graph, Error> {
    let mut net = Builder::new(name, input);
    let x = net.input();
    let x = net.conv(x, "conv1", Conv::same(width))?;
    let mut x = net.norm_relu(x, "bn1")?;
    for stage in 0..3 {
        for index in 0..blocks {
            let stride = if stage > 0 && index == 0 { 2 } else { 1 };
            x = block(&mut net, x, &format!("layer{}.{index}", stage + 1), width << stage, stride)?;
        }
    }
    net.classify(x, "linear", classes)
}

fn block(net: &mut Builder, x: NodeId, name: &str, out: usize, stride: usize) -> Result<NodeId, Error> {
    let y = net.conv(x, &format!("{name}.conv1"), Conv::same(out).stride(stride))?;
    let y = net.norm_relu(y, &format!("{name}.bn1"))?;
    let y = net.conv(y, &format!("{name}.conv2"), Conv::same(out))?;
    let y = net.batch_norm(y, &format!("{name}.bn2"))?;
    let shortcut = if stride == 1 {
        x
    } else {
        // Every other pixel, and zeros on both sides of the channels.
        let pad = (out - net.shape(x).channels) / 2;
        let x = net.subsample(x, stride)?;
        net.pad_channels(x, pad, pad)
    };
    let y = net.add(y, shortcut)?;
    Ok(net.relu(y))
}
