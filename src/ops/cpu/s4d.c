/* s4d.c - the mixers without a query on the CPU (ops.h "s4d", docs/method.md section 6): chunked forward and backward, and
 * the step.
 * y_t = Re sum_m c_m X_t[m,:]; inside a chunk that is a Toeplitz matrix of the scalar kernel K_l = Re sum_m c_m Bbar_m Lam_m^l.
 * Columns of z never meet, so tasks are (sequence, head, block of COLS columns of one half): one long sequence of one head still
 * fills several threads. Only non-negative powers occur, so nothing overflows.
 * Invariant: bits do not depend on the thread count; parameter gradients are summed over tasks in order, in double. */
#include "ops/cpu/mixer.h"
#include "ops/cpu/step.h"

enum { COLS = 32, LDX = COLS + 16, WINDOW = 64, WAVE = 256 };

typedef struct table {
    float *pw;     /* Lam^n, n = 0..chunk, [chunk+1, ldm] */
    float *w;      /* Bbar Lam^n, n = 0..chunk-1; SMM_MR rows of zeros stand before row 0 */
    float *d;      /* conj(c Lam^(i+1)), [pad(chunk), ldm] */
    float *k;      /* Toeplitz K_(i-j), j <= i, zeros above, [pad(chunk), ldc] */
    double *b_re, *b_im, *c_re, *c_im; /* [m] */
} table;

/* Sums of one task, or of one head: gradients of c, of Bbar and of log Lam [2m] each, and of the kernel [chunk]. */
typedef struct sums { double *c, *b, *log_lam, *kernel; } sums;

typedef struct scratch { float *z, *zt, *dy, *y, *dk, *dd, *dw, *xt, *dxt, *x, *dx, *slots, *starts; } scratch;

typedef struct job {
    const ida_s4d_args *a;
    const ida_s4d_grads *gr;
    const ida_seqs *seqs;
    int64_t mp, m2, ldm, chunk, rows, ldc, k_blocks, blocks; /* blocks = k_blocks + those of v, per head */
    int64_t each, sum_doubles, n_starts, first_run, n_runs;
    table *tables;
    void *table_mem;
    double *tmp; /* per worker [8 m] while tables are built */
    float *mem;
    double *run_sums, *head_sums;
} job;

/* One task's columns: where they start in z's half, in W, and how many. */
typedef struct cols { int64_t seq, head, from, at, n, stride, base; const float *z; float *dz; } cols;

static sums sums_at(double *at, const job *j) { return (sums){at, at + 2 * j->a->m, at + 4 * j->a->m, at + 6 * j->a->m}; }

static cols cols_of(const job *j, int64_t run) {
    const ida_s4d_args *a = j->a;
    const int64_t block = run % j->blocks, head = run / j->blocks % a->h, seq = run / j->blocks / a->h;
    const bool key = block < j->k_blocks;
    const int64_t from = (key ? block : block - j->k_blocks) * COLS, width = key ? a->r : a->d;
    const int64_t base = (j->seqs->cu[seq] * a->h + head) * width + from;
    return (cols){.seq = seq,
                  .head = head,
                  .from = from,
                  .at = key ? from : a->r + from,
                  .n = width - from < COLS ? width - from : COLS,
                  .stride = a->h * width,
                  .base = base,
                  .z = ida_act_real(key ? a->k : a->v) + base,
                  .dz = j->gr ? ida_act_real(key ? j->gr->dk : j->gr->dv) + base : NULL};
}

