use super::*;
use crate::{Name, Outer, Preset};
use proptest::collection::vec;
use proptest::prelude::*;

fn method(text: &str) -> Method {
    text.parse().unwrap()
}

fn report(worker: u32, scores: &[f64]) -> Report {
    Report { worker, scores: scores.to_vec(), finite: true, steps: 4 }
}

fn layers(count: usize) -> Layout {
    Layout::new((0..count).map(|k| (format!("layer{k}"), vec![3]))).unwrap()
}

fn decide(text: &str, layout: &Layout, reports: &[Report]) -> Plan {
    plan(&method(text), layout, &Memory::default(), reports).unwrap()
}

fn words(plan: &Plan) -> String {
    plan.reasons.iter().map(|reason| format!("{reason}; ")).collect()
}

#[test]
fn every_method_has_a_plan_and_it_sums_to_one() {
    let layout = layers(3);
    for name in Name::ALL {
        for preset in [Preset::Paper, Preset::Reference] {
            let method = Method::named(name, preset);
            let scores =
                |w: u32| (0..method.scores(3)).map(|k| f64::from(w + 1) + k as f64).collect::<Vec<_>>();
            let reports: Vec<Report> = (0..4).map(|w| report(w, &scores(w))).collect();
            let plan = plan(&method, &layout, &Memory::default(), &reports).unwrap();
            for row in plan.weights.rows() {
                assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{name}: {row:?}");
            }
            assert_eq!(plan.memory.rounds, 1);
        }
    }
}

#[test]
fn scores_have_momentum_over_rounds() {
    // Worker 1 scores 4 then 2, worker 0 always 2.601855, which is what 4 then 2 averages to.
    let method = method("mgrawa");
    let layout = layers(1);
    let first =
        plan(&method, &layout, &Memory::default(), &[report(0, &[2.601_855]), report(1, &[4.0])]).unwrap();
    let second =
        plan(&method, &layout, &first.memory, &[report(0, &[2.601_855]), report(1, &[2.0])]).unwrap();
    assert!((second.weights.of(0)[0] - 0.5).abs() < 1e-6, "{:?}", second.weights);
    assert_eq!(second.memory.rounds, 2);
}

#[test]
fn memory_belongs_to_the_worker_not_to_its_place() {
    let (method, layout) = (method("mgrawa"), layers(1));
    let memory =
        plan(&method, &layout, &Memory::default(), &[report(5, &[4.0]), report(7, &[1.0])]).unwrap().memory;
    let there = plan(&method, &layout, &memory, &[report(5, &[2.0]), report(7, &[1.0])]).unwrap();
    let back = plan(&method, &layout, &memory, &[report(7, &[1.0]), report(5, &[2.0])]).unwrap();
    assert_eq!(there.memory, back.memory);
    assert_eq!(there.weights.of(0)[0], back.weights.of(0)[1]);
    // A worker that stays away keeps its memory.
    let alone = plan(&method, &layout, &memory, &[report(7, &[1.0])]).unwrap();
    assert_eq!(alone.memory.averages.get(&5), memory.averages.get(&5));
    assert_eq!(words(&alone), "worker 7 is alone and is the centre; ");
    assert_eq!(alone.weights.of(0), [1.0]);
}

#[test]
fn a_worker_that_is_not_finite_weighs_nothing_and_is_replaced() {
    for text in ["easgd", "lsgd", "grawa", "mgrawa", "mean", "dp-sgd"] {
        let score: &[f64] = if method(text).scores(1) == 0 { &[] } else { &[1.0] };
        let mut reports = [report(0, score), report(1, score), report(2, score)];
        reports[0].finite = false;
        let plan = decide(text, &layers(1), &reports);
        assert_eq!(plan.weights.of(0)[0], 0.0, "{text}");
        assert_eq!(plan.replaced, [true, false, false]);
        assert!(words(&plan).contains("worker 0 is not finite and takes over the centre"));
        assert!(!plan.memory.averages.contains_key(&0));
    }
}

#[test]
fn when_nobody_is_finite_nobody_weighs_anything() {
    let mut reports = [report(0, &[1.0]), report(1, &[1.0])];
    reports.iter_mut().for_each(|report| report.finite = false);
    let plan = decide("mgrawa", &layers(1), &reports);
    assert_eq!(plan.weights.of(0), [0.0, 0.0]);
    assert!(words(&plan).contains("no worker is finite"));
}

