/* runlog.c - RUN/log.jsonl: one object per event, one line per object (docs/formats.md).
 * Invariant: once the run stands at step s, the file holds the lines an uninterrupted run would have written up to s, in the same
 * order and with the same content but for the keys "time", "tokens_per_s" and those of memory, which tell of the process. */
#include "train/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/file.h"
#include "core/mem.h"

struct ida_runlog { ida_lines *lines; char *path; };
static const int64_t MOST_BYTES = INT64_C(1) << 34;

/* Whether a line belongs to a run that stands at `step`; *evaluated is set by the evaluation made there. */
static bool keep_line(const char *line, size_t n, int64_t step, bool *evaluated) {
    json_t *o = json_loadb(line, n, 0, NULL);
    if (!o) return false;
    const json_t *js = json_object_get(o, "step");
    const char *kind = json_string_value(json_object_get(o, "event"));
    bool keep = kind && json_is_integer(js) && json_integer_value(js) <= step;
    if (keep && strcmp(kind, "save") == 0) keep = json_integer_value(js) < step;
    if (keep && strcmp(kind, "eval") == 0 && json_integer_value(js) == step) *evaluated = true;
    json_decref(o);
    return keep;
}

static ida_status cut(const char *path, int64_t step, bool *evaluated) {
    char *text = NULL;
    int64_t size = 0;
    ida_buf kept = {0};
    if (!ida_exists(path)) return IDA_OK;
    ida_status st = ida_read_file(path, MOST_BYTES, &text, &size);
    for (int64_t i = 0; st == IDA_OK && step > 0 && i < size;) {
        const char *nl = memchr(text + i, '\n', (size_t)(size - i));
        if (!nl) break;
        int64_t n = nl - (text + i) + 1;
        if (keep_line(text + i, (size_t)(n - 1), step, evaluated)) st = ida_buf_add(&kept, text + i, (size_t)n);
        i += n;
    }
    if (st == IDA_OK && kept.len != size) st = ida_write_file(path, kept.data ? kept.data : "", (size_t)kept.len);
    ida_buf_free(&kept);
    ida_free(text);
    return st;
}

ida_status ida_runlog_may_start_over(const char *run_dir) {
    char *path = ida_path_join(run_dir, "log.jsonl"), *text = NULL;
    int64_t size = 0;
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "no memory for the run log's path");
    ida_status st = ida_read_file(path, MOST_BYTES, &text, &size);
    for (int64_t i = 0; st == IDA_OK && i < size;) {
        const char *nl = memchr(text + i, '\n', (size_t)(size - i));
        if (!nl) break;
        json_t *o = json_loadb(text + i, (size_t)(nl - (text + i)), 0, NULL);
        const char *kind = json_string_value(json_object_get(o, "event"));
        if (i == 0 && !kind)
            st = ida_fail(IDA_E_ARG, __FILE__, __LINE__, "%s is not the log of a run: give another folder", path);
        else if (kind && strcmp(kind, "save") == 0)
            st = ida_fail(IDA_E_ARG, __FILE__, __LINE__,
                          "%s tells of a checkpoint of step %lld, but there is none here: put it back, or give another folder",
                          path, (long long)json_integer_value(json_object_get(o, "step")));
        json_decref(o);
        i = nl - text + 1;
    }
    ida_free(text);
    ida_free(path);
    return st;
}

/* What a process killed in the middle of a cut left behind; the run folder is locked, so nobody is writing it. */
static ida_status clean_stale(const char *run_dir) {
    char **names = NULL;
    int64_t n = 0;
    ida_status st = ida_list_dir(run_dir, &names, &n);
    for (int64_t i = 0; i < n && st == IDA_OK; i++) {
        if (strncmp(names[i], "log.jsonl.tmp-", 14) != 0) continue;
        char *path = ida_path_join(run_dir, names[i]);
        if (path) st = ida_remove_tree(path);
        ida_free(path);
    }
    ida_names_free(names, n);
    return st;
}

ida_status ida_runlog_open(const char *run_dir, int64_t step, bool *evaluated, ida_runlog **out) {
    ida_runlog *l = NULL;
    ida_status st = IDA_OK;
    *evaluated = false;
    IDA_TRY(IDA_CALLOC(l, 1, "run log"));
    l->path = ida_path_join(run_dir, "log.jsonl");
    if (!l->path) IDA_FAIL_GOTO(IDA_E_NOMEM, "no memory for the run log's path");
    IDA_TRY_GOTO(clean_stale(run_dir));
    IDA_TRY_GOTO(cut(l->path, step, evaluated));
    IDA_TRY_GOTO(ida_lines_open(l->path, &l->lines));
    *out = l;
    return IDA_OK;
out:
    ida_runlog_close(l);
    return st;
}