static void head_task(void *arg, int64_t h, int worker) {
    const job *j = arg;
    const ida_s4d_args *a = j->a;
    const int64_t m = a->m, mp = j->mp, ld = j->ldm;
    const table *t = j->tables + h;
    double *tmp = j->tmp + worker * 8 * m;
    ida_ref_ssm_discretize(&a->ssm, h, m, tmp, tmp + m, t->b_re, t->b_im);
    ida_ref_ssm_log_lam(&a->ssm, h, m, tmp, tmp + m);
    IDA_CPU(mix_powers)(t->pw, ld, tmp, tmp + m, m, 0, j->chunk, tmp + 2 * m);
    for (int64_t i = 0; i < m; i++) t->c_re[i] = t->c_im[i] = 0;
    for (int64_t n = 0; n < m; n++)
        for (int64_t i = 0; i < m; i++) {
            t->c_re[i] += (double)a->w[h * m + n] * (double)a->ssm.c_re[(h * m + n) * m + i];
            t->c_im[i] += (double)a->w[h * m + n] * (double)a->ssm.c_im[(h * m + n) * m + i];
        }
    memset(t->w - SMM_MR * ld, 0, (size_t)((SMM_MR + j->chunk) * ld) * sizeof(float));
    memset(t->d, 0, (size_t)(smm_pad(j->chunk) * ld) * sizeof(float));
    memset(t->k, 0, (size_t)(smm_pad(j->chunk) * j->ldc) * sizeof(float));
    for (int64_t n = 0; n < j->chunk; n++) {
        const float *re = t->pw + n * ld, *im = re + mp;
        float *w = t->w + n * ld, *d = t->d + n * ld;
        double kernel = 0;
        for (int64_t i = 0; i < m; i++) {
            const double wr = t->b_re[i] * (double)re[i] - t->b_im[i] * (double)im[i],
                         wi = t->b_re[i] * (double)im[i] + t->b_im[i] * (double)re[i];
            w[i] = (float)wr;
            w[mp + i] = (float)wi;
            d[i] = (float)(t->c_re[i] * (double)re[ld + i] - t->c_im[i] * (double)im[ld + i]);
            d[mp + i] = (float)-(t->c_re[i] * (double)im[ld + i] + t->c_im[i] * (double)re[ld + i]);
            kernel += t->c_re[i] * wr - t->c_im[i] * wi;
        }
        for (int64_t i = n; i < j->chunk; i++) t->k[i * j->ldc + i - n] = (float)kernel;
    }
}

/* Sizes and the tables of every head, in parallel. */
static ida_status open_tables(job *j) {
    const ida_s4d_args *a = j->a;
    const int64_t m = a->m, workers = ida_workers();
    j->mp = smm_pad(m), j->m2 = 2 * j->mp, j->ldm = smm_ld(j->m2);
    j->chunk = a->chunk > 0 && a->chunk < MIX_CHUNK ? a->chunk : MIX_CHUNK;
    j->rows = smm_pad(j->chunk), j->ldc = smm_ld(j->rows);
    j->k_blocks = (a->r + COLS - 1) / COLS;
    j->blocks = j->k_blocks + (a->d + COLS - 1) / COLS;
    const int64_t floats = (2 * j->chunk + 1 + SMM_MR + j->rows) * j->ldm + j->rows * j->ldc + smm_ld(8 * m);
    IDA_TRY(ida_alloc(&j->table_mem, a->h * (floats + (int64_t)sizeof(table) / 4) + workers * smm_ld(16 * m), sizeof(float),
                      "tables of the s4d mixer"));
    float *at = j->table_mem;
    j->tables = (table *)(void *)(at + a->h * floats + workers * smm_ld(16 * m));
    j->tmp = (double *)(void *)(at + a->h * floats);
    for (int64_t h = 0; h < a->h; h++) {
        table *t = j->tables + h;
        t->b_re = (double *)(void *)at, t->b_im = t->b_re + m, t->c_re = t->b_im + m, t->c_im = t->c_re + m, at += smm_ld(8 * m);
        t->pw = at, at += (j->chunk + 1) * j->ldm;
        t->w = at + SMM_MR * j->ldm, at += (j->chunk + SMM_MR) * j->ldm;
        t->d = at, at += j->rows * j->ldm;
        t->k = at, at += j->rows * j->ldc;
    }
    ida_parallel(a->h, head_task, j);
    return IDA_OK;
}

