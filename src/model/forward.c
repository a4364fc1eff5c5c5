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
    const ida_layer_weights *w = &r->m->w.layers[layer];
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
    x.w = r->m->w.layers[layer].w;
    x.y = r->a->layers[layer].o;
    x.state_in = state_ref(r, r->state ? r->state->block : NULL, l);
    x.state_out = state_ref(r, r->state_out, l);
    return x;
}

/* Products of x normed; those without weights are none. A step keeps nothing of what is between. */
static ida_status project(const ida_run *r, const ida_act *x, const real *gain, const ida_product *all, int n_all) {
    const ida_device *dev = r->m->dev;
    const ida_config *c = &r->m->cfg;
    ida_acts *a = r->a;
    const int64_t tokens = r->b->n_tokens, d = c->d_model;
    ida_product p[IDA_MOST_PRODUCTS];
    int n = 0;
    assert(n_all <= IDA_MOST_PRODUCTS);
    for (int i = 0; i < n_all; i++)
        if (all[i].w->data) p[n++] = all[i];
    if (r->step) {
        ida_part_begin(a, IDA_PART_GEMM);
        return dev->ops->project(dev, p, n,
                                 &(ida_project_args){.x = x, .gain = gain, .xn = a->xn, .rstd = a->rstd, .n = tokens,
                                                     .eps = c->norm_eps});
    }
    ida_part_begin(a, IDA_PART_NORM);
    IDA_TRY(dev->ops->rmsnorm_fwd(dev, a->xn, a->rstd, x, gain, tokens, d, c->norm_eps));
    ida_part_begin(a, IDA_PART_GEMM);
    for (int i = 0; i < n; i++) IDA_TRY(dev->ops->linear_fwd(dev, p[i].y, a->xn, p[i].w, NULL, tokens));
    return IDA_OK;
}

ida_stream ida_run_stream(const ida_run *r, const ida_shape *s, int64_t layer, int which, bool first) {
    const ida_config *c = &r->m->cfg;
    const ida_layer_weights *w = &r->m->w.layers[layer];
    const ida_layer_acts *l = &r->a->layers[layer];
    const ida_state_layout sl = ida_run_state(r, layer);
    const bool norm = !s->softmax;
    ida_stream_args a[3] = {
        {.h = s->h, .x = l->q0, .conv_w = w->conv_q_w, .conv_b = w->conv_q_b, .l2_eps = s->feat_q ? c->l2_eps : 0},
        {.h = s->g, .x = l->k0, .conv_w = w->conv_k_w, .conv_b = w->conv_k_b, .l2_eps = s->feat_k ? c->l2_eps : 0,
         .gain = norm ? w->gk : NULL, .bias = w->bk},
        {.h = s->g, .x = l->v0, .conv_w = w->conv_v_w, .conv_b = w->conv_v_b, .gain = norm ? w->gv : NULL, .bias = w->bv},
    };
    ida_act *const y[3] = {r->a->q, r->a->k, r->a->v};
    const int64_t at[3] = {sl.conv_q, sl.conv_k, sl.conv_v};
    ida_stream t = {.y = y[which], .args = a[which]};
    ida_stream_args *x = &t.args;
    x->d = s->dh;
    x->norm_eps = c->norm_eps;
    x->rope_theta = c->rope && which < 2 ? c->rope_theta : 0;
    x->state_in = ida_state_at(r->state ? r->state->block : NULL, at[which]);
    x->state_out = first ? ida_state_at(r->state_out, at[which]) : NULL;
    x->stride = r->state ? r->state->stride : 0;
    /* The op may not alias; nothing to do leaves the projection itself, which nobody writes to. */
    if (!x->conv_w && x->rope_theta == 0 && x->l2_eps == 0 && !x->gain) t.y = (ida_act *)(uintptr_t)x->x;
    return t;
}

