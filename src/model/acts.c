/* acts.c - activation planning: every buffer's size first, then one allocation. Not here: what the buffers hold (acts.h).
 * Invariant: planning with no memory (base NULL) and with memory gives the same places, so ida_acts_bytes is exact. */
#include "model/acts.h"

#include <string.h>

#include "core/mem.h"

/* Rows of logits at once: a block that is a good matrix product and stays far below [N, vocab]: near 16M elements on the CPU,
 * 256M on a device, whose products want more rows. */
static int64_t head_rows(const ida_config *c, const ida_device *dev, int64_t n_tokens) {
    int64_t r = ((int64_t)1 << (ida_on_host(dev) ? 24 : 28)) / c->vocab_size, most = ida_on_host(dev) ? 1024 : 8192;
    if (r < 16) r = 16;
    if (r > most) r = most;
    return r < n_tokens ? r : n_tokens;
}

enum { ALIGN = 256 }; /* bytes, of every buffer */
enum { WIDE_ROWS = 16 };

typedef struct planner { char *base; int64_t n, used, act_size, logits; bool overflow; } planner;

static void *cut(planner *p, int64_t rows, int64_t width, int64_t size) {
    int64_t bytes, end;
    if (!ida_mul64(rows, width, &bytes) || !ida_mul64(bytes, size, &bytes) || !ida_add64(bytes, ALIGN - 1, &bytes) ||
        !ida_add64(p->used, bytes / ALIGN * ALIGN, &end)) {
        p->overflow = true;
        return NULL;
    }
    void *r = p->base ? p->base + p->used : NULL;
    p->used = end;
    return r;
}
static ida_act *take(planner *p, int64_t width) { return cut(p, p->n, width, p->act_size); }
static real *take_real(planner *p, int64_t width) { return cut(p, p->n, width, sizeof(real)); }

/* Places of the rows of a kind that live as `lives` (bits of ida_life) say. */
static void place_rows(planner *p, const ida_layer *l, unsigned lives, ida_part_acts *out) {
    for (int i = 0; i < l->kind->n_buffers; i++) {
        const ida_buffer_row *r = &l->kind->buffers[i];
        if (!(lives >> r->life & 1) || !ida_row_on(l, r->when)) continue;
        void *at = cut(p, p->n, ida_dim(l, r->width), r->real ? (int64_t)sizeof(real) : p->act_size);
        if (out) out->buf[r->slot] = at;
    }
}

/* Residual streams, and what is kept from the forward to the backward pass. parts NULL: only measured. */
static void plan_kept(planner *p, ida_acts *a, ida_part_acts *parts) {
    const int64_t d = a->layers.backbone.d_model, per_block = a->layers.per_block;
    const bool own = a->kind == IDA_ACTS_TRAINING;
    const unsigned kept = 1u << IDA_KEPT | (a->kind == IDA_ACTS_FORWARD ? 0 : 1u << IDA_TRAINED);
    ida_act *x = a->kind == IDA_ACTS_FORWARD ? take(p, d) : NULL;
    if (a->kind == IDA_ACTS_RECOMPUTE)
        for (int64_t i = 0; i < a->layers.n; i += per_block) {
            ida_act *at = take(p, d);
            if (parts) parts[i].x = at;
        }
    const int64_t start = p->used;
    int64_t end = start;
    for (int64_t i = 0; i < a->layers.n; i++) {
        if (!own && i % per_block == 0) p->used = start;
        if (own || (a->kind == IDA_ACTS_RECOMPUTE && i % per_block != 0)) {
            ida_act *at = take(p, d);
            if (parts) parts[i].x = at;
        } else if (parts && a->kind == IDA_ACTS_FORWARD) parts[i].x = x;
        place_rows(p, &a->layers.at[i], kept, parts ? &parts[i] : NULL);
        end = p->used > end ? p->used : end;
    }
    p->used = end;
    a->x_last = a->kind == IDA_ACTS_FORWARD ? x : take(p, d);
}

/* What a layer needs within a pass, in one place for all. */
static void plan_passes(planner *p, ida_acts *a, ida_part_acts *parts) {
    const unsigned lives = 1u << IDA_WORK | (a->kind == IDA_ACTS_FORWARD ? 0 : 1u << IDA_GRADIENT);
    const int64_t start = p->used;
    int64_t end = start;
    for (int64_t i = 0; i < a->layers.n; i++) {
        p->used = start;
        place_rows(p, &a->layers.at[i], lives, parts ? &parts[i] : NULL);
        end = p->used > end ? p->used : end;
    }
    p->used = end;
}

