/* mixer.c - sizes and tables of the chunked mixers (mixer.h). Tables are built once per call and group, in parallel, in double
 * where an exponent is involved. Invariant: every entry is finite for finite parameters, and padding is zero. */
#include "ops/cpu/mixer.h"

#include <math.h>

/* (re, im) rounded to float without leaving the unit disc. */
static void round_inwards(float *re, float *im, double x, double y) {
    *re = (float)x;
    *im = (float)y;
    while ((double)*re * (double)*re + (double)*im * (double)*im > 1) {
        float *big = fabsf(*re) >= fabsf(*im) ? re : im;
        *big = nextafterf(*big, 0);
    }
}

void IDA_CPU(mix_powers)(float *pw, int64_t ldm, const double *log_abs, const double *angle, int64_t m, int64_t n0, int64_t n1,
                         double *tmp) {
    const int64_t mp = smm_pad(m);
    double *lr = tmp, *li = tmp + m, *pr = tmp + 2 * m, *pi = tmp + 3 * m, *qr = tmp + 4 * m, *qi = tmp + 5 * m;
    memset(pw, 0, (size_t)((n1 - n0 + 1) * ldm) * sizeof *pw);
    for (int dir = 1; dir >= -1; dir -= 2) {
        const int64_t last = dir > 0 ? n1 : -n0;
        for (int64_t i = 0; i < m; i++) {
            const double size = last > 0 ? exp(dir * log_abs[i]) : 0;
            lr[i] = size == 0 ? 0 : size * cos(angle[i]);
            li[i] = size == 0 ? 0 : dir * size * sin(angle[i]);
            pr[i] = 1;
            pi[i] = 0;
        }
        for (int64_t n = 0; n <= last; n++) {
            float *re = pw + (dir * n - n0) * ldm, *im = re + mp;
            for (int64_t i = 0; i < m; i++) {
                re[i] = (float)pr[i];
                im[i] = (float)pi[i];
                qr[i] = pr[i] * lr[i] - pi[i] * li[i];
                qi[i] = pr[i] * li[i] + pi[i] * lr[i];
            }
            for (int64_t i = 0; i < m && dir > 0; i++)
                if ((double)re[i] * (double)re[i] + (double)im[i] * (double)im[i] > 1)
                    round_inwards(re + i, im + i, pr[i], pi[i]);
            double *t = pr;
            pr = qr, qr = t;
            t = pi, pi = qi, qi = t;
        }
    }
}

typedef struct build {
    mix_plan *p;
    const ida_interdomain_args *a;
    float *tmp; /* per worker: two [mp, ldm] */
    double *dtmp; /* per worker: 8 m */
} build;

/* gg = real form of a -> conj(w(a) G): rows re(a) then im(a), columns re then im. c = [Cr | Ci]. */
static void build_gg(float *gg, float *c, float *c2, const mix_dims *n, const ida_interdomain_args *a, int64_t g) {
    const int64_t m = n->m, mp = n->mp, ld = n->ldm;
    const bool hermitian = a->readout == IDA_READOUT_HERMITIAN;
    const float sign = hermitian ? 1.0f : -1.0f;
    smm_pack(c, ld, a->ssm.c_re + g * m * m, m, m, m, mp);
    smm_pack(c + mp, ld, a->ssm.c_im + g * m * m, m, m, m, mp);
    for (int64_t i = 0; i < mp; i++)
        for (int64_t j = 0; j < mp; j++) {
            c2[i * ld + j] = sign * c[i * ld + mp + j];
            c2[i * ld + mp + j] = -sign * c[i * ld + j];
        }
    /* hermitian G = C^H C: Gr = Cr'Cr + Ci'Ci, Gi = Cr'Ci - Ci'Cr; bilinear G = C^T C: Gr = Cr'Cr - Ci'Ci, Gi = Cr'Ci + Ci'Cr */
    const smm_term t[2] = {mix_term(c, 1, ld, c, ld, m, SMM_FULL), mix_term(c + mp, 1, ld, c2, ld, m, SMM_FULL)};
    float *lower = gg + mp * ld;
    smm(gg, ld, mp, n->m2, false, t, 2);
    for (int64_t i = 0; i < mp; i++)
        for (int64_t j = 0; j < mp; j++) {
            const float re = gg[i * ld + j], im = gg[i * ld + mp + j];
            gg[i * ld + mp + j] = -im;
            lower[i * ld + j] = sign * im;
            lower[i * ld + mp + j] = sign * re;
        }
}

