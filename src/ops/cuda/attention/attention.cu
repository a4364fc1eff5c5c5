/* attention.cu - softmax attention: which path, the key/value cache, and the decode step.
 *
 * With a cache, sequences with one new token are decode steps: their keys are cut into at most 64 splits, a CTA each, and joined
 * in order. The others (prefill) append first and then run the same tiles as training. Both go in groups handed over by value.
 * Invariant: how a sequence is cut depends on its own length, so our kernels give it the same bits whatever else is in the
 * batch. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/cuda/attention/attention.cuh"

/* $IDA_ATTENTION, read once: "cudnn" (default), "cudnn-fast" (its backward pass adds up out of order), "own" (our kernels
 * only). */
enum choice { CHOICE_CUDNN, CHOICE_CUDNN_FAST, CHOICE_OWN, N_CHOICES };

static ida_status choose(enum choice *out) {
    static const char *const names[N_CHOICES] = {"cudnn", "cudnn-fast", "own"};
    static const char *const given = getenv("IDA_ATTENTION");
    *out = CHOICE_CUDNN;
    if (!given || !given[0]) return IDA_OK;
    for (int i = 0; i < N_CHOICES; i++)
        if (strcmp(given, names[i]) == 0) {
            *out = (enum choice)i;
            return IDA_OK;
        }
    IDA_FAIL(IDA_E_ARG, "IDA_ATTENTION is \"%.40s\": give cudnn, cudnn-fast or own", given);
}

/* ---- decode */
enum { CHUNK = 256, MAX_SPLITS = 64, DECODE_THREADS = 128, AHEAD = 4 };

/* Keys of a split: a multiple of CHUNK. */
static __host__ __device__ int split_keys(int n_keys) {
    const int chunks = (n_keys - 1) / CHUNK + 1;
    return ((chunks - 1) / MAX_SPLITS + 1) * CHUNK;
}

ATTN_DEV void load8(float (&x)[8], const bf16 *from) {
    const uint4 raw = *(const uint4 *)from;
    const __nv_bfloat162 *two = (const __nv_bfloat162 *)&raw;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 f = __bfloat1622float2(two[i]);
        x[2 * i] = f.x;
        x[2 * i + 1] = f.y;
    }
}
ATTN_DEV void load8(float (&x)[8], const float *from) {
    const float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
ATTN_DEV void copy8(bf16 *to, const bf16 *from) { *(uint4 *)to = *(const uint4 *)from; }
ATTN_DEV void copy8(float *to, const float *from) {
    ((float4 *)to)[0] = ((const float4 *)from)[0];
    ((float4 *)to)[1] = ((const float4 *)from)[1];
}

/* What a decode CTA works on: keys [begin, end) of one sequence and group, `n` heads of it from `head` on. */
template <class T> struct decode_span {
    const T *k, *v;         /* the cache, at this group */
    const T *k_new, *v_new; /* the row of key `past` */
    T *k_to, *v_to;         /* where it is appended; NULL: not by this CTA */
    int64_t stride;
    int past, begin, end, head, n;
};

/* Row `key` (new: not yet in the cache), 8 columns from `column` on. */
template <class T> ATTN_DEV void load_key(float (&x)[8], const T *cache, const T *fresh, T *append, const decode_span<T> &w,
                                          int key, int column, int d) {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = 0.0f;
    if (key >= w.end || column >= d) return;
    load8(x, key == w.past ? fresh + column : cache + key * w.stride + column);
    if (key == w.past && append) copy8(append + column, fresh + column);
}

/* score[h][key - from] = q_h . k, keys [from, from + CHUNK) before the end */
template <class T, int LANES, int HB>
ATTN_DEV void decode_scores(float (&score)[HB][CHUNK], const float (&q)[HB][8], const decode_span<T> &w, int from, int d) {
    constexpr int KEYS = DECODE_THREADS / LANES;
    const int slot = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    for (int j0 = 0; j0 < CHUNK && from + j0 < w.end; j0 += KEYS * AHEAD) {
        float x[AHEAD][8];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) load_key(x[u], w.k, w.k_new, w.k_to, w, from + j0 + u * KEYS + slot, lane * 8, d);
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
#pragma unroll
            for (int h = 0; h < HB; h++) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < 8; i++) sum = fmaf(q[h][i], x[u][i], sum);
#pragma unroll
                for (int i = LANES / 2; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
                if (lane == 0) score[h][j0 + u * KEYS + slot] = sum;
            }
    }
}

