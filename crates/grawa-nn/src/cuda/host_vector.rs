//! Vectors with the layout of the parameters, between the host and the GPU: through page-locked memory, where they are in the order
//! of the GPU. Rounds between processes and products with the Hessian copy one each way.

use super::device::Memory;
use super::layout::relayout;
use super::pinned::Pinned;
use super::replica_set::ReplicaSet;
use crate::Error;
use std::sync::PoisonError;

impl ReplicaSet {
    /// Copies a vector of the host to the GPU, in its order.
    pub(super) fn send_vector(&self, vector: &[f32], to: &Memory, offset: usize) -> Result<(), Error> {
        self.with_pinned(vector.len(), |pinned| {
            relayout(&self.program.spans, vector, pinned, true);
            to.write(offset, pinned)
        })
    }

    /// Copies a vector of the GPU to the host, in its order.
    pub(super) fn fetch_vector(&self, from: &Memory, offset: usize, vector: &mut [f32]) -> Result<(), Error> {
        self.with_pinned(vector.len(), |pinned| {
            from.read(offset, pinned)?;
            relayout(&self.program.spans, pinned, vector, false);
            Ok(())
        })
    }

    /// Lends page-locked memory for this many numbers. It is kept: allocating it takes longer than a copy.
    fn with_pinned(
        &self,
        numbers: usize,
        act: impl FnOnce(&mut [f32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut kept = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        drop(kept.take_if(|pinned| pinned.as_mut_slice().len() < 4 * numbers));
        let pinned = match kept.take() {
            Some(pinned) => pinned,
            None => Pinned::new(&self.context, 4 * numbers)?,
        };
        act(bytemuck::cast_slice_mut(&mut kept.insert(pinned).as_mut_slice()[..4 * numbers]))
    }
}
