/* pack.c - ida_data_pack: text to token shards (docs/formats.md). Documents are read in batches, encoded in parallel and written
 * in order, so the files do not depend on the thread count. All is written into OUT.tmp-PID, which is renamed when whole.
 * Split: by the hash of each document's bytes ("hash"). With fewer than MIN_DOCUMENTS documents that would be a lottery, so the
 * last part of the token stream becomes the validation split, cutting a document if need be ("tail"). Until it is known which of
 * the two holds, documents wait in a spool file. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/threads.h"
#include "data/inputs.h"
#include "data/shard.h"
#include "text/tokenizer.h"

enum { MIN_DOCUMENTS = 20, CUT_WINDOW = 4096, BATCH_DOCUMENTS = 4096 };
#define DEFAULT_SHARD_TOKENS ((int64_t)100000000)
#define BATCH_BYTES ((int64_t)16 << 20)
#define TASK_BYTES ((int64_t)1 << 20)
#define KEEP_IDS ((int64_t)1 << 20) /* larger id buffers are given back after a batch */

typedef struct split_out {
    const char *name;
    ida_writer *w;
    int64_t in_shard, n_shards, tokens, documents, bytes;
    json_t *shards;
} split_out;

typedef struct document { int64_t bytes, n_ids, n_tasks; uint64_t hash; } document;
typedef struct task { int64_t start, n; ida_ids ids; } task;

typedef struct packer {
    const ida_tokenizer *t;
    const ida_pack_options *o;
    char *dir, *staging, *spool_path;
    int width;
    int64_t shard_tokens, documents, bytes;
    int32_t separator;
    split_out out[2];                    /* train, val */
    /* batch */
    ida_buf text;
    document docs[BATCH_DOCUMENTS];
    int64_t n_docs, n_tasks, tasks_cap;
    task *tasks;
    bool may_cut;                        /* encoding in parts gives the same ids */
    int n_workers;
    ida_encoder **encoder;
    ida_status *failed;
    /* documents that wait for the kind of split */
    ida_writer *spool;
    document waiting[MIN_DOCUMENTS];
    int64_t n_waiting;
    const char *how;
} packer;

static ida_status close_shard(packer *p, split_out *s) {
    if (!s->w) return IDA_OK;
    int32_t header[256];
    ida_writer *w = s->w;
    char name[64], hex[17];
    uint64_t hash;
    int64_t size;
    ida_shard_header(header, p->width, s->in_shard);
    ida_status st = ida_writer_seek(w, 0);
    if (!st) st = ida_writer_put(w, header, sizeof header);
    s->w = NULL;
    if (st) {
        ida_writer_abort(w);
        return st;
    }
    IDA_TRY(ida_writer_commit(w));
    snprintf(name, sizeof name, "%s_%06lld.bin", s->name, (long long)s->n_shards);
    char *path = ida_path_join(p->staging, name);
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "%s: out of memory", p->dir);
    st = ida_hash_file(path, &hash, &size);
    ida_free(path);
    IDA_TRY(st);
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    json_t *entry = json_pack("{s:s, s:I, s:s}", "name", name, "tokens", (json_int_t)s->in_shard, "xxh3", hex);
    IDA_FAIL_IF(!entry || json_array_append_new(s->shards, entry), IDA_E_NOMEM, "%s: out of memory", p->dir);
    s->n_shards++;
    s->in_shard = 0;
    return IDA_OK;
}

static ida_status open_shard(packer *p, split_out *s) {
    char name[64];
    int32_t header[256];
    snprintf(name, sizeof name, "%s_%06lld.bin", s->name, (long long)s->n_shards);
    char *path = ida_path_join(p->staging, name);
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "%s: out of memory", p->dir);
    ida_status st = ida_writer_open(path, &s->w);
    ida_free(path);
    IDA_TRY(st);
    ida_shard_header(header, p->width, 0);
    return ida_writer_put(s->w, header, sizeof header);
}

static ida_status put_tokens(packer *p, split_out *s, const int32_t *ids, int64_t n) {
    uint16_t narrow[4096];
    s->tokens += n;
    while (n > 0) {
        if (!s->w) IDA_TRY(open_shard(p, s));
        int64_t take = p->shard_tokens - s->in_shard;
        if (take > n) take = n;
        if (p->width == 2) {
            if (take > 4096) take = 4096;
            for (int64_t i = 0; i < take; i++) narrow[i] = (uint16_t)ids[i];
            IDA_TRY(ida_writer_put(s->w, narrow, (size_t)take * 2));
        } else {
            IDA_TRY(ida_writer_put(s->w, ids, (size_t)take * 4));
        }
        s->in_shard += take;
        ids += take;
        n -= take;
        if (s->in_shard == p->shard_tokens) IDA_TRY(close_shard(p, s));
    }
    return IDA_OK;
}