/* Scores to weights, with the running maximum and sum of each head; keep: the factor for what was summed before. */
template <int HB> ATTN_DEV void decode_softmax(float (&score)[HB][CHUNK], float *m, float *l, float *keep, int n_keys) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int h = warp; h < HB; h += DECODE_THREADS / 32) {
        float x[CHUNK / 32], top = m[h], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNK / 32; i++) {
            x[i] = lane + i * 32 < n_keys ? score[h][lane + i * 32] : -INFINITY;
            top = fmaxf(top, x[i]);
        }
        top = warp_max(top);
#pragma unroll
        for (int i = 0; i < CHUNK / 32; i++) {
            const float e = exp2_fast(x[i] - top);
            score[h][lane + i * 32] = e;
            sum += e;
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            keep[h] = exp2_fast(m[h] - top);
            l[h] = fmaf(l[h], keep[h], sum);
            m[h] = top;
        }
    }
}

/* acc_h = acc_h keep_h + sum_j weight_hj v_j, this thread's keys and columns */
template <class T, int LANES, int HB> ATTN_DEV void decode_values(float (&acc)[HB][8], const float (&weight)[HB][CHUNK],
                                                                  const float *keep, const decode_span<T> &w, int from, int d) {
    constexpr int KEYS = DECODE_THREADS / LANES;
    const int slot = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
#pragma unroll
    for (int h = 0; h < HB; h++)
#pragma unroll
        for (int i = 0; i < 8; i++) acc[h][i] *= keep[h];
    for (int j0 = 0; j0 < CHUNK && from + j0 < w.end; j0 += KEYS * AHEAD) {
        float x[AHEAD][8];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) load_key(x[u], w.v, w.v_new, w.v_to, w, from + j0 + u * KEYS + slot, lane * 8, d);
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
#pragma unroll
            for (int h = 0; h < HB; h++) {
                const float e = weight[h][j0 + u * KEYS + slot];
#pragma unroll
                for (int i = 0; i < 8; i++) acc[h][i] = fmaf(e, x[u][i], acc[h][i]);
            }
    }
}

template <class T> ATTN_DEV decode_span<T> decode_span_of(const attn_params &p, const attn_group &g, int s, int split, int hb) {
    decode_span<T> w;
    const int runs = (p.per + hb - 1) / hb, kv = (int)blockIdx.y / runs, run = (int)blockIdx.y % runs;
    const int n_keys = g.past[s] + 1, size = split_keys(n_keys);
    w.stride = (int64_t)p.g * p.d;
    const int64_t at = (int64_t)kv * p.d, fresh = g.row0[s] * w.stride + at;
    w.past = g.past[s], w.begin = split * size, w.end = min(n_keys, w.begin + size);
    w.head = kv * p.per + run * hb, w.n = min(hb, p.per - run * hb);
    w.k = (const T *)g.k[s] + at, w.v = (const T *)g.v[s] + at;
    w.k_new = (const T *)p.k + fresh, w.v_new = (const T *)p.v + fresh;
    w.k_to = run == 0 ? (T *)g.k[s] + w.past * w.stride + at : NULL;
    w.v_to = run == 0 ? (T *)g.v[s] + w.past * w.stride + at : NULL;
    return w;
}

/* A CTA per split, key group and run of HB query heads; LANES threads along a row of 8 LANES columns. part [splits, H, D + 2]:
 * sums, maximum (of log2), sum of weights; a sequence of one split goes straight to o. */
