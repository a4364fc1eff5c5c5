/* interdomain.c - the mixer core token by token: sequential forward and backward, and the decoding step. The truth the other
 * forms are tested against (docs/method.md section 2, steps 6-7); it is not meant to be fast. The chunked form is in
 * interdomain_chunk.c. Invariant: the state of a sequence lives in double from its first token to its last; only the state
 * arrays of the caller are `real`. */
#include <string.h>
#include "core/mem.h"
#include "ops/ref/scan.h"

/* Tokens between stored states of the backward pass; inside a block states are formed again. */
enum { BLOCK = 64 };

/* Scratch of one call. x: states [n_x,M,W]; the rest as named in docs/method.md. */
typedef struct work {
    void *mem;
    cplx *lam, *b, *c, *x, *a, *s, *p, *block_x, *dx, *dp, *ds, *da, *dlam, *db, *dc;
    double *z, *dz;
} work;

static ida_status work_open(work *w, const ida_interdomain_args *a, int64_t n_states, int64_t n_blocks, bool bwd) {
    const int64_t m = a->m, width = a->r + a->d, mw = m * width;
    const int64_t per_bwd = bwd ? n_blocks * mw + mw + 5 * m + m * m : 0;
    cplx *at;
    IDA_TRY(ida_alloc(&w->mem, 5 * m + m * m + n_states * mw + per_bwd + width, sizeof(cplx), "interdomain sequential scratch"));
    at = w->mem;
    w->lam = take(&at, m);
    w->b = take(&at, m);
    w->c = take(&at, m * m);
    w->a = take(&at, m);
    w->s = take(&at, m);
    w->p = take(&at, m);
    w->x = take(&at, n_states * mw);
    w->z = (double *)take(&at, width); /* width complex = z and dz */
    w->dz = w->z + width;
    if (!bwd) return IDA_OK;
    w->block_x = take(&at, n_blocks * mw);
    w->dx = take(&at, mw);
    w->dp = take(&at, m);
    w->ds = take(&at, m);
    w->da = take(&at, m);
    w->dlam = take(&at, m);
    w->db = take(&at, m);
    w->dc = take(&at, m * m);
    return IDA_OK;
}

/* The scratch that is not in use yet lends its memory: any state of width >= 2 holds 4 M doubles. */
static void group_load(work *w, const ida_interdomain_args *a, int64_t g) {
    lam_load(w->lam, w->b, (double *)w->x, &a->ssm, g, a->m);
    c_load(w->c, &a->ssm, g, a->m);
}

/* a = X_k q;  s = C a (that is U q);  p = C^T w(s), so that o = Re p^T X_v = Re sum_n w((U q)_n) Gam[n,:]. */
static void readout_coefs(work *w, const ida_interdomain_args *arg, const cplx *x, const real *q) {
    const int64_t m = arg->m, width = arg->r + arg->d;
    for (int64_t i = 0; i < m; i++) {
        w->a[i] = 0;
        for (int64_t j = 0; j < arg->r; j++) w->a[i] += x[i * width + j] * (double)q[j];
    }
    for (int64_t n = 0; n < m; n++) {
        w->s[n] = 0;
        for (int64_t i = 0; i < m; i++) w->s[n] += w->c[n * m + i] * w->a[i];
    }
    for (int64_t i = 0; i < m; i++) w->p[i] = 0;
    for (int64_t n = 0; n < m; n++) {
        const cplx ws = arg->readout == IDA_READOUT_HERMITIAN ? conj(w->s[n]) : w->s[n];
        for (int64_t i = 0; i < m; i++) w->p[i] += ws * w->c[n * m + i];
    }
}

static void readout(work *w, const ida_interdomain_args *a, const cplx *x, const real *q, real *o) {
    const int64_t width = a->r + a->d;
    readout_coefs(w, a, x, q);
    for (int64_t j = 0; j < a->d; j++) {
        double sum = 0;
        for (int64_t i = 0; i < a->m; i++) sum += re_mul(w->p[i], x[i * width + a->r + j]);
        o[j] = (real)sum;
    }
}

