//! The size of an image: channels, height, width.

use std::fmt;

/// The size of an image, in the order it lies in memory: channel planes of rows of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Colours, or 1 for greyscale.
    pub channels: u32,
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
}

impl Shape {
    /// The shape of `channels` planes of `height` × `width`.
    pub const fn new(channels: u32, height: u32, width: u32) -> Self {
        Shape { channels, height, width }
    }

    /// Scalars in one image.
    pub const fn len(&self) -> usize {
        self.channels as usize * self.plane()
    }

    /// Whether an image of this shape holds nothing.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Scalars in one channel.
    pub const fn plane(&self) -> usize {
        self.height as usize * self.width as usize
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}×{}", self.channels, self.height, self.width)
    }
}
