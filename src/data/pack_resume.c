/* pack_resume.c - OUT.part/resume.json: where a packing stands, saved at a document boundary after shards were finished and when
 * it is asked to stop. Going on gives the bytes that an unbroken run gives, because all else is a function of the documents.
 * OUT.part/seen.bin keeps the hashes of --dedup. Both are gone from the finished folder. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/json.h"
#include "core/mem.h"
#include "data/pack.h"

#define FORMAT "idattn-pack"
enum { VERSION = 2 };
#define MAX_BYTES ((int64_t)256 << 20)

static ida_status file_in(const char *staging, const char *name, char **path) {
    *path = ida_path_join(staging, name);
    IDA_FAIL_IF(!*path, IDA_E_NOMEM, "%s: out of memory", staging);
    return IDA_OK;
}

/* The input files that were opened, each as it was then. */
static ida_status describe_files(const ida_packer *p, int64_t opened, json_t **out) {
    *out = json_array();
    for (int64_t i = 0; i < opened; i++) {
        ida_input_id id;
        char ends[17];
        IDA_TRY(ida_inputs_identify(p->in, i, &id));
        snprintf(ends, sizeof ends, "%016llx", (unsigned long long)id.ends);
        json_t *file = json_pack("{s:I, s:I, s:s}", "bytes", (json_int_t)id.bytes, "mtime_ns", (json_int_t)id.mtime_ns,
                                 "ends", ends);
        json_array_append_new(*out, file);
    }
    bool whole = (int64_t)json_array_size(*out) == opened;
    IDA_FAIL_IF(!whole, IDA_E_NOMEM, "%s: out of memory", p->staging);
    return IDA_OK;
}

/* What must be the same for the bytes to be the same, but for the files' contents. */
static ida_status describe(const ida_packer *p, json_t **out) {
    const ida_pack_options *o = p->o;
    char hex[17];
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)ida_tokenizer_hash(p->t));
    json_t *inputs = json_array();
    for (int64_t i = 0; i < o->n_inputs; i++) json_array_append_new(inputs, ida_json_string(o->inputs[i]));
    bool whole = (int64_t)json_array_size(inputs) == o->n_inputs;
    *out = json_pack("{s:s, s:I, s:f, s:b, s:b, s:o, s:o, s:o}", "tokenizer_hash", hex, "shard_tokens",
                     (json_int_t)p->shard_tokens, "val_fraction", o->val_fraction, "split_blank_lines", o->split_blank_lines,
                     "dedup", o->dedup, "jsonl_key", ida_json_string(o->jsonl_key), "column", ida_json_string(o->column),
                     "inputs", inputs);
    IDA_FAIL_IF(!*out || !whole, IDA_E_NOMEM, "%s: out of memory", p->staging);
    return IDA_OK;
}

static ida_status state_json(ida_packer *p, json_t **out) {
    json_t *what = NULL, *files = NULL, *train = NULL, *val = NULL;
    const ida_pack_place *at = &p->place;
    char hex[17];
    ida_status st;
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)at->last_hash);
    IDA_TRY_GOTO(describe(p, &what));
    IDA_TRY_GOTO(describe_files(p, at->file + 1, &files));
    IDA_TRY_GOTO(ida_shard_out_sync(&p->out[0], &train));
    IDA_TRY_GOTO(ida_shard_out_sync(&p->out[1], &val));
    *out = json_pack("{s:s, s:i, s:O, s:O, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:O, s:O, s:O}", "format", FORMAT,
                     "version", VERSION, "what", what, "files", files, "file", (json_int_t)at->file, "file_documents",
                     (json_int_t)at->documents, "last_hash", hex, "split", p->how, "documents", (json_int_t)p->documents, "bytes",
                     (json_int_t)p->bytes, "duplicates", (json_int_t)at->duplicates, "seen", (json_int_t)at->seen, "bad_rows",
                     (json_int_t)p->bad_rows, "bad_row_list", p->bad_list, "train", train, "val", val);
    if (!*out) IDA_FAIL_GOTO(IDA_E_NOMEM, "%s: out of memory", p->staging);
out:
    json_decref(what);
    json_decref(files);
    json_decref(train);
    json_decref(val);
    return st;
}

