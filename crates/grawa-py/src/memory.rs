//! Numbers of Python arrays, which come as addresses. They are copied: nothing here keeps an address.
#![allow(unsafe_code)]

/// The address of the first of some numbers of an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) address: usize,
    pub(crate) len: usize,
}

impl Numbers {
    pub(crate) fn read(self) -> Vec<f32> {
        let mut numbers = Vec::new();
        self.append_to(&mut numbers);
        numbers
    }

    pub(crate) fn append_to(self, to: &mut Vec<f32>) {
        if self.len > 0 {
            // SAFETY: the Python side passes the address of a contiguous array of so many aligned 32-bit floats, keeps the array alive
            // while it calls, and holds Python's lock, so that no other Python code writes to it.
            to.extend_from_slice(unsafe { std::slice::from_raw_parts(self.address as *const f32, self.len) });
        }
    }

    pub(crate) fn write(self, from: &[f32]) {
        assert_eq!(from.len(), self.len, "a fault of grawa: an array of another length");
        if self.len > 0 {
            // SAFETY: as above; the array is writable, and `from` is memory of Rust, which does not overlap with it.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.address as *mut f32, self.len) };
        }
    }
}
