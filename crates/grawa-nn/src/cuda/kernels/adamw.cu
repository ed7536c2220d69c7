// The AdamW update; see `optimizer.rs` of grawa-core for the arithmetic.
//
// Behind the second moment of a worker are three numbers: its steps of AdamW, η/(1 − β₁ᵗ) and √(1 − β₂ᵗ).

// `gather`: the gradient is still where the backward pass left it.
struct AdamW { double beta1, beta2; float eps, weight_decay; int gather; };

// Counts the step, in a kernel of its own: no block of the update may see another count.
extern "C" __global__ void __launch_bounds__(256)
    adamw_position(const Controls* controls, AdamW adamw, float* second, u64 length, u64 stride, u64 slab) {
    await_previous();
    if (threadIdx.x) return;
    controls = mine(controls, slab);
    float* position = second + stride * blockIdx.z + length;
    const float steps = position[0] + 1.0f;
    position[0] = steps;
    position[1] = (float)((double)controls->rate / (1.0 - pow(adamw.beta1, (double)steps)));
    position[2] = (float)sqrt(1.0 - pow(adamw.beta2, (double)steps));
}

extern "C" __global__ void __launch_bounds__(256)
    adamw(const Span* spans, const Chunk* chunks, Controls* controls, AdamW adamw, float* __restrict__ parameters,
          float* __restrict__ first, float* __restrict__ second, const float* __restrict__ gradient,
          const float* __restrict__ outer, const float* __restrict__ inner, u32 group, u32 lead, u64 length, u64 stride,
          char* base, u64 slab) {
    await_previous();
    // As in `update`: the centre of the worker's group, and the position for the next step.
    if (inner) inner += (blockIdx.z + lead) / group * length;
    const Chunk chunk = chunks[blockIdx.x];
    const Span span = spans[chunk.span];
    controls = mine(controls, slab); parameters = mine(parameters, slab); first = mine(first, slab);
    gradient = mine(gradient, slab); base = mine(base, slab);
    second += stride * blockIdx.z;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        controls->slot++;
        if (++controls->step_low == 0) controls->step_high++;
    }
    const float size = second[length + 1], root = second[length + 2];
    const float keep = (float)(1.0 - (double)controls->rate * (double)adamw.weight_decay);
    const float into_first = (float)(1.0 - adamw.beta1), stay = (float)adamw.beta2, into_second = (float)(1.0 - adamw.beta2);
    const float pulls[2] = {outer ? controls->prox[0] : 0.0f, inner ? controls->prox[1] : 0.0f};
    bool lost = false;
    each_gradient(span, chunk, base, gradient, adamw.gather, [&](u32 i, float g) {
        float x = parameters[i], m = first[i], v = second[i];
        m += into_first * (g - m);
        v = stay * v + into_second * g * g;
        x = keep * x - size * (m / (sqrtf(v) / root + adamw.eps));
        // A pull clamps its result: what is not finite must stay so, to be noticed at the round.
        if (isfinite(x)) {
            if (pulls[0] > 0.0f) x = bounded((1.0f - pulls[0]) * x + pulls[0] * outer[i]);
            if (pulls[1] > 0.0f) x = bounded((1.0f - pulls[1]) * x + pulls[1] * inner[i]);
        } else {
            lost = true;
        }
        parameters[i] = x;
        first[i] = m;
        second[i] = v;
        pack_weights(span, base, i - span.start, x);
    });
    if (lost) controls->lost = 1;
}
