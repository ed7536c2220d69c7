//! Two methods on the digits, with the same network, data and budget: `cargo run --release -p grawa-lab --example demo`.

use grawa_core::Name;
use grawa_lab::{Error, demo};

fn main() -> Result<(), Error> {
    let data = grawa_data::load("digits", ".".as_ref()).map_err(grawa_train::Error::from)?;
    let run = |method| demo::run(demo::recipe(method, 4, 36)?, &data, Vec::new());
    println!("{}", demo::table(&[run(Name::Mean)?, run(Name::Lgrawa)?]).text());
    Ok(())
}
