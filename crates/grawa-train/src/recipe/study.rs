//! What a recipe file asks to be compared: methods, seeds, and the grid each method is searched over.
//!
//! The table `[study]` is no part of a run. It belongs to the file, so that a setting of the paper and the grids it was
//! tuned over stand in one place:
//!
//! ```toml
//! [study]
//! seeds = [36, 720, 1042]
//! methods = ["easgd", "lgrawa", "lgrawa:pull=0.7"]
//!
//! [study.grid.easgd]          # every choice of this is tried with every choice of that
//! method.period = [4, 8, 16]
//! method.pull = [0.1, 0.3, 0.43]
//!
//! [study.every]               # for all methods: a comparison for each value
//! train.workers = [4, 8, 12]
//! ```

use super::overrides::{Entry, entries, read_file};
use super::{Overrides, Recipe, RecipeError};
use grawa_core::method::{Preset, Share};
use grawa_core::{Method, Name, did_you_mean};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use toml::Value;

/// The table's name.
pub(super) const TABLE: &str = "study";

/// A key, the values it takes, and where they were set.
type Axis = (String, Vec<Value>, String);

/// A method of a study, with the knobs that are set for it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The method.
    pub name: Name,
    /// `knob=value` each.
    knobs: Vec<String>,
}

impl Variant {
    /// The name as the paper spells it, and the knobs.
    pub fn title(&self) -> String {
        match self.knobs.is_empty() {
            true => self.name.title().into(),
            false => format!("{} {}", self.name.title(), self.knobs.join(", ")),
        }
    }

    /// The same with this period, if its own is a longer default.
    pub fn with_period_at_most(mut self, period: u32) -> Self {
        let usual = Method::named(self.name, Preset::default());
        if !self.sets("method.period") && usual.share == Share::Parameters && usual.period > period {
            self.knobs.push(format!("period={period}"));
        }
        self
    }

    /// Whether it sets this key of a recipe.
    fn sets(&self, key: &str) -> bool {
        let knob = key.strip_prefix("method.");
        self.knobs.iter().any(|own| own.split_once('=').map(|(own, _)| own.trim()) == knob)
    }
}

impl From<Name> for Variant {
    fn from(name: Name) -> Self {
        Variant { name, knobs: Vec::new() }
    }
}

impl FromStr for Variant {
    type Err = grawa_core::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.parse::<Method>()?.name;
        let knobs = text.split_once(':').map_or("", |(_, knobs)| knobs).split(',');
        Ok(Variant {
            name,
            knobs: knobs.map(str::trim).filter(|it| !it.is_empty()).map(Into::into).collect(),
        })
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.knobs.is_empty() { "" } else { ":" };
        write!(f, "{}{colon}{}", self.name, self.knobs.join(","))
    }
}

/// What is to be compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// The recipe they all share.
    overrides: Overrides,
    /// The methods; those of the recipe alone if none are named.
    pub methods: Vec<Variant>,
    /// The seeds.
    pub seeds: Vec<u64>,
    every: Vec<Axis>,
    grids: Vec<(Name, Vec<Axis>)>,
    /// Settings that have the last word in every run.
    last: Vec<String>,
}

/// One run of a study: what was set, in words, and the recipe it comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The settings that make it differ from the others: `method.period=4`.
    pub settings: Vec<String>,
    /// The recipe.
    pub recipe: Recipe,
}

impl Study {
    /// Methods over one recipe, without grids: everything else is the same.
    pub fn of(overrides: Overrides, methods: Vec<Variant>, seeds: Vec<u64>) -> Result<Self, RecipeError> {
        let is_again = |&(at, method): &(usize, &Variant)| methods[..at].contains(method);
        if let Some((_, twice)) = methods.iter().enumerate().find(is_again) {
            return Err(RecipeError::new("--method", format!("{twice} is named twice")));
        }
        Ok(Study { overrides, methods, seeds, every: vec![], grids: vec![], last: vec![] })
    }

    /// What was set for all runs, as `key=value`.
    pub fn settings(&self) -> Vec<String> {
        self.overrides.settings().chain(self.last.iter().cloned()).collect()
    }

    /// The study of a recipe file; `None` if it has none.
    pub fn read(path: &Path) -> Result<Option<Self>, RecipeError> {
        Study::parse(&path.display().to_string(), &read_file(path)?)
    }

