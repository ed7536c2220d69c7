//! ResNet-50 as in torchvision: bottlenecks with the stride in the 3 × 3 convolution.

use crate::{Builder, Conv, Error, Graph, NodeId, Shape, Window};

/// Stages of `blocks` bottlenecks; the first stage's inner width is `width`.
pub fn resnet50(
    name: &str,
    input: Shape,
    blocks: &[usize],
    width: usize,
    classes: usize,
) -> Result<Graph, Error> {
    let mut net = Builder::new(name, input);
    let x = net.input();
    let x = net.conv_normal(x, "conv1", Conv { out: width, kernel: 7, stride: 2, pad: 3, bias: false })?;
    let x = net.norm_relu(x, "bn1")?;
    let mut x = net.max_pool(x, Window { kernel: 3, stride: 2, pad: 1, ceil: false })?;
    for (stage, &count) in blocks.iter().enumerate() {
        for index in 0..count {
            let stride = if stage > 0 && index == 0 { 2 } else { 1 };
            let name = format!("layer{}.{index}", stage + 1);
            x = bottleneck(&mut net, x, &name, width << stage, stride, index == 0)?;
        }
    }
    net.classify(x, "fc", classes)
}

fn bottleneck(
    net: &mut Builder,
    x: NodeId,
    name: &str,
    inner: usize,
    stride: usize,
    project: bool,
) -> Result<NodeId, Error> {
    let y = net.conv_normal(x, &format!("{name}.conv1"), Conv::point(inner))?;
    let y = net.norm_relu(y, &format!("{name}.bn1"))?;
    let y = net.conv_normal(y, &format!("{name}.conv2"), Conv::same(inner).stride(stride))?;
    let y = net.norm_relu(y, &format!("{name}.bn2"))?;
    let y = net.conv_normal(y, &format!("{name}.conv3"), Conv::point(4 * inner))?;
    let y = net.batch_norm(y, &format!("{name}.bn3"))?;
    let shortcut = if project {
        let x = net.conv_normal(x, &format!("{name}.downsample.0"), Conv::point(4 * inner).stride(stride))?;
        net.batch_norm(x, &format!("{name}.downsample.1"))?
    } else {
        x
    };
    let y = net.add(y, shortcut)?;
    Ok(net.relu(y))
}
