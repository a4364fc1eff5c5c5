/* test_optim.c - schedule, parameter groups, options, token weights, the guard against non-finite gradients, and
 * that every mixer learns. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "idattn.h"
#include "io/checkpoint.h"
#include "tiny_run.h"

/* ---------------------------------------------------------------- schedule */

static ida_train_options schedule(int64_t steps, int64_t warmup) {
    ida_train_options o;
    ida_train_defaults(&o);
    o.steps = steps;
    o.warmup_steps = warmup;
    o.lr = 3e-3;
    o.min_lr = 1e-5;
    return o;
}

static void schedule_has_exact_values_at_its_edges(void **state) {
    (void)state;
    ida_train_options o = schedule(100, 10);
    assert_true(fabs(ida_schedule_lr(&o, 0) - 3e-4) < 1e-18);
    assert_true(fabs(ida_schedule_lr(&o, 4) - 1.5e-3) < 1e-18);
    assert_true(ida_schedule_lr(&o, 9) == o.lr);
    assert_true(ida_schedule_lr(&o, 99) == o.min_lr);
    assert_true(fabs(ida_schedule_lr(&o, 54) - (o.min_lr + (o.lr - o.min_lr) * 0.5)) < 1e-17); /* half way of 90 */
    for (int s = 1; s < 100; s++) {
        double was = ida_schedule_lr(&o, s - 1), now = ida_schedule_lr(&o, s);
        assert_true(s <= 9 ? now > was : now < was);
    }
    const int64_t no_warmup[] = { 0, 1 };
    for (int i = 0; i < 2; i++) {
        o = schedule(11, no_warmup[i]);
        assert_true(ida_schedule_lr(&o, 0) == o.lr);
        assert_true(fabs(ida_schedule_lr(&o, 5) - (o.min_lr + o.lr) / 2) < 1e-17);
        assert_true(ida_schedule_lr(&o, 10) == o.min_lr);
        o = schedule(1, no_warmup[i]);
        assert_true(ida_schedule_lr(&o, 0) == o.lr);
        o = schedule(2, no_warmup[i]);
        assert_true(ida_schedule_lr(&o, 0) == o.lr && ida_schedule_lr(&o, 1) == o.min_lr);
    }
    o = schedule(8, 8); /* all warm-up */
    assert_true(ida_schedule_lr(&o, 0) == o.lr / 8 && ida_schedule_lr(&o, 7) == o.lr);
}

static void warm_up_of_the_recipe(void **state) {
    (void)state;
    ida_train_options o = schedule(50000, -1);
    o.batch = 128;
    o.seq_len = 4096;
    assert_int_equal(ida_train_warmup(&o), 716); /* 375M / 524,288 = 715.3 */
    o.steps = 4768;
    assert_int_equal(ida_train_warmup(&o), 715); /* 15% */
    o.steps = 1;
    assert_int_equal(ida_train_warmup(&o), 0);
    o.warmup_steps = 1;
    assert_int_equal(ida_train_warmup(&o), 1);
}

/* ---------------------------------------------------------------- groups */

typedef struct notes {
    char text[16][256], tensor[96], what[16];
    int n, steps, evals, saves, skips;
    double loss, bpb;
} notes;

static int take_notes(void *user, const ida_train_event *e) {
    notes *v = user;
    if (e->kind == IDA_EVENT_NOTE && v->n < 16) snprintf(v->text[v->n++], sizeof v->text[0], "%s", e->text);
    if (e->kind == IDA_EVENT_SKIP) snprintf(v->tensor, sizeof v->tensor, "%s", e->text);
    if (e->kind == IDA_EVENT_SKIP) snprintf(v->what, sizeof v->what, "%s", e->what);
    if (e->kind == IDA_EVENT_EVAL || e->kind == IDA_EVENT_STEP) v->loss = e->loss;
    if (e->kind == IDA_EVENT_EVAL) v->bpb = e->bits_per_byte;
    v->steps += e->kind == IDA_EVENT_STEP;
    v->evals += e->kind == IDA_EVENT_EVAL;
    v->saves += e->kind == IDA_EVENT_SAVE;
    v->skips += e->kind == IDA_EVENT_SKIP;
    return 0;
}

