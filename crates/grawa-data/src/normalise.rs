//! From bytes to floats: (byte ÷ levels − mean) ÷ std, channel by channel.
//!
//! A byte has 256 values, so the arithmetic is done once, in the order and precision of PyTorch's `ToTensor` and `Normalize`,
//! and filling a batch looks values up. A GPU kernel uses the same table: both give the same bits.

use crate::{Error, Result, Shape};

/// How bytes become floats, channel by channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalise {
    /// The byte that stands for 1.
    pub levels: f32,
    /// The mean of each channel, on the scale of 0 to 1.
    pub mean: Vec<f32>,
    /// The standard deviation of each channel, on the same scale.
    pub std: Vec<f32>,
}

impl Normalise {
    /// The byte `levels` stands for 1; then `mean` is taken off and the rest divided by `std`.
    pub fn new(levels: f32, mean: &[f32], std: &[f32]) -> Self {
        Normalise { levels, mean: mean.to_vec(), std: std.to_vec() }
    }

    /// The float of each byte, one table for each channel.
    ///
    /// ```
    /// let table = grawa_data::DatasetKind::Cifar10.normalise().table();
    /// assert_eq!(table.len(), 3);
    /// assert_eq!(table[0][255], (1.0 - 0.4914) / 0.2023_f32);
    /// ```
    pub fn table(&self) -> Vec<[f32; 256]> {
        let channel = |(&mean, &std): (&f32, &f32)| {
            std::array::from_fn(|byte| (byte as f32 / self.levels - mean) / std)
        };
        self.mean.iter().zip(&self.std).map(channel).collect()
    }

    /// Checks that there are usable constants for each channel.
    pub(crate) fn check(&self, shape: Shape) -> Result<()> {
        let expected = shape.channels as usize;
        for (what, values) in [("means", &self.mean), ("standard deviations", &self.std)] {
            if values.len() != expected {
                return Err(Error::WrongRoom(what, values.len(), expected));
            }
        }
        let usable = |x: &f32| x.is_finite() && *x > 0.0;
        if usable(&self.levels) && self.std.iter().all(usable) && self.mean.iter().all(|x| x.is_finite()) {
            return Ok(());
        }
        Err(Error::Setting(format!(
            "cannot read normalisation 'levels {}, mean {:?}, std {:?}': levels and standard deviations must be positive, means finite",
            self.levels, self.mean, self.std
        )))
    }
}
