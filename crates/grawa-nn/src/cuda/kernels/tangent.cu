// Tangents of the forward and the backward pass along a direction of the parameters, for products with the Hessian, in
// f32. Operations that are linear given the results of the forward pass run their own kernels on tangents. Here is the
// rest: products in which both factors change, batch norm, what the forward pass has masked, the loss, and the vectors.
//
// Every tangent has the place in its slab that the number itself has in the slab of results.

#if !BF16

#define CONV_PAIR(name, M, N, TM, TN)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256)                                                                          \
        name(ConvGeometry geometry, const float* x0, const float* weight0, const float* x1, const float* weight1, const float* bias, \
             float* y, int add, u64 slab) {                                                                                    \
        await_previous();                                                                                              \
        conv_of_two<M, N, TM, TN>(geometry, mine(x0, slab), mine(weight0, slab), mine(x1, slab), mine(weight1, slab),          \
                                  mine(bias, slab), mine(y, slab), add);                                                       \
    }
CONV_PAIR(conv_pair_16, 256, 16, 32, 16)
CONV_PAIR(conv_pair_32, 128, 32, 32, 16)
CONV_PAIR(conv_pair_64, 64, 64, 32, 16)
CONV_PAIR(conv_pair_64_tall, 128, 64, 32, 32)

#define WGRAD_PAIR(name, THREADS, M, N, TM, TN)                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                      \
        name(ConvGeometry geometry, const float* x0, const float* dy0, const float* x1, const float* dy1, float* partial,      \
             int stretch, u64 slab) {                                                                                          \
        await_previous();                                                                                              \
        wgrad_of_two<M, N, TM, TN>(geometry, mine(x0, slab), mine(dy0, slab), mine(x1, slab), mine(dy1, slab),                 \
                                   mine(partial, slab), stretch);                                                              \
    }
WGRAD_PAIR(wgrad_pair_16, 288, 144, 16, 16, 16)
WGRAD_PAIR(wgrad_pair_32, 288, 144, 32, 16, 32)
WGRAD_PAIR(wgrad_pair_64, 256, 128, 64, 32, 32)

// The record of a batch norm's tangent: factors for each channel, in the same six rows. With x̂ = x − mean,
// s = 1/√(variance + ε), S = Σ dy and T = Σ dy·x̂, forward y = scale·s·x̂ + shift, and backward
// dx = scale·s·(dy − S/n − x̂·s²T/n).
enum { MEAN_CHANGE, DEVIATION_CHANGE, SCALE_CHANGE, OF_CENTRED, OF_CENTRED_CHANGE, CONSTANT_CHANGE };

// Σ x′ and Σ x̂·x′. Constant statistics do not change.
extern "C" __global__ void __launch_bounds__(256)
    norm_tangent_moments(const float* __restrict__ x, const float* __restrict__ dx, int rows, int of_batch, Norm norm, Norm change,
                         u64 slab) {
    await_previous();
    x = mine(x, slab); dx = mine(dx, slab);
    norm = mine(norm, slab); change = mine(change, slab);
    const Share share(norm.pitch);
    double sum[8] = {}, along[8] = {};
    if (!share.idle && of_batch) {
        float mean[8];
        row_of(norm, MEAN, share.group, mean);
#pragma unroll 4
        for (int row = blockIdx.x * share.lanes + share.lane; row < rows; row += gridDim.x * share.lanes) {
            const u64 at = (u64)row * norm.pitch + share.group * 8;
            float v[8], d[8];
            load8(x + at, v);
            load8(dx + at, d);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum[i] += d[i];
                along[i] += (double)d[i] * (double)(v[i] - mean[i]);
            }
        }
    }
    store_sums(share, sum, along, change);
}

// From them the tangents of mean, s and scale·s.
extern "C" __global__ void __launch_bounds__(256) norm_tangent_settle(int of_batch, Norm norm, Norm change, u64 slab) {
    await_previous();
    norm = mine(norm, slab); change = mine(change, slab);
    settle_eight(change, {0, norm.pitch}, [&](int c, double sum, double along) {
        const bool real = c < norm.channels;
        const double s = norm.record[DEVIATION * norm.pitch + c], n = norm.count;
        const double s_change = of_batch ? -s * s * s * along / n : 0.0;
        change.record[MEAN_CHANGE * norm.pitch + c] = of_batch ? (float)(sum / n) : 0.0f;
        change.record[DEVIATION_CHANGE * norm.pitch + c] = (float)s_change;
        change.record[SCALE_CHANGE * norm.pitch + c] = real ? (float)(change.weight[c] * s + norm.weight[c] * s_change) : 0.0f;
    });
}

