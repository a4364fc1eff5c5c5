/* pack.c - ida_data_pack: text to token shards (docs/formats.md). Documents are read in batches, encoded in parallel and written
 * in order (pack_batch.c), so the files do not depend on the thread count. All is written into OUT.part, which is renamed when
 * whole; pack_resume.c goes on there after a kill.
 * Split: by the hash of each document's bytes ("hash"). With fewer than IDA_PACK_MIN_DOCUMENTS documents that would be a
 * lottery, so the last part of the token stream becomes the validation split, cutting a document if need be ("tail"). Until it
 * is known which of the two holds, documents wait in a spool file. */
#include "data/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "data/shard.h"

enum { CUT_WINDOW = 4096 };
#define DEFAULT_SHARD_MILLIONS 100

#define T ida_pack_options
static const ida_field rows[] = {
    IDA_ROW_LIST(T, "inputs", inputs, n_inputs, "INPUT...", .flags = IDA_FIELD_REQUIRED | IDA_FIELD_ARGUMENT,
                 .help = "text files; - = standard input"),
    IDA_ROW_TEXT(T, "out", out_dir, NULL, "DIR", .flags = IDA_FIELD_REQUIRED, .letter = 'o',
                 .help = "folder to write; absent or empty"),
    IDA_ROW_REAL(T, "val_fraction", val_fraction, 0.01, 0, 0.5, .arg = "F", .flags = IDA_FIELD_RESULT,
                 .help = "part of the documents kept for validation"),
    IDA_ROW_BOOL(T, "split_blank_lines", split_blank_lines, false, .flags = IDA_FIELD_RESULT,
                 .help = "in .txt a document ends at a form feed or at three or more newlines; else one file is one "
                         "document"),
    IDA_ROW_INT(T, "shard_tokens", shard_tokens, 0, 0, IDA_SHARD_MAX_TOKENS, .flags = IDA_FIELD_RESULT,
                .help = "tokens in a shard", .note = "0 = " IDA_STR(DEFAULT_SHARD_MILLIONS) ",000,000"),
    IDA_ROW_JSONL_KEY(T),
    IDA_ROW_TEXT(T, "column", column, NULL, "NAME", .help = "the text's column in .parquet files [the jsonl key]"),
    IDA_ROW_BOOL(T, "dedup", dedup, false, .flags = IDA_FIELD_RESULT,
                 .help = "leave exact duplicates out; takes about 32 bytes of memory a document"),
    IDA_ROW_BOOL(T, "resume", resume, false,
                 .help = "go on where packing into OUT stopped, with the same inputs and options"),
};
#undef T
const ida_fields ida_pack_fields = IDA_FIELDS("pack", "", ida_pack_options, rows);

static ida_shard_out *choose(ida_packer *p, uint64_t hash) {
    return &p->out[(double)(hash >> 11) * 0x1p-53 < p->o->val_fraction];
}

static void count_document(ida_shard_out *s, int64_t bytes) {
    s->documents++;
    s->bytes += bytes;
}

/* The waiting documents, one after the other, each with its separator. */
static ida_status close_spool(ida_packer *p, ida_map *m) {
    ida_writer *w = p->spool;
    p->spool = NULL;
    IDA_TRY(ida_writer_commit(w));
    return ida_map_open(p->spool_path, m);
}

static ida_status drop_spool(const ida_packer *p, ida_map *m) {
    ida_map_close(m);
    IDA_FAIL_IF(unlink(p->spool_path), IDA_E_IO, "%s: cannot remove: %s", p->spool_path, strerror(errno));
    return IDA_OK;
}

static ida_status replay_by_hash(ida_packer *p) {
    ida_map m = {0};
    IDA_TRY(close_spool(p, &m));
    const int32_t *ids = (const int32_t *)(const void *)m.data;
    ida_status st = IDA_OK;
    for (int64_t i = 0; i < p->n_waiting && !st; i++) {
        const ida_pack_document *d = &p->waiting[i];
        ida_shard_out *s = choose(p, d->hash);
        count_document(s, d->bytes);
        st = ida_shard_out_put(s, ids, d->n_ids);
        ids += d->n_ids;
    }
    p->n_waiting = 0;
    p->how = "hash";
    ida_status dropped = drop_spool(p, &m);
    return st ? st : dropped;
}

/* Is the place before ids[i] fit for a cut? rule 0: a line ends there; 1: a word starts; 2: a character starts. */
static bool fits(const ida_packer *p, const int32_t *ids, int64_t i, int rule) {
    size_t n = 0;
    if (ids[i] == p->separator) return true;
    const char *s = ida_tokenizer_piece(p->t, ids[i - (rule == 0)], &n, NULL);
    if (!s || !n) return false;
    if (rule == 0) return s[n - 1] == '\n';
    return rule == 1 ? s[0] == ' ' || s[0] == '\n' : ((unsigned char)s[0] & 0xC0) != 0x80;
}

