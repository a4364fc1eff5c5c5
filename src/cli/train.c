/* train.c - `idattn train`: options to ida_train_options, events to a bar or JSON lines, signals to an orderly stop.
 * Not here: the training loop. Invariant: an option that is not given keeps the library's default (the table repeats it for the
 * help; a test compares the two). */
#include <string.h>

#include "commands.h"
#include "common.h"

typedef struct view {
    progress p;
    bool json;        /* every event on standard output */
    double last_line; /* of a step, when neither terminal nor --json */
    int64_t step, memory_peak, memory_planned; /* of the last event */
    char saved[1024];
} view;

static const double STEP_LINE_EVERY_S = 5.0;

static const char *event_name(const ida_train_event *e) {
    switch (e->kind) {
    case IDA_EVENT_STEP: return "step";
    case IDA_EVENT_EVAL: return "eval";
    case IDA_EVENT_SAVE: return "save";
    case IDA_EVENT_SKIP: return "skip";
    case IDA_EVENT_NOTE: return "note";
    case IDA_EVENT_POLL: break; /* not shown */
    }
    return "note";
}

static void event_json(const ida_train_event *e, FILE *f) {
    json_t *j = json_pack("{s:s, s:I, s:I}", "event", event_name(e), "step", (json_int_t)e->step, "steps", (json_int_t)e->steps);
    if (!j) return;
    bool step = e->kind == IDA_EVENT_STEP;
    if (step || e->kind == IDA_EVENT_EVAL) {
        json_object_set_new(j, "tokens", json_integer(e->tokens));
        json_object_set_new(j, "loss", json_real(e->loss)); /* json_real refuses NaN: the key is then absent */
    }
    if (e->kind == IDA_EVENT_EVAL && e->bits_per_byte > 0) json_object_set_new(j, "bits_per_byte", json_real(e->bits_per_byte));
    if (step) {
        json_object_set_new(j, "lr", json_real(e->lr));
        json_object_set_new(j, "grad_norm", json_real(e->grad_norm));
        json_object_set_new(j, "tokens_per_s", json_real(e->tokens_per_s));
        json_object_set_new(j, "eta_s", json_real(e->eta_s));
    }
    if (step || e->kind == IDA_EVENT_SAVE) {
        if (e->device_memory_peak_bytes >= 0)
            json_object_set_new(j, "device_memory_peak_bytes", json_integer(e->device_memory_peak_bytes));
        json_object_set_new(j, "device_memory_planned_bytes", json_integer(e->device_memory_planned_bytes));
    }
    if (e->what) json_object_set_new(j, "what", json_string(e->what));
    if (e->text) json_object_set_new(j, "text", json_text(e->text, strlen(e->text)));
    json_dumpf(j, f, JSON_COMPACT | JSON_REAL_PRECISION(9));
    fputc('\n', f);
    fflush(f);
    json_decref(j);
}

static void show(view *v, const ida_train_event *e) {
    char tail[128], rate[16];
    switch (e->kind) {
    case IDA_EVENT_STEP:
        human_count(e->tokens_per_s, rate);
        snprintf(tail, sizeof tail, "loss %.3f, %s tokens/s", e->loss, rate);
        progress_show(&v->p, "training", e->step, e->steps, tail);
        break;
    case IDA_EVENT_EVAL:
        if (e->bits_per_byte > 0)
            progress_line(&v->p, "step %lld: validation loss %.4f (%.4f bits per byte)", (long long)e->step, e->loss,
                          e->bits_per_byte);
        else progress_line(&v->p, "step %lld: validation loss %.4f", (long long)e->step, e->loss);
        break;
    case IDA_EVENT_SAVE: progress_line(&v->p, "step %lld: saved %s", (long long)e->step, e->text ? e->text : ""); break;
    case IDA_EVENT_SKIP:
        progress_line(&v->p, "step %lld: skipped, %s of %s is not finite", (long long)e->step, e->what ? e->what : "?",
                      e->text ? e->text : "?");
        break;
    case IDA_EVENT_NOTE: progress_line(&v->p, "%s", e->text ? e->text : ""); break;
    case IDA_EVENT_POLL: break;
    }
}

