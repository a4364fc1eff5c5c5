/* state.c - the per-sequence state: one block of fixed size, and the growing key/value caches of softmax layers.
 * Layout: the rows of layers/. Invariant: state->block is all there is to copy, save and compare for layers without a cache. */
#include "model/model.h"

#include <assert.h>
#include <string.h>

#include "core/mem.h"

static void set_widths(ida_state *s, const ida_layers *all) {
    for (int64_t i = 0; i < all->n; i++) {
        const ida_layer *l = &all->at[i];
        if (!ida_layer_is(l, IDA_LAYER_CACHE)) continue;
        s->cache_width[l->block][0] = ida_dim(l, 'k');
        s->cache_width[l->block][1] = ida_dim(l, 'v');
    }
}

ida_status ida_state_new(const ida_config *cfg, const ida_device *dev, int64_t n_seq, ida_state **out) {
    ida_state *s = NULL;
    ida_layers all = {0};
    ida_status st = IDA_OK;
    int64_t total, slots;
    IDA_TRY_GOTO(IDA_CALLOC(s, 1, "state"));
    IDA_TRY_GOTO(ida_layers_build(cfg, &all));
    s->n_seq = n_seq;
    s->n_layers = cfg->n_layers;
    s->dev = dev;
    s->stride = all.stride;
    if (!ida_mul64(s->stride, n_seq, &total) || !ida_mul64(cfg->n_layers, n_seq, &slots))
        IDA_FAIL_GOTO(IDA_E_NOMEM, "state of %lld sequences overflows; use fewer", (long long)n_seq);
    IDA_TRY_GOTO(IDA_CALLOC(s->pos, n_seq, "state positions"));
    IDA_TRY_GOTO(IDA_DEV_CALLOC(dev, s->block, total, "state"));
    IDA_TRY_GOTO(IDA_CALLOC(s->cache_width, cfg->n_layers, "widths of the caches"));
    IDA_TRY_GOTO(IDA_CALLOC(s->k_cache, slots, "key cache"));
    IDA_TRY_GOTO(IDA_CALLOC(s->v_cache, slots, "value cache"));
    set_widths(s, &all);
    *out = s;
    s = NULL;
out:
    ida_layers_free(&all);
    ida_state_free(s);
    return st;
}

void ida_state_free(ida_state *s) {
    if (!s) return;
    for (int64_t i = 0; s->k_cache && s->v_cache && i < s->n_layers * s->n_seq; i++) {
        ida_dev_free(s->dev, s->k_cache[i]);
        ida_dev_free(s->dev, s->v_cache[i]);
    }
    ida_free(s->cache_width);
    ida_free(s->k_cache);
    ida_free(s->v_cache);
    ida_dev_free(s->dev, s->block);
    ida_free(s->pos);
    ida_free(s);
}

ida_status ida_state_zero(ida_state *s) {
    memset(s->pos, 0, (size_t)s->n_seq * sizeof *s->pos);
    return ida_dev_zero(s->dev, s->block, s->n_seq * s->stride * (int64_t)sizeof *s->block);
}

static ida_status grow(const ida_device *dev, ida_act **cache, int64_t used, int64_t cap) {
    ida_act *p;
    IDA_TRY(ida_dev_alloc(dev, (void **)&p, cap, ida_act_bytes(dev, 1), "key/value cache"));
    ida_status st = used ? ida_dev_copy(dev, p, *cache, ida_act_bytes(dev, used)) : IDA_OK;
    if (st != IDA_OK) {
        ida_dev_free(dev, p);
        return st;
    }
    ida_dev_free(dev, *cache);
    *cache = p;
    return IDA_OK;
}

int64_t ida_state_cache_width(const ida_state *s) {
    int64_t n = 0;
    for (int64_t l = 0; l < s->n_layers; l++) n += s->cache_width[l][0] + s->cache_width[l][1];
    return n;
}

ida_status ida_state_reserve(ida_state *s, int64_t cap) {
    if (cap <= s->cache_cap) return IDA_OK;
    int64_t more = s->cache_cap + s->cache_cap / 2;
    if (cap < more) cap = more;
    if (cap < 64) cap = 64;
    for (int64_t l = 0; l < s->n_layers; l++) {
        const int64_t *w = s->cache_width[l];
        int64_t k, v;
        if (!w[0]) continue;
        IDA_FAIL_IF(!ida_mul64(cap, w[0], &k) || !ida_mul64(cap, w[1], &v), IDA_E_NOMEM,
                    "a key/value cache of %lld tokens overflows", (long long)cap);
        for (int64_t i = 0; i < s->n_seq; i++) {
            IDA_TRY(grow(s->dev, &s->k_cache[l * s->n_seq + i], s->pos[i] * w[0], k));
            IDA_TRY(grow(s->dev, &s->v_cache[l * s->n_seq + i], s->pos[i] * w[1], v));
        }
    }
    s->cache_cap = cap;
    return IDA_OK;
}

