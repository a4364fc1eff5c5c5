/* test_model.c - the fp32 model as users meet it: pieces, steps, batches, packed documents, causality, on the ref and the cpu
 * device. Gradients against differences are in test_model_f64.c; here fp32 cpu is held against fp32 ref. */
#include "model_test.h"

/* fp32 against fp32 with another order of sums, through two layers. Outputs: below 1e-6 measured (naive order against chunk
 * order, ref and each ISA). Gradients, tensor by tensor: 9.2e-6 measured, the scalar ones (log_dt) worst. Twice that is
 * allowed. */
#define TOL 2e-6
#define GRAD_TOL 2e-5

static const ida_device *device(int i) { return i ? ida_cpu_device() : &ida_ref_device; }

/* The row's own model: 2 layers, width 64, 2 heads, 16 modes, byte vocabulary. */
static ida_model *row_model(ida_mixer_kind kind, const ida_device *dev) {
    ida_config c;
    OK(ida_config_preset("tiny", kind, &c));
    c.init_std = 0.1;
    return make_model(&c, dev, 11, 0.05);
}

enum { V = 257, MAX_T = 1024 };

/* Feeds ids in pieces that end at cuts[0..n_cuts) and collects the logits of every token. */
static void run_pieces(const ida_model *m, const int32_t *ids, const int64_t *cuts, int n_cuts, ida_state *s, float *logits) {
    ida_acts *a = NULL;
    int64_t *rows = calloc(MAX_T, sizeof *rows), at = 0;
    for (int i = 0; i < MAX_T; i++) rows[i] = i;
    OK(ida_acts_new(&m->cfg, m->dev, MAX_T, 1, IDA_ACTS_FORWARD, &a));
    for (int i = 0; i < n_cuts; i++) {
        int64_t n = cuts[i] - at, cu[2] = {0, n};
        ida_batch b = {.n_tokens = n, .ids = ids + at, .seqs = {.n = 1, .cu = cu}};
        OK(ida_model_forward(m, a, &b, s, NULL, logits + at * V, rows, n));
        at = cuts[i];
        if (s) assert_int_equal(s->pos[0], at);
    }
    ida_acts_free(a);
    free(rows);
}

static void L01_pieces_equal_one_call(void **unused) {
    (void)unused;
    enum { T = 256 };
    float *whole = calloc((size_t)T * V, sizeof *whole), *pieces = calloc((size_t)T * V, sizeof *pieces);
    int32_t ids[T];
    random_ids(ids, T, V, 2);
    for (int dev = 0; dev < 2; dev++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            ida_model *m = row_model((ida_mixer_kind)kind, device(dev));
            ida_state *one = NULL, *many = NULL;
            int64_t end = T;
            OK(ida_state_new(&m->cfg, m->dev, 1, &one));
            run_pieces(m, ids, &end, 1, one, whole);
            for (int trial = 0; trial < 3; trial++) {
                int64_t cuts[T];
                int n = 0;
                for (int64_t at = 0; at < T; n++) { /* 4 x 64, then random cuts with single tokens among them */
                    double u = ida_uniform((uint64_t)trial, IDA_STREAM_TEST, (uint64_t)n);
                    at += trial == 0 ? 64 : u < 0.4 ? 1 : 1 + (int64_t)(u * 60);
                    cuts[n] = at < T ? at : T;
                }
                OK(ida_state_new(&m->cfg, m->dev, 1, &many));
                run_pieces(m, ids, cuts, n, many, pieces);
                double e = rel_error(pieces, whole, (int64_t)T * V), es = rel_error(many->block, one->block, one->stride);
                if (e > TOL || es > TOL)
                    fail_msg("%s on %s, trial %d: logits %g, state %g", ida_mixer_name((ida_mixer_kind)kind), device(dev)->name,
                             trial, e, es);
                ida_state_free(many);
            }
            ida_state_free(one);
            ida_model_free(m);
        }
    free(whole);
    free(pieces);
}

