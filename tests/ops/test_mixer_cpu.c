/* test_mixer_cpu.c - the mixer cores on the CPU (interdomain, s4d: chunk and step forms), every instruction set against ref's
 * sequential form, which sums in double. Memory around every array is unreadable (cpu_case.h).
 *
 * Limits: a result is a chain of about six sums of up to 256 products in fp32 (eps 6e-8; errors add as square roots), so 2e-6 of
 * the largest element is expected. Measured over all cases here: outputs 1.7e-6, gradients 2.0e-6, gradients of the decays
 * (decay_diff) 5e-5; the limits are twice that. Where nothing is rounded differently, bits are compared. */
#include "cpu_case.h"

#include <fcntl.h>

#define OUT_LIMIT 3.5e-6
#define GRAD_LIMIT 4e-6
#define DECAY_LIMIT 1e-4

/* h, g, r, d, m, chunk, sequence lengths. */
typedef struct shape { int64_t h, g, r, d, m, chunk, len[6]; int n_seq; bool no_state; } shape;

static ccase case_of(const shape *s, bool s4d, int variant) {
    ccase c = {.s4d = s4d,
               .no_state = s->no_state,
               .h = s->h,
               .g = s4d ? s->h : s->g,
               .r = s->r,
               .d = s->d,
               .m = s->m,
               .n_seq = s->n_seq,
               .chunk = s->chunk,
               .disc = (ida_discretization)(variant % 4),
               .readout = (ida_readout)(variant / 2 % 2)};
    for (int i = 0; i < s->n_seq; i++) c.cu[i + 1] = c.cu[i] + s->len[i];
    return c;
}

static double worst_out, worst_grad, worst_decay;

static bool is_decay(int i) { return i >= IN_LOG_DT && i <= IN_A_IMAG; }
static double top_of(const ccase *c, int i) {
    double top = 0;
    for (int64_t j = 0; j < c->n_in[i]; j++) top = fmax(top, fabs((double)c->grad[i][j] - (is_param(c, i) ? 0.5 : 0)));
    return top;
}

/* Decay parameters: terms carry exponents up to C/2 = 32 of either sign, and those without delay cancel altogether, so rounding
 * counts 32-fold and more. It is judged against what it comes from: for log_dt the sum of |terms| over the modes (log Lam = dt
 * A), and never less than 5% of dC, since the gradient of a mode that dies within a step is of size e^-20 only. */
static double decay_diff(const ccase *a, const ccase *b, int i) {
    const double top = top_of(b, i);
    double scale = fmax(top, 0.05 * top_of(b, IN_C_RE)), sum = 0;
    for (int64_t j = 0; j < b->n_in[IN_A_LOG]; j++)
        sum +=
            fabs((double)b->grad[IN_A_LOG][j] - 0.5) + fabs((double)b->in[IN_A_IMAG][j] * ((double)b->grad[IN_A_IMAG][j] - 0.5));
    if (i == IN_LOG_DT) scale = fmax(scale, sum);
    return top > 0 ? grad_diff(a, b, i) * top / scale : grad_diff(a, b, i);
}

static void assert_close(const ccase *a, const ccase *b, double factor, const char *what) {
    for (int i = 0; i < N_OUT; i++) {
        if (!(out_diff(a, b, i) <= factor * OUT_LIMIT)) fail_msg("%s: %s is off by %.3g", what, out_name[i], out_diff(a, b, i));
        worst_out = fmax(worst_out, out_diff(a, b, i));
    }
    for (int i = 0; i < N_IN; i++) {
        const double off = is_decay(i) ? decay_diff(a, b, i) : grad_diff(a, b, i);
        double *worst = is_decay(i) ? &worst_decay : &worst_grad;
        if (!(off <= factor * (is_decay(i) ? DECAY_LIMIT : GRAD_LIMIT)))
            fail_msg("%s: gradient of %s is off by %.3g", what, in_name[i], off);
        *worst = fmax(*worst, off);
    }
}

/* Chunk form on dev against ref, forward and backward. */
static void check_case(ccase *c, const ida_device *dev, double factor, const char *what) {
    ccase truth = case_copy(c);
    char name[200];
    snprintf(name, sizeof name, "%s, %s %s: T=%lld H=%lld G=%lld R=%lld D=%lld M=%lld chunk %lld", what, dev->name,
             c->s4d ? "s4d" : "interdomain", (long long)case_tokens(c), (long long)c->h, (long long)c->g, (long long)c->r,
             (long long)c->d, (long long)c->m, (long long)c->chunk);
    case_run(&truth, &ida_ref_device, SEQ);
    case_run(c, dev, CHUNK);
    assert_close(c, &truth, factor, name);
    case_close(&truth);
}

