/* sp_model.c - reads a SentencePiece model of BPE type with identity normalization (Llama-2's own tokenizer.model) into the same
 * tables as a tokenizer.json of that family. Not a general protobuf reader: three messages, read once from front to back.
 * SentencePiece merges the two neighbours whose joined text is the piece of best score, leftmost first. The merges of one piece
 * share a rank here, which is the same rule. Invariant: every length is checked against what is left before it is used. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/json.h"
#include "core/mem.h"
#include "text/build.h"
#include "text/files.h"
#include "text/unicode.h"

enum { PIECE_NORMAL = 1, PIECE_UNKNOWN = 2, PIECE_CONTROL = 3, PIECE_USER = 4, PIECE_UNUSED = 5, PIECE_BYTE = 6, MODEL_BPE = 2 };
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

typedef struct message { const uint8_t *p, *end; } message;
typedef struct field { uint32_t number, wire; uint64_t value; message bytes; } field; /* value: varint or fixed bits */
typedef struct piece { const char *s; int32_t n; float score; int64_t type; } piece;

enum { MAX_MERGED = 2048 }; /* bytes; the time to find merges is quadratic in it. SentencePiece's own limit is 512 characters */

typedef struct model {
    const char *where;
    piece *pieces;
    int64_t n, cap;
    int64_t type, bos;
    bool byte_fallback, dummy_prefix, remove_blanks, escape_blanks, suffix, charsmap;
    char name[32];
    int32_t *slots;
    int64_t n_slots;
    ida_merge *merges;
    int64_t n_merges, merges_cap;
} model;

static ida_status broken(const model *m) { IDA_FAIL(IDA_E_FORMAT, "%s: not a SentencePiece model, or cut short", m->where); }

static bool read_varint(message *m, uint64_t *v) {
    *v = 0;
    for (int shift = 0; shift < 64 && m->p < m->end; shift += 7) {
        uint8_t c = *m->p++;
        *v |= (uint64_t)(c & 0x7F) << shift;
        if (c < 0x80) return true;
    }
    return false;
}

static bool take(message *m, uint64_t n, message *part) {
    if (n > (uint64_t)(m->end - m->p)) return false;
    *part = (message){m->p, m->p + n};
    m->p += n;
    return true;
}

static bool next_field(message *m, field *f) {
    uint64_t tag;
    *f = (field){0};
    if (!read_varint(m, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return false;
    f->number = (uint32_t)(tag >> 3);
    f->wire = (uint32_t)(tag & 7);
    if (f->wire == WIRE_VARINT) return read_varint(m, &f->value);
    if (f->wire == WIRE_BYTES) return read_varint(m, &f->value) && take(m, f->value, &f->bytes);
    if (f->wire != WIRE_32 && f->wire != WIRE_64) return false;
    size_t n = f->wire == WIRE_32 ? 4 : 8;
    if (!take(m, n, &f->bytes)) return false;
    memcpy(&f->value, f->bytes.p, n); /* little-endian, as we are */
    return true;
}

static bool is_text(const message *m) {
    for (const uint8_t *p = m->p; p < m->end;) {
        uint32_t cp;
        p += ida_utf8_decode(p, (size_t)(m->end - p), &cp);
        if (cp == UINT32_MAX || cp == 0) return false;
    }
    return m->p < m->end;
}

/* A piece that text can be merged into or out of. */
static bool merges(const piece *p) { return p->type == PIECE_NORMAL; }

static ida_status read_piece(model *m, message in) {
    piece x = {.type = PIECE_NORMAL};
    field f;
    while (in.p < in.end) {
        if (!next_field(&in, &f)) return broken(m);
        if (f.number == 1 && f.wire == WIRE_BYTES) {
            IDA_FAIL_IF(!is_text(&f.bytes), IDA_E_FORMAT, "%s: piece %lld is empty or not UTF-8", m->where, (long long)m->n);
            x.s = (const char *)f.bytes.p;
            x.n = (int32_t)(f.bytes.end - f.bytes.p);
        } else if (f.number == 2 && f.wire == WIRE_32) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&x.score, &bits, sizeof bits);
        } else if (f.number == 3 && f.wire == WIRE_VARINT) {
            x.type = f.value > PIECE_BYTE ? 0 : (int64_t)f.value;
        }
    }
    IDA_FAIL_IF(!x.s, IDA_E_FORMAT, "%s: piece %lld has no text", m->where, (long long)m->n);
    IDA_FAIL_IF(x.score != x.score, IDA_E_FORMAT, "%s: piece %lld has no number as its score", m->where, (long long)m->n);
    IDA_FAIL_IF(x.type < PIECE_NORMAL || x.type == PIECE_UNUSED, IDA_E_UNSUPPORTED,
                "%s: piece %lld is of type %lld, which is not supported", m->where, (long long)m->n, (long long)x.type);
    IDA_FAIL_IF(merges(&x) && x.n > MAX_MERGED, IDA_E_UNSUPPORTED, "%s: piece %lld of %d bytes is longer than %d", m->where,
                (long long)m->n, x.n, MAX_MERGED);
    IDA_FAIL_IF(m->n == IDA_TOKENIZER_MAX_IDS, IDA_E_FORMAT, "%s: more than %lld pieces", m->where,
                (long long)IDA_TOKENIZER_MAX_IDS);
    IDA_TRY(IDA_GROW(m->pieces, &m->cap, m->n + 1, "pieces"));
    m->pieces[m->n++] = x;
    return IDA_OK;
}

