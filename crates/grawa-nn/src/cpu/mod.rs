//! The engine on the CPU: networks compiled for a batch size, on blocked activations, direct convolutions, batch norm
//! fused with what follows it.

// Kernels index several arrays of sixteen lanes by the same number: as loops over that number they read as what they are,
// and are what the compiler turns into vector instructions.
#![allow(clippy::needless_range_loop)]

mod arena;
mod backward;
mod block;
mod conv;
mod convolve;
mod curvature;
mod forward;
mod lanes;
mod memory;
mod norm;
mod pass;
mod pixels;
mod program;
mod route;
mod tangent;
mod tangent_norm;
mod tile;
mod watch;
mod winograd;

pub use arena::Arena;
pub use curvature::{Curvature, Point, Tangents};
pub use program::Program;
pub use watch::Watch;
