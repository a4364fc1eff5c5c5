/* idattn/train.h - training: options, plan of the memory, the run. */
#ifndef IDATTN_TRAIN_H
#define IDATTN_TRAIN_H

#include "idattn/config.h"
#include "idattn/data.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    int64_t warmup_steps;        /* linear; -1 = as docs/method.md section 8 has it */
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
/* Rates, AdamW, clipping and caps of docs/method.md section 8 with the smallest model of the paper; a small run,
 * evaluated and saved at the end, that callers adapt; paths NULL. The values are in ida_options_json("train"). */
IDA_API void ida_train_defaults(ida_train_options *o);
/* The recipe of docs/method.md section 8 for a size of the paper. Sets rates, batch (524,288 tokens), seq_len, steps
 * and how often to evaluate and save; nothing else. IDA_E_ARG names the sizes. */
IDA_API ida_status ida_train_recipe(const char *size, ida_train_options *o);
typedef struct ida_recipe_options { const char *recipe; } ida_recipe_options; /* the sizes: idattn/options.h */
/* What a run goes on with, from the folder of a checkpoint (ida_model_resolve): of *o, the shape and every option
 * that changes the result; the others stay. After a failure *o is as it was. */
IDA_API ida_status ida_train_options_load(const char *dir, ida_train_options *o);

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
/* What training a shape takes, from its sizes alone. */
typedef struct ida_cost_options {
    int64_t tokens;              /* to train on; 0 = those of the recipe */
    double tflops;               /* sustained, 10^12 flops a second, of all devices together */
    int64_t micro_batch;         /* sequences in memory at once */
} ida_cost_options;
typedef struct ida_train_cost {
    double tokens, flops, shard_bytes, tflops, hours;
    int64_t steps, seq_len, micro_batch;
    ida_train_plan plan;         /* on the CPU, of one micro-batch */
} ida_train_cost;
/* recipe: a size of ida_train_recipe; another text or NULL: none, and o->tokens must be given. */
IDA_API ida_status ida_train_find_cost(const ida_config *cfg, const char *recipe, const ida_cost_options *o,
                                       ida_train_cost *cost);
/* Runs to options->steps. Every event but POLL also goes to log.jsonl. SIGTERM handling is the caller's: return non-zero. The
 * shards' checksums are checked first. After a failure of the data or of the log the steps done are saved before it returns. */
IDA_API ida_status ida_train(const ida_train_options *o, ida_train_fn *on_event, void *user);

#ifdef __cplusplus
}
#endif
#endif
