/* bench_train.c - one training step of a preset on one sequence: whole, by part, and on one thread against all. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/threads.h"
#include "eval/bench.h"

const ida_bench_key ida_bench_train_keys[] = {{"preset", "125m", "the shape"},
                                              {"mixer", "interdomain", "the mixer"},
                                              {"T", "2048", "tokens in the step"},
                                              {"reps", "10", "timed steps"},
                                              {NULL, NULL, NULL}};
const ida_bench_key ida_bench_threads_keys[] = {{"preset", "demo", "the shape"},
                                                {"mixer", "interdomain", "the mixer"},
                                                {"T", "2048", "tokens in the step"},
                                                {"reps", "10", "timed steps"},
                                                {NULL, NULL, NULL}};

/* Green: gradients of a tiny model agree with ref to 2e-4 of each tensor's largest (fp32 sums over 200 tokens). */
static const double GRAD_TOLERANCE = 2e-4;

typedef struct step {
    ida_bench_model m;
    float *moments; /* m, v */
    int64_t t;
    double total; /* seconds of all calls since the parts' times were reset */
} step;

static ida_status body(void *arg) {
    step *s = arg;
    double begun = ida_now();
    const ida_device *dev = s->m.model->dev;
    int64_t n = s->m.model->table.block;
    double sum = 0;
    IDA_TRY(ida_bench_model_step(&s->m));
    IDA_TRY(dev->ops->sqsum(dev, &sum, s->m.grads, n));
    ida_adamw_args a = {.lr = 1e-4,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .weight_decay = 0.1,
                        .gscale = sum > 1 ? 1 / sqrt(sum) : 1,
                        .t = ++s->t};
    IDA_TRY(dev->ops->adamw(dev, s->m.model->params, s->moments, s->moments + n, s->m.grads, n, &a));
    s->total += ida_now() - begun;
    return IDA_OK;
}

static ida_status setup(ida_bench_run *b, step *s, ida_config *cfg) {
    int64_t T;
    IDA_TRY(ida_bench_int(b, "T", 1, 1 << 20, &T));
    IDA_TRY(ida_bench_config(b, T, cfg));
    IDA_TRY(ida_bench_model_new(cfg, NULL, T, true, &s->m));
    return IDA_CALLOC(s->moments, 2 * s->m.model->table.block, "optimiser moments");
}

ida_status ida_bench_train(ida_bench_run *b) {
    static const char *const part_name[IDA_N_PARTS] = {"products", "mixer", "norms", "head and loss", "other"};
    step s = {0};
    ida_config cfg;
    ida_model_info info;
    double rate = 0, error = 0, seconds = 0, part[IDA_N_PARTS];
    ida_status st = setup(b, &s, &cfg);
    if (st) goto out;
    IDA_TRY_GOTO(ida_config_info(&cfg, &info));
    IDA_TRY_GOTO(ida_bench_check_grads((ida_mixer_kind)cfg.layer_mixer[0], &error));
    bool check = error < GRAD_TOLERANCE;
    IDA_TRY_GOTO(ida_bench_blas_rate(b, &rate));
    IDA_TRY_GOTO(body(&s));
    ida_acts_times_reset(s.m.acts);
    s.total = 0;
    IDA_TRY_GOTO(ida_bench_time(b, "training step", body, &s, &seconds));
    ida_acts_times(s.m.acts, part);
    double T = (double)s.m.T, flops = 3 * (double)info.flops_per_token * T;
    json_t *row = ida_bench_row(b, "step", check && isfinite(s.m.loss), error, seconds, flops / rate);
    ida_row_real(b->top, "loss", s.m.loss);
    if (!check) goto out;
    ida_row_real(row, "tokens_per_s", T / seconds);
    ida_row_real(row, "gflops", 1e-9 * flops / seconds);
    /* shares of all calls, warm-up included, as the parts' clocks count; seconds are shares of the median step */
    double rest = 1;
    for (int i = 0; i < IDA_N_PARTS; i++) {
        double share = part[i] / s.total;
        ida_row_real(ida_bench_row(b, part_name[i], true, error, share * seconds, 0), "share", share);
        rest -= share;
    }
    ida_row_real(ida_bench_row(b, "optimiser and the rest", true, error, rest * seconds, 0), "share", rest);
    ida_row_real(b->top, "mixer_share", part[IDA_PART_MIXER] / s.total);
out:
    ida_free(s.moments);
    ida_bench_model_free(&s.m);
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
    ida_status st = setup(b, &s, &cfg);
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
    ida_free(s.moments);
    ida_bench_model_free(&s.m);
    return st;
}
