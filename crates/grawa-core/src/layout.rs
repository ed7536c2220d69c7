//! A model is one flat vector with named spans.
//!
//! All parameters of a replica lie in one `f32` buffer, and so do its gradients and its momentum. A
//! [`Layout`] maps ranges of that buffer to tensors. Spans follow each other without gaps, in the order they were
//! added. A buffer plus its layout is a checkpoint, and nothing is ever flattened.
//!
//! ```
//! use grawa_core::Layout;
//! let layout = Layout::new([("conv.weight", vec![16, 3, 3, 3]), ("fc.weight", vec![10, 16])])?;
//! assert_eq!((layout.len(), layout.spans().len()), (592, 2));
//! assert_eq!(layout.find("fc.weight").map(|span| span.range()), Some(432..592));
//! # Ok::<(), grawa_core::Error>(())
//! ```

use crate::Error;
use std::collections::HashSet;
use std::ops::Range;

/// One tensor's range in the flat buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    name: String,
    shape: Vec<usize>,
    range: Range<usize>,
    silent: bool,
}

impl Span {
    /// The tensor's name, such as `layer1.0.conv1.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tensor's shape; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The tensor's range in the flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The number of scalars.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether the tensor is empty.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Whether the loss does not depend on this tensor, as on a bias in front of batch norm: its gradient
    /// is zero up to rounding, and must not influence any weight.
    pub fn is_silent(&self) -> bool {
        self.silent
    }
}

/// Named spans over one flat buffer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Layout {
    spans: Vec<Span>,
}

impl Layout {
    /// A layout of tensors in the order given. Names must differ and sizes must fit in memory.
    pub fn new<N: Into<String>>(tensors: impl IntoIterator<Item = (N, Vec<usize>)>) -> Result<Self, Error> {
        let mut spans: Vec<Span> = Vec::new();
        let mut names = HashSet::new();
        let mut offset = 0usize;
        for (name, shape) in tensors {
            let name = name.into();
            let end = (shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)))
                .and_then(|len| offset.checked_add(len))
                .filter(|&end| end <= isize::MAX as usize / size_of::<f32>())
                .ok_or_else(|| Error::TensorTooLarge { name: name.clone(), shape: shape.clone() })?;
            if !names.insert(name.clone()) {
                return Err(Error::TwoTensorsOfOneName { name });
            }
            spans.push(Span { name, shape, range: offset..end, silent: false });
            offset = end;
        }
        Ok(Layout { spans })
    }

    /// One span of `len` scalars called `x`, for plain functions.
    pub fn flat(len: usize) -> Self {
        Layout { spans: vec![Span { name: "x".into(), shape: vec![len], range: 0..len, silent: false }] }
    }

    /// The same layout with the named span marked as one the loss does not depend on (see
    /// [`Span::is_silent`]).
    pub fn silence(mut self, name: &str) -> Result<Self, Error> {
        let known = self.spans.iter_mut().find(|span| span.name == name);
        known.ok_or_else(|| Error::NoSuchTensor { name: name.into() })?.silent = true;
        Ok(self)
    }

    /// The spans in order.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The span of that name.
    pub fn find(&self, name: &str) -> Option<&Span> {
        self.spans.iter().find(|span| span.name == name)
    }

    /// The length of the flat buffer.
    pub fn len(&self) -> usize {
        self.spans.last().map_or(0, |span| span.range.end)
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index of the span that holds the scalar at `offset`.
    pub fn span_at(&self, offset: usize) -> Option<usize> {
        let index = self.spans.partition_point(|span| span.range.end <= offset);
        (index < self.spans.len()).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_stands_once() {
        let twice = Layout::new([("a", vec![2]), ("a", vec![3])]);
        assert_eq!(twice, Err(Error::TwoTensorsOfOneName { name: "a".into() }));
    }

    #[test]
    fn a_size_that_overflows_is_an_error() {
        assert!(matches!(Layout::new([("a", vec![usize::MAX, 2])]), Err(Error::TensorTooLarge { .. })));
        assert!(matches!(
            Layout::new([("a", vec![usize::MAX / 8]), ("b", vec![usize::MAX / 8])]),
            Err(Error::TensorTooLarge { .. })
        ));
    }

    #[test]
    fn silence_needs_a_known_name() {
        let layout = Layout::new([("bias", vec![2])]).unwrap();
        assert!(layout.clone().silence("bias").unwrap().spans()[0].is_silent());
        assert_eq!(layout.silence("bais"), Err(Error::NoSuchTensor { name: "bais".into() }));
    }

    proptest! {
        #[test]
        fn spans_tile_the_buffer(shapes in proptest::collection::vec(proptest::collection::vec(0usize..5, 0..4), 0..12)) {
            let named = shapes.iter().enumerate().map(|(i, shape)| (format!("t{i}"), shape.clone()));
            let layout = Layout::new(named).unwrap();
            let mut next = 0;
            for (i, span) in layout.spans().iter().enumerate() {
                prop_assert_eq!(span.range().start, next);
                prop_assert_eq!(span.len(), shapes[i].iter().product::<usize>());
                next = span.range().end;
                for at in span.range() {
                    prop_assert_eq!(layout.span_at(at), Some(i));
                }
            }
            prop_assert_eq!(layout.len(), next);
            prop_assert_eq!(layout.span_at(next), None);
        }
    }
}
