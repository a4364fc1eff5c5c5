/* stream.cuh - what the kernels of convolution, RoPE, feature map and head norm share: the parts that are asked for, the walk
 * along tokens, the places of a thread's channels, sums of parameter gradients. Private to ops/cuda. Launches: stream/fwd.cu,
 * stream/bwd.cu (tuned head widths), stream/step.cu (one token a sequence), stream/any.cu (all others).
 *
 * The walk: L lanes, a walker, take one head along a run of tokens, one token at a time. A lane holds P channels of the first
 * half of the head's row and the P that RoPE pairs them with; a convolution's last inputs stay in its registers. Walkers are
 * numbered run by run, head by head, and fill warps without gaps: those of a warp may be in two or more runs, which are of nearly
 * equal length. Rows come through a ring of shared memory, BATCH tokens at a time and one batch ahead. Batches inside one
 * sequence of every walker of the warp go without any test, their registers in turn; at the ends of sequences and runs it is one
 * token at a time. Warps do not wait for each other.
 * Invariant: what a row becomes depends neither on the run it is in nor on its neighbours in the warp. */
#ifndef IDA_OPS_CUDA_STREAM_CUH
#define IDA_OPS_CUDA_STREAM_CUH

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/vec.cuh"

enum { PART_CONV = 1, PART_ROPE = 2, PART_MAP = 4, PART_NORM = 8 };
/* Part sets that kernels are compiled for; PARTS_ANY decides at run time. */
enum { PARTS_ANY = -1, PARTS_Q = PART_CONV | PART_ROPE | PART_MAP, PARTS_K = PARTS_Q | PART_NORM, PARTS_V = PART_NORM };
enum { TAPS = 4, BATCH = 3, SLOTS = 2 * BATCH }; /* BATCH = TAPS - 1: what a register holds is known at compile time */

/* One call of the fused op, or of one of its parts. Pointers are the device's. */
typedef struct stream_call {
    int parts;
    int64_t n, h, d;
    const int64_t *cu, *pos0; /* NULL without PART_CONV and PART_ROPE */
    const int32_t *seq;
    const void *x;
    void *y;        /* fwd */
    const void *dy; /* bwd */
    void *dx;
    const float *conv_w, *conv_b, *state_in;
    float *state_out; /* fwd of a step, or ida_conv_final_states after it; NULL = not wanted */
    int64_t stride;
    double theta;
    int sign; /* of RoPE's angle; fwd */
    float l2_eps, norm_eps;
    const float *gain, *bias;
    float *stat;                                  /* fwd, NULL or [N,H] =: 1/r of the last part */
    const float *saved;                           /* bwd with one of map and norm, NULL or [N,H]: its 1/r; eps is not read then */
    float *d_conv_w, *d_conv_b, *d_gain, *d_bias; /* bwd, +=; NULL = not wanted */
} stream_call;

/* How a tuned kernel cuts a call: runs of `batches` batches of tokens, the first `longer` of them of one more. */
typedef struct stream_cut {
    int64_t runs, batches, longer, blocks;
} stream_cut;

/* Whether the tuned kernels take it: a width they know, pointers at multiples of 16 bytes. */
bool ida_stream_tuned(const ida_device *dev, const stream_call *c);
ida_status ida_stream_fwd_tuned(const ida_device *dev, const stream_call *c);
ida_status ida_stream_bwd_tuned(const ida_device *dev, const stream_call *c);
/* Sequences of one token each; calls of the same sequences, up to IDA_MOST_STREAMS, in one launch. */
bool ida_stream_is_step(const stream_call *c, const ida_seqs *seqs);
ida_status ida_stream_fwd_steps(const ida_device *dev, const stream_call *c, int n);
/* Any width, slower, with scratch for what lies between the parts. */
ida_status ida_stream_fwd_any(const ida_device *dev, const stream_call *c);
ida_status ida_stream_bwd_any(const ida_device *dev, const stream_call *c);
static inline ida_status stream_fwd_call(const ida_device *dev, const stream_call *c) {
    return ida_stream_tuned(dev, c) ? ida_stream_fwd_tuned(dev, c) : ida_stream_fwd_any(dev, c);
}
static inline ida_status stream_bwd_call(const ida_device *dev, const stream_call *c) {
    return ida_stream_tuned(dev, c) ? ida_stream_bwd_tuned(dev, c) : ida_stream_bwd_any(dev, c);
}

