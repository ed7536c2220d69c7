//! One GPU: its context, compiled kernels, memory, streams and captured graphs.
//!
//! Thin wrappers over the driver. Every error says what was tried and why it failed. Everything is freed when it is dropped.
#![allow(unsafe_code)]

use super::kernel_cache::{self, kernel_cache};
use super::kernel_file::Origin;
use super::library::{self, Name};
use super::limits;
use super::staging::{self, Staging};
use super::wide::products;
use crate::{Error, Precision};
use bytemuck::Pod;
use cudarc::driver::{result, sys};
use cudarc::nvrtc;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Converts an error of the driver; `action` is what was tried.
pub(crate) fn failed(action: impl Into<String>) -> impl FnOnce(result::DriverError) -> Error {
    move |why| Error::device(action, format!("{:?}", why.0))
}

/// A pointer to an argument of a kernel, and its size. It borrows the argument, because a launch reads it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Argument<'a> {
    pointer: *mut c_void,
    bytes: usize,
    held: std::marker::PhantomData<&'a ()>,
}

/// The argument of a kernel that is stored at `value`.
pub(crate) fn at<T: Copy>(value: &T) -> Argument<'_> {
    Argument {
        pointer: std::ptr::from_ref(value).cast_mut().cast(),
        bytes: size_of::<T>(),
        held: std::marker::PhantomData,
    }
}

/// The arguments of a kernel, in the order of its parameters.
macro_rules! arguments {
    ($($value:expr),+ $(,)?) => { &mut [$($crate::cuda::device::at(&$value)),+] };
}
pub(crate) use arguments;

/// A struct of 32-bit integers as the kernels read it.
macro_rules! integers {
    ($(#[$about:meta])* struct $name:ident { $($field:ident),+ $(,)? }) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) struct $name {
            $(pub(crate) $field: i32),+
        }
    };
}
pub(crate) use integers;

/// A GPU.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its index.
    pub index: usize,
    /// Its product name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub processors: usize,
    /// Bytes of memory.
    pub memory: usize,
    /// The most bytes of shared memory that a block may have.
    pub(crate) shared: usize,
    /// Bytes per second of its memory, and cycles per second of its multiprocessors, at most.
    pub(crate) bandwidth: f64,
    clock: f64,
    handle: sys::CUdevice,
}

/// The compute capability that has the kernels of `wide.cu`.
pub(crate) const WIDE: (i32, i32) = (9, 0);

impl Device {
    /// Floating-point operations per second of matrix products, at most.
    pub(crate) fn arithmetic(&self, precision: Precision) -> f64 {
        // Of a multiprocessor and cycle, by compute capability: of tensor cores with bf16, and of ordinary ones.
        let (tensor, plain) = match self.capability {
            (8, 0) => (2048.0, 128.0),
            (8, _) => (1024.0, 256.0),
            (9, _) => (4096.0, 256.0),
            _ => (8192.0, 256.0),
        };
        let each = match precision {
            Precision::F32 => plain,
            Precision::Tf32 => tensor / 2.0,
            Precision::Bf16 => tensor,
        };
        self.processors as f64 * self.clock * each
    }

    /// Whether our kernels run on this GPU.
    pub fn is_usable(&self) -> bool {
        self.capability >= (8, 0)
    }
}

/// All GPUs of this machine.
pub fn devices() -> Result<Vec<Device>, Error> {
    library::open(Name::Driver)?;
    result::init().map_err(failed("start the driver"))?;
    let count = result::device::get_count().map_err(failed("count the GPUs"))?;
    (0..count)
        .map(|index| {
            let handle = result::device::get(index).map_err(failed("find a GPU"))?;
            let attribute =
                // SAFETY: the driver is open, and returned this device.
                |which| unsafe { result::device::get_attribute(handle, which) }.map_err(failed("query a GPU"));
            use sys::CUdevice_attribute_enum as Attribute;
            Ok(Device {
                index: index as usize,
                name: result::device::get_name(handle).map_err(failed("query the name of a GPU"))?,
                capability: (
                    attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                    attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
                ),
                processors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
                // SAFETY: the driver is open, and returned this device.
                memory: unsafe { result::device::total_mem(handle) }.map_err(failed("query the memory of a GPU"))?,
                bandwidth: 2e3 * f64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?)
                    * f64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)? / 8),
                clock: 1e3 * f64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?),
                shared: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
                handle,
            })
        })
        .collect()
}

