/* weights.c - parameter tables from and to safetensors files. The files are untrusted: names and shapes of all tensors are
 * compared with the table before a single weight is read. */
#include "io/weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "core/mem.h"

enum { MAX_SHARDS = 10000 };
#define MAX_INDEX_BYTES INT64_C(100000000)

void ida_weights_close(ida_weights *w) {
    for (int64_t i = 0; i < w->n; i++) ida_st_close(w->files[i]);
    ida_free(w->files);
    ida_free(w->dir);
    *w = (ida_weights){0};
}

ida_status ida_weights_open_file(const char *path, ida_weights *w) {
    w->dir = ida_strdup(path);
    IDA_FAIL_IF(!w->dir, IDA_E_NOMEM, "out of memory for a path");
    IDA_TRY(IDA_CALLOC(w->files, 1, "a file list"));
    IDA_TRY(ida_st_open(path, &w->files[0]));
    w->n = 1;
    return IDA_OK;
}

/* A shard's name must stay inside the folder. */
static bool plain_file_name(const char *s) { return *s && *s != '.' && !strchr(s, '/') && !strchr(s, '\\'); }

static int64_t shard_of(const ida_weights *w, char *const *names, const char *name) {
    for (int64_t i = 0; i < w->n; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* Opens each file of the map once; checks that each tensor is in the file it is mapped to. names: [MAX_SHARDS], borrowed. */
static ida_status open_shards(const char *index, const json_t *map, ida_weights *w, char **names) {
    const char *tensor;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, v) {
        const char *name = json_string_value(v);
        IDA_FAIL_IF(!name || !plain_file_name(name), IDA_E_FORMAT,
                    "%s: tensor \"%s\" is mapped to %s%s, which is not a plain file name", index, tensor,
                    name ? "" : "a value", name ? name : "");
        int64_t i = shard_of(w, names, name);
        if (i < 0) {
            IDA_FAIL_IF(w->n == MAX_SHARDS, IDA_E_UNSUPPORTED, "%s: more than %d shards", index, MAX_SHARDS);
            char *path = ida_path_join(w->dir, name);
            IDA_FAIL_IF(!path, IDA_E_NOMEM, "out of memory for a path");
            ida_status st = ida_st_open(path, &w->files[w->n]);
            ida_free(path);
            IDA_TRY(st);
            i = w->n++;
            names[i] = (char *)(uintptr_t)name;
        }
        IDA_FAIL_IF(!ida_st_find(w->files[i], tensor), IDA_E_FORMAT, "%s: tensor \"%s\" is not in %s, where the index says it is",
                    index, tensor, name);
    }
    int64_t total = 0;
    for (int64_t i = 0; i < w->n; i++) total += w->files[i]->n;
    IDA_FAIL_IF(total != (int64_t)json_object_size(map), IDA_E_FORMAT, "%s: the index maps %zu tensors, its files hold %" PRId64,
                index, json_object_size(map), total);
    return IDA_OK;
}

static ida_status open_index(const char *index, ida_weights *w) {
    json_t *j = NULL;
    char **names = NULL;
    ida_status st = IDA_OK;
    IDA_TRY(ida_json_load(index, MAX_INDEX_BYTES, &j));
    const json_t *map = json_object_get(j, "weight_map");
    if (!json_is_object(map)) IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: needs an object \"weight_map\"", index);
    IDA_TRY_GOTO(IDA_CALLOC(w->files, MAX_SHARDS, "a file list"));
    IDA_TRY_GOTO(IDA_CALLOC(names, MAX_SHARDS, "a file list"));
    st = open_shards(index, map, w, names);
out:
    ida_free(names);
    json_decref(j);
    return st;
}

ida_status ida_weights_open(const char *dir, ida_weights *w) {
    char *single = ida_path_join(dir, "model.safetensors"), *index = ida_path_join(dir, "model.safetensors.index.json");
    ida_status st = IDA_OK;
    if (!single || !index) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for a path");
    if (ida_exists(single) || !ida_exists(index)) {
        st = ida_weights_open_file(single, w);
        goto out;
    }
    w->dir = ida_strdup(dir);
    if (!w->dir) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for a path");
    st = open_index(index, w);
out:
    ida_free(single);
    ida_free(index);
    return st;
}

static ida_status full_name(char *text, size_t n, const char *prefix, const ida_param *p) {
    int k = snprintf(text, n, "%s%s", prefix, p->name);
    IDA_FAIL_IF(k < 0 || (size_t)k >= n, IDA_E_ARG, "tensor name %s%s is too long", prefix, p->name);
    return IDA_OK;
}

static const ida_st_file *file_of(const ida_weights *w, const char *name) {
    for (int64_t i = 0; i < w->n; i++)
        if (ida_st_find(w->files[i], name)) return w->files[i];
    return NULL;
}

