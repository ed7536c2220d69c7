//! `grawa demo`: every method on the embedded digits, live.

use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use grawa_core::Name;
use grawa_lab::demo;
use grawa_train::{Observer, observe::Screen};

/// Four workers learn the embedded digits with every method, live on the terminal; a table at the end.
///
/// Needs no download and less than a minute on two cores. All methods get the same network, data, steps and learning rate;
/// plain SGD is one worker by itself.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa demo\n  grawa demo --seeds 3\n  grawa demo --method lgrawa --method mean --seeds 5"
)]
pub(crate) struct Arguments {
    /// Run this many seeds each and give mean ± standard deviation
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Only this method; may be given several times [default: all]
    #[arg(long = "method", value_name = "NAME")]
    methods: Vec<String>,
    /// Workers
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Show nothing but the table
    #[arg(long)]
    quiet: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let methods = if arguments.methods.is_empty() {
        Name::ALL.to_vec()
    } else {
        arguments.methods.iter().map(|name| name.parse()).collect::<Result<Vec<Name>, _>>()?
    };
    let data = grawa_data::digits()?;
    let mut outcomes = Vec::new();
    for &method in &methods {
        for seed in 1..=arguments.seeds {
            let recipe = demo::recipe(method, arguments.workers, seed)?;
            let screen: Option<Box<dyn Observer>> =
                (!arguments.quiet).then(|| Box::new(Screen::passing()) as _);
            outcomes.push(demo::run(recipe, &data, screen)?);
        }
    }
    print(demo::table(&outcomes).text().trim_end());
    if !arguments.quiet {
        eprintln!(
            "\nEvery knob of a method: `grawa methods lgrawa`. A run of your own: `grawa train --help`."
        );
    }
    Ok(())
}
