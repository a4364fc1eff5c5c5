/* mixer_core.c - how fast the mixer core runs: ms, GFLOP/s and share of the machine's multiply-add rate for the chunked forward
 * and backward, s4d, the step, and the sequential forms they are compared with. For tuning (`make bench`); the product's figures
 * are those of `idattn bench`.
 *
 *     mixer_core [tokens=2048] [heads=12] [modes=64] [width=64] [threads=all] [chunk=64] [lines, e.g. "s4d"]
 *
 * Each line is the best of several runs. "peak" is measured here: independent multiply-adds on one thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/cpu.h"
#include "core/mem.h"
#include "core/rng.h"
#include "core/threads.h"
#include "ops/ops.h"

typedef struct sizes { int64_t t, h, m, w, chunk; } sizes;

typedef struct arrays {
    float *q, *k, *v, *o, *x_re, *x_im, *dq, *dk, *dv, *w, *dw, *y, *log_dt, *a_log, *a_imag, *c_re, *c_im, *dssm, *prep;
} arrays;

static float *filled(int64_t n, uint64_t stream, double scale, double shift) {
    float *p;
    if (IDA_ALLOC(p, n, "bench")) exit(1);
    for (int64_t i = 0; i < n; i++) p[i] = (float)(shift + scale * ida_normal(1, stream, (uint64_t)i));
    return p;
}

static void arrays_open(arrays *a, const sizes *z) {
    const int64_t tw = z->t * z->h * z->w, gm = z->h * z->m, x = 2 * gm * z->w;
    a->q = filled(tw, 1, 0.125, 0), a->k = filled(tw, 2, 1, 0), a->v = filled(tw, 3, 1, 0), a->o = filled(tw, 4, 1, 0);
    a->dq = filled(tw, 5, 1, 0), a->dk = filled(tw, 5, 1, 0), a->dv = filled(tw, 5, 1, 0), a->y = filled(2 * tw, 5, 1, 0);
    a->x_re = filled(x, 6, 0, 0), a->x_im = filled(x, 6, 0, 0), a->w = filled(gm, 7, 1, 0), a->dw = filled(gm, 7, 0, 0);
    a->log_dt = filled(z->h, 8, 1, -4.5), a->a_log = filled(gm, 9, 0, -0.7), a->a_imag = filled(gm, 10, 0, 0);
    a->c_re = filled(gm * z->m, 11, 0.1, 0), a->c_im = filled(gm * z->m, 12, 0.1, 0);
    a->dssm = filled(z->h + 2 * gm + 2 * gm * z->m, 13, 0, 0), a->prep = filled(4 * gm + 2 * gm * z->m, 14, 0, 0);
    for (int64_t i = 0; i < gm; i++) a->a_imag[i] = (float)(3.14159265 * (double)(i % z->m));
}

/* Twelve independent chains of multiply-adds, in the vectors of one instruction set. */
enum { CHAINS = 12, TURNS = 2000000 };
#define SPIN(isa, bytes, target)                                                              \
    typedef float isa##_vector __attribute__((vector_size(bytes)));                           \
    target static void spin_##isa(volatile float *io) {                                       \
        isa##_vector s[CHAINS], a = (isa##_vector){0} + io[0], b = (isa##_vector){0} + io[1]; \
        for (int i = 0; i < CHAINS; i++) s[i] = b * (float)i;                                 \
        for (int64_t n = 0; n < TURNS; n++)                                                   \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) s[i] = s[i] * a + b;    \
        for (int i = 1; i < CHAINS; i++) s[0] += s[i];                                        \
        io[2] = s[0][0];                                                                      \
    }
SPIN(base, 16, )
#if defined(__x86_64__)
SPIN(avx2, 32, __attribute__((target("avx2,fma"))))
SPIN(avx512, 64, __attribute__((target("avx512f"))))
#endif

/* Processor seconds of this process: on a busy machine a steadier measure of the work than the clock on the wall. */
static double cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef void body(void *arg);
typedef struct timing { double wall, cpu; } timing;

static timing best_ms(body *f, void *arg) {
    timing best = {1e9, 1e9};
    double total = 0;
    for (int i = 0; i < 50 && (total < 1.0 || i < 3); i++) {
        const double start = ida_now(), cpu = cpu_now();
        f(arg);
        const double t = ida_now() - start, c = cpu_now() - cpu;
        total += t;
        if (t < best.wall) best.wall = t;
        if (c < best.cpu) best.cpu = c;
    }
    return (timing){best.wall * 1e3, best.cpu * 1e3};
}

typedef struct run {
    const ida_device *dev;
    sizes z;
    arrays a;
    ida_seqs seqs;
    ida_interdomain_args inter;
    ida_interdomain_grads inter_grads;
    ida_s4d_args s4d;
    ida_s4d_grads s4d_grads;
    ida_ssm_prep prep;
    int64_t steps;
} run;

