/* interdomain_bwd.c - the chunked backward of the mixer core on the CPU: the walk over chunks, sequences and groups (one chunk:
 * interdomain_bwd_chunk.c). Nothing is kept from the forward: states at chunk starts are formed again, a window of chunks at a
 * time, from the states at window starts. Work is cut as in interdomain.c, into (sequence, group) tasks or over chunks.
 * Gradients of the parameters are summed in fp32 inside a chunk and in double over chunks, sequences in order.
 * Invariant: bits do not depend on the thread count, nor on the way the work was cut. */
#include "ops/cpu/interdomain_bwd.h"

enum { WINDOW_MAX = 64, WINDOW_MIN = 8, WAVE = 64 };
#define WINDOW_BYTES (32 << 20)

/* Gradients of log Lam and Bbar [m2] and of G [m, m2] in double, per (sequence, group) task and per group. */
typedef struct sums { double *log_lam, *b, *g; } sums;

typedef struct scratch {
    bwd_work chunk;
    float *dx, *hat; /* states [wp, ldm] */
    float *slots, *starts, *rec, *kv, *c; /* c: four [mp, ldm] */
} scratch;

typedef struct job {
    bwd_call c;
    const ida_seqs *seqs;
    float *mem;
    double *run_sums, *group_sums;
    int64_t each, state_floats, rec_floats, kv_floats, sum_doubles, window, n_starts;
    int64_t first_run, n_runs;
    /* staged: one sequence and group, chunks first..first+n-1 */
    int64_t seq, group, first;
    float *slots, *hats, *recs, *kvs, *starts, *dcarry;
} job;

static sums sums_at(double *at, const mix_dims *n) { return (sums){at, at + n->m2, at + 2 * n->m2}; }

/* Lays the buffers out from `at`; with at = NULL only counts. */
static int64_t scratch_layout(scratch *w, float *at, const job *j) {
    const mix_dims *n = &j->c.plan.n;
    struct { float **p; int64_t size;
    } list[] = {
        {&w->dx, j->state_floats},
        {&w->hat, j->state_floats},
        {&w->slots, (j->window + 1) * j->state_floats},
        {&w->starts, j->n_starts * j->state_floats},
        {&w->rec, j->rec_floats},
        {&w->kv, j->kv_floats},
        {&w->c, 4 * n->mp * n->ldm},
    };
    int64_t total = IDA_CPU(bwd_work_layout)(&w->chunk, at, n);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        *list[i].p = at ? at + total : NULL;
        total += list[i].size;
    }
    return total;
}

static scratch scratch_of(const job *j, int worker) {
    scratch w;
    scratch_layout(&w, j->mem + worker * j->each, j);
    return w;
}

/* Adds a chunk's record to its task's sums. e: exponent of the state moment, from this chunk's origin to the next one's; without
 * state, only the local part counts. */
static void add_record(const sums *to, const bwd_record *rec, const mix_table *t, const mix_dims *n, int64_t e, bool local,
                       bool state) {
    const int64_t mp = n->mp;
    for (int64_t m = 0; m < n->m; m++) {
        double l_re = 0, l_im = 0, b_re = 0, b_im = 0, o_re = 0, o_im = 0;
        if (local) {
            l_re = (double)rec->e[m], l_im = (double)rec->e[mp + m];
            b_re = (double)rec->local0[m], b_im = (double)rec->local0[mp + m];
            o_re = (double)rec->local1[m], o_im = (double)rec->local1[mp + m];
        }
        for (int64_t b = 0; b < bwd_scan_blocks(n) && (state || !local); b++) {
            l_re += (double)e * (double)rec->x[b * n->m2 + m];
            l_im += (double)e * (double)rec->x[b * n->m2 + mp + m];
        }
        if (state && local) {
            b_re += (double)rec->state0[m], b_im += (double)rec->state0[mp + m];
            o_re += (double)rec->state1[m], o_im += (double)rec->state1[mp + m];
        }
        to->log_lam[m] += l_re + (t->b_re[m] * o_re + t->b_im[m] * o_im);
        to->log_lam[mp + m] += l_im + (t->b_re[m] * o_im - t->b_im[m] * o_re);
        to->b[m] += b_re;
        to->b[mp + m] += b_im;
    }
    for (int64_t i = 0; i < n->m * n->m2 && local; i++) to->g[i] += (double)rec->g[i];
}

