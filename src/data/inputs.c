/* inputs.c - see inputs.h. */
#include "data/inputs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/mem.h"

struct ida_inputs {
    const char *const *paths;
    int64_t n, at;
    ida_text_options o, told; /* told: whom on_bad belongs to */
    ida_text_reader *reader;
    int64_t *bytes;           /* [n] 0 = not a plain file, or an empty one */
    bool *plain;              /* [n] */
    ida_input_id *id;         /* [n] of those that are known */
    bool *known;              /* [n] */
    int64_t given;            /* documents of the file in hand */
    bool muted;
    int64_t done, total, bad; /* done, bad: of the files already closed */
};

static void pass_on(void *user, const char *path, int64_t row, const char *why);

static ida_status check_path(const char *path, int64_t *bytes, bool *plain) {
    struct stat s;
    IDA_FAIL_IF(!path || !*path, IDA_E_ARG, "an input path is empty");
    IDA_FAIL_IF(stat(path, &s), IDA_E_IO, "%s: cannot open: %s", path, strerror(errno));
    IDA_FAIL_IF(S_ISDIR(s.st_mode), IDA_E_ARG, "%s: is a folder: name the files in it", path);
    IDA_FAIL_IF(access(path, R_OK), IDA_E_IO, "%s: cannot read: %s", path, strerror(errno));
    *plain = S_ISREG(s.st_mode);
    *bytes = *plain ? (int64_t)s.st_size : 0;
    return IDA_OK;
}

ida_status ida_inputs_open(const char *const *paths, int64_t n, const ida_text_options *o, ida_inputs **out) {
    IDA_FAIL_IF(n < 1 || !paths, IDA_E_ARG, "no input files given");
    int64_t total = 0, standard = 0;
    ida_inputs *in = NULL;
    ida_status st;
    IDA_TRY(IDA_CALLOC(in, 1, "inputs"));
    IDA_TRY_GOTO(IDA_CALLOC(in->bytes, n, "inputs"));
    IDA_TRY_GOTO(IDA_CALLOC(in->plain, n, "inputs"));
    IDA_TRY_GOTO(IDA_CALLOC(in->id, n, "inputs"));
    IDA_TRY_GOTO(IDA_CALLOC(in->known, n, "inputs"));
    for (int64_t i = 0; i < n; i++) {
        if (paths[i] && strcmp(paths[i], "-") == 0) standard++;
        else IDA_TRY_GOTO(check_path(paths[i], &in->bytes[i], &in->plain[i]));
        if (!ida_add64(total, in->bytes[i], &total)) IDA_FAIL_GOTO(IDA_E_ARG, "the inputs are too large to count");
    }
    if (standard > 1) IDA_FAIL_GOTO(IDA_E_ARG, "standard input (-) is given %lld times", (long long)standard);
    in->paths = paths;
    in->n = n;
    in->o = *o;
    if (o->on_bad) {
        in->told = *o;
        in->o.on_bad = pass_on;
        in->o.user = in;
    }
    in->total = standard ? 0 : total;
    *out = in;
    return IDA_OK;
out:
    ida_inputs_close(in);
    return st;
}

static void pass_on(void *user, const char *path, int64_t row, const char *why) {
    ida_inputs *in = user;
    if (!in->muted) in->told.on_bad(in->told.user, path, row, why);
}

/* Reads [at, at+n) into b; false when the file ends before, or on an error. */
static bool read_at(int fd, uint8_t *b, int64_t at, int64_t n) {
    for (ssize_t k; n > 0; n -= k, at += k, b += k) {
        k = pread(fd, b, (size_t)n, (off_t)at);
        if (k < 0 && errno == EINTR) k = 0;
        else if (k <= 0) return false;
    }
    return true;
}

static ida_status look_at(const char *path, ida_input_id *id) {
    enum { BLOCK = 64 << 10 };
    uint8_t *b = NULL;
    struct stat s;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    IDA_FAIL_IF(fd < 0, IDA_E_IO, "%s: cannot open: %s", path, strerror(errno));
    ida_status st = IDA_ALLOC(b, 2 * BLOCK, "read buffer");
    bool good = !st && fstat(fd, &s) == 0;
    int64_t size = good ? (int64_t)s.st_size : 0, n = size < BLOCK ? size : BLOCK;
    good = good && read_at(fd, b, 0, n) && read_at(fd, b + n, size - n, n);
    if (!st && !good) st = ida_fail(IDA_E_IO, __FILE__, __LINE__, "%s: cannot read: %s", path, strerror(errno));
    if (good)
        *id = (ida_input_id){size, (int64_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec, XXH3_64bits(b, 2 * (size_t)n)};
    ida_free(b);
    close(fd);
    return st;
}

ida_status ida_inputs_identify(ida_inputs *in, int64_t file, ida_input_id *id) {
    if (!in->known[file]) IDA_TRY(look_at(in->paths[file], &in->id[file]));
    in->known[file] = true;
    *id = in->id[file];
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
            ida_input_id id;
            if (in->plain[in->at]) IDA_TRY(ida_inputs_identify(in, in->at, &id));
            IDA_TRY(ida_text_open(in->paths[in->at], &in->o, &in->reader));
            in->at++;
            in->given = 0;
        }
        IDA_TRY(ida_text_next(in->reader, text, n, end));
        if (!*end) {
            in->given++;
            return IDA_OK;
        }
        close_reader(in);
    }
}

void ida_inputs_place(const ida_inputs *in, int64_t *file, int64_t *documents) {
    *file = in->at ? in->at - 1 : 0;
    *documents = in->given;
}

ida_status ida_inputs_go(ida_inputs *in, int64_t file, int64_t documents, ida_progress_fn *progress, void *user,
                         const char **text,
                         int64_t *n) {
    IDA_FAIL_IF(in->at || file < 0 || file >= in->n || documents < 0, IDA_E_ARG, "there is no document %lld in input %lld",
                (long long)documents, (long long)file);
    ida_status st = IDA_OK;
    bool end = false;
    *text = NULL;
    *n = 0;
    for (; in->at < file; in->at++) in->done += in->bytes[in->at];
    in->muted = true;
    while (!st && in->given < documents) {
        st = ida_inputs_next(in, text, n, &end);
        if (!st && (end || in->at != file + 1))
            st = ida_fail(IDA_E_FORMAT, __FILE__, __LINE__, "%s: holds fewer documents than it did: it has changed",
                          in->paths[file]);
        if (!st && progress && in->given % 1024 == 0 && progress(user, "skipping", ida_inputs_done(in), in->total))
            st = ida_fail(IDA_E_CANCELLED, __FILE__, __LINE__, "stopped while skipping what was packed before");
    }
    in->muted = false;
    return st;
}

int64_t ida_inputs_done(const ida_inputs *in) { return in->done + (in->reader ? ida_text_consumed(in->reader) : 0); }
bool ida_inputs_is_file(const ida_inputs *in, int64_t file) { return in->plain[file]; }
int64_t ida_inputs_total(const ida_inputs *in) { return in->total; }
int64_t ida_inputs_bad(const ida_inputs *in) { return in->bad + (in->reader ? ida_text_bad(in->reader) : 0); }

void ida_inputs_close(ida_inputs *in) {
    if (!in) return;
    close_reader(in);
    ida_free(in->bytes);
    ida_free(in->plain);
    ida_free(in->id);
    ida_free(in->known);
    ida_free(in);
}
