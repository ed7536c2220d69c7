//! The measurements of one checkpoint, and the picture of its spectrum.

use crate::picture::chart::{Chart, Line};
use crate::{Error, Folder, Table};
use grawa_flat::{Estimate, Figures, Settings, density, four_digits};

/// Points at which the density is drawn.
const PLACES: usize = 801;
/// The width of the kernels, as a share of the spectrum's length.
const WIDTH: f64 = 0.004;
/// Densities below this share of the highest are not drawn: they are tails of kernels.
const LEAST: f64 = 1e-7;

/// The measurements, each with an explanation.
pub fn table(figures: &Figures, settings: &Settings) -> Table {
    let exactly = |value: f64| Estimate { value, error: 0.0 };
    let (runs, steps, products) = (figures.ritz.len(), settings.steps, figures.forms.len());
    let shown: [(&str, Estimate, String); 13] = [
        ("loss", exactly(figures.at_checkpoint.loss), "mean over the examples".into()),
        ("error", exactly(100.0 * figures.at_checkpoint.error), "% of the examples".into()),
        ("λ_max", figures.largest(), "largest eigenvalue; ± bounds the distance to a true one".into()),
        ("λ_min", figures.smallest(), "smallest eigenvalue, in the same way".into()),
        ("λ₁/λ₅", figures.ratio(), "largest over fifth largest".into()),
        ("trace", figures.trace(), format!("{products} products")),
        ("‖H‖_F", figures.frobenius(), format!("Frobenius norm √(P·mean‖Hv‖²), {products} products")),
        ("Σθ", figures.ritz_sum(), format!("sum of the {steps} Ritz values: the paper's \"Frobenius norm\"")),
        ("√Σθ²", figures.ritz_norm(), "near ‖H‖_F only if few eigenvalues dominate".into()),
        ("‖g‖", exactly(figures.gradient), "norm of the gradient of the mean loss (GRAWA's score)".into()),
        ("Σₖ‖Gₖ‖", exactly(figures.layers), "sum of the tensors' gradient norms (MGRAWA's score)".into()),
        (
            "ε-sharpness",
            exactly(figures.sharpness),
            format!("% the loss rises in the box of ε = {} ({} gradients)", settings.radius, settings.search),
        ),
        (
            "runs",
            exactly(runs as f64),
            "of Lanczos; ± of a mean over runs or products is its 95 % interval".into(),
        ),
    ];
    let mut table = Table::new(["figure", "value", "±", "what it is"]);
    for (name, estimate, what) in shown {
        let error = match estimate.error {
            error if error == 0.0 || !error.is_finite() => String::new(),
            error => four_digits(error),
        };
        table.push([name.to_owned(), four_digits(estimate.value), error, what]);
    }
    table
}

/// The measurements of several models side by side.
pub fn side_by_side(all: &[(String, Figures)], settings: &Settings) -> Table {
    let tables: Vec<Table> = all.iter().map(|(_, figures)| table(figures, settings)).collect();
    let names = all.iter().map(|(name, _)| name.clone());
    let mut sides =
        Table::new(["figure".to_owned()].into_iter().chain(names).chain(["what it is".to_owned()]));
    for (at, row) in tables.first().map_or(&[][..], |first| &first.rows).iter().enumerate() {
        let value = |table: &Table| match &table.rows[at][..] {
            [_, value, error, _] if !error.is_empty() => format!("{value} ± {error}"),
            [_, value, ..] => value.clone(),
            _ => String::new(),
        };
        let what = row.last().cloned().into_iter();
        sides.push([row[0].clone()].into_iter().chain(tables.iter().map(value)).chain(what));
    }
    sides
}

/// Puts measurements, Ritz values, the picture of their density and the numbers of the examples into a folder. The names of its files
/// begin with `before`.
pub fn put(
    figures: &Figures,
    settings: &Settings,
    (before, title): (&str, &str),
    chosen: &[u32],
    folder: &mut Folder,
) -> Result<(), Error> {
    folder.put(format!("{before}figures.csv"), table(figures, settings).csv());
    let mut values = Table::new(["run", "number", "value", "weight", "residual"]);
    for (run, ritz) in figures.ritz.iter().enumerate() {
        for (index, value) in ritz.values.iter().enumerate() {
            let cells = [*value, ritz.weights[index], ritz.residuals[index]].map(|x| format!("{x:e}"));
            values.push([run.to_string(), index.to_string()].into_iter().chain(cells));
        }
    }
    folder.put(format!("{before}ritz.csv"), values.csv());
    let mut table = Table::new(["example"]);
    chosen.iter().for_each(|number| table.push([number.to_string()]));
    folder.put("examples.csv", table.csv());
    let name = format!("{before}spectrum");
    Ok(folder.put_pictures(&[spectrum(figures, title).figure(&name)?])?)
}

/// The picture of the density.
fn spectrum(figures: &Figures, title: &str) -> Chart {
    let (low, high) = (figures.smallest().value, figures.largest().value);
    let span = if high > low { high - low } else { 1.0 };
    let place = |index: usize| low - 0.03 * span + 1.06 * span * index as f64 / (PLACES - 1) as f64;
    let places: Vec<f64> = (0..PLACES).map(place).collect();
    let found = density(&figures.ritz, WIDTH * span, &places);
    let least = LEAST * found.iter().copied().fold(0.0, f64::max);
    let curve = places.into_iter().zip(found);
    let shown = curve.map(|(x, y)| (x, if y > least { y } else { f64::NAN })).collect();
    let axes = ["eigenvalue (strokes: Ritz values of the first run)", "density"];
    let lines = vec![Line { name: "density".into(), points: shown }];
    let marks = figures.ritz.first().map_or_else(Vec::new, |run| run.values.clone());
    Chart { marks, ..Chart::new(title, axes, [false, true], lines) }
}
