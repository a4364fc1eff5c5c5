/* forward.c - the forward pass: embedding, L x (mixer, SwiGLU), final norm, lm_head and cross entropy in blocks of rows.
 * docs/method.md sections 2 and 3 give the order of every mixer. Not here: gradients (backward.c), how an op works (ops/).
 * Invariant: nothing passes between two sequences of a batch, and a token's row depends on earlier tokens of its own
 * sequence only. */
#include <assert.h>
#include <string.h>

#include "core/mem.h"
#include "model/run.h"

ida_state_layout ida_run_state(const ida_run *r, int64_t layer) {
    int64_t start = 0;
    for (int64_t l = 0; l < layer; l++) {
        ida_shape s = ida_layer_shape(&r->m->cfg, l);
        start = ida_layer_state(&s, start).end;
    }
    ida_shape s = ida_layer_shape(&r->m->cfg, layer);
    return ida_layer_state(&s, start);
}

ida_ssm ida_run_ssm(const ida_run *r, int64_t layer) {
    const ida_layer_weights *w = &r->m->layers[layer];
    return (ida_ssm){w->log_dt, w->a_log, w->a_imag, w->c_re, w->c_im, r->m->cfg.discretization};
}

static ida_state_ref state_ref(const ida_run *r, real *block, const ida_state_layout *l) {
    if (!r->state) return (ida_state_ref){0};
    return (ida_state_ref){block + l->x_re, block + l->x_im, r->state->stride};
}

ida_interdomain_args ida_run_interdomain(const ida_run *r, const ida_shape *s, int64_t layer, const ida_core_in *in,
                                         const ida_state_layout *l) {
    ida_interdomain_args x = {.h = s->h, .g = s->g, .r = s->dh, .d = s->dh, .m = s->m, .readout = r->m->cfg.readout};
    x.ssm = ida_run_ssm(r, layer);
    x.q = in->q;
    x.k = in->k;
    x.v = in->v;
    x.o = r->a->layers[layer].o;
    x.state_in = state_ref(r, r->state ? r->state->block : NULL, l);
    x.state_out = state_ref(r, r->state_out, l);
    return x;
}

ida_s4d_args ida_run_s4d(const ida_run *r, const ida_shape *s, int64_t layer, const ida_core_in *in, const ida_state_layout *l) {
    ida_s4d_args x = {.h = s->h, .r = s->dh, .d = s->dh, .m = s->m};
    x.ssm = ida_run_ssm(r, layer);
    x.k = in->k;
    x.v = in->v;
    x.w = r->m->layers[layer].w;
    x.y = r->a->layers[layer].o;
    x.state_in = state_ref(r, r->state ? r->state->block : NULL, l);
    x.state_out = state_ref(r, r->state_out, l);
    return x;
}

static ida_status project(const ida_run *r, const ida_shape *s, int64_t layer) {
    const ida_device *dev = r->m->dev;
    const ida_layer_weights *w = &r->m->layers[layer];
    const ida_layer_acts *l = &r->a->layers[layer];
    int64_t n = r->b->n_tokens, d = r->m->cfg.d_model;
    if (s->query) IDA_TRY(dev->ops->linear_fwd(dev, l->q0, r->a->xn, w->wq, n, d, s->qw, false));
    IDA_TRY(dev->ops->linear_fwd(dev, l->k0, r->a->xn, w->wk, n, d, s->kvw, false));
    IDA_TRY(dev->ops->linear_fwd(dev, l->v0, r->a->xn, w->wv, n, d, s->kvw, false));
    if (w->wg) IDA_TRY(dev->ops->linear_fwd(dev, l->g, r->a->xn, w->wg, n, d, s->ow, false));
    return IDA_OK;
}

