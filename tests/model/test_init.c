/* test_init.c - initial values: their laws, their independence of the thread count, the bases and the whitened C. */
#include "model_test.h"

#include <complex.h>

#include "layers/legs.h"

static const double PI = 3.14159265358979323846;

typedef struct moments { double mean, std, min, max; } moments;

static moments moments_of(const ida_model *m, const char *name) {
    const ida_param *p = ida_param_find(&m->table, name);
    if (!p) fail_msg("no tensor %s", name);
    moments r = {0, 0, INFINITY, -INFINITY};
    for (int64_t i = 0; i < p->numel; i++) {
        double v = (double)m->params[p->offset + i];
        r.mean += v / (double)p->numel;
        r.min = fmin(r.min, v);
        r.max = fmax(r.max, v);
    }
    for (int64_t i = 0; i < p->numel; i++) {
        double v = (double)m->params[p->offset + i] - r.mean;
        r.std += v * v / (double)p->numel;
    }
    r.std = sqrt(r.std);
    return r;
}

static ida_model *initial(const ida_config *c, uint64_t seed) {
    ida_model *m = NULL;
    OK(ida_model_new(c, &ida_ref_device, NULL, &m));
    OK(ida_param_init(&m->cfg, &m->table, seed, m->params));
    return m;
}

static uint64_t hash(const ida_model *m) {
    uint64_t h = 0;
    OK(ida_model_hash(m, &h));
    assert_true(h != 0);
    return h;
}

/* n draws of unit variance: their standard deviation is within 5/sqrt(2n) of 1 but for one run in a million. */
static void assert_std(const ida_model *m, const char *name, double want) {
    moments r = moments_of(m, name);
    double n = (double)ida_param_find(&m->table, name)->numel;
    if (fabs(r.std / want - 1) > 5 / sqrt(2 * n) || fabs(r.mean) > 5 * want / sqrt(n))
        fail_msg("%s: mean %g, std %g, wanted 0, %g", name, r.mean, r.std, want);
}

static void values_follow_the_method(void **s) {
    (void)s;
    ida_config c;
    OK(ida_config_preset("tiny", IDA_MIXER_INTERDOMAIN, &c));
    c.gate = c.output_norm = true;
    c.layer_mixer[1] = IDA_MIXER_S4D;
    c.n_heads = c.n_kv_heads = 8;
    ida_model *m = initial(&c, 5);
    assert_std(m, "model.embed_tokens.weight", 0.02);
    assert_std(m, "lm_head.weight", 0.02);
    assert_std(m, "model.layers.0.mixer.q_proj.weight", 0.02);
    assert_std(m, "model.layers.0.mixer.g_proj.weight", 0.02);
    assert_std(m, "model.layers.0.mixer.o_proj.weight", 0.02 / sqrt(4));
    assert_std(m, "model.layers.0.mlp.down_proj.weight", 0.02 / sqrt(4));
    assert_std(m, "model.layers.0.mlp.up_proj.weight", 0.02);
    assert_std(m, "model.layers.0.mixer.c.real", sqrt(0.5 / 16)); /* E|C|^2 = 1/M, half in each part */
    assert_std(m, "model.layers.0.mixer.c.imag", sqrt(0.5 / 16));
    assert_std(m, "model.layers.1.mixer.w", 0.25);
    moments r = moments_of(m, "model.layers.0.mixer.q_conv.weight");
    assert_true(r.min >= -0.5 && r.max <= 0.5 && fabs(r.std - 1 / sqrt(12)) < 0.03);
    r = moments_of(m, "model.layers.0.mixer.log_dt");
    assert_true(r.min >= log(1e-3) - 1e-6 && r.max <= log(1e-1) + 1e-6 && r.max > r.min);
    r = moments_of(m, "model.layers.0.mixer.a_log");
    assert_true(r.min == r.max && fabs(r.min - log(0.5)) < 1e-7);
    static const char *const ones[] = {"model.norm.weight", "model.layers.0.input_layernorm.weight",
                                       "model.layers.0.mixer.k_norm.weight", "model.layers.0.mixer.o_norm.weight"};
    for (int i = 0; i < 4; i++) {
        r = moments_of(m, ones[i]);
        assert_true(r.min == 1 && r.max == 1);
    }
    r = moments_of(m, "model.layers.0.mixer.v_norm.bias");
    assert_true(r.min == 0 && r.max == 0);
    ida_model_free(m);
}