template <class T, int LANES, int HB> static __global__ void __launch_bounds__(DECODE_THREADS)
    attention_decode__splits(const __grid_constant__ attn_params p, const __grid_constant__ attn_group g, float *part) {
    __shared__ float weight[HB][CHUNK], sums[DECODE_THREADS / 32][HB][LANES * 8], m[HB], l[HB], keep[HB];
    int s = 0, hi = g.n;
    while (hi - s > 1) {
        const int mid = (s + hi) / 2;
        if (g.tile0[mid] <= (int)blockIdx.x) s = mid;
        else hi = mid;
    }
    const decode_span<T> w = decode_span_of<T>(p, g, s, (int)blockIdx.x - g.tile0[s], HB);
    const bool whole = g.tile0[s + 1] - g.tile0[s] == 1;
    const int d = p.d, lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / 32;
    float q[HB][8], acc[HB][8] = {};
#pragma unroll
    for (int h = 0; h < HB; h++) {
#pragma unroll
        for (int i = 0; i < 8; i++) q[h][i] = 0.0f;
        if (h < w.n && lane * 8 < d) load8(q[h], (const T *)p.q + (g.row0[s] * p.h + w.head + h) * d + lane * 8);
#pragma unroll
        for (int i = 0; i < 8; i++) q[h][i] *= p.scale2;
    }
    if (threadIdx.x < HB) {
        m[threadIdx.x] = -INFINITY;
        l[threadIdx.x] = 0.0f;
    }
    for (int from = w.begin; from < w.end; from += CHUNK) {
        __syncthreads();
        decode_scores<T, LANES, HB>(weight, q, w, from, d);
        __syncthreads();
        decode_softmax<HB>(weight, m, l, keep, w.end - from);
        __syncthreads();
        decode_values<T, LANES, HB>(acc, weight, keep, w, from, d);
    }
#pragma unroll
    for (int h = 0; h < HB; h++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int x = LANES; x < 32; x *= 2) acc[h][i] += __shfl_xor_sync(0xffffffffu, acc[h][i], x);
            if (threadIdx.x % 32 < LANES) sums[warp][h][lane * 8 + i] = acc[h][i];
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < w.n * d; i += DECODE_THREADS) {
        const int h = i / d, c = i % d;
        const float sum = sums[0][h][c] + sums[1][h][c] + sums[2][h][c] + sums[3][h][c];
        if (whole) ((T *)p.o)[(g.row0[s] * p.h + w.head + h) * d + c] = (T)(sum / l[h]);
        else part[((int64_t)blockIdx.x * p.h + w.head + h) * (d + 2) + c] = sum;
    }
    if ((int)threadIdx.x < w.n) {
        const int h = (int)threadIdx.x;
        float *to = part + ((int64_t)blockIdx.x * p.h + w.head + h) * (d + 2) + d;
        if (!whole) {
            to[0] = m[h];
            to[1] = l[h];
        } else if (p.lse) {
            p.lse[g.row0[s] * p.h + w.head + h] = (m[h] + log2f(l[h])) * ATTN_LN2;
        }
    }
}

/* o of one sequence and head from its splits, in order. */
template <class T> static __global__ void __launch_bounds__(ATTN_MAX_D)
    attention_decode__join(const __grid_constant__ attn_params p, const __grid_constant__ attn_group g, const float *part) {
    __shared__ float factor[MAX_SPLITS];
    const int s = (int)blockIdx.x, head = (int)blockIdx.y, first = g.tile0[s], n = g.tile0[s + 1] - first, d = p.d;
    if (n <= 1) return;
    const int64_t step = (int64_t)p.h * (d + 2);
    const float *from = part + ((int64_t)first * p.h + head) * (d + 2);
    float top = -INFINITY, total = 0.0f;
    for (int i = 0; i < n; i++) top = fmaxf(top, from[i * step + d]);
    if ((int)threadIdx.x < n) factor[threadIdx.x] = exp2_fast(from[threadIdx.x * step + d] - top);
    __syncthreads();
    for (int i = 0; i < n; i++) total = fmaf(factor[i], from[i * step + d + 1], total);
    if ((int)threadIdx.x < d) {
        float sum = 0.0f;
#pragma unroll 8
        for (int i = 0; i < n; i++) sum = fmaf(factor[i], from[i * step + threadIdx.x], sum);
        ((T *)p.o)[(g.row0[s] * p.h + head) * d + threadIdx.x] = (T)(sum / total);
    }
    if (p.lse && threadIdx.x == 0) p.lse[g.row0[s] * p.h + head] = (top + log2f(total)) * ATTN_LN2;
}

