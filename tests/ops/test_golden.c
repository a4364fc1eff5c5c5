/* test_golden.c - the core against tests/data/golden: float64 vectors of an independent sequential program (T=37 to 130, both
 * read-outs, packed documents with empty ones, initial and final states, every gradient). Double must agree to 1e-10, fp32 to
 * 1e-4, relative: max |ours - golden| / max |golden| for each array. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "core/file.h"
#include "core/mem.h"
#include "io/safetensors.h"
#include "ops/mixer_run.h"
#include "ops/ops.h"

enum { N_IN = 13, N_OUT = 13, N_FWD = 3 };
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

typedef struct golden {
    const char *name;
    ida_mixer_run run; /* sizes and options; pointers are set per run */
    int64_t cu[16], n_in[N_IN], n_out[N_OUT];
    double *in[N_IN], *want[N_OUT];
} golden;

static const ida_st_tensor *tensor(const ida_st_file *f, const char *name) {
    const ida_st_tensor *t = ida_st_find(f, name);
    if (!t) fail_msg("%s lacks %s", f->path, name);
    return t;
}

static double *read_all(const ida_st_file *f, const char *name, int64_t *n) {
    const ida_st_tensor *t = tensor(f, name);
    double *p;
    assert_int_equal(IDA_ALLOC(p, t->numel, name), IDA_OK);
    assert_int_equal(ida_st_read_f64(f, name, t->ndim, t->shape, p), IDA_OK);
    *n = t->numel;
    return p;
}

static void golden_open(golden *g, const char *name) {
    char path[4096];
    ida_st_file *f;
    snprintf(path, sizeof path, "%s/golden/%s", IDA_TEST_DATA, name);
    if (ida_st_open(path, &f)) fail_msg("%s", ida_last_error());
    *g = (golden){.name = name};
    const ida_st_tensor *q = tensor(f, "q"), *v = tensor(f, "v"), *a = tensor(f, "a_log"), *cu = tensor(f, "cu_seqlens");
    assert_true(cu->dtype == IDA_ST_I64 && cu->numel <= 16);
    memcpy(g->cu, cu->data, (size_t)cu->bytes);
    const char *disc = ida_st_meta(f, "discretization"), *readout = ida_st_meta(f, "readout");
    assert_true(!strcmp(disc, "zoh") || !strcmp(disc, "unit"));
    assert_true(!strcmp(readout, "hermitian") || !strcmp(readout, "bilinear"));
    g->run = (ida_mixer_run){.n_tokens = q->shape[0],
                             .n_seq = cu->numel - 1,
                             .n_heads = q->shape[1],
                             .n_kv = v->shape[1],
                             .key_dim = q->shape[2],
                             .value_dim = v->shape[2],
                             .state_size = a->shape[1],
                             .discretization = strcmp(disc, "zoh") ? IDA_DISC_UNIT : IDA_DISC_ZOH,
                             .readout = strcmp(readout, "bilinear") ? IDA_READOUT_HERMITIAN : IDA_READOUT_BILINEAR};
    for (int i = 0; i < N_IN; i++) g->in[i] = read_all(f, in_names[i], &g->n_in[i]);
    for (int i = 0; i < N_OUT; i++) g->want[i] = read_all(f, out_names[i], &g->n_out[i]);
    ida_st_close(f);
}

static void golden_close(golden *g) {
    for (int i = 0; i < N_IN; i++) ida_free(g->in[i]);
    for (int i = 0; i < N_OUT; i++) ida_free(g->want[i]);
}

/* Runs one form; a step form has no gradients. The pointers are of the element type of the device. */
static void run_form(golden *g, const ida_device *dev, bool is_double, ida_form form, int64_t chunk, void *const *in,
                     void *const *out) {
    ida_mixer_run r = g->run;
    r.chunk = chunk, r.cu = g->cu;
    r.q = in[0], r.k = in[1], r.v = in[2], r.log_dt = in[3], r.a_log = in[4], r.a_imag = in[5], r.c_real = in[6],
    r.c_imag = in[7];
    r.state_real = in[8], r.state_imag = in[9], r.grad_o = in[10], r.grad_final_state_real = in[11],
    r.grad_final_state_imag = in[12];
    r.o = out[0], r.final_state_real = out[1], r.final_state_imag = out[2], r.grad_q = out[3], r.grad_k = out[4],
    r.grad_v = out[5];
    r.grad_log_dt = out[6], r.grad_a_log = out[7], r.grad_a_imag = out[8], r.grad_c_real = out[9], r.grad_c_imag = out[10];
    r.grad_state_real = out[11], r.grad_state_imag = out[12];
    for (int pass = 0; pass < (form == IDA_FORM_STEP ? 1 : 2); pass++)
        if (is_double ? ida_ref64_mixer_run(dev, &r, form, pass == 1) : ida_ref_mixer_run(dev, &r, form, pass == 1))
            fail_msg("%s: %s", g->name, ida_last_error());
}

