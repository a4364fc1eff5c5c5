/* model_test.h - what the model's tests share: small configs, models with every weight away from its symmetric start, batches.
 * Compiled for float and for double. */
#ifndef MODEL_TEST_H
#define MODEL_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "core/rng.h"
#include "model/model.h"

#define OK(expr) do { if ((expr) != IDA_OK) fail_msg("%s: %s", #expr, ida_last_error()); } while (0)

enum { N_KINDS = 5 };

static inline ida_config small_config(ida_mixer_kind kind, int64_t vocab, int64_t d, int64_t heads, int64_t modes) {
    ida_config c;
    OK(ida_config_preset("tiny", kind, &c));
    c.vocab_size = vocab;
    c.d_model = d;
    c.n_heads = c.n_kv_heads = heads;
    c.state_size = modes;
    c.ffn_hidden = 2 * d;
    return c;
}

/* Initial values, then every element moved by up to `noise`: gains and biases leave 1 and 0. */
static inline ida_model *make_model(const ida_config *c, const ida_device *dev, uint64_t seed, double noise) {
    ida_model *m = NULL;
    OK(ida_model_new(c, dev, NULL, &m));
    OK(ida_param_init(&m->cfg, &m->table, seed, m->params));
    for (int64_t i = 0; i < m->table.n; i++)
        for (int64_t j = 0; j < m->table.params[i].numel; j++)
            m->params[m->table.params[i].offset + j] += (real)(noise * (2 * ida_uniform(seed + 1, (uint64_t)i, (uint64_t)j) - 1));
    OK(ida_model_prepare(m));
    return m;
}

static inline void random_ids(int32_t *ids, int64_t n, int64_t vocab, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(ida_uniform(seed, IDA_STREAM_TEST, (uint64_t)i) * (double)vocab);
}

/* Gradients of one batch; the caller frees with ida_free. */
static inline real *gradients(const ida_model *m, ida_acts *a, const ida_batch *b, ida_state *s, double scale, double *loss,
                              real *dx0) {
    real *g = NULL;
    int64_t n;
    OK(IDA_CALLOC(g, m->table.block, "test gradients"));
    OK(ida_model_forward_backward(m, a, b, s, scale, g, loss, &n, ida_act_of(dx0)));
    return g;
}

static inline bool same_bits(const real *a, const real *b, int64_t n) { return memcmp(a, b, (size_t)n * sizeof *a) == 0; }

/* |a - b| / |b| over n elements, in the 2-norm; |a| when b is 0. */
static inline double rel_error(const real *a, const real *b, int64_t n) {
    double e = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        e += d * d;
        s += (double)b[i] * (double)b[i];
    }
    return s > 0 ? sqrt(e / s) : sqrt(e);
}

/* A tensor of a model on the host, by its name. */
static inline real *tensor_of(const ida_model *m, const char *name) {
    const ida_param *p = ida_param_find(&m->table, name);
    if (!p) fail_msg("no tensor %s", name);
    return m->params + p->offset;
}

#endif
