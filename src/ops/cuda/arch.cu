/* arch.cu - which of the architectures that this backend was compiled for serves the current device. */
#include "ops/cuda/arch.h"

__global__ void ida_arch_probe() {}

extern "C" int ida_cuda_code_arch(void) {
    cudaFuncAttributes of;
    return cudaFuncGetAttributes(&of, ida_arch_probe) == cudaSuccess ? of.ptxVersion : 0;
}
