// Convolutions of 3 × 3 with stride 1 between layers of 16 or of 32 channels, on tensor cores: forward, backward (data) and
// backward (weights). A block takes whole rows of an image. It copies them to shared memory once, with the row above and the
// row below, and reads all nine taps from there; `conv` and `wgrad` fetch every tap from the cache.

#if BF16

// Where shared memory holds eight channels of a pixel, in bytes. Pieces are exchanged so that those of eight neighbouring
// pixels are in different banks.
template <int C> __device__ __forceinline__ u32 piece_at(int pixel, int piece) {
    static_assert(C == 16 || C == 32, "channels");
    return (pixel * (C / 8) + (C == 16 ? piece ^ (pixel >> 2 & 1) : piece ^ (pixel >> 1 & 3))) * 16;
}

// The rows of a tile: `count` rows of image `n` from row `top`.
struct RowTile {
    int n, top, count;
    __device__ __forceinline__ RowTile(const ConvGeometry& geometry, int rows, int tile) {
        const int each = (geometry.oh + rows - 1) / rows;
        n = tile / each;
        top = (tile - n * each) * rows;
        count = min(rows, geometry.oh - top);
    }
};

__device__ __forceinline__ int row_tiles(const ConvGeometry& geometry, int rows) {
    return geometry.n * ((geometry.oh + rows - 1) / rows);
}

// Copies a tile with its frame of one pixel, which is zero outside of the image.
template <int C, int THREADS>
__device__ __forceinline__ void fetch_framed(u32 to, const ConvGeometry& geometry, const u16* x, const RowTile& tile) {
    const int wide = geometry.w + 2, pieces = (tile.count + 2) * wide * (C / 8);
    const u16* image = x + (u64)tile.n * geometry.h * geometry.w * C;
    for (int at = threadIdx.x; at < pieces; at += THREADS) {
        const int pixel = at / (C / 8), piece = at % (C / 8), row = pixel / wide;
        const int iy = tile.top + row - 1, ix = pixel - row * wide - 1;
        const bool there = iy >= 0 && iy < geometry.h && ix >= 0 && ix < geometry.w;
        fetch(to + piece_at<C>(pixel, piece), there ? image + (iy * geometry.w + ix) * C + piece * 8 : x, there);
    }
}

// Four lanes exchange their numbers: lane i gets the i-th of each.
__device__ __forceinline__ uint4 exchange(u32 a, u32 b, u32 c, u32 d) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    const u32 s = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1), t = __shfl_xor_sync(0xffffffffu, odd ? c : d, 1);
    if (odd) { a = s; c = t; } else { b = s; d = t; }
    const u32 u = __shfl_xor_sync(0xffffffffu, high ? a : c, 2), v = __shfl_xor_sync(0xffffffffu, high ? b : d, 2);
    return high ? make_uint4(u, v, c, d) : make_uint4(a, b, u, v);
}

