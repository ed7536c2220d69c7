// Batch norm with what follows it: the sum with a shortcut and the ReLU. Forward: moments (unless the convolution
// computed them), then one pass. Backward: one pass for the two sums of each channel, one for the gradients.
//
// A thread keeps its eight channels and loops over rows. All sums have an order fixed by the shape.

// Blocks per multiprocessor. The compiler then has registers for several loads in flight: left alone it saves registers for
// more blocks, keeps two loads in flight, and reaches half of the bandwidth.
#define BLOCKS (BF16 ? 2 : 1)

// Some channels, one after the other: whole groups of eight.
struct Channels { int first, count; };

// The second dimension of the grid divides channels, eight at a time; a thread has one group of eight.
struct Share {
    Channels of;
    int per, first, group, lane, lanes;
    bool idle;
    __device__ Share(Channels of) : of(of) {
        per = (of.count / 8 + gridDim.y - 1) / gridDim.y;
        first = of.first / 8 + blockIdx.y * per;
        lanes = 256 / per;
        lane = threadIdx.x / per;
        group = first + threadIdx.x - lane * per;
        idle = lane >= lanes || group >= (of.first + of.count) / 8;
    }
    __device__ Share(int pitch) : Share(Channels{0, pitch}) {}
};

// The tensors that have the channels of a batch norm's input, eight at a time: one tensor, or the parts of a concatenation.
struct Parts {
    int count, only_pitch; // one tensor is looked up here: the tables below are read only if there are more
    T* only_at;
    u64 adds;              // for gradients: a bit for each part, set if earlier contributions are there
    int first[64];         // the first group of eight channels of each part
    int pitch[64];
    T* at[64];
};

// Where the eight channels of a group are: in row r at `at + r · pitch`.
struct Place {
    T* at;
    int pitch;
    bool add;
    __device__ __forceinline__ Place(const Parts& parts, int group, u64 slab) {
        if (parts.count == 1) {
            at = parts.only_at ? mine(parts.only_at, slab) + group * 8 : nullptr;
            pitch = parts.only_pitch;
            add = parts.adds;
            return;
        }
        int i = 0;
        while (i + 1 < parts.count && parts.first[i + 1] <= group) i++;
        at = parts.at[i] ? mine(parts.at[i], slab) + (group - parts.first[i]) * 8 : nullptr;
        pitch = parts.pitch[i];
        add = parts.adds >> i & 1;
    }
    __device__ __forceinline__ T* row(int row) const { return at + (u64)row * pitch; }
};

// Sums the results of this block's threads and stores them; see `add_rows`.
__device__ __forceinline__ void store_sums(const Share& share, Sum (&first)[8], Sum (&second)[8], const Norm& norm) {
    extern __shared__ __align__(16) char room[];
    Sum(*sums)[17] = (Sum(*)[17])room;
    const int thread = threadIdx.x, channels = 8 * share.per;
    // Within a warp first, if its lanes have the same channels at equal distances.
    const bool even = 32 % share.per == 0;
    if (even)
        for (int apart = share.per; apart < 32; apart *= 2)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                first[i] += __shfl_xor_sync(0xffffffffu, first[i], apart);
                second[i] += __shfl_xor_sync(0xffffffffu, second[i], apart);
            }
    const int lanes = even ? 8 : share.lanes, apart = even ? 32 : share.per;
    // Its memory may still be read.
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sums[thread][i] = first[i];
        sums[thread][8 + i] = second[i];
    }
    __syncthreads();
    const int width = share.of.count, begin = 8 * share.first - share.of.first;
    Sum* row = norm.partial + (u64)blockIdx.x * 2 * width;
    for (int at = thread; at < 2 * channels; at += 256) {
        const int k = at / channels, c = at - k * channels;
        if (begin + c >= width) continue;
        Sum sum = 0;
        for (int lane = 0; lane < lanes; lane++) sum += sums[lane * apart + c / 8][k * 8 + c % 8];
        row[k * width + begin + c] = sum;
    }
}

