/* ptx.cuh - instructions that tiles.h, attention.cuh, any_product.cuh and linear/few.cu share: asynchronous copies, ldmatrix, the
 * matrix product of a warp. sm_80 and later. Private to ops/cuda. */
#ifndef IDA_OPS_CUDA_PTX_CUH
#define IDA_OPS_CUDA_PTX_CUH

#include <stdint.h>

#define PTX_DEV static __device__ __forceinline__

PTX_DEV uint32_t smem_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* bytes: 16, 8 or 4; nothing is read where `valid` is false, and zeros are written. */
template <int BYTES> PTX_DEV void cp_async(uint32_t to, const void *from, bool valid) {
    const int n = valid ? BYTES : 0;
    if (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(n) : "memory");
}
PTX_DEV void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> PTX_DEV void cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

/* Four 8 x 8 matrices of bf16 from shared memory; _t: transposed. */
PTX_DEV void ldsm(uint32_t *r, uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
PTX_DEV void ldsm_t(uint32_t *r, uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
/* c += A B, 16 x 8 x 16 */
PTX_DEV void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
