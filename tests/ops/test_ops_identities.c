/* Identities of the ops that work along a sequence, on every instruction set and on one and two threads: a pack equals its
 * sequences apart, pieces with carried state equal one call, a token never touches what came before it, a row does not depend on
 * the rows beside it. "Same bits" where the op promises the same arithmetic; else SAME, which is a few roundings. */
#include "ops/ops_test.h"

#define SAME (64.0 * EPS) /* two fp32 sums of some hundred terms in different order */

static void ok(ida_status st) {
    if (st != IDA_OK) fail_msg("%s", ida_last_error());
}
/* Within SAME of the largest value, or of 1, the size of the inputs, where the value is a difference that vanishes. */
static void assert_close(const char *what, const float *a, const float *b, int64_t n) {
    double top = fmax((double)largest(b, n), 1.0);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= SAME * top))
            fail_msg("%s[%lld]: %.9g and %.9g differ by more than %.3g", what, (long long)i, (double)a[i], (double)b[i],
                     SAME * top);
}

/* ---------------------------------------------------------------- one block of conv, rope, attention, forward and backward */

enum { H = 2, G = 1, D = 12, W = H * D, WK = G * D };
typedef struct chain {
    float *x, *k, *v, *dout;             /* in: [n,W] [n,WK] [n,WK] [n,W] */
    float *c, *q, *o, *lse;              /* conv, rope, attention */
    float *dq, *dk, *dv, *dc, *dx, *dw, *db;
} chain;

static chain chain_new(int64_t n) {
    chain c = {.x = uniform(n * W, 1), .k = uniform(n * WK, 2), .v = uniform(n * WK, 3), .dout = uniform(n * W, 4)};
    float **out[] = {&c.c, &c.q, &c.o, &c.dq, &c.dc, &c.dx};
    for (int i = 0; i < 6; i++) *out[i] = floats(n * W, NAN);
    c.lse = floats(n * H, NAN);
    c.dk = floats(n * WK, NAN);
    c.dv = floats(n * WK, NAN);
    c.dw = floats(4 * W, 0.0f);
    c.db = floats(W, 0.0f);
    return c;
}
static void chain_run(const ida_device *dev, const chain *c, const ida_seqs *q) {
    static float w[4 * W], b[W];
    randomise(w, 4 * W, 50);
    randomise(b, W, 51);
    ok(dev->ops->conv_fwd(dev, ida_act_of(c->c), NULL, ida_act_of(c->x), w, b, NULL, 0, q, W));
    ok(dev->ops->rope(dev, ida_act_of(c->q), ida_act_of(c->c), q, H, D, 10000.0, 1));
    ida_attention_args a = {.o = ida_act_of(c->o),
                            .lse = c->lse,
                            .q = ida_act_of(c->q),
                            .k = ida_act_of(c->k),
                            .v = ida_act_of(c->v),
                            .h = H,
                            .g = G,
                            .d = D};
    ok(dev->ops->attention_fwd(dev, &a, q));
    ok(dev->ops->attention_bwd(dev, ida_act_of(c->dq), ida_act_of(c->dk), ida_act_of(c->dv), ida_act_of(c->dout), &a, q));
    ok(dev->ops->rope(dev, ida_act_of(c->dc), ida_act_of(c->dq), q, H, D, 10000.0, -1));
    ida_conv_bwd_args g = {
        .dx = ida_act_of(c->dx), .dw = c->dw, .db = c->db, .dy = ida_act_of(c->dc), .x = ida_act_of(c->x), .w = w, .d = W};
    ok(dev->ops->conv_bwd(dev, &g, q));
}
/* The tokens [at, at + n) of c, as a chain of their own over the same memory. */
static chain chain_part(const chain *c, int64_t at) {
    chain p = *c;
    float **wide[] = {&p.x, &p.dout, &p.c, &p.q, &p.o, &p.dq, &p.dc, &p.dx}, **narrow[] = {&p.k, &p.v, &p.dk, &p.dv};
    for (int i = 0; i < 8; i++) *wide[i] += at * W;
    for (int i = 0; i < 4; i++) *narrow[i] += at * WK;
    p.lse += at * H;
    return p;
}
/* Every per-token result of the pack has the bits of the sequence run alone; parameter sums agree closely. */
static void pack_equals_parts(const ida_device *dev, int64_t n_seq, const int64_t *cu) {
    int64_t n = cu[n_seq];
    int mark = n_blocks;
    chain whole = chain_new(n), apart = chain_new(n);
    chain_run(dev, &whole, &(ida_seqs){n_seq, cu, NULL});
    for (int64_t s = 0; s < n_seq; s++) {
        chain part = chain_part(&apart, cu[s]);
        chain_run(dev, &part, &(ida_seqs){1, (const int64_t[]){0, cu[s + 1] - cu[s]}, NULL});
    }
    assert_same_bits("o", whole.o, apart.o, n * W);
    assert_same_bits("lse", whole.lse, apart.lse, n * H);
    assert_same_bits("dk", whole.dk, apart.dk, n * WK);
    assert_same_bits("dv", whole.dv, apart.dv, n * WK);
    assert_same_bits("dx", whole.dx, apart.dx, n * W);
    assert_close("dw", whole.dw, apart.dw, 4 * W);
    assert_close("db", whole.db, apart.db, W);
    release_from(mark);
}