#[test]
fn bad_scores_are_named() {
    for bad in [f64::NAN, f64::INFINITY] {
        let plan = decide("mgrawa", &layers(1), &[report(0, &[1.0]), report(1, &[bad]), report(2, &[1.0])]);
        assert_eq!(plan.weights.of(0), [0.5, 0.0, 0.5]);
        assert_eq!(words(&plan), format!("worker 1 weighs nothing: its score is {bad}; "));
    }
    let plan = decide("lgrawa", &layers(2), &[report(0, &[1.0, 1.0]), report(1, &[f64::NAN, 1.0])]);
    assert_eq!((plan.weights.of(0), plan.weights.of(1)), (&[1.0, 0.0][..], &[0.5, 0.5][..]));
    assert_eq!(words(&plan), "worker 1 weighs nothing in layer0: its score is NaN; ");
    // All of a worker's scores gone is said once, not for every layer.
    let plan = decide("lgrawa", &layers(2), &[report(0, &[1.0, 1.0]), report(1, &[f64::NAN; 2])]);
    assert_eq!(words(&plan), "worker 1 weighs nothing: its score is NaN; ");
    let plan = decide("mgrawa", &layers(1), &[report(0, &[0.0]), report(1, &[2.0])]);
    assert_eq!(words(&plan), "worker 0's score of 0.000e0 counts as 2.000e-9; ");
    let plan = decide("mgrawa", &layers(1), &[report(0, &[f64::NAN]), report(1, &[f64::INFINITY])]);
    assert_eq!(plan.weights.of(0), [0.5, 0.5]);
    assert!(words(&plan).contains("no usable score: all workers weigh the same"));
}

#[test]
fn without_a_step_there_is_no_score() {
    let mut idle = report(1, &[f64::NAN]);
    idle.steps = 0;
    let plan = decide("local-mgrawa", &layers(1), &[report(0, &[2.0]), idle]);
    assert_eq!(plan.weights.of(0), [1.0, 0.0]);
    assert_eq!(words(&plan), "worker 1 weighs nothing: it made no step to be judged by; ");
}

#[test]
fn silent_spans_are_averaged_plainly() {
    // A bias before batch norm, as measured on VGG-16: norms of 1e-6 to 4e-3 beside a total of some 6000.
    let reports = [report(0, &[6000.0, 1e-6]), report(1, &[2000.0, 1e-3])];
    let plan = decide("lgrawa", &layers(2), &reports);
    assert_eq!((plan.weights.of(0), plan.weights.of(1)), (&[0.25, 0.75][..], &[0.5, 0.5][..]));
    assert_eq!(words(&plan), "the gradient of layer1 is rounding noise: all workers weigh the same in it; ");
    // Declared in the layout, whatever its norm.
    let declared = layers(2).silence("layer1").unwrap();
    let plan = decide("lgrawa", &declared, &[report(0, &[1.0, 1.0]), report(1, &[1.0, 9.0])]);
    assert_eq!(plan.weights.of(1), [0.5, 0.5]);
    assert_eq!(words(&plan), "the loss does not depend on layer1: all workers weigh the same in it; ");
    // Small in one worker only: a score like any other.
    let plan = decide("lgrawa", &layers(2), &[report(0, &[6000.0, 1e-3]), report(1, &[2000.0, 1.0])]);
    assert!(plan.weights.of(1)[0] > 0.99);
}

#[test]
fn lsgd_follows_the_smallest_loss() {
    let plan = decide("lsgd", &layers(1), &[report(3, &[-0.5]), report(1, &[-2.0]), report(0, &[f64::NAN])]);
    assert_eq!(plan.weights.of(0), [0.0, 1.0, 0.0]);
    assert!(words(&plan).contains("worker 1 leads with -2.0000"), "{}", words(&plan));
    assert!(words(&plan).contains("worker 0 weighs nothing: its score is NaN"));
    let tie = decide("lsgd", &layers(1), &[report(3, &[1.0]), report(1, &[1.0])]);
    assert_eq!(tie.weights.of(0), [0.0, 1.0]);
}

#[test]
fn the_authors_easgd_shares_its_rate_out() {
    let reports = [report(0, &[]), report(1, &[]), report(2, &[]), report(3, &[])];
    let plan = decide("easgd:preset=reference,rate=0.1", &layers(1), &reports);
    assert_eq!((plan.pull, plan.toward, plan.centre), (0.025, Toward::Old, Centre::Moving { rate: 0.1 }));
    let plan = decide("easgd:pull=0.3", &layers(1), &reports);
    assert_eq!((plan.pull, plan.toward, plan.centre), (0.3, Toward::New, Centre::Moving { rate: 0.3 }));
}

