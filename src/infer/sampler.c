/* sampler.c - temperature, top-k, top-p, min-p, in this order (that of HF transformers), then one uniform number picks.
 * Weights are exp((logit - max) / temperature), in double and not normalised: the likeliest has weight exactly 1.
 * Invariant: the likeliest id is never filtered out; equal logits rank by lower id, so the result does not depend on how
 * candidates are ordered in memory. */
#include "infer/sampler.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"

#define T ida_sample_options
static const ida_field rows[] = {
    IDA_ROW_INT(T, "max_tokens", max_tokens, 256, -1, IDA_ANY_INT, .letter = 'n', .help = "tokens to generate",
                .note = "-1 = until a stop"),
    IDA_ROW_REAL(T, "temperature", temperature, 0.8, 0, INFINITY, .letter = 't',
                 .note = "0 = always the likeliest token"),
    IDA_ROW_INT(T, "top_k", top_k, 0, 0, IDA_ANY_INT, .help = "only the N likeliest tokens", .note = "0 = off"),
    IDA_ROW_REAL(T, "top_p", top_p, 0.95, 0, 1, .arg = "P", .help = "only the likeliest tokens that make up P",
                 .note = "1 = off"),
    IDA_ROW_REAL(T, "min_p", min_p, 0, 0, 1, .arg = "P",
                 .help = "only tokens at least P times as likely as the likeliest", .note = "0 = off"),
    IDA_ROW_SEED(T, "seed", seed, 0, .help = "the same seed gives the same text"),
    IDA_ROW_LIST(T, "stop", stop, n_stop, "TEXT", .help = "end before this text"),
    IDA_ROW_BOOL(T, "ignore_eos", ignore_eos, false, .help = "go on after the end-of-text token"),
};
#undef T
const ida_fields ida_sample_fields = IDA_FIELDS("sample", "", ida_sample_options, rows);

void ida_sample_defaults(ida_sample_options *o) { ida_fields_defaults(&ida_sample_fields, o); }

ida_status ida_sample_check(const ida_sample_options *o) { return ida_fields_check(&ida_sample_fields, o); }

static bool before(const ida_candidate *a, const ida_candidate *b) {
    return a->weight > b->weight || (a->weight == b->weight && a->id < b->id);
}

/* Max-heap by `before` in c[0..n). */
static void sift(ida_candidate *c, int64_t n, int64_t i) {
    ida_candidate x = c[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&c[child + 1], &c[child])) child++;
        if (!before(&c[child], &x)) break;
        c[i] = c[child];
    }
    c[i] = x;
}

/* Keeps the first of the ranking until `k` are taken or their weight reaches `mass`; they lie in c[0..result), best first. */
static int64_t keep_best(ida_candidate *c, int64_t n, int64_t k, double mass) {
    int64_t taken = 0, left = n;
    double sum = 0;
    for (int64_t i = n / 2 - 1; i >= 0; i--) sift(c, n, i);
    while (left > 0 && taken < k && (taken == 0 || sum < mass)) {
        ida_candidate best = c[0];
        c[0] = c[--left];
        if (left > 0) sift(c, left, 0);
        c[left] = best; /* best-first from the end of the array */
        sum += best.weight;
        taken++;
    }
    for (int64_t i = 0; i < taken / 2; i++) {
        ida_candidate t = c[left + i];
        c[left + i] = c[n - 1 - i];
        c[n - 1 - i] = t;
    }
    memmove(c, c + left, (size_t)taken * sizeof *c);
    return taken;
}

static double total(const ida_candidate *c, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += c[i].weight;
    return sum;
}

/* Drops ids so light that, all together, they cannot reach the share 1 - top_p: the nucleus stays what it was, the heap small. */
static int64_t drop_light(ida_candidate *c, int64_t n, double cutoff) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if (c[i].weight >= cutoff) c[kept++] = c[i];
    }
    return kept;
}

static int64_t filter(ida_candidate *c, int64_t n, const ida_sample_options *o) {
    if (o->top_k > 0 && o->top_k < n) n = keep_best(c, n, o->top_k, INFINITY);
    if (o->top_p < 1) {
        double mass = total(c, n);
        double cutoff = fmin(0.5 * (1 - o->top_p) * mass / (double)n, 1.0);
        n = keep_best(c, drop_light(c, n, cutoff), n, o->top_p * mass);
    }
    return o->min_p > 0 ? drop_light(c, n, o->min_p) : n;
}

ida_status ida_sample_with(const float *logits, int64_t n, const ida_sample_options *o, uint64_t index, ida_candidate *c,
                           int32_t *id) {
    int64_t best = -1, m = 0;
    for (int64_t i = 0; i < n; i++) {
        IDA_FAIL_IF(isnan(logits[i]) || logits[i] == INFINITY, IDA_E_NUMERIC,
                    "logit of id %lld is %g: the model's weights or state are damaged", (long long)i, (double)logits[i]);
        if (logits[i] > -INFINITY && (best < 0 || logits[i] > logits[best])) best = i;
    }
    IDA_FAIL_IF(best < 0, IDA_E_NUMERIC, "every logit is -inf: no id can be drawn");
    *id = (int32_t)best;
    if (o->temperature == 0 || o->top_k == 1) return IDA_OK;
    for (int64_t i = 0; i < n; i++) {
        if (logits[i] == -INFINITY) continue;
        double below = (double)logits[i] - (double)logits[best];
        c[m++] = (ida_candidate){ below == 0 ? 1.0 : exp(below / o->temperature), (int32_t)i };
    }
    m = filter(c, m, o);
    double u = ida_uniform(o->seed, IDA_STREAM_SAMPLE, index) * total(c, m), sum = 0;
    for (int64_t i = 0; i < m; i++) {
        sum += c[i].weight;
        if (c[i].weight > 0) *id = c[i].id;
        if (u < sum) break;
    }
    return IDA_OK;
}

ida_status ida_sample(const float *logits, int64_t n, const ida_sample_options *o, uint64_t index, int32_t *id) {
    IDA_NEED(logits);
    IDA_NEED(o);
    IDA_NEED(id);
    IDA_FAIL_IF(n < 1 || n > INT32_MAX, IDA_E_ARG, "%lld logits to sample from, must be 1..%ld", (long long)n, (long)INT32_MAX);
    IDA_TRY(ida_sample_check(o));
    ida_candidate *scratch = NULL;
    int32_t drawn = 0;
    if (o->temperature > 0) IDA_TRY(IDA_ALLOC(scratch, n, "sampling"));
    ida_status st = ida_sample_with(logits, n, o, index, scratch, &drawn);
    ida_free(scratch);
    if (st == IDA_OK) *id = drawn;
    return st;
}
