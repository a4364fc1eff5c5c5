/* embed.cu - token embedding. Backward without float atomics: (id, token) pairs are sorted by id, stably, and the sorted list is
 * cut into windows of WINDOW places. A block adds the rows of its window, in token order, in fp32; an id that lies in one window
 * is added to the table there, an id that runs over several leaves a sum in each, which a second kernel adds in double, in fixed
 * order. Invariant: bits depend on ids, n and d only. The list of ids that run on is made with an integer atomic: its order is
 * free, and no sum depends on it. */
#include "ops/cuda/cuda_ops.h"

#include <assert.h>
#include <limits.h>

#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/vec.cuh"

namespace {

enum { WARPS = 8, WINDOW = 32, BATCH = 4, COLUMNS = 256, JOIN_WARPS = 8, JOIN_DEPTH = 4, JOIN_BLOCKS = 1024 };

/* A warp a row, DEPTH pieces of V elements at a time. */
template <class T, int V> __global__ void __launch_bounds__(WARPS * 32)
    embed_fwd__warp_per_row(T *y, const int32_t *ids, const T *table, int64_t n, int64_t d) {
    enum { DEPTH = 4 };
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= n) return;
    const int64_t pieces = d / V;
    const T *from = table + (int64_t)ids[row] * d;
    T *to = y + row * d;
    for (int64_t i = threadIdx.x & 31; i < pieces; i += DEPTH * 32) {
        piece<T, V> p[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            if (i + k * 32 < pieces) p[k] = load_piece<V>(from + (i + k * 32) * V);
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            if (i + k * 32 < pieces) store_piece(to + (i + k * 32) * V, p[k]);
    }
}

/* Also empties the list of runs. */
__global__ void __launch_bounds__(256) embed_bwd__number_tokens(int32_t *tokens, int *n_runs, int n) {
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i < n) tokens[i] = (int32_t)i;
    if (i == 0) *n_runs = 0;
}

/* One window (blockIdx.x) and a slice of the columns (blockIdx.y), V columns a thread. ids, tokens [n]: sorted.
 * partials [windows, 2, d]: of an id that came from the window before (0), of one that begins here and goes on (1); written only
 * where there is one. runs: the windows in which an id begins that goes on. */
template <class T, int V> __global__ void __launch_bounds__(COLUMNS)
    embed_bwd__add_windows(float *dtable, float *partials, int32_t *runs, int *n_runs, const uint32_t *ids, const int32_t *tokens,
                           const T *dy, int n, int64_t d) {
    __shared__ uint32_t id[WINDOW + 2]; /* id[1 + i] of place i; the neighbours' at both ends */
    __shared__ int32_t token[WINDOW];
    const int64_t begin = (int64_t)blockIdx.x * WINDOW, column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * V;
    const int count = (int)min((int64_t)WINDOW, n - begin);
    for (int i = (int)threadIdx.x; i < count + 2; i += (int)blockDim.x) {
        const int64_t place = begin + i - 1;
        /* beyond the ends: other than any id, which is below 2^31 */
        id[i] = place >= 0 && place < n ? ids[place] : 0xffffffffu;
        if (i >= 1 && i <= count) token[i - 1] = tokens[place];
    }
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.y == 0 && id[count] == id[count + 1] && id[count] != id[0])
        runs[atomicAdd(n_runs, 1)] = (int32_t)blockIdx.x;
    if (column >= d) return;
    float *part = partials + (int64_t)blockIdx.x * 2 * d + column;
    float sum[V] = {};
    bool from_before = id[0] == id[1];
    for (int first = 0; first < count; first += BATCH) {
        piece<T, V> row[BATCH];
        float old[BATCH][V];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int i = first + k;
            if (i < count) row[k] = load_piece<V>(dy + token[i] * d + column);
        }
        /* what the rows that end here will be added to; not used for the id that came from before */
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int i = first + k;
            if (i < count && id[i + 1] != id[i + 2]) load_real<V>(dtable + id[i + 1] * d + column, old[k]);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int i = first + k;
            if (i >= count) break;
            float v[V];
            unpack(row[k], v);
