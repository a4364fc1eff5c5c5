/* manifest.c - manifest.json: written last of a checkpoint, and what a reader trusts. Not here: which folders are checkpoints
 * (checkpoint.c). */
#include "io/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/mem.h"

enum { MANIFEST_VERSION = 1 };

static const char *const required[] = {"config.json", "model.safetensors", "optimizer.safetensors", "trainer_state.json"};

ida_status ida_manifest_make(const char *dir, int64_t step, json_t **out) {
    char **names = NULL;
    int64_t n = 0;
    ida_status st = IDA_OK;
    json_t *files = json_object(), *j = NULL;
    char *path = NULL;
    IDA_TRY_GOTO(ida_list_dir(dir, &names, &n));
    for (int64_t i = 0; i < n; i++) {
        uint64_t hash;
        int64_t size;
        char hex[17];
        path = ida_path_join(dir, names[i]);
        if (!path) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for a path");
        IDA_TRY_GOTO(ida_hash_file(path, &hash, &size));
        ida_free(path);
        path = NULL;
        snprintf(hex, sizeof hex, "%016" PRIx64, hash);
        if (json_object_set_new(files, names[i], json_pack("{s:I, s:s}", "size", (json_int_t)size, "xxh3", hex)) != 0)
            IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for the manifest of %s", dir);
    }
    j = json_pack("{s:i, s:I, s:O}", "version", MANIFEST_VERSION, "step", (json_int_t)step, "files", files);
    if (!j) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for the manifest of %s", dir);
    *out = j;
out:
    json_decref(files);
    ida_free(path);
    ida_names_free(names, n);
    return st;
}

static ida_status manifest_check(const json_t *j, const char *dir, const json_t **files, int64_t *step) {
    char *path = ida_path_join(dir, "manifest.json");
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "out of memory for a path");
    int64_t version;
    ida_status st = ida_json_i64(j, path, "version", 1, INT64_MAX, NULL, &version);
    if (st == IDA_OK && version != MANIFEST_VERSION)
        st = ida_fail(IDA_E_UNSUPPORTED, __FILE__, __LINE__, "%s: version %" PRId64 " is not known, this program reads %d", path,
                      version, MANIFEST_VERSION);
    if (st == IDA_OK) st = ida_json_i64(j, path, "step", 0, INT64_MAX, NULL, step);
    if (st == IDA_OK) {
        *files = json_object_get(j, "files");
        if (!json_is_object(*files)) st = ida_fail(IDA_E_FORMAT, __FILE__, __LINE__, "%s: needs an object \"files\"", path);
    }
    ida_free(path);
    return st;
}

static ida_status manifest_read(const char *dir, json_t **out) {
    char *path = ida_path_join(dir, "manifest.json");
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "out of memory for a path");
    ida_status st = ida_json_load(path, IDA_STATE_JSON_BYTES, out);
    ida_free(path);
    return st;
}

ida_status ida_manifest_load(const char *dir, json_t **out, const json_t **files, int64_t *step) {
    json_t *j = NULL;
    ida_status st = manifest_read(dir, &j);
    if (st == IDA_OK) st = manifest_check(j, dir, files, step);
    if (st != IDA_OK) json_decref(j);
    else *out = j;
    return st;
}

static ida_status verify_file(const char *dir, const char *name, const json_t *entry) {
    IDA_FAIL_IF(!*name || *name == '.' || strchr(name, '/'), IDA_E_FORMAT, "%s/manifest.json: \"%s\" is not a plain file name",
                dir, name);
    char *path = ida_path_join(dir, name);
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "out of memory for a path");
    int64_t want_size = 0, size = 0;
    const char *hex = NULL;
    uint64_t hash = 0;
    char have[17];
    ida_status st = ida_json_i64(entry, path, "size", 0, INT64_MAX, NULL, &want_size);
    if (st == IDA_OK) st = ida_json_str(entry, path, "xxh3", NULL, &hex);
    if (st == IDA_OK && !hex) st = ida_fail(IDA_E_FORMAT, __FILE__, __LINE__, "%s: the manifest has no checksum", path);
    if (st == IDA_OK) st = ida_hash_file(path, &hash, &size);
    snprintf(have, sizeof have, "%016" PRIx64, hash);
    if (st == IDA_OK && size != want_size)
        st = ida_fail(IDA_E_FORMAT, __FILE__, __LINE__, "%s: %" PRId64 " bytes, the manifest says %" PRId64, path, size,
                      want_size);
    if (st == IDA_OK && strcmp(hex, have) != 0)
        st = ida_fail(IDA_E_FORMAT, __FILE__, __LINE__, "%s: checksum differs from the manifest", path);
    ida_free(path);
    return st;
}

