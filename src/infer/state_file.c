/* state_file.c - a session on disk. The file is untrusted: every size is checked against the model and the file before use, the
 * checksum before anything is taken over; a refused file leaves the session as it was.
 *
 * Layout, little-endian, no padding but what is named:
 *      0  char[8]  "IDASTATE"
 *      8  u32      version, 1
 *     12  u32      header bytes, 192
 *     16  u64      hash of the model (ida_model_hash: shape and weights)
 *     24  i64      position P: tokens consumed
 *     32  i64      S: floats of the fixed state
 *     40  i64      K: floats per token of the key/value caches, all softmax layers together (0 without any)
 *     48  i64      V: vocabulary size
 *     56  i64      bytes of the whole file
 *     64  i32[32]  the last ids: id of position p at p % 32; 0 where there was none
 *    192  f32[S]   state; then f32[V] logits after the last token; then each softmax layer's keys, then values, f32[P, width]
 *    end  u64      XXH3-64 of all bytes before it
 */
#include "infer/session.h"

#include <string.h>
#include <xxhash.h>

#include "core/file.h"
#include "core/mem.h"

static const char MAGIC[8] = { 'I', 'D', 'A', 'S', 'T', 'A', 'T', 'E' };

typedef struct header {
    char magic[8];
    uint32_t version, header_bytes;
    uint64_t model_hash;
    int64_t position, state_floats, cache_floats, vocab, file_bytes;
    int32_t tail[IDA_SESSION_TAIL];
} header;
_Static_assert(sizeof(header) == 192, "the header is written as it lies in memory");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the header is written as it lies in memory");

/* Reads every weight at its first use. */
static ida_status model_hash(ida_session *s, uint64_t *hash) {
    if (s->model_hash == 0) IDA_TRY(ida_model_hash(s->model, &s->model_hash));
    *hash = s->model_hash;
    return IDA_OK;
}

static bool file_bytes(int64_t position, int64_t state, int64_t cache, int64_t vocab, int64_t *bytes) {
    int64_t n;
    return ida_mul64(position, cache, &n) && ida_add64(n, state, &n) && ida_add64(n, vocab, &n) &&
           ida_mul64(n, (int64_t)sizeof(float), &n) && ida_add64(n, (int64_t)(sizeof(header) + sizeof(uint64_t)), bytes);
}

typedef struct sink { ida_writer *w; XXH3_state_t *x; } sink;

static ida_status put(sink *k, const void *p, int64_t n) {
    XXH3_64bits_update(k->x, p, (size_t)n);
    return ida_writer_put(k->w, p, (size_t)n);
}

/* state: the session's, on the host. */
static ida_status put_all(const ida_session *s, const ida_state *state, sink *k, const header *h) {
    IDA_TRY(put(k, h, (int64_t)sizeof *h));
    IDA_TRY(put(k, state->block, h->state_floats * (int64_t)sizeof(float)));
    IDA_TRY(put(k, s->logits, h->vocab * (int64_t)sizeof(float)));
    for (int64_t l = 0; l < state->n_layers && h->position > 0; l++) {
        const int64_t bytes = h->position * (int64_t)sizeof(float);
        if (!state->cache_width[l][0]) continue;
        IDA_TRY(put(k, state->k_cache[l], bytes * state->cache_width[l][0]));
        IDA_TRY(put(k, state->v_cache[l], bytes * state->cache_width[l][1]));
    }
    uint64_t sum = XXH3_64bits_digest(k->x);
    return ida_writer_put(k->w, &sum, sizeof sum);
}

ida_status ida_session_save(const ida_session *s, const char *path) {
    IDA_NEED(s);
    IDA_NEED(path);
    header h = { .version = 1, .header_bytes = sizeof h, .position = s->state->pos[0], .state_floats = s->state->stride };
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    memcpy(h.tail, s->tail, sizeof h.tail);
    h.cache_floats = ida_state_cache_width(s->state);
    h.vocab = s->model->cfg.vocab_size;
    IDA_FAIL_IF(!file_bytes(h.position, h.state_floats, h.cache_floats, h.vocab, &h.file_bytes), IDA_E_UNSUPPORTED,
                "%s: a state of %lld tokens is too large for a file", path, (long long)h.position);
    IDA_TRY(model_hash((ida_session *)(uintptr_t)s, &h.model_hash)); /* the hash kept there is no part of the timeline */
    ida_state *moved = NULL;
    ida_status st = IDA_OK;
    sink k = { .x = XXH3_createState() };
    IDA_FAIL_IF(!k.x, IDA_E_NOMEM, "no memory for a checksum");
    XXH3_64bits_reset(k.x);
    if (!ida_on_host(s->state->dev)) IDA_TRY_GOTO(ida_state_move(&s->model->cfg, s->state, ida_cpu_device(), &moved));
    IDA_TRY_GOTO(ida_writer_open(path, &k.w));
    st = put_all(s, moved ? moved : s->state, &k, &h);
    if (st == IDA_OK) st = ida_writer_commit(k.w);
    else ida_writer_abort(k.w);
out:
    ida_state_free(moved);
    XXH3_freeState(k.x);
    return st;
}

