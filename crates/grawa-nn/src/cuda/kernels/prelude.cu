// Shared by all kernels: the storage type (bf16 or f32), access to eight values at a time, and the addresses of
// replicas.
//
// Activations are stored as batch × height × width × pitch. The pitch is the number of channels rounded up to eight;
// padding channels are zero. Every replica has its own slab with the same layout; blockIdx.z selects it.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if BF16
typedef u16 T;       // the storage type
typedef float Sum;   // the type of long sums
#else
typedef float T;
typedef double Sum;
#endif
struct __align__(16) Four { Sum x, y, z, w; };

// The first statement of every kernel. Inside a CUDA graph a kernel may be resident before the one it follows has ended
// (`Stream::launch`): it waits here, until everything before it is done and visible, and then admits its follower.
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <class P> __device__ __forceinline__ P* mine(P* pointer, u64 slab) {
    return pointer ? (P*)((char*)pointer + slab * blockIdx.z) : pointer;
}

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ float low_of(u32 both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high_of(u32 both) { return __uint_as_float(both & 0xffff0000u); }

__device__ __forceinline__ void load8(const u16* p, float (&v)[8]) {
    uint4 raw = *(const uint4*)p;
    v[0] = low_of(raw.x); v[1] = high_of(raw.x); v[2] = low_of(raw.y); v[3] = high_of(raw.y);
    v[4] = low_of(raw.z); v[5] = high_of(raw.z); v[6] = low_of(raw.w); v[7] = high_of(raw.w);
}
__device__ __forceinline__ void load8(const float* p, float (&v)[8]) {
    float4 a = ((const float4*)p)[0], b = ((const float4*)p)[1];
    v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}
__device__ __forceinline__ void store8(u16* p, const float (&v)[8]) {
    *(uint4*)p = make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
}
__device__ __forceinline__ void store8(float* p, const float (&v)[8]) {
    ((float4*)p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4*)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
// Eight stored values as loaded from memory: several loads are issued before the first is used.
#if BF16
typedef uint4 Raw;
__device__ __forceinline__ void unpack(const Raw& raw, float (&v)[8]) {
    v[0] = low_of(raw.x); v[1] = high_of(raw.x); v[2] = low_of(raw.y); v[3] = high_of(raw.y);
    v[4] = low_of(raw.z); v[5] = high_of(raw.z); v[6] = low_of(raw.w); v[7] = high_of(raw.w);
}
#else
struct Raw { float4 a, b; };
__device__ __forceinline__ void unpack(const Raw& raw, float (&v)[8]) {
    v[0] = raw.a.x; v[1] = raw.a.y; v[2] = raw.a.z; v[3] = raw.a.w; v[4] = raw.b.x; v[5] = raw.b.y; v[6] = raw.b.z; v[7] = raw.b.w;
}
#endif

__device__ __forceinline__ float get(const u16* p) { return __uint_as_float((u32)*p << 16); }
__device__ __forceinline__ float get(const float* p) { return *p; }
__device__ __forceinline__ void put(u16* p, float v) { *p = (u16)pack(v, 0.0f); }
__device__ __forceinline__ void put(float* p, float v) { *p = v; }
__device__ __forceinline__ float rounded(float v, const u16*) { return low_of(pack(v, 0.0f)); }
__device__ __forceinline__ float rounded(float v, const float*) { return v; }

// Stores, or adds to the old value.
__device__ __forceinline__ void flow8(T* p, float (&v)[8], int add) {
    if (add) {
        float old[8];
        load8(p, old);
        for (int i = 0; i < 8; i++) v[i] += old[i];
    }
    store8(p, v);
}

// A convolution, forward or backward: pixel (y, x) of the target reads pixel ((y·mul − off_y + r) / div, …) of the
// source where that is an integer and inside.
struct ConvGeometry {
    int n, h, w, cp;      // source: images, height, width, pitch
    int oh, ow, op, o;    // target: height, width, pitch, channels
    int kh, kw, mul, off_y, off_x, div;
};

// The record of a batch norm: rows of `pitch` numbers.
enum { MEAN, DEVIATION /* 1/√(variance + ε) */, SCALE, VARIANCE, OF_VALUE, CONSTANT };

// The addresses of a batch norm's data, and whether to update its running statistics.
struct Norm {
    float* record;
    const float* weight;
    const float* bias;
    float* running_mean;
    float* running_variance;
    Sum* partial;             // one row of sums for each block, see `add_rows`
    const float* offset;      // a bias that the layer omitted, because it only affects the running mean
    double epsilon;
    int channels, pitch, track;
    int rows;                 // rows of sums that the reader must add; 0 if the record is complete
    float count;
};

// Philox4x32 with ten rounds, as in grawa-core.
struct Key { u32 seed_low, seed_high, purpose, worker, step_low, step_high; };
__device__ __forceinline__ uint4 philox(const Key& key, u32 index) {
    u32 c0 = index, c1 = key.step_low, c2 = key.step_high | (key.purpose << 24), c3 = key.worker;
    u32 k0 = key.seed_low, k1 = key.seed_high;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
        u32 n0 = (u32)(b >> 32) ^ c1 ^ k0, n2 = (u32)(a >> 32) ^ c3 ^ k1;
        c1 = (u32)b; c3 = (u32)a; c0 = n0; c2 = n2;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

// Sums over all pixels. Each block of the kernel that sums leaves a row: the first sums of `all` channels, then their second sums.
// The kernel that reads the totals adds the rows: in the kernel that sums, one block would have to wait for all others.
//
// Adds the rows for `width` channels from `from` on, in an order fixed by the shape: `out` has the first sums, then the second
// sums. `parts` holds 4 · 256 numbers. All 256 threads of the block take part.
__device__ __forceinline__ void add_rows(const Sum* rows, int count, int all, int from, int width, Sum* parts, double* out) {
    constexpr int U = 8;
    const int quads = width / 2, lanes = quads < 256 ? 256 / quads : 1;
    for (int base = 0; base < quads; base += 256) {
        const int lane = quads < 256 ? threadIdx.x / quads : 0, quad = quads < 256 ? threadIdx.x - lane * quads : base + threadIdx.x;
        if (lane >= lanes || quad >= quads) continue;
        const int half = quads / 2, column = quad < half ? from + 4 * quad : all + from + 4 * (quad - half);
        Sum sums[4] = {};
        for (int first = lane; first < count; first += U * lanes) {
            Four v[U] = {};
#pragma unroll
            for (int u = 0; u < U; u++)
                if (first + u * lanes < count) v[u] = *(const Four*)(rows + (u64)(first + u * lanes) * 2 * all + column);
#pragma unroll
            for (int u = 0; u < U; u++) {
                sums[0] += v[u].x; sums[1] += v[u].y; sums[2] += v[u].z; sums[3] += v[u].w;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (lanes > 1) parts[lane * 2 * width + 4 * quad + i] = sums[i];
            else out[4 * quad + i] = sums[i];
    }
    __syncthreads();
    if (lanes == 1) return;
    for (int i = threadIdx.x; i < 2 * width; i += 256) {
        double sum = 0.0;
        for (int lane = 0; lane < lanes; lane++) sum += parts[lane * 2 * width + i];
        out[i] = sum;
    }
    __syncthreads();
}

// The forward factors of a channel.
struct Factor { float mean, scale; };

// Computes them from the moments. The thread that `keeps` them also updates the record and the running statistics.
__device__ __forceinline__ Factor settle(const Norm& norm, int c, double mean, double variance, bool keeps) {
#if BF16
    const float deviation = 1.0f / sqrtf((float)(variance + norm.epsilon));
#else
    const float deviation = (float)(1.0 / sqrt(variance + norm.epsilon));
#endif
    const Factor factor = {(float)mean, c < norm.channels ? norm.weight[c] * deviation : 0.0f};
    if (!keeps) return factor;
    norm.record[MEAN * norm.pitch + c] = factor.mean;
    norm.record[DEVIATION * norm.pitch + c] = deviation;
    norm.record[SCALE * norm.pitch + c] = factor.scale;
    norm.record[VARIANCE * norm.pitch + c] = (float)variance;
    if (norm.track && c < norm.channels) {
        // A single value has no unbiased variance: the biased one is used.
        const double unbiased = norm.count / (norm.count > 1.0f ? norm.count - 1.0f : 1.0f);
        const float offset = norm.offset ? norm.offset[c] : 0.0f;
        norm.running_mean[c] = 0.9f * norm.running_mean[c] + 0.1f * (factor.mean + offset);
        norm.running_variance[c] = 0.9f * norm.running_variance[c] + 0.1f * (float)(unbiased * variance);
    }
    return factor;
}

// Mean, scale and shift of the eight channels of a group.
struct Rows { float mean[8], scale[8], bias[8]; };

__device__ __forceinline__ Rows rows_of(const Norm& norm, int group) {
    Rows of;
    load8(norm.record + MEAN * norm.pitch + group * 8, of.mean);
    load8(norm.record + SCALE * norm.pitch + group * 8, of.scale);
#pragma unroll
    for (int i = 0; i < 8; i++) of.bias[i] = group * 8 + i < norm.channels ? norm.bias[group * 8 + i] : 0.0f;
    return of;
}

enum { NO_MASK, MASK_BY_VALUE /* scale·y + shift > 0 */, MASK_BY_BITS /* a bit of each result: whether it is positive */ };

// The bits of eight results, in one byte: of a result with a shortcut this is less to read than the result.
__device__ __forceinline__ u8 positive_bits(const float (&v)[8]) {
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) bits |= (u32)(v[i] > 0.0f) << i;
    return (u8)bits;
}
__device__ __forceinline__ void keep_positive(float (&g)[8], u32 bits) {
#pragma unroll
    for (int i = 0; i < 8; i++) g[i] = bits >> i & 1 ? g[i] : 0.0f;
}

// The backward sums of a batch norm: of the gradient, and of the gradient times the value without its mean. A kernel that
// stores the last contribution to the gradient computes them too.
struct Sums {
    const T* y;         // what the batch norm normalised
    const u8* positive; // the bits of its results, if they mask
    float* dweight;
    float* dbias;
    int mask, of_batch;
};

__device__ __forceinline__ Sums mine(Sums sums, u64 slab) {
    sums.y = mine(sums.y, slab);
    sums.positive = mine(sums.positive, slab);
    sums.dweight = mine(sums.dweight, slab);
    sums.dbias = mine(sums.dbias, slab);
    return sums;
}

// The backward factors of a channel: of the value without its mean, and a constant.
struct FlowFactor { float of_value, constant; };

// Computes them from the sums. The thread that `keeps` them also stores them, and the gradients of scale and shift.
__device__ __forceinline__ FlowFactor settle_flow(const Norm& norm, const Sums& sums, int c, double sum, double along, bool keeps) {
    const float scale = norm.record[SCALE * norm.pitch + c];
    const double deviation = norm.record[DEVIATION * norm.pitch + c], each = sums.of_batch ? -(Sum)scale / (Sum)norm.count : (Sum)0;
    along *= deviation;
    const FlowFactor factor = {(float)(each * along * deviation), (float)(each * sum)};
    if (!keeps) return factor;
    norm.record[OF_VALUE * norm.pitch + c] = factor.of_value;
    norm.record[CONSTANT * norm.pitch + c] = factor.constant;
    if (c < norm.channels) {
        sums.dbias[c] = (float)sum;
        sums.dweight[c] = (float)along;
    }
    return factor;
}

__device__ __forceinline__ Norm mine(Norm norm, u64 slab) {
    norm.record = mine(norm.record, slab);
    norm.weight = mine(norm.weight, slab);
    norm.bias = mine(norm.bias, slab);
    norm.running_mean = mine(norm.running_mean, slab);
    norm.running_variance = mine(norm.running_variance, slab);
    norm.partial = mine(norm.partial, slab);
    norm.offset = mine(norm.offset, slab);
    return norm;
}
