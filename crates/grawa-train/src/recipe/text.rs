//! Recipes as text: TOML files with line numbers, settings of a command line, and the printed form.
//!
//! [`Said`] gathers what was said and where, key by key; the last word counts. [`Recipe::resolve`] lays it over the
//! defaults. A key's value is checked when the recipe is resolved, so that every mistake can name its place.

use super::{KEYS, Mistake, Recipe, keys};
use grawa_core::{Method, Name, nearest};
use grawa_data::DatasetKind;
use std::fs;
use std::path::Path;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

/// What was said of a recipe, and where.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    key: String,
    value: Value,
    place: String,
}

/// The tables of a recipe, besides the study's.
pub(crate) const TABLES: [&str; 7] =
    ["data", "model", "method", "train", "evaluate", "checkpoint", "machine"];

impl Said {
    /// Adds what a file says.
    pub fn read(self, path: &Path) -> Result<Self, Mistake> {
        let name = path.display().to_string();
        let text = fs::read_to_string(path)
            .map_err(|error| Mistake::new(&name, format!("cannot read the recipe: {error}")))?;
        self.file(&name, &text)
    }

    /// Adds what a TOML text says; `name` is the file's name in mistakes.
    pub fn file(mut self, name: &str, text: &str) -> Result<Self, Mistake> {
        let place = |at: usize| format!("{name}:{}", line(text, at));
        let broken = |error: toml::de::Error| {
            Mistake::new(place(error.span().map_or(0, |span| span.start)), error.message().trim())
        };
        // Once for the values, once for where they stand.
        let values: Table = text.parse().map_err(broken)?;
        let spans = DeTable::parse(text).map_err(broken)?;
        for (table, inside) in spans.get_ref() {
            let (key, at) = (table.get_ref().as_ref(), table.span().start);
            let (DeValue::Table(inside), Some(Value::Table(values))) = (inside.get_ref(), values.get(key))
            else {
                let why = format!("'{key}' stands outside of any table; keys stand in {}", in_words());
                return Err(Mistake::new(place(at), why));
            };
            if key == super::study::TABLE {
                continue;
            }
            if !TABLES.contains(&key) {
                let hint = did_you_mean(key, TABLES.into_iter().chain([super::study::TABLE]));
                return Err(Mistake::new(
                    place(at),
                    format!("there is no table '{key}'{hint}; the tables are {}", in_words()),
                ));
            }
            self.table(key, inside, values, &place)?;
        }
        Ok(self)
    }

    fn table(
        &mut self,
        prefix: &str,
        spans: &DeTable<'_>,
        values: &Table,
        place: &dyn Fn(usize) -> String,
    ) -> Result<(), Mistake> {
        for (key, inside) in spans {
            let (name, at) = (format!("{prefix}.{}", key.get_ref()), place(key.span().start));
            let Some(value) = values.get(key.get_ref().as_ref()) else { continue };
            match (inside.get_ref(), value) {
                (DeValue::Table(inside), Value::Table(values)) if name == "method.inner" => {
                    self.table(&name, inside, values, place)?;
                }
                _ => self.add(name, value.clone(), at)?,
            }
        }
        Ok(())
    }

    /// Adds a setting of the command line, `key=value`.
    pub fn set(mut self, setting: &str) -> Result<Self, Mistake> {
        let place = format!("--set {setting}");
        let wrong = || Mistake::new(&place, "expected key=value, such as train.budget=500step");
        let (key, value) = setting.split_once('=').ok_or_else(wrong)?;
        self.add(key.trim().into(), read_value(value.trim()), place)?;
        Ok(self)
    }

    /// Adds a value for a key; `place` says where it came from.
    pub fn value(mut self, key: &str, value: impl Into<Value>, place: &str) -> Result<Self, Mistake> {
        self.add(key.into(), value.into(), place.into())?;
        Ok(self)
    }

