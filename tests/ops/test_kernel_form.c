#define IDA_REAL double
/* test_kernel_form.c - the ideal form (docs/method.md section 7) against the sums it approaches. Signals: the theory projects
 * functions of time, so keys, queries and values that are smooth in time are its home ground; white noise in time is its worst
 * case and is here so that nobody reads the first result as a promise about text. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>
#include "core/rng.h"
#include "ops/ops.h"

enum { MAX_N = 256, DK = 3, DV = 2, F = 64, SEED = 7 };
static double q[MAX_N * DK], k[MAX_N * DK], v[MAX_N * DV], o[MAX_N * DV], want[MAX_N * DV];

/* Two to four slow waves over the sequence, whatever n is: more tokens sample the same functions more finely. */
static void smooth(int64_t n) {
    for (int64_t t = 0; t < n; t++) {
        const double s = ((double)t + 0.5) / (double)n;
        for (int j = 0; j < DK; j++) {
            k[t * DK + j] = cos(2 * M_PI * (j + 1) * s + j);
            q[t * DK + j] = sin(2 * M_PI * (j + 1) * s + 0.3 * j);
        }
        for (int j = 0; j < DV; j++) v[t * DV + j] = 1 + cos(2 * M_PI * (j + 2) * s);
    }
}

static void noise(int64_t n) {
    for (int64_t i = 0; i < n * DK; i++) {
        q[i] = 0.7 * ida_normal(1, IDA_STREAM_TEST, (uint64_t)i);
        k[i] = 0.7 * ida_normal(2, IDA_STREAM_TEST, (uint64_t)i);
    }
    for (int64_t i = 0; i < n * DV; i++) v[i] = ida_normal(3, IDA_STREAM_TEST, (uint64_t)i);
}

static double rms(const double *a, const double *b, int64_t n) {
    double diff = 0, top = 0;
    for (int64_t i = 0; i < n; i++) {
        diff += (a[i] - b[i]) * (a[i] - b[i]);
        top += b[i] * b[i];
    }
    return sqrt(diff / top);
}

/* Error of basis size m against the sums over the same features. */
static double basis_error(int64_t n, int64_t m) {
    assert_int_equal(ida_kernel_form_exact(want, q, k, v, n, DK, DV, F, SEED, false), IDA_OK);
    assert_int_equal(ida_kernel_form_fwd(o, q, k, v, n, DK, DV, m, F, SEED), IDA_OK);
    return rms(o, want, n * DV);
}

static void error_falls_with_the_basis_on_smooth_signals(void **state) {
    (void)state;
    static const double limit[] = {1, 0.8, 0.4, 0.1, 0.01, 0.001}; /* M = 1, 2, 4, 8, 16, 32 */
    double last = 1e9;
    smooth(MAX_N);
    for (int i = 0; i < 6; i++) {
        const double e = basis_error(MAX_N, 1 << i);
        print_message("  M %2d: %.2e\n", 1 << i, e);
        assert_true(e < last && e < limit[i]);
        last = e;
    }
}

/* What is left at large M is the staircase between tokens: a sum of products of steps, second order in 1/n once there are many
 * tokens (the last quarter; at the first tokens the steps are large whatever n is). */
static void error_at_large_basis_falls_with_finer_sampling(void **state) {
    (void)state;
    double last = 1e9;
    for (int64_t n = 32; n <= MAX_N; n *= 2) {
        smooth(n);
        basis_error(n, 48);
        double e = 0;
        for (int64_t i = 3 * n / 4 * DV; i < n * DV; i++) e = fmax(e, fabs(o[i] - want[i]));
        print_message("  n %3d: %.2e\n", (int)n, e);
        assert_true(e < 0.3 * last);
        last = e;
    }
}

static void white_noise_needs_a_basis_larger_than_the_sequence(void **state) {
    (void)state;
    noise(48);
    const double small = basis_error(48, 12), large = basis_error(48, 192);
    print_message("  n 48: M 12 %.2e, M 192 %.2e\n", small, large);
    assert_true(small > 0.2 && large < small / 8);
}

/* gamma of a constant is constant * eta, and eta = (1,0,..): the ratio is the constant, at any basis size. */
static void constants_pass_unchanged(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        if (kind)
            noise(100);
        else
            smooth(100);
        for (int i = 0; i < 100 * DV; i++) v[i] = 3.25 - i % DV;
        for (int64_t m = 1; m <= 64; m *= 4) assert_true(basis_error(100, m) < 1e-10);
    }
    smooth(1);
    assert_true(basis_error(1, 5) < 1e-12); /* one token: its value */
}

static void features_approach_the_gaussian_kernel(void **state) {
    (void)state;
    double last = 1e9;
    smooth(128);
    assert_int_equal(ida_kernel_form_exact(want, q, k, v, 128, DK, DV, 2, SEED, true), IDA_OK);
    for (int64_t f = 32; f <= 8192; f *= 16) {
        assert_int_equal(ida_kernel_form_exact(o, q, k, v, 128, DK, DV, f, SEED, false), IDA_OK);
        const double e = rms(o, want, 128 * DV);
        print_message("  F %4d: %.2e\n", (int)f, e);
        assert_true(e < 0.6 * last);
        last = e;
    }
    assert_true(last < 0.02);
    assert_int_equal(ida_kernel_form_fwd(o, q, k, v, 128, DK, DV, 24, 2048, SEED), IDA_OK);
    assert_true(rms(o, want, 128 * DV) < 0.05); /* both approximations together */
}

static void bad_sizes_are_refused(void **state) {
    (void)state;
    assert_int_equal(ida_kernel_form_fwd(o, q, k, v, -1, DK, DV, 4, F, 0), IDA_E_ARG);
    assert_int_equal(ida_kernel_form_fwd(o, q, k, v, 4, 0, DV, 4, F, 0), IDA_E_ARG);
    assert_int_equal(ida_kernel_form_fwd(o, q, k, v, 4, DK, DV, 0, F, 0), IDA_E_ARG);
    assert_int_equal(ida_kernel_form_fwd(o, q, k, v, 4, DK, DV, 4, 3, 0), IDA_E_ARG);
    assert_int_equal(ida_kernel_form_exact(o, q, k, v, 4, DK, 0, 4, 0, true), IDA_E_ARG);
    assert_int_equal(ida_kernel_form_fwd(o, q, k, v, 0, DK, DV, 4, F, 0), IDA_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_falls_with_the_basis_on_smooth_signals),
        cmocka_unit_test(error_at_large_basis_falls_with_finer_sampling),
        cmocka_unit_test(white_noise_needs_a_basis_larger_than_the_sequence),
        cmocka_unit_test(constants_pass_unchanged),
        cmocka_unit_test(features_approach_the_gaussian_kernel),
        cmocka_unit_test(bad_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