static void step_form_equals_chunk_form(void **unused) {
    (void)unused;
    enum { T = 96 };
    float *whole = calloc((size_t)T * V, sizeof *whole), *steps = calloc((size_t)T * V, sizeof *steps);
    int32_t ids[T];
    int64_t cuts[T], end = T;
    random_ids(ids, T, V, 3);
    for (int i = 0; i < T; i++) cuts[i] = i + 1;
    for (int dev = 0; dev < 2; dev++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            ida_model *m = row_model((ida_mixer_kind)kind, device(dev));
            ida_state *s = NULL;
            OK(ida_state_new(&m->cfg, m->dev, 1, &s));
            run_pieces(m, ids, &end, 1, NULL, whole);
            run_pieces(m, ids, cuts, T, s, steps);
            double e = rel_error(steps, whole, (int64_t)T * V);
            if (e > TOL) fail_msg("%s on %s: %g", ida_mixer_name((ida_mixer_kind)kind), device(dev)->name, e);
            ida_state_free(s);
            ida_model_free(m);
        }
    free(whole);
    free(steps);
}

static void L06_carried_state_in_training_gives_the_one_piece_loss(void **unused) {
    (void)unused;
    enum { T = 1024, PIECE = 256 };
    int32_t ids[T], targets[T];
    random_ids(ids, T, V, 4);
    for (int i = 0; i < T; i++) targets[i] = i + 1 < T ? ids[i + 1] : -1;
    for (int kind = 0; kind < N_KINDS; kind++) {
        ida_model *m = row_model((ida_mixer_kind)kind, ida_cpu_device());
        ida_acts *a = NULL;
        ida_state *s = NULL;
        double whole, part, sum = 0;
        int64_t n, scored = 0, cu[2] = {0, T}, pcu[2] = {0, PIECE};
        OK(ida_acts_new(&m->cfg, m->dev, T, 1, IDA_ACTS_TRAINING, &a));
        OK(ida_state_new(&m->cfg, m->dev, 1, &s));
        float *g = calloc((size_t)m->table.block, sizeof *g);
        ida_batch b = {.n_tokens = T, .ids = ids, .targets = targets, .seqs = {.n = 1, .cu = cu}};
        OK(ida_model_forward_backward(m, a, &b, NULL, 1.0 / T, g, &whole, &n, NULL));
        assert_int_equal(n, T - 1);
        for (int i = 0; i < T; i += PIECE) {
            ida_batch p = {.n_tokens = PIECE, .ids = ids + i, .targets = targets + i, .seqs = {.n = 1, .cu = pcu}};
            ida_status st = ida_model_forward_backward(m, a, &p, s, 1.0 / T, g, &part, &n, NULL);
            if (kind == IDA_MIXER_SOFTMAX) { /* no fixed state to carry: refused, not ignored */
                assert_int_equal(st, IDA_E_UNSUPPORTED);
                break;
            }
            OK(st);
            sum += part;
            scored += n;
            assert_int_equal(s->pos[0], i + PIECE);
        }
        if (kind != IDA_MIXER_SOFTMAX) {
            assert_int_equal(scored, T - 1);
            if (!(fabs(sum - whole) < 1e-5 * whole))
                fail_msg("%s: carried %.9g, one piece %.9g", ida_mixer_name((ida_mixer_kind)kind), sum, whole);
            for (int64_t i = 0; i < m->table.block; i++) assert_true(isfinite(g[i]));
        }
        free(g);
        ida_state_free(s);
        ida_acts_free(a);
        ida_model_free(m);
    }
}

