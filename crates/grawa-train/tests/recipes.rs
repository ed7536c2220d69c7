//! The recipes of the paper's settings: each reads, and holds what the paper and its code say.

#![allow(clippy::unwrap_used)]

use grawa_core::Name;
use grawa_train::recipe::{Facts, Forecast, Overrides, Study};
use grawa_train::{Recipe, Run};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes")
}

fn recipe(name: &str) -> (Recipe, Study) {
    let path = folder().join(format!("{name}.toml"));
    let recipe = Recipe::resolve(&Overrides::default().read(&path).unwrap()).unwrap();
    (recipe, Study::read(&path).unwrap().expect("a study"))
}

#[test]
fn every_recipe_resolves_prints_and_reads_back_with_every_point_of_its_study() {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let (recipe, study) = recipe(&name);
        let again = Overrides::default().file("printed.toml", &recipe.to_toml()).unwrap();
        assert_eq!(Recipe::resolve(&again).unwrap(), recipe, "{name}");
        for method in &study.methods {
            for &seed in &study.seeds {
                for point in study.points(method, seed).unwrap() {
                    assert_eq!(
                        (point.recipe.method.name, point.recipe.train.seed),
                        (method.name, seed),
                        "{name}"
                    );
                }
            }
        }
        names.push(name);
    }
    names.sort();
    let known = [
        "cifar10-pyramidnet",
        "cifar10-resnet20",
        "cifar10-resnet20-workers",
        "cifar10-vgg16",
        "cifar100-densenet",
        "cifar100-pyramidnet",
        "cifar100-pyramidnet-workers",
        "cifar100-wrn",
        "gradient-norm",
        "imagenet-resnet50",
    ];
    assert_eq!(names, known);
}

/// A run's folder holds every knob: the recipe of a run that was begun when `mean` pulled by 0.5, written by the
/// program of then.
#[test]
fn an_old_run_keeps_its_method() {
    let text = include_str!("fixtures/recipe-of-an-old-run.toml");
    let recipe = Recipe::resolve(&Overrides::default().file("recipe.toml", text).unwrap()).unwrap();
    assert_eq!(recipe.method.to_string(), "mean:pull=0.5,prox=0.01");
    let printed: toml::Table = recipe.to_toml().parse().unwrap();
    assert_eq!(printed["method"], text.parse::<toml::Table>().unwrap()["method"]);
}

/// The column `mean` of the paper's tables is MGRAWA without its weights, written out: over the grid of MGRAWA, with
/// its prox.
#[test]
fn the_control_of_the_papers_studies_is_written_out() {
    for name in [
        "cifar10-resnet20",
        "cifar10-vgg16",
        "cifar10-pyramidnet",
        "cifar100-densenet",
        "cifar100-wrn",
        "cifar100-pyramidnet",
        "imagenet-resnet50",
    ] {
        let (_, study) = recipe(name);
        let of = |method: Name| {
            let points =
                study.points(&method.into(), 36).unwrap().into_iter().map(|point| point.recipe.method);
            points.map(|it| (it.period, it.pull, it.prox, it.toward, it.centre)).collect::<Vec<_>>()
        };
        assert_eq!(of(Name::Mean), of(Name::Mgrawa), "{name}");
        assert_eq!(of(Name::Mean).len(), 12, "{name}");
    }
}

/// Workers, parameters, and the rounds of LGRAWA in the paper's table of communication times.
#[test]
fn the_settings_are_the_papers() {
    for (name, workers, parameters, rounds) in [
        ("cifar10-resnet20", 4, 269_722, 328),
        ("cifar10-vgg16", 4, 15_253_578, 351),
        ("cifar10-pyramidnet", 4, 28_485_477, 1_886),
        ("cifar100-densenet", 8, 7_048_548, 923),
        ("cifar100-wrn", 8, 36_536_884, 393),
        ("cifar100-pyramidnet", 8, 28_511_307, 971),
    ] {
        let (recipe, _) = recipe(name);
        assert_eq!((recipe.train.workers, recipe.train.batch), (workers, 128), "{name}");
        // A batch of one: only the arena depends on it, and it would be gigabytes.
        let small =
            Recipe { train: grawa_train::recipe::Train { batch: 1, ..recipe.train.clone() }, ..recipe };
        let forecast = Forecast::of(&small, &Facts::published(&small).unwrap(), 2).unwrap();
        assert_eq!((forecast.parameters, forecast.rounds), (parameters, Some(rounds)), "{name}");
    }
}

/// The sizes of the paper's grids; 162 models in the gradient-norm study, and 81 with the weight decay that its plot leaves out.
#[test]
fn the_grids_are_the_papers() {
    let points = |name: &str, method: Name| recipe(name).1.points(&method.into(), 36).unwrap().len();
    for name in ["cifar10-resnet20", "cifar100-wrn"] {
        let sizes = [Name::Easgd, Name::Lsgd, Name::Mgrawa, Name::Lgrawa, Name::DpSgd]
            .map(|method| points(name, method));
        assert_eq!(sizes, [9, 12, 12, 12, 6], "{name}");
    }
    assert_eq!((points("imagenet-resnet50", Name::Lsgd), points("imagenet-resnet50", Name::DpSam)), (12, 2));
    assert_eq!(points("gradient-norm", Name::Sgd), 162 + 81);
    assert_eq!(points("cifar10-resnet20-workers", Name::Lgrawa), 3);
    let (_, study) = recipe("imagenet-resnet50");
    let lsgd = &study.points(&Name::Lsgd.into(), 36).unwrap()[0].recipe.method;
    let inner = lsgd.inner.as_deref().unwrap();
    assert_eq!((lsgd.period, inner.group, inner.method.period), (4, 4, 1));
}

/// What was forecast is what happens: steps, rounds and traffic.
#[test]
fn a_forecast_comes_true() {
    let data = grawa_data::digits().unwrap();
    for method in ["easgd", "lgrawa:period=8", "dp-sgd"] {
        let said = Overrides::default().method(method, "here").unwrap().set("train.budget=24step").unwrap();
        let recipe = Recipe::resolve(&said.set("evaluate.every=end").unwrap()).unwrap();
        let forecast = Forecast::of(&recipe, &Facts::published(&recipe).unwrap(), 2).unwrap();
        let end = Run::new(recipe, &data).unwrap().go(&mut []).unwrap();
        assert_eq!((Some(end.at.steps), Some(end.at.rounds)), (forecast.steps, forecast.rounds), "{method}");
        assert_eq!(Some(end.bytes), forecast.total_bytes, "{method}");
    }
}
