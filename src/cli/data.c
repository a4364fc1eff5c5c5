/* data.c - `idattn data pack|inspect`. */
#include <string.h>

#include "commands.h"
#include "common.h"

static int run_pack(const options *o) {
    progress p;
    ida_tokenizer *t = NULL;
    ida_pack_stats s = {0};
    int rc = begin(o, &p);
    if (rc) return rc;
    ida_pack_options *k = options_of(o, "pack");
    const char *out = k->out_dir, *tok = opt_str(o, "tokenizer");
    if (!tok) return usage_error(o->cmd, "--tokenizer is missing; give a tokenizer.json (\"idattn tokenizer train\" makes one)");
    if (!out) return usage_error(o->cmd, "--out is missing; give the folder to write");
    k->inputs = o->args;
    k->n_inputs = o->n_args;
    ida_status st = ida_tokenizer_load(tok, &t);
    if (st) return fail(o, st, &p);
    catch_signals();
    st = ida_data_pack(t, k, progress_callback, &p, &s);
    ida_tokenizer_free(t);
    if (st) return fail(o, st, &p);
    progress_end(&p);
    if (opt_flag(o, "json"))
        return print_json(o, json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "path",
                                       json_text(out, strlen(out)), "documents", (json_int_t)s.documents, "bytes",
                                       (json_int_t)s.bytes, "train_tokens", (json_int_t)s.train_tokens, "val_tokens",
                                       (json_int_t)s.val_tokens, "train_bytes", (json_int_t)s.train_bytes, "val_bytes",
                                       (json_int_t)s.val_bytes, "bad_rows", (json_int_t)s.bad_rows, "duplicates",
                                       (json_int_t)s.duplicates, "shards", (json_int_t)s.shards));
    char left_out[96] = "";
    if (s.bad_rows) snprintf(left_out, sizeof left_out, "; %lld bad rows were left out", (long long)s.bad_rows);
    if (s.duplicates)
        snprintf(left_out + strlen(left_out), sizeof left_out - strlen(left_out), "; %lld duplicates were left out",
                 (long long)s.duplicates);
    progress_line(&p, "%s: %lld documents, %lld + %lld tokens (training + validation), %lld shards%s", out,
                  (long long)s.documents, (long long)s.train_tokens, (long long)s.val_tokens, (long long)s.shards, left_out);
    return EXIT_OK;
}

