/* test_fields.c - every table of options of the library, row by row: defaults, text, JSON, both ends of each range,
 * differences, description; and the calls of idattn/options.h over them. */
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "idattn.h"
#include "api/groups.h"
#include "core/json.h"

#define OK(expr) do { if ((expr) != IDA_OK) fail_msg("%s: %s", #expr, ida_last_error()); } while (0)

/* The last failure; debug builds put the place in the source behind it. */
static void said(const char *text) {
    if (strncmp(ida_last_error(), text, strlen(text)) != 0) fail_msg("\"%s\" is not \"%s\"", ida_last_error(), text);
}

/* A struct of the group with its defaults, what must be given at its least value. free(). */
static void *block_of(const ida_fields *t) {
    void *p = malloc(t->bytes);
    assert_non_null(p);
    memset(p, 0x5a, t->bytes);
    ida_fields_defaults(t, p);
    for (const ida_field *f = t->rows; f < t->rows + t->n; f++)
        if (f->flags & IDA_FIELD_REQUIRED && f->type == IDA_FIELD_INT)
            *(int64_t *)(void *)((char *)p + f->offset) = (int64_t)f->lo;
    return p;
}

typedef void row_fn(const ida_fields *t, const ida_field *f);

static void each_row(row_fn *fn) {
    const ida_fields *t;
    for (int64_t i = 0; (t = ida_group_at(i)); i++)
        for (const ida_field *f = t->rows; f < t->rows + t->n; f++)
            if (!(f->flags & IDA_FIELD_OWNER)) fn(t, f);
}

/* ---- what a row must be */

static size_t size_of(const ida_field *f) {
    static const size_t size[] = {[IDA_FIELD_INT] = 8,
                                  [IDA_FIELD_REAL] = 8,
                                  [IDA_FIELD_BOOL] = 1,
                                  [IDA_FIELD_ENUM] = 4,
                                  [IDA_FIELD_SEED] = 8,
                                  [IDA_FIELD_TEXT] = sizeof(void *),
                                  [IDA_FIELD_LIST] = sizeof(void *)};
    return size[f->type];
}

static void whole_row(const ida_fields *t, const ida_field *f) {
    const double most = 9007199254740992.0;
    int same_key = 0;
    assert_true(f->help || f->note);
    assert_true(f->offset + size_of(f) <= t->bytes && f->beside < t->bytes);
    for (const ida_field *g = t->rows; g < t->rows + t->n; g++) {
        same_key += ida_fields_find(t, f->key) == g;
        bool apart = g == f || g->flags & IDA_FIELD_OWNER || f->offset + size_of(f) <= g->offset ||
                     g->offset + size_of(g) <= f->offset;
        if (!apart) fail_msg("%s: %s and %s share bytes", t->name, f->key, g->key);
    }
    if (same_key != 1 || ida_fields_find(t, f->key) != f) fail_msg("%s: %s is there twice", t->name, f->key);
    if (f->type == IDA_FIELD_ENUM) assert_non_null(f->names);
    if (f->type == IDA_FIELD_TEXT || f->type == IDA_FIELD_LIST) assert_true(f->arg || f->names);
    if (f->type == IDA_FIELD_INT)
        assert_true(f->lo >= -most && f->hi <= most && f->lo == floor(f->lo) && f->hi == floor(f->hi));
    if (f->type == IDA_FIELD_INT || f->type == IDA_FIELD_REAL) {
        assert_true(f->lo <= f->hi);
        bool none = f->flags & (IDA_FIELD_REQUIRED | IDA_FIELD_DERIVED);
        if (!none && !(f->def >= f->lo && f->def <= f->hi))
            fail_msg("%s: the default of %s is out of its range", t->name, f->key);
    }
    if (f->flags & IDA_FIELD_OR_DEFAULT && f->type == IDA_FIELD_INT) assert_true(f->def != 0);
}

static void every_row_is_whole_and_its_default_legal(void **state) {
    (void)state;
    each_row(whole_row);
    const ida_fields *t;
    for (int64_t i = 0; (t = ida_group_at(i)); i++) {
        void *p = block_of(t);
        OK(ida_fields_check(t, p));
        ida_fields_resolve(t, p);
        OK(ida_fields_check(t, p));
        free(p);
    }
}

/* ---- round trips */

