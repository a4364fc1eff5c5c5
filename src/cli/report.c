/* report.c - `idattn report RUN...`: one table and one page of finished runs. */
#include <string.h>

#include "commands.h"
#include "common.h"

static void number(const json_t *row, const char *key, const char *fmt, char out[32]) {
    const json_t *v = json_object_get(row, key);
    if (!json_is_number(v)) snprintf(out, 32, "-");
    else if (strcmp(fmt, "bytes") == 0) human_bytes((int64_t)json_number_value(v), out);
    else if (strcmp(fmt, "count") == 0) human_count(json_number_value(v), out);
    else if (strcmp(fmt, "d") == 0) snprintf(out, 32, "%lld", (long long)json_integer_value(v));
    else snprintf(out, 32, "%.4f", json_number_value(v));
}

static bool any_number(const json_t *rows, const char *key) {
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
        if (json_is_number(json_object_get(row, key))) return true;
    return false;
}

static const char *text_of(const json_t *row, const char *key) {
    const char *s = json_string_value(json_object_get(row, key));
    return s ? s : "?";
}

/* Characters, not bytes. */
static int columns(const char *s) {
    int n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

/* The width of the column of names; none is cut. */
static int name_width(const json_t *rows, const char *key) {
    enum { LEAST = 20 };
    const json_t *row;
    size_t i;
    int width = LEAST;
    json_array_foreach(rows, i, row)
        if (columns(text_of(row, key)) > width) width = columns(text_of(row, key));
    return width;
}

static void print_name(const char *name, int width) { printf("%s%*s", name, width - columns(name), ""); }

/* Columns that no run has a number for are left out; a star stands after the best validation loss. */
static void print_table(const json_t *j) {
    static const struct {
        const char *key, *title, *fmt;
        int width;
    } col[] = {{"parameters", "parameters", "d", 12},
               {"val_loss", "val loss", "f", 9},
               {"bits_per_byte", "bits/byte", "f", 10},
               {"tokens_per_s", "tokens/s", "count", 9},
               {"state_bytes_1k", "state 1K", "bytes", 11},
               {"state_bytes_64k", "state 64K", "bytes", 11},
               {"loss_1x", "loss 1x", "f", 8},
               {"loss_2x", "loss 2x", "f", 8},
               {"loss_4x", "loss 4x", "f", 8},
               {"loss_8x", "loss 8x", "f", 8}};
    enum { N = sizeof col / sizeof *col };
    const json_t *row, *rows = json_object_get(j, "runs");
    size_t i;
    bool shown[N], any_best = false;
    int width = name_width(rows, "name");
    for (int c = 0; c < N; c++) shown[c] = any_number(rows, col[c].key);
    print_name("run", width);
    for (int c = 0; c < N; c++)
        if (shown[c]) printf(" %*s", col[c].width, col[c].title);
    putchar('\n');
    json_array_foreach(rows, i, row) {
        bool best = json_is_true(json_object_get(row, "val_best"));
        char gap = ' ';
        any_best |= best;
        print_name(text_of(row, "name"), width);
        for (int c = 0; c < N; c++) {
            char cell[32];
            if (!shown[c]) continue;
            number(row, col[c].key, col[c].fmt, cell);
            printf("%c%*s", gap, col[c].width, cell);
            gap = best && strcmp(col[c].key, "val_loss") == 0 ? '*' : ' ';
        }
        putchar('\n');
    }
    if (any_best) puts("* the lowest validation loss of those measured the same way");
}

static void print_cells(const json_t *cells) {
    const json_t *row;
    size_t i;
    int width = name_width(cells, "cell");
    if (json_array_size(cells) == 0) return;
    putchar('\n');
    print_name("cell", width);
    printf(" %5s %9s %9s  %s\n", "seeds", "mean loss", "max - min", "measured");
    json_array_foreach(cells, i, row) {
        char mean[32], spread[32];
        number(row, "val_loss_mean", "f", mean);
        number(row, "val_loss_spread", "f", spread);
        print_name(text_of(row, "cell"), width);
        printf(" %5zu %9s %9s  %s\n", json_array_size(json_object_get(row, "seeds")), mean, spread, text_of(row, "val_protocol"));
    }
}

static int run_report(const options *o) {
    progress p;
    char *text = NULL;
    int rc = begin(o, &p);
    if (rc) return rc;
    ida_status st = ida_report(o->args, o->n_args, opt_str(o, "out"), &text);
    if (st) return fail(o, st, &p);
    json_t *j = parse_library_json(text);
    if (opt_flag(o, "json")) return print_json(o, j);
    print_table(j);
    print_cells(json_object_get(j, "cells"));
    json_decref(j);
    progress_line(&p, "%s/report.html, loss.svg, length.svg", opt_str(o, "out"));
    return EXIT_OK;
}

const command command_report = {
    .name = "report",
    .args = "RUN... [options]",
    .summary = "one table, two pictures and a page of finished runs",
    .text = "Reads each run's log.jsonl, config.json and, where they are there, trainer_state.json (these two also from its "
            "newest checkpoint), eval.json (from \"idattn eval ... --save\") and sample.txt; weights are not needed. Runs "
            "NAME-s42, NAME-s43 are seeds of one cell. The page is one file that needs nothing else.",
    .min_args = 1,
    .max_args = -1,
    .run = run_report,
    .options = (const option_spec[]){
        {"out", 'o', OPT_TEXT, "DIR", "report", "folder to write"},
        OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
