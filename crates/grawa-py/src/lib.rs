//! The module `grawa._native`: a session, as Python's `grawa.Session` and `grawa.join` call it.
//!
//! Arrays are asked for the address of their numbers: the stable interface of Python 3.10 has no buffers. Type, length, alignment and
//! layout are checked on the Python side, which says best what is wrong, and here before each copy.
// Python's arguments arrive by value.
#![allow(clippy::needless_pass_by_value)]

mod attend;
mod checksum;
mod memory;
mod process_group;
mod reference;
mod session;

use pyo3::prelude::*;

#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::attend::{GrawaError, RunEnded};
    #[pymodule_export]
    use crate::checksum::_crc32c;
    #[pymodule_export]
    use crate::reference::{_methods, _sequential};
    #[pymodule_export]
    use crate::session::{ExampleOrder, Session, join};
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