static void check(ida_status st) {
    if (st == IDA_OK) return;
    fprintf(stderr, "%s\n", ida_last_error());
    exit(1);
}

static void inter_fwd(void *arg) { run *r = arg; check(r->dev->ops->interdomain_chunk_fwd(r->dev, &r->inter, &r->seqs)); }
static void inter_bwd(void *arg) {
    run *r = arg;
    check(r->dev->ops->interdomain_chunk_bwd(r->dev, &r->inter, &r->inter_grads, &r->seqs));
}
static void inter_seq_fwd(void *arg) { run *r = arg; check(r->dev->ops->interdomain_seq_fwd(r->dev, &r->inter, &r->seqs)); }
static void inter_seq_bwd(void *arg) {
    run *r = arg;
    check(r->dev->ops->interdomain_seq_bwd(r->dev, &r->inter, &r->inter_grads, &r->seqs));
}
static void s4d_fwd(void *arg) { run *r = arg; check(r->dev->ops->s4d_chunk_fwd(r->dev, &r->s4d, &r->seqs)); }
static void s4d_bwd(void *arg) { run *r = arg; check(r->dev->ops->s4d_chunk_bwd(r->dev, &r->s4d, &r->s4d_grads, &r->seqs)); }

static void steps(void *arg) {
    run *r = arg;
    ida_interdomain_args a = r->inter;
    const int64_t row = r->z.h * r->z.w;
    for (int64_t t = 0; t < r->steps; t++) {
        a.q = ida_act_at(r->dev, r->inter.q, t * row);
        a.k = ida_act_at(r->dev, r->inter.k, t * row);
        a.v = ida_act_at(r->dev, r->inter.v, t * row);
        a.o = ida_act_at(r->dev, r->inter.o, t * row);
        check(r->dev->ops->interdomain_step(r->dev, &a, &r->prep, 1));
    }
}
static void s4d_steps(void *arg) {
    run *r = arg;
    ida_s4d_args a = r->s4d;
    const int64_t row = r->z.h * r->z.w;
    for (int64_t t = 0; t < r->steps; t++) {
        a.k = ida_act_at(r->dev, r->s4d.k, t * row);
        a.v = ida_act_at(r->dev, r->s4d.v, t * row);
        a.y = ida_act_at(r->dev, r->s4d.y, 2 * t * row);
        check(r->dev->ops->s4d_step(r->dev, &a, &r->prep, 1));
    }
}

static void run_open(run *r) {
    const sizes *z = &r->z;
    const arrays *a = &r->a;
    const int64_t gm = z->h * z->m, gmm = gm * z->m;
    const ida_ssm ssm = {a->log_dt, a->a_log, a->a_imag, a->c_re, a->c_im, IDA_DISC_ZOH};
    float *d = a->dssm;
    const ida_ssm_grads dssm = {d, d + z->h, d + z->h + gm, d + z->h + 2 * gm, d + z->h + 2 * gm + gmm};
    const ida_state_ref none = {NULL, NULL, 0}, x = {a->x_re, a->x_im, gm * 2 * z->w};
    r->inter = (ida_interdomain_args){.h = z->h,
                                      .g = z->h,
                                      .r = z->w,
                                      .d = z->w,
                                      .m = z->m,
                                      .chunk = z->chunk,
                                      .ssm = ssm,
                                      .q = ida_act_of(a->q),
                                      .k = ida_act_of(a->k),
                                      .v = ida_act_of(a->v),
                                      .o = ida_act_of(a->o),
                                      .state_in = none,
                                      .state_out = none};
    r->inter_grads = (ida_interdomain_grads){.dout = ida_act_of(a->o),
                                             .dstate_out = none,
                                             .dstate_in = none,
                                             .dq = ida_act_of(a->dq),
                                             .dk = ida_act_of(a->dk),
                                             .dv = ida_act_of(a->dv),
                                             .dssm = dssm};
    r->s4d = (ida_s4d_args){.h = z->h,
                            .r = z->w,
                            .d = z->w,
                            .m = z->m,
                            .chunk = z->chunk,
                            .ssm = ssm,
                            .k = ida_act_of(a->k),
                            .v = ida_act_of(a->v),
                            .w = a->w,
                            .y = ida_act_of(a->y),
                            .state_in = none,
                            .state_out = none};
    r->s4d_grads = (ida_s4d_grads){.dy = ida_act_of(a->y),
                                   .dstate_out = none,
                                   .dstate_in = none,
                                   .dk = ida_act_of(a->dk),
                                   .dv = ida_act_of(a->dv),
                                   .dw = a->dw,
                                   .dssm = dssm};
    float *p = a->prep;
    r->prep = (ida_ssm_prep){p, p + gm, p + 2 * gm, p + 3 * gm, p + 4 * gm, p + 4 * gm + gmm};
    ida_ref_ssm_prepare(&ssm, z->h, z->m, IDA_READOUT_HERMITIAN, NULL, &r->prep);
    r->inter.state_in = x;
    steps(r);
    r->inter.state_in = none;
}

