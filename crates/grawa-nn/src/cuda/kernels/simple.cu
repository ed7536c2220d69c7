// The other operations on activations: sums, ReLU, pooling, copies of channels, dropout, the loss. A thread writes
// eight channels of a pixel, or one where channels are shifted. Each thread gathers its inputs, so the order of sums
// is fixed.

#define EACH(at, count) for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < (count); at += (u64)gridDim.x * blockDim.x)

// a + b, or a alone; then ReLU if `relu`.
extern "C" __global__ void __launch_bounds__(256) add_forward(const T* a, const T* b, T* y, u64 eights, int relu, u64 slab) {
    await_previous();
    a = mine(a, slab); b = mine(b, slab); y = mine(y, slab);
    EACH(at, eights) {
        float v[8], w[8];
        load8(a + at * 8, v);
        if (b) {
            load8(b + at * 8, w);
            for (int i = 0; i < 8; i++) v[i] += w[i];
        }
        if (relu) for (int i = 0; i < 8; i++) v[i] = v[i] < 0.0f ? 0.0f : v[i];
        store8(y + at * 8, v);
    }
}

// Copies the gradient where the result `y` (if given) was positive, to one or two targets.
extern "C" __global__ void __launch_bounds__(256)
    add_backward(const T* flow, const T* y, T* da, int add_a, T* db, int add_b, u64 eights, u64 slab) {
    await_previous();
    flow = mine(flow, slab); y = mine(y, slab); da = mine(da, slab); db = mine(db, slab);
    EACH(at, eights) {
        float g[8], v[8];
        load8(flow + at * 8, g);
        if (y) {
            load8(y + at * 8, v);
            for (int i = 0; i < 8; i++) g[i] = v[i] > 0.0f ? g[i] : 0.0f;
        }
        float again[8];
        for (int i = 0; i < 8; i++) again[i] = g[i];
        if (da) flow8(da + at * 8, g, add_a);
        if (db) flow8(db + at * 8, again, add_b);
    }
}

// Windows of `kernel` pixels, `stride` apart, with padding `pad`; from h × w to oh × ow.
struct Pool { int n, h, w, oh, ow, pitch, kernel, stride, pad, largest; };

__device__ __forceinline__ bool beats(float v, float best) { return v > best || (v != v && best == best); }

// The pixel and the group of eight channels of a thread. A tensor has fewer than 2³² groups (64 GB), and divisions of 32 bits take
// a fraction of the time.
struct Pixel {
    int n, y, x, group;
    __device__ __forceinline__ Pixel(u64 at, int groups, int h, int w) {
        u32 rest = (u32)at;
        group = rest % groups; rest /= groups;
        x = rest % w; rest /= w;
        y = rest % h;
        n = rest / h;
    }
};

// A window of the input.
struct Window {
    const Pool& pool;
    int n, top, left, group;
    __device__ __forceinline__ Window(const Pool& pool, const Pixel& to)
        : pool(pool), n(to.n), top(to.y * pool.stride - pool.pad), left(to.x * pool.stride - pool.pad), group(to.group) {}
    __device__ __forceinline__ bool has(int k, int l) const {
        return top + k >= 0 && top + k < pool.h && left + l >= 0 && left + l < pool.w;
    }
    __device__ __forceinline__ const T* at(const T* x, int k, int l) const {
        return x + (((u64)n * pool.h + top + k) * pool.w + left + l) * pool.pitch + group * 8;
    }
};

