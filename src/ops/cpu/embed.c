/* embed.c - token embedding. The gradient is cut by columns: every task walks all tokens, grouped by id and in token order
 * within an id, so there are no races and each row is read and written once. */
#include "ops/cpu/cpu_ops.h"

#include <assert.h>
#include <string.h>

#include "ops/cpu/simd.h"

enum { COLUMNS = 4 * IDA_VL };

typedef struct embed_args {
    float *out;                    /* y, or dtable */
    const float *in;               /* table, or dy */
    const int32_t *ids;
    const int64_t *next, *last;    /* tokens of one id: last[v] -> next[last] = first -> ... */
    int64_t n, d, vocab, rows;
} embed_args;

static void copy_rows(void *arg, int64_t task, int worker) {
    (void)worker;
    const embed_args *a = arg;
    int64_t end = ida_min(a->n, (task + 1) * a->rows);
    for (int64_t t = task * a->rows; t < end; t++) {
        assert(a->ids[t] >= 0);
        memcpy(a->out + t * a->d, a->in + a->ids[t] * a->d, (size_t)a->d * sizeof(float));
    }
}

ida_status IDA_CPU(embed_fwd)(const ida_device *dev, ida_act *y, const int32_t *ids, const ida_matrix *table, int64_t n) {
    (void)dev;
    const int64_t d = table->cols;
    embed_args a = {.out = ida_act_real(y), .in = ida_matrix_as(table, IDA_TYPE_F32), .ids = ids, .n = n, .d = d,
                    .rows = ida_task_rows(d)};
    ida_parallel(ida_div_up(n, a.rows), copy_rows, &a);
    return IDA_OK;
}

/* Columns [c, c + COLUMNS) of one id's row: sums in double over the id's tokens. */
static void add_tokens(const embed_args *a, int64_t v, int64_t c) {
    float *row = a->out + v * a->d + c;
    vd s[COLUMNS / IDA_VDL];
    for (int i = 0; i < COLUMNS / IDA_VDL; i++) s[i] = vd_loadf(row + i * IDA_VDL);
    for (int64_t t = a->next[a->last[v]];; t = a->next[t]) {
        const float *dy = a->in + t * a->d + c;
        for (int i = 0; i < COLUMNS / IDA_VDL; i++) s[i] += vd_loadf(dy + i * IDA_VDL);
        if (t == a->last[v]) break;
    }
    for (int i = 0; i < COLUMNS / IDA_VDL; i++) vd_storef(row + i * IDA_VDL, s[i]);
}

static void add_tail(const embed_args *a, int64_t v, int64_t c) {
    for (; c < a->d; c++) {
        double s = (double)a->out[v * a->d + c];
        for (int64_t t = a->next[a->last[v]];; t = a->next[t]) {
            s += (double)a->in[t * a->d + c];
            if (t == a->last[v]) break;
        }
        a->out[v * a->d + c] = (float)s;
    }
}

static void add_columns(void *arg, int64_t task, int worker) {
    (void)worker;
    const embed_args *a = arg;
    int64_t c = task * COLUMNS;
    for (int64_t t = 0; t < a->n; t++) {
        int64_t v = a->ids[t];
        if (a->next[a->last[v]] != t) continue; /* not the id's first token */
        if (c + COLUMNS <= a->d) add_tokens(a, v, c);
        else add_tail(a, v, c);
    }
}

ida_status IDA_CPU(embed_bwd)(const ida_device *dev, float *dtable, const int32_t *ids, const ida_act *dya, int64_t n,
                              int64_t vocab, int64_t d) {
    (void)dev;
    const float *dy = ida_act_real(dya);
    int64_t *lists = NULL;
    if (n == 0) return IDA_OK;
    IDA_TRY(IDA_ALLOC(lists, n + vocab, "embed_bwd token lists"));
    int64_t *next = lists, *last = lists + n;
    for (int64_t v = 0; v < vocab; v++) last[v] = -1;
    for (int64_t t = 0; t < n; t++) {
        assert(ids[t] >= 0 && ids[t] < vocab);
        int64_t v = ids[t];
        next[t] = last[v] < 0 ? t : next[last[v]];
        if (last[v] >= 0) next[last[v]] = t;
        last[v] = t;
    }
    embed_args a = {.out = dtable, .in = dy, .ids = ids, .next = next, .last = last, .n = n, .d = d, .vocab = vocab};
    ida_parallel(ida_div_up(d, COLUMNS), add_columns, &a);
    ida_free(lists);
    return IDA_OK;
}
