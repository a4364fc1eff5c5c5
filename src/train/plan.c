/* plan.c - the bytes a training run takes, known before any is taken.
 * Counted: everything the trainer and the model hold for the whole run, and an upper estimate of the most that one op borrows for
 * the length of a call. Not counted: the mapped shards (page cache), and the program itself. */
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>

#include "core/cgroup.h"
#include "core/mem.h"
#include "core/threads.h"
#include "model/shape.h"

static ida_status too_large(void) {
    IDA_FAIL(IDA_E_NOMEM, "training memory exceeds 2^63 bytes: choose a smaller model, micro_batch or seq_len");
}

/* ---- what an op borrows: bounds of the CPU device's allocations, which name what they are for. Sizes are padded to vectors and
 * skewed against cache conflicts: PAD per dimension covers both. Doubles, since only the sum is checked. */

enum { PAD = 48, CHUNK = 64, ROWS = CHUNK + PAD };

typedef struct op_size { double n, t, workers, d, h, g, dh, m, vocab; } op_size;

static double largest(double a, double b) { return a > b ? a : b; }

/* Backward: blocks of one head per worker, and with grouped keys the gradients of every head. */
static double attention_bytes(const op_size *s) {
    double row = s->dh + PAD, each = (3 * (s->t + CHUNK) + 10 * CHUNK) * row + s->t + 2 * CHUNK * CHUNK + CHUNK;
    return 4 * (s->workers * each + (s->h > s->g ? 2 * s->n * s->h * s->dh : 0));
}

/* Interdomain and single-query: tables of every group; per worker, and once for a long sequence, the states of a window of chunks
 * (8 to 64, near 32 MiB) and of every window's start; records; sums in double. */
static double chunked_bytes(const op_size *s) {
    double m2 = 2 * (s->m + PAD), ldm = m2 + PAD, w = 2 * (s->dh + PAD), state = w * ldm;
    double table = (3 * CHUNK + ROWS + m2) * ldm + m2 * ROWS + 4 * s->m + PAD + 64;
    double chunks = s->t / CHUNK + 1, window_chunks = chunks < 64 ? chunks : 64;
    double window = window_chunks * state, cap = largest(8 * state, 8388608);
    if (window > cap) window = cap;
    double starts = (chunks / 8 + 1) * state, record = (8 + w + s->m) * m2, kv = ROWS * w;
    double work = 16 * ROWS * (ldm + w + ROWS) + 4 * m2 * (w + ldm);
    double each = 3 * state + window + starts + record + kv + work + 4 * m2 * ldm + 16 * s->m;
    double staged = 2 * window + 3 * state + starts + window_chunks * (record + kv);
    double sums = (largest(64, 4 * s->workers) + s->g) * (2 + s->m) * m2;
    return 4 * (s->g * table + s->workers * each + staged) + 8 * sums;
}

static double s4d_bytes(const op_size *s) {
    double m2 = 2 * (s->m + PAD), ldm = m2 + PAD, x = m2 * PAD;
    double table = (2 * CHUNK + 16 + ROWS) * ldm + ROWS * ROWS + 8 * s->m + PAD + 64;
    double each = 3 * ROWS * PAD + 2 * ROWS * ROWS + 2 * ROWS * ldm + 2 * PAD * ldm + 16 * s->m;
    each += (67 + s->t / CHUNK / 64) * x;
    return 4 * (s->h * table + s->workers * each) + 8 * (256 + s->h) * (10 * s->m + CHUNK);
}

/* Lists of an embedding's tokens; partial sums of norms and convolutions, in double, over at most SUM_BLOCKS blocks; rotary
 * tables. */
static double small_bytes(const op_size *s) {
    enum { SUM_BLOCKS = 256 };
    double lists = 8 * (s->n + s->vocab), sums = 8 * 5 * (SUM_BLOCKS + 1) * s->d;
    double rope = 8 * (s->n + 1 + s->dh * (1 + 2 * CHUNK) + s->workers * 6 * s->dh);
    return largest(lists, largest(sums, rope));
}

static double op_scratch(const ida_train_options *o) {
    const ida_config *c = &o->config;
    op_size s = { .n = (double)o->micro_batch * (double)o->seq_len, .t = (double)o->seq_len, .workers = ida_workers(),
                  .d = (double)c->d_model, .vocab = (double)c->vocab_size };
    double most = 0;
    for (int64_t i = 0; i < c->n_layers; i++) {
        ida_shape sh = ida_layer_shape(c, i);
        s.h = (double)sh.h, s.g = (double)sh.g, s.dh = (double)sh.dh, s.m = (double)sh.m;
        double here = sh.softmax ? attention_bytes(&s) : sh.linear ? s4d_bytes(&s) : chunked_bytes(&s);
        most = largest(most, largest(here, small_bytes(&s)));
    }
    return most;
}