static void group_table_is_printed_and_right(void **state) {
    (void)state;
    notes v = {0};
    ida_train_options o = tiny_options(IDA_MIXER_INTERDOMAIN, tiny_standard_data(), tiny_dir("groups"));
    o.lr = 3e-3;
    ida_trainer *t = NULL;
    OK(ida_trainer_open(&o, take_notes, &v, &t));
    assert_int_equal(v.n, 1 + IDA_N_GROUPS);
    const ida_optim_group *g = t->optim.groups;
    /* 2 layers: q k v o, gate up down; embeddings and head. Two norms and two convolutions of two; last norm. 9 of the mixer. */
    assert_int_equal(g[IDA_GROUP_MATRIX].n_tensors, 2 * 7 + 2);
    assert_int_equal(g[IDA_GROUP_VECTOR].n_tensors, 2 * 6 + 1);
    assert_int_equal(g[IDA_GROUP_SSM].n_tensors, 2 * 9);
    /* d 16, f 32, vocabulary 61; 2 heads of 8, M 4. */
    assert_int_equal(g[IDA_GROUP_MATRIX].numel, 2 * (4 * 16 * 16 + 3 * 16 * 32) + 2 * 61 * 16);
    assert_int_equal(g[IDA_GROUP_VECTOR].numel, 2 * (2 * 16 + 2 * (4 * 16 + 16)) + 16);
    assert_int_equal(g[IDA_GROUP_SSM].numel, 2 * (2 + 2 * 4 * 2 + 2 * 16 * 2 + 2 * 8 + 2 * 16));
    assert_int_equal(g[0].numel + g[1].numel + g[2].numel, t->model->table.numel);
    assert_true(g[IDA_GROUP_MATRIX].weight_decay == 0.1 && g[IDA_GROUP_VECTOR].weight_decay == 0 &&
                g[IDA_GROUP_SSM].weight_decay == 0);
    const char *want[3][3] = { { "matrix", " 7072 ", "lr 0.003" }, { "vector", " 400 ", "lr 0.003" },
                               { "ssm", " 260 ", "lr 0.001" } };
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) {
            if (!strstr(v.text[1 + i], want[i][j])) fail_msg("\"%s\" is not in \"%s\"", want[i][j], v.text[1 + i]);
        }
        assert_non_null(strstr(v.text[1 + i], i == 0 ? "decay 0.1" : "decay 0"));
    }
    ida_trainer_close(t);
}

static void only_matrices_decay_and_ssm_steps_are_capped(void **state) {
    (void)state;
    ida_train_options o = tiny_options(IDA_MIXER_INTERDOMAIN, tiny_standard_data(), tiny_dir("decay"));
    o.lr = 4e-3;
    ida_trainer *t = NULL;
    OK(ida_trainer_open(&o, NULL, NULL, &t));
    const ida_param_table *table = &t->model->table;
    float *was = calloc((size_t)table->block, sizeof *was);
    assert_non_null(was);
    memcpy(was, t->model->params, (size_t)table->block * sizeof *was);
    /* The gradient is 0: only decay is left. */
    OK(ida_optim_update(&t->optim, &o, t->model, t->m, t->v, t->grads, o.lr, 1, 1));
    for (int64_t i = 0; i < table->n; i++) {
        const ida_param *p = &table->params[i];
        for (int64_t j = p->offset; j < p->offset + p->numel; j++) {
            double want = (double)was[j] * (p->group == IDA_GROUP_MATRIX ? 1 - 4e-3 * 0.1 : 1);
            assert_true(fabs((double)t->model->params[j] - want) <= 1e-7 * fabs(want));
        }
    }
    memcpy(was, t->model->params, (size_t)table->block * sizeof *was);
    memset(t->m, 0, (size_t)table->block * sizeof *was);
    memset(t->v, 0, (size_t)table->block * sizeof *was);
    for (int64_t j = 0; j < table->block; j++) t->grads[j] = 0.25f; /* the first AdamW step has size lr whatever the gradient */
    OK(ida_optim_update(&t->optim, &o, t->model, t->m, t->v, t->grads, o.lr, 1, 1));
    for (int64_t i = 0; i < table->n; i++) {
        const ida_param *p = &table->params[i];
        double lr = p->group == IDA_GROUP_SSM ? 1e-3 : 4e-3, x = (double)was[p->offset];
        double want = x - lr * (1 + (p->group == IDA_GROUP_MATRIX ? 0.1 * x : 0));
        assert_true(fabs((double)t->model->params[p->offset] - want) < 1e-6 * (1 + fabs(want)));
    }
    free(was);
    ida_trainer_close(t);
}

