/* matrix.h - a stored weight, as the ops that read one take it (linear, project, embed). It owns nothing. Gradients are no
 * matrices of this kind: they are `real` arrays of the same shape. */
#ifndef IDA_OPS_MATRIX_H
#define IDA_OPS_MATRIX_H

#include <assert.h>

#include "core/types.h"

/* [rows, cols], row-major, in the device's memory. A row is a whole number of the type's blocks. scales: what the type keeps
 * apart from its elements; NULL for types that keep nothing. data NULL: there is no such weight. */
typedef struct ida_matrix {
    const void *data, *scales;
    ida_type type;
    int64_t rows, cols;
} ida_matrix;

/* The elements of a matrix that must be stored as `type`, for an op that reads no other. */
static inline const void *ida_matrix_as(const ida_matrix *w, ida_type type) {
    assert(w->type == type);
    (void)type;
    return w->data;
}

#endif