static split_out *choose(packer *p, uint64_t hash) {
    return &p->out[(double)(hash >> 11) * 0x1p-53 < p->o->val_fraction];
}

static void count_document(split_out *s, int64_t bytes) {
    s->documents++;
    s->bytes += bytes;
}

/* The waiting documents, one after the other, each with its separator. */
static ida_status close_spool(packer *p, ida_map *m) {
    ida_writer *w = p->spool;
    p->spool = NULL;
    IDA_TRY(ida_writer_commit(w));
    return ida_map_open(p->spool_path, m);
}

static ida_status drop_spool(const packer *p, ida_map *m) {
    ida_map_close(m);
    IDA_FAIL_IF(unlink(p->spool_path), IDA_E_IO, "%s: cannot remove: %s", p->spool_path, strerror(errno));
    return IDA_OK;
}

static ida_status replay_by_hash(packer *p) {
    ida_map m = {0};
    IDA_TRY(close_spool(p, &m));
    const int32_t *ids = (const int32_t *)(const void *)m.data;
    ida_status st = IDA_OK;
    for (int64_t i = 0; i < p->n_waiting && !st; i++) {
        const document *d = &p->waiting[i];
        split_out *s = choose(p, d->hash);
        count_document(s, d->bytes);
        st = put_tokens(p, s, ids, d->n_ids);
        ids += d->n_ids;
    }
    p->n_waiting = 0;
    p->how = "hash";
    ida_status dropped = drop_spool(p, &m);
    return st ? st : dropped;
}

/* Is the place before ids[i] fit for a cut? rule 0: a line ends there; 1: a word starts; 2: a character starts. */
static bool fits(const packer *p, const int32_t *ids, int64_t i, int rule) {
    size_t n = 0;
    if (ids[i] == p->separator) return true;
    const char *s = ida_tokenizer_piece(p->t, ids[i - (rule == 0)], &n, NULL);
    if (!s || !n) return false;
    if (rule == 0) return s[n - 1] == '\n';
    return rule == 1 ? s[0] == ' ' || s[0] == '\n' : ((unsigned char)s[0] & 0xC0) != 0x80;
}

/* Moves a cut a little to the right, to the first fit place of the best rule. */
static int64_t good_cut(const packer *p, const int32_t *ids, int64_t cut, int64_t total) {
    int64_t stop = total - cut > CUT_WINDOW ? cut + CUT_WINDOW : total;
    for (int rule = 0; rule < 3; rule++)
        for (int64_t i = cut; i < stop; i++)
            if (fits(p, ids, i, rule)) return i;
    return cut;
}

static int64_t bytes_of(const packer *p, const int32_t *ids, int64_t n) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t k = 0;
        ida_tokenizer_piece(p->t, ids[i], &k, NULL);
        bytes += (int64_t)k;
    }
    return bytes;
}

static ida_status put_tail(packer *p, const int32_t *ids, int64_t cut) {
    for (int64_t i = 0, at = 0; i < p->n_waiting; i++) {
        const document *d = &p->waiting[i];
        int64_t end = at + d->n_ids;
        if (cut <= at || cut >= end) {
            split_out *s = &p->out[cut <= at];
            count_document(s, d->bytes);
            IDA_TRY(put_tokens(p, s, ids + at, d->n_ids));
        } else {
            int64_t tail = bytes_of(p, ids + cut, end - cut);
            if (tail > d->bytes) tail = d->bytes;
            count_document(&p->out[0], d->bytes - tail);
            count_document(&p->out[1], tail);
            IDA_TRY(put_tokens(p, &p->out[0], ids + at, cut - at));
            IDA_TRY(put_tokens(p, &p->out[1], &p->separator, 1));
            IDA_TRY(put_tokens(p, &p->out[1], ids + cut, end - cut));
        }
        at = end;
    }
    return IDA_OK;
}