static const shape shapes[] = {
    {1, 1, 1, 1, 1, 0, {1}, 1, false},           {2, 2, 3, 5, 4, 0, {63}, 1, false},
    {1, 1, 4, 4, 3, 8, {7, 8, 9}, 3, false},     {2, 1, 7, 8, 9, 0, {65}, 1, false},
    {4, 2, 15, 16, 17, 0, {64, 1}, 2, false},    {1, 1, 17, 15, 16, 0, {129}, 1, false},
    {3, 3, 33, 31, 7, 32, {0, 37, 0}, 3, false}, {2, 2, 9, 2, 33, 16, {2, 17}, 2, false},
    {6, 1, 8, 8, 8, 0, {70}, 1, false},          {2, 2, 16, 16, 16, 1, {5}, 1, false},
    {2, 2, 16, 16, 16, 48, {127}, 1, false},     {1, 1, 64, 64, 64, 0, {131}, 1, false},
    {2, 2, 12, 20, 5, 0, {64}, 1, true},         {4, 2, 5, 3, 6, 0, {20, 130, 3}, 3, true},
    {2, 2, 5, 5, 5, 0, {0}, 1, false},           {1, 1, 1, 9, 8, 2, {3}, 1, false},
    {1, 1, 9, 1, 8, 4, {6, 1}, 2, false},        {2, 2, 31, 32, 31, 0, {96}, 1, false},
};

static void equals_ref(const ida_device *dev) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int s4d = 0; s4d < 2; s4d++)
            for (int variant = 0; variant < 4; variant++) {
                ccase c = case_of(&shapes[i], s4d, variant);
                case_open(&c, 11 + i);
                check_case(&c, dev, 1, "shapes");
                case_close(&c);
            }
}

static void every_isa_equals_ref(void **state) {
    (void)state;
    each_isa(equals_ref);
}

/* Decay alpha per step: dt = 1 and exp(a_log) = alpha. */
static void set_decays(ccase *c, const double *alpha, int n) {
    for (int64_t g = 0; g < c->g; g++) c->in[IN_LOG_DT][g] = 0;
    for (int64_t i = 0; i < c->g * c->m; i++) c->in[IN_A_LOG][i] = (float)log(alpha[i % n]);
}

static void fast_decays(const ida_device *dev) {
    static const double mixed[] = {1, 20, 80, 1e-7};
    for (int s4d = 0; s4d < 2; s4d++)
        for (int only = 0; only < 5; only++)
            for (int variant = 0; variant < 4; variant++) {
                const shape s = {2, 2, 8, 8, 8, 0, {192}, 1, false};
                ccase c = case_of(&s, s4d, variant);
                case_open(&c, 5);
                set_decays(&c, only < 4 ? mixed + only : mixed, only < 4 ? 1 : 4);
                ccase truth = case_copy(&c);
                case_run(&truth, &ida_ref_device, SEQ);
                case_run(&c, dev, CHUNK);
                char name[60];
                snprintf(name, sizeof name, "%s, decays %d, discretization %d", dev->name, only, variant);
                assert_close(&c, &truth, 4, name); /* modes of one decay are nearly parallel, so sums over modes cancel */
                case_close(&c), case_close(&truth);
            }
}

static void L04_fast_decays_stay_finite_and_match(void **state) {
    (void)state;
    each_isa(fast_decays);
}

static void vanished(const ida_device *dev) {
    static const double alpha[] = {300};
    for (int s4d = 0; s4d < 2; s4d++) {
        const shape s = {1, 1, 8, 8, 4, 0, {100}, 1, false};
        ccase a = case_of(&s, s4d, IDA_DISC_UNIT);
        case_open(&a, 6);
        set_decays(&a, alpha, 1);
        ccase b = case_copy(&a);
        for (int i = 0; i < 8; i++) b.in[IN_K][i] = b.in[IN_V][i] = 1e6f;
        case_forward(&a, dev, CHUNK);
        case_forward(&b, dev, CHUNK);
        const int64_t row = a.n_out[OUT_O] / 100;
        assert_memory_equal(a.out[OUT_O] + row, b.out[OUT_O] + row, (size_t)(99 * row) * sizeof(float));
        assert_memory_not_equal(a.out[OUT_O], b.out[OUT_O], (size_t)row * sizeof(float));
        case_close(&a), case_close(&b);
    }
}