/* Moves a cut a little to the right, to the first fit place of the best rule. */
static int64_t good_cut(const ida_packer *p, const int32_t *ids, int64_t cut, int64_t total) {
    int64_t stop = total - cut > CUT_WINDOW ? cut + CUT_WINDOW : total;
    for (int rule = 0; rule < 3; rule++)
        for (int64_t i = cut; i < stop; i++)
            if (fits(p, ids, i, rule)) return i;
    return cut;
}

static int64_t bytes_of(const ida_packer *p, const int32_t *ids, int64_t n) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t k = 0;
        ida_tokenizer_piece(p->t, ids[i], &k, NULL);
        bytes += (int64_t)k;
    }
    return bytes;
}

static ida_status put_tail(ida_packer *p, const int32_t *ids, int64_t cut) {
    for (int64_t i = 0, at = 0; i < p->n_waiting; i++) {
        const ida_pack_document *d = &p->waiting[i];
        int64_t end = at + d->n_ids;
        if (cut <= at || cut >= end) {
            ida_shard_out *s = &p->out[cut <= at];
            count_document(s, d->bytes);
            IDA_TRY(ida_shard_out_put(s, ids + at, d->n_ids));
        } else {
            int64_t tail = bytes_of(p, ids + cut, end - cut);
            if (tail > d->bytes) tail = d->bytes;
            count_document(&p->out[0], d->bytes - tail);
            count_document(&p->out[1], tail);
            IDA_TRY(ida_shard_out_put(&p->out[0], ids + at, cut - at));
            IDA_TRY(ida_shard_out_put(&p->out[1], &p->separator, 1));
            IDA_TRY(ida_shard_out_put(&p->out[1], ids + cut, end - cut));
        }
        at = end;
    }
    return IDA_OK;
}

static ida_status replay_as_tail(ida_packer *p) {
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
            (long long)p->n_waiting, IDA_PACK_MIN_DOCUMENTS,
            100.0 * (double)(total - cut) / (double)total);
    ida_status dropped = drop_spool(p, &m);
    return st ? st : dropped;
}

/* One encoded document: its tasks' ids in order, after the separator. */
static ida_status put_document(ida_packer *p, const ida_pack_document *d, const ida_pack_task *tasks) {
    int64_t n_ids = 1;
    ida_shard_out *s = NULL;
    p->documents++;
    p->bytes += d->bytes;
    if (p->spool) {
        IDA_TRY(ida_writer_put(p->spool, &p->separator, sizeof p->separator));
    } else {
        s = choose(p, d->hash);
        count_document(s, d->bytes);
        IDA_TRY(ida_shard_out_put(s, &p->separator, 1));
    }
    for (int64_t k = 0; k < d->n_tasks; k++) {
        const ida_ids *ids = &tasks[k].ids;
        n_ids += ids->n;
        if (s) IDA_TRY(ida_shard_out_put(s, ids->id, ids->n));
        else if (ids->n) IDA_TRY(ida_writer_put(p->spool, ids->id, (size_t)ids->n * sizeof *ids->id));
    }
    if (s) return IDA_OK;
    p->waiting[p->n_waiting++] = (ida_pack_document){.bytes = d->bytes, .n_ids = n_ids, .hash = d->hash};
    return p->n_waiting == IDA_PACK_MIN_DOCUMENTS ? replay_by_hash(p) : IDA_OK;
}

static ida_status put_batch(ida_packer *p, const ida_pack_batch *b) {
    const ida_pack_task *k = b->tasks;
    for (int64_t i = 0; i < b->n_docs; i++) {
        IDA_TRY(put_document(p, &b->docs[i], k));
        k += b->docs[i].n_tasks;
    }
    p->place = b->place;
    return IDA_OK;
}

static ida_status stop(ida_packer *p) {
    if (p->resumable && !p->spool) IDA_TRY(ida_pack_save_state(p));
    IDA_FAIL(IDA_E_CANCELLED, "packing was stopped after %lld documents; %s", (long long)p->documents,
             p->saved ? "--resume goes on from there" : "nothing was written");
}

/* After a batch was written. *end: it was the last one. */
static ida_status after_batch(ida_packer *p, ida_pack_batch *b, ida_progress_fn *progress, void *user, bool *end) {
    *end = b->end;
    ida_pack_clear(p, b);
    bool asked = progress && progress(user, "packing", p->place.read_bytes, ida_inputs_total(p->in));
    if (asked && (!*end || p->spool)) return stop(p); /* else all but the publishing is done */
    bool worth = p->out[0].n_shards + p->out[1].n_shards > p->saved_shards;
    return worth && !*end && p->resumable && !p->spool ? ida_pack_save_state(p) : IDA_OK;
}