static double compare(const golden *g, int i, void *const *out, bool is_double) {
    double diff = 0, top = 0;
    for (int64_t j = 0; j < g->n_out[i]; j++) {
        const double x = is_double ? ((double *)out[i])[j] : (double)((float *)out[i])[j];
        if (!(fabs(x - g->want[i][j]) <= diff)) diff = fabs(x - g->want[i][j]);
        top = fmax(top, fabs(g->want[i][j]));
    }
    assert_true(top > 0);
    return diff / top;
}

static void check(const ida_device *dev, bool is_double, ida_form form, int64_t chunk, double limit) {
    const size_t size = is_double ? sizeof(double) : sizeof(float);
    char **names;
    int64_t n;
    assert_int_equal(ida_list_dir(IDA_TEST_DATA "/golden", &names, &n), IDA_OK);
    double worst = 0;
    int seen = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!strstr(names[i], ".safetensors")) continue;
        golden g;
        golden_open(&g, names[i]);
        void *in[N_IN], *out[N_OUT];
        for (int j = 0; j < N_IN; j++) {
            assert_int_equal(ida_alloc(&in[j], g.n_in[j], size, "input"), IDA_OK);
            for (int64_t e = 0; e < g.n_in[j]; e++)
                if (is_double)
                    ((double *)in[j])[e] = g.in[j][e];
                else
                    ((float *)in[j])[e] = (float)g.in[j][e];
        }
        for (int j = 0; j < N_OUT; j++) {
            assert_int_equal(ida_alloc(&out[j], g.n_out[j], size, "output"), IDA_OK);
            memset(out[j], 0xff, (size_t)g.n_out[j] * size);
        }
        run_form(&g, dev, is_double, form, chunk, in, out);
        for (int j = 0; j < (form == IDA_FORM_STEP ? N_FWD : N_OUT); j++) {
            const double e = compare(&g, j, out, is_double);
            if (!(e <= limit))
                fail_msg("%s, form %d, chunk %d: %s is off by %.3g, limit %g", names[i], (int)form, (int)chunk, out_names[j], e,
                         limit);
            worst = fmax(worst, e);
        }
        for (int j = 0; j < N_IN; j++) ida_free(in[j]);
        for (int j = 0; j < N_OUT; j++) ida_free(out[j]);
        golden_close(&g);
        seen++;
    }
    ida_names_free(names, n);
    assert_true(seen >= 5);
    print_message("  %s form %d chunk %2d: worst %.2e\n", is_double ? "f64" : dev->name, (int)form, (int)chunk, worst);
}

static void sequential_f64_equals_golden(void **state) {
    (void)state;
    check(&ida_ref64_device, true, IDA_FORM_SEQUENTIAL, 0, 1e-10);
}

static void step_f64_equals_golden(void **state) {
    (void)state;
    check(&ida_ref64_device, true, IDA_FORM_STEP, 0, 1e-10);
}

static void chunked_f64_equals_golden(void **state) {
    (void)state;
    for (int64_t chunk = 0; chunk <= 64; chunk = chunk ? 2 * chunk : 1)
        check(&ida_ref64_device, true, IDA_FORM_CHUNKED, chunk, 1e-10);
}

static void check_f32(const ida_device *dev) {
    check(dev, false, IDA_FORM_SEQUENTIAL, 0, 1e-4);
    check(dev, false, IDA_FORM_STEP, 0, 1e-4);
    for (int64_t chunk = 0; chunk <= 64; chunk = chunk ? 4 * chunk : 1) check(dev, false, IDA_FORM_CHUNKED, chunk, 1e-4);
}

static void ref_f32_equals_golden(void **state) {
    (void)state;
    check_f32(&ida_ref_device);
}

static void every_cpu_isa_equals_golden(void **state) {
    (void)state;
    assert_non_null(ida_cpu_device_for(IDA_ISA_BASE));
    for (int isa = 0; isa < IDA_N_ISA; isa++)
        if (ida_cpu_device_for((ida_isa)isa)) check_f32(ida_cpu_device_for((ida_isa)isa));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequential_f64_equals_golden), cmocka_unit_test(step_f64_equals_golden),
        cmocka_unit_test(chunked_f64_equals_golden),    cmocka_unit_test(ref_f32_equals_golden),
        cmocka_unit_test(every_cpu_isa_equals_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
