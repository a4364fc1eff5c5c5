/* simd.h - the vector layer of the CPU ops, written once over gcc/clang vector extensions and compiled per instruction set.
 * vf: IDA_VL floats (4 base, 8 AVX2, 16 AVX-512); vd: IDA_VL/2 doubles; vi: IDA_VL int32. +, -, *, / and comparisons are
 * the language's own; a*b + c becomes one FMA where the machine has it (-ffp-contract=fast). Comparisons give all-ones lanes.
 * Not here: threads, memory. Intrinsics appear only where the language has no word for the instruction.
 * Invariant: reductions over lanes have one fixed order, partial loads and stores never touch memory beyond n elements. */
#ifndef IDA_OPS_CPU_SIMD_H
#define IDA_OPS_CPU_SIMD_H

#include <math.h>
#include <stdint.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define IDA_VL 16
#define IDA_REP(a) a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a
#define IDA_REP_HALF(a) a, a, a, a, a, a, a, a
#elif defined(__AVX2__)
#define IDA_VL 8
#define IDA_REP(a) a, a, a, a, a, a, a, a
#define IDA_REP_HALF(a) a, a, a, a
#else
#define IDA_VL 4
#define IDA_REP(a) a, a, a, a
#define IDA_REP_HALF(a) a, a
#endif
#define IDA_VDL (IDA_VL / 2)

typedef float vf __attribute__((vector_size(IDA_VL * 4)));
typedef int32_t vi __attribute__((vector_size(IDA_VL * 4)));
typedef uint32_t vu __attribute__((vector_size(IDA_VL * 4)));
typedef double vd __attribute__((vector_size(IDA_VL * 4)));
typedef float vf_unaligned __attribute__((vector_size(IDA_VL * 4), aligned(4), may_alias));
typedef double vd_unaligned __attribute__((vector_size(IDA_VL * 4), aligned(8), may_alias));

#define IDA_INLINE static inline __attribute__((always_inline, unused))

/* Before a loop of at most 8 rounds whose count is known once inlined: unrolled, so that arrays of vectors become registers.
 * clang does it unasked, and warns of a request that it met in another way. */
#if defined(__clang__)
#define IDA_UNROLL
#else
#define IDA_UNROLL _Pragma("GCC unroll 8")
#endif

IDA_INLINE vf vf_load(const float *p) { return *(const vf_unaligned *)p; }
IDA_INLINE void vf_store(float *p, vf a) { *(vf_unaligned *)p = a; }
IDA_INLINE vf vf_set1(float a) { return (vf){ IDA_REP(a) }; }
IDA_INLINE vf vf_zero(void) { return (vf){ 0 }; }
IDA_INLINE vd vd_load(const double *p) { return *(const vd_unaligned *)p; }
IDA_INLINE void vd_store(double *p, vd a) { *(vd_unaligned *)p = a; }
IDA_INLINE vd vd_set1(double a) { return (vd){ IDA_REP_HALF(a) }; }
IDA_INLINE vd vd_zero(void) { return (vd){ 0 }; }

/* n of IDA_VL elements (0 <= n <= IDA_VL); the other lanes are 0. */
IDA_INLINE vf vf_load_n(const float *p, int64_t n) {
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#elif defined(__AVX2__)
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (vf)_mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane));
#else
    vf r = { 0 };
    for (int64_t i = 0; i < n && i < IDA_VL; i++) r[i] = p[i];
    return r;
#endif
}
IDA_INLINE void vf_store_n(float *p, vf a, int64_t n) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)a);
#elif defined(__AVX2__)
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane), (__m256)a);
#else
    for (int64_t i = 0; i < n && i < IDA_VL; i++) p[i] = a[i];
#endif
}

/* IDA_VDL floats as doubles, and back (rounded to nearest). */
IDA_INLINE vd vd_loadf(const float *p) {
#if defined(__AVX512F__)
    return (vd)_mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif defined(__AVX2__)
    return (vd)_mm256_cvtps_pd(_mm_loadu_ps(p));
#else
    return (vd){ (double)p[0], (double)p[1] };
#endif
}
IDA_INLINE void vd_storef(float *p, vd a) {
#if defined(__AVX512F__)
    _mm256_storeu_ps(p, _mm512_cvtpd_ps((__m512d)a));
#elif defined(__AVX2__)
    _mm_storeu_ps(p, _mm256_cvtpd_ps((__m256d)a));
#else
    p[0] = (float)a[0];
    p[1] = (float)a[1];
#endif
}
/* The lower and upper half of a as doubles. */
IDA_INLINE vd vd_lo(vf a) {
#if defined(__AVX512F__)
    return (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)a));
#elif defined(__AVX2__)
    return (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)a));
#else
    return (vd){ (double)a[0], (double)a[1] };
#endif
}
IDA_INLINE vd vd_hi(vf a) {
#if defined(__AVX512F__)
    return (vd)_mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)a, 1)));
#elif defined(__AVX2__)
    return (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)a, 1));
#else
    return (vd){ (double)a[2], (double)a[3] };
#endif
}

