/* stream/any.cu - convolution, RoPE, feature map and head norm of any width, forward and backward, one part after another over
 * fp32 scratch. The path of shapes that the tuned kernels do not know: correct first. Row sums are in double, parameter gradients
 * fp32 within a run of tokens and double over the runs. */
#include <math.h>

#include "ops/cuda/stream/stream.cuh"

namespace {

enum { THREADS = 256, MOST_BLOCKS = 132 * 32, SHORTEST_RUN = 64, MOST_RUNS = 256 };

/* Input of channel i at token u (u may lie up to three before the sequence's first). */
__device__ float input_at(const stream_call &c, const float *x, int64_t s, int64_t u, int64_t i, int64_t width) {
    if (u >= c.cu[s]) return x[u * width + i];
    return c.state_in ? c.state_in[s * c.stride + (u - c.cu[s] + 3) * width + i] : 0;
}

__global__ void conv_fwd__any_width(float *y, const float *x, const stream_call c) {
    const int64_t width = c.h * c.d, all = c.n * width;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < all; at += (int64_t)gridDim.x * THREADS) {
        const int64_t t = at / width, i = at % width, s = c.seq[t];
        float a = c.conv_b[i];
        for (int k = 0; k < TAPS; k++) a = fmaf(c.conv_w[i * TAPS + k], input_at(c, x, s, t - 3 + k, i, width), a);
        y[at] = a;
    }
}

__global__ void conv_bwd__any_width(float *dx, const float *dy, const stream_call c) {
    const int64_t width = c.h * c.d, all = c.n * width;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < all; at += (int64_t)gridDim.x * THREADS) {
        const int64_t t = at / width, i = at % width, end = c.cu[c.seq[t] + 1];
        float g = 0;
        for (int k = 0; k < TAPS; k++)
            if (t + 3 - k < end) g = fmaf(c.conv_w[i * TAPS + k], dy[(t + 3 - k) * width + i], g);
        dx[at] = g;
    }
}

/* A thread a channel, a row of blocks a run. w [runs, width, 4], b [runs, width]. */
__global__ void conv_bwd__sums_any_width(float *w, float *b, const float *dy, const float *x, const stream_call c,
                                         int64_t run) {
    const int64_t width = c.h * c.d, i = (int64_t)blockIdx.x * THREADS + threadIdx.x, begin = blockIdx.y * run;
    if (i >= width) return;
    float sum[TAPS] = {}, sum_b = 0;
    for (int64_t t = begin; t < begin + run && t < c.n; t++) {
        const int64_t s = c.seq[t];
        const float g = dy[t * width + i];
        for (int k = 0; k < TAPS; k++) sum[k] = fmaf(g, input_at(c, x, s, t - 3 + k, i, width), sum[k]);
        sum_b += g;
    }
    for (int k = 0; k < TAPS; k++) w[(blockIdx.y * width + i) * TAPS + k] = sum[k];
    b[blockIdx.y * width + i] = sum_b;
}

/* A thread a token and pair. y may be x. */
__global__ void rope__any_width(float *y, const float *x, const stream_call c, int sign) {
    const int64_t half = c.d / 2, all = c.n * half;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < all; at += (int64_t)gridDim.x * THREADS) {
        const int64_t t = at / half, i = at % half, s = c.seq[t];
        const double freq = pow(c.theta, -2.0 * (double)i / (double)c.d);
        const float2 v = cos_sin((double)(c.pos0[s] + t - c.cu[s]) * freq);
        const float sn = sign < 0 ? -v.y : v.y;
        for (int64_t j = 0; j < c.h; j++) {
            const int64_t p = (t * c.h + j) * c.d + i;
            const float a = x[p], b = x[p + half];
            y[p] = fmaf(a, v.x, -b * sn);
            y[p + half] = fmaf(b, v.x, a * sn);
        }
    }
}

