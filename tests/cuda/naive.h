/* naive.h - what the tuned kernels are measured against: the mixer core token by token, fp32 sums and state, every operand of a
 * product rounded to bf16. Its distance from the double truth is "the naive bf16 error". */
#ifndef IDA_TESTS_CUDA_NAIVE_H
#define IDA_TESTS_CUDA_NAIVE_H

#include "idattn.h"
#include "ops/mixer_run.h"

/* All arrays of r are double. Writes every output of r. */
void naive_bf16_run(const ida_mixer_run *r);

#endif
