//! The precision of a pass. Every build knows the names, since recipes carry them; only GPUs have more than f32.

use crate::Error;
use std::fmt;
use std::str::FromStr;

/// How numbers are stored and multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32 throughout, as on the CPU.
    F32,
    /// f32 in memory, multiplied on tensor cores in tf32.
    Tf32,
    /// Activations and packed weights in bf16; parameters, statistics, sums and updates in f32.
    Bf16,
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "f32" => Ok(Precision::F32),
            "tf32" => Ok(Precision::Tf32),
            "bf16" => Ok(Precision::Bf16),
            _ => Err(Error::UnknownPrecision { found: text.into() }),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
        })
    }
}
