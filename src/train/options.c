/* options.c - defaults and ranges of the training options. Nothing is opened here. */
#include "train/trainer.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "ops/backend.h"

void ida_train_defaults(ida_train_options *o) {
    memset(o, 0, sizeof *o);
    ida_config_preset("125m", IDA_MIXER_INTERDOMAIN, &o->config);
    o->seed = 42;
    o->device = "cpu";
    o->dtype = IDA_F32;
    o->seq_len = o->config.max_position;
    o->batch = 8;
    o->micro_batch = 8;
    o->steps = 1000;
    o->warmup_steps = -1;
    o->lr = 3e-3;
    o->min_lr = 1e-5;
    o->ssm_lr_max = 1e-3;
    o->beta1 = 0.9;
    o->beta2 = 0.95;
    o->eps = 1e-8;
    o->weight_decay = 0.1;
    o->clip = 1.0;
    o->max_skips = 10;
}

ida_status ida_train_recipe(const char *size, ida_train_options *o) {
    IDA_NEED(size);
    IDA_NEED(o);
    static const struct { const char *size; double tokens, lr; } recipe[] = {
        {"125m", 2.5e9, 3e-3}, {"350m", 7e9, 1.5e-3}, {"760m", 15e9, 1e-3}, {"1.3b", 26e9, 1e-3}};
    for (size_t i = 0; i < sizeof recipe / sizeof *recipe; i++) {
        if (strcmp(size, recipe[i].size) != 0) continue;
        o->seq_len = 4096;
        o->batch = 524288 / o->seq_len;
        o->steps = (int64_t)(recipe[i].tokens / 524288);
        o->warmup_steps = -1;
        o->lr = recipe[i].lr;
        o->min_lr = 1e-5;
        o->eval_every = o->save_every = 500;
        o->eval_tokens = (int64_t)10 * 524288;
        o->keep = 3;
        return IDA_OK;
    }
    IDA_FAIL(IDA_E_ARG, "no recipe for \"%.40s\": there are 125m, 350m, 760m, 1.3b", size);
}

static ida_status check_int(const char *name, int64_t value, int64_t lo, int64_t hi) {
    IDA_FAIL_IF(value < lo || value > hi, IDA_E_ARG, "training option %s is %lld, must be %lld..%lld", name, (long long)value,
                (long long)lo, (long long)hi);
    return IDA_OK;
}

static ida_status check_real(const char *name, double value, double lo, double hi) {
    IDA_FAIL_IF(!(value >= lo && value <= hi), IDA_E_ARG, "training option %s is %g, must be %g..%g", name, value, lo, hi);
    return IDA_OK;
}

ida_status ida_train_check(const ida_train_options *o) {
    const int64_t most = INT64_C(1) << 40;
    IDA_TRY(check_int("seq_len", o->seq_len, 1, INT64_C(1) << 30));
    IDA_TRY(check_int("batch", o->batch, 1, INT64_C(1) << 30));
    IDA_TRY(check_int("micro_batch", o->micro_batch, 1, o->batch));
    IDA_FAIL_IF(o->batch % o->micro_batch != 0, IDA_E_ARG, "micro_batch %lld does not divide batch %lld: give one that does",
                (long long)o->micro_batch, (long long)o->batch);
    IDA_TRY(check_int("steps", o->steps, 1, most));
    IDA_FAIL_IF(o->warmup_steps > o->steps, IDA_E_ARG,
                "warm-up of %lld steps in a run of %lld: give fewer, or -1 for the recipe's",
                (long long)o->warmup_steps, (long long)o->steps);
    IDA_TRY(check_int("warmup_steps", o->warmup_steps, -1, o->steps));
    IDA_TRY(check_real("lr", o->lr, 1e-30, 1e3));
    IDA_TRY(check_real("min_lr", o->min_lr, 0, o->lr));
    IDA_TRY(check_real("ssm_lr_max", o->ssm_lr_max, 0, 1e3));
    IDA_TRY(check_real("beta1", o->beta1, 0, 0.999999999));
    IDA_TRY(check_real("beta2", o->beta2, 0, 0.999999999));
    IDA_TRY(check_real("eps", o->eps, IDA_LEAST_EPS, 1));
    IDA_TRY(check_real("weight_decay", o->weight_decay, 0, 1e3));
    IDA_TRY(check_real("clip", o->clip, 0, 1e30));
    IDA_TRY(check_int("eval_every", o->eval_every, 0, most));
    IDA_TRY(check_int("eval_tokens", o->eval_tokens, 0, INT64_MAX));
    IDA_TRY(check_int("save_every", o->save_every, 0, most));
    IDA_TRY(check_int("keep", o->keep, 0, most));
    IDA_TRY(check_int("max_skips", o->max_skips, 0, most));
    int64_t product;
    IDA_FAIL_IF(!ida_mul64(o->batch, o->seq_len, &product) || product > most || !ida_mul64(o->steps, o->batch, &product),
                IDA_E_ARG, "%lld sequences of %lld tokens in a step are too many", (long long)o->batch, (long long)o->seq_len);
    IDA_TRY(ida_device_check(o->device ? o->device : "cpu", o->dtype));
    return ida_config_check(&o->config);
}
