/* ops_cuda.c - how fast each op of the CUDA device is at training shapes, through the op table: median milliseconds beside the
 * floor, which is the larger of bytes at the measured copy rate and flops at the measured rate of a large product. Every array is
 * counted once (twice where it is read and written). An op has a line only when it agrees with the reference on a small problem
 * of the same widths.
 *
 *     ops_cuda [--device cuda] [--dtype bf16|f32] [--only NAME] [--width 768] [--repeats 20] [--tokens 32768] [--seq 4096]
 *
 * The environment variable IDA_ATTENTION=own takes our own attention kernels where cuDNN is used else. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../tests/cuda/op_calls.h"
#include "core/bf16.h"
#include "core/rng.h"
#include "ops/backend.h"
#include "ops/cuda/cuda_ops.h"

enum { BLOCK = (1 << 20) - 3, SMALL = 130, MAX_PROBLEMS = 64, FLUSH = 256 << 20 };
typedef struct bench {
    const ida_device *dev;
    int repeats;
    int64_t tokens, seq;
    double bytes_per_s, flop_per_s;
    void *flush;
    int bad;
} bench;

static void must(ida_status st) {
    if (st == IDA_OK) return;
    fprintf(stderr, "ops_cuda: %s\n", ida_last_error());
    exit(1);
}
static void cuda(cudaError_t e) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "ops_cuda: %s\n", cudaGetErrorString(e));
    exit(1);
}
static void *must_alloc(int64_t n, size_t size) {
    void *p = calloc((size_t)n + 1, size);
    if (!p) exit(1);
    return p;
}

/* ---- the problems: one layer of width d, heads of 64, 64 modes */
#define A_IN(name, w, mean, sd) {name, ROWS_IN, F_ACT, w, mean, sd}
#define R_IN(name, w, mean, sd) {name, ROWS_IN, F_REAL, w, mean, sd}
#define A_OUT(name, w) {name, ROWS_OUT, F_ACT, w, 0, 0}
#define R_OUT(name, w) {name, ROWS_OUT, F_REAL, w, 0, 0}
#define R_MADE(name, w) {name, ROWS_SETUP, F_REAL, w, 0, 0}
#define A_PAR(name, w, mean, sd) {name, PARAM, F_ACT, w, mean, sd}
#define R_PAR(name, w, mean, sd) {name, PARAM, F_REAL, w, mean, sd}
#define R_SUM(name, w) {name, SUM, F_REAL, w, 0, 0}
#define CONV(w) R_PAR("conv_w", 4 * (w), 0, 0.5), R_PAR("conv_b", w, 0, 0.5)
#define SSM(h) R_PAR("log_dt", h, -4.5, 1), R_PAR("a_log", 64 * (h), -0.7, 0.1), R_PAR("a_imag", 64 * (h), 0, 30), \
               R_PAR("c_re", 4096 * (h), 0, 0.088), R_PAR("c_im", 4096 * (h), 0, 0.088)
#define SSM_SUMS(h) R_SUM("dlog_dt", h), R_SUM("da_log", 64 * (h)), R_SUM("da_imag", 64 * (h)), R_SUM("dc_re", 4096 * (h)), \
                    R_SUM("dc_im", 4096 * (h))
#define STATE(h) {"state_re", ROWS_INOUT, F_REAL, (h) * 64 * 128, 0, 1}, {"state_im", ROWS_INOUT, F_REAL, (h) * 64 * 128, 0, 1}
#define PREP(h, g) R_PAR("lam_re", (h) * 64, 0.5, 0.1), R_PAR("lam_im", (h) * 64, 0.5, 0.1), R_PAR("b_re", (h) * 64, 1, 0.1), \
                   R_PAR("b_im", (h) * 64, 0, 0.1), R_PAR("g_re", g, 0, 0.1), R_PAR("g_im", g, 0, 0.1)

