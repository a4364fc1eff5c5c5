/* model.c - a model with a batch to train on, for the benches that time whole steps; and the check that such steps are
 * right. */
#include <math.h>
#include <string.h>

#include "core/rng.h"
#include "bench/bench.h"
#include "ops/backend.h"

ida_status ida_bench_device(const char *name, ida_dtype dtype, const ida_device **dev) {
    return ida_device_open(name, dtype ? dtype : ida_device_dtype(name), dev);
}

ida_status ida_bench_model_new(const ida_config *cfg, const ida_device *dev, int64_t B, int64_t T, ida_acts_kind kind,
                               ida_bench_model *out) {
    ida_status st;
    ida_bench_model *m = out;
    *m = (ida_bench_model){.T = T};
    IDA_TRY_GOTO(ida_model_create_on(cfg, dev ? dev : ida_cpu_device(), 42, &m->model));
    IDA_TRY_GOTO(ida_acts_new(cfg, m->model->dev, B * T, B, kind, &m->acts));
    if (kind != IDA_ACTS_FORWARD) IDA_TRY_GOTO(IDA_DEV_CALLOC(m->model->dev, m->grads, m->model->table.block, "gradients"));
    IDA_TRY_GOTO(IDA_ALLOC(m->ids, B * T + 1, "token ids"));
    IDA_TRY_GOTO(IDA_ALLOC(m->cu, B + 1, "rows"));
    for (int64_t i = 0; i <= B * T; i++)
        m->ids[i] = (int32_t)(ida_uniform(7, IDA_STREAM_STUDY, (uint64_t)i) * (double)cfg->vocab_size);
    for (int64_t i = 0; i <= B; i++) m->cu[i] = i * T;
    m->targets = m->ids + 1;
    m->batch = (ida_batch){.n_tokens = B * T, .ids = m->ids, .targets = m->targets, .seqs = {.n = B, .cu = m->cu}};
    return IDA_OK;
out:
    ida_bench_model_free(m);
    return st;
}

void ida_bench_model_free(ida_bench_model *m) {
    ida_acts_free(m->acts);
    if (m->model) ida_dev_free(m->model->dev, m->grads);
    ida_free(m->ids);
    ida_free(m->cu);
    ida_model_free(m->model);
    memset(m, 0, sizeof *m);
}

ida_status ida_bench_model_step(void *arg) {
    ida_bench_model *m = arg;
    double sum = 0;
    int64_t n = 0;
    IDA_TRY(ida_dev_zero(m->model->dev, m->grads, m->model->table.block * (int64_t)sizeof *m->grads));
    const double scale = 1.0 / (double)m->batch.n_tokens;
    IDA_TRY(ida_model_forward_backward(m->model, m->acts, &m->batch, NULL, scale, m->grads, &sum, &n, NULL));
    m->loss = sum / (double)n;
    return IDA_OK;
}

bool ida_bench_rounds(const ida_device *dev) { return dev->act_type != IDA_TYPE_F32; }

double ida_bench_grads_limit(const ida_device *dev) { return ida_bench_rounds(dev ? dev : ida_cpu_device()) ? 5e-2 : 2e-4; }

/* Worst tensor, or the norm over all. */
static double gradient_error(const ida_model *m, const float *a, const float *b) {
    double worst = 0, diff = 0, size = 0;
    for (int64_t i = 0; i < m->table.n; i++) {
        const ida_param *p = &m->table.params[i];
        const float *x = a + p->offset, *y = b + p->offset;
        worst = fmax(worst, ida_max_error(x, y, p->numel));
        for (int64_t j = 0; j < p->numel; j++) {
            diff += pow((double)x[j] - (double)y[j], 2);
            size += pow((double)y[j], 2);
        }
    }
    return ida_bench_rounds(m->dev) ? sqrt(diff / size) : worst;
}

ida_status ida_bench_check_grads(const ida_device *dev, ida_mixer_kind mixer, double *error) {
    ida_config cfg;
    ida_bench_model a = {0}, b = {0};
    float *grads = NULL;
    ida_status st;
    IDA_TRY(ida_config_preset("tiny", mixer, &cfg));
    IDA_TRY_GOTO(ida_bench_model_new(&cfg, dev, 1, 200, IDA_ACTS_TRAINING, &a));
    IDA_TRY_GOTO(ida_bench_model_new(&cfg, &ida_ref_device, 1, 200, IDA_ACTS_TRAINING, &b));
    IDA_TRY_GOTO(ida_bench_model_step(&a));
    IDA_TRY_GOTO(ida_bench_model_step(&b));
    IDA_TRY_GOTO(IDA_ALLOC(grads, a.model->table.block, "gradients"));
    IDA_TRY_GOTO(ida_dev_download(a.model->dev, grads, a.grads, a.model->table.block * (int64_t)sizeof *grads));
    *error = fmax(gradient_error(a.model, grads, b.grads), fabs(a.loss - b.loss));
out:
    ida_free(grads);
    ida_bench_model_free(&a);
    ida_bench_model_free(&b);
    return st;
}

typedef struct product { const ida_device *dev; ida_act *x, *w, *y; int64_t n; } product;

static ida_status multiply(void *arg) {
    const product *p = arg;
    const ida_matrix w = ida_matrix_of(p->dev, p->w, p->n, p->n);
    IDA_TRY(p->dev->ops->linear_fwd(p->dev, p->y, p->x, &w, NULL, p->n));
    return ida_dev_sync(p->dev);
}

ida_status ida_bench_product_rate(ida_bench_run *b, const ida_device *dev, double *flops) {
    if (ida_on_host(dev)) return ida_bench_blas_rate(b, flops);
    product p = {.dev = dev, .n = 8192};
    float *host = NULL, *wide = NULL;
    double seconds = 0;
    const int64_t size = p.n * p.n;
    ida_act **const part[] = {&p.x, &p.w, &p.y};
    ida_status st = IDA_ALLOC(host, size, "matrix");
    if (st) goto out;
    ida_bench_fill(host, size, 1, 5);
    IDA_TRY_GOTO(IDA_DEV_ALLOC(dev, wide, size, "matrix"));
    IDA_TRY_GOTO(ida_dev_upload(dev, wide, host, size * (int64_t)sizeof *host));
    for (int i = 0; i < 3; i++) {
        IDA_TRY_GOTO(ida_dev_alloc(dev, (void **)part[i], size, ida_act_bytes(dev, 1), "matrix"));
        IDA_TRY_GOTO(dev->ops->to_act(dev, *part[i], wide, size));
    }
    IDA_TRY_GOTO(ida_bench_time_floor(b, "product 8192 x 8192 x 8192", multiply, &p, &seconds));
    *flops = 2.0 * (double)p.n * (double)size / seconds;
out:
    for (int i = 0; i < 3; i++) ida_dev_free(dev, *part[i]);
    ida_dev_free(dev, wide);
    ida_free(host);
    return st;
}
