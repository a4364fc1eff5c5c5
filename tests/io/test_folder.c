/* test_folder.c - model folders: round trip, shards, and every way in which files and config may disagree. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/bf16.h"
#include "core/mem.h"
#include "io/folder.h"
#include "io/safetensors.h"
#include "lib/scratch.h"

static ida_model *make_model(void) {
    ida_config cfg;
    ida_model *m = NULL;
    assert_int_equal(ida_config_preset("tiny", IDA_MIXER_INTERDOMAIN, &cfg), IDA_OK);
    cfg.d_model = 16;
    cfg.vocab_size = 40;
    cfg.state_size = 4;
    cfg.bos_id = 3;
    cfg.layer_mixer[1] = IDA_MIXER_SOFTMAX;
    if (ida_model_create(&cfg, 5, &m) != IDA_OK) fail_msg("%s", ida_last_error());
    return m;
}

static void assert_same_model(const ida_model *a, const ida_model *b) {
    assert_int_equal(a->table.n, b->table.n);
    for (int64_t i = 0; i < a->table.n; i++) {
        const ida_param *p = &a->table.params[i];
        assert_memory_equal(a->params + p->offset, b->params + p->offset, (size_t)p->numel * sizeof(float));
    }
}

/* Description of a folder to write: the model's tensors, changed by `edit`. */
typedef struct tensors { ida_st_out t[64]; int64_t n; } tensors;

static tensors tensors_of(const ida_model *m) {
    tensors s = {.n = m->table.n};
    assert_true(s.n < 60);
    for (int64_t i = 0; i < s.n; i++) {
        const ida_param *p = &m->table.params[i];
        s.t[i] = (ida_st_out){.name = p->name, .dtype = IDA_ST_F32, .ndim = p->ndim, .data = m->params + p->offset};
        for (int d = 0; d < p->ndim; d++) s.t[i].shape[d] = p->shape[d];
    }
    return s;
}

static char folder[1024];

static void write_tensors(const tensors *s) {
    char path[1100];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(ida_st_write(path, s->t, s->n, NULL, NULL, 0), IDA_OK);
}

static void refuse(ida_status want, const char *says) {
    ida_model *m = (ida_model *)&folder;
    ida_status st = ida_model_load(folder, &m);
    if (st != want || !strstr(ida_last_error(), says)) fail_msg("status %d, \"%s\" should mention \"%s\"", st, ida_last_error(),
                                                                says);
    assert_null(m);
}

static ida_model *model_in_folder(void **state, const char *name) {
    ida_model *m = make_model();
    snprintf(folder, sizeof folder, "%s", in_dir(*state, name));
    if (ida_model_save(m, folder) != IDA_OK) fail_msg("%s", ida_last_error());
    return m;
}

static void a_saved_model_loads_bit_for_bit(void **state) {
    ida_model *m = model_in_folder(state, "trip"), *back = NULL;
    if (ida_model_load(folder, &back) != IDA_OK) fail_msg("%s", ida_last_error());
    assert_same_model(m, back);
    assert_memory_equal(&m->cfg.layer_mixer, &back->cfg.layer_mixer, (size_t)m->cfg.n_layers);
    assert_int_equal(back->cfg.bos_id, 3);
    assert_non_null(back->prep);
    assert_true(ida_exists(in_dir(*state, "trip/generation_config.json")));
    ida_model_free(back);
    ida_model_free(m);
}

static void half_precision_weights_are_widened(void **state) {
    ida_model *m = model_in_folder(state, "bf16"), *back = NULL;
    tensors s = tensors_of(m);
    uint16_t *h = malloc((size_t)m->table.params[0].numel * sizeof *h);
    assert_non_null(h);
    for (int64_t i = 0; i < m->table.params[0].numel; i++) h[i] = ida_f32_to_bf16(m->params[m->table.params[0].offset + i]);
    s.t[0].dtype = IDA_ST_BF16;
    s.t[0].data = h;
    write_tensors(&s);
    assert_int_equal(ida_model_load(folder, &back), IDA_OK);
    for (int64_t i = 0; i < m->table.params[0].numel; i++)
        assert_true(back->params[back->table.params[0].offset + i] == ida_bf16_to_f32(h[i]));
    free(h);
    ida_model_free(back);
    ida_model_free(m);
}

static void tensors_that_do_not_fit_the_config_are_named(void **state) {
    ida_model *m = model_in_folder(state, "misfit");
    tensors s = tensors_of(m);
    char want[200];
    s.n--;
    write_tensors(&s);
    refuse(IDA_E_FORMAT, s.t[s.n].name);
    s = tensors_of(m);
    s.t[s.n++] = (ida_st_out){.name = "model.layers.7.extra", .dtype = IDA_ST_F32, .ndim = 1, .shape = {1}, .data = m->params};
    write_tensors(&s);
    refuse(IDA_E_FORMAT, "model.layers.7.extra");
    s = tensors_of(m);
    s.t[0].shape[0]--;
    write_tensors(&s);
    snprintf(want, sizeof want, "\"%s\" has shape [39,16], must be [40,16]", s.t[0].name);
    refuse(IDA_E_FORMAT, want);
    s = tensors_of(m);
    s.t[1].dtype = IDA_ST_I32;
    write_tensors(&s);
    refuse(IDA_E_UNSUPPORTED, s.t[1].name);
    ida_model_free(m);
}

