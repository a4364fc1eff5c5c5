/* bench.h - what all benchmarks share: arguments, timing, floors, rows. One bench is one file.
 * Rules: a row has a speed only when the same kernel's check is green; figures are medians after warm-up; the floor stands
 * beside. */
#ifndef IDA_EVAL_BENCH_H
#define IDA_EVAL_BENCH_H

#include <jansson.h>

#include "idattn/eval.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/place.h"
#include "model/config.h"
#include "model/model.h"

typedef struct ida_bench_run {
    const char *name;
    const void *options;    /* the bench's own struct, defaults and arguments in it */
    json_t *top, *rows;     /* top: further keys of the result */
    ida_progress_fn *progress;
    void *user;
    int64_t reps;
} ida_bench_run;

/* A bench: its arguments as a struct and its table (with a row "reps"), and what runs. This list is the only one of
 * them. */
typedef struct ida_bench_kind {
    const char *name;
    const ida_fields *fields;
    ida_status (*run)(ida_bench_run *b);
} ida_bench_kind;
#define IDA_BENCHES(B) B(gemm) B(mixer) B(train) B(decode) B(prefill) B(threads) B(kernel_form) B(tokenizer)
#define IDA_BENCH_DECLARE(id) extern const ida_bench_kind ida_bench_##id;
IDA_BENCHES(IDA_BENCH_DECLARE)
#define IDA_BENCH(id, name, T, rows, run) \
    static const ida_fields id##_fields = IDA_FIELDS("bench." name, "bench " name ": ", T, rows); \
    const ida_bench_kind ida_bench_##id = {name, &id##_fields, run}
/* The table of bench number i, NULL behind the last. */
const ida_fields *ida_bench_fields(int64_t i);

/* Rows that several benches have. */
#define IDA_ROW_REPS(T, def, help_) IDA_ROW_INT(T, "reps", reps, def, 1, 1000000, .help = help_)
#define IDA_ROW_PRESET(T, def, help_) \
    IDA_ROW_TEXT(T, "preset", preset, def, "NAME", .names = ida_preset_names, .help = help_)
#define IDA_ROW_MIXER(T) IDA_ROW_ENUM(T, "mixer", mixer, IDA_MIXER_DEFAULT, ida_mixer_names, .help = "the mixer")

/* A preset with max_position = T when T > 0. */
ida_status ida_bench_config(const char *preset, ida_mixer_kind mixer, int64_t T, ida_config *cfg);

typedef ida_status ida_bench_body(void *arg);
/* Warm-up, then b->reps timed calls; *seconds = their median. IDA_E_CANCELLED when the progress callback says so: it is asked
 * after each call, and a body that takes long asks it in between. */
ida_status ida_bench_time(ida_bench_run *b, const char *what, ida_bench_body *body, void *arg, double *seconds);
int64_t ida_bench_warm_up(const ida_bench_run *b); /* calls before those that are timed */
/* The same for the body of a floor: at most 10 timed calls, since "reps" is for what is measured, not for the machine. */
ida_status ida_bench_time_floor(ida_bench_run *b, const char *what, ida_bench_body *body, void *arg, double *seconds);
double ida_median(double *v, int64_t n); /* sorts v */

/* Floors of this machine, measured: flop/s of the linked BLAS on a large square product with the threads in use; bytes/s
 * (read + written) of a copy on `dev` that is larger than its caches. */
ida_status ida_bench_blas_rate(ida_bench_run *b, double *flops);
ida_status ida_bench_copy_rate(ida_bench_run *b, const ida_device *dev, double *bytes);

/* Adds a row of {what, check, error} and, when the check is green, {seconds, floor_seconds, ratio = floor/seconds}. The row is
 * returned (borrowed) for more keys; NULL on out of memory. floor 0 = none. */
json_t *ida_bench_row(ida_bench_run *b, const char *what, bool check, double error, double seconds, double floor);
void ida_row_real(json_t *row, const char *key, double v);
void ida_row_int(json_t *row, const char *key, int64_t v);

/* n uniform values in [-1, 1) * scale, from the study stream: the same on every machine. */
void ida_bench_fill(float *x, int64_t n, double scale, uint64_t salt);
/* max |a - b| / max |b|. */
double ida_max_error(const float *a, const float *b, int64_t n);

/* A model with one training batch of random ids: B rows of T tokens, its own gradients and work space. */
typedef struct ida_bench_model {
    ida_model *model;
    ida_acts *acts;
    float *grads; /* on the model's device */
    int32_t *ids, *targets;
    int64_t T, *cu;
    ida_batch batch;
    double loss; /* of the last step, mean */
} ida_bench_model;
/* dev NULL = the product's device. */
ida_status ida_bench_model_new(const ida_config *cfg, const ida_device *dev, int64_t B, int64_t T, ida_acts_kind kind,
                               ida_bench_model *out);
void ida_bench_model_free(ida_bench_model *m);
ida_bench_body ida_bench_model_step; /* arg: ida_bench_model*; zero gradients, forward, backward */
/* Gradients of a tiny model with this mixer on a device (NULL: the product's) against ref: the largest error of a tensor relative
 * to its largest element; on a device with bf16 the norm of the error over the norm of the whole gradient. */
ida_status ida_bench_check_grads(const ida_device *dev, ida_mixer_kind mixer, double *error);
/* The limit of that error: fp32 sums over 200 tokens, or the rounding of every tensor on the way to bf16. */
double ida_bench_grads_limit(const ida_device *dev);
/* flop/s of a large product by the device's own linear_fwd: the measured matmul rate of MFU figures. */
ida_status ida_bench_product_rate(ida_bench_run *b, const ida_device *dev, double *flops);
/* Whether activations are rounded on the way to bf16, which decides what a check allows. */
bool ida_bench_rounds(const ida_device *dev);
/* dtype 0: the device's own. */
ida_status ida_bench_device(const char *name, ida_dtype dtype, const ida_device **dev);

#endif
