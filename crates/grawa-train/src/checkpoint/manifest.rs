//! What a checkpoint says besides its vectors: the reproducible part and the seconds, apart.

use crate::course::Position;
use crate::snapshot::{Part, Past, Snapshot};
use crate::word::Tally;
use crate::{Error, Evaluated, Times};
use grawa_core::{Memory, Notes};
use grawa_nn::{Data, Tensors};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// The form of checkpoints; one of another form is refused.
const FORM: u32 = 1;

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
    workers: Vec<WorkerEntry>,
    memories: Vec<MemoryEntry>,
    history: Vec<Evaluated>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WorkerEntry {
    worker: u32,
    taken: u64,
    in_cycle: u64,
    loss: f64,
    finite: bool,
    tally: Tally,
    past: Past,
    notes: Vec<Notes>,
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
    elapsed: f64,
    settled: f64,
    history: Vec<f64>,
    workers: Vec<Times>,
}

impl Manifest {
    pub(super) fn of(snapshot: &Snapshot) -> (Manifest, Timing) {
        let timing = Timing {
            elapsed: snapshot.at.elapsed.as_secs_f64(),
            settled: snapshot.settled.map_or(0.0, |at| at.elapsed.as_secs_f64()),
            history: snapshot.history.iter().map(|evaluated| evaluated.at.elapsed).collect(),
            workers: snapshot.parts.iter().map(|part| part.past.times).collect(),
        };
        let workers = snapshot.parts.iter().map(|part| WorkerEntry {
            worker: part.worker,
            taken: part.taken,
            in_cycle: part.in_cycle,
            loss: part.loss,
            finite: part.finite,
            tally: part.tally,
            past: part.past,
            notes: part.notes.clone(),
        });
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
            workers: workers.collect(),
            memories: memories.collect(),
            history: history.collect(),
        };
        (manifest, timing)
    }

    /// The snapshot again.
    pub(super) fn restore(self, timing: &Timing, state: &Tensors, path: &Path) -> Result<Snapshot, Error> {
        let wrong = |why: &str| Error::NotACheckpoint { path: path.into(), why: why.into() };
        if self.form != FORM {
            return Err(wrong(&format!("it is of form {}, and this program reads form {FORM}", self.form)));
        }
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
        let mut parts = Vec::with_capacity(self.workers.len());
        for (index, entry) in self.workers.into_iter().enumerate() {
            let worker = entry.worker;
            parts.push(Part {
                parameters: vector(&format!("worker.{worker}.parameters"))?,
                velocity: vector(&format!("worker.{worker}.momentum"))?,
                statistics: vector(&format!("worker.{worker}.statistics"))?,
                worker,
                notes: entry.notes,
                taken: entry.taken,
                in_cycle: entry.in_cycle,
                loss: entry.loss,
                finite: entry.finite,
                tally: entry.tally,
                past: Past { times: timing.workers.get(index).copied().unwrap_or_default(), ..entry.past },
                centres: Vec::new(),
            });
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
        Ok(Snapshot {
            at: Position { elapsed: seconds(timing.elapsed), ..self.at },
            settled: self.settled.map(|at| Position { elapsed: seconds(timing.settled), ..at }),
            stopped: self.stopped,
            finished: self.finished,
            parts,
            memories,
            history,
            calibrated: None,
            held: None,
        })
    }
}
