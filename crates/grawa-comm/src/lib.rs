//! Collectives between workers.
