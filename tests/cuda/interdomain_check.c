/* interdomain_check.c - the CUDA mixer core against the double truth of ops/ref and the golden vectors. Needs a GPU; no cmocka,
 * so that it runs where only the driver is. Exit status 0 when every case passed.
 *
 * Tolerance. Tuned path: twice the naive bf16 error (naive.h) of the same array, plus half a bf16 ulp (2^-9) for arrays that
 * naive happens to hit. d log_dt is one number a group, a sum over the modes that cancels, so that naive's own error in it is one
 * draw of luck: there naive's errors of d a_log and d a_imag are carried through that sum (log Lam = dt A) and twice the result
 * is allowed.
 * Generic path, fp32: 1e-4. Errors are |ours - truth| / |truth|, Euclidean norms.
 *
 *     interdomain_check [folder of golden vectors] [only this case] */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bf16.h"
#include "core/file.h"
#include "core/rng.h"
#include "io/safetensors.h"
#include "naive.h"
#include "ops/cuda/interdomain.h"

enum { N_IN = 13, N_OUT = 13, N_FWD = 3 };
enum { Q, K, V, LOG_DT, A_LOG, A_IMAG, C_RE, C_IM, S_RE, S_IM, GO, GS_RE, GS_IM };
enum { O, F_RE, F_IM, DQ, DK, DV, D_LOG_DT, D_A_LOG, D_A_IMAG, D_C_RE, D_C_IM, DS_RE, DS_IM };
static const char *const in_names[N_IN] = {"q",
                                           "k",
                                           "v",
                                           "log_dt",
                                           "a_log",
                                           "a_imag",
                                           "c_real",
                                           "c_imag",
                                           "state_real",
                                           "state_imag",
                                           "grad_o",
                                           "grad_final_state_real",
                                           "grad_final_state_imag"};
static const char *const out_names[N_OUT] = {"o",           "final_state_real", "final_state_imag", "grad_q",      "grad_k",
                                             "grad_v",      "grad_log_dt",      "grad_a_log",       "grad_a_imag", "grad_c_real",
                                             "grad_c_imag", "grad_state_real",  "grad_state_imag"};

typedef struct problem {
    const char *name;
    int64_t n, n_seq, h, g, r, d, m, chunk;
    int64_t cu[16];
    ida_discretization disc;
    ida_readout readout;
    bool bf16, states;
    double dt_top; /* log dt runs from log 1e-3 to this over the groups */
    int64_t n_in[N_IN], n_out[N_OUT];
    double *in[N_IN], *want[N_OUT], *naive[N_OUT];
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
    memcpy(p->n_in, in, sizeof in);
    memcpy(p->n_out, out, sizeof out);
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
        p->in[i] = doubles(p->n_in[i]);
        for (int64_t j = 0; j < p->n_in[i]; j++) {
            double x = ida_normal(seed, (uint64_t)i, (uint64_t)j);
            if (i == Q) x = (x + 0.5) / sqrt((double)p->r);
            if (i == LOG_DT) x = log(1e-3) + (p->dt_top - log(1e-3)) * (p->g > 1 ? (double)j / (double)(p->g - 1) : 0.5);
            if (i == A_LOG) x = -0.7 + 0.1 * x;
            if (i == A_IMAG) x = 3.14159 * (double)(j % p->m) + 0.1 * x;
            if (i == C_RE || i == C_IM) x /= sqrt(2.0 * (double)p->m);
            x = (double)(float)x;
            if (p->bf16 && is_tensor(i)) x = (double)ida_bf16_to_f32(ida_f32_to_bf16((float)x));
            p->in[i][j] = x;
        }
    }
}

