/* interdomain.cu - the launchers of the mixer core (interdomain.h): which path, the layout of scratch, the cutting into tasks.
 * Invariant: scratch and tasks are functions of the shapes alone; nothing is read back from the device. */
#include "ops/cuda/interdomain/mixer.cuh"
#include "ops/cuda/vec.cuh"

/* Enough tasks that the last wave of CTAs costs little; more only repeat the loading of tables. MAX_LONG: with more sequences
 * that could be cut, none need be. */
enum { WANTED_TASKS = 528, ANY_CTAS = 264, MULTIPROCESSORS = 132, MIN_PART = 8, MAX_PIECES = 8, MAX_LONG = 256 };
/* What a run of chunks costs by itself, in chunks. */
static const double CHUNK_RUN = 3;

/* Bytes of the generic path's work space, where one CTA needs no more; on the tuned path it has the room of the states. */
static const int64_t MAX_WORK = (int64_t)4 << 30;

bool ida_cuda_interdomain_tuned(const ida_cuda_interdomain *a) {
    return a->arch == 90 && a->bf16 && a->m <= 2 * MIX_TILE && a->r <= 2 * MIX_TILE && a->d <= 2 * MIX_TILE &&
           a->r % 8 == 0 && a->d % 8 == 0 && (a->chunk == 0 || a->chunk >= MIX_CHUNK) &&
           vec_aligned(a->q, a->k, a->v, a->o, a->dout, a->dq, a->dk, a->dv);
}

typedef struct plan {
    mix_params p;
    int64_t n_tokens, longest, n_long, long_chunks[MAX_LONG]; /* of sequences of more than MIN_PART chunks */
    float *state_copy;
    int any_ctas;
    bool overflow;
    int64_t bytes;
} plan;

/* Cuts n * size bytes off scratch (base NULL: only counts). */
static void *take(plan *l, unsigned char *base, int64_t n, int64_t size) {
    void *at = base + l->bytes;
    int64_t need;
    if (__builtin_mul_overflow(n, size, &need) || __builtin_add_overflow(need, (int64_t)255, &need) ||
        __builtin_add_overflow(l->bytes, need / 256 * 256, &l->bytes))
        l->overflow = true;
    return base ? at : NULL;
}

/* Of MIX_TILE, that hold n. */
static int blocks(int64_t n) { return (int)((n + MIX_TILE - 1) / MIX_TILE); }

static void measure(plan *l, const ida_cuda_interdomain *a) {
    for (int64_t s = 0; s < a->n_seq; s++) {
        const int64_t n = mix_chunks(a->cu[s + 1] - a->cu[s]);
        l->p.n_chunks += n;
        if (n > l->longest) l->longest = n;
        if (n > MIN_PART && l->n_long++ < MAX_LONG) l->long_chunks[l->n_long - 1] = n;
    }
}

/* Parts of all sequences, and of those that are cut (cut: more than one part). part_chunks >= MIN_PART. */
static int64_t count_parts(const plan *l, int64_t n_seq, int64_t part_chunks, int64_t *of_cut, int64_t *cut) {
    int64_t n = n_seq;
    *of_cut = *cut = 0;
    for (int64_t i = 0; i < l->n_long; i++) {
        const int64_t parts = mix_parts_of(l->long_chunks[i], part_chunks);
        n += parts - 1;
        if (parts > 1) *of_cut += parts, *cut += 1;
    }
    return n;
}

/* What the busiest multiprocessor does of tasks of equal size. */
static double waves(int64_t tasks, double size) {
    return (double)((tasks + MULTIPROCESSORS - 1) / MULTIPROCESSORS) * size;
}

/* What things cost, in chunks of the main pass, fitted to times on an H200 at 12 and 32 heads of 64 (bench/cuda/mixer_core_cuda):
 * a task of the main pass; the pass before it at all (its launches, the join); a piece and a chunk of that pass. */
typedef struct pass_cost {
    double task, before, piece, chunk;
} pass_cost;
static const pass_cost FWD_COST = {2.7, 19, 2.4, 0.13}, BWD_COST = {1.3, 8.4, 1.6, 0.24};
/* The same of wide heads, where the main pass is that for the states. */
static const pass_cost WIDE_COST = {2, 15, 2, 0.4};

