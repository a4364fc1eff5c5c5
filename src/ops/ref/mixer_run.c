/* mixer_run.c - see ops/mixer_run.h. Compiled for float and for double. */
#include <assert.h>
#include <string.h>
#include "core/mem.h"
#include "ops/mixer_run.h"
#include "ops/ops.h"

static int64_t state_size(const ida_mixer_run *a) { return a->n_kv * a->state_size * (a->key_dim + a->value_dim); }

static ida_interdomain_args op_args(const ida_mixer_run *a) {
    const int64_t stride = state_size(a);
    return (ida_interdomain_args){
        .h = a->n_heads,
        .g = a->n_kv,
        .r = a->key_dim,
        .d = a->value_dim,
        .m = a->state_size,
        .chunk = a->chunk,
        .readout = a->readout,
        .ssm = {.log_dt = a->log_dt,
                .a_log = a->a_log,
                .a_imag = a->a_imag,
                .c_re = a->c_real,
                .c_im = a->c_imag,
                .disc = a->discretization},
        .q = a->q,
        .k = a->k,
        .v = a->v,
        .o = a->o,
        /* The op only reads state_in here: ida_state_ref has no const twin. */
        .state_in = {.re = (real *)(uintptr_t)a->state_real, .im = (real *)(uintptr_t)a->state_imag, .stride = stride},
        .state_out = {.re = a->final_state_real, .im = a->final_state_imag, .stride = stride},
    };
}

/* Decoding, one sequence after another; the state lives in scratch, so the final-state arrays may be absent. */
static ida_status run_step(const ida_device *dev, const ida_mixer_run *a) {
    const int64_t n = state_size(a), gm = a->n_kv * a->state_size;
    ida_interdomain_args op = op_args(a);
    real *mem;
    IDA_TRY(IDA_ALLOC(mem, 4 * gm + 2 * gm * a->state_size + 2 * n, "step form of the mixer"));
    const ida_ssm_prep prep = {.lam_re = mem,
                               .lam_im = mem + gm,
                               .b_re = mem + 2 * gm,
                               .b_im = mem + 3 * gm,
                               .g_re = mem + 4 * gm,
                               .g_im = mem + 4 * gm + gm * a->state_size};
    IDA_REF(ssm_prepare)(&op.ssm, a->n_kv, a->state_size, a->readout, NULL, &prep);
    real *x_re = mem + 4 * gm + 2 * gm * a->state_size, *x_im = x_re + n;
    ida_status st = IDA_OK;
    for (int64_t s = 0; s < a->n_seq && st == IDA_OK; s++) {
        for (int64_t i = 0; i < n; i++) {
            x_re[i] = a->state_real ? ((const real *)a->state_real)[s * n + i] : 0;
            x_im[i] = a->state_real ? ((const real *)a->state_imag)[s * n + i] : 0;
        }
        op.state_in = (ida_state_ref){x_re, x_im, n};
        for (int64_t t = a->cu[s]; t < a->cu[s + 1] && st == IDA_OK; t++) {
            op.q = ida_act_at(dev, a->q, t * op.h * op.r);
            op.k = ida_act_at(dev, a->k, t * op.g * op.r);
            op.v = ida_act_at(dev, a->v, t * op.g * op.d);
            op.o = ida_act_at(dev, a->o, t * op.h * op.d);
            st = dev->ops->interdomain_step(dev, &op, &prep, 1);
        }
        if (a->final_state_real && n > 0) {
            memcpy((real *)a->final_state_real + s * n, x_re, (size_t)n * sizeof(real));
            memcpy((real *)a->final_state_imag + s * n, x_im, (size_t)n * sizeof(real));
        }
    }
    ida_free(mem);
    return st;
}

static ida_status run_backward(const ida_device *dev, const ida_mixer_run *a, ida_form form, const ida_seqs *seqs) {
    const ida_interdomain_args op = op_args(a);
    const int64_t gm = op.g * op.m, stride = state_size(a);
    void *const given[] = {a->grad_q,     a->grad_k,      a->grad_v,      a->grad_log_dt,
                           a->grad_a_log, a->grad_a_imag, a->grad_c_real, a->grad_c_imag};
    const int64_t count[] = {
        a->n_tokens * op.h * op.r, a->n_tokens * op.g * op.r, a->n_tokens * op.g * op.d, op.g, gm, gm, gm * op.m, gm * op.m};
    enum { N_OUT = sizeof count / sizeof *count };
    void *out[N_OUT];
    real *spare;
    int64_t need = 0;
    for (int i = 0; i < N_OUT; i++) need += given[i] ? 0 : count[i];
    IDA_TRY(IDA_ALLOC(spare, need, "gradients the caller did not ask for"));
    for (int64_t i = 0, at = 0; i < N_OUT; i++) {
        out[i] = given[i] ? given[i] : spare + at;
        at += given[i] ? 0 : count[i];
        for (int64_t j = 0; j < count[i]; j++) ((real *)out[i])[j] = 0;
    }
    const ida_interdomain_grads gr = {
        .dout = a->grad_o,
        .dstate_out = {.re = (real *)(uintptr_t)a->grad_final_state_real,
                       .im = (real *)(uintptr_t)a->grad_final_state_imag,
                       .stride = stride},
        .dstate_in = {.re = a->grad_state_real, .im = a->grad_state_imag, .stride = stride},
        .dq = out[0],
        .dk = out[1],
        .dv = out[2],
        .dssm = {.log_dt = out[3], .a_log = out[4], .a_imag = out[5], .c_re = out[6], .c_im = out[7]},
    };
    const ida_status st = form == IDA_FORM_CHUNKED ? dev->ops->interdomain_chunk_bwd(dev, &op, &gr, seqs)
                                                   : dev->ops->interdomain_seq_bwd(dev, &op, &gr, seqs);
    ida_free(spare);
    return st;
}

ida_status IDA_REF(mixer_run)(const ida_device *dev, const ida_mixer_run *a, ida_form form, bool backward) {
    const ida_seqs seqs = {.n = a->n_seq, .cu = a->cu};
    if (backward) {
        assert(form != IDA_FORM_STEP);
        return run_backward(dev, a, form, &seqs);
    }
    const ida_interdomain_args op = op_args(a);
    if (form == IDA_FORM_STEP) return run_step(dev, a);
    return form == IDA_FORM_CHUNKED ? dev->ops->interdomain_chunk_fwd(dev, &op, &seqs)
                                    : dev->ops->interdomain_seq_fwd(dev, &op, &seqs);
}
