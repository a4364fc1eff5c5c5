/* conv.c - causal depthwise convolution over time, width 4, with state (method step 2). Tasks are blocks of tokens of the whole
 * packed batch; a row of channels is computed from four rows of input, which are tokens, state or zeros.
 * Invariant: no row is read from another sequence. */
#include "ops/cpu/cpu_ops.h"

#include <assert.h>
#include <string.h>

#include "ops/cpu/simd.h"

typedef struct conv_args {
    float *y, *state_out, *dx;
    const float *x, *state_in, *b, *dy;
    float *wt;             /* [4,d]: w transposed; a row of zeros; [4,d]: taps in reverse */
    const float *zero;
    float *partials;       /* backward, per block: dw transposed [4,d], db [d] */
    const ida_conv_bwd_args *bwd;
    const ida_seqs *seqs;
    int64_t stride, d, rows;
} conv_args;

enum { GROUP = 4 }; /* tokens worked on at once: their rows overlap, and sums are touched once for all */

/* Tokens [t, t + n) of sequence s, n = GROUP or 1. */
typedef void rows_fn(const conv_args *a, int64_t s, int64_t t, int64_t n, float *sums);

/* Calls fn for the tokens of one block, sequence by sequence. */
static void for_rows(const conv_args *a, int64_t task, rows_fn *fn, float *sums) {
    const ida_seqs *q = a->seqs;
    int64_t begin = task * a->rows, end = ida_min(q->cu[q->n], begin + a->rows), lo = 0, hi = q->n;
    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;
        if (q->cu[mid] <= begin) lo = mid;
        else hi = mid;
    }
    for (int64_t s = lo; begin < end; s++)
        for (int64_t stop = ida_min(end, q->cu[s + 1]), n; begin < stop; begin += n) {
            n = stop - begin >= GROUP ? GROUP : 1;
            fn(a, s, begin - q->cu[s], n, sums);
        }
}

/* Input row at time t >= -3 of sequence s. */
static const float *input_row(const conv_args *a, int64_t s, int64_t t) {
    if (t >= 0) return a->x + (a->seqs->cu[s] + t) * a->d;
    return a->state_in ? a->state_in + s * a->stride + (t + 3) * a->d : a->zero;
}

IDA_INLINE vf load_m(const float *p, int64_t m) { return m == IDA_VL ? vf_load(p) : vf_load_n(p, m); }
IDA_INLINE void store_m(float *p, vf a, int64_t m) {
    if (m == IDA_VL) vf_store(p, a);
    else vf_store_n(p, a, m);
}

/* y_i = b_i + sum_k x_{i+k} w_k for g rows, channels [c, c + m). */
IDA_INLINE void mix(int g, float *const y[GROUP], const float *const x[GROUP + 3], const float *w, const float *const b[GROUP],
                    int64_t d, int64_t c, int64_t m) {
    vf xv[GROUP + 3], wv[4];
    IDA_UNROLL
    for (int k = 0; k < 4; k++) wv[k] = load_m(w + k * d + c, m);
    IDA_UNROLL
    for (int i = 0; i < g + 3; i++) xv[i] = load_m(x[i] + c, m);
    IDA_UNROLL
    for (int i = 0; i < g; i++) {
        vf s = load_m(b[i] + c, m);
        IDA_UNROLL
        for (int k = 0; k < 4; k++) s += xv[i + k] * wv[k];
        store_m(y[i] + c, s, m);
    }
}

IDA_INLINE void fwd_group(int g, const conv_args *a, int64_t s, int64_t t) {
    int64_t d = a->d, c = 0;
    const float *x[GROUP + 3], *b[GROUP];
    float *y[GROUP];
    for (int i = 0; i < g + 3; i++) x[i] = input_row(a, s, t - 3 + i);
    for (int i = 0; i < g; i++) {
        y[i] = a->y + (a->seqs->cu[s] + t + i) * d;
        b[i] = a->b;
    }
    for (; c + IDA_VL <= d; c += IDA_VL) mix(g, y, x, a->wt, b, d, c, IDA_VL);
    if (c < d) mix(g, y, x, a->wt, b, d, c, d - c);
}

static void fwd_rows(const conv_args *a, int64_t s, int64_t t, int64_t n, float *sums) {
    (void)sums;
    if (n == GROUP) fwd_group(GROUP, a, s, t);
    else fwd_group(1, a, s, t);
}

