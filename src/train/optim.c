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
    double sum = 0, *sums = NULL;
    ida_span *spans = NULL;
    ida_status st = IDA_OK;
    *bad = -1;
    IDA_TRY_GOTO(IDA_ALLOC(sums, t->n, "norm of the gradient"));
    IDA_TRY_GOTO(IDA_ALLOC(spans, t->n, "norm of the gradient"));
    for (int64_t i = 0; i < t->n; i++) spans[i] = (ida_span){t->params[i].offset, t->params[i].numel};
    IDA_TRY_GOTO(dev->ops->sqsum(dev, sums, block, spans, t->n));
    for (int64_t i = 0; i < t->n; i++) {
        if (!isfinite(sums[i])) *bad = i;
        sum += sums[i];
    }
    *norm = sqrt(sum);
out:
    ida_free(sums);
    ida_free(spans);
    return st;
}

ida_status ida_optim_update(const ida_optim *a, const ida_train_options *o, ida_model *model, float *m, float *v,
                            const float *grads, double lr, double gscale, int64_t updates) {
    const ida_device *dev = model->dev;
    for (int64_t i = 0; i < model->table.n; i++) {
        const ida_param *p = &model->table.params[i];
        const ida_optim_group *g = &a->groups[p->group];
        ida_adamw_args args = { .lr = lr * g->lr_scale, .beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps,
                                .weight_decay = g->weight_decay, .gscale = gscale, .t = updates };
        if (ida_model_rounds(model) && p->group == IDA_GROUP_MATRIX)
            args.w = ida_act_at(dev, model->matrices, p->offset);
        const int64_t at = p->offset;
        IDA_TRY(dev->ops->adamw(dev, model->params + at, m + at, v + at, grads + at, p->numel, &args));
    }
    return IDA_OK;
}