void ida_runlog_close(ida_runlog *l) {
    if (!l) return;
    if (l->lines) ida_lines_close(l->lines);
    ida_free(l->path);
    ida_free(l);
}

static int set_real(json_t *o, const char *key, double x) {
    return json_object_set_new(o, key, isfinite(x) ? json_real(x) : json_null());
}

static int set_int(json_t *o, const char *key, int64_t x) { return json_object_set_new(o, key, json_integer(x)); }

static int set_text(json_t *o, const char *key, const char *text) {
    return json_object_set_new(o, key, ida_json_string(text ? text : ""));
}

static int fill_memory(json_t *o, const ida_train_event *e) {
    const int64_t peak = e->device_memory_peak_bytes;
    return json_object_set_new(o, "device_memory_peak_bytes", peak < 0 ? json_null() : json_integer(peak)) |
           set_int(o, "device_memory_planned_bytes", e->device_memory_planned_bytes);
}

static int fill_step(json_t *o, const ida_train_event *e, uint64_t batch_hash) {
    char hex[17];
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)batch_hash);
    return set_int(o, "tokens", e->tokens) | set_real(o, "loss", e->loss) | set_real(o, "lr", e->lr) |
           set_real(o, "grad_norm", e->grad_norm) | set_text(o, "batch_hash", hex) |
           set_real(o, "tokens_per_s", e->tokens_per_s) | fill_memory(o, e);
}

static int fill(json_t *o, const ida_train_event *e, uint64_t batch_hash) {
    int bad = 0;
    const char *base = e->text ? strrchr(e->text, '/') : NULL;
    switch (e->kind) {
    case IDA_EVENT_STEP:
        bad = set_text(o, "event", "step") | set_int(o, "step", e->step) | set_int(o, "steps", e->steps);
        return bad | fill_step(o, e, batch_hash);
    case IDA_EVENT_SKIP:
        bad = set_text(o, "event", "skip") | set_int(o, "step", e->step) | set_int(o, "steps", e->steps);
        return bad | fill_step(o, e, batch_hash) | set_text(o, "what", e->what) | set_text(o, "tensor", e->text);
    case IDA_EVENT_EVAL:
        bad = set_text(o, "event", "eval") | set_int(o, "step", e->step) | set_int(o, "tokens", e->tokens);
        return bad | set_real(o, "loss", e->loss) | set_real(o, "bits_per_byte", e->bits_per_byte) | set_text(o, "text", e->text);
    case IDA_EVENT_SAVE:
        bad = set_text(o, "event", "save") | set_int(o, "step", e->step) | set_text(o, "folder", base ? base + 1 : e->text);
        return bad | fill_memory(o, e);
    case IDA_EVENT_NOTE:
        return set_text(o, "event", "note") | set_int(o, "step", e->step) | set_text(o, "text", e->text);
    case IDA_EVENT_POLL: break; /* never logged */
    }
    return -1;
}

ida_status ida_runlog_add(ida_runlog *l, const ida_train_event *e, uint64_t batch_hash) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    json_t *o = json_object();
    char *line = NULL;
    if (o && !fill(o, e, batch_hash) && !set_real(o, "time", (double)now.tv_sec + 1e-3 * (double)(now.tv_nsec / 1000000)))
        line = ida_json_dump(o, JSON_COMPACT);
    json_decref(o);
    IDA_FAIL_IF(!line, IDA_E_NOMEM, "%s: no memory for a line", l->path);
    ida_status st = ida_lines_add(l->lines, line);
    ida_free(line);
    return st;
}

ida_status ida_runlog_sync(const ida_runlog *l) {
    int fd = open(l->path, O_RDONLY | O_CLOEXEC);
    IDA_FAIL_IF(fd < 0, IDA_E_IO, "%s: %s: the log was moved while training ran", l->path, strerror(errno));
    int failed = fsync(fd) ? errno : 0;
    close(fd);
    IDA_FAIL_IF(failed, IDA_E_IO, "%s: fsync: %s", l->path, strerror(failed));
    return IDA_OK;
}
