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
    const char *out = opt_str(o, "out"), *tok = opt_str(o, "tokenizer");
    if (!tok) return usage_error(o->cmd, "--tokenizer is missing; give a tokenizer.json (\"idattn tokenizer train\" makes one)");
    if (!out) return usage_error(o->cmd, "--out is missing; give the folder to write");
    ida_pack_options k = {.inputs = o->args,
                          .n_inputs = o->n_args,
                          .jsonl_key = opt_str(o, "jsonl-key"),
                          .out_dir = out,
                          .shard_tokens = opt_int(o, "shard-tokens"),
                          .val_fraction = opt_num(o, "val-fraction"),
                          .split_blank_lines = opt_flag(o, "split-blank-lines")};
    ida_status st = ida_tokenizer_load(tok, &t);
    if (st) return fail(o, st, &p);
    catch_signals();
    st = ida_data_pack(t, &k, progress_callback, &p, &s);
    ida_tokenizer_free(t);
    if (st) return fail(o, st, &p);
    progress_end(&p);
    if (opt_flag(o, "json"))
        return print_json(o, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "path", out, "documents",
                                       (json_int_t)s.documents, "bytes", (json_int_t)s.bytes, "train_tokens",
                                       (json_int_t)s.train_tokens, "val_tokens", (json_int_t)s.val_tokens, "train_bytes",
                                       (json_int_t)s.train_bytes, "val_bytes", (json_int_t)s.val_bytes, "bad_rows",
                                       (json_int_t)s.bad_rows, "shards", (json_int_t)s.shards));
    progress_line(&p, "%s: %lld documents, %lld + %lld tokens (training + validation), %lld shards%s", out,
                  (long long)s.documents, (long long)s.train_tokens, (long long)s.val_tokens, (long long)s.shards,
                  s.bad_rows ? "; bad rows were left out" : "");
    return EXIT_OK;
}

const command command_data_pack = {
    .name = "data pack",
    .args = "INPUT... --tokenizer FILE --out DIR [options]",
    .summary = "tokenise text into training and validation shards",
    .text = "INPUT is a .txt or .jsonl file, also .gz or .zst, or - for text on standard input. Documents go to validation "
            "by a hash of their bytes, so the split does not depend on their order. A bad .jsonl row is reported and left "
            "out.",
    .min_args = 1,
    .max_args = -1,
    .run = run_pack,
    .options = (const option_spec[]){
        {"tokenizer", 0, OPT_STR, "FILE", NULL, 0, 0, "tokenizer.json or a folder that holds one"},
        {"out", 'o', OPT_STR, "DIR", NULL, 0, 0, "folder to write; absent or empty"},
        {"val-fraction", 0, OPT_NUM, "F", "0.01", 0, 0.5, "part of the documents kept for validation"},
        {"split-blank-lines", 0, OPT_FLAG, NULL, NULL, 0, 0,
         "in .txt a document ends at a form feed or at three or more newlines; else one file is one document"},
        {"shard-tokens", 0, OPT_INT, "N", "0", 0, OPT_MAX_INT, "tokens in a shard; 0 = 100,000,000"},
        {"jsonl-key", 0, OPT_STR, "KEY", "text", 0, 0, "the text's key in .jsonl rows"},
        OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};

static int run_inspect(const options *o) {
    progress p;
    char *text = NULL;
    int rc = begin(o, &p);
    if (rc) return rc;
    ida_status st = ida_data_inspect(o->args[0], &text);
    if (st) return fail(o, st, &p);
    return print_json(o, parse_library_json(text));
}

const command command_data_inspect = {.name = "data inspect",
                                      .args = "DIR [options]",
                                      .summary = "check every shard of a packed set and describe it (JSON)",
                                      .text = "Sizes, checksums and the range of every id are checked against manifest.json.",
                                      .min_args = 1,
                                      .max_args = 1,
                                      .run = run_inspect,
                                      .options = (const option_spec[]){OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
