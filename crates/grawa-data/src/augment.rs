//! Augmentation of training images: `flip+crop28`, `flip+pad4crop32`, `flip+resized224`, `resized64from50`.
//!
//! Every draw is a word of [`Key::block`] under [`Purpose::Augment`] at the worker and step of the batch, so
//! any machine, and a GPU kernel, computes the same ones. Example `i` of a batch has one block of four words:
//!
//! | word of block `i` | gives |
//! |---|---|
//! | 0 | mirrored if its highest bit is set |
//! | 1 | first row of the crop in the padded image: (word × choices) >> 32 |
//! | 2 | first column of the crop, in the same way |
//! | 3 | nothing |
//!
//! where choices = side + 2·pad − size + 1. The image is mirrored first, then padded, then cropped: pixel
//! (y, x) of the result is pixel (y + row − pad, c) of the image, where c is x + column − pad, or the image's
//! last column minus that if mirrored; outside the image it is byte 0 before normalisation.
//!
//! A resized crop needs more words, so example `i` has the blocks 16·i to 16·i + 10: word 0 of the first
//! mirrors the result; try `t` = 0 … 9 reads block 16·i + 1 + t, see [`Augment::resized`].

use crate::{Error, Result, Shape};
use grawa_core::{Key, Purpose};
use std::fmt;
use std::str::FromStr;

/// Random changes of training images.
///
/// ```
/// use grawa_data::{Augment, Crop};
/// let augment: Augment = "flip+pad4crop32".parse()?;
/// assert_eq!(augment, Augment { flip: true, crop: Crop::Random { pad: 4, size: 32 } });
/// assert_eq!(augment.to_string(), "flip+pad4crop32");
/// # Ok::<(), grawa_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Augment {
    /// Mirror left and right with probability ½.
    pub flip: bool,
    /// Which part of the image is shown.
    pub crop: Crop,
}

/// Which part of a training image is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Crop {
    /// All of it.
    Whole,
    /// A random square of `size`, after `pad` rows and columns of zero bytes on each side.
    Random {
        /// Zero rows and columns on each side.
        pad: u32,
        /// The side of the square.
        size: u32,
    },
    /// A random part of `least` to 100 % of the area and 3:4 to 4:3 in shape, resized to a square of `size`.
    Resized {
        /// The side of the square.
        size: u32,
        /// The smallest part, in percent of the area: 8 as in torchvision, more where a part does not show the class.
        least: u32,
    },
}

/// A crop: mirrored or not, and its first row and column in the padded image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Mirrored left and right.
    pub flip: bool,
    /// First row.
    pub row: u32,
    /// First column.
    pub column: u32,
}

/// A rectangle of an image of any size, in whole pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rectangle {
    /// First row.
    pub row: u32,
    /// First column.
    pub column: u32,
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
}

/// The longest side of a crop: products of sides stay far from overflow.
const LONGEST: u32 = 1 << 14;
/// The smallest part of a picture that a resized crop shows, in percent of its area: torchvision's.
pub(crate) const LEAST: u32 = 8;
/// Blocks of an example whose crop is resized.
const BLOCKS: u32 = 16;
/// Attempts at a resized crop before the middle of the image is used.
const TRIES: u32 = 10;

impl Augment {
    /// Images as they are.
    pub const NONE: Augment = Augment { flip: false, crop: Crop::Whole };

    /// The output shape for images of `shape`.
    pub fn output(&self, shape: Shape) -> Shape {
        match self.crop {
            Crop::Whole => shape,
            Crop::Random { size, .. } | Crop::Resized { size, .. } => Shape::new(shape.channels, size, size),
        }
    }

    /// The draws for example `example` of the batch at `key`'s worker and step, for images of `shape`.
    ///
    /// [`Crop::Resized`] draws by [`Augment::resized`] instead.
    pub fn window(&self, key: Key, example: u32, shape: Shape) -> Window {
        let words = key.purpose(Purpose::Augment).block(example);
        let (row, column) = match self.crop {
            Crop::Random { pad, size } => {
                let choices = |side: u32| (side + 2 * pad).saturating_sub(size) + 1;
                (scale(words[1], choices(shape.height)), scale(words[2], choices(shape.width)))
            }
            Crop::Whole | Crop::Resized { .. } => (0, 0),
        };
        Window { flip: self.flip && words[0] >> 31 == 1, row, column }
    }