static int64_t scratch_layout(scratch *w, float *at, const job *j) {
    const int64_t cx = j->rows * LDX, x = j->m2 * LDX, xt = COLS * j->ldm, bwd = j->gr ? 1 : 0;
    struct { float **p; int64_t size;
    } list[] = {
        {&w->z, cx},
        {&w->y, cx},
        {&w->x, x},
        {&w->zt, bwd * COLS * j->ldc},
        {&w->dy, bwd * cx},
        {&w->dk, bwd * j->rows * j->ldc},
        {&w->dd, bwd * j->rows * j->ldm},
        {&w->dw, bwd * j->rows * j->ldm},
        {&w->xt, bwd * xt},
        {&w->dxt, bwd * xt},
        {&w->dx, bwd * x},
        {&w->slots, bwd * WINDOW * x},
        {&w->starts, bwd * j->n_starts * x},
    };
    int64_t total = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        *list[i].p = at ? at + total : NULL;
        total += list[i].size;
    }
    return total;
}

/* A state array's columns [M, n] as [m2, LDX]; zeros elsewhere and where there is none. */
static void state_load(float *x, const job *j, const ida_state_ref *ref, const cols *c) {
    const int64_t m = j->a->m, width = j->a->r + j->a->d, at = c->seq * ref->stride + c->head * m * width + c->at;
    memset(x, 0, (size_t)(j->m2 * LDX) * sizeof *x);
    for (int64_t i = 0; i < m && ref->re; i++) {
        memcpy(x + i * LDX, ref->re + at + i * width, (size_t)c->n * sizeof *x);
        memcpy(x + (j->mp + i) * LDX, ref->im + at + i * width, (size_t)c->n * sizeof *x);
    }
}

static void state_store(const float *x, const job *j, const ida_state_ref *ref, const cols *c) {
    const int64_t m = j->a->m, width = j->a->r + j->a->d, at = c->seq * ref->stride + c->head * m * width + c->at;
    for (int64_t i = 0; i < m && ref->re; i++) {
        memcpy(ref->re + at + i * width, x + i * LDX, (size_t)c->n * sizeof *x);
        memcpy(ref->im + at + i * width, x + (j->mp + i) * LDX, (size_t)c->n * sizeof *x);
    }
}

/* x <- Lam^e x (conj: its conjugate), lam the row of Lam^e. */
static void scale(float *x, const float *lam, const job *j, float sign) {
    for (int64_t i = 0; i < j->a->m; i++) {
        const vf lr = vf_set1(lam[i]), li = vf_set1(sign * lam[j->mp + i]);
        float *re = x + i * LDX, *im = re + j->mp * LDX;
        for (int64_t c = 0; c < COLS; c += IDA_VL) {
            const vf xr = vf_load(re + c), xi = vf_load(im + c);
            vf_store(re + c, xr * lr - xi * li);
            vf_store(im + c, xr * li + xi * lr);
        }
    }
}

static void pack(float *dst, const float *src, int64_t stride, int64_t rows, int64_t n) {
    memset(dst, 0, (size_t)(smm_pad(rows) * LDX) * sizeof *dst);
    smm_pack(dst, LDX, src, stride, rows, n, rows);
}

/* X <- Lam^rows X + sum_j Bbar Lam^(rows-1-j) z_j^T */
static void advance(const scratch *w, const job *j, const table *t, int64_t rows) {
    const smm_term u = mix_term(t->w + (rows - 1) * j->ldm, 1, -j->ldm, w->z, LDX, rows, SMM_FULL);
    scale(w->x, t->pw + rows * j->ldm, j, 1);
    smm(w->x, LDX, j->m2, COLS, true, &u, 1);
}