/* Sets part_chunks and pre_per to what makes the estimated time smallest. Cutting costs a pass over the pieces of all parts but
 * one of a sequence. A fixed number of multiprocessors, so that the bits do not depend on the chip's. */
static void choose_parts(plan *l, int64_t n_seq, pass_cost of) {
    const int64_t h = l->p.vh;
    const int64_t longest = l->longest > 0 ? l->longest : 1;
    double best = 0;
    l->p.part_chunks = longest > MIN_PART ? longest : MIN_PART, l->p.pre_per = 1;
    if (l->n_long > MAX_LONG) return;
    for (int64_t parts = 1; parts <= 64; parts++) {
        const int64_t chunks = (longest + parts - 1) / parts;
        if (parts > 1 && chunks < MIN_PART) break;
        int64_t of_cut, cut, per = 1;
        const int64_t limit = chunks < MIN_PART ? MIN_PART : chunks, n_parts = count_parts(l, n_seq, limit, &of_cut, &cut);
        const double task = (double)chunks + of.task, whole = waves(n_parts * h, task),
                     even = ((double)l->p.n_chunks + (double)n_parts * of.task) * (double)h / MULTIPROCESSORS + task;
        double extra = 0;
        for (int64_t i = 1; parts > 1 && i <= MAX_PIECES && i <= chunks / 2; i++) {
            const double cost = of.before + waves((of_cut - cut) * h * i, of.piece + of.chunk * (double)((chunks + i - 1) / i));
            if (i > 1 && cost >= extra) continue;
            extra = cost, per = i;
        }
        const double cost = (whole < even ? whole : even) + extra;
        if (parts > 1 && cost > best * 0.999) continue;
        best = cost;
        l->p.part_chunks = limit, l->p.pre_per = (int)per;
    }
}

/* Sets n_chunk_runs: so many runs that the last wave of CTAs costs little, but few enough that a CTA's tables do. */
static void choose_chunk_runs(mix_params *p) {
    double best = 0;
    for (int64_t runs = 1; runs <= p->n_chunks && runs <= WANTED_TASKS; runs++) {
        const double cost = waves(runs * p->h, (double)((p->n_chunks + runs - 1) / runs) + CHUNK_RUN);
        if (runs > 1 && cost >= best) continue;
        best = cost, p->n_chunk_runs = (int)runs;
    }
}