/* Two documents in one row; the first is replaced. Nothing of the second may move by one bit. */
static void L13_documents_of_a_row_do_not_see_each_other(void **unused) {
    (void)unused;
    enum { A = 37, B = 70, T = A + B };
    int32_t ids[T], targets[T];
    int64_t cu[3] = {0, A, T}, rows[T];
    for (int dev = 0; dev < 2; dev++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            ida_model *m = row_model((ida_mixer_kind)kind, device(dev));
            ida_acts *a = NULL;
            OK(ida_acts_new(&m->cfg, m->dev, T, 2, IDA_ACTS_TRAINING, &a));
            int64_t d = m->cfg.d_model;
            float *logits[2], *dx0[2];
            for (int round = 0; round < 2; round++) {
                random_ids(ids, T, V, 6);
                if (round) random_ids(ids, A, V, 7);
                for (int i = 0; i < T; i++) {
                    targets[i] = i == A - 1 || i == T - 1 ? -1 : ids[i + 1];
                    rows[i] = i;
                }
                ida_batch b = {.n_tokens = T, .ids = ids, .targets = targets, .seqs = {.n = 2, .cu = cu}};
                logits[round] = calloc((size_t)T * V, sizeof(float));
                dx0[round] = calloc((size_t)(T * d), sizeof(float));
                double loss;
                OK(ida_model_forward(m, a, &b, NULL, NULL, logits[round], rows, T));
                ida_free(gradients(m, a, &b, NULL, 1, &loss, dx0[round]));
            }
            assert_true(same_bits(logits[0] + A * V, logits[1] + A * V, B * V));
            assert_true(same_bits(dx0[0] + A * d, dx0[1] + A * d, B * d));
            assert_false(same_bits(logits[0], logits[1], A * V));
            for (int round = 0; round < 2; round++) {
                free(logits[round]);
                free(dx0[round]);
            }
            ida_acts_free(a);
            ida_model_free(m);
        }
}

