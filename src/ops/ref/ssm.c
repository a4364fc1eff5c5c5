/* ssm.c - the state-space parameters (docs/method.md section 2, step 6; derivatives in section 5): Lam and Bbar of a group
 * in double, their chain rule, and the tables of the step form. It is not a scan: those are interdomain*.c and s4d.c.
 * Invariant: |Lam| <= 1 for every parameter value, and every result in double is finite for finite parameters. */
#include <assert.h>
#include "ops/ref/scan.h"

/* dt and |Re A| are kept in e^+-300, far outside use, so that |A|^2 and dt * A neither overflow nor vanish. The gradient
 * passes straight through; there it is 0 or meaningless anyway. NaN stays NaN. */
static double exp_safe(double x) { return exp(x < -300 ? -300 : x > 300 ? 300 : x); }

typedef struct mode {
    double dt;
    cplx a, log_lam;
} mode;

static mode mode_of(const ida_ssm *s, int64_t group, int64_t m, int64_t i) {
    mode r;
    r.dt = exp_safe((double)s->log_dt[group]);
    r.a = cx(-exp_safe((double)s->a_log[group * m + i]), (double)s->a_imag[group * m + i]);
    r.log_lam = r.dt * r.a;
    return r;
}

/* e^x - 1 with Re x <= 0. Both terms of the real part have one sign while |Im x| < pi/2: nothing cancels for small x. */
static cplx expm1_c(cplx x) {
    const double xr = creal(x), xi = cimag(x), sh = sin(0.5 * xi);
    return cx(expm1(xr) * cos(xi) - 2 * sh * sh, exp(xr) * sin(xi));
}

static cplx exp_c(cplx x) {
    const double r = exp(creal(x));
    return r == 0 ? 0 : cx(r * cos(cimag(x)), r * sin(cimag(x)));
}

static cplx bbar_of(const mode *p, ida_discretization disc) {
    switch (disc) {
    case IDA_DISC_ZOH: return expm1_c(p->log_lam) / p->a;
    case IDA_DISC_EULER: return p->dt;
    case IDA_DISC_UNIT: return 1;
    case IDA_DISC_NORM: return sqrt(-expm1(2 * creal(p->log_lam)));
    }
    assert(false);
    return 0;
}

void IDA_REF(ssm_discretize)(const ida_ssm *s, int64_t group, int64_t m, double *lam_re, double *lam_im, double *b_re,
                             double *b_im) {
    for (int64_t i = 0; i < m; i++) {
        const mode p = mode_of(s, group, m, i);
        const cplx lam = exp_c(p.log_lam), b = bbar_of(&p, s->disc);
        lam_re[i] = creal(lam);
        lam_im[i] = cimag(lam);
        b_re[i] = creal(b);
        b_im[i] = cimag(b);
    }
}

void IDA_REF(ssm_log_lam)(const ida_ssm *s, int64_t group, int64_t m, double *log_abs, double *angle) {
    for (int64_t i = 0; i < m; i++) {
        const mode p = mode_of(s, group, m, i);
        log_abs[i] = creal(p.log_lam);
        angle[i] = atan2(sin(cimag(p.log_lam)), cos(cimag(p.log_lam)));
    }
}

/* (dt Lam - Bbar) / A = dt^2 psi(x), x = dt A, psi(x) = (e^x - (e^x - 1)/x) / x = sum_n n x^(n-1) / (n+1)!: the derivative of
 * the zoh Bbar by A. The closed form cancels for small x. */
static cplx zoh_db_da(const mode *p) {
    const cplx x = p->log_lam;
    if (cabs(x) > 0.5) return (p->dt * exp_c(x) - expm1_c(x) / p->a) / p->a;
    cplx sum = 0, power = 1;
    double factorial = 1;
    for (int n = 1; n <= 18; n++) {
        factorial *= n + 1;
        sum += n / factorial * power;
        power *= x;
    }
    return p->dt * p->dt * sum;
}