    /// Whether example `example` is mirrored, and which rectangle of its `height` × `width` pixels is resized.
    ///
    /// Each try draws, from word 0, the area as a uniform share of `least` to 100 %; from word 1, width : height
    /// uniform in its logarithm from 3:4 to 4:3; from words 2 and 3, the first row and column among those that
    /// fit. A rectangle that does not fit is tried again, and the tenth failure gives the middle of the image
    /// at the nearest allowed ratio. Numbers are f64 and round half to even; word ÷ 2³² is uniform in [0, 1).
    pub fn resized(&self, key: Key, example: u32, height: u32, width: u32) -> (bool, Rectangle) {
        let key = key.purpose(Purpose::Augment);
        let first = example.wrapping_mul(BLOCKS);
        let least = if let Crop::Resized { least, .. } = self.crop { least } else { LEAST };
        let least = f64::from(least) / 100.0;
        let flip = self.flip && key.block(first)[0] >> 31 == 1;
        let (narrow, wide) = (3.0 / 4.0, 4.0 / 3.0);
        let (from, to) = (libm::log(narrow), libm::log(wide));
        let (h, w) = (f64::from(height), f64::from(width));
        for t in 0..TRIES {
            let words = key.block(first + 1 + t);
            let unit = |word: u32| f64::from(word) * (1.0 / 4_294_967_296.0);
            let area = h * w * (least + unit(words[0]) * (1.0 - least));
            let ratio = libm::exp(from + unit(words[1]) * (to - from));
            // A cast of a float saturates, and sides are at most a few thousand.
            let part_w = (area * ratio).sqrt().round_ties_even() as u32;
            let part_h = (area / ratio).sqrt().round_ties_even() as u32;
            if (1..=width).contains(&part_w) && (1..=height).contains(&part_h) {
                let row = scale(words[2], height - part_h + 1);
                let column = scale(words[3], width - part_w + 1);
                return (flip, Rectangle { row, column, height: part_h, width: part_w });
            }
        }
        let at_least_one = |side: f64| (side.round_ties_even() as u32).max(1);
        let (part_h, part_w) = if w / h < narrow {
            (at_least_one(w / narrow).min(height), width)
        } else if w / h > wide {
            (height, at_least_one(h * wide).min(width))
        } else {
            (height, width)
        };
        let (row, column) = ((height - part_h) / 2, (width - part_w) / 2);
        (flip, Rectangle { row, column, height: part_h, width: part_w })
    }

    /// Checks that images of `shape` can be shown in this way; only pictures in files are resized.
    pub fn check_for(&self, shape: Shape, are_files: bool) -> Result<()> {
        if matches!(self.crop, Crop::Resized { .. }) && !are_files {
            let why = "resizing is for pictures in files; use cropN or padPcropN";
            return Err(Error::does_not_fit(&self.to_string(), shape, why));
        }
        self.check(shape)
    }

    /// Checks that crops of images of `shape` exist. Pictures of any size need resizing.
    fn check(&self, shape: Shape) -> Result<()> {
        let (pad, size, largest) = match self.crop {
            Crop::Whole => return Ok(()),
            Crop::Random { pad, size } => (pad, size, shape.height.min(shape.width)),
            Crop::Resized { size, .. } => (0, size, LONGEST),
        };
        let why = match size {
            1..=LONGEST if size <= largest && pad <= LONGEST => return Ok(()),
            1..=LONGEST if pad <= LONGEST => format!("crop at most {largest}, the shorter side"),
            _ => format!("sizes go from 1 to {LONGEST}"),
        };
        Err(Error::does_not_fit(&self.to_string(), shape, &why))
    }
}

/// Uniform in `0..choices` by multiply and shift.
fn scale(word: u32, choices: u32) -> u32 {
    ((u64::from(word) * u64::from(choices)) >> 32) as u32
}

const FORM: &str = "write 'none', or 'flip' and one of cropN, padPcropN, resizedN, resizedNfromPERCENT joined by '+', such as flip+pad4crop32";

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = if self.flip { "flip+" } else { "" };
        match (self.flip, self.crop) {
            (true, Crop::Whole) => f.write_str("flip"),
            (false, Crop::Whole) => f.write_str("none"),
            (_, Crop::Random { pad: 0, size }) => write!(f, "{join}crop{size}"),
            (_, Crop::Random { pad, size }) => write!(f, "{join}pad{pad}crop{size}"),
            (_, Crop::Resized { size, least: LEAST }) => write!(f, "{join}resized{size}"),
            (_, Crop::Resized { size, least }) => write!(f, "{join}resized{size}from{least}"),
        }
    }
}

impl FromStr for Augment {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::Setting(format!("cannot read augmentation '{text}': {FORM}"));
        let number = |digits: &str| match digits.parse::<u32>() {
            Ok(n) if digits.bytes().all(|c| c.is_ascii_digit()) && n <= LONGEST => Ok(n),
            _ => Err(wrong()),
        };
        let (flip, rest) = match text {
            "none" => return Ok(Augment::NONE),
            "flip" => return Ok(Augment { flip: true, crop: Crop::Whole }),
            _ => text.strip_prefix("flip+").map_or((false, text), |rest| (true, rest)),
        };
        let crop = if let Some(size) = rest.strip_prefix("resized") {
            let (size, least) = match size.split_once("from") {
                Some((size, least)) => {
                    (size, number(least).ok().filter(|n| (1..=100).contains(n)).ok_or_else(wrong)?)
                }
                None => (size, LEAST),
            };
            Crop::Resized { size: number(size)?, least }
        } else if let Some(size) = rest.strip_prefix("crop") {
            Crop::Random { pad: 0, size: number(size)? }
        } else {
            let (pad, size) =
                rest.strip_prefix("pad").and_then(|r| r.split_once("crop")).ok_or_else(wrong)?;
            Crop::Random { pad: number(pad)?, size: number(size)? }
        };
        Ok(Augment { flip, crop })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CIFAR: Shape = Shape::new(3, 32, 32);

