// Convolutions in f32. A kernel adds two products: the tangent of a layer has two, the layer itself has one.

#if !BF16

// Products in f32 on tensor cores, which multiply numbers of 11 bits (TF32): every factor is split into a high part, rounded
// to 11 bits, and a low part, of which the tensor cores read 11 bits. The product of two low parts is left out: it is
// below one part in 2²².
struct SplitNumber { u32 high, low; };
__device__ __forceinline__ SplitNumber split(float x) {
    const u32 high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    return {high, __float_as_uint(x - __uint_as_float(high))};
}

__device__ __forceinline__ void mma_tf32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Numbers that a block multiplies before it waits for the next ones.
enum { STAGE = 16 };

// Adds the products of a stage to the TM × TN sums of a warp. Row `m` and number `k` of the stage are `A_ROW` and `A_K`
// numbers apart, and so on. A thread has rows lane/4 and lane/4 + 8 of each 16, and columns 2·(lane%4) and the next of
// each 8. Tensor cores cut off what does not fit into their sums: a stage is summed there, the stages are added here.
template <int TM, int TN, int A_ROW, int A_K, int B_ROW, int B_K>
__device__ __forceinline__ void multiply(const float* as, const float* bs, float (&sums)[TM / 16][TN / 8][4]) {
    const int row = threadIdx.x % 32 / 4, k0 = threadIdx.x % 4;
    u32 a_high[TM / 16][STAGE / 8][4], a_low[TM / 16][STAGE / 8][4];
#pragma unroll
    for (int i = 0; i < TM / 16; i++)
#pragma unroll
        for (int s = 0; s < STAGE / 8; s++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const SplitNumber parts = split(as[(16 * i + row + 8 * (e % 2)) * A_ROW + (8 * s + k0 + 4 * (e / 2)) * A_K]);
                a_high[i][s][e] = parts.high;
                a_low[i][s][e] = parts.low;
            }
#pragma unroll
    for (int j = 0; j < TN / 8; j++) {
        float stage[TM / 16][4] = {};
#pragma unroll
        for (int s = 0; s < STAGE / 8; s++) {
            u32 high[2], low[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const SplitNumber parts = split(bs[(8 * j + row) * B_ROW + (8 * s + k0 + 4 * e) * B_K]);
                high[e] = parts.high;
                low[e] = parts.low;
            }
#pragma unroll
            for (int i = 0; i < TM / 16; i++) mma_tf32(stage[i], a_low[i][s], high);
#pragma unroll
            for (int i = 0; i < TM / 16; i++) mma_tf32(stage[i], a_high[i][s], low);
#pragma unroll
            for (int i = 0; i < TM / 16; i++) mma_tf32(stage[i], a_high[i][s], high);
        }
#pragma unroll
        for (int i = 0; i < TM / 16; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[i][j][e] += stage[i][e];
    }
}

// The sum of two convolutions of one geometry, or only the first if `x1` is null: M pixels and N channels for a block of
// 256 threads, TM × TN of them for a warp. A slice of eight channels is in one tap, because pitches are multiples of
// eight.
template <int M, int N, int TM, int TN>
__device__ __forceinline__ void conv_of_two(const ConvGeometry& geometry, const float* x0, const float* weight0, const float* x1,
                                            const float* weight1, const float* bias, float* y, int add) {
    static_assert(M / TM * (N / TN) == 8, "eight warps");
    // Rows are so far apart that the threads of a warp read different banks.
    constexpr int LOADS = (2 * M + 255) / 256, SLICES = STAGE / 8, APART = STAGE + 4;
    __shared__ __align__(16) float as[2][M * APART], bs[2][N * APART];
    const int pixels = geometry.n * geometry.oh * geometry.ow, depth = geometry.kh * geometry.kw * geometry.cp;
    const int first = blockIdx.x * M, column = blockIdx.y * N;
    // Two neighbouring threads load the eight channels of a pixel.
    int image[LOADS], top[LOADS], left[LOADS];
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        const int slot = threadIdx.x + 256 * j, at = first + slot / 2;
        const bool real = slot < 2 * M && at < pixels;
        const int rest = real ? at % (geometry.oh * geometry.ow) : 0;
        image[j] = real ? at / (geometry.oh * geometry.ow) : -1;
        top[j] = rest / geometry.ow * geometry.mul - geometry.off_y;
        left[j] = rest % geometry.ow * geometry.mul - geometry.off_x;
    }
    const int half = threadIdx.x % 2, row = (int)(threadIdx.x - (256 - 2 * N)) / 2;
    const bool has_row = (int)threadIdx.x >= 256 - 2 * N;
    int which = 0, r = 0, s = 0, c = 0, k = 0, left_over = depth / 8 * (x1 ? 2 : 1);
    const int stages = (left_over + SLICES - 1) / SLICES;
    float4 a[SLICES][LOADS], b[SLICES];
    auto fetch = [&](int slice) {
        const float* x = which ? x1 : x0;
        const float* weight = which ? weight1 : weight0;
        // The last stage may have one slice only.
        const bool real = left_over-- > 0;
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            int iy = top[j] + r, ix = left[j] + s;
            bool inside = real && image[j] >= 0 && iy >= 0 && ix >= 0;
            if (geometry.div > 1) {
                inside = inside && iy % geometry.div == 0 && ix % geometry.div == 0;
                iy /= geometry.div;
                ix /= geometry.div;
            }
            inside = inside && iy < geometry.h && ix < geometry.w;
            a[slice][j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (inside)
                a[slice][j] = *(const float4*)(x + (((u64)image[j] * geometry.h + iy) * geometry.w + ix) * geometry.cp + c + 4 * half);
        }
        b[slice] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (real && has_row && column + row < geometry.o) b[slice] = *(const float4*)(weight + (u64)(column + row) * depth + k + 4 * half);
        k += 8;
        c += 8;
        if (c == geometry.cp) {
            c = 0;
            if (++s == geometry.kw) { s = 0; r++; }
        }
        if (k == depth) which = 1, r = s = c = k = 0;
    };
    auto keep = [&](int to) {
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
#pragma unroll
            for (int j = 0; j < LOADS; j++) {
                const int slot = threadIdx.x + 256 * j;
                if (slot < 2 * M) *(float4*)&as[to][slot / 2 * APART + 8 * slice + 4 * half] = a[slice][j];
            }
            if (has_row) *(float4*)&bs[to][row * APART + 8 * slice + 4 * half] = b[slice];
        }
    };
    const int warp = threadIdx.x / 32, m0 = warp / (N / TN) * TM, n0 = warp % (N / TN) * TN;
    float sums[TM / 16][TN / 8][4] = {};
    auto fetch_stage = [&]() {
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) fetch(slice);
    };
    fetch_stage();
    keep(0);
    __syncthreads();
    for (int stage = 0; stage < stages; stage++) {
        const bool more = stage + 1 < stages;
        if (more) fetch_stage();
        multiply<TM, TN, APART, 1, APART, 1>(&as[stage % 2][m0 * APART], &bs[stage % 2][n0 * APART], sums);
        if (more) keep((stage + 1) % 2);
        __syncthreads();
    }
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TM / 8; i++) {
        const int at = first + m0 + 8 * i + lane / 4;
        if (at >= pixels) continue;
#pragma unroll
        for (int j = 0; j < TN / 8; j++) {
            const int channel = column + n0 + 8 * j + 2 * (lane % 4);
            if (channel >= geometry.op) continue;
            float v[2];
#pragma unroll
            for (int e = 0; e < 2; e++) v[e] = sums[i / 2][j][i % 2 * 2 + e] + (bias && channel + e < geometry.o ? bias[channel + e] : 0.0f);
            float2* to = (float2*)(y + (u64)at * geometry.op + channel);
            const float2 old = add ? *to : make_float2(0.0f, 0.0f);
            *to = make_float2(old.x + v[0], old.y + v[1]);
        }
    }
}