template <class T, int LANES>
static void launch_splits(const attn_params *p, const attn_group *g, float *part, cudaStream_t stream) {
    const unsigned splits = (unsigned)g->tile0[g->n], groups = (unsigned)p->g;
    if (p->per == 1) attention_decode__splits<T, LANES, 1><<<dim3(splits, groups), DECODE_THREADS, 0, stream>>>(*p, *g, part);
    else if (p->per == 2)
        attention_decode__splits<T, LANES, 2><<<dim3(splits, groups), DECODE_THREADS, 0, stream>>>(*p, *g, part);
    else if (p->per <= 4)
        attention_decode__splits<T, LANES, 4><<<dim3(splits, groups), DECODE_THREADS, 0, stream>>>(*p, *g, part);
    else
        attention_decode__splits<T, LANES, 8>
            <<<dim3(splits, groups * (unsigned)((p->per + 7) / 8)), DECODE_THREADS, 0, stream>>>(*p, *g, part);
}
static ida_status launch_decode(const ida_device *dev, const attn_params *p, const attn_group *g, float *part) {
    const cudaStream_t stream = ida_cuda_of(dev)->stream;
    IDA_CUDA_ACT(dev, T, p->d <= 64 ? launch_splits<T, 8>(p, g, part, stream) : launch_splits<T, 16>(p, g, part, stream));
    IDA_TRY(IDA_CUDA_LAUNCHED("attention decode"));
    bool whole = true;
    for (int s = 0; s < g->n; s++) whole = whole && g->tile0[s + 1] - g->tile0[s] == 1;
    if (whole) return IDA_OK;
    IDA_CUDA_ACT(dev, T,
                 attention_decode__join<T><<<dim3((unsigned)g->n, (unsigned)p->h), ATTN_MAX_D, 0, stream>>>(*p, *g, part));
    return IDA_CUDA_LAUNCHED("attention decode join");
}

/* ---- cache */
/* The new rows of k (z 0) and v (z 1) to the cache, in pieces of U. */
template <class U> static __global__ void attention_append__pieces(const __grid_constant__ attn_params p,
                                                           const __grid_constant__ attn_group g, int row_pieces) {
    const int s = (int)blockIdx.y;
    const int64_t n = (int64_t)g.len[s] * row_pieces;
    const U *from = (const U *)(blockIdx.z ? p.v : p.k) + g.row0[s] * row_pieces;
    U *to = (U *)(blockIdx.z ? g.v[s] : g.k[s]) + (int64_t)g.past[s] * row_pieces;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) to[i] = from[i];
}

static ida_status launch_append(const ida_device *dev, const attn_params *p, const attn_group *g, bool vector) {
    const ida_cuda *c = ida_cuda_of(dev);
    const int64_t row = ida_act_bytes(&c->base, (int64_t)p->g * p->d), unit = vector ? 16 : ida_act_bytes(&c->base, 1),
                  pieces = row / unit;
    int64_t most = 0;
    for (int s = 0; s < g->n; s++) most = g->len[s] > most ? g->len[s] : most;
    const int64_t blocks = (most * pieces + 1023) / 1024;
    const dim3 grid((unsigned)(blocks < 1024 ? blocks : 1024), (unsigned)g->n, 2);
    if (vector) attention_append__pieces<uint4><<<grid, 256, 0, c->stream>>>(*p, *g, (int)pieces);
    else if (c->bf16) attention_append__pieces<uint16_t><<<grid, 256, 0, c->stream>>>(*p, *g, (int)pieces);
    else attention_append__pieces<uint32_t><<<grid, 256, 0, c->stream>>>(*p, *g, (int)pieces);
    return IDA_CUDA_LAUNCHED("attention cache");
}

/* A walk over the sequences in groups. launch false: only finds the floats of scratch that decode steps need. */
typedef struct cached_walk {
    const ida_device *dev;
    const attn_params *p;
    bool vector, tensor_cores, launch;
    int tile;
    int64_t need;
    float *part;
    attn_group decode, prefill;
} cached_walk;

static ida_status flush(cached_walk *w, attn_group *g) {
    const bool decode = g == &w->decode;
    if (g->n == 0) return IDA_OK;
    if (decode) {
        const int64_t need = (int64_t)g->tile0[g->n] * w->p->h * (w->p->d + 2);
        if (need > w->need) w->need = need;
    }
    if (w->launch) {
        if (decode) IDA_TRY(launch_decode(w->dev, w->p, g, w->part));
        else {
            IDA_TRY(launch_append(w->dev, w->p, g, w->vector));
            IDA_TRY(w->tensor_cores ? attn_launch_fwd_tile(w->dev, w->p, g) : attn_launch_fwd_plain(w->dev, w->p, g));
        }
    }
    g->n = 0;
    return IDA_OK;
}

