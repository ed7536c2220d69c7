// The weight gradient of a convolution on tensor cores: rows are output channels, columns (tap, input channel), and
// the sum runs over pixels. Each block takes a range of pixels and leaves partial sums, which `collect` adds in order.

#if BF16

template <int BM, int WM>
__device__ __forceinline__ void wgrad(const ConvGeometry& geometry, const u16* __restrict__ x, const u16* __restrict__ dy,
                                      float* partial, int stretch) {
    constexpr int BN = 144, BK = 64, WK = 4 / WM, THREADS = 128, STAGES = 3, APITCH = BM + 8, BPITCH = BN + 8;
    constexpr int NT = BN / 8;
    extern __shared__ __align__(16) u16 memory[];
    u16* as = memory;
    u16* bs = memory + STAGES * BK * APITCH;
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, wm = warp % WM, wk = warp / WM;
    const int pixels = geometry.n * geometry.oh * geometry.ow;
    const int groups = geometry.cp / 8, columns = geometry.kh * geometry.kw * geometry.cp;
    const int rows = (geometry.o + BM - 1) / BM;
    const int row0 = blockIdx.y % rows * BM, column0 = blockIdx.y / rows * BN;
    const int begin = blockIdx.x * stretch, end = min(begin + stretch, pixels);

    // Two threads load a pixel: one the even pieces, one the odd.
    const int in_tile = thread >> 1, half = thread & 1;
    auto load = [&](int stage, int at) {
        at += in_tile;
        bool there = at < end;
        int n = there ? at / (geometry.oh * geometry.ow) : 0, rest = there ? at - n * geometry.oh * geometry.ow : 0;
        int oy = rest / geometry.ow, ox = rest - oy * geometry.ow;
        u32 a_to = shared_address(as + (stage * BK + in_tile) * APITCH);
        const u16* from = dy + (u64)(there ? at : 0) * geometry.op + row0;
#pragma unroll
        for (int i = half; i < BM / 8; i += 2)
            fetch(a_to + i * 16, from + (row0 + i * 8 < geometry.op ? i * 8 : 0), there && row0 + i * 8 < geometry.op);
        const u16* image = x + (u64)n * geometry.h * geometry.w * geometry.cp;
        int top = oy * geometry.mul - geometry.off_y, left = ox * geometry.mul - geometry.off_x;
        u32 b_to = shared_address(bs + (stage * BK + in_tile) * BPITCH);
        int q = column0 / 8 + half, tap = q / groups, group = q - tap * groups;
        int r = tap / geometry.kw, s = tap - r * geometry.kw;
#pragma unroll
        for (int i = half; i < BN / 8; i += 2) {
            int iy = top + r, ix = left + s;
            bool inside = there && q * 8 < columns && iy >= 0 && ix >= 0 && iy < geometry.h && ix < geometry.w;
            fetch(b_to + i * 16, inside ? image + ((iy * geometry.w + ix) * geometry.cp + group * 8) : x, inside);
            q += 2;
            group += 2;
            while (group >= groups) {
                group -= groups;
                if (++s == geometry.kw) { s = 0; r++; }
            }
        }
    };

    float sums[NT][4];
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int k = 0; k < 4; k++) sums[j][k] = 0.0f;
    const int chunks = end > begin ? (end - begin + BK - 1) / BK : 0;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < chunks) load(stage, begin + stage * BK);
        commit();
    }
    for (int chunk = 0; chunk < chunks; chunk++) {
        wait<STAGES - 2>();
        __syncthreads();
        if (chunk + STAGES - 1 < chunks) load((chunk + STAGES - 1) % STAGES, begin + (chunk + STAGES - 1) * BK);
        commit();
        const u16* a_tile = as + (chunk % STAGES) * BK * APITCH;
        const u16* b_tile = bs + (chunk % STAGES) * BK * BPITCH;
#pragma unroll
        for (int k = wk * 16; k < BK; k += WK * 16) {
            u32 a[4];
            transposed_matrices(a, shared_address(a_tile + (k + (lane & 7) + (lane >> 4) * 8) * APITCH + wm * 16 +
                                              ((lane >> 3) & 1) * 8));
#pragma unroll
            for (int j = 0; j < NT / 2; j++) {
                u32 b[4];
                transposed_matrices(b, shared_address(b_tile + (k + (lane & 7) + ((lane >> 3) & 1) * 8) * BPITCH + j * 16 +
                                                  (lane >> 4) * 8));
                multiply(sums[2 * j], a, b[0], b[1]);
                multiply(sums[2 * j + 1], a, b[2], b[3]);
            }
        }
    }
    wait<0>();
    __syncthreads();
    constexpr int OUT = BN + 4;
    float* out = (float*)memory;
    for (int turn = 0; turn < WK; turn++) {
        if (wk == turn) {
#pragma unroll
            for (int j = 0; j < NT; j++) {
                float* low = out + (wm * 16 + lane / 4) * OUT + j * 8 + lane % 4 * 2;
                float* high = low + 8 * OUT;
                if (turn == 0) {
                    low[0] = sums[j][0]; low[1] = sums[j][1]; high[0] = sums[j][2]; high[1] = sums[j][3];
                } else {
                    low[0] += sums[j][0]; low[1] += sums[j][1]; high[0] += sums[j][2]; high[1] += sums[j][3];
                }
            }
        }
        __syncthreads();
    }
    partial += (u64)blockIdx.x * geometry.o * columns;
    for (int at = thread; at < BM * BN; at += THREADS) {
        int m = at / BN, c = at % BN;
        if (row0 + m < geometry.o && column0 + c < columns)
            partial[(u64)(row0 + m) * columns + column0 + c] = out[m * OUT + c];
    }
}

#define WGRAD(NAME, BM, WM)                                                                                            \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        NAME(ConvGeometry geometry, const u16* x, const u16* dy, float* partial, int stretch, u64 slab) {              \
        await_previous();                                                                                              \
        wgrad<BM, WM>(geometry, mine(x, slab), mine(dy, slab), mine(partial, slab), stretch);                          \
    }

WGRAD(wgrad_16, 16, 1)
WGRAD(wgrad_32, 32, 2)
WGRAD(wgrad_64, 64, 4)

#endif
