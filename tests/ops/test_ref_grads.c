#define IDA_REAL double
/* Every backward pass of src/ops/ref against finite differences in double: each input alone, each option, packed sequences with
 * empty ones. The loss is a fixed random weighting of all outputs. "=" outputs start as NaN, "+=" outputs as random numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "core/rng.h"
#include "ops/ops.h"

static const ida_ops *ops = &ida_ref64_ops;
static const ida_device *dev = &ida_ref64_device;

enum { MAX = 4096 };
static double pool[64][MAX]; /* tensors of one case */
static int used;

static double *numbers(int64_t n, double value) {
    assert_true(used < 64 && n <= MAX);
    for (int64_t i = 0; i < n; i++) pool[used][i] = value;
    return pool[used++];
}
static double *normal(int64_t n) {
    double *p = numbers(n, 0.0);
    for (int64_t i = 0; i < n; i++) p[i] = ida_normal(IDA_STREAM_TEST, (uint64_t)used, (uint64_t)i);
    return p;
}

static const int64_t packs[][5] = {{0, 9, 9, 9, 9}, {0, 5, 5, 9, 9}, {0, 0, 9, 9, 9},
                                   {0, 9, 9, 9, 9}, {0, 0, 0, 0, 0}, {0, 1, 3, 6, 9}};
static const int64_t pack_n[] = {1, 3, 2, 2, 2, 4};
enum { PACKS = 6 };
static ida_seqs pack(int i) { return (ida_seqs){pack_n[i], packs[i], NULL}; }

typedef double loss_fn(void *ctx);
static double weigh(const double *y, const double *c, int64_t n) {
    double s = 0.0;
    for (int64_t i = 0; i < n; i++) s += y[i] * c[i];
    return s;
}

/* got - before = d loss / d x by a fourth-order difference (error h^4 and 1e-16/h: 1e-11 relative to the curvature). */
static void check(const char *what, loss_fn *loss, void *ctx, double *x, int64_t n, const double *got, const double *before) {
    const double h = 1e-3;
    for (int64_t i = 0; i < n; i++) {
        double keep = x[i], f[4];
        static const double step[4] = {1.0, -1.0, 2.0, -2.0};
        for (int k = 0; k < 4; k++) {
            x[i] = keep + step[k] * h;
            f[k] = loss(ctx);
        }
        x[i] = keep;
        double want = (8.0 * (f[0] - f[1]) - (f[2] - f[3])) / (12.0 * h), have = got[i] - (before ? before[i] : 0.0);
        if (!(fabs(have - want) <= 1e-8 * (1.0 + fabs(want))))
            fail_msg("%s[%lld]: gradient %.12g, finite difference %.12g", what, (long long)i, have, want);
    }
}

static void assert_unchanged(const char *what, const double *p, const double *before, int64_t n) {
    if (memcmp(p, before, (size_t)n * sizeof *p) != 0) fail_msg("%s changed", what);
}
static double *copy(const double *p, int64_t n) {
    double *q = numbers(n, 0.0);
    memcpy(q, p, (size_t)n * sizeof *p);
    return q;
}

typedef struct ctx {
    double *x, *w, *g, *b, *u, *y, *s, *c, *cs, *k, *v;
    const int32_t *ids;
    int64_t n, in, out, h, d, stride, groups;
    ida_seqs seqs;
    bool add;
} ctx;

/* ---------------------------------------------------------------- embed, linear */

static double embed_loss(void *p) {
    ctx *c = p;
    const ida_matrix table = ida_matrix_of(dev, c->w, 5, c->d);
    ops->embed_fwd(dev, ida_act_of(c->y), c->ids, &table, c->n);
    return weigh(c->y, c->c, c->n * c->d);
}
static void L09_embed(void **state) {
    (void)state;
    used = 0;
    static const int32_t ids[] = {3, 0, 3, 3, 1, 0};
    ctx c = {.w = normal(5 * 7), .y = numbers(6 * 7, NAN), .c = normal(6 * 7), .ids = ids, .n = 6, .d = 7};
    double *dw = normal(5 * 7), *dw0 = copy(dw, 5 * 7);
    assert_int_equal(ops->embed_bwd(dev, dw, ids, ida_act_of(c.c), 6, 5, 7), IDA_OK);
    check("dtable", embed_loss, &c, c.w, 5 * 7, dw, dw0);
}

