/* common.c - failures, signals, files and models for the commands. Not here: anything of one command only. */
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile sig_atomic_t stop_requested;

static void on_signal(int sig) {
    (void)sig;
    stop_requested = 1;
}

void catch_signals(void) {
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    sigemptyset(&a.sa_mask);
    a.sa_flags = SA_RESTART;
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    a.sa_flags = SA_RESTART | (int)SA_RESETHAND;
    sigaction(SIGINT, &a, NULL);
}

int interrupted(void) { return stop_requested; }

int exit_code(ida_status st) {
    if (st == IDA_OK) return EXIT_OK;
    return st == IDA_E_ARG ? EXIT_USAGE : EXIT_FAIL;
}

static void failure_line(const options *o, const char *text) {
    char line[2048];
    snprintf(line, sizeof line, "%s", text);
    for (char *p = line; *p; p++)
        if (*p == '\n' || *p == '\r') *p = ' ';
    fprintf(stderr, "idattn %s: %s\n", o->cmd->name, line);
}

int fail(const options *o, ida_status st, progress *p) {
    if (p) progress_end(p);
    failure_line(o, *ida_last_error() ? ida_last_error() : ida_status_name(st));
    return exit_code(st);
}

int fail_text(const options *o, const char *fmt, ...) {
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    failure_line(o, line);
    return EXIT_FAIL;
}

static void on_log(void *user, const char *line) { progress_line(user, "idattn: warning: %s", line); }

int begin(const options *o, progress *p) {
    progress_init(p, opt_flag(o, "quiet"));
    ida_set_log(on_log, p);
    ida_process_options *all = options_of(o, "process");
    const char *env = getenv("IDA_THREADS");
    if (!opt_given(o, "threads") && env && *env && ida_options_set("process", all, sizeof *all, "threads", env))
        return usage_error(o->cmd, "IDA_THREADS stands for --%s", ida_last_error());
    ida_status st = ida_set_threads((int)all->threads);
    return st ? fail(o, st, NULL) : 0;
}

int print_json(const options *o, json_t *j) {
    if (!j) return fail_text(o, "out of memory while writing JSON");
    int rc = json_dumpf(j, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    json_decref(j);
    putchar('\n');
    (void)rc; /* a write error stays in stdout and is reported once, by main */
    return EXIT_OK;
}

json_t *json_text(const char *s, size_t n) {
    json_t *j = json_stringn(s, n);
    if (j) return j;
    char *out = malloc(3 * n + 1);
    size_t at = 0;
    if (!out) return NULL;
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        size_t len = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        json_t *one = i + len <= n ? json_stringn(s + i, len) : NULL; /* jansson knows overlong forms and surrogates */
        if (one) {
            memcpy(out + at, s + i, len);
            at += len;
            i += len;
        } else {
            memcpy(out + at, "\xef\xbf\xbd", 3);
            at += 3;
            i++;
        }
        json_decref(one);
    }
    j = json_stringn(out, at);
    free(out);
    return j;
}

json_t *parse_library_json(char *text) {
    json_t *j = text ? json_loads(text, 0, NULL) : NULL;
    ida_string_free(text);
    return j;
}

char *read_all(const options *o, const char *path, size_t max_bytes, size_t *n) {
    bool std = strcmp(path, "-") == 0;
    FILE *f = std ? stdin : fopen(path, "rb");
    if (!f) return fail_text(o, "%s: cannot open: %s", path, strerror(errno)), NULL;
    char *data = NULL;
    size_t len = 0, cap = 0;
    const char *why = NULL;
    for (;;) {
        if (len + 1 >= cap) {
            cap = cap ? 2 * cap : 1 << 16;
            char *grown = realloc(data, cap);
            if (!grown) {
                why = "out of memory";
                break;
            }
            data = grown;
        }
        size_t got = fread(data + len, 1, cap - len - 1, f);
        len += got;
        if (len > max_bytes) why = "larger than this command reads; split it";
        else if (got == 0 && ferror(f)) why = strerror(errno);
        if (got == 0 || why) break;
    }
    if (!std) fclose(f);
    if (why) {
        free(data);
        return fail_text(o, "%s: cannot read: %s", std ? "standard input" : path, why), NULL;
    }
    data[len] = 0;
    *n = len;
    return data;
}

int write_atomic(const options *o, const char *path, const char *text, size_t n) {
    size_t size = strlen(path) + 32;
    char *tmp = malloc(size);
    if (!tmp) return fail_text(o, "out of memory");
    snprintf(tmp, size, "%s.tmp-%ld", path, (long)getpid());
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool ok = fd >= 0;
    for (size_t at = 0; ok && at < n;) {
        ssize_t k = write(fd, text + at, n - at);
        if (k < 0 && errno == EINTR) continue;
        ok = k > 0;
        if (ok) at += (size_t)k;
    }
    ok = ok && fsync(fd) == 0;
    int e = errno;
    if (fd >= 0 && close(fd) != 0 && ok) ok = false, e = errno;
    if (ok && rename(tmp, path) != 0) ok = false, e = errno;
    if (!ok && fd >= 0) unlink(tmp);
    free(tmp);
    return ok ? 0 : fail_text(o, "%s: cannot write: %s", path, strerror(e));
}

char *join_path(const char *a, const char *b) {
    size_t na = strlen(a), size = na + strlen(b) + 2;
    char *p = malloc(size);
    if (p) snprintf(p, size, "%s%s%s", a, na && a[na - 1] == '/' ? "" : "/", b);
    return p;
}

bool path_exists(const char *path) {
    struct stat s;
    return stat(path, &s) == 0;
}

bool path_is_dir(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

/* The tokenizer given by --tokenizer, else the one in the model folder `dir`. NULL with 0: there is none and none is required. */
static int load_tokenizer(const options *o, const char *dir, bool required, ida_tokenizer **t) {
    const char *given = opt_str(o, "tokenizer");
    char *own = join_path(dir, "tokenizer.json");
    int rc = 0;
    if (!own) return fail_text(o, "out of memory");
    if (given || path_exists(own)) {
        ida_status st = ida_tokenizer_load(given ? given : own, t);
        if (st) rc = fail(o, st, NULL);
    } else if (required) {
        rc = fail_text(o, "%s has no tokenizer.json; give one with --tokenizer", dir);
    }
    free(own);
    return rc;
}

int open_model(const options *o, const char *path, bool tokenizer_required, ida_model **m, ida_tokenizer **t) {
    const ida_place_options at = place_from_options(o);
    ida_status st = ida_model_load_on(path, at.device, at.dtype, m);
    return st ? fail(o, st, NULL) : load_tokenizer(o, ida_model_folder(*m), tokenizer_required, t);
}

ida_place_options place_from_options(const options *o) {
    ida_place_options p = *(const ida_place_options *)options_of(o, "place");
    if (!p.dtype) p.dtype = ida_device_dtype(p.device);
    return p;
}

json_t *json_seed(uint64_t seed) {
    char digits[24];
    if (seed <= UINT64_C(1) << 53) return json_integer((json_int_t)seed);
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)seed);
    return json_string(digits);
}