static int64_t argmax(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Prompts of 2 and 6 tokens, then 8 greedy tokens each: together and alone, the same text and nearly the same logits. */
static void L14_a_batch_gives_what_each_gives_alone(void **unused) {
    (void)unused;
    static const int32_t prompts[8] = {10, 20, 1, 2, 3, 4, 5, 6};
    enum { STEPS = 8 };
    for (int dev = 0; dev < 2; dev++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            ida_model *m = row_model((ida_mixer_kind)kind, device(dev));
            float out[3][2][STEPS + 1][V];
            for (int run = 0; run < 3; run++) { /* 0: both; 1, 2: one of them */
                ida_acts *a = NULL;
                ida_state *s = NULL;
                int n_seq = run == 0 ? 2 : 1, first = run == 2;
                int64_t both[3] = {0, 2, 8}, short_[2] = {0, 2}, long_[2] = {0, 6}, each[3] = {0, 1, 2};
                int64_t *cu = run == 0 ? both : run == 1 ? short_ : long_, last[2], zero_one[2] = {0, 1};
                OK(ida_acts_new(&m->cfg, m->dev, 8, n_seq, IDA_ACTS_FORWARD, &a));
                OK(ida_state_new(&m->cfg, m->dev, n_seq, &s));
                float *logits = calloc((size_t)(2 * V), sizeof *logits);
                int32_t next[2];
                for (int t = 0; t <= STEPS; t++) {
                    ida_batch b = {.n_tokens = t ? n_seq : cu[n_seq],
                                   .ids = t ? next : prompts + (run == 2 ? 2 : 0),
                                   .seqs = {.n = n_seq, .cu = t ? each : cu}};
                    for (int i = 0; i < n_seq; i++) last[i] = cu[i + 1] - 1;
                    OK(ida_model_forward(m, a, &b, s, NULL, logits, t ? zero_one : last, n_seq));
                    for (int i = 0; i < n_seq; i++) {
                        memcpy(out[run][first + i][t], logits + i * V, sizeof out[0][0][0]);
                        next[i] = (int32_t)argmax(logits + i * V, V);
                    }
                }
                free(logits);
                ida_state_free(s);
                ida_acts_free(a);
            }
            for (int seq = 0; seq < 2; seq++)
                for (int t = 0; t <= STEPS; t++) {
                    assert_int_equal(argmax(out[0][seq][t], V), argmax(out[1 + seq][seq][t], V));
                    assert_true(rel_error(out[0][seq][t], out[1 + seq][seq][t], V) < TOL);
                }
            ida_model_free(m);
        }
}

static void L15_no_output_sees_a_later_token(void **unused) {
    (void)unused;
    enum { T = 150 };
    float *before = calloc((size_t)T * V, sizeof *before), *after = calloc((size_t)T * V, sizeof *after);
    int32_t ids[T];
    int64_t end = T;
    static const int changed[] = {1, 63, 64, 65, 128, 149};
    for (int dev = 0; dev < 2; dev++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            ida_model *m = row_model((ida_mixer_kind)kind, device(dev));
            random_ids(ids, T, V, 8);
            run_pieces(m, ids, &end, 1, NULL, before);
            for (int i = 0; i < 6; i++) {
                int t = changed[i];
                int32_t old = ids[t];
                ids[t] = (old + 1) % V;
                run_pieces(m, ids, &end, 1, NULL, after);
                assert_true(same_bits(before, after, (int64_t)t * V));
                assert_false(same_bits(before + (int64_t)t * V, after + (int64_t)t * V, V));
                assert_true(t + 1 == T || !same_bits(before + (int64_t)(t + 1) * V, after + (int64_t)(t + 1) * V, V));
                ids[t] = old;
            }
            ida_model_free(m);
        }
    free(before);
    free(after);
}

/* Fresh random tokens at every step cannot be learned: a loss below log(vocab) would be a leak. */
static void L15_random_tokens_stay_at_log_vocab(void **unused) {
    (void)unused;
    enum { T = 256, STEPS = 12, CE_V = 32 };
    int32_t ids[T + 1];
    int64_t cu[3] = {0, T / 2, T};
    for (int kind = 0; kind < N_KINDS; kind++) {
        ida_config c = small_config((ida_mixer_kind)kind, CE_V, 32, 2, 8);
        const ida_device *dev = ida_cpu_device();
        ida_model *m = NULL;
        ida_acts *a = NULL;
        OK(ida_model_new(&c, dev, NULL, &m));
        OK(ida_param_init(&c, &m->table, 1, m->params));
        OK(ida_acts_new(&c, dev, T, 2, IDA_ACTS_TRAINING, &a));
        float *mom = calloc((size_t)(2 * m->table.block), sizeof *mom);
        double late = 0;
        for (int step = 1; step <= STEPS; step++) {
            random_ids(ids, T + 1, CE_V, 100 + (uint64_t)step);
            ida_batch b = {.n_tokens = T, .ids = ids, .targets = ids + 1, .seqs = {.n = 2, .cu = cu}};
            double loss;
            float *g = gradients(m, a, &b, NULL, 1.0 / T, &loss, NULL);
            if (step > STEPS / 2) late += loss / T / (STEPS - STEPS / 2);
            ida_adamw_args o = {.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .gscale = 1, .t = step};
            OK(dev->ops->adamw(dev, m->params, mom, mom + m->table.block, g, m->table.block, &o));
            ida_free(g);
        }
        if (!(late > log(CE_V) - 0.01 && late < log(CE_V) + 0.2))
            fail_msg("%s: loss %g, log(vocab) %g", ida_mixer_name((ida_mixer_kind)kind), late, log(CE_V));
        free(mom);
        ida_acts_free(a);
        ida_model_free(m);
    }
}

static void cpu_gives_the_loss_and_every_gradient_of_ref(void **unused) {
    (void)unused;
    enum { T = 140 };
    int32_t ids[T], targets[T];
    int64_t cu[6] = {0, 50, 50, 51, 118, T};
    random_ids(ids, T, V, 12);
    for (int i = 0; i < T; i++) targets[i] = i % 9 == 0 ? -1 : ids[(i + 1) % T];
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int variant = 0; variant < 2; variant++) {
            ida_config c;
            OK(ida_config_preset("tiny", (ida_mixer_kind)kind, &c));
            c.init_std = 0.1;
            c.gate = c.output_norm = c.tie_embeddings = variant == 1;
            float *g[2], *dx0[2];
            double loss[2];
            ida_model *m = NULL;
            for (int dev = 0; dev < 2; dev++) {
                ida_acts *a = NULL;
                ida_model_free(m);
                m = make_model(&c, device(dev), 21, 0.05);
                OK(ida_acts_new(&c, m->dev, T, 5, IDA_ACTS_TRAINING, &a));
                ida_batch b = {.n_tokens = T, .ids = ids, .targets = targets, .seqs = {.n = 5, .cu = cu}};
                dx0[dev] = calloc((size_t)(T * c.d_model), sizeof(float));
                g[dev] = gradients(m, a, &b, NULL, 1.0 / T, &loss[dev], dx0[dev]);
                ida_acts_free(a);
            }
            assert_true(fabs(loss[0] - loss[1]) < 1e-6 * loss[0]);
            assert_true(rel_error(dx0[1], dx0[0], T * c.d_model) < GRAD_TOL);
            for (int64_t i = 0; i < m->table.n; i++) {
                const ida_param *p = &m->table.params[i];
                double e = rel_error(g[1] + p->offset, g[0] + p->offset, p->numel);
                if (e > GRAD_TOL)
                    fail_msg("%s, variant %d: gradient of %s differs by %g", ida_mixer_name((ida_mixer_kind)kind), variant,
                             p->name, e);
            }
            for (int dev = 0; dev < 2; dev++) {
                free(dx0[dev]);
                ida_free(g[dev]);
            }
            ida_model_free(m);
        }
}

