#define IDA_REAL double
/* test_mixer_cuts.c - the double reference of interdomain and s4d on pieces and packed documents: a sequence fed in pieces equals
 * one call, documents packed together equal documents alone, forward and backward; lengths of every kind. Bit equality is asked
 * where the same sums are done in the same order, 1e-11 elsewhere (sums in double, up to 1e4 terms). */
#include "mixer_case.h"

static mcase small(bool s4d, int64_t n, int64_t n_seq, const int64_t *cu, int64_t chunk, uint64_t seed) {
    mcase c = {.s4d = s4d, .h = 2, .g = s4d ? 2 : 1, .r = 2, .d = 3, .m = 3, .n = n, .n_seq = n_seq, .cu = cu, .chunk = chunk};
    case_fill(&c, seed);
    return c;
}

/* Piece lengths that add up to n: fixed, or random from 1 up (pieces of 1 and 2 are common). */
static int64_t random_pieces(int64_t *cut, int64_t n, uint64_t seed) {
    int64_t count = 0;
    cut[0] = 0;
    while (cut[count] < n) {
        const double u = ida_uniform(seed, IDA_STREAM_TEST, (uint64_t)count);
        int64_t piece = u < 0.4 ? 1 : u < 0.6 ? 2 : 1 + (int64_t)(u * 60);
        if (piece > n - cut[count]) piece = n - cut[count];
        cut[count + 1] = cut[count] + piece;
        count++;
    }
    return count;
}

/* Feeds the whole case c (one sequence) in pieces: states are handed from piece to piece; outputs land in c. */
static void forward_in_pieces(mcase *c, form f, const int64_t *cut, int64_t count) {
    const size_t bytes = (size_t)c->n_in[IN_STATE_RE] * sizeof(double);
    double *carry[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(IDA_ALLOC(carry[i], c->n_in[IN_STATE_RE], "carried state"), IDA_OK);
        memcpy(carry[i], c->in[IN_STATE_RE + i], bytes);
    }
    for (int64_t p = 0; p < count; p++) {
        int64_t cu[2];
        mcase piece = case_slice(c, 0, cut[p], cut[p + 1], cu);
        piece.in[IN_STATE_RE] = carry[0], piece.in[IN_STATE_IM] = carry[1];
        case_forward(&piece, f);
        for (int i = 0; i < 2; i++) memcpy(carry[i], c->out[OUT_FINAL_RE + i], bytes);
    }
    ida_free(carry[0]), ida_free(carry[1]);
}

static void L01_pieces_equal_one_call(void **state) {
    (void)state;
    const int64_t cu[] = {0, 256};
    int64_t cut[300];
    for (int s4d = 0; s4d < 2; s4d++) {
        for (int f = SEQ; f <= CHUNK; f++) {
            for (uint64_t trial = 0; trial < 20; trial++) {
                mcase whole = small(s4d, 256, 1, cu, trial % 2 ? 64 : 16, 21), parts = case_copy(&whole);
                case_forward(&whole, (form)f);
                const int64_t count = trial ? random_pieces(cut, 256, trial) : 4;
                for (int64_t i = 0; i <= 4 && !trial; i++) cut[i] = 64 * i;
                forward_in_pieces(&parts, (form)f, cut, count);
                /* Sequential and step forms, and cuts at chunk edges, do the very same sums. */
                const bool exact = f != CHUNK || !trial;
                assert_outputs_close(&parts, &whole, exact ? 0 : 1e-11, "pieces against one call");
                case_free(&whole), case_free(&parts);
            }
        }
    }
}

static void L02_s4d_forms_agree_far_beyond_the_chunk(void **state) {
    (void)state;
    const int64_t cu[] = {0, 512};
    for (int64_t chunk = 8; chunk <= 64; chunk *= 2) {
        mcase a = small(true, 8 * chunk, 1, cu, chunk, 22);
        int64_t end[] = {0, 8 * chunk};
        a.cu = end;
        mcase b = case_copy(&a), s = case_copy(&a);
        case_forward(&a, SEQ), case_forward(&b, CHUNK), case_forward(&s, STEP);
        assert_outputs_close(&b, &a, 1e-11, "s4d chunk");
        assert_outputs_close(&s, &a, 1e-11, "s4d step");
        case_free(&a), case_free(&b), case_free(&s);
    }
}

