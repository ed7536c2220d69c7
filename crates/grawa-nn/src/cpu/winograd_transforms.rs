//! The transforms of Winograd's 3 × 3 convolutions. They evaluate tiles of pixels, and kernels, at a few points of a
//! polynomial; at these points a convolution is a product.
//!
//! m outputs in a row need m + 2 products: y = Aᵀ[(G·w) ∘ (Bᵀ·x)]. A tile applies this along its rows and then along its
//! columns. The gradient of the input is again a convolution. The gradient of the kernel is the adjoint in w,
//! Gᵀ[(Bᵀ·x) ∘ (A·dy)]. F(2 × 2, 3 × 3) uses the points 0, ±1, ∞. F(4 × 4, 3 × 3) uses 0, ±5/8, ±3/2, ∞: they are exact in
//! binary and lose half as many digits as the usual 0, ±1, ±2, ∞. The error of a convolution is about five times that of a
//! direct one, and less than a tenth of what an f32 network accumulates anyway.

#![allow(unsafe_code)]

use super::simd::{F32x16, Simd};

/// The transforms for one tile size. Points are stored row by row, `apart` vectors from each other. Pixel rows are `row`
/// vectors apart. The edge of a plane may cut a tile off: `there` holds how many rows and columns exist.
///
/// # Safety
/// As for [`Simd`]. Pointers must be valid for all points of a tile, and for the pixels that exist.
pub(crate) unsafe trait Transform {
    /// Outputs along a side.
    const SIDE: usize;
    /// Points along a side.
    const POINTS: usize;
    /// Bᵀ·x·B.
    unsafe fn input<V: Simd>(
        x: *const F32x16,
        row: usize,
        there: [usize; 2],
        points: *mut F32x16,
        apart: usize,
    );
    /// Aᵀ·p·A, added to y if `add`.
    unsafe fn output<V: Simd>(
        points: *const F32x16,
        apart: usize,
        y: *mut F32x16,
        row: usize,
        there: [usize; 2],
        add: bool,
    );
    /// A·dy·Aᵀ.
    unsafe fn gradient<V: Simd>(
        dy: *const F32x16,
        row: usize,
        there: [usize; 2],
        points: *mut F32x16,
        apart: usize,
    );
    /// G·w·Gᵀ.
    unsafe fn kernel<V: Simd>(w: &[F32x16; 9], points: *mut F32x16, apart: usize);
    /// Gᵀ·p·G.
    unsafe fn fold<V: Simd>(points: *const F32x16, apart: usize, w: &mut [F32x16; 9]);
}

/// Loads, selects and stores written out element by element. With loops or closures the compiler does not keep everything
/// in registers.
macro_rules! straight {
    ($load:ident, $pick:ident, $put:ident, $n:literal: $($i:literal)+) => {
        #[inline(always)]
        unsafe fn $load<V: Simd>(from: *const F32x16, apart: usize, count: usize) -> [V; $n] {
            // SAFETY: the caller's promise; see `Simd`.
            unsafe { [$(if $i < count { V::load(from.add($i * apart).cast()) } else { V::zero() }),+] }
        }
        #[inline(always)]
        fn $pick<V: Simd, const M: usize>(columns: &[[V; M]; $n], row: usize) -> [V; $n] {
            [$(columns[$i][row]),+]
        }
        #[inline(always)]
        unsafe fn $put<V: Simd>(values: [V; $n], to: *mut F32x16, apart: usize, count: usize, add: bool) {
            // SAFETY: the caller's promise; see `Simd`.
            unsafe {
                $(if $i < count {
                    let to = to.add($i * apart).cast::<f32>();
                    let value = if add { values[$i].add(V::load(to)) } else { values[$i] };
                    value.store(to);
                })+
            }
        }
    };
}
straight!(load_2, pick_2, put_2, 2: 0 1);
straight!(load_3, pick_3, put_3, 3: 0 1 2);
straight!(load_4, pick_4, put_4, 4: 0 1 2 3);
straight!(load_6, pick_6, put_6, 6: 0 1 2 3 4 5);