static const mix_table *table_of(const job *j, int64_t g) { return j->c.plan.tables + g; }

/* Token range of chunk i of sequence s; returns its rows. */
static int64_t chunk_rows(const job *j, int64_t s, int64_t g, int64_t i, int64_t *token, bool *last) {
    const int64_t chunk = table_of(j, g)->chunk, left = mix_seq_len(j->seqs, s) - i * chunk;
    *token = j->seqs->cu[s] + i * chunk;
    *last = left <= chunk;
    return *last ? left : chunk;
}

static int64_t chunks_of(const job *j, int64_t s, int64_t g) {
    const int64_t chunk = table_of(j, g)->chunk;
    return (mix_seq_len(j->seqs, s) + chunk - 1) / chunk;
}

static int64_t state_at(const mix_dims *n, const ida_state_ref *ref, int64_t s, int64_t g) {
    return s * ref->stride + g * n->m * (n->r + n->d);
}

/* A state array's entry, transposed to [wp, ldm]; times Lam^e unless e is 0. */
static void load_state(float *x, const job *j, const ida_state_ref *ref, int64_t s, int64_t g, int64_t e) {
    const mix_dims *n = &j->c.plan.n;
    const float *scale = e ? mix_power(n, table_of(j, g), e) : NULL;
    mix_state_load_t(x, n, ref, state_at(n, ref, s, g), 0, n->r, n->rp, scale);
    mix_state_load_t(x + n->rp * n->ldm, n, ref, state_at(n, ref, s, g), n->r, n->d, n->dp, scale);
}

static void store_state(const job *j, const ida_state_ref *ref, int64_t s, int64_t g, const float *x) {
    const mix_dims *n = &j->c.plan.n;
    mix_state_store_t(ref, state_at(n, ref, s, g), 0, n->r, x, n);
    mix_state_store_t(ref, state_at(n, ref, s, g), n->r, n->d, x + n->rp * n->ldm, n);
}

/* What a chunk needs and gives: zero state before it, a gradient of the state after it, dX~ wanted. */
typedef struct chunk_flags { bool zero, from_after, want_before; } chunk_flags;

static chunk_flags flags_of(const job *j, int64_t i, bool last) {
    const bool given = j->c.a->state_in.re != NULL;
    return (chunk_flags){i == 0 && !given, !last || j->c.gr->dstate_out.re, i > 0 || given || j->c.gr->dstate_in.re};
}

/* Scan over chunk i: dx goes from after it to before it, hat from loc to dX^. */
static void scan_chunk(const job *j, int64_t s, int64_t g, int64_t i, float *dx, float *hat, const float *x_after,
                       const bwd_record *rec) {
    const mix_dims *n = &j->c.plan.n;
    int64_t token;
    bool last;
    const int64_t rows = chunk_rows(j, s, g, i, &token, &last);
    const chunk_flags f = flags_of(j, i, last);
    if (!f.from_after) {
        if (f.want_before) memcpy(dx, hat, (size_t)j->state_floats * sizeof *dx);
        return;
    }
    const int64_t e = mix_exit_power(table_of(j, g), rows, last);
    IDA_CPU(bwd_gradient_scan)(dx, hat, f.want_before ? hat : NULL, x_after, mix_power(n, table_of(j, g), e), rec->x, n);
}

static void add_chunk(const job *j, int64_t s, int64_t g, int64_t i, const sums *to, const bwd_record *rec) {
    int64_t token;
    bool last;
    const int64_t rows = chunk_rows(j, s, g, i, &token, &last), from = bwd_origin(table_of(j, g), rows);
    const bool from_after = flags_of(j, i, last).from_after;
    int64_t e = rows - 1 - from;
    if (!last) {
        bool next_last;
        e = rows - from + bwd_origin(table_of(j, g), chunk_rows(j, s, g, i + 1, &token, &next_last));
    }
    add_record(to, rec, table_of(j, g), &j->c.plan.n, e, true, from_after);
}

