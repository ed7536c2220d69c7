//! Methods as text: `name:knob=value,…` on a command line, a table in TOML.
//!
//! Both forms go through the serde type [`Knobs`]: what was set is laid over the row of the table, what was not set stays as the row has
//! it, and a knob that means nothing to the method is an error. Printing as a string gives the knobs that differ from the row; TOML
//! gives every knob.

use super::{
    By, Centre, Evaluate, Inner, Method, Name, Norm, Outer, Preset, Pull, Rise, Score, Source, Toward,
    Weighting,
};
use crate::Error;
use crate::error::nearest;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use toml::{Table, Value};

/// A method as it is written: each knob said or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Knobs {
    name: Option<String>,
    preset: Option<Preset>,
    group: Option<u32>,
    period: Option<u32>,
    qsr: Option<f64>,
    pull: Option<Pull>,
    toward: Option<Toward>,
    push: Option<f64>,
    push_rise: Option<Rise>,
    prox: Option<f64>,
    score: Option<ScoreKnob>,
    score_from: Option<SourceKnob>,
    score_momentum: Option<f64>,
    score_window: Option<u32>,
    score_reset: Option<bool>,
    score_dropout: Option<bool>,
    weighting: Option<Weighting>,
    by: Option<By>,
    centre: Option<CentreKnob>,
    rate: Option<f64>,
    momentum: Option<f64>,
    nesterov: Option<bool>,
    by_rate: Option<bool>,
    radius: Option<f64>,
    evaluate: Option<Evaluate>,
    inner: Option<Box<Knobs>>,
}

/// The knobs of one level of rounds; an inner level has them too.
const LEVEL: [&str; 20] = [
    "period",
    "qsr",
    "pull",
    "toward",
    "push",
    "push_rise",
    "prox",
    "score",
    "score_from",
    "score_momentum",
    "score_window",
    "score_reset",
    "score_dropout",
    "weighting",
    "by",
    "centre",
    "rate",
    "momentum",
    "nesterov",
    "by_rate",
];
/// The knobs of the method as a whole.
const WHOLE: [&str; 3] = ["preset", "radius", "evaluate"];

/// The knobs a user may set, in words.
pub fn knobs() -> Vec<&'static str> {
    [&WHOLE[..], &LEVEL, &["inner.group", "inner.KNOB"]].concat()
}

