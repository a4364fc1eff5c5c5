/* idattn.h - the only public header of libidattn: train, evaluate, run and save language models built on
 * Interdomain Attention (arXiv 2605.24330), with softmax attention and S4D as baselines.
 *
 * A complete program:
 *
 *     ida_model *model = NULL; ida_session *s = NULL;
 *     if (ida_model_load("run/", &model) || ida_session_create(model, &s)) { puts(ida_last_error()); return 1; }
 *     ida_session_feed(s, ids, n_ids, logits);          // logits [vocab_size] after the last id
 *     ida_session_free(s); ida_model_free(model);
 *
 * Rules that hold for every function here:
 *  - The return value is an ida_status; 0 is IDA_OK. The library never exits, aborts or prints. After a failure
 *    ida_last_error() gives one line: what, where, how to mend it. Output arguments are then unchanged or NULL.
 *  - Objects are opaque. `*_free` accepts NULL. A session borrows its model: free sessions first.
 *  - Sizes are element counts in int64_t; a name ending in _bytes is in bytes.
 *  - Different objects may be used from different threads; one object from one thread at a time.
 *  - Weights, token shards and states are read through maps. A file that another program cuts short meanwhile is a SIGBUS, as
 *    with any map; handlers are the program's.
 *  - Pointers named `const` are only read during the call unless the comment says otherwise.
 */
#ifndef IDATTN_H
#define IDATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IDA_VERSION_MAJOR 0
#define IDA_VERSION_MINOR 1
#define IDA_VERSION_PATCH 0
#define IDA_VERSION_STRING "0.1.0"

#if defined(__GNUC__)
#define IDA_API __attribute__((visibility("default")))
#define IDA_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define IDA_API
#define IDA_PRINTF(f, a)
#endif

/* ---------------------------------------------------------------- status */

/* One polarity everywhere: 0 is success. Values are pinned; new ones are added at the end. */
typedef enum ida_status {
    IDA_OK = 0,
    IDA_E_ARG = -1,         /* a value the caller gave is out of range (the program maps this to exit code 2) */
    IDA_E_IO = -2,          /* the machine refused: open, read, write, fsync, no space */
    IDA_E_FORMAT = -3,      /* a file's bytes are not what they must be */
    IDA_E_NOMEM = -4,       /* memory could not be had; the message says how much and for what */
    IDA_E_UNSUPPORTED = -5, /* valid, but this build or version does not do it */
    IDA_E_NUMERIC = -6,     /* NaN or infinity where a number is needed */
    IDA_E_CANCELLED = -7,   /* a callback or a signal asked to stop; everything finished is saved */
} ida_status;

/* Short constant name of a status, e.g. "format". Never NULL. */
IDA_API const char *ida_status_name(ida_status s);
/* Text of this thread's last failure; "" when there was none. Valid until the thread's next failing call. */
IDA_API const char *ida_last_error(void);
IDA_API const char *ida_version(void);

/* ---------------------------------------------------------------- process-wide settings */

/* Messages for people (warnings, one line each, no newline). Default: none is shown. fn NULL turns them off. */
typedef void ida_log_fn(void *user, const char *line);
IDA_API void ida_set_log(ida_log_fn *fn, void *user);

/* Threads for all CPU work, 1..256; 0 = one per core. Results do not depend on it. Call while nothing runs. */
IDA_API ida_status ida_set_threads(int n);
IDA_API int ida_get_threads(void);

/* The vector instruction set in use: "base" (128-bit), "avx2" or "avx512". The environment variable IDA_ISA
 * picks a lower one than the machine has. */
IDA_API const char *ida_isa_name(void);

/* Element types. A model lives on "cpu" (IDA_F32), or on one GPU through the CUDA backend, "cuda" or "cuda:N" (IDA_BF16:
 * activations and matrix weights bf16; sums, states and the optimiser's weights fp32; or IDA_F32). IDA_F64: ida_mixer_file only.
 * Without backend, GPU or a new enough driver, calls that name "cuda" give IDA_E_UNSUPPORTED with the reason; all else works. */
