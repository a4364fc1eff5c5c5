/* backward.c - loss and gradients. Above each step stands the forward line it differentiates; what the forward pass did not keep
 * is formed again by the same ops. Not here: the optimiser (train), gradients with respect to states (truncated between batches).
 * Invariant: gradients are "+=", so micro-batches and tied embeddings add up by themselves. */
#include <assert.h>
#include <string.h>

#include "core/mem.h"
#include "model/run.h"

typedef struct backprop { ida_run run; ida_grads dw; double scale; } backprop;

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

/* x3 = x2 + W_down (SiLU(W_gate xn) * W_up xn),  xn = rmsnorm(x2). a->dx: gradient at x3 in, at x2 out. */
static ida_status feed_forward(backprop *p, int64_t layer) {
    const ida_model *m = p->run.m;
    const ida_device *dev = m->dev;
    ida_acts *a = p->run.a;
    const ida_layer_acts *l = &a->layers[layer];
    const ida_layer_weights *w = &m->w.layers[layer];
    const ida_layer_grads *dw = &p->dw.layers[layer];
    int64_t n = p->run.b->n_tokens, d = m->cfg.d_model, f = m->cfg.ffn_hidden;
    ida_part_begin(a, IDA_PART_NORM);
    IDA_TRY(dev->ops->rmsnorm_fwd(dev, a->xn, a->rstd, l->x2, w->norm2, n, d, m->cfg.norm_eps));
    ida_part_begin(a, IDA_PART_OTHER);
    IDA_TRY(dev->ops->swiglu_fwd(dev, a->ff, l->gate, l->up, n * f));
    ida_part_begin(a, IDA_PART_GEMM);
    IDA_TRY(dev->ops->linear_bwd(dev, a->dff, dw->down, a->dx, a->ff, &w->down, n, false));
    ida_part_begin(a, IDA_PART_OTHER);
    ida_act *dgate = a->dff, *dup = a->ff; /* ff is spent */
    IDA_TRY(dev->ops->swiglu_bwd(dev, dgate, dup, a->dff, l->gate, l->up, n * f));
    ida_part_begin(a, IDA_PART_GEMM);
    IDA_TRY(dev->ops->linear_bwd(dev, a->dxn, dw->gate, dgate, a->xn, &w->gate, n, false));
    IDA_TRY(dev->ops->linear_bwd(dev, a->dxn, dw->up, dup, a->xn, &w->up, n, true));
    ida_part_begin(a, IDA_PART_NORM);
    return dev->ops->rmsnorm_bwd(dev, a->dx, dw->norm2, a->dxn, l->x2, w->norm2, a->rstd, n, d);
}

/* o = core(q, k, v): a->dy (gradient at o) to a->dq, a->dk, a->dv and the SSM parameters. */
static ida_status core(backprop *p, const ida_shape *s, int64_t layer, const ida_core_in *in) {
    const ida_run *r = &p->run;
    const ida_device *dev = r->m->dev;
    ida_acts *a = r->a;
    const ida_layer_acts *l = &a->layers[layer];
    const ida_layer_grads *dw = &p->dw.layers[layer];
    if (s->softmax) {
        ida_attention_args x = {.o = l->o, .lse = l->lse, .q = in->q, .k = in->k, .v = in->v, .h = s->h, .g = s->g, .d = s->dh};
        return dev->ops->attention_bwd(dev, a->dq, a->dk, a->dv, a->dy, &x, &r->seqs);
    }
    ida_state_layout sl = ida_run_state(r, layer);
    ida_ssm_grads dssm = {dw->log_dt, dw->a_log, dw->a_imag, dw->c_re, dw->c_im};
    ida_state_ref none = {0};
    if (s->linear) {
        ida_s4d_args x = ida_run_s4d(r, s, layer, in, &sl);
        ida_s4d_grads g = {.dy = a->dy, .dk = a->dk, .dv = a->dv, .dw = dw->w, .dssm = dssm};
        x.state_out = none;
        return dev->ops->s4d_chunk_bwd(dev, &x, &g, &r->seqs);
    }
    ida_interdomain_args x = ida_run_interdomain(r, s, layer, in, &sl);
    ida_interdomain_grads g = {.dout = a->dy, .dq = a->dq, .dk = a->dk, .dv = a->dv, .dssm = dssm};
    x.state_out = none;
    return dev->ops->interdomain_chunk_bwd(dev, &x, &g, &r->seqs);
}