/// The context of a replica set on a GPU. Copies and waits use its main stream alone, so that several replica sets of a process
/// do not disturb each other: waiting for the whole GPU would break a graph that another is recording.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: Device,
    handle: sys::CUcontext,
    main: sys::CUstream,
    /// For small copies on the main stream.
    staging: Mutex<Staging>,
    /// Why a plain operation failed on the host. What was computed since is worthless.
    pub(crate) failure: Arc<OnceLock<String>>,
}

// The driver's handles may be used from any thread once the context is current there.
// SAFETY: the driver is thread-safe, and every use binds the context to its thread first.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn open(device: Device) -> Result<Arc<Self>, Error> {
        // SAFETY: the driver named this device.
        let handle = unsafe { result::primary_ctx::retain(device.handle) }.map_err(failed("open the GPU"))?;
        let (main, staging) = (std::ptr::null_mut(), Mutex::new(Staging::new()));
        let mut context = Context { device, handle, main, staging, failure: Arc::default() };
        context.bind()?;
        context.main = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(failed("create a stream"))?;
        Ok(Arc::new(context))
    }

    /// Makes this context current on the calling thread.
    pub(crate) fn bind(&self) -> Result<(), Error> {
        // SAFETY: the handle lives as long as self.
        unsafe { result::ctx::set_current(self.handle) }.map_err(failed("select the GPU"))
    }

    /// Free memory of the GPU in bytes. The context is current.
    pub(crate) fn free_memory(&self) -> Result<usize, Error> {
        Ok(result::mem_get_info().map_err(failed("query free memory"))?.0)
    }

    /// Waits for the main stream, which all other streams join. Reports a failure of the host.
    pub(crate) fn synchronise(&self) -> Result<(), Error> {
        self.wait(&mut self.staging())
    }

    fn staging(&self) -> MutexGuard<'_, Staging> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same; nobody can enqueue a small copy between the end of the wait and the reuse of its memory.
    fn wait(&self, staging: &mut Staging) -> Result<(), Error> {
        // SAFETY: the handle lives as long as self.
        unsafe { result::stream::synchronize(self.main) }.map_err(failed("wait for the GPU"))?;
        staging.clear();
        match self.failure.get() {
            Some(why) => Err(Error::device("run a plain operation on the host", why)),
            None => Ok(()),
        }
    }

    /// Room for a small copy of the main stream; waits if there is none left.
    fn room(&self, staging: &mut Staging, bytes: usize) -> Result<*mut [u8], Error> {
        if !staging.has_room(bytes) {
            self.wait(staging)?;
        }
        staging.take(bytes)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.main.is_null() && self.bind().is_ok() {
            let _ = self.synchronise();
            self.staging().free();
            // SAFETY: created once in `open`, and released once, here.
            let _ = unsafe { result::stream::destroy(self.main) };
        }
        // SAFETY: created once in `open`, and released once, here.
        let _ = unsafe { result::primary_ctx::release(self.device.handle) };
    }
}

/// A handle of the driver, released once.
#[derive(Debug)]
pub(crate) struct Handle<H: Copy> {
    context: Arc<Context>,
    pub(crate) handle: H,
    release: unsafe fn(H) -> Result<(), result::DriverError>,
}

// SAFETY: a handle of the driver, which is thread-safe.
unsafe impl<H: Copy> Send for Handle<H> {}
// SAFETY: as above.
unsafe impl<H: Copy> Sync for Handle<H> {}

impl<H: Copy> Drop for Handle<H> {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: whoever made this handle owns it and named its destructor.
            let _ = unsafe { (self.release)(self.handle) };
        }
    }
}

/// Memory on a GPU, initially zero.
#[derive(Debug)]
pub(crate) struct Memory {
    context: Arc<Context>,
    pub(crate) start: u64,
    pub(crate) bytes: usize,
}

