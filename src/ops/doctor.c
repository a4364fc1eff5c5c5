/* doctor.c - what this machine offers, processors and GPUs, as JSON for people and bug reports. Reads only; decides nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/cpu.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/threads.h"
#include "ops/backend.h"

char *openblas_get_config(void);
char *openblas_get_corename(void);

/* The value after "key" and a colon on a line of a /proc file, into buf; "" when there is none. */
static void proc_value(const char *path, const char *key, char *buf, size_t n) {
    char line[512];
    buf[0] = '\0';
    FILE *f = fopen(path, "re");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        const char *v = strchr(line, ':');
        if (!v) continue;
        v++;
        v += strspn(v, " \t");
        snprintf(buf, n, "%.*s", (int)strcspn(v, "\n"), v);
        break;
    }
    fclose(f);
}

static json_int_t memory_bytes(const char *key) {
    char v[64];
    proc_value("/proc/meminfo", key, v, sizeof v);
    return (json_int_t)strtoll(v, NULL, 10) * 1024;
}

ida_status ida_doctor_json(char **json) {
    IDA_NEED(json);
    struct utsname u;
    char model[256];
    if (uname(&u) != 0) memset(&u, 0, sizeof u);
    proc_value("/proc/cpuinfo", "model name", model, sizeof model);
    char *gpus = NULL;
    IDA_TRY(ida_backend_doctor(&gpus));
    json_t *gpu = json_loads(gpus, 0, NULL), *isas = json_array();
    ida_free(gpus);
    for (int i = 0; i <= (int)ida_cpu_best(); i++) json_array_append_new(isas, json_string(ida_cpu_isa_name((ida_isa)i)));
    const char *override = getenv("OPENBLAS_CORETYPE");
    json_t *j = json_pack("{s:s, s:s, s:o, s:s, s:i, s:I, s:{s:s, s:s, s:s*}, s:I, s:I, s:s, s:s, s:s, s:o}",
                          "version", ida_version(), "isa", ida_isa_name(), "isas", isas, "cpu", model, "threads", ida_workers(),
                          "cores", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "blas", "config", openblas_get_config(), "core",
                          openblas_get_corename(), "OPENBLAS_CORETYPE", override, "memory_bytes", memory_bytes("MemTotal"),
                          "memory_available_bytes", memory_bytes("MemAvailable"), "system", u.sysname, "release", u.release,
                          "compiler", __VERSION__, "gpu", gpu);
    IDA_FAIL_IF(!j, IDA_E_NOMEM, "out of memory for the machine description");
    char *text = ida_json_dump(j, JSON_INDENT(2));
    json_decref(j);
    IDA_FAIL_IF(!text, IDA_E_NOMEM, "out of memory for the machine description");
    *json = text;
    return IDA_OK;
}
