//! What a user gets from the Vincent experiment: tables and pictures.

use super::draw::{self, Backdrop};
use super::edge::Edge;
use super::experiment::Experiment;
use super::landscape::{VALLEYS, bottom, curvature, value};
use super::run::{End, Outcome, Path};
use super::sweep::{Cell, Grid};
use crate::picture::palette;
use crate::{Error, Figure, Output, Table, TableOutput};
use grawa_core::Method;
use rayon::prelude::*;

impl Experiment {
    /// Runs every method once: where each ended, and its path.
    pub fn run(&self) -> Result<Output, Error> {
        self.check()?;
        let paths: Vec<Path> =
            self.methods.par_iter().map(|method| self.trace(method)).collect::<Result<_, _>>()?;
        let map = Backdrop::of(&paths);
        let picture = draw::ends(&map, &paths)?;
        let mut figures =
            vec![Figure { name: "ends".into(), caption: "Where each method ends".into(), picture }];
        for path in &paths {
            let caption = format!("The way of the workers and of the centre with {}", path.label);
            let picture = draw::trajectory(&map, path)?;
            figures.push(Figure { name: format!("trajectory-{}", path.method), caption, picture });
        }
        let ends = TableOutput {
            name: "ends".into(),
            title: "Where each method ends".into(),
            table: table_of_ends(&paths),
            exact: Some(csv_of_ends(&paths)),
            ..TableOutput::default()
        };
        Ok(Output {
            title: "Methods on the Vincent function".into(),
            paragraphs: self.introduction(),
            tables: vec![ends],
            figures,
            data: Vec::new(),
        })
    }

    /// Runs every method in every setting of the grid: how often each ended where, with a map for every edge rule.
    pub fn sweep(&self, grid: &Grid, done: impl Fn() + Sync) -> Result<Output, Error> {
        let cells = self.cells(grid, done)?;
        let draw = |&edge: &Edge| {
            let caption = format!("Where each method ends, edge rule '{edge}'");
            Ok(Figure { name: format!("sweep-{edge}"), caption, picture: draw::sweep(grid, edge, &cells)? })
        };
        let words = format!(
            "Each method was run in {} settings: {} pulls λ × {} learning rates × {} edge rules, {} local steps from {} starts. \
             The table counts in which valley the runs ended, named by the bottom of the sharper of its two axes.",
            grid.size(),
            grid.pulls.len(),
            grid.rates.len(),
            grid.edges.len(),
            self.steps,
            self.starts.len()
        );
        let valleys = TableOutput {
            name: "valleys".into(),
            title: "How often each method ends in which valley".into(),
            table: table_of_cells(&cells),
            ..TableOutput::default()
        };
        Ok(Output {
            title: "Which valley each method ends in".into(),
            paragraphs: vec![words],
            tables: vec![valleys],
            figures: grid.edges.par_iter().map(draw).collect::<Result<_, Error>>()?,
            data: vec![("sweep.csv".into(), csv_of_cells(&cells))],
        })
    }

    fn introduction(&self) -> Vec<String> {
        let period = self.methods.first().map_or(0, |method| method.period);
        let edge = match self.edge {
            Edge::None => "Steps may leave the square that is shown",
            Edge::Clip => "Steps that leave the square end on its edge",
            Edge::Reflect => "Steps that leave the square are mirrored at its edge",
        };
        let methods = self.methods.iter().map(Method::to_string).collect::<Vec<_>>();
        vec![
            "f(x, y) = −sin(10 ln x) − sin(10 ln y) has many minima, all of the value −2. Along each axis every valley is \
             1.87 times as wide as the one before it, so that the valley in which a method ends tells how much the method \
             likes flat places."
                .into(),
            format!(
                "{} workers took {} steps of plain SGD at a learning rate of {}, with a pull toward the centre after every \
                 {period} steps. {edge}.",
                self.starts.len(),
                self.steps,
                self.rate
            ),
            format!("The methods: {}.", methods.join("; ")),
        ]
    }
}

