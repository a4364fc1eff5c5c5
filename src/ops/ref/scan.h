/* scan.h - what the reference scans (interdomain*.c, s4d.c) share: complex numbers in double whatever `real` is, rows of tensors
 * and states, one step of the recurrence and its derivative. Not part of the op contract.
 * Invariant: powers of Lam are the exponential of (exponent * log Lam), never a repeated product, so a power is as exact
 * at exponent 64 as at exponent 1 and one that is too small is exactly 0. */
#ifndef IDA_OPS_REF_SCAN_H
#define IDA_OPS_REF_SCAN_H

#include <complex.h>
#include <math.h>
#include "ops/ops.h"

typedef double complex cplx;

/* Like CMPLX, which not every pair of compiler and C library has. */
static inline cplx cx(double re, double im) {
    const union {
        double part[2];
        cplx whole;
    } u = {{re, im}};
    return u.whole;
}

/* Re(a b), Re(conj(a) b). */
static inline double re_mul(cplx a, cplx b) { return creal(a) * creal(b) - cimag(a) * cimag(b); }
static inline double re_conj_mul(cplx a, cplx b) { return creal(a) * creal(b) + cimag(a) * cimag(b); }

/* Lam^p for log|Lam| and angle as ssm_log_lam gives them. */
static inline cplx lam_pow(double log_abs, double angle, int64_t p) {
    const double r = exp((double)p * log_abs), t = (double)p * angle;
    return r == 0 ? 0 : cx(r * cos(t), r * sin(t));
}

/* Cuts n numbers off a scratch allocation. */
static inline cplx *take(cplx **at, int64_t n) {
    cplx *p = *at;
    *at += n;
    return p;
}

/* Rows of a state array [.., G,M,W], sequence s, group g. */
static inline void state_load(cplx *x, const ida_state_ref *ref, int64_t s, int64_t g, int64_t mw) {
    const int64_t at = s * ref->stride + g * mw;
    for (int64_t i = 0; i < mw; i++) x[i] = ref->re ? cx((double)ref->re[at + i], (double)ref->im[at + i]) : 0;
}
static inline void state_store(const ida_state_ref *ref, const cplx *x, int64_t s, int64_t g, int64_t mw) {
    if (!ref->re) return;
    const int64_t at = s * ref->stride + g * mw;
    for (int64_t i = 0; i < mw; i++) {
        ref->re[at + i] = (real)creal(x[i]);
        ref->im[at + i] = (real)cimag(x[i]);
    }
}

/* C of one group, [M,M]. */
static inline void c_load(cplx *c, const ida_ssm *ssm, int64_t g, int64_t m) {
    const real *re = ssm->c_re + g * m * m, *im = ssm->c_im + g * m * m;
    for (int64_t i = 0; i < m * m; i++) c[i] = cx((double)re[i], (double)im[i]);
}
static inline void c_grad_add(const ida_ssm_grads *d, const cplx *dc, int64_t g, int64_t m) {
    real *re = d->c_re + g * m * m, *im = d->c_im + g * m * m;
    for (int64_t i = 0; i < m * m; i++) {
        re[i] = (real)((double)re[i] + creal(dc[i]));
        im[i] = (real)((double)im[i] + cimag(dc[i]));
    }
}

/* z_t = [k_t ; v_t] of group (or head) g of `groups`. */
static inline void z_load(double *z, const ida_act *ka, const ida_act *va, int64_t t, int64_t g, int64_t groups, int64_t r,
                          int64_t d) {
    const real *k = ida_act_real(ka), *v = ida_act_real(va);
    for (int64_t i = 0; i < r; i++) z[i] = (double)k[(t * groups + g) * r + i];
    for (int64_t i = 0; i < d; i++) z[r + i] = (double)v[(t * groups + g) * d + i];
}
static inline void dz_store(ida_act *dka, ida_act *dva, const double *dz, int64_t t, int64_t g, int64_t groups, int64_t r,
                            int64_t d) {
    real *dk = ida_act_real(dka), *dv = ida_act_real(dva);
    for (int64_t i = 0; i < r; i++) dk[(t * groups + g) * r + i] = (real)dz[i];
    for (int64_t i = 0; i < d; i++) dv[(t * groups + g) * d + i] = (real)dz[r + i];
}

/* Lam, Bbar of one group; t lends room for 4 M doubles. */
static inline void lam_load(cplx *lam, cplx *b, double *t, const ida_ssm *ssm, int64_t g, int64_t m) {
    IDA_REF(ssm_discretize)(ssm, g, m, t, t + m, t + 2 * m, t + 3 * m);
    for (int64_t i = 0; i < m; i++) {
        lam[i] = cx(t[i], t[m + i]);
        b[i] = cx(t[2 * m + i], t[3 * m + i]);
    }
}

/* Two complex rows [M] as the four rows of doubles that ssm_*_bwd take. */
static inline void pack_rows(double *t, const cplx *u, const cplx *v, int64_t m) {
    for (int64_t i = 0; i < m; i++) {
        t[i] = creal(u[i]);
        t[m + i] = cimag(u[i]);
        t[2 * m + i] = creal(v[i]);
        t[3 * m + i] = cimag(v[i]);
    }
}

/* X = Lam (.) X_prev + Bbar z^T; x may be x_prev. */
static inline void state_step(cplx *x, const cplx *x_prev, const cplx *lam, const cplx *b, const double *z, int64_t m,
                              int64_t width) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < width; j++) x[i * width + j] = lam[i] * x_prev[i * width + j] + b[i] * z[j];
}

/* The same backwards: dx becomes the gradient of X_prev; dz "=", dlam and db "+=". */
static inline void state_step_bwd(cplx *dx, double *dz, cplx *dlam, cplx *db, const cplx *x_prev, const cplx *lam, const cplx *b,
                                  const double *z, int64_t m, int64_t width) {
    for (int64_t j = 0; j < width; j++) dz[j] = 0;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < width; j++) {
            const cplx g = dx[i * width + j];
            db[i] += g * z[j];
            dz[j] += re_conj_mul(b[i], g);
            dlam[i] += conj(x_prev[i * width + j]) * g;
            dx[i * width + j] = conj(lam[i]) * g;
        }
    }
}

/* Many steps at once: X <- Lam^len X + sum_j Bbar Lam^(len-1-j) z_j^T; lag [len+1,M] = the powers of Lam, z [len,W]. */
static inline void state_advance(cplx *x, const cplx *lag, const cplx *b, const double *z, int64_t m, int64_t width,
                                 int64_t len) {
    for (int64_t i = 0; i < m; i++) {
        for (int64_t n = 0; n < width; n++) {
            cplx sum = lag[len * m + i] * x[i * width + n];
            for (int64_t j = 0; j < len; j++) sum += b[i] * lag[(len - 1 - j) * m + i] * z[j * width + n];
            x[i * width + n] = sum;
        }
    }
}

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t longest_seq(const ida_seqs *seqs) {
    int64_t n = 0;
    for (int64_t s = 0; s < seqs->n; s++)
        if (seqs->cu[s + 1] - seqs->cu[s] > n) n = seqs->cu[s + 1] - seqs->cu[s];
    return n;
}

#endif
