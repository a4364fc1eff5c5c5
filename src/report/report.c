/* report.c - reads finished runs and writes the report folder: report.json, loss.svg, length.svg, report.html.
 * Not here: the page's markup (report_html.c), the charts (report_charts.c). A run's files are untrusted text: a bad line of
 * log.jsonl is passed over, a bad eval.json is an error. No weights are read: a run folder without them reports the same. */
#include "report/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/json.h"
#include "bench/bench.h"
#include "io/checkpoint.h"
#include "text/utf8.h"

#ifndef IDA_COMMIT
#define IDA_COMMIT ""
#endif

enum { MAX_SAMPLE_BYTES = 1 << 16 };
/* What no run has is damage, as if it were not there: sums and differences of the others are finite, and fit an int64_t. */
static const double MAX_NUMBER = 1e18;
static const int64_t MAX_LOG_BYTES = INT64_C(1) << 32, MAX_JSON_BYTES = INT64_C(1) << 28;

static void free_run(ida_report_run *r) {
    ida_free(r->name);
    json_decref(r->options);
    json_decref(r->eval);
    ida_free(r->sample);
    ida_free(r->step_tokens);
    ida_free(r->step_loss);
    ida_free(r->eval_tokens);
    ida_free(r->eval_loss);
}

/* Without the folders before it; valid UTF-8 that a terminal shows on one line and takes no orders from. NULL = no memory. */
static char *last_part(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t begin = n;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    json_t *valid = ida_json_text(path + begin, n - begin);
    char *name = valid ? ida_strdup(json_string_value(valid)) : NULL;
    json_decref(valid);
    for (char *c = name; c && *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = ' ';
    return name;
}

/* "NAME-s42" is seed 42 of the cell NAME. The length of NAME, 0 = the name ends otherwise. */
static int64_t cell_of(const char *name) {
    size_t n = strlen(name), k = n;
    while (k > 0 && name[k - 1] >= '0' && name[k - 1] <= '9') k--;
    return k < n && k > 2 && name[k - 1] == 's' && name[k - 2] == '-' ? (int64_t)k - 2 : 0;
}

bool ida_report_same_cell(const ida_report_run *a, const ida_report_run *b) {
    return a->cell > 0 && a->cell == b->cell && memcmp(a->name, b->name, (size_t)a->cell) == 0;
}

static ida_status push(double **x, int64_t *cap, int64_t n, double v) {
    IDA_TRY(IDA_GROW(*x, cap, n + 1, "report"));
    (*x)[n] = v;
    return IDA_OK;
}

bool ida_report_number(const json_t *o, const char *key, double *out) {
    const json_t *v = json_object_get(o, key);
    const double x = json_number_value(v);
    if (!json_is_number(v) || fabs(x) > MAX_NUMBER) return false;
    *out = x;
    return true;
}

static ida_status take_event(ida_report_run *r, const json_t *e, double **rates, int64_t *n_rates, int64_t *cap) {
    const char *kind = json_string_value(json_object_get(e, "event"));
    double tokens = 0, loss = 0, rate = 0, step = 0;
    if (!kind || !ida_report_number(e, "tokens", &tokens)) return IDA_OK;
    if (ida_report_number(e, "step", &step) && step > (double)r->steps) r->steps = (int64_t)step;
    if (tokens > (double)r->tokens) r->tokens = (int64_t)tokens;
    if (strcmp(kind, "step") == 0 && ida_report_number(e, "loss", &loss)) {
        double before = r->n_steps ? r->step_loss[r->n_steps - 1] : loss;
        double keep = r->n_steps < 20 ? (double)r->n_steps / (double)(r->n_steps + 1) * 0.9 : 0.9; /* short memory at the start */
        IDA_TRY(push(&r->step_tokens, &r->cap_tokens, r->n_steps, tokens));
        IDA_TRY(push(&r->step_loss, &r->cap_loss, r->n_steps, keep * before + (1 - keep) * loss));
        r->n_steps++;
        if (ida_report_number(e, "tokens_per_s", &rate) && rate > 0) IDA_TRY(push(rates, cap, (*n_rates)++, rate));
    } else if (strcmp(kind, "eval") == 0 && ida_report_number(e, "loss", &loss)) {
        IDA_TRY(push(&r->eval_tokens, &r->cap_eval_tokens, r->n_evals, tokens));
        IDA_TRY(push(&r->eval_loss, &r->cap_eval_loss, r->n_evals, loss));
        r->n_evals++;
        r->val_loss = loss;
        snprintf(r->protocol, sizeof r->protocol, "in training");
        if (!ida_report_number(e, "bits_per_byte", &r->bits_per_byte) || r->bits_per_byte <= 0) r->bits_per_byte = NAN;
    }
    return IDA_OK;
}

static ida_status read_log(ida_report_run *r) {
    char *path = ida_path_join(r->path, "log.jsonl"), *text = NULL;
    double *rates = NULL;
    int64_t size = 0, n_rates = 0, cap = 0;
    ida_status st = path ? ida_read_file(path, MAX_LOG_BYTES, &text, &size)
                         : ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "no memory for a path");
    for (int64_t i = 0; !st && i < size;) {
        const char *nl = memchr(text + i, '\n', (size_t)(size - i));
        size_t n = nl ? (size_t)(nl - (text + i)) : (size_t)(size - i);
        json_t *e = json_loadb(text + i, n, 0, NULL);
        if (json_is_object(e)) st = take_event(r, e, &rates, &n_rates, &cap);
        json_decref(e);
        i += (int64_t)n + 1;
    }
    if (!st && n_rates) r->tokens_per_s = ida_median(rates, n_rates);
    ida_free(rates);
    ida_free(text);
    ida_free(path);
    return st;
}