static void check_ragged(const ida_device *dev) {
    pack_equals_parts(dev, 2, (const int64_t[]){0, 781, 1048});
    pack_equals_parts(dev, 3, (const int64_t[]){0, 5, 5, 9});
    pack_equals_parts(dev, 2, (const int64_t[]){0, 0, 9});
    pack_equals_parts(dev, 2, (const int64_t[]){0, 9, 9});
    pack_equals_parts(dev, 1, (const int64_t[]){0, 0});
}
static void L11_L12_pack_with_ragged_and_empty_sequences_equals_separate_runs(void **state) {
    (void)state;
    on_every_isa(check_ragged);
}

static void L12_a_thousand_random_splits_equal_separate_runs(void **state) {
    (void)state;
    assert_int_equal(ida_set_threads(2), IDA_OK);
    for (uint64_t i = 0; i < 1000; i++) {
        int64_t cu[12] = {0}, n_seq = 1 + (int64_t)(ida_uniform(IDA_STREAM_TEST, i, 0) * 10.0),
                n = (int64_t)(ida_uniform(IDA_STREAM_TEST, i, 1) * 150.0);
        for (int64_t s = 1; s < n_seq; s++)
            cu[s] = (int64_t)(ida_uniform(IDA_STREAM_TEST, i, (uint64_t)(s + 1)) * (double)(n + 1));
        cu[n_seq] = n;
        for (int64_t s = 1; s < n_seq; s++) /* sorted by insertion */
            for (int64_t k = s; k > 1 && cu[k] < cu[k - 1]; k--) {
                int64_t t = cu[k];
                cu[k] = cu[k - 1];
                cu[k - 1] = t;
            }
        pack_equals_parts(ida_cpu_device(), n_seq, cu);
    }
}

/* ---------------------------------------------------------------- guard pages, causality, leaks */

static void check_lengths(const ida_device *dev) {
    static const int64_t lengths[] = {1, 2, 63, 64, 65, 127, 129};
    for (int i = 0; i < 7; i++) {
        int mark = n_blocks;
        int64_t n = lengths[i], cu[2] = {0, n};
        chain a = chain_new(n), r = chain_new(n);
        chain_run(dev, &a, &(ida_seqs){1, cu, NULL});
        chain_run(&ida_ref_device, &r, &(ida_seqs){1, cu, NULL});
        assert_close("o", a.o, r.o, n * W);
        assert_close("dx", a.dx, r.dx, n * W);
        assert_close("dk", a.dk, r.dk, n * WK);
        assert_close("dv", a.dv, r.dv, n * WK);
        release_from(mark);
    }
}
static void L10_odd_lengths_against_guard_pages(void **state) {
    (void)state;
    on_every_isa(check_lengths);
}

static void check_causal(const ida_device *dev) {
    enum { N = 200 };
    static const int64_t cu[] = {0, N}, at[] = {1, 5, 63, 64, 65, 130, 199};
    chain a = chain_new(N);
    chain_run(dev, &a, &(ida_seqs){1, cu, NULL});
    for (int i = 0; i < 7; i++) {
        int mark = n_blocks;
        chain b = chain_new(N);
        int64_t t = at[i];
        randomise(b.x + t * W, (N - t) * W, 70);
        randomise(b.k + t * WK, (N - t) * WK, 71);
        randomise(b.v + t * WK, (N - t) * WK, 72);
        chain_run(dev, &b, &(ida_seqs){1, cu, NULL});
        assert_same_bits("o before the change", a.o, b.o, t * W);
        assert_true(memcmp(a.o + t * W, b.o + t * W, W * sizeof(float)) != 0);
        release_from(mark);
    }
}
static void L15_a_changed_token_leaves_all_before_it_bit_equal(void **state) {
    (void)state;
    on_every_isa(check_causal);
}

