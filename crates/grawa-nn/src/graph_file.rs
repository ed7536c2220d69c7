//! Networks as JSON: what `grawa.export` writes from a PyTorch model, and what `model.graph` of a recipe names.
//!
//! A file has a version, a name, the shape of an image, and the nodes in the order they run. A node has a name, the
//! names of its inputs, which come before it (`input` is the batch of images), and an operation with its settings. The
//! names of the tensors a node learns are PyTorch's: the node's name, then `.weight`, `.bias`, `.running_mean`,
//! `.running_var`. The last node gives the logits, and every other node is used by a later one. A linear layer reads
//! its whole input, channel by channel, as after PyTorch's `flatten(1)`.
//!
//! ```
//! let text = r#"{"version": 1, "name": "tiny", "input": [1, 8, 8], "nodes": [
//!     {"name": "conv", "inputs": ["input"], "op": {"conv": {"out": 4, "kernel": 3, "stride": 1, "pad": 1, "bias": false}}},
//!     {"name": "bn", "inputs": ["conv"], "op": {"batch_norm": {"epsilon": 1e-5}}},
//!     {"name": "relu", "inputs": ["bn"], "op": "relu"},
//!     {"name": "fc", "inputs": ["relu"], "op": {"linear": {"out": 10}}}]}"#;
//! let graph = grawa_nn::Graph::from_json(text)?;
//! assert_eq!((graph.parameters().len(), graph.classes()), (4 * 9 + 8 + 10 * 257, 10));
//! # Ok::<(), grawa_nn::Error>(())
//! ```

