/* s4d.c - the diagonal state space with a linear read-out, no query (docs/method.md section 6): sequential, chunked and step
 * forms, forward and backward. y_t = Re sum_m c_m X_t[m,:], c_m = sum_n w_n C_nm. Here every head has its own state (G = H).
 * Invariant: only non-negative powers of Lam appear, so no decay can overflow. */
#include <string.h>
#include "core/mem.h"
#include "ops/ref/scan.h"

/* Largest chunk, and tokens between stored states of the sequential backward. */
enum { BLOCK = 64 };

typedef struct work {
    void *mem;
    cplx *lam, *b, *c, *coef;   /* C [M,M]; c_m [M] */
    cplx *lag;                  /* Lam^n, [BLOCK+1, M] */
    double *kernel, *dkernel;   /* K_l = Re sum_m c_m Bbar_m Lam_m^l, [BLOCK] */
    cplx *x;                    /* states [n,M,W] */
    double *z, *dy, *dz, *pack; /* [BLOCK,W]; pack [4,M] */
    cplx *block_x, *dx, *dlam, *db, *dcoef, *dlog, *dc;
} work;

static ida_status work_open(work *w, const ida_s4d_args *a, int64_t n_states, int64_t n_blocks) {
    const int64_t m = a->m, width = a->r + a->d, mw = m * width, rows = BLOCK * width;
    const int64_t need = 9 * m + 2 * m * m + (BLOCK + 1) * m + BLOCK + (n_states + n_blocks + 1) * mw + 2 * rows + 2 * m;
    IDA_TRY(ida_alloc(&w->mem, need, sizeof(cplx), "s4d scratch"));
    cplx *at = w->mem;
    w->lam = take(&at, m);
    w->b = take(&at, m);
    w->c = take(&at, m * m);
    w->coef = take(&at, m);
    w->lag = take(&at, (BLOCK + 1) * m);
    w->kernel = (double *)take(&at, BLOCK);
    w->dkernel = w->kernel + BLOCK;
    w->x = take(&at, n_states * mw);
    w->z = (double *)take(&at, 2 * rows);
    w->dy = w->z + rows;
    w->dz = w->dy + rows;
    w->pack = (double *)take(&at, 2 * m);
    w->block_x = take(&at, n_blocks * mw);
    w->dx = take(&at, mw);
    w->dlam = take(&at, m);
    w->db = take(&at, m);
    w->dcoef = take(&at, m);
    w->dlog = take(&at, m);
    w->dc = take(&at, m * m);
    return IDA_OK;
}

static void head_load(work *w, const ida_s4d_args *a, int64_t h) {
    const int64_t m = a->m;
    lam_load(w->lam, w->b, w->pack, &a->ssm, h, m);
    c_load(w->c, &a->ssm, h, m);
    for (int64_t i = 0; i < m; i++) {
        w->coef[i] = 0;
        for (int64_t n = 0; n < m; n++) w->coef[i] += (double)a->w[h * m + n] * w->c[n * m + i];
        w->dlam[i] = w->dlog[i] = w->db[i] = w->dcoef[i] = 0;
    }
}

/* Lam^n for n <= BLOCK and the scalar kernel. pack still holds nothing of use. */
static void kernel_load(work *w, const ida_s4d_args *a, int64_t h) {
    const int64_t m = a->m;
    IDA_REF(ssm_log_lam)(&a->ssm, h, m, w->pack, w->pack + m);
    for (int64_t n = 0; n <= BLOCK; n++)
        for (int64_t i = 0; i < m; i++) w->lag[n * m + i] = lam_pow(w->pack[i], w->pack[m + i], n);
    for (int64_t l = 0; l < BLOCK; l++) {
        w->kernel[l] = 0;
        for (int64_t i = 0; i < m; i++) w->kernel[l] += re_mul(w->coef[i] * w->b[i], w->lag[l * m + i]);
    }
}

/* dw and dC from the gradient of c_m = sum_n w_n C_nm, and those of the SSM parameters from log Lam (chunk) or Lam. */
static void head_store(work *w, const ida_s4d_args *a, const ida_s4d_grads *gr, int64_t h, bool from_log) {
    const int64_t m = a->m;
    for (int64_t n = 0; n < m; n++) {
        double sum = 0;
        for (int64_t i = 0; i < m; i++) {
            sum += re_conj_mul(w->c[n * m + i], w->dcoef[i]);
            w->dc[n * m + i] = (double)a->w[h * m + n] * w->dcoef[i];
        }
        gr->dw[h * m + n] = (real)((double)gr->dw[h * m + n] + sum);
    }
    c_grad_add(&gr->dssm, w->dc, h, m);
    pack_rows(w->pack, from_log ? w->dlog : w->dlam, w->db, m);
    if (from_log)
        IDA_REF(ssm_log_bwd)(&a->ssm, h, m, w->pack, w->pack + m, w->pack + 2 * m, w->pack + 3 * m, &gr->dssm);
    else
        IDA_REF(ssm_discretize_bwd)(&a->ssm, h, m, w->pack, w->pack + m, w->pack + 2 * m, w->pack + 3 * m, &gr->dssm);
}

