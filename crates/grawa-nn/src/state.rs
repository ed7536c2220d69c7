//! The parameters and statistics of a worker, as a file that PyTorch reads: the `state_dict` of the same network.
//!
//! Tensors have PyTorch's names: parameters, running statistics, and `num_batches_tracked` of every batch norm.
//!
//! ```no_run
//! use grawa_nn::{Shape, State, zoo};
//! use std::path::Path;
//! let net = zoo::find("resnet20")?.build(Shape::image(3, 28), 10)?;
//! State::initial(&net, 7).save(&net, Path::new("start.safetensors"))?;
//! let same = State::load(&net, Path::new("start.safetensors"))?;
//! # Ok::<(), grawa_nn::Error>(())
//! ```

use crate::error::expect_len;
use crate::{Error, Graph, Metadata, Tensor, Tensors};
use std::path::Path;

/// Parameters and running statistics of one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The parameters, in the layout of the graph.
    pub parameters: Vec<f32>,
    /// The running statistics of batch norm, in their layout.
    pub statistics: Vec<f32>,
    /// Batches included in the statistics.
    pub batches: u64,
}

impl State {
    /// The initial state of a seed.
    pub fn initial(graph: &Graph, seed: u64) -> Self {
        State { parameters: graph.initial(seed), statistics: graph.initial_statistics(), batches: 0 }
    }

    /// Writes the state to a file that must not exist yet.
    pub fn save(&self, graph: &Graph, path: &Path) -> Result<(), Error> {
        self.tensors(graph, path)?.write()
    }

    /// The bytes of the file, with metadata.
    pub fn to_bytes(&self, graph: &Graph, metadata: Metadata) -> Result<Vec<u8>, Error> {
        let mut file = self.tensors(graph, Path::new(""))?;
        file.metadata = metadata;
        file.to_bytes()
    }

    fn tensors(&self, graph: &Graph, path: &Path) -> Result<Tensors, Error> {
        let mut file = Tensors::new(path, graph.name());
        for (layout, vector) in
            [(graph.parameters(), &self.parameters), (graph.statistics(), &self.statistics)]
        {
            expect_len("the state", vector.len(), layout.len())?;
            file.put_vector("", layout, vector);
        }
        for counter in counters(graph) {
            file.put(counter, Tensor::i64(&[], vec![self.batches as i64]));
        }
        Ok(file)
    }

    /// Reads the state of this network from a file. A missing or unknown tensor, or one of another shape, is an error.
    pub fn load(graph: &Graph, path: &Path) -> Result<Self, Error> {
        let file = Tensors::read(path, graph.name())?;
        let (parameters, statistics) =
            (file.vector("", graph.parameters())?, file.vector("", graph.statistics())?);
        let counters: Vec<String> = counters(graph).collect();
        file.all_known(|name| {
            graph.parameters().find(name).is_some()
                || graph.statistics().find(name).is_some()
                || counters.iter().any(|counter| counter == name)
        })?;
        // All batch norms of a network see the same batches. Without counters the count starts at zero.
        let batches = match counters.first().filter(|counter| file.find(counter).is_some()) {
            Some(counter) => file.i64(counter, &[])?[0].max(0) as u64,
            None => 0,
        };
        Ok(State { parameters, statistics, batches })
    }
}

/// The names of the batch counters, one for each batch norm.
fn counters(graph: &Graph) -> impl Iterator<Item = String> {
    let names = graph.statistics().spans().iter().filter_map(|span| span.name().strip_suffix("running_mean"));
    names.map(|name| format!("{name}num_batches_tracked"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, zoo};

    #[test]
    fn a_state_goes_both_ways_and_fits_its_network_only() {
        let folder = std::env::temp_dir().join(format!("grawa-state-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("state.safetensors");
        let graph = zoo::digits("digits", Shape::image(1, 8), 4, 10).unwrap();
        let state = State { batches: 12, ..State::initial(&graph, 3) };
        state.save(&graph, &path).unwrap();
        assert_eq!(State::load(&graph, &path).unwrap(), state);
        assert_eq!(std::fs::read(&path).unwrap(), state.to_bytes(&graph, Metadata::new()).unwrap());
        assert!(state.save(&graph, &path).is_err(), "it was overwritten");
        let wider = zoo::digits("wider", Shape::image(1, 8), 5, 10).unwrap();
        let error = State::load(&wider, &path).unwrap_err().to_string();
        assert!(
            error.contains("conv1.weight") && error.contains("wider needs f32 of shape [5, 1, 3, 3]"),
            "{error}"
        );
        let other = zoo::resnet("other", Shape::image(3, 8), 1, 8, 10).unwrap();
        assert!(State::load(&other, &path).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
