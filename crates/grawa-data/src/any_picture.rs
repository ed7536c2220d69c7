//! Pictures of any size as examples of a data set: what a trained network is asked about.
//!
//! Where evaluation resizes (class folders with `resizedN`) a picture is shown as evaluation shows it. Elsewhere the images of the set
//! have one shape: of a picture of another shape the largest middle part with the same proportions is resized to it, as training's
//! images once were. A set of greyscale images gets the luma of the colours (ITU-R 601, as Pillow's `L`), and bytes are scaled to the
//! levels of the set. Evaluation's crop follows as usual.

use crate::error::Result;
use crate::picture::{Picture, decode};
use crate::{Augment, Crop, Images, Normalise, Rectangle, Shape, Split, folder};
use fast_image_resize::Resizer;
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// JPEG or PNG files as a split without labels (all are 0), for images of `shape` that were normalised and augmented in this way.
pub fn unlabelled(files: &[PathBuf], shape: Shape, normalise: &Normalise, augment: Augment) -> Result<Split> {
    let labels = vec![0; files.len()];
    if matches!(augment.crop, Crop::Resized { .. }) {
        return Split::new(shape, Images::Files(Arc::new(files.to_vec())), labels, 1);
    }
    let (mut bytes, mut resizer) = (Vec::with_capacity(files.len() * shape.len()), Resizer::new());
    for path in files {
        let picture = fitted(decode(&folder::read(path)?, path)?, shape, &mut resizer)?;
        let scaled = |byte: u8| (f32::from(byte) * normalise.levels / 255.0).round() as u8;
        let planes = if shape.channels == 1 { luma(&picture) } else { picture.planes() };
        bytes.extend(planes.into_iter().map(scaled));
    }
    Split::from_bytes(shape, bytes, labels, 1)
}

/// Decodes each file, and returns what is wrong with it if something is.
pub fn check_pictures<P: AsRef<Path> + Sync>(files: &[P], progress: &(dyn Fn() + Sync)) -> Vec<Result<()>> {
    let check = |path: &P| {
        let checked = decode(&folder::read(path.as_ref())?, path.as_ref()).map(drop);
        progress();
        checked
    };
    files.par_iter().map(check).collect()
}

/// The largest middle part with the proportions of `shape`, resized to it; a picture of that shape as it is.
fn fitted(picture: Picture, shape: Shape, resizer: &mut Resizer) -> Result<Picture> {
    if (picture.height, picture.width) == (shape.height, shape.width) {
        return Ok(picture);
    }
    // The side that a scale leaves, rounded and at least 1.
    let part = |side: u32, by: u32, of: u32| {
        let (side, by, of) = (u64::from(side), u64::from(by), u64::from(of));
        ((side * by + of / 2) / of).max(1) as u32
    };
    let height = picture.height.min(part(picture.width, shape.height, shape.width));
    let width = picture.width.min(part(picture.height, shape.width, shape.height));
    let (row, column) = ((picture.height - height) / 2, (picture.width - width) / 2);
    picture.resized(Rectangle { row, column, height, width }, shape.height, shape.width, resizer)
}

/// The luma of each pixel, with Pillow's rounding.
fn luma(picture: &Picture) -> Vec<u8> {
    let of = |pixel: &[u8]| {
        let [red, green, blue] = [0, 1, 2].map(|channel| u32::from(pixel[channel]));
        ((red * 19_595 + green * 38_470 + blue * 7_471 + 0x8000) >> 16) as u8
    };
    picture.pixels.chunks_exact(3).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DatasetKind, Feed};

    fn write(
        pixels: &[u8],
        (width, height): (u32, u32),
        color: png::ColorType,
    ) -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.png");
        let mut encoder = png::Encoder::new(std::fs::File::create(&path).unwrap(), width, height);
        encoder.set_color(color);
        encoder.write_header().unwrap().write_image_data(pixels).unwrap();
        (place, path)
    }

    /// A digit that was written as a picture of 0 to 255 is the digit again, to the bit.
    #[test]
    fn an_image_of_the_set_comes_back() {
        let digits = crate::digits().unwrap();
        let bytes = &digits.test.bytes().unwrap()[5 * 64..][..64];
        let shown: Vec<u8> =
            bytes.iter().map(|&level| (f32::from(level) * 255.0 / 16.0).round() as u8).collect();
        let (_place, path) = write(&shown, (8, 8), png::ColorType::Grayscale);
        let split = unlabelled(&[path], Shape::new(1, 8, 8), &digits.normalise, Augment::NONE).unwrap();
        assert_eq!(split.bytes().unwrap(), bytes);
    }

    /// Of a wide picture the middle square counts, and what the filter reads beside it, as with Pillow's `box`: its ends are not seen.
    #[test]
    fn another_shape_is_cut_in_the_middle_and_resized() {
        let row: Vec<u8> = [[255, 0, 0]; 12]
            .into_iter()
            .chain([[30, 60, 90]; 40])
            .chain([[0, 255, 0]; 12])
            .flatten()
            .collect();
        let (_place, path) = write(&row.repeat(32), (64, 32), png::ColorType::Rgb);
        let kind = DatasetKind::Cifar10;
        let of = |shape: Shape, normalise| {
            unlabelled(std::slice::from_ref(&path), shape, &normalise, kind.augment("resnet20")).unwrap()
        };
        let split = of(Shape::new(3, 16, 16), kind.normalise());
        for (plane, level) in split.bytes().unwrap().chunks_exact(256).zip([30, 60, 90]) {
            assert!(plane.iter().all(|&byte| byte == level), "{plane:?}");
        }
        // Evaluation's middle crop of 28 follows.
        let large = of(Shape::new(3, 32, 32), kind.normalise());
        let feed = Feed::new(&large, &kind.normalise(), kind.augment("resnet20")).unwrap();
        assert_eq!(feed.output(), Shape::new(3, 28, 28));
        // Luma of (30, 60, 90) is 54, of 255 levels.
        let grey = of(Shape::new(1, 28, 28), DatasetKind::Mnist.normalise());
        assert!(grey.bytes().unwrap().iter().all(|&byte| byte == 54));
        let tall = fitted(
            Picture { height: 300, width: 1, pixels: vec![7; 900] },
            Shape::new(3, 8, 8),
            &mut Resizer::new(),
        );
        assert_eq!(tall.unwrap().pixels, vec![7; 192]);
    }
}
