#define IDA_REAL double
/* test_mixer_ref.c - the double reference of interdomain and s4d: finite differences of every input, the three forms against each
 * other and against the textbook formula, extreme decays, and the identities of the map. Pieces and packed documents:
 * test_mixer_cuts.c. Limits: identities in double allow 1e-11 of the largest value (sums of up to 1e4 terms at 1e-16, with
 * cancellation). */
#include "mixer_case.h"
#include <complex.h>

typedef double complex cplx;
static const ida_discretization discs[] = {IDA_DISC_ZOH, IDA_DISC_EULER, IDA_DISC_UNIT, IDA_DISC_NORM};

/* Four-point central difference of the loss: truncation h^4 f^(5)/30, rounding 1e-16/h; both near 1e-12 at h = 1e-3. */
static double difference(mcase *c, form f, double *x) {
    static const double step[] = {1, -1, 2, -2}, weight[] = {8, -8, -1, 1};
    const double x0 = *x, h = 1e-3;
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        *x = x0 + step[i] * h;
        sum += weight[i] * case_loss(c, f);
    }
    *x = x0;
    return sum / (12 * h);
}

/* Every element of every input against the sequential and the chunked gradient. Parameter gradients started at 0.5. */
static void check_differences(mcase *c, uint64_t seed, const char *what) {
    case_fill(c, seed);
    case_backward(c, SEQ);
    mcase b = case_copy(c);
    case_backward(&b, CHUNK);
    for (int i = 0; i < N_IN; i++) {
        double worst = 0, worst_chunk = 0, top = 1;
        for (int64_t j = 0; j < c->n_in[i]; j++) {
            const double start = is_param(c, i) ? 0.5 : 0, d = difference(c, SEQ, &c->in[i][j]) + start;
            if (!(fabs(c->grad[i][j] - d) <= worst)) worst = fabs(c->grad[i][j] - d);
            if (!(fabs(b.grad[i][j] - d) <= worst_chunk)) worst_chunk = fabs(b.grad[i][j] - d);
            top = fmax(top, fabs(d));
        }
        if (!(worst <= 1e-8 * top)) fail_msg("%s: sequential gradient of %s is off by %g", what, in_name[i], worst);
        if (!(worst_chunk <= 1e-8 * top)) fail_msg("%s: chunked gradient of %s is off by %g", what, in_name[i], worst_chunk);
    }
    case_free(&b);
    case_free(c);
}

static const int64_t ragged[] = {0, 0, 5, 5, 7, 7};

static void L09_gradients_equal_finite_differences(void **state) {
    (void)state;
    char what[64];
    for (int readout = 0; readout < 2; readout++) {
        for (int disc = 0; disc < 4; disc++) {
            for (int grouped = 0; grouped < 2; grouped++) {
                mcase c = {.h = 4,
                           .g = grouped ? 2 : 4,
                           .r = 3,
                           .d = 2,
                           .m = 3,
                           .n = 7,
                           .n_seq = 5,
                           .chunk = 4,
                           .cu = ragged,
                           .disc = discs[disc],
                           .readout = readout ? IDA_READOUT_BILINEAR : IDA_READOUT_HERMITIAN};
                snprintf(what, sizeof what, "interdomain readout %d disc %d grouped %d", readout, disc, grouped);
                check_differences(&c, 17, what);
            }
        }
    }
}

static void L09_s4d_gradients_equal_finite_differences(void **state) {
    (void)state;
    char what[64];
    for (int disc = 0; disc < 4; disc++) {
        mcase c = {.s4d = true,
                   .h = 2,
                   .g = 2,
                   .r = 3,
                   .d = 2,
                   .m = 3,
                   .n = 7,
                   .n_seq = 5,
                   .chunk = 4,
                   .cu = ragged,
                   .disc = discs[disc]};
        snprintf(what, sizeof what, "s4d disc %d", disc);
        check_differences(&c, 18, what);
    }
}

