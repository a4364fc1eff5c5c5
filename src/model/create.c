/* create.c - the public calls on a model. */
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the streaming state lives on the stack */
#include <xxhash.h>

#include "core/mem.h"
#include "model/model.h"
#include "model/own.h"

ida_status ida_model_create(const ida_config *cfg, uint64_t seed, ida_model **out) {
    IDA_NEED(cfg);
    IDA_NEED(out);
    return ida_model_create_on(cfg, ida_cpu_device(), seed, out);
}

ida_status ida_model_create_on(const ida_config *cfg, const ida_device *dev, uint64_t seed, ida_model **out) {
    ida_model *m = NULL;
    *out = NULL;
    IDA_TRY(ida_model_new(cfg, dev, NULL, &m));
    ida_status st = ida_model_init(m, seed);
    if (st == IDA_OK) st = ida_model_prepare(m);
    if (st != IDA_OK) {
        ida_model_free(m);
        return st;
    }
    *out = m;
    return IDA_OK;
}

const ida_config *ida_model_config(const ida_model *m) { return &m->cfg; }

int64_t ida_model_n_tensors(const ida_model *m) { return m->table.n; }

ida_status ida_model_tensor(const ida_model *m, int64_t i, const char **name, int *ndim, int64_t shape[4],
                            const float **data) {
    IDA_NEED(m);
    IDA_FAIL_IF(i < 0 || i >= m->table.n, IDA_E_ARG, "tensor %lld of %lld", (long long)i, (long long)m->table.n);
    const ida_param *p = &m->table.params[i];
    if (name) *name = p->name;
    if (ndim) *ndim = p->ndim;
    if (shape) memcpy(shape, p->shape, sizeof p->shape);
    IDA_FAIL_IF(data && !ida_on_host(m->dev), IDA_E_UNSUPPORTED,
                "the weights are on %s and have no address here: load the model on the CPU to look at them", m->dev->name);
    if (data) *data = m->params + p->offset;
    return IDA_OK;
}

/* Tensors pass through `piece` when they are on another device. */
static ida_status hash_weights(const ida_model *m, XXH3_state_t *s) {
    enum { PIECE = 1 << 22 };
    float *piece = NULL;
    ida_status st = IDA_OK;
    if (!ida_on_host(m->dev)) IDA_TRY(IDA_ALLOC(piece, PIECE, "hash of the model"));
    for (int64_t i = 0; i < m->table.n && st == IDA_OK; i++) {
        const ida_param *p = &m->table.params[i];
        const float *x = m->params + p->offset;
        for (int64_t at = 0; at < p->numel && st == IDA_OK; at += PIECE) {
            int64_t n = p->numel - at < PIECE ? p->numel - at : PIECE;
            if (piece) st = ida_dev_download(m->dev, piece, x + at, n * (int64_t)sizeof *x);
            if (st == IDA_OK) XXH3_64bits_update(s, piece ? piece : x + at, (size_t)n * sizeof *x);
        }
    }
    ida_free(piece);
    return st;
}

/* Nothing where the layer has nothing of its own: hashes of older files stay. */
static void hash_own(const ida_config *c, int64_t layer, XXH3_state_t *s) {
    for (int64_t i = 0; i < 32; i++) {
        const void *base;
        const ida_field *f = ida_own_row(c, layer, i, &base);
        if (!f) continue;
        XXH3_64bits_update(s, &layer, sizeof layer);
        XXH3_64bits_update(s, f->key, strlen(f->key));
        XXH3_64bits_update(s, (const char *)base + f->offset, ida_field_size(f));
    }
}

ida_status ida_model_hash(const ida_model *m, uint64_t *hash) {
    const ida_config *c = &m->cfg;
    XXH3_state_t s;
    XXH3_64bits_reset(&s);
    const int64_t ints[] = {c->vocab_size, c->d_model, c->n_layers, c->n_heads, c->n_kv_heads, c->ffn_hidden, c->state_size,
                            c->tie_embeddings, c->rope, c->gate, c->output_norm, c->discretization, c->readout};
    const double reals[] = {c->rope_theta, c->norm_eps, c->l2_eps};
    XXH3_64bits_update(&s, ints, sizeof ints);
    XXH3_64bits_update(&s, reals, sizeof reals);
    XXH3_64bits_update(&s, c->layer_mixer, (size_t)c->n_layers);
    for (int64_t l = 0; l < c->n_layers; l++) hash_own(c, l, &s);
    IDA_TRY(hash_weights(m, &s));
    uint64_t h = XXH3_64bits_digest(&s);
    *hash = h ? h : 1;
    return IDA_OK;
}
