//! The kernels of a GPU: their source, their compilation, and the loaded functions.
#![allow(unsafe_code)]

use super::device::{Context, Handle, WIDE, failed};
use super::kernel_cache::{self, kernel_cache};
use super::kernel_file::Origin;
use super::library::{self, Name};
use super::wide::products;
use crate::Error;
use cudarc::driver::{result, sys};
use cudarc::nvrtc;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

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
pub(super) struct Function {
    pub(super) handle: sys::CUfunction,
    shared: u32,
    /// The size of each parameter in bytes.
    pub(super) parameters: Arc<[usize]>,
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
        ("f32", include_str!("kernels/f32.cu")),
        ("norm", include_str!("kernels/norm.cu")),
        ("simple", include_str!("kernels/simple.cu")),
        ("norm_pool", include_str!("kernels/norm_pool.cu")),
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
    pub(super) fn function(&self, name: &str, shared: u32) -> Result<Function, Error> {
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
