/* kernel_form.c - a study, not a speed: the ideal form (docs/method.md section 7) against exact kernel attention as the
 * number M of basis functions grows. The signals are smooth functions of time, which is what a projection on M functions can
 * hold. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/rng.h"
#include "bench/bench.h"
#include "report/svg.h"

typedef struct options { int64_t n, features, max_m, reps; const char *out; } options;
static const ida_field kernel_form_rows[] = {
    IDA_ROW_INT(options, "n", n, 256, 2, 65536, .help = "tokens"),
    IDA_ROW_INT(options, "features", features, 256, 2, 65536, .help = "random features, even"),
    IDA_ROW_INT(options, "max_m", max_m, 64, 2, 512, .help = "largest M"),
    IDA_ROW_TEXT(options, "out", out, NULL, "DIR", .help = "folder for kernel-form.svg"),
    IDA_ROW_REPS(options, 3, "timed calls"),
};

enum { DK = 4, DV = 8, MAX_ROWS = 16 };

/* Sums of a few slow sines per channel: keys and queries within about one kernel width. */
static void smooth(double *x, int64_t n, int64_t d, uint64_t salt, double scale) {
    for (int64_t c = 0; c < d; c++)
        for (int64_t t = 0; t < n; t++) {
            double u = (double)t / (double)n, sum = 0;
            for (uint64_t k = 0; k < 3; k++) {
                double phase = 6.283185307179586 * ida_uniform(salt, IDA_STREAM_STUDY, 8 * (uint64_t)c + k);
                sum += sin(6.283185307179586 * (double)(k + 1) * u + phase) / (double)(k + 1);
            }
            x[t * d + c] = scale * sum;
        }
}

static double relative(const double *a, const double *b, int64_t n) {
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        d += (a[i] - b[i]) * (a[i] - b[i]);
        s += b[i] * b[i];
    }
    return sqrt(d / s);
}

typedef struct study {
    double *q, *k, *v, *o, *limit, *exact;
    int64_t n, features, m;
} study;
static ida_status body(void *arg) {
    study *s = arg;
    return ida_kernel_form_fwd(s->o, s->q, s->k, s->v, s->n, DK, DV, s->m, s->features, 9);
}

static ida_status picture(const char *dir, const double *m, const double *to_limit, const double *to_kernel, int64_t n) {
    ida_buf svg = {0};
    ida_series series[] = {{.name = "against the same features, no basis", .x = m, .y = to_limit, .n = n, .marks = true},
                           {.name = "against the exact kernel", .x = m, .y = to_kernel, .n = n, .marks = true,
                            .style = 1 + 1 + IDA_SVG_COLOURS}};
    ida_chart chart = {.title = "Kernel attention by projection on M basis functions",
                       .x_label = "M",
                       .y_label = "relative error",
                       .log_x = true,
                       .log_y = true,
                       .series = series,
                       .n_series = 2};
    char *path = ida_path_join(dir, "kernel-form.svg");
    size_t made = 0;
    ida_status st = path ? ida_mkdirs_made(dir, &made) : ida_fail(IDA_E_NOMEM, __FILE__, __LINE__, "no memory for a path");
    if (!st) st = ida_svg_line_chart(&svg, &chart);
    if (!st) st = ida_write_file(path, svg.data, (size_t)svg.len);
    if (st) ida_rmdirs(dir, made);
    ida_buf_free(&svg);
    ida_free(path);
    return st;
}

static ida_status run(ida_bench_run *b) {
    const options *opt = b->options;
    study s = {.n = opt->n, .features = opt->features};
    int64_t n = 0;
    double *block = NULL, m[MAX_ROWS], to_limit[MAX_ROWS], to_kernel[MAX_ROWS], seconds[MAX_ROWS];
    ida_status st;
    IDA_FAIL_IF(s.features % 2, IDA_E_ARG, "bench kernel-form: features=%lld must be even", (long long)s.features);
    IDA_TRY(IDA_ALLOC(block, s.n * (2 * DK + 4 * DV), "the study"));
    s.q = block;
    s.k = s.q + s.n * DK;
    s.v = s.k + s.n * DK;
    s.o = s.v + s.n * DV;
    s.limit = s.o + s.n * DV;
    s.exact = s.limit + s.n * DV;
    smooth(s.q, s.n, DK, 21, 0.5);
    smooth(s.k, s.n, DK, 22, 0.5);
    smooth(s.v, s.n, DV, 23, 1.0);
    IDA_TRY_GOTO(ida_kernel_form_exact(s.limit, s.q, s.k, s.v, s.n, DK, DV, s.features, 9, false));
    IDA_TRY_GOTO(ida_kernel_form_exact(s.exact, s.q, s.k, s.v, s.n, DK, DV, s.features, 9, true));
    for (s.m = 2; s.m <= opt->max_m && n < MAX_ROWS; s.m *= 2, n++) {
        m[n] = (double)s.m;
        IDA_TRY_GOTO(ida_bench_time(b, "kernel form", body, &s, &seconds[n]));
        to_limit[n] = relative(s.o, s.limit, s.n * DV);
        to_kernel[n] = relative(s.o, s.exact, s.n * DV);
    }
    /* the claim: more basis functions, less error, down to what the features themselves leave */
    bool falls = n > 1 && to_limit[n - 1] < 0.5 * to_limit[0];
    for (int64_t i = 0; i < n; i++) {
        json_t *row = ida_bench_row(b, "kernel form", falls, to_limit[i], seconds[i], 0);
        ida_row_int(row, "m", (int64_t)m[i]);
        ida_row_real(row, "error_to_exact_kernel", to_kernel[i]);
    }
    ida_row_real(b->top, "feature_error", relative(s.limit, s.exact, s.n * DV));
    if (opt->out) IDA_TRY_GOTO(picture(opt->out, m, to_limit, to_kernel, n));
out:
    ida_free(block);
    return st;
}

IDA_BENCH(kernel_form, "kernel-form", options, kernel_form_rows, run);
