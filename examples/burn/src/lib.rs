//! A model of Burn that grawa trains: see the example.

pub mod flat;
mod network;

pub use network::{BATCH, EXAMPLES, Network, score_batch, test_set};
