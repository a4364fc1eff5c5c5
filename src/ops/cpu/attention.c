/* attention.c - causal softmax attention in blocks of 64 queries x 64 keys with a running maximum (forward) and the saved
 * log-sum-exp (backward); never N x N. Forward tasks are (sequence, head, 256 queries); up to FEW queries of a sequence (decode)
 * read the keys row by row instead. Backward tasks are (sequence, head); the heads of a group are added in order afterwards.
 * Invariant: blocks are counted from the sequence's first key, so a result depends on the sequence alone. Rows are padded with
 * zeros to whole vectors in scratch; a masked score is -inf and its weight exactly 0. */
#include "ops/cpu/cpu_ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "ops/cpu/simd.h"

#if IDA_VL == 16
enum { MR = 8, NV = 2 };
#else
enum { MR = 4, NV = 2 };
#endif
enum { BLOCK = 64, SPAN = 4 * BLOCK, FEW = 8 };

/* c [mr, nv vectors] (+)= a b over k terms: a at a[i * ars + l * acs], b at b[l * ldb + j]. */
IDA_INLINE void tile(int mr, int nv, float *c, int64_t ldc, const float *a, int64_t ars, int64_t acs, const float *b,
                     int64_t ldb, int64_t k, bool add) {
    vf s[MR][NV];
    IDA_UNROLL
    for (int i = 0; i < mr; i++)
        IDA_UNROLL
        for (int j = 0; j < nv; j++) s[i][j] = add ? vf_load(c + i * ldc + j * IDA_VL) : vf_zero();
    for (int64_t l = 0; l < k; l++) {
        vf bv[NV];
        IDA_UNROLL
        for (int j = 0; j < nv; j++) bv[j] = vf_load(b + l * ldb + j * IDA_VL);
        IDA_UNROLL
        for (int i = 0; i < mr; i++) {
            vf av = vf_set1(a[i * ars + l * acs]);
            IDA_UNROLL
            for (int j = 0; j < nv; j++) s[i][j] += av * bv[j];
        }
    }
    IDA_UNROLL
    for (int i = 0; i < mr; i++)
        IDA_UNROLL
        for (int j = 0; j < nv; j++) vf_store(c + i * ldc + j * IDA_VL, s[i][j]);
}

/* c [m, n] (+)= a b; n is a multiple of IDA_VL. */
static void matmul(float *c, int64_t ldc, const float *a, int64_t ars, int64_t acs, const float *b, int64_t ldb, int64_t m,
                   int64_t n, int64_t k, bool add) {
    int64_t i = 0;
    for (; i + MR <= m; i += MR) {
        int64_t j = 0;
        for (; j + NV * IDA_VL <= n; j += NV * IDA_VL)
            tile(MR, NV, c + i * ldc + j, ldc, a + i * ars, ars, acs, b + j, ldb, k, add);
        if (j < n) tile(MR, 1, c + i * ldc + j, ldc, a + i * ars, ars, acs, b + j, ldb, k, add);
    }
    for (; i < m; i++) {
        int64_t j = 0;
        for (; j + NV * IDA_VL <= n; j += NV * IDA_VL)
            tile(1, NV, c + i * ldc + j, ldc, a + i * ars, ars, acs, b + j, ldb, k, add);
        if (j < n) tile(1, 1, c + i * ldc + j, ldc, a + i * ars, ars, acs, b + j, ldb, k, add);
    }
}

/* dst [n, dp] = src rows times f, zeros from d to dp. */
static void pack_rows(float *dst, const float *src, int64_t n, int64_t stride, int64_t d, int64_t dp, float f) {
    vf fv = vf_set1(f);
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < dp; i += IDA_VL)
            vf_store(dst + t * dp + i, fv * vf_load_n(src + t * stride + i, ida_min(IDA_VL, d - i)));
}

/* dst [d, BLOCK] = src rows transposed, zeros from n to BLOCK. */
static void pack_columns(float *dst, const float *src, int64_t n, int64_t stride, int64_t d) {
    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < d; i++) dst[i * BLOCK + t] = src[t * stride + i];
    for (int64_t i = 0; n < BLOCK && i < d; i++) memset(dst + i * BLOCK + n, 0, (size_t)(BLOCK - n) * sizeof *dst);
}

