/* fields_describe.c - a table as JSON, for whoever makes something of options that are not written in its own source:
 * the program's help and man page, a binding's keyword arguments, a form. The keys are told in
 * include/idattn/options.h. */
#include "core/fields.h"

#include <math.h>
#include <string.h>

#include "core/json.h"

static const char *type_name(const ida_field *f) {
    static const char *const names[] = {[IDA_FIELD_INT] = "int",   [IDA_FIELD_REAL] = "real", [IDA_FIELD_BOOL] = "bool",
                                        [IDA_FIELD_ENUM] = "enum", [IDA_FIELD_SEED] = "seed", [IDA_FIELD_TEXT] = "text",
                                        [IDA_FIELD_LIST] = "list"};
    return names[f->type];
}

/* What stands in for a value: the table's word, the names, N for a whole number, X for a real. */
static ida_status say_arg(const ida_field *f, ida_buf *out) {
    if (f->arg) return ida_buf_addf(out, "%s", f->arg);
    if (!f->names) return ida_buf_addf(out, f->type == IDA_FIELD_REAL ? "X" : "N");
    for (int i = (int)f->lo; f->names[i]; i++)
        IDA_TRY(ida_buf_addf(out, "%s%s", i == (int)f->lo ? "" : "|", f->names[i]));
    return IDA_OK;
}

static ida_status say_help(const ida_field *f, ida_buf *out) {
    char list[256] = "";
    if (f->names) ida_names_join(f->names, (int)f->lo, NULL, list, sizeof list);
    for (const char *p = f->help ? f->help : ""; *p;) {
        size_t plain = strcspn(p, "{"), word = strcspn(p + plain, "}");
        IDA_TRY(ida_buf_add(out, p, plain));
        p += plain;
        if (!*p) break;
        bool names = strncmp(p, "{names}", word + 1) == 0;
        IDA_TRY(ida_buf_addf(out, "%s", names ? list : f->names[(int)f->def]));
        p += word + 1;
    }
    if (f->note) IDA_TRY(ida_buf_addf(out, "%s%s", f->help ? "; " : "", f->note));
    return ida_buf_add(out, "", 0);
}

static json_t *text_of(const ida_field *f, ida_status say(const ida_field *, ida_buf *)) {
    ida_buf b = {0};
    json_t *j = say(f, &b) == IDA_OK ? json_string(b.data) : NULL;
    ida_buf_free(&b);
    return j;
}

static json_t *number(const ida_field *f, double x) {
    return f->type == IDA_FIELD_REAL ? json_real(x) : json_integer((json_int_t)x);
}

static bool add_range(const ida_field *f, json_t *o) {
    bool bad = false, number_type = f->type == IDA_FIELD_INT || f->type == IDA_FIELD_REAL;
    if (number_type) bad = json_object_set_new(o, "min", number(f, f->lo));
    if (number_type && !isinf(f->hi)) bad = json_object_set_new(o, "max", number(f, f->hi)) || bad;
    if (!f->names) return bad;
    json_t *list = json_array();
    for (int i = (int)f->lo; f->names[i]; i++) bad = json_array_append_new(list, json_string(f->names[i])) || bad;
    return json_object_set_new(o, "names", list) || bad;
}

static json_t *describe_row(const ida_field *f, const void *defaults) {
    static const struct { unsigned flag; const char *key; } flags[] = {
        {IDA_FIELD_REQUIRED, "required"}, {IDA_FIELD_RESULT, "result"},     {IDA_FIELD_MAY_CHANGE, "may_change"},
        {IDA_FIELD_DERIVED, "derived"},   {IDA_FIELD_ARGUMENT, "argument"}};
    json_t *o = json_object();
    bool bad = !o,
         plain = !(f->flags & (IDA_FIELD_REQUIRED | IDA_FIELD_DERIVED | IDA_FIELD_OWNER)) && f->type != IDA_FIELD_LIST;
    if (!bad) bad = json_object_set_new(o, "key", json_string(f->key));
    if (!bad) bad = json_object_set_new(o, "type", json_string(type_name(f)));
    if (!bad && plain)
        bad = json_object_set_new(o, "default",
                                  f->flags & IDA_FIELD_NULL ? number(f, f->def) : ida_field_to_json(f, defaults));
    if (!bad) bad = add_range(f, o);
    for (int i = 0; i < 5 && !bad; i++)
        if (f->flags & flags[i].flag) bad = json_object_set_new(o, flags[i].key, json_true());
    if (!bad && f->letter) bad = json_object_set_new(o, "letter", json_stringn(&f->letter, 1));
    if (!bad && f->type != IDA_FIELD_BOOL) bad = json_object_set_new(o, "arg", text_of(f, say_arg));
    if (!bad) bad = json_object_set_new(o, "help", text_of(f, say_help));
    if (!bad) return o;
    json_decref(o);
    return NULL;
}

ida_status ida_fields_describe(const ida_fields *t, json_t **out) {
    void *defaults = NULL;
    json_t *list = json_array(), *o = NULL;
    ida_status st;
    IDA_TRY_GOTO(ida_calloc(&defaults, 1, t->bytes, "defaults"));
    ida_fields_defaults(t, defaults);
    bool bad = !list;
    for (int64_t i = 0; i < t->n && !bad; i++) bad = json_array_append_new(list, describe_row(&t->rows[i], defaults));
    o = bad ? NULL : json_pack("{s:s, s:I, s:O}", "group", t->name, "bytes", (json_int_t)t->bytes, "options", list);
    if (!o) IDA_FAIL_GOTO(IDA_E_NOMEM, "no memory for the description of the options");
    *out = o;
out:
    json_decref(list);
    ida_free(defaults);
    return st;
}