static ida_mixer_run run_of(const problem *p, double *const *out) {
    double *const *in = p->in;
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
    r.q = in[Q], r.k = in[K], r.v = in[V], r.log_dt = in[LOG_DT], r.a_log = in[A_LOG], r.a_imag = in[A_IMAG], r.c_real = in[C_RE],
    r.c_imag = in[C_IM];
    r.grad_o = in[GO];
    r.o = out[O], r.grad_q = out[DQ], r.grad_k = out[DK], r.grad_v = out[DV], r.grad_log_dt = out[D_LOG_DT],
    r.grad_a_log = out[D_A_LOG];
    r.grad_a_imag = out[D_A_IMAG], r.grad_c_real = out[D_C_RE], r.grad_c_imag = out[D_C_IM];
    if (!p->states) return r;
    r.state_real = in[S_RE], r.state_imag = in[S_IM], r.grad_final_state_real = in[GS_RE], r.grad_final_state_imag = in[GS_IM];
    r.final_state_real = out[F_RE], r.final_state_imag = out[F_IM], r.grad_state_real = out[DS_RE],
    r.grad_state_imag = out[DS_IM];
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
    for (int64_t j = 0; j < p->n_out[i]; j++) top = fmax(top, fabs(p->want[i][j]));
    return (double)(float)top;
}