impl Memory {
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Error> {
        context.bind()?;
        let bytes = bytes.max(256);
        let free = context.free_memory()?;
        if bytes > free {
            let fits = "use fewer workers or a smaller batch".into();
            return Err(Error::OutOfDeviceMemory { needed: bytes, free, fits });
        }
        let start =
            // SAFETY: a plain allocation, cleared as a whole and freed once, in drop.
            unsafe { result::malloc_sync(bytes) }.map_err(failed(format!("allocate {bytes} bytes")))?;
        let memory = Memory { context: context.clone(), start, bytes };
        // SAFETY: a plain allocation, cleared as a whole and freed once, in drop.
        unsafe { result::memset_d8_async(start, 0, bytes, context.main) }.map_err(failed("clear memory"))?;
        context.synchronise()?;
        Ok(memory)
    }

    /// Memory that holds these values.
    pub(crate) fn holding<T: Pod>(context: &Arc<Context>, values: &[T]) -> Result<Self, Error> {
        let memory = Memory::new(context, size_of_val(values))?;
        memory.write(0, values)?;
        Ok(memory)
    }

    /// The address of a range of this memory.
    pub(crate) fn address(&self, offset: usize, bytes: usize) -> Result<u64, Error> {
        limits::range(offset, bytes, self.bytes)?;
        Ok(self.start + offset as u64)
    }

    /// Copies values to the GPU, after all work enqueued before. Does not wait for a small copy.
    pub(crate) fn write<T: Pod>(&self, offset: usize, from: &[T]) -> Result<(), Error> {
        self.context.bind()?;
        let to = self.address(offset, size_of_val(from))?;
        if size_of_val(from) <= staging::LARGEST {
            let mut staging = self.context.staging();
            let room = self.context.room(&mut staging, size_of_val(from))?;
            // SAFETY: nobody else has this room until the main stream, which gets the copy, is done.
            let room = unsafe { &mut *room };
            room.copy_from_slice(bytemuck::cast_slice(from));
            // SAFETY: the range was checked above, and any bytes are valid values.
            return unsafe { result::memcpy_htod_async(to, room, self.context.main) }
                .map_err(failed("copy to the GPU"));
        }
        // SAFETY: the range was checked above, any bytes are valid values, and the slice lives until the copy is done.
        unsafe { result::memcpy_htod_async(to, from, self.context.main) }
            .map_err(failed("copy to the GPU"))?;
        self.context.synchronise()
    }

    /// Copies values from the GPU, after all work enqueued before.
    pub(crate) fn read<T: Pod>(&self, offset: usize, to: &mut [T]) -> Result<(), Error> {
        self.context.bind()?;
        let from = self.address(offset, size_of_val(to))?;
        // SAFETY: the range was checked above, any bytes are valid values, and the slice lives until the copy is done.
        unsafe { result::memcpy_dtoh_async(to, from, self.context.main) }
            .map_err(failed("copy from the GPU"))?;
        self.context.synchronise()
    }

    /// Copies `length` values from each of several places, after all work enqueued before. Waits once.
    pub(crate) fn read_each<T: Pod>(&self, offsets: &[usize], length: usize) -> Result<Vec<Vec<T>>, Error> {
        let bytes = length * size_of::<T>();
        if bytes * offsets.len() > staging::LARGEST {
            let read = |&offset: &usize| {
                let mut values = vec![T::zeroed(); length];
                self.read(offset, &mut values)?;
                Ok(values)
            };
            return offsets.iter().map(read).collect();
        }
        self.context.bind()?;
        let mut staging = self.context.staging();
        let room = self.context.room(&mut staging, bytes * offsets.len())?;
        // SAFETY: nobody else has this room until the main stream, which gets the copies, is done.
        let room = unsafe { &mut *room };
        let part = |at: usize| at * bytes..(at + 1) * bytes;
        for (at, &offset) in offsets.iter().enumerate() {
            let from = self.address(offset, bytes)?;
            // SAFETY: the range was checked, and the room lives as long as the context.
            unsafe { result::memcpy_dtoh_async(&mut room[part(at)], from, self.context.main) }
                .map_err(failed("copy from the GPU"))?;
        }
        self.context.wait(&mut staging)?;
        let values =
            |at| room[part(at)].chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
        Ok((0..offsets.len()).map(values).collect())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            let _ = self.context.synchronise();
            // SAFETY: allocated once in `new`, and the stream that used it is done.
            let _ = unsafe { result::free_sync(self.start) };
        }
    }
}

