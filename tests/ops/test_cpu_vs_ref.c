/* Every op of src/ops/cpu on every instruction set this machine has, against ref on the same data, and bit-equal on one and two
 * threads. All memory ends at an unreadable page, so a read or write past a tensor's end is a fault.
 * Tolerances are over a tensor's largest magnitude, or over the size of the terms where these cancel (a gradient that is
 * exactly 0), in EPS (half a unit in the last place). ref is exact but for its last
 * rounding. Elementwise ops: a few roundings and an exp of 2 units. A sum of n random terms in fp32 errs by about sqrt(n)/2 EPS;
 * 8 + 4 sqrt(n) is allowed. Matrix products and attention: twice the error of a naive fp32 loop on the same data. */
#include "ops/ops_test.h"

#define SUM(n) ((8.0 + 4.0 * sqrt((double)(n))) * EPS)

static void ok(ida_status st) {
    if (st != IDA_OK) fail_msg("%s", ida_last_error());
}

/* ---------------------------------------------------------------- embed */

static int32_t *some_ids(int64_t n, int64_t vocab, uint64_t stream) {
    int32_t *ids = guarded((size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(ida_uniform(IDA_STREAM_TEST, stream, (uint64_t)i) * (double)vocab);
    return ids;
}
static void run_embed(const ida_device *dev, result *r, const shape *s) {
    int64_t vocab = 13;
    int32_t *ids = some_ids(s->n, vocab, 1);
    const ida_matrix table = ida_matrix_of(dev, uniform(vocab * s->d, 2), vocab, s->d);
    ok(dev->ops->embed_fwd(dev, ida_act_of(out_set(r, "y", s->n * s->d, 0.0)), ids, &table, s->n));
    ok(dev->ops->embed_bwd(dev, out_add(r, "dtable", vocab * s->d, EPS), ids, ida_act_of(uniform(s->n * s->d, 3)), s->n, vocab,
                           s->d));
}

/* ---------------------------------------------------------------- linear */

/* Tolerance of a tensor: twice the error of the naive fp32 result. */
static double twice(const float *naive, const float *ref, int64_t n) {
    double top = 1e-30, worst = 0.0;
    for (int64_t i = 0; i < n; i++) {
        top = fmax(top, fabs((double)ref[i]));
        worst = fmax(worst, fabs((double)naive[i] - (double)ref[i]));
    }
    return 2.0 * worst / top + 4.0 * EPS;
}
/* c [m,n] += sum_k a(i,k) b(k,j), elements at a[i*ai + k*ak], b[k*bk + j*bj]; fp32, in order of k. */
static void naive_product(float *c, const float *a, int64_t ai, int64_t ak, const float *b, int64_t bk, int64_t bj, int64_t m,
                          int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            volatile float s = c[i * n + j];
            for (int64_t l = 0; l < k; l++) s = s + a[i * ai + l * ak] * b[l * bk + j * bj];
            c[i * n + j] = s;
        }
}
static void run_linear(const ida_device *dev, result *r, const shape *s) {
    int64_t n = s->n, in = s->d, out = s->h;
    bool add = s->variant;
    float *x = uniform(n * in, 1), *w = uniform(out * in, 2), *dy = uniform(n * out, 3);
    float *y = add ? out_add(r, "y", n * out, 0.0) : out_set(r, "y", n * out, 0.0);
    float *dx = add ? out_add(r, "dx", n * in, 0.0) : out_set(r, "dx", n * in, 0.0), *dw = out_add(r, "dw", out * in, 0.0);
    bool naive = dev == &ida_ref_device;
    float *y0 = floats(n * out, 0.0f), *dx0 = floats(n * in, 0.0f), *dw0 = floats(out * in, 0.0f);
    if (add) memcpy(y0, y, (size_t)(n * out) * sizeof *y);
    if (add) memcpy(dx0, dx, (size_t)(n * in) * sizeof *dx);
    memcpy(dw0, dw, (size_t)(out * in) * sizeof *dw);
    const ida_matrix m = ida_matrix_of(dev, w, out, in);
    ok(dev->ops->linear_fwd(dev, ida_act_of(y), ida_act_of(x), &m, ida_act_of(add ? y : NULL), n));
    ok(dev->ops->linear_bwd(dev, ida_act_of(dx), dw, ida_act_of(dy), ida_act_of(x), &m, n, add));
    if (!naive) return;
    naive_product(y0, x, in, 1, w, 1, in, n, out, in);
    naive_product(dx0, dy, out, 1, w, in, 1, n, in, out);
    naive_product(dw0, dy, 1, out, x, in, 1, out, in, n);
    r->t[0].tol = twice(y0, y, n * out);
    r->t[1].tol = twice(dx0, dx, n * in);
    r->t[2].tol = twice(dw0, dw, out * in);
}

/* ---------------------------------------------------------------- norms and elementwise */

static void run_rmsnorm(const ida_device *dev, result *r, const shape *s) {
    int64_t n = s->n, d = s->d;
    float *x = uniform(n * d, 1), *g = uniform(d, 2), *dy = uniform(n * d, 3), *rstd = out_set(r, "rstd", n, 4.0 * EPS);
    float *dx = out_add(r, "dx", n * d, SUM(d));
    ok(dev->ops->rmsnorm_fwd(dev, ida_act_of(out_set(r, "y", n * d, 4.0 * EPS)), rstd, ida_act_of(x), g, n, d, 1e-5));
    ok(dev->ops->rmsnorm_bwd(dev, ida_act_of(dx), out_add(r, "dg", d, SUM(n)), ida_act_of(dy), ida_act_of(x), g, rstd, n, d));
    r->t[1].terms = (double)largest(rstd, n); /* rstd g dy, less its part along x */
}
/* Two products, one of them gated. */
static void run_project(const ida_device *dev, result *r, const shape *s) {
    int64_t n = s->n, d = s->d, h = s->h;
    float *x = uniform(n * d, 1);
    const ida_matrix w = ida_matrix_of(dev, uniform(h * d, 3), h, d), gate_w = ida_matrix_of(dev, uniform(h * d, 4), h, d);
    ida_product p[2] = {{.w = &w}, {.w = &w, .gate_w = &gate_w, .gate = ida_act_of(floats(n * h, NAN))}};
    ida_project_args a = {.x = ida_act_of(x), .gain = uniform(d, 2), .n = n, .eps = 1e-5};
    a.xn = ida_act_of(floats(n * d, NAN)), a.rstd = floats(n, NAN);
    p[0].y = ida_act_of(out_set(r, "y", n * h, SUM(d)));
    p[1].y = ida_act_of(out_set(r, "gated y", n * h, SUM(d)));
    ok(dev->ops->project(dev, p, 2, &a));
    r->t[0].terms = r->t[1].terms = (double)largest(a.gain, d); /* a normed row's mean square is 1 */
}
static void run_headnorm(const ida_device *dev, result *r, const shape *s) {
    int64_t n = s->n, h = s->h, d = s->d, size = n * h * d;
    float *x = uniform(size, 1), *g = uniform(d, 2), *b = s->variant ? uniform(h * d, 4) : NULL, *dy = uniform(size, 3);
    float *rstd = out_set(r, "rstd", n * h, 4.0 * EPS);
    ok(dev->ops->headnorm_fwd(dev, ida_act_of(out_set(r, "y", size, 4.0 * EPS)), rstd, ida_act_of(x), g, b, n, h, d, 1e-5));
    float *db = b ? out_add(r, "db", h * d, SUM(n)) : NULL;
    float *dx = out_set(r, "dx", size, SUM(d));
    r->t[r->n - 1].terms = (double)largest(rstd, n * h);
    ok(dev->ops->headnorm_bwd(dev, ida_act_of(dx), out_add(r, "dg", d, SUM(n * h)), db, ida_act_of(dy), ida_act_of(x), g, rstd,
                              n, h, d));
}
static void run_featmap(const ida_device *dev, result *r, const shape *s) {
    int64_t n = s->n, h = s->h, d = s->d, size = n * h * d;
    float *x = uniform(size, 1), *dy = uniform(size, 3), *rinv = out_set(r, "rinv", n * h, 8.0 * EPS);
    float *dx = out_set(r, "dx", size, 16.0 * EPS + SUM(d));
    for (int64_t i = 0; i < size; i++) x[i] *= 6.0f;
    ok(dev->ops->featmap_fwd(dev, ida_act_of(out_set(r, "y", size, 16.0 * EPS)), rinv, ida_act_of(x), n, h, d, 1e-6));
    ok(dev->ops->featmap_bwd(dev, ida_act_of(dx), ida_act_of(dy), ida_act_of(x), rinv, n, h, d));
    r->t[1].terms = (double)largest(rinv, n * h);
}
static void run_swiglu(const ida_device *dev, result *r, const shape *s) {
    int64_t n = s->n * s->d;
    float *g = uniform(n, 1), *u = uniform(n, 2), *dy = uniform(n, 3);
    for (int64_t i = 0; i < n; i++) g[i] *= i % 7 == 0 ? 100.0f : 5.0f;
    ok(dev->ops->swiglu_fwd(dev, ida_act_of(out_set(r, "y", n, 12.0 * EPS)), ida_act_of(g), ida_act_of(u), n));
    ok(dev->ops->swiglu_bwd(dev, ida_act_of(out_set(r, "dg", n, 16.0 * EPS)), ida_act_of(out_set(r, "du", n, 12.0 * EPS)),
                            ida_act_of(dy), ida_act_of(g), ida_act_of(u), n));
    float *y = out_set(r, "y over g", n, 12.0 * EPS), *dg = out_set(r, "dg over dy", n, 16.0 * EPS), *du = floats(n, NAN);
    memcpy(y, g, (size_t)n * sizeof *y);
    memcpy(dg, dy, (size_t)n * sizeof *dg);
    ok(dev->ops->swiglu_fwd(dev, ida_act_of(y), ida_act_of(y), ida_act_of(u), n));
    ok(dev->ops->swiglu_bwd(dev, ida_act_of(dg), ida_act_of(du), ida_act_of(dg), ida_act_of(g), ida_act_of(u), n));
}
static void run_adamw(const ida_device *dev, result *r, const shape *s) {
    int64_t n = s->n * s->d;
    float *p = out_add(r, "p", n, 8.0 * EPS), *m = out_add(r, "m", n, 4.0 * EPS), *v = out_add(r, "v", n, 4.0 * EPS),
          *g = uniform(n, 1);
    ida_adamw_args a = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .gscale = 0.5, .t = 3};
    for (int64_t i = 0; i < n; i++) v[i] = fabsf(v[i]);
    ok(dev->ops->adamw(dev, p, m, v, g, n, &a));
}
static void run_cross_entropy(const ida_device *dev, result *r, const shape *s) {
    int64_t n = s->n, v = s->d;
    int32_t *targets = some_ids(n, v, 5);
    float *logits = out_add(r, "dlogits", n * v, s->variant ? SUM(1) : 0.0);
    float *losses = out_set(r, "losses", n, 8.0 * EPS);
    for (int64_t i = 0; i < n * v; i++) logits[i] *= 9.0f;
    for (int64_t i = 0; i < n; i += 3) targets[i] = -1;
    ok(dev->ops->cross_entropy(dev, losses, ida_act_of(logits), targets, n, v, s->variant ? 0.125 : 0.0));
    r->t[0].terms = 0.125; /* p - 1 */
    r->t[1].terms = 9.0;   /* the logits */
}