/* Runs and prints one line when its name begins with `only`. peak: of one thread; the share is of the processor time used. */
static void line(const char *only, const char *what, body *f, run *r, double flops, double peak, int64_t tokens) {
    if (strncmp(what, only, strlen(only)) != 0) return;
    const timing t = best_ms(f, r);
    printf("%-26s %10.3f ms %10.3f cpu-ms %8.1f GFLOP/s %6.1f%% of peak %10.0f tokens/s\n", what, t.wall, t.cpu,
           flops / t.wall * 1e-6, flops / t.cpu * 1e-4 / peak, (double)tokens / t.wall * 1e3);
}

int main(int argc, char **argv) {
    const char *only = argc > 7 ? argv[7] : "";
    int64_t arg[6] = {2048, 12, 64, 64, 0, 64};
    for (int i = 1; i < argc && i <= 6; i++) arg[i - 1] = atoll(argv[i]);
    if (ida_set_threads((int)arg[4])) check(IDA_E_ARG);
    run r = {.dev = ida_cpu_device(), .z = {arg[0], arg[1], arg[2], arg[3], arg[5]}, .steps = arg[0] < 256 ? arg[0] : 256};
    const int64_t cu[2] = {0, arg[0]};
    r.seqs = (ida_seqs){.n = 1, .cu = cu};
    arrays_open(&r.a, &r.z);
    run_open(&r);
    const double t = (double)arg[0], c = (double)arg[5], m = (double)arg[2], w = (double)arg[3], h = (double)arg[1];
    volatile float spin[3] = {1.0f, 1e-9f, 0};
    double peak = 0, lanes = 4;
    void (*spin_here)(volatile float *) = spin_base;
#if defined(__x86_64__)
    if (ida_cpu_isa() == IDA_ISA_AVX2) spin_here = spin_avx2, lanes = 8;
    if (ida_cpu_isa() == IDA_ISA_AVX512) spin_here = spin_avx512, lanes = 16;
#endif
    for (int i = 0; i < 5; i++) {
        const double start = cpu_now();
        spin_here(spin);
        const double rate = 2.0 * TURNS * CHAINS * lanes / (cpu_now() - start) * 1e-9;
        if (rate > peak) peak = rate;
    }
    printf("%s, %d threads, T=%lld H=%lld M=%lld R=D=%lld chunk %lld, peak %.0f GFLOP/s a thread\n", r.dev->name, ida_workers(),
           (long long)arg[0], (long long)arg[1], (long long)arg[2], (long long)arg[3], (long long)arg[5], peak);
    /* Multiply-adds per token and head; a triangle counts half. */
    const double tri = (c + 1) / 2, state = 2 * m * 2 * w;
    const double fwd = tri * (2 * w + 4 * m) + 4 * m * w + 4 * m * m + state;
    const double bwd = tri * (w + 4 * m) + 2 * m * w + 4 * m * m + tri * (4 * w + 8 * m) + 8 * m * w + 8 * m * m + 3 * state;
    const double s_fwd = tri * 2 * w + 2 * state, s_bwd = tri * 4 * w + 6 * state;
    line(only, "interdomain forward", inter_fwd, &r, 2 * fwd * t * h, peak, arg[0]);
    line(only, "interdomain backward", inter_bwd, &r, 2 * bwd * t * h, peak, arg[0]);
    line(only, "s4d forward", s4d_fwd, &r, 2 * s_fwd * t * h, peak, arg[0]);
    line(only, "s4d backward", s4d_bwd, &r, 2 * s_bwd * t * h, peak, arg[0]);
    r.inter.state_in = r.s4d.state_in = (ida_state_ref){r.a.x_re, r.a.x_im, arg[1] * arg[2] * 2 * arg[3]};
    const double step = 6 * m * w + 4 * m * m + 6 * m * w + 2 * m * w * 2;
    line(only, "interdomain step", steps, &r, 2 * step * (double)r.steps * h, peak, r.steps);
    line(only, "s4d step", s4d_steps, &r, 2 * 8 * m * 2 * w * (double)r.steps * h, peak, r.steps);
    if (arg[0] > 4096) return 0;
    r.inter.state_in = (ida_state_ref){NULL, NULL, 0};
    line(only, "interdomain seq forward", inter_seq_fwd, &r, 2 * (step + 4 * m * m) * t * h, peak, arg[0]);
    line(only, "interdomain seq backward", inter_seq_bwd, &r, 4 * (step + 4 * m * m) * t * h, peak, arg[0]);
    return 0;
}
