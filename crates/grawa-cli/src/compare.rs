//! `grawa compare`: methods against the first of them, with several seeds and everything else the same.

use crate::failure::Failure;
use crate::lab::{carry_out, dry_run, variants};
use crate::output::warn;
use crate::train::{RecipeArgs, expect_threads, load};
use clap::Args;
use grawa_lab::Error;
use grawa_lab::lab::{Found, Plan, Store};
use grawa_train::recipe::{Facts, Recipe};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Compare methods: the same data, network, budget and seeds for all.
///
/// Every method is trained with each of N consecutive seeds. A table shows test errors, and the differences to the first method, paired
/// by seed, with their 95 % intervals (Student's t). The table is printed; results/ in the folder holds it as Markdown, CSV and LaTeX,
/// with pictures (PNG, SVG) and a page, index.html. Runs go side by side, one per core. After Ctrl-C or a kill the same
/// command continues: finished runs are kept, and a started one resumes from its checkpoint.
///
/// Takes the options of `grawa train` that define a run. Knobs of the recipe file belong to the method that it names; --set
/// method.KNOB=VALUE sets one for all methods that have it.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa compare --method lgrawa --method mean:pull=0.5,prox=0.01 --seeds 5\n  grawa compare --method lgrawa:pull=0.5 --method lgrawa:pull=0.7 --data digits --budget 20epoch --out out/pulls\n  grawa compare --method mean:pull=0.5,prox=0.01 --method lgrawa --recipe recipes/cifar10-resnet20.toml --device cuda --dry-run"
)]
pub(crate) struct Arguments {
    /// A method with any of its knobs, such as lgrawa:period=16,pull=0.7; give it twice or more, the first is the one to compare with
    #[arg(long = "method", value_name = "METHOD", required = true)]
    methods: Vec<String>,
    /// How many seeds: --seed, or the recipe's, and the next ones
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: u16,
    #[command(flatten)]
    recipe: RecipeArgs,
    /// Folder for runs and results: a new one, or that of the same comparison, which is then continued [default: out/compare-DATA, or
    /// the next free name]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Runs at a time [default: one per core; one on a GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// List the runs and what they cost; train nothing
    #[arg(long)]
    dry_run: bool,
}

/// Runs the comparison; false if it was stopped before its end.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    if arguments.methods.len() < 2 {
        return Err(Failure::Usage(
            "give --method twice or more; for one method with several seeds use `grawa train --seeds N`",
        ));
    }
    let study = arguments.recipe.study(variants(&arguments.methods)?, arguments.seeds)?;
    let recipes = Plan::compare("compare", study.clone())?.cells(&Found::new())?;
    recipes.iter().try_for_each(|cell| expect_threads(&cell.recipe))?;
    let data = recipes.first().map_or(String::new(), |cell| cell.recipe.data.kind.to_string());
    let plan = Plan::compare(&data, study)?;
    if arguments.dry_run {
        dry_run(&plan)?;
    }
    let facts = |recipe: &Recipe| {
        Facts::published(recipe).map_or_else(|| Ok(Facts::of(recipe, &load(recipe)?)), Ok::<_, Failure>)
    };
    let examples = recipes.first().map(|cell| facts(&cell.recipe)).transpose()?.map(|facts| facts.examples);
    let each = recipes.iter().map(|cell| (cell.variant.title(), cell.recipe.warnings(examples, None)));
    together(&each.collect()).iter().for_each(|words| warn(&format!("warning: {words}")));
    if arguments.dry_run {
        return Ok(true);
    }
    carry_out(&plan, &open(arguments.out.as_deref(), &data, &plan)?, arguments.jobs)
}

/// The warnings of methods, each once; those that not all methods have name theirs.
fn together(of_each: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut found: Vec<(&String, Vec<&str>)> = Vec::new();
    for (method, warning) in of_each.iter().flat_map(|(method, all)| all.iter().map(move |it| (method, it))) {
        match found.iter_mut().find(|(known, _)| *known == warning) {
            Some((_, methods)) => methods.push(method),
            None => found.push((warning, vec![method])),
        }
    }
    let words = |(warning, methods): (&String, Vec<&str>)| match methods.len() == of_each.len() {
        true => warning.clone(),
        false => format!("{}: {warning}", methods.join(" and ")),
    };
    found.into_iter().map(words).collect()
}

/// The folder that was named, or the first of the default names that is free or belongs to this comparison.
fn open(named: Option<&Path>, data: &str, plan: &Plan) -> Result<Store, Failure> {
    let mut number = 1;
    loop {
        let tail = if number == 1 { String::new() } else { format!("-{number}") };
        let default = PathBuf::from(format!("out/compare-{data}{tail}"));
        match Store::open(named.unwrap_or(&default), plan) {
            Err(Error::AnotherExperiment(..) | Error::Output(_)) if named.is_none() && number < 1000 => {
                number += 1
            }
            opened => return Ok(opened?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_given_once_and_names_its_methods() {
        let of_each =
            [("easgd", vec!["late"]), ("lgrawa", vec!["few", "late"]), ("mean", vec!["few", "late"])];
        let owned = |(name, all): (&str, Vec<&str>)| (name.into(), all.into_iter().map(Into::into).collect());
        assert_eq!(together(&of_each.map(owned).into()), ["late", "lgrawa and mean: few"]);
        assert_eq!(together(&BTreeMap::new()), [""; 0]);
    }
}
