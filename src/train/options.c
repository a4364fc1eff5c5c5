/* options.c - the training options: table, defaults, the paper's recipes, checks. Nothing is opened here. */
#include "train/trainer.h"

#include "core/mem.h"
#include "core/place.h"
#include "model/config.h"
#include "ops/backend.h"

#define MOST_STEPS 1099511627776.0 /* 2^40: of steps, and of tokens in a step */
#define MOST_ROWS (1 << 30)

#define T ida_train_options
#define RESULT .flags = IDA_FIELD_RESULT
/* In the order of the help; in files the order is that of the struct. */
static const ida_field rows[] = {
    IDA_ROW_TEXT(T, "data", data_dir, NULL, "PATH", .flags = IDA_FIELD_REQUIRED, .letter = 'd',
                 .help = "packed set, or llm.c, nanoGPT or Megatron shards"),
    IDA_ROWS_SOURCE(T),
    IDA_ROW_TEXT(T, "out", out_dir, NULL, "DIR", .flags = IDA_FIELD_REQUIRED, .letter = 'o', .help = "run folder"),
    IDA_ROW_BOOL(T, "resume", resume, false,
                 .help = "go on from the newest whole checkpoint in OUT (step 0 when there is none)"),
    IDA_ROW_INT(T, "steps", steps, 1000, 1, MOST_STEPS, RESULT, .help = "optimiser steps"),
    IDA_ROW_INT(T, "seq_len", seq_len, 0, 1, MOST_ROWS, .flags = IDA_FIELD_RESULT | IDA_FIELD_DERIVED, .arg = "T",
                .help = "tokens in a sequence [the shape's max_position_embeddings]"),
    IDA_ROW_INT(T, "batch", batch, 8, 1, MOST_ROWS, RESULT, .help = "sequences in a step"),
    IDA_ROW_INT(T, "micro_batch", micro_batch, 8, 1, MOST_ROWS, RESULT,
                .help = "sequences in one forward and backward pass; divides the batch; the default gives way"),
    IDA_ROW_REAL(T, "lr", lr, 3e-3, 1e-30, 1e3, RESULT, .arg = "RATE", .help = "peak learning rate"),
    IDA_ROW_REAL(T, "min_lr", min_lr, 1e-5, 0, 1e3, RESULT, .arg = "RATE", .help = "learning rate at the last step"),
    IDA_ROW_REAL(T, "ssm_lr_max", ssm_lr_max, 1e-3, 0, 1e3, RESULT, .arg = "RATE",
                 .help = "cap for the state-space parameters"),
    IDA_ROW_INT(T, "warmup_steps", warmup_steps, -1, -1, MOST_STEPS, RESULT, .help = "linear warm-up",
                .note = "-1 = 375M tokens, at most 15% of the run"),
    IDA_ROW_REAL(T, "weight_decay", weight_decay, 0.1, 0, 1e3, RESULT, .help = "on matrices only"),
    IDA_ROW_REAL(T, "beta1", beta1, 0.9, 0, 0.999999999, RESULT, .help = "AdamW"),
    IDA_ROW_REAL(T, "beta2", beta2, 0.95, 0, 0.999999999, RESULT, .help = "AdamW"),
    IDA_ROW_REAL(T, "eps", eps, 1e-8, IDA_LEAST_EPS, 1, RESULT, .help = "AdamW"),
    IDA_ROW_REAL(T, "clip", clip, 1, 0, 1e30, RESULT, .help = "largest gradient norm", .note = "0 = no limit"),
    IDA_ROW_SEED(T, "seed", seed, 42, RESULT, .help = "of initial weights and sample order"),
    IDA_ROW_INT(T, "eval_every", eval_every, 0, 0, MOST_STEPS, .help = "steps between evaluations",
                .note = "0 = only at the end"),
    IDA_ROW_INT(T, "eval_tokens", eval_tokens, 0, 0, IDA_ANY_INT, .help = "validation tokens used", .note = "0 = all"),
    IDA_ROW_INT(T, "save_every", save_every, 0, 0, MOST_STEPS, .help = "steps between checkpoints",
                .note = "0 = only at the end"),
    IDA_ROW_INT(T, "keep", keep, 0, 0, MOST_STEPS, .arg = "K", .help = "newest checkpoints kept", .note = "0 = all"),
    IDA_ROW_BOOL(T, "activation_checkpointing", activation_checkpointing, false,
                 .help = "keep a layer's input only and form the rest again in the backward pass: less memory, the "
                         "same bits, slower"),
    IDA_ROW_INT(T, "max_skips", max_skips, 10, 0, MOST_STEPS,
                .help = "steps skipped in a row for a non-finite gradient before training stops"),
    IDA_ROW_DEVICE(T),
    IDA_ROW_DTYPE(T, IDA_FIELD_RESULT | IDA_FIELD_MAY_CHANGE | IDA_FIELD_LATER),
};
#undef RESULT
#undef T
const ida_fields ida_train_fields = IDA_FIELDS("train", "training option ", ida_train_options, rows);

