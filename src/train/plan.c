/* plan.c - the parts of a training run's memory, their sum, and what is said about them (plan.h).
 * Counted: everything the trainer and the model hold for the whole run, and an upper estimate of what is borrowed meanwhile. Not
 * counted: the mapped shards (page cache), and the program itself. */
#include "train/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/cgroup.h"
#include "io/safetensors.h"
#include "layers/attend.h"
#include "model/blocks.h"
#include "train/trainer.h"

/* ---- sizes */

static ida_status too_large(void) {
    IDA_FAIL(IDA_E_NOMEM, "training memory exceeds 2^63 bytes: choose a smaller model, micro_batch or seq_len");
}

/* A device of the kind the options name, as far as sizes go; it need not be there. */
static ida_device sizes_of(const ida_train_options *o) {
    static const ida_device_memory somewhere = {0};
    const bool host = !o->device || strcmp(o->device, "cpu") == 0;
    return (ida_device){.act_type = !host && o->dtype == IDA_BF16 ? IDA_TYPE_BF16 : IDA_TYPE_F32, .memory = host ? NULL : &somewhere};
}

ida_plan_shape ida_plan_shape_of(const ida_config *c, int64_t block) {
    ida_layer l = ida_layers_mixer(c, block);
    const ida_backbone b = {.d_model = c->d_model};
    int64_t at = 0;
    ida_layer_place(&l, &b, &at);
    return (ida_plan_shape){.softmax = ida_layer_is(&l, IDA_LAYER_CACHE), .linear = ida_dim(&l, 'w') != ida_dim(&l, 'D'),
                            .query = ida_attend_query(&l), .conv_q = l.state[IDA_TAIL_Q] >= 0,
                            .conv_k = l.state[IDA_TAIL_K] >= 0, .conv_v = l.state[IDA_TAIL_V] >= 0, .h = ida_dim(&l, 'H'),
                            .g = ida_dim(&l, 'G'), .dh = ida_dim(&l, 'D'), .m = ida_dim(&l, 'M'), .ow = ida_dim(&l, 'o'),
                            .hw = ida_dim(&l, 'w')};
}

/* A write buffer of 1 MiB (core/file.c), and lists of tensors twice over: names, places, the header (io/weights.c). */
double ida_plan_save_buffers(int64_t n_tensors) { return 1048576 + 1280.0 * (double)n_tensors; }

/* Weights, their bf16 copy on a device in bf16, gradients, moments; one element of the table is `block` elements of each. */
static bool add_model(ida_train_plan *p, int64_t block, int64_t act_bytes) {
    const int64_t fp32 = (int64_t)sizeof(float);
    const int64_t copy = act_bytes == fp32 ? 0 : act_bytes;
    return ida_mul64(block, fp32, &p->parameter_bytes) && ida_mul64(block, fp32, &p->gradient_bytes) &&
           ida_mul64(block, 2 * fp32, &p->optimizer_bytes) && ida_mul64(block, copy, &p->bf16_copy_bytes);
}

/* Batches as they come from the data (ida_rows of every micro-batch: ids, targets, cu, pos0), and losses of an evaluation: on the
 * host. */
static double batch_bytes(const ida_train_options *o) {
    const double tokens = (double)o->micro_batch * (double)o->seq_len;
    return (double)(o->batch / o->micro_batch) * (24 * tokens + 8) + 4 * tokens;
}

/* On the host beside a GPU: the configurations of run and model, the initial weights (at a save, the piece of a tensor that is on its way), batches, losses
 * twice, and what uploads pass through (cuda_device.h). */
static double host_bytes(const ida_train_options *o, const ida_train_plan *p, int64_t n_tensors) {
    enum { STAGING = 8 * (2 << 20) };
    return fmax((double)p->parameter_bytes, IDA_ST_PIECE + ida_plan_save_buffers(n_tensors)) + batch_bytes(o) +
           4 * (double)o->micro_batch * (double)o->seq_len + STAGING + 2.0 * sizeof(ida_config);
}

static bool to_int(double bytes, int64_t *out) {
    *out = bytes < 9e18 ? (int64_t)bytes : 0;
    return bytes < 9e18;
}

static bool add_up(ida_train_plan *p) {
    const int64_t parts[] = {p->parameter_bytes, p->bf16_copy_bytes, p->gradient_bytes, p->optimizer_bytes,
                             p->activation_bytes, p->logit_bytes, p->batch_bytes, p->scratch_bytes};
    p->total_bytes = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!ida_add64(p->total_bytes, parts[i], &p->total_bytes)) return false;
    return true;
}

