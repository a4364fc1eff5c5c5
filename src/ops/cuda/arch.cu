/* arch.cu - which of the architectures that this backend was compiled for serves the current device. */
#include "ops/cuda/arch.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "NVARCH: sm_90a in place of sm_90, or the kernels for Hopper are chosen and are not there"
#endif
__global__ void ida_arch_probe() {}

extern "C" int ida_cuda_code_arch(int *arch) {
    cudaFuncAttributes of;
    const cudaError_t status = cudaFuncGetAttributes(&of, ida_arch_probe);
    (void)cudaGetLastError(); /* or the next launch on another device would be blamed for it */
    *arch = status == cudaSuccess ? of.ptxVersion : 0;
    return status;
}
