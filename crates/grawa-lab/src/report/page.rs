//! The page: tables as HTML, and the data of the script as JSON.

use super::downsample::Point;
use super::run_summary::RunSummary;
use super::weights::Weights;
use crate::lab::clocked;
use crate::page::{self, begin, escaped};
use crate::picture::palette;
use crate::statistics::{mean, summary};
use crate::{Error, Table};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use grawa_core::Name;
use grawa_train::Times;
use serde_json::{Value, json};

const STYLE: &str = include_str!("page.css");
/// What follows the heading; `{{name}}` is replaced by a value.
const TEMPLATE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");

/// The page of some runs.
pub fn html(runs: &[RunSummary]) -> Result<String, Error> {
    let mut named: Vec<(String, &RunSummary)> = labels(runs).into_iter().zip(runs).collect();
    named.sort_by(|(label, a), (other, b)| {
        let rank = |run: &RunSummary| palette::rank(run.method().as_str());
        let key = |run: &RunSummary| (run.recipe.train.seed, run.name.clone());
        (rank(a), label).cmp(&(rank(b), other)).then_with(|| key(a).cmp(&key(b)))
    });
    let (labels, runs): (Vec<String>, Vec<&RunSummary>) = named.into_iter().unzip();
    let signs = signs(&labels, &runs);
    let html = |table: &Table| page::table(table, &[]);
    let (different, common) = configuration(&runs);
    let unfinished = runs.iter().filter(|run| !run.finished).count();
    let diverged = runs.iter().filter(|run| run.diverged).count();
    let data = serde_json::to_string(&data(&signs, &runs))?;
    let value = |name: &str| match name {
        "unfinished" if unfinished > 0 => {
            format!("<p>{unfinished} of {} runs are not finished.</p>\n", runs.len())
        }
        "diverged" if diverged > 0 => {
            format!("<p>{diverged} of {} runs diverged and are left out of means.</p>\n", runs.len())
        }
        "methods" => html(&by_method(&labels, &runs)),
        "options" => metrics(&runs).iter().map(|it| format!("<option>{}</option>", escaped(it))).collect(),
        // Several seeds: their lines would lie on each other.
        "checked" if labels.windows(2).any(|two| two[0] == two[1]) => " checked".into(),
        "runs" => html(&table_of_runs(&runs)),
        "differences" if different.header.len() > 1 => format!(
            "<section>\n<h2>Settings that differ</h2>\n{}<p>Keys that are not the same in all runs; a key that a recipe does not have is empty.</p>\n</section>\n",
            html(&different)
        ),
        "keys" => common.len().to_string(),
        "common" => escaped(&common.join("\n")),
        // No text inside a script may look like its end.
        "data" => data.replace('<', "\\u003c"),
        "script" => SCRIPT.into(),
        _ => String::new(),
    };
    let mut page = begin(&title(&runs), STYLE);
    for (number, part) in TEMPLATE.split("{{").enumerate() {
        let (name, text) = if number == 0 { ("", part) } else { part.split_once("}}").unwrap_or(("", part)) };
        page += &value(name);
        page += text;
    }
    Ok(page)
}

fn title(runs: &[&RunSummary]) -> String {
    let one = |words: fn(&RunSummary) -> String| {
        let first = runs.first().map(|run| words(run)).unwrap_or_default();
        runs.iter().all(|run| words(run) == first).then_some(first)
    };
    let network = one(|run| run.recipe.model.name.clone()).unwrap_or_else(|| "several networks".into());
    let data = one(|run| run.recipe.data.kind.to_string()).unwrap_or_else(|| "several data sets".into());
    let runs = if runs.len() == 1 { "1 run".into() } else { format!("{} runs", runs.len()) };
    format!("{runs}: {network} on {data}")
}

/// All metrics: errors before losses, the rate last; within these, the most common first.
fn metrics(runs: &[&RunSummary]) -> Vec<String> {
    let mut names: Vec<String> = runs.iter().flat_map(|run| run.metrics.keys().cloned()).collect();
    names.sort();
    names.dedup();
    let count = |name: &String| runs.iter().filter(|run| run.metrics.contains_key(name)).count();
    let kind = |name: &String| match name {
        name if name == RATE => 3,
        name if name.contains(" error ") => 0,
        name if name.starts_with("training") => 2,
        _ => 1,
    };
    names.sort_by_key(|name| (kind(name), usize::MAX - count(name)));
    names
}

/// A metric that does not show how well a run did.
pub(super) const RATE: &str = "learning rate";

