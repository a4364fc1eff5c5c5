/* ops_large.c - tensors past 2^31 elements. The same op runs on the whole and on three windows of its rows alone (the first rows,
 * those around element 2^31 of the widest tensor, the last ones); what comes out for the windows must agree. Gradients of outputs
 * are zero outside the windows, so that sums over all rows must agree too. The small run is proved by the other checks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/bf16.h"
#include "core/rng.h"
#include "op_calls.h"
#include "ops_check.h"

enum { WINDOW = 64, N_WINDOWS = 3, BLOCK = (1 << 20) - 3 };

typedef struct run { int64_t n; void *p[MAX_FIELDS]; ida_seqs seqs; } run;

static void *at(void *p, int64_t bytes) { return (char *)p + bytes; }
static int64_t widest(const problem *l) {
    int64_t w = 1;
    for (const field *f = l->f; f->name; f++)
        if (field_of_rows(f) && field_row(f) > w) w = field_row(f);
    return w;
}

/* A repeating random block of odd length. */
static ida_status fill(const checker *c, void *to, const field *f, int64_t n) {
    const int64_t size = field_size(c->dev, f), block = n < BLOCK ? n : BLOCK;
    unsigned char *host = must_alloc(block, (size_t)size);
    for (int64_t i = 0; i < block; i++) {
        const float x = (float)(f->mean + f->sd * ida_normal(5, IDA_STREAM_TEST, (uint64_t)(i + f->width * 31)));
        const uint16_t h = ida_f32_to_bf16(x);
        const int32_t id = (int32_t)(ida_uniform(6, IDA_STREAM_TEST, (uint64_t)i) * (double)f->width);
        if (f->kind == INTS) memcpy(host + i * size, &id, sizeof id);
        else if (size == 2) memcpy(host + i * size, &h, sizeof h);
        else memcpy(host + i * size, &x, sizeof x);
    }
    ida_status st = ida_dev_upload(c->dev, to, host, block * size);
    free(host);
    for (int64_t done = block; done < n && st == IDA_OK; ) {
        const int64_t more = n - done < done ? n - done : done;
        st = ida_dev_copy(c->dev, at(to, done * size), to, more * size);
        done += more;
    }
    return st;
}

static void starts(const problem *l, int64_t n, int64_t row[N_WINDOWS]) {
    row[0] = 0;
    row[1] = (((int64_t)1 << 31) / widest(l) - WINDOW / 2) / WINDOW * WINDOW;
    row[2] = n - WINDOW;
}

static ida_status prepare(const checker *c, const problem *l, run *whole, run *part) {
    int64_t row[N_WINDOWS];
    starts(l, whole->n, row);
    for (int i = 0; i < MAX_FIELDS && l->f[i].name; i++) {
        const field *f = &l->f[i];
        const int64_t size = field_size(c->dev, f), n = field_elements(f, whole->n), bytes = WINDOW * field_row(f) * size;
        IDA_TRY(ida_dev_alloc(c->dev, &whole->p[i], n, size, f->name));
        IDA_TRY(ida_dev_alloc(c->dev, &part->p[i], field_elements(f, part->n), size, f->name));
        if (f->kind == SUM) {
            IDA_TRY(ida_dev_zero(c->dev, whole->p[i], n * size));
            IDA_TRY(ida_dev_zero(c->dev, part->p[i], n * size));
            continue;
        }
        IDA_TRY(fill(c, whole->p[i], f, n));
        if (!field_of_rows(f)) IDA_TRY(ida_dev_copy(c->dev, part->p[i], whole->p[i], n * size));
        for (int w = 0; w < N_WINDOWS && field_of_rows(f); w++)
            IDA_TRY(ida_dev_copy(c->dev, at(part->p[i], w * bytes), at(whole->p[i], row[w] * field_row(f) * size), bytes));
        if (f->kind != ROWS_SPARSE) continue;
        IDA_TRY(ida_dev_zero(c->dev, whole->p[i], n * size));
        for (int w = 0; w < N_WINDOWS; w++)
            IDA_TRY(ida_dev_copy(c->dev, at(whole->p[i], row[w] * field_row(f) * size), at(part->p[i], w * bytes), bytes));
    }
    return IDA_OK;
}

