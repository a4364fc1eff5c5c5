/* ssm.c - the state-space side of a layer: initial poles, steps and C (docs/method.md, end of section 3), the constants of the
 * step form, and the argument blocks of the cores. Not here: discretization itself (ops), streams (attend.c). */
#include "layers/attend.h"

#include <complex.h>
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/threads.h"
#include "idattn/config.h"
#include "layers/legs.h"

static const double PI = 3.14159265358979323846;

ida_start ida_start_own(const ida_layer *l, const ida_backbone *b) {
    (void)l, (void)b;
    return (ida_start){.law = IDA_LAW_OWN};
}
ida_start ida_start_log_dt(const ida_layer *l, const ida_backbone *b) {
    const ida_attend_options *o = ida_attend_of(l);
    (void)b;
    return (ida_start){.law = IDA_LAW_UNIFORM, .a = log(o->dt_min), .b = log(o->dt_max) - log(o->dt_min)};
}
ida_start ida_start_a_log(const ida_layer *l, const ida_backbone *b) {
    (void)l, (void)b;
    return (ida_start){.law = IDA_LAW_CONST, .a = log(0.5)};
}
ida_start ida_start_c(const ida_layer *l, const ida_backbone *b) {
    (void)b;
    return (ida_start){.law = IDA_LAW_NORMAL, .a = sqrt(0.5 / (double)ida_dim(l, 'M'))};
}
ida_start ida_start_w(const ida_layer *l, const ida_backbone *b) {
    (void)b;
    return (ida_start){.law = IDA_LAW_NORMAL, .a = sqrt(1 / (double)ida_dim(l, 'M'))};
}

/* The imaginary parts of A, the same in every group. */
static void basis(const ida_attend_options *c, double *imag) {
    int64_t m = c->state_size;
    double md = (double)m;
    if (c->basis == IDA_BASIS_S4D_LEGS) { ida_legs_frequencies(m, imag); return; }
    for (int64_t n = 0; n < m; n++)
        imag[n] = c->basis == IDA_BASIS_S4D_INV ? md / PI * (md / (2 * (double)n + 1) - 1) : PI * (double)n;
}

/* C = L^-1 with L L^H = Gram + 1e-4 (tr Gram / M) I, where Gram_mn = B_m conj(B_n) / (1 - Lam_m conj(Lam_n)) is E[X X^H] for
 * white input of unit variance: the read-out coordinates C X of white input are then close to white. */
static ida_status whiten_group(const ida_ssm *s, int64_t g, int64_t m, double complex *l, real *c_re, real *c_im) {
    double *p;
    IDA_TRY(IDA_ALLOC(p, 4 * m, "whitened C"));
    IDA_REF(ssm_discretize)(s, g, m, p, p + m, p + 2 * m, p + 3 * m);
    double trace = 0;
    for (int64_t i = 0; i < m; i++) {
        double complex li = p[i] + I * p[m + i], bi = p[2 * m + i] + I * p[3 * m + i];
        for (int64_t j = 0; j <= i; j++) {
            double complex lj = p[j] + I * p[m + j], bj = p[2 * m + j] + I * p[3 * m + j];
            l[i * m + j] = bi * conj(bj) / (1 - li * conj(lj));
        }
        trace += creal(l[i * m + i]);
    }
    ida_free(p);
    for (int64_t i = 0; i < m; i++) l[i * m + i] += 1e-4 * trace / (double)m;
    for (int64_t i = 0; i < m; i++) /* Cholesky, lower triangle in place */
        for (int64_t j = 0; j <= i; j++) {
            double complex v = l[i * m + j];
            for (int64_t k = 0; k < j; k++) v -= l[i * m + k] * conj(l[j * m + k]);
            if (i == j) {
                IDA_FAIL_IF(!(creal(v) > 0), IDA_E_NUMERIC,
                            "whitened C: the basis of group %lld is singular at mode %lld; use mixer.c_init normal", (long long)g,
                            (long long)i);
                l[i * m + i] = sqrt(creal(v));
            } else l[i * m + j] = v / l[j * m + j];
        }
    memset(c_re, 0, (size_t)(m * m) * sizeof *c_re);
    memset(c_im, 0, (size_t)(m * m) * sizeof *c_im);
    for (int64_t j = 0; j < m; j++) { /* column j of L^-1; what is done of it is held in the upper triangle */
        double complex d = 1 / l[j * m + j];
        c_re[j * m + j] = (real)creal(d);
        for (int64_t i = j + 1; i < m; i++) {
            double complex v = l[i * m + j] * d;
            for (int64_t k = j + 1; k < i; k++) v += l[i * m + k] * l[j * m + k];
            v = -v / l[i * m + i];
            l[j * m + i] = v;
            c_re[i * m + j] = (real)creal(v);
            c_im[i * m + j] = (real)cimag(v);
        }
    }
    return IDA_OK;
}

