/* forward.c - the forward pass: embedding, the residual parts of each block, final norm, lm_head and cross entropy in blocks of
 * rows. docs/method.md sections 2 and 3 give the order of every mixer. Not here: what a mixer does between its products (layers/),
 * gradients (backward.c), recorded steps (recorded.c), how an op works (ops/).
 * Invariant: nothing passes between two sequences of a batch, and a token's row depends on earlier tokens of its own
 * sequence only. */
#include <assert.h>
#include <string.h>

#include "core/mem.h"
#include "model/run.h"

/* Products of x normed. A step keeps nothing of what is between. */
static ida_status project(const ida_run *r, const ida_act *x, const real *gain, const ida_product *p, int n) {
    const ida_device *dev = r->m->dev;
    const ida_config *c = &r->m->cfg;
    ida_acts *a = r->a;
    const int64_t tokens = r->b->n_tokens, d = c->d_model;
    if (r->step) {
        ida_part_begin(&a->times, IDA_PART_GEMM);
        return dev->ops->project(dev, p, n,
                                 &(ida_project_args){.x = x, .gain = gain, .xn = a->xn, .rstd = a->rstd, .n = tokens,
                                                     .eps = c->norm_eps});
    }
    ida_part_begin(&a->times, IDA_PART_NORM);
    IDA_TRY(dev->ops->rmsnorm_fwd(dev, a->xn, a->rstd, x, gain, tokens, d, c->norm_eps));
    ida_part_begin(&a->times, IDA_PART_GEMM);
    for (int i = 0; i < n; i++) IDA_TRY(dev->ops->linear_fwd(dev, p[i].y, a->xn, p[i].w, NULL, tokens));
    return IDA_OK;
}

ida_layer_ctx ida_run_ctx(const ida_run *r, int64_t part) {
    const ida_model *m = r->m;
    const ida_layer *l = &m->layers.at[part];
    ida_layer_ctx c = {.dev = m->dev, .layer = l, .backbone = &m->layers.backbone, .w = m->w.parts[part].w,
                       .buf = r->a->parts[part].buf, .seqs = &r->seqs, .n = r->b->n_tokens, .state_out = r->state_out,
                       .prep = m->prep ? m->prep[part] : NULL, .step = r->step, .xn = r->a->xn, .dxn = r->a->dxn,
                       .parts = &r->a->times};
    if (!r->state) return c;
    c.state_in = r->state->block;
    c.stride = r->state->stride;
    if (ida_layer_is(l, IDA_LAYER_CACHE)) {
        c.k_cache = &r->state->k_cache[l->block * r->state->n_seq];
        c.v_cache = &r->state->v_cache[l->block * r->state->n_seq];
    }
    return c;
}

/* next = x + W_out y(products of RMSNorm(x)): norm, products, what the kind does, last product. next NULL: only what the backward
 * pass needs. */
static ida_status run_part(const ida_run *r, int64_t part, ida_act *next) {
    const ida_layer_ctx c = ida_run_ctx(r, part);
    const ida_layer_kind *kind = c.layer->kind;
    const ida_act *x = r->a->parts[part].x;
    ida_product p[IDA_MOST_PRODUCTS];
    const int n = kind->products(&c, p);
    ida_act *y;
    assert(n <= IDA_MOST_PRODUCTS);
    IDA_TRY(project(r, x, r->m->w.parts[part].gain, p, n));
    if (!next && (kind->caps & IDA_LAYER_KEEPS_PRODUCTS)) return IDA_OK;
    if (!r->step || kind->part == IDA_PART_MIXER) ida_part_begin(c.parts, kind->part);
    IDA_TRY(kind->forward(&c, false, &y));
    if (!next) return IDA_OK;
    ida_part_begin(c.parts, IDA_PART_GEMM);
    return c.dev->ops->linear_fwd(c.dev, next, y, &c.w[kind->out].matrix, x, c.n);
}

ida_status ida_run_block_kept(const ida_run *r, int64_t block) {
    const int64_t per_block = r->m->layers.per_block, end = (block + 1) * per_block;
    for (int64_t i = block * per_block; i < end; i++) IDA_TRY(run_part(r, i, i + 1 < end ? r->a->parts[i + 1].x : NULL));
    return IDA_OK;
}

ida_status ida_run_upload(ida_run *r) {
    const ida_device *dev = r->m->dev;
    const ida_batch *b = r->b;
    assert(b->n_tokens <= r->a->n_tokens && r->seqs.n <= r->a->n_seq && r->a->dev == dev);
    assert(!r->state || (r->state->n_seq == r->seqs.n && r->state->dev == dev));
    r->ids = b->ids;
    r->targets = b->targets;
    if (ida_on_host(dev)) return IDA_OK;
    IDA_TRY(ida_dev_upload(dev, r->a->ids, b->ids, b->n_tokens * (int64_t)sizeof *b->ids));
    r->ids = r->a->ids;
    if (!b->targets) return IDA_OK;
    IDA_TRY(ida_dev_upload(dev, r->a->targets, b->targets, b->n_tokens * (int64_t)sizeof *b->targets));
    r->targets = r->a->targets;
    return IDA_OK;
}

ida_status ida_run_layers(const ida_run *r) {
    const ida_model *m = r->m;
    const ida_acts *a = r->a;
    IDA_TRY(m->dev->ops->embed_fwd(m->dev, a->parts[0].x, r->ids, &m->w.embed, r->b->n_tokens));
    for (int64_t i = 0; i < m->layers.n; i++) {
        const ida_status st = run_part(r, i, i + 1 < m->layers.n ? a->parts[i + 1].x : a->x_last);
        if (st != IDA_OK) return ida_fail_prefix(st, "layer %d, forward", m->layers.at[i].block);
    }
    return IDA_OK;
}