// What a thread needs of its eight channels.
struct Changes { float mean[8], mean_change[8], scale[8], scale_change[8]; };

__device__ __forceinline__ Changes changes_of(const Norm& norm, const Norm& change, const Share& share) {
    Changes of;
    row_of(norm, MEAN, share.group, of.mean);
    row_of(norm, SCALE, share.group, of.scale);
    row_of(change, MEAN_CHANGE, share.group, of.mean_change);
    row_of(change, SCALE_CHANGE, share.group, of.scale_change);
    return of;
}

// Zero where the result `gate` (if given) is not positive.
__device__ __forceinline__ void gated(float (&v)[8], const float* gate, u64 at) {
    if (!gate) return;
    float y[8];
    load8(gate + at, y);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = y[i] > 0.0f ? v[i] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(256)
    norm_tangent_forward(const float* __restrict__ x, const float* __restrict__ dx, const float* __restrict__ other,
                         const float* __restrict__ gate, float* __restrict__ out, int rows, Norm norm, Norm change, u64 slab) {
    await_previous();
    x = mine(x, slab); dx = mine(dx, slab); other = mine(other, slab); gate = mine(gate, slab); out = mine(out, slab);
    norm = mine(norm, slab); change = mine(change, slab);
    const Share share(norm.pitch);
    if (share.idle) return;
    const Changes of = changes_of(norm, change, share);
    float shift[8];
#pragma unroll
    for (int i = 0; i < 8; i++) shift[i] = share.group * 8 + i < norm.channels ? change.bias[share.group * 8 + i] : 0.0f;
#pragma unroll 2
    for (int row = blockIdx.x * share.lanes + share.lane; row < rows; row += gridDim.x * share.lanes) {
        const u64 at = (u64)row * norm.pitch + share.group * 8;
        float v[8], d[8], extra[8];
        load8(x + at, v);
        load8(dx + at, d);
        if (other) load8(other + at, extra);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i] = (v[i] - of.mean[i]) * of.scale_change[i] + (d[i] - of.mean_change[i]) * of.scale[i] + shift[i];
            if (other) v[i] += extra[i];
        }
        gated(v, gate, at);
        store8(out + at, v);
    }
}

// S′ = Σ dy′ and T′ = Σ dy′·x̂ + Σ dy·x̂′.
extern "C" __global__ void __launch_bounds__(256)
    norm_tangent_reduce(const float* __restrict__ flow, const float* __restrict__ dflow, const float* __restrict__ x,
                        const float* __restrict__ dx, const float* __restrict__ gate, int rows, Norm norm, Norm change, u64 slab) {
    await_previous();
    flow = mine(flow, slab); dflow = mine(dflow, slab); x = mine(x, slab); dx = mine(dx, slab); gate = mine(gate, slab);
    norm = mine(norm, slab); change = mine(change, slab);
    const Share share(norm.pitch);
    double sum[8] = {}, along[8] = {};
    if (!share.idle) {
        const Changes of = changes_of(norm, change, share);
#pragma unroll 2
        for (int row = blockIdx.x * share.lanes + share.lane; row < rows; row += gridDim.x * share.lanes) {
            const u64 at = (u64)row * norm.pitch + share.group * 8;
            float g[8], dg[8], v[8], d[8];
            load8(flow + at, g);
            load8(dflow + at, dg);
            load8(x + at, v);
            load8(dx + at, d);
            gated(g, gate, at);
            gated(dg, gate, at);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum[i] += dg[i];
                along[i] += (double)dg[i] * (double)(v[i] - of.mean[i]) + (double)g[i] * (double)(d[i] - of.mean_change[i]);
            }
        }
    }
    store_sums(share, sum, along, change);
}

