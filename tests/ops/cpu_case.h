/* cpu_case.h - one fp32 problem for a scan op (interdomain or s4d) with everything it reads and writes, to run on any device.
 * Every array ends at an unreadable page, so touching one element too many is a fault in each test that uses it. Outputs start as
 * NaN, parameter gradients as 0.5, so a missing "=" or "+=" shows. The truth is ref's sequential form: fp32 arrays, double
 * inside. */
#ifndef IDA_TESTS_CPU_CASE_H
#define IDA_TESTS_CPU_CASE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>
#include "core/bf16.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/threads.h"
#include "ops/ops.h"

/* s4d has w [H,M] in the place of q. Gradients have the order of the inputs. */
enum { IN_Q, IN_K, IN_V, IN_LOG_DT, IN_A_LOG, IN_A_IMAG, IN_C_RE, IN_C_IM, IN_STATE_RE, IN_STATE_IM, N_IN };
enum { OUT_O, OUT_FINAL_RE, OUT_FINAL_IM, N_OUT };
static const char *const in_name[N_IN] = {"q or w", "k",    "v",    "log_dt",   "a_log",
                                          "a_imag", "c_re", "c_im", "state_re", "state_im"};
static const char *const out_name[N_OUT] = {"o", "final_re", "final_im"};
typedef enum form { SEQ, CHUNK } form;

typedef struct ccase {
    bool s4d, no_state;    /* no_state: neither states nor their gradients are given or wanted */
    int64_t h, g, r, d, m, n_seq, chunk;
    int64_t cu[48];
    ida_discretization disc;
    ida_readout readout;
    int64_t n_in[N_IN], n_out[N_OUT];
    float *in[N_IN], *grad[N_IN], *out[N_OUT], *dout[N_OUT];
} ccase;

/* n floats that end where a page without access begins. */
static inline float *guarded(int64_t n) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)n * sizeof(float), body = (bytes + page - 1) / page * page;
    char *p = mmap(NULL, body + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    assert_int_equal(mprotect(p + body, page, PROT_NONE), 0);
    return (float *)(void *)(p + body - bytes);
}
static inline void guarded_free(float *p, int64_t n) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)n * sizeof(float), body = (bytes + page - 1) / page * page;
    munmap((char *)p + bytes - body, body + page);
}

static inline int64_t case_tokens(const ccase *c) { return c->cu[c->n_seq]; }
static inline bool is_param(const ccase *c, int i) { return (i >= IN_LOG_DT && i <= IN_C_IM) || (c->s4d && i == IN_Q); }

static inline void case_sizes(ccase *c) {
    const int64_t n = case_tokens(c), w = c->r + c->d, gm = c->g * c->m, state = c->n_seq * gm * w;
    const int64_t n_in[N_IN] = {c->s4d ? c->h * c->m : n * c->h * c->r,
                                n * c->g * c->r,
                                n * c->g * c->d,
                                c->g,
                                gm,
                                gm,
                                gm * c->m,
                                gm * c->m,
                                state,
                                state};
    const int64_t n_out[N_OUT] = {n * c->h * (c->s4d ? w : c->d), state, state};
    memcpy(c->n_in, n_in, sizeof n_in);
    memcpy(c->n_out, n_out, sizeof n_out);
}

static inline void case_poison(ccase *c) {
    for (int i = 0; i < N_IN; i++)
        for (int64_t j = 0; j < c->n_in[i]; j++) c->grad[i][j] = is_param(c, i) ? 0.5f : NAN;
    for (int i = 0; i < N_OUT; i++)
        for (int64_t j = 0; j < c->n_out[i]; j++) c->out[i][j] = NAN;
}

static inline void case_alloc(ccase *c) {
    case_sizes(c);
    for (int i = 0; i < N_IN; i++) c->in[i] = guarded(c->n_in[i]), c->grad[i] = guarded(c->n_in[i]);
    for (int i = 0; i < N_OUT; i++) c->out[i] = guarded(c->n_out[i]), c->dout[i] = guarded(c->n_out[i]);
    case_poison(c);
}

/* Allocates and fills. Decay per step around 0.15 (dt 0.3, exp(a_log) 0.5), angles up to a few per unit of time; q, k of unit
 * length as the feature map makes them, C with E|C|^2 = 1/M. */
static inline void case_open(ccase *c, uint64_t seed) {
    uint64_t at = 0;
    case_alloc(c);
    for (int i = 0; i < N_IN; i++)
        for (int64_t j = 0; j < c->n_in[i]; j++) {
            const double x = ida_normal(seed, IDA_STREAM_TEST, at++);
            const double scale = i == IN_Q || i == IN_K         ? 1 / sqrt((double)c->r)
                                 : i == IN_C_RE || i == IN_C_IM ? sqrt(0.5 / (double)c->m)
                                                                : 1;
            c->in[i][j] = (float)(i == IN_LOG_DT   ? -1.2 + 0.3 * x
                                  : i == IN_A_LOG  ? -0.7 + 0.4 * x
                                  : i == IN_A_IMAG ? 3 * x
                                                   : scale * x);
        }
    for (int i = 0; i < N_OUT; i++)
        for (int64_t j = 0; j < c->n_out[i]; j++) c->dout[i][j] = (float)ida_normal(seed, IDA_STREAM_TEST, at++);
}