/* A file that is not there, or is no file, is damage; a file that the machine will not read is not. */
static ida_status damage_or_trouble(const char *dir, const char *name, ida_status st) {
    if (st != IDA_E_IO) return st;
    char *path = ida_path_join(dir, name);
    struct stat s;
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "out of memory for a path");
    bool found = stat(path, &s) == 0;
    if (found ? !S_ISREG(s.st_mode) : errno == ENOENT || errno == ENOTDIR) st = IDA_E_FORMAT;
    ida_free(path);
    return st;
}

ida_status ida_manifest_verify(const char *dir, int64_t *step) {
    json_t *j = NULL;
    const json_t *files = NULL;
    const char *name;
    json_t *entry;
    ida_status st = IDA_OK;
    IDA_TRY(damage_or_trouble(dir, "manifest.json", ida_manifest_load(dir, &j, &files, step)));
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++)
        if (!json_object_get(files, required[i]))
            IDA_FAIL_GOTO(IDA_E_FORMAT, "%s/manifest.json: %s is not listed", dir, required[i]);
    json_object_foreach((json_t *)(uintptr_t)files, name, entry)
        IDA_TRY_GOTO(damage_or_trouble(dir, name, verify_file(dir, name, entry)));
out:
    json_decref(j);
    return st;
}

/* Also a link that leads nowhere. */
static bool has_name(const char *dir, const char *name) {
    char *path = ida_path_join(dir, name);
    struct stat s;
    bool there = path && lstat(path, &s) == 0;
    ida_free(path);
    return there;
}

/* The manifest.json of a folder that is read for its model: *out NULL where there is none, or another program's. That of a
 * checkpoint lists the weights, with our checksum; any other is damage where the trainer's state is beside it. */
static ida_status own_manifest(const char *dir, json_t **out) {
    const bool beside = has_name(dir, "trainer_state.json");
    json_t *j = NULL;
    *out = NULL;
    if (!has_name(dir, "manifest.json")) return IDA_OK;
    ida_status st = damage_or_trouble(dir, "manifest.json", manifest_read(dir, &j));
    if (st != IDA_OK) return beside || st == IDA_E_NOMEM ? st : IDA_OK;
    const json_t *weights = json_object_get(json_object_get(j, "files"), "model.safetensors");
    if (beside || json_object_get(weights, "xxh3")) *out = j;
    else json_decref(j);
    return IDA_OK;
}

ida_status ida_manifest_dissolve(const char *dir) {
    json_t *j = NULL;
    ida_status st = own_manifest(dir, &j);
    const bool ours = j || st == IDA_E_FORMAT;
    json_decref(j);
    if (!ours) return st;
    char *path = ida_path_join(dir, "manifest.json");
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "out of memory for a path");
    st = IDA_OK;
    if (unlink(path) != 0)
        st = ida_fail(IDA_E_IO, __FILE__, __LINE__, "cannot remove %s, which is of the files before: %s", path, strerror(errno));
    ida_free(path);
    return st;
}

ida_status ida_manifest_verify_model(const char *dir) {
    static const char *const read[] = {"config.json", "tokenizer.json", "model.safetensors"};
    json_t *j = NULL;
    const json_t *files = NULL;
    int64_t step;
    ida_status st = own_manifest(dir, &j);
    if (st == IDA_OK && j) st = manifest_check(j, dir, &files, &step);
    if (st == IDA_OK && j && !json_object_get(files, "model.safetensors"))
        st = ida_fail(IDA_E_FORMAT, __FILE__, __LINE__, "%s/manifest.json: model.safetensors is not listed", dir);
    for (size_t i = 0; st == IDA_OK && j && i < sizeof read / sizeof *read; i++) {
        const json_t *entry = json_object_get(files, read[i]);
        if (entry && has_name(dir, read[i])) st = damage_or_trouble(dir, read[i], verify_file(dir, read[i], entry));
    }
    json_decref(j);
    if (st != IDA_E_FORMAT && st != IDA_E_UNSUPPORTED) return st;
    char *why = ida_strdup(ida_last_error());
    if (why)
        ida_fail(st, __FILE__, __LINE__, "%s: %s, or remove manifest.json if %s", why,
                 st == IDA_E_FORMAT ? "copy the folder anew from where it is whole" : "take a newer program",
                 st == IDA_E_FORMAT ? "the change was meant" : "the model may be read unchecked");
    ida_free(why);
    return st;
}
