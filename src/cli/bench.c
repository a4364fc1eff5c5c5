/* bench.c - `idattn bench NAME`: the library's benchmarks as a table or as JSON. */
#include <string.h>

#include "commands.h"
#include "common.h"

static void cell_text(const json_t *v, char out[48]) {
    if (json_is_string(v)) snprintf(out, 48, "%s", json_string_value(v));
    else if (json_is_integer(v)) snprintf(out, 48, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v)) snprintf(out, 48, "%.4g", json_real_value(v));
    else if (json_is_boolean(v)) snprintf(out, 48, "%s", json_is_true(v) ? "yes" : "no");
    else snprintf(out, 48, "-");
}

/* One table: a column for every key that occurs, in the order of first appearance; "-" where a row has none. */
static void print_rows(json_t *rows) {
    enum { MAX_COLUMNS = 32 };
    const char *keys[MAX_COLUMNS], *key;
    int width[MAX_COLUMNS], n = 0;
    char cell[48];
    json_t *row, *v;
    size_t i;
    json_array_foreach(rows, i, row) {
        json_object_foreach(row, key, v) {
            int c = 0;
            while (c < n && strcmp(keys[c], key) != 0) c++;
            if (c == n && n < MAX_COLUMNS) {
                width[n] = (int)strlen(key);
                keys[n++] = key;
            }
            cell_text(v, cell);
            if (c < n && (int)strlen(cell) > width[c]) width[c] = (int)strlen(cell);
        }
    }
    for (int c = 0; c < n; c++) printf("%s%*s", c ? "  " : "", c ? width[c] : -width[c], keys[c]);
    putchar('\n');
    json_array_foreach(rows, i, row) {
        for (int c = 0; c < n; c++) {
            cell_text(json_object_get(row, keys[c]), cell);
            printf("%s%*s", c ? "  " : "", c ? width[c] : -width[c], cell);
        }
        putchar('\n');
    }
}

/* Whether a group of options has the key "out". */
static bool draws(const json_t *group) {
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(group, "options"), i, row)
        if (strcmp(json_string_value(json_object_get(row, "key")), "out") == 0) return true;
    return false;
}

/* --out is the key "out" to the library, which would name a key that nobody typed. A bench that is not known is its to name. */
static int check_out(const options *o) {
    static const char prefix[] = "bench.";
    char *text = NULL, who[128] = "";
    bool refused = false;
    size_t i;
    json_t *group;
    if (!opt_str(o, "out")) return 0;
    if (ida_options_json(NULL, &text)) return fail_text(o, "%s", ida_last_error());
    json_t *all = parse_library_json(text);
    json_array_foreach(all, i, group) {
        const char *name = json_string_value(json_object_get(group, "group"));
        if (strncmp(name, prefix, strlen(prefix)) != 0) continue;
        name += strlen(prefix);
        if (draws(group)) snprintf(who + strlen(who), sizeof who - strlen(who), "%s%s", *who ? ", " : "", name);
        else refused |= strcmp(name, o->args[0]) == 0;
    }
    json_decref(all);
    if (refused) return usage_error(o->cmd, "--out is for %s: no other bench draws; leave it out", who);
    for (int64_t k = 1; k < o->n_args; k++)
        if (strncmp(o->args[k], "out=", 4) == 0)
            return usage_error(o->cmd, "--out and out= are the same; give one of them");
    return 0;
}

static int run_bench(const options *o) {
    progress p;
    char *text = NULL, *out = NULL;
    int rc = begin(o, &p);
    if (rc || (rc = check_out(o))) return rc;
    int64_t n = o->n_args - 1;
    const char **args = calloc((size_t)n + 1, sizeof *args);
    if (!args) return fail_text(o, "out of memory");
    for (int64_t i = 0; i < n; i++) args[i] = o->args[i + 1];
    if (opt_str(o, "out")) {
        size_t size = strlen(opt_str(o, "out")) + 5;
        out = malloc(size);
        if (!out) {
            free(args);
            return fail_text(o, "out of memory");
        }
        snprintf(out, size, "out=%s", opt_str(o, "out"));
        args[n++] = out;
    }
    catch_signals();
    ida_status st = ida_bench(o->args[0], args, n, progress_callback, &p, &text);
    free(args);
    free(out);
    if (st) return fail(o, st, &p);
    progress_end(&p);
    json_t *j = parse_library_json(text);
    if (opt_flag(o, "json")) return print_json(o, j);
    const char *key;
    json_t *v;
    json_object_foreach(j, key, v) {
        char cell[48];
        if (json_is_array(v)) continue;
        cell_text(v, cell);
        if (json_is_string(v)) printf("%s: %s\n", key, json_string_value(v));
        else if (!json_is_object(v)) printf("%s: %s\n", key, cell);
    }
    print_rows(json_object_get(j, "rows"));
    json_decref(j);
    return EXIT_OK;
}

const command command_bench = {
    .name = "bench",
    .args = "NAME [KEY=VALUE...] [options]",
    .summary = "measure: {bench}",
    .text = "A speed is shown only when the same kernel's correctness check is green; beside it stands the floor that this "
            "machine allows. Figures are medians after warm-up. An unknown KEY lists the keys a bench knows.",
    .min_args = 1,
    .max_args = -1,
    .run = run_bench,
    .options = (const option_spec[]){
        {"out", 'o', OPT_TEXT, "DIR", NULL, "folder for the picture of kernel-form"},
        OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