static ida_status read_trainer(model *m, message in) {
    field f;
    while (in.p < in.end) {
        if (!next_field(&in, &f)) return broken(m);
        if (f.wire != WIRE_VARINT) continue;
        if (f.number == 3) m->type = (int64_t)(f.value & 0xFF);
        if (f.number == 24) m->suffix = f.value != 0;
        if (f.number == 35) m->byte_fallback = f.value != 0;
        if (f.number == 41) m->bos = (int64_t)(int32_t)f.value;
    }
    return IDA_OK;
}

static ida_status read_normalizer(model *m, message in) {
    field f;
    while (in.p < in.end) {
        if (!next_field(&in, &f)) return broken(m);
        if (f.number == 1 && f.wire == WIRE_BYTES) {
            size_t n = (size_t)(f.bytes.end - f.bytes.p);
            if (n >= sizeof m->name) n = sizeof m->name - 1;
            memcpy(m->name, f.bytes.p, n);
            m->name[n] = 0;
        }
        if (f.number == 2 && f.wire == WIRE_BYTES) m->charsmap = f.bytes.p < f.bytes.end;
        if (f.wire != WIRE_VARINT) continue;
        if (f.number == 3) m->dummy_prefix = f.value != 0;
        if (f.number == 4) m->remove_blanks = f.value != 0;
        if (f.number == 5) m->escape_blanks = f.value != 0;
    }
    return IDA_OK;
}

static ida_status read_model(model *m, message in) {
    field f;
    while (in.p < in.end) {
        if (!next_field(&in, &f)) return broken(m);
        if (f.wire != WIRE_BYTES) continue;
        if (f.number == 1) IDA_TRY(read_piece(m, f.bytes));
        if (f.number == 2) IDA_TRY(read_trainer(m, f.bytes));
        if (f.number == 3) IDA_TRY(read_normalizer(m, f.bytes));
    }
    IDA_FAIL_IF(m->n == 0, IDA_E_FORMAT, "%s: a SentencePiece model without pieces", m->where);
    IDA_FAIL_IF(m->type != MODEL_BPE, IDA_E_UNSUPPORTED,
                "%s: a SentencePiece model of type %lld is not supported: only BPE is read", m->where, (long long)m->type);
    IDA_FAIL_IF(m->charsmap, IDA_E_UNSUPPORTED, "%s: SentencePiece normalization \"%s\" is not supported: only identity is read",
                m->where, m->name);
    IDA_FAIL_IF(m->remove_blanks || !m->escape_blanks || m->suffix, IDA_E_UNSUPPORTED,
                "%s: SentencePiece with remove_extra_whitespaces, treat_whitespace_as_suffix or without escape_whitespaces is "
                "not supported",
                m->where);
    return IDA_OK;
}

