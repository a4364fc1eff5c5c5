/* rounded.c - see rounded.h. */
#include "rounded.h"

#include "core/bf16.h"

/* ops/ref calls other ops of its device. */
static const ida_device *ref(const ida_device *dev) {
    (void)dev;
    return &ida_ref_device;
}

/* x = x rounded, when what made it went well. */
static ida_status rounded(ida_status st, ida_act *xa, int64_t n) {
    real *x = ida_act_real(xa);
    for (int64_t i = 0; st == IDA_OK && x && i < n; i++) x[i] = ida_bf16_to_f32(ida_f32_to_bf16(x[i]));
    return st;
}
static int64_t tokens(const ida_seqs *s) { return s->cu[s->n]; }

/* A rounded copy of a matrix; none of none. The caller frees its data. */
static ida_status matrix(ida_matrix *out, const ida_matrix *w) {
    const int64_t n = w->rows * w->cols;
    real *copy = NULL;
    *out = *w;
    if (!w->data) return IDA_OK;
    IDA_TRY(IDA_ALLOC(copy, n, "a rounded matrix"));
    memcpy(copy, w->data, (size_t)n * sizeof *copy);
    out->data = copy;
    return rounded(IDA_OK, ida_act_of(copy), n);
}
static void matrix_free(const ida_matrix *m) { ida_free((void *)(uintptr_t)m->data); }

static ida_status embed_fwd(const ida_device *dev, ida_act *y, const int32_t *ids, const ida_matrix *table, int64_t n) {
    return rounded(ida_ref_embed_fwd(ref(dev), y, ids, table, n), y, n * table->cols);
}
static ida_status linear_fwd(const ida_device *dev, ida_act *y, const ida_act *x, const ida_matrix *w, const ida_act *c,
                             int64_t n) {
    ida_matrix m;
    IDA_TRY(matrix(&m, w));
    const ida_status st = rounded(ida_ref_linear_fwd(ref(dev), y, x, &m, c, n), y, n * w->rows);
    matrix_free(&m);
    return st;
}
static ida_status linear_bwd(const ida_device *dev, ida_act *dx, real *dw, const ida_act *dy, const ida_act *x,
                             const ida_matrix *w, int64_t n, bool add) {
    ida_matrix m;
    IDA_TRY(matrix(&m, w));
    const ida_status st = rounded(ida_ref_linear_bwd(ref(dev), dx, dw, dy, x, &m, n, add), dx, n * w->cols);
    matrix_free(&m);
    return st;
}
static ida_status rmsnorm_fwd(const ida_device *dev, ida_act *y, real *rstd, const ida_act *x, const real *g, int64_t n,
                              int64_t d, double eps) {
    return rounded(ida_ref_rmsnorm_fwd(ref(dev), y, rstd, x, g, n, d, eps), y, n * d);
}
static ida_status rmsnorm_bwd(const ida_device *dev, ida_act *dx, real *dg, const ida_act *dy, const ida_act *x, const real *g,
                              const real *rstd, int64_t n, int64_t d) {
    return rounded(ida_ref_rmsnorm_bwd(ref(dev), dx, dg, dy, x, g, rstd, n, d), dx, n * d);
}
static ida_status headnorm_fwd(const ida_device *dev, ida_act *y, real *rstd, const ida_act *x, const real *g, const real *b,
                               int64_t n, int64_t h, int64_t d, double eps) {
    return rounded(ida_ref_headnorm_fwd(ref(dev), y, rstd, x, g, b, n, h, d, eps), y, n * h * d);
}
static ida_status headnorm_bwd(const ida_device *dev, ida_act *dx, real *dg, real *db, const ida_act *dy, const ida_act *x,
                               const real *g, const real *rstd, int64_t n, int64_t h, int64_t d) {
    return rounded(ida_ref_headnorm_bwd(ref(dev), dx, dg, db, dy, x, g, rstd, n, h, d), dx, n * h * d);
}
static ida_status stream_fwd(const ida_device *dev, const ida_stream *streams, int n, const ida_seqs *seqs) {
    ida_status st = ida_ref_stream_fwd(ref(dev), streams, n, seqs);
    for (int i = 0; i < n; i++) st = rounded(st, streams[i].y, tokens(seqs) * streams[i].args.h * streams[i].args.d);
    return st;
}
static ida_status stream_bwd(const ida_device *dev, ida_act *dx, const ida_act *dy, const ida_stream_args *a,
                             const ida_stream_grads *g, const ida_seqs *seqs) {
    return rounded(ida_ref_stream_bwd(ref(dev), dx, dy, a, g, seqs), dx, tokens(seqs) * a->h * a->d);
}
static ida_status swiglu_fwd(const ida_device *dev, ida_act *y, const ida_act *g, const ida_act *u, int64_t n) {
    return rounded(ida_ref_swiglu_fwd(ref(dev), y, g, u, n), y, n);
}
static ida_status swiglu_bwd(const ida_device *dev, ida_act *dg, ida_act *du, const ida_act *dy, const ida_act *g,
                             const ida_act *u, int64_t n) {
    return rounded(rounded(ida_ref_swiglu_bwd(ref(dev), dg, du, dy, g, u, n), dg, n), du, n);
}
static ida_status attention_fwd(const ida_device *dev, const ida_attention_args *a, const ida_seqs *seqs) {
    return rounded(ida_ref_attention_fwd(ref(dev), a, seqs), a->o, tokens(seqs) * a->h * a->d);
}
static ida_status attention_bwd(const ida_device *dev, ida_act *dq, ida_act *dk, ida_act *dv, const ida_act *dout,
                                const ida_attention_args *a, const ida_seqs *seqs) {
    const int64_t kv = tokens(seqs) * a->g * a->d;
    const ida_status st = rounded(ida_ref_attention_bwd(ref(dev), dq, dk, dv, dout, a, seqs), dq, tokens(seqs) * a->h * a->d);
    return rounded(rounded(st, dk, kv), dv, kv);
}
static ida_status interdomain_fwd(const ida_device *dev, const ida_interdomain_args *a, const ida_seqs *seqs) {
    return rounded(ida_ref_interdomain_chunk_fwd(ref(dev), a, seqs), a->o, tokens(seqs) * a->h * a->d);
}
static ida_status interdomain_bwd(const ida_device *dev, const ida_interdomain_args *a, const ida_interdomain_grads *g,
                                  const ida_seqs *seqs) {
    const int64_t n = tokens(seqs);
    const ida_status st = rounded(ida_ref_interdomain_chunk_bwd(ref(dev), a, g, seqs), g->dq, n * a->h * a->r);
    return rounded(rounded(st, g->dk, n * a->g * a->r), g->dv, n * a->g * a->d);
}
static ida_status interdomain_step(const ida_device *dev, const ida_interdomain_args *a, const ida_ssm_prep *prep, int64_t n) {
    return rounded(ida_ref_interdomain_step(ref(dev), a, prep, n), a->o, n * a->h * a->d);
}
static ida_status s4d_fwd(const ida_device *dev, const ida_s4d_args *a, const ida_seqs *seqs) {
    return rounded(ida_ref_s4d_chunk_fwd(ref(dev), a, seqs), a->y, tokens(seqs) * a->h * (a->r + a->d));
}
static ida_status s4d_bwd(const ida_device *dev, const ida_s4d_args *a, const ida_s4d_grads *g, const ida_seqs *seqs) {
    const int64_t rows = tokens(seqs) * a->h;
    return rounded(rounded(ida_ref_s4d_chunk_bwd(ref(dev), a, g, seqs), g->dk, rows * a->r), g->dv, rows * a->d);
}
static ida_status s4d_step(const ida_device *dev, const ida_s4d_args *a, const ida_ssm_prep *prep, int64_t n) {
    return rounded(ida_ref_s4d_step(ref(dev), a, prep, n), a->y, n * a->h * (a->r + a->d));
}
static ida_status cross_entropy(const ida_device *dev, real *losses, ida_act *logits, const int32_t *targets, int64_t n,
                                int64_t vocab, double scale) {
    return rounded(ida_ref_cross_entropy(ref(dev), losses, logits, targets, n, vocab, scale), logits, n * vocab);
}