static ida_status walk(cached_walk *w, const ida_attention_args *a, const ida_seqs *seqs) {
    w->decode.n = w->prefill.n = w->decode.tile0[0] = w->prefill.tile0[0] = 0;
    for (int64_t s = 0; s < seqs->n; s++) {
        const int64_t len = seqs->cu[s + 1] - seqs->cu[s], past = seqs->pos0 ? seqs->pos0[s] : 0;
        if (len == 0) continue;
        IDA_FAIL_IF(len > INT32_MAX / 2 || past > INT32_MAX / 2, IDA_E_UNSUPPORTED,
                    "attention: a sequence of %lld + %lld tokens is too long", (long long)past, (long long)len);
        attn_group *g = len == 1 && w->vector ? &w->decode : &w->prefill;
        const int n_keys = (int)(past + len), size = g == &w->decode ? split_keys(n_keys) : w->tile;
        const int tiles = ((g == &w->decode ? n_keys : (int)len) - 1) / size + 1;
        if (g->n == ATTN_GROUP || (g->n > 0 && g->tile0[g->n] > INT32_MAX / 2)) IDA_TRY(flush(w, g));
        g->k[g->n] = a->k_cache[s], g->v[g->n] = a->v_cache[s];
        g->len[g->n] = (int)len, g->past[g->n] = (int)past, g->row0[g->n] = seqs->cu[s];
        g->tile0[g->n + 1] = g->tile0[g->n] + tiles;
        g->n++;
    }
    IDA_TRY(flush(w, &w->decode));
    return flush(w, &w->prefill);
}

/* ---- entries */
/* Rows of 16-byte pieces, at most ATTN_MAX_D wide. */
static bool is_vector(const ida_attention_args *a, const ida_seqs *seqs) {
    bool yes = a->d % 8 == 0 && a->d <= ATTN_MAX_D && vec_aligned(a->q, a->k, a->v, a->o);
    if (a->k_cache)
        for (int64_t s = 0; s < seqs->n && yes; s++)
            yes = seqs->cu[s + 1] == seqs->cu[s] || vec_aligned(a->k_cache[s], a->v_cache[s]);
    return yes;
}

static ida_status params_of(const ida_device *dev, const ida_attention_args *a, const ida_seqs *seqs, attn_params *out) {
    assert(a->g > 0 && a->h % a->g == 0 && a->d > 0);
    IDA_FAIL_IF(a->h > 65535 || a->d > 65536, IDA_E_UNSUPPORTED, "attention: %lld heads of %lld", (long long)a->h,
                (long long)a->d);
    *out = attn_params{};
    out->h = (int)a->h, out->g = (int)a->g, out->per = (int)(a->h / a->g), out->d = (int)a->d;
    out->scale = (float)(1.0 / sqrt((double)a->d)), out->scale2 = (float)(1.4426950408889634 / sqrt((double)a->d));
    out->n_seq = seqs->n, out->n_tokens = seqs->cu[seqs->n];
    out->q = a->q, out->k = a->k, out->v = a->v, out->o = a->o, out->lse = a->lse;
    if (a->k_cache) return IDA_OK;
    ida_cuda_seqs on_device;
    IDA_TRY(ida_cuda_seqs_of(dev, seqs, &on_device));
    IDA_FAIL_IF(on_device.longest > INT32_MAX / 2, IDA_E_UNSUPPORTED, "attention: a sequence of %lld tokens is too long",
                (long long)on_device.longest);
    out->cu = on_device.cu;
    return IDA_OK;
}

