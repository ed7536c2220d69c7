// Batch norm with what follows it: the sum with a shortcut and the ReLU. Forward: moments (unless the convolution took
// them), then one pass. Backward: one pass for the two sums of a channel, one for the gradients.
//
// A thread keeps its eight channels and walks down the rows; all sums are added in an order that the shape decides.

enum { NO_MASK, MASK_BY_VALUE /* scale·y + shift > 0 */, MASK_BY_RESULT /* the stored result > 0 */ };

// The second side of the grid divides the channels, eight at a time; a thread has one group of eight.
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

// Adds up what the threads of this block found and leaves it for the last block, which hands each channel's totals on.
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
    // The first row is taken off, so that nothing cancels.
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

// What evaluation normalises with: the running statistics.
extern "C" __global__ void __launch_bounds__(256) norm_fold(Norm norm, u64 slab) {
    norm = mine(norm, slab);
    for (int c = threadIdx.x; c < norm.pitch; c += 256) {
        bool real = c < norm.channels;
        float mean = real ? norm.running_mean[c] : 0.0f;
        float deviation = real ? 1.0f / sqrtf(norm.running_variance[c] + 1e-5f) : 0.0f;
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
            // The mean is taken off first: a scale and a shift folded together would cancel.
            v[i] = (v[i] - mean[i]) * scale[i] + bias[i];
            if (other) v[i] += extra[i];
            if (relu) v[i] = v[i] < 0.0f ? 0.0f : v[i];
        }
        store8(out + at, v);
    }
}

__device__ __forceinline__ void masked(float (&g)[8], const float (&y)[8], const float (&mean)[8], const float (&scale)[8],
                                       const float (&bias)[8], const T* out, int mask) {
    if (mask == MASK_BY_VALUE) {
#pragma unroll
        for (int i = 0; i < 8; i++) g[i] = (y[i] - mean[i]) * scale[i] + bias[i] > 0.0f ? g[i] : 0.0f;
    } else if (mask == MASK_BY_RESULT) {
        float v[8];
        load8(out, v);
#pragma unroll
        for (int i = 0; i < 8; i++) g[i] = v[i] > 0.0f ? g[i] : 0.0f;
    }
}

// The two sums of each channel: of the flow, and of the flow times the normalised value. They are the gradients of shift
// and scale, and give the numbers that the next pass multiplies with.
extern "C" __global__ void __launch_bounds__(256)
    norm_reduce(const T* __restrict__ flow, const T* __restrict__ y, const T* __restrict__ out, int rows, int mask,
                int of_batch, float* dweight, float* dbias, Norm norm, u64 slab) {
    flow = mine(flow, slab); y = mine(y, slab); out = mine(out, slab);
    dweight = mine(dweight, slab); dbias = mine(dbias, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    Sum sum[8] = {}, along[8] = {};
    if (!share.idle) {
        float mean[8], scale[8], bias[8];
        row_of(norm, MEAN, share.group, mean);
        row_of(norm, SCALE, share.group, scale);
#pragma unroll
        for (int i = 0; i < 8; i++) bias[i] = share.group * 8 + i < norm.channels ? norm.bias[share.group * 8 + i] : 0.0f;
#pragma unroll 4
        for (int row = blockIdx.x * share.lanes + share.lane; row < rows; row += gridDim.x * share.lanes) {
            const u64 at = (u64)row * norm.pitch + share.group * 8;
            float g[8], v[8];
            load8(flow + at, g);
            load8(y + at, v);
            masked(g, v, mean, scale, bias, out + at, mask);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum[i] += g[i];
                along[i] += (Sum)g[i] * (Sum)(v[i] - mean[i]);
            }
        }
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

extern "C" __global__ void __launch_bounds__(256)
    norm_backward(const T* __restrict__ flow, const T* __restrict__ y, const T* __restrict__ out, int rows, int mask, T* dx,
                  int add_dx, T* dother, int add_other, Norm norm, u64 slab) {
    flow = mine(flow, slab); y = mine(y, slab); out = mine(out, slab);
    dx = mine(dx, slab); dother = mine(dother, slab);
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    if (share.idle) return;
    float mean[8], scale[8], bias[8], of_value[8], constant[8];
    row_of(norm, MEAN, share.group, mean);
    row_of(norm, SCALE, share.group, scale);
    row_of(norm, OF_VALUE, share.group, of_value);
    row_of(norm, CONSTANT, share.group, constant);
#pragma unroll
    for (int i = 0; i < 8; i++) bias[i] = share.group * 8 + i < norm.channels ? norm.bias[share.group * 8 + i] : 0.0f;
#pragma unroll 2
    for (int row = blockIdx.x * share.lanes + share.lane; row < rows; row += gridDim.x * share.lanes) {
        const u64 at = (u64)row * norm.pitch + share.group * 8;
        float g[8], v[8];
        load8(flow + at, g);
        load8(y + at, v);
        masked(g, v, mean, scale, bias, out + at, mask);
        if (dx) {
            float d[8];
#pragma unroll
            for (int i = 0; i < 8; i++) d[i] = scale[i] * g[i] + of_value[i] * (v[i] - mean[i]) + constant[i];
            flow8(dx + at, d, add_dx);
        }
        if (dother) flow8(dother + at, g, add_other);
    }
}
