//! The next batches of the host on their way to the GPU, while the step before runs. A batch of ResNet-50 has 77 MB: if the GPU
//! waited for its copy, it would idle for half as long as a step takes.

use super::device::{Context, Event, Stream};
use super::pinned::Pinned;
use super::replica_set::ReplicaSet;
use crate::Error;
use rayon::prelude::*;
use std::sync::Arc;

/// Bytes that a thread copies at a time.
const AT_ONCE: usize = 1 << 20;

/// The images of all workers in page-locked memory, and their labels.
#[derive(Debug)]
pub(super) struct BatchAhead {
    context: Arc<Context>,
    pinned: Pinned,
    labels: Vec<Vec<u32>>,
    /// Copies beside the main stream.
    stream: Stream,
    /// The images are on the GPU.
    copied: Event,
    /// The GPU has read the images before: their place is free.
    taken: Event,
    /// Whether the images are at their place on the GPU, or will be once `copied` has passed.
    is_sent: bool,
}

impl BatchAhead {
    fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Error> {
        Ok(BatchAhead {
            context: Arc::clone(context),
            pinned: Pinned::new(context, bytes)?,
            labels: Vec::new(),
            stream: Stream::new(context)?,
            copied: Event::new(context, false)?,
            taken: Event::new(context, false)?,
            is_sent: false,
        })
    }
}

impl Drop for BatchAhead {
    fn drop(&mut self) {
        // A copy may be under way, on either stream.
        if self.context.bind().is_ok() {
            let _ = self.stream.synchronise().and_then(|()| self.context.synchronise());
        }
    }
}

impl ReplicaSet {
    /// Begins to copy the batches of the next step to the GPU, beside the work that is enqueued. [`ReplicaSet::load_ahead`] loads
    /// them, whatever batches were loaded in between.
    pub fn copy_ahead(&mut self, batches: &[(&[f32], &[u32])]) -> Result<(), Error> {
        self.check_batches(batches)?;
        let size = 4 * self.program.batch * self.program.graph.input().len();
        let mut ahead = match self.ahead.take() {
            Some(ahead) => ahead,
            None => {
                let ahead = BatchAhead::new(&self.context, self.workers * size)?;
                // What was loaded before is read by work that is enqueued.
                self.main.mark(&ahead.taken)?;
                ahead
            }
        };
        // The GPU may still read the page-locked memory.
        ahead.stream.wait_for(&ahead.copied)?;
        ahead.stream.synchronise()?;
        let targets = ahead.pinned.as_mut_slice().par_chunks_exact_mut(size);
        targets.zip(batches.par_iter()).for_each(|(target, (images, _))| {
            let images: &[u8] = bytemuck::cast_slice(images);
            target
                .par_chunks_mut(AT_ONCE)
                .zip(images.par_chunks(AT_ONCE))
                .for_each(|(to, from)| to.copy_from_slice(from));
        });
        ahead.labels = batches.iter().map(|(_, labels)| labels.to_vec()).collect();
        // The place on the GPU is free once the enqueued work has read it: `intake` is the only kernel that does.
        ahead.stream.wait_for(&ahead.taken)?;
        self.send(&mut ahead, false)?;
        ahead.is_sent = true;
        self.ahead = Some(ahead);
        Ok(())
    }

    /// Loads the batches of the last [`ReplicaSet::copy_ahead`].
    pub fn load_ahead(&mut self) -> Result<(), Error> {
        let Some(mut ahead) = self.ahead.take() else {
            return Err(Error::device("load batches", "none were copied ahead"));
        };
        if ahead.is_sent {
            self.main.wait_for(&ahead.copied)?;
        } else {
            self.send(&mut ahead, true)?;
        }
        ahead.is_sent = false;
        for (worker, labels) in ahead.labels.iter().enumerate() {
            self.memory.write(self.offset(worker, self.program.offsets.labels), labels)?;
        }
        self.ahead = Some(ahead);
        self.take_in()
    }

    /// Before other batches take the place of those that were copied ahead.
    pub(super) fn displace_ahead(&mut self) -> Result<(), Error> {
        let Some(ahead) = &mut self.ahead else { return Ok(()) };
        if std::mem::take(&mut ahead.is_sent) { self.main.wait_for(&ahead.copied) } else { Ok(()) }
    }

    /// After `intake` was enqueued: the place of the images is free once it has run.
    pub(super) fn mark_taken(&self) -> Result<(), Error> {
        self.ahead.as_ref().map_or(Ok(()), |ahead| self.main.mark(&ahead.taken))
    }

    /// Enqueues the copy of all images, on the main stream or beside it.
    #[allow(unsafe_code, reason = "copies from page-locked memory")]
    fn send(&self, ahead: &mut BatchAhead, in_main: bool) -> Result<(), Error> {
        let stream = if in_main { &self.main } else { &ahead.stream };
        let size = 4 * self.program.batch * self.program.graph.input().len();
        for (worker, images) in ahead.pinned.as_mut_slice().chunks_exact(size).enumerate() {
            let to = self.memory.address(self.offset(worker, self.program.offsets.intake), size)?;
            // SAFETY: the range was checked. The page-locked memory is written again, and freed, only after the copy is done; so is the
            // memory of the GPU, which is freed after this.
            unsafe { stream.send(to, images) }?;
        }
        stream.mark(&ahead.copied)
    }
}
