//! The shape of one example at some point of a network: channels, height, width.

use std::fmt;

/// Channels × height × width; a plain vector has height and width 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Channels.
    pub channels: usize,
    /// Height.
    pub height: usize,
    /// Width.
    pub width: usize,
}

impl Shape {
    /// A square image.
    pub const fn image(channels: usize, side: usize) -> Self {
        Shape { channels, height: side, width: side }
    }

    /// A vector.
    pub const fn vector(channels: usize) -> Self {
        Shape::image(channels, 1)
    }

    /// Scalars in one channel.
    pub const fn area(&self) -> usize {
        self.height * self.width
    }

    /// Scalars in all.
    pub const fn len(&self) -> usize {
        self.channels * self.area()
    }

    /// Whether there is no scalar.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}×{}×{}", self.channels, self.height, self.width))
    }
}