static double linear_loss(void *p) {
    ctx *c = p;
    memcpy(c->y, c->s, (size_t)(c->n * c->out) * sizeof(double));
    const ida_matrix w = ida_matrix_of(dev, c->w, c->out, c->in);
    ops->linear_fwd(dev, ida_act_of(c->y), ida_act_of(c->x), &w, ida_act_of(c->add ? c->y : NULL), c->n);
    return weigh(c->y, c->c, c->n * c->out);
}
static void L09_linear_every_option(void **state) {
    (void)state;
    for (int add = 0; add < 2; add++) {
        used = 0;
        int64_t n = 5, in = 3, out = 4;
        ctx c = {.x = normal(n * in),
                 .w = normal(out * in),
                 .s = add ? normal(n * out) : numbers(n * out, NAN),
                 .y = numbers(n * out, NAN),
                 .c = normal(n * out),
                 .n = n,
                 .in = in,
                 .out = out,
                 .add = add};
        double *dx = add ? normal(n * in) : numbers(n * in, NAN), *dx0 = copy(dx, n * in), *dw = normal(out * in),
               *dw0 = copy(dw, out * in);
        const ida_matrix w = ida_matrix_of(dev, c.w, out, in);
        assert_int_equal(ops->linear_bwd(dev, ida_act_of(dx), NULL, ida_act_of(c.c), ida_act_of(c.x), &w, n, add), IDA_OK);
        assert_int_equal(ops->linear_bwd(dev, NULL, dw, ida_act_of(c.c), ida_act_of(c.x), &w, n, add), IDA_OK);
        check("dx", linear_loss, &c, c.x, n * in, dx, add ? dx0 : NULL);
        check("dw", linear_loss, &c, c.w, out * in, dw, dw0);
    }
}

/* ---------------------------------------------------------------- norms and elementwise */

static double rmsnorm_loss(void *p) {
    ctx *c = p;
    ops->rmsnorm_fwd(dev, ida_act_of(c->y), c->s, ida_act_of(c->x), c->g, c->n, c->d, 1e-5);
    return weigh(c->y, c->c, c->n * c->d);
}
static void L09_rmsnorm(void **state) {
    (void)state;
    used = 0;
    int64_t n = 4, d = 6;
    ctx c = {
        .x = normal(n * d), .g = normal(d), .y = numbers(n * d, NAN), .s = numbers(n, NAN), .c = normal(n * d), .n = n, .d = d};
    double *dx = normal(n * d), *dx0 = copy(dx, n * d), *dg = normal(d), *dg0 = copy(dg, d);
    rmsnorm_loss(&c);
    assert_int_equal(ops->rmsnorm_bwd(dev, ida_act_of(dx), dg, ida_act_of(c.c), ida_act_of(c.x), c.g, c.s, n, d), IDA_OK);
    check("dx", rmsnorm_loss, &c, c.x, n * d, dx, dx0);
    check("dg", rmsnorm_loss, &c, c.g, d, dg, dg0);
}

static double headnorm_loss(void *p) {
    ctx *c = p;
    ops->headnorm_fwd(dev, ida_act_of(c->y), c->s, ida_act_of(c->x), c->g, c->b, c->n, c->h, c->d, 1e-5);
    return weigh(c->y, c->c, c->n * c->h * c->d);
}
static void L09_headnorm_with_and_without_bias(void **state) {
    (void)state;
    for (int bias = 0; bias < 2; bias++) {
        used = 0;
        int64_t n = 4, h = 3, d = 5, size = n * h * d;
        ctx c = {.x = normal(size),
                 .g = normal(d),
                 .b = bias ? normal(h * d) : NULL,
                 .y = numbers(size, NAN),
                 .s = numbers(n * h, NAN),
                 .c = normal(size),
                 .n = n,
                 .h = h,
                 .d = d};
        double *dx = numbers(size, NAN), *dg = normal(d), *dg0 = copy(dg, d), *db = normal(h * d), *db0 = copy(db, h * d);
        headnorm_loss(&c);
        assert_int_equal(
            ops->headnorm_bwd(dev, ida_act_of(dx), dg, bias ? db : NULL, ida_act_of(c.c), ida_act_of(c.x), c.g, c.s, n, h, d),
            IDA_OK);
        check("dx", headnorm_loss, &c, c.x, size, dx, NULL);
        check("dg", headnorm_loss, &c, c.g, d, dg, dg0);
        if (bias) check("db", headnorm_loss, &c, c.b, h * d, db, db0);
    }
}