static void fwd_task(void *arg, int64_t run, int worker) {
    const job *j = arg;
    const ida_s4d_args *a = j->a;
    const cols c = cols_of(j, run);
    const table *t = j->tables + c.head;
    const int64_t len = mix_seq_len(j->seqs, c.seq), width = a->r + a->d;
    scratch w;
    smm_term u[2];
    scratch_layout(&w, j->mem + worker * j->each, j);
    state_load(w.x, j, &a->state_in, &c);
    for (int64_t i = 0; i < len; i += j->chunk) {
        const int64_t rows = len - i < j->chunk ? len - i : j->chunk;
        pack(w.z, c.z + i * c.stride, c.stride, rows, c.n);
        u[0] = mix_term(t->k, j->ldc, 1, w.z, LDX, rows, SMM_LOWER);
        u[1] = mix_term(t->d, j->ldm, 1, w.x, LDX, j->m2, SMM_FULL);
        smm(w.y, LDX, mix_rows_mr(rows), COLS, false, u, i == 0 && !a->state_in.re ? 1 : 2);
        smm_copy_out(ida_act_real(a->y) + ((j->seqs->cu[c.seq] + i) * a->h + c.head) * width + c.at, a->h * width, w.y, LDX, rows,
                     c.n, false);
        if (i + rows < len || a->state_out.re) advance(&w, j, t, rows);
    }
    state_store(w.x, j, &a->state_out, &c);
}

ida_status IDA_CPU(s4d_chunk_fwd)(const ida_device *dev, const ida_s4d_args *a, const ida_seqs *seqs) {
    (void)dev;
    job j = {.a = a, .seqs = seqs};
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(open_tables(&j));
    j.each = scratch_layout(&(scratch){0}, NULL, &j);
    IDA_TRY_GOTO(IDA_ALLOC(j.mem, ida_workers() * j.each, "scratch of the s4d mixer"));
    ida_parallel(seqs->n * a->h * j.blocks, fwd_task, &j);
out:
    ida_free(j.mem);
    ida_free(j.table_mem);
    return st;
}

/* Adds sum_i w_i conj(u_i) x_i (sign -1: conj of x_i) over rows i to order0 (w = 1) and order1 (w = n_i), n_i = n0 + i * dn being
 * the exponent whose power row is u_i. Complex sums in fp32, added to the doubles [2m]. */
static void moments(double *order0, double *order1, const float *x, const float *pw, const job *j, int64_t rows, int64_t n0,
                    int64_t dn, float sign) {
    const int64_t m = j->a->m, mp = j->mp;
    float out[4][IDA_VL];
    for (int64_t i = 0; i < mp; i += IDA_VL) {
        vf ar = vf_zero(), ai = ar, br = ar, bi = ar;
        for (int64_t r = 0; r < rows; r++) {
            const float *u = pw + (n0 + r * dn) * j->ldm + i, *d = x + r * j->ldm + i;
            const vf ur = vf_load(u), ui = vf_load(u + mp), dr = vf_load(d), di = sign * vf_load(d + mp);
            const vf re = ur * dr + ui * di, im = ur * di - ui * dr, n = vf_set1((float)(n0 + r * dn));
            ar += re;
            ai += im;
            br = n * re + br;
            bi = n * im + bi;
        }
        vf_store(out[0], ar);
        vf_store(out[1], ai);
        vf_store(out[2], br);
        vf_store(out[3], bi);
        for (int64_t l = 0; l < IDA_VL && i + l < m; l++) {
            order0[i + l] += (double)out[0][l];
            order0[m + i + l] += (double)out[1][l];
            order1[i + l] += (double)out[2][l];
            order1[m + i + l] += (double)out[3][l];
        }
    }
}

/* log_lam += e conj(Lam^e) sum over columns of conj(x) dx; xt, dxt [COLS, ldm]. */
static void carry_moment(double *log_lam, const scratch *w, const table *t, const job *j, int64_t e) {
    const int64_t m = j->a->m, mp = j->mp;
    float out[2][IDA_VL];
    for (int64_t i = 0; i < mp; i += IDA_VL) {
        const vf lr = vf_load(t->pw + e * j->ldm + i), li = vf_load(t->pw + e * j->ldm + mp + i);
        vf sr = vf_zero(), si = sr;
        for (int64_t c = 0; c < COLS; c++) {
            const float *x = w->xt + c * j->ldm + i, *d = w->dxt + c * j->ldm + i;
            const vf xr = vf_load(x), xi = vf_load(x + mp), dr = vf_load(d), di = vf_load(d + mp);
            sr = xr * dr + (xi * di + sr);
            si = xr * di + (si - xi * dr);
        }
        vf_store(out[0], lr * sr + li * si);
        vf_store(out[1], lr * si - li * sr);
        for (int64_t l = 0; l < IDA_VL && i + l < m; l++) {
            log_lam[i + l] += (double)e * (double)out[0][l];
            log_lam[m + i + l] += (double)e * (double)out[1][l];
        }
    }
}