/* ---------------------------------------------------------------- options */

static void the_cost_of_a_shape_is_that_of_its_recipe_or_tokens(void **state) {
    (void)state;
    ida_config c;
    ida_model_info info;
    ida_cost_options o;
    ida_train_cost cost;
    OK(ida_config_preset("125m", IDA_MIXER_INTERDOMAIN, &c));
    OK(ida_config_info(&c, &info));
    OK(ida_options_defaults("cost", &o, sizeof o));
    OK(ida_train_find_cost(&c, "125m", &o, &cost));
    assert_true(cost.steps == 4768 && cost.tokens == 4768.0 * 524288);
    assert_true(cost.flops == 3.0 * (double)info.flops_per_token * cost.tokens);
    assert_true(fabs(cost.hours * 3600 * o.tflops * 1e12 / cost.flops - 1) < 1e-12 && cost.shard_bytes == 2 * cost.tokens);
    assert_int_equal(cost.plan.parameters, info.parameters);
    assert_int_equal(ida_train_find_cost(&c, "tiny", &o, &cost), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "give tokens"));
    o.tokens = 1;
    OK(ida_train_find_cost(&c, NULL, &o, &cost));
    assert_int_equal(cost.steps, 1);
    o.tflops = 0;
    assert_int_equal(ida_train_find_cost(&c, NULL, &o, &cost), IDA_E_ARG);
}

static void options_out_of_range_are_refused_by_name(void **state) {
    (void)state;
    const char *data = tiny_standard_data(), *run = tiny_dir("options");
    const ida_train_options good = tiny_options(IDA_MIXER_SOFTMAX, data, run);
    ida_train_options o[22];
    const char *name[22];
    int n = 0;
#define BAD(field, value, text) do { o[n] = good; o[n].field = (value); name[n++] = (text); } while (0)
    BAD(seq_len, 0, "seq_len");
    BAD(batch, 0, "batch");
    BAD(micro_batch, 4, "does not divide");
    BAD(micro_batch, 7, "micro_batch");
    BAD(steps, 0, "steps");
    BAD(warmup_steps, 13, "warm-up");
    BAD(warmup_steps, -2, "warmup_steps");
    BAD(lr, 0, "lr");
    BAD(lr, NAN, "lr");
    BAD(min_lr, 1, "min_lr");
    BAD(ssm_lr_max, -1, "ssm_lr_max");
    BAD(beta1, 1, "beta1");
    BAD(eps, 0, "eps");
    BAD(weight_decay, -1, "weight_decay");
    BAD(clip, INFINITY, "clip");
    BAD(eval_tokens, -1, "eval_tokens");
    BAD(max_skips, -1, "max_skips");
    BAD(data_dir, NULL, "data folder");
    BAD(out_dir, NULL, "run folder");
    BAD(device, "gpu", "unknown device");
    BAD(device, "cuda:", "number of a GPU");
    BAD(config.vocab_size, TINY_VOCAB - 1, "60, the data's vocabulary is 61");
#undef BAD
    for (int i = 0; i < n; i++) {
        assert_int_equal(ida_train(&o[i], NULL, NULL), IDA_E_ARG);
        if (!strstr(ida_last_error(), name[i])) fail_msg("\"%s\" is not in \"%s\"", name[i], ida_last_error());
        assert_false(ida_exists(run));
    }
    ida_train_options missing = good;
    missing.data_dir = "/dev/null/data";
    assert_int_equal(ida_train(&missing, NULL, NULL), IDA_E_IO);
    missing = good;
    missing.out_dir = "/proc/no/such";
    assert_int_equal(ida_train(&missing, NULL, NULL), IDA_E_IO);
}

