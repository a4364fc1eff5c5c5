/* status.c - the failure line of each thread, and the log function of the process.
 * Invariant: a message is always one printable line; bytes below space (from file names, tensor names) become '?'. */
#include "core/status.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/line.h"

static _Thread_local char last_line[IDA_LINE_BYTES];

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static ida_log_fn *log_fn;
static void *log_user;

static void make_printable(char *s) {
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20 || c == 0x7f) *s = '?';
    }
}

ida_status ida_fail(ida_status code, const char *file, int line, const char *fmt, ...) {
    int saved = errno;
    char text[IDA_LINE_BYTES]; /* the arguments may point into last_line */
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) text[0] = '\0';
#ifdef IDA_DEBUG
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, " [%s:%d]", file, line);
#else
    (void)file;
    (void)line;
#endif
    make_printable(text);
    memcpy(last_line, text, sizeof last_line);
    errno = saved;
    return code;
}

ida_status ida_fail_prefix(ida_status code, const char *fmt, ...) {
    char text[IDA_LINE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    ida_line_prefix(text, last_line, fmt, ap);
    va_end(ap);
    make_printable(text);
    memcpy(last_line, text, sizeof last_line);
    return code;
}

const char *ida_last_error(void) { return last_line; }

void ida_failure_keep(ida_failure *f, ida_status st) {
    f->st = st;
    memcpy(f->line, last_line, sizeof f->line);
}

ida_status ida_failure_raise(const ida_failure *f) {
    memcpy(last_line, f->line, sizeof last_line);
    return f->st;
}

const char *ida_status_name(ida_status s) {
    switch (s) {
    case IDA_OK: return "ok";
    case IDA_E_ARG: return "argument";
    case IDA_E_IO: return "io";
    case IDA_E_FORMAT: return "format";
    case IDA_E_NOMEM: return "memory";
    case IDA_E_UNSUPPORTED: return "unsupported";
    case IDA_E_NUMERIC: return "numeric";
    case IDA_E_CANCELLED: return "cancelled";
    }
    return "unknown";
}

const char *ida_version(void) { return IDA_VERSION_STRING; }

void ida_set_log(ida_log_fn *fn, void *user) {
    pthread_mutex_lock(&log_lock);
    log_fn = fn;
    log_user = user;
    pthread_mutex_unlock(&log_lock);
}

/* The function runs outside the lock, so it may itself call the library. */
void ida_log(const char *fmt, ...) {
    pthread_mutex_lock(&log_lock);
    ida_log_fn *fn = log_fn;
    void *user = log_user;
    pthread_mutex_unlock(&log_lock);
    if (!fn) return;
    char text[IDA_LINE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    make_printable(text);
    fn(user, text);
}
