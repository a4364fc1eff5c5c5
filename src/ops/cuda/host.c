/* host.c - the entry of the shared object, and core/status.h as it is inside it: failures and log lines go to the library that
 * loaded us, whose ida_last_error the caller reads. (core/mem.c is linked in whole: it keeps nothing.)
 * Invariant: nothing here touches CUDA, so a wrong ABI is told before a driver is needed. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/line.h"
#include "ops/backend.h"
#include "ops/cuda/cuda_device.h"

static ida_backend_host host;
static _Thread_local struct {
    char text[IDA_LINE_BYTES];
    const char *file;
    int line;
} last;

static ida_status tell(ida_status code) {
    return host.fail ? host.fail(code, last.file ? last.file : "?", last.line, last.text) : code;
}

ida_status ida_fail(ida_status code, const char *file, int line, const char *fmt, ...) {
    char text[IDA_LINE_BYTES]; /* the arguments may point into last.text */
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(text, sizeof text, fmt, ap) < 0) text[0] = '\0';
    va_end(ap);
    memcpy(last.text, text, sizeof text);
    last.file = file;
    last.line = line;
    return tell(code);
}

ida_status ida_fail_prefix(ida_status code, const char *fmt, ...) {
    char text[IDA_LINE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    ida_line_prefix(text, last.text, fmt, ap);
    va_end(ap);
    memcpy(last.text, text, sizeof text);
    return tell(code);
}

void ida_log(const char *fmt, ...) {
    char text[IDA_LINE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n >= 0 && host.log) host.log(text);
}

__attribute__((visibility("default"))) ida_backend_entry_fn ida_cuda_backend;

const ida_backend *ida_cuda_backend(int abi, const ida_backend_host *from) {
    static ida_backend backend = {.abi = IDA_BACKEND_ABI, .open = ida_cuda_open, .describe = ida_cuda_describe};
    if (abi != IDA_BACKEND_ABI || !from) return NULL;
    host = *from;
    backend.n_ops = ida_cuda_n_ops();
    return &backend;
}
