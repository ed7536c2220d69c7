//! The numbers of Python's arrays. They are copied under Python's lock, and an array is asked where its numbers are just before each
//! copy: while the lock is released, for a round, other Python code may give it other memory. No address is kept.
#![allow(unsafe_code)]

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An array of 32-bit floats: of NumPy, or a tensor of PyTorch in main memory.
pub(crate) struct Array<'py> {
    object: Bound<'py, PyAny>,
    len: usize,
}

impl<'py> Array<'py> {
    /// An array that must have so many numbers.
    pub(crate) fn new(object: Bound<'py, PyAny>, len: usize) -> Self {
        Array { object, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn read(&self) -> PyResult<Vec<f32>> {
        let mut numbers = Vec::new();
        self.append_to(&mut numbers)?;
        Ok(numbers)
    }

    pub(crate) fn append_to(&self, to: &mut Vec<f32>) -> PyResult<()> {
        let address = self.address(false)?;
        if self.len > 0 {
            // SAFETY: the array has just said that so many aligned 32-bit floats lie there one after the other. It is alive, and no
            // Python code runs before they are copied: this thread holds Python's lock.
            to.extend_from_slice(unsafe { std::slice::from_raw_parts(address as *const f32, self.len) });
        }
        Ok(())
    }

    /// Where its numbers are now, if it still is an array as it must be. Calls code of NumPy and PyTorch only, which keeps the lock.
    fn address(&self, writes: bool) -> PyResult<usize> {
        let (address, count) = match self.object.hasattr(intern!(self.object.py(), "data_ptr"))? {
            true => of_tensor(&self.object)?,
            false => of_numpy(&self.object, writes)?,
        };
        if count != self.len {
            let expected = self.len;
            let why = format!("the array has {count} numbers, where {expected} are expected");
            return Err(PyValueError::new_err(why));
        }
        if count > 0 && (address == 0 || address % align_of::<f32>() != 0) {
            return Err(PyValueError::new_err(format!(
                "the array's numbers begin at the address {address:#x}, which is no multiple of {}: give a copy of it",
                align_of::<f32>()
            )));
        }
        Ok(address)
    }
}

/// Writes `from` to the arrays, one after the other: to all, or, if one is not as it must be, to none.
pub(crate) fn write(arrays: &[Array<'_>], from: &[f32]) -> PyResult<()> {
    let addresses: Vec<usize> = arrays.iter().map(|array| array.address(true)).collect::<PyResult<_>>()?;
    let mut rest = from;
    for (array, address) in arrays.iter().zip(addresses) {
        let (part, others) = rest
            .split_at_checked(array.len)
            .ok_or_else(|| PyValueError::new_err("a fault of grawa: fewer numbers than the arrays have"))?;
        rest = others;
        // SAFETY: as above, for all arrays; each is writable, and `part` is memory of Rust, which does not overlap with it.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), address as *mut f32, part.len()) };
    }
    Ok(())
}

fn of_numpy(array: &Bound<'_, PyAny>, writes: bool) -> PyResult<(usize, usize)> {
    let py = array.py();
    let face = array.getattr(intern!(py, "__array_interface__"))?.cast_into::<PyDict>()?;
    let get = |key| {
        face.get_item(key)?.ok_or_else(|| PyTypeError::new_err(format!("the array does not say its {key}")))
    };
    let kind: String = get("typestr")?.extract()?;
    let native = if cfg!(target_endian = "little") { "<f4" } else { ">f4" };
    let has_strides = face.get_item("strides")?.is_some_and(|strides| !strides.is_none());
    if kind != native || has_strides {
        return Err(PyTypeError::new_err(format!(
            "a contiguous array of 32-bit floats is needed; this one has type {kind}"
        )));
    }
    let shape: Vec<usize> = get("shape")?.extract()?;
    let count = shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
    let count = count.ok_or_else(|| PyValueError::new_err("the array is larger than memory"))?;
    let (address, read_only): (usize, bool) = get("data")?.extract()?;
    if writes && read_only {
        return Err(PyTypeError::new_err("the array cannot be written to"));
    }
    Ok((address, count))
}

fn of_tensor(tensor: &Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
    let py = tensor.py();
    let is = |name: &Bound<'_, pyo3::types::PyString>| tensor.call_method0(name)?.extract::<bool>();
    let size: usize = tensor.call_method0(intern!(py, "element_size"))?.extract()?;
    let is_near: bool = tensor.getattr(intern!(py, "is_cpu"))?.extract()?;
    if size != size_of::<f32>()
        || !is_near
        || !is(intern!(py, "is_floating_point"))?
        || !is(intern!(py, "is_contiguous"))?
    {
        return Err(PyTypeError::new_err("a contiguous tensor of torch.float32 on the CPU is needed"));
    }
    let count: usize = tensor.call_method0(intern!(py, "numel"))?.extract()?;
    let offset: usize = tensor.call_method0(intern!(py, "storage_offset"))?.extract()?;
    let storage = tensor.call_method0(intern!(py, "untyped_storage"))?;
    let bytes: usize = storage.call_method0(intern!(py, "nbytes"))?.extract()?;
    if bytes / size < offset.saturating_add(count) {
        return Err(PyValueError::new_err(format!(
            "the tensor's storage has {bytes} bytes, too few for {count} numbers: was it resized?"
        )));
    }
    Ok((tensor.call_method0(intern!(py, "data_ptr"))?.extract()?, count))
}