static ida_status read_eval(ida_report_run *r) {
    char *path = ida_path_join(r->path, "eval.json");
    ida_status st = IDA_OK;
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "no memory for a path");
    if (ida_exists(path)) st = ida_json_load(path, MAX_JSON_BYTES, &r->eval);
    ida_free(path);
    if (st || !r->eval) return st;
    const json_t *ppl = json_object_get(r->eval, "ppl"), *row;
    size_t i;
    /* every validation token, where training may have used a part; nothing of the other protocol stays */
    if (ida_report_number(ppl, "loss", &r->val_loss)) {
        r->bits_per_byte = NAN;
        ida_report_number(ppl, "bits_per_byte", &r->bits_per_byte);
        if (json_is_true(json_object_get(ppl, "carry_state"))) snprintf(r->protocol, sizeof r->protocol, "carried");
        else
            snprintf(r->protocol, sizeof r->protocol, "window %lld, stride %lld",
                     (long long)json_integer_value(json_object_get(ppl, "window")),
                     (long long)json_integer_value(json_object_get(ppl, "stride")));
    }
    json_array_foreach(json_object_get(json_object_get(r->eval, "length"), "at"), i, row) {
        json_int_t k = json_integer_value(json_object_get(row, "multiple"));
        for (int m = 0; m < IDA_REPORT_LENGTHS; m++)
            if (k == 1 << m) ida_report_number(row, "loss", &r->at[m]);
    }
    return IDA_OK;
}

/* The first MAX_SAMPLE_BYTES, cut between characters. */
static ida_status read_sample(ida_report_run *r) {
    char *path = ida_path_join(r->path, "sample.txt");
    int64_t n = 0;
    bool whole = true;
    ida_status st = IDA_OK;
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "no memory for a path");
    if (ida_exists(path)) st = ida_read_front(path, MAX_SAMPLE_BYTES, &r->sample, &n, &whole);
    ida_free(path);
    r->sample_cut = !whole;
    r->sample_bytes = n > 0 && !whole ? (int64_t)ida_utf8_whole(r->sample, (size_t)n) : n;
    return st;
}

/* The folder of config.json and trainer_state.json: the run itself (a model folder) or a checkpoint in it. */
static ida_status find_config(const char *path, char **dir) {
    char *config = NULL;
    IDA_FAIL_IF(!ida_exists(path), IDA_E_IO, "%s: no such training run or model folder", path);
    IDA_FAIL_IF(!ida_is_dir(path), IDA_E_ARG, "%s is a file; give the run's folder", path);
    config = ida_path_join(path, "config.json");
    IDA_FAIL_IF(!config, IDA_E_NOMEM, "no memory for a path");
    bool here = ida_exists(config);
    ida_free(config);
    if (!here) {
        IDA_TRY(ida_checkpoint_with_config(path, dir));
        IDA_FAIL_IF(!*dir, IDA_E_FORMAT,
                    "%s: no config.json in it or in a checkpoint (step-N) of it; copy the run's there (weights are not needed)",
                    path);
        return IDA_OK;
    }
    *dir = ida_strdup(path);
    IDA_FAIL_IF(!*dir, IDA_E_NOMEM, "no memory for a path");
    return IDA_OK;
}

