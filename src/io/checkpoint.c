/* checkpoint.c - training checkpoints. Published whole by one rename, never changed afterwards; a reader trusts only what
 * its manifest proves. Not here: what the trainer's state means (train). */
#include "io/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/mem.h"
#include "io/folder.h"
#include "io/manifest.h"
#include "io/weights.h"

static const char *const moment_prefixes[] = {"m.", "v."};

/* The step of a published folder's name "step-NNNNNNNN"; -1 for any other name. */
static int64_t step_of(const char *name) {
    if (strncmp(name, "step-", 5) != 0) return -1;
    const char *d = name + 5;
    size_t n = strspn(d, "0123456789");
    if (n < 8 || n > 18 || d[n] != '\0' || (n > 8 && *d == '0')) return -1;
    return strtoll(d, NULL, 10);
}

/* ------------------------------------------------------------ finding */

static int newest_first(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Steps of the published folders in a run, newest first. A run folder that is absent has none. */
static ida_status list_steps(const char *run_dir, int64_t **steps, int64_t *n) {
    char **names = NULL;
    int64_t n_names = 0;
    *steps = NULL;
    *n = 0;
    if (!ida_exists(run_dir)) return IDA_OK;
    IDA_TRY(ida_list_dir(run_dir, &names, &n_names));
    ida_status st = IDA_ALLOC(*steps, n_names, "a list of checkpoints");
    for (int64_t i = 0; st == IDA_OK && i < n_names; i++) {
        int64_t s = step_of(names[i]);
        if (s >= 0) (*steps)[(*n)++] = s;
    }
    if (st == IDA_OK && *n > 1) qsort(*steps, (size_t)*n, sizeof **steps, newest_first);
    ida_names_free(names, n_names);
    return st;
}

static char *step_path(const char *run_dir, int64_t step, const char *tail) {
    size_t n = strlen(run_dir);
    return ida_asprintf("%s%sstep-%08" PRId64 "%s", run_dir, n > 0 && run_dir[n - 1] != '/' ? "/" : "", step, tail);
}

ida_status ida_checkpoint_find(const char *run_dir, char **dir, int64_t *step) {
    int64_t *steps = NULL, n = 0;
    ida_status st = IDA_OK;
    char *path = NULL;
    *dir = NULL;
    IDA_TRY(list_steps(run_dir, &steps, &n));
    for (int64_t i = 0; i < n; i++) {
        int64_t inside = -1;
        path = step_path(run_dir, steps[i], "");
        if (!path) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for a path");
        st = ida_manifest_verify(path, &inside);
        if (st == IDA_OK && inside != steps[i])
            st = ida_fail(IDA_E_FORMAT, __FILE__, __LINE__, "%s: the manifest is of step %" PRId64, path, inside);
        if (st == IDA_OK) {
            *dir = path;
            *step = steps[i];
            path = NULL;
            goto out;
        }
        if (st == IDA_E_NOMEM || st == IDA_E_IO) goto out;
        ida_log("checkpoint %s is damaged and passed over: %s", path, ida_last_error());
        ida_free(path);
        path = NULL;
        st = IDA_OK;
    }
    if (n > 0)
        IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: none of its %" PRId64 " checkpoints is whole (%s); remove or mend them", run_dir, n,
                      ida_last_error());
out:
    ida_free(path);
    ida_free(steps);
    return st;
}

ida_status ida_checkpoint_with_config(const char *run_dir, char **dir) {
    int64_t *steps = NULL, n = 0;
    char *path = NULL, *config = NULL;
    *dir = NULL;
    IDA_TRY(list_steps(run_dir, &steps, &n));
    ida_status st = IDA_OK;
    for (int64_t i = 0; i < n && !*dir; i++) {
        path = step_path(run_dir, steps[i], "");
        config = path ? ida_path_join(path, "config.json") : NULL;
        if (!config) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for a path");
        if (ida_exists(config)) *dir = path;
        else ida_free(path);
        path = NULL;
        ida_free(config);
    }
    config = NULL;
out:
    ida_free(path);
    ida_free(config);
    ida_free(steps);
    return st;
}