/// The kernels, compiled for this GPU and one storage type.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) context: Arc<Context>,
    module: Handle<sys::CUmodule>,
    functions: std::sync::Mutex<HashMap<String, Function>>,
    /// Why the compiled kernels could not be kept.
    pub(crate) warning: Option<String>,
}

/// A kernel, and the shared memory it may be launched with.
#[derive(Clone, Debug)]
struct Function {
    handle: sys::CUfunction,
    shared: u32,
    /// The size of each parameter in bytes.
    parameters: Arc<[usize]>,
}

// SAFETY: a handle of the driver, which is thread-safe.
unsafe impl Send for Function {}

/// The size of each parameter of a kernel in bytes.
fn parameters(function: sys::CUfunction) -> Vec<usize> {
    let size = |index: usize| {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: the function was just loaded, and both numbers are writable. Beyond the last parameter the driver returns an
        // error and writes nothing.
        let asked = unsafe { sys::cuFuncGetParamInfo(function, index, &mut offset, &mut bytes) };
        asked.result().is_ok().then_some(bytes)
    };
    (0..).map_while(size).collect()
}

/// The source of all kernels. They include no headers.
pub(crate) fn source() -> String {
    [
        ("prelude", include_str!("kernels/prelude.cu")),
        ("conv", include_str!("kernels/conv.cu")),
        ("wgrad", include_str!("kernels/wgrad.cu")),
        ("narrow", include_str!("kernels/narrow.cu")),
        ("products", &products()),
        ("wide", include_str!("kernels/wide.cu")),
        ("plain", include_str!("kernels/plain.cu")),
        ("norm", include_str!("kernels/norm.cu")),
        ("simple", include_str!("kernels/simple.cu")),
        ("vector", include_str!("kernels/vector.cu")),
        ("adamw", include_str!("kernels/adamw.cu")),
        ("device_share", include_str!("kernels/device_share.cu")),
        ("tangent", include_str!("kernels/tangent.cu")),
    ]
    .map(|(name, text)| format!("#line 1 \"{name}.cu\"\n{text}\n"))
    .concat()
}

/// The machine code of the kernels for an architecture, read or compiled once per process; and a warning if it cannot be kept.
fn code(architecture: &str, narrow: bool) -> Result<(Arc<Vec<u8>>, Option<String>), Error> {
    type Codes = HashMap<(String, bool), Arc<Vec<u8>>>;
    static CODES: std::sync::LazyLock<std::sync::Mutex<Codes>> = std::sync::LazyLock::new(Default::default);
    let mut codes = CODES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let key = (architecture.to_owned(), narrow);
    if let Some(known) = codes.get(&key) {
        return Ok((known.clone(), None));
    }
    let origin = Origin {
        source: &source(),
        options: &options(architecture, narrow),
        compiler: compiler_version()?,
        driver: driver_version()?,
    };
    let compile = || compile_kernels(architecture, narrow);
    let (code, warning) = kernel_cache::load_or(kernel_cache().as_deref(), origin.key(), compile)?;
    let code = Arc::new(code);
    codes.insert(key, code.clone());
    Ok((code, warning))
}

fn compiler_version() -> Result<(i32, i32), Error> {
    library::open(Name::Nvrtc)?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the compiler is loaded, and two numbers are written.
    let asked = unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
    asked.result().map_err(|why| Error::device("query the compiler's version", format!("{why:?}")))?;
    Ok((major, minor))
}

fn driver_version() -> Result<i32, Error> {
    let mut version = 0;
    // SAFETY: the driver is loaded wherever a GPU is, and one number is written.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(failed("query the driver's version"))?;
    Ok(version)
}

fn options(architecture: &str, narrow: bool) -> [String; 4] {
    [
        format!("--gpu-architecture={architecture}"),
        format!("-DBF16={}", u8::from(narrow)),
        "--std=c++17".to_owned(),
        // Older compilers take a lambda with a parameter `auto` for a function of the host.
        "-default-device".to_owned(),
    ]
}

