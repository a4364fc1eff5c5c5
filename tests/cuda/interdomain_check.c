/* interdomain_check.c - the CUDA mixer core against the double truth of ops/ref and the golden vectors. Needs a GPU; no cmocka,
 * so that it runs where only the driver is. Exit status 0 when every case passed.
 *
 * Tolerance. Tuned path: twice the naive bf16 error (naive.h) of the same array, plus half a bf16 ulp (2^-9) for arrays that
 * naive happens to hit. d log_dt is one number a group, a sum over the modes that cancels, so that naive's own error in it is one
 * draw of luck: there naive's errors of d a_log and d a_imag are carried through that sum (log Lam = dt A). The result is a
 * standard deviation, of which one draw exceeds twice once in 22: four times it is allowed.
 * Generic path, fp32: 1e-4. Errors are |ours - truth| / |truth|, Euclidean norms.
 *
 *     interdomain_check [folder of golden vectors] [only this case] */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bf16.h"
#include "core/rng.h"
#include "../ops/golden.h"
#include "naive.h"
#include "ops/cuda/arch.h"
#include "ops/cuda/interdomain/interdomain.h"

typedef struct problem {
    const char *name;
    int64_t n, n_seq, cu[GOLDEN_MAX_CU];
    int64_t h, g, r, d, m, chunk;
    ida_discretization disc;
    ida_readout readout;
    bool bf16, states;
    double dt_top; /* log dt runs from log 1e-3 to this over the groups */
    struct arrays {
        int64_t n_in[N_IN], n_out[N_OUT];
        double *in[N_IN], *want[N_OUT], *naive[N_OUT];
    } x;
} problem;

static int failures;

