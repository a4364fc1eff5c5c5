/* model_check.c - the whole model on a device against the reference on the CPU: losses, logits, every gradient, and the
 * identities that hold on any device. Needs no cmocka, so that it runs where only the driver is. Exit status 0 when all passed.
 *
 * f32: losses and logits 1e-5, each tensor's gradient 1e-4 (relative, 2-norms; fp32 sums in another order through two layers,
 * where the cpu has 2e-5), log_dt's 1e-3 (one number a head, a sum that cancels; the cpu has 7e-5). Pieces and single steps
 * against one call: 1e-5.
 *
 * bf16: the reference is run a second time on the `rounded` device (rounded.h), which stores what a bf16 device stores, and no
 * kernel of which is wrong. Allowed is twice its distance from the reference, in the losses, the logits, the whole gradient and
 * each tensor's gradient of 64 elements or more, and 2^-8 for what it happens to hit and for operands that the cores round
 * inside. In training it is the geometric mean over 4 draws of weights and tokens of distance / allowed that must not pass 1:
 * what rounding does to a small tensor's gradient is one draw from a wide distribution. (Over 6 draws on a GPU single quotients
 * went to 1.25; the 15 choices of 4 of them had 0.56 to 0.65 as their worst mean.) A fixed number would not do: where the output
 * norm divides by a small read-out, storage alone turns the gradient of "interdomain gate norm" by a cosine of 0.975. Sum of the
 * losses: its tokens' errors, 4 times as independent ones add up, and twice what the rounded weights do to all of them. Pieces
 * and steps against one call: twice, as both are off.
 *
 * The decays' gradients (a_log, a_imag): four times. They are sums that cancel, and what the cores round inside, which `rounded`
 * leaves out, weighs there as much as storage does; ops_check holds the cores alone to twice the naive error of the same
 * roundings.
 *
 * To the bit on one device: two runs, recomputed activations against kept ones, and recorded steps against steps op by op.
 * --device rounded is the check of the check.
 *
 *     model_check [--device cuda|cuda:N|cpu|rounded] [--only NAME] [--seed N]
 * seed: of weights and tokens, 0 when not given; the draws are 100 apart. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/rng.h"
#include "io/folder.h"
#include "model/acts.h"
#include "ops/backend.h"
#include "rounded.h"

typedef struct row {
    const char *name;
    ida_mixer_kind kind;
    int64_t d, heads, kv, modes, layers, ffn; /* ffn: for steps alone */
    bool gate, output_norm, no_rope, tie, hybrid;
    ida_readout readout;
    ida_discretization disc;
} row;