static ida_status compare(checker *c, const field *f, const char *where, void *whole, void *part, int64_t n) {
    const int64_t size = field_size(c->dev, f);
    unsigned char *a = must_alloc(n, (size_t)size), *b = must_alloc(n, (size_t)size);
    double *x = must_alloc(n, sizeof *x), *y = must_alloc(n, sizeof *y);
    ida_status st = ida_dev_download(c->dev, a, whole, n * size);
    if (st == IDA_OK) st = ida_dev_download(c->dev, b, part, n * size);
    for (int64_t i = 0; i < n; i++) {
        uint16_t h[2];
        float v[2];
        memcpy(h, a + i * size, 2), memcpy(h + 1, b + i * size, 2);
        memcpy(v, a + i * size, (size_t)size), memcpy(v + 1, b + i * size, (size_t)size);
        x[i] = size == 2 ? (double)ida_bf16_to_f32(h[0]) : (double)v[0];
        y[i] = size == 2 ? (double)ida_bf16_to_f32(h[1]) : (double)v[1];
    }
    double e = distance(x, y, n), norm = 0;
    for (int64_t i = 0; i < n; i++) norm += y[i] * y[i];
    if (!(norm > 0) || !isfinite(e)) e = INFINITY;
    char label[100];
    snprintf(label, sizeof label, "%s, %s", f->name, where);
    if (st == IDA_OK) report(c, label, e, c->bf16 && f->type == F_ACT ? 4e-3 : f->kind == SUM ? 1e-3 : 1e-5);
    free(a), free(b), free(x), free(y);
    return st;
}

static ida_status run_one(const checker *c, const problem *l, const run *r) {
    if (l->setup) IDA_TRY(l->setup(c->dev, r->p, r->n, l, &r->seqs));
    return l->call(c->dev, r->p, r->n, l, &r->seqs);
}

static ida_status run_both(checker *c, const problem *l, run *whole, run *part) {
    static const char *const where[N_WINDOWS] = {"first rows", "rows at element 2^31", "last rows"};
    int64_t row[N_WINDOWS];
    starts(l, whole->n, row);
    IDA_TRY(prepare(c, l, whole, part));
    IDA_TRY(run_one(c, l, part));
    IDA_TRY(run_one(c, l, whole));
    IDA_TRY(ida_dev_sync(c->dev));
    for (int i = 0; i < MAX_FIELDS && l->f[i].name; i++) {
        const field *f = &l->f[i];
        const int64_t size = field_size(c->dev, f), n = WINDOW * field_row(f);
        if (f->kind == SUM) IDA_TRY(compare(c, f, "sum over all rows", whole->p[i], part->p[i], f->width));
        for (int w = 0; w < N_WINDOWS && (f->kind == ROWS_OUT || f->kind == ROWS_INOUT); w++)
            IDA_TRY(compare(c, f, where[w], at(whole->p[i], row[w] * field_row(f) * size), at(part->p[i], w * n * size), n));
    }
    return IDA_OK;
}

/* Sequences of WINDOW tokens. Rows: past 2^31 elements of the widest tensor by a few windows. */
static void check_large(checker *c, const problem *l) {
    run whole = {.n = ((((int64_t)1 << 31) / widest(l)) / WINDOW + 3) * WINDOW}, part = {.n = N_WINDOWS * WINDOW};
    const int64_t n_seq = whole.n / WINDOW;
    int64_t *cu = must_alloc(n_seq + 1, sizeof *cu);
    for (int64_t i = 0; i <= n_seq; i++) cu[i] = i * WINDOW;
    whole.seqs = (ida_seqs){n_seq, cu, NULL}, part.seqs = (ida_seqs){N_WINDOWS, cu, NULL};
    const ida_status st = run_both(c, l, &whole, &part);
    if (st == IDA_E_NOMEM) {
        printf("  %s %s: not run: %s\n", l->name, c->bf16 ? "bf16" : "f32", ida_last_error());
        c->cases++;
        snprintf(c->worst_at, sizeof c->worst_at, "nothing: too little memory");
    } else if (st) {
        printf("  %s: %s\n", l->name, ida_last_error());
        c->failures++, c->cases++;
        c->broken = ida_dev_sync(c->dev) != IDA_OK;
    }
    for (int i = 0; i < MAX_FIELDS && !c->broken; i++) ida_dev_free(c->dev, whole.p[i]), ida_dev_free(c->dev, part.p[i]);
    free(cu);
}

