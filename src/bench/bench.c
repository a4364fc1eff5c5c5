/* bench.c - the generic part: arguments, medians, floors, rows, and ida_bench itself. */
#include "bench/bench.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/rng.h"
#include "core/threads.h"
#include "ops/blas.h"

#define POINTER(id) &ida_bench_##id,
static const ida_bench_kind *const benches[] = {IDA_BENCHES(POINTER)};
enum { WARM_UP = 2, FLOOR_REPS = 10 };

const ida_fields *ida_bench_fields(int64_t i) { return i < IDA_COUNT(benches) ? benches[i]->fields : NULL; }

/* One key as KEY=DEFAULT (HELP). */
static ida_status show_key(const ida_field *f, const void *defaults, ida_buf *list) {
    json_t *v = ida_field_to_json(f, defaults);
    char *number = ida_json_dump(v, JSON_ENCODE_ANY);
    const char *text = json_is_string(v) ? json_string_value(v) : f->flags & IDA_FIELD_DERIVED ? "auto" : "";
    ida_status st = ida_buf_addf(list, "%s%s=%s (%s)", list->len ? ", " : "", f->key,
                                 json_is_string(v) || json_is_null(v) ? text : number ? number : "?", f->help);
    json_decref(v);
    ida_free(number);
    return st;
}

/* `options` holds defaults or what was given so far. */
static ida_status unknown_key(const ida_bench_kind *k, const void *options, const char *arg) {
    ida_buf list = {0};
    ida_status st = IDA_OK;
    for (int64_t i = 0; i < k->fields->n && !st; i++) st = show_key(&k->fields->rows[i], options, &list);
    if (!st)
        st = ida_fail(IDA_E_ARG, __FILE__, __LINE__, "bench %s does not know \"%.80s\"; keys: %s", k->name, arg,
                      list.data);
    ida_buf_free(&list);
    return st;
}

static ida_status parse_args(const ida_bench_kind *k, void *options, const char *const *args, int64_t n) {
    ida_fields_defaults(k->fields, options);
    for (int64_t i = 0; i < n; i++) {
        char key[40] = "", subject[200];
        size_t len = strcspn(args[i], "=");
        snprintf(key, sizeof key, "%.*s", len < sizeof key ? (int)len : 0, args[i]);
        if (!args[i][len] || !ida_fields_find(k->fields, key)) return unknown_key(k, options, args[i]);
        for (int64_t j = 0; j < i; j++)
            IDA_FAIL_IF(strncmp(args[j], args[i], len + 1) == 0, IDA_E_ARG, "bench %s: %s is given twice; give it once",
                        k->name, key);
        snprintf(subject, sizeof subject, "bench %s: %.120s", k->name, args[i]);
        IDA_TRY(ida_fields_set(k->fields, options, key, args[i] + len + 1, subject));
    }
    return IDA_OK;
}

