/* interdomain.c - the chunked forward of the mixer core on the CPU (ops.h "interdomain", docs/method.md section 4; notation of
 * mixer.h). Its backward is interdomain_bwd.c, decoding interdomain_step.c; token by token is ops/ref only.
 *
 * Work is cut into (sequence, group) tasks. A sequence too long for that (mix_staged_over) is cut over its chunks: the parts
 * F~^T Z of a window of chunks in parallel, a scan over them, the outputs in parallel. Both ways run the same functions on the
 * same operands. Invariant: the bits of the result depend neither on the way taken nor on the thread count. */
#include "ops/cpu/mixer.h"

/* One worker's buffers. q..o: one chunk of one head. x, part: states, keys transposed [rp, ldm] then values [m2, ldd]. */
typedef struct scratch { float *kt, *v, *q, *s, *t, *c, *p, *o, *x, *part; } scratch;

typedef struct job {
    const ida_interdomain_args *a;
    const ida_seqs *seqs;
    mix_plan plan;
    float *mem;
    int64_t each, state_floats;
    /* staged: one sequence and group, chunks first..first+n-1 in slots [n, state_floats] */
    int64_t seq, group, first, n_slots;
    float *slots, *carry;
} job;

static int64_t scratch_floats(const mix_dims *n, int64_t state_floats) {
    return n->rp * n->ldc + n->rows * (2 * n->ldd + n->ldr + 2 * n->ldc + 2 * n->ldm) + 2 * state_floats;
}

static scratch scratch_of(const job *j, int worker) {
    const mix_dims *n = &j->plan.n;
    float *at = j->mem + worker * j->each;
    scratch w;
    w.kt = at, at += n->rp * n->ldc;
    w.v = at, at += n->rows * n->ldd;
    w.o = at, at += n->rows * n->ldd;
    w.q = at, at += n->rows * n->ldr;
    w.s = at, at += n->rows * n->ldc;
    w.p = at, at += n->rows * n->ldc;
    w.t = at, at += n->rows * n->ldm;
    w.c = at, at += n->rows * n->ldm;
    w.x = at, at += j->state_floats;
    w.part = at;
    return w;
}

static void pack_kv(const scratch *w, const job *j, int64_t g, int64_t token, int64_t rows) {
    const ida_interdomain_args *a = j->a;
    const mix_dims *n = &j->plan.n;
    const int64_t pad = smm_pad(rows);
    smm_pack_t(w->kt, n->ldc, ida_act_real(a->k) + (token * a->g + g) * a->r, a->g * a->r, rows, a->r, pad);
    smm_pack(w->v, n->ldd, ida_act_real(a->v) + (token * a->g + g) * a->d, a->g * a->d, rows, a->d, pad);
}

/* Asks for the rows of a chunk that comes next. */
static void prefetch_chunk(const job *j, int64_t g, int64_t token, int64_t rows) {
    const ida_interdomain_args *a = j->a;
    const int64_t per_group = a->h / a->g;
    SMM_PREFETCH(ida_act_real(a->k) + (token * a->g + g) * a->r, a->g * a->r, rows, a->r, 0);
    SMM_PREFETCH(ida_act_real(a->v) + (token * a->g + g) * a->d, a->g * a->d, rows, a->d, 0);
    SMM_PREFETCH(ida_act_real(a->q) + (token * a->h + g * per_group) * a->r, a->h * a->r, rows, a->r, 0);
    SMM_PREFETCH(ida_act_real(a->o) + (token * a->h + g * per_group) * a->d, a->h * a->d, rows, a->d, 1);
}

