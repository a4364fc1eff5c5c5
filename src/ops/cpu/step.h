/* step.h - the parts of the decoding steps that s4d and interdomain share: advancing rows of the state by one token and reading
 * columns out with given coefficients. A state row is W floats (re, im apart); columns are taken by vectors, the last one partly.
 * Invariant: only the W elements of a row are touched, whatever W is. */
#ifndef IDA_OPS_CPU_STEP_H
#define IDA_OPS_CPU_STEP_H

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/smallmm.h"

/* Below this many complex state elements a call runs on the caller's thread: waking another costs more than the work. */
enum { STEP_SERIAL_BELOW = 1 << 15, STEP_BLOCK = 4 };

typedef struct step_mode { vf lr, li, br, bi; } step_mode;

IDA_INLINE vf step_load(const float *p, int64_t n) { return n >= IDA_VL ? vf_load(p) : vf_load_n(p, n); }
IDA_INLINE void step_store(float *p, vf x, int64_t n) {
    if (n >= IDA_VL) vf_store(p, x);
    else vf_store_n(p, x, n);
}

IDA_INLINE step_mode step_mode_of(const ida_ssm_prep *p, int64_t at) {
    return (step_mode){vf_set1(p->lam_re[at]), vf_set1(p->lam_im[at]), vf_set1(p->b_re[at]), vf_set1(p->b_im[at])};
}

/* x <- Lam x + Bbar z, n elements (at most a vector); returns the new value. */
IDA_INLINE void step_advance(float *re, float *im, const float *z, const step_mode *p, int64_t n, vf *xr, vf *xi) {
    const vf r = step_load(re, n), i = step_load(im, n), zv = step_load(z, n);
    *xr = p->lr * r - p->li * i + p->br * zv;
    *xi = p->lr * i + p->li * r + p->bi * zv;
    step_store(re, *xr, n);
    step_store(im, *xi, n);
}

/* o over nv vectors of value columns, the last of them n wide: advances them when `move`, and reads them out. */
IDA_INLINE void step_value_block(float *o, float *re, float *im, const float *v, const ida_ssm_prep *p, int64_t at,
                                 const float *cr, const float *ci, int64_t m, int64_t width, int64_t n, const int nv,
                                 const bool move) {
    vf s[STEP_BLOCK];
    SMM_UNROLL
    for (int b = 0; b < nv; b++) s[b] = vf_zero();
    for (int64_t i = 0; i < m; i++, re += width, im += width) {
        const step_mode md = step_mode_of(p, at + i);
        const vf a = vf_set1(cr[i]), b = vf_set1(ci[i]);
        SMM_UNROLL
        for (int c = 0; c < nv; c++) {
            const int64_t left = c + 1 < nv ? IDA_VL : n;
            vf xr, xi;
            if (move) step_advance(re + c * IDA_VL, im + c * IDA_VL, v + c * IDA_VL, &md, left, &xr, &xi);
            else xr = step_load(re + c * IDA_VL, left), xi = step_load(im + c * IDA_VL, left);
            s[c] = a * xr - b * xi + s[c];
        }
    }
    SMM_UNROLL
    for (int c = 0; c < nv; c++) step_store(o + c * IDA_VL, s[c], c + 1 < nv ? IDA_VL : n);
}

IDA_INLINE void step_values(float *o, float *re, float *im, const float *v, const ida_ssm_prep *p, int64_t at, const float *cr,
                            const float *ci, int64_t m, int64_t width, int64_t d, const bool move) {
    int64_t c = 0;
    for (; c + STEP_BLOCK * IDA_VL <= d; c += STEP_BLOCK * IDA_VL)
        step_value_block(o + c, re + c, im + c, v + c, p, at, cr, ci, m, width, IDA_VL, STEP_BLOCK, move);
    for (; c + IDA_VL <= d; c += IDA_VL) step_value_block(o + c, re + c, im + c, v + c, p, at, cr, ci, m, width, IDA_VL, 1, move);
    if (c < d) step_value_block(o + c, re + c, im + c, v + c, p, at, cr, ci, m, width, d - c, 1, move);
}

#endif