const command command_data_pack = {
    .name = "data pack",
    .args = "INPUT... --tokenizer FILE --out DIR [options]",
    .summary = "tokenise text into training and validation shards",
    .text = "INPUT is a .txt or .jsonl file, also .gz or .zst, a .parquet file, or - for text on standard input. Documents "
            "go to validation by a hash of their bytes, so the split does not depend on their order. A bad row is reported "
            "with its place and left out. Work is done in OUT.part, which becomes OUT when whole; after a stop or a kill "
            "--resume goes on there, with the same bytes as without the stop.",
    .min_args = 1,
    .max_args = -1,
    .run = run_pack,
    .options = (const option_spec[]){
        {"tokenizer", 0, OPT_TEXT, "FILE", NULL, "tokenizer.json or a folder that holds one"},
        OPT_OF("pack", NULL),
        OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};

static json_int_t whole(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static void print_split(const char *name, const json_t *s) {
    enum { CELLS = 40 };
    const json_t *len = json_object_get(s, "document_tokens"), *row;
    json_int_t most = 1;
    size_t i;
    printf("\n%s: %lld tokens, %lld documents", name, (long long)whole(s, "tokens"), (long long)whole(s, "documents"));
    if (whole(s, "bytes"))
        printf(", %lld bytes, %.3f bytes a token", (long long)whole(s, "bytes"),
               json_number_value(json_object_get(s, "bytes_per_token")));
    printf("\n");
    if (!len) return;
    printf("  ids %lld..%lld; tokens in a document: mean %.1f, min %lld, 10%% %lld, median %lld, 90%% %lld, 99%% %lld, "
           "max %lld\n",
           (long long)whole(s, "smallest_id"), (long long)whole(s, "largest_id"), json_number_value(json_object_get(len, "mean")),
           (long long)whole(len, "min"), (long long)whole(len, "p10"), (long long)whole(len, "p50"), (long long)whole(len, "p90"),
           (long long)whole(len, "p99"), (long long)whole(len, "max"));
    json_array_foreach(json_object_get(s, "histogram"), i, row) {
        if (whole(row, "documents") > most) most = whole(row, "documents");
    }
    json_array_foreach(json_object_get(s, "histogram"), i, row) {
        json_int_t n = whole(row, "documents");
        int cells = (int)((n * CELLS + most - 1) / most);
        printf("  %8lld.. %10lld %.*s\n", (long long)whole(row, "from"), (long long)n, cells,
               "########################################");
    }
    json_array_foreach(json_object_get(s, "samples"), i, row) {
        json_t *text = json_object_get(row, "text");
        printf("  --- document %lld, %lld tokens%s\n", (long long)whole(row, "document"), (long long)whole(row, "tokens"),
               json_is_true(json_object_get(row, "cut")) ? ", its start" : "");
        if (json_is_string(text)) printf("%s\n", json_string_value(text));
        else json_dumpf(json_object_get(row, "ids"), stdout, 0), printf("\n");
    }
}

static const char *text_of(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "?";
}

static int print_set(const options *o, json_t *j) {
    if (!j) return fail_text(o, "out of memory");
    const json_t *splits = json_object_get(j, "splits"), *row;
    const char *hash = json_string_value(json_object_get(j, "tokenizer_hash"));
    size_t i;
    printf("%s: format %s, vocabulary %lld, separator %lld", o->args[0], json_string_value(json_object_get(j, "format")),
           (long long)whole(j, "vocab_size"), (long long)whole(j, "separator_id"));
    if (hash) printf(", tokenizer %s", hash);
    printf("\n");
    if (whole(j, "duplicates")) printf("%lld duplicates were left out\n", (long long)whole(j, "duplicates"));
    if (whole(j, "bad_rows")) printf("%lld bad rows were left out\n", (long long)whole(j, "bad_rows"));
    json_array_foreach(json_object_get(j, "bad_row_list"), i, row) {
        printf("  %s:%lld: %s\n", text_of(row, "file"), (long long)whole(row, "row"), text_of(row, "why"));
    }
    print_split("train", json_object_get(splits, "train"));
    print_split("val", json_object_get(splits, "val"));
    json_decref(j);
    return EXIT_OK;
}

static int run_inspect(const options *o) {
    progress p;
    char *text = NULL;
    ida_tokenizer *t = NULL;
    ida_status st = IDA_OK;
    int rc = begin(o, &p);
    if (rc) return rc;
    if (opt_str(o, "tokenizer")) st = ida_tokenizer_load(opt_str(o, "tokenizer"), &t);
    ida_inspect_options *k = options_of(o, "inspect");
    k->path = o->args[0];
    k->tokenizer = t;
    if (!st) st = ida_data_describe(k, &text);
    ida_tokenizer_free(t);
    if (st) return fail(o, st, &p);
    json_t *j = parse_library_json(text);
    return opt_flag(o, "json") ? print_json(o, j) : print_set(o, j);
}

const command command_data_inspect = {
    .name = "data inspect",
    .args = "PATH [options]",
    .summary = "check every shard of a set and describe it",
    .text = "PATH is a packed set: sizes, checksums and the range of every id are checked against manifest.json. Or it is a "
            "folder, a file or a pattern of shards that llm.c, nanoGPT or Megatron made; then the words val and test in a "
            "file's name tell its split.",
    .min_args = 1,
    .max_args = 1,
    .run = run_inspect,
    .options = (const option_spec[]){
        OPT_OF("inspect", "separator"),
        {"tokenizer", 0, OPT_TEXT, "FILE", NULL, "decodes the samples and bounds the ids [the set's own]"},
        OPT_OF("inspect", NULL),
        OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