fn table_of_ends(paths: &[Path]) -> Table {
    let mut table = Table::new(["method", "ended at", "f", "curvature x", "curvature y", "remark"]);
    for path in paths {
        let End { at, outcome, .. } = path.end;
        let mut remark = outcome.remark().to_owned();
        if path.replaced > 0 {
            remark += &format!(" (workers that left the domain were replaced {} times)", path.replaced);
        }
        let [x, y] = at.map(|x| if x.abs() < 1e6 { format!("{x:.3}") } else { format!("{x:.2e}") });
        let number = |x: f64, digits: usize| format!("{x:.digits$}").replace('-', "−");
        let [kx, ky] = curvature(at).map(|x| number(x, 2));
        table.push([
            path.label.clone(),
            format!("({x}, {y})"),
            number(value(at), 4),
            kx,
            ky,
            remark.trim_start().into(),
        ]);
    }
    table
}

fn csv_of_ends(paths: &[Path]) -> Table {
    let mut table =
        Table::new(["method", "x", "y", "f", "curvature_x", "curvature_y", "spread", "outcome", "replaced"]);
    for path in paths {
        let (End { at, spread, .. }, [kx, ky]) = (path.end, curvature(path.end.at));
        let mut row = vec![path.method.to_owned()];
        row.extend([at[0], at[1], value(at), kx, ky, spread].map(|x| x.to_string()));
        row.extend([word(path.end.outcome).into(), path.replaced.to_string()]);
        table.push(row);
    }
    table
}

fn csv_of_cells(cells: &[Cell]) -> Table {
    let mut table = Table::new([
        "edge", "method", "rate", "pull", "x", "y", "f", "spread", "outcome", "valley_x", "valley_y",
    ]);
    for cell in cells {
        let End { at, outcome, spread } = cell.end;
        let mut row = vec![cell.edge.to_string(), cell.method.to_owned()];
        row.extend([cell.rate, cell.pull, at[0], at[1], value(at), spread].map(|x| x.to_string()));
        row.push(word(outcome).into());
        row.extend(match outcome {
            Outcome::Valley(x, y) => [x, y].map(|valley| valley.to_string()),
            Outcome::Split | Outcome::Unsettled | Outcome::Lost => Default::default(),
        });
        table.push(row);
    }
    table
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Valley(..) => "valley",
        Outcome::Split => "split",
        Outcome::Unsettled => "unsettled",
        Outcome::Lost => "lost",
    }
}

/// For each edge rule and method, the number of settings that ended in each valley; the sharper axis counts.
fn table_of_cells(cells: &[Cell]) -> Table {
    let valleys = VALLEYS.rev().map(|index| format!("{:.2}", bottom(index)));
    let columns = ["edge".into(), "method".into(), "flatter".into()].into_iter().chain(valleys);
    let mut table = Table::new(columns.chain(["sharper", "unsettled", "split", "lost"].map(Into::into)));
    for own in cells.chunk_by(|a, b| (a.edge, a.method) == (b.edge, b.method)) {
        let (low, high) = (*VALLEYS.start(), *VALLEYS.end());
        // One valley beyond either end of the range stands for all.
        let sharper = |cell: &Cell| match cell.end.outcome {
            Outcome::Valley(x, y) => Some(x.min(y).clamp(low - 1, high + 1)),
            Outcome::Split | Outcome::Unsettled | Outcome::Lost => None,
        };
        let in_valley = |index: i32| own.iter().filter(|cell| sharper(cell) == Some(index)).count();
        let ended = |outcome| own.iter().filter(|cell| cell.end.outcome == outcome).count();
        let counts = (low - 1..=high + 1).rev().map(in_valley);
        let counts = counts.chain([Outcome::Unsettled, Outcome::Split, Outcome::Lost].map(ended));
        let words = [own[0].edge.to_string(), palette::look(own[0].method).label.to_owned()];
        table.push(words.into_iter().chain(counts.map(|count| count.to_string())));
    }
    table
}