static ida_status replay_as_tail(packer *p) {
    ida_map m = {0};
    int64_t total = 0;
    for (int64_t i = 0; i < p->n_waiting; i++) total += p->waiting[i].n_ids;
    IDA_TRY(close_spool(p, &m));
    const int32_t *ids = (const int32_t *)(const void *)m.data;
    int64_t wanted = (int64_t)(p->o->val_fraction * (double)total), cut = total;
    if (wanted > 0 && total - wanted > 1) cut = good_cut(p, ids, total - wanted, total);
    ida_status st = put_tail(p, ids, cut);
    p->how = "tail";
    ida_log("only %lld documents (fewer than %d): the last %.3g%% of the tokens are the validation split",
            (long long)p->n_waiting, MIN_DOCUMENTS,
            100.0 * (double)(total - cut) / (double)total);
    ida_status dropped = drop_spool(p, &m);
    return st ? st : dropped;
}

/* One encoded document: its tasks' ids in order, after the separator. */
static ida_status put_document(packer *p, const document *d, const task *tasks) {
    int64_t n_ids = 1;
    split_out *s = NULL;
    p->documents++;
    p->bytes += d->bytes;
    if (p->spool) {
        IDA_TRY(ida_writer_put(p->spool, &p->separator, sizeof p->separator));
    } else {
        s = choose(p, d->hash);
        count_document(s, d->bytes);
        IDA_TRY(put_tokens(p, s, &p->separator, 1));
    }
    for (int64_t k = 0; k < d->n_tasks; k++) {
        const ida_ids *ids = &tasks[k].ids;
        n_ids += ids->n;
        if (s) IDA_TRY(put_tokens(p, s, ids->id, ids->n));
        else if (ids->n) IDA_TRY(ida_writer_put(p->spool, ids->id, (size_t)ids->n * sizeof *ids->id));
    }
    if (s) return IDA_OK;
    p->waiting[p->n_waiting++] = (document){.bytes = d->bytes, .n_ids = n_ids, .hash = d->hash};
    return p->n_waiting == MIN_DOCUMENTS ? replay_by_hash(p) : IDA_OK;
}

static void encode_task(void *arg, int64_t index, int worker) {
    packer *p = arg;
    task *k = &p->tasks[index];
    k->ids.n = 0;
    if (p->failed[worker]) return;
    p->failed[worker] = ida_encoder_add(p->encoder[worker], p->text.data + k->start, (size_t)k->n, false, &k->ids);
}

static ida_status run_batch(packer *p) {
    ida_parallel(p->n_tasks, encode_task, p);
    for (int i = 0; i < p->n_workers; i++)
        IDA_FAIL_IF(p->failed[i], p->failed[i], "encoding failed: out of memory, or a single word of more than 2 GiB");
    const task *k = p->tasks;
    for (int64_t i = 0; i < p->n_docs; i++) {
        IDA_TRY(put_document(p, &p->docs[i], k));
        k += p->docs[i].n_tasks;
    }
    for (int64_t i = 0; i < p->n_tasks; i++)
        if (p->tasks[i].ids.cap > KEEP_IDS) {
            ida_free(p->tasks[i].ids.id);
            p->tasks[i].ids = (ida_ids){0};
        }
    p->n_docs = p->n_tasks = p->text.len = 0;
    return IDA_OK;
}

static ida_status add_to_batch(packer *p, const char *text, int64_t n) {
    int64_t start = p->text.len, at = start, end, first = p->n_tasks;
    IDA_TRY(ida_buf_add(&p->text, text, (size_t)n));
    end = p->text.len;
    while (at < end) {
        int64_t take = end - at;
        if (p->may_cut && take > TASK_BYTES) {
            int64_t cut = ida_text_last_cut(p->text.data + at, 0, TASK_BYTES);
            if (cut > 0) take = cut;
        }
        if (p->n_tasks == p->tasks_cap) {
            int64_t old = p->tasks_cap;
            IDA_TRY(IDA_GROW(p->tasks, &p->tasks_cap, p->n_tasks + 1, "encoding tasks"));
            memset(p->tasks + old, 0, (size_t)(p->tasks_cap - old) * sizeof *p->tasks);
        }
        p->tasks[p->n_tasks].start = at;
        p->tasks[p->n_tasks++].n = take;
        at += take;
    }
    p->docs[p->n_docs++] = (document){.bytes = n, .n_tasks = p->n_tasks - first, .hash = XXH3_64bits(text, (size_t)n)};
    return IDA_OK;
}