static void data_too_small_to_train_or_to_evaluate(void **state) {
    (void)state;
    static const int64_t one[] = { 1 }, two[] = { 2 }, none[] = { 0 };
    ida_train_options o = tiny_options(IDA_MIXER_INTERDOMAIN, tiny_data("one", one, 1, none, 1), tiny_dir("small"));
    assert_int_equal(ida_train(&o, NULL, NULL), IDA_E_FORMAT);
    assert_non_null(strstr(ida_last_error(), "1 tokens, at least 2"));
    notes v = {0};
    o.data_dir = tiny_data("two", two, 1, none, 0); /* rows of one token, every step a whole epoch several times over */
    OK(ida_train(&o, take_notes, &v));
    assert_int_equal(v.steps, 12);
    assert_int_equal(v.evals, 0);
    assert_int_equal(v.saves, 1);
    assert_non_null(strstr(v.text[v.n - 1], "nothing to evaluate"));
}

/* ---------------------------------------------------------------- gradients */

static void L37_micro_batches_of_10_and_1000_tokens_equal_the_single_batch(void **state) {
    (void)state;
    static const int64_t train[] = { 1011 }, val[] = { 50 };
    const char *data = tiny_data("uneven", train, 1, val, 1);
    ida_train_options o = tiny_options(IDA_MIXER_INTERDOMAIN, data, tiny_dir("whole"));
    ida_trainer *whole = NULL, *split = NULL;
    ida_trainer_gradient a, b;
    o.seq_len = 1000;
    o.batch = o.micro_batch = 2;
    OK(ida_trainer_open(&o, NULL, NULL, &whole));
    o.micro_batch = 1;
    o.out_dir = tiny_dir("split");
    OK(ida_trainer_open(&o, NULL, NULL, &split));
    OK(ida_trainer_backward(whole, &a));
    OK(ida_trainer_backward(split, &b));
    assert_int_equal(a.n_scored, 1010);
    assert_int_equal(split->rows[0]->n_scored + split->rows[1]->n_scored, 1010);
    assert_true(split->rows[0]->n_scored == 10 || split->rows[1]->n_scored == 10);
    assert_true(fabs(a.loss - b.loss) < 1e-6 * a.loss);
    assert_true(fabs(a.norm - b.norm) < 1e-5 * a.norm);

    /* What a mean of means would have given: far away, so the comparison can tell. */
    const ida_param_table *t = &whole->model->table;
    float *mean = calloc((size_t)t->block, sizeof *mean);
    assert_non_null(mean);
    for (int i = 0; i < 2; i++) {
        const ida_rows *r = split->rows[i];
        ida_batch batch = { .n_tokens = r->n_tokens, .ids = r->ids, .targets = r->targets, .seqs = { r->n_seq, r->cu, r->pos0 } };
        double sum;
        int64_t n;
        OK(ida_model_forward_backward(split->model, split->acts, &batch, NULL, 0.5 / (double)r->n_scored, mean, &sum, &n, NULL));
    }
    double near = 0, far = 0, size = 0;
    for (int64_t j = 0; j < t->block; j++) {
        near += pow((double)(whole->grads[j] - split->grads[j]), 2);
        far += pow((double)(whole->grads[j] - mean[j]), 2);
        size += pow((double)whole->grads[j], 2);
    }
    assert_true(sqrt(near / size) < 1e-6); /* fp32 sums of 1,010 terms in another order: 7e-8 seen */
    assert_true(sqrt(far / size) > 0.1);
    free(mean);
    ida_trainer_close(whole);
    ida_trainer_close(split);
}