static int on_event(void *user, const ida_train_event *e) {
    view *v = user;
    v->step = e->step;
    v->memory_peak = e->device_memory_peak_bytes;
    v->memory_planned = e->device_memory_planned_bytes;
    if (e->kind == IDA_EVENT_POLL) return interrupted();
    if (e->kind == IDA_EVENT_SAVE && e->text) snprintf(v->saved, sizeof v->saved, "%s", e->text);
    if (v->json) event_json(e, stdout);
    if (v->p.quiet) return interrupted();
    if (v->p.terminal) show(v, e);
    else if (!v->json) {
        double now = monotonic_seconds();
        bool due = e->kind != IDA_EVENT_STEP || e->step == e->steps || now - v->last_line >= STEP_LINE_EVERY_S;
        if (due) event_json(e, stderr);
        if (due && e->kind == IDA_EVENT_STEP) v->last_line = now;
    }
    return interrupted();
}

/* A model has the vocabulary and the separator of the data it is trained on, unless --set says otherwise. */
static int config_from_data(const options *o, const char *dir, ida_config *cfg) {
    int64_t n;
    const char *const *set = opt_list(o, "set", &n);
    bool vocab_set = false, eos_set = false;
    for (int64_t i = 0; i < n; i++) {
        vocab_set |= strncmp(set[i], "vocab_size=", 11) == 0;
        eos_set |= strncmp(set[i], "eos_token_id=", 13) == 0;
    }
    char *path = join_path(dir, "manifest.json");
    json_t *j = path ? json_load_file(path, 0, NULL) : NULL;
    if (j) { /* a bad manifest is reported by the library, which checks the whole set */
        json_t *vocab = json_object_get(j, "vocab_size"), *sep = json_object_get(json_object_get(j, "separator"), "id");
        if (!vocab_set && json_is_integer(vocab)) cfg->vocab_size = json_integer_value(vocab);
        if (!eos_set && json_is_integer(sep)) cfg->eos_id = json_integer_value(sep);
        if (cfg->bos_id >= cfg->vocab_size) cfg->bos_id = -1;
        if (cfg->eos_id >= cfg->vocab_size) cfg->eos_id = -1;
    }
    json_decref(j);
    free(path);
    ida_status st = ida_config_check(cfg);
    return st ? fail(o, st, NULL) : 0;
}

/* Resuming: what is not given stays as it was in the run, so the options need not be typed again. `dir`: the checkpoint. */
static json_t *run_options(const char *dir) {
    char *path = join_path(dir, "trainer_state.json");
    json_t *j = path ? json_load_file(path, 0, NULL) : NULL, *opt = json_incref(json_object_get(j, "options"));
    json_decref(j);
    free(path);
    return opt;
}

/* The checkpoint to go on from, *dir NULL when there is none. A run whose checkpoints cannot be read is reported here unless the
 * shape is given: then the library meets it and says so. */
static int find_run(const options *o, const ida_train_options *t, bool shape_given, char **dir) {
    *dir = NULL;
    if (!t->resume || !t->out_dir || !path_exists(t->out_dir)) return 0;
    ida_status st = ida_model_resolve(t->out_dir, dir);
    if (!st || shape_given) return 0;
    return fail_text(o, "%s; to start at step 0 give --preset or --config", ida_last_error());
}

static const json_t *earlier(const json_t *run, const char *option) {
    char key[32];
    snprintf(key, sizeof key, "%s", option);
    for (char *p = key; *p; p++)
        if (*p == '-') *p = '_';
    return json_object_get(run, key);
}

