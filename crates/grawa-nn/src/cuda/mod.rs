//! The engine on NVIDIA GPUs: many replicas on a GPU, a local step of all of them one captured graph.
//!
//! Nothing of CUDA is needed to build: the driver, the compiler of kernels and cuDNN are looked for when they are asked
//! for, and what is missing is named together with how to get it. [`GPUs`] lists the GPUs; a [`ReplicaSet`] is a network with
//! the memory of its workers on one of them; a [`Link`] holds rounds whose workers lie on several.

mod autotune;
mod backward;
mod compile;
mod cudnn;
mod data;
mod device;
mod device_share;
mod forward;
mod kernel_choice;
mod library;
mod limits;
mod local_step;
mod multi_gpu;
mod nccl;
mod pass;
mod replica_set;
mod round;
#[cfg(test)]
mod rounded;

pub use autotune::Choice;
pub use data::{DatasetBytes, Split, View};
pub use device::{Device, compile_kernels, devices};
pub use device_share::DeviceShare;
pub use library::{Name as Library, VARIABLE, open};
pub use local_step::Model;
pub use multi_gpu::{AllReduce, MultiGpu, Participant};
pub use replica_set::{Outcome, Precision, ReplicaSet, Settings};
pub use round::Vectors;