/* X~ = Lam^(c+1) X backwards: dstate_in and its moment. dx is used up. */
static void finish_start(const job *j, int64_t s, int64_t g, float *dx, float *hat, const float *x, const bwd_record *rec,
                         const sums *to) {
    const mix_dims *n = &j->c.plan.n;
    if (!j->c.a->state_in.re && !j->c.gr->dstate_in.re) return;
    IDA_CPU(bwd_gradient_scan)(dx, hat, NULL, x, mix_power(n, table_of(j, g), table_of(j, g)->centre + 1), rec->x, n);
    int64_t token;
    bool last;
    const int64_t rows = chunk_rows(j, s, g, 0, &token, &last);
    if (j->c.a->state_in.re) add_record(to, rec, table_of(j, g), n, bwd_origin(table_of(j, g), rows) + 1, false, true);
    if (j->c.gr->dstate_in.re) store_state(j, &j->c.gr->dstate_in, s, g, hat);
}

static void empty_sequence(const job *j, int64_t s, int64_t g) {
    const ida_state_ref *in = &j->c.gr->dstate_out, *out = &j->c.gr->dstate_in;
    const int64_t size = j->c.a->m * (j->c.a->r + j->c.a->d), from = s * in->stride + g * size, to = s * out->stride + g * size;
    if (!out->re) return;
    for (int64_t i = 0; i < size; i++) {
        out->re[to + i] = in->re ? in->re[from + i] : 0;
        out->im[to + i] = in->re ? in->im[from + i] : 0;
    }
}

/* X~ through chunks first..first+n-1: slots [n+1] hold the state before them on entry (slot 0), all states on exit. */
static void forward_window(const scratch *w, const job *j, int64_t s, int64_t g, int64_t first, int64_t n_chunks, float *slots) {
    const mix_dims *n = &j->c.plan.n;
    for (int64_t i = 0; i < n_chunks; i++, slots += j->state_floats) {
        int64_t token;
        bool last;
        const int64_t rows = chunk_rows(j, s, g, first + i, &token, &last);
        if (!flags_of(j, first + i, last).from_after) return;
        IDA_CPU(bwd_pack)(&w->chunk, &j->c, g, token, rows);
        if (!last) IDA_CPU(bwd_prefetch)(&j->c, g, token + rows, rows, NULL);
        IDA_CPU(bwd_part)(slots + j->state_floats, &w->chunk, &j->c, g, rows);
        IDA_CPU(bwd_state_scan)
        (slots + j->state_floats, slots, mix_power(n, table_of(j, g), mix_exit_power(table_of(j, g), rows, last)), n);
    }
}

static void sequence_task(void *arg, int64_t task, int worker) {
    const job *j = arg;
    const mix_dims *n = &j->c.plan.n;
    const int64_t s = (j->first_run + task) / j->c.a->g, g = (j->first_run + task) % j->c.a->g, len = mix_seq_len(j->seqs, s);
    const sums to = sums_at(j->run_sums + task * j->sum_doubles, n);
    const scratch w = scratch_of(j, worker);
    const bwd_record rec = bwd_record_at(w.rec, n);
    const bwd_kv kv = bwd_kv_at(w.kv, n);
    memset(to.log_lam, 0, (size_t)j->sum_doubles * sizeof(double));
    if (len > j->c.plan.staged_over) return;
    if (len == 0) {
        empty_sequence(j, s, g);
        return;
    }
    const int64_t n_chunks = chunks_of(j, s, g), last_window = (n_chunks - 1) / j->window;
    const size_t state_bytes = (size_t)j->state_floats * sizeof(float);
    load_state(w.slots, j, &j->c.a->state_in, s, g, table_of(j, g)->centre + 1);
    for (int64_t i = 0; i < last_window; i++) {
        memcpy(w.starts + i * j->state_floats, w.slots, state_bytes);
        forward_window(&w, j, s, g, i * j->window, j->window, w.slots);
        memcpy(w.slots, w.slots + j->window * j->state_floats, state_bytes);
    }
    load_state(w.dx, j, &j->c.gr->dstate_out, s, g, 0);
    for (int64_t win = last_window; win >= 0; win--) {
        const int64_t first = win * j->window, count = n_chunks - first < j->window ? n_chunks - first : j->window;
        if (win < last_window) memcpy(w.slots, w.starts + win * j->state_floats, state_bytes);
        forward_window(&w, j, s, g, first, count, w.slots);
        for (int64_t i = count - 1; i >= 0; i--) {
            int64_t token;
            bool last;
            const int64_t rows = chunk_rows(j, s, g, first + i, &token, &last);
            const chunk_flags f = flags_of(j, first + i, last);
            const float *x = w.slots + i * j->state_floats;
            IDA_CPU(bwd_pack)(&w.chunk, &j->c, g, token, rows);
            IDA_CPU(bwd_local)(&w.chunk, &j->c, g, token, rows, f.zero ? NULL : x, f.want_before ? w.hat : NULL, &rec, &kv);
            scan_chunk(j, s, g, first + i, w.dx, w.hat, x + j->state_floats, &rec);
            if (i > 0) IDA_CPU(bwd_prefetch)(&j->c, g, token - table_of(j, g)->chunk, table_of(j, g)->chunk, x - j->state_floats);
            if (f.from_after) IDA_CPU(bwd_state)(&w.chunk, &j->c, g, rows, w.hat, &rec, &kv);
            IDA_CPU(bwd_copy_kv)(&j->c, g, token, rows, &kv);
            add_chunk(j, s, g, first + i, &to, &rec);
        }
    }
    finish_start(j, s, g, w.dx, w.hat, w.slots, &rec, &to);
}