/* x[0..valid) kept, x[valid..n) = fill; n a multiple of IDA_VL. */
static void mask_tail(float *x, int64_t valid, int64_t n, float fill) {
    for (int64_t i = valid; i < n; i++) x[i] = fill;
}

typedef struct attn_args {
    const ida_attention_args *a;
    const ida_seqs *seqs;
    const int64_t *first;          /* [S+1] first task of each sequence (forward) */
    float *scratch;                /* per worker */
    int64_t scratch_size, dp, longest;
    float scale;
    const float *dout;             /* backward */
    float *dq, *dk, *dv;           /* dk, dv: per query head when h > g */
    float *dk_out, *dv_out;
} attn_args;

typedef struct keys {              /* the keys and values of one sequence and group */
    const float *k, *v;
    int64_t stride, past;
} keys;

static int64_t seq_len(const ida_seqs *q, int64_t s) { return q->cu[s + 1] - q->cu[s]; }
static int64_t seq_past(const attn_args *x, int64_t s) { return x->a->k_cache && x->seqs->pos0 ? x->seqs->pos0[s] : 0; }

static keys find_keys(const attn_args *x, int64_t s, int64_t head) {
    const ida_attention_args *a = x->a;
    int64_t row = a->g * a->d, at = head / (a->h / a->g) * a->d;
    if (a->k_cache) return (keys){ida_act_real(a->k_cache[s]) + at, ida_act_real(a->v_cache[s]) + at, row, seq_past(x, s)};
    return (keys){ida_act_real(a->k) + x->seqs->cu[s] * row + at, ida_act_real(a->v) + x->seqs->cu[s] * row + at, row, 0};
}

/* One row of scores against a block: running maximum *m and sum *l, weights in place; returns the factor for what was summed
 * before. Only the first n are used. */
static float softmax_step(float *p, int64_t n, float *m, float *l) {
    int64_t np = ida_div_up(n, IDA_VL) * IDA_VL;
    mask_tail(p, n, np, -INFINITY);
    vf top = vf_set1(*m), sum = vf_zero();
    for (int64_t i = 0; i < np; i += IDA_VL) top = vf_max(vf_load(p + i), top);
    float now = vf_hmax(top), factor = now > *m ? expf(*m - now) : 1.0f;
    vf nv = vf_set1(now);
    for (int64_t i = 0; i < np; i += IDA_VL) {
        vf e = vf_exp(vf_load(p + i) - nv);
        sum += e;
        vf_store(p + i, e);
    }
    *l = *l * factor + vf_hsum(sum);
    *m = now;
    return factor;
}

static void scale_row(float *x, int64_t n, float f) {
    vf fv = vf_set1(f);
    for (int64_t i = 0; i < n; i += IDA_VL) vf_store(x + i, vf_load(x + i) * fv);
}

static void finish_row(const attn_args *x, int64_t row, const float *acc, float m, float l) {
    int64_t d = x->a->d;
    float *o = ida_act_real(x->a->o) + row * d;
    vf inv = vf_set1(1.0f / l);
    for (int64_t i = 0; i < d; i += IDA_VL) vf_store_n(o + i, vf_load(acc + i) * inv, ida_min(IDA_VL, d - i));
    if (x->a->lse) x->a->lse[row] = m + logf(l);
}

/* Queries [t, t + n) of a 64-block against the keys [j, j + BLOCK): strips of MR rows stop at the diagonal. */
static void fwd_block(float *acc, float *m, float *l, float *p, const float *q, const float *kt, const float *v, int64_t n,
                      int64_t first_valid, int64_t width, int64_t d, int64_t dp) {
    for (int64_t r = 0; r < n; r += MR) {
        int64_t rows = ida_min(MR, n - r), used = ida_min(width, first_valid + r + rows - 1);
        if (used <= 0) continue;
        matmul(p, BLOCK, q + r * dp, dp, 1, kt, BLOCK, rows, ida_div_up(used, IDA_VL) * IDA_VL, d, false);
        for (int64_t i = r; i < r + rows; i++) {
            int64_t valid = ida_min(width, first_valid + i);
            float *row = p + (i - r) * BLOCK;
            if (valid <= 0) {
                mask_tail(row, 0, used, 0.0f);
                continue;
            }
            float factor = softmax_step(row, valid, m + i, l + i);
            mask_tail(row, valid, used, 0.0f);
            if (factor != 1.0f) scale_row(acc + i * dp, dp, factor);
        }
        matmul(acc + r * dp, dp, p, BLOCK, 1, v, dp, rows, dp, used, true);
    }
}

