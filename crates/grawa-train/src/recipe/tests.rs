use super::*;
use grawa_core::{Centre, Name, Pull, Share};
use proptest::prelude::*;

fn read(text: &str) -> Result<Recipe, RecipeError> {
    Recipe::resolve(&Overrides::default().file("my.toml", text)?)
}

fn set(settings: &[&str]) -> Result<Recipe, RecipeError> {
    let said = settings.iter().try_fold(Overrides::default(), |said, setting| said.set(setting))?;
    Recipe::resolve(&said)
}

#[test]
fn nothing_said_is_lgrawa_on_the_digits() {
    let recipe = read("").unwrap();
    assert_eq!((recipe.data.kind, recipe.model.name.as_str()), (DatasetKind::Digits, "digits"));
    assert_eq!((recipe.method.name, recipe.train.workers, recipe.train.pace), (Name::Lgrawa, 4, Pace::Even));
    assert_eq!(recipe, Recipe::for_data(DatasetKind::Digits, None).unwrap());
}

#[test]
fn every_data_set_has_defaults_that_print_and_read_back() {
    for kind in DatasetKind::ALL {
        let recipe = set(&[&format!("data.kind={kind}")]).unwrap();
        assert_eq!(read(&recipe.to_toml()).unwrap(), recipe, "{}", recipe.to_toml());
    }
}

#[test]
fn augmentation_follows_the_network_unless_it_is_said() {
    let augment = |text: &str| read(text).unwrap().data.augment.to_string();
    assert_eq!(augment("data.kind = 'cifar10'"), "flip+crop28");
    assert_eq!(augment("data.kind = 'cifar10'\nmodel.name = 'vgg16'"), "flip+pad4crop32");
    assert_eq!(augment("data.kind = 'cifar10'\ndata.augment = 'none'"), "none");
}

#[test]
fn the_last_word_counts() {
    let text = "[method]\nname = 'easgd'\nperiod = 8\npull = 0.3\n[train]\nbatch = 64";
    let said = Overrides::default().file("my.toml", text).unwrap();
    let recipe = |said: Overrides| Recipe::resolve(&said).unwrap();
    assert_eq!(recipe(said.clone()).method.to_string(), "easgd:period=8,pull=0.3");
    // A knob over the file's method; ρ follows λ.
    let nudged = recipe(said.clone().set("method.pull=0.1").unwrap()).method;
    assert_eq!(
        (nudged.period, nudged.pull, nudged.centre),
        (8, Pull::Fixed(0.1), Centre::Moving { rate: 0.1 })
    );
    // Another method has its own defaults: the file's knobs belonged to EASGD.
    let other = recipe(said.clone().method("lsgd:pull=0.2", "--method").unwrap());
    assert_eq!((other.method.to_string().as_str(), other.train.batch), ("lsgd:pull=0.2", 64));
    // The same method again keeps the file's knobs, under those that are said with it, defaults or not.
    let same = recipe(said.clone().method("easgd:period=4", "--method").unwrap());
    assert_eq!(same.method.to_string(), "easgd:pull=0.3");
    let grouped = recipe(said.method("lsgd:period=16,inner.group=2", "--method").unwrap()).method;
    assert_eq!(grouped.to_string(), "lsgd:period=16,inner.group=2");
}

#[test]
fn values_of_a_command_line_need_no_quotes() {
    let recipe = set(&[
        "train.budget=500step",
        "train.rate=0.1, x0.1 at 5epoch",
        "data.dir=some/where",
        "evaluate.every=end",
        "method.name=easgd",
        "method.pull=rate/M",
        "model.init = start.safetensors",
    ])
    .unwrap();
    assert_eq!(recipe.train.budget, Amount::Steps(500));
    assert_eq!(recipe.train.rate.to_string(), "0.1, x0.1 at 5epoch");
    assert_eq!((recipe.evaluate.every, recipe.method.pull), (None, Pull::RateOverWorkers));
    assert_eq!(recipe.model.init, Some("start.safetensors".into()));
    assert_eq!(set(&["train.rate=0.05"]).unwrap().train.rate.to_string(), "0.05");
}

#[test]
fn defaults_follow_from_what_was_said() {
    let recipe = set(&["method.name=sgd", "train.momentum=0"]).unwrap();
    assert_eq!(
        (recipe.train.workers, recipe.method.share, recipe.train.sgd.nesterov),
        (1, Share::Nothing, false)
    );
}

