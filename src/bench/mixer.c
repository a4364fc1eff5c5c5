/* mixer.c - the interdomain core on one sequence: the chunked form beside the two ways to go token by token. The step form
 * (T calls of the decoding op) has the same element type, instruction set and threads as the chunked one: its figure is what
 * chunking gives. The sequential form is the reference, which sums in double on one thread and is slow for that reason too.
 * All give the same outputs, the two trainable ones the same gradients, which is the check. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "layers/call.h"

typedef struct options { int64_t T, heads, head_dim, state, chunk, reps; } options;
static const ida_field mixer_rows[] = {
    IDA_ROW_INT(options, "T", T, 4096, 1, 1 << 20, .help = "tokens"),
    IDA_ROW_INT(options, "heads", heads, 12, 1, 256, .help = "heads"),
    IDA_ROW_INT(options, "head_dim", head_dim, 64, 1, 512, .help = "R = D"),
    IDA_ROW_INT(options, "state", state, 64, 1, 512, .help = "M"),
    IDA_ROW_INT(options, "chunk", chunk, IDA_MIXER_CHUNK, 1, IDA_MIXER_CHUNK, .help = "chunk length"),
    IDA_ROW_REPS(options, 10, "timed calls"),
};

enum form { CHUNKED, SEQUENTIAL, STEP };

typedef struct core {
    const ida_device *dev;
    ida_interdomain_args a;
    ida_ssm_prep prep; /* of the step form; its state is `state`: re, then im */
    float *state;
    ida_interdomain_grads g;
    int64_t T, h, d, m, cu[2], n_grads;
    ida_seqs seqs;
    float *block, *grads, *o; /* grads: dq, dk, dv, then the parameters' */
    enum form form;
    bool backward;
} core;

/* The whole sequence in the step form, from a zero state. */
static ida_status steps(core *c) {
    int64_t row = c->h * c->d, n = 2 * c->m * row;
    ida_interdomain_args a = c->a;
    a.state_in = (ida_state_ref){c->state, c->state + n, n};
    memset(c->state, 0, (size_t)(2 * n) * sizeof *c->state);
    for (int64_t t = 0; t < c->T; t++) {
        a.q = ida_act_at(c->dev, c->a.q, t * row);
        a.k = ida_act_at(c->dev, c->a.k, t * row);
        a.v = ida_act_at(c->dev, c->a.v, t * row);
        a.o = ida_act_at(c->dev, c->a.o, t * row);
        IDA_TRY(c->dev->ops->interdomain_step(c->dev, &a, &c->prep, 1));
    }
    return IDA_OK;
}

static ida_status body(void *arg) {
    core *c = arg;
    const ida_ops *o = c->dev->ops;
    bool chunked = c->form == CHUNKED;
    if (c->form == STEP) return steps(c);
    IDA_TRY(chunked ? o->interdomain_chunk_fwd(c->dev, &c->a, &c->seqs) : o->interdomain_seq_fwd(c->dev, &c->a, &c->seqs));
    if (!c->backward) return IDA_OK;
    int64_t n = 3 * c->T * c->h * c->d;
    memset(c->grads + n, 0, (size_t)(c->n_grads - n) * sizeof *c->grads); /* parameter gradients are "+=" */
    return chunked ? o->interdomain_chunk_bwd(c->dev, &c->a, &c->g, &c->seqs)
                   : o->interdomain_seq_bwd(c->dev, &c->a, &c->g, &c->seqs);
}

/* Inputs as the model makes them at the start of training: unit features, decay rates spread over the heads, C of
 * variance 1/M. */
static void fill(core *c, float *p) {
    int64_t n = c->T * c->h * c->d, h = c->h, m = c->m;
    double unit = sqrt(3.0 / (double)c->d);
    float *q = p, *k = q + n, *v = k + n, *dout = v + n, *log_dt = dout + n, *a_log = log_dt + h, *a_imag = a_log + h * m,
          *c_re = a_imag + h * m, *c_im = c_re + h * m * m;
    ida_bench_fill(q, n, unit, 11);
    ida_bench_fill(k, n, sqrt(3.0), 12);
    ida_bench_fill(v, n, sqrt(3.0), 13);
    ida_bench_fill(dout, n, 1, 14);
    ida_bench_fill(c_re, h * m * m, sqrt(1.5 / (double)m), 15);
    ida_bench_fill(c_im, h * m * m, sqrt(1.5 / (double)m), 16);
    for (int64_t i = 0; i < h; i++) {
        log_dt[i] = (float)(log(1e-3) + log(100.0) * ((double)i + 0.5) / (double)h);
        for (int64_t j = 0; j < m; j++)
            a_log[i * m + j] = (float)log(0.5), a_imag[i * m + j] = (float)(3.14159265358979 * (double)j);
    }
    c->a.q = ida_act_of(q);
    c->a.k = ida_act_of(k);
    c->a.v = ida_act_of(v);
    c->a.ssm = (ida_ssm){log_dt, a_log, a_imag, c_re, c_im, IDA_DISC_ZOH};
    c->g.dout = ida_act_of(dout);
    float *g = c->grads;
    c->g.dq = ida_act_of(g);
    c->g.dk = ida_act_of(g + n);
    c->g.dv = ida_act_of(g + 2 * n);
    g += 3 * n;
    c->g.dssm = (ida_ssm_grads){g, g + h, g + h + h * m, g + h + 2 * h * m, g + h + 2 * h * m + h * m * m};
}

