//! The mean of each window over the input values inside it.

use crate::scalar::Scalar;
use crate::{Shape, Window};

/// The mean of each window.
pub(crate) fn forward<T: Scalar>(window: &Window, (from, to): (Shape, Shape), x: &[T], y: &mut [T]) {
    for (x, y) in x.chunks_exact(from.area()).zip(y.chunks_exact_mut(to.area())) {
        for (place, y) in y.iter_mut().enumerate() {
            let members = window.members(from, to, place);
            let count = T::of(members.clone().count() as f64);
            *y = members.map(|at| x[at]).sum::<T>() / count;
        }
    }
}

/// Adds the gradient of x.
pub(crate) fn backward<T: Scalar>(window: &Window, (from, to): (Shape, Shape), dy: &[T], dx: &mut [T]) {
    for (dx, dy) in dx.chunks_exact_mut(from.area()).zip(dy.chunks_exact(to.area())) {
        for (place, &dy) in dy.iter().enumerate() {
            let members = window.members(from, to, place);
            let share = dy / T::of(members.clone().count() as f64);
            members.for_each(|at| dx[at] += share);
        }
    }
}