static ida_status read_run(ida_report_run *r, const char *path) {
    char *dir = NULL, *file = NULL;
    json_t *state = NULL;
    ida_status st;
    *r = (ida_report_run){.path = path, .name = last_part(path), .val_loss = NAN, .bits_per_byte = NAN};
    for (int i = 0; i < IDA_REPORT_LENGTHS; i++) r->at[i] = NAN;
    IDA_FAIL_IF(!r->name, IDA_E_NOMEM, "no memory for a path");
    r->cell = cell_of(r->name);
    IDA_TRY(find_config(path, &dir));
    file = ida_path_join(dir, "config.json");
    if (!file) IDA_FAIL_GOTO(IDA_E_NOMEM, "no memory for a path");
    IDA_TRY_GOTO(ida_config_load(file, &r->config));
    IDA_TRY_GOTO(ida_config_info(&r->config, &r->info));
    ida_free(file);
    file = ida_path_join(dir, "trainer_state.json");
    if (file && ida_exists(file)) IDA_TRY_GOTO(ida_json_load(file, MAX_JSON_BYTES, &state));
    r->options = json_incref(json_object_get(state, "options"));
    IDA_TRY_GOTO(read_log(r));
    IDA_TRY_GOTO(read_eval(r));
    st = read_sample(r);
out:
    json_decref(state);
    ida_free(file);
    ida_free(dir);
    return st;
}

static void put_real(json_t *o, const char *key, double v) {
    json_object_set_new(o, key, isfinite(v) ? json_real(v) : json_null());
}

static const char *mixer_of(const ida_config *c) {
    for (int64_t i = 1; i < c->n_layers; i++)
        if (c->layer_mixer[i] != c->layer_mixer[0]) return "hybrid";
    return ida_mixer_name((ida_mixer_kind)c->layer_mixer[0]);
}

static bool alike(const ida_report_run *a, const ida_report_run *b) { /* losses that compare */
    return isfinite(a->val_loss) && isfinite(b->val_loss) && strcmp(a->protocol, b->protocol) == 0;
}

/* The lowest of two or more losses that were measured the same way. */
static bool is_best(const ida_report_run *runs, int64_t n, const ida_report_run *r) {
    int64_t others = 0;
    for (int64_t i = 0; i < n; i++) {
        if (&runs[i] == r || !alike(&runs[i], r)) continue;
        if (runs[i].val_loss < r->val_loss) return false;
        others++;
    }
    return others > 0;
}

/* Whether a run before i is the same seed of the same cell: given twice, it must not make the spread look small. */
static bool repeats(const ida_report_run *runs, int64_t i) {
    for (int64_t k = 0; k < i; k++)
        if (strcmp(runs[k].name, runs[i].name) == 0 && alike(&runs[k], &runs[i])) return true;
    return false;
}

/* A row for each cell with two or more seeds whose losses compare, in the order of its first run. NULL = no memory. */
static json_t *cells_table(const ida_report_run *runs, int64_t n) {
    json_t *rows = json_array();
    for (int64_t i = 0; i < n; i++) {
        const ida_report_run *a = &runs[i];
        double sum = 0, lo = INFINITY, hi = -INFINITY;
        int64_t count = 0;
        json_t *seeds = json_array();
        for (int64_t k = 0; k < n; k++) {
            const ida_report_run *b = &runs[k];
            if (!ida_report_same_cell(a, b) || !alike(a, b)) continue;
            if (k < i) break; /* counted with that one */
            if (repeats(runs, k)) continue;
            json_array_append_new(seeds, json_string(b->name + b->cell + strlen("-s")));
            sum += b->val_loss;
            lo = fmin(lo, b->val_loss);
            hi = fmax(hi, b->val_loss);
            count++;
        }
        if (count < 2) {
            json_decref(seeds);
            continue;
        }
        json_t *o = json_pack("{s:o, s:o, s:s, s:f, s:f}", "cell", json_stringn(a->name, (size_t)a->cell), "seeds", seeds,
                              "val_protocol", a->protocol, "val_loss_mean", sum / (double)count, "val_loss_spread", hi - lo);
        if (json_array_append_new(rows, o) != 0) {
            json_decref(rows);
            return NULL;
        }
    }
    return rows;
}

