//! `grawa vincent`: the paper's motivating example as pictures and a table.

use crate::bar::bar;
use crate::failure::Failure;
use crate::output::print;
use clap::Args;
use clap::builder::PossibleValuesParser;
use grawa_core::Method;
use grawa_toy::vincent::{CORNERS, Edge, Experiment, Grid, method, methods};
use grawa_toy::{Error, Folder};
use std::path::PathBuf;

/// The paper's motivating example: which valley does each method end in?
///
/// Four workers descend f(x, y) = −sin(10 ln x) − sin(10 ln y), whose valleys are equally deep and unequally wide,
/// each with plain SGD, and every few steps a method pulls them toward its centre. Writes a contour map with the
/// final point of every method, the way of the workers with each method (SVG and PNG), one page with
/// all of them (index.html) and the table (CSV, Markdown); prints where each method ended, with the eigenvalues of the Hessian there
/// (it is diagonal: the curvature along x and y). Smaller is flatter.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa vincent\n  grawa vincent --method lsgd --method lgrawa:score_momentum=0 --pull 0.3 --edge clip\n  grawa vincent --sweep --out sweep"
)]
pub(crate) struct Arguments {
    /// A method with rounds, with any of its knobs, such as lgrawa:pull=0.3; repeat for several [default: every method with rounds;
    /// `grawa methods` lists them and explains the knobs]
    #[arg(long, value_name = "METHOD")]
    method: Vec<String>,
    /// λ, how far a round moves a worker to the centre: 0 not at all, 1 all the way. EASGD's centre moves at the same rate
    #[arg(
        long,
        value_name = "λ",
        default_value_t = 0.5,
        conflicts_with = "sweep",
        allow_negative_numbers = true
    )]
    pull: f64,
    /// Learning rate of plain SGD
    #[arg(long, default_value_t = 0.01, conflicts_with = "sweep", allow_negative_numbers = true)]
    lr: f64,
    /// τ, local steps between pulls
    #[arg(long, value_name = "τ", default_value_t = 4)]
    period: u32,
    /// Local steps of every worker
    #[arg(long, default_value_t = 1200)]
    steps: u64,
    /// Where a worker starts; repeat for several [default: the corners 0.25,0.25 0.25,10 10,0.25 10,10]
    #[arg(long, value_name = "X,Y", value_parser = point, allow_hyphen_values = true)]
    start: Vec<[f64; 2]>,
    /// A step that leaves the square [0.25, 10]²: none lets it go (f is defined for all positive x, y), clip ends it
    /// on the edge, reflect mirrors it
    #[arg(long, default_value = "none", conflicts_with = "sweep", value_parser = PossibleValuesParser::new(Edge::ALL.map(Edge::as_str)))]
    edge: String,
    /// Map, over 20 pulls × 18 learning rates × 3 edge rules, which valley each method ends in
    #[arg(long)]
    sweep: bool,
    /// Folder for the results; must be new, empty, or hold the same results [default: out/vincent, or the next free name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn point(text: &str) -> Result<[f64; 2], String> {
    let wrong = || format!("'{text}' should be two numbers, as in 0.25,10");
    let (x, y) = text.split_once(',').ok_or_else(wrong)?;
    Ok([x.trim().parse().map_err(|_| wrong())?, y.trim().parse().map_err(|_| wrong())?])
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let read = |text: &str| method(text, arguments.pull, arguments.period);
    let chosen: Vec<Method> = match arguments.method.as_slice() {
        [] => methods().map(|name| read(name.as_str())).collect::<Result<_, _>>()?,
        some => some.iter().map(|text| read(text)).collect::<Result<_, _>>()?,
    };
    let experiment = Experiment {
        methods: chosen,
        rate: arguments.lr,
        steps: arguments.steps,
        starts: if arguments.start.is_empty() { CORNERS.into() } else { arguments.start.clone() },
        // clap accepts no other name.
        edge: Edge::ALL.into_iter().find(|edge| edge.as_str() == arguments.edge).unwrap_or_default(),
    };
    experiment.check()?;
    let is_swept = |text: &&String| {
        text.split([':', ','])
            .any(|part| matches!(part.split('=').next().map(str::trim), Some("pull" | "rate")))
    };
    if let Some(method) = arguments.method.iter().filter(|_| arguments.sweep).find(is_swept) {
        let why = format!("a sweep sets pull and rate itself; leave them out of '{method}'");
        return Err(Error::Setting(why).into());
    }
    let grid = arguments.sweep.then(Grid::default);
    let settings = experiment.settings(grid.as_ref());
    let mut folder = Folder::claim_or_next(arguments.out.as_deref(), "out/vincent", &settings)?;
    let output = match grid {
        None => experiment.run()?,
        Some(grid) => {
            let bar = bar((grid.size() * experiment.methods.len()) as u64, "sweep");
            let output = experiment.sweep(&grid, || bar.inc(1))?;
            bar.finish_and_clear();
            let count = grid.pulls.len() * grid.rates.len();
            print(&format!("Of {count} settings, how many ended in the valley at"));
            output
        }
    };
    output.put(&mut folder)?;
    let path = folder.finish()?;
    output.tables.iter().for_each(|table| print(&table.table.text()));
    print(&format!("Pictures, page and tables: {}", path.join("index.html").display()));
    Ok(())
}