/* Where cuDNN serves: all sequences of one length. Below MIN_CUDNN tokens a launch of it costs more than it saves. */
enum { MIN_CUDNN = 2048, MIN_CUDNN_LEN = 128 };
static bool suits_cudnn(const ida_device *dev, const ida_attention_args *a, const ida_seqs *seqs, bool vector,
                        enum choice choice) {
    const int64_t len = seqs->cu[1];
    bool yes = choice != CHOICE_OWN && vector && ida_cuda_of(dev)->bf16 && !a->k_cache && (a->d == 64 || a->d == 128) &&
               len >= MIN_CUDNN_LEN && seqs->cu[seqs->n] >= MIN_CUDNN && len * a->h * a->d <= INT32_MAX;
    for (int64_t s = 0; s < seqs->n && yes; s++) yes = seqs->cu[s + 1] - seqs->cu[s] == len;
    return yes;
}

static ida_status need_plain(const ida_device *dev, int64_t d, bool bwd) {
    IDA_FAIL_IF(attn_plain_tile(dev, d, bwd) == 0, IDA_E_UNSUPPORTED,
                "attention: heads of %lld do not fit this GPU's shared memory; use more, narrower heads", (long long)d);
    return IDA_OK;
}

static ida_status fwd_cached(const ida_device *dev, const attn_params *p, const ida_attention_args *a, const ida_seqs *seqs,
                             bool vector) {
    cached_walk w = {};
    w.dev = dev, w.p = p, w.vector = vector, w.tensor_cores = vector && ida_cuda_of(dev)->bf16;
    w.tile = w.tensor_cores ? (int)ATTN_TILE : attn_plain_tile(dev, a->d, false);
    if (!w.tensor_cores) IDA_TRY(need_plain(dev, a->d, false));
    IDA_TRY(walk(&w, a, seqs));
    IDA_TRY(ida_cuda_scratch(dev, w.need * (int64_t)sizeof(float), (void **)&w.part));
    w.launch = true;
    return walk(&w, a, seqs);
}

ida_status ida_cuda_attention_fwd(const ida_device *dev, const ida_attention_args *a, const ida_seqs *seqs) {
    if (seqs->cu[seqs->n] == 0) return IDA_OK;
    const bool vector = is_vector(a, seqs);
    attn_params p;
    enum choice choice;
    IDA_TRY(choose(&choice));
    IDA_TRY(params_of(dev, a, seqs, &p));
    if (a->k_cache) return fwd_cached(dev, &p, a, seqs, vector);
    if (suits_cudnn(dev, a, seqs, vector, choice)) {
        bool done = false;
        IDA_TRY(ida_cuda_cudnn_attention_fwd(dev, a, seqs->n, seqs->cu[1], &done));
        if (done) return IDA_OK;
    }
    if (vector && ida_cuda_of(dev)->bf16) return attn_launch_fwd_tile(dev, &p, NULL);
    IDA_TRY(need_plain(dev, a->d, false));
    return attn_launch_fwd_plain(dev, &p, NULL);
}

ida_status ida_cuda_attention_bwd(const ida_device *dev, ida_act *dq, ida_act *dk, ida_act *dv, const ida_act *dout,
                                  const ida_attention_args *a, const ida_seqs *seqs) {
    assert(!a->k_cache && a->lse);
    if (seqs->cu[seqs->n] == 0) return IDA_OK;
    const bool vector = is_vector(a, seqs) && vec_aligned(dq, dk, dv, dout),
               tensor_cores = vector && ida_cuda_of(dev)->bf16;
    attn_params p;
    enum choice choice;
    IDA_TRY(choose(&choice));
    IDA_TRY(params_of(dev, a, seqs, &p));
    p.dout = dout, p.dq = dq, p.dk = dk, p.dv = dv;
    if (suits_cudnn(dev, a, seqs, vector, choice)) {
        bool done = false;
        IDA_TRY(ida_cuda_cudnn_attention_bwd(dev, dq, dk, dv, dout, a, seqs->n, seqs->cu[1], choice != CHOICE_CUDNN_FAST, &done));
        if (done) return IDA_OK;
    }
    if (!tensor_cores) IDA_TRY(need_plain(dev, a->d, true));
    IDA_TRY(ida_cuda_scratch(dev, p.n_tokens * p.h * (int64_t)sizeof(float2), (void **)&p.rows));
    IDA_TRY(attn_launch_bwd_rows(dev, &p, tensor_cores));
    return tensor_cores ? attn_launch_bwd_tile(dev, &p) : attn_launch_bwd_plain(dev, &p);
}
