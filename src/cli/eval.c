/* eval.c - `idattn eval ppl|length`. */
#include <string.h>

#include "commands.h"
#include "common.h"

/* Puts `result` under `key` in RUN/eval.json, beside what other evaluations wrote. */
static int save_result(const options *o, const char *run, const char *key, json_t *result) {
    char *path = join_path(run, "eval.json");
    if (!path) return fail_text(o, "out of memory");
    json_t *all = path_exists(path) ? json_load_file(path, 0, NULL) : json_object();
    int rc = 0;
    if (!json_is_object(all)) {
        rc = fail_text(o, "%s is not JSON of ours; move it away", path);
    } else {
        json_object_set(all, key, result);
        char *text = json_dumps(all, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
        rc = text ? write_atomic(o, path, text, strlen(text)) : fail_text(o, "out of memory");
        free(text);
    }
    json_decref(all);
    free(path);
    return rc;
}

static void print_flat(const json_t *j) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)j, key, v) {
        if (json_is_string(v)) printf("%-20s %s\n", key, json_string_value(v));
        else if (json_is_integer(v)) printf("%-20s %lld\n", key, (long long)json_integer_value(v));
        else if (json_is_real(v)) printf("%-20s %.6g\n", key, json_real_value(v));
        else if (json_is_boolean(v)) printf("%-20s %s\n", key, json_is_true(v) ? "yes" : "no");
    }
}

/* Saves when asked, then prints as JSON or as text. Takes the reference. */
static int deliver(const options *o, const char *run, const char *key, char *text) {
    json_t *j = parse_library_json(text);
    if (!j) return fail_text(o, "out of memory");
    int rc = opt_flag(o, "save") ? save_result(o, run, key, j) : 0;
    if (rc || opt_flag(o, "json")) {
        if (!rc) return print_json(o, j);
        json_decref(j);
        return rc;
    }
    print_flat(j);
    json_t *row;
    size_t i;
    json_array_foreach(json_object_get(j, "at"), i, row) {
        printf("%4lldx %8lld tokens   loss %.4f\n", (long long)json_integer_value(json_object_get(row, "multiple")),
               (long long)json_integer_value(json_object_get(row, "position")), json_number_value(json_object_get(row, "loss")));
    }
    json_decref(j);
    return EXIT_OK;
}

static bool has_softmax(const ida_config *cfg) {
    for (int64_t i = 0; i < cfg->n_layers; i++)
        if (cfg->layer_mixer[i] == IDA_MIXER_SOFTMAX) return true;
    return false;
}

static int run_ppl(const options *o) {
    progress p;
    ida_model *m = NULL;
    ida_tokenizer *t = NULL;
    char *text = NULL;
    int rc = begin(o, &p);
    if (rc) return rc;
    if (!opt_str(o, "data") == !opt_str(o, "text"))
        return usage_error(o->cmd, "give a packed set with --data or a text file with --text, one of the two");
    rc = open_model(o, o->args[0], opt_str(o, "text") != NULL, &m, &t);
    if (!rc) {
        const ida_config *cfg = ida_model_config(m);
        bool windows = opt_given(o, "window") || has_softmax(cfg);
        ida_ppl_options e = {.data_dir = opt_str(o, "data"),
                             .use_train = opt_flag(o, "train-split"),
                             .text_path = opt_str(o, "text"),
                             .window = opt_given(o, "window") ? opt_int(o, "window") : cfg->max_position,
                             .stride = opt_int(o, "stride"),
                             .carry_state = !windows,
                             .max_tokens = opt_int(o, "max-tokens"),
                             .source = source_from_options(o)};
        catch_signals();
        if (opt_given(o, "stride") && !windows) {
            rc = usage_error(o->cmd, "--stride needs --window: without it this model reads a document in one pass");
        } else {
            ida_status st = ida_eval_ppl(m, t, &e, progress_callback, &p, &text);
            rc = st ? fail(o, st, &p) : 0;
        }
        progress_end(&p);
    }
    ida_tokenizer_free(t);
    ida_model_free(m);
    return rc ? rc : deliver(o, o->args[0], "ppl", text);
}