static void loss_and_gradients_do_not_depend_on_threads(void **unused) {
    (void)unused;
    enum { T = 400, DV = 2048 };
    int32_t ids[T + 1];
    int64_t cu[4] = {0, 250, 251, T};
    random_ids(ids, T + 1, DV, 16);
    int before = ida_get_threads();
    for (int kind = 0; kind < N_KINDS; kind++) {
        ida_config c;
        OK(ida_config_preset("demo", (ida_mixer_kind)kind, &c));
        c.n_layers = 1;
        ida_model *m = make_model(&c, ida_cpu_device(), 4, 0.05);
        ida_acts *a = NULL;
        OK(ida_acts_new(&c, m->dev, T, 3, IDA_ACTS_TRAINING, &a));
        ida_batch b = {.n_tokens = T, .ids = ids, .targets = ids + 1, .seqs = {.n = 3, .cu = cu}};
        float *g[2];
        double loss[2];
        for (int i = 0; i < 2; i++) {
            OK(ida_set_threads(i ? 3 : 1));
            g[i] = gradients(m, a, &b, NULL, 1.0 / T, &loss[i], NULL);
        }
        assert_true(loss[0] == loss[1]);
        for (int64_t i = 0; i < m->table.n; i++) {
            const ida_param *p = &m->table.params[i];
            if (!same_bits(g[0] + p->offset, g[1] + p->offset, p->numel))
                fail_msg("%s: gradient of %s depends on the thread count", ida_mixer_name((ida_mixer_kind)kind), p->name);
        }
        ida_free(g[0]);
        ida_free(g[1]);
        ida_acts_free(a);
        ida_model_free(m);
    }
    OK(ida_set_threads(before));
}

static void packed_gradients_are_the_sum_of_separate_ones(void **unused) {
    (void)unused;
    enum { T = 60 };
    int32_t ids[T];
    int64_t cu[5] = {0, 20, 20, 21, T};
    random_ids(ids, T, V, 13);
    for (int kind = 0; kind < N_KINDS; kind++) {
        ida_model *m = row_model((ida_mixer_kind)kind, ida_cpu_device());
        ida_acts *a = NULL;
        OK(ida_acts_new(&m->cfg, m->dev, T, 4, IDA_ACTS_TRAINING, &a));
        ida_batch b = {.n_tokens = T, .ids = ids, .targets = ids, .seqs = {.n = 4, .cu = cu}};
        double loss, part, sum = 0;
        int64_t n;
        float *packed = gradients(m, a, &b, NULL, 1, &loss, NULL), *separate = calloc((size_t)m->table.block, sizeof *separate);
        for (int i = 0; i < 4; i++) {
            int64_t len = cu[i + 1] - cu[i], one[2] = {0, len};
            ida_batch p = {.n_tokens = len, .ids = ids + cu[i], .targets = ids + cu[i], .seqs = {.n = 1, .cu = one}};
            OK(ida_model_forward_backward(m, a, &p, NULL, 1, separate, &part, &n, NULL)); /* "+=" over micro-batches */
            assert_int_equal(n, len);
            sum += part;
        }
        assert_true(fabs(sum - loss) < 1e-6 * loss);
        assert_true(rel_error(packed, separate, m->table.block) < TOL);
        ida_free(packed);
        free(separate);
        ida_acts_free(a);
        ida_model_free(m);
    }
}

