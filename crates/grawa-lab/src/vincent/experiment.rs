//! The Vincent experiment as a whole: from what was asked for to the files and the table a user gets.

use super::draw::{self, Backdrop};
use super::landscape::{VALLEYS, bottom, curvature, value};
use super::record::{Cell, End, Outcome, Path};
use super::run;
use super::setting::{Edge, Setting};
use super::sweep::{Grid, sweep};
use crate::page::page;
use crate::picture::{Picture, palette};
use crate::{Error, Folder, Table};
use grawa_core::Method;
use rayon::prelude::*;

/// What is asked for: methods, and the setting they share.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// The methods, each name once.
    pub methods: Vec<Method>,
    /// The learning rate.
    pub rate: f64,
    /// Local steps of every worker.
    pub steps: u64,
    /// Where the workers start.
    pub starts: Vec<[f64; 2]>,
    /// What happens at the edge.
    pub edge: Edge,
}

impl Experiment {
    /// Whether this can be run.
    pub fn check(&self) -> Result<(), Error> {
        let mut seen = Vec::new();
        for method in &self.methods {
            if seen.contains(&method.name) {
                return Err(Error::MethodTwice { method: method.name.to_string() });
            }
            seen.push(method.name);
            self.setting(method).check()?;
        }
        if seen.is_empty() { Err(Error::NoMethod) } else { Ok(()) }
    }

    /// The settings as TOML: what decides the results, and nothing else.
    pub fn settings(&self, grid: Option<&Grid>) -> String {
        let list = |items: Vec<String>| format!("[{}]", items.join(", "));
        let methods = list(self.methods.iter().map(|method| format!("\"{method}\"")).collect());
        let starts = list(self.starts.iter().map(|[x, y]| format!("[{x:?}, {y:?}]")).collect());
        let steps = self.steps;
        let swept = match grid {
            None => format!("rate = {:?}\nedge = \"{}\"\n", self.rate, self.edge),
            Some(grid) => format!(
                "sweep_pulls = {:?}\nsweep_rates = {:?}\nsweep_edges = {:?}\n",
                grid.pulls,
                grid.rates,
                grid.edges.iter().map(|edge| edge.as_str()).collect::<Vec<_>>()
            ),
        };
        format!(
            "# Written by grawa {}. The same settings give the same files.\nexperiment = \"vincent\"\n\
             methods = {methods}\nsteps = {steps}\nstarts = {starts}\n{swept}",
            env!("CARGO_PKG_VERSION")
        )
    }

    fn setting(&self, method: &Method) -> Setting {
        Setting {
            method: method.clone(),
            rate: self.rate,
            steps: self.steps,
            starts: self.starts.clone(),
            edge: self.edge,
        }
    }

    /// Runs every method once, puts pictures, page and tables into the folder, and returns where each ended.
    pub fn run(&self, folder: &mut Folder) -> Result<Table, Error> {
        self.check()?;
        let settings: Vec<Setting> = self.methods.iter().map(|method| self.setting(method)).collect();
        let paths = settings.par_iter().map(run::run).collect::<Result<Vec<Path>, Error>>()?;
        let table = table_of_ends(&paths);
        let map = Backdrop::of(&paths)?;

        // The surface takes longest to draw, so it goes first.
        let surface =
            ("surface".to_owned(), "The Vincent function: equally deep, unequally wide valleys".to_owned());
        let ends = ("ends".to_owned(), "Where each method ends".to_owned());
        let ways = paths.iter().map(|path| {
            let label = palette::look(&path.method).label;
            (
                format!("trajectory-{}", path.method),
                format!("The way of the workers and of the centre with {label}"),
            )
        });
        let names: Vec<(String, String)> = [surface, ends].into_iter().chain(ways).collect();
        let drawn = (names.par_iter().enumerate().with_max_len(1))
            .map(|(index, _)| {
                let picture = match index {
                    0 => draw::surface(),
                    1 => draw::ends(&map, &paths),
                    way => draw::trajectory(&map, &paths[way - 2]),
                }?;
                let png = picture.png()?;
                Ok((picture, png))
            })
            .collect::<Result<Vec<(Picture, Vec<u8>)>, Error>>()?;

        // Reading order: the map first, the surface last.
        let mut figures: Vec<(String, &Picture)> =
            names.iter().zip(&drawn).map(|((_, caption), (picture, _))| (caption.clone(), picture)).collect();
        figures.rotate_left(1);
        folder.put(
            "index.html",
            page("Methods on the Vincent function", &self.introduction(), &table, &figures),
        );
        for ((name, _), (picture, png)) in names.iter().zip(drawn) {
            folder.put(format!("{name}.svg"), picture.svg());
            folder.put(format!("{name}.png"), png);
        }
        folder.put("ends.csv", csv_of_ends(&paths).csv());
        Ok(table)
    }