ida_status IDA_REF(interdomain_seq_fwd)(const ida_device *dev, const ida_interdomain_args *a, const ida_seqs *seqs) {
    (void)dev;
    const int64_t width = a->r + a->d, mw = a->m * width, per_group = a->h / a->g;
    work w;
    IDA_TRY(work_open(&w, a, 1, 0, false));
    for (int64_t g = 0; g < a->g; g++) {
        group_load(&w, a, g);
        for (int64_t s = 0; s < seqs->n; s++) {
            state_load(w.x, &a->state_in, s, g, mw);
            for (int64_t t = seqs->cu[s]; t < seqs->cu[s + 1]; t++) {
                z_load(w.z, a->k, a->v, t, g, a->g, a->r, a->d);
                state_step(w.x, w.x, w.lam, w.b, w.z, a->m, width);
                for (int64_t h = g * per_group; h < (g + 1) * per_group; h++)
                    readout(&w, a, w.x, ida_act_real(a->q) + (t * a->h + h) * a->r, ida_act_real(a->o) + (t * a->h + h) * a->d);
            }
            state_store(&a->state_out, w.x, s, g, mw);
        }
    }
    ida_free(w.mem);
    return IDA_OK;
}

/* One query's read-out backwards: adds to dx and dc, writes dq. Forward line above each derivative. */
static void readout_bwd(work *w, const ida_interdomain_args *arg, const cplx *x, const real *q, const real *dout, real *dq) {
    const int64_t m = arg->m, width = arg->r + arg->d;
    const bool hermitian = arg->readout == IDA_READOUT_HERMITIAN;
    readout_coefs(w, arg, x, q);
    /* o_j = Re sum_i p_i X_v[i,j] */
    for (int64_t i = 0; i < m; i++) {
        const cplx *xv = x + i * width + arg->r;
        cplx *dxv = w->dx + i * width + arg->r;
        w->dp[i] = 0;
        for (int64_t j = 0; j < arg->d; j++) {
            w->dp[i] += conj(xv[j]) * (double)dout[j];
            dxv[j] += conj(w->p[i]) * (double)dout[j];
        }
    }
    /* p_i = sum_n w(s_n) C_ni;  s_n = sum_i C_ni a_i */
    for (int64_t i = 0; i < m; i++) w->da[i] = 0;
    for (int64_t n = 0; n < m; n++) {
        const cplx ws = hermitian ? conj(w->s[n]) : w->s[n], *c = w->c + n * m;
        cplx dws = 0, *dc = w->dc + n * m;
        for (int64_t i = 0; i < m; i++) dws += conj(c[i]) * w->dp[i];
        w->ds[n] = hermitian ? conj(dws) : dws;
        for (int64_t i = 0; i < m; i++) {
            dc[i] += conj(ws) * w->dp[i] + w->ds[n] * conj(w->a[i]);
            w->da[i] += conj(c[i]) * w->ds[n];
        }
    }
    /* a_i = sum_j X_k[i,j] q_j */
    for (int64_t j = 0; j < arg->r; j++) {
        double sum = 0;
        for (int64_t i = 0; i < m; i++) sum += re_conj_mul(x[i * width + j], w->da[i]);
        dq[j] = (real)sum;
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < arg->r; j++) w->dx[i * width + j] += w->da[i] * (double)q[j];
}

/* One sequence of one group, w->dx holding the gradient of the final state on entry and of the initial one on exit. */
static void sequence_bwd(work *w, const ida_interdomain_args *a, const ida_interdomain_grads *gr, int64_t t0, int64_t n,
                         int64_t g) {
    const int64_t width = a->r + a->d, mw = a->m * width, per_group = a->h / a->g;
    for (int64_t i = 0; i < n; i++) { /* x [0] holds the initial state */
        if (i % BLOCK == 0) memcpy(w->block_x + i / BLOCK * mw, w->x, (size_t)mw * sizeof *w->x);
        z_load(w->z, a->k, a->v, t0 + i, g, a->g, a->r, a->d);
        state_step(w->x, w->x, w->lam, w->b, w->z, a->m, width);
    }
    for (int64_t first = (n - 1) / BLOCK * BLOCK; n > 0 && first >= 0; first -= BLOCK) {
        const int64_t len = min64(BLOCK, n - first);
        memcpy(w->x, w->block_x + first / BLOCK * mw, (size_t)mw * sizeof *w->x);
        for (int64_t i = 0; i < len; i++) { /* x [i] = state before token first + i */
            z_load(w->z, a->k, a->v, t0 + first + i, g, a->g, a->r, a->d);
            state_step(w->x + (i + 1) * mw, w->x + i * mw, w->lam, w->b, w->z, a->m, width);
        }
        for (int64_t i = len - 1; i >= 0; i--) {
            const int64_t t = t0 + first + i;
            for (int64_t h = g * per_group; h < (g + 1) * per_group; h++) {
                const int64_t row = t * a->h + h;
                const real *q = ida_act_real(a->q) + row * a->r, *dout = ida_act_real(gr->dout) + row * a->d;
                readout_bwd(w, a, w->x + (i + 1) * mw, q, dout, ida_act_real(gr->dq) + row * a->r);
            }
            z_load(w->z, a->k, a->v, t, g, a->g, a->r, a->d);
            state_step_bwd(w->dx, w->dz, w->dlam, w->db, w->x + i * mw, w->lam, w->b, w->z, a->m, width);
            dz_store(gr->dk, gr->dv, w->dz, t, g, a->g, a->r, a->d);
        }
    }
}