/* Loss on the last token and on the final state only; the gradient of the state goes back through the pieces. */
static void L07_gradients_through_pieces_equal_one_call(void **state) {
    (void)state;
    int64_t cut[300];
    static const int64_t pieces[] = {1, 2, 3, 64};
    const int64_t cu[] = {0, 140};
    for (int s4d = 0; s4d < 2; s4d++) {
        for (int f = SEQ; f <= CHUNK; f += CHUNK - SEQ) {
            for (int trial = 0; trial < 8; trial++) {
                mcase whole = small(s4d, 140, 1, cu, 64, 23);
                const int64_t row = whole.n_out[OUT_O] / whole.n, n_state = whole.n_in[IN_STATE_RE];
                for (int64_t i = 0; i < (whole.n - 1) * row; i++) whole.dout[OUT_O][i] = 0;
                mcase parts = case_copy(&whole);
                case_backward(&whole, (form)f);
                int64_t count = 0;
                cut[0] = 0;
                if (trial < 4) {
                    while (cut[count] < 140)
                        cut[count + 1] = cut[count] + pieces[trial] > 140 ? 140 : cut[count] + pieces[trial], count++;
                } else {
                    count = random_pieces(cut, 140, (uint64_t)trial);
                }
                /* Forward once to have the state before each piece, [count][re, im]. */
                double *kept, *carry;
                assert_int_equal(IDA_ALLOC(kept, 2 * n_state * (count + 1), "states"), IDA_OK);
                assert_int_equal(IDA_ALLOC(carry, 4 * n_state, "state gradients"), IDA_OK);
                memcpy(kept, parts.in[IN_STATE_RE], (size_t)n_state * sizeof *kept);
                memcpy(kept + n_state, parts.in[IN_STATE_IM], (size_t)n_state * sizeof *kept);
                int64_t end[2];
                for (int64_t p = 0; p < count; p++) {
                    mcase piece = case_slice(&parts, 0, cut[p], cut[p + 1], end);
                    piece.in[IN_STATE_RE] = kept + 2 * n_state * p, piece.in[IN_STATE_IM] = piece.in[IN_STATE_RE] + n_state;
                    piece.out[OUT_FINAL_RE] = kept + 2 * n_state * (p + 1),
                    piece.out[OUT_FINAL_IM] = piece.out[OUT_FINAL_RE] + n_state;
                    case_forward(&piece, (form)f);
                }
                memcpy(carry, parts.dout[OUT_FINAL_RE], (size_t)n_state * sizeof *carry);
                memcpy(carry + n_state, parts.dout[OUT_FINAL_IM], (size_t)n_state * sizeof *carry);
                for (int64_t p = count - 1; p >= 0; p--) {
                    mcase piece = case_slice(&parts, 0, cut[p], cut[p + 1], end);
                    double *from = carry + (count - 1 - p) % 2 * 2 * n_state, *to = carry + (count - p) % 2 * 2 * n_state;
                    piece.in[IN_STATE_RE] = kept + 2 * n_state * p, piece.in[IN_STATE_IM] = piece.in[IN_STATE_RE] + n_state;
                    piece.dout[OUT_FINAL_RE] = from, piece.dout[OUT_FINAL_IM] = from + n_state;
                    piece.grad[IN_STATE_RE] = to, piece.grad[IN_STATE_IM] = to + n_state;
                    case_backward(&piece, (form)f);
                }
                memcpy(parts.grad[IN_STATE_RE], carry + count % 2 * 2 * n_state, (size_t)n_state * sizeof *carry);
                memcpy(parts.grad[IN_STATE_IM], carry + count % 2 * 2 * n_state + n_state, (size_t)n_state * sizeof *carry);
                assert_grads_close(&parts, &whole, 1e-11, "pieces against one call");
                ida_free(kept), ida_free(carry);
                case_free(&whole), case_free(&parts);
            }
        }
    }
}

/* Every sequence of `c` run alone gives the same bits: outputs, states, gradients of tokens and states. Parameter gradients are
 * summed in another order, so they get 1e-11. */
