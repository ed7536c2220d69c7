//! The `grawa` command: arguments and terminal, nothing else.
//!
//! Exit codes: 0 fine, 1 failed, 2 wrong usage. Results go to standard output, everything else to standard error.

#[cfg(feature = "group")]
mod address;
mod bar;
mod bench;
#[cfg(feature = "cuda")]
mod bench_cuda;
mod bench_product;
#[cfg(feature = "plots")]
mod compare;
mod completions;
#[cfg(feature = "group")]
mod coordinate;
mod data;
mod demo;
mod doctor;
mod dry_run;
mod eval;
mod failure;
#[cfg(feature = "plots")]
mod flatness;
mod instead;
#[cfg(feature = "group")]
mod join;
#[cfg(feature = "group")]
mod key;
#[cfg(feature = "plots")]
mod lab;
#[cfg(feature = "plots")]
mod landscape;
#[cfg(feature = "group")]
mod launch;
mod licenses;
mod methods;
mod mistakes;
#[cfg(feature = "plots")]
mod model_args;
mod models;
#[cfg(feature = "mpi")]
mod mpi;
mod output;
#[cfg(feature = "group")]
mod page;
mod predict;
mod probe;
#[cfg(feature = "plots")]
mod report;
mod seeds;
mod source_args;
mod stop;
#[cfg(feature = "plots")]
mod theory;
mod train;
#[cfg(feature = "plots")]
mod vincent;
#[cfg(feature = "group")]
mod workers;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Trains deep networks data-parallel on workers that seldom communicate.
#[derive(Parser)]
#[command(name = "grawa", version, arg_required_else_help = true, max_term_width = 110)]
#[command(
    after_help = "Start with `grawa demo`: every method learns the digits, live, in under a minute.\nExit codes: 0 fine, 1 failed, 2 wrong usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
// One value, parsed once: its size does not matter.
#[allow(clippy::large_enum_variant)]
enum Command {
    Demo(demo::Arguments),
    Train(train::Arguments),
    #[cfg(feature = "plots")]
    Compare(compare::Arguments),
    #[cfg(feature = "group")]
    Launch(launch::Arguments),
    #[cfg(feature = "group")]
    Coordinate(coordinate::Arguments),
    #[cfg(feature = "group")]
    Join(join::Arguments),
    #[cfg(feature = "group")]
    Key(key::Arguments),
    Eval(eval::Arguments),
    Predict(predict::Arguments),
    #[cfg(feature = "plots")]
    Vincent(vincent::Arguments),
    #[cfg(feature = "plots")]
    Theory(theory::Arguments),
    Methods(methods::Arguments),
    Models(models::Arguments),
    Probe(probe::Arguments),
    Bench(bench::Arguments),
    Data(data::Arguments),
    #[command(alias = "devices")]
    Doctor(doctor::Arguments),
    #[cfg(feature = "plots")]
    Flatness(flatness::Arguments),
    #[cfg(feature = "plots")]
    Landscape(landscape::Arguments),
    #[cfg(feature = "plots")]
    Lab(lab::Arguments),
    #[cfg(feature = "plots")]
    Report(report::Arguments),
    Licenses(licenses::Arguments),
    Completions(completions::Arguments),
}

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => match mistakes::explain(&error, &words) {
            Some(why) => {
                output::warn(&format!("error: {why}"));
                return ExitCode::from(2);
            }
            // clap itself ends wrong usage with code 2, and --help and --version with 0.
            None => error.exit(),
        },
    };
    // Every connection is an open file, and the usual limit is small.
    #[cfg(feature = "group")]
    grawa_comm::group::raise_file_limit();
    let is_finished = match command {
        Command::Demo(arguments) => demo::run(&arguments).map(|()| true),
        Command::Eval(arguments) => eval::run(&arguments).map(|()| true),
        Command::Predict(arguments) => predict::run(&arguments),
        #[cfg(feature = "group")]
        Command::Key(arguments) => key::run(&arguments).map(|()| true),
        #[cfg(feature = "group")]
        Command::Launch(arguments) => launch::run(&arguments),
        #[cfg(feature = "group")]
        Command::Coordinate(arguments) => coordinate::run(&arguments),
        #[cfg(feature = "group")]
        Command::Join(arguments) => join::run(&arguments),
        Command::Train(arguments) => train::run(&arguments),
        #[cfg(feature = "plots")]
        Command::Compare(arguments) => compare::run(&arguments),
        #[cfg(feature = "plots")]
        Command::Lab(arguments) => lab::run(&arguments),
        #[cfg(feature = "plots")]
        Command::Vincent(arguments) => vincent::run(&arguments).map(|()| true),
        #[cfg(feature = "plots")]
        Command::Theory(arguments) => theory::run(&arguments).map(|()| true),
        Command::Methods(arguments) => methods::run(&arguments).map(|()| true),
        Command::Models(arguments) => models::run(&arguments).map(|()| true),
        Command::Probe(arguments) => probe::run(&arguments).map(|()| true),
        Command::Bench(arguments) => bench::run(&arguments).map(|()| true),
        Command::Data(arguments) => data::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments).map(|()| true),
        #[cfg(feature = "plots")]
        Command::Flatness(arguments) => flatness::run(&arguments).map(|()| true),
        #[cfg(feature = "plots")]
        Command::Landscape(arguments) => landscape::run(&arguments).map(|()| true),
        #[cfg(feature = "plots")]
        Command::Report(arguments) => report::run(&arguments).map(|()| true),
        Command::Licenses(arguments) => licenses::run(&arguments).map(|()| true),
        Command::Completions(arguments) => {
            completions::run(&arguments, &mut <Cli as clap::CommandFactory>::command()).map(|()| true)
        }
    };
    // A run that is not finished has not succeeded.
    ExitCode::from(is_finished.map_or_else(|error| print_error(&error), |finished| u8::from(!finished)))
}

/// Prints the error, unless another rank has; returns the exit code.
fn print_error(error: &failure::Failure) -> u8 {
    if !matches!(error, failure::Failure::Reported(_)) {
        output::warn(&format!("error: {error}"));
        let words: Vec<_> = std::env::args_os().skip(1).collect();
        instead::commands(error, &words).iter().for_each(|command| output::warn(&format!("  {command}")));
    }
    error.code()
}
