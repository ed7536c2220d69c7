//! Vectors that several threads work on at once, each on a part of its own.
//!
//! The compiler cannot see that parts do not overlap, or that an owner waits while its vector is on loan. The rendezvous of
//! `threads` ensures both, and every use says how.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::Range;

/// A vector on loan from the member that owns it.
#[derive(Clone, Debug)]
pub(super) struct Lent {
    pointer: *mut f32,
    len: usize,
}

// SAFETY: the pointer is used between two rendezvous only, while the owner's exclusive borrow is alive.
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
    /// The owner waits, and nobody else holds a part that overlaps.
    // A shared borrow gives an exclusive one: that is the purpose of this module.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part(&self, at: Range<usize>) -> &mut [f32] {
        assert!(at.start <= at.end && at.end <= self.len, "a part lies inside its vector");
        // SAFETY: inside the vector, and exclusive by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(at.start), at.len()) }
    }

    /// # Safety
    /// The owner waits, and nobody writes to the vector.
    pub(super) unsafe fn read(&self) -> &[f32] {
        // SAFETY: the whole vector, and nobody writes by the caller's contract.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }
}

/// A vector that belongs to a group.
#[derive(Debug)]
pub(super) struct SharedSlice(Box<[UnsafeCell<f32>]>);

// SAFETY: reads and writes do not overlap in time or place by the callers' contracts.
unsafe impl Sync for SharedSlice {}

impl SharedSlice {
    pub(super) fn new(vector: Vec<f32>) -> Self {
        SharedSlice(vector.into_iter().map(UnsafeCell::new).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// Nobody reads, and nobody else holds a part that overlaps.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part(&self, at: Range<usize>) -> &mut [f32] {
        let cells = &self.0[at];
        // SAFETY: cells may be written through a shared borrow, they have the layout of their floats, and the part is exclusive
        // by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(cells.as_ptr()), cells.len()) }
    }

    /// # Safety
    /// Nobody writes.
    pub(super) unsafe fn read(&self) -> &[f32] {
        // SAFETY: the layout of floats, and nobody writes by the caller's contract.
        unsafe { std::slice::from_raw_parts(UnsafeCell::raw_get(self.0.as_ptr()), self.0.len()) }
    }
}
