// A round whose workers lie on several cards: each card sums its own, the sums are added up elsewhere, each card makes the
// centre from what came of it and pulls its own. Every card must make the same centre, and with one worker a card it is the
// CPU's: so products are rounded before they are added.

// `absent`: workers that are lost, or of another group, and stay as they are. A row of weights has one for each worker, and
// whether anybody on any card has any.
struct Part { int members, per_span, moving, toward_old; float rate, pull; u64 absent, replaced; };

__device__ __forceinline__ const float* row(const Part& part, const float* weights, const Chunk& chunk) {
    return weights + (part.per_span ? (u64)chunk.span * (part.members + 1) : 0);
}

__device__ __forceinline__ float pulled(float x, float target, float strength) {
    return bounded(__fadd_rn(__fmul_rn(1.0f - strength, x), __fmul_rn(strength, target)));
}

extern "C" __global__ void __launch_bounds__(256)
    device_sum(const Chunk* chunks, Part part, const float* weights, const float* vectors, float* sum, u64 slab) {
    const Chunk chunk = chunks[blockIdx.x];
    const float* w = row(part, weights, chunk);
    for (u32 i = chunk.start + threadIdx.x; i < chunk.start + chunk.length; i += 256) {
        float total = 0.0f;
        // A worker of no weight is left out, not multiplied by zero: its vector may not be finite.
        for (int m = 0; m < part.members; m++)
            if (w[m] > 0.0f) total = __fadd_rn(total, __fmul_rn(w[m], ((const float*)((const char*)vectors + m * slab))[i]));
        sum[i] = total;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    device_pull(const Span* spans, const Chunk* chunks, Part part, const float* weights, const float* sum, float* vectors, float* centre,
              char* base, int copies, u64 slab) {
    const Chunk chunk = chunks[blockIdx.x];
    const Span span = spans[chunk.span];
    const bool any = row(part, weights, chunk)[part.members] > 0.0f;
    for (u32 i = chunk.start + threadIdx.x; i < chunk.start + chunk.length; i += 256) {
        // Gradients have no past: where nobody's is finite, the step is none, not the last one again.
        const float old = part.moving == 2 ? 0.0f : centre[i];
        float made = old;
        if (any) made = part.moving == 1 ? pulled(old, sum[i], part.rate) : bounded(sum[i]);
        const float target = part.toward_old ? old : made;
        centre[i] = made;
        for (int m = 0; m < part.members; m++) {
            if (part.absent >> m & 1) continue;
            float* x = (float*)((char*)vectors + m * slab) + i;
            float moved;
            if (part.replaced >> m & 1) moved = made;
            else if (!any || part.pull == 0.0f) continue;
            else if (part.pull == 1.0f) moved = target;
            else moved = pulled(*x, target, part.pull);
            *x = moved;
            if (copies) pack_weights(span, base + m * slab, i - span.start, moved);
        }
    }
}