static void L04_vanished_terms_are_exactly_zero(void **state) {
    (void)state;
    each_isa(vanished);
}

static void round_inputs_bf16(ccase *c) {
    for (int i = 0; i < N_IN; i++)
        for (int64_t j = 0; j < c->n_in[i] && !is_param(c, i); j++) c->in[i][j] = ida_bf16_to_f32(ida_f32_to_bf16(c->in[i][j]));
    for (int i = 0; i < N_OUT; i++)
        for (int64_t j = 0; j < c->n_out[i]; j++) c->dout[i][j] = ida_bf16_to_f32(ida_f32_to_bf16(c->dout[i][j]));
}

/* bf16 rounds by 2^-9 relative; o is a product of four rounded inputs, gradients of five: 1% and a little for cancellation. */
static void odd_dims(const ida_device *dev) {
    static const int64_t dim[] = {24, 40, 64};
    for (int i = 0; i < 3; i++) {
        const shape s = {2, 2, dim[i], dim[i], dim[i], 0, {96}, 1, false};
        ccase a = case_of(&s, false, 0);
        case_open(&a, 7);
        ccase b = case_copy(&a);
        round_inputs_bf16(&b);
        case_run(&a, dev, CHUNK);
        case_run(&b, dev, CHUNK);
        assert_case_close(&b, &a, 0.02, 0.02, "bf16 inputs");
        case_close(&a), case_close(&b);
    }
}

static void L05_odd_dims_with_bf16_inputs(void **state) {
    (void)state;
    each_isa(odd_dims);
}

/* Loss on the last token and the final state only; the gradient walks back through pieces of 1, 2, 3 and 64 tokens. */
static void short_pieces(const ida_device *dev) {
    static const int64_t cut[] = {0, 64, 65, 67, 70, 71};
    for (int s4d = 0; s4d < 2; s4d++) {
        const shape s = {2, 1, 6, 5, 7, 0, {71}, 1, false};
        ccase whole = case_of(&s, s4d, 0);
        case_open(&whole, 8);
        const int64_t row = whole.n_out[OUT_O] / 71, state = whole.n_in[IN_STATE_RE];
        memset(whole.dout[OUT_O], 0, (size_t)(70 * row) * sizeof(float));
        ccase parts = case_copy(&whole);
        case_run(&whole, dev, CHUNK);
        float *x[6][2], *dx[6][2];
        for (int i = 0; i < 6; i++)
            for (int p = 0; p < 2; p++) x[i][p] = guarded(state), dx[i][p] = guarded(state);
        for (int p = 0; p < 2; p++) {
            memcpy(x[0][p], parts.in[IN_STATE_RE + p], (size_t)state * sizeof(float));
            memcpy(dx[5][p], parts.dout[OUT_FINAL_RE + p], (size_t)state * sizeof(float));
        }
        ccase piece[5];
        for (int i = 0; i < 5; i++) {
            piece[i] = case_slice(&parts, 0, cut[i], cut[i + 1]);
            for (int p = 0; p < 2; p++) {
                piece[i].in[IN_STATE_RE + p] = x[i][p], piece[i].out[OUT_FINAL_RE + p] = x[i + 1][p];
                piece[i].dout[OUT_FINAL_RE + p] = dx[i + 1][p], piece[i].grad[IN_STATE_RE + p] = dx[i][p];
            }
            case_forward(&piece[i], dev, CHUNK);
        }
        for (int i = 4; i >= 0; i--) case_backward(&piece[i], dev, CHUNK);
        for (int p = 0; p < 2; p++) {
            memcpy(parts.out[OUT_FINAL_RE + p], x[5][p], (size_t)state * sizeof(float));
            memcpy(parts.grad[IN_STATE_RE + p], dx[0][p], (size_t)state * sizeof(float));
        }
        assert_close(&parts, &whole, 2, "pieces");
        for (int i = 0; i < 6; i++)
            for (int p = 0; p < 2; p++) guarded_free(x[i][p], state), guarded_free(dx[i][p], state);
        case_close(&whole), case_close(&parts);
    }
}

static void L07_short_pieces_carry_gradients(void **state) {
    (void)state;
    each_isa(short_pieces);
}

