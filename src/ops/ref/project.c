/* project.c - products of normalised rows, one op after another. Any host device: the parts are taken from the device's own
 * table. */
#include <assert.h>

#include "ops/ops.h"

static ida_status product(const ida_device *dev, const ida_product *p, const ida_project_args *a) {
    const ida_ops *ops = dev->ops;
    if (p->gate_w) IDA_TRY(ops->linear_fwd(dev, p->gate, a->xn, p->gate_w, NULL, a->n));
    IDA_TRY(ops->linear_fwd(dev, p->y, a->xn, p->w, NULL, a->n));
    return p->gate_w ? ops->swiglu_fwd(dev, p->y, p->gate, p->y, a->n * p->w->rows) : IDA_OK;
}

ida_status IDA_REF(project)(const ida_device *dev, const ida_product *products, int n_products, const ida_project_args *a) {
    assert(n_products >= 1 && n_products <= IDA_MOST_PRODUCTS);
    IDA_TRY(dev->ops->rmsnorm_fwd(dev, a->xn, a->rstd, a->x, a->gain, a->n, products[0].w->cols, a->eps));
    for (int i = 0; i < n_products; i++) IDA_TRY(product(dev, &products[i], a));
    return IDA_OK;
}