static void fwd_block(void *arg, int64_t task, int worker) {
    (void)worker;
    for_rows(arg, task, fwd_rows, NULL);
}

static ida_status start(conv_args *a, const float *w) {
    int64_t d = a->d;
    IDA_TRY(IDA_ALLOC(a->wt, 9 * d, "conv weights by tap"));
    for (int64_t c = 0; c < d; c++)
        for (int64_t k = 0; k < 4; k++) a->wt[k * d + c] = a->wt[(8 - k) * d + c] = w[c * 4 + k];
    memset(a->wt + 4 * d, 0, (size_t)d * sizeof *a->wt);
    a->zero = a->wt + 4 * d;
    return IDA_OK;
}

ida_status IDA_CPU(conv_fwd)(const ida_device *dev, ida_act *ya, float *state_out, const ida_act *xa, const float *w,
                             const float *b, const float *state_in, int64_t stride, const ida_seqs *seqs, int64_t d) {
    (void)dev;
    float *y = ida_act_real(ya);
    const float *x = ida_act_real(xa);
    assert(stride >= 3 * d || (!state_in && !state_out));
    conv_args a = {.y = y, .state_out = state_out, .x = x, .state_in = state_in, .b = b, .seqs = seqs, .stride = stride, .d = d,
                   .rows = ida_task_rows(d)};
    IDA_TRY(start(&a, w));
    ida_parallel(ida_div_up(seqs->cu[seqs->n], a.rows), fwd_block, &a);
    for (int64_t s = 0; state_out && s < seqs->n; s++) {
        int64_t len = seqs->cu[s + 1] - seqs->cu[s];
        /* Row j comes from row j + len or later: ascending order is safe when state_out is state_in. */
        for (int64_t j = 0; j < 3; j++)
            memmove(state_out + s * stride + j * d, input_row(&a, s, len - 3 + j), (size_t)d * sizeof *state_out);
    }
    ida_free(a.wt);
    return IDA_OK;
}

static const float *dy_row(const conv_args *a, int64_t s, int64_t t) {
    int64_t begin = a->seqs->cu[s];
    return t >= 0 && t < a->seqs->cu[s + 1] - begin ? a->dy + (begin + t) * a->d : a->zero;
}

/* Row of dstate_out that holds the input at time u >= -3: state_out[j] = x_{len-3+j}. */
static const float *dstate_row(const conv_args *a, int64_t s, int64_t u) {
    int64_t j = u + 3 - (a->seqs->cu[s + 1] - a->seqs->cu[s]);
    return a->bwd->dstate_out && j >= 0 && j < 3 ? a->bwd->dstate_out + s * a->stride + j * a->d : a->zero;
}

/* y_t = b + sum_k w_k x_{t-3+k}:  dx_u = sum_k w_k dy_{u+3-k} (+ dstate), which is mix() with the rows of dy in time order and
 * the taps reversed (wr);  dw_k = sum_t dy_t x_{t-3+k};  db = sum_t dy_t. */
IDA_INLINE void sum_taps(int g, float *sums, const float *const dy[GROUP + 3], const float *const x[GROUP + 3], int64_t d,
                         int64_t c, int64_t m) {
    vf s[5], xv[GROUP + 3];
    IDA_UNROLL
    for (int k = 0; k < 5; k++) s[k] = load_m(sums + k * d + c, m);
    IDA_UNROLL
    for (int i = 0; i < g + 3; i++) xv[i] = load_m(x[i] + c, m);
    IDA_UNROLL
    for (int i = 0; i < g; i++) {
        vf dyv = load_m(dy[i] + c, m);
        IDA_UNROLL
        for (int k = 0; k < 4; k++) s[k] += dyv * xv[i + k];
        s[4] += dyv;
    }
    IDA_UNROLL
    for (int k = 0; k < 5; k++) store_m(sums + k * d + c, s[k], m);
}

