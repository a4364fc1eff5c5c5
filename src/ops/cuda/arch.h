/* arch.h - see arch.cu. */
#ifndef IDA_OPS_CUDA_ARCH_H
#define IDA_OPS_CUDA_ARCH_H

#ifdef __cplusplus
extern "C" {
#endif

/* The virtual architecture (80, 90) of the code that runs on the current device, 0 = none does. Not the device's own: a build
 * without sm_90a, or a later chip, runs what was made for sm_80, and kernels for sm_90 alone must not be chosen there. */
int ida_cuda_code_arch(void);

#ifdef __cplusplus
}
#endif
#endif
