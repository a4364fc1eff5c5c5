/* resume.c - trainer_state.json: what a run is (data, model, options) and where it stands (counters).
 * A checkpoint continues only in the same run: every option that changes the result must be as it was. How often to evaluate and
 * to save, how many to keep and how many skips to bear may change. */
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"

#define FORMAT "idattn-trainer"

/* The options that change the result, each with its JSON key. 64-bit values that are not counts go as text. */
static json_t *result_options(const ida_train_options *o) {
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)o->seed);
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s}", "seed", seed,
                     "seq_len", (json_int_t)o->seq_len, "batch", (json_int_t)o->batch, "micro_batch", (json_int_t)o->micro_batch,
                     "steps", (json_int_t)o->steps, "warmup_steps", (json_int_t)o->warmup_steps, "lr", o->lr, "min_lr", o->min_lr,
                     "ssm_lr_max", o->ssm_lr_max, "beta1", o->beta1, "beta2", o->beta2, "eps", o->eps,
                     "weight_decay", o->weight_decay, "clip", o->clip, "dtype", o->dtype == IDA_BF16 ? "bf16" : "f32");
}

/* The options of a checkpoint; those that name no dtype are older than the choice. New reference, NULL when there are none. */
static json_t *options_of(const json_t *state) {
    json_t *o = json_copy(json_object_get(state, "options"));
    if (json_is_object(o) && !json_object_get(o, "dtype")) json_object_set_new(o, "dtype", json_string("f32"));
    return o;
}

static ida_status config_object(const ida_config *cfg, json_t **out) {
    char *text = NULL;
    IDA_TRY(ida_config_json(cfg, &text));
    ida_status st = ida_json_parse(text, strlen(text), "config", out);
    ida_string_free(text);
    return st;
}

static void hex64(char out[17], uint64_t x) { snprintf(out, 17, "%016llx", (unsigned long long)x); }

ida_status ida_resume_state(const ida_trainer *t, json_t **state) {
    json_t *config = NULL;
    IDA_TRY(config_object(&t->o.config, &config));
    char data[17], val[17], tokenizer[17];
    hex64(data, ida_dataset_hash(t->train));
    hex64(val, t->val_hash);
    hex64(tokenizer, ida_dataset_tokenizer_hash(t->train));
    *state = json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:o, s:o}", "format", FORMAT, "version", 1,
                       "step", (json_int_t)t->step, "updates", (json_int_t)t->updates, "tokens", (json_int_t)t->tokens,
                       "skips", (json_int_t)t->skips, "skips_in_row", (json_int_t)t->skips_in_row,
                       "data_hash", data, "val_hash", val, "tokenizer_hash", tokenizer,
                       "options", result_options(&t->o), "config", config);
    IDA_FAIL_IF(!*state, IDA_E_NOMEM, "no memory for the trainer's state");
    return IDA_OK;
}

