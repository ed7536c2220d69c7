use super::*;
use proptest::prelude::*;

fn read(text: &str) -> Method {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    text.parse::<Method>().expect_err(text).to_string()
}

#[test]
fn a_bare_name_is_the_row_of_the_table() {
    for name in Name::ALL {
        assert_eq!(read(name.as_str()), Method::named(name, Preset::Paper));
        assert_eq!(read(&format!("{name}:preset=reference")), Method::named(name, Preset::Reference));
    }
}

#[test]
fn rows_print_short_and_read_back_from_toml() {
    for name in Name::ALL {
        for preset in [Preset::Paper, Preset::Reference] {
            let method = Method::named(name, preset);
            let text = method.to_string();
            assert_eq!(read(&text), method);
            assert!(text == name.as_str() || text == format!("{name}:preset=reference"), "{text}");
            assert_eq!(toml::from_str::<Method>(&method.to_toml()).unwrap(), method);
        }
    }
}

#[test]
fn what_follows_from_another_knob_is_not_said_twice() {
    assert_eq!(read("easgd:pull=0.3").centre, Centre::Moving { rate: 0.3 });
    assert_eq!(read("easgd:pull=0.3,rate=0.3").to_string(), "easgd:pull=0.3");
    assert_eq!(read("easgd:pull=0.3,rate=0.1").to_string(), "easgd:pull=0.3,rate=0.1");
    let grouped = read("lsgd:period=16,inner.group=4");
    let inner = grouped.inner.as_deref().unwrap();
    assert_eq!((inner.group, inner.method.period, inner.method.pull), (4, 4, Pull::Fixed(0.1)));
    assert_eq!(grouped.to_string(), "lsgd:period=16,inner.group=4");
    assert_eq!(
        read("lsgd:period=16,inner.group=4,inner.period=8,inner.pull=0.2").to_string(),
        "lsgd:period=16,inner.group=4,inner.period=8,inner.pull=0.2"
    );
}

#[test]
fn an_outer_optimizer_is_that_of_diloco_unless_it_is_said() {
    let outer = Outer { rate: 0.7, momentum: 0.9, nesterov: true, by_rate: None };
    assert_eq!(read("mean:centre=outer").centre, Centre::Outer(outer));
    let grouped = read("mean:period=8,pull=1,centre=outer,inner.group=2");
    assert_eq!(grouped.inner.as_deref().unwrap().method.centre, Centre::Weighted);
    for text in [
        "mean:centre=outer,rate=1,momentum=0,nesterov=false,by_rate=true",
        "lgrawa:by=steps,push=0.5,push_rise=cosine,qsr=0.01",
        "mean:period=8,pull=1,centre=outer,inner.group=2,inner.period=4",
    ] {
        assert_eq!(read(&read(text).to_string()), read(text), "{text}");
        assert_eq!(toml::from_str::<Method>(&read(text).to_toml()).unwrap(), read(text), "{text}");
    }
}

#[test]
fn a_control_can_be_made_into_another_method() {
    let made = read("mean:score=layer-sum,weighting=inverse");
    let mgrawa = read("mgrawa");
    assert_eq!((made.score, made.weighting), (mgrawa.score, mgrawa.weighting));
    let control = read("mean:pull=0.5,prox=0.01");
    assert_eq!((control.pull, control.prox, control.period), (mgrawa.pull, mgrawa.prox, mgrawa.period));
    let local = read("lgrawa:score_from=training");
    assert_eq!(local.score, read("local-lgrawa").score);
}