/* o = Re sum_m w((U q)_m) Gam[m,:] with U = C X[:, :R] and Gam = C X[:, R:] formed as they are written. */
static void textbook(const mcase *c, double *o) {
    enum { M = 4, W = 5 };
    assert_true(c->m == M && c->r + c->d == W && c->n_seq == 1 && c->g == c->h);
    for (int64_t h = 0; h < c->h; h++) {
        cplx x[M][W], lam[M], bbar[M];
        const double dt = exp(c->in[IN_LOG_DT][h]);
        for (int i = 0; i < M; i++) {
            const cplx a = -exp(c->in[IN_A_LOG][h * M + i]) + c->in[IN_A_IMAG][h * M + i] * I;
            lam[i] = cexp(dt * a);
            bbar[i] = (lam[i] - 1) / a;
            for (int j = 0; j < W; j++)
                x[i][j] = c->in[IN_STATE_RE][(h * M + i) * W + j] + c->in[IN_STATE_IM][(h * M + i) * W + j] * I;
        }
        for (int64_t t = 0; t < c->n; t++) {
            cplx cx[M][W];
            for (int i = 0; i < M; i++) {
                for (int j = 0; j < W; j++) {
                    const double z =
                        j < c->r ? c->in[IN_K][(t * c->g + h) * c->r + j] : c->in[IN_V][(t * c->g + h) * c->d + j - c->r];
                    x[i][j] = lam[i] * x[i][j] + bbar[i] * z;
                }
            }
            for (int i = 0; i < M; i++) {
                for (int j = 0; j < W; j++) {
                    cx[i][j] = 0;
                    for (int n = 0; n < M; n++)
                        cx[i][j] += (c->in[IN_C_RE][(h * M + i) * M + n] + c->in[IN_C_IM][(h * M + i) * M + n] * I) * x[n][j];
                }
            }
            for (int64_t j = 0; j < (c->s4d ? W : c->d); j++) {
                cplx sum = 0;
                for (int i = 0; i < M; i++) {
                    cplx uq = 0;
                    for (int r = 0; r < c->r && !c->s4d; r++) uq += cx[i][r] * c->in[IN_Q][(t * c->h + h) * c->r + r];
                    if (c->s4d)
                        sum += c->in[IN_Q][h * M + i] * cx[i][j];
                    else
                        sum += (c->readout == IDA_READOUT_HERMITIAN ? conj(uq) : uq) * cx[i][c->r + j];
                }
                o[(t * c->h + h) * (c->s4d ? W : c->d) + j] = creal(sum);
            }
        }
    }
}

static void every_form_equals_the_textbook_formula(void **state) {
    (void)state;
    const int64_t cu[] = {0, 21};
    for (int kind = 0; kind < 3; kind++) {
        mcase c = {.s4d = kind == 2,
                   .h = 2,
                   .g = 2,
                   .r = 3,
                   .d = 2,
                   .m = 4,
                   .n = 21,
                   .n_seq = 1,
                   .chunk = 8,
                   .cu = cu,
                   .readout = kind == 1 ? IDA_READOUT_BILINEAR : IDA_READOUT_HERMITIAN};
        case_fill(&c, 5);
        double *want;
        assert_int_equal(IDA_ALLOC(want, c.n_out[OUT_O], "textbook"), IDA_OK);
        textbook(&c, want);
        for (int f = SEQ; f <= CHUNK; f++) {
            case_poison(&c);
            case_forward(&c, (form)f);
            assert_close(c.out[OUT_O], want, c.n_out[OUT_O], 1e-13, "kind %d form %d", kind, f);
        }
        ida_free(want);
        case_free(&c);
    }
}

static void check_forms(mcase *c, uint64_t seed) {
    case_fill(c, seed);
    case_forward(c, SEQ);
    case_backward(c, SEQ);
    mcase b = case_copy(c);
    case_forward(&b, STEP);
    assert_outputs_close(&b, c, 1e-11, "step against sequential");
    case_poison(&b);
    case_forward(&b, CHUNK);
    case_backward(&b, CHUNK);
    char what[64];
    snprintf(what, sizeof what, "chunk %d against sequential, T=%d", (int)c->chunk, (int)c->n);
    assert_outputs_close(&b, c, 1e-11, what);
    assert_grads_close(&b, c, 1e-11, what);
    case_free(&b);
    case_free(c);
}

static void L10_forms_agree_at_every_chunk_length_and_odd_size(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 63, 64, 65, 127, 129};
    for (int s4d = 0; s4d < 2; s4d++) {
        for (int64_t chunk = 0; chunk <= 64; chunk++) {
            const int64_t cu[] = {0, 1, 80, 80, 150};
            mcase c = {
                .s4d = s4d, .h = 2, .g = s4d ? 2 : 1, .r = 2, .d = 3, .m = 3, .n = 150, .n_seq = 4, .chunk = chunk, .cu = cu};
            check_forms(&c, 100 + (uint64_t)chunk);
        }
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const int64_t cu[] = {0, sizes[i]};
            mcase c = {.s4d = s4d,
                       .h = 2,
                       .g = 2,
                       .r = 5,
                       .d = 3,
                       .m = 4,
                       .n = sizes[i],
                       .n_seq = 1,
                       .cu = cu,
                       .readout = IDA_READOUT_BILINEAR};
            check_forms(&c, 200 + (uint64_t)i);
        }
    }
}

