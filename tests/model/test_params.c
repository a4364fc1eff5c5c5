/* test_params.c - the parameter table: exact counts, unique names, places that do not overlap, and pointers that agree with
 * names. */
#include "model_test.h"

#include "core/file.h"
#include "model/config.h"

static void the_fourteen_counts_are_exact(void **s) {
    (void)s;
    static const struct { const char *preset; ida_mixer_kind kind; int64_t parameters;
    } cells[] = {
        {"125m", IDA_MIXER_SOFTMAX, 134105856},      {"125m", IDA_MIXER_INTERDOMAIN, 135416208},
        {"125m", IDA_MIXER_S4D, 135425424},          {"125m", IDA_MIXER_DUAL_LINEAR, 135379344},
        {"125m", IDA_MIXER_SINGLE_QUERY, 135462288}, {"350m", IDA_MIXER_SOFTMAX, 373867520},
        {"350m", IDA_MIXER_INTERDOMAIN, 377360768},  {"350m", IDA_MIXER_S4D, 377385344},
        {"760m", IDA_MIXER_SOFTMAX, 777856512},      {"760m", IDA_MIXER_INTERDOMAIN, 781498752},
        {"760m", IDA_MIXER_S4D, 781523328},          {"1.3b", IDA_MIXER_SOFTMAX, 1345423360},
        {"1.3b", IDA_MIXER_INTERDOMAIN, 1352406784}, {"1.3b", IDA_MIXER_S4D, 1352455936},
    };
    assert_int_equal(sizeof cells / sizeof *cells, 14);
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++) {
        ida_config c;
        ida_model_info info;
        OK(ida_config_preset(cells[i].preset, cells[i].kind, &c));
        OK(ida_config_info(&c, &info));
        assert_int_equal(info.parameters, cells[i].parameters);
    }
}

static void state_bytes_match_the_method(void **s) {
    (void)s;
    ida_config c;
    ida_model_info info;
    OK(ida_config_preset("1.3b", IDA_MIXER_INTERDOMAIN, &c));
    OK(ida_config_info(&c, &info));
    /* 32 heads x 64 modes x 128 columns, complex, and 3 inputs of two convolutions, in each of 24 layers. */
    assert_int_equal(info.state_bytes, 24 * (32 * 64 * 128 * 2 + 2 * 3 * 2048) * 4);
    assert_int_equal(info.state_bytes_per_token, 0);
    OK(ida_config_preset("1.3b", IDA_MIXER_SOFTMAX, &c));
    OK(ida_config_info(&c, &info));
    assert_int_equal(info.state_bytes, 0);
    assert_int_equal(info.state_bytes_per_token, 24 * 2 * 2048 * 4);
}

static void flops_are_two_per_weight_and_the_mixer(void **s) {
    (void)s;
    ida_config c;
    ida_model_info info, longer;
    OK(ida_config_preset("125m", IDA_MIXER_INTERDOMAIN, &c));
    OK(ida_config_info(&c, &info));
    int64_t weights = 12 * (4 * 768 * 768 + 3 * 768 * 2048 + 2 * 4 * 768) + 32000 * 768;
    assert_int_equal(info.flops_per_token, 2 * weights + 12 * 12 * 147456); /* 147 kFLOP: method section 4 */
    c.max_position *= 2;
    OK(ida_config_info(&c, &longer));
    assert_int_equal(longer.flops_per_token, info.flops_per_token);
    memset(c.layer_mixer, IDA_MIXER_SOFTMAX, sizeof c.layer_mixer);
    OK(ida_config_info(&c, &longer));
    assert_int_equal(longer.flops_per_token, 2 * (weights - 12 * 2 * 4 * 768) + 12 * 2 * 768 * (2 * 4096 + 1));
    c.tie_embeddings = true; /* the shared matrix still works as lm_head */
    OK(ida_config_info(&c, &info));
    assert_int_equal(info.flops_per_token, longer.flops_per_token);
}

