//! The operations, each in its own file: forward and backward in plain, unfused form, for a whole batch.
//!
//! This is the reference that fused kernels are tested against. Everything is a pure function on slices, image
//! after image, channel after channel, row after row; generic over the number, so that the same code in `f64` is
//! the truth. A backward function *adds* to the gradients it is given, because a result may be used twice.

pub(crate) mod average_pool;
pub(crate) mod batch_norm;
pub(crate) mod channels;
pub(crate) mod conv;
pub(crate) mod cross_entropy;
pub(crate) mod dropout;
pub(crate) mod linear;
pub(crate) mod max_pool;
pub(crate) mod relu;
pub(crate) mod subsample;
