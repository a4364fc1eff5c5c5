/* op_calls.h - ops as functions of a list of arrays, for programs that run many ops the same way on large arrays (ops_large.c,
 * bench/cuda/ops_cuda.c). A field is an array: [N, width] by rows, or of one size whatever N is. */
#ifndef IDA_TESTS_CUDA_OP_CALLS_H
#define IDA_TESTS_CUDA_OP_CALLS_H

#include "ops/device.h"

enum { MAX_FIELDS = 20 };
typedef enum element { F_ACT, F_REAL, F_INT } element;
/* ROWS*: [N, width]; SPARSE: an input that may be zero in most rows; SETUP: an input that the problem's setup writes. PARAM:
 * [width], read; TABLE: PARAM of which a call reads one row of problem.d per token. SUM: [width], "+=". INTS: [N] in [0, width).
 */
typedef enum kind { ROWS_IN, ROWS_SPARSE, ROWS_SETUP, ROWS_OUT, ROWS_INOUT, PARAM, TABLE, SUM, INTS } kind;
typedef struct field { const char *name; kind kind; element type; int64_t width; double mean, sd; } field;

typedef struct problem problem;
typedef ida_status op_call(const ida_device *dev, void *const *p, int64_t n, const problem *l, const ida_seqs *seqs);
struct problem {
    const char *name;
    int64_t h, d, v; /* heads of d; or a row of d, v outputs or ids */
    op_call *setup, *call;
    field f[MAX_FIELDS]; /* ends at name NULL */
};

static inline bool field_of_rows(const field *f) { return f->kind != PARAM && f->kind != TABLE && f->kind != SUM; }
static inline int64_t field_row(const field *f) { return f->kind == INTS ? 1 : f->width; }
static inline int64_t field_elements(const field *f, int64_t n) { return field_of_rows(f) ? n * field_row(f) : f->width; }
static inline int64_t field_size(const ida_device *dev, const field *f) { return f->type == F_ACT ? ida_act_bytes(dev, 1) : 4; }

#define OP_CALL(name) \
    static inline ida_status call_##name(const ida_device *dev, void *const *p, int64_t n, const problem *l, const ida_seqs *seqs)