use crate::{Builder, Conv, Error, Graph, NodeId, Shape, Window};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// The version of the format.
const VERSION: u64 = 1;
/// The name of the batch of images.
const INPUT: &str = "input";
/// No setting is larger: sums of a few of them stay far from overflowing.
const LARGEST_SETTING: u32 = 1 << 20;
/// No tensor, and no result for one image, has more scalars.
const LARGEST_TENSOR: usize = 1 << 30;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GraphFile {
    #[serde(rename = "version")]
    _version: u64,
    name: String,
    input: [u32; 3],
    nodes: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    name: String,
    inputs: Vec<String>,
    op: FileOp,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum FileOp {
    Conv {
        out: u32,
        kernel: u32,
        stride: u32,
        pad: u32,
        bias: bool,
    },
    BatchNorm {
        epsilon: f64,
    },
    GroupNorm {
        groups: u32,
    },
    Relu,
    Add,
    /// Of any number of inputs.
    Concat,
    MaxPool(FileWindow),
    AveragePool(FileWindow),
    GlobalAverage,
    Linear {
        out: u32,
    },
    PadChannels {
        before: u32,
        after: u32,
    },
    Subsample {
        stride: u32,
    },
    Dropout {
        probability: f64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileWindow {
    kernel: u32,
    stride: u32,
    pad: u32,
    ceil: bool,
}

impl Graph {
    /// Reads a network from a file of JSON.
    pub fn read(path: &Path) -> Result<Graph, Error> {
        let io = |source| Error::Io { action: "read", path: path.into(), source };
        Graph::from_json(&std::fs::read_to_string(path).map_err(io)?).map_err(|error| match error {
            Error::GraphFile { place, why } => {
                Error::GraphFile { place: format!("{}: {place}", path.display()), why }
            }
            other => other,
        })
    }

    /// Reads a network from JSON. What is wrong is an error that names the node.
    pub fn from_json(text: &str) -> Result<Graph, Error> {
        let wrong = |why: String| Error::GraphFile { place: "the graph".into(), why };
        let json = |error: serde_json::Error| wrong(format!("{error}; grawa.export writes such files"));
        let value: Value = serde_json::from_str(text).map_err(json)?;
        match value.get("version").and_then(Value::as_u64) {
            Some(VERSION) => {}
            Some(found) => {
                let why = format!("it has version {found}, and this grawa reads version {VERSION}");
                return Err(wrong(why + "; export the network again with the grawa that trains it"));
            }
            None => {
                return Err(wrong(format!(
                    "it has no \"version\": {VERSION}; grawa.export writes such files"
                )));
            }
        }
        let file = GraphFile::deserialize(value).map_err(json)?;
        let Some(&[channels, height, width]) =
            settings(file.input).as_ref().filter(|input| fits(input.iter()))
        else {
            return Err(wrong(format!(
                "its images are of shape {:?}; all sides must be positive, and the product at most {LARGEST_TENSOR}",
                file.input
            )));
        };
        let mut reader = Reader {
            net: Builder::new(file.name, Shape { channels, height, width }),
            results: HashMap::from([(INPUT.into(), NodeId(0))]),
            concats: HashMap::new(),
            unused: HashMap::new(),
        };
        let mut last = NodeId(0);
        for (index, node) in file.nodes.iter().enumerate() {
            last = reader.node(node).map_err(|why| {
                let name = node.get("name").and_then(Value::as_str);
                let place = name.map_or(format!("node {index}"), |name| format!("node '{name}'"));
                Error::GraphFile { place, why }
            })?;
        }
        reader.unused.remove(&last);
        if let Some(name) = reader.unused.values().min() {
            let why = "nothing uses its result, and only the last node may give the logits; remove it".into();
            return Err(Error::GraphFile { place: format!("node '{name}'"), why });
        }
        reader.net.finish(last).map_err(|error| wrong(error.to_string()))
    }
}

struct Reader {
    net: Builder,
    results: HashMap<String, NodeId>,
    /// Sums of channels that exist already: where a list of inputs begins like an earlier one, as everywhere in a
    /// DenseNet, its beginning is computed once.
    concats: HashMap<(NodeId, NodeId), NodeId>,
    /// Nodes that nothing uses yet, and their names.
    unused: HashMap<NodeId, String>,
}

impl Reader {
    /// Adds a node; if that cannot be done, says why.
    fn node(&mut self, node: &Value) -> Result<NodeId, String> {
        let FileNode { name, inputs, op } = FileNode::deserialize(node).map_err(|error| error.to_string())?;
        if name.is_empty() {
            return Err("a name cannot be empty".into());
        }
        if self.results.contains_key(&name) {
            return Err("another node has this name; names must differ".into());
        }
        let find = |input: &String| {
            let missing =
                || format!("its input '{input}' is no earlier node; nodes are in the order they run");
            self.results.get(input).copied().ok_or_else(missing)
        };
        let inputs: Vec<NodeId> = inputs.iter().map(find).collect::<Result<_, _>>()?;
        let made = self.add(&name, &op, &inputs)?;
        let shape = self.net.shape(made);
        if !fits([shape.channels, shape.height, shape.width].iter()) {
            return Err(format!("its result has shape {shape}: no scalars, or more than {LARGEST_TENSOR}"));
        }
        inputs.iter().for_each(|input| drop(self.unused.remove(input)));
        self.unused.insert(made, name.clone());
        self.results.insert(name, made);
        Ok(made)
    }

    fn add(&mut self, name: &str, op: &FileOp, inputs: &[NodeId]) -> Result<NodeId, String> {
        let net = &mut self.net;
        let built = match (op, inputs) {
            (FileOp::Concat, &[first, ..]) => {
                return inputs[1..].iter().try_fold(first, |all, &next| self.concat(all, next));
            }
            (FileOp::Add, &[a, b]) => net.add(a, b),
            (FileOp::Add, _) | (FileOp::Concat, []) => {
                return Err(format!(
                    "it has {} inputs: an addition takes two, a concat at least one",
                    inputs.len()
                ));
            }
            (op, &[x]) => match *op {
                FileOp::Conv { out, kernel, stride, pad, bias } => {
                    let [out, kernel, stride, pad] =
                        settings([out, kernel, stride, pad]).ok_or_else(too_large)?;
                    if !fits([out, net.shape(x).channels, kernel, kernel].iter()) {
                        return Err(too_large());
                    }
                    net.conv(x, name, Conv { out, kernel, stride, pad, bias })
                }
                FileOp::BatchNorm { epsilon } => net.batch_norm_with(x, name, epsilon),
                FileOp::GroupNorm { groups } => net.group_norm(x, name, groups as usize),
                FileOp::Relu => Ok(net.relu(x)),
                FileOp::MaxPool(ref window) => net.max_pool(x, window.read()?),
                FileOp::AveragePool(ref window) => net.average_pool(x, window.read()?),
                FileOp::GlobalAverage => Ok(net.global_average(x)),
                FileOp::Linear { out } => {
                    let [out] = settings([out]).ok_or_else(too_large)?;
                    if !fits([out, net.shape(x).len()].iter()) {
                        return Err(too_large());
                    }
                    net.linear(x, name, out)
                }
                FileOp::PadChannels { before, after } => {
                    let [before, after] = settings([before, after]).ok_or_else(too_large)?;
                    Ok(net.pad_channels(x, before, after))
                }
                FileOp::Subsample { stride } => net.subsample(x, stride as usize),
                FileOp::Dropout { probability } => net.dropout(x, probability),
                FileOp::Add | FileOp::Concat => unreachable!("matched above"),
            },
            _ => return Err(format!("it has {} inputs, and takes one", inputs.len())),
        };
        built.map_err(|error| error.to_string())
    }

    fn concat(&mut self, a: NodeId, b: NodeId) -> Result<NodeId, String> {
        if let Some(&made) = self.concats.get(&(a, b)) {
            return Ok(made);
        }
        let made = self.net.concat(a, b).map_err(|error| error.to_string())?;
        self.concats.insert((a, b), made);
        Ok(made)
    }
}

impl FileWindow {
    fn read(&self) -> Result<Window, String> {
        let [kernel, stride, pad] = settings([self.kernel, self.stride, self.pad]).ok_or_else(too_large)?;
        Ok(Window { kernel, stride, pad, ceil: self.ceil })
    }
}

/// Settings, unless one is too large to compute with.
fn settings<const N: usize>(found: [u32; N]) -> Option<[usize; N]> {
    found.iter().all(|&setting| setting <= LARGEST_SETTING).then(|| found.map(|setting| setting as usize))
}

/// Whether something of these sides has scalars, and not too many.
fn fits<'a>(mut sides: impl Iterator<Item = &'a usize>) -> bool {
    sides
        .try_fold(1usize, |all, &side| all.checked_mul(side))
        .is_some_and(|all| (1..=LARGEST_TENSOR).contains(&all))
}

fn too_large() -> String {
    format!("a setting is 0 or above {LARGEST_SETTING}, or a tensor has more than {LARGEST_TENSOR} scalars")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::networks::everything;
    use crate::{Op, Plain, zoo};
    use proptest::prelude::*;
    use serde_json::json;

    /// The file of a graph: the inverse of the reader, for the operations that files have.
    #[allow(unreachable_patterns)]
    fn to_json(graph: &Graph) -> Value {
        let tensor = |id: &crate::TensorId| {
            let name = graph.parameters().spans()[id.0].name();
            name.rsplit_once('.').map_or(name, |(layer, _)| layer).to_owned()
        };
        let window = |window: &Window| json!({"kernel": window.kernel, "stride": window.stride, "pad": window.pad, "ceil": window.ceil});
        let mut names: Vec<String> = Vec::new();
        let mut nodes = Vec::new();
        for (index, node) in graph.nodes().iter().enumerate() {
            let unnamed = || format!("#{index}");
            let (name, op) = match &node.op {
                Op::Input => (INPUT.into(), Value::Null),
                Op::Conv { conv: Conv { out, kernel, stride, pad, bias }, weight, .. } => (
                    tensor(weight),
                    json!({"conv": {"out": out, "kernel": kernel, "stride": stride, "pad": pad, "bias": bias}}),
                ),
                Op::BatchNorm { weight, epsilon, .. } => {
                    (tensor(weight), json!({"batch_norm": {"epsilon": epsilon}}))
                }
                Op::Relu => (unnamed(), json!("relu")),
                Op::Add => (unnamed(), json!("add")),
                Op::MaxPool(pool) => (unnamed(), json!({"max_pool": window(pool)})),
                Op::AveragePool(pool) => (unnamed(), json!({"average_pool": window(pool)})),
                Op::GlobalAverage => (unnamed(), json!("global_average")),
                Op::Linear { weight, .. } => {
                    (tensor(weight), json!({"linear": {"out": node.shape.channels}}))
                }
                Op::PadChannels { before, after } => {
                    (unnamed(), json!({"pad_channels": {"before": before, "after": after}}))
                }
                Op::Subsample { stride } => (unnamed(), json!({"subsample": {"stride": stride}})),
                Op::Concat => (unnamed(), json!("concat")),
                Op::Dropout { probability } => (unnamed(), json!({"dropout": {"probability": probability}})),
                Op::Plain { plain: Plain::GroupNorm { groups }, tensors } => {
                    (tensor(&tensors[0]), json!({"group_norm": {"groups": groups}}))
                }
                Op::Plain { plain, .. } => panic!("files have no {}", plain.name()),
            };
            if index > 0 {
                let inputs: Vec<&String> = node.inputs.iter().map(|input| &names[input.0]).collect();
                nodes.push(json!({"name": name, "inputs": inputs, "op": op}));
            }
            names.push(name);
        }
        let Shape { channels, height, width } = graph.input();
        json!({"version": VERSION, "name": graph.name(), "input": [channels, height, width], "nodes": nodes})
    }

    fn error(text: &str) -> String {
        Graph::from_json(text).unwrap_err().to_string()
    }

    #[test]
    fn every_network_reads_back_from_its_file() {
        let zoo = zoo::ZOO.iter().map(|entry| entry.build(entry.input, entry.classes).unwrap());
        for graph in zoo.chain([everything(true)]) {
            let read = Graph::from_json(&to_json(&graph).to_string()).unwrap();
            assert_eq!(read.nodes(), graph.nodes(), "{}", graph.name());
            assert_eq!((read.parameters(), read.statistics()), (graph.parameters(), graph.statistics()));
            assert_eq!(read.name(), graph.name());
        }
    }

    /// Lists that begin alike share the beginning: a DenseNet has one sum of channels for each layer, not one for each pair of layers.
    #[test]
    fn lists_that_begin_alike_are_computed_once() {
        let node = |name: &str, inputs: &[&str], op: Value| json!({"name": name, "inputs": inputs, "op": op});
        let file = json!({"version": 1, "name": "dense", "input": [2, 3, 3], "nodes": [
            node("a", &["input"], json!("relu")),
            node("two", &["input", "a"], json!("concat")),
            node("b", &["two"], json!("relu")),
            node("three", &["input", "a", "b"], json!("concat")),
            node("one", &["three"], json!("concat")),
            node("fc", &["one"], json!({"linear": {"out": 2}})),
        ]});
        let graph = Graph::from_json(&file.to_string()).unwrap();
        let concats = graph.nodes().iter().filter(|node| node.op == Op::Concat);
        assert_eq!(concats.map(|node| node.shape.channels).collect::<Vec<_>>(), [4, 8]);
    }

    #[test]
    fn what_is_wrong_names_the_node() {
        let file =
            |nodes: Value| json!({"version": 1, "name": "n", "input": [2, 6, 6], "nodes": nodes}).to_string();
        let one = |name: &str, inputs: &[&str], op: Value| {
            file(json!([{"name": name, "inputs": inputs, "op": op}]))
        };
        let conv = |out: u64, kernel: u64, pad: u64| json!({"conv": {"out": out, "kernel": kernel, "stride": 1, "pad": pad, "bias": true}});
        for (text, words) in [
            (one("x", &["input"], json!("silu")), "node 'x': unknown variant `silu`, expected one of `conv`"),
            (one("x", &["y"], json!("relu")), "node 'x': its input 'y' is no earlier node"),
            (one("x", &["x"], json!("relu")), "node 'x': its input 'x' is no earlier node"),
            (one("input", &["input"], json!("relu")), "node 'input': another node has this name"),
            (one("", &["input"], json!("relu")), "node '': a name cannot be empty"),
            (one("x", &["input"], json!("add")), "node 'x': it has 1 inputs: an addition takes two"),
            (one("x", &[], json!("concat")), "node 'x': it has 0 inputs"),
            (one("x", &["input", "input"], json!("relu")), "node 'x': it has 2 inputs, and takes one"),
            (one("c", &["input"], conv(4, 9, 1)), "node 'c': convolution c does not fit an input of 2×6×6"),
            (
                one("c", &["input"], conv(1 << 20, 1 << 10, 1 << 10)),
                "node 'c': a setting is 0 or above 1048576",
            ),
            (one("c", &["input"], conv(1 << 21, 3, 1)), "node 'c': a setting is 0 or above 1048576"),
            (one("c", &["input"], conv(1 << 40, 3, 1)), "node 'c': invalid value: integer"),
            (one("c", &["input"], conv(1 << 20, 1, 1 << 15)), "node 'c': its result has shape"),
            (
                one("b", &["input"], json!({"batch_norm": {"epsilon": 0.0}})),
                "node 'b': batch norm b does not fit",
            ),
            (one("b", &["input"], json!({"batch_norm": {"eps": 1.0}})), "node 'b': unknown field `eps`"),
            (
                one("g", &["input"], json!({"group_norm": {"groups": 3}})),
                "node 'g': group norm g does not fit",
            ),
            (
                one("d", &["input"], json!({"dropout": {"probability": 1.0}})),
                "node 'd': dropout does not fit",
            ),
            (
                file(json!([
                    {"name": "x", "inputs": ["input"], "op": "relu"},
                    {"name": "y", "inputs": ["input"], "op": {"linear": {"out": 2}}},
                ])),
                "node 'x': nothing uses its result, and only the last node may give the logits; remove it",
            ),
            (file(json!([{"op": "relu"}])), "node 0: missing field `name`"),
            (file(json!([])), "the graph: finish does not fit an input of 2×6×6"),
            (one("x", &["input"], json!("relu")), "the graph: finish does not fit an input of 2×6×6"),
            (
                json!({"version": 2, "new": true}).to_string(),
                "the graph: it has version 2, and this grawa reads version 1",
            ),
            (json!({"name": "n"}).to_string(), "the graph: it has no \"version\": 1"),
            (
                json!({"version": 1, "name": "n", "input": [0, 6, 6], "nodes": []}).to_string(),
                "the graph: its images are of shape [0, 6, 6]",
            ),
            ("{".into(), "the graph: EOF while parsing"),
        ] {
            let found = error(&text);
            assert!(found.starts_with(words), "{text}\n{found}\n{words}");
        }
    }

    /// A file that was changed in one place, within the grammar.
    fn changed(file: &mut Value, at: &prop::sample::Index, to: &Value) {
        fn leaves<'v>(value: &'v mut Value, found: &mut Vec<&'v mut Value>) {
            match value {
                Value::Array(items) => items.iter_mut().for_each(|item| leaves(item, found)),
                Value::Object(fields) => fields.values_mut().for_each(|field| leaves(field, found)),
                leaf => found.push(leaf),
            }
        }
        let mut found = Vec::new();
        leaves(file, &mut found);
        let at = at.index(found.len());
        *found[at] = to.clone();
    }

    proptest! {
        /// Whatever is changed, a file is refused, or is a network whose shapes follow from one another.
        #[test]
        fn any_file_is_read_or_refused(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), prop_oneof![
                any::<u64>().prop_map(Value::from), (0u64..9).prop_map(Value::from), any::<f64>().prop_map(Value::from),
                Just(json!("relu")), Just(json!("concat")), Just(json!("a")), Just(json!(INPUT)), Just(Value::Null),
            ]), 1..4),
            cut: prop::sample::Index,
        ) {
            let mut file = to_json(&everything(true));
            changes.iter().for_each(|(at, to)| changed(&mut file, at, to));
            let text = file.to_string();
            if let Ok(graph) = Graph::from_json(&text) {
                let again = Graph::from_json(&to_json(&graph).to_string()).unwrap();
                prop_assert_eq!(again.nodes(), graph.nodes());
            }
            let end = (0..=cut.index(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
            prop_assert!(Graph::from_json(&text[..end]).is_err());
        }
    }
}