/* ---------------------------------------------------------------- ops over sequences */

enum { LAYOUTS = 5 };
/* 0: one sequence; 1: single tokens; 2: pieces with empty ones; 3, 4: empty at the start, at the end. */
static ida_seqs layout(int64_t n, int64_t kind) {
    static int64_t cu[4096], pos0[4096];
    int64_t s = 0;
    cu[0] = 0;
    if (kind == 3) cu[++s] = 0;
    for (int64_t at = 0, i = 0; at < n; i++) {
        int64_t step = kind == 0 ? n : kind == 1 ? 1 : (i * 37) % 90;
        at = at + step < n ? at + step : n;
        cu[++s] = at;
    }
    if (kind == 4 || s == 0) cu[++s] = n;
    for (int64_t i = 0; i < s; i++) pos0[i] = i * 1000 % 4096;
    return (ida_seqs){s, cu, pos0};
}
static void run_conv(const ida_device *dev, result *r, const shape *s) {
    ida_seqs q = layout(s->n, s->g);
    int64_t n = s->n, d = s->d, stride = 3 * d + 5, states = q.n * stride;
    bool in = s->variant & 1, out = s->variant & 2;
    float *x = uniform(n * d, 1), *w = uniform(4 * d, 2), *b = uniform(d, 3), *dy = uniform(n * d, 4), *si = uniform(states, 5),
          *dso = uniform(states, 6);
    float *so = out_add(r, "state_out", states, 0.0), *dsi = out_add(r, "dstate_in", states, 12.0 * EPS);
    ok(dev->ops->conv_fwd(dev, ida_act_of(out_set(r, "y", n * d, 12.0 * EPS)), out ? so : NULL, ida_act_of(x), w, b,
                          in ? si : NULL, stride, &q, d));
    ida_conv_bwd_args a = {ida_act_of(out_set(r, "dx", n * d, 12.0 * EPS)),
                           out_add(r, "dw", 4 * d, SUM(n)),
                           out_add(r, "db", d, SUM(n)),
                           in ? dsi : NULL,
                           ida_act_of(dy),
                           out ? dso : NULL,
                           ida_act_of(x),
                           w,
                           in ? si : NULL,
                           stride,
                           d};
    ok(dev->ops->conv_bwd(dev, &a, &q));
    float *over = out_add(r, "state in place", states, 0.0);
    ok(dev->ops->conv_fwd(dev, ida_act_of(floats(n * d, NAN)), over, ida_act_of(x), w, b, over, stride, &q, d));
}
static void run_rope(const ida_device *dev, result *r, const shape *s) {
    ida_seqs q = layout(s->n, s->g);
    int64_t far[4096], size = s->n * s->h * s->d;
    static const int64_t start[] = {0, (1 << 24) - 30, (int64_t)1 << 40, (int64_t)1 << 53};
    for (int64_t i = 0; i < q.n; i++) far[i] = start[s->variant] - (s->variant == 3 ? s->n : 0) + (s->variant ? 0 : q.pos0[i]);
    q.pos0 = far;
    float *x = uniform(size, 1), *y = out_set(r, "y", size, 4.0 * EPS), *over = out_set(r, "y over x", size, 4.0 * EPS);
    memcpy(over, x, (size_t)size * sizeof *x);
    ok(dev->ops->rope(dev, ida_act_of(y), ida_act_of(x), &q, s->h, s->d, 10000.0, 1));
    ok(dev->ops->rope(dev, ida_act_of(over), ida_act_of(over), &q, s->h, s->d, 10000.0, -1));
}