ida_status ida_state_copy(ida_state *dst, const ida_state *src) {
    IDA_FAIL_IF(dst->n_seq != src->n_seq || dst->stride != src->stride, IDA_E_ARG,
                "states differ in shape: %lld sequences of %lld elements, %lld of %lld", (long long)dst->n_seq,
                (long long)dst->stride, (long long)src->n_seq, (long long)src->stride);
    int64_t longest = 0;
    for (int64_t i = 0; i < src->n_seq; i++) longest = src->pos[i] > longest ? src->pos[i] : longest;
    if (src->cache_cap) {
        IDA_TRY(ida_state_zero(dst)); /* nothing of the old caches is worth moving */
        IDA_TRY(ida_state_reserve(dst, longest));
    }
    memcpy(dst->pos, src->pos, (size_t)src->n_seq * sizeof *dst->pos);
    assert(dst->dev->memory == src->dev->memory);
    IDA_TRY(ida_dev_copy(dst->dev, dst->block, src->block, src->n_seq * src->stride * (int64_t)sizeof *dst->block));
    for (int64_t l = 0; l < src->n_layers; l++) {
        const int64_t *w = src->cache_width[l];
        for (int64_t i = 0; i < src->n_seq && w[0]; i++) {
            const int64_t j = l * src->n_seq + i, n = src->pos[i];
            if (!n) continue;
            IDA_TRY(ida_dev_copy(dst->dev, dst->k_cache[j], src->k_cache[j], ida_act_bytes(dst->dev, n * w[0])));
            IDA_TRY(ida_dev_copy(dst->dev, dst->v_cache[j], src->v_cache[j], ida_act_bytes(dst->dev, n * w[1])));
        }
    }
    return IDA_OK;
}

/* n elements from one device to the other, by way of `wide`: real elements on the device that is not the host's. */
static ida_status move_elements(const ida_state *to, const ida_state *from, real *wide, ida_act *dst, const ida_act *src, int64_t n) {
    const int64_t bytes = n * (int64_t)sizeof *wide;
    if (ida_on_host(to->dev)) {
        IDA_TRY(from->dev->ops->from_act(from->dev, wide, src, n));
        return ida_dev_download(from->dev, dst, wide, bytes);
    }
    IDA_TRY(ida_dev_upload(to->dev, wide, src, bytes));
    return to->dev->ops->to_act(to->dev, dst, wide, n);
}

static ida_status move_caches(ida_state *to, const ida_state *from, int64_t longest) {
    const ida_device *dev = ida_on_host(to->dev) ? from->dev : to->dev;
    real *wide = NULL;
    ida_status st = IDA_OK;
    int64_t most = 0;
    for (int64_t l = 0; l < from->n_layers; l++)
        for (int i = 0; i < 2; i++)
            if (from->cache_width[l][i] * longest > most) most = from->cache_width[l][i] * longest;
    if (most == 0) return IDA_OK;
    IDA_TRY(ida_state_reserve(to, longest));
    IDA_TRY(IDA_DEV_ALLOC(dev, wide, most, "key/value cache on its way"));
    for (int64_t l = 0; l < from->n_layers && st == IDA_OK; l++) {
        const int64_t *w = from->cache_width[l];
        for (int64_t i = 0; i < from->n_seq && w[0] && st == IDA_OK; i++) {
            const int64_t j = l * from->n_seq + i, n = from->pos[i];
            if (!n) continue;
            st = move_elements(to, from, wide, to->k_cache[j], from->k_cache[j], n * w[0]);
            if (st == IDA_OK) st = move_elements(to, from, wide, to->v_cache[j], from->v_cache[j], n * w[1]);
        }
    }
    ida_dev_free(dev, wide);
    return st;
}

ida_status ida_state_move(const ida_config *cfg, const ida_state *src, const ida_device *dev, ida_state **out) {
    ida_state *to = NULL;
    ida_status st = IDA_OK;
    int64_t longest = 0, bytes = src->n_seq * src->stride * (int64_t)sizeof *src->block;
    for (int64_t i = 0; i < src->n_seq; i++) longest = src->pos[i] > longest ? src->pos[i] : longest;
    IDA_TRY(ida_state_new(cfg, dev, src->n_seq, &to));
    if (ida_on_host(dev) && ida_on_host(src->dev)) {
        IDA_TRY_GOTO(ida_state_copy(to, src));
    } else {
        IDA_TRY_GOTO(ida_on_host(dev) ? ida_dev_download(src->dev, to->block, src->block, bytes)
                                      : ida_dev_upload(dev, to->block, src->block, bytes));
        IDA_TRY_GOTO(move_caches(to, src, longest));
        memcpy(to->pos, src->pos, (size_t)src->n_seq * sizeof *to->pos);
    }
    *out = to;
    to = NULL;
out:
    ida_state_free(to);
    return st;
}
