/* rows.c - training batches out of a data set: which samples, in which order, and where sequences start. See dataset.h. */
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "data/dataset.h"

int64_t ida_dataset_samples(const ida_dataset *d, int64_t T) {
    int64_t pairs = ida_dataset_tokens(d) - 1;
    return pairs < 1 || T < 1 ? 0 : (pairs - 1) / T + 1;
}

ida_status ida_rows_new(int64_t rows, int64_t T, ida_rows **out) {
    int64_t n;
    IDA_FAIL_IF(rows < 1 || T < 1, IDA_E_ARG, "a batch of %lld rows of %lld tokens: both must be at least 1", (long long)rows,
                (long long)T);
    IDA_FAIL_IF(!ida_mul64(rows, T, &n) || n >= INT64_MAX / 16, IDA_E_ARG, "a batch of %lld rows of %lld tokens is too large",
                (long long)rows, (long long)T);
    ida_rows *r = NULL;
    ida_status st;
    IDA_TRY(IDA_CALLOC(r, 1, "batch"));
    r->rows = rows;
    r->T = T;
    IDA_TRY_GOTO(IDA_ALLOC(r->ids, n, "batch"));
    IDA_TRY_GOTO(IDA_ALLOC(r->targets, n, "batch"));
    IDA_TRY_GOTO(IDA_ALLOC(r->cu, n + 1, "batch"));
    IDA_TRY_GOTO(IDA_CALLOC(r->pos0, n, "batch"));
    r->cu[0] = 0;
    *out = r;
    return IDA_OK;
out:
    ida_rows_free(r);
    return st;
}

void ida_rows_free(ida_rows *r) {
    if (!r) return;
    ida_free(r->ids);
    ida_free(r->targets);
    ida_free(r->cu);
    ida_free(r->pos0);
    ida_free(r);
}

static void clear_rows(ida_rows *r) {
    r->n_tokens = r->n_seq = r->n_scored = 0;
    r->cu[0] = 0;
}

/* Appends sample `index`: inputs [i*T, i*T+n), targets one further on. The targets are the next inputs, so only one more token is
 * read. A row starts with a fresh state wherever its document began. */
static ida_status add_sample(ida_rows *r, const ida_dataset *d, int64_t index) {
    int64_t from = index * r->T, left = ida_dataset_tokens(d) - 1 - from, n = left < r->T ? left : r->T;
    int32_t *ids = r->ids + r->n_tokens, *targets = r->targets + r->n_tokens;
    int64_t separator = ida_dataset_separator(d), unscored = 0;
    bool indexed = ida_dataset_indexed(d);
    int64_t edge = indexed ? ida_dataset_next_start(d, from + 1) : 0;
    IDA_TRY(ida_dataset_read(d, from, n, ids));
    IDA_TRY(ida_dataset_read(d, from + n, 1, targets + n - 1));
    memcpy(targets, ids + 1, (size_t)(n - 1) * sizeof *targets);
    r->cu[r->n_seq++] = r->n_tokens;
    for (int64_t i = 1; i <= n; i++) {
        if (indexed ? from + i != edge : i == n || ids[i] != separator) continue;
        if (i < n) r->cu[r->n_seq++] = r->n_tokens + i;
        if (!indexed) continue;
        targets[i - 1] = -1;
        unscored++;
        edge = ida_dataset_next_start(d, edge + 1);
    }
    r->n_tokens += n;
    r->n_scored += n - unscored;
    r->cu[r->n_seq] = r->n_tokens;
    return IDA_OK;
}

static ida_status check_rows(const ida_rows *r, const ida_dataset *d, int64_t first, int64_t rows) {
    IDA_FAIL_IF(rows < 0 || rows > r->rows || first < 0 || first > INT64_MAX - rows, IDA_E_ARG,
                "batch: rows %lld from sample %lld do not fit %lld rows",
                (long long)rows, (long long)first, (long long)r->rows);
    IDA_FAIL_IF(ida_dataset_samples(d, r->T) == 0, IDA_E_ARG,
                "the data set has %lld tokens: at least 2 are needed, pack more text",
                (long long)ida_dataset_tokens(d));
    return IDA_OK;
}

ida_status ida_rank_share(int64_t batch, int64_t step, int64_t rank, int64_t world, int64_t *first, int64_t *rows) {
    int64_t base;
    IDA_FAIL_IF(world < 1 || rank < 0 || rank >= world, IDA_E_ARG, "rank %lld of %lld ranks", (long long)rank, (long long)world);
    IDA_FAIL_IF(batch < world, IDA_E_ARG, "a batch of %lld sequences is too small for %lld ranks: use fewer, or a larger batch",
                (long long)batch, (long long)world);
    IDA_FAIL_IF(step < 0 || !ida_mul64(step, batch, &base) || !ida_add64(base, batch, &base), IDA_E_ARG,
                "step %lld of %lld sequences",
                (long long)step, (long long)batch);
    int64_t each = batch / world, more = batch % world; /* the first `more` ranks take one row more */
    *first = base - batch + rank * each + (rank < more ? rank : more);
    *rows = each + (rank < more);
    return IDA_OK;
}

ida_status ida_rows_fill(ida_rows *r, const ida_dataset *d, uint64_t seed, int64_t first, int64_t rows) {
    clear_rows(r);
    IDA_TRY(check_rows(r, d, first, rows));
    int64_t samples = ida_dataset_samples(d, r->T);
    for (int64_t i = first; i < first + rows; i++) {
        uint64_t stream = IDA_STREAM_ORDER ^ (uint64_t)(i / samples);
        IDA_TRY(add_sample(r, d, (int64_t)ida_permute(seed, stream, (uint64_t)samples, (uint64_t)(i % samples))));
    }
    return IDA_OK;
}

ida_status ida_rows_fill_in_order(ida_rows *r, const ida_dataset *d, int64_t first, int64_t rows) {
    clear_rows(r);
    IDA_TRY(check_rows(r, d, first, rows));
    int64_t samples = ida_dataset_samples(d, r->T);
    for (int64_t i = first; i < samples && i < first + rows; i++) IDA_TRY(add_sample(r, d, i));
    return IDA_OK;
}
