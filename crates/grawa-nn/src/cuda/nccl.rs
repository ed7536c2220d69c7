//! NCCL, which adds up vectors of several GPUs: the handful of its functions that are needed, looked up when they are.
//!
//! One thread asks on behalf of all GPUs, so calls that belong together are made as a group. Cards that meet for the first
//! time are introduced to each other; when a GPU is lost, those that are left meet for the first time again.
#![allow(unsafe_code)]

use super::device::Stream;
use super::library::{self, Name};
use crate::Error;
use libloading::os::unix::{Library, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// A GPU's end of a circle of GPUs.
type Comm = *mut c_void;

/// `ncclFloat32` and `ncclSum`.
const FLOAT: c_int = 7;
const SUM: c_int = 0;

/// The library, and the circles of GPUs that have met.
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
    version: c_int,
    communicators: Mutex<Vec<Communicator>>,
    /// Functions are there as long as this is.
    _library: Library,
}

/// Cards by their numbers, and their ends in the same order.
#[derive(Debug)]
struct Communicator {
    devices: Vec<usize>,
    comms: Vec<Comm>,
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nccl").field("version", &self.version).field("circles", &self.communicators).finish()
    }
}

// SAFETY: the ends are used by whoever holds the lock, one thread at a time.
unsafe impl Send for Nccl {}
// SAFETY: as above.
unsafe impl Sync for Nccl {}

/// A GPU's vector, to be replaced by the sum of all.
#[derive(Debug)]
pub(crate) struct Vector<'a> {
    pub(crate) device: usize,
    pub(crate) start: u64,
    pub(crate) stream: &'a Stream,
}

impl Nccl {
    /// Finds the library and its functions.
    pub(crate) fn open() -> Result<Self, Error> {
        let path = library::open(Name::Nccl)?;
        let wrong = |why: libloading::Error| Error::Device {
            action: format!("use {}", path.display()),
            why: format!("{why}; NCCL 2 is needed: {}", Name::Nccl.remedy()),
        };
        // SAFETY: NVIDIA's own library; the types of its functions are those of its header.
        let library = unsafe { Library::open(Some(path), RTLD_NOW) }.map_err(wrong)?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: NVIDIA's own library; the types of its functions are those of its header.
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
        // SAFETY: NVIDIA's own library; the types of its functions are those of its header.
        let code = unsafe { get_version(&mut nccl.version) };
        nccl.checked("ask NCCL for its version", code)?;
        Ok(nccl)
    }

    /// The version, such as 22809.
    #[cfg(test)]
    fn version(&self) -> c_int {
        self.version
    }

    fn checked(&self, action: &str, code: c_int) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: it returns a text that ends with a zero and lives as long as the library.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) }.to_string_lossy().into_owned();
        let why = format!("{text} (NCCL {}; NCCL_DEBUG=WARN makes it say more)", self.version);
        Err(Error::Device { action: action.into(), why })
    }

    /// Introduces GPUs to each other, unless they have met.
    pub(crate) fn connect(&self, devices: &[usize]) -> Result<(), Error> {
        let mut communicators = self.communicators.lock().unwrap_or_else(PoisonError::into_inner);
        self.communicator(&mut communicators, devices).map(|_| ())
    }

    fn communicator<'a>(
        &self,
        communicators: &'a mut Vec<Communicator>,
        devices: &[usize],
    ) -> Result<&'a Communicator, Error> {
        let known = communicators.iter().position(|communicator| communicator.devices == devices);
        let at = match known {
            Some(at) => at,
            None => {
                let numbers: Vec<c_int> = devices.iter().map(|&device| device as c_int).collect();
                let mut comms = vec![std::ptr::null_mut(); devices.len()];
                let code =
                    // SAFETY: as many ends are written as there are GPUs; each is destroyed once, in drop.
                    unsafe { (self.init_all)(comms.as_mut_ptr(), numbers.len() as c_int, numbers.as_ptr()) };
                self.checked(&format!("connect the GPUs {devices:?}"), code)?;
                communicators.push(Communicator { devices: devices.to_vec(), comms });
                communicators.len() - 1
            }
        };
        Ok(&communicators[at])
    }

    /// Starts to replace vectors of so many numbers, one a GPU, by their sum; each after what its stream was asked before.
    ///
    /// # Safety
    ///
    /// Every vector lies in memory of its GPU that lives until the work is done, and has that many numbers.
    pub(crate) unsafe fn all_reduce(&self, vectors: &[Vector<'_>], length: usize) -> Result<(), Error> {
        let devices: Vec<usize> = vectors.iter().map(|vector| vector.device).collect();
        let mut communicators = self.communicators.lock().unwrap_or_else(PoisonError::into_inner);
        let communicator = self.communicator(&mut communicators, &devices)?;
        let action = "add up the vectors of several GPUs";
        // SAFETY: it takes nothing; the group is closed below, whatever happens in it.
        self.checked(action, unsafe { (self.group_start)() })?;
        let asked = vectors.iter().zip(&communicator.comms).try_for_each(|(vector, &comm)| {
            let (from, to) = (vector.start as *const c_void, vector.start as *mut c_void);
            // SAFETY: the vectors are the caller's promise; the ends live as long as the circle, which is locked.
            let code = unsafe { (self.reduce)(from, to, length, FLOAT, SUM, comm, vector.stream.handle) };
            self.checked(action, code)
        });
        // SAFETY: it takes nothing, and ends the group that was begun above.
        let ended = self.checked(action, unsafe { (self.group_end)() });
        asked.and(ended)
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let communicators = self.communicators.get_mut().unwrap_or_else(PoisonError::into_inner);
        for comm in communicators.drain(..).flat_map(|communicator| communicator.comms) {
            // SAFETY: each end was made once, in `circle`.
            let _ = unsafe { (self.destroy)(comm) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its functions are found and its errors have words; a GPU is not needed.
    #[test]
    #[ignore = "needs libnccl: pip install nvidia-nccl-cu13, name its folder in GRAWA_CUDA_PATH, --include-ignored"]
    fn it_opens() {
        let nccl = Nccl::open().unwrap();
        assert!(nccl.version() >= 2000, "{nccl:?}");
        let text = nccl.checked("do it", 4).unwrap_err().to_string();
        assert!(text.starts_with("cannot do it: invalid argument"), "{text}");
    }
}