// The sum of the weight gradients of two pairs of values and gradients, or only the first if `x1` is null: M columns of a
// patch and N channels for a block, TM × TN of them for a warp, over `stretch` pixels.
template <int M, int N, int TM, int TN>
__device__ __forceinline__ void wgrad_of_two(const ConvGeometry& geometry, const float* x0, const float* dy0, const float* x1,
                                             const float* dy1, float* partial, int stretch) {
    constexpr int THREADS = M / TM * (N / TN) * 32, SLICES = STAGE / 8;
    static_assert(THREADS == 2 * M && 2 * N <= THREADS, "a thread loads four columns of one pixel");
    __shared__ __align__(16) float as[2][STAGE][M + 8], bs[2][STAGE][N + 8];
    const int pixels = geometry.n * geometry.oh * geometry.ow, columns = geometry.kh * geometry.kw * geometry.cp;
    const int rows = (geometry.o + N - 1) / N, row0 = blockIdx.y % rows * N, column0 = blockIdx.y / rows * M;
    const int begin = blockIdx.x * stretch, end = min(begin + stretch, pixels);
    const int quad = threadIdx.x % (M / 4), pixel = threadIdx.x / (M / 4), column = column0 + 4 * quad, tap = column / geometry.cp;
    const int c = column - tap * geometry.cp, r = tap / geometry.kw, s = tap - r * geometry.kw;
    const int row_quad = threadIdx.x % (N / 4), row_pixel = threadIdx.x / (N / 4);
    const bool has_row = threadIdx.x < 2 * N && row0 + 4 * row_quad < geometry.op;
    int which, start, at, image, oy, ox, left_over = (end - begin + 7) / 8 * (x1 ? 2 : 1);
    const int stages = (left_over + SLICES - 1) / SLICES;
    auto restart = [&](int operand) {
        which = operand;
        start = begin;
        at = begin + pixel;
        image = at / (geometry.oh * geometry.ow);
        const int rest = at % (geometry.oh * geometry.ow);
        oy = rest / geometry.ow;
        ox = rest % geometry.ow;
    };
    float4 a[SLICES], b[SLICES];
    auto fetch = [&](int slice) {
        const float* x = which ? x1 : x0;
        const float* dy = which ? dy1 : dy0;
        // The last stage may have one slice only.
        const bool real = left_over-- > 0;
        const int iy = oy * geometry.mul - geometry.off_y + r, ix = ox * geometry.mul - geometry.off_x + s;
        a[slice] = b[slice] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (real && at < end && column < columns && iy >= 0 && ix >= 0 && iy < geometry.h && ix < geometry.w)
            a[slice] = *(const float4*)(x + (((u64)image * geometry.h + iy) * geometry.w + ix) * geometry.cp + c);
        if (real && has_row && start + row_pixel < end)
            b[slice] = *(const float4*)(dy + (u64)(start + row_pixel) * geometry.op + row0 + 4 * row_quad);
        at += 8;
        ox += 8;
        while (ox >= geometry.ow) {
            ox -= geometry.ow;
            if (++oy == geometry.oh) { oy = 0; image++; }
        }
        start += 8;
        if (start >= end) restart(1);
    };
    auto keep = [&](int to) {
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            *(float4*)&as[to][8 * slice + pixel][4 * quad] = a[slice];
            if (threadIdx.x < 2 * N) *(float4*)&bs[to][8 * slice + row_pixel][4 * row_quad] = b[slice];
        }
    };
    const int warp = threadIdx.x / 32, m0 = warp / (N / TN) * TM, n0 = warp % (N / TN) * TN;
    float sums[TM / 16][TN / 8][4] = {};
    auto fetch_stage = [&]() {
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) fetch(slice);
    };
    restart(0);
    fetch_stage();
    keep(0);
    __syncthreads();
    for (int stage = 0; stage < stages; stage++) {
        const bool more = stage + 1 < stages;
        if (more) fetch_stage();
        multiply<TM, TN, 1, M + 8, 1, N + 8>(&as[stage % 2][0][m0], &bs[stage % 2][0][n0], sums);
        if (more) keep((stage + 1) % 2);
        __syncthreads();
    }
    partial += (u64)blockIdx.x * geometry.o * columns;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TM / 8; i++) {
        const int place = column0 + m0 + 8 * i + lane / 4;
        if (place >= columns) continue;
#pragma unroll
        for (int j = 0; j < TN / 4; j++) {
            const int row = row0 + n0 + j / 2 * 8 + 2 * (lane % 4) + j % 2;
            if (row < geometry.o) partial[(u64)row * columns + place] = sums[i / 2][j / 2][i % 2 * 2 + j % 2];
        }
    }
}

