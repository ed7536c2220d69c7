//! Does a small gradient norm go with a small generalisation gap?

use crate::lab::results::Results;
use crate::picture::chart::{Chart, Line};
use crate::statistics::{CONFIDENCE, kendall, partial, pearson};
use crate::{Error, Figure, Output, Table};

/// A model of the grid.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Model {
    batch: u32,
    momentum: f32,
    decay: f32,
    whole: f64,
    layers: f64,
    loss: f64,
    gap: f64,
}

/// A hyper-parameter.
type Setting = fn(&Model) -> f32;

/// Weight decay from here on is strong: the authors' plot leaves such models out.
const STRONG: f32 = 0.01;

/// The paper's plot of gradient norms, with every subset that it may or may not hold in.
pub(in crate::lab) fn gradnorm(results: &Results<'_>) -> Result<Output, Error> {
    let mut output = Output { title: "Gradient norm and generalisation gap".into(), ..Output::default() };
    let models: Vec<Model> = results
        .all()
        .filter_map(|(cell, finding)| {
            let (measured, train) = (finding.measured()?, &cell.recipe.train);
            let (gradient, scored) = (measured.gradient?, measured.train?);
            Some(Model {
                batch: train.batch,
                momentum: train.sgd.momentum,
                decay: train.sgd.weight_decay,
                whole: gradient.whole,
                layers: gradient.layers,
                loss: scored.loss?,
                gap: 100.0 * (measured.test.error - scored.error),
            })
        })
        .collect();
    let mut table = Table::new([
        "models",
        "n",
        "τ(‖g‖, gap)",
        "p",
        "τ(Σ‖Gₖ‖, gap)",
        "r(log ‖g‖, gap)",
        "r given log train loss",
        "r(log ‖g‖, log train loss)",
    ]);
    let mut bold = Vec::new();
    let subsets = subsets(&models);
    let chance_allowed = (1.0 - CONFIDENCE) / subsets.len() as f64;
    for (name, members) in subsets {
        let column = |figure: fn(&Model) -> f64| members.iter().map(figure).collect::<Vec<f64>>();
        let (gap, log_norm) = (column(|it| it.gap), column(|it| libm::log10(it.whole)));
        let log_loss = column(|it| libm::log10(it.loss));
        let number =
            |found: Option<f64>| found.map_or("–".into(), |found| format!("{found:.3}").replace('-', "−"));
        let tau = kendall(&column(|it| it.whole), &gap);
        if tau.is_some_and(|(_, chance)| chance < chance_allowed) {
            bold.push((table.rows.len(), 2));
        }
        table.push([
            name,
            members.len().to_string(),
            number(tau.map(|it| it.0)),
            number(tau.map(|it| it.1)),
            number(kendall(&column(|it| it.layers), &gap).map(|it| it.0)),
            number(pearson(&log_norm, &gap)),
            number(partial(&log_norm, &gap, &log_loss)),
            number(pearson(&log_norm, &log_loss)),
        ]);
    }
    let rule = "τ is Kendall's τ_b, p the chance of as much if the two had nothing to do with each other (normal approximation; bold below 0.05 divided by the number of rows), r Pearson's correlation; \"given log train loss\" is the partial correlation: what is left of r when what the training \
                loss explains is taken out. ‖g‖ is the norm of the gradient of the summed loss on the whole training set without augmentation, with the \
                statistics of evaluation; gap is test error less training error in % points. The paper's claim is a positive τ; the authors' data \
                has it with weight decay below 0.01, which their plot shows, and not over all models.";
    output.tables.push(results.table(
        ("correlations", "How gradient norm and gap go together", rule),
        table,
        bold,
    ));
    let groups = values(&models, |it| it.decay).into_iter().map(|decay| {
        let own = models.iter().filter(|it| it.decay == decay);
        Line { name: format!("weight decay {decay}"), points: own.map(|it| (it.whole, it.gap)).collect() }
    });
    let [data, network, _] = results.setup(0);
    let title = format!("{data}, {network}: {} models", models.len());
    let axes = ["‖g‖ on the training set", "generalisation gap, % points"];
    let chart = Chart { scatter: true, ..Chart::new(&title, axes, [true, false], groups.collect()) };
    let caption = format!("{title}: generalisation gap over {}.", axes[0]);
    output.figures.push(Figure { name: "gradient-norm".into(), caption, picture: chart.draw()? });
    Ok(output)
}

/// All models, and the subsets in which the claim is tested: by weight decay, and with weak decay by batch and by momentum.
fn subsets(models: &[Model]) -> Vec<(String, Vec<Model>)> {
    let of = |name: String, keep: &dyn Fn(&Model) -> bool| {
        (name, models.iter().copied().filter(|it| keep(it)).collect())
    };
    let weak = |it: &Model| it.decay < STRONG;
    let mut subsets = vec![of("all".into(), &|_| true), of(format!("weight decay < {STRONG}"), &weak)];
    for decay in values(models, |it| it.decay) {
        subsets.push(of(format!("weight decay = {decay}"), &|it| it.decay == decay));
    }
    let others: [(&str, Setting); 2] = [("batch", |it| it.batch as f32), ("momentum", |it| it.momentum)];
    for (name, figure) in others {
        for value in values(models, figure) {
            let words = format!("weight decay < {STRONG}, {name} {value}");
            subsets.push(of(words, &|it| weak(it) && figure(it) == value));
        }
    }
    subsets
}

/// The different values of a hyper-parameter, ascending.
fn values(models: &[Model], figure: Setting) -> Vec<f32> {
    let mut values: Vec<f32> = models.iter().map(figure).collect();
    values.sort_by(f32::total_cmp);
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_are_those_of_the_authors_data() {
        let model = |batch, momentum, decay| Model {
            batch,
            momentum,
            decay,
            whole: 1.0,
            layers: 1.0,
            loss: 1.0,
            gap: 1.0,
        };
        let mut models = Vec::new();
        for batch in [32, 128, 512] {
            for momentum in [0.1, 0.5, 0.9] {
                models.extend([0.0, 1e-4, 0.01].map(|decay| model(batch, momentum, decay)));
            }
        }
        let found: Vec<(String, usize)> =
            subsets(&models).into_iter().map(|(name, members)| (name, members.len())).collect();
        let named = |name: &str| found.iter().find(|it| it.0 == name).map(|it| it.1);
        assert_eq!(found.len(), 2 + 3 + 3 + 3);
        assert_eq!(
            (named("all"), named("weight decay < 0.01"), named("weight decay = 0.01")),
            (Some(27), Some(18), Some(9))
        );
        assert_eq!(
            (named("weight decay < 0.01, batch 512"), named("weight decay < 0.01, momentum 0.9")),
            (Some(6), Some(6))
        );
    }
}
