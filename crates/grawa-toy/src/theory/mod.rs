//! Numerical experiments behind the theory page: what is proved about GRAWA's centre, what is not, and what happens on
//! problems small enough to know the answer.
//!
//! Every run uses the methods, rounds and random numbers of `grawa-core`, so the experiments test the code that trains
//! networks. Results are a function of the [`Scale`] alone.

mod centre_beats_best;
mod counterexamples;
mod estimate;
mod floor;
mod problem;
mod rate;
mod table;

pub use estimate::{Estimate, Frequency};
pub use table::{Cell, Table};

use crate::Folder;
use crate::picture::chart::Chart;
use grawa_core::{Centre, Error, Method, Name, Preset, Pull, Share};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A second or two: enough to see that everything runs and is of the right size.
    Quick,
    /// What the theory page reports.
    Full,
}

impl Scale {
    fn pick(self, quick: u64, full: u64) -> u64 {
        if self == Scale::Quick { quick } else { full }
    }
}

/// What the experiments found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Theory {
    /// The tables, in the order of the theory page.
    pub tables: Vec<Table>,
    /// The pictures, each with a short name, fit for a file.
    pub pictures: Vec<(&'static str, Chart)>,
}

impl Theory {
    /// What decides the results, as TOML.
    pub fn settings(scale: Scale) -> String {
        let scale = if scale == Scale::Quick { "quick" } else { "full" };
        let version = env!("CARGO_PKG_VERSION");
        format!(
            "# Written by grawa {version}. The same settings give the same files.\nexperiment = \"theory\"\nscale = \"{scale}\"\n"
        )
    }

    /// Puts tables, pictures and a page with all of them into a folder.
    pub fn put(&self, folder: &mut Folder) -> Result<(), crate::Error> {
        let mut text = String::from("# What the theory says and what really happens\n");
        for table in &self.tables {
            text += &format!("\n## {}\n\n{}\n\n{}", table.title, table.explanation, table.shown().markdown());
            folder.put(format!("{}.csv", table.name), table.exact().csv());
        }
        for (name, chart) in &self.pictures {
            text += &format!("\n![{}]({name}.svg)\n", chart.title);
            folder.put_pictures(&[(name, &chart.draw()?)])?;
        }
        folder.put("tables.md", text);
        Ok(())
    }
}

/// Receives the completed share of a part.
type Progress<'a> = &'a (dyn Fn(f64) + Sync);

/// Runs all experiments. `progress` receives the part's name and its completed share.
pub fn run(scale: Scale, progress: &(dyn Fn(&str, f64) + Sync)) -> Result<Theory, Error> {
    type Part = fn(Scale, Progress<'_>) -> Result<Theory, Error>;
    let parts: [(&str, Part); 4] = [
        ("counterexamples", counterexamples::run),
        ("centre against the best worker", centre_beats_best::run),
        ("error floor", floor::run),
        ("rate", rate::run),
    ];
    let mut theory = Theory::default();
    for (name, part) in parts {
        let found = part(scale, &|done| progress(name, done))?;
        theory.tables.extend(found.tables);
        theory.pictures.extend(found.pictures);
    }
    Ok(theory)
}

/// The methods that are compared, SGD without communication first.
const METHODS: [Name; 7] =
    [Name::Sgd, Name::Mean, Name::Easgd, Name::Lsgd, Name::Grawa, Name::Mgrawa, Name::Lgrawa];

/// A method as the theory has it: a pull every `period` steps and nothing in between. EASGD's centre moves at
/// the rate of the pull.
fn method(name: Name, pull: f64, period: u32) -> Method {
    let row = Method::named(name, Preset::Paper);
    if row.share == Share::Nothing {
        return row;
    }
    let centre =
        if let Centre::Moving { .. } = row.centre { Centre::Moving { rate: pull } } else { row.centre };
    Method { pull: Pull::Fixed(pull), prox: 0.0, period, centre, ..row }
}

/// Runs the jobs on all cores; the results are in the order of the jobs.
fn in_parallel<J: Sync, R: Send>(
    jobs: &[J],
    progress: Progress<'_>,
    work: impl Fn(&J) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let done = AtomicUsize::new(0);
    let one = |job| {
        let result = work(job);
        progress((done.fetch_add(1, Ordering::Relaxed) + 1) as f64 / jobs.len() as f64);
        result
    };
    jobs.par_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_do_not_depend_on_the_number_of_threads() {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| run(Scale::Quick, &|_, _| {})).unwrap()
        };
        let found = on(1);
        assert_eq!(found, on(3));
        for table in &found.tables {
            assert!(table.rows.iter().all(|row| row.len() == table.header.len()), "{}", table.name);
            assert_eq!(table.exact().csv().lines().count(), table.rows.len() + 1);
        }
    }
}
