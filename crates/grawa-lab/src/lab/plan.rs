//! The cells of an experiment: a pure function of its settings and of the findings so far.
//!
//! Where a method has a grid, its points are searched first, with their own seed and on held-out training examples. When all
//! points of a method are known, the best one is run on the whole training set with fresh seeds. So cells are added while
//! others finish. An experiment is complete when all of its cells have findings.

use super::cell::{Cell, Found, Measurements, Stage};
use super::experiment::{COMPARE, Experiment, Scale, Source};
use super::published::{self, Published, Row};
use crate::Error;
use crate::statistics::mean_of;
use grawa_core::Name;
use grawa_data::{DatasetKind, Reading};
use grawa_train::Recipe;
use grawa_train::recipe::{Facts, Point, Study, Variant};

/// The seed of searches; where a study uses it, the next one that it does not use.
pub const SEARCH_SEED: u64 = 7;
/// The most examples held out for a search; of small sets a fifth.
pub const HELD_OUT: u64 = 5_000;

grawa_session::choices! {
    /// The examples on which the setting of each grid is chosen.
    #[derive(Default)]
    Select, "way to choose settings",
    /// Held-out training examples.
    #[default]
    HeldOut = "held-out",
    /// The test set, as in the paper.
    Test = "test",
}

/// A request for an experiment.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The scale.
    pub scale: Scale,
    /// How settings are chosen; by default on held-out examples.
    pub select: Option<Select>,
    /// How many seeds; by default those of the studies.
    pub seeds: Option<usize>,
    /// Only these methods; knobs that they bring are not searched for.
    pub methods: Vec<Variant>,
    /// Settings that override every cell.
    pub settings: Vec<String>,
    /// Recipes with studies, instead of the scale's own.
    pub recipes: Vec<std::path::PathBuf>,
}

/// A study with its name. A row of the tables: where settings are searched for, each value of `study.every` makes one.
#[derive(Clone, Debug)]
struct Named {
    name: String,
    study: Study,
    /// What `study.every` sets here, where it has several values.
    row: Vec<String>,
    /// The size of its class folders, if it has some, and where that is known from.
    folders: Option<(Option<Facts>, String)>,
}

impl Named {
    /// Counts class folders once. Where they are missing, the ImageNet study has ImageNet's published size.
    fn new(name: String, row: Vec<String>, study: Study) -> Result<Self, Error> {
        let methods = study.methods.first();
        let points = methods.map_or(Ok(Vec::new()), |method| study.points(method, SEARCH_SEED))?;
        let recipe = points.first().map(|point| &point.recipe);
        let recipe = recipe.filter(|recipe| recipe.data.kind == DatasetKind::Folder);
        let count = |recipe: &Recipe| {
            let listed = Reading { shrink: 0, ..recipe.reading() };
            grawa_data::folder(&recipe.data.dir, &listed, &|_, _| ())
        };
        let folders = recipe.map(|recipe| match (count(recipe), published::size(&name)) {
            (Ok(data), _) => {
                let (examples, classes, shape) = (data.train.len() as u64, data.classes, data.train.shape());
                let counted = format!("{examples} training images of {classes} classes were counted.");
                let facts = Facts { examples, classes, shape, data_bytes: 0 };
                (Some(facts), format!("{}: {counted}", recipe.data.dir.display()))
            }
            (Err(why), Some(facts)) => {
                let size = format!("{} training images of {} classes", facts.examples, facts.classes);
                let used = format!("ImageNet's published size is used: {size}.");
                (Some(facts), format!("{name}: the data is not here ({why}). {used}"))
            }
            (Err(why), None) => (None, format!("{name}: cost unknown, the data is not here ({why}).")),
        });
        Ok(Named { name, study, row, folders })
    }

    /// The known facts about the data of a recipe.
    fn facts(&self, recipe: &Recipe) -> Option<Facts> {
        let counted = || Some(self.folders.as_ref()?.0?.for_recipe(recipe));
        Facts::published(recipe).or_else(counted)
    }
}

