//! The transforms of Winograd's 3 × 3 convolutions. They evaluate tiles of pixels, and kernels, at a few points of a
//! polynomial; at these points a convolution is a product.
//!
//! m outputs in a row need m + 2 products: y = Aᵀ[(G·w) ∘ (Bᵀ·x)]. A tile applies this along its rows and then along its
//! columns. The gradient of the input is again a convolution. The gradient of the kernel is the adjoint in w,
//! Gᵀ[(Bᵀ·x) ∘ (A·dy)]. F(2 × 2, 3 × 3) uses the points 0, ±1, ∞. F(4 × 4, 3 × 3) uses 0, ±5/8, ±3/2, ∞: they are exact in
//! binary and lose half as many digits as the usual 0, ±1, ±2, ∞. The error of a convolution is about five times that of a
//! direct one, and less than a tenth of what an f32 network accumulates anyway.

use super::simd::{F32x16, Simd, Vector, Vectors};

/// A matrix of vectors in a slice: distances between rows and between columns, and how many of each exist. Elements beyond that
/// read as zero and are not written.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<L> {
    lines: L,
    apart: [usize; 2],
    there: [usize; 2],
}

pub(crate) type Read<'a> = Matrix<&'a [F32x16]>;
pub(crate) type Write<'a> = Matrix<&'a mut [F32x16]>;

impl<L: AsRef<[F32x16]>> Matrix<L> {
    /// # Panics
    /// If an element that exists is outside the slice: an error of the caller.
    #[inline(always)]
    pub(crate) fn new(lines: L, apart: [usize; 2], there: [usize; 2]) -> Self {
        let last = (there[0] - 1) * apart[0] + (there[1] - 1) * apart[1];
        assert!(last < lines.as_ref().len(), "the matrix is inside its slice");
        Matrix { lines, apart, there }
    }

    /// A 3 × 3 kernel.
    #[inline(always)]
    pub(crate) fn kernel(lines: L) -> Self {
        Self::new(lines, [3, 1], [3, 3])
    }
}

impl Read<'_> {
    /// An element of a column that exists.
    #[inline(always)]
    fn load<S: Simd, const N: usize>(&self, simd: Vectors<S, N>, row: usize, column: usize) -> Vector<S, N> {
        if row < self.there[0] {
            simd.load(&self.lines[row * self.apart[0] + column * self.apart[1]])
        } else {
            simd.zero()
        }
    }
}

impl Write<'_> {
    /// Stores or adds an element of a row that exists.
    #[inline(always)]
    fn put<S: Simd, const N: usize>(
        &mut self,
        simd: Vectors<S, N>,
        row: usize,
        column: usize,
        value: Vector<S, N>,
        add: bool,
    ) {
        if column < self.there[1] {
            let to = &mut self.lines[row * self.apart[0] + column * self.apart[1]];
            let value = if add { value + simd.load(to) } else { value };
            value.store(to);
        }
    }
}

/// The transforms for one tile size. Each applies a transform along one side to all columns and then to all
/// rows, and adds the result to what is there if `add`.
pub(crate) trait Transform {
    /// Outputs along a side.
    const SIDE: usize;
    /// Points along a side.
    const POINTS: usize;

    /// The points of a tile in a slice, row by row, `apart` vectors from each other.
    #[inline(always)]
    fn points<L: AsRef<[F32x16]>>(lines: L, apart: usize) -> Matrix<L> {
        Matrix::new(lines, [Self::POINTS * apart, apart], [Self::POINTS; 2])
    }
    /// Bᵀ·x·B.
    fn input<S: Simd, const N: usize>(simd: Vectors<S, N>, x: Read<'_>, points: Write<'_>, add: bool);
    /// Aᵀ·p·A.
    fn output<S: Simd, const N: usize>(simd: Vectors<S, N>, points: Read<'_>, y: Write<'_>, add: bool);
    /// A·dy·Aᵀ.
    fn gradient<S: Simd, const N: usize>(simd: Vectors<S, N>, dy: Read<'_>, points: Write<'_>, add: bool);
    /// G·w·Gᵀ.
    fn kernel<S: Simd, const N: usize>(simd: Vectors<S, N>, w: Read<'_>, points: Write<'_>, add: bool);
    /// Gᵀ·p·G.
    fn fold<S: Simd, const N: usize>(simd: Vectors<S, N>, points: Read<'_>, w: Write<'_>, add: bool);
}