/* Everything about the bytes that can be wrong; the message says which. */
static ida_status check(ida_session *s, const ida_map *m, const char *path, header *h) {
    IDA_FAIL_IF(m->size < (int64_t)sizeof *h || memcmp(m->data, MAGIC, sizeof MAGIC) != 0, IDA_E_FORMAT,
                "%s: not a state file (%lld bytes): give a file written by a session", path, (long long)m->size);
    memcpy(h, m->data, sizeof *h);
    IDA_FAIL_IF(h->version != 1 || h->header_bytes != sizeof *h, IDA_E_UNSUPPORTED,
                "%s: state file version %lu with a header of %lu bytes, this build reads 1",
                path, (unsigned long)h->version, (unsigned long)h->header_bytes);
    IDA_FAIL_IF(h->file_bytes != m->size, IDA_E_FORMAT, "%s: has %lld bytes, says %lld: truncated or damaged", path,
                (long long)m->size, (long long)h->file_bytes);
    uint64_t sum;
    memcpy(&sum, m->data + m->size - (int64_t)sizeof sum, sizeof sum);
    IDA_FAIL_IF(m->size < (int64_t)(sizeof *h + sizeof sum) || XXH3_64bits(m->data, (size_t)m->size - sizeof sum) != sum,
                IDA_E_FORMAT, "%s: checksum does not match: the file is damaged", path);
    uint64_t hash;
    IDA_TRY(model_hash(s, &hash));
    IDA_FAIL_IF(h->model_hash != hash, IDA_E_ARG,
                "%s: belongs to model %016llx, this one is %016llx: load the model it was saved with", path,
                (unsigned long long)h->model_hash, (unsigned long long)hash);
    const ida_config *cfg = &s->model->cfg;
    int64_t bytes = 0;
    bool fits = h->state_floats == s->state->stride && h->cache_floats == ida_state_cache_width(s->state) && h->vocab == cfg->vocab_size;
    fits = fits && h->position >= 0 && file_bytes(h->position, h->state_floats, h->cache_floats, h->vocab, &bytes);
    IDA_FAIL_IF(!fits || bytes != m->size, IDA_E_FORMAT,
                "%s: sizes (position %lld, state %lld, cache %lld, vocabulary %lld) do not fit the model or the file", path,
                (long long)h->position, (long long)h->state_floats, (long long)h->cache_floats, (long long)h->vocab);
    for (int i = 0; i < IDA_SESSION_TAIL; i++) {
        IDA_FAIL_IF(h->tail[i] < 0 || h->tail[i] >= cfg->vocab_size, IDA_E_FORMAT, "%s: id %ld is outside the vocabulary", path,
                    (long)h->tail[i]);
    }
    return IDA_OK;
}

static const uint8_t *take(float *to, const uint8_t *from, int64_t floats) {
    memcpy(to, from, (size_t)floats * sizeof *to);
    return from + (size_t)floats * sizeof *to;
}

static ida_status take_all(ida_session *s, const header *h, const uint8_t *p) {
    const ida_config *cfg = &s->model->cfg;
    ida_state *fresh = NULL;
    IDA_TRY(ida_state_new(cfg, ida_cpu_device(), 1, &fresh));
    ida_status st = h->cache_floats > 0 && h->position > 0 ? ida_state_reserve(fresh, h->position) : IDA_OK;
    if (st != IDA_OK) {
        ida_state_free(fresh);
        return st;
    }
    p = take(fresh->block, p, h->state_floats);
    p = take(s->logits, p, h->vocab);
    for (int64_t l = 0; l < fresh->n_layers && h->position > 0; l++) {
        if (!fresh->cache_width[l][0]) continue;
        p = take(ida_act_real(fresh->k_cache[l]), p, h->position * fresh->cache_width[l][0]);
        p = take(ida_act_real(fresh->v_cache[l]), p, h->position * fresh->cache_width[l][1]);
    }
    fresh->pos[0] = h->position;
    if (!ida_on_host(s->state->dev)) {
        ida_state *moved = NULL;
        st = ida_state_move(cfg, fresh, s->state->dev, &moved);
        ida_state_free(fresh);
        if (st != IDA_OK) return st;
        fresh = moved;
    }
    ida_state_free(s->state);
    s->state = fresh;
    memcpy(s->tail, h->tail, sizeof s->tail);
    return IDA_OK;
}

ida_status ida_session_load(ida_session *s, const char *path) {
    IDA_NEED(s);
    IDA_NEED(path);
    ida_map m;
    header h;
    IDA_TRY(ida_map_open(path, &m));
    ida_status st = check(s, &m, path, &h);
    if (st == IDA_OK) st = take_all(s, &h, m.data + sizeof h);
    ida_map_close(&m);
    return st;
}
