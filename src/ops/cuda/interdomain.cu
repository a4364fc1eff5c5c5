/* interdomain.cu - the launchers of the mixer core (interdomain.h): which path, the layout of scratch, the cutting into tasks.
 * Invariant: scratch and tasks are functions of the shapes alone; nothing is read back from the device. */
#include <stdlib.h>

#include "ops/cuda/mixer.cuh"

/* Enough tasks that the last wave of CTAs costs little; more only repeat the loading of tables. */
enum { WANTED_TASKS = 528, ANY_CTAS = 132, MULTIPROCESSORS = 132, MIN_PART = 8, MAX_TOKENS = 1 << 30 };

bool ida_cuda_interdomain_tuned(const ida_cuda_interdomain *a) {
    int device = 0, major = 0, minor = 0;
    if (cudaGetDevice(&device) || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device))
        return false;
    return major == 9 && minor == 0 && a->bf16 && a->m <= MIX_TILE && a->r <= MIX_TILE && a->d <= MIX_TILE && a->r % 8 == 0 &&
           a->d % 8 == 0 && (a->chunk == 0 || a->chunk >= MIX_CHUNK);
}

static int64_t chunks_of(const ida_cuda_interdomain *a, int64_t s) {
    return (a->cu[s + 1] - a->cu[s] + MIX_CHUNK - 1) / MIX_CHUNK;
}

