//! Recipes as text: TOML files with line numbers, options of a command line, and the printed form.
//!
//! [`Overrides`] holds what a user has set and where, key by key; the last setting of a key counts. [`Recipe::resolve`] lays it over the
//! defaults and reads the result with serde. If that fails, the keys are read one by one, so that the error names the place of the wrong
//! one.

use super::{Recipe, RecipeError, study};
use crate::bounded_read;
use grawa_core::{Method, Name, did_you_mean};
use grawa_data::DatasetKind;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

/// What a user has set of a recipe, and where.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    entries: Vec<Entry>,
}

/// A key, its value, and where it was set.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) place: String,
}

/// The key of a network of one's own.
const GRAPH: &str = "model.graph";
/// Where a start was set that was found beside the network's file.
const BESIDE: &str = "beside model.graph";
/// The largest file of a network. A coordinator sends its recipe in one message.
const LARGEST_GRAPH: u64 = 1 << 20;

/// The tables of a recipe, besides the study's.
pub(crate) const TABLES: [&str; 7] =
    ["data", "model", "method", "train", "evaluate", "checkpoint", "machine"];

/// Every key but those of the method, in the order in which they are printed.
static KEYS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let Ok(mut recipe) = Recipe::for_data(DatasetKind::Digits, None) else { return Vec::new() };
    // What has no value is not printed.
    (recipe.model.width, recipe.model.classes, recipe.model.init) = (Some(1), Some(1), Some("file".into()));
    recipe.model.graph = Some("file".into());
    (recipe.machine.cards, recipe.machine.threads) = (Some(1), Some(1));
    let mut keys = Vec::new();
    for (name, table) in recipe.to_table().iter().filter(|(name, _)| *name != "method") {
        keys.extend(table.as_table().into_iter().flat_map(Table::keys).map(|key| format!("{name}.{key}")));
    }
    keys
});

impl Overrides {
    /// Adds what a file says.
    pub fn read(self, path: &Path) -> Result<Self, RecipeError> {
        self.file(&path.display().to_string(), &read_file(path)?)
    }

    /// Adds what a TOML text says; `name` is the file's name in errors.
    pub fn file(mut self, name: &str, text: &str) -> Result<Self, RecipeError> {
        for Entry { key, value, place } in entries(name, text)? {
            let (table, _) = split(&key);
            if table == study::TABLE || key == "method.inner" && value.is_table() {
                continue;
            }
            match (key == table, &value) {
                (true, Value::Table(_)) if TABLES.contains(&table) => {}
                (true, Value::Table(_)) => {
                    let hint = did_you_mean(&key, TABLES.into_iter().chain([study::TABLE]));
                    let why = format!("there is no table '{key}'{hint}; the tables are {}", tables());
                    return Err(RecipeError::new(place, why));
                }
                (true, _) => {
                    let why = format!("'{key}' stands outside of any table; keys stand in {}", tables());
                    return Err(RecipeError::new(place, why));
                }
                (false, _) => self.add(key, value, place)?,
            }
        }
        Ok(self)
    }

    /// Adds a setting of the command line, `key=value`.
    pub fn set(mut self, setting: &str) -> Result<Self, RecipeError> {
        let place = format!("--set {setting}");
        let wrong = || RecipeError::new(&place, "expected key=value, such as train.budget=500step");
        let (key, value) = setting.split_once('=').ok_or_else(wrong)?;
        self.add(key.trim().into(), read_value(value.trim()), place)?;
        Ok(self)
    }

    /// Adds a value for a key; `place` says where it came from.
    pub fn value(mut self, key: &str, value: impl Into<Value>, place: &str) -> Result<Self, RecipeError> {
        self.add(key.into(), value.into(), place.into())?;
        Ok(self)
    }

    /// Adds those options of a command line that were given: each is a key, its value and its flag.
    pub fn options<V: Clone + Into<Value>>(
        self,
        options: &[(&str, &Option<V>, &str)],
    ) -> Result<Self, RecipeError> {
        options.iter().try_fold(self, |overrides, (key, value, flag)| match value {
            Some(value) => overrides.value(key, value.clone(), flag),
            None => Ok(overrides),
        })
    }

    /// The same for options whose values are written as those of [`Overrides::set`].
    pub fn written(self, options: &[(&str, &Option<String>, &str)]) -> Result<Self, RecipeError> {
        options.iter().try_fold(self, |overrides, (key, text, flag)| match text {
            Some(text) => overrides.value(key, read_value(text.trim()), flag),
            None => Ok(overrides),
        })
    }

    /// Adds settings of the command line, `key=value` each.
    pub fn set_all(self, settings: &[String]) -> Result<Self, RecipeError> {
        settings.iter().try_fold(self, |overrides, setting| overrides.set(setting))
    }