/// Some rows of a transform along both sides; `$of` transforms a column or a row. A matrix is its first vector, the distances
/// between its rows and between its columns, and how many of each exist. Elements beyond that read as zero and are not written.
macro_rules! both_sides {
    ($of:ident, $load:ident, $pick:ident, $put:ident, [$($c:literal)+], [$($r:literal)+], $from:expr, $to:expr, $add:expr) => {{
        let (from, [down, along], [height, width]) = $from;
        let columns = [$(if $c < width { $of::<V>($load::<V>(from.add($c * along), down, height)) } else { [V::zero(); _] }),+];
        let (to, [down, along], [height, width]) = $to;
        $(if $r < height {
            $put($of::<V>($pick(&columns, $r)), to.add($r * down), along, width, $add);
        })+
    }};
}

/// Implements [`Transform`] from transforms along one side. Each direction lists the rows to compute at a time: as many as fit
/// in registers.
macro_rules! transform {
    ($name:ident, $side:literal: $load:ident $pick:ident $put:ident $pixels:tt, $points:literal: $load_points:ident
     $pick_points:ident $put_points:ident $all:tt, input $input:ident [$($input_rows:tt)+], output $output:ident [$($output_rows:tt)+],
     gradient $gradient:ident [$($gradient_rows:tt)+], kernel $kernel:ident [$($kernel_rows:tt)+], fold $fold:ident $fold_rows:tt) => {
        // SAFETY: accesses only the vectors of its tile.
        unsafe impl Transform for $name {
            const SIDE: usize = $side;
            const POINTS: usize = $points;
            #[inline(always)]
            unsafe fn input<V: Simd>(x: *const F32x16, row: usize, there: [usize; 2], points: *mut F32x16, apart: usize) {
                let (x, points) = ((x, [row, 1], there), (points, [$points * apart, apart], [$points; 2]));
                // SAFETY: the caller's promise; see `Transform`.
                unsafe { $(both_sides!($input, $load_points, $pick_points, $put_points, $all, $input_rows, x, points, false);)+ }
            }
            #[inline(always)]
            unsafe fn output<V: Simd>(points: *const F32x16, apart: usize, y: *mut F32x16, row: usize, there: [usize; 2], add: bool) {
                let (points, y) = ((points, [$points * apart, apart], [$points; 2]), (y, [row, 1], there));
                // SAFETY: the caller's promise; see `Transform`.
                unsafe { $(both_sides!($output, $load_points, $pick_points, $put, $all, $output_rows, points, y, add);)+ }
            }
            #[inline(always)]
            unsafe fn gradient<V: Simd>(dy: *const F32x16, row: usize, there: [usize; 2], points: *mut F32x16, apart: usize) {
                let (dy, points) = ((dy, [row, 1], there), (points, [$points * apart, apart], [$points; 2]));
                // SAFETY: the caller's promise; see `Transform`.
                unsafe { $(both_sides!($gradient, $load, $pick, $put_points, $pixels, $gradient_rows, dy, points, false);)+ }
            }
            #[inline(always)]
            unsafe fn kernel<V: Simd>(w: &[F32x16; 9], points: *mut F32x16, apart: usize) {
                let (w, points) = ((w.as_ptr(), [3, 1], [3, 3]), (points, [$points * apart, apart], [$points; 2]));
                // SAFETY: the caller's promise; see `Transform`.
                unsafe { $(both_sides!($kernel, load_3, pick_3, $put_points, [0 1 2], $kernel_rows, w, points, false);)+ }
            }
            #[inline(always)]
            unsafe fn fold<V: Simd>(points: *const F32x16, apart: usize, w: &mut [F32x16; 9]) {
                let (points, w) = ((points, [$points * apart, apart], [$points; 2]), (w.as_mut_ptr(), [3, 1], [3, 3]));
                // SAFETY: the caller's promise; see `Transform`.
                unsafe { both_sides!($fold, $load_points, $pick_points, put_3, $all, $fold_rows, points, w, false); }
            }
        }
    };
}