ida_status ida_run_final_norm(const ida_run *r) {
    const ida_model *m = r->m;
    return m->dev->ops->rmsnorm_fwd(m->dev, r->a->xn, r->a->rstd, r->a->x_last, m->w.norm, r->b->n_tokens, m->cfg.d_model,
                                    m->cfg.norm_eps);
}

static ida_status head_losses(const ida_run *r, ida_act *xf, real *losses) {
    const ida_device *dev = r->m->dev;
    ida_acts *a = r->a;
    int64_t n = r->b->n_tokens, d = r->m->cfg.d_model, v = r->m->cfg.vocab_size;
    for (int64_t at = 0; at < n; at += a->head_rows) {
        int64_t rows = n - at < a->head_rows ? n - at : a->head_rows;
        IDA_TRY(dev->ops->linear_fwd(dev, a->logits, ida_act_at(dev, xf, at * d), &r->m->w.lm_head, NULL, rows));
        IDA_TRY(dev->ops->cross_entropy(dev, a->losses + at, a->logits, r->targets + at, rows, v, 0));
    }
    return ida_dev_download(dev, losses, a->losses, n * (int64_t)sizeof *losses);
}

/* Logits in the element type of act, given out as real. */
static ida_status logits_to_host(const ida_run *r, real *out, int64_t rows) {
    const ida_device *dev = r->m->dev;
    const ida_acts *a = r->a;
    const int64_t v = r->m->cfg.vocab_size;
    if (ida_on_host(dev)) {
        memcpy(out, a->logits, (size_t)(rows * v) * sizeof *out);
        return IDA_OK;
    }
    for (int64_t at = 0; at < rows; at += a->wide_rows) {
        const int64_t n = (rows - at < a->wide_rows ? rows - at : a->wide_rows) * v;
        IDA_TRY(dev->ops->from_act(dev, a->wide, ida_act_at(dev, a->logits, at * v), n));
        IDA_TRY(ida_dev_download(dev, out + at * v, a->wide, n * (int64_t)sizeof *out));
    }
    return IDA_OK;
}

static ida_status head_logits(const ida_run *r, ida_act *xf, real *logits, const int64_t *logit_rows, int64_t n_rows) {
    const ida_device *dev = r->m->dev;
    int64_t d = r->m->cfg.d_model, v = r->m->cfg.vocab_size;
    for (int64_t at = 0; at < n_rows; at += r->a->head_rows) {
        int64_t rows = n_rows - at < r->a->head_rows ? n_rows - at : r->a->head_rows;
        for (int64_t i = 0; i < rows; i++) {
            assert(logit_rows[at + i] >= 0 && logit_rows[at + i] < r->b->n_tokens);
            const ida_act *row = ida_act_at(dev, xf, logit_rows[at + i] * d);
            IDA_TRY(ida_dev_copy(dev, ida_act_at(dev, r->a->rows, i * d), row, ida_act_bytes(dev, d)));
        }
        IDA_TRY(dev->ops->linear_fwd(dev, r->a->logits, r->a->rows, &r->m->w.lm_head, NULL, rows));
        IDA_TRY(logits_to_host(r, logits + at * v, rows));
    }
    return IDA_OK;
}

/* Cache room for what this batch appends. */
static ida_status reserve_caches(const ida_model *m, ida_state *state, const ida_seqs *s) {
    int64_t need = 0;
    if (!ida_layers_any(&m->layers, IDA_LAYER_CACHE)) return IDA_OK;
    for (int64_t i = 0; i < s->n; i++) {
        int64_t end = state->pos[i] + s->cu[i + 1] - s->cu[i];
        need = end > need ? end : need;
    }
    return ida_state_reserve(state, need);
}

ida_status ida_model_forward(const ida_model *m, ida_acts *a, const ida_batch *b, ida_state *state, real *losses, real *logits,
                             const int64_t *logit_rows, int64_t n_rows) {
    assert(!losses || b->targets);
    ida_run r = {.m = m, .a = a, .b = b, .seqs = b->seqs, .state = state};
    if (state) {
        IDA_TRY(reserve_caches(m, state, &b->seqs));
        r.seqs.pos0 = state->pos;
        r.state_out = state->block;
        r.step = m->prep && ida_seqs_one_token_each(&b->seqs);
    }
    ida_parts_start(&a->times);
    if (ida_run_recordable(&r, losses, logits, logit_rows, n_rows)) {
        IDA_TRY(ida_run_recorded(&r, logits));
    } else {
        IDA_TRY(ida_run_upload(&r));
        IDA_TRY(ida_run_layers(&r));
        ida_part_begin(&a->times, IDA_PART_NORM);
        IDA_TRY(ida_run_final_norm(&r));
        ida_part_begin(&a->times, IDA_PART_HEAD);
        if (losses) IDA_TRY(head_losses(&r, a->xn, losses));
        if (logits && n_rows > 0) IDA_TRY(head_logits(&r, a->xn, logits, logit_rows, n_rows));
    }
    ida_part_begin(&a->times, IDA_PART_OTHER);
    for (int64_t i = 0; state && i < state->n_seq; i++) state->pos[i] += b->seqs.cu[i + 1] - b->seqs.cu[i];
    return IDA_OK;
}
