/* parts.h - seconds spent per part of a pass, for benches. Not a profiler of ops: the borders are set by hand. */
#ifndef IDA_LAYERS_PARTS_H
#define IDA_LAYERS_PARTS_H

#include "core/clock.h"
#include "ops/device.h"

typedef enum ida_part { IDA_PART_GEMM, IDA_PART_MIXER, IDA_PART_NORM, IDA_PART_HEAD, IDA_PART_OTHER, IDA_N_PARTS } ida_part;

typedef struct ida_parts {
    const ida_device *dev;
    double seconds[IDA_N_PARTS], since;
    ida_part part;
    bool profile; /* waits for the device at the border of every part */
} ida_parts;

/* The time up to now goes to the running part, what follows to `p`. */
static inline void ida_part_begin(ida_parts *t, ida_part p) {
    if (t->profile) (void)ida_dev_sync(t->dev); /* a failure stays with the queue: the next wait reports it */
    double now = ida_now();
    t->seconds[t->part] += now - t->since;
    t->since = now;
    t->part = p;
}
static inline void ida_parts_start(ida_parts *t) {
    t->since = ida_now();
    t->part = IDA_PART_OTHER;
}

#endif
