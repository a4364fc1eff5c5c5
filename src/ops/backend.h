/* backend.h - the CUDA backend as the library sees it: a shared object, libidattn_cuda.so, that is looked for at run time, so
 * that one program runs with and without a GPU. Looked for in this order: $IDA_CUDA_BACKEND (a path), the folder of the file this
 * code is in (program or libidattn.so), ../lib of it, the loader's own places. */
#ifndef IDA_OPS_BACKEND_H
#define IDA_OPS_BACKEND_H

#include "ops/ops.h"

/* A device for "cpu", "cuda" or "cuda:N" (N: ordinal). dtype: of activations and matrix weights; IDA_F32 or IDA_BF16; the CPU
 * takes IDA_F32. Opened once per process and pair of arguments and kept until exit: the caller frees nothing. IDA_E_UNSUPPORTED:
 * no backend file, no GPU, too old a driver; the message says which and how to mend it. */
ida_status ida_device_open(const char *name, ida_dtype dtype, const ida_device **out);
/* Whether the two can go together, without looking for a backend or a GPU. */
ida_status ida_device_check(const char *name, ida_dtype dtype);

/* One JSON object for doctor: {"backend": path or null, "error": text or null, "devices": [{"name","sm","memory_bytes"}]}. */
ida_status ida_backend_doctor(char **json);

/* ---- what the shared object and the library hand each other. Plain C; both sides check `abi`. */
enum { IDA_BACKEND_ABI = 6 };
typedef struct ida_backend_host {
    ida_status (*fail)(ida_status code, const char *file, int line, const char *text); /* ida_fail with the text made */
    void (*log)(const char *line);
} ida_backend_host;
typedef struct ida_backend {
    int abi;
    int64_t n_ops;                 /* entries of ida_ops the object was built with */
    ida_status (*open)(int ordinal, ida_dtype dtype, const ida_device **out);
    ida_status (*describe)(char *json, size_t size); /* the "devices" array */
} ida_backend;
/* The one symbol of the shared object. NULL when the ABI does not match. */
#define IDA_BACKEND_SYMBOL "ida_cuda_backend"
typedef const ida_backend *ida_backend_entry_fn(int abi, const ida_backend_host *host);

#endif