/// Compiles the kernels to machine code of an architecture such as `sm_90a`. `narrow` stores bf16, otherwise f32. Needs the
/// compiler, but no GPU.
pub fn compile_kernels(architecture: &str, narrow: bool) -> Result<Vec<u8>, Error> {
    use nvrtc::result as compiler;
    library::open(Name::Nvrtc)?;
    let wrong = |why: String| Error::device("compile the kernels", why);
    let source = CString::new(source()).map_err(|why| wrong(why.to_string()))?;
    let program = compiler::create_program(&source, None).map_err(|why| wrong(format!("{why:?}")))?;
    let options = options(architecture, narrow);
    // SAFETY: the program was created above and is destroyed below.
    let done = unsafe { compiler::compile_program(program, &options) };
    let result = done.map_err(|why| {
        // SAFETY: the program was created above and is destroyed below.
        let log = unsafe { compiler::get_program_log(program) }.unwrap_or_default();
        let log: Vec<u8> = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        wrong(format!("{why:?}: {}", String::from_utf8_lossy(&log)))
    });
    let code = result.and_then(|()| {
        let mut bytes = 0usize;
        // SAFETY: the program was created above and is destroyed below.
        let size = unsafe { nvrtc::sys::nvrtcGetCUBINSize(program, &mut bytes) };
        size.result().map_err(|why| wrong(format!("{why:?}")))?;
        let mut code = vec![0u8; bytes];
        // SAFETY: the program was created above and is destroyed below.
        let got = unsafe { nvrtc::sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()) };
        got.result().map_err(|why| wrong(format!("{why:?}")))?;
        Ok(code)
    });
    // SAFETY: the program was created above and is destroyed below.
    let _ = unsafe { compiler::destroy_program(program) };
    code
}

impl Kernels {
    /// Loads the kernels, compiled for a GPU; `narrow` stores bf16, else f32.
    pub(crate) fn new(context: &Arc<Context>, narrow: bool) -> Result<Arc<Self>, Error> {
        let (major, minor) = context.device.capability;
        if !context.device.is_usable() {
            let why = format!("its compute capability is {major}.{minor}; 8.0 or newer is needed");
            return Err(Error::device(format!("use {}", context.device.name), why));
        }
        // The kernels of `wide.cu` need instructions that only Hopper has.
        let only = if (major, minor) == WIDE { "a" } else { "" };
        let (code, warning) = code(&format!("sm_{major}{minor}{only}"), narrow)?;
        context.bind()?;
        let module =
            // SAFETY: the image is machine code that was compiled for this GPU.
            unsafe { result::module::load_data(code.as_ptr().cast()) }.map_err(failed("load the kernels"))?;
        let module = Handle { context: context.clone(), handle: module, release: result::module::unload };
        Ok(Arc::new(Kernels { context: context.clone(), module, functions: Default::default(), warning }))
    }

    /// Finds a kernel and loads it at once: loading is not allowed while a graph is recorded.
    fn function(&self, name: &str, shared: u32) -> Result<Function, Error> {
        let mut functions = self.functions.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut found = match functions.get(name) {
            Some(found) => found.clone(),
            None => {
                let text = CString::new(name).map_err(|why| Error::device(name, why.to_string()))?;
                // SAFETY: the module, and with it the function, lives as long as self.
                let function = unsafe { result::module::get_function(self.module.handle, text) }
                    .map_err(failed(format!("find the kernel {name}")))?;
                // SAFETY: the module, and with it the function, lives as long as self.
                unsafe { sys::cuFuncLoad(function) }
                    .result()
                    .map_err(failed(format!("load the kernel {name}")))?;
                // Kernels also have up to 10 KB of static shared memory.
                Function { handle: function, shared: 36 * 1024, parameters: parameters(function).into() }
            }
        };
        if shared > found.shared {
            use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as LIMIT;
            // SAFETY: the module, and with it the function, lives as long as self.
            unsafe { result::function::set_function_attribute(found.handle, LIMIT, shared as i32) }
                .map_err(failed(format!("give {name} {shared} bytes of shared memory")))?;
            found.shared = shared;
        }
        functions.insert(name.to_owned(), found.clone());
        Ok(found)
    }

    /// How many blocks of 256 threads of a kernel are resident on the GPU at once.
    pub(crate) fn resident(&self, name: &str, shared: u32) -> Result<usize, Error> {
        let function = self.function(name, shared)?;
        let mut blocks = 0i32;
        // SAFETY: the function lives as long as self, and one number is written.
        unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                function.handle,
                256,
                shared as usize,
            )
        }
        .result()
        .map_err(failed(format!("query the occupancy of {name}")))?;
        Ok(self.context.device.processors * blocks.max(1) as usize)
    }

    /// Loads the kernels of these names, which spaces separate.
    pub(crate) fn load(&self, names: &str) -> Result<(), Error> {
        names.split_whitespace().try_for_each(|name| self.function(name, 0).map(|_| ()))
    }
}

