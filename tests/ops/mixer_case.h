/* mixer_case.h - one problem for a scan op (interdomain or s4d) with everything it reads and writes, filled with random numbers.
 * Included after `#define IDA_REAL double` by the tests of the reference core: the forms, finite differences and identities are
 * then loops over arrays. Outputs start as NaN, parameter gradients as 0.5, so a missing "=" or "+=" shows. */
#ifndef IDA_TESTS_MIXER_CASE_H
#define IDA_TESTS_MIXER_CASE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "core/mem.h"
#include "core/rng.h"
#include "ops/ops.h"

/* Inputs in order; s4d has w [H,M] in the place of q. Gradients have the same order. */
enum { IN_Q, IN_K, IN_V, IN_LOG_DT, IN_A_LOG, IN_A_IMAG, IN_C_RE, IN_C_IM, IN_STATE_RE, IN_STATE_IM, N_IN };
enum { OUT_O, OUT_FINAL_RE, OUT_FINAL_IM, N_OUT };
static const char *const in_name[N_IN] = {"q or w", "k",    "v",    "log_dt",   "a_log",
                                          "a_imag", "c_re", "c_im", "state_re", "state_im"};
typedef enum form { SEQ, STEP, CHUNK } form;

typedef struct mcase {
    bool s4d;
    int64_t h, g, r, d, m, n, n_seq, chunk;
    const int64_t *cu;
    ida_discretization disc;
    ida_readout readout;
    int64_t n_in[N_IN], n_out[N_OUT];
    double *in[N_IN], *grad[N_IN], *out[N_OUT], *dout[N_OUT];
} mcase;

static inline bool is_param(const mcase *c, int i) { return (i >= IN_LOG_DT && i <= IN_C_IM) || (c->s4d && i == IN_Q); }

static inline void case_poison(mcase *c) {
    for (int i = 0; i < N_IN; i++)
        for (int64_t j = 0; j < c->n_in[i]; j++) c->grad[i][j] = is_param(c, i) ? 0.5 : NAN;
    for (int i = 0; i < N_OUT; i++)
        for (int64_t j = 0; j < c->n_out[i]; j++) c->out[i][j] = NAN;
}

/* Sizes must be set; allocates and fills. Decays and angles are mild: dt about 0.3, alpha about 0.5, angles up to 3 per unit. */
static inline void case_fill(mcase *c, uint64_t seed) {
    const int64_t w = c->r + c->d, state = c->n_seq * c->g * c->m * w, gm = c->g * c->m;
    const int64_t n_in[N_IN] = {c->s4d ? c->h * c->m : c->n * c->h * c->r,
                                c->n * c->g * c->r,
                                c->n * c->g * c->d,
                                c->g,
                                gm,
                                gm,
                                gm * c->m,
                                gm * c->m,
                                state,
                                state};
    const int64_t n_out[N_OUT] = {c->n * c->h * (c->s4d ? w : c->d), state, state};
    uint64_t at = 0;
    memcpy(c->n_in, n_in, sizeof n_in);
    memcpy(c->n_out, n_out, sizeof n_out);
    for (int i = 0; i < N_IN; i++) {
        assert_int_equal(IDA_ALLOC(c->in[i], n_in[i], in_name[i]), IDA_OK);
        assert_int_equal(IDA_ALLOC(c->grad[i], n_in[i], in_name[i]), IDA_OK);
        for (int64_t j = 0; j < n_in[i]; j++) {
            const double x = ida_normal(seed, IDA_STREAM_TEST, at++);
            c->in[i][j] = i == IN_LOG_DT ? -1.2 + 0.3 * x : i == IN_A_LOG ? -0.7 + 0.4 * x : i == IN_A_IMAG ? 1.5 * x : 0.6 * x;
        }
    }
    for (int i = 0; i < N_OUT; i++) {
        assert_int_equal(IDA_ALLOC(c->out[i], n_out[i], "output"), IDA_OK);
        assert_int_equal(IDA_ALLOC(c->dout[i], n_out[i], "output gradient"), IDA_OK);
        for (int64_t j = 0; j < n_out[i]; j++) c->dout[i][j] = ida_normal(seed, IDA_STREAM_TEST, at++);
    }
    case_poison(c);
}

static inline void case_free(mcase *c) {
    for (int i = 0; i < N_IN; i++) ida_free(c->in[i]), ida_free(c->grad[i]);
    for (int i = 0; i < N_OUT; i++) ida_free(c->out[i]), ida_free(c->dout[i]);
}

static inline ida_state_ref state_ref(const mcase *c, double *re, double *im) {
    return (ida_state_ref){re, im, c->g * c->m * (c->r + c->d)};
}

