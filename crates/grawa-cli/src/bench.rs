//! `grawa bench`: how fast this machine trains.

use crate::doctor::{cores, reported_bytes};
use crate::failure::Failure;
use crate::output::print;
use clap::{Args, Subcommand};
use grawa_core::{Key, Moments, Purpose, Sgd};
use grawa_lab::Table;
use grawa_nn::{Arena, Error, Graph, Mode, Precision, Profile, Program, State, peak_flops, zoo};
use grawa_train::recipe::Device;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// How fast this machine trains.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Step(StepArguments),
    Product(crate::bench_product::ProductArguments),
}

/// Local training steps on random images: forward, backward, SGD with Nesterov momentum and weight decay.
///
/// Prints the images per second of all workers together; the arithmetic rate (three times the forward pass's multiplications
/// and additions, as if every convolution were direct) and its share of what a product of matrices reaches on the same
/// cores, which Winograd's convolutions may exceed; the memory of a worker, of an arena, and of the whole process at its
/// peak. With at least as many workers as cores
/// each core runs its workers one after the other; with fewer, the cores of a worker share each step.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa bench step --model resnet20 --workers 4\n  grawa bench step --model vgg16 --profile\n  grawa bench step --model wrn28-10 --batch 32 --seconds 30\n  grawa bench step --device cuda --workers 4 --precision bf16 --profile"
)]
pub(crate) struct StepArguments {
    /// The network, one of `grawa models`
    #[arg(long, value_name = "NAME", default_value = "resnet20")]
    pub(crate) model: String,
    /// Workers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) workers: u32,
    /// Images in a batch
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: u32,
    /// Cores to use [default: all]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Also print where the time goes, operation by operation; on a GPU kernel by kernel, beside the least time it could take
    #[arg(long)]
    pub(crate) profile: bool,
    /// How long to measure, from 0.1 to 3600 seconds
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Where to run it: cpu (all cores) or cuda (the first NVIDIA GPU)
    #[arg(long, default_value_t = Device::Cpu)]
    pub(crate) device: Device,
    /// On a GPU: f32, tf32 or bf16
    #[arg(long, default_value = "bf16")]
    pub(crate) precision: Precision,
    /// On a GPU: kernels chosen by shape alone, so that every start gives the same bits
    #[arg(long)]
    pub(crate) deterministic: bool,
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let wrong = || "expected a number of seconds from 0.1 to 3600".to_owned();
    text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds)).ok_or_else(wrong)
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.what {
        What::Product(arguments) => crate::bench_product::run(arguments),
        What::Step(arguments) => match arguments.device {
            Device::Cpu => step(arguments),
            #[cfg(feature = "cuda")]
            Device::Cuda => crate::bench_cuda::step(arguments),
            #[cfg(not(feature = "cuda"))]
            Device::Cuda => Err(Error::BuiltWithoutCuda.into()),
        },
    }
}

/// A worker's own vectors.
struct Worker {
    state: State,
    moments: Moments,
    gradient: Vec<f32>,
}

impl Worker {
    fn new(graph: &Graph) -> Self {
        let len = graph.parameters().len();
        Worker { state: State::initial(graph, 1), moments: Moments::new(len), gradient: vec![0.0; len] }
    }

    fn step(&mut self, program: &Program, arena: &mut Arena, batch: (&[f32], &[u32])) -> Result<(), Error> {
        let Worker { state: State { parameters, statistics, .. }, moments, gradient } = self;
        let mode = Mode::Train { dropout: Some(Key::new(0, Purpose::Dropout)) };
        let share = 1.0 / batch.1.len() as f64;
        program.gradient(arena, (&*parameters, &*statistics), batch, mode, share, gradient)?;
        program.track(arena, statistics)?;
        arena.update(moments.update(&Sgd::default().into(), 0.1, parameters, gradient, &[])?);
        Ok(())
    }
}

/// A batch of random images and labels.
pub(crate) fn random_batch(graph: &Graph, batch: usize) -> (Vec<f32>, Vec<u32>) {
    let mut draws = Key::new(1, Purpose::Problem).stream();
    let images = (0..batch * graph.input().len()).map(|_| draws.normal() as f32).collect();
    (images, (0..batch).map(|_| draws.below(graph.classes() as u64) as u32).collect())
}