static double featmap_loss(void *p) {
    ctx *c = p;
    ops->featmap_fwd(dev, ida_act_of(c->y), c->s, ida_act_of(c->x), c->n, c->h, c->d, 1e-6);
    return weigh(c->y, c->c, c->n * c->h * c->d);
}
static void L09_featmap(void **state) {
    (void)state;
    used = 0;
    int64_t n = 3, h = 2, d = 5, size = n * h * d;
    ctx c = {.x = normal(size), .y = numbers(size, NAN), .s = numbers(n * h, NAN), .c = normal(size), .n = n, .h = h, .d = d};
    double *dx = numbers(size, NAN);
    featmap_loss(&c);
    assert_int_equal(ops->featmap_bwd(dev, ida_act_of(dx), ida_act_of(c.c), ida_act_of(c.x), c.s, n, h, d), IDA_OK);
    check("dx", featmap_loss, &c, c.x, size, dx, NULL);
    double norm = weigh(c.y, c.y, d); /* the map has unit norm per head but for eps */
    assert_true(fabs(norm - 1.0) < 1e-4);
}

static double swiglu_loss(void *p) {
    ctx *c = p;
    ops->swiglu_fwd(dev, ida_act_of(c->y), ida_act_of(c->g), ida_act_of(c->u), c->n);
    return weigh(c->y, c->c, c->n);
}
static void L09_swiglu_and_its_aliases(void **state) {
    (void)state;
    used = 0;
    int64_t n = 11;
    ctx c = {.g = normal(n), .u = normal(n), .y = numbers(n, NAN), .c = normal(n), .n = n};
    double *dg = numbers(n, NAN), *du = numbers(n, NAN);
    assert_int_equal(ops->swiglu_bwd(dev, ida_act_of(dg), ida_act_of(du), ida_act_of(c.c), ida_act_of(c.g), ida_act_of(c.u), n),
                     IDA_OK);
    check("dg", swiglu_loss, &c, c.g, n, dg, NULL);
    check("du", swiglu_loss, &c, c.u, n, du, NULL);
    swiglu_loss(&c);
    double *g = copy(c.g, n), *u = copy(c.u, n), *dy = copy(c.c, n), *other = numbers(n, NAN);
    ops->swiglu_fwd(dev, ida_act_of(g), ida_act_of(g), ida_act_of(c.u), n);
    ops->swiglu_fwd(dev, ida_act_of(u), ida_act_of(c.g), ida_act_of(u), n);
    assert_unchanged("y over g", g, c.y, n);
    assert_unchanged("y over u", u, c.y, n);
    ops->swiglu_bwd(dev, ida_act_of(dy), ida_act_of(other), ida_act_of(dy), ida_act_of(c.g), ida_act_of(c.u), n);
    assert_unchanged("dg over dy", dy, dg, n);
    memcpy(dy, c.c, (size_t)n * sizeof *dy);
    ops->swiglu_bwd(dev, ida_act_of(other), ida_act_of(dy), ida_act_of(dy), ida_act_of(c.g), ida_act_of(c.u), n);
    assert_unchanged("du over dy", dy, du, n);
}

/* ---------------------------------------------------------------- conv, rope */

