/* plan.h - the bytes a training run takes, known before any is taken, and where they are looked for.
 * Invariant: the parts of a plan add up to its total; what is held for the whole run is exact, what an op borrows for the length
 * of a call is an upper estimate. */
#ifndef IDA_TRAIN_PLAN_H
#define IDA_TRAIN_PLAN_H

#include "idattn/train.h"
#include "core/mem.h"
#include "ops/device.h"

/* memory_bytes: of the device, which decides how much an op may ask for; 0 = not known. */
ida_status ida_plan_make(const ida_train_options *o, int64_t memory_bytes, ida_train_plan *plan);
/* The same for an open device. */
ida_status ida_plan_make_on(const ida_device *dev, const ida_train_options *o, ida_train_plan *plan);

/* Bytes this process may still take: MemAvailable, and the cgroup's limit where there is one. -1 = the machine does not say. */
int64_t ida_memory_available(void);
/* The same of a device's own memory. */
int64_t ida_device_memory_available(const ida_device *dev);
/* One line. The scratch, and so the sum, depends on the number of threads: the log, which does not, goes without. */
ida_status ida_plan_describe(const ida_train_plan *plan, bool with_scratch, ida_buf *out);
/* Refuses what does not fit `available` bytes of the device, or beside it `on_host` bytes of the host (-1 = not looked at). */
ida_status ida_plan_check(const ida_train_plan *plan, int64_t available, int64_t on_host, bool checkpointing);
/* Puts the plan's largest part behind the recorded failure, which lacks memory. */
void ida_plan_explain(const ida_train_plan *plan, bool checkpointing);

/* ---- parts (plan_cpu.c, plan_cuda.c) */

/* What the sums over a mixer's ops ask of it. linear: read out without a query, the output as wide as key and value. */
typedef struct ida_plan_shape {
    bool softmax, linear, query, conv_q, conv_k, conv_v;
    int64_t h, g, dh, m, ow, hw;
} ida_plan_shape;
ida_plan_shape ida_plan_shape_of(const ida_config *c, int64_t block);

/* What writing a checkpoint of so many tensors borrows on the host. */
double ida_plan_save_buffers(int64_t n_tensors);
/* The most that one op borrows; on the CPU also what a save does. */
double ida_plan_cpu_scratch(const ida_train_options *o, int64_t n_tensors);
double ida_plan_cuda_scratch(const ida_train_options *o, int64_t memory_bytes, const ida_train_plan *plan);
/* The tables of a batch's sequences that a GPU keeps. */
double ida_plan_cuda_tables(const ida_train_options *o);

#endif
