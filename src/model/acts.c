/* acts.c - activation planning: every buffer's size first, then one allocation. Not here: what the buffers hold (acts.h).
 * Invariant: planning with no memory (base NULL) and with memory gives the same places, so ida_acts_bytes is exact. */
#include "model/acts.h"

#include <string.h>

#include "core/mem.h"

/* Rows of logits at once: near 16M elements, so that a block is a good matrix product and stays far below [N, vocab]. */
static int64_t head_rows(const ida_config *c, int64_t n_tokens) {
    int64_t r = ((int64_t)1 << 24) / c->vocab_size;
    if (r < 16) r = 16;
    if (r > 1024) r = 1024;
    return r < n_tokens ? r : n_tokens;
}

typedef struct planner { real *base; int64_t n, used; bool overflow; } planner;

static real *rows_of(planner *p, int64_t rows, int64_t width) {
    int64_t size, end;
    if (!ida_mul64(rows, width, &size) || !ida_add64(size, 16, &end) || !ida_add64(p->used, ida_round16(size), &end)) {
        p->overflow = true;
        return NULL;
    }
    real *r = p->base ? p->base + p->used : NULL;
    p->used = end;
    return r;
}
static real *take(planner *p, int64_t width) { return rows_of(p, p->n, width); }

/* Fields that a kind does not have stay NULL; those it computes in place are the same buffer. */
static ida_layer_acts pick(const ida_shape *s, const ida_config *c, const ida_layer_acts *full, bool training) {
    ida_layer_acts l = *full;
    if (!s->query) l.q0 = l.q = NULL;
    else if (!s->conv_q) l.q = l.q0;
    if (!s->conv_k) l.k = l.k0;
    if (!s->conv_v) l.v = l.v0;
    if (!s->softmax || !training) l.lse = NULL;
    if (!c->gate) l.g = NULL;
    return l;
}

static void plan_layers(planner *p, ida_acts *a, ida_layer_acts *layers, int64_t max_ow) {
    const ida_config *c = &a->cfg;
    ida_layer_acts shared = {0};
    for (int64_t i = 0; i < c->n_layers; i++) {
        ida_shape s = ida_layer_shape(c, i);
        ida_layer_acts l = shared;
        if (a->training || i == 0) {
            bool t = a->training; /* a shared set must serve every kind */
            l.x1 = take(p, c->d_model);
            l.x2 = t ? take(p, c->d_model) : l.x1;
            if (!t || s.query) l.q0 = take(p, s.qw);
            l.k0 = take(p, s.kvw);
            l.v0 = take(p, s.kvw);
            if (!t || s.conv_q) l.q = take(p, s.qw);
            if (!t || s.conv_k) l.k = take(p, s.kvw);
            if (!t || s.conv_v) l.v = take(p, s.kvw);
            l.o = take(p, t ? s.ow : max_ow);
            if (t && s.softmax) l.lse = take(p, s.h);
            if (c->gate) l.g = take(p, t ? s.ow : max_ow);
            l.gate = take(p, c->ffn_hidden);
            l.up = take(p, c->ffn_hidden);
            shared = l;
        }
        if (layers) layers[i] = pick(&s, c, &l, a->training);
    }
    a->x_last = a->training ? take(p, c->d_model) : shared.x1;
}

static void plan(planner *p, ida_acts *a, ida_layer_acts *layers) {
    const ida_config *c = &a->cfg;
    ida_shape s0 = ida_layer_shape(c, 0);
    int64_t d = c->d_model, kvw = s0.kvw, h = s0.h, g = s0.g, ow = 0;
    for (int64_t i = 0; i < c->n_layers; i++) {
        int64_t w = ida_layer_shape(c, i).ow;
        ow = w > ow ? w : ow;
    }
    p->n = a->n_tokens;
    plan_layers(p, a, layers, ow);
    a->xn = take(p, d);
    a->rstd = take(p, 1);
    a->fq = take(p, d);
    a->fk = take(p, kvw);
    a->hk = take(p, kvw);
    a->hv = take(p, kvw);
    a->rq = take(p, h);
    a->rk = take(p, g);
    a->nk = take(p, g);
    a->nv = take(p, g);
    a->no = take(p, h);
    a->on = c->output_norm ? take(p, ow) : NULL;
    a->y = c->gate ? take(p, ow) : NULL;
    a->act = take(p, c->ffn_hidden);
    a->logits = rows_of(p, a->head_rows, c->vocab_size);
    a->rows = rows_of(p, a->head_rows, d);
    if (!a->training) return;
    a->dx = take(p, d);
    a->dxn = take(p, d);
    a->dact = take(p, c->ffn_hidden);
    a->dq = take(p, d);
    a->dk = take(p, kvw);
    a->dv = take(p, kvw);
    a->dt = take(p, ow);
    a->dy = take(p, ow);
    a->dgate = c->gate ? take(p, ow) : NULL;
}

static ida_status measure(ida_acts *a, int64_t *elements) {
    planner p = {0};
    plan(&p, a, NULL);
    int64_t bytes;
    IDA_FAIL_IF(p.overflow || !ida_mul64(p.used, (int64_t)sizeof(real), &bytes), IDA_E_NOMEM,
                "activations of %lld tokens overflow; use shorter or fewer sequences", (long long)a->n_tokens);
    *elements = p.used;
    return IDA_OK;
}

static ida_acts header(const ida_config *cfg, int64_t n_tokens, int64_t n_seq, bool training) {
    ida_acts a = {.cfg = *cfg, .n_tokens = n_tokens, .n_seq = n_seq, .training = training, .head_rows = head_rows(cfg, n_tokens)};
    return a;
}

ida_status ida_acts_bytes(const ida_config *cfg, int64_t n_tokens, int64_t n_seq, bool training, int64_t *bytes) {
    ida_acts a = header(cfg, n_tokens, n_seq, training);
    int64_t n;
    IDA_TRY(measure(&a, &n));
    *bytes = n * (int64_t)sizeof(real);
    return IDA_OK;
}

ida_status ida_acts_new(const ida_config *cfg, int64_t n_tokens, int64_t n_seq, bool training, ida_acts **out) {
    ida_acts *a = NULL;
    ida_status st = IDA_OK;
    IDA_TRY(IDA_CALLOC(a, 1, "activations"));
    *a = header(cfg, n_tokens, n_seq, training);
    int64_t n;
    IDA_TRY_GOTO(measure(a, &n));
    IDA_TRY_GOTO(IDA_CALLOC(a->layers, cfg->n_layers, "activations"));
    IDA_TRY_GOTO(IDA_ALLOC(a->block, n, "activations"));
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
    ida_free(a->next_state);
    ida_free(a->layers);
    ida_free(a->block);
    ida_free(a);
}

void ida_acts_times(const ida_acts *a, double seconds[IDA_N_PARTS]) { memcpy(seconds, a->seconds, sizeof a->seconds); }
void ida_acts_times_reset(ida_acts *a) { memset(a->seconds, 0, sizeof a->seconds); }
