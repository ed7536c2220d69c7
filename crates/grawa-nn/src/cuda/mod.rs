//! The engine on NVIDIA GPUs: many replicas on a card, a local step of all of them one captured graph.
//!
//! Nothing of CUDA is needed to build: the driver, the compiler of kernels and cuDNN are looked for when they are asked
//! for, and what is missing is named together with how to get it. [`cards`] lists the GPUs; a [`Fleet`] is a network with
//! the memory of its workers on one of them; a [`Link`] holds rounds whose workers lie on several.

mod backward;
mod card;
mod choose;
mod cudnn;
mod data;
mod engine;
mod fleet;
mod forward;
mod library;
mod limits;
mod link;
mod local;
mod nccl;
mod part;
mod pass;
mod plan;
mod round;
#[cfg(test)]
mod rounded;

pub use card::{Card, cards, compile};
pub use choose::Choice;
pub use data::{Bytes, Set, View};
pub use fleet::{Fleet, Outcome, Precision, Settings};
pub use library::{Name as Library, VARIABLE, open};
pub use link::{Link, Seat, Sum};
pub use local::Model;
pub use part::Part;
pub use round::Vectors;
