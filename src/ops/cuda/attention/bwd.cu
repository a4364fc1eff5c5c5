/* attention/bwd.cu - causal attention backward on tensor cores, bf16. With p = exp(s / sqrt(D) - lse), s = q.k:
 *   dv_j = sum_i p_ij dout_i    ds_ij = p_ij (dout_i . v_j - dout_i . o_i) / sqrt(D)
 *   dq_i = sum_j ds_ij k_j      dk_j = sum_i ds_ij q_i
 * Three kernels: the row terms (lse, dout . o); dq, a CTA per tile of queries that walks over the keys; dk and dv, a CTA per
 * tile of keys that walks over the queries, and over the heads of its group. Scores are formed twice, and so no sum crosses
 * CTAs: no atomics.
 * Invariant: what the walk multiplies is rounded to bf16 (p, ds), what it sums is fp32 in a fixed order. */
#include "ops/cuda/attention/attention.cuh"

/* One row per LANES lanes; VECTOR: 8 elements a lane, so D is at most 128. */
template <class T, bool VECTOR> static __global__ void attention_bwd_rows__lanes_per_row(const __grid_constant__ attn_params p) {
    constexpr int LANES = VECTOR ? 16 : 32;
    const int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / LANES, n_rows = p.n_tokens * p.h;
    const int lane = (int)threadIdx.x % LANES;
    const T *o = (const T *)p.o + at * p.d, *dout = (const T *)p.dout + at * p.d;
    float sum = 0.0f;
    if (VECTOR) {
        if (at < n_rows && lane * 8 < p.d) {
            uint4 x = *(const uint4 *)(o + lane * 8), y = *(const uint4 *)(dout + lane * 8);
            const __nv_bfloat162 *xs = (const __nv_bfloat162 *)&x, *ys = (const __nv_bfloat162 *)&y;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 a = __bfloat1622float2(xs[i]), b = __bfloat1622float2(ys[i]);
                sum = fmaf(a.x, b.x, sum);
                sum = fmaf(a.y, b.y, sum);
            }
        }
    } else if (at < n_rows) {
        for (int i = lane; i < p.d; i += LANES) sum = fmaf((float)o[i], (float)dout[i], sum);
    }
#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    if (at < n_rows && lane == 0) p.rows[at % p.h * p.n_tokens + at / p.h] = make_float2(p.lse[at] * ATTN_LOG2E, sum);
}

ida_status attn_launch_bwd_rows(const ida_device *dev, const attn_params *p, bool vector) {
    const ida_cuda *c = ida_cuda_of(dev);
    const int64_t blocks = (p->n_tokens * p->h * (vector ? 16 : 32) + 255) / 256;
    IDA_FAIL_IF(blocks > INT32_MAX, IDA_E_UNSUPPORTED, "attention: %lld rows of %d heads are beyond one launch",
                (long long)p->n_tokens, p->h);
    if (vector) attention_bwd_rows__lanes_per_row<bf16, true><<<(unsigned)blocks, 256, 0, c->stream>>>(*p);
    else if (c->bf16) attention_bwd_rows__lanes_per_row<bf16, false><<<(unsigned)blocks, 256, 0, c->stream>>>(*p);
    else attention_bwd_rows__lanes_per_row<float, false><<<(unsigned)blocks, 256, 0, c->stream>>>(*p);
    return IDA_CUDA_LAUNCHED("attention backward rows");
}

/* c = A B^T over DP columns: A 16 rows, B N rows, both in shared memory. */
template <int DP, int N> ATTN_DEV void product(float (&c)[N / 8][4], uint32_t a_lane, uint32_t b_lane) {
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) c[j][i] = 0.0f;
#pragma unroll
    for (int d = 0; d < DP / 16; d++) {
        uint32_t a[4];
        ldsm(a, a_lane + tile_at<DP>(0, d * 16));
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            uint32_t b[4];
            ldsm(b, b_lane + tile_at<DP>(j * 16, d * 16));
            mma(c[2 * j], a, b[0], b[1]);
            mma(c[2 * j + 1], a, b[2], b[3]);
        }
    }
}

