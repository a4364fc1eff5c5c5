/* bench_model.c - a model with a batch to train on, for the benches that time whole steps; and the check that such steps are
 * right. */
#include <math.h>
#include <string.h>

#include "core/rng.h"
#include "eval/bench.h"

ida_status ida_bench_model_new(const ida_config *cfg, const ida_device *dev, int64_t T, bool training, ida_bench_model *out) {
    ida_status st;
    ida_bench_model *m = out;
    *m = (ida_bench_model){.T = T, .cu = {0, T}};
    IDA_TRY_GOTO(ida_model_new(cfg, dev ? dev : ida_cpu_device(), NULL, &m->model));
    IDA_TRY_GOTO(ida_param_init(cfg, &m->model->table, 42, m->model->params));
    IDA_TRY_GOTO(ida_model_prepare(m->model));
    IDA_TRY_GOTO(ida_acts_new(cfg, T, 1, training, &m->acts));
    if (training) IDA_TRY_GOTO(IDA_CALLOC(m->grads, m->model->table.block, "gradients"));
    IDA_TRY_GOTO(IDA_ALLOC(m->ids, T + 1, "token ids"));
    for (int64_t i = 0; i <= T; i++)
        m->ids[i] = (int32_t)(ida_uniform(7, IDA_STREAM_STUDY, (uint64_t)i) * (double)cfg->vocab_size);
    m->targets = m->ids + 1;
    m->batch = (ida_batch){.n_tokens = T, .ids = m->ids, .targets = m->targets, .seqs = {1, m->cu, m->pos0}};
    return IDA_OK;
out:
    ida_bench_model_free(m);
    return st;
}

void ida_bench_model_free(ida_bench_model *m) {
    ida_acts_free(m->acts);
    ida_free(m->grads);
    ida_free(m->ids);
    ida_model_free(m->model);
    memset(m, 0, sizeof *m);
}

ida_status ida_bench_model_step(void *arg) {
    ida_bench_model *m = arg;
    double sum = 0;
    int64_t n = 0;
    memset(m->grads, 0, (size_t)m->model->table.block * sizeof *m->grads);
    m->batch.seqs.cu = m->cu; /* the struct may have been copied since it was made */
    m->batch.seqs.pos0 = m->pos0;
    IDA_TRY(ida_model_forward_backward(m->model, m->acts, &m->batch, NULL, 1.0 / (double)m->T, m->grads, &sum, &n, NULL));
    m->loss = sum / (double)n;
    return IDA_OK;
}

ida_status ida_bench_check_grads(ida_mixer_kind mixer, double *error) {
    ida_config cfg;
    ida_bench_model a = {0}, b = {0};
    ida_status st;
    IDA_TRY(ida_config_preset("tiny", mixer, &cfg));
    IDA_TRY_GOTO(ida_bench_model_new(&cfg, NULL, 200, true, &a));
    IDA_TRY_GOTO(ida_bench_model_new(&cfg, &ida_ref_device, 200, true, &b));
    IDA_TRY_GOTO(ida_bench_model_step(&a));
    IDA_TRY_GOTO(ida_bench_model_step(&b));
    *error = 0;
    for (int64_t i = 0; i < a.model->table.n; i++) {
        const ida_param *p = &a.model->table.params[i];
        *error = fmax(*error, ida_max_error(a.grads + p->offset, b.grads + p->offset, p->numel));
    }
    *error = fmax(*error, fabs(a.loss - b.loss));
out:
    ida_bench_model_free(&a);
    ida_bench_model_free(&b);
    return st;
}
