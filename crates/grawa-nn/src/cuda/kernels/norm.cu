// Batch norm with what follows it: the sum with a shortcut and the ReLU. Forward: moments (unless the convolution
// computed them), then one pass. Backward: one pass for the two sums of each channel, one for the gradients.
//
// A thread keeps its eight channels and loops over rows. All sums have an order fixed by the shape.

// The second dimension of the grid divides the channels from group `from` on, eight at a time; a thread has one group of eight.
struct Share {
    int per, first, group, lane, lanes;
    bool idle;
    __device__ Share(int pitch, int from = 0) {
        const int groups = pitch / 8 - from;
        per = (groups + gridDim.y - 1) / gridDim.y;
        first = from + blockIdx.y * per;
        lanes = 256 / per;
        lane = threadIdx.x / per;
        group = first + threadIdx.x - lane * per;
        idle = lane >= lanes || group >= pitch / 8;
    }
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

// Sums the results of this block's threads and stores them for the last block, which passes on the totals of each
// channel.
template <class Each> __device__ __forceinline__ void totals(const Share& share, Sum (&first)[8], Sum (&second)[8],
                                                             const Norm& norm, Each each) {
    extern __shared__ __align__(16) char room[];
    Sum(*sums)[17] = (Sum(*)[17])room;
    const int thread = threadIdx.x, channels = 8 * share.per, wide = 2 * channels;
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
    const u32 size = heap<256>(wide), heaps = (gridDim.x + size - 1) / size;
    float* rows = norm.partial + (u64)blockIdx.y * (gridDim.x + heaps) * wide;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sums[thread][i] = first[i];
        sums[thread][8 + i] = second[i];
    }
    __syncthreads();
    for (int at = thread; at < wide; at += 256) {
        const int k = at / channels, c = at - k * channels;
        Sum sum = 0;
        for (int lane = 0; lane < lanes; lane++) sum += sums[lane * apart + c / 8][k * 8 + c % 8];
        rows[(u64)blockIdx.x * wide + at] = (float)sum;
    }
    double* parts = (double*)room;
    double* found = parts + 1024;
    if (!tally<256>(rows, norm.arrived + blockIdx.y * (heaps + 1), wide, parts, found)) return;
    for (int c = thread; c < channels; c += 256)
        if (8 * share.first + c < norm.pitch) each(8 * share.first + c, found[c], found[channels + c]);
}

// Another batch norm has the moments of the first `groups` groups of channels in its record: it read the same tensors.
struct Known { const float* record; int pitch, groups; };

extern "C" __global__ void __launch_bounds__(256)
    norm_moments(const __grid_constant__ Parts x, int rows, Known known, Norm norm, u64 slab) {
    await_previous();
    norm = mine(norm, slab);
    known.record = mine(known.record, slab);
    const Share share(norm.pitch, known.groups);
    // The first row is subtracted to avoid cancellation.
    float shift[8];
    Sum sum[8] = {}, squares[8] = {};
    if (!share.idle) {
        const Place place(x, share.group, slab);
        load8(place.at, shift);
#pragma unroll 8
        for (int row = blockIdx.x * share.lanes + share.lane; row < rows; row += gridDim.x * share.lanes) {
            float v[8];
            load8(place.row(row), v);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                Sum d = v[i] - shift[i];
                sum[i] += d;
                squares[i] += d * d;
            }
        }
    }
    if (blockIdx.x == 0 && blockIdx.y == 0)
        for (int c = threadIdx.x; c < 8 * known.groups; c += 256)
            settle(norm, c, (double)known.record[MEAN * known.pitch + c], (double)known.record[VARIANCE * known.pitch + c]);
    totals(share, sum, squares, norm, [&](int c, double sum, double squares) {
        settle(norm, c, sum, squares, get(Place(x, c / 8, slab).at + c % 8));
    });
}