/// What each run is called in legends: its method, and the settings that not all runs of the method share. Seeds, paths and the machine
/// are no settings.
fn labels(runs: &[RunSummary]) -> Vec<String> {
    let is_setting = |key: &str| !["train.seed", "data.dir"].contains(&key) && !key.starts_with("machine.");
    let settings = |run: &RunSummary| -> Vec<(String, String)> {
        flat(&run.recipe.to_toml()).into_iter().filter(|(key, _)| is_setting(key)).collect()
    };
    let all: Vec<_> = runs.iter().map(settings).collect();
    let label = |(run, own): (&RunSummary, &Vec<(String, String)>)| {
        let others = || runs.iter().zip(&all).filter(|(other, _)| other.method() == run.method());
        let differs = |setting: &&(String, String)| others().any(|(_, it)| !it.contains(setting));
        let word = |(key, value): &(String, String)| format!("{}={value}", key.trim_start_matches("method."));
        let words: Vec<String> = own.iter().filter(differs).map(word).collect();
        format!("{} {}", run.method().title(), words.join(", ")).trim_end().to_owned()
    };
    runs.iter().zip(&all).map(label).collect()
}

/// How the lines of a label are drawn: the colour in CSS, and the marker as the points of a polygon around 0, 0. Runs of one label follow
/// each other.
fn signs(labels: &[String], runs: &[&RunSummary]) -> Vec<(String, String, String)> {
    let mut different: Vec<(&String, Name)> =
        labels.iter().zip(runs.iter().map(|run| run.method())).collect();
    different.dedup();
    let looks = palette::looks(&different.iter().map(|(_, method)| method.as_str()).collect::<Vec<_>>());
    let sign = |label: &String| {
        let at = different.iter().position(|(other, _)| *other == label).unwrap_or(0);
        let (marker, colour) = looks[at];
        // Black becomes the colour of text, which is visible in dark mode.
        let is_black = colour == palette::look(Name::Mean.as_str()).colour;
        let point = |(x, y): (i32, i32)| format!("{:.1},{:.1}", f64::from(x) / 10.0, f64::from(y) / 10.0);
        let outline: Vec<String> = marker.outline((0.0, 0.0), 4.5).into_iter().map(point).collect();
        let colour = if is_black { "currentColor".into() } else { palette::css(colour) };
        (label.clone(), colour, outline.join(" "))
    };
    labels.iter().map(sign).collect()
}

fn by_method(labels: &[String], runs: &[&RunSummary]) -> Table {
    let mut table =
        Table::new(["method", "runs", "last error %", "lowest error %", "rounds", "MB", "seconds"]);
    let mut left = runs;
    for label in labels.chunk_by(|a, b| a == b) {
        let own;
        (own, left) = left.split_at(label.len());
        let good: Vec<&RunSummary> = own.iter().copied().filter(|run| !run.diverged).collect();
        let count = if good.len() < own.len() {
            format!("{}, {} diverged", own.len(), own.len() - good.len())
        } else {
            own.len().to_string()
        };
        if good.is_empty() {
            let dashes = std::iter::repeat_n("–".into(), 5);
            table.push([label[0].clone(), count].into_iter().chain(dashes));
            continue;
        }
        let all = |figure: &dyn Fn(&RunSummary) -> Option<f64>| {
            good.iter().filter_map(|run| figure(run)).collect::<Vec<_>>()
        };
        table.push([
            label[0].clone(),
            count,
            summary(&all(&|run| run.errors.map(|it| it.0)), 2),
            summary(&all(&|run| run.errors.map(|it| it.1)), 2),
            format!("{:.0}", mean(&all(&|run| Some(run.totals.1 as f64)))),
            format!("{:.1}", mean(&all(&|run| Some(run.totals.2 as f64 / 1e6)))),
            summary(&all(&|run| Some(run.totals.3)), 1),
        ]);
    }
    table
}

fn table_of_runs(runs: &[&RunSummary]) -> Table {
    let header =
        ["run", "method", "seed", "last error", "lowest", "steps", "rounds", "MB", "seconds", "finished"];
    let mut table = Table::new(header);
    for run in runs {
        let (steps, rounds, bytes, seconds) = run.totals;
        let error = |error: Option<f64>| error.map_or(String::new(), |error| format!("{error:.2}"));
        table.push([
            run.name.clone(),
            run.recipe.method.to_string(),
            run.recipe.train.seed.to_string(),
            error(run.errors.map(|it| it.0)),
            error(run.errors.map(|it| it.1)),
            steps.to_string(),
            rounds.to_string(),
            format!("{:.1}", bytes as f64 / 1e6),
            format!("{seconds:.1}"),
            match (run.diverged, run.finished) {
                (true, _) => "diverged",
                (_, true) => "yes",
                _ => "no",
            }
            .into(),
        ]);
    }
    table
}

