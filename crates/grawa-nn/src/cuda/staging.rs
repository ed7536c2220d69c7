//! Page-locked memory of the host for small copies. What is sent to the GPU stays here until the GPU has fetched it, so the host does
//! not wait; what is read from several places arrives here, so the host waits once.
#![allow(unsafe_code)]

use super::pinned::allocate;
use crate::Error;
use cudarc::driver::result;

/// The most bytes of a copy that is worth the second copy on the host.
pub(super) const LARGEST: usize = 256 << 10;
const ROOM: usize = 8 * LARGEST;
/// Parts begin at multiples of this.
const APART: usize = 64;

/// Page-locked memory of a context, allocated when it is first needed.
#[derive(Debug)]
pub(super) struct Staging {
    start: *mut u8,
    used: usize,
}

// SAFETY: the memory belongs to this value alone, and any thread may use it.
unsafe impl Send for Staging {}

impl Staging {
    pub(super) fn new() -> Self {
        Staging { start: std::ptr::null_mut(), used: 0 }
    }

    /// Whether `bytes` more bytes fit without [`Staging::clear`].
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.used + bytes <= ROOM
    }

    /// Takes room that is there. Nobody else gets it before [`Staging::clear`]. The context is current.
    pub(super) fn take(&mut self, bytes: usize) -> Result<*mut [u8], Error> {
        assert!(self.has_room(bytes), "checked by the caller");
        if self.start.is_null() {
            self.start = allocate(ROOM)?;
        }
        let taken = std::ptr::slice_from_raw_parts_mut(self.start.wrapping_add(self.used), bytes);
        self.used = (self.used + bytes).next_multiple_of(APART);
        Ok(taken)
    }

    /// Makes all room free again. The GPU is done with it.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// Frees the memory. The context is current, and the GPU is done with it.
    pub(super) fn free(&mut self) {
        let start = std::mem::replace(&mut self.start, std::ptr::null_mut());
        if !start.is_null() {
            // SAFETY: allocated once in `take`, and the stream that used it is done.
            let _ = unsafe { result::free_host(start.cast()) };
        }
    }
}