#[test]
fn slips_are_explained() {
    for (text, words) in [
        ("", "there is no method ''"),
        ("mean:momentum=0.9", "momentum cannot be set: only an outer optimizer has it; set centre = 'outer'"),
        ("mean:centre=outer,momentum=1", "momentum is 1, but must be from 0 to below 1"),
        ("mean:push=-1", "push is -1, but must be at least 0, and finite"),
        ("mean:push=1,toward=old", "a push leads away from the centre of the same round"),
        ("mean:qsr=0.2,inner.group=2", "with groups the periods are fixed"),
        ("mean:inner.group=2,inner.centre=outer", "only the level of all workers has an outer optimizer"),
        ("dp-sgd:by=steps", "its gradients are averaged at every step"),
        ("dp-sgd:qsr=0.1", "its gradients are averaged at every step"),
        ("lgrwa", "did you mean 'lgrawa'?"),
        ("lgrawa:perod=4", "did you mean 'period'?"),
        ("lgrawa:Period=4", "did you mean 'period'?"),
        ("lgrawa:", "should be knob=value"),
        ("lgrawa:period", "should be knob=value"),
        ("lgrawa:period=4,period=8", "'period' stands in it twice"),
        ("lgrawa:period=0", "period is 0, but must be at least 1"),
        ("lgrawa:period=-1", "expected a whole number, 0 or more"),
        ("lgrawa:period=4.5", "expected a whole number, 0 or more"),
        ("lgrawa:pull=1.5", "pull is 1.5, but must be from 0 to 1"),
        ("lgrawa:pull=-0.1", "pull is -0.1, but must be from 0 to 1"),
        ("lgrawa:pull=nan", "pull is NaN, but must be from 0 to 1"),
        ("lgrawa:pull=much", "a number from 0 to 1"),
        ("lgrawa:pull=rate/M", "needs a centre that moves"),
        ("lgrawa:prox=2", "prox is 2, but must be from 0 to 1"),
        ("lgrawa:score_momentum=1", "score_momentum is 1, but must be from 0 to below 1"),
        ("lgrawa:rate=0.1", "only a moving centre has one"),
        ("lgrawa:preset=author", "unknown variant"),
        ("lgrawa:score=loss", "a loss can"),
        ("lgrawa:score=none", "needs a score"),
        ("lgrawa:score_window=3", "only score = 'loss' has one"),
        ("lgrawa:score_reset=true", "only score_from = 'training' has it"),
        ("local-lgrawa:score_dropout=true", "the dropout of training"),
        ("mean:score_momentum=0.5", "only the norm of a gradient has it"),
        ("lsgd:score_window=0", "score_window is 0"),
        ("lsgd:score_window=4294967295", "from 1 to 1000000"),
        ("lsgd:group=4", "did you mean 'inner.group'?"),
        ("lsgd:inner=4", "has no knob 'inner'"),
        ("lsgd:inner.period=2", "say how many workers form a group"),
        ("lsgd:inner.group=0", "inner.group is 0"),
        ("lsgd:inner.group=2,inner.period=3", "must be a multiple"),
        ("lsgd:inner.radius=1", "has no knob 'inner.radius'"),
        ("dp-sgd:period=2", "averaged at every step"),
        ("dp-sgd:toward=old", "averaged at every step"),
        ("dp-sgd:centre=moving,rate=0.5", "averaged at every step"),
        ("dp-sgd:evaluate=centre", "averaged at every step"),
        ("dp-sam:score=layers,weighting=inverse", "averaged at every step"),
        ("dp-sgd:score=loss,weighting=smallest", "averaged at every step"),
        ("sgd:period=7,pull=0.3", "it does not communicate"),
        ("sgd:score=layers,weighting=inverse", "it does not communicate"),
        ("sgd:evaluate=centre", "it does not communicate"),
        ("dp-sgd:inner.group=2", "only methods that share parameters have an inner level"),
        ("dp-sam:radius=0", "radius is 0, but must be positive"),
        ("dp-sam:radius=inf", "radius is inf, but must be positive"),
        ("sgd:prox=0.1", "it does not communicate"),
    ] {
        let found = refused(text);
        assert!(found.contains(words), "{text}: {found}");
    }
}

#[test]
fn toml_errors_name_the_line() {
    let error = toml::from_str::<Method>("name = \"lgrawa\"\nperiod = \"often\"\n").unwrap_err();
    assert!(error.to_string().contains("line 2"), "{error}");
    let error = toml::from_str::<Method>("name = \"lgrawa\"\nperod = 4\n").unwrap_err();
    assert!(error.to_string().contains("perod") && error.to_string().contains("line 2"), "{error}");
}