/* Heads of 64 with 64 modes take the tuned kernels of bf16, heads of 32 and 20 do not. */
static const row rows[] = {
    {.name = "softmax", .kind = IDA_MIXER_SOFTMAX, .d = 128, .heads = 2, .kv = 2, .modes = 64},
    {.name = "softmax grouped", .kind = IDA_MIXER_SOFTMAX, .d = 128, .heads = 4, .kv = 2, .modes = 16},
    {.name = "softmax gate norm",
     .kind = IDA_MIXER_SOFTMAX,
     .d = 128,
     .heads = 2,
     .kv = 1,
     .modes = 16,
     .gate = true,
     .output_norm = true},
    {.name = "interdomain", .kind = IDA_MIXER_INTERDOMAIN, .d = 128, .heads = 2, .kv = 2, .modes = 64},
    {.name = "interdomain grouped", .kind = IDA_MIXER_INTERDOMAIN, .d = 256, .heads = 4, .kv = 2, .modes = 64},
    {.name = "interdomain gate norm",
     .kind = IDA_MIXER_INTERDOMAIN,
     .d = 128,
     .heads = 2,
     .kv = 2,
     .modes = 64,
     .gate = true,
     .output_norm = true},
    {.name = "interdomain bilinear",
     .kind = IDA_MIXER_INTERDOMAIN,
     .d = 64,
     .heads = 2,
     .kv = 2,
     .modes = 16,
     .readout = IDA_READOUT_BILINEAR,
     .disc = IDA_DISC_NORM},
    {.name = "interdomain no rope",
     .kind = IDA_MIXER_INTERDOMAIN,
     .d = 128,
     .heads = 2,
     .kv = 2,
     .modes = 64,
     .no_rope = true,
     .tie = true},
    {.name = "interdomain odd", .kind = IDA_MIXER_INTERDOMAIN, .d = 60, .heads = 3, .kv = 3, .modes = 13, .layers = 3},
    {.name = "dual-linear", .kind = IDA_MIXER_DUAL_LINEAR, .d = 128, .heads = 2, .kv = 2, .modes = 64},
    {.name = "dual-linear norm",
     .kind = IDA_MIXER_DUAL_LINEAR,
     .d = 64,
     .heads = 2,
     .kv = 2,
     .modes = 16,
     .gate = true,
     .output_norm = true},
    {.name = "single-query", .kind = IDA_MIXER_SINGLE_QUERY, .d = 128, .heads = 2, .kv = 2, .modes = 64},
    {.name = "s4d", .kind = IDA_MIXER_S4D, .d = 128, .heads = 2, .kv = 2, .modes = 64},
    {.name = "s4d no rope", .kind = IDA_MIXER_S4D, .d = 64, .heads = 2, .kv = 2, .modes = 16, .no_rope = true},
    {.name = "hybrid", .kind = IDA_MIXER_INTERDOMAIN, .d = 128, .heads = 2, .kv = 2, .modes = 64, .layers = 4, .hybrid = true},
    /* A warp has several rows of a product, and much is on its way when the kernel ahead ends. */
    {.name = "interdomain wide", .kind = IDA_MIXER_INTERDOMAIN, .d = 2048, .heads = 32, .kv = 32, .modes = 64, .ffn = 5504},
    {.name = "s4d wide", .kind = IDA_MIXER_S4D, .d = 2048, .heads = 32, .kv = 32, .modes = 64, .ffn = 5504},
};
enum { N_ROWS = sizeof rows / sizeof *rows, VOCAB = 257, N = 261, N_SEQ = 6, T = 150, MOVED = 100, MANY = 64, DRAWS = 4 };
static const int64_t packed[N_SEQ + 1] = {0, 0, 5, 70, 70, 71, N};

typedef struct check {
    const char *name;
    const ida_device *dev;
    bool bf16;
    int n, failures;
    double worst;
    char worst_at[160];
} check;

static void must(ida_status st) {
    if (st == IDA_OK) return;
    fprintf(stderr, "model_check: %s\n", ida_last_error());
    exit(1);
}
static void *must_alloc(int64_t n, size_t size) {
    void *p = calloc((size_t)n + 1, size);
    if (!p) exit(1);
    return p;
}

static void result(check *c, const char *what, double error, double limit) {
    const double part = !(isfinite(limit) && error <= limit) ? INFINITY : limit > 0 ? error / limit : 0; /* NaN fails */
    char text[160];
    snprintf(text, sizeof text, "%s: error %.2e, limit %.2e", what, error, limit);
    c->n++;
    if (c->n == 1 || !(part <= c->worst)) c->worst = part, memcpy(c->worst_at, text, sizeof text);
    if (part <= 1) return;
    c->failures++;
    printf("  %s %s, %s\n", c->name, c->bf16 ? "bf16" : "f32", text);
}

static double distance(const float *x, const float *truth, int64_t n) {
    double diff = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        const double e = (double)x[i] - (double)truth[i];
        diff += e * e, size += (double)truth[i] * (double)truth[i];
    }
    return sqrt(diff / (size > 0 ? size : 1));
}
/* Twice what rounding costs, and what it happens to hit. */
static double twice(double rounding) { return 2 * rounding + 0x1p-8; }
static bool is_decay(const char *name) { return strstr(name, ".a_log") || strstr(name, ".a_imag"); }

