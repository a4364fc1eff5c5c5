/* model.c - the model object: a parameter block, the pointers into it, and the step form's constants.
 * Not here: the public calls (create.c), files (io). */
#include "model/model.h"

#include "core/mem.h"
#include "model/shape.h"

static ida_status allocate(ida_model *m) {
    const ida_device *dev = m->dev;
    IDA_TRY(IDA_DEV_ALLOC(dev, m->params, m->table.block, "model weights"));
    m->owns_params = true;
    for (int64_t i = 0; i < m->table.n; i++) { /* the gaps between tensors are 0 from the start */
        const ida_param *p = &m->table.params[i];
        const int64_t gap = ida_round16(p->numel) - p->numel;
        IDA_TRY(ida_dev_zero(dev, m->params + p->offset + p->numel, gap * (int64_t)sizeof(real)));
    }
    return IDA_OK;
}

ida_status ida_model_new(const ida_config *cfg, const ida_device *dev, real *params, ida_model **out) {
    ida_model *m = NULL;
    ida_status st = IDA_OK;
    IDA_TRY(ida_config_check(cfg));
    IDA_TRY(IDA_CALLOC(m, 1, "model"));
    m->cfg = *cfg;
    m->dev = dev;
    m->params = params;
    IDA_TRY_GOTO(ida_param_table_build(cfg, &m->table));
    IDA_TRY_GOTO(IDA_ALLOC(m->w.layers, cfg->n_layers, "model"));
    if (!params) IDA_TRY_GOTO(allocate(m));
    m->matrices = (void *)m->params;
    if (dev->act_type != IDA_TYPE_REAL) {
        m->matrices = NULL;
        IDA_TRY_GOTO(ida_dev_alloc(dev, (void **)&m->matrices, m->table.block, ida_act_bytes(dev, 1), "model weights, rounded"));
    }
    ida_model_bind(m);
    *out = m;
    return IDA_OK;
out:
    ida_model_free(m);
    return st;
}

ida_status ida_model_round(ida_model *m) {
    if (!ida_model_rounds(m)) return IDA_OK;
    return m->dev->ops->to_act(m->dev, m->matrices, m->params, m->table.block);
}

ida_status ida_model_upload(ida_model *m, const real *host) {
    IDA_TRY(ida_dev_upload(m->dev, m->params, host, m->table.block * (int64_t)sizeof *host));
    return ida_model_round(m);
}

ida_status ida_model_init(ida_model *m, uint64_t seed) {
    if (ida_on_host(m->dev)) return ida_param_init(&m->cfg, &m->table, seed, m->params);
    real *host = NULL;
    IDA_TRY(IDA_ALLOC(host, m->table.block, "initial weights"));
    ida_status st = ida_param_init(&m->cfg, &m->table, seed, host);
    if (st == IDA_OK) st = ida_model_upload(m, host);
    ida_free(host);
    return st;
}

/* Elements of one layer's constants: Lam and Bbar [G,M], and G [G,M,M] or the read-out c [H,M]. */
static int64_t prep_size(const ida_shape *s) {
    if (s->softmax) return 0;
    return ida_round16(4 * s->g * s->m + 2 * (s->linear ? s->h * s->m : s->g * s->m * s->m));
}

/* Elements of one layer's parameters that those come from. */
static int64_t prep_inputs(const ida_shape *s) {
    return s->softmax ? 0 : s->g + 2 * s->g * s->m + 2 * s->g * s->m * s->m + (s->linear ? s->h * s->m : 0);
}

/* The state-space parameters of a layer on the host. They are small; a device's go into `block` (prep_inputs elements). */
static ida_status ssm_on_host(const ida_model *m, const ida_shape *s, int64_t layer, real *block, ida_ssm *ssm, const real **w) {
    const ida_layer_weights *x = &m->w.layers[layer];
    const int64_t gm = s->g * s->m;
    const real *from[6] = {x->log_dt, x->a_log, x->a_imag, x->c_re, x->c_im, x->w}, *at[6];
    const int64_t n[6] = {s->g, gm, gm, gm * s->m, gm * s->m, x->w ? s->h * s->m : 0};
    for (int i = 0; i < 6; i++) {
        at[i] = from[i];
        if (ida_on_host(m->dev)) continue;
        IDA_TRY(ida_dev_download(m->dev, block, from[i], n[i] * (int64_t)sizeof *block));
        at[i] = block;
        block += n[i];
    }
    *ssm = (ida_ssm){at[0], at[1], at[2], at[3], at[4], m->cfg.discretization};
    *w = s->linear ? at[5] : NULL;
    return IDA_OK;
}

static ida_ssm_prep prep_at(const ida_shape *s, real *at) {
    const int64_t gm = s->g * s->m;
    return (ida_ssm_prep){.lam_re = at, .lam_im = at + gm, .b_re = at + 2 * gm, .b_im = at + 3 * gm, .g_re = at + 4 * gm,
                          .g_im = at + 4 * gm + (s->linear ? s->h * s->m : gm * s->m)};
}

/* host: room for the layer's constants and its parameters. */
static ida_status prepare_layer(ida_model *m, const ida_shape *s, int64_t layer, real *at, real *host) {
    ida_ssm ssm;
    const real *w;
    IDA_TRY(ssm_on_host(m, s, layer, host + prep_size(s), &ssm, &w));
    const ida_ssm_prep out = prep_at(s, ida_on_host(m->dev) ? at : host);
    IDA_REF(ssm_prepare)(&ssm, s->g, s->m, m->cfg.readout, w, &out);
    m->prep[layer] = prep_at(s, at);
    return ida_on_host(m->dev) ? IDA_OK : ida_dev_upload(m->dev, at, host, prep_size(s) * (int64_t)sizeof *host);
}

static void drop_prep(ida_model *m) {
    ida_free(m->prep);
    ida_dev_free(m->dev, m->prep_block);
    m->prep = NULL;
    m->prep_block = NULL;
}

ida_status ida_model_prepare(ida_model *m) {
    const ida_config *c = &m->cfg;
    int64_t total = 0, most = 0;
    for (int64_t l = 0; l < c->n_layers; l++) {
        ida_shape s = ida_layer_shape(c, l);
        int64_t room = prep_size(&s) + prep_inputs(&s);
        total += prep_size(&s);
        most = room > most ? room : most;
    }
    real *host = NULL;
    ida_status st = IDA_OK;
    if (!m->prep) {
        IDA_TRY_GOTO(IDA_CALLOC(m->prep, c->n_layers, "step constants"));
        IDA_TRY_GOTO(IDA_DEV_ALLOC(m->dev, m->prep_block, total, "step constants"));
    }
    if (!ida_on_host(m->dev)) IDA_TRY_GOTO(IDA_ALLOC(host, most, "step constants"));
    real *at = m->prep_block;
    for (int64_t l = 0; l < c->n_layers; l++) {
        ida_shape s = ida_layer_shape(c, l);
        if (s.softmax) continue;
        IDA_TRY_GOTO(prepare_layer(m, &s, l, at, host));
        at += prep_size(&s);
    }
out:
    if (st != IDA_OK) drop_prep(m); /* half of it would be wrong answers */
    ida_free(host);
    return st;
}

void ida_model_free(ida_model *m) {
    if (!m) return;
    if (ida_model_rounds(m)) ida_dev_free(m->dev, m->matrices);
    if (m->owns_params) ida_dev_free(m->dev, m->params);
    ida_free(m->config_text);
    ida_free(m->folder);
    ida_free(m->w.layers);
    drop_prep(m);
    ida_param_table_free(&m->table);
    ida_free(m);
}