/* clang-format off */
static int row_problems(problem *p, int64_t d) {
    const int64_t f = (8 * d / 3 + 127) / 128 * 128, v = 32000;
    const problem list[] = {
        {"embed_fwd", 0, d, v, NULL, call_embed_fwd,
         {A_OUT("y", d), {"ids", INTS, F_INT, v, 0, 0}, {"table", TABLE, F_ACT, v * d, 0, 1}}},
        {"embed_bwd", 0, d, v, NULL, call_embed_bwd,
         {R_SUM("dtable", v * d), {"ids", INTS, F_INT, v, 0, 0}, A_IN("dy", d, 0, 1)}},
        {"linear_fwd d d", 0, d, d, NULL, call_linear_fwd, {A_OUT("y", d), A_IN("x", d, 0, 1), A_PAR("w", d * d, 0, 0.02)}},
        {"linear_bwd d d", 0, d, d, NULL, call_linear_bwd,
         {A_OUT("dx", d), R_SUM("dw", d * d), A_IN("dy", d, 0, 1), A_IN("x", d, 0, 1), A_PAR("w", d * d, 0, 0.02)}},
        {"linear_fwd d f", 0, d, f, NULL, call_linear_fwd, {A_OUT("y", f), A_IN("x", d, 0, 1), A_PAR("w", d * f, 0, 0.02)}},
        {"linear_bwd d f", 0, d, f, NULL, call_linear_bwd,
         {A_OUT("dx", d), R_SUM("dw", d * f), A_IN("dy", f, 0, 1), A_IN("x", d, 0, 1), A_PAR("w", d * f, 0, 0.02)}},
        {"linear_fwd f d", 0, f, d, NULL, call_linear_fwd, {A_OUT("y", d), A_IN("x", f, 0, 1), A_PAR("w", d * f, 0, 0.02)}},
        {"linear_bwd f d", 0, f, d, NULL, call_linear_bwd,
         {A_OUT("dx", f), R_SUM("dw", d * f), A_IN("dy", d, 0, 1), A_IN("x", f, 0, 1), A_PAR("w", d * f, 0, 0.02)}},
        {"linear_fwd head", 0, d, v, NULL, call_linear_fwd, {A_OUT("y", v), A_IN("x", d, 0, 1), A_PAR("w", d * v, 0, 0.02)}},
        {"linear_bwd head", 0, d, v, NULL, call_linear_bwd,
         {A_OUT("dx", d), R_SUM("dw", d * v), A_IN("dy", v, 0, 1), A_IN("x", d, 0, 1), A_PAR("w", d * v, 0, 0.02)}},
        {"cross_entropy", 0, 0, v, NULL, call_cross_entropy,
         {R_OUT("losses", 1), {"logits", ROWS_INOUT, F_ACT, v, 0, 2}, {"targets", INTS, F_INT, v, 0, 0}}},
        {"rmsnorm_fwd", 0, d, 0, NULL, call_rmsnorm_fwd,
         {A_OUT("y", d), R_OUT("rstd", 1), A_IN("x", d, 0, 1), R_PAR("g", d, 1, 0.3)}},
        {"rmsnorm_bwd", 0, d, 0, call_rmsnorm_rstd, call_rmsnorm_bwd,
         {{"dx", ROWS_INOUT, F_ACT, d, 0, 1}, R_SUM("dg", d), A_IN("dy", d, 0, 1), A_IN("x", d, 0, 1), R_PAR("g", d, 1, 0.3),
          R_MADE("rstd", 1)}},
        {"project gate, up", 0, d, f, NULL, call_project,
         {A_OUT("y", f), A_IN("x", d, 0, 1), R_PAR("gain", d, 1, 0.3), {"xn", ROWS_SETUP, F_ACT, d, 0, 0}, R_MADE("rstd", 1),
          {"gate", ROWS_SETUP, F_ACT, f, 0, 0}, A_PAR("w", d * f, 0, 0.02), A_PAR("gate_w", d * f, 0, 0.02)}},
        {"swiglu_fwd", 0, f, 0, NULL, call_swiglu_fwd, {A_OUT("y", f), A_IN("g", f, 0, 1), A_IN("u", f, 0, 1)}},
        {"swiglu_bwd", 0, f, 0, NULL, call_swiglu_bwd,
         {A_OUT("dg", f), A_OUT("du", f), A_IN("dy", f, 0, 1), A_IN("g", f, 0, 1), A_IN("u", f, 0, 1)}},
        {"to_act", 0, d, 0, NULL, call_to_act, {A_OUT("y", d), R_IN("x", d, 0, 1)}},
        {"from_act", 0, d, 0, NULL, call_from_act, {R_OUT("y", d), A_IN("x", d, 0, 1)}},
        {"sqsum", 0, d, 0, NULL, call_sqsum, {R_SUM("sum", 1), R_IN("x", d, 0, 1)}},
        {"adamw", 0, d, 0, NULL, call_adamw,
         {{"p", ROWS_INOUT, F_REAL, d, 0, 1}, {"m", ROWS_INOUT, F_REAL, d, 0, 1e-3}, {"v", ROWS_INOUT, F_REAL, d, 5, 0.1},
          R_IN("g", d, 0, 1), A_OUT("w", d)}},
    };
    memcpy(p, list, sizeof list);
    return sizeof list / sizeof *list;
}