    /// Adds a method written as `name:knob=value,…`. What was said of another method before is forgotten: its knobs were
    /// its own.
    pub fn method(mut self, text: &str, place: &str) -> Result<Self, Mistake> {
        // By itself first: a slip in it is a slip of this place.
        text.parse::<Method>().map_err(|error| Mistake::new(place, error.to_string()))?;
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

    fn add(&mut self, key: String, value: Value, place: String) -> Result<(), Mistake> {
        // The knobs of the method are checked when it is made: which there are depends on its name.
        if !key.starts_with("method.") && keys::find(&key).is_none() {
            let known = || KEYS.iter().map(|key| key.name).chain(["method.name"]);
            // Who forgets the table, or errs in it, still has the key's own name right.
            let own = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
            let hint = nearest(&key, known())
                .or_else(|| Some(known().find(|known| own(known) == own(&key))?.into()));
            let hint = hint.map(|name| format!(" (did you mean '{name}'?)")).unwrap_or_default();
            let more = if hint.is_empty() {
                format!("; the keys of '{}' are {}", table_of(&key), siblings(&key))
            } else {
                String::new()
            };
            return Err(Mistake::new(place, format!("there is no key '{key}'{hint}{more}")));
        }
        self.entries.retain(|entry| entry.key != key);
        self.entries.push(Entry { key, value, place });
        Ok(())
    }

    /// Whether anything was said of a key.
    pub fn says(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// What was said of a key.
    fn find(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// Where a key was set, or the recipe as a whole.
    pub(super) fn place(&self, key: &str) -> String {
        let table = || self.entries.iter().find(|entry| table_of(&entry.key) == table_of(key));
        self.find(key)
            .or_else(table)
            .or(self.entries.first())
            .map_or("the recipe".into(), |entry| entry.place.clone())
    }
}

impl Recipe {
    /// What was said, over the defaults of its data set.
    pub fn resolve(said: &Said) -> Result<Self, Mistake> {
        let mut recipe = Recipe::start(said)?;
        for entry in said.entries.iter().filter(|entry| !entry.key.starts_with("method.")) {
            let Some(key) = keys::find(&entry.key) else { continue };
            (key.read)(&mut recipe, &entry.value)
                .map_err(|why| Mistake::new(&entry.place, format!("{}: {why}", entry.key)))?;
        }
        if let Some(method) = method(said)? {
            recipe.method = method;
        }
        recipe.settle(|key| said.find(key).is_some());
        recipe.check().map_err(|(key, why)| Mistake::new(said.place(key), why))?;
        Ok(recipe)
    }

    /// The defaults, which depend on the data set and the network.
    fn start(said: &Said) -> Result<Self, Mistake> {
        let place = said.place("data.kind");
        let own = |error: grawa_core::Error| Mistake::new(&place, error.to_string());
        let mut recipe = Recipe::for_data(DatasetKind::Digits, None).map_err(own)?;
        for key in ["data.kind", "model.name"] {
            if let (Some(entry), Some(key)) = (said.find(key), keys::find(key)) {
                (key.read)(&mut recipe, &entry.value)
                    .map_err(|why| Mistake::new(&entry.place, format!("{}: {why}", entry.key)))?;
            }
        }
        let network = said.find("model.name").map(|_| recipe.model.name.as_str());
        Recipe::for_data(recipe.data.kind, network).map_err(own)
    }

    /// Every key as TOML: what reads back as this recipe.
    pub fn to_toml(&self) -> String {
        let mut tables = Table::new();
        for name in TABLES {
            let mut table = Table::new();
            let keys = KEYS.iter().filter(|key| table_of(key.name) == name);
            for (key, value) in keys.filter_map(|key| Some((key.name, (key.write)(self)?))) {
                table.insert(key[name.len() + 1..].into(), value);
            }
            if name == "method" {
                table = self.method.to_table();
            }
            tables.insert(name.into(), Value::Table(table));
        }
        tables.to_string()
    }
}

/// The method that was said, if any of it was.
fn method(said: &Said) -> Result<Option<Method>, Mistake> {
    let mut table = Table::new();
    for entry in said.entries.iter().filter(|entry| entry.key.starts_with("method.")) {
        let mut level = &mut table;
        let mut knob = &entry.key["method.".len()..];
        if let Some(inner) = knob.strip_prefix("inner.") {
            let Value::Table(inner_level) =
                level.entry("inner").or_insert_with(|| Value::Table(Table::new()))
            else {
                let why = "method.inner is a level of its own: write method.inner.group = 4";
                return Err(Mistake::new(&entry.place, why));
            };
            (level, knob) = (inner_level, inner);
        }
        level.insert(knob.into(), entry.value.clone());
    }
    if table.is_empty() {
        return Ok(None);
    }
    table.entry("name").or_insert_with(|| Name::Lgrawa.as_str().into());
    let place = |error: grawa_core::Error| {
        let key = error.knob().map_or("method.name".into(), |knob| format!("method.{knob}"));
        Mistake::new(said.place(&key), error.to_string())
    };
    Method::from_table(&table).map(Some).map_err(place)
}

/// A TOML value where it is one, else a text: so that `500step` needs no quotes on a command line.
fn read_value(text: &str) -> Value {
    let parsed = format!("value = {text}").parse::<Table>().ok();
    let alone = parsed.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    alone.unwrap_or_else(|| Value::String(text.into()))
}

/// The number of the line that a byte stands in, from 1.
pub(super) fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count()
}

fn table_of(key: &str) -> &str {
    key.split_once('.').map_or(key, |(table, _)| table)
}

fn siblings(key: &str) -> String {
    let same: Vec<&str> =
        KEYS.iter().map(|known| known.name).filter(|known| table_of(known) == table_of(key)).collect();
    if same.is_empty() { in_words() } else { same.join(", ") }
}

fn in_words() -> String {
    TABLES.map(|table| format!("[{table}]")).join(", ")
}

pub(super) fn did_you_mean<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(found, known).map(|name| format!(" (did you mean '{name}'?)")).unwrap_or_default()
}
