/* backend_host.h - what a test sees and sets of backend_host.c, by dlsym. */
#ifndef IDA_TESTS_BACKEND_HOST_H
#define IDA_TESTS_BACKEND_HOST_H

#include <stdbool.h>
#include <stdint.h>

typedef struct backend_host_control {
    int64_t live, allocs;           /* blocks held; calls */
    int64_t bytes, peak;            /* of the blocks held; the most of them */
    int64_t products;               /* calls of linear_fwd */
    int64_t fail_alloc, fail_product; /* the call, counted from 0, that fails for lack of memory; -1 = none */
    int64_t available;              /* bytes it says are free */
    bool break_there;               /* the product does not lack memory: the device is lost with it */
    bool broken;                    /* everything fails */
    int64_t records, replays;       /* calls that began a recording; runs of one */
    int64_t moves;                  /* a recording made before it changed says that the scratch moved */
    int64_t fail_recorded;          /* the op of a recording, counted from 0, that fails; -1 = none */
    bool fail_record, fail_record_end;
} backend_host_control;

#endif