/* The rows of `share` behind the first `at` tokens of the trainer's, micro-batch after micro-batch. */
static int64_t same_rows(const ida_trainer *t, int64_t at, const ida_rows *share) {
    int64_t begin = 0;
    for (int64_t m = 0, k = 0; m < t->n_micro; begin += t->rows[m++]->n_tokens)
        for (int64_t i = 0; i < t->rows[m]->n_tokens; i++) {
            if (begin + i < at || k == share->n_tokens) continue;
            assert_int_equal(t->rows[m]->ids[i], share->ids[k]);
            assert_int_equal(t->rows[m]->targets[i], share->targets[k]);
            k++;
        }
    return at + share->n_tokens;
}

/* L38: what the trainer takes at a step, which depends on seed and step alone, is what any number of ranks take together, in rank
 * order; also when the data is one token more than nothing, exactly B*T or B*T+1, with an empty shard and one of a single token. */
static void L38_a_step_is_the_union_of_the_ranks_batches(void **state) {
    (void)state;
    enum { BATCH = 8, T = 16 };
    static const int64_t sizes[][3] = { { 2, 0, 0 }, { 1, 0, BATCH * T - 1 }, { 1, 0, BATCH * T }, { 1, 0, BATCH * T + 1 }, { 300, 0, 71 } };
    static const int64_t worlds[] = { 1, 2, 3, 4, 8 };
    static const int64_t none[] = { 0 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        ida_trainer *t = NULL;
        ida_trainer_gradient g;
        ida_rows *share = NULL;
        ida_train_options o = tiny_options(IDA_MIXER_INTERDOMAIN, tiny_data("ranks", sizes[s], 3, none, 0), tiny_dir("ranks-run"));
        o.seq_len = T;
        o.batch = BATCH;
        o.micro_batch = 2;
        OK(ida_trainer_open(&o, NULL, NULL, &t));
        OK(ida_rows_new(BATCH, T, &share));
        for (t->step = 0; t->step < 40; t->step += 1 + t->step * 2) { /* any step, without those before it */
            OK(ida_trainer_backward(t, &g));
            for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
                int64_t at = 0, first, rows;
                for (int64_t rank = 0; rank < worlds[w]; rank++) {
                    OK(ida_rank_share(BATCH, t->step, rank, worlds[w], &first, &rows));
                    OK(ida_rows_fill(share, t->train, o.seed, first, rows));
                    at = same_rows(t, at, share);
                }
                assert_int_equal(at, g.n_tokens);
            }
        }
        ida_rows_free(share);
        ida_trainer_close(t);
    }
}

/* ---------------------------------------------------------------- non-finite */

