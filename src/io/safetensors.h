/* safetensors.h - reader and writer of the safetensors format (docs/formats.md). The file is untrusted: header length, UTF-8,
 * JSON, dtype, shape product, offsets (contiguous, no hole, no overlap, exact end) are checked before any data is touched. */
#ifndef IDA_IO_SAFETENSORS_H
#define IDA_IO_SAFETENSORS_H

#include "core/file.h"
#include "ops/device.h"

typedef enum ida_st_dtype { IDA_ST_F64, IDA_ST_F32, IDA_ST_F16, IDA_ST_BF16, IDA_ST_I64, IDA_ST_I32, IDA_ST_U8,
                           IDA_ST_OTHER } ida_st_dtype;

typedef struct ida_st_tensor {
    char *name;
    ida_st_dtype dtype;
    int ndim;                 /* 0..8 */
    int64_t shape[8];
    int64_t numel, bytes;
    const void *data;         /* into the map; 8-aligned when the writer was ours or HF's: use the readers below */
} ida_st_tensor;

typedef struct ida_st_file {
    char *path;
    ida_map map;
    int64_t n;
    ida_st_tensor *tensors;   /* in file order */
    int64_t *by_name;         /* indices into tensors, sorted by name: for ida_st_find */
    int64_t n_meta;
    char **meta_keys, **meta_values;
} ida_st_file;

ida_status ida_st_open(const char *path, ida_st_file **out);
/* The same on bytes in memory (borrowed; for fuzzing). */
ida_status ida_st_parse(const uint8_t *data, int64_t size, const char *where, ida_st_file **out);
void ida_st_close(ida_st_file *f);
const ida_st_tensor *ida_st_find(const ida_st_file *f, const char *name);
const char *ida_st_meta(const ida_st_file *f, const char *key);
/* Finds `name` and checks the exact shape (IDA_E_FORMAT names both) and that its type is one the readers below convert. */
ida_status ida_st_check(const ida_st_file *f, const char *name, int ndim, const int64_t *shape, const ida_st_tensor **out);
/* "[2,3]" into text of n bytes, cut where it does not fit. */
void ida_st_shape_text(int ndim, const int64_t *shape, char *text, size_t n);
/* Finds `name`, checks the exact shape (IDA_E_FORMAT names both shapes), converts any float dtype. */
ida_status ida_st_read_f32(const ida_st_file *f, const char *name, int ndim, const int64_t *shape, float *out);
ida_status ida_st_read_f64(const ida_st_file *f, const char *name, int ndim, const int64_t *shape, double *out);

/* Bytes of host memory that a write takes where data comes from a device. */
enum { IDA_ST_PIECE = 4 << 20 };
/* data lies in the memory of dev; NULL: of the host. */
typedef struct ida_st_out {
    const char *name;
    ida_st_dtype dtype;
    int ndim;
    int64_t shape[8];
    const void *data;
    const ida_device *dev;
} ida_st_out;
/* Atomic write. Same tensors in the same order give the same bytes; tensors are ordered as the reference writer does (wider
 * dtypes first: I64 F64 F32 I32 BF16 F16 U8, then by name); "__metadata__" always has "format":"pt" plus the given pairs. */
ida_status ida_st_write(const char *path, const ida_st_out *t, int64_t n, const char *const *meta_keys,
                        const char *const *meta_values, int64_t n_meta);

#endif