static void a_nan_weight_gives_a_nan_loss_and_no_crash(void **unused) {
    (void)unused;
    int32_t ids[20];
    int64_t cu[2] = {0, 20};
    random_ids(ids, 20, V, 14);
    for (int kind = 0; kind < N_KINDS; kind++) {
        ida_model *m = row_model((ida_mixer_kind)kind, ida_cpu_device());
        char name[96];
        snprintf(name, sizeof name, "model.layers.0.%sk_proj.weight", m->layers.at[0].kind->prefix);
        tensor_of(m, name)[3] = NAN;
        ida_acts *a = NULL;
        OK(ida_acts_new(&m->cfg, m->dev, 20, 1, IDA_ACTS_TRAINING, &a));
        ida_batch b = {.n_tokens = 20, .ids = ids, .targets = ids, .seqs = {.n = 1, .cu = cu}};
        double loss = 0;
        ida_free(gradients(m, a, &b, NULL, 1, &loss, NULL));
        assert_true(!isfinite(loss));
        ida_acts_free(a);
        ida_model_free(m);
    }
}

static void nothing_to_do_does_nothing(void **unused) {
    (void)unused;
    int64_t cu[3] = {0, 0, 0};
    int32_t none[1] = {0};
    for (int kind = 0; kind < N_KINDS; kind++) {
        ida_model *m = row_model((ida_mixer_kind)kind, ida_cpu_device());
        ida_acts *a = NULL;
        ida_state *s = NULL;
        int32_t ids[4] = {1, 2, 3, 4};
        int64_t some[3] = {0, 4, 4}, n = -1;
        double loss = -1;
        OK(ida_acts_new(&m->cfg, m->dev, 4, 2, IDA_ACTS_TRAINING, &a));
        OK(ida_state_new(&m->cfg, m->dev, 2, &s));
        ida_batch b = {.n_tokens = 4, .ids = ids, .seqs = {.n = 2, .cu = some}};
        OK(ida_model_forward(m, a, &b, s, NULL, NULL, NULL, 0)); /* the second sequence is empty: its state stays zero */
        for (int64_t i = 0; i < s->stride; i++) assert_true(s->block[s->stride + i] == 0);
        assert_true(s->pos[0] == 4 && s->pos[1] == 0);
        float *before = calloc((size_t)(2 * s->stride + 1), sizeof *before);
        memcpy(before, s->block, (size_t)(2 * s->stride) * sizeof *before);
        ida_batch e = {.n_tokens = 0, .ids = none, .targets = none, .seqs = {.n = 2, .cu = cu}};
        OK(ida_model_forward(m, a, &e, s, NULL, NULL, NULL, 0));
        assert_true(same_bits(before, s->block, 2 * s->stride));
        float *g = calloc((size_t)m->table.block, sizeof *g);
        OK(ida_model_forward_backward(m, a, &e, NULL, 1, g, &loss, &n, NULL));
        assert_true(loss == 0 && n == 0);
        for (int64_t i = 0; i < m->table.block; i++) assert_true(g[i] == 0);
        free(g);
        free(before);
        ida_state_free(s);
        ida_acts_free(a);
        ida_model_free(m);
    }
}