static ida_config everything(void) {
    ida_config c = small_config(IDA_MIXER_SOFTMAX, 31, 24, 4, 5);
    c.n_layers = 5;
    c.gate = c.output_norm = true;
    for (int l = 0; l < 5; l++) c.layer_mixer[l] = (uint8_t)l;
    return c;
}

static void names_are_unique_and_places_do_not_overlap(void **s) {
    (void)s;
    ida_config c = everything();
    ida_param_table t;
    OK(ida_param_table_build(&c, &t));
    int64_t at = 0, numel = 0;
    for (int64_t i = 0; i < t.n; i++) {
        const ida_param *p = &t.params[i];
        assert_true(p->offset >= at);
        assert_int_equal(p->offset % 16, 0);
        int64_t size = 1;
        for (int k = 0; k < p->ndim; k++) size *= p->shape[k];
        assert_int_equal(size, p->numel);
        at = p->offset + p->numel;
        numel += p->numel;
        assert_ptr_equal(ida_param_find(&t, p->name), p);
        for (int64_t j = 0; j < i; j++) assert_string_not_equal(t.params[j].name, p->name);
    }
    assert_true(at <= t.block);
    assert_int_equal(numel, t.numel);
    assert_null(ida_param_find(&t, "model.layers.0.mixer.q_proj.weight")); /* softmax: as in HF Llama */
    assert_non_null(ida_param_find(&t, "model.layers.0.self_attn.q_proj.weight"));
    assert_null(ida_param_find(&t, "model.layers.4.mixer.q_proj.weight")); /* s4d has no query */
    ida_param_table_free(&t);
}

/* Weights, and gradients of the same layout: every tensor has one place, and the row that names it finds it there. */
static void bound_pointers_agree_with_names(void **state) {
    (void)state;
    ida_config c = everything();
    ida_param_table t;
    ida_layers all;
    OK(ida_param_table_build(&c, &t));
    OK(ida_layers_build(&c, &all));
    real *block = calloc((size_t)t.block, sizeof *block);
    ida_part_weights w[10];
    ida_part_reals r[10];
    ida_weights_at weights = {.parts = w};
    ida_reals_at reals = {.parts = r};
    assert_int_equal(all.n, 10);
    ida_weights_bind(&t, ida_cpu_device(), block, ida_act_of(block), &weights);
    ida_reals_bind(&t, block, &reals);
    const int64_t norm = ida_param_find(&t, "model.norm.weight")->offset, head = ida_param_find(&t, "lm_head.weight")->offset;
    assert_ptr_equal(weights.embed.data, block + ida_param_find(&t, "model.embed_tokens.weight")->offset);
    assert_true(weights.norm == block + norm && weights.lm_head.data == block + head);
    assert_true(reals.embed == block && reals.norm == block + norm && reals.lm_head == block + head);
    int64_t seen = 3;
    for (int64_t i = 0; i < all.n; i++) {
        const ida_layer_kind *k = all.at[i].kind;
        char full[96];
        snprintf(full, sizeof full, "model.layers.%d.%s", all.at[i].block, k->norm);
        assert_true(w[i].gain == block + ida_param_find(&t, full)->offset && r[i].gain == w[i].gain);
        seen++;
        bool known[IDA_LAYER_TENSORS] = {false};
        for (int j = 0; j < k->n_tensors; j++) {
            snprintf(full, sizeof full, "model.layers.%d.%s%s", all.at[i].block, k->prefix, k->tensors[j].name);
            const ida_param *p = ida_param_find(&t, full);
            const int slot = k->tensors[j].slot;
            assert_false(known[slot]); /* one row a slot */
            known[slot] = true;
            assert_non_null(p);        /* everything() has all options on */
            assert_true(r[i].w[slot] == block + p->offset);
            const ida_matrix *matrix = &w[i].w[slot].matrix;
            const bool is = p->group == IDA_GROUP_MATRIX;
            assert_ptr_equal(is ? matrix->data : w[i].w[slot].vector, block + p->offset);
            assert_null(is ? w[i].w[slot].vector : matrix->data);
            if (is) assert_true(matrix->rows == p->shape[0] && matrix->cols == p->shape[1]);
            seen++;
        }
        for (int j = 0; j < IDA_LAYER_TENSORS; j++)
            if (!known[j]) assert_true(!w[i].w[j].matrix.data && !w[i].w[j].vector && !r[i].w[j]);
    }
    assert_int_equal(seen, t.n); /* no tensor that nothing points to */
    free(block);
    ida_layers_free(&all);
    ida_param_table_free(&t);
}

