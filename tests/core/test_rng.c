/* test_rng.c - Philox, uniforms, normals and the permutation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"

static void philox_gives_the_published_known_answers(void **state) {
    (void)state;
    static const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    static const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    static const uint32_t pi[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    uint32_t r[4];
    ida_philox(0, 0, 0, r);
    assert_memory_equal(r, zero, sizeof r);
    ida_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX, r);
    assert_memory_equal(r, ones, sizeof r);
    /* counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0 */
    ida_philox(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u, r);
    assert_memory_equal(r, pi, sizeof r);
}

static void uniform_is_in_range_and_flat(void **state) {
    (void)state;
    enum { N = 200000, BINS = 20 };
    int bins[BINS] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double u = ida_uniform(7, 1, i);
        assert_true(u >= 0.0 && u < 1.0);
        bins[(int)(u * BINS)]++;
    }
    double chi2 = 0, want = (double)N / BINS;
    for (int b = 0; b < BINS; b++) chi2 += (bins[b] - want) * (bins[b] - want) / want;
    assert_true(chi2 < 43.8); /* 19 degrees of freedom, p = 0.001 */
}

/* The polynomials of rng.c against libm on the same Philox bits: 4 ulp of a value of at most 8.6. */
static void normal_equals_box_muller_of_libm(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 100000; i++) {
        uint32_t r[4];
        ida_philox(11, 3, i, r);
        double u1 = (double)(((((uint64_t)r[1] << 32) | r[0]) >> 11) + 1) * 0x1p-53;
        double u2 = (double)((((uint64_t)r[3] << 32) | r[2]) >> 11) * 0x1p-53;
        double want = sqrt(-2.0 * log(u1)) * cos(2.0 * 3.14159265358979323846 * u2);
        double got = ida_normal(11, 3, i);
        assert_true(isfinite(got));
        assert_true(fabs(got - want) <= 8.6 * 4 * 0x1p-52);
    }
}

static void normal_has_the_moments_of_a_normal(void **state) {
    (void)state;
    enum { N = 400000 };
    double m1 = 0, m2 = 0, m4 = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = ida_normal(5, 9, i);
        m1 += x;
        m2 += x * x;
        m4 += x * x * x * x;
    }
    /* five standard errors: 1, sqrt 2, sqrt 96 over sqrt N */
    assert_true(fabs(m1 / N) < 5.0 * 1.0 / 632.0);
    assert_true(fabs(m2 / N - 1.0) < 5.0 * 1.42 / 632.0);
    assert_true(fabs(m4 / N - 3.0) < 5.0 * 9.8 / 632.0);
}

/* What any machine and compiler must give; it changes only when a seed may come to mean another model. */
static void normal_bits_are_pinned(void **state) {
    (void)state;
    static const uint64_t want[4] = {0x3ff93e93a276bab8, 0x3fe4aac02c487efb, 0x3ff40984b012e6ea, 0xbfd30fb93e409d40};
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        double x = ida_normal(1234, 1 << 20, i);
        uint64_t u;
        memcpy(&u, &x, sizeof u);
        if (i < 4) assert_int_equal(u, want[i]);
        sum = (sum ^ u) * 0x100000001b3u;
    }
    assert_int_equal(sum, 0x6981116c88d42f50);
}

static void permute_is_a_bijection_for_every_small_size(void **state) {
    (void)state;
    unsigned char seen[1025];
    for (uint64_t n = 1; n <= 1025; n += n < 70 ? 1 : 191) {
        for (uint64_t seed = 0; seed < 3; seed++) {
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t p = ida_permute(seed, 1, n, i);
                assert_true(p < n);
                assert_int_equal(seen[p], 0);
                seen[p] = 1;
            }
        }
    }
}

static void permute_of_two_takes_both_orders(void **state) {
    (void)state;
    int swapped = 0;
    for (uint64_t seed = 0; seed < 400; seed++) swapped += ida_permute(seed, 1, 2, 0) == 1;
    assert_in_range(swapped, 140, 260); /* six standard deviations of a fair coin */
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void permute_of_huge_sizes_stays_in_range_and_apart(void **state) {
    (void)state;
    static const uint64_t sizes[] = {(uint64_t)1 << 40, ((uint64_t)1 << 40) + 1, UINT64_MAX};
    enum { N = 20000 };
    uint64_t *v = malloc(N * sizeof *v);
    assert_non_null(v);
    for (size_t s = 0; s < 3; s++) {
        double mean = 0;
        for (uint64_t i = 0; i < N; i++) {
            v[i] = ida_permute(3, 1, sizes[s], i * 3);
            assert_true(v[i] < sizes[s]);
            mean += (double)v[i] / (double)sizes[s] / N;
        }
        assert_true(fabs(mean - 0.5) < 5 * 0.289 / 141.0);
        qsort(v, N, sizeof *v, by_value);
        for (int i = 1; i < N; i++) assert_true(v[i] != v[i - 1]);
    }
    free(v);
}

static void permute_depends_on_seed_and_stream(void **state) {
    (void)state;
    int same_seed = 0, same_stream = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t p = ida_permute(1, 1, 100000, i);
        same_seed += p == ida_permute(2, 1, 100000, i);
        same_stream += p == ida_permute(1, 2, 100000, i);
    }
    assert_true(same_seed < 5 && same_stream < 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_known_answers),
        cmocka_unit_test(uniform_is_in_range_and_flat),
        cmocka_unit_test(normal_equals_box_muller_of_libm),
        cmocka_unit_test(normal_has_the_moments_of_a_normal),
        cmocka_unit_test(normal_bits_are_pinned),
        cmocka_unit_test(permute_is_a_bijection_for_every_small_size),
        cmocka_unit_test(permute_of_two_takes_both_orders),
        cmocka_unit_test(permute_of_huge_sizes_stays_in_range_and_apart),
        cmocka_unit_test(permute_depends_on_seed_and_stream),
    };
    return cmocka_run_group_tests_name("core/rng", tests, NULL, NULL);
}