/// An experiment with its settings.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The experiment.
    pub experiment: &'static Experiment,
    /// How settings are chosen.
    pub select: Select,
    scale: Scale,
    settings: Vec<String>,
    studies: Vec<Named>,
}

impl Plan {
    /// The plan of an experiment.
    pub fn new(experiment: &'static Experiment, request: &Request) -> Result<Self, Error> {
        if request.select.is_some() && !experiment.search {
            return Err(Error::NothingToChoose(experiment.name));
        }
        let is_seed =
            |setting: &&String| setting.split('=').next().is_some_and(|key| key.trim() == "train.seed");
        if let Some(setting) = request.settings.iter().find(is_seed) {
            return Err(Error::SeedIsSet(setting.clone()));
        }
        let mut studies = Vec::new();
        for path in &request.recipes {
            let name = path.file_stem().map_or("study".into(), |stem| stem.to_string_lossy().into_owned());
            studies.push((name, Study::read(path)?.ok_or(Error::NoStudy(path.clone()))?));
        }
        if studies.is_empty() {
            for Source { name, text, settings } in experiment.studies[request.scale as usize] {
                let parsed = Study::parse(name, text)?.ok_or(Error::NoStudy((*name).into()))?;
                let study = settings.iter().try_fold(parsed, |study, setting| study.set(setting))?;
                let width = settings.iter().find_map(|it| it.strip_prefix("model.width="));
                studies.push((width.map_or((*name).into(), |width| format!("{name}-{width}")), study));
            }
        }
        for (_, study) in &mut studies {
            let mut settings = request.settings.iter();
            *study = settings.try_fold(study.clone(), |study, setting| study.set(setting))?;
            let is_in = |method: &Variant| study.methods.iter().any(|own| own.name == method.name);
            if let Some(stray) = request.methods.iter().find(|method| !is_in(method)) {
                return Err(Error::NotInStudy(stray.clone(), study.methods.clone()));
            }
            if !request.methods.is_empty() {
                // In the order of the study, each once.
                let asked = std::mem::take(&mut study.methods).into_iter().flat_map(|own| {
                    request.methods.iter().filter(move |method| method.name == own.name).cloned()
                });
                for method in asked {
                    if !study.methods.contains(&method) {
                        study.methods.push(method);
                    }
                }
            }
            let next = study.seeds.iter().max().map_or(1, |last| last + 1);
            if let Some(count) = request.seeds {
                study.seeds.extend(next..next + count as u64);
                study.seeds.truncate(count);
            }
        }
        let (select, settings) = (request.select.unwrap_or_default(), request.settings.clone());
        Plan { experiment, select, scale: request.scale, settings, studies: Vec::new() }.with(studies)
    }

    /// The plan of [`COMPARE`]: the methods of a study against the first of them.
    pub fn compare(name: &str, study: Study) -> Result<Self, Error> {
        let (experiment, settings) = (&COMPARE, study.settings());
        let (select, scale) = (Select::default(), Scale::default());
        Plan { experiment, select, scale, settings, studies: Vec::new() }.with(vec![(name.into(), study)])
    }

    fn with(mut self, studies: Vec<(String, Study)>) -> Result<Self, Error> {
        for (name, study) in studies {
            // A search must not choose among values that all methods have alike.
            let rows = if self.experiment.search { study.each() } else { vec![(Vec::new(), study)] };
            let several = rows.len() > 1;
            for (number, (row, study)) in (1..).zip(rows) {
                let name = if several { format!("{name}-{number}") } else { name.clone() };
                self.studies.push(Named::new(name, row, study)?);
            }
        }
        // Report a wrong setting before anything runs.
        self.cells(&Found::new())?;
        Ok(self)
    }