/* One forward and backward into fresh, poisoned memory; results to got, without what parameter gradients started from. */
static void run_device(const problem *p, double *const *got) {
    void *in[N_IN], *out[N_OUT];
    for (int i = 0; i < N_IN; i++) in[i] = to_device(p->in[i], p->n_in[i], p->bf16 && is_tensor(i));
    for (int i = 0; i < N_OUT; i++) {
        double *fresh = doubles(p->n_out[i]), start = start_of(p, i);
        for (int64_t j = 0; j < p->n_out[i]; j++) fresh[j] = i >= D_LOG_DT && i <= D_C_IM ? start : NAN;
        out[i] = to_device(fresh, p->n_out[i], p->bf16 && is_tensor_out(i));
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
        void *host = malloc((size_t)p->n_out[i] * 4 + 4);
        const double start = start_of(p, i);
        cuda(cudaMemcpy(host, out[i], (size_t)p->n_out[i] * (half ? 2 : 4), cudaMemcpyDeviceToHost), "copy from device");
        for (int64_t j = 0; j < p->n_out[i]; j++) {
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
    for (int64_t g = 0; g < p->g; g++) size += p->want[D_LOG_DT][g] * p->want[D_LOG_DT][g];
    for (int64_t i = 0; i < p->g * p->m; i++) {
        const double re = p->naive[D_A_LOG][i] - p->want[D_A_LOG][i],
                     im = p->in[A_IMAG][i] * (p->naive[D_A_IMAG][i] - p->want[D_A_IMAG][i]);
        sum += re * re + im * im;
    }
    return size > 0 ? sqrt(sum / size) : 0;
}

static bool compared(const problem *p, int i) { return p->states || !(i == F_RE || i == F_IM || i == DS_RE || i == DS_IM); }

static void check(problem *p) {
    double *got[N_OUT], *again[N_OUT];
    for (int i = 0; i < N_OUT; i++) got[i] = doubles(p->n_out[i]), again[i] = doubles(p->n_out[i]);
    run_device(p, got);
    run_device(p, again);
    for (int i = 0; i < N_OUT; i++) {
        if (!compared(p, i)) continue;
        const double e = distance(got[i], p->want[i], p->n_out[i]), naive = !p->naive[i] ? 0
                                                                            : i == D_LOG_DT
                                                                                ? log_dt_error(p)
                                                                                : distance(p->naive[i], p->want[i], p->n_out[i]);
        double limit = p->naive[i] ? 2 * naive + 0x1p-9 : 1e-4;
        if (!p->naive[i] && p->bf16 && is_tensor_out(i)) limit = 0x1p-8;
        const bool same = memcmp(got[i], again[i], (size_t)p->n_out[i] * sizeof(double)) == 0, good = e <= limit && same;
        if (!good) failures++;
        printf("%-14s %-17s error %.3e  naive %.3e  limit %.3e  %s%s\n", p->name, out_names[i], e, naive, limit,
               good ? "ok" : "FAILED", same ? "" : ", two runs differ");
    }
    for (int i = 0; i < N_OUT; i++) free(got[i]), free(again[i]);
    fflush(stdout);
}

static void release(problem *p) {
    for (int i = 0; i < N_IN; i++) free(p->in[i]);
    for (int i = 0; i < N_OUT; i++) free(p->want[i]), free(p->naive[i]);
}

static void random_case(problem p, uint64_t seed) {
    fill(&p, seed);
    for (int i = 0; i < N_OUT; i++) p.want[i] = doubles(p.n_out[i]), p.naive[i] = p.bf16 ? doubles(p.n_out[i]) : NULL;
    const ida_mixer_run r = run_of(&p, p.want);
    for (int pass = 0; pass < 2; pass++)
        if (ida_ref64_mixer_run(&ida_ref64_device, &r, IDA_FORM_CHUNKED, pass == 1)) {
            fprintf(stderr, "%s: %s\n", p.name, ida_last_error());
            exit(1);
        }
    if (p.bf16) {
        const ida_mixer_run n = run_of(&p, p.naive);
        naive_bf16_run(&n);
    }
    check(&p);
    release(&p);
}

static void golden_case(const char *folder, const char *name, int64_t chunk) {
    char path[4096];
    ida_st_file *f;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (ida_st_open(path, &f)) {
        fprintf(stderr, "%s\n", ida_last_error());
        exit(1);
    }
    const ida_st_tensor *q = ida_st_find(f, "q"), *v = ida_st_find(f, "v"), *a = ida_st_find(f, "a_log"),
                        *cu = ida_st_find(f, "cu_seqlens");
    if (!q || !v || !a || !cu || cu->numel > 16) {
        fprintf(stderr, "%s is not a golden file\n", path);
        exit(1);
    }
    problem p = {.name = name,
                 .n = q->shape[0],
                 .n_seq = cu->numel - 1,
                 .h = q->shape[1],
                 .g = v->shape[1],
                 .r = q->shape[2],
                 .d = v->shape[2],
                 .m = a->shape[1],
                 .chunk = chunk,
                 .states = true};
    memcpy(p.cu, cu->data, (size_t)cu->bytes);
    p.disc = strcmp(ida_st_meta(f, "discretization"), "zoh") ? IDA_DISC_UNIT : IDA_DISC_ZOH;
    p.readout = strcmp(ida_st_meta(f, "readout"), "bilinear") ? IDA_READOUT_HERMITIAN : IDA_READOUT_BILINEAR;
    sizes(&p);
    for (int i = 0; i < N_IN + N_OUT; i++) {
        const char *what = i < N_IN ? in_names[i] : out_names[i - N_IN];
        const ida_st_tensor *t = ida_st_find(f, what);
        double *to = doubles(i < N_IN ? p.n_in[i] : p.n_out[i - N_IN]);
        if (!t || ida_st_read_f64(f, what, t->ndim, t->shape, to)) {
            fprintf(stderr, "%s: no %s\n", path, what);
            exit(1);
        }
        *(i < N_IN ? &p.in[i] : &p.want[i - N_IN]) = to;
    }
    ida_st_close(f);
    check(&p);
    release(&p);
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : NULL, *only = argc > 2 ? argv[2] : NULL;
    const double slow = log(0.1);
    const problem list[] = {
        {.name = "plain",
         .n = 200,
         .n_seq = 1,
         .cu = {0, 200},
         .h = 2,
         .g = 2,
         .r = 64,
         .d = 64,
         .m = 64,
         .bf16 = true,
         .states = true,
         .dt_top = slow},
        {.name = "no states",
         .n = 130,
         .n_seq = 1,
         .cu = {0, 130},
         .h = 1,
         .g = 1,
         .r = 64,
         .d = 64,
         .m = 64,
         .bf16 = true,
         .dt_top = slow},
        {.name = "packed",
         .n = 523,
         .n_seq = 9,
         .cu = {0, 0, 1, 64, 128, 193, 323, 323, 523, 523},
         .h = 2,
         .g = 2,
         .r = 64,
         .d = 64,
         .m = 64,
         .bf16 = true,
         .states = true,
         .readout = IDA_READOUT_BILINEAR,
         .dt_top = slow},
        {.name = "long",
         .n = 900,
         .n_seq = 1,
         .cu = {0, 900},
         .h = 1,
         .g = 1,
         .r = 64,
         .d = 64,
         .m = 64,
         .bf16 = true,
         .states = true,
         .dt_top = slow},
        {.name = "parts",
         .n = 2200,
         .n_seq = 3,
         .cu = {0, 70, 1900, 2200},
         .h = 1,
         .g = 1,
         .r = 64,
         .d = 64,
         .m = 64,
         .bf16 = true,
         .states = true,
         .dt_top = slow},
        {.name = "grouped parts",
         .n = 1101,
         .n_seq = 1,
         .cu = {0, 1101},
         .h = 2,
         .g = 1,
         .r = 64,
         .d = 64,
         .m = 64,
         .bf16 = true,
         .states = true,
         .dt_top = slow},
        {.name = "grouped",
         .n = 200,
         .n_seq = 2,
         .cu = {0, 70, 200},
         .h = 4,
         .g = 2,
         .r = 64,
         .d = 64,
         .m = 64,
         .bf16 = true,
         .states = true,
         .dt_top = slow},
        {.name = "small sizes",
         .n = 150,
         .n_seq = 2,
         .cu = {0, 61, 150},
         .h = 3,
         .g = 3,
         .r = 40,
         .d = 24,
         .m = 21,
         .bf16 = true,
         .states = true,
         .disc = IDA_DISC_NORM,
         .dt_top = slow},
        {.name = "fast decay",
         .n = 150,
         .n_seq = 2,
         .cu = {0, 20, 150},
         .h = 3,
         .g = 3,
         .r = 64,
         .d = 64,
         .m = 64,
         .bf16 = true,
         .states = true,
         .dt_top = 2.0},
        {.name = "fp32",
         .n = 150,
         .n_seq = 4,
         .cu = {0, 0, 20, 149, 150},
         .h = 4,
         .g = 2,
         .r = 12,
         .d = 7,
         .m = 20,
         .chunk = 16,
         .states = true,
         .dt_top = 1.0,
         .disc = IDA_DISC_EULER},
        {.name = "fp32 96",
         .n = 140,
         .n_seq = 1,
         .cu = {0, 140},
         .h = 1,
         .g = 1,
         .r = 96,
         .d = 96,
         .m = 96,
         .states = true,
         .dt_top = slow},
        {.name = "bf16 96",
         .n = 140,
         .n_seq = 1,
         .cu = {0, 140},
         .h = 1,
         .g = 1,
         .r = 96,
         .d = 96,
         .m = 96,
         .bf16 = true,
         .states = true,
         .dt_top = slow},
        {.name = "empty",
         .n = 0,
         .n_seq = 2,
         .cu = {0, 0, 0},
         .h = 2,
         .g = 2,
         .r = 64,
         .d = 64,
         .m = 64,
         .bf16 = true,
         .states = true,
         .dt_top = slow},
    };
    static const char *const golden[] = {"plain.safetensors", "bilinear.safetensors", "heads.safetensors", "packed.safetensors",
                                         "unit.safetensors"};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!only || !strcmp(only, list[i].name)) random_case(list[i], 7 + i);
    for (size_t i = 0; folder && !only && i < sizeof golden / sizeof *golden; i++) {
        golden_case(folder, golden[i], 0);
        golden_case(folder, golden[i], 8);
    }
    printf(failures ? "%d FAILED\n" : "all passed\n", failures);
    return failures > 0;
}
