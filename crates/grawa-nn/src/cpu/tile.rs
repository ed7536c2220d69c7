//! The transforms of Winograd's convolutions: tiles of pixels, and kernels of 3 × 3, seen at a few points of a polynomial,
//! where a convolution is a product.
//!
//! A row of m outputs of a kernel of 3 comes from m + 2 products: y = Aᵀ[(G·w) ∘ (Bᵀ·x)]; a tile is that along its rows and
//! then along its columns. The gradient of the input is a convolution again; the gradient of the kernel is the adjoint in w,
//! Gᵀ[(Bᵀ·x) ∘ (A·dy)]. Tiles of 2 × 2 use the points 0, ±1, ∞; tiles of 4 × 4 the points 0, ±5/8, ±3/2, ∞, which are exact
//! in binary and lose half as many digits as the customary 0, ±1, ±2, ∞: the error of a convolution is some five times that
//! of a direct one, under a tenth of what a network of f32 accumulates by itself.

#![allow(unsafe_code)]

use super::lanes::{Lanes, Line};

/// A size of tile. The points of a tile lie `apart` lines from each other, row by row of points; its pixels in rows that lie
/// `row` lines apart. The edge of a plane may cut a tile off: `there` says how many rows and columns there are.
///
/// # Safety
/// As of [`Lanes`]; pointers must be valid for the points of a tile, and for the pixels that are there.
pub(crate) unsafe trait Tile {
    /// Outputs along a side, and points along a side.
    const SIDE: usize;
    const POINTS: usize;
    /// Bᵀ·x·B.
    unsafe fn input<V: Lanes>(x: *const Line, row: usize, there: [usize; 2], points: *mut Line, apart: usize);
    /// Aᵀ·p·A, added to what is there if `add`.
    unsafe fn output<V: Lanes>(
        points: *const Line,
        apart: usize,
        y: *mut Line,
        row: usize,
        there: [usize; 2],
        add: bool,
    );
    /// A·dy·Aᵀ.
    unsafe fn flow<V: Lanes>(dy: *const Line, row: usize, there: [usize; 2], points: *mut Line, apart: usize);
    /// G·w·Gᵀ.
    unsafe fn kernel<V: Lanes>(w: &[Line; 9], points: *mut Line, apart: usize);
    /// Gᵀ·p·G.
    unsafe fn fold<V: Lanes>(points: *const Line, apart: usize, w: &mut [Line; 9]);
}

