/* test_report.c - a report of many runs: every run is told apart, seeds of a cell stand together, the best loss is marked among
 * those that compare, the start does not squeeze the loss chart, no name gets out as markup. Runs are folders without weights. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/file.h"
#include "report/report.h"
#include "report/svg.h"
#include "lib/scratch.h"

enum { STEPS = 100, STEP_TOKENS = 1000 };

/* A run that falls from 10 to `final`, which its only validation measures too. */
static const char *put_run(const char *dir, const char *name, double final) {
    const char *run = in_dir(dir, name);
    ida_config c;
    char *text = NULL;
    ida_buf log = {0};
    assert_int_equal(ida_config_preset("tiny", IDA_MIXER_SOFTMAX, &c), IDA_OK);
    assert_int_equal(ida_config_json(&c, &text), IDA_OK);
    assert_int_equal(ida_mkdirs(run), IDA_OK);
    put_file(in_dir(run, "config.json"), text, (int64_t)strlen(text));
    for (int i = 1; i <= STEPS; i++)
        ida_buf_addf(&log, "{\"event\":\"step\",\"step\":%d,\"tokens\":%d,\"loss\":%.6f}\n", i, i * STEP_TOKENS,
                     final + (10 - final) * exp(-0.15 * (i - 1)));
    ida_buf_addf(&log, "{\"event\":\"eval\",\"step\":%d,\"tokens\":%d,\"loss\":%.6f}\n", STEPS, STEPS * STEP_TOKENS, final);
    put_file(in_dir(run, "log.jsonl"), log.data, log.len);
    ida_buf_free(&log);
    ida_string_free(text);
    return run;
}

static void put_ppl(const char *run, double loss, const char *protocol) {
    char text[256];
    int n = snprintf(text, sizeof text, "{\"ppl\":{\"loss\":%.6f,%s}}", loss, protocol);
    put_file(in_dir(run, "eval.json"), text, n);
}

static json_t *report_of(const char *dir, const char *const *runs, int64_t n) {
    char *text = NULL;
    if (ida_report(runs, n, in_dir(dir, "report"), &text)) fail_msg("%s", ida_last_error());
    json_t *j = json_loads(text, 0, NULL);
    ida_string_free(text);
    assert_non_null(j);
    return j;
}

static char *report_file(const char *dir, const char *name) {
    int64_t n;
    return get_file(in_dir(in_dir(dir, "report"), name), &n);
}

static const json_t *row_of(const json_t *j, const char *key, const char *name) {
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(j, key), i, row) {
        const char *s = json_string_value(json_object_get(row, key[0] == 'c' ? "cell" : "name"));
        if (s && strcmp(s, name) == 0) return row;
    }
    return NULL;
}

static ida_report_run named(const char *name, int64_t cell) {
    return (ida_report_run){.name = (char *)(uintptr_t)name, .cell = cell};
}

static void seeds_share_a_colour_and_no_two_runs_a_style(void **state) {
    (void)state;
    enum { CELLS = 16, RUNS = 26 };
    char names[RUNS][16];
    ida_report_run r[RUNS];
    for (int i = 0; i < RUNS; i++) { /* ten cells of two seeds, the second seeds last */
        int cell = i < CELLS ? i : i - CELLS;
        snprintf(names[i], sizeof names[i], "%c-s%d", 'a' + cell, i < CELLS ? 42 : 43);
        r[i] = named(names[i], 1);
    }
    ida_report_styles(r, RUNS);
    for (int i = 0; i < RUNS; i++) {
        assert_true(r[i].style >= 1 && r[i].style <= IDA_SVG_STYLES);
        for (int k = 0; k < i; k++) {
            assert_int_not_equal(r[i].style, r[k].style);
            if (ida_report_same_cell(&r[i], &r[k]))
                assert_int_equal((r[i].style - 1) % IDA_SVG_COLOURS, (r[k].style - 1) % IDA_SVG_COLOURS);
        }
    }
    for (int i = 0; i < RUNS; i++) r[i] = named("one-s7", 3); /* one cell: more seeds than a colour has dashes */
    ida_report_styles(r, RUNS);
    for (int i = 0; i < RUNS; i++)
        for (int k = 0; k < i; k++) assert_int_not_equal(r[i].style, r[k].style);
    ida_report_run many[100];
    for (int i = 0; i < 100; i++) many[i] = named("x", 0); /* beyond the styles: repeated, not out of range */
    ida_report_styles(many, 100);
    for (int i = 0; i < 100; i++) assert_true(many[i].style >= 1 && many[i].style <= IDA_SVG_STYLES);
}

