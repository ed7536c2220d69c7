// Passes over the flat vectors: gathering gradients, the SGD update, norms by span, the round.
//
// On the GPU the kernels of a convolution are stored as out × taps × in, on the host as out × in × taps. All passes
// here work for any order within a span. A block processes one chunk, which is part of one span.

struct Span {
    u32 start, length;
    int taps, channels, pitch;     // of the input
    int out_pitch, out;
    int source;                    // of the gradient: 0 in place, 1 partial sums, 2 stored numbers, 3 zero
    int splits, spare;
    u64 working, flipped, partial;  // offsets into the slab; 0 for none
};
struct Chunk { u32 start, length, span, spare; };

// Writes the copies that convolutions read: in the storage type, padded; and flipped for the backward pass.
__device__ __forceinline__ void pack_weights(const Span& span, char* slab, u32 at, float x) {
    if (!span.working) return;
    if (!span.flipped && span.channels == span.pitch) {
        put((T*)(slab + span.working) + at, x);
        return;
    }
    const u32 c = at % span.channels, rest = at / span.channels, tap = rest % span.taps, o = rest / span.taps;
    put((T*)(slab + span.working) + (u64)(o * span.taps + tap) * span.pitch + c, x);
    if (span.flipped)
        put((T*)(slab + span.flipped) + (u64)(c * span.taps + span.taps - 1 - tap) * span.out_pitch + o, x);
}

extern "C" __global__ void __launch_bounds__(256)
    pack_all_weights(const Span* spans, const Chunk* chunks, const float* parameters, char* base, u64 slab) {
    await_previous();
    const Chunk chunk = chunks[blockIdx.x];
    const Span span = spans[chunk.span];
    parameters = mine(parameters, slab);
    base = mine(base, slab);
    for (u32 i = chunk.start + threadIdx.x; i < chunk.start + chunk.length; i += 256)
        pack_weights(span, base, i - span.start, parameters[i]);
}

// Where padded weights have an element of the span.
__device__ __forceinline__ u64 padded_place(const Span& span, u32 at) {
    return span.channels == span.pitch ? at : (u64)(at / span.channels) * span.pitch + at % span.channels;
}

// One element of the gradient, from where the backward pass left it.
__device__ __forceinline__ float gathered(const Span& span, const char* base, u32 at) {
    if (span.source == 3) return 0.0f;
    const u64 padded = padded_place(span, at);
    if (span.source == 2) return get((const T*)(base + span.partial) + padded);
    const u64 stride = (u64)span.out * span.taps * span.pitch;
    const float* from = (const float*)(base + span.partial) + padded;
    float g = 0.0f;
#pragma unroll 8
    for (int split = 0; split < span.splits; split++) g += from[split * stride];
    return g;
}

// So many partial sums are added by a whole block.
constexpr int MANY = 16;

// The same for 256 elements from `first` on, one for each thread, when there are many partial sums: each warp adds every
// eighth of them, with many loads in flight. All threads of the block take part.
__device__ __forceinline__ float gathered_by_block(const Span& span, const char* base, u32 first) {
    __shared__ float parts[8][256];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 stride = (u64)span.out * span.taps * span.pitch;
    const float* from = (const float*)(base + span.partial);
    u64 place[8];
    float sums[8] = {};
#pragma unroll
    for (int j = 0; j < 8; j++) place[j] = padded_place(span, min(first + j * 32 + lane, span.length - 1));
#pragma unroll 2
    for (int split = warp; split < span.splits; split += 8)
#pragma unroll
        for (int j = 0; j < 8; j++) sums[j] += from[split * stride + place[j]];
#pragma unroll
    for (int j = 0; j < 8; j++) parts[warp][j * 32 + lane] = sums[j];
    __syncthreads();
    float g = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; w++) g += parts[w][threadIdx.x];
    __syncthreads();
    return g;
}

// The elements of a chunk and their gradients, from the vector or from where the backward pass left them.
template <class Each>
__device__ __forceinline__ void each_gradient(const Span& span, const Chunk& chunk, const char* base, const float* gradient, bool gather,
                                              Each each) {
    const u32 end = chunk.start + chunk.length;
    if (gather && span.source == 1 && span.splits >= MANY) {
        for (u32 first = chunk.start; first < end; first += 256) {
            const float g = gathered_by_block(span, base, first - span.start);
            if (first + threadIdx.x < end) each(first + threadIdx.x, g);
        }
        return;
    }
#pragma unroll 4
    for (u32 i = chunk.start + threadIdx.x; i < end; i += 256)
        each(i, gather && span.source ? gathered(span, base, i - span.start) : gradient[i]);
}

