/* cpu_ops.h - names and small helpers of the CPU ops. Every file of this folder is compiled once per instruction set with
 * IDA_ISA_NAME set (base, avx2, avx512); IDA_CPU(rmsnorm_fwd) is then ida_cpu_avx2_rmsnorm_fwd. table.c starts as ref's table
 * and takes the entries that are written here. Outside this folder only src/ops/device.c includes it, for the devices.
 * Invariant: work is cut by shape, never by thread count. */
#ifndef IDA_OPS_CPU_OPS_H
#define IDA_OPS_CPU_OPS_H

#include "ops/ops.h"

const ida_device *ida_cpu_base_device(void);
#if defined(__x86_64__)
const ida_device *ida_cpu_avx2_device(void);
const ida_device *ida_cpu_avx512_device(void);
#endif

#ifdef IDA_ISA_NAME
#include "core/mem.h"
#include "core/threads.h"

#define IDA_CPU_PASTE_(isa, name) ida_cpu_##isa##_##name
#define IDA_CPU_PASTE(isa, name) IDA_CPU_PASTE_(isa, name)
#define IDA_CPU(name) IDA_CPU_PASTE(IDA_ISA_NAME, name)

#define IDA_OP(name) ida_##name##_fn IDA_CPU(name);
#include "ops/ops.def"
#undef IDA_OP

/* dst[i] += sum over blocks of partials[block * width + i], in block order, in double. */
void IDA_CPU(add_partials)(float *dst, const float *partials, int64_t blocks, int64_t width);

static inline int64_t ida_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t ida_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ida_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* The sequence of a task where sequence s has the tasks first[s] .. first[s+1): the last s of n with first[s] <= task, which has
 * tasks. */
static inline int64_t ida_find_seq(const int64_t *first, int64_t n, int64_t task) {
    int64_t lo = 0, hi = n;
    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;
        if (first[mid] <= task) lo = mid;
        else hi = mid;
    }
    return lo;
}

/* Rows of `width` elements per task: about 64 KiB. */
static inline int64_t ida_task_rows(int64_t width) { return ida_max(1, 16384 / ida_max(1, width)); }
/* The same where every task leaves a partial sum: at most 64 tasks. */
static inline int64_t ida_sum_rows(int64_t n, int64_t width) { return ida_max(ida_task_rows(width), ida_div_up(n, 64)); }
#endif

#endif