static void build_task(void *arg, int64_t g, int worker) {
    const build *b = arg;
    const mix_plan *p = b->p;
    const mix_dims *n = &p->n;
    mix_table *t = p->tables + g;
    double *tmp = b->dtmp + worker * 8 * n->m, *log_abs = tmp, *angle = tmp + n->m;
    float *c = b->tmp + worker * 2 * n->mp * n->ldm;
    build_gg(t->gg, c, c + n->mp * n->ldm, n, b->a, g);
    ida_ref_ssm_discretize(&b->a->ssm, g, n->m, tmp, tmp + n->m, t->b_re, t->b_im);
    ida_ref_ssm_log_lam(&b->a->ssm, g, n->m, log_abs, angle);
    double alpha = 0;
    for (int64_t i = 0; i < n->m; i++)
        if (!(-log_abs[i] <= alpha)) alpha = -log_abs[i];
    while (t->chunk > 1 && !(alpha * (double)t->chunk / 2 <= MIX_MAX_NATS)) t->chunk /= 2;
    t->centre = t->chunk / 2;
    IDA_CPU(mix_powers)(t->pw, n->ldm, log_abs, angle, n->m, -t->centre, t->chunk, tmp + 2 * n->m);
    memset(t->f, 0, (size_t)(smm_pad(t->chunk) * n->ldm) * sizeof *t->f);
    memset(t->ft, 0, (size_t)(n->m2 * p->ldt) * sizeof *t->ft);
    for (int64_t j = 0; j < t->chunk; j++) {
        const float *re = t->pw + (2 * t->centre - j) * n->ldm, *im = re + n->mp;
        float *f = t->f + j * n->ldm;
        for (int64_t i = 0; i < n->m; i++) {
            f[i] = (float)(t->b_re[i] * (double)re[i] - t->b_im[i] * (double)im[i]);
            f[n->mp + i] = (float)(t->b_re[i] * (double)im[i] + t->b_im[i] * (double)re[i]);
        }
    }
    smm_transpose(t->ft, p->ldt, t->f, n->ldm, t->chunk, n->m2);
}

/* Floats of one group's tables for the chunk limit c. */
static int64_t table_floats(const mix_dims *n, int64_t c, int64_t ldt) {
    return (c + c / 2 + 1) * n->ldm + smm_pad(c) * n->ldm + n->m2 * ldt + n->m2 * n->ldm + smm_ld(4 * n->m);
}

ida_status IDA_CPU(mix_plan_open)(mix_plan *p, const ida_interdomain_args *a, const ida_seqs *seqs) {
    mix_dims *n = &p->n;
    *p = (mix_plan){.groups = a->g};
    int64_t chunk = 1, longest = 0;
    const int64_t limit = a->chunk > 0 && a->chunk < MIX_CHUNK ? a->chunk : MIX_CHUNK;
    while (2 * chunk <= limit) chunk *= 2;
    for (int64_t s = 0; s < seqs->n; s++)
        if (mix_seq_len(seqs, s) > longest) longest = mix_seq_len(seqs, s);
    n->m = a->m, n->mp = smm_pad(a->m), n->m2 = 2 * n->mp, n->ldm = smm_ld(n->m2);
    n->r = a->r, n->rp = smm_pad(a->r), n->ldr = smm_ld(n->rp);
    n->d = a->d, n->dp = smm_pad(a->d), n->ldd = smm_ld(n->dp), n->wp = n->rp + n->dp;
    n->rows = smm_pad(longest < chunk ? longest : chunk), n->ldc = smm_ld(n->rows);
    p->ldt = smm_ld(smm_pad(chunk));
    p->staged_over = mix_staged_over(seqs, a->g, chunk);

    const int64_t each = table_floats(n, chunk, p->ldt), workers = ida_workers();
    const int64_t tmp = workers * (2 * n->mp * n->ldm + smm_ld(16 * n->m));
    float *at;
    IDA_TRY(ida_alloc(&p->mem, a->g * (each + (int64_t)sizeof(mix_table) / 4) + tmp, sizeof(float), "tables of the mixer"));
    at = p->mem;
    for (int64_t g = 0; g < a->g; g++) at += each;
    const build b = {p, a, at, (double *)(void *)(at + workers * 2 * n->mp * n->ldm)};
    p->tables = (mix_table *)(void *)(at + tmp);
    at = p->mem;
    for (int64_t g = 0; g < a->g; g++) {
        mix_table *t = p->tables + g;
        t->chunk = chunk;
        t->b_re = (double *)(void *)at, t->b_im = t->b_re + n->m, at += smm_ld(4 * n->m);
        t->pw = at, at += (chunk + chunk / 2 + 1) * n->ldm;
        t->f = at, at += smm_pad(chunk) * n->ldm;
        t->ft = at, at += n->m2 * p->ldt;
        t->gg = at, at += n->m2 * n->ldm;
    }
    ida_parallel(a->g, build_task, (void *)(uintptr_t)&b);
    return IDA_OK;
}

void IDA_CPU(mix_plan_close)(mix_plan *p) {
    ida_free(p->mem);
    p->mem = NULL;
}
