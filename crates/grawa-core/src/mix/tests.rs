use super::*;
use crate::{Memory, Method, Report, plan};
use proptest::collection::vec;
use proptest::prelude::*;

fn method(text: &str) -> Method {
    text.parse().unwrap()
}

/// A round of one-span workers with these scores.
fn round(text: &str, scores: &[f64], workers: &mut [Vec<f32>], centre: &mut [f32]) -> Plan {
    decide(&method(text), scores, workers, centre)
}

fn decide(method: &Method, scores: &[f64], workers: &mut [Vec<f32>], centre: &mut [f32]) -> Plan {
    let layout = Layout::flat(workers[0].len());
    let reports: Vec<Report> = (scores.iter().zip(0..))
        .zip(&*workers)
        .map(|((&score, worker), x)| Report {
            worker,
            scores: vec![score; method.scores(1)],
            finite: x.iter().all(|x| x.is_finite()),
            steps: 1,
        })
        .collect();
    let plan = plan(method, &layout, &Memory::default(), &reports).unwrap();
    let mut slices: Vec<&mut [f32]> = workers.iter_mut().map(Vec::as_mut_slice).collect();
    mix(&plan, &layout, &mut slices, centre).unwrap();
    plan
}

/// What a group keeps with this centre before the first round.
fn kept(text: &str, centre: &[f32]) -> Vec<f32> {
    let mut kept = centre.to_vec();
    kept.resize(method(text).centre.state_len(centre.len()), 0.0);
    kept
}

/// Worked out by hand: scores (1, 3), x = (2, 10), λ = 0.5.
#[test]
fn the_golden_round() {
    for text in ["grawa:pull=0.5", "mgrawa:pull=0.5", "lgrawa:pull=0.5"] {
        let (mut workers, mut centre) = ([vec![2.0], vec![10.0]], [99.0]);
        round(text, &[1.0, 3.0], &mut workers, &mut centre);
        assert_eq!((centre, workers), ([4.0], [vec![3.0], vec![7.0]]), "{text}");
    }
}

/// Worked out by hand: the authors' EASGD, M = 4, ρ = 0.1, x̃ = 0, x = (1, 2, 3, 6).
#[test]
fn the_golden_easgd() {
    let (mut workers, mut centre) = ([vec![1.0], vec![2.0], vec![3.0], vec![6.0]], [0.0]);
    round("easgd:preset=reference,rate=0.1", &[0.0; 4], &mut workers, &mut centre);
    for (found, expected) in workers.iter().zip([0.975, 1.95, 2.925, 5.85]) {
        assert!((found[0] - expected).abs() < 1e-6, "{workers:?}");
    }
    assert!((centre[0] - 0.3).abs() < 1e-7);
}

#[test]
fn lsgd_at_full_pull_copies_the_leader() {
    let (mut workers, mut centre) = ([vec![0.1, 7.0], vec![0.2, -3.3], vec![0.3, 1e30]], [0.0; 2]);
    round("lsgd:pull=1", &[3.0, 1.0, 2.0], &mut workers, &mut centre);
    assert!(workers.iter().all(|worker| *worker == [0.2, -3.3]));
    assert_eq!(centre, [0.2, -3.3]);
}

#[test]
fn easgd_at_full_rate_and_pull_is_plain_averaging() {
    let start = [vec![1.0, -2.0], vec![2.0, 4.0], vec![6.0, 1.0]];
    let (mut easgd, mut mean) = (start.clone(), start);
    let (mut moving, mut plain) = ([50.0, 50.0], [0.0; 2]);
    round("easgd:pull=1,rate=1", &[0.0; 3], &mut easgd, &mut moving);
    round("mean:pull=1", &[0.0; 3], &mut mean, &mut plain);
    assert_eq!((&easgd, moving), (&mean, plain));
    assert!(mean.iter().all(|worker| (worker[0] - 3.0).abs() < 1e-6 && (worker[1] - 1.0).abs() < 1e-6));
}