const command command_eval_ppl = {
    .name = "eval ppl",
    .args = "MODEL (--data DIR | --text FILE) [options]",
    .summary = "perplexity per token, byte and word",
    .text = "Every token of every document but its first input is scored exactly once, also in documents longer than the "
            "window. Models without softmax layers read a document in one pass with carried state, unless --window is given; "
            "others use windows of the training length.",
    .min_args = 1,
    .max_args = 1,
    .run = run_ppl,
    .options = (const option_spec[]){
        {"data", 'd', OPT_STR, "DIR", NULL, 0, 0, "packed set; its validation shards are scored"},
        OPT_DATA_SOURCE,
        {"train-split", 0, OPT_FLAG, NULL, NULL, 0, 0, "score the training shards instead"},
        {"text", 0, OPT_STR, "FILE", NULL, 0, 0, "a text file, as one document"},
        {"tokenizer", 0, OPT_STR, "FILE", NULL, 0, 0, "tokenizer.json [the model's own]"},
        {"window", 0, OPT_INT, "N", NULL, 1, OPT_MAX_INT, "context length"},
        {"stride", 0, OPT_INT, "N", "0", 0, OPT_MAX_INT, "new tokens in each window; 0 = the window"},
        {"max-tokens", 0, OPT_INT, "N", "0", 0, OPT_MAX_INT, "stop after this many scored tokens; 0 = all"},
        {"save", 0, OPT_FLAG, NULL, NULL, 0, 0, "also write the result into MODEL/eval.json, for report"},
        OPT_DEVICE, OPT_DTYPE, OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};

static int run_length(const options *o) {
    progress p;
    ida_model *m = NULL;
    char *text = NULL;
    int rc = begin(o, &p);
    if (rc) return rc;
    if (!opt_str(o, "data")) return usage_error(o->cmd, "--data is missing; give a packed set");
    ida_status st = ida_model_load_on(o->args[0], opt_str(o, "device"), dtype_from_options(o), &m);
    if (st) return fail(o, st, &p);
    ida_length_options e = {.data_dir = opt_str(o, "data"),
                            .train_len = opt_int(o, "train-len"),
                            .multiple = opt_int(o, "multiple"),
                            .buckets_per_len = opt_int(o, "buckets"),
                            .blocks = opt_int(o, "blocks"),
                            .source = source_from_options(o)};
    catch_signals();
    st = ida_eval_length(m, &e, progress_callback, &p, &text);
    rc = st ? fail(o, st, &p) : 0;
    progress_end(&p);
    ida_model_free(m);
    return rc ? rc : deliver(o, o->args[0], "length", text);
}

const command command_eval_length = {
    .name = "eval length",
    .args = "MODEL --data DIR [options]",
    .summary = "loss by position, past the training length",
    .text = "Validation documents are read end to end in blocks of MULTIPLE training lengths; state is carried and never "
            "reset inside a block.",
    .min_args = 1,
    .max_args = 1,
    .run = run_length,
    .options = (const option_spec[]){
        {"data", 'd', OPT_STR, "DIR", NULL, 0, 0, "packed set; its validation shards are read"},
        OPT_DATA_SOURCE,
        {"multiple", 0, OPT_INT, "N", "4", 1, 1048576, "evaluate up to N training lengths"},
        {"train-len", 0, OPT_INT, "T", "0", 0, OPT_MAX_INT, "training length; 0 = the model's"},
        {"buckets", 0, OPT_INT, "N", "4", 0, 4096, "buckets in a training length"},
        {"blocks", 0, OPT_INT, "N", "0", 0, OPT_MAX_INT, "blocks averaged; 0 = what the data gives, at most 16"},
        {"save", 0, OPT_FLAG, NULL, NULL, 0, 0, "also write the result into MODEL/eval.json, for report"},
        OPT_DEVICE, OPT_DTYPE, OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
