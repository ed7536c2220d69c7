//! Mistakes in options: what other tools call an option leads to the one that is meant, and a value that is no number is called so.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use grawa_train::recipe::key_of_word;
use std::error::Error as _;
use std::num::{ParseFloatError, ParseIntError};

/// Commands that take the settings of a recipe.
const WITH_RECIPE: [&str; 4] = ["train", "launch", "coordinate", "compare"];

/// Keys that have an option of their own.
const OPTIONS: [(&str, &str); 13] = [
    ("data.kind", "--data"),
    ("data.dir", "--dir"),
    ("model.name", "--model"),
    ("model.init", "--init"),
    ("method.name", "--method"),
    ("method.period", "--period"),
    ("train.workers", "--workers"),
    ("train.batch", "--batch"),
    ("train.rate", "--rate"),
    ("train.seed", "--seed"),
    ("train.budget", "--budget"),
    ("machine.device", "--device"),
    ("machine.precision", "--precision"),
];

/// What to type instead of an option that does not exist, if that is known. `words` are those of the command line, without the program.
pub(crate) fn explain(error: &clap::Error, words: &[String]) -> Option<String> {
    let Some(ContextValue::String(found)) = error.get(ContextKind::InvalidArg) else { return None };
    if let (Some(ContextValue::String(value)), Some(expected)) =
        (error.get(ContextKind::InvalidValue), error.source().and_then(expected_number))
    {
        return Some(format!("'{value}' cannot be the value of '{found}'; expected {expected}"));
    }
    let takes_recipe = words.first().is_some_and(|command| WITH_RECIPE.contains(&command.as_str()));
    if error.kind() != ErrorKind::UnknownArgument || !takes_recipe {
        return None;
    }
    let option = found.split('=').next().unwrap_or(found);
    let word = option.strip_prefix("--")?;
    let key = key_of_word(word)?;
    Some(format!("there is no option '{option}'; use {}", instead(word, &key, value(option, words))))
}

/// What the standard library could not read.
fn expected_number(source: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let whole = || source.is::<ParseIntError>().then_some("a whole number, 0 or more");
    whole().or_else(|| source.is::<ParseFloatError>().then_some("a number"))
}

/// The value that was given with an option.
fn value<'a>(option: &str, words: &'a [String]) -> Option<&'a str> {
    let with_value = |word: &'a String| word.strip_prefix(option)?.strip_prefix('=');
    let after =
        || words.iter().skip_while(|word| *word != option).nth(1).filter(|word| !word.starts_with("--"));
    words.iter().find_map(with_value).or_else(|| after().map(String::as_str))
}

/// The option or setting for a key.
fn instead(word: &str, key: &str, value: Option<&str>) -> String {
    let quoted = |value: &str| if value.contains(' ') { format!("\"{value}\"") } else { value.to_owned() };
    let value = value.map(quoted);
    match (OPTIONS.iter().find(|(of, _)| *of == key), value) {
        // The word is the value: --gpu, --cuda.
        (Some(("machine.device", option)), _) => format!("{option} cuda"),
        (Some(("train.budget", _)), value) => {
            let unit = if word.contains("epoch") { "epoch" } else { "step" };
            let number = value.filter(|value| value.parse::<u64>().is_ok()).unwrap_or_else(|| "N".into());
            format!("--budget {number}{unit}")
        }
        (Some((_, option)), value) => format!("{option} {}", value.unwrap_or_else(|| "VALUE".into())),
        (None, value) => format!("--set {key}={}", value.unwrap_or_else(|| "VALUE".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn every_option_exists() {
        let command = crate::Cli::command();
        let train = command.find_subcommand("train").unwrap();
        for (_, option) in OPTIONS {
            let name = option.trim_start_matches('-');
            assert!(train.get_arguments().any(|it| it.get_long() == Some(name)), "{option}");
        }
    }
}
