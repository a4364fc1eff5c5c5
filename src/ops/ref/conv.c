/* conv.c - causal depthwise convolution over time, width 4, with state (method step 2). Time -3..-1 is the state. */
#include "ops/ops.h"

#include <assert.h>

#include "core/mem.h"

/* Input of channel c at time t >= -3 of a sequence. */
static double input_at(const real *x, const real *state, int64_t t, int64_t d, int64_t c) {
    if (t >= 0) return (double)x[t * d + c];
    return state ? (double)state[(t + 3) * d + c] : 0.0;
}

ida_status IDA_REF(conv_fwd)(const ida_device *dev, ida_act *ya, real *state_out, const ida_act *xa, const real *w,
                             const real *b, const real *state_in, int64_t stride, const ida_seqs *seqs, int64_t d) {
    (void)dev;
    real *y = ida_act_real(ya);
    const real *x = ida_act_real(xa);
    assert(stride >= 3 * d || (!state_in && !state_out));
    for (int64_t s = 0; s < seqs->n; s++) {
        int64_t len = seqs->cu[s + 1] - seqs->cu[s];
        const real *xs = x + seqs->cu[s] * d, *in = state_in ? state_in + s * stride : NULL;
        real *ys = y + seqs->cu[s] * d;
        for (int64_t t = 0; t < len; t++)
            for (int64_t c = 0; c < d; c++) {
                double a = (double)b[c];
                for (int64_t k = 0; k < 4; k++) a += (double)w[c * 4 + k] * input_at(xs, in, t - 3 + k, d, c);
                ys[t * d + c] = (real)a;
            }
        if (!state_out) continue;
        /* Row j comes from row j + len or later: ascending order is safe when state_out is state_in. */
        for (int64_t j = 0; j < 3; j++)
            for (int64_t c = 0; c < d; c++) state_out[s * stride + j * d + c] = (real)input_at(xs, in, len - 3 + j, d, c);
    }
    return IDA_OK;
}

/* Gradient of the input at time u >= -3: every later output that saw it, and its place in the final state. */
static double input_grad(const ida_conv_bwd_args *a, const real *dy, const real *dstate_out, int64_t len, int64_t u,
                         int64_t c) {
    double g = 0.0;
    for (int64_t k = 0; k < 4; k++) {
        int64_t t = u + 3 - k; /* y_t = b + sum_k w_k x_{t-3+k} */
        if (t >= 0 && t < len) g += (double)a->w[c * 4 + k] * (double)dy[t * a->d + c];
    }
    int64_t j = u + 3 - len; /* state_out[j] = x_{len-3+j} */
    if (dstate_out && j >= 0 && j < 3) g += (double)dstate_out[j * a->d + c];
    return g;
}

ida_status IDA_REF(conv_bwd)(const ida_device *dev, const ida_conv_bwd_args *a, const ida_seqs *seqs) {
    (void)dev;
    int64_t d = a->d;
    double *sum = NULL; /* dw [d,4], then db [d] */
    IDA_TRY(IDA_CALLOC(sum, d * 5, "conv_bwd parameter gradients"));
    for (int64_t s = 0; s < seqs->n; s++) {
        int64_t len = seqs->cu[s + 1] - seqs->cu[s];
        const real *x = ida_act_real(a->x) + seqs->cu[s] * d, *dy = ida_act_real(a->dy) + seqs->cu[s] * d;
        real *dx = ida_act_real(a->dx) + seqs->cu[s] * d;
        const real *in = a->state_in ? a->state_in + s * a->stride : NULL;
        const real *dso = a->dstate_out ? a->dstate_out + s * a->stride : NULL;
        for (int64_t c = 0; c < d; c++) {
            for (int64_t t = 0; t < len; t++) {
                double g = (double)dy[t * d + c];
                for (int64_t k = 0; k < 4; k++) sum[c * 4 + k] += g * input_at(x, in, t - 3 + k, d, c);
                sum[4 * d + c] += g;
                dx[t * d + c] = (real)input_grad(a, dy, dso, len, t, c);
            }
            for (int64_t j = 0; a->dstate_in && j < 3; j++)
                a->dstate_in[s * a->stride + j * d + c] = (real)input_grad(a, dy, dso, len, j - 3, c);
        }
    }
    if (seqs->cu[seqs->n] > 0) {
        for (int64_t i = 0; i < d * 4; i++) a->dw[i] = (real)((double)a->dw[i] + sum[i]);
        for (int64_t c = 0; c < d; c++) a->db[c] = (real)((double)a->db[c] + sum[4 * d + c]);
    }
    ida_free(sum);
    return IDA_OK;
}