#pragma unroll
            for (int e = 0; e < V; e++) sum[e] += v[e];
            if (id[i + 1] == id[i + 2]) continue;
            if (from_before) store_real<V>(part, sum);
            else {
#pragma unroll
                for (int e = 0; e < V; e++) old[k][e] += sum[e];
                store_real<V>(dtable + id[i + 1] * d + column, old[k]);
            }
#pragma unroll
            for (int e = 0; e < V; e++) sum[e] = 0;
            from_before = false;
        }
    }
    if (id[count] == id[count + 1]) store_real<V>(part + (from_before ? 0 : d), sum);
}

/* dtable += the sums of each run: its first window's, and those of the windows after it that begin with its id. A block takes
 * runs and slices of 32 V columns in turn. */
template <int V> __global__ void __launch_bounds__(32 * JOIN_WARPS)
    embed_bwd__join_windows(float *dtable, const float *partials, const int32_t *runs, const int *n_runs, const uint32_t *ids,
                            int n, int64_t d) {
    __shared__ double shared[JOIN_WARPS][V][32];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    const int64_t slices = (d + 32 * V - 1) / (32 * V), items = slices * *n_runs, windows = ((int64_t)n + WINDOW - 1) / WINDOW;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const int64_t first = runs[item / slices], column = (item % slices * 32 + lane) * V;
        const uint32_t id = ids[first * WINDOW + WINDOW - 1];
        double s[V] = {};
        bool more = true;
        for (int64_t w = first + 1 + warp; more; w += JOIN_WARPS * JOIN_DEPTH) {
            float v[JOIN_DEPTH][V] = {};
#pragma unroll
            for (int k = 0; k < JOIN_DEPTH; k++) {
                const int64_t at = w + k * JOIN_WARPS;
                more = at < windows && ids[at * WINDOW] == id;
                if (more && column < d) load_real<V>(partials + at * 2 * d + column, v[k]);
            }
#pragma unroll
            for (int k = 0; k < JOIN_DEPTH; k++)
#pragma unroll
                for (int e = 0; e < V; e++) s[e] += (double)v[k][e];
        }
#pragma unroll
        for (int e = 0; e < V; e++) shared[warp][e][lane] = s[e];
        __syncthreads();
        if (warp == 0 && column < d) {
            float v[V], old[V];
            load_real<V>(partials + (first * 2 + 1) * d + column, v);
            load_real<V>(dtable + id * d + column, old);
#pragma unroll
            for (int e = 0; e < V; e++) {
                double sum = (double)v[e];
                for (int i = 0; i < JOIN_WARPS; i++) sum += shared[i][e][lane];
                old[e] = (float)((double)old[e] + sum);
            }
            store_real<V>(dtable + id * d + column, old);
        }
        __syncthreads(); /* shared is written again for the next item */
    }
}

template <class T> void launch_fwd(const ida_device *dev, T *y, const int32_t *ids, const T *table, int64_t n, int64_t d) {
    constexpr int V = VEC<T>;
    const unsigned grid = (unsigned)vec_div_up(n, WARPS);
    cudaStream_t stream = ida_cuda_of(dev)->stream;
    if (d % V == 0 && vec_aligned(y, table)) embed_fwd__warp_per_row<T, V><<<grid, WARPS * 32, 0, stream>>>(y, ids, table, n, d);
    else embed_fwd__warp_per_row<T, 1><<<grid, WARPS * 32, 0, stream>>>(y, ids, table, n, d);
}

/* Cuts scratch into what the backward needs. base NULL: only the size. */
struct bwd_scratch {
    uint32_t *ids;
    int32_t *numbers, *tokens, *runs;
    int *n_runs;
    float *partials;
    void *sort;
    int64_t bytes;
};
bwd_scratch cut_scratch(char *base, int64_t n, int64_t d, size_t sort_bytes) {
    bwd_scratch s;
    int64_t at = 0;
    auto take = [&](int64_t bytes) {
        char *p = base ? base + at : NULL;
        at += vec_div_up(bytes, 256) * 256;
        return (void *)p;
    };
    s.ids = (uint32_t *)take(n * 4);
    s.numbers = (int32_t *)take(n * 4);
    s.tokens = (int32_t *)take(n * 4);
    s.runs = (int32_t *)take(vec_div_up(n, WINDOW) * 4);
    s.n_runs = (int *)take(4);
    s.partials = (float *)take(vec_div_up(n, WINDOW) * 2 * d * 4);
    s.sort = take((int64_t)sort_bytes);
    s.bytes = at;
    return s;
}

