/* ssm.cuh - the state-space parameters on the device, in double (docs/method.md section 2, step 6): Lam and Bbar of a mode and
 * their chain rule, as in ops/ref/ssm.c. Private to ops/cuda. Invariant: finite for finite parameters, |Lam| <= 1. */
#ifndef IDA_OPS_CUDA_SSM_CUH
#define IDA_OPS_CUDA_SSM_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "ops/ops.h"

#define SSM_DEV static __device__ __forceinline__

struct cplx {
    double re, im;
};
SSM_DEV cplx c_mul(cplx a, cplx b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
SSM_DEV cplx c_conj_mul(cplx a, cplx b) { return {a.re * b.re + a.im * b.im, a.re * b.im - a.im * b.re}; }
SSM_DEV cplx c_div(cplx a, cplx b) {
    const double n = b.re * b.re + b.im * b.im;
    const cplx t = c_conj_mul(b, a);
    return {t.re / n, t.im / n};
}

/* dt and |Re A| are kept in e^+-300, far outside use. NaN stays NaN. */
SSM_DEV double exp_safe(double x) { return exp(x < -300 ? -300 : x > 300 ? 300 : x); }

struct mode {
    double dt;
    cplx a, log_lam;
};

SSM_DEV mode mode_of(const ida_ssm *s, int64_t g, int64_t m, int64_t i) {
    mode r;
    r.dt = exp_safe((double)s->log_dt[g]);
    r.a = {-exp_safe((double)s->a_log[g * m + i]), (double)s->a_imag[g * m + i]};
    r.log_lam = {r.dt * r.a.re, r.dt * r.a.im};
    return r;
}
/* e^x - 1 with Re x <= 0: nothing cancels for small x. */
SSM_DEV cplx c_expm1(cplx x) {
    const double sh = sin(0.5 * x.im);
    return {expm1(x.re) * cos(x.im) - 2 * sh * sh, exp(x.re) * sin(x.im)};
}
SSM_DEV cplx c_exp(cplx x) {
    const double r = exp(x.re);
    return r == 0 ? cplx{0, 0} : cplx{r * cos(x.im), r * sin(x.im)};
}
SSM_DEV cplx bbar_of(const mode *p, int disc) {
    switch (disc) {
    case IDA_DISC_ZOH: return c_div(c_expm1(p->log_lam), p->a);
    case IDA_DISC_EULER: return {p->dt, 0};
    case IDA_DISC_UNIT: return {1, 0};
    default: return {sqrt(-expm1(2 * p->log_lam.re)), 0};
    }
}

/* (re, im) rounded to float without leaving the unit disc. */
SSM_DEV void round_inwards(float *re, float *im, double x, double y) {
    *re = (float)x;
    *im = (float)y;
    while ((double)*re * (double)*re + (double)*im * (double)*im > 1) {
        float *big = fabsf(*re) >= fabsf(*im) ? re : im;
        *big = nextafterf(*big, 0.0f);
    }
}

/* (dt Lam - Bbar) / A = dt^2 psi(x), x = dt A, psi(x) = sum_n n x^(n-1) / (n+1)!; the closed form cancels for small x. */
SSM_DEV cplx zoh_db_da(const mode *p) {
    const cplx x = p->log_lam;
    if (x.re * x.re + x.im * x.im > 0.25) {
        const cplx e = c_exp(x), q = c_div(c_expm1(x), p->a);
        return c_div({p->dt * e.re - q.re, p->dt * e.im - q.im}, p->a);
    }
    cplx sum = {0, 0}, power = {1, 0};
    double factorial = 1;
#pragma unroll
    for (int n = 1; n <= 18; n++) { /* unrolled: the quotients are constants */
        factorial *= n + 1;
        sum = {sum.re + n / factorial * power.re, sum.im + n / factorial * power.im};
        power = c_mul(power, x);
    }
    return {p->dt * p->dt * sum.re, p->dt * p->dt * sum.im};
}

/* Adds mode i's a_log and a_imag gradients, dlog being that of log Lam; returns its part of d log_dt. */
SSM_DEV double mode_bwd(const ida_ssm *s, const ida_ssm_grads *grads, int64_t g, int64_t m, int64_t i, cplx dlog, cplx db) {
    const mode q = mode_of(s, g, m, i);
    double ddt = 0;
    cplx da = {0, 0};
    if (s->disc == IDA_DISC_ZOH) {
        ddt = c_conj_mul(c_exp(q.log_lam), db).re;
        da = c_conj_mul(zoh_db_da(&q), db);
    } else if (s->disc == IDA_DISC_EULER) {
        ddt = db.re;
    } else if (s->disc == IDA_DISC_NORM) {
        dlog.re -= db.re * exp(2 * q.log_lam.re) / bbar_of(&q, s->disc).re;
    }
    da = {da.re + q.dt * dlog.re, da.im + q.dt * dlog.im};
    ddt += c_conj_mul(q.a, dlog).re;
    grads->a_log[g * m + i] += (float)(q.a.re * da.re);
    grads->a_imag[g * m + i] += (float)da.im;
    return q.dt * ddt;
}

#endif
