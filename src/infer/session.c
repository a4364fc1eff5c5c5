/* session.c - one timeline: feed, score, clone. Not here: state files (state_file.c), sampling (sampler.c), text (generate.c).
 * Invariant: between calls the session is either wholly at `position` (state, logits and tail agree) or at position 0. */
#include "infer/session.h"

#include <string.h>

#include "core/mem.h"

ida_status ida_session_create(const ida_model *m, ida_session **out) {
    ida_session *s = NULL;
    ida_status st = IDA_OK;
    IDA_NEED(m);
    IDA_NEED(out);
    IDA_TRY(IDA_CALLOC(s, 1, "session"));
    s->model = m;
    IDA_TRY_GOTO(ida_state_new(&m->cfg, m->dev, 1, &s->state));
    IDA_TRY_GOTO(ida_acts_new(&m->cfg, m->dev, 1, 1, IDA_ACTS_FORWARD, &s->step));
    IDA_TRY_GOTO(IDA_CALLOC(s->logits, m->cfg.vocab_size, "session logits"));
    *out = s;
    return IDA_OK;
out:
    ida_session_free(s);
    return st;
}

void ida_session_free(ida_session *s) {
    if (!s) return;
    ida_state_free(s->state);
    ida_acts_free(s->step);
    ida_free(s->logits);
    ida_free(s);
}

void ida_session_reset(ida_session *s) {
    (void)ida_state_zero(s->state); /* a device that failed says so at its next op */
    memset(s->tail, 0, sizeof s->tail);
}

ida_status ida_session_clone(const ida_session *s, ida_session **out) {
    ida_session *c = NULL;
    IDA_NEED(s);
    IDA_NEED(out);
    IDA_TRY(ida_session_create(s->model, &c));
    ida_status st = ida_state_copy(c->state, s->state);
    if (st != IDA_OK) {
        ida_session_free(c);
        return st;
    }
    memcpy(c->logits, s->logits, (size_t)s->model->cfg.vocab_size * sizeof *c->logits);
    memcpy(c->tail, s->tail, sizeof c->tail);
    c->model_hash = s->model_hash;
    *out = c;
    return IDA_OK;
}

int64_t ida_session_position(const ida_session *s) { return s->state->pos[0]; }

int64_t ida_session_bytes(const ida_session *s) {
    const ida_config *cfg = &s->model->cfg;
    const int64_t cache = ida_state_cache_width(s->state) * s->state->cache_cap;
    int64_t acts = 0;
    if (ida_acts_bytes(cfg, s->model->dev, 1, 1, IDA_ACTS_FORWARD, &acts, NULL) != IDA_OK) acts = 0;
    const int64_t floats = s->state->stride + cfg->vocab_size;
    return (int64_t)sizeof *s + acts + ida_act_bytes(s->model->dev, cache) + floats * (int64_t)sizeof(float);
}

/* targets and losses may be NULL. */
static ida_status run_piece(ida_session *s, ida_acts *acts, const int32_t *ids, const int32_t *targets, int64_t n,
                            float *losses) {
    const int64_t cu[2] = { 0, n }, last = n - 1, pos = s->state->pos[0];
    ida_batch b = { .n_tokens = n, .ids = ids, .targets = targets, .seqs = { .n = 1, .cu = cu, .pos0 = s->state->pos } };
    IDA_TRY(ida_model_forward(s->model, acts, &b, s->state, losses, s->logits, &last, 1));
    for (int64_t i = n > IDA_SESSION_TAIL ? n - IDA_SESSION_TAIL : 0; i < n; i++) s->tail[(pos + i) % IDA_SESSION_TAIL] = ids[i];
    return IDA_OK;
}

static ida_status run(ida_session *s, const int32_t *ids, const int32_t *targets, int64_t n, float *losses,
                      ida_stop_fn *stop, void *user) {
    ida_acts *acts = s->step;
    const int64_t most = ida_on_host(s->model->dev) ? IDA_SESSION_PIECE : IDA_SESSION_DEVICE_PIECE;
    int64_t piece = n < most ? n : most;
    ida_status st = piece > 1 ? ida_acts_new(&s->model->cfg, s->model->dev, piece, 1, IDA_ACTS_FORWARD, &acts) : IDA_OK;
    for (int64_t i = 0; i < n && st == IDA_OK; i += piece) {
        if (stop && stop(user)) break;
        int64_t m = n - i < piece ? n - i : piece;
        st = run_piece(s, acts, ids + i, targets ? targets + i : NULL, m, losses ? losses + i : NULL);
    }
    if (acts != s->step) ida_acts_free(acts);
    if (st != IDA_OK) {
        ida_session_reset(s);
        ida_fail_prefix(st, "session reset to position 0");
    }
    return st;
}

static ida_status check_ids(const ida_session *s, const int32_t *ids, int64_t n) {
    int64_t vocab = s->model->cfg.vocab_size;
    IDA_NEED(ids);
    IDA_FAIL_IF(n < 1, IDA_E_ARG, "%lld ids given, at least 1 is needed", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        IDA_FAIL_IF(ids[i] < 0 || ids[i] >= vocab, IDA_E_ARG, "id %lld at place %lld is outside the model's vocabulary of %lld",
                    (long long)ids[i], (long long)i, (long long)vocab);
    }
    return IDA_OK;
}

ida_status ida_session_feed(ida_session *s, const int32_t *ids, int64_t n, float *logits) {
    IDA_NEED(s);
    IDA_TRY(check_ids(s, ids, n));
    IDA_TRY(run(s, ids, NULL, n, NULL, NULL, NULL));
    if (logits) memcpy(logits, s->logits, (size_t)s->model->cfg.vocab_size * sizeof *logits);
    return IDA_OK;
}

ida_status ida_session_feed_until(ida_session *s, const int32_t *ids, int64_t n, ida_stop_fn *stop, void *user) {
    IDA_TRY(check_ids(s, ids, n));
    return run(s, ids, NULL, n, NULL, stop, user);
}

ida_status ida_session_score(ida_session *s, const int32_t *ids, const int32_t *targets, int64_t n, float *losses) {
    IDA_NEED(s);
    IDA_NEED(targets);
    IDA_NEED(losses);
    IDA_TRY(check_ids(s, ids, n));
    for (int64_t i = 0; i < n; i++) {
        IDA_FAIL_IF(targets[i] >= s->model->cfg.vocab_size, IDA_E_ARG,
                    "target %lld at place %lld is outside the model's vocabulary of %lld",
                    (long long)targets[i], (long long)i, (long long)s->model->cfg.vocab_size);
    }
    return run(s, ids, targets, n, losses, NULL, NULL);
}
