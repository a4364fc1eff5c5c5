/* stream/fwd.cu - y = headnorm(featmap(rope(conv(x)))) of tuned head widths in one pass: x is read once (and three tokens more a
 * run), y written once. See stream.cuh for the walk. Everything between is fp32 and in registers. Invariant: y of a row is a
 * function of its sequence alone: runs, and the rows beside it, do not show. */
#include <math.h>

#include "ops/cuda/stream/stream.cuh"

namespace {

/* Threads of a block, blocks that fit a multiprocessor, the longest run. */
enum { THREADS = 128, LONGEST = 256 };
template <int PARTS> constexpr int RESIDENT = PARTS == PARTS_ANY ? 3 : PARTS == PARTS_V ? 6 : 4;

/* What a lane keeps along the walk. */
template <class T, int L, int P, int PARTS> struct fwd_lane {
    using map = row_map<L, P>;
    static constexpr int C = map::C, D = map::D;
    float4 w[C];
    float bias_w[C], gain[C], bias[C], old[3][C];
    int parts, l;
    const float *gains; /* [D], shared: where all parts are there, registers are short */
    T *y;               /* of the next token */
    float *stat;

    __device__ __forceinline__ void load_parameters(const stream_call &c, int head) {
#pragma unroll
        for (int i = 0; i < C; i++) {
            const int at = map::channel(l, i);
            if ((PARTS & PART_CONV) && (parts & PART_CONV)) {
                w[i] = reinterpret_cast<const float4 *>(c.conv_w)[head * D + at];
                bias_w[i] = c.conv_b[head * D + at];
            }
            if (PARTS != PARTS_K) gain[i] = parts & PART_NORM ? c.gain[at] : 1;
            bias[i] = parts & PART_NORM && c.bias ? c.bias[head * D + at] : 0;
        }
    }

    /* One token; J: which of `old` is the oldest, the place of the token itself afterwards. keep: it is written. */
    template <int J>
    __device__ __forceinline__ void token(const stream_call &c, const T *row, const float *cosines, const float *sines,
                                          int64_t step, bool keep) {
        float v[C];
        map::get_row(row, l, v);
        if ((PARTS & PART_CONV) && (parts & PART_CONV)) {
            constexpr int J1 = (J + 1) % 3, J2 = (J + 2) % 3;
#pragma unroll
            for (int i = 0; i < C; i++) {
                const float z =
                    fmaf(w[i].w, v[i], fmaf(w[i].z, old[J2][i], fmaf(w[i].y, old[J1][i], fmaf(w[i].x, old[J][i], bias_w[i]))));
                old[J][i] = v[i];
                v[i] = z;
            }
        }
        if ((PARTS & PART_ROPE) && (parts & PART_ROPE)) {
            float cs[P], sn[P];
            map::get_half(cosines, l, cs);
            map::get_half(sines, l, sn);
#pragma unroll
            for (int i = 0; i < P; i++) {
                const float a = v[i], b = v[P + i];
                v[i] = fmaf(a, cs[i], -b * sn[i]);
                v[P + i] = fmaf(b, cs[i], a * sn[i]);
            }
        }
        const bool feat = parts & PART_MAP, norm = parts & PART_NORM;
        if (feat) {
#pragma unroll
            for (int i = 0; i < C; i++) v[i] *= sigmoid(v[i]);
        }
        if (feat || norm) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < C; i++) sum = fmaf(v[i], v[i], sum);
            const row_scales r = scales_of<L>(v, group_sum<L>(sum), feat, norm, c.l2_eps, c.norm_eps);
            const float scale = r.map * r.norm;
            if (PARTS == PARTS_K) map::get_row(gains, l, gain);
#pragma unroll
            for (int i = 0; i < C; i++) v[i] = norm ? fmaf(v[i] * scale, gain[i], bias[i]) : v[i] * scale;
            if ((PARTS == PARTS_ANY || PARTS == PARTS_V) && stat) {
                if (keep && l == 0) *stat = scale;
                stat += c.h;
            }
        }
        if (keep) map::put_row(y, l, v);
        y += step;
    }
};