static double conv_loss(void *p) {
    ctx *c = p;
    int64_t n = c->seqs.cu[c->seqs.n];
    ops->conv_fwd(dev, ida_act_of(c->y), c->v, ida_act_of(c->x), c->w, c->b, c->s, c->stride, &c->seqs, c->d);
    double loss = weigh(c->y, c->c, n * c->d);
    for (int64_t s = 0; c->cs && s < c->seqs.n; s++) loss += weigh(c->v + s * c->stride, c->cs + s * c->stride, 3 * c->d);
    return loss;
}
static void L11_conv_every_option_with_empty_sequences(void **state) {
    (void)state;
    for (int p = 0; p < PACKS; p++)
        for (int option = 0; option < 4; option++) {
            used = 0;
            ida_seqs q = pack(p);
            int64_t n = q.cu[q.n], d = 3, stride = 3 * d + 2;
            bool in = option & 1, out = option & 2;
            ctx c = {.x = normal(n * d),
                     .w = normal(4 * d),
                     .b = normal(d),
                     .s = in ? normal(q.n * stride) : NULL,
                     .v = numbers(q.n * stride, NAN),
                     .y = numbers(n * d, NAN),
                     .c = normal(n * d),
                     .cs = out ? normal(q.n * stride) : NULL,
                     .d = d,
                     .stride = stride,
                     .seqs = q};
            double *dx = numbers(n * d, NAN), *dw = normal(4 * d), *dw0 = copy(dw, 4 * d), *db = normal(d), *db0 = copy(db, d);
            double *ds = numbers(q.n * stride, NAN);
            ida_conv_bwd_args a = {ida_act_of(dx), dw, db, in ? ds : NULL, ida_act_of(c.c), c.cs, ida_act_of(c.x), c.w, c.s,
                                   stride, d};
            assert_int_equal(ops->conv_bwd(dev, &a, &q), IDA_OK);
            check("dx", conv_loss, &c, c.x, n * d, dx, NULL);
            check("dw", conv_loss, &c, c.w, 4 * d, dw, dw0);
            check("db", conv_loss, &c, c.b, d, db, db0);
            for (int64_t s = 0; in && s < q.n; s++)
                check("dstate_in", conv_loss, &c, c.s + s * stride, 3 * d, ds + s * stride, NULL);
        }
}

static double rope_loss(void *p) {
    ctx *c = p;
    ops->rope(dev, ida_act_of(c->y), ida_act_of(c->x), &c->seqs, c->h, c->d, 10000.0, 1);
    return weigh(c->y, c->c, c->seqs.cu[c->seqs.n] * c->h * c->d);
}
static void L11_rope_sign_minus_one_is_the_gradient(void **state) {
    (void)state;
    static const int64_t pos0[] = {0, 7, 1000003, 5};
    for (int p = 0; p < PACKS; p++) {
        used = 0;
        ida_seqs q = pack(p);
        q.pos0 = pos0;
        int64_t h = 2, d = 6, size = q.cu[q.n] * h * d;
        ctx c = {.x = normal(size), .y = numbers(size, NAN), .c = normal(size), .h = h, .d = d, .seqs = q};
        double *dx = copy(c.c, size);
        assert_int_equal(ops->rope(dev, ida_act_of(dx), ida_act_of(dx), &q, h, d, 10000.0, -1), IDA_OK);
        check("dx", rope_loss, &c, c.x, size, dx, NULL);
    }
}

/* ---------------------------------------------------------------- stream */

typedef struct stream_ctx { ida_stream_args a; double *y, *c; ida_seqs seqs; } stream_ctx;

static double stream_loss(void *p) {
    stream_ctx *c = p;
    assert_int_equal(ops->stream_fwd(dev, &(ida_stream){ida_act_of(c->y), c->a}, 1, &c->seqs), IDA_OK);
    return weigh(c->y, c->c, c->seqs.cu[c->seqs.n] * c->a.h * c->a.d);
}

/* The parts as one call, or by hand: the same numbers. */
static void stream_is_its_parts(stream_ctx *c) {
    const ida_stream_args *a = &c->a;
    const int64_t n = c->seqs.cu[c->seqs.n], all = n * a->h * a->d;
    double *x = copy(ida_act_real(a->x), all), *y = numbers(all, NAN), *saved = numbers(n * a->h, NAN);
    if (a->conv_w) {
        ops->conv_fwd(dev, ida_act_of(y), NULL, ida_act_of(x), a->conv_w, a->conv_b, a->state_in, a->stride, &c->seqs,
                      a->h * a->d);
        memcpy(x, y, (size_t)all * sizeof *x);
    }
    if (a->rope_theta > 0) ops->rope(dev, ida_act_of(x), ida_act_of(x), &c->seqs, a->h, a->d, a->rope_theta, 1);
    if (a->l2_eps > 0) {
        ops->featmap_fwd(dev, ida_act_of(y), saved, ida_act_of(x), n, a->h, a->d, a->l2_eps);
        memcpy(x, y, (size_t)all * sizeof *x);
    }
    if (a->gain) {
        ops->headnorm_fwd(dev, ida_act_of(y), saved, ida_act_of(x), a->gain, a->bias, n, a->h, a->d, a->norm_eps);
        memcpy(x, y, (size_t)all * sizeof *x);
    }
    memset(c->y, 0xFF, (size_t)all * sizeof *c->y);
    stream_loss(c);
    assert_unchanged("y against its parts", c->y, x, all);
}