static inline void case_close(ccase *c) {
    for (int i = 0; i < N_IN; i++) guarded_free(c->in[i], c->n_in[i]), guarded_free(c->grad[i], c->n_in[i]);
    for (int i = 0; i < N_OUT; i++) guarded_free(c->out[i], c->n_out[i]), guarded_free(c->dout[i], c->n_out[i]);
}

/* Another case with the same sizes and inputs. */
static inline ccase case_copy(const ccase *from) {
    ccase c = *from;
    case_alloc(&c);
    for (int i = 0; i < N_IN; i++) memcpy(c.in[i], from->in[i], (size_t)c.n_in[i] * sizeof(float));
    for (int i = 0; i < N_OUT; i++) memcpy(c.dout[i], from->dout[i], (size_t)c.n_out[i] * sizeof(float));
    return c;
}

/* Tokens [from, to) of sequence s as one sequence; arrays are views into the parent. */
static inline ccase case_slice(const ccase *p, int64_t s, int64_t from, int64_t to) {
    ccase c = *p;
    const int64_t w = p->r + p->d, state = p->g * p->m * w;
    c.n_seq = 1, c.cu[0] = 0, c.cu[1] = to - from;
    for (int pass = 0; pass < 2; pass++) {
        float **t = pass ? c.grad : c.in, **o = pass ? c.dout : c.out;
        if (!p->s4d) t[IN_Q] += from * p->h * p->r;
        t[IN_K] += from * p->g * p->r, t[IN_V] += from * p->g * p->d;
        t[IN_STATE_RE] += s * state, t[IN_STATE_IM] += s * state;
        o[OUT_O] += from * p->h * (p->s4d ? w : p->d), o[OUT_FINAL_RE] += s * state, o[OUT_FINAL_IM] += s * state;
    }
    case_sizes(&c);
    return c;
}

static inline ida_state_ref state_ref(const ccase *c, float *re, float *im) {
    return c->no_state ? (ida_state_ref){NULL, NULL, 0} : (ida_state_ref){re, im, c->g * c->m * (c->r + c->d)};
}
static inline ida_ssm case_ssm(const ccase *c) {
    return (ida_ssm){c->in[IN_LOG_DT], c->in[IN_A_LOG], c->in[IN_A_IMAG], c->in[IN_C_RE], c->in[IN_C_IM], c->disc};
}
static inline ida_interdomain_args inter_args(const ccase *c) {
    return (ida_interdomain_args){.h = c->h,
                                  .g = c->g,
                                  .r = c->r,
                                  .d = c->d,
                                  .m = c->m,
                                  .chunk = c->chunk,
                                  .readout = c->readout,
                                  .ssm = case_ssm(c),
                                  .q = ida_act_of(c->in[IN_Q]),
                                  .k = ida_act_of(c->in[IN_K]),
                                  .v = ida_act_of(c->in[IN_V]),
                                  .o = ida_act_of(c->out[OUT_O]),
                                  .state_in = state_ref(c, c->in[IN_STATE_RE], c->in[IN_STATE_IM]),
                                  .state_out = state_ref(c, c->out[OUT_FINAL_RE], c->out[OUT_FINAL_IM])};
}
static inline ida_s4d_args s4d_args(const ccase *c) {
    return (ida_s4d_args){.h = c->h,
                          .r = c->r,
                          .d = c->d,
                          .m = c->m,
                          .chunk = c->chunk,
                          .ssm = case_ssm(c),
                          .k = ida_act_of(c->in[IN_K]),
                          .v = ida_act_of(c->in[IN_V]),
                          .w = c->in[IN_Q],
                          .y = ida_act_of(c->out[OUT_O]),
                          .state_in = state_ref(c, c->in[IN_STATE_RE], c->in[IN_STATE_IM]),
                          .state_out = state_ref(c, c->out[OUT_FINAL_RE], c->out[OUT_FINAL_IM])};
}

static inline void case_forward(const ccase *c, const ida_device *dev, form f) {
    const ida_seqs seqs = {.n = c->n_seq, .cu = c->cu};
    const ida_interdomain_args a = inter_args(c);
    const ida_s4d_args s = s4d_args(c);
    const ida_status st = c->s4d ? (f == CHUNK ? dev->ops->s4d_chunk_fwd : dev->ops->s4d_seq_fwd)(dev, &s, &seqs)
                                 : (f == CHUNK ? dev->ops->interdomain_chunk_fwd : dev->ops->interdomain_seq_fwd)(dev, &a, &seqs);
    if (st) fail_msg("%s", ida_last_error());
}