static ida_config config_of(const row *r) {
    ida_config c;
    must(ida_config_preset("tiny", r->kind, &c));
    c.vocab_size = VOCAB, c.d_model = r->d, c.n_heads = r->heads, c.n_kv_heads = r->kv, c.state_size = r->modes;
    c.n_layers = r->layers ? r->layers : 2, c.init_std = 0.1;
    c.ffn_hidden = r->ffn ? r->ffn : 2 * r->d + (r->d % 128 ? 8 : 0);
    c.gate = r->gate, c.output_norm = r->output_norm, c.rope = !r->no_rope, c.tie_embeddings = r->tie;
    c.readout = r->readout, c.discretization = r->disc;
    for (int i = 0; i < 4 && r->hybrid; i++)
        c.layer_mixer[i] = (uint8_t)(i == 1 ? IDA_MIXER_SOFTMAX : i == 2 ? IDA_MIXER_S4D : IDA_MIXER_INTERDOMAIN);
    must(ida_config_check(&c));
    return c;
}

/* The same weights for every device: initial values, moved so that gains and biases leave 1 and 0. */
static uint64_t seed;
static void set_weights(ida_model *m) {
    float *host = must_alloc(m->table.block, sizeof *host);
    must(ida_param_init(&m->cfg, &m->table, 11 + seed, host));
    for (int64_t i = 0; i < m->table.n; i++)
        for (int64_t j = 0; j < m->table.params[i].numel; j++)
            host[m->table.params[i].offset + j] += (float)(0.05 * (2 * ida_uniform(12 + seed, (uint64_t)i, (uint64_t)j) - 1));
    must(ida_model_upload(m, host));
    must(ida_model_prepare(m));
    free(host);
}
static ida_model *model_on(const ida_config *cfg, const ida_device *dev) {
    ida_model *m = NULL;
    must(ida_model_new(cfg, dev, NULL, &m));
    set_weights(m);
    return m;
}

static void random_ids(int32_t *ids, int64_t n, uint64_t which) {
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(ida_uniform(seed + which, IDA_STREAM_TEST, (uint64_t)i) * VOCAB);
}

/* ---- training: losses and gradients of one packed batch. grads on the host, laid out as the parameters. */
static void train(const ida_model *m, ida_acts_kind kind, float *losses, float *grads, double *loss) {
    int32_t ids[N], targets[N];
    int64_t scored;
    ida_acts *a = NULL;
    float *on_device = NULL;
    random_ids(ids, N, 3), random_ids(targets, N, 4);
    for (int i = 0; i < N; i += 9) targets[i] = -1;
    const ida_batch b = {.n_tokens = N, .ids = ids, .targets = targets, .seqs = {.n = N_SEQ, .cu = packed}};
    must(ida_acts_new(&m->cfg, m->dev, N, N_SEQ, kind, &a));
    if (losses) must(ida_model_forward(m, a, &b, NULL, losses, NULL, NULL, 0));
    must(IDA_DEV_CALLOC(m->dev, on_device, m->table.block, "gradients"));
    must(ida_model_forward_backward(m, a, &b, NULL, 1.0 / N, on_device, loss, &scored, NULL));
    must(ida_dev_download(m->dev, grads, on_device, m->table.block * (int64_t)sizeof *grads));
    ida_dev_free(m->dev, on_device);
    ida_acts_free(a);
}

/* The logarithm of distance / allowed. */
static double log_part(const float *got, const float *rounded, const float *truth, int64_t n, double times) {
    return log(distance(got, truth, n) / (times * twice(distance(rounded, truth, n))));
}
static void mean_result(check *c, const char *what, double logs) { result(c, what, exp(logs / DRAWS), 1); }