ida_status ida_plan_make(const ida_train_options *o, int64_t memory_bytes, ida_train_plan *plan) {
    IDA_TRY(ida_train_check(o));
    ida_train_plan p = {0};
    ida_param_table t = {0};
    const ida_device dev = sizes_of(o);
    const ida_acts_kind kind = o->activation_checkpointing ? IDA_ACTS_RECOMPUTE : IDA_ACTS_TRAINING;
    IDA_TRY(ida_param_table_build(&o->config, &t));
    const int64_t block = t.block, n_tensors = t.n, tokens = o->micro_batch * o->seq_len;
    p.parameters = t.numel;
    ida_param_table_free(&t);
    if (!add_model(&p, block, ida_act_bytes(&dev, 1))) return too_large();
    int64_t acts;
    IDA_TRY(ida_acts_bytes(&o->config, &dev, tokens, tokens, kind, &acts, &p.logit_bytes));
    p.activation_bytes = acts - p.logit_bytes;
    const bool host = ida_on_host(&dev);
    const double scratch = host ? ida_plan_cpu_scratch(o, n_tensors) : ida_plan_cuda_scratch(o, memory_bytes, &p);
    if (!to_int(scratch, &p.scratch_bytes) || !to_int(host ? batch_bytes(o) : ida_plan_cuda_tables(o), &p.batch_bytes) ||
        !to_int(host ? 0 : host_bytes(o, &p, n_tensors), &p.host_bytes) || !add_up(&p)) return too_large();
    *plan = p;
    return IDA_OK;
}

ida_status ida_train_make_plan(const ida_train_options *o, ida_train_plan *plan) {
    IDA_NEED(o);
    IDA_NEED(plan);
    return ida_plan_make(o, 0, plan);
}

ida_status ida_plan_make_on(const ida_device *dev, const ida_train_options *o, ida_train_plan *plan) {
    int64_t left, total = 0;
    if (!ida_on_host(dev)) IDA_TRY(dev->memory->available(dev, &left, &total));
    return ida_plan_make(o, total, plan);
}

/* ---- words */

static void human(char out[32], int64_t bytes) {
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double x = (double)bytes;
    size_t u = 0;
    while (x >= 1024 && u < 6) { x /= 1024; u++; }
    snprintf(out, 32, u ? "%.1f %s" : "%.0f %s", x, unit[u]);
}

ida_status ida_plan_describe(const ida_train_plan *plan, bool with_scratch, ida_buf *out) {
    const struct { const char *name; int64_t bytes; } parts[] = {
        {"bf16 copy", plan->bf16_copy_bytes}, {"gradients", plan->gradient_bytes}, {"optimiser", plan->optimizer_bytes},
        {"activations", plan->activation_bytes}, {"logits", plan->logit_bytes}};
    char a[32], b[32];
    human(a, plan->parameter_bytes);
    IDA_TRY(ida_buf_addf(out, "memory: parameters %s (%lld)", a, (long long)plan->parameters));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].bytes == 0) continue;
        human(a, parts[i].bytes);
        IDA_TRY(ida_buf_addf(out, " + %s %s", parts[i].name, a));
    }
    if (!with_scratch) return IDA_OK;
    human(a, plan->batch_bytes + plan->scratch_bytes);
    human(b, plan->total_bytes);
    IDA_TRY(ida_buf_addf(out, " + batch and scratch %s = %s", a, b));
    human(a, plan->host_bytes);
    return plan->host_bytes > 0 ? ida_buf_addf(out, "; on the host %s", a) : IDA_OK;
}

/* The part that is worth lowering, and by what. */
typedef struct part { const char *name, *remedy; int64_t bytes; } part;

static part largest(const ida_train_plan *p, bool checkpointing) {
    static const char *const shorter[] = {"a smaller micro_batch or seq_len, or activation_checkpointing",
                                          "a smaller micro_batch or seq_len"};
    const int64_t model = p->parameter_bytes + p->bf16_copy_bytes + p->gradient_bytes + p->optimizer_bytes;
    const part parts[] = {
        {"weights, gradients and moments", "a smaller model", model},
        {"activations", shorter[checkpointing], p->activation_bytes},
        {"logits", "a smaller vocab_size or micro_batch", p->logit_bytes},
        {"scratch of the mixers", shorter[1], p->scratch_bytes},
        {"batches", "a smaller batch or seq_len", p->batch_bytes}};
    part most = parts[0];
    for (size_t i = 1; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].bytes > most.bytes) most = parts[i];
    return most;
}

ida_status ida_plan_check(const ida_train_plan *plan, int64_t available, int64_t on_host, bool checkpointing) {
    char need[32], have[32], size[32];
    const part most = largest(plan, checkpointing);
    human(size, most.bytes);
    human(need, plan->total_bytes);
    human(have, available);
    IDA_FAIL_IF(available >= 0 && plan->total_bytes > available, IDA_E_NOMEM,
                "training needs %s, the device has %s available (most of it %s: %s): choose %s", need, have, most.name, size,
                most.remedy);
    human(need, plan->host_bytes);
    human(have, on_host);
    IDA_FAIL_IF(on_host >= 0 && plan->host_bytes > on_host, IDA_E_NOMEM,
                "training needs %s of host memory beside the device, for the initial weights (4 bytes a parameter), the host "
                "has %s available: choose a smaller model or free memory",
                need, have);
    return IDA_OK;
}

void ida_plan_explain(const ida_train_plan *plan, bool checkpointing) {
    char why[IDA_LINE_BYTES], size[32], all[32];
    const part most = largest(plan, checkpointing);
    snprintf(why, sizeof why, "%s", ida_last_error());
    human(size, most.bytes);
    human(all, plan->total_bytes);
    ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "%s (of the %s that training plans most are %s, %s: choose %s)", why, all,
             most.name, size, most.remedy);
}

/* ---- what there is */

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
