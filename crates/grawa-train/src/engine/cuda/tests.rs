//! Groups on GPUs against the conformance suite of transports, and runs on several GPUs against the same runs on one.
//! One GPU plays several, with sums in host memory; NCCL runs with one GPU.

#[path = "../../../tests/needs/mod.rs"]
mod needs;

use super::*;
use crate::recipe::Overrides;
use crate::worker_set::conformance;
use crate::{Checkpoint, Event, Observer, Reason, Run};
use grawa_core::norm::norm;
use grawa_core::{Amount, Key, Purpose};
use grawa_data::digits;
use grawa_nn::{Builder, Conv, Graph, Shape, State};
use std::sync::atomic::{AtomicBool, Ordering};

fn recipe(method: &str, workers: usize) -> Recipe {
    let said = Overrides::default().method(method, "test").unwrap();
    let settings = [
        "model.width=4",
        "train.batch=16",
        "train.budget=10step",
        "train.rate=0.02",
        "evaluate.every=5step",
        "machine.device=cuda",
        "machine.precision=f32",
        "machine.deterministic=true",
        &format!("train.workers={workers}"),
    ];
    let said = settings.iter().fold(said, |said, setting| said.set(setting).unwrap());
    let mut recipe = Recipe::resolve(&said).unwrap();
    recipe.evaluate.images = 64;
    recipe.checkpoint.every = Some(Amount::Steps(4));
    recipe
}

/// A network whose parameters have the layout of the suite's vectors: spans of 500, 3 and 500 numbers.
fn spans() -> Graph {
    let mut net = Builder::new("spans", Shape::image(1, 8));
    let x = net.input();
    let wide = Conv { out: 20, kernel: 5, stride: 1, pad: 2, bias: false };
    let a = net.conv(x, "a", wide).unwrap();
    let b = net.conv(x, "b", Conv { out: 3, kernel: 1, stride: 1, pad: 0, bias: false }).unwrap();
    let c = net.conv(x, "c", wide).unwrap();
    let z = net.concat(a, b).unwrap();
    let z = net.concat(z, c).unwrap();
    let z = net.global_average(z);
    net.finish(z).unwrap()
}

/// Rounds of workers on these GPUs, which use the connection however many they are.
fn conforms(devices: &[Device], workers: u32, sum: AllReduce, is_exact: bool) {
    let (recipe, data) = (recipe("mean", workers as usize), digits().unwrap());
    let workload = Workload::with_network(&recipe, &data, &spans()).unwrap();
    let multi_gpu = Some(MultiGpu::new(sum, devices).unwrap());
    let mut set = CudaSet::on(&recipe, &workload, devices, 0..workers, multi_gpu).unwrap();
    set.always_connect = true;
    set.set_centre(Slot::View, Arc::new(vec![0.0; workload.graph.parameters().len()])).unwrap();
    conformance::check(&mut set, workload.graph.parameters(), workers, is_exact);
}

/// Workers on one GPU, without a connection.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn one_gpu_conforms() {
    let data = digits().unwrap();
    for workers in [1, 2, 5] {
        let recipe = recipe("mean", workers);
        let workload = Workload::with_network(&recipe, &data, &spans()).unwrap();
        let workers = workers as u32;
        let mut set = CudaSet::on(&recipe, &workload, &[needs::gpu()], 0..workers, None).unwrap();
        set.set_centre(Slot::View, Arc::new(vec![0.0; workload.graph.parameters().len()])).unwrap();
        // The kernel multiplies and adds in one step, where the CPU rounds twice.
        conformance::check(&mut set, workload.graph.parameters(), workers, false);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnccl: GRAWA_NEEDS_GPU=1, pip install nvidia-nccl-cu13, --include-ignored"]
fn nccl_conforms_with_one_gpu() {
    conforms(&[needs::gpu()], 1, AllReduce::Nccl, true);
}

/// With one worker for each GPU, sums are in worker order, so even the bits are those of the plain mix.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn several_gpus_conform() {
    let device = needs::gpu();
    for count in 1..=3 {
        conforms(&vec![device.clone(); count as usize], count, AllReduce::Host, true);
    }
    conforms(&[device.clone(), device.clone()], 5, AllReduce::Host, false);
}

struct Stopper(Arc<AtomicBool>, usize);

