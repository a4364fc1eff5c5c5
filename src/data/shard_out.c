/* shard_out.c - see shard_out.h. */
#include "data/shard_out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "data/shard.h"

enum { BUFFER_BYTES = 1 << 17 };

ida_status ida_shard_out_init(ida_shard_out *s, const char *dir, const char *split, int width, int64_t shard_tokens) {
    *s = (ida_shard_out){.dir = dir, .split = split, .width = width, .shard_tokens = shard_tokens, .fd = -1};
    s->shards = json_array();
    IDA_FAIL_IF(!s->shards, IDA_E_NOMEM, "%s: out of memory", dir);
    return IDA_ALLOC(s->buffer, BUFFER_BYTES, "shard buffer");
}

void ida_shard_out_free(ida_shard_out *s) {
    if (s->buffer && s->fd >= 0) close(s->fd);
    json_decref(s->shards);
    ida_free(s->buffer);
    *s = (ida_shard_out){.fd = -1};
}

static ida_status file_name(const ida_shard_out *s, int64_t index, const char *tail, char **path) {
    *path = ida_asprintf("%s/%s_%06lld.bin%s", s->dir, s->split, (long long)index, tail);
    IDA_FAIL_IF(!*path, IDA_E_NOMEM, "%s: out of memory", s->dir);
    return IDA_OK;
}

static ida_status io_failure(const ida_shard_out *s, const char *what) {
    IDA_FAIL(IDA_E_IO, "%s/%s_%06lld.bin: cannot %s: %s", s->dir, s->split, (long long)s->n_shards, what, strerror(errno));
}

static ida_status flush(ida_shard_out *s) {
    for (int64_t at = 0; at < s->used;) {
        ssize_t n = write(s->fd, s->buffer + at, (size_t)(s->used - at));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_failure(s, "write");
        at += n;
    }
    s->used = 0;
    return IDA_OK;
}

static ida_status write_header(const ida_shard_out *s) {
    int32_t header[256];
    ida_shard_header(header, s->width, s->in_shard);
    ssize_t n = pwrite(s->fd, header, sizeof header, 0);
    if (n >= 0 && n != (ssize_t)sizeof header) errno = ENOSPC;
    return n == (ssize_t)sizeof header ? IDA_OK : io_failure(s, "write");
}

static ida_status open_part(ida_shard_out *s, int flags) {
    char *path;
    IDA_TRY(file_name(s, s->n_shards, ".part", &path));
    s->fd = open(path, O_RDWR | O_CLOEXEC | flags, 0666);
    ida_free(path);
    return s->fd < 0 ? io_failure(s, "open") : IDA_OK;
}

static ida_status begin_shard(ida_shard_out *s) {
    IDA_TRY(open_part(s, O_CREAT | O_TRUNC));
    IDA_TRY(write_header(s));
    return lseek(s->fd, IDA_SHARD_HEADER_BYTES, SEEK_SET) < 0 ? io_failure(s, "seek") : IDA_OK;
}

static ida_status publish_part(ida_shard_out *s, uint64_t *hash) {
    char *part = NULL, *path = NULL;
    int64_t size;
    ida_status st;
    IDA_TRY_GOTO(file_name(s, s->n_shards, ".part", &part));
    IDA_TRY_GOTO(file_name(s, s->n_shards, "", &path));
    if (rename(part, path)) IDA_FAIL_GOTO(IDA_E_IO, "%s: cannot rename: %s", part, strerror(errno));
    IDA_TRY_GOTO(ida_hash_file(path, hash, &size));
out:
    ida_free(part);
    ida_free(path);
    return st;
}

ida_status ida_shard_out_end(ida_shard_out *s) {
    if (s->fd < 0) return IDA_OK;
    char name[64], hex[17];
    uint64_t hash;
    IDA_TRY(flush(s));
    IDA_TRY(write_header(s));
    if (fsync(s->fd)) return io_failure(s, "write");
    int fd = s->fd;
    s->fd = -1;
    if (close(fd)) return io_failure(s, "close");
    IDA_TRY(publish_part(s, &hash));
    snprintf(name, sizeof name, "%s_%06lld.bin", s->split, (long long)s->n_shards);
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    json_t *entry = json_pack("{s:s, s:I, s:s}", "name", name, "tokens", (json_int_t)s->in_shard, "xxh3", hex);
    IDA_FAIL_IF(!entry || json_array_append_new(s->shards, entry), IDA_E_NOMEM, "%s: out of memory", s->dir);
    s->n_shards++;
    s->in_shard = 0;
    return IDA_OK;
}

ida_status ida_shard_out_put(ida_shard_out *s, const int32_t *ids, int64_t n) {
    s->tokens += n;
    while (n > 0) {
        if (s->fd < 0) IDA_TRY(begin_shard(s));
        int64_t take = (BUFFER_BYTES - s->used) / s->width;
        if (take > n) take = n;
        if (take > s->shard_tokens - s->in_shard) take = s->shard_tokens - s->in_shard;
        uint8_t *to = s->buffer + s->used;
        if (s->width == 2) {
            for (int64_t i = 0; i < take; i++) {
                uint16_t id = (uint16_t)ids[i];
                memcpy(to + 2 * i, &id, sizeof id);
            }
        } else {
            memcpy(to, ids, (size_t)take * sizeof *ids);
        }
        s->used += take * s->width;
        s->in_shard += take;
        ids += take;
        n -= take;
        if (s->in_shard == s->shard_tokens) IDA_TRY(ida_shard_out_end(s));
        else if (s->used == BUFFER_BYTES) IDA_TRY(flush(s));
    }
    return IDA_OK;
}