#if BF16
// Ones in the halves where a number is larger, or is equal. Compared as f16, which orders bits like bf16 below 2.6e36.
__device__ __forceinline__ u32 larger(u32 a, u32 b) {
    u32 mask;
    asm("set.gt.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
    return mask;
}
__device__ __forceinline__ u32 equal(u32 a, u32 b) {
    u32 mask;
    asm("set.eq.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
    return mask;
}

// The maximum of a small window and its place, two channels at a time. The whole window is fetched first. NaN wins.
template <int KERNEL> __device__ __forceinline__ void largest_of(const Window& window, const u16* x, uint4& value, uint4& place) {
    uint4 raw[KERNEL * KERNEL];
#pragma unroll
    for (int k = 0; k < KERNEL * KERNEL; k++)
        if (window.has(k / KERNEL, k % KERNEL)) raw[k] = *(const uint4*)window.at(x, k / KERNEL, k % KERNEL);
    u32 best[4], result[4], where[4] = {};
    bool first = true;
#pragma unroll
    for (int k = 0; k < KERNEL * KERNEL; k++) {
        if (!window.has(k / KERNEL, k % KERNEL)) continue;
        const u32 v[4] = {raw[k].x, raw[k].y, raw[k].z, raw[k].w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 mask = first ? ~0u : larger(v[i], best[i]);
            best[i] = (v[i] & mask) | (best[i] & ~mask);
            where[i] = (k * 0x10001u & mask) | (where[i] & ~mask);
            if (first) result[i] = v[i];
            else asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(result[i]) : "r"(v[i]));
        }
        first = false;
    }
    value = make_uint4(result[0], result[1], result[2], result[3]);
    place = make_uint4(where[0], where[1], where[2], where[3]);
}
#endif

#if BF16
// The maxima of three pixels of a row of windows, two channels at a time, and their places; see `largest_of`.
struct Row {
    u32 best[4], result[4], where[4];
    bool there = false;

    __device__ __forceinline__ void take(const u32 (&v)[4], const u32 (&most)[4], const u32 (&place)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 mask = there ? larger(v[i], best[i]) : ~0u;
            best[i] = (v[i] & mask) | (best[i] & ~mask);
            where[i] = (place[i] & mask) | (where[i] & ~mask);
            if (there) asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(result[i]) : "r"(most[i]));
            else result[i] = most[i];
        }
        there = true;
    }
    // Another row of the same window, the k-th.
    __device__ __forceinline__ void take(const Row& row, int k) {
        if (!row.there) return;
        u32 places[4];
#pragma unroll
        for (int i = 0; i < 4; i++) places[i] = row.where[i] + 3 * k * 0x10001u;
        take(row.best, row.result, places);
    }
};

// The maxima of windows of 3 × 3, two apart. A thread goes down a few windows: then it reduces every row of pixels once for the two
// windows that share it, and divides once.
__device__ __forceinline__ void pool_forward_strips(const Pool& pool, const u16* __restrict__ x, u16* __restrict__ y,
                                                    u16* __restrict__ chosen) {
    constexpr int ROWS = 2;
    const int groups = pool.pitch / 8, strips = (pool.oh + ROWS - 1) / ROWS;
    EACH(at, (u64)pool.n * strips * pool.ow * groups) {
        const Pixel strip(at, groups, strips, pool.ow);
        const int first = strip.y * ROWS, top = 2 * first - pool.pad, left = 2 * strip.x - pool.pad;
        uint4 raw[2 * ROWS + 1][3];
        auto has = [&](int row, int l) { return top + row >= 0 && top + row < pool.h && left + l >= 0 && left + l < pool.w; };
        auto fetch = [&](int row) {
            const u16* from = x + (((u64)strip.n * pool.h + top + row) * pool.w + left) * pool.pitch + strip.group * 8;
#pragma unroll
            for (int l = 0; l < 3; l++)
                if (has(row, l)) raw[row][l] = *(const uint4*)(from + l * pool.pitch);
        };
        auto reduced = [&](int row) {
            Row of;
#pragma unroll
            for (int l = 0; l < 3; l++) {
                if (!has(row, l)) continue;
                const u32 v[4] = {raw[row][l].x, raw[row][l].y, raw[row][l].z, raw[row][l].w}, place = l * 0x10001u;
                of.take(v, v, {place, place, place, place});
            }
            return of;
        };
        // Fetched early, because memory is slow.
#pragma unroll
        for (int row = 0; row < 3; row++) fetch(row);
        Row window = reduced(0);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r + 1 < ROWS) {
                fetch(2 * r + 3);
                fetch(2 * r + 4);
            }
            if (first + r >= pool.oh) break;
            const Row last = reduced(2 * r + 2);
            window.take(reduced(2 * r + 1), 1);
            window.take(last, 2);
            const u64 to = (((u64)strip.n * pool.oh + first + r) * pool.ow + strip.x) * pool.pitch + strip.group * 8;
            *(uint4*)(y + to) = make_uint4(window.result[0], window.result[1], window.result[2], window.result[3]);
            if (chosen) *(uint4*)(chosen + to) = make_uint4(window.where[0], window.where[1], window.where[2], window.where[3]);
            window = last;
        }
    }
}
#endif

