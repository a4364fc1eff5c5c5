/* attention/plain.cu - causal attention in fp32 for what the tensor-core tiles do not take: float tensors, heads wider than 128
 * or not of a multiple of 8, unaligned pointers. The same algorithm in tiles of B queries by B keys (32, or 8 where heads are so
 * wide that 32 rows do not fit), every operand in shared memory as fp32 rows of D | 1 floats.
 * Invariant: sums run in a fixed order; a masked weight is exactly 0. */
#include "ops/cuda/attention/attention.cuh"

enum { THREADS = 256 };

/* B rows from `from` on; those past `valid` are zeros. */
template <int B, class T> ATTN_DEV void load_rows(float *to, const T *from, int64_t stride, int valid, int d) {
    for (int i = (int)threadIdx.x; i < B * d; i += THREADS) {
        const int r = i / d, c = i % d;
        to[r * (d | 1) + c] = r < valid ? (float)from[r * stride + c] : 0.0f;
    }
}
template <int B, class T> ATTN_DEV void store_rows(T *to, const float *from, float f, int64_t stride, int valid, int d) {
    for (int i = (int)threadIdx.x; i < B * d; i += THREADS) {
        const int r = i / d, c = i % d;
        if (r < valid) to[r * stride + c] = (T)(from[r * (d | 1) + c] * f);
    }
}

/* visit(i, j, a_i . b_j), every pair once. */
template <int B, class F> ATTN_DEV void dots(const float *a, const float *b, int d, F visit) {
    constexpr int R = B * B >= 4 * THREADS ? 2 : 1, SIDE = B / R; /* a thread has R by R of them */
    const int ld = d | 1;
    for (int at = (int)threadIdx.x; at < SIDE * SIDE; at += THREADS) {
        const int i = at / SIDE, j = at % SIDE;
        float sum[R][R] = {};
        for (int c = 0; c < d; c++)
#pragma unroll
            for (int x = 0; x < R; x++)
#pragma unroll
                for (int y = 0; y < R; y++) sum[x][y] = fmaf(a[(i + x * SIDE) * ld + c], b[(j + y * SIDE) * ld + c], sum[x][y]);
#pragma unroll
        for (int x = 0; x < R; x++)
#pragma unroll
            for (int y = 0; y < R; y++) visit(i + x * SIDE, j + y * SIDE, sum[x][y]);
    }
}

