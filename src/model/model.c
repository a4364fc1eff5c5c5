/* model.c - the model object: a parameter block, the pointers into it, and the step form's constants.
 * Not here: the public calls (create.c), files (io). */
#include "model/model.h"

#include <string.h>

#include "core/mem.h"
#include "model/shape.h"

ida_status ida_model_new(const ida_config *cfg, const ida_device *dev, real *params, ida_model **out) {
    ida_model *m = NULL;
    ida_status st = IDA_OK;
    IDA_TRY(ida_config_check(cfg));
    IDA_TRY(IDA_CALLOC(m, 1, "model"));
    m->cfg = *cfg;
    m->dev = dev;
    IDA_TRY_GOTO(ida_param_table_build(cfg, &m->table));
    IDA_TRY_GOTO(IDA_ALLOC(m->layers, cfg->n_layers, "model"));
    if (!params) {
        IDA_TRY_GOTO(IDA_ALLOC(m->params, m->table.block, "model weights"));
        m->owns_params = true;
        for (int64_t i = 0; i < m->table.n; i++) { /* the gaps between tensors are 0 from the start */
            const ida_param *p = &m->table.params[i];
            memset(m->params + p->offset + p->numel, 0, (size_t)(ida_round16(p->numel) - p->numel) * sizeof(real));
        }
    } else m->params = params;
    ida_model_bind(cfg, &m->table, m->params, m->layers, &m->embed, &m->norm, &m->lm_head);
    *out = m;
    return IDA_OK;
out:
    ida_model_free(m);
    return st;
}

/* Elements of one layer's constants: Lam and Bbar [G,M], and G [G,M,M] or the read-out c [H,M]. */
static int64_t prep_size(const ida_shape *s) {
    if (s->softmax) return 0;
    return ida_round16(4 * s->g * s->m + 2 * (s->linear ? s->h * s->m : s->g * s->m * s->m));
}

ida_status ida_model_prepare(ida_model *m) {
    const ida_config *c = &m->cfg;
    if (!m->prep) {
        int64_t total = 0;
        for (int64_t l = 0; l < c->n_layers; l++) {
            ida_shape s = ida_layer_shape(c, l);
            total += prep_size(&s);
        }
        ida_ssm_prep *prep = NULL;
        IDA_TRY(IDA_CALLOC(prep, c->n_layers, "step constants"));
        ida_status st = IDA_ALLOC(m->prep_block, total, "step constants");
        if (st != IDA_OK) {
            ida_free(prep);
            return st;
        }
        m->prep = prep;
    }
    real *at = m->prep_block;
    for (int64_t l = 0; l < c->n_layers; l++) {
        ida_shape s = ida_layer_shape(c, l);
        if (s.softmax) continue;
        const ida_layer_weights *w = &m->layers[l];
        ida_ssm ssm = {w->log_dt, w->a_log, w->a_imag, w->c_re, w->c_im, c->discretization};
        int64_t gm = s.g * s.m;
        m->prep[l] = (ida_ssm_prep){.lam_re = at,
                                    .lam_im = at + gm,
                                    .b_re = at + 2 * gm,
                                    .b_im = at + 3 * gm,
                                    .g_re = at + 4 * gm,
                                    .g_im = at + 4 * gm + (s.linear ? s.h * s.m : gm * s.m)};
        IDA_REF(ssm_prepare)(&ssm, s.g, s.m, c->readout, s.linear ? w->w : NULL, &m->prep[l]);
        at += prep_size(&s);
    }
    return IDA_OK;
}

void ida_model_free(ida_model *m) {
    if (!m) return;
    if (m->owns_params) ida_free(m->params);
    ida_free(m->layers);
    ida_free(m->prep);
    ida_free(m->prep_block);
    ida_param_table_free(&m->table);
    ida_free(m);
}
