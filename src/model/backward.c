/* backward.c - loss and gradients. Above each step stands the forward line it differentiates; what the forward pass did not keep
 * is formed again by the same ops. Not here: the optimiser (train), gradients with respect to states (truncated between batches).
 * Invariant: gradients are "+=", so micro-batches and tied embeddings add up by themselves. */
#include <assert.h>
#include <string.h>

#include "core/mem.h"
#include "model/run.h"

typedef struct backprop { ida_run run; ida_reals_at dw; double scale; } backprop;

static bool any_scored(const int32_t *targets, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (targets[i] >= 0) return true;
    return false;
}

/* loss = sum_n CE(xf_n lm_head^T, target_n): forward and backward of one block of rows at a time. dxf lands in a->dxn, the losses
 * in a->losses. */
static ida_status head(backprop *p) {
    const ida_model *m = p->run.m;
    const ida_device *dev = m->dev;
    ida_acts *a = p->run.a;
    const ida_batch *b = p->run.b;
    int64_t n = b->n_tokens, d = m->cfg.d_model, v = m->cfg.vocab_size;
    for (int64_t at = 0; at < n; at += a->head_rows) {
        int64_t rows = n - at < a->head_rows ? n - at : a->head_rows;
        ida_act *x = ida_act_at(dev, a->xn, at * d), *dx = ida_act_at(dev, a->dxn, at * d);
        if (!any_scored(b->targets + at, rows)) {
            IDA_TRY(ida_dev_zero(dev, dx, ida_act_bytes(dev, rows * d)));
            continue;
        }
        IDA_TRY(dev->ops->linear_fwd(dev, a->logits, x, &m->w.lm_head, NULL, rows));
        IDA_TRY(dev->ops->cross_entropy(dev, a->losses + at, a->logits, p->run.targets + at, rows, v, p->scale));
        if (p->scale == 0)
            IDA_TRY(ida_dev_zero(dev, a->logits, ida_act_bytes(dev, rows * v))); /* cross_entropy reads scale 0 as "loss only" */
        IDA_TRY(dev->ops->linear_bwd(dev, dx, p->dw.lm_head, a->logits, x, &m->w.lm_head, rows, false));
    }
    return IDA_OK;
}

/* In token order, in double. Called last: it waits for everything that was queued. */
static ida_status sum_losses(const ida_run *r, double *loss_sum, int64_t *n_scored) {
    const ida_acts *a = r->a;
    const real *losses = a->losses;
    if (!ida_on_host(a->dev)) {
        IDA_TRY(ida_dev_download(a->dev, a->host_losses, a->losses, r->b->n_tokens * (int64_t)sizeof *losses));
        losses = a->host_losses;
    }
    double sum = 0;
    int64_t scored = 0;
    for (int64_t i = 0; i < r->b->n_tokens; i++) {
        if (r->b->targets[i] < 0) continue;
        sum += (double)losses[i];
        scored++;
    }
    *loss_sum = sum;
    *n_scored = scored;
    return IDA_OK;
}

/* next = x + W_out y(products of RMSNorm(x)). a->dx: gradient at next in, at x out. */
static ida_status part_bwd(backprop *p, int64_t part) {
    const ida_run *r = &p->run;
    const ida_ops *ops = r->m->dev->ops;
    ida_acts *a = r->a;
    ida_layer_ctx c = ida_run_ctx(r, part);
    const ida_layer_kind *kind = c.layer->kind;
    const ida_act *x = a->parts[part].x;
    const real *gain = r->m->w.parts[part].gain;
    const int64_t d = r->m->cfg.d_model;
    ida_act *y;
    c.dw = p->dw.parts[part].w;
    ida_part_begin(c.parts, IDA_PART_NORM);
    IDA_TRY(ops->rmsnorm_fwd(c.dev, a->xn, a->rstd, x, gain, c.n, d, r->m->cfg.norm_eps));
    ida_part_begin(c.parts, kind->part);
    IDA_TRY(kind->forward(&c, true, &y));
    ida_part_begin(c.parts, IDA_PART_GEMM);
    IDA_TRY(ops->linear_bwd(c.dev, c.buf[kind->dy], c.dw[kind->out], a->dx, y, &c.w[kind->out].matrix, c.n, false));
    ida_part_begin(c.parts, kind->part);
    IDA_TRY(kind->backward(&c));
    ida_part_begin(c.parts, IDA_PART_NORM);
    return ops->rmsnorm_bwd(c.dev, a->dx, p->dw.parts[part].gain, a->dxn, x, gain, a->rstd, c.n, d);
}

