//! What a round and a local step cost, against the memory bandwidth of the machine.
//!
//! `cargo bench -p grawa-core` runs each part by itself under divan, then measures all of them interleaved with a
//! plain copy, one thread and all, and prints the bytes each must move and the share of the copy's bandwidth
//! it reaches. The size is that of WRN-28-10 for 100 classes with 8 workers: P = 36,536,884.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use grawa_core::{Layout, Memory, Method, Plan, Prox, Report, Sgd, mix, mix_part, norm, plan, step};
use std::time::Instant;

const P: usize = 36_536_884;
const M: usize = 8;
/// As many tensors as WRN-28-10 has.
const SPANS: usize = 80;
const VECTOR: usize = 4 * P;

fn main() {
    divan::main();
    // Other arguments than cargo's own ask divan for something special: a filter, a list, a test run.
    if std::env::args().skip(1).all(|argument| argument == "--bench") {
        interleaved();
    }
}

fn layout() -> Layout {
    let even = P / SPANS;
    let spans =
        (0..SPANS).map(|k| (format!("t{k}"), vec![if k == 0 { P - even * (SPANS - 1) } else { even }]));
    Layout::new(spans).expect("the spans have different names")
}

fn decide(method: &str, layout: &Layout) -> Plan {
    let method: Method = method.parse().expect("a method of the table");
    let reports: Vec<Report> = (0..M as u32)
        .map(|worker| {
            let scores = (0..method.scores(SPANS)).map(|k| 1.0 + k as f64 + f64::from(worker)).collect();
            Report { worker, scores, finite: true, steps: 32 }
        })
        .collect();
    plan(&method, layout, &Memory::default(), &reports).expect("reports that fit")
}

fn vectors(count: usize) -> Vec<Vec<f32>> {
    (0..count).map(|v| (0..P).map(|i| (i % 1000 + v) as f32 * 1e-3).collect()).collect()
}

/// The bytes a round moves: every worker in and out, the centre out, and in if it moves.
fn round_bytes(method: &str) -> usize {
    (2 * M + 1 + usize::from(method.starts_with("easgd"))) * VECTOR
}