static ida_status pack_all(ida_packer *p, ida_progress_fn *progress, void *user) {
    ida_pack_batch *done = NULL, *full = NULL;
    bool read = false, end = false;
    for (int64_t turn = 0; !end; turn++) {
        ida_pack_batch *empty = read ? NULL : p->batch[turn % 3];
        IDA_TRY(ida_pack_step(p, done, put_batch, full, empty));
        read |= empty && empty->end;
        if (done) IDA_TRY(after_batch(p, done, progress, user, &end));
        done = full;
        full = empty;
    }
    IDA_FAIL_IF(p->documents == 0, IDA_E_FORMAT, "the inputs hold no document (%lld bad rows)", (long long)p->bad_rows);
    if (p->spool) IDA_TRY(replay_as_tail(p));
    if (p->o->val_fraction > 0 && p->out[1].tokens == 0)
        ida_log("no document fell into the validation split: pack with a larger validation fraction than %g, or more documents",
                p->o->val_fraction);
    return IDA_OK;
}

static json_t *split_json(const ida_shard_out *s) {
    return json_pack("{s:I, s:I, s:I, s:O}", "tokens", (json_int_t)s->tokens, "documents", (json_int_t)s->documents, "bytes",
                     (json_int_t)s->bytes, "shards", s->shards);
}

static ida_status write_manifest(const ida_packer *p) {
    char hex[17];
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)ida_tokenizer_hash(p->t));
    json_t *root = json_pack("{s:s, s:i, s:s, s:I, s:s, s:{s:i, s:s}, s:s, s:f, s:I, s:I, s:I, s:I, s:O, s:{s:o, s:o}}", "format",
                             IDA_MANIFEST_FORMAT, "version", IDA_MANIFEST_VERSION, "tokenizer_hash", hex, "vocab_size",
                             (json_int_t)ida_tokenizer_vocab_size(p->t), "dtype", p->width == 2 ? "uint16" : "uint32",
                             "separator", "id", (int)p->separator, "side", "before", "split", p->how, "val_fraction",
                             p->o->val_fraction, "documents", (json_int_t)p->documents, "bytes", (json_int_t)p->bytes,
                             "duplicates", (json_int_t)p->place.duplicates, "bad_rows", (json_int_t)p->bad_rows, "bad_row_list",
                                 p->bad_list,
                             "splits", "train", split_json(&p->out[0]), "val", split_json(&p->out[1]));
    char *path = ida_path_join(p->staging, "manifest.json");
    ida_status st;
    if (root && path) st = ida_json_save(root, path, 2);
    else st = ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "%s: out of memory", p->dir);
    json_decref(root);
    ida_free(path);
    return st;
}

/* A folder that is there must be empty; the name is made absolute so that a link to a folder is followed. */
static ida_status name_folder(ida_packer *p, const char *out_dir) {
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
    p->staging = ida_asprintf("%s.part", p->dir);
    p->spool_path = p->staging ? ida_path_join(p->staging, "spool") : NULL;
    IDA_FAIL_IF(!p->spool_path, IDA_E_NOMEM, "%s: out of memory", out_dir);
    return IDA_OK;
}

