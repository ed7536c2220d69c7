//! The device a command runs on, and `grawa devices`: what this machine has.

use crate::failure::Failure;
use crate::output::print;
use clap::{Args, ValueEnum};
use grawa_nn::Error;
#[cfg(feature = "cuda")]
use {
    grawa_lab::Table,
    grawa_nn::cuda::{self, Library, VARIABLE, open},
};

/// Where a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// All cores
    Cpu,
    /// The first NVIDIA GPU
    Cuda,
}

impl Device {
    /// The first GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn gpu(self) -> Result<cuda::Device, Error> {
        let missing = || Error::Device {
            action: "use a GPU".into(),
            why: "the driver knows of none; see `grawa devices`".into(),
        };
        cuda::devices()?.into_iter().next().ok_or_else(missing)
    }

    /// This program has no code for GPUs.
    #[cfg(all(feature = "group", not(feature = "cuda")))]
    pub(crate) fn gpu(self) -> Result<std::convert::Infallible, Error> {
        Err(Error::BuiltWithoutCuda)
    }
}

/// What this machine can train on: cores, GPUs, and the libraries that GPUs need, with how to get those that are missing.
#[derive(Args)]
#[command(
    after_help = "A GPU needs the driver and libnvrtc; libcudnn makes wide layers fast; libnccl is for training on several GPUs. The variable GRAWA_CUDA_PATH names\nfolders to look in first; the folders of Python's NVIDIA wheels and of CUDA are looked in after those."
)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    print(&format!("CPU: {cores} cores"));
    print_gpus();
    Ok(())
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
    let mut table = Table::new(["library", "found", "for"]);
    let mut advice = Vec::new();
    for library in Library::ALL {
        let found = match open(library) {
            Ok(path) => path.display().to_string(),
            Err(_) => {
                advice.push(format!(
                    "{library} is missing: {}, or name its folder in {VARIABLE}.",
                    library.remedy()
                ));
                "missing".to_owned()
            }
        };
        table.push([library.to_string(), found, library.purpose().to_owned()]);
    }
    print(&table.text());
    advice.iter().for_each(|line| print(line));
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