// `chosen`, if given, records the place of the maximum in its window: the first of equal values.
extern "C" __global__ void __launch_bounds__(256, 2) pool_forward(Pool pool, const T* x, T* y, u16* chosen, u64 slab) {
    await_previous();
    x = mine(x, slab); y = mine(y, slab); chosen = mine(chosen, slab);
#if BF16
    if (pool.largest && pool.kernel == 3 && pool.stride == 2) return pool_forward_strips(pool, x, y, chosen);
#endif
    const int groups = pool.pitch / 8;
    EACH(at, (u64)pool.n * pool.oh * pool.ow * groups) {
        const Window window(pool, Pixel(at, groups, pool.oh, pool.ow));
#if BF16
        if (pool.largest && (pool.kernel == 2 || pool.kernel == 3)) {
            uint4 value, place;
            if (pool.kernel == 2) largest_of<2>(window, x, value, place);
            else largest_of<3>(window, x, value, place);
            *(uint4*)(y + at * 8) = value;
            if (chosen) *(uint4*)(chosen + at * 8) = place;
            continue;
        }
#endif
        float out[8] = {};
        u32 place[8] = {};
        int seen = 0;
        for (int k = 0; k < pool.kernel; k++)
            for (int l = 0; l < pool.kernel; l++) {
                if (!window.has(k, l)) continue;
                float v[8];
                load8(window.at(x, k, l), v);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const bool larger = seen == 0 || beats(v[i], out[i]);
                    out[i] = pool.largest ? (larger ? v[i] : out[i]) : out[i] + v[i];
                    place[i] = larger ? k * pool.kernel + l : place[i];
                }
                seen++;
            }
        if (!pool.largest) for (int i = 0; i < 8; i++) out[i] /= (float)seen;
        store8(y + at * 8, out);
        if (chosen)
            *(uint4*)(chosen + at * 8) = make_uint4(place[0] | place[1] << 16, place[2] | place[3] << 16,
                                                    place[4] | place[5] << 16, place[6] | place[7] << 16);
    }
}

// The gradient of a window's maximum in the channels where it was in row k and column l of the window, elsewhere zero.
__device__ __forceinline__ void flow_of(float (&g8)[8], const Raw& flow, const uint4& places, int kernel, int k, int l) {
    const u32 place[4] = {places.x, places.y, places.z, places.w}, here = k * kernel + l;
#if BF16
    // Two places at a time. Below 1024 they are numbers as f16, all different.
    if (kernel < 32) {
        const u32 both = here * 0x10001u;
        unpack(make_uint4(flow.x & equal(place[0], both), flow.y & equal(place[1], both), flow.z & equal(place[2], both),
                          flow.w & equal(place[3], both)), g8);
        return;
    }
#endif
    unpack(flow, g8);
#pragma unroll
    for (int i = 0; i < 8; i++) g8[i] = (place[i / 2] >> (i % 2 * 16) & 0xffffu) == here ? g8[i] : 0.0f;
}

// A window of 3 × 3: its gradient, and the places of its maxima.
struct Chosen {
    Raw flow;
    uint4 places;
    __device__ __forceinline__ void add_to(float (&d)[8], int k, int l) const {
        float g8[8];
        flow_of(g8, flow, places, 3, k, l);
#pragma unroll
        for (int i = 0; i < 8; i++) d[i] += g8[i];
    }
};