static void cuda(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

static void sizes(problem *p) {
    const int64_t w = p->r + p->d, gm = p->g * p->m, s = p->n_seq * gm * w, qn = p->n * p->h * p->r, kn = p->n * p->g * p->r,
                  vn = p->n * p->g * p->d;
    const int64_t on = p->n * p->h * p->d;
    const int64_t in[N_IN] = {qn, kn, vn, p->g, gm, gm, gm * p->m, gm * p->m, s, s, on, s, s};
    const int64_t out[N_OUT] = {on, s, s, qn, kn, vn, p->g, gm, gm, gm * p->m, gm * p->m, s, s};
    memcpy(p->x.n_in, in, sizeof in);
    memcpy(p->x.n_out, out, sizeof out);
}

static double *doubles(int64_t n) {
    double *p = calloc((size_t)n + 1, sizeof *p);
    if (!p) exit(1);
    return p;
}

static bool is_tensor(int i) { return i == Q || i == K || i == V || i == GO; }
static bool is_tensor_out(int i) { return i == O || i == DQ || i == DK || i == DV; }

static void fill(problem *p, uint64_t seed) {
    sizes(p);
    for (int i = 0; i < N_IN; i++) {
        p->x.in[i] = doubles(p->x.n_in[i]);
        for (int64_t j = 0; j < p->x.n_in[i]; j++) {
            double x = ida_normal(seed, (uint64_t)i, (uint64_t)j);
            if (i == Q) x = (x + 0.5) / sqrt((double)p->r);
            if (i == LOG_DT) x = log(1e-3) + (p->dt_top - log(1e-3)) * (p->g > 1 ? (double)j / (double)(p->g - 1) : 0.5);
            if (i == A_LOG) x = -0.7 + 0.1 * x;
            if (i == A_IMAG) x = 3.14159 * (double)(j % p->m) + 0.1 * x;
            if (i == C_RE || i == C_IM) x /= sqrt(2.0 * (double)p->m);
            x = (double)(float)x;
            if (p->bf16 && is_tensor(i)) x = (double)ida_bf16_to_f32(ida_f32_to_bf16((float)x));
            p->x.in[i][j] = x;
        }
    }
}

static bool of_state(const char *name) { return strstr(name, "state") != NULL; }

static ida_mixer_run run_of(const problem *p, double *const *out) {
    void *ins[N_IN], *outs[N_OUT];
    for (int i = 0; i < N_IN; i++) ins[i] = p->states || !of_state(in_names[i]) ? p->x.in[i] : NULL;
    for (int i = 0; i < N_OUT; i++) outs[i] = p->states || !of_state(out_names[i]) ? out[i] : NULL;
    ida_mixer_run r = {.n_tokens = p->n,
                       .n_seq = p->n_seq,
                       .n_heads = p->h,
                       .n_kv = p->g,
                       .key_dim = p->r,
                       .value_dim = p->d,
                       .state_size = p->m,
                       .cu = p->cu,
                       .discretization = p->disc,
                       .readout = p->readout};
    golden_bind(&r, ins, outs);
    return r;
}

static void *to_device(const double *x, int64_t n, bool bf16) {
    void *host = malloc((size_t)n * 4 + 4), *dev;
    for (int64_t i = 0; i < n; i++)
        if (bf16)
            ((uint16_t *)host)[i] = ida_f32_to_bf16((float)x[i]);
        else
            ((float *)host)[i] = (float)x[i];
    cuda(cudaMalloc(&dev, (size_t)n * 4 + 256), "cudaMalloc");
    cuda(cudaMemcpy(dev, host, (size_t)n * (bf16 ? 2 : 4), cudaMemcpyHostToDevice), "copy to device");
    free(host);
    return dev;
}

/* What a parameter gradient starts from, so that an overwrite shows: the size of its largest element. */
static double start_of(const problem *p, int i) {
    double top = 0;
    for (int64_t j = 0; j < p->x.n_out[i]; j++) top = fmax(top, fabs(p->x.want[i][j]));
    return (double)(float)top;
}

/* One forward and backward into fresh, poisoned memory; results to got, without what parameter gradients started from. */
static void run_device(const problem *p, double *const *got) {
    void *in[N_IN], *out[N_OUT];
    for (int i = 0; i < N_IN; i++) in[i] = to_device(p->x.in[i], p->x.n_in[i], p->bf16 && is_tensor(i));
    for (int i = 0; i < N_OUT; i++) {
        double *fresh = doubles(p->x.n_out[i]), start = start_of(p, i);
        for (int64_t j = 0; j < p->x.n_out[i]; j++) fresh[j] = i >= D_LOG_DT && i <= D_C_IM ? start : NAN;
        out[i] = to_device(fresh, p->x.n_out[i], p->bf16 && is_tensor_out(i));
        free(fresh);
    }
    ida_cuda_interdomain a = {.n_seq = p->n_seq,
                              .cu = p->cu,
                              .h = p->h,
                              .g = p->g,
                              .r = p->r,
                              .d = p->d,
                              .m = p->m,
                              .chunk = p->chunk,
                              .readout = p->readout,
                              .bf16 = p->bf16};
    cuda(ida_cuda_code_arch(&a.arch), "the architecture of the code");
    a.ssm = (ida_ssm){in[LOG_DT], in[A_LOG], in[A_IMAG], in[C_RE], in[C_IM], p->disc};
    a.q = in[Q], a.k = in[K], a.v = in[V], a.o = out[O], a.dout = in[GO], a.dq = out[DQ], a.dk = out[DK], a.dv = out[DV];
    a.dssm = (ida_ssm_grads){out[D_LOG_DT], out[D_A_LOG], out[D_A_IMAG], out[D_C_RE], out[D_C_IM]};
    const int64_t stride = p->g * p->m * (p->r + p->d);
    if (p->states) {
        a.state_in = (ida_state_ref){in[S_RE], in[S_IM], stride}, a.state_out = (ida_state_ref){out[F_RE], out[F_IM], stride};
        a.dstate_out = (ida_state_ref){in[GS_RE], in[GS_IM], stride},
        a.dstate_in = (ida_state_ref){out[DS_RE], out[DS_IM], stride};
    }
    const int64_t need[2] = {ida_cuda_interdomain_fwd_scratch_bytes(&a), ida_cuda_interdomain_bwd_scratch_bytes(&a)};
    for (int pass = 0; pass < 2; pass++) {
        void *scratch;
        cuda(cudaMalloc(&scratch, (size_t)need[pass] + 1), "cudaMalloc of scratch");
        cuda(cudaMemset(scratch, 0xff, (size_t)need[pass]), "poison");
        cuda((cudaError_t)(pass ? ida_cuda_interdomain_bwd(&a, scratch, NULL) : ida_cuda_interdomain_fwd(&a, scratch, NULL)),
             pass ? "backward" : "forward");
        cuda(cudaDeviceSynchronize(), pass ? "backward kernels" : "forward kernels");
        cuda(cudaFree(scratch), "cudaFree");
    }
    for (int i = 0; i < N_OUT; i++) {
        const bool half = p->bf16 && is_tensor_out(i);
        void *host = malloc((size_t)p->x.n_out[i] * 4 + 4);
        const double start = start_of(p, i);
        cuda(cudaMemcpy(host, out[i], (size_t)p->x.n_out[i] * (half ? 2 : 4), cudaMemcpyDeviceToHost), "copy from device");
        for (int64_t j = 0; j < p->x.n_out[i]; j++) {
            got[i][j] = half ? (double)ida_bf16_to_f32(((uint16_t *)host)[j]) : (double)((float *)host)[j];
            if (i >= D_LOG_DT && i <= D_C_IM) got[i][j] -= start;
        }
        free(host);
        cudaFree(out[i]);
    }
    for (int i = 0; i < N_IN; i++) cudaFree(in[i]);
}

static double distance(const double *x, const double *truth, int64_t n) {
    double diff = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        diff += (x[i] - truth[i]) * (x[i] - truth[i]);
        size += truth[i] * truth[i];
    }
    return n == 0 ? 0 : sqrt(diff / (size > 0 ? size : 1));
}

