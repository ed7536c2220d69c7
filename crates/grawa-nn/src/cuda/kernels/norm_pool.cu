// Batch norm, ReLU, and the maximum over windows of 2 × 2 pixels that tile the image. The result of the batch norm is not
// stored: the backward pass finds the maxima again.
//
// As in `norm.cu` a thread keeps its eight channels. It loops over windows.

// The pixels of U windows, and the gradients of the maxima.
template <int U> struct Windows {
    Raw pixels[U][4], flow[U];

    // The place of a pixel in the input. There are `width` windows in a row.
    __device__ static __forceinline__ u64 place(int window, int width, int pixel, int pitch) {
        const int line = window / width, x = 2 * (window - line * width) + (pixel & 1);
        return ((u64)(2 * line + (pixel >> 1)) * 2 * width + x) * pitch;
    }
    __device__ __forceinline__ void fetch(const T* y, const T* flows, int width, int pitch, int first, int stride, int count) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int window = min(first + u * stride, count - 1);
#pragma unroll
            for (int k = 0; k < 4; k++) pixels[u][k] = *(const Raw*)(y + place(window, width, k, pitch));
            if (flows) flow[u] = *(const Raw*)(flows + (u64)window * pitch);
        }
    }
};

// The maxima of a window after batch norm, their inputs without the mean, and the pixels where they are: the first of equal ones.
struct Maxima {
    float value[8], centred[8];
    u32 where = 0; // two bits for each channel
    __device__ __forceinline__ Maxima(const Raw (&pixels)[4], const Rows& of) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float v[8];
            unpack(pixels[k], v);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] -= of.mean[i];
                const float result = v[i] * of.scale[i] + of.bias[i];
                if (k > 0 && !beats(result, value[i])) continue;
                value[i] = result;
                centred[i] = v[i];
                where = (where & ~(3u << 2 * i)) | k << 2 * i;
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    norm_pool_forward(const T* __restrict__ y, T* __restrict__ out, int count, int width, int relu, Known known, Norm norm, u64 slab) {
    await_previous();
    constexpr int U = BF16 ? 2 : 1;
    norm = mine(norm, slab);
    known.record = mine(known.record, slab);
    const Share share(norm.pitch);
    y = mine(y, slab) + share.group * 8; out = mine(out, slab) + share.group * 8;
    const int stride = gridDim.x * share.lanes;
    int first = blockIdx.x * share.lanes + share.lane;
    // The first windows are fetched before the factors are known.
    Windows<U> windows;
    if (!share.idle && first < count) windows.fetch(y, nullptr, width, norm.pitch, first, stride, count);
    const Rows factors = forward_factors(norm, known, share);
    if (share.idle) return;
    while (first < count) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (first + u * stride >= count) break;
            Maxima maxima(windows.pixels[u], factors);
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (relu && maxima.value[i] < 0.0f) maxima.value[i] = 0.0f;
            store8(out + (u64)(first + u * stride) * norm.pitch, maxima.value);
        }
        first += U * stride;
        if (first < count) windows.fetch(y, nullptr, width, norm.pitch, first, stride, count);
    }
}

// The gradient of a window's maxima where the ReLU was positive.
__device__ __forceinline__ void masked_flow(float (&g)[8], const Raw& flow, const Maxima& maxima, const Sums& of) {
    unpack(flow, g);
    if (of.mask == NO_MASK) return;
#pragma unroll
    for (int i = 0; i < 8; i++) g[i] = maxima.value[i] > 0.0f ? g[i] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    norm_pool_reduce(const T* __restrict__ flow, const T* __restrict__ y, int count, int width, Sums of, Norm norm, u64 slab) {
    await_previous();
    constexpr int U = BF16 ? 2 : 1;
    norm = mine(norm, slab);
    const Share share(norm.pitch);
    flow = mine(flow, slab) + share.group * 8; y = mine(y, slab) + share.group * 8;
    Sum sum[8] = {}, along[8] = {};
    if (!share.idle) {
        const Rows factors = rows_of(norm, share.group);
        const int stride = gridDim.x * share.lanes;
        for (int first = blockIdx.x * share.lanes + share.lane; first < count; first += U * stride) {
            Windows<U> windows;
            windows.fetch(y, flow, width, norm.pitch, first, stride, count);
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (first + u * stride >= count) break;
                const Maxima maxima(windows.pixels[u], factors);
                float g[8];
                masked_flow(g, windows.flow[u], maxima, of);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    sum[i] += g[i];
                    along[i] += (Sum)g[i] * (Sum)maxima.centred[i];
                }
            }
        }
    }
    store_sums(share, sum, along, norm);
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    norm_pool_backward(const T* __restrict__ flow, const T* __restrict__ y, T* dx, int add, int count, int width, Sums of, Norm norm, u64 slab) {
    await_previous();
    constexpr int U = 1; // two would not fit into the registers
    norm = mine(norm, slab);
    of = mine(of, slab);
    const Share share(norm.pitch);
    flow = mine(flow, slab) + share.group * 8; y = mine(y, slab) + share.group * 8; dx = mine(dx, slab);
    const int stride = gridDim.x * share.lanes;
    int first = blockIdx.x * share.lanes + share.lane;
    Windows<U> windows;
    if (!share.idle && first < count) windows.fetch(y, flow, width, norm.pitch, first, stride, count);
    const FlowFactors more = flow_factors(norm, of, share);
    if (share.idle || !dx) return;
    const Rows factors = rows_of(norm, share.group);
    while (first < count) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int window = first + u * stride;
            if (window >= count) break;
            const Maxima maxima(windows.pixels[u], factors);
            float g[8];
            masked_flow(g, windows.flow[u], maxima, of);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float v[8];
                unpack(windows.pixels[u][k], v);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[i] = factors.scale[i] * (k == (maxima.where >> 2 * i & 3) ? g[i] : 0.0f) + more.of_value[i] * (v[i] - factors.mean[i]) + more.constant[i];
                flow8(dx + Windows<U>::place(window, width, k, norm.pitch) + share.group * 8, v, add);
            }
        }
        first += U * stride;
        if (first < count) windows.fetch(y, flow, width, norm.pitch, first, stride, count);
    }
}