typedef enum ida_dtype { IDA_F64 = 0, IDA_F32 = 1, IDA_BF16 = 2 } ida_dtype;

/* What this machine can do, as one JSON object (isa, isas, threads, blas {config, core}, memory_bytes,
 * gpu {backend, error, devices [{name, sm, memory_bytes}]}, ...).
 * The string belongs to the caller: ida_string_free. */
IDA_API ida_status ida_doctor_json(char **json);
IDA_API void ida_string_free(char *s);

/* ---------------------------------------------------------------- configuration */

#define IDA_MAX_LAYERS 256

typedef enum ida_mixer_kind {   /* docs/method.md section 3 */
    IDA_MIXER_SOFTMAX = 0,
    IDA_MIXER_INTERDOMAIN = 1,
    IDA_MIXER_DUAL_LINEAR = 2,
    IDA_MIXER_SINGLE_QUERY = 3,
    IDA_MIXER_S4D = 4,
} ida_mixer_kind;

typedef enum ida_basis { IDA_BASIS_S4D_INV = 0, IDA_BASIS_S4D_LIN = 1, IDA_BASIS_S4D_LEGS = 2 } ida_basis;
typedef enum ida_discretization { IDA_DISC_ZOH = 0, IDA_DISC_EULER = 1, IDA_DISC_UNIT = 2, IDA_DISC_NORM = 3 } ida_discretization;
typedef enum ida_readout { IDA_READOUT_HERMITIAN = 0, IDA_READOUT_BILINEAR = 1 } ida_readout;
typedef enum ida_c_init { IDA_C_NORMAL = 0, IDA_C_IDENTITY = 1, IDA_C_WHITENED = 2 } ida_c_init;

/* A model's shape. d_model = n_heads * head_dim; R = D = head_dim. Plain data: copy freely. */
typedef struct ida_config {
    int64_t vocab_size, d_model, n_layers, n_heads, n_kv_heads, ffn_hidden;
    int64_t state_size;          /* M: complex basis functions per head */
    int64_t max_position;        /* training length T; no mixer is limited to it */
    double rope_theta, norm_eps, l2_eps, init_std;
    double dt_min, dt_max;       /* initial steps dt are log-uniform in [dt_min, dt_max]: memories of about 2/dt tokens */
    bool tie_embeddings;
    bool rope;                   /* rotary embedding on q and k (on a for single-query and s4d) */
    bool gate;                   /* o <- SiLU(W_g x) * o before W_o */
    bool output_norm;            /* RMSNorm per head on o before gate and W_o */
    ida_basis basis;
    ida_discretization discretization;
    ida_readout readout;
    ida_c_init c_init;
    int64_t bos_id, eos_id;      /* -1 = none */
    uint8_t layer_mixer[IDA_MAX_LAYERS]; /* ida_mixer_kind of each layer */
} ida_config;

/* Fills *cfg from a built-in preset ("125m", "350m", "760m", "1.3b", "tiny", "demo", "study") with the given mixer in all
 * layers. IDA_E_ARG names the known presets. */
IDA_API ida_status ida_config_preset(const char *name, ida_mixer_kind mixer, ida_config *cfg);
/* Reads config.json (HF Llama keys plus a "mixer" object, docs/formats.md). */
IDA_API ida_status ida_config_load(const char *path, ida_config *cfg);
/* config.json text of a config; caller frees with ida_string_free. */
IDA_API ida_status ida_config_json(const ida_config *cfg, char **json);
/* Sets one field from text, by the key of config.json ("hidden_size", "mixer.readout", "layer_mixers"=
 * "interdomain,softmax,..."). Does not check the whole: ida_config_check does. */
IDA_API ida_status ida_config_set(ida_config *cfg, const char *key, const char *value);
IDA_API ida_status ida_config_check(const ida_config *cfg);
IDA_API const char *ida_mixer_name(ida_mixer_kind kind);
IDA_API ida_status ida_mixer_parse(const char *name, ida_mixer_kind *kind);

