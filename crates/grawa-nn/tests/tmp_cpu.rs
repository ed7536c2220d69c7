mod networks;
use grawa_core::{Key, Purpose, Sgd, step::descend};
use grawa_nn::*;
#[test]
fn t() {
    let graph = networks::plain_operations();
    const BATCH: usize = 6;
    let mut cpu = Cpu.compile(&graph, BATCH, Precision::F32).unwrap();
    let mut draws = Key::new(7, Purpose::Problem).stream();
    let mut batch = || -> (Vec<f32>, Vec<u32>) {
        let images = (0..BATCH * graph.input().len()).map(|_| draws.normal() as f32).collect();
        (images, (0..BATCH).map(|_| draws.below(graph.classes() as u64) as u32).collect())
    };
    for workers in [1usize, 3] { let bs: Vec<_> = (0..workers).map(|_| batch()).collect();
    for w in 0..workers {
        let (i, l) = &bs[w];
        let mut p = graph.initial(w as u64); let start = p.clone();
        let mut v = vec![0.0; p.len()];
        for s in 0..41 {
            let r = cpu.pass((&p, &[]), (i, l), Mode::Train{dropout: None}, 1.0/BATCH as f64).unwrap();
            if s==0 || s==5 || s == 40 { let d: f32 = p.iter().zip(&start).map(|(a,b)|(a-b)*(a-b)).sum::<f32>().sqrt(); let n: f32 = p.iter().map(|a| a*a).sum::<f32>().sqrt(); println!("{w} {s} loss {} moved {}", r.loss, d/n); }
            descend(&Sgd::default(), 0.05, &mut p, &mut v, &r.gradient, &[]).unwrap();
        }
    }}
}