enum { W = 2048 };
static const problem table[] = {
    {"large_swiglu_fwd", 0, W, 0, NULL, call_swiglu_fwd,
     {{"y", ROWS_OUT, F_ACT, W, 0, 0}, {"g", ROWS_IN, F_ACT, W, 0, 1}, {"u", ROWS_IN, F_ACT, W, 1, 1}}},
    {"large_swiglu_bwd", 0, W, 0, NULL, call_swiglu_bwd,
     {{"dg", ROWS_OUT, F_ACT, W, 0, 0}, {"du", ROWS_OUT, F_ACT, W, 0, 0}, {"dy", ROWS_IN, F_ACT, W, 2, 1},
      {"g", ROWS_IN, F_ACT, W, 0, 1}, {"u", ROWS_IN, F_ACT, W, 1, 1}}},
    {"large_rmsnorm_fwd", 0, 768, 0, NULL, call_rmsnorm_fwd,
     {{"y", ROWS_OUT, F_ACT, 768, 0, 0}, {"rstd", ROWS_OUT, F_REAL, 1, 0, 0}, {"x", ROWS_IN, F_ACT, 768, 0, 1},
      {"g", PARAM, F_REAL, 768, 1, 0.3}}},
    {"large_rmsnorm_bwd", 0, W, 0, call_rmsnorm_rstd, call_rmsnorm_bwd,
     {{"dx", ROWS_OUT, F_ACT, W, 0, 0}, {"dg", SUM, F_REAL, W, 0, 0}, {"dy", ROWS_SPARSE, F_ACT, W, 0, 1},
      {"x", ROWS_IN, F_ACT, W, 0.1, 1}, {"g", PARAM, F_REAL, W, 1, 0.3}, {"rstd", ROWS_SETUP, F_REAL, 1, 0, 0}}},
    {"large_linear_fwd", 0, 64, 520, NULL, call_linear_fwd,
     {{"y", ROWS_OUT, F_ACT, 520, 0, 0}, {"x", ROWS_IN, F_ACT, 64, 0.1, 1}, {"w", PARAM, F_ACT, 520 * 64, 0, 1}}},
    {"large_linear_bwd", 0, 520, 64, NULL, call_linear_bwd,
     {{"dx", ROWS_OUT, F_ACT, 520, 0, 0}, {"dw", SUM, F_REAL, 64 * 520, 0, 0}, {"dy", ROWS_SPARSE, F_ACT, 64, 0, 1},
      {"x", ROWS_IN, F_ACT, 520, 0.1, 1}, {"w", PARAM, F_ACT, 64 * 520, 0, 1}}},
    {"large_linear_bwd_wide", 0, 64, 520, NULL, call_linear_bwd,
     {{"dx", ROWS_OUT, F_ACT, 64, 0, 0}, {"dw", SUM, F_REAL, 520 * 64, 0, 0}, {"dy", ROWS_SPARSE, F_ACT, 520, 0, 1},
      {"x", ROWS_IN, F_ACT, 64, 0.1, 1}, {"w", PARAM, F_ACT, 520 * 64, 0, 1}}},
    {"large_cross_entropy", 0, 0, 32000, NULL, call_cross_entropy,
     {{"losses", ROWS_OUT, F_REAL, 1, 0, 0}, {"logits", ROWS_INOUT, F_ACT, 32000, 0, 2},
      {"targets", INTS, F_INT, 32000, 0, 0}}},
    {"large_stream_fwd", 32, 64, 0, NULL, call_stream_key_fwd,
     {{"y", ROWS_OUT, F_ACT, W, 0, 0}, {"x", ROWS_IN, F_ACT, W, 0, 1}, {"conv_w", PARAM, F_REAL, 4 * W, 0, 0.5},
      {"conv_b", PARAM, F_REAL, W, 0, 0.5}, {"gain", PARAM, F_REAL, 64, 1, 0.3}, {"bias", PARAM, F_REAL, W, 0, 0.5}}},
    {"large_stream_bwd", 32, 64, 0, NULL, call_stream_key_bwd,
     {{"dx", ROWS_OUT, F_ACT, W, 0, 0}, {"x", ROWS_IN, F_ACT, W, 0, 1}, {"conv_w", PARAM, F_REAL, 4 * W, 0, 0.5},
      {"conv_b", PARAM, F_REAL, W, 0, 0.5}, {"gain", PARAM, F_REAL, 64, 1, 0.3}, {"bias", PARAM, F_REAL, W, 0, 0.5},
      {"dy", ROWS_SPARSE, F_ACT, W, 0, 1}, {"dconv_w", SUM, F_REAL, 4 * W, 0, 0}, {"dconv_b", SUM, F_REAL, W, 0, 0},
      {"dgain", SUM, F_REAL, 64, 0, 0}, {"dbias", SUM, F_REAL, W, 0, 0}}},
    {"large_embed_fwd", 0, W, 1000, NULL, call_embed_fwd,
     {{"y", ROWS_OUT, F_ACT, W, 0, 0}, {"ids", INTS, F_INT, 1000, 0, 0}, {"table", TABLE, F_ACT, 1000 * W, 0, 1}}},
    {"large_embed_bwd", 0, W, 1000, NULL, call_embed_bwd,
     {{"dtable", SUM, F_REAL, 1000 * W, 0, 0}, {"ids", INTS, F_INT, 1000, 0, 0}, {"dy", ROWS_SPARSE, F_ACT, W, 0, 1}}},
    {"large_adamw", 0, W, 0, NULL, call_adamw,
     {{"p", ROWS_INOUT, F_REAL, W, 0, 1}, {"m", ROWS_INOUT, F_REAL, W, 0, 0.001}, {"v", ROWS_INOUT, F_REAL, W, 5, 0.1},
      {"g", ROWS_IN, F_REAL, W, 0, 1}, {"w", ROWS_OUT, F_ACT, W, 0, 0}}},
    {"large_to_act", 0, W, 0, NULL, call_to_act,
     {{"y", ROWS_OUT, F_ACT, W, 0, 0}, {"x", ROWS_IN, F_REAL, W, 0, 1}}},
    {"large_from_act", 0, W, 0, NULL, call_from_act,
     {{"y", ROWS_OUT, F_REAL, W, 0, 0}, {"x", ROWS_IN, F_ACT, W, 0, 1}}},
    {"large_sqsum", 0, W, 0, NULL, call_sqsum_last,
     {{"sum", SUM, F_REAL, 1, 0, 0}, {"x", ROWS_IN, F_REAL, W, 0, 1}}},
    {"large_attention", 32, 64, 0, call_attention_fwd, call_attention_bwd,
     {{"o", ROWS_OUT, F_ACT, W, 0, 0}, {"lse", ROWS_OUT, F_REAL, 32, 0, 0}, {"q", ROWS_IN, F_ACT, W, 0, 1},
      {"k", ROWS_IN, F_ACT, W, 0, 1}, {"v", ROWS_IN, F_ACT, W, 0, 1}, {"dout", ROWS_IN, F_ACT, W, 0, 1},
      {"dq", ROWS_OUT, F_ACT, W, 0, 0}, {"dk", ROWS_OUT, F_ACT, W, 0, 0}, {"dv", ROWS_OUT, F_ACT, W, 0, 0}}},
    {"large_interdomain", 32, 64, 64, call_interdomain_fwd, call_interdomain_bwd,
     {{"o", ROWS_OUT, F_ACT, W, 0, 0}, {"q", ROWS_IN, F_ACT, W, 0.05, 0.125}, {"k", ROWS_IN, F_ACT, W, 0, 1},
      {"v", ROWS_IN, F_ACT, W, 0, 1}, {"dout", ROWS_SPARSE, F_ACT, W, 0, 1}, {"dq", ROWS_OUT, F_ACT, W, 0, 0},
      {"dk", ROWS_OUT, F_ACT, W, 0, 0}, {"dv", ROWS_OUT, F_ACT, W, 0, 0}, {"log_dt", PARAM, F_REAL, 32, -4.5, 1},
      {"a_log", PARAM, F_REAL, 2048, -0.7, 0.1}, {"a_imag", PARAM, F_REAL, 2048, 0, 30},
      {"c_re", PARAM, F_REAL, 131072, 0, 0.088}, {"c_im", PARAM, F_REAL, 131072, 0, 0.088}, {"dlog_dt", SUM, F_REAL, 32, 0, 0},
      {"da_log", SUM, F_REAL, 2048, 0, 0}, {"da_imag", SUM, F_REAL, 2048, 0, 0}, {"dc_re", SUM, F_REAL, 131072, 0, 0},
      {"dc_im", SUM, F_REAL, 131072, 0, 0}}},
    {"large_s4d", 32, 64, 64, call_s4d_fwd, call_s4d_bwd,
     {{"y", ROWS_OUT, F_ACT, 2 * W, 0, 0}, {"w", PARAM, F_REAL, 2048, 0, 1}, {"k", ROWS_IN, F_ACT, W, 0, 1},
      {"v", ROWS_IN, F_ACT, W, 0, 1}, {"dy", ROWS_SPARSE, F_ACT, 2 * W, 0, 1}, {"dw", SUM, F_REAL, 2048, 0, 0},
      {"dk", ROWS_OUT, F_ACT, W, 0, 0}, {"dv", ROWS_OUT, F_ACT, W, 0, 0}, {"log_dt", PARAM, F_REAL, 32, -4.5, 1},
      {"a_log", PARAM, F_REAL, 2048, -0.7, 0.1}, {"a_imag", PARAM, F_REAL, 2048, 0, 30},
      {"c_re", PARAM, F_REAL, 131072, 0, 0.088}, {"c_im", PARAM, F_REAL, 131072, 0, 0.088}, {"dlog_dt", SUM, F_REAL, 32, 0, 0},
      {"da_log", SUM, F_REAL, 2048, 0, 0}, {"da_imag", SUM, F_REAL, 2048, 0, 0}, {"dc_re", SUM, F_REAL, 131072, 0, 0},
      {"dc_im", SUM, F_REAL, 131072, 0, 0}}},
};

const int n_large_checks = sizeof table / sizeof *table;
const char *large_name(int i) { return table[i].name; }
void large_check(checker *c, int i) { check_large(c, &table[i]); }