#[test]
fn shared_gradients_are_their_mean() {
    let (mut workers, mut centre) = ([vec![1.0], vec![2.0], vec![6.0]], [0.0]);
    let plan = round("dp-sgd", &[0.0; 3], &mut workers, &mut centre);
    assert_eq!(plan.share, Share::Gradients);
    assert!(workers.iter().all(|worker| (worker[0] - 3.0).abs() < 1e-6 && worker[0] == centre[0]));
}

#[test]
fn plain_sgd_leaves_everything_alone() {
    let (mut workers, mut centre) = ([vec![1.0], vec![2.0]], [7.0]);
    round("sgd", &[0.0; 2], &mut workers, &mut centre);
    assert_eq!((workers, centre), ([vec![1.0], vec![2.0]], [7.0]));
}

#[test]
fn layers_have_their_own_weights() {
    let layout = Layout::new([("a", vec![1]), ("b", vec![2])]).unwrap();
    let reports = [(0, [1.0, 3.0]), (1, [3.0, 1.0])].map(|(worker, scores)| Report {
        worker,
        scores: scores.into(),
        finite: true,
        steps: 1,
    });
    let plan = plan(&method("lgrawa:pull=1"), &layout, &Memory::default(), &reports).unwrap();
    let (mut a, mut b, mut centre) = ([0.0, 0.0, 4.0], [4.0, 4.0, 0.0], [0.0; 3]);
    mix(&plan, &layout, &mut [&mut a, &mut b], &mut centre).unwrap();
    assert_eq!((centre, a, b), ([1.0, 3.0, 1.0], [1.0, 3.0, 1.0], [1.0, 3.0, 1.0]));
}

#[test]
fn a_lost_worker_takes_over_the_centre() {
    for (text, centre_then) in
        [("mean:pull=0.5", 2.0), ("easgd:preset=reference,rate=0.5", 1.0), ("mgrawa:pull=0", 2.0)]
    {
        let (mut workers, mut centre) = ([vec![f32::NAN], vec![1.0], vec![3.0]], [0.0]);
        let plan = round(text, &[1.0; 3], &mut workers, &mut centre);
        assert_eq!(plan.replaced, [true, false, false]);
        assert_eq!((centre, workers[0][0]), ([centre_then], centre_then), "{text}");
        assert!(workers.iter().all(|worker| worker[0].is_finite()));
    }
}

#[test]
fn when_all_are_lost_the_old_centre_stays() {
    for text in ["mean", "easgd", "easgd:preset=reference", "lgrawa", "lsgd", BEYOND[0], BEYOND[2]] {
        let (mut workers, mut centre) = ([vec![f32::NAN], vec![f32::INFINITY]], kept(text, &[5.0]));
        // A velocity does not move the centre by itself.
        centre[1..].fill(1.0);
        round(text, &[1.0; 2], &mut workers, &mut centre);
        assert_eq!((centre[0], workers), (5.0, [vec![5.0], vec![5.0]]), "{text}");
        assert!(centre[1..].iter().all(|&x| x == 1.0), "{text}: {centre:?}");
    }
}

#[test]
fn vectors_must_fit() {
    let layout = Layout::flat(2);
    let reports = [0, 1].map(|worker| Report { worker, scores: vec![], finite: true, steps: 1 });
    let plan = plan(&method("mean"), &layout, &Memory::default(), &reports).unwrap();
    let run = |a: usize, b: usize, c: usize| {
        let (mut a, mut b, mut c) = (vec![0.0; a], vec![0.0; b], vec![0.0; c]);
        mix(&plan, &layout, &mut [&mut a, &mut b], &mut c)
    };
    assert!(run(2, 2, 2).is_ok());
    assert_eq!(
        run(2, 1, 2).unwrap_err().to_string(),
        "the vector of worker 1: 1 numbers were found, and 2 are needed"
    );
    assert!(run(3, 3, 3).is_err() && run(2, 2, 1).is_err());
    assert!(mix(&plan, &layout, &mut [&mut [0.0; 2]], &mut [0.0; 2]).is_err());
    assert!(
        mix_part(&plan, &layout, 1, &mut [&mut [0.0; 2], &mut [0.0; 2]], (&mut [0.0; 2], &mut [])).is_err()
    );
    let outer = crate::plan(&method("mean:centre=outer"), &layout, &Memory::default(), &reports).unwrap();
    let run = |c: usize| mix(&outer, &layout, &mut [&mut [0.0; 2], &mut [0.0; 2]], &mut vec![0.0; c]);
    assert!(run(4).is_ok() && run(2).is_err() && run(3).is_err());
}