/* Bits of the variant: convolution, RoPE, feature map, head norm; the last: with a bias and a state before the first token.
 * Errors are those of the parts added up. */
static void run_stream(const ida_device *dev, result *r, const shape *s) {
    ida_seqs q = layout(s->n, s->g);
    const int64_t n = s->n, h = s->h, d = s->d, all = n * h * d, stride = 3 * h * d + 3, states = q.n * stride;
    const bool conv = s->variant & 1, norm = s->variant & 8, carried = s->variant & 16;
    float *w = uniform(4 * h * d, 2), *b = uniform(h * d, 3), *in = uniform(states, 4);
    float *gain = uniform(d, 5), *bias = uniform(h * d, 6);
    float *out = out_add(r, "state_out", states, 0.0);
    ida_stream_args a = {.h = h, .d = d, .x = ida_act_of(uniform(all, 1)), .stride = stride, .norm_eps = 1e-5};
    if (conv) a.conv_w = w, a.conv_b = b, a.state_in = carried ? in : NULL, a.state_out = out;
    a.rope_theta = s->variant & 2 ? 10000.0 : 0.0;
    a.l2_eps = s->variant & 4 ? 1e-5 : 0.0;
    if (norm) a.gain = gain, a.bias = carried ? bias : NULL;
    ok(dev->ops->stream_fwd(dev, &(ida_stream){ida_act_of(out_set(r, "y", all, 24.0 * EPS)), a}, 1, &q));
    const ida_stream_grads g = {conv ? out_add(r, "dconv_w", 4 * h * d, SUM(n)) : NULL,
                                conv ? out_add(r, "dconv_b", h * d, SUM(n)) : NULL,
                                norm ? out_add(r, "dgain", d, SUM(n * h)) : NULL,
                                a.bias ? out_add(r, "dbias", h * d, SUM(n)) : NULL};
    ok(dev->ops->stream_bwd(dev, ida_act_of(out_set(r, "dx", all, 48.0 * EPS)), ida_act_of(uniform(all, 7)), &a, &g, &q));
}