/* The naive error of d log_dt as its terms Re A dRe + Im A dIm let one expect it. */
static double log_dt_error(const problem *p) {
    double sum = 0, size = 0;
    for (int64_t g = 0; g < p->g; g++) size += p->x.want[D_LOG_DT][g] * p->x.want[D_LOG_DT][g];
    for (int64_t i = 0; i < p->g * p->m; i++) {
        const double re = p->x.naive[D_A_LOG][i] - p->x.want[D_A_LOG][i],
                     im = p->x.in[A_IMAG][i] * (p->x.naive[D_A_IMAG][i] - p->x.want[D_A_IMAG][i]);
        sum += re * re + im * im;
    }
    return size > 0 ? sqrt(sum / size) : 0;
}

static bool compared(const problem *p, int i) { return p->states || !of_state(out_names[i]); }

static void check(problem *p) {
    double *got[N_OUT], *again[N_OUT];
    for (int i = 0; i < N_OUT; i++) got[i] = doubles(p->x.n_out[i]), again[i] = doubles(p->x.n_out[i]);
    run_device(p, got);
    run_device(p, again);
    for (int i = 0; i < N_OUT; i++) {
        if (!compared(p, i)) continue;
        const double e = distance(got[i], p->x.want[i], p->x.n_out[i]),
                     naive = !p->x.naive[i]  ? 0
                             : i == D_LOG_DT ? 2 * log_dt_error(p)
                                             : distance(p->x.naive[i], p->x.want[i], p->x.n_out[i]);
        double limit = p->x.naive[i] ? 2 * naive + 0x1p-9 : 1e-4;
        if (!p->x.naive[i] && p->bf16 && is_tensor_out(i)) limit = 0x1p-8;
        const bool same = memcmp(got[i], again[i], (size_t)p->x.n_out[i] * sizeof(double)) == 0, good = e <= limit && same;
        if (!good) failures++;
        printf("%-14s %-17s error %.3e  naive %.3e  limit %.3e  %s%s\n", p->name, out_names[i], e, naive, limit,
               good ? "ok" : "FAILED", same ? "" : ", two runs differ");
    }
    for (int i = 0; i < N_OUT; i++) free(got[i]), free(again[i]);
    fflush(stdout);
}

