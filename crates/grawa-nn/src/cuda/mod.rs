//! The engine on NVIDIA GPUs: many replicas on a GPU; one local step of all of them is one captured graph.
//!
//! The build needs nothing of CUDA. The driver, the kernel compiler and cuDNN are loaded on first use; an error names what is
//! missing and how to get it. [`devices`] lists the GPUs. A [`ReplicaSet`] is a network with the memory of its workers on one
//! GPU. [`MultiGpu`] holds rounds with workers on several GPUs.

mod autotune;
mod backend;
mod backward;
mod batch_ahead;
mod compile;
mod cudnn;
mod curvature;
mod data;
mod device;
mod device_share;
mod device_snapshot;
mod evaluation;
mod floors;
mod forward;
mod host_step;
mod host_vector;
mod job;
mod joined;
mod kernel_cache;
mod kernel_choice;
mod kernel_file;
mod kernels;
mod layout;
mod library;
mod limits;
mod local_step;
mod multi_gpu;
mod nccl;
mod pass;
mod pinned;
mod pooled;
mod replica_set;
mod round;
#[cfg(test)]
mod rounded;
mod staging;
mod tangent;
mod wide;

pub use autotune::Choice;
pub use backend::Cuda;
pub use curvature::Curvature;
pub use data::{DatasetBytes, Split, View};
pub use device::{Device, devices};
pub use device_share::DeviceShare;
pub use device_snapshot::{DeviceSnapshot, StateVector};
pub use evaluation::{Kept, Model};
pub use floors::KernelTime;
pub use kernel_cache::{CACHE, kernel_cache};
pub use kernels::compile_kernels;
pub use library::{Name as Library, VARIABLE, open};
pub use multi_gpu::{AllReduce, MultiGpu, Participant};
pub use replica_set::{Outcome, ReplicaSet, Settings};
pub use round::Vectors;
