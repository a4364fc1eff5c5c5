/* mixer_core_cuda.c - how fast the CUDA mixer core runs: median milliseconds of the forward and of the backward over a range of
 * shapes, beside the floors. A line is printed only when, at that very shape, the tuned path agrees with the generic fp32 path.
 *
 *     mixer_core_cuda [repeats=20] [tokens=32768] [heads=32] [T ...] */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bf16.h"
#include "core/rng.h"
#include "ops/cuda/interdomain.h"

enum { M = 64, W = 64 };
static const double TB_PER_S = 4.24, TFLOP_PER_S = 735;

static void cuda(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}
static void *device(int64_t bytes) {
    void *p;
    cuda(cudaMalloc(&p, (size_t)bytes), "cudaMalloc");
    return p;
}

/* n numbers of a repeating random block: cheap to make, never zero. */
static void *filled(int64_t n, uint64_t stream, double scale, double shift, bool bf16) {
    enum { BLOCK = 1 << 20 };
    const int64_t block = n < BLOCK ? n : BLOCK, size = bf16 ? 2 : 4;
    char *host = malloc((size_t)(block * size)), *p = device(n * size);
    for (int64_t i = 0; i < block; i++) {
        const float x = (float)(shift + scale * ida_normal(1, stream, (uint64_t)i));
        if (bf16)
            ((uint16_t *)(void *)host)[i] = ida_f32_to_bf16(x);
        else
            ((float *)(void *)host)[i] = x;
    }
    /* blocks of odd length, so that rows do not repeat in step with the shape */
    for (int64_t at = 0; at < n; at += block - 1) {
        const int64_t count = n - at < block - 1 ? n - at : block - 1;
        cuda(cudaMemcpy(p + at * size, host, (size_t)(count * size), cudaMemcpyHostToDevice), "copy");
        if (block == n && count == n - at) break;
    }
    if (n > 0 && block == n) cuda(cudaMemcpy(p, host, (size_t)(n * size), cudaMemcpyHostToDevice), "copy");
    free(host);
    return p;
}

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

typedef struct timing {
    float median, best, worst;
} timing;

static timing time_ms(const ida_cuda_interdomain *a, void *scratch, bool bwd, int repeats) {
    float *ms = malloc((size_t)repeats * sizeof *ms);
    cudaEvent_t from, to;
    cuda(cudaEventCreate(&from), "event");
    cuda(cudaEventCreate(&to), "event");
    for (int i = -3; i < repeats; i++) {
        cuda(cudaEventRecord(from, NULL), "event");
        cuda((cudaError_t)(bwd ? ida_cuda_interdomain_bwd(a, scratch, NULL) : ida_cuda_interdomain_fwd(a, scratch, NULL)),
             "launch");
        cuda(cudaEventRecord(to, NULL), "event");
        cuda(cudaEventSynchronize(to), "kernels");
        if (i >= 0) cuda(cudaEventElapsedTime(&ms[i], from, to), "time");
    }
    qsort(ms, (size_t)repeats, sizeof *ms, by_size);
    const timing t = {ms[repeats / 2], ms[0], ms[repeats - 1]};
    free(ms);
    return t;
}

static double apart(const void *x, const void *y, int64_t n) {
    uint16_t *a = malloc((size_t)n * 2), *b = malloc((size_t)n * 2);
    cuda(cudaMemcpy(a, x, (size_t)n * 2, cudaMemcpyDeviceToHost), "copy");
    cuda(cudaMemcpy(b, y, (size_t)n * 2, cudaMemcpyDeviceToHost), "copy");
    double diff = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        const double u = (double)ida_bf16_to_f32(a[i]), v = (double)ida_bf16_to_f32(b[i]);
        diff += (u - v) * (u - v);
        size += v * v;
    }
    free(a);
    free(b);
    return sqrt(diff / size);
}

