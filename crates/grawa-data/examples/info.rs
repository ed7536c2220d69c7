//! Says what data lies in a folder: `cargo run --example info -- DIR`.

fn main() -> Result<(), grawa_data::Error> {
    let dir = std::env::args_os().nth(1).unwrap_or_else(|| ".".into());
    println!("{}", grawa_data::info(dir.as_ref(), &|_, _| ())?.text);
    Ok(())
}
