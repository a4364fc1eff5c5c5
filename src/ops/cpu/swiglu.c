/* swiglu.c - y = SiLU(g) * u. Invariant: a vector of every input is read before its index is written, so aliases are safe. */
#include "ops/cpu/cpu_ops.h"

#include "ops/cpu/simd.h"

enum { TASK = 16384 };

typedef struct swiglu_args {
    float *y, *dg, *du;
    const float *g, *u, *dy;
    int64_t n;
} swiglu_args;

static void fwd_block(void *arg, int64_t task, int worker) {
    (void)worker;
    const swiglu_args *a = arg;
    int64_t i = task * TASK, end = ida_min(a->n, i + TASK);
    for (; i + IDA_VL <= end; i += IDA_VL) vf_store(a->y + i, vf_silu(vf_load(a->g + i)) * vf_load(a->u + i));
    if (i < end) vf_store_n(a->y + i, vf_silu(vf_load_n(a->g + i, end - i)) * vf_load_n(a->u + i, end - i), end - i);
}

ida_status IDA_CPU(swiglu_fwd)(const ida_device *dev, ida_act *ya, const ida_act *ga, const ida_act *ua, int64_t n) {
    (void)dev;
    float *y = ida_act_real(ya);
    const float *g = ida_act_real(ga), *u = ida_act_real(ua);
    swiglu_args a = {.y = y, .g = g, .u = u, .n = n};
    ida_parallel(ida_div_up(n, TASK), fwd_block, &a);
    return IDA_OK;
}

/* y = g sig(g) u:  dg = dy u sig (1 + g (1 - sig)),  du = dy g sig. */
IDA_INLINE void bwd_vector(vf dy, vf g, vf u, vf *dg, vf *du) {
    vf one = vf_set1(1.0f), sig = vf_sigmoid(g);
    *dg = dy * u * (sig * (one + g * (one - sig)));
    *du = dy * (g * sig);
}

static void bwd_block(void *arg, int64_t task, int worker) {
    (void)worker;
    const swiglu_args *a = arg;
    int64_t i = task * TASK, end = ida_min(a->n, i + TASK);
    vf dg, du;
    for (; i + IDA_VL <= end; i += IDA_VL) {
        bwd_vector(vf_load(a->dy + i), vf_load(a->g + i), vf_load(a->u + i), &dg, &du);
        vf_store(a->dg + i, dg);
        vf_store(a->du + i, du);
    }
    if (i < end) {
        int64_t m = end - i;
        bwd_vector(vf_load_n(a->dy + i, m), vf_load_n(a->g + i, m), vf_load_n(a->u + i, m), &dg, &du);
        vf_store_n(a->dg + i, dg, m);
        vf_store_n(a->du + i, du, m);
    }
}

ida_status IDA_CPU(swiglu_bwd)(const ida_device *dev, ida_act *dga, ida_act *dua, const ida_act *dya, const ida_act *ga,
                               const ida_act *ua, int64_t n) {
    (void)dev;
    float *dg = ida_act_real(dga), *du = ida_act_real(dua);
    const float *dy = ida_act_real(dya), *g = ida_act_real(ga), *u = ida_act_real(ua);
    swiglu_args a = {.dg = dg, .du = du, .dy = dy, .g = g, .u = u, .n = n};
    ida_parallel(ida_div_up(n, TASK), bwd_block, &a);
    return IDA_OK;
}