ida_status ida_bench_config(const char *preset, ida_mixer_kind mixer, int64_t T, ida_config *cfg) {
    IDA_TRY(ida_config_preset(preset, mixer, cfg));
    if (T > 0) cfg->max_position = T;
    return ida_config_check(cfg);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double ida_median(double *v, int64_t n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

static int64_t warm_up(int64_t reps) { return reps < 10 ? 1 : WARM_UP; }

int64_t ida_bench_warm_up(const ida_bench_run *b) { return warm_up(b->reps); }

static ida_status time_calls(ida_bench_run *b, const char *what, ida_bench_body *body, void *arg, int64_t reps, double *seconds) {
    double *t = NULL;
    int64_t warm = warm_up(reps);
    ida_status st;
    IDA_TRY(IDA_ALLOC(t, reps, "timings"));
    for (int64_t i = -warm; i < reps; i++) {
        double begun = ida_now();
        IDA_TRY_GOTO(body(arg));
        if (i >= 0) t[i] = ida_now() - begun;
        if (b->progress && b->progress(b->user, what, i + warm + 1, reps + warm)) IDA_FAIL_GOTO(IDA_E_CANCELLED, "stopped");
    }
    *seconds = ida_median(t, reps);
    st = IDA_OK;
out:
    ida_free(t);
    return st;
}

ida_status ida_bench_time(ida_bench_run *b, const char *what, ida_bench_body *body, void *arg, double *seconds) {
    return time_calls(b, what, body, arg, b->reps, seconds);
}

ida_status ida_bench_time_floor(ida_bench_run *b, const char *what, ida_bench_body *body, void *arg, double *seconds) {
    return time_calls(b, what, body, arg, b->reps < FLOOR_REPS ? b->reps : FLOOR_REPS, seconds);
}

typedef struct square {
    float *a, *b, *c;
    int n;
} square;
static ida_status square_body(void *arg) {
    square *s = arg;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, s->n, s->n, s->n, 1.0f, s->a, s->n, s->b, s->n, 0.0f, s->c, s->n);
    return IDA_OK;
}

ida_status ida_bench_blas_rate(ida_bench_run *b, double *flops) {
    enum { N = 2048 };
    square s = {.n = N};
    float *block = NULL;
    double seconds = 0;
    ida_status st;
    IDA_TRY(ida_blas_has_memory());
    IDA_TRY(IDA_ALLOC(block, 3 * (int64_t)N * N, "the BLAS rate"));
    s.a = block;
    s.b = block + (int64_t)N * N;
    s.c = block + 2 * (int64_t)N * N;
    ida_bench_fill(block, 2 * (int64_t)N * N, 1, 1);
    openblas_set_num_threads(ida_workers());
    st = ida_bench_time_floor(b, "BLAS rate", square_body, &s, &seconds);
    openblas_set_num_threads(1); /* as everywhere else: our tiles are the threads */
    ida_free(block);
    if (!st) *flops = 2.0 * N * N * (double)N / seconds;
    return st;
}

enum { COPY_TASKS = 64 };
typedef struct copy {
    char *from, *to;
    int64_t bytes;
    const ida_device *dev;
} copy;
static void copy_task(void *arg, int64_t task, int worker) {
    copy *c = arg;
    int64_t part = c->bytes / COPY_TASKS;
    (void)worker;
    memcpy(c->to + task * part, c->from + task * part, (size_t)part);
}
static ida_status copy_body(void *arg) {
    ida_parallel(COPY_TASKS, copy_task, arg);
    return IDA_OK;
}

static ida_status copy_on_device(void *arg) {
    const copy *c = arg;
    IDA_TRY(ida_dev_copy(c->dev, c->to, c->from, c->bytes));
    return ida_dev_sync(c->dev);
}

ida_status ida_bench_copy_rate(ida_bench_run *b, const ida_device *dev, double *bytes) {
    /* twice this is more than the last-level caches we know; a GPU also has a launch to make up for */
    const int64_t size = INT64_C(256) << (ida_on_host(dev) ? 20 : 21);
    char *block = NULL;
    double seconds = 0;
    IDA_TRY(ida_dev_alloc(dev, (void **)&block, 2 * size, 1, "the copy rate"));
    copy c = {block, block + size, size, dev};
    ida_status st;
    if (ida_on_host(dev)) {
        memset(block, 1, (size_t)(2 * size));
        st = ida_bench_time_floor(b, "copy rate", copy_body, &c, &seconds);
    } else {
        st = ida_dev_zero(dev, block, 2 * size);
        if (!st) st = ida_bench_time_floor(b, "copy rate", copy_on_device, &c, &seconds);
    }
    ida_dev_free(dev, block);
    if (!st) *bytes = 2.0 * (double)size / seconds;
    return st;
}

void ida_row_real(json_t *row, const char *key, double v) {
    if (row) json_object_set_new(row, key, isfinite(v) ? json_real(v) : json_null());
}
void ida_row_int(json_t *row, const char *key, int64_t v) {
    if (row) json_object_set_new(row, key, json_integer(v));
}

json_t *ida_bench_row(ida_bench_run *b, const char *what, bool check, double error, double seconds, double floor) {
    json_t *row = json_pack("{s:s, s:b}", "what", what, "check", check);
    if (!row || json_array_append_new(b->rows, row)) return NULL;
    ida_row_real(row, "error", error);
    if (check) ida_row_real(row, "seconds", seconds);
    if (check && floor > 0) {
        ida_row_real(row, "floor_seconds", floor);
        ida_row_real(row, "ratio", floor / seconds);
    }
    return row;
}

void ida_bench_fill(float *x, int64_t n, double scale, uint64_t salt) {
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t r[4];
        ida_philox(salt, IDA_STREAM_STUDY, (uint64_t)i, r);
        for (int64_t k = 0; k < 4 && i + k < n; k++) x[i + k] = (float)(scale * (2.0 * (double)r[k] / 4294967296.0 - 1.0));
    }
}

double ida_max_error(const float *a, const float *b, int64_t n) {
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        worst = d > worst || isnan(d) ? d : worst;
        if (isnan(worst)) return INFINITY;
        scale = fmax(scale, fabs((double)b[i]));
    }
    return scale > 0 ? worst / scale : worst;
}

static ida_status finish(ida_bench_run *b, char **json) {
    char *machine = NULL;
    IDA_TRY(ida_doctor_json(&machine));
    json_t *m = json_loads(machine, 0, NULL);
    ida_string_free(machine);
    json_object_set_new(b->top, "bench", json_string(b->name));
    json_object_set_new(b->top, "reps", json_integer(b->reps));
    if (m) json_object_set_new(b->top, "machine", m);
    json_object_set(b->top, "rows", b->rows);
    *json = ida_json_dump(b->top, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    IDA_FAIL_IF(!*json, IDA_E_NOMEM, "no memory for the result");
    return IDA_OK;
}

static ida_status run(const ida_bench_kind *k, const char *const *args, int64_t n_args, ida_bench_run *b, char **json) {
    void *options = NULL;
    ida_status st = b->top && b->rows ? IDA_OK : ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "no memory for the result");
    if (!st) st = ida_calloc(&options, 1, k->fields->bytes, "options");
    if (!st) st = parse_args(k, options, args, n_args);
    if (!st) {
        b->options = options;
        b->reps = *(const int64_t *)(const void *)((const char *)options + ida_fields_find(k->fields, "reps")->offset);
        st = k->run(b);
    }
    if (!st) st = finish(b, json);
    ida_free(options);
    return st;
}

ida_status ida_bench(const char *name, const char *const *args, int64_t n_args, ida_progress_fn *p, void *user, char **json) {
    IDA_NEED(json);
    *json = NULL;
    IDA_NEED(name);
    IDA_FAIL_IF(n_args < 0 || (n_args && !args), IDA_E_ARG, "n_args is %lld without args", (long long)n_args);
    const char *names[IDA_COUNT(benches) + 1] = {NULL};
    for (int64_t i = 0; i < IDA_COUNT(benches); i++) names[i] = benches[i]->name;
    int i = ida_names_find(names, name);
    if (i >= 0) {
        ida_bench_run b = {.name = name, .progress = p, .user = user, .top = json_object(), .rows = json_array()};
        ida_status st = run(benches[i], args, n_args, &b, json);
        json_decref(b.top);
        json_decref(b.rows);
        return st;
    }
    char list[160];
    ida_names_join(names, 0, NULL, list, sizeof list);
    IDA_FAIL(IDA_E_ARG, "bench \"%.40s\" is not known; use one of: %s", name, list);
}