static void a_non_finite_gradient_skips_the_step_and_names_the_tensor(void **state) {
    (void)state;
    const char *name = "model.layers.1.mlp.up_proj.weight", *run = tiny_dir("skip");
    ida_train_options o = tiny_options(IDA_MIXER_INTERDOMAIN, tiny_standard_data(), run);
    notes v = {0};
    ida_trainer *t = NULL;
    o.max_skips = 3;
    OK(ida_trainer_open(&o, take_notes, &v, &t));
    OK(ida_trainer_step(t));
    OK(ida_trainer_save(t));
    size_t bytes = (size_t)t->model->table.block * sizeof(float);
    float *at = t->model->params + ida_param_find(&t->model->table, name)->offset + 5, good = *at;
    float *p = malloc(bytes), *m = malloc(bytes), *w = malloc(bytes);
    assert_true(p && m && w);
    static const float poison[] = { NAN, INFINITY };
    for (int i = 0; i < 2; i++) {
        *at = poison[i];
        memcpy(p, t->model->params, bytes);
        memcpy(m, t->m, bytes);
        memcpy(w, t->v, bytes);
        int64_t step = t->step, updates = t->updates, tokens = t->tokens;
        OK(ida_trainer_step(t));
        assert_string_equal(v.tensor, name);
        assert_string_equal(v.what, "weight");
        assert_int_equal(v.skips, i + 1);
        assert_memory_equal(p, t->model->params, bytes);
        assert_memory_equal(m, t->m, bytes);
        assert_memory_equal(w, t->v, bytes);
        assert_int_equal(t->step, step + 1); /* the data is used up, the moments' clock stands */
        assert_int_equal(t->updates, updates);
        assert_true(t->tokens > tokens);
    }
    assert_int_equal(ida_trainer_save(t), IDA_E_NUMERIC); /* would publish what cannot be loaded */
    assert_non_null(strstr(ida_last_error(), name));
    assert_int_equal(ida_trainer_step(t), IDA_E_NUMERIC); /* the third in a row */
    assert_non_null(strstr(ida_last_error(), name));
    *at = good;
    OK(ida_trainer_step(t));
    assert_int_equal(t->skips_in_row, 0);
    assert_int_equal(t->skips, 3);
    free(p);
    free(m);
    free(w);
    ida_trainer_close(t);

    ida_model *model = NULL; /* the last good checkpoint is still the newest */
    OK(ida_model_load(run, &model));
    ida_model_free(model);
    assert_true(ida_is_dir(run));
    char *log = tiny_log(run);
    assert_non_null(strstr(log, "\"event\":\"skip\""));
    assert_non_null(strstr(log, "\"loss\":null"));
    assert_non_null(strstr(log, name));
    free(log);
}

static void a_huge_weight_overflows_and_is_skipped(void **state) {
    (void)state;
    ida_train_options o = tiny_options(IDA_MIXER_SOFTMAX, tiny_standard_data(), tiny_dir("huge"));
    notes v = {0};
    ida_trainer *t = NULL;
    o.max_skips = 0; /* the first one stops */
    OK(ida_trainer_open(&o, take_notes, &v, &t));
    const ida_param *p = ida_param_find(&t->model->table, "lm_head.weight");
    for (int64_t j = 0; j < p->numel; j++) t->model->params[p->offset + j] = j % 2 ? 3e38f : -3e38f;
    assert_int_equal(ida_trainer_step(t), IDA_E_NUMERIC);
    assert_int_equal(v.skips, 1);
    assert_true(strlen(v.tensor) > 0);
    assert_true(strcmp(v.what, "gradient") == 0 || strcmp(v.what, "loss") == 0); /* the weights themselves are finite */
    ida_trainer_close(t);
}

static void clipping_bounds_the_step(void **state) {
    (void)state;
    ida_train_options o = tiny_options(IDA_MIXER_INTERDOMAIN, tiny_standard_data(), tiny_dir("clip"));
    ida_trainer *t = NULL;
    o.clip = 1e-3;
    OK(ida_trainer_open(&o, NULL, NULL, &t));
    OK(ida_trainer_step(t));
    double norm;
    int64_t bad;
    OK(ida_block_norm(t->model->dev, &t->model->table, t->m, &norm, &bad)); /* m = (1 - beta1) g' after one step */
    assert_true(fabs(norm - 0.1 * 1e-3) < 1e-8);
    assert_int_equal(bad, -1);
    ida_trainer_close(t);
}

/* ---------------------------------------------------------------- learning */

