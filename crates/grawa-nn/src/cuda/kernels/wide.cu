// Convolutions between many channels on Hopper GPUs. One warp copies boxes of the tensors to a ring of stages in shared memory, by
// the tensor memory accelerator; two groups of four warps multiply what has arrived (`wgmma`). What lies outside an image, or
// beyond the last channel, arrives as zero.

// How a tensor is divided into boxes; made by `cuTensorMapEncodeTiled`. The last of five coordinates is the replica.
struct __align__(64) TensorMap { u64 words[16]; };

// The pixels of the target in tiles, which have several whole images or some rows of one.
struct WideTiles {
    int tiles, pixels;            // of a replica; of a tile
    int images, height, width;    // whole images of a tile, or 1; its rows of an image, and their length
    int per_image, image_pixels;  // tiles and pixels of an image
    int all, pitch, channels;     // of the target: pixels of all images
    int source_pitch;
    int kh, kw, mul, off_y, off_x;
    int chunks;                   // of the source's channels
};

#if BF16 && defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Barriers in shared memory. A phase of one ends when all have arrived and all bytes that were announced are there.
__device__ __forceinline__ void barrier_init(u32 at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals));
}
__device__ __forceinline__ void arrive(u32 at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
__device__ __forceinline__ void arrive_announcing(u32 at, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void await(u32 at, u32 parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(at), "r"(parity) : "memory");
}

// Copies a box to shared memory; the barrier counts its bytes.
__device__ __forceinline__ void copy_box(u32 to, const TensorMap* map, u32 barrier, int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(blockIdx.z) : "memory");
}

// A ring of stages: the number of the next stage, and how often the ring was passed, modulo two.
template <int STAGES> struct Ring {
    u32 barriers;
    int stage = 0;
    u32 parity = 0;
    __device__ __forceinline__ u32 full() const { return barriers + stage * 16; }
    __device__ __forceinline__ u32 empty(int stage) const { return barriers + stage * 16 + 8; }
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) { stage = 0; parity ^= 1; }
    }
    // Called by all threads of the block.
    __device__ __forceinline__ void init() {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) {
                barrier_init(barriers + i * 16, 1);
                barrier_init(empty(i), 2);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
    }
};

// The rest of the block gives registers to the warps that multiply.
__device__ __forceinline__ void few_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }
__device__ __forceinline__ void many_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); }

