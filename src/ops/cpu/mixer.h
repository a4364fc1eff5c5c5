/* mixer.h - what the chunked mixers share: padded sizes, tables of powers of Lam, the plan of one call. Private to ops/cpu.
 *
 * Centred powers (docs/method.md section 4): a group's chunk C is the largest power of two within the limit for which
 * |Lam|^-c, c = C/2 being its centre, stays far from overflow. With F~_j = Bbar Lam^(c-j), E_i = Lam^(i-c) and the scaled state
 * X~ = Lam^(c+1) X, all that a chunk does is
 *     a = E (S F~ + Q X~_k)    o = tril(B F~^T) V + B X~_v    X^ = X~ + F~^T Z    X~' = Lam^C X^
 * so one table and one state array serve both ends of the mixer.
 *
 * Layouts. A row of complex numbers over the modes is [re (mp floats) | im (mp floats)], mp = M rounded up to vectors; leading
 * dimensions (ld*) are odd numbers of cache lines. Invariant: padding holds zeros or finite numbers that meet only zeros. */
#ifndef IDA_OPS_CPU_MIXER_H
#define IDA_OPS_CPU_MIXER_H

#include "core/mem.h"
#include "core/threads.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/smallmm.h"

/* Past this many nats |Lam|^-c is not used: e^40 leaves fp32 18 decades on either side. */
#define MIX_MAX_NATS 40.0
enum { MIX_CHUNK = 64 };

typedef struct mix_dims {
    int64_t m, mp, m2, ldm; /* modes; m2 = 2 mp */
    int64_t r, rp, ldr, d, dp, ldd, wp; /* key and value width; wp = rp + dp */
    int64_t rows, ldc;      /* longest chunk that occurs, padded; leading dimension of [rows, rows] */
} mix_dims;

typedef struct mix_table {
    int64_t chunk, centre;
    float *pw;       /* Lam^n at row n + centre, n = -centre..chunk, [.., ldm] */
    float *f, *ft;   /* F~ [pad(chunk), ldm] and its transpose [m2, ldt] */
    float *gg;       /* [m2, ldm] real form of a -> conj(w(a) G); symmetric */
    double *b_re, *b_im; /* Bbar [m] */
} mix_table;

typedef struct mix_plan {
    mix_dims n;
    int64_t groups, ldt;
    int64_t staged_over; /* sequences longer than this are cut over chunks, not over (sequence, group) tasks */
    mix_table *tables;   /* [groups] */
    void *mem;
} mix_plan;

/* Sizes and, in parallel, the tables of every group. Close also after a failure. */
ida_status IDA_CPU(mix_plan_open)(mix_plan *p, const ida_interdomain_args *a, const ida_seqs *seqs);
void IDA_CPU(mix_plan_close)(mix_plan *p);

/* Rows n0..n1 of powers of Lam = exp(log_abs + i angle), [n1-n0+1, ldm], rounded so that |Lam^n| <= 1 for n > 0. Powers are
 * running products in double, rounded once to fp32: 64 double roundings at exponent 64, about 2^-46 relative. tmp: 6 m doubles.
 * Padding columns become 0. */
void IDA_CPU(mix_powers)(float *pw, int64_t ldm, const double *log_abs, const double *angle, int64_t m, int64_t n0, int64_t n1,
                         double *tmp);

/* X' = Lam^e X^ after a chunk of `rows` tokens is the next X~, or after the last chunk the caller's X. */
static inline int64_t mix_exit_power(const mix_table *t, int64_t rows, bool last) { return last ? rows - 1 - t->centre : rows; }
/* The row of Lam^e. */
static inline const float *mix_power(const mix_dims *n, const mix_table *t, int64_t e) {
    return t->pw + (e + t->centre) * n->ldm;
}

static inline int64_t mix_rows_mr(int64_t rows) { return (rows + SMM_MR - 1) / SMM_MR * SMM_MR; }
static inline int64_t mix_seq_len(const ida_seqs *s, int64_t i) { return s->cu[i + 1] - s->cu[i]; }

/* When the longest of the (sequence, group) tasks is more than half of a thread's share, cutting by tasks leaves threads idle. */
static inline int64_t mix_staged_over(const ida_seqs *seqs, int64_t groups, int64_t chunk) {
    const int64_t workers = ida_workers();
    if (workers == 1) return INT64_MAX;
    const int64_t share = seqs->cu[seqs->n] / 2 / workers * groups;
    return share > 4 * chunk ? share : 4 * chunk;
}

/* One term of a product. */
static inline smm_term mix_term(const float *a, int64_t ai, int64_t ak, const float *b, int64_t ldb, int64_t n_k,
                                smm_shape shape) {
    return (smm_term){.a = a, .ai = ai, .ak = ak, .b = b, .ldb = ldb, .n_k = n_k, .shape = shape};
}

/* x <- x t and x <- x conj(t), one complex row after another. ldt 0: the same t for all rows. */
IDA_INLINE void mix_mul_rows(float *x, int64_t ldx, const float *t, int64_t ldt, int64_t rows, int64_t mp, const bool conj) {
    for (int64_t i = 0; i < rows; i++, x += ldx, t += ldt)
        for (int64_t m = 0; m < mp; m += IDA_VL) {
            const vf xr = vf_load(x + m), xi = vf_load(x + mp + m), tr = vf_load(t + m), ti = vf_load(t + mp + m);
            vf_store(x + m, conj ? xr * tr + xi * ti : xr * tr - xi * ti);
            vf_store(x + mp + m, conj ? xi * tr - xr * ti : xi * tr + xr * ti);
        }
}

/* A group's state [M,W] (re, im) of a state array into [rows, ldm] form, transposed: column range w0..w0+n-1 of W to rows. Scaled
 * by the complex row `scale` (NULL = 1). NULL re gives zeros. */
static __attribute__((noinline, unused)) void mix_state_load_t(float *x, const mix_dims *n, const ida_state_ref *ref, int64_t at,
                                                               int64_t w0, int64_t cols, int64_t rows_pad, const float *scale) {
    memset(x, 0, (size_t)(rows_pad * n->ldm) * sizeof *x);
    if (!ref->re) return;
    const int64_t w = n->r + n->d;
    smm_transpose(x, n->ldm, ref->re + at + w0, w, n->m, cols);
    smm_transpose(x + n->mp, n->ldm, ref->im + at + w0, w, n->m, cols);
    if (scale) mix_mul_rows(x, n->ldm, scale, 0, cols, n->mp, false);
}
static __attribute__((noinline, unused)) void mix_state_store_t(const ida_state_ref *ref, int64_t at, int64_t w0, int64_t cols,
                                                                const float *x, const mix_dims *n) {
    const int64_t w = n->r + n->d;
    smm_transpose(ref->re + at + w0, w, x, n->ldm, cols, n->m);
    smm_transpose(ref->im + at + w0, w, x + n->mp, n->ldm, cols, n->m);
}

#endif
