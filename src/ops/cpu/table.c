/* table.c - the op table of one instruction set: ref's table with the fast entries put in. Filled once, on first use. */
#include "ops/cpu/cpu_ops.h"

#include <pthread.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static ida_ops ops;
static const ida_device device = {.ops = &ops, .name = "cpu-" TEXT(IDA_ISA_NAME), .act_type = IDA_TYPE_F32};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void) {
    ops = ida_ref_ops;
#define FAST(name) ops.name = IDA_CPU(name)
    FAST(embed_fwd);
    FAST(embed_bwd);
    FAST(linear_fwd);
    FAST(linear_bwd);
    FAST(rmsnorm_fwd);
    FAST(rmsnorm_bwd);
    FAST(headnorm_fwd);
    FAST(headnorm_bwd);
    FAST(conv_fwd);
    FAST(conv_bwd);
    FAST(rope);
    FAST(featmap_fwd);
    FAST(featmap_bwd);
    FAST(swiglu_fwd);
    FAST(swiglu_bwd);
    FAST(attention_fwd);
    FAST(attention_bwd);
    FAST(interdomain_chunk_fwd);
    FAST(interdomain_chunk_bwd);
    FAST(interdomain_step);
    FAST(s4d_chunk_fwd);
    FAST(s4d_chunk_bwd);
    FAST(s4d_step);
    FAST(cross_entropy);
    FAST(sqsum);
    FAST(adamw);
#undef FAST
}

const ida_device *IDA_CPU(device)(void) {
    pthread_once(&once, fill);
    return &device;
}
