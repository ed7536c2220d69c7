// A round with workers on several GPUs: each GPU sums its own workers, the sums are all-reduced, each GPU computes the
// centre from the total and pulls its own workers. Every GPU must compute the same centre. With one worker for each
// GPU it is that of the CPU: so products are rounded before they are added.

__device__ __forceinline__ float pulled(float x, float target, float strength) {
    return bounded(__fadd_rn(__fmul_rn(1.0f - strength, x), __fmul_rn(strength, target)));
}

extern "C" __global__ void __launch_bounds__(256)
    device_sum(const Chunk* chunks, Round round, const float* weights, const float* vectors, float* sum, u64 slab) {
    await_previous();
    const Chunk chunk = chunks[blockIdx.x];
    const float* w = row(round, weights, chunk);
    for (u32 i = chunk.start + threadIdx.x; i < chunk.start + chunk.length; i += 256) {
        float total = 0.0f;
        // Workers without weight are skipped, not multiplied by zero: their vectors may not be finite.
        for (int m = 0; m < round.members; m++)
            if (w[m] > 0.0f) total = __fadd_rn(total, __fmul_rn(w[m], ((const float*)((const char*)vectors + m * slab))[i]));
        sum[i] = total;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    device_pull(const Span* spans, const Chunk* chunks, Round round, const float* weights, const float* sum, float* vectors, float* centre,
              char* base, int copies, u64 slab) {
    await_previous();
    const Chunk chunk = chunks[blockIdx.x];
    const Span span = spans[chunk.span];
    const bool any = row(round, weights, chunk)[round.members] > 0.0f;
    for (u32 i = chunk.start + threadIdx.x; i < chunk.start + chunk.length; i += 256) {
        // Gradients have no previous centre: where no worker's gradient is finite, the step is zero instead of the
        // last one again.
        const float old = round.moving == 2 ? 0.0f : centre[i];
        float made = old;
        if (any && round.moving == 3) made = outer_step(round, old, bounded(sum[i]), i);
        else if (any) made = round.moving == 1 ? pulled(old, sum[i], round.rate) : bounded(sum[i]);
        const float target = round.toward_old ? old : made;
        centre[i] = made;
        if (round.pushes) continue;
        for (int m = 0; m < round.members; m++) {
            if (round.absent >> m & 1) continue;
            float* x = (float*)((char*)vectors + m * slab) + i;
            float moved;
            if (round.replaced >> m & 1) moved = made;
            else if (!any || round.pull == 0.0f) continue;
            else if (round.pull == 1.0f) moved = target;
            else moved = pulled(*x, target, round.pull);
            *x = moved;
            if (copies) pack_weights(span, base + m * slab, i - span.start, moved);
        }
    }
}