static inline void case_backward(const ccase *c, const ida_device *dev, form f) {
    const ida_seqs seqs = {.n = c->n_seq, .cu = c->cu};
    float *const *d = c->grad;
    const ida_ssm_grads dssm = {d[IN_LOG_DT], d[IN_A_LOG], d[IN_A_IMAG], d[IN_C_RE], d[IN_C_IM]};
    const ida_state_ref last = state_ref(c, c->dout[OUT_FINAL_RE], c->dout[OUT_FINAL_IM]),
                        first = state_ref(c, d[IN_STATE_RE], d[IN_STATE_IM]);
    const ida_interdomain_args a = inter_args(c);
    const ida_interdomain_grads ga = {.dout = ida_act_of(c->dout[OUT_O]),
                                      .dstate_out = last,
                                      .dstate_in = first,
                                      .dq = ida_act_of(d[IN_Q]),
                                      .dk = ida_act_of(d[IN_K]),
                                      .dv = ida_act_of(d[IN_V]),
                                      .dssm = dssm};
    const ida_s4d_args s = s4d_args(c);
    const ida_s4d_grads gs = {.dy = ida_act_of(c->dout[OUT_O]),
                              .dstate_out = last,
                              .dstate_in = first,
                              .dk = ida_act_of(d[IN_K]),
                              .dv = ida_act_of(d[IN_V]),
                              .dw = d[IN_Q],
                              .dssm = dssm};
    const ida_status st =
        c->s4d ? (f == CHUNK ? dev->ops->s4d_chunk_bwd : dev->ops->s4d_seq_bwd)(dev, &s, &gs, &seqs)
               : (f == CHUNK ? dev->ops->interdomain_chunk_bwd : dev->ops->interdomain_seq_bwd)(dev, &a, &ga, &seqs);
    if (st) fail_msg("%s", ida_last_error());
}

static inline void case_run(const ccase *c, const ida_device *dev, form f) {
    case_forward(c, dev, f);
    case_backward(c, dev, f);
}

/* max |a - b| / max |b|; not finite counts as infinite. Parameter gradients are compared without the 0.5 they started from. */
static inline double rel_diff(const float *a, const float *b, int64_t n, double start) {
    double diff = 0, top = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        const double e = fabs((double)a[i] - (double)b[i]);
        if (!(e <= diff)) diff = isfinite(e) ? e : INFINITY;
        top = fmax(top, fabs((double)b[i] - start));
    }
    return diff / top;
}

static inline double out_diff(const ccase *a, const ccase *b, int i) {
    return a->no_state && i != OUT_O ? 0 : rel_diff(a->out[i], b->out[i], b->n_out[i], 0);
}
static inline double grad_diff(const ccase *a, const ccase *b, int i) {
    return a->no_state && i >= IN_STATE_RE ? 0 : rel_diff(a->grad[i], b->grad[i], b->n_in[i], is_param(b, i) ? 0.5 : 0);
}

static inline void assert_case_close(const ccase *a, const ccase *b, double out_limit, double grad_limit, const char *what) {
    for (int i = 0; i < N_OUT; i++)
        if (!(out_diff(a, b, i) <= out_limit))
            fail_msg("%s: %s is off by %.3g, limit %g", what, out_name[i], out_diff(a, b, i), out_limit);
    for (int i = 0; i < N_IN; i++)
        if (!(grad_diff(a, b, i) <= grad_limit))
            fail_msg("%s: gradient of %s is off by %.3g, limit %g", what, in_name[i], grad_diff(a, b, i), grad_limit);
}

/* Outputs and gradients with the same bits; parameter gradients too when `params`. */
static inline void assert_case_equal(const ccase *a, const ccase *b, bool params, const char *what) {
    for (int i = 0; i < N_OUT; i++)
        if (memcmp(a->out[i], b->out[i], (size_t)b->n_out[i] * sizeof(float)))
            fail_msg("%s: %s has other bits", what, out_name[i]);
    for (int i = 0; i < N_IN; i++)
        if ((params || !is_param(b, i)) && memcmp(a->grad[i], b->grad[i], (size_t)b->n_in[i] * sizeof(float)))
            fail_msg("%s: the gradient of %s has other bits", what, in_name[i]);
}

/* Calls f for every instruction set of this machine. */
static inline void each_isa(void (*f)(const ida_device *)) {
    for (int isa = 0; isa < IDA_N_ISA; isa++)
        if (ida_cpu_device_for((ida_isa)isa)) f(ida_cpu_device_for((ida_isa)isa));
}

#endif