static ida_status read_all(packer *p, ida_inputs *in, ida_progress_fn *progress, void *user) {
    bool end = false;
    while (!end) {
        const char *text;
        int64_t n;
        IDA_TRY(ida_inputs_next(in, &text, &n, &end));
        if (!end) IDA_TRY(add_to_batch(p, text, n));
        if (!end && p->text.len < BATCH_BYTES && p->n_docs < BATCH_DOCUMENTS) continue;
        IDA_TRY(run_batch(p));
        IDA_FAIL_IF(progress && progress(user, "packing", ida_inputs_done(in), ida_inputs_total(in)), IDA_E_CANCELLED,
                    "packing was cancelled; nothing was written");
    }
    IDA_FAIL_IF(p->documents == 0, IDA_E_FORMAT, "the inputs hold no document (%lld bad jsonl rows)",
                (long long)ida_inputs_bad(in));
    if (p->spool) IDA_TRY(replay_as_tail(p));
    if (p->o->val_fraction > 0 && p->out[1].tokens == 0)
        ida_log("no document fell into the validation split: pack with a larger validation fraction than %g, or more documents",
                p->o->val_fraction);
    return IDA_OK;
}

static json_t *split_json(const split_out *s) {
    return json_pack("{s:I, s:I, s:I, s:O}", "tokens", (json_int_t)s->tokens, "documents", (json_int_t)s->documents, "bytes",
                     (json_int_t)s->bytes, "shards", s->shards);
}

static ida_status write_manifest(const packer *p, int64_t bad_rows) {
    char hex[17];
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)ida_tokenizer_hash(p->t));
    json_t *root = json_pack("{s:s, s:i, s:s, s:I, s:s, s:{s:i, s:s}, s:s, s:f, s:I, s:I, s:I, s:{s:o, s:o}}", "format",
                             IDA_MANIFEST_FORMAT, "version", IDA_MANIFEST_VERSION, "tokenizer_hash", hex, "vocab_size",
                             (json_int_t)ida_tokenizer_vocab_size(p->t), "dtype", p->width == 2 ? "uint16" : "uint32",
                             "separator", "id", (int)p->separator, "side", "before", "split", p->how, "val_fraction",
                             p->o->val_fraction, "documents", (json_int_t)p->documents, "bytes", (json_int_t)p->bytes,
                             "bad_rows", (json_int_t)bad_rows, "splits", "train", split_json(&p->out[0]), "val", split_json(&p->out[1]));
    char *path = ida_path_join(p->staging, "manifest.json");
    ida_status st;
    if (root && path) st = ida_json_save(root, path, 2);
    else st = ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "%s: out of memory", p->dir);
    json_decref(root);
    ida_free(path);
    return st;
}

/* A folder that is there must be empty; the name is made absolute so that a link to a folder is followed. */
static ida_status prepare_folder(packer *p, const char *out_dir) {
    char **names = NULL;
    int64_t n = 0;
    IDA_FAIL_IF(!out_dir || !*out_dir, IDA_E_ARG, "no output folder given");
    if (ida_exists(out_dir)) {
        IDA_FAIL_IF(!ida_is_dir(out_dir), IDA_E_ARG, "%s: exists and is not a folder", out_dir);
        IDA_TRY(ida_list_dir(out_dir, &names, &n));
        ida_names_free(names, n);
        IDA_FAIL_IF(n > 0, IDA_E_ARG, "%s: exists and is not empty: name another folder or remove it", out_dir);
        p->dir = realpath(out_dir, NULL);
    } else {
        p->dir = ida_strdup(out_dir);
        for (size_t k = p->dir ? strlen(p->dir) : 0; k > 1 && p->dir[k - 1] == '/'; k--) p->dir[k - 1] = 0;
    }
    IDA_FAIL_IF(!p->dir, IDA_E_NOMEM, "%s: out of memory", out_dir);
    p->staging = ida_asprintf("%s.tmp-%ld", p->dir, (long)getpid());
    p->spool_path = p->staging ? ida_path_join(p->staging, "spool") : NULL;
    IDA_FAIL_IF(!p->spool_path, IDA_E_NOMEM, "%s: out of memory", out_dir);
    IDA_TRY(ida_remove_tree(p->staging));
    return ida_mkdirs(p->staging);
}