ida_status ida_run_core_inputs(const ida_run *r, const ida_shape *s, int64_t layer, bool first, ida_core_in *in) {
    const ida_device *dev = r->m->dev;
    ida_stream streams[IDA_MOST_STREAMS] = {0};
    ida_act *y[3] = {0};
    int n = 0;
    for (int i = s->query ? 0 : 1; i < 3; i++) {
        const ida_stream t = ida_run_stream(r, s, layer, i, first);
        if (t.y != t.args.x) streams[n++] = t;
        y[i] = t.y;
    }
    *in = (ida_core_in){y[0], y[1], y[2]};
    return n > 0 ? dev->ops->stream_fwd(dev, streams, n, &r->seqs) : IDA_OK;
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

ida_status ida_run_output(const ida_run *r, const ida_shape *s, int64_t layer, ida_act **normed, ida_act **y) {
    const ida_device *dev = r->m->dev;
    const ida_layer_weights *w = &r->m->w.layers[layer];
    const ida_layer_acts *l = &r->a->layers[layer];
    int64_t n = r->b->n_tokens;
    *normed = l->o;
    if (w->onorm) {
        IDA_TRY(dev->ops->headnorm_fwd(dev, r->a->on, r->a->no, l->o, w->onorm, NULL, n, s->h, s->hw, r->m->cfg.norm_eps));
        *normed = r->a->on;
    }
    *y = *normed;
    if (w->wg.data) {
        IDA_TRY(dev->ops->swiglu_fwd(dev, r->a->y, l->g, *normed, n * s->ow));
        *y = r->a->y;
    }
    return IDA_OK;
}

/* From x1 to x2. */
static ida_status mixer(const ida_run *r, int64_t layer) {
    const ida_device *dev = r->m->dev;
    const ida_config *c = &r->m->cfg;
    const ida_layer_weights *w = &r->m->w.layers[layer];
    ida_acts *a = r->a;
    const ida_layer_acts *l = &a->layers[layer];
    const ida_shape s = ida_layer_shape(c, layer);
    const ida_state_layout sl = ida_run_state(r, layer);
    const ida_product in_to[] = {
        {.y = l->q0, .w = &w->wq}, {.y = l->k0, .w = &w->wk}, {.y = l->v0, .w = &w->wv}, {.y = l->g, .w = &w->wg}};
    ida_act *normed, *y;
    ida_core_in in;
    IDA_TRY(project(r, l->x1, w->norm1, in_to, 4));
    ida_part_begin(a, IDA_PART_MIXER);
    IDA_TRY(ida_run_core_inputs(r, &s, layer, true, &in));
    IDA_TRY(run_core(r, &s, layer, &in, &sl));
    IDA_TRY(ida_run_output(r, &s, layer, &normed, &y));
    ida_part_begin(a, IDA_PART_GEMM);
    return dev->ops->linear_fwd(dev, l->x2, y, &w->wo, l->x1, r->b->n_tokens);
}

ida_status ida_run_layer_kept(const ida_run *r, int64_t layer) {
    const ida_layer_weights *w = &r->m->w.layers[layer];
    const ida_layer_acts *l = &r->a->layers[layer];
    const ida_product to[] = {{.y = l->gate, .w = &w->gate}, {.y = l->up, .w = &w->up}};
    IDA_TRY(mixer(r, layer));
    return project(r, l->x2, w->norm2, to, 2);
}
/* The same where nothing is kept, and the SwiGLU. */
static ida_status step_layer(const ida_run *r, int64_t layer) {
    const ida_layer_weights *w = &r->m->w.layers[layer];
    const ida_layer_acts *l = &r->a->layers[layer];
    const ida_product to = {.y = r->a->ff, .w = &w->up, .gate = l->gate, .gate_w = &w->gate};
    IDA_TRY(mixer(r, layer));
    return project(r, l->x2, w->norm2, &to, 1);
}

static ida_status run_layer(const ida_run *r, int64_t layer) {
    const ida_device *dev = r->m->dev;
    const ida_config *c = &r->m->cfg;
    ida_acts *a = r->a;
    const ida_layer_acts *l = &a->layers[layer];
    int64_t n = r->b->n_tokens, f = c->ffn_hidden;
    if (r->step) {
        IDA_TRY(step_layer(r, layer));
    } else {
        IDA_TRY(ida_run_layer_kept(r, layer));
        ida_part_begin(a, IDA_PART_OTHER);
        IDA_TRY(dev->ops->swiglu_fwd(dev, a->ff, l->gate, l->up, n * f));
        ida_part_begin(a, IDA_PART_GEMM);
    }
    ida_act *next = layer + 1 < c->n_layers ? a->layers[layer + 1].x1 : a->x_last;
    return dev->ops->linear_fwd(dev, next, a->ff, &r->m->w.layers[layer].down, l->x2, n);
}

static ida_status upload_batch(ida_run *r) {
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

/* From the ids on the device to x_last. */
static ida_status layers(const ida_run *r) {
    const ida_device *dev = r->m->dev;
    const ida_config *c = &r->m->cfg;
    IDA_TRY(dev->ops->embed_fwd(dev, r->a->layers[0].x1, r->ids, &r->m->w.embed, r->b->n_tokens));
    for (int64_t l = 0; l < c->n_layers; l++) {
        ida_status st = run_layer(r, l);
        if (st != IDA_OK) return ida_fail_prefix(st, "layer %lld, forward", (long long)l);
    }
    return IDA_OK;
}

ida_status ida_run_layers(ida_run *r) {
    IDA_TRY(upload_batch(r));
    return layers(r);
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
        memcpy(out, ida_act_real(a->logits), (size_t)(rows * v) * sizeof *out);
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

/* ---- steps that are recorded (acts.h) */

/* Every row's logits are wanted and a->wide has room for them, nothing is timed in parts, and no layer has a cache, which moves
 * as it grows. */
static bool recordable(const ida_run *r, const real *losses, const real *logits, const int64_t *logit_rows, int64_t n_rows) {
    const ida_acts *a = r->a;
    const bool can = a->dev->memory && a->dev->memory->record && r->step && !a->steps.off && !a->profile;
    if (!can || losses || !logits || n_rows != r->b->n_tokens || n_rows > a->wide_rows) return false;
    for (int64_t i = 0; i < n_rows; i++)
        if (logit_rows[i] != i) return false;
    return !ida_any_softmax(&r->m->cfg);
}

/* From the ids on the device to a->wide. */
static ida_status step_work(const ida_run *r) {
    const ida_device *dev = r->m->dev;
    const ida_acts *a = r->a;
    const int64_t n = r->b->n_tokens, v = r->m->cfg.vocab_size;
    IDA_TRY(layers(r));
    IDA_TRY(ida_run_final_norm(r)); /* not as one product: these are the ops of a step that is not recorded, with its bits */
    IDA_TRY(dev->ops->linear_fwd(dev, a->logits, a->xn, &r->m->w.lm_head, NULL, n));
    return dev->ops->from_act(dev, a->wide, a->logits, n * v);
}

static void forget_steps(ida_acts *a) {
    a->dev->memory->record_free(a->dev, a->steps.recording);
    a->steps.recording = NULL;
}

/* A device that cannot says why, once for these acts, and their steps go op by op from then on. */
static void record_step(const ida_run *r) {
    const ida_device_memory *mem = r->m->dev->memory;
    ida_steps *s = &r->a->steps;
    ida_status st = mem->record(r->m->dev, &r->seqs);
    if (st == IDA_OK) {
        const ida_status work = step_work(r);
        st = mem->record_end(r->m->dev, work == IDA_OK, &s->recording);
        if (work != IDA_OK) st = work;
    }
    s->off = st != IDA_OK;
    if (s->off) ida_log("steps of one token go op by op: %s", ida_last_error());
}

static ida_status recorded_step(ida_run *r, real *logits) {
    const ida_device *dev = r->m->dev;
    ida_acts *a = r->a;
    ida_steps *s = &a->steps;
    const ida_step_key key = {r->m, r->m->prep_block, r->m->params, r->state->block, r->m->matrices, r->seqs.n};
    bool moved = false;
    if (memcmp(&key, &s->key, sizeof key) != 0) {
        forget_steps(a);
        s->key = key;
        s->seen = 0;
    }
    IDA_TRY(upload_batch(r));
    if (!s->recording && s->seen >= IDA_STEPS_BEFORE && !s->off) record_step(r);
    if (s->recording) IDA_TRY(dev->memory->replay(dev, s->recording, &r->seqs, &moved));
    if (moved) forget_steps(a); /* this step takes what memory it needs, the next one is recorded */
    if (!s->recording) IDA_TRY(step_work(r));
    s->seen++;
    return ida_dev_download(dev, logits, a->wide, r->b->n_tokens * r->m->cfg.vocab_size * (int64_t)sizeof *logits);
}

/* Cache room for what this batch appends. */
static ida_status reserve_caches(const ida_config *c, ida_state *state, const ida_seqs *s) {
    int64_t need = 0;
    if (!ida_any_softmax(c)) return IDA_OK;
    for (int64_t i = 0; i < s->n; i++) {
        int64_t end = state->pos[i] + s->cu[i + 1] - s->cu[i];
        need = end > need ? end : need;
    }
    return ida_state_reserve(c, state, need);
}

ida_status ida_model_forward(const ida_model *m, ida_acts *a, const ida_batch *b, ida_state *state, real *losses, real *logits,
                             const int64_t *logit_rows, int64_t n_rows) {
    assert(!losses || b->targets);
    ida_run r = {.m = m, .a = a, .b = b, .seqs = b->seqs, .state = state};
    if (state) {
        IDA_TRY(reserve_caches(&m->cfg, state, &b->seqs));
        r.seqs.pos0 = state->pos;
        r.state_out = state->block;
        r.step = m->prep && ida_seqs_one_token_each(&b->seqs);
    }
    ida_parts_start(a);
    if (recordable(&r, losses, logits, logit_rows, n_rows)) {
        IDA_TRY(recorded_step(&r, logits));
    } else {
        IDA_TRY(ida_run_layers(&r));
        ida_part_begin(a, IDA_PART_NORM);
        IDA_TRY(ida_run_final_norm(&r));
        ida_part_begin(a, IDA_PART_HEAD);
        if (losses) IDA_TRY(head_losses(&r, a->xn, losses));
        if (logits && n_rows > 0) IDA_TRY(head_logits(&r, a->xn, logits, logit_rows, n_rows));
    }
    ida_part_begin(a, IDA_PART_OTHER);
    for (int64_t i = 0; state && i < state->n_seq; i++) state->pos[i] += b->seqs.cu[i + 1] - b->seqs.cu[i];
    return IDA_OK;
}