/* o of one chunk of one head. x: X~ before the chunk, NULL = zero. */
static void chunk_output(const scratch *w, const job *j, const mix_table *t, int64_t h, int64_t token, int64_t rows,
                         const float *x) {
    const ida_interdomain_args *a = j->a;
    const mix_dims *n = &j->plan.n;
    const int64_t pad = mix_rows_mr(rows), has_state = x != NULL;
    smm_term terms[2];
    smm_pack(w->q, n->ldr, ida_act_real(a->q) + (token * a->h + h) * a->r, a->h * a->r, rows, a->r, pad);
    /* S = tril(Q K^T);  T = S F~ + Q X~_k;  a = E T */
    terms[0] = mix_term(w->q, n->ldr, 1, w->kt, n->ldc, a->r, SMM_FULL);
    smm_lower(w->s, n->ldc, pad, terms, 1);
    terms[0] = mix_term(w->s, n->ldc, 1, t->f, n->ldm, rows, SMM_LOWER);
    terms[1] = mix_term(w->q, n->ldr, 1, x, n->ldm, a->r, SMM_FULL);
    smm(w->t, n->ldm, pad, n->m2, false, terms, 1 + (int)has_state);
    mix_mul_rows(w->t, n->ldm, t->pw, n->ldm, rows, n->mp, false);
    /* conj(c) = conj(w(a) G);  B = conj(c E) */
    terms[0] = mix_term(w->t, n->ldm, 1, t->gg, n->ldm, n->m2, SMM_FULL);
    smm(w->c, n->ldm, pad, n->m2, false, terms, 1);
    mix_mul_rows(w->c, n->ldm, t->pw, n->ldm, rows, n->mp, true);
    /* P = tril(B F~^T);  o = P V + B X~_v */
    terms[0] = mix_term(w->c, n->ldm, 1, t->ft, j->plan.ldt, n->m2, SMM_FULL);
    smm_lower(w->p, n->ldc, pad, terms, 1);
    terms[0] = mix_term(w->p, n->ldc, 1, w->v, n->ldd, rows, SMM_LOWER);
    terms[1] = mix_term(w->c, n->ldm, 1, has_state ? x + n->rp * n->ldm : NULL, n->ldd, n->m2, SMM_FULL);
    smm(w->o, n->ldd, pad, n->dp, false, terms, 1 + (int)has_state);
    smm_copy_out(ida_act_real(a->o) + (token * a->h + h) * a->d, a->h * a->d, w->o, n->ldd, rows, a->d, false);
}

/* part = F~^T Z of the packed chunk, both halves. */
static void chunk_part(float *part, const scratch *w, const job *j, const mix_table *t, int64_t rows) {
    const mix_dims *n = &j->plan.n;
    smm_term terms[1];
    terms[0] = mix_term(w->kt, n->ldc, 1, t->f, n->ldm, rows, SMM_FULL);
    smm(part, n->ldm, n->rp, n->m2, false, terms, 1);
    terms[0] = mix_term(t->f, 1, n->ldm, w->v, n->ldd, rows, SMM_FULL);
    smm(part + n->rp * n->ldm, n->ldd, n->m2, n->dp, false, terms, 1);
}

/* X <- Lam^e (X + part), lam = the row of Lam^e. before, when not NULL (it may be part), gets the old X. */
static void scan(float *x, const float *part, float *before, const float *lam, const mix_dims *n) {
    for (int64_t r = 0; r < n->rp; r++)
        for (int64_t m = 0; m < n->mp; m += IDA_VL) {
            const int64_t re = r * n->ldm + m, im = re + n->mp;
            const vf xr = vf_load(x + re), xi = vf_load(x + im), sr = xr + vf_load(part + re), si = xi + vf_load(part + im);
            const vf lr = vf_load(lam + m), li = vf_load(lam + n->mp + m);
            if (before) {
                vf_store(before + re, xr);
                vf_store(before + im, xi);
            }
            vf_store(x + re, sr * lr - si * li);
            vf_store(x + im, sr * li + si * lr);
        }
    for (int64_t m = 0; m < n->m; m++) {
        const vf lr = vf_set1(lam[m]), li = vf_set1(lam[n->mp + m]);
        for (int64_t d = 0; d < n->dp; d += IDA_VL) {
            const int64_t re = n->rp * n->ldm + m * n->ldd + d, im = re + n->mp * n->ldd;
            const vf xr = vf_load(x + re), xi = vf_load(x + im), sr = xr + vf_load(part + re), si = xi + vf_load(part + im);
            if (before) {
                vf_store(before + re, xr);
                vf_store(before + im, xi);
            }
            vf_store(x + re, sr * lr - si * li);
            vf_store(x + im, sr * li + si * lr);
        }
    }
}

