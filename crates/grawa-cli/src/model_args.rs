//! Arguments of the commands that measure flatness: a model, and the examples its loss is measured on.

use crate::doctor::cores;
use crate::failure::Failure;
use crate::source_args::SourceArgs;
use clap::Args;
use grawa_data::Feed;
use grawa_flat::{Engine, Examples};
use grawa_nn::{Graph, Mode, Shape, State};
use grawa_train::FoundModel;
use grawa_train::recipe::Device;
use std::path::{Path, PathBuf};

/// The model, and the examples its loss is measured on.
#[derive(Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Examples, drawn from the training set and not augmented
    #[arg(long, value_name = "N", default_value_t = 320)]
    examples: usize,
    /// Examples in a batch: with --norm train this is part of what is measured
    #[arg(long, value_name = "N", default_value_t = 32)]
    batch: usize,
    /// Batch norm: with the statistics of each batch (train, as in the authors' code) or the running ones (eval).
    /// Dropout is always off
    #[arg(long, default_value = "train", value_parser = ["train", "eval"])]
    norm: String,
    /// Seed of the draws of examples and directions
    #[arg(long, default_value_t = 31)]
    pub(crate) seed: u64,
    /// Cores to use [default: all]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Where to measure, in f32: cpu or cuda [default: cpu, wherever it was trained]
    #[arg(long, default_value = "cpu", hide_default_value = true)]
    device: String,
}

/// The model, the data and the examples that the arguments name.
pub(crate) struct View {
    pub(crate) graph: Graph,
    pub(crate) state: State,
    pub(crate) found: FoundModel,
    pub(crate) examples: Examples,
    /// The numbers of the examples in the training set.
    pub(crate) chosen: Vec<u32>,
    pub(crate) mode: Mode,
    pub(crate) engine: Engine,
    /// In words: network, data, examples.
    pub(crate) words: String,
}

/// What a model is called in tables, pictures and the names of folders: the run's folder, with the checkpoint if one was named.
pub(crate) fn name_of(model: &Path) -> String {
    let path = model.canonicalize().unwrap_or_else(|_| model.into());
    let words = path.iter().map(|word| word.to_string_lossy()).filter(|word| word != "checkpoints");
    let mut words: Vec<String> = words.map(|word| word.trim_end_matches(".safetensors").to_owned()).collect();
    let is_part = |word: &String| word == "best" || word.starts_with("step-");
    if words.len() > 1 && words.last().is_some_and(|last| last == "model") && is_part(&words[words.len() - 2])
    {
        words.pop();
    }
    let count = if words.last().is_some_and(is_part) { 2 } else { 1 };
    words.split_off(words.len().saturating_sub(count)).join("-")
}

impl ModelArgs {
    /// Finds the model, builds its network, loads the data.
    pub(crate) fn open(&self, model: &Path) -> Result<View, Failure> {
        let device = Some(self.device.clone());
        let (found, recipe) = self.source.find(model, &[("machine.device", &device, "--device")])?;
        let set = crate::train::load(&recipe)?;
        let train = match recipe.data.held_out {
            0 => set.train,
            n => set.train.hold_out(n as usize, recipe.train.seed)?.0,
        };
        let feed = Feed::new(&train, &set.normalise, recipe.data.augment)?;
        let shape = feed.output();
        let [channels, height, width] = [shape.channels, shape.height, shape.width].map(|side| side as usize);
        let graph = recipe.model.build(Shape { channels, height, width }, set.classes as usize)?;
        found.check(&graph)?;
        let state = State::load(&graph, &found.model)?;
        let chosen = Examples::choose(feed.len(), self.seed, self.examples)?;
        let examples = Examples::of(&feed, &chosen, self.batch)?;
        let mode = if self.norm == "eval" { Mode::Evaluate } else { Mode::Train { dropout: None } };
        let threads = self.threads.map_or_else(cores, usize::from);
        let (engine, place) = match recipe.machine.device {
            Device::Cpu => (Engine::Cpu { threads }, ""),
            Device::Cuda => (Engine::Cuda, ", on a GPU"),
        };
        let words = format!(
            "network {} on the data {}, {} examples in batches of {}, batch norm: {}{place}",
            graph.name(),
            recipe.data.kind,
            self.examples,
            self.batch,
            self.norm
        );
        Ok(View { graph, state, found, examples, chosen, mode, engine, words })
    }

    /// What decides the results, as TOML.
    pub(crate) fn settings(&self, command: &str, view: &View, others: &[PathBuf]) -> String {
        let models = [&view.found.model].into_iter().chain(others).map(|path| path.display().to_string());
        format!(
            "# Written by grawa {}. The same settings give the same files.\ncommand = {command:?}\nmodels = {:?}\n\
             measured = {:?}\nseed = {}\n",
            env!("CARGO_PKG_VERSION"),
            models.collect::<Vec<_>>(),
            view.words,
            self.seed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn a_model_is_called_as_its_run() {
        for (path, name) in [
            ("runs/lgrawa", "lgrawa"),
            ("runs/lgrawa/best", "lgrawa-best"),
            ("runs/lgrawa/best/model.safetensors", "lgrawa-best"),
            ("runs/a/checkpoints/step-00000064", "a-step-00000064"),
            ("nets/resnet20.safetensors", "resnet20"),
            ("model.safetensors", "model"),
        ] {
            assert_eq!(name_of(path.as_ref()), name, "{path}");
        }
    }
}