    /// Adds a method written as `name:knob=value,…`. Knobs that were set for another method are removed.
    pub fn method(mut self, text: &str, place: &str) -> Result<Self, RecipeError> {
        // By itself first: an error in it is an error of this place.
        text.parse::<Method>().map_err(|error| RecipeError::new(place, error.to_string()))?;
        let (name, knobs) = text.split_once(':').unwrap_or((text, ""));
        let name = name.trim();
        if self.find("method.name").and_then(|entry| entry.value.as_str()) != Some(name) {
            self.entries.retain(|entry| !entry.key.starts_with("method."));
        }
        self.add("method.name".into(), name.into(), place.into())?;
        for (knob, value) in knobs.split(',').filter_map(|knob| knob.split_once('=')) {
            self.add(format!("method.{}", knob.trim()), read_value(value.trim()), place.into())?;
        }
        Ok(self)
    }

    fn add(&mut self, key: String, mut value: Value, place: String) -> Result<(), RecipeError> {
        // The knobs of the method are checked when it is made: which there are depends on its name.
        if !key.starts_with("method.") && !KEYS.contains(&key) {
            return Err(RecipeError::new(place, unknown(&key)));
        }
        if key == GRAPH
            && let Some(path) = value.as_str().filter(|text| !text.starts_with('{')).map(PathBuf::from)
        {
            value =
                read_graph(&path).map_err(|why| RecipeError::new(&place, format!("{GRAPH}: {why}")))?.into();
            self.entries.retain(|entry| entry.place != BESIDE);
            let weights = path.with_extension("safetensors");
            if weights.is_file() && !self.says("model.init") {
                let value = weights.to_string_lossy().as_ref().into();
                self.entries.push(Entry { key: "model.init".into(), value, place: BESIDE.into() });
            }
        }
        let other = |(word, of, _): &&(&str, &str, &str)| *of == key && value.as_str() == Some(word);
        if let Some((word, of, here)) = OTHER_VALUES.iter().find(other) {
            return Err(RecipeError::new(place, format!("{of} cannot be '{word}' (did you mean '{here}'?)")));
        }
        self.entries.retain(|entry| entry.key != key);
        self.entries.push(Entry { key, value, place });
        Ok(())
    }

    /// Whether a key was set.
    pub fn says(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Whether no key but this one was set.
    pub fn says_nothing_but(&self, key: &str) -> bool {
        self.entries.iter().all(|entry| entry.key == key)
    }

    /// What was set, as `key=value`.
    pub(super) fn settings(&self) -> impl Iterator<Item = String> {
        self.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value))
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// Where a key was set, or the recipe as a whole.
    fn place(&self, key: &str) -> String {
        let table = || self.entries.iter().find(|entry| split(&entry.key).0 == split(key).0);
        self.find(key)
            .or_else(table)
            .or(self.entries.first())
            .map_or("the recipe".into(), |entry| entry.place.clone())
    }

    /// A recipe with those keys of these that `is_meant`, besides the method's.
    fn lay_over(&self, base: &Recipe, is_meant: impl Fn(&str) -> bool) -> Result<Recipe, RecipeError> {
        let entries =
            || self.entries.iter().filter(|entry| !entry.key.starts_with("method.") && is_meant(&entry.key));
        let mut table = base.to_table();
        let set = |table: &mut Table, entry: &Entry| {
            let (name, key) = split(&entry.key);
            if let Some(Value::Table(inside)) = table.get_mut(name) {
                inside.insert(key.into(), entry.value.clone());
            }
        };
        let mut all = table.clone();
        entries().for_each(|entry| set(&mut all, entry));
        if let Ok(recipe) = all.try_into() {
            return Ok(recipe);
        }
        let mut recipe = base.clone();
        for entry in entries() {
            set(&mut table, entry);
            recipe = table.clone().try_into().map_err(|error: toml::de::Error| {
                RecipeError::new(&entry.place, format!("{}: {}", entry.key, error.message().trim()))
            })?;
        }
        Ok(recipe)
    }

    /// The method that was set, if any of it was.
    fn resolve_method(&self) -> Result<Option<Method>, RecipeError> {
        let knob = |entry: &Entry| Some((entry.key.strip_prefix("method.")?.to_owned(), entry.value.clone()));
        let mut knobs: Vec<(String, Value)> = self.entries.iter().filter_map(knob).collect();
        if knobs.is_empty() {
            return Ok(None);
        }
        if !self.says("method.name") {
            knobs.push(("name".into(), Name::Lgrawa.as_str().into()));
        }
        let place = |error: grawa_core::Error| {
            let key = error.knob().map_or("method.name".into(), |knob| format!("method.{knob}"));
            RecipeError::new(self.place(&key), error.to_string())
        };
        Method::from_knobs(knobs).map(Some).map_err(place)
    }
}