    /// Runs every method in every setting of the grid, puts maps and tables into the folder, and returns how
    /// often each method ended where.
    pub fn sweep(&self, grid: &Grid, folder: &mut Folder, done: impl Fn() + Sync) -> Result<Table, Error> {
        for &edge in &grid.edges {
            Experiment { edge, ..self.clone() }.check()?;
        }
        let cells = sweep(grid, &self.methods, &self.setting(&self.methods[0]), done)?;
        folder.put("sweep.csv", csv_of_cells(&cells).csv());
        let table = table_of_cells(&cells);
        folder.put("valleys.csv", table.csv());
        let maps = (grid.edges.par_iter())
            .map(|edge| {
                let cells: Vec<Cell> =
                    cells.iter().filter(|cell| cell.edge == edge.as_str()).cloned().collect();
                let picture = draw::sweep(edge.as_str(), &cells)?;
                let png = picture.png()?;
                Ok((format!("Where each method ends, edge rule '{edge}'"), edge, picture, png))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let figures: Vec<(String, &Picture)> =
            maps.iter().map(|(caption, _, picture, _)| (caption.clone(), picture)).collect();
        let words = vec![format!(
            "Each method was run in {} settings: {} pulls λ × {} learning rates × {} edge rules, {} local steps from {} starts. \
             The table counts in which valley the runs ended, named by the bottom of the sharper of its two axes.",
            grid.len(),
            grid.pulls.len(),
            grid.rates.len(),
            grid.edges.len(),
            self.steps,
            self.starts.len()
        )];
        folder.put("index.html", page("Which valley each method ends in", &words, &table, &figures));
        for (_, edge, picture, png) in &maps {
            folder.put(format!("sweep-{edge}.svg"), picture.svg());
            folder.put(format!("sweep-{edge}.png"), png.clone());
        }
        Ok(table)
    }

    fn introduction(&self) -> Vec<String> {
        let period = self.methods.first().map_or(0, |method| method.period);
        let edge = match self.edge {
            Edge::None => "Steps may leave the square that is shown".to_owned(),
            Edge::Clip => "Steps that leave the square end on its edge".to_owned(),
            Edge::Reflect => "Steps that leave the square are mirrored at its edge".to_owned(),
        };
        vec![
            "f(x, y) = −sin(10 ln x) − sin(10 ln y) has many minima, all of the value −2. Along each axis every valley is \
             1.87 times as wide as the one before it, so that the valley in which a method ends tells how much the method \
             likes flat places."
                .into(),
            format!(
                "{} workers took {} steps of plain SGD at a learning rate of {}, with a pull toward the centre after every \
                 {period} steps. {edge}.",
                self.starts.len(), self.steps, self.rate
            ),
            format!("The methods: {}.", self.methods.iter().map(Method::to_string).collect::<Vec<_>>().join("; ")),
        ]
    }
}

fn table_of_ends(paths: &[Path]) -> Table {
    let mut table = Table::new(["method", "ended at", "f", "curvature x", "curvature y", "remark"]);
    for path in paths {
        let End { at, outcome, spread } = path.end;
        let [kx, ky] = curvature(at);
        let mut remarks = Vec::new();
        match outcome {
            Outcome::Valley(..) => {}
            Outcome::Split => {
                remarks.push(format!("the workers are split, up to {spread:.2} from this point"));
            }
            Outcome::Unsettled => remarks.push("not at the bottom of a valley".into()),
            Outcome::Lost => remarks.push("left the domain".into()),
        }
        if path.replaced > 0 {
            remarks.push(format!("workers that left the domain were replaced {} times", path.replaced));
        }
        let label = palette::look(&path.method).label.to_owned();
        let short = |x: f64| if x.abs() < 1e6 { format!("{x:.3}") } else { format!("{x:.2e}") };
        let point = format!("({}, {})", short(at[0]), short(at[1]));
        let number = |x: f64, digits: usize| format!("{x:.digits$}").replace('-', "−");
        table.push([label, point, number(value(at), 4), number(kx, 2), number(ky, 2), remarks.join("; ")]);
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

fn csv_of_ends(paths: &[Path]) -> Table {
    let mut table =
        Table::new(["method", "x", "y", "f", "curvature_x", "curvature_y", "spread", "outcome", "replaced"]);
    for path in paths {
        let End { at, outcome, spread } = path.end;
        let [kx, ky] = curvature(at);
        let numbers = [at[0], at[1], value(at), kx, ky, spread].map(|x| x.to_string());
        let cells = [
            vec![path.method.clone()],
            numbers.into(),
            vec![word(outcome).into(), path.replaced.to_string()],
        ];
        table.push(cells.concat());
    }
    table
}

fn csv_of_cells(cells: &[Cell]) -> Table {
    let mut table = Table::new([
        "edge", "method", "rate", "pull", "x", "y", "f", "spread", "outcome", "valley_x", "valley_y",
    ]);
    for cell in cells {
        let End { at, outcome, spread } = cell.end;
        let (vx, vy) = match outcome {
            Outcome::Valley(x, y) => (x.to_string(), y.to_string()),
            Outcome::Split | Outcome::Unsettled | Outcome::Lost => Default::default(),
        };
        let numbers = [cell.rate, cell.pull, at[0], at[1], value(at), spread].map(|x| x.to_string());
        let cells = [
            vec![cell.edge.clone(), cell.method.clone()],
            numbers.into(),
            vec![word(outcome).into(), vx, vy],
        ];
        table.push(cells.concat());
    }
    table
}

/// For each edge rule and method, in how many settings it ended in which valley; the sharper axis decides.
fn table_of_cells(cells: &[Cell]) -> Table {
    let valleys = VALLEYS.rev().map(|index| format!("{:.2}", bottom(index)));
    let columns = ["edge".into(), "method".into(), "flatter".into()].into_iter().chain(valleys);
    let mut table = Table::new(columns.chain(["sharper", "unsettled", "split", "lost"].map(Into::into)));
    let mut rows: Vec<(&str, &str)> =
        cells.iter().map(|cell| (cell.edge.as_str(), cell.method.as_str())).collect();
    rows.dedup();
    for (edge, method) in rows {
        let of = || {
            cells
                .iter()
                .filter(move |cell| cell.edge == edge && cell.method == method)
                .map(|cell| cell.end.outcome)
        };
        let sharper = || {
            of().filter_map(|outcome| if let Outcome::Valley(x, y) = outcome { Some(x.min(y)) } else { None })
        };
        let (low, high) = (*VALLEYS.start(), *VALLEYS.end());
        let mut counts = vec![sharper().filter(|&v| v > high).count()];
        counts.extend(VALLEYS.rev().map(|index| sharper().filter(|&v| v == index).count()));
        counts.push(sharper().filter(|&v| v < low).count());
        counts.extend(
            [Outcome::Unsettled, Outcome::Split, Outcome::Lost]
                .map(|what| of().filter(|&outcome| outcome == what).count()),
        );
        let label = palette::look(method).label;
        table.push([edge.into(), label.to_owned()].into_iter().chain(counts.iter().map(usize::to_string)));
    }
    table
}