/* out [cols] += the column sums of part [rows, cols], rows in a fixed order, in double. Up to 4 at once; out NULL = none. */
typedef struct stream_sum {
    float *out;
    const float *part;
    int64_t rows, cols;
} stream_sum;
ida_status ida_stream_add_sums(const ida_device *dev, const stream_sum *sums, int n);

/* state_out [S,3,d] of a convolution, strided; state_in may be the same. */
ida_status ida_conv_final_states(const ida_device *dev, float *state_out, const void *x, const float *state_in, int64_t stride,
                                 const ida_cuda_seqs *t, int64_t d);

#ifdef __CUDACC__
/* cos and sin of an angle formed in double: reduced there, to |r| <= pi/4, and evaluated in float (error below 1e-7). */
VEC_DEV float2 cos_sin(double angle) {
    const double quarters = rint(angle * 0.63661977236758134308);
    const double reduced = fma(-quarters, 6.12323399573676603587e-17, fma(-quarters, 1.57079632679489655800, angle));
    const int quadrant = (int)((long long)quarters & 3);
    const float r = (float)reduced, z = r * r;
    const float s = fmaf(r * z, fmaf(z, fmaf(z, -1.9515295891e-4f, 8.3321608736e-3f), -1.6666654611e-1f), r);
    const float c =
        fmaf(z * z, fmaf(z, fmaf(z, 2.443315711809948e-5f, -1.388731625493765e-3f), 4.166664568298827e-2f), fmaf(z, -0.5f, 1.0f));
    const float cc = quadrant & 1 ? s : c, ss = quadrant & 1 ? c : s;
    return make_float2((quadrant + 1) & 2 ? -cc : cc, quadrant & 2 ? -ss : ss);
}

/* 1 / (1 + e^-x), to about 2 units in the last place; 0 and 1 where e^-x leaves the range. */
VEC_DEV float sigmoid(float x) {
    float e, r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
    return r;
}

/* 1 / sqrt(x), to about 2 units in the last place. */
VEC_DEV float rsqrt_of(float x) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* N = 1, 2 or 4 elements at a multiple of their size. */
template <int N> VEC_DEV void get(const float *p, float *v) {
    if constexpr (N == 4) {
        const float4 t = *reinterpret_cast<const float4 *>(p);
        v[0] = t.x, v[1] = t.y, v[2] = t.z, v[3] = t.w;
    } else if constexpr (N == 2) {
        const float2 t = *reinterpret_cast<const float2 *>(p);
        v[0] = t.x, v[1] = t.y;
    } else v[0] = *p;
}
template <int N> VEC_DEV void get(const __nv_bfloat16 *p, float *v) {
    if constexpr (N == 4) {
        const uint2 t = *reinterpret_cast<const uint2 *>(p);
        v[0] = __uint_as_float(t.x << 16), v[1] = __uint_as_float(t.x & 0xffff0000u);
        v[2] = __uint_as_float(t.y << 16), v[3] = __uint_as_float(t.y & 0xffff0000u);
    } else if constexpr (N == 2) {
        const uint32_t t = *reinterpret_cast<const uint32_t *>(p);
        v[0] = __uint_as_float(t << 16), v[1] = __uint_as_float(t & 0xffff0000u);
    } else v[0] = __bfloat162float(*p);
}
template <int N> VEC_DEV void put(float *p, const float *v) {
    if constexpr (N == 4) *reinterpret_cast<float4 *>(p) = make_float4(v[0], v[1], v[2], v[3]);
    else if constexpr (N == 2) *reinterpret_cast<float2 *>(p) = make_float2(v[0], v[1]);
    else *p = v[0];
}
template <int N> VEC_DEV void put(__nv_bfloat16 *p, const float *v) {
    if constexpr (N == 4) *reinterpret_cast<uint2 *>(p) = make_uint2(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]));
    else if constexpr (N == 2) *reinterpret_cast<uint32_t *>(p) = bf16_pair(v[0], v[1]);
    else *p = __float2bfloat16_rn(v[0]);
}