/* c_i = c_i keep_i + sum_j w_ij b_j (keep NULL: 1); TRANSPOSED: w_ji. w: rows of B + 1. */
template <int B, bool TRANSPOSED> ATTN_DEV void add_rows(float *c, const float *w, const float *b, const float *keep, int d) {
    const int ld = d | 1;
    for (int at = (int)threadIdx.x; at < B / 8 * d; at += THREADS) {
        const int i0 = at / d * 8, column = at % d;
        float sum[8] = {};
        for (int j = 0; j < B; j++) {
            const float x = b[j * ld + column];
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum[i] = fmaf(TRANSPOSED ? w[j * (B + 1) + i0 + i] : w[(i0 + i) * (B + 1) + j], x, sum[i]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float *to = c + (i0 + i) * ld + column;
            *to = fmaf(*to, keep ? keep[i0 + i] : 1.0f, sum[i]);
        }
    }
}

/* Rows of a tile: `arrays` of B rows, two squares of B by B + 1, three columns. */
template <int B> static int64_t shared_bytes(int64_t d, int arrays) {
    return 4 * (arrays * B * (d | 1) + 2 * B * (B + 1) + 3 * B);
}

template <class T, int B, bool CACHED> static __global__ void __launch_bounds__(THREADS)
    attention_fwd__plain_tiles(const __grid_constant__ attn_params p,
                        const __grid_constant__ typename attn_group_of<CACHED>::type group) {
    extern __shared__ float sm[];
    const int d = p.d, ld = d | 1, shift = B == 32 ? 5 : 3, head = (int)(blockIdx.x % (unsigned)p.h);
    float *q = sm, *o = q + B * ld, *kv = o + B * ld, *s = kv + B * ld, *m = s + B * (B + 1), *l = m + B, *keep = l + B;
    attn_place<T> w;
    if (!attn_find(w, p, group, (int64_t)(gridDim.x / (unsigned)p.h) - 1 - blockIdx.x / (unsigned)p.h, shift)) return;
    const int q0 = w.tile * B, valid = min(B, w.len - q0), n_keys = w.past + q0 + valid;
    const int64_t stride = (int64_t)p.h * d, kv_stride = (int64_t)p.g * d, row = w.row0 + q0, at = (row * p.h + head) * d;
    const T *k = w.k + head / p.per * d, *v = w.v + head / p.per * d;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    load_rows<B>(q, (const T *)p.q + at, stride, valid, d);
    for (int i = (int)threadIdx.x; i < B * ld; i += THREADS) o[i] = 0.0f;
    if (threadIdx.x < B) {
        m[threadIdx.x] = -INFINITY;
        l[threadIdx.x] = 0.0f;
    }
    for (int key = 0; key < n_keys; key += B) {
        __syncthreads();
        load_rows<B>(kv, k + key * kv_stride, kv_stride, n_keys - key, d);
        __syncthreads();
        dots<B>(q, kv, d,
                [&](int i, int j, float x) { s[i * (B + 1) + j] = key + j > w.past + q0 + i ? -INFINITY : x * p.scale; });
        __syncthreads();
        load_rows<B>(kv, v + key * kv_stride, kv_stride, n_keys - key, d);
        for (int i = warp; i < B; i += THREADS / 32) {
            const float x = lane < B ? s[i * (B + 1) + lane] : -INFINITY, before = m[i];
            const float top = warp_max(fmaxf(x, before)), e = expf(x - top), sum = warp_sum(e);
            if (lane < B) s[i * (B + 1) + lane] = e;
            __syncwarp(); /* all have read m */
            if (lane == 0) {
                keep[i] = expf(before - top);
                l[i] = fmaf(l[i], keep[i], sum);
                m[i] = top;
            }
        }
        __syncthreads();
        add_rows<B, false>(o, s, kv, keep, d);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < B * d; i += THREADS) {
        const int r = i / d, c = i % d;
        if (r < valid) ((T *)p.o)[at + r * stride + c] = (T)(o[r * ld + c] / l[r]);
    }
    if (p.lse && (int)threadIdx.x < valid) p.lse[(row + threadIdx.x) * p.h + head] = m[threadIdx.x] + logf(l[threadIdx.x]);
}

template <class T, int B> static __global__ void __launch_bounds__(THREADS)
    attention_dq__plain_tiles(const __grid_constant__ attn_params p) {
    extern __shared__ float sm[];
    const int d = p.d, ld = d | 1, shift = B == 32 ? 5 : 3, head = (int)(blockIdx.x % (unsigned)p.h);
    float *q = sm, *dout = q + B * ld, *dq = dout + B * ld, *k = dq + B * ld, *v = k + B * ld, *s = v + B * ld,
          *terms = s + 2 * B * (B + 1);
    attn_place<T> w;
    if (!attn_find(w, p, attn_none{}, (int64_t)(gridDim.x / (unsigned)p.h) - 1 - blockIdx.x / (unsigned)p.h, shift)) return;
    const int q0 = w.tile * B, valid = min(B, w.len - q0), n_keys = q0 + valid;
    const int64_t stride = (int64_t)p.h * d, kv_stride = (int64_t)p.g * d, row = w.row0 + q0, at = (row * p.h + head) * d,
                  kv_at = head / p.per * d;
    load_rows<B>(q, (const T *)p.q + at, stride, valid, d);
    load_rows<B>(dout, (const T *)p.dout + at, stride, valid, d);
    for (int i = (int)threadIdx.x; i < B * ld; i += THREADS) dq[i] = 0.0f;
    if (threadIdx.x < B) {
        const bool in = (int)threadIdx.x < valid;
        terms[threadIdx.x] = in ? p.rows[head * p.n_tokens + row + threadIdx.x].x : INFINITY;
        terms[B + threadIdx.x] = in ? p.rows[head * p.n_tokens + row + threadIdx.x].y : 0.0f;
    }
    for (int key = 0; key < n_keys; key += B) {
        __syncthreads();
        load_rows<B>(k, w.k + kv_at + key * kv_stride, kv_stride, n_keys - key, d);
        load_rows<B>(v, w.v + kv_at + key * kv_stride, kv_stride, n_keys - key, d);
        __syncthreads();
        dots<B>(q, k, d, [&](int i, int j, float x) {
            s[i * (B + 1) + j] = key + j > q0 + i ? 0.0f : exp2f(fmaf(x, p.scale2, -terms[i]));
        });
        dots<B>(dout, v, d, [&](int i, int j, float x) { s[i * (B + 1) + j] *= x - terms[B + i]; }); /* its own elements of s */
        __syncthreads();
        add_rows<B, false>(dq, s, k, NULL, d);
    }
    __syncthreads();
    store_rows<B>((T *)p.dq + at, dq, p.scale, stride, valid, d);
}

template <class T, int B> static __global__ void __launch_bounds__(THREADS)
    attention_dkv__plain_tiles(const __grid_constant__ attn_params p) {
    extern __shared__ float sm[];
    const int d = p.d, ld = d | 1, shift = B == 32 ? 5 : 3, kv_head = (int)(blockIdx.x % (unsigned)p.g);
    float *k = sm, *v = k + B * ld, *dk = v + B * ld, *dv = dk + B * ld, *q = dv + B * ld, *dout = q + B * ld, *s = dout + B * ld,
          *ds = s + B * (B + 1), *terms = ds + B * (B + 1);
    attn_place<T> w;
    if (!attn_find(w, p, attn_none{}, (int64_t)(blockIdx.x / (unsigned)p.g), shift)) return;
    const int key0 = w.tile * B, valid = min(B, w.len - key0);
    const int64_t stride = (int64_t)p.h * d, kv_stride = (int64_t)p.g * d, at = (w.row0 + key0) * kv_stride + kv_head * d;
    load_rows<B>(k, (const T *)p.k + at, kv_stride, valid, d);
    load_rows<B>(v, (const T *)p.v + at, kv_stride, valid, d);
    for (int i = (int)threadIdx.x; i < 2 * B * ld; i += THREADS) dk[i] = 0.0f; /* and dv */
    for (int head = kv_head * p.per; head < (kv_head + 1) * p.per; head++)
        for (int query = key0; query < w.len; query += B) {
            const int64_t row = w.row0 + query, from = (row * p.h + head) * d;
            const int n = min(B, w.len - query);
            __syncthreads();
            load_rows<B>(q, (const T *)p.q + from, stride, n, d);
            load_rows<B>(dout, (const T *)p.dout + from, stride, n, d);
            if (threadIdx.x < B) {
                const bool in = (int)threadIdx.x < n;
                terms[threadIdx.x] = in ? p.rows[head * p.n_tokens + row + threadIdx.x].x : INFINITY;
                terms[B + threadIdx.x] = in ? p.rows[head * p.n_tokens + row + threadIdx.x].y : 0.0f;
            }
            __syncthreads();
            dots<B>(q, k, d, [&](int i, int j, float x) {
                s[i * (B + 1) + j] = key0 + j > query + i ? 0.0f : exp2f(fmaf(x, p.scale2, -terms[i]));
            });
            dots<B>(dout, v, d, [&](int i, int j, float x) { ds[i * (B + 1) + j] = s[i * (B + 1) + j] * (x - terms[B + i]); });
            __syncthreads();
            add_rows<B, true>(dv, s, dout, NULL, d);
            add_rows<B, true>(dk, ds, q, NULL, d);
        }
    __syncthreads();
    store_rows<B>((T *)p.dk + at, dk, p.scale, kv_stride, valid, d);
    store_rows<B>((T *)p.dv + at, dv, 1.0f, kv_stride, valid, d);
}

enum { FWD_ARRAYS = 3, DQ_ARRAYS = 5, DKV_ARRAYS = 6 };

int attn_plain_tile(const ida_device *dev, int64_t d, bool bwd) {
    const int arrays = bwd ? DKV_ARRAYS : FWD_ARRAYS, most = ida_cuda_of(dev)->most_shared;
    return shared_bytes<32>(d, arrays) <= most ? 32 : shared_bytes<8>(d, arrays) <= most ? 8 : 0;
}

template <class K, class... A>
static ida_status launch(const ida_device *dev, K *kernel, int64_t slots, int heads, int64_t bytes, A... args) {
    IDA_FAIL_IF(slots > INT32_MAX / heads, IDA_E_UNSUPPORTED, "attention: %lld tiles of %d heads are beyond one launch",
                (long long)slots, heads);
    IDA_TRY(attn_allow_shared(kernel, (int)bytes));
    kernel<<<(unsigned)(slots * heads), THREADS, (size_t)bytes, ida_cuda_of(dev)->stream>>>(args...);
    return IDA_CUDA_LAUNCHED("attention, plain");
}

template <class T, int B> static ida_status fwd(const ida_device *dev, const attn_params *p, const attn_group *group) {
    const int64_t bytes = shared_bytes<B>(p->d, FWD_ARRAYS), slots = attn_slots(p, group, B == 32 ? 5 : 3);
    return group ? launch(dev, attention_fwd__plain_tiles<T, B, true>, slots, p->h, bytes, *p, *group)
                 : launch(dev, attention_fwd__plain_tiles<T, B, false>, slots, p->h, bytes, *p, attn_none{});
}
template <class T, int B> static ida_status bwd(const ida_device *dev, const attn_params *p) {
    const int64_t slots = attn_slots(p, NULL, B == 32 ? 5 : 3);
    IDA_TRY(launch(dev, attention_dkv__plain_tiles<T, B>, slots, p->g, shared_bytes<B>(p->d, DKV_ARRAYS), *p));
    return launch(dev, attention_dq__plain_tiles<T, B>, slots, p->h, shared_bytes<B>(p->d, DQ_ARRAYS), *p);
}

ida_status attn_launch_fwd_plain(const ida_device *dev, const attn_params *p, const attn_group *group) {
    const int tile = attn_plain_tile(dev, p->d, false);
    IDA_CUDA_ACT(dev, T, return tile == 32 ? fwd<T, 32>(dev, p, group) : fwd<T, 8>(dev, p, group));
}
ida_status attn_launch_bwd_plain(const ida_device *dev, const attn_params *p) {
    const int tile = attn_plain_tile(dev, p->d, true);
    IDA_CUDA_ACT(dev, T, return tile == 32 ? bwd<T, 32>(dev, p) : bwd<T, 8>(dev, p));
}
