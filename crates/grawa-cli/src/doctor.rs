//! `grawa doctor`: what this machine has, what is missing, and how to get it.

use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use grawa_nn::Error;
#[cfg(feature = "cuda")]
use {
    grawa_lab::Table,
    grawa_nn::cuda::{self, CACHE, Library, VARIABLE, kernel_cache, open},
};

/// The first GPU.
#[cfg(feature = "cuda")]
pub(crate) fn first_gpu() -> Result<cuda::Device, Error> {
    let why = "the driver knows of none; see `grawa doctor`".into();
    cuda::devices()?.into_iter().next().ok_or(Error::Device { action: "use a GPU".into(), why })
}

/// This program has no code for GPUs.
#[cfg(all(feature = "group", not(feature = "cuda")))]
pub(crate) fn first_gpu() -> Result<std::convert::Infallible, Error> {
    Err(Error::BuiltWithoutCuda)
}

/// What this machine has for training, what is missing, and how to get it: cores, SIMD, limits, MPI, ports, GPUs and their libraries.
#[derive(Args)]
#[command(
    after_help = "A GPU needs the driver and libnvrtc; libcudnn makes wide layers fast; libnccl is for training on several GPUs. The variable GRAWA_CUDA_PATH names\nfolders to look in first; the folders of Python's NVIDIA wheels and of CUDA are looked in after those.\nCompiled kernels are kept in the user's cache folder; the variable GRAWA_CACHE names another, or turns that off: GRAWA_CACHE=off."
)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<(), Failure> {
    print(&format!("CPU: {} cores, {}", cores(), simd()));
    print(&format!("MPI: {}", mpi(cfg!(feature = "mpi"), is_in_path("mpirun"))));
    #[cfg(feature = "group")]
    {
        print(&format!("open files: {}", open_files(grawa_comm::group::raise_file_limit())));
        print(&format!("port {PORT}: {}", port(std::net::TcpListener::bind(("0.0.0.0", PORT)).err())));
    }
    print_gpus();
    Ok(())
}

/// The cores of this machine.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// An amount of memory in a file of Linux, where there is one.
pub(crate) fn reported_bytes(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The port of `grawa coordinate`.
#[cfg(feature = "group")]
const PORT: u16 = 7117;

fn simd() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    return match (is_x86_feature_detected!("avx512f"), is_x86_feature_detected!("avx2")) {
        (true, _) => "AVX-512",
        (_, true) => "AVX2",
        _ => "no AVX2: steps take several times as long",
    };
    #[cfg(target_arch = "aarch64")]
    return "NEON";
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return "no SIMD: steps take several times as long";
}

fn mpi(is_built_in: bool, has_mpirun: bool) -> &'static str {
    match (is_built_in, has_mpirun) {
        (true, true) => "ready: mpirun -n 4 grawa train --comm mpi",
        (true, false) => "built in, but mpirun is not in the path (Debian: apt-get install openmpi-bin)",
        (false, true) => {
            "mpirun is there, but this grawa was built without MPI: cargo build --release --features mpi"
        }
        (false, false) => {
            "none; only --comm mpi needs it (Debian: apt-get install openmpi-bin libopenmpi-dev libclang-dev, then cargo build \
             --release --features mpi)"
        }
    }
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Each worker of a group has a connection to the coordinator and to every other worker.
#[cfg(feature = "group")]
fn open_files(limit: u64) -> String {
    match limit < 1024 {
        true => format!(
            "{limit}, few for a group of more than {} processes: raise it with ulimit -n 4096",
            limit / 8
        ),
        false => limit.to_string(),
    }
}

#[cfg(feature = "group")]
fn port(error: Option<std::io::Error>) -> String {
    match error {
        None => "free for `grawa coordinate`; other machines need it open in the firewall".into(),
        Some(error) => {
            format!("cannot be used ({error}): give `grawa coordinate` another one, --listen 0.0.0.0:PORT")
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn print_gpus() {
    print(&format!("GPU: none ({})", Error::BuiltWithoutCuda));
}

#[cfg(feature = "cuda")]
fn print_gpus() {
    match cuda::devices() {
        Ok(gpus) if gpus.is_empty() => print("GPU: the driver is there, but knows of none"),
        Ok(gpus) => gpus.iter().for_each(|gpu| print(&describe(gpu))),
        Err(error) => print(&format!("GPU: none ({error})")),
    }
    let found = Library::ALL.map(|library| (library, open(library).ok()));
    let mut table = Table::new(["library", "found", "for"]);
    for (library, path) in &found {
        let path = path.as_ref().map_or("missing".into(), |path| path.display().to_string());
        table.push([library.to_string(), path, library.purpose().to_owned()]);
    }
    print(&table.text());
    for (library, _) in found.iter().filter(|(_, path)| path.is_none()) {
        let remedy = library.remedy();
        print(&format!("{library} is missing: {remedy}, or name its folder in {VARIABLE}."));
    }
    let place =
        kernel_cache().map_or("nowhere: every start compiles them".into(), |path| path.display().to_string());
    print(&format!("compiled kernels are kept in: {place} ({CACHE})"));
}

#[cfg(feature = "cuda")]
fn describe(gpu: &cuda::Device) -> String {
    let (major, minor) = gpu.capability;
    let usable = if gpu.is_usable() { "" } else { " (too old: 8.0 or newer is needed)" };
    format!(
        "GPU {}: {}, compute capability {major}.{minor}{usable}, {} multiprocessors, {:.0} GB",
        gpu.index,
        gpu.name,
        gpu.processors,
        gpu.memory as f64 / 1e9
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_how_to_get_it() {
        assert!(mpi(true, true).starts_with("ready"));
        assert!(mpi(true, false).contains("apt-get install openmpi-bin"));
        assert!(mpi(false, true).contains("--features mpi"));
        assert!(mpi(false, false).contains("libopenmpi-dev"));
        assert!(!is_in_path("no-such-program-anywhere"));
    }

    #[cfg(feature = "group")]
    #[test]
    fn limits_and_ports_in_words() {
        assert_eq!(open_files(4096), "4096");
        assert!(open_files(256).contains("ulimit"));
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = std::net::TcpListener::bind(taken.local_addr().unwrap()).err();
        assert!(port(error).contains("--listen"));
        assert!(port(None).contains("free"));
    }
}