IDA_INLINE void bwd_group(int g, const conv_args *a, int64_t s, int64_t t, float *sums) {
    int64_t d = a->d, c = 0;
    const float *x[GROUP + 3], *dy[GROUP + 3], *dso[GROUP], *wr = a->wt + 5 * d;
    float *dx[GROUP];
    for (int i = 0; i < g + 3; i++) {
        x[i] = input_row(a, s, t - 3 + i);
        dy[i] = dy_row(a, s, t + i);
    }
    for (int i = 0; i < g; i++) {
        dx[i] = a->dx + (a->seqs->cu[s] + t + i) * d;
        dso[i] = dstate_row(a, s, t + i);
    }
    for (; c + IDA_VL <= d; c += IDA_VL) {
        mix(g, dx, dy, wr, dso, d, c, IDA_VL);
        sum_taps(g, sums, dy, x, d, c, IDA_VL);
    }
    if (c == d) return;
    mix(g, dx, dy, wr, dso, d, c, d - c);
    sum_taps(g, sums, dy, x, d, c, d - c);
}

static void bwd_rows(const conv_args *a, int64_t s, int64_t t, int64_t n, float *sums) {
    if (n == GROUP) bwd_group(GROUP, a, s, t, sums);
    else bwd_group(1, a, s, t, sums);
}

/* Gradient of row j of the initial state, time j - 3. */
static void dstate_in_row(const conv_args *a, int64_t s, int64_t j) {
    const float *dy[GROUP + 3], *dso[GROUP] = {dstate_row(a, s, j - 3)};
    float *dx[GROUP] = {a->bwd->dstate_in + s * a->stride + j * a->d};
    for (int64_t i = 0; i < 4; i++) dy[i] = dy_row(a, s, j - 3 + i);
    for (int64_t c = 0; c < a->d; c += IDA_VL) mix(1, dx, dy, a->wt + 5 * a->d, dso, a->d, c, ida_min(IDA_VL, a->d - c));
}

static void bwd_block(void *arg, int64_t task, int worker) {
    (void)worker;
    const conv_args *a = arg;
    float *sums = a->partials + task * 5 * a->d;
    memset(sums, 0, (size_t)(5 * a->d) * sizeof *sums);
    for_rows(a, task, bwd_rows, sums);
}

/* Adds the partial sums, laid out by tap, to dw [d,4] and db [d]. */
static ida_status add_sums(const conv_args *a, int64_t blocks) {
    int64_t d = a->d;
    float *sum = NULL;
    IDA_TRY(IDA_CALLOC(sum, 5 * d, "conv_bwd sums"));
    for (int64_t c = 0; c < d; c++) {
        for (int64_t k = 0; k < 4; k++) sum[k * d + c] = a->bwd->dw[c * 4 + k];
        sum[4 * d + c] = a->bwd->db[c];
    }
    IDA_CPU(add_partials)(sum, a->partials, blocks, 5 * d);
    for (int64_t c = 0; c < d; c++) {
        for (int64_t k = 0; k < 4; k++) a->bwd->dw[c * 4 + k] = sum[k * d + c];
        a->bwd->db[c] = sum[4 * d + c];
    }
    ida_free(sum);
    return IDA_OK;
}

ida_status IDA_CPU(conv_bwd)(const ida_device *dev, const ida_conv_bwd_args *bwd, const ida_seqs *seqs) {
    (void)dev;
    int64_t d = bwd->d, n = seqs->cu[seqs->n];
    conv_args a = {.x = ida_act_real(bwd->x),
                   .dx = ida_act_real(bwd->dx),
                   .dy = ida_act_real(bwd->dy),
                   .state_in = bwd->state_in,
                   .bwd = bwd,
                   .seqs = seqs,
                   .stride = bwd->stride,
                   .d = d,
                   .rows = ida_sum_rows(n, d)};
    int64_t blocks = ida_div_up(n, a.rows);
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(start(&a, bwd->w));
    IDA_TRY_GOTO(IDA_ALLOC(a.partials, blocks * 5 * d, "conv_bwd partial sums"));
    ida_parallel(blocks, bwd_block, &a);
    if (blocks > 0) IDA_TRY_GOTO(add_sums(&a, blocks));
    /* Descending: row j reads rows <= j of dstate_out, so the two may be one array. */
    for (int64_t s = 0; bwd->dstate_in && s < seqs->n; s++)
        for (int64_t j = 2; j >= 0; j--) dstate_in_row(&a, s, j);
out:
    ida_free(a.partials);
    ida_free(a.wt);
    return st;
}