impl Recipe {
    /// What was set, over the defaults of its data set and its network.
    pub fn resolve(overrides: &Overrides) -> Result<Self, RecipeError> {
        let defaults = |kind, network| {
            let place = || overrides.place("data.kind");
            Recipe::for_data(kind, network).map_err(|error| RecipeError::new(place(), error.to_string()))
        };
        let named = overrides.lay_over(&defaults(DatasetKind::Digits, None)?, |key| {
            ["data.kind", "model.name", GRAPH].contains(&key)
        })?;
        let is_named = overrides.says("model.name") || overrides.says(GRAPH);
        // The augmentation of an exported network does not depend on what it is called.
        let network = if overrides.says(GRAPH) { "own" } else { named.model.name.as_str() };
        let network = is_named.then_some(network);
        let mut recipe = overrides.lay_over(&defaults(named.data.kind, network)?, |_| true)?;
        if let Some(method) = overrides.resolve_method()? {
            recipe.method = method;
        }
        recipe.settle(|key| overrides.says(key));
        recipe.check().map_err(|(key, why)| RecipeError::new(overrides.place(key), why))?;
        Ok(recipe)
    }

    /// Every key as TOML: what reads back as this recipe.
    pub fn to_toml(&self) -> String {
        self.to_table().to_string()
    }

    fn to_table(&self) -> Table {
        // An empty recipe in its place would be one that nobody chose.
        Table::try_from(self).unwrap_or_else(|error| unreachable!("TOML holds every recipe: {error}"))
    }
}

/// Every key of a TOML text with its dotted name; a table comes before what is in it. `name` is the file's name in errors.
pub(super) fn entries(name: &str, text: &str) -> Result<Vec<Entry>, RecipeError> {
    fn walk(
        prefix: &str,
        spans: &DeTable<'_>,
        values: &Table,
        place: &dyn Fn(usize) -> String,
    ) -> Vec<Entry> {
        let mut found = Vec::new();
        for (key, inside) in spans {
            let Some(value) = values.get(key.get_ref().as_ref()) else { continue };
            let name = format!("{prefix}{}", key.get_ref());
            found.push(Entry { key: name.clone(), value: value.clone(), place: place(key.span().start) });
            if let (DeValue::Table(inside), Value::Table(values)) = (inside.get_ref(), value) {
                found.extend(walk(&format!("{name}."), inside, values, place));
            }
        }
        found
    }
    let line = |at: usize| 1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count();
    let place = |at: usize| format!("{name}:{}", line(at));
    let broken = |error: toml::de::Error| {
        RecipeError::new(place(error.span().map_or(0, |span| span.start)), error.message().trim())
    };
    // Once for the values, once for where they are.
    let values: Table = text.parse().map_err(broken)?;
    let spans = DeTable::parse(text).map_err(broken)?;
    Ok(walk("", spans.get_ref(), &values, &place))
}

/// The content of a network's file, which is a network.
fn read_graph(path: &Path) -> Result<String, String> {
    let found = path.display();
    let read = || match std::fs::metadata(path)? {
        about if !about.is_file() => Err(std::io::Error::other("it is not a file")),
        about if about.len() > LARGEST_GRAPH => Err(std::io::Error::other(format!(
            "it has {} bytes, and {LARGEST_GRAPH} are allowed",
            about.len()
        ))),
        _ => std::fs::read_to_string(path),
    };
    let text = read().map_err(|error| {
        format!("cannot read {found}: {error}; grawa.export(model, example, \"net.json\") in Python writes such a file")
    })?;
    match grawa_nn::Graph::from_json(&text) {
        Ok(_) => Ok(text),
        Err(error) => Err(format!("{found}: {error}")),
    }
}

pub(super) fn read_file(path: &Path) -> Result<String, RecipeError> {
    bounded_read::read_text(path, bounded_read::SMALL).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::NotFound => {
                "there is no such file; give a recipe, such as recipes/cifar10-resnet20.toml".into()
            }
            ErrorKind::IsADirectory => {
                "it is a folder; give the recipe.toml of a run, or another recipe".into()
            }
            _ => format!("cannot read the recipe: {error}"),
        };
        RecipeError::new(path.display().to_string(), why)
    })
}

/// A TOML value where it is one, else a text: so that `500step` needs no quotes on a command line.
fn read_value(text: &str) -> Value {
    let parsed = format!("value = {text}").parse::<Table>().ok();
    let alone = parsed.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    alone.unwrap_or_else(|| Value::String(text.into()))
}