/* Where lane l's channels lie: in each half pieces of 4, then of 2, then of 1, each piece next to the one of the next lane. */
template <int L, int P> struct row_map {
    static constexpr int HALF = L * P, D = 2 * HALF, C = 2 * P, FOURS = P / 4, REST = P % 4;
    /* Channel p (0..P-1) within a half. */
    static __device__ __forceinline__ int at(int l, int p) {
        if (p < 4 * FOURS) return p / 4 * 4 * L + 4 * l + p % 4;
        p -= 4 * FOURS;
        if (REST >= 2 && p < 2) return FOURS * 4 * L + 2 * l + p;
        return FOURS * 4 * L + (REST & 2) * L + l;
    }
    static __device__ __forceinline__ int channel(int l, int c) { return (c < P ? 0 : HALF) + at(l, c % P); }
    template <class T> static __device__ __forceinline__ void get_half(const T *p, int l, float *v) {
#pragma unroll
        for (int q = 0; q < FOURS; q++) get<4>(p + q * 4 * L + 4 * l, v + 4 * q);
        if constexpr (REST >= 2) get<2>(p + FOURS * 4 * L + 2 * l, v + 4 * FOURS);
        if constexpr (REST & 1) get<1>(p + FOURS * 4 * L + (REST & 2) * L + l, v + 4 * FOURS + (REST & 2));
    }
    template <class T> static __device__ __forceinline__ void get_row(const T *p, int l, float (&v)[C]) {
        get_half(p, l, v);
        get_half(p + HALF, l, v + P);
    }
    template <class T> static __device__ __forceinline__ void put_row(T *p, int l, const float (&v)[C]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            T *to = p + half * HALF;
            const float *from = v + half * P;
#pragma unroll
            for (int q = 0; q < FOURS; q++) put<4>(to + q * 4 * L + 4 * l, from + 4 * q);
            if constexpr (REST >= 2) put<2>(to + FOURS * 4 * L + 2 * l, from + 4 * FOURS);
            if constexpr (REST & 1) put<1>(to + FOURS * 4 * L + (REST & 2) * L + l, from + 4 * FOURS + (REST & 2));
        }
    }
};

/* In all L lanes of a group. */
template <int L, class F> VEC_DEV F group_sum(F x) {
#pragma unroll
    for (int i = L / 2; i > 0; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

/* A walker's copies of whole rows, one cp.async group a batch. `at`: its place in a warp's slots [SLOTS][64 P], shared. */
template <class T, int L, int P> struct row_ring {
    static constexpr int SLOT = 64 * P, BYTES = 2 * L * P * (int)sizeof(T), PIECES = BYTES / 16;
    T *at;
    const char *next; /* the lane's first piece of the next row */
    int64_t step;     /* bytes between tokens */
    int left, l;      /* rows still to come; lane of the walker */
    __device__ __forceinline__ void fetch(int slot) {
        const unsigned dst = (unsigned)__cvta_generic_to_shared(at + slot * SLOT) + (unsigned)l * 16;
#pragma unroll
        for (int i = 0; i < (PIECES + L - 1) / L; i++)
            if (left > 0 && (PIECES % L == 0 || l + i * L < PIECES))
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst + i * L * 16), "l"(next + i * L * 16)
                             : "memory");
        next += step;
        left--;
    }
};
VEC_DEV void ring_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* The oldest batch has landed, for all lanes. */
VEC_DEV void ring_wait() {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();
}

/* The sequence a walk is in; token numbers count from the run's first. */
struct sequence_spot {
    int64_t shift; /* position = token number + shift */
    int index, begin, end;
};
VEC_DEV sequence_spot spot_at(const stream_call &c, int64_t run_begin, int64_t token) {
    if (!c.cu) return {0, 0, INT32_MIN / 2, INT32_MAX};
    const int s = c.seq[token];
    const int64_t from = c.cu[s] - run_begin, to = c.cu[s + 1] - run_begin;
    return {c.pos0[s] - from, s, (int)(from > INT32_MIN / 2 ? from : INT32_MIN / 2), (int)(to < INT32_MAX ? to : INT32_MAX)};
}

/* A lane's walker. */
struct walker {
    int64_t begin; /* the run's first token */
    int run, len, head, l;
    bool active; /* else it does the last walker's work and keeps it to itself */
};
VEC_DEV int64_t run_begin(const stream_cut &cut, int64_t run) {
    return (run * cut.batches + (run < cut.longer ? run : cut.longer)) * BATCH;
}
template <int L> VEC_DEV walker walker_of(const stream_call &c, const stream_cut &cut) {
    const int64_t own = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / L, last = cut.runs * c.h - 1,
                  at = own < last ? own : last;
    const int64_t run = at / c.h, begin = run_begin(cut, run),
                  len = (cut.batches + (run < cut.longer ? 1 : 0)) * BATCH;
    return {begin, (int)run, (int)(len < c.n - begin ? len : c.n - begin), (int)(at - run * c.h), (int)threadIdx.x % L,
            own <= last};
}

VEC_DEV int warp_least(int x) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) {
        const int other = __shfl_xor_sync(0xffffffffu, x, i);
        x = other < x ? other : x;
    }
    return x;
}