// The maxima of windows of 3 × 3, two apart, with padding 1, backward. The 2 × 2 pixels at (2y, 2x) are in no windows but those at
// (y, x), (y, x + 1), (y + 1, x) and (y + 1, x + 1). A thread goes down a few such squares: then it loads a window twice instead of
// up to nine times, and divides once.
__device__ __forceinline__ void pool_backward_squares(const Pool& pool, const u16* __restrict__ chosen, const T* __restrict__ flow,
                                                      T* __restrict__ dx) {
    constexpr int ROWS = 4;
    const int groups = pool.pitch / 8, wide = (pool.w + 1) / 2, strips = ((pool.h + 1) / 2 + ROWS - 1) / ROWS;
    EACH(at, (u64)pool.n * strips * wide * groups) {
        const Pixel strip(at, groups, strips, wide);
        const int top = strip.y * ROWS;
        const u64 window = (((u64)strip.n * pool.oh + top) * pool.ow + strip.x) * pool.pitch + strip.group * 8;
        const T* flows = flow + window;
        const u16* places = chosen + window;
        T* to = dx + (((u64)strip.n * pool.h + 2 * top) * pool.w + 2 * strip.x) * pool.pitch + strip.group * 8;
        const bool right = strip.x + 1 < pool.ow, both = 2 * strip.x + 1 < pool.w;
        // Two windows side by side. Outside there are none: their gradient is zero.
        auto fetch = [&](int row, Chosen (&windows)[2]) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                windows[k] = {};
                if (top + row < pool.oh && (k == 0 || right))
                    windows[k] = {*(const Raw*)(flows + k * pool.pitch), *(const uint4*)(places + k * pool.pitch)};
            }
            flows += pool.ow * pool.pitch;
            places += pool.ow * pool.pitch;
        };
        Chosen windows[ROWS + 1][2];
        fetch(0, windows[0]);
        fetch(1, windows[1]);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            // Fetched early, because memory is slow.
            if (row + 1 < ROWS) fetch(row + 2, windows[row + 2]);
            const Chosen(&upper)[2] = windows[row], (&lower)[2] = windows[row + 1];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (2 * (top + row) + k >= pool.h) break;
                float left[8], d[8];
                flow_of(left, upper[0].flow, upper[0].places, 3, k + 1, 1);
                if (k == 1) lower[0].add_to(left, 0, 1);
                store8(to, left);
                flow_of(d, upper[0].flow, upper[0].places, 3, k + 1, 2);
                upper[1].add_to(d, k + 1, 0);
                if (k == 1) {
                    lower[0].add_to(d, 0, 2);
                    lower[1].add_to(d, 0, 0);
                }
                if (both) store8(to + pool.pitch, d);
                to += pool.w * pool.pitch;
            }
        }
    }
}