// The tangents of the gradients of shift and scale, which are S′ and (s·T)′, and the factors of the next pass. The backward pass
// left S and s·T as gradients.
extern "C" __global__ void __launch_bounds__(256)
    norm_tangent_settle_flow(int of_batch, const float* weight_slope, const float* bias_slope, float* dweight, float* dbias, Norm norm,
                             Norm change, u64 slab) {
    await_previous();
    weight_slope = mine(weight_slope, slab); bias_slope = mine(bias_slope, slab);
    dweight = mine(dweight, slab); dbias = mine(dbias, slab);
    norm = mine(norm, slab); change = mine(change, slab);
    settle_eight(change, {0, norm.pitch}, [&](int c, double sum, double along) {
        const bool real = c < norm.channels;
        const double s = norm.record[DEVIATION * norm.pitch + c], s_change = change.record[DEVIATION_CHANGE * norm.pitch + c];
        const double slope = norm.record[SCALE * norm.pitch + c], slope_change = change.record[SCALE_CHANGE * norm.pitch + c];
        const double n = norm.count, flow_sum = real ? bias_slope[c] : 0.0f, flow_along = real && s > 0.0 ? weight_slope[c] / s : 0.0;
        if (real) {
            dbias[c] = (float)sum;
            dweight[c] = (float)(s_change * flow_along + s * along);
        }
        const double pull = s * s * flow_along / n, pull_change = (2.0 * s * s_change * flow_along + s * s * along) / n;
        change.record[OF_CENTRED * norm.pitch + c] = of_batch ? (float)(-(slope_change * pull + slope * pull_change)) : 0.0f;
        change.record[OF_CENTRED_CHANGE * norm.pitch + c] = of_batch ? (float)(-slope * pull) : 0.0f;
        change.record[CONSTANT_CHANGE * norm.pitch + c] = of_batch ? (float)(-(slope_change * flow_sum + slope * sum) / n) : 0.0f;
    });
}

extern "C" __global__ void __launch_bounds__(256)
    norm_tangent_backward(const float* __restrict__ flow, const float* __restrict__ dflow, const float* __restrict__ x,
                          const float* __restrict__ dx, const float* __restrict__ gate, int rows, float* to, int add, float* other,
                          int add_other, Norm norm, Norm change, u64 slab) {
    await_previous();
    flow = mine(flow, slab); dflow = mine(dflow, slab); x = mine(x, slab); dx = mine(dx, slab); gate = mine(gate, slab);
    to = mine(to, slab); other = mine(other, slab);
    norm = mine(norm, slab); change = mine(change, slab);
    const Share share(norm.pitch);
    if (share.idle) return;
    const Changes of = changes_of(norm, change, share);
    float centred[8], centred_change[8], constant[8];
    row_of(change, OF_CENTRED, share.group, centred);
    row_of(change, OF_CENTRED_CHANGE, share.group, centred_change);
    row_of(change, CONSTANT_CHANGE, share.group, constant);
#pragma unroll 2
    for (int row = blockIdx.x * share.lanes + share.lane; row < rows; row += gridDim.x * share.lanes) {
        const u64 at = (u64)row * norm.pitch + share.group * 8;
        float g[8], dg[8], v[8], d[8];
        load8(flow + at, g);
        load8(dflow + at, dg);
        gated(g, gate, at);
        gated(dg, gate, at);
        if (to) {
            load8(x + at, v);
            load8(dx + at, d);
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = of.scale_change[i] * g[i] + of.scale[i] * dg[i] + centred[i] * (v[i] - of.mean[i]) +
                       centred_change[i] * (d[i] - of.mean_change[i]) + constant[i];
            flow8(to + at, v, add);
        }
        if (other) flow8(other + at, dg, add_other);
    }
}

// The tangent of a sum, or of `a` alone: zero where the result `gate` (if given) is not positive.
extern "C" __global__ void __launch_bounds__(256)
    add_tangent(const float* a, const float* b, const float* gate, float* y, u64 eights, u64 slab) {
    await_previous();
    a = mine(a, slab); b = mine(b, slab); gate = mine(gate, slab); y = mine(y, slab);
    EACH(at, eights) {
        float v[8], w[8];
        load8(a + at * 8, v);
        if (b) {
            load8(b + at * 8, w);
            for (int i = 0; i < 8; i++) v[i] += w[i];
        }
        gated(v, gate, at * 8);
        store8(y + at * 8, v);
    }
}