ida_status ida_train_make_plan(const ida_train_options *o, ida_train_plan *plan) {
    IDA_NEED(o);
    IDA_NEED(plan);
    IDA_TRY(ida_train_check(o));
    ida_train_plan p = {0};
    ida_param_table t = {0};
    IDA_TRY(ida_param_table_build(&o->config, &t));
    int64_t block = t.block;
    p.parameters = t.numel;
    ida_param_table_free(&t);
    if (!ida_mul64(block, (int64_t)sizeof(float), &p.parameter_bytes) || !ida_mul64(p.parameter_bytes, 2, &p.optimizer_bytes))
        return too_large();
    p.gradient_bytes = p.parameter_bytes;
    int64_t tokens = o->micro_batch * o->seq_len;
    IDA_TRY(ida_acts_bytes(&o->config, tokens, tokens, true, &p.activation_bytes));
    /* ida_rows of every micro-batch: ids, targets, cu, pos0; and the losses of an evaluation. */
    int64_t rows = 0, losses = 0, n_micro = o->batch / o->micro_batch;
    if (!ida_mul64(tokens, 2 * (int64_t)sizeof(int32_t) + 2 * (int64_t)sizeof(int64_t), &rows) ||
        !ida_add64(rows, (int64_t)sizeof(int64_t), &rows) || !ida_mul64(rows, n_micro, &rows) ||
        !ida_mul64(tokens, (int64_t)sizeof(float), &losses) || !ida_add64(rows, losses, &p.scratch_bytes)) return too_large();
    double borrowed = op_scratch(o);
    if (!(borrowed < 9e18) || !ida_add64(p.scratch_bytes, (int64_t)borrowed, &p.scratch_bytes)) return too_large();
    p.total_bytes = p.parameter_bytes;
    const int64_t parts[] = { p.gradient_bytes, p.optimizer_bytes, p.activation_bytes, p.scratch_bytes };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!ida_add64(p.total_bytes, parts[i], &p.total_bytes)) return too_large();
    }
    *plan = p;
    return IDA_OK;
}

static void human(char *out, size_t n, int64_t bytes) {
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double x = (double)bytes;
    size_t u = 0;
    while (x >= 1024 && u < 6) { x /= 1024; u++; }
    snprintf(out, n, u ? "%.1f %s" : "%.0f %s", x, unit[u]);
}

ida_status ida_plan_describe(const ida_train_plan *plan, bool with_scratch, ida_buf *out) {
    char a[6][32];
    const int64_t bytes[6] = { plan->parameter_bytes, plan->gradient_bytes, plan->optimizer_bytes, plan->activation_bytes,
                               plan->scratch_bytes, plan->total_bytes };
    for (int i = 0; i < 6; i++) human(a[i], sizeof a[i], bytes[i]);
    IDA_TRY(ida_buf_addf(out, "memory: parameters %s (%lld) + gradients %s + optimiser %s + activations %s", a[0],
                         (long long)plan->parameters, a[1], a[2], a[3]));
    return with_scratch ? ida_buf_addf(out, " + batch and scratch %s = %s", a[4], a[5]) : IDA_OK;
}

/* First number after `key` in a small text file of the kernel, -1 when absent. */
static int64_t kernel_number(const char *path, const char *key) {
    FILE *f = fopen(path, "re");
    if (!f) return -1;
    char line[256];
    long long value = -1;
    size_t n = strlen(key);
    while (value < 0 && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, n) == 0 && (sscanf(line + n, "%lld", &value) != 1 || value < 0)) value = -1;
    }
    fclose(f);
    return value;
}

int64_t ida_memory_available(void) {
    int64_t kib = kernel_number("/proc/meminfo", "MemAvailable:"), free_bytes = -1;
    if (kib >= 0 && !ida_mul64(kib, 1024, &free_bytes)) free_bytes = -1;
    int64_t group = ida_cgroup_memory(IDA_CGROUP_ROOT, IDA_CGROUP_SELF);
    if (group < 0) return free_bytes;
    return free_bytes < 0 || group < free_bytes ? group : free_bytes;
}

ida_status ida_plan_check(const ida_train_plan *plan, int64_t available) {
    if (available < 0 || plan->total_bytes <= available) return IDA_OK;
    char need[32], have[32], acts[32];
    human(need, sizeof need, plan->total_bytes);
    human(have, sizeof have, available);
    human(acts, sizeof acts, plan->activation_bytes);
    bool by_acts = plan->activation_bytes > plan->total_bytes / 2;
    IDA_FAIL(IDA_E_NOMEM, "training needs %s, this machine has %s available (activations: %s): choose %s", need, have, acts,
             by_acts ? "a smaller micro_batch or seq_len" : "a smaller model");
}
