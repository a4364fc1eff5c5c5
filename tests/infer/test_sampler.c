/* test_sampler.c - drawing one id: filters against a naive ranking, frequencies against probabilities, determinism, refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "idattn.h"

static ida_sample_options options(double temperature, int64_t k, double p, double min_p) {
    ida_sample_options o;
    ida_sample_defaults(&o);
    o.temperature = temperature;
    o.top_k = k;
    o.top_p = p;
    o.min_p = min_p;
    return o;
}

/* Probabilities after all filters by the plain definition: rank, cut, normalise. */
static void naive(const float *logits, int n, const ida_sample_options *o, double *prob) {
    int rank[1024];
    double w[1024], sum = 0, max = -INFINITY;
    assert_true(n <= 1024);
    for (int i = 0; i < n; i++) max = fmax(max, (double)logits[i]);
    for (int i = 0; i < n; i++) {
        int at = i;
        w[i] = exp(((double)logits[i] - max) / o->temperature);
        for (; at > 0 && w[rank[at - 1]] < w[i]; at--) rank[at] = rank[at - 1];
        rank[at] = i;
    }
    int kept = o->top_k > 0 && o->top_k < n ? (int)o->top_k : n;
    for (int i = 0; i < kept; i++) sum += w[rank[i]];
    if (o->top_p < 1) {
        double run = 0;
        int m = 0;
        while (m < kept && (m == 0 || run < o->top_p * sum)) run += w[rank[m++]];
        kept = m;
    }
    sum = 0;
    for (int i = 0; i < n; i++) prob[i] = 0;
    for (int i = 0; i < kept; i++) {
        if (w[rank[i]] >= o->min_p) sum += prob[rank[i]] = w[rank[i]];
    }
    for (int i = 0; i < n; i++) prob[i] /= sum;
}

static int32_t draw(const float *logits, int64_t n, const ida_sample_options *o, uint64_t index) {
    int32_t id = -1;
    assert_int_equal(ida_sample(logits, n, o, index, &id), IDA_OK);
    assert_true(id >= 0 && id < n);
    return id;
}

static void frequencies_are_the_filtered_probabilities(void **state) {
    (void)state;
    enum { N = 12, DRAWS = 60000 };
    static const float logits[N] = { 0.1f, 2.0f, -1.0f, 1.5f, 1.5f, -3.0f, 0.7f, -INFINITY, 2.0f, 0.0f, -0.5f, 1.0f };
    const ida_sample_options cases[] = {
        options(1, 0, 1, 0),   options(0.7, 0, 1, 0),     options(1.6, 5, 1, 0),    options(1, 0, 0.6, 0),
        options(1, 0, 1, 0.4), options(1.3, 8, 0.8, 0.2), options(1, 4, 0.999, 0), options(2, 0, 0.31, 0.05) };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        double prob[N];
        int count[N] = {0};
        naive(logits, N, &cases[c], prob);
        for (uint64_t i = 0; i < DRAWS; i++) count[draw(logits, N, &cases[c], i)]++;
        for (int i = 0; i < N; i++) {
            double sd = sqrt(prob[i] * (1 - prob[i]) / DRAWS);
            if (prob[i] == 0) assert_int_equal(count[i], 0);
            else assert_true(fabs((double)count[i] / DRAWS - prob[i]) < 4.5 * sd + 1e-9); /* 4.5 sigma: 1 in 150,000 per cell */
        }
    }
}

static void filters_keep_what_a_full_ranking_keeps(void **state) {
    (void)state;
    enum { N = 700 };
    float logits[N];
    double prob[N];
    for (uint64_t c = 0; c < 60; c++) {
        ida_sample_options o = options(0.3 + 2 * ida_uniform(c, IDA_STREAM_TEST, 0), (int64_t)(c % 3 == 0 ? 0 : 1 + c * 7 % 90),
                                       c % 4 == 0 ? 1 : ida_uniform(c, IDA_STREAM_TEST, 1), c % 5 == 0 ? 0.015 * (double)c : 0);
        o.seed = c;
        /* Rounded to quarters: many ties, also at the edges of the filters. */
        for (uint64_t i = 0; i < N; i++) logits[i] = (float)(floor(ida_normal(c, IDA_STREAM_TEST, 10 + i) * 8) / 4);
        naive(logits, N, &o, prob);
        int allowed = 0, seen = 0;
        for (int i = 0; i < N; i++) allowed += prob[i] > 0;
        bool hit[N] = {false};
        for (uint64_t i = 0; i < 600; i++) {
            int32_t id = draw(logits, N, &o, i);
            assert_true(prob[id] > 0);
            seen += !hit[id];
            hit[id] = true;
        }
        if (allowed <= 5) assert_int_equal(seen, allowed);
    }
}

