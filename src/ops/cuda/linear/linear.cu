/* linear.cu - y = x W^T (+ c), dx, dW (ops.h "linear") by cuBLASLt, by a kernel of ours for few rows (linear/few.cu), and by a
 * plain tiled one where cuBLASLt has no algorithm (some odd sizes in bf16). Sums in fp32; float tensors are multiplied as floats,
 * never as tf32.
 *
 * cuBLASLt is column-major: a row-major [r,c] array is its c x r matrix with leading dimension c. All three products are
 * D (m x n) = A (m x k) B (k x n) + beta C:
 *      fwd  y^T  [out,N]  = W   [out,in] x^T  [in,N]      A transposed
 *      dx   dx^T [in,N]   = W^T [in,out] dy^T [out,N]     neither
 *      dw   dW^T [in,out] = x^T [in,N]   dy   [N,out]     B transposed
 * Invariant: the algorithm is a function of shape, alignment, chip and library, never of a timing; those that add up partial sums
 * with atomics are not taken. So equal calls give equal bits. */
#include <string.h>

#include <cublasLt.h>

#include "ops/cuda/cuda_device.h"
#include "ops/cuda/linear/few.h"
#include "ops/cuda/vec.cuh"

typedef enum product { FWD, DX, DW } product;

/* No padding: compared and hashed as bytes. */
typedef struct key {
    int64_t m, n, k;
    int32_t product, beta, align[4]; /* of A, B, C, D in bytes, at most 16 */
} key;

typedef struct plan {
    key key;
    bool used, fallback;
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, d; /* C's is D's */
    cublasLtMatmulAlgo_t algo;
} plan;

enum { PLANS = 1024, MOST_PLANS = 700, CANDIDATES = 16 };
struct ida_cuda_plans {
    bool told; /* that there was no algorithm */
    int used;
    plan plans[PLANS]; /* open addressing */
};

/* ---- the kernel for what cuBLASLt does not take */

enum { TILE = 32, DEPTH = 16, THREADS = 256, ROWS = THREADS / TILE };

/* Element (i,p) of A is at i * a_row + p * a_k, (p,j) of B at p * b_k + j * b_col; D and C are column-major, C NULL = 0. */
typedef struct strides {
    int64_t m, n, k, a_row, a_k, b_k, b_col, tiles_m;
} strides;

template <class T, class TD>
static __global__ void __launch_bounds__(THREADS)
    linear__tiles_any_alignment(TD *d, const T *a, const T *b, const TD *c, const strides s) {
    __shared__ float as[DEPTH][TILE + 1], bs[DEPTH][TILE + 1];
    const int64_t row0 = (int64_t)(blockIdx.x % s.tiles_m) * TILE, col0 = (int64_t)(blockIdx.x / s.tiles_m) * TILE;
    const int lane = threadIdx.x % TILE, warp = threadIdx.x / TILE;
    float sum[TILE / ROWS] = {};
    for (int64_t p0 = 0; p0 < s.k; p0 += DEPTH) {
        for (int e = threadIdx.x; e < TILE * DEPTH; e += THREADS) {
            /* neighbouring threads along the contiguous direction */
            const int ai = s.a_k == 1 ? e / DEPTH : e % TILE, ap = s.a_k == 1 ? e % DEPTH : e / TILE;
            const int bj = s.b_k == 1 ? e / DEPTH : e % TILE, bp = s.b_k == 1 ? e % DEPTH : e / TILE;
            const bool a_in = row0 + ai < s.m && p0 + ap < s.k, b_in = col0 + bj < s.n && p0 + bp < s.k;
            as[ap][ai] = a_in ? to_float(a[(row0 + ai) * s.a_row + (p0 + ap) * s.a_k]) : 0.0f;
            bs[bp][bj] = b_in ? to_float(b[(p0 + bp) * s.b_k + (col0 + bj) * s.b_col]) : 0.0f;
        }
        __syncthreads();
        for (int p = 0; p < DEPTH; p++)
#pragma unroll
            for (int r = 0; r < TILE / ROWS; r++) sum[r] += as[p][lane] * bs[p][warp + r * ROWS];
        __syncthreads(); /* else the next tiles overwrite what others still read */
    }
    for (int r = 0; r < TILE / ROWS; r++) {
        const int64_t i = row0 + lane, j = col0 + warp + r * ROWS;
        if (i >= s.m || j >= s.n) continue;
        from_float(c ? sum[r] + to_float(c[i + j * s.m]) : sum[r], &d[i + j * s.m]);
    }
}