/* c += A B: A 16 by N accumulators rounded to bf16, B N rows of DP columns. */
template <int DP, int N> ATTN_DEV void add_product(float (&c)[DP / 8][4], const float (&x)[N / 8][4], uint32_t b_lane) {
#pragma unroll
    for (int t = 0; t < N / 16; t++) {
        uint32_t a[4];
        pack_a(a, x[2 * t], x[2 * t + 1]);
#pragma unroll
        for (int j = 0; j < DP / 16; j++) {
            uint32_t b[4];
            ldsm_t(b, b_lane + tile_at<DP>(t * 16, j * 16));
            mma(c[2 * j], a, b[0], b[1]);
            mma(c[2 * j + 1], a, b[2], b[3]);
        }
    }
}

/* ---- dq. Two stages of [K | V]: the next tile arrives while one is used. A CTA has WARPS warps of 16 rows: 8, or 4 where the
 * chip's shared memory is small. */
template <int DP, int WARPS> struct dq_shared {
    static constexpr int BM = 16 * WARPS, BN = DP <= 64 || WARPS < 8 ? 32 : 64, Q = 0, DOUT = attn_tile<DP>::bytes(BM),
                         STAGE = 2 * DOUT, V = attn_tile<DP>::bytes(BN), BYTES = STAGE + 4 * V, SHIFT = WARPS == 8 ? 7 : 6;
};

template <int DP, int WARPS> static __global__ void __launch_bounds__(32 * WARPS, DP <= 64 ? 16 / WARPS : 8 / WARPS)
    attention_dq_bf16__tile(const __grid_constant__ attn_params p) {
    extern __shared__ __align__(128) unsigned char smem[];
    typedef dq_shared<DP, WARPS> at;
    constexpr int BM = at::BM, BN = at::BN, THREADS = 32 * WARPS;
    const int head = (int)(blockIdx.x % (unsigned)p.h), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    attn_place<bf16> w;
    if (!attn_find(w, p, attn_none{}, (int64_t)(gridDim.x / (unsigned)p.h) - 1 - blockIdx.x / (unsigned)p.h, at::SHIFT)) return;
    const int q0 = w.tile * BM, valid = min(BM, w.len - q0), n_keys = q0 + valid;
    const int64_t stride = (int64_t)p.h * p.d, kv_stride = (int64_t)p.g * p.d, row = w.row0 + q0;
    const bf16 *k = w.k + head / p.per * p.d, *v = w.v + head / p.per * p.d;
    const uint32_t base = smem_at(smem);
    load_tile<BM, DP, THREADS>(base + at::Q, (const bf16 *)p.q + (row * p.h + head) * p.d, stride, valid, p.d);
    load_tile<BM, DP, THREADS>(base + at::DOUT, (const bf16 *)p.dout + (row * p.h + head) * p.d, stride, valid, p.d);
    load_tile<BN, DP, THREADS>(base + at::STAGE, k, kv_stride, n_keys, p.d);
    load_tile<BN, DP, THREADS>(base + at::STAGE + at::V, v, kv_stride, n_keys, p.d);
    cp_commit();

    const int first_row = q0 + warp * 16;
    float2 rows[2]; /* a row that does not exist gets weights 0 */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = warp * 16 + lane / 4 + half * 8;
        rows[half] = r < valid ? p.rows[head * p.n_tokens + row + r] : make_float2(INFINITY, 0.0f);
    }
    float dq[DP / 8][4] = {};
    const uint32_t q_lane = base + at::Q + tile_at<DP>(warp * 16, 0) + lane_a<DP>(), dout_lane = q_lane + at::DOUT;
    uint32_t stage = base + at::STAGE, other = stage + 2 * at::V;
    for (int key = 0; key < n_keys; key += BN) {
        cp_wait<0>();
        __syncthreads(); /* this stage is here, and the other no longer read */
        if (key + BN < n_keys) {
            load_tile<BN, DP, THREADS>(other, k + (key + BN) * kv_stride, kv_stride, n_keys - key - BN, p.d);
            load_tile<BN, DP, THREADS>(other + at::V, v + (key + BN) * kv_stride, kv_stride, n_keys - key - BN, p.d);
        }
        cp_commit();
        if (key < first_row + 16) {
            float s[BN / 8][4], ds[BN / 8][4];
            product<DP, BN>(s, q_lane, stage + lane_b<DP>());
            product<DP, BN>(ds, dout_lane, stage + at::V + lane_b<DP>());
            const bool masked = key + BN - 1 > first_row;
            const int column = key + lane % 4 * 2, r = first_row + lane / 4;
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float weight = exp2_fast(fmaf(s[j][i], p.scale2, -rows[i / 2].x));
                    if (masked && column + j * 8 + i % 2 > r + i / 2 * 8) weight = 0.0f;
                    ds[j][i] = weight * (ds[j][i] - rows[i / 2].y);
                }
            add_product<DP, BN>(dq, ds, stage + lane_bt<DP>());
        }
        const uint32_t used = stage;
        stage = other;
        other = used;
    }
    store_rows16<DP>(dq, p.scale, p.scale, smem + at::Q + tile_at<DP>(warp * 16, 0),
                     (bf16 *)p.dq + ((row + warp * 16) * p.h + head) * p.d, stride, valid - warp * 16, p.d);
}

