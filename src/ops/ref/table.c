/* table.c - the op table of the reference device. */
#include "ops/ops.h"

const ida_ops IDA_REF(ops) = {
#define IDA_OP(name) .name = IDA_REF(name),
#include "ops/ops.def"
#undef IDA_OP
};

#ifdef IDA_REAL_IS_FLOAT
#define DEVICE_NAME "ref"
#else
#define DEVICE_NAME "ref64"
#endif

const ida_device IDA_REF(device) = { .ops = &IDA_REF(ops), .name = DEVICE_NAME, .act_type = IDA_TYPE_REAL };