#define CONV_F32(name, M, N, TM, TN)                                                                                           \
    extern "C" __global__ void __launch_bounds__(256)                                                                          \
        name(ConvGeometry geometry, const float* x, const float* weight, const float* bias, float* y, int add, int kind, Norm norm, \
             Sums of, int rows, u64 slab) {                                                                                    \
        await_previous();                                                                                                      \
        conv_of_two<M, N, TM, TN>(geometry, mine(x, slab), mine(weight, slab), nullptr, nullptr, mine(bias, slab),             \
                                  mine(y, slab), add);                                                                         \
    }
CONV_F32(conv_f32_16, 256, 16, 32, 16)
CONV_F32(conv_f32_32, 128, 32, 32, 16)
CONV_F32(conv_f32_64, 64, 64, 32, 16)
CONV_F32(conv_f32_64_tall, 128, 64, 32, 32)

#define WGRAD_F32(name, THREADS, M, N, TM, TN)                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                      \
        name(ConvGeometry geometry, const float* x, const float* dy, float* partial, int stretch, u64 slab) {                  \
        await_previous();                                                                                                      \
        wgrad_of_two<M, N, TM, TN>(geometry, mine(x, slab), mine(dy, slab), nullptr, nullptr, mine(partial, slab), stretch);   \
    }
WGRAD_F32(wgrad_f32_16, 288, 144, 16, 16, 16)
WGRAD_F32(wgrad_f32_32, 288, 144, 32, 16, 32)
WGRAD_F32(wgrad_f32_64, 256, 128, 64, 32, 32)

#endif
