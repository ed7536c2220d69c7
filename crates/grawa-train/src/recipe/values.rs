//! The values of a recipe: how each kind of value is read and printed, and what a wrong one is told.
//!
//! Every module here is for `#[serde(with = …)]` on a field of a recipe. Values come from TOML.

use super::ByWorker;
use grawa_core::{Amount, Schedule};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use toml::Value;

fn wrong(value: &Value, expected: impl Display) -> String {
    format!("found {value}, expected {expected}")
}

/// Reads a value by `$read`, which says what is wrong; prints it by `$write`.
macro_rules! value {
    ($(#[$about:meta])* $name:ident, $type:ty, $read:expr, $write:expr) => {
        $(#[$about])*
        pub(super) mod $name {
            use super::*;

            pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                let read: fn(&Value) -> Result<$type, String> = $read;
                read(&Value::deserialize(from)?).map_err(serde::de::Error::custom)
            }

            pub(in super::super) fn serialize<S: Serializer>(value: &$type, to: S) -> Result<S::Ok, S::Error> {
                let write: fn(&$type) -> Option<Value> = $write;
                write(value).serialize(to)
            }
        }
    };
}

value!(count, u32, |value| whole(value, "a whole number, 0 or more"), plain);
value!(positive, u32, read_positive, plain);
value!(optional_positive, Option<u32>, |value| read_positive(value).map(Some), |n| n.map(Into::into));
value!(
    /// Whole numbers of TOML end at 2⁶³ − 1, so seeds do too.
    seed,
    u64,
    |value| whole(value, "a whole number from 0 to 9223372036854775807"),
    |seed| i64::try_from(*seed).ok().map(Into::into)
);
value!(
    /// More threads than this help nobody, and starting them can take the machine down.
    threads,
    Option<u32>,
    |value| match read_positive(value) {
        Ok(threads) if threads <= MOST_THREADS => Ok(Some(threads)),
        _ => Err(wrong(value, format!("a number of threads from 1 to {MOST_THREADS}"))),
    },
    |threads| threads.map(Into::into)
);
value!(flag, bool, |value| value.as_bool().ok_or_else(|| wrong(value, "true or false")), plain);
value!(path, PathBuf, read_path, |path| Some(path.to_string_lossy().as_ref().into()));
value!(optional_path, Option<PathBuf>, |value| read_path(value).map(Some), |path| path
    .as_ref()
    .map(|path| path.to_string_lossy().as_ref().into()));
value!(name, String, |value| text(value).map(Cow::into_owned), |name| Some(name.clone().into()));
value!(
    /// A network as JSON.
    optional_graph,
    Option<String>,
    |value| match grawa_nn::Graph::from_json(&text(value)?) {
        Ok(_) => Ok(value.as_str().map(str::to_owned)),
        Err(error) => Err(error.to_string()),
    },
    |graph| graph.clone().map(Into::into)
);
value!(momentum, f32, |value| single(value, BELOW_ONE, |x| (0.0..1.0).contains(&(x as f32))), shortest);
value!(weight_decay, f32, |value| single(value, NOT_NEGATIVE, |x| x >= 0.0), shortest);
value!(beta, f64, |value| real(value, BELOW_ONE, |x| (0.0..1.0).contains(&x)), plain);
value!(eps, f32, |value| single(value, "a positive number", |x| x as f32 > 0.0), shortest);
value!(share, f64, |value| real(value, SHARE, |x| (0.0..1.0).contains(&x)), plain);
value!(radius, f64, |value| real(value, NOT_NEGATIVE, |x| x >= 0.0), plain);
value!(
    label_noise,
    ByWorker,
    |value| ByWorker::read(&text(value)?, "", "a share from 0 to 1 as in \"worker 3: 0.4\"", 0.0..=1.0),
    |noise| Some(noise.print("").into())
);
value!(
    slow,
    ByWorker,
    |value| ByWorker::read(
        &text(value)?,
        "x",
        "a factor from 1 to 1000 as in \"worker 2: 3x\"",
        1.0..=1000.0
    ),
    |slow| Some(slow.print("x").into())
);
value!(
    /// A learning rate: a number, or a schedule.
    rate,
    Schedule,
    |value| {
        let read = match value {
            Value::String(text) => text.parse(),
            value => Schedule::constant(real(value, "a rate such as 0.1, or a schedule in quotes", |_| true)?),
        };
        read.map_err(|error| error.to_string())
    },
    |rate| Some(rate.to_string().into())
);
value!(
    /// How often something is done; `None` is only at the end.
    interval,
    Option<Amount>,
    read_interval,
    |every| Some(every.map_or(END.into(), |every| every.to_string()).into())
);

/// What is written as a word, and knows how.
pub(super) mod word {
    use super::*;

    pub(in super::super) fn deserialize<'de, D, T>(from: D) -> Result<T, D::Error>
    where
        D: Deserializer<'de>,
        T: FromStr<Err: Display>,
    {
        let value = Value::deserialize(from)?;
        let read = || text(&value)?.parse().map_err(|error: T::Err| error.to_string());
        read().map_err(serde::de::Error::custom)
    }

    pub(in super::super) fn serialize<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }
}

