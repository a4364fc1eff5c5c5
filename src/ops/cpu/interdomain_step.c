/* interdomain_step.c - one token for each of S sequences (decoding; ops.h "step"). A group's state is walked once: the key half
 * is advanced and read out with q, then M^2 work turns scores into coefficients, then the value half is advanced and read out.
 * Invariant: a sequence's bits do not depend on its position, its batch mates or the thread count. */
#include <string.h>
#include "core/mem.h"
#include "core/threads.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/step.h"

typedef struct job {
    const ida_interdomain_args *a;
    const ida_ssm_prep *prep;
    int64_t mp;
    float *mem;
    int64_t each; /* per worker: row sums [2][mp][VL], their transpose [2][VL][mp], scores and coefficients [heads][2][mp] each */
} job;

/* Advances n key columns of one mode and adds q x to the row sums. */
IDA_INLINE void key_row(float *re, float *im, const float *k, const float *q, const step_mode *p, int64_t n, float *sum_re,
                        float *sum_im) {
    vf sr = vf_zero(), si = sr, xr, xi;
    int64_t r = 0;
    for (; r + IDA_VL <= n; r += IDA_VL) {
        step_advance(re + r, im + r, k + r, p, IDA_VL, &xr, &xi);
        sr = xr * vf_load(q + r) + sr;
        si = xi * vf_load(q + r) + si;
    }
    if (r < n) {
        step_advance(re + r, im + r, k + r, p, n - r, &xr, &xi);
        sr = xr * vf_load_n(q + r, n - r) + sr;
        si = xi * vf_load_n(q + r, n - r) + si;
    }
    vf_store(sum_re, sr);
    vf_store(sum_im, si);
}

/* The same read-out of a row that has been advanced. */
IDA_INLINE void key_row_again(const float *re, const float *im, const float *q, int64_t n, float *sum_re, float *sum_im) {
    vf sr = vf_zero(), si = sr;
    for (int64_t r = 0; r < n; r += IDA_VL) {
        const vf qv = step_load(q + r, n - r);
        sr = step_load(re + r, n - r) * qv + sr;
        si = step_load(im + r, n - r) * qv + si;
    }
    vf_store(sum_re, sr);
    vf_store(sum_im, si);
}

/* score [mp] = lane sums of the m rows of sum [mp][VL]; turned [VL][mp] is scratch. */
static void sum_lanes(float *score, const float *sum, float *turned, int64_t m, int64_t mp) {
    smm_transpose(turned, mp, sum, IDA_VL, m, IDA_VL);
    for (int64_t i = 0; i < mp; i += IDA_VL) {
        vf s = vf_load(turned + i);
        for (int l = 1; l < IDA_VL; l++) s += vf_load(turned + l * mp + i);
        vf_store(score + i, s);
    }
}

/* coef_j = sum_i w(score_i) G_ij over nv vectors of columns, the last of them n wide. */
IDA_INLINE void coef_block(float *cr, float *ci, const float *sr, const float *si, float sign, const float *gr, const float *gi,
                           int64_t m, int64_t n, const int nv) {
    vf re[STEP_BLOCK], im[STEP_BLOCK];
    SMM_UNROLL
    for (int v = 0; v < nv; v++) re[v] = im[v] = vf_zero();
    for (int64_t i = 0; i < m; i++, gr += m, gi += m) {
        const vf a = vf_set1(sr[i]), b = vf_set1(sign * si[i]);
        SMM_UNROLL
        for (int v = 0; v < nv; v++) {
            const int64_t left = v + 1 < nv ? IDA_VL : n;
            const vf x = step_load(gr + v * IDA_VL, left), y = step_load(gi + v * IDA_VL, left);
            re[v] = a * x - b * y + re[v];
            im[v] = a * y + b * x + im[v];
        }
    }
    SMM_UNROLL
    for (int v = 0; v < nv; v++) {
        vf_store(cr + v * IDA_VL, re[v]);
        vf_store(ci + v * IDA_VL, im[v]);
    }
}