static void every_mixer_overfits_one_small_batch(void **state) {
    (void)state;
    static const int64_t train[] = { 33 }, val[] = { 0 };
    const char *data = tiny_data("overfit", train, 1, val, 1);
    for (int k = 0; k < 5; k++) {
        notes v = {0};
        ida_train_options o = tiny_options((ida_mixer_kind)k, data, tiny_dir("fit"));
        o.config.d_model = 32;
        o.config.ffn_hidden = 64;
        o.config.state_size = 8;
        o.seq_len = 16;
        o.batch = o.micro_batch = 2;
        o.steps = 150;
        o.warmup_steps = 10;
        o.lr = 2e-2;
        o.ssm_lr_max = 5e-3;
        o.weight_decay = 0;
        OK(ida_train(&o, take_notes, &v));
        if (!(v.loss < 0.05)) fail_msg("%s: loss %g after %d steps", ida_mixer_name((ida_mixer_kind)k), v.loss, v.steps);
    }
}

/* The evaluation, done again by a session that reads row by row and forgets at every document. */
static void evaluation_is_the_loss_of_the_fixed_set(void **state) {
    (void)state;
    const char *data = tiny_standard_data();
    for (int whole = 0; whole < 2; whole++) {
        const char *run = tiny_dir("eval");
        ida_train_options o = tiny_options(IDA_MIXER_INTERDOMAIN, data, run);
        notes v = {0};
        o.steps = 3;
        o.eval_tokens = whole ? 0 : 100; /* 5 rows of 24 */
        OK(ida_train(&o, take_notes, &v));
        assert_int_equal(v.evals, 1);
        ida_model *m = NULL;
        ida_session *s = NULL;
        ida_dataset *d = NULL;
        int32_t ids[201];
        float loss;
        double sum = 0;
        int64_t n = 0;
        OK(ida_model_load(run, &m));
        OK(ida_session_create(m, &s));
        OK(ida_dataset_open(data, "val", true, &d));
        assert_int_equal(ida_dataset_tokens(d), 201);
        OK(ida_dataset_read(d, 0, 201, ids));
        for (int i = 0; i < (whole ? 200 : 120); i++, n++) {
            if (i % 24 == 0 || ids[i] == 0) ida_session_reset(s);
            OK(ida_session_score(s, ids + i, ids + i + 1, 1, &loss));
            sum += (double)loss;
        }
        assert_true(fabs(v.loss - sum / (double)n) < 1e-5);
        assert_true(fabs(v.bpb - v.loss * (201.0 / 603.0) / log(2)) < 1e-12);
        char *log = tiny_log(run);
        assert_non_null(strstr(log, whole ? "200 of 201 validation tokens" : "120 of 201 validation tokens"));
        assert_true((strstr(log, "whole split") != NULL) == !whole);
        free(log);
        ida_dataset_close(d);
        ida_session_free(s);
        ida_model_free(m);
    }
}

static int clean(void **state) {
    (void)state;
    tiny_clean();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule_has_exact_values_at_its_edges),
        cmocka_unit_test(warm_up_of_the_recipe),
        cmocka_unit_test(group_table_is_printed_and_right),
        cmocka_unit_test(only_matrices_decay_and_ssm_steps_are_capped),
        cmocka_unit_test(options_out_of_range_are_refused_by_name),
        cmocka_unit_test(the_cost_of_a_shape_is_that_of_its_recipe_or_tokens),
        cmocka_unit_test(data_too_small_to_train_or_to_evaluate),
        cmocka_unit_test(L37_micro_batches_of_10_and_1000_tokens_equal_the_single_batch),
        cmocka_unit_test(L38_a_step_is_the_union_of_the_ranks_batches),
        cmocka_unit_test(a_non_finite_gradient_skips_the_step_and_names_the_tensor),
        cmocka_unit_test(a_huge_weight_overflows_and_is_skipped),
        cmocka_unit_test(clipping_bounds_the_step),
        cmocka_unit_test(every_mixer_overfits_one_small_batch),
        cmocka_unit_test(evaluation_is_the_loss_of_the_fixed_set),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