static void fill_numbers(const options *o, ida_train_options *t, const json_t *run) {
    const struct {
        const char *name;
        int64_t *to;
    } whole[] = {{"seq-len", &t->seq_len},
                 {"batch", &t->batch},
                 {"micro-batch", &t->micro_batch},
                 {"steps", &t->steps},
                 {"warmup-steps", &t->warmup_steps},
                 {"eval-every", &t->eval_every},
                 {"eval-tokens", &t->eval_tokens},
                 {"save-every", &t->save_every},
                 {"keep", &t->keep},
                 {"max-skips", &t->max_skips}};
    const struct {
        const char *name;
        double *to;
    } real[] = {{"lr", &t->lr},       {"min-lr", &t->min_lr}, {"ssm-lr-max", &t->ssm_lr_max},     {"beta1", &t->beta1},
                {"beta2", &t->beta2}, {"eps", &t->eps},       {"weight-decay", &t->weight_decay}, {"clip", &t->clip}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        const json_t *was = earlier(run, whole[i].name);
        if (opt_given(o, whole[i].name)) *whole[i].to = opt_int(o, whole[i].name);
        else if (json_is_integer(was)) *whole[i].to = json_integer_value(was);
    }
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
        const json_t *was = earlier(run, real[i].name);
        if (opt_given(o, real[i].name)) *real[i].to = opt_num(o, real[i].name);
        else if (json_is_number(was)) *real[i].to = json_number_value(was);
    }
    if (!opt_given(o, "micro-batch") && !earlier(run, "micro-batch"))
        while (t->batch % t->micro_batch != 0) t->micro_batch--; /* the default, where it does not fit a given --batch */
    const char *seed = json_string_value(earlier(run, "seed"));
    if (opt_given(o, "seed")) t->seed = (uint64_t)opt_int(o, "seed");
    else if (seed) t->seed = strtoull(seed, NULL, 10);
}

/* The library looks at the options before it looks at the run, and would blame a warm-up that was right for the run's steps. */
static int steps_of_run(const options *o, const ida_train_options *t, const json_t *run) {
    const json_t *was = earlier(run, "steps");
    if (!json_is_integer(was) || json_integer_value(was) == t->steps || t->warmup_steps <= t->steps) return 0;
    return usage_error(o->cmd,
                       "%s: --steps was %lld in this run, now %lld: give the old value to resume, or another --out for a new run",
                       t->out_dir, (long long)json_integer_value(was), (long long)t->steps);
}

static ida_dtype dtype_from_run(const options *o, const json_t *run) {
    const char *was = json_string_value(earlier(run, "dtype"));
    if (opt_given(o, "dtype") || !was) return dtype_from_options(o);
    return strcmp(was, "bf16") == 0 ? IDA_BF16 : IDA_F32;
}

/* The run's own shape. */
static int shape_from_run(const options *o, const char *dir, ida_config *cfg) {
    if (opt_given(o, "set") || opt_given(o, "mixer"))
        return usage_error(o->cmd, "--resume goes on with the shape of the run; leave --set and --mixer out");
    char *path = join_path(dir, "config.json");
    if (!path) return fail_text(o, "out of memory");
    ida_status st = ida_config_load(path, cfg);
    free(path);
    return st ? fail(o, st, NULL) : 0;
}

static int shape_from_options(const options *o, bool seq_len_known, ida_train_options *t) {
    int rc = config_from_options(o, opt_str(o, "recipe"), &t->config);
    if (rc) return rc;
    if (seq_len_known) t->config.max_position = t->seq_len;
    else t->seq_len = t->config.max_position;
    return t->data_dir ? config_from_data(o, t->data_dir, &t->config) : 0;
}

static int fill(const options *o, ida_train_options *t) {
    const char *recipe = opt_str(o, "recipe");
    ida_train_defaults(t);
    if (recipe && ida_train_recipe(recipe, t)) return fail(o, IDA_E_ARG, NULL);
    t->data_dir = opt_str(o, "data");
    t->out_dir = opt_str(o, "out");
    t->source = source_from_options(o);
    t->resume = opt_flag(o, "resume");
    t->device = opt_str(o, "device");
    t->activation_checkpointing = opt_flag(o, "activation-checkpointing");
    bool shape_given = opt_given(o, "preset") || opt_given(o, "config");
    char *dir = NULL;
    int rc = find_run(o, t, shape_given, &dir);
    if (rc) return rc;
    json_t *run = dir ? run_options(dir) : NULL;
    fill_numbers(o, t, run);
    t->dtype = dtype_from_run(o, run);
    bool seq_len_known = opt_given(o, "seq-len") || json_is_integer(earlier(run, "seq-len"));
    rc = steps_of_run(o, t, run);
    if (!rc) rc = dir && !shape_given ? shape_from_run(o, dir, &t->config) : shape_from_options(o, seq_len_known, t);
    json_decref(run);
    ida_string_free(dir);
    return rc;
}