ida_status ida_pack_save_state(ida_packer *p) {
    json_t *state = NULL;
    char *path = NULL;
    ida_status st;
    if (p->seen) IDA_TRY(ida_dedup_sync(p->seen));
    IDA_TRY(file_in(p->staging, "resume.json", &path));
    IDA_TRY_GOTO(state_json(p, &state));
    IDA_TRY_GOTO(ida_json_save(state, path, 0));
    p->saved = true;
    p->saved_shards = p->out[0].n_shards + p->out[1].n_shards;
out:
    json_decref(state);
    ida_free(path);
    return st;
}

bool ida_pack_has_state(const char *staging) {
    char *path = ida_path_join(staging, "resume.json");
    bool has = path && ida_exists(path);
    ida_free(path);
    return has;
}

ida_status ida_pack_open_seen(ida_packer *p, int64_t n) {
    char *path = NULL;
    if (p->resumable) IDA_TRY(file_in(p->staging, "seen.bin", &path));
    ida_status st = ida_dedup_open(path, n, &p->seen);
    ida_free(path);
    return st;
}

static ida_status remove_file(const char *staging, const char *name) {
    char *path;
    IDA_TRY(file_in(staging, name, &path));
    bool failed = unlink(path) && errno != ENOENT;
    ida_free(path);
    IDA_FAIL_IF(failed, IDA_E_IO, "%s/%s: cannot remove: %s", staging, name, strerror(errno));
    return IDA_OK;
}

/* The state first: one without its journal could not be gone on with, a journal alone is cleared away. */
ida_status ida_pack_drop_state(const ida_packer *p) {
    IDA_TRY(remove_file(p->staging, "resume.json"));
    return remove_file(p->staging, "seen.bin");
}

/* ---------------------------------------------------------------- going on */

static ida_status check_what(const ida_packer *p, const json_t *was, const char *where) {
    json_t *now = NULL;
    IDA_TRY(describe(p, &now));
    const char *key, *other = NULL;
    json_t *value;
    json_object_foreach(now, key, value) {
        if (!json_equal(value, json_object_get(was, key))) other = other ? other : key;
    }
    char name[40] = "";
    if (other) snprintf(name, sizeof name, "%s", other);
    json_decref(now);
    IDA_FAIL_IF(*name, IDA_E_ARG,
                "%s: %s is not what it was when packing stopped: give the same inputs and options, or remove the folder",
                where, name);
    return IDA_OK;
}

/* Size, time and both ends: a file that is already packed is not read again. */
static ida_status check_files(const ida_packer *p, const json_t *was, int64_t opened, const char *where) {
    IDA_FAIL_IF((int64_t)json_array_size(was) != opened, IDA_E_FORMAT, "%s: the list of files is damaged", where);
    for (int64_t i = 0; i < opened; i++) {
        const json_t *file = json_array_get(was, (size_t)i);
        const char *ends, *path = p->o->inputs[i];
        int64_t bytes, mtime;
        char now[17];
        ida_input_id id;
        IDA_TRY(ida_json_i64(file, where, "bytes", 0, INT64_MAX, NULL, &bytes));
        IDA_TRY(ida_json_i64(file, where, "mtime_ns", INT64_MIN, INT64_MAX, NULL, &mtime));
        IDA_TRY(ida_json_str(file, where, "ends", NULL, &ends));
        IDA_TRY(ida_inputs_identify(p->in, i, &id));
        snprintf(now, sizeof now, "%016llx", (unsigned long long)id.ends);
        IDA_FAIL_IF(id.bytes != bytes || strcmp(now, ends) != 0, IDA_E_ARG,
                    "%s: %s has changed since packing stopped: bring the file back, or remove the folder", where, path);
        IDA_FAIL_IF(id.mtime_ns != mtime, IDA_E_ARG,
                    "%s: %s was written to since packing stopped: remove the folder; or, if it holds the same bytes, "
                    "give it its time again: touch -d @%lld.%09lld",
                    where, path, (long long)(mtime / 1000000000), (long long)(mtime % 1000000000));
    }
    return IDA_OK;
}