// A warp multiplies sixteen pixels by sixteen output channels at a time; its weights stay in registers.
template <int C>
__device__ __forceinline__ void conv_rows(const ConvGeometry& geometry, const u16* __restrict__ x, const u16* __restrict__ weight,
                                          u16* y, int add, int kind, const Norm& norm, const Sums& of, int rows) {
    constexpr int ACROSS = C / 16, DOWN = 8 / ACROSS, THREADS = 256, STEPS = C / 16;
    extern __shared__ __align__(16) u16 memory[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, down = warp / ACROSS, across = warp % ACROSS;
    const int wide = geometry.w + 2, tiles = row_tiles(geometry, rows);
    const u32 room = (rows + 2) * wide * C * 2, start = shared_address(memory);

    // After the exchange a lane has eight channels of one pixel.
    const int group = across * 2 + (lane & 1), my_pixel = lane / 4 + (lane & 2) * 4;
    Eight eight;
    Rows factors;
    if (kind == FLOW) factors = rows_of(norm, group);

    int tile = blockIdx.x, stage = 0;
    if (tile < tiles) fetch_framed<C, THREADS>(start, geometry, x, RowTile(geometry, rows, tile));
    commit();
    u32 w[9][STEPS][4];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const u16* from = weight + (u64)(across * 16 + j * 8 + lane / 4) * 9 * C + lane % 4 * 2;
#pragma unroll
        for (int tap = 0; tap < 9; tap++)
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                w[tap][k][2 * j] = *(const u32*)(from + tap * C + k * 16);
                w[tap][k][2 * j + 1] = *(const u32*)(from + tap * C + k * 16 + 8);
            }
    }
    for (; tile < tiles; tile += gridDim.x, stage ^= 1) {
        const int next = tile + gridDim.x;
        if (next < tiles) fetch_framed<C, THREADS>(start + (stage ^ 1) * room, geometry, x, RowTile(geometry, rows, next));
        commit();
        wait<1>();
        __syncthreads();
        const RowTile here(geometry, rows, tile);
        const int pixels = here.count * geometry.ow;
        const u64 origin = ((u64)here.n * geometry.oh + here.top) * geometry.ow;
        const u32 from = start + stage * room;
        for (int first = down * 16; first < pixels; first += DOWN * 16) {
            const int pixel = min(first + (lane & 15), pixels - 1), row = pixel / geometry.ow;
            const int corner = row * wide + pixel - row * geometry.ow;
            const u64 at = (origin + first + my_pixel) * C + group * 8;
            const bool there = first + my_pixel < pixels;
            Eight::Values values;
            uint4 before = {};
            if (there) values = Eight::values(kind, of, at);
            if (there && add) before = *(const uint4*)(y + at);
            float sums[2][4] = {};
#pragma unroll
            for (int tap = 0; tap < 9; tap++)
#pragma unroll
                for (int k = 0; k < STEPS; k++) {
                    u32 a[4];
                    matrices(a, from + piece_at<C>(corner + tap / 3 * wide + tap % 3, 2 * k + (lane >> 4)));
                    multiply(sums[0], a, w[tap][k][0], w[tap][k][1]);
                    multiply(sums[1], a, w[tap][k][2], w[tap][k][3]);
                }
            uint4 packed;
            float v[8];
            if (add) {
                // The sum is rounded once, so it is exchanged in full.
                auto all = [&](int i) {
                    return exchange(__float_as_uint(sums[0][i]), __float_as_uint(sums[1][i]), __float_as_uint(sums[0][i + 2]),
                                    __float_as_uint(sums[1][i + 2]));
                };
                const uint4 even = all(0), odd = all(1);
                float old[8];
                unpack(before, old);
                packed = make_uint4(pack(__uint_as_float(even.x) + old[0], __uint_as_float(odd.x) + old[1]),
                                    pack(__uint_as_float(even.y) + old[2], __uint_as_float(odd.y) + old[3]),
                                    pack(__uint_as_float(even.z) + old[4], __uint_as_float(odd.z) + old[5]),
                                    pack(__uint_as_float(even.w) + old[6], __uint_as_float(odd.w) + old[7]));
            } else {
                packed = exchange(pack(sums[0][0], sums[0][1]), pack(sums[1][0], sums[1][1]), pack(sums[0][2], sums[0][3]),
                                  pack(sums[1][2], sums[1][3]));
            }
            if (!there) continue;
            unpack(packed, v);
            Eight::mask(kind, v, of, values);
            store8(y + at, v);
            if (kind != NO_SUMS) eight.add(kind, v, of, factors, values);
        }
        __syncthreads();
    }
    if (kind == NO_SUMS) return;
    eight.add_lanes(2);
    sum_channels<THREADS, C>((char*)memory, eight, lane < 2, down, DOWN, group, norm, 0, C);
}

#define CONV_ROWS(NAME, C)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256, C == 16 ? 2 : 1)                                                 \
        NAME(ConvGeometry geometry, const u16* x, const u16* weight, const float* bias, u16* y, int add, int kind,     \
             Norm norm, Sums of, int rows, u64 slab) {                                                                 \
        await_previous();                                                                                              \
        conv_rows<C>(geometry, mine(x, slab), mine(weight, slab), mine(y, slab), add, kind, mine(norm, slab),          \
                     mine(of, slab), rows);                                                                            \
    }

CONV_ROWS(conv_rows_16, 16)
CONV_ROWS(conv_rows_32, 32)

