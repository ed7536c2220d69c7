//! One training-mode forward and backward pass on given values, compared with expected results.
//!
//! A values file holds `param.*`, `buffer.*`, `image` and `label`, and optionally the expected `logits`, `loss_sum`,
//! `grad.*` (of the sum of the losses, without dropout) and `buffer_after.*`. With `vector.*`, the Hessian of the mean
//! loss is multiplied by that vector and compared with `hvp.*`. `oracle/values.py` writes such files from PyTorch in
//! f64.

#[cfg(feature = "cuda")]
use crate::cuda::{Cuda, Device};
use crate::tensors::{Tensor, Tensors};
use crate::{Backend, Compiled, Cpu, Curvature, Error, Graph, Mode, PassResult, Precision, Shape, zoo};
use grawa_core::norm::norm;
use std::path::Path;

/// The results of a probe, and their distance from the expected ones.
#[derive(Debug)]
pub struct Probe {
    /// The results, under the names of the file.
    pub results: Tensors,
    /// For each kind of expected value, the largest relative error and its tensor.
    pub errors: Vec<Distance>,
}

/// A relative error ‖found − expected‖ / ‖expected‖.
#[derive(Clone, Debug, PartialEq)]
pub struct Distance {
    /// The kind: `logits`, `loss_sum`, `grad (whole)`, `grad`, `buffer_after`, `hvp (whole)`, `hvp`.
    pub kind: &'static str,
    /// The tensor with the largest error.
    pub tensor: String,
    /// The error.
    pub error: f64,
}

/// Tensors of a gradient, or of a product with the Hessian, whose norm is below this share of the whole are not judged
/// one by one: in f32 they are rounding noise.
pub const JUDGED: f64 = 1e-4;

/// Where a probe runs.
#[derive(Clone, Debug)]
pub enum Engine {
    /// All cores, f32.
    Cpu,
    /// A GPU.
    #[cfg(feature = "cuda")]
    Cuda(Device, Precision),
}

/// Runs a network on a values file: one of the zoo, for this number of classes, or a file that ends in `.json`. `out` is the path of the
/// results.
pub fn probe(
    network: &str,
    classes: Option<usize>,
    values: &Path,
    out: &Path,
    engine: &Engine,
) -> Result<Probe, Error> {
    let file = Tensors::read(values, network)?;
    let image = file.find("image").ok_or_else(|| file.missing("image"))?;
    let &[batch, channels, height, width] = image.shape.as_slice() else {
        return Err(file.differs("image", image, "f32 of shape [batch, channels, height, width]".into()));
    };
    let graph = if network.ends_with(".json") {
        Graph::read(Path::new(network))?
    } else {
        let entry = zoo::find(network)?;
        entry.build(Shape { channels, height, width }, classes.unwrap_or(entry.classes))?
    };
    run(&graph, &file, batch, out, engine)
}

fn run(graph: &Graph, file: &Tensors, batch: usize, out: &Path, engine: &Engine) -> Result<Probe, Error> {
    let Shape { channels, height, width } = graph.input();
    let parameters = file.vector("param.", graph.parameters())?;
    let before = file.vector("buffer.", graph.statistics())?;
    let images = file.f32("image", &[batch, channels, height, width])?;
    let labels = labels(graph, file.i64("label", &[batch])?)?;

    let start = (parameters.as_slice(), before.as_slice());
    let shown = (images, labels.as_slice());
    let PassResult { logits, loss, gradient, statistics } = match engine {
        Engine::Cpu => pass(&Cpu, Precision::F32, graph, start, shown)?,
        #[cfg(feature = "cuda")]
        Engine::Cuda(device, precision) => {
            let cuda = Cuda { device: device.clone(), workers: 1, fixed: true };
            pass(&cuda, *precision, graph, start, shown)?
        }
    };

    let mut results = Tensors::new(out, graph.name());
    results.put("logits", Tensor::f32(&[batch, graph.classes()], logits));
    results.put("loss_sum", Tensor::f32(&[1], vec![loss as f32]));
    results.put_vector("grad.", graph.parameters(), &gradient);
    results.put_vector("buffer_after.", graph.statistics(), &statistics);
    let layout = graph.parameters();
    let asked = layout.spans().iter().any(|span| file.find(&format!("vector.{}", span.name())).is_some());
    // Products with the Hessian exist on the CPU only.
    if asked && matches!(engine, Engine::Cpu) {
        let vector = file.vector("vector.", layout)?;
        let product = product(graph, (&parameters, &before), (images, &labels), &vector)?;
        results.put_vector("hvp.", layout, &product);
    }
    let errors = compare(&results, file)?;
    Ok(Probe { results, errors })
}