/// F(2 × 2, 3 × 3): tiles of 2 × 2 outputs.
pub(crate) struct F2x2;

transform! {
    F2x2, 2: load_2 pick_2 put_2 [0 1], 4: load_4 pick_4 put_4 [0 1 2 3],
    input input_2 [[0 1 2 3]], output output_2 [[0 1]], gradient gradient_2 [[0 1 2 3]], kernel kernel_2 [[0 1 2 3]], fold fold_2 [0 1 2]
}

/// x along one side, at the points 0, 1, −1, ∞.
#[inline(always)]
unsafe fn input_2<V: Simd>([x0, x1, x2, x3]: [V; 4]) -> [V; 4] {
    // SAFETY: the caller's promise; see `Simd`.
    unsafe { [x0.sub(x2), x1.add(x2), x2.sub(x1), x3.sub(x1)] }
}

#[inline(always)]
unsafe fn output_2<V: Simd>([p0, p1, p2, p3]: [V; 4]) -> [V; 2] {
    // SAFETY: the caller's promise; see `Simd`.
    unsafe { [p0.add(p1).add(p2), p1.sub(p2).add(p3)] }
}

#[inline(always)]
unsafe fn gradient_2<V: Simd>([y0, y1]: [V; 2]) -> [V; 4] {
    // SAFETY: the caller's promise; see `Simd`.
    unsafe { [y0, y0.add(y1), y0.sub(y1), y1] }
}

#[inline(always)]
unsafe fn kernel_2<V: Simd>([w0, w1, w2]: [V; 3]) -> [V; 4] {
    // SAFETY: the caller's promise; see `Simd`.
    unsafe {
        let half = V::splat(0.5);
        let even = w0.add(w2).mul(half);
        [w0, even.plus(w1, half), even.minus(w1, half), w2]
    }
}

#[inline(always)]
unsafe fn fold_2<V: Simd>([p0, p1, p2, p3]: [V; 4]) -> [V; 3] {
    // SAFETY: the caller's promise; see `Simd`.
    unsafe {
        let half = V::splat(0.5);
        let even = p1.add(p2).mul(half);
        [p0.add(even), p1.sub(p2).mul(half), p3.add(even)]
    }
}

/// F(4 × 4, 3 × 3): tiles of 4 × 4 outputs.
pub(crate) struct F4x4;

transform! {
    F4x4, 4: load_4 pick_4 put_4 [0 1 2 3], 6: load_6 pick_6 put_6 [0 1 2 3 4 5],
    input input_4 [[0] [1 2] [3 4] [5]], output output_4 [[0 2] [1 3]], gradient gradient_4 [[0] [1 2] [3 4] [5]],
    kernel kernel_4 [[0 1 2] [3 4 5]], fold fold_4 [0 1 2]
}

/// The points of F(4 × 4, 3 × 3) besides 0 and ∞: ±A and ±B.
const A: f32 = 0.625;
const B: f32 = 1.5;
const A2: f32 = A * A;
const B2: f32 = B * B;

/// x along one side. The row of a point is the polynomial with leading coefficient 1 that is zero at all other points.
#[inline(always)]
unsafe fn input_4<V: Simd>([x0, x1, x2, x3, x4, x5]: [V; 6]) -> [V; 6] {
    // SAFETY: the caller's promise; see `Simd`.
    unsafe {
        let (a, b, a2, b2) = (V::splat(A), V::splat(B), V::splat(A2), V::splat(B2));
        let (both, product) = (V::splat(A2 + B2), V::splat(A2 * B2));
        let (even_a, odd_a) = (x4.minus(b2, x2), x3.minus(b2, x1));
        let (even_b, odd_b) = (x4.minus(a2, x2), x3.minus(a2, x1));
        [
            x4.minus(both, x2).plus(product, x0),
            even_a.plus(a, odd_a),
            even_a.minus(a, odd_a),
            even_b.plus(b, odd_b),
            even_b.minus(b, odd_b),
            x5.minus(both, x3).plus(product, x1),
        ]
    }
}