/* Naive fp32 attention of one sequence, forward and backward, as an error yardstick. */
static void naive_attention(float *o, float *dq, float *dk, float *dv, const float *q, const float *k, const float *v,
                            const float *dout, int64_t len, int64_t h, int64_t g, int64_t d) {
    float *p = floats(len, 0.0f), *dp = floats(len, 0.0f), scale = (float)(1.0 / sqrt((double)d));
    for (int64_t t = 0; t < len; t++)
        for (int64_t j = 0; j < h; j++) {
            int64_t at = (t * h + j) * d, kv = j / (h / g) * d, row = g * d;
            float top = -INFINITY, sum = 0.0f, mean = 0.0f;
            for (int64_t u = 0; u <= t; u++) {
                volatile float dot = 0.0f;
                for (int64_t i = 0; i < d; i++) dot = dot + q[at + i] * k[u * row + kv + i];
                p[u] = dot * scale;
                top = fmaxf(top, p[u]);
            }
            for (int64_t u = 0; u <= t; u++) sum += p[u] = expf(p[u] - top);
            for (int64_t u = 0; u <= t; u++) {
                p[u] /= sum;
                volatile float dot = 0.0f;
                for (int64_t i = 0; i < d; i++) {
                    o[at + i] += p[u] * v[u * row + kv + i];
                    dv[u * row + kv + i] += p[u] * dout[at + i];
                    dot = dot + dout[at + i] * v[u * row + kv + i];
                }
                dp[u] = dot;
                mean += p[u] * dot;
            }
            for (int64_t u = 0; u <= t; u++)
                for (int64_t i = 0; i < d; i++) {
                    dq[at + i] += p[u] * (dp[u] - mean) * scale * k[u * row + kv + i];
                    dk[u * row + kv + i] += p[u] * (dp[u] - mean) * scale * q[at + i];
                }
        }
}
static void run_attention(const ida_device *dev, result *r, const shape *s) {
    ida_seqs c = layout(s->n, s->variant);
    int64_t n = s->n, h = s->h, g = s->g, d = s->d, nq = n * h * d, nk = n * g * d;
    float *q = uniform(nq, 1), *k = uniform(nk, 2), *v = uniform(nk, 3), *dout = uniform(nq, 4);
    for (int64_t i = 0; i < nq; i++) q[i] *= 4.0f;
    float *o = out_set(r, "o", nq, 0.0), *dq = out_set(r, "dq", nq, 0.0), *dk = out_set(r, "dk", nk, 0.0),
          *dv = out_set(r, "dv", nk, 0.0);
    float *lse = out_set(r, "lse", n * h, SUM(d) + 4.0 * EPS);
    ida_attention_args a = {
        .o = ida_act_of(o), .lse = lse, .q = ida_act_of(q), .k = ida_act_of(k), .v = ida_act_of(v), .h = h, .g = g, .d = d};
    ok(dev->ops->attention_fwd(dev, &a, &c));
    ok(dev->ops->attention_bwd(dev, ida_act_of(dq), ida_act_of(dk), ida_act_of(dv), ida_act_of(dout), &a, &c));
    r->t[1].terms = 1.0;                            /* k times dout.v / sqrt(d), less its mean */
    r->t[2].terms = 4.0 * (double)h / (double)g;    /* q likewise, summed over heads */
    r->t[4].terms = 4.0;                 /* q.k / sqrt(d) */
    if (dev != &ida_ref_device) return;
    float *o0 = floats(nq, 0.0f), *dq0 = floats(nq, 0.0f), *dk0 = floats(nk, 0.0f), *dv0 = floats(nk, 0.0f);
    for (int64_t i = 0; i < c.n; i++) {
        int64_t at = c.cu[i] * h * d, kv = c.cu[i] * g * d;
        int mark = n_blocks;
        naive_attention(o0 + at, dq0 + at, dk0 + kv, dv0 + kv, q + at, k + kv, v + kv, dout + at, c.cu[i + 1] - c.cu[i], h, g, d);
        release_from(mark);
    }
    r->t[0].tol = twice(o0, o, nq);
    double saved = 2.0 * EPS * (double)largest(lse, n * h); /* weights are e^(s - lse) with a rounded lse */
    r->t[1].tol = twice(dq0, dq, nq) + saved;
    r->t[2].tol = twice(dk0, dk, nk) + saved;
    r->t[3].tol = twice(dv0, dv, nk) + saved;
}