/* RoPE's angles. Position p = NEAR * far + near: its cosine and sine come from those of both, which are exact to the last place;
 * the near ones are a block's, the far ones a run's, made again every NEAR tokens. */
template <int HALF> constexpr int NEAR = HALF <= 16 ? 32 : HALF <= 32 ? 16 : HALF <= 64 ? 8 : 4;
template <int HALF> struct rope_freqs { double f[HALF]; };
template <int HALF> struct rope_near {
    alignas(16) double freq[HALF];
    float cos[NEAR<HALF>][HALF], sin[NEAR<HALF>][HALF];
};
/* A warp's: for each run that its walkers are in, counted from the first walker's, BATCH tokens. */
template <int L, int P> struct rope_rows {
    static constexpr int HALF = L * P, RUNS = 32 / L;
    alignas(16) float cos[RUNS][BATCH][HALF], sin[RUNS][BATCH][HALF];
    float far_cos[RUNS][HALF], far_sin[RUNS][HALF];
    int64_t shift[RUNS]; /* position - token number */
};
VEC_DEV float2 signed_angle(double angle, int sign) {
    const float2 v = cos_sin(angle);
    return make_float2(v.x, sign < 0 ? -v.y : v.y);
}
/* All threads of the block; ends with a barrier. */
template <int HALF> VEC_DEV void fill_near(rope_near<HALF> &near, const rope_freqs<HALF> &freqs, int sign) {
    for (int i = (int)threadIdx.x; i < HALF; i += (int)blockDim.x) near.freq[i] = freqs.f[i];
    __syncthreads();
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < NEAR<HALF> * HALF; i += (int)blockDim.x) {
        const float2 v = signed_angle((double)(i / HALF) * near.freq[i % HALF], sign);
        near.cos[i / HALF][i % HALF] = v.x;
        near.sin[i / HALF][i % HALF] = v.y;
    }
    __syncthreads();
}
/* Rows of tokens t .. t + ROWS - 1. All lanes. fresh: the far angles are not those of the token before. */
template <int ROWS, int L, int P>
VEC_DEV void fill_rows(rope_rows<L, P> &rows, const rope_near<L * P> &table, int runs, int t, bool fresh, int sign) {
    constexpr int HALF = L * P;
    const int lane = (int)threadIdx.x & 31;
    __syncwarp();
#pragma unroll 1
    for (int run = 0; run < runs; run++) {
        const int64_t position = rows.shift[run] + t;
        const int near = (int)position & (NEAR<HALF> - 1);
#pragma unroll 1
        for (int k = lane; k < HALF; k += 32) {
            if (!fresh && near > 0 && near + ROWS <= NEAR<HALF>) {
                const float c = rows.far_cos[run][k], s = rows.far_sin[run][k];
#pragma unroll
                for (int j = 0; j < ROWS; j++) {
                    const float nc = table.cos[near + j][k], ns = table.sin[near + j][k];
                    rows.cos[run][j][k] = fmaf(c, nc, -s * ns);
                    rows.sin[run][j][k] = fmaf(s, nc, c * ns);
                }
                continue;
            }
            float2 far = make_float2(rows.far_cos[run][k], rows.far_sin[run][k]);
#pragma unroll 1
            for (int j = 0; j < ROWS; j++) {
                const int at = (near + j) & (NEAR<HALF> - 1);
                if (at == 0 || (j == 0 && fresh)) far = signed_angle((double)(position + j - at) * table.freq[k], sign);
                const float nc = table.cos[at][k], ns = table.sin[at][k];
                rows.cos[run][j][k] = fmaf(far.x, nc, -far.y * ns);
                rows.sin[run][j][k] = fmaf(far.y, nc, far.x * ns);
            }
            rows.far_cos[run][k] = far.x;
            rows.far_sin[run][k] = far.y;
        }
    }
    __syncwarp();
}

/* 1/r of the feature map and of the head norm, from the row's sum of squares. A sum near the end of the range is made again of
 * smaller numbers, so that no finite row gives a NaN; the whole warp takes part. */