// Adds the rows of sums of the channels that are `summed`, and returns what `settle` makes of the sums of every channel, in shared
// memory (`Pass::settle_in` in pass.rs has its size).
template <class Factor, class Settle> __device__ __forceinline__ const Factor* settled(const Norm& norm, Channels summed, Settle settle) {
    extern __shared__ __align__(16) char room[];
    const int width = summed.count;
    double* totals = (double*)room;
    Sum* parts = (Sum*)(totals + 2 * width);
    Factor* factors = (Factor*)(parts + 1024);
    add_rows(norm.partial, norm.rows, width, 0, width, parts, totals);
    for (int c = threadIdx.x; c < norm.pitch; c += 256) {
        const int at = c - summed.first;
        const bool has = at >= 0 && at < width;
        factors[c] = settle(c, has ? totals[at] : 0.0, has ? totals[width + at] : 0.0);
    }
    __syncthreads();
    return factors;
}

// The same for the eight channels of this block alone.
template <class Settle> __device__ __forceinline__ void settle_eight(const Norm& norm, Channels summed, Settle settle) {
    __shared__ Sum parts[1024];
    __shared__ double totals[16];
    const int at = 8 * (int)blockIdx.x - summed.first;
    if (at >= 0 && at < summed.count) add_rows(norm.partial, norm.rows, summed.count, at, 8, parts, totals);
    if (threadIdx.x < 8) settle(8 * blockIdx.x + threadIdx.x, totals[threadIdx.x], totals[8 + threadIdx.x]);
}

// What is known of the moments: another batch norm has those of all channels but the `unknown` ones in its record, in the same
// order. It read the same tensors, without those between.
struct Known {
    const float* record;
    int pitch;
    Channels unknown;
    // Where in the record a channel is; -1 if it is not there.
    __device__ __forceinline__ int place(int c) const {
        return c < unknown.first ? c : c < unknown.first + unknown.count ? -1 : c - unknown.count;
    }
};

// The forward factors of a channel from its sums. The variance is a difference: sums of f32 (with bf16) are off by about
// (mean / deviation)² · 1e-6 of it. bf16 itself has lost more of such values.
__device__ __forceinline__ Factor settle_moments(const Norm& norm, const Known& known, int c, double sum, double squares, bool keeps) {
    const int place = known.place(c);
    if (place >= 0)
        return settle(norm, c, known.record[MEAN * known.pitch + place], known.record[VARIANCE * known.pitch + place], keeps);
    const double part = 1.0 / norm.count, mean = sum * part, variance = squares * part - mean * mean;
    return settle(norm, c, mean, variance < 0.0 ? 0.0 : variance, keeps);
}

// Completes the record, for layers with so many sums that not every block of the reader should add them.
extern "C" __global__ void __launch_bounds__(256) norm_settle(Known known, Norm norm, u64 slab) {
    await_previous();
    norm = mine(norm, slab);
    known.record = mine(known.record, slab);
    settle_eight(norm, known.unknown,
                 [&](int c, double sum, double squares) { settle_moments(norm, known, c, sum, squares, true); });
}

// The same for the backward pass.
extern "C" __global__ void __launch_bounds__(256) norm_settle_flow(Sums of, Norm norm, u64 slab) {
    await_previous();
    norm = mine(norm, slab);
    of = mine(of, slab);
    settle_eight(norm, {0, norm.pitch}, [&](int c, double sum, double along) { settle_flow(norm, of, c, sum, along, true); });
}

// Adds stored values to their moments.
__device__ __forceinline__ void add_values(const float (&v)[8], Sum (&sum)[8], Sum (&squares)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum[i] += v[i];
        squares[i] += (Sum)v[i] * v[i];
    }
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    norm_moments(const __grid_constant__ Parts x, int rows, Known known, Norm norm, u64 slab) {
    await_previous();
    constexpr int U = BF16 ? 8 : 4;
    norm = mine(norm, slab);
    const Share share(known.unknown);
    Sum sum[8] = {}, squares[8] = {};
    if (!share.idle) {
        const Place place(x, share.group, slab);
        const int stride = gridDim.x * share.lanes;
        for (int first = blockIdx.x * share.lanes + share.lane; first < rows; first += U * stride) {
            // Rows beyond the last are zero: they add nothing, and need no branch, which would end the loads in flight.
            Raw raw[U] = {};
#pragma unroll
            for (int u = 0; u < U; u++)
                if (first + u * stride < rows) raw[u] = *(const Raw*)place.row(first + u * stride);
#pragma unroll
            for (int u = 0; u < U; u++) {
                float v[8];
                unpack(raw[u], v);
                add_values(v, sum, squares);
            }
        }
    }
    store_sums(share, sum, squares, norm);
}