static json_t *options_json(const ida_train_options *t) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
                     "s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:s, s:b}", "seed",
                     (json_int_t)t->seed, "seq-len", (json_int_t)t->seq_len, "batch", (json_int_t)t->batch, "micro-batch",
                     (json_int_t)t->micro_batch, "steps", (json_int_t)t->steps, "warmup-steps", (json_int_t)t->warmup_steps,
                     "eval-every", (json_int_t)t->eval_every, "eval-tokens", (json_int_t)t->eval_tokens, "save-every",
                     (json_int_t)t->save_every, "keep", (json_int_t)t->keep, "max-skips", (json_int_t)t->max_skips, "lr", t->lr,
                     "min-lr", t->min_lr, "ssm-lr-max", t->ssm_lr_max, "beta1", t->beta1, "beta2", t->beta2, "eps", t->eps,
                     "weight-decay", t->weight_decay, "clip", t->clip, "device", t->device, "dtype",
                     t->dtype == IDA_BF16 ? "bf16" : "f32", "activation-checkpointing", t->activation_checkpointing);
}

static int print_plan(const options *o, const ida_train_options *t) {
    ida_train_plan p;
    ida_status st = ida_train_make_plan(t, &p);
    if (st) return fail(o, st, NULL);
    if (opt_flag(o, "json"))
        return print_json(
            o, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "parameters", (json_int_t)p.parameters,
                         "parameter_bytes", (json_int_t)p.parameter_bytes, "bf16_copy_bytes", (json_int_t)p.bf16_copy_bytes,
                         "gradient_bytes", (json_int_t)p.gradient_bytes, "optimizer_bytes", (json_int_t)p.optimizer_bytes,
                         "activation_bytes", (json_int_t)p.activation_bytes, "logit_bytes", (json_int_t)p.logit_bytes,
                         "batch_bytes", (json_int_t)p.batch_bytes, "scratch_bytes", (json_int_t)p.scratch_bytes, "total_bytes",
                         (json_int_t)p.total_bytes, "host_bytes", (json_int_t)p.host_bytes, "options", options_json(t)));
    const struct {
        const char *name;
        int64_t bytes;
    } rows[] = {{"weights", p.parameter_bytes}, {"bf16 copy", p.bf16_copy_bytes},    {"gradients", p.gradient_bytes},
                {"optimizer", p.optimizer_bytes}, {"activations", p.activation_bytes}, {"logits", p.logit_bytes},
                {"batch", p.batch_bytes},       {"scratch", p.scratch_bytes},        {"total", p.total_bytes},
                {"host", p.host_bytes}};
    printf("%-12s %lld\n", "parameters", (long long)p.parameters);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char b[24];
        if (rows[i].bytes == 0) continue; /* f32 has no copy, the CPU no host beside it */
        human_bytes(rows[i].bytes, b);
        printf("%-12s %s\n", rows[i].name, b);
    }
    return EXIT_OK;
}

static void tell_memory(view *v) {
    char peak[24], planned[24];
    if (!v->p.terminal || v->memory_peak < 0 || v->step == 0) return; /* elsewhere the events tell it */
    human_bytes(v->memory_peak, peak);
    human_bytes(v->memory_planned, planned);
    progress_line(&v->p, "memory of the device: %s at most, planned %s", peak, planned);
}

static void stopped(view *v) {
    if (*v->saved)
        progress_line(&v->p, "stopped after step %lld; saved %s; \"idattn train --resume ...\" goes on from there",
                      (long long)v->step, v->saved);
    else if (v->step > 0)
        progress_line(&v->p, "stopped at step %lld, nothing new to save; \"idattn train --resume ...\" goes on from there",
                      (long long)v->step);
    else progress_line(&v->p, "stopped before the first step; nothing to save");
}

static int run_train(const options *o) {
    view v = {.json = opt_flag(o, "json")};
    ida_train_options t;
    int rc = begin(o, &v.p);
    if (rc || (rc = fill(o, &t))) return rc;
    if (opt_flag(o, "plan")) return print_plan(o, &t);
    if (!t.data_dir) return usage_error(o->cmd, "--data is missing; give a packed set (\"idattn data pack\" makes one)");
    if (!t.out_dir) return usage_error(o->cmd, "--out is missing; give the run folder to write");
    catch_signals();
    ida_status st = ida_train(&t, on_event, &v);
    if (st == IDA_E_CANCELLED && interrupted()) {
        tell_memory(&v);
        stopped(&v);
        return EXIT_OK;
    }
    if (st) return fail(o, st, &v.p);
    tell_memory(&v);
    progress_end(&v.p);
    return EXIT_OK;
}