static void check_packed_equals_alone(mcase *c, form f) {
    mcase alone = case_copy(c);
    case_forward(c, f);
    if (f != STEP) case_backward(c, f);
    for (int64_t s = 0; s < c->n_seq; s++) {
        int64_t cu[2];
        mcase one = case_slice(&alone, s, c->cu[s], c->cu[s + 1], cu);
        case_forward(&one, f);
        if (f != STEP) case_backward(&one, f);
    }
    assert_outputs_close(&alone, c, 0, "alone against packed");
    for (int i = 0; i < N_IN && f != STEP; i++)
        assert_close(alone.grad[i], c->grad[i], c->n_in[i], is_param(c, i) ? 1e-11 : 0, "alone against packed: gradient of %s",
                     in_name[i]);
    case_free(&alone);
}

static void L11_empty_documents(void **state) {
    (void)state;
    static const int64_t offsets[][4] = {{0, 5, 5, 9}, {0, 0, 9, 9}, {0, 9, 9, 9}, {0, 0, 0, 9}, {0, 0, 0, 0}};
    static const int64_t n_seq[] = {3, 2, 2, 3, 3}; /* the second is [0,0,9], the third [0,9,9] */
    for (int s4d = 0; s4d < 2; s4d++) {
        for (int f = SEQ; f <= CHUNK; f++) {
            for (size_t i = 0; i < sizeof n_seq / sizeof *n_seq; i++) {
                const int64_t *cu = offsets[i];
                mcase c = small(s4d, cu[n_seq[i]], n_seq[i], cu, 4, 24);
                check_packed_equals_alone(&c, (form)f);
                const int64_t n = c.n_in[IN_STATE_RE] / c.n_seq;
                for (int64_t s = 0; s < c.n_seq; s++) {
                    if (cu[s] != cu[s + 1]) continue;
                    for (int part = 0; part < 2; part++) {
                        assert_memory_equal(c.out[OUT_FINAL_RE + part] + s * n, c.in[IN_STATE_RE + part] + s * n,
                                            (size_t)n * sizeof(double));
                        if (f != STEP)
                            assert_memory_equal(c.grad[IN_STATE_RE + part] + s * n, c.dout[OUT_FINAL_RE + part] + s * n,
                                                (size_t)n * sizeof(double));
                    }
                }
                if (c.n == 0 && f != STEP) /* nothing to learn from: parameter gradients as they were */
                    for (int j = 0; j < N_IN; j++)
                        for (int64_t e = 0; is_param(&c, j) && e < c.n_in[j]; e++) assert_true(c.grad[j][e] == 0.5);
                case_free(&c);
            }
        }
    }
}

static void L12_random_splits_equal_separate_runs(void **state) {
    (void)state;
    int64_t cu[10];
    for (uint64_t trial = 0; trial < 1000; trial++) {
        const int64_t n = 1 + (int64_t)(ida_uniform(31, IDA_STREAM_TEST, 2 * trial) * 80);
        const int64_t n_seq = 1 + (int64_t)(ida_uniform(31, IDA_STREAM_TEST, 2 * trial + 1) * 8);
        cu[0] = 0;
        for (int64_t s = 1; s < n_seq; s++) {
            int64_t at = (int64_t)(ida_uniform(32 + trial, IDA_STREAM_TEST, (uint64_t)s) * (double)(n + 1)), i = s;
            for (; cu[i - 1] > at; i--) cu[i] = cu[i - 1];
            cu[i] = at;
        }
        cu[n_seq] = n;
        mcase c = small(trial % 2, n, n_seq, cu, trial % 3 ? 16 : 64, 33 + trial);
        check_packed_equals_alone(&c, trial % 5 ? CHUNK : SEQ);
        case_free(&c);
    }
    const int64_t edge[] = {0, 781, 2048};
    for (int s4d = 0; s4d < 2; s4d++) {
        mcase c = small(s4d, 2048, 2, edge, 64, 34);
        check_packed_equals_alone(&c, CHUNK);
        case_free(&c);
    }
}