// The tangent of a maximum: that of the first of the largest values.
extern "C" __global__ void __launch_bounds__(256) max_tangent(Pool pool, const float* x, const float* dx, float* dy, u64 slab) {
    await_previous();
    x = mine(x, slab); dx = mine(dx, slab); dy = mine(dy, slab);
    const int groups = pool.pitch / 8;
    EACH(at, (u64)pool.n * pool.oh * pool.ow * groups) {
        const Pixel to(at, groups, pool.oh, pool.ow);
        const int y0 = max(to.y * pool.stride - pool.pad, 0), y1 = min(to.y * pool.stride + pool.kernel - pool.pad, pool.h);
        const int x0 = max(to.x * pool.stride - pool.pad, 0), x1 = min(to.x * pool.stride + pool.kernel - pool.pad, pool.w);
        float best[8] = {}, out[8] = {};
        for (int iy = y0; iy < y1; iy++)
            for (int ix = x0; ix < x1; ix++) {
                const u64 place = (((u64)to.n * pool.h + iy) * pool.w + ix) * pool.pitch + to.group * 8;
                float v[8], d[8];
                load8(x + place, v);
                load8(dx + place, d);
                const bool first = iy == y0 && ix == x0;
                for (int i = 0; i < 8; i++)
                    if (first || beats(v[i], best[i])) { best[i] = v[i]; out[i] = d[i]; }
            }
        store8(dy + at * 8, out);
    }
}

// The tangent of the loss's gradient with respect to the logits z: factor · p∘(z′ − p·z′). One warp for each example.
extern "C" __global__ void __launch_bounds__(256)
    loss_tangent(const float* logits, const float* dlogits, float* out, int n, int classes, int pitch, float factor, u64 slab) {
    await_previous();
    logits = mine(logits, slab); dlogits = mine(dlogits, slab); out = mine(out, slab);
    const int lane = threadIdx.x % 32, example = blockIdx.x * 8 + threadIdx.x / 32;
    if (example >= n) return;
    const float* row = logits + (u64)example * pitch;
    const float* drow = dlogits + (u64)example * pitch;
    float top = __uint_as_float(0xff800000u);  // −∞
    for (int c = lane; c < classes; c += 32) top = fmaxf(top, row[c]);
    for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    float sum = 0.0f, along = 0.0f;
    for (int c = lane; c < classes; c += 32) {
        const float p = expf(row[c] - top);
        sum += p;
        along += p * drow[c];
    }
    for (int d = 16; d > 0; d /= 2) {
        sum += __shfl_xor_sync(~0u, sum, d);
        along += __shfl_xor_sync(~0u, along, d);
    }
    for (int c = lane; c < pitch; c += 32)
        out[(u64)example * pitch + c] = c < classes ? factor * expf(row[c] - top) / sum * (drow[c] - along / sum) : 0.0f;
}

// Copies one vector to every replica, and packs its weights for the convolutions.
extern "C" __global__ void __launch_bounds__(256)
    spread(const Span* spans, const Chunk* chunks, const float* vector, float* copies, char* base, u64 slab) {
    await_previous();
    const Chunk chunk = chunks[blockIdx.x];
    const Span span = spans[chunk.span];
    copies = mine(copies, slab);
    base = mine(base, slab);
    for (u32 i = chunk.start + threadIdx.x; i < chunk.start + chunk.length; i += 256) {
        const float x = vector[i];
        copies[i] = x;
        pack_weights(span, base, i - span.start, x);
    }
}

// The sum of a vector over the first `count` replicas, in their order.
extern "C" __global__ void __launch_bounds__(256)
    sum_replicas(const float* vector, float* out, u64 length, int count, u64 slab) {
    await_previous();
    EACH(at, length) {
        double sum = 0.0;
        for (int replica = 0; replica < count; replica++) sum += (double)*(const float*)((const char*)(vector + at) + slab * replica);
        out[at] = (float)sum;
    }
}

#endif