static int head_problems(problem *p, int64_t w) {
    const int64_t h = w / 64, d = 64;
    const problem list[] = {
        {"headnorm_fwd", h, d, 0, NULL, call_headnorm_fwd,
         {A_OUT("y", w), R_OUT("rstd", h), A_IN("x", w, 0, 1), R_PAR("g", d, 1, 0.3), R_PAR("b", w, 0, 1)}},
        {"headnorm_bwd", h, d, 0, call_headnorm_rstd, call_headnorm_bwd,
         {A_OUT("dx", w), R_SUM("dg", d), R_SUM("db", w), A_IN("dy", w, 0, 1), A_IN("x", w, 0, 1), R_PAR("g", d, 1, 0.3),
          R_MADE("rstd", h)}},
        {"conv_fwd", h, d, 0, NULL, call_conv_fwd, {A_OUT("y", w), A_IN("x", w, 0, 1), CONV(w)}},
        {"conv_bwd", h, d, 0, NULL, call_conv_bwd,
         {A_OUT("dx", w), R_SUM("dw", 4 * w), R_SUM("db", w), A_IN("dy", w, 0, 1), A_IN("x", w, 0, 1),
          R_PAR("w", 4 * w, 0, 0.5)}},
        {"rope", h, d, 0, NULL, call_rope, {A_OUT("y", w), A_IN("x", w, 0, 1)}},
        {"featmap_fwd", h, d, 0, NULL, call_featmap_fwd, {A_OUT("y", w), R_OUT("rinv", h), A_IN("x", w, 0, 1)}},
        {"featmap_bwd", h, d, 0, call_featmap_rinv, call_featmap_bwd,
         {A_OUT("dx", w), A_IN("dy", w, 0, 1), A_IN("x", w, 0, 1), R_MADE("rinv", h)}},
        {"stream_fwd q", h, d, 0, NULL, call_stream_query_fwd, {A_OUT("y", w), A_IN("x", w, 0, 1), CONV(w)}},
        {"stream_bwd q", h, d, 0, NULL, call_stream_query_bwd,
         {A_OUT("dx", w), A_IN("x", w, 0, 1), CONV(w), A_IN("dy", w, 0, 1), R_SUM("dconv_w", 4 * w), R_SUM("dconv_b", w)}},
        {"stream_fwd k", h, d, 0, NULL, call_stream_key_fwd,
         {A_OUT("y", w), A_IN("x", w, 0, 1), CONV(w), R_PAR("gain", d, 1, 0.3), R_PAR("bias", w, 0, 0.5)}},
        {"stream_bwd k", h, d, 0, NULL, call_stream_key_bwd,
         {A_OUT("dx", w), A_IN("x", w, 0, 1), CONV(w), R_PAR("gain", d, 1, 0.3), R_PAR("bias", w, 0, 0.5), A_IN("dy", w, 0, 1),
          R_SUM("dconv_w", 4 * w), R_SUM("dconv_b", w), R_SUM("dgain", d), R_SUM("dbias", w)}},
        {"stream_fwd v", h, d, 0, NULL, call_stream_value_fwd,
         {A_OUT("y", w), A_IN("x", w, 0, 1), R_PAR("gain", d, 1, 0.3), R_PAR("bias", w, 0, 0.5)}},
        {"stream_bwd v", h, d, 0, NULL, call_stream_value_bwd,
         {A_OUT("dx", w), A_IN("x", w, 0, 1), R_PAR("gain", d, 1, 0.3), R_PAR("bias", w, 0, 0.5), A_IN("dy", w, 0, 1),
          R_SUM("dgain", d), R_SUM("dbias", w)}},
        {"attention_fwd", h, d, 0, NULL, call_attention_fwd,
         {A_OUT("o", w), R_OUT("lse", h), A_IN("q", w, 0, 1), A_IN("k", w, 0, 1), A_IN("v", w, 0, 1)}},
        {"attention_bwd", h, d, 0, call_attention_fwd, call_attention_bwd,
         {{"o", ROWS_SETUP, F_ACT, w, 0, 0}, R_MADE("lse", h), A_IN("q", w, 0, 1), A_IN("k", w, 0, 1), A_IN("v", w, 0, 1),
          A_IN("dout", w, 0, 1), A_OUT("dq", w), A_OUT("dk", w), A_OUT("dv", w)}},
        {"interdomain_chunk_fwd", h, d, 64, NULL, call_interdomain_fwd,
         {A_OUT("o", w), A_IN("q", w, 0.05, 0.125), A_IN("k", w, 0, 1), A_IN("v", w, 0, 1), {"-", PARAM, F_ACT, 0, 0, 0},
          {"-", PARAM, F_ACT, 0, 0, 0}, {"-", PARAM, F_ACT, 0, 0, 0}, {"-", PARAM, F_ACT, 0, 0, 0}, SSM(h)}},
        {"interdomain_chunk_bwd", h, d, 64, NULL, call_interdomain_bwd,
         {{"-", PARAM, F_ACT, 0, 0, 0}, A_IN("q", w, 0.05, 0.125), A_IN("k", w, 0, 1), A_IN("v", w, 0, 1), A_IN("dout", w, 0, 1),
          A_OUT("dq", w), A_OUT("dk", w), A_OUT("dv", w), SSM(h), SSM_SUMS(h)}},
        {"s4d_chunk_fwd", h, d, 64, NULL, call_s4d_fwd,
         {A_OUT("y", 2 * w), R_PAR("w", w, 0, 1), A_IN("k", w, 0, 1), A_IN("v", w, 0, 1), {"-", PARAM, F_ACT, 0, 0, 0},
          {"-", PARAM, F_ACT, 0, 0, 0}, {"-", PARAM, F_ACT, 0, 0, 0}, {"-", PARAM, F_ACT, 0, 0, 0}, SSM(h)}},
        {"s4d_chunk_bwd", h, d, 64, NULL, call_s4d_bwd,
         {{"-", PARAM, F_ACT, 0, 0, 0}, R_PAR("w", w, 0, 1), A_IN("k", w, 0, 1), A_IN("v", w, 0, 1), A_IN("dy", 2 * w, 0, 1),
          R_SUM("dw", w), A_OUT("dk", w), A_OUT("dv", w), SSM(h), SSM_SUMS(h)}},
        {"interdomain_step", h, d, 64, NULL, call_interdomain_step,
         {A_OUT("o", w), A_IN("q", w, 0.05, 0.125), A_IN("k", w, 0, 1), A_IN("v", w, 0, 1), STATE(h), PREP(h, h * 4096)}},
        {"s4d_step", h, d, 64, NULL, call_s4d_step,
         {A_OUT("y", 2 * w), R_PAR("w", w, 0, 1), A_IN("k", w, 0, 1), A_IN("v", w, 0, 1), STATE(h), PREP(h, h * 64)}},
    };
    memcpy(p, list, sizeof list);
    return sizeof list / sizeof *list;
}
/* clang-format on */

