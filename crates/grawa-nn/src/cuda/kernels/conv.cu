// Convolutions on tensor cores, forward and backward (data), as one matrix product: rows are pixels of the target,
// columns its channels, and the sum runs over (tap, channel of the source). Patches are gathered directly into shared
// memory.

#if BF16

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Copies sixteen bytes to shared memory, bypassing registers; zeros where `there` is false.
__device__ __forceinline__ void fetch(u32 to, const void* from, bool there) {
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }

__device__ __forceinline__ void matrices(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from));
}
__device__ __forceinline__ void transposed_matrices(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from));
}
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// What a convolution sums up for a batch norm besides its result.
enum { NO_SUMS, MOMENTS /* of the result, which the batch norm reads */, FLOW /* the result is the gradient of the batch norm */ };

// The sums of eight channels in one thread.
struct Eight {
    float first[8] = {}, second[8] = {};

    // What a gradient is multiplied and masked by: fetched early, because memory is slow. `at` is the place in the tensor.
    struct Values { uint4 y; u32 positive; };
    __device__ static __forceinline__ Values values(int kind, const Sums& sums, u64 at) {
        Values values;
        if (kind == FLOW) {
            values.y = *(const uint4*)(sums.y + at);
            if (sums.mask == MASK_BY_BITS) values.positive = sums.positive[at / 8];
        }
        return values;
    }

    // Masks a gradient by bits before it is stored. (Masked by values, it is stored without.)
    __device__ static __forceinline__ void mask(int kind, float (&gradient)[8], const Sums& sums, const Values& values) {
        if (kind == FLOW && sums.mask == MASK_BY_BITS) keep_positive(gradient, values.positive);
    }

    // Adds stored values: their moments, or as a gradient.
    __device__ __forceinline__ void add(int kind, const float (&stored)[8], const Sums& sums, const Rows& of, const Values& values) {
        if (kind == MOMENTS) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                first[i] += stored[i];
                second[i] += stored[i] * stored[i];
            }
            return;
        }
        float y[8];
        unpack(values.y, y);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float centred = y[i] - of.mean[i];
            const float g = sums.mask != MASK_BY_VALUE || centred * of.scale[i] + of.bias[i] > 0.0f ? stored[i] : 0.0f;
            first[i] += g;
            second[i] += g * centred;
        }
    }

    // Adds what the lanes hold that differ in bits from `bit` to 16.
    __device__ __forceinline__ void add_lanes(int bit) {
        for (; bit < 32; bit *= 2)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                first[i] += __shfl_xor_sync(0xffffffffu, first[i], bit);
                second[i] += __shfl_xor_sync(0xffffffffu, second[i], bit);
            }
    }
};

// Sums the channels of this block, which has `width` channels from `column` on, and stores them; see `add_rows`. The thread that
// `writes` has the sums of its `group` of eight channels in row `slot` of `slots`. `memory` is free. All threads take part.
template <int THREADS, int BN>
__device__ __forceinline__ void sum_channels(char* memory, const Eight& eight, bool writes, int slot, int slots, int group, const Norm& norm,
                                             int column, int width) {
    float* parts = (float*)memory;
    __syncthreads();
    if (writes)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            parts[slot * 2 * BN + group * 8 + i] = eight.first[i];
            parts[slot * 2 * BN + BN + group * 8 + i] = eight.second[i];
        }
    __syncthreads();
    Sum* row = norm.partial + (u64)blockIdx.x * 2 * norm.pitch + column;
    for (int at = threadIdx.x; at < 2 * BN; at += THREADS) {
        const int second = at >= BN, c = at - second * BN;
        if (c >= width) continue;
        float sum = 0.0f;
        for (int slot = 0; slot < slots; slot++) sum += parts[slot * 2 * BN + at];
        row[second * norm.pitch + c] = sum;
    }
}