/* X~ = Lam^(c+1) X of the caller's state; zeros without one. */
static void state_load(float *x, const job *j, const mix_table *t, int64_t s, int64_t g) {
    const mix_dims *n = &j->plan.n;
    const ida_state_ref *in = &j->a->state_in;
    const int64_t w = n->r + n->d, at = s * in->stride + g * n->m * w;
    const float *lam = mix_power(n, t, t->centre + 1);
    float *xv = x + n->rp * n->ldm;
    mix_state_load_t(x, n, in, at, 0, n->r, n->rp, lam);
    memset(xv, 0, (size_t)(n->m2 * n->ldd) * sizeof *xv);
    for (int64_t m = 0; m < n->m && in->re; m++) {
        const float *re = in->re + at + m * w + n->r, *im = in->im + at + m * w + n->r;
        for (int64_t d = 0; d < n->d; d++) {
            xv[m * n->ldd + d] = re[d] * lam[m] - im[d] * lam[n->mp + m];
            xv[(n->mp + m) * n->ldd + d] = re[d] * lam[n->mp + m] + im[d] * lam[m];
        }
    }
}

static void state_store(const job *j, const float *x, int64_t s, int64_t g) {
    const mix_dims *n = &j->plan.n;
    const ida_state_ref *out = &j->a->state_out;
    const int64_t w = n->r + n->d, at = s * out->stride + g * n->m * w;
    const float *xv = x + n->rp * n->ldm;
    mix_state_store_t(out, at, 0, n->r, x, n);
    for (int64_t m = 0; m < n->m; m++) {
        memcpy(out->re + at + m * w + n->r, xv + m * n->ldd, (size_t)n->d * sizeof *xv);
        memcpy(out->im + at + m * w + n->r, xv + (n->mp + m) * n->ldd, (size_t)n->d * sizeof *xv);
    }
}

static void empty_sequence(const job *j, int64_t s, int64_t g) {
    const ida_state_ref *in = &j->a->state_in, *out = &j->a->state_out;
    const int64_t size = j->a->m * (j->a->r + j->a->d), from = s * in->stride + g * size, to = s * out->stride + g * size;
    if (!out->re) return;
    for (int64_t i = 0; i < size; i++) {
        out->re[to + i] = in->re ? in->re[from + i] : 0;
        out->im[to + i] = in->re ? in->im[from + i] : 0;
    }
}

static const float *exit_row(const mix_dims *n, const mix_table *t, int64_t rows, bool last) {
    return mix_power(n, t, mix_exit_power(t, rows, last));
}

static void sequence_task(void *arg, int64_t task, int worker) {
    const job *j = arg;
    const ida_interdomain_args *a = j->a;
    const int64_t s = task / a->g, g = task % a->g, len = mix_seq_len(j->seqs, s), per_group = a->h / a->g;
    const mix_table *t = j->plan.tables + g;
    const scratch w = scratch_of(j, worker);
    if (len > j->plan.staged_over) return;
    if (len == 0) {
        empty_sequence(j, s, g);
        return;
    }
    state_load(w.x, j, t, s, g);
    for (int64_t i = 0; i < len; i += t->chunk) {
        const int64_t rows = len - i < t->chunk ? len - i : t->chunk, token = j->seqs->cu[s] + i;
        const bool last = i + rows == len, zero = i == 0 && !a->state_in.re;
        pack_kv(&w, j, g, token, rows);
        for (int64_t h = g * per_group; h < (g + 1) * per_group; h++) chunk_output(&w, j, t, h, token, rows, zero ? NULL : w.x);
        if (last && !a->state_out.re) break;
        if (!last) prefetch_chunk(j, g, token + rows, len - i - rows < t->chunk ? len - i - rows : t->chunk);
        chunk_part(w.part, &w, j, t, rows);
        scan(w.x, w.part, NULL, exit_row(&j->plan.n, t, rows, last), &j->plan.n);
    }
    if (a->state_out.re) state_store(j, w.x, s, g);
}