ida_status IDA_REF(s4d_seq_fwd)(const ida_device *dev, const ida_s4d_args *a, const ida_seqs *seqs) {
    (void)dev;
    const int64_t width = a->r + a->d, mw = a->m * width;
    work w;
    IDA_TRY(work_open(&w, a, 1, 0));
    for (int64_t h = 0; h < a->h; h++) {
        head_load(&w, a, h);
        for (int64_t s = 0; s < seqs->n; s++) {
            state_load(w.x, &a->state_in, s, h, mw);
            for (int64_t t = seqs->cu[s]; t < seqs->cu[s + 1]; t++) {
                z_load(w.z, a->k, a->v, t, h, a->h, a->r, a->d);
                state_step(w.x, w.x, w.lam, w.b, w.z, a->m, width);
                for (int64_t j = 0; j < width; j++) {
                    double sum = 0;
                    for (int64_t i = 0; i < a->m; i++) sum += re_mul(w.coef[i], w.x[i * width + j]);
                    ida_act_real(a->y)[(t * a->h + h) * width + j] = (real)sum;
                }
            }
            state_store(&a->state_out, w.x, s, h, mw);
        }
    }
    ida_free(w.mem);
    return IDA_OK;
}

/* w->x [0] holds the initial state, w->dx the gradient of the final state and then of the initial one. */
static void sequence_bwd(work *w, const ida_s4d_args *a, const ida_s4d_grads *gr, int64_t t0, int64_t n, int64_t h) {
    const int64_t width = a->r + a->d, mw = a->m * width;
    for (int64_t i = 0; i < n; i++) {
        if (i % BLOCK == 0) memcpy(w->block_x + i / BLOCK * mw, w->x, (size_t)mw * sizeof *w->x);
        z_load(w->z, a->k, a->v, t0 + i, h, a->h, a->r, a->d);
        state_step(w->x, w->x, w->lam, w->b, w->z, a->m, width);
    }
    for (int64_t first = (n - 1) / BLOCK * BLOCK; n > 0 && first >= 0; first -= BLOCK) {
        const int64_t len = min64(BLOCK, n - first);
        memcpy(w->x, w->block_x + first / BLOCK * mw, (size_t)mw * sizeof *w->x);
        for (int64_t i = 0; i < len; i++) { /* x [i] = state before token first + i */
            z_load(w->z, a->k, a->v, t0 + first + i, h, a->h, a->r, a->d);
            state_step(w->x + (i + 1) * mw, w->x + i * mw, w->lam, w->b, w->z, a->m, width);
        }
        for (int64_t i = len - 1; i >= 0; i--) {
            const int64_t t = t0 + first + i;
            const cplx *x = w->x + (i + 1) * mw;
            const real *dy = ida_act_real(gr->dy) + (t * a->h + h) * width;
            for (int64_t m = 0; m < a->m; m++) { /* y_j = Re sum_m c_m X[m,j] */
                for (int64_t j = 0; j < width; j++) {
                    w->dcoef[m] += conj(x[m * width + j]) * (double)dy[j];
                    w->dx[m * width + j] += conj(w->coef[m]) * (double)dy[j];
                }
            }
            z_load(w->z, a->k, a->v, t, h, a->h, a->r, a->d);
            state_step_bwd(w->dx, w->dz, w->dlam, w->db, w->x + i * mw, w->lam, w->b, w->z, a->m, width);
            dz_store(gr->dk, gr->dv, w->dz, t, h, a->h, a->r, a->d);
        }
    }
}

ida_status IDA_REF(s4d_seq_bwd)(const ida_device *dev, const ida_s4d_args *a, const ida_s4d_grads *gr, const ida_seqs *seqs) {
    (void)dev;
    const int64_t mw = a->m * (a->r + a->d), longest = longest_seq(seqs);
    work w;
    IDA_TRY(work_open(&w, a, min64(longest, BLOCK) + 1, (longest + BLOCK - 1) / BLOCK));
    for (int64_t h = 0; h < a->h; h++) {
        head_load(&w, a, h);
        for (int64_t s = 0; s < seqs->n; s++) {
            state_load(w.x, &a->state_in, s, h, mw);
            state_load(w.dx, &gr->dstate_out, s, h, mw);
            sequence_bwd(&w, a, gr, seqs->cu[s], seqs->cu[s + 1] - seqs->cu[s], h);
            state_store(&gr->dstate_in, w.dx, s, h, mw);
        }
        head_store(&w, a, gr, h, false);
    }
    ida_free(w.mem);
    return IDA_OK;
}