fn step(arguments: &StepArguments) -> Result<(), Failure> {
    let entry = zoo::find(&arguments.model)?;
    let graph = entry.build(entry.input, entry.classes)?;
    let (workers, batch) = (arguments.workers as usize, arguments.batch as usize);
    let program = Program::compile(&graph, batch)?;
    let cores = arguments.threads.map_or_else(cores, |threads| threads as usize);
    let slots = workers.min(cores);
    let (images, labels) = random_batch(&graph, batch);
    let barrier = Barrier::new(slots);
    let length = Duration::from_secs_f64(arguments.seconds);

    let run = |slot: usize| -> Result<Slot, Error> {
        let mut arena = Arena::new(&program, cores / slots)?;
        let mut own: Vec<Worker> = (slot..workers).step_by(slots).map(|_| Worker::new(&graph)).collect();
        // Touches all memory before the clock starts.
        for worker in &mut own {
            worker.step(&program, &mut arena, (&images, &labels))?;
        }
        if arguments.profile {
            arena.start_profile();
        }
        barrier.wait();
        let start = Instant::now();
        let mut steps = 0;
        while start.elapsed() < length {
            for worker in &mut own {
                worker.step(&program, &mut arena, (&images, &labels))?;
                steps += 1;
            }
        }
        let spent = start.elapsed();
        Ok(Slot { steps, spent, arena: arena.bytes(), profile: arena.profile().cloned() })
    };
    let found: Vec<Slot> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..slots).map(|slot| scope.spawn(move || run(slot))).collect();
        let panicked = |_| Err(Error::Threads { why: "a thread ended early".into() });
        running.into_iter().map(|slot| slot.join().unwrap_or_else(panicked)).collect::<Result<_, _>>()
    })?;
    let rate: f64 = found.iter().map(|slot| (slot.steps * batch) as f64 / slot.spent.as_secs_f64()).sum();
    let flops = rate * 3.0 * graph.flops() as f64;
    let own = 4 * (3 * graph.parameters().len() + graph.statistics().len());
    let peak = reported_bytes("/proc/self/status", "VmHWM:");
    let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
    let table = Table::of_one_row([
        ("network", arguments.model.clone()),
        ("workers", workers.to_string()),
        ("batch", batch.to_string()),
        ("cores", cores.to_string()),
        ("images/s", format!("{rate:.1}")),
        ("GFLOP/s", format!("{:.1}", flops / 1e9)),
        ("of matrix products' speed", format!("{:.0} %", 100.0 * flops / peak_flops(cores))),
        ("MB a worker", megabytes(own as u64)),
        ("MB an arena", megabytes(found.first().map_or(0, |slot| slot.arena) as u64)),
        ("arenas", slots.to_string()),
        ("MB at peak", peak.map_or("unknown".into(), megabytes)),
    ]);
    print(&table.text());
    if arguments.profile {
        print(&format!("\n{}", profile(&program, &found).text()));
    }
    Ok(())
}

/// The work of one core, or of one group of cores.
struct Slot {
    steps: usize,
    spent: Duration,
    arena: usize,
    profile: Option<Profile>,
}

/// Milliseconds of a step by operation, the costliest first; operations of the same kind and shape together. A batch norm runs
/// inside the convolution next to it where it can: its own row has only what is left.
fn profile(program: &Program, slots: &[Slot]) -> Table {
    let steps = slots.iter().map(|slot| slot.steps).sum::<usize>().max(1) as f64;
    let mut rows: Vec<(String, usize, [f64; 2])> = Vec::new();
    for (index, slot) in slots.iter().enumerate() {
        for (name, spent) in slot.profile.iter().flat_map(|profile| profile.operations(program)) {
            let at = rows.iter().position(|row| row.0 == name).unwrap_or_else(|| {
                rows.push((name, 0, [0.0; 2]));
                rows.len() - 1
            });
            rows[at].1 += usize::from(index == 0);
            for (sum, spent) in rows[at].2.iter_mut().zip(spent) {
                *sum += spent.as_secs_f64() * 1e3 / steps;
            }
        }
    }
    let whole = slots.iter().map(|slot| slot.spent.as_secs_f64() * 1e3).sum::<f64>() / steps;
    let known: f64 = rows.iter().flat_map(|row| row.2).sum();
    rows.push(("images in, loss, statistics, update".into(), 1, [whole - known, 0.0]));
    rows.sort_by(|a, b| b.2.iter().sum::<f64>().total_cmp(&a.2.iter().sum()));
    let header = ["operation", "times", "forward ms", "backward ms", "sum ms", "share"];
    let mut table = Table::new(header);
    let mut push = |name: &str, times: &str, parts: [f64; 2]| {
        let sum: f64 = parts.iter().sum();
        let [forward, backward] = parts.map(|ms| format!("{ms:.2}"));
        let (sum, share) = (format!("{sum:.2}"), format!("{:.1} %", 100.0 * sum / whole));
        table.push([name.to_owned(), times.to_owned(), forward, backward, sum, share]);
    };
    for (name, times, parts) in &rows {
        push(name, &times.to_string(), *parts);
    }
    let total = std::array::from_fn(|part| rows.iter().map(|row| row.2[part]).sum());
    push("a step", "", total);
    table
}