/* bf16: against what rounding costs, over DRAWS draws. */
static void check_training_rounded(check *c, ida_model *truth, ida_model *m, ida_model *rounded) {
    const ida_param_table *t = &m->table;
    float *want = must_alloc(t->block, sizeof *want), *got = must_alloc(t->block, sizeof *got),
          *other = must_alloc(t->block, sizeof *other);
    double *each = must_alloc(t->n, sizeof *each), whole = 0, losses = 0; /* sums of logarithms */
    const uint64_t first = seed;
    for (int draw = 0; draw < DRAWS; draw++) {
        float loss[3][N];
        double sum[3];
        seed = first + 100 * (uint64_t)draw;
        set_weights(truth), set_weights(m), set_weights(rounded);
        train(truth, IDA_ACTS_TRAINING, loss[0], want, &sum[0]);
        train(m, IDA_ACTS_TRAINING, loss[1], got, &sum[1]);
        train(rounded, IDA_ACTS_TRAINING, loss[2], other, &sum[2]);
        result(c, "sum of losses", fabs(sum[1] / sum[0] - 1),
               4 * distance(loss[2], loss[0], N) / sqrt(N) + 2 * fabs(sum[2] / sum[0] - 1));
        losses += log_part(loss[1], loss[2], loss[0], N, 1);
        whole += log_part(got, other, want, t->block, 1);
        for (int64_t i = 0; i < t->n; i++) {
            const ida_param *p = &t->params[i];
            each[i] += log_part(got + p->offset, other + p->offset, want + p->offset, p->numel, is_decay(p->name) ? 2 : 1);
        }
    }
    seed = first;
    set_weights(truth), set_weights(m), set_weights(rounded);
    mean_result(c, "losses", losses);
    mean_result(c, "whole gradient", whole);
    for (int64_t i = 0; i < t->n; i++)
        if (t->params[i].numel >= MANY) mean_result(c, t->params[i].name, each[i]);
    free(want), free(got), free(other), free(each);
}

static void check_training_f32(check *c, const ida_model *truth, const ida_model *m) {
    const ida_param_table *t = &m->table;
    float *want = must_alloc(t->block, sizeof *want), *got = must_alloc(t->block, sizeof *got), losses[2][N];
    double loss[2];
    train(truth, IDA_ACTS_TRAINING, losses[0], want, &loss[0]);
    train(m, IDA_ACTS_TRAINING, losses[1], got, &loss[1]);
    result(c, "losses", distance(losses[1], losses[0], N), 1e-5);
    result(c, "sum of losses", fabs(loss[1] / loss[0] - 1), 1e-5);
    for (int64_t i = 0; i < t->n; i++) {
        const ida_param *p = &t->params[i];
        result(c, p->name, distance(got + p->offset, want + p->offset, p->numel), strstr(p->name, "log_dt") ? 1e-3 : 1e-4);
    }
    free(want), free(got);
}

static void check_training_bits(check *c, const ida_model *m) {
    const size_t bytes = (size_t)m->table.block * sizeof(float);
    float *one = must_alloc(m->table.block, sizeof *one), *other = must_alloc(m->table.block, sizeof *other);
    double loss[2];
    train(m, IDA_ACTS_TRAINING, NULL, one, &loss[0]);
    train(m, IDA_ACTS_TRAINING, NULL, other, &loss[1]);
    result(c, "second run, other bits", memcmp(one, other, bytes) != 0 || loss[0] != loss[1], 0);
    train(m, IDA_ACTS_RECOMPUTE, NULL, other, &loss[1]);
    result(c, "recomputed, other bits", memcmp(one, other, bytes) != 0 || loss[0] != loss[1], 0);
    free(one), free(other);
}

/* ---- inference: T tokens in pieces of given lengths (0 ends; the last one is repeated), logits of all. state: kept, or NULL =
 * own. */
static void run_pieces(const ida_model *m, const int32_t *ids, int64_t from, int64_t to, const int64_t *pieces, ida_state *s,
                       float *logits) {
    ida_acts *a = NULL;
    int64_t list[T];
    for (int i = 0; i < T; i++) list[i] = i;
    must(ida_acts_new(&m->cfg, m->dev, T, 1, IDA_ACTS_FORWARD, &a));
    for (int i = 0; from < to; i += pieces[i + 1] > 0) {
        const int64_t n = pieces[i] < to - from ? pieces[i] : to - from, cu[2] = {0, n};
        const ida_batch b = {.n_tokens = n, .ids = ids + from, .seqs = {.n = 1, .cu = cu}};
        must(ida_model_forward(m, a, &b, s, NULL, logits + from * VOCAB, list, n));
        from += n;
    }
    ida_acts_free(a);
}
static void run_fresh(const ida_model *m, const int32_t *ids, const int64_t *pieces, float *logits) {
    ida_state *s = NULL;
    must(ida_state_new(&m->cfg, m->dev, 1, &s));
    run_pieces(m, ids, 0, T, pieces, s, logits);
    ida_state_free(s);
}