static void weights_that_are_not_finite_are_named_with_their_index(void **state) {
    ida_model *m = model_in_folder(state, "nan");
    const ida_param *p = &m->table.params[1];
    m->params[p->offset + 3] = NAN;
    tensors s = tensors_of(m);
    write_tensors(&s);
    refuse(IDA_E_NUMERIC, "element 3 of");
    refuse(IDA_E_NUMERIC, p->name);
    m->params[p->offset + 3] = -INFINITY;
    write_tensors(&s);
    refuse(IDA_E_NUMERIC, "infinite");
    /* a double that does not fit into a float */
    m->params[p->offset + 3] = 0;
    double *wide = calloc((size_t)p->numel, sizeof *wide);
    assert_non_null(wide);
    wide[p->numel - 1] = 1e300;
    s.t[1].dtype = IDA_ST_F64;
    s.t[1].data = wide;
    write_tensors(&s);
    refuse(IDA_E_NUMERIC, "too large for fp32");
    free(wide);
    ida_model_free(m);
}

static void missing_and_broken_files_are_named(void **state) {
    ida_model *m = model_in_folder(state, "broken");
    char path[1100];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    int64_t n;
    char *p = get_file(path, &n);
    put_file(path, p, n / 2);
    refuse(IDA_E_FORMAT, "truncated");
    put_file(path, p, n);
    free(p);
    assert_int_equal(unlink(path), 0);
    refuse(IDA_E_IO, "model.safetensors");
    tensors s = tensors_of(m);
    write_tensors(&s);
    snprintf(path, sizeof path, "%s/config.json", folder);
    p = get_file(path, &n);
    put_file(path, p, n / 2);
    refuse(IDA_E_FORMAT, "config.json");
    free(p);
    assert_int_equal(unlink(path), 0);
    refuse(IDA_E_FORMAT, "config.json");
    ida_model *none = NULL;
    assert_int_equal(ida_model_load(in_dir(*state, "absent"), &none), IDA_E_IO);
    assert_int_equal(ida_model_load(in_dir(*state, "broken/model.safetensors"), &none), IDA_E_ARG);
    assert_int_equal(ida_model_load(NULL, &none), IDA_E_ARG);
    ida_model_free(m);
}

/* A config that asks for petabytes is refused by its files, before memory is asked for. */
static void a_lying_config_takes_no_memory(void **state) {
    ida_model *m = model_in_folder(state, "liar");
    ida_config cfg = m->cfg;
    cfg.vocab_size = 1 << 20;
    cfg.d_model = 1 << 14;
    char *json = NULL, path[1100];
    assert_int_equal(ida_config_json(&cfg, &json), IDA_OK);
    snprintf(path, sizeof path, "%s/config.json", folder);
    put_file(path, json, (int64_t)strlen(json));
    refuse(IDA_E_FORMAT, "has shape [40,16], must be [1048576,16384]");
    ida_string_free(json);
    ida_model_free(m);
}

static void assert_config(const char *dir, const char *want) {
    char path[1200], *text = NULL;
    int64_t n;
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(ida_read_file(path, 1 << 22, &text, &n), IDA_OK);
    assert_string_equal(text, want);
    ida_free(text);
}

/* HF's own keys: in their place, their values to the digit. What the saved weights contradict goes. */
static void keys_of_others_in_a_config_are_saved_again(void **state) {
    static const char kept[] = "  \"transformers_version\": \"4.40.0\",\n  \"use_cache\": true,\n  \"task_params\": {\n"
                               "    \"z\": [\n      1,\n      0.1,\n      null\n    ],\n    \"a\": \"\xc3\xa9\"\n  },\n",
                      dropped[] = "  \"dtype\": \"bfloat16\",\n  \"torch_dtype\": \"bfloat16\",\n";
    ida_model *m = model_in_folder(state, "foreign"), *back = NULL;
    char *ours = NULL, path[1100], again[1100];
    assert_int_equal(ida_config_json(&m->cfg, &ours), IDA_OK);
    assert_config(folder, ours);
    const char *type = strstr(ours, "  \"torch_dtype\": \"float32\",\n"), *rest = strchr(type, '\n') + 1;
    ida_buf given = {0}, want = {0};
    ida_buf_addf(&given, "{\n%s%s%.*s%s", kept, dropped, (int)(type - ours - 2), ours + 2, rest);
    ida_buf_addf(&want, "{\n%s  \"torch_dtype\": \"float32\",\n%.*s%s", kept, (int)(type - ours - 2), ours + 2, rest);
    snprintf(path, sizeof path, "%s/config.json", folder);
    put_file(path, given.data, given.len);
    snprintf(again, sizeof again, "%s-2", folder);
    if (ida_model_load(folder, &back) != IDA_OK) fail_msg("%s", ida_last_error());
    assert_int_equal(ida_model_save(back, again), IDA_OK);
    assert_config(again, want.data);
    ida_model_free(back);

    given.len = 0; /* more than a config.json may have once written with blanks: the model is saved without */
    ida_buf_addf(&given, "{\"filler\": [");
    for (int i = 0; i < 200000; i++) ida_buf_addf(&given, "%s1", i ? "," : "");
    ida_buf_addf(&given, "],%s", ours + 1);
    put_file(path, given.data, given.len);
    if (ida_model_load(folder, &back) != IDA_OK) fail_msg("%s", ida_last_error());
    assert_int_equal(ida_model_save(back, again), IDA_OK);
    assert_config(again, ours);
    ida_model_free(back);
    ida_buf_free(&given);
    ida_buf_free(&want);
    ida_string_free(ours);
    ida_model_free(m);
}