// a + b, then ReLU if `relu`, and the moments of the stored result for the batch norm that reads it.
extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    add_moments(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ y, int rows, int relu, Norm norm, u64 slab) {
    await_previous();
    constexpr int U = 4;
    a = mine(a, slab); b = mine(b, slab); y = mine(y, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    const float least = relu ? 0.0f : __uint_as_float(0xff800000u);
    Sum sum[8] = {}, squares[8] = {};
    if (!share.idle) {
        const int stride = gridDim.x * share.lanes;
        auto place = [&](int row) { return (u64)row * norm.pitch + share.group * 8; };
        auto add = [&](int row, const Raw& one, const Raw& other) {
            float v[8], w[8];
            unpack(one, v);
            unpack(other, w);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] += w[i];
                v[i] = rounded(v[i] < least ? least : v[i], y);
            }
            store8(y + place(row), v);
            add_values(v, sum, squares);
        };
        int row = blockIdx.x * share.lanes + share.lane;
        for (; row + (U - 1) * stride < rows; row += U * stride) {
            Raw one[U], other[U];
#pragma unroll
            for (int u = 0; u < U; u++) {
                one[u] = *(const Raw*)(a + place(row + u * stride));
                other[u] = *(const Raw*)(b + place(row + u * stride));
            }
#pragma unroll
            for (int u = 0; u < U; u++) add(row + u * stride, one[u], other[u]);
        }
        for (; row < rows; row += stride) add(row, *(const Raw*)(a + place(row)), *(const Raw*)(b + place(row)));
    }
    store_sums(share, sum, squares, norm);
}

// Evaluation normalises with the running statistics.
extern "C" __global__ void __launch_bounds__(256) norm_fold(Norm norm, u64 slab) {
    await_previous();
    norm = mine(norm, slab);
    for (int c = threadIdx.x; c < norm.pitch; c += 256) {
        bool real = c < norm.channels;
        float mean = real ? norm.running_mean[c] : 0.0f;
        float deviation = real ? 1.0f / sqrtf(norm.running_variance[c] + (float)norm.epsilon) : 0.0f;
        float scale = real ? norm.weight[c] * deviation : 0.0f;
        norm.record[MEAN * norm.pitch + c] = mean;
        norm.record[DEVIATION * norm.pitch + c] = deviation;
        norm.record[SCALE * norm.pitch + c] = scale;
    }
}

// The second operand of a sum: as wide as the first, or with fewer channels, which then begin at `before` (a multiple of
// eight); the rest is zero.
struct Other {
    int pitch, channels, before;
    // Whether it has any of the eight channels of a group, and where.
    __device__ __forceinline__ bool has(int group, u64 row, u64& at) const {
        const int c = group * 8 - before;
        at = row * pitch + c;
        return c >= 0 && c < channels;
    }
};

__device__ __forceinline__ void row_of(const Norm& norm, int which, int group, float (&v)[8]) {
    load8(norm.record + which * norm.pitch + group * 8, v);
}

// The forward factors of a thread's eight channels. The first block completes the record, if it is not complete.
__device__ __forceinline__ Rows forward_factors(const Norm& norm, const Known& known, const Share& share) {
    if (norm.rows == 0) return share.idle ? Rows{} : rows_of(norm, share.group);
    const Factor* factors = settled<Factor>(norm, known.unknown, [&](int c, double sum, double squares) {
        return settle_moments(norm, known, c, sum, squares, blockIdx.x == 0 && blockIdx.y == 0);
    });
    Rows of = {};
    if (share.idle) return of;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = share.group * 8 + i;
        of.mean[i] = factors[c].mean;
        of.scale[i] = factors[c].scale;
        of.bias[i] = c < norm.channels ? norm.bias[c] : 0.0f;
    }
    return of;
}

// What a thread reads of several rows: the input, and the second operand of the sum. The first rows are fetched before the
// factors are known.
struct Inputs {
    static constexpr int U = 4;
    Raw value[U], other[U];
    __device__ __forceinline__ void fetch(const Place& from, const T* others, const Other& of, const Share& share, int first, int stride, int rows) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int row = min(first + u * stride, rows - 1);
            u64 there;
            value[u] = *(const Raw*)from.row(row);
            if (others && of.has(share.group, row, there)) other[u] = *(const Raw*)(others + there);
        }
    }
};