/* Legal values of a row as text, up to 16. The last of a number is its end. */
static int legal_values(const ida_field *f, char out[16][40]) {
    int n = 0;
    const double hi = isinf(f->hi) ? 1e300 : f->hi;
    switch (f->type) {
    case IDA_FIELD_INT:
        snprintf(out[n++], 40, "%.0f", f->lo);
        snprintf(out[n++], 40, "%.0f", floor(f->lo + (f->hi - f->lo) / 3));
        snprintf(out[n++], 40, "%.0f", f->hi);
        break;
    case IDA_FIELD_REAL:
        snprintf(out[n++], 40, "%.17g", f->lo);
        snprintf(out[n++], 40, "%.17g", f->lo + (hi - f->lo) / 3);
        snprintf(out[n++], 40, "%.17g", hi);
        break;
    case IDA_FIELD_BOOL:
        snprintf(out[n++], 40, "true");
        snprintf(out[n++], 40, "false");
        break;
    case IDA_FIELD_SEED:
        snprintf(out[n++], 40, "0");
        snprintf(out[n++], 40, "18446744073709551615");
        break;
    case IDA_FIELD_ENUM:
    case IDA_FIELD_TEXT:
        for (int i = (int)f->lo; f->names && f->names[i] && n < 16; i++) snprintf(out[n++], 40, "%s", f->names[i]);
        if (!f->names) snprintf(out[n++], 40, "a text");
        break;
    case IDA_FIELD_LIST: break;
    }
    return n;
}

static void round_trip(const ida_fields *t, const ida_field *f) {
    char value[16][40];
    void *a = block_of(t), *b = block_of(t);
    for (int i = legal_values(f, value) - 1; i >= 0; i--) {
        ida_difference d;
        json_t *o = json_object(), *back = NULL;
        OK(ida_fields_set(t, a, f->key, value[i], NULL));
        OK(ida_fields_check_one(t, a, f->key));
        json_object_set_new(o, f->key, ida_field_to_json(f, a));
        char *text = ida_json_dump_exact(o);
        OK(ida_json_parse(text, strlen(text), "back", &back));
        OK(ida_field_from_json(f, back, "back", f->key, b));
        if (ida_fields_differ(t, a, b, 0, &d))
            fail_msg("%s: %s: %s became %s by way of %s", t->name, d.key, d.a, d.b, text);
        ida_free(text);
        json_decref(o);
        free(b);
        b = block_of(t);
        json_decref(back);
    }
    free(a);
    free(b);
}

static void every_value_comes_back_from_json_as_it_was_set(void **state) {
    (void)state;
    each_row(round_trip);
}

static void a_list_is_borrowed_and_written_in_order(void **state) {
    (void)state;
    const char *stops[] = {"one", "two\n"};
    ida_sample_options o;
    char *text;
    OK(ida_options_defaults("sample", &o, sizeof o));
    assert_true(o.n_stop == 0 && !o.stop);
    OK(ida_options_set_list("sample", &o, sizeof o, "stop", stops, 2));
    assert_true(o.n_stop == 2 && o.stop == stops);
    OK(ida_options_get("sample", &o, sizeof o, &text));
    assert_non_null(strstr(text, "\"one\",\n    \"two\\n\""));
    ida_string_free(text);
    assert_int_equal(ida_options_set("sample", &o, sizeof o, "stop", "x"), IDA_E_ARG);
    assert_int_equal(ida_options_set_list("sample", &o, sizeof o, "seed", stops, 2), IDA_E_ARG);
    assert_int_equal(ida_options_set_list("sample", &o, sizeof o, "stop", NULL, 1), IDA_E_ARG);
    assert_true(o.n_stop == 2);
}

/* ---- refusals */

static int bad_values(const ida_field *f, char out[8][40]) {
    int n = 0;
    if (f->type == IDA_FIELD_BOOL) snprintf(out[n++], 40, "yes");
    if (f->type == IDA_FIELD_SEED) snprintf(out[n++], 40, "-1");
    if (f->type == IDA_FIELD_SEED) snprintf(out[n++], 40, "18446744073709551616");
    if (f->names && f->type != IDA_FIELD_LIST) snprintf(out[n++], 40, "no such name");
    if (f->names && f->type != IDA_FIELD_LIST && f->lo > 0) snprintf(out[n++], 40, "%s", f->names[0]);
    if (f->type == IDA_FIELD_INT) {
        snprintf(out[n++], 40, "%lld", (long long)f->lo - 1);
        snprintf(out[n++], 40, "%lld", (long long)f->hi + 1);
        snprintf(out[n++], 40, "1.5");
    }
    if (f->type == IDA_FIELD_REAL) {
        snprintf(out[n++], 40, "%.17g", nextafter(f->lo, -INFINITY));
        if (!isinf(f->hi)) snprintf(out[n++], 40, "%.17g", nextafter(f->hi, INFINITY));
        snprintf(out[n++], 40, "inf");
        snprintf(out[n++], 40, "nan");
    }
    return n;
}

