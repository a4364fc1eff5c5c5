/* sqsum.cu - sums of squares of spans, for gradient norms: blocks of CHUNK elements in double, then a span's blocks in order.
 * Invariant: a span's sum depends on its elements and its place modulo 16 bytes only, not on its neighbours. */
#include "ops/cuda/cuda_ops.h"

#include <stdlib.h>

#include "ops/cuda/vec.cuh"

namespace {

enum { THREADS = 256, CHUNK = 32768, DEPTH = 8 };

struct span_work {
    int64_t at, n, block; /* its first block */
};

VEC_DEV double square_sum(const float4 &v) {
    const double x = v.x, y = v.y, z = v.z, w = v.w;
    return fma(x, x, y * y) + fma(z, z, w * w);
}

/* The span that `block` belongs to: one reading by the whole block instead of a search. */
VEC_DEV int64_t find_span(const span_work *spans, int64_t n_spans, int64_t block, int64_t *found) {
    for (int64_t i = threadIdx.x; i < n_spans; i += THREADS) {
        const int64_t begin = spans[i].block, count = (spans[i].n + CHUNK - 1) / CHUNK;
        if (begin <= block && block < begin + count) *found = i;
    }
    __syncthreads();
    return *found;
}

__global__ void __launch_bounds__(THREADS)
    sqsum__blocks(double *partials, const float *x, const span_work *spans, int64_t n_spans) {
    __shared__ int64_t found;
    __shared__ double warps[32];
    const span_work span = spans[find_span(spans, n_spans, blockIdx.x, &found)];
    const int64_t begin = (blockIdx.x - span.block) * CHUNK;
    const int n = (int)(span.n - begin < CHUNK ? span.n - begin : CHUNK);
    const float *p = x + span.at + begin;
    const int tid = (int)threadIdx.x;
    /* single elements up to a multiple of 16 bytes and after the last one */
    const int head = min(n, (int)((16 - ((uintptr_t)p & 15)) & 15) / 4), quads = (n - head) / 4, rest = head + 4 * quads;
    double s = 0, t = 0;
    if (tid < head) s = (double)p[tid] * (double)p[tid];
    if (tid < n - rest) t = (double)p[rest + tid] * (double)p[rest + tid];
    const float4 *q = reinterpret_cast<const float4 *>(p + head);
    int i = tid;
    for (; i + (DEPTH - 1) * THREADS < quads; i += DEPTH * THREADS) {
        float4 v[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; k++) v[k] = q[i + k * THREADS];
#pragma unroll
        for (int k = 0; k < DEPTH; k += 2) s += square_sum(v[k]), t += square_sum(v[k + 1]);
    }
    for (; i < quads; i += THREADS) s += square_sum(q[i]);
    s = block_sum(s + t, warps);
    if (tid == 0) partials[blockIdx.x] = s;
}

__global__ void __launch_bounds__(THREADS) sqsum__spans(double *sums, const double *partials, const span_work *spans) {
    __shared__ double warps[32];
    const span_work span = spans[blockIdx.x];
    const int64_t count = (span.n + CHUNK - 1) / CHUNK;
    double s = 0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS) s += partials[span.block + i];
    s = block_sum(s, warps);
    if (threadIdx.x == 0) sums[blockIdx.x] = s;
}

} // namespace

ida_status ida_cuda_sqsum(const ida_device *dev, double *sums, const real *x, const ida_span *spans, int64_t n_spans) {
    if (n_spans == 0) return IDA_OK;
    cudaStream_t stream = ida_cuda_of(dev)->stream;
    const int64_t table_bytes = n_spans * (int64_t)sizeof(span_work), table_room = vec_div_up(table_bytes, 256) * 256;
    const int64_t sums_room = vec_div_up(n_spans * (int64_t)sizeof *sums, 256) * 256;
    ida_status st = IDA_OK;
    int64_t blocks = 0;
    char *scratch = NULL;
    span_work *table = (span_work *)malloc((size_t)table_bytes);
    IDA_FAIL_IF(!table, IDA_E_NOMEM, "sqsum: no memory for a table of %lld spans", (long long)n_spans);
    for (int64_t i = 0; i < n_spans; i++) {
        table[i].at = spans[i].at;
        table[i].n = spans[i].n;
        table[i].block = blocks;
        blocks += vec_div_up(spans[i].n, CHUNK);
    }
    do {
        if ((st = ida_cuda_scratch(dev, table_room + sums_room + blocks * (int64_t)sizeof(double), (void **)&scratch)) != IDA_OK)
            break;
        const span_work *work = (const span_work *)scratch;
        double *results = (double *)(scratch + table_room), *partials = (double *)(scratch + table_room + sums_room);
        st = ida_cuda_status((int)cudaMemcpyAsync(scratch, table, (size_t)table_bytes, cudaMemcpyHostToDevice, stream),
                             "sqsum: upload of the spans", __FILE__, __LINE__);
        if (st != IDA_OK) break;
        if (blocks > 0) sqsum__blocks<<<(unsigned)blocks, THREADS, 0, stream>>>(partials, x, work, n_spans);
        sqsum__spans<<<(unsigned)n_spans, THREADS, 0, stream>>>(results, partials, work);
        if ((st = IDA_CUDA_LAUNCHED("sqsum")) != IDA_OK) break;
        st = ida_cuda_status((int)cudaMemcpyAsync(sums, results, (size_t)n_spans * sizeof *sums, cudaMemcpyDeviceToHost, stream),
                             "sqsum: download", __FILE__, __LINE__);
    } while (0);
    /* also after a failure: the upload may still read the table */
    const int waited = (int)cudaStreamSynchronize(stream);
    free(table);
    IDA_TRY(st);
    return ida_cuda_status(waited, "sqsum", __FILE__, __LINE__);
}