/// The table of a key, and its name there.
fn split(key: &str) -> (&str, &str) {
    key.split_once('.').unwrap_or((key, ""))
}

/// What other tools call a value, the key it belongs to, and its name here.
const OTHER_VALUES: [(&str, &str, &str); 2] =
    [("gpu", "machine.device", "cuda"), ("nvidia", "machine.device", "cuda")];

/// What other tools call a key, and its name here.
#[rustfmt::skip]
const ELSEWHERE: [(&[&str], &str); 15] = [
    (&["lr", "learning_rate", "base_lr"], "train.rate"),
    (&["epochs", "num_epochs", "max_epochs", "steps", "max_steps", "iterations"], "train.budget"),
    (&["batch_size", "bs"], "train.batch"),
    (&["wd", "decay", "l2"], "train.weight_decay"),
    (&["num_workers", "world_size", "nproc"], "train.workers"),
    (&["arch", "network", "architecture"], "model.name"),
    (&["pretrained", "weights", "checkpoint_path"], "model.init"),
    (&["dataset"], "data.kind"),
    (&["data_dir", "data_path", "root"], "data.dir"),
    (&["num_threads"], "machine.threads"),
    (&["dtype", "amp"], "machine.precision"),
    (&["gpu", "cuda"], "machine.device"),
    (&["gpus", "num_gpus", "n_gpus"], "machine.cards"),
    (&["tau", "sync_every", "local_steps"], "method.period"),
    (&["eval_every", "eval_interval"], "evaluate.every"),
];

/// The key that other tools call this, in small letters and with `_` between words.
fn key_elsewhere(word: &str) -> Option<&'static str> {
    ELSEWHERE.iter().find(|(words, _)| words.contains(&word)).map(|(_, here)| *here)
}

/// The key that a word means: its name without the table, or its name in other tools.
///
/// ```
/// use grawa_train::recipe::key_of_word;
/// assert_eq!(key_of_word("lr").as_deref(), Some("train.rate"));
/// assert_eq!(key_of_word("weight-decay").as_deref(), Some("train.weight_decay"));
/// assert_eq!(key_of_word("colour"), None);
/// ```
pub fn key_of_word(word: &str) -> Option<String> {
    let word = word.to_lowercase().replace('-', "_");
    let own = || KEYS.iter().find(|key| split(key).1 == word).cloned();
    let knob = || {
        Some(&word)
            .filter(|word| grawa_core::knobs().contains(&word.as_str()))
            .map(|word| format!("method.{word}"))
    };
    key_elsewhere(&word).map(str::to_owned).or_else(own).or_else(knob)
}

/// The message for a key that does not exist.
fn unknown(key: &str) -> String {
    let known = || KEYS.iter().map(String::as_str).chain(["method.name"]);
    let own = |key: &str| key.rsplit('.').next().unwrap_or_default().to_lowercase().replace('-', "_");
    // A word of another tool is not a typing error. Whoever forgets the table, or misspells it, has the key's own name right.
    let elsewhere = key_elsewhere(&own(key));
    let same_name = || known().find(|known| own(known) == own(key));
    let hint = match elsewhere {
        Some(here) => format!(" (did you mean '{here}'?)"),
        None => match (did_you_mean(key, known()), same_name()) {
            (near, Some(same)) if near.is_empty() => format!(" (did you mean '{same}'?)"),
            (near, _) => near,
        },
    };
    if !hint.is_empty() {
        return format!("there is no key '{key}'{hint}");
    }
    let same: Vec<&str> = known().filter(|known| split(known).0 == split(key).0).collect();
    let same = if same.is_empty() { tables() } else { same.join(", ") };
    format!("there is no key '{key}'; the keys of '{}' are {same}", split(key).0)
}

fn tables() -> String {
    TABLES.map(|table| format!("[{table}]")).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_tools_lead_to_ours() {
        for (words, here) in ELSEWHERE {
            assert!(here == "method.period" || KEYS.iter().any(|key| key == here), "{here}");
            for word in words {
                for key in [format!("train.{word}"), word.to_uppercase()] {
                    let error = Overrides::default().set(&format!("{key}=1")).unwrap_err().to_string();
                    assert!(error.contains(&format!("did you mean '{here}'?")), "{error}");
                }
            }
        }
        let suggested = |key: &str| Overrides::default().set(&format!("{key}=1")).unwrap_err().to_string();
        assert!(suggested("train.learning-rate").contains("'train.rate'"));
        assert!(suggested("optimizer.momentum").contains("'train.momentum'"));
        assert!(suggested("train.bacth").contains("'train.batch'"));
        assert!(!suggested("train.colour").contains("did you mean"));
    }
}