/* ---------------------------------------------------------------- tests */

static const int64_t counts[] = {0, 1, 2, 3, 7, 64, 65, 131};
static const int64_t widths[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 31, 33, 64, 97};
#define EACH(var, list)                                                                                                          \
    for (size_t i_##var = 0, var##_at = 0; var##_at = i_##var, i_##var < sizeof list / sizeof *list; i_##var++)

static void rows(const char *name, op_fn *fn, int64_t h, int64_t variants) {
    EACH(n, counts)
        EACH(d, widths)
            for (int64_t v = 0; v < variants; v++) check_op(name, fn, &(shape){counts[n_at], widths[d_at], h, 1, v});
    check_op(name, fn, &(shape){1031, 257, h, 1, variants - 1});
    check_op(name, fn, &(shape){5003, 300, h, 1, variants - 1}); /* enough for the most blocks of partial sums */
}
static void embed_matches_ref(void **state) {
    (void)state;
    rows("embed", run_embed, 1, 1);
}
static void rmsnorm_matches_ref(void **state) {
    (void)state;
    rows("rmsnorm", run_rmsnorm, 1, 1);
}
static void project_matches_ref(void **state) {
    (void)state;
    rows("project", run_project, 5, 1);
}
static void headnorm_matches_ref(void **state) {
    (void)state;
    rows("headnorm", run_headnorm, 3, 2);
}
static void featmap_matches_ref(void **state) {
    (void)state;
    rows("featmap", run_featmap, 2, 1);
}
static void swiglu_matches_ref(void **state) {
    (void)state;
    rows("swiglu", run_swiglu, 1, 1);
}
static void adamw_matches_ref(void **state) {
    (void)state;
    rows("adamw", run_adamw, 1, 1);
}
/* Rounded to float, this beta is off by 1.4e-4 of 1 - beta, and so would the mean of many steps be; the rounding of v itself
 * leaves 2e-6. */
static void adamw_keeps_the_digits_of_a_beta_near_one(void **state) {
    (void)state;
    enum { N = 17, STEPS = 30000 };
    for (int isa = 0; isa < IDA_N_ISA; isa++) {
        const ida_device *dev = ida_cpu_device_for((ida_isa)isa);
        float p[N] = {0}, m[N] = {0}, v[N] = {0}, g[N];
        double want = 0;
        uint32_t x = 1;
        if (!dev) continue;
        for (int64_t t = 1; t <= STEPS; t++) {
            x = x * 1664525u + 1013904223u;
            for (int i = 0; i < N; i++) g[i] = (float)(x >> 8) / 16777216.0f;
            want = 0.9999 * want + (1.0 - 0.9999) * (double)g[0] * (double)g[0];
            ida_adamw_args a = {.lr = 0, .beta1 = 0.9, .beta2 = 0.9999, .eps = 1e-8, .gscale = 1, .t = t};
            ok(dev->ops->adamw(dev, p, m, v, g, N, &a));
        }
        for (int i = 0; i < N; i++)
            if (!(fabs((double)v[i] / want - 1) < 2e-5)) fail_msg("%s: v %.9g, in double %.9g", dev->name, (double)v[i], want);
    }
}

static void linear_refuses_sizes_beyond_int(void **state) {
    (void)state;
    const int64_t big = INT64_C(1) << 31;
    float x = 0;
    const ida_device *dev = ida_cpu_device();
    ida_act *y = ida_act_of(&x);
    const ida_matrix one = ida_matrix_of(dev, &x, 1, 1), wide = ida_matrix_of(dev, &x, 1, big),
                     tall = ida_matrix_of(dev, &x, big, 1);
    assert_int_equal(dev->ops->linear_fwd(dev, y, y, &one, NULL, big), IDA_E_UNSUPPORTED);
    assert_int_equal(dev->ops->linear_fwd(dev, y, y, &wide, NULL, 9), IDA_E_UNSUPPORTED);
    assert_int_equal(dev->ops->linear_bwd(dev, y, &x, y, y, &tall, 9, false), IDA_E_UNSUPPORTED);
}

/* ref's product and look-up of a weight of any stored type have the bits of the same weight as numbers. */
static void ref_reads_weights_of_every_stored_type(void **state) {
    (void)state;
    enum { ROWS = 4, IN = 64, OUT = 5 };
    const ida_device *dev = &ida_ref_device;
    const int32_t ids[ROWS] = {4, 0, 4, 2};
    int mark = n_blocks;
    for (int t = 0; t < IDA_N_TYPES; t++) {
        float *w = uniform(OUT * IN, 1), *x = uniform(ROWS * IN, 2), *dy = uniform(ROWS * OUT, 3);
        float *y[2] = {floats(ROWS * OUT, NAN), floats(ROWS * OUT, NAN)}, *dx[2] = {floats(ROWS * IN, NAN), floats(ROWS * IN, NAN)},
              *rows[2] = {floats(ROWS * IN, NAN), floats(ROWS * IN, NAN)};
        void *stored = guarded((size_t)ida_type_bytes((ida_type)t, OUT * IN));
        ida_type_from_f32((ida_type)t, stored, w, OUT * IN);
        ida_type_to_f32((ida_type)t, w, stored, OUT * IN);
        const ida_matrix m[2] = {ida_matrix_of(dev, w, OUT, IN), {.data = stored, .type = (ida_type)t, .rows = OUT, .cols = IN}};
        for (int i = 0; i < 2; i++) {
            ok(dev->ops->linear_fwd(dev, ida_act_of(y[i]), ida_act_of(x), &m[i], NULL, ROWS));
            ok(dev->ops->linear_bwd(dev, ida_act_of(dx[i]), NULL, ida_act_of(dy), ida_act_of(x), &m[i], ROWS, false));
            ok(dev->ops->embed_fwd(dev, ida_act_of(rows[i]), ids, &m[i], ROWS));
        }
        assert_same_bits("y", y[1], y[0], ROWS * OUT);
        assert_same_bits("dx", dx[1], dx[0], ROWS * IN);
        assert_same_bits("rows", rows[1], rows[0], ROWS * IN);
        release_from(mark);
    }
}

static void cross_entropy_matches_ref(void **state) {
    (void)state;
    rows("cross_entropy", run_cross_entropy, 1, 2);
    check_op("cross_entropy", run_cross_entropy, &(shape){5, 32003, 1, 1, 1});
}

static void linear_matches_ref_from_one_row_to_many_tiles(void **state) {
    (void)state;
    static const int64_t n[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 17, 65}, dims[] = {1, 3, 4, 5, 8, 15, 16, 17, 33, 67};
    EACH(n, n)
        EACH(i, dims)
            for (int64_t add = 0; add < 2; add++)
                check_op("linear", run_linear, &(shape){n[n_at], dims[i_at], dims[(i_at * 7 + n_at) % 10], 1, add});
    check_op("linear", run_linear, &(shape){131, 259, 521, 1, 1});
    check_op("linear", run_linear, &(shape){521, 128, 65, 1, 0});
    check_op("linear", run_linear, &(shape){8, 1021, 300, 1, 0});
}

static void L11_conv_matches_ref_with_and_without_states(void **state) {
    (void)state;
    static const int64_t n[] = {0, 1, 2, 3, 4, 5, 63, 64, 65, 200}, d[] = {1, 3, 16, 17, 40};
    EACH(n, n)
        EACH(d, d)
            for (int64_t kind = 0; kind < LAYOUTS; kind++)
                for (int64_t v = 0; v < 4; v++) check_op("conv", run_conv, &(shape){n[n_at], d[d_at], 1, kind, v});
    check_op("conv", run_conv, &(shape){5003, 300, 1, 2, 3});
}

static void L11_rope_matches_ref_at_any_position(void **state) {
    (void)state;
    static const int64_t n[] = {0, 1, 2, 63, 64, 65, 200}, d[] = {2, 4, 6, 30, 32, 34, 64};
    EACH(n, n)
        EACH(d, d)
            for (int64_t kind = 0; kind < LAYOUTS; kind++)
                for (int64_t v = 0; v < 4; v++) check_op("rope", run_rope, &(shape){n[n_at], d[d_at], 3, kind, v});
}

static void L11_stream_matches_ref_with_every_choice_of_parts(void **state) {
    (void)state;
    static const int64_t n[] = {0, 1, 65, 200}, d[] = {16, 34, 64};
    EACH(n, n)
        EACH(d, d)
            for (int64_t v = 0; v < 32; v++)
                check_op("stream", run_stream, &(shape){n[n_at], d[d_at], 3, (v + (int64_t)n_at) % LAYOUTS, v});
}

/* q, k, v, fewer heads in the last two; one state for in and out. Into out: y of the three, then their states. */
static void qkv(const ida_device *dev, const ida_seqs *q, bool at_once, float *out) {
    enum { D = 6, HQ = 4, HK = 2 };
    const int64_t n = q->cu[q->n], heads[IDA_MOST_STREAMS] = {HQ, HK, HK};
    ida_stream s[IDA_MOST_STREAMS];
    for (int i = 0; i < IDA_MOST_STREAMS; i++, out += n * HQ * D) {
        const int64_t w = heads[i] * D;
        ida_stream_args a = {
            .h = heads[i], .d = D, .x = ida_act_of(uniform(n * w, 1)), .conv_w = uniform(4 * w, 2), .conv_b = uniform(w, 3)};
        a.stride = 3 * w + 1;
        if (i < 2) a.rope_theta = 10000.0, a.l2_eps = 1e-6;
        if (i > 0) a.gain = uniform(D, 4), a.norm_eps = 1e-5;
        if (i == 1) a.bias = uniform(w, 5);
        s[i] = (ida_stream){ida_act_of(out), a};
    }
    for (int i = 0; i < IDA_MOST_STREAMS; i++, out += q->n * (3 * HQ * D + 1)) {
        randomise(out, q->n * s[i].args.stride, 6);
        s[i].args.state_in = s[i].args.state_out = out;
    }
    if (at_once) ok(dev->ops->stream_fwd(dev, s, IDA_MOST_STREAMS, q));
    for (int i = 0; i < IDA_MOST_STREAMS && !at_once; i++) ok(dev->ops->stream_fwd(dev, &s[i], 1, q));
}
static void check_streams(const ida_device *dev) {
    for (int64_t kind = 0; kind < LAYOUTS; kind++)
        for (int64_t n = 0; n < 8; n++) {
            const ida_seqs q = layout(n, kind);
            const int64_t size = IDA_MOST_STREAMS * (24 * n + 73 * q.n);
            int mark = n_blocks;
            float *want = floats(size, 0.0f), *got = floats(size, 0.0f);
            qkv(dev, &q, false, want);
            qkv(dev, &q, true, got);
            assert_same_bits("q, k, v and their states", want, got, size);
            release_from(mark);
        }
}
static void L11_streams_in_one_call_are_those_of_three(void **state) {
    (void)state;
    check_streams(&ida_ref_device);
    on_every_isa(check_streams);
}

static void L18_attention_matches_ref_for_any_head_width(void **state) {
    (void)state;
    static const int64_t d[] = {1, 3, 4, 8, 15, 16, 17, 24, 33, 64, 96, 128, 256, 512};
    EACH(d, d) check_op("attention", run_attention, &(shape){70, d[d_at], 2, 2, 0});
}
static void L11_attention_matches_ref_at_block_edges_and_in_packs(void **state) {
    (void)state;
    static const int64_t n[] = {0, 1, 2, 8, 9, 63, 64, 65, 127, 129, 257};
    static const int64_t heads[][2] = {{1, 1}, {4, 2}, {3, 1}};
    EACH(n, n)
        for (int64_t kind = 0; kind < LAYOUTS; kind++) {
            const int64_t *hg = heads[(n_at + (size_t)kind) % 3];
            check_op("attention", run_attention, &(shape){n[n_at], 20, hg[0], hg[1], kind});
        }
}

static void check_sqsum(const ida_device *dev) {
    static const int64_t n[] = {0, 1, 3, 15, 16, 17, 33, 65535, 65536, 65537, 300001};
    EACH(n, n) {
        int mark = n_blocks;
        float *x = uniform(n[n_at], 1);
        double want = NAN, got = NAN;
        ok(ida_ref_ops.sqsum(&ida_ref_device, &want, x, &(ida_span){0, n[n_at]}, 1));
        ok(dev->ops->sqsum(dev, &got, x, &(ida_span){0, n[n_at]}, 1));
        assert_true(fabs(got - want) <= 1e-12 * want);
        static double first; /* one thread, then two: the same bits */
        if (ida_get_threads() == 1) first = got;
        if (n[n_at] == 300001) assert_true(ida_get_threads() == 1 || memcmp(&first, &got, sizeof got) == 0);
        for (int64_t i = 0; i < n[n_at]; i += 1 + n[n_at] / 3) {
            float keep = x[i];
            x[i] = i % 2 ? NAN : -INFINITY;
            ok(dev->ops->sqsum(dev, &got, x, &(ida_span){0, n[n_at]}, 1));
            assert_true(!isfinite(got));
            x[i] = keep;
        }
        release_from(mark);
    }
}
static void sqsum_matches_ref_and_shows_every_non_finite_element(void **state) {
    (void)state;
    on_every_isa(check_sqsum);
}

static void check_bad_logits(const ida_device *dev) {
    enum { V = 37 };
    static const float bad[] = {NAN, INFINITY};
    for (int b = 0; b < 2; b++)
        for (int64_t at = 0; at < V; at++) {
            int mark = n_blocks;
            float *logits = uniform(2 * V, 1), loss[2];
            int32_t targets[2] = {3, 5};
            logits[at] = bad[b];
            ok(dev->ops->cross_entropy(dev, loss, ida_act_of(logits), targets, 2, V, 1.0));
            assert_true(!isfinite(loss[0]));
            assert_true(isfinite(loss[1]));
            release_from(mark);
        }
}
static void cross_entropy_of_non_finite_logits_is_non_finite(void **state) {
    (void)state;
    on_every_isa(check_bad_logits);
}

static void check_large(const ida_device *dev) {
    enum { D = 33 };
    float *x = floats(D, 3e20f), *g = floats(D, 1.0f), *y = floats(D, NAN), rstd = NAN;
    ok(dev->ops->rmsnorm_fwd(dev, ida_act_of(y), &rstd, ida_act_of(x), g, 1, D, 1e-5));
    for (int i = 0; i < D; i++) assert_true(fabsf(y[i] - 1.0f) < 1e-6f);
    float *logits = floats(D, -3e38f), loss = NAN;
    int32_t target = 7;
    logits[7] = 3e38f;
    ok(dev->ops->cross_entropy(dev, &loss, ida_act_of(logits), &target, 1, D, 0.0));
    assert_true(loss == 0.0f);
}
static void huge_finite_values_do_not_overflow(void **state) {
    (void)state;
    on_every_isa(check_large);
}

static void check_zeros(const ida_device *dev) {
    enum { D = 37 };
    float *x = floats(D, 0), *g = floats(D, 1), *y = floats(D, NAN), *dx = floats(D, 0), *dg = floats(D, 0), rstd = NAN;
    float *p = floats(D, 2), *m = floats(D, 0), *v = floats(D, 0);
    ok(dev->ops->rmsnorm_fwd(dev, ida_act_of(y), &rstd, ida_act_of(x), g, 1, D, IDA_LEAST_EPS));
    ok(dev->ops->rmsnorm_bwd(dev, ida_act_of(dx), dg, ida_act_of(g), ida_act_of(x), g, &rstd, 1, D));
    const ida_adamw_args a = {.lr = 0.5, .beta1 = 0.9, .beta2 = 0.95, .eps = IDA_LEAST_EPS, .weight_decay = 0.5, .gscale = 1,
                              .t = 1};
    ok(dev->ops->adamw(dev, p, m, v, x, D, &a));
    for (int i = 0; i < D; i++) assert_true(y[i] == 0 && isfinite(dx[i]) && dg[i] == 0 && p[i] == 1.5f && m[i] == 0 && v[i] == 0);
    assert_true(isfinite(rstd));
}
static void zeros_stay_zeros_at_the_least_eps(void **state) {
    (void)state;
    on_every_isa(check_zeros);
    check_zeros(&ida_ref_device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_matches_ref),
        cmocka_unit_test(rmsnorm_matches_ref),
        cmocka_unit_test(project_matches_ref),
        cmocka_unit_test(headnorm_matches_ref),
        cmocka_unit_test(featmap_matches_ref),
        cmocka_unit_test(swiglu_matches_ref),
        cmocka_unit_test(adamw_matches_ref),
        cmocka_unit_test(adamw_keeps_the_digits_of_a_beta_near_one),
        cmocka_unit_test(linear_refuses_sizes_beyond_int),
        cmocka_unit_test(ref_reads_weights_of_every_stored_type),
        cmocka_unit_test(cross_entropy_matches_ref),
        cmocka_unit_test(linear_matches_ref_from_one_row_to_many_tiles),
        cmocka_unit_test(L11_conv_matches_ref_with_and_without_states),
        cmocka_unit_test(L11_rope_matches_ref_at_any_position),
        cmocka_unit_test(L11_stream_matches_ref_with_every_choice_of_parts),
        cmocka_unit_test(L11_streams_in_one_call_are_those_of_three),
        cmocka_unit_test(L18_attention_matches_ref_for_any_head_width),
        cmocka_unit_test(L11_attention_matches_ref_at_block_edges_and_in_packs),
        cmocka_unit_test(sqsum_matches_ref_and_shows_every_non_finite_element),
        cmocka_unit_test(cross_entropy_of_non_finite_logits_is_non_finite),
        cmocka_unit_test(huge_finite_values_do_not_overflow),
        cmocka_unit_test(zeros_stay_zeros_at_the_least_eps),
    };
    return cmocka_run_group_tests_name("cpu_vs_ref", tests, NULL, NULL);
}