/* ------------------------------------------------------------ saving */

static ida_status copy_file(const char *from, const char *to) {
    ida_map m;
    IDA_TRY(ida_map_open(from, &m));
    ida_status st = ida_write_file(to, m.data, (size_t)m.size);
    ida_map_close(&m);
    return st;
}

static ida_status write_one(const char *dir, const char *name, ida_status (*fn)(const char *path, const ida_checkpoint *c),
                            const ida_checkpoint *c) {
    char *path = ida_path_join(dir, name);
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "out of memory for a path");
    ida_status st = fn(path, c);
    ida_free(path);
    return st;
}

static ida_status write_weights(const char *path, const ida_checkpoint *c) {
    const float *block = c->model->params;
    const char *prefix = "";
    return ida_weights_write(path, &c->model->table, c->model->dev, &block, &prefix, 1);
}

static ida_status write_moments(const char *path, const ida_checkpoint *c) {
    const float *blocks[] = {c->m, c->v};
    return ida_weights_write(path, &c->model->table, c->model->dev, blocks, moment_prefixes, 2);
}

static ida_status write_state(const char *path, const ida_checkpoint *c) { return ida_json_save(c->state, path, 2); }
static ida_status write_tokenizer(const char *path, const ida_checkpoint *c) { return copy_file(c->tokenizer_json, path); }

/* All files of a checkpoint into dir, each on disk, manifest last. */
static ida_status write_files(const char *dir, int64_t step, const ida_checkpoint *c, json_t **manifest) {
    IDA_TRY(ida_mkdirs(dir));
    IDA_TRY(ida_config_files_write(dir, c->model));
    IDA_TRY(write_one(dir, "model.safetensors", write_weights, c));
    IDA_TRY(write_one(dir, "optimizer.safetensors", write_moments, c));
    IDA_TRY(write_one(dir, "trainer_state.json", write_state, c));
    if (c->tokenizer_json) IDA_TRY(write_one(dir, "tokenizer.json", write_tokenizer, c));
    IDA_TRY(ida_manifest_make(dir, step, manifest));
    char *path = ida_path_join(dir, "manifest.json");
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "out of memory for a path");
    ida_status st = ida_json_save(*manifest, path, 2);
    ida_free(path);
    IDA_TRY(st);
    return ida_fsync_dir(dir);
}

/* Out of sight by one rename, then deleted: no reader meets a half-deleted folder. */
static ida_status discard(const char *run_dir, int64_t step) {
    char *from = step_path(run_dir, step, ""), *to = step_path(run_dir, step, ".trash");
    ida_status st = IDA_OK;
    if (!from || !to) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for a path");
    IDA_TRY_GOTO(ida_remove_tree(to));
    if (rename(from, to) != 0) IDA_FAIL_GOTO(IDA_E_IO, "cannot rename %s to %s: %s", from, to, strerror(errno));
    IDA_TRY_GOTO(ida_fsync_dir(run_dir));
    st = ida_remove_tree(to);
out:
    ida_free(from);
    ida_free(to);
    return st;
}

/* What earlier, interrupted saves left behind. Failure is logged: it costs space, not data. */
static void clean_stale(const char *run_dir) {
    char **names = NULL;
    int64_t n = 0;
    if (ida_list_dir(run_dir, &names, &n) != IDA_OK) return;
    for (int64_t i = 0; i < n; i++) {
        char name[64]; /* without the tail */
        const char *tail = strrchr(names[i], '.');
        snprintf(name, sizeof name, "%.*s", tail ? (int)(tail - names[i]) : 0, names[i]);
        bool folder = tail && step_of(name) >= 0 && (strcmp(tail, ".tmp") == 0 || strcmp(tail, ".trash") == 0);
        if (!folder && !(strncmp(names[i], "latest", 6) == 0 && ida_is_temporary(names[i]))) continue;
        char *path = ida_path_join(run_dir, names[i]);
        if (path && ida_remove_tree(path) != IDA_OK) ida_log("cannot clean up: %s", ida_last_error());
        ida_free(path);
    }
    ida_names_free(names, n);
}