/* Locks OUT.part and clears it; of a packing that is to go on only what a kill in the middle of an atomic write left. */
static ida_status prepare_folder(ida_packer *p) {
    IDA_TRY(ida_mkdirs(p->staging));
    p->lock = open(p->staging, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    IDA_FAIL_IF(p->lock < 0, IDA_E_IO, "%s: cannot open: %s", p->staging, strerror(errno));
    /* A file system without locks (some network ones) is no reason to refuse. */
    if (flock(p->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        close(p->lock);
        p->lock = -1;
        IDA_FAIL(IDA_E_ARG, "%s: another process is packing into this folder", p->staging);
    }
    bool has_state = ida_pack_has_state(p->staging);
    p->saved = has_state; /* so that it is not removed when this call fails */
    IDA_FAIL_IF(has_state && !p->o->resume, IDA_E_ARG,
                "%s: an earlier packing stopped there: go on with --resume, or remove it", p->staging);
    char **names = NULL;
    int64_t n = 0;
    ida_status st = ida_list_dir(p->staging, &names, &n);
    for (int64_t i = 0; i < n && !st; i++) {
        if (has_state && !ida_is_temporary(names[i])) continue;
        char *path = ida_path_join(p->staging, names[i]);
        if (!path) st = ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "%s: out of memory", p->staging);
        else if (unlink(path)) st = ida_fail(IDA_E_IO, __FILE__, __LINE__, "%s: cannot remove: %s", path, strerror(errno));
        ida_free(path);
    }
    ida_names_free(names, n);
    return st;
}

static ida_status prepare(ida_packer *p, const ida_tokenizer *t) {
    const ida_pack_options *o = p->o;
    p->t = t;
    p->shard_tokens = o->shard_tokens ? o->shard_tokens : DEFAULT_SHARD_MILLIONS * INT64_C(1000000);
    p->width = ida_shard_width(ida_tokenizer_vocab_size(t));
    p->separator = (int32_t)ida_tokenizer_eos(t);
    p->how = "none";
    IDA_TRY(ida_fields_check(&ida_pack_fields, o));
    IDA_FAIL_IF(p->separator < 0, IDA_E_ARG,
                "the tokenizer has no end-of-text token to part documents: add a special token \"<|endoftext|>\"");
    p->resumable = true;
    for (int64_t i = 0; i < o->n_inputs; i++) p->resumable &= ida_inputs_is_file(p->in, i);
    IDA_FAIL_IF(o->resume && !p->resumable, IDA_E_ARG,
                "standard input or a pipe cannot be read again: --resume needs plain files");
    p->may_cut = t->in_parts;
    p->bad_list = json_array();
    IDA_FAIL_IF(!p->bad_list, IDA_E_NOMEM, "out of memory");
    IDA_TRY(ida_pack_batches_new(p));
    IDA_TRY(name_folder(p, o->out_dir));
    IDA_TRY(prepare_folder(p));
    IDA_TRY(ida_shard_out_init(&p->out[0], p->staging, "train", p->width, p->shard_tokens));
    return ida_shard_out_init(&p->out[1], p->staging, "val", p->width, p->shard_tokens);
}

/* At the first document, or where an earlier packing stopped. */
static ida_status begin_work(ida_packer *p, ida_progress_fn *progress, void *user) {
    bool found = false;
    if (p->saved) IDA_TRY(ida_pack_load_state(p, progress, user, &found));
    if (found) return IDA_OK;
    if (p->o->dedup) IDA_TRY(ida_pack_open_seen(p, 0));
    return p->o->val_fraction > 0 ? ida_writer_open(p->spool_path, &p->spool) : IDA_OK;
}

static ida_status publish(ida_packer *p) {
    for (int i = 0; i < 2; i++) IDA_TRY(ida_shard_out_end(&p->out[i]));
    IDA_TRY(ida_tokenizer_save(p->t, p->staging));
    IDA_TRY(write_manifest(p));
    IDA_TRY(ida_fsync_dir(p->staging));
    IDA_TRY(ida_pack_drop_state(p)); /* last, so that a kill before it can still be resumed */
    IDA_FAIL_IF(rename(p->staging, p->dir), IDA_E_IO, "%s: cannot rename the finished folder to this name: %s", p->dir,
                strerror(errno));
    char *slash = strrchr(p->dir, '/');
    if (!slash) return ida_fsync_dir(".");
    slash[slash == p->dir] = 0;
    return ida_fsync_dir(p->dir);
}

static void packer_free(ida_packer *p, bool failed) {
    if (!p) return;
    for (int i = 0; i < 2; i++) ida_shard_out_free(&p->out[i]);
    ida_inputs_close(p->in);
    ida_writer_abort(p->spool);
    ida_dedup_close(p->seen);
    json_decref(p->bad_list);
    ida_pack_batches_free(p);
    if (failed && p->lock >= 0 && !p->saved) (void)ida_remove_tree(p->staging);
    if (p->lock >= 0) close(p->lock);
    ida_free(p->dir);
    ida_free(p->staging);
    ida_free(p->spool_path);
    ida_free(p);
}

ida_status ida_data_pack(const ida_tokenizer *t, const ida_pack_options *o, ida_progress_fn *progress, void *user,
                         ida_pack_stats *stats) {
    IDA_NEED(t);
    IDA_NEED(o);
    IDA_NEED(o->out_dir);
    ida_packer *p = NULL;
    ida_status st;
    IDA_TRY(IDA_CALLOC(p, 1, "packing"));
    p->o = o;
    p->lock = p->out[0].fd = p->out[1].fd = -1;
    const ida_text_options to = {.jsonl_key = o->jsonl_key, .column = o->column, .split_blank_lines = o->split_blank_lines,
                                 .on_bad = ida_pack_on_bad, .user = p};
    IDA_TRY_GOTO(ida_inputs_open(o->inputs, o->n_inputs, &to, &p->in));
    IDA_TRY_GOTO(prepare(p, t));
    IDA_TRY_GOTO(begin_work(p, progress, user));
    IDA_TRY_GOTO(pack_all(p, progress, user));
    IDA_TRY_GOTO(publish(p));
    if (stats)
        *stats = (ida_pack_stats){p->documents, p->bytes, p->out[0].tokens, p->out[1].tokens, p->out[0].bytes, p->out[1].bytes,
                                  p->bad_rows, p->out[0].n_shards + p->out[1].n_shards, p->place.duplicates};
out:
    packer_free(p, st != IDA_OK);
    return st;
}