fn any_method() -> impl Strategy<Value = Method> {
    let knob = |values: Vec<&'static str>| proptest::option::of(prop::sample::select(values));
    (
        prop::sample::select(crate::method::names()),
        (
            knob(vec!["paper", "reference"]),
            knob(vec!["1", "4", "16"]),
            knob(vec!["0", "0.25", "1", "rate/M"]),
        ),
        (
            knob(vec!["new", "old"]),
            knob(vec!["0", "0.125"]),
            knob(vec!["none", "loss", "gradient", "layer-sum", "layers"]),
        ),
        (
            knob(vec!["common-batch", "own-batch", "training"]),
            knob(vec!["0", "0.5"]),
            knob(vec!["uniform", "inverse", "smallest"]),
        ),
        (
            knob(vec!["weighted", "moving"]),
            knob(vec!["0.5"]),
            knob(vec!["0.1"]),
            knob(vec!["mean", "centre", "best", "each"]),
        ),
        (knob(vec!["2"]), knob(vec!["1", "4"]), knob(vec!["0.75"])),
    )
        .prop_filter_map("knobs that go together", |(name, a, b, c, d, e)| {
            let knobs = [
                ("preset", a.0),
                ("period", a.1),
                ("pull", a.2),
                ("toward", b.0),
                ("prox", b.1),
                ("score", b.2),
                ("score_from", c.0),
                ("score_momentum", c.1),
                ("weighting", c.2),
                ("centre", d.0),
                ("rate", d.1),
                ("radius", d.2),
                ("evaluate", d.3),
                ("inner.group", e.0),
                ("inner.period", e.1),
                ("inner.pull", e.2),
            ];
            let said: Vec<String> = knobs.iter().filter_map(|(k, v)| v.map(|v| format!("{k}={v}"))).collect();
            format!("{name}:{}", said.join(",")).trim_end_matches(':').parse().ok()
        })
}

proptest! {
    #[test]
    fn printed_methods_read_back(method in any_method()) {
        prop_assert_eq!(&read(&method.to_string()), &method);
        prop_assert_eq!(&toml::from_str::<Method>(&method.to_toml()).unwrap(), &method);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,40}", tail in "(lgrawa|lsgd|easgd):([a-z_.]{1,12}=[a-z0-9./-]{0,6},?){0,4}") {
        let _ = (text.parse::<Method>(), tail.parse::<Method>(), toml::from_str::<Method>(&text));
    }
}

/// Texts of before keep their meaning; a method's knobs say all of it.
#[test]
fn a_recorded_text_keeps_its_meaning() {
    let before = |text: &str| Method::recorded_before(text).unwrap();
    for (old, now) in [
        ("mean", "mean:pull=0.5,prox=0.01"),
        ("mean:period=4", "mean:period=4,pull=0.5,prox=0.01"),
        ("mean:pull=1,prox=0", "mean"),
        ("mean:pull=1", "mean:prox=0.01"),
        ("diloco:momentum=0.3", "diloco:momentum=0.3,prox=0.01"),
        ("slowmo", "slowmo:prox=0.01"),
        ("qsr:prox=0", "qsr"),
        ("dppf:preset=reference", "dppf:preset=reference,prox=0.01"),
        ("mean:centre=moving", "mean:centre=moving,pull=0.5,prox=0.01"),
        ("lgrawa", "lgrawa"),
        ("easgd:pull=0.3", "easgd:pull=0.3"),
    ] {
        assert_eq!(before(old), read(now), "{old}");
    }
    for name in Name::ALL {
        let (before, now) = (before(name.as_str()), read(name.as_str()));
        assert_eq!(before.pull, if name == Name::Mean { Pull::Fixed(0.5) } else { now.pull }, "{name}");
    }
    assert!(Method::recorded_before("maen").is_err());
    let knobs = read("mean:period=3").to_knobs();
    assert_eq!(knobs[0], ("name".into(), "mean".into()));
    assert!(knobs.contains(&("pull".into(), "1.0".into())) && knobs.contains(&("period".into(), "3".into())));
    assert!(
        read("lsgd:inner.group=2")
            .to_knobs()
            .iter()
            .any(|(knob, value)| knob == "inner.group" && value == "2")
    );
}
