//! What a checkpoint says besides its vectors: the reproducible part and the seconds, apart.

use super::checksums::crc;
use crate::milestones::Position;
use crate::snapshot::{Part, Snapshot};
use crate::{Error, Evaluated, Times};
use grawa_core::Memory;
use grawa_nn::{Data, Graph, Tensors};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// The form of checkpoints that is written. Form 1 had no checksums and did not say what it was made by; it is still read.
pub(super) const FORM: u32 = 2;

/// What a checkpoint was made by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The digest of the recipe in the run's folder, where it has one.
    pub(crate) recipe: Option<String>,
    network: Option<Network>,
}

/// A network: its name, and a digest of the names and shapes of its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Network {
    name: String,
    layout: String,
}

impl Origin {
    pub(crate) fn of(recipe: Option<String>, graph: Option<&Graph>) -> Self {
        let network = graph.map(|graph| {
            let spans = graph.parameters().spans().iter().chain(graph.statistics().spans());
            let text: String = spans.map(|span| format!("{} {:?}\n", span.name(), span.shape())).collect();
            Network { name: graph.name().into(), layout: crc(text.as_bytes()) }
        });
        Origin { recipe, network }
    }

    /// Why a network is not the one that was trained, if it is not.
    pub(crate) fn objection(&self, graph: &Graph) -> Option<String> {
        let trained = self.network.as_ref()?;
        let given = Origin::of(None, Some(graph)).network?;
        if *trained == given {
            return None;
        }
        let Network { name, .. } = trained;
        Some(if *name == given.name {
            format!("its network '{name}' has other tensors than the network of that name here")
        } else {
            format!(
                "it holds the network '{name}', and this is '{}'; a network that is not of the zoo can only be used by the \
                 program that builds it, with Run::with_network",
                given.name
            )
        })
    }
}

/// Everything that is the same in every run of a recipe.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    form: u32,
    stopped: bool,
    finished: bool,
    at: Position,
    settled: Option<Position>,
    /// Where the statistics of `model.safetensors` come from.
    statistics: String,
    origin: Option<Origin>,
    workers: Vec<Part>,
    memories: Vec<MemoryEntry>,
    history: Vec<Evaluated>,
}

#[derive(Debug, Serialize, Deserialize)]
struct MemoryEntry {
    level: usize,
    group: usize,
    memory: Memory,
}

/// Everything that is not.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Timing {
    /// Its number in the order of writing.
    #[serde(default)]
    order: u64,
    elapsed: f64,
    settled: f64,
    history: Vec<f64>,
    workers: Vec<Times>,
}

impl Manifest {
    /// Of a snapshot whose vectors are elsewhere.
    pub(super) fn of(snapshot: &Snapshot, origin: Origin, order: u64) -> (Manifest, Timing) {
        let timing = Timing {
            order,
            elapsed: snapshot.at.elapsed.as_secs_f64(),
            settled: snapshot.settled.map_or(0.0, |at| at.elapsed.as_secs_f64()),
            history: snapshot.history.iter().map(|evaluated| evaluated.at.elapsed).collect(),
            workers: snapshot.parts.iter().map(|part| part.past.times).collect(),
        };
        let memories = snapshot.memories.iter().enumerate().flat_map(|(level, groups)| {
            let entry =
                move |(group, memory): (usize, &Memory)| MemoryEntry { level, group, memory: memory.clone() };
            groups.iter().enumerate().map(entry)
        });
        let history = snapshot.history.iter().map(|evaluated| {
            let mut evaluated = evaluated.clone();
            evaluated.at.elapsed = 0.0;
            evaluated
        });
        let manifest = Manifest {
            form: FORM,
            stopped: snapshot.stopped,
            finished: snapshot.finished,
            at: snapshot.at,
            settled: snapshot.settled,
            statistics: if snapshot.calibrated.is_some() { "as evaluated" } else { "average of the workers" }
                .into(),
            origin: Some(origin),
            workers: snapshot.parts.clone(),
            memories: memories.collect(),
            history: history.collect(),
        };
        (manifest, timing)
    }

    pub(super) fn into_origin(self) -> Option<Origin> {
        self.origin
    }

    /// The snapshot again, and what it was made by.
    pub(super) fn restore(
        self,
        timing: &Timing,
        state: &Tensors,
        path: &Path,
    ) -> Result<(Snapshot, Option<Origin>), Error> {
        let wrong = |why: &str| Error::NotACheckpoint { path: path.into(), why: why.into() };
        let vector = |name: &str| match state.find(name).map(|tensor| &tensor.data) {
            Some(Data::F32(numbers)) => Ok(numbers.clone()),
            _ => Err(wrong(&format!("it has no vector '{name}'"))),
        };
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let mut memories: Vec<Vec<Memory>> = Vec::new();
        for MemoryEntry { level, group, memory } in self.memories {
            memories.resize_with(memories.len().max((level + 1).min(2)), Vec::new);
            match memories.get_mut(level) {
                Some(groups) if groups.len() == group => groups.push(memory),
                _ => return Err(wrong("its memories are out of order")),
            }
        }
        let mut parts = self.workers;
        for (index, part) in parts.iter_mut().enumerate() {
            let vector = |kind: &str| vector(&format!("worker.{}.{kind}", part.worker));
            (part.parameters, part.velocity) = (vector("parameters")?, vector("momentum")?);
            // SGD has none.
            part.second_moment = vector("second_moment").unwrap_or_default();
            part.statistics = vector("statistics")?;
            part.past.times = timing.workers.get(index).copied().unwrap_or_default();
        }
        let Some(first) = parts.first_mut() else { return Err(wrong("it has no workers")) };
        for (level, groups) in memories.iter().enumerate() {
            for group in 0..groups.len() {
                // Where nothing but gradients is shared there is no centre.
                if state.find(&format!("centre.{level}.{group}")).is_some() {
                    first.centres.push((level, group, vector(&format!("centre.{level}.{group}"))?));
                }
            }
        }
        let mut history = self.history;
        history
            .iter_mut()
            .zip(&timing.history)
            .for_each(|(evaluated, &elapsed)| evaluated.at.elapsed = elapsed);
        let snapshot = Snapshot {
            at: Position { elapsed: seconds(timing.elapsed), ..self.at },
            settled: self.settled.map(|at| Position { elapsed: seconds(timing.settled), ..at }),
            stopped: self.stopped,
            finished: self.finished,
            parts,
            memories,
            history,
            calibrated: None,
            held: None,
        };
        Ok((snapshot, self.origin))
    }
}