typedef struct whiten_job { ida_ssm ssm; int64_t m; double complex *work; real *c_re, *c_im; ida_status *st; } whiten_job;

static void whiten_task(void *arg, int64_t g, int worker) {
    (void)worker;
    const whiten_job *w = arg;
    int64_t mm = w->m * w->m;
    w->st[g] = whiten_group(&w->ssm, g, w->m, w->work + g * mm, w->c_re + g * mm, w->c_im + g * mm);
}

static ida_status init_c(const ida_attend_options *c, real *const *w) {
    int64_t m = c->state_size, groups = c->groups;
    if (c->c_init == IDA_C_IDENTITY) {
        for (int64_t i = 0; i < groups * m * m; i++) {
            w[IDA_C_RE][i] = i % (m * m) % (m + 1) == 0;
            w[IDA_C_IM][i] = 0;
        }
        return IDA_OK;
    }
    whiten_job job = {.ssm = {w[IDA_LOG_DT], w[IDA_A_LOG], w[IDA_A_IMAG], NULL, NULL, c->discretization}, .m = m,
                      .c_re = w[IDA_C_RE], .c_im = w[IDA_C_IM]};
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(IDA_ALLOC(job.work, groups * m * m, "whitened C"));
    IDA_TRY_GOTO(IDA_CALLOC(job.st, groups, "whitened C"));
    ida_parallel(groups, whiten_task, &job);
    for (int64_t g = 0; g < groups; g++)
        if (job.st[g] != IDA_OK)
            IDA_FAIL_GOTO(job.st[g], "whitened C of group %lld could not be formed; use mixer.c_init normal", (long long)g);
out:
    ida_free(job.work);
    ida_free(job.st);
    return st;
}

ida_status ida_ssm_init(const ida_layer *l, real *const *w) {
    const ida_attend_options *o = ida_attend_of(l);
    const int64_t m = o->state_size;
    double *imag;
    IDA_TRY(IDA_ALLOC(imag, m, "initial values"));
    basis(o, imag);
    for (int64_t i = 0; i < o->groups * m; i++) w[IDA_A_IMAG][i] = (real)imag[i % m];
    ida_free(imag);
    return o->c_init == IDA_C_NORMAL ? IDA_OK : init_c(o, w);
}

/* ---- step constants: Lam and Bbar [G,M], and G [G,M,M] or the read-out c [H,M] */

static bool linear(const ida_layer *l) { return ida_attend_kind_of(l)->both_halves; }

int64_t ida_ssm_prep_len(const ida_layer *l) {
    const int64_t gm = ida_dim(l, 'G') * ida_dim(l, 'M');
    return 4 * gm + 2 * (linear(l) ? ida_dim(l, 'H') * ida_dim(l, 'M') : gm * ida_dim(l, 'M'));
}

ida_ssm_prep ida_ssm_prep_at(const ida_layer *l, const real *base) {
    const int64_t gm = ida_dim(l, 'G') * ida_dim(l, 'M');
    real *at = (real *)(uintptr_t)base;
    return (ida_ssm_prep){.lam_re = at, .lam_im = at + gm, .b_re = at + 2 * gm, .b_im = at + 3 * gm, .g_re = at + 4 * gm,
                          .g_im = at + 4 * gm + (linear(l) ? ida_dim(l, 'H') * ida_dim(l, 'M') : gm * ida_dim(l, 'M'))};
}

void ida_ssm_make_prep(const ida_layer *l, const real *const *w, real *out) {
    const ida_attend_options *o = ida_attend_of(l);
    const ida_ssm ssm = {w[IDA_LOG_DT], w[IDA_A_LOG], w[IDA_A_IMAG], w[IDA_C_RE], w[IDA_C_IM], o->discretization};
    const ida_ssm_prep prep = ida_ssm_prep_at(l, out);
    IDA_REF(ssm_prepare)(&ssm, o->groups, o->state_size, o->readout, linear(l) ? w[IDA_READ_W] : NULL, &prep);
}

/* ---- argument blocks */

ida_ssm ida_ssm_of(const ida_layer_ctx *c) {
    return (ida_ssm){c->w[IDA_LOG_DT].vector, c->w[IDA_A_LOG].vector, c->w[IDA_A_IMAG].vector, c->w[IDA_C_RE].vector,
                     c->w[IDA_C_IM].vector, ida_attend_of(c->layer)->discretization};
}

ida_ssm_grads ida_ssm_grads_of(const ida_layer_ctx *c) {
    return (ida_ssm_grads){c->dw[IDA_LOG_DT], c->dw[IDA_A_LOG], c->dw[IDA_A_IMAG], c->dw[IDA_C_RE], c->dw[IDA_C_IM]};
}

ida_state_ref ida_ssm_state(const ida_layer_ctx *c, const real *block) {
    if (!block) return (ida_state_ref){0};
    return (ida_state_ref){ida_state_at(block, c->layer->state[IDA_X_RE]), ida_state_at(block, c->layer->state[IDA_X_IM]), c->stride};
}
