//! The evaluation of models: they replace the workers' parameters and statistics, forward passes run, and the workers are restored
//! bit for bit.
//!
//! Passes are only enqueued. Each keeps its result at a place of its own on the GPU, and the host reads those of many passes at once:
//! if it waited for every pass, the GPU would idle about as long as a pass of a small network takes.

use super::data::{Source, Split};
use super::device::{Grid, Memory, arguments};
use super::host_step::unpack;
use super::job::Job;
use super::limits;
use super::pass::{Pass, PassMode};
use super::replica_set::ReplicaSet;
use crate::error::expect_len;
use crate::{Error, Op};
use grawa_core::Key;
use rayon::prelude::*;

/// A model to evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// The worker's own parameters.
    Own,
    /// The centre of a group; see [`ReplicaSet::load_centre`].
    Centre {
        /// The level.
        level: usize,
        /// The group.
        group: usize,
    },
}

/// What a pass keeps of every worker's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The batch statistics of a training batch, as the running average keeps them when it starts at zero.
    Statistics,
    /// The logits of a test batch.
    Logits,
}

/// The most bytes that passes keep on the GPU, and the most passes.
const ROOM: usize = 64 << 20;
const PASSES: usize = 256;

/// How many passes can keep results of `bytes` bytes.
fn passes_in_room(bytes: usize) -> usize {
    (ROOM / bytes.max(1)).clamp(1, PASSES)
}

impl ReplicaSet {
    /// Replaces the workers by models until [`ReplicaSet::unload_models`].
    pub fn load_models(&mut self, models: &[Model]) -> Result<(), Error> {
        if models.len() > self.workers {
            let what = "the list of models".into();
            return Err(Error::WrongLength { what, found: models.len(), expected: self.workers });
        }
        let sources = (models.iter().enumerate())
            .map(|(worker, model)| self.model_address(worker, *model))
            .collect::<Result<Vec<u64>, Error>>()?;
        if !self.is_replaced {
            self.copy_statistics(true)?;
            self.copy_each(self.program.offsets.parameters, self.program.offsets.saved)?;
            self.is_replaced = true;
        }
        for (worker, from) in sources.into_iter().enumerate() {
            self.copy_vector(self.vector_address(worker, self.program.offsets.parameters)?, from)?;
        }
        self.pack_weights()
    }

    /// The address of a model while the workers are replaced.
    fn model_address(&self, worker: usize, model: Model) -> Result<u64, Error> {
        let place = match model {
            Model::Own => Some(self.vector_address(worker, self.program.offsets.saved)?),
            Model::Centre { level, group } => self.centre_address(level, group)?,
        };
        place.ok_or_else(|| Error::device("evaluate a model", "it has not been made yet"))
    }

    /// The address of a vector as long as the parameters in a worker's slab.
    pub(super) fn vector_address(&self, worker: usize, offset: u64) -> Result<u64, Error> {
        limits::index("worker", worker, self.workers)?;
        self.memory.address(self.offset(worker, offset), 4 * self.program.graph.parameters().len())
    }

    /// Copies a vector as long as the parameters. Both addresses come from `vector_address` or `centre_address`.
    #[allow(unsafe_code, reason = "a copy inside device memory")]
    fn copy_vector(&self, to: u64, from: u64) -> Result<(), Error> {
        // SAFETY: `vector_address` and `centre_address` checked that this many numbers are there, in memory of this replica set,
        // which waits for the GPU before it frees any.
        unsafe { self.main.copy(to, from, 4 * self.program.graph.parameters().len()) }
    }

    /// Copies one vector of every worker to another vector of the same worker.
    pub(crate) fn copy_each(&self, from: u64, to: u64) -> Result<(), Error> {
        (0..self.workers).try_for_each(|worker| {
            self.copy_vector(self.vector_address(worker, to)?, self.vector_address(worker, from)?)
        })
    }

    /// Saves the statistics of all workers, or restores them.
    #[allow(unsafe_code, reason = "copies inside device memory")]
    fn copy_statistics(&mut self, saves: bool) -> Result<(), Error> {
        self.reserve_statistics()?;
        let bytes = 4 * self.program.graph.statistics().len();
        let Some(saved) = &self.saved_statistics else { return Ok(()) };
        for worker in 0..self.workers {
            let own = self.memory.address(self.offset(worker, self.program.offsets.statistics), bytes)?;
            let saved = saved.address(worker * bytes, bytes)?;
            let (to, from) = if saves { (saved, own) } else { (own, saved) };
            // SAFETY: both ranges were checked, in memory of this replica set, which waits for the GPU before it frees any.
            unsafe { self.main.copy(to, from, bytes) }?;
        }
        Ok(())
    }

