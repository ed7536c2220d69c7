//! `grawa bench step --device cuda`: how fast a GPU trains.

use crate::bench::{StepArguments, random_batch};
use crate::doctor::first_gpu;
use crate::failure::Failure;
use crate::output::print;
use grawa_core::{Key, Purpose, Sgd};
use grawa_lab::Table;
use grawa_nn::cuda::{KernelTime, ReplicaSet, Settings};
use grawa_nn::zoo;
use std::time::{Duration, Instant};

/// Steps between two readings of the clock.
const AT_A_TIME: usize = 20;

pub(crate) fn step(arguments: &StepArguments) -> Result<(), Failure> {
    let entry = zoo::find(&arguments.model)?;
    let graph = entry.build(entry.input, entry.classes)?;
    let (workers, batch) = (arguments.workers as usize, arguments.batch as usize);
    let gpu = first_gpu()?;
    let begin = Instant::now();
    let settings =
        Settings { batch, workers, precision: arguments.precision, fixed: arguments.deterministic };
    let mut set = ReplicaSet::new(&gpu, &graph, settings)?;
    let (images, labels) = random_batch(&graph, batch);
    for worker in 0..workers {
        set.load(worker, &graph.initial(1), &graph.initial_statistics())?;
    }
    set.load_batches(&vec![(images.as_slice(), labels.as_slice()); workers])?;
    set.set_position(Key::new(1, Purpose::Dropout), &[0.01], [0.0; 2])?;
    let sgd = Sgd::default();
    set.steps(sgd, 3)?;
    set.synchronise()?;
    let ready = begin.elapsed();

    let length = Duration::from_secs_f64(arguments.seconds);
    let start = Instant::now();
    // The best of several stretches is not taken: all of the time counts.
    let mut steps = 0;
    while start.elapsed() < length {
        set.steps(sgd, AT_A_TIME)?;
        set.synchronise()?;
        steps += AT_A_TIME;
    }
    let seconds = start.elapsed().as_secs_f64() / steps as f64;
    let rate = (workers * batch) as f64 / seconds;
    let table = Table::of_one_row([
        ("network", arguments.model.clone()),
        ("workers", workers.to_string()),
        ("batch", batch.to_string()),
        ("precision", arguments.precision.to_string()),
        ("images/s", format!("{rate:.0}")),
        ("ms a step", format!("{:.3}", seconds * 1e3)),
        ("TFLOP/s", format!("{:.1}", rate * 3.0 * graph.flops() as f64 / 1e12)),
        ("MB a worker", format!("{:.0}", set.bytes() as f64 / 1e6)),
        ("s to start", format!("{:.1}", ready.as_secs_f64())),
    ]);
    print(&table.text());
    if arguments.profile {
        profile(&mut set, sgd)?;
    }
    Ok(())
}

/// Prints the times of kernels beside their floors.
pub(crate) fn print_kernels(about: &str, kernels: Vec<KernelTime>) {
    let whole: f64 = kernels.iter().map(|kernel| kernel.time.as_secs_f64()).sum();
    let mut table = Table::new(["kernel", "calls", "µs", "share", "floor, µs", "reached"]);
    for KernelTime { name, calls, time, floor } in kernels {
        let [micros, least] = [time, floor].map(|time| time.as_secs_f64() * 1e6);
        let share = format!("{:.1} %", micros / whole / 1e4);
        let (floor, reached) = match floor.is_zero() {
            true => ("–".to_owned(), "–".to_owned()),
            false => (format!("{least:.1}"), format!("{:.0} %", 100.0 * least / micros)),
        };
        table.push([name, calls.to_string(), format!("{micros:.1}"), share, floor, reached]);
    }
    print(about);
    print(
        "The floor is the time to move every byte once, or to do all products, at the highest rate of this GPU.",
    );
    print(&table.text());
}

fn profile(set: &mut ReplicaSet, sgd: Sgd) -> Result<(), Failure> {
    // The first time is slower than those of a run.
    set.profile(sgd)?;
    print_kernels(
        "One step of all workers, kernel after kernel, each alone: longer than the captured step, where they overlap.",
        set.profile(sgd)?,
    );
    let mut table = Table::new(["layer", "way", "chosen", "ours, µs", "cuDNN, µs"]);
    let time = |micros: Option<f64>| micros.map_or("–".to_owned(), |micros| format!("{micros:.1}"));
    for choice in set.choices() {
        let words = [choice.layer.clone(), choice.direction.to_owned(), choice.chosen.clone()];
        table.push(words.into_iter().chain([choice.own, choice.cudnn].map(time)));
    }
    print(&table.text());
    Ok(())
}
