/* train.c - one training step of a preset on one sequence: whole, by part, and on one thread against all. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/threads.h"
#include "bench/bench.h"

const ida_bench_key ida_bench_train_keys[] = {{"preset", "125m", "the shape"},
                                              {"mixer", "interdomain", "the mixer"},
                                              {"T", "2048", "tokens in a row"},
                                              {"B", "1", "rows in the step"},
                                              {"reps", "10", "timed steps"},
                                              {"device", "cpu", "cpu, cuda or cuda:N"},
                                              {"dtype", "auto", "f32, bf16 or auto: bf16 on a GPU"},
                                              {"activation_checkpointing", "0", "1: keep layer inputs only"},
                                              {NULL, NULL, NULL}};
const ida_bench_key ida_bench_threads_keys[] = {{"preset", "demo", "the shape"},
                                                {"mixer", "interdomain", "the mixer"},
                                                {"T", "2048", "tokens in the step"},
                                                {"reps", "10", "timed steps"},
                                                {NULL, NULL, NULL}};

typedef struct step {
    ida_bench_model m;
    float *moments; /* m, v, on the device */
    int64_t t;
    double total; /* seconds of all calls since the parts' times were reset */
} step;

static ida_status body(void *arg) {
    step *s = arg;
    double begun = ida_now();
    const ida_model *m = s->m.model;
    const ida_device *dev = m->dev;
    int64_t n = m->table.block;
    double sum = 0;
    IDA_TRY(ida_bench_model_step(&s->m));
    IDA_TRY(dev->ops->sqsum(dev, &sum, s->m.grads, &(ida_span){0, n}, 1));
    ida_adamw_args a = {.lr = 1e-4,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .weight_decay = 0.1,
                        .gscale = sum > 1 ? 1 / sqrt(sum) : 1,
                        .t = ++s->t,
                        .w = ida_model_rounds(m) ? m->matrices : NULL};
    IDA_TRY(dev->ops->adamw(dev, m->params, s->moments, s->moments + n, s->m.grads, n, &a));
    IDA_TRY(ida_dev_sync(dev));
    s->total += ida_now() - begun;
    return IDA_OK;
}

static ida_status new_step(step *s, const ida_config *cfg, const ida_device *dev, int64_t B, int64_t T, ida_acts_kind kind) {
    IDA_TRY(ida_bench_model_new(cfg, dev, B, T, kind, &s->m));
    return IDA_DEV_CALLOC(s->m.model->dev, s->moments, 2 * s->m.model->table.block, "optimiser moments");
}
static void free_step(step *s) {
    if (s->m.model) ida_dev_free(s->m.model->dev, s->moments);
    ida_bench_model_free(&s->m);
}

/* Shares of profiled steps, which wait at the borders of the parts where the device has a queue. */
static ida_status parts(ida_bench_run *b, step *s, double error, double seconds) {
    static const char *const part_name[IDA_N_PARTS] = {"products", "mixer", "norms", "head and loss", "other"};
    double part[IDA_N_PARTS], rest = 1;
    ida_acts_times(s->m.acts, part);
    for (int i = 0; i < IDA_N_PARTS; i++) {
        double share = part[i] / s->total;
        ida_row_real(ida_bench_row(b, part_name[i], true, error, share * seconds, 0), "share", share);
        rest -= share;
    }
    ida_row_real(ida_bench_row(b, "optimiser and the rest", true, error, rest * seconds, 0), "share", rest);
    ida_row_real(b->top, "mixer_share", part[IDA_PART_MIXER] / s->total);
    return IDA_OK;
}