static void fwd_span(const attn_args *x, float *scratch, int64_t s, int64_t head, int64_t begin, int64_t n) {
    const ida_attention_args *a = x->a;
    int64_t d = a->d, dp = x->dp, row0 = (x->seqs->cu[s] + begin) * a->h + head;
    keys kv = find_keys(x, s, head);
    float *q = scratch, *acc = q + SPAN * dp, *kt = acc + SPAN * dp, *v = kt + BLOCK * dp, *p = v + BLOCK * dp,
          *m = p + MR * BLOCK, *l = m + SPAN;
    pack_rows(q, ida_act_real(a->q) + row0 * d, n, a->h * d, d, dp, x->scale);
    memset(acc, 0, (size_t)(n * dp) * sizeof *acc);
    for (int64_t i = 0; i < n; i++) {
        m[i] = -INFINITY;
        l[i] = 0.0f;
    }
    int64_t n_keys = kv.past + begin + n;
    for (int64_t j = 0; j < n_keys; j += BLOCK) {
        int64_t width = ida_min(BLOCK, n_keys - j);
        pack_columns(kt, kv.k + j * kv.stride, width, kv.stride, d);
        pack_rows(v, kv.v + j * kv.stride, width, kv.stride, d, dp, 1.0f);
        for (int64_t b = 0; b < n; b += BLOCK) /* query b sees keys up to past + begin + b */
            fwd_block(acc + b * dp, m + b, l + b, p, q + b * dp, kt, v, ida_min(BLOCK, n - b), kv.past + begin + b + 1 - j, width,
                      d, dp);
    }
    for (int64_t i = 0; i < n; i++) finish_row(x, row0 + i * a->h, acc + i * dp, m[i], l[i]);
}

/* p[u] = q . k_u for `rows` keys. */
IDA_INLINE void key_dots(int rows, float *p, const float *q, const float *k, int64_t stride, int64_t d) {
    vf s[4];
    IDA_UNROLL
    for (int u = 0; u < rows; u++) s[u] = vf_zero();
    int64_t i = 0;
    for (; i + IDA_VL <= d; i += IDA_VL)
        IDA_UNROLL
        for (int u = 0; u < rows; u++) s[u] += vf_load(q + i) * vf_load(k + u * stride + i);
    for (int u = 0; i < d && u < rows; u++) s[u] += vf_load(q + i) * vf_load_n(k + u * stride + i, d - i);
    IDA_UNROLL
    for (int u = 0; u < rows; u++) p[u] = vf_hsum(s[u]);
}

/* acc = acc f + sum_u p_u v_u for `nv` vectors of a row. */
IDA_INLINE void add_values(int nv, float *acc, float f, const float *p, const float *v, int64_t n, int64_t stride,
                           int64_t lanes) {
    vf s[4];
    IDA_UNROLL
    for (int j = 0; j < nv; j++) s[j] = vf_load(acc + j * IDA_VL) * vf_set1(f);
    for (int64_t u = 0; u < n; u++)
        IDA_UNROLL
        for (int j = 0; j < nv; j++)
            s[j] += vf_set1(p[u]) *
                    (lanes == IDA_VL ? vf_load(v + u * stride + j * IDA_VL) : vf_load_n(v + u * stride + j * IDA_VL, lanes));
    IDA_UNROLL
    for (int j = 0; j < nv; j++) vf_store(acc + j * IDA_VL, s[j]);
}