static void put_index(const char *text) {
    char path[1100];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    put_file(path, text, (int64_t)strlen(text));
}

/* Two shards, every second tensor in each; `change` replaces the file name of tensor 0 in the index (NULL = right). */
static void write_shards(const ida_model *m, const char *change, bool leave_out_last) {
    tensors s = tensors_of(m), half[2] = {{.n = 0}, {.n = 0}};
    ida_buf b = {0};
    char path[1100];
    ida_buf_addf(&b, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (int64_t i = 0; i < s.n; i++) {
        tensors *h = &half[i % 2];
        h->t[h->n++] = s.t[i];
        if (leave_out_last && i == s.n - 1) continue;
        const char *file = i % 2 ? "model-00002-of-00002.safetensors" : "model-00001-of-00002.safetensors";
        ida_buf_addf(&b, "%s\"%s\":\"%s\"", i ? "," : "", s.t[i].name, i == 0 && change ? change : file);
    }
    ida_buf_addf(&b, "}}");
    put_index(b.data);
    ida_buf_free(&b);
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "%s/model-%05d-of-00002.safetensors", folder, k + 1);
        assert_int_equal(ida_st_write(path, half[k].t, half[k].n, NULL, NULL, 0), IDA_OK);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
}

static void shards_load_as_one_and_their_index_is_checked(void **state) {
    ida_model *m = model_in_folder(state, "shards"), *back = NULL;
    write_shards(m, NULL, false);
    if (ida_model_load(folder, &back) != IDA_OK) fail_msg("%s", ida_last_error());
    assert_same_model(m, back);
    ida_model_free(back);
    static const char *const bad[] = {"../shards/model-00001-of-00002.safetensors", "..", "/etc/passwd", "a\\\\b", "", ".hidden"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_shards(m, bad[i], false);
        refuse(IDA_E_FORMAT, "not a plain file name");
    }
    write_shards(m, "model-00002-of-00002.safetensors", false);
    refuse(IDA_E_FORMAT, "is not in model-00002-of-00002.safetensors");
    write_shards(m, "model-00003-of-00002.safetensors", false);
    refuse(IDA_E_IO, "model-00003-of-00002.safetensors");
    write_shards(m, NULL, true);
    refuse(IDA_E_FORMAT, "the index maps");
    put_index("{\"weight_map\":[]}");
    refuse(IDA_E_FORMAT, "weight_map");
    put_index("{\"weight_map\":{\"a\":1}}");
    refuse(IDA_E_FORMAT, "not a plain file name");
    put_index("{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}");
    refuse(IDA_E_FORMAT, "duplicate");
    put_index("{\"weight_map\":{}}");
    refuse(IDA_E_FORMAT, "is missing");
    ida_model_free(m);
}

static void saving_where_it_cannot_be_is_an_error(void **state) {
    ida_model *m = make_model();
    put_file(in_dir(*state, "file"), "x", 1);
    assert_int_equal(ida_model_save(m, in_dir(*state, "file")), IDA_E_IO);
    assert_int_equal(ida_model_save(m, in_dir(*state, "file/sub")), IDA_E_IO);
    assert_int_equal(ida_model_save(NULL, "x"), IDA_E_ARG);
    ida_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_saved_model_loads_bit_for_bit),
        cmocka_unit_test(half_precision_weights_are_widened),
        cmocka_unit_test(tensors_that_do_not_fit_the_config_are_named),
        cmocka_unit_test(weights_that_are_not_finite_are_named_with_their_index),
        cmocka_unit_test(missing_and_broken_files_are_named),
        cmocka_unit_test(a_lying_config_takes_no_memory),
        cmocka_unit_test(keys_of_others_in_a_config_are_saved_again),
        cmocka_unit_test(shards_load_as_one_and_their_index_is_checked),
        cmocka_unit_test(saving_where_it_cannot_be_is_an_error),
    };
    return cmocka_run_group_tests_name("io/folder", tests, scratch_setup, scratch_teardown);
}