fn pass(
    backend: &impl Backend,
    precision: Precision,
    graph: &Graph,
    start: (&[f32], &[f32]),
    shown: (&[f32], &[u32]),
) -> Result<PassResult, Error> {
    let mut program = backend.compile(graph, shown.1.len(), precision)?;
    program.pass(start, shown, Mode::Train { dropout: None }, 1.0)
}

/// The Hessian of the mean loss times a vector.
fn product(
    graph: &Graph,
    model: (&[f32], &[f32]),
    examples: (&[f32], &[u32]),
    vector: &[f32],
) -> Result<Vec<f32>, Error> {
    let curvature = Curvature::compile(graph, examples.1.len())?;
    let mut tangents = curvature.tangents(std::thread::available_parallelism().map_or(1, usize::from))?;
    let mut point = curvature.point(&tangents);
    let mut out = vec![0.0; vector.len()];
    let factor = 1.0 / examples.1.len() as f64;
    let how = (Mode::Train { dropout: None }, factor);
    curvature.visit(&mut point, &mut tangents, model, examples, how, &mut out)?;
    curvature.product(&mut point, &mut tangents, model.0, vector, &mut out)?;
    Ok(out)
}

fn labels(graph: &Graph, found: &[i64]) -> Result<Vec<u32>, Error> {
    let read = |(example, &label): (usize, &i64)| match u32::try_from(label) {
        Ok(label) if (label as usize) < graph.classes() => Ok(label),
        _ => Err(Error::LabelOutOfRange { example, found: label, classes: graph.classes() }),
    };
    found.iter().enumerate().map(read).collect()
}

/// A tensor's name, its values and the expected ones.
type Pair<'a> = (&'a str, &'a [f32], &'a [f32]);

fn gap((_, found, expected): &Pair<'_>) -> f64 {
    let difference: Vec<f32> = found.iter().zip(*expected).map(|(a, b)| a - b).collect();
    norm(&difference)
}

fn size((_, _, expected): &Pair<'_>) -> f64 {
    norm(expected)
}

/// The largest relative error of each kind that both files have.
fn compare(results: &Tensors, expected: &Tensors) -> Result<Vec<Distance>, Error> {
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for name in results.names() {
        let Some(found) = results.find(name) else { continue };
        if expected.find(name).is_some() {
            pairs.push((name, results.f32(name, &found.shape)?, expected.f32(name, &found.shape)?));
        }
    }
    let of = |kind: &'static str| pairs.iter().filter(move |pair| pair.0.split('.').next() == Some(kind));
    let whole = |kind: &'static str, part: fn(&Pair<'_>) -> f64| {
        libm::sqrt(of(kind).map(|pair| part(pair) * part(pair)).sum::<f64>())
    };
    let mut errors = Vec::new();
    for (kind, together) in [
        ("logits", None),
        ("loss_sum", None),
        ("grad", Some("grad (whole)")),
        ("buffer_after", None),
        ("hvp", Some("hvp (whole)")),
    ] {
        let total = whole(kind, size);
        if let Some(kind_of_all) = together.filter(|_| total > 0.0) {
            let error = whole(kind, gap) / total;
            errors.push(Distance { kind: kind_of_all, tensor: "all of them".into(), error });
        }
        let judged = of(kind).filter(|pair| together.is_none() || size(pair) > JUDGED * total);
        let relative = judged.map(|pair| (gap(pair) / size(pair).max(f64::MIN_POSITIVE), pair.0));
        if let Some((error, tensor)) = relative.max_by(|a, b| a.0.total_cmp(&b.0)) {
            errors.push(Distance { kind, tensor: tensor.into(), error });
        }
    }
    Ok(errors)
}