/* Staged: the same, one sequence and group with its chunks in parallel. */
static void part_task(void *arg, int64_t i, int worker) {
    const job *j = arg;
    const scratch w = scratch_of(j, worker);
    int64_t token;
    bool last;
    const int64_t rows = chunk_rows(j, j->seq, j->group, j->first + i, &token, &last);
    IDA_CPU(bwd_pack)(&w.chunk, &j->c, j->group, token, rows);
    IDA_CPU(bwd_part)(j->slots + (i + 1) * j->state_floats, &w.chunk, &j->c, j->group, rows);
}

static void local_task(void *arg, int64_t i, int worker) {
    const job *j = arg;
    const scratch w = scratch_of(j, worker);
    const bwd_record rec = bwd_record_at(j->recs + i * j->rec_floats, &j->c.plan.n);
    int64_t token;
    bool last;
    const int64_t rows = chunk_rows(j, j->seq, j->group, j->first + i, &token, &last);
    const chunk_flags f = flags_of(j, j->first + i, last);
    const bwd_kv kv = bwd_kv_at(j->kvs + i * j->kv_floats, &j->c.plan.n);
    IDA_CPU(bwd_pack)(&w.chunk, &j->c, j->group, token, rows);
    IDA_CPU(bwd_local)
    (&w.chunk, &j->c, j->group, token, rows, f.zero ? NULL : j->slots + i * j->state_floats,
     f.want_before ? j->hats + i * j->state_floats : NULL, &rec, &kv);
}

static void state_task(void *arg, int64_t i, int worker) {
    const job *j = arg;
    const scratch w = scratch_of(j, worker);
    const bwd_record rec = bwd_record_at(j->recs + i * j->rec_floats, &j->c.plan.n);
    int64_t token;
    bool last;
    const int64_t rows = chunk_rows(j, j->seq, j->group, j->first + i, &token, &last);
    const bwd_kv kv = bwd_kv_at(j->kvs + i * j->kv_floats, &j->c.plan.n);
    if (flags_of(j, j->first + i, last).from_after) {
        IDA_CPU(bwd_pack)(&w.chunk, &j->c, j->group, token, rows);
        IDA_CPU(bwd_state)(&w.chunk, &j->c, j->group, rows, j->hats + i * j->state_floats, &rec, &kv);
    }
    IDA_CPU(bwd_copy_kv)(&j->c, j->group, token, rows, &kv);
}

static void staged_forward(job *j, int64_t n_chunks) {
    const mix_dims *n = &j->c.plan.n;
    const mix_table *t = table_of(j, j->group);
    ida_parallel(n_chunks, part_task, j);
    for (int64_t i = 0; i < n_chunks; i++) {
        int64_t token;
        bool last;
        const int64_t rows = chunk_rows(j, j->seq, j->group, j->first + i, &token, &last);
        float *slot = j->slots + i * j->state_floats;
        IDA_CPU(bwd_state_scan)(slot + j->state_floats, slot, mix_power(n, t, mix_exit_power(t, rows, last)), n);
    }
}