static ida_status prepare(packer *p, const ida_tokenizer *t, const ida_pack_options *o) {
    p->t = t;
    p->o = o;
    p->shard_tokens = o->shard_tokens ? o->shard_tokens : DEFAULT_SHARD_TOKENS;
    p->width = ida_shard_width(ida_tokenizer_vocab_size(t));
    p->separator = (int32_t)ida_tokenizer_eos(t);
    p->how = "none";
    IDA_FAIL_IF(p->shard_tokens < 1 || p->shard_tokens > IDA_SHARD_MAX_TOKENS, IDA_E_ARG,
                "shard_tokens %lld is out of range (1..%d)", (long long)o->shard_tokens, IDA_SHARD_MAX_TOKENS);
    IDA_FAIL_IF(!(o->val_fraction >= 0 && o->val_fraction <= 0.5), IDA_E_ARG, "val_fraction %g is out of range (0..0.5)",
                o->val_fraction);
    IDA_FAIL_IF(p->separator < 0, IDA_E_ARG,
                "the tokenizer has no end-of-text token to part documents: add a special token \"<|endoftext|>\"");
    p->may_cut = !t->add_prefix_space;
    for (int64_t i = 0; i < t->n_added; i++) p->may_cut &= t->added[i].special; /* others may match across a cut */
    p->out[0].name = "train";
    p->out[1].name = "val";
    for (int i = 0; i < 2; i++) {
        p->out[i].shards = json_array();
        IDA_FAIL_IF(!p->out[i].shards, IDA_E_NOMEM, "out of memory");
    }
    p->n_workers = ida_workers();
    IDA_TRY(IDA_CALLOC(p->encoder, p->n_workers, "encoders"));
    IDA_TRY(IDA_CALLOC(p->failed, p->n_workers, "encoders"));
    for (int i = 0; i < p->n_workers; i++) IDA_TRY(ida_encoder_new(t, &p->encoder[i]));
    IDA_TRY(prepare_folder(p, o->out_dir));
    if (o->val_fraction > 0) IDA_TRY(ida_writer_open(p->spool_path, &p->spool));
    return IDA_OK;
}

static ida_status publish(packer *p, int64_t bad_rows) {
    for (int i = 0; i < 2; i++) IDA_TRY(close_shard(p, &p->out[i]));
    IDA_TRY(ida_tokenizer_save(p->t, p->staging));
    IDA_TRY(write_manifest(p, bad_rows));
    IDA_TRY(ida_fsync_dir(p->staging));
    IDA_FAIL_IF(rename(p->staging, p->dir), IDA_E_IO, "%s: cannot rename the finished folder to this name: %s", p->dir,
                strerror(errno));
    char *slash = strrchr(p->dir, '/');
    if (!slash) return ida_fsync_dir(".");
    slash[slash == p->dir] = 0;
    return ida_fsync_dir(p->dir);
}

static void packer_free(packer *p, bool failed) {
    for (int i = 0; i < 2; i++) {
        ida_writer_abort(p->out[i].w);
        json_decref(p->out[i].shards);
    }
    ida_writer_abort(p->spool);
    for (int i = 0; p->encoder && i < p->n_workers; i++) ida_encoder_free(p->encoder[i]);
    for (int64_t i = 0; i < p->tasks_cap; i++) ida_free(p->tasks[i].ids.id);
    if (failed && p->staging) (void)ida_remove_tree(p->staging);
    ida_free(p->tasks);
    ida_free(p->encoder);
    ida_free(p->failed);
    ida_free(p->dir);
    ida_free(p->staging);
    ida_free(p->spool_path);
    ida_buf_free(&p->text);
    ida_free(p);
}

ida_status ida_data_pack(const ida_tokenizer *t, const ida_pack_options *o, ida_progress_fn *progress, void *user,
                         ida_pack_stats *stats) {
    IDA_NEED(t);
    IDA_NEED(o);
    IDA_NEED(o->out_dir);
    packer *p = NULL;
    ida_inputs *in = NULL;
    ida_status st;
    ida_text_options to = {.jsonl_key = o->jsonl_key, .split_blank_lines = o->split_blank_lines};
    IDA_TRY(IDA_CALLOC(p, 1, "packing"));
    IDA_TRY_GOTO(ida_inputs_open(o->inputs, o->n_inputs, &to, &in));
    IDA_TRY_GOTO(prepare(p, t, o));
    IDA_TRY_GOTO(read_all(p, in, progress, user));
    IDA_TRY_GOTO(publish(p, ida_inputs_bad(in)));
    if (stats)
        *stats = (ida_pack_stats){p->documents, p->bytes, p->out[0].tokens, p->out[1].tokens, p->out[0].bytes, p->out[1].bytes,
                                  ida_inputs_bad(in), p->out[0].n_shards + p->out[1].n_shards};
out:
    ida_inputs_close(in);
    packer_free(p, st != IDA_OK);
    return st;
}