extern "C" __global__ void __launch_bounds__(256)
    collect(const Span* spans, const Chunk* chunks, float* gradient, char* base, int of_batch, u64 slab) {
    await_previous();
    const Chunk chunk = chunks[blockIdx.x];
    const Span span = spans[chunk.span];
    // A bias before a batch norm has a gradient only if running statistics were used.
    if (span.source == 0 || (span.source == 3 && !of_batch)) return;
    gradient = mine(gradient, slab);
    base = mine(base, slab);
    each_gradient(span, chunk, base, gradient, true, [&](u32 i, float g) { gradient[i] = g; });
}

// `gather`: the gradient is still where the backward pass left it. `last`: this launch ends the step.
struct Sgd { float momentum, weight_decay, look_ahead, direct; int gather, last; };

// Clamps to finite numbers. NaN stays NaN, so that it is noticed; `fmaxf` alone would hide it.
__device__ __forceinline__ float bounded(float x) { return x != x ? x : fminf(fmaxf(x, -3.402823466e38f), 3.402823466e38f); }

extern "C" __global__ void __launch_bounds__(256)
    update(const Span* spans, const Chunk* chunks, Controls* controls, Sgd sgd, float* __restrict__ parameters, float* __restrict__ velocity,
           const float* __restrict__ gradient, const float* __restrict__ outer, const float* __restrict__ inner, u32 group, u32 lead, u64 length,
           char* base, u64 slab) {
    await_previous();
    // Consecutive groups of workers have a centre each, one after the other; `lead` workers of the first group are on
    // another GPU.
    if (inner) inner += (blockIdx.z + lead) / group * length;
    const Chunk chunk = chunks[blockIdx.x];
    const Span span = spans[chunk.span];
    controls = mine(controls, slab); parameters = mine(parameters, slab); velocity = mine(velocity, slab);
    gradient = mine(gradient, slab); base = mine(base, slab);
    // Nothing in this step reads the position after this kernel: advance it.
    if (sgd.last && blockIdx.x == 0 && threadIdx.x == 0) {
        controls->slot++;
        if (++controls->step_low == 0) controls->step_high++;
    }
    const float rate = controls->rate;
    const float pulls[2] = {outer ? controls->prox[0] : 0.0f, inner ? controls->prox[1] : 0.0f};
    bool lost = false;
    auto step = [&](u32 i, float g, float& x, float& v) {
        const float d = g + sgd.weight_decay * x;
        v = sgd.momentum * v + d;
        x -= rate * (sgd.direct * d + sgd.look_ahead * v);
        // A pull clamps its result: what is not finite must stay so, to be noticed at the round.
        if (!isfinite(x)) {
            lost = true;
            return;
        }
        if (pulls[0] > 0.0f) x = bounded((1.0f - pulls[0]) * x + pulls[0] * outer[i]);
        if (pulls[1] > 0.0f) x = bounded((1.0f - pulls[1]) * x + pulls[1] * inner[i]);
    };
#if BF16
    // Large layers whose gradients lie in the order of the vector: four numbers at a time.
    if (sgd.gather && (span.source == 2 || (span.source == 1 && span.splits < MANY)) && span.channels == span.pitch && !span.flipped &&
        chunk.start % 4 == 0 && span.start % 4 == 0 && chunk.length % 4 == 0) {
        for (u32 i = chunk.start + 4 * threadIdx.x; i < chunk.start + chunk.length; i += 1024) {
            const u32 at = i - span.start;
            float4 x = *(float4*)(parameters + i), v = *(float4*)(velocity + i), g = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (span.source == 2) {
                const uint2 stored = *(const uint2*)((const u16*)(base + span.partial) + at);
                g = make_float4(low_of(stored.x), high_of(stored.x), low_of(stored.y), high_of(stored.y));
            } else {
                const float* from = (const float*)(base + span.partial) + at;
#pragma unroll 4
                for (int split = 0; split < span.splits; split++) {
                    const float4 part = *(const float4*)(from + (u64)split * span.length);
                    g.x += part.x; g.y += part.y; g.z += part.z; g.w += part.w;
                }
            }
            step(i, g.x, x.x, v.x);
            step(i + 1, g.y, x.y, v.y);
            step(i + 2, g.z, x.z, v.z);
            step(i + 3, g.w, x.w, v.w);
            *(float4*)(parameters + i) = x;
            *(float4*)(velocity + i) = v;
            *(uint2*)((u16*)(base + span.working) + at) = make_uint2(pack(x.x, x.y), pack(x.z, x.w));
        }
        if (lost) controls->lost = 1;
        return;
    }
#endif
    // The gradient is not written here, which would cost a pass. Who needs it computes it before the step.
    each_gradient(span, chunk, base, gradient, sgd.gather, [&](u32 i, float g) {
        float x = parameters[i], v = velocity[i];
        step(i, g, x, v);
        parameters[i] = x;
        velocity[i] = v;
        pack_weights(span, base, i - span.start, x);
    });
    if (lost) controls->lost = 1;
}