static void chunk_load(work *w, const ida_s4d_args *a, int64_t t, int64_t h, int64_t len) {
    for (int64_t i = 0; i < len; i++) z_load(w->z + i * (a->r + a->d), a->k, a->v, t + i, h, a->h, a->r, a->d);
}

/* y_i = sum_{j<=i} K_{i-j} z_j + Re sum_m c_m Lam_m^(i+1) X[m,:], X the state before the chunk. */
static void chunk_fwd(work *w, const ida_s4d_args *a, int64_t t, int64_t h, int64_t len) {
    const int64_t m = a->m, width = a->r + a->d;
    for (int64_t i = 0; i < len; i++) {
        for (int64_t n = 0; n < width; n++) {
            double sum = 0;
            for (int64_t j = 0; j <= i; j++) sum += w->kernel[i - j] * w->z[j * width + n];
            for (int64_t k = 0; k < m; k++) sum += re_mul(w->coef[k] * w->lag[(i + 1) * m + k], w->x[k * width + n]);
            ida_act_real(a->y)[((t + i) * a->h + h) * width + n] = (real)sum;
        }
    }
}

static int64_t chunk_length(const ida_s4d_args *a) { return a->chunk > 0 ? min64(a->chunk, BLOCK) : BLOCK; }

ida_status IDA_REF(s4d_chunk_fwd)(const ida_device *dev, const ida_s4d_args *a, const ida_seqs *seqs) {
    (void)dev;
    const int64_t width = a->r + a->d, mw = a->m * width, chunk = chunk_length(a);
    work w;
    IDA_TRY(work_open(&w, a, 1, 0));
    for (int64_t h = 0; h < a->h; h++) {
        head_load(&w, a, h);
        kernel_load(&w, a, h);
        for (int64_t s = 0; s < seqs->n; s++) {
            const int64_t end = seqs->cu[s + 1];
            state_load(w.x, &a->state_in, s, h, mw);
            for (int64_t t = seqs->cu[s]; t < end; t += chunk) {
                const int64_t len = min64(chunk, end - t);
                chunk_load(&w, a, t, h, len);
                chunk_fwd(&w, a, t, h, len);
                state_advance(w.x, w.lag, w.b, w.z, a->m, width, len);
            }
            state_store(&a->state_out, w.x, s, h, mw);
        }
    }
    ida_free(w.mem);
    return IDA_OK;
}

/* state_advance() and chunk_fwd() backwards; x is the state before the chunk. dK is summed over all chunks of the head. */
static void chunk_bwd(work *w, const ida_s4d_args *a, const ida_s4d_grads *gr, const cplx *x, int64_t t, int64_t h, int64_t len) {
    const int64_t m = a->m, width = a->r + a->d;
    chunk_load(w, a, t, h, len);
    for (int64_t i = 0; i < len; i++)
        for (int64_t n = 0; n < width; n++) w->dy[i * width + n] = (double)ida_act_real(gr->dy)[((t + i) * a->h + h) * width + n];
    for (int64_t j = 0; j < len; j++) {
        for (int64_t n = 0; n < width; n++) w->dz[j * width + n] = 0;
        for (int64_t i = j; i < len; i++) {
            for (int64_t n = 0; n < width; n++) {
                w->dz[j * width + n] += w->kernel[i - j] * w->dy[i * width + n];
                w->dkernel[i - j] += w->dy[i * width + n] * w->z[j * width + n];
            }
        }
    }
    for (int64_t k = 0; k < m; k++) {
        cplx *dx = w->dx + k * width;
        const cplx carry = w->lag[len * m + k];
        for (int64_t n = 0; n < width; n++) {
            const cplx g = dx[n];
            for (int64_t j = 0; j < len; j++) { /* W_j = Bbar Lam^(len-1-j) */
                const int64_t lag = len - 1 - j;
                const cplx power = w->lag[lag * m + k], dw = g * w->z[j * width + n];
                w->dz[j * width + n] += re_conj_mul(w->b[k] * power, g);
                w->db[k] += conj(power) * dw;
                w->dlog[k] += (double)lag * conj(w->b[k] * power) * dw;
            }
            w->dlog[k] += (double)len * conj(carry * x[k * width + n]) * g;
            dx[n] = conj(carry) * g;
            for (int64_t i = 0; i < len; i++) { /* y_i += Re c Lam^(i+1) X */
                const cplx power = w->lag[(i + 1) * m + k], back = conj(power * x[k * width + n]) * w->dy[i * width + n];
                dx[n] += conj(w->coef[k] * power) * w->dy[i * width + n];
                w->dcoef[k] += back;
                w->dlog[k] += (double)(i + 1) * conj(w->coef[k]) * back;
            }
        }
    }
    for (int64_t j = 0; j < len; j++) dz_store(gr->dk, gr->dv, w->dz + j * width, t + j, h, a->h, a->r, a->d);
}