/* a where the mask lane is all ones, else b. */
IDA_INLINE vf vf_select(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
/* a > b ? a : b and a < b ? a : b: when a lane holds a NaN the result is b. */
IDA_INLINE vf vf_max(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return vf_select(a > b, a, b);
#endif
}
IDA_INLINE vf vf_min(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vf)_mm_min_ps((__m128)a, (__m128)b);
#else
    return vf_select(a < b, a, b);
#endif
}
IDA_INLINE vf vf_sqrt(vf a) {
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)a);
#elif defined(__AVX2__)
    return (vf)_mm256_sqrt_ps((__m256)a);
#elif defined(__SSE2__)
    return (vf)_mm_sqrt_ps((__m128)a);
#else
    vf r;
    for (int i = 0; i < IDA_VL; i++) r[i] = sqrtf(a[i]);
    return r;
#endif
}

/* Sum and maximum over lanes, halves folded onto each other: the order is the same on every call. */
#if defined(__SSE2__)
IDA_INLINE __m128 ida_fold_add(__m128 a) {
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_add_ss(a, _mm_shuffle_ps(a, a, 1));
}
IDA_INLINE __m128 ida_fold_max(__m128 a) {
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_max_ss(a, _mm_shuffle_ps(a, a, 1));
}
#endif
IDA_INLINE float vf_hsum(vf a) {
#if defined(__AVX512F__)
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256((__m512)a), _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)a, 1)));
    return _mm_cvtss_f32(ida_fold_add(_mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1))));
#elif defined(__AVX2__)
    return _mm_cvtss_f32(ida_fold_add(_mm_add_ps(_mm256_castps256_ps128((__m256)a), _mm256_extractf128_ps((__m256)a, 1))));
#elif defined(__SSE2__)
    return _mm_cvtss_f32(ida_fold_add((__m128)a));
#else
    return (a[0] + a[2]) + (a[1] + a[3]);
#endif
}
IDA_INLINE float vf_hmax(vf a) {
#if defined(__AVX512F__)
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256((__m512)a), _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)a, 1)));
    return _mm_cvtss_f32(ida_fold_max(_mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1))));
#elif defined(__AVX2__)
    return _mm_cvtss_f32(ida_fold_max(_mm_max_ps(_mm256_castps256_ps128((__m256)a), _mm256_extractf128_ps((__m256)a, 1))));
#elif defined(__SSE2__)
    return _mm_cvtss_f32(ida_fold_max((__m128)a));
#else
    float p = a[0] > a[2] ? a[0] : a[2], q = a[1] > a[3] ? a[1] : a[3];
    return p > q ? p : q;
#endif
}
IDA_INLINE double vd_hsum(vd a) {
#if defined(__AVX512F__)
    __m256d h = _mm256_add_pd(_mm512_castpd512_pd256((__m512d)a), _mm512_extractf64x4_pd((__m512d)a, 1));
    __m128d q = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));
    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
#elif defined(__AVX2__)
    __m128d q = _mm_add_pd(_mm256_castpd256_pd128((__m256d)a), _mm256_extractf128_pd((__m256d)a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
#else
    return a[0] + a[1];
#endif
}

/* Sum of squares: no overflow at any finite input. */
IDA_INLINE double vd_sum_squares(const float *x, int64_t n) {
    vd s0 = vd_zero(), s1 = vd_zero();
    int64_t i = 0;
    for (; i + IDA_VL <= n; i += IDA_VL) {
        vd a = vd_loadf(x + i), b = vd_loadf(x + i + IDA_VDL);
        s0 += a * a;
        s1 += b * b;
    }
    double s = vd_hsum(s0 + s1);
    for (; i < n; i++) s += (double)x[i] * (double)x[i];
    return s;
}

/* e^x for every float: within 2 units in the last place (also where the result is subnormal, absolutely), inf above
 * 88.7228, 0 below -104, NaN for NaN. x = n ln2 + r with |r| <= ln2/2; e^r = 1 + r + r^2 p(r), p interpolates at Chebyshev
 * points (relative error 2e-9). */
IDA_INLINE vf vf_exp(vf x) {
    const vf magic = vf_set1(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    x = vf_min(vf_set1(89.0f), x);
    x = vf_max(vf_set1(-104.0f), x);
    vf t = x * vf_set1(1.44269504f) + magic;
    vf n = t - magic;
    vf r = x - n * vf_set1(0.693145752f);
    r = r - n * vf_set1(1.42860682e-6f);
    vf p = vf_set1(0.00139262135f);
    p = p * r + vf_set1(0.00836320297f);
    p = p * r + vf_set1(0.0416665544f);
    p = p * r + vf_set1(0.166665768f);
    p = p * r + vf_set1(0.5f);
    vf y = (p * (r * r) + r) + vf_set1(1.0f);
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)y, (__m512)n);
#else
    /* Two factors, so that neither over- nor underflows on its own. */
    vi k = (vi)t - (vi)magic;
    vi half = k >> 1;
    vu s1 = ((vu)half + 127u) << 23, s2 = ((vu)(k - half) + 127u) << 23;
    return (y * (vf)s1) * (vf)s2;
#endif
}

/* 1 / (1 + e^-x) and x / (1 + e^-x). */
IDA_INLINE vf vf_sigmoid(vf x) { return vf_set1(1.0f) / (vf_set1(1.0f) + vf_exp(-x)); }
IDA_INLINE vf vf_silu(vf x) { return x / (vf_set1(1.0f) + vf_exp(-x)); }

#endif