static void a_copied_state_continues_like_the_original(void **unused) {
    (void)unused;
    enum { T = 200, HALF = 90 };
    int32_t ids[T];
    int64_t cuts[3] = {HALF, HALF + 1, T};
    random_ids(ids, T, V, 15);
    float *x = calloc((size_t)T * V, sizeof *x), *y = calloc((size_t)T * V, sizeof *y);
    for (int kind = 0; kind < N_KINDS; kind++) {
        ida_model *m = row_model((ida_mixer_kind)kind, ida_cpu_device());
        ida_state *s = NULL, *copy = NULL;
        OK(ida_state_new(&m->cfg, m->dev, 1, &s));
        OK(ida_state_new(&m->cfg, m->dev, 1, &copy));
        run_pieces(m, ids, cuts, 1, s, x);
        run_pieces(m, ids + 7, cuts, 1, copy, y); /* something else was there before */
        OK(ida_state_copy(copy, s));
        assert_int_equal(copy->pos[0], HALF);
        ida_state *both[2] = {s, copy};
        float *out[2] = {x, y};
        for (int i = 0; i < 2; i++) { /* one token by the step form, the rest by the chunk form */
            ida_acts *a = NULL;
            OK(ida_acts_new(&m->cfg, m->dev, T, 1, IDA_ACTS_FORWARD, &a));
            for (int p = 0; p < 2; p++) {
                int64_t begin = cuts[p], n = cuts[p + 1] - begin, cu[2] = {0, n}, row = n - 1;
                ida_batch b = {.n_tokens = n, .ids = ids + begin, .seqs = {.n = 1, .cu = cu}};
                OK(ida_model_forward(m, a, &b, both[i], NULL, out[i] + p * V, &row, 1));
            }
            ida_acts_free(a);
        }
        assert_true(same_bits(x, y, 2 * V));
        assert_true(same_bits(s->block, copy->block, s->stride));
        ida_state_free(s);
        ida_state_free(copy);
        ida_model_free(m);
    }
    free(x);
    free(y);
}

static void activation_sizes_are_known_before_and_impossible_ones_refused(void **unused) {
    (void)unused;
    ida_config c;
    int64_t train, infer;
    OK(ida_config_preset("125m", IDA_MIXER_INTERDOMAIN, &c));
    OK(ida_acts_bytes(&c, &ida_ref_device, 2048, 1, IDA_ACTS_TRAINING, &train, NULL));
    OK(ida_acts_bytes(&c, &ida_ref_device, 2048, 1, IDA_ACTS_FORWARD, &infer, NULL));
    assert_true(infer > 0 && infer * 4 < train);
    assert_int_equal(ida_acts_bytes(&c, &ida_ref_device, INT64_MAX / 4, 1, IDA_ACTS_TRAINING, &train, NULL), IDA_E_NOMEM);
    ida_acts *a = NULL;
    assert_int_equal(ida_acts_new(&c, &ida_ref_device, (int64_t)1 << 50, 1, IDA_ACTS_TRAINING, &a), IDA_E_NOMEM);
    assert_null(a);
}

static void public_calls_describe_the_model(void **unused) {
    (void)unused;
    ida_config c;
    ida_model *m = NULL;
    OK(ida_config_preset("tiny", IDA_MIXER_S4D, &c));
    OK(ida_model_create(&c, 3, &m));
    ida_model_info info;
    OK(ida_config_info(ida_model_config(m), &info));
    int64_t total = 0, shape[4];
    for (int64_t i = 0; i < ida_model_n_tensors(m); i++) {
        const char *name;
        int ndim;
        const float *data;
        OK(ida_model_tensor(m, i, &name, &ndim, shape, &data));
        int64_t n = 1;
        for (int k = 0; k < ndim; k++) n *= shape[k];
        for (int64_t j = 0; j < n; j++) assert_true(isfinite(data[j]));
        total += n;
    }
    assert_int_equal(total, info.parameters);
    assert_int_equal(ida_model_tensor(m, ida_model_n_tensors(m), NULL, NULL, NULL, NULL), IDA_E_ARG);
    assert_int_equal(ida_model_tensor(m, -1, NULL, NULL, NULL, NULL), IDA_E_ARG);
    ida_model_free(m);
    m = (ida_model *)&c;
    c.n_heads = 7;
    assert_int_equal(ida_model_create(&c, 3, &m), IDA_E_ARG);
    assert_null(m);
}

