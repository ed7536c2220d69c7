//! The one table of keys: what each is called, how it is read, how it is printed.
//!
//! Files, `--set` and the printed recipe all go through it. The knobs of the method are not here: they are grawa-core's,
//! under `method.`.

use super::Recipe;
use grawa_core::{Amount, Schedule};
use grawa_nn::zoo;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use toml::Value;

/// A key of a recipe.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name: the table, a dot, the key.
    pub name: &'static str,
    /// What it means, in a sentence.
    pub about: &'static str,
    pub(super) read: fn(&mut Recipe, &Value) -> Result<(), String>,
    pub(super) write: fn(&Recipe) -> Option<Value>,
}

/// Reads a value into `$field` with `$read`, prints it with `$write`.
macro_rules! key {
    ($name:literal, $about:literal, $($field:ident).+, $read:ident, $write:ident) => {
        Key {
            name: $name,
            about: $about,
            read: |recipe, value| {
                recipe.$($field).+ = $read(value)?;
                Ok(())
            },
            write: |recipe| $write(&recipe.$($field).+),
        }
    };
}

/// Every key but the method's, in the order they are printed.
pub const KEYS: [Key; 28] = [
    key!(
        "data.kind",
        "the data set: digits, cifar10, cifar100, mnist, fashion-mnist, folder",
        data.kind,
        word,
        show
    ),
    key!("data.dir", "the folder it lies in; the digits need none", data.dir, path, show_path),
    key!(
        "data.held_out",
        "training examples to evaluate on instead of the test set",
        data.held_out,
        count,
        number
    ),
    key!(
        "data.augment",
        "how training images are changed, such as flip+pad4crop32",
        data.augment,
        word,
        show
    ),
    key!("model.name", "the network, one of `grawa models`", model.name, network, show),
    key!(
        "model.width",
        "channels of its first stage, where it has several widths",
        model.width,
        some_positive,
        some_number
    ),
    key!("model.classes", "classes, if not those of the data set", model.classes, some_positive, some_number),
    key!("model.init", "a file of tensors to start from", model.init, some_path, some_path_text),
    key!("train.workers", "M, the workers", train.workers, positive, number),
    key!("train.batch", "images in a worker's batch", train.batch, positive, number),
    key!("train.seed", "what every random draw depends on", train.seed, seed, show_seed),
    key!("train.budget", "how much training: 5000step, 60epoch, 10m", train.budget, word, show),
    key!(
        "train.pace",
        "even: every worker takes τ steps a cycle; free: whoever is fast takes more",
        train.pace,
        word,
        show
    ),
    key!(
        "train.rate",
        "the learning rate: 0.1, or '0.1, x0.1 at 150epoch', or '0.1, cosine over 60epoch'",
        train.rate,
        rate,
        show
    ),
    key!(
        "train.overlap",
        "workers apart: they go on while vectors travel, pulled toward the centre of the round before",
        train.overlap,
        truth,
        show_truth
    ),
    key!(
        "train.wire",
        "workers apart: how vectors travel, f32 or bf16 (half the bytes, rounded)",
        train.wire,
        word,
        show
    ),
    key!("train.momentum", "SGD's momentum", train.sgd.momentum, share, float),
    key!("train.nesterov", "whether SGD looks ahead", train.sgd.nesterov, truth, show_truth),
    key!("train.weight_decay", "SGD's weight decay", train.sgd.weight_decay, not_negative, float),
    key!(
        "evaluate.every",
        "how often the model is evaluated, or 'end'",
        evaluate.every,
        interval,
        show_interval
    ),
    key!(
        "evaluate.batch_norm",
        "batch norm of the evaluated model: keep, average, recalibrate",
        evaluate.batch_norm,
        word,
        show
    ),
    key!(
        "evaluate.images",
        "training images, augmented, that recalibrate looks at, at most",
        evaluate.images,
        positive,
        number
    ),
    key!(
        "checkpoint.every",
        "how often the run is saved, or 'end'",
        checkpoint.every,
        interval,
        show_interval
    ),
    key!("machine.device", "where networks are trained: cpu, cuda", machine.device, word, show),
    key!(
        "machine.precision",
        "how a GPU stores and multiplies numbers: bf16, tf32, f32",
        machine.precision,
        word,
        show
    ),
    key!(
        "machine.deterministic",
        "on a GPU, kernels chosen by shape alone: every start gives the same bits",
        machine.deterministic,
        truth,
        show_truth
    ),
    key!(
        "machine.cards",
        "GPUs to use, if not all; workers are dealt to them",
        machine.cards,
        some_positive,
        some_number
    ),
    key!("machine.threads", "cores to use, if not all", machine.threads, some_positive, some_number),
];

