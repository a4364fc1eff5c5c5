/* init.c - initial values (docs/method.md, end of section 3). Element j of tensor i is a pure function of (seed, i, j): the same
 * on every machine with the same libm and for any thread count. Not here: which tensors there are (params.c). */
#include "model/model.h"

#include <complex.h>
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "core/threads.h"
#include "model/legs.h"
#include "model/shape.h"

static const double PI = 3.14159265358979323846;

typedef enum law { LAW_NORMAL, LAW_UNIFORM, LAW_CONST } law;
/* normal: a * N(0,1); uniform: a + b * U(0,1); const: a. */
typedef struct fill { law law; double a, b; uint64_t seed, stream; real *out; int64_t n; } fill;

enum { FILL_BLOCK = 16384 }; /* a multiple of 4 */

/* Elements 4i .. 4i+3 of a stream: two Box-Muller pairs from the four words of one Philox block. */
static void normal4(uint64_t seed, uint64_t stream, uint64_t i, double z[4]) {
    uint32_t w[4];
    ida_philox(seed, stream, i, w);
    for (int k = 0; k < 4; k += 2) {
        double r = sqrt(-2 * log(((double)w[k] + 1) * 0x1p-32)), t = 2 * PI * 0x1p-32 * (double)w[k + 1];
        z[k] = r * cos(t);
        z[k + 1] = r * sin(t);
    }
}

static void fill_task(void *arg, int64_t task, int worker) {
    (void)worker;
    const fill *f = arg;
    int64_t begin = task * FILL_BLOCK, end = begin + FILL_BLOCK < f->n ? begin + FILL_BLOCK : f->n;
    if (f->law == LAW_NORMAL) {
        double z[4];
        for (int64_t j = begin; j < end; j += 4) {
            normal4(f->seed, f->stream, (uint64_t)j / 4, z);
            for (int64_t k = 0; k < 4 && j + k < end; k++) f->out[j + k] = (real)(f->a * z[k]);
        }
        return;
    }
    for (int64_t j = begin; j < end; j++)
        f->out[j] = (real)(f->law == LAW_UNIFORM ? f->a + f->b * ida_uniform(f->seed, f->stream, (uint64_t)j) : f->a);
}

static bool ends(const char *name, const char *suffix) {
    size_t n = strlen(name), k = strlen(suffix);
    return n >= k && strcmp(name + n - k, suffix) == 0;
}

static fill law_of(const ida_config *c, const char *name) {
    double m = (double)c->state_size;
    if (ends(name, "norm.weight")) return (fill){.law = LAW_CONST, .a = 1};
    if (ends(name, "_norm.bias")) return (fill){.law = LAW_CONST, .a = 0};
    if (ends(name, "_conv.weight") || ends(name, "_conv.bias")) return (fill){.law = LAW_UNIFORM, .a = -0.5, .b = 1};
    if (ends(name, ".log_dt")) return (fill){.law = LAW_UNIFORM, .a = log(c->dt_min), .b = log(c->dt_max) - log(c->dt_min)};
    if (ends(name, ".a_log")) return (fill){.law = LAW_CONST, .a = log(0.5)};
    if (ends(name, ".c.real") || ends(name, ".c.imag")) return (fill){.law = LAW_NORMAL, .a = sqrt(0.5 / m)};
    if (ends(name, "mixer.w")) return (fill){.law = LAW_NORMAL, .a = sqrt(1 / m)};
    if (ends(name, ".o_proj.weight") || ends(name, ".down_proj.weight"))
        return (fill){.law = LAW_NORMAL, .a = c->init_std / sqrt(2 * (double)c->n_layers)};
    return (fill){.law = LAW_NORMAL, .a = c->init_std};
}

/* The imaginary parts of A, the same in every group. */
static void basis(const ida_config *c, double *imag) {
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

static ida_status init_c(const ida_config *c, const ida_layer_grads *w) {
    int64_t m = c->state_size, groups = c->n_kv_heads;
    if (c->c_init == IDA_C_IDENTITY) {
        for (int64_t i = 0; i < groups * m * m; i++) {
            w->c_re[i] = i % (m * m) % (m + 1) == 0;
            w->c_im[i] = 0;
        }
        return IDA_OK;
    }
    whiten_job job = {
        .ssm = {w->log_dt, w->a_log, w->a_imag, NULL, NULL, c->discretization}, .m = m, .c_re = w->c_re, .c_im = w->c_im};
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

ida_status ida_param_init(const ida_config *cfg, const ida_param_table *t, uint64_t seed, real *block) {
    ida_layer_grads *w = NULL; /* places in `block`, where every tensor is real as in a block of gradients */
    double *imag = NULL;
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(IDA_ALLOC(imag, cfg->state_size, "initial values"));
    IDA_TRY_GOTO(IDA_ALLOC(w, cfg->n_layers, "initial values"));
    basis(cfg, imag);
    for (int64_t i = 0; i < t->n; i++) {
        const ida_param *p = &t->params[i];
        real *out = block + p->offset;
        if (ends(p->name, ".a_imag")) {
            for (int64_t j = 0; j < p->numel; j++) out[j] = (real)imag[j % cfg->state_size];
        } else {
            fill f = law_of(cfg, p->name);
            f.seed = seed;
            f.stream = (uint64_t)IDA_STREAM_INIT + (uint64_t)i;
            f.out = out;
            f.n = p->numel;
            ida_parallel((f.n + FILL_BLOCK - 1) / FILL_BLOCK, fill_task, &f);
        }
        int64_t end = i + 1 < t->n ? t->params[i + 1].offset : t->block;
        memset(out + p->numel, 0, (size_t)(end - p->offset - p->numel) * sizeof *out);
    }
    ida_grads bound = {.layers = w};
    ida_model_bind_grads(cfg, t, block, &bound);
    if (cfg->c_init != IDA_C_NORMAL)
        for (int64_t l = 0; l < cfg->n_layers; l++)
            if (w[l].c_re) IDA_TRY_GOTO(init_c(cfg, &w[l]));
out:
    ida_free(imag);
    ida_free(w);
    return st;
}