typedef struct ida_model_info {
    int64_t parameters;          /* exact count; nothing is allocated to find it */
    int64_t state_bytes;         /* fixed part of one sequence's state */
    int64_t state_bytes_per_token; /* growing part: the key/value cache of softmax layers */
    int64_t flops_per_token;     /* forward, matrix products and mixers, at sequence length max_position */
} ida_model_info;
IDA_API ida_status ida_config_info(const ida_config *cfg, ida_model_info *info);

/* ---------------------------------------------------------------- model */

typedef struct ida_model ida_model;

/* Random weights (docs/method.md section 3) from `seed`, the same for any thread count. The random numbers are the same on every
 * machine; what is made of them goes through the C library's mathematics, so equal bits need the same binary and library. */
IDA_API ida_status ida_model_create(const ida_config *cfg, uint64_t seed, ida_model **out);
/* A model folder (config.json, model.safetensors) or a training run folder (its newest whole checkpoint). Every weight is
 * checked to be finite, and a checkpoint's folder against its manifest.json (docs/formats.md): remove that from a model that you
 * change. */
IDA_API ida_status ida_model_load(const char *path, ida_model **out);
/* The same on a device; "cpu" with IDA_F32 is ida_model_load. Sessions of the model run there and keep their states there.
 * IDA_E_ARG: no such device name or GPU; IDA_E_UNSUPPORTED: no backend, or a type the device does not compute in. */
IDA_API ida_status ida_model_load_on(const char *path, const char *device, ida_dtype dtype, ida_model **out);
/* The folder that ida_model_load reads for this path: a model folder itself, or the newest whole checkpoint of a run folder (its
 * config.json, tokenizer.json and trainer_state.json belong together). Caller frees *dir with ida_string_free. */
IDA_API ida_status ida_model_resolve(const char *path, char **dir);
/* The same of a model that was loaded, without looking again; lives as long as the model. NULL: it was not loaded. */
IDA_API const char *ida_model_folder(const ida_model *m);
/* Writes config.json, model.safetensors, generation_config.json into `dir` (created), each file atomically. In a checkpoint's
 * folder its manifest.json, which is of the files before, is removed first: a model folder then, and no checkpoint any more. */
IDA_API ida_status ida_model_save(const ida_model *m, const char *dir);
IDA_API void ida_model_free(ida_model *m);
IDA_API const ida_config *ida_model_config(const ida_model *m);
/* Parameter i in storage order, i < ida_model_n_tensors. *data points into the model: fp32, row-major, valid until
 * the model is freed; a model on a GPU gives IDA_E_UNSUPPORTED when data is asked for. shape has room for 4. Any output may be
 * NULL. */
IDA_API int64_t ida_model_n_tensors(const ida_model *m);
IDA_API ida_status ida_model_tensor(const ida_model *m, int64_t i, const char **name, int *ndim, int64_t shape[4],
                                       const float **data);

/* ---------------------------------------------------------------- tokenizer */

typedef struct ida_tokenizer ida_tokenizer;

/* HF tokenizer.json of byte-level BPE (GPT-2, Llama-3, Qwen) or metaspace BPE with byte fallback (Llama-2, Mistral), a
 * SentencePiece .model of BPE type, or a folder that holds tokenizer.json or tokenizer.model. What is not supported is refused by
 * name. A large tokenizer.json is compiled once into $XDG_CACHE_HOME/idattn (or ~/.cache/idattn), by content, where that can be
 * written. */
