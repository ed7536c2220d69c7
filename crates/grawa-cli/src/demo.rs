//! `grawa demo`: every method on the embedded digits, live.

use crate::failure::Failure;
use crate::output::print;
use crate::train::about;
use clap::Args;
use grawa_core::Name;
use grawa_lab::{Folder, demo};
use grawa_train::observe::{Files, LinePace, Screen};
use grawa_train::{Error, Observer, folder};
use std::path::{Path, PathBuf};

/// Four workers learn the embedded digits with every method, live on the terminal; a table and a page at the end.
///
/// Needs no download and less than a minute on two cores. All methods get the same network, data, steps and learning rate;
/// plain SGD is one worker by itself. The records of the runs and the page, index.html, are in the folder of --out.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa demo\n  grawa demo --seeds 3\n  grawa demo --method lgrawa --method mgrawa --seeds 5"
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
    /// Folder for the runs' records and the page, which must be new or empty [default: out/demo, or the next free name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
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
    let place = arguments.out.clone().unwrap_or_else(free_place);
    // Not among the files of something else.
    if let Some(name) = Folder::entries(&place).map_err(grawa_lab::Error::from)?.first() {
        return Err(Error::FolderInUse { path: place, found: format!("'{name}'") }.into());
    }
    let (mut outcomes, mut runs) = (Vec::new(), Vec::new());
    let pace = LinePace::default();
    for &method in &methods {
        for seed in 1..=arguments.seeds {
            let recipe = demo::recipe(method, arguments.workers, seed)?;
            let run = place.join(format!("{method}-{seed}"));
            folder::create(&run, &recipe)?;
            let mut observers: Vec<Box<dyn Observer>> = vec![Box::new(Files::create(&run, &about())?)];
            if !arguments.quiet {
                observers.push(Box::new(Screen::passing(&pace)));
            }
            outcomes.push(demo::run(recipe, &data, observers)?);
            runs.push(run);
        }
    }
    print(demo::table(&outcomes).text().trim_end());
    let page = write_page(&place, &runs)?;
    if !arguments.quiet {
        eprintln!(
            "\nCurves and weights of all runs: {page}\n\nNext:\n  grawa train --data digits --method lgrawa --out runs/first\n  \
             grawa compare --method lgrawa --method mean:pull=0.5,prox=0.01 --seeds 5\n  grawa methods lgrawa"
        );
    }
    Ok(())
}

/// The first of the default names that is free.
fn free_place() -> PathBuf {
    let name = |number: u32| match number {
        1 => PathBuf::from("out/demo"),
        _ => PathBuf::from(format!("out/demo-{number}")),
    };
    (1..).map(name).find(|place| !place.exists()).unwrap_or_default()
}

#[cfg(feature = "plots")]
fn write_page(place: &Path, runs: &[PathBuf]) -> Result<String, Failure> {
    use grawa_lab::report;
    let page = place.join("index.html");
    report::write(&page, &report::html(&report::read(runs)?)?)?;
    Ok(page.display().to_string())
}

/// Reports are a part of the feature `plots`.
#[cfg(not(feature = "plots"))]
fn write_page(place: &Path, _: &[PathBuf]) -> Result<String, Failure> {
    Ok(format!("this grawa was built without pages; the records are in {}", place.display()))
}
