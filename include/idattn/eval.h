/* idattn/eval.h - measuring: perplexity, loss by position, the report page, benches. */
#ifndef IDATTN_EVAL_H
#define IDATTN_EVAL_H

#include "idattn/model.h"
#include "idattn/data.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ida_ppl_options {
    const char *data_dir;        /* packed set: its validation shards (or train: use_train) ... */
    bool use_train;
    const char *text_path;       /* ... or one text file, tokenised whole; exactly one of the two */
    int64_t window;              /* softmax models: context length; a longer document is scored in windows */
    int64_t stride;              /* new tokens per window, 1..window; 0 = window */
    bool carry_state;            /* fixed-state models: one pass, no window; required false for softmax layers */
    int64_t max_tokens;          /* 0 = all */
    ida_data_source source;      /* of data_dir */
} ida_ppl_options;
/* JSON: protocol, tokens, bytes, documents, loss, perplexity, bits_per_byte, word and token counts. Every token of
 * every document but its first input is scored exactly once. */
IDA_API ida_status ida_eval_ppl(const ida_model *m, const ida_tokenizer *t, const ida_ppl_options *o, ida_progress_fn *p,
                                void *user, char **json);

typedef struct ida_length_options {
    const char *data_dir;        /* validation shards, documents concatenated into blocks */
    int64_t train_len;           /* T; 0 = the model's max_position */
    int64_t multiple;            /* evaluate to multiple * T; state is carried, never reset */
    int64_t buckets_per_len;     /* buckets per T; 0 = the default */
    int64_t blocks;              /* independent blocks averaged; 0 = as many as the data gives, up to a limit */
    ida_data_source source;      /* of data_dir */
} ida_length_options;
/* JSON: buckets [{begin, end, loss, tokens}], and loss at 1x, 2x, 4x ... (the last T tokens before each mark). */
IDA_API ida_status ida_eval_length(const ida_model *m, const ida_length_options *o, ida_progress_fn *p, void *user, char **json);

/* One page of finished runs: `<out>/report.html` (self-contained), loss.svg, length.svg, report.json, and that text as *json
 * (NULL = not wanted): {version, commit, machine, runs: [{name, val_loss, val_protocol, val_best, ...}], cells: [{cell, seeds,
 * val_protocol, val_loss_mean, val_loss_spread}]}, losses in nats per token; val_best: the lowest of those of one protocol.
 * Reads each run's log.jsonl, config.json and, where they are there, trainer_state.json (these two also from its newest
 * checkpoint), eval.json (written by `idattn eval ... --save`) and sample.txt; no weights. Runs NAME-s42, NAME-s43 are seeds of
 * one cell. IDA_E_IO, IDA_E_FORMAT name the run and what it lacks. */
IDA_API ida_status ida_report(const char *const *runs, int64_t n_runs, const char *out_dir, char **json);
/* ---------------------------------------------------------------- benchmarks */

/* name and keys: the groups "bench.NAME" of ida_options_json. args: "key=value" strings, a key at most once (where
 * there is a key "out", it writes a picture). JSON: {bench, machine, rows: [{..., seconds, floor_seconds, ratio,
 * check}]}; a speed whose check failed is not in it. */
IDA_API ida_status ida_bench(const char *name, const char *const *args, int64_t n_args, ida_progress_fn *p, void *user,
                             char **json);

#ifdef __cplusplus
}
#endif
#endif