// Each input pixel visits every window that contains it.
extern "C" __global__ void __launch_bounds__(256, BF16 ? 3 : 2)
    pool_backward(Pool pool, const u16* __restrict__ chosen, const T* __restrict__ flow, T* dx, int add, u64 slab) {
    await_previous();
    chosen = mine(chosen, slab); flow = mine(flow, slab); dx = mine(dx, slab);
    if (pool.largest && pool.kernel == 3 && pool.stride == 2 && pool.pad == 1 && !add)
        return pool_backward_squares(pool, chosen, flow, dx);
    const int groups = pool.pitch / 8;
    EACH(at, (u64)pool.n * pool.h * pool.w * groups) {
        const Pixel from(at, groups, pool.h, pool.w);
        const int iy = from.y, ix = from.x;
        float d[8] = {};
        const int oy0 = max((iy + pool.pad - pool.kernel + pool.stride) / pool.stride, 0);
        const int ox0 = max((ix + pool.pad - pool.kernel + pool.stride) / pool.stride, 0);
        const int oy1 = min((iy + pool.pad) / pool.stride, pool.oh - 1), ox1 = min((ix + pool.pad) / pool.stride, pool.ow - 1);
        auto window = [&](int oy, int ox) { return (((u64)from.n * pool.oh + oy) * pool.ow + ox) * pool.pitch + from.group * 8; };
        auto add_window = [&](int oy, int ox, const Raw& raw, const uint4& places) {
            const int top = oy * pool.stride - pool.pad, left = ox * pool.stride - pool.pad;
            const int high = min(top + pool.kernel, pool.h) - max(top, 0), wide = min(left + pool.kernel, pool.w) - max(left, 0);
            float g8[8];
            if (pool.largest) flow_of(g8, raw, places, pool.kernel, iy - top, ix - left);
            else unpack(raw, g8);
            for (int i = 0; i < 8; i++) d[i] += pool.largest ? g8[i] : g8[i] / (float)(high * wide);
        };
        // Two windows at a time.
        for (int oy = oy0; oy <= oy1; oy++)
            for (int ox = ox0; ox <= ox1; ox += 2) {
                const bool both = ox < ox1;
                const u64 one = window(oy, ox), other = both ? window(oy, ox + 1) : one;
                const Raw raw = *(const Raw*)(flow + one), next = *(const Raw*)(flow + other);
                uint4 places = {}, next_places = {};
                if (pool.largest) {
                    places = *(const uint4*)(chosen + one);
                    next_places = *(const uint4*)(chosen + other);
                }
                add_window(oy, ox, raw, places);
                if (both) add_window(oy, ox + 1, next, next_places);
            }
        flow8(dx + at * 8, d, add);
    }
}

// The same for the maximum of 2 × 2 windows that tile the input: one thread for each window.
extern "C" __global__ void __launch_bounds__(256)
    pool_backward_tiles(Pool pool, const T* x, const T* flow, T* dx, int add, u64 slab) {
    await_previous();
    x = mine(x, slab); flow = mine(flow, slab); dx = mine(dx, slab);
    const int groups = pool.pitch / 8;
    EACH(at, (u64)pool.n * pool.oh * pool.ow * groups) {
        const Pixel to(at, groups, pool.oh, pool.ow);
        const u64 corner = (((u64)to.n * pool.h + 2 * to.y) * pool.w + 2 * to.x) * pool.pitch + to.group * 8;
        const u64 places[4] = {corner, corner + pool.pitch, corner + (u64)pool.w * pool.pitch, corner + (u64)(pool.w + 1) * pool.pitch};
        float v[4][8], g8[8];
        load8(flow + at * 8, g8);
#pragma unroll
        for (int k = 0; k < 4; k++) load8(x + places[k], v[k]);
        float d[4][8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int best = 0;
            float top = v[0][i];
#pragma unroll
            for (int k = 1; k < 4; k++)
                if (beats(v[k][i], top)) { top = v[k][i]; best = k; }
#pragma unroll
            for (int k = 0; k < 4; k++) d[k][i] = k == best ? g8[i] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < 4; k++) flow8(dx + places[k], d[k], add);
    }
}