OP_CALL(embed_fwd) {
    const ida_matrix table = ida_matrix_of(dev, p[2], l->v, l->d);
    return (void)seqs, dev->ops->embed_fwd(dev, p[0], p[1], &table, n);
}
OP_CALL(embed_bwd) { return (void)seqs, dev->ops->embed_bwd(dev, p[0], p[1], p[2], n, l->v, l->d); }
OP_CALL(linear_fwd) {
    const ida_matrix w = ida_matrix_of(dev, p[2], l->v, l->d);
    return (void)seqs, dev->ops->linear_fwd(dev, p[0], p[1], &w, NULL, n);
}
OP_CALL(linear_bwd) {
    const ida_matrix w = ida_matrix_of(dev, p[4], l->v, l->d);
    return (void)seqs, dev->ops->linear_bwd(dev, p[0], p[1], p[2], p[3], &w, n, false);
}
OP_CALL(rmsnorm_fwd) { return (void)seqs, dev->ops->rmsnorm_fwd(dev, p[0], p[1], p[2], p[3], n, l->d, 1e-5); }
OP_CALL(rmsnorm_rstd) {
    return (void)seqs, dev->ops->rmsnorm_fwd(dev, p[0], p[5], p[3], p[4], n, l->d, 1e-5);
} /* y where dx goes later */
OP_CALL(rmsnorm_bwd) {
    (void)seqs;
    return dev->ops->rmsnorm_bwd(dev, p[0], p[1], p[2], p[3], p[4], p[5], n, l->d);
}
OP_CALL(project) { /* y, x, gain, xn, rstd, gate, w, gate_w */
    const ida_matrix w = ida_matrix_of(dev, p[6], l->v, l->d), gate_w = ida_matrix_of(dev, p[7], l->v, l->d);
    const ida_product product = {.y = p[0], .gate = p[5], .w = &w, .gate_w = p[7] ? &gate_w : NULL};
    const ida_project_args a = {.x = p[1], .gain = p[2], .xn = p[3], .rstd = p[4], .n = n, .eps = 1e-5};
    return (void)seqs, dev->ops->project(dev, &product, 1, &a);
}
OP_CALL(headnorm_fwd) { return (void)seqs, dev->ops->headnorm_fwd(dev, p[0], p[1], p[2], p[3], p[4], n, l->h, l->d, 1e-5); }
OP_CALL(headnorm_rstd) { return (void)seqs, dev->ops->headnorm_fwd(dev, p[0], p[6], p[4], p[5], NULL, n, l->h, l->d, 1e-5); }
OP_CALL(headnorm_bwd) {
    (void)seqs;
    return dev->ops->headnorm_bwd(dev, p[0], p[1], p[2], p[3], p[4], p[5], p[6], n, l->h, l->d);
}
OP_CALL(conv_fwd) { return (void)n, dev->ops->conv_fwd(dev, p[0], NULL, p[1], p[2], p[3], NULL, 0, seqs, l->h * l->d); }
OP_CALL(conv_bwd) {
    const ida_conv_bwd_args a = {.dx = p[0], .dw = p[1], .db = p[2], .dy = p[3], .x = p[4], .w = p[5], .d = l->h * l->d};
    return (void)n, dev->ops->conv_bwd(dev, &a, seqs);
}
OP_CALL(rope) { return (void)n, dev->ops->rope(dev, p[0], p[1], seqs, l->h, l->d, 10000, 1); }
OP_CALL(featmap_fwd) { return (void)seqs, dev->ops->featmap_fwd(dev, p[0], p[1], p[2], n, l->h, l->d, 1e-6); }
OP_CALL(featmap_rinv) { return (void)seqs, dev->ops->featmap_fwd(dev, p[0], p[3], p[2], n, l->h, l->d, 1e-6); }
OP_CALL(featmap_bwd) { return (void)seqs, dev->ops->featmap_bwd(dev, p[0], p[1], p[2], p[3], n, l->h, l->d); }
OP_CALL(swiglu_fwd) { return (void)seqs, dev->ops->swiglu_fwd(dev, p[0], p[1], p[2], n * l->d); }
OP_CALL(swiglu_bwd) { return (void)seqs, dev->ops->swiglu_bwd(dev, p[0], p[1], p[2], p[3], p[4], n * l->d); }
OP_CALL(cross_entropy) { return (void)seqs, dev->ops->cross_entropy(dev, p[0], p[1], p[2], n, l->v, 1); }
OP_CALL(to_act) { return (void)seqs, dev->ops->to_act(dev, p[0], p[1], n * l->d); }
OP_CALL(from_act) { return (void)seqs, dev->ops->from_act(dev, p[0], p[1], n * l->d); }
OP_CALL(adamw) {
    const ida_adamw_args a = {
        .lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .gscale = 1, .t = 1, .w = p[4]};
    return (void)seqs, dev->ops->adamw(dev, p[0], p[1], p[2], p[3], n * l->d, &a);
}
/* The sum of squares of the last 64 rows (or of all), uploaded so that it is a field like others. */
static inline ida_status sqsum_of_rows(const ida_device *dev, void *const *p, int64_t from, int64_t n) {
    double sum;
    const ida_span span = {from, n};
    IDA_TRY(dev->ops->sqsum(dev, &sum, p[1], &span, 1));
    const float value = (float)sum;
    return ida_dev_upload(dev, p[0], &value, sizeof value);
}
OP_CALL(sqsum_last) { return (void)seqs, sqsum_of_rows(dev, p, (n - 64) * l->d, 64 * l->d); }
OP_CALL(sqsum) { return (void)seqs, sqsum_of_rows(dev, p, 0, n * l->d); }

/* stream: y, x, conv_w, conv_b, gain, bias; backward dx, x, conv_w, conv_b, gain, bias, dy, then the gradients of the four. As q:
 * p[2..3] only; as v: p[2] gain, p[3] bias. */
static inline ida_stream_args stream_key(const problem *l, void *const *p) {
    return (ida_stream_args){.h = l->h, .d = l->d, .x = p[1], .conv_w = p[2], .conv_b = p[3], .rope_theta = 10000, .l2_eps = 1e-6,
                             .norm_eps = 1e-5, .gain = p[4], .bias = p[5]};
}
static inline ida_stream_args stream_query(const problem *l, void *const *p) {
    return (ida_stream_args){
        .h = l->h, .d = l->d, .x = p[1], .conv_w = p[2], .conv_b = p[3], .rope_theta = 10000, .l2_eps = 1e-6};
}
static inline ida_stream_args stream_value(const problem *l, void *const *p) {
    return (ida_stream_args){.h = l->h, .d = l->d, .x = p[1], .norm_eps = 1e-5, .gain = p[2], .bias = p[3]};
}
OP_CALL(stream_key_fwd) {
    const ida_stream s = {p[0], stream_key(l, p)};
    return (void)n, dev->ops->stream_fwd(dev, &s, 1, seqs);
}
OP_CALL(stream_query_fwd) {
    const ida_stream s = {p[0], stream_query(l, p)};
    return (void)n, dev->ops->stream_fwd(dev, &s, 1, seqs);
}
OP_CALL(stream_value_fwd) {
    const ida_stream s = {p[0], stream_value(l, p)};
    return (void)n, dev->ops->stream_fwd(dev, &s, 1, seqs);
}
OP_CALL(stream_key_bwd) {
    const ida_stream_args a = stream_key(l, p);
    const ida_stream_grads g = {p[7], p[8], p[9], p[10]};
    return (void)n, dev->ops->stream_bwd(dev, p[0], p[6], &a, &g, seqs);
}
OP_CALL(stream_query_bwd) {
    const ida_stream_args a = stream_query(l, p);
    const ida_stream_grads g = {.conv_w = p[5], .conv_b = p[6]};
    return (void)n, dev->ops->stream_bwd(dev, p[0], p[4], &a, &g, seqs);
}
OP_CALL(stream_value_bwd) {
    const ida_stream_args a = stream_value(l, p);
    const ida_stream_grads g = {.gain = p[5], .bias = p[6]};
    return (void)n, dev->ops->stream_bwd(dev, p[0], p[4], &a, &g, seqs);
}