static bool is_step(const problem *p) { return p->call == call_interdomain_step || p->call == call_s4d_step; }
/* Rows of the timed call: all tokens; a block of them for the head, as the model does; of a step one for products, 64 else. */
static int64_t rows_of(const bench *b, const problem *p) {
    const bool head =
        p->call == call_cross_entropy || ((p->call == call_linear_fwd || p->call == call_linear_bwd) && p->v == 32000);
    if (p->call == call_project) return 1;
    return is_step(p) ? 64 : head && b->tokens > 4096 ? 4096 : b->tokens;
}
static double flops_of(const bench *b, const problem *p, int64_t n) {
    const double rows = (double)n, w = (double)(p->h * p->d), product = 2 * rows * (double)p->d * (double)p->v;
    if (p->call == call_linear_fwd) return product;
    if (p->call == call_linear_bwd) return 2 * product;
    if (p->call == call_attention_fwd) return 2 * rows * (double)b->seq * w; /* causal: half of two products */
    if (p->call == call_attention_bwd) return 5 * rows * (double)b->seq * w;
    if (p->call == call_interdomain_fwd) return 147456.0 * rows * (double)p->h; /* docs/method.md, R = D = M = 64 */
    if (p->call == call_interdomain_bwd) return 51.0 / 18 * 147456.0 * rows * (double)p->h;
    return 0;
}
static double bytes_of(const ida_device *dev, const problem *p, int64_t n) {
    double sum = 0;
    for (const field *f = p->f; f->name; f++) {
        const double bytes = (double)(field_elements(f, n) * field_size(dev, f));
        if (f->kind == TABLE) sum += (double)(n * p->d * field_size(dev, f));
        else sum += f->kind == SUM || f->kind == ROWS_INOUT ? 2 * bytes : bytes;
    }
    return sum;
}