static void check_leak(const ida_device *dev) {
    static const int64_t cu[] = {0, 71, 150};
    chain a = chain_new(150), b = chain_new(150);
    randomise(b.x, 71 * W, 80);
    randomise(b.k, 71 * WK, 81);
    randomise(b.v, 71 * WK, 82);
    randomise(b.dout, 71 * W, 83);
    chain_run(dev, &a, &(ida_seqs){2, cu, NULL});
    chain_run(dev, &b, &(ida_seqs){2, cu, NULL});
    assert_same_bits("o of the other document", a.o + 71 * W, b.o + 71 * W, 79 * W);
    assert_same_bits("dx of the other document", a.dx + 71 * W, b.dx + 71 * W, 79 * W);
    assert_same_bits("dk of the other document", a.dk + 71 * WK, b.dk + 71 * WK, 79 * WK);
    assert_same_bits("dv of the other document", a.dv + 71 * WK, b.dv + 71 * WK, 79 * WK);
}
static void L13_a_document_does_not_see_its_neighbour(void **state) {
    (void)state;
    on_every_isa(check_leak);
}

/* ---------------------------------------------------------------- pieces */

static void check_conv_pieces(const ida_device *dev) {
    enum { N = 100, C = 19 };
    float *x = uniform(N * C, 1), *w = uniform(4 * C, 2), *b = uniform(C, 3), *state0 = uniform(3 * C, 4);
    float *whole = floats(N * C, NAN), *pieces = floats(N * C, NAN), *end = floats(3 * C, NAN), *s = floats(3 * C, NAN);
    ok(dev->ops->conv_fwd(dev, ida_act_of(whole), end, ida_act_of(x), w, b, state0, 3 * C,
                          &(ida_seqs){1, (const int64_t[]){0, N}, NULL}, C));
    for (uint64_t cut = 0; cut < 20; cut++) {
        memcpy(s, state0, 3 * C * sizeof *s);
        for (int64_t t = 0, n, i = 0; t < N; t += n, i++) {
            n = cut < 5 ? (int64_t)cut : (int64_t)(ida_uniform(IDA_STREAM_TEST, cut, (uint64_t)i) * 9.0);
            if (cut == 0) n = i % 2; /* pieces of no token between pieces of one */
            n = n < N - t ? n : N - t;
            ok(dev->ops->conv_fwd(dev, ida_act_of(pieces + t * C), s, ida_act_of(x + t * C), w, b, s, 3 * C,
                                  &(ida_seqs){1, (const int64_t[]){0, n}, NULL}, C));
        }
        assert_same_bits("y in pieces", pieces, whole, N * C);
        assert_same_bits("final state in pieces", s, end, 3 * C);
    }
}
static void L01_conv_in_pieces_with_state_has_the_bits_of_one_call(void **state) {
    (void)state;
    on_every_isa(check_conv_pieces);
}

static void check_cache(const ida_device *dev) {
    enum { N = 300 };
    static const int64_t cuts[] = {1, 2, 7, 8, 9, 63, 64, 65, 128, 299};
    float *q = uniform(N * W, 1), *k = uniform(N * WK, 2), *v = uniform(N * WK, 3), *whole = floats(N * W, NAN),
          *o = floats(N * W, NAN);
    float *kc = floats(N * WK, NAN), *vc = floats(N * WK, NAN);
    ida_act *k_cache = ida_act_of(kc), *v_cache = ida_act_of(vc);
    ida_attention_args one = {
        .o = ida_act_of(whole), .q = ida_act_of(q), .k = ida_act_of(k), .v = ida_act_of(v), .h = H, .g = G, .d = D};
    ok(dev->ops->attention_fwd(dev, &one, &(ida_seqs){1, (const int64_t[]){0, N}, NULL}));
    for (int i = 0; i < 10; i++)
        for (int rest = 0; rest < 2; rest++) { /* the rest at once, or in pieces of the cut */
            for (int64_t t = 0, n; t < N; t += n) {
                n = t > 0 && rest == 0 ? N - t : cuts[i] < N - t ? cuts[i] : N - t;
                ida_attention_args a = {.o = ida_act_of(o + t * W),
                                        .q = ida_act_of(q + t * W),
                                        .k = ida_act_of(k + t * WK),
                                        .v = ida_act_of(v + t * WK),
                                        .k_cache = &k_cache,
                                        .v_cache = &v_cache,
                                        .h = H,
                                        .g = G,
                                        .d = D};
                ok(dev->ops->attention_fwd(dev, &a, &(ida_seqs){1, (const int64_t[]){0, n}, (const int64_t[]){t}}));
            }
            assert_close("o with a cache", o, whole, N * W);
            assert_same_bits("key cache", kc, k, N * WK);
            assert_same_bits("value cache", vc, v, N * WK);
        }
}
static void L01_attention_with_a_cache_at_any_cut_equals_one_call(void **state) {
    (void)state;
    on_every_isa(check_cache);
}

