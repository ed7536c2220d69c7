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

// Copies to the cache.
__device__ __forceinline__ void prefetch(const void* from, int bytes) {
    if (bytes > 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
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

// Eight channels of sixteen rows between shared memory and the lanes, as the tensor cores leave them: a lane has two channels of row
// lane / 4, and of the row eight behind it.
__device__ __forceinline__ void load_pairs(u32 (&pairs)[2], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(pairs[0]), "=r"(pairs[1]) : "r"(from) : "memory");
}
__device__ __forceinline__ void store_pairs(u32 to, u32 first, u32 second) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(first), "r"(second) : "memory");
}

// The end of a tile: a warp adds to its results, masks them, stores them, and sums them for a batch norm. They pass through shared memory,
// PART channels of sixteen rows at a time, so that access to memory is contiguous: there a lane has eight channels of EACH rows.
template <int BN, bool DATA> struct TileEnd {
    static constexpr int PART = BN % 40 == 0 ? 40 : 32, PARTS = BN / PART, GROUPS = PART / 8, ROWS = 32 / GROUPS, EACH = (16 + ROWS - 1) / ROWS;
    // Lanes that access eight rows at once use different banks.
    static constexpr int PITCH = PART == 40 ? 56 : 40, SLICE = 16 * PITCH;
    // Numbers of shared memory for a warp: the results, and the bits that mask gradients.
    static constexpr int ROOM = SLICE + (DATA ? 16 * 4 : 0);
    // Sums of a lane for its channels of a part, and what is left of them when the lanes with the same channels have shared them out.
    static constexpr int SUMS = (4 * GROUPS + 7) / 8 * 8, LEFT = SUMS / 8;

    const WideTiles& g;
    u16* const y;
    const u8* const positive;
    u16* const slice;
    const int add, column, lane, start, row0, c;
    u64 place;
    int count; // rows of the tile from `start` on
    uint4 old[EACH];
    u32 kept[EACH];

    __device__ __forceinline__ TileEnd(const WideTiles& g, u16* y, const u8* positive, u16* slices, int add, int column)
        : g(g), y(y), positive(positive), slice(slices + threadIdx.x / 32 * ROOM), add(add), column(column), lane(threadIdx.x % 32), start(threadIdx.x / 128 * 128 + threadIdx.x / 32 % 4 * 16), row0(lane / GROUPS), c(lane % GROUPS * 8) {}

    // A tile begins: what its end reads first is fetched.
    __device__ __forceinline__ void begin(int first, int last) {
        place = (u64)(first + start + row0) * g.pitch + column + c;
        count = last - first - start;
        if (add || positive) fetch(0, 0);
    }
    __device__ __forceinline__ bool inside(int i) const { return row0 < ROWS && row0 + i * ROWS < 16; }
    __device__ __forceinline__ bool there(int part, int m, int i) const {
        return inside(i) && row0 + m * 64 + i * ROWS < count && column + part * PART + c < g.pitch;
    }
    __device__ __forceinline__ u64 at(int part, int m, int i) const { return place + (u32)((m * 64 + i * ROWS) * g.pitch) + part * PART; }
    __device__ __forceinline__ void fetch(int part, int m) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (there(part, m, i)) {
                if (add) old[i] = *(const uint4*)(y + at(part, m, i));
                if (positive) kept[i] = positive[at(part, m, i) / 8];
            }
    }

    // Of 2 · HALF sums each of two lanes gets half.
    template <int BIT, int HALF> __device__ __forceinline__ void share_out(float (&sums)[SUMS]) const {
        const bool upper = lane & BIT;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const float given = __shfl_xor_sync(0xffffffffu, upper ? sums[i] : sums[i + HALF], BIT);
            sums[i] = (upper ? sums[i + HALF] : sums[i]) + given;
        }
    }

    // The results are in `sums`. MOMENTS: adds theirs to `totals`.
    template <bool MOMENTS>
    __device__ __forceinline__ void finish(const float (&sums)[2][BN / 2], const float* bias, float (&totals)[PARTS][LEFT]) {
        const int row = lane / 4, pair = lane % 4 * 2;
        const u32 pairs = shared_address(slice) + (lane % 16 * PITCH) * 2;
        u8* const bits = (u8*)(slice + SLICE);
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            float moments[SUMS] = {};
#pragma unroll
            for (int m = 0; m < 2; m++) {
                // Others may still read.
                __syncwarp();
                if (add || positive) {
#pragma unroll
                    for (int i = 0; i < EACH; i++) {
                        if (!inside(i)) continue;
                        const int to = (row0 + i * ROWS) * PITCH + c;
                        if (add) *(uint4*)(slice + to) = old[i];
                        if (positive) bits[(row0 + i * ROWS) * 8 + c / 8] = (u8)kept[i];
                    }
                    if (m == 0) fetch(part, 1);
                    else if (part + 1 < PARTS) fetch(part + 1, 0);
                    __syncwarp();
                }
                const bool here[2] = {row + m * 64 < count, row + 8 + m * 64 < count};
                u64 mask[2] = {};
                if (positive)
#pragma unroll
                    for (int h = 0; h < 2; h++) mask[h] = *(const u64*)(bits + (row + 8 * h) * 8) >> pair;
#pragma unroll
                for (int j = 0; j < GROUPS; j++) {
                    const int at = part * PART / 2 + 4 * j, channel = part * PART + 8 * j + pair;
                    float v[4] = {sums[m][at], sums[m][at + 1], sums[m][at + 2], sums[m][at + 3]};
                    if (add) {
                        u32 before[2];
                        load_pairs(before, pairs + j * 16);
                        v[0] += low_of(before[0]); v[1] += high_of(before[0]); v[2] += low_of(before[1]); v[3] += high_of(before[1]);
                    }
                    if (bias) {
                        const float2 shift = *(const float2*)(bias + channel);
                        v[0] += shift.x; v[1] += shift.y; v[2] += shift.x; v[3] += shift.y;
                    }
                    if (positive)
#pragma unroll
                        for (int k = 0; k < 4; k++) v[k] = mask[k / 2] >> (8 * j + k % 2) & 1 ? v[k] : 0.0f;
                    u32 packed[2] = {pack(v[0], v[1]), pack(v[2], v[3])};
                    store_pairs(pairs + j * 16, packed[0], packed[1]);
                    if constexpr (MOMENTS) {
                        // What is behind the last row does not count.
#pragma unroll
                        for (int h = 0; h < 2; h++) packed[h] = here[h] ? packed[h] : 0;
                        v[0] = low_of(packed[0]); v[1] = high_of(packed[0]); v[2] = low_of(packed[1]); v[3] = high_of(packed[1]);
#pragma unroll
                        for (int k = 0; k < 4; k++) {
                            moments[4 * j + k % 2 * 2] += v[k];
                            moments[4 * j + k % 2 * 2 + 1] += v[k] * v[k];
                        }
                    }
                }
                __syncwarp();
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    if (there(part, m, i)) *(uint4*)(y + at(part, m, i)) = *(const uint4*)(slice + (row0 + i * ROWS) * PITCH + c);
            }
            if constexpr (MOMENTS) {
                // Eight lanes have the same channels. In three steps each gets the sums of an eighth of them.
                share_out<16, SUMS / 2>(moments);
                share_out<8, SUMS / 4>(moments);
                share_out<4, SUMS / 8>(moments);
#pragma unroll
                for (int i = 0; i < LEFT; i++) totals[part][i] += moments[i];
            }
        }
    }

    // Leaves the sums of all warps for the batch norm; `all` is memory of the block that nobody uses.
    __device__ __forceinline__ void leave(const float (&totals)[PARTS][LEFT], float* all, const Norm& norm) const {
        asm volatile("bar.sync 1, 256;" ::: "memory");
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int i = 0; i < LEFT; i++) {
                const int sum = lane / 4 * LEFT + i, channel = part * PART + sum / 4 * 8 + lane % 4 * 2 + sum % 4 / 2;
                if (sum < 4 * GROUPS) all[(threadIdx.x / 32 * 2 + sum % 2) * BN + channel] = totals[part][i];
            }
        asm volatile("bar.sync 1, 256;" ::: "memory");
        Sum* row = norm.partial + (u64)blockIdx.x * 2 * norm.pitch + column;
        for (int at = threadIdx.x; at < 2 * BN; at += 256) {
            const int second = at >= BN, c = at - second * BN;
            if (column + c >= norm.pitch) continue;
            float sum = 0.0f;
            for (int i = 0; i < 8; i++) sum += all[i * 2 * BN + at];
            row[second * norm.pitch + c] = sum;
        }
    }
};