static ida_status row(ida_bench_run *b, core *c, double rate, double error, double *seconds) {
    static const char *const names[] = {[CHUNKED] = "chunked", [SEQUENTIAL] = "sequential", [STEP] = "step form"},
                            *const notes[] = {[CHUNKED] = "", [SEQUENTIAL] = " (double, 1 thread)", [STEP] = ", T calls"};
    /* docs/method.md sections 4 and 6, complex products as real ones, nothing skipped above the diagonal; backward is twice
     * forward */
    double C = (double)c->a.chunk, m = (double)c->m, d = (double)c->d;
    double chunked = 4 * C * d + 8 * C * m + 16 * m * d + 8 * m * m, one = 28 * m * d + 8 * m * m;
    double flops = c->form == CHUNKED ? chunked : c->form == STEP ? one : one + 8 * m * m;
    double all = flops * (double)c->T * (double)c->h * (c->backward ? 3 : 1);
    char what[64];
    snprintf(what, sizeof what, "%s %s%s", names[c->form], c->backward ? "forward+backward" : "forward", notes[c->form]);
    IDA_TRY(ida_bench_time(b, what, body, c, seconds));
    json_t *r = ida_bench_row(b, what, error < 1e-4, error, *seconds, all / rate);
    if (error < 1e-4) {
        ida_row_real(r, "gflops", 1e-9 * all / *seconds);
        ida_row_real(r, "tokens_per_s", (double)c->T / *seconds);
    }
    return IDA_OK;
}

/* Outputs and gradients against the sequential form's; each array relative to its own largest value. */
static ida_status compare(core *c, double *error) {
    int64_t n = c->T * c->h * c->d, pos = 0,
            size[8] = {n, n, n, c->h, c->h * c->m, c->h * c->m, c->h * c->m * c->m, c->h * c->m * c->m};
    float *was = NULL;
    ida_status st;
    IDA_TRY(IDA_ALLOC(was, n + c->n_grads, "the check"));
    c->backward = true;
    c->form = SEQUENTIAL;
    IDA_TRY_GOTO(body(c));
    memcpy(was, c->o, (size_t)n * sizeof *was);
    memcpy(was + n, c->grads, (size_t)c->n_grads * sizeof *was);
    c->form = CHUNKED;
    IDA_TRY_GOTO(body(c));
    *error = ida_max_error(c->o, was, n);
    for (int i = 0; i < 8; pos += size[i++]) *error = fmax(*error, ida_max_error(c->grads + pos, was + n + pos, size[i]));
    c->form = STEP;
    IDA_TRY_GOTO(body(c));
    *error = fmax(*error, ida_max_error(c->o, was, n));
out:
    ida_free(was);
    return st;
}

static ida_status run(ida_bench_run *b) {
    const options *o = b->options;
    core c = {.dev = ida_cpu_device(), .T = o->T, .h = o->heads, .d = o->head_dim, .m = o->state};
    double rate = 0, error = 0;
    int64_t n = c.T * c.h * c.d, gm = c.h * c.m, gmm = gm * c.m, params = c.h + 2 * gm + 2 * gmm;
    float *prep = NULL;
    ida_status st;
    c.n_grads = 3 * n + params;
    IDA_TRY(ida_bench_blas_rate(b, &rate));
    IDA_TRY_GOTO(IDA_ALLOC(c.block, 5 * n + params + c.n_grads, "the mixer's inputs and gradients"));
    IDA_TRY_GOTO(IDA_ALLOC(c.state, 4 * gm * c.d, "the mixer's state"));
    IDA_TRY_GOTO(IDA_ALLOC(prep, 4 * gm + 2 * gmm, "the step form's tables"));
    c.o = c.block + 4 * n + params;
    c.grads = c.o + n;
    c.cu[1] = c.T;
    c.seqs = (ida_seqs){1, c.cu, NULL};
    c.a = (ida_interdomain_args){
        .h = c.h, .g = c.h, .r = c.d, .d = c.d, .m = c.m, .chunk = o->chunk, .readout = IDA_READOUT_HERMITIAN,
        .o = ida_act_of(c.o)};
    fill(&c, c.block);
    c.prep = (ida_ssm_prep){prep, prep + gm, prep + 2 * gm, prep + 3 * gm, prep + 4 * gm, prep + 4 * gm + gmm};
    ida_ref_ssm_prepare(&c.a.ssm, c.h, c.m, c.a.readout, NULL, &c.prep);
    IDA_TRY_GOTO(compare(&c, &error));
    static const struct { enum form form; bool backward; } runs[] = {
        {CHUNKED, false}, {SEQUENTIAL, false}, {CHUNKED, true}, {SEQUENTIAL, true}, {STEP, false}};
    double seconds[5];
    for (int i = 0; i < 5; i++) {
        c.form = runs[i].form;
        c.backward = runs[i].backward;
        IDA_TRY_GOTO(row(b, &c, rate, error, &seconds[i]));
    }
    if (error < 1e-4) {
        ida_row_real(b->top, "speedup_forward", seconds[1] / seconds[0]);
        ida_row_real(b->top, "speedup_forward_backward", seconds[3] / seconds[2]);
        ida_row_real(b->top, "speedup_over_step", seconds[4] / seconds[0]);
    }
out:
    ida_free(prep);
    ida_free(c.state);
    ida_free(c.block);
    return st;
}

IDA_BENCH(mixer, "mixer", options, mixer_rows, run);