/* q, k, v from the core's inputs back to the projections, and through them. All share one second buffer: each ends with its
 * product into dxn before the next begins. */
static ida_status streams(backprop *p, const ida_shape *s, int64_t layer) {
    const ida_run *r = &p->run;
    const ida_device *dev = r->m->dev;
    ida_acts *a = r->a;
    const ida_layer_weights *w = &r->m->w.layers[layer];
    const ida_layer_grads *dw = &p->dw.layers[layer];
    const ida_stream_grads grads[3] = {{.conv_w = dw->conv_q_w, .conv_b = dw->conv_q_b},
                                       {.conv_w = dw->conv_k_w, .conv_b = dw->conv_k_b, .gain = dw->gk, .bias = dw->bk},
                                       {.conv_w = dw->conv_v_w, .conv_b = dw->conv_v_b, .gain = dw->gv, .bias = dw->bv}};
    const ida_matrix *weight[3] = {&w->wq, &w->wk, &w->wv};
    const ida_act *grad[3] = {a->dq, a->dk, a->dv};
    real *dweight[3] = {dw->wq, dw->wk, dw->wv};
    for (int i = s->query ? 0 : 1; i < 3; i++) {
        const ida_stream t = ida_run_stream(r, s, layer, i, false);
        const ida_act *g = grad[i];
        ida_part_begin(a, IDA_PART_MIXER);
        if (t.y != t.args.x) {
            IDA_TRY(dev->ops->stream_bwd(dev, a->dt, g, &t.args, &grads[i], &r->seqs));
            g = a->dt;
        }
        ida_part_begin(a, IDA_PART_GEMM);
        IDA_TRY(dev->ops->linear_bwd(dev, a->dxn, dweight[i], g, a->xn, weight[i], r->b->n_tokens, i > (s->query ? 0 : 1)));
    }
    return IDA_OK;
}

/* x2 = x1 + W_o (SiLU(W_g xn) * norm(o)),  xn = rmsnorm(x1). a->dx: gradient at x2 in, at x1 out. */
static ida_status mixer(backprop *p, int64_t layer) {
    const ida_run *r = &p->run;
    const ida_model *m = r->m;
    const ida_device *dev = m->dev;
    ida_acts *a = r->a;
    const ida_layer_acts *l = &a->layers[layer];
    const ida_layer_weights *w = &m->w.layers[layer];
    const ida_layer_grads *dw = &p->dw.layers[layer];
    ida_shape s = ida_layer_shape(&m->cfg, layer);
    int64_t n = r->b->n_tokens, d = m->cfg.d_model;
    ida_act *normed, *y;
    ida_core_in in;
    ida_part_begin(a, IDA_PART_NORM);
    IDA_TRY(dev->ops->rmsnorm_fwd(dev, a->xn, a->rstd, l->x1, w->norm1, n, d, m->cfg.norm_eps));
    ida_part_begin(a, IDA_PART_MIXER);
    IDA_TRY(ida_run_core_inputs(r, &s, layer, false, &in));
    IDA_TRY(ida_run_output(r, &s, layer, &normed, &y));
    ida_part_begin(a, IDA_PART_GEMM);
    IDA_TRY(dev->ops->linear_bwd(dev, a->dy, dw->wo, a->dx, y, &w->wo, n, false));
    ida_part_begin(a, IDA_PART_MIXER);
    if (w->wg.data) IDA_TRY(dev->ops->swiglu_bwd(dev, a->dgate, a->dy, a->dy, l->g, normed, n * s.ow));
    if (w->onorm) {
        IDA_TRY(dev->ops->headnorm_bwd(dev, a->dt, dw->onorm, NULL, a->dy, l->o, w->onorm, a->no, n, s.h, s.hw));
        ida_act *x = a->dy; /* dt is as wide as dy */
        a->dy = a->dt;
        a->dt = x;
    }
    IDA_TRY(core(p, &s, layer, &in));
    IDA_TRY(streams(p, &s, layer));
    ida_part_begin(a, IDA_PART_GEMM);
    if (w->wg.data) IDA_TRY(dev->ops->linear_bwd(dev, a->dxn, dw->wg, a->dgate, a->xn, &w->wg, n, true));
    ida_part_begin(a, IDA_PART_NORM);
    return dev->ops->rmsnorm_bwd(dev, a->dx, dw->norm1, a->dxn, l->x1, w->norm1, a->rstd, n, d);
}