    /// The study of a TOML text; `name` is the file's name in errors.
    pub fn parse(name: &str, text: &str) -> Result<Option<Self>, RecipeError> {
        let overrides = Overrides::default().file(name, text)?;
        let mut study =
            Study { overrides, methods: vec![], seeds: vec![], every: vec![], grids: vec![], last: vec![] };
        let mut whole = None;
        for Entry { key, value, place } in entries(name, text)? {
            let parts: Vec<&str> = key.splitn(4, '.').collect();
            let wrong = |why: String| Err(RecipeError::new(&place, why));
            match (parts.as_slice(), &value) {
                ([TABLE], _) => whole = Some(place),
                ([TABLE, "methods"], value) => {
                    study.methods =
                        list(value, &place, "names of methods", |one| one.as_str()?.parse().ok())?;
                }
                ([TABLE, "seeds"], value) => {
                    study.seeds = list(value, &place, "seeds", |one| one.as_integer()?.try_into().ok())?;
                }
                ([TABLE, "every" | "grid"], Value::Table(_)) | ([TABLE, "every", ..], Value::Table(_)) => {}
                ([TABLE, "grid", method], Value::Table(_)) => match method.parse() {
                    Ok(method) => study.grids.push((method, Vec::new())),
                    Err(error) => return wrong(grawa_core::Error::to_string(&error)),
                },
                ([TABLE, "every", ..], value) if parts.len() > 2 => {
                    study.every.push(axis(&parts[2..], value, &place)?);
                }
                ([TABLE, "grid", _, key], value) if !value.is_table() => {
                    let axis = axis(&[key], value, &place)?;
                    study.grids.last_mut().into_iter().for_each(|(_, axes)| axes.push(axis.clone()));
                }
                ([TABLE, "grid", _, _], _) => {}
                ([TABLE, "every" | "grid", ..], _) => {
                    return wrong(format!("'{key}' should be a table of keys and lists"));
                }
                ([TABLE, key, ..], _) => {
                    let hint = did_you_mean(key, ["methods", "seeds", "every", "grid"]);
                    return wrong(format!(
                        "there is no key '{TABLE}.{key}'{hint}; there are methods, seeds, every, grid"
                    ));
                }
                _ => {}
            }
        }
        let Some(whole) = whole else { return Ok(None) };
        if study.methods.is_empty() {
            study.methods.push(Recipe::resolve(&study.overrides)?.method.name.into());
        }
        let is_stray = |(name, _): &&(Name, _)| study.methods.iter().all(|method| method.name != *name);
        if let Some((stray, _)) = study.grids.iter().find(is_stray) {
            return Err(RecipeError::new(
                whole,
                format!("there is a grid for {stray}, which is none of the methods of the study"),
            ));
        }
        Ok(Some(study))
    }

    /// The same with a setting, `key=value`, that has the last word in every run; a list of values for that key is left out.
    pub fn set(mut self, setting: &str) -> Result<Self, RecipeError> {
        // By itself first: a slip in it is a slip of the setting.
        Overrides::default().set(setting)?;
        let key = setting.split_once('=').map_or(setting, |(key, _)| key.trim());
        let grids = self.grids.iter_mut().map(|(_, axes)| axes);
        std::iter::once(&mut self.every).chain(grids).for_each(|axes| axes.retain(|axis| axis.0 != key));
        self.last.push(setting.into());
        Ok(self)
    }

    /// The study with one value for each key of `every`, once for each choice of them. With it the choice in words, such as
    /// `train.workers=4`; keys with a single value are left out there.
    pub fn each(&self) -> Vec<(Vec<String>, Study)> {
        let mut all: Vec<(Vec<String>, Vec<Axis>)> = vec![Default::default()];
        for (key, values, place) in &self.every {
            let next = |(words, axes): &(Vec<String>, Vec<Axis>), value: &Value| {
                let word = (values.len() > 1).then(|| in_words(key, value));
                let axis = (key.clone(), vec![value.clone()], place.clone());
                (words.iter().cloned().chain(word).collect(), axes.iter().cloned().chain([axis]).collect())
            };
            all = all.iter().flat_map(|one| values.iter().map(|value| next(one, value))).collect();
        }
        all.into_iter().map(|(words, every)| (words, Study { every, ..self.clone() })).collect()
    }

