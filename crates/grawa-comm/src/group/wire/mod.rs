//! Connections: framing, TLS, and listening.

pub(crate) mod bulk_cipher;
pub(crate) mod connection;
pub(crate) mod file_limit;
pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod listener;
mod pending;
pub(crate) mod tls;
