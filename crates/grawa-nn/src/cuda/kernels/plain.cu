// Convolutions in full f32 without tensor cores: exact and deterministic, not fast.

#if !BF16

extern "C" __global__ void __launch_bounds__(256)
    conv_plain(ConvGeometry geometry, const float* x, const float* weight, const float* bias, float* y, int add, int kind, Norm norm,
               Sums of, int rows, u64 slab) {
    await_previous();
    x = mine(x, slab); weight = mine(weight, slab); bias = mine(bias, slab); y = mine(y, slab);
    constexpr int SIDE = 64, DEPTH = 16;
    __shared__ float as[DEPTH][SIDE + 1], bs[DEPTH][SIDE + 1];
    const int pixels = geometry.n * geometry.oh * geometry.ow, depth = geometry.kh * geometry.kw * geometry.cp;
    const int first = blockIdx.x * SIDE, column = blockIdx.y * SIDE, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const int k_of = threadIdx.x % DEPTH, row_of = threadIdx.x / DEPTH;
    float sums[4][4] = {};
    for (int k0 = 0; k0 < depth; k0 += DEPTH) {
        const int k = k0 + k_of, tap = k / geometry.cp, c = k - tap * geometry.cp, r = tap / geometry.kw, s = tap - r * geometry.kw;
        for (int i = row_of; i < SIDE; i += 16) {
            const int at = first + i;
            float v = 0.0f;
            if (at < pixels && k < depth) {
                int n = at / (geometry.oh * geometry.ow), rest = at % (geometry.oh * geometry.ow);
                int iy = rest / geometry.ow * geometry.mul - geometry.off_y + r, ix = rest % geometry.ow * geometry.mul - geometry.off_x + s;
                if (iy >= 0 && ix >= 0 && iy % geometry.div == 0 && ix % geometry.div == 0 && iy / geometry.div < geometry.h &&
                    ix / geometry.div < geometry.w)
                    v = x[(((u64)n * geometry.h + iy / geometry.div) * geometry.w + ix / geometry.div) * geometry.cp + c];
            }
            as[k_of][i] = v;
            bs[k_of][i] = column + i < geometry.o && k < depth ? weight[(u64)(column + i) * depth + k] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] = fmaf(as[k][ty + 16 * i], bs[k][tx + 16 * j], sums[i][j]);
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int at = first + ty + 16 * i, c = column + tx + 16 * j;
            if (at >= pixels || c >= geometry.op) continue;
            float v = sums[i][j] + (bias && c < geometry.o ? bias[c] : 0.0f);
            float* to = y + (u64)at * geometry.op + c;
            *to = add ? *to + v : v;
        }
}

extern "C" __global__ void __launch_bounds__(256)
    wgrad_plain(ConvGeometry geometry, const float* x, const float* dy, float* partial, int stretch, u64 slab) {
    await_previous();
    x = mine(x, slab); dy = mine(dy, slab); partial = mine(partial, slab);
    constexpr int SIDE = 64, DEPTH = 16;
    __shared__ float as[DEPTH][SIDE + 1], bs[DEPTH][SIDE + 1];
    const int pixels = geometry.n * geometry.oh * geometry.ow, columns = geometry.kh * geometry.kw * geometry.cp;
    const int rows = (geometry.o + SIDE - 1) / SIDE, row0 = blockIdx.y % rows * SIDE, column0 = blockIdx.y / rows * SIDE;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, begin = blockIdx.x * stretch;
    const int end = min(begin + stretch, pixels), of = threadIdx.x % SIDE;
    const int column = column0 + of, tap = column / geometry.cp, c = column - tap * geometry.cp;
    const int r = tap / geometry.kw, s = tap - r * geometry.kw;
    float sums[4][4] = {};
    for (int k0 = begin; k0 < end; k0 += DEPTH) {
        for (int k = threadIdx.x / SIDE; k < DEPTH; k += 4) {
            const int at = k0 + k;
            float a = 0.0f, b = 0.0f;
            if (at < end) {
                if (row0 + of < geometry.o) a = dy[(u64)at * geometry.op + row0 + of];
                int n = at / (geometry.oh * geometry.ow), rest = at % (geometry.oh * geometry.ow);
                int iy = rest / geometry.ow * geometry.mul - geometry.off_y + r, ix = rest % geometry.ow * geometry.mul - geometry.off_x + s;
                if (column < columns && iy >= 0 && ix >= 0 && iy < geometry.h && ix < geometry.w)
                    b = x[(((u64)n * geometry.h + iy) * geometry.w + ix) * geometry.cp + c];
            }
            as[k][of] = a;
            bs[k][of] = b;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] = fmaf(as[k][ty + 16 * i], bs[k][tx + 16 * j], sums[i][j]);
        __syncthreads();
    }
    partial += (u64)blockIdx.x * geometry.o * columns;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int m = row0 + ty + 16 * i, at = column0 + tx + 16 * j;
            if (m < geometry.o && at < columns) partial[(u64)m * columns + at] = sums[i][j];
        }
}

#endif