/* Is this name one of prefix + table name? */
static bool expected(const ida_param_table *t, const char *const *prefixes, int64_t n, const char *name) {
    for (int64_t i = 0; i < n; i++) {
        size_t k = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], k) == 0 && ida_param_find(t, name + k)) return true;
    }
    return false;
}

ida_status ida_weights_check(const ida_weights *w, const ida_param_table *t, const char *const *prefixes, int64_t n_prefixes) {
    int64_t have = 0;
    for (int64_t i = 0; i < w->n; i++) have += w->files[i]->n;
    for (int64_t k = 0; k < n_prefixes; k++) {
        for (int64_t i = 0; i < t->n; i++) {
            const ida_param *p = &t->params[i];
            const ida_st_tensor *found;
            char name[128];
            IDA_TRY(full_name(name, sizeof name, prefixes[k], p));
            const ida_st_file *f = file_of(w, name);
            IDA_FAIL_IF(!f, IDA_E_FORMAT, "%s: tensor \"%s\" is missing; config.json asks for it", w->dir, name);
            IDA_TRY(ida_st_check(f, name, p->ndim, p->shape, &found));
        }
    }
    if (have == t->n * n_prefixes) return IDA_OK;
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t j = 0; j < w->files[i]->n; j++)
            IDA_FAIL_IF(!expected(t, prefixes, n_prefixes, w->files[i]->tensors[j].name), IDA_E_FORMAT,
                        "%s: tensor \"%s\" has no place in the model that config.json describes", w->files[i]->path,
                            w->files[i]->tensors[j].name);
    IDA_FAIL(IDA_E_FORMAT, "%s: a tensor is in two files", w->dir);
}

/* One tensor, `room` elements with the gap behind it. */
static ida_status read_tensor(const ida_weights *w, const ida_param *p, const char *prefix, float *x, int64_t room) {
    char name[128];
    IDA_TRY(full_name(name, sizeof name, prefix, p));
    const ida_st_file *f = file_of(w, name);
    IDA_FAIL_IF(!f, IDA_E_FORMAT, "%s: tensor \"%s\" is missing", w->dir, name);
    IDA_TRY(ida_st_read_f32(f, name, p->ndim, p->shape, x));
    for (int64_t k = 0; k < p->numel; k++)
        IDA_FAIL_IF(!isfinite(x[k]), IDA_E_NUMERIC, "%s: tensor \"%s\", element %" PRId64 " of %" PRId64 " is %s", f->path, name,
                    k, p->numel, isnan(x[k]) ? "NaN" : "infinite or too large for fp32");
    for (int64_t k = p->numel; k < room; k++) x[k] = 0;
    return IDA_OK;
}

static int64_t room_of(const ida_param_table *t, int64_t i) {
    return (i + 1 < t->n ? t->params[i + 1].offset : t->block) - t->params[i].offset;
}

ida_status ida_weights_read(const ida_weights *w, const ida_param_table *t, const char *prefix, const ida_device *dev,
                            float *block) {
    const bool host = ida_on_host(dev);
    float *one = NULL;
    int64_t most = 0;
    ida_status st = IDA_OK;
    for (int64_t i = 0; i < t->n; i++) most = room_of(t, i) > most ? room_of(t, i) : most;
    if (!host) IDA_TRY(IDA_ALLOC(one, most, "a tensor on its way to the device"));
    for (int64_t i = 0; i < t->n; i++) {
        float *to = block + t->params[i].offset;
        IDA_TRY_GOTO(read_tensor(w, &t->params[i], prefix, host ? to : one, room_of(t, i)));
        if (!host) IDA_TRY_GOTO(ida_dev_upload(dev, to, one, room_of(t, i) * (int64_t)sizeof *one));
    }
out:
    ida_free(one);
    return st;
}

ida_status ida_weights_write(const char *path, const ida_param_table *t, const ida_device *dev, const float *const *blocks,
                             const char *const *prefixes, int64_t n_blocks) {
    ida_st_out *out = NULL;
    char *names = NULL;
    enum { NAME = 128 };
    int64_t n;
    ida_status st = IDA_OK;
    IDA_FAIL_IF(!ida_mul64(t->n, n_blocks, &n), IDA_E_ARG, "%s: too many tensors", path);
    IDA_TRY_GOTO(IDA_CALLOC(out, n, "a tensor list"));
    IDA_TRY_GOTO(ida_alloc((void **)&names, n, NAME, "tensor names"));
    for (int64_t i = 0; i < n; i++) {
        const ida_param *p = &t->params[i % t->n];
        IDA_TRY_GOTO(full_name(names + i * NAME, NAME, prefixes[i / t->n], p));
        out[i] = (ida_st_out){.name = names + i * NAME, .dtype = IDA_ST_F32, .ndim = p->ndim,
                              .data = blocks[i / t->n] + p->offset, .dev = dev};
        for (int d = 0; d < p->ndim; d++) out[i].shape[d] = p->shape[d];
    }
    st = ida_st_write(path, out, n, NULL, NULL, 0);
out:
    ida_free(out);
    ida_free(names);
    return st;
}