/* T = 4096 with decays of 1e-3 to 1e-5 per step: the initial state and the decays are felt over the whole length. */
static void long_sequence(const ida_device *dev) {
    for (int s4d = 0; s4d < 2; s4d++) {
        const shape s = {1, 1, 16, 16, 16, 0, {4096}, 1, false};
        ccase a = case_of(&s, s4d, 0);
        case_open(&a, 9);
        for (int64_t i = 0; i < a.m; i++)
            a.in[IN_A_LOG][i] = (float)log(1e-3 * pow(0.01, (double)i / 15)), a.in[IN_A_IMAG][i] = 0.02f * (float)i;
        a.in[IN_LOG_DT][0] = 0;
        ccase b = case_copy(&a), truth = case_copy(&a);
        round_inputs_bf16(&b);
        case_run(&truth, &ida_ref_device, SEQ);
        case_run(&a, dev, CHUNK);
        case_run(&b, dev, CHUNK);
        assert_close(&a, &truth, 2, "T=4096");
        assert_case_close(&b, &truth, 0.03, 0.03, "T=4096, bf16 inputs");
        case_close(&a), case_close(&b), case_close(&truth);
    }
}

static void L08_long_sequence_gradients_keep_their_digits(void **state) {
    (void)state;
    each_isa(long_sequence);
}

static void tails(const ida_device *dev) {
    static const int64_t len[] = {1, 2, 63, 64, 65, 127, 129};
    for (int s4d = 0; s4d < 2; s4d++)
        for (size_t i = 0; i < sizeof len / sizeof *len; i++)
            for (int no_state = 0; no_state < 2; no_state++) {
                const shape s = {2, 1, 5, 6, 9, 0, {len[i]}, 1, no_state};
                ccase c = case_of(&s, s4d, 0);
                case_open(&c, 10);
                check_case(&c, dev, 1, "tails");
                case_close(&c);
            }
}

static void L10_tails_stay_inside_guarded_arrays(void **state) {
    (void)state;
    each_isa(tails);
}

/* Packed documents against each document alone: the same bits in everything but the parameter gradients' order of sums. */
static void check_packed(ccase *packed, const ida_device *dev) {
    ccase alone = case_copy(packed);
    case_run(packed, dev, CHUNK);
    for (int64_t s = 0; s < packed->n_seq; s++) {
        ccase one = case_slice(&alone, s, packed->cu[s], packed->cu[s + 1]);
        case_run(&one, dev, CHUNK);
        for (int p = 0; p < 2 && packed->cu[s] == packed->cu[s + 1]; p++) {
            assert_memory_equal(one.out[OUT_FINAL_RE + p], one.in[IN_STATE_RE + p],
                                (size_t)one.n_in[IN_STATE_RE] * sizeof(float));
            assert_memory_equal(one.grad[IN_STATE_RE + p], one.dout[OUT_FINAL_RE + p],
                                (size_t)one.n_in[IN_STATE_RE] * sizeof(float));
        }
    }
    assert_case_equal(packed, &alone, false, "packed against alone");
    for (int i = 0; i < N_IN; i++)
        if (is_param(packed, i) && !(decay_diff(packed, &alone, i) <= GRAD_LIMIT))
            fail_msg("packed against alone: gradient of %s is off by %.3g", in_name[i], decay_diff(packed, &alone, i));
}

static void empty_documents(const ida_device *dev) {
    static const int64_t cu[][4] = {{0, 5, 5, 9}, {0, 0, 9, 9}, {0, 9, 9, 9}, {0, 0, 0, 0}};
    for (int s4d = 0; s4d < 2; s4d++)
        for (int i = 0; i < 4; i++) {
            ccase c = {.s4d = s4d, .h = 2, .g = 2, .r = 5, .d = 3, .m = 4, .n_seq = 3};
            memcpy(c.cu, cu[i], sizeof cu[i]);
            case_open(&c, 12);
            check_packed(&c, dev);
            case_close(&c);
        }
}

static void L11_empty_documents(void **state) {
    (void)state;
    each_isa(empty_documents);
}

