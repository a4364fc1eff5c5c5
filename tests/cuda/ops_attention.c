/* ops_attention.c - ops_check of causal softmax attention. The naive bf16 error is that of a plain implementation that keeps
 * scores and softmax in fp32 and rounds what enters a product: P, dS and (for the row sums dO.O) the saved O.
 *
 * The equal sequences of `batches` take cuDNN where it is; with IDA_ATTENTION=own in the environment our own kernels. */
#include <math.h>
#include <stdlib.h>

#include "ops_check.h"

enum { MAX_SEQS = 8, PAD = 3 };
typedef struct attn {
    const seq_set *set;
    int64_t h, g, d;
    bool lse, cache;
    int64_t past[MAX_SEQS]; /* with a cache */
} attn;

/* Double arrays of one sequence: q, o, dout and their gradients [n,H,D], k, v [rows,G,D]; the queries are the last n of rows. */
typedef struct one { double *q, *k, *v, *dout, *o, *lse, *dq, *dk, *dv; int64_t n, rows; } one;

static double rounded(double x, bool bf16) { return bf16 ? bf16_of(x) : x; }

/* One query head: p, ds [rows] are scratch. dq = NULL: forward only. */
static void one_query(const attn *a, const one *s, int64_t t, int64_t head, double *p, double *ds, bool bf16) {
    const int64_t d = a->d, row = a->g * d, kv = head / (a->h / a->g) * d, seen = s->rows - s->n + t + 1,
                  at = (t * a->h + head) * d;
    const double scale = 1 / sqrt((double)d);
    double top = -INFINITY, sum = 0, mean = 0;
    for (int64_t j = 0; j < seen; j++) {
        p[j] = 0;
        for (int64_t i = 0; i < d; i++) p[j] += s->q[at + i] * s->k[j * row + kv + i];
        p[j] *= scale;
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < seen; j++) sum += exp(p[j] - top);
    s->lse[t * a->h + head] = top + log(sum);
    for (int64_t i = 0; i < d; i++) s->o[at + i] = 0;
    for (int64_t j = 0; j < seen; j++) {
        const double e = exp(p[j] - top);
        p[j] = e / sum;
        for (int64_t i = 0; i < d; i++) s->o[at + i] += rounded(e, bf16) / sum * s->v[j * row + kv + i];
    }
    for (int64_t i = 0; i < d; i++) s->o[at + i] = rounded(s->o[at + i], bf16);
    if (!s->dq) return;
    for (int64_t i = 0; i < d; i++) mean += s->dout[at + i] * s->o[at + i], s->dq[at + i] = 0;
    for (int64_t j = 0; j < seen; j++) {
        ds[j] = 0;
        for (int64_t i = 0; i < d; i++) ds[j] += s->dout[at + i] * s->v[j * row + kv + i];
        ds[j] = rounded(p[j] * (ds[j] - mean), bf16) * scale;
        for (int64_t i = 0; i < d; i++) {
            s->dv[j * row + kv + i] += rounded(p[j], bf16) * s->dout[at + i];
            s->dk[j * row + kv + i] += ds[j] * s->q[at + i];
            s->dq[at + i] += ds[j] * s->k[j * row + kv + i];
        }
    }
}

static void one_sequence(const attn *a, const one *s, bool bf16) {
    double *p = must_alloc(2 * s->rows, sizeof *p);
    for (int64_t t = 0; t < s->n; t++)
        for (int64_t h = 0; h < a->h; h++) one_query(a, s, t, h, p, p + s->rows, bf16);
    for (int64_t i = 0; s->dq && i < s->n * a->h * a->d; i++) s->dq[i] = rounded(s->dq[i], bf16);
    for (int64_t i = 0; s->dq && i < s->rows * a->g * a->d; i++)
        s->dk[i] = rounded(s->dk[i], bf16), s->dv[i] = rounded(s->dv[i], bf16);
    free(p);
}

static double *doubles(const float *x, int64_t n) {
    double *p = must_alloc(n, sizeof *p);
    for (int64_t i = 0; i < n && x; i++) p[i] = (double)x[i];
    return p;
}

/* All sequences, without a cache. */
static one attention(const attn *a, const array *q, const array *k, const array *v, const array *dout, bool bf16) {
    const int64_t n = set_tokens(a->set), width = a->h * a->d, row = a->g * a->d;
    one all = {.q = doubles(q->value, q->n),
               .k = doubles(k->value, k->n),
               .v = doubles(v->value, v->n),
               .o = doubles(NULL, n * width),
               .lse = doubles(NULL, n * a->h),
               .n = n};
    if (dout)
        all.dout = doubles(dout->value, dout->n), all.dq = doubles(NULL, n * width), all.dk = doubles(NULL, n * row),
        all.dv = doubles(NULL, n * row);
    for (int64_t i = 0; i < a->set->n; i++) {
        const int64_t from = a->set->cu[i], len = a->set->cu[i + 1] - from;
        one s = {.q = all.q + from * width, .k = all.k + from * row, .v = all.v + from * row, .o = all.o + from * width,
                 .lse = all.lse + from * a->h, .n = len, .rows = len};
        if (dout)
            s.dout = all.dout + from * width, s.dq = all.dq + from * width, s.dk = all.dk + from * row,
            s.dv = all.dv + from * row;
        one_sequence(a, &s, bf16);
    }
    return all;
}
static void release(one *s) {
    free(s->q), free(s->k), free(s->v), free(s->dout), free(s->o), free(s->lse), free(s->dq), free(s->dk), free(s->dv);
}