// BM pixels × BN channels for each block, BK elements of a patch at a time, WM × WN warps.
template <int BM, int BN, int BK, int WM, int WN, int STAGES>
__device__ __forceinline__ void conv(const ConvGeometry& geometry, const u16* __restrict__ x, const u16* __restrict__ weight,
                                     const float* __restrict__ bias, u16* y, int add, int kind, const Norm& norm, const Sums& of) {
    constexpr int THREADS = WM * WN * 32, PIECES = BK / 8, ROWS = THREADS / PIECES, PASSES = (BM + ROWS - 1) / ROWS;
    constexpr int WEIGHTS = (BN + ROWS - 1) / ROWS, PITCH = BK + 8;
    constexpr int MT = BM / WM / 16, NT = BN / WN / 8;
    static_assert(NT % 2 == 0 && BM % ROWS == 0 || BM < ROWS, "tiles");
    extern __shared__ __align__(16) u16 memory[];
    u16* as = memory;
    u16* bs = memory + STAGES * BM * PITCH;
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int wm = warp / WN, wn = warp % WN;
    const int pixels = geometry.n * geometry.oh * geometry.ow, first = blockIdx.x * BM, column = blockIdx.y * BN;
    const int groups = geometry.cp / 8, taps = geometry.kh * geometry.kw, pieces = taps * groups, depth = pieces * 8;
    const int piece = thread % PIECES, row = thread / PIECES;

    // The start of the patch of each of this thread's pixels.
    const u16* image[PASSES];
    int top[PASSES], left[PASSES];
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        int at = first + row + i * ROWS;
        bool there = at < pixels && row + i * ROWS < BM;
        int n = there ? at / (geometry.oh * geometry.ow) : 0, rest = there ? at - n * geometry.oh * geometry.ow : 0;
        int oy = rest / geometry.ow, ox = rest - oy * geometry.ow;
        image[i] = x + (u64)n * geometry.h * geometry.w * geometry.cp;
        top[i] = there ? oy * geometry.mul - geometry.off_y : -100000;
        left[i] = ox * geometry.mul - geometry.off_x;
    }
    // The tap and channel group of this thread's piece of the next chunk.
    int q = piece, tap = piece / groups, group = piece - tap * groups;
    int r = tap / geometry.kw, s = tap - r * geometry.kw;
    auto load = [&](int stage) {
        u32 to = shared_address(as + stage * BM * PITCH);
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            int in_tile = row + i * ROWS;
            if (BM % ROWS != 0 && in_tile >= BM) break;
            int iy = top[i] + r, ix = left[i] + s;
            bool there = q < pieces && iy >= 0 && ix >= 0;
            if (geometry.div == 2) {
                there = there && ((iy | ix) & 1) == 0;
                iy >>= 1;
                ix >>= 1;
            } else if (geometry.div > 2) {
                there = there && iy % geometry.div == 0 && ix % geometry.div == 0;
                iy /= geometry.div;
                ix /= geometry.div;
            }
            there = there && iy < geometry.h && ix < geometry.w;
            const u16* from = there ? image[i] + ((iy * geometry.w + ix) * geometry.cp + group * 8) : x;
            fetch(to + (in_tile * PITCH + piece * 8) * 2, from, there);
        }
        u32 wto = shared_address(bs + stage * BN * PITCH);