/* ---- dk, dv. Two stages of [Q | dout | row terms]; the walk is over the heads of the group and, from the diagonal on, over
 * tiles of BQ queries. Queries that do not exist are zeros with row terms 0: weight 1 on nothing. */
template <int DP, int WARPS> struct dkv_shared {
    static constexpr int BM = 16 * WARPS, BQ = 32, K = 0, V = attn_tile<DP>::bytes(BM), STAGE = 2 * V,
                         DOUT = attn_tile<DP>::bytes(BQ), ROWS = 2 * DOUT, STEP = ROWS + BQ * 8, BYTES = STAGE + 2 * STEP,
                         SHIFT = WARPS == 8 ? 7 : 6;
};

template <int DP, int WARPS>
ATTN_DEV void load_queries(uint32_t to, const attn_params &p, const attn_place<bf16> &w, int head, int query) {
    typedef dkv_shared<DP, WARPS> at;
    constexpr int THREADS = 32 * WARPS;
    const int64_t row = w.row0 + query, stride = (int64_t)p.h * p.d;
    const int valid = w.len - query;
    load_tile<at::BQ, DP, THREADS>(to, (const bf16 *)p.q + (row * p.h + head) * p.d, stride, valid, p.d);
    load_tile<at::BQ, DP, THREADS>(to + at::DOUT, (const bf16 *)p.dout + (row * p.h + head) * p.d, stride, valid, p.d);
    if (threadIdx.x < at::BQ) {
        const float2 *rows = p.rows + head * p.n_tokens + row;
        const bool in = (int)threadIdx.x < valid;
        cp_async<8>(to + at::ROWS + threadIdx.x * 8, in ? rows + threadIdx.x : p.rows, in);
    }
}