static void random_splits(const ida_device *dev) {
    for (int s4d = 0; s4d < 2; s4d++)
        for (uint64_t trial = 0; trial < 60; trial++) {
            ccase c = {.s4d = s4d, .h = 2, .g = s4d ? 2 : 1, .r = 8, .d = 8, .m = 8, .n_seq = 2, .cu = {0, 781, 2048}};
            if (trial > 0) {
                c.n_seq = 1 + (int64_t)(ida_uniform(trial, IDA_STREAM_TEST, 0) * 12);
                for (int64_t i = 1; i < c.n_seq; i++) c.cu[i] = (int64_t)(ida_uniform(trial, IDA_STREAM_TEST, (uint64_t)i) * 301);
                c.cu[c.n_seq] = 300;
                for (int64_t i = 1; i < c.n_seq; i++)
                    for (int64_t k = i; k > 1 && c.cu[k] < c.cu[k - 1]; k--) {
                        const int64_t t = c.cu[k];
                        c.cu[k] = c.cu[k - 1], c.cu[k - 1] = t;
                    }
            }
            case_open(&c, 13 + trial);
            check_packed(&c, dev);
            case_close(&c);
        }
}

static void L12_packed_documents_equal_separate_ones(void **state) {
    (void)state;
    each_isa(random_splits);
}

static void large_heads(const ida_device *dev) {
    static const int64_t dim[][3] = {{16, 4, 70}, {96, 64, 70}, {256, 128, 65}, {512, 256, 20}};
    for (int s4d = 0; s4d < 2; s4d++)
        for (int i = 0; i < 4; i++) {
            const shape s = {1, 1, dim[i][0], dim[i][0], dim[i][1], 0, {dim[i][2]}, 1, false};
            ccase c = case_of(&s, s4d, 0);
            case_open(&c, 14);
            check_case(&c, dev, 2, "large heads");
            case_close(&c);
        }
}

static void L18_large_heads(void **state) {
    (void)state;
    each_isa(large_heads);
}

static void causality(const ida_device *dev) {
    static const int64_t at[] = {0, 1, 30, 63, 64, 65, 128, 149};
    for (int s4d = 0; s4d < 2; s4d++) {
        const shape s = {2, 1, 8, 8, 8, 0, {150}, 1, false};
        ccase a = case_of(&s, s4d, 0);
        case_open(&a, 15);
        ccase b = case_copy(&a);
        case_forward(&a, dev, CHUNK);
        const int64_t row = a.n_out[OUT_O] / 150;
        for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
            const int64_t w[3] = {s4d ? 0 : b.h * b.r, b.g * b.r, b.g * b.d};
            for (int t = 0; t < 3; t++)
                for (int64_t j = 0; j < w[t]; j++) b.in[IN_Q + t][at[i] * w[t] + j] += 1;
            case_forward(&b, dev, CHUNK);
            assert_memory_equal(a.out[OUT_O], b.out[OUT_O], (size_t)(at[i] * row) * sizeof(float));
            assert_memory_not_equal(a.out[OUT_O] + at[i] * row, b.out[OUT_O] + at[i] * row, (size_t)row * sizeof(float));
            for (int t = 0; t < 3; t++) memcpy(b.in[IN_Q + t], a.in[IN_Q + t], (size_t)a.n_in[IN_Q + t] * sizeof(float));
        }
        case_close(&a), case_close(&b);
    }
}

static void outputs_before_a_changed_token_keep_their_bits(void **state) {
    (void)state;
    each_isa(causality);
}

typedef struct nested { const ccase *c; const ida_device *dev; } nested;
static void nested_task(void *arg, int64_t task, int worker) {
    (void)worker;
    const nested *n = arg;
    case_run(n->c + task, n->dev, CHUNK);
}

/* Long sequences of few heads take the way over chunks when there are threads, the way over tasks when there is one. */
static void thread_counts(const ida_device *dev) {
    static const shape shape_of[] = {
        {1, 1, 16, 16, 16, 0, {5000}, 1, false},        {2, 1, 8, 12, 8, 0, {1500, 3, 0, 40, 700}, 5, false},
        {6, 3, 8, 8, 8, 0, {300, 300}, 2, true},        {1, 1, 8, 8, 8, 16, {4200}, 1, true},
        {3, 3, 5, 5, 5, 0, {40, 40, 40, 40}, 4, false},
    };
    for (int s4d = 0; s4d < 2; s4d++)
        for (size_t i = 0; i < sizeof shape_of / sizeof *shape_of; i++) {
            ccase c[6];
            c[0] = case_of(&shape_of[i], s4d, 0);
            case_open(&c[0], 16);
            for (int k = 1; k < 6; k++) c[k] = case_copy(&c[0]);
            for (int k = 0; k < 4; k++) {
                static const int threads[] = {1, 2, 3, 5};
                assert_int_equal(ida_set_threads(threads[k]), IDA_OK);
                case_run(&c[k], dev, CHUNK);
                if (k > 0) assert_case_equal(&c[k], &c[0], true, "threads");
            }
            nested n = {c + 4, dev};
            ida_parallel(2, nested_task, &n);
            for (int k = 4; k < 6; k++) assert_case_equal(&c[k], &c[0], true, "inside a task");
            for (int k = 0; k < 6; k++) case_close(&c[k]);
        }
    assert_int_equal(ida_set_threads(0), IDA_OK);
}

