//! The maximum of each window. The gradient goes to the first of equal values, as in PyTorch.

use crate::scalar::Scalar;
use crate::{Shape, Window};

impl Window {
    /// The indices in an input channel that the window of an output position covers.
    pub(crate) fn members(
        &self,
        from: Shape,
        to: Shape,
        place: usize,
    ) -> impl Iterator<Item = usize> + Clone + use<> {
        let reach = |at: usize, length: usize| {
            let start = at * self.stride;
            // The range in the padded input, clipped to the input.
            start.saturating_sub(self.pad)..(start + self.kernel).saturating_sub(self.pad).min(length)
        };
        let (rows, columns) = (reach(place / to.width, from.height), reach(place % to.width, from.width));
        let width = from.width;
        rows.flat_map(move |row| columns.clone().map(move |column| row * width + column))
    }
}

/// The index of the maximum of a window.
fn largest<T: Scalar>(x: &[T], members: impl Iterator<Item = usize>) -> usize {
    // NaN wins over every number, so that it is noticed.
    members
        .reduce(|best, at| {
            if x[at] > x[best] || (x[at].wide().is_nan() && !x[best].wide().is_nan()) { at } else { best }
        })
        .unwrap_or(0)
}

/// The maximum of each window.
pub(crate) fn forward<T: Scalar>(window: &Window, (from, to): (Shape, Shape), x: &[T], y: &mut [T]) {
    for (x, y) in x.chunks_exact(from.area()).zip(y.chunks_exact_mut(to.area())) {
        for (place, y) in y.iter_mut().enumerate() {
            *y = x[largest(x, window.members(from, to, place))];
        }
    }
}

/// Adds the gradient of x.
pub(crate) fn backward<T: Scalar>(
    window: &Window,
    (from, to): (Shape, Shape),
    x: &[T],
    dy: &[T],
    dx: &mut [T],
) {
    for ((x, dx), dy) in
        x.chunks_exact(from.area()).zip(dx.chunks_exact_mut(from.area())).zip(dy.chunks_exact(to.area()))
    {
        for (place, &dy) in dy.iter().enumerate() {
            dx[largest(x, window.members(from, to, place))] += dy;
        }
    }
}