static ida_status block_bwd(backprop *p, int64_t block) {
    const int64_t per_block = p->run.m->layers.per_block;
    if (p->run.a->kind == IDA_ACTS_RECOMPUTE) IDA_TRY(ida_run_block_kept(&p->run, block));
    for (int64_t i = per_block; i-- > 0;) IDA_TRY(part_bwd(p, block * per_block + i));
    return IDA_OK;
}

static ida_status run(backprop *p, ida_act *dx0) {
    ida_run *r = &p->run;
    const ida_model *m = r->m;
    const ida_device *dev = m->dev;
    ida_acts *a = r->a;
    int64_t n = r->b->n_tokens, d = m->cfg.d_model;
    IDA_TRY(ida_run_upload(r));
    IDA_TRY(ida_run_layers(r));
    ida_part_begin(&a->times, IDA_PART_NORM);
    IDA_TRY(ida_run_final_norm(r));
    ida_part_begin(&a->times, IDA_PART_HEAD);
    IDA_TRY(head(p));
    ida_part_begin(&a->times, IDA_PART_NORM);
    IDA_TRY(ida_dev_zero(dev, a->dx, ida_act_bytes(dev, n * d)));
    IDA_TRY(dev->ops->rmsnorm_bwd(dev, a->dx, p->dw.norm, a->dxn, a->x_last, m->w.norm, a->rstd, n, d));
    for (int64_t l = m->cfg.n_layers; l-- > 0;) {
        const ida_status st = block_bwd(p, l);
        if (st != IDA_OK) return ida_fail_prefix(st, "layer %lld, backward", (long long)l);
    }
    ida_part_begin(&a->times, IDA_PART_OTHER);
    if (dx0) IDA_TRY(ida_dev_copy(dev, dx0, a->dx, ida_act_bytes(dev, n * d)));
    return dev->ops->embed_bwd(dev, p->dw.embed, r->ids, a->dx, n, m->cfg.vocab_size, d);
}

/* The backward pass needs the states from before the step, so the new ones are written next to them and swapped in at the end. */
static ida_status next_state(ida_run *r) {
    const ida_layers *all = &r->m->layers;
    for (int64_t i = 0; i < all->n; i++)
        IDA_FAIL_IF(ida_layer_is(&all->at[i], IDA_LAYER_CACHE), IDA_E_UNSUPPORTED,
                    "training with carried state: layer %d is %s, which has no fixed state; train without carry", all->at[i].block,
                    all->at[i].name);
    int64_t need = r->state->n_seq * r->state->stride;
    if (r->a->next_state_len != need) {
        ida_dev_free(r->m->dev, r->a->next_state);
        r->a->next_state = NULL;
        r->a->next_state_len = 0;
        IDA_TRY(IDA_DEV_CALLOC(r->m->dev, r->a->next_state, need, "carried state"));
        r->a->next_state_len = need;
    }
    r->seqs.pos0 = r->state->pos;
    r->state_out = r->a->next_state;
    return IDA_OK;
}

ida_status ida_model_forward_backward(const ida_model *m, ida_acts *a, const ida_batch *b, ida_state *state, double loss_scale,
                                      real *grads, double *loss_sum, int64_t *n_scored, ida_act *dx0) {
    assert(a->kind != IDA_ACTS_FORWARD && b->targets);
    backprop p = {.run = {.m = m, .a = a, .b = b, .seqs = b->seqs, .state = state}, .scale = loss_scale};
    if (state) IDA_TRY(next_state(&p.run));
    ida_parts_start(&a->times);
    IDA_TRY(IDA_ALLOC(p.dw.parts, m->layers.n, "gradient table"));
    ida_reals_bind(&m->table, grads, &p.dw);
    ida_status st = run(&p, dx0);
    if (st == IDA_OK) st = sum_losses(&p.run, loss_sum, n_scored);
    ida_part_begin(&a->times, IDA_PART_OTHER);
    ida_free(p.dw.parts);
    if (st != IDA_OK) return st;
    if (state) {
        real *old = state->block;
        state->block = a->next_state;
        a->next_state = old;
        for (int64_t i = 0; i < state->n_seq; i++) state->pos[i] += b->seqs.cu[i + 1] - b->seqs.cu[i];
    }
    return IDA_OK;
}
