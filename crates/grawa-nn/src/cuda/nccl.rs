//! NCCL, for all-reduce between GPUs: the few functions that are needed, loaded at run time.
//!
//! One thread calls for all GPUs, so related calls are made as an NCCL group. GPUs that reduce together for the first time get a
//! communicator; when a GPU is lost, the remaining ones get a new one.
#![allow(unsafe_code)]

use super::device::Stream;
use super::library::{self, Name};
use crate::Error;
use libloading::Library;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// An `ncclComm_t`: the handle of one GPU in a communicator.
type Comm = *mut c_void;

/// `ncclFloat32` and `ncclSum`.
const FLOAT: c_int = 7;
const SUM: c_int = 0;

/// The library, and the communicators so far.
#[derive(Debug)]
pub(crate) struct Nccl {
    init_all: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> c_int,
    reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Comm,
        cudarc::driver::sys::CUstream,
    ) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    destroy: unsafe extern "C" fn(Comm) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Such as 22809.
    version: c_int,
    communicators: Mutex<Communicators>,
    /// Keeps the functions loaded.
    _library: Library,
}

/// By the indices of their GPUs: the handles in the same order.
type Communicators = BTreeMap<Vec<usize>, Vec<Comm>>;

// SAFETY: the handles are used under the lock, by one thread at a time.
unsafe impl Send for Nccl {}
// SAFETY: as above.
unsafe impl Sync for Nccl {}

/// The vector of a GPU, to be replaced by the sum of all.
#[derive(Debug)]
pub(crate) struct Vector<'a> {
    pub(crate) device: usize,
    pub(crate) start: u64,
    pub(crate) stream: &'a Stream,
}

impl Nccl {
    /// Loads the library and its functions.
    pub(crate) fn open() -> Result<Self, Error> {
        let path = library::open(Name::Nccl)?;
        let wrong = |why: libloading::Error| {
            let why = format!("{why}; NCCL 2 is needed: {}", Name::Nccl.remedy());
            Error::device(format!("use {}", path.display()), why)
        };
        // SAFETY: NVIDIA's own library; the function types are those of its header.
        let library = unsafe { Library::new(path) }.map_err(wrong)?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: NVIDIA's own library; the function types are those of its header.
                *unsafe { library.get($name) }.map_err(wrong)?
            };
        }
        let get_version: unsafe extern "C" fn(*mut c_int) -> c_int = function!(c"ncclGetVersion");
        let mut nccl = Nccl {
            init_all: function!(c"ncclCommInitAll"),
            reduce: function!(c"ncclAllReduce"),
            group_start: function!(c"ncclGroupStart"),
            group_end: function!(c"ncclGroupEnd"),
            destroy: function!(c"ncclCommDestroy"),
            error_string: function!(c"ncclGetErrorString"),
            version: 0,
            communicators: Mutex::default(),
            _library: library,
        };
        // SAFETY: NVIDIA's own library; the function types are those of its header.
        let code = unsafe { get_version(&mut nccl.version) };
        nccl.checked("query the version of NCCL", code)?;
        Ok(nccl)
    }

    fn checked(&self, action: &str, code: c_int) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: it returns a zero-terminated text that lives as long as the library.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) }.to_string_lossy().into_owned();
        let why = format!("{text} (NCCL {}; NCCL_DEBUG=WARN makes it say more)", self.version);
        Err(Error::device(action, why))
    }

    /// Creates the communicator of these GPUs, unless it exists.
    pub(crate) fn connect(&self, devices: &[usize]) -> Result<(), Error> {
        let mut communicators = self.communicators.lock().unwrap_or_else(PoisonError::into_inner);
        self.communicator(&mut communicators, devices).map(|_| ())
    }

    fn communicator<'a>(
        &self,
        communicators: &'a mut Communicators,
        devices: &[usize],
    ) -> Result<&'a [Comm], Error> {
        match communicators.entry(devices.to_vec()) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let numbers: Vec<c_int> = devices.iter().map(|&device| device as c_int).collect();
                let mut comms = vec![std::ptr::null_mut(); devices.len()];
                let code =
                    // SAFETY: one handle is written for each GPU; each is destroyed once, in drop.
                    unsafe { (self.init_all)(comms.as_mut_ptr(), numbers.len() as c_int, numbers.as_ptr()) };
                self.checked(&format!("connect the GPUs {devices:?}"), code)?;
                Ok(new.insert(comms))
            }
        }
    }

    /// Enqueues the all-reduce of vectors of `length` numbers, one for each GPU, each on its own stream.
    ///
    /// # Safety
    ///
    /// Every vector is in memory of its GPU that lives until the work is done, and has `length` numbers.
    pub(crate) unsafe fn all_reduce(&self, vectors: &[Vector<'_>], length: usize) -> Result<(), Error> {
        let devices: Vec<usize> = vectors.iter().map(|vector| vector.device).collect();
        let mut communicators = self.communicators.lock().unwrap_or_else(PoisonError::into_inner);
        let comms = self.communicator(&mut communicators, &devices)?;
        let action = "all-reduce the vectors of several GPUs";
        // SAFETY: no arguments; the group is closed below, whatever happens in it.
        self.checked(action, unsafe { (self.group_start)() })?;
        let asked = vectors.iter().zip(comms).try_for_each(|(vector, &comm)| {
            let (from, to) = (vector.start as *const c_void, vector.start as *mut c_void);
            // SAFETY: the vectors are the caller's promise; the handles live as long as the communicator, which is locked.
            let code = unsafe { (self.reduce)(from, to, length, FLOAT, SUM, comm, vector.stream.handle) };
            self.checked(action, code)
        });
        // SAFETY: no arguments; ends the group begun above.
        let ended = self.checked(action, unsafe { (self.group_end)() });
        asked.and(ended)
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let communicators = self.communicators.get_mut().unwrap_or_else(PoisonError::into_inner);
        for &comm in communicators.values().flatten() {
            // SAFETY: each handle was created once, in `communicator`.
            let _ = unsafe { (self.destroy)(comm) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its functions load and its errors have texts. Needs no GPU.
    #[test]
    #[ignore = "needs libnccl: pip install nvidia-nccl-cu13, name its folder in GRAWA_CUDA_PATH, --include-ignored"]
    fn it_opens() {
        let nccl = Nccl::open().unwrap();
        assert!(nccl.version >= 2000, "{nccl:?}");
        let text = nccl.checked("do it", 4).unwrap_err().to_string();
        assert!(text.starts_with("cannot do it: invalid argument"), "{text}");
    }
}