/// The grid of a kernel launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: (u32, u32),
    pub(crate) threads: u32,
    pub(crate) shared: u32,
}

impl Grid {
    /// A row of blocks of 256 threads.
    pub(crate) fn row(blocks: usize) -> Self {
        Grid { blocks: (blocks.max(1) as u32, 1), threads: 256, shared: 0 }
    }
}

/// A stream of a GPU.
pub(crate) type Stream = Handle<sys::CUstream>;

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, Error> {
        context.bind()?;
        let handle = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(failed("create a stream"))?;
        Ok(Handle { context: context.clone(), handle, release: result::stream::destroy })
    }

    /// The main stream of a context.
    pub(crate) fn main(context: &Arc<Context>) -> Self {
        // The context destroys it.
        Handle { context: context.clone(), handle: context.main, release: |_| Ok(()) }
    }

    /// Launches a kernel for `replicas` replicas. Arguments whose number or sizes differ from the kernel's parameters are an error.
    ///
    /// # Safety
    ///
    /// The arguments have the types of the kernel's parameters. Every address among them is 0 where the kernel allows it, or is in
    /// memory of this GPU that lives until the work is done. What the kernel accesses from there, by the shapes and the grid it is
    /// given, is inside the same memory.
    pub(crate) unsafe fn launch(
        &self,
        kernels: &Kernels,
        name: &'static str,
        grid: Grid,
        replicas: usize,
        arguments: &mut [Argument<'_>],
    ) -> Result<(), Error> {
        // The thread may have selected another GPU since.
        self.context.bind()?;
        let function = kernels.function(name, grid.shared)?;
        limits::arguments(name, arguments.iter().map(|argument| argument.bytes), &function.parameters)?;
        let mut pointers: Vec<*mut c_void> = arguments.iter().map(|argument| argument.pointer).collect();
        use sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as EARLY;
        let value = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        let mut early = sys::CUlaunchAttribute { id: EARLY, pad: [0; 4], value };
        let config = sys::CUlaunchConfig {
            gridDimX: grid.blocks.0,
            gridDimY: grid.blocks.1,
            gridDimZ: replicas as u32,
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared,
            hStream: self.handle,
            attrs: &mut early,
            numAttrs: u32::from(self.follows_a_kernel()),
        };
        let none = std::ptr::null_mut();
        // SAFETY: the arguments match the parameters in number and size; their types and addresses are the caller's promise. The
        // function and the stream live as long as `kernels` and `self`.
        unsafe { sys::cuLaunchKernelEx(&config, function.handle, pointers.as_mut_ptr(), none) }
            .result()
            .map_err(failed(format!("start {name}")))
    }

    /// Whether the next kernel is recorded behind one other kernel and nothing else. Then it may be resident before the other
    /// ends, which hides the time to launch it; see `await_previous` in `prelude.cu`. GPUs before Hopper do not have this.
    fn follows_a_kernel(&self) -> bool {
        if self.context.device.capability < (9, 0) {
            return false;
        }
        use sys::CUstreamCaptureStatus_enum::{CU_STREAM_CAPTURE_STATUS_ACTIVE as ACTIVE, *};
        let (mut status, mut id, mut graph) = (CU_STREAM_CAPTURE_STATUS_NONE, 0, std::ptr::null_mut());
        let (mut nodes, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
        // SAFETY: the stream lives as long as self. Nodes and edges belong to the capture and are read before anything else is
        // recorded.
        let asked = unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.handle,
                &mut status,
                &mut id,
                &mut graph,
                &mut nodes,
                &mut edges,
                &mut count,
            )
        };
        if asked.result().is_err() || status != ACTIVE || count != 1 {
            return false;
        }
        let mut kind = sys::CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: as above; there is one node.
        let asked = unsafe { sys::cuGraphNodeGetType(*nodes, &mut kind) };
        asked.result().is_ok() && kind == sys::CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_KERNEL
    }

    /// Copies bytes inside device memory.
    ///
    /// # Safety
    ///
    /// Both ranges are in memory of this GPU that lives until the work is done.
    pub(crate) unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), Error> {
        self.context.bind()?;
        // SAFETY: the caller's promise; the stream lives as long as self.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.handle) }.map_err(failed("copy on the GPU"))
    }

    /// Copies values from the GPU, and waits for it. The context is current.
    ///
    /// # Safety
    ///
    /// The range of the length of `to` is in memory of this GPU.
    pub(crate) unsafe fn fetch<T: Pod>(&self, to: &mut [T], from: u64) -> Result<(), Error> {
        // SAFETY: the caller's promise; any bytes are valid values, and the slice lives until the copy is done.
        unsafe { result::memcpy_dtoh_async(to, from, self.handle) }.map_err(failed("copy from the GPU"))?;
        self.synchronise()
    }

    pub(crate) fn synchronise(&self) -> Result<(), Error> {
        // SAFETY: the handle lives as long as self.
        unsafe { result::stream::synchronize(self.handle) }.map_err(failed("wait for the GPU"))
    }

    /// Makes later work of this stream wait for an event.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<(), Error> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles live as long as they are borrowed.
        unsafe { result::stream::wait_event(self.handle, event.handle, flags) }
            .map_err(failed("wait for an event"))
    }

    /// Records an event at this point of the stream.
    pub(crate) fn mark(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: both handles live as long as they are borrowed.
        unsafe { result::event::record(event.handle, self.handle) }.map_err(failed("record an event"))
    }

    /// Records what `work` enqueues as a graph instead of running it.
    pub(crate) fn capture(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<Captured, Error> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as self.
        unsafe { result::stream::begin_capture(self.handle, mode) }.map_err(failed("begin a capture"))?;
        let done = work();
        // SAFETY: as above. The capture ends also when the work failed.
        let ended = unsafe { result::stream::end_capture(self.handle) };
        let context = || self.context.clone();
        let graph =
            ended.map(|handle| Handle { context: context(), handle, release: result::graph::destroy });
        done?;
        let graph = graph.map_err(failed("end a capture"))?;
        // SAFETY: the graph lives to the end of this function.
        let ready = unsafe { result::graph::instantiate(graph.handle, sys::CUgraphInstantiate_flags(0)) };
        let handle = ready.map_err(failed("instantiate a graph"))?;
        Ok(Handle { context: context(), handle, release: result::graph::exec_destroy })
    }

    /// Enqueues a graph.
    pub(crate) fn replay(&self, graph: &Captured) -> Result<(), Error> {
        // SAFETY: both handles live as long as they are borrowed.
        unsafe { result::graph::launch(graph.handle, self.handle) }.map_err(failed("launch a graph"))
    }
}