/* One chunk backwards: w.x = X before it, w.dx = gradient of X after it on entry, before it on exit. tmp [4m] doubles. */
static void chunk_bwd(const scratch *w, const job *j, const table *t, const cols *c, int64_t i, int64_t rows, const sums *to,
                      double *tmp) {
    const ida_s4d_args *a = j->a;
    const int64_t m = a->m, width = a->r + a->d, pad = mix_rows_mr(rows), ld = j->ldm;
    smm_term u[2];
    pack(w->z, c->z + i * c->stride, c->stride, rows, c->n);
    pack(w->dy, ida_act_real(j->gr->dy) + ((j->seqs->cu[c->seq] + i) * a->h + c->head) * width + c->at, a->h * width, rows, c->n);
    smm_transpose(w->zt, j->ldc, w->z, LDX, smm_pad(rows), COLS);
    smm_transpose(w->xt, ld, w->x, LDX, j->m2, COLS);
    smm_transpose(w->dxt, ld, w->dx, LDX, j->m2, COLS);
    /* y = K z + d X;  X' = Lam^rows X + w^T z */
    u[0] = mix_term(t->k, 1, j->ldc, w->dy, LDX, rows, SMM_UPPER);
    u[1] = mix_term(t->w + (rows - 1) * ld, -ld, 1, w->dx, LDX, j->m2, SMM_FULL);
    smm(w->y, LDX, pad, COLS, false, u, 2);
    smm_copy_out(c->dz + i * c->stride, c->stride, w->y, LDX, rows, c->n, false);
    u[0] = mix_term(w->dy, LDX, 1, w->zt, j->ldc, COLS, SMM_FULL);
    smm_lower(w->dk, j->ldc, pad, u, 1);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t s = 0; s <= r; s++) to->kernel[r - s] += (double)w->dk[r * j->ldc + s];
    u[0] = mix_term(w->dy, LDX, 1, w->xt, ld, COLS, SMM_FULL);
    smm(w->dd, ld, pad, j->m2, false, u, 1);
    u[0] = mix_term(w->z, LDX, 1, w->dxt, ld, COLS, SMM_FULL);
    smm(w->dw, ld, pad, j->m2, false, u, 1);
    carry_moment(to->log_lam, w, t, j, rows);
    memset(tmp, 0, (size_t)(4 * m) * sizeof *tmp);
    moments(to->c, tmp, w->dd, t->pw, j, rows, 1, 1, -1);
    moments(to->b, tmp + 2 * m, w->dw, t->pw, j, rows, rows - 1, -1, 1);
    for (int64_t k = 0; k < m; k++) {
        const double cr = tmp[k], ci = tmp[m + k], br = tmp[2 * m + k], bi = tmp[3 * m + k];
        to->log_lam[k] += t->c_re[k] * cr + t->c_im[k] * ci + t->b_re[k] * br + t->b_im[k] * bi;
        to->log_lam[m + k] += t->c_re[k] * ci - t->c_im[k] * cr + t->b_re[k] * bi - t->b_im[k] * br;
    }
    u[0] = mix_term(t->d, 1, ld, w->dy, LDX, rows, SMM_FULL);
    scale(w->dx, t->pw + rows * ld, j, -1);
    smm(w->dx, LDX, j->m2, COLS, true, u, 1);
}