/* ---- arrays on a device, a repeating random block */
static void fill(const ida_device *dev, void *to, const field *f, int64_t n, int64_t size) {
    const int64_t block = n < BLOCK ? n : BLOCK;
    unsigned char *host = must_alloc(block, (size_t)size);
    for (int64_t i = 0; i < block; i++) {
        const double r =
            f->kind == INTS || f->kind == SUM ? 0 : f->mean + f->sd * ida_normal(5, IDA_STREAM_TEST, (uint64_t)(i + f->width));
        const int32_t id = (int32_t)(ida_uniform(6, IDA_STREAM_TEST, (uint64_t)i) * (double)f->width);
        const uint16_t h = ida_f32_to_bf16((float)r);
        const float x = f->type == F_ACT && dev->act_type == IDA_TYPE_BF16 ? ida_bf16_to_f32(h) : (float)r;
        if (f->kind == INTS) memcpy(host + i * size, &id, sizeof id);
        else if (size == 2) memcpy(host + i * size, &h, sizeof h);
        else memcpy(host + i * size, &x, sizeof x);
    }
    must(ida_dev_upload(dev, to, host, block * size));
    for (int64_t done = block, more; done < n; done += more) {
        more = n - done < done ? n - done : done;
        must(ida_dev_copy(dev, (char *)to + done * size, to, more * size));
    }
    free(host);
}

static double *values(const ida_device *dev, const void *from, const field *f, int64_t n) {
    const int64_t size = field_size(dev, f);
    unsigned char *raw = must_alloc(n, (size_t)size);
    double *x = must_alloc(n, sizeof *x);
    must(ida_dev_download(dev, raw, from, n * size));
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        float v;
        memcpy(&h, raw + i * size, 2), memcpy(&v, raw + i * size, (size_t)(size < 4 ? 2 : 4));
        x[i] = size == 2 ? (double)ida_bf16_to_f32(h) : (double)v;
    }
    free(raw);
    return x;
}

/* The worst relative error of an output on SMALL tokens against the reference. Without d log_dt, sums that cancel: ops_check has
 * it. */