impl Observer for Stopper {
    fn event(&mut self, _: &Event) -> Result<(), Error> {
        self.1 = self.1.saturating_sub(1);
        if self.1 == 0 {
            self.0.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// All vectors of the last checkpoint of a run on `count` GPUs, played by one; stopped after every `stops` events.
fn run(device: &Device, count: usize, method: &str, stops: Option<usize>) -> Vec<Vec<f32>> {
    let (recipe, data) = (recipe(method, 4), digits().unwrap());
    let workload = Workload::new(&recipe, &data).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut resumed = 0;
    loop {
        let devices = vec![device.clone(); count];
        let multi_gpu = (count > 1).then(|| MultiGpu::new(AllReduce::Host, &devices).unwrap());
        let engine = CudaSet::on(&recipe, &workload, &devices, 0..4, multi_gpu).unwrap();
        let mut run = Run::on_gpus(engine, recipe.clone(), &workload).unwrap().keep_in(folder.path());
        if resumed > 0 {
            run = run.resume(Checkpoint::newest(folder.path()).unwrap());
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopper = Stopper(Arc::clone(&stop), stops.unwrap_or(usize::MAX));
        if run.stop_by(stop).go(&mut [Box::new(stopper)]).unwrap().reason == Reason::Spent {
            break;
        }
        resumed += 1;
        assert!(resumed < 40, "{method} never ends");
    }
    assert_eq!(resumed > 0, stops.is_some(), "{method}");
    let parts = Checkpoint::newest(folder.path()).unwrap().snapshot.parts;
    let vectors = parts.into_iter().flat_map(|part| {
        let centres = part.centres.into_iter().map(|(_, _, centre)| centre);
        [part.parameters, part.velocity, part.statistics].into_iter().chain(centres)
    });
    vectors.collect()
}

/// Two workers for each GPU, or blocks of 2, 1 and 1 that split a group: only rounding differs from one GPU.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn a_run_on_several_gpus_is_that_on_one_but_for_rounding() {
    let device = needs::gpu();
    for method in [
        "mean:period=3",
        "easgd:preset=reference,period=3",
        "lgrawa:period=3",
        "lsgd:period=4,inner.group=2,inner.period=2",
        "mgrawa:period=6,inner.group=2,inner.period=3",
        "mean:period=3,pull=1,centre=outer",
        "mean:period=3,push=0.5,push_rise=cosine",
        "dp-sgd",
        "dp-sam",
    ] {
        let expected = run(&device, 1, method, None);
        for count in [2, 3] {
            let found = run(&device, count, method, None);
            assert_eq!(found.len(), expected.len(), "{method}");
            for (found, expected) in found.iter().zip(&expected) {
                let difference: Vec<f32> = found.iter().zip(expected).map(|(a, b)| a - b).collect();
                let off = norm(&difference) / norm(expected).max(1e-6);
                assert!(off < 5e-3, "{method} on {count} GPUs is off by {off:.1e}");
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn a_run_on_several_gpus_that_was_stopped_and_resumed_has_the_same_bits() {
    let device = needs::gpu();
    let outer = "mean:period=3,pull=1,centre=outer,by_rate=true";
    for method in ["lgrawa:period=3", "lsgd:period=4,inner.group=2,inner.period=2", "dp-sgd", outer] {
        assert!(run(&device, 2, method, Some(3)) == run(&device, 2, method, None), "{method}");
    }
}

#[test]
fn more_gpus_than_exist_are_refused_before_anything_starts() {
    let mut recipe = recipe("mean", 4);
    recipe.machine.cards = Some(1000);
    let data = digits().unwrap();
    let error = Run::new(recipe, &data).unwrap_err().to_string();
    match devices() {
        Ok(devices) if !devices.is_empty() => assert!(error.contains("set machine.cards to"), "{error}"),
        _ => assert!(error.contains("GPU") || error.contains("libcuda"), "{error}"),
    }
}

/// A worker that is assigned another shard reads it, even at a step of the same number.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn a_worker_on_a_gpu_reads_the_shard_it_is_assigned() {
    needs::gpu();
    let data = digits().unwrap();
    let net = |workers: usize| {
        let recipe = recipe("dp-sgd", workers);
        let workload = Workload::new(&recipe, &data).unwrap();
        let state = State::initial(&workload.graph, 7);
        let velocity = vec![0.0; state.parameters.len()];
        let (parameters, statistics) = (state.parameters, state.statistics);
        let mut part = Part { parameters, velocity, statistics, taken: 3, ..Part::default() };
        CudaSet::of_some(&recipe, &workload, 0..1).unwrap().load(std::slice::from_mut(&mut part)).unwrap()
    };
    let gradient =
        |set: &mut Box<dyn WorkerSet>, key: Key| set.gradients(&[(0, key)], None).remove(0).1.unwrap();
    let key = Key::new(7, Purpose::Step).step(3);
    let (mut net, mut fresh) = (net(2), net(3));
    let before = gradient(&mut net, key);
    net.assign_shard(0, 0, 3).unwrap();
    let found = gradient(&mut net, key);
    assert!(found == gradient(&mut fresh, key) && found != before, "{before:?}, {found:?}");
}
