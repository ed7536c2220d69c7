//! The engine on the CPU.

mod block;
mod conv;
mod lanes;