static void check_inference(check *c, const ida_model *truth, const ida_model *m, const ida_model *rounded) {
    static const int64_t whole[] = {T, 0}, cut[] = {1, 64, 7, 1, 30, 0}, step[] = {1, 0}, last[] = {40, 1, 0};
    const int64_t n = (int64_t)T * VOCAB, late = (int64_t)MOVED * VOCAB;
    double limit = 1e-5, late_limit = 1e-5;
    float *want = must_alloc(n, sizeof *want), *one = must_alloc(n, sizeof *one), *other = must_alloc(n, sizeof *other);
    int32_t ids[T];
    random_ids(ids, T, 5);
    run_fresh(truth, ids, whole, want);
    if (rounded) {
        run_fresh(rounded, ids, whole, one);
        limit = twice(distance(one, want, n)), late_limit = twice(distance(one + late, want + late, n - late));
    }
    run_fresh(m, ids, whole, one);
    result(c, "logits", distance(one, want, n), limit);
    run_fresh(m, ids, cut, other);
    result(c, "pieces against one call", distance(other, one, n), limit);
    run_fresh(m, ids, step, other);
    result(c, "steps against one call", distance(other, one, n), limit);
    run_fresh(m, ids, step, one);
    result(c, "steps again, other bits", memcmp(other, one, (size_t)n * sizeof *one) != 0, 0);

    /* A state that began on the reference goes on on the device. */
    ida_state *s = NULL, *moved = NULL;
    must(ida_state_new(&truth->cfg, truth->dev, 1, &s));
    run_pieces(truth, ids, 0, MOVED, whole, s, other);
    must(ida_state_move(&m->cfg, s, m->dev, &moved));
    run_pieces(m, ids, MOVED, T, last, moved, other);
    result(c, "state moved to the device", distance(other + late, want + late, n - late), late_limit);
    ida_state_free(moved);
    ida_state_free(s);
    free(want), free(one), free(other);
}

/* ---- steps that a device records: sequences at different positions; when a recording is there, an op that makes the
 * device's scratch grow; then as many other sequences with the same acts. With profiling no step is recorded. */
enum { STEPS = 12, WIDE_STEPS = 200, MOVE = IDA_STEPS_BEFORE + 2, MOST_SEQS = 9 };

/* By an embedding gradient of more tokens than ever, 12 bytes each. Seldom: it takes more from call to call. */
static void grow_scratch(const ida_device *dev) {
    static int64_t n = 8 << 20;
    int32_t *ids = NULL;
    ida_act *dy = NULL;
    real *dtable = NULL;
    n += 1 << 19;
    must(IDA_DEV_CALLOC(dev, ids, n, "ids"));
    must(ida_dev_calloc(dev, (void **)&dy, n, ida_act_bytes(dev, 1), "dy"));
    must(IDA_DEV_CALLOC(dev, dtable, 8, "dtable"));
    must(dev->ops->embed_bwd(dev, dtable, ids, dy, n, 8, 1));
    ida_dev_free(dev, dtable);
    ida_dev_free(dev, dy);
    ida_dev_free(dev, ids);
}

/* Of n sequences, `steps` with each of two states: logits [2 * steps, n, VOCAB], then the states of both [n, stride]; how often a
 * recording was there after a step. */
