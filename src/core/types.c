/* types.c - conversions between stored types and fp32, and the table over types.def. */
#include "core/types.h"

#include <assert.h>
#include <string.h>

#include "core/bf16.h"
#include "idattn/base.h"

_Static_assert((int)IDA_TYPE_F64 == (int)IDA_F64 && (int)IDA_TYPE_F32 == (int)IDA_F32 && (int)IDA_TYPE_BF16 == (int)IDA_BF16,
               "the first rows of types.def are those of ida_dtype");

static void f64_to_f32(float *out, const void *in, int64_t n) {
    const double *x = in;
    for (int64_t i = 0; i < n; i++) out[i] = (float)x[i];
}
static void f64_from_f32(void *out, const float *in, int64_t n) {
    double *y = out;
    for (int64_t i = 0; i < n; i++) y[i] = (double)in[i];
}

static void f32_to_f32(float *out, const void *in, int64_t n) {
    if (n > 0) memcpy(out, in, (size_t)n * sizeof *out);
}
static void f32_from_f32(void *out, const float *in, int64_t n) { f32_to_f32(out, in, n); }

static void bf16_to_f32(float *out, const void *in, int64_t n) {
    const uint16_t *x = in;
    for (int64_t i = 0; i < n; i++) out[i] = ida_bf16_to_f32(x[i]);
}
static void bf16_from_f32(void *out, const float *in, int64_t n) {
    uint16_t *y = out;
    for (int64_t i = 0; i < n; i++) y[i] = ida_f32_to_bf16(in[i]);
}

typedef struct row {
    const char *name;
    void (*to_f32)(float *out, const void *in, int64_t n);
    void (*from_f32)(void *out, const float *in, int64_t n);
} row;

static const row rows[] = {
#define IDA_TYPE_ROW(NAME, name, block, bytes) {#name, name##_to_f32, name##_from_f32},
#include "core/types.def"
#undef IDA_TYPE_ROW
};

const char *ida_type_name(ida_type t) { return rows[t].name; }

void ida_type_to_f32(ida_type t, float *out, const void *in, int64_t n) {
    assert(n % ida_type_block(t) == 0);
    rows[t].to_f32(out, in, n);
}

void ida_type_from_f32(ida_type t, void *out, const float *in, int64_t n) {
    assert(n % ida_type_block(t) == 0);
    rows[t].from_f32(out, in, n);
}
