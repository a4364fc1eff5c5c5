/* status.h - how the library reports failure: a status code and one line of text per thread.
 * The line says what, where (file, tensor, position) and how to mend it; source file and line follow in debug builds. */
#ifndef IDA_CORE_STATUS_H
#define IDA_CORE_STATUS_H

#include "idattn/base.h"

/* Records the message and returns `code`. */
ida_status ida_fail(ida_status code, const char *file, int line, const char *fmt, ...) IDA_PRINTF(4, 5);
/* Puts "prefix: " before the recorded message (used on the way up), returns `code` unchanged. */
ida_status ida_fail_prefix(ida_status code, const char *fmt, ...) IDA_PRINTF(2, 3);

/* `code` is an IDA_E_ constant in sight of the compiler, so it knows that outputs are not used after a failure. */
#define IDA_FAIL(code, ...) do { (void)ida_fail((code), __FILE__, __LINE__, __VA_ARGS__); return (code); } while (0)
#define IDA_FAIL_IF(cond, code, ...) do { if (cond) IDA_FAIL((code), __VA_ARGS__); } while (0)
/* First lines of a public function: a pointer argument (or field) that must not be NULL. */
#define IDA_NEED(ptr) IDA_FAIL_IF(!(ptr), IDA_E_ARG, "%s is NULL", #ptr)
#define IDA_TRY(expr) do { ida_status try_s_ = (expr); if (try_s_ != IDA_OK) return try_s_; } while (0)
/* Inside functions with one clean-up label: sets `st` and jumps to `out`. */
#define IDA_TRY_GOTO(expr) do { st = (expr); if (st != IDA_OK) goto out; } while (0)
#define IDA_FAIL_GOTO(code, ...) do { (void)ida_fail((code), __FILE__, __LINE__, __VA_ARGS__); st = (code); goto out; } while (0)

/* A failure that one thread met, for another to report: the line of a failure is its thread's own. */
enum { IDA_LINE_BYTES = 2048 };
typedef struct ida_failure { ida_status st; char line[IDA_LINE_BYTES]; } ida_failure;
void ida_failure_keep(ida_failure *f, ida_status st);    /* the calling thread's last line */
ida_status ida_failure_raise(const ida_failure *f);      /* as if the calling thread had met it; f->st */

/* One warning line to the caller's log function (ida_set_log); nothing when there is none. */
void ida_log(const char *fmt, ...) IDA_PRINTF(1, 2);

#endif