ida_status ida_bench_train(ida_bench_run *b) {
    step s = {0};
    ida_config cfg;
    ida_model_info info;
    const ida_device *dev = NULL;
    double rate = 0, error = 0, seconds = 0;
    int64_t B, T, keep_little;
    IDA_TRY(ida_bench_int(b, "T", 1, 1 << 20, &T));
    IDA_TRY(ida_bench_int(b, "B", 1, 1 << 16, &B));
    IDA_TRY(ida_bench_int(b, "activation_checkpointing", 0, 1, &keep_little));
    IDA_TRY(ida_bench_config(b, T, &cfg));
    IDA_TRY(ida_bench_device(b, &dev));
    ida_status st = ida_bench_check_grads(dev, (ida_mixer_kind)cfg.layer_mixer[0], &error);
    if (st) goto out;
    bool check = error < ida_bench_grads_limit(dev);
    IDA_TRY_GOTO(ida_config_info(&cfg, &info));
    IDA_TRY_GOTO(ida_bench_product_rate(b, dev, &rate));
    IDA_TRY_GOTO(new_step(&s, &cfg, dev, B, T, keep_little ? IDA_ACTS_RECOMPUTE : IDA_ACTS_TRAINING));
    IDA_TRY_GOTO(body(&s));
    json_object_set_new(b->top, "first_loss", json_real(s.m.loss));
    ida_acts_times_reset(s.m.acts);
    s.total = 0;
    IDA_TRY_GOTO(ida_bench_time(b, "training step", body, &s, &seconds));
    double flops = 3 * (double)info.flops_per_token * (double)(B * T);
    json_t *row = ida_bench_row(b, "step", check && isfinite(s.m.loss), error, seconds, flops / rate);
    ida_row_real(b->top, "loss", s.m.loss);
    json_object_set_new(b->top, "device", json_string(dev->name));
    if (!check) goto out;
    ida_row_real(row, "tokens_per_s", (double)(B * T) / seconds);
    ida_row_real(row, "gflops", 1e-9 * flops / seconds);
    ida_row_real(row, "mfu", flops / seconds / rate);
    ida_row_real(b->top, "product_gflops", 1e-9 * rate);
    if (!ida_on_host(dev)) { /* the steps above did not wait inside */
        ida_acts_profile(s.m.acts, true);
        ida_acts_times_reset(s.m.acts);
        s.total = 0;
        for (int64_t i = 0; i < b->reps; i++) IDA_TRY_GOTO(body(&s));
    }
    st = parts(b, &s, error, seconds);
out:
    free_step(&s);
    return st;
}

/* Seconds of a step on `threads`, and its gradients for the check that they are the same bits. */
static ida_status on_threads(ida_bench_run *b, step *s, int threads, float *grads, double *seconds) {
    char what[32];
    IDA_TRY(ida_set_threads(threads));
    IDA_TRY(ida_bench_model_step(&s->m));
    memcpy(grads, s->m.grads, (size_t)s->m.model->table.block * sizeof *grads);
    snprintf(what, sizeof what, "step, %d thread%s", threads, threads == 1 ? "" : "s");
    return ida_bench_time(b, what, ida_bench_model_step, &s->m, seconds);
}

ida_status ida_bench_threads(ida_bench_run *b) {
    step s = {0};
    ida_config cfg;
    int most = ida_get_threads();
    float *one = NULL, *all = NULL;
    double t1 = 0, tn = 0;
    int64_t T;
    IDA_TRY(ida_bench_int(b, "T", 1, 1 << 20, &T));
    IDA_TRY(ida_bench_config(b, T, &cfg));
    ida_status st = new_step(&s, &cfg, NULL, 1, T, IDA_ACTS_TRAINING);
    if (st) goto out;
    int64_t n = s.m.model->table.block;
    IDA_TRY_GOTO(IDA_ALLOC(one, n, "gradients"));
    IDA_TRY_GOTO(IDA_ALLOC(all, n, "gradients"));
    IDA_TRY_GOTO(on_threads(b, &s, 1, one, &t1));
    IDA_TRY_GOTO(on_threads(b, &s, most, all, &tn));
    bool same = memcmp(one, all, (size_t)n * sizeof *one) == 0;
    ida_row_int(ida_bench_row(b, "step, 1 thread", same, ida_max_error(all, one, n), t1, 0), "threads", 1);
    ida_row_int(ida_bench_row(b, "step, all threads", same, ida_max_error(all, one, n), tn, t1 / most), "threads", most);
    if (same) ida_row_real(b->top, "scaling", t1 / tn);
    json_object_set_new(b->top, "check_is", json_string("gradients are the same bits on 1 thread and on all"));
out:
    ida_set_threads(most);
    ida_free(one);
    ida_free(all);
    free_step(&s);
    return st;
}
