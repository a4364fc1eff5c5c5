/* progress.c - the bar, the JSON lines, and figures for people. Not here: what is being counted. */
#include "progress.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

static const double DRAW_EVERY_S = 0.1, LINE_EVERY_S = 5.0;

double monotonic_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void human_count(double v, char out[16]) {
    static const char unit[] = "\0kMGT";
    int u = 0;
    if (v >= 10000)
        for (; v >= 1000 && u < 4; u++) v /= 1000;
    if (u == 0) snprintf(out, 16, "%.0f", v);
    else snprintf(out, 16, "%.*f%c", v < 100 ? 1 : 0, v, unit[u]);
}

void human_bytes(int64_t n, char out[24]) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n;
    int u = 0;
    for (; v >= 1024 && u < 4; u++) v /= 1024;
    snprintf(out, 24, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
}

void human_time(double s, char out[24]) {
    if (!(s >= 0) || s > 1e8) {
        snprintf(out, 24, "--");
        return;
    }
    long t = (long)(s + 0.5);
    if (t >= 3600) snprintf(out, 24, "%ldh%02ldm", t / 3600, t / 60 % 60);
    else if (t >= 60) snprintf(out, 24, "%ldm%02lds", t / 60, t % 60);
    else snprintf(out, 24, "%lds", t);
}

void progress_init(progress *p, bool quiet) { *p = (progress){.quiet = quiet, .terminal = isatty(STDERR_FILENO) != 0}; }

static void draw(progress *p, int64_t done, int64_t total, double rate, double eta, const char *tail) {
    enum { CELLS = 24 };
    char bar[CELLS + 1], a[16], b[16], r[16], e[24], line[256];
    double part = total > 0 ? fmin(1.0, (double)done / (double)total) : 0;
    int full = (int)(part * CELLS);
    for (int i = 0; i < CELLS; i++) bar[i] = i < full ? '#' : '.';
    bar[CELLS] = 0;
    human_count((double)done, a);
    human_count((double)total, b);
    human_count(rate, r);
    human_time(eta, e);
    int n = total > 0
                ? snprintf(line, sizeof line, "%s [%s] %3.0f%% %s/%s %s/s ETA %s %s", p->what, bar, 100 * part, a, b, r, e, tail)
                : snprintf(line, sizeof line, "%s %s %s/s %s", p->what, a, r, tail);
    if (n >= (int)sizeof line) n = (int)sizeof line - 1;
    fprintf(stderr, "\r%s%*s", line, n < p->width ? p->width - n : 0, "");
    fflush(stderr);
    p->width = n;
}

static void json_line(const progress *p, int64_t done, int64_t total, double rate, double eta) {
    json_t *j = json_pack("{s:s, s:I, s:I, s:f}", "progress", p->what, "done", (json_int_t)done, "total", (json_int_t)total,
                          "rate", rate);
    if (!j) return;
    if (isfinite(eta)) json_object_set_new(j, "eta_s", json_real(eta));
    char *text = json_dumps(j, JSON_REAL_PRECISION(6));
    if (text) fprintf(stderr, "%s\n", text);
    free(text);
    json_decref(j);
}

void progress_show(progress *p, const char *what, int64_t done, int64_t total, const char *tail) {
    double now = monotonic_seconds();
    if (p->quiet) return;
    if (strcmp(p->what, what) != 0) {
        progress_end(p);
        snprintf(p->what, sizeof p->what, "%s", what);
        p->begun = p->shown = now;
        p->first = done;
        if (p->terminal) draw(p, done, total, 0, -1, tail);
        return;
    }
    bool last = total > 0 && done >= total;
    if (now - p->shown < (p->terminal ? DRAW_EVERY_S : LINE_EVERY_S) && !(last && p->terminal)) return;
    p->shown = now;
    double rate = now > p->begun ? (double)(done - p->first) / (now - p->begun) : 0;
    double eta = rate > 0 && total > 0 ? (double)(total - done) / rate : INFINITY;
    if (p->terminal) draw(p, done, total, rate, eta, tail);
    else json_line(p, done, total, rate, eta);
}

int progress_callback(void *user, const char *what, int64_t done, int64_t total) {
    progress_show(user, what, done, total, "");
    return interrupted();
}

static void clear_bar(progress *p) {
    if (p->width) fprintf(stderr, "\r%*s\r", p->width, "");
    p->width = 0;
}

void progress_line(progress *p, const char *fmt, ...) {
    va_list ap;
    if (p->quiet) return;
    clear_bar(p);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

void progress_end(progress *p) {
    if (p->width) fputc('\n', stderr);
    p->width = 0;
    p->what[0] = 0;
}