// a + b, then ReLU if `relu`, and the moments of the stored result for the batch norm that reads it.
extern "C" __global__ void __launch_bounds__(256)
    add_moments(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ y, int rows, int relu, Norm norm, u64 slab) {
    await_previous();
    constexpr int U = 4;
    a = mine(a, slab); b = mine(b, slab); y = mine(y, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    const float least = relu ? 0.0f : __uint_as_float(0xff800000u);
    const int stride = gridDim.x * share.lanes;
    float shift[8];
    Sum sum[8] = {}, squares[8] = {};
    auto added = [&](const Raw& one, const Raw& other, float (&v)[8]) {
        float w[8];
        unpack(one, v);
        unpack(other, w);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] += w[i];
            v[i] = rounded(v[i] < least ? least : v[i], y);
        }
    };
    if (!share.idle) {
        const u64 column = share.group * 8;
        added(*(const Raw*)(a + column), *(const Raw*)(b + column), shift);
        for (int first = blockIdx.x * share.lanes + share.lane; first < rows; first += U * stride) {
            Raw one[U], other[U];
#pragma unroll
            for (int u = 0; u < U; u++) {
                const int row = min(first + u * stride, rows - 1);
                one[u] = *(const Raw*)(a + (u64)row * norm.pitch + column);
                other[u] = *(const Raw*)(b + (u64)row * norm.pitch + column);
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                const int row = first + u * stride;
                if (row >= rows) break;
                float v[8];
                added(one[u], other[u], v);
                store8(y + (u64)row * norm.pitch + column, v);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    Sum d = v[i] - shift[i];
                    sum[i] += d;
                    squares[i] += d * d;
                }
            }
        }
    }
    totals(share, sum, squares, norm, [&](int c, double sum, double squares) {
        float v = get(a + c) + get(b + c);
        settle(norm, c, sum, squares, rounded(v < least ? least : v, y));
    });
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
        norm.record[SHIFT * norm.pitch + c] = real ? norm.bias[c] - mean * scale : 0.0f;
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

extern "C" __global__ void __launch_bounds__(256)
    norm_forward(const __grid_constant__ Parts y, const T* __restrict__ other, Other of, T* __restrict__ out, int rows, int relu,
                 Norm norm, u64 slab) {
    await_previous();
    other = mine(other, slab); out = mine(out, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    if (share.idle) return;
    const Place from(y, share.group, slab);
    float mean[8], scale[8], bias[8];
    row_of(norm, MEAN, share.group, mean);
    row_of(norm, SCALE, share.group, scale);
#pragma unroll
    for (int i = 0; i < 8; i++) bias[i] = share.group * 8 + i < norm.channels ? norm.bias[share.group * 8 + i] : 0.0f;
#pragma unroll 4
    for (int row = blockIdx.x * share.lanes + share.lane; row < rows; row += gridDim.x * share.lanes) {
        const u64 at = (u64)row * norm.pitch + share.group * 8;
        float v[8], extra[8] = {};
        u64 there;
        load8(from.row(row), v);
        if (other && of.has(share.group, row, there)) load8(other + there, extra);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            // The mean is subtracted first: a combined scale and shift would cancel.
            v[i] = (v[i] - mean[i]) * scale[i] + bias[i];
            if (other) v[i] += extra[i];
            if (relu) v[i] = v[i] < 0.0f ? 0.0f : v[i];
        }
        store8(out + at, v);
    }
}