/// An instantiated graph.
pub(crate) type Captured = Handle<sys::CUgraphExec>;

/// A point of a stream.
pub(crate) type Event = Handle<sys::CUevent>;

impl Event {
    /// An event. Only `timed` events can be compared.
    pub(crate) fn new(context: &Arc<Context>, timed: bool) -> Result<Self, Error> {
        context.bind()?;
        let flags = match timed {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        let handle = result::event::create(flags).map_err(failed("create an event"))?;
        Ok(Handle { context: context.clone(), handle, release: result::event::destroy })
    }

    /// Seconds from this event to a later one; both have passed.
    pub(crate) fn seconds_to(&self, later: &Event) -> Result<f64, Error> {
        // SAFETY: both handles live as long as they are borrowed.
        let milliseconds = unsafe { result::event::elapsed(self.handle, later.handle) }
            .map_err(failed("read the GPU's clock"))?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

#[cfg(test)]
mod tests {
    /// A kernel that starts early and does not wait would read what the one before has not written yet.
    #[test]
    fn every_kernel_first_waits_for_the_one_before() {
        let source = super::source();
        let mut kernels = source.split("__global__").skip(1).peekable();
        assert!(kernels.peek().is_some());
        for kernel in kernels {
            let body = kernel.split_once(" {").map_or("", |(_, body)| body);
            let first = body.trim_start_matches(|c: char| c.is_whitespace() || c == '\\');
            assert!(first.starts_with("await_previous();"), "{}", &kernel[..200]);
        }
    }
}