static void refused(const ida_fields *t, const ida_field *f) {
    char value[8][40];
    void *p = block_of(t), *was = block_of(t);
    for (int i = bad_values(f, value) - 1; i >= 0; i--) {
        if (ida_fields_set(t, p, f->key, value[i], NULL) != IDA_E_ARG)
            fail_msg("%s: %s=%s was taken", t->name, f->key, value[i]);
        if (!strstr(ida_last_error(), f->key) || !strstr(ida_last_error(), value[i]))
            fail_msg("no key or value in: %s", ida_last_error());
        if (f->names && !strstr(ida_last_error(), f->names[(int)f->lo])) fail_msg("no names in: %s", ida_last_error());
        assert_memory_equal(p, was, t->bytes);
        json_t *o = f->type == IDA_FIELD_INT || f->type == IDA_FIELD_REAL ? NULL : json_pack("{s:s}", f->key, value[i]);
        char text[120];
        snprintf(text, sizeof text, "{\"%s\": %s}", f->key, value[i]);
        if (!o) o = json_loads(text, 0, NULL); /* JSON has no nan */
        if (o && ida_field_from_json(f, o, "file.json", f->key, p) != IDA_E_FORMAT)
            fail_msg("%s: %s was taken from JSON", t->name, text);
        if (o && (!strstr(ida_last_error(), "file.json") || !strstr(ida_last_error(), f->key)))
            fail_msg("no place in: %s", ida_last_error());
        assert_memory_equal(p, was, t->bytes);
        json_decref(o);
    }
    free(p);
    free(was);
}

static void values_beyond_either_end_are_refused_by_key_and_change_nothing(void **state) {
    (void)state;
    each_row(refused);
}

/* The same in a struct that a caller filled. */
static void refused_in_struct(const ida_fields *t, const ida_field *f) {
    void *p = block_of(t);
    void *at = (char *)p + f->offset;
    const bool number = f->type == IDA_FIELD_INT || f->type == IDA_FIELD_REAL;
    for (int end = 0; end < 2 && (number || f->type == IDA_FIELD_ENUM); end++) {
        if (f->type == IDA_FIELD_INT) *(int64_t *)at = end ? (int64_t)f->hi + 1 : (int64_t)f->lo - 1;
        if (f->type == IDA_FIELD_REAL) *(double *)at = end ? nextafter(f->hi, INFINITY) : nextafter(f->lo, -INFINITY);
        if (f->type == IDA_FIELD_REAL && end && isinf(f->hi)) *(double *)at = INFINITY;
        if (f->type == IDA_FIELD_ENUM) *(int *)at = end ? ida_names_count(f->names) : (int)f->lo - 1;
        if (f->flags & IDA_FIELD_DERIVED && f->beside) *((bool *)p + f->beside) = true;
        if (f->flags & IDA_FIELD_OR_DEFAULT && *(int64_t *)at == 0) continue; /* stands for the default */
        if (ida_fields_check_one(t, p, f->key) != IDA_E_ARG)
            fail_msg("%s: %s is not checked at end %d", t->name, f->key, end);
        if (!strstr(ida_last_error(), f->key)) fail_msg("no key in: %s", ida_last_error());
    }
    free(p);
}

static void a_struct_with_a_value_out_of_range_is_refused(void **state) {
    (void)state;
    each_row(refused_in_struct);
}

/* ---- differences */

static void told_apart(const ida_fields *t, const ida_field *f) {
    char value[16][40];
    void *a = block_of(t), *b = block_of(t);
    ida_difference d;
    assert_false(ida_fields_differ(t, a, b, 0, &d));
    for (int i = legal_values(f, value) - 1; i >= 0; i--) {
        OK(ida_fields_set(t, b, f->key, value[i], NULL));
        if (!ida_fields_differ(t, a, b, 0, &d)) continue; /* it is the default */
        assert_string_equal(d.key, f->key);
        assert_string_not_equal(d.a, d.b);
        OK(ida_fields_set(t, a, f->key, value[i], NULL));
        assert_false(ida_fields_differ(t, a, b, 0, &d));
        free(a);
        a = block_of(t);
    }
    free(a);
    free(b);
}