static void each_run_is_in_the_legend_once(void **state) {
    enum { RUNS = 26 };
    const char *runs[RUNS];
    char name[16], paths[RUNS][1024];
    for (int i = 0; i < RUNS; i++) {
        snprintf(name, sizeof name, "run%02d", i);
        snprintf(paths[i], sizeof paths[i], "%s", put_run(*state, name, 3 + 0.1 * i));
        runs[i] = paths[i];
    }
    json_decref(report_of(*state, runs, RUNS));
    char *svg = report_file(*state, "loss.svg");
    for (int i = 0; i < RUNS; i++) {
        snprintf(name, sizeof name, ">run%02d<", i);
        char *at = strstr(svg, name);
        assert_non_null(at);
        assert_null(strstr(at + 1, name));
    }
    assert_null(strstr(svg, ", validation"));
    int rings = 0;
    for (const char *p = svg; (p = strstr(p, "<circle")); p++) rings++;
    assert_int_equal(rings, RUNS);
    free(svg);
}

static void the_best_is_marked_among_losses_that_compare(void **state) {
    char a[1024], b[1024], c[1024], d[1024];
    snprintf(a, sizeof a, "%s", put_run(*state, "train-a", 3.5));
    snprintf(b, sizeof b, "%s", put_run(*state, "train-b", 3.25));
    snprintf(c, sizeof c, "%s", put_run(*state, "carried", 9));
    put_ppl(c, 3.0, "\"carry_state\":true");
    snprintf(d, sizeof d, "%s", put_run(*state, "none", 1));
    put_file(in_dir(d, "log.jsonl"), "", 0);
    json_t *j = report_of(*state, (const char *[]){a, b, c, d}, 4);
    assert_true(json_is_true(json_object_get(row_of(j, "runs", "train-b"), "val_best")));
    assert_true(json_is_false(json_object_get(row_of(j, "runs", "train-a"), "val_best")));
    assert_true(json_is_false(json_object_get(row_of(j, "runs", "carried"), "val_best"))); /* the only one of its kind */
    assert_true(json_is_false(json_object_get(row_of(j, "runs", "none"), "val_best")));
    json_decref(j);
    char *page = report_file(*state, "report.html");
    const char *bold = strstr(page, "<strong>");
    assert_non_null(bold);
    assert_memory_equal(bold, "<strong>3.2500</strong>", 23);
    assert_null(strstr(bold + 1, "<strong>"));
    assert_null(strstr(page, "<h2>Seeds</h2>"));
    free(page);
}

static void seeds_of_a_cell_have_mean_and_spread(void **state) {
    static const struct { const char *name; double loss; } run[] = {
        {"lin-s42", 3.5}, {"lin-s43", 3.75}, {"lin-s007", 4}, {"alone-s42", 1}, {"lin-s", 1},
        {"lin-x42", 1},   {"-s42", 1},       {"-s43", 1},     {"lin-s44", 1}};
    enum { N = sizeof run / sizeof *run };
    char paths[N][1024];
    const char *runs[N];
    for (int i = 0; i < N; i++) {
        snprintf(paths[i], sizeof paths[i], "%s", put_run(*state, run[i].name, run[i].loss));
        runs[i] = paths[i];
    }
    put_ppl(paths[N - 1], 1, "\"carry_state\":true"); /* measured in another way: not one of them */
    json_t *j = report_of(*state, runs, N);
    assert_int_equal(json_array_size(json_object_get(j, "cells")), 1);
    const json_t *cell = row_of(j, "cells", "lin");
    assert_non_null(cell);
    char *seeds = json_dumps(json_object_get(cell, "seeds"), JSON_COMPACT);
    assert_string_equal(seeds, "[\"42\",\"43\",\"007\"]");
    ida_string_free(seeds);
    assert_true(fabs(json_number_value(json_object_get(cell, "val_loss_mean")) - 3.75) < 1e-9);
    assert_true(fabs(json_number_value(json_object_get(cell, "val_loss_spread")) - 0.5) < 1e-9);
    json_decref(j);
    char *page = report_file(*state, "report.html");
    assert_non_null(strstr(page, "<td>lin</td><td>42, 43, 007</td><td>3.7500</td><td>0.5000</td>"));
    free(page);
}

