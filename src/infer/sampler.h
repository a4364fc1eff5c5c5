/* sampler.h - from logits to one id: a pure function of (logits, options, index). Scratch is given: a step allocates nothing. */
#ifndef IDA_INFER_SAMPLER_H
#define IDA_INFER_SAMPLER_H

#include "idattn/engine.h"
#include "core/fields.h"

typedef struct ida_candidate { double weight; int32_t id; } ida_candidate;

extern const ida_fields ida_sample_fields;
/* IDA_E_ARG names option, value and range. Does not look at stop strings. */
ida_status ida_sample_check(const ida_sample_options *o);
/* scratch: [n], unused when temperature is 0. Options were checked. */
ida_status ida_sample_with(const float *logits, int64_t n, const ida_sample_options *o, uint64_t index, ida_candidate *scratch,
                           int32_t *id);

#endif