/* One query, keys row by row, in blocks for the running maximum. */
static void fwd_query(const attn_args *x, float *scratch, int64_t s, int64_t head, int64_t t) {
    const ida_attention_args *a = x->a;
    int64_t d = a->d, dp = x->dp, row = (x->seqs->cu[s] + t) * a->h + head;
    keys kv = find_keys(x, s, head);
    float *q = scratch, *acc = q + dp, *p = acc + dp, m = -INFINITY, l = 0.0f;
    pack_rows(q, ida_act_real(a->q) + row * d, 1, d, d, dp, x->scale);
    memset(acc, 0, (size_t)dp * sizeof *acc);
    for (int64_t j = 0; j <= kv.past + t; j += BLOCK) {
        int64_t n = ida_min(BLOCK, kv.past + t + 1 - j), u = 0, i = 0;
        const float *k = kv.k + j * kv.stride, *v = kv.v + j * kv.stride;
        for (; u + 4 <= n; u += 4) key_dots(4, p + u, q, k + u * kv.stride, kv.stride, d);
        for (; u < n; u++) key_dots(1, p + u, q, k + u * kv.stride, kv.stride, d);
        float f = softmax_step(p, n, &m, &l);
        for (; i + 4 * IDA_VL <= d; i += 4 * IDA_VL) add_values(4, acc + i, f, p, v + i, n, kv.stride, IDA_VL);
        for (; i + IDA_VL <= d; i += IDA_VL) add_values(1, acc + i, f, p, v + i, n, kv.stride, IDA_VL);
        if (i < d) add_values(1, acc + i, f, p, v + i, n, kv.stride, d - i);
    }
    finish_row(x, row, acc, m, l);
}

/* Within a sequence the last spans come first: they see the most keys. */
static void fwd_task(void *arg, int64_t task, int worker) {
    const attn_args *x = arg;
    int64_t s = ida_find_seq(x->first, x->seqs->n, task), at = task - x->first[s], len = seq_len(x->seqs, s);
    int64_t begin = (ida_div_up(len, SPAN) - 1 - at / x->a->h) * SPAN, head = at % x->a->h;
    float *scratch = x->scratch + worker * x->scratch_size;
    if (len > FEW) {
        fwd_span(x, scratch, s, head, begin, ida_min(SPAN, len - begin));
        return;
    }
    for (int64_t t = 0; t < len; t++) fwd_query(x, scratch, s, head, t);
}

static void append_cache(const ida_attention_args *a, const ida_seqs *seqs) {
    int64_t row = a->g * a->d;
    for (int64_t s = 0; s < seqs->n; s++) {
        size_t bytes = (size_t)(seq_len(seqs, s) * row) * sizeof(float);
        int64_t at = (seqs->pos0 ? seqs->pos0[s] : 0) * row;
        if (bytes == 0) continue;
        memcpy(ida_act_real(a->k_cache[s]) + at, ida_act_real(a->k) + seqs->cu[s] * row, bytes);
        memcpy(ida_act_real(a->v_cache[s]) + at, ida_act_real(a->v) + seqs->cu[s] * row, bytes);
    }
}

ida_status IDA_CPU(attention_fwd)(const ida_device *dev, const ida_attention_args *a, const ida_seqs *seqs) {
    (void)dev;
    assert(a->h % a->g == 0);
    int64_t dp = ida_div_up(a->d, IDA_VL) * IDA_VL;
    attn_args x = {.a = a, .seqs = seqs, .dp = dp, .scale = (float)(1.0 / sqrt((double)a->d))};
    x.scratch_size = (2 * SPAN + 2 * BLOCK) * dp + MR * BLOCK + 2 * SPAN;
    int64_t *first = NULL;
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(IDA_ALLOC(first, seqs->n + 1, "attention tasks"));
    IDA_TRY_GOTO(IDA_ALLOC(x.scratch, ida_workers() * x.scratch_size, "attention blocks"));
    first[0] = 0;
    for (int64_t s = 0; s < seqs->n; s++) first[s + 1] = first[s] + ida_div_up(seq_len(seqs, s), SPAN) * a->h;
    x.first = first;
    if (a->k_cache) append_cache(a, seqs);
    ida_parallel(first[seqs->n], fwd_task, &x);
out:
    ida_free(x.scratch);
    ida_free(first);
    return st;
}

