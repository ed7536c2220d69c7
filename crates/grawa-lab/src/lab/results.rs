//! Finished cells by study, method and seed.

use super::cell::{Cell, Found, Stage};
use super::finding::{Finding, Measured};
use super::plan::{Plan, Select};
use crate::picture::Picture;
use crate::statistics::mean;
use crate::{Error, Figure, Table, TableOutput};
use grawa_train::recipe::{Device, Variant};

/// The finished cells of a plan.
#[derive(Debug)]
pub struct Results<'a> {
    /// The plan.
    pub plan: &'a Plan,
    cells: Vec<(Cell, &'a Finding)>,
}

impl<'a> Results<'a> {
    /// The cells of a plan that have been found.
    pub fn new(plan: &'a Plan, found: &'a Found) -> Result<Self, Error> {
        let cells = plan.cells(found)?.into_iter();
        let cells = cells.filter_map(|cell| found.get(&cell.name).map(|finding| (cell, finding))).collect();
        Ok(Results { plan, cells })
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (&Cell, &'a Finding)> {
        self.cells.iter().map(|(cell, finding)| (cell, *finding))
    }

    /// Those of a method at a stage.
    fn at(&self, stage: Stage, study: usize, method: &Variant) -> Vec<(&Cell, &'a Finding)> {
        let own = |cell: &Cell| cell.stage == stage && cell.study == study && cell.variant == *method;
        self.all().filter(|(cell, _)| own(cell)).collect()
    }

    /// The runs that count for a method: after a search those of the chosen setting.
    pub fn finals(&self, study: usize, method: &Variant) -> Vec<(&Cell, &'a Finding)> {
        let all = self.at(Stage::Final, study, method);
        let chosen = if self.plan.experiment.search { best(&all) } else { None };
        all.into_iter().filter(|(cell, _)| chosen.is_none_or(|chosen| cell.point == chosen)).collect()
    }

    /// The error of the chosen setting in its search, in percent, and the number of settings.
    pub fn search(&self, study: usize, method: &Variant) -> Option<(f64, usize)> {
        let point = self.finals(study, method).first()?.0.point;
        let searched = self.at(Stage::Search, study, method);
        let chosen = searched.iter().find(|(cell, _)| cell.point == point)?;
        Some((100.0 * chosen.1.measured()?.test.error, searched.len()))
    }

    /// A number of a method's runs, seed by seed; runs that were lost or that do not have it are left out.
    pub fn values(
        &self,
        study: usize,
        method: &Variant,
        figure: &dyn Fn(&Measured) -> Option<f64>,
    ) -> Vec<(u64, f64)> {
        let finals = self.finals(study, method).into_iter();
        finals.filter_map(|(cell, finding)| Some((cell.seed(), figure(finding.measured()?)?))).collect()
    }

    /// Data, network and workers of a study. What else `study.every` sets there follows the network.
    pub fn setup(&self, study: usize) -> [String; 3] {
        let mut all = self.all();
        let Some((cell, _)) = all.find(|(cell, _)| cell.study == study) else { return Default::default() };
        let is_shown = |setting: &&String| {
            ["data.kind=", "model.name=", "model.width=", "train.workers="]
                .iter()
                .any(|key| setting.starts_with(key))
        };
        let others = self.plan.row(study).iter().filter(|setting| !is_shown(setting)).cloned();
        let network = [cell.network()].into_iter().chain(others).collect::<Vec<_>>().join(", ");
        [cell.recipe.data.kind.to_string(), network, cell.recipe.train.workers.to_string()]
    }

    /// The same as a title.
    pub(super) fn title(&self, study: usize) -> String {
        let [data, network, workers] = self.setup(study);
        format!("{data}, {network}, {workers} workers")
    }

    /// How settings were chosen.
    fn choice(&self) -> String {
        let all: Vec<(usize, &Variant)> = (0..self.plan.studies())
            .flat_map(|study| self.plan.methods(study).iter().map(move |method| (study, method)))
            .collect();
        let is_searched = |&&(study, method): &&(usize, &Variant)| match self.plan.select {
            Select::HeldOut => !self.at(Stage::Search, study, method).is_empty(),
            Select::Test => self.at(Stage::Final, study, method).iter().any(|(cell, _)| cell.point > 0),
        };
        let searched = all.iter().filter(is_searched).count();
        if searched == 0 {
            return "No setting was searched for: every method has those of its recipe.".into();
        }
        let some = searched < all.len();
        match (self.plan.select, some) {
            (Select::HeldOut, false) => "Each method's setting was chosen on held-out training examples with a seed of its own, then run on the whole training set with fresh seeds.".into(),
            (Select::HeldOut, true) => "Where there was a grid (see Settings), a method's setting was chosen on held-out training examples with a seed of its own, then run on the whole training set with fresh seeds; other methods have the settings of their recipe.".into(),
            (Select::Test, false) => "SETTINGS WERE CHOSEN ON THE TEST SET (the paper's way): errors are too low by the luck of the choice, and the more so the larger the grid.".into(),
            (Select::Test, true) => "WHERE THERE WAS A GRID, SETTINGS WERE CHOSEN ON THE TEST SET (the paper's way): those errors are too low by the luck of the choice, and the more so the larger the grid. Other methods have the settings of their recipe.".into(),
        }
    }

    /// A table for the output. Remarks on all cells follow its rule.
    pub(super) fn table(
        &self,
        (name, title, rule): (&str, &str, &str),
        table: Table,
        bold: Vec<(usize, usize)>,
    ) -> TableOutput {
        let caption = [rule.to_owned()].into_iter().chain(self.remarks()).collect::<Vec<_>>().join(" ");
        TableOutput { name: name.into(), title: title.into(), caption, table, bold, exact: None }
    }

    /// A picture of a study for the output. Its file has the study's number where there are several.
    pub(super) fn figure(&self, (name, study): (&str, usize), caption: String, picture: Picture) -> Figure {
        let several = self.plan.studies() > 1;
        let name = if several { format!("{name}-{}", study + 1) } else { name.into() };
        Figure { name, caption, picture }
    }

    /// Sentences for every caption: how settings were chosen, lost runs, programs, device.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.plan.experiment.search {
            remarks.push(self.choice());
        }
        let lost = self.all().filter(|(_, finding)| finding.measured().is_none()).count();
        if lost > 0 {
            remarks.push(format!("{lost} of {} runs diverged and are left out of means.", self.cells.len()));
        }
        let mut programs: Vec<&str> = self.all().map(|(_, finding)| finding.program.as_str()).collect();
        programs.sort_unstable();
        programs.dedup();
        if programs.len() > 1 {
            remarks.push(format!("Cells were measured by different programs: {}.", programs.join(", ")));
        }
        if self.all().any(|(cell, _)| cell.recipe.machine.device != Device::Cpu) {
            remarks.push("Trained on a GPU.".into());
        }
        remarks
    }
}

/// The point with the smallest mean test error.
fn best(finals: &[(&Cell, &Finding)]) -> Option<usize> {
    let error = |finding: &Finding| finding.measured().map_or(f64::INFINITY, |measured| measured.test.error);
    let mut points: Vec<usize> = finals.iter().map(|(cell, _)| cell.point).collect();
    points.sort_unstable();
    points.dedup();
    let of = |point: usize| {
        let errors = finals.iter().filter(|(cell, _)| cell.point == point).map(|(_, finding)| error(finding));
        mean(&errors.collect::<Vec<_>>())
    };
    points.into_iter().min_by(|&a, &b| of(a).total_cmp(&of(b)))
}