// Describes a matrix in shared memory to the tensor cores: rows of BYTES bytes, swizzled as the copies leave them. Groups of
// eight rows are `stride` bytes apart; further columns, if the rows do not hold all, `leading` bytes.
template <int BYTES> __device__ __forceinline__ u64 matrix(u32 at, u32 leading, u32 stride) {
    return (u64)((at & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | (u64)(BYTES == 128 ? 1 : 2) << 62;
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// The compiler must not read the sums before the tensor cores have written them.
template <int N> __device__ __forceinline__ void hold(float (&sums)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// Multiplies what arrives in `steps` stages, and frees each stage when the products of the next are under way. A group of warps
// has two blocks of 64 rows. `multiply(base of a stage, whether it is the first)` begins the products.
template <int STAGES, int STAGE, int N, class Multiply>
__device__ __forceinline__ void multiply_all(Ring<STAGES>& ring, u32 base, int steps, float (&sums)[2][N], Multiply multiply) {
    int before = -1;
    for (int step = 0; step < steps; step++) {
        await(ring.full(), ring.parity);
        begin_products();
        multiply(base + ring.stage * STAGE, step == 0);
        end_products();
        if (before >= 0) {
            await_products<1>();
            if (threadIdx.x % 128 == 0) arrive(ring.empty(before));
        }
        before = ring.stage;
        ring.next();
    }
    await_products<0>();
    hold(sums[0]);
    hold(sums[1]);
    if (before >= 0 && threadIdx.x % 128 == 0) arrive(ring.empty(before));
}

// 256 pixels × BN channels for a tile, KC channels of TAPS taps at a time. With three, those of a column: they read the same rows of
// pixels, one row apart, so that each row is copied three times and not nine. DATA: the gradient of the input, whose weights are stored
// for the forward pass; they arrive in blocks of NB channels. It keeps only what is `positive`, if given. A block of threads takes every
// gridDim.x-th tile.
template <int BN, int KC, int NB, int TAPS, int STAGES, bool DATA>
__device__ __forceinline__ void conv_wide(const TensorMap* source, const TensorMap* weights, const float* bias, u16* y, const WideTiles& g,
                                          const u8* positive, int add, int moments, const Norm& norm) {
    // Only gradients are added to, and only results have a bias and are summed up.
    add = DATA && add;
    moments = !DATA && moments;
    if (DATA) bias = nullptr;
    if (!DATA) positive = nullptr;
    constexpr int A = (TAPS == 3 ? 320 : 256) * KC * 2, B = BN * KC * 2, STAGE = A + TAPS * B;
    // Results pass through shared memory in slices of channels, so that stores are contiguous: sixteen rows of each warp.
    constexpr int SLICE = BN % 40 == 0 ? 40 : 32, OUT = SLICE + 4, GROUPS = SLICE / 8, ROWS = 32 / GROUPS;
    extern __shared__ __align__(1024) u16 memory[];
    const u32 base = (shared_address(memory) + 1023) & ~1023u;
    float* const slices = (float*)((char*)memory + (base - shared_address(memory)) + STAGES * STAGE);
    float* const totals = slices + 8 * 16 * OUT;
    Ring<STAGES> ring = {shared_address(totals + 8 * 2 * BN)};
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, column = blockIdx.y * BN;
    ring.init();
    if (warp >= 8) {
        few_registers();
        if (threadIdx.x != 256) return;
        for (int tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
            const int image = g.images > 1 ? tile * g.images : tile / g.per_image;
            const int top = g.images > 1 ? 0 : (tile - image * g.per_image) * g.height;
            for (int r = 0; r < g.kh; r += TAPS)
                for (int s = 0; s < g.kw; s++)
                    for (int chunk = 0; chunk < g.chunks; chunk++) {
                        await(ring.empty(ring.stage), ring.parity ^ 1);
                        const u32 to = base + ring.stage * STAGE;
                        arrive_announcing(ring.full(), g.images * (g.height + TAPS - 1) * g.width * KC * 2 + TAPS * B);
                        copy_box(to, source, ring.full(), chunk * KC, s - g.off_x, top * g.mul + r - g.off_y, image);
#pragma unroll
                        for (int t = 0; t < TAPS; t++)
                            if (DATA)
                                copy_box(to + A + t * B, weights, ring.full(), 0, chunk * KC, (g.kh - 1 - r - t) * g.kw + g.kw - 1 - s,
                                         column / NB);
                            else
                                copy_box(to + A + t * B, weights, ring.full(), chunk * KC, (r + t) * g.kw + s, column, 0);
                        ring.next();
                    }
        }
        return;
    }
    many_registers();
    const int group = warp >> 2, steps = g.kh / TAPS * g.kw * g.chunks;
    // Where the pixels of both blocks of rows begin in a stage: each image has TAPS - 1 rows more than in the tile.
    const int each = g.pixels / g.images;
    u32 starts[2];
    for (int m = 0; m < 2; m++) {
        const int at = group * 128 + m * 64;
        starts[m] = (at + (TAPS == 3 ? at / each * 2 * g.width : 0)) * KC * 2;
    }
    float* const slice = slices + warp * 16 * OUT;
    float* const total = totals + warp * 2 * BN;
    for (int i = lane; i < 2 * BN; i += 32) total[i] = 0.0f;
    float sums[2][BN / 2];
    const int row0 = lane / GROUPS, c = lane % GROUPS * 8;
    for (int tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
        const int image = g.images > 1 ? tile * g.images : tile / g.per_image;
        const int first = g.images > 1 ? tile * g.pixels : image * g.image_pixels + (tile - image * g.per_image) * g.pixels;
        const int last = min(first + g.pixels, g.images > 1 ? g.all : min(g.all, (image + 1) * g.image_pixels));
        // What is added to, and what is kept of it, for the rows of this lane in a block of rows: fetched one block ahead, because memory is slow.
        constexpr int EACH = (16 + ROWS - 1) / ROWS;
        uint4 old[EACH];
        u32 bits;
        auto pixel = [&](int m, int i) { return first + group * 128 + m * 64 + warp % 4 * 16 + row0 + i * ROWS; };
        auto there = [&](int part, int m, int i) {
            return row0 < ROWS && row0 + i * ROWS < 16 && column + part * SLICE + c < g.pitch && pixel(m, i) < last;
        };
        auto fetch_old = [&](int part, int m) {
            bits = 0;
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (there(part, m, i)) {
                    const u64 at = (u64)pixel(m, i) * g.pitch + column + part * SLICE + c;
                    if (add) old[i] = *(const uint4*)(y + at);
                    if (positive) bits |= (u32)positive[at / 8] << 8 * i;
                }
        };
        if (add || positive) fetch_old(0, 0);
        multiply_all<STAGES, STAGE>(ring, base, steps, sums, [&](u32 at, bool first) {
#pragma unroll
            for (int t = 0; t < TAPS; t++)
#pragma unroll
                for (int k = 0; k < KC / 16; k++) {
                    const u32 b = at + A + t * B;
                    const u64 right = DATA ? matrix<NB * 2>(b + k * 16 * NB * 2, KC * NB * 2, 8 * NB * 2) : matrix<KC * 2>(b + k * 32, 16, 8 * KC * 2);
#pragma unroll
                    for (int m = 0; m < 2; m++) {
                        const u32 a = at + starts[m] + t * g.width * KC * 2 + k * 32;
                        product<0, DATA>(sums[m], matrix<KC * 2>(a, 16, 8 * KC * 2), right, !first || t + k > 0);
                    }
                }
        });
#pragma unroll
        for (int part = 0; part < BN / SLICE; part++) {
            const int channel = column + part * SLICE + c;
            float shift[8] = {};
            if (bias)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (channel + i < g.channels) shift[i] = bias[channel + i];
            Eight eight;
#pragma unroll
            for (int m = 0; m < 2; m++) {
                __syncwarp();
#pragma unroll
                for (int j = 0; j < GROUPS; j++) {
                    const int at = part * SLICE / 2 + 4 * j;
                    float* low = slice + lane / 4 * OUT + j * 8 + lane % 4 * 2;
                    *(float2*)low = make_float2(sums[m][at], sums[m][at + 1]);
                    *(float2*)(low + 8 * OUT) = make_float2(sums[m][at + 2], sums[m][at + 3]);
                }
                uint4 before[EACH];
                const u32 kept = bits;
                if (add || positive) {
#pragma unroll
                    for (int i = 0; i < EACH; i++) before[i] = old[i];
                    if (m == 0) fetch_old(part, 1);
                    else if (part + 1 < BN / SLICE) fetch_old(part + 1, 0);
                }
                __syncwarp();
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    if (!there(part, m, i)) continue;
                    const float* from = slice + (row0 + i * ROWS) * OUT + c;
                    float v[8];
                    *(float4*)v = *(const float4*)from;
                    *(float4*)(v + 4) = *(const float4*)(from + 4);
                    if (add) {
                        float earlier[8];
                        unpack(before[i], earlier);
#pragma unroll
                        for (int k = 0; k < 8; k++) v[k] += earlier[k];
                    }
                    if (bias)
#pragma unroll
                        for (int k = 0; k < 8; k++) v[k] += shift[k];
                    if (positive) keep_positive(v, kept >> 8 * i);
                    const uint4 packed = make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
                    *(uint4*)(y + (u64)pixel(m, i) * g.pitch + channel) = packed;
                    if (!moments) continue;
                    unpack(packed, v);
#pragma unroll
                    for (int k = 0; k < 8; k++) {
                        eight.first[k] += v[k];
                        eight.second[k] += v[k] * v[k];
                    }
                }
            }
            if (!moments) continue;
            // The rows of the lanes, in a fixed order.
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 8; i++) {
                slice[lane * 17 + i] = eight.first[i];
                slice[lane * 17 + 8 + i] = eight.second[i];
            }
            __syncwarp();
            for (int i = lane; i < 2 * SLICE; i += 32) {
                const int second = i >= SLICE, at = i - second * SLICE;
                float sum = 0.0f;
#pragma unroll
                for (int row = 0; row < ROWS; row++) sum += slice[(row * GROUPS + at / 8) * 17 + second * 8 + at % 8];
                total[second * BN + part * SLICE + at] += sum;
            }
        }
    }
    if (!moments) return;
    asm volatile("bar.sync 1, 256;" ::: "memory");
    Sum* row = norm.partial + (u64)blockIdx.x * 2 * norm.pitch + column;
    for (int at = threadIdx.x; at < 2 * BN; at += 256) {
        const int second = at >= BN, c = at - second * BN;
        if (column + c >= norm.pitch) continue;
        float sum = 0.0f;
        for (int i = 0; i < 8; i++) sum += totals[i * 2 * BN + at];
        row[second * norm.pitch + c] = sum;
    }
}

#define CONV_WIDE(NAME, BN, KC, NB, TAPS, STAGES, DATA)                                                                     \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                               \
        NAME(const __grid_constant__ TensorMap source, const __grid_constant__ TensorMap weights, const float* bias, u16* y,            \
             WideTiles tiles, const u8* positive, int add, int moments, Norm norm, u64 slab) {                          \
        await_previous();                                                                                              \
        conv_wide<BN, KC, NB, TAPS, STAGES, DATA>(&source, &weights, mine(bias, slab), mine(y, slab), tiles, mine(positive, slab), add, \
                                                  moments, mine(norm, slab));                                                        \
    }

CONV_WIDE(conv_wide_64, 64, 64, 64, 1, 5, false)
CONV_WIDE(conv_wide_128, 128, 64, 64, 1, 4, false)
CONV_WIDE(conv_wide_160, 160, 32, 32, 1, 7, false)
CONV_WIDE(conv_wide_data_64, 64, 64, 64, 1, 5, true)
CONV_WIDE(conv_wide_data_128, 128, 64, 64, 1, 4, true)
CONV_WIDE(conv_wide_data_160, 160, 32, 32, 1, 7, true)
CONV_WIDE(conv_wide_64_rows, 64, 32, 64, 3, 6, false)
CONV_WIDE(conv_wide_128_rows, 128, 32, 64, 3, 4, false)
CONV_WIDE(conv_wide_160_rows, 160, 32, 32, 3, 3, false)
CONV_WIDE(conv_wide_data_64_rows, 64, 32, 64, 3, 6, true)
CONV_WIDE(conv_wide_data_128_rows, 128, 32, 64, 3, 4, true)
CONV_WIDE(conv_wide_data_160_rows, 160, 32, 32, 3, 3, true)

// The weight gradient: 256 rows × BN filters for a tile, 64 pixels at a time. Rows arrive in blocks of WB channels of a tap, the
// gradient in blocks of NB channels. A block of threads takes a range of the pixels and leaves partial sums, which `collect` adds in
// order. Four warps share the copies, because one alone is too slow.
template <int BN, int WB, int NB, int STAGES>
__device__ __forceinline__ void wgrad_wide(const TensorMap* x, const TensorMap* dy, float* partial, const WideTiles& g) {
    constexpr int BLOCK = 64 * WB * 2, BLOCKS = 256 / WB, A = BLOCKS * BLOCK, STAGE = A + BN * 64 * 2;
    extern __shared__ __align__(1024) u16 memory[];
    const u32 base = (shared_address(memory) + 1023) & ~1023u;
    Ring<STAGES> ring = {base + STAGES * STAGE};
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int blocks = g.kh * g.kw * g.chunks, columns = g.kh * g.kw * g.source_pitch;
    const int tiles = (blocks + BLOCKS - 1) / BLOCKS, first = blockIdx.y % tiles * BLOCKS, column = blockIdx.y / tiles * BN;
    const int begin = (int)((u64)g.tiles * blockIdx.x / gridDim.x), end = (int)((u64)g.tiles * (blockIdx.x + 1) / gridDim.x);
    ring.init();
    if (warp >= 8) {
        few_registers();
        if (lane != 0) return;
        for (int tile = begin; tile < end; tile++) {
            const int image = g.images > 1 ? tile * g.images : tile / g.per_image;
            const int top = g.images > 1 ? 0 : (tile - image * g.per_image) * g.height;
            await(ring.empty(ring.stage), ring.parity ^ 1);
            const u32 to = base + ring.stage * STAGE;
            if (warp == 8) {
                arrive_announcing(ring.full(), STAGE);
                copy_box(to + A, dy, ring.full(), 0, tile * 64, column / NB, 0);
            }
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                if (i % 4 != warp - 8) continue;
                const int block = first + i, tap = block / g.chunks, r = tap / g.kw, s = tap - r * g.kw;
                // Blocks after the last are beyond the last channel.
                const int c = (block < blocks ? block - tap * g.chunks : g.chunks) * WB;
                copy_box(to + i * BLOCK, x, ring.full(), c, s - g.off_x, top * g.mul + r - g.off_y, image);
            }
            ring.next();
        }
        return;
    }
    many_registers();
    const int group = warp >> 2;
    float sums[2][BN / 2];
    multiply_all<STAGES, STAGE>(ring, base, end - begin, sums, [&](u32 at, bool start) {
        const u32 a = at + group * (A / 2), b = at + A;
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int m = 0; m < 2; m++)
                product<1, 1>(sums[m], matrix<WB * 2>(a + m * 64 * 64 * 2 + k * 16 * WB * 2, BLOCK, 8 * WB * 2),
                              matrix<NB * 2>(b + k * 16 * NB * 2, 64 * NB * 2, 8 * NB * 2), !start || k > 0);
    });
    partial += (u64)blockIdx.x * g.channels * columns;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = group * 128 + m * 64 + warp % 4 * 16 + half * 8 + lane / 4, block = first + row / WB;
            const int tap = block / g.chunks, channel = (block - tap * g.chunks) * WB + row % WB;
            if (block >= blocks || channel >= g.source_pitch) continue;
            float* to = partial + tap * g.source_pitch + channel;
#pragma unroll
            for (int i = half * 2; i < BN / 2; i += 4)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int c = column + i / 4 * 8 + lane % 4 * 2 + j;
                    if (c < g.channels) to[(u64)c * columns] = sums[m][i + j];
                }
        }
}

#define WGRAD_WIDE(NAME, BN, WB, NB, STAGES)                                                                           \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                               \
        NAME(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap dy, float* partial, WideTiles tiles, u64 slab) { \
        await_previous();                                                                                              \
        wgrad_wide<BN, WB, NB, STAGES>(&x, &dy, mine(partial, slab), tiles);                                            \
    }

WGRAD_WIDE(wgrad_wide_64, 64, 64, 64, 5)
WGRAD_WIDE(wgrad_wide_128, 128, 64, 64, 4)
WGRAD_WIDE(wgrad_wide_160, 160, 64, 32, 4)
WGRAD_WIDE(wgrad_wide_64_32, 64, 32, 64, 5)
WGRAD_WIDE(wgrad_wide_128_32, 128, 32, 64, 4)
WGRAD_WIDE(wgrad_wide_160_32, 160, 32, 32, 4)

#endif
