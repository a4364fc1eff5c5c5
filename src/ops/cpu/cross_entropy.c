/* cross_entropy.c - negative log-likelihood of the target and, in place, its gradient. One task per few rows; exponentials are
 * summed in fp32 within SPAN elements and in double across. A NaN or +inf among a row's logits makes its loss NaN. */
#include "ops/cpu/cpu_ops.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "ops/cpu/simd.h"

enum { SPAN = 64 * IDA_VL };

typedef struct loss_args {
    float *losses, *logits;
    const int32_t *targets;
    int64_t n, vocab, rows;
    double scale;
} loss_args;

static float row_max(const float *x, int64_t n) {
    vf m = vf_set1(-INFINITY);
    int64_t i = 0;
    for (; i + IDA_VL <= n; i += IDA_VL) m = vf_max(vf_load(x + i), m);
    float top = vf_hmax(m);
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

/* sum of e^(x - top); keep: the exponentials replace x. */
static double row_exp_sum(float *x, int64_t n, float top, bool keep) {
    double sum = 0.0;
    vf t = vf_set1(top);
    for (int64_t begin = 0; begin < n; begin += SPAN) {
        int64_t i = begin, end = ida_min(n, begin + SPAN);
        vf s = vf_zero();
        for (; i + IDA_VL <= end; i += IDA_VL) {
            vf e = vf_exp(vf_load(x + i) - t);
            s += e;
            if (keep) vf_store(x + i, e);
        }
        sum += (double)vf_hsum(s);
        if (i < end) {
            float e[IDA_VL];
            vf_store(e, vf_exp(vf_load_n(x + i, end - i) - t));
            for (int64_t j = 0; j < end - i; j++) sum += (double)e[j];
            if (keep) memcpy(x + i, e, (size_t)(end - i) * sizeof *e);
        }
    }
    return sum;
}

static void row_scale(float *x, int64_t n, float c) {
    vf cv = vf_set1(c);
    int64_t i = 0;
    for (; i + IDA_VL <= n; i += IDA_VL) vf_store(x + i, vf_load(x + i) * cv);
    for (; i < n; i++) x[i] *= c;
}

static void loss_rows(void *arg, int64_t task, int worker) {
    (void)worker;
    const loss_args *a = arg;
    int64_t end = ida_min(a->n, (task + 1) * a->rows);
    bool grad = a->scale != 0.0;
    for (int64_t t = task * a->rows; t < end; t++) {
        float *row = a->logits + t * a->vocab;
        int32_t target = a->targets[t];
        assert(target < a->vocab);
        if (target < 0) {
            if (a->losses) a->losses[t] = 0.0f;
            if (grad) memset(row, 0, (size_t)a->vocab * sizeof *row);
            continue;
        }
        float top = row_max(row, a->vocab), at_target = row[target];
        double sum = row_exp_sum(row, a->vocab, top, grad);
        if (a->losses) a->losses[t] = (float)(log(sum) + ((double)top - (double)at_target));
        if (!grad) continue;
        /* loss = log sum_v e^row_v - row_target:  drow_v = e^row_v / sum - [v = target]. */
        double p_target = (double)row[target] / sum;
        row_scale(row, a->vocab, (float)(a->scale / sum));
        row[target] = (float)(a->scale * (p_target - 1.0));
    }
}

ida_status IDA_CPU(cross_entropy)(const ida_device *dev, float *losses, ida_act *logitsa, const int32_t *targets, int64_t n,
                                  int64_t vocab, double scale) {
    (void)dev;
    float *logits = ida_act_real(logitsa);
    loss_args a = {losses, logits, targets, n, vocab, ida_task_rows(vocab), scale};
    ida_parallel(ida_div_up(n, a.rows), loss_rows, &a);
    return IDA_OK;
}
