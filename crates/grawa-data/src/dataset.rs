//! A data set: two splits, each images and labels.
//!
//! Images in memory are bytes, one channel plane after the other (CHW), one image after the other. This
//! is the layout of CIFAR's files and the order of a network's input, so augmentation copies whole rows. At a quarter of
//! the size of floats the whole set fits on a GPU. Class folders are only listed; their files are decoded when needed.

use crate::error::{Error, Result, check_below};
use crate::picture::Picture;
use crate::{DatasetKind, Normalise, Shape};
use grawa_core::{Key, Purpose};
use std::path::PathBuf;
use std::sync::Arc;

/// Images and labels for training and for testing.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// How many classes there are; every label is below.
    pub classes: u32,
    /// The names of the classes: one for each class, or none if they have only numbers.
    pub class_names: Vec<String>,
    /// How its bytes become floats.
    pub normalise: Normalise,
    /// The images to train on.
    pub train: Split,
    /// The images to test on.
    pub test: Split,
}

/// Images and their labels. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Split {
    shape: Shape,
    images: Images,
    labels: Arc<Vec<u32>>,
    /// Bytes that decoding its pictures needs, on all cores.
    decoding: usize,
}

/// Where the images of a split are.
#[derive(Clone, Debug)]
pub enum Images {
    /// In memory: one byte for each scalar, planes one after the other (CHW), image after image.
    Bytes(Arc<Vec<u8>>),
    /// In files, decoded when needed.
    Files(Arc<Vec<PathBuf>>),
    /// Decoded from these files and in memory, of any size.
    Pictures(Arc<Vec<(PathBuf, Picture)>>),
}

impl Dataset {
    /// A data set that is known by name.
    pub(crate) fn of(kind: DatasetKind, class_names: Vec<String>, classes: u32, parts: [Split; 2]) -> Self {
        let ([train, test], normalise) = (parts, kind.normalise());
        Dataset { classes, class_names, normalise, train, test }
    }
}

impl Split {
    /// A split of images in memory, `shape.len()` bytes for each label.
    ///
    /// ```
    /// use grawa_data::{Split, Shape};
    /// let part = Split::from_bytes(Shape::new(1, 2, 2), vec![0; 12], vec![0, 1, 1], 2)?;
    /// assert_eq!(part.len(), 3);
    /// # Ok::<(), grawa_data::Error>(())
    /// ```
    pub fn from_bytes(shape: Shape, bytes: Vec<u8>, labels: Vec<u32>, classes: u32) -> Result<Self> {
        let expected = labels.len() * shape.len();
        if bytes.len() != expected {
            return Err(Error::WrongRoom("the images' buffer", bytes.len(), expected));
        }
        Self::new(shape, Images::Bytes(Arc::new(bytes)), labels, classes)
    }

    pub(crate) fn new(shape: Shape, images: Images, labels: Vec<u32>, classes: u32) -> Result<Self> {
        if shape.is_empty() {
            let why = format!("cannot read image shape '{shape}': every side must be at least 1");
            return Err(Error::Setting(why));
        }
        check_below("example", labels.len() as u64, 1 << 32)?;
        labels.iter().try_for_each(|&label| check_below("label", label.into(), classes.into()))?;
        Ok(Split { shape, images, labels: Arc::new(labels), decoding: 0 })
    }

    /// The shape of its images; of class folders, that of the first file.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How many images there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The labels.
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// The images.
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// The same, whose largest picture has this many bytes.
    pub(crate) fn with_largest(self, bytes: usize) -> Self {
        // Every core has one decoded and, while it is resized, parts of it again.
        Split { decoding: 2 * bytes * rayon::current_num_threads(), ..self }
    }

    /// The memory of its images, and of decoding them.
    pub fn memory(&self) -> usize {
        self.decoding
            + match &self.images {
                Images::Bytes(bytes) => bytes.len(),
                Images::Files(_) => 0,
                Images::Pictures(pictures) => pictures.iter().map(|(_, picture)| picture.pixels.len()).sum(),
            }
    }