/* K_l = Re sum_m c_m Bbar_m Lam_m^l backwards. */
static void kernel_bwd(work *w, int64_t m) {
    for (int64_t l = 0; l < BLOCK; l++) {
        for (int64_t i = 0; i < m; i++) {
            const cplx power = w->lag[l * m + i];
            w->dcoef[i] += w->dkernel[l] * conj(w->b[i] * power);
            w->db[i] += w->dkernel[l] * conj(w->coef[i] * power);
            w->dlog[i] += (double)l * w->dkernel[l] * conj(w->coef[i] * w->b[i] * power);
        }
    }
}

ida_status IDA_REF(s4d_chunk_bwd)(const ida_device *dev, const ida_s4d_args *a, const ida_s4d_grads *gr, const ida_seqs *seqs) {
    (void)dev;
    const int64_t width = a->r + a->d, mw = a->m * width, chunk = chunk_length(a);
    work w;
    IDA_TRY(work_open(&w, a, 1, (longest_seq(seqs) + chunk - 1) / chunk));
    for (int64_t h = 0; h < a->h; h++) {
        head_load(&w, a, h);
        kernel_load(&w, a, h);
        for (int64_t l = 0; l < BLOCK; l++) w.dkernel[l] = 0;
        for (int64_t s = 0; s < seqs->n; s++) {
            const int64_t t0 = seqs->cu[s], n = seqs->cu[s + 1] - t0;
            state_load(w.x, &a->state_in, s, h, mw);
            state_load(w.dx, &gr->dstate_out, s, h, mw);
            for (int64_t i = 0; i < n; i += chunk) {
                memcpy(w.block_x + i / chunk * mw, w.x, (size_t)mw * sizeof *w.x);
                chunk_load(&w, a, t0 + i, h, min64(chunk, n - i));
                state_advance(w.x, w.lag, w.b, w.z, a->m, width, min64(chunk, n - i));
            }
            for (int64_t i = (n - 1) / chunk * chunk; n > 0 && i >= 0; i -= chunk)
                chunk_bwd(&w, a, gr, w.block_x + i / chunk * mw, t0 + i, h, min64(chunk, n - i));
            state_store(&gr->dstate_in, w.dx, s, h, mw);
        }
        kernel_bwd(&w, a->m);
        head_store(&w, a, gr, h, true);
    }
    ida_free(w.mem);
    return IDA_OK;
}

ida_status IDA_REF(s4d_step)(const ida_device *dev, const ida_s4d_args *a, const ida_ssm_prep *prep, int64_t n_seq) {
    (void)dev;
    const int64_t m = a->m, width = a->r + a->d, mw = m * width;
    work w;
    IDA_TRY(work_open(&w, a, 1, 0));
    for (int64_t s = 0; s < n_seq; s++) {
        for (int64_t h = 0; h < a->h; h++) {
            for (int64_t i = 0; i < m; i++) {
                w.lam[i] = cx((double)prep->lam_re[h * m + i], (double)prep->lam_im[h * m + i]);
                w.b[i] = cx((double)prep->b_re[h * m + i], (double)prep->b_im[h * m + i]);
            }
            state_load(w.x, &a->state_in, s, h, mw);
            z_load(w.z, a->k, a->v, s, h, a->h, a->r, a->d);
            state_step(w.x, w.x, w.lam, w.b, w.z, m, width);
            state_store(&a->state_in, w.x, s, h, mw);
            for (int64_t j = 0; j < width; j++) {
                double sum = 0;
                for (int64_t i = 0; i < m; i++)
                    sum += re_mul(cx((double)prep->g_re[h * m + i], (double)prep->g_im[h * m + i]), w.x[i * width + j]);
                ida_act_real(a->y)[(s * a->h + h) * width + j] = (real)sum;
            }
        }
    }
    ida_free(w.mem);
    return IDA_OK;
}