template <class T, int V>
void launch_sums(float *dtable, const bwd_scratch &s, const T *dy, int64_t n, int64_t d, cudaStream_t stream) {
    const int64_t threads = vec_min(COLUMNS, vec_div_up(d / V, 32) * 32), windows = vec_div_up(n, WINDOW);
    const dim3 grid((unsigned)windows, (unsigned)vec_div_up(d / V, threads));
    embed_bwd__add_windows<T, V>
        <<<grid, (unsigned)threads, 0, stream>>>(dtable, s.partials, s.runs, s.n_runs, s.ids, s.tokens, dy, (int)n, d);
    if (windows == 1) return;
    const unsigned most = (unsigned)vec_min(JOIN_BLOCKS, (windows - 1) * vec_div_up(d, 32 * V));
    embed_bwd__join_windows<V><<<most, 32 * JOIN_WARPS, 0, stream>>>(dtable, s.partials, s.runs, s.n_runs, s.ids, (int)n, d);
}

template <class T>
ida_status run_bwd(const ida_device *dev, float *dtable, const int32_t *ids, const T *dy, int64_t n, int64_t vocab, int64_t d) {
    cudaStream_t stream = ida_cuda_of(dev)->stream;
    const uint32_t *keys = (const uint32_t *)ids;
    size_t sort_bytes = 0;
    int bits = 1;
    void *base = NULL;
    while (bits < 31 && (vocab - 1) >> bits) bits++;
    IDA_CUDA_TRY(cub::DeviceRadixSort::SortPairs(NULL, sort_bytes, keys, (uint32_t *)NULL, (const int32_t *)NULL, (int32_t *)NULL,
                                                 (int)n, 0, bits, stream));
    IDA_TRY(ida_cuda_scratch(dev, cut_scratch(NULL, n, d, sort_bytes).bytes, &base));
    const bwd_scratch s = cut_scratch((char *)base, n, d, sort_bytes);
    embed_bwd__number_tokens<<<(unsigned)vec_div_up(n, 256), 256, 0, stream>>>(s.numbers, s.n_runs, (int)n);
    IDA_TRY(IDA_CUDA_LAUNCHED("embed_bwd: token numbers"));
    IDA_CUDA_TRY(cub::DeviceRadixSort::SortPairs(s.sort, sort_bytes, keys, s.ids, s.numbers, s.tokens, (int)n, 0, bits, stream));
    if (d % 4 == 0 && vec_aligned(dtable, dy)) launch_sums<T, 4>(dtable, s, dy, n, d, stream);
    else launch_sums<T, 1>(dtable, s, dy, n, d, stream);
    return IDA_CUDA_LAUNCHED("embed_bwd: sums");
}

} // namespace

ida_status ida_cuda_embed_fwd(const ida_device *dev, ida_act *y, const int32_t *ids, const ida_matrix *table, int64_t n) {
    const void *rows = ida_matrix_as(table, dev->act_type);
    if (n == 0) return IDA_OK;
    IDA_CUDA_ACT(dev, T, launch_fwd(dev, (T *)(void *)y, ids, (const T *)rows, n, table->cols));
    return IDA_CUDA_LAUNCHED("embed_fwd");
}

ida_status ida_cuda_embed_bwd(const ida_device *dev, real *dtable, const int32_t *ids, const ida_act *dy, int64_t n,
                              int64_t vocab, int64_t d) {
    ida_status st = IDA_OK;
    assert(vocab <= (int64_t)INT_MAX + 1);
    IDA_FAIL_IF(n > INT_MAX - WINDOW, IDA_E_UNSUPPORTED, "embed_bwd: %lld tokens in one batch, at most %d: use smaller batches",
                (long long)n, INT_MAX - WINDOW);
    if (n == 0) return IDA_OK;
    IDA_CUDA_ACT(dev, T, st = run_bwd(dev, dtable, ids, (const T *)(const void *)dy, n, vocab, d));
    return st;
}