// The normalised rows of a thread, with the sum and the ReLU: `each(row, v)`.
template <class Each>
__device__ __forceinline__ void each_result(const Parts& y, const T* other, const Other& of, int rows, int relu, const Known& known,
                                            const Norm& norm, const Share& share, u64 slab, Each each) {
    const int stride = gridDim.x * share.lanes;
    int first = blockIdx.x * share.lanes + share.lane;
    const Place from(y, share.group, slab);
    u64 there;
    const bool adds = other && !share.idle && of.has(share.group, 0, there);
    Inputs inputs;
    if (!share.idle && first < rows) inputs.fetch(from, other, of, share, first, stride, rows);
    const Rows factors = forward_factors(norm, known, share);
    if (share.idle) return;
    while (first < rows) {
#pragma unroll
        for (int u = 0; u < Inputs::U; u++) {
            if (first + u * stride >= rows) break;
            float v[8], extra[8] = {};
            unpack(inputs.value[u], v);
            if (adds) unpack(inputs.other[u], extra);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                // The mean is subtracted first: a combined scale and shift would cancel.
                v[i] = (v[i] - factors.mean[i]) * factors.scale[i] + factors.bias[i] + extra[i];
                if (relu) v[i] = v[i] < 0.0f ? 0.0f : v[i];
            }
            each(first + u * stride, v);
        }
        first += Inputs::U * stride;
        if (first < rows) inputs.fetch(from, other, of, share, first, stride, rows);
    }
}

// Stores eight results, and their bits if the backward pass reads them.
__device__ __forceinline__ void store_result(T* out, u8* positive, u64 at, const float (&v)[8]) {
    store8(out + at, v);
    if (positive) positive[at / 8] = positive_bits(v);
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    norm_forward(const __grid_constant__ Parts y, const T* __restrict__ other, Other of, T* __restrict__ out,
                 u8* __restrict__ positive, int rows, int relu, Known known, Norm norm, u64 slab) {
    await_previous();
    other = mine(other, slab); out = mine(out, slab); positive = mine(positive, slab);
    norm = mine(norm, slab);
    known.record = mine(known.record, slab);
    const Share share(norm.pitch);
    each_result(y, other, of, rows, relu, known, norm, share, slab, [&](int row, const float (&v)[8]) {
        store_result(out, positive, (u64)row * norm.pitch + share.group * 8, v);
    });
}

// The same, and the moments of the stored result for the batch norm `next` that reads it.
extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    norm_forward_moments(const __grid_constant__ Parts y, const T* __restrict__ other, Other of, T* __restrict__ out,
                         u8* __restrict__ positive, int rows, int relu, Known known, Norm norm, Norm next, u64 slab) {
    await_previous();
    other = mine(other, slab); out = mine(out, slab); positive = mine(positive, slab);
    norm = mine(norm, slab); next = mine(next, slab);
    known.record = mine(known.record, slab);
    const Share share(norm.pitch);
    Sum sum[8] = {}, squares[8] = {};
    each_result(y, other, of, rows, relu, known, norm, share, slab, [&](int row, float (&v)[8]) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = rounded(v[i], out);
        store_result(out, positive, (u64)row * norm.pitch + share.group * 8, v);
        add_values(v, sum, squares);
    });
    store_sums(share, sum, squares, next);
}

// The gradient where the ReLU was positive.
__device__ __forceinline__ void apply_mask(int mask, float (&g)[8], const float (&y)[8], const Rows& of, u32 positive) {
    if (mask == MASK_BY_VALUE) {
#pragma unroll
        for (int i = 0; i < 8; i++) g[i] = (y[i] - of.mean[i]) * of.scale[i] + of.bias[i] > 0.0f ? g[i] : 0.0f;
    } else if (mask == MASK_BY_BITS) {
        keep_positive(g, positive);
    }
}

// What a thread reads of several rows backward: gradient, value, the bits if they mask, and what is added to.
struct Flows {
    static constexpr int U = BF16 ? 4 : 2;
    Raw flow[U], value[U], old[U];
    u32 positive[U];
    __device__ __forceinline__ void fetch(const T* flows, const Place& y, const Sums& of, const Place& dx, int pitch, const Share& share,
                                          int first, int stride, int rows) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int row = min(first + u * stride, rows - 1);
            const u64 at = (u64)row * pitch + share.group * 8;
            flow[u] = *(const Raw*)(flows + at);
            value[u] = *(const Raw*)y.row(row);
            if (of.mask == MASK_BY_BITS) positive[u] = of.positive[at / 8];
            if (dx.add) old[u] = *(const Raw*)dx.row(row);
        }
    }
};

