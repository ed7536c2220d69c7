//! Small variants of all networks of the zoo, a network with every operation, and parameters at which they can be compared.
#![allow(dead_code, reason = "each test uses a part")]

use grawa_core::{Key, Purpose};
use grawa_nn::{Builder, Conv, Error, Graph, Op, Shape, Window, zoo};

/// A small variant of each network of the zoo, as `oracle/fixtures.py` builds them.
pub(crate) fn small_networks() -> Vec<(&'static str, Graph)> {
    let image = |side| Shape::image(3, side);
    vec![
        ("resnet", zoo::resnet("resnet", image(13), 2, 8, 5).unwrap()),
        ("vgg", zoo::vgg("vgg", image(4), &[8, 8, 0, 12, 0], 16, 5).unwrap()),
        ("pyramidnet", zoo::pyramidnet("pyramidnet", image(9), 14, 21, 5).unwrap()),
        ("densenet", zoo::densenet("densenet", image(8), &[2, 3, 1], 4, 5).unwrap()),
        ("wide", zoo::wide("wide", image(9), 10, 1, 5).unwrap()),
        ("resnet18", zoo::resnet18("resnet18", image(12), 1, 5).unwrap()),
        ("resnet50", zoo::resnet50("resnet50", image(45), &[1, 2, 1, 1], 8, 5).unwrap()),
        ("digits", zoo::digits("digits", Shape::image(1, 8), 6, 10).unwrap()),
    ]
}

/// The small networks, one with channels that do not fill a block, and those with every operation.
pub(crate) fn all_networks() -> Vec<(&'static str, Graph)> {
    let wide = zoo::resnet("resnet wide", Shape::image(3, 13), 1, 24, 5).unwrap();
    let plain = plain_operations();
    // Concatenations of whole groups of eight channels, which a GPU does not store.
    let joined = zoo::densenet("densenet joined", Shape::image(3, 8), &[3, 2], 8, 5).unwrap();
    let more = [
        ("resnet wide", wide),
        ("densenet joined", joined),
        ("new in front", new_channels(true).unwrap()),
        ("new behind", new_channels(false).unwrap()),
        ("rows", rows().unwrap()),
        ("columns", columns().unwrap()),
        ("broad", broad().unwrap()),
        ("uneven", uneven().unwrap()),
        ("blocks", blocks().unwrap()),
        ("pooled", pooled().unwrap()),
        ("taken over", taken_over().unwrap()),
        ("everything", everything(false)),
        ("plain operations", plain),
    ];
    small_networks().into_iter().chain(more).collect()
}

/// Images so high that a GPU divides them into tiles of several rows, with convolutions between 16 channels.
fn rows() -> Result<Graph, Error> {
    let mut net = Builder::new("rows", Shape::image(3, 47));
    let x = net.input();
    let x = net.conv(x, "a", Conv::same(16))?;
    let x = net.batch_norm(x, "b")?;
    let x = net.relu(x);
    let y = net.conv(x, "c", Conv::same(16))?;
    let y = net.batch_norm(y, "d")?;
    let y = net.add(x, y)?;
    let y = net.relu(y);
    let y = net.conv(y, "e", Conv::same(16))?;
    let y = net.global_average(y);
    let y = net.linear(y, "f", 4)?;
    net.finish(y)
}

/// A batch norm with a shortcut and one behind it, with so many channels that a GPU divides them into columns. Windows that overlap
/// and extend beyond the last row.
fn columns() -> Result<Graph, Error> {
    let mut net = Builder::new("columns", Shape::image(3, 6));
    let x = net.input();
    let x = net.conv(x, "a", Conv::same(136))?;
    let y = net.conv(x, "b", Conv::point(136))?;
    let y = net.batch_norm(y, "c")?;
    let y = net.add(x, y)?;
    let y = net.batch_norm(y, "d")?;
    let y = net.relu(y);
    let y = net.max_pool(y, Window { kernel: 3, stride: 2, pad: 1, ceil: true })?;
    let y = net.global_average(y);
    let y = net.linear(y, "e", 4)?;
    net.finish(y)
}

/// Convolutions between so many channels that a GPU has kernels of their own for them: tiles of 64, 128 and 160 channels, a
/// shortcut, a bias, stride 2, and all pixels at once.
fn broad() -> Result<Graph, Error> {
    let mut net = Builder::new("broad", Shape::image(3, 8));
    let mut x = net.input();
    for (name, conv) in [
        ("a", Conv::same(64)),
        ("b", Conv::same(64).biased()),
        ("c", Conv::same(128)),
        ("d", Conv::same(160)),
        ("e", Conv::point(160)),
    ] {
        x = net.conv(x, name, conv)?;
        x = net.batch_norm(x, &format!("{name}n"))?;
        x = net.relu(x);
    }
    let y = net.conv(x, "f", Conv::same(160))?;
    let y = net.batch_norm(y, "fn")?;
    let y = net.add(x, y)?;
    let y = net.relu(y);
    let y = net.conv(y, "g", Conv { out: 72, kernel: 3, stride: 2, pad: 1, bias: true })?;
    let y = net.global_average(y);
    let y = net.linear(y, "h", 4)?;
    net.finish(y)
}

