/* place.h - where something runs, as options: the rows of a struct's members `device` and `dtype`.
 * Not here: devices (ops). */
#ifndef IDA_CORE_PLACE_H
#define IDA_CORE_PLACE_H

#include "core/fields.h"
#include "core/names.h"

#define IDA_DEFAULT_DEVICE "cpu" /* also what NULL stands for */
#define IDA_ROW_DEVICE(T) \
    IDA_ROW_TEXT(T, "device", device, IDA_DEFAULT_DEVICE, "NAME", .flags = IDA_FIELD_OR_DEFAULT, \
                 .help = "where to run: cpu, cuda or cuda:N")
#define IDA_ROW_DTYPE(T, more_flags) \
    IDA_ROW_ENUM(T, "dtype", dtype, IDA_F32, ida_dtype_names, .lo = IDA_F32, \
                 .flags = IDA_FIELD_DERIVED | (more_flags), \
                 .help = "of activations and matrix weights [f32 on the CPU, bf16 on a GPU]")

extern const ida_fields ida_place_fields;

#endif
