/* model.c - the model object: a parameter block, the pointers into it, and the step form's constants.
 * Not here: the public calls (create.c), files (io). */
#include "model/model.h"

#include "core/mem.h"

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
    IDA_TRY_GOTO(ida_layers_build(cfg, &m->layers));
    IDA_TRY_GOTO(IDA_ALLOC(m->w.parts, m->layers.n, "model"));
    if (!params) IDA_TRY_GOTO(allocate(m));
    m->matrices = ida_act_of(m->params);
    if (dev->act_type != IDA_TYPE_REAL) {
        m->matrices = NULL;
        IDA_TRY_GOTO(ida_dev_alloc(dev, (void **)&m->matrices, m->table.block, ida_act_bytes(dev, 1), "model weights, rounded"));
    }
    ida_weights_bind(&m->table, dev, m->params, m->matrices, &m->w);
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

static int64_t prep_len(const ida_layer *l) { return l->kind->prep_len ? ida_round16(l->kind->prep_len(l)) : 0; }

/* Elements of the tensors that a layer's constants come from. */
static int64_t prep_inputs(const ida_layer *l) {
    int64_t n = 0;
    for (int i = 0; i < l->kind->n_tensors; i++)
        if (l->kind->tensors[i].prepared) n += ida_layer_elements(l, l->kind->tensors[i].shape);
    return n;
}

/* The tensors that prepare reads, on the host, by slot. They are small; a device's go into `block` (prep_inputs elements). */
static ida_status inputs_on_host(const ida_model *m, int64_t part, real *block, const real *w[IDA_LAYER_TENSORS]) {
    const ida_layer *l = &m->layers.at[part];
    for (int i = 0; i < l->kind->n_tensors; i++) {
        const ida_tensor_row *r = &l->kind->tensors[i];
        const real *from = m->w.parts[part].w[r->slot].vector;
        const int64_t n = ida_layer_elements(l, r->shape);
        if (!r->prepared) continue;
        w[r->slot] = from;
        if (ida_on_host(m->dev)) continue;
        IDA_TRY(ida_dev_download(m->dev, block, from, n * (int64_t)sizeof *block));
        w[r->slot] = block;
        block += n;
    }
    return IDA_OK;
}

/* host: room for the layer's constants and its inputs. */
static ida_status prepare_layer(ida_model *m, int64_t part, real *at, real *host) {
    const ida_layer *l = &m->layers.at[part];
    const real *w[IDA_LAYER_TENSORS] = {0};
    IDA_TRY(inputs_on_host(m, part, host + prep_len(l), w));
    m->prep[part] = at;
    l->kind->prepare(l, w, ida_on_host(m->dev) ? at : host);
    return ida_on_host(m->dev) ? IDA_OK : ida_dev_upload(m->dev, at, host, prep_len(l) * (int64_t)sizeof *host);
}

static void drop_prep(ida_model *m) {
    ida_free(m->prep);
    ida_dev_free(m->dev, m->prep_block);
    m->prep = NULL;
    m->prep_block = NULL;
}

ida_status ida_model_prepare(ida_model *m) {
    int64_t total = 0, most = 0;
    for (int64_t i = 0; i < m->layers.n; i++) {
        const int64_t n = prep_len(&m->layers.at[i]), room = n + prep_inputs(&m->layers.at[i]);
        total += n;
        most = room > most ? room : most;
    }
    real *host = NULL;
    ida_status st = IDA_OK;
    if (!m->prep) {
        IDA_TRY_GOTO(IDA_CALLOC(m->prep, m->layers.n, "step constants"));
        IDA_TRY_GOTO(IDA_DEV_ALLOC(m->dev, m->prep_block, total, "step constants"));
    }
    if (!ida_on_host(m->dev)) IDA_TRY_GOTO(IDA_ALLOC(host, most, "step constants"));
    real *at = m->prep_block;
    for (int64_t i = 0; i < m->layers.n; i++) {
        if (!m->layers.at[i].kind->prepare) continue;
        IDA_TRY_GOTO(prepare_layer(m, i, at, host));
        at += prep_len(&m->layers.at[i]);
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
    ida_free(m->w.parts);
    ida_layers_free(&m->layers);
    drop_prep(m);
    ida_param_table_free(&m->table);
    ida_free(m);
}