// The same, and the moments of the stored result for the batch norm `next` that reads it.
extern "C" __global__ void __launch_bounds__(256)
    norm_forward_moments(const __grid_constant__ Parts y, const T* __restrict__ other, Other of, T* __restrict__ out, int rows, int relu,
                         Norm norm, Norm next, u64 slab) {
    await_previous();
    constexpr int U = 4;
    other = mine(other, slab); out = mine(out, slab);
    norm = mine(norm, slab); next = mine(next, slab);
    const Share share(norm.pitch);
    const int stride = gridDim.x * share.lanes;
    float shift[8] = {};
    Sum sum[8] = {}, squares[8] = {};
    auto result = [&](const Rows& factors, const Raw& one, const float (&extra)[8], float (&v)[8]) {
        unpack(one, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = (v[i] - factors.mean[i]) * factors.scale[i] + factors.bias[i] + extra[i];
            v[i] = rounded(relu && v[i] < 0.0f ? 0.0f : v[i], out);
        }
    };
    if (!share.idle) {
        const Rows factors = rows_of(norm, share.group);
        const Place from(y, share.group, slab);
        const u64 column = share.group * 8;
        auto load_other = [&](int row, float (&extra)[8]) {
            u64 there;
            if (other && of.has(share.group, row, there)) load8(other + there, extra);
        };
        // The first row is subtracted to avoid cancellation.
        float extra[8] = {};
        load_other(0, extra);
        result(factors, *(const Raw*)from.at, extra, shift);
        for (int first = blockIdx.x * share.lanes + share.lane; first < rows; first += U * stride) {
            Raw one[U];
            float more[U][8] = {};
#pragma unroll
            for (int u = 0; u < U; u++) {
                const int row = min(first + u * stride, rows - 1);
                one[u] = *(const Raw*)from.row(row);
                load_other(row, more[u]);
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                const int row = first + u * stride;
                if (row >= rows) break;
                float v[8];
                result(factors, one[u], more[u], v);
                store8(out + (u64)row * norm.pitch + column, v);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    Sum d = v[i] - shift[i];
                    sum[i] += d;
                    squares[i] += d * d;
                }
            }
        }
        // The block that has the totals needs what was subtracted.
        if (blockIdx.x == 0 && share.lane == 0)
#pragma unroll
            for (int i = 0; i < 8; i++) next.record[SHIFT * next.pitch + column + i] = shift[i];
    }
    totals(share, sum, squares, next, [&](int c, double sum, double squares) {
        settle(next, c, sum, squares, __ldcg(next.record + SHIFT * next.pitch + c));
    });
}

// The gradient where the ReLU was positive.
template <int MASK>
__device__ __forceinline__ void masked(float (&g)[8], const float (&y)[8], const float (&mean)[8], const float (&scale)[8],
                                       const float (&bias)[8], const Raw& result) {
    if (MASK == MASK_BY_VALUE) {
#pragma unroll
        for (int i = 0; i < 8; i++) g[i] = (y[i] - mean[i]) * scale[i] + bias[i] > 0.0f ? g[i] : 0.0f;
    } else if (MASK == MASK_BY_RESULT) {
        float v[8];
        unpack(result, v);
#pragma unroll
        for (int i = 0; i < 8; i++) g[i] = v[i] > 0.0f ? g[i] : 0.0f;
    }
}

// The rows of a thread, several fetched at a time: gradient, value, the result if it masks, and the old contents of
// the target. The gradient of a padded shortcut may have the buffer of `flow`: a thread reads what it later overwrites.
template <int MASK, bool OLD, class Each>
__device__ __forceinline__ void each_row(const T* flow, const Place& y, const T* __restrict__ out, const Place& old,
                                         int rows, const Norm& norm, const Share& share, Each each) {
    constexpr int U = 4;
    const int stride = gridDim.x * share.lanes;
    for (int first = blockIdx.x * share.lanes + share.lane; first < rows; first += U * stride) {
        Raw g[U], v[U], result[U], before[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int row = min(first + u * stride, rows - 1);
            const u64 at = (u64)row * norm.pitch + share.group * 8;
            g[u] = *(const Raw*)(flow + at);
            v[u] = *(const Raw*)y.row(row);
            if (MASK == MASK_BY_RESULT) result[u] = *(const Raw*)(out + at);
            if (OLD && old.add) before[u] = *(const Raw*)old.row(row);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int row = first + u * stride;
            if (row < rows) each(row, g[u], v[u], result[u], before[u]);
        }
    }
}

template <int MASK>
__device__ __forceinline__ void sums_of_flow(const T* flow, const Place& y, const T* out, int rows, const Norm& norm,
                                             const Share& share, Sum (&sum)[8], Sum (&along)[8]) {
    const Rows of = rows_of(norm, share.group);
    each_row<MASK, false>(flow, y, out, y, rows, norm, share,
                          [&](int, const Raw& flow, const Raw& value, const Raw& result, const Raw&) {
        float g[8], v[8];
        unpack(flow, g);
        unpack(value, v);
        masked<MASK>(g, v, of.mean, of.scale, of.bias, result);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] += g[i];
            along[i] += (Sum)g[i] * (Sum)(v[i] - of.mean[i]);
        }
    });
}

