/* optim.c - AdamW over the parameter groups of docs/method.md section 8, and the norm that guards and clips its gradient.
 * Not here: the rate of a step (schedule.c), the decision to skip (trainer.c). */
#include "train/trainer.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"

void ida_optim_init(ida_optim *a, const ida_train_options *o, const ida_param_table *t) {
    memset(a, 0, sizeof *a);
    for (int g = 0; g < IDA_N_GROUPS; g++) a->groups[g].lr_scale = 1.0;
    a->groups[IDA_GROUP_MATRIX].weight_decay = o->weight_decay;
    if (o->ssm_lr_max < o->lr) a->groups[IDA_GROUP_SSM].lr_scale = o->ssm_lr_max / o->lr;
    for (int64_t i = 0; i < t->n; i++) {
        a->groups[t->params[i].group].n_tensors++;
        a->groups[t->params[i].group].numel += t->params[i].numel;
    }
}

ida_status ida_optim_describe(const ida_optim *a, const ida_train_options *o, ida_group g, ida_buf *out) {
    const ida_optim_group *p = &a->groups[g];
    return ida_buf_addf(out, "group %-6s  tensors %5lld  parameters %13lld  lr %-8.3g  weight decay %g", ida_group_name(g),
                        (long long)p->n_tensors, (long long)p->numel, p->lr_scale * o->lr, p->weight_decay);
}

ida_status ida_block_norm(const ida_device *dev, const ida_param_table *t, const float *block, double *norm, int64_t *bad) {
    double sum = 0;
    *bad = -1;
    for (int64_t i = 0; i < t->n; i++) {
        double s = 0;
        IDA_TRY(dev->ops->sqsum(dev, &s, block + t->params[i].offset, t->params[i].numel));
        if (!isfinite(s)) *bad = i;
        sum += s;
    }
    *norm = sqrt(sum);
    return IDA_OK;
}

ida_status ida_optim_update(const ida_optim *a, const ida_train_options *o, const ida_device *dev, const ida_param_table *t,
                            float *params, float *m, float *v, const float *grads, double lr, double gscale, int64_t updates) {
    for (int64_t i = 0; i < t->n; i++) {
        const ida_param *p = &t->params[i];
        const ida_optim_group *g = &a->groups[p->group];
        ida_adamw_args args = { .lr = lr * g->lr_scale, .beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps,
                                .weight_decay = g->weight_decay, .gscale = gscale, .t = updates };
        IDA_TRY(dev->ops->adamw(dev, params + p->offset, m + p->offset, v + p->offset, grads + p->offset, p->numel, &args));
    }
    return IDA_OK;
}
