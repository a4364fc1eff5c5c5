/* place.c - see place.h. */
#include "core/place.h"

#include <string.h>

static const ida_field rows[] = {IDA_ROW_DEVICE(ida_place_options), IDA_ROW_DTYPE(ida_place_options, 0)};
const ida_fields ida_place_fields = IDA_FIELDS("place", "", ida_place_options, rows);

ida_dtype ida_device_dtype(const char *device) {
    return !device || strcmp(device, IDA_DEFAULT_DEVICE) == 0 ? IDA_F32 : IDA_BF16;
}
