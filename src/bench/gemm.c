/* gemm.c - the matrix products of a training step, through the op table, beside what the linked BLAS reaches on a large
 * square product with the same threads. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/rng.h"
#include "bench/bench.h"

typedef struct options { const char *preset; int64_t n, reps; } options;
static const ida_field gemm_rows[] = {
    IDA_ROW_PRESET(options, "125m", "whose shapes"),
    IDA_ROW_INT(options, "N", n, 2048, 1, 1 << 20, .help = "tokens"),
    IDA_ROW_REPS(options, 10, "timed calls"),
};

typedef enum what { FORWARD, DX, DW } what;
typedef struct product {
    const ida_device *dev;
    what op;
    int64_t n, in, out;
    float *x, *w, *y, *dx, *dw;
} product;

static ida_status body(void *arg) {
    product *p = arg;
    const ida_ops *o = p->dev->ops;
    const ida_matrix w = ida_matrix_of(p->dev, p->w, p->out, p->in);
    const ida_act *x = ida_act_of(p->x);
    ida_act *y = ida_act_of(p->y), *dx = p->op == DX ? ida_act_of(p->dx) : NULL;
    if (p->op == FORWARD) return o->linear_fwd(p->dev, y, x, &w, NULL, p->n);
    return o->linear_bwd(p->dev, dx, p->op == DW ? p->dw : NULL, y, x, &w, p->n, false);
}

/* Sampled entries against double sums, relative to the sum of |products|: fp32 sums of K terms stay below 2e-6 there. */
static double sampled_error(const product *p) {
    enum { SAMPLES = 256 };
    int64_t rows = p->op == DW ? p->out : p->n, cols = p->op == FORWARD ? p->out : p->in;
    int64_t k = p->op == FORWARD ? p->in : p->op == DX ? p->out : p->n;
    const float *result = p->op == FORWARD ? p->y : p->op == DX ? p->dx : p->dw;
    double worst = 0;
    for (uint64_t s = 0; s < SAMPLES; s++) {
        int64_t r = (int64_t)(ida_uniform(3, IDA_STREAM_STUDY, 2 * s) * (double)rows),
                c = (int64_t)(ida_uniform(3, IDA_STREAM_STUDY, 2 * s + 1) * (double)cols);
        double sum = 0, mass = 0;
        for (int64_t i = 0; i < k; i++) {
            float a = p->op == FORWARD ? p->x[r * k + i] : p->op == DX ? p->y[r * k + i] : p->y[i * p->out + r];
            float b = p->op == FORWARD ? p->w[c * k + i] : p->op == DX ? p->w[i * p->in + c] : p->x[i * p->in + c];
            sum += (double)a * (double)b;
            mass += fabs((double)a * (double)b);
        }
        double e = fabs((double)result[r * cols + c] - sum) / mass;
        worst = e > worst || isnan(e) ? e : worst;
    }
    return isnan(worst) ? INFINITY : worst;
}

static ida_status one_shape(ida_bench_run *b, const char *name, int64_t n, int64_t in, int64_t out, double rate) {
    static const char *const op_name[] = {"forward", "dx", "dw"};
    product p = {.dev = ida_cpu_device(), .n = n, .in = in, .out = out};
    ida_status st;
    int64_t weights, total;
    float *block = NULL;
    IDA_FAIL_IF(!ida_mul64(in, out, &weights) || !ida_add64(2 * weights, 2 * n * in + n * out, &total), IDA_E_ARG,
                "bench gemm: N=%lld is too large", (long long)n);
    IDA_TRY(IDA_ALLOC(block, total, "the products"));
    p.x = block;
    p.w = p.x + n * in;
    p.y = p.w + weights;
    p.dx = p.y + n * out;
    p.dw = p.dx + n * in;
    ida_bench_fill(p.x, n * in + weights, 1, 2);
    for (int op = FORWARD; op <= DW; op++) {
        double seconds = 0, flops = 2.0 * (double)n * (double)in * (double)out;
        char label[64];
        p.op = (what)op;
        if (op == DX) ida_bench_fill(p.y, n * out, 1, 4);
        if (op == DW) memset(p.dw, 0, (size_t)weights * sizeof *p.dw);
        IDA_TRY_GOTO(body(&p));
        double error = sampled_error(&p);
        snprintf(label, sizeof label, "%s %s", name, op_name[op]);
        IDA_TRY_GOTO(ida_bench_time(b, label, body, &p, &seconds));
        json_t *row = ida_bench_row(b, label, error < 4e-6, error, seconds, flops / rate);
        char shape[64];
        snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)n, (long long)in, (long long)out);
        if (row) json_object_set_new(row, "shape", json_string(shape));
        if (error < 4e-6) ida_row_real(row, "gflops", 1e-9 * flops / seconds);
    }
    st = IDA_OK;
out:
    ida_free(block);
    return st;
}

static ida_status run(ida_bench_run *b) {
    const options *o = b->options;
    ida_config cfg;
    int64_t n = o->n;
    double rate = 0;
    IDA_TRY(ida_config_preset(o->preset, IDA_MIXER_DEFAULT, &cfg));
    IDA_TRY(ida_bench_blas_rate(b, &rate));
    ida_row_real(b->top, "blas_square_gflops", 1e-9 * rate);
    IDA_TRY(one_shape(b, "q, k, v, o", n, cfg.d_model, cfg.d_model, rate));
    IDA_TRY(one_shape(b, "gate, up", n, cfg.d_model, cfg.ffn_hidden, rate));
    IDA_TRY(one_shape(b, "down", n, cfg.ffn_hidden, cfg.d_model, rate));
    return one_shape(b, "lm_head", n, cfg.d_model, cfg.vocab_size, rate);
}

IDA_BENCH(gemm, "gemm", options, gemm_rows, run);