/* Mixed layers, so that the one shared set serves every kind; with carried state, whose convolution tails are written twice. */
static void activation_checkpointing_gives_the_same_bits_in_less_memory(void **unused) {
    (void)unused;
    enum { T = 70 };
    int32_t ids[T], targets[T];
    const int64_t cu[4] = {0, 33, 33, T};
    random_ids(ids, T, V, 11);
    random_ids(targets, T, V, 12);
    for (int options = 0; options < 8; options++) {
        ida_config c = small_config(IDA_MIXER_INTERDOMAIN, V, 16, 2, 4);
        const bool carry = options & 4;
        c.n_layers = carry ? 4 : 5;
        for (int64_t l = 0; l < c.n_layers; l++) c.layer_mixer[l] = (uint8_t)(carry ? 1 + l : l);
        c.gate = options & 1;
        c.output_norm = options & 2;
        ida_model *m = make_model(&c, ida_cpu_device(), 3, 0.05);
        ida_batch b = {.n_tokens = T, .ids = ids, .targets = targets, .seqs = {.n = 3, .cu = cu}};
        float *g[2];
        double loss[2];
        int64_t bytes[2];
        ida_state *s[2] = {NULL, NULL};
        for (int i = 0; i < 2; i++) {
            ida_acts *a = NULL;
            const ida_acts_kind kind = i ? IDA_ACTS_RECOMPUTE : IDA_ACTS_TRAINING;
            OK(ida_acts_new(&c, m->dev, T, 3, kind, &a));
            OK(ida_acts_bytes(&c, m->dev, T, 3, kind, &bytes[i], NULL));
            if (carry) OK(ida_state_new(&c, m->dev, 3, &s[i]));
            for (int step = 0; step < (carry ? 2 : 1); step++) {
                if (step) ida_free(g[i]);
                g[i] = gradients(m, a, &b, s[i], 0.5, &loss[i], NULL);
            }
            ida_acts_free(a);
        }
        assert_true(loss[0] == loss[1] && isfinite(loss[0]));
        assert_true(same_bits(g[0], g[1], m->table.block));
        if (carry) assert_true(same_bits(s[0]->block, s[1]->block, 3 * s[0]->stride));
        assert_true(bytes[1] < bytes[0]);
        for (int i = 0; i < 2; i++) {
            ida_free(g[i]);
            ida_state_free(s[i]);
        }
        ida_model_free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(L01_pieces_equal_one_call),
        cmocka_unit_test(step_form_equals_chunk_form),
        cmocka_unit_test(L06_carried_state_in_training_gives_the_one_piece_loss),
        cmocka_unit_test(L13_documents_of_a_row_do_not_see_each_other),
        cmocka_unit_test(L14_a_batch_gives_what_each_gives_alone),
        cmocka_unit_test(L15_no_output_sees_a_later_token),
        cmocka_unit_test(L15_random_tokens_stay_at_log_vocab),
        cmocka_unit_test(cpu_gives_the_loss_and_every_gradient_of_ref),
        cmocka_unit_test(loss_and_gradients_do_not_depend_on_threads),
        cmocka_unit_test(packed_gradients_are_the_sum_of_separate_ones),
        cmocka_unit_test(a_nan_weight_gives_a_nan_loss_and_no_crash),
        cmocka_unit_test(nothing_to_do_does_nothing),
        cmocka_unit_test(a_copied_state_continues_like_the_original),
        cmocka_unit_test(activation_checkpointing_gives_the_same_bits_in_less_memory),
        cmocka_unit_test(activation_sizes_are_known_before_and_impossible_ones_refused),
        cmocka_unit_test(public_calls_describe_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