IDA_API ida_status ida_tokenizer_load(const char *path, ida_tokenizer **out);
/* Writes tokenizer.json at path, or in the folder path. HF tokenizers reads it and gives the same ids. */
IDA_API ida_status ida_tokenizer_save(const ida_tokenizer *t, const char *path);
IDA_API void ida_tokenizer_free(ida_tokenizer *t);
IDA_API int64_t ida_tokenizer_vocab_size(const ida_tokenizer *t);
/* Id of the end-of-text token (also the document separator), or -1. */
IDA_API int64_t ida_tokenizer_eos(const ida_tokenizer *t);
/* Id that the template puts before a text, or -1. */
IDA_API int64_t ida_tokenizer_bos(const ida_tokenizer *t);
/* XXH3-64 of the tokenizer's content (vocabulary, merges, added tokens), independent of file layout. */
IDA_API uint64_t ida_tokenizer_hash(const ida_tokenizer *t);
/* UTF-8 (invalid bytes are legal and round-trip) to ids. special: special added tokens in the text become their ids;
 * else they stay text (untrusted or training text). Other added tokens always match, as in HF.
 * *ids is malloc'd: free with ida_ids_free. */
IDA_API ida_status ida_tokenizer_encode(const ida_tokenizer *t, const char *text, size_t n_bytes, bool special, int32_t **ids,
                                        int64_t *n_ids);
enum {
    IDA_ENCODE_SPECIAL = 1,      /* special added tokens in the text become their ids */
    IDA_ENCODE_TEMPLATE = 2,     /* add what the tokenizer's template puts around a text (BOS, EOS); a text that begins with these
                                    tokens keeps its own, so there is exactly one BOS */
};
/* The same with flags. */
IDA_API ida_status ida_tokenizer_encode_as(const ida_tokenizer *t, const char *text, size_t n_bytes, unsigned flags,
                                           int32_t **ids, int64_t *n_ids);
IDA_API void ida_ids_free(int32_t *ids);
/* Ids to bytes: those that were encoded, where the tokenizer can tell. skip_special drops special added tokens. Caller frees
 * *text (ida_string_free); it is NUL-terminated, *n_bytes excludes that. IDA_E_ARG on an id outside the vocabulary. */
IDA_API ida_status ida_tokenizer_decode(const ida_tokenizer *t, const int32_t *ids, int64_t n_ids, bool skip_special,
                                        char **text, size_t *n_bytes);
/* Ids to text as they come: whole characters only. All pieces joined are HF's text for all ids: UTF-8, with U+FFFD for bytes that
 * make no character. Text that later ids can change is held back: an unfinished character, a run of byte tokens. */
typedef struct ida_decoder ida_decoder;
IDA_API ida_status ida_decoder_create(const ida_tokenizer *t, bool skip_special, ida_decoder **out);
/* *text is borrowed until the next call on d. IDA_E_ARG on an id outside the vocabulary; nothing is taken then. */
IDA_API ida_status ida_decoder_push(ida_decoder *d, const int32_t *ids, int64_t n_ids, const char **text, size_t *n_bytes);
/* What was held back; then d is ready for another text. */
IDA_API ida_status ida_decoder_end(ida_decoder *d, const char **text, size_t *n_bytes);
IDA_API void ida_decoder_free(ida_decoder *d);
/* Bytes that one token stands for (not at the start of a text, where a blank may be dropped), borrowed from the tokenizer; NULL
 * when id is outside the vocabulary. */
IDA_API const char *ida_tokenizer_piece(const ida_tokenizer *t, int64_t id, size_t *n_bytes, bool *is_special);

typedef struct ida_bpe_options {
    int64_t vocab_size;          /* 257..1,048,576: 256 bytes, merges, and the end-of-text token (last id) */
    int64_t min_frequency;       /* a pair seen less often is not merged; >= 1, default 2 */
    const char *const *inputs;   /* text files (.txt .jsonl, also .gz .zst; .parquet); "-" = standard input as text */
    int64_t n_inputs;
    const char *jsonl_key;       /* NULL = "text"; also the column of Parquet files */
} ida_bpe_options;
/* done/total in bytes while reading, then merges. Return non-zero to cancel. */
typedef int ida_progress_fn(void *user, const char *what, int64_t done, int64_t total);
/* Byte-level BPE; the merges are the same for any thread count. */
IDA_API ida_status ida_tokenizer_train(const ida_bpe_options *o, ida_progress_fn *progress, void *user, ida_tokenizer **out);

/* ---------------------------------------------------------------- data */

