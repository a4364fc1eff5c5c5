/* train.c - one training step of a preset on one sequence: whole, by part, and on one thread against all. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "idattn/train.h"
#include "core/threads.h"
#include "bench/bench.h"

typedef struct train_options {
    const char *preset, *device;
    ida_mixer_kind mixer;
    ida_dtype dtype;
    int64_t T, B, reps;
    bool keep_little;
} train_options;
static const ida_field train_rows[] = {
    IDA_ROW_PRESET(train_options, "125m", "the shape"),
    IDA_ROW_MIXER(train_options),
    IDA_ROW_INT(train_options, "T", T, 2048, 1, 1 << 20, .help = "tokens in a row"),
    IDA_ROW_INT(train_options, "B", B, 1, 1, 1 << 16, .help = "rows in the step"),
    IDA_ROW_REPS(train_options, 10, "timed steps"),
    IDA_ROW_DEVICE(train_options),
    IDA_ROW_DTYPE(train_options, 0),
    IDA_ROW_BOOL(train_options, "activation_checkpointing", keep_little, false, .help = "keep layer inputs only"),
};
typedef struct threads_options { const char *preset; ida_mixer_kind mixer; int64_t T, reps; } threads_options;
static const ida_field threads_rows[] = {
    IDA_ROW_PRESET(threads_options, "demo", "the shape"),
    IDA_ROW_MIXER(threads_options),
    IDA_ROW_INT(threads_options, "T", T, 2048, 1, 1 << 20, .help = "tokens in the step"),
    IDA_ROW_REPS(threads_options, 10, "timed steps"),
};

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
    ida_train_options o;
    ida_train_defaults(&o);
    IDA_TRY(ida_bench_model_step(&s->m));
    IDA_TRY(dev->ops->sqsum(dev, &sum, s->m.grads, &(ida_span){0, n}, 1));
    ida_adamw_args a = {.lr = 1e-4,
                        .beta1 = o.beta1,
                        .beta2 = o.beta2,
                        .eps = o.eps,
                        .weight_decay = o.weight_decay,
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

static ida_status run_train(ida_bench_run *b) {
    const train_options *o = b->options;
    step s = {0};
    ida_config cfg;
    ida_model_info info;
    const ida_device *dev = NULL;
    double rate = 0, error = 0, seconds = 0;
    const int64_t B = o->B, T = o->T;
    IDA_TRY(ida_bench_config(o->preset, o->mixer, T, &cfg));
    IDA_TRY(ida_bench_device(o->device, o->dtype, &dev));
    ida_status st = ida_bench_check_grads(dev, (ida_mixer_kind)cfg.layer_mixer[0], &error);
    if (st) goto out;
    bool check = error < ida_bench_grads_limit(dev);
    IDA_TRY_GOTO(ida_config_info(&cfg, &info));
    IDA_TRY_GOTO(ida_bench_product_rate(b, dev, &rate));
    IDA_TRY_GOTO(new_step(&s, &cfg, dev, B, T, o->keep_little ? IDA_ACTS_RECOMPUTE : IDA_ACTS_TRAINING));
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

static ida_status run_threads(ida_bench_run *b) {
    const threads_options *o = b->options;
    step s = {0};
    ida_config cfg;
    int most = ida_get_threads();
    float *one = NULL, *all = NULL;
    double t1 = 0, tn = 0;
    IDA_TRY(ida_bench_config(o->preset, o->mixer, o->T, &cfg));
    ida_status st = new_step(&s, &cfg, NULL, 1, o->T, IDA_ACTS_TRAINING);
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

IDA_BENCH(train, "train", train_options, train_rows, run_train);
IDA_BENCH(threads, "threads", threads_options, threads_rows, run_threads);
