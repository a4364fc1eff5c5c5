/* test_model_f64.c - the whole backward pass in double against central differences of the whole forward pass: every parameter
 * tensor of every mixer, option by option. Built with the double objects of model and ref (tests.mk), so no rounding of fp32
 * hides a term. */
#include "model_test.h"

enum { VOCAB = 13, SAMPLES = 3 };

typedef struct option {
    const char *name;
    bool gate, output_norm, no_rope, grouped, tied, carried, long_doc;
    ida_discretization disc;
    ida_readout readout;
} option;

static const option options[] = {
    {.name = "plain"},
    {.name = "gate and output norm", .gate = true, .output_norm = true, .disc = IDA_DISC_EULER},
    {.name = "output norm alone", .output_norm = true, .disc = IDA_DISC_NORM},
    {.name = "no rope, bilinear", .no_rope = true, .readout = IDA_READOUT_BILINEAR, .disc = IDA_DISC_UNIT},
    {.name = "grouped, gate", .grouped = true, .gate = true},
    {.name = "tied", .tied = true},
    {.name = "carried state", .carried = true},
    {.name = "longer than a chunk", .long_doc = true},
};
enum { N_OPTIONS = sizeof options / sizeof *options };

typedef struct fixture {
    ida_model *m;
    ida_acts *a;
    ida_batch b;
    ida_state *before;
    int32_t ids[96], targets[96];
    int64_t cu[6];
} fixture;

static double loss_of(fixture *f) {
    double losses[96], sum = 0;
    ida_state *s = NULL;
    if (f->before) {
        OK(ida_state_new(&f->m->cfg, f->m->dev, f->b.seqs.n, &s));
        OK(ida_state_copy(s, f->before));
        OK(ida_model_prepare(f->m));
    }
    OK(ida_model_forward(f->m, f->a, &f->b, s, losses, NULL, NULL, 0));
    for (int64_t i = 0; i < f->b.n_tokens; i++) sum += losses[i];
    ida_state_free(s);
    return sum;
}

static void setup(fixture *f, const ida_config *c, const option *o) {
    memset(f, 0, sizeof *f);
    f->m = make_model(c, &ida_ref64_device, 3, 0.15);
    static const int64_t lens[2][5] = {{5, 0, 1, 7, 2}, {70, 3, 0, 1, 1}};
    for (int i = 0; i < 5; i++) f->cu[i + 1] = f->cu[i] + lens[o->long_doc][i];
    int64_t n = f->cu[5];
    random_ids(f->ids, n, VOCAB, 17);
    for (int64_t i = 0; i < n; i++) f->targets[i] = i % 4 == 2 ? -1 : (f->ids[(i + 1) % n] + 1) % VOCAB;
    f->b = (ida_batch){.n_tokens = n, .ids = f->ids, .targets = f->targets, .seqs = {.n = 5, .cu = f->cu}};
    OK(ida_acts_new(c, &ida_ref64_device, n, 5, IDA_ACTS_TRAINING, &f->a));
    if (!o->carried) return;
    OK(ida_state_new(c, &ida_ref64_device, 5, &f->before)); /* four tokens of each sequence come before */
    static const int32_t past[20] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 1, 2, 3, 4, 5, 6, 7};
    static const int64_t past_cu[6] = {0, 4, 8, 12, 16, 20};
    ida_acts *a = NULL;
    OK(ida_acts_new(c, &ida_ref64_device, 20, 5, IDA_ACTS_FORWARD, &a));
    ida_batch b = {.n_tokens = 20, .ids = past, .seqs = {.n = 5, .cu = past_cu}};
    OK(ida_model_forward(f->m, a, &b, f->before, NULL, NULL, NULL, 0));
    ida_acts_free(a);
}

static void teardown(fixture *f) {
    ida_state_free(f->before);
    ida_acts_free(f->a);
    ida_model_free(f->m);
}

/* Central difference, extrapolated once: its own error is h^4 times a high derivative, and 1e-16 loss / h of rounding; both are
 * near 1e-9 here. */
static double difference(fixture *f, double *p) {
    double h = 3e-5, old = *p, v[4];
    static const double at[4] = {1, -1, 2, -2};
    for (int i = 0; i < 4; i++) {
        *p = old + at[i] * h;
        v[i] = loss_of(f);
    }
    *p = old;
    return (8 * (v[0] - v[1]) - (v[2] - v[3])) / (12 * h);
}