typedef struct ida_pack_options {
    const char *const *inputs;   /* as in ida_bpe_options */
    int64_t n_inputs;
    const char *jsonl_key;       /* NULL = "text" */
    const char *out_dir;         /* shards {train,val}_000000.bin and manifest.json; must be absent or empty */
    int64_t shard_tokens;        /* 0 = 100,000,000 */
    double val_fraction;         /* of documents, chosen by hash of their bytes; 0..0.5. Fewer than 20 documents: the last part of
                                    the token stream, a document being cut if need be ("split" in the manifest tells which) */
    bool split_blank_lines;      /* .txt: a document ends at a form feed or at 3 or more newlines; else it is a file */
    const char *column;          /* of Parquet files; NULL = jsonl_key */
    bool dedup;                  /* exact duplicates of an earlier document are left out; takes about 32 bytes a document */
    bool resume;                 /* go on where an earlier call with the same options stopped; none: start */
} ida_pack_options;
typedef struct ida_pack_stats {
    int64_t documents, bytes, train_tokens, val_tokens, train_bytes, val_bytes, bad_rows, shards, duplicates;
} ida_pack_stats;
/* Tokenises into llm.c shards (docs/formats.md). Works in OUT_DIR.part, which becomes OUT_DIR when whole. A bad row (jsonl,
 * Parquet) is counted, logged with file and row, listed in the manifest (the first 100), and skipped. After a kill, a failure or
 * IDA_E_CANCELLED, OUT_DIR.part stays when shards were finished: `resume` goes on from there and gives the same bytes as an
 * unbroken run. */
IDA_API ida_status ida_data_pack(const ida_tokenizer *t, const ida_pack_options *o, ida_progress_fn *progress, void *user,
                                 ida_pack_stats *stats);
/* Token shards that others made are read wherever a packed set is: llm.c's (uint16 and uint32), nanoGPT's, Megatron's .bin with
 * .idx. The path is then a folder, a file, or a pattern of files, whose names tell train from val (docs/data.md). All zero:
 * defaults. */
typedef struct ida_data_source {
    const char *val;             /* path of the validation split; NULL = the files of the same path whose names say val */
    const char *format;          /* "llmc", "nanogpt", "megatron"; NULL = told from the files, but nanogpt, which has no header */
    bool has_separator;
    int64_t separator;           /* id that parts documents; else 50256 (uint32: 128000) when found. Megatron: the index does */
} ida_data_source;

/* Checks every shard against the manifest (sizes, checksums, id range) and describes the set as JSON: counts, document lengths
 * with a histogram, and documents decoded. */
typedef struct ida_inspect_options {
    const char *path;            /* packed set, or shards of others */
    ida_data_source source;
    const ida_tokenizer *tokenizer; /* for the samples; NULL = the set's own, if it has one */
    int64_t samples;             /* documents shown of each split, evenly spread */
    int64_t sample_tokens;       /* of each at most; 0 = 64 */
} ida_inspect_options;
IDA_API ida_status ida_data_describe(const ida_inspect_options *o, char **json);
/* The same with defaults and no samples. */
IDA_API ida_status ida_data_inspect(const char *dir, char **json);

/* ---------------------------------------------------------------- session: one timeline of fixed-size state */

typedef struct ida_session ida_session;

/* Position 0, zero state. Softmax layers grow a key/value cache as they go; all other mixers use constant memory. */
IDA_API ida_status ida_session_create(const ida_model *m, ida_session **out);
IDA_API void ida_session_free(ida_session *s);
IDA_API void ida_session_reset(ida_session *s);
IDA_API ida_status ida_session_clone(const ida_session *s, ida_session **out);
IDA_API int64_t ida_session_position(const ida_session *s);
IDA_API int64_t ida_session_bytes(const ida_session *s);
/* Appends n >= 1 ids. n == 1 takes the step form; more run in pieces of constant memory. logits, when not NULL, gets
 * [vocab_size] of the last id. IDA_E_ARG (a bad id) leaves the session as it was; any other failure resets it (the message says
 * so). The same holds for ida_session_score. */
