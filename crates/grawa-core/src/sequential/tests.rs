use super::*;

use crate::{FunctionReplica, Name, Preset, Sgd};

type Bowl = fn(&[f32], Key, &mut [f32]) -> f64;

/// f = ½‖x‖² with the worker's own constant push, so that workers part between rounds.
fn bowl(x: &[f32], key: Key, gradient: &mut [f32]) -> f64 {
    let push = key.stream().unit() - 0.5;
    for (g, &x) in gradient.iter_mut().zip(x) {
        *g = x + push;
    }
    x.iter().map(|&x| f64::from(x * x) / 2.0).sum()
}

fn group(method: &str, starts: &[f32]) -> Sequential<FunctionReplica<Bowl>> {
    let layout = Layout::new([("a", vec![1]), ("b", vec![2])]).unwrap();
    let replicas = starts
        .iter()
        .map(|&x| FunctionReplica::new(layout.clone(), vec![x; 3], bowl as Bowl).unwrap())
        .collect();
    Sequential::new(method.parse().unwrap(), Sgd::default(), 7, replicas).unwrap()
}

fn positions(run: &mut Sequential<FunctionReplica<Bowl>>) -> Vec<Vec<f32>> {
    run.replicas().iter_mut().map(|replica| replica.parameters().to_vec()).collect()
}

#[test]
fn every_method_descends() {
    for name in Name::ALL {
        for preset in ["paper", "reference"] {
            let mut run = group(&format!("{name}:preset={preset}"), &[2.0, -3.0, 4.0, 5.0]);
            for _ in 0..400 {
                run.advance(0.02).unwrap();
            }
            for model in run.evaluated() {
                assert!(model.iter().all(|x| x.abs() < 0.3), "{name} ended at {model:?}");
            }
        }
    }
}