// Sums of squares by chunk, then by span: one warp for each, in an order fixed by the number of chunks.
extern "C" __global__ void __launch_bounds__(256)
    squares(const Chunk* chunks, const float* vector, double* sums, u64 slab) {
    await_previous();
    const Chunk chunk = chunks[blockIdx.x];
    vector = mine(vector, slab); sums = mine(sums, slab);
    __shared__ double parts[256];
    double sum = 0.0;
    for (u32 i = chunk.start + threadIdx.x; i < chunk.start + chunk.length; i += 256) sum += (double)vector[i] * (double)vector[i];
    parts[threadIdx.x] = sum;
    __syncthreads();
    for (int d = 128; d > 0; d /= 2) {
        if (threadIdx.x < d) parts[threadIdx.x] += parts[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = parts[0];
}

extern "C" __global__ void __launch_bounds__(256)
    norms(const u32* first_chunk, int spans, const double* sums, double* out, u64 slab) {
    await_previous();
    sums = mine(sums, slab); out = mine(out, slab);
    const int span = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (span >= spans) return;
    double sum = 0.0;
    for (u32 chunk = first_chunk[span] + lane; chunk < first_chunk[span + 1]; chunk += 32) sum += sums[chunk];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (lane == 0) out[span] = sqrt(sum);
}

// A round: the weighted sum of the members, the move of the centre, the pull. One pass; the second read hits the
// cache.
// `absent` marks workers that are lost, or of another group: they stay as they are. A row of weights has one number for each
// worker, and then whether any worker on any GPU has a weight.
// An outer optimizer (`moving` is 3) takes a step with the difference to the sum as its gradient, in units of the learning rate.
// With `pushes` the workers stay as they are: `push` moves them when their distances to the centre are known.
struct Round {
    int members, per_span, moving, toward_old;
    float rate, pull, momentum, unit;
    int nesterov, pushes;
    u64 absent, replaced;
    float* velocity;
};
__device__ __forceinline__ float outer_step(const Round& round, float old, float average, u32 i) {
    const float gradient = round.unit > 0.0f ? bounded((old - average) / round.unit) : 0.0f;
    const float v = bounded(__fadd_rn(__fmul_rn(round.momentum, round.velocity[i]), gradient));
    round.velocity[i] = v;
    if (round.unit > 0.0f && round.rate == 1.0f && round.momentum == 0.0f) return average;
    const float step = round.nesterov ? bounded(__fadd_rn(gradient, __fmul_rn(round.momentum, v))) : v;
    return bounded(__fadd_rn(old, -__fmul_rn(round.rate * round.unit, step)));
}
__device__ __forceinline__ const float* row(const Round& round, const float* weights, const Chunk& chunk) {
    return weights + (round.per_span ? (u64)chunk.span * (round.members + 1) : 0);
}

extern "C" __global__ void __launch_bounds__(256)
    mix(const Span* spans, const Chunk* chunks, Round round, const float* weights, float* vectors, float* centre, char* base,
        int copies, u64 slab) {
    await_previous();
    const Chunk chunk = chunks[blockIdx.x];
    const Span span = spans[chunk.span];
    const float* w = row(round, weights, chunk);
    for (u32 i = chunk.start + threadIdx.x; i < chunk.start + chunk.length; i += 256) {
        float average = 0.0f;
        bool any = false;
        // Members without weight are skipped, not multiplied by zero: their vectors may not be finite.
        for (int m = 0; m < round.members; m++) {
            if (!(w[m] > 0.0f)) continue;
            const float x = ((const float*)((const char*)vectors + m * slab))[i];
            average = any ? average + w[m] * x : w[m] * x;
            any = true;
        }
        // Gradients have no previous centre: where no member's gradient is finite, the step is zero instead of the
        // last one again.
        const float old = round.moving == 2 ? 0.0f : centre[i];
        float made = old;
        if (any && round.moving == 3) made = outer_step(round, old, bounded(average), i);
        else if (any) made = round.moving == 1 ? bounded((1.0f - round.rate) * old + round.rate * average) : bounded(average);
        const float target = round.toward_old ? old : made;
        centre[i] = made;
        if (round.pushes) continue;
        for (int m = 0; m < round.members; m++) {
            float* x = (float*)((char*)vectors + m * slab) + i;
            float moved;
            if (round.replaced >> m & 1) moved = made;
            else if (!any || round.pull == 0.0f) continue;
            else if (round.pull == 1.0f) moved = target;
            else moved = bounded((1.0f - round.pull) * *x + round.pull * target);
            *x = moved;
            if (copies) pack_weights(span, base + m * slab, i - span.start, moved);
        }
    }
}

// Sums of squares by chunk: of the difference of each member to the centre, then of the centre.
extern "C" __global__ void __launch_bounds__(256)
    distances(const Chunk* chunks, Round round, const float* vectors, const float* centre, double* sums, u64 slab) {
    await_previous();
    const Chunk chunk = chunks[blockIdx.x];
    __shared__ double parts[256];
    for (int m = 0; m <= round.members; m++) {
        const float* vector = (const float*)((const char*)vectors + m * slab);
        double sum = 0.0;
        for (u32 i = chunk.start + threadIdx.x; i < chunk.start + chunk.length; i += 256) {
            const double x = m < round.members ? (double)vector[i] - (double)centre[i] : (double)centre[i];
            sum += x * x;
        }
        parts[threadIdx.x] = sum;
        __syncthreads();
        for (int d = 128; d > 0; d /= 2) {
            if (threadIdx.x < d) parts[threadIdx.x] += parts[threadIdx.x + d];
            __syncthreads();
        }
        if (threadIdx.x == 0) sums[(u64)blockIdx.x * (round.members + 1) + m] = parts[0];
        __syncthreads();
    }
}

// Moves each member by its own pull, which is negative where the push is stronger.
extern "C" __global__ void __launch_bounds__(256)
    push(const Span* spans, const Chunk* chunks, Round round, const float* pulls, float* vectors, const float* centre, char* base,
         int copies, u64 slab) {
    await_previous();
    const Chunk chunk = chunks[blockIdx.x];
    const Span span = spans[chunk.span];
    for (u32 i = chunk.start + threadIdx.x; i < chunk.start + chunk.length; i += 256) {
        const float target = centre[i];
        for (int m = 0; m < round.members; m++) {
            if (round.absent >> m & 1) continue;
            float* x = (float*)((char*)vectors + m * slab) + i;
            const double wide = *x;
            const float moved = round.replaced >> m & 1 ? target : bounded((float)(wide + (double)pulls[m] * ((double)target - wide)));
            *x = moved;
            if (copies) pack_weights(span, base + m * slab, i - span.start, moved);
        }
    }
}

// x + radius · g / (‖g‖ + 10⁻¹²); saves the parameters first. `norm` holds the norms of the spans.
extern "C" __global__ void __launch_bounds__(256)
    ascend(const Span* spans, const Chunk* chunks, const double* norm, int count, float radius, float* parameters, float* saved,
           const float* gradient, char* base, u64 slab) {
    await_previous();
    const Chunk chunk = chunks[blockIdx.x];
    const Span span = spans[chunk.span];
    norm = mine(norm, slab); parameters = mine(parameters, slab); saved = mine(saved, slab); gradient = mine(gradient, slab);
    base = mine(base, slab);
    double sum = 0.0;
    for (int k = 0; k < count; k++) sum += norm[k] * norm[k];
    const float scale = (float)((double)radius / (sqrt(sum) + 1e-12));
    for (u32 i = chunk.start + threadIdx.x; i < chunk.start + chunk.length; i += 256) {
        const float x = parameters[i], moved = x + scale * gradient[i];
        saved[i] = x;
        parameters[i] = moved;
        pack_weights(span, base, i - span.start, moved);
    }
}
