/* report.c - reads finished runs and writes the report folder: report.json, loss.svg, length.svg, report.html.
 * Not here: the page's markup (report_html.c), the charts (svg.c). A run's files are untrusted text: a bad line of log.jsonl is
 * passed over, a bad eval.json is an error. */
#include "eval/report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "eval/bench.h"
#include "eval/svg.h"
#include "io/checkpoint.h"
#include "text/utf8.h"

#ifndef IDA_COMMIT
#define IDA_COMMIT ""
#endif

enum { MAX_SAMPLE_BYTES = 1 << 16 };
static const int64_t MAX_LOG_BYTES = INT64_C(1) << 32, MAX_JSON_BYTES = INT64_C(1) << 28;

static void free_run(ida_report_run *r) {
    free(r->name);
    json_decref(r->options);
    json_decref(r->eval);
    ida_free(r->sample);
    ida_free(r->step_tokens);
    ida_free(r->step_loss);
    ida_free(r->eval_tokens);
    ida_free(r->eval_loss);
}

/* Without the folders before it; valid UTF-8. NULL = no memory. */
static char *last_part(const char *path) {
    ida_buf b = {0};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t begin = n;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    char *name = ida_utf8_clean(&b, path + begin, n - begin) ? NULL : strndup(b.data, (size_t)b.len);
    ida_buf_free(&b);
    return name;
}

static ida_status push(double **x, int64_t *cap, int64_t n, double v) {
    IDA_TRY(IDA_GROW(*x, cap, n + 1, "report"));
    (*x)[n] = v;
    return IDA_OK;
}

static bool number_of(const json_t *o, const char *key, double *out) {
    const json_t *v = json_object_get(o, key);
    if (json_is_number(v)) *out = json_number_value(v);
    return json_is_number(v);
}

static ida_status take_event(ida_report_run *r, const json_t *e, double **rates, int64_t *n_rates, int64_t *cap) {
    const char *kind = json_string_value(json_object_get(e, "event"));
    double tokens = 0, loss = 0, rate = 0, step = 0;
    if (!kind || !number_of(e, "tokens", &tokens)) return IDA_OK;
    if (number_of(e, "step", &step) && (int64_t)step > r->steps) r->steps = (int64_t)step;
    if ((int64_t)tokens > r->tokens) r->tokens = (int64_t)tokens;
    if (strcmp(kind, "step") == 0 && number_of(e, "loss", &loss)) {
        double before = r->n_steps ? r->step_loss[r->n_steps - 1] : loss;
        double keep = r->n_steps < 20 ? (double)r->n_steps / (double)(r->n_steps + 1) * 0.9 : 0.9; /* short memory at the start */
        IDA_TRY(push(&r->step_tokens, &r->cap_tokens, r->n_steps, tokens));
        IDA_TRY(push(&r->step_loss, &r->cap_loss, r->n_steps, keep * before + (1 - keep) * loss));
        r->n_steps++;
        if (number_of(e, "tokens_per_s", &rate) && rate > 0) IDA_TRY(push(rates, cap, (*n_rates)++, rate));
    } else if (strcmp(kind, "eval") == 0 && number_of(e, "loss", &loss)) {
        IDA_TRY(push(&r->eval_tokens, &r->cap_eval_tokens, r->n_evals, tokens));
        IDA_TRY(push(&r->eval_loss, &r->cap_eval_loss, r->n_evals, loss));
        r->n_evals++;
        r->val_loss = loss;
        snprintf(r->protocol, sizeof r->protocol, "in training");
        if (!number_of(e, "bits_per_byte", &r->bits_per_byte) || r->bits_per_byte <= 0) r->bits_per_byte = NAN;
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
    if (number_of(ppl, "loss", &r->val_loss)) {
        r->bits_per_byte = NAN;
        number_of(ppl, "bits_per_byte", &r->bits_per_byte);
        if (json_is_true(json_object_get(ppl, "carry_state"))) snprintf(r->protocol, sizeof r->protocol, "carried");
        else
            snprintf(r->protocol, sizeof r->protocol, "window %lld, stride %lld",
                     (long long)json_integer_value(json_object_get(ppl, "window")),
                     (long long)json_integer_value(json_object_get(ppl, "stride")));
    }
    json_array_foreach(json_object_get(json_object_get(r->eval, "length"), "at"), i, row) {
        json_int_t k = json_integer_value(json_object_get(row, "multiple"));
        for (int m = 0; m < IDA_REPORT_LENGTHS; m++)
            if (k == 1 << m) number_of(row, "loss", &r->at[m]);
    }
    return IDA_OK;
}

/* The first MAX_SAMPLE_BYTES, cut between characters. */
static ida_status read_front(ida_report_run *r, const char *path) {
    FILE *f = fopen(path, "re");
    ida_status st;
    IDA_FAIL_IF(!f, IDA_E_IO, "%s: cannot open: %s", path, strerror(errno));
    IDA_TRY_GOTO(IDA_ALLOC(r->sample, MAX_SAMPLE_BYTES, "the sample"));
    size_t n = fread(r->sample, 1, MAX_SAMPLE_BYTES, f);
    r->sample_cut = n == MAX_SAMPLE_BYTES && fgetc(f) != EOF;
    if (ferror(f)) IDA_FAIL_GOTO(IDA_E_IO, "%s: cannot read: %s", path, strerror(errno));
    r->sample_bytes = (int64_t)(r->sample_cut ? ida_utf8_whole(r->sample, n) : n);
out:
    fclose(f);
    return st;
}

static ida_status read_sample(ida_report_run *r) {
    char *path = ida_path_join(r->path, "sample.txt");
    ida_status st = IDA_OK;
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "no memory for a path");
    if (ida_exists(path)) st = read_front(r, path);
    ida_free(path);
    return st;
}