static void plan(planner *p, ida_acts *a, ida_part_acts *parts) {
    const int64_t d = a->layers.backbone.d_model;
    p->n = a->n_tokens;
    p->act_size = ida_act_bytes(a->dev, 1);
    plan_kept(p, a, parts);
    a->xn = take(p, d);
    a->rstd = take_real(p, 1);
    plan_passes(p, a, parts);
    p->logits = p->used;
    a->logits = cut(p, a->head_rows, a->vocab_size, p->act_size);
    if (!ida_on_host(a->dev)) a->wide = cut(p, a->wide_rows, a->vocab_size, sizeof(real));
    p->logits = p->used - p->logits;
    a->rows = cut(p, a->head_rows, d, p->act_size);
    a->losses = take_real(p, 1);
    if (!ida_on_host(a->dev)) {
        a->ids = cut(p, p->n, 1, sizeof *a->ids);
        a->targets = cut(p, p->n, 1, sizeof *a->targets);
    }
    if (a->kind == IDA_ACTS_FORWARD) return;
    a->dx = take(p, d);
    a->dxn = take(p, d);
}

/* logits: those of the bytes that are blocks of logits; may be NULL. */
static ida_status measure(ida_acts *a, int64_t *bytes, int64_t *logits) {
    planner p = {0};
    plan(&p, a, NULL);
    IDA_FAIL_IF(p.overflow, IDA_E_NOMEM, "activations of %lld tokens overflow; use shorter or fewer sequences",
                (long long)a->n_tokens);
    *bytes = p.used;
    if (logits) *logits = p.logits;
    return IDA_OK;
}

static ida_status header(const ida_config *cfg, const ida_device *dev, int64_t n_tokens, int64_t n_seq, ida_acts_kind kind,
                         ida_acts *a) {
    const int64_t rows = head_rows(cfg, dev, n_tokens);
    *a = (ida_acts){.vocab_size = cfg->vocab_size, .dev = dev, .n_tokens = n_tokens, .n_seq = n_seq, .kind = kind, .head_rows = rows,
                    .wide_rows = rows < WIDE_ROWS ? rows : WIDE_ROWS, .times.dev = dev};
    return ida_layers_build(cfg, &a->layers);
}

ida_status ida_acts_bytes(const ida_config *cfg, const ida_device *dev, int64_t n_tokens, int64_t n_seq, ida_acts_kind kind,
                          int64_t *bytes, int64_t *logits) {
    ida_acts a;
    ida_status st = header(cfg, dev, n_tokens, n_seq, kind, &a);
    if (st == IDA_OK) st = measure(&a, bytes, logits);
    ida_layers_free(&a.layers);
    return st;
}

ida_status ida_acts_new(const ida_config *cfg, const ida_device *dev, int64_t n_tokens, int64_t n_seq, ida_acts_kind kind,
                        ida_acts **out) {
    ida_acts *a = NULL;
    ida_status st = IDA_OK;
    int64_t n;
    IDA_TRY(IDA_CALLOC(a, 1, "activations"));
    IDA_TRY_GOTO(header(cfg, dev, n_tokens, n_seq, kind, a));
    IDA_TRY_GOTO(measure(a, &n, NULL));
    IDA_TRY_GOTO(IDA_CALLOC(a->parts, a->layers.n, "activations"));
    IDA_TRY_GOTO(ida_dev_alloc(dev, &a->block, n, 1, "activations"));
    if (!ida_on_host(dev)) IDA_TRY_GOTO(IDA_ALLOC(a->host_losses, n_tokens, "losses"));
    planner p = {.base = a->block};
    plan(&p, a, a->parts);
    *out = a;
    return IDA_OK;
out:
    ida_acts_free(a);
    return st;
}

void ida_acts_free(ida_acts *a) {
    if (!a) return;
    if (a->steps.recording) a->dev->memory->record_free(a->dev, a->steps.recording);
    ida_dev_free(a->dev, a->next_state);
    ida_free(a->parts);
    ida_layers_free(&a->layers);
    ida_free(a->host_losses);
    ida_dev_free(a->dev, a->block);
    ida_free(a);
}

void ida_acts_times(const ida_acts *a, double seconds[IDA_N_PARTS]) {
    memcpy(seconds, a->times.seconds, sizeof a->times.seconds);
}
void ida_acts_times_reset(ida_acts *a) { memset(a->times.seconds, 0, sizeof a->times.seconds); }
void ida_acts_profile(ida_acts *a, bool on) { a->times.profile = on; }