static int64_t slot_of(const model *m, const char *s, int64_t n) {
    int64_t at = (int64_t)(XXH3_64bits(s, (size_t)n) & (uint64_t)(m->n_slots - 1));
    for (; m->slots[at]; at = (at + 1) & (m->n_slots - 1)) {
        const piece *p = &m->pieces[m->slots[at] - 1];
        if (p->n == n && memcmp(p->s, s, (size_t)n) == 0) break;
    }
    return at;
}

static ida_status index_pieces(model *m) {
    m->n_slots = 16;
    while (m->n_slots < 2 * m->n) m->n_slots *= 2;
    IDA_TRY(IDA_CALLOC(m->slots, m->n_slots, "pieces"));
    for (int64_t i = 0; i < m->n; i++) {
        int64_t at = slot_of(m, m->pieces[i].s, m->pieces[i].n);
        IDA_FAIL_IF(m->slots[at], IDA_E_FORMAT, "%s: piece %lld is there twice", m->where, (long long)i);
        m->slots[at] = (int32_t)(i + 1);
    }
    return IDA_OK;
}

static int32_t find_piece(const model *m, const char *s, int64_t n) {
    int32_t id = m->slots[slot_of(m, s, n)] - 1;
    return id >= 0 && merges(&m->pieces[id]) ? id : -1;
}

/* Every way to cut a piece into two pieces is a merge. */
static ida_status add_merges(model *m) {
    for (int64_t i = 0; i < m->n; i++) {
        const piece *p = &m->pieces[i];
        if (!merges(p)) continue;
        for (int32_t cut = 1; cut < p->n; cut++) {
            if (((uint8_t)p->s[cut] & 0xC0) == 0x80) continue;
            int32_t left = find_piece(m, p->s, cut), right = find_piece(m, p->s + cut, p->n - cut);
            if (left < 0 || right < 0) continue;
            IDA_FAIL_IF(m->n_merges == INT32_MAX / 16, IDA_E_UNSUPPORTED, "%s: too many merges", m->where);
            IDA_TRY(IDA_GROW(m->merges, &m->merges_cap, m->n_merges + 1, "merges"));
            m->merges[m->n_merges++] = (ida_merge){left, right, (int32_t)i};
        }
    }
    return IDA_OK;
}

/* Best score first; equal scores by id, as pieces of one score come in the order of the file. */
static int by_score(const void *a, const void *b, void *user) {
    const model *m = user;
    const ida_merge *x = a, *y = b;
    float s = m->pieces[x->product].score, t = m->pieces[y->product].score;
    if (s != t) return s > t ? -1 : 1;
    if (x->product != y->product) return x->product < y->product ? -1 : 1;
    int32_t nx = m->pieces[x->left].n, ny = m->pieces[y->left].n;
    return (nx > ny) - (nx < ny);
}