    /// All bytes, for images in memory that have one shape.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.images {
            Images::Bytes(bytes) => Some(bytes),
            Images::Files(_) | Images::Pictures(_) => None,
        }
    }

    /// The images numbered `indices`, in that order.
    pub fn select(&self, indices: &[u32]) -> Result<Split> {
        let (have, n) = (self.len(), self.shape.len());
        indices.iter().try_for_each(|&index| check_below("example", index.into(), have as u64))?;
        let chosen = || indices.iter().map(|&index| index as usize);
        let images = match &self.images {
            Images::Bytes(bytes) => {
                let bytes = chosen().flat_map(|index| &bytes[index * n..][..n]).copied().collect();
                Images::Bytes(Arc::new(bytes))
            }
            Images::Files(files) => {
                Images::Files(Arc::new(chosen().map(|index| files[index].clone()).collect()))
            }
            Images::Pictures(pictures) => {
                Images::Pictures(Arc::new(chosen().map(|index| pictures[index].clone()).collect()))
            }
        };
        let labels = chosen().map(|index| self.labels[index]).collect();
        Ok(Split { shape: self.shape, images, labels: Arc::new(labels), decoding: self.decoding })
    }

    /// Holds out `n` images, chosen by `seed` alone: (the others, the held-out ones), each in their old order.
    ///
    /// The draw is the permutation of [`Purpose::Shuffle`] at worker `u32::MAX`, which no epoch uses; its
    /// first `n` numbers are held out.
    ///
    /// ```
    /// let digits = grawa_data::digits()?;
    /// let (train, held_out) = digits.train.hold_out(200, 36)?;
    /// assert_eq!((train.len(), held_out.len()), (1238, 200));
    /// # Ok::<(), grawa_data::Error>(())
    /// ```
    pub fn hold_out(&self, n: usize, seed: u64) -> Result<(Split, Split)> {
        let have = self.len();
        if n >= have {
            let hint = "hold out fewer, so that some are left to train on";
            return Err(Error::TooFew { asked: n as u64, of: "held-out examples", have, hint });
        }
        // The length was checked to fit when the part was made.
        let mut order = Key::new(seed, Purpose::Shuffle).worker(u32::MAX).permutation(have as u32);
        let (held_out, rest) = order.split_at_mut(n);
        held_out.sort_unstable();
        rest.sort_unstable();
        Ok((self.select(rest)?, self.select(held_out)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_checks_what_it_is_made_of() {
        let shape = Shape::new(1, 2, 2);
        let text = Split::from_bytes(shape, vec![0; 7], vec![0, 0], 1).unwrap_err().to_string();
        assert!(text.contains("room for 7") && text.contains('8'), "{text}");
        assert!(Split::from_bytes(Shape::new(3, 0, 2), vec![], vec![0], 1).is_err());
        let text = Split::from_bytes(shape, vec![0; 8], vec![0, 3], 3).unwrap_err().to_string();
        assert!(text.contains("label 3"), "{text}");
    }

    #[test]
    fn holding_out_splits_by_seed() {
        let shape = Shape::new(1, 1, 1);
        let all = Split::from_bytes(shape, (0..100).collect(), (0..100).collect(), 100).unwrap();
        let (rest, held) = all.hold_out(30, 7).unwrap();
        assert_eq!((rest.len(), held.len()), (70, 30));
        let mut both = [rest.labels(), held.labels()].concat();
        both.sort_unstable();
        assert!(both.into_iter().eq(0..100));
        // Images go with their labels.
        assert!(held.bytes().unwrap().iter().zip(held.labels()).all(|(&a, &b)| u32::from(a) == b));
        assert_eq!(all.hold_out(30, 7).unwrap().1.labels(), held.labels());
        assert_ne!(all.hold_out(30, 8).unwrap().1.labels(), held.labels());
        assert!(all.hold_out(0, 7).unwrap().1.is_empty());
        let text = all.hold_out(100, 7).unwrap_err().to_string();
        assert!(text.contains("100 held-out examples asked for, but there are 100"), "{text}");
    }
}