/// Some rows of a transform along both sides, from so many vectors along a side to so many; `$of` transforms a column or a row.
/// Written out element by element: with loops or closures the compiler does not keep everything in registers.
macro_rules! both_sides {
    ($simd:ident, $of:ident, $from:ident, $to:ident, $add:ident, [$($r:literal)+], $in:tt, $out:tt) => {
        let columns = both_sides!(columns $simd, $of, $from, $in, $in);
        $(if $r < $to.there[0] {
            both_sides!(row $simd, $of, columns, $to, $add, $r, $in, $out);
        })+
    };
    (columns $simd:ident, $of:ident, $from:ident, [$($c:literal)+], $in:tt) => {
        [$(if $c < $from.there[1] { both_sides!(column $simd, $of, $from, $c, $in) } else { [$simd.zero(); _] }),+]
    };
    (column $simd:ident, $of:ident, $from:ident, $c:literal, [$($r:literal)+]) => {
        $of([$($from.load($simd, $r, $c)),+])
    };
    (row $simd:ident, $of:ident, $columns:ident, $to:ident, $add:ident, $r:literal, [$($in:literal)+], [$($out:literal)+]) => {
        let row = $of([$($columns[$in][$r]),+]);
        $($to.put($simd, $r, $out, row[$out], $add);)+
    };
}

/// Implements [`Transform`] from transforms along one side. Each direction lists the rows to compute at a time: as many as fit
/// in registers.
macro_rules! transform {
    ($name:ident, $side:literal, $points:literal, $($direction:ident: $of:ident, $in:tt to $out:tt, rows [$($rows:tt)+]);+) => {
        impl Transform for $name {
            const SIDE: usize = $side;
            const POINTS: usize = $points;
            $(
                #[inline(always)]
                fn $direction<S: Simd, const N: usize>(simd: Vectors<S, N>, from: Read<'_>, mut to: Write<'_>, add: bool) {
                    $(both_sides!(simd, $of, from, to, add, $rows, $in, $out);)+
                }
            )+
        }
    };
}

/// F(2 × 2, 3 × 3): tiles of 2 × 2 outputs.
pub(crate) struct F2x2;

transform! {
    F2x2, 2, 4,
    input: input_2, [0 1 2 3] to [0 1 2 3], rows [[0 1 2 3]];
    output: output_2, [0 1 2 3] to [0 1], rows [[0 1]];
    gradient: gradient_2, [0 1] to [0 1 2 3], rows [[0 1 2 3]];
    kernel: kernel_2, [0 1 2] to [0 1 2 3], rows [[0 1 2 3]];
    fold: fold_2, [0 1 2 3] to [0 1 2], rows [[0 1 2]]
}

/// x along one side, at the points 0, 1, −1, ∞.
#[inline(always)]
fn input_2<S: Simd, const N: usize>([x0, x1, x2, x3]: [Vector<S, N>; 4]) -> [Vector<S, N>; 4] {
    [x0 - x2, x1 + x2, x2 - x1, x3 - x1]
}

#[inline(always)]
fn output_2<S: Simd, const N: usize>([p0, p1, p2, p3]: [Vector<S, N>; 4]) -> [Vector<S, N>; 2] {
    [p0 + p1 + p2, p1 - p2 + p3]
}

#[inline(always)]
fn gradient_2<S: Simd, const N: usize>([y0, y1]: [Vector<S, N>; 2]) -> [Vector<S, N>; 4] {
    [y0, y0 + y1, y0 - y1, y1]
}

#[inline(always)]
fn kernel_2<S: Simd, const N: usize>([w0, w1, w2]: [Vector<S, N>; 3]) -> [Vector<S, N>; 4] {
    let even = (w0 + w2) * 0.5;
    [w0, even.plus(0.5, w1), even.minus(0.5, w1), w2]
}

#[inline(always)]
fn fold_2<S: Simd, const N: usize>([p0, p1, p2, p3]: [Vector<S, N>; 4]) -> [Vector<S, N>; 3] {
    let even = (p1 + p2) * 0.5;
    [p0 + even, (p1 - p2) * 0.5, p3 + even]
}

/// F(4 × 4, 3 × 3): tiles of 4 × 4 outputs.
pub(crate) struct F4x4;

