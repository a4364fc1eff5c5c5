/* interdomain_chunk.c - the reassociated chunked form of the mixer core and its backward (docs/method.md sections 4 and 5, whose
 * symbols are used here), plainly: the readable twin of the vector code. U_t and Gamma_t never exist. Extra memory is O(chunk)
 * plus, backward, one state per 64 tokens. Invariant: no table entry exceeds e^40 in size, whatever the decay (chunk_length); a
 * power that is too small is exactly 0. */
#include <string.h>
#include "core/mem.h"
#include "ops/ref/scan.h"

/* Tokens between stored states of the backward pass: a multiple of every chunk length. */
enum { BLOCK = 64 };
static const double MAX_LOG_GROWTH = 40;

typedef struct work {
    void *mem;
    int64_t len;                       /* C, the chunk length of this group */
    double *log_abs, *angle;           /* log Lam, [M] */
    cplx *b, *gram, *c;                /* Bbar [M], G and C [M,M] */
    cplx *e, *f, *lag;                 /* E_i = Bbar Lam^(i-C/2), F_j = Lam^(C/2-j) [C,M]; Lam^n [C+1,M] */
    double *z, *score, *weight;        /* [C,R+D]; S and P [C,C] */
    cplx *x, *t, *y, *a, *coef, *left; /* state [M,R+D]; T, Y = X_k q, a, c, conj(c_i E_i) [C,M] */
    /* backward */
    double *dz, *dscore, *dweight, *pack;
    cplx *block_x, *chunk_x, *dx, *dt, *dy, *da, *dcoef;
    cplx *de, *df, *dlag, *dw, *dgram, *dc; /* dw_n: of W at lag n */
} work;

static int64_t chunk_length(const double *log_abs, int64_t m, int64_t chunk) {
    double fastest = 0;
    for (int64_t i = 0; i < m; i++) fastest = fmax(fastest, -log_abs[i]);
    int64_t len = 1, limit = chunk > 0 ? chunk : BLOCK;
    while (2 * len <= limit && len < BLOCK) len *= 2;
    while (len > 1 && fastest * (double)len / 2 > MAX_LOG_GROWTH) len /= 2;
    return len;
}

static ida_status work_open(work *w, const ida_interdomain_args *a, int64_t n_blocks, bool bwd) {
    const int64_t m = a->m, width = a->r + a->d, mw = m * width, c = BLOCK, cm = c * m;
    int64_t need = 2 * m + 2 * m * m + 2 * cm + cm + m + c * width + 2 * c * c + mw + 5 * cm;
    if (bwd) need += c * width + 2 * c * c + 4 * m + (n_blocks + c + 1) * mw + 8 * cm + m + 2 * m * m;
    IDA_TRY(ida_alloc(&w->mem, need, sizeof(cplx), "interdomain chunk scratch"));
    cplx *at = w->mem;
    w->log_abs = (double *)take(&at, m);
    w->angle = w->log_abs + m;
    w->b = take(&at, m);
    w->gram = take(&at, m * m);
    w->c = take(&at, m * m);
    w->e = take(&at, cm);
    w->f = take(&at, cm);
    w->lag = take(&at, cm + m);
    w->z = (double *)take(&at, c * width);
    w->score = (double *)take(&at, c * c);
    w->weight = (double *)take(&at, c * c);
    w->x = take(&at, mw);
    w->t = take(&at, cm);
    w->y = take(&at, cm);
    w->a = take(&at, cm);
    w->coef = take(&at, cm);
    w->left = take(&at, cm);
    if (!bwd) return IDA_OK;
    w->dz = (double *)take(&at, c * width);
    w->dscore = (double *)take(&at, c * c);
    w->dweight = (double *)take(&at, c * c);
    w->pack = (double *)take(&at, 4 * m);
    w->block_x = take(&at, n_blocks * mw);
    w->chunk_x = take(&at, c * mw);
    w->dx = take(&at, mw);
    w->dt = take(&at, cm);
    w->dy = take(&at, cm);
    w->da = take(&at, cm);
    w->dcoef = take(&at, cm);
    w->de = take(&at, cm);
    w->df = take(&at, cm);
    w->dlag = take(&at, cm + m);
    w->dw = take(&at, cm);
    w->dgram = take(&at, m * m);
    w->dc = take(&at, m * m);
    return IDA_OK;
}

