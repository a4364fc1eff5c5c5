/* s4d.cu - the mixers without a query (ops.h "s4d") on a CUDA device: which path, the layout of scratch, the cutting into
 * tasks (s4d.cuh).
 * Invariant: scratch and tasks are functions of the shapes alone; nothing is read back from the device. */
#include "ops/cuda/s4d/s4d.cuh"

#include "ops/cuda/vec.cuh"

/* Enough tasks that the last wave of CTAs costs little, few enough that their records are small. */
enum { MAX_TASKS = 4096, CTAS_EACH = 4, MAX_TOKENS = 1 << 30, SLOTS = 264, MIN_PART = 8, MAX_PIECES = 64 };

typedef struct plan {
    s4d_params p, sums, tail; /* sums, tail: their tasks are cut otherwise */
    bool tuned, tails;        /* tails: where a state meets a short last chunk, that chunk takes the generic path */
    unsigned char *base;      /* NULL while sizes are counted */
    int64_t bytes;
    bool overflow;
    int ctas;
    ida_state_ref between;
} plan;

static void *take(plan *l, int64_t n, int64_t size) {
    unsigned char *at = l->base ? l->base + l->bytes : NULL;
    int64_t need;
    if (__builtin_mul_overflow(n, size, &need) || __builtin_add_overflow(need, (int64_t)255, &need) ||
        __builtin_add_overflow(l->bytes, need / 256 * 256, &l->bytes))
        l->overflow = true;
    return at;
}

static void lay_out(plan *l, bool sequential, bool bwd) {
    s4d_params *p = &l->p;
    const int64_t m2 = 2 * p->m, h = p->h;
    l->bytes = 0;
    p->coef = (double *)take(l, h * 3 * m2, sizeof(double));
    if (!sequential) {
        p->pw = (float *)take(l, h * (S4D_CHUNK + 1) * m2, sizeof(float));
        p->pw1 = (float *)take(l, h * (S4D_CHUNK + 1) * m2, sizeof(float));
        p->f = (float *)take(l, h * S4D_CHUNK * m2, sizeof(float));
        p->out = (float *)take(l, h * S4D_CHUNK * m2, sizeof(float));
        p->kernel = (float *)take(l, h * S4D_CHUNK * S4D_CHUNK, sizeof(float));
    }
    p->record = sequential ? 3 * m2 : s4d_record_doubles(p->m);
    if (bwd) {
        p->records = (double *)take(l, (p->state_in.re && !sequential ? 2 : 1) * l->sums.n_tasks * p->record, sizeof(double));
        p->sums = (double *)take(l, 2 * h * p->record, sizeof(double));
    }
    if (l->tuned) p->tables16 = (unsigned char *)take(l, h, S4D_TABLES16);
    const int64_t x_parts = vec_max(p->part_chunks > 0 ? p->n_tasks : 0, bwd && l->sums.part_chunks > 0 ? l->sums.n_tasks : 0);
    if (x_parts > 0) p->x_part = (float *)take(l, x_parts * S4D_STATE, sizeof(float));
    if (l->tuned && !l->tails) return;
    if (l->tails && bwd && !p->dstate_in.re) { /* where the gradient waits between the two paths */
        const int64_t size = h * p->m * (p->r + p->d);
        l->between.re = (float *)take(l, p->n_seq * size, sizeof(float));
        l->between.im = (float *)take(l, p->n_seq * size, sizeof(float));
        l->between.stride = size;
    }
    p->work_each = sequential ? s4d_seq_work_doubles(p->m, bwd) : s4d_any_work_floats(p->m, bwd);
    if (sequential) p->work64 = (double *)take(l, l->ctas * p->work_each, sizeof(double));
    else p->work = (float *)take(l, l->ctas * p->work_each, sizeof(float));
}

/* Tensor cores: sm_90 (tiles.h), bf16, M <= 64, 16-byte pieces of columns, chunks of 64. */
static bool tuned_for(const ida_device *dev, const ida_s4d_args *a, const ida_s4d_grads *g, int64_t n_tokens) {
    const bool aligned = vec_aligned(a->k, a->v) && (g ? vec_aligned(g->dy, g->dk, g->dv) : vec_aligned(a->y));
    return ida_cuda_of(dev)->arch == 90 && ida_cuda_of(dev)->bf16 && n_tokens > 0 && n_tokens <= MAX_TOKENS && a->m <= S4D_TILE &&
           a->r % 8 == 0 && a->d % 8 == 0 && (a->chunk == 0 || a->chunk >= S4D_CHUNK) && aligned;
}

static void cut_blocks(s4d_params *p, int64_t cols) {
    p->cols = cols;
    p->k_blocks = vec_div_up(p->r, cols), p->blocks = p->k_blocks + vec_div_up(p->d, cols);
    p->n_tasks = p->n_runs * p->h * p->blocks;
}

/* Cuts sequences into parts where the tasks are too few to fill the chip. Chooses the longest part in chunks that makes the
 * estimated time smallest; cutting costs a further pass of `overhead`. Slots are a fixed number, so that the bits do not
 * depend on the chip's. */
