/* weights.h - the tensors of a parameter table as they lie in one or several safetensors files. Inside io only. */
#ifndef IDA_IO_WEIGHTS_H
#define IDA_IO_WEIGHTS_H

#include "io/safetensors.h"
#include "model/model.h"

typedef struct ida_weights {
    char *dir;
    ida_st_file **files;
    int64_t n;
} ida_weights;

/* DIR/model.safetensors, or the shards of DIR/model.safetensors.index.json. Zero-initialise; ida_weights_close in any case. */
ida_status ida_weights_open(const char *dir, ida_weights *w);
/* One file. */
ida_status ida_weights_open_file(const char *path, ida_weights *w);
void ida_weights_close(ida_weights *w);
/* Every tensor of the table is there as prefix + name, with its exact shape, once, and nothing but such tensors is there.
 * Reads headers only. */
ida_status ida_weights_check(const ida_weights *w, const ida_param_table *t, const char *const *prefixes, int64_t n_prefixes);
/* Values of prefix + name into a block of dev laid out by the table, gaps zeroed; a device is given one tensor at a time.
 * IDA_E_NUMERIC names the first tensor and element that is not finite. */
ida_status ida_weights_read(const ida_weights *w, const ida_param_table *t, const char *prefix, const ida_device *dev,
                            float *block);
/* The table's tensors of each block of dev, named prefix + name, as one file. */
ida_status ida_weights_write(const char *path, const ida_param_table *t, const ida_device *dev, const float *const *blocks,
                             const char *const *prefixes, int64_t n_blocks);

#endif