/// The keys that differ, with a row for each run; and the lines that all share.
fn configuration(runs: &[&RunSummary]) -> (Table, Vec<String>) {
    let recipes: Vec<Vec<(String, String)>> = runs.iter().map(|run| flat(&run.recipe.to_toml())).collect();
    let mut keys: Vec<&String> = recipes.iter().flatten().map(|(key, _)| key).collect();
    let mut seen = std::collections::BTreeSet::new();
    keys.retain(|key| seen.insert(*key));
    let value = |recipe: &[(String, String)], key: &String| {
        recipe.iter().find(|it| it.0 == *key).map(|it| it.1.clone())
    };
    let (mut different, mut common) = (Vec::new(), Vec::new());
    for key in keys {
        let first = recipes.first().and_then(|recipe| value(recipe, key));
        match recipes.iter().all(|recipe| value(recipe, key) == first) {
            true => common.push(format!("{key} = {}", first.unwrap_or_default())),
            false => different.push(key),
        }
    }
    let mut table =
        Table::new(std::iter::once("run".to_owned()).chain(different.iter().map(|key| (*key).clone())));
    for (run, recipe) in runs.iter().zip(&recipes) {
        let cells = different.iter().map(|key| value(recipe, key).unwrap_or_default());
        table.push(std::iter::once(run.name.clone()).chain(cells));
    }
    (table, common)
}

/// The keys of a printed recipe with their tables' names, and their values as they are written.
fn flat(toml: &str) -> Vec<(String, String)> {
    let mut table = String::new();
    let mut keys = Vec::new();
    for line in toml.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            name.clone_into(&mut table);
        } else if let Some((key, value)) = line.split_once(" = ") {
            keys.push((format!("{table}.{key}"), value.trim_matches('"').to_owned()));
        }
    }
    keys
}

fn data(signs: &[(String, String, String)], runs: &[&RunSummary]) -> Value {
    let runs: Vec<Value> = signs.iter().zip(runs).map(|(sign, run)| data_of(sign, run)).collect();
    let series: Vec<String> =
        (0..palette::SERIES_COLOURS).map(|index| palette::css(palette::series(index))).collect();
    let parts = clocked(&Times::default()).map(|(part, _)| part);
    json!({ "parts": parts, "series": series, "runs": runs })
}

fn data_of((label, colour, marker): &(String, String, String), run: &RunSummary) -> Value {
    let metrics: serde_json::Map<String, Value> =
        run.metrics.iter().map(|(name, points)| (name.clone(), curve(points))).collect();
    json!({
        "name": run.name,
        "diverged": run.diverged,
        "label": label,
        "colour": colour,
        "marker": marker,
        "metrics": metrics,
        "times": clocked(&run.times).map(|(_, seconds)| number(Some(seconds))),
        "weights": run.weights.as_ref().map(weights),
    })
}

/// Lines of numbers by worker, or a map of bytes.
fn weights(weights: &Weights) -> Value {
    let Weights { rounds, workers, layers, values } = weights;
    if !layers.is_empty() {
        let cells = STANDARD.encode(weights.bytes());
        return json!({ "rounds": rounds, "layers": layers, "workers": workers, "cells": cells });
    }
    let row = |worker: usize| values[worker..].iter().step_by(workers.len()).map(|&it| number(it)).collect();
    let rows: Vec<Value> = (0..workers.len()).map(row).collect();
    json!({ "rounds": rounds, "workers": workers, "rows": rows })
}

fn curve(points: &[Point]) -> Value {
    let column =
        |value: fn(&Point) -> Option<f64>| points.iter().map(|it| number(value(it))).collect::<Value>();
    json!({
        "steps": column(|it| Some(it.0.steps as f64)),
        "epochs": column(|it| Some(it.0.epochs)),
        "seconds": column(|it| Some(it.0.elapsed)),
        "y": column(|it| it.1),
    })
}

