/* compiled.c - the compiled form that makes the second load of a large file quick: the parts that ida_tokenizer_build takes, in one
 * file named by the hash of tokenizer.json.
 * Invariant: a compiled file is untrusted. Checksum, sizes and offsets are checked here, ids and references by the build; a file that fails any of it, or cannot be
 * written, changes nothing but the time. */
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "text/build.h"
#include "text/files.h"

typedef struct head {
    char magic[8];
    uint32_t version, flags;
    uint64_t key[2], checksum; /* of the head with 0 in this place, and of all that follows */
    int64_t n_ids, n_merges, n_added, string_bytes, added_bytes, source_bytes;
    int32_t unk, head_size;
} head;
enum { VERSION = 2, IGNORE_MERGES = 1, BYTE_FALLBACK = 2, FUSE_UNK = 4, SAME_RANK = 8, HAS_UNK = 16 };
static const char MAGIC[8] = "idatokc";

typedef struct added_row { int32_t id, n; uint32_t flags; } added_row;

static uint64_t checksum(head h, const void *rest, size_t n) {
    XXH3_state_t s;
    h.checksum = 0;
    XXH3_64bits_reset(&s);
    XXH3_64bits_update(&s, &h, sizeof h);
    XXH3_64bits_update(&s, rest, n);
    return XXH3_64bits_digest(&s);
}

static ida_status put_sources(const ida_pipeline *p, ida_buf *b) {
    IDA_TRY(ida_buf_addf(b, "{"));
    for (int i = 0; i < 4; i++) IDA_TRY(ida_buf_addf(b, "%s\"%s\":%s", i ? "," : "", ida_pipeline_keys[i], p->source[i]));
    return ida_buf_addf(b, "}");
}

ida_status ida_compiled_save(const ida_tokenizer *t, const uint64_t key[2], const char *path) {
    ida_buf b = {0};
    ida_status st;
    head h = {.version = VERSION, .key = {key[0], key[1]}, .n_ids = t->n_ids, .n_merges = t->n_merges, .n_added = t->n_added,
              .string_bytes = t->start[t->n_ids], .unk = t->unk, .head_size = (int32_t)sizeof(head)};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.flags = (t->ignore_merges ? IGNORE_MERGES : 0u) | (t->byte_fallback ? BYTE_FALLBACK : 0u) | (t->fuse_unk ? FUSE_UNK : 0u) |
              (t->same_rank ? SAME_RANK : 0u) | (t->unk >= 0 ? HAS_UNK : 0u);
    IDA_TRY_GOTO(ida_buf_add(&b, &h, sizeof h));
    for (int64_t i = 0; i < t->n_ids; i++) {
        int32_t n = (int32_t)(t->start[i + 1] - t->start[i]);
        IDA_TRY_GOTO(ida_buf_add(&b, &n, sizeof n));
    }
    IDA_TRY_GOTO(ida_buf_add(&b, t->merges, (size_t)t->n_merges * sizeof *t->merges));
    for (int64_t i = 0; i < t->n_added; i++) {
        const ida_added *a = &t->added[i];
        added_row row = {a->id, a->n,
                         (uint32_t)a->single_word | (uint32_t)a->lstrip << 1 | (uint32_t)a->rstrip << 2 |
                             (uint32_t)a->normalized << 3 | (uint32_t)a->special << 4};
        IDA_TRY_GOTO(ida_buf_add(&b, &row, sizeof row));
        h.added_bytes += a->n;
    }
    IDA_TRY_GOTO(ida_buf_add(&b, t->flags, (size_t)t->n_ids));
    IDA_TRY_GOTO(ida_buf_add(&b, t->bytes, (size_t)t->start[t->n_ids]));
    for (int64_t i = 0; i < t->n_added; i++) IDA_TRY_GOTO(ida_buf_add(&b, t->added[i].content, (size_t)t->added[i].n));
    int64_t before = b.len;
    IDA_TRY_GOTO(put_sources(t->pipe, &b));
    h.source_bytes = b.len - before;
    h.checksum = checksum(h, b.data + sizeof h, (size_t)b.len - sizeof h);
    memcpy(b.data, &h, sizeof h);
    st = ida_write_file(path, b.data, (size_t)b.len);
out:
    ida_buf_free(&b);
    return st;
}

typedef struct compiled {
    const char **strings;
    const int32_t *lengths;
    const ida_merge *merges;
    const added_row *rows;
    const uint8_t *flags;
    const char *bytes, *contents, *sources;
    ida_added *added;
} compiled;

static ida_status damaged(const char *path) { IDA_FAIL(IDA_E_FORMAT, "%s: not a compiled tokenizer, or damaged", path); }

