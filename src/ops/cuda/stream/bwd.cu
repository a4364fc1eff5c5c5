/* stream/bwd.cu - gradient of headnorm(featmap(rope(conv(x)))) of tuned head widths in one pass: x and dy are read once (and
 * three tokens more on each side of a run), dx written once; what lies between is formed again in registers. See stream.cuh for
 * the walk.
 *
 * At token t the gradient at the convolution's output is known; it meets the inputs t-3..t, so dx of t-3 is then complete and the
 * three after it are pending. A run goes on for up to three tokens of its last sequence, to complete its own. Parameter
 * gradients: fp32 within a run, then in double over the runs in order (ida_stream_add_sums). */
#include <math.h>

#include "ops/cuda/stream/stream.cuh"

namespace {

/* Threads of a block, blocks that fit a multiprocessor, the longest run. */
enum { LONGEST = 512 };
template <class T> constexpr int THREADS = sizeof(T) == 2 ? 128 : 64;
template <class T, int PARTS> constexpr int RESIDENT = (PARTS == PARTS_V ? 512 : 256) / THREADS<T>;

/* Partial sums of a call, a row for each run (gain: for each block). NULL = not wanted. */
struct bwd_parts {
    float *conv_w, *conv_b, *gain, *bias;
};

/* What a lane keeps along the walk. */
template <class T, int L, int P, int PARTS> struct bwd_lane {
    using map = row_map<L, P>;
    static constexpr int C = map::C, D = map::D;
    float4 w[C], dw[C];
    float bias_w[C], gain[C], dbias_w[C], dgain[C], dbias[C];
    float old[3][C], pending[3][C]; /* inputs, and dx as far as it is known, of the last three tokens */
    int parts, l;

    __device__ __forceinline__ bool conv() const { return (PARTS & PART_CONV) && (parts & PART_CONV); }
    __device__ __forceinline__ bool rope() const { return (PARTS & PART_ROPE) && (parts & PART_ROPE); }

    __device__ __forceinline__ void start(const stream_call &c, int head) {
#pragma unroll
        for (int i = 0; i < C; i++) {
            const int at = map::channel(l, i);
            if (conv()) {
                w[i] = reinterpret_cast<const float4 *>(c.conv_w)[head * D + at];
                bias_w[i] = c.conv_b ? c.conv_b[head * D + at] : 0; /* the gradient of the convolution alone has none */
            }
            gain[i] = parts & PART_NORM ? c.gain[at] : 1;
            dw[i] = make_float4(0, 0, 0, 0);
            pending[0][i] = pending[1][i] = pending[2][i] = 0;
            dbias_w[i] = dgain[i] = dbias[i] = 0;
        }
    }

    /* One token: forwards through convolution, RoPE, map and norm, then back through them. J: which of `old` and `pending` is the oldest, the place of the token itself afterwards. mine: it is of the run,
     * so it counts in the parameter gradients. whole: the row that this token completes is the run's; it goes to dx. */
    template <int J>
    __device__ __forceinline__ void token(const stream_call &c, const T *row_x, const T *row_dy, const float *cosines,
                                          const float *sines, const float *saved, bool mine, bool whole, T *dx) {
        constexpr int J1 = (J + 1) % 3, J2 = (J + 2) % 3;
        const bool feat = parts & PART_MAP, norm = parts & PART_NORM;
        float v[C], z[C], g[C], sig[C], cs[P], sn[P];
        map::get_row(row_x, l, v);
#pragma unroll
        for (int i = 0; i < C; i++)
            z[i] = conv() ? fmaf(w[i].w, v[i],
                                 fmaf(w[i].z, old[J2][i], fmaf(w[i].y, old[J1][i], fmaf(w[i].x, old[J][i], bias_w[i]))))
                          : v[i];
        if (rope()) {
            map::get_half(cosines, l, cs);
            map::get_half(sines, l, sn);
#pragma unroll
            for (int i = 0; i < P; i++) {
                const float a = z[i], b = z[P + i];
                z[i] = fmaf(a, cs[i], -b * sn[i]);
                z[P + i] = fmaf(b, cs[i], a * sn[i]);
            }
        }
        map::get_row(row_dy, l, g);
        if (feat || norm) {
            /* y = xhat * gain + bias with xhat = s * map * norm and s = z * sig; z holds s from here on */
            float sum = 0, dot = 0;
#pragma unroll
            for (int i = 0; i < C; i++) {
                if (feat) {
                    sig[i] = sigmoid(z[i]);
                    z[i] *= sig[i];
                }
                sum = fmaf(z[i], z[i], sum);
                dot = fmaf(norm ? gain[i] * g[i] : g[i], z[i], dot);
            }
            dot = group_sum<L>(dot);
            row_scales r = {1, 1};
            if ((PARTS == PARTS_ANY || PARTS == PARTS_V) && saved) {
                const float given = *saved;
                (feat ? r.map : r.norm) = given;
            } else r = scales_of<L>(z, group_sum<L>(sum), feat, norm, c.l2_eps, c.norm_eps);
            const float scale = r.map * r.norm;
            /* the part of the gradient along xhat: the norm takes out all but what its eps leaves, the map the rest */
            float along;
            if (feat) {
                along = r.map * (r.map * dot);
                if (norm) along *= fmaf(r.norm * r.norm * (1.0f / D), c.l2_eps * (r.map * r.map), 1.0f);
            } else along = r.norm * (r.norm * dot) * (1.0f / D);
#pragma unroll
            for (int i = 0; i < C; i++) {
                const float xhat = z[i] * scale;
                if (norm && mine) {
                    dgain[i] = fmaf(g[i], xhat, dgain[i]);
                    dbias[i] += g[i];
                }
                const float ds = fmaf(norm ? gain[i] * g[i] : g[i], scale, -along * xhat);
                g[i] = feat ? ds * fmaf(z[i], 1.0f - sig[i], sig[i]) : ds;
            }
        }
        if (rope()) {
#pragma unroll
            for (int i = 0; i < P; i++) {
                const float a = g[i], b = g[P + i];
                g[i] = fmaf(a, cs[i], b * sn[i]);
                g[P + i] = fmaf(b, cs[i], -a * sn[i]);
            }
        }
        if (conv()) {
#pragma unroll
            for (int i = 0; i < C; i++) {
                if (mine) {
                    dw[i].x = fmaf(g[i], old[J][i], dw[i].x);
                    dw[i].y = fmaf(g[i], old[J1][i], dw[i].y);
                    dw[i].z = fmaf(g[i], old[J2][i], dw[i].z);
                    dw[i].w = fmaf(g[i], v[i], dw[i].w);
                    dbias_w[i] += g[i];
                }
                old[J][i] = v[i];
                const float done = fmaf(w[i].x, g[i], pending[J][i]);
                pending[J1][i] = fmaf(w[i].y, g[i], pending[J1][i]);
                pending[J2][i] = fmaf(w[i].z, g[i], pending[J2][i]);
                pending[J][i] = w[i].w * g[i];
                g[i] = done;
            }
        }
        if (whole) map::put_row(dx, l, g);
    }

    /* At the end of a sequence or of the walk, before token t: rows t-3.. of it that are at `low` or later and before `high`. */
    __device__ __forceinline__ void flush(T *head_dx, int64_t step, int t, int low, int high) {
#pragma unroll
        for (int k = 0; k < 3; k++) {
            const int u = t - 3 + k;
            if (u >= low && u < high) map::put_row(head_dx + u * step, l, pending[k]);
#pragma unroll
            for (int i = 0; i < C; i++) pending[k][i] = 0;
        }
    }
};

/* The sums of a walker's run, at channel `row` of the call's rows; those of the gain by block. room [walkers, D]: shared memory
 * that the walk has done with. */
template <class T, int L, int P, int PARTS>
VEC_DEV void store_sums(const bwd_parts &out, const bwd_lane<T, L, P, PARTS> &me, const walker &w, bool conv, bool norm,
                        int64_t row, void *room) {
    using map = row_map<L, P>;
    constexpr int D = map::D, C = map::C;
    if (w.active) {
#pragma unroll
        for (int i = 0; i < C; i++) {
            const int to = map::channel(w.l, i);
            if (conv && out.conv_w) reinterpret_cast<float4 *>(out.conv_w)[row + to] = me.dw[i];
            if (conv && out.conv_b) out.conv_b[row + to] = me.dbias_w[i];
            if (norm && out.bias) out.bias[row + to] = me.dbias[i];
        }
    }
    if (!norm || !out.gain) return;
    float(*gains)[D] = reinterpret_cast<float(*)[D]>(room);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < C; i++) gains[threadIdx.x / L][map::channel(w.l, i)] = w.active ? me.dgain[i] : 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < D; i += (int)blockDim.x) {
        float sum = 0;
        for (int k = 0; k < THREADS<T> / L; k++) sum += gains[k][i];
        out.gain[(int64_t)blockIdx.x * D + i] = sum;
    }
}