static ida_status make_pipeline(const model *m, ida_pipeline **out) {
    json_t *root = json_pack("{s:n, s:{s:b, s:s, s:[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]}}", "pre_tokenizer", "decoder",
                             IDA_SAME_RANK_KEY, 1, "type", "Sequence", "decoders", "type", "Replace", "pattern", "String",
                             IDA_METASPACE, "content", " ",
                             "type", "ByteFallback", "type", "Fuse");
    json_t *normalizers =
        json_pack("[{s:s, s:{s:s}, s:s}]", "type", "Replace", "pattern", "String", " ", "content", IDA_METASPACE);
    ida_status st = IDA_OK;
    bool ok = root && normalizers;
    if (ok && m->dummy_prefix) {
        json_t *decoders = json_object_get(json_object_get(root, "decoder"), "decoders");
        ok = !json_array_insert_new(normalizers, 0, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", IDA_METASPACE)) &&
             !json_array_append_new(decoders,
                                    json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    }
    ok = ok && !json_object_set_new(root, "normalizer", json_pack("{s:s, s:O}", "type", "Sequence", "normalizers", normalizers));
    if (ok && m->bos >= 0 && m->bos < m->n && m->pieces[m->bos].type == PIECE_CONTROL) {
        json_t *name = json_stringn(m->pieces[m->bos].s, (size_t)m->pieces[m->bos].n);
        json_t *post = json_pack("{s:s, s:[{s:{s:O, s:i}}, {s:{s:s, s:i}}], s:[{s:{s:O, s:i}}, {s:{s:s, s:i}}, {s:{s:s, s:i}}]}",
                                 "type", "TemplateProcessing", "single", "SpecialToken", "id", name, "type_id", 0, "Sequence",
                                 "id", "A", "type_id", 0, "pair", "SpecialToken", "id", name, "type_id", 0, "Sequence", "id", "A",
                                 "type_id", 0, "Sequence", "id", "B", "type_id", 1);
        json_t *tokens = json_object();
        ok = name && post && tokens &&
             !json_object_set_new(tokens, json_string_value(name),
                                  json_pack("{s:O, s:[I], s:[O]}", "id", name, "ids", (json_int_t)m->bos, "tokens", name)) &&
             !json_object_set(post, "special_tokens", tokens) && !json_object_set(root, "post_processor", post);
        json_decref(tokens);
        json_decref(post);
        json_decref(name);
    }
    if (!ok) st = ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "%s: out of memory", m->where);
    if (!st) st = ida_pipeline_parse(root, m->where, out);
    json_decref(normalizers);
    json_decref(root);
    return st;
}

static ida_status build(const model *m, ida_tokenizer **out) {
    const char **strings = NULL;
    int32_t *lengths = NULL;
    uint8_t *flags = NULL;
    ida_added *added = NULL;
    ida_status st;
    ida_tokenizer_parts p = {.n_ids = m->n,
                             .n_merges = m->n_merges,
                             .merges = m->merges,
                             .byte_fallback = m->byte_fallback,
                             .fuse_unk = true,
                             .same_rank = true};
    IDA_TRY_GOTO(IDA_ALLOC(strings, m->n, "vocabulary"));
    IDA_TRY_GOTO(IDA_ALLOC(lengths, m->n, "vocabulary"));
    IDA_TRY_GOTO(IDA_ALLOC(flags, m->n, "vocabulary"));
    IDA_TRY_GOTO(IDA_CALLOC(added, m->n, "added tokens"));
    for (int64_t i = 0; i < m->n; i++) {
        const piece *x = &m->pieces[i];
        strings[i] = x->s;
        lengths[i] = x->n;
        flags[i] = IDA_TOKEN_USED | IDA_TOKEN_MODEL;
        if (x->type == PIECE_UNKNOWN) {
            if (p.has_unk) IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: two unknown pieces", m->where);
            p.has_unk = true;
            p.unk = (int32_t)i;
        }
        if (x->type == PIECE_UNKNOWN || x->type == PIECE_CONTROL || x->type == PIECE_USER)
            added[p.n_added++] = (ida_added){.id = (int32_t)i, .special = x->type != PIECE_USER};
    }
    p.strings = strings;
    p.lengths = lengths;
    p.flags = flags;
    p.added = added;
    IDA_TRY_GOTO(make_pipeline(m, &p.pipe));
    st = ida_tokenizer_build(&p, out);
    if (st) ida_fail_prefix(st, "%s", m->where);
out:
    ida_free(strings);
    ida_free(lengths);
    ida_free(flags);
    ida_free(added);
    return st;
}

ida_status ida_sp_model_parse(const uint8_t *data, size_t n, const char *where, ida_tokenizer **out) {
    model m = {.where = where, .type = 1, .bos = 1, .dummy_prefix = true, .remove_blanks = true, .escape_blanks = true};
    ida_status st = read_model(&m, (message){data, data + n});
    if (!st) st = index_pieces(&m);
    if (!st) st = add_merges(&m);
    if (!st && m.n_merges) qsort_r(m.merges, (size_t)m.n_merges, sizeof *m.merges, by_score, &m);
    if (!st) st = build(&m, out);
    ida_free(m.pieces);
    ida_free(m.slots);
    ida_free(m.merges);
    return st;
}
