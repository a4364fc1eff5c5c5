/* arch.h - see arch.cu. */
#ifndef IDA_OPS_CUDA_ARCH_H
#define IDA_OPS_CUDA_ARCH_H

#ifdef __cplusplus
extern "C" {
#endif

/* The virtual architecture (80, 90) of the code that runs on the current device. Not the device's own: a build without sm_90a, or a
 * later chip, runs what was made for sm_80, and kernels for sm_90 alone must not be chosen there. Returns a cudaError_t:
 * cudaErrorNoKernelImageForDevice = no code runs there. */
int ida_cuda_code_arch(int *arch);

#ifdef __cplusplus
}
#endif
#endif
