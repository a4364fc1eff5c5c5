/* progress.h - how long work shows itself, always on standard error: a bar with rate and ETA on a terminal, otherwise one JSON
 * line every few seconds. Not here: results, which go to standard output. Invariant: a line printed through progress_line never
 * lands in the middle of a bar. */
#ifndef IDATTN_CLI_PROGRESS_H
#define IDATTN_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    bool quiet, terminal;
    char what[64];       /* the stage on show; a new stage starts a new bar */
    double begun, shown; /* monotonic seconds: of the stage, of the last drawing */
    int64_t first;       /* `done` when the stage began: a resumed run's rate counts from here */
    int width;           /* of the bar now on the line, 0 = none */
} progress;

void progress_init(progress *p, bool quiet);
/* Redraws at most 10 times a second. `tail` ("" = none) is put after the bar: "loss 3.21". */
void progress_show(progress *p, const char *what, int64_t done, int64_t total, const char *tail);
/* An ida_progress_fn over a `progress`: shows, and asks to stop after SIGINT or SIGTERM (interrupted()). */
int progress_callback(void *user, const char *what, int64_t done, int64_t total);
/* One line for people on standard error, above the bar. Nothing when quiet. */
void progress_line(progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void progress_end(progress *p);

double monotonic_seconds(void);
/* 12345678 -> "12.3M", 1234 -> "1234". */
void human_count(double v, char out[16]);
/* Bytes in binary units: "48.0 MiB". */
void human_bytes(int64_t n, char out[24]);
/* Seconds: "1h02m", "3m05s", "12s". */
void human_time(double s, char out[24]);

#endif