/// Rounds whose workers have these means at these learning rates; the centre starts at (2, −1, 0). By
/// `torch.optim.SGD`: oracle/outer.py.
fn the_golden_outer_steps(text: &str, expected: [[f32; 6]; 3]) {
    let means = [[1.0, -2.0, 0.5], [0.75, -1.5, 0.25], [0.5, -1.75, 0.125]];
    let mut centre = kept(text, &[2.0, -1.0, 0.0]);
    for ((mean, rate), expected) in means.into_iter().zip([0.1, 0.1, 0.05]).zip(expected) {
        let mut workers: Vec<Vec<f32>> =
            [-1.0, 1.0].iter().map(|off| mean.iter().map(|x| x + off).collect()).collect();
        decide(&method(text).at(0.0, rate), &[0.0; 2], &mut workers, &mut centre);
        let near =
            |(found, expected): (&f32, &f32)| (found - expected).abs() <= 1e-6 * expected.abs().max(1.0);
        assert!(centre.iter().zip(&expected).all(near), "{text}: {centre:?}, not {expected:?}");
        assert!(workers.iter().all(|worker| *worker == centre[..3]), "{text}: {workers:?}");
    }
}

#[test]
fn an_outer_optimizer_is_pytorchs() {
    the_golden_outer_steps(
        "diloco",
        [
            [0.67, -2.33, 0.665, 1.0, 1.0, -0.5],
            [0.2094, -1.7931, 0.39655, 0.82, 0.07, -0.035],
            [0.130_958, -1.775_467, 0.055_233_5, 0.4474, 0.0199, 0.240_05],
        ],
    );
    the_golden_outer_steps(
        "slowmo",
        [
            [1.0, -2.0, 0.5, 10.0, 10.0, -5.0],
            [0.05, -2.2, 0.6, 9.5, 2.0, -1.0],
            [0.1675, -1.82, 0.16, -2.35, -7.6, 8.8],
        ],
    );
}

/// Where the extra is off, a method gives the bits of the row it extends.
#[test]
fn without_its_extra_a_method_is_its_base() {
    let start = [vec![0.1, -0.0], vec![0.7, 1e-3], vec![-3.3, 5.0]];
    for (text, base) in [
        ("diloco:rate=1,momentum=0", "mean:pull=1"),
        ("slowmo:momentum=0", "mean:pull=1"),
        ("dppf:push=0", "mean:pull=0.5"),
        ("qsr:qsr=0", "mean:pull=1"),
        ("mgrawa:by=steps", "mgrawa"),
    ] {
        let (mut workers, mut others) = (start.clone(), start.clone());
        let (mut centre, mut other) = (kept(text, &[0.3, -0.7]), vec![0.3, -0.7]);
        decide(&method(text).at(0.5, 0.1), &[1.0, 2.0, 4.0], &mut workers, &mut centre);
        round(base, &[1.0, 2.0, 4.0], &mut others, &mut other);
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        assert_eq!(
            (bits(&centre[..2]), bits(&workers.concat())),
            (bits(&other), bits(&others.concat())),
            "{text}"
        );
    }
}