    /// The number of studies; where settings are searched for, each is a row of the tables.
    pub fn studies(&self) -> usize {
        self.studies.len()
    }

    /// The paper's number for a study and a method, at the paper's scale.
    pub(super) fn published(&self, table: &[Row], study: usize, method: Name) -> Option<Published> {
        let is_paper = self.scale == Scale::Paper;
        is_paper.then(|| published::published(table, &self.studies[study].name, method)).flatten()
    }

    /// What `study.every` sets for all methods of a study, where settings are searched for.
    pub fn row(&self, study: usize) -> &[String] {
        &self.studies[study].row
    }

    /// The methods of a study.
    pub fn methods(&self, study: usize) -> &[Variant] {
        &self.studies[study].study.methods
    }

    /// The manifest of the folder: what determines the cells, as TOML.
    pub fn manifest(&self) -> String {
        let mut text = format!(
            "# Written by grawa. The folder belongs to this experiment; the same command continues it.\n\
             experiment = {:?}\n",
            self.experiment.name
        );
        // A comparison has no studies of its own.
        if self.experiment.studies.iter().any(|studies| !studies.is_empty()) {
            text += &format!("scale = {:?}\n", self.scale.as_str());
        }
        if self.experiment.search {
            text += &format!("select = {:?}\n", self.select.as_str());
        }
        text += &format!("settings = {:?}\n", self.settings);
        for Named { name, study: Study { methods, seeds, .. }, row, .. } in &self.studies {
            let methods: Vec<String> = methods.iter().map(ToString::to_string).collect();
            text += &format!("\n[[study]]\nname = {name:?}\nmethods = {methods:?}\nseeds = {seeds:?}\n");
            if !row.is_empty() {
                text += &format!("every = {row:?}\n");
            }
        }
        text
    }

    /// All cells that are known to be needed, given these findings. Searches come first.
    pub fn cells(&self, found: &Found) -> Result<Vec<Cell>, Error> {
        let mut cells = Vec::new();
        for number in 0..self.studies.len() {
            for method in self.methods(number) {
                cells.extend(self.of(number, method, found)?);
            }
        }
        // Finals wait for searches.
        cells.sort_by_key(|cell| cell.stage);
        Ok(cells)
    }

    /// The number of cells that cannot be named yet.
    pub fn unnamed(&self, cells: &[Cell]) -> usize {
        self.waiting(cells).len()
    }

    /// The cost of cells, with those that cannot be named yet: multiplications and additions of training, and the number of
    /// cells of unknown cost, which are left out.
    pub fn cost(&self, cells: &[Cell]) -> (f64, usize) {
        let all: Vec<Option<f64>> = cells.iter().map(|cell| cell.work).chain(self.waiting(cells)).collect();
        (all.iter().flatten().sum(), all.iter().filter(|work| work.is_none()).count())
    }

    /// The origin of the sizes of class folders, in words.
    pub fn notes(&self) -> Vec<&str> {
        let mut notes: Vec<&str> =
            self.studies.iter().filter_map(|it| it.folders.as_ref()).map(|(_, note)| note.as_str()).collect();
        notes.dedup();
        notes
    }

    /// The work of every cell that cannot be named yet, because the setting of its method is not chosen: the mean of the
    /// method's searches.
    fn waiting(&self, cells: &[Cell]) -> Vec<Option<f64>> {
        let mut waiting = Vec::new();
        for (number, Named { study, .. }) in self.studies.iter().enumerate() {
            for method in &study.methods {
                let own = || cells.iter().filter(|cell| cell.study == number && cell.variant == *method);
                if own().all(|cell| cell.stage == Stage::Search) {
                    let work = mean_of(own().filter_map(|cell| cell.work));
                    waiting.extend(std::iter::repeat_n(work, study.seeds.len()));
                }
            }
        }
        waiting
    }