static void L18_large_and_unequal_dimensions(void **state) {
    (void)state;
    static const int64_t dims[][3] = {{16, 16, 4}, {96, 96, 64},  {256, 16, 8}, {1, 512, 4},
                                      {512, 1, 4}, {24, 40, 256}, {1, 1, 1}}; /* R, D, M */
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        const int64_t cu[] = {0, 5};
        mcase c = {.h = 1, .g = 1, .r = dims[i][0], .d = dims[i][1], .m = dims[i][2], .n = 5, .n_seq = 1, .cu = cu, .chunk = 4};
        check_forms(&c, 300 + (uint64_t)i);
    }
}

/* Decay per step e^-1, e^-20, e^-80 and 1 - 1e-7 in one head; then in heads of their own, so that each chunk length occurs. */
static void L04_extreme_decays_are_finite_and_agree(void **state) {
    (void)state;
    static const double alpha[] = {1, 20, 80, 1e-7, 800};
    const int64_t cu[] = {0, 192};
    for (int s4d = 0; s4d < 2; s4d++) {
        for (int disc = 0; disc < 4; disc++) {
            for (int mixed = 0; mixed < 2; mixed++) {
                mcase c = {.s4d = s4d,
                           .h = mixed ? 1 : 4,
                           .g = mixed ? 1 : 4,
                           .r = 3,
                           .d = 2,
                           .m = mixed ? 4 : 1,
                           .n = 192,
                           .n_seq = 1,
                           .cu = cu,
                           .disc = discs[disc]};
                case_fill(&c, 7);
                for (int64_t i = 0; i < c.g; i++) c.in[IN_LOG_DT][i] = 0;
                for (int i = 0; i < 4; i++) c.in[IN_A_LOG][i] = log(alpha[i]);
                case_forward(&c, SEQ);
                case_backward(&c, SEQ);
                mcase b = case_copy(&c);
                case_forward(&b, CHUNK);
                case_backward(&b, CHUNK);
                assert_outputs_close(&b, &c, 1e-11, "extreme decay");
                assert_grads_close(&b, &c, 1e-11, "extreme decay");
                case_free(&b);
                case_free(&c);
            }
        }
    }
}

/* e^-800 is below the smallest double: the state of the token before must be gone exactly, forward and backward. */
static void L04_vanished_terms_are_exactly_zero(void **state) {
    (void)state;
    const int64_t cu[] = {0, 70};
    for (int s4d = 0; s4d < 2; s4d++) {
        for (int f = SEQ; f <= CHUNK; f += CHUNK - SEQ) {
            mcase c = {.s4d = s4d, .h = 1, .g = 1, .r = 3, .d = 2, .m = 2, .n = 70, .n_seq = 1, .cu = cu};
            case_fill(&c, 8);
            c.in[IN_LOG_DT][0] = 0;
            c.in[IN_A_LOG][0] = c.in[IN_A_LOG][1] = log(800);
            case_backward(&c, (form)f);
            for (int64_t i = 0; i < c.n_in[IN_STATE_RE]; i++) {
                assert_true(c.grad[IN_STATE_RE][i] == 0);
                assert_true(c.grad[IN_STATE_IM][i] == 0);
            }
            for (int i = 0; i < N_IN; i++)
                for (int64_t j = 0; j < c.n_in[i]; j++) assert_true(isfinite(c.grad[i][j]));
            case_free(&c);
        }
    }
}

/* Changing token t leaves every output before t as it was, bit for bit. */
static void L15_causality_is_bit_equal(void **state) {
    (void)state;
    const int64_t cu[] = {0, 100};
    for (int s4d = 0; s4d < 2; s4d++) {
        for (int f = SEQ; f <= CHUNK; f++) {
            for (int64_t t = 0; t < 100; t += 9) {
                mcase c = {
                    .s4d = s4d, .h = 2, .g = s4d ? 2 : 1, .r = 3, .d = 2, .m = 4, .n = 100, .n_seq = 1, .cu = cu, .chunk = 32};
                case_fill(&c, 9);
                case_forward(&c, (form)f);
                mcase b = case_copy(&c);
                for (int64_t i = t * c.g * c.r; i < (t + 1) * c.g * c.r; i++) b.in[IN_K][i] = 1e3;
                for (int64_t i = t * c.g * c.d; i < (t + 1) * c.g * c.d; i++) b.in[IN_V][i] = -1e3;
                for (int64_t i = t * c.h * c.r; i < (t + 1) * c.h * c.r && !s4d; i++) b.in[IN_Q][i] = 77;
                case_forward(&b, (form)f);
                const int64_t row = c.n_out[OUT_O] / c.n;
                assert_memory_equal(b.out[OUT_O], c.out[OUT_O], (size_t)(t * row) * sizeof(double));
                assert_true(memcmp(b.out[OUT_O] + t * row, c.out[OUT_O] + t * row, (size_t)row * sizeof(double)) != 0);
                case_free(&b);
                case_free(&c);
            }
        }
    }
}