typedef struct bwd_scratch {       /* of one worker; T = the longest sequence, rounded up to whole blocks */
    float *q, *dout, *dq;          /* [T, dp] */
    float *delta;                  /* [T]: sum_i dout_i o_i = sum_j p_j dp_j */
    float *kt, *vt, *k;            /* [d, BLOCK], [d, BLOCK], [BLOCK, dp] */
    float *dk, *dv;                /* [BLOCK, dp] */
    float *p, *ds;                 /* [BLOCK, BLOCK] */
} bwd_scratch;

static bwd_scratch split_scratch(float *f, int64_t t, int64_t dp) {
    bwd_scratch w;
    w.q = f;
    w.dout = w.q + t * dp;
    w.dq = w.dout + t * dp;
    w.delta = w.dq + t * dp;
    w.kt = w.delta + t;
    w.vt = w.kt + BLOCK * dp;
    w.k = w.vt + BLOCK * dp;
    w.dk = w.k + BLOCK * dp;
    w.dv = w.dk + BLOCK * dp;
    w.p = w.dv + BLOCK * dp;
    w.ds = w.p + BLOCK * BLOCK;
    return w;
}

static int64_t bwd_scratch_size(int64_t t, int64_t dp) { return 3 * t * dp + t + 5 * BLOCK * dp + 2 * BLOCK * BLOCK; }

/* o = sum_j p_j v_j, p = e^(s - lse):  dv_j = p_j do,  ds_j = p_j (do.v_j - do.o),  s_j = scale q.k_j.
 * Queries [t, t + n) against the packed block of `width` keys at j. */
static void bwd_block(const attn_args *x, const bwd_scratch *w, int64_t row0, int64_t t, int64_t n, int64_t j, int64_t width) {
    int64_t d = x->a->d, dp = x->dp, wp = ida_div_up(width, IDA_VL) * IDA_VL;
    vf scale = vf_set1(x->scale);
    matmul(w->p, BLOCK, w->q + t * dp, dp, 1, w->kt, BLOCK, n, wp, d, false);
    matmul(w->ds, BLOCK, w->dout + t * dp, dp, 1, w->vt, BLOCK, n, wp, d, false);
    for (int64_t i = 0; i < n; i++) {
        float *p = w->p + i * BLOCK, *ds = w->ds + i * BLOCK;
        int64_t valid = ida_min(width, t + i + 1 - j);
        vf lse = vf_set1(x->a->lse[row0 + (t + i) * x->a->h]), delta = vf_set1(w->delta[t + i]);
        for (int64_t c = 0; c < valid; c += IDA_VL) {
            vf e = vf_exp(vf_load(p + c) * scale - lse);
            vf_store(p + c, e);
            vf_store(ds + c, e * (vf_load(ds + c) - delta) * scale);
        }
        mask_tail(p, valid, wp, 0.0f);
        mask_tail(ds, valid, wp, 0.0f);
    }
    matmul(w->dv, dp, w->p, 1, BLOCK, w->dout + t * dp, dp, width, dp, n, true);
    matmul(w->dk, dp, w->ds, 1, BLOCK, w->q + t * dp, dp, width, dp, n, true);
    matmul(w->dq + t * dp, dp, w->ds, BLOCK, 1, w->k, dp, n, dp, width, true);
}

static void unpack_rows(float *dst, const float *src, int64_t n, int64_t stride, int64_t d, int64_t dp) {
    for (int64_t t = 0; t < n; t++) memcpy(dst + t * stride, src + t * dp, (size_t)d * sizeof *dst);
}

