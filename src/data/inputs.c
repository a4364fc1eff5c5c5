/* inputs.c - see inputs.h. */
#include "data/inputs.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/mem.h"

struct ida_inputs {
    const char *const *paths;
    int64_t n, at;
    ida_text_options o;
    ida_text_reader *reader;
    int64_t done, total, bad; /* done, bad: of the files already closed */
};

static ida_status check_path(const char *path, int64_t *bytes) {
    struct stat s;
    IDA_FAIL_IF(!path || !*path, IDA_E_ARG, "an input path is empty");
    IDA_FAIL_IF(stat(path, &s), IDA_E_IO, "%s: cannot open: %s", path, strerror(errno));
    IDA_FAIL_IF(S_ISDIR(s.st_mode), IDA_E_ARG, "%s: is a folder: name the files in it", path);
    IDA_FAIL_IF(access(path, R_OK), IDA_E_IO, "%s: cannot read: %s", path, strerror(errno));
    *bytes = S_ISREG(s.st_mode) ? (int64_t)s.st_size : 0;
    return IDA_OK;
}

ida_status ida_inputs_open(const char *const *paths, int64_t n, const ida_text_options *o, ida_inputs **out) {
    IDA_FAIL_IF(n < 1 || !paths, IDA_E_ARG, "no input files given");
    int64_t total = 0, standard = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t bytes = 0;
        if (paths[i] && strcmp(paths[i], "-") == 0) standard++;
        else IDA_TRY(check_path(paths[i], &bytes));
        IDA_FAIL_IF(!ida_add64(total, bytes, &total), IDA_E_ARG, "the inputs are too large to count");
    }
    IDA_FAIL_IF(standard > 1, IDA_E_ARG, "standard input (-) is given %lld times", (long long)standard);
    ida_inputs *in = NULL;
    IDA_TRY(IDA_CALLOC(in, 1, "inputs"));
    in->paths = paths;
    in->n = n;
    in->o = *o;
    in->total = standard ? 0 : total;
    *out = in;
    return IDA_OK;
}

static void close_reader(ida_inputs *in) {
    if (!in->reader) return;
    in->done += ida_text_consumed(in->reader);
    in->bad += ida_text_bad(in->reader);
    ida_text_close(in->reader);
    in->reader = NULL;
}

ida_status ida_inputs_next(ida_inputs *in, const char **text, int64_t *n, bool *end) {
    for (;;) {
        if (!in->reader) {
            *end = in->at == in->n;
            if (*end) return IDA_OK;
            IDA_TRY(ida_text_open(in->paths[in->at], &in->o, &in->reader));
            in->at++;
        }
        IDA_TRY(ida_text_next(in->reader, text, n, end));
        if (!*end) return IDA_OK;
        close_reader(in);
    }
}

int64_t ida_inputs_done(const ida_inputs *in) { return in->done + (in->reader ? ida_text_consumed(in->reader) : 0); }
int64_t ida_inputs_total(const ida_inputs *in) { return in->total; }
int64_t ida_inputs_bad(const ida_inputs *in) { return in->bad + (in->reader ? ida_text_bad(in->reader) : 0); }

void ida_inputs_close(ida_inputs *in) {
    if (!in) return;
    close_reader(in);
    ida_free(in);
}