/* What the model calls; the rest is absent, so that a model that comes to call more does not run unrounded unseen. */
static const ida_ops ops = {.embed_fwd = embed_fwd,
                            .embed_bwd = ida_ref_embed_bwd,
                            .linear_fwd = linear_fwd,
                            .linear_bwd = linear_bwd,
                            .rmsnorm_fwd = rmsnorm_fwd,
                            .rmsnorm_bwd = rmsnorm_bwd,
                            .project = ida_ref_project, /* of the ops here */
                            .headnorm_fwd = headnorm_fwd,
                            .headnorm_bwd = headnorm_bwd,
                            .stream_fwd = stream_fwd,
                            .stream_bwd = stream_bwd,
                            .swiglu_fwd = swiglu_fwd,
                            .swiglu_bwd = swiglu_bwd,
                            .attention_fwd = attention_fwd,
                            .attention_bwd = attention_bwd,
                            .interdomain_chunk_fwd = interdomain_fwd,
                            .interdomain_chunk_bwd = interdomain_bwd,
                            .interdomain_step = interdomain_step,
                            .s4d_chunk_fwd = s4d_fwd,
                            .s4d_chunk_bwd = s4d_bwd,
                            .s4d_step = s4d_step,
                            .cross_entropy = cross_entropy};
const ida_device rounded_device = {.ops = &ops, .name = "rounded", .act_type = IDA_TYPE_F32};