    /// Restores the workers.
    pub fn unload_models(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.is_replaced) {
            return Ok(());
        }
        self.copy_statistics(false)?;
        self.restore()
    }

    /// How many passes can be enqueued before their results are read.
    pub fn passes_at_once(&self) -> usize {
        passes_in_room(self.workers * self.kept_bytes(Kept::Statistics).max(self.kept_bytes(Kept::Logits)))
    }

    /// Bytes that a pass keeps of a worker.
    fn kept_bytes(&self, kept: Kept) -> usize {
        match kept {
            Kept::Statistics => 4 * self.program.graph.statistics().len(),
            Kept::Logits => self.program.bytes(self.program.last()),
        }
    }

    /// Begins a series of passes: the key of every worker's first batch, and how many steps the keys of its next ones are apart.
    pub fn begin_passes(&mut self, kept: Kept, keys: &[(Key, u32)]) -> Result<(), Error> {
        expect_len("the list of keys", keys.len(), self.workers)?;
        if kept == Kept::Statistics {
            let nothing = vec![0.0; self.program.graph.statistics().len()];
            (0..self.workers).try_for_each(|worker| self.load_statistics(worker, &nothing))?;
        }
        for (controls, (_, apart)) in self.controls.iter_mut().zip(keys) {
            controls.apart = *apart;
        }
        let keys: Vec<Key> = keys.iter().map(|(key, _)| *key).collect();
        self.set_positions(&keys, &[0.0], [0.0; 2])
    }

    /// Enqueues a pass of every worker's loaded model: on the next batch that is assigned to it, or on its loaded batch. Statistics are
    /// those of augmented training batches, logits those of test batches.
    pub fn enqueue_pass(&mut self, kept: Kept, is_assigned: bool) -> Result<(), Error> {
        let from = match (is_assigned, kept) {
            (false, _) => Source::Loaded,
            (true, Kept::Statistics) => Source::Augmented,
            (true, Kept::Logits) => Source::CentreCrop(Split::Test),
        };
        self.run(Job::Measure { kept, from })
    }

    /// Allocates what evaluations need. Otherwise the first one does, and a run that has begun ends if the GPU is full by then.
    pub fn reserve_evaluation(&mut self) -> Result<(), Error> {
        self.reserve_statistics()?;
        self.reserve_kept()
    }

    /// Allocates the place of the workers' statistics while others replace them.
    fn reserve_statistics(&mut self) -> Result<(), Error> {
        let bytes = 4 * self.program.graph.statistics().len();
        Memory::reserve(&mut self.saved_statistics, &self.context, self.workers * bytes).map(|_| ())
    }

    /// Allocates the room for what passes keep.
    pub(super) fn reserve_kept(&mut self) -> Result<(), Error> {
        let each = self.kept_bytes(Kept::Statistics).max(self.kept_bytes(Kept::Logits));
        let bytes = self.passes_at_once() * self.workers * each;
        Memory::reserve(&mut self.kept, &self.context, bytes).map(|_| ())
    }

    /// What the passes since [`ReplicaSet::begin_passes`] have kept, pass by pass of each worker.
    pub fn kept_results(&mut self, kept: Kept) -> Result<Vec<Vec<Vec<f32>>>, Error> {
        let (passes, each) = (self.slot, self.kept_bytes(kept));
        let mut stored = vec![0u8; passes * self.workers * each];
        if let Some(memory) = self.kept.as_ref().filter(|_| passes > 0) {
            memory.read(0, &mut stored)?;
        }
        let (last, batch, wide) = (self.program.last(), self.program.batch, self.program.wide);
        let shape = self.program.shape(last);
        let result = |(pass, worker): (usize, usize)| {
            let stored = &stored[(pass * self.workers + worker) * each..][..each];
            match kept {
                Kept::Statistics => stored.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect(),
                Kept::Logits => unpack(shape, batch, wide, stored),
            }
        };
        let of_worker =
            |worker: usize| (0..passes).into_par_iter().map(|pass| result((pass, worker))).collect();
        Ok((0..self.workers).map(of_worker).collect())
    }
}

impl Pass<'_> {
    /// Enqueues a forward pass that computes no more than what is kept of it.
    pub(super) fn forward_for(&self, kept: Kept) -> Result<(), Error> {
        match kept {
            Kept::Logits => self.forward(PassMode { of_batch: false, track: false, dropout: false }),
            Kept::Statistics => {
                let pass_mode = PassMode { of_batch: true, track: true, dropout: false };
                let is_norm = |index: &usize| matches!(self.program.steps[*index].op, Op::BatchNorm { .. });
                let last = (0..self.program.steps.len()).rev().find(is_norm);
                (0..last.map_or(0, |last| last + 1)).try_for_each(|index| self.step_forward(index, pass_mode))
            }
        }
    }

    /// Enqueues the end of such a pass: its result is kept, and the next one has the next batch.
    pub(super) fn keep(&self, kept: Kept) -> Result<(), Error> {
        let Some(memory) = &self.set.kept else {
            return Err(Error::device("keep the result of a pass", "it has no memory"));
        };
        let words = self.kept_bytes(kept) as u64 / 4;
        let (result, clears) = match kept {
            Kept::Statistics => (self.base + self.program.offsets.statistics, 1),
            Kept::Logits => (self.value(self.program.last()), 0),
        };
        let place = memory.start + 4 * words * self.first as u64;
        let (replicas, slab) = (self.set.workers as u32, self.program.slab);
        let arguments = arguments![self.base, result, words, clears, place, replicas, slab];
        self.start(self.main, "keep_result", Grid::row(1), arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_a_large_data_set_are_kept_in_parts() {
        // Four workers, 128 images: ten classes in bf16, a thousand classes, and one result larger than the room.
        assert_eq!(passes_in_room(4 * 128 * 16 * 2), PASSES);
        assert_eq!(passes_in_room(4 * 128 * 1000 * 2), 65);
        assert_eq!((passes_in_room(2 * ROOM), passes_in_room(0)), (1, PASSES));
    }
}