/// Worked out by hand: 1/score is (1, 1/3) and the steps (2, 18): the products are 2 and 6.
#[test]
fn weights_are_multiplied_by_steps() {
    let took = |worker, score: &[f64], steps| Report { steps, ..report(worker, score) };
    let reports = [took(0, &[1.0], 2), took(1, &[3.0], 18)];
    assert_eq!(decide("mgrawa:by=steps", &layers(1), &reports).weights.of(0), [0.25, 0.75]);
    assert_eq!(decide("mgrawa", &layers(1), &reports).weights.of(0), [0.75, 0.25]);
    let plan = decide("mean:by=steps", &layers(1), &[took(0, &[], 0), took(1, &[], 3), took(2, &[], 1)]);
    assert_eq!(plan.weights.of(0), [0.0, 0.75, 0.25]);
    assert_eq!(words(&plan), "worker 0 weighs nothing: it made no step; ");
    // The leader made no step: it leads all the same.
    let plan = decide("lsgd:by=steps", &layers(1), &[took(0, &[1.0], 0), took(1, &[2.0], 3)]);
    assert_eq!(plan.weights.of(0), [1.0, 0.0]);
    assert!(words(&plan).contains("no worker with a weight made a step"), "{}", words(&plan));
}

#[test]
fn reports_must_fit() {
    let (method, memory) = (method("lgrawa"), Memory::default());
    let wrong = |reports: &[Report]| plan(&method, &layers(2), &memory, reports).unwrap_err().to_string();
    assert!(wrong(&[]).contains("at least one worker"));
    assert!(wrong(&[report(1, &[1.0; 2]), report(1, &[1.0; 2])]).contains("[1, 1]"));
    assert_eq!(wrong(&[report(1, &[1.0])]), "worker 1 reports 1 scores, but lgrawa needs 2");
}

proptest! {
    #[test]
    fn equal_layers_make_lgrawa_mgrawa(scores in vec(1e-3f64..1e3, 1..9), spans in 1usize..6) {
        let workers = || scores.iter().zip(0..);
        let by_layer: Vec<Report> = workers().map(|(&s, w)| report(w, &vec![s; spans])).collect();
        let by_model: Vec<Report> = workers().map(|(&s, w)| report(w, &[s * spans as f64])).collect();
        let (l, m) = (decide("lgrawa", &layers(spans), &by_layer), decide("mgrawa", &layers(spans), &by_model));
        for k in 0..spans {
            for (a, b) in l.weights.of(k).iter().zip(m.weights.of(k)) {
                prop_assert!((a - b).abs() < 1e-6);
            }
        }
    }

    /// Whatever is reported: weights are finite, each row sums to one, and the lost weigh nothing.
    #[test]
    fn no_report_breaks_a_plan(
        rounds in vec(vec((vec(proptest::num::f64::ANY, 3), any::<bool>()), 5), 1..4),
        text in prop::sample::select(vec!["lgrawa", "mgrawa", "grawa", "lsgd", "local-lgrawa", "easgd", "mean", "lgrawa:by=steps"]),
    ) {
        let method = method(text);
        let mut memory = Memory::default();
        for round in rounds {
            let reports: Vec<Report> = round.iter().zip(0..).map(|((scores, finite), w)| Report {
                finite: *finite, steps: u64::from(w), ..report(w, &scores[..method.scores(3)])
            }).collect();
            let plan = plan(&method, &layers(3), &memory, &reports).unwrap();
            let lives = reports.iter().any(|report| report.finite);
            for row in plan.weights.rows() {
                let sum: f32 = row.iter().sum();
                prop_assert!((sum - if lives { 1.0 } else { 0.0 }).abs() < 1e-6, "{row:?}");
                prop_assert!(row.iter().zip(&reports).all(|(w, r)| (0.0..=1.0).contains(w) && (r.finite || *w == 0.0)));
            }
            memory = plan.memory;
        }
    }

    #[test]
    fn permuted_reports_give_permuted_plans(scores in vec(vec(1e-3f64..1e3, 3), 2..7), seed: u64) {
        let reports: Vec<Report> = scores.iter().zip(0..).map(|(scores, w)| report(w, scores)).collect();
        let order = crate::Key::new(seed, crate::Purpose::Problem).permutation(reports.len() as u32);
        let permuted: Vec<Report> = order.iter().map(|&i| reports[i as usize].clone()).collect();
        let (plain, other) = (decide("lgrawa", &layers(3), &reports), decide("lgrawa", &layers(3), &permuted));
        for k in 0..3 {
            for (place, &from) in order.iter().enumerate() {
                prop_assert!((other.weights.of(k)[place] - plain.weights.of(k)[from as usize]).abs() < 1e-6);
            }
        }
    }
}