static void release(problem *p) {
    for (int i = 0; i < N_IN; i++) free(p->x.in[i]);
    for (int i = 0; i < N_OUT; i++) free(p->x.want[i]), free(p->x.naive[i]);
}

static void random_case(problem p, uint64_t seed) {
    fill(&p, seed);
    for (int i = 0; i < N_OUT; i++) p.x.want[i] = doubles(p.x.n_out[i]), p.x.naive[i] = p.bf16 ? doubles(p.x.n_out[i]) : NULL;
    const ida_mixer_run r = run_of(&p, p.x.want);
    for (int pass = 0; pass < 2; pass++)
        if (ida_ref64_mixer_run(&ida_ref64_device, &r, IDA_FORM_CHUNKED, pass == 1)) {
            fprintf(stderr, "%s: %s\n", p.name, ida_last_error());
            exit(1);
        }
    if (p.bf16) {
        const ida_mixer_run n = run_of(&p, p.x.naive);
        naive_bf16_run(&n);
    }
    check(&p);
    release(&p);
}

static void golden_case(const char *folder, const char *name, int64_t chunk) {
    char path[4096];
    golden g;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (golden_open(&g, path)) {
        fprintf(stderr, "%s\n", ida_last_error());
        exit(1);
    }
    problem p = {.name = name,
                 .n = g.run.n_tokens,
                 .n_seq = g.run.n_seq,
                 .h = g.run.n_heads,
                 .g = g.run.n_kv,
                 .r = g.run.key_dim,
                 .d = g.run.value_dim,
                 .m = g.run.state_size,
                 .chunk = chunk,
                 .states = true,
                 .disc = g.run.discretization,
                 .readout = g.run.readout};
    memcpy(p.cu, g.cu, sizeof p.cu);
    memcpy(p.x.n_in, g.n_in, sizeof p.x.n_in);
    memcpy(p.x.n_out, g.n_out, sizeof p.x.n_out);
    memcpy(p.x.in, g.in, sizeof p.x.in);
    memcpy(p.x.want, g.want, sizeof p.x.want);
    check(&p);
    golden_close(&g);
}

/* Names for the table: log dt up to the initial values' 0.1, read-outs, discretizations, tensors of bf16 or fp32, states or none.
 */