/* A warp a row in what follows; y may be x, dx may be dy. */
struct row_place {
    int64_t row, rows, step;
    int lane;
};
__device__ row_place first_row(const stream_call &c) {
    return {(int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, c.n * c.h, (int64_t)gridDim.x * (THREADS / 32),
            (int)threadIdx.x & 31};
}

__global__ void featmap_fwd__any_width(float *y, float *rinv, const float *x, const stream_call c) {
    for (row_place p = first_row(c); p.row < p.rows; p.row += p.step) {
        const float *xr = x + p.row * c.d;
        double sum = 0;
        for (int64_t i = p.lane; i < c.d; i += 32) {
            const double s = (double)(xr[i] * sigmoid(xr[i]));
            sum += s * s;
        }
        const float r = (float)(1 / sqrt(warp_sum(sum) + (double)c.l2_eps));
        if (p.lane == 0 && rinv) rinv[p.row] = r;
        for (int64_t i = p.lane; i < c.d; i += 32) y[p.row * c.d + i] = xr[i] * sigmoid(xr[i]) * r;
    }
}

__global__ void featmap_bwd__any_width(float *dx, const float *dy, const float *x, const float *rinv, const stream_call c) {
    for (row_place p = first_row(c); p.row < p.rows; p.row += p.step) {
        const float *xr = x + p.row * c.d, *dyr = dy + p.row * c.d, r = rinv[p.row];
        double dot = 0;
        for (int64_t i = p.lane; i < c.d; i += 32) dot += (double)(xr[i] * sigmoid(xr[i]) * r) * (double)dyr[i];
        const float along = (float)warp_sum(dot);
        for (int64_t i = p.lane; i < c.d; i += 32) {
            const float sig = sigmoid(xr[i]), s = xr[i] * sig;
            dx[p.row * c.d + i] = r * (dyr[i] - s * r * along) * fmaf(s, 1.0f - sig, sig);
        }
    }
}

__global__ void headnorm_fwd__any_width(float *y, float *rstd, const float *x, const stream_call c) {
    for (row_place p = first_row(c); p.row < p.rows; p.row += p.step) {
        const float *xr = x + p.row * c.d, *b = c.bias ? c.bias + p.row % c.h * c.d : NULL;
        double sum = 0;
        for (int64_t i = p.lane; i < c.d; i += 32) sum += (double)xr[i] * (double)xr[i];
        const float r = (float)(1 / sqrt(warp_sum(sum) / (double)c.d + (double)c.norm_eps));
        if (p.lane == 0 && rstd) rstd[p.row] = r;
        for (int64_t i = p.lane; y && i < c.d; i += 32) y[p.row * c.d + i] = fmaf(xr[i] * r, c.gain[i], b ? b[i] : 0);
    }
}

__global__ void headnorm_bwd__any_width(float *dx, const float *dy, const float *x, const float *rstd, const stream_call c) {
    for (row_place p = first_row(c); p.row < p.rows; p.row += p.step) {
        const float *xr = x + p.row * c.d, *dyr = dy + p.row * c.d, r = rstd[p.row];
        double dot = 0;
        for (int64_t i = p.lane; i < c.d; i += 32) dot += (double)(c.gain[i] * dyr[i]) * (double)(xr[i] * r);
        const float along = (float)(warp_sum(dot) / (double)c.d);
        for (int64_t i = p.lane; i < c.d; i += 32) dx[p.row * c.d + i] = r * (c.gain[i] * dyr[i] - xr[i] * r * along);
    }
}

/* A thread a channel, a row of blocks a run. gain, bias [runs, H*D]. */
__global__ void headnorm_bwd__sums_any_width(float *gain, float *bias, const float *dy, const float *x, const float *rstd,
                                             const stream_call c, int64_t run) {
    const int64_t width = c.h * c.d, i = (int64_t)blockIdx.x * THREADS + threadIdx.x, begin = blockIdx.y * run;
    if (i >= width) return;
    float sum_g = 0, sum_b = 0;
    for (int64_t t = begin; t < begin + run && t < c.n; t++) {
        const float g = dy[t * width + i];
        sum_g = fmaf(g, x[t * width + i] * rstd[t * c.h + i / c.d], sum_g);
        sum_b += g;
    }
    gain[blockIdx.y * width + i] = sum_g;
    bias[blockIdx.y * width + i] = sum_b;
}

unsigned blocks_for(int64_t items, int64_t each) { return (unsigned)vec_min(vec_div_up(items, each), MOST_BLOCKS); }

/* Pieces of scratch, counted with base NULL. */
struct cutter {
    char *base;
    int64_t bytes;
    float *take(int64_t n) {
        float *at = base ? (float *)(void *)(base + bytes) : NULL;
        bytes += vec_div_up(n * (int64_t)sizeof(float), 256) * 256;
        return at;
    }
};

struct any_pass {
    const stream_call *c;
    cudaStream_t stream;
    unsigned elements, pairs, rows; /* blocks */
};
any_pass pass_of(const ida_device *dev, const stream_call *c) {
    return {c, ida_cuda_of(dev)->stream, blocks_for(c->n * c->h * c->d, THREADS), blocks_for(c->n * (c->d / 2), THREADS),
            blocks_for(c->n * c->h, THREADS / 32)};
}
/* Convolution and RoPE to z; what follows them reads the result. (No bias: the gradient of the convolution alone, which nothing
 * follows.) */
const float *turn(const any_pass &p, float *z, const float *x) {
    if (p.c->parts & PART_CONV && p.c->conv_b) {
        conv_fwd__any_width<<<p.elements, THREADS, 0, p.stream>>>(z, x, *p.c);
        x = z;
    }
    if (p.c->parts & PART_ROPE) {
        rope__any_width<<<p.pairs, THREADS, 0, p.stream>>>(z, x, *p.c, p.c->sign);
        x = z;
    }
    return x;
}
/* An act array in fp32: itself, or cast to `room`. */
ida_status widen(const ida_device *dev, const float **out, float *room, const void *x, int64_t n) {
    *out = (const float *)x;
    if (!ida_cuda_of(dev)->bf16) return IDA_OK;
    *out = room;
    return ida_cuda_from_act(dev, room, (const ida_act *)x, n);
}

} // namespace

