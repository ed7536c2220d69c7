//! The engine on the CPU: networks compiled for a batch size, on blocked activations, direct convolutions, batch norm
//! fused with what follows it.

mod arena;
mod block;
mod conv;
mod lanes;
mod norm;
mod pass;
mod pixels;
mod program;

pub use arena::Arena;
pub use program::Program;
