/* naive.c - see naive.h. Compiled with -DIDA_REAL=double. The products are those of ops/ref/interdomain_chunk.c for a chunk of
 * one token. */
#include "naive.h"

#include <stdlib.h>
#include <string.h>

#include "core/bf16.h"
#include "ops/ref/scan.h"

static double rb(double x) { return (double)ida_bf16_to_f32(ida_f32_to_bf16((float)x)); }
static cplx rbc(cplx x) { return cx(rb(creal(x)), rb(cimag(x))); }
static cplx f32c(cplx x) { return cx((double)(float)creal(x), (double)(float)cimag(x)); }

typedef struct job {
    const ida_mixer_run *r;
    ida_ssm ssm;
    int64_t m, w;
    cplx *lam, *b, *gram, *c, *dgram, *dlog, *db, *x, *dx, *a, *coef, *dcoef, *da;
    double *t;
} job;

static const double *at(const void *p) { return p; }

/* a and c of one token; x after it. */
static void coefs(const job *j, const cplx *x, const double *q, bool hermitian) {
    for (int64_t n = 0; n < j->m; n++) {
        cplx sum = 0;
        for (int64_t i = 0; i < j->r->key_dim; i++) sum += rbc(x[n * j->w + i]) * rb(q[i]);
        j->a[n] = rbc(sum);
    }
    for (int64_t n = 0; n < j->m; n++) {
        cplx sum = 0;
        for (int64_t i = 0; i < j->m; i++) sum += (hermitian ? conj(j->a[i]) : j->a[i]) * rbc(j->gram[i * j->m + n]);
        j->coef[n] = rbc(sum);
    }
}

static void token_fwd(const job *j, const cplx *x, int64_t row_q, int64_t row_o, bool hermitian) {
    const int64_t r = j->r->key_dim, d = j->r->value_dim;
    coefs(j, x, at(j->r->q) + row_q * r, hermitian);
    for (int64_t i = 0; i < d; i++) {
        double sum = 0;
        for (int64_t n = 0; n < j->m; n++) sum += re_mul(j->coef[n], rbc(x[n * j->w + r + i]));
        ((double *)j->r->o)[row_o * d + i] = rb(sum);
    }
}

static void token_bwd(const job *j, const cplx *x, int64_t row, bool hermitian) {
    const int64_t r = j->r->key_dim, d = j->r->value_dim, m = j->m;
    const double *q = at(j->r->q) + row * r, *go = at(j->r->grad_o) + row * d;
    coefs(j, x, q, hermitian);
    for (int64_t n = 0; n < m; n++) {
        cplx back = 0;
        for (int64_t i = 0; i < d; i++) {
            back += conj(rbc(x[n * j->w + r + i])) * rb(go[i]);
            j->dx[n * j->w + r + i] += conj(j->coef[n]) * rb(go[i]);
        }
        j->dcoef[n] = rbc(back);
    }
    for (int64_t n = 0; n < m; n++) {
        cplx dwa = 0;
        for (int64_t i = 0; i < m; i++) {
            j->dgram[n * m + i] += (hermitian ? j->a[n] : conj(j->a[n])) * j->dcoef[i];
            dwa += conj(rbc(j->gram[n * m + i])) * j->dcoef[i];
        }
        j->da[n] = rbc(hermitian ? conj(dwa) : dwa);
    }
    for (int64_t i = 0; i < r; i++) {
        double sum = 0;
        for (int64_t n = 0; n < m; n++) {
            sum += re_conj_mul(rbc(x[n * j->w + i]), j->da[n]);
            j->dx[n * j->w + i] += j->da[n] * rb(q[i]);
        }
        ((double *)j->r->grad_q)[row * r + i] = rb(sum);
    }
}