static int run_steps(const ida_model *m, bool profile, int64_t n, int steps, float *logits) {
    int64_t cu[MOST_SEQS + 1], list[MOST_SEQS], prompt_cu[MOST_SEQS + 1];
    ida_acts *a = NULL, *prompt_acts = NULL;
    ida_state *s[2] = {NULL, NULL};
    const int64_t n_ids = (2 * steps + 2) * n;
    int32_t *ids = must_alloc(n_ids, sizeof *ids);
    int recorded = 0;
    for (int64_t i = 0; i <= n; i++) cu[i] = i, prompt_cu[i] = i + i / 2; /* 1 or 2 tokens */
    for (int64_t i = 0; i < n; i++) list[i] = i;
    random_ids(ids, n_ids, 6);
    must(ida_acts_new(&m->cfg, m->dev, n, n, IDA_ACTS_FORWARD, &a));
    must(ida_acts_new(&m->cfg, m->dev, prompt_cu[n], n, IDA_ACTS_FORWARD, &prompt_acts));
    ida_acts_profile(a, profile);
    for (int i = 0; i < 2 * steps; i++) {
        const int which = i / steps;
        const ida_batch prompt = {.n_tokens = prompt_cu[n], .ids = ids + which, .seqs = {.n = n, .cu = prompt_cu}},
                        b = {.n_tokens = n, .ids = ids + (i + 2) * n, .seqs = {.n = n, .cu = cu}};
        if (i % steps == 0) {
            must(ida_state_new(&m->cfg, m->dev, n, &s[which]));
            must(ida_model_forward(m, prompt_acts, &prompt, s[which], NULL, NULL, NULL, 0));
        }
        if (i == MOVE && n == 2 && !profile) grow_scratch(m->dev);
        must(ida_model_forward(m, a, &b, s[which], NULL, logits + i * n * VOCAB, list, n));
        recorded += a->steps.recording != NULL;
    }
    const int64_t floats = n * s[0]->stride;
    for (int i = 0; i < 2; i++) {
        must(ida_dev_download(m->dev, logits + 2 * steps * n * VOCAB + i * floats, s[i]->block, floats * (int64_t)sizeof(float)));
        ida_state_free(s[i]);
    }
    ida_acts_free(prompt_acts);
    ida_acts_free(a);
    free(ids);
    return recorded;
}
static void check_steps_of(check *c, const ida_model *m, int64_t n, int steps) {
    const int64_t all = 2 * n * (steps * VOCAB + m->layers.stride);
    const bool softmax = ida_layers_any(&m->layers, IDA_LAYER_CACHE);
    float *one = must_alloc(all, sizeof *one), *other = must_alloc(all, sizeof *other);
    const int none = run_steps(m, true, n, steps, one), recorded = run_steps(m, false, n, steps, other);
    int64_t wild = 0;
    for (int64_t i = 0; i < all; i++) wild += !isfinite(one[i]);
    result(c, "steps, values that are not finite", (double)wild, 0);
    result(c, "recorded steps, other bits", memcmp(one, other, (size_t)all * sizeof *one) != 0, 0);
    /* all but the first ones with each state; and one after the scratch moved, for a step that uses it */
    const int most = softmax ? 0 : 2 * (steps - IDA_STEPS_BEFORE);
    result(c, "recorded steps, other than all", none != 0 || (recorded != most && (softmax || recorded != most - 1)), 0);
    free(one), free(other);
}
/* The last: it leaves other weights in m. */
static void check_steps(check *c, ida_model *m) {
    static const int64_t counts[] = {1, 2, 3, 9};
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) check_steps_of(c, m, counts[i], STEPS);
        must(ida_model_init(m, 99));
        must(ida_model_prepare(m));
    }
}
static void check_wide(check *c, const ida_config *cfg) {
    ida_model *m = NULL;
    must(ida_model_new(cfg, c->dev, NULL, &m));
    must(ida_model_init(m, 11 + seed));
    must(ida_model_prepare(m));
    for (int64_t n = 1; n <= 4; n++) check_steps_of(c, m, n, WIDE_STEPS);
    ida_model_free(m);
}

/* A model that went to the device and back, as files, has the same weights. */
static void check_move(check *c, const ida_model *truth) {
    ida_model *there = NULL, *back = NULL;
    uint64_t hash[3];
    char dir[] = "/tmp/model_check-XXXXXX";
    if (!mkdtemp(dir)) must(IDA_E_IO);
    must(ida_folder_save_model(dir, truth));
    must(ida_folder_load_model(dir, c->dev, &there));
    must(ida_folder_save_model(dir, there));
    must(ida_folder_load_model(dir, truth->dev, &back));
    must(ida_remove_tree(dir));
    must(ida_model_hash(truth, &hash[0]));
    must(ida_model_hash(there, &hash[1]));
    must(ida_model_hash(back, &hash[2]));
    result(c, "moved, other weights", hash[0] != hash[1] || hash[0] != hash[2], 0);
    ida_model_free(back);
    ida_model_free(there);
}

