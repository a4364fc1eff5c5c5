/* test_params.c - the parameter table: exact counts, unique names, places that do not overlap, and pointers that agree with
 * names. */
#include "model_test.h"

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

static const real *place(const ida_param_table *t, const real *block, const char *name) {
    const ida_param *p = ida_param_find(t, name);
    return p ? block + p->offset : NULL;
}

static void bound_pointers_agree_with_names(void **state) {
    (void)state;
    ida_config c = everything();
    ida_model *m = NULL;
    OK(ida_model_new(&c, &ida_ref_device, NULL, &m));
    const ida_param_table *t = &m->table;
    real *block = calloc((size_t)t->block, sizeof *block);
    const ida_layer_weights *w = m->w.layers;
    ida_layer_grads g[5];
    ida_grads grads = {.layers = g};
    ida_model_bind_grads(&c, t, block, &grads);
    assert_ptr_equal(m->w.embed.data, place(t, m->params, "model.embed_tokens.weight"));
    assert_ptr_equal(m->w.norm, place(t, m->params, "model.norm.weight"));
    assert_ptr_equal(m->w.lm_head.data, place(t, m->params, "lm_head.weight"));
    assert_ptr_equal(grads.embed, place(t, block, "model.embed_tokens.weight"));
    assert_ptr_equal(grads.norm, place(t, block, "model.norm.weight"));
    assert_ptr_equal(grads.lm_head, place(t, block, "lm_head.weight"));
    static const char *const names[] = {"input_layernorm.weight",
                                        "post_attention_layernorm.weight",
                                        "*q_proj.weight",
                                        "*k_proj.weight",
                                        "*v_proj.weight",
                                        "*o_proj.weight",
                                        "*g_proj.weight",
                                        "mixer.q_conv.weight",
                                        "mixer.q_conv.bias",
                                        "mixer.k_conv.weight",
                                        "mixer.k_conv.bias",
                                        "mixer.v_conv.weight",
                                        "mixer.v_conv.bias",
                                        "mixer.k_norm.weight",
                                        "mixer.k_norm.bias",
                                        "mixer.v_norm.weight",
                                        "mixer.v_norm.bias",
                                        "mixer.log_dt",
                                        "mixer.a_log",
                                        "mixer.a_imag",
                                        "mixer.c.real",
                                        "mixer.c.imag",
                                        "mixer.w",
                                        "*o_norm.weight",
                                        "mlp.gate_proj.weight",
                                        "mlp.up_proj.weight",
                                        "mlp.down_proj.weight"};
    int64_t seen = 3;
    for (int l = 0; l < 5; l++) {
        const void *got[] = {w[l].norm1,     w[l].norm2,    w[l].wq.data,  w[l].wk.data,  w[l].wv.data,  w[l].wo.data,
                             w[l].wg.data,   w[l].conv_q_w, w[l].conv_q_b, w[l].conv_k_w, w[l].conv_k_b, w[l].conv_v_w,
                             w[l].conv_v_b,  w[l].gk,       w[l].bk,       w[l].gv,       w[l].bv,       w[l].log_dt,
                             w[l].a_log,     w[l].a_imag,   w[l].c_re,     w[l].c_im,     w[l].w,        w[l].onorm,
                             w[l].gate.data, w[l].up.data,  w[l].down.data};
        const void *dgot[] = {g[l].norm1,    g[l].norm2,    g[l].wq,       g[l].wk,       g[l].wv,       g[l].wo,       g[l].wg,
                              g[l].conv_q_w, g[l].conv_q_b, g[l].conv_k_w, g[l].conv_k_b, g[l].conv_v_w, g[l].conv_v_b, g[l].gk,
                              g[l].bk,       g[l].gv,       g[l].bv,       g[l].log_dt,   g[l].a_log,    g[l].a_imag,   g[l].c_re,
                              g[l].c_im,     g[l].w,        g[l].onorm,    g[l].gate,     g[l].up,       g[l].down};
        assert_int_equal(sizeof got / sizeof *got, sizeof names / sizeof *names);
        assert_int_equal(sizeof dgot, sizeof got);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            char full[96];
            bool star = names[i][0] == '*';
            snprintf(full, sizeof full, "model.layers.%d.%s%s", l, star ? (l == 0 ? "self_attn." : "mixer.") : "",
                     names[i] + star);
            assert_ptr_equal(got[i], place(t, m->params, full));
            assert_ptr_equal(dgot[i], place(t, block, full));
            seen += got[i] != NULL;
        }
    }
    assert_int_equal(seen, t->n); /* no tensor that nothing points to */
    free(block);
    ida_model_free(m);
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

static void built_in_presets_equal_the_files(void **s) {
    (void)s;
    static const char *const names[] = {"125m", "350m", "760m", "1.3b", "tiny", "demo", "study"};
    for (int i = 0; i < 7; i++) {
        char path[512];
        ida_config file, built_in;
        char *a, *b;
        snprintf(path, sizeof path, "%s/../../presets/%s.json", IDA_TEST_DATA, names[i]);
        OK(ida_config_load(path, &file));
        OK(ida_config_preset(names[i], IDA_MIXER_INTERDOMAIN, &built_in));
        OK(ida_config_json(&file, &a));
        OK(ida_config_json(&built_in, &b));
        assert_string_equal(a, b);
        ida_string_free(a);
        ida_string_free(b);
        assert_int_equal(built_in.ffn_hidden, ida_config_ffn(built_in.d_model));
        if (i >= 4) continue;
        snprintf(path, sizeof path, "%s/../../presets/paper-%s.json", IDA_TEST_DATA,
                 names[i]); /* the paper's own basis and token ids */
        OK(ida_config_load(path, &file));
        assert_int_equal(file.basis, IDA_BASIS_S4D_INV);
        assert_true(file.bos_id == 1 && file.eos_id == 2);
        file.basis = built_in.basis;
        file.bos_id = file.eos_id = -1;
        OK(ida_config_json(&file, &a));
        OK(ida_config_json(&built_in, &b));
        assert_string_equal(a, b);
        ida_string_free(a);
        ida_string_free(b);
    }
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