static void bases_follow_the_method(void **s) {
    (void)s;
    for (int b = 0; b < 3; b++) {
        ida_config c = small_config(IDA_MIXER_INTERDOMAIN, 11, 16, 2, 6);
        c.basis = (ida_basis)b;
        ida_model *m = initial(&c, 1);
        double legs[6];
        ida_legs_frequencies(6, legs);
        for (int n = 0; n < 12; n++) {
            double i = n % 6, want = b == IDA_BASIS_S4D_INV   ? 6 / PI * (6 / (2 * i + 1) - 1)
                                     : b == IDA_BASIS_S4D_LIN ? PI * i
                                                              : legs[n % 6];
            assert_true(fabs((double)tensor_of(m, "model.layers.0.mixer.a_imag")[n] - want) < 1e-6 * (1 + fabs(want)));
        }
        ida_model_free(m);
    }
}

/* The skew part K of order N = 2m: sum of squares of its entries = 2 sum w^2; characteristic polynomial of N = 4 by hand. */
static void legs_frequencies_are_eigenvalues(void **s) {
    (void)s;
    double w[64];
    ida_legs_frequencies(1, w);
    assert_true(fabs(w[0] - sqrt(3) / 2) < 1e-14);
    /* N = 4: x^2 - S x + P^2 with x = w^2, S = sum of squares above the diagonal, P the Pfaffian. */
    ida_legs_frequencies(2, w);
    double k[4][4], sum = 0;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) k[i][j] = 0.5 * sqrt((2 * i + 1) * (2 * j + 1)) * (j > i ? 1 : j < i ? -1 : 0);
    for (int i = 0; i < 4; i++)
        for (int j = i + 1; j < 4; j++) sum += k[i][j] * k[i][j];
    double pf = k[0][1] * k[2][3] - k[0][2] * k[1][3] + k[0][3] * k[1][2], root = sqrt(sum * sum / 4 - pf * pf);
    assert_true(fabs(w[0] * w[0] - (sum / 2 - root)) < 1e-12 && fabs(w[1] * w[1] - (sum / 2 + root)) < 1e-12);
    for (int m = 1; m <= 64; m *= 2) {
        ida_legs_frequencies(m, w);
        double got = 0, want = 0;
        for (int i = 0; i < m; i++) {
            got += w[i] * w[i];
            assert_true(i == 0 || w[i] > w[i - 1]);
        }
        for (int i = 0; i < 2 * m; i++)
            for (int j = i + 1; j < 2 * m; j++) want += 0.25 * (2 * i + 1) * (2 * j + 1);
        assert_true(fabs(got - want) < 1e-10 * want);
    }
}