IDA_API ida_status ida_session_feed(ida_session *s, const int32_t *ids, int64_t n, float *logits);
/* Appends n ids and writes losses[i] = -log p(targets[i] | everything up to ids[i]) in nats; 0 where targets[i] < 0. */
IDA_API ida_status ida_session_score(ida_session *s, const int32_t *ids, const int32_t *targets, int64_t n, float *losses);
/* State file: magic, version, model hash, token count, state, checksum (docs/formats.md). Load refuses another model's. */
IDA_API ida_status ida_session_save(const ida_session *s, const char *path);
IDA_API ida_status ida_session_load(ida_session *s, const char *path);

typedef struct ida_sample_options {
    double temperature;          /* 0 = greedy */
    int64_t top_k;               /* 0 = off */
    double top_p, min_p;         /* 1 and 0 = off */
    uint64_t seed;
    int64_t max_tokens;          /* -1 = until a stop */
    const char *const *stop;     /* stop strings; none of their text is emitted */
    int64_t n_stop;
    bool ignore_eos;
} ida_sample_options;
IDA_API void ida_sample_defaults(ida_sample_options *o); /* temperature 0.8, top_k 0, top_p 0.95, max_tokens 256 */
/* Samples one id from logits [n]; a pure function of (logits, options, index). */
/* Order: temperature, top_k, top_p (smallest set of the likeliest that reaches it), min_p (relative to the likeliest). Equal
 * logits rank by lower id. -inf is a masked id; NaN, +inf or nothing but -inf is IDA_E_NUMERIC. */
IDA_API ida_status ida_sample(const float *logits, int64_t n, const ida_sample_options *o, uint64_t index, int32_t *id);
typedef enum ida_finish { IDA_FINISH_STOP = 0, IDA_FINISH_LENGTH = 1, IDA_FINISH_CANCELLED = 2 } ida_finish;
/* Whole UTF-8 characters only (invalid bytes come as they are once it is sure they are invalid). Also called with n = 0
 * (bytes "") before each piece of the prompt and each token, so that it can cancel while there is no text. Non-zero cancels. */
typedef int ida_text_fn(void *user, const char *bytes, size_t n);
/* Continues a session after `prompt` (may be 0 ids when the session is not at position 0). Step form, constant memory. The
 * session advances by n_prompt + *n_generated: the end-of-text token that stops is neither appended nor counted. Draw i uses the
 * session's position as index, so a text generated in two calls equals one generated in one. Cancelled within the prompt, the
 * session holds the pieces read so far (ida_session_position) and nothing is generated. emit may be NULL. */
IDA_API ida_status ida_generate(ida_session *s, const ida_tokenizer *t, const int32_t *prompt, int64_t n_prompt,
                                const ida_sample_options *o, ida_text_fn *emit, void *user, int64_t *n_generated,
                                ida_finish *finish);

/* ---------------------------------------------------------------- training */

typedef struct ida_train_options {
    ida_config config;           /* vocab_size at least that of the data; max_position becomes seq_len */
    const char *data_dir;        /* a packed data set (ida_data_pack) */
    const char *out_dir;         /* run folder: log.jsonl, step-NNNNNN/ checkpoints, latest */
    bool resume;                 /* continue from the newest whole checkpoint; an empty run folder starts at step 0 */
    uint64_t seed;
    int64_t seq_len;             /* T */
    int64_t batch;               /* sequences per optimiser step */
    int64_t micro_batch;         /* sequences per forward/backward; divides batch */
    int64_t steps;
    int64_t warmup_steps;        /* linear; -1 = 375M tokens' worth, at most 15% of the steps */
    double lr, min_lr, ssm_lr_max; /* peak; final; cap for SSM parameters (docs/method.md section 8) */
    double beta1, beta2, eps, weight_decay, clip;
    int64_t eval_every, eval_tokens; /* 0 = only at the end / all of the validation set */
    int64_t save_every, keep;    /* 0 = only at the end; keep the newest K checkpoints, 0 = all */
    int64_t max_skips;           /* non-finite gradient: the step is skipped; after this many in a row training stops */
    const char *device;          /* "cpu", "cuda", "cuda:N"; NULL = "cpu" */
    ida_dtype dtype;             /* IDA_F32; IDA_BF16 on a GPU: part of the run as the rates are, the device is not */
    bool activation_checkpointing; /* keep a layer's input only, form the rest again in backward: same bits, less memory */
    ida_data_source source;      /* of data_dir, when its shards are not ours; vocab_size of the config then bounds the ids */
} ida_train_options;
/* Rates, AdamW, clipping and caps of docs/method.md section 8 with the 125m interdomain model; a small run (1000 steps of 8
 * sequences, evaluated and saved at the end) that callers adapt; paths NULL. */
