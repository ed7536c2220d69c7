#![doc = include_str!("../README.md")]
//!
//! ## Where things are
//!
//! A [`Graph`] is built once: by a function of the [`zoo`], with a [`Builder`], or from a file
//! ([`Graph::from_json`]). It infers every shape, counts its
//! parameters, and names tensors as PyTorch does. [`Tape`] is the plain path: every operation unfused, generic over
//! the number type; faster engines are tested against it. [`Program`] is the engine on the CPU: a graph compiled for a
//! batch size, which runs in an [`Arena`]. [`cuda::ReplicaSet`] is the engine on GPUs. Both implement [`Backend`]. [`State`]
//! holds a worker's parameters and statistics, in files that PyTorch reads.
#![deny(missing_docs)]

// Unit tests share code with integration tests.
#[cfg(all(test, feature = "cuda"))]
extern crate self as grawa_nn;
#[cfg(test)]
#[path = "../tests/networks/mod.rs"]
mod networks;

mod backend;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod dual;
mod error;
mod graph;
mod graph_file;
mod init;
mod matmul;
mod op;
mod peak_flops;
mod plan;
pub mod probe;
mod scalar;
mod shape;
mod state;
mod tape;
mod tensors;
pub mod zoo;

pub use backend::{Backend, Compiled, PassResult, Precision};
pub use cpu::{Arena, Cpu, Curvature, Point, Profile, Program, Tangents};
pub use dual::Dual;
pub use error::Error;
pub use graph::{Builder, Conv, Graph, Node, NodeId, Op, TensorId, Window};
pub use init::Init;
pub use op::plain::Plain;
pub use peak_flops::peak_flops;
pub use scalar::Scalar;
pub use shape::Shape;
pub use state::State;
pub use tape::{Mode, Tape};
pub use tensors::{CHECKSUM, Data, Metadata, Tensor, Tensors};