/* The largest number on the y axis; its labels end at the axis. */
static double y_top(const char *svg) {
    double top = -INFINITY, v;
    for (const char *p = svg; (p = strstr(p, "text-anchor=\"end\">")); p++)
        if (sscanf(p, "text-anchor=\"end\">%lf", &v) == 1) top = fmax(top, v);
    return top;
}

/* A run that is named twice is no second seed: the spread of the two would be none. */
static void a_seed_that_is_given_twice_counts_once(void **state) {
    const char *dir = in_dir(*state, "twice");
    const char *first = put_run(dir, "lin-s42", 3.5), *second = put_run(dir, "lin-s43", 3.75);
    const char *both[] = {first, second, first, second}, *one[] = {first, first};
    json_t *j = report_of(*state, both, 4);
    const json_t *cell = row_of(j, "cells", "lin");
    assert_int_equal(json_array_size(json_object_get(j, "runs")), 4);
    assert_int_equal(json_array_size(json_object_get(cell, "seeds")), 2);
    assert_true(fabs(json_number_value(json_object_get(cell, "val_loss_spread")) - 0.25) < 1e-9);
    json_decref(j);
    j = report_of(*state, one, 2);
    assert_null(row_of(j, "cells", "lin"));
    json_decref(j);
}

static void the_start_does_not_squeeze_the_loss_chart(void **state) {
    char a[1024], b[1024];
    snprintf(a, sizeof a, "%s", put_run(*state, "falls", 3));
    snprintf(b, sizeof b, "%s", put_run(*state, "diverged", 9.5));
    json_decref(report_of(*state, (const char *[]){a}, 1));
    char *svg = report_file(*state, "loss.svg");
    assert_true(y_top(svg) > 3.5 && y_top(svg) < 9);
    assert_non_null(strstr(svg, "the start is above the range"));
    free(svg);
    json_decref(report_of(*state, (const char *[]){a, b}, 2)); /* where a run ends is always seen */
    svg = report_file(*state, "loss.svg");
    assert_true(y_top(svg) >= 9.5);
    free(svg);
    snprintf(a, sizeof a, "%s", put_run(*state, "flat", 10)); /* nothing to cut */
    json_decref(report_of(*state, (const char *[]){a}, 1));
    svg = report_file(*state, "loss.svg");
    assert_null(strstr(svg, "above the range"));
    assert_true(y_top(svg) >= 10);
    free(svg);
}

static void hostile_names_are_escaped(void **state) {
    char a[1024], b[1024];
    snprintf(a, sizeof a, "%s", put_run(*state, "<img src=x>&\"'-s1", 3));
    snprintf(b, sizeof b, "%s", put_run(*state, "<img src=x>&\"'-s2", 4));
    json_t *j = report_of(*state, (const char *[]){a, b}, 2);
    assert_non_null(row_of(j, "cells", "<img src=x>&\"'"));
    json_decref(j);
    for (int i = 0; i < 3; i++) {
        char *text = report_file(*state, (const char *[]){"report.html", "loss.svg", "length.svg"}[i]);
        assert_null(strstr(text, "<img"));
        if (i < 2) assert_non_null(strstr(text, "&lt;img src=x&gt;&amp;&quot;&#39;-s1"));
        free(text);
    }
    static const char *const odd[][2] = {{"two\nlines", "two lines"},
                                         {"\x1b[2Jred\x7f", " [2Jred "},
                                         {"n\xff\xc3\xa9\xc3", "n\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd"}};
    for (int i = 0; i < 3; i++) {
        snprintf(a, sizeof a, "%s", put_run(*state, odd[i][0], 3));
        j = report_of(*state, (const char *[]){a}, 1);
        assert_non_null(row_of(j, "runs", odd[i][1]));
        json_decref(j);
    }
}