/// A worker with broken scores must not switch the guard for silent spans off.
#[test]
fn silent_spans_stay_silent_beside_a_broken_worker() {
    let good = [report(0, &[6000.0, 1e-6]), report(1, &[2000.0, 1e-3])];
    for bad in [[f64::NAN, f64::NAN], [f64::INFINITY, 0.0], [-1.0, 1.0]] {
        let plan = decide("lgrawa", &layers(2), &[&good[..], &[report(2, &bad)]].concat());
        let row = plan.weights.of(1);
        assert!(row.iter().all(|&weight| (weight - 1.0 / 3.0).abs() < 1e-6), "{bad:?}: {row:?}");
    }
}

#[test]
fn a_negative_score_does_not_enter_the_momentum() {
    let (method, layout) = (method("mgrawa"), layers(1));
    let round = |memory: &Memory, score: f64| {
        plan(&method, &layout, memory, &[report(0, &[score]), report(1, &[100.0])]).unwrap()
    };
    let first = round(&Memory::default(), 100.0);
    let second = round(&first.memory, -5.0);
    assert_eq!(second.weights.of(0), [0.0, 1.0]);
    assert!(words(&second).contains("worker 0 weighs nothing: its score is -5"), "{}", words(&second));
    assert_eq!(round(&second.memory, 100.0).weights.of(0), [0.5, 0.5]);
}

#[test]
fn one_exploding_score_leaves_the_others_apart() {
    let plan = decide("mgrawa", &layers(1), &[report(0, &[1.0]), report(1, &[3.0]), report(2, &[1e30])]);
    let weights = plan.weights.of(0);
    assert!((weights[0] - 0.75).abs() < 1e-6 && (weights[1] - 0.25).abs() < 1e-6, "{weights:?}");
}

/// Every field, changed by itself, changes the digest; what a plan does not differ in does not.
#[test]
fn the_digest_covers_every_field() {
    let reports: Vec<Report> = (0..3).map(|worker| report(worker, &[1.0 + f64::from(worker); 2])).collect();
    let base = decide("lgrawa", &layers(2), &reports);
    assert_eq!(base.digest(), decide("lgrawa", &layers(2), &reports).digest());
    let mut averages = base.memory.clone();
    averages.averages.get_mut(&1).unwrap().sums[1] += 1e-12;
    let mut trust = base.memory.clone();
    trust.averages.get_mut(&2).unwrap().weights[0] /= 2.0;
    let mut rows = base.weights.clone();
    rows.rows[4] = f32::from_bits(rows.rows[4].to_bits() + 1);
    let moving = |rate| Plan { centre: Centre::Moving { rate }, ..base.clone() };
    let outer = |by_rate| {
        let outer = Outer { rate: 0.7, momentum: 0.9, nesterov: true, by_rate };
        Plan { centre: Centre::Outer(outer), ..base.clone() }
    };
    let changed = [
        Plan { share: Share::Gradients, ..base.clone() },
        Plan { share: Share::Nothing, ..base.clone() },
        Plan { workers: vec![0, 1, 3], ..base.clone() },
        Plan { workers: vec![1, 0, 2], ..base.clone() },
        Plan { weights: rows, ..base.clone() },
        Plan { weights: Weights { workers: 2, rows: base.weights.rows.clone() }, ..base.clone() },
        moving(0.1),
        moving(f64::from_bits(0.1f64.to_bits() + 1)),
        Plan { pull: -base.pull, ..base.clone() },
        Plan { toward: Toward::Old, ..base.clone() },
        Plan { push: 0.1, ..base.clone() },
        outer(Some(0.1)),
        outer(Some(0.2)),
        outer(None),
        Plan { replaced: vec![false, false, true], ..base.clone() },
        Plan { reasons: vec!["worker 0 is alone".into()], ..base.clone() },
        Plan { reasons: vec!["worker 0 leads".into()], ..base.clone() },
        Plan {
            memory: Memory { rounds: base.memory.rounds + (1 << 32), ..base.memory.clone() },
            ..base.clone()
        },
        Plan { memory: averages, ..base.clone() },
        Plan { memory: trust, ..base.clone() },
        Plan { memory: Memory { rounds: base.memory.rounds, ..Memory::default() }, ..base.clone() },
    ];
    let mut digests: Vec<u64> = changed.iter().map(Plan::digest).chain([base.digest()]).collect();
    let plans = digests.len();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), plans, "two of these plans have the same digest");
}
