/* idattn/base.h - status, messages, settings of the process, and the small types that all other headers share. */
#ifndef IDATTN_BASE_H
#define IDATTN_BASE_H

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

/* Threads for all CPU work; 0 = one per core. Results do not depend on it. Call while nothing runs. */
IDA_API ida_status ida_set_threads(int n);
typedef struct ida_process_options { int64_t threads; } ida_process_options; /* by name: idattn/options.h */
IDA_API int ida_get_threads(void);

/* The vector instruction set in use: "base" (128-bit), "avx2" or "avx512". The environment variable IDA_ISA
 * picks a lower one than the machine has. */
IDA_API const char *ida_isa_name(void);

/* Element types. A model lives on "cpu" (IDA_F32), or on one GPU through the CUDA backend, "cuda" or "cuda:N" (IDA_BF16:
 * activations and matrix weights bf16; sums, states and the optimiser's weights fp32; or IDA_F32). IDA_F64: ida_mixer_file only.
 * Without backend, GPU or a new enough driver, calls that name "cuda" give IDA_E_UNSUPPORTED with the reason; all else works. */
typedef enum ida_dtype { IDA_F64 = 0, IDA_F32 = 1, IDA_BF16 = 2 } ida_dtype;
/* What a device of that name computes in when nothing else is said: IDA_F32 on the CPU (NULL), IDA_BF16 on a GPU. */
IDA_API ida_dtype ida_device_dtype(const char *device);
/* Where a model is to be, for ida_model_load_on. From ida_options_defaults dtype is 0: ida_device_dtype tells it. */
typedef struct ida_place_options {
    const char *device;
    ida_dtype dtype;
} ida_place_options;

/* What this machine can do, as one JSON object (isa, isas, threads, blas {config, core}, memory_bytes,
 * gpu {backend, error, devices [{name, sm, memory_bytes}]}, ...).
 * The string belongs to the caller: ida_string_free. */
IDA_API ida_status ida_doctor_json(char **json);
IDA_API void ida_string_free(char *s);

/* What a long call is at: done of total, in units that `what` tells. Return non-zero to cancel. */
typedef int ida_progress_fn(void *user, const char *what, int64_t done, int64_t total);

/* ---------------------------------------------------------------- values that layers and their ops share (docs/method.md) */

typedef enum ida_discretization { IDA_DISC_ZOH = 0, IDA_DISC_EULER = 1, IDA_DISC_UNIT = 2, IDA_DISC_NORM = 3 } ida_discretization;
typedef enum ida_readout { IDA_READOUT_HERMITIAN = 0, IDA_READOUT_BILINEAR = 1 } ida_readout;
typedef enum ida_form { IDA_FORM_SEQUENTIAL = 0, IDA_FORM_STEP = 1, IDA_FORM_CHUNKED = 2 } ida_form;

#ifdef __cplusplus
}
#endif
#endif
