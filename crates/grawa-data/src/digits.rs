//! The embedded 8×8 digits: everything runs without a download.
//!
//! 1,797 handwritten digits from the UCI Machine Learning Repository, "Optical Recognition of Handwritten
//! Digits" (E. Alpaydın and C. Kaynak, 1998), CC BY 4.0: <https://doi.org/10.24432/C50P49>. A pixel is
//! the number of inked pixels in a block of 4×4, from 0 to 16. Every fifth image (index mod 5 = 4)
//! is for testing: 1,438 to train on, 359 to test on.
//!
//! The pack is, compressed with zlib, all labels and then 64 pixels for each image (`examples/pack_digits.rs`).

use crate::error::{Result, io};
use crate::{Dataset, DatasetKind, Shape, Split};
use flate2::read::ZlibDecoder;
use std::io::Read;
use std::path::Path;

const PACK: &[u8] = include_bytes!("../assets/digits.bin");
const COUNT: usize = 1_797;
const SHAPE: Shape = Shape::new(1, 8, 8);
const CLASSES: u32 = 10;

/// The digits.
///
/// ```
/// let digits = grawa_data::digits()?;
/// assert_eq!(digits.train.len() + digits.test.len(), 1797);
/// # Ok::<(), grawa_data::Error>(())
/// ```
pub fn digits() -> Result<Dataset> {
    let (pixels, labels) = unpacked()?;
    let all = Split::from_bytes(SHAPE, pixels, labels, CLASSES)?;
    let (test, train): (Vec<u32>, Vec<u32>) = (0..COUNT as u32).partition(|index| index % 5 == 4);
    Ok(Dataset::of(DatasetKind::Digits, Vec::new(), CLASSES, [all.select(&train)?, all.select(&test)?]))
}

/// All pixels, and all labels.
fn unpacked() -> Result<(Vec<u8>, Vec<u32>)> {
    let mut labels = Vec::new();
    ZlibDecoder::new(PACK).read_to_end(&mut labels).map_err(io("unpack", Path::new("assets/digits.bin")))?;
    let pixels = labels.split_off(COUNT);
    Ok((pixels, labels.into_iter().map(u32::from).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_all_there() {
        let (pixels, labels) = unpacked().unwrap();
        assert_eq!((pixels.len(), labels.len()), (1797 * 64, 1797));
        let mut counts = [0; 10];
        labels.iter().for_each(|&label| counts[label as usize] += 1);
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        // The first row of the first image, as published.
        assert_eq!(pixels[..8], [0, 0, 5, 13, 9, 1, 0, 0]);
        assert_eq!(pixels.iter().max(), Some(&16));
        const { assert!(PACK.len() < 100_000) };
    }

    #[test]
    fn every_fifth_is_for_testing() {
        let (pixels, labels) = unpacked().unwrap();
        let set = digits().unwrap();
        assert_eq!((set.train.len(), set.test.len()), (1438, 359));
        assert_eq!(set.test.bytes().unwrap()[..64], pixels[4 * 64..5 * 64]);
        assert_eq!(set.test.labels()[1], labels[9]);
        assert_eq!(set.train.labels()[4], labels[5]);
    }

    #[test]
    fn the_constants_are_those_of_the_training_pixels() {
        let set = digits().unwrap();
        let pixels: Vec<f64> = set.train.bytes().unwrap().iter().map(|&p| f64::from(p) / 16.0).collect();
        let mean = pixels.iter().sum::<f64>() / pixels.len() as f64;
        let var = pixels.iter().map(|p| (p - mean).powi(2)).sum::<f64>() / pixels.len() as f64;
        assert!((mean - f64::from(set.normalise.mean[0])).abs() < 1e-4);
        assert!((var.sqrt() - f64::from(set.normalise.std[0])).abs() < 1e-4);
    }
}