static void cut_parts(s4d_params *p, const ida_seqs *seqs, double overhead) {
    const int64_t per = p->h * p->blocks;
    int64_t longest = 0;
    for (int64_t s = 0; s < seqs->n; s++) longest = vec_max(longest, s4d_chunks(seqs->cu[s + 1] - seqs->cu[s], p->span));
    double best = 0;
    int64_t before = 0;
    for (int64_t pieces = 1; pieces <= MAX_PIECES && p->n_seq * per < SLOTS; pieces++) {
        const int64_t chunks = vec_div_up(longest, pieces);
        int64_t parts = 0;
        if (chunks == before) continue;
        if (pieces > 1 && chunks < MIN_PART) break;
        before = chunks;
        for (int64_t s = 0; s < seqs->n; s++) parts += s4d_parts(seqs->cu[s + 1] - seqs->cu[s], p->span, chunks);
        const double cost = (double)(vec_div_up(parts * per, SLOTS) * chunks) * (pieces > 1 ? 1.0 + overhead : 1.0);
        if (pieces > 1 && cost > 0.9 * best) continue;
        best = cost;
        if (pieces == 1) continue;
        p->part_chunks = chunks, p->n_runs = parts, p->n_tasks = parts * per;
    }
}
static bool any_tail(const ida_seqs *seqs) {
    for (int64_t s = 0; s < seqs->n; s++)
        if ((seqs->cu[s + 1] - seqs->cu[s]) % S4D_CHUNK != 0) return true;
    return false;
}

/* What the arguments say; tasks are not cut yet. */
static void describe(s4d_params *p, const ida_s4d_args *a, const ida_s4d_grads *g, const ida_cuda_seqs *on) {
    *p = {};
    p->n_seq = on->n, p->n_tokens = on->n_tokens, p->cu = on->cu;
    p->h = a->h, p->r = a->r, p->d = a->d, p->m = a->m;
    p->chunk = a->chunk > 0 && a->chunk < S4D_CHUNK ? (int)a->chunk : S4D_CHUNK;
    p->ssm = a->ssm, p->w = a->w, p->k = a->k, p->v = a->v, p->y = a->y;
    p->state_in = a->state_in, p->state_out = a->state_out;
    if (!g) return;
    p->dy = g->dy, p->dk = g->dk, p->dv = g->dv, p->dw = g->dw, p->dssm = g->dssm;
    p->dstate_out = g->dstate_out, p->dstate_in = g->dstate_in;
}

/* The tasks of the walk, of the sums and of the tails. */
static void cut(plan *l, const ida_seqs *seqs, bool bwd) {
    s4d_params *p = &l->p;
    const int64_t cols = l->tuned ? S4D_TILE : S4D_COLS;
    const int64_t wanted = vec_max(1, MAX_TASKS / vec_max(1, p->h * (vec_div_up(p->r, cols) + vec_div_up(p->d, cols))));
    p->n_runs = p->n_tokens == 0 && p->n_seq > wanted ? 1 : vec_min(p->n_seq, wanted);
    cut_blocks(p, cols);
    l->tails = l->tuned && (bwd ? p->dstate_out.re != NULL : p->state_out.re != NULL) && any_tail(seqs);
    l->sums = l->tail = *p;
    cut_blocks(&l->tail, S4D_COLS);
    l->ctas = (int)vec_min(l->tail.n_tasks, CTAS_EACH * 132);
    if (!l->tuned) return;
    l->sums.blocks *= 2, l->sums.n_tasks *= 2;
    if (l->tails) p->span = S4D_CHUNKS, l->tail.span = S4D_TAIL;
    cut_parts(p, seqs, 0.45);
    if (bwd) cut_parts(&l->sums, seqs, 0.55);
}

/* The scratch that p has, in another's hands. */
static void share(s4d_params *to, const s4d_params *p) {
    to->coef = p->coef, to->pw = p->pw, to->pw1 = p->pw1, to->f = p->f, to->out = p->out, to->kernel = p->kernel;
    to->tables16 = p->tables16, to->x_part = p->x_part, to->record = p->record, to->records = p->records, to->sums = p->sums;
    to->work = p->work, to->work64 = p->work64, to->work_each = p->work_each;
}

/* Forwards the tail goes from state_out to state_out; backwards from dstate_out to dstate_in, and the rest from there. */
static void link_tails(plan *l, bool bwd) {
    s4d_params *p = &l->p, *tail = &l->tail;
    if (!bwd) tail->state_in = p->state_out;
    else if (p->dstate_in.re) p->dstate_out = p->dstate_in;
    else tail->dstate_in = p->dstate_out = l->between;
}