int main(int argc, char **argv) {
    const int repeats = argc > 1 ? atoi(argv[1]) : 20;
    const int64_t tokens = argc > 2 ? atoll(argv[2]) : 32768, h = argc > 3 ? atoll(argv[3]) : 32;
    const char *lengths[] = {"2048", "4096", "8192", "16384", "32768"};
    char **list = argc > 4 ? argv + 4 : (char **)lengths;
    const int n_list = argc > 4 ? argc - 4 : 5;
    const int64_t n = tokens * h * W, gm = h * M;
    ida_cuda_interdomain a = {.h = h, .g = h, .r = W, .d = W, .m = M, .bf16 = true};
    a.q = filled(n, 1, 0.125, 0.05, true), a.k = filled(n, 2, 1, 0, true), a.v = filled(n, 3, 1, 0, true),
    a.dout = filled(n, 4, 1, 0, true);
    float *log_dt = filled(h, 5, 1, -4.5, false), *a_imag = malloc((size_t)gm * 4), *a_imag_dev = device(gm * 4);
    for (int64_t i = 0; i < gm; i++) a_imag[i] = 3.14159265f * (float)(i % M);
    cuda(cudaMemcpy(a_imag_dev, a_imag, (size_t)gm * 4, cudaMemcpyHostToDevice), "copy");
    a.ssm = (ida_ssm){log_dt,
                      filled(gm, 6, 0.05, -0.7, false),
                      a_imag_dev,
                      filled(gm * M, 7, 0.088, 0, false),
                      filled(gm * M, 8, 0.088, 0, false),
                      IDA_DISC_ZOH};
    float *grads = filled(h + 2 * gm + 2 * gm * M, 9, 0, 0, false);
    a.dssm = (ida_ssm_grads){grads, grads + h, grads + h + gm, grads + h + 2 * gm, grads + h + 2 * gm + gm * M};
    void *out[2][4];
    for (int i = 0; i < 8; i++) out[i / 4][i % 4] = device(n * 2);
    int bad = 0;
    printf("tokens %lld, heads %lld, M = R = D = 64, bf16; ms, median of %d (best, worst)\n", (long long)tokens, (long long)h,
           repeats);
    const double flop_fwd = 147456.0 * (double)(tokens * h), flop_bwd = 51.0 / 18.0 * flop_fwd;
    const double bytes_fwd = (double)n * 8, bytes_bwd = (double)n * 14;
    printf("floors: forward %.2f (flops) %.2f (bytes), backward %.2f %.2f\n", flop_fwd / TFLOP_PER_S * 1e-9,
           bytes_fwd / TB_PER_S * 1e-9, flop_bwd / TFLOP_PER_S * 1e-9, bytes_bwd / TB_PER_S * 1e-9);
    for (int l = 0; l < n_list; l++) {
        const int64_t t = atoll(list[l]), b = tokens / t;
        int64_t *cu = malloc((size_t)(b + 1) * sizeof *cu);
        for (int64_t i = 0; i <= b; i++) cu[i] = i * t;
        a.n_seq = b, a.cu = cu;
        double error[4];
        for (int way = 1; way >= 0; way--) { /* the generic path first: chunk 32 asks for it */
            a.chunk = way ? 32 : 0;
            a.o = out[way][0], a.dq = out[way][1], a.dk = out[way][2], a.dv = out[way][3];
            for (int i = 0; i < 4; i++) cuda(cudaMemset(out[way][i], 0xff, (size_t)n * 2), "poison");
            const int64_t f = ida_cuda_interdomain_fwd_scratch_bytes(&a), w = ida_cuda_interdomain_bwd_scratch_bytes(&a);
            void *scratch = device(f > w ? f : w);
            cuda((cudaError_t)ida_cuda_interdomain_fwd(&a, scratch, NULL), "forward");
            cuda((cudaError_t)ida_cuda_interdomain_bwd(&a, scratch, NULL), "backward");
            cuda(cudaDeviceSynchronize(), "kernels");
            if (way == 0) {
                bool good = true;
                for (int i = 0; i < 4; i++) {
                    error[i] = apart(out[0][i], out[1][i], n);
                    good = good && error[i] < 2e-2;
                }
                printf("T %6lld  apart from fp32: o %.1e dq %.1e dk %.1e dv %.1e", (long long)t, error[0], error[1], error[2],
                       error[3]);
                if (good) {
                    const timing x = time_ms(&a, scratch, false, repeats), y = time_ms(&a, scratch, true, repeats);
                    printf("  forward %.3f (%.3f, %.3f)  backward %.3f (%.3f, %.3f)  both %.3f  scratch %.0f MB\n",
                           (double)x.median, (double)x.best, (double)x.worst, (double)y.median, (double)y.best, (double)y.worst,
                           (double)(x.median + y.median), (double)(f > w ? f : w) * 1e-6);
                } else {
                    printf("  WRONG: no speed\n");
                    bad = 1;
                }
                fflush(stdout);
            }
            cuda(cudaFree(scratch), "free");
        }
        free(cu);
    }
    return bad;
}
