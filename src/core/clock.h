/* clock.h - monotonic seconds, for rates and benchmarks only (never for results). */
#ifndef IDA_CORE_CLOCK_H
#define IDA_CORE_CLOCK_H

#include <time.h>

static inline double ida_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