static void greedy_takes_the_lowest_of_equal_ids(void **state) {
    (void)state;
    static const float logits[6] = { -1, 3, 2, 3, 3, -INFINITY };
    ida_sample_options greedy = options(0, 0, 1, 0), one = options(1, 1, 1, 0), cold = options(1e-300, 0, 1, 0);
    ida_sample_options none = options(1, 0, 0, 0);
    for (uint64_t i = 0; i < 50; i++) {
        assert_int_equal(draw(logits, 6, &greedy, i), 1);
        assert_int_equal(draw(logits, 6, &one, i), 1);
        assert_int_equal(draw(logits, 6, &none, i), 1);
        int32_t id = draw(logits, 6, &cold, i); /* no overflow; only the three likeliest are left */
        assert_true(id == 1 || id == 3 || id == 4);
    }
    float huge[3] = { 3e38f, -3e38f, 3e38f };
    assert_int_equal(draw(huge, 3, &greedy, 0), 0);
    ida_sample_options warm = options(1, 0, 0.9, 0);
    assert_true(draw(huge, 3, &warm, 0) != 1);
}

static void a_draw_is_a_pure_function_of_its_arguments(void **state) {
    (void)state;
    float logits[64];
    for (uint64_t i = 0; i < 64; i++) logits[i] = (float)ida_normal(3, IDA_STREAM_TEST, i);
    ida_sample_options a = options(1, 0, 1, 0), b = a;
    b.seed = 1;
    int differ_index = 0, differ_seed = 0;
    for (uint64_t i = 0; i < 100; i++) {
        int32_t x = draw(logits, 64, &a, i);
        assert_int_equal(x, draw(logits, 64, &a, i));
        differ_index += x != draw(logits, 64, &a, i + 1);
        differ_seed += x != draw(logits, 64, &b, i);
    }
    assert_true(differ_index > 50 && differ_seed > 50);
}

static void damaged_logits_are_refused(void **state) {
    (void)state;
    ida_sample_options o = options(1, 0, 0.9, 0), greedy = options(0, 0, 1, 0);
    float nan[3] = { 0, NAN, 1 }, inf[3] = { 0, INFINITY, 1 }, none[3] = { -INFINITY, -INFINITY, -INFINITY };
    const float *bad[3] = { nan, inf, none };
    for (int i = 0; i < 3; i++) {
        int32_t id = 77;
        assert_int_equal(ida_sample(bad[i], 3, &o, 0, &id), IDA_E_NUMERIC);
        assert_int_equal(ida_sample(bad[i], 3, &greedy, 0, &id), IDA_E_NUMERIC);
        assert_int_equal(id, 77);
    }
}

static void options_out_of_range_are_refused_by_name(void **state) {
    (void)state;
    const struct { ida_sample_options o; const char *name; } cases[] = {
        { options(-0.1, 0, 1, 0), "temperature" }, { options(NAN, 0, 1, 0), "temperature" },
        { options(INFINITY, 0, 1, 0), "temperature" },
        { options(1, -1, 1, 0), "top_k" },         { options(1, 0, 1.01, 0), "top_p" },      { options(1, 0, NAN, 0), "top_p" },
        { options(1, 0, -0.5, 0), "top_p" },       { options(1, 0, 1, 1.5), "min_p" },       { options(1, 0, 1, -1), "min_p" } };
    float logits[2] = { 0, 1 };
    int32_t id;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(ida_sample(logits, 2, &cases[i].o, 0, &id), IDA_E_ARG);
        assert_non_null(strstr(ida_last_error(), cases[i].name));
    }
    ida_sample_options fine = options(1, 0, 1, 0);
    assert_int_equal(ida_sample(logits, 0, &fine, 0, &id), IDA_E_ARG);
    assert_int_equal(draw(logits, 1, &fine, 0), 0);
    ida_sample_options large_k = options(1, 1000, 1, 1);
    assert_int_equal(draw(logits, 2, &large_k, 0), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_are_the_filtered_probabilities),
        cmocka_unit_test(filters_keep_what_a_full_ranking_keeps),
        cmocka_unit_test(greedy_takes_the_lowest_of_equal_ids),
        cmocka_unit_test(a_draw_is_a_pure_function_of_its_arguments),
        cmocka_unit_test(damaged_logits_are_refused),
        cmocka_unit_test(options_out_of_range_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
