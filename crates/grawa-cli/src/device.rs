//! `grawa devices`: what this machine has.

use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use grawa_nn::Error;
#[cfg(feature = "cuda")]
use {
    grawa_lab::Table,
    grawa_nn::cuda::{self, Library, VARIABLE, open},
};

/// The first GPU.
#[cfg(feature = "cuda")]
pub(crate) fn first_gpu() -> Result<cuda::Device, Error> {
    let why = "the driver knows of none; see `grawa devices`".into();
    cuda::devices()?.into_iter().next().ok_or(Error::Device { action: "use a GPU".into(), why })
}

/// This program has no code for GPUs.
#[cfg(all(feature = "group", not(feature = "cuda")))]
pub(crate) fn first_gpu() -> Result<std::convert::Infallible, Error> {
    Err(Error::BuiltWithoutCuda)
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