// The two sums of each channel, from which the gradients of shift and scale are made, and the factors of the next pass.
extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    norm_reduce(const T* __restrict__ flow, const __grid_constant__ Parts from, int rows, Sums of, Norm norm, u64 slab) {
    await_previous();
    flow = mine(flow, slab);
    of = mine(of, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    Sum sum[8] = {}, along[8] = {};
    if (!share.idle) {
        const Place y(from, share.group, slab);
        const Rows factors = rows_of(norm, share.group);
        const int stride = gridDim.x * share.lanes;
        for (int first = blockIdx.x * share.lanes + share.lane; first < rows; first += Flows::U * stride) {
            Flows flows;
            flows.fetch(flow, y, of, y, norm.pitch, share, first, stride, rows);
#pragma unroll
            for (int u = 0; u < Flows::U; u++) {
                if (first + u * stride >= rows) break;
                float g[8], v[8];
                unpack(flows.flow[u], g);
                unpack(flows.value[u], v);
                apply_mask(of.mask, g, v, factors, flows.positive[u]);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    sum[i] += g[i];
                    along[i] += (Sum)g[i] * (Sum)(v[i] - factors.mean[i]);
                }
            }
        }
    }
    store_sums(share, sum, along, norm);
}

// The backward factors of a thread's eight channels. The first block completes the record, if it is not complete.
struct FlowFactors { float of_value[8], constant[8]; };

__device__ __forceinline__ FlowFactors flow_factors(const Norm& norm, const Sums& of, const Share& share) {
    FlowFactors factors = {};
    if (norm.rows > 0) {
        const FlowFactor* settled_factors = settled<FlowFactor>(norm, {0, norm.pitch}, [&](int c, double sum, double along) {
            return settle_flow(norm, of, c, sum, along, blockIdx.x == 0);
        });
        if (share.idle) return factors;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const FlowFactor factor = settled_factors[share.group * 8 + i];
            factors.of_value[i] = factor.of_value;
            factors.constant[i] = factor.constant;
        }
    } else if (!share.idle) {
        row_of(norm, OF_VALUE, share.group, factors.of_value);
        row_of(norm, CONSTANT, share.group, factors.constant);
    }
    return factors;
}

// The gradients of the input and of the second operand, which may have the buffer of `flow`: a thread reads what it later
// overwrites.
extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    norm_backward(const T* flow, const __grid_constant__ Parts from, int rows, Sums of, const __grid_constant__ Parts to, T* dother,
                  Other other, int add_other, Norm norm, u64 slab) {
    await_previous();
    flow = mine(flow, slab); dother = mine(dother, slab);
    of = mine(of, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    const int stride = gridDim.x * share.lanes;
    int first = blockIdx.x * share.lanes + share.lane;
    const Place y(from, share.group, slab), dx(to, share.group, slab);
    // The first rows are fetched before the factors are known.
    Flows flows;
    if (!share.idle && first < rows) flows.fetch(flow, y, of, dx, norm.pitch, share, first, stride, rows);
    const FlowFactors more = flow_factors(norm, of, share);
    if (share.idle) return;
    const Rows factors = rows_of(norm, share.group);
    while (first < rows) {
#pragma unroll
        for (int u = 0; u < Flows::U; u++) {
            const int row = first + u * stride;
            if (row >= rows) break;
            float g[8], v[8], d[8] = {};
            unpack(flows.flow[u], g);
            unpack(flows.value[u], v);
            apply_mask(of.mask, g, v, factors, flows.positive[u]);
            if (dx.at) {
                if (dx.add) unpack(flows.old[u], d);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    d[i] += factors.scale[i] * g[i] + more.of_value[i] * (v[i] - factors.mean[i]) + more.constant[i];
                store8(dx.row(row), d);
            }
            u64 there;
            if (dother && other.has(share.group, row, there)) {
                // Channels beyond are padding, which stays zero.
#pragma unroll
                for (int i = 0; i < 8; i++) g[i] = share.group * 8 + i < other.before + other.channels ? g[i] : 0.0f;
                flow8(dother + there, g, add_other);
            }
        }
        first += Flows::U * stride;
        if (first < rows) flows.fetch(flow, y, of, dx, norm.pitch, share, first, stride, rows);
    }
}