/// A number with five digits: more cannot be seen.
fn number(x: Option<f64>) -> Value {
    x.and_then(|x| format!("{x:.4e}").parse::<f64>().ok()).map_or(Value::Null, |x| json!(x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Not as one of a file or of a run.
    #[test]
    fn an_error_of_the_data_is_reported_as_itself() {
        let error = Error::from(serde_json::from_str::<Value>("{").unwrap_err()).to_string();
        assert!(error.starts_with("the data of the page cannot be written as JSON: EOF"), "{error}");
    }

    /// What a user calls a folder is shown as text, in tables and inside the data.
    #[test]
    fn hostile_names_stay_text() {
        let bad = "</script><script>alert('1')</script>";
        let recipe = grawa_train::Recipe::for_data(grawa_data::DatasetKind::Digits, None).unwrap();
        let run = RunSummary::of(bad.into(), recipe, &[], crate::report::weights::budget(1));
        let html = html(&[run]).unwrap();
        // The two scripts of the page, and no other.
        assert_eq!((html.matches("<script").count(), html.matches("</script").count()), (2, 2));
        assert!(
            html.contains("&lt;/script&gt;&lt;script&gt;alert(&#39;1&#39;)")
                && html.contains("1 of 1 runs are not finished")
        );
    }

    fn run(method: &str, seed: u64, batch: u32) -> RunSummary {
        let mut recipe = grawa_train::Recipe::for_data(grawa_data::DatasetKind::Digits, None).unwrap();
        recipe.method = method.parse().unwrap();
        (recipe.train.seed, recipe.train.batch) = (seed, batch);
        RunSummary::of(format!("{method}-{seed}-{batch}"), recipe, &[], crate::report::weights::budget(1))
    }

    /// Every method has a colour and a marker of its own, and every part of the time a colour.
    #[test]
    fn legends_tell_their_entries_apart() {
        let mut runs = Name::ALL.map(|name| run(name.as_str(), 1, 32)).to_vec();
        runs.extend(["lgrawa:pull=0.7", "lgrawa:pull=0.3"].map(|method| run(method, 1, 32)));
        let labels = labels(&runs);
        let signs = signs(&labels, &runs.iter().collect::<Vec<_>>());
        let names: BTreeSet<&String> = signs.iter().map(|sign| &sign.0).collect();
        let colours: BTreeSet<&String> = signs.iter().map(|sign| &sign.1).collect();
        assert_eq!((names.len(), colours.len()), (runs.len(), runs.len()), "{signs:?}");
        // A grey for black would be that of SGD.
        assert!(signs.iter().all(|sign| sign.0 == "SGD" || !["#696969", "#777777"].contains(&&*sign.1)));
        assert!(clocked(&Times::default()).len() <= palette::SERIES_COLOURS);
    }

    /// Seeds are runs of one label; other settings are in the label, where runs of the method differ in them.
    #[test]
    fn runs_with_other_settings_have_other_labels() {
        let runs = [
            run("mean", 1, 32),
            run("lgrawa:pull=0.7", 1, 32),
            run("lgrawa:pull=0.7", 2, 32),
            run("lgrawa:pull=0.3", 1, 64),
        ];
        let (seven, three) = ("LGRAWA pull=0.7, train.batch=32", "LGRAWA pull=0.3, train.batch=64");
        assert_eq!(labels(&runs), ["Mean", seven, seven, three]);
        let table = by_method(&labels(&runs), &runs.iter().collect::<Vec<_>>());
        assert_eq!(table.rows.iter().map(|row| row[1].clone()).collect::<Vec<_>>(), ["1", "2", "1"]);
    }

    /// A run that diverged is marked and has no part in means.
    #[test]
    fn runs_that_diverged_are_counted_and_left_out() {
        let mut runs = [run("mean", 1, 32), run("mean", 2, 32), run("mean", 3, 32), run("lgrawa", 1, 32)];
        for (run, error) in runs.iter_mut().zip([2.0, 4.0, 90.0, 90.0]) {
            (run.errors, run.finished, run.diverged) = (Some((error, error)), true, error > 50.0);
        }
        let table = by_method(&labels(&runs), &runs.iter().collect::<Vec<_>>());
        assert_eq!(table.rows[0][1..3], ["3, 1 diverged", "3.00 ± 1.41"]);
        assert_eq!(table.rows[1][1..3], ["1, 1 diverged", "–"]);
        let html = html(&runs).unwrap();
        assert!(html.contains("2 of 4 runs diverged and are left out of means"));
        assert_eq!(
            (html.matches("<td>diverged</td>").count(), html.matches("\"diverged\":true").count()),
            (2, 2)
        );
    }

    #[test]
    fn numbers_are_short_and_finite() {
        let found = [Some(0.123456789), Some(f64::NAN), None, Some(12.0)].map(|x| number(x).to_string());
        assert_eq!(found, ["0.12346", "null", "null", "12.0"]);
    }

    #[test]
    fn recipes_are_flattened() {
        let keys = flat("[train]\nworkers = 4\nbudget = \"8step\"\n\n[method]\nname = \"mean\"\n");
        let expected = [("train.workers", "4"), ("train.budget", "8step"), ("method.name", "mean")];
        assert_eq!(keys, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
}
