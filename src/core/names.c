/* names.c - see names.h. */
#include "core/names.h"

#include "idattn/base.h"

const char *const ida_dtype_names[] = {[IDA_F64] = "f64", [IDA_F32] = "f32", [IDA_BF16] = "bf16", NULL};
const char *const ida_disc_names[] = {
    [IDA_DISC_ZOH] = "zoh", [IDA_DISC_EULER] = "euler", [IDA_DISC_UNIT] = "unit", [IDA_DISC_NORM] = "norm", NULL};
const char *const ida_readout_names[] = {
    [IDA_READOUT_HERMITIAN] = "hermitian", [IDA_READOUT_BILINEAR] = "bilinear", NULL};
const char *const ida_form_names[] = {
    [IDA_FORM_SEQUENTIAL] = "sequential", [IDA_FORM_STEP] = "step", [IDA_FORM_CHUNKED] = "chunked", NULL};