static void sequence(const job *j, int64_t s, int64_t g, bool hermitian) {
    const ida_mixer_run *u = j->r;
    const int64_t begin = u->cu[s], len = u->cu[s + 1] - begin, mw = j->m * j->w, per = u->n_heads / u->n_kv, r = u->key_dim,
                  d = u->value_dim;
    const int64_t state = (s * u->n_kv + g) * mw;
    cplx *x = malloc((size_t)(len + 1) * (size_t)mw * sizeof *x);
    for (int64_t i = 0; i < mw; i++) x[i] = u->state_real ? cx(at(u->state_real)[state + i], at(u->state_imag)[state + i]) : 0;
    for (int64_t t = 0; t < len; t++) {
        const cplx *before = x + t * mw;
        cplx *after = x + (t + 1) * mw;
        const double *k = at(u->k) + ((begin + t) * u->n_kv + g) * r, *v = at(u->v) + ((begin + t) * u->n_kv + g) * d;
        for (int64_t n = 0; n < j->m; n++)
            for (int64_t i = 0; i < j->w; i++)
                after[n * j->w + i] = f32c(j->lam[n] * before[n * j->w + i] + j->b[n] * rb(i < r ? k[i] : v[i - r]));
        for (int64_t h = g * per; h < (g + 1) * per; h++)
            token_fwd(j, after, (begin + t) * u->n_heads + h, (begin + t) * u->n_heads + h, hermitian);
    }
    for (int64_t i = 0; i < mw; i++) {
        if (u->final_state_real)
            ((double *)u->final_state_real)[state + i] = creal(x[len * mw + i]),
                                                    ((double *)u->final_state_imag)[state + i] = cimag(x[len * mw + i]);
        j->dx[i] =
            u->grad_final_state_real ? cx(at(u->grad_final_state_real)[state + i], at(u->grad_final_state_imag)[state + i]) : 0;
    }
    for (int64_t t = len - 1; t >= 0; t--) {
        const int64_t row = (begin + t) * u->n_kv + g;
        const double *k = at(u->k) + row * r, *v = at(u->v) + row * d;
        for (int64_t h = g * per; h < (g + 1) * per; h++) token_bwd(j, x + (t + 1) * mw, (begin + t) * u->n_heads + h, hermitian);
        for (int64_t i = 0; i < j->w; i++) {
            double dz = 0;
            for (int64_t n = 0; n < j->m; n++) {
                const cplx dx = rbc(j->dx[n * j->w + i]);
                dz += re_conj_mul(j->b[n], dx);
                j->db[n] += dx * rb(i < r ? k[i] : v[i - r]);
                j->dlog[n] += conj(j->lam[n]) * conj(rbc(x[t * mw + n * j->w + i])) * dx;
                j->dx[n * j->w + i] = f32c(conj(j->lam[n]) * j->dx[n * j->w + i]);
            }
            if (i < r)
                ((double *)u->grad_k)[row * r + i] = rb(dz);
            else
                ((double *)u->grad_v)[row * d + i - r] = rb(dz);
        }
    }
    for (int64_t i = 0; i < mw && u->grad_state_real; i++)
        ((double *)u->grad_state_real)[state + i] = creal(j->dx[i]), ((double *)u->grad_state_imag)[state + i] = cimag(j->dx[i]);
    free(x);
}

void naive_bf16_run(const ida_mixer_run *r) {
    const int64_t m = r->state_size, g_n = r->n_kv, w = r->key_dim + r->value_dim;
    const bool hermitian = r->readout == IDA_READOUT_HERMITIAN;
    job j = {.r = r, .m = m, .w = w};
    j.ssm = (ida_ssm){.log_dt = r->log_dt,
                      .a_log = r->a_log,
                      .a_imag = r->a_imag,
                      .c_re = r->c_real,
                      .c_im = r->c_imag,
                      .disc = r->discretization};
    cplx *mem = malloc((size_t)(8 * m + 3 * m * m + m * w) * sizeof(cplx));
    double *t = malloc((size_t)(4 * m) * sizeof *t);
    cplx *p = mem;
    j.lam = take(&p, m), j.b = take(&p, m), j.dlog = take(&p, m), j.db = take(&p, m), j.a = take(&p, m), j.coef = take(&p, m),
    j.dcoef = take(&p, m), j.da = take(&p, m);
    j.gram = take(&p, m * m), j.c = take(&p, m * m), j.dgram = take(&p, m * m), j.dx = take(&p, m * w);
    const ida_ssm_grads d = {r->grad_log_dt, r->grad_a_log, r->grad_a_imag, r->grad_c_real, r->grad_c_imag};
    memset(d.log_dt, 0, (size_t)g_n * sizeof(double));
    memset(d.a_log, 0, (size_t)(g_n * m) * sizeof(double));
    memset(d.a_imag, 0, (size_t)(g_n * m) * sizeof(double));
    memset(d.c_re, 0, (size_t)(g_n * m * m) * sizeof(double));
    memset(d.c_im, 0, (size_t)(g_n * m * m) * sizeof(double));
    for (int64_t g = 0; g < g_n; g++) {
        lam_load(j.lam, j.b, t, &j.ssm, g, m);
        c_load(j.c, &j.ssm, g, m);
        for (int64_t i = 0; i < m; i++)
            for (int64_t k = 0; k < m; k++) {
                cplx sum = 0;
                for (int64_t n = 0; n < m; n++) sum += (hermitian ? conj(j.c[n * m + i]) : j.c[n * m + i]) * j.c[n * m + k];
                j.gram[i * m + k] = sum;
                j.dgram[i * m + k] = 0;
            }
        for (int64_t i = 0; i < m; i++) j.dlog[i] = j.db[i] = 0;
        for (int64_t s = 0; s < r->n_seq; s++) sequence(&j, s, g, hermitian);
        pack_rows(t, j.dlog, j.db, m);
        ida_ref64_ssm_log_bwd(&j.ssm, g, m, t, t + m, t + 2 * m, t + 3 * m, &d);
        for (int64_t n = 0; n < m; n++)
            for (int64_t k = 0; k < m; k++) {
                cplx sum = 0;
                for (int64_t i = 0; i < m; i++) {
                    const cplx c = j.c[n * m + i], dg = j.dgram[i * m + k], dg_t = j.dgram[k * m + i];
                    sum += hermitian ? c * (dg + conj(dg_t)) : conj(c) * (dg + dg_t);
                }
                ((double *)r->grad_c_real)[(g * m + n) * m + k] = creal(sum);
                ((double *)r->grad_c_imag)[(g * m + n) * m + k] = cimag(sum);
            }
    }
    free(t);
    free(mem);
}
