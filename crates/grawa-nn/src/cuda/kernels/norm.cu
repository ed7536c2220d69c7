// Batch norm with what follows it: the sum with a shortcut and the ReLU. Forward: moments (unless the convolution
// computed them), then one pass. Backward: one pass for the two sums of each channel, one for the gradients.
//
// A thread keeps its eight channels and loops over rows. All sums have an order fixed by the shape.

enum { NO_MASK, MASK_BY_VALUE /* scale·y + shift > 0 */, MASK_BY_RESULT /* the stored result > 0 */ };

// The second dimension of the grid divides the channels, eight at a time; a thread has one group of eight.
struct Share {
    int per, first, group, lane, lanes;
    bool idle;
    __device__ Share(int pitch) {
        const int groups = pitch / 8;
        per = (groups + gridDim.y - 1) / gridDim.y;
        first = blockIdx.y * per;
        lanes = 256 / per;
        lane = threadIdx.x / per;
        group = first + threadIdx.x - lane * per;
        idle = lane >= lanes || group >= groups;
    }
};

// Sums the results of this block's threads and stores them for the last block, which passes on the totals of each
// channel.
template <class Each> __device__ __forceinline__ void totals(const Share& share, Sum (&first)[8], Sum (&second)[8],
                                                             const Norm& norm, Each each) {
    extern __shared__ __align__(16) char room[];
    Sum(*sums)[17] = (Sum(*)[17])room;
    const int thread = threadIdx.x, channels = 8 * share.per, wide = 2 * channels;
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
        for (int lane = 0; lane < share.lanes; lane++) sum += sums[lane * share.per + c / 8][k * 8 + c % 8];
        rows[(u64)blockIdx.x * wide + at] = (float)sum;
    }
    double* parts = (double*)room;
    double* found = parts + 1024;
    if (!tally<256>(rows, norm.arrived + blockIdx.y * (heaps + 1), wide, parts, found)) return;
    for (int c = thread; c < channels; c += 256)
        if (8 * share.first + c < norm.pitch) each(8 * share.first + c, found[c], found[channels + c]);
}

extern "C" __global__ void __launch_bounds__(256) norm_moments(const T* x, int rows, Norm norm, u64 slab) {
    x = mine(x, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    // The first row is subtracted to avoid cancellation.
    float shift[8];
    Sum sum[8] = {}, squares[8] = {};
    if (!share.idle) {
        load8(x + share.group * 8, shift);
#pragma unroll 8
        for (int row = blockIdx.x * share.lanes + share.lane; row < rows; row += gridDim.x * share.lanes) {
            float v[8];
            load8(x + (u64)row * norm.pitch + share.group * 8, v);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                Sum d = v[i] - shift[i];
                sum[i] += d;
                squares[i] += d * d;
            }
        }
    }
    totals(share, sum, squares, norm, [&](int c, double sum, double squares) {
        settle(norm, c, sum, squares, get(x + c));
    });
}

