//! The demonstration: four workers learn the embedded digits, once with every method.
//!
//! All methods get the same network, data, budget, learning rate and number of workers. Only plain SGD is a single worker,
//! with as many steps as each of the four.

use crate::observer::EventObserver;
use crate::statistics::summary;
use crate::{Error, Table};
use grawa_core::{Method, Name, Preset};
use grawa_data::Dataset;
use grawa_train::recipe::Overrides;
use grawa_train::{Event, Finished, Observer, Recipe, Run};
use std::sync::mpsc;

/// The same for all: 320 steps of four workers with batches of 16 are 14 epochs; the rate drops once.
const SETTINGS: [&str; 7] = [
    "data.kind=digits",
    "train.batch=16",
    "train.budget=320step",
    "train.rate=0.1, x0.1 at 240step",
    "train.weight_decay=5e-4",
    "evaluate.every=80step",
    "evaluate.images=1438",
];
/// A round every eight steps gives forty rounds; methods with more rounds keep their own period.
const PERIOD: &str = "method.period=8";

/// The recipe of one run.
pub fn recipe(method: Name, workers: u32, seed: u64) -> Result<Recipe, Error> {
    let mut settings: Vec<String> = SETTINGS.map(String::from).into();
    settings.push(format!("train.seed={seed}"));
    if Method::named(method, Preset::Paper).period > 8 {
        settings.push(PERIOD.into());
    }
    if method != Name::Sgd {
        settings.push(format!("train.workers={workers}"));
    }
    let overrides = Overrides::default().method(method.as_str(), "the demo")?.set_all(&settings)?;
    Ok(Recipe::resolve(&overrides)?)
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The method.
    pub method: Name,
    /// The share of test digits that were classified wrong, from 0 to 1.
    pub error: f64,
    /// How the run ended.
    pub end: Finished,
}

/// Runs one method.
pub fn run(recipe: Recipe, data: &Dataset, others: Vec<Box<dyn Observer>>) -> Result<Outcome, Error> {
    let method = recipe.method.name;
    let (sender, errors) = mpsc::channel();
    let note = EventObserver(move |event: &Event| {
        if let Event::Evaluated(evaluated) = event {
            // The receiver is there until the run has ended.
            evaluated.models.first().map(|model| sender.send(model.error()));
        }
    });
    let mut observers: Vec<Box<dyn Observer>> = vec![Box::new(note)];
    observers.extend(others);
    let end = Run::new(recipe, data)?.go(&mut observers)?;
    let error = errors.try_iter().last().unwrap_or(1.0);
    Ok(Outcome { method, error, end })
}

/// A row for each method, whose outcomes follow each other: test error in percent (mean ± standard deviation over several
/// seeds), rounds, traffic, time.
pub fn table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new(["method", "test error %", "rounds", "MB handed over", "seconds"]);
    for of in outcomes.chunk_by(|a, b| a.method == b.method) {
        let mean = |number: &dyn Fn(&Outcome) -> f64| of.iter().map(number).sum::<f64>() / of.len() as f64;
        table.push([
            of[0].method.title().into(),
            summary(&of.iter().map(|it| 100.0 * it.error).collect::<Vec<_>>(), 2),
            format!("{:.0}", mean(&|it| it.end.at.rounds as f64)),
            format!("{:.1}", mean(&|it| it.end.bytes as f64 / 1e6)),
            format!("{:.1}", mean(&|it| it.end.at.elapsed)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_core::Amount;

    #[test]
    fn all_methods_get_the_same() {
        let recipes: Vec<Recipe> = Name::ALL.map(|name| recipe(name, 4, 7).unwrap()).into();
        for other in &recipes {
            let (train, first) = (&other.train, &recipes[0].train);
            assert_eq!((train.batch, train.seed, train.budget), (16, 7, Amount::Steps(320)));
            assert_eq!((&train.rate, &train.sgd), (&first.rate, &first.sgd));
            assert_eq!((&other.model, &other.data), (&recipes[0].model, &recipes[0].data));
            assert_eq!(train.workers, if other.method.name == Name::Sgd { 1 } else { 4 });
        }
    }

    #[test]
    fn a_table_gives_mean_and_deviation() {
        let end = Finished {
            at: grawa_train::Place { rounds: 40, elapsed: 1.5, ..Default::default() },
            reason: grawa_train::Reason::Spent,
            workers: vec![],
            bytes: 2_500_000,
            diverged: false,
        };
        let outcome = |error| Outcome { method: Name::Mean, error, end: end.clone() };
        let one = table(&[outcome(0.02)]);
        assert_eq!(one.rows, [["Mean", "2.00", "40", "2.5", "1.5"]]);
        let two = table(&[outcome(0.03), outcome(0.01)]);
        assert_eq!(two.rows[0][1], "2.00 ± 1.41");
    }

    /// What the README promises: every method classifies at least 97 % of the test digits right. The outer momentum
    /// of DiLoCo needs more than the 40 rounds of the demo.
    #[test]
    fn every_method_learns_the_digits() {
        let data = grawa_data::digits().unwrap();
        let outcomes = Name::ALL.map(|method| {
            let most = if method == Name::Diloco { 0.08 } else { 0.03 };
            (method, most, run(recipe(method, 4, 1).unwrap(), &data, Vec::new()).unwrap().error)
        });
        println!("{outcomes:?}");
        assert!(outcomes.iter().all(|(_, most, error)| error <= most), "{outcomes:?}");
    }
}