static void bwd_task(void *arg, int64_t task, int worker) {
    const job *j = arg;
    const cols c = cols_of(j, j->first_run + task);
    const table *t = j->tables + c.head;
    const sums to = sums_at(j->run_sums + task * j->sum_doubles, j);
    const int64_t len = mix_seq_len(j->seqs, c.seq), n_chunks = (len + j->chunk - 1) / j->chunk,
                  last_window = (n_chunks - 1) / WINDOW, size = j->m2 * LDX;
    const size_t bytes = (size_t)size * sizeof(float);
    scratch w;
    scratch_layout(&w, j->mem + worker * j->each, j);
    memset(to.c, 0, (size_t)j->sum_doubles * sizeof(double));
    state_load(w.x, j, &j->a->state_in, &c);
    state_load(w.dx, j, &j->gr->dstate_out, &c);
    for (int64_t i = 0; i < n_chunks - 1; i++) {
        if (i % WINDOW == 0) memcpy(w.starts + i / WINDOW * size, w.x, bytes);
        if (i / WINDOW == last_window) memcpy(w.slots + i % WINDOW * size, w.x, bytes);
        pack(w.z, c.z + i * j->chunk * c.stride, c.stride, j->chunk, c.n);
        advance(&w, j, t, j->chunk);
    }
    for (int64_t i = n_chunks - 1; i >= 0; i--) {
        const int64_t rows = len - i * j->chunk < j->chunk ? len - i * j->chunk : j->chunk;
        if (i % WINDOW == WINDOW - 1 && i / WINDOW < last_window) {
            memcpy(w.x, w.starts + i / WINDOW * size, bytes);
            for (int64_t k = i / WINDOW * WINDOW; k < i; k++) {
                memcpy(w.slots + k % WINDOW * size, w.x, bytes);
                pack(w.z, c.z + k * j->chunk * c.stride, c.stride, j->chunk, c.n);
                advance(&w, j, t, j->chunk);
            }
        } else if (i < n_chunks - 1) memcpy(w.x, w.slots + i % WINDOW * size, bytes);
        chunk_bwd(&w, j, t, &c, i * j->chunk, rows, &to, to.kernel + j->chunk);
    }
    state_store(w.dx, j, &j->gr->dstate_in, &c);
}

/* Adds a wave's tasks of head h to the head's sums, in order. */
static void add_task(void *arg, int64_t h, int worker) {
    (void)worker;
    const job *j = arg;
    double *to = j->head_sums + h * j->sum_doubles;
    for (int64_t r = 0; r < j->n_runs; r++)
        for (int64_t i = 0; (j->first_run + r) / j->blocks % j->a->h == h && i < j->sum_doubles; i++)
            to[i] += j->run_sums[r * j->sum_doubles + i];
}

/* From the sums of head h to the parameters: K_l = Re sum_m c_m Bbar_m Lam_m^l and c_m = sum_n w_n C_nm backwards. */
static void finish_task(void *arg, int64_t h, int worker) {
    (void)worker;
    const job *j = arg;
    const ida_s4d_args *a = j->a;
    const table *t = j->tables + h;
    const sums s = sums_at(j->head_sums + h * j->sum_doubles, j);
    const int64_t m = a->m;
    for (int64_t l = 0; l < j->chunk; l++) {
        const float *re = t->pw + l * j->ldm, *im = re + j->mp;
        for (int64_t i = 0; i < m; i++) {
            const double p_re = (double)re[i] * s.kernel[l], p_im = -(double)im[i] * s.kernel[l]; /* conj(Lam^l) dK */
            const double wr = t->b_re[i] * p_re + t->b_im[i] * p_im, wi = t->b_re[i] * p_im - t->b_im[i] * p_re;
            s.c[i] += wr;
            s.c[m + i] += wi;
            s.b[i] += t->c_re[i] * p_re + t->c_im[i] * p_im;
            s.b[m + i] += t->c_re[i] * p_im - t->c_im[i] * p_re;
            s.log_lam[i] += (double)l * (t->c_re[i] * wr + t->c_im[i] * wi);
            s.log_lam[m + i] += (double)l * (t->c_re[i] * wi - t->c_im[i] * wr);
        }
    }
    for (int64_t n = 0; n < m; n++) {
        const float *re = a->ssm.c_re + (h * m + n) * m, *im = a->ssm.c_im + (h * m + n) * m;
        float *dre = j->gr->dssm.c_re + (h * m + n) * m, *dim = j->gr->dssm.c_im + (h * m + n) * m;
        double dw = 0;
        for (int64_t i = 0; i < m; i++) {
            dw += (double)re[i] * s.c[i] + (double)im[i] * s.c[m + i];
            dre[i] = (float)((double)dre[i] + (double)a->w[h * m + n] * s.c[i]);
            dim[i] = (float)((double)dim[i] + (double)a->w[h * m + n] * s.c[m + i]);
        }
        j->gr->dw[h * m + n] = (float)((double)j->gr->dw[h * m + n] + dw);
    }
    ida_ref_ssm_log_bwd(&a->ssm, h, m, s.log_lam, s.log_lam + m, s.b, s.b + m, &j->gr->dssm);
}