// 256 pixels × BN channels for a tile, KC channels of TAPS taps at a time. With three, those of a column: they read the same rows of
// pixels, one row apart, so that each row is copied three times and not nine. DATA: the gradient of the input, whose weights are stored
// for the forward pass; they arrive in blocks of NB channels. Of it only what is `positive` is kept, if that is given. A block of threads
// takes every gridDim.x-th tile.
template <int BN, int KC, int NB, int TAPS, int STAGES, bool DATA>
__device__ __forceinline__ void conv_wide(const TensorMap* source, const TensorMap* weights, const float* bias, u16* y, const WideTiles& g,
                                          const u8* positive, int add, int moments, const Norm& norm) {
    using End = TileEnd<BN, DATA>;
    // Only gradients are added to and masked, and only results have a bias and are summed up.
    add = DATA && add;
    moments = !DATA && moments;
    if (DATA) bias = nullptr;
    else positive = nullptr;
    constexpr int A = (TAPS == 3 ? 320 : 256) * KC * 2, B = BN * KC * 2, STAGE = A + TAPS * B;
    extern __shared__ __align__(1024) u16 memory[];
    const u32 base = (shared_address(memory) + 1023) & ~1023u;
    u16* const slices = (u16*)((char*)memory + (base - shared_address(memory)) + STAGES * STAGE);
    float* const shifts = (float*)(slices + 8 * End::ROOM);
    Ring<STAGES> ring = {shared_address(shifts + BN)};
    const int warp = threadIdx.x >> 5, column = blockIdx.y * BN;
    if (bias)
        for (int c = threadIdx.x; c < BN; c += 384) shifts[c] = column + c < g.channels ? bias[column + c] : 0.0f;
    ring.init();
    // The pixels of a tile.
    auto first_of = [&](int tile, int image) {
        return g.images > 1 ? tile * g.pixels : image * g.image_pixels + (tile - image * g.per_image) * g.pixels;
    };
    auto last_of = [&](int first, int image) { return min(first + g.pixels, g.images > 1 ? g.all : min(g.all, (image + 1) * g.image_pixels)); };
    if (warp >= 8) {
        few_registers();
        if (threadIdx.x != 256) return;
        for (int tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
            const int image = g.images > 1 ? tile * g.images : tile / g.per_image;
            const int top = g.images > 1 ? 0 : (tile - image * g.per_image) * g.height;
            if (add) {
                // What the end of the tile reads comes to the cache meanwhile. The columns of blocks share the pixels.
                const int first = first_of(tile, image), count = last_of(first, image) - first, columns = gridDim.y;
                const int begin = first + count * (int)blockIdx.y / columns, end = first + count * ((int)blockIdx.y + 1) / columns;
                prefetch(y + (u64)begin * g.pitch, (end - begin) * g.pitch * 2);
            }
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
    float sums[2][BN / 2], totals[End::PARTS][End::LEFT] = {};
    End end(g, y, positive, slices, add, column);
    for (int tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
        const int image = g.images > 1 ? tile * g.images : tile / g.per_image, first = first_of(tile, image);
        end.begin(first, last_of(first, image));
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
        const float* const shift = bias ? shifts : nullptr;
        if (moments) end.template finish<!DATA>(sums, shift, totals);
        else end.template finish<false>(sums, shift, totals);
    }
    if (moments) end.leave(totals, (float*)slices, norm);
}

#define CONV_WIDE(NAME, BN, KC, NB, TAPS, STAGES, DATA)                                                                     \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                               \
        NAME(const __grid_constant__ TensorMap source, const __grid_constant__ TensorMap weights, const float* bias, u16* y,            \
             WideTiles tiles, const u8* positive, int add, int moments, Norm norm, u64 slab) {                          \
        await_previous();                                                                                              \
        conv_wide<BN, KC, NB, TAPS, STAGES, DATA>(&source, &weights, mine(bias, slab), mine(y, slab), tiles, mine(positive, slab), \
                                                  add, moments, mine(norm, slab));                                                    \
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