static void thread_count_never_shows(void **state) {
    (void)state;
    each_isa(thread_counts);
}

/* The state array may be the same for input and output, with gaps between sequences. */
static void aliased(const ida_device *dev) {
    for (int s4d = 0; s4d < 2; s4d++) {
        const shape s = {2, 2, 5, 4, 3, 0, {70, 0, 66}, 3, false};
        ccase c = case_of(&s, s4d, 0);
        case_open(&c, 17);
        case_forward(&c, dev, CHUNK);
        const int64_t one = c.n_in[IN_STATE_RE] / 3, stride = one + 5;
        float *x[2], *o = guarded(c.n_out[OUT_O]);
        for (int p = 0; p < 2; p++) {
            x[p] = guarded(3 * stride);
            for (int64_t i = 0; i < 3 * stride; i++)
                x[p][i] = i % stride < one ? c.in[IN_STATE_RE + p][i / stride * one + i % stride] : 7;
        }
        const ida_state_ref ref = {x[0], x[1], stride};
        const ida_seqs seqs = {.n = 3, .cu = c.cu};
        ida_interdomain_args a = inter_args(&c);
        ida_s4d_args b = s4d_args(&c);
        a.state_in = a.state_out = b.state_in = b.state_out = ref;
        a.o = b.y = ida_act_of(o);
        assert_int_equal(s4d ? dev->ops->s4d_chunk_fwd(dev, &b, &seqs) : dev->ops->interdomain_chunk_fwd(dev, &a, &seqs), IDA_OK);
        assert_memory_equal(o, c.out[OUT_O], (size_t)c.n_out[OUT_O] * sizeof(float));
        for (int p = 0; p < 2; p++)
            for (int64_t i = 0; i < 3 * stride; i++)
                assert_true(x[p][i] == (i % stride < one ? c.out[OUT_FINAL_RE + p][i / stride * one + i % stride] : 7));
        guarded_free(x[0], 3 * stride), guarded_free(x[1], 3 * stride), guarded_free(o, c.n_out[OUT_O]);
        case_close(&c);
    }
}

static void states_may_alias_and_have_strides(void **state) {
    (void)state;
    each_isa(aliased);
}

/* Decoding T tokens step by step from the state of the chunk form's start: the same outputs and final state within rounding. */
static void step_case(const ida_device *dev, const shape *s, bool s4d, int variant, double limit) {
    ccase c = case_of(s, s4d, variant);
    case_open(&c, 18);
    ccase truth = case_copy(&c);
    case_forward(&truth, &ida_ref_device, SEQ);
    const int64_t gm = c.g * c.m, ro = s4d ? c.h * c.m : gm * c.m, n = case_tokens(&c), n_seq = c.n_seq, w = c.r + c.d,
                  state = gm * w;
    const int64_t each = n / n_seq;
    float *mem = guarded(4 * gm + 2 * ro), *row[4] = {guarded(n_seq * c.h * c.r), guarded(n_seq * c.g * c.r),
                                                      guarded(n_seq * c.g * c.d), guarded(n_seq * c.h * w)};
    const ida_ssm_prep prep = {mem, mem + gm, mem + 2 * gm, mem + 3 * gm, mem + 4 * gm, mem + 4 * gm + ro};
    const ida_ssm ssm = case_ssm(&c);
    ida_ref_ssm_prepare(&ssm, c.g, c.m, c.readout, s4d ? c.in[IN_Q] : NULL, &prep);
    const int64_t width[4] = {s4d ? 0 : c.h * c.r, c.g * c.r, c.g * c.d, c.h * (s4d ? w : c.d)};
    for (int p = 0; p < 2; p++) memcpy(c.out[OUT_FINAL_RE + p], c.in[IN_STATE_RE + p], (size_t)(n_seq * state) * sizeof(float));
    for (int64_t t = 0; t < each; t++) {
        for (int64_t q = 0; q < n_seq; q++)
            for (int i = 0; i < 3; i++)
                memcpy(row[i] + q * width[i], c.in[IN_Q + i] + (q * each + t) * width[i], (size_t)width[i] * sizeof(float));
        ida_interdomain_args a = inter_args(&c);
        ida_s4d_args b = s4d_args(&c);
        a.state_in = b.state_in = (ida_state_ref){c.out[OUT_FINAL_RE], c.out[OUT_FINAL_IM], state};
        a.q = ida_act_of(row[0]), a.k = b.k = ida_act_of(row[1]), a.v = b.v = ida_act_of(row[2]), a.o = b.y = ida_act_of(row[3]);
        assert_int_equal(s4d ? dev->ops->s4d_step(dev, &b, &prep, n_seq) : dev->ops->interdomain_step(dev, &a, &prep, n_seq),
                         IDA_OK);
        for (int64_t q = 0; q < n_seq; q++)
            memcpy(c.out[OUT_O] + (q * each + t) * width[3], row[3] + q * width[3], (size_t)width[3] * sizeof(float));
    }
    for (int i = 0; i < N_OUT; i++)
        if (!(out_diff(&c, &truth, i) <= limit))
            fail_msg("step, %s: %s is off by %.3g", dev->name, out_name[i], out_diff(&c, &truth, i));
    guarded_free(mem, 4 * gm + 2 * ro);
    guarded_free(row[0], n_seq * c.h * c.r), guarded_free(row[1], n_seq * c.g * c.r), guarded_free(row[2], n_seq * c.g * c.d),
        guarded_free(row[3], n_seq * c.h * w);
    case_close(&c), case_close(&truth);
}