static void staged_sequence(job *j, int64_t run, const sums *to) {
    const int64_t s = run / j->c.a->g, g = run % j->c.a->g, n_chunks = chunks_of(j, s, g),
                  last_window = (n_chunks - 1) / j->window;
    const size_t state_bytes = (size_t)j->state_floats * sizeof(float);
    j->seq = s;
    j->group = g;
    load_state(j->slots, j, &j->c.a->state_in, s, g, table_of(j, g)->centre + 1);
    for (int64_t win = 0; win < last_window; win++) {
        memcpy(j->starts + win * j->state_floats, j->slots, state_bytes);
        j->first = win * j->window;
        staged_forward(j, j->window);
        memcpy(j->slots, j->slots + j->window * j->state_floats, state_bytes);
    }
    load_state(j->dcarry, j, &j->c.gr->dstate_out, s, g, 0);
    for (int64_t win = last_window; win >= 0; win--) {
        if (win < last_window) memcpy(j->slots, j->starts + win * j->state_floats, state_bytes);
        j->first = win * j->window;
        const int64_t count = n_chunks - j->first < j->window ? n_chunks - j->first : j->window;
        staged_forward(j, count);
        ida_parallel(count, local_task, j);
        for (int64_t i = count - 1; i >= 0; i--) {
            const bwd_record rec = bwd_record_at(j->recs + i * j->rec_floats, &j->c.plan.n);
            scan_chunk(j, s, g, j->first + i, j->dcarry, j->hats + i * j->state_floats, j->slots + (i + 1) * j->state_floats,
                       &rec);
        }
        ida_parallel(count, state_task, j);
        for (int64_t i = count - 1; i >= 0; i--) {
            const bwd_record rec = bwd_record_at(j->recs + i * j->rec_floats, &j->c.plan.n);
            add_chunk(j, s, g, j->first + i, to, &rec);
        }
    }
    const bwd_record rec = bwd_record_at(j->recs, &j->c.plan.n);
    finish_start(j, s, g, j->dcarry, j->hats, j->slots, &rec, to);
}

/* Adds a wave's runs of group g to the group's sums, sequences in order. */
static void group_task(void *arg, int64_t g, int worker) {
    (void)worker;
    const job *j = arg;
    double *to = j->group_sums + g * j->sum_doubles;
    for (int64_t run = 0; run < j->n_runs; run++) {
        const double *from = j->run_sums + run * j->sum_doubles;
        if ((j->first_run + run) % j->c.a->g != g) continue;
        for (int64_t i = 0; i < j->sum_doubles; i++) to[i] += from[i];
    }
}

/* G = C^H C: dC = C (dG + dG^H).  G = C^T C: dC = conj(C) (dG + dG^T).  Then the chain to log_dt, a_log, a_imag. */
static void finish_task(void *arg, int64_t g, int worker) {
    const job *j = arg;
    const mix_dims *n = &j->c.plan.n;
    const int64_t m = n->m, mp = n->mp, ld = n->ldm;
    const sums from = sums_at(j->group_sums + g * j->sum_doubles, n);
    const double sign = j->c.a->readout == IDA_READOUT_HERMITIAN ? 1 : -1;
    float *c = scratch_of(j, worker).c, *h = c + mp * ld, *h2 = h + mp * ld, *dc = h2 + mp * ld;
    smm_pack(c, ld, j->c.a->ssm.c_re + g * m * m, m, m, m, mp);
    smm_pack(c + mp, ld, j->c.a->ssm.c_im + g * m * m, m, m, m, mp);
    memset(h, 0, (size_t)(2 * mp * ld) * sizeof *h);
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < m; k++) {
            const double re = from.g[i * n->m2 + k] + from.g[k * n->m2 + i];
            const double im = from.g[i * n->m2 + mp + k] - sign * from.g[k * n->m2 + mp + i];
            h[i * ld + k] = (float)re;
            h[i * ld + mp + k] = (float)im;
            h2[i * ld + k] = (float)(-sign * im);
            h2[i * ld + mp + k] = (float)(sign * re);
        }
    const smm_term u[2] = {mix_term(c, ld, 1, h, ld, m, SMM_FULL), mix_term(c + mp, ld, 1, h2, ld, m, SMM_FULL)};
    smm(dc, ld, mp, n->m2, false, u, 2);
    smm_copy_out(j->c.gr->dssm.c_re + g * m * m, m, dc, ld, m, m, true);
    smm_copy_out(j->c.gr->dssm.c_im + g * m * m, m, dc + mp, ld, m, m, true);
    ida_ref_ssm_log_bwd(&j->c.a->ssm, g, m, from.log_lam, from.log_lam + mp, from.b, from.b + mp, &j->c.gr->dssm);
}