static void check_config(const ida_config *c, const option *o) {
    fixture f;
    setup(&f, c, o);
    double loss = 0, scale = 0.7;
    ida_state *s = NULL;
    if (f.before) {
        OK(ida_state_new(c, &ida_ref64_device, 5, &s));
        OK(ida_state_copy(s, f.before));
    }
    double *dx0 = calloc((size_t)(f.b.n_tokens * c->d_model), sizeof *dx0);
    double *g = gradients(f.m, f.a, &f.b, s, scale, &loss, dx0);
    double direct = loss_of(&f);
    if (fabs(loss - direct) > 1e-11 * fabs(direct)) fail_msg("loss of forward_backward %.15g, of forward %.15g", loss, direct);

    for (int64_t i = 0; i < f.m->table.n; i++) {
        const ida_param *p = &f.m->table.params[i];
        double largest = 0;
        for (int64_t j = 0; j < p->numel; j++) largest = fmax(largest, fabs(g[p->offset + j]));
        if (!(largest > 0)) fail_msg("%s, %s: gradient of %s is all zero", ida_mixer_name(c->layer_mixer[0]), o->name, p->name);
        int samples = o->long_doc ? 1 : SAMPLES;
        for (int k = 0; k < samples; k++) {
            int64_t j = (int64_t)(ida_uniform(5, (uint64_t)i, (uint64_t)k) * (double)p->numel);
            double want = scale * difference(&f, &f.m->params[p->offset + j]), got = g[p->offset + j];
            if (fabs(got - want) > 2e-7 * fabs(want) + 2e-8 * largest + 5e-9)
                fail_msg("%s, %s: %s[%lld]: backward %.12g, differences %.12g", ida_mixer_name(c->layer_mixer[0]), o->name,
                         p->name, (long long)j, got, want);
        }
    }
    if (!c->tie_embeddings) { /* the embedding's gradient is dx0 summed over the places of each id */
        double *row = calloc((size_t)(VOCAB * c->d_model), sizeof *row);
        for (int64_t n = 0; n < f.b.n_tokens; n++)
            for (int64_t k = 0; k < c->d_model; k++) row[f.ids[n] * c->d_model + k] += dx0[n * c->d_model + k];
        assert_true(rel_error(g + f.m->table.params[0].offset, row, VOCAB * c->d_model) < 1e-13);
        free(row);
    }
    free(dx0);
    ida_free(g);
    ida_state_free(s);
    teardown(&f);
}

static void check_kind(ida_mixer_kind kind) {
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *o = &options[i];
        bool linear = kind == IDA_MIXER_S4D || kind == IDA_MIXER_DUAL_LINEAR;
        if ((o->grouped && linear) || (o->carried && kind == IDA_MIXER_SOFTMAX)) continue;
        ida_config c = small_config(kind, VOCAB, 16, 4, 3);
        c.init_std = 0.3;
        c.gate = o->gate;
        c.output_norm = o->output_norm;
        c.rope = !o->no_rope;
        c.tie_embeddings = o->tied;
        c.discretization = o->disc;
        c.readout = o->readout;
        if (o->grouped) c.n_kv_heads = 2;
        check_config(&c, o);
    }
}

static void every_gradient_matches_differences_softmax(void **s) { (void)s; check_kind(IDA_MIXER_SOFTMAX); }
static void L09_every_gradient_matches_differences_interdomain(void **s) { (void)s; check_kind(IDA_MIXER_INTERDOMAIN); }
static void L09_every_gradient_matches_differences_dual_linear(void **s) { (void)s; check_kind(IDA_MIXER_DUAL_LINEAR); }
static void L09_every_gradient_matches_differences_single_query(void **s) { (void)s; check_kind(IDA_MIXER_SINGLE_QUERY); }
static void L09_every_gradient_matches_differences_s4d(void **s) { (void)s; check_kind(IDA_MIXER_S4D); }

static void every_gradient_matches_differences_in_a_hybrid(void **s) {
    (void)s;
    option o = {.name = "hybrid", .gate = true, .output_norm = true};
    ida_config c = small_config(IDA_MIXER_INTERDOMAIN, VOCAB, 16, 4, 3);
    c.init_std = 0.3;
    c.gate = c.output_norm = true;
    c.n_layers = 5;
    for (int l = 0; l < 5; l++) c.layer_mixer[l] = (uint8_t)(4 - l);
    check_config(&c, &o);
}

static void step_form_equals_chunk_form_in_double(void **state) {
    (void)state;
    for (int kind = 0; kind < N_KINDS; kind++) {
        ida_config c = small_config((ida_mixer_kind)kind, VOCAB, 16, 4, 3);
        c.gate = c.output_norm = true;
        ida_model *m = make_model(&c, &ida_ref64_device, 9, 0.15);
        int32_t ids[12];
        random_ids(ids, 12, VOCAB, 4);
        int64_t cu[2] = {0, 12}, one[2] = {0, 1}, rows[12];
        for (int i = 0; i < 12; i++) rows[i] = i;
        double whole[12 * VOCAB], each[VOCAB];
        ida_acts *a = NULL;
        ida_state *s = NULL;
        OK(ida_acts_new(&c, &ida_ref64_device, 12, 1, IDA_ACTS_FORWARD, &a));
        ida_batch b = {.n_tokens = 12, .ids = ids, .seqs = {.n = 1, .cu = cu}};
        OK(ida_model_forward(m, a, &b, NULL, NULL, whole, rows, 12));
        OK(ida_state_new(&c, &ida_ref64_device, 1, &s));
        for (int i = 0; i < 12; i++) {
            ida_batch t = {.n_tokens = 1, .ids = ids + i, .seqs = {.n = 1, .cu = one}};
            OK(ida_model_forward(m, a, &t, s, NULL, each, rows, 1));
            assert_true(rel_error(each, whole + i * VOCAB, VOCAB) < 1e-11);
        }
        ida_state_free(s);
        ida_acts_free(a);
        ida_model_free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_gradient_matches_differences_softmax),
        cmocka_unit_test(L09_every_gradient_matches_differences_interdomain),
        cmocka_unit_test(L09_every_gradient_matches_differences_dual_linear),
        cmocka_unit_test(L09_every_gradient_matches_differences_single_query),
        cmocka_unit_test(L09_every_gradient_matches_differences_s4d),
        cmocka_unit_test(every_gradient_matches_differences_in_a_hybrid),
        cmocka_unit_test(step_form_equals_chunk_form_in_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