// The two sums of each channel, which are the gradients of shift and scale, and the factors of the next pass.
extern "C" __global__ void __launch_bounds__(256)
    norm_reduce(const T* __restrict__ flow, const __grid_constant__ Parts from, int rows, Sums of, Norm norm, u64 slab) {
    await_previous();
    flow = mine(flow, slab);
    of = mine(of, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    Sum sum[8] = {}, along[8] = {};
    if (!share.idle) {
        const Place y(from, share.group, slab);
        if (of.mask == NO_MASK) sums_of_flow<NO_MASK>(flow, y, of.out, rows, norm, share, sum, along);
        else if (of.mask == MASK_BY_VALUE) sums_of_flow<MASK_BY_VALUE>(flow, y, of.out, rows, norm, share, sum, along);
        else sums_of_flow<MASK_BY_RESULT>(flow, y, of.out, rows, norm, share, sum, along);
    }
    totals(share, sum, along, norm, [&](int c, double sum, double along) { settle_flow(norm, of, c, sum, along); });
}

template <int MASK, bool ADD>
__device__ __forceinline__ void gradients(const T* flow, const Place& y, const T* out, int rows, const Place& dx, T* dother,
                                          const Other& other, int add_other, const Norm& norm, const Share& share) {
    const Rows of = rows_of(norm, share.group);
    float of_value[8], constant[8];
    row_of(norm, OF_VALUE, share.group, of_value);
    row_of(norm, CONSTANT, share.group, constant);
    each_row<MASK, ADD>(flow, y, out, dx, rows, norm, share,
                        [&](int row, const Raw& flow, const Raw& value, const Raw& result, const Raw& before) {
        float g[8], v[8], d[8];
        unpack(flow, g);
        unpack(value, v);
        masked<MASK>(g, v, of.mean, of.scale, of.bias, result);
        if (dx.at) {
            if (ADD) unpack(before, d);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float here = of.scale[i] * g[i] + of_value[i] * (v[i] - of.mean[i]) + constant[i];
                d[i] = ADD && dx.add ? here + d[i] : here;
            }
            store8(dx.row(row), d);
        }
        u64 there;
        if (dother && other.has(share.group, row, there)) {
            // Channels beyond are padding, which stays zero.
#pragma unroll
            for (int i = 0; i < 8; i++) g[i] = share.group * 8 + i < other.before + other.channels ? g[i] : 0.0f;
            flow8(dother + there, g, add_other);
        }
    });
}

extern "C" __global__ void __launch_bounds__(256, BF16 ? 2 : 1)
    norm_backward(const T* flow, const __grid_constant__ Parts from, const T* __restrict__ out, int rows, int mask,
                  const __grid_constant__ Parts to, T* dother, Other other, int add_other, Norm norm, u64 slab) {
    await_previous();
    flow = mine(flow, slab); out = mine(out, slab); dother = mine(dother, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    if (share.idle) return;
    const Place y(from, share.group, slab), dx(to, share.group, slab);
    const bool add = to.adds;
    if (mask == NO_MASK) {
        if (add) gradients<NO_MASK, true>(flow, y, out, rows, dx, dother, other, add_other, norm, share);
        else gradients<NO_MASK, false>(flow, y, out, rows, dx, dother, other, add_other, norm, share);
    } else if (mask == MASK_BY_VALUE) {
        if (add) gradients<MASK_BY_VALUE, true>(flow, y, out, rows, dx, dother, other, add_other, norm, share);
        else gradients<MASK_BY_VALUE, false>(flow, y, out, rows, dx, dother, other, add_other, norm, share);
    } else {
        if (add) gradients<MASK_BY_RESULT, true>(flow, y, out, rows, dx, dother, other, add_other, norm, share);
        else gradients<MASK_BY_RESULT, false>(flow, y, out, rows, dx, dother, other, add_other, norm, share);
    }
}