/// Worked out by hand: x = (0, 0) and (6, 8), mean (3, 4) at a distance of 5; λ = 0.5, a push of 2.5 cancels the pull, and one of
/// 5 leads away from the mean by 2.5.
#[test]
fn the_golden_push() {
    for (push, expected) in [(2.5, [[0.0, 0.0], [6.0, 8.0]]), (5.0, [[-1.5, -2.0], [7.5, 10.0]])] {
        let (mut workers, mut centre) = ([vec![0.0, 0.0], vec![6.0, 8.0]], [0.0; 2]);
        round(&format!("mean:pull=0.5,push={push}"), &[0.0; 2], &mut workers, &mut centre);
        assert_eq!((centre, workers), ([3.0, 4.0], expected.map(Vec::from)));
    }
    // At half of the run λ has grown to a half, and a lost worker is at the centre.
    let (mut workers, mut centre) = ([vec![0.0], vec![2.0], vec![f32::NAN]], [0.0]);
    for rise in ["linear", "cosine"] {
        let method = method(&format!("mean:push=2,push_rise={rise}")).at(0.5, 0.0);
        assert!((method.push - 1.0).abs() < 1e-12, "{rise}: {}", method.push);
    }
    decide(&method("mean:pull=0.5,push=1"), &[0.0; 3], &mut workers, &mut centre);
    assert_eq!((workers, centre), ([vec![-0.5], vec![2.5], vec![1.0]], [1.0]));
    // In the mean the workers settle at a distance of push/λ.
    let (mut workers, mut centre) = ([vec![0.1], vec![-0.1]], [0.0]);
    (0..60).for_each(|_| drop(round("mean:pull=0.5,push=2", &[0.0; 2], &mut workers, &mut centre)));
    assert!((workers[0][0] - 4.0).abs() < 1e-5 && (workers[1][0] + 4.0).abs() < 1e-5, "{workers:?}");
}

const METHODS: [&str; 9] = [
    "easgd",
    "easgd:preset=reference",
    "lsgd",
    "grawa",
    "mgrawa",
    "lgrawa",
    "local-mgrawa",
    "local-lgrawa",
    "mean",
];

/// Those whose centre may leave the workers, or whose workers may leave the centre.
const BEYOND: [&str; 4] = ["diloco", "slowmo", "dppf", "lgrawa:centre=outer,push=0.1,by=steps"];

/// Workers of one length, over the whole range of f32.
fn any_workers() -> impl Strategy<Value = Vec<Vec<f32>>> {
    let number = prop_oneof![
        proptest::num::f32::NORMAL,
        proptest::num::f32::SUBNORMAL,
        Just(f32::MAX),
        Just(f32::MIN),
        Just(0.0)
    ];
    (1usize..7, 1usize..9).prop_flat_map(move |(m, p)| vec(vec(number.clone(), p), m))
}