    /// Every run for one method and one seed: each choice of a key with each choice of the others. A knob that the method sets itself
    /// has that value only.
    pub fn points(&self, method: &Variant, seed: u64) -> Result<Vec<Point>, RecipeError> {
        let place = format!("{TABLE}.methods");
        let start = self.overrides.clone().value("train.seed", seed.cast_signed(), "study.seeds")?;
        // The knobs a file sets belong to the method it names: another one has its own.
        let same = Recipe::resolve(&self.overrides)?.method.name == method.name;
        let start = if same { start.value("method.name", method.name.as_str(), &place)? } else { start };
        let start = start.method(&method.to_string(), &place)?;
        let grid = self.grids.iter().find(|(name, _)| *name == method.name).map_or(&[][..], |(_, axes)| axes);
        let mut points = vec![(Vec::new(), start)];
        for (key, values, place) in self.every.iter().chain(grid).filter(|axis| !method.sets(&axis.0)) {
            let mut next = Vec::with_capacity(points.len() * values.len());
            for (settings, said) in points {
                for value in values {
                    let mut settings = settings.clone();
                    settings.push(in_words(key, value));
                    next.push((settings, said.clone().value(key, value.clone(), place)?));
                }
            }
            points = next;
        }
        let resolve = |(settings, said)| {
            let said = self.last.iter().try_fold(said, |said: Overrides, setting| said.set(setting))?;
            Ok(Point { settings, recipe: Recipe::resolve(&said)? })
        };
        points.into_iter().map(resolve).collect()
    }
}

/// A setting as `key=value`.
fn in_words(key: &str, value: &Value) -> String {
    format!("{key}={}", value.as_str().map_or(value.to_string(), str::to_owned))
}

