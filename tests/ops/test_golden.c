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
#include "golden.h"
#include "ops/ops.h"

/* Runs one form; a step form has no gradients. The pointers are of the element type of the device. */
static void run_form(const golden *g, const ida_device *dev, bool is_double, ida_form form, int64_t chunk, void *const *in,
                     void *const *out) {
    ida_mixer_run r = g->run;
    r.chunk = chunk, r.cu = g->cu;
    golden_bind(&r, in, out);
    for (int pass = 0; pass < (form == IDA_FORM_STEP ? 1 : 2); pass++)
        if (is_double ? ida_ref64_mixer_run(dev, &r, form, pass == 1) : ida_ref_mixer_run(dev, &r, form, pass == 1))
            fail_msg("%s", ida_last_error());
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
        char path[4096];
        snprintf(path, sizeof path, "%s/golden/%s", IDA_TEST_DATA, names[i]);
        if (golden_open(&g, path)) fail_msg("%s", ida_last_error());
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
