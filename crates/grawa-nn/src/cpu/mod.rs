//! The engine on the CPU: networks compiled for a batch size, on blocked activations, direct convolutions, batch norm
//! fused with what follows it.

// Kernels index several arrays of sixteen lanes by the same number: as loops over that number they read as what they are,
// and are what the compiler turns into vector instructions.
#![allow(clippy::needless_range_loop)]

mod arena;
mod backward;
mod block;
mod conv_geometry;
mod convolution;
mod curvature;
mod direct;
mod forward;
mod memory;
mod norm;
mod pass;
mod pixels;
mod profile;
mod program;
mod simd;
mod tangent;
mod tangent_norm;
mod winograd;
mod winograd_transforms;

pub use arena::Arena;
pub use curvature::{Curvature, Point, Tangents};
pub use profile::Profile;
pub use program::Program;