static ida_status read_run(ida_report_run *r, const char *path) {
    char *dir = NULL, *file = NULL;
    json_t *state = NULL;
    ida_status st;
    *r = (ida_report_run){.path = path, .name = last_part(path), .val_loss = NAN, .bits_per_byte = NAN};
    for (int i = 0; i < IDA_REPORT_LENGTHS; i++) r->at[i] = NAN;
    IDA_FAIL_IF(!r->name, IDA_E_NOMEM, "no memory for a path");
    IDA_TRY(ida_resolve_model_dir(path, &dir));
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

/* Any bytes as a JSON string. NULL = no memory. */
static json_t *json_text(const char *s) {
    ida_buf b = {0};
    json_t *j = ida_utf8_clean(&b, s, strlen(s)) ? NULL : json_stringn(b.data, (size_t)b.len);
    ida_buf_free(&b);
    return j;
}

json_t *ida_report_table(const ida_report_run *runs, int64_t n) {
    char *machine = NULL;
    json_t *rows = json_array(), *top = json_pack("{s:s, s:s}", "version", ida_version(), "commit", IDA_COMMIT);
    if (ida_doctor_json(&machine) == IDA_OK) json_object_set_new(top, "machine", json_loads(machine, 0, NULL));
    ida_string_free(machine);
    for (int64_t i = 0; i < n; i++) {
        const ida_report_run *r = &runs[i];
        int64_t fixed = r->info.state_bytes, grow = r->info.state_bytes_per_token;
        json_t *o = json_pack("{s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:I}", "name", r->name, "path", json_text(r->path), "mixer",
                              mixer_of(&r->config), "parameters", (json_int_t)r->info.parameters, "steps", (json_int_t)r->steps,
                              "tokens", (json_int_t)r->tokens, "state_bytes_1k", (json_int_t)(fixed + 1024 * grow),
                              "state_bytes_64k", (json_int_t)(fixed + 65536 * grow));
        if (!o) {
            json_decref(rows);
            json_decref(top);
            return NULL;
        }
        put_real(o, "val_loss", r->val_loss);
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
    return top;
}

/* Smoothed training loss, and the validation points of the same colour where there is more than one. */
static ida_status loss_chart(ida_buf *out, const ida_report_run *runs, int64_t n) {
    ida_series *s = NULL;
    char **names = NULL;
    int64_t k = 0;
    ida_status st;
    IDA_TRY(IDA_CALLOC(s, 2 * n, "chart"));
    IDA_TRY_GOTO(IDA_CALLOC(names, n, "chart"));
    for (int64_t i = 0; i < n; i++)
        s[k++] = (ida_series){.name = runs[i].name,
                              .x = runs[i].step_tokens,
                              .y = runs[i].step_loss,
                              .n = runs[i].n_steps,
                              .colour = (int)(i % 8) + 1};
    for (int64_t i = 0; i < n; i++) {
        if (runs[i].n_evals < 2) continue;
        names[i] = ida_asprintf("%s, validation", runs[i].name);
        if (!names[i]) IDA_FAIL_GOTO(IDA_E_NOMEM, "no memory for the report");
        s[k++] = (ida_series){.name = names[i],
                              .x = runs[i].eval_tokens,
                              .y = runs[i].eval_loss,
                              .n = runs[i].n_evals,
                              .dashed = true,
                              .marks = true,
                              .colour = (int)(i % 8) + 1};
    }
    ida_chart c = {
        .title = "Training loss (smoothed)", .x_label = "tokens", .y_label = "nats per token", .series = s, .n_series = k};
    st = ida_svg_line_chart(out, &c);
out:
    for (int64_t i = 0; names && i < n; i++) free(names[i]);
    ida_free(names);
    ida_free(s);
    return st;
}

/* Middle of each bucket against its loss; guide lines at 1x, 2x, 4x ... of the first run's training length. */
static ida_status length_chart(ida_buf *out, const ida_report_run *runs, int64_t n) {
    ida_series *s = NULL;
    double *points = NULL, marks[16];
    int64_t total = 0, k = 0, n_marks = 0;
    ida_status st;
    for (int64_t i = 0; i < n; i++)
        total += (int64_t)json_array_size(json_object_get(json_object_get(runs[i].eval, "length"), "buckets"));
    IDA_TRY(IDA_CALLOC(s, n, "chart"));
    IDA_TRY_GOTO(IDA_CALLOC(points, 2 * total, "chart"));
    double *at = points;
    for (int64_t i = 0; i < n; i++) {
        const json_t *len = json_object_get(runs[i].eval, "length"), *buckets = json_object_get(len, "buckets"), *b;
        int64_t m = (int64_t)json_array_size(buckets);
        double T = 0, times = 0;
        size_t j;
        json_array_foreach(buckets, j, b) {
            double lo = NAN, hi = NAN, loss = NAN;
            number_of(b, "begin", &lo);
            number_of(b, "end", &hi);
            number_of(b, "loss", &loss);
            at[j] = (lo + hi) / 2;
            at[m + (int64_t)j] = loss;
        }
        if (m)
            s[k++] = (ida_series){
                .name = runs[i].name, .x = at, .y = at + m, .n = m, .marks = m <= 64, .colour = (int)(i % 8) + 1};
        at += 2 * m;
        if (n_marks == 0 && number_of(len, "train_len", &T) && number_of(len, "multiple", &times) && T > 0)
            for (double x = 1; x <= times && n_marks < 16; x *= 2) marks[n_marks++] = x * T;
    }
    ida_chart c = {.title = "Loss by position, state carried (dotted: 1x, 2x, 4x, ... the training length)",
                   .x_label = "position",
                   .y_label = "nats per token",
                   .series = s,
                   .n_series = k,
                   .marks_x = marks,
                   .n_marks = n_marks};
    st = ida_svg_line_chart(out, &c);
out:
    ida_free(points);
    ida_free(s);
    return st;
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
    if (json) *json = NULL;
    IDA_FAIL_IF(n_runs < 1 || !runs, IDA_E_ARG, "the report needs at least one run folder");
    IDA_NEED(out_dir);
    for (int64_t i = 0; i < n_runs; i++) IDA_FAIL_IF(!runs[i], IDA_E_ARG, "the run folder %lld is NULL", (long long)i);
    IDA_TRY(IDA_CALLOC(r, n_runs, "report"));
    for (int64_t i = 0; i < n_runs; i++) IDA_TRY_GOTO(read_run(&r[i], runs[i]));
    table = ida_report_table(r, n_runs);
    text = table ? json_dumps(table, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    if (!text) IDA_FAIL_GOTO(IDA_E_NOMEM, "no memory for the report");
    IDA_TRY_GOTO(loss_chart(&loss, r, n_runs));
    IDA_TRY_GOTO(length_chart(&length, r, n_runs));
    IDA_TRY_GOTO(ida_report_html(&html, r, n_runs, table, loss.data, length.data));
    IDA_TRY_GOTO(ida_mkdirs(out_dir));
    IDA_TRY_GOTO(write_in(out_dir, "loss.svg", loss.data, loss.len));
    IDA_TRY_GOTO(write_in(out_dir, "length.svg", length.data, length.len));
    IDA_TRY_GOTO(write_in(out_dir, "report.json", text, (int64_t)strlen(text)));
    IDA_TRY_GOTO(write_in(out_dir, "report.html", html.data, html.len));
    if (json) {
        *json = text;
        text = NULL;
    }
out:
    for (int64_t i = 0; i < n_runs; i++) free_run(&r[i]);
    ida_free(r);
    ida_buf_free(&loss);
    ida_buf_free(&length);
    ida_buf_free(&html);
    json_decref(table);
    ida_string_free(text);
    return st;
}
