//! PyramidNet: every block is slightly wider than the one before.

use crate::{Builder, Conv, Error, Graph, NodeId, Shape, Window};

/// Basic blocks of a network of `depth` layers that widens by `alpha` channels in total.
pub fn pyramidnet(
    name: &str,
    input: Shape,
    depth: usize,
    alpha: usize,
    classes: usize,
) -> Result<Graph, Error> {
    let mut net = Builder::new(name, input);
    let x = net.input();
    let x = net.conv_normal(x, "conv1", Conv::same(16))?;
    let mut x = net.batch_norm(x, "bn1")?;
    let blocks = depth.saturating_sub(2) / 6;
    let mut wide = 16.0;
    for index in 0..3 * blocks {
        // Summed and rounded to even as in PyTorch, so that every width is equal.
        wide += alpha as f64 / (3 * blocks) as f64;
        let stride = if index > 0 && index % blocks == 0 { 2 } else { 1 };
        x = block(&mut net, x, &format!("blocks.{index}"), f64::round_ties_even(wide) as usize, stride)?;
    }
    let x = net.norm_relu(x, "bn_final")?;
    net.classify(x, "fc", classes)
}

fn block(net: &mut Builder, x: NodeId, name: &str, out: usize, stride: usize) -> Result<NodeId, Error> {
    let y = net.batch_norm(x, &format!("{name}.bn1"))?;
    let y = net.conv_normal(y, &format!("{name}.conv1"), Conv::same(out).stride(stride))?;
    let y = net.norm_relu(y, &format!("{name}.bn2"))?;
    let y = net.conv_normal(y, &format!("{name}.conv2"), Conv::same(out))?;
    let y = net.batch_norm(y, &format!("{name}.bn3"))?;
    let shortcut =
        if stride == 1 { x } else { net.average_pool(x, Window { ceil: true, ..Window::tiles(stride) })? };
    let grow = out - net.shape(x).channels;
    let shortcut = if grow == 0 { shortcut } else { net.pad_channels(shortcut, 0, grow) };
    net.add(y, shortcut)
}