/* Where each part lies; the sum of the sizes is the size of the file. */
static ida_status lay_out(const ida_map *m, const uint64_t key[2], const char *path, head *h, compiled *c) {
    int64_t limit = IDA_TOKENIZER_MAX_BYTES;
    if (m->size < (int64_t)sizeof *h) return damaged(path);
    memcpy(h, m->data, sizeof *h);
    const int64_t sizes[] = {h->n_ids, h->n_merges, h->n_added, h->string_bytes, h->added_bytes, h->source_bytes};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < 0 || sizes[i] > limit) return damaged(path);
    int64_t want = (int64_t)sizeof *h + h->n_ids * 5 + h->n_merges * (int64_t)sizeof(ida_merge) +
                   h->n_added * (int64_t)sizeof(added_row) + h->string_bytes + h->added_bytes + h->source_bytes;
    if (memcmp(h->magic, MAGIC, sizeof MAGIC) != 0 || h->version != VERSION || h->head_size != (int32_t)sizeof *h ||
        want != m->size || h->n_ids == 0 || h->n_ids > IDA_TOKENIZER_MAX_IDS || h->key[0] != key[0] || h->key[1] != key[1] ||
        h->checksum != checksum(*h, m->data + sizeof *h, (size_t)m->size - sizeof *h))
        return damaged(path);
    c->lengths = (const int32_t *)(const void *)(m->data + sizeof *h);
    c->merges = (const ida_merge *)(const void *)(c->lengths + h->n_ids);
    c->rows = (const added_row *)(const void *)(c->merges + h->n_merges);
    c->flags = (const uint8_t *)(c->rows + h->n_added);
    c->bytes = (const char *)c->flags + h->n_ids;
    c->contents = c->bytes + h->string_bytes;
    c->sources = c->contents + h->added_bytes;
    return IDA_OK;
}

static ida_status read_strings(const head *h, const char *path, compiled *c) {
    int64_t at = 0;
    IDA_TRY(IDA_CALLOC(c->strings, h->n_ids, "vocabulary"));
    IDA_TRY(IDA_CALLOC(c->added, h->n_added, "added tokens"));
    for (int64_t i = 0; i < h->n_ids; i++) {
        if (c->lengths[i] < 0 || c->lengths[i] > h->string_bytes - at) return damaged(path);
        if (c->flags[i] & IDA_TOKEN_USED) c->strings[i] = c->bytes + at;
        at += c->lengths[i];
    }
    if (at != h->string_bytes) return damaged(path);
    at = 0;
    for (int64_t i = 0; i < h->n_added; i++) {
        const added_row *r = &c->rows[i];
        if (r->n <= 0 || r->n > h->added_bytes - at || (i > 0 && r->id <= c->rows[i - 1].id)) return damaged(path);
        c->added[i] = (ida_added){.id = r->id,
                                  .n = r->n,
                                  .content = c->contents + at,
                                  .single_word = r->flags & 1,
                                  .lstrip = r->flags & 2,
                                  .rstrip = r->flags & 4,
                                  .normalized = r->flags & 8,
                                  .special = r->flags & 16};
        at += r->n;
    }
    return at == h->added_bytes ? IDA_OK : damaged(path);
}

static ida_status build(const head *h, const compiled *c, const char *path, ida_tokenizer **out) {
    json_t *root;
    ida_tokenizer_parts p = {.n_ids = h->n_ids,
                             .strings = c->strings,
                             .lengths = c->lengths,
                             .flags = c->flags,
                             .n_merges = h->n_merges,
                             .merges = c->merges,
                             .n_added = h->n_added,
                             .added = c->added,
                             .ignore_merges = h->flags & IGNORE_MERGES,
                             .byte_fallback = h->flags & BYTE_FALLBACK,
                             .fuse_unk = h->flags & FUSE_UNK,
                             .same_rank = h->flags & SAME_RANK,
                             .has_unk = h->flags & HAS_UNK,
                             .unk = h->unk};
    IDA_TRY(ida_json_parse(c->sources, (size_t)h->source_bytes, path, &root));
    ida_status st = ida_pipeline_parse(root, path, &p.pipe);
    json_decref(root);
    return st ? st : ida_tokenizer_build(&p, out);
}

ida_status ida_compiled_load(const char *path, const uint64_t key[2], ida_tokenizer **out) {
    ida_map m;
    head h;
    compiled c = {0};
    IDA_TRY(ida_map_open(path, &m));
    ida_status st = lay_out(&m, key, path, &h, &c);
    if (!st) st = read_strings(&h, path, &c);
    if (!st) st = build(&h, &c, path, out);
    ida_free(c.strings);
    ida_free(c.added);
    ida_map_close(&m);
    return st;
}
