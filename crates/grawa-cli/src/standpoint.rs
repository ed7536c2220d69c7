//! Where flatness is looked at from: a network, a checkpoint of it, and the examples its loss is measured on.

use crate::failure::Failure;
use clap::Args;
use grawa_data::{Feed, Kind, load};
use grawa_flat::Examples;
use grawa_nn::{Graph, Mode, Shape, State, zoo};
use std::path::{Path, PathBuf};

/// The network, the data and the examples.
#[derive(Args)]
pub(crate) struct Standpoint {
    /// The network, one of `grawa models`
    #[arg(long, value_name = "NAME")]
    model: String,
    /// The data set: digits, cifar10, cifar100, mnist, fashion-mnist or folder
    #[arg(long, value_name = "NAME")]
    data: String,
    /// Where the data set lies
    #[arg(long, value_name = "DIR", default_value = "data")]
    dir: PathBuf,
    /// Examples, drawn from the training set and not augmented
    #[arg(long, value_name = "N", default_value_t = 320)]
    examples: usize,
    /// Examples in a batch: with --norm train this is part of what is measured
    #[arg(long, value_name = "N", default_value_t = 32)]
    batch: usize,
    /// Batch norm: with the statistics of each batch (train, as in the paper's code) or the running ones (eval).
    /// Dropout is always off
    #[arg(long, default_value = "train", value_parser = ["train", "eval"])]
    norm: String,
    /// Where examples and directions are drawn from
    #[arg(long, default_value_t = 31)]
    pub(crate) seed: u64,
    /// Cores to use [default: all]
    #[arg(long)]
    threads: Option<usize>,
}

/// What they name.
pub(crate) struct View {
    pub(crate) graph: Graph,
    pub(crate) examples: Examples,
    /// The numbers of the examples in the training set.
    pub(crate) chosen: Vec<u32>,
    pub(crate) mode: Mode,
    pub(crate) threads: usize,
}

impl Standpoint {
    /// Loads the data and builds the network.
    pub(crate) fn open(&self) -> Result<View, Failure> {
        let entry = zoo::find(&self.model)?;
        let kind: Kind = self.data.parse()?;
        let set = load(&self.data, &self.dir)?;
        let feed = Feed::new(&set.train, &set.normalise, kind.augment(&self.model))?;
        let shape = feed.output();
        let shape = Shape {
            channels: shape.channels as usize,
            height: shape.height as usize,
            width: shape.width as usize,
        };
        let graph = entry.build(shape, set.classes as usize)?;
        if self.batch == 0 || !self.examples.is_multiple_of(self.batch) || self.examples == 0 {
            let (examples, batch) = (self.examples, self.batch);
            return Err(grawa_flat::Error::NotWholeBatches { examples, batch }.into());
        }
        let chosen = Examples::choose(feed.len(), self.seed, self.examples)?;
        let examples = Examples::of(&feed, &chosen, self.batch)?;
        let mode = if self.norm == "eval" { Mode::Evaluate } else { Mode::Train { dropout: None } };
        let threads =
            self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        Ok(View { graph, examples, chosen, mode, threads: threads.max(1) })
    }

    /// What decides the results, as TOML.
    pub(crate) fn settings(&self, command: &str, states: &[&Path]) -> String {
        let states: Vec<String> =
            states.iter().map(|path| format!("{:?}", path.display().to_string())).collect();
        format!(
            "# Written by grawa {}. The same settings give the same files.\ncommand = {command:?}\nstates = [{}]\n\
             model = {:?}\ndata = {:?}\nexamples = {}\nbatch = {}\nnorm = {:?}\nseed = {}\n",
            env!("CARGO_PKG_VERSION"),
            states.join(", "),
            self.model,
            self.data,
            self.examples,
            self.batch,
            self.norm,
            self.seed
        )
    }

    /// What the picture's title says of the examples.
    pub(crate) fn words(&self) -> String {
        format!(
            "{} on {}, {} examples in batches of {}, batch norm: {}",
            self.model, self.data, self.examples, self.batch, self.norm
        )
    }
}

/// A checkpoint: a state file.
pub(crate) fn state(graph: &Graph, path: &Path) -> Result<State, Failure> {
    Ok(State::load(graph, path)?)
}