/// The same with images that do not divide into equal tiles, channels that do not fill a tile, and a larger window.
fn uneven() -> Result<Graph, Error> {
    let mut net = Builder::new("uneven", Shape::image(3, 23));
    let x = net.input();
    let x = net.conv(x, "a", Conv::same(43))?;
    let y = net.batch_norm(x, "b")?;
    let y = net.conv(y, "c", Conv { out: 40, kernel: 5, stride: 1, pad: 1, bias: false })?;
    let y = net.relu(y);
    let y = net.conv(y, "d", Conv { out: 34, kernel: 1, stride: 2, pad: 0, bias: false })?;
    let y = net.batch_norm(y, "e")?;
    let y = net.conv(y, "f", Conv::point(168))?;
    let y = net.global_average(y);
    let y = net.linear(y, "g", 4)?;
    net.finish(y)
}

/// Residual blocks with as many channels, with and without a convolution in the shortcut: the layers behind a sum mask its gradient.
fn blocks() -> Result<Graph, Error> {
    let mut net = Builder::new("blocks", Shape::image(3, 10));
    let x = net.input();
    let x = net.conv(x, "a", Conv::same(64))?;
    let x = net.batch_norm(x, "an")?;
    let mut x = net.relu(x);
    for (name, out, projects) in
        [("b", 64, false), ("c", 128, true), ("d", 128, false), ("e", 160, true), ("f", 160, false)]
    {
        let y = net.conv(x, &format!("{name}1"), Conv::point(out))?;
        let y = net.batch_norm(y, &format!("{name}1n"))?;
        let y = net.relu(y);
        let y = net.conv(y, &format!("{name}2"), Conv::same(out))?;
        let y = net.batch_norm(y, &format!("{name}2n"))?;
        if projects {
            x = net.conv(x, &format!("{name}3"), Conv::point(out))?;
            x = net.batch_norm(x, &format!("{name}3n"))?;
        }
        let y = net.add(y, x)?;
        x = net.relu(y);
    }
    let y = net.global_average(x);
    let y = net.linear(y, "g", 4)?;
    net.finish(y)
}

/// A plain sum shares its gradient with a convolution and with a sum behind a batch norm, whose shortcut takes it over and masks it: the
/// weight gradient of the convolution must have read it by then.
fn taken_over() -> Result<Graph, Error> {
    let mut net = Builder::new("taken over", Shape::image(3, 12));
    let x = net.input();
    let a = net.conv(x, "a", Conv::same(24))?;
    let a = net.batch_norm(a, "an")?;
    let a = net.relu(a);
    let z = net.conv(a, "b", Conv::same(24))?;
    let z = net.batch_norm(z, "bn")?;
    let z = net.add(z, a)?;
    let z = net.relu(z);
    let c = net.conv(x, "c", Conv::same(24).biased())?;
    let y = net.add(z, c)?;
    let y = net.global_average(y);
    let y = net.linear(y, "d", 4)?;
    net.finish(y)
}

/// Batch norms whose result is pooled, with and without a ReLU: channels that a GPU divides into columns, a batch norm and a
/// convolution behind the pooling, an input that is also used elsewhere, images that are not square.
fn pooled() -> Result<Graph, Error> {
    let mut net = Builder::new("pooled", Shape { channels: 3, height: 8, width: 24 });
    let tiles = Window { kernel: 2, stride: 2, pad: 0, ceil: false };
    let x = net.input();
    let x = net.conv(x, "a", Conv::same(136))?;
    let y = net.batch_norm(x, "b")?;
    let y = net.max_pool(y, tiles)?;
    let y = net.batch_norm(y, "c")?;
    let y = net.relu(y);
    let y = net.max_pool(y, tiles)?;
    let x = net.conv(x, "d", Conv { out: 20, kernel: 3, stride: 2, pad: 1, bias: false })?;
    let z = net.batch_norm(x, "e")?;
    let z = net.relu(z);
    let z = net.max_pool(z, tiles)?;
    let x = net.average_pool(x, tiles)?;
    let x = net.add(x, z)?;
    let x = net.concat(x, y)?;
    let x = net.conv(x, "f", Conv::same(16))?;
    let x = net.global_average(x);
    let x = net.linear(x, "g", 4)?;
    net.finish(x)
}

