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

/* Columns that no run has a number for are left out. */
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
    bool shown[N];
    for (int c = 0; c < N; c++) shown[c] = any_number(rows, col[c].key);
    printf("%-20s", "run");
    for (int c = 0; c < N; c++)
        if (shown[c]) printf(" %*s", col[c].width, col[c].title);
    putchar('\n');
    json_array_foreach(rows, i, row) {
        printf("%-20.20s",
               json_string_value(json_object_get(row, "name")) ? json_string_value(json_object_get(row, "name")) : "?");
        for (int c = 0; c < N; c++) {
            char cell[32];
            if (!shown[c]) continue;
            number(row, col[c].key, col[c].fmt, cell);
            printf(" %*s", col[c].width, cell);
        }
        putchar('\n');
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
    json_decref(j);
    progress_line(&p, "%s/report.html, loss.svg, length.svg", opt_str(o, "out"));
    return EXIT_OK;
}

const command command_report = {
    .name = "report",
    .args = "RUN... [options]",
    .summary = "one table, two pictures and a page of finished runs",
    .text = "Reads each run's log.jsonl, eval.json (from \"idattn eval ... --save\") and sample.txt. The page is one file "
            "that needs nothing else.",
    .min_args = 1,
    .max_args = -1,
    .run = run_report,
    .options = (const option_spec[]){
        {"out", 'o', OPT_STR, "DIR", "report", 0, 0, "folder to write"}, OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