/* Fills the plan; n_tasks = 0: nothing to do. */
static ida_status plan_make(plan *l, const ida_device *dev, const ida_s4d_args *a, const ida_s4d_grads *g, const ida_seqs *seqs,
                            bool sequential) {
    *l = {};
    const bool states = g ? g->dstate_in.re != NULL : a->state_out.re != NULL;
    if (seqs->n <= 0 || (seqs->cu[seqs->n] == 0 && !states)) return IDA_OK;
    ida_cuda_seqs on;
    IDA_TRY(ida_cuda_seqs_of(dev, seqs, &on));
    describe(&l->p, a, g, &on);
    l->tuned = !sequential && tuned_for(dev, a, g, on.n_tokens);
    cut(l, seqs, g != NULL);
    if (l->p.n_tasks == 0) return IDA_OK;
    lay_out(l, sequential, g != NULL);
    IDA_FAIL_IF(l->overflow, IDA_E_NOMEM, "scratch of the s4d mixer overflows: M %lld, width %lld, %lld heads", (long long)a->m,
                (long long)(a->r + a->d), (long long)a->h);
    void *base = NULL;
    IDA_TRY(ida_cuda_scratch(dev, l->bytes, &base));
    l->base = (unsigned char *)base;
    lay_out(l, sequential, g != NULL);
    share(&l->sums, &l->p);
    share(&l->tail, &l->p);
    if (l->tails) link_tails(l, g != NULL);
    return IDA_OK;
}

static ida_status queue_walk(const plan *l, const ida_cuda *c, bool reverse) {
    if (l->tails && reverse) s4d_launch_walk_any(&l->tail, true, true, l->ctas, c->stream);
    if (l->tuned) IDA_CUDA_TRY(s4d_launch_walk64(&l->p, reverse, c->stream));
    else s4d_launch_walk_any(&l->p, c->bf16, reverse, l->ctas, c->stream);
    if (l->tails && !reverse) s4d_launch_walk_any(&l->tail, true, false, l->ctas, c->stream);
    return IDA_CUDA_LAUNCHED(reverse ? "s4d_chunk_bwd" : "s4d_chunk_fwd");
}
static ida_status queue_sums(const plan *l, const ida_cuda *c, bool initial) {
    if (l->tuned) IDA_CUDA_TRY(s4d_launch_sums64(&l->sums, initial, c->stream));
    else s4d_launch_sums_any(&l->sums, c->bf16, initial, l->ctas, c->stream);
    return IDA_CUDA_LAUNCHED("s4d_chunk_bwd");
}

ida_status ida_cuda_s4d_chunk_fwd(const ida_device *dev, const ida_s4d_args *a, const ida_seqs *seqs) {
    const ida_cuda *c = ida_cuda_of(dev);
    plan l;
    IDA_TRY(plan_make(&l, dev, a, NULL, seqs, false));
    if (l.p.n_tasks == 0) return IDA_OK;
    s4d_launch_tables(&l.p, c->stream);
    return queue_walk(&l, c, false);
}

ida_status ida_cuda_s4d_chunk_bwd(const ida_device *dev, const ida_s4d_args *a, const ida_s4d_grads *g, const ida_seqs *seqs) {
    const ida_cuda *c = ida_cuda_of(dev);
    plan l;
    IDA_TRY(plan_make(&l, dev, a, g, seqs, false));
    if (l.p.n_tasks == 0) return IDA_OK;
    s4d_launch_tables(&l.p, c->stream);
    IDA_TRY(queue_walk(&l, c, true));
    if (l.p.n_tokens == 0) return IDA_OK; /* parameter gradients stay as they were */
    IDA_TRY(queue_sums(&l, c, false));
    if (l.p.state_in.re) IDA_TRY(queue_sums(&l, c, true));
    s4d_launch_finish(&l.sums, false, l.p.state_in.re ? 2 : 1, c->stream);
    return IDA_CUDA_LAUNCHED("s4d_chunk_bwd");
}

ida_status ida_cuda_s4d_seq_fwd(const ida_device *dev, const ida_s4d_args *a, const ida_seqs *seqs) {
    const ida_cuda *c = ida_cuda_of(dev);
    plan l;
    IDA_TRY(plan_make(&l, dev, a, NULL, seqs, true));
    if (l.p.n_tasks == 0) return IDA_OK;
    s4d_launch_tables(&l.p, c->stream);
    s4d_launch_seq(&l.p, c->bf16, false, l.ctas, c->stream);
    return IDA_CUDA_LAUNCHED("s4d_seq_fwd");
}

ida_status ida_cuda_s4d_seq_bwd(const ida_device *dev, const ida_s4d_args *a, const ida_s4d_grads *g, const ida_seqs *seqs) {
    const ida_cuda *c = ida_cuda_of(dev);
    plan l;
    IDA_TRY(plan_make(&l, dev, a, g, seqs, true));
    if (l.p.n_tasks == 0) return IDA_OK;
    s4d_launch_tables(&l.p, c->stream);
    s4d_launch_seq(&l.p, c->bf16, true, l.ctas, c->stream);
    if (l.p.n_tokens > 0) s4d_launch_finish(&l.p, true, 1, c->stream);
    return IDA_CUDA_LAUNCHED("s4d_seq_bwd");
}
