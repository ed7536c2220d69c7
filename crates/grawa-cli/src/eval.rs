//! `grawa eval`: a trained model on a test set.

use crate::bar::bar;
use crate::failure::Failure;
use crate::output::print;
use crate::source_args::SourceArgs;
use clap::Args;
use grawa_lab::Table;
use grawa_nn::State;
use grawa_train::recipe::{BatchNorm, Device};
use grawa_train::{Class, Evaluator};
use std::path::PathBuf;

/// Measure a trained model: loss and error on the test set, in all and class by class.
///
/// MODEL is a run's folder (its newest checkpoint), RUN/best, one of its checkpoints, or a file of tensors such as PyTorch's state_dict
/// saved as safetensors; such a file does not name its network and data, so give --model and --data.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa eval runs/lgrawa\n  grawa eval runs/lgrawa/best\n  grawa eval runs/lgrawa/checkpoints/step-00000064 --batch-norm keep\n  grawa eval resnet20.safetensors --model resnet20 --data cifar10 --dir data"
)]
pub(crate) struct Arguments {
    /// The run's folder, RUN/best, a checkpoint, or a file of tensors
    #[arg(value_name = "MODEL")]
    what: PathBuf,
    #[command(flatten)]
    source: SourceArgs,
    /// Batch norm: the statistics the model was saved with (keep), or those of augmented training batches (recalibrate)
    #[arg(long, default_value = "keep", value_parser = ["keep", "recalibrate"])]
    batch_norm: String,
    /// Where to measure: cpu or cuda [default: cpu, wherever it was trained]
    #[arg(long, default_value = "cpu", hide_default_value = true)]
    device: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (found, recipe) = arguments.source.find(
        &arguments.what,
        &[
            ("evaluate.batch_norm", &Some(arguments.batch_norm.clone()), "--batch-norm"),
            ("machine.device", &Some(arguments.device.clone()), "--device"),
        ],
    )?;
    let data = crate::train::load(&recipe)?;
    let evaluator = Evaluator::new(&recipe, &data)?;
    found.check(evaluator.graph())?;
    let state = State::load(evaluator.graph(), &found.model)?;
    let bar = bar(1000, "measuring");
    let measured = evaluator.measure(&state, |share| bar.set_position((1000.0 * share) as u64))?;
    bar.finish_and_clear();
    let mut table = Table::new(["class", "examples", "wrong", "error %"]);
    let mut row = |name: String, class: &Class| {
        let error = format!("{:.2}", 100.0 * class.error());
        table.push([name, class.examples.to_string(), class.wrong.to_string(), error]);
    };
    for (index, class) in measured.classes.iter().enumerate() {
        row(data.class_names.get(index).cloned().unwrap_or_else(|| index.to_string()), class);
    }
    row("all".into(), &measured.total());
    print(table.text().trim_end());
    let place = match recipe.machine.device {
        Device::Cpu => String::new(),
        Device::Cuda => format!(", on a GPU in {}", recipe.machine.precision),
    };
    let statistics = match recipe.evaluate.batch_norm {
        BatchNorm::Keep => "batch-norm statistics as in the file".into(),
        other => format!("batch norm {other}"),
    };
    print(&format!("loss {:.6}, {statistics}{place}", measured.loss));
    Ok(())
}