static plan plan_make(const ida_cuda_interdomain *a, unsigned char *base, bool bwd) {
    plan l = {};
    mix_params *p = &l.p;
    l.n_tokens = a->n_seq > 0 ? a->cu[a->n_seq] : 0;
    p->tuned = l.n_tokens > 0 && ida_cuda_interdomain_tuned(a);
    p->n_seq = a->n_seq, p->h = a->h, p->g = a->g, p->per = a->h / a->g, p->r = a->r, p->d = a->d, p->m = a->m;
    p->mb = blocks(a->m), p->cb = blocks(vec_max(a->r, a->d));
    p->wide = p->tuned && (p->mb > 1 || p->cb > 1);
    p->vh = a->h * p->mb * p->cb;
    p->mp = p->tuned ? p->mb * MIX_TILE : a->m;
    p->chunk_limit = 1;
    const int64_t limit = a->chunk > 0 && a->chunk < MIX_CHUNK ? a->chunk : MIX_CHUNK;
    while (2 * p->chunk_limit <= limit) p->chunk_limit *= 2;
    p->hermitian = a->readout == IDA_READOUT_HERMITIAN, p->disc = a->ssm.disc;
    p->ssm = a->ssm;
    p->q = a->q, p->k = a->k, p->v = a->v, p->o = a->o, p->dout = a->dout, p->dq = a->dq, p->dk = a->dk, p->dv = a->dv;
    if (!bwd) p->state_out = a->state_out;
    p->state_in = a->state_in, p->dstate_out = a->dstate_out, p->dstate_in = a->dstate_in;
    p->dssm = a->dssm;
    measure(&l, a);
    const int64_t wanted = (WANTED_TASKS + a->h - 1) / a->h;
    p->n_runs = (int)(a->n_seq < wanted ? a->n_seq : wanted);

    if (p->tuned) {
        int64_t of_cut = 0, cut = 0;
        const int64_t part_runs = vec_div_up(WANTED_TASKS, p->vh);
        choose_parts(&l, a->n_seq, p->wide ? WIDE_COST : bwd ? BWD_COST : FWD_COST);
        if (p->wide) choose_chunk_runs(p);
        p->n_parts = (int)(l.n_long > MAX_LONG ? a->n_seq : count_parts(&l, a->n_seq, p->part_chunks, &of_cut, &cut));
        p->n_pieces = (int)of_cut * p->pre_per;
        p->n_part_runs = (int)(p->n_parts < part_runs ? p->n_parts : part_runs);
        p->split = cut > 0;
    }

    const int64_t m2 = 2 * p->mp, g = a->g, record = mix_record_floats(p->mp), tasks = p->n_runs * a->h;
    const int64_t tuned_runs = p->wide ? p->n_chunk_runs : p->n_part_runs, record_runs = vec_max(tuned_runs, p->n_runs);
    int64_t *cu = (int64_t *)take(&l, base, a->cu_device ? 0 : a->n_seq + 1, sizeof(int64_t));
    p->cu = a->cu_device ? a->cu_device : cu;
    p->run0 = (int64_t *)take(&l, base, p->n_runs + 1, sizeof(int64_t));
    p->part_run0 = (int64_t *)take(&l, base, p->n_part_runs + 1, sizeof(int64_t));
    p->weights = (int64_t *)take(&l, base, a->n_seq + 1 + p->n_parts + 1, sizeof(int64_t));
    p->parts = (mix_part *)take(&l, base, p->n_parts, sizeof(mix_part));
    p->pieces = (mix_part *)take(&l, base, p->n_pieces, sizeof(mix_part));
    p->t.chunk = (int *)take(&l, base, g, sizeof(int));
    p->t.b = (double *)take(&l, base, g * m2, sizeof(double));
    p->t.pw = (float *)take(&l, base, g * MIX_POWERS * m2, sizeof(float));
    p->t.f = (float *)take(&l, base, g * MIX_CHUNK * m2, sizeof(float));
    p->t.gg = (float *)take(&l, base, g * m2 * m2, sizeof(float));
    if (p->tuned) {
        if (!p->wide) p->t.e = (float4 *)take(&l, base, g, 32768);
        p->t.f16 = (unsigned char *)take(&l, base, g, MIX_CHUNK * m2 * 2);
        p->t.gg16 = (unsigned char *)take(&l, base, g, m2 * m2 * 2);
    }
    if (p->split) {
        p->x_part = (float *)take(&l, base, p->n_parts * p->vh * MIX_STATE, sizeof(float));
        if (bwd) p->dx_part = (float *)take(&l, base, p->n_parts * p->vh * MIX_STATE, sizeof(float));
        p->x_piece = (float *)take(&l, base, p->n_pieces * p->vh * MIX_STATE, sizeof(float));
    }
    /* where the state is updated in place and others than the writer read it */
    if (!bwd && a->state_in.re && a->state_in.re == a->state_out.re && (p->split || p->per > 1))
        l.state_copy = (float *)take(&l, base, 2 * a->n_seq * g * a->m * (a->r + a->d), sizeof(float));
    if (bwd) {
        p->records = (float *)take(&l, base, record_runs * a->h * record, sizeof(float));
        if (p->wide) {
            p->links = (unsigned char *)take(&l, base, (p->n_chunks + a->n_seq) * a->h, mix_links_bytes(p->mb));
            p->halves = (unsigned char *)take(&l, base, (p->n_chunks + a->n_seq) * a->h, mix_halves_bytes(p->mb));
            p->scan_records = (float *)take(&l, base, p->n_part_runs * p->vh * 2 * MIX_SCAN_RECORD, sizeof(float));
        }
        p->sums = (double *)take(&l, base, g * record, sizeof(double));
        p->folded = (double *)take(&l, base, g * 2 * p->mp * p->mp, sizeof(double));
        if (p->per > 1) {
            p->dk_head = (float *)take(&l, base, l.n_tokens * a->h * a->r, sizeof(float));
            p->dv_head = (float *)take(&l, base, l.n_tokens * a->h * a->d, sizeof(float));
            if (a->dstate_in.re) p->dx_head = (float *)take(&l, base, 2 * a->n_seq * a->h * a->m * (a->r + a->d), sizeof(float));
        }
    }
    /* the two paths run one after the other: the states of the one and the work space of the other share memory */
    p->work_blocks = bwd ? l.longest : 0;
    p->work_floats = mix_any_work_floats(p, p->work_blocks, bwd);
    const int64_t slots = p->tuned && (bwd || p->wide) ? (p->n_chunks + a->n_seq) * p->vh * MIX_SLOT : 0,
                  each = p->work_floats * (int64_t)sizeof(float);
    int64_t ctas = p->tuned ? ANY_CTAS / 2 : ANY_CTAS;
    if (tasks < ctas) ctas = tasks;
    const int64_t room = slots > 0 ? slots : MAX_WORK;
    if (room / each < ctas) ctas = room / each > 1 ? room / each : 1;
    l.any_ctas = (int)ctas;
    p->work = (float *)take(&l, base, slots > ctas * each ? slots : ctas * each, 1);
    p->slots = (unsigned char *)p->work;
    return l;
}

