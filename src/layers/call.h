/* call.h - what the two public ways into the mixer core share. */
#ifndef IDA_INFER_MIXER_H
#define IDA_INFER_MIXER_H

#include "idattn/layer.h"
#include "core/fields.h"
#include "ops/mixer_run.h"

#define IDA_MIXER_CHUNK 64 /* the longest, and what 0 stands for */

extern const ida_fields ida_mixer_fields;

/* Sizes, options and cu_seqlens of a call (not the other pointers): IDA_E_ARG names the value and its limit. */
ida_status ida_mixer_check(const ida_mixer_run *a, ida_form form);

/* ida_ref_mixer_run (host arrays of float) on any device; on a bf16 one q, k, v, o and their gradients are rounded on the way. */
ida_status ida_mixer_run_on(const struct ida_device *dev, const ida_mixer_run *a, ida_form form, bool backward);

#endif
