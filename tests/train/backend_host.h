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
} backend_host_control;

#endif
