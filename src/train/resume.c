/* resume.c - trainer_state.json: what a run is (data, model, options) and where it stands (counters).
 * A checkpoint continues only in the same run: every option that changes the result must be as it was. How often to evaluate and
 * to save, how many to keep and how many skips to bear may change. */
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/mem.h"
#include "core/names.h"
#include "model/config.h"

#define FORMAT "idattn-trainer"

static ida_status config_object(const ida_config *cfg, json_t **out) {
    char *text = NULL;
    IDA_TRY(ida_config_json(cfg, &text));
    ida_status st = ida_json_parse(text, strlen(text), "config", out);
    ida_string_free(text);
    return st;
}

static void hex64(char out[17], uint64_t x) { snprintf(out, 17, "%016llx", (unsigned long long)x); }

ida_status ida_resume_state(const ida_trainer *t, json_t **state) {
    json_t *config = NULL, *options = NULL;
    IDA_TRY(config_object(&t->o.config, &config));
    ida_status st = ida_fields_to_json(&ida_train_fields, &t->o, IDA_FIELD_RESULT, &options);
    if (st) json_decref(config);
    IDA_TRY(st);
    char data[17], val[17], tokenizer[17];
    hex64(data, ida_dataset_hash(t->train));
    hex64(val, t->val_hash);
    hex64(tokenizer, ida_dataset_tokenizer_hash(t->train));
    *state = json_pack("{s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:o, s:o}", "format", FORMAT, "version", 1,
                       "step", (json_int_t)t->step, "updates", (json_int_t)t->updates, "tokens", (json_int_t)t->tokens,
                       "skips", (json_int_t)t->skips, "skips_in_row", (json_int_t)t->skips_in_row,
                       "data_hash", data, "val_hash", val, "tokenizer_hash", tokenizer,
                       "options", options, "config", config);
    IDA_FAIL_IF(!*state, IDA_E_NOMEM, "no memory for the trainer's state");
    return IDA_OK;
}

static ida_status differs(const ida_difference *d, const char *what, const char *where) {
    IDA_FAIL(IDA_E_ARG,
             "%s: %s %s was %s in this run, now %s: give the old value to resume, or another run folder for a new run", where,
             what, d->key, d->a, d->b);
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

/* What a state tells of its run: of *o, the shape and the options that change the result. */
static ida_status read_run(const json_t *state, const char *where, ida_train_options *o) {
    const char *format = NULL;
    int64_t version;
    IDA_TRY(ida_json_str(state, where, "format", NULL, &format));
    IDA_FAIL_IF(strcmp(format, FORMAT) != 0, IDA_E_FORMAT, "%s: format \"%s\" is not \"%s\"", where, format, FORMAT);
    IDA_TRY(ida_json_i64(state, where, "version", 1, INT32_MAX, NULL, &version));
    IDA_FAIL_IF(version != 1, IDA_E_UNSUPPORTED, "%s: version %lld, this build reads 1", where, (long long)version);
    IDA_TRY(ida_config_from_json(json_object_get(state, "config"), where, &o->config));
    return ida_fields_from_json(&ida_train_fields, json_object_get(state, "options"), where, IDA_FIELD_RESULT, o);
}

ida_status ida_train_options_load(const char *dir, ida_train_options *o) {
    IDA_NEED(dir);
    IDA_NEED(o);
    char *path = ida_path_join(dir, "trainer_state.json");
    json_t *state = NULL;
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "no memory for a path");
    ida_train_options read = *o;
    ida_status st = ida_json_load(path, IDA_STATE_BYTES, &state);
    if (st == IDA_OK) st = read_run(state, path, &read);
    if (st == IDA_OK) *o = read;
    json_decref(state);
    ida_free(path);
    return st;
}

ida_status ida_resume_check(const ida_trainer *t, const json_t *state, const char *where) {
    ida_train_options was = t->o;
    ida_difference d;
    IDA_TRY(read_run(state, where, &was));
    if (ida_config_differ(&was.config, &t->o.config, &d)) return differs(&d, "config", where);
    /* A run may go on in another element type, as on another device: other bits from there on, and it is said. */
    if (was.dtype != t->o.dtype)
        ida_log("%s: the run was in %s and goes on in %s: close to what it would have been, but not the same bits",
                where, ida_dtype_names[was.dtype], ida_dtype_names[t->o.dtype]);
    was.dtype = t->o.dtype;
    if (ida_fields_differ(&ida_train_fields, &was, &t->o, IDA_FIELD_RESULT, &d)) return differs(&d, "options", where);
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