// The mean of each channel of an image: rows × pitch to pitch.
extern "C" __global__ void __launch_bounds__(256) global_forward(const T* x, T* y, int n, int area, int pitch, u64 slab) {
    await_previous();
    x = mine(x, slab); y = mine(y, slab);
    const int groups = pitch / 8;
    EACH(at, (u64)n * groups) {
        const int image = at / groups, g = at % groups;
        float sum[8] = {};
#pragma unroll 16
        for (int row = 0; row < area; row++) {
            float v[8];
            load8(x + ((u64)image * area + row) * pitch + g * 8, v);
            for (int i = 0; i < 8; i++) sum[i] += v[i];
        }
        for (int i = 0; i < 8; i++) sum[i] /= (float)area;
        store8(y + at * 8, sum);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    global_backward(const T* flow, T* dx, int n, int area, int pitch, int add, u64 slab) {
    await_previous();
    flow = mine(flow, slab); dx = mine(dx, slab);
    const int groups = pitch / 8;
    EACH(at, (u64)n * area * groups) {
        const int g = at % groups, image = at / groups / area;
        float v[8];
        load8(flow + ((u64)image * groups + g) * 8, v);
        for (int i = 0; i < 8; i++) v[i] /= (float)area;
        flow8(dx + at * 8, v, add);
    }
}

// Channels `low`…`high` of the target are source channels shifted by `shift`, at every `mul`-th source pixel, or
// backward at every `div`-th target pixel; zero where the source has no value.
struct Move { int n, h, w, pitch, low, high, sh, sw, sp, channels, shift, mul, div; };

__device__ __forceinline__ bool source_of(const Move& move, u64 pixel, int c, u64& from) {
    const int x = pixel % move.w, y = pixel / move.w % move.h, n = pixel / move.w / move.h;
    const int sy = y * move.mul, sx = x * move.mul, sc = c + move.shift;
    from = (((u64)n * move.sh + sy / move.div) * move.sw + sx / move.div) * move.sp + sc;
    return sy % move.div == 0 && sx % move.div == 0 && sy / move.div < move.sh && sx / move.div < move.sw && sc >= 0 &&
           sc < move.channels;
}

extern "C" __global__ void __launch_bounds__(256) move_one(Move move, const T* from, T* to, int add, u64 slab) {
    await_previous();
    from = mine(from, slab); to = mine(to, slab);
    const int wide = move.high - move.low;
    EACH(at, (u64)move.n * move.h * move.w * wide) {
        const int c = move.low + at % wide;
        const u64 pixel = at / wide;
        u64 source;
        const float v = source_of(move, pixel, c, source) ? get(from + source) : 0.0f;
        T* place = to + pixel * move.pitch + c;
        put(place, add ? get(place) + v : v);
    }
}

extern "C" __global__ void __launch_bounds__(256) move_eight(Move move, const T* from, T* to, int add, u64 slab) {
    await_previous();
    from = mine(from, slab); to = mine(to, slab);
    const int wide = (move.high - move.low) / 8;
    EACH(at, (u64)move.n * move.h * move.w * wide) {
        const int c = move.low + at % wide * 8;
        const u64 pixel = at / wide;
        u64 source;
        float v[8] = {};
        if (source_of(move, pixel, c, source)) load8(from + source, v);
        flow8(to + pixel * move.pitch + c, v, add);
    }
}

// Inputs and results of a step, for each replica.
struct Controls {
    u32 seed_low, seed_high, worker, step_low, step_high;
    u32 slot;       // the index of this step among the assigned batches
    float rate;
    float prox[2];
    u32 lost;       // nonzero once a parameter was not finite
    u32 correct;    // correct predictions in the last batch
    u32 apart;      // steps from a batch of an evaluation to its next one
    double loss;    // the summed loss of the last batch
};

__device__ __forceinline__ Key key_of(const Controls* controls, u32 purpose) {
    return Key{controls->seed_low, controls->seed_high, purpose, controls->worker, controls->step_low, controls->step_high};
}

// Word i of the node's stream decides for value i, counted over images, channels, rows, columns. Forward and backward
// are the same.
extern "C" __global__ void __launch_bounds__(256)
    dropout(const Controls* controls, u32 node, u32 bound, float scale, const T* x, T* y, int n, int channels, int area,
            int pitch, int add, u64 slab) {
    await_previous();
    controls = mine(controls, slab); x = mine(x, slab); y = mine(y, slab);
    const Key key = key_of(controls, 5);
    EACH(at, (u64)n * area * pitch) {
        const int c = at % pitch, place = at / pitch % area, image = at / pitch / area;
        float v = 0.0f;
        if (c < channels) {
            const u32 i = ((u32)image * channels + c) * area + place;
            const uint4 words = philox(key, (node << 20) + i / 4);
            const u32 word = i % 4 == 0 ? words.x : i % 4 == 1 ? words.y : i % 4 == 2 ? words.z : words.w;
            v = word < bound ? 0.0f : get(x + at) * scale;
        }
        put(y + at, add ? get(y + at) + v : v);
    }
}

// Softmax cross-entropy of a batch: one warp for each example. `results` has the losses, then ones where the label was found.
extern "C" __global__ void __launch_bounds__(256)
    loss(const T* logits, const u32* labels, T* dlogits, float* results, int n, int classes, int pitch, float factor, u64 slab) {
    await_previous();
    logits = mine(logits, slab); labels = mine(labels, slab); dlogits = mine(dlogits, slab); results = mine(results, slab);
    const int lane = threadIdx.x % 32, example = blockIdx.x * 8 + threadIdx.x / 32;
    if (example >= n) return;
    const T* row = logits + (u64)example * pitch;
    float top = __uint_as_float(0xff800000u);  // −∞
    int best = 0x7fffffff;
    bool lost = false;
    for (int c = lane; c < classes; c += 32) {
        float v = get(row + c);
        lost |= v != v;
        if (v > top) { top = v; best = c; }
    }
    for (int d = 16; d > 0; d /= 2) {
        float other = __shfl_xor_sync(~0u, top, d);
        int place = __shfl_xor_sync(~0u, best, d);
        if (other > top || (other == top && place < best)) { top = other; best = place; }
    }
    lost = __any_sync(~0u, lost);
    float sum = 0.0f;
    for (int c = lane; c < classes; c += 32) sum += expf(get(row + c) - top);
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    const int label = (int)labels[example];
    if (dlogits)
        for (int c = lane; c < pitch; c += 32) {
            float p = c < classes ? expf(get(row + c) - top) / sum : 0.0f;
            put(dlogits + (u64)example * pitch + c, c < classes ? factor * (c == label ? p - 1.0f : p) : 0.0f);
        }
    if (lane == 0) {
        results[example] = logf(sum) - (get(row + label) - top);
        results[n + example] = best == label && !lost ? 1.0f : 0.0f;
    }
}

// Sums the losses in order, and sets the learning rate of the step.
extern "C" __global__ void __launch_bounds__(32)
    loss_sum(Controls* controls, const float* results, int n, double* history, const float* rates, u64 slab) {
    await_previous();
    controls = mine(controls, slab); results = mine(results, slab); history = mine(history, slab);
    double sum = 0.0;
    u32 right = 0;
    for (int i = threadIdx.x; i < n; i += 32) {
        sum += (double)results[i];
        right += results[n + i] != 0.0f;
    }
    for (int d = 16; d > 0; d /= 2) {
        sum += __shfl_xor_sync(~0u, sum, d);
        right += __shfl_xor_sync(~0u, right, d);
    }
    if (threadIdx.x != 0) return;
    controls->loss = sum;
    controls->correct = right;
    if (history) {
        history[controls->slot] = sum;
        controls->rate = rates[controls->slot];
    }
}

// The gradient of a bias: the sum of a channel's gradient over all pixels.
extern "C" __global__ void __launch_bounds__(256) channel_sums(const T* flow, float* sums, int rows, int channels, int pitch, u64 slab) {
    await_previous();
    flow = mine(flow, slab); sums = mine(sums, slab);
    __shared__ double parts[256];
    const int c = blockIdx.x;
    double sum = 0.0;
    for (int row = threadIdx.x; row < rows; row += 256) sum += (double)get(flow + (u64)row * pitch + c);
    parts[threadIdx.x] = sum;
    __syncthreads();
    for (int d = 128; d > 0; d /= 2) {
        if (threadIdx.x < d) parts[threadIdx.x] += parts[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[c] = (float)parts[0];
}

// Converts a batch from the host: images as f32 planes.
extern "C" __global__ void __launch_bounds__(256) intake(const float* images, T* x, int n, int channels, int area, int pitch, u64 slab) {
    await_previous();
    images = mine(images, slab); x = mine(x, slab);
    EACH(at, (u64)n * area * pitch) {
        const int c = at % pitch, place = at / pitch % area, image = at / pitch / area;
        put(x + at, c < channels ? images[((u64)image * channels + c) * area + place] : 0.0f);
    }
}

// Makes a batch from the data set on the GPU: bytes through a table, mirrored, padded and cropped with the draws of
// grawa-data.
struct View { int n, channels, h, w, oh, ow, pitch, pad, flip, random, row, column; };

extern "C" __global__ void __launch_bounds__(256)
    augment(View view, const Controls* controls, const u8* bytes, const u32* all_labels, const u32* order, const float* table,
            T* x, u32* labels, u64 slab, u64 order_stride, u64 label_stride) {
    await_previous();
    controls = mine(controls, slab); x = mine(x, slab); labels = mine(labels, slab);
    order += order_stride * blockIdx.z + (u64)controls->slot * view.n;
    all_labels += label_stride * blockIdx.z;  // 0 where all workers have the same labels
    const Key key = key_of(controls, 3);
    EACH(at, (u64)view.n * view.oh * view.ow) {
        const int ox = at % view.ow, oy = at / view.ow % view.oh, image = at / view.ow / view.oh;
        const u32 index = order[image];
        int row = view.row, column = view.column, flip = 0;
        if (view.random || view.flip) {
            const uint4 words = philox(key, image);
            flip = view.flip && words.x >> 31;
            if (view.random) {
                row = (u32)(((u64)words.y * (u32)(view.h + 2 * view.pad - view.oh + 1)) >> 32);
                column = (u32)(((u64)words.z * (u32)(view.w + 2 * view.pad - view.ow + 1)) >> 32);
            }
        }
        const int y = oy + row - view.pad;
        int c = ox + column - view.pad;
        if (flip) c = view.w - 1 - c;
        const bool inside = y >= 0 && y < view.h && c >= 0 && c < view.w;
        const u8* from = bytes + (u64)index * view.channels * view.h * view.w;
        for (int base = 0; base < view.pitch; base += 8) {
            float v[8];
            for (int i = 0; i < 8; i++) {
                const int channel = base + i;
                v[i] = 0.0f;
                if (channel < view.channels) {
                    const u8 byte = inside ? from[((u64)channel * view.h + y) * view.w + c] : 0;
                    v[i] = table[channel * 256 + byte];
                }
            }
            store8(x + at * view.pitch + base, v);
        }
        if (ox == 0 && oy == 0) labels[image] = all_labels[index];
    }
}

// Ends a pass of an evaluation: copies its result to the place of this pass, clears it if `clears`, and advances the position to
// the next batch. One block for each replica, so that the position is read before it changes.
extern "C" __global__ void __launch_bounds__(256)
    keep_result(Controls* controls, u32* result, u64 words, int clears, u32* kept, u32 replicas, u64 slab) {
    await_previous();
    controls = mine(controls, slab); result = mine(result, slab);
    kept += ((u64)controls->slot * replicas + blockIdx.z) * words;
    for (u64 at = threadIdx.x; at < words; at += 256) {
        kept[at] = result[at];
        if (clears) result[at] = 0;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    controls->slot++;
    const u32 before = controls->step_low;
    controls->step_low = before + controls->apart;
    if (controls->step_low < before) controls->step_high++;
}

// Adds a bias to the output of cuDNN.
extern "C" __global__ void __launch_bounds__(256) add_bias(T* y, const float* bias, int rows, int channels, int pitch, u64 slab) {
    await_previous();
    y = mine(y, slab); bias = mine(bias, slab);
    const int groups = pitch / 8;
    EACH(at, (u64)rows * groups) {
        const int c = at % groups * 8;
        float v[8];
        load8(y + at * 8, v);
        for (int i = 0; i < 8; i++) if (c + i < channels) v[i] += bias[c + i];
        store8(y + at * 8, v);
    }
}

// Waits for about twenty microseconds, for profiles.
extern "C" __global__ void pause() {
    await_previous();
    for (int i = 0; i < 20; i++) __nanosleep(1000);
}
