/* project.cu - products of normalised rows (ops.h "project"): few rows by one kernel each (linear/few.cu), which normalises them
 * and applies the gate, all else by the ops one after another. */
#include <assert.h>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/linear/few.h"

/* As few.h takes it: the shape of its weights, the elements of both. */
static ida_few_product few_of(const ida_device *dev, const ida_product *p, const ida_project_args *a) {
    return (ida_few_product){.y = p->y,
                             .x = a->x,
                             .w = ida_matrix_as(p->w, dev->act_type),
                             .gate_w = p->gate_w ? ida_matrix_as(p->gate_w, dev->act_type) : NULL,
                             .gain = a->gain,
                             .eps = a->eps,
                             .n = a->n,
                             .in = p->w->cols,
                             .out = p->w->rows};
}
/* Whether the outputs and the weights of `next` lie behind those of p, so that the two are one product with the same bits. */
static bool follows(const ida_device *dev, const ida_few_product *p, const ida_few_product *next) {
    return p->n == 1 && !p->gate_w && !next->gate_w && next->y == ida_act_at(dev, p->y, p->out) &&
           next->w == (const char *)p->w + ida_act_bytes(dev, p->out * p->in);
}

static ida_status plain(const ida_device *dev, const ida_product *p, const ida_project_args *a) {
    if (p->gate_w) IDA_TRY(ida_cuda_linear_fwd(dev, p->gate, a->xn, p->gate_w, NULL, a->n));
    IDA_TRY(ida_cuda_linear_fwd(dev, p->y, a->xn, p->w, NULL, a->n));
    return p->gate_w ? ida_cuda_swiglu_fwd(dev, p->y, p->gate, p->y, a->n * p->w->rows) : IDA_OK;
}

ida_status ida_cuda_project(const ida_device *dev, const ida_product *products, int n_products, const ida_project_args *a) {
    bool normed = false;
    assert(n_products >= 1 && n_products <= IDA_MOST_PRODUCTS && a->eps >= IDA_LEAST_EPS);
    for (int i = 0, next; i < n_products; i = next) {
        const ida_product *p = &products[i];
        ida_few_product few = few_of(dev, p, a);
        assert(!p->gate_w || p->gate);
        next = i + 1;
        if (ida_linear_few(dev, &few)) {
            for (; next < n_products; next++) {
                const ida_few_product more = few_of(dev, &products[next], a);
                if (!follows(dev, &few, &more)) break;
                few.out += more.out;
            }
            IDA_TRY(ida_linear_few_fwd(dev, &few));
            continue;
        }
        if (!normed) IDA_TRY(ida_cuda_rmsnorm_fwd(dev, a->xn, a->rstd, a->x, a->gain, a->n, p->w->cols, a->eps));
        normed = true;
        IDA_TRY(plain(dev, p, a));
    }
    return IDA_OK;
}