/* Reads the file in work again up to the place and looks whether the last document is still the same. */
static ida_status go_to_place(ida_packer *p, const json_t *state, const char *where, int64_t file, ida_progress_fn *progress,
                              void *user) {
    int64_t given, n;
    const char *hash, *text;
    char hex[17];
    IDA_TRY(ida_json_i64(state, where, "file_documents", 0, INT64_MAX, NULL, &given));
    IDA_TRY(ida_json_str(state, where, "last_hash", NULL, &hash));
    IDA_TRY(ida_inputs_go(p->in, file, given, progress, user, &text, &n));
    p->place = (ida_pack_place){.file = file, .documents = given, .read_bytes = ida_inputs_done(p->in),
                                .duplicates = p->place.duplicates, .seen = p->place.seen,
                                .last_hash = text ? XXH3_64bits(text, (size_t)n) : 0};
    p->read = p->place;
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)p->place.last_hash);
    IDA_FAIL_IF(text && strcmp(hash, hex) != 0, IDA_E_ARG, "%s: document %lld of %s is not what it was: the file has changed",
                where,
                (long long)given, p->o->inputs[file]);
    return IDA_OK;
}

static ida_status take_counts(ida_packer *p, const json_t *state, const char *where) {
    const char *how;
    IDA_TRY(ida_json_str(state, where, "split", NULL, &how));
    IDA_FAIL_IF(strcmp(how, "hash") != 0 && strcmp(how, "none") != 0, IDA_E_FORMAT, "%s: split \"%.20s\"", where, how);
    p->how = strcmp(how, "hash") == 0 ? "hash" : "none";
    IDA_TRY(ida_json_i64(state, where, "documents", 0, INT64_MAX, NULL, &p->documents));
    IDA_TRY(ida_json_i64(state, where, "bytes", 0, INT64_MAX, NULL, &p->bytes));
    IDA_TRY(ida_json_i64(state, where, "duplicates", 0, INT64_MAX, NULL, &p->place.duplicates));
    IDA_TRY(ida_json_i64(state, where, "bad_rows", 0, INT64_MAX, NULL, &p->bad_rows));
    json_t *list = json_object_get(state, "bad_row_list");
    IDA_FAIL_IF(!json_is_array(list), IDA_E_FORMAT, "%s: no list of bad rows", where);
    json_decref(p->bad_list);
    p->bad_list = json_incref(list);
    return IDA_OK;
}

static ida_status load(ida_packer *p, const json_t *state, const char *where, ida_progress_fn *progress, void *user) {
    const char *format;
    int64_t version, file;
    IDA_TRY(ida_json_str(state, where, "format", NULL, &format));
    IDA_TRY(ida_json_i64(state, where, "version", 1, INT32_MAX, NULL, &version));
    IDA_FAIL_IF(strcmp(format, FORMAT) != 0 || version != VERSION, IDA_E_FORMAT, "%s: not a state of this version", where);
    IDA_TRY(ida_json_i64(state, where, "file", 0, p->o->n_inputs - 1, NULL, &file));
    IDA_TRY(check_what(p, json_object_get(state, "what"), where));
    IDA_TRY(check_files(p, json_object_get(state, "files"), file + 1, where));
    IDA_TRY(take_counts(p, state, where));
    IDA_TRY(ida_json_i64(state, where, "seen", 0, INT64_MAX / 64, NULL, &p->place.seen));
    if (p->o->dedup) IDA_TRY(ida_pack_open_seen(p, p->place.seen));
    static const char *const splits[] = {"train", "val"};
    for (int i = 0; i < 2; i++) IDA_TRY(ida_shard_out_restore(&p->out[i], json_object_get(state, splits[i]), where));
    IDA_FAIL_IF(p->documents != p->out[0].documents + p->out[1].documents || p->bytes != p->out[0].bytes + p->out[1].bytes,
                IDA_E_FORMAT, "%s: the counts of documents do not add up", where);
    p->saved_shards = p->out[0].n_shards + p->out[1].n_shards;
    return go_to_place(p, state, where, file, progress, user);
}

ida_status ida_pack_load_state(ida_packer *p, ida_progress_fn *progress, void *user, bool *found) {
    json_t *state = NULL;
    char *path = NULL;
    ida_status st;
    *found = false;
    IDA_TRY(file_in(p->staging, "resume.json", &path));
    IDA_TRY_GOTO(ida_json_load(path, MAX_BYTES, &state));
    IDA_TRY_GOTO(load(p, state, path, progress, user));
    *found = true;
out:
    json_decref(state);
    ida_free(path);
    return st;
}