/* A folder with the manifest of its step: one without is not of our making, or damaged and worth a look. */
static bool is_checkpoint(const char *run_dir, int64_t step) {
    char *path = step_path(run_dir, step, "");
    json_t *j = NULL;
    const json_t *files;
    int64_t inside = -1;
    struct stat s;
    const bool read = path && lstat(path, &s) == 0 && S_ISDIR(s.st_mode) && ida_manifest_load(path, &j, &files, &inside) == IDA_OK;
    if (read) json_decref(j);
    ida_free(path);
    return read && inside == step;
}

/* Keeps the newest `keep` up to `step`. Later ones belong to a run that was set back; they are not this save's to delete. */
static void prune(const char *run_dir, int64_t step, int64_t keep) {
    int64_t *steps = NULL, n = 0, kept = 0;
    if (list_steps(run_dir, &steps, &n) != IDA_OK) n = 0;
    for (int64_t i = 0; i < n; i++) {
        if (steps[i] > step || !is_checkpoint(run_dir, steps[i]) || ++kept <= keep) continue;
        if (discard(run_dir, steps[i]) != IDA_OK) ida_log("cannot remove the old checkpoint of step %" PRId64 ": %s", steps[i],
                                                          ida_last_error());
    }
    ida_free(steps);
}

/* A folder of this step is already there: the same files are fine, a damaged one makes room, other content is refused. */
static ida_status meet_existing(const char *run_dir, const char *final, int64_t step, const json_t *manifest, bool *same) {
    int64_t inside;
    ida_status st = ida_manifest_verify(final, &inside);
    if (st == IDA_E_NOMEM || st == IDA_E_IO) return st;
    if (st != IDA_OK) {
        ida_log("checkpoint %s is damaged and replaced: %s", final, ida_last_error());
        return discard(run_dir, step);
    }
    json_t *j = NULL;
    const json_t *files = NULL;
    IDA_TRY(ida_manifest_load(final, &j, &files, &inside));
    *same = json_equal(files, json_object_get(manifest, "files"));
    json_decref(j);
    IDA_FAIL_IF(!*same, IDA_E_IO, "%s is another run's checkpoint of this step; it is not overwritten: use another run folder",
                final);
    return IDA_OK;
}

static ida_status publish(const char *run_dir, int64_t step, const char *tmp, const char *final, const json_t *manifest) {
    bool same = false;
    if (ida_exists(final)) IDA_TRY(meet_existing(run_dir, final, step, manifest, &same));
    if (same) {
        IDA_TRY(ida_remove_tree(tmp));
    } else {
        IDA_FAIL_IF(rename(tmp, final) != 0, IDA_E_IO, "cannot rename %s to %s: %s", tmp, final, strerror(errno));
        IDA_TRY(ida_fsync_dir(run_dir));
    }
    return IDA_OK;
}

/* A hint for people and scripts; loading does not need it, so failure is only logged. */
static void point_latest(const char *run_dir, int64_t step) {
    char *latest = ida_path_join(run_dir, "latest");
    char text[32];
    int n = snprintf(text, sizeof text, "step-%08" PRId64 "\n", step);
    if (!latest || ida_write_file(latest, text, (size_t)n) != IDA_OK)
        ida_log("%s/latest is not up to date: %s", run_dir, ida_last_error());
    ida_free(latest);
}