transform! {
    F4x4, 4, 6,
    input: input_4, [0 1 2 3 4 5] to [0 1 2 3 4 5], rows [[0] [1 2] [3 4] [5]];
    output: output_4, [0 1 2 3 4 5] to [0 1 2 3], rows [[0 2] [1 3]];
    gradient: gradient_4, [0 1 2 3] to [0 1 2 3 4 5], rows [[0] [1 2] [3 4] [5]];
    kernel: kernel_4, [0 1 2] to [0 1 2 3 4 5], rows [[0 1 2] [3 4 5]];
    fold: fold_4, [0 1 2 3 4 5] to [0 1 2], rows [[0 1 2]]
}

/// The points of F(4 × 4, 3 × 3) besides 0 and ∞: ±A and ±B.
const A: f32 = 0.625;
const B: f32 = 1.5;
const A2: f32 = A * A;
const B2: f32 = B * B;

/// x along one side. The row of a point is the polynomial with leading coefficient 1 that is zero at all other points.
#[inline(always)]
fn input_4<S: Simd, const N: usize>([x0, x1, x2, x3, x4, x5]: [Vector<S, N>; 6]) -> [Vector<S, N>; 6] {
    let (even_a, odd_a) = (x4.minus(B2, x2), x3.minus(B2, x1));
    let (even_b, odd_b) = (x4.minus(A2, x2), x3.minus(A2, x1));
    [
        x4.minus(A2 + B2, x2).plus(A2 * B2, x0),
        even_a.plus(A, odd_a),
        even_a.minus(A, odd_a),
        even_b.plus(B, odd_b),
        even_b.minus(B, odd_b),
        x5.minus(A2 + B2, x3).plus(A2 * B2, x1),
    ]
}

#[inline(always)]
fn output_4<S: Simd, const N: usize>([p0, p1, p2, p3, p4, p5]: [Vector<S, N>; 6]) -> [Vector<S, N>; 4] {
    let (sum_a, sum_b) = (p1 + p2, p3 + p4);
    let (gap_a, gap_b) = ((p1 - p2) * A, (p3 - p4) * B);
    [p0 + sum_a + sum_b, gap_a + gap_b, (sum_a * A2).plus(B2, sum_b), p5.plus(A2, gap_a).plus(B2, gap_b)]
}

#[inline(always)]
fn gradient_4<S: Simd, const N: usize>([y0, y1, y2, y3]: [Vector<S, N>; 4]) -> [Vector<S, N>; 6] {
    let (even_a, odd_a) = (y0.plus(A2, y2), y1.plus(A2, y3));
    let (even_b, odd_b) = (y0.plus(B2, y2), y1.plus(B2, y3));
    [y0, even_a.plus(A, odd_a), even_a.minus(A, odd_a), even_b.plus(B, odd_b), even_b.minus(B, odd_b), y3]
}

/// Each point's normalisation is applied to the kernel instead of to the input.
const AT_0: f32 = 1.0 / (A2 * B2);
const AT_A: f32 = 1.0 / (2.0 * A2 * (A2 - B2));
const AT_B: f32 = 1.0 / (2.0 * B2 * (B2 - A2));

#[inline(always)]
fn kernel_4<S: Simd, const N: usize>([w0, w1, w2]: [Vector<S, N>; 3]) -> [Vector<S, N>; 6] {
    let (even_a, even_b) = (w0.plus(A2, w2) * AT_A, w0.plus(B2, w2) * AT_B);
    [
        w0 * AT_0,
        even_a.plus(A * AT_A, w1),
        even_a.minus(A * AT_A, w1),
        even_b.plus(B * AT_B, w1),
        even_b.minus(B * AT_B, w1),
        w2,
    ]
}

#[inline(always)]
fn fold_4<S: Simd, const N: usize>([p0, p1, p2, p3, p4, p5]: [Vector<S, N>; 6]) -> [Vector<S, N>; 3] {
    let (sum_a, sum_b) = ((p1 + p2) * AT_A, (p3 + p4) * AT_B);
    let (gap_a, gap_b) = (p1 - p2, p3 - p4);
    [
        (sum_a + sum_b).plus(AT_0, p0),
        (gap_a * (A * AT_A)).plus(B * AT_B, gap_b),
        p5.plus(A2, sum_a).plus(B2, sum_b),
    ]
}
