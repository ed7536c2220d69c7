//! Copies of vectors that are made on the GPU at once and fetched later, on another thread, while the replica set goes on. Fetching
//! the state of large networks takes hundreds of milliseconds, the copy on the GPU less than one.

use super::compile::Span;
use super::device::{Context, Event, Memory, Stream};
use super::layout;
use super::limits;
use super::pinned::Pinned;
use super::replica_set::{BEHIND, ReplicaSet};
use crate::Error;
use crate::cpu::memory::with_capacity;
use grawa_core::StateKind;
use std::sync::{Arc, Mutex, PoisonError};

/// A vector of a replica set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateVector {
    /// A part of a worker's state.
    Worker(usize, StateKind),
    /// The centre of a group, if there is one, and the velocity of its outer optimizer.
    Centre {
        /// The level; see [`ReplicaSet::load_centre`].
        level: usize,
        /// The group.
        group: usize,
    },
}

/// The most copies at a time: two of all workers, and evaluated models before, between and after them.
const MOST: usize = 5;
/// Bytes that are fetched at a time.
const AT_ONCE: usize = 8 << 20;

/// Memory for copies, on the GPU and on the way to the host.
#[derive(Debug)]
pub(super) struct SnapshotRoom {
    context: Arc<Context>,
    memory: Memory,
    /// Fetches beside the main stream, after the copies on it.
    stream: Stream,
    copied: Event,
    pinned: Mutex<Pinned>,
}

/// A vector as consecutive pieces of `numbers` numbers each, in the order of the GPU if it has the layout of the parameters.
#[derive(Clone, Copy, Debug)]
struct Copied {
    vector: StateVector,
    offset: usize,
    numbers: usize,
    pieces: usize,
}

/// Copies of vectors on the GPU. Fetching does not need the replica set.
#[derive(Debug)]
pub struct DeviceSnapshot {
    room: Arc<SnapshotRoom>,
    copied: Vec<Copied>,
    spans: Vec<Span>,
}

impl ReplicaSet {
    /// Copies vectors on the GPU, as they are after all enqueued work. `None` if there is no room for them, because earlier copies are not
    /// fetched yet, or because at least half of the free memory would be needed.
    pub fn snapshot(&mut self, wanted: &[StateVector]) -> Result<Option<DeviceSnapshot>, Error> {
        let sources: Vec<(StateVector, Vec<u64>, usize)> =
            wanted.iter().map(|vector| self.sources(*vector)).collect::<Result<_, _>>()?;
        let bytes = sources.iter().map(|(_, from, numbers)| 4 * numbers * from.len()).sum();
        let Some(room) = self.snapshot_room(bytes)? else { return Ok(None) };
        let (mut copied, mut offset) = (Vec::with_capacity(sources.len()), 0);
        for (vector, from, numbers) in sources {
            copied.push(Copied { vector, offset, numbers, pieces: from.len() });
            for from in from {
                self.copy_to(&room.memory, offset, from, 4 * numbers)?;
                offset += 4 * numbers;
            }
        }
        self.main.mark(&room.copied)?;
        room.stream.wait_for(&room.copied)?;
        Ok(Some(DeviceSnapshot { room, copied, spans: self.program.spans.clone() }))
    }

    /// Where the pieces of a vector are, and their length.
    fn sources(&self, vector: StateVector) -> Result<(StateVector, Vec<u64>, usize), Error> {
        let (offsets, length) = (&self.program.offsets, self.program.graph.parameters().len());
        let (from, numbers) = match vector {
            StateVector::Worker(worker, StateKind::Parameters) => {
                (vec![self.vector_address(worker, offsets.parameters)?], length)
            }
            StateVector::Worker(worker, StateKind::Velocity) => {
                (vec![self.vector_address(worker, offsets.velocity)?], length)
            }
            StateVector::Worker(worker, StateKind::SecondMoment) => {
                limits::index("worker", worker, self.workers)?;
                let start = 4 * worker * (length + BEHIND);
                let from = self.second.as_ref().map(|memory| memory.address(start, 4 * (length + 1)));
                (from.transpose()?.into_iter().collect(), length + 1)
            }
            StateVector::Worker(worker, StateKind::Statistics) => {
                limits::index("worker", worker, self.workers)?;
                let numbers = self.program.graph.statistics().len();
                (vec![self.memory.address(self.offset(worker, offsets.statistics), 4 * numbers)?], numbers)
            }
            StateVector::Centre { level, group } => {
                let centre = self.centre_address(level, group)?;
                let outer = self.outer.as_ref().filter(|_| level == 0 && centre.is_some());
                let outer = outer.map(|memory| memory.address(0, 4 * length)).transpose()?;
                (centre.into_iter().chain(outer).collect(), length)
            }
        };
        Ok((vector, from, numbers))
    }

