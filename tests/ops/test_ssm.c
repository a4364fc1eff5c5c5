#define IDA_REAL double
/* test_ssm.c - Lam, Bbar and their chain rule against long double evaluations, from the slowest to the fastest decay; poles that
 * can never leave the unit disc; the phase of a pole after a million steps. */
#include "mixer_case.h"
#include <complex.h>

typedef long double complex cplxl;

/* sum_{n>=1} n x^(n-1)/(n+1)! and sum_{n>=0} x^n/(n+1)!; the closed forms where the series would cancel. */
static cplxl psi(cplxl x) {
    if (cabsl(x) > 4) return (cexpl(x) - (cexpl(x) - 1) / x) / x;
    cplxl sum = 0, term = 0.5L;
    for (int n = 1; n < 80; n++) {
        sum += term;
        term *= x * (long double)(n + 1) / ((long double)n * (n + 2));
    }
    return sum;
}
static cplxl phi1(cplxl x) {
    if (cabsl(x) > 4) return (cexpl(x) - 1) / x;
    cplxl sum = 0, term = 1;
    for (int n = 0; n < 80; n++) {
        sum += term;
        term *= x / (n + 2);
    }
    return sum;
}

static void zoh_and_its_gradient_are_accurate_at_any_size(void **state) {
    (void)state;
    for (int i = 0; i < 10000; i++) {
        const uint64_t at = 4 * (uint64_t)i;
        const double log_dt = -30 * ida_uniform(41, IDA_STREAM_TEST, at),
                     a_log = -3 + 6 * ida_uniform(41, IDA_STREAM_TEST, at + 1);
        const double a_imag = i % 3 ? 20 * (ida_uniform(41, IDA_STREAM_TEST, at + 2) - 0.5) : 0, zero = 0;
        double lam_re, lam_im, b_re, b_im, g_dt, g_log, g_imag;
        const ida_ssm s = {&log_dt, &a_log, &a_imag, &zero, &zero, IDA_DISC_ZOH};
        ida_ref64_ssm_discretize(&s, 0, 1, &lam_re, &lam_im, &b_re, &b_im);
        const long double dt = expl(log_dt);
        const cplxl a = -expl(a_log) + a_imag * (cplxl)I, x = dt * a, lam = cexpl(x), b = dt * phi1(x), da = dt * dt * psi(x);
        assert_true(cabsl(lam_re + lam_im * (cplxl)I - lam) <= 4e-15L * (1 + cabsl(x)) * cabsl(lam));
        assert_true(cabsl(b_re + b_im * (cplxl)I - b) <= 2e-15L * cabsl(b));
        for (int part = 0; part < 2; part++) { /* dBbar = 1, then i */
            const double db_re = part ? 0 : 1, db_im = part ? 1 : 0;
            const ida_ssm_grads g = {&g_dt, &g_log, &g_imag, NULL, NULL};
            g_dt = g_log = g_imag = 0;
            ida_ref64_ssm_log_bwd(&s, 0, 1, &zero, &zero, &db_re, &db_im, &g);
            const cplxl db = db_re + db_im * (cplxl)I, want_a = conjl(da) * db;
            assert_true(fabsl(g_log - creall(a) * creall(want_a)) <= 2e-14L * cabsl(a) * cabsl(da));
            assert_true(fabsl(g_imag - cimagl(want_a)) <= 2e-14L * cabsl(da));
            assert_true(fabsl(g_dt - dt * creall(conjl(lam) * db)) <= 1e-14L * dt * (1 + cabsl(x)));
        }
    }
}