template <class T, int L, int P, int PARTS>
__global__ void __launch_bounds__(THREADS, (RESIDENT<PARTS>))
    stream_fwd__walk(const stream_call c, const stream_cut cut, const __grid_constant__ rope_freqs<L * P> freqs) {
    using map = row_map<L, P>;
    using ring_of = row_ring<T, L, P>;
    constexpr int HALF = map::HALF, D = map::D, SLOT = ring_of::SLOT;
    const int parts = PARTS == PARTS_ANY ? c.parts : PARTS;
    const bool conv = (PARTS & PART_CONV) && (parts & PART_CONV), rope = (PARTS & PART_ROPE) && (parts & PART_ROPE);

    __shared__ __align__(16) T ring_slots[THREADS / 32][SLOTS][SLOT];
    __shared__ __align__(16) unsigned char near_bytes[PARTS & PART_ROPE ? sizeof(rope_near<HALF>) : 16];
    __shared__ __align__(16) unsigned char angle_bytes[PARTS & PART_ROPE ? THREADS / 32 * sizeof(rope_rows<L, P>) : 16];
    rope_near<HALF> &near = *reinterpret_cast<rope_near<HALF> *>(near_bytes);

    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    rope_rows<L, P> &angles = reinterpret_cast<rope_rows<L, P> *>(angle_bytes)[warp];
    const walker w = walker_of<L>(c, cut);
    const int64_t step = c.h * D, at = w.begin * step + (int64_t)w.head * D;
    const T *head_x = (const T *)c.x + at;

    ring_of ring = {ring_slots[warp][0] + lane / L * D, (const char *)head_x + w.l * 16, step * (int64_t)sizeof(T), w.len, w.l};
#pragma unroll
    for (int t = 0; t < SLOTS; t++) {
        ring.fetch(t);
        if (t % BATCH == BATCH - 1) ring_commit();
    }

    fwd_lane<T, L, P, PARTS> me;
    me.parts = parts, me.l = w.l, me.y = (T *)c.y + at;
    me.stat = c.stat ? c.stat + w.begin * c.h + w.head : NULL;
    me.load_parameters(c, w.head);
    if constexpr (PARTS == PARTS_K) { /* there before the barrier of fill_near */
        __shared__ __align__(16) float gains[D];
        for (int i = (int)threadIdx.x; i < D; i += THREADS) gains[i] = c.gain[i];
        me.gains = gains;
    }
    sequence_spot spot = spot_at(c, w.begin, w.begin);
    if (conv) load_old<T, L, P>(me.old, c, spot, head_x, step, w.head, w.l, 0);
    int which = 0, runs = 1; /* of the warp's runs, and how many they are */
    if (rope) {
        which = w.run - __shfl_sync(0xffffffffu, w.run, 0);
        runs = __shfl_sync(0xffffffffu, which, 31) + 1;
        angles.shift[which] = spot.shift;
        fill_near(near, freqs, c.sign);
    }

    const int longest = -warp_least(-w.len);
    int slot = 0, limit = warp_least(w.len < spot.end ? w.len : spot.end);
    bool fresh = true;
    for (int t = 0; t < longest; t += BATCH, slot ^= BATCH) {
        const T *row = ring.at + slot * SLOT;
        const float *cosines = angles.cos[which][0], *sines = angles.sin[which][0];
        ring_wait();
        if (t + BATCH <= limit) {
            if (rope) fill_rows<BATCH>(angles, near, runs, t, fresh, c.sign);
            fresh = false;
            me.template token<0>(c, row, cosines, sines, step, w.active);
            me.template token<1>(c, row + SLOT, cosines + HALF, sines + HALF, step, w.active);
            me.template token<2>(c, row + 2 * SLOT, cosines + 2 * HALF, sines + 2 * HALF, step, w.active);
        } else {
#pragma unroll 1
            for (int u = t; u < t + BATCH && u < longest; u++, row += SLOT) {
                if (u == spot.end && u < w.len) {
                    const int64_t begin = run_begin(cut, w.run);
                    spot = spot_at(c, begin, begin + u);
                    const T *run_x = (const T *)c.x + (me.y - (T *)c.y) - u * step;
                    if (conv) load_old<T, L, P>(me.old, c, spot, run_x, step, w.head, w.l, u);
                    if (rope) angles.shift[which] = spot.shift;
                }
                if (rope) fill_rows<1>(angles, near, runs, u, true, c.sign);
                me.template token<0>(c, row, cosines, sines, step, w.active && u < w.len);
                if (conv) rotate(me.old);
            }
            fresh = true;
            limit = warp_least(w.len < spot.end ? w.len : spot.end);
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < BATCH; j++) ring.fetch(slot + j);
        ring_commit();
    }
}

struct fwd_pass {
    template <class T, int L, int P, int PARTS> static ida_status launch(const ida_device *dev, const stream_call *c) {
        const stream_cut cut = stream_cut_of(c->n, c->h, THREADS / L, RESIDENT<PARTS>, LONGEST);
        stream_fwd__walk<T, L, P, PARTS>
            <<<(unsigned)cut.blocks, THREADS, 0, ida_cuda_of(dev)->stream>>>(*c, cut, stream_freqs<L * P>(c));
        return IDA_CUDA_LAUNCHED("stream_fwd");
    }
};

} // namespace

ida_status ida_stream_fwd_tuned(const ida_device *dev, const stream_call *c) { return stream_launch<fwd_pass>(dev, c); }
