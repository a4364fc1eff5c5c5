/* doctor.c - `idattn doctor`: what this machine can do. */
#include <string.h>

#include "commands.h"
#include "common.h"

static void print_value(const char *key, const json_t *v) {
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    if (json_is_string(v)) printf("%-22s %s\n", key, json_string_value(v));
    else if (strstr(key, "bytes") && json_is_integer(v)) {
        char b[24];
        human_bytes(json_integer_value(v), b);
        printf("%-22s %s\n", key, b);
    } else printf("%-22s %s\n", key, text ? text : "?");
    free(text);
}

/* One line per GPU. */
static void print_gpus(const json_t *list) {
    size_t i;
    const json_t *g;
    json_array_foreach(list, i, g) {
        char key[32], b[24];
        snprintf(key, sizeof key, "gpu.cuda:%zu", i);
        human_bytes(json_integer_value(json_object_get(g, "memory_bytes")), b);
        printf("%-22s %s, sm_%d, %s\n", key, json_string_value(json_object_get(g, "name")),
               (int)json_integer_value(json_object_get(g, "sm")), b);
    }
}

static int run_doctor(const options *o) {
    progress p;
    char *text = NULL;
    int rc = begin(o, &p);
    if (rc) return rc;
    ida_status st = ida_doctor_json(&text);
    if (st) return fail(o, st, &p);
    json_t *j = parse_library_json(text);
    if (opt_flag(o, "json")) return print_json(o, j);
    const char *key, *sub;
    json_t *v, *w;
    json_object_foreach(j, key, v) {
        if (!json_is_object(v)) {
            print_value(key, v);
            continue;
        }
        json_object_foreach(v, sub, w) {
            char name[64];
            snprintf(name, sizeof name, "%s.%s", key, sub);
            if (json_is_array(w)) print_gpus(w);
            else if (!json_is_null(w)) print_value(name, w);
        }
    }
    json_decref(j);
    return EXIT_OK;
}

const command command_doctor = {.name = "doctor",
                                .args = "[options]",
                                .summary = "what this machine can do: instruction set, BLAS, threads, memory, GPUs",
                                .text = "",
                                .run = run_doctor,
                                .options = (const option_spec[]){OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