/// Batch norms of concatenations to which each adds channels, in front or behind, once in between: a GPU takes the moments of the
/// others from the batch norm before. A convolution, a sum and a batch norm make the new ones. Channels and new channels that a GPU
/// divides into columns, and several epsilons.
fn new_channels(in_front: bool) -> Result<Graph, Error> {
    let mut net = Builder::new("new channels", Shape::image(3, 5));
    let x = net.input();
    let mut x = net.conv(x, "a", Conv::same(16))?;
    for (name, new, epsilon) in [("b", 24, 1e-2), ("c", 136, 1e-4), ("d", 8, 1e-3)] {
        let y = net.batch_norm_with(x, &format!("{name}.norm"), epsilon)?;
        let y = net.relu(y);
        let y = net.conv(y, name, Conv::point(new))?;
        x = if in_front { net.concat(y, x)? } else { net.concat(x, y)? };
    }
    let y = net.batch_norm_with(x, "e.norm", 1e-5)?;
    let left = net.conv(y, "e", Conv::point(40))?;
    let right = net.conv(y, "f", Conv::point(16))?;
    let [a, b] = ["g", "h"].map(|name| net.conv(y, name, Conv::point(24)));
    let between = net.add(a?, b?)?;
    let y = net.concat(left, right)?;
    let y = net.batch_norm_with(y, "i", 1e-2)?;
    let y = net.relu(y);
    let z = net.concat(between, right)?;
    let z = net.concat(left, z)?;
    let last = net.batch_norm_with(z, "j", 1e-4)?;
    let last = net.relu(last);
    let z = net.concat(z, last)?;
    let z = net.batch_norm_with(z, "k", 1e-3)?;
    let [y, z] = [y, z].map(|x| net.global_average(x));
    let y = net.linear(y, "l", 4)?;
    let z = net.linear(z, "m", 4)?;
    let y = net.add(y, z)?;
    net.finish(y)
}

/// A network with every operation. With `relus`, also a ReLU after each operation that can have one, and two biases.
pub(crate) fn everything(relus: bool) -> Graph {
    build_everything(relus).unwrap()
}

fn build_everything(relus: bool) -> Result<Graph, Error> {
    let mut net = Builder::new("everything", Shape::image(2, 7));
    let relu = |net: &mut Builder, x| if relus { net.relu(x) } else { x };
    let x = net.input();
    let x = net.conv(x, "a", Conv { out: 3, kernel: 3, stride: 2, pad: 1, bias: true })?;
    let y = net.batch_norm_with(x, "b", 1e-2)?;
    let y = net.relu(y);
    let y = net.dropout(y, 0.3)?;
    let z = net.conv(y, "c", Conv { bias: relus, ..Conv::same(3).stride(2) })?;
    let shortcut = net.subsample(x, 2)?;
    let z = net.add(z, shortcut)?;
    let z = relu(&mut net, z);
    let pooled = net.average_pool(x, Window { kernel: 2, stride: 2, pad: 0, ceil: true })?;
    let pooled = relu(&mut net, pooled);
    let z = net.concat(z, pooled)?;
    let z = net.pad_channels(z, 1, 2);
    let z = net.max_pool(z, Window { kernel: 3, stride: 1, pad: 1, ceil: false })?;
    let other = net.global_average(z);
    let z = net.linear(z, "d", 9)?;
    let z = relu(&mut net, z);
    let z = net.add(z, other)?;
    let z = net.linear(z, "e", 4)?;
    net.finish(z)
}

/// A network with every operation that has only its plain form, on images and on vectors, a sum of vectors
/// with a ReLU, and a result that nothing uses.
pub(crate) fn plain_operations() -> Graph {
    build_plain_operations().unwrap()
}

fn build_plain_operations() -> Result<Graph, Error> {
    let mut net = Builder::new("plain operations", Shape::image(2, 6));
    let x = net.input();
    let x = net.conv(x, "a", Conv::same(6))?;
    let y = net.group_norm(x, "b", 3)?;
    let y = net.relu(y);
    let y = net.conv(y, "c", Conv::same(6))?;
    let y = net.add(y, x)?;
    let average = net.global_average(y);
    let z = net.linear(y, "d", 6)?;
    let z = net.add(z, average)?;
    let z = net.relu(z);
    let z = net.group_norm(z, "e", 1)?;
    // Nothing uses this result: it must not touch the gradient of `y`.
    net.relu(y);
    let z = net.linear(z, "f", 4)?;
    net.finish(z)
}

/// The names of a network's operations that have only their plain form, each once.
pub(crate) fn plain_names(graph: &Graph) -> Vec<&'static str> {
    let mut names = Vec::new();
    for node in graph.nodes() {
        if let Op::Plain { plain, .. } = &node.op
            && !names.contains(&plain.name())
        {
            names.push(plain.name());
        }
    }
    names
}

/// Parameters and statistics that keep ReLUs away from their kinks: shifts of about five scales, every fourth negative.
pub(crate) fn smooth(graph: &Graph, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut draws = Key::new(seed, Purpose::Problem).stream();
    let mut parameters = graph.initial(seed);
    for span in graph.parameters().spans() {
        // Only the scale and shift of batch norms.
        let of_norm = graph.statistics().find(&span.name().replace(".weight", ".running_mean")).is_some()
            || graph.statistics().find(&span.name().replace(".bias", ".running_mean")).is_some();
        if !of_norm {
            continue;
        }
        let range = span.range();
        for at in range.clone() {
            parameters[at] = if span.name().ends_with("weight") {
                0.75 + 0.5 * draws.unit()
            } else {
                let sign = if (at - range.start) % 4 == 0 { -1.0 } else { 1.0 };
                sign * (4.5 + draws.unit())
            };
        }
    }
    let mut statistics = graph.initial_statistics();
    statistics.iter_mut().for_each(|x| *x = 0.8 * *x + 0.3 * draws.unit());
    (parameters, statistics)
}