void ida_train_defaults(ida_train_options *o) {
    ida_fields_defaults(&ida_train_fields, o);
    ida_config_preset("125m", IDA_MIXER_DEFAULT, &o->config);
    o->seq_len = o->config.max_position;
    o->dtype = ida_device_dtype(o->device);
}

/* ---- recipes (docs/method.md section 8) */

#define RECIPES(R) R("125m", 2.5e9, 3e-3) R("350m", 7e9, 1.5e-3) R("760m", 15e9, 1e-3) R("1.3b", 26e9, 1e-3)
#define NAME(size, tokens, lr) size,
#define FIGURES(size, tokens, lr) {tokens, lr},
static const char *const recipe_names[] = {RECIPES(NAME) NULL};
static const struct { double tokens, lr; } recipes[] = {RECIPES(FIGURES)};

static const ida_field recipe_rows[] = {
    IDA_ROW_TEXT(ida_recipe_options, "recipe", recipe, NULL, NULL, .names = recipe_names,
                 .help = "the paper's tokens, batch and rates for this size, and its preset when no shape is given; "
                         "other options still count"),
};
const ida_fields ida_recipe_fields = IDA_FIELDS("recipe", "", ida_recipe_options, recipe_rows);

ida_status ida_train_recipe(const char *size, ida_train_options *o) {
    enum { STEP_TOKENS = 524288 };
    IDA_NEED(size);
    IDA_NEED(o);
    int i = ida_names_find(recipe_names, size);
    if (i < 0) {
        char list[80];
        ida_names_join(recipe_names, 0, NULL, list, sizeof list);
        IDA_FAIL(IDA_E_ARG, "no recipe for \"%.40s\": there are %s", size, list);
    }
    o->seq_len = 4096;
    o->batch = STEP_TOKENS / o->seq_len;
    o->steps = (int64_t)(recipes[i].tokens / STEP_TOKENS);
    o->lr = recipes[i].lr;
    ida_fields_reset(&ida_train_fields, o, "warmup_steps");
    ida_fields_reset(&ida_train_fields, o, "min_lr");
    o->eval_every = o->save_every = 500;
    o->eval_tokens = (int64_t)10 * STEP_TOKENS;
    o->keep = 3;
    return IDA_OK;
}

ida_status ida_train_check(const ida_train_options *o) {
    IDA_TRY(ida_fields_check(&ida_train_fields, o));
    IDA_TRY(ida_fields_check_one(&ida_train_fields, o, "seq_len"));
    IDA_FAIL_IF(o->batch % o->micro_batch != 0, IDA_E_ARG, "micro_batch %lld does not divide batch %lld: give one that does",
                (long long)o->micro_batch, (long long)o->batch);
    IDA_FAIL_IF(o->warmup_steps > o->steps, IDA_E_ARG,
                "warm-up of %lld steps in a run of %lld: give fewer, or -1 for the recipe's",
                (long long)o->warmup_steps, (long long)o->steps);
    IDA_FAIL_IF(o->min_lr > o->lr, IDA_E_ARG, "training option min_lr is %.10g, must be at most lr, which is %.10g",
                o->min_lr, o->lr);
    int64_t product;
    IDA_FAIL_IF(!ida_mul64(o->batch, o->seq_len, &product) || (double)product > MOST_STEPS ||
                    !ida_mul64(o->steps, o->batch, &product),
                IDA_E_ARG, "%lld sequences of %lld tokens in a step are too many", (long long)o->batch, (long long)o->seq_len);
    IDA_TRY(ida_device_check(o->device ? o->device : IDA_DEFAULT_DEVICE, o->dtype));
    return ida_config_check(&o->config);
}