static void L11_stream_every_choice_of_parts(void **state) {
    (void)state;
    static const int64_t pos0[] = {0, 7, 1003, 5};
    for (int p = 0; p < PACKS; p++)
        for (int parts = 0; parts < 32; parts++) { /* the last bit: with a bias and an initial state */
            used = 0;
            ida_seqs q = pack(p);
            q.pos0 = pos0;
            const int64_t h = 2, d = 4, w = h * d, all = q.cu[q.n] * w, stride = 3 * w + 2;
            const bool conv = parts & 1, norm = parts & 8, more = parts & 16;
            double *x = normal(all), *cw = normal(4 * w), *cb = normal(w), *gain = normal(d), *bias = normal(w);
            stream_ctx c = {.a = {.h = h, .d = d, .x = ida_act_of(x), .stride = stride, .norm_eps = 0.5},
                            .y = numbers(all, NAN),
                            .c = normal(all),
                            .seqs = q};
            c.a.rope_theta = parts & 2 ? 10000.0 : 0;
            c.a.l2_eps = parts & 4 ? 0.5 : 0;
            if (conv) c.a.conv_w = cw, c.a.conv_b = cb, c.a.state_in = more ? normal(q.n * stride) : NULL;
            if (norm) c.a.gain = gain, c.a.bias = more ? bias : NULL;
            stream_is_its_parts(&c);
            double *dx = numbers(all, NAN), *dw = normal(4 * w), *dw0 = copy(dw, 4 * w), *db = normal(w), *db0 = copy(db, w);
            double *dg = normal(d), *dg0 = copy(dg, d), *dbias = normal(w), *dbias0 = copy(dbias, w);
            const ida_stream_grads g = {conv ? dw : NULL, conv ? db : NULL, norm ? dg : NULL, c.a.bias ? dbias : NULL};
            assert_int_equal(ops->stream_bwd(dev, ida_act_of(dx), ida_act_of(c.c), &c.a, &g, &q), IDA_OK);
            check("dx", stream_loss, &c, x, all, dx, NULL);
            check("dconv_w", stream_loss, &c, cw, 4 * w, dw, dw0);
            check("dconv_b", stream_loss, &c, cb, w, db, db0);
            check("dgain", stream_loss, &c, gain, d, dg, dg0);
            check("dbias", stream_loss, &c, bias, w, dbias, dbias0);
        }
}

/* ---------------------------------------------------------------- attention */

static double attention_loss(void *p) {
    ctx *c = p;
    ida_attention_args a = {.o = ida_act_of(c->y),
                            .lse = c->s,
                            .q = ida_act_of(c->x),
                            .k = ida_act_of(c->k),
                            .v = ida_act_of(c->v),
                            .h = c->h,
                            .g = c->groups,
                            .d = c->d};
    ops->attention_fwd(dev, &a, &c->seqs);
    return weigh(c->y, c->c, c->seqs.cu[c->seqs.n] * c->h * c->d);
}
static void L11_attention_grouped_with_empty_sequences(void **state) {
    (void)state;
    static const int64_t heads[][2] = {{1, 1}, {4, 4}, {4, 2}, {3, 1}};
    for (int p = 0; p < PACKS; p++)
        for (int i = 0; i < 4; i++) {
            used = 0;
            ida_seqs q = pack(p);
            int64_t n = q.cu[q.n], h = heads[i][0], g = heads[i][1], d = 3;
            ctx c = {.x = normal(n * h * d),
                     .k = normal(n * g * d),
                     .v = normal(n * g * d),
                     .y = numbers(n * h * d, NAN),
                     .s = numbers(n * h, NAN),
                     .c = normal(n * h * d),
                     .h = h,
                     .groups = g,
                     .d = d,
                     .seqs = q};
            double *dq = numbers(n * h * d, NAN), *dk = numbers(n * g * d, NAN), *dv = numbers(n * g * d, NAN);
            attention_loss(&c);
            ida_attention_args a = {.o = ida_act_of(c.y),
                                    .lse = c.s,
                                    .q = ida_act_of(c.x),
                                    .k = ida_act_of(c.k),
                                    .v = ida_act_of(c.v),
                                    .h = h,
                                    .g = g,
                                    .d = d};
            assert_int_equal(ops->attention_bwd(dev, ida_act_of(dq), ida_act_of(dk), ida_act_of(dv), ida_act_of(c.c), &a, &q),
                             IDA_OK);
            check("dq", attention_loss, &c, c.x, n * h * d, dq, NULL);
            check("dk", attention_loss, &c, c.k, n * g * d, dk, NULL);
            check("dv", attention_loss, &c, c.v, n * g * d, dv, NULL);
        }
}