static ida_status run(backprop *p, ida_act *dx0) {
    ida_run *r = &p->run;
    const ida_model *m = r->m;
    const ida_device *dev = m->dev;
    ida_acts *a = r->a;
    int64_t n = r->b->n_tokens, d = m->cfg.d_model;
    IDA_TRY(ida_run_layers(r));
    ida_part_begin(a, IDA_PART_NORM);
    IDA_TRY(ida_run_final_norm(r));
    ida_part_begin(a, IDA_PART_HEAD);
    IDA_TRY(head(p));
    ida_part_begin(a, IDA_PART_NORM);
    IDA_TRY(ida_dev_zero(dev, a->dx, ida_act_bytes(dev, n * d)));
    IDA_TRY(dev->ops->rmsnorm_bwd(dev, a->dx, p->dw.norm, a->dxn, a->x_last, m->w.norm, a->rstd, n, d));
    for (int64_t l = m->cfg.n_layers; l-- > 0;) {
        ida_status st = a->kind == IDA_ACTS_RECOMPUTE ? ida_run_layer_kept(r, l) : IDA_OK;
        if (st == IDA_OK) st = feed_forward(p, l);
        if (st == IDA_OK) st = mixer(p, l);
        if (st != IDA_OK) return ida_fail_prefix(st, "layer %lld, backward", (long long)l);
    }
    ida_part_begin(a, IDA_PART_OTHER);
    if (dx0) IDA_TRY(ida_dev_copy(dev, dx0, a->dx, ida_act_bytes(dev, n * d)));
    return dev->ops->embed_bwd(dev, p->dw.embed, r->ids, a->dx, n, m->cfg.vocab_size, d);
}

/* The backward pass needs the states from before the step, so the new ones are written next to them and swapped in at the end. */
static ida_status next_state(ida_run *r) {
    const ida_config *c = &r->m->cfg;
    for (int64_t l = 0; l < c->n_layers; l++)
        IDA_FAIL_IF(c->layer_mixer[l] == IDA_MIXER_SOFTMAX, IDA_E_UNSUPPORTED,
                    "training with carried state: layer %lld is softmax, which has no fixed state; train without carry",
                    (long long)l);
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
    ida_parts_start(a);
    IDA_TRY(IDA_ALLOC(p.dw.layers, m->cfg.n_layers, "gradient table"));
    ida_model_bind_grads(&m->cfg, &m->table, grads, &p.dw);
    ida_status st = run(&p, dx0);
    if (st == IDA_OK) st = sum_losses(&p.run, loss_sum, n_scored);
    ida_part_begin(a, IDA_PART_OTHER);
    ida_free(p.dw.layers);
    if (st != IDA_OK) return st;
    if (state) {
        real *old = state->block;
        state->block = a->next_state;
        a->next_state = old;
        for (int64_t i = 0; i < state->n_seq; i++) state->pos[i] += b->seqs.cu[i + 1] - b->seqs.cu[i];
    }
    return IDA_OK;
}
