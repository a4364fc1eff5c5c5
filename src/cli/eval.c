/* eval.c - `idattn eval ppl|length`. */
#include <string.h>

#include "commands.h"
#include "common.h"

#define OPT_SAVE {"save", 0, OPT_FLAG, NULL, NULL, "also write the result into MODEL/eval.json, for report"}

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
    ida_ppl_options *e = options_of(o, "ppl");
    if (!e->data_dir == !e->text_path)
        return usage_error(o->cmd, "give a packed set with --data or a text file with --text, one of the two");
    rc = open_model(o, o->args[0], e->text_path != NULL, &m, &t);
    if (!rc) {
        const ida_config *cfg = ida_model_config(m);
        e->carry_state = !e->window && !has_softmax(cfg);
        if (!e->window) e->window = cfg->max_position;
        catch_signals();
        if (opt_given(o, "stride") && e->carry_state) {
            rc = usage_error(o->cmd, "--stride needs --window: without it this model reads a document in one pass");
        } else {
            ida_status st = ida_eval_ppl(m, t, e, progress_callback, &p, &text);
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
        OPT_OF("ppl", "text"),
        OPT_TOKENIZER,
        OPT_OF("ppl", NULL),
        OPT_SAVE,
        OPT_PLACE, OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};

static int run_length(const options *o) {
    progress p;
    ida_model *m = NULL;
    char *text = NULL;
    int rc = begin(o, &p);
    if (rc) return rc;
    const ida_length_options *e = options_of(o, "length");
    const ida_place_options at = place_from_options(o);
    if (!e->data_dir) return usage_error(o->cmd, "--data is missing; give a packed set");
    ida_status st = ida_model_load_on(o->args[0], at.device, at.dtype, &m);
    if (st) return fail(o, st, &p);
    catch_signals();
    st = ida_eval_length(m, e, progress_callback, &p, &text);
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
        OPT_OF("length", NULL),
        OPT_SAVE,
        OPT_PLACE, OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
