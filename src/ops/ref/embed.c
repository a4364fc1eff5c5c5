/* embed.c - token embedding. Invariant: rows of one id are summed in token order, in double. */
#include "ops/ref/row.h"

#include <assert.h>
#include <string.h>

#include "core/mem.h"

ida_status IDA_REF(embed_fwd)(const ida_device *dev, ida_act *ya, const int32_t *ids, const ida_matrix *table, int64_t n) {
    (void)dev;
    real *y = ida_act_real(ya);
    const int64_t d = table->cols;
    for (int64_t t = 0; t < n; t++) {
        assert(ids[t] >= 0);
        const real *row = ida_matrix_row(table, ids[t], y + t * d);
        if (row != y + t * d) memcpy(y + t * d, row, (size_t)d * sizeof *y);
    }
    return IDA_OK;
}

/* y_t = table[ids_t]:  dtable[v] += sum over t with ids_t = v of dy_t. */
ida_status IDA_REF(embed_bwd)(const ida_device *dev, real *dtable, const int32_t *ids, const ida_act *dya, int64_t n,
                              int64_t vocab, int64_t d) {
    (void)dev;
    const real *dy = ida_act_real(dya);
    int64_t *next = NULL, *last = NULL; /* tokens of one id as a list: last[v] -> next[last] = first -> ... */
    double *sum = NULL;
    ida_status st = IDA_OK;
    if (n == 0) return IDA_OK;
    IDA_TRY_GOTO(IDA_ALLOC(next, n, "embed_bwd token lists"));
    IDA_TRY_GOTO(IDA_ALLOC(last, vocab, "embed_bwd token lists"));
    IDA_TRY_GOTO(IDA_ALLOC(sum, d, "embed_bwd row"));
    for (int64_t v = 0; v < vocab; v++) last[v] = -1;
    for (int64_t t = 0; t < n; t++) {
        assert(ids[t] >= 0 && ids[t] < vocab);
        int64_t v = ids[t];
        next[t] = last[v] < 0 ? t : next[last[v]];
        if (last[v] >= 0) next[last[v]] = t;
        last[v] = t;
    }
    for (int64_t v = 0; v < vocab; v++) {
        if (last[v] < 0) continue;
        real *row = dtable + v * d;
        for (int64_t i = 0; i < d; i++) sum[i] = (double)row[i];
        for (int64_t t = next[last[v]];; t = next[t]) {
            for (int64_t i = 0; i < d; i++) sum[i] += (double)dy[t * d + i];
            if (t == last[v]) break;
        }
        for (int64_t i = 0; i < d; i++) row[i] = (real)sum[i];
    }
out:
    ida_free(sum);
    ida_free(last);
    ida_free(next);
    return st;
}