const command command_train = {
    .name = "train",
    .args = "(--preset NAME | --config FILE | --recipe SIZE) --data PATH --out DIR [options]",
    .summary = "train a model on a packed set",
    .text = "Each step is also written to OUT/log.jsonl; checkpoints are OUT/step-N. SIGTERM, SIGINT and SIGUSR1 finish the "
            "step, save and exit 0; --resume then goes on, bit for bit as if it had not stopped. The vocabulary is that of "
            "the data.",
    .run = run_train,
    .options = (const option_spec[]){
        OPT_MODEL_SHAPE,
        {"data", 'd', OPT_STR, "PATH", NULL, 0, 0, "packed set, or llm.c, nanoGPT or Megatron shards"},
        OPT_DATA_SOURCE,
        {"out", 'o', OPT_STR, "DIR", NULL, 0, 0, "run folder"},
        {"recipe", 0, OPT_CHOICE, "125m|350m|760m|1.3b", NULL, 0, 0,
         "the paper's tokens, batch and rates for this size, and its preset when no shape is given; other options still count"},
        {"resume", 0, OPT_FLAG, NULL, NULL, 0, 0, "go on from the newest whole checkpoint in OUT (step 0 when there is none)"},
        {"plan", 0, OPT_FLAG, NULL, NULL, 0, 0, "print the memory that training takes, and stop"},
        {"steps", 0, OPT_INT, "N", "1000", 1, OPT_MAX_INT, "optimiser steps"},
        {"seq-len", 0, OPT_INT, "T", NULL, 1, OPT_MAX_INT, "tokens in a sequence [the shape's max_position_embeddings]"},
        {"batch", 0, OPT_INT, "N", "8", 1, OPT_MAX_INT, "sequences in a step"},
        {"micro-batch", 0, OPT_INT, "N", "8", 1, OPT_MAX_INT,
         "sequences in one forward and backward pass; divides the batch; the default gives way"},
        {"lr", 0, OPT_NUM, "RATE", "0.003", 0, 1e3, "peak learning rate"},
        {"min-lr", 0, OPT_NUM, "RATE", "1e-05", 0, 1e3, "learning rate at the last step"},
        {"ssm-lr-max", 0, OPT_NUM, "RATE", "0.001", 0, 1e3, "cap for the state-space parameters"},
        {"warmup-steps", 0, OPT_INT, "N", "-1", -1, OPT_MAX_INT, "linear warm-up; -1 = 375M tokens, at most 15% of the run"},
        {"weight-decay", 0, OPT_NUM, "X", "0.1", 0, 1e3, "on matrices only"},
        {"beta1", 0, OPT_NUM, "X", "0.9", 0, 0.999999999, "AdamW"},
        {"beta2", 0, OPT_NUM, "X", "0.95", 0, 0.999999999, "AdamW"},
        {"eps", 0, OPT_NUM, "X", "1e-08", 0, 1, "AdamW"},
        {"clip", 0, OPT_NUM, "X", "1", 0, 1e9, "largest gradient norm; 0 = no limit"},
        {"seed", 0, OPT_INT, "N", "42", 0, OPT_MAX_INT, "of initial weights and sample order"},
        {"eval-every", 0, OPT_INT, "N", "0", 0, OPT_MAX_INT, "steps between evaluations; 0 = only at the end"},
        {"eval-tokens", 0, OPT_INT, "N", "0", 0, OPT_MAX_INT, "validation tokens used; 0 = all"},
        {"save-every", 0, OPT_INT, "N", "0", 0, OPT_MAX_INT, "steps between checkpoints; 0 = only at the end"},
        {"keep", 0, OPT_INT, "K", "0", 0, OPT_MAX_INT, "newest checkpoints kept; 0 = all"},
        {"activation-checkpointing", 0, OPT_FLAG, NULL, NULL, 0, 0,
         "keep a layer's input only and form the rest again in the backward pass: less memory, the same bits, slower"},
        {"max-skips", 0, OPT_INT, "N", "10", 0, OPT_MAX_INT,
         "steps skipped in a row for a non-finite gradient before training stops"},
        OPT_DEVICE, OPT_DTYPE, OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
