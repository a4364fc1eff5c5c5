/* mixer_core_cuda.c - how fast the CUDA mixer core runs: median milliseconds of the forward and of the backward over a range of
 * shapes, beside the floors. A line is printed only when, at that very shape, the tuned path agrees with the generic fp32 path.
 *
 * tokens may be a number of sequences instead, as 8T: then the tokens grow with T.
 *
 *     mixer_core_cuda [repeats=20] [tokens=32768] [heads=32] [RxDxM=64x64x64] [T ...] */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bf16.h"
#include "core/rng.h"
#include "ops/cuda/arch.h"
#include "ops/cuda/interdomain/interdomain.h"

typedef struct shape {
    int64_t h, r, d, m;
} shape;
/* Of the products of a chunk of 64, one token and head; tensors read or written once. */
typedef struct floors {
    double flop[2], bytes[2];
} floors;
static floors floors_of(const shape *s) {
    const double c = 64, r = (double)s->r, d = (double)s->d, w = r + d, m2 = 2 * (double)s->m;
    const double chain = c * w + m2 * (2 * c + w), state = m2 * w; /* S, a, P and o */
    floors f = {.flop = {2 * (chain + m2 * m2 + state), 0}, .bytes = {4 * w, 2 * (4 * r + 3 * d)}};
    /* S and dP; T and dB; P and dS; gg twice and dG; dQ, dK, dV; dF~; states forwards, and backwards with dX~ */
    f.flop[1] = 2 * (c * w + m2 * (2 * c + w) + 2 * c * m2 + 3 * m2 * m2 + (c + m2) * (r + w) + m2 * (2 * c + w) + 2 * state);
    return f;
}
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

static void launch(const ida_cuda_interdomain *a, void *scratch, bool bwd) {
    cuda((cudaError_t)(bwd ? ida_cuda_interdomain_bwd(a, scratch, NULL) : ida_cuda_interdomain_fwd(a, scratch, NULL)), "launch");
}

static timing time_ms(const ida_cuda_interdomain *a, void *scratch, bool bwd, int repeats) {
    float *ms = malloc((size_t)repeats * sizeof *ms);
    cudaEvent_t from, to;
    cuda(cudaEventCreate(&from), "event");
    cuda(cudaEventCreate(&to), "event");
    for (int i = -3; i < repeats; i++) {
        cuda(cudaEventRecord(from, NULL), "event");
        launch(a, scratch, bwd);
        cuda(cudaEventRecord(to, NULL), "event");
        cuda(cudaEventSynchronize(to), "kernels");
        if (i >= 0) cuda(cudaEventElapsedTime(&ms[i], from, to), "time");
    }
    qsort(ms, (size_t)repeats, sizeof *ms, by_size);
    const timing t = {ms[repeats / 2], ms[0], ms[repeats - 1]};
    free(ms);
    return t;
}

/* Over SLICES slices of a long array. */
static double apart(const void *x, const void *y, int64_t n) {
    enum { SLICES = 16, SLICE = 1 << 22 };
    const int64_t slices = n > (int64_t)SLICES * SLICE ? SLICES : 1, size = slices > 1 ? SLICE : n;
    uint16_t *a = malloc((size_t)size * 2), *b = malloc((size_t)size * 2);
    double diff = 0, sum = 0;
    for (int64_t i = 0; i < slices; i++) {
        const int64_t at = slices > 1 ? (n - size) / (slices - 1) * i : 0;
        cuda(cudaMemcpy(a, (const uint16_t *)x + at, (size_t)size * 2, cudaMemcpyDeviceToHost), "copy");
        cuda(cudaMemcpy(b, (const uint16_t *)y + at, (size_t)size * 2, cudaMemcpyDeviceToHost), "copy");
        for (int64_t j = 0; j < size; j++) {
            const double u = (double)ida_bf16_to_f32(a[j]), v = (double)ida_bf16_to_f32(b[j]);
            diff += (u - v) * (u - v);
            sum += v * v;
        }
    }
    free(a);
    free(b);
    return sqrt(diff / sum);
}

enum { O, DQ, DK, DV, N_OUT };

/* What all lengths share: room for the longest, parameters. out: of the tuned path, of the generic one. */
typedef struct bench {
    shape s;
    ida_cuda_interdomain a;
    void *out[2][N_OUT];
    int64_t width[N_OUT]; /* elements a token */
} bench;

static bench prepare(const shape *s, int64_t n) {
    const int64_t hm = s->h * s->m, r = n * s->h * s->r, d = n * s->h * s->d;
    bench b = {.s = *s, .width = {s->h * s->d, s->h * s->r, s->h * s->r, s->h * s->d}};
    b.a = (ida_cuda_interdomain){.h = s->h, .g = s->h, .r = s->r, .d = s->d, .m = s->m, .bf16 = true};
    cuda(ida_cuda_code_arch(&b.a.arch), "the architecture of the code");
    b.a.q = filled(r, 1, 1 / sqrt((double)s->r), 0.05, true), b.a.k = filled(r, 2, 1, 0, true);
    b.a.v = filled(d, 3, 1, 0, true), b.a.dout = filled(d, 4, 1, 0, true);
    float *a_imag = malloc((size_t)hm * 4), *on_device = device(hm * 4);
    for (int64_t i = 0; i < hm; i++) a_imag[i] = 3.14159265f * (float)(i % s->m);
    cuda(cudaMemcpy(on_device, a_imag, (size_t)hm * 4, cudaMemcpyHostToDevice), "copy");
    free(a_imag);
    const double c = 1 / sqrt(2 * (double)s->m);
    b.a.ssm = (ida_ssm){filled(s->h, 5, 1, -4.5, false), filled(hm, 6, 0.05, -0.7, false), on_device,
                        filled(hm * s->m, 7, c, 0, false), filled(hm * s->m, 8, c, 0, false), IDA_DISC_ZOH};
    float *grads = filled(s->h + 2 * hm + 2 * hm * s->m, 9, 0, 0, false);
    b.a.dssm = (ida_ssm_grads){grads, grads + s->h, grads + s->h + hm, grads + s->h + 2 * hm, grads + s->h + 2 * hm + hm * s->m};
    for (int i = 0; i < 2 * N_OUT; i++) b.out[i / N_OUT][i % N_OUT] = device(n * b.width[i % N_OUT] * 2);
    return b;
}