static void L13_documents_never_see_each_other(void **state) {
    (void)state;
    const int64_t cu[] = {0, 41, 90};
    for (int s4d = 0; s4d < 2; s4d++) {
        for (int f = SEQ; f <= CHUNK; f += CHUNK - SEQ) {
            mcase a = small(s4d, 90, 2, cu, 32, 25), b = case_copy(&a);
            for (int64_t i = 0; i < 41 * a.g * a.r; i++) b.in[IN_K][i] += 1;
            for (int64_t i = 0; i < 41 * a.g * a.d; i++) b.in[IN_V][i] *= -2;
            for (int64_t i = 0; i < 41 * a.h * a.r && !s4d; i++) b.in[IN_Q][i] -= 3;
            case_forward(&a, (form)f), case_backward(&a, (form)f);
            case_forward(&b, (form)f), case_backward(&b, (form)f);
            const int64_t row = a.n_out[OUT_O] / a.n, half = a.n_in[IN_STATE_RE] / 2;
            assert_memory_equal(a.out[OUT_O] + 41 * row, b.out[OUT_O] + 41 * row, (size_t)(49 * row) * sizeof(double));
            assert_memory_equal(a.out[OUT_FINAL_RE] + half, b.out[OUT_FINAL_RE] + half, (size_t)half * sizeof(double));
            for (int i = s4d ? IN_K : IN_Q; i <= IN_V; i++) {
                const int64_t w = a.n_in[i] / a.n;
                assert_memory_equal(a.grad[i] + 41 * w, b.grad[i] + 41 * w, (size_t)(49 * w) * sizeof(double));
            }
            assert_true(memcmp(a.out[OUT_O], b.out[OUT_O], (size_t)(41 * row) * sizeof(double)) != 0);
            case_free(&a), case_free(&b);
        }
    }
}

static void L17_odd_and_long_lengths(void **state) {
    (void)state;
    static const int64_t sizes[] = {8191, 8192, 8193, 16385, 10007};
    for (int s4d = 0; s4d < 2; s4d++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const int64_t cu[] = {0, sizes[i]};
            mcase a = {.s4d = s4d, .h = 1, .g = 1, .r = 1, .d = 1, .m = 2, .n = sizes[i], .n_seq = 1, .cu = cu};
            case_fill(&a, 26);
            mcase b = case_copy(&a);
            case_forward(&a, SEQ), case_backward(&a, SEQ);
            case_forward(&b, CHUNK), case_backward(&b, CHUNK);
            assert_outputs_close(&b, &a, 1e-11, "long");
            assert_grads_close(&b, &a, 1e-11, "long");
            case_free(&a), case_free(&b);
        }
    }
}

/* The op allows the final state in the array of the initial one, and an absent initial state means zeros. */
static void states_may_alias_and_be_absent(void **state) {
    (void)state;
    const int64_t cu[] = {0, 20, 50};
    for (int s4d = 0; s4d < 2; s4d++) {
        for (int f = SEQ; f <= CHUNK; f += CHUNK - SEQ) {
            mcase a = small(s4d, 50, 2, cu, 16, 27), b = case_copy(&a);
            case_forward(&a, (form)f);
            double *const spare_re = b.out[OUT_FINAL_RE], *const spare_im = b.out[OUT_FINAL_IM];
            b.out[OUT_FINAL_RE] = b.in[IN_STATE_RE], b.out[OUT_FINAL_IM] = b.in[IN_STATE_IM];
            case_forward(&b, (form)f);
            assert_outputs_close(&b, &a, 0, "aliased state");
            b.out[OUT_FINAL_RE] = spare_re, b.out[OUT_FINAL_IM] = spare_im;

            for (int64_t i = 0; i < a.n_in[IN_STATE_RE]; i++) a.in[IN_STATE_RE][i] = a.in[IN_STATE_IM][i] = 0;
            case_forward(&a, (form)f), case_backward(&a, (form)f);
            double *const in_re = b.in[IN_STATE_RE], *const in_im = b.in[IN_STATE_IM];
            b.in[IN_STATE_RE] = b.in[IN_STATE_IM] = NULL;
            case_poison(&b);
            case_forward(&b, (form)f), case_backward(&b, (form)f);
            assert_outputs_close(&b, &a, 0, "absent state");
            assert_grads_close(&b, &a, 0, "absent state");
            b.in[IN_STATE_RE] = in_re, b.in[IN_STATE_IM] = in_im;
            case_free(&a), case_free(&b);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(L01_pieces_equal_one_call),
        cmocka_unit_test(L02_s4d_forms_agree_far_beyond_the_chunk),
        cmocka_unit_test(L07_gradients_through_pieces_equal_one_call),
        cmocka_unit_test(L11_empty_documents),
        cmocka_unit_test(L12_random_splits_equal_separate_runs),
        cmocka_unit_test(L13_documents_never_see_each_other),
        cmocka_unit_test(L17_odd_and_long_lengths),
        cmocka_unit_test(states_may_alias_and_be_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