/* q0, k0, v0 -> q, k, v: short convolution, then RoPE on q and k. */
static ida_status convolve(const ida_run *r, const ida_shape *s, int64_t layer, const ida_state_layout *sl) {
    const ida_device *dev = r->m->dev;
    const ida_config *c = &r->m->cfg;
    const ida_layer_weights *w = &r->m->layers[layer];
    const ida_layer_acts *l = &r->a->layers[layer];
    real *in = r->state ? r->state->block : NULL, *out = r->state_out;
    int64_t stride = r->state ? r->state->stride : 0;
    if (s->conv_q)
        IDA_TRY(dev->ops->conv_fwd(dev, l->q, ida_state_at(out, sl->conv_q), l->q0, w->conv_q_w, w->conv_q_b,
                                   ida_state_at(in, sl->conv_q), stride, &r->seqs, s->qw));
    if (s->conv_k)
        IDA_TRY(dev->ops->conv_fwd(dev, l->k, ida_state_at(out, sl->conv_k), l->k0, w->conv_k_w, w->conv_k_b,
                                   ida_state_at(in, sl->conv_k), stride, &r->seqs, s->kvw));
    if (s->conv_v)
        IDA_TRY(dev->ops->conv_fwd(dev, l->v, ida_state_at(out, sl->conv_v), l->v0, w->conv_v_w, w->conv_v_b,
                                   ida_state_at(in, sl->conv_v), stride, &r->seqs, s->kvw));
    if (!c->rope) return IDA_OK;
    if (s->query) IDA_TRY(dev->ops->rope(dev, l->q, l->q, &r->seqs, s->h, s->dh, c->rope_theta, 1));
    return dev->ops->rope(dev, l->k, l->k, &r->seqs, s->g, s->dh, c->rope_theta, 1);
}

ida_status ida_run_core_inputs(const ida_run *r, const ida_shape *s, int64_t layer, ida_core_in *in) {
    const ida_device *dev = r->m->dev;
    const ida_config *c = &r->m->cfg;
    const ida_layer_weights *w = &r->m->layers[layer];
    const ida_layer_acts *l = &r->a->layers[layer];
    ida_acts *a = r->a;
    int64_t n = r->b->n_tokens;
    *in = (ida_core_in){l->q, l->k, l->v};
    if (s->softmax) return IDA_OK;
    if (s->feat_q) {
        IDA_TRY(dev->ops->featmap_fwd(dev, a->fq, a->rq, l->q, n, s->h, s->dh, c->l2_eps));
        in->q = a->fq;
    }
    const real *k = l->k;
    if (s->feat_k) {
        IDA_TRY(dev->ops->featmap_fwd(dev, a->fk, a->rk, l->k, n, s->g, s->dh, c->l2_eps));
        k = a->fk;
    }
    IDA_TRY(dev->ops->headnorm_fwd(dev, a->hk, a->nk, k, w->gk, w->bk, n, s->g, s->dh, c->norm_eps));
    IDA_TRY(dev->ops->headnorm_fwd(dev, a->hv, a->nv, l->v, w->gv, w->bv, n, s->g, s->dh, c->norm_eps));
    in->k = a->hk;
    in->v = a->hv;
    return IDA_OK;
}

static ida_status run_core(const ida_run *r, const ida_shape *s, int64_t layer, const ida_core_in *in,
                           const ida_state_layout *sl) {
    const ida_device *dev = r->m->dev;
    const ida_layer_acts *l = &r->a->layers[layer];
    if (s->softmax) {
        ida_attention_args x = {.o = l->o, .lse = l->lse, .q = in->q, .k = in->k, .v = in->v, .h = s->h, .g = s->g, .d = s->dh};
        if (r->state) {
            x.k_cache = &r->state->k_cache[layer * r->state->n_seq];
            x.v_cache = &r->state->v_cache[layer * r->state->n_seq];
        }
        return dev->ops->attention_fwd(dev, &x, &r->seqs);
    }
    if (s->linear) {
        ida_s4d_args x = ida_run_s4d(r, s, layer, in, sl);
        return r->step ? dev->ops->s4d_step(dev, &x, &r->m->prep[layer], r->seqs.n) : dev->ops->s4d_chunk_fwd(dev, &x, &r->seqs);
    }
    ida_interdomain_args x = ida_run_interdomain(r, s, layer, in, sl);
    return r->step ? dev->ops->interdomain_step(dev, &x, &r->m->prep[layer], r->seqs.n)
                   : dev->ops->interdomain_chunk_fwd(dev, &x, &r->seqs);
}