proptest! {
    #[test]
    fn nothing_finite_becomes_infinite(
        mut workers in any_workers(),
        scores in vec(prop_oneof![proptest::num::f64::POSITIVE, Just(0.0), Just(f64::NAN)], 7),
        text in prop::sample::select([&METHODS[..], &BEYOND].concat()),
        pull in 0.0f64..=1.0,
    ) {
        let mut centre = kept(text, &workers[0]);
        let text = if text.contains(':') { text.into() } else { format!("{text}:pull={pull}") };
        let count = workers.len();
        round(&text, &scores[..count], &mut workers, &mut centre);
        prop_assert!(centre.iter().chain(workers.iter().flatten()).all(|x| x.is_finite()));
    }

    #[test]
    fn the_centre_lies_between_the_workers(
        workers in vec(vec(-100.0f32..100.0, 5), 1..9),
        scores in vec(1e-3f64..1e3, 9),
        text in prop::sample::select(METHODS[2..].to_vec()),
    ) {
        let (mut moved, mut centre) = (workers.clone(), vec![0.0; 5]);
        round(text, &scores[..workers.len()], &mut moved, &mut centre);
        for i in 0..5 {
            let column = || workers.iter().map(|x| x[i]);
            let (low, high) = (column().fold(f32::INFINITY, f32::min), column().fold(f32::NEG_INFINITY, f32::max));
            prop_assert!(low - 1e-4 <= centre[i] && centre[i] <= high + 1e-4);
            for (before, after) in workers.iter().zip(&moved) {
                // A pull moves a worker toward the centre and not past it.
                prop_assert!((after[i] - centre[i]).abs() <= (before[i] - centre[i]).abs() + 1e-4);
            }
        }
    }

    #[test]
    fn equal_workers_stay_where_they_are(x in vec(-1e3f32..1e3, 1..9), m in 1usize..9, scores in vec(1e-3f64..1e3, 9),
                                         text in prop::sample::select([&METHODS[..], &BEYOND].concat())) {
        let (mut workers, mut centre) = (vec![x.clone(); m], kept(text, &x));
        round(text, &scores[..m], &mut workers, &mut centre);
        for y in workers.iter().chain([&centre]) {
            // The outer momentum multiplies a rounding.
            prop_assert!(x.iter().zip(y).all(|(x, y)| (x - y).abs() <= 1e-6 * x.abs()));
        }
    }

    /// Threads that take a stretch each get the bits that one thread gets.
    #[test]
    fn parts_make_the_whole(cuts in vec(0usize..9000, 0..4), per_layer: bool, seed: u64) {
        let layout = Layout::new([("a", vec![2500]), ("b", vec![1]), ("c", vec![4000]), ("d", vec![2499])]).unwrap();
        let text = if per_layer { "lgrawa" } else { "mgrawa:centre=outer" };
        let spans = if per_layer { 4 } else { 1 };
        let mut draws = crate::Key::new(seed, crate::Purpose::Problem).stream();
        let reports: Vec<Report> = (0..3).map(|worker| Report {
            worker, scores: (0..spans).map(|_| f64::from(draws.unit()) + 0.1).collect(), finite: true, steps: 1,
        }).collect();
        let plan = plan(&method(text), &layout, &Memory::default(), &reports).unwrap();
        let start: Vec<Vec<f32>> = (0..3).map(|_| (0..9000).map(|_| draws.unit() - 0.5).collect()).collect();
        let (mut whole, mut whole_centre) = (start.clone(), vec![0.1; if per_layer { 9000 } else { 18000 }]);
        mix(&plan, &layout, &mut whole.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(), &mut whole_centre).unwrap();
        let (mut parts, mut parts_centre) = (start, vec![0.1; whole_centre.len()]);
        let mut edges = [vec![0, 9000], cuts].concat();
        edges.sort_unstable();
        for pair in edges.windows(2) {
            let mut slices: Vec<&mut [f32]> = parts.iter_mut().map(|x| &mut x[pair[0]..pair[1]]).collect();
            let (centre, velocity) = parts_centre.split_at_mut(9000);
            let velocity = velocity.get_mut(pair[0]..pair[1]).unwrap_or_default();
            mix_part(&plan, &layout, pair[0], &mut slices, (&mut centre[pair[0]..pair[1]], velocity)).unwrap();
        }
        prop_assert_eq!(whole_centre, parts_centre);
        prop_assert_eq!(whole, parts);
    }
}

#[test]
fn a_plan_of_another_layout_is_an_error() {
    let (two, three) = (
        Layout::new([("a", vec![2]), ("b", vec![1])]).unwrap(),
        Layout::new([("a", vec![1]), ("b", vec![1]), ("c", vec![1])]).unwrap(),
    );
    let reports = [0, 1].map(|worker| Report { worker, scores: vec![1.0; 2], finite: true, steps: 1 });
    let plan = plan(&method("lgrawa"), &two, &Memory::default(), &reports).unwrap();
    assert!(mix(&plan, &three, &mut [&mut [0.0; 3], &mut [0.0; 3]], &mut [0.0; 3]).is_err());
    assert!(
        mix_part(&plan, &two, usize::MAX, &mut [&mut [0.0; 3], &mut [0.0; 3]], (&mut [0.0; 3], &mut []))
            .is_err()
    );
    let empty = Layout::default();
    let reports = [0, 1].map(|worker| Report { worker, scores: vec![], finite: true, steps: 1 });
    let plan = crate::plan(&method("lgrawa"), &empty, &Memory::default(), &reports).unwrap();
    assert_eq!(mix(&plan, &empty, &mut [&mut [], &mut []], &mut []), Ok(()));
}