// a + b, then ReLU if `relu`, and the moments of the stored result for the batch norm that reads it.
extern "C" __global__ void __launch_bounds__(256)
    add_moments(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ y, int rows, int relu, Norm norm, u64 slab) {
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

__device__ __forceinline__ void row_of(const Norm& norm, int which, int group, float (&v)[8]) {
    load8(norm.record + which * norm.pitch + group * 8, v);
}

extern "C" __global__ void __launch_bounds__(256)
    norm_forward(const T* __restrict__ y, const T* __restrict__ other, T* __restrict__ out, int rows, int relu, Norm norm,
                 u64 slab) {
    y = mine(y, slab); other = mine(other, slab); out = mine(out, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    if (share.idle) return;
    float mean[8], scale[8], bias[8];
    row_of(norm, MEAN, share.group, mean);
    row_of(norm, SCALE, share.group, scale);
#pragma unroll
    for (int i = 0; i < 8; i++) bias[i] = share.group * 8 + i < norm.channels ? norm.bias[share.group * 8 + i] : 0.0f;
#pragma unroll 4
    for (int row = blockIdx.x * share.lanes + share.lane; row < rows; row += gridDim.x * share.lanes) {
        const u64 at = (u64)row * norm.pitch + share.group * 8;
        float v[8], extra[8];
        load8(y + at, v);
        if (other) load8(other + at, extra);
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
// the target.
template <int MASK, bool OLD, class Each>
__device__ __forceinline__ void each_row(const T* __restrict__ flow, const T* __restrict__ y, const T* __restrict__ out,
                                         const T* old, int rows, const Norm& norm, const Share& share, Each each) {
    constexpr int U = 4;
    const int stride = gridDim.x * share.lanes;
    for (int first = blockIdx.x * share.lanes + share.lane; first < rows; first += U * stride) {
        Raw g[U], v[U], result[U], before[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const u64 at = (u64)min(first + u * stride, rows - 1) * norm.pitch + share.group * 8;
            g[u] = *(const Raw*)(flow + at);
            v[u] = *(const Raw*)(y + at);
            if (MASK == MASK_BY_RESULT) result[u] = *(const Raw*)(out + at);
            if (OLD) before[u] = *(const Raw*)(old + at);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int row = first + u * stride;
            if (row < rows) each((u64)row * norm.pitch + share.group * 8, g[u], v[u], result[u], before[u]);
        }
    }
}

struct Rows { float mean[8], scale[8], bias[8]; };

__device__ __forceinline__ Rows rows_of(const Norm& norm, const Share& share) {
    Rows of;
    row_of(norm, MEAN, share.group, of.mean);
    row_of(norm, SCALE, share.group, of.scale);
#pragma unroll
    for (int i = 0; i < 8; i++) of.bias[i] = share.group * 8 + i < norm.channels ? norm.bias[share.group * 8 + i] : 0.0f;
    return of;
}

template <int MASK>
__device__ __forceinline__ void sums_of_flow(const T* flow, const T* y, const T* out, int rows, const Norm& norm,
                                             const Share& share, Sum (&sum)[8], Sum (&along)[8]) {
    const Rows of = rows_of(norm, share);
    each_row<MASK, false>(flow, y, out, nullptr, rows, norm, share,
                          [&](u64, const Raw& flow, const Raw& value, const Raw& result, const Raw&) {
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

// The two sums of each channel: of the gradient, and of the gradient times the normalised value. They are the
// gradients of shift and scale, and the factors of the next pass.
extern "C" __global__ void __launch_bounds__(256)
    norm_reduce(const T* __restrict__ flow, const T* __restrict__ y, const T* __restrict__ out, int rows, int mask,
                int of_batch, float* dweight, float* dbias, Norm norm, u64 slab) {
    flow = mine(flow, slab); y = mine(y, slab); out = mine(out, slab);
    dweight = mine(dweight, slab); dbias = mine(dbias, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    Sum sum[8] = {}, along[8] = {};
    if (!share.idle) {
        if (mask == NO_MASK) sums_of_flow<NO_MASK>(flow, y, out, rows, norm, share, sum, along);
        else if (mask == MASK_BY_VALUE) sums_of_flow<MASK_BY_VALUE>(flow, y, out, rows, norm, share, sum, along);
        else sums_of_flow<MASK_BY_RESULT>(flow, y, out, rows, norm, share, sum, along);
    }
    totals(share, sum, along, norm, [&](int c, double sum, double along) {
        const double deviation = norm.record[DEVIATION * norm.pitch + c], scale = norm.record[SCALE * norm.pitch + c];
        along *= deviation;
        if (c < norm.channels) {
            dbias[c] = (float)sum;
            dweight[c] = (float)along;
        }
        norm.record[OF_FLOW * norm.pitch + c] = (float)scale;
        norm.record[OF_VALUE * norm.pitch + c] = of_batch ? (float)(-scale * along * deviation / norm.count) : 0.0f;
        norm.record[CONSTANT * norm.pitch + c] = of_batch ? (float)(-scale * sum / norm.count) : 0.0f;
    });
}

template <int MASK, bool ADD>
__device__ __forceinline__ void gradients(const T* flow, const T* y, const T* out, int rows, T* dx, T* dother, int add_other,
                                          const Norm& norm, const Share& share) {
    const Rows of = rows_of(norm, share);
    float of_value[8], constant[8];
    row_of(norm, OF_VALUE, share.group, of_value);
    row_of(norm, CONSTANT, share.group, constant);
    each_row<MASK, ADD>(flow, y, out, dx, rows, norm, share,
                        [&](u64 at, const Raw& flow, const Raw& value, const Raw& result, const Raw& before) {
        float g[8], v[8], d[8];
        unpack(flow, g);
        unpack(value, v);
        masked<MASK>(g, v, of.mean, of.scale, of.bias, result);
        if (dx) {
            if (ADD) unpack(before, d);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float here = of.scale[i] * g[i] + of_value[i] * (v[i] - of.mean[i]) + constant[i];
                d[i] = ADD ? here + d[i] : here;
            }
            store8(dx + at, d);
        }
        if (dother) flow8(dother + at, g, add_other);
    });
}

extern "C" __global__ void __launch_bounds__(256)
    norm_backward(const T* __restrict__ flow, const T* __restrict__ y, const T* __restrict__ out, int rows, int mask, T* dx,
                  int add_dx, T* dother, int add_other, Norm norm, u64 slab) {
    flow = mine(flow, slab); y = mine(y, slab); out = mine(out, slab);
    dx = mine(dx, slab); dother = mine(dother, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    if (share.idle) return;
    const bool add = dx && add_dx;
    if (mask == NO_MASK) {
        if (add) gradients<NO_MASK, true>(flow, y, out, rows, dx, dother, add_other, norm, share);
        else gradients<NO_MASK, false>(flow, y, out, rows, dx, dother, add_other, norm, share);
    } else if (mask == MASK_BY_VALUE) {
        if (add) gradients<MASK_BY_VALUE, true>(flow, y, out, rows, dx, dother, add_other, norm, share);
        else gradients<MASK_BY_VALUE, false>(flow, y, out, rows, dx, dother, add_other, norm, share);
    } else {
        if (add) gradients<MASK_BY_RESULT, true>(flow, y, out, rows, dx, dother, add_other, norm, share);
        else gradients<MASK_BY_RESULT, false>(flow, y, out, rows, dx, dother, add_other, norm, share);
    }
}