ida_status ida_checkpoint_save(const char *run_dir, int64_t step, const ida_checkpoint *c, int64_t keep) {
    IDA_FAIL_IF(step < 0 || step > INT64_C(999999999999999999) || keep < 0, IDA_E_ARG,
                "checkpoint step %" PRId64 " or keep %" PRId64 " is out of range", step, keep);
    IDA_TRY(ida_mkdirs(run_dir));
    clean_stale(run_dir);
    char *tmp = step_path(run_dir, step, ".tmp"), *final = step_path(run_dir, step, "");
    json_t *manifest = NULL;
    ida_status st = IDA_OK;
    if (!tmp || !final) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for a path");
    st = write_files(tmp, step, c, &manifest);
    if (st == IDA_OK) st = publish(run_dir, step, tmp, final, manifest);
    if (st == IDA_OK) point_latest(run_dir, step);
    if (st == IDA_OK && keep > 0) prune(run_dir, step, keep);
    if (st != IDA_OK) {
        st = ida_fail_prefix(st, "checkpoint of step %" PRId64 " was not saved; earlier ones are untouched", step);
        char *why = ida_strdup(ida_last_error());
        if (ida_remove_tree(tmp) != IDA_OK && why) ida_fail(st, __FILE__, __LINE__, "%s", why);
        ida_free(why);
    }
out:
    json_decref(manifest);
    ida_free(tmp);
    ida_free(final);
    return st;
}

/* ------------------------------------------------------------ loading */

/* Both configs as JSON: the first key that differs is named. */
static ida_status same_config(const char *dir, const ida_config *want) {
    char *path = ida_path_join(dir, "config.json"), *a = NULL, *b = NULL;
    json_t *ja = NULL, *jb = NULL, *v;
    const char *key;
    ida_config have;
    ida_status st = IDA_OK;
    if (!path) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for a path");
    IDA_TRY_GOTO(ida_config_load(path, &have));
    IDA_TRY_GOTO(ida_config_json(&have, &a));
    IDA_TRY_GOTO(ida_config_json(want, &b));
    IDA_TRY_GOTO(ida_json_parse(a, strlen(a), path, &ja));
    IDA_TRY_GOTO(ida_json_parse(b, strlen(b), path, &jb));
    json_object_foreach(jb, key, v)
        if (!json_equal(v, json_object_get(ja, key)))
            IDA_FAIL_GOTO(IDA_E_ARG,
                          "%s: \"%s\" differs from the run's configuration; resume with the options the run was started with",
                              path, key);
    if (!json_equal(ja, jb)) IDA_FAIL_GOTO(IDA_E_ARG, "%s: differs from the run's configuration", path);
out:
    json_decref(ja);
    json_decref(jb);
    ida_string_free(a);
    ida_string_free(b);
    ida_free(path);
    return st;
}

static ida_status load_moments(const char *dir, const ida_model *model, float *m, float *v) {
    char *path = ida_path_join(dir, "optimizer.safetensors");
    ida_weights w = {0};
    ida_status st = IDA_OK;
    if (!path) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for a path");
    IDA_TRY_GOTO(ida_weights_open_file(path, &w));
    IDA_TRY_GOTO(ida_weights_check(&w, &model->table, moment_prefixes, 2));
    IDA_TRY_GOTO(ida_weights_read(&w, &model->table, moment_prefixes[0], model->dev, m));
    IDA_TRY_GOTO(ida_weights_read(&w, &model->table, moment_prefixes[1], model->dev, v));
out:
    ida_weights_close(&w);
    ida_free(path);
    return st;
}

ida_status ida_checkpoint_load(const char *dir, ida_model *model, float *m, float *v, json_t **state) {
    ida_weights w = {0};
    const char *prefix = "";
    char *path = ida_path_join(dir, "trainer_state.json");
    ida_status st = IDA_OK;
    if (!path) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for a path");
    IDA_TRY_GOTO(same_config(dir, &model->cfg));
    IDA_TRY_GOTO(ida_weights_open(dir, &w));
    IDA_TRY_GOTO(ida_weights_check(&w, &model->table, &prefix, 1));
    IDA_TRY_GOTO(ida_weights_read(&w, &model->table, prefix, model->dev, model->params));
    IDA_TRY_GOTO(ida_model_round(model));
    IDA_TRY_GOTO(load_moments(dir, model, m, v));
    if (state) st = ida_json_load(path, IDA_STATE_JSON_BYTES, state);
out:
    ida_weights_close(&w);
    ida_free(path);
    return st;
}
