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

typedef struct planner { char *base; int64_t n, used, act_bytes, logits; bool overflow; } planner;

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
static ida_act *take(planner *p, int64_t width) { return cut(p, p->n, width, p->act_bytes); }
static real *take_real(planner *p, int64_t width) { return cut(p, p->n, width, sizeof(real)); }

/* Fields that a kind does not have stay NULL. */
static ida_layer_acts pick(const ida_shape *s, const ida_config *c, const ida_layer_acts *full) {
    ida_layer_acts l = *full;
    if (!s->query) l.q0 = NULL;
    if (!s->softmax) l.lse = NULL;
    if (!c->gate) l.g = NULL;
    return l;
}

/* A set of its own for the layer (own), or one that serves every kind. */
static ida_layer_acts layer_set(planner *p, const ida_acts *a, const ida_shape *s, bool own, int64_t ow, bool any_softmax) {
    const ida_config *c = &a->cfg;
    ida_layer_acts l = {0};
    l.x1 = take(p, c->d_model);
    l.x2 = a->kind == IDA_ACTS_FORWARD ? l.x1 : take(p, c->d_model);
    if (!own || s->query) l.q0 = take(p, s->qw);
    l.k0 = take(p, s->kvw);
    l.v0 = take(p, s->kvw);
    l.o = take(p, ow);
    if (a->kind != IDA_ACTS_FORWARD && (own ? s->softmax : any_softmax)) l.lse = take_real(p, s->h);
    if (c->gate) l.g = take(p, ow);
    l.gate = take(p, c->ffn_hidden);
    l.up = take(p, c->ffn_hidden);
    return l;
}

static void plan_layers(planner *p, ida_acts *a, ida_layer_acts *layers, int64_t max_ow, bool any_softmax) {
    const ida_config *c = &a->cfg;
    ida_layer_acts set = {0};
    bool own = a->kind == IDA_ACTS_TRAINING;
    for (int64_t i = 0; i < c->n_layers; i++) {
        ida_shape s = ida_layer_shape(c, i);
        if (own || i == 0) set = layer_set(p, a, &s, own, own ? s.ow : max_ow, any_softmax);
        else if (a->kind == IDA_ACTS_RECOMPUTE) set.x1 = take(p, c->d_model);
        if (layers) layers[i] = pick(&s, c, &set);
    }
    a->x_last = a->kind == IDA_ACTS_FORWARD ? set.x1 : take(p, c->d_model);
}

static void plan(planner *p, ida_acts *a, ida_layer_acts *layers) {
    const ida_config *c = &a->cfg;
    ida_shape s0 = ida_layer_shape(c, 0);
    int64_t d = c->d_model, kvw = s0.kvw, h = s0.h, ow = 0;
    const bool any_softmax = ida_any_softmax(c);
    for (int64_t i = 0; i < c->n_layers; i++) {
        ida_shape s = ida_layer_shape(c, i);
        ow = s.ow > ow ? s.ow : ow;
    }
    p->n = a->n_tokens;
    p->act_bytes = ida_act_bytes(a->dev, 1);
    plan_layers(p, a, layers, ow, any_softmax);
    a->xn = take(p, d);
    a->rstd = take_real(p, 1);
    a->q = take(p, d);
    a->k = take(p, kvw);
    a->v = take(p, kvw);
    a->no = take_real(p, h);
    a->on = c->output_norm ? take(p, ow) : NULL;
    a->y = c->gate ? take(p, ow) : NULL;
    a->ff = take(p, c->ffn_hidden);
    p->logits = p->used;
    a->logits = cut(p, a->head_rows, c->vocab_size, p->act_bytes);
    if (!ida_on_host(a->dev)) a->wide = cut(p, a->wide_rows, c->vocab_size, sizeof(real));
    p->logits = p->used - p->logits;
    a->rows = cut(p, a->head_rows, d, p->act_bytes);
    a->losses = take_real(p, 1);
    if (!ida_on_host(a->dev)) {
        a->ids = cut(p, p->n, 1, sizeof *a->ids);
        a->targets = cut(p, p->n, 1, sizeof *a->targets);
    }
    if (a->kind == IDA_ACTS_FORWARD) return;
    a->dx = take(p, d);
    a->dxn = take(p, d);
    a->dff = take(p, c->ffn_hidden);
    a->dq = take(p, d);
    a->dk = take(p, kvw);
    a->dv = take(p, kvw);
    a->dt = take(p, ow);
    a->dy = take(p, ow);
    a->dgate = c->gate ? take(p, ow) : NULL;
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

static ida_acts header(const ida_config *cfg, const ida_device *dev, int64_t n_tokens, int64_t n_seq, ida_acts_kind kind) {
    const int64_t rows = head_rows(cfg, dev, n_tokens);
    return (ida_acts){.cfg = *cfg, .dev = dev, .n_tokens = n_tokens, .n_seq = n_seq, .kind = kind, .head_rows = rows,
                      .wide_rows = rows < WIDE_ROWS ? rows : WIDE_ROWS};
}

ida_status ida_acts_bytes(const ida_config *cfg, const ida_device *dev, int64_t n_tokens, int64_t n_seq, ida_acts_kind kind,
                          int64_t *bytes, int64_t *logits) {
    ida_acts a = header(cfg, dev, n_tokens, n_seq, kind);
    return measure(&a, bytes, logits);
}

ida_status ida_acts_new(const ida_config *cfg, const ida_device *dev, int64_t n_tokens, int64_t n_seq, ida_acts_kind kind,
                        ida_acts **out) {
    ida_acts *a = NULL;
    ida_status st = IDA_OK;
    IDA_TRY(IDA_CALLOC(a, 1, "activations"));
    *a = header(cfg, dev, n_tokens, n_seq, kind);
    int64_t n;
    IDA_TRY_GOTO(measure(a, &n, NULL));
    IDA_TRY_GOTO(IDA_CALLOC(a->layers, cfg->n_layers, "activations"));
    IDA_TRY_GOTO(ida_dev_alloc(dev, &a->block, n, 1, "activations"));
    if (!ida_on_host(dev)) IDA_TRY_GOTO(IDA_ALLOC(a->host_losses, n_tokens, "losses"));
    planner p = {.base = a->block};
    plan(&p, a, a->layers);
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
    ida_free(a->layers);
    ida_free(a->host_losses);
    ida_dev_free(a->dev, a->block);
    ida_free(a);
}

void ida_acts_times(const ida_acts *a, double seconds[IDA_N_PARTS]) { memcpy(seconds, a->seconds, sizeof a->seconds); }
void ida_acts_times_reset(ida_acts *a) { memset(a->seconds, 0, sizeof a->seconds); }
void ida_acts_profile(ida_acts *a, bool on) { a->profile = on; }
