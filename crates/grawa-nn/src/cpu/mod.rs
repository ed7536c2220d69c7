//! The engine on the CPU: networks compiled for a batch size, with blocked activations, direct and Winograd
//! convolutions, and batch norm fused with what follows it.

// Kernels index several arrays of sixteen lanes by the same number. Loops over that number are readable, and the
// compiler vectorises them.
#![allow(clippy::needless_range_loop)]

mod arena;
mod backend;
mod backward;
mod block;
mod conv_geometry;
mod convolution;
mod curvature;
mod direct;
mod forward;
mod images;
mod linear;
pub(crate) mod memory;
mod norm;
mod pass;
mod pixels;
mod plain;
mod profile;
mod program;
mod simd;
mod tangent;
mod tangent_norm;
mod winograd;
mod winograd_tiling;
mod winograd_transforms;

pub use arena::Arena;
pub use backend::Cpu;
pub use curvature::{Curvature, Point, Tangents};
pub use profile::Profile;
pub use program::Program;
