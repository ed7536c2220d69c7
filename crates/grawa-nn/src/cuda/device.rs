//! One GPU: its context, memory, streams and captured graphs.
//!
//! Thin wrappers over the driver. Every error says what was tried and why it failed. Everything is freed when it is dropped.
#![allow(unsafe_code)]

use super::kernels::Kernels;
use super::library::{self, Name};
use super::limits;
use super::staging::{self, Staging};
use crate::{Error, Precision};
use bytemuck::Pod;
use cudarc::driver::{result, sys};
use std::ffi::c_void;
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
        // Of a multiprocessor and cycle, by compute capability: of tensor cores with bf16.
        let tensor = match self.capability {
            (8, 0) => 2048.0,
            (8, _) => 1024.0,
            (9, _) => 4096.0,
            _ => 8192.0,
        };
        let each = match precision {
            // Three products of TF32 numbers; see `f32.cu`.
            Precision::F32 => tensor / 6.0,
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
    pub(super) context: Arc<Context>,
    pub(crate) handle: H,
    pub(super) release: unsafe fn(H) -> Result<(), result::DriverError>,
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

    /// The memory at this place, allocated if there is none yet.
    pub(crate) fn reserve<'a>(
        place: &'a mut Option<Self>,
        context: &Arc<Context>,
        bytes: usize,
    ) -> Result<&'a Self, Error> {
        match place {
            Some(memory) => Ok(memory),
            None => Ok(place.insert(Memory::new(context, bytes)?)),
        }
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

    /// Copies values to the GPU, later, if they are in page-locked memory.
    ///
    /// # Safety
    ///
    /// The range of the length of `from` is in memory of this GPU, and both live and do not change until the copy is done.
    pub(crate) unsafe fn send<T: Pod>(&self, to: u64, from: &[T]) -> Result<(), Error> {
        self.context.bind()?;
        // SAFETY: the caller's promise; the stream lives as long as self.
        unsafe { result::memcpy_htod_async(to, from, self.handle) }.map_err(failed("copy to the GPU"))
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