ida_status ida_run_output(const ida_run *r, const ida_shape *s, int64_t layer, real **normed, real **y) {
    const ida_device *dev = r->m->dev;
    const ida_layer_weights *w = &r->m->layers[layer];
    const ida_layer_acts *l = &r->a->layers[layer];
    int64_t n = r->b->n_tokens;
    *normed = l->o;
    if (w->onorm) {
        IDA_TRY(dev->ops->headnorm_fwd(dev, r->a->on, r->a->no, l->o, w->onorm, NULL, n, s->h, s->hw, r->m->cfg.norm_eps));
        *normed = r->a->on;
    }
    *y = *normed;
    if (w->wg) {
        IDA_TRY(dev->ops->swiglu_fwd(dev, r->a->y, l->g, *normed, n * s->ow));
        *y = r->a->y;
    }
    return IDA_OK;
}

/* out = x + in W^T; x may be out. */
static ida_status add_linear(const ida_run *r, real *out, const real *x, const real *in, const real *w, int64_t width) {
    int64_t d = r->m->cfg.d_model, n = r->b->n_tokens;
    if (out != x && n > 0) {
        ida_part_begin(r->a, IDA_PART_OTHER);
        memcpy(out, x, (size_t)(n * d) * sizeof *out);
    }
    ida_part_begin(r->a, IDA_PART_GEMM);
    return r->m->dev->ops->linear_fwd(r->m->dev, out, in, w, n, width, d, true);
}

static ida_status run_layer(const ida_run *r, int64_t layer) {
    const ida_device *dev = r->m->dev;
    const ida_config *c = &r->m->cfg;
    const ida_layer_weights *w = &r->m->layers[layer];
    ida_acts *a = r->a;
    const ida_layer_acts *l = &a->layers[layer];
    ida_shape s = ida_layer_shape(c, layer);
    ida_state_layout sl = ida_run_state(r, layer);
    int64_t n = r->b->n_tokens, d = c->d_model, f = c->ffn_hidden;
    real *normed, *y;
    ida_core_in in;

    ida_part_begin(a, IDA_PART_NORM);
    IDA_TRY(dev->ops->rmsnorm_fwd(dev, a->xn, a->rstd, l->x1, w->norm1, n, d, c->norm_eps));
    ida_part_begin(a, IDA_PART_GEMM);
    IDA_TRY(project(r, &s, layer));
    ida_part_begin(a, IDA_PART_MIXER);
    IDA_TRY(convolve(r, &s, layer, &sl));
    IDA_TRY(ida_run_core_inputs(r, &s, layer, &in));
    IDA_TRY(run_core(r, &s, layer, &in, &sl));
    IDA_TRY(ida_run_output(r, &s, layer, &normed, &y));
    IDA_TRY(add_linear(r, l->x2, l->x1, y, w->wo, s.ow));

    ida_part_begin(a, IDA_PART_NORM);
    IDA_TRY(dev->ops->rmsnorm_fwd(dev, a->xn, a->rstd, l->x2, w->norm2, n, d, c->norm_eps));
    ida_part_begin(a, IDA_PART_GEMM);
    IDA_TRY(dev->ops->linear_fwd(dev, l->gate, a->xn, w->gate, n, d, f, false));
    IDA_TRY(dev->ops->linear_fwd(dev, l->up, a->xn, w->up, n, d, f, false));
    ida_part_begin(a, IDA_PART_OTHER);
    IDA_TRY(dev->ops->swiglu_fwd(dev, a->act, l->gate, l->up, n * f));
    real *next = layer + 1 < c->n_layers ? a->layers[layer + 1].x1 : a->x_last;
    return add_linear(r, next, l->x2, a->act, w->down, f);
}

ida_status ida_run_layers(ida_run *r) {
    const ida_device *dev = r->m->dev;
    const ida_config *c = &r->m->cfg;
    assert(r->b->n_tokens <= r->a->n_tokens && r->seqs.n <= r->a->n_seq);
    assert(!r->state || r->state->n_seq == r->seqs.n);
    IDA_TRY(dev->ops->embed_fwd(dev, r->a->layers[0].x1, r->b->ids, r->m->embed, r->b->n_tokens, c->d_model));
    for (int64_t l = 0; l < c->n_layers; l++) {
        ida_status st = run_layer(r, l);
        if (st != IDA_OK) return ida_fail_prefix(st, "layer %lld, forward", (long long)l);
    }
    return IDA_OK;
}