static int64_t slot_rows(const job *j, int64_t slot, int64_t *token) {
    const int64_t chunk = j->plan.tables[j->group].chunk, i = (j->first + slot) * chunk, left = mix_seq_len(j->seqs, j->seq) - i;
    *token = j->seqs->cu[j->seq] + i;
    return left < chunk ? left : chunk;
}

static void part_task(void *arg, int64_t slot, int worker) {
    const job *j = arg;
    const scratch w = scratch_of(j, worker);
    int64_t token, rows = slot_rows(j, slot, &token);
    pack_kv(&w, j, j->group, token, rows);
    chunk_part(j->slots + slot * j->state_floats, &w, j, j->plan.tables + j->group, rows);
}

static void output_task(void *arg, int64_t slot, int worker) {
    const job *j = arg;
    const scratch w = scratch_of(j, worker);
    const bool zero = j->first + slot == 0 && !j->a->state_in.re;
    const int64_t per_group = j->a->h / j->a->g, g = j->group;
    int64_t token, rows = slot_rows(j, slot, &token);
    pack_kv(&w, j, g, token, rows);
    for (int64_t h = g * per_group; h < (g + 1) * per_group; h++)
        chunk_output(&w, j, j->plan.tables + g, h, token, rows, zero ? NULL : j->slots + slot * j->state_floats);
}

static void staged_sequence(job *j, int64_t s, int64_t g) {
    const mix_table *t = j->plan.tables + g;
    const int64_t len = mix_seq_len(j->seqs, s), n_chunks = (len + t->chunk - 1) / t->chunk;
    j->seq = s;
    j->group = g;
    state_load(j->carry, j, t, s, g);
    for (j->first = 0; j->first < n_chunks; j->first += j->n_slots) {
        const int64_t n = n_chunks - j->first < j->n_slots ? n_chunks - j->first : j->n_slots;
        ida_parallel(n, part_task, j);
        for (int64_t i = 0; i < n; i++) {
            int64_t token, rows = slot_rows(j, i, &token);
            float *slot = j->slots + i * j->state_floats;
            scan(j->carry, slot, slot, exit_row(&j->plan.n, t, rows, j->first + i + 1 == n_chunks), &j->plan.n);
        }
        ida_parallel(n, output_task, j);
    }
    if (j->a->state_out.re) state_store(j, j->carry, s, g);
}

ida_status IDA_CPU(interdomain_chunk_fwd)(const ida_device *dev, const ida_interdomain_args *a, const ida_seqs *seqs) {
    (void)dev;
    job j = {.a = a, .seqs = seqs};
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(IDA_CPU(mix_plan_open)(&j.plan, a, seqs));
    const mix_dims *n = &j.plan.n;
    const int64_t workers = ida_workers();
    bool staged = false;
    for (int64_t s = 0; s < seqs->n; s++) staged = staged || mix_seq_len(seqs, s) > j.plan.staged_over;
    j.state_floats = n->rp * n->ldm + n->m2 * n->ldd;
    j.each = scratch_floats(n, j.state_floats);
    j.n_slots = staged ? 4 * workers : 0;
    IDA_TRY_GOTO(IDA_ALLOC(j.mem, workers * j.each + (j.n_slots + 1) * j.state_floats, "scratch of the chunked mixer"));
    j.slots = j.mem + workers * j.each;
    j.carry = j.slots + j.n_slots * j.state_floats;
    ida_parallel(seqs->n * a->g, sequence_task, &j);
    for (int64_t s = 0; s < seqs->n && staged; s++)
        for (int64_t g = 0; g < a->g && mix_seq_len(seqs, s) > j.plan.staged_over; g++) staged_sequence(&j, s, g);
out:
    ida_free(j.mem);
    IDA_CPU(mix_plan_close)(&j.plan);
    return st;
}