/* Phases: places and the first batches of x and dy; parameters, the inputs before the run and RoPE's near angles; then batch by
 * batch, without any test inside a sequence and token by token at the ends; the last rows; the sums. */
template <class T, int L, int P, int PARTS>
__global__ void __launch_bounds__(THREADS<T>, (RESIDENT<T, PARTS>))
    stream_bwd__walk(const stream_call c, const stream_cut cut, const bwd_parts out,
                     const __grid_constant__ rope_freqs<L * P> freqs) {
    using map = row_map<L, P>;
    using ring_of = row_ring<T, L, P>;
    constexpr int HALF = map::HALF, D = map::D, SLOT = ring_of::SLOT, WARPS = THREADS<T> / 32;
    __shared__ __align__(16) T ring_slots[2][WARPS][SLOTS][SLOT];
    __shared__ __align__(16) unsigned char near_bytes[PARTS & PART_ROPE ? sizeof(rope_near<HALF>) : 16];
    __shared__ __align__(16) unsigned char angle_bytes[PARTS & PART_ROPE ? WARPS * sizeof(rope_rows<L, P>) : 16];
    rope_near<HALF> &near = *reinterpret_cast<rope_near<HALF> *>(near_bytes);

    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    rope_rows<L, P> &angles = reinterpret_cast<rope_rows<L, P> *>(angle_bytes)[warp];
    const walker w = walker_of<L>(c, cut);
    bwd_lane<T, L, P, PARTS> me;
    me.parts = PARTS == PARTS_ANY ? c.parts : PARTS, me.l = w.l;
    const bool conv = me.conv(), rope = me.rope(), norm = me.parts & PART_NORM;

    int walk = w.len; /* tokens to go along */
    if (conv) {
        const int64_t rest = c.cu[c.seq[w.begin + w.len - 1] + 1] - w.begin;
        walk = rest < w.len + 3 ? (int)rest : w.len + 3;
    }
    const int64_t step = c.h * D, at = w.begin * step + (int64_t)w.head * D;
    const T *head_x = (const T *)c.x + at;
    T *head_dx = (T *)c.dx + at;
    ring_of ring_x = {ring_slots[0][warp][0] + lane / L * D, (const char *)head_x + w.l * 16, step * (int64_t)sizeof(T), walk,
                      w.l},
            ring_dy = {ring_slots[1][warp][0] + lane / L * D, (const char *)((const T *)c.dy + at) + w.l * 16,
                       step * (int64_t)sizeof(T), walk, w.l};
#pragma unroll
    for (int t = 0; t < SLOTS; t++) {
        ring_x.fetch(t);
        ring_dy.fetch(t);
        if (t % BATCH == BATCH - 1) ring_commit();
    }

    me.start(c, w.head);
    sequence_spot spot = spot_at(c, w.begin, w.begin);
    const float *saved = c.saved ? c.saved + w.begin * c.h + w.head : NULL;
    if (conv) load_old<T, L, P>(me.old, c, spot, head_x, step, w.head, w.l, 0);
    int which = 0, runs = 1; /* of the warp's runs, and how many they are */
    if (rope) {
        which = w.run - __shfl_sync(0xffffffffu, w.run, 0);
        runs = __shfl_sync(0xffffffffu, which, 31) + 1;
        angles.shift[which] = spot.shift;
        fill_near(near, freqs, c.sign);
    }

    const int longest = -warp_least(-walk), delay = conv ? 3 : 0; /* dx is complete so many tokens later */
    int slot = 0, limit = warp_least(w.len < spot.end ? w.len : spot.end);
    bool fresh = true;
    for (int t = 0; t < longest; t += BATCH, slot ^= BATCH) {
        const T *row_x = ring_x.at + slot * SLOT, *row_dy = ring_dy.at + slot * SLOT;
        const float *cosines = angles.cos[which][0], *sines = angles.sin[which][0];
        int low = spot.begin > 0 ? spot.begin : 0;
        ring_wait();
        if (t + BATCH <= limit) {
            if (rope) fill_rows<BATCH>(angles, near, runs, t, fresh, c.sign);
            fresh = false;
            T *dx = head_dx + (t - delay) * step;
            const float *given = saved ? saved + t * c.h : NULL;
            me.template token<0>(c, row_x, row_dy, cosines, sines, given, true, w.active && t - delay >= low, dx);
            me.template token<1>(c, row_x + SLOT, row_dy + SLOT, cosines + HALF, sines + HALF, given ? given + c.h : NULL, true,
                                 w.active && t + 1 - delay >= low, dx + step);
            me.template token<2>(c, row_x + 2 * SLOT, row_dy + 2 * SLOT, cosines + 2 * HALF, sines + 2 * HALF,
                                 given ? given + 2 * c.h : NULL, true, w.active && t + 2 - delay >= low, dx + 2 * step);
        } else {
#pragma unroll 1
            for (int u = t; u < t + BATCH && u < longest; u++, row_x += SLOT, row_dy += SLOT) {
                if (conv && (u == spot.end || u == walk)) me.flush(head_dx, step, u, low, w.active && u <= walk ? w.len : 0);
                if (u == spot.end && u < walk) {
                    spot = spot_at(c, w.begin, w.begin + u);
                    if (conv) load_old<T, L, P>(me.old, c, spot, head_x, step, w.head, w.l, u);
                    if (rope) angles.shift[which] = spot.shift;
                    low = spot.begin;
                }
                if (rope) fill_rows<1>(angles, near, runs, u, true, c.sign);
                me.template token<0>(c, row_x, row_dy, cosines, sines, saved && u < walk ? saved + u * c.h : saved, u < w.len,
                                     w.active && u < walk && u - delay >= low, head_dx + (u - delay) * step);
                if (conv) {
                    rotate(me.old);
                    rotate(me.pending);
                }
            }
            fresh = true;
            limit = warp_least(w.len < spot.end ? w.len : spot.end);
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            ring_x.fetch(slot + j);
            ring_dy.fetch(slot + j);
        }
        ring_commit();
    }
    if (conv && w.active && walk == longest) me.flush(head_dx, step, walk, spot.begin > 0 ? spot.begin : 0, w.len);
    store_sums<T, L, P, PARTS>(out, me, w, conv, norm, w.run * step + (int64_t)w.head * D, ring_slots);
}