#pragma unroll
        for (int i = 0; i < WEIGHTS; i++) {
            int in_tile = row + i * ROWS;
            if (in_tile < BN) {
                bool there = column + in_tile < geometry.o && q < pieces;
                const u16* from = there ? weight + (u64)(column + in_tile) * depth + q * 8 : weight;
                fetch(wto + (in_tile * PITCH + piece * 8) * 2, from, there);
            }
        }
        q += PIECES;
        group += PIECES;
        while (group >= groups) {
            group -= groups;
            if (++s == geometry.kw) { s = 0; r++; }
        }
    };

    float sums[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) sums[i][j][k] = 0.0f;

    const int chunks = (pieces + PIECES - 1) / PIECES;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < chunks) load(stage);
        commit();
    }
    for (int chunk = 0; chunk < chunks; chunk++) {
        wait<STAGES - 2>();
        __syncthreads();
        if (chunk + STAGES - 1 < chunks) load((chunk + STAGES - 1) % STAGES);
        commit();
        const u16* a_tile = as + (chunk % STAGES) * BM * PITCH;
        const u16* b_tile = bs + (chunk % STAGES) * BN * PITCH;
#pragma unroll
        for (int k = 0; k < BK; k += 16) {
            u32 a[MT][4], b[NT / 2][4];
#pragma unroll
            for (int i = 0; i < MT; i++)
                matrices(a[i], shared_address(a_tile + (wm * MT * 16 + i * 16 + (lane & 15)) * PITCH + k + (lane >> 4) * 8));
#pragma unroll
            for (int j = 0; j < NT / 2; j++)
                matrices(b[j], shared_address(b_tile + (wn * NT * 8 + j * 16 + (lane >> 4) * 8 + (lane & 7)) * PITCH + k +
                                              ((lane >> 3) & 1) * 8));
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < NT; j++) multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
    wait<0>();
    __syncthreads();

    // Through shared memory, so that stores are contiguous and the channels can be summed.
    constexpr int OUT = BN + 4;
    float* out = (float*)memory;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int m = wm * MT * 16 + i * 16 + lane / 4, c = wn * NT * 8 + j * 8 + lane % 4 * 2;
            float b0 = 0.0f, b1 = 0.0f;
            if (bias) {
                b0 = column + c < geometry.o ? bias[column + c] : 0.0f;
                b1 = column + c + 1 < geometry.o ? bias[column + c + 1] : 0.0f;
            }
            *(float2*)(out + m * OUT + c) = make_float2(sums[i][j][0] + b0, sums[i][j][1] + b1);
            *(float2*)(out + (m + 8) * OUT + c) = make_float2(sums[i][j][2] + b0, sums[i][j][3] + b1);
        }
    __syncthreads();
    const int width = min(BN, geometry.op - column), of_eight = thread % (BN / 8), c = of_eight * 8;
    Eight eight;
    Rows factors;
    if (kind == FLOW && c < width) factors = rows_of(norm, column / 8 + of_eight);
    // Several rows at a time: what is added to and summed with is in flight together.
    constexpr int STEP = THREADS / (BN / 8), U = BM / STEP < 4 ? BM / STEP : 4;
    static_assert(BM % (STEP * U) == 0, "rows");
    if (c < width)
#pragma unroll 1
        for (int m = thread / (BN / 8); m < BM; m += U * STEP) {
            Eight::Values values[U];
            uint4 old[U];
#pragma unroll
            for (int u = 0; u < U; u++) {
                const u64 at = (u64)min(first + m + u * STEP, pixels - 1) * geometry.op + column + c;
                values[u] = Eight::values(kind, of, at);
                if (add) old[u] = *(const uint4*)(y + at);
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                const int row = m + u * STEP;
                if (first + row >= pixels) break;
                float v[8], before[8] = {};
                if (add) unpack(old[u], before);
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = out[row * OUT + c + i] + before[i];
                Eight::mask(kind, v, of, values[u]);
                store8(y + (u64)(first + row) * geometry.op + column + c, v);
                if (kind == NO_SUMS) continue;
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = rounded(v[i], y);
                eight.add(kind, v, of, factors, values[u]);
            }
        }
    if (kind == NO_SUMS) return;
    // The order of the sums is fixed by the shape.
    eight.add_lanes(BN / 8);
    sum_channels<THREADS, BN>((char*)memory, eight, lane < BN / 8, warp, THREADS / 32, of_eight, norm, column, width);
}

#define CONV(NAME, BM, BN, BK, WM, WN, STAGES)                                                                         \
    extern "C" __global__ void __launch_bounds__(WM * WN * 32)                                                         \
        NAME(ConvGeometry geometry, const u16* x, const u16* weight, const float* bias, u16* y, int add, int kind,     \
             Norm norm, Sums of, int rows, u64 slab) {                                                                 \
        await_previous();                                                                                              \
        conv<BM, BN, BK, WM, WN, STAGES>(geometry, mine(x, slab), mine(weight, slab), mine(bias, slab), mine(y, slab), \
                                         add, kind, mine(norm, slab), mine(of, slab));                                 \
    }

CONV(conv_16, 256, 16, 32, 8, 1, 3)
CONV(conv_32, 128, 32, 32, 4, 2, 3)
CONV(conv_64, 64, 64, 64, 4, 2, 3)
CONV(conv_64_tall, 256, 64, 32, 4, 2, 3)
CONV(conv_128, 128, 128, 32, 4, 2, 4)

#endif
