//! Page-locked memory of the host: the GPU copies to it and from it by itself, at the full rate of the bus.
#![allow(unsafe_code)]

use super::device::{Context, failed};
use crate::Error;
use cudarc::driver::result;
use std::sync::Arc;

/// Page-locked memory of the host, initially zero. Whoever lets the GPU use it waits for the GPU before it is dropped.
#[derive(Debug)]
pub(super) struct Pinned {
    context: Arc<Context>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone, and any thread may use it.
unsafe impl Send for Pinned {}

/// Allocates page-locked memory, initially zero. The context is current. Who calls this frees it.
pub(super) fn allocate(bytes: usize) -> Result<*mut u8, Error> {
    // SAFETY: a plain allocation.
    let start = unsafe { result::malloc_host(bytes, 0) }
        .map_err(failed(format!("allocate {bytes} bytes of pinned memory of the host")))?
        .cast::<u8>();
    // SAFETY: the memory was just allocated with this length.
    unsafe { start.write_bytes(0, bytes) };
    Ok(start)
}

impl Pinned {
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Error> {
        context.bind()?;
        Ok(Pinned { context: context.clone(), start: allocate(bytes)?, bytes })
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialised with this length in `new`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated once in `new`; nobody uses it any more.
            let _ = unsafe { result::free_host(self.start.cast()) };
        }
    }
}