/* Tables, lists and states before the scan. */
static cudaError_t begin(plan *l, const ida_cuda_interdomain *a, cudaStream_t stream) {
    mix_params *p = &l->p;
    if (l->n_tokens > IDA_CUDA_INTERDOMAIN_TOKENS) return cudaErrorInvalidValue;
    if (!a->cu_device) {
        const cudaError_t status =
            cudaMemcpyAsync((void *)p->cu, a->cu, (size_t)(a->n_seq + 1) * sizeof *a->cu, cudaMemcpyHostToDevice, stream);
        if (status != cudaSuccess) return status;
    }
    mix_launch_tables(p, stream);
    if (l->state_copy) {
        const int64_t size = a->g * a->m * (a->r + a->d);
        mix_launch_copy_states(p, l->state_copy, stream);
        p->state_in = ida_state_ref{l->state_copy, l->state_copy + a->n_seq * size, size};
    }
    return cudaSuccess;
}

int64_t ida_cuda_interdomain_fwd_scratch_bytes(const ida_cuda_interdomain *a) {
    const plan l = plan_make(a, NULL, false);
    return l.overflow ? -1 : l.bytes;
}
int64_t ida_cuda_interdomain_bwd_scratch_bytes(const ida_cuda_interdomain *a) {
    const plan l = plan_make(a, NULL, true);
    return l.overflow ? -1 : l.bytes;
}

int ida_cuda_interdomain_fwd(const ida_cuda_interdomain *a, void *scratch, void *stream_handle) {
    plan l = plan_make(a, (unsigned char *)scratch, false);
    const cudaStream_t stream = (cudaStream_t)stream_handle;
    if (l.p.n_runs == 0) return cudaSuccess;
    cudaError_t status = begin(&l, a, stream);
    if (status != cudaSuccess) return status;
    if (l.p.tuned && l.p.split) mix_launch_parts64(&l.p, stream);
    if (l.p.wide) {
        mix_launch_states64(&l.p, stream);
        status = mix_launch_out_wide(&l.p, l.n_tokens, stream);
        if (status != cudaSuccess) return status;
    } else if (l.p.tuned) {
        mix_launch_fwd64(&l.p, stream);
    }
    mix_launch_fwd_any(&l.p, a->bf16, l.any_ctas, stream);
    return cudaGetLastError();
}

int ida_cuda_interdomain_bwd(const ida_cuda_interdomain *a, void *scratch, void *stream_handle) {
    plan l = plan_make(a, (unsigned char *)scratch, true);
    const cudaStream_t stream = (cudaStream_t)stream_handle;
    if (l.p.n_runs == 0) return cudaSuccess;
    cudaError_t status = begin(&l, a, stream);
    if (status != cudaSuccess) return status;
    if (l.p.tuned) {
        if (l.p.split) mix_launch_parts64(&l.p, stream);
        mix_launch_states64(&l.p, stream);
        status = l.p.wide ? mix_launch_bwd_wide(&l.p, l.n_tokens, stream) : mix_launch_bwd64(&l.p, l.n_tokens, stream);
        if (status != cudaSuccess) return status;
    }
    mix_launch_bwd_any(&l.p, a->bf16, l.any_ctas, stream);
    mix_launch_finish(&l.p, a->bf16, l.n_tokens, stream);
    return cudaGetLastError();
}