/// Threads of one process.
const MOST_THREADS: u32 = 1024;

/// What several numbers are expected to be.
const BELOW_ONE: &str = "a number from 0 to below 1";
const NOT_NEGATIVE: &str = "a number, 0 or more";
const SHARE: &str = "a share from 0 to below 1, such as 0.2";

/// The word for "only at the end".
const END: &str = "end";

/// The text of a value. A number or a truth value is taken as it is written: `dir = 3` and `dir = "3"` mean the same.
fn text(value: &Value) -> Result<Cow<'_, str>, String> {
    match value {
        Value::String(text) => Ok(text.into()),
        Value::Array(_) | Value::Table(_) => Err(wrong(value, "one value")),
        value => Ok(value.to_string().into()),
    }
}

fn read_path(value: &Value) -> Result<PathBuf, String> {
    match text(value)?.as_ref() {
        "" => Err("a path cannot be empty".into()),
        text => Ok(text.into()),
    }
}

/// A whole number that fits.
fn whole<T: TryFrom<i64>>(value: &Value, expected: &str) -> Result<T, String> {
    value.as_integer().and_then(|found| T::try_from(found).ok()).ok_or_else(|| wrong(value, expected))
}

fn read_positive(value: &Value) -> Result<u32, String> {
    let expected = "a whole number, 1 or more";
    whole(value, expected).and_then(|n| if n == 0 { Err(wrong(value, expected)) } else { Ok(n) })
}

fn real(value: &Value, expected: &str, is_right: impl Fn(f64) -> bool) -> Result<f64, String> {
    let found = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
    found.filter(|x| x.is_finite() && is_right(*x)).ok_or_else(|| wrong(value, expected))
}

/// The same where it is kept as an `f32`.
fn single(value: &Value, expected: &str, is_right: impl Fn(f64) -> bool) -> Result<f32, String> {
    real(value, expected, |x| (x as f32).is_finite() && is_right(x)).map(|x| x as f32)
}

fn plain<T: Copy + Into<Value>>(value: &T) -> Option<Value> {
    Some((*value).into())
}

/// The shortest decimal that reads back as the same float: 0.0001, not 0.00009999999747378752.
fn shortest(value: &f32) -> Option<Value> {
    value.to_string().parse().ok().map(Value::Float)
}

fn read_interval(value: &Value) -> Result<Option<Amount>, String> {
    if text(value)? == END {
        return Ok(None);
    }
    let every: Amount = text(value)?.parse().map_err(|error: grawa_core::Error| error.to_string())?;
    // An interval of nothing would come again before the first step.
    match every {
        Amount::Steps(0) | Amount::Time(std::time::Duration::ZERO) | Amount::Epochs(0.0) => {
            Err(format!("an interval of {every} never ends; use more, or '{END}'"))
        }
        every => Ok(Some(every)),
    }
}
