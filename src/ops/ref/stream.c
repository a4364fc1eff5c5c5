/* stream.c - convolution, RoPE, feature map and head norm of q, k, v, one stream and one op after another. Any host device: the
 * parts are taken from the device's own table. */
#include <string.h>

#include "core/mem.h"
#include "ops/ops.h"

/* The forward pass and what the backward pass needs of it. A part that is not asked for passes its input on. */
typedef struct passes {
    real *block;                          /* the one allocation */
    const ida_act *turned, *mapped;       /* after conv and rope; after the feature map */
    real *rinv, *rstd;                    /* [N,H] */
    ida_act *spare[2];                    /* [N,H,D], backward only */
} passes;

static bool has_conv(const ida_stream_args *a) { return a->conv_w; }
static bool has_rope(const ida_stream_args *a) { return a->rope_theta > 0; }
static bool has_map(const ida_stream_args *a) { return a->l2_eps > 0; }
static bool has_norm(const ida_stream_args *a) { return a->gain; }

static ida_status copy(const ida_device *dev, ida_act *y, const ida_act *x, int64_t n) {
    memcpy(y, x, (size_t)ida_act_bytes(dev, n));
    return IDA_OK;
}

/* y NULL: stop before the head norm. */
static ida_status run(const ida_device *dev, ida_act *y, const ida_stream_args *a, const ida_seqs *seqs, passes *p) {
    const int64_t n = seqs->cu[seqs->n], all = n * a->h * a->d;
    const ida_ops *ops = dev->ops;
    IDA_TRY(IDA_ALLOC(p->block, (y ? 2 : 4) * all + 2 * n * a->h, "q, k or v between convolution and core"));
    ida_act *first = (ida_act *)(void *)p->block, *turned = first, *mapped = ida_act_at(dev, first, all);
    if (!y) p->spare[0] = ida_act_at(dev, first, 2 * all), p->spare[1] = ida_act_at(dev, first, 3 * all);
    p->rinv = p->block + (y ? 2 : 4) * all, p->rstd = p->rinv + n * a->h;
    /* The last part writes to y. */
    if (y && !has_norm(a)) {
        if (has_map(a)) mapped = y;
        else turned = y;
    }
    p->turned = a->x;
    if (has_conv(a)) {
        IDA_TRY(ops->conv_fwd(dev, turned, a->state_out, a->x, a->conv_w, a->conv_b, a->state_in, a->stride, seqs, a->h * a->d));
        p->turned = turned;
    }
    if (has_rope(a)) {
        IDA_TRY(ops->rope(dev, turned, p->turned, seqs, a->h, a->d, a->rope_theta, 1));
        p->turned = turned;
    }
    p->mapped = p->turned;
    if (has_map(a)) {
        IDA_TRY(ops->featmap_fwd(dev, mapped, p->rinv, p->turned, n, a->h, a->d, a->l2_eps));
        p->mapped = mapped;
    }
    if (!has_norm(a)) return y && p->mapped == a->x ? copy(dev, y, a->x, all) : IDA_OK;
    ida_act *out = y ? y : p->spare[0];
    return ops->headnorm_fwd(dev, out, p->rstd, p->mapped, a->gain, a->bias, n, a->h, a->d, a->norm_eps);
}

static ida_status forward(const ida_device *dev, const ida_stream *s, const ida_seqs *seqs) {
    passes p = {0};
    if (seqs->cu[seqs->n] == 0 && !has_conv(&s->args)) return IDA_OK;
    ida_status st = run(dev, s->y, &s->args, seqs, &p);
    ida_free(p.block);
    return st;
}
ida_status IDA_REF(stream_fwd)(const ida_device *dev, const ida_stream *streams, int n, const ida_seqs *seqs) {
    for (int i = 0; i < n; i++) IDA_TRY(forward(dev, &streams[i], seqs));
    return IDA_OK;
}

static ida_status run_back(const ida_device *dev, ida_act *dx, const ida_act *dy, const ida_stream_args *a,
                           const ida_stream_grads *g, const ida_seqs *seqs, const passes *p) {
    const int64_t n = seqs->cu[seqs->n];
    const ida_ops *ops = dev->ops;
    const ida_act *at = dy;
    if (has_norm(a)) {
        IDA_TRY(ops->headnorm_bwd(dev, p->spare[0], g->gain, g->bias, at, p->mapped, a->gain, p->rstd, n, a->h, a->d));
        at = p->spare[0];
    }
    if (has_map(a)) {
        IDA_TRY(ops->featmap_bwd(dev, p->spare[1], at, p->turned, p->rinv, n, a->h, a->d));
        at = p->spare[1];
    }
    if (has_rope(a)) {
        ida_act *to = has_conv(a) ? at == p->spare[1] ? p->spare[1] : p->spare[0] : dx;
        IDA_TRY(ops->rope(dev, to, at, seqs, a->h, a->d, a->rope_theta, -1));
        at = to;
    }
    if (!has_conv(a)) return at == dx ? IDA_OK : copy(dev, dx, at, n * a->h * a->d);
    const ida_conv_bwd_args c = {.dx = dx,
                                 .dw = g->conv_w,
                                 .db = g->conv_b,
                                 .dy = at,
                                 .x = a->x,
                                 .w = a->conv_w,
                                 .state_in = a->state_in,
                                 .stride = a->stride,
                                 .d = a->h * a->d};
    return ops->conv_bwd(dev, &c, seqs);
}

ida_status IDA_REF(stream_bwd)(const ida_device *dev, ida_act *dx, const ida_act *dy, const ida_stream_args *a,
                               const ida_stream_grads *g, const ida_seqs *seqs) {
    passes p = {0};
    ida_stream_args again = *a;
    again.state_out = NULL;
    if (seqs->cu[seqs->n] == 0) return IDA_OK;
    ida_status st = run(dev, NULL, &again, seqs, &p);
    if (st == IDA_OK) st = run_back(dev, dx, dy, &again, g, seqs, &p);
    ida_free(p.block);
    return st;
}