/* attention: o, lse, q, k, v, dout, dq, dk, dv */
static inline ida_attention_args attention_of(const problem *l, void *const *p) {
    return (ida_attention_args){.o = p[0], .lse = p[1], .q = p[2], .k = p[3], .v = p[4], .h = l->h, .g = l->h, .d = l->d};
}
OP_CALL(attention_fwd) {
    const ida_attention_args a = attention_of(l, p);
    return (void)n, dev->ops->attention_fwd(dev, &a, seqs);
}
OP_CALL(attention_bwd) {
    const ida_attention_args a = attention_of(l, p);
    return (void)n, dev->ops->attention_bwd(dev, p[6], p[7], p[8], p[5], &a, seqs);
}

/* The cores, v modes, no states: o, q (s4d: w), k, v, dout, dq (dw), dk, dv, log_dt, a_log, a_imag, c_re, c_im and their
 * gradients. */
static inline ida_ssm ssm_fields(void *const *p) { return (ida_ssm){p[8], p[9], p[10], p[11], p[12], IDA_DISC_ZOH}; }
static inline ida_ssm_grads ssm_grad_fields(void *const *p) { return (ida_ssm_grads){p[13], p[14], p[15], p[16], p[17]}; }
static inline ida_interdomain_args interdomain_of(const problem *l, void *const *p) {
    return (ida_interdomain_args){
        .h = l->h, .g = l->h, .r = l->d, .d = l->d, .m = l->v, .q = p[1], .k = p[2], .v = p[3], .o = p[0], .ssm = ssm_fields(p)};
}
static inline ida_s4d_args s4d_of(const problem *l, void *const *p) {
    return (ida_s4d_args){
        .h = l->h, .r = l->d, .d = l->d, .m = l->v, .w = p[1], .k = p[2], .v = p[3], .y = p[0], .ssm = ssm_fields(p)};
}
OP_CALL(interdomain_fwd) {
    const ida_interdomain_args a = interdomain_of(l, p);
    return (void)n, dev->ops->interdomain_chunk_fwd(dev, &a, seqs);
}
OP_CALL(interdomain_bwd) {
    const ida_interdomain_args a = interdomain_of(l, p);
    const ida_interdomain_grads g = {.dout = p[4], .dq = p[5], .dk = p[6], .dv = p[7], .dssm = ssm_grad_fields(p)};
    return (void)n, dev->ops->interdomain_chunk_bwd(dev, &a, &g, seqs);
}
OP_CALL(s4d_fwd) {
    const ida_s4d_args a = s4d_of(l, p);
    return (void)n, dev->ops->s4d_chunk_fwd(dev, &a, seqs);
}
OP_CALL(s4d_bwd) {
    const ida_s4d_args a = s4d_of(l, p);
    const ida_s4d_grads g = {.dy = p[4], .dw = p[5], .dk = p[6], .dv = p[7], .dssm = ssm_grad_fields(p)};
    return (void)n, dev->ops->s4d_chunk_bwd(dev, &a, &g, seqs);
}

/* Decoding of n sequences: o, q (w), k, v, state re, im, lam re, im, b re, im, g re, im */
OP_CALL(interdomain_step) {
    const ida_ssm_prep prep = {p[6], p[7], p[8], p[9], p[10], p[11]};
    const ida_interdomain_args a = {.h = l->h,
                                    .g = l->h,
                                    .r = l->d,
                                    .d = l->d,
                                    .m = l->v,
                                    .q = p[1],
                                    .k = p[2],
                                    .v = p[3],
                                    .o = p[0],
                                    .state_in = {p[4], p[5], l->h * l->v * 2 * l->d}};
    return (void)seqs, dev->ops->interdomain_step(dev, &a, &prep, n);
}
OP_CALL(s4d_step) {
    const ida_ssm_prep prep = {p[6], p[7], p[8], p[9], p[10], p[11]};
    const ida_s4d_args a = {.h = l->h, .r = l->d, .d = l->d, .m = l->v, .w = p[1], .k = p[2], .v = p[3], .y = p[0],
                            .state_in = {p[4], p[5], l->h * l->v * 2 * l->d}};
    return (void)seqs, dev->ops->s4d_step(dev, &a, &prep, n);
}

#endif