static void decay_groups_follow_the_recipe(void **s) {
    (void)s;
    ida_config c = everything();
    ida_param_table t;
    OK(ida_param_table_build(&c, &t));
    static const struct { const char *name; ida_group group;
    } rows[] = {{"model.embed_tokens.weight", IDA_GROUP_MATRIX},
                {"lm_head.weight", IDA_GROUP_MATRIX},
                {"model.layers.1.mixer.g_proj.weight", IDA_GROUP_MATRIX},
                {"model.norm.weight", IDA_GROUP_VECTOR},
                {"model.layers.1.mixer.q_conv.weight", IDA_GROUP_VECTOR},
                {"model.layers.4.mixer.w", IDA_GROUP_VECTOR},
                {"model.layers.1.mixer.log_dt", IDA_GROUP_SSM},
                {"model.layers.1.mixer.c.imag", IDA_GROUP_SSM},
                {"model.layers.1.mixer.k_norm.weight", IDA_GROUP_SSM},
                {"model.layers.1.mixer.v_norm.bias", IDA_GROUP_SSM},
                {"model.layers.1.mixer.a_imag", IDA_GROUP_SSM}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(ida_param_find(&t, rows[i].name)->group, rows[i].group);
    ida_param_table_free(&t);
}

/* A file names its shape only: what a key that it lacks means is told once, in the table. */
static void built_in_presets_equal_the_files(void **s) {
    (void)s;
    int papers = 0;
    for (int i = 0; ida_preset_names[i]; i++) {
        char path[512];
        ida_config file, built_in;
        ida_difference d;
        snprintf(path, sizeof path, "%s/../../presets/%s.json", IDA_TEST_DATA, ida_preset_names[i]);
        OK(ida_config_load(path, &file));
        OK(ida_config_preset(ida_preset_names[i], IDA_MIXER_INTERDOMAIN, &built_in));
        if (ida_config_differ(&file, &built_in, &d)) fail_msg("%s: %s is %s, built in %s", path, d.key, d.a, d.b);
        assert_int_equal(built_in.ffn_hidden, ida_config_ffn(built_in.d_model));
        snprintf(path, sizeof path, "%s/../../presets/paper-%s.json", IDA_TEST_DATA, ida_preset_names[i]);
        if (!ida_exists(path)) continue;
        papers++;
        OK(ida_config_load(path, &file)); /* the paper's own basis and token ids */
        assert_int_equal(file.basis, IDA_BASIS_S4D_INV);
        assert_true(file.bos_id == 1 && file.eos_id == 2);
        file.basis = built_in.basis;
        file.bos_id = file.eos_id = -1;
        if (ida_config_differ(&file, &built_in, &d)) fail_msg("%s: %s is %s, built in %s", path, d.key, d.a, d.b);
    }
    assert_int_equal(papers, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fourteen_counts_are_exact),
        cmocka_unit_test(state_bytes_match_the_method),
        cmocka_unit_test(flops_are_two_per_weight_and_the_mixer),
        cmocka_unit_test(names_are_unique_and_places_do_not_overlap),
        cmocka_unit_test(bound_pointers_agree_with_names),
        cmocka_unit_test(decay_groups_follow_the_recipe),
        cmocka_unit_test(built_in_presets_equal_the_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
