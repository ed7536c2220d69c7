//! The paper's motivating example for two methods, as pictures, page and table:
//! `cargo run --release -p grawa-toy --example vincent -- FOLDER`.

use grawa_toy::vincent::{CORNERS, Edge, Experiment, method};
use grawa_toy::{Error, Folder};
use std::path::PathBuf;

fn main() -> Result<(), Error> {
    let path = std::env::args_os().nth(1).map_or_else(|| "vincent".into(), PathBuf::from);
    let experiment = Experiment {
        methods: vec![method("easgd", 0.5, 4)?, method("lgrawa", 0.5, 4)?],
        rate: 0.01,
        steps: 1000,
        starts: CORNERS.into(),
        edge: Edge::Clip,
    };
    let mut folder = Folder::claim(&path, &experiment.settings(None))?;
    let output = experiment.run()?;
    output.put(&mut folder)?;
    output.tables.iter().for_each(|table| println!("{}", table.table.text()));
    println!("Pictures: {}", folder.finish()?.display());
    Ok(())
}
