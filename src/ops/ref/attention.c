/* attention.c - causal softmax attention, one query at a time. The backward pass forms its own softmax and does not use the
 * saved lse or o, so it proves them. Scratch: one row of scores and, backward, double sums for one sequence. */
#include "ops/ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "core/mem.h"

static int64_t max_len(const ida_seqs *seqs, bool cached) {
    int64_t m = 0;
    for (int64_t s = 0; s < seqs->n; s++) {
        int64_t len = seqs->cu[s + 1] - seqs->cu[s] + (cached && seqs->pos0 ? seqs->pos0[s] : 0);
        if (len > m) m = len;
    }
    return m;
}

/* p[0..n) = softmax_j(q.k_j / sqrt(d)), k_j at k + j * stride; returns log-sum-exp. */
static double softmax_row(double *p, const real *q, const real *k, int64_t n, int64_t stride, int64_t d) {
    double scale = 1.0 / sqrt((double)d), top = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < n; j++) {
        double s = 0.0;
        for (int64_t i = 0; i < d; i++) s += (double)q[i] * (double)k[j * stride + i];
        p[j] = s * scale;
        if (p[j] > top) top = p[j];
    }
    for (int64_t j = 0; j < n; j++) {
        p[j] = exp(p[j] - top);
        sum += p[j];
    }
    for (int64_t j = 0; j < n; j++) p[j] /= sum;
    return top + log(sum);
}

ida_status IDA_REF(attention_fwd)(const ida_device *dev, const ida_attention_args *a, const ida_seqs *seqs) {
    (void)dev;
    assert(a->h % a->g == 0);
    int64_t h = a->h, g = a->g, d = a->d, row = g * d;
    bool cached = a->k_cache != NULL;
    const real *q = ida_act_real(a->q), *new_k = ida_act_real(a->k), *new_v = ida_act_real(a->v);
    real *o = ida_act_real(a->o);
    double *p = NULL, *acc = NULL;
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(IDA_ALLOC(p, max_len(seqs, cached), "attention scores"));
    IDA_TRY_GOTO(IDA_ALLOC(acc, d, "attention row"));
    for (int64_t s = 0; s < seqs->n; s++) {
        int64_t begin = seqs->cu[s], len = seqs->cu[s + 1] - begin, past = cached && seqs->pos0 ? seqs->pos0[s] : 0;
        const real *k = new_k + begin * row, *v = new_v + begin * row;
        if (cached && len > 0) {
            real *k_cache = ida_act_real(a->k_cache[s]), *v_cache = ida_act_real(a->v_cache[s]);
            memcpy(k_cache + past * row, k, (size_t)(len * row) * sizeof *k);
            memcpy(v_cache + past * row, v, (size_t)(len * row) * sizeof *v);
            k = k_cache;
            v = v_cache;
        }
        for (int64_t t = 0; t < len; t++)
            for (int64_t j = 0; j < h; j++) {
                int64_t at = (begin + t) * h + j, kv = j / (h / g) * d;
                double lse = softmax_row(p, q + at * d, k + kv, past + t + 1, row, d);
                if (a->lse) a->lse[at] = (real)lse;
                for (int64_t i = 0; i < d; i++) acc[i] = 0.0;
                for (int64_t u = 0; u <= past + t; u++)
                    for (int64_t i = 0; i < d; i++) acc[i] += p[u] * (double)v[u * row + kv + i];
                for (int64_t i = 0; i < d; i++) o[at * d + i] = (real)acc[i];
            }
    }
out:
    ida_free(acc);
    ida_free(p);
    return st;
}

/* o = sum_j p_j v_j, p = softmax(s):  dv_j = p_j do,  ds_j = p_j (do.v_j - sum_l p_l do.v_l),  s_j = q.k_j / sqrt(d). */
static void query_bwd(double *p, double *dp, double *dk, double *dv, real *dq, const real *q, const real *k, const real *v,
                      const real *dout, int64_t n, int64_t stride, int64_t d) {
    double scale = 1.0 / sqrt((double)d), mean = 0.0;
    softmax_row(p, q, k, n, stride, d);
    for (int64_t j = 0; j < n; j++) {
        dp[j] = 0.0;
        for (int64_t i = 0; i < d; i++) {
            dp[j] += (double)dout[i] * (double)v[j * stride + i];
            dv[j * stride + i] += p[j] * (double)dout[i];
        }
        mean += p[j] * dp[j];
    }
    for (int64_t j = 0; j < n; j++) {
        dp[j] = p[j] * (dp[j] - mean) * scale;
        for (int64_t i = 0; i < d; i++) dk[j * stride + i] += dp[j] * (double)q[i];
    }
    for (int64_t i = 0; i < d; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < n; j++) sum += dp[j] * (double)k[j * stride + i];
        dq[i] = (real)sum;
    }
}

ida_status IDA_REF(attention_bwd)(const ida_device *dev, ida_act *dqa, ida_act *dka, ida_act *dva, const ida_act *douta,
                                  const ida_attention_args *a, const ida_seqs *seqs) {
    (void)dev;
    real *dq = ida_act_real(dqa), *dk = ida_act_real(dka), *dv = ida_act_real(dva);
    const real *dout = ida_act_real(douta), *q = ida_act_real(a->q), *k = ida_act_real(a->k), *v = ida_act_real(a->v);
    assert(a->h % a->g == 0 && !a->k_cache);
    int64_t h = a->h, g = a->g, d = a->d, row = g * d, longest = max_len(seqs, false);
    double *p = NULL, *sum = NULL;
    ida_status st = IDA_OK;
    IDA_TRY_GOTO(IDA_ALLOC(p, 2 * longest, "attention scores"));
    IDA_TRY_GOTO(IDA_ALLOC(sum, 2 * longest * row, "attention_bwd sums"));
    for (int64_t s = 0; s < seqs->n; s++) {
        int64_t begin = seqs->cu[s], len = seqs->cu[s + 1] - begin, size = len * row;
        for (int64_t i = 0; i < 2 * size; i++) sum[i] = 0.0;
        for (int64_t t = 0; t < len; t++)
            for (int64_t j = 0; j < h; j++) {
                int64_t at = ((begin + t) * h + j) * d, kv = j / (h / g) * d;
                query_bwd(p, p + longest, sum + kv, sum + size + kv, dq + at, q + at, k + begin * row + kv,
                          v + begin * row + kv, dout + at, t + 1, row, d);
            }
        for (int64_t i = 0; i < size; i++) {
            dk[begin * row + i] = (real)sum[i];
            dv[begin * row + i] = (real)sum[size + i];
        }
    }
out:
    ida_free(sum);
    ida_free(p);
    return st;
}