json_t *ida_report_table(const ida_report_run *runs, int64_t n) {
    char *machine = NULL;
    json_t *rows = json_array(), *cells = cells_table(runs, n);
    json_t *top = json_pack("{s:s, s:s}", "version", ida_version(), "commit", IDA_COMMIT);
    if (ida_doctor_json(&machine) == IDA_OK) json_object_set_new(top, "machine", json_loads(machine, 0, NULL));
    ida_string_free(machine);
    for (int64_t i = 0; i < n; i++) {
        const ida_report_run *r = &runs[i];
        int64_t fixed = r->info.state_bytes, grow = r->info.state_bytes_per_token;
        json_t *o = json_pack("{s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:I}", "name", r->name, "path", ida_json_string(r->path), "mixer",
                              mixer_of(&r->config), "parameters", (json_int_t)r->info.parameters, "steps", (json_int_t)r->steps,
                              "tokens", (json_int_t)r->tokens, "state_bytes_1k", (json_int_t)(fixed + 1024 * grow),
                              "state_bytes_64k", (json_int_t)(fixed + 65536 * grow));
        if (!o) {
            json_decref(rows);
            json_decref(cells);
            json_decref(top);
            return NULL;
        }
        put_real(o, "val_loss", r->val_loss);
        json_object_set_new(o, "val_best", json_boolean(is_best(runs, n, r)));
        put_real(o, "bits_per_byte", r->bits_per_byte);
        json_object_set_new(o, "val_protocol", *r->protocol ? json_string(r->protocol) : json_null());
        put_real(o, "tokens_per_s", r->tokens_per_s > 0 ? r->tokens_per_s : NAN);
        put_real(o, "loss_1x", r->at[0]);
        put_real(o, "loss_2x", r->at[1]);
        put_real(o, "loss_4x", r->at[2]);
        put_real(o, "loss_8x", r->at[3]);
        if (r->options) json_object_set(o, "options", r->options);
        json_array_append_new(rows, o);
    }
    json_object_set_new(top, "runs", rows);
    if (json_object_set_new(top, "cells", cells) != 0) {
        json_decref(top);
        return NULL;
    }
    return top;
}

static ida_status write_in(const char *dir, const char *name, const char *text, int64_t n) {
    char *path = ida_path_join(dir, name);
    ida_status st = path ? ida_write_file(path, text, (size_t)n)
                         : ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "no memory for a path");
    ida_free(path);
    return st;
}

ida_status ida_report(const char *const *runs, int64_t n_runs, const char *out_dir, char **json) {
    ida_report_run *r = NULL;
    ida_buf loss = {0}, length = {0}, html = {0};
    json_t *table = NULL;
    char *text = NULL;
    ida_status st;
    size_t made = 0;
    if (json) *json = NULL;
    IDA_FAIL_IF(n_runs < 1 || !runs, IDA_E_ARG, "the report needs at least one run folder");
    IDA_NEED(out_dir);
    for (int64_t i = 0; i < n_runs; i++) IDA_FAIL_IF(!runs[i], IDA_E_ARG, "the run folder %lld is NULL", (long long)i);
    IDA_TRY(IDA_CALLOC(r, n_runs, "report"));
    for (int64_t i = 0; i < n_runs; i++) IDA_TRY_GOTO(read_run(&r[i], runs[i]));
    table = ida_report_table(r, n_runs);
    text = ida_json_dump(table, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    if (!text) IDA_FAIL_GOTO(IDA_E_NOMEM, "no memory for the report");
    ida_report_styles(r, n_runs);
    IDA_TRY_GOTO(ida_report_loss_chart(&loss, r, n_runs));
    IDA_TRY_GOTO(ida_report_length_chart(&length, r, n_runs));
    IDA_TRY_GOTO(ida_report_html(&html, r, n_runs, table, loss.data, length.data));
    IDA_TRY_GOTO(ida_mkdirs_made(out_dir, &made));
    IDA_TRY_GOTO(write_in(out_dir, "loss.svg", loss.data, loss.len));
    IDA_TRY_GOTO(write_in(out_dir, "length.svg", length.data, length.len));
    IDA_TRY_GOTO(write_in(out_dir, "report.json", text, (int64_t)strlen(text)));
    IDA_TRY_GOTO(write_in(out_dir, "report.html", html.data, html.len));
    if (json) {
        *json = text;
        text = NULL;
    }
out:
    if (st != IDA_OK) ida_rmdirs(out_dir, made);
    for (int64_t i = 0; i < n_runs; i++) free_run(&r[i]);
    ida_free(r);
    ida_buf_free(&loss);
    ida_buf_free(&length);
    ida_buf_free(&html);
    json_decref(table);
    ida_string_free(text);
    return st;
}