    /// Enqueues a copy to memory of a snapshot. The address comes from `sources`.
    #[allow(unsafe_code, reason = "a copy inside device memory")]
    fn copy_to(&self, memory: &Memory, offset: usize, from: u64, bytes: usize) -> Result<(), Error> {
        let to = memory.address(offset, bytes)?;
        // SAFETY: both ranges were checked. The replica set and the room wait for the GPU before they free memory.
        unsafe { self.main.copy(to, from, bytes) }
    }

    /// Memory for a snapshot of `bytes` bytes: a free room of about that size, or a new one; none if the GPU has too little memory.
    fn snapshot_room(&mut self, bytes: usize) -> Result<Option<Arc<SnapshotRoom>>, Error> {
        let is_free = |room: &Arc<SnapshotRoom>| Arc::strong_count(room) == 1;
        if let Some(room) = self.rooms.iter().find(|room| is_free(room) && fits(room.memory.bytes, bytes)) {
            return Ok(Some(Arc::clone(room)));
        }
        if self.rooms.len() == MOST {
            let Some(unfit) = self.rooms.iter().position(is_free) else { return Ok(None) };
            self.rooms.swap_remove(unfit);
        }
        self.context.bind()?;
        if 2 * bytes > self.context.free_memory()? {
            return Ok(None);
        }
        // Whatever it lacks, the vectors can still be copied to the host at once.
        let Ok(room) = SnapshotRoom::new(&self.context, bytes) else { return Ok(None) };
        let room = Arc::new(room);
        self.rooms.push(Arc::clone(&room));
        Ok(Some(room))
    }
}

/// Whether memory of `there` bytes is used for copies of `bytes` bytes.
fn fits(there: usize, bytes: usize) -> bool {
    // No memory is smaller than 256 bytes.
    (bytes..=(2 * bytes).max(256)).contains(&there)
}

impl DeviceSnapshot {
    /// Copies the vectors to the host, in the order in which they were asked for. What does not exist is empty.
    pub fn fetch(self) -> Result<Vec<Vec<f32>>, Error> {
        self.copied.iter().map(|copied| self.vector(copied)).collect()
    }

    fn vector(&self, &Copied { vector, offset, numbers, pieces }: &Copied) -> Result<Vec<f32>, Error> {
        let mut values = self.room.read(offset, numbers * pieces)?;
        match vector {
            StateVector::Worker(_, StateKind::Statistics) => {}
            // Its last number counts its steps.
            StateVector::Worker(_, StateKind::SecondMoment) if values.last() == Some(&0.0) => values.clear(),
            _ => {
                let pieces = values.chunks_exact_mut(numbers.max(1));
                pieces.for_each(|piece| layout::relayout_in_place(&self.spans, piece, false));
            }
        }
        Ok(values)
    }
}

impl SnapshotRoom {
    fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Error> {
        Ok(SnapshotRoom {
            context: Arc::clone(context),
            memory: Memory::new(context, bytes)?,
            stream: Stream::new(context)?,
            copied: Event::new(context, false)?,
            pinned: Mutex::new(Pinned::new(context, AT_ONCE.min(bytes.max(4)))?),
        })
    }

    /// Fetches numbers, beside the main stream.
    #[allow(unsafe_code, reason = "copies to page-locked memory")]
    fn read(&self, offset: usize, numbers: usize) -> Result<Vec<f32>, Error> {
        self.context.bind()?;
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let pinned: &mut [f32] = bytemuck::cast_slice_mut(pinned.as_mut_slice());
        let mut values = with_capacity(numbers);
        while values.len() < numbers {
            let count = pinned.len().min(numbers - values.len());
            let room = &mut pinned[..count];
            let from = self.memory.address(offset + size_of_val(&*values), size_of_val(room))?;
            // SAFETY: the range was checked, any bytes are valid values, and the stream is done before the lock is released.
            unsafe { self.stream.fetch(room, from) }?;
            values.extend_from_slice(room);
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of the evaluated model does not take the room for all workers.
    #[test]
    fn a_small_copy_leaves_the_large_room() {
        assert!(fits(900, 900) && fits(900, 450) && fits(256, 8));
        assert!(!fits(900, 100) && !fits(900, 901));
    }
}