/* C, G = C^H C or C^T C, and the tables of one group. The powers come from log Lam, not from Lam. */
static void group_load(work *w, const ida_interdomain_args *a, int64_t g) {
    const int64_t m = a->m;
    lam_load(w->t, w->b, (double *)w->x, &a->ssm, g, m);
    IDA_REF(ssm_log_lam)(&a->ssm, g, m, w->log_abs, w->angle);
    w->len = chunk_length(w->log_abs, m, a->chunk);
    const int64_t mid = w->len / 2;
    for (int64_t n = 0; n <= w->len; n++) {
        for (int64_t i = 0; i < m; i++) {
            w->lag[n * m + i] = lam_pow(w->log_abs[i], w->angle[i], n);
            if (n == w->len) continue;
            w->e[n * m + i] = w->b[i] * lam_pow(w->log_abs[i], w->angle[i], n - mid);
            w->f[n * m + i] = lam_pow(w->log_abs[i], w->angle[i], mid - n);
        }
    }
    c_load(w->c, &a->ssm, g, m);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < m; j++) {
            cplx sum = 0;
            for (int64_t n = 0; n < m; n++) {
                const cplx left = w->c[n * m + i];
                sum += (a->readout == IDA_READOUT_HERMITIAN ? conj(left) : left) * w->c[n * m + j];
            }
            w->gram[i * m + j] = sum;
        }
    }
}

/* Score to basis: out_i = sum_{j<=i} s_ij F_j. */
static void score_to_basis(cplx *out, const double *s, const cplx *f, int64_t len, int64_t m) {
    for (int64_t i = 0; i < len; i++) {
        for (int64_t n = 0; n < m; n++) out[i * m + n] = 0;
        for (int64_t j = 0; j <= i; j++)
            for (int64_t n = 0; n < m; n++) out[i * m + n] += s[i * len + j] * f[j * m + n];
    }
}

/* Basis to score: out_ij = Re sum_n conj(left_in) F_jn, j <= i. */
static void basis_to_score(double *out, const cplx *left, const cplx *f, int64_t len, int64_t m) {
    for (int64_t i = 0; i < len; i++) {
        for (int64_t j = 0; j <= i; j++) {
            out[i * len + j] = 0;
            for (int64_t n = 0; n < m; n++) out[i * len + j] += re_conj_mul(left[i * m + n], f[j * m + n]);
        }
    }
}

/* out_ij = sum_n rows_in z_jn, j <= i: dot products with one half of z. rows are `stride` apart. */
static void dot_rows(double *out, const real *rows, int64_t stride, const double *z, int64_t width, int64_t n_dim, int64_t len) {
    for (int64_t i = 0; i < len; i++) {
        for (int64_t j = 0; j <= i; j++) {
            out[i * len + j] = 0;
            for (int64_t n = 0; n < n_dim; n++) out[i * len + j] += (double)rows[i * stride + n] * z[j * width + n];
        }
    }
}

/* S, T, Y, a, c of one head and chunk; x is the state before it, q its first row. */
static void head_coefs(work *w, const ida_interdomain_args *arg, const cplx *x, const real *q, int64_t len) {
    const int64_t m = arg->m, width = arg->r + arg->d, q_stride = arg->h * arg->r;
    dot_rows(w->score, q, q_stride, w->z, width, arg->r, len);
    score_to_basis(w->t, w->score, w->f, len, m);
    for (int64_t i = 0; i < len; i++) {
        const real *qi = q + i * q_stride;
        cplx *a = w->a + i * m, *c = w->coef + i * m;
        for (int64_t n = 0; n < m; n++) {
            cplx y = 0;
            for (int64_t j = 0; j < arg->r; j++) y += x[n * width + j] * (double)qi[j];
            w->y[i * m + n] = y;
            a[n] = w->e[i * m + n] * w->t[i * m + n] + w->lag[(i + 1) * m + n] * y;
            c[n] = 0;
        }
        for (int64_t n = 0; n < m; n++) { /* c = w(a)^T G */
            const cplx wa = arg->readout == IDA_READOUT_HERMITIAN ? conj(a[n]) : a[n];
            for (int64_t j = 0; j < m; j++) c[j] += wa * w->gram[n * m + j];
        }
        for (int64_t n = 0; n < m; n++) w->left[i * m + n] = conj(c[n] * w->e[i * m + n]);
    }
}

/* o = P V + Re (c Lam^(i+1)) X_v, P_ij = Re sum_n c_in E_in F_jn. */
static void head_out(work *w, const ida_interdomain_args *a, const cplx *x, real *o, int64_t len) {
    const int64_t m = a->m, width = a->r + a->d;
    basis_to_score(w->weight, w->left, w->f, len, m);
    for (int64_t i = 0; i < len; i++) {
        for (int64_t j = 0; j < a->d; j++) {
            double sum = 0;
            for (int64_t n = 0; n <= i; n++) sum += w->weight[i * len + n] * w->z[n * width + a->r + j];
            for (int64_t n = 0; n < m; n++) sum += re_mul(w->coef[i * m + n] * w->lag[(i + 1) * m + n], x[n * width + a->r + j]);
            o[i * a->h * a->d + j] = (real)sum;
        }
    }
}

