/* cut_file.c - a mapped file that is cut short while it is in use, or whose disk fails, is a SIGBUS at the next read of it: one
 * line that names the file, and exit code 1. Sizes at the time of opening are the readers' to check.
 * Invariant: the handler makes only calls that are safe in one. */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

static bool terminal; /* the bar may stand in the line */

typedef struct text { char s[PATH_MAX + 256]; size_t n; } text;

static void put(text *t, char c) {
    if (t->n < sizeof t->s - 1) t->s[t->n++] = c;
}
static void put_all(text *t, const char *s) {
    while (*s) put(t, *s++);
}

/* A hexadecimal number that ends with `end`; *s goes behind that. */
static uintptr_t number(const char **s, char end) {
    uintptr_t v = 0;
    for (char c; (c = **s) != 0; ++*s) {
        if (c == end) return ++*s, v;
        v = v << 4 | (uintptr_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return 0;
}

/* The file in a line of /proc/self/maps, "begin-end perms offset dev inode   /path", when `at` is in it; else NULL. */
static const char *file_of(const char *line, uintptr_t at) {
    uintptr_t begin = number(&line, '-'), end = number(&line, ' ');
    return at >= begin && at < end ? strchr(line, '/') : NULL;
}

static void on_bus_error(int sig, siginfo_t *info, void *context) {
    static atomic_flag taken = ATOMIC_FLAG_INIT;
    (void)context;
    while (atomic_flag_test_and_set(&taken)) pause(); /* several threads may read the file; the first one ends the program */
    const int fd = info->si_code == BUS_ADRERR ? open("/proc/self/maps", O_RDONLY | O_CLOEXEC) : -1;
    const char *path = NULL;
    text line = {.n = 0}, said = {.n = 0};
    char block[1024];
    for (ssize_t got; fd >= 0 && !path && (got = read(fd, block, sizeof block)) > 0;) {
        for (ssize_t i = 0; i < got && !path; i++) {
            if (block[i] != '\n') {
                put(&line, block[i]);
                continue;
            }
            line.s[line.n] = 0;
            line.n = 0;
            path = file_of(line.s, (uintptr_t)info->si_addr);
        }
    }
    if (!path) { /* nothing of this kind */
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    put_all(&said, terminal ? "\nidattn: " : "idattn: ");
    for (; *path; path++) put(&said, (unsigned char)*path < 0x20 || *path == 0x7f ? '?' : *path);
    put_all(&said, ": cannot be read any more: it was cut short while it was in use, or its disk fails");
    put(&said, '\n');
    (void)!write(STDERR_FILENO, said.s, said.n);
    _exit(EXIT_FAIL);
}

void catch_cut_files(void) {
    struct sigaction a;
    terminal = isatty(STDERR_FILENO) != 0;
    memset(&a, 0, sizeof a);
    a.sa_sigaction = on_bus_error;
    a.sa_flags = SA_SIGINFO;
    sigemptyset(&a.sa_mask);
    sigaction(SIGBUS, &a, NULL);
}