static void a_difference_names_key_and_both_values(void **state) {
    (void)state;
    each_row(told_apart);
    ida_train_options a, b;
    ida_difference d;
    const ida_fields *t = NULL;
    for (int64_t i = 0; ida_group_at(i); i++)
        if (strcmp(ida_group_at(i)->name, "train") == 0) t = ida_group_at(i);
    assert_non_null(t);
    ida_train_defaults(&a);
    b = a;
    b.keep = 7; /* changes no result */
    assert_false(ida_fields_differ(t, &a, &b, IDA_FIELD_RESULT, &d));
    b.lr = 0.01;
    b.seed = UINT64_MAX;
    b.dtype = IDA_BF16;
    assert_true(ida_fields_differ(t, &a, &b, IDA_FIELD_RESULT, &d));
    assert_string_equal(d.key, "lr");
    assert_string_equal(d.a, "0.003");
    assert_string_equal(d.b, "0.01");
    assert_true(ida_fields_differ(t, &a, &b, IDA_FIELD_RESULT | IDA_FIELD_MAY_CHANGE, &d));
    assert_string_equal(d.b, "\"bf16\"");
    b.lr = a.lr;
    assert_true(ida_fields_differ(t, &a, &b, IDA_FIELD_RESULT, &d));
    assert_string_equal(d.b, "\"18446744073709551615\"");
}

/* ---- a table of its own */

typedef struct thing {
    int64_t later, count, token, maybe;
    double rate;
    const char *word;
    bool has_maybe;
} thing;
static const ida_field thing_rows[] = {
    IDA_ROW_INT(thing, "count", count, 4, 0, 9, .flags = IDA_FIELD_RESULT | IDA_FIELD_OR_DEFAULT, .help = "how many",
                .note = "0 = 4"),
    IDA_ROW_INT(thing, "later", later, 5, 0, 9, .flags = IDA_FIELD_RESULT | IDA_FIELD_LATER, .help = "since then"),
    IDA_ROW_INT(thing, "token", token, -1, -1, 9, .flags = IDA_FIELD_RESULT | IDA_FIELD_NULL, .help = "an id"),
    IDA_ROW_INT(thing, "may_be", maybe, 0, 0, 9, .flags = IDA_FIELD_DERIVED,
                .beside = IDA_MEMBER(thing, has_maybe, bool), .help = "perhaps"),
    IDA_ROW_REAL(thing, "rate", rate, 0.5, 0, INFINITY, .help = "of things"),
    IDA_ROW_TEXT(thing, "word", word, "so", "WORD", .flags = IDA_FIELD_OR_DEFAULT, .help = "a word"),
};
static const ida_fields things = IDA_FIELDS("thing", "the thing's ", thing, thing_rows);

static void numbers_are_read_as_c_writes_them_whatever_the_locale(void **state) {
    (void)state;
    static const struct { const char *key, *text; bool good;
    } row[] = {{"count", "7", true},     {"count", "+7", true},   {"count", "07", true},  {"count", "", false},
               {"count", " 7", false},   {"count", "7 ", false},  {"count", "7.", false}, {"count", "0x7", false},
               {"count", "1e0", false},  {"count", "--7", false}, {"rate", ".5", true},   {"rate", "5.", true},
               {"rate", "5e-1", true},   {"rate", "1E3", true},   {"rate", "0,5", false}, {"rate", "0x1p3", false},
               {"rate", "1e999", false}, {"rate", "1e", false},   {"rate", "", false},    {"rate", "inf", false}};
    setlocale(LC_ALL, "de_DE.UTF-8"); /* where it is there */
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        thing a;
        ida_fields_defaults(&things, &a);
        ida_status st = ida_fields_set(&things, &a, row[i].key, row[i].text, NULL);
        if ((st == IDA_OK) != row[i].good) fail_msg("%s=\"%s\": %s", row[i].key, row[i].text, ida_status_name(st));
    }
    setlocale(LC_ALL, "C");
}