/* One pass by both paths, compared, and the tuned one timed; its median, or -1: they are apart. */
static float measure_pass(bench *b, bool bwd, int repeats) {
    static const char *const names[] = {"o", "dq", "dk", "dv"};
    ida_cuda_interdomain *a = &b->a;
    const int64_t n = a->cu[a->n_seq];
    const int from = bwd ? DQ : O, to = bwd ? N_OUT : DQ;
    bool good = true;
    timing t = {-1, 0, 0};
    for (int way = 1; way >= 0; way--) { /* the generic path first: chunk 32 asks for it */
        a->chunk = way ? 32 : 0;
        a->o = b->out[way][O], a->dq = b->out[way][DQ], a->dk = b->out[way][DK], a->dv = b->out[way][DV];
        for (int i = from; i < to; i++) cuda(cudaMemset(b->out[way][i], 0xff, (size_t)(n * b->width[i] * 2)), "poison");
        const int64_t bytes = bwd ? ida_cuda_interdomain_bwd_scratch_bytes(a) : ida_cuda_interdomain_fwd_scratch_bytes(a);
        void *scratch = device(bytes);
        launch(a, scratch, bwd);
        cuda(cudaDeviceSynchronize(), "kernels");
        if (way == 0) {
            printf("%s apart from fp32:", bwd ? "  backward" : "forward");
            for (int i = from; i < to; i++) {
                const double error = apart(b->out[0][i], b->out[1][i], n * b->width[i]);
                good = good && error < 2e-2;
                printf(" %s %.1e", names[i], error);
            }
            if (good) t = time_ms(a, scratch, bwd, repeats);
            if (good)
                printf(": %.3f (%.3f, %.3f), scratch %.0f MB", (double)t.median, (double)t.best, (double)t.worst,
                       (double)bytes * 1e-6);
            else printf(" WRONG: no speed");
            fflush(stdout);
        }
        cuda(cudaFree(scratch), "free");
    }
    return t.median;
}

static bool measure(bench *b, int64_t n_seq, int64_t t, int repeats) {
    int64_t *cu = malloc((size_t)(n_seq + 1) * sizeof *cu);
    for (int64_t i = 0; i <= n_seq; i++) cu[i] = i * t;
    b->a.n_seq = n_seq, b->a.cu = cu;
    printf("B %4lld T %6lld  ", (long long)n_seq, (long long)t);
    const float fwd = measure_pass(b, false, repeats), bwd = measure_pass(b, true, repeats);
    if (fwd >= 0 && bwd >= 0) printf("  both %.3f", (double)(fwd + bwd));
    printf("\n");
    free(cu);
    return fwd >= 0 && bwd >= 0;
}

int main(int argc, char **argv) {
    const char *lengths[] = {"2048", "4096", "8192", "16384", "32768"}, *of_tokens = argc > 2 ? argv[2] : "32768";
    const int repeats = argc > 1 ? atoi(argv[1]) : 20, n_list = argc > 5 ? argc - 5 : 5;
    char **list = argc > 5 ? argv + 5 : (char **)lengths, *end;
    shape s = {argc > 3 ? atoll(argv[3]) : 32, 64, 64, 64};
    long long r, d, m;
    if (argc > 4 && sscanf(argv[4], "%lldx%lldx%lld", &r, &d, &m) == 3) s.r = r, s.d = d, s.m = m;
    const int64_t many = strtoll(of_tokens, &end, 10);
    const bool batch = *end == 'T';
    int64_t most = 0;
    for (int l = 0; l < n_list; l++) {
        const int64_t t = atoll(list[l]), n = t < 1 ? 0 : batch ? many * t : many / t * t;
        if (n > most) most = n;
        if (n < 1) {
            most = 0;
            break;
        }
    }
    if (repeats < 1 || s.h < 1 || most < 1) {
        fprintf(stderr, "usage: mixer_core_cuda [repeats] [tokens, or sequences as 8T] [heads] [RxDxM] [T ...]\n");
        return 2;
    }
    const floors f = floors_of(&s);
    printf("tokens %s, heads %lld, R %lld D %lld M %lld, bf16; ms, median of %d (best, worst)\n", of_tokens, (long long)s.h,
           (long long)s.r, (long long)s.d, (long long)s.m, repeats);
    bench b = prepare(&s, most);
    bool good = true;
    for (int l = 0; l < n_list; l++) {
        const int64_t t = atoll(list[l]), n_seq = batch ? many : many / t;
        const double rows = (double)(n_seq * t * s.h);
        if (batch || l == 0)
            printf("floors: forward %.2f (flops) %.2f (bytes), backward %.2f %.2f\n", f.flop[0] * rows / TFLOP_PER_S * 1e-9,
                   f.bytes[0] * rows / TB_PER_S * 1e-9, f.flop[1] * rows / TFLOP_PER_S * 1e-9,
                   f.bytes[1] * rows / TB_PER_S * 1e-9);
        if (!measure(&b, n_seq, t, repeats)) good = false;
    }
    return !good;
}