    /// The cells of a method.
    fn of(&self, number: usize, method: &Variant, found: &Found) -> Result<Vec<Cell>, Error> {
        let named @ Named { name, study, .. } = &self.studies[number];
        let cell =
            |stage: Stage, measurements: Measurements, point: usize, Point { settings, recipe }: Point| {
                let facts = named.facts(&recipe);
                Cell::new((number, name), (stage, method), (point, settings), recipe, measurements, facts)
            };
        let seed = (SEARCH_SEED..).find(|seed| !study.seeds.contains(seed)).unwrap_or(SEARCH_SEED);
        let grid = study.points(method, seed)?;
        let (mut cells, mut chosen) = (Vec::new(), None);
        if self.experiment.search && self.select == Select::HeldOut && grid.len() > 1 {
            for (number, mut point) in grid.into_iter().enumerate() {
                let examples = named.facts(&point.recipe).map_or(u64::MAX, |facts| facts.examples);
                point.recipe.data.held_out = HELD_OUT.min(examples / 5) as u32;
                // A search needs the last evaluation only.
                point.recipe.evaluate.every = None;
                cells.push(cell(Stage::Search, Measurements::default(), number, point));
            }
            chosen = best(&cells, found);
            if chosen.is_none() {
                return Ok(cells);
            }
        }
        let measurements = (self.experiment.measurements)(self.scale);
        for &seed in &study.seeds {
            let points = study.points(method, seed)?.into_iter().enumerate();
            let points = points.filter(|(point, _)| chosen.is_none_or(|chosen| *point == chosen));
            cells.extend(points.map(|(number, point)| cell(Stage::Final, measurements, number, point)));
        }
        Ok(cells)
    }
}