#define SLOW -2.302585
#define HERM IDA_READOUT_HERMITIAN
#define BILI IDA_READOUT_BILINEAR
#define ZOH IDA_DISC_ZOH
#define NORM IDA_DISC_NORM
#define EULER IDA_DISC_EULER
#define CASE(...) {__VA_ARGS__, {{0}, {0}, {0}, {0}, {0}}}
/* clang-format off */
static const problem list[] = {
    /*   name             n seq cu                                          h g  r  d  m chunk disc readout bf16 states dt_top */
    CASE("plain",        200, 1, {0, 200},                                    2,2, 64,64,64,  0, ZOH,   HERM, true,  true,  SLOW),
    CASE("no states",    130, 1, {0, 130},                                    1,1, 64,64,64,  0, ZOH,   HERM, true,  false, SLOW),
    CASE("packed",       523, 9, {0, 0, 1, 64, 128, 193, 323, 323, 523, 523}, 2,2, 64,64,64,  0, ZOH,   BILI, true,  true,  SLOW),
    CASE("long",         900, 1, {0, 900},                                    1,1, 64,64,64,  0, ZOH,   HERM, true,  true,  SLOW),
    CASE("parts",       2200, 3, {0, 70, 1900, 2200},                         1,1, 64,64,64,  0, ZOH,   HERM, true,  true,  SLOW),
    CASE("group parts", 1101, 1, {0, 1101},                                   2,1, 64,64,64,  0, ZOH,   HERM, true,  true,  SLOW),
    CASE("grouped",      200, 2, {0, 70, 200},                                4,2, 64,64,64,  0, ZOH,   HERM, true,  true,  SLOW),
    CASE("small sizes",  150, 2, {0, 61, 150},                                3,3, 40,24,21,  0, NORM,  HERM, true,  true,  SLOW),
    CASE("long parts",  4150, 3, {0, 70, 70, 4150},                           1,1, 64,64,64,  0, ZOH,   HERM, true,  true,  SLOW),
    CASE("fast decay",   150, 2, {0, 20, 150},                                3,3, 64,64,64,  0, ZOH,   HERM, true,  true,  2.0),
    CASE("fp32",         150, 4, {0, 0, 20, 149, 150},                        4,2, 12, 7,20, 16, EULER, HERM, false, true,  1.0),
    CASE("fp32 96",      140, 1, {0, 140},                                    1,1, 96,96,96,  0, ZOH,   HERM, false, true,  SLOW),
    CASE("bf16 136",     140, 1, {0, 140},                                    1,1,136,96,130, 0, ZOH,   HERM, true,  true,  SLOW),
    CASE("wide",         200, 1, {0, 200},                                    2,2, 96,96,64,  0, ZOH,   HERM, true,  true,  SLOW),
    CASE("wide alone",   150, 2, {0, 61, 150},                                2,1, 72,96,16,  0, ZOH,   HERM, true,  false, SLOW),
    CASE("wide packed",  523, 9, {0, 0, 1, 64, 128, 193, 323, 323, 523, 523}, 2,2,128,72,64,  0, ZOH,   BILI, true,  true,  SLOW),
    CASE("wide parts",  4150, 3, {0, 70, 70, 4150},                           1,1, 72,72,64,  0, ZOH,   HERM, true,  true,  SLOW),
    CASE("wide groups",  200, 2, {0, 70, 200},                                4,2, 40,128,65, 0, ZOH,   HERM, true,  true,  SLOW),
    CASE("many modes",   270, 3, {0, 0, 130, 270},                            2,2, 64,64,128, 0, ZOH,   BILI, true,  true,  SLOW),
    CASE("modes parts", 3300, 1, {0, 3300},                                   2,1, 40,24,96,  0, NORM,  HERM, true,  true,  SLOW),
    CASE("all 96",       140, 1, {0, 140},                                    1,1, 96,96,96,  0, ZOH,   HERM, true,  true,  SLOW),
    CASE("all 128",      330, 2, {0, 137, 330},                               2,2,128,128,128,0, ZOH,   HERM, true,  true,  SLOW),
    CASE("wide heads",  1900, 3, {0, 600, 601, 1900},                       33,33,  8,72,8,   0, ZOH,   HERM, true,  true,  SLOW),
    CASE("modes heads",  900, 2, {0, 321, 900},                             32,32,  8, 8,72,  0, ZOH,   HERM, true,  true,  SLOW),
    CASE("wide fast",    150, 2, {0, 20, 150},                                3,3, 96,72,96,  0, ZOH,   HERM, true,  true,  2.0),
    CASE("empty",          0, 2, {0, 0, 0},                                   2,2, 64,64,64,  0, ZOH,   HERM, true,  true,  SLOW),
};
/* clang-format on */

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : NULL, *only = argc > 2 ? argv[2] : NULL;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!only || !strcmp(only, list[i].name)) random_case(list[i], 7 + i);
    for (size_t i = 0; folder && !only && i < sizeof golden_files / sizeof *golden_files; i++) {
        golden_case(folder, golden_files[i], 0);
        golden_case(folder, golden_files[i], 8);
    }
    printf(failures ? "%d FAILED\n" : "all passed\n", failures);
    return failures > 0;
}