#[divan::bench(args = ["mean", "mgrawa", "lgrawa", "easgd", "lsgd"], sample_count = 7, sample_size = 1)]
fn round(bencher: Bencher<'_, '_>, method: &str) {
    let (layout, mut workers, mut centre) = (layout(), vectors(M), vec![0.0; P]);
    let plan = decide(method, &layout);
    bencher.counter(BytesCount::new(round_bytes(method))).bench_local(|| {
        let mut slices: Vec<&mut [f32]> = workers.iter_mut().map(Vec::as_mut_slice).collect();
        mix(&plan, &layout, &mut slices, &mut centre).expect("vectors that fit");
    });
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn copy(bencher: Bencher<'_, '_>) {
    let mut pair = vectors(2);
    let (to, from) = pair.split_at_mut(1);
    bencher
        .counter(BytesCount::new(2 * VECTOR))
        .bench_local(|| black_box(&mut to[0]).copy_from_slice(&from[0]));
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn norms(bencher: Bencher<'_, '_>) {
    let (layout, gradient, mut out) = (layout(), vectors(1), vec![0.0; SPANS]);
    bencher
        .counter(BytesCount::new(VECTOR))
        .bench_local(|| norm::norms(&layout, &gradient[0], &mut out).expect("vectors that fit"));
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn descend(bencher: Bencher<'_, '_>) {
    let mut v = vectors(4);
    bencher.counter(BytesCount::new(6 * VECTOR)).bench_local(|| descend_once(&mut v));
}

fn descend_once(v: &mut [Vec<f32>]) -> bool {
    let [x, velocity, gradient, centre] = v else { unreachable!("four vectors") };
    let prox = [Prox { centre: centre.as_slice(), strength: 3e-4 }];
    step::descend(&Sgd::default(), 1e-6, x, velocity, gradient, &prox).expect("vectors that fit")
}

#[divan::bench(args = ["mgrawa", "lgrawa"])]
fn deciding(bencher: Bencher<'_, '_>, method: &str) {
    let layout = layout();
    bencher.bench_local(|| decide(method, &layout));
}

/// A thing to time: its name, the bytes it moves, itself.
type Part<'a> = (String, usize, Box<dyn FnMut() + 'a>);

fn interleaved() {
    let layout = &layout();
    for threads in [1, std::thread::available_parallelism().map_or(1, usize::from)] {
        let (mut workers, mut centre, mut pair) = (vectors(M), vec![0.0f32; P], vectors(2));
        let mut seconds: Vec<(String, usize, Vec<f64>)> = Vec::new();
        for trial in 0..9 {
            let (to, from) = pair.split_at_mut(1);
            let cell = std::cell::RefCell::new((&mut workers, &mut centre));
            let mut parts: Vec<Part<'_>> = vec![(
                "plain copy".into(),
                2 * VECTOR,
                Box::new(|| shared_copy(threads, &mut to[0], &from[0])),
            )];
            for method in ["mean", "mgrawa", "lgrawa", "easgd", "lsgd"] {
                let (plan, cell) = (decide(method, layout), &cell);
                parts.push((
                    format!("round, {method}"),
                    round_bytes(method),
                    Box::new(move || {
                        let (workers, centre) = &mut *cell.borrow_mut();
                        shared_round(threads, &plan, layout, workers, centre);
                    }),
                ));
            }
            if threads == 1 {
                parts.push((
                    "norms of a gradient".into(),
                    VECTOR,
                    Box::new(|| {
                        let (workers, _) = &*cell.borrow();
                        norm::norms(layout, &workers[0], &mut [0.0; SPANS]).expect("vectors that fit");
                    }),
                ));
                parts.push((
                    "local step with prox".into(),
                    6 * VECTOR,
                    Box::new(|| {
                        black_box(descend_once(&mut cell.borrow_mut().0[..4]));
                    }),
                ));
            }
            for (index, (name, bytes, part)) in parts.iter_mut().enumerate() {
                let start = Instant::now();
                part();
                let took = start.elapsed().as_secs_f64();
                if trial == 0 {
                    // The first trial touches the pages; it is not counted.
                    seconds.push((name.clone(), *bytes, Vec::new()));
                } else {
                    seconds[index].2.push(took);
                }
            }
        }
        println!("\nP = {P}, M = {M}, {threads} thread(s), median of 8 interleaved trials");
        let copy = rate(&mut seconds[0]);
        for entry in &mut seconds {
            let rate = rate(entry);
            println!(
                "{:22} {:6.3} GB  {:6.1} GB/s  {:4.0} % of the copy",
                entry.0,
                entry.1 as f64 / 1e9,
                rate / 1e9,
                100.0 * rate / copy
            );
        }
    }
}

fn rate((_, bytes, seconds): &mut (String, usize, Vec<f64>)) -> f64 {
    seconds.sort_by(f64::total_cmp);
    *bytes as f64 / seconds[seconds.len() / 2]
}

fn shared_copy(threads: usize, to: &mut [f32], from: &[f32]) {
    let part = P.div_ceil(threads);
    std::thread::scope(|scope| {
        for (to, from) in to.chunks_mut(part).zip(from.chunks(part)) {
            scope.spawn(move || black_box(to).copy_from_slice(from));
        }
    });
}

fn shared_round(threads: usize, plan: &Plan, layout: &Layout, workers: &mut [Vec<f32>], centre: &mut [f32]) {
    let part = P.div_ceil(threads);
    let mut stretches: Vec<Vec<&mut [f32]>> = (0..threads).map(|_| Vec::new()).collect();
    for worker in workers {
        for (stretch, slice) in stretches.iter_mut().zip(worker.chunks_mut(part)) {
            stretch.push(slice);
        }
    }
    std::thread::scope(|scope| {
        for (index, (mut stretch, centre)) in stretches.into_iter().zip(centre.chunks_mut(part)).enumerate() {
            scope.spawn(move || {
                mix_part(plan, layout, index * part, &mut stretch, (centre, &mut []))
                    .expect("vectors that fit");
            });
        }
    });
}
