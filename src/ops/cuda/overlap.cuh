/* overlap.cuh - kernels of a recorded step that begin before the one ahead of them has ended (programmatic dependent launch,
 * sm_90): what does not depend on it, as weights, is on its way by the time it has. Private to ops/cuda.
 * Invariants: every CTA of a kernel launched so waits (inputs_are_there), so that the end of one means the end of all ahead of
 * it. Before it waits it reads only what no kernel of the step writes ahead of it, and writes nothing. Only in a recording:
 * elsewhere the kernel ahead may be the one that makes the weights. */
#ifndef IDA_OPS_CUDA_OVERLAP_CUH
#define IDA_OPS_CUDA_OVERLAP_CUH

#include <utility>

#include "ops/cuda/cuda_device.h"

/* The next kernel may begin. First thing: it waits for the end of this one in any case. */
static __device__ __forceinline__ void next_may_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/* All kernels ahead have ended and what they wrote is seen. */
static __device__ __forceinline__ void inputs_are_there() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Two more attributes for a launch that may overlap; *n counts them. All such kernels ask for the most shared memory: one that
 * divides a multiprocessor's memory in another way waits until it is empty (a step took up to 1.2 times as long). */
enum { OVERLAP_ATTRS = 2 };
static inline void may_overlap(const ida_device *dev, cudaLaunchAttribute *attrs, unsigned *n) {
    if (!ida_cuda_priv_of(dev)->recorded || ida_cuda_of(dev)->arch != 90) return;
    attrs[*n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[(*n)++].val.programmaticStreamSerializationAllowed = 1;
    attrs[*n].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attrs[(*n)++].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
}

/* kernel<<<grid, block, shared>>>(args...) on the device's stream, overlapping where it may. */
template <class... P, class... A>
static inline void launch_overlapping(const ida_device *dev, void (*kernel)(P...), unsigned grid, unsigned block, size_t shared,
                                      A &&...args) {
    cudaLaunchAttribute attrs[OVERLAP_ATTRS] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(grid), config.blockDim = dim3(block), config.dynamicSmemBytes = shared;
    config.stream = ida_cuda_of(dev)->stream;
    config.attrs = attrs;
    may_overlap(dev, attrs, &config.numAttrs);
    (void)cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(args))...); /* IDA_CUDA_LAUNCHED tells */
}

#endif