/// The key of that name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

fn wrong(value: &Value, expected: impl Display) -> String {
    format!("found {value}, expected {expected}")
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| wrong(value, "a text in quotes"))
}

fn word<T: FromStr<Err: Display>>(value: &Value) -> Result<T, String> {
    text(value)?.parse().map_err(|error: T::Err| error.to_string())
}

fn show(value: &impl Display) -> Option<Value> {
    Some(Value::String(value.to_string()))
}

fn network(value: &Value) -> Result<String, String> {
    let entry = zoo::find(text(value)?).map_err(|error| error.to_string())?;
    Ok(entry.name.to_owned())
}

fn path(value: &Value) -> Result<PathBuf, String> {
    match text(value)? {
        "" => Err("a path cannot be empty".into()),
        text => Ok(text.into()),
    }
}

fn some_path(value: &Value) -> Result<Option<PathBuf>, String> {
    path(value).map(Some)
}

fn show_path(path: &Path) -> Option<Value> {
    Some(Value::String(path.to_string_lossy().into_owned()))
}

fn some_path_text(path: &Option<PathBuf>) -> Option<Value> {
    path.as_deref().and_then(show_path)
}

/// A whole number that fits.
fn whole<T: TryFrom<i64>>(value: &Value, expected: &str) -> Result<T, String> {
    let found = value.as_integer().ok_or_else(|| wrong(value, expected))?;
    T::try_from(found).map_err(|_| wrong(value, expected))
}

fn count(value: &Value) -> Result<u32, String> {
    whole(value, "a whole number, 0 or more")
}

fn positive(value: &Value) -> Result<u32, String> {
    let expected = "a whole number, 1 or more";
    whole(value, expected).and_then(|n| if n == 0 { Err(wrong(value, expected)) } else { Ok(n) })
}

fn some_positive(value: &Value) -> Result<Option<u32>, String> {
    positive(value).map(Some)
}

fn number(value: &u32) -> Option<Value> {
    Some(Value::Integer((*value).into()))
}

fn some_number(value: &Option<u32>) -> Option<Value> {
    value.as_ref().and_then(number)
}

/// TOML's whole numbers end at 2⁶³ − 1, so seeds do too.
fn seed(value: &Value) -> Result<u64, String> {
    whole(value, "a whole number from 0 to 9223372036854775807")
}

fn show_seed(seed: &u64) -> Option<Value> {
    i64::try_from(*seed).ok().map(Value::Integer)
}

fn real(value: &Value, expected: &str) -> Result<f64, String> {
    let found = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
    found.filter(|x| x.is_finite()).ok_or_else(|| wrong(value, expected))
}

fn share(value: &Value) -> Result<f32, String> {
    let expected = "a number from 0 to below 1";
    let found = real(value, expected)? as f32;
    if (0.0..1.0).contains(&found) { Ok(found) } else { Err(wrong(value, expected)) }
}

fn not_negative(value: &Value) -> Result<f32, String> {
    let expected = "a number, 0 or more";
    let found = real(value, expected)? as f32;
    if found >= 0.0 && found.is_finite() { Ok(found) } else { Err(wrong(value, expected)) }
}

/// The shortest decimal that reads back as the same float: 0.0001, not 0.00009999999747378752.
fn float(value: &f32) -> Option<Value> {
    value.to_string().parse().ok().map(Value::Float)
}

fn truth(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| wrong(value, "true or false"))
}

fn show_truth(value: &bool) -> Option<Value> {
    Some(Value::Boolean(*value))
}

fn rate(value: &Value) -> Result<Schedule, String> {
    let read = match value {
        Value::String(text) => text.parse(),
        value => Schedule::constant(real(value, "a rate such as 0.1, or a schedule in quotes")?),
    };
    read.map_err(|error| error.to_string())
}

/// The word for "only at the end".
const END: &str = "end";

fn interval(value: &Value) -> Result<Option<Amount>, String> {
    if text(value)? == END {
        return Ok(None);
    }
    let every: Amount = word(value)?;
    // An interval of nothing would come again before the first step.
    let nothing = match every {
        Amount::Steps(steps) => steps == 0,
        Amount::Epochs(epochs) => epochs == 0.0,
        Amount::Time(time) => time.is_zero(),
    };
    if nothing {
        Err(format!("an interval of {every} never ends; use more, or '{END}'"))
    } else {
        Ok(Some(every))
    }
}

fn show_interval(every: &Option<Amount>) -> Option<Value> {
    every.as_ref().map_or(Some(Value::String(END.into())), show)
}