/* Sums and differences of what JSON can hold overflow: no "nan" in a picture, no run refused for want of memory. */
static void numbers_that_no_run_has_are_passed_over(void **state) {
    static const char log[] = "{\"event\":\"step\",\"step\":1,\"tokens\":1000,\"loss\":4}\n"
                              "{\"event\":\"step\",\"step\":1e300,\"tokens\":2000,\"loss\":3,\"tokens_per_s\":1e308}\n"
                              "{\"event\":\"step\",\"step\":2,\"tokens\":1e300,\"loss\":3}\n"
                              "{\"event\":\"step\",\"step\":3,\"tokens\":3000,\"loss\":1.7e308}\n"
                              "{\"event\":\"step\",\"step\":4,\"tokens\":-1.7e308,\"loss\":-1.7e308}\n"
                              "{\"event\":\"eval\",\"step\":4,\"tokens\":3000,\"loss\":2.5,\"bits_per_byte\":1e308}\n"
                              "{\"event\":\"eval\",\"step\":4,\"tokens\":3000,\"loss\":-1.7e308}\n";
    char first[1100];
    snprintf(first, sizeof first, "%s", put_run(*state, "odd-s1", 3));
    put_file(in_dir(first, "log.jsonl"), log, (int64_t)strlen(log));
    const char *runs[] = {first, put_run(*state, "odd-s2", 3)};
    put_ppl(runs[1], 3, "\"window\":1e300,\"bits_per_byte\":-1e308");
    json_t *j = report_of(*state, runs, 2);
    const json_t *row = row_of(j, "runs", "odd-s1");
    assert_int_equal(json_integer_value(json_object_get(row, "steps")), 4);
    assert_int_equal(json_integer_value(json_object_get(row, "tokens")), 3000);
    assert_true(json_number_value(json_object_get(row, "val_loss")) == 2.5);
    assert_true(json_is_null(json_object_get(row, "bits_per_byte")));
    assert_true(json_is_null(json_object_get(row, "tokens_per_s")));
    json_decref(j);
    char *page = report_file(*state, "report.html");
    assert_null(strstr(page, "nan"));
    assert_null(strstr(page, "inf"));
    free(page);
}

/* It would be waited for, until something writes to it. */
static void a_pipe_for_a_sample_is_refused(void **state) {
    const char *run = put_run(*state, "pipe", 3);
    assert_int_equal(mkfifo(in_dir(run, "sample.txt"), 0600), 0);
    assert_int_equal(ida_report(&run, 1, in_dir(*state, "report"), NULL), IDA_E_IO);
    assert_non_null(strstr(ida_last_error(), "sample.txt: it is a device or pipe"));
}

static void what_a_run_lacks_is_said(void **state) {
    char *text = NULL, run[1024];
    snprintf(run, sizeof run, "%s", in_dir(*state, "bare"));
    assert_int_equal(ida_mkdirs(in_dir(run, "step-00000007")), IDA_OK);
    const char *runs[] = {run};
    assert_int_equal(ida_report(runs, 1, in_dir(*state, "r"), &text), IDA_E_FORMAT);
    assert_non_null(strstr(ida_last_error(), "no config.json"));
    put_run(*state, "bare/step-00000003", 3); /* an older checkpoint has one; the log is the run's */
    assert_int_equal(ida_report(runs, 1, in_dir(*state, "r"), &text), IDA_E_IO);
    assert_non_null(strstr(ida_last_error(), "bare/log.jsonl"));
    put_file(in_dir(run, "log.jsonl"), "", 0);
    assert_int_equal(ida_report(runs, 1, in_dir(*state, "r"), &text), IDA_OK);
    ida_string_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeds_share_a_colour_and_no_two_runs_a_style),
        cmocka_unit_test(each_run_is_in_the_legend_once),
        cmocka_unit_test(the_best_is_marked_among_losses_that_compare),
        cmocka_unit_test(seeds_of_a_cell_have_mean_and_spread),
        cmocka_unit_test(a_seed_that_is_given_twice_counts_once),
        cmocka_unit_test(the_start_does_not_squeeze_the_loss_chart),
        cmocka_unit_test(hostile_names_are_escaped),
        cmocka_unit_test(numbers_that_no_run_has_are_passed_over),
        cmocka_unit_test(a_pipe_for_a_sample_is_refused),
        cmocka_unit_test(what_a_run_lacks_is_said),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