ida_status ida_stream_fwd_any(const ida_device *dev, const stream_call *c) {
    const int64_t all = c->n * c->h * c->d;
    if (all == 0) return IDA_OK;
    const any_pass p = pass_of(dev, c);
    void *base = NULL;
    float *room = NULL, *z = NULL;
    const float *at = NULL;
    for (int pass = 0; pass < 2; pass++) {
        cutter cut = {(char *)base, 0};
        room = cut.take(ida_cuda_of(dev)->bf16 ? all : 0), z = cut.take(all);
        if (pass == 0) IDA_TRY(ida_cuda_scratch(dev, cut.bytes, &base));
    }
    IDA_TRY(widen(dev, &at, room, c->x, all));
    at = turn(p, z, at);
    if (c->parts & PART_MAP) {
        featmap_fwd__any_width<<<p.rows, THREADS, 0, p.stream>>>(z, c->parts & PART_NORM ? NULL : c->stat, at, *c);
        at = z;
    }
    if (c->parts & PART_NORM) {
        headnorm_fwd__any_width<<<p.rows, THREADS, 0, p.stream>>>(z, c->stat, at, *c);
        at = z;
    }
    IDA_TRY(IDA_CUDA_LAUNCHED("stream_fwd, any width"));
    return ida_cuda_to_act(dev, (ida_act *)c->y, at, all);
}

