/* mixer.h - what the two public ways into the mixer core share. */
#ifndef IDA_INFER_MIXER_H
#define IDA_INFER_MIXER_H

#include "ops/mixer_run.h"

/* Sizes, options and cu_seqlens of a call (not the other pointers): IDA_E_ARG names the value and its limit. */
ida_status ida_mixer_check(const ida_mixer_run *a, ida_form form);

#endif
