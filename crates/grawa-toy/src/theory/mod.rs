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

use crate::Output;
use grawa_core::{Centre, Error, Method, Name, Preset, Pull, Share};
use rayon::prelude::*;

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

/// What decides the results, as TOML.
pub fn settings(scale: Scale) -> String {
    let scale = if scale == Scale::Quick { "quick" } else { "full" };
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "# Written by grawa {version}. The same settings give the same files.\nexperiment = \"theory\"\nscale = \"{scale}\"\n"
    )
}

/// How many experiments there are.
pub const PARTS: u64 = 4;

/// Runs all experiments. `begins` receives the name of each before it runs.
pub fn run(scale: Scale, mut begins: impl FnMut(&'static str)) -> Result<Output, crate::Error> {
    type Part = fn(Scale) -> Result<Output, crate::Error>;
    let parts: [(&str, Part); PARTS as usize] = [
        ("counterexamples", counterexamples::run),
        ("centre against the best worker", centre_beats_best::run),
        ("error floor", floor::run),
        ("rate", rate::run),
    ];
    let title = "What the theory says and what really happens".into();
    let mut output = Output { title, ..Output::default() };
    for (name, part) in parts {
        begins(name);
        let found = part(scale)?;
        output.tables.extend(found.tables);
        output.figures.extend(found.figures);
    }
    Ok(output)
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

/// The results of each setting and method.
type ByMethod<'a, S, R> = Vec<(&'a S, Name, Vec<R>)>;

/// Measures every method in every setting, as often as the setting says: a list of results for each setting and method.
fn by_method<'a, S: Sync, R: Send>(
    settings: &'a [S],
    count: impl Fn(&S) -> u64 + Sync,
    measure: impl Fn(&S, Name, u64) -> Result<R, Error> + Sync,
) -> Result<ByMethod<'a, S, R>, Error> {
    let pairs: Vec<_> = settings.iter().flat_map(|setting| METHODS.map(|name| (setting, name))).collect();
    let all = |(setting, name): (&'a S, Name)| {
        let results = (0..count(setting)).into_par_iter().map(|number| measure(setting, name, number));
        Ok((setting, name, results.collect::<Result<_, _>>()?))
    };
    pairs.into_par_iter().map(all).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_do_not_depend_on_the_number_of_threads() {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| run(Scale::Quick, |_| {})).unwrap()
        };
        let found = on(1);
        assert_eq!(found, on(3));
        for output in &found.tables {
            let table = &output.table;
            assert!(table.rows.iter().all(|row| row.len() == table.header.len()), "{}", output.name);
            assert_eq!(output.exact.as_ref().unwrap().rows.len(), table.rows.len());
        }
    }
}