static void chunk_load(work *w, const ida_interdomain_args *a, int64_t t, int64_t g, int64_t len) {
    const int64_t width = a->r + a->d;
    for (int64_t i = 0; i < len; i++) z_load(w->z + i * width, a->k, a->v, t + i, g, a->g, a->r, a->d);
}

ida_status IDA_REF(interdomain_chunk_fwd)(const ida_device *dev, const ida_interdomain_args *a, const ida_seqs *seqs) {
    (void)dev;
    const int64_t width = a->r + a->d, mw = a->m * width, per_group = a->h / a->g;
    work w;
    IDA_TRY(work_open(&w, a, 0, false));
    for (int64_t g = 0; g < a->g; g++) {
        group_load(&w, a, g);
        for (int64_t s = 0; s < seqs->n; s++) {
            const int64_t end = seqs->cu[s + 1];
            state_load(w.x, &a->state_in, s, g, mw);
            for (int64_t t = seqs->cu[s]; t < end; t += w.len) {
                const int64_t len = min64(w.len, end - t);
                chunk_load(&w, a, t, g, len);
                for (int64_t h = g * per_group; h < (g + 1) * per_group; h++) {
                    head_coefs(&w, a, w.x, ida_act_real(a->q) + (t * a->h + h) * a->r, len);
                    head_out(&w, a, w.x, ida_act_real(a->o) + (t * a->h + h) * a->d, len);
                }
                state_advance(w.x, w.lag, w.b, w.z, a->m, width, len);
            }
            state_store(&a->state_out, w.x, s, g, mw);
        }
    }
    ida_free(w.mem);
    return IDA_OK;
}

/* From dO to dc, dV, and what the value half gives to dX, dE, dF and the powers. */
static void value_bwd(work *w, const ida_interdomain_args *a, const cplx *x, const real *dout, int64_t len) {
    const int64_t m = a->m, width = a->r + a->d, stride = a->h * a->d;
    dot_rows(w->dweight, dout, stride, w->z + a->r, width, a->d, len); /* dP_ij = dO_i . v_j */
    score_to_basis(w->dt, w->dweight, w->f, len, m);                   /* conj(Q_i), Q_i = sum_j dP_ij conj(F_j) */
    basis_to_score(w->weight, w->left, w->f, len, m);
    for (int64_t i = 0; i < len; i++) {
        const real *doi = dout + i * stride;
        for (int64_t n = 0; n < m; n++) {
            const int64_t in = i * m + n;
            const cplx power = w->lag[in + m], q = conj(w->dt[in]), *xv = x + n * width + a->r;
            cplx back = 0, *dxv = w->dx + n * width + a->r;
            for (int64_t j = 0; j < a->d; j++) { /* o_i += Re (c_i Lam^(i+1)) X_v */
                back += conj(xv[j]) * (double)doi[j];
                dxv[j] += conj(w->coef[in] * power) * (double)doi[j];
            }
            w->dcoef[in] = conj(w->e[in]) * q + conj(power) * back;
            w->de[in] += conj(w->coef[in]) * q;
            w->dlag[in + m] += conj(w->coef[in]) * back;
        }
        for (int64_t j = 0; j <= i; j++) { /* P_ij = Re sum_n conj(left_in) F_jn;  o_i = sum_j P_ij v_j */
            for (int64_t n = 0; n < m; n++) w->df[j * m + n] += w->dweight[i * len + j] * w->left[i * m + n];
            for (int64_t n = 0; n < a->d; n++) w->dz[j * width + a->r + n] += w->weight[i * len + j] * (double)doi[n];
        }
    }
}

/* c_i = w(a_i)^T G backwards: dG, da. */
static void gram_bwd(work *w, const ida_interdomain_args *arg, int64_t len) {
    const int64_t m = arg->m;
    const bool hermitian = arg->readout == IDA_READOUT_HERMITIAN;
    for (int64_t i = 0; i < len; i++) {
        for (int64_t n = 0; n < m; n++) {
            const cplx a = w->a[i * m + n], conj_wa = hermitian ? a : conj(a);
            cplx dwa = 0;
            for (int64_t j = 0; j < m; j++) {
                w->dgram[n * m + j] += conj_wa * w->dcoef[i * m + j];
                dwa += conj(w->gram[n * m + j]) * w->dcoef[i * m + j];
            }
            w->da[i * m + n] = hermitian ? conj(dwa) : dwa;
        }
    }
}