static void steps(const ida_device *dev) {
    static const shape shape_of[] = {
        {1, 1, 1, 1, 1, 0, {30}, 1, false},
        {2, 1, 3, 5, 4, 0, {50, 50}, 2, false},
        {4, 2, 15, 16, 17, 0, {40, 40, 40}, 3, false},
        {2, 2, 17, 33, 16, 0, {100}, 1, false},
        {3, 1, 64, 64, 64, 0, {20, 20}, 2, false},
        {4, 4, 70, 66, 65, 0, {20}, 1, false},
    };
    for (size_t i = 0; i < sizeof shape_of / sizeof *shape_of; i++)
        for (int s4d = 0; s4d < 2; s4d++)
            for (int variant = 0; variant < 4; variant++) step_case(dev, &shape_of[i], s4d, variant, 2 * OUT_LIMIT);
}

static void steps_equal_the_sequence(void **state) {
    (void)state;
    each_isa(steps);
}

/* A step's bits depend on its inputs and state only: not on the batch it runs in, nor on threads. */
static void step_batches(const ida_device *dev) {
    enum { S = 40 };
    const shape s = {4, 2, 64, 64, 32, 0, {S}, 1, false};
    for (int s4d = 0; s4d < 2; s4d++) {
        ccase c = case_of(&s, s4d, 0);
        c.n_seq = S;
        for (int i = 0; i <= S; i++) c.cu[i] = i;
        case_open(&c, 19);
        ccase one = case_copy(&c);
        const int64_t gm = c.g * c.m, ro = s4d ? c.h * c.m : gm * c.m, w = c.r + c.d, state = gm * w, ow = c.h * (s4d ? w : c.d);
        float *mem = guarded(4 * gm + 2 * ro);
        const ida_ssm_prep prep = {mem, mem + gm, mem + 2 * gm, mem + 3 * gm, mem + 4 * gm, mem + 4 * gm + ro};
        const ida_ssm ssm = case_ssm(&c);
        ida_ref_ssm_prepare(&ssm, c.g, c.m, c.readout, s4d ? c.in[IN_Q] : NULL, &prep);
        ida_interdomain_args a = inter_args(&c);
        ida_s4d_args b = s4d_args(&c);
        assert_int_equal(s4d ? dev->ops->s4d_step(dev, &b, &prep, S) : dev->ops->interdomain_step(dev, &a, &prep, S), IDA_OK);
        for (int64_t q = 0; q < S; q++) {
            a = inter_args(&one), b = s4d_args(&one);
            a.q = ida_act_at(dev, a.q, q * c.h * c.r), a.o = ida_act_at(dev, a.o, q * ow), b.y = ida_act_at(dev, b.y, q * ow);
            b.k = a.k = ida_act_at(dev, a.k, q * c.g * c.r), b.v = a.v = ida_act_at(dev, a.v, q * c.g * c.d);
            a.state_in.re += q * state, a.state_in.im += q * state;
            b.state_in = a.state_in;
            assert_int_equal(s4d ? dev->ops->s4d_step(dev, &b, &prep, 1) : dev->ops->interdomain_step(dev, &a, &prep, 1), IDA_OK);
        }
        assert_memory_equal(c.out[OUT_O], one.out[OUT_O], (size_t)(S * ow) * sizeof(float));
        for (int p = 0; p < 2; p++)
            assert_memory_equal(c.in[IN_STATE_RE + p], one.in[IN_STATE_RE + p], (size_t)(S * state) * sizeof(float));
        guarded_free(mem, 4 * gm + 2 * ro);
        case_close(&c), case_close(&one);
    }
}

