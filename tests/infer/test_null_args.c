/* test_null_args.c - a NULL where the header wants an object is IDA_E_ARG that names it, at every public entry point of the model,
 * the tokenizer, the data, the session and training. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <idattn.h>

static void every_entry_point_names_the_pointer_that_is_null(void **state) {
    (void)state;
    ida_config c;
    ida_model *m = NULL, *m2 = NULL;
    ida_session *s = NULL, *s2 = NULL;
    ida_tokenizer *t = NULL, *t2 = NULL;
    ida_sample_options o;
    ida_train_options to;
    ida_train_plan plan;
    ida_cost_options co = {0};
    ida_train_cost cost;
    ida_model_info info;
    ida_mixer_kind kind;
    ida_pack_options po = {0};
    ida_inspect_options io = {0};
    ida_decoder *d = NULL, *d2 = NULL;
    const char *piece;
    ida_bpe_options bo = {.vocab_size = 257};
    const char *text = "the cat", *no_string = NULL;
    float logits[320] = {0};
    int32_t ids[2] = {1, 2}, id, *out_ids = NULL;
    int64_t n;
    size_t bytes;
    char *string = NULL, path[] = "/dev/shm/ida_null_args.txt";
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("the cat sat on the mat\n", f);
    fclose(f);
    const char *inputs[] = {path};
    bo.inputs = inputs;
    bo.n_inputs = 1;
    assert_int_equal(ida_tokenizer_train(&bo, NULL, NULL, &t), IDA_OK);
    remove(path);
    assert_int_equal(ida_decoder_create(t, false, &d), IDA_OK);
    assert_int_equal(ida_config_preset("tiny", IDA_MIXER_INTERDOMAIN, &c), IDA_OK);
    c.vocab_size = 320;
    assert_int_equal(ida_model_create(&c, 1, &m), IDA_OK);
    assert_int_equal(ida_session_create(m, &s), IDA_OK);
    ida_sample_defaults(&o);
    ida_train_defaults(&to);
    ida_sample_options stop = o, stop_entry = o, stop_count = o;
    stop.n_stop = stop_entry.n_stop = 1;
    stop_entry.stop = &no_string;
    stop_count.n_stop = -1;
    struct {
        ida_status st;
        const char *name;
        char message[200];
    } row[100];
    int rows = 0;
#define ROW(call, what)                                                                                                         \
    do {                                                                                                                         \
        row[rows].st = (call);                                                                                                   \
        row[rows].name = (what);                                                                                                 \
        snprintf(row[rows++].message, sizeof row[0].message, "%s", ida_last_error());                                            \
    } while (0)
    ROW(ida_config_preset(NULL, IDA_MIXER_SOFTMAX, &c), "name");
    ROW(ida_config_preset("tiny", IDA_MIXER_SOFTMAX, NULL), "cfg");
    ROW(ida_config_load(NULL, &c), "path");
    ROW(ida_config_json(NULL, &string), "c");
    ROW(ida_config_json(&c, NULL), "json");
    ROW(ida_config_set(NULL, "hidden_size", "8"), "c");
    ROW(ida_config_set(&c, NULL, "8"), "key");
    ROW(ida_config_set(&c, "hidden_size", NULL), "value");
    ROW(ida_config_check(NULL), "c");
    ROW(ida_config_info(NULL, &info), "cfg");
    ROW(ida_mixer_parse(NULL, &kind), "name");
    ROW(ida_model_create(NULL, 1, &m2), "cfg");
    ROW(ida_model_create(&c, 1, NULL), "out");
    ROW(ida_model_load(NULL, &m2), "path");
    ROW(ida_model_load_on(NULL, "cpu", IDA_F32, &m2), "path");
    ROW(ida_model_load_on("/", NULL, IDA_F32, &m2), "device");
    ROW(ida_model_load_on("/", "cpu", IDA_F32, NULL), "out");
    ROW(ida_model_resolve(NULL, &string), "path");
    ROW(ida_model_resolve("/", NULL), "dir");
    ROW(ida_model_save(NULL, "x"), "m");
    ROW(ida_model_save(m, NULL), "dir");
    ROW(ida_model_tensor(NULL, 0, NULL, NULL, NULL, NULL), "m");
    ROW(ida_tokenizer_load(NULL, &t2), "path");
    ROW(ida_tokenizer_save(NULL, "x"), "t");
    ROW(ida_tokenizer_save(t, NULL), "path");
    ROW(ida_tokenizer_train(NULL, NULL, NULL, &t2), "options");
    ROW(ida_tokenizer_encode(NULL, text, 7, false, &out_ids, &n), "t");
    ROW(ida_tokenizer_encode(t, NULL, 7, false, &out_ids, &n), "text");
    ROW(ida_tokenizer_encode(t, text, 7, false, NULL, &n), "ids");
    ROW(ida_tokenizer_decode(t, NULL, 2, false, &string, &bytes), "ids");
    ROW(ida_tokenizer_decode(t, ids, 2, false, NULL, &bytes), "text");
    ROW(ida_tokenizer_encode_as(NULL, text, 7, 0, &out_ids, &n), "t");
    ROW(ida_tokenizer_encode_as(t, text, 7, 0, &out_ids, NULL), "n_ids");
    ROW(ida_decoder_create(NULL, false, &d2), "t");
    ROW(ida_decoder_create(t, false, NULL), "out");
    ROW(ida_decoder_push(NULL, ids, 2, &piece, &bytes), "d");
    ROW(ida_decoder_push(d, NULL, 2, &piece, &bytes), "ids");
    ROW(ida_decoder_push(d, ids, 2, NULL, &bytes), "text");
    ROW(ida_decoder_end(NULL, &piece, &bytes), "d");
    ROW(ida_decoder_end(d, &piece, NULL), "n_bytes");
    ROW(ida_data_pack(NULL, &po, NULL, NULL, NULL), "t");
    ROW(ida_data_pack(t, NULL, NULL, NULL, NULL), "o");
    ROW(ida_data_pack(t, &po, NULL, NULL, NULL), "o->out_dir");
    ROW(ida_data_inspect(NULL, &string), "dir");
    ROW(ida_data_describe(NULL, &string), "o");
    ROW(ida_data_describe(&io, &string), "o->path");
    ROW(ida_data_describe(&io, NULL), "json");
    ROW(ida_session_create(NULL, &s2), "m");
    ROW(ida_session_create(m, NULL), "out");
    ROW(ida_session_clone(NULL, &s2), "s");
    ROW(ida_session_feed(NULL, ids, 2, NULL), "s");
    ROW(ida_session_feed(s, NULL, 2, NULL), "ids");
    ROW(ida_session_score(s, ids, NULL, 2, logits), "targets");
    ROW(ida_session_score(s, ids, ids, 2, NULL), "losses");
    ROW(ida_session_save(NULL, "x"), "s");
    ROW(ida_session_load(s, NULL), "path");
    ROW(ida_sample(NULL, 2, &o, 0, &id), "logits");
    ROW(ida_sample(logits, 2, NULL, 0, &id), "o");
    ROW(ida_sample(logits, 2, &o, 0, NULL), "id");
    ROW(ida_generate(NULL, t, ids, 2, &o, NULL, NULL, NULL, NULL), "s");
    ROW(ida_generate(s, NULL, ids, 2, &o, NULL, NULL, NULL, NULL), "t");
    ROW(ida_generate(s, t, NULL, 2, &o, NULL, NULL, NULL, NULL), "prompt");
    ROW(ida_generate(s, t, ids, 2, NULL, NULL, NULL, NULL, NULL), "o");
    ROW(ida_generate(s, t, ids, 2, &stop, NULL, NULL, NULL, NULL), "stop");
    ROW(ida_generate(s, t, ids, 2, &stop_entry, NULL, NULL, NULL, NULL), "stop[0]");
    ROW(ida_train(NULL, NULL, NULL), "o");
    ROW(ida_train_recipe(NULL, &to), "size");
    ROW(ida_train_recipe("125m", NULL), "o");
    ROW(ida_train_make_plan(NULL, &plan), "o");
    ROW(ida_train_make_plan(&to, NULL), "plan");
    ROW(ida_doctor_json(NULL), "json");
    ROW(ida_config_make(NULL, &c), "o");
    ROW(ida_config_make(&(ida_shape_options){.preset = "tiny"}, NULL), "cfg");
    ROW(ida_train_options_load(NULL, &to), "dir");
    ROW(ida_train_options_load("x", NULL), "o");
    ROW(ida_train_find_cost(NULL, NULL, &co, &cost), "cfg");
    ROW(ida_train_find_cost(&c, NULL, NULL, &cost), "o");
    ROW(ida_train_find_cost(&c, NULL, &co, NULL), "cost");
    ROW(ida_options_json(NULL, NULL), "json");
    ROW(ida_options_defaults(NULL, &to, sizeof to), "group");
    ROW(ida_options_defaults("train", NULL, sizeof to), "options");
    ROW(ida_options_set("train", NULL, sizeof to, "lr", "1"), "options");
    ROW(ida_options_set("train", &to, sizeof to, NULL, "1"), "key");
    ROW(ida_options_set("train", &to, sizeof to, "lr", NULL), "value");
    ROW(ida_options_set_list("sample", &o, sizeof o, NULL, &text, 1), "key");
    ROW(ida_options_get("train", &to, sizeof to, NULL), "json");
#undef ROW
    for (int i = 0; i < rows; i++) {
        char want[64];
        snprintf(want, sizeof want, "%s is NULL", row[i].name);
        if (row[i].st != IDA_E_ARG || strncmp(row[i].message, want, strlen(want)) != 0)
            fail_msg("row %d: status %d, \"%s\", wanted \"%s\"", i, row[i].st, row[i].message, want);
    }
    assert_int_equal(ida_generate(s, t, ids, 2, &stop_count, NULL, NULL, NULL, NULL), IDA_E_ARG);
    assert_int_equal(ida_session_position(s), 0); /* nothing of it was begun */
    assert_true(!m2 && !s2 && !t2 && !d2 && !string && !out_ids);
    ida_session_free(s);
    ida_model_free(m);
    ida_decoder_free(d);
    ida_tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_entry_point_names_the_pointer_that_is_null)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