typedef struct plan {
    mix_params p;
    int64_t n_tokens, n_chunks, longest, meta, part_chunks;
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

static int64_t parts_of(const ida_cuda_interdomain *a, int64_t s, int64_t part_chunks) {
    const int64_t n = chunks_of(a, s);
    return n > part_chunks ? (n + part_chunks - 1) / part_chunks : 1;
}
static int64_t count_parts(const ida_cuda_interdomain *a, int64_t part_chunks) {
    int64_t n = 0;
    for (int64_t s = 0; s < a->n_seq; s++) n += parts_of(a, s, part_chunks);
    return n;
}

/* The longest part in chunks that makes the estimated time smallest. Cutting costs a further pass over the same parts:
 * overhead. A fixed number of multiprocessors, so that the bits do not depend on the chip's. */
static int64_t choose_part(const ida_cuda_interdomain *a, const plan *l, double overhead) {
    int64_t best = l->longest > 0 ? l->longest : 1;
    double best_cost = 0;
    for (int64_t pieces = 1; pieces <= 64; pieces++) {
        const int64_t chunks = (l->longest + pieces - 1) / pieces;
        if (pieces > 1 && chunks < MIN_PART) break;
        /* the passes before have 1 - 1/pieces of the tasks, so few long parts leave them no more parallel than before */
        const int64_t tasks = count_parts(a, chunks) * a->h;
        const double waves = (double)((tasks + MULTIPROCESSORS - 1) / MULTIPROCESSORS) * (double)chunks;
        const double even = (double)(l->n_chunks * a->h) / MULTIPROCESSORS + (double)chunks;
        const double once = waves < even ? waves : even,
                     cost = pieces > 1 ? once + overhead * (once > 2.0 * (double)chunks ? once : 2.0 * (double)chunks) : once;
        if (pieces > 1 && cost > best_cost * 0.999) continue;
        best = chunks;
        best_cost = cost;
    }
    return best > 0 ? best : 1;
}

static plan plan_make(const ida_cuda_interdomain *a, unsigned char *base, bool bwd) {
    plan l = {};
    mix_params *p = &l.p;
    l.n_tokens = a->n_seq > 0 ? a->cu[a->n_seq] : 0;
    p->tuned = l.n_tokens > 0 && ida_cuda_interdomain_tuned(a);
    p->n_seq = a->n_seq, p->h = a->h, p->g = a->g, p->per = a->h / a->g, p->r = a->r, p->d = a->d, p->m = a->m;
    p->mp = p->tuned ? MIX_TILE : a->m;
    p->chunk_limit = 1;
    const int64_t limit = a->chunk > 0 && a->chunk < MIX_CHUNK ? a->chunk : MIX_CHUNK;
    while (2 * p->chunk_limit <= limit) p->chunk_limit *= 2;
    p->hermitian = a->readout == IDA_READOUT_HERMITIAN, p->disc = a->ssm.disc;
    p->ssm = a->ssm;
    p->q = a->q, p->k = a->k, p->v = a->v, p->o = a->o, p->dout = a->dout, p->dq = a->dq, p->dk = a->dk, p->dv = a->dv;
    p->state_in = a->state_in, p->state_out = a->state_out, p->dstate_out = a->dstate_out, p->dstate_in = a->dstate_in;
    p->dssm = a->dssm;
    for (int64_t s = 0; s < a->n_seq; s++) {
        l.n_chunks += chunks_of(a, s);
        if (chunks_of(a, s) > l.longest) l.longest = chunks_of(a, s);
    }
    const int64_t wanted = (WANTED_TASKS + a->h - 1) / a->h;
    p->n_runs = (int)(a->n_seq < wanted ? a->n_seq : wanted);

    if (p->tuned) {
        l.part_chunks = choose_part(a, &l, bwd ? 0.7 : 0.35);
        p->n_parts = (int)count_parts(a, l.part_chunks);
        p->n_part_runs = (int)(p->n_parts < wanted ? p->n_parts : wanted);
        p->split = p->n_parts > a->n_seq;
    }

    const int64_t m2 = 2 * p->mp, g = a->g, record = mix_record_floats(p->mp), tasks = p->n_runs * a->h;
    const int64_t record_runs = p->n_part_runs > p->n_runs ? p->n_part_runs : p->n_runs;
    const int64_t meta_words = a->n_seq + 1 + p->n_runs + 1 + p->n_part_runs + 1;
    l.meta = meta_words * (int64_t)sizeof(int64_t) + p->n_parts * (int64_t)sizeof(mix_part);
    int64_t *meta = (int64_t *)take(&l, base, l.meta, 1);
    p->cu = meta, p->run0 = base ? meta + a->n_seq + 1 : NULL, p->part_run0 = base ? p->run0 + p->n_runs + 1 : NULL;
    p->parts = base ? (const mix_part *)(meta + meta_words) : NULL;
    p->t.chunk = (int *)take(&l, base, g, sizeof(int));
    p->t.b = (double *)take(&l, base, g * m2, sizeof(double));
    p->t.pw = (float *)take(&l, base, g * MIX_POWERS * m2, sizeof(float));
    p->t.f = (float *)take(&l, base, g * MIX_CHUNK * m2, sizeof(float));
    p->t.gg = (float *)take(&l, base, g * m2 * m2, sizeof(float));
    if (p->tuned) {
        p->t.e = (float4 *)take(&l, base, g, 32768);
        p->t.f16 = (unsigned char *)take(&l, base, g, 16384);
        p->t.gg16 = (unsigned char *)take(&l, base, g, 32768);
    }
    if (p->split) {
        p->x_part = (float *)take(&l, base, p->n_parts * a->h * MIX_STATE, sizeof(float));
        if (bwd) p->dx_part = (float *)take(&l, base, p->n_parts * a->h * MIX_STATE, sizeof(float));
    }
    if (bwd) {
        p->records = (float *)take(&l, base, record_runs * a->h * record, sizeof(float));
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
    const int64_t slots = bwd && p->tuned ? (l.n_chunks + a->n_seq) * a->h * MIX_SLOT : 0,
                  each = p->work_floats * (int64_t)sizeof(float);
    int64_t ctas = tasks < ANY_CTAS ? tasks : ANY_CTAS;
    if (slots > 0 && slots / each < ctas) ctas = slots / each > 1 ? slots / each : 1;
    l.any_ctas = (int)ctas;
    p->work = (float *)take(&l, base, slots > ctas * each ? slots : ctas * each, 1);
    p->slots = (unsigned char *)p->work;
    return l;
}

/* Cuts n items of the given weights into runs of consecutive ones: a run starts where its share of the weight does, and early
 * enough to leave an item for each run after it. */
static void cut_runs(int64_t *run0, int64_t runs, const mix_part *items, int64_t n) {
    int64_t total = 0, weight = 0, run = 0;
    for (int64_t i = 0; i < n; i++) total += (items[i].end - items[i].begin + MIX_CHUNK - 1) / MIX_CHUNK + 1;
    for (int64_t i = 0; i < n; i++) {
        if (run < runs && (weight * runs >= run * total || n - i <= runs - run)) run0[run++] = i;
        weight += (items[i].end - items[i].begin + MIX_CHUNK - 1) / MIX_CHUNK + 1;
    }
    run0[runs] = n;
}

/* cu, the runs and the parts to the device. */
static cudaError_t send_meta(const plan *l, const ida_cuda_interdomain *a, cudaStream_t stream) {
    const mix_params *p = &l->p;
    const int64_t most = a->n_seq > p->n_parts ? a->n_seq : p->n_parts;
    int64_t *meta = (int64_t *)malloc((size_t)l->meta + (size_t)most * sizeof(mix_part)), *run0 = meta + a->n_seq + 1,
            *part_run0 = run0 + p->n_runs + 1;
    if (!meta) return cudaErrorMemoryAllocation;
    mix_part *parts = (mix_part *)(part_run0 + p->n_part_runs + 1);
    for (int64_t s = 0; s <= a->n_seq; s++) meta[s] = a->cu[s];
    for (int64_t s = 0; s < a->n_seq; s++) parts[s] = mix_part{(int)a->cu[s], (int)a->cu[s + 1], (int)s, 0, 1, 0};
    cut_runs(run0, p->n_runs, parts, a->n_seq);
    if (p->tuned) {
        int64_t at = 0, slot = 0;
        for (int64_t s = 0; s < a->n_seq; s++) {
            const int64_t n = chunks_of(a, s), pieces = parts_of(a, s, l->part_chunks);
            for (int64_t i = 0; i < pieces; i++) {
                const int64_t first = n * i / pieces, end = n * (i + 1) / pieces, token = a->cu[s] + end * MIX_CHUNK;
                parts[at++] = mix_part{(int)(a->cu[s] + first * MIX_CHUNK),
                                       (int)(token < a->cu[s + 1] ? token : a->cu[s + 1]),
                                       (int)s,
                                       (int)i,
                                       i + 1 == pieces,
                                       (int)(slot + first)};
            }
            slot += n + 1;
        }
        cut_runs(part_run0, p->n_part_runs, parts, at);
    }
    const cudaError_t status = cudaMemcpyAsync((void *)p->cu, meta, (size_t)l->meta, cudaMemcpyHostToDevice, stream);
    free(meta);
    return status;
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
    const plan l = plan_make(a, (unsigned char *)scratch, false);
    const cudaStream_t stream = (cudaStream_t)stream_handle;
    if (l.p.n_runs == 0) return cudaSuccess;
    if (l.n_tokens > MAX_TOKENS) return cudaErrorInvalidValue;
    const cudaError_t status = send_meta(&l, a, stream);
    if (status != cudaSuccess) return status;
    mix_launch_tables(&l.p, stream);
    if (l.p.tuned) {
        if (l.p.split) mix_launch_parts64(&l.p, stream);
        mix_launch_fwd64(&l.p, stream);
    }
    mix_launch_fwd_any(&l.p, a->bf16, l.any_ctas, stream);
    return cudaGetLastError();
}

int ida_cuda_interdomain_bwd(const ida_cuda_interdomain *a, void *scratch, void *stream_handle) {
    const plan l = plan_make(a, (unsigned char *)scratch, true);
    const cudaStream_t stream = (cudaStream_t)stream_handle;
    if (l.p.n_runs == 0) return cudaSuccess;
    if (l.n_tokens > MAX_TOKENS) return cudaErrorInvalidValue;
    cudaError_t status = send_meta(&l, a, stream);
    if (status != cudaSuccess) return status;
    mix_launch_tables(&l.p, stream);
    if (l.p.tuned) {
        if (l.p.split) mix_launch_parts64(&l.p, stream);
        mix_launch_states64(&l.p, stream);
        status = mix_launch_bwd64(&l.p, l.n_tokens, stream);
        if (status != cudaSuccess) return status;
    }
    mix_launch_bwd_any(&l.p, a->bf16, l.any_ctas, stream);
    mix_launch_finish(&l.p, a->bf16, l.n_tokens, stream);
    return cudaGetLastError();
}