static inline ida_ssm case_ssm(const mcase *c) {
    return (ida_ssm){c->in[IN_LOG_DT], c->in[IN_A_LOG], c->in[IN_A_IMAG], c->in[IN_C_RE], c->in[IN_C_IM], c->disc};
}

static inline ida_interdomain_args inter_args(const mcase *c) {
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

static inline ida_s4d_args s4d_args(const mcase *c) {
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

/* Decoding: one token at a time for every sequence that still has one, state in the final-state arrays. */
static inline void case_step(mcase *c) {
    const int64_t gm = c->g * c->m, stride = gm * (c->r + c->d), ro = c->s4d ? c->h * c->m : gm * c->m;
    double *mem;
    assert_int_equal(IDA_ALLOC(mem, 4 * gm + 2 * ro, "prep"), IDA_OK);
    const ida_ssm_prep prep = {mem, mem + gm, mem + 2 * gm, mem + 3 * gm, mem + 4 * gm, mem + 4 * gm + ro};
    const ida_ssm ssm = case_ssm(c);
    ida_ref64_ssm_prepare(&ssm, c->g, c->m, c->readout, c->s4d ? c->in[IN_Q] : NULL, &prep);
    memcpy(c->out[OUT_FINAL_RE], c->in[IN_STATE_RE], (size_t)c->n_out[OUT_FINAL_RE] * sizeof(double));
    memcpy(c->out[OUT_FINAL_IM], c->in[IN_STATE_IM], (size_t)c->n_out[OUT_FINAL_IM] * sizeof(double));
    for (int64_t s = 0; s < c->n_seq; s++) {
        const ida_state_ref x = state_ref(c, c->out[OUT_FINAL_RE] + s * stride, c->out[OUT_FINAL_IM] + s * stride);
        for (int64_t t = c->cu[s]; t < c->cu[s + 1]; t++) {
            ida_interdomain_args ia = inter_args(c);
            ida_s4d_args sa = s4d_args(c);
            ia.state_in = sa.state_in = x;
            ia.q = ida_act_at(&ida_ref64_device, ia.q, t * c->h * c->r);
            ia.o = ida_act_at(&ida_ref64_device, ia.o, t * c->h * c->d);
            sa.y = ida_act_at(&ida_ref64_device, sa.y, t * c->h * (c->r + c->d));
            sa.k = ia.k = ida_act_at(&ida_ref64_device, ia.k, t * c->g * c->r);
            sa.v = ia.v = ida_act_at(&ida_ref64_device, ia.v, t * c->g * c->d);
            assert_int_equal(c->s4d ? ida_ref64_s4d_step(&ida_ref64_device, &sa, &prep, 1)
                                    : ida_ref64_interdomain_step(&ida_ref64_device, &ia, &prep, 1),
                             IDA_OK);
        }
    }
    ida_free(mem);
}

static inline void case_forward(mcase *c, form f) {
    const ida_seqs seqs = {.n = c->n_seq, .cu = c->cu};
    const ida_device *dev = &ida_ref64_device;
    if (f == STEP) {
        case_step(c);
    } else if (c->s4d) {
        const ida_s4d_args a = s4d_args(c);
        assert_int_equal((f == CHUNK ? ida_ref64_s4d_chunk_fwd : ida_ref64_s4d_seq_fwd)(dev, &a, &seqs), IDA_OK);
    } else {
        const ida_interdomain_args a = inter_args(c);
        assert_int_equal((f == CHUNK ? ida_ref64_interdomain_chunk_fwd : ida_ref64_interdomain_seq_fwd)(dev, &a, &seqs), IDA_OK);
    }
}

static inline void case_backward(mcase *c, form f) {
    const ida_seqs seqs = {.n = c->n_seq, .cu = c->cu};
    const ida_device *dev = &ida_ref64_device;
    double *const *d = c->grad;
    const ida_ssm_grads dssm = {d[IN_LOG_DT], d[IN_A_LOG], d[IN_A_IMAG], d[IN_C_RE], d[IN_C_IM]};
    const ida_state_ref last = state_ref(c, c->dout[OUT_FINAL_RE], c->dout[OUT_FINAL_IM]),
                        first = state_ref(c, d[IN_STATE_RE], d[IN_STATE_IM]);
    if (c->s4d) {
        const ida_s4d_args a = s4d_args(c);
        const ida_s4d_grads g = {.dy = ida_act_of(c->dout[OUT_O]),
                                 .dstate_out = last,
                                 .dstate_in = first,
                                 .dk = ida_act_of(d[IN_K]),
                                 .dv = ida_act_of(d[IN_V]),
                                 .dw = d[IN_Q],
                                 .dssm = dssm};
        assert_int_equal((f == CHUNK ? ida_ref64_s4d_chunk_bwd : ida_ref64_s4d_seq_bwd)(dev, &a, &g, &seqs), IDA_OK);
    } else {
        const ida_interdomain_args a = inter_args(c);
        const ida_interdomain_grads g = {.dout = ida_act_of(c->dout[OUT_O]),
                                         .dstate_out = last,
                                         .dstate_in = first,
                                         .dq = ida_act_of(d[IN_Q]),
                                         .dk = ida_act_of(d[IN_K]),
                                         .dv = ida_act_of(d[IN_V]),
                                         .dssm = dssm};
        assert_int_equal((f == CHUNK ? ida_ref64_interdomain_chunk_bwd : ida_ref64_interdomain_seq_bwd)(dev, &a, &g, &seqs),
                         IDA_OK);
    }
}

/* sum o dO + sum Re X dRe + sum Im X dIm after a forward pass. */
static inline double case_loss(mcase *c, form f) {
    double sum = 0;
    case_forward(c, f);
    for (int i = 0; i < N_OUT; i++)
        for (int64_t j = 0; j < c->n_out[i]; j++) sum += c->out[i][j] * c->dout[i][j];
    return sum;
}

/* max |a - b| / max(|b|, floor); NaN and infinity count as infinite. */
static inline double rel_diff(const double *a, const double *b, int64_t n) {
    double diff = 0, top = 1e-300;
    for (int64_t i = 0; i < n; i++) {
        const double e = fabs(a[i] - b[i]);
        if (!(e <= diff)) diff = isfinite(e) ? e : INFINITY;
        top = fmax(top, fabs(b[i]));
    }
    return diff / top;
}

#define assert_close(a, b, n, limit, ...) \
    do { \
        const double off_ = rel_diff((a), (b), (n)); \
        if (!(off_ <= (limit))) { \
            print_error(__VA_ARGS__); \
            fail_msg(": off by %.3g, limit %g", off_, (double)(limit)); \
        } \
    } while (0)

static inline void assert_outputs_close(const mcase *a, const mcase *b, double limit, const char *what) {
    for (int i = 0; i < N_OUT; i++) assert_close(a->out[i], b->out[i], b->n_out[i], limit, "%s, output %d", what, i);
}
static inline void assert_grads_close(const mcase *a, const mcase *b, double limit, const char *what) {
    for (int i = 0; i < N_IN; i++)
        assert_close(a->grad[i], b->grad[i], b->n_in[i], limit, "%s, gradient of %s", what, in_name[i]);
}

/* A second case with the same inputs. */
static inline mcase case_copy(const mcase *from) {
    mcase c = *from;
    for (int i = 0; i < N_IN; i++) {
        assert_int_equal(IDA_ALLOC(c.in[i], c.n_in[i], "copy"), IDA_OK);
        assert_int_equal(IDA_ALLOC(c.grad[i], c.n_in[i], "copy"), IDA_OK);
        if (c.n_in[i]) memcpy(c.in[i], from->in[i], (size_t)c.n_in[i] * sizeof(double));
    }
    for (int i = 0; i < N_OUT; i++) {
        assert_int_equal(IDA_ALLOC(c.out[i], c.n_out[i], "copy"), IDA_OK);
        assert_int_equal(IDA_ALLOC(c.dout[i], c.n_out[i], "copy"), IDA_OK);
        if (c.n_out[i]) memcpy(c.dout[i], from->dout[i], (size_t)c.n_out[i] * sizeof(double));
    }
    case_poison(&c);
    return c;
}

/* The sub-case of tokens [from, to) of sequence s, as one sequence: token and output rows are views into the parent, the state
 * arrays views at s. Parameter gradients accumulate in the parent. */
static inline mcase case_slice(const mcase *p, int64_t s, int64_t from, int64_t to, int64_t cu[2]) {
    mcase c = *p;
    const int64_t w = p->r + p->d, state = p->g * p->m * w, out_w = p->s4d ? w : p->d;
    cu[0] = 0, cu[1] = to - from;
    c.n = to - from, c.n_seq = 1, c.cu = cu;
    for (int pass = 0; pass < 2; pass++) {
        double **t = pass ? c.grad : c.in;
        if (!p->s4d) t[IN_Q] += from * p->h * p->r;
        t[IN_K] += from * p->g * p->r;
        t[IN_V] += from * p->g * p->d;
        t[IN_STATE_RE] += s * state;
        t[IN_STATE_IM] += s * state;
        double **o = pass ? c.dout : c.out;
        o[OUT_O] += from * p->h * out_w;
        o[OUT_FINAL_RE] += s * state;
        o[OUT_FINAL_IM] += s * state;
    }
    c.n_in[IN_STATE_RE] = c.n_in[IN_STATE_IM] = c.n_out[OUT_FINAL_RE] = c.n_out[OUT_FINAL_IM] = state;
    return c;
}

#endif
