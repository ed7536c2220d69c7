//! Matrix products on slices, by the `gemm` crate.

use crate::scalar::Scalar;
use num_traits::One;

/// How a slice is read as a matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) enum As {
    /// Row by row.
    Rows,
    /// Transposed: column by column.
    Columns,
}

impl As {
    /// Distances between rows and between columns of a matrix of this size.
    fn strides(self, rows: usize, columns: usize) -> [isize; 2] {
        match self {
            As::Rows => [columns as isize, 1],
            As::Columns => [1, rows as isize],
        }
    }
}

/// out (m × n, row by row) ← a (m × k) · b (k × n), added to `out` if `add`.
///
/// # Panics
/// If the length of a slice does not match: an error of the caller, never of input.
pub(crate) fn matmul<T: Scalar>(
    [m, k, n]: [usize; 3],
    (a, a_as): (&[T], As),
    (b, b_as): (&[T], As),
    out: &mut [T],
    add: bool,
) {
    assert_eq!(
        (a.len(), b.len(), out.len()),
        (m * k, k * n, m * n),
        "matrices of {m}×{k}, {k}×{n} and {m}×{n}"
    );
    if out.is_empty() {
        return;
    }
    T::product([m, k, n], (a, a_as.strides(m, k)), (b, b_as.strides(k, n)), out, add);
}

/// The product of plain numbers, `f32` or `f64`, by the `gemm` crate.
pub(crate) fn gemm<T: One + 'static>(
    [m, k, n]: [usize; 3],
    (a, [a_row, a_column]): (&[T], [isize; 2]),
    (b, [b_row, b_column]): (&[T], [isize; 2]),
    out: &mut [T],
    add: bool,
) {
    let reach = |rows: usize, columns: usize, row: isize, column: isize| {
        if rows * columns == 0 { 0 } else { (rows - 1) * row as usize + (columns - 1) * column as usize + 1 }
    };
    assert!(
        reach(m, k, a_row, a_column) <= a.len()
            && reach(k, n, b_row, b_column) <= b.len()
            && m * n <= out.len(),
        "the matrices are inside their slices"
    );
    // SAFETY: the assertion above: every element that the sides and strides address is inside its slice.
    #[allow(unsafe_code)]
    unsafe {
        ::gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            add,
            a.as_ptr(),
            a_column,
            a_row,
            b.as_ptr(),
            b_column,
            b_row,
            T::one(),
            T::one(),
            false,
            false,
            false,
            ::gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_the_plain_sums(m in 1usize..6, k in 0usize..6, n in 1usize..6, a_transposed: bool, b_transposed: bool, add: bool, seed: u64) {
            let mut draws = grawa_core::Key::new(seed, grawa_core::Purpose::Problem).stream();
            let mut some = |len: usize| (0..len).map(|_| draws.normal()).collect::<Vec<f64>>();
            let (a, b, start) = (some(m * k), some(k * n), some(m * n));
            let mut out = start.clone();
            let how = |transposed| if transposed { As::Columns } else { As::Rows };
            matmul([m, k, n], (&a, how(a_transposed)), (&b, how(b_transposed)), &mut out, add);
            for i in 0..m {
                for j in 0..n {
                    let a_at = |l: usize| if a_transposed { a[l * m + i] } else { a[i * k + l] };
                    let b_at = |l: usize| if b_transposed { b[j * k + l] } else { b[l * n + j] };
                    let plain = (0..k).map(|l| a_at(l) * b_at(l)).sum::<f64>() + if add { start[i * n + j] } else { 0.0 };
                    prop_assert!((out[i * n + j] - plain).abs() < 1e-12);
                }
            }
        }
    }
}