/* Two sequences at different positions decode one token together and alone. */
static void check_decode_batch(const ida_device *dev) {
    enum { CAP = 90 };
    ida_act *kc[2] = {ida_act_of(uniform(CAP * WK, 1)), ida_act_of(uniform(CAP * WK, 2))},
            *vc[2] = {ida_act_of(uniform(CAP * WK, 3)), ida_act_of(uniform(CAP * WK, 4))};
    float *q = uniform(2 * W, 5), *k = uniform(2 * WK, 6), *v = uniform(2 * WK, 7), *both = floats(2 * W, NAN),
          *alone = floats(2 * W, NAN);
    int64_t pos0[] = {89, 2};
    ida_attention_args a = {.o = ida_act_of(both),
                            .q = ida_act_of(q),
                            .k = ida_act_of(k),
                            .v = ida_act_of(v),
                            .k_cache = kc,
                            .v_cache = vc,
                            .h = H,
                            .g = G,
                            .d = D};
    ok(dev->ops->attention_fwd(dev, &a, &(ida_seqs){2, (const int64_t[]){0, 1, 2}, pos0}));
    for (int s = 0; s < 2; s++) {
        ida_attention_args b = {.o = ida_act_of(alone + s * W),
                                .q = ida_act_of(q + s * W),
                                .k = ida_act_of(k + s * WK),
                                .v = ida_act_of(v + s * WK),
                                .k_cache = kc + s,
                                .v_cache = vc + s,
                                .h = H,
                                .g = G,
                                .d = D};
        ok(dev->ops->attention_fwd(dev, &b, &(ida_seqs){1, (const int64_t[]){0, 1}, pos0 + s}));
    }
    assert_same_bits("o decoded together and alone", both, alone, 2 * W);
}
static void L14_decoding_in_a_batch_has_the_bits_of_decoding_alone(void **state) {
    (void)state;
    on_every_isa(check_decode_batch);
}

/* Row 0 of a product with 1..40 rows: the same bits while the rows are few, a few roundings beyond. */
static void check_rows(const ida_device *dev) {
    enum { IN = 70, OUT = 45, MAX = 40 };
    float *x = uniform(MAX * IN, 1), *one = floats(OUT, NAN), *y = floats(MAX * OUT, NAN);
    const ida_matrix w = ida_matrix_of(dev, uniform(OUT * IN, 2), OUT, IN);
    ok(dev->ops->linear_fwd(dev, ida_act_of(one), ida_act_of(x), &w, NULL, 1));
    for (int64_t n = 2; n <= MAX; n++) {
        ok(dev->ops->linear_fwd(dev, ida_act_of(y), ida_act_of(x), &w, NULL, n));
        if (n <= 8) assert_same_bits("row 0 among few", y, one, OUT);
        else assert_close("row 0 among many", y, one, OUT);
    }
}
static void L14_a_row_does_not_depend_on_the_rows_beside_it(void **state) {
    (void)state;
    on_every_isa(check_rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(L11_L12_pack_with_ragged_and_empty_sequences_equals_separate_runs),
        cmocka_unit_test(L12_a_thousand_random_splits_equal_separate_runs),
        cmocka_unit_test(L10_odd_lengths_against_guard_pages),
        cmocka_unit_test(L15_a_changed_token_leaves_all_before_it_bit_equal),
        cmocka_unit_test(L13_a_document_does_not_see_its_neighbour),
        cmocka_unit_test(L01_conv_in_pieces_with_state_has_the_bits_of_one_call),
        cmocka_unit_test(L01_attention_with_a_cache_at_any_cut_equals_one_call),
        cmocka_unit_test(L14_decoding_in_a_batch_has_the_bits_of_decoding_alone),
        cmocka_unit_test(L14_a_row_does_not_depend_on_the_rows_beside_it),
    };
    return cmocka_run_group_tests_name("ops_identities", tests, NULL, NULL);
}
