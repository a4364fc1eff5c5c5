/* state.c - the per-sequence state: one block of fixed size, and the growing key/value caches of softmax layers.
 * Layout: shape.h. Invariant: state->block is all there is to copy, save and compare for layers without a cache. */
#include "model/model.h"

#include <string.h>

#include "core/mem.h"
#include "model/shape.h"

int64_t ida_state_stride(const ida_config *cfg) {
    int64_t n = 0;
    for (int64_t l = 0; l < cfg->n_layers; l++) {
        ida_shape s = ida_layer_shape(cfg, l);
        n = ida_layer_state(&s, n).end;
    }
    return ida_round16(n);
}

ida_status ida_state_new(const ida_config *cfg, int64_t n_seq, ida_state **out) {
    ida_state *s = NULL;
    ida_status st = IDA_OK;
    int64_t total, slots;
    IDA_TRY(IDA_CALLOC(s, 1, "state"));
    s->n_seq = n_seq;
    s->n_caches = 0;
    s->stride = ida_state_stride(cfg);
    if (!ida_mul64(s->stride, n_seq, &total) || !ida_mul64(cfg->n_layers, n_seq, &slots))
        IDA_FAIL_GOTO(IDA_E_NOMEM, "state of %lld sequences overflows; use fewer", (long long)n_seq);
    IDA_TRY_GOTO(IDA_CALLOC(s->pos, n_seq, "state positions"));
    IDA_TRY_GOTO(IDA_CALLOC(s->block, total, "state"));
    IDA_TRY_GOTO(IDA_CALLOC(s->k_cache, slots, "key cache"));
    IDA_TRY_GOTO(IDA_CALLOC(s->v_cache, slots, "value cache"));
    s->n_caches = slots;
    *out = s;
    return IDA_OK;
out:
    ida_state_free(s);
    return st;
}

void ida_state_free(ida_state *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->n_caches; i++) {
        ida_free(s->k_cache[i]);
        ida_free(s->v_cache[i]);
    }
    ida_free(s->k_cache);
    ida_free(s->v_cache);
    ida_free(s->block);
    ida_free(s->pos);
    ida_free(s);
}

void ida_state_zero(ida_state *s) {
    memset(s->pos, 0, (size_t)s->n_seq * sizeof *s->pos);
    memset(s->block, 0, (size_t)(s->n_seq * s->stride) * sizeof *s->block);
}

static ida_status grow(real **cache, int64_t used, int64_t cap) {
    real *p;
    IDA_TRY(IDA_ALLOC(p, cap, "key/value cache"));
    if (used) memcpy(p, *cache, (size_t)used * sizeof *p);
    ida_free(*cache);
    *cache = p;
    return IDA_OK;
}

ida_status ida_state_reserve(const ida_config *cfg, ida_state *s, int64_t cap) {
    if (cap <= s->cache_cap) return IDA_OK;
    int64_t more = s->cache_cap + s->cache_cap / 2;
    if (cap < more) cap = more;
    if (cap < 64) cap = 64;
    for (int64_t l = 0; l < cfg->n_layers; l++) {
        ida_shape sh = ida_layer_shape(cfg, l);
        if (!sh.softmax) continue;
        int64_t n;
        IDA_FAIL_IF(!ida_mul64(cap, sh.kvw, &n), IDA_E_NOMEM, "a key/value cache of %lld tokens overflows", (long long)cap);
        for (int64_t i = 0; i < s->n_seq; i++) {
            IDA_TRY(grow(&s->k_cache[l * s->n_seq + i], s->pos[i] * sh.kvw, n));
            IDA_TRY(grow(&s->v_cache[l * s->n_seq + i], s->pos[i] * sh.kvw, n));
        }
    }
    s->cache_cap = cap;
    return IDA_OK;
}

ida_status ida_state_copy(const ida_config *cfg, ida_state *dst, const ida_state *src) {
    IDA_FAIL_IF(dst->n_seq != src->n_seq || dst->stride != src->stride, IDA_E_ARG,
                "states differ in shape: %lld sequences of %lld elements, %lld of %lld", (long long)dst->n_seq,
                (long long)dst->stride, (long long)src->n_seq, (long long)src->stride);
    int64_t longest = 0;
    for (int64_t i = 0; i < src->n_seq; i++) longest = src->pos[i] > longest ? src->pos[i] : longest;
    if (src->cache_cap) {
        ida_state_zero(dst); /* nothing of the old caches is worth moving */
        IDA_TRY(ida_state_reserve(cfg, dst, longest));
    }
    memcpy(dst->pos, src->pos, (size_t)src->n_seq * sizeof *dst->pos);
    memcpy(dst->block, src->block, (size_t)(src->n_seq * src->stride) * sizeof *dst->block);
    for (int64_t l = 0; l < cfg->n_layers; l++) {
        ida_shape sh = ida_layer_shape(cfg, l);
        for (int64_t i = 0; i < src->n_seq && sh.softmax; i++) {
            int64_t j = l * src->n_seq + i, n = src->pos[i] * sh.kvw;
            if (!n) continue;
            memcpy(dst->k_cache[j], src->k_cache[j], (size_t)n * sizeof(real));
            memcpy(dst->v_cache[j], src->v_cache[j], (size_t)n * sizeof(real));
        }
    }
    return IDA_OK;
}
