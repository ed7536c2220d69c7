//! The embedded 8×8 digits: everything runs without a download.
//!
//! 1,797 handwritten digits from the UCI Machine Learning Repository, "Optical Recognition of Handwritten
//! Digits" (E. Alpaydın and C. Kaynak, 1998), CC BY 4.0: <https://doi.org/10.24432/C50P49>. A pixel is
//! the number of inked pixels in a block of 4×4, from 0 to 16. Every fifth image (index mod 5 = 4)
//! is for testing: 1,438 to train on, 359 to test on.
//!
//! The pack is `digits` and the bytes 0, 1; the number of images in four bytes, lowest first; then, packed
//! with zlib, all labels and 64 pixels for each image.

use crate::error::{Error, Result, check_labels};
use crate::{Dataset, DatasetKind, Shape, Split};
use flate2::read::ZlibDecoder;
use std::io::Read;
use std::path::Path;

const PACK: &[u8] = include_bytes!("../assets/digits.bin");
const MAGIC: &[u8; 8] = b"digits\0\x01";
const SHAPE: Shape = Shape::new(1, 8, 8);
const CLASSES: u32 = 10;
/// The largest value of a pixel.
const INKED: u8 = 16;
/// The limit of a pack: a hostile one must not fill the memory.
const MOST: u32 = 100_000;

/// The digits.
///
/// ```
/// let digits = grawa_data::digits()?;
/// assert_eq!(digits.train.len() + digits.test.len(), 1797);
/// # Ok::<(), grawa_data::Error>(())
/// ```
pub fn digits() -> Result<Dataset> {
    let (pixels, labels) = parse_digits(PACK, Path::new("assets/digits.bin"))?;
    let labels: Vec<u32> = labels.into_iter().map(u32::from).collect();
    let count = labels.len() as u32;
    let all = Split::from_bytes(SHAPE, pixels, labels, CLASSES)?;
    let (test, train): (Vec<u32>, Vec<u32>) = (0..count).partition(|index| index % 5 == 4);
    Ok(Dataset::of(DatasetKind::Digits, Vec::new(), CLASSES, [all.select(&train)?, all.select(&test)?]))
}

/// The pixels and labels of a pack; `path` is only used in errors.
pub fn parse_digits(bytes: &[u8], path: &Path) -> Result<(Vec<u8>, Vec<u8>)> {
    let wrong = |found: String, expected: &str| Error::wrong_format(path, found, expected);
    let (Some(magic), Some(count), Some(packed)) = (bytes.get(..8), bytes.get(8..12), bytes.get(12..)) else {
        return Err(wrong(format!("{} bytes", bytes.len()), "a pack of digits, at least 12 bytes"));
    };
    if magic != MAGIC {
        return Err(wrong(format!("{magic:02x?}"), "a pack of digits, version 1"));
    }
    let count = u32::from_le_bytes([count[0], count[1], count[2], count[3]]);
    if count > MOST {
        return Err(wrong(format!("{count} images"), "at most 100,000"));
    }
    let needed = count as usize * (1 + SHAPE.len());
    let mut plain = Vec::new();
    ZlibDecoder::new(packed)
        .take(needed as u64 + 1)
        .read_to_end(&mut plain)
        .map_err(|e| wrong(format!("a pack that does not unpack ({e})"), "an intact one"))?;
    if plain.len() != needed {
        let found = if plain.len() > needed { "more".to_owned() } else { format!("{} bytes", plain.len()) };
        return Err(wrong(found, &format!("{needed} bytes, for {count} images")));
    }
    let pixels = plain.split_off(count as usize);
    check_labels(path, &plain, CLASSES)?;
    if let Some(&pixel) = pixels.iter().find(|&&pixel| pixel > INKED) {
        return Err(wrong(format!("a pixel of {pixel}"), "pixels from 0 to 16"));
    }
    Ok((pixels, plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn they_are_all_there() {
        let (pixels, labels) = parse_digits(PACK, Path::new("x")).unwrap();
        assert_eq!((pixels.len(), labels.len()), (1797 * 64, 1797));
        let mut counts = [0; 10];
        labels.iter().for_each(|&label| counts[usize::from(label)] += 1);
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        // The first row of the first image, as published.
        assert_eq!(pixels[..8], [0, 0, 5, 13, 9, 1, 0, 0]);
        const { assert!(PACK.len() < 100_000) };
    }

    #[test]
    fn every_fifth_is_for_testing() {
        let (pixels, labels) = parse_digits(PACK, Path::new("x")).unwrap();
        let set = digits().unwrap();
        assert_eq!((set.train.len(), set.test.len()), (1438, 359));
        assert_eq!(set.test.bytes().unwrap()[..64], pixels[4 * 64..5 * 64]);
        assert_eq!(set.test.labels()[1], u32::from(labels[9]));
        assert_eq!(set.train.labels()[4], u32::from(labels[5]));
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

    #[test]
    fn a_hostile_count_costs_nothing() {
        let mut bytes = PACK.to_vec();
        bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse_digits(&bytes, Path::new("x")).unwrap_err().to_string().contains("4294967295 images"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_bytes_are_read_or_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut: prop::sample::Index,
        ) {
            let mut bytes = PACK.to_vec();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(bytes.len() - cut.index(bytes.len()) / 8);
            if let Ok((pixels, labels)) = parse_digits(&bytes, Path::new("x")) {
                prop_assert_eq!(pixels.len(), labels.len() * 64);
            }
        }
    }
}