ida_status IDA_REF(interdomain_seq_bwd)(const ida_device *dev, const ida_interdomain_args *a, const ida_interdomain_grads *gr,
                                        const ida_seqs *seqs) {
    (void)dev;
    const int64_t m = a->m, mw = m * (a->r + a->d);
    const int64_t longest = longest_seq(seqs);
    work w;
    IDA_TRY(work_open(&w, a, min64(longest, BLOCK) + 1, (longest + BLOCK - 1) / BLOCK, true));
    for (int64_t g = 0; g < a->g; g++) {
        group_load(&w, a, g);
        for (int64_t i = 0; i < m; i++) w.dlam[i] = w.db[i] = 0;
        for (int64_t i = 0; i < m * m; i++) w.dc[i] = 0;
        for (int64_t s = 0; s < seqs->n; s++) {
            state_load(w.x, &a->state_in, s, g, mw);
            state_load(w.dx, &gr->dstate_out, s, g, mw);
            sequence_bwd(&w, a, gr, seqs->cu[s], seqs->cu[s + 1] - seqs->cu[s], g);
            state_store(&gr->dstate_in, w.dx, s, g, mw);
        }
        double *t = (double *)w.x;
        pack_rows(t, w.dlam, w.db, m);
        IDA_REF(ssm_discretize_bwd)(&a->ssm, g, m, t, t + m, t + 2 * m, t + 3 * m, &gr->dssm);
        c_grad_add(&gr->dssm, w.dc, g, m);
    }
    ida_free(w.mem);
    return IDA_OK;
}

ida_status IDA_REF(interdomain_step)(const ida_device *dev, const ida_interdomain_args *a, const ida_ssm_prep *prep,
                                     int64_t n_seq) {
    (void)dev;
    const int64_t m = a->m, width = a->r + a->d, mw = m * width, per_group = a->h / a->g;
    cplx *x, *live, *coef;
    double *z;
    void *mem;
    IDA_TRY(ida_alloc(&mem, mw + 2 * m + width, sizeof(cplx), "interdomain step scratch"));
    x = mem, live = x + mw, coef = live + m, z = (double *)(coef + m);
    for (int64_t s = 0; s < n_seq; s++) {
        for (int64_t g = 0; g < a->g; g++) {
            state_load(x, &a->state_in, s, g, mw);
            z_load(z, a->k, a->v, s, g, a->g, a->r, a->d);
            for (int64_t i = 0; i < m; i++) {
                const cplx lam = cx((double)prep->lam_re[g * m + i], (double)prep->lam_im[g * m + i]);
                const cplx b = cx((double)prep->b_re[g * m + i], (double)prep->b_im[g * m + i]);
                state_step(x + i * width, x + i * width, &lam, &b, z, 1, width);
            }
            state_store(&a->state_in, x, s, g, mw);
            for (int64_t h = g * per_group; h < (g + 1) * per_group; h++) {
                const real *q = ida_act_real(a->q) + (s * a->h + h) * a->r;
                for (int64_t i = 0; i < m; i++) {
                    live[i] = 0;
                    for (int64_t j = 0; j < a->r; j++) live[i] += x[i * width + j] * (double)q[j];
                    if (a->readout == IDA_READOUT_HERMITIAN) live[i] = conj(live[i]);
                    coef[i] = 0;
                }
                for (int64_t i = 0; i < m; i++) /* c = w(a)^T G */
                    for (int64_t j = 0; j < m; j++)
                        coef[j] += live[i] * cx((double)prep->g_re[(g * m + i) * m + j], (double)prep->g_im[(g * m + i) * m + j]);
                for (int64_t j = 0; j < a->d; j++) {
                    double sum = 0;
                    for (int64_t i = 0; i < m; i++) sum += re_mul(coef[i], x[i * width + a->r + j]);
                    ida_act_real(a->o)[(s * a->h + h) * a->d + j] = (real)sum;
                }
            }
        }
    }
    ida_free(mem);
    return IDA_OK;
}