static double check(const bench *b, const problem *p) {
    const int64_t n = p->call == call_project ? 1 : is_step(p) ? 5 : SMALL, cu[] = {0, n < 3 ? n : 3, n};
    const ida_seqs seqs = {2, cu, NULL};
    void *ours[MAX_FIELDS] = {NULL}, *want[MAX_FIELDS] = {NULL};
    double worst = 0;
    for (int i = 0; p->f[i].name; i++) {
        const field *f = &p->f[i];
        const int64_t count = field_elements(f, n);
        must(ida_dev_alloc(b->dev, &ours[i], count, field_size(b->dev, f), f->name));
        fill(b->dev, ours[i], f, count, field_size(b->dev, f));
        want[i] = must_alloc(count, 4);
        if (f->type == F_INT) {
            fill(&ida_ref_device, want[i], f, count, 4);
            continue;
        }
        double *x = values(b->dev, ours[i], f, count);
        for (int64_t j = 0; j < count; j++) ((float *)want[i])[j] = (float)x[j];
        free(x);
    }
    if (p->setup) {
        must(p->setup(&ida_ref_device, want, n, p, &seqs));
        must(p->setup(b->dev, ours, n, p, &seqs));
    }
    must(p->call(&ida_ref_device, want, n, p, &seqs));
    must(p->call(b->dev, ours, n, p, &seqs));
    must(ida_dev_sync(b->dev));
    for (int i = 0; p->f[i].name; i++) {
        const field *f = &p->f[i];
        const int64_t count = field_elements(f, n);
        if (f->kind == ROWS_OUT || f->kind == ROWS_INOUT || (f->kind == SUM && strcmp(f->name, "dlog_dt"))) {
            double *x = values(b->dev, ours[i], f, count), diff = 0, size = 0;
            for (int64_t j = 0; j < count; j++) {
                const double w = (double)((float *)want[i])[j];
                diff += (x[j] - w) * (x[j] - w), size += w * w;
            }
            const double e = count ? sqrt(diff / (size > 0 ? size : 1)) : 0;
            if (!(e <= worst)) worst = e;
            free(x);
        }
        ida_dev_free(b->dev, ours[i]);
        free(want[i]);
    }
    return worst;
}

/* ---- timing */
static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}
/* Milliseconds of each call, sorted; before each the second-level cache is overwritten. */
static void time_calls(const bench *b, const problem *p, void *const *f, int64_t n, const ida_seqs *seqs, float *ms) {
    cudaStream_t stream = ida_cuda_of(b->dev)->stream;
    cudaEvent_t from, to;
    cuda(cudaEventCreate(&from));
    cuda(cudaEventCreate(&to));
    for (int i = -3; i < b->repeats; i++) {
        must(ida_dev_zero(b->dev, b->flush, FLUSH));
        cuda(cudaEventRecord(from, stream));
        must(p->call(b->dev, f, n, p, seqs));
        cuda(cudaEventRecord(to, stream));
        cuda(cudaEventSynchronize(to));
        if (i >= 0) cuda(cudaEventElapsedTime(&ms[i], from, to));
    }
    must(ida_dev_sync(b->dev));
    cuda(cudaEventDestroy(from));
    cuda(cudaEventDestroy(to));
    qsort(ms, (size_t)b->repeats, sizeof *ms, by_size);
}

static float *timed(const bench *b, const problem *p, int64_t n) {
    const int64_t len = b->seq < n ? b->seq : n, n_seq = (n + len - 1) / len;
    int64_t *cu = must_alloc(n_seq + 1, sizeof *cu);
    void *f[MAX_FIELDS] = {NULL};
    float *ms = must_alloc(b->repeats, sizeof *ms);
    for (int64_t i = 0; i <= n_seq; i++) cu[i] = i * len < n ? i * len : n;
    const ida_seqs seqs = {n_seq, cu, NULL};
    for (int i = 0; p->f[i].name; i++) {
        const int64_t count = field_elements(&p->f[i], n), size = field_size(b->dev, &p->f[i]);
        must(ida_dev_alloc(b->dev, &f[i], count, size, p->f[i].name));
        fill(b->dev, f[i], &p->f[i], count, size);
    }
    if (p->setup) must(p->setup(b->dev, f, n, p, &seqs));
    time_calls(b, p, f, n, &seqs, ms);
    for (int i = 0; p->f[i].name; i++) ida_dev_free(b->dev, f[i]);
    free(cu);
    return ms;
}

static void run(bench *b, const problem *p, int64_t width) {
    const int64_t n = rows_of(b, p);
    const double bytes = bytes_of(b->dev, p, n), flops = flops_of(b, p, n),
                 limit = b->dev->act_type == IDA_TYPE_BF16 ? 2e-2 : 1e-3;
    const double error = check(b, p);
    printf("%-22s %5lld %6lld  error %.1e", p->name, (long long)width, (long long)n, error);
    if (!(error <= limit)) {
        printf("  check failed: no speed\n");
        b->bad = 1;
        return;
    }
    float *ms = timed(b, p, n);
    const double floor = 1e3 * fmax(bytes / b->bytes_per_s, flops / b->flop_per_s), median = (double)ms[b->repeats / 2];
    printf("  %8.4f ms (%.4f, %.4f)  %8.1f MB  %7.1f GFLOP  floor %8.4f ms  %5.1f%%\n", median, (double)ms[0],
           (double)ms[b->repeats - 1], 1e-6 * bytes, 1e-9 * flops, floor, 100 * floor / median);
    fflush(stdout);
    free(ms);
}

