//! Vectors that several threads work on at once, each on a stretch of its own.
//!
//! The compiler cannot see that stretches do not overlap or that an owner waits while its vector is on loan. Both are
//! promised by the meetings of `threads`, and every use says which.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::Range;

/// A vector on loan from the member that owns it.
#[derive(Clone, Debug)]
pub(super) struct Lent {
    pointer: *mut f32,
    len: usize,
}

// SAFETY: the pointer is used between the meetings only, while the owner's exclusive borrow is alive.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Lent {
    pub(super) fn new(vector: &mut [f32]) -> Self {
        Lent { pointer: vector.as_mut_ptr(), len: vector.len() }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// # Safety
    /// The owner waits, and nobody else holds a stretch that overlaps.
    // That a shared borrow gives an exclusive one is the point of this module.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn stretch(&self, at: Range<usize>) -> &mut [f32] {
        assert!(at.start <= at.end && at.end <= self.len, "a stretch lies inside its vector");
        // SAFETY: inside the vector, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(at.start), at.len()) }
    }

    /// # Safety
    /// The owner waits, and nobody writes to the vector.
    pub(super) unsafe fn read(&self) -> &[f32] {
        // SAFETY: the whole vector, and nobody writes by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }
}

/// A vector that belongs to a group.
#[derive(Debug)]
pub(super) struct Cells(Box<[UnsafeCell<f32>]>);

// SAFETY: reading and writing are apart in time, or in place, by the callers' promises.
unsafe impl Sync for Cells {}

impl Cells {
    pub(super) fn new(vector: Vec<f32>) -> Self {
        Cells(vector.into_iter().map(UnsafeCell::new).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// Nobody reads, and nobody else holds a stretch that overlaps.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn stretch(&self, at: Range<usize>) -> &mut [f32] {
        let cells = &self.0[at];
        // SAFETY: cells may be written through a shared borrow, they are laid out as their floats, and the stretch is
        // exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(cells.as_ptr()), cells.len()) }
    }

    /// # Safety
    /// Nobody writes.
    pub(super) unsafe fn read(&self) -> &[f32] {
        // SAFETY: laid out as floats, and nobody writes by the caller's promise.
        unsafe { std::slice::from_raw_parts(UnsafeCell::raw_get(self.0.as_ptr()), self.0.len()) }
    }
}