/* Whatever training does to the parameters, a pole stays inside the unit disc and nothing becomes NaN or infinite. */
static void poles_never_leave_the_unit_disc(void **state) {
    (void)state;
    static const double extreme[] = {-1e30, -1e3, -300, -40, -1, 0, 1, 40, 300, 1e3, 1e30};
    enum { N = sizeof extreme / sizeof *extreme };
    for (int i = 0; i < N * N * N; i++) {
        const double log_dt = extreme[i % N], a_log = extreme[i / N % N], a_imag = extreme[i / N / N], one = 1;
        for (int disc = 0; disc < 4; disc++) {
            double v[8], g[3] = {0};
            const ida_ssm s = {&log_dt, &a_log, &a_imag, &one, &one, (ida_discretization)disc};
            const ida_ssm_grads grads = {&g[0], &g[1], &g[2], NULL, NULL};
            ida_ref64_ssm_discretize(&s, 0, 1, v, v + 1, v + 2, v + 3);
            ida_ref64_ssm_log_lam(&s, 0, 1, v + 4, v + 5);
            const ida_ssm_prep prep = {v + 4, v + 5, v + 6, v + 7, g, g + 1};
            assert_true(v[4] < 0 && fabs(v[5]) <= 3.1416);
            ida_ref64_ssm_prepare(&s, 1, 1, IDA_READOUT_HERMITIAN, NULL, &prep);
            assert_true(v[4] * v[4] + v[5] * v[5] <= 1);
            g[0] = g[1] = 0;
            ida_ref64_ssm_log_bwd(&s, 0, 1, &one, &one, &one, &one, &grads);
            for (int j = 0; j < 8; j++) assert_true(isfinite(v[j]));
            for (int j = 0; j < 3; j++) assert_true(isfinite(g[j]));
        }
    }
    const double nan_dt = NAN, zero = 0;
    double v[4];
    const ida_ssm s = {&nan_dt, &zero, &zero, &zero, &zero, IDA_DISC_ZOH};
    ida_ref64_ssm_discretize(&s, 0, 1, v, v + 1, v + 2, v + 3);
    assert_true(isnan(v[0]) && isnan(v[2])); /* a NaN parameter is not hidden */
}

/* A free pole after 1e6 steps: magnitude and angle against long double. The step angle is far above 2 pi in the second case. */
static void phase_is_exact_after_a_million_steps(void **state) {
    (void)state;
#ifdef IDA_DEBUG
    enum { N = 100000 }; /* sanitizers are slow */
#else
    enum { N = 1000000 };
#endif
    static const double omega[] = {2.5, 200.7};
    for (int i = 0; i < 2; i++) {
        for (int f = SEQ; f <= CHUNK; f++) {
            const int64_t cu[] = {0, N};
            mcase c = {.s4d = true, .h = 1, .g = 1, .r = 1, .d = 1, .m = 1, .n = N, .n_seq = 1, .cu = cu};
            case_fill(&c, 42);
            memset(c.in[IN_K], 0, N * sizeof(double));
            memset(c.in[IN_V], 0, N * sizeof(double));
            c.in[IN_LOG_DT][0] = 0, c.in[IN_A_LOG][0] = log(1e-9), c.in[IN_A_IMAG][0] = omega[i];
            for (int j = 0; j < 2; j++) c.in[IN_STATE_RE][j] = 1, c.in[IN_STATE_IM][j] = 0;
            case_forward(&c, (form)f);
            const long double size = expl(-(long double)N * 1e-9L), angle = (long double)N * (long double)omega[i];
            const double e_re = fabs(c.out[OUT_FINAL_RE][0] - (double)(size * cosl(angle)));
            const double e_im = fabs(c.out[OUT_FINAL_IM][0] - (double)(size * sinl(angle)));
            const double limit =
                f == CHUNK ? 1e-10 : 1e-9; /* 1e6 roundings of Lam and of products at 1e-16 add up, 64 times fewer in chunks */
            if (!(e_re <= limit && e_im <= limit)) fail_msg("form %d, angle %g per step: off by %g, %g", f, omega[i], e_re, e_im);
            case_free(&c);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zoh_and_its_gradient_are_accurate_at_any_size),
        cmocka_unit_test(poles_never_leave_the_unit_disc),
        cmocka_unit_test(phase_is_exact_after_a_million_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
