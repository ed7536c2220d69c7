//! `grawa probe`: one pass on given values, compared with what was expected.

#[cfg(feature = "cuda")]
use crate::doctor::first_gpu;
use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use grawa_lab::Table;
use grawa_nn::Precision;
use grawa_nn::probe::{Engine, probe};
use grawa_train::recipe::Device;
use std::path::PathBuf;

/// Run one training-mode forward and backward pass on given values and compare with what was expected.
///
/// The values file (safetensors, as oracle/values.py writes it) holds param.*, buffer.*, image and label, and, where
/// they are known, the expected logits, loss_sum, grad.* and buffer_after.*. With vector.* the Hessian of the mean loss
/// is multiplied by that vector, and compared with hvp.*. The results are written under the same names; the largest
/// relative error of each kind is printed. Tensors of a gradient or product with a norm below 1e-4 of the whole one's
/// are not judged one by one: in f32 they are rounding noise.
#[derive(Args)]
#[command(
    after_help = "Example:\n  python3 oracle/values.py resnet20 values.safetensors --smooth\n  grawa probe --model resnet20 --classes 10 --values values.safetensors --out results.safetensors"
)]
pub(crate) struct Arguments {
    /// The network, one of `grawa models`, or a file that grawa.export wrote
    #[arg(long, value_name = "NAME")]
    model: String,
    /// Number of classes [default: as in the paper]
    #[arg(long)]
    classes: Option<usize>,
    /// The values file
    #[arg(long, value_name = "FILE")]
    values: PathBuf,
    /// Where to write the results; must not exist
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Where to run it: cpu or cuda (the first NVIDIA GPU)
    #[arg(long, default_value_t = Device::Cpu)]
    device: Device,
    /// On a GPU: f32, tf32 or bf16
    #[arg(long, default_value = "f32")]
    precision: Precision,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let engine = match arguments.device {
        Device::Cpu => Engine::Cpu,
        #[cfg(feature = "cuda")]
        Device::Cuda => Engine::Cuda(first_gpu()?, arguments.precision),
        #[cfg(not(feature = "cuda"))]
        Device::Cuda => return Err(grawa_nn::Error::BuiltWithoutCuda.into()),
    };
    let found = probe(&arguments.model, arguments.classes, &arguments.values, &arguments.out, &engine)?;
    found.results.write()?;
    if found.errors.is_empty() {
        print("The file holds no expected values; nothing to compare.");
    } else {
        let mut table = Table::new(["kind", "largest relative error", "of"]);
        for distance in &found.errors {
            let error = format!("{:.3e}", distance.error);
            table.push([distance.kind.to_owned(), error, distance.tensor.clone()]);
        }
        print(&table.text());
    }
    print(&format!("Results: {}", arguments.out.display()));
    Ok(())
}