/* C Gram C^H, Gram = E[X X^H] for white input, computed here from Lam and Bbar. */
static void whitened_c_makes_the_read_out_white(void **s) {
    (void)s;
    for (int b = 0; b < 3; b++)
        for (int disc = 0; disc < 4; disc++) {
            enum { M = 8 };
            ida_config c = small_config(IDA_MIXER_INTERDOMAIN, 11, 16, 2, M);
            c.basis = (ida_basis)b;
            c.discretization = (ida_discretization)disc;
            c.c_init = IDA_C_WHITENED;
            ida_model *m = initial(&c, 7);
            ida_ssm ssm = {.log_dt = tensor_of(m, "model.layers.0.mixer.log_dt"),
                           .a_log = tensor_of(m, "model.layers.0.mixer.a_log"),
                           .a_imag = tensor_of(m, "model.layers.0.mixer.a_imag"), .disc = c.discretization};
            double p[4 * M];
            double complex gram[M][M], x[M][M];
            for (int g = 0; g < 2; g++) {
                ida_ref_ssm_discretize(&ssm, g, M, p, p + M, p + 2 * M, p + 3 * M);
                double trace = 0;
                for (int i = 0; i < M; i++)
                    for (int j = 0; j < M; j++) {
                        double complex li = p[i] + I * p[M + i], lj = p[j] + I * p[M + j];
                        gram[i][j] =
                            (p[2 * M + i] + I * p[3 * M + i]) * conj(p[2 * M + j] + I * p[3 * M + j]) / (1 - li * conj(lj));
                        if (i == j) trace += creal(gram[i][i]);
                    }
                for (int i = 0; i < M; i++) gram[i][i] += 1e-4 * trace / M; /* the documented ridge */
                const float *re = tensor_of(m, "model.layers.0.mixer.c.real") + g * M * M;
                const float *im = tensor_of(m, "model.layers.0.mixer.c.imag") + g * M * M;
                for (int i = 0; i < M; i++)
                    for (int j = 0; j < M; j++) {
                        x[i][j] = 0;
                        for (int k = 0; k < M; k++) x[i][j] += ((double)re[i * M + k] + I * (double)im[i * M + k]) * gram[k][j];
                    }
                for (int i = 0; i < M; i++)
                    for (int j = 0; j < M; j++) {
                        double complex y = 0;
                        for (int k = 0; k < M; k++) y += x[i][k] * conj((double)re[j * M + k] + I * (double)im[j * M + k]);
                        /* C is rounded to fp32: 6e-8 times the condition of Gram, at most 1e4 M. */
                        if (cabs(y - (i == j)) > 2e-3)
                            fail_msg("basis %d, disc %d: C Gram C^H [%d][%d] = %g %+gi", b, disc, i, j, creal(y), cimag(y));
                    }
            }
            ida_model_free(m);
        }
}

static void identity_c_is_the_identity(void **s) {
    (void)s;
    ida_config c = small_config(IDA_MIXER_INTERDOMAIN, 11, 16, 2, 5);
    c.c_init = IDA_C_IDENTITY;
    ida_model *m = initial(&c, 7);
    for (int g = 0; g < 2; g++)
        for (int i = 0; i < 5; i++)
            for (int j = 0; j < 5; j++) {
                assert_true(tensor_of(m, "model.layers.1.mixer.c.real")[g * 25 + i * 5 + j] == (i == j));
                assert_true(tensor_of(m, "model.layers.1.mixer.c.imag")[g * 25 + i * 5 + j] == 0);
            }
    ida_model_free(m);
}

static void values_do_not_depend_on_threads_but_on_the_seed(void **s) {
    (void)s;
    int before = ida_get_threads();
    ida_config c;
    OK(ida_config_preset("demo", IDA_MIXER_INTERDOMAIN, &c));
    c.c_init = IDA_C_WHITENED;
    OK(ida_set_threads(1));
    ida_model *a = initial(&c, 42);
    OK(ida_set_threads(3));
    ida_model *b = initial(&c, 42), *d = initial(&c, 43);
    OK(ida_set_threads(before));
    assert_true(same_bits(a->params, b->params, a->table.block)); /* the gaps between tensors too */
    assert_false(same_bits(a->params, d->params, a->table.block));
    assert_true(hash(a) == hash(b));
    assert_true(hash(a) != hash(d));
    b->params[b->table.params[b->table.n - 1].offset] += 1;
    assert_true(hash(a) != hash(b));
    ida_model_free(a);
    ida_model_free(b);
    ida_model_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_follow_the_method),
        cmocka_unit_test(bases_follow_the_method),
        cmocka_unit_test(legs_frequencies_are_eigenvalues),
        cmocka_unit_test(whitened_c_makes_the_read_out_white),
        cmocka_unit_test(identity_c_is_the_identity),
        cmocka_unit_test(values_do_not_depend_on_threads_but_on_the_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