/* Sizes of the scratch and one allocation. longest: of the sequences that are not staged, and of those that are, in chunks. */
static ida_status job_open(job *j) {
    const mix_dims *n = &j->c.plan.n;
    const int64_t workers = ida_workers();
    int64_t tasks_longest = 0, staged_longest = 0;
    for (int64_t s = 0; s < j->seqs->n; s++)
        for (int64_t g = 0; g < j->c.a->g; g++) {
            int64_t *longest = mix_seq_len(j->seqs, s) > j->c.plan.staged_over ? &staged_longest : &tasks_longest;
            if (chunks_of(j, s, g) > *longest) *longest = chunks_of(j, s, g);
        }
    j->state_floats = n->wp * n->ldm;
    j->rec_floats = bwd_record_floats(n);
    j->kv_floats = bwd_kv_floats(n);
    j->sum_doubles = (2 + n->m) * n->m2;
    j->window = WINDOW_BYTES / 4 / j->state_floats;
    j->window = j->window > WINDOW_MAX ? WINDOW_MAX : j->window < WINDOW_MIN ? WINDOW_MIN : j->window;
    const int64_t longest = tasks_longest > staged_longest ? tasks_longest : staged_longest;
    if (longest < j->window) j->window = longest;
    j->n_starts = j->window > 0 ? tasks_longest / j->window : 0;
    j->each = scratch_layout(&(scratch){0}, NULL, j);
    j->n_runs = WAVE > 4 * workers ? WAVE : 4 * workers;
    if (j->seqs->n * j->c.a->g < j->n_runs) j->n_runs = j->seqs->n * j->c.a->g;
    const int64_t staged = staged_longest == 0 ? 0
                                               : (2 * j->window + 2 + staged_longest / j->window) * j->state_floats +
                                                     j->window * (j->rec_floats + j->kv_floats);
    IDA_TRY(IDA_ALLOC(j->mem, workers * j->each + staged, "scratch of the chunked mixer's backward"));
    IDA_TRY(IDA_ALLOC(j->run_sums, (j->n_runs + j->c.a->g) * j->sum_doubles, "parameter gradients of the chunked mixer"));
    j->group_sums = j->run_sums + j->n_runs * j->sum_doubles;
    memset(j->group_sums, 0, (size_t)(j->c.a->g * j->sum_doubles) * sizeof(double));
    if (staged == 0) return IDA_OK;
    j->slots = j->mem + workers * j->each;
    j->hats = j->slots + (j->window + 1) * j->state_floats;
    j->dcarry = j->hats + j->window * j->state_floats;
    j->starts = j->dcarry + j->state_floats;
    j->recs = j->starts + staged_longest / j->window * j->state_floats;
    j->kvs = j->recs + j->window * j->rec_floats;
    return IDA_OK;
}

ida_status IDA_CPU(interdomain_chunk_bwd)(const ida_device *dev, const ida_interdomain_args *a, const ida_interdomain_grads *gr,
                                          const ida_seqs *seqs) {
    (void)dev;
    job j = {.c = {.a = a, .gr = gr}, .seqs = seqs};
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(IDA_CPU(mix_plan_open)(&j.c.plan, a, seqs));
    IDA_TRY_GOTO(job_open(&j));
    const int64_t runs = seqs->n * a->g, wave = j.n_runs;
    for (j.first_run = 0; j.first_run < runs; j.first_run += wave) {
        j.n_runs = runs - j.first_run < wave ? runs - j.first_run : wave;
        ida_parallel(j.n_runs, sequence_task, &j);
        for (int64_t i = 0; i < j.n_runs; i++) {
            const sums to = sums_at(j.run_sums + i * j.sum_doubles, &j.c.plan.n);
            if (mix_seq_len(seqs, (j.first_run + i) / a->g) > j.c.plan.staged_over) staged_sequence(&j, j.first_run + i, &to);
        }
        ida_parallel(a->g, group_task, &j);
    }
    if (runs > 0) ida_parallel(a->g, finish_task, &j);
out:
    ida_free(j.run_sums);
    ida_free(j.mem);
    IDA_CPU(mix_plan_close)(&j.c.plan);
    return st;
}
