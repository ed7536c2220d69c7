//! The engine: networks as static graphs over one flat vector.
//!
//! A [`Graph`] is built once, by a function of the [`zoo`] or through a [`Builder`]; it infers every shape, counts its
//! parameters, and names tensors as PyTorch does. [`Tape`] is the plain path: every operation unfused, generic over
//! the number, the reference that faster engines are tested against.
#![deny(missing_docs)]

mod cpu;
mod error;
mod graph;
mod init;
mod matmul;
mod op;
pub mod probe;
mod scalar;
mod shape;
mod tape;
mod tensors;
pub mod zoo;

pub use cpu::{Arena, Program};
pub use error::Error;
pub use graph::{Builder, Conv, Graph, Node, NodeId, Op, TensorId, Window};
pub use init::Init;
pub use scalar::Scalar;
pub use shape::Shape;
pub use tape::{Mode, Tape};
pub use tensors::{Data, Tensor, Tensors};
