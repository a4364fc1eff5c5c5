/* plan.c - the bytes a training run takes, known before any is taken.
 * Counted: everything the trainer and the model hold for the whole run, and an upper estimate of the most that one op borrows for
 * the length of a call. Not counted: the mapped shards (page cache), and the program itself. */
#include "train/trainer.h"

#include <math.h>
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

/* Lists of an embedding's tokens; or the forms of q between projection and core, and meanwhile partial sums of norms and
 * convolutions, in double, over at most SUM_BLOCKS blocks, or rotary tables. */
static double small_bytes(const op_size *s) {
    enum { SUM_BLOCKS = 256 };
    double lists = 8 * (s->n + s->vocab), sums = 8 * 5 * (SUM_BLOCKS + 1) * s->d;
    double rope = 8 * (s->n + 1 + s->dh * (1 + 2 * CHUNK) + s->workers * 6 * s->dh), stream = 4 * s->n * s->h * (4 * s->dh + 2);
    return largest(lists, stream + largest(sums, rope));
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

/* A device of the kind the options name, as far as sizes go; it need not be there. */
static ida_device sizes_of(const ida_train_options *o) {
    static const ida_device_memory somewhere = {0};
    const bool host = !o->device || strcmp(o->device, "cpu") == 0;
    const int64_t act_size = !host && o->dtype == IDA_BF16 ? 2 : (int64_t)sizeof(float);
    return (ida_device){.act_size = act_size, .memory = host ? NULL : &somewhere};
}

/* ---- what an op of the CUDA backend borrows, on a chip its tuned kernels are for. The layouts are those of src/ops/cuda; the
 * number of documents in a batch, which some depend on, is only guessed. */

enum { DOCUMENT = 512 /* tokens, on average */, MIB = 1 << 20 };

typedef struct cuda_size { double n, t, docs, h, g, dh, m; bool bf16; } cuda_size;

static double smallest(double a, double b) { return a < b ? a : b; }

/* cuDNN's deterministic backward pass keeps 2 bytes for each query, key and head; past LIMIT our own runs. */
static double cuda_attention_bytes(const cuda_size *s) {
    static const double LIMIT = 8192.0 * MIB;
    const double cudnn = 2 * s->n * s->t * s->h, own = 8 * s->n * s->h;
    const bool suits = s->bf16 && (s->dh == 64 || s->dh == 128) && s->t >= 128 && s->n >= 2048;
    return own + (suits && cudnn <= LIMIT ? cudnn : 0);
}

/* The states before all chunks, and between the parts of long sequences; records of parameter gradients; tables of every group.
 * Wide heads have their states in blocks, and hand on tiles between the kernels of the backward. The generic path has the states of one head for each of CTAS blocks instead, in MOST bytes where that holds one. */
static double cuda_interdomain_bytes(const cuda_size *s) {
    static const double CTAS = 264, TASKS = 528, SLOT = 32768, MOST = 4096.0 * MIB;
    const bool tuned = s->bf16 && s->m <= 128 && s->dh <= 128 && fmod(s->dh, 8) == 0;
    const double mb = ceil(s->m / 64), cb = ceil(s->dh / 64), heads = s->h * mb * cb;
    const double m = tuned ? 64 * mb : s->m, record = 128 * m + 2 * m * m + 2 * m, chunks = s->n / CHUNK + 2 * s->docs;
    double bytes = 4 * (TASKS + s->h) * record + s->g * (8 * (161 + 2 * m) * m + 8 * record + 16 * m * m);
    if (s->h > s->g) bytes += 8 * s->n * s->h * s->dh;
    if (tuned) {
        bytes += s->g * (32768 + 16384 * mb + 32768 * mb * mb) + (chunks + smallest(0.625 * chunks, 12288 / heads)) * heads * SLOT;
        if (mb * cb > 1) bytes += chunks * s->h * 16384 * (2 * mb + 1 + (mb > 1 ? 4 * mb : 0)) + (TASKS + heads) * 66560;
        return bytes;
    }
    const double each = 4 * (4 * m * s->dh * (s->t / CHUNK + 70) + 64 * (8 * s->dh + 3 * CHUNK + 8 * m));
    return bytes + largest(1, smallest(smallest(CTAS, s->h * s->docs), floor(MOST / each))) * each;
}

/* Records of parameter gradients, states between parts, tables of every head. */
static double cuda_s4d_bytes(const cuda_size *s) {
    static const double TASKS = 8192, PARTS = 64.0 * MIB, CTAS = 528;
    return 8 * TASKS * (8 * s->m + CHUNK) + PARTS + CTAS * 4 * (4096 + 256 * s->m) +
           s->h * (16 * (8 * s->m + CHUNK) + 4 * (CHUNK * CHUNK + 516 * s->m) + 112640);
}

/* The workspace of matrix products, tables of sequences, partial sums; and the most that one op takes. */
static double cuda_scratch(const ida_train_options *o) {
    const ida_config *c = &o->config;
    const double rows = (double)o->micro_batch, t = (double)o->seq_len, n = rows * t, d = (double)c->d_model;
    cuda_size s = {.n = n, .t = t, .docs = rows + n / DOCUMENT, .bf16 = o->dtype == IDA_BF16};
    double most = 16 * n + n / 4 * d; /* the embedding's gradient: tokens sorted by id, sums of every 32 */
    for (int64_t i = 0; i < c->n_layers; i++) {
        const ida_shape sh = ida_layer_shape(c, i);
        s.h = (double)sh.h, s.g = (double)sh.g, s.dh = (double)sh.dh, s.m = (double)sh.m;
        const bool width = sh.dh == 32 || sh.dh == 64 || sh.dh == 96 || sh.dh == 128 || sh.dh == 192 || sh.dh == 256;
        if (!width) most = largest(most, 4 * n * s.h * ((s.bf16 ? 5 : 3) * s.dh + 2)); /* q between projection and core */
        most = largest(most, sh.softmax ? cuda_attention_bytes(&s) : sh.linear ? cuda_s4d_bytes(&s) : cuda_interdomain_bytes(&s));
    }
    return 128.0 * MIB + 100 * n + most;
}

ida_status ida_train_make_plan(const ida_train_options *o, ida_train_plan *plan) {
    IDA_NEED(o);
    IDA_NEED(plan);
    IDA_TRY(ida_train_check(o));
    ida_train_plan p = {0};
    ida_param_table t = {0};
    const ida_device dev = sizes_of(o);
    const ida_acts_kind kind = o->activation_checkpointing ? IDA_ACTS_RECOMPUTE : IDA_ACTS_TRAINING;
    IDA_TRY(ida_param_table_build(&o->config, &t));
    int64_t block = t.block;
    p.parameters = t.numel;
    ida_param_table_free(&t);
    if (!ida_mul64(block, (int64_t)sizeof(float), &p.parameter_bytes) || !ida_mul64(p.parameter_bytes, 2, &p.optimizer_bytes))
        return too_large();
    p.gradient_bytes = p.parameter_bytes;
    if (dev.act_size != (int64_t)sizeof(float) && !ida_add64(p.parameter_bytes, block * dev.act_size, &p.parameter_bytes))
        return too_large();
    int64_t tokens = o->micro_batch * o->seq_len;
    IDA_TRY(ida_acts_bytes(&o->config, &dev, tokens, tokens, kind, &p.activation_bytes));
    /* ida_rows of every micro-batch: ids, targets, cu, pos0; and the losses of an evaluation. */
    int64_t rows = 0, losses = 0, n_micro = o->batch / o->micro_batch;
    if (!ida_mul64(tokens, 2 * (int64_t)sizeof(int32_t) + 2 * (int64_t)sizeof(int64_t), &rows) ||
        !ida_add64(rows, (int64_t)sizeof(int64_t), &rows) || !ida_mul64(rows, n_micro, &rows) ||
        !ida_mul64(tokens, (int64_t)sizeof(float), &losses) || !ida_add64(rows, losses, &p.scratch_bytes)) return too_large();
    double borrowed = ida_on_host(&dev) ? op_scratch(o) : cuda_scratch(o);
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

int64_t ida_device_memory_available(const ida_device *dev) {
    int64_t left, total;
    if (ida_on_host(dev)) return ida_memory_available();
    return dev->memory->available(dev, &left, &total) == IDA_OK ? left : -1;
}

ida_status ida_plan_check(const ida_train_plan *plan, int64_t available, bool checkpointing) {
    if (available < 0 || plan->total_bytes <= available) return IDA_OK;
    char need[32], have[32], acts[32];
    human(need, sizeof need, plan->total_bytes);
    human(have, sizeof have, available);
    human(acts, sizeof acts, plan->activation_bytes);
    bool by_acts = plan->activation_bytes > plan->total_bytes / 2;
    IDA_FAIL(IDA_E_NOMEM, "training needs %s, the device has %s available (activations: %s): choose %s%s", need, have, acts,
             by_acts ? "a smaller micro_batch or seq_len" : "a smaller model",
             by_acts && !checkpointing ? ", or activation_checkpointing" : "");
}