ida_status IDA_CPU(s4d_chunk_bwd)(const ida_device *dev, const ida_s4d_args *a, const ida_s4d_grads *gr, const ida_seqs *seqs) {
    (void)dev;
    job j = {.a = a, .gr = gr, .seqs = seqs};
    ida_status st = IDA_OK;
    int64_t longest = 0;
    IDA_TRY_GOTO(open_tables(&j));
    for (int64_t s = 0; s < seqs->n; s++)
        if (mix_seq_len(seqs, s) > longest) longest = mix_seq_len(seqs, s);
    j.n_starts = (longest + j.chunk - 1) / j.chunk / WINDOW + 1;
    j.each = scratch_layout(&(scratch){0}, NULL, &j);
    j.sum_doubles = 10 * a->m + j.chunk;
    const int64_t runs = seqs->n * a->h * j.blocks, wave = runs < WAVE ? runs : WAVE;
    IDA_TRY_GOTO(IDA_ALLOC(j.mem, ida_workers() * j.each, "scratch of the s4d mixer's backward"));
    IDA_TRY_GOTO(IDA_ALLOC(j.run_sums, (wave + a->h) * j.sum_doubles, "parameter gradients of the s4d mixer"));
    j.head_sums = j.run_sums + wave * j.sum_doubles;
    memset(j.head_sums, 0, (size_t)(a->h * j.sum_doubles) * sizeof(double));
    for (j.first_run = 0; j.first_run < runs; j.first_run += wave) {
        j.n_runs = runs - j.first_run < wave ? runs - j.first_run : wave;
        ida_parallel(j.n_runs, bwd_task, &j);
        ida_parallel(a->h, add_task, &j);
    }
    if (runs > 0) ida_parallel(a->h, finish_task, &j);
out:
    ida_free(j.run_sums);
    ida_free(j.mem);
    ida_free(j.table_mem);
    return st;
}

typedef struct step_job { const ida_s4d_args *a; const ida_ssm_prep *prep; } step_job;

static void step_task(void *arg, int64_t task, int worker) {
    (void)worker;
    const step_job *j = arg;
    const ida_s4d_args *a = j->a;
    const int64_t s = task / a->h, h = task % a->h, m = a->m, width = a->r + a->d, at = s * a->state_in.stride + h * m * width;
    float *re = a->state_in.re + at, *im = a->state_in.im + at, *y = ida_act_real(a->y) + (s * a->h + h) * width;
    const float *k = ida_act_real(a->k) + (s * a->h + h) * a->r, *v = ida_act_real(a->v) + (s * a->h + h) * a->d;
    const float *cr = j->prep->g_re + h * m, *ci = j->prep->g_im + h * m;
    step_values(y, re, im, k, j->prep, h * m, cr, ci, m, width, a->r, true);
    step_values(y + a->r, re + a->r, im + a->r, v, j->prep, h * m, cr, ci, m, width, a->d, true);
}

ida_status IDA_CPU(s4d_step)(const ida_device *dev, const ida_s4d_args *a, const ida_ssm_prep *prep, int64_t n_seq) {
    (void)dev;
    const step_job j = {a, prep};
    const int64_t tasks = n_seq * a->h;
    if (tasks * a->m * (a->r + a->d) < STEP_SERIAL_BELOW)
        for (int64_t t = 0; t < tasks; t++) step_task((void *)(uintptr_t)&j, t, 0);
    else ida_parallel(tasks, step_task, (void *)(uintptr_t)&j);
    return IDA_OK;
}
