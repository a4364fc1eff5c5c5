/* types.h - the types that numbers are stored in: size, name, to and from fp32. The table is types.def.
 * Not here: what a tensor means (ops/matrix.h has stored weights), types of files (io/safetensors.h). */
#ifndef IDA_CORE_TYPES_H
#define IDA_CORE_TYPES_H

#include <stdint.h>

typedef enum ida_type {
#define IDA_TYPE_ROW(NAME, name, block, bytes) IDA_TYPE_##NAME,
#include "core/types.def"
#undef IDA_TYPE_ROW
    IDA_N_TYPES
} ida_type;

/* Elements that are stored together, and their bytes: 1 and the element's own where each stands alone. */
static inline int64_t ida_type_block(ida_type t) {
#define IDA_TYPE_ROW(NAME, name, block, bytes) block,
    static const int64_t of[] = {
#include "core/types.def"
    };
#undef IDA_TYPE_ROW
    return of[t];
}
static inline int64_t ida_type_block_bytes(ida_type t) {
#define IDA_TYPE_ROW(NAME, name, block, bytes) bytes,
    static const int64_t of[] = {
#include "core/types.def"
    };
#undef IDA_TYPE_ROW
    return of[t];
}
/* Bytes of n elements, n a multiple of the block. */
static inline int64_t ida_type_bytes(ida_type t, int64_t n) { return n / ida_type_block(t) * ida_type_block_bytes(t); }

const char *ida_type_name(ida_type t); /* "f32" */
/* n elements, a multiple of the block; rounded to nearest even on the way to a narrower type. The two may not overlap. */
void ida_type_to_f32(ida_type t, float *out, const void *in, int64_t n);
void ida_type_from_f32(ida_type t, void *out, const float *in, int64_t n);

#endif
