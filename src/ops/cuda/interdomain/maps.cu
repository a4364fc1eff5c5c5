/* interdomain/maps.cu - tensors described to the copy engine (mixer.cuh, mix_maps). The driver's encoder is found at run time:
 * nothing here links against libcuda. */
#include "ops/cuda/interdomain/mixer.cuh"

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                           const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
static void *find_encode(void) {
    void *found = NULL;
    return cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, NULL) == cudaSuccess
               ? found
               : NULL;
}
static cudaError_t make_map(CUtensorMap *map, const void *at, int64_t width, int64_t heads, int64_t n) {
    static void *const found = find_encode();
    if (!found) return cudaErrorNotSupported;
    const cuuint64_t size[3] = {(cuuint64_t)width, (cuuint64_t)heads, (cuuint64_t)n};
    const cuuint64_t stride[2] = {(cuuint64_t)(width * 2), (cuuint64_t)(width * heads * 2)};
    const cuuint32_t box[3] = {64, 1, 64}, step[3] = {1, 1, 1};
    const CUresult r = ((encode_fn *)found)(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)at, size, stride, box, step,
                                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t mix_make_maps(mix_maps *maps, const mix_params *p, int64_t n) {
    cudaError_t status = make_map(&maps->q, p->q, p->r, p->h, n);
    if (status == cudaSuccess) status = make_map(&maps->k, p->k, p->r, p->g, n);
    if (status == cudaSuccess) status = make_map(&maps->v, p->v, p->d, p->g, n);
    if (status == cudaSuccess && p->dout) status = make_map(&maps->dout, p->dout, p->d, p->h, n);
    return status;
}