/* From da to dQ, dK, and what the key half gives to dX, dE, dF and the powers. */
static void key_bwd(work *w, const ida_interdomain_args *a, const cplx *x, const real *q, real *dq, int64_t len) {
    const int64_t m = a->m, width = a->r + a->d, stride = a->h * a->r;
    for (int64_t in = 0; in < len * m; in++) { /* a_i = E_i T_i + Lam^(i+1) Y_i */
        w->dt[in] = conj(w->e[in]) * w->da[in];
        w->dy[in] = conj(w->lag[in + m]) * w->da[in];
        w->de[in] += conj(w->t[in]) * w->da[in];
        w->dlag[in + m] += conj(w->y[in]) * w->da[in];
    }
    basis_to_score(w->dscore, w->dt, w->f, len, m); /* T_i = sum_j S_ij F_j */
    for (int64_t i = 0; i < len; i++) {
        const real *qi = q + i * stride;
        for (int64_t r = 0; r < a->r; r++) {
            double sum = 0;
            for (int64_t j = 0; j <= i; j++) sum += w->dscore[i * len + j] * w->z[j * width + r];
            for (int64_t n = 0; n < m; n++) { /* Y_i = X_k q_i */
                sum += re_conj_mul(x[n * width + r], w->dy[i * m + n]);
                w->dx[n * width + r] += w->dy[i * m + n] * (double)qi[r];
            }
            dq[i * stride + r] = (real)sum;
        }
        for (int64_t j = 0; j <= i; j++) {
            for (int64_t n = 0; n < m; n++) w->df[j * m + n] += w->score[i * len + j] * w->dt[i * m + n];
            for (int64_t r = 0; r < a->r; r++) w->dz[j * width + r] += w->dscore[i * len + j] * (double)qi[r];
        }
    }
}

/* state_advance() backwards: dx becomes the carried part of the gradient of the state before the chunk; dz is set. */
static void advance_bwd(work *w, const cplx *x, int64_t m, int64_t width, int64_t len) {
    for (int64_t i = 0; i < len * width; i++) w->dz[i] = 0;
    for (int64_t i = 0; i < m; i++) {
        const cplx carry = w->lag[len * m + i];
        for (int64_t n = 0; n < width; n++) {
            const cplx dx = w->dx[i * width + n];
            for (int64_t j = 0; j < len; j++) {
                const int64_t lag = len - 1 - j;
                w->dz[j * width + n] += re_conj_mul(w->b[i] * w->lag[lag * m + i], dx);
                w->dw[lag * m + i] += dx * w->z[j * width + n];
            }
            w->dlag[len * m + i] += conj(x[i * width + n]) * dx;
            w->dx[i * width + n] = conj(carry) * dx;
        }
    }
}

static void chunk_bwd(work *w, const ida_interdomain_args *a, const ida_interdomain_grads *gr, const cplx *x, int64_t t,
                      int64_t g, int64_t len) {
    const int64_t width = a->r + a->d, per_group = a->h / a->g;
    chunk_load(w, a, t, g, len);
    advance_bwd(w, x, a->m, width, len);
    for (int64_t h = g * per_group; h < (g + 1) * per_group; h++) {
        const int64_t row = t * a->h + h;
        head_coefs(w, a, x, ida_act_real(a->q) + row * a->r, len);
        value_bwd(w, a, x, ida_act_real(gr->dout) + row * a->d, len);
        gram_bwd(w, a, len);
        key_bwd(w, a, x, ida_act_real(a->q) + row * a->r, ida_act_real(gr->dq) + row * a->r, len);
    }
    for (int64_t i = 0; i < len; i++) dz_store(gr->dk, gr->dv, w->dz + i * width, t + i, g, a->g, a->r, a->d);
}