/* Adds mode i's part of the a_log and a_imag gradients; returns its part of d log_dt. dlog = gradient of log Lam. */
static double mode_bwd(const ida_ssm *s, int64_t group, int64_t m, int64_t i, cplx dlog, cplx db, const ida_ssm_grads *g) {
    const mode p = mode_of(s, group, m, i);
    double ddt = 0;
    cplx da = 0;
    switch (s->disc) {
    case IDA_DISC_ZOH: /* Bbar = integral of e^(A s) over 0..dt */
        ddt = re_conj_mul(exp_c(p.log_lam), db);
        da = conj(zoh_db_da(&p)) * db;
        break;
    case IDA_DISC_EULER: ddt = creal(db); break;
    case IDA_DISC_UNIT: break;
    case IDA_DISC_NORM: /* Bbar^2 = 1 - e^(2 Re log Lam) */
        dlog -= creal(db) * exp(2 * creal(p.log_lam)) / creal(bbar_of(&p, s->disc));
        break;
    }
    da += p.dt * dlog; /* log Lam = dt A */
    ddt += re_conj_mul(p.a, dlog);
    real *ga = g->a_log + group * m + i, *gi = g->a_imag + group * m + i;
    *ga = (real)((double)*ga + creal(p.a) * creal(da));
    *gi = (real)((double)*gi + cimag(da));
    return p.dt * ddt;
}

void IDA_REF(ssm_log_bwd)(const ida_ssm *s, int64_t group, int64_t m, const double *dlog_re, const double *dlog_im,
                          const double *db_re, const double *db_im, const ida_ssm_grads *g) {
    double sum = 0;
    for (int64_t i = 0; i < m; i++) sum += mode_bwd(s, group, m, i, cx(dlog_re[i], dlog_im[i]), cx(db_re[i], db_im[i]), g);
    g->log_dt[group] = (real)((double)g->log_dt[group] + sum);
}

void IDA_REF(ssm_discretize_bwd)(const ida_ssm *s, int64_t group, int64_t m, const double *dlam_re, const double *dlam_im,
                                 const double *db_re, const double *db_im, const ida_ssm_grads *g) {
    double sum = 0;
    for (int64_t i = 0; i < m; i++) {
        const mode p = mode_of(s, group, m, i);
        const cplx dlog = conj(exp_c(p.log_lam)) * cx(dlam_re[i], dlam_im[i]); /* Lam = e^(log Lam) */
        sum += mode_bwd(s, group, m, i, dlog, cx(db_re[i], db_im[i]), g);
    }
    g->log_dt[group] = (real)((double)g->log_dt[group] + sum);
}

/* Rounds Lam to `real` without leaving the unit disc: a pole rounded outwards would grow for ever. */
static void lam_round(real *re, real *im, cplx lam) {
    *re = (real)creal(lam);
    *im = (real)cimag(lam);
    while ((double)*re * (double)*re + (double)*im * (double)*im > 1) {
        real *big = fabs((double)*re) >= fabs((double)*im) ? re : im;
        *big = sizeof(real) == sizeof(float) ? (real)nextafterf((float)*big, 0) : (real)nextafter((double)*big, 0);
    }
}

void IDA_REF(ssm_prepare)(const ida_ssm *s, int64_t groups, int64_t m, ida_readout readout, const real *w,
                          const ida_ssm_prep *prep) {
    for (int64_t g = 0; g < groups; g++) {
        const real *cr = s->c_re + g * m * m, *ci = s->c_im + g * m * m;
        for (int64_t i = 0; i < m; i++) {
            const mode p = mode_of(s, g, m, i);
            const cplx b = bbar_of(&p, s->disc);
            lam_round(prep->lam_re + g * m + i, prep->lam_im + g * m + i, exp_c(p.log_lam));
            prep->b_re[g * m + i] = (real)creal(b);
            prep->b_im[g * m + i] = (real)cimag(b);
        }
        for (int64_t i = 0; i < m && w; i++) { /* c_i = sum_n w_n C_ni */
            cplx sum = 0;
            for (int64_t n = 0; n < m; n++) sum += (double)w[g * m + n] * cx((double)cr[n * m + i], (double)ci[n * m + i]);
            prep->g_re[g * m + i] = (real)creal(sum);
            prep->g_im[g * m + i] = (real)cimag(sum);
        }
        for (int64_t i = 0; i < m && !w; i++) { /* G_ij = sum_n w(C_ni) C_nj */
            for (int64_t j = 0; j < m; j++) {
                cplx sum = 0;
                for (int64_t n = 0; n < m; n++) {
                    const cplx left = cx((double)cr[n * m + i], (double)ci[n * m + i]);
                    sum +=
                        (readout == IDA_READOUT_HERMITIAN ? conj(left) : left) * cx((double)cr[n * m + j], (double)ci[n * m + j]);
                }
                prep->g_re[(g * m + i) * m + j] = (real)creal(sum);
                prep->g_im[(g * m + i) * m + j] = (real)cimag(sum);
            }
        }
    }
}