/* ---- rates */
static ida_status call_copy(const ida_device *dev, void *const *p, int64_t n, const problem *l, const ida_seqs *seqs) {
    (void)seqs;
    return ida_dev_copy(dev, p[0], p[1], n * l->d * 4);
}
static void measure_rates(bench *b) {
    const problem copy = {"copy", 0, 2048, 0, NULL, call_copy, {R_OUT("to", 2048), R_IN("from", 2048, 0, 1)}};
    const problem product = {"product", 0, 8192, 8192, NULL, call_linear_fwd, {A_OUT("y", 8192), A_IN("x", 8192, 0, 1),
                             A_PAR("w", (int64_t)8192 * 8192, 0, 0.02)}};
    float *ms = timed(b, &copy, 1 << 16);
    b->bytes_per_s = bytes_of(b->dev, &copy, 1 << 16) / (1e-3 * (double)ms[b->repeats / 2]);
    free(ms);
    ms = timed(b, &product, 8192);
    b->flop_per_s = flops_of(b, &product, 8192) / (1e-3 * (double)ms[b->repeats / 2]);
    free(ms);
}

static int usage(void) {
    fprintf(stderr, "usage: ops_cuda [--device cuda] [--dtype bf16|f32] [--only NAME] [--width 768] [--repeats 20] [--tokens "
                    "32768] [--seq 4096]\n");
    return 2;
}

int main(int argc, char **argv) {
    bench b = {.repeats = 20, .tokens = 32768, .seq = 4096};
    const char *device = "cuda", *dtype = "bf16", *only = NULL;
    static problem list[MAX_PROBLEMS];
    int64_t widths[] = {384, 768, 2048}, n_widths = 3;
    if (argc % 2 == 0) return usage();
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (!strcmp(argv[i], "--device")) device = v;
        else if (!strcmp(argv[i], "--dtype")) dtype = v;
        else if (!strcmp(argv[i], "--only")) only = v;
        else if (!strcmp(argv[i], "--width")) widths[0] = atoll(v), n_widths = 1;
        else if (!strcmp(argv[i], "--repeats")) b.repeats = atoi(v);
        else if (!strcmp(argv[i], "--tokens")) b.tokens = atoll(v);
        else if (!strcmp(argv[i], "--seq")) b.seq = atoll(v);
        else return usage();
    }
    if ((strcmp(dtype, "bf16") && strcmp(dtype, "f32")) || b.repeats < 1 || b.tokens < 1 || b.seq < 1 || widths[0] < 64 ||
        widths[0] % 64)
        return usage();
    must(ida_device_open(device, strcmp(dtype, "f32") ? IDA_BF16 : IDA_F32, &b.dev));
    if (ida_on_host(b.dev)) return usage();
    must(ida_dev_alloc(b.dev, &b.flush, FLUSH, 1, "cache flush"));
    measure_rates(&b);
    const char *way = getenv("IDA_ATTENTION");
    printf("%s; copy %.2f TB/s, product of 8192 %.0f TFLOP/s; %lld tokens in sequences of %lld; attention: %s\n", b.dev->name,
           1e-12 * b.bytes_per_s, 1e-12 * b.flop_per_s, (long long)b.tokens, (long long)b.seq, way ? way : "default");
    printf("op, width, rows; ms: median of %d (best, worst); part of the floor\n", b.repeats);
    for (int w = 0; w < n_widths; w++) {
        const int64_t d = widths[w];
        int n = row_problems(list, d);
        n += head_problems(list + n, d);
        for (int i = 0; i < n; i++)
            if (!only || strstr(list[i].name, only)) run(&b, &list[i], d);
    }
    ida_dev_free(b.dev, b.flush);
    return b.bad;
}
