//! A model of Candle that grawa trains, in two ways: see the examples.

mod examples;
mod flat_vars;
mod network;
mod replica;

pub use examples::{BATCH, EXAMPLES, score_batch, test_set, train_batch};
pub use flat_vars::FlatVars;
pub use network::Network;
pub use replica::CandleReplica;