fn list<T: PartialEq>(
    value: &Value,
    place: &str,
    what: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<T>, RecipeError> {
    let wrong = |found: &Value| RecipeError::new(place, format!("found {found}, expected a list of {what}"));
    let items = value.as_array().filter(|items| !items.is_empty()).ok_or_else(|| wrong(value))?;
    let found: Vec<T> =
        items.iter().map(|item| read(item).ok_or_else(|| wrong(item))).collect::<Result<_, _>>()?;
    // A run must not count twice.
    let is_again = |&at: &usize| found[..at].contains(&found[at]);
    match (0..found.len()).find(is_again) {
        Some(at) => Err(RecipeError::new(place, format!("{} is listed twice", items[at]))),
        None => Ok(found),
    }
}

/// A key and the values it takes.
fn axis(key: &[&str], value: &Value, place: &str) -> Result<Axis, RecipeError> {
    let values = list(value, place, "values", |value| Some(value.clone()))?;
    Ok((key.join("."), values, place.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[train]\nworkers = 4\n[study]\nseeds = [1, 2]\nmethods = ['easgd', 'lgrawa', 'dp-sgd']\n\
                        [study.every]\ntrain.workers = [4, 8]\n[study.grid.easgd]\nmethod.period = [4, 8, 16]\nmethod.pull = [0.1, 0.3]\n\
                        [study.grid.dp-sgd]\ntrain.batch = [32, 64]\n";

    #[test]
    fn every_choice_is_tried_with_every_other() {
        let study = Study::parse("a.toml", TEXT).unwrap().unwrap();
        assert_eq!((study.seeds.as_slice(), study.methods.len()), (&[1, 2][..], 3));
        let easgd = study.points(&Name::Easgd.into(), 2).unwrap();
        assert_eq!(easgd.len(), 2 * 3 * 2);
        assert_eq!(easgd[0].settings, ["train.workers=4", "method.period=4", "method.pull=0.1"]);
        let last = &easgd[11].recipe;
        assert_eq!(
            (last.train.seed, last.train.workers, last.method.to_string().as_str()),
            (2, 8, "easgd:period=16,pull=0.3")
        );
        assert_eq!(study.points(&Name::Lgrawa.into(), 1).unwrap().len(), 2);
        assert_eq!(study.points(&Name::DpSgd.into(), 1).unwrap()[3].recipe.train.batch, 64);
        assert_eq!(Study::parse("a.toml", "[train]\nworkers = 4\n").unwrap(), None);
    }

    /// Each choice of `every` is a study of its own, with the grids of all methods.
    #[test]
    fn each_value_for_all_methods_is_a_study() {
        let text = TEXT.replace("[4, 8]\n", "[4, 8]\ntrain.momentum = [0.5]\ntrain.rate = [0.1, '0.2']\n");
        let all = Study::parse("a.toml", &text).unwrap().unwrap().each();
        let expected = [(4, "0.1"), (4, "0.2"), (8, "0.1"), (8, "0.2")];
        assert_eq!(all.len(), expected.len());
        for ((words, study), (workers, rate)) in all.iter().zip(expected) {
            assert_eq!(*words, [format!("train.workers={workers}"), format!("train.rate={rate}")]);
            let points = study.points(&Name::Easgd.into(), 2).unwrap();
            assert!(points.len() == 6 && points.iter().all(|it| it.recipe.train.workers == workers));
        }
    }

    /// Two settings of one method are two methods, and a knob that one sets is not searched for.
    #[test]
    fn a_method_may_bring_its_knobs() {
        let study = Study::parse("a.toml", TEXT).unwrap().unwrap();
        let own: Variant = "easgd: pull=0.2".parse().unwrap();
        assert_eq!((own.to_string(), own.title()), ("easgd:pull=0.2".into(), "EASGD pull=0.2".into()));
        let points = study.points(&own, 1).unwrap();
        assert_eq!(points.len(), 2 * 3);
        assert_eq!(points[1].recipe.method.to_string(), "easgd:period=8,pull=0.2");
        assert!("easgd:perid=4".parse::<Variant>().is_err() && "lgrwa".parse::<Variant>().is_err());

        // The knobs of the recipe belong to its method; what a method sets goes over them.
        let text = "[method]\nname = 'lgrawa'\nperiod = 4\n[train]\nworkers = 2";
        let overrides = Overrides::default().file("a.toml", text).unwrap();
        let methods = || ["lgrawa", "lgrawa:pull=0.7", "mean"].map(|text| text.parse().unwrap()).to_vec();
        let study = Study::of(overrides.clone(), methods(), vec![3]).unwrap().set("train.batch=8").unwrap();
        let found = study.methods.iter().map(|method| study.points(method, 3).unwrap().remove(0).recipe);
        let found: Vec<_> =
            found.map(|it| (it.method.to_string(), it.train.batch, it.train.workers)).collect();
        assert_eq!(found[0], ("lgrawa:period=4".into(), 8, 2));
        assert_eq!(found[1], ("lgrawa:period=4,pull=0.7".into(), 8, 2));
        assert_eq!(found[2].0, "mean");
        let twice = [methods(), methods()].concat();
        assert!(Study::of(overrides, twice, vec![3]).unwrap_err().to_string().contains("named twice"));
    }

    #[test]
    fn a_setting_has_the_last_word() {
        let study = Study::parse("a.toml", TEXT).unwrap().unwrap();
        let study = study.set("train.workers=3").unwrap().set("method.pull = 0.2").unwrap();
        let easgd = study.points(&Name::Easgd.into(), 1).unwrap();
        assert_eq!((easgd.len(), easgd[2].settings.as_slice()), (3, &["method.period=16".to_owned()][..]));
        assert!(easgd.iter().all(|point| point.recipe.train.workers == 3));
        assert_eq!(easgd[2].recipe.method.to_string(), "easgd:period=16,pull=0.2");
        assert!(study.set("train.wokers=3").unwrap_err().to_string().contains("did you mean"));
    }

    #[test]
    fn errors_name_the_line() {
        for (text, words) in [
            ("[study]\nseed = [1]", "a.toml:2: there is no key 'study.seed' (did you mean 'seeds'?)"),
            ("[study]\nseeds = 1", "a.toml:2: found 1, expected a list of seeds"),
            ("[study]\nseeds = []", "expected a list"),
            ("[study]\nseeds = [1, 2, 1]", "a.toml:2: 1 is listed twice"),
            ("[study]\nmethods = ['mean', 'mean']", "a.toml:2: \"mean\" is listed twice"),
            ("[study.every]\ntrain.workers = [4, 4]", "a.toml:2: 4 is listed twice"),
            ("[study]\nmethods = ['lgrwa']", "a.toml:2: found \"lgrwa\""),
            ("[study]\n\n[study.grid.lsgd]\nmethod.period = [4]", "a.toml:1: there is a grid for lsgd"),
            ("[study]\n[study.grid.lsdg]\nmethod.period = [4]", "a.toml:2: there is no method 'lsdg'"),
            ("[study.grid]\nlgrawa = 4", "should be a table"),
        ] {
            let error = Study::parse("a.toml", text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        let study = |text: &str| {
            Study::parse("a.toml", text)
                .unwrap()
                .unwrap()
                .points(&Name::Lgrawa.into(), 1)
                .unwrap_err()
                .to_string()
        };
        assert!(
            study("[study.every]\ntrain.wokers = [4]")
                .starts_with("a.toml:2: there is no key 'train.wokers'")
        );
        assert!(
            study("[study.every]\ntrain.workers = [4, 'x']")
                .starts_with("a.toml:2: train.workers: found \"x\"")
        );
    }
}
