//! Makes `assets/digits.bin` from scikit-learn's `digits.csv` (64 pixels of 0 to 16 and the label a line):
//! `zcat digits.csv.gz | cargo run --example pack_digits > digits.bin`.

use flate2::{Compression, write::ZlibEncoder};
use std::error::Error;
use std::io::{Read, Write, stdin, stdout};

fn main() -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    stdin().read_to_string(&mut text)?;
    let (mut labels, mut pixels) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let mut values = line.split(',').map(str::parse::<u8>).collect::<Result<Vec<_>, _>>()?;
        if values.len() != 65 {
            return Err(format!("{} values in a line, expected 65", values.len()).into());
        }
        labels.extend(values.pop());
        pixels.extend(values);
    }
    let mut packed = ZlibEncoder::new(stdout().lock(), Compression::best());
    packed.write_all(&labels)?;
    packed.write_all(&pixels)?;
    packed.finish()?.flush()?;
    Ok(())
}