static ida_status head_losses(const ida_run *r, const real *xf, real *losses) {
    const ida_device *dev = r->m->dev;
    int64_t n = r->b->n_tokens, d = r->m->cfg.d_model, v = r->m->cfg.vocab_size;
    for (int64_t at = 0; at < n; at += r->a->head_rows) {
        int64_t rows = n - at < r->a->head_rows ? n - at : r->a->head_rows;
        IDA_TRY(dev->ops->linear_fwd(dev, r->a->logits, xf + at * d, r->m->lm_head, rows, d, v, false));
        IDA_TRY(dev->ops->cross_entropy(dev, losses + at, r->a->logits, r->b->targets + at, rows, v, 0));
    }
    return IDA_OK;
}

static ida_status head_logits(const ida_run *r, const real *xf, real *logits, const int64_t *logit_rows, int64_t n_rows) {
    const ida_device *dev = r->m->dev;
    int64_t d = r->m->cfg.d_model, v = r->m->cfg.vocab_size;
    for (int64_t at = 0; at < n_rows; at += r->a->head_rows) {
        int64_t rows = n_rows - at < r->a->head_rows ? n_rows - at : r->a->head_rows;
        for (int64_t i = 0; i < rows; i++) {
            assert(logit_rows[at + i] >= 0 && logit_rows[at + i] < r->b->n_tokens);
            memcpy(r->a->rows + i * d, xf + logit_rows[at + i] * d, (size_t)d * sizeof *xf);
        }
        IDA_TRY(dev->ops->linear_fwd(dev, logits + at * v, r->a->rows, r->m->lm_head, rows, d, v, false));
    }
    return IDA_OK;
}

static bool one_token_each(const ida_seqs *s) {
    for (int64_t i = 0; i < s->n; i++)
        if (s->cu[i + 1] - s->cu[i] != 1) return false;
    return s->n > 0;
}

/* Cache room for what this batch appends. */
static ida_status reserve_caches(const ida_config *c, ida_state *state, const ida_seqs *s) {
    bool any = false;
    for (int64_t l = 0; l < c->n_layers; l++) any = any || c->layer_mixer[l] == IDA_MIXER_SOFTMAX;
    int64_t need = 0;
    for (int64_t i = 0; i < s->n && any; i++) {
        int64_t end = state->pos[i] + s->cu[i + 1] - s->cu[i];
        need = end > need ? end : need;
    }
    return any ? ida_state_reserve(c, state, need) : IDA_OK;
}

ida_status ida_model_forward(const ida_model *m, ida_acts *a, const ida_batch *b, ida_state *state, real *losses, real *logits,
                             const int64_t *logit_rows, int64_t n_rows) {
    assert(!losses || b->targets);
    ida_run r = {.m = m, .a = a, .b = b, .seqs = b->seqs, .state = state};
    if (state) {
        IDA_TRY(reserve_caches(&m->cfg, state, &b->seqs));
        r.seqs.pos0 = state->pos;
        r.state_out = state->block;
        r.step = m->prep && one_token_each(&b->seqs);
    }
    ida_parts_start(a);
    IDA_TRY(ida_run_layers(&r));
    ida_part_begin(a, IDA_PART_NORM);
    IDA_TRY(m->dev->ops->rmsnorm_fwd(m->dev, a->xn, a->rstd, a->x_last, m->norm, b->n_tokens, m->cfg.d_model, m->cfg.norm_eps));
    ida_part_begin(a, IDA_PART_HEAD);
    if (losses) IDA_TRY(head_losses(&r, a->xn, losses));
    if (logits && n_rows > 0) IDA_TRY(head_logits(&r, a->xn, logits, logit_rows, n_rows));
    ida_part_begin(a, IDA_PART_OTHER);
    for (int64_t i = 0; state && i < state->n_seq; i++) state->pos[i] += b->seqs.cu[i + 1] - b->seqs.cu[i];
    return IDA_OK;
}