ida_status ida_shard_out_sync(ida_shard_out *s, json_t **state) {
    if (s->fd >= 0) {
        IDA_TRY(flush(s));
        if (fsync(s->fd)) return io_failure(s, "write");
    }
    *state = json_pack("{s:I, s:I, s:I, s:I, s:O}", "in_shard", (json_int_t)s->in_shard, "tokens", (json_int_t)s->tokens,
                       "documents",
                       (json_int_t)s->documents, "bytes", (json_int_t)s->bytes, "shards", s->shards);
    IDA_FAIL_IF(!*state, IDA_E_NOMEM, "%s: out of memory", s->dir);
    return IDA_OK;
}

/* ---------------------------------------------------------------- going back */

/* The manifest's line for a finished shard, which will be published as it stands. */
static bool is_entry(const ida_shard_out *s, const json_t *entry, int64_t index) {
    const char *name = json_string_value(json_object_get(entry, "name")),
               *hash = json_string_value(json_object_get(entry, "xxh3"));
    char want[64];
    snprintf(want, sizeof want, "%s_%06lld.bin", s->split, (long long)index);
    return name && hash && strcmp(name, want) == 0 && strlen(hash) == 16 && strspn(hash, "0123456789abcdef") == 16;
}

/* Finished shards must still be there, as long as the state tells. */
static ida_status check_finished(const ida_shard_out *s, const char *where, int64_t *total) {
    *total = 0;
    for (int64_t i = 0; i < s->n_shards; i++) {
        const json_t *entry = json_array_get(s->shards, (size_t)i);
        int64_t tokens;
        struct stat file;
        char *path;
        IDA_FAIL_IF(!is_entry(s, entry, i), IDA_E_FORMAT, "%s: the line of %s shard %lld is damaged", where, s->split,
                    (long long)i);
        IDA_TRY(ida_json_i64(entry, where, "tokens", 1, s->shard_tokens, NULL, &tokens));
        IDA_TRY(file_name(s, i, "", &path));
        bool good = stat(path, &file) == 0 && (int64_t)file.st_size == IDA_SHARD_HEADER_BYTES + tokens * s->width;
        ida_free(path);
        IDA_FAIL_IF(!good, IDA_E_FORMAT, "%s: shard %lld of %s is not there in full: remove the folder and pack again", where,
                    (long long)i, s->split);
        IDA_FAIL_IF(!ida_add64(*total, tokens, total), IDA_E_FORMAT, "%s: token counts overflow", where);
    }
    return IDA_OK;
}

/* The shard in work, which may have been finished after the state was taken, is cut back to in_shard tokens. */
static ida_status reopen_part(ida_shard_out *s, const char *where) {
    char *part = NULL, *path = NULL;
    struct stat file;
    int64_t want = IDA_SHARD_HEADER_BYTES + s->in_shard * s->width;
    ida_status st;
    IDA_TRY_GOTO(file_name(s, s->n_shards, ".part", &part));
    IDA_TRY_GOTO(file_name(s, s->n_shards, "", &path));
    if (ida_exists(path) && rename(path, part)) IDA_FAIL_GOTO(IDA_E_IO, "%s: cannot rename: %s", path, strerror(errno));
    IDA_TRY_GOTO(open_part(s, 0));
    if (fstat(s->fd, &file) || (int64_t)file.st_size < want)
        IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: %s is shorter than it was: remove the folder and pack again", where, part);
    if (ftruncate(s->fd, (off_t)want) || lseek(s->fd, 0, SEEK_END) < 0) st = io_failure(s, "cut back");
out:
    ida_free(part);
    ida_free(path);
    return st;
}

/* Removes this split's files from shard number `first` on. */
static ida_status remove_later(const ida_shard_out *s, int64_t first) {
    char **names = NULL;
    int64_t n = 0;
    size_t prefix = strlen(s->split);
    ida_status st = ida_list_dir(s->dir, &names, &n);
    for (int64_t i = 0; i < n && !st; i++) {
        if (strncmp(names[i], s->split, prefix) != 0 || names[i][prefix] != '_') continue;
        if (strtoll(names[i] + prefix + 1, NULL, 10) < first) continue;
        char *path = ida_path_join(s->dir, names[i]);
        if (!path) st = ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "%s: out of memory", s->dir);
        else if (unlink(path)) st = ida_fail(IDA_E_IO, __FILE__, __LINE__, "%s: cannot remove: %s", path, strerror(errno));
        ida_free(path);
    }
    ida_names_free(names, n);
    return st;
}

ida_status ida_shard_out_restore(ida_shard_out *s, const json_t *state, const char *where) {
    int64_t total;
    json_t *list = json_object_get(state, "shards");
    IDA_FAIL_IF(!json_is_array(list), IDA_E_FORMAT, "%s: no list of shards", where);
    json_decref(s->shards);
    s->shards = json_incref(list);
    s->n_shards = (int64_t)json_array_size(list);
    IDA_TRY(ida_json_i64(state, where, "in_shard", 0, s->shard_tokens - 1, NULL, &s->in_shard));
    IDA_TRY(ida_json_i64(state, where, "tokens", 0, INT64_MAX, NULL, &s->tokens));
    IDA_TRY(ida_json_i64(state, where, "documents", 0, s->tokens, NULL, &s->documents));
    IDA_TRY(ida_json_i64(state, where, "bytes", 0, INT64_MAX, NULL, &s->bytes));
    IDA_TRY(check_finished(s, where, &total));
    IDA_FAIL_IF(total + s->in_shard != s->tokens, IDA_E_FORMAT, "%s: the token counts of %s do not add up", where, s->split);
    if (s->in_shard) IDA_TRY(reopen_part(s, where));
    return remove_later(s, s->n_shards + (s->in_shard > 0));
}