static void show(char *out, size_t n, const json_t *v) {
    char *s = v ? ida_json_dump(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    snprintf(out, n, "%s", s ? s : "absent");
    ida_free(s);
}

/* Every key of `a` must be in `b` with an equal value, and the other way round; the first that is not goes to key, va, vb. */
static bool differs(const json_t *a, const json_t *b, const char *prefix, char *key, size_t nkey, char *va, char *vb,
                    size_t nval) {
    const char *k;
    json_t *x;
    for (int side = 0; side < 2; side++) {
        const json_t *from = side ? b : a, *to = side ? a : b;
        void *it = json_object_iter((json_t *)(uintptr_t)from);
        for (; it; it = json_object_iter_next((json_t *)(uintptr_t)from, it)) {
            k = json_object_iter_key(it);
            x = json_object_iter_value(it);
            const json_t *y = json_object_get(to, k);
            if (y && json_equal(x, y)) continue;
            char full[160];
            snprintf(full, sizeof full, "%s%s%s", prefix, *prefix ? "." : "", k);
            if (json_is_object(x) && json_is_object(y)) return differs(side ? y : x, side ? x : y, full, key, nkey, va, vb, nval);
            snprintf(key, nkey, "%s", full);
            show(va, nval, side ? y : x);
            show(vb, nval, side ? x : y);
            return true;
        }
    }
    return false;
}

static ida_status same(const json_t *was, const json_t *now, const char *what, const char *where) {
    char key[160], a[96], b[96];
    IDA_FAIL_IF(!json_is_object(was), IDA_E_FORMAT, "%s: no \"%s\" object: the file is damaged", where, what);
    if (!differs(was, now, "", key, sizeof key, a, b, sizeof a)) return IDA_OK;
    IDA_FAIL(IDA_E_ARG,
             "%s: %s %s was %s in this run, now %s: give the old value to resume, or another run folder for a new run", where,
             what, key, a, b);
}

static ida_status same_hash(const json_t *state, const char *where, const char *key, uint64_t now, const char *what) {
    const char *was = NULL;
    char hex[17];
    hex64(hex, now);
    IDA_TRY(ida_json_str(state, where, key, NULL, &was));
    IDA_FAIL_IF(strcmp(was, hex) != 0, IDA_E_ARG,
                "%s: this run was trained on other %s (%s %s, now %s): give the old data folder to resume, or another run "
                "folder for a new run", where, what, key, was, hex);
    return IDA_OK;
}

/* A run may go on in another element type, as on another device: the bits from there on are others, and it is said. */
static void allow_other_dtype(json_t *was, const json_t *now, const char *where) {
    json_t *a = json_object_get(was, "dtype"), *b = json_object_get(now, "dtype");
    if (!json_is_string(a) || !json_is_string(b) || json_equal(a, b)) return;
    ida_log("%s: the run was in %s and goes on in %s: close to what it would have been, but not the same bits", where,
            json_string_value(a), json_string_value(b));
    json_object_set(was, "dtype", b);
}

ida_status ida_resume_check(const ida_trainer *t, const json_t *state, const char *where) {
    const char *format = NULL;
    int64_t version;
    IDA_TRY(ida_json_str(state, where, "format", NULL, &format));
    IDA_FAIL_IF(strcmp(format, FORMAT) != 0, IDA_E_FORMAT, "%s: format \"%s\" is not \"%s\"", where, format, FORMAT);
    IDA_TRY(ida_json_i64(state, where, "version", 1, INT32_MAX, NULL, &version));
    IDA_FAIL_IF(version != 1, IDA_E_UNSUPPORTED, "%s: version %lld, this build reads 1", where, (long long)version);
    json_t *config = NULL, *options = result_options(&t->o), *was = options_of(state);
    if (!options) {
        json_decref(was);
        IDA_FAIL(IDA_E_NOMEM, "no memory for the trainer's options");
    }
    allow_other_dtype(was, options, where);
    ida_status st = config_object(&t->o.config, &config);
    if (st == IDA_OK) st = same(json_object_get(state, "config"), config, "config", where);
    if (st == IDA_OK) st = same(was, options, "options", where);
    json_decref(was);
    json_decref(config);
    json_decref(options);
    IDA_TRY(st);
    IDA_TRY(same_hash(state, where, "data_hash", ida_dataset_hash(t->train), "data"));
    IDA_TRY(same_hash(state, where, "val_hash", t->val_hash, "validation data"));
    return same_hash(state, where, "tokenizer_hash", ida_dataset_tokenizer_hash(t->train), "tokenizer");
}

ida_status ida_resume_take(ida_trainer *t, const json_t *state, const char *where) {
    IDA_TRY(ida_json_i64(state, where, "step", 0, t->o.steps, NULL, &t->step));
    IDA_TRY(ida_json_i64(state, where, "updates", 0, t->step, NULL, &t->updates));
    IDA_TRY(ida_json_i64(state, where, "tokens", 0, INT64_MAX, NULL, &t->tokens));
    IDA_TRY(ida_json_i64(state, where, "skips", 0, t->step, NULL, &t->skips));
    return ida_json_i64(state, where, "skips_in_row", 0, t->skips, NULL, &t->skips_in_row);
}