static void zero_auto_and_null_mean_what_the_flags_say(void **state) {
    (void)state;
    thing a = {0};
    OK(ida_fields_check(&things, &a)); /* zero stands for the default */
    ida_fields_resolve(&things, &a);
    assert_true(a.count == 4 && strcmp(a.word, "so") == 0 && a.later == 0);
    OK(ida_fields_set(&things, &a, "may-be", "0", NULL)); /* '-' for '_'; 0 is a value here */
    assert_true(a.has_maybe && a.maybe == 0);
    OK(ida_fields_set(&things, &a, "may_be", "auto", NULL));
    assert_false(a.has_maybe);
    assert_int_equal(ida_fields_set(&things, &a, "count", "auto", NULL), IDA_E_ARG);
    assert_int_equal(ida_fields_set(&things, &a, "word", "", NULL), IDA_E_ARG);
    said("word: the value is empty; give WORD");
    assert_int_equal(ida_fields_set(&things, &a, "sword", "x", NULL), IDA_E_ARG);
    said("thing key \"sword\" is not known; known: count, later, token, may_be, rate, word");
    assert_int_equal(ida_fields_set(&things, &a, "count", "10", "COUNT is 10, which"), IDA_E_ARG);
    said("COUNT is 10, which is not a whole number from 0 to 9 (0 = 4)");
    a.count = -3;
    assert_int_equal(ida_fields_check(&things, &a), IDA_E_ARG);
    said("the thing's count is -3, must be 0..9 (0 = 4)");
    a.count = 1;
    a.rate = -1;
    assert_int_equal(ida_fields_check(&things, &a), IDA_E_ARG);
    said("the thing's rate is -1, must be at least 0");
}

static void json_is_strict_and_in_the_order_of_the_struct(void **state) {
    (void)state;
    thing a, b;
    json_t *o = NULL;
    ida_fields_defaults(&things, &a);
    OK(ida_fields_to_json(&things, &a, IDA_FIELD_RESULT, &o));
    char *text = ida_json_dump(o, JSON_COMPACT);
    assert_string_equal(text, "{\"later\":5,\"count\":4,\"token\":null}");
    ida_free(text);
    memset(&b, 0, sizeof b);
    OK(ida_fields_from_json(&things, o, "f", IDA_FIELD_RESULT, &b));
    assert_true(b.later == 5 && b.count == 4 && b.token == -1 && !b.word);
    json_object_del(o, "later"); /* written before there was one */
    b.later = 8;
    OK(ida_fields_from_json(&things, o, "f", IDA_FIELD_RESULT, &b));
    assert_int_equal(b.later, 5);
    json_object_set_new(o, "rate", json_real(1));
    assert_int_equal(ida_fields_from_json(&things, o, "f", IDA_FIELD_RESULT, &b), IDA_E_FORMAT);
    said("f: this build knows no thing option \"rate\"");
    json_object_del(o, "rate");
    json_object_del(o, "count");
    assert_int_equal(ida_fields_from_json(&things, o, "f", IDA_FIELD_RESULT, &b), IDA_E_FORMAT);
    said("f: key \"count\" is missing");
    assert_int_equal(ida_fields_from_json(&things, NULL, "f", IDA_FIELD_RESULT, &b), IDA_E_FORMAT);
    json_decref(o);
}

/* ---- the public calls */

static void the_description_has_every_row(void **state) {
    (void)state;
    char *text;
    json_t *all = NULL;
    size_t n_options = 0;
    OK(ida_options_json(NULL, &text));
    OK(ida_json_parse(text, strlen(text), "description", &all));
    ida_string_free(text);
    for (int64_t i = 0; ida_group_at(i); i++) {
        const ida_fields *t = ida_group_at(i);
        const json_t *g = json_array_get(all, (size_t)i), *list = json_object_get(g, "options");
        assert_string_equal(json_string_value(json_object_get(g, "group")), t->name);
        assert_int_equal(json_integer_value(json_object_get(g, "bytes")), t->bytes);
        assert_int_equal(json_array_size(list), t->n);
        for (int64_t k = 0; k < t->n; k++) {
            const json_t *o = json_array_get(list, (size_t)k);
            assert_string_equal(json_string_value(json_object_get(o, "key")), t->rows[k].key);
            const char *help = json_string_value(json_object_get(o, "help"));
            assert_true(help && *help && !strchr(help, '{'));
            n_options++;
        }
    }
    assert_true(n_options > 100);
    json_decref(all);
}