/* ---------------------------------------------------------------- loss, norm, optimiser */

static double entropy_loss(void *p) {
    ctx *c = p;
    ops->cross_entropy(dev, c->y, ida_act_of(c->x), c->ids, c->n, c->d, 0.0);
    double s = 0.0;
    for (int64_t i = 0; i < c->n; i++) s += 0.37 * c->y[i];
    return s;
}
static void L09_cross_entropy_with_unscored_rows(void **state) {
    (void)state;
    used = 0;
    static const int32_t targets[] = {0, -1, 6, 3};
    int64_t n = 4, v = 7;
    ctx c = {.x = normal(n * v), .y = numbers(n, NAN), .ids = targets, .n = n, .d = v};
    double *dl = copy(c.x, n * v), *losses = numbers(n, NAN);
    assert_int_equal(ops->cross_entropy(dev, losses, ida_act_of(dl), targets, n, v, 0.37), IDA_OK);
    check("dlogits", entropy_loss, &c, c.x, n * v, dl, NULL);
    entropy_loss(&c);
    assert_unchanged("losses with a gradient", losses, c.y, n);
    assert_true(losses[1] == 0.0 && losses[0] > 0.0);
    double *only = copy(c.x, n * v);
    assert_int_equal(ops->cross_entropy(dev, NULL, ida_act_of(only), targets, n, v, 0.37), IDA_OK);
    assert_unchanged("dlogits without losses", only, dl, n * v);
}

static void sqsum_is_the_sum_of_squares(void **state) {
    (void)state;
    double x[] = {3.0, -4.0, 12.0}, sum = NAN;
    assert_int_equal(ops->sqsum(dev, &sum, x, &(ida_span){0, 3}, 1), IDA_OK);
    assert_true(sum == 169.0);
    assert_int_equal(ops->sqsum(dev, &sum, x, &(ida_span){0, 0}, 1), IDA_OK);
    assert_true(sum == 0.0);
    x[1] = INFINITY;
    ops->sqsum(dev, &sum, x, &(ida_span){0, 3}, 1);
    assert_true(!isfinite(sum));
    x[1] = NAN;
    ops->sqsum(dev, &sum, x, &(ida_span){0, 3}, 1);
    assert_true(!isfinite(sum));
}

/* With one constant gradient g, bias correction makes m = g and v = g^2 exactly at every step: p moves by
 * lr (g / (|g| + eps) + wd p), whatever the betas. */
static void adamw_with_a_constant_gradient_moves_by_its_sign(void **state) {
    (void)state;
    double p = 2.0, m = 0.0, v = 0.0, g = -0.25, want = 2.0;
    for (int64_t t = 1; t <= 50; t++) {
        ida_adamw_args a = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1, .gscale = 2.0, .t = t};
        assert_int_equal(ops->adamw(dev, &p, &m, &v, &g, 1, &a), IDA_OK);
        want -= 0.01 * (-0.5 / (0.5 + 1e-3) + 0.1 * want);
        assert_true(fabs(p - want) < 1e-12);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(L09_embed),
        cmocka_unit_test(L09_linear_every_option),
        cmocka_unit_test(L09_rmsnorm),
        cmocka_unit_test(L09_headnorm_with_and_without_bias),
        cmocka_unit_test(L09_featmap),
        cmocka_unit_test(L09_swiglu_and_its_aliases),
        cmocka_unit_test(L11_conv_every_option_with_empty_sequences),
        cmocka_unit_test(L11_rope_sign_minus_one_is_the_gradient),
        cmocka_unit_test(L11_stream_every_choice_of_parts),
        cmocka_unit_test(L11_attention_grouped_with_empty_sequences),
        cmocka_unit_test(L09_cross_entropy_with_unscored_rows),
        cmocka_unit_test(sqsum_is_the_sum_of_squares),
        cmocka_unit_test(adamw_with_a_constant_gradient_moves_by_its_sign),
    };
    return cmocka_run_group_tests_name("ref_grads", tests, NULL, NULL);
}