IDA_API void ida_train_defaults(ida_train_options *o);
/* The recipe of docs/method.md section 8 for a size of the paper: "125m", "350m", "760m", "1.3b". Sets rates, batch (524,288
 * tokens), seq_len, steps and how often to evaluate and save; nothing else. IDA_E_ARG names the sizes. */
IDA_API ida_status ida_train_recipe(const char *size, ida_train_options *o);

typedef struct ida_train_event {
    /* POLL: nothing happened; asked before each micro-batch of an evaluation, so that a long one can be stopped. Never logged. */
    enum { IDA_EVENT_STEP, IDA_EVENT_EVAL, IDA_EVENT_SAVE, IDA_EVENT_SKIP, IDA_EVENT_NOTE, IDA_EVENT_POLL } kind;
    int64_t step, steps, tokens;
    double loss;                 /* mean nats per scored token: of the step, or of the evaluation */
    double bits_per_byte;        /* evaluation only; 0 when the manifest has no byte count */
    double lr, grad_norm, tokens_per_s, eta_s;
    const char *text;            /* NOTE: parameter groups, memory plan; SKIP: the tensor; SAVE: the folder; EVAL: how much was
                                    scored */
    const char *what;            /* SKIP: "weight", "gradient" or "loss": what is not finite */
    /* The most that was in use on the device since the run was opened (CPU: by this process through the library; -1 = not known),
     * and total_bytes of the plan. */
    int64_t device_memory_peak_bytes, device_memory_planned_bytes;
} ida_train_event;
/* Non-zero: finish the step (an evaluation is broken off: the resumed run makes it), save, IDA_E_CANCELLED. */
typedef int ida_train_fn(void *user, const ida_train_event *e);

typedef struct ida_train_plan {
    int64_t parameters;          /* a count; all else in bytes, of the device until total_bytes */
    int64_t parameter_bytes;     /* the weights in fp32 */
    int64_t bf16_copy_bytes;     /* the same rounded, for a GPU in bf16; 0 in f32 */
    int64_t gradient_bytes, optimizer_bytes; /* in fp32; two moments, in fp32 */
    int64_t activation_bytes, logit_bytes; /* of a micro-batch; blocks of logits */
    int64_t batch_bytes;         /* CPU: the step's batches; GPU: tables of their documents */
    int64_t scratch_bytes;       /* the most that one op borrows, an upper estimate; GPU: and the workspace of matrix products */
    int64_t total_bytes;         /* sum of the eight above */
    int64_t host_bytes;          /* beside a GPU, on the host: the initial weights, batches; 0 on the CPU */
} ida_train_plan;
/* What training will take, without taking it: o->device need not be there. Of a GPU: one of 80 GiB, documents of 512 tokens on
 * average beside some as long as a row (many shorter ones take more), without what driver and libraries keep for themselves.
 * Writes nothing; data_dir and out_dir may be NULL. IDA_E_ARG names the option that is out of range, IDA_E_UNSUPPORTED a device
 * and dtype that do not go together; IDA_E_NOMEM: sizes past 2^63. */
IDA_API ida_status ida_train_make_plan(const ida_train_options *o, ida_train_plan *plan);
/* Runs to options->steps. Every event but POLL also goes to log.jsonl. SIGTERM handling is the caller's: return non-zero. The
 * shards' checksums are checked first. After a failure of the data or of the log the steps done are saved before it returns. */