#[inline(always)]
unsafe fn output_4<V: Simd>([p0, p1, p2, p3, p4, p5]: [V; 6]) -> [V; 4] {
    // SAFETY: the caller's promise; see `Simd`.
    unsafe {
        let (a, b, a2, b2) = (V::splat(A), V::splat(B), V::splat(A2), V::splat(B2));
        let (sum_a, sum_b) = (p1.add(p2), p3.add(p4));
        let (gap_a, gap_b) = (p1.sub(p2).mul(a), p3.sub(p4).mul(b));
        [
            p0.add(sum_a).add(sum_b),
            gap_a.add(gap_b),
            sum_a.mul(a2).plus(b2, sum_b),
            p5.plus(a2, gap_a).plus(b2, gap_b),
        ]
    }
}

#[inline(always)]
unsafe fn gradient_4<V: Simd>([y0, y1, y2, y3]: [V; 4]) -> [V; 6] {
    // SAFETY: the caller's promise; see `Simd`.
    unsafe {
        let (a, b, a2, b2) = (V::splat(A), V::splat(B), V::splat(A2), V::splat(B2));
        let (even_a, odd_a) = (y0.plus(a2, y2), y1.plus(a2, y3));
        let (even_b, odd_b) = (y0.plus(b2, y2), y1.plus(b2, y3));
        [y0, even_a.plus(a, odd_a), even_a.minus(a, odd_a), even_b.plus(b, odd_b), even_b.minus(b, odd_b), y3]
    }
}

/// Each point's normalisation is applied to the kernel instead of to the input.
const AT_0: f32 = 1.0 / (A2 * B2);
const AT_A: f32 = 1.0 / (2.0 * A2 * (A2 - B2));
const AT_B: f32 = 1.0 / (2.0 * B2 * (B2 - A2));

#[inline(always)]
unsafe fn kernel_4<V: Simd>([w0, w1, w2]: [V; 3]) -> [V; 6] {
    // SAFETY: the caller's promise; see `Simd`.
    unsafe {
        let (at_a, at_b) = (V::splat(AT_A), V::splat(AT_B));
        let (even_a, even_b) = (w0.plus(V::splat(A2), w2).mul(at_a), w0.plus(V::splat(B2), w2).mul(at_b));
        let (odd_a, odd_b) = (V::splat(A * AT_A), V::splat(B * AT_B));
        [
            w0.mul(V::splat(AT_0)),
            even_a.plus(odd_a, w1),
            even_a.minus(odd_a, w1),
            even_b.plus(odd_b, w1),
            even_b.minus(odd_b, w1),
            w2,
        ]
    }
}

#[inline(always)]
unsafe fn fold_4<V: Simd>([p0, p1, p2, p3, p4, p5]: [V; 6]) -> [V; 3] {
    // SAFETY: the caller's promise; see `Simd`.
    unsafe {
        let (sum_a, sum_b) = (p1.add(p2).mul(V::splat(AT_A)), p3.add(p4).mul(V::splat(AT_B)));
        let (gap_a, gap_b) = (p1.sub(p2), p3.sub(p4));
        [
            sum_a.add(sum_b).plus(V::splat(AT_0), p0),
            gap_a.mul(V::splat(A * AT_A)).plus(V::splat(B * AT_B), gap_b),
            p5.plus(V::splat(A2), sum_a).plus(V::splat(B2), sum_b),
        ]
    }
}
