/* attention/fwd.cu - causal attention forward on tensor cores, bf16: a CTA of 4 warps owns 128 queries of one head and walks
 * over the keys in tiles of 64 (32 where D > 96), upwards, with a running maximum; each warp owns 32 rows. K and V have one
 * buffer each: V of a tile arrives while its scores are formed, the next K while V is used.
 * Invariant: the first tile holds key 0, which every query sees, so the running maximum is finite from there on. */
#include "ops/cuda/attention/attention.cuh"

enum { BM = ATTN_TILE, THREADS = 128, MT = 2 };

/* s = Q K^T for the warp's 32 rows */
template <int DP, int BN, bool IN_REGISTERS>
ATTN_DEV void scores(float (&s)[MT][BN / 8][4], const uint32_t (&qr)[MT][IN_REGISTERS ? DP / 16 : 1][4], uint32_t q, uint32_t k) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[mt][j][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < DP / 16; c++) {
        uint32_t a[MT][4];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
            if (IN_REGISTERS) {
#pragma unroll
                for (int i = 0; i < 4; i++) a[mt][i] = qr[mt][IN_REGISTERS ? c : 0][i];
            } else {
                ldsm(a[mt], q + tile_at<DP>(mt * 16, c * 16));
            }
        }
#pragma unroll
        for (int j = 0; j < BN / 16; j++) {
            uint32_t b[4];
            ldsm(b, k + tile_at<DP>(j * 16, c * 16));
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                mma(s[mt][2 * j], a[mt], b[0], b[1]);
                mma(s[mt][2 * j + 1], a[mt], b[2], b[3]);
            }
        }
    }
}

/* Scores of key key0 + column against query row0 + row become -inf where the key is later. */
template <int BN> ATTN_DEV void mask(float (&s)[MT][BN / 8][4], int row0, int key0) {
    const int lane = (int)(threadIdx.x & 31), column = key0 + lane % 4 * 2, row = row0 + lane / 4;
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (column + j * 8 + i % 2 > row + mt * 16 + i / 2 * 8) s[mt][j][i] = -INFINITY;
}

/* s becomes the weights exp(scale (s - max)); o and the sums l of the lane's part of each row are brought to the new maximum. */
template <int DP, int BN>
ATTN_DEV void softmax_step(float (&s)[MT][BN / 8][4], float (&o)[MT][DP / 8][4], float (&m)[MT][2], float (&l)[MT][2], float f) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = m[mt][half];
#pragma unroll
            for (int j = 0; j < BN / 8; j++) top = fmaxf(top, fmaxf(s[mt][j][2 * half], s[mt][j][2 * half + 1]));
            top = quad_max(top);
            const float keep = exp2_fast((m[mt][half] - top) * f), offset = top * f;
            m[mt][half] = top;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < BN / 8; j++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    s[mt][j][i] = exp2_fast(fmaf(s[mt][j][i], f, -offset));
                    sum += s[mt][j][i];
                }
            l[mt][half] = fmaf(l[mt][half], keep, sum);
#pragma unroll
            for (int j = 0; j < DP / 8; j++) {
                o[mt][j][2 * half] *= keep;
                o[mt][j][2 * half + 1] *= keep;
            }
        }
}

/* o += P V */
template <int DP, int BN> ATTN_DEV void add_values(float (&o)[MT][DP / 8][4], const float (&s)[MT][BN / 8][4], uint32_t v) {
#pragma unroll
    for (int t = 0; t < BN / 16; t++) {
        uint32_t a[MT][4];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) pack_a(a[mt], s[mt][2 * t], s[mt][2 * t + 1]);
#pragma unroll
        for (int j = 0; j < DP / 16; j++) {
            uint32_t b[4];
            ldsm_t(b, v + tile_at<DP>(t * 16, j * 16));
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                mma(o[mt][2 * j], a[mt], b[0], b[1]);
                mma(o[mt][2 * j + 1], a[mt], b[2], b[3]);
            }
        }
    }
}

/* Keys of a tile: what the registers allow. Offsets in shared memory. */
template <int DP> struct fwd_shared {
    static constexpr int BN = DP <= 96 ? 64 : 32, Q = 0, K = attn_tile<DP>::bytes(BM), V = K + attn_tile<DP>::bytes(BN),
                         BYTES = V + attn_tile<DP>::bytes(BN);
};