/// What follows is written out number by number, without loops and closures: only so does the compiler keep all of it in
/// registers.
macro_rules! straight {
    ($load:ident, $pick:ident, $put:ident, $n:literal: $($i:literal)+) => {
        #[inline(always)]
        unsafe fn $load<V: Lanes>(from: *const Line, apart: usize, count: usize) -> [V; $n] {
            // SAFETY: the caller's promise: see `Lanes`.
            unsafe { [$(if $i < count { V::load(from.add($i * apart).cast()) } else { V::zero() }),+] }
        }
        #[inline(always)]
        fn $pick<V: Lanes, const M: usize>(columns: &[[V; M]; $n], row: usize) -> [V; $n] {
            [$(columns[$i][row]),+]
        }
        #[inline(always)]
        unsafe fn $put<V: Lanes>(values: [V; $n], to: *mut Line, apart: usize, count: usize, add: bool) {
            // SAFETY: the caller's promise: see `Lanes`.
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

/// Some rows of a transform along both sides: `$of` transforms a column or a row. A matrix is its first line, how far its rows
/// and columns lie apart, and how many of each there are: what is beyond reads as zero and is not written.
macro_rules! both_ways {
    ($of:ident, $load:ident, $pick:ident, $put:ident, columns $($c:literal)+, rows $($r:literal)+, $from:expr, $to:expr, $add:expr) => {{
        let (from, [down, along], [height, width]) = $from;
        let columns = [$(if $c < width { $of::<V>($load::<V>(from.add($c * along), down, height)) } else { [V::zero(); _] }),+];
        let (to, [down, along], [height, width]) = $to;
        $(if $r < height {
            $put($of::<V>($pick(&columns, $r)), to.add($r * down), along, width, $add);
        })+
    }};
}

/// Tiles of 2 × 2 outputs.
pub(crate) struct By2;

/// x along one side, at the points 0, 1, −1, ∞.
#[inline(always)]
unsafe fn input_2<V: Lanes>([x0, x1, x2, x3]: [V; 4]) -> [V; 4] {
    // SAFETY: the caller's promise: see `Lanes`.
    unsafe { [x0.sub(x2), x1.add(x2), x2.sub(x1), x3.sub(x1)] }
}

#[inline(always)]
unsafe fn output_2<V: Lanes>([p0, p1, p2, p3]: [V; 4]) -> [V; 2] {
    // SAFETY: the caller's promise: see `Lanes`.
    unsafe { [p0.add(p1).add(p2), p1.sub(p2).add(p3)] }
}

#[inline(always)]
unsafe fn flow_2<V: Lanes>([y0, y1]: [V; 2]) -> [V; 4] {
    // SAFETY: the caller's promise: see `Lanes`.
    unsafe { [y0, y0.add(y1), y0.sub(y1), y1] }
}

#[inline(always)]
unsafe fn kernel_2<V: Lanes>([w0, w1, w2]: [V; 3]) -> [V; 4] {
    // SAFETY: the caller's promise: see `Lanes`.
    unsafe {
        let half = V::splat(0.5);
        let even = w0.add(w2).mul(half);
        [w0, even.plus(w1, half), even.minus(w1, half), w2]
    }
}

#[inline(always)]
unsafe fn fold_2<V: Lanes>([p0, p1, p2, p3]: [V; 4]) -> [V; 3] {
    // SAFETY: the caller's promise: see `Lanes`.
    unsafe {
        let half = V::splat(0.5);
        let even = p1.add(p2).mul(half);
        [p0.add(even), p1.sub(p2).mul(half), p3.add(even)]
    }
}

// SAFETY: touches the lines of its tiles and no others.
unsafe impl Tile for By2 {
    const SIDE: usize = 2;
    const POINTS: usize = 4;
    #[inline(always)]
    unsafe fn input<V: Lanes>(
        x: *const Line,
        row: usize,
        there: [usize; 2],
        points: *mut Line,
        apart: usize,
    ) {
        // SAFETY: the caller's promise: see `Tile`.
        unsafe {
            let (x, points) = ((x, [row, 1], there), (points, [4 * apart, apart], [4; 2]));
            both_ways!(input_2, load_4, pick_4, put_4, columns 0 1 2 3, rows 0 1 2 3, x, points, false);
        }
    }
    #[inline(always)]
    unsafe fn output<V: Lanes>(
        points: *const Line,
        apart: usize,
        y: *mut Line,
        row: usize,
        there: [usize; 2],
        add: bool,
    ) {
        // SAFETY: the caller's promise: see `Tile`.
        unsafe {
            let (points, y) = ((points, [4 * apart, apart], [4; 2]), (y, [row, 1], there));
            both_ways!(output_2, load_4, pick_4, put_2, columns 0 1 2 3, rows 0 1, points, y, add);
        }
    }
    #[inline(always)]
    unsafe fn flow<V: Lanes>(
        dy: *const Line,
        row: usize,
        there: [usize; 2],
        points: *mut Line,
        apart: usize,
    ) {
        // SAFETY: the caller's promise: see `Tile`.
        unsafe {
            let (dy, points) = ((dy, [row, 1], there), (points, [4 * apart, apart], [4; 2]));
            both_ways!(flow_2, load_2, pick_2, put_4, columns 0 1, rows 0 1 2 3, dy, points, false);
        }
    }
    #[inline(always)]
    unsafe fn kernel<V: Lanes>(w: &[Line; 9], points: *mut Line, apart: usize) {
        // SAFETY: the caller's promise: see `Tile`.
        unsafe {
            let (w, points) = ((w.as_ptr(), [3, 1], [3, 3]), (points, [4 * apart, apart], [4; 2]));
            both_ways!(kernel_2, load_3, pick_3, put_4, columns 0 1 2, rows 0 1 2 3, w, points, false);
        }
    }
    #[inline(always)]
    unsafe fn fold<V: Lanes>(points: *const Line, apart: usize, w: &mut [Line; 9]) {
        // SAFETY: the caller's promise: see `Tile`.
        unsafe {
            let (points, w) = ((points, [4 * apart, apart], [4; 2]), (w.as_mut_ptr(), [3, 1], [3, 3]));
            both_ways!(fold_2, load_4, pick_4, put_3, columns 0 1 2 3, rows 0 1 2, points, w, false);
        }
    }
}

/// Tiles of 4 × 4 outputs.
pub(crate) struct By4;

/// The points of a tile of 4 × 4 beside 0 and ∞: ±A and ±B.
const A: f32 = 0.625;
const B: f32 = 1.5;
const A2: f32 = A * A;
const B2: f32 = B * B;

/// x along one side. Each point's row is the polynomial that is zero at all the others, with 1 before its highest power.
#[inline(always)]
unsafe fn input_4<V: Lanes>([x0, x1, x2, x3, x4, x5]: [V; 6]) -> [V; 6] {
    // SAFETY: the caller's promise: see `Lanes`.
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
unsafe fn output_4<V: Lanes>([p0, p1, p2, p3, p4, p5]: [V; 6]) -> [V; 4] {
    // SAFETY: the caller's promise: see `Lanes`.
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
unsafe fn flow_4<V: Lanes>([y0, y1, y2, y3]: [V; 4]) -> [V; 6] {
    // SAFETY: the caller's promise: see `Lanes`.
    unsafe {
        let (a, b, a2, b2) = (V::splat(A), V::splat(B), V::splat(A2), V::splat(B2));
        let (even_a, odd_a) = (y0.plus(a2, y2), y1.plus(a2, y3));
        let (even_b, odd_b) = (y0.plus(b2, y2), y1.plus(b2, y3));
        [y0, even_a.plus(a, odd_a), even_a.minus(a, odd_a), even_b.plus(b, odd_b), even_b.minus(b, odd_b), y3]
    }
}

/// What a point's row of the input would have to be divided by stands on the kernel's side.
const AT_0: f32 = 1.0 / (A2 * B2);
const AT_A: f32 = 1.0 / (2.0 * A2 * (A2 - B2));
const AT_B: f32 = 1.0 / (2.0 * B2 * (B2 - A2));

#[inline(always)]
unsafe fn kernel_4<V: Lanes>([w0, w1, w2]: [V; 3]) -> [V; 6] {
    // SAFETY: the caller's promise: see `Lanes`.
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
unsafe fn fold_4<V: Lanes>([p0, p1, p2, p3, p4, p5]: [V; 6]) -> [V; 3] {
    // SAFETY: the caller's promise: see `Lanes`.
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

// SAFETY: touches the lines of its tiles and no others.
unsafe impl Tile for By4 {
    const SIDE: usize = 4;
    const POINTS: usize = 6;
    #[inline(always)]
    unsafe fn input<V: Lanes>(
        x: *const Line,
        row: usize,
        there: [usize; 2],
        points: *mut Line,
        apart: usize,
    ) {
        // SAFETY: the caller's promise: see `Tile`.
        unsafe {
            let (x, points) = ((x, [row, 1], there), (points, [6 * apart, apart], [6; 2]));
            both_ways!(input_4, load_6, pick_6, put_6, columns 0 1 2 3 4 5, rows 0, x, points, false);
            both_ways!(input_4, load_6, pick_6, put_6, columns 0 1 2 3 4 5, rows 1 2, x, points, false);
            both_ways!(input_4, load_6, pick_6, put_6, columns 0 1 2 3 4 5, rows 3 4, x, points, false);
            both_ways!(input_4, load_6, pick_6, put_6, columns 0 1 2 3 4 5, rows 5, x, points, false);
        }
    }
    #[inline(always)]
    unsafe fn output<V: Lanes>(
        points: *const Line,
        apart: usize,
        y: *mut Line,
        row: usize,
        there: [usize; 2],
        add: bool,
    ) {
        // SAFETY: the caller's promise: see `Tile`.
        unsafe {
            let (points, y) = ((points, [6 * apart, apart], [6; 2]), (y, [row, 1], there));
            both_ways!(output_4, load_6, pick_6, put_4, columns 0 1 2 3 4 5, rows 0 2, points, y, add);
            both_ways!(output_4, load_6, pick_6, put_4, columns 0 1 2 3 4 5, rows 1 3, points, y, add);
        }
    }
    #[inline(always)]
    unsafe fn flow<V: Lanes>(
        dy: *const Line,
        row: usize,
        there: [usize; 2],
        points: *mut Line,
        apart: usize,
    ) {
        // SAFETY: the caller's promise: see `Tile`.
        unsafe {
            let (dy, points) = ((dy, [row, 1], there), (points, [6 * apart, apart], [6; 2]));
            both_ways!(flow_4, load_4, pick_4, put_6, columns 0 1 2 3, rows 0, dy, points, false);
            both_ways!(flow_4, load_4, pick_4, put_6, columns 0 1 2 3, rows 1 2, dy, points, false);
            both_ways!(flow_4, load_4, pick_4, put_6, columns 0 1 2 3, rows 3 4, dy, points, false);
            both_ways!(flow_4, load_4, pick_4, put_6, columns 0 1 2 3, rows 5, dy, points, false);
        }
    }
    #[inline(always)]
    unsafe fn kernel<V: Lanes>(w: &[Line; 9], points: *mut Line, apart: usize) {
        // SAFETY: the caller's promise: see `Tile`.
        unsafe {
            let (w, points) = ((w.as_ptr(), [3, 1], [3, 3]), (points, [6 * apart, apart], [6; 2]));
            both_ways!(kernel_4, load_3, pick_3, put_6, columns 0 1 2, rows 0 1 2, w, points, false);
            both_ways!(kernel_4, load_3, pick_3, put_6, columns 0 1 2, rows 3 4 5, w, points, false);
        }
    }
    #[inline(always)]
    unsafe fn fold<V: Lanes>(points: *const Line, apart: usize, w: &mut [Line; 9]) {
        // SAFETY: the caller's promise: see `Tile`.
        unsafe {
            let (points, w) = ((points, [6 * apart, apart], [6; 2]), (w.as_mut_ptr(), [3, 1], [3, 3]));
            both_ways!(fold_4, load_6, pick_6, put_3, columns 0 1 2 3 4 5, rows 0 1 2, points, w, false);
        }
    }
}
