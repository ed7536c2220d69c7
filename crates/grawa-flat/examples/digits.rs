//! The ends of the spectrum of a network's Hessian before training, on 256 digits:
//! `cargo run --release -p grawa-flat --example digits`.

use grawa_data::{DatasetKind, Feed, load};
use grawa_flat::{Examples, Settings, measure};
use grawa_nn::{Shape, State, zoo};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let data = load("digits", ".".as_ref())?;
    let feed = Feed::new(&data.train, &data.normalise, DatasetKind::Digits.augment("digits"))?;
    let network = zoo::find("digits")?.build(Shape::image(1, 8), data.classes as usize)?;
    let examples = Examples::of(&feed, &Examples::choose(feed.len(), 36, 256)?, 64)?;
    let settings = Settings { steps: 20, draws: 1, ..Settings::default() };
    let found = measure(&network, &State::initial(&network, 36), &examples, &settings, || {})?;
    println!("largest eigenvalue {}", found.largest().text());
    println!("smallest eigenvalue {}", found.smallest().text());
    println!("trace {}", found.trace().text());
    Ok(())
}
