//! The page itself: tables as HTML, and for the script the data as JSON.

use super::story::{Series, Story};
use super::weights::Weights;
use crate::page::{escaped, write_table};
use crate::picture::palette;
use crate::statistics::{deviation, mean};
use crate::{Error, Table};
use grawa_core::Name;
use serde_json::{Value, json};
use std::fmt::Write as _;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// The parts of the time that are shown: evaluation is outside the clock.
const PARTS: [&str; 7] = ["compute", "score", "queue", "data", "wait", "wire", "apply"];

/// The page of some runs.
pub(super) fn page(stories: &[Story]) -> Result<String, Error> {
    let mut stories: Vec<&Story> = stories.iter().collect();
    stories.sort_by(|a, b| {
        let key = |story: &Story| (palette::rank(story.method().as_str()), story.recipe.train.seed);
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
    let title = title(&stories);
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<main>\n<h1>{0}</h1>\n",
        escaped(&title)
    );
    let metrics = metrics(&stories);
    let options: String = metrics.iter().map(|name| format!("<option>{}</option>", escaped(name))).collect();
    let unfinished = stories.iter().filter(|story| !story.finished).count();
    if unfinished > 0 {
        // Writing to a string cannot fail.
        let _ = writeln!(html, "<p>{unfinished} of {} runs are not finished.</p>", stories.len());
    }
    section(&mut html, "Methods", &by_method(&stories), METHODS);
    let _ = write!(
        html,
        "<section>\n<h2>Curves</h2>\n<noscript><p>Curves need JavaScript; the tables do not.</p></noscript>\n\
         <div class=\"bar\"><label>Show <select id=\"metric\">{options}</select></label>\n\
         <label>over <select id=\"axis\"><option value=\"epochs\">epochs</option><option value=\"steps\">steps</option><option value=\"seconds\">seconds</option></select></label>\n\
         <label class=\"control\"><input type=\"checkbox\" id=\"log\"> log scale</label>\n\
         <label class=\"control\">smoothing <input type=\"range\" id=\"smoothing\" min=\"0\" max=\"0.95\" step=\"0.05\" value=\"0\"></label>\n\
         <label class=\"control\"><input type=\"checkbox\" id=\"mean\"{}> mean of runs</label></div>\n\
         <div class=\"bar\" id=\"methods\" role=\"group\" aria-label=\"Methods\"></div>\n<div class=\"plot\" id=\"curves\"></div>\n</section>\n",
        if stories.len() > 12 { " checked" } else { "" }
    );
    html.push_str(WEIGHTS);
    html.push_str(TIMES);
    section(
        &mut html,
        "Runs",
        &runs(&stories),
        "Errors in %; MB is what all workers handed over; seconds are those of training.",
    );
    let (differences, common) = configuration(&stories);
    if differences.header.len() > 1 {
        section(
            &mut html,
            "In what the recipes differ",
            &differences,
            "Keys that are not the same in all runs; a key that a recipe does not have is empty.",
        );
    }
    let _ = write!(
        html,
        "<section>\n<h2>What they share</h2>\n<details><summary>{} keys</summary><pre>{}</pre></details>\n</section>\n",
        common.len(),
        escaped(&common.join("\n"))
    );
    let data = serde_json::to_string(&data(&stories))
        .map_err(|error| Error::NothingShared { found: error.to_string() })?;
    // Inside a script no text may look like its end.
    let data = data.replace('<', "\\u003c");
    let _ = write!(
        html,
        "</main>\n<script type=\"application/json\" id=\"data\">{data}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    );
    Ok(html)
}

const METHODS: &str = "Mean ± standard deviation (n − 1) of the last evaluation over the runs of a method, whatever else their recipes differ in.";
const WEIGHTS: &str = "<section id=\"weights-section\">\n<h2>Weights β over rounds</h2>\n<div class=\"bar\"><label>Run <select id=\"which\"></select></label>\n\
    <label id=\"of-worker\" hidden>Worker <select id=\"worker\"></select></label>\n\
    <span id=\"scale\" class=\"key\" hidden>¼ of 1/M <i style=\"width:9rem\"></i> 4 times 1/M</span></div>\n<div class=\"plot\" id=\"weights\"></div>\n\
    <div class=\"under\" id=\"under\" hidden><span id=\"first\"></span><span id=\"last\"></span></div>\n\
    <p>One weight a worker is a line each. Where every layer has weights of its own, rows are layers from the first on top, columns are rounds: red is above \
    1/M, blue below.</p>\n</section>\n";
const TIMES: &str = "<section id=\"split-section\">\n<h2>Where the time goes</h2>\n<div class=\"bar\" id=\"parts\"></div>\n<div class=\"split\" id=\"split\"></div>\n\
    <p>Seconds of one worker, in the mean of the workers: compute, passes on score batches, waiting for a core, for data, for other workers, exchanging \
    reports, and making the centre and pulling. Evaluation is outside the clock.</p>\n</section>\n";

fn section(html: &mut String, title: &str, table: &Table, about: &str) {
    let _ = writeln!(html, "<section>\n<h2>{}</h2>", escaped(title));
    write_table(html, table, &[]);
    let _ = writeln!(html, "<p>{}</p>\n</section>", escaped(about));
}

fn title(stories: &[&Story]) -> String {
    let one = |words: fn(&Story) -> String| {
        let first = stories.first().map(|story| words(story)).unwrap_or_default();
        stories.iter().all(|story| words(story) == first).then_some(first)
    };
    let network = one(|story| story.recipe.model.name.clone()).unwrap_or_else(|| "several networks".into());
    let data = one(|story| story.recipe.data.kind.to_string()).unwrap_or_else(|| "several data sets".into());
    let runs = if stories.len() == 1 { "1 run".into() } else { format!("{} runs", stories.len()) };
    format!("{runs}: {network} on {data}")
}

/// All metrics: those that most runs have first, errors before losses, the rate last.
fn metrics(stories: &[&Story]) -> Vec<String> {
    let mut names: Vec<String> = stories.iter().flat_map(|story| story.metrics.keys().cloned()).collect();
    names.sort();
    names.dedup();
    let count = |name: &String| stories.iter().filter(|story| story.metrics.contains_key(name)).count();
    let kind = |name: &String| match name {
        name if name == RATE => 3,
        name if name.contains(" error ") => 0,
        name if name.starts_with("training") => 2,
        _ => 1,
    };
    names.sort_by_key(|name| (kind(name), usize::MAX - count(name)));
    names
}

/// A metric that is shown and does not tell how a run did.
pub(super) const RATE: &str = "learning rate";

fn by_method(stories: &[&Story]) -> Table {
    let mut methods: Vec<Name> = stories.iter().map(|story| story.method()).collect();
    methods.dedup();
    let mut table =
        Table::new(["method", "runs", "last error %", "lowest error %", "rounds", "MB", "seconds"]);
    for method in methods {
        let own: Vec<&&Story> = stories.iter().filter(|story| story.method() == method).collect();
        let with = |numbers: Vec<f64>, places: usize| match (numbers.is_empty(), deviation(&numbers)) {
            (true, _) => String::new(),
            (false, Some(spread)) => format!("{:.places$} ± {spread:.places$}", mean(&numbers)),
            (false, None) => format!("{:.places$}", mean(&numbers)),
        };
        let all = |figure: &dyn Fn(&Story) -> Option<f64>| {
            own.iter().filter_map(|story| figure(story)).collect::<Vec<_>>()
        };
        table.push([
            method.title().to_owned(),
            own.len().to_string(),
            with(all(&|story| story.errors.map(|it| it.0)), 2),
            with(all(&|story| story.errors.map(|it| it.1)), 2),
            format!("{:.0}", mean(&all(&|story| Some(story.totals.1 as f64)))),
            format!("{:.1}", mean(&all(&|story| Some(story.totals.2 as f64 / 1e6)))),
            with(all(&|story| Some(story.totals.3)), 1),
        ]);
    }
    table
}

fn runs(stories: &[&Story]) -> Table {
    let mut table = Table::new([
        "run",
        "method",
        "seed",
        "last error",
        "lowest",
        "steps",
        "rounds",
        "MB",
        "seconds",
        "finished",
    ]);
    for story in stories {
        let (steps, rounds, bytes, seconds) = story.totals;
        let error = |error: Option<f64>| error.map_or(String::new(), |error| format!("{error:.2}"));
        table.push([
            story.name.clone(),
            story.recipe.method.to_string(),
            story.recipe.train.seed.to_string(),
            error(story.errors.map(|it| it.0)),
            error(story.errors.map(|it| it.1)),
            steps.to_string(),
            rounds.to_string(),
            format!("{:.1}", bytes as f64 / 1e6),
            format!("{seconds:.1}"),
            if story.finished { "yes" } else { "no" }.into(),
        ]);
    }
    table
}

/// The keys that differ, a row a run; and the lines that all share.
fn configuration(stories: &[&Story]) -> (Table, Vec<String>) {
    let recipes: Vec<Vec<(String, String)>> =
        stories.iter().map(|story| flat(&story.recipe.to_toml())).collect();
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
    for (story, recipe) in stories.iter().zip(&recipes) {
        let cells = different.iter().map(|key| value(recipe, key).unwrap_or_default());
        table.push(std::iter::once(story.name.clone()).chain(cells));
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

fn data(stories: &[&Story]) -> Value {
    let runs: Vec<Value> = stories.iter().map(|story| run(story)).collect();
    let series: Vec<String> =
        (0..palette::SERIES_COLOURS).map(|index| palette::css(palette::series(index))).collect();
    json!({ "parts": PARTS, "series": series, "runs": runs })
}

fn run(story: &Story) -> Value {
    let metrics: serde_json::Map<String, Value> =
        story.metrics.iter().map(|(name, series)| (name.clone(), curve(series))).collect();
    let times = story.times.parts();
    let seconds =
        PARTS.map(|part| times.iter().find(|(name, _)| *name == part).map_or(0.0, |(_, seconds)| *seconds));
    let weights = match &story.weights {
        None => Value::Null,
        Some(Weights::Lines { rounds, workers, rows }) => {
            let rows: Vec<Value> =
                rows.iter().map(|row| row.iter().map(|&weight| number(weight)).collect()).collect();
            json!({ "rounds": rounds, "workers": workers, "rows": rows })
        }
        Some(Weights::Map { rounds, layers, workers, cells }) => {
            json!({ "rounds": rounds, "layers": layers, "workers": workers, "cells": base64(cells) })
        }
    };
    json!({
        "name": story.name,
        "method": story.method().as_str(),
        "title": story.method().title(),
        "colour": story.colour(),
        "marker": story.marker(),
        "metrics": metrics,
        "times": seconds.map(|x| number(Some(x))),
        "weights": weights,
    })
}

fn curve(series: &Series) -> Value {
    let axis = |pick: fn(&super::thin::Place) -> f64| {
        series.at.iter().map(|at| number(Some(pick(at)))).collect::<Value>()
    };
    json!({
        "steps": axis(|at| at.steps),
        "epochs": axis(|at| at.epochs),
        "seconds": axis(|at| at.seconds),
        "y": series.values.iter().map(|&value| number(value)).collect::<Value>(),
    })
}

/// A number with five figures: more cannot be seen.
fn number(x: Option<f64>) -> Value {
    x.and_then(|x| format!("{x:.4e}").parse::<f64>().ok()).map_or(Value::Null, |x| json!(x))
}

/// As RFC 4648 says.
fn base64(bytes: &[u8]) -> String {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let all = three.iter().fold(0u32, |all, &byte| all << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let sign = SIGNS[(all >> (18 - 6 * place) & 63) as usize];
            text.push(if place > three.len() { '=' } else { char::from(sign) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 4648.
    #[test]
    fn base64_is_the_rfcs() {
        let found = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(found, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }

    /// What a user calls a folder is shown as text, in tables and inside the data.
    #[test]
    fn hostile_names_stay_text() {
        let bad = "</script><script>alert('1')</script>";
        let recipe = grawa_train::Recipe::for_data(grawa_data::Kind::Digits, None).unwrap();
        let story = Story::of(bad.into(), recipe, &[], crate::report::weights::Budget::for_runs(1));
        let html = page(&[story]).unwrap();
        // The two scripts of the page, and no other.
        assert_eq!((html.matches("<script").count(), html.matches("</script").count()), (2, 2));
        assert!(
            html.contains("&lt;/script&gt;&lt;script&gt;alert(&#39;1&#39;)")
                && html.contains("1 of 1 runs are not finished")
        );
    }

    /// Every method has a colour and a marker of its own, and every part of the time a colour.
    #[test]
    fn legends_tell_their_entries_apart() {
        let mut recipe = grawa_train::Recipe::for_data(grawa_data::Kind::Digits, None).unwrap();
        let mut signs = std::collections::BTreeSet::new();
        for method in Name::ALL {
            recipe.method = grawa_core::Method::named(method, grawa_core::Preset::Paper);
            let budget = crate::report::weights::Budget::for_runs(1);
            let story = Story::of(method.to_string(), recipe.clone(), &[], budget);
            // A grey for black would be that of SGD.
            assert!(method == Name::Sgd || !["#696969", "#777777"].contains(&story.colour().as_str()));
            assert!(signs.insert(story.colour()) && signs.insert(story.marker()), "{method}");
        }
        assert!(PARTS.len() <= palette::SERIES_COLOURS);
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