static void options_are_set_by_key_without_the_struct(void **state) {
    (void)state;
    char *text;
    json_t *g = NULL, *o = NULL;
    OK(ida_options_json("train", &text));
    OK(ida_json_parse(text, strlen(text), "train", &g));
    ida_string_free(text);
    size_t bytes = (size_t)json_integer_value(json_object_get(g, "bytes"));
    void *t = malloc(bytes);
    assert_non_null(t);
    OK(ida_options_defaults("train", t, bytes));
    OK(ida_options_set("train", t, bytes, "micro-batch", "2"));
    OK(ida_options_set("train", t, bytes, "device", "cuda"));
    OK(ida_options_set("train", t, bytes, "dtype", "bf16"));
    assert_int_equal(ida_options_set("train", t, bytes, "dtype", "f64"), IDA_E_ARG); /* a name, but not for training */
    OK(ida_options_get("train", t, bytes, &text));
    OK(ida_json_parse(text, strlen(text), "values", &o));
    ida_string_free(text);
    assert_int_equal(json_integer_value(json_object_get(o, "micro_batch")), 2);
    assert_string_equal(json_string_value(json_object_get(o, "dtype")), "bf16");
    assert_true(json_real_value(json_object_get(o, "lr")) == 3e-3);
    assert_true(json_is_null(json_object_get(o, "data")));
    assert_int_equal(ida_options_set("train", t, bytes - 8, "steps", "2"), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "not of one version"));
    assert_int_equal(ida_options_set("trian", t, bytes, "steps", "2"), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "bench.decode"));
    ida_config c;
    OK(ida_config_preset("tiny", IDA_MIXER_SOFTMAX, &c));
    OK(ida_options_set("config", &c, sizeof c, "mixer.kind", "s4d")); /* keys that are no member */
    assert_int_equal(c.layer_mixer[1], IDA_MIXER_S4D);
    free(t);
    json_decref(o);
    json_decref(g);
}

static void a_shape_is_what_was_asked_for(void **state) {
    (void)state;
    const char *set[] = {"hidden_size=128", "mixer.gate=true"}, *twice[] = {"hidden_size=128", "hidden_size=64"},
               *bad[] = {"=1"};
    ida_config c, tiny;
    OK(ida_config_preset("tiny", IDA_MIXER_INTERDOMAIN, &tiny));
    OK(ida_config_make(&(ida_shape_options){.preset = "tiny"}, &c));
    assert_memory_equal(&c, &tiny, sizeof c);
    const ida_shape_options all = {
        .preset = "tiny", .has_mixer = true, .mixer = IDA_MIXER_SOFTMAX, .set = set, .n_set = 2};
    OK(ida_config_make(&all, &c));
    assert_true(c.d_model == 128 && c.gate && c.layer_mixer[0] == IDA_MIXER_SOFTMAX);
    tiny = c;
    static const struct { ida_shape_options o; const char *says; } row[] = {
        {{0}, "no model shape"}, {{.preset = "tiny", .config = "x"}, "exclude"}, {{.preset = "huge"}, "125m"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        assert_int_equal(ida_config_make(&row[i].o, &c), IDA_E_ARG);
        assert_non_null(strstr(ida_last_error(), row[i].says));
    }
    assert_int_equal(ida_config_make(&(ida_shape_options){.preset = "tiny", .set = twice, .n_set = 2}, &c), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "hidden_size is given twice"));
    assert_int_equal(ida_config_make(&(ida_shape_options){.preset = "tiny", .set = bad, .n_set = 1}, &c), IDA_E_ARG);
    assert_memory_equal(&c, &tiny, sizeof c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_whole_and_its_default_legal),
        cmocka_unit_test(every_value_comes_back_from_json_as_it_was_set),
        cmocka_unit_test(a_list_is_borrowed_and_written_in_order),
        cmocka_unit_test(values_beyond_either_end_are_refused_by_key_and_change_nothing),
        cmocka_unit_test(a_struct_with_a_value_out_of_range_is_refused),
        cmocka_unit_test(a_difference_names_key_and_both_values),
        cmocka_unit_test(numbers_are_read_as_c_writes_them_whatever_the_locale),
        cmocka_unit_test(zero_auto_and_null_mean_what_the_flags_say),
        cmocka_unit_test(json_is_strict_and_in_the_order_of_the_struct),
        cmocka_unit_test(the_description_has_every_row),
        cmocka_unit_test(options_are_set_by_key_without_the_struct),
        cmocka_unit_test(a_shape_is_what_was_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