template <int DP, bool CACHED> static __global__ void __launch_bounds__(THREADS, 2)
    attention_fwd_bf16__tile128(const __grid_constant__ attn_params p,
                                const __grid_constant__ typename attn_group_of<CACHED>::type group) {
    extern __shared__ __align__(128) unsigned char smem[];
    constexpr bool Q_IN_REGISTERS = DP <= 64;
    typedef fwd_shared<DP> at;
    constexpr int BN = at::BN;
    const int head = (int)(blockIdx.x % (unsigned)p.h), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    attn_place<bf16> w;
    /* the longest walks first */
    if (!attn_find(w, p, group, (int64_t)(gridDim.x / (unsigned)p.h) - 1 - blockIdx.x / (unsigned)p.h, 7)) return;
    const int q0 = w.tile * BM, valid = min(BM, w.len - q0), n_keys = w.past + q0 + valid;
    const int64_t stride = (int64_t)p.h * p.d, kv_stride = (int64_t)p.g * p.d, row = w.row0 + q0;
    const bf16 *k = w.k + head / p.per * p.d, *v = w.v + head / p.per * p.d;
    const uint32_t base = smem_at(smem);
    load_tile<BM, DP, THREADS>(base + at::Q, (const bf16 *)p.q + (row * p.h + head) * p.d, stride, valid, p.d);
    load_tile<BN, DP, THREADS>(base + at::K, k, kv_stride, n_keys, p.d);
    cp_commit();

    float o[MT][DP / 8][4] = {}, m[MT][2], l[MT][2] = {};
    m[0][0] = m[0][1] = m[1][0] = m[1][1] = -INFINITY;
    uint32_t qr[MT][Q_IN_REGISTERS ? DP / 16 : 1][4];
    const uint32_t q_lane = base + at::Q + tile_at<DP>(warp * 32, 0) + lane_a<DP>(), k_lane = base + at::K + lane_b<DP>(),
                   v_lane = base + at::V + lane_bt<DP>();
    const int first_row = w.past + q0 + warp * 32; /* position of the warp's first query */
    for (int key = 0; key < n_keys; key += BN) {
        cp_wait<0>();
        __syncthreads(); /* K is here, and V is no longer read */
        load_tile<BN, DP, THREADS>(base + at::V, v + key * kv_stride, kv_stride, n_keys - key, p.d);
        cp_commit();
        if (Q_IN_REGISTERS && key == 0) {
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int c = 0; c < DP / 16; c++) ldsm(qr[mt][Q_IN_REGISTERS ? c : 0], q_lane + tile_at<DP>(mt * 16, c * 16));
        }
        const bool seen = key < first_row + 32; /* by any query of this warp */
        float s[MT][BN / 8][4];
        if (seen) scores<DP, BN, Q_IN_REGISTERS>(s, qr, q_lane, k_lane);
        cp_wait<0>();
        __syncthreads(); /* V is here, and K is no longer read */
        if (key + BN < n_keys)
            load_tile<BN, DP, THREADS>(base + at::K, k + (key + BN) * kv_stride, kv_stride, n_keys - key - BN, p.d);
        cp_commit();
        if (!seen) continue;
        if (key + BN - 1 > first_row) mask<BN>(s, first_row, key);
        softmax_step<DP, BN>(s, o, m, l, p.scale2);
        add_values<DP, BN>(o, s, v_lane);
    }

#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
        const int at_row = warp * 32 + mt * 16;
        const float sum[2] = {quad_sum(l[mt][0]), quad_sum(l[mt][1])};
        store_rows16<DP>(o[mt], 1.0f / sum[0], 1.0f / sum[1], smem + at::Q + tile_at<DP>(at_row, 0),
                         (bf16 *)p.o + ((row + at_row) * p.h + head) * p.d, stride, valid - at_row, p.d);
        if (p.lse && lane % 4 == 0)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = at_row + lane / 4 + half * 8;
                if (r < valid) p.lse[(row + r) * p.h + head] = m[mt][half] * p.scale + logf(sum[half]);
            }
    }
}

template <int DP, bool CACHED> static ida_status launch(const ida_device *dev, const attn_params *p,
                                                        const typename attn_group_of<CACHED>::type &group, int64_t slots) {
    IDA_FAIL_IF(slots > INT32_MAX / p->h, IDA_E_UNSUPPORTED, "attention: %lld tiles of %d heads are beyond one launch",
                (long long)slots, p->h);
    auto *kernel = attention_fwd_bf16__tile128<DP, CACHED>;
    IDA_TRY(attn_allow_shared(kernel, fwd_shared<DP>::BYTES));
    kernel<<<(unsigned)(slots * p->h), THREADS, fwd_shared<DP>::BYTES, ida_cuda_of(dev)->stream>>>(*p, group);
    return IDA_CUDA_LAUNCHED("attention forward");
}

template <bool CACHED> static ida_status launch_for(const ida_device *dev, const attn_params *p,
                                                    const typename attn_group_of<CACHED>::type &group, int64_t slots) {
    if (p->d <= 64) return launch<64, CACHED>(dev, p, group, slots);
    if (p->d <= 96) return launch<96, CACHED>(dev, p, group, slots);
    return launch<128, CACHED>(dev, p, group, slots);
}

ida_status attn_launch_fwd_tile(const ida_device *dev, const attn_params *p, const attn_group *group) {
    const int64_t slots = attn_slots(p, group, 7);
    return group ? launch_for<true>(dev, p, *group, slots) : launch_for<false>(dev, p, attn_none{}, slots);
}