static void bwd_task(void *arg, int64_t task, int worker) {
    const attn_args *x = arg;
    const ida_attention_args *a = x->a;
    int64_t s = task / a->h, head = task % a->h, len = seq_len(x->seqs, s), d = a->d, dp = x->dp;
    int64_t row0 = x->seqs->cu[s] * a->h + head;
    if (len == 0) return;
    keys kv = find_keys(x, s, head);
    /* One head per group: straight to the output. Else to this head's own rows of [N,H,D]. */
    bool own = a->h > a->g;
    int64_t out_stride = own ? a->h * d : kv.stride, out_at = own ? row0 * d : x->seqs->cu[s] * kv.stride + head * d;
    bwd_scratch w = split_scratch(x->scratch + worker * x->scratch_size, x->longest, dp);
    pack_rows(w.q, ida_act_real(a->q) + row0 * d, len, a->h * d, d, dp, 1.0f);
    pack_rows(w.dout, x->dout + row0 * d, len, a->h * d, d, dp, 1.0f);
    memset(w.dq, 0, (size_t)(len * dp) * sizeof *w.dq);
    for (int64_t t = 0; t < len; t++) {
        const float *o = ida_act_real(a->o) + (row0 + t * a->h) * d;
        vf sum = vf_zero();
        for (int64_t i = 0; i < d; i += IDA_VL) sum += vf_load(w.dout + t * dp + i) * vf_load_n(o + i, ida_min(IDA_VL, d - i));
        w.delta[t] = vf_hsum(sum);
    }
    for (int64_t j = 0; j < len; j += BLOCK) {
        int64_t width = ida_min(BLOCK, len - j);
        pack_columns(w.kt, kv.k + j * kv.stride, width, kv.stride, d);
        pack_columns(w.vt, kv.v + j * kv.stride, width, kv.stride, d);
        pack_rows(w.k, kv.k + j * kv.stride, width, kv.stride, d, dp, 1.0f);
        memset(w.dk, 0, (size_t)(2 * BLOCK * dp) * sizeof *w.dk);
        for (int64_t t = j; t < len; t += BLOCK) bwd_block(x, &w, row0, t, ida_min(BLOCK, len - t), j, width);
        unpack_rows(x->dk + out_at + j * out_stride, w.dk, width, out_stride, d, dp);
        unpack_rows(x->dv + out_at + j * out_stride, w.dv, width, out_stride, d, dp);
    }
    unpack_rows(x->dq + row0 * d, w.dq, len, a->h * d, d, dp);
}

/* dk, dv of one token: the heads of each group in order. */
static void add_heads(void *arg, int64_t t, int worker) {
    (void)worker;
    const attn_args *x = arg;
    int64_t h = x->a->h, g = x->a->g, d = x->a->d, per = h / g;
    for (int64_t i = 0; i < g * d; i++) {
        int64_t at = (t * h + i / d * per) * d + i % d;
        float k = 0.0f, v = 0.0f;
        for (int64_t j = 0; j < per; j++) {
            k += x->dk[at + j * d];
            v += x->dv[at + j * d];
        }
        x->dk_out[t * g * d + i] = k;
        x->dv_out[t * g * d + i] = v;
    }
}

ida_status IDA_CPU(attention_bwd)(const ida_device *dev, ida_act *dqa, ida_act *dka, ida_act *dva, const ida_act *douta,
                                  const ida_attention_args *a, const ida_seqs *seqs) {
    (void)dev;
    float *dq = ida_act_real(dqa), *dk = ida_act_real(dka), *dv = ida_act_real(dva);
    const float *dout = ida_act_real(douta);
    assert(a->h % a->g == 0 && !a->k_cache && a->lse);
    int64_t n = seqs->cu[seqs->n];
    attn_args x = {.a = a,
                   .seqs = seqs,
                   .dp = ida_div_up(a->d, IDA_VL) * IDA_VL,
                   .scale = (float)(1.0 / sqrt((double)a->d)),
                   .dout = dout,
                   .dq = dq,
                   .dk = dk,
                   .dv = dv,
                   .dk_out = dk,
                   .dv_out = dv};
    for (int64_t s = 0; s < seqs->n; s++) x.longest = ida_max(x.longest, ida_div_up(seq_len(seqs, s), BLOCK) * BLOCK);
    x.scratch_size = bwd_scratch_size(x.longest, x.dp);
    float *per_head = NULL;
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(IDA_ALLOC(x.scratch, ida_workers() * x.scratch_size, "attention_bwd blocks"));
    if (a->h > a->g) {
        int64_t size = n * a->h * a->d;
        IDA_TRY_GOTO(IDA_ALLOC(per_head, 2 * size, "attention_bwd gradients of each head"));
        x.dk = per_head;
        x.dv = per_head + size;
    }
    ida_parallel(seqs->n * a->h, bwd_task, &x);
    if (a->h > a->g) ida_parallel(n, add_heads, &x);
out:
    ida_free(per_head);
    ida_free(x.scratch);
    return st;
}