struct row_scales {
    float map, norm;
};
template <int L, int C>
VEC_DEV row_scales scales_of(const float (&s)[C], float sum, bool map, bool norm, float l2_eps, float norm_eps) {
    constexpr float D_INV = 1.0f / (float)(L * C), SMALL = 0x1p-80f;
    row_scales r = {1, 1};
    float squares = sum;
    if (map) {
        r.map = rsqrt_of(sum + l2_eps);
        squares = sum * (r.map * r.map);
    }
    if (norm) r.norm = rsqrt_of(fmaf(squares, D_INV, norm_eps));
    if (__any_sync(0xffffffffu, !(sum < 1e37f))) {
        float w = 0;
#pragma unroll
        for (int i = 0; i < C; i++) w = fmaf(s[i] * SMALL, s[i] * SMALL, w);
        w = group_sum<L>(w);
        if (!(sum < 1e37f)) {
            if (map) r.map = rsqrt_of(w) * SMALL;
            if (norm) r.norm = map ? rsqrt_of(D_INV + norm_eps) : rsqrt_of(w * D_INV) * SMALL;
        }
    }
    return r;
}

/* The last three inputs before token t of a run, oldest first: from x, or from the state before the sequence. */
template <class T, int L, int P>
VEC_DEV void load_old(float (&old)[3][2 * P], const stream_call &c, const sequence_spot &spot, const T *head_x, int64_t step,
                      int head, int l, int t) {
    using map = row_map<L, P>;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const int u = t - 3 + k;
        if (u >= spot.begin) map::get_row(head_x + u * step, l, old[k]);
        else {
            const float *row =
                c.state_in ? c.state_in + spot.index * c.stride + (u - spot.begin + 3) * step + head * (2 * L * P) : NULL;
#pragma unroll
            for (int i = 0; i < 2 * P; i++) old[k][i] = row ? row[map::channel(l, i)] : 0;
        }
    }
}
/* The three rows one place on: [0] becomes [2]. */
template <int C> VEC_DEV void rotate(float (&rows)[3][C]) {
#pragma unroll
    for (int i = 0; i < C; i++) {
        const float t = rows[0][i];
        rows[0][i] = rows[1][i], rows[1][i] = rows[2][i], rows[2][i] = t;
    }
}

/* Of the call's width, which is 2 HALF at the most. */
template <int HALF> static inline rope_freqs<HALF> stream_freqs(const stream_call *c) {
    rope_freqs<HALF> f = {};
    for (int i = 0; i < c->d / 2 && c->parts & PART_ROPE; i++) f.f[i] = pow(c->theta, -2.0 * (double)i / (double)c->d);
    return f;
}

/* Cuts so that all blocks are resident at once, `resident` of `walkers` walkers on each of 132 multiprocessors, or fill them a
 * whole number of times where runs would be longer than `longest`: numbers of the code, so that sums do not depend on the
 * device's. */
static inline stream_cut stream_cut_of(int64_t n, int64_t h, int walkers, int resident, int64_t longest) {
    const int64_t room = (int64_t)132 * resident * walkers, batches = vec_div_up(n, BATCH);
    const int64_t times = vec_div_up(vec_div_up(n, longest) * h, room);
    const int64_t runs = vec_min(vec_max(times * room / h, 1), batches);
    return {runs, batches / runs, batches % runs, vec_div_up(runs * h, walkers)};
}

/* Pass::launch<T, L, P, PARTS> for the call's element type, head width 2 L P (those of ida_stream_tuned) and parts. */
template <class Pass, class T, int L, int P>
static inline ida_status stream_launch_parts(const ida_device *dev, const stream_call *c) {
    if (c->parts == PARTS_V) return Pass::template launch<T, L, P, PARTS_V>(dev, c);
    if (c->parts == PARTS_Q) return Pass::template launch<T, L, P, PARTS_Q>(dev, c);
    if (c->parts == PARTS_K) return Pass::template launch<T, L, P, PARTS_K>(dev, c);
    return Pass::template launch<T, L, P, PARTS_ANY>(dev, c);
}
template <class Pass, class T> static inline ida_status stream_launch_width(const ida_device *dev, const stream_call *c) {
    switch (c->d) {
    case 32: return stream_launch_parts<Pass, T, 4, 4>(dev, c);
    case 64: return stream_launch_parts<Pass, T, 8, 4>(dev, c);
    case 96: return stream_launch_parts<Pass, T, 16, 3>(dev, c);
    case 128: return stream_launch_parts<Pass, T, 16, 4>(dev, c);
    case 192: return stream_launch_parts<Pass, T, 32, 3>(dev, c);
    }
    return stream_launch_parts<Pass, T, 32, 4>(dev, c);
}
template <class Pass> static inline ida_status stream_launch(const ida_device *dev, const stream_call *c) {
    ida_status st = IDA_OK;
    if (c->n > 0) IDA_CUDA_ACT(dev, T, st = (stream_launch_width<Pass, T>(dev, c)));
    return st;
}
#endif
#endif
