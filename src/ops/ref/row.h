/* row.h - rows of a stored weight in `real`, for the reference ops that read one: of any type of types.def, so that they are the
 * truth for quantised weights too. */
#ifndef IDA_OPS_REF_ROW_H
#define IDA_OPS_REF_ROW_H

#include <assert.h>

#include "ops/ops.h"

/* Row r: where it lies if it is stored as real, else converted into `room` [cols]. */
static inline const real *ida_matrix_row(const ida_matrix *w, int64_t r, real *room) {
    if (w->type == IDA_TYPE_REAL) return (const real *)w->data + r * w->cols;
#ifdef IDA_REAL_IS_FLOAT
    ida_type_to_f32(w->type, room, (const char *)w->data + r * ida_type_bytes(w->type, w->cols), w->cols);
#else
    assert(!"the truth chain in double has matrices of double");
#endif
    return room;
}

#endif
