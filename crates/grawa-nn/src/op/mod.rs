//! The operations, one file each: forward and backward in plain, unfused form, for a whole batch.
//!
//! Fused kernels are tested against them. All are pure functions on slices in the order image, channel, row. They are
//! generic over the number type: the same code in `f64` is the reference. A backward function *adds* to the gradients
//! it is given, because a result may be used twice.

pub(crate) mod average_pool;
pub(crate) mod batch_norm;
pub(crate) mod channels;
pub(crate) mod conv;
pub(crate) mod cross_entropy;
pub(crate) mod dropout;
pub(crate) mod group_norm;
pub(crate) mod linear;
pub(crate) mod max_pool;
pub(crate) mod plain;
pub(crate) mod relu;
pub(crate) mod subsample;
