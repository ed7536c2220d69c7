//! `grawa models`: the networks, and the layout of one.

use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use grawa_lab::Table;
use grawa_nn::Graph;
use grawa_nn::zoo::{self, ZOO};
use indicatif::HumanCount;
use std::path::Path;

/// The networks of the paper.
///
/// Without a name: a table of all of them. With one: its operations and the layout of its parameters.
///
/// A network of your own comes from PyTorch: grawa.export(model, example, "net.json") in Python writes it,
/// `grawa models net.json` shows it, and `grawa train --set model.graph=net.json` trains it.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa models\n  grawa models resnet20\n  grawa models pyramidnet110 --classes 100\n  grawa models net.json"
)]
pub(crate) struct Arguments {
    /// The network, or a file that grawa.export wrote
    name: Option<String>,
    /// Number of classes [default: as in the paper]
    #[arg(long)]
    classes: Option<usize>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Some(name) = &arguments.name else {
        let mut table = Table::new([
            "network",
            "images",
            "classes",
            "parameters",
            "tensors",
            "forward MFLOP",
            "activations at batch 128",
        ]);
        for entry in &ZOO {
            let graph = entry.build(entry.input, arguments.classes.unwrap_or(entry.classes))?;
            table.push([
                entry.name.to_owned(),
                entry.input.to_string(),
                graph.classes().to_string(),
                HumanCount(graph.parameters().len() as u64).to_string(),
                graph.parameters().spans().len().to_string(),
                format!("{:.1}", graph.flops() as f64 / 1e6),
                format!("{:.0} MB", (128 * 4 * graph.activations()) as f64 / 1e6),
            ]);
        }
        print(&table.text());
        print(
            "Multiplications and additions are counted one each, those of convolutions and linear layers, for one image.",
        );
        print("Activations: the result of every operation as f32, nothing shared or fused.");
        return Ok(());
    };
    let graph = if name.ends_with(".json") {
        if arguments.classes.is_some() {
            return Err(Failure::Usage("--classes is for the networks of the paper: a file has its own"));
        }
        Graph::read(Path::new(name))?
    } else {
        let entry = zoo::find(name)?;
        entry.build(entry.input, arguments.classes.unwrap_or(entry.classes))?
    };
    print(&graph.to_string());
    let mut table = Table::new(["tensor", "shape", "scalars", "starts at"]);
    for span in graph.parameters().spans() {
        let note = if span.is_silent() { " (before batch norm: no gradient)" } else { "" };
        table.push([
            format!("{}{note}", span.name()),
            format!("{:?}", span.shape()),
            HumanCount(span.len() as u64).to_string(),
            HumanCount(span.range().start as u64).to_string(),
        ]);
    }
    print(&table.text());
    Ok(())
}
