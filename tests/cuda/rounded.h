/* rounded.h - the reference with the storage of a bf16 device: a device on the host whose ops round to bf16 every activation that
 * they write and every matrix that they read, and do all else as ops/ref. What it differs from ref by is what bf16 storage costs
 * a model, whatever the kernels. The cores' chunk form, whose operands are bf16 inside, is no worse here than elsewhere: one
 * rounding per output. */
#ifndef IDA_TESTS_CUDA_ROUNDED_H
#define IDA_TESTS_CUDA_ROUNDED_H

#include "ops/device.h"

extern const ida_device rounded_device;

#endif