static void a_step_does_not_depend_on_its_batch(void **state) {
    (void)state;
    each_isa(step_batches);
}

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#endif
#endif

/* q of more than 2^31 elements (its last row lies beyond them too), made of one small file mapped again and again. Heads do not
 * see each other, so the last one must give the bits of a run of that head alone. */
static void L16_offsets_beyond_2_31_elements(void **state) {
    (void)state;
#ifdef UNDER_ASAN
    print_message("  skipped: the sanitizer's shadow of an 8 GiB mapping does not fit\n");
    skip();
#else
    enum { N = 33, H = 66048, R = 1024, D = 1, M = 2 };
    const size_t piece = (size_t)64 << 20, total = (size_t)N * H * R * sizeof(float), span = (total + piece - 1) / piece * piece;
    assert_true((int64_t)N * H * R > (int64_t)1 << 31);
    const int fd = memfd_create("idattn-test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)piece), 0);
    char *base = mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(base != MAP_FAILED);
    for (size_t at = 0; at < span; at += piece)
        assert_true(mmap(base + at, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
    float *q = (float *)(void *)base;
    for (size_t i = 0; i < piece / sizeof(float); i++) q[i] = (float)((i * 2654435761u >> 16) % 2001) * 1e-3f - 1;
    shape s = {1, 1, R, D, M, 0, {N}, 1, true};
    ccase c = case_of(&s, false, 0);
    case_open(&c, 20);
    for (int64_t t = 0; t < N; t++) memcpy(c.in[IN_Q] + t * R, q + ((t + 1) * (int64_t)H - 1) * R, R * sizeof(float));
    case_forward(&c, ida_cpu_device(), CHUNK);
    float *o;
    assert_int_equal(IDA_ALLOC(o, (int64_t)N * H * D, "outputs"), IDA_OK);
    ida_interdomain_args a = inter_args(&c);
    a.h = H, a.q = ida_act_of(q), a.o = ida_act_of(o);
    const ida_seqs seqs = {.n = 1, .cu = c.cu};
    assert_int_equal(ida_cpu_device()->ops->interdomain_chunk_fwd(ida_cpu_device(), &a, &seqs), IDA_OK);
    for (int64_t t = 0; t < N; t++) assert_true(o[(t + 1) * H - 1] == c.out[OUT_O][t]);
    ida_free(o);
    munmap(base, span);
    close(fd);
    case_close(&c);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_isa_equals_ref),
        cmocka_unit_test(L04_fast_decays_stay_finite_and_match),
        cmocka_unit_test(L04_vanished_terms_are_exactly_zero),
        cmocka_unit_test(L05_odd_dims_with_bf16_inputs),
        cmocka_unit_test(L07_short_pieces_carry_gradients),
        cmocka_unit_test(L08_long_sequence_gradients_keep_their_digits),
        cmocka_unit_test(L10_tails_stay_inside_guarded_arrays),
        cmocka_unit_test(L11_empty_documents),
        cmocka_unit_test(L12_packed_documents_equal_separate_ones),
        cmocka_unit_test(L16_offsets_beyond_2_31_elements),
        cmocka_unit_test(L18_large_heads),
        cmocka_unit_test(outputs_before_a_changed_token_keep_their_bits),
        cmocka_unit_test(thread_count_never_shows),
        cmocka_unit_test(states_may_alias_and_have_strides),
        cmocka_unit_test(steps_equal_the_sequence),
        cmocka_unit_test(a_step_does_not_depend_on_its_batch),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    print_message("worst against ref: outputs %.1e, gradients %.1e, of decays %.1e\n", worst_out, worst_grad, worst_decay);
    return failed;
}
