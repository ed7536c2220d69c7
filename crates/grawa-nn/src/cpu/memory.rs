//! Large buffers, on huge pages where the system has them. Passes access hundreds of megabytes; with small pages, address
//! translation costs several percent of the time. The first write to new memory is faster, too:
//! there are fewer page faults.

#![allow(unsafe_code)]

use super::simd::F32x16;

/// Zeros.
pub(crate) fn zeros(count: usize) -> Vec<F32x16> {
    let mut lines = with_capacity(count);
    lines.resize(count, F32x16::ZERO);
    lines
}

/// An empty vector with room for this many elements.
pub(crate) fn with_capacity<T>(count: usize) -> Vec<T> {
    let mut elements = Vec::with_capacity(count);
    advise(elements.spare_capacity_mut().as_mut_ptr().cast(), count * size_of::<T>());
    elements
}

/// Asks for huge pages. This is advice only: the memory works whatever the system answers.
#[cfg(target_os = "linux")]
fn advise(start: *mut libc::c_void, bytes: usize) {
    const PAGE: usize = 4096;
    if bytes >= 1 << 21 {
        let skip = start.align_offset(PAGE).min(bytes);
        // SAFETY: the range is inside one allocation of ours, and the advice does not change its contents.
        unsafe {
            libc::madvise(start.add(skip), (bytes - skip) / PAGE * PAGE, libc::MADV_HUGEPAGE);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_: *mut std::ffi::c_void, _: usize) {}
