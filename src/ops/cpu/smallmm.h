/* smallmm.h - products of small matrices that live in cache, as the mixers need them: sums of terms A B with A read through two
 * strides (so A^T costs nothing), B and C row-major, triangles skipped block-wise. Not a general GEMM: no packing, no threads.
 * Invariant: m is a multiple of SMM_MR, n of IDA_VL (callers pad scratch with smm_pad and keep padding finite), and element
 * (i,j) is summed over terms and k in order, one rounding each: its bits do not depend on m, n or the blocking. */
#ifndef IDA_OPS_CPU_SMALLMM_H
#define IDA_OPS_CPU_SMALLMM_H

#include <stdbool.h>
#include <string.h>
#include "ops/cpu/simd.h"

#if IDA_VL == 16
enum { SMM_MR = 8, SMM_NV = 2 };
#else
enum { SMM_MR = 4, SMM_NV = 2 };
#endif

#if defined(__clang__)
#define SMM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SMM_UNROLL _Pragma("GCC unroll 8")
#endif

/* Which k a row block starting at row i uses: all; k < i + SMM_MR (A is lower triangular); k >= i (A is upper triangular).
 * The part of the other triangle inside diagonal blocks must hold zeros. */
typedef enum smm_shape { SMM_FULL, SMM_LOWER, SMM_UPPER } smm_shape;

/* sum_k a[i*ai + k*ak] * b[k*ldb + j], k < n_k. Strides may be negative. */
typedef struct smm_term {
    const float *a;
    int64_t ai, ak;
    const float *b;
    int64_t ldb, n_k;
    smm_shape shape;
} smm_term;

IDA_INLINE int64_t smm_pad(int64_t n) { return (n + IDA_VL - 1) / IDA_VL * IDA_VL; }

/* Leading dimension for rows of n floats: whole cache lines, an odd number of them, so that a column of lines uses every set
 * of the first-level cache. */
IDA_INLINE int64_t smm_ld(int64_t n) {
    int64_t lines = (n + 15) / 16;
    return (lines | 1) * 16;
}

IDA_INLINE void smm_tile(float *c, int64_t ldc, bool add, const smm_term *t, int n_terms, int64_t i0, const int nv) {
    vf s[SMM_MR][SMM_NV];
SMM_UNROLL
    for (int r = 0; r < SMM_MR; r++)
SMM_UNROLL
        for (int v = 0; v < nv; v++) s[r][v] = add ? vf_load(c + r * ldc + v * IDA_VL) : vf_zero();
    for (int n = 0; n < n_terms; n++, t++) {
        const int64_t ai = t->ai, ak = t->ak, ldb = t->ldb;
        const int64_t k0 = t->shape == SMM_UPPER ? i0 : 0;
        const int64_t k1 = t->shape == SMM_LOWER && i0 + SMM_MR < t->n_k ? i0 + SMM_MR : t->n_k;
        const float *a = t->a + i0 * ai + k0 * ak, *b = t->b + k0 * ldb;
        for (int64_t k = k0; k < k1; k++) {
            vf bv[SMM_NV];
SMM_UNROLL
            for (int v = 0; v < nv; v++) bv[v] = vf_load(b + v * IDA_VL);
            const float *a4 = a + 4 * ai;
SMM_UNROLL
            for (int r = 0; r < SMM_MR; r++) {
                const vf av = vf_set1((r < 4 ? a : a4)[(r & 3) * ai]);
SMM_UNROLL
                for (int v = 0; v < nv; v++) s[r][v] = av * bv[v] + s[r][v];
            }
            a += ak;
            b += ldb;
        }
    }
SMM_UNROLL
    for (int r = 0; r < SMM_MR; r++)
SMM_UNROLL
        for (int v = 0; v < nv; v++) vf_store(c + r * ldc + v * IDA_VL, s[r][v]);
}

/* Rows i0..i1-1 by blocks, one column panel of nv vectors at column j0. */
IDA_INLINE void smm_panel(float *c, int64_t ldc, bool add, const smm_term *terms, int n_terms, int64_t i0, int64_t i1, int64_t j0,
                          const int nv) {
    smm_term t[4];
    for (int n = 0; n < n_terms; n++) {
        t[n] = terms[n];
        t[n].b += j0;
    }
    for (int64_t i = i0; i < i1; i += SMM_MR) smm_tile(c + i * ldc + j0, ldc, add, t, n_terms, i, nv);
}

/* C [m,n] = (or, with add, +=) the sum of at most 4 terms. */
static __attribute__((noinline, unused)) void smm(float *c, int64_t ldc, int64_t m, int64_t n, bool add, const smm_term *terms,
                                                  int n_terms) {
    int64_t j = 0;
    for (; j + SMM_NV * IDA_VL <= n; j += SMM_NV * IDA_VL) smm_panel(c, ldc, add, terms, n_terms, 0, m, j, SMM_NV);
    for (; j < n; j += IDA_VL) smm_panel(c, ldc, add, terms, n_terms, 0, m, j, 1);
}

