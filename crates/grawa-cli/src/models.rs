//! `grawa models`: the networks, and the layout of one.

use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use grawa_lab::Table;
use grawa_nn::zoo::{self, ZOO};

/// The networks of the paper.
///
/// Without a name: a table of all of them. With one: its operations and the layout of its parameters.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa models\n  grawa models resnet20\n  grawa models pyramidnet110 --classes 100"
)]
pub(crate) struct Arguments {
    /// The network
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
                grouped(graph.parameters().len()),
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
    let entry = zoo::find(name)?;
    let graph = entry.build(entry.input, arguments.classes.unwrap_or(entry.classes))?;
    print(&graph.to_string());
    let mut table = Table::new(["tensor", "shape", "scalars", "starts at"]);
    for span in graph.parameters().spans() {
        let note = if span.is_silent() { " (before batch norm: no gradient)" } else { "" };
        table.push([
            format!("{}{note}", span.name()),
            format!("{:?}", span.shape()),
            grouped(span.len()),
            grouped(span.range().start),
        ]);
    }
    print(&table.text());
    Ok(())
}

/// 1234567 as 1,234,567.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}