fn is_known(knob: &str) -> bool {
    match knob.strip_prefix("inner.") {
        Some(key) => key == "group" || LEVEL.contains(&key),
        None => LEVEL.contains(&knob) || WHOLE.contains(&knob),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ScoreKnob {
    None,
    Loss,
    Gradient,
    LayerSum,
    Layers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SourceKnob {
    CommonBatch,
    OwnBatch,
    Training,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CentreKnob {
    Weighted,
    Moving,
    Outer,
}

/// λ as a number, or `"rate/M"`.
impl Serialize for Pull {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match *self {
            Pull::Fixed(pull) => to.serialize_f64(pull),
            Pull::RateOverWorkers => to.serialize_str("rate/M"),
        }
    }
}

impl<'de> Deserialize<'de> for Pull {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Pull;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 0 to 1, or \"rate/M\"")
            }
            fn visit_f64<E: serde::de::Error>(self, pull: f64) -> Result<Pull, E> {
                Ok(Pull::Fixed(pull))
            }
            fn visit_i64<E: serde::de::Error>(self, pull: i64) -> Result<Pull, E> {
                Ok(Pull::Fixed(pull as f64))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Pull, E> {
                let known = (text == "rate/M").then_some(Pull::RateOverWorkers);
                known.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl TryFrom<Knobs> for Method {
    type Error = Error;

    fn try_from(knobs: Knobs) -> Result<Method, Error> {
        let name = knobs.name.as_deref().ok_or_else(|| Error::Unreadable {
            what: "a method",
            found: String::new(),
            expected: "expected a name, such as name = \"lgrawa\"".into(),
        })?;
        let row = Method::named(name.parse()?, knobs.preset.unwrap_or_default());
        if knobs.group.is_some() {
            return Err(row.pointless("group", "it belongs to the inner level: write inner.group"));
        }
        let mut method = lay_over(&row, &knobs)?;
        if let Some(inner) = &knobs.inner {
            method.inner = Some(Box::new(read_inner(&method, inner)?));
        }
        method.check()?;
        Ok(method)
    }
}

/// The inner level: what the outer level is, but for what was said, at a quarter of its period.
fn read_inner(outer: &Method, knobs: &Knobs) -> Result<Inner, Error> {
    if knobs.name.is_some()
        || knobs.preset.is_some()
        || knobs.inner.is_some()
        || knobs.evaluate.is_some()
        || knobs.radius.is_some()
    {
        return Err(
            outer.pointless("inner", "name, preset, evaluate, radius and inner belong to the outer level")
        );
    }
    let group = knobs
        .group
        .ok_or_else(|| outer.pointless("inner", "say how many workers form a group: inner.group = 4"))?;
    Ok(Inner { group, method: lay_over(&inner_defaults(outer), knobs)? })
}

/// What an inner level is if nothing is set: the outer one, at a quarter of its period as in the paper, or at the next smaller number
/// that divides it.
fn inner_defaults(outer: &Method) -> Method {
    let quarters = (1..=(outer.period / 4).max(1)).rev();
    let period = quarters.into_iter().find(|&part| outer.period.is_multiple_of(part)).unwrap_or(1);
    let centre = if matches!(outer.centre, Centre::Outer(_)) { Centre::Weighted } else { outer.centre };
    Method { period, centre, radius: None, inner: None, ..outer.clone() }
}

/// What was said, over what the row says.
fn lay_over(row: &Method, said: &Knobs) -> Result<Method, Error> {
    let centre = lay_centre(row, said)?;
    Ok(Method {
        score: lay_score(row, said)?,
        weighting: said.weighting.unwrap_or(row.weighting),
        by: said.by.unwrap_or(row.by),
        centre,
        pull: said.pull.unwrap_or(row.pull),
        toward: said.toward.unwrap_or(row.toward),
        push: said.push.unwrap_or(row.push),
        push_rise: said.push_rise.unwrap_or(row.push_rise),
        qsr: said.qsr.unwrap_or(row.qsr),
        prox: said.prox.unwrap_or(row.prox),
        period: said.period.unwrap_or(row.period),
        radius: said.radius.or(row.radius),
        evaluate: said.evaluate.unwrap_or(row.evaluate),
        inner: None,
        ..row.clone()
    })
}

/// An outer optimizer where the row has none: that of DiLoCo.
const OUTER: Outer = Outer { rate: 0.7, momentum: 0.9, nesterov: true, by_rate: None };

fn lay_centre(row: &Method, said: &Knobs) -> Result<Centre, Error> {
    let kind = said.centre.unwrap_or(centre_knob(&row.centre));
    let unless = |is_set: bool, knob, needs| if is_set { Err(row.pointless(knob, needs)) } else { Ok(()) };
    if kind != CentreKnob::Outer {
        let needs = "only an outer optimizer has it; set centre = 'outer'";
        unless(said.momentum.is_some(), "momentum", needs)?;
        unless(said.nesterov.is_some(), "nesterov", needs)?;
        unless(said.by_rate.is_some(), "by_rate", needs)?;
    }
    Ok(match kind {
        CentreKnob::Weighted => {
            let needs = "only a moving centre has one; set centre = 'moving' or centre = 'outer'";
            unless(said.rate.is_some(), "rate", needs)?;
            Centre::Weighted
        }
        CentreKnob::Moving => {
            // Where nothing is said of ρ it follows λ, as in the paper's grids.
            let follows = if let Some(Pull::Fixed(pull)) = said.pull { Some(pull) } else { None };
            let default = if let Centre::Moving { rate } = row.centre { rate } else { row.pull_of(1) };
            Centre::Moving { rate: said.rate.or(follows).unwrap_or(default) }
        }
        CentreKnob::Outer => {
            let default = if let Centre::Outer(outer) = row.centre { outer } else { OUTER };
            Centre::Outer(Outer {
                rate: said.rate.unwrap_or(default.rate),
                momentum: said.momentum.unwrap_or(default.momentum),
                nesterov: said.nesterov.unwrap_or(default.nesterov),
                by_rate: said.by_rate.unwrap_or(default.by_rate.is_some()).then_some(1.0),
            })
        }
    })
}

fn centre_knob(centre: &Centre) -> CentreKnob {
    match centre {
        Centre::Weighted => CentreKnob::Weighted,
        Centre::Moving { .. } => CentreKnob::Moving,
        Centre::Outer(_) => CentreKnob::Outer,
    }
}

fn lay_score(row: &Method, said: &Knobs) -> Result<Score, Error> {
    let kind = said.score.unwrap_or(score_knob(&row.score));
    let unless = |is_set: bool, knob, needs| if is_set { Err(row.pointless(knob, needs)) } else { Ok(()) };
    if !matches!(kind, ScoreKnob::Loss) {
        unless(said.score_window.is_some(), "score_window", "only score = 'loss' has one")?;
    }
    let of = match kind {
        ScoreKnob::Gradient => Norm::Gradient,
        ScoreKnob::LayerSum => Norm::LayerSum,
        ScoreKnob::Layers => Norm::Layers,
        ScoreKnob::None | ScoreKnob::Loss => {
            let needs = "only the norm of a gradient has it; set score to gradient, layer-sum or layers";
            unless(said.score_from.is_some(), "score_from", needs)?;
            unless(said.score_momentum.is_some(), "score_momentum", needs)?;
            unless(said.score_reset.is_some(), "score_reset", needs)?;
            unless(said.score_dropout.is_some(), "score_dropout", needs)?;
            let row_window = if let Score::Loss { window } = row.score { window } else { 1 };
            let window = said.score_window.unwrap_or(row_window);
            return Ok(if kind == ScoreKnob::Loss { Score::Loss { window } } else { Score::None });
        }
    };
    // A row that has no norm of its own takes its defaults from the methods that do.
    let like = |name| Method::named(name, row.preset).score;
    let is_training = |score: &Score| matches!(score, Score::Norm { from: Source::Training { .. }, .. });
    let trains = said.score_from.map_or(is_training(&row.score), |from| from == SourceKnob::Training);
    let default = match row.score {
        score @ Score::Norm { .. } if is_training(&score) == trains => score,
        _ if trains => like(Name::LocalMgrawa),
        _ => like(Name::Mgrawa),
    };
    let Score::Norm { from, momentum, .. } = default else {
        return Err(row.pointless("score", "the table has no default for it"));
    };
    let from = match from {
        Source::Batch { common, dropout } => {
            unless(said.score_reset.is_some(), "score_reset", "only score_from = 'training' has it")?;
            let common = said.score_from.map_or(common, |from| from == SourceKnob::CommonBatch);
            Source::Batch { common, dropout: said.score_dropout.unwrap_or(dropout) }
        }
        Source::Training { reset } => {
            unless(
                said.score_dropout.is_some(),
                "score_dropout",
                "training gradients have the dropout of training",
            )?;
            Source::Training { reset: said.score_reset.unwrap_or(reset) }
        }
    };
    Ok(Score::Norm { of, from, momentum: said.score_momentum.unwrap_or(momentum) })
}

fn score_knob(score: &Score) -> ScoreKnob {
    match score {
        Score::None => ScoreKnob::None,
        Score::Loss { .. } => ScoreKnob::Loss,
        Score::Norm { of: Norm::Gradient, .. } => ScoreKnob::Gradient,
        Score::Norm { of: Norm::LayerSum, .. } => ScoreKnob::LayerSum,
        Score::Norm { of: Norm::Layers, .. } => ScoreKnob::Layers,
    }
}

impl From<Method> for Knobs {
    fn from(method: Method) -> Knobs {
        let mut knobs = Knobs {
            period: Some(method.period),
            pull: Some(method.pull),
            toward: Some(method.toward),
            prox: Some(method.prox),
            score: Some(score_knob(&method.score)),
            weighting: Some(method.weighting),
            by: Some(method.by),
            push: Some(method.push),
            push_rise: Some(method.push_rise),
            qsr: Some(method.qsr),
            centre: Some(centre_knob(&method.centre)),
            ..Knobs::default()
        };
        match method.score {
            Score::None => {}
            Score::Loss { window } => knobs.score_window = Some(window),
            Score::Norm { from, momentum, .. } => {
                knobs.score_momentum = Some(momentum);
                match from {
                    Source::Batch { common, dropout } => {
                        knobs.score_from =
                            Some(if common { SourceKnob::CommonBatch } else { SourceKnob::OwnBatch });
                        knobs.score_dropout = Some(dropout);
                    }
                    Source::Training { reset } => {
                        knobs.score_from = Some(SourceKnob::Training);
                        knobs.score_reset = Some(reset);
                    }
                }
            }
        }
        match method.centre {
            Centre::Weighted => {}
            Centre::Moving { rate } => knobs.rate = Some(rate),
            Centre::Outer(Outer { rate, momentum, nesterov, by_rate }) => {
                (knobs.rate, knobs.momentum) = (Some(rate), Some(momentum));
                (knobs.nesterov, knobs.by_rate) = (Some(nesterov), Some(by_rate.is_some()));
            }
        }
        let inner = method.inner.map(|inner| {
            let level = Knobs { group: Some(inner.group), ..Knobs::from(inner.method) };
            Box::new(Knobs { name: None, preset: None, evaluate: None, radius: None, ..level })
        });
        Knobs {
            name: Some(method.name.as_str().into()),
            preset: Some(method.preset),
            radius: method.radius,
            evaluate: Some(method.evaluate),
            inner,
            ..knobs
        }
    }
}

impl Method {
    /// Every knob as TOML.
    pub fn to_toml(&self) -> String {
        self.to_table().to_string()
    }

    /// Every knob and its value, the name first; those of the inner level are called `inner.KNOB`. For comparing and
    /// recording a method: what a bare name means may change.
    pub fn to_knobs(&self) -> Vec<(String, String)> {
        fn walk(prefix: &str, table: &Table, found: &mut Vec<(String, String)>) {
            for (knob, value) in table {
                match value {
                    Value::Table(inner) => walk(&format!("{knob}."), inner, found),
                    Value::String(word) => found.push((format!("{prefix}{knob}"), word.clone())),
                    value => found.push((format!("{prefix}{knob}"), value.to_string())),
                }
            }
        }
        let mut found = Vec::new();
        walk("", &self.to_table(), &mut found);
        found.sort_by_key(|(knob, _)| knob != "name");
        found
    }

    /// The method of a text that was recorded before `mean` was Local SGD: knobs that are not in it have the defaults
    /// of then.
    pub fn recorded_before(text: &str) -> Result<Method, Error> {
        let (name, knobs) = text.split_once(':').unwrap_or((text, ""));
        let is_set = |knob: &str| {
            knobs.split(',').any(|own| own.split_once('=').is_some_and(|it| it.0.trim() == knob))
        };
        let added =
            super::table::defaults_before(name.trim().parse()?).iter().filter(|(knob, _)| !is_set(knob));
        let added = added.map(|(knob, value)| format!("{knob}={value}"));
        let all: Vec<String> =
            (knobs.split(',').filter(|own| !own.is_empty()).map(Into::into)).chain(added).collect();
        match all.is_empty() {
            true => text.parse(),
            false => format!("{name}:{}", all.join(",")).parse(),
        }
    }

    fn to_table(&self) -> Table {
        // Knobs are numbers, words and one nested table of the same; an empty table would be another method.
        Table::try_from(Knobs::from(self.clone()))
            .unwrap_or_else(|error| unreachable!("TOML holds every method: {error}"))
    }

    /// The method of a name and any other knobs; those of the inner level are called `inner.KNOB`. [`Error::knob`] says which one is
    /// wrong.
    pub fn from_knobs<V: Serialize>(knobs: impl IntoIterator<Item = (String, V)>) -> Result<Method, Error> {
        let read = |(knob, value): (String, V)| match Value::try_from(value) {
            Ok(value) => Ok((knob, value)),
            Err(error) => Err(Error::WrongKnob { method: String::new(), knob, why: error.to_string() }),
        };
        let knobs: Vec<(String, Value)> = knobs.into_iter().map(read).collect::<Result<_, _>>()?;
        let name = knobs.iter().find(|(knob, _)| knob == "name").and_then(|(_, name)| name.as_str());
        let name = name.unwrap_or_default();
        let (mut table, mut inner) = (Table::new(), Table::new());
        for (knob, value) in &knobs {
            if knob != "name" && !is_known(knob) {
                return Err(unknown(name, knob));
            }
            let (level, key) = match knob.strip_prefix("inner.") {
                Some(key) => (&mut inner, key),
                None => (&mut table, knob.as_str()),
            };
            // Each by itself, so that a wrong type names its knob.
            let alone = Table::from_iter([(key.to_owned(), value.clone())]);
            Value::Table(alone).try_into::<Knobs>().map_err(|error| Error::WrongKnob {
                method: name.into(),
                knob: knob.clone(),
                why: format!("cannot be {value}: {}", in_words(error.message().trim())),
            })?;
            level.insert(key.into(), value.clone());
        }
        if !inner.is_empty() {
            table.insert("inner".into(), inner.into());
        }
        let unreadable = |error: toml::de::Error| Error::Unreadable {
            what: "a method",
            found: name.into(),
            expected: error.message().trim().into(),
        };
        Method::try_from(Value::Table(table).try_into::<Knobs>().map_err(unreadable)?)
    }

    fn pointless(&self, knob: &str, why: &str) -> Error {
        self.wrong_knob(knob, format!("cannot be set: {why}"))
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (name, rest) =
            text.split_once(':').map_or((text, None), |(name, rest)| (name.trim(), Some(rest)));
        let wrong = |expected: String| Error::Unreadable { what: "the method", found: text.into(), expected };
        // The name first: a slip there should not be reported as anything else.
        name.parse::<Name>()?;
        let mut knobs = vec![("name".to_owned(), Value::String(name.into()))];
        for part in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let (knob, value) = part.split_once('=').ok_or_else(|| {
                wrong(format!("'{part}' should be knob=value, as in lgrawa:period=16,pull=0.7"))
            })?;
            let (knob, value) = (knob.trim(), value.trim());
            if value.contains(':') {
                return Err(wrong("write a comma between knobs, as in lgrawa:period=16,pull=0.7".into()));
            }
            if knobs.iter().any(|(other, _)| other == knob) {
                return Err(wrong(format!("'{knob}' stands in it twice")));
            }
            knobs.push((knob.into(), read_value(value)));
        }
        Method::from_knobs(knobs)
    }
}

/// What serde says of a value of the wrong type, without the names of Rust's types.
fn in_words(message: &str) -> &str {
    match message.rsplit_once("expected ").map_or("", |(_, expected)| expected) {
        "u32" | "u64" => "expected a whole number, 0 or more",
        "f32" | "f64" => "expected a number",
        "a boolean" => "expected true or false",
        _ => message,
    }
}

fn unknown(method: &str, knob: &str) -> Error {
    let near = nearest(
        knob.strip_prefix("inner.").unwrap_or(knob),
        WHOLE.into_iter().chain(LEVEL).chain(["inner.group"]),
    );
    Error::UnknownKnob {
        method: method.into(),
        found: knob.into(),
        nearest: near.or((knob == "group").then(|| "inner.group".into())),
    }
}

/// A number or a truth value where it is one, else a word.
fn read_value(text: &str) -> Value {
    if let Ok(number) = text.parse::<i64>() {
        return Value::Integer(number);
    }
    match (text.parse::<f64>(), text) {
        (Ok(number), _) => Value::Float(number),
        (_, "true") => Value::Boolean(true),
        (_, "false") => Value::Boolean(false),
        _ => Value::String(text.into()),
    }
}

impl fmt::Display for Method {
    /// The knobs that differ from the row of the table. A knob that follows from another one (ρ from λ, the inner level from the outer)
    /// is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = Method::named(self.name, self.preset);
        // The preset chooses the row.
        let mut knobs: Vec<(String, Value)> = Vec::new();
        if self.preset == Preset::Reference {
            knobs.push(("preset".into(), "reference".into()));
        }
        knobs.extend(differing(&row, &Method { inner: None, ..self.clone() }));
        if let Some(inner) = &self.inner {
            knobs.push(("inner.group".into(), i64::from(inner.group).into()));
            let level = differing(&inner_defaults(self), &inner.method);
            knobs.extend(level.into_iter().map(|(knob, value)| (format!("inner.{knob}"), value)));
        }
        write!(f, "{}", self.name)?;
        for (at, (knob, value)) in knobs.iter().enumerate() {
            let sign = if at == 0 { ':' } else { ',' };
            match value {
                Value::String(word) => write!(f, "{sign}{knob}={word}")?,
                Value::Float(number) => write!(f, "{sign}{knob}={number}")?,
                value => write!(f, "{sign}{knob}={value}")?,
            }
        }
        Ok(())
    }
}

/// The knobs that make `method` of `row`: those that differ, or all where the defaults of some depend on others.
fn differing(row: &Method, method: &Method) -> Vec<(String, Value)> {
    let is_own = |(knob, _): &(String, Value)| !["name", "preset"].contains(&knob.as_str());
    let level = |method: &Method| -> Vec<(String, Value)> {
        Method { inner: None, ..method.clone() }.to_table().into_iter().filter(is_own).collect()
    };
    let (all, given) = (level(method), level(row));
    let differ = |rate: Option<bool>| -> Vec<(String, Value)> {
        // ρ follows λ unless it is set, so that it may have to be said though it does not differ, or need not though it does.
        let is_said = |knob: &&(String, Value)| match rate.filter(|_| knob.0 == "rate") {
            Some(is_said) => is_said,
            None => !given.contains(knob),
        };
        all.iter().filter(is_said).cloned().collect()
    };
    let makes = |knobs: &[(String, Value)]| {
        let said = Value::Table(knobs.iter().cloned().collect()).try_into::<Knobs>();
        said.is_ok_and(|said| lay_over(row, &said).as_ref() == Ok(method))
    };
    [Some(false), None, Some(true)].map(differ).into_iter().find(|knobs| makes(knobs)).unwrap_or(all)
}

#[cfg(test)]
mod tests;
