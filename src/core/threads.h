/* threads.h - one pool of POSIX threads for all CPU work.
 * Not OpenMP: results must not depend on the thread count, both compilers must build it, and TSan must be able to see it.
 * Work is cut into tasks by the caller, by shape and never by thread count; each task writes its own outputs, and sums
 * over tasks are done by the caller in task order. */
#ifndef IDA_CORE_THREADS_H
#define IDA_CORE_THREADS_H

#include "core/fields.h"

typedef void ida_task_fn(void *arg, int64_t task, int worker); /* worker < ida_workers(): index for per-worker scratch */

/* Runs fn(arg, 0..n_tasks-1), returns when all are done. Tasks are taken in order from a shared counter. A call from
 * inside a task runs serially with the caller's worker index. While one thread's job runs, a call from another thread runs
 * serially as worker 0: scratch by worker belongs to the call, never to the process. fork() is safe outside of tasks. */
void ida_parallel(int64_t n_tasks, ida_task_fn *fn, void *arg);
int ida_workers(void);

extern const ida_fields ida_process_fields;

#endif