/* The lower triangle (j <= i) of C [m,m] =. Above it only the diagonal blocks are defined, and hold zeros. */
static __attribute__((noinline, unused)) void smm_lower(float *c, int64_t ldc, int64_t m, const smm_term *terms, int n_terms) {
    const int64_t n = smm_pad(m);
    int64_t j = 0;
    for (; j + 2 * IDA_VL <= n; j += 2 * IDA_VL) {
        smm_panel(c, ldc, false, terms, n_terms, j, j + IDA_VL, j, 1);
        smm_panel(c, ldc, false, terms, n_terms, j + IDA_VL, m, j, 2);
    }
    if (j < n) smm_panel(c, ldc, false, terms, n_terms, j, m, j, 1);
    for (int64_t i = 0; i < m; i += SMM_MR)
        for (int r = 0; r < SMM_MR; r++)
            for (int q = r + 1; q < SMM_MR; q++) c[(i + r) * ldc + i + q] = 0;
}

typedef float smm_quad __attribute__((vector_size(16)));
typedef float smm_quad_unaligned __attribute__((vector_size(16), aligned(4), may_alias));

IDA_INLINE void smm_transpose_4x4(float *dst, int64_t ldd, const float *src, int64_t lds) {
    const smm_quad a = *(const smm_quad_unaligned *)src, b = *(const smm_quad_unaligned *)(src + lds);
    const smm_quad c = *(const smm_quad_unaligned *)(src + 2 * lds), d = *(const smm_quad_unaligned *)(src + 3 * lds);
    const smm_quad ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const smm_quad cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(smm_quad_unaligned *)dst = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
    *(smm_quad_unaligned *)(dst + ldd) = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
    *(smm_quad_unaligned *)(dst + 2 * ldd) = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
    *(smm_quad_unaligned *)(dst + 3 * ldd) = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
}

/* dst[j*ldd + i] = src[i*lds + j], i < rows, j < cols. Sixteen rows at a time, so that whole cache lines of dst are written. */
static __attribute__((noinline, unused)) void smm_transpose(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t rows,
                                                            int64_t cols) {
    const int64_t rows4 = rows / 4 * 4, cols4 = cols / 4 * 4;
    for (int64_t i0 = 0; i0 < rows4; i0 += 16)
        for (int64_t j = 0; j < cols4; j += 4)
            for (int64_t i = i0; i < rows4 && i < i0 + 16; i += 4)
                smm_transpose_4x4(dst + j * ldd + i, ldd, src + i * lds + j, lds);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < rows4 ? cols4 : 0; j < cols; j++) dst[j * ldd + i] = src[i * lds + j];
}

/* Asks the second-level cache for rows of a tensor that lie far apart; for_write 1 when they will be overwritten. A hint only. */
#define SMM_PREFETCH(src, lds, rows, cols, for_write)                                              \
    do {                                                                                           \
        for (int64_t i_ = 0; i_ < (rows); i_++)                                                    \
            for (int64_t b_ = 0; b_ < (cols); b_ += 16) __builtin_prefetch((src) + i_ * (lds) + b_, for_write, 3); \
    } while (0)

/* dst [rows_pad, pad(cols)] = src [rows, cols], zeros around. */
static __attribute__((noinline, unused)) void smm_pack(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t rows,
                                                       int64_t cols, int64_t rows_pad) {
    const int64_t full = cols / IDA_VL * IDA_VL;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < full; j += IDA_VL) vf_store(dst + i * ldd + j, vf_load(src + i * lds + j));
        if (full < cols) vf_store(dst + i * ldd + full, vf_load_n(src + i * lds + full, cols - full));
    }
    for (int64_t i = rows; i < rows_pad; i++) memset(dst + i * ldd, 0, (size_t)smm_pad(cols) * sizeof *dst);
}

/* dst [pad(cols), rows_pad] = transpose of src [rows, cols], zeros around. */
static __attribute__((noinline, unused)) void smm_pack_t(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t rows,
                                                         int64_t cols, int64_t rows_pad) {
    smm_transpose(dst, ldd, src, lds, rows, cols);
    if (rows < rows_pad)
        for (int64_t j = 0; j < cols; j++) memset(dst + j * ldd + rows, 0, (size_t)(rows_pad - rows) * sizeof *dst);
    for (int64_t j = cols; j < smm_pad(cols); j++) memset(dst + j * ldd, 0, (size_t)rows_pad * sizeof *dst);
}

/* dst [rows, cols] = or += src [rows, cols]; not an element more is touched. */
static __attribute__((noinline, unused)) void smm_copy_out(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t rows,
                                                           int64_t cols, bool add) {
    const int64_t full = cols / IDA_VL * IDA_VL;
    for (int64_t i = 0; i < rows; i++, dst += ldd, src += lds) {
        for (int64_t j = 0; j < full; j += IDA_VL)
            vf_store(dst + j, add ? vf_load(dst + j) + vf_load(src + j) : vf_load(src + j));
        if (full == cols) continue;
        const vf x = vf_load_n(src + full, cols - full);
        vf_store_n(dst + full, add ? vf_load_n(dst + full, cols - full) + x : x, cols - full);
    }
}

#endif
