/* swiglu.h - options of the feed-forward layer. */
#ifndef IDA_LAYERS_SWIGLU_H
#define IDA_LAYERS_SWIGLU_H

#include "core/status.h"

typedef struct ida_swiglu_options { int64_t hidden; } ida_swiglu_options;

#endif