enum { O, LSE, Q, K, V, CACHE };
static ida_status call_fwd(const ida_device *dev, void *const *p, const void *args) {
    const attn *a = args;
    ida_act *kc[MAX_SEQS], *vc[MAX_SEQS];
    ida_seqs seqs = {a->set->n, a->set->cu, a->cache ? a->past : a->set->pos0};
    for (int64_t s = 0; a->cache && s < a->set->n; s++) kc[s] = p[CACHE + 2 * s], vc[s] = p[CACHE + 2 * s + 1];
    const ida_attention_args x = {.o = p[O], .lse = p[LSE], .q = p[Q], .k = p[K], .v = p[V], .k_cache = a->cache ? kc : NULL,
                                  .v_cache = a->cache ? vc : NULL, .h = a->h, .g = a->g, .d = a->d};
    return dev->ops->attention_fwd(dev, &x, &seqs);
}

/* Caches: `past` rows of content, room for the new ones and PAD more; the naive error of o. */
static double add_caches(kase *k, const attn *a) {
    const int64_t row = a->g * a->d, width = a->h * a->d, all = k->a[O].n;
    double *exact = must_alloc(all, sizeof *exact), *naive = must_alloc(all, sizeof *naive);
    for (int64_t s = 0; s < a->set->n; s++) {
        const int64_t from = a->set->cu[s], len = a->set->cu[s + 1] - from, past = a->past[s], rows = past + len;
        double *lse = doubles(NULL, len * a->h), *q = doubles(k->a[Q].value + from * width, len * width), *kv[2];
        for (int w = 0; w < 2; w++) {
            array *c = inout(k, w ? "v_cache" : "k_cache", ACT, (rows + PAD) * row, 0, 1);
            c->exact = true;
            for (int64_t i = past * row; i < c->n; i++) poison(c, i);
            kv[w] = doubles(c->value, rows * row);
            for (int64_t i = 0; i < len * row; i++) kv[w][past * row + i] = (double)k->a[w ? V : K].value[from * row + i];
        }
        one x = {.q = q, .k = kv[0], .v = kv[1], .lse = lse, .n = len, .rows = rows};
        x.o = exact + from * width, one_sequence(a, &x, false);
        x.o = naive + from * width, one_sequence(a, &x, true);
        free(lse), free(q), free(kv[0]), free(kv[1]);
    }
    const double e = distance(naive, exact, all);
    free(exact), free(naive);
    return e;
}

static void fwd_case(checker *c, const attn *a) {
    const int64_t n = set_tokens(a->set), width = a->h * a->d, row = a->g * a->d;
    kase k;
    begin_case(&k, c, call_fwd, a, "%s, h %d g %d d %d%s%s", a->set->name, (int)a->h, (int)a->g, (int)a->d, a->lse ? ", lse" : "",
               a->cache ? ", cache" : "");
    out(&k, "o", ACT, n * width);
    if (a->lse) out(&k, "lse", REAL, n * a->h);
    else absent(&k);
    in(&k, "q", ACT, n * width, 0, 1.5);
    in(&k, "k", ACT, n * row, 0.1, 1.5);
    in(&k, "v", ACT, n * row, 0.1, 1);
    if (a->cache) {
        k.a[O].naive = add_caches(&k, a);
    } else {
        one exact = attention(a, &k.a[Q], &k.a[K], &k.a[V], NULL, false),
            naive = attention(a, &k.a[Q], &k.a[K], &k.a[V], NULL, true);
        k.a[O].naive = distance(naive.o, exact.o, n * width);
        release(&exact), release(&naive);
    }
    if (c->bf16) k.a[O].tol = 1e-4;
    run_case(&k);
}

static const int64_t heads[][3] = {{1, 1, 64}, {4, 2, 64}, {2, 2, 128}, {6, 1, 16}, {3, 3, 13}, {2, 1, 96}};
enum { N_HEADS = sizeof heads / sizeof *heads };

/* Sequences of one length, long enough for cuDNN, and heads that it takes. */
static const struct batch { seq_set set; int64_t h, g, d; } batches[] = {
    {{"4 x 1024", 4, {0, 1024, 2048, 3072, 4096}, {0}}, 2, 1, 64},
    {{"2 x 1024", 2, {0, 1024, 2048}, {0}}, 3, 1, 128},
};
enum { N_BATCHES = sizeof batches / sizeof *batches };

