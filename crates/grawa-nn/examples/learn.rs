//! Trains ResNet-20 on CIFAR-10 with one worker, and saves the state for PyTorch:
//! `cargo run --release -p grawa-nn --example learn -- CIFAR-FOLDER [EPOCHS] [OUT.safetensors]`.

use grawa_core::{Key, Purpose, Sgd, step::descend};
use grawa_data::{DatasetKind, Feed, Loader, PrefetchLoader, Sampler, load};
use grawa_nn::{Arena, Mode, Program, Shape, State, zoo};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

const BATCH: usize = 128;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments.first().ok_or("usage: learn CIFAR-FOLDER [EPOCHS] [OUT.safetensors]")?;
    let epochs: u64 = arguments.get(1).map_or(Ok(3), |text| text.parse())?;
    let data = load("cifar10", Path::new(folder))?;
    let feed = |part| Feed::new(part, &data.normalise, DatasetKind::Cifar10.augment("resnet20"));
    let (train, test) = (feed(&data.train)?, feed(&data.test)?);

    let net = zoo::find("resnet20")?.build(Shape::image(3, 28), 10)?;
    let program = Program::compile(&net, BATCH)?;
    let mut arena = Arena::new(&program, std::thread::available_parallelism()?.get())?;
    let mut state = State::initial(&net, 36);
    let (mut velocity, mut gradient) = (vec![0.0; state.parameters.len()], vec![0.0; state.parameters.len()]);

    let order = Sampler::new(36, data.train.len(), 1, BATCH as u32)?;
    let steps = epochs * data.train.len() as u64 / BATCH as u64;
    let mut batches = PrefetchLoader::training(Loader::new(train, &order, 0)?, 0, 4)?;
    let sgd = Sgd { weight_decay: 5e-4, ..Sgd::default() };
    let (start, mut loss) = (Instant::now(), 0.0);
    for step in 0..steps {
        let batch = batches.fetch()?;
        let mode = Mode::Train { dropout: Some(Key::new(36, Purpose::Dropout).step(step)) };
        let (model, examples) = ((&*state.parameters, &*state.statistics), (&*batch.images, &*batch.labels));
        let sum = program.gradient(&mut arena, model, examples, mode, 1.0 / BATCH as f64, &mut gradient)?;
        program.track(&arena, &mut state.statistics)?;
        state.batches += 1;
        // With so few steps a constant rate ends too noisy: it decays linearly.
        let rate = 0.1 * (1.0 - step as f32 / steps as f32);
        descend(&sgd, rate, &mut state.parameters, &mut velocity, &gradient, &[])?;
        loss += sum / BATCH as f64;
        if (step + 1) % 50 == 0 {
            let speed = ((step + 1) as f64 * BATCH as f64) / start.elapsed().as_secs_f64();
            println!("step {:5} of {steps}: loss {:.4}, {speed:.0} images/s", step + 1, loss / 50.0);
            loss = 0.0;
        }
    }

    let (mut images, mut labels) = (vec![0.0; BATCH * net.input().len()], vec![0; BATCH]);
    let mut right = 0;
    for number in 0..data.test.len().div_ceil(BATCH) {
        let real = test.evaluation(number, &mut images, &mut labels)?;
        let logits =
            program.forward(&mut arena, &state.parameters, &state.statistics, &images, Mode::Evaluate)?;
        let best = |row: &[f32]| (0..10).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0);
        let chosen = logits.chunks_exact(10).map(|row| best(row) as u32);
        right += chosen.zip(&labels).take(real).filter(|(chosen, label)| chosen == *label).count();
    }
    let share = 100.0 * right as f64 / data.test.len() as f64;
    println!("{epochs} epochs: {right} of {} test images right, {share:.2} %", data.test.len());
    if let Some(out) = arguments.get(2) {
        state.save(&net, Path::new(out))?;
    }
    Ok(())
}