template <class T, class TD>
static ida_status run_tiles(const ida_device *dev, const key *q, void *d, const void *a, const void *b, const void *c) {
    strides s;
    s.m = q->m, s.n = q->n, s.k = q->k;
    s.a_row = q->product == FWD ? q->k : 1, s.a_k = q->product == FWD ? 1 : q->m;
    s.b_k = q->product == DW ? q->n : 1, s.b_col = q->product == DW ? 1 : q->k;
    s.tiles_m = (q->m + TILE - 1) / TILE;
    const int64_t tiles_n = (q->n + TILE - 1) / TILE;
    IDA_FAIL_IF(s.tiles_m > INT32_MAX / tiles_n, IDA_E_UNSUPPORTED,
                "a matrix product of %lld x %lld x %lld is too large for this device", (long long)q->m, (long long)q->n,
                (long long)q->k);
    linear__tiles_any_alignment<T, TD><<<(unsigned)(s.tiles_m * tiles_n), THREADS, 0, ida_cuda_of(dev)->stream>>>(
        (TD *)d, (const T *)a, (const T *)b, (const TD *)c, s);
    return IDA_CUDA_LAUNCHED("linear");
}

/* ---- cuBLASLt */

static ida_status blas_status(cublasStatus_t s, const char *what, const key *q) {
    if (s == CUBLAS_STATUS_SUCCESS) return IDA_OK;
    IDA_FAIL(s == CUBLAS_STATUS_ALLOC_FAILED ? IDA_E_NOMEM : IDA_E_IO,
             "cuda: cuBLASLt, %s of a product of %lld x %lld x %lld: %s", what, (long long)q->m, (long long)q->n, (long long)q->k,
             cublasLtGetStatusString(s));
}

static cublasStatus_t set(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t attr, uint32_t v) {
    return cublasLtMatmulPreferenceSetAttribute(p, attr, &v, sizeof v);
}