// The weight gradient. A warp has sixteen output channels, sixteen input channels and all nine taps; `stretch` is the rows of
// a tile. Warps that share them take turns on the pixels.
template <int C>
__device__ __forceinline__ void wgrad_rows(const ConvGeometry& geometry, const u16* __restrict__ x, const u16* __restrict__ dy,
                                           float* partial, int rows) {
    constexpr int PARTS = C / 16, KINDS = PARTS * PARTS, DOWN = C == 16 ? 8 : 4, THREADS = DOWN * KINDS * 32;
    extern __shared__ __align__(16) u16 memory[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int down = warp / KINDS, out = warp / PARTS % PARTS, in = warp % PARTS;
    const int wide = geometry.w + 2, tiles = row_tiles(geometry, rows);
    // The input with its frame, then the gradient of the output, padded with zeros to sixteen pixels.
    const u32 framed = (rows + 2) * wide * C * 2, flat = (rows * geometry.ow + 15) / 16 * 16 * C * 2, room = framed + flat;
    const u32 start = shared_address(memory);
    auto load = [&](u32 to, const RowTile& tile) {
        fetch_framed<C, THREADS>(to, geometry, x, tile);
        const int pixels = tile.count * geometry.ow, padded = (pixels + 15) / 16 * 16;
        const u16* from = dy + ((u64)tile.n * geometry.oh + tile.top) * geometry.ow * C;
        for (int at = threadIdx.x; at < padded * (C / 8); at += THREADS) {
            const int pixel = at / (C / 8), piece = at % (C / 8);
            fetch(to + framed + piece_at<C>(pixel, piece), pixel < pixels ? from + at * 8 : dy, pixel < pixels);
        }
    };
    float sums[9][2][4] = {};
    int tile = blockIdx.x, stage = 0;
    if (tile < tiles) load(start, RowTile(geometry, rows, tile));
    commit();
    for (; tile < tiles; tile += gridDim.x, stage ^= 1) {
        const int next = tile + gridDim.x;
        if (next < tiles) load(start + (stage ^ 1) * room, RowTile(geometry, rows, next));
        commit();
        wait<1>();
        __syncthreads();
        const int pixels = RowTile(geometry, rows, tile).count * geometry.ow;
        const u32 from = start + stage * room;
        for (int first = down * 16; first < pixels; first += DOWN * 16) {
            u32 a[4];
            transposed_matrices(a, from + framed + piece_at<C>(first + (lane & 7) + (lane >> 4) * 8, 2 * out + (lane >> 3 & 1)));
            // Beyond the last pixel the gradient is zero: any input will do that is a number.
            const int pixel = min(first + (lane & 7) + (lane >> 3 & 1) * 8, pixels - 1), row = pixel / geometry.ow;
            const int corner = row * wide + pixel - row * geometry.ow;
#pragma unroll
            for (int tap = 0; tap < 9; tap++) {
                u32 b[4];
                transposed_matrices(b, from + piece_at<C>(corner + tap / 3 * wide + tap % 3, 2 * in + (lane >> 4)));
                multiply(sums[tap][0], a, b[0], b[1]);
                multiply(sums[tap][1], a, b[2], b[3]);
            }
        }
        __syncthreads();
    }
    wait<0>();
    __syncthreads();
    // Every warp leaves its sums in the order of its registers; those of the warps that took turns are added in a fixed order.
    float* parts = (float*)memory;
#pragma unroll
    for (int i = 0; i < 72; i++) parts[(warp * 72 + i) * 32 + lane] = sums[i / 8][i / 4 % 2][i % 4];
    __syncthreads();
    partial += (u64)blockIdx.x * C * 9 * C;
    for (int at = threadIdx.x; at < KINDS * 72 * 32; at += THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int turn = 0; turn < DOWN; turn++) sum += parts[turn * KINDS * 72 * 32 + at];
        const int from = at % 32, i = at / 32 % 72, kind = at / (32 * 72);
        const int o = kind / PARTS * 16 + from / 4 + (i & 2) * 4, c = kind % PARTS * 16 + (i / 4 & 1) * 8 + from % 4 * 2 + (i & 1);
        partial[(o * 9 + i / 8) * C + c] = sum;
    }
}

#define WGRAD_ROWS(NAME, C)                                                                                            \
    extern "C" __global__ void __launch_bounds__(C == 16 ? 256 : 512)                                                  \
        NAME(ConvGeometry geometry, const u16* x, const u16* dy, float* partial, int stretch, u64 slab) {              \
        await_previous();                                                                                              \
        wgrad_rows<C>(geometry, mine(x, slab), mine(dy, slab), mine(partial, slab), stretch);                          \
    }

WGRAD_ROWS(wgrad_rows_16, 16)
WGRAD_ROWS(wgrad_rows_32, 32)

#endif
