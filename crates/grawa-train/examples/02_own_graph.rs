//! A network of one's own on a folder of pictures, trained by four workers with LGRAWA:
//! `cargo run --release -p grawa-train --example 02_own_graph -- FOLDER`, where FOLDER holds train/CLASS/*.png and
//! val/CLASS/*.png.

use grawa_nn::{Builder, Conv, Graph, Shape, Window};
use grawa_train::observe::Screen;
use grawa_train::recipe::Overrides;
use grawa_train::{Observer, Recipe, Run};
use std::path::Path;

fn network(classes: usize) -> Result<Graph, grawa_nn::Error> {
    let mut net = Builder::new("mine", Shape::image(3, 32));
    let mut x = net.input();
    for (layer, width) in ["a", "b", "c"].into_iter().zip([16, 32, 64]) {
        x = net.conv(x, &format!("{layer}.conv"), Conv::same(width))?;
        x = net.batch_norm(x, &format!("{layer}.norm"))?;
        x = net.relu(x);
        x = net.max_pool(x, Window::tiles(2))?;
    }
    let x = net.linear(x, "head", classes)?;
    net.finish(x)
}

pub(crate) fn learn(folder: &Path, budget: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let said = Overrides::default().method("lgrawa:period=8", "here")?.set("data.kind=folder")?;
    let said = said
        .set("data.augment=flip+resized32")?
        .set("train.batch=16")?
        .set(&format!("train.budget={budget}"))?;
    let data = grawa_data::load("folder", folder)?;
    let run = Run::with_network(Recipe::resolve(&said)?, &data, &network(data.classes as usize)?)?;
    let mut observers: Vec<Box<dyn Observer>> = vec![Box::new(Screen::new())];
    Ok(run.go(&mut observers)?.at.steps)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("name a folder of class folders")?;
    learn(Path::new(&folder), "20epoch").map(|steps| println!("{steps} steps a worker"))
}