template <int DP, int WARPS> static __global__ void __launch_bounds__(32 * WARPS, DP <= 64 ? 16 / WARPS : 8 / WARPS)
    attention_dkv_bf16__tile(const __grid_constant__ attn_params p) {
    extern __shared__ __align__(128) unsigned char smem[];
    typedef dkv_shared<DP, WARPS> at;
    constexpr int BM = at::BM, BQ = at::BQ, THREADS = 32 * WARPS;
    const int kv_head = (int)(blockIdx.x % (unsigned)p.g), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    attn_place<bf16> w;
    if (!attn_find(w, p, attn_none{}, (int64_t)(blockIdx.x / (unsigned)p.g), at::SHIFT)) return;
    const int key0 = w.tile * BM, valid = min(BM, w.len - key0);
    const int64_t kv_stride = (int64_t)p.g * p.d, row = w.row0 + key0;
    const uint32_t base = smem_at(smem);
    load_tile<BM, DP, THREADS>(base + at::K, w.k + key0 * kv_stride + kv_head * p.d, kv_stride, valid, p.d);
    load_tile<BM, DP, THREADS>(base + at::V, w.v + key0 * kv_stride + kv_head * p.d, kv_stride, valid, p.d);
    int head = kv_head * p.per, query = key0;
    load_queries<DP, WARPS>(base + at::STAGE, p, w, head, query);
    cp_commit();

    const int end = head + p.per, first_key = key0 + warp * 16;
    float dk[DP / 8][4] = {}, dv[DP / 8][4] = {};
    const uint32_t k_lane = base + at::K + tile_at<DP>(warp * 16, 0) + lane_a<DP>(), v_lane = k_lane + at::V;
    const uint32_t stages = 2 * (base + at::STAGE) + at::STEP; /* the sum of the addresses of the two */
    uint32_t stage = base + at::STAGE;
    while (head < end) {
        const int here = query;
        query += BQ;
        if (query >= w.len) {
            query = key0;
            head++;
        }
        cp_wait<0>();
        __syncthreads(); /* this stage is here, and the other no longer read */
        if (head < end) load_queries<DP, WARPS>(stages - stage, p, w, head, query);
        cp_commit();
        if (here + BQ > first_key) {
            float s[BQ / 8][4], ds[BQ / 8][4]; /* rows: keys; columns: queries */
            product<DP, BQ>(s, k_lane, stage + lane_b<DP>());
            product<DP, BQ>(ds, v_lane, stage + at::DOUT + lane_b<DP>());
            const bool masked = here < first_key + 15;
            const int column = here + lane % 4 * 2, r = first_key + lane / 4;
            const float4 *rows = (const float4 *)(smem + (stage - base) + at::ROWS) + lane % 4; /* of two queries */
#pragma unroll
            for (int j = 0; j < BQ / 8; j++) {
                const float4 terms = rows[j * 4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float weight = exp2_fast(fmaf(s[j][i], p.scale2, -(i % 2 ? terms.z : terms.x)));
                    if (masked && column + j * 8 + i % 2 < r + i / 2 * 8) weight = 0.0f;
                    s[j][i] = weight;
                    ds[j][i] = weight * (ds[j][i] - (i % 2 ? terms.w : terms.y));
                }
            }
            add_product<DP, BQ>(dv, s, stage + at::DOUT + lane_bt<DP>());
            add_product<DP, BQ>(dk, ds, stage + lane_bt<DP>());
        }
        stage = stages - stage;
    }
    const int64_t to = ((row + warp * 16) * p.g + kv_head) * p.d;
    unsigned char *own = smem + at::K + tile_at<DP>(warp * 16, 0);
    store_rows16<DP>(dk, p.scale, p.scale, own, (bf16 *)p.dk + to, kv_stride, valid - warp * 16, p.d);
    store_rows16<DP>(dv, 1.0f, 1.0f, own, (bf16 *)p.dv + to, kv_stride, valid - warp * 16, p.d);
}

template <int DP, int WARPS> static ida_status launch(const ida_device *dev, const attn_params *p) {
    typedef dq_shared<DP, WARPS> dq_at;
    typedef dkv_shared<DP, WARPS> dkv_at;
    const int64_t slots = attn_slots(p, NULL, dq_at::SHIFT);
    const cudaStream_t stream = ida_cuda_of(dev)->stream;
    IDA_FAIL_IF(slots > INT32_MAX / p->h, IDA_E_UNSUPPORTED, "attention: %lld tiles of %d heads are beyond one launch",
                (long long)slots, p->h);
    auto *dkv = attention_dkv_bf16__tile<DP, WARPS>;
    IDA_TRY(attn_allow_shared(dkv, dkv_at::BYTES));
    dkv<<<(unsigned)(slots * p->g), 32 * WARPS, dkv_at::BYTES, stream>>>(*p);
    IDA_TRY(IDA_CUDA_LAUNCHED("attention backward dk, dv"));
    auto *dq = attention_dq_bf16__tile<DP, WARPS>;
    IDA_TRY(attn_allow_shared(dq, dq_at::BYTES));
    dq<<<(unsigned)(slots * p->h), 32 * WARPS, dq_at::BYTES, stream>>>(*p);
    return IDA_CUDA_LAUNCHED("attention backward dq");
}

template <int DP> static ida_status launch_for(const ida_device *dev, const attn_params *p) {
    const int most = ida_cuda_of(dev)->most_shared;
    return dq_shared<DP, 8>::BYTES <= most && dkv_shared<DP, 8>::BYTES <= most ? launch<DP, 8>(dev, p) : launch<DP, 4>(dev, p);
}

ida_status attn_launch_bwd_tile(const ida_device *dev, const attn_params *p) {
    if (p->d <= 64) return launch_for<64>(dev, p);
    if (p->d <= 96) return launch_for<96>(dev, p);
    return launch_for<128>(dev, p);
}