static void coefficients(float *cr, float *ci, const float *sr, const float *si, float sign, const float *gr, const float *gi,
                         int64_t m) {
    int64_t c = 0;
    for (; c + STEP_BLOCK * IDA_VL <= m; c += STEP_BLOCK * IDA_VL)
        coef_block(cr + c, ci + c, sr, si, sign, gr + c, gi + c, m, IDA_VL, STEP_BLOCK);
    for (; c + IDA_VL <= m; c += IDA_VL) coef_block(cr + c, ci + c, sr, si, sign, gr + c, gi + c, m, IDA_VL, 1);
    if (c < m) coef_block(cr + c, ci + c, sr, si, sign, gr + c, gi + c, m, m - c, 1);
}

static void step_task(void *arg, int64_t task, int worker) {
    const job *j = arg;
    const ida_interdomain_args *a = j->a;
    const ida_ssm_prep *p = j->prep;
    const int64_t s = task / a->g, g = task % a->g, m = a->m, mp = j->mp, width = a->r + a->d, heads = a->h / a->g;
    const float sign = a->readout == IDA_READOUT_HERMITIAN ? -1.0f : 1.0f;
    float *sum = j->mem + worker * j->each, *turned = sum + 2 * mp * IDA_VL * heads, *score = turned + mp * IDA_VL,
          *coef = score + 2 * mp;
    float *re = a->state_in.re + s * a->state_in.stride + g * m * width,
          *im = a->state_in.im + s * a->state_in.stride + g * m * width;
    const float *k = ida_act_real(a->k) + (s * a->g + g) * a->r, *v = ida_act_real(a->v) + (s * a->g + g) * a->d,
                *q = ida_act_real(a->q) + (s * a->h + g * heads) * a->r;
    float *o = ida_act_real(a->o) + (s * a->h + g * heads) * a->d;
    for (int64_t i = 0; i < m; i++) {
        const step_mode md = step_mode_of(p, g * m + i);
        float *at = sum + i * IDA_VL;
        key_row(re + i * width, im + i * width, k, q, &md, a->r, at, at + mp * IDA_VL);
        for (int64_t h = 1; h < heads; h++) {
            at += 2 * mp * IDA_VL;
            key_row_again(re + i * width, im + i * width, q + h * a->r, a->r, at, at + mp * IDA_VL);
        }
    }
    for (int64_t h = 0; h < heads; h++) {
        sum_lanes(score, sum + 2 * h * mp * IDA_VL, turned, m, mp);
        sum_lanes(score + mp, sum + (2 * h + 1) * mp * IDA_VL, turned, m, mp);
        coefficients(coef, coef + mp, score, score + mp, sign, p->g_re + g * m * m, p->g_im + g * m * m, m);
        if (h == 0) step_values(o, re + a->r, im + a->r, v, p, g * m, coef, coef + mp, m, width, a->d, true);
        else step_values(o + h * a->d, re + a->r, im + a->r, v, p, g * m, coef, coef + mp, m, width, a->d, false);
    }
}

ida_status IDA_CPU(interdomain_step)(const ida_device *dev, const ida_interdomain_args *a, const ida_ssm_prep *prep,
                                     int64_t n_seq) {
    (void)dev;
    job j = {.a = a, .prep = prep, .mp = smm_pad(a->m)};
    const int64_t tasks = n_seq * a->g;
    const bool serial = tasks * a->m * (a->r + a->d) < STEP_SERIAL_BELOW;
    j.each = j.mp * IDA_VL * (2 * (a->h / a->g) + 1) + 4 * j.mp;
    IDA_TRY(IDA_ALLOC(j.mem, j.each * (serial ? 1 : ida_workers()), "scratch of the step"));
    if (serial)
        for (int64_t t = 0; t < tasks; t++) step_task(&j, t, 0);
    else ida_parallel(tasks, step_task, &j);
    ida_free(j.mem);
    return IDA_OK;
}
