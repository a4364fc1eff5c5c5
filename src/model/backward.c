/* backward.c - loss and gradients. Above each step stands the forward line it differentiates; what the forward pass did not keep
 * is formed again by the same ops. Not here: the optimiser (train), gradients with respect to states (truncated between batches).
 * Invariant: gradients are "+=", so micro-batches and tied embeddings add up by themselves. */
#include <assert.h>
#include <string.h>

#include "core/mem.h"
#include "model/run.h"

typedef struct backprop { ida_run run; ida_layer_weights *dw; real *dembed, *dnorm, *dhead; double scale; } backprop;

static bool any_scored(const int32_t *targets, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (targets[i] >= 0) return true;
    return false;
}

/* loss = sum_n CE(xf_n lm_head^T, target_n): forward and backward of one block of rows at a time. dxf lands in a->dxn. */
static ida_status head(backprop *p, double *loss_sum, int64_t *n_scored) {
    const ida_model *m = p->run.m;
    const ida_device *dev = m->dev;
    ida_acts *a = p->run.a;
    const ida_batch *b = p->run.b;
    int64_t n = b->n_tokens, d = m->cfg.d_model, v = m->cfg.vocab_size;
    double sum = 0;
    int64_t scored = 0;
    for (int64_t at = 0; at < n; at += a->head_rows) {
        int64_t rows = n - at < a->head_rows ? n - at : a->head_rows;
        if (!any_scored(b->targets + at, rows)) {
            memset(a->dxn + at * d, 0, (size_t)(rows * d) * sizeof(real));
            continue;
        }
        real *losses = a->rows; /* [rows], free here */
        IDA_TRY(dev->ops->linear_fwd(dev, a->logits, a->xn + at * d, m->lm_head, rows, d, v, false));
        IDA_TRY(dev->ops->cross_entropy(dev, losses, a->logits, b->targets + at, rows, v, p->scale));
        for (int64_t i = 0; i < rows; i++) {
            if (b->targets[at + i] < 0) continue;
            sum += (double)losses[i];
            scored++;
        }
        if (p->scale == 0)
            memset(a->logits, 0, (size_t)(rows * v) * sizeof(real)); /* cross_entropy reads scale 0 as "loss only" */
        IDA_TRY(dev->ops->linear_bwd(dev, a->dxn + at * d, p->dhead, a->logits, a->xn + at * d, m->lm_head, rows, d, v, false));
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
    const ida_layer_weights *w = &m->layers[layer], *dw = &p->dw[layer];
    int64_t n = p->run.b->n_tokens, d = m->cfg.d_model, f = m->cfg.ffn_hidden;
    ida_part_begin(a, IDA_PART_NORM);
    IDA_TRY(dev->ops->rmsnorm_fwd(dev, a->xn, a->rstd, l->x2, w->norm2, n, d, m->cfg.norm_eps));
    ida_part_begin(a, IDA_PART_OTHER);
    IDA_TRY(dev->ops->swiglu_fwd(dev, a->act, l->gate, l->up, n * f));
    ida_part_begin(a, IDA_PART_GEMM);
    IDA_TRY(dev->ops->linear_bwd(dev, a->dact, dw->down, a->dx, a->act, w->down, n, f, d, false));
    ida_part_begin(a, IDA_PART_OTHER);
    real *dgate = a->dact, *dup = a->act; /* act is spent */
    IDA_TRY(dev->ops->swiglu_bwd(dev, dgate, dup, a->dact, l->gate, l->up, n * f));
    ida_part_begin(a, IDA_PART_GEMM);
    IDA_TRY(dev->ops->linear_bwd(dev, a->dxn, dw->gate, dgate, a->xn, w->gate, n, d, f, false));
    IDA_TRY(dev->ops->linear_bwd(dev, a->dxn, dw->up, dup, a->xn, w->up, n, d, f, true));
    ida_part_begin(a, IDA_PART_NORM);
    return dev->ops->rmsnorm_bwd(dev, a->dx, dw->norm2, a->dxn, l->x2, w->norm2, a->rstd, n, d);
}

/* o = core(q, k, v): a->dy (gradient at o) to a->dq, a->dk, a->dv and the SSM parameters. */
static ida_status core(backprop *p, const ida_shape *s, int64_t layer, const ida_core_in *in) {
    const ida_run *r = &p->run;
    const ida_device *dev = r->m->dev;
    ida_acts *a = r->a;
    const ida_layer_acts *l = &a->layers[layer];
    const ida_layer_weights *dw = &p->dw[layer];
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

/* One of q, k, v from the core's input back to the projection: (headnorm) (featmap) (rope) (conv). */
typedef struct stream {
    real *grad, *other;                 /* gradient at the core's input; a second buffer for ops that may not alias */
    const real *pre, *post;             /* before and after convolution and RoPE */
    const real *feat, *rinv, *rstd;     /* feature map (NULL: none) and the saved factors; rstd NULL: no head norm */
    const real *gain, *conv_w;
    real *dgain, *dbias, *dconv_w, *dconv_b;
    int64_t heads, conv_at;             /* conv_at: place in the state, -1 without convolution */
    bool rope, conv;
} stream;

static void flip(stream *t) {
    real *x = t->grad;
    t->grad = t->other;
    t->other = x;
}

static ida_status stream_bwd(const ida_run *r, stream *t, int64_t dh) {
    const ida_device *dev = r->m->dev;
    int64_t n = r->b->n_tokens;
    if (t->rstd) {
        const real *x = t->feat ? t->feat : t->post;
        IDA_TRY(dev->ops->headnorm_bwd(dev, t->other, t->dgain, t->dbias, t->grad, x, t->gain, t->rstd, n, t->heads, dh));
        flip(t);
    }
    if (t->feat) {
        IDA_TRY(dev->ops->featmap_bwd(dev, t->other, t->grad, t->post, t->rinv, n, t->heads, dh));
        flip(t);
    }
    if (t->rope) IDA_TRY(dev->ops->rope(dev, t->grad, t->grad, &r->seqs, t->heads, dh, r->m->cfg.rope_theta, -1));
    if (t->conv) {
        ida_conv_bwd_args x = {.dx = t->other, .dw = t->dconv_w, .db = t->dconv_b, .dy = t->grad, .x = t->pre, .w = t->conv_w,
                               .d = t->heads * dh};
        x.state_in = ida_state_at(r->state ? r->state->block : NULL, t->conv_at);
        x.stride = r->state ? r->state->stride : 0;
        IDA_TRY(dev->ops->conv_bwd(dev, &x, &r->seqs));
        flip(t);
    }
    return IDA_OK;
}

/* All streams share one second buffer: each ends with its product into dxn before the next begins. */
static ida_status streams(backprop *p, const ida_shape *s, int64_t layer) {
    const ida_run *r = &p->run;
    const ida_device *dev = r->m->dev;
    ida_acts *a = r->a;
    const ida_layer_acts *l = &a->layers[layer];
    const ida_layer_weights *w = &r->m->layers[layer], *dw = &p->dw[layer];
    ida_state_layout sl = ida_run_state(r, layer);
    bool rope = r->m->cfg.rope, norm = !s->softmax;
    stream t[3] = {
        {.grad = a->dq, .pre = l->q0, .post = l->q, .feat = s->feat_q ? a->fq : NULL, .rinv = a->rq, .conv_w = w->conv_q_w,
         .dconv_w = dw->conv_q_w, .dconv_b = dw->conv_q_b, .heads = s->h, .conv_at = sl.conv_q, .rope = rope, .conv = s->conv_q},
        {.grad = a->dk, .pre = l->k0, .post = l->k, .feat = s->feat_k ? a->fk : NULL, .rinv = a->rk, .rstd = norm ? a->nk : NULL,
         .gain = w->gk, .dgain = dw->gk, .dbias = dw->bk, .conv_w = w->conv_k_w, .dconv_w = dw->conv_k_w,
         .dconv_b = dw->conv_k_b, .heads = s->g, .conv_at = sl.conv_k, .rope = rope, .conv = s->conv_k},
        {.grad = a->dv, .pre = l->v0, .post = l->v, .rstd = norm ? a->nv : NULL, .gain = w->gv, .dgain = dw->gv, .dbias = dw->bv,
         .conv_w = w->conv_v_w, .dconv_w = dw->conv_v_w, .dconv_b = dw->conv_v_b, .heads = s->g, .conv_at = sl.conv_v,
         .conv = s->conv_v},
    };
    const real *weight[3] = {w->wq, w->wk, w->wv};
    real *dweight[3] = {dw->wq, dw->wk, dw->wv};
    bool add = false;
    for (int i = s->query ? 0 : 1; i < 3; i++) {
        ida_part_begin(a, IDA_PART_MIXER);
        t[i].other = a->dt;
        IDA_TRY(stream_bwd(r, &t[i], s->dh));
        ida_part_begin(a, IDA_PART_GEMM);
        IDA_TRY(dev->ops->linear_bwd(dev, a->dxn, dweight[i], t[i].grad, a->xn, weight[i], r->b->n_tokens, r->m->cfg.d_model,
                                     t[i].heads * s->dh, add));
        add = true;
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
    const ida_layer_weights *w = &m->layers[layer], *dw = &p->dw[layer];
    ida_shape s = ida_layer_shape(&m->cfg, layer);
    int64_t n = r->b->n_tokens, d = m->cfg.d_model;
    real *normed, *y;
    ida_core_in in;
    ida_part_begin(a, IDA_PART_NORM);
    IDA_TRY(dev->ops->rmsnorm_fwd(dev, a->xn, a->rstd, l->x1, w->norm1, n, d, m->cfg.norm_eps));
    ida_part_begin(a, IDA_PART_MIXER);
    IDA_TRY(ida_run_core_inputs(r, &s, layer, &in));
    IDA_TRY(ida_run_output(r, &s, layer, &normed, &y));
    ida_part_begin(a, IDA_PART_GEMM);
    IDA_TRY(dev->ops->linear_bwd(dev, a->dy, dw->wo, a->dx, y, w->wo, n, s.ow, d, false));
    ida_part_begin(a, IDA_PART_MIXER);
    if (w->wg) IDA_TRY(dev->ops->swiglu_bwd(dev, a->dgate, a->dy, a->dy, l->g, normed, n * s.ow));
    if (w->onorm) {
        IDA_TRY(dev->ops->headnorm_bwd(dev, a->dt, dw->onorm, NULL, a->dy, l->o, w->onorm, a->no, n, s.h, s.hw));
        real *x = a->dy; /* dt is as wide as dy */
        a->dy = a->dt;
        a->dt = x;
    }
    IDA_TRY(core(p, &s, layer, &in));
    IDA_TRY(streams(p, &s, layer));
    ida_part_begin(a, IDA_PART_GEMM);
    if (w->wg) IDA_TRY(dev->ops->linear_bwd(dev, a->dxn, dw->wg, a->dgate, a->xn, w->wg, n, d, s.ow, true));
    ida_part_begin(a, IDA_PART_NORM);
    return dev->ops->rmsnorm_bwd(dev, a->dx, dw->norm1, a->dxn, l->x1, w->norm1, a->rstd, n, d);
}

static ida_status run(backprop *p, double *loss_sum, int64_t *n_scored, real *dx0) {
    ida_run *r = &p->run;
    const ida_model *m = r->m;
    const ida_device *dev = m->dev;
    ida_acts *a = r->a;
    int64_t n = r->b->n_tokens, d = m->cfg.d_model;
    IDA_TRY(ida_run_layers(r));
    ida_part_begin(a, IDA_PART_NORM);
    IDA_TRY(dev->ops->rmsnorm_fwd(dev, a->xn, a->rstd, a->x_last, m->norm, n, d, m->cfg.norm_eps));
    ida_part_begin(a, IDA_PART_HEAD);
    IDA_TRY(head(p, loss_sum, n_scored));
    ida_part_begin(a, IDA_PART_NORM);
    memset(a->dx, 0, (size_t)(n * d) * sizeof(real));
    IDA_TRY(dev->ops->rmsnorm_bwd(dev, a->dx, p->dnorm, a->dxn, a->x_last, m->norm, a->rstd, n, d));
    for (int64_t l = m->cfg.n_layers; l-- > 0;) {
        ida_status st = feed_forward(p, l);
        if (st == IDA_OK) st = mixer(p, l);
        if (st != IDA_OK) return ida_fail_prefix(st, "layer %lld, backward", (long long)l);
    }
    ida_part_begin(a, IDA_PART_OTHER);
    if (dx0 && n > 0) memcpy(dx0, a->dx, (size_t)(n * d) * sizeof(real));
    return dev->ops->embed_bwd(dev, p->dembed, r->b->ids, a->dx, n, m->cfg.vocab_size, d);
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
        ida_free(r->a->next_state);
        r->a->next_state = NULL;
        r->a->next_state_len = 0;
        IDA_TRY(IDA_CALLOC(r->a->next_state, need, "carried state"));
        r->a->next_state_len = need;
    }
    r->seqs.pos0 = r->state->pos;
    r->state_out = r->a->next_state;
    return IDA_OK;
}

ida_status ida_model_forward_backward(const ida_model *m, ida_acts *a, const ida_batch *b, ida_state *state, double loss_scale,
                                      real *grads, double *loss_sum, int64_t *n_scored, real *dx0) {
    assert(a->training && b->targets);
    backprop p = {.run = {.m = m, .a = a, .b = b, .seqs = b->seqs, .state = state}, .scale = loss_scale};
    double sum = 0;
    int64_t scored = 0;
    if (state) IDA_TRY(next_state(&p.run));
    ida_parts_start(a);
    IDA_TRY(IDA_ALLOC(p.dw, m->cfg.n_layers, "gradient table"));
    ida_model_bind(&m->cfg, &m->table, grads, p.dw, &p.dembed, &p.dnorm, &p.dhead);
    ida_status st = run(&p, &sum, &scored, dx0);
    ida_part_begin(a, IDA_PART_OTHER);
    ida_free(p.dw);
    if (st != IDA_OK) return st;
    if (state) {
        real *old = state->block;
        state->block = a->next_state;
        a->next_state = old;
        for (int64_t i = 0; i < state->n_seq; i++) state->pos[i] += b->seqs.cu[i + 1] - b->seqs.cu[i];
    }
    *loss_sum = sum;
    *n_scored = scored;
    return IDA_OK;
}