IDA_API ida_status ida_train(const ida_train_options *o, ida_train_fn *on_event, void *user);

/* ---------------------------------------------------------------- evaluation */

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
    int64_t multiple;            /* evaluate to multiple * T (1..64 and beyond); state is carried, never reset */
    int64_t buckets_per_len;     /* buckets per T; 0 = 4 */
    int64_t blocks;              /* independent blocks averaged; 0 = as many as the data gives, at most 16 */
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

/* ---------------------------------------------------------------- the mixer core, for embedding elsewhere */

typedef enum ida_form { IDA_FORM_SEQUENTIAL = 0, IDA_FORM_STEP = 1, IDA_FORM_CHUNKED = 2 } ida_form;

/* docs/method.md section 2 steps 6-7. All arrays row-major, fp32. H query heads, G = n_kv groups (H % G == 0);
 * documents are packed: cu_seqlens [n_seq+1] int64, non-decreasing, from 0 to n_tokens; empty documents are legal. */
typedef struct ida_mixer_args {
    int64_t n_tokens, n_seq, n_heads, n_kv, key_dim, value_dim, state_size; /* T, S, H, G, R, D, M */
    const int64_t *cu_seqlens;
    ida_discretization discretization;
    ida_readout readout;
    int64_t chunk;               /* chunked form: 1..64; 0 = 64 */
    const float *q, *k, *v;      /* [T,H,R] [T,G,R] [T,G,D] */
    const float *log_dt, *a_log, *a_imag, *c_real, *c_imag; /* [G] [G,M] [G,M] [G,M,M] [G,M,M] */
    const float *state_real, *state_imag;         /* [S,G,M,R+D] before each document; NULL = zero */
    float *o;                                     /* [T,H,D] */
    float *final_state_real, *final_state_imag;   /* [S,G,M,R+D]; NULL = not wanted */
} ida_mixer_args;
/* Gradients of sum(o*grad_o) + sum(Re X grad_re) + sum(Im X grad_im). Written ("="), not accumulated. NULL = not wanted. */
typedef struct ida_mixer_grads {
    const float *grad_o, *grad_final_state_real, *grad_final_state_imag; /* the last two may be NULL = 0 */
    float *grad_q, *grad_k, *grad_v, *grad_log_dt, *grad_a_log, *grad_a_imag, *grad_c_real, *grad_c_imag;
    float *grad_state_real, *grad_state_imag;
} ida_mixer_grads;
IDA_API ida_status ida_mixer_forward(const ida_mixer_args *a, ida_form form);
IDA_API ida_status ida_mixer_backward(const ida_mixer_args *a, const ida_mixer_grads *g, ida_form form); /* not step */

/* The same on a safetensors file of float64 tensors named as above, out to another (docs/formats.md). Gradients are
 * written when grad_o is present (the step form has none: it says so and writes the outputs). bf16: q, k, v, grad_o and o,
 * grad_q/k/v are rounded to bf16; on the CPU the core runs in fp32, on a GPU as in training. device: as ida_model_load_on, NULL =
 * "cpu"; IDA_F64 is for the CPU. */
IDA_API ida_status ida_mixer_file(const char *in_path, const char *out_path, ida_form form, ida_dtype dtype, int64_t chunk,
                                  const char *device);

/* ---------------------------------------------------------------- benchmarks */

/* name: "gemm", "mixer", "train", "decode", "prefill", "threads", "kernel-form". args: "key=value" strings, a key at most once
 * (known keys are in the error for an unknown one; "out=DIR" writes a picture). JSON: {bench, machine, rows: [{..., seconds,
 * floor_seconds, ratio, check}]}; a speed whose check failed is not in it. */
IDA_API ida_status ida_bench(const char *name, const char *const *args, int64_t n_args, ida_progress_fn *p, void *user,
                             char **json);

#ifdef __cplusplus
}
#endif
#endif
