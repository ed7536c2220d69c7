//! A worker's batch for a GPU: indices of examples on the GPU, or images from the host if the data set is too large or
//! in files.

use crate::Error;
use grawa_nn::cuda::ReplicaSet;

/// A batch of one worker.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Batch {
    /// Examples on the GPU.
    Examples(Vec<u32>),
    /// Images and labels.
    Images(Vec<f32>, Vec<u32>),
}

/// Loads batches that come from the host. Otherwise returns the examples to assign.
pub(super) fn load_host_batches(
    set: &mut ReplicaSet,
    batches: Vec<Batch>,
) -> Result<Option<Vec<Vec<u32>>>, Error> {
    let mut examples = Vec::with_capacity(batches.len());
    let mut shown = Vec::with_capacity(batches.len());
    for batch in batches {
        match batch {
            Batch::Examples(numbers) => examples.push(numbers),
            Batch::Images(images, labels) => shown.push((images, labels)),
        }
    }
    if shown.is_empty() {
        return Ok(Some(examples));
    }
    let shown: Vec<(&[f32], &[u32])> =
        shown.iter().map(|(images, labels)| (images.as_slice(), labels.as_slice())).collect();
    set.load_batches(&shown)?;
    Ok(None)
}