ida_status ida_stream_bwd_any(const ida_device *dev, const stream_call *c) {
    const int64_t width = c->h * c->d, all = c->n * width;
    if (all == 0) return IDA_OK;
    const any_pass p = pass_of(dev, c);
    const bool conv = c->parts & PART_CONV, map = c->parts & PART_MAP, norm = c->parts & PART_NORM, bf16 = ida_cuda_of(dev)->bf16;
    const int64_t run = vec_max(SHORTEST_RUN, vec_div_up(c->n, MOST_RUNS)), runs = vec_div_up(c->n, run);
    void *base = NULL;
    float *x_room = NULL, *dy_room = NULL, *z = NULL, *f = NULL, *g = NULL, *rinv = NULL, *rstd = NULL, *sums[4] = {};
    for (int pass = 0; pass < 2; pass++) {
        cutter cut = {(char *)base, 0};
        x_room = cut.take(bf16 ? all : 0), dy_room = cut.take(bf16 ? all : 0);
        z = cut.take(all), f = cut.take(all), g = cut.take(all);
        rinv = cut.take(c->n * c->h), rstd = cut.take(c->n * c->h);
        sums[0] = cut.take(conv ? runs * width * TAPS : 0), sums[1] = cut.take(conv ? runs * width : 0);
        sums[2] = cut.take(norm ? runs * width : 0), sums[3] = cut.take(norm ? runs * width : 0);
        if (pass == 0) IDA_TRY(ida_cuda_scratch(dev, cut.bytes, &base));
    }
    const float *x = NULL, *at = NULL;
    IDA_TRY(widen(dev, &x, x_room, c->x, all));
    IDA_TRY(widen(dev, &at, dy_room, c->dy, all));
    const float *turned = turn(p, z, x), *mapped = turned;
    if (map) {
        if (norm || !c->saved) featmap_fwd__any_width<<<p.rows, THREADS, 0, p.stream>>>(f, rinv, turned, *c);
        mapped = f;
    }
    const dim3 grid((unsigned)vec_div_up(width, THREADS), (unsigned)runs);
    if (norm) {
        const float *r = c->saved ? c->saved : rstd;
        if (!c->saved) headnorm_fwd__any_width<<<p.rows, THREADS, 0, p.stream>>>(NULL, rstd, mapped, *c);
        headnorm_bwd__sums_any_width<<<grid, THREADS, 0, p.stream>>>(sums[2], sums[3], at, mapped, r, *c, run);
        headnorm_bwd__any_width<<<p.rows, THREADS, 0, p.stream>>>(g, at, mapped, r, *c);
        at = g;
    }
    if (map) {
        featmap_bwd__any_width<<<p.rows, THREADS, 0, p.stream>>>(g, at, turned, !norm && c->saved ? c->saved : rinv, *c);
        at = g;
    }
    if (c->parts & PART_ROPE) {
        rope__any_width<<<p.pairs, THREADS, 0, p.stream>>>(g, at, *c, -c->sign);
        at = g;
    }
    if (conv) {
        conv_bwd__sums_any_width<<<grid, THREADS, 0, p.stream>>>(sums[0], sums[1], at, x, *c, run);
        conv_bwd__any_width<<<p.elements, THREADS, 0, p.stream>>>(f, at, *c);
        at = f;
    }
    IDA_TRY(IDA_CUDA_LAUNCHED("stream_bwd, any width"));
    stream_sum list[4];
    int n = 0;
    if (conv && c->d_conv_w) list[n++] = {c->d_conv_w, sums[0], runs, width * TAPS};
    if (conv && c->d_conv_b) list[n++] = {c->d_conv_b, sums[1], runs, width};
    if (norm && c->d_gain) list[n++] = {c->d_gain, sums[2], runs * c->h, c->d};
    if (norm && c->d_bias) list[n++] = {c->d_bias, sums[3], runs, width};
    IDA_TRY(ida_stream_add_sums(dev, list, n));
    return ida_cuda_to_act(dev, (ida_act *)c->dx, at, all);
}