    #[test]
    fn text_reads_back() {
        for text in [
            "none",
            "flip",
            "crop28",
            "flip+crop28",
            "pad4crop32",
            "flip+pad4crop32",
            "flip+resized224",
            "resized64from50",
        ] {
            assert_eq!(text.parse::<Augment>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "flop",
            "flip+",
            "crop",
            "crop-1",
            "crop+3",
            "pad4",
            "padcrop3",
            "flip+none",
            "resized99999",
            "resized9from0",
            "resized9from",
        ] {
            let error = text.parse::<Augment>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{text}'")) && error.contains("pad4crop32"), "{error}");
        }
    }

    /// The words' uses are a promise to other implementations: these values were computed once and stay.
    #[test]
    fn the_draws_are_the_documented_words() {
        let key = Key::new(36, Purpose::Augment).worker(3).step(1_000);
        let augment: Augment = "flip+pad4crop32".parse().unwrap();
        for example in 0..64 {
            let words = key.block(example);
            let window = augment.window(Key::new(36, Purpose::Shuffle).worker(3).step(1_000), example, CIFAR);
            assert_eq!(window.flip, words[0] >= 1 << 31);
            assert_eq!(u64::from(window.row), u64::from(words[1]) * 9 / (1 << 32));
            assert_eq!(u64::from(window.column), u64::from(words[2]) * 9 / (1 << 32));
        }
    }

    #[test]
    fn windows_are_uniform() {
        let augment: Augment = "flip+crop28".parse().unwrap();
        let mut seen = [[0u32; 25]; 2];
        for step in 0..500 {
            let key = Key::new(1, Purpose::Augment).step(step);
            for example in 0..100 {
                let Window { flip, row, column } = augment.window(key, example, CIFAR);
                seen[usize::from(flip)][(row * 5 + column) as usize] += 1;
            }
        }
        // Chi-squared with 49 degrees of freedom: 85.4 is the 0.999 quantile, and the seed is fixed.
        let chi: f64 = seen.iter().flatten().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 85.4, "chi² = {chi}");
    }

    #[test]
    fn resized_crops_have_the_areas_and_ratios_asked_for() {
        let augment: Augment = "flip+resized224".parse().unwrap();
        let (mut area, mut flips) = (0.0, 0);
        let n = 4_000;
        for example in 0..n {
            let (flip, part) = augment.resized(Key::new(5, Purpose::Augment), example, 500, 500);
            let share = f64::from(part.height * part.width) / 250_000.0;
            let ratio = f64::from(part.width) / f64::from(part.height);
            assert!((0.079..=1.0).contains(&share) && (0.745..1.342).contains(&ratio), "{part:?}");
            area += share;
            flips += u32::from(flip);
        }
        // A large crop of a square fits less often: the mean stays below that of the uniform share, 0.54.
        let mean = area / f64::from(n);
        assert!((0.45..0.54).contains(&mean), "{mean}");
        let large: Augment = "resized64from50".parse().unwrap();
        let smallest = (0..n).map(|i| large.resized(Key::new(5, Purpose::Augment), i, 500, 500).1);
        let smallest = smallest.map(|part| part.height * part.width).min().unwrap();
        assert!((120_000..140_000).contains(&smallest), "{smallest}");
        assert!((1_850..2_150).contains(&flips), "{flips}");
    }

    #[test]
    fn a_picture_too_long_for_any_ratio_gives_its_middle() {
        let augment: Augment = "resized224".parse().unwrap();
        let (_, part) = augment.resized(Key::new(5, Purpose::Augment), 0, 10, 4_000);
        assert_eq!(part, Rectangle { row: 0, column: 1993, height: 10, width: 13 });
        let (_, part) = augment.resized(Key::new(5, Purpose::Augment), 0, 4_000, 1);
        assert_eq!(part, Rectangle { row: 1999, column: 0, height: 1, width: 1 });
    }

    proptest! {
        #[test]
        fn windows_lie_inside(seed: u64, example: u32, pad in 0u32..9, size in 1u32..=32) {
            let augment = Augment { flip: true, crop: Crop::Random { pad, size } };
            augment.check(CIFAR).unwrap();
            let window = augment.window(Key::new(seed, Purpose::Augment), example, CIFAR);
            prop_assert!(window.row + size <= 32 + 2 * pad && window.column + size <= 32 + 2 * pad);
        }

        #[test]
        fn rectangles_lie_inside(seed: u64, example in 0u32..1 << 20, height in 1u32..5_000, width in 1u32..5_000) {
            let augment = Augment { flip: true, crop: Crop::Resized { size: 224, least: LEAST } };
            let (_, part) = augment.resized(Key::new(seed, Purpose::Augment), example, height, width);
            prop_assert!(part.height > 0 && part.width > 0);
            prop_assert!(part.row + part.height <= height && part.column + part.width <= width);
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,20}") {
            if let Ok(augment) = text.parse::<Augment>() {
                prop_assert_eq!(augment.to_string().parse::<Augment>().unwrap(), augment);
            }
        }
    }
}