static cublasStatus_t describe(plan *p, const key *q, bool bf16) {
    const cudaDataType_t in = bf16 ? CUDA_R_16BF : CUDA_R_32F, out = q->product == DW ? CUDA_R_32F : in;
    const cublasOperation_t ta = q->product == FWD ? CUBLAS_OP_T : CUBLAS_OP_N, tb = q->product == DW ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t m = (uint64_t)q->m, n = (uint64_t)q->n, k = (uint64_t)q->k;
    cublasStatus_t s = cublasLtMatmulDescInit(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s) s = cublasLtMatmulDescSetAttribute(&p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    if (!s) s = cublasLtMatmulDescSetAttribute(&p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    if (!s)
        s = q->product == FWD ? cublasLtMatrixLayoutInit(&p->a, in, k, m, q->k) : cublasLtMatrixLayoutInit(&p->a, in, m, k, q->m);
    if (!s)
        s = q->product == DW ? cublasLtMatrixLayoutInit(&p->b, in, n, k, q->n) : cublasLtMatrixLayoutInit(&p->b, in, k, n, q->k);
    if (!s) s = cublasLtMatrixLayoutInit(&p->d, out, m, n, q->m);
    return s;
}

/* The first algorithm of the library's own ranking that keeps the invariant. */
static cublasStatus_t choose(cublasLtHandle_t handle, plan *p, const key *q) {
    static const cublasLtMatmulPreferenceAttributes_t align[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t workspace = IDA_CUDA_GEMM_WORKSPACE;
    cublasLtMatmulPreferenceOpaque_t pref;
    cublasStatus_t s = cublasLtMatmulPreferenceInit(&pref);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    if (!s) s = set(&pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    for (int i = 0; i < 4 && !s; i++) s = set(&pref, align[i], (uint32_t)q->align[i]);
    if (s) return s;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = 0;
    s = cublasLtMatmulAlgoGetHeuristic(handle, &p->desc, &p->a, &p->b, &p->d, &p->d, &pref, CANDIDATES, found, &n);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE) n = 0;
    else if (s) return s;
    for (int i = 0; i < n; i++) {
        uint32_t scheme = 0;
        size_t written = 0;
        cublasLtMatmulHeuristicResult_t check;
        /* the preference says so already; an algorithm that has no such setting adds up nothing */
        if (cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme,
                                                 &written))
            scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
        if (found[i].state || found[i].workspaceSize > workspace ||
            (scheme != CUBLASLT_REDUCTION_SCHEME_NONE && scheme != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) ||
            cublasLtMatmulAlgoCheck(handle, &p->desc, &p->a, &p->b, &p->d, &p->d, &found[i].algo, &check))
            continue;
        p->algo = found[i].algo;
        return CUBLAS_STATUS_SUCCESS;
    }
    p->fallback = true;
    return CUBLAS_STATUS_SUCCESS;
}

static uint64_t hash(const key *q) {
    uint64_t words[sizeof(key) / sizeof(uint64_t)], h = 0x9e3779b97f4a7c15u;
    memcpy(words, q, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) h = (h ^ words[i]) * 0xff51afd7ed558ccdu, h ^= h >> 32;
    return h;
}

static ida_status plan_of(const ida_device *dev, const key *q, const plan **out) {
    static_assert(sizeof(key) == 6 * sizeof(uint64_t), "key has padding");
    ida_cuda_priv *priv = ida_cuda_priv_of(dev);
    if (!priv->plans) IDA_TRY(IDA_CALLOC(priv->plans, 1, "the plans of matrix products"));
    ida_cuda_plans *all = priv->plans;
    uint64_t at = hash(q) % PLANS;
    for (; all->plans[at].used; at = (at + 1) % PLANS) {
        if (memcmp(&all->plans[at].key, q, sizeof *q) != 0) continue;
        *out = &all->plans[at];
        return IDA_OK;
    }
    if (all->used >= MOST_PLANS) { /* many lengths have passed by: begin again */
        memset(all->plans, 0, sizeof all->plans);
        all->used = 0;
        at = hash(q) % PLANS;
    }
    plan p;
    memset(&p, 0, sizeof p);
    p.key = *q;
    p.used = true;
    if (q->k == 0) p.fallback = true;
    else {
        IDA_TRY(blas_status(describe(&p, q, ida_cuda_of(dev)->bf16), "the description", q));
        IDA_TRY(blas_status(choose((cublasLtHandle_t)ida_cuda_of(dev)->cublaslt, &p, q), "the choice of an algorithm", q));
        if (p.fallback && !all->told) {
            ida_log("%s: cuBLASLt has no algorithm for a product of %lld x %lld x %lld: a slower kernel is used for such sizes",
                    priv->label, (long long)q->m, (long long)q->n, (long long)q->k);
            all->told = true;
        }
    }
    const int64_t largest = q->m > q->n ? (q->m > q->k ? q->m : q->k) : (q->n > q->k ? q->n : q->k);
    IDA_FAIL_IF(p.fallback && largest > INT32_MAX, IDA_E_UNSUPPORTED,
                "cuBLASLt has no product of %lld x %lld x %lld: a size is beyond %d", (long long)q->m, (long long)q->n,
                (long long)q->k, INT32_MAX);
    all->plans[at] = p;
    all->used++;
    *out = &all->plans[at];
    return IDA_OK;
}

void ida_cuda_plans_free(const ida_device *dev) {
    ida_free(ida_cuda_priv_of(dev)->plans);
    ida_cuda_priv_of(dev)->plans = NULL;
}

static int32_t alignment(const void *p) {
    const uintptr_t a = (uintptr_t)p, lowest = a & (~a + 1);
    return lowest == 0 || lowest > 16 ? 16 : (int32_t)lowest;
}

/* D = A B (+ C; NULL = none). */
static ida_status multiply(const ida_device *dev, product what, void *d, const void *a, const void *b, const void *c, int64_t m,
                           int64_t n, int64_t k) {
    if (m == 0 || n == 0) return IDA_OK;
    const key q = {m, n, k, what, c != NULL, {alignment(a), alignment(b), alignment(c ? c : d), alignment(d)}};
    const plan *p;
    IDA_TRY(plan_of(dev, &q, &p));
    if (p->fallback) {
        if (!ida_cuda_of(dev)->bf16) return run_tiles<float, float>(dev, &q, d, a, b, c);
        return what == DW ? run_tiles<__nv_bfloat16, float>(dev, &q, d, a, b, c)
                          : run_tiles<__nv_bfloat16, __nv_bfloat16>(dev, &q, d, a, b, c);
    }
    const float one = 1.0f, beta = c ? 1.0f : 0.0f;
    return blas_status(cublasLtMatmul((cublasLtHandle_t)ida_cuda_of(dev)->cublaslt, (cublasLtMatmulDescOpaque_t *)&p->desc, &one,
                                      a, (cublasLtMatrixLayoutOpaque_t *)&p->a, b, (cublasLtMatrixLayoutOpaque_t *)&p->b, &beta,
                                      c ? c : d, (cublasLtMatrixLayoutOpaque_t *)&p->d, d, (cublasLtMatrixLayoutOpaque_t *)&p->d,
                                      &p->algo, ida_cuda_priv_of(dev)->gemm_workspace, IDA_CUDA_GEMM_WORKSPACE,
                                      ida_cuda_of(dev)->stream),
                       "the launch", &q);
}

extern "C" ida_status ida_cuda_linear_fwd(const ida_device *dev, ida_act *y, const ida_act *x, const ida_matrix *w,
                                          const ida_act *c, int64_t n) {
    const void *weight = ida_matrix_as(w, dev->act_type);
    const ida_few_product few = {.y = y, .x = x, .c = c, .w = weight, .n = n, .in = w->cols, .out = w->rows};
    if (ida_linear_few(dev, &few)) return ida_linear_few_fwd(dev, &few);
    return multiply(dev, FWD, y, weight, x, c, w->rows, n, w->cols);
}

extern "C" ida_status ida_cuda_linear_bwd(const ida_device *dev, ida_act *dx, real *dw, const ida_act *dy, const ida_act *x,
                                          const ida_matrix *w, int64_t n, bool add) {
    const void *weight = ida_matrix_as(w, dev->act_type);
    if (dx) IDA_TRY(multiply(dev, DX, dx, weight, dy, add ? dx : NULL, w->cols, n, w->rows));
    if (dw && n > 0) IDA_TRY(multiply(dev, DW, dw, x, dy, dw, w->cols, w->rows, n));
    return IDA_OK;
}