void check_attention_fwd(checker *c) {
    static const seq_set mixed = {"decode and prefill", 4, {0, 1, 1, 35, 36}, {0}}, decode = {"decode", 3, {0, 1, 2, 3}, {0}},
                         first = {"prefill", 2, {0, 70, 133}, {0}};
    for (int i = 0; i < n_seq_sets; i++)
        for (int j = 0; j < N_HEADS; j++) {
            const attn a = {.set = &seq_sets[i], .h = heads[j][0], .g = heads[j][1], .d = heads[j][2], .lse = (i + j) % 2 == 0};
            fwd_case(c, &a);
        }
    for (int j = 0; j < N_HEADS; j++) {
        const attn base = {.h = heads[j][0], .g = heads[j][1], .d = heads[j][2], .cache = true};
        attn a = base;
        a.set = &mixed, a.past[0] = 200, a.past[1] = 7, a.past[2] = 63, a.past[3] = 0;
        fwd_case(c, &a);
        a.set = &decode, a.past[0] = 0, a.past[1] = 64, a.past[2] = 1025;
        fwd_case(c, &a);
        a.set = &first, a.past[0] = 0, a.past[1] = 130, a.past[2] = 0;
        fwd_case(c, &a);
    }
    for (int i = 0; i < N_BATCHES && c->bf16 && !c->thin; i++) {
        const attn a = {.set = &batches[i].set, .h = batches[i].h, .g = batches[i].g, .d = batches[i].d, .lse = true};
        fwd_case(c, &a);
    }
}

enum { B_DQ, B_DK, B_DV, B_DOUT, B_Q, B_K, B_V, B_O, B_LSE };
static ida_status call_bwd(const ida_device *dev, void *const *p, const void *args) {
    const attn *a = args;
    const ida_seqs seqs = {a->set->n, a->set->cu, a->set->pos0};
    const ida_attention_args x = {
        .o = p[B_O], .lse = p[B_LSE], .q = p[B_Q], .k = p[B_K], .v = p[B_V], .h = a->h, .g = a->g, .d = a->d};
    return dev->ops->attention_bwd(dev, p[B_DQ], p[B_DK], p[B_DV], p[B_DOUT], &x, &seqs);
}
static void bwd_case(checker *c, const attn *a) {
    const int64_t n = set_tokens(a->set), width = a->h * a->d, row = a->g * a->d;
    kase k;
    begin_case(&k, c, call_bwd, a, "%s, h %d g %d d %d", a->set->name, (int)a->h, (int)a->g, (int)a->d);
    out(&k, "dq", ACT, n * width);
    out(&k, "dk", ACT, n * row);
    out(&k, "dv", ACT, n * row);
    in(&k, "dout", ACT, n * width, 0.1, 1);
    in(&k, "q", ACT, n * width, 0, 1.5);
    in(&k, "k", ACT, n * row, 0.1, 1.5);
    in(&k, "v", ACT, n * row, 0.1, 1);
    one exact = attention(a, &k.a[B_Q], &k.a[B_K], &k.a[B_V], &k.a[B_DOUT], false);
    one naive = attention(a, &k.a[B_Q], &k.a[B_K], &k.a[B_V], &k.a[B_DOUT], true);
    k.a[B_DQ].naive = distance(naive.dq, exact.dq, n * width);
    k.a[B_DK].naive = distance(naive.dk, exact.dk, n * row);
    k.a[B_DV].naive = distance(naive.dv, exact.dv, n * row);
    for (int o = B_DQ; o <= B_DV; o++) k.a[o].tol = c->bf16 ? 1e-4 : 2e-5, k.a[o].scale = 1; /* one token: dq, dk vanish */
    array *o = in(&k, "o", ACT, n * width, 0, 0), *lse = in(&k, "lse", REAL, n * a->h, 0, 0);
    for (int64_t t = 0; t < o->n; t++) set(&k, o, t, exact.o[t]);
    for (int64_t t = 0; t < lse->n; t++) set(&k, lse, t, exact.lse[t]);
    release(&exact), release(&naive);
    run_case(&k);
}

void check_attention_bwd(checker *c) {
    for (int i = 0; i < n_seq_sets; i++)
        for (int j = 0; j < N_HEADS; j++) {
            const attn a = {.set = &seq_sets[i], .h = heads[j][0], .g = heads[j][1], .d = heads[j][2]};
            bwd_case(c, &a);
        }
    for (int i = 0; i < N_BATCHES && c->bf16 && !c->thin; i++) {
        const attn a = {.set = &batches[i].set, .h = batches[i].h, .g = batches[i].g, .d = batches[i].d};
        bwd_case(c, &a);
    }
}