/* One sequence; w->x holds its initial state, w->dx the gradient of the final state and then of the initial one. */
static void sequence_bwd(work *w, const ida_interdomain_args *a, const ida_interdomain_grads *gr, int64_t t0, int64_t n,
                         int64_t g) {
    const int64_t width = a->r + a->d, mw = a->m * width;
    const size_t bytes = (size_t)mw * sizeof *w->x;
    for (int64_t i = 0; i < n; i += w->len) {
        if (i % BLOCK == 0) memcpy(w->block_x + i / BLOCK * mw, w->x, bytes);
        const int64_t len = min64(w->len, n - i);
        chunk_load(w, a, t0 + i, g, len);
        state_advance(w->x, w->lag, w->b, w->z, a->m, width, len);
    }
    for (int64_t first = (n - 1) / BLOCK * BLOCK; n > 0 && first >= 0; first -= BLOCK) {
        const int64_t size = min64(BLOCK, n - first), chunks = (size + w->len - 1) / w->len;
        memcpy(w->chunk_x, w->block_x + first / BLOCK * mw, bytes);
        for (int64_t c = 1; c < chunks; c++) {
            memcpy(w->chunk_x + c * mw, w->chunk_x + (c - 1) * mw, bytes);
            chunk_load(w, a, t0 + first + (c - 1) * w->len, g, w->len);
            state_advance(w->chunk_x + c * mw, w->lag, w->b, w->z, a->m, width, w->len);
        }
        for (int64_t c = chunks - 1; c >= 0; c--)
            chunk_bwd(w, a, gr, w->chunk_x + c * mw, t0 + first + c * w->len, g, min64(w->len, size - c * w->len));
    }
}

/* The tables are the same in every chunk, so their gradients were summed over all of them; here they reach log Lam, Bbar and C.
 */
static void tables_bwd(work *w, const ida_interdomain_args *a, const ida_ssm_grads *d, int64_t g) {
    const int64_t m = a->m, mid = w->len / 2;
    for (int64_t i = 0; i < m; i++) {
        cplx dlog = 0, db = 0;
        for (int64_t n = 0; n <= w->len; n++) {
            const int64_t at = n * m + i;
            dlog += (double)n * conj(w->lag[at]) * w->dlag[at];
            if (n == w->len) continue;
            dlog += (double)n * conj(w->b[i] * w->lag[at]) * w->dw[at];
            dlog += (double)(n - mid) * (conj(w->e[at]) * w->de[at] - conj(w->f[at]) * w->df[at]);
            db += conj(lam_pow(w->log_abs[i], w->angle[i], n - mid)) * w->de[at] + conj(w->lag[at]) * w->dw[at];
        }
        w->pack[i] = creal(dlog);
        w->pack[m + i] = cimag(dlog);
        w->pack[2 * m + i] = creal(db);
        w->pack[3 * m + i] = cimag(db);
    }
    IDA_REF(ssm_log_bwd)(&a->ssm, g, m, w->pack, w->pack + m, w->pack + 2 * m, w->pack + 3 * m, d);
    for (int64_t n = 0; n < m; n++) { /* G = C^H C: dC = C (dG + dG^H);  G = C^T C: dC = conj(C) (dG + dG^T) */
        for (int64_t j = 0; j < m; j++) {
            cplx sum = 0;
            for (int64_t i = 0; i < m; i++) {
                const cplx c = w->c[n * m + i], dg = w->dgram[i * m + j], dg_t = w->dgram[j * m + i];
                sum += a->readout == IDA_READOUT_HERMITIAN ? c * (dg + conj(dg_t)) : conj(c) * (dg + dg_t);
            }
            w->dc[n * m + j] = sum;
        }
    }
    c_grad_add(d, w->dc, g, m);
}

ida_status IDA_REF(interdomain_chunk_bwd)(const ida_device *dev, const ida_interdomain_args *a, const ida_interdomain_grads *gr,
                                          const ida_seqs *seqs) {
    (void)dev;
    const int64_t m = a->m, mw = m * (a->r + a->d);
    work w;
    IDA_TRY(work_open(&w, a, (longest_seq(seqs) + BLOCK - 1) / BLOCK, true));
    for (int64_t g = 0; g < a->g; g++) {
        group_load(&w, a, g);
        const size_t table = (size_t)(BLOCK * m) * sizeof(cplx), row = (size_t)m * sizeof(cplx);
        memset(w.de, 0, table);
        memset(w.df, 0, table);
        memset(w.dw, 0, table);
        memset(w.dlag, 0, table + row);
        memset(w.dgram, 0, (size_t)m * row);
        for (int64_t s = 0; s < seqs->n; s++) {
            state_load(w.x, &a->state_in, s, g, mw);
            state_load(w.dx, &gr->dstate_out, s, g, mw);
            sequence_bwd(&w, a, gr, seqs->cu[s], seqs->cu[s + 1] - seqs->cu[s], g);
            state_store(&gr->dstate_in, w.dx, s, g, mw);
        }
        tables_bwd(&w, a, &gr->dssm, g);
    }
    ida_free(w.mem);
    return IDA_OK;
}
