/* train.c - `idattn train`: options to ida_train_options, events to a bar or JSON lines, signals to an orderly stop.
 * Not here: the training loop. Invariant: an option that is not given has the value of the run that is resumed, else
 * the recipe's, else the library's default. */
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
    const ida_shape_options *shape = options_of(o, "shape");
    bool vocab_set = false, eos_set = false;
    for (int64_t i = 0; i < shape->n_set; i++) {
        vocab_set |= strncmp(shape->set[i], "vocab_size=", 11) == 0;
        eos_set |= strncmp(shape->set[i], "eos_token_id=", 13) == 0;
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

/* The checkpoint to go on from, *dir NULL when there is none. A run whose checkpoints cannot be read is reported here unless the
 * shape is given: then the library meets it and says so. */
static int find_run(const options *o, const ida_train_options *t, bool shape_given, char **dir) {
    *dir = NULL;
    if (!t->resume || !t->out_dir || !path_exists(t->out_dir)) return 0;
    ida_status st = ida_model_resolve(t->out_dir, dir);
    if (!st || shape_given) return 0;
    return fail_text(o, "%s; to start at step 0 give --preset or --config", ida_last_error());
}

/* The library looks at the options before it looks at the run, and would blame a warm-up that was right for the run's steps. */
static int steps_of_run(const options *o, const ida_train_options *t, int64_t was) {
    if (was == t->steps || t->warmup_steps <= t->steps) return 0;
    return usage_error(o->cmd,
                       "%s: --steps was %lld in this run, now %lld: give the old value to resume, or another --out for a new run",
                       t->out_dir, (long long)was, (long long)t->steps);
}

static int shape_from_options(const options *o, bool seq_len_known, ida_train_options *t) {
    ida_shape_options shape = *(const ida_shape_options *)options_of(o, "shape");
    const ida_recipe_options *r = options_of(o, "recipe");
    if (!shape.preset && !shape.config) shape.preset = r->recipe;
    ida_status st = ida_config_make(&shape, &t->config);
    if (st) return fail(o, st, NULL);
    if (seq_len_known) t->config.max_position = t->seq_len;
    else t->seq_len = t->config.max_position;
    return t->data_dir ? config_from_data(o, t->data_dir, &t->config) : 0;
}

/* What was given goes over what the run has, that over the recipe, that over the defaults. */
static int fill(const options *o, ida_train_options *t) {
    const ida_recipe_options *r = options_of(o, "recipe");
    const ida_train_options *given = options_of(o, "train");
    const bool shape_given = opt_given(o, "preset") || opt_given(o, "config");
    char *dir = NULL;
    ida_train_defaults(t);
    if (r->recipe && ida_train_recipe(r->recipe, t)) return fail(o, IDA_E_ARG, NULL);
    int rc = find_run(o, given, shape_given, &dir);
    if (rc) return rc;
    const bool run = dir != NULL;
    ida_status st = run ? ida_train_options_load(dir, t) : IDA_OK;
    ida_string_free(dir);
    if (st) return fail(o, st, NULL);
    if (run && !shape_given && (opt_given(o, "set") || opt_given(o, "mixer")))
        return usage_error(o->cmd, "--resume goes on with the shape of the run; leave --set and --mixer out");
    const int64_t steps = t->steps;
    options_apply(o, "train", t);
    if (!run && !opt_given(o, "micro-batch")) /* the default gives way where it does not fit a given --batch */
        while (t->batch % t->micro_batch != 0) t->micro_batch--;
    if (!t->dtype || (!run && !opt_given(o, "dtype"))) t->dtype = ida_device_dtype(t->device);
    if (run && (rc = steps_of_run(o, t, steps))) return rc;
    if (run && !t->seq_len) t->seq_len = t->config.max_position;
    if (run && !shape_given) return 0;
    return shape_from_options(o, run || (t->seq_len && opt_given(o, "seq-len")), t);
}

/* As they are typed, without those that were not given. */
static json_t *options_json(const ida_train_options *t) {
    char *text = NULL;
    if (ida_options_get("train", t, sizeof *t, &text)) return NULL;
    json_t *all = parse_library_json(text), *out = json_object(), *v;
    const char *key;
    json_object_foreach(all, key, v) {
        char name[40];
        snprintf(name, sizeof name, "%s", key);
        for (char *p = name; *p; p++)
            if (*p == '_') *p = '-';
        if (!json_is_null(v)) json_object_set(out, name, v);
    }
    json_decref(all);
    json_object_set_new(out, "seed", json_seed(t->seed));
    return out;
}

/* In the order of the table that people read; JSON has the same. */
static const struct { const char *key, *label; size_t offset; } plan_rows[] = {
#define ROW(member, label) {#member, label, offsetof(ida_train_plan, member)}
    ROW(parameter_bytes, "weights"),     ROW(bf16_copy_bytes, "bf16 copy"), ROW(gradient_bytes, "gradients"),
    ROW(optimizer_bytes, "optimizer"),   ROW(activation_bytes, "activations"), ROW(logit_bytes, "logits"),
    ROW(batch_bytes, "batch"),           ROW(scratch_bytes, "scratch"),     ROW(total_bytes, "total"),
    ROW(host_bytes, "host"),
#undef ROW
};
enum { N_PLAN_ROWS = sizeof plan_rows / sizeof *plan_rows };

static int64_t plan_bytes(const ida_train_plan *p, int i) {
    return *(const int64_t *)(const void *)((const char *)p + plan_rows[i].offset);
}

static int print_plan(const options *o, const ida_train_options *t) {
    ida_train_plan p;
    ida_status st = ida_train_make_plan(t, &p);
    if (st) return fail(o, st, NULL);
    if (opt_flag(o, "json")) {
        json_t *j = json_pack("{s:I}", "parameters", (json_int_t)p.parameters);
        for (int i = 0; i < N_PLAN_ROWS; i++) json_object_set_new(j, plan_rows[i].key, json_integer(plan_bytes(&p, i)));
        json_object_set_new(j, "options", options_json(t));
        return print_json(o, j);
    }
    printf("%-12s %lld\n", "parameters", (long long)p.parameters);
    for (int i = 0; i < N_PLAN_ROWS; i++) {
        char b[24];
        if (plan_bytes(&p, i) == 0) continue; /* f32 has no copy, the CPU no host beside it */
        human_bytes(plan_bytes(&p, i), b);
        printf("%-12s %s\n", plan_rows[i].label, b);
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
        OPT_SHAPE,
        OPT_OF("train", "out"),
        OPT_OF("recipe", NULL),
        OPT_OF("train", "resume"),
        {"plan", 0, OPT_FLAG, NULL, NULL, "print the memory that training takes, and stop"},
        OPT_OF("train", NULL),
        OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