/// PyTorch's rate and weight decay, unless they are said; the drops of the data set stay.
#[test]
fn adamw_has_its_own_defaults() {
    let train = set(&["train.optimizer=adamw"]).unwrap().train;
    assert_eq!(train.local_optimizer(), grawa_core::AdamW::default().into());
    assert_eq!(train.rate.to_string(), "0.001, x0.1 at 20epoch, x0.1 at 30epoch");
    let said = ["train.optimizer=adamw", "train.rate=0.1", "train.weight_decay=0", "train.beta2=0.95"];
    let train = set(&said).unwrap().train;
    let adamw = grawa_core::AdamW { beta2: 0.95, weight_decay: 0.0, ..Default::default() };
    assert_eq!((train.local_optimizer(), train.rate.to_string().as_str()), (adamw.into(), "0.1"));
}

#[test]
fn mistakes_name_the_line_and_what_to_do() {
    for (text, words) in [
        (
            "[train]\nworkers = 4\nbacth = 3",
            "my.toml:3: there is no key 'train.bacth' (did you mean 'train.batch'?)",
        ),
        (
            "[train]\ncolour = 1",
            "my.toml:2: there is no key 'train.colour'; the keys of 'train' are train.workers, train.batch",
        ),
        ("\n[trian]\nworkers = 4", "my.toml:2: there is no table 'trian' (did you mean 'train'?)"),
        ("workers = 4", "my.toml:1: 'workers' stands outside of any table"),
        (
            "[train]\nworkers = 'four'",
            "my.toml:2: train.workers: found \"four\", expected a whole number, 1 or more",
        ),
        ("[train]\nworkers = 0", "my.toml:2: train.workers: found 0"),
        ("[train]\nworkers = 4.5", "my.toml:2: train.workers: found 4.5"),
        ("[train]\nworkers = 99999", "my.toml:2: 99999 workers are more than 4096"),
        ("[train]\nseed = -1", "my.toml:2: train.seed: found -1"),
        (
            "[train]\nbudget = 500",
            "my.toml:2: train.budget: cannot read the amount '500': a unit is missing; write 500epoch",
        ),
        ("[train]\nbudget = '500'", "my.toml:2: train.budget: cannot read the amount '500'"),
        ("[train]\nrate = 'fast'", "my.toml:2: train.rate: cannot read the schedule 'fast'"),
        ("[train]\nmomentum = 1", "my.toml:2: train.momentum: found 1, expected a number from 0 to below 1"),
        ("[train]\nnesterov = 'yes'", "my.toml:2: train.nesterov: found \"yes\", expected true or false"),
        ("[train]\nmomentum = 0\nnesterov = true", "my.toml:3: train.nesterov looks ahead"),
        (
            "[train]\noptimizer = 'adam'",
            "my.toml:2: train.optimizer: there is no optimizer 'adam' (did you mean 'adamw'?)",
        ),
        ("[data]\nsplit = 'sorted'", "my.toml:2: data.split: cannot read the split 'sorted': expected 'iid'"),
        (
            "[data]\nlabel_noise = 'worker 3'",
            "my.toml:2: data.label_noise: found \"worker 3\", expected a share from 0 to 1 as in \"worker 3: 0.4\", or \"none\"",
        ),
        ("[data]\nlabel_noise = 'worker 3: 1.4'", "my.toml:2: data.label_noise: found"),
        (
            "[data]\nlabel_noise = 'worker 1: 0.4, worker 1: 0.2'",
            "my.toml:2: data.label_noise: worker 1 is named twice",
        ),
        (
            "[data]\nlabel_noise = 'worker 4: 0.4'",
            "my.toml:2: data.label_noise names worker 4, but the 4 workers are numbered from 0",
        ),
        ("[train]\nslow = 'worker 2: 3'", "my.toml:2: train.slow: found \"worker 2: 3\", expected a factor"),
        ("[train]\nslow = 'worker 2: 3x'", "my.toml:2: at an even pace every worker takes the same steps"),
        (
            "[train]\npace = 'free'\nslow = 'worker 2: 3x'\n[machine]\ndevice = 'cuda'",
            "my.toml:2: on a GPU all workers step together",
        ),
        ("[train]\nbeta2 = 1", "my.toml:2: train.beta2: found 1, expected a number from 0 to below 1"),
        ("[train]\neps = 0", "my.toml:2: train.eps: found 0, expected a positive number"),
        ("[train]\nsam = -1", "my.toml:2: train.sam: found -1, expected a number, 0 or more"),
        (
            "[method]\nname = 'dp-sam'\n[train]\nsam = 0.1",
            "my.toml:4: train.sam is 0.1, but method.radius is 0.05; set one of them",
        ),
        ("[train]\npace = 'fre'", "my.toml:2: train.pace: there is no pace 'fre' (did you mean 'free'?)"),
        ("[train]\nweight_decay = nan", "my.toml:2: train.weight_decay: found nan"),
        (
            "[data]\nkind = 'ciafr10'",
            "my.toml:2: data.kind: there is no data set 'ciafr10' (did you mean 'cifar10'?)",
        ),
        ("[data]\ndir = ''", "my.toml:2: data.dir: a path cannot be empty"),
        ("[model]\nname = 'resnet21'", "my.toml:2: model.name: "),
        ("[model]\nname = 'vgg16'\nwidth = 8", "my.toml:3: vgg16 has one width only"),
        ("[evaluate]\nevery = '0step'", "my.toml:2: evaluate.every: an interval of 0step never ends"),
        ("[evaluate]\nbatch_norm = 'recalibrated'", "(did you mean 'recalibrate'?)"),
        ("[method]\nname = 'lgrwa'", "my.toml:2: there is no method 'lgrwa' (did you mean 'lgrawa'?)"),
        (
            "[method]\nname = 'lgrawa'\n\nperod = 4",
            "my.toml:4: lgrawa has no knob 'perod' (did you mean 'period'?)",
        ),
        ("[method]\nname = 'lgrawa'\npull = 1.5", "my.toml:3: lgrawa: pull is 1.5, but must be from 0 to 1"),
        ("[method]\nname = 'lgrawa'\nperiod = 'often'", "my.toml:3: lgrawa: period cannot be \"often\""),
        ("[method]\nname = 'lgrawa'\npull = 0.5\nrate = 0.1", "my.toml:4: lgrawa: rate cannot be set"),
        ("[method]\nname = 'lsgd'\ninner.group = 3", "my.toml:3: 4 workers do not fall into groups of 3"),
        ("[method]\nname = 'lsgd'\n[method.inner]\ngruop = 4", "my.toml:4: lsgd has no knob 'inner.gruop'"),
        ("[method]\nname = 'lsgd'\ninner = 4", "my.toml:3: lsgd has no knob 'inner'"),
        (
            "[method]\nname = 'sgd'\n[train]\nworkers = 4",
            "my.toml:4: sgd is one worker by itself, but train.workers is 4",
        ),
        ("[method]\nname = 'dp-sgd'\n[train]\npace = 'free'", "my.toml:4: dp-sgd has no rounds"),
        ("[train]\nworkers = 4\nworkers = 5", "my.toml:3: duplicate key"),
        ("[train\n", "my.toml:1: "),
    ] {
        let error = read(text).expect_err(text).to_string();
        assert!(
            error.starts_with(words) || (!words.starts_with("my") && error.contains(words)),
            "{text}\n{error}\n{words}"
        );
    }
    for (setting, words) in [
        ("train.budget", "--set train.budget: expected key=value"),
        ("budget=3step", "--set budget=3step: there is no key 'budget' (did you mean 'train.budget'?)"),
        (
            "train.budget=3",
            "--set train.budget=3: train.budget: cannot read the amount '3': a unit is missing",
        ),
        ("method.pul=3", "--set method.pul=3: lgrawa has no knob 'pul' (did you mean 'pull'?)"),
    ] {
        let error = set(&[setting]).expect_err(setting).to_string();
        assert!(error.starts_with(words), "{setting}\n{error}\n{words}");
    }
}