/* More memory than any device has: the line says how much was asked, for what, and what to lower; the device goes on. */
static void check_memory(check *c) {
    void *p = c;
    const ida_status st = ida_dev_alloc(c->dev, &p, INT64_C(1) << 46, 1, "a test of much");
    const char *text = ida_last_error();
    const bool said = strstr(text, "70368744177664 bytes") && strstr(text, "for a test of much") &&
                      strstr(text, "lower micro_batch");
    result(c, "too much memory, other than a clear line", st != IDA_E_NOMEM || p || !said, 0);
    must(ida_dev_alloc(c->dev, &p, 1 << 20, 1, "a test of little"));
    ida_dev_free(c->dev, p);
    must(ida_dev_sync(c->dev));
}

/* What is in use, and the most of it, follow what is given out and taken back, to within a page of 2 MiB. */
static void check_use(check *c) {
    enum { BYTES = 64 << 20, PAGE = 2 << 20 };
    void *p = NULL;
    int64_t before, with, after, peak, again;
    ida_dev_reset_peak(c->dev);
    ida_dev_used(c->dev, &before, &peak);
    must(ida_dev_alloc(c->dev, &p, BYTES, 1, "a test of use"));
    ida_dev_used(c->dev, &with, &again);
    ida_dev_free(c->dev, p);
    must(ida_dev_sync(c->dev));
    ida_dev_used(c->dev, &after, &again);
    const bool follows = before >= 0 && peak == before && with - before >= BYTES && with - before <= BYTES + PAGE &&
                         after == before && again == with;
    ida_dev_reset_peak(c->dev);
    ida_dev_used(c->dev, &after, &again);
    result(c, "memory in use, other than what is given out", !follows || again != after, 0);
}

static void check_row(check *c, const ida_config *cfg) {
    ida_model *truth = model_on(cfg, &ida_ref_device), *m = model_on(cfg, c->dev),
          *rounded = c->bf16 ? model_on(cfg, &rounded_device) : NULL;
    if (rounded) check_training_rounded(c, truth, m, rounded);
    else check_training_f32(c, truth, m);
    check_training_bits(c, m);
    check_inference(c, truth, m, rounded);
    if (!ida_on_host(c->dev)) check_move(c, truth), check_memory(c), check_use(c), check_steps(c, m);
    ida_model_free(rounded);
    ida_model_free(m);
    ida_model_free(truth);
}

int main(int argc, char **argv) {
    const char *name = "cuda", *only = NULL;
    int failures = 0, ran = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--device")) name = argv[i + 1];
        else if (!strcmp(argv[i], "--only")) only = argv[i + 1];
        else if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[i + 1], NULL, 10);
        else return fprintf(stderr, "usage: model_check [--device cuda|cuda:N|cpu|rounded] [--only NAME] [--seed N]\n"), 2;
    }
    const bool emulated = !strcmp(name, "rounded");
    for (int dtype = emulated; dtype < (strcmp(name, "cpu") ? 2 : 1); dtype++) {
        const ida_device *dev = &rounded_device;
        if (!emulated) must(ida_device_open(name, dtype ? IDA_BF16 : IDA_F32, &dev));
        for (int i = 0; i < N_ROWS; i++) {
            if ((only && strcmp(only, rows[i].name)) || (rows[i].ffn && ida_on_host(dev))) continue;
            check c = {.name = rows[i].name, .dev = dev, .bf16 = dtype == 1};
            const ida_config cfg = config_of(&rows[i]);
            if (rows[i].ffn) check_wide(&c, &cfg);
            else check_row(&c, &cfg);
            printf("%-22s %-4s %3d checks, worst %s  %s\n", c.name, dtype ? "bf16" : "f32", c.n, c.worst_at,
                   c.failures ? "FAIL" : "ok");
            failures += c.failures, ran++;
            fflush(stdout);
        }
    }
    if (!ran) return fprintf(stderr, "model_check: no row is called %s\n", only), 2;
    printf(failures ? "%d FAILED\n" : "all passed\n", failures);
    return failures > 0;
}