static void output_is_linear_in_v(void **state) {
    (void)state;
    const int64_t cu[] = {0, 90};
    for (int f = SEQ; f <= CHUNK; f++) {
        mcase x = {.h = 2, .g = 1, .r = 3, .d = 2, .m = 4, .n = 90, .n_seq = 1, .cu = cu};
        case_fill(&x, 10);
        for (int64_t i = 0; i < x.n_in[IN_STATE_RE]; i++) x.in[IN_STATE_RE][i] = x.in[IN_STATE_IM][i] = 0;
        mcase y = case_copy(&x), sum = case_copy(&x);
        for (int64_t i = 0; i < x.n_in[IN_V]; i++) {
            y.in[IN_V][i] = sin((double)i);
            sum.in[IN_V][i] = 3 * x.in[IN_V][i] - 0.5 * y.in[IN_V][i];
        }
        case_forward(&x, (form)f);
        case_forward(&y, (form)f);
        case_forward(&sum, (form)f);
        for (int64_t i = 0; i < x.n_out[OUT_O]; i++) x.out[OUT_O][i] = 3 * x.out[OUT_O][i] - 0.5 * y.out[OUT_O][i];
        assert_close(sum.out[OUT_O], x.out[OUT_O], x.n_out[OUT_O], 1e-12, "linearity, form %d", f);
        case_free(&x), case_free(&y), case_free(&sum);
    }
}

/* Two groups of two heads equal four groups with the shared parts repeated; gradients of the shared parts add up. */
static void shared_groups_equal_repeated_heads(void **state) {
    (void)state;
    const int64_t cu[] = {0, 30, 75};
    for (int f = SEQ; f <= CHUNK; f++) {
        mcase a = {.h = 4, .g = 2, .r = 3, .d = 2, .m = 4, .n = 75, .n_seq = 2, .cu = cu}, b = a;
        b.g = 4;
        case_fill(&a, 11);
        case_fill(&b, 12);
        /* Array i of b is array i of a with each group's block twice; `block` elements per group, groups innermost but one. */
        const int64_t state_block = a.m * (a.r + a.d),
                      block[N_IN] = {0, a.r, a.d, 1, a.m, a.m, a.m * a.m, a.m * a.m, state_block, state_block};
        memcpy(b.in[IN_Q], a.in[IN_Q], (size_t)a.n_in[IN_Q] * sizeof(double));
        memcpy(b.dout[OUT_O], a.dout[OUT_O], (size_t)a.n_out[OUT_O] * sizeof(double));
        for (int i = IN_K; i < N_IN; i++)
            for (int64_t j = 0; j < b.n_in[i]; j++) b.in[i][j] = a.in[i][j / (2 * block[i]) * block[i] + j % block[i]];
        /* The final state of a shared group is one state: its gradient goes to the first of the two copies. */
        for (int i = OUT_FINAL_RE; i <= OUT_FINAL_IM; i++)
            for (int64_t j = 0; j < b.n_out[i]; j++)
                b.dout[i][j] = j / state_block % 2 ? 0 : a.dout[i][j / (2 * state_block) * state_block + j % state_block];
        case_forward(&a, (form)f);
        case_forward(&b, (form)f);
        assert_close(a.out[OUT_O], b.out[OUT_O], a.n_out[OUT_O], 1e-13, "grouped output");
        if (f != STEP) {
            case_backward(&a, (form)f);
            case_backward(&b, (form)f);
            assert_close(a.grad[IN_Q], b.grad[IN_Q], a.n_in[IN_Q], 1e-12, "grouped dq");
            for (int i = IN_K; i < N_IN; i++) {
                const double start = is_param(&a, i) ? 0.5 : 0;
                for (int64_t j = 0; j < a.n_in[i]; j++) a.grad[i][j] -= start;
                for (int64_t j = 0; j < a.n_in[i]; j++) {
                    const int64_t at = j / block[i] * 2 * block[i] + j % block[i];
                    b.in[i][j] = b.grad[i][at] + b.grad[i][at + block[i]] - 2 * start; /* in is no longer needed */
                }
                assert_close(a.grad[i], b.in[i], a.n_in[i], 1e-12, "grouped gradient of %s", in_name[i]);
            }
        }
        case_free(&a), case_free(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(L09_gradients_equal_finite_differences),
        cmocka_unit_test(L09_s4d_gradients_equal_finite_differences),
        cmocka_unit_test(every_form_equals_the_textbook_formula),
        cmocka_unit_test(L10_forms_agree_at_every_chunk_length_and_odd_size),
        cmocka_unit_test(L18_large_and_unequal_dimensions),
        cmocka_unit_test(L04_extreme_decays_are_finite_and_agree),
        cmocka_unit_test(L04_vanished_terms_are_exactly_zero),
        cmocka_unit_test(L15_causality_is_bit_equal),
        cmocka_unit_test(output_is_linear_in_v),
        cmocka_unit_test(shared_groups_equal_repeated_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