/// A network of one's own: the recipe holds the content of its file, and its weights lie beside it.
#[test]
fn a_network_from_a_file_is_kept_in_the_recipe() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str, network: &str, input: [u32; 3]| {
        let path = place.path().join(name);
        let text = format!(
            r#"{{"version": 1, "name": "{network}", "input": {input:?}, "nodes": [
{{"name": "fc", "inputs": ["input"], "op": {{"linear": {{"out": 10}}}}}}]}}"#
        );
        std::fs::write(&path, text).unwrap();
        format!("model.graph={}", path.display())
    };
    let (mine, other) = (file("net.json", "mine", [1, 8, 8]), file("other.json", "other's", [3, 28, 28]));
    let plain = set(&[&mine]).unwrap();
    assert_eq!((plain.model.name.as_str(), plain.model.init.as_deref()), ("mine", None));
    let graph = plain.model.build(grawa_nn::Shape::image(1, 8), 10).unwrap();
    assert_eq!((graph.name(), graph.parameters().len()), ("mine", 650));
    let error = plain.model.build(grawa_nn::Shape::image(3, 8), 10).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "the network mine of model.graph does not fit an input of 3×8×8: it was exported for 1×8×8"
        ),
        "{error}"
    );

    let weights = place.path().join("net.safetensors");
    std::fs::write(&weights, "").unwrap();
    assert_eq!(set(&[&mine]).unwrap().model.init.as_ref(), Some(&weights));
    for settings in [["model.init=a", mine.as_str()], [&mine, "model.init=a"]] {
        assert_eq!(set(&settings).unwrap().model.init, Some("a".into()));
    }
    // Those of another network are not its weights.
    let changed = set(&[&mine, &other, "data.kind=cifar10"]).unwrap();
    assert_eq!((changed.model.name.as_str(), changed.model.init), ("other's", None));
    assert_eq!(changed.data.augment.to_string(), "flip+pad4crop28");

    let error = |settings: &[&str]| set(settings).unwrap_err().to_string();
    assert!(
        error(&[&mine, "model.name=resnet20"])
            .contains("model.name is resnet20, but the network of model.graph is called mine")
    );
    for key in ["model.width", "model.classes"] {
        assert!(error(&[&mine, &format!("{key}=3")]).contains(&format!("are fixed; leave {key} out")));
    }
    let folder = format!("model.graph={}", place.path().display());
    assert!(
        error(&[&folder]).contains("it is not a file; grawa.export(model, example, \"net.json\") in Python")
    );
    let newer = error(&[r#"model.graph={"version": 2}"#]);
    assert!(newer.contains("model.graph: the graph: it has version 2"), "{newer}");
    std::fs::write(place.path().join("net.json"), "{}").unwrap();
    assert!(error(&[&mine]).contains("net.json: the graph: it has no \"version\": 1"));

    // What was read does not depend on the file any more.
    std::fs::remove_file(place.path().join("net.json")).unwrap();
    assert_eq!(read(&plain.to_toml()), Ok(plain));
}

fn amounts() -> impl Strategy<Value = String> {
    prop_oneof![
        (1u64..1_000_000).prop_map(|n| format!("{n}step")),
        (1u32..10_000).prop_map(|n| format!("{}epoch", f64::from(n) / 8.0)),
        (1u64..100_000).prop_map(|n| format!("{n}s")),
    ]
}

proptest! {
    /// Whatever can be said is printed and read back the same.
    #[test]
    fn printed_recipes_read_back(
        kind in proptest::sample::select(DatasetKind::ALL.to_vec()),
        name in proptest::sample::select(Name::ALL[..Name::Sgd as usize].to_vec()),
        preset in proptest::sample::select(vec!["paper", "reference"]),
        (workers, batch, seed, held_out) in (1u32..64, 1u32..512, 0u64..i64::MAX as u64, 0u32..1000),
        (budget, every, keep) in (amounts(), proptest::option::of(amounts()), amounts()),
        (rate, decay, momentum) in (0.0f64..1.0, 0.0f32..0.1, 0.0f32..0.999),
        (width, classes, threads) in (proptest::option::of(1u32..64), proptest::option::of(1u32..1000), proptest::option::of(1u32..64)),
        batch_norm in proptest::sample::select(BatchNorm::ALL.to_vec()),
        dir in "[a-zA-Z0-9 \"'\\\\_/é\u{7f}\n]{1,20}",
    ) {
        let mut settings = vec![
            format!("data.kind={kind}"), format!("method.name={name}"), format!("method.preset={preset}"),
            format!("train.workers={workers}"), format!("train.batch={batch}"), format!("train.seed={seed}"),
            format!("train.budget={budget}"), format!("train.rate={rate}, x0.1 at {every}, cosine over {budget}", every = keep),
            format!("train.weight_decay={decay}"), format!("train.momentum={momentum}"),
            format!("evaluate.every={}", every.unwrap_or("end".into())), format!("evaluate.batch_norm={batch_norm}"),
            format!("checkpoint.every={keep}"), format!("data.held_out={held_out}"),
            "data.split=dirichlet:0.3".into(), "data.label_noise=worker 0: 0.25".into(),
        ];
        if let (Some(width), true) = (width, matches!(kind, DatasetKind::Digits | DatasetKind::Cifar10)) { settings.push(format!("model.width={width}")); }
        settings.extend(classes.map(|n| format!("model.classes={n}")));
        settings.extend(threads.map(|n| format!("machine.threads={n}")));
        let said = settings.iter().try_fold(Overrides::default(), |said, setting| said.set(setting)).unwrap();
        let said = said.value("data.dir", dir, "here").unwrap();
        let recipe = Recipe::resolve(&said).unwrap();
        let text = recipe.to_toml();
        prop_assert_eq!(read(&text).map_err(|error| format!("{error}\n{text}")), Ok(recipe));
    }

    /// Any text is read or refused, never a panic, and what is read prints back.
    #[test]
    fn any_text_is_read_or_refused(text in "(\\[(data|train|method|model)\\]\n)?([a-z_.]{1,8} ?= ?['\"]?[a-z0-9.]{0,6}['\"]?\n){0,4}") {
        if let Ok(recipe) = read(&text) {
            prop_assert_eq!(read(&recipe.to_toml()), Ok(recipe));
        }
    }
}