enum { SUM_ROWS = 32 };
struct sum_list {
    stream_sum s[4];
};
/* A block has 32 columns of one sum, its warps every SUM_ROWS-th row. */
__global__ void __launch_bounds__(32 * SUM_ROWS) stream_sums__add(const sum_list list) {
    __shared__ double shared[SUM_ROWS][32];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    int64_t block = blockIdx.x;
    int which = 0;
    for (; which < 3 && block >= (list.s[which].cols + 31) / 32; which++) block -= (list.s[which].cols + 31) / 32;
    const stream_sum s = list.s[which];
    const int64_t col = block * 32 + lane;
    double sum = 0;
    if (col < s.cols) {
        const float *at = s.part + col;
#pragma unroll 8
        for (int64_t row = warp; row < s.rows; row += SUM_ROWS) sum += (double)at[row * s.cols];
    }
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || col >= s.cols) return;
    for (int w = 1; w < SUM_ROWS; w++) sum += shared[w][lane];
    s.out[col] = (float)((double)s.out[col] + sum);
}

struct bwd_pass {
    template <class T, int L, int P, int PARTS> static ida_status launch(const ida_device *dev, const stream_call *c) {
        const cudaStream_t stream = ida_cuda_of(dev)->stream;
        const bool conv = c->parts & PART_CONV, norm = c->parts & PART_NORM;
        const stream_cut cut = stream_cut_of(c->n, c->h, THREADS<T> / L, RESIDENT<T, PARTS>, LONGEST);
        const int64_t d = c->h * c->d;
        const bool want_w = conv && c->d_conv_w, want_b = conv && c->d_conv_b, want_gain = norm && c->d_gain,
                   want_bias = norm && c->d_bias;
        const int64_t floats =
            cut.runs * d * ((want_w ? 4 : 0) + (want_b ? 1 : 0) + (want_bias ? 1 : 0)) + (want_gain ? cut.blocks * c->d : 0);
        float *at = NULL;
        IDA_TRY(ida_cuda_scratch(dev, floats * (int64_t)sizeof *at, (void **)&at));
        bwd_parts out = {};
        stream_sum sums[4];
        int n = 0;
        if (want_w) {
            out.conv_w = at, at += cut.runs * d * 4;
            sums[n++] = {c->d_conv_w, out.conv_w, cut.runs, d * 4};
        }
        if (want_b) {
            out.conv_b = at, at += cut.runs * d;
            sums[n++] = {c->d_conv_b, out.conv_b, cut.runs, d};
        }
        if (want_bias) {
            out.bias = at, at += cut.runs * d;
            sums[n++] = {c->d_bias, out.bias, cut.runs, d};
        }
        if (want_gain) {
            out.gain = at;
            sums[n++] = {c->d_gain, out.gain, cut.blocks, c->d};
        }
        stream_bwd__walk<T, L, P, PARTS><<<(unsigned)cut.blocks, THREADS<T>, 0, stream>>>(*c, cut, out, stream_freqs<L * P>(c));
        IDA_TRY(IDA_CUDA_LAUNCHED("stream_bwd"));
        return ida_stream_add_sums(dev, sums, n);
    }
};

} // namespace

ida_status ida_stream_add_sums(const ida_device *dev, const stream_sum *sums, int n) {
    sum_list list = {};
    int64_t blocks = 0;
    for (int i = 0; i < n; i++) {
        list.s[i] = sums[i];
        blocks += vec_div_up(sums[i].cols, 32);
    }
    if (blocks == 0) return IDA_OK;
    stream_sums__add<<<(unsigned)blocks, 32 * SUM_ROWS, 0, ida_cuda_of(dev)->stream>>>(list);
    return IDA_CUDA_LAUNCHED("sums of parameter gradients");
}

ida_status ida_stream_bwd_tuned(const ida_device *dev, const stream_call *c) { return stream_launch<bwd_pass>(dev, c); }