/// The point with the smallest error, once all are found; ties go to the smallest loss. A lost run has the largest of both.
fn best(cells: &[Cell], found: &Found) -> Option<usize> {
    let mut scores = Vec::new();
    for cell in cells {
        let test = found.get(&cell.name)?.measured().map(|measured| measured.test);
        let loss = test.and_then(|test| test.loss).unwrap_or(f64::INFINITY);
        scores.push((test.map_or(f64::INFINITY, |test| test.error), loss, cell.point));
    }
    scores.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
    scores.first().map(|score| score.2)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::lab::{CurvePoint, Finding, Measured, Outcome, Score, experiment};
    use std::path::Path;

    fn plan(name: &str, request: &Request) -> Plan {
        Plan::new(experiment(name).unwrap(), request).unwrap()
    }

    /// The plan of an experiment with a study of this text, and the folder of its recipe.
    pub(in crate::lab) fn study(name: &str, text: &str) -> (tempfile::TempDir, Plan) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("own.toml");
        std::fs::write(&path, text).unwrap();
        let plan = plan(name, &Request { recipes: vec![path], ..Request::default() });
        (place, plan)
    }

    /// What is found when each cell errs by `error(cell)`; none where it was lost.
    pub(in crate::lab) fn find(cells: &[Cell], error: impl Fn(&Cell) -> Option<f64>) -> Found {
        let finding = |cell: &Cell| {
            let outcome = match error(cell) {
                Some(error) => {
                    let test = Score { loss: Some(1.0), error };
                    let curve = vec![CurvePoint { score: test, ..CurvePoint::default() }];
                    Outcome::Done(Measured { test, curve, ..Measured::default() })
                }
                None => Outcome::Lost { why: "it diverged".into() },
            };
            let (recipe, program) = (cell.recipe.to_toml(), "test".into());
            (cell.name.clone(), Finding { cell: cell.name.clone(), recipe, program, jobs: 1, outcome })
        };
        cells.iter().map(finding).collect()
    }

    #[test]
    fn settings_are_searched_on_held_out_examples_and_run_with_fresh_seeds() {
        let plan = plan("gap", &Request::default());
        let search = plan.cells(&Found::new()).unwrap();
        assert_eq!((search.len(), plan.unnamed(&search)), (14, 21));
        for cell in &search {
            assert_eq!(
                (cell.stage, cell.seed(), cell.recipe.data.held_out),
                (Stage::Search, SEARCH_SEED, 287)
            );
            assert_eq!(cell.measurements, Measurements::default());
        }
        // One method is known: its finals are named, with the better point, whichever that is.
        for better in [0, 1] {
            let own: Vec<Cell> =
                search.iter().filter(|cell| cell.recipe.method.name == Name::Lgrawa).cloned().collect();
            let found = find(&own, |cell| Some(if cell.point == better { 0.1 } else { 0.2 }));
            let cells = plan.cells(&found).unwrap();
            let finals: Vec<&Cell> = cells.iter().filter(|cell| cell.stage == Stage::Final).collect();
            assert_eq!((cells.len(), plan.unnamed(&cells), finals.len()), (17, 18, 3));
            assert_eq!(finals.iter().map(|cell| cell.seed()).collect::<Vec<_>>(), [36, 720, 1042]);
            for cell in finals {
                assert_eq!(
                    (cell.point, cell.recipe.data.held_out, cell.measurements.train),
                    (better, 0, true)
                );
            }
        }
        // A run that diverged is never the best.
        let found = find(&search, |cell| (cell.point == 1).then_some(0.9));
        let cells = plan.cells(&found).unwrap();
        assert!(cells.iter().filter(|cell| cell.stage == Stage::Final).all(|cell| cell.point == 1));
        assert_eq!((cells.len(), plan.unnamed(&cells)), (35, 0));
    }

    #[test]
    fn the_seed_of_a_search_is_none_of_the_studys() {
        let text =
            "[study]\nmethods = ['mean']\nseeds = [7, 8]\n[study.grid.mean]\nmethod.pull = [0.3, 0.5]\n";
        let (_place, plan) = study("table1", text);
        let cells = plan.cells(&Found::new()).unwrap();
        assert_eq!((cells.len(), plan.unnamed(&cells)), (2, 2));
        assert!(cells.iter().all(|cell| cell.seed() == 9 && cell.name.starts_with("own-mean-search-9-")));
    }

    /// A value that all methods have alike is a row, not a point of a grid: methods of a row never differ in it.
    #[test]
    fn each_value_for_all_methods_is_a_row() {
        let text = "[study]\nmethods = ['easgd', 'mean']\nseeds = [1, 2]\n[study.every]\ntrain.workers = [4, 8]\n\
                    train.batch = [16, 32]\n[study.grid.easgd]\nmethod.pull = [0.1, 0.3]\n";
        for experiment in ["table1", "communication", "curves"] {
            let (_place, plan) = study(experiment, text);
            let search = plan.cells(&Found::new()).unwrap();
            // EASGD is searched for in each of four rows; Mean has one setting and runs at once.
            assert_eq!((plan.studies(), search.len(), plan.unnamed(&search)), (4, 4 * (2 + 2), 4 * 2));
            // EASGD is better with four workers, Mean with eight.
            let error = |cell: &Cell| {
                let is_four = cell.recipe.train.workers == 4;
                Some(if is_four == (cell.recipe.method.name == Name::Easgd) { 0.1 } else { 0.2 })
            };
            let searched = find(&search, error);
            let found = find(&plan.cells(&searched).unwrap(), error);
            let results = crate::lab::Results::new(&plan, &found).unwrap();
            for (row, (workers, batch)) in [(4, 16), (4, 32), (8, 16), (8, 32)].into_iter().enumerate() {
                for method in [Name::Easgd, Name::Mean] {
                    let finals = results.finals(row, &method.into());
                    let own = |cell: &Cell| (cell.recipe.train.workers, cell.recipe.train.batch);
                    assert_eq!(finals.len(), 2);
                    assert!(finals.iter().all(|(cell, _)| own(cell) == (workers, batch)));
                }
                let network = format!("digits, train.batch={batch}");
                assert_eq!(results.setup(row), ["digits".into(), network, workers.to_string()]);
                assert_eq!(results.search(row, &Name::Easgd.into()).unwrap().1, 2);
            }
            let output = (plan.experiment.conclude)(&results).unwrap();
            for table in output.tables.iter().filter(|table| !table.name.ends_with("-differences")) {
                // The rows of a method can be told apart.
                let is_name = |&at: &usize| {
                    ["data", "network", "workers", "method"].contains(&&*table.table.header[at])
                };
                let names: Vec<Vec<&String>> = table
                    .table
                    .rows
                    .iter()
                    .map(|row| (0..row.len()).filter(is_name).map(|at| &row[at]).collect())
                    .collect();
                let different: std::collections::BTreeSet<_> = names.iter().collect();
                assert!(names.len() >= 4 && different.len() == names.len(), "{experiment}: {names:?}");
            }
            assert!(plan.manifest().contains("every = [\"train.workers=4\", \"train.batch=16\"]"));
        }
    }

    /// Without a single run that counts there are tables with dashes, and no number.
    #[test]
    fn tables_without_a_number_have_dashes() {
        let text =
            "[study]\nmethods = ['lgrawa', 'mean']\nseeds = [1, 2]\n[study.every]\ntrain.workers = [4, 8]\n";
        let own = Study::parse("own", text).unwrap().unwrap().set("train.workers=4").unwrap();
        let (_place, table1) = study("table1", text);
        let (_other, workers) = study("scalability", text);
        for plan in [table1, workers, Plan::compare("own", own).unwrap()] {
            let found = find(&plan.cells(&Found::new()).unwrap(), |_| None);
            let results = crate::lab::Results::new(&plan, &found).unwrap();
            let output = (plan.experiment.conclude)(&results).unwrap();
            let table = &output.tables[0];
            assert!(table.table.rows.iter().all(|row| row.contains(&"–".into())), "{:?}", table.table);
            assert!(table.caption.contains("runs diverged and are left out of means"), "{}", table.caption);
            assert!(!table.table.text().contains("NaN"), "{:?}", table.table);
        }
    }

    #[test]
    fn the_papers_way_runs_the_whole_grid_on_the_test_set() {
        let plan = plan("gap", &Request { select: Some(Select::Test), ..Request::default() });
        let cells = plan.cells(&Found::new()).unwrap();
        assert_eq!((cells.len(), plan.unnamed(&cells)), (7 * 2 * 3, 0));
        assert!(cells.iter().all(|cell| cell.stage == Stage::Final && cell.recipe.data.held_out == 0));
        // All seeds of one point were better.
        let found = find(&cells, |cell| Some(if cell.point == 1 { 0.1 } else { 0.2 }));
        let results = crate::lab::Results::new(&plan, &found).unwrap();
        let finals = results.finals(0, &Name::Easgd.into());
        assert!(finals.len() == 3 && finals.iter().all(|(cell, _)| cell.point == 1));
        assert!(results.remarks()[0].contains("CHOSEN ON THE TEST SET"));
    }

    /// What stands under a table is what was done: nothing was chosen where there was nothing to choose from.
    #[test]
    fn captions_tell_of_a_choice_only_where_there_was_one() {
        let place = tempfile::tempdir().unwrap();
        let grid = "[study.grid.mean]\nmethod.pull = [0.3, 0.5]\n";
        let other = "[study.grid.lgrawa]\nmethod.pull = [0.3, 0.5]\n";
        for (number, (grids, select, words)) in [
            (String::new(), Select::HeldOut, "No setting was searched for"),
            (String::new(), Select::Test, "No setting was searched for"),
            (grid.to_owned(), Select::HeldOut, "Where there was a grid (see Settings)"),
            (grid.to_owned(), Select::Test, "WHERE THERE WAS A GRID, SETTINGS WERE CHOSEN ON THE TEST SET"),
            (format!("{grid}{other}"), Select::HeldOut, "Each method's setting was chosen on held-out"),
            (format!("{grid}{other}"), Select::Test, "SETTINGS WERE CHOSEN ON THE TEST SET"),
        ]
        .into_iter()
        .enumerate()
        {
            let path = place.path().join(format!("{number}.toml"));
            let text = format!("[study]\nmethods = ['lgrawa', 'mean']\nseeds = [1, 2]\n{grids}");
            std::fs::write(&path, text).unwrap();
            let request = Request { recipes: vec![path], select: Some(select), ..Request::default() };
            let plan = plan("table1", &request);
            let searched = find(&plan.cells(&Found::new()).unwrap(), |_| Some(0.2));
            let found = find(&plan.cells(&searched).unwrap(), |_| Some(0.1));
            let output =
                (experiment("table1").unwrap().conclude)(&crate::lab::Results::new(&plan, &found).unwrap())
                    .unwrap();
            for table in &output.tables {
                let caption = &table.caption;
                assert!(table.name == "errors-differences" || caption.contains(words), "{caption}");
                let chosen = caption.to_lowercase().contains("chosen");
                assert!(!chosen || !words.starts_with("No setting"), "{caption}");
            }
        }
    }

    #[test]
    fn a_request_is_obeyed() {
        let request = Request {
            seeds: Some(5),
            methods: vec![Name::Mean.into()],
            settings: vec!["train.budget=8step".into(), "method.pull=0.2".into()],
            ..Request::default()
        };
        let plan = plan("table1", &request);
        // One value is left for each key: nothing to search, and one row for each of two networks.
        let cells = plan.cells(&Found::new()).unwrap();
        assert_eq!((cells.len(), plan.unnamed(&cells)), (10, 0));
        assert_eq!(cells.iter().take(5).map(Cell::seed).collect::<Vec<_>>(), [36, 720, 1042, 1043, 1044]);
        assert!(cells.iter().all(|cell| cell.recipe.train.budget == grawa_core::Amount::Steps(8)));
        let names: std::collections::BTreeSet<&str> = cells.iter().map(|cell| cell.name.as_str()).collect();
        assert_eq!(names.len(), cells.len());
        for (request, words) in [
            (Request { settings: vec!["train.seed=1".into()], ..Request::default() }, "--seeds"),
            (Request { methods: vec![Name::Grawa.into()], ..Request::default() }, "none of the methods"),
            (Request { settings: vec!["train.bugdet=1step".into()], ..Request::default() }, "did you mean"),
        ] {
            let error = Plan::new(experiment("table1").unwrap(), &request).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(words), "{error}");
        }
        let chosen = Request { select: Some(Select::HeldOut), ..Request::default() };
        assert!(
            Plan::new(experiment("gradnorm").unwrap(), &chosen).unwrap_err().to_string().contains("no grid")
        );
    }

    /// Own pictures count as what they are; where they are not, nothing is made up.
    #[test]
    fn class_folders_are_counted_or_left_out() {
        let place = tempfile::tempdir().unwrap();
        for part in ["train", "val"] {
            for (class, number) in (0..6).map(|number| (["cat", "dog", "elk"][number % 3], number)) {
                let folder = place.path().join(part).join(class);
                std::fs::create_dir_all(&folder).unwrap();
                image(&folder.join(format!("{number}.png")));
            }
        }
        let ask = |dir: &Path| {
            let settings = [
                "data.kind=folder".to_owned(),
                format!("data.dir={:?}", dir.display().to_string()),
                "data.augment=none".to_owned(),
                "train.budget=10epoch".to_owned(),
            ];
            plan("gap", &Request { settings: settings.into(), ..Request::default() })
        };
        let here = ask(place.path());
        let cells = here.cells(&Found::new()).unwrap();
        // Five of six pictures ten times, three passes, over the digits' network at 32 × 32 with three classes.
        let facts = grawa_train::recipe::Facts {
            examples: 6,
            classes: 3,
            shape: grawa_data::Shape::new(3, 32, 32),
            data_bytes: 0,
        };
        let dp = cells.iter().find(|cell| cell.recipe.method.name == Name::DpSgd).unwrap();
        assert_eq!(dp.recipe.data.held_out, 1);
        let flops = facts.network(&dp.recipe).unwrap().flops() as f64;
        assert_eq!(dp.work, Some(50.0 * 3.0 * flops));
        let notes = here.notes();
        assert!(notes.len() == 1 && notes[0].contains("6 training images of 3 classes"), "{notes:?}");
        let cost = here.cost(&cells);
        let named: f64 = cells.iter().filter_map(|cell| cell.work).sum();
        assert!(cost.1 == 0 && (cost.0 / named - 2.5).abs() < 1e-9, "{cost:?} {named}");

        let away = ask(&place.path().join("nowhere"));
        let cells = away.cells(&Found::new()).unwrap();
        assert!(cells.iter().all(|cell| cell.work.is_none()));
        assert_eq!(away.cost(&cells), (0.0, 14 + 21));
        let notes = away.notes();
        assert!(
            notes.len() == 1 && notes[0].contains("cost unknown") && notes[0].contains("nowhere"),
            "{notes:?}"
        );
    }

    /// A picture of 32 × 32.
    fn image(path: &Path) {
        let root = crate::picture::Picture::draw(32, 32, |_| Ok(())).unwrap();
        std::fs::write(path, root.png().unwrap()).unwrap();
    }

    /// Every experiment can be planned at every scale, and the paper's has the paper's grids.
    #[test]
    fn every_scale_has_its_cells() {
        use crate::lab::{EXPERIMENTS, Scale};
        for experiment in &EXPERIMENTS {
            for &scale in Scale::ALL {
                let plan = Plan::new(experiment, &Request { scale, ..Request::default() }).unwrap();
                let cells = plan.cells(&Found::new()).unwrap();
                assert!(
                    !cells.is_empty() && cells.iter().all(|cell| cell.work.is_some_and(|work| work > 1e6)),
                    "{}",
                    experiment.name
                );
                if scale == Scale::Paper && experiment.name == "table1" {
                    // Six studies with 9 + 12 + 3·12 + 2·6 points, ImageNet with 9 + 12 + 3·12 + 2·2.
                    assert_eq!((cells.len(), plan.unnamed(&cells)), (6 * 69 + 61, 7 * 7 * 3));
                    let published =
                        cells.iter().filter(|cell| cell.recipe.data.kind != grawa_data::DatasetKind::Folder);
                    assert!(published.clone().all(|cell| cell.recipe.data.held_out == 5_000));
                    // ImageNet is not here: three passes of 8.18 GFLOP over 1.28 million images, 90 times.
                    let own = |cell: &&Cell| cell.recipe.data.kind == grawa_data::DatasetKind::Folder;
                    let plain =
                        cells.iter().filter(own).find(|cell| cell.recipe.method.name == Name::DpSgd).unwrap();
                    let expected = 3.0 * 8.18e9 * (1_281_167.0 - 5_000.0) * 90.0;
                    assert!((plain.work.unwrap() / expected - 1.0).abs() < 0.02, "{:?}", plain.work);
                    let notes = plan.notes();
                    assert!(notes.len() == 1 && notes[0].contains("published size"), "{notes:?}");
                    // 61 searches and 7 methods with three seeds each.
                    let cost = plan.cost(&cells);
                    let searches: f64 = cells.iter().filter(own).filter_map(|cell| cell.work).sum();
                    assert!(cost.1 == 0 && cost.0 > searches * 1.3 && searches > 61.0 * expected);
                }
                if scale == Scale::Paper && experiment.name == "gradnorm" {
                    assert_eq!(cells.len(), 243);
                }
            }
        }
    }
}