#[test]
fn the_same_run_twice_gives_the_same_bits() {
    let run = |seed| {
        let layout = Layout::flat(2);
        let replicas = (0..3)
            .map(|_| FunctionReplica::new(layout.clone(), vec![1.0; 2], bowl as Bowl).unwrap())
            .collect();
        let mut run =
            Sequential::new("lgrawa:period=4".parse().unwrap(), Sgd::default(), seed, replicas).unwrap();
        for _ in 0..50 {
            run.advance(0.05).unwrap();
        }
        positions(&mut run)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn rounds_come_every_period() {
    let mut run = group("mean:period=3", &[1.0, 2.0]);
    let rounds: Vec<usize> = (0..9).map(|_| run.advance(0.1).unwrap().len()).collect();
    assert_eq!(rounds, [0, 0, 1, 0, 0, 1, 0, 0, 1]);
}

#[test]
fn groups_meet_more_often_than_all() {
    let mut run =
        group("lsgd:period=4,pull=1,prox=0,inner.group=2,inner.period=2,inner.pull=1", &[1.0, 2.0, 3.0, 4.0]);
    let plans: Vec<Vec<Plan>> = (0..4).map(|_| run.advance(0.01).unwrap()).collect();
    let sizes: Vec<Vec<usize>> =
        plans.iter().map(|plans| plans.iter().map(|plan| plan.workers.len()).collect()).collect();
    assert_eq!(sizes, [vec![], vec![2, 2], vec![], vec![2, 2, 4]]);
    // At full pull each group copies its leader, then all copy the leader of all, who is of the group that
    // started nearer to the minimum.
    assert_eq!(plans[3][2].weights.of(0)[2..], [0.0, 0.0]);
    let x = positions(&mut run);
    assert!(x.iter().all(|x| *x == run.centre()));
}

#[test]
fn a_last_group_may_be_smaller() {
    let mut run = group("lsgd:period=1,inner.group=2", &[1.0, 2.0, 3.0]);
    let sizes: Vec<usize> = run.advance(0.01).unwrap().iter().map(|plan| plan.workers.len()).collect();
    assert_eq!(sizes, [2, 1, 3]);
}

/// Averaging gradients keeps workers together: M workers on batches of B are one worker on a batch of M·B.
#[test]
fn gradient_sharing_keeps_workers_equal_and_is_large_batch_sgd() {
    let mut run = group("dp-sgd", &[1.0; 4]);
    let (mut x, mut v) = (vec![1.0f32; 3], vec![0.0f32; 3]);
    for step in 0..20 {
        run.advance(0.1).unwrap();
        let mut mean = vec![0.0f32; 3];
        for worker in 0..4 {
            let mut g = vec![0.0f32; 3];
            bowl(&x, Key::new(7, Purpose::Step).worker(worker).step(step), &mut g);
            mean.iter_mut().zip(g).for_each(|(mean, g)| *mean += 0.25 * g);
        }
        crate::step::descend(&Sgd::default(), 0.1, &mut x, &mut v, &mean, &[]).unwrap();
        for worker in positions(&mut run) {
            assert!(worker.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-6));
        }
    }
    let x = positions(&mut run);
    assert!(x.iter().all(|other| *other == x[0]));
}

#[test]
fn sam_descends_by_the_gradient_at_the_ascended_point() {
    let steep = |x: &[f32], _: Key, g: &mut [f32]| {
        g[0] = x[0] * x[0] * x[0];
        f64::from(x[0].powi(4) / 4.0)
    };
    let replica = FunctionReplica::new(Layout::flat(1), vec![1.0], steep).unwrap();
    let mut run =
        Sequential::new("dp-sam:radius=0.5".parse().unwrap(), Sgd::PLAIN, 0, vec![replica]).unwrap();
    run.advance(0.1).unwrap();
    // 1 − 0.1·(1 + 0.5)³
    assert!((run.replicas()[0].parameters()[0] - 0.6625).abs() < 1e-6);
    assert_eq!(run.losses(), [0.25]);
}

#[test]
fn a_worker_that_breaks_is_healed_by_the_round() {
    for method in ["mean", "easgd", "lsgd", "grawa", "mgrawa", "lgrawa", "local-mgrawa", "local-lgrawa"] {
        let mut run = group(&format!("{method}:period=2"), &[1.0, 2.0, 3.0]);
        run.step(0.1).unwrap();
        run.replicas()[1].parameters()[2] = f32::NAN;
        let plans = run.advance(0.1).unwrap();
        assert!(
            plans[0].reasons.iter().any(|reason| reason.starts_with("worker 1 is not finite")),
            "{method}: {:?}",
            plans[0].reasons
        );
        let centre = run.centre().to_vec();
        assert_eq!(run.replicas()[1].parameters(), centre, "{method}");
        assert!(positions(&mut run).iter().flatten().all(|x| x.is_finite()));
    }
}

#[test]
fn a_gradient_that_breaks_is_left_out_where_gradients_are_shared() {
    let broken = |x: &[f32], key: Key, g: &mut [f32]| {
        g[0] = if key == Key::new(7, Purpose::Step).worker(1).step(1) { f32::NAN } else { x[0] };
        0.0
    };
    for method in ["dp-sgd", "dp-sam"] {
        let replicas =
            (0..3).map(|_| FunctionReplica::new(Layout::flat(1), vec![1.0], broken).unwrap()).collect();
        let mut run = Sequential::new(method.parse().unwrap(), Sgd::PLAIN, 7, replicas).unwrap();
        run.advance(0.1).unwrap();
        let plan = &run.advance(0.1).unwrap()[0];
        assert_eq!(plan.replaced, [false, true, false], "{method}");
        assert!(run.replicas().iter_mut().all(|replica| (replica.parameters()[0] - 0.81).abs() < 0.02));
    }
}

#[test]
fn scoring_changes_nothing_that_training_sees() {
    // With no pull and no prox, a method that scores walks the path of one that does not.
    let mut scored = group("lgrawa:pull=0,prox=0,period=2", &[1.0, 2.0]);
    let mut plain = group("mean:pull=0,prox=0,period=2", &[1.0, 2.0]);
    for _ in 0..20 {
        scored.advance(0.1).unwrap();
        plain.advance(0.1).unwrap();
    }
    assert_eq!(positions(&mut scored), positions(&mut plain));
}

#[test]
fn what_is_evaluated_is_the_methods_choice() {
    let mut each = group("mean:evaluate=each,pull=0,prox=0", &[1.0, 3.0]);
    assert_eq!(each.evaluated(), [vec![1.0; 3], vec![3.0; 3]]);
    assert_eq!(group("mean", &[1.0, 3.0]).evaluated(), [vec![2.0; 3]]);
    let mut best = group("mean:evaluate=best,pull=0,prox=0", &[3.0, 1.0]);
    best.advance(0.0).unwrap();
    assert_eq!(best.evaluated(), [vec![1.0; 3]]);
    let mut easgd = group("easgd:period=1", &[1.0, 3.0]);
    easgd.advance(0.0).unwrap();
    assert_eq!(easgd.evaluated()[0], easgd.centre());
}

/// Workers that are apart make the mean by a round that pulls nobody: its bits are those of the sequential run.
#[test]
fn an_evaluated_mean_has_the_bits_of_a_round() {
    let starts = |worker: usize| (0..100).map(|at| ((at * 3 + worker) as f32).sin()).collect::<Vec<f32>>();
    let replica = |worker| FunctionReplica::new(Layout::flat(100), starts(worker), bowl as Bowl).unwrap();
    let method: Method = "mean:pull=0,prox=0".parse().unwrap();
    for workers in 1..=7 {
        let replicas = (0..workers).map(replica).collect();
        let mut run = Sequential::new(method.clone(), Sgd::PLAIN, 7, replicas).unwrap();
        let found = run.evaluated();
        run.round().unwrap();
        assert_eq!(found, [run.centre()], "{workers} workers");
    }
}

#[test]
fn replicas_must_share_a_layout() {
    let replicas = [2, 3].map(|n| FunctionReplica::new(Layout::flat(n), vec![0.0; n], bowl as Bowl).unwrap());
    let method = Method::named(Name::Mean, Preset::Paper);
    assert!(Sequential::new(method.clone(), Sgd::PLAIN, 0, replicas.into()).is_err());
    assert!(Sequential::<FunctionReplica<Bowl>>::new(method, Sgd::PLAIN, 0, vec![]).is_err());
}

/// A worker that overflows in the middle of a cycle: the prox must not make it look finite again.
#[test]
fn a_worker_that_breaks_early_is_still_seen_at_the_round() {
    let kick = |x: &[f32], key: Key, g: &mut [f32]| {
        let kicked = key == Key::new(7, Purpose::Step).worker(1).step(0);
        g[0] = if kicked {
            3e38
        } else if x[0].abs() > 1e30 {
            0.0
        } else {
            x[0]
        };
        f64::from(x[0])
    };
    for method in ["mean:period=4,prox=0.1", "lsgd:period=4", "mgrawa:period=4", "easgd:period=4"] {
        let replicas =
            (0..3).map(|_| FunctionReplica::new(Layout::flat(1), vec![1.0], kick).unwrap()).collect();
        let mut run = Sequential::new(method.parse().unwrap(), Sgd::PLAIN, 7, replicas).unwrap();
        let plans: Vec<Plan> = (0..4).flat_map(|_| run.advance(2.0).unwrap()).collect();
        assert!(
            plans[0].reasons.iter().any(|reason| reason.starts_with("worker 1 is not finite")),
            "{method}: {:?}",
            plans[0].reasons
        );
        assert!(run.centre()[0].abs() < 100.0, "{method}: {:?}", run.centre());
    }
}

#[test]
fn a_lost_start_does_not_poison_the_centre() {
    for method in ["mean", "easgd", "easgd:preset=reference", "lsgd", "lgrawa"] {
        let mut run = group(
            &format!("{method}{}period=2", if method.contains(':') { "," } else { ":" }),
            &[1.0, f32::NAN, 3.0],
        );
        assert_eq!(run.centre(), [2.0; 3]);
        run.advance(0.01).unwrap();
        run.advance(0.01).unwrap();
        assert!(positions(&mut run).iter().flatten().all(|x| x.is_finite()), "{method}");
    }
    let lost = [f32::NAN, f32::INFINITY]
        .map(|x| FunctionReplica::new(Layout::flat(1), vec![x], bowl as Bowl).unwrap());
    assert_eq!(
        Sequential::new("mean".parse().unwrap(), Sgd::PLAIN, 0, lost.into()).unwrap_err(),
        Error::NothingFinite
    );
}

#[test]
fn the_best_worker_is_never_one_without_a_loss() {
    let odd = |x: &[f32], key: Key, g: &mut [f32]| {
        g[0] = 0.0;
        if key == Key::new(7, Purpose::Step).worker(1).step(0) { -f64::NAN } else { f64::from(x[0]) }
    };
    let replicas = [1.0, 2.0].map(|x| FunctionReplica::new(Layout::flat(1), vec![x], odd).unwrap());
    let mut run =
        Sequential::new("mean:evaluate=best,pull=0,prox=0".parse().unwrap(), Sgd::PLAIN, 7, replicas.into())
            .unwrap();
    run.advance(0.1).unwrap();
    assert_eq!(run.evaluated(), [[1.0]]);
}
