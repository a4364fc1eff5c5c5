/* fields.c - see fields.h. Not here: the description (fields_describe.c), any table. */
#include "core/fields.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"

static const double OPEN_END = 1099511627776.0; /* 2^40: from here on the upper end is told only to who is above it */

static void *at(const ida_field *f, void *base) { return (char *)base + f->offset; }
static const void *at_const(const ida_field *f, const void *base) { return (const char *)base + f->offset; }
static int64_t *count_of(const ida_field *f, void *base) { return (int64_t *)(void *)((char *)base + f->beside); }

/* ---- names */

int ida_names_count(const char *const *names) {
    int n = 0;
    while (names[n]) n++;
    return n;
}

int ida_names_find(const char *const *names, const char *word) {
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], word) == 0) return i;
    return -1;
}

void ida_names_join(const char *const *names, int first, const char *more, char *out, size_t size) {
    size_t len = 0;
    *out = 0;
    for (int i = first, end = 0; !end && len < size; i++) {
        const char *name = names[i] ? names[i] : more;
        end = !name || name == more || (!names[i + 1] && !more);
        int n = name ? snprintf(out + len, size - len, "%s%s", i == first ? "" : end ? " or " : ", ", name) : 0;
        if (n > 0) len += (size_t)n;
    }
}

/* ---- one row's value */

/* A row that was not given, where that can be seen. */
static bool absent(const ida_field *f, const void *base) {
    if (!(f->flags & IDA_FIELD_DERIVED)) return false;
    if (f->beside) return !*((const bool *)base + f->beside);
    switch (f->type) {
    case IDA_FIELD_INT: return *(const int64_t *)at_const(f, base) == 0;
    case IDA_FIELD_REAL: return *(const double *)at_const(f, base) == 0;
    case IDA_FIELD_BOOL: return !*(const bool *)at_const(f, base);
    case IDA_FIELD_ENUM: return *(const int *)at_const(f, base) == 0;
    case IDA_FIELD_SEED: return *(const uint64_t *)at_const(f, base) == 0;
    case IDA_FIELD_TEXT:
    case IDA_FIELD_LIST: break;
    }
    return !*(const char *const *)at_const(f, base);
}

static void put(const ida_field *f, double number, const char *text, void *base) {
    void *p = at(f, base);
    switch (f->type) {
    case IDA_FIELD_INT: *(int64_t *)p = (int64_t)number; break;
    case IDA_FIELD_REAL: *(double *)p = number; break;
    case IDA_FIELD_BOOL: *(bool *)p = number != 0; break;
    case IDA_FIELD_ENUM: *(int *)p = (int)number; break;
    case IDA_FIELD_SEED: *(uint64_t *)p = (uint64_t)number; break;
    case IDA_FIELD_TEXT: *(const char **)p = text; break;
    case IDA_FIELD_LIST:
        *(const char *const **)p = NULL;
        *count_of(f, base) = 0;
        break;
    }
}

static void set_given(const ida_field *f, bool given, void *base) {
    if (f->flags & IDA_FIELD_DERIVED && f->beside) *((bool *)base + f->beside) = given;
}

static void reset(const ida_field *f, void *base) {
    bool none = f->flags & (IDA_FIELD_DERIVED | IDA_FIELD_OWNER);
    if (f->flags & IDA_FIELD_OWNER) return;
    put(f, none ? 0 : f->def, none ? NULL : f->text, base);
    set_given(f, false, base);
}

/* ---- ranges in words */

/* Not in double, where 2^53 + 1 is 2^53. */
static bool in_range(const ida_field *f, int64_t i) { return i >= (int64_t)f->lo && i <= (int64_t)f->hi; }

static bool open_end(const ida_field *f, double x) { return isinf(f->hi) || (f->hi >= OPEN_END && !(x >= f->hi)); }

/* "1..8" or "at least 1"; in prose "from 1 to 8" or "of at least 1". x: the value that is refused, NAN = none. */
static void say_range(const ida_field *f, double x, bool prose, char out[80]) {
    const char *lead = prose ? "of " : "";
    if (open_end(f, x)) snprintf(out, 80, "%sat least %.16g", lead, f->lo);
    else snprintf(out, 80, prose ? "from %.16g to %.16g" : "%.16g..%.16g", f->lo, f->hi);
}

static void say_note(const ida_field *f, char out[96]) {
    if (f->note) snprintf(out, 96, " (%s)", f->note);
    else *out = 0;
}

/* ---- set from text */

/* As C writes numbers in its own locale, whatever the program's; no hex, no infinity, nothing before or after. */
static bool parse_real(const char *s, double *out) {
    char *end = NULL;
    if (!*s || s[strspn(s, "+-.0123456789eE")]) return false;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) return false;
    *out = strtod_l(s, &end, c);
    freelocale(c);
    return end != s && !*end && isfinite(*out);
}

static bool parse_int(const char *s, int64_t *out) {
    char *end = NULL;
    if (!*s || s[strspn(s, "+-0123456789")]) return false;
    errno = 0;
    *out = strtoll(s, &end, 10);
    return end != s && !*end && !errno;
}

static bool parse_seed(const char *s, uint64_t *out) {
    char *end = NULL;
    if (!*s || s[strspn(s, "0123456789")]) return false;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (*end || errno) return false;
    *out = v;
    return true;
}

static ida_status refuse_number(const ida_field *f, const char *subject, double x) {
    char range[80], note[96];
    say_range(f, x, true, range);
    say_note(f, note);
    IDA_FAIL(IDA_E_ARG, "%s is not a %snumber %s%s", subject, f->type == IDA_FIELD_INT ? "whole " : "", range, note);
}

static ida_status refuse_name(const ida_field *f, const char *subject) {
    char list[256];
    ida_names_join(f->names, (int)f->lo, f->flags & IDA_FIELD_DERIVED ? "auto" : NULL, list, sizeof list);
    IDA_FAIL(IDA_E_ARG, "%s is not one of %s", subject, list);
}

static ida_status set_int(const ida_field *f, int64_t *p, const char *value, const char *subject) {
    int64_t i;
    double x;
    if (!parse_int(value, &i))
        return refuse_number(f, subject, parse_real(value, &x) ? x : NAN); /* perhaps beyond 64 bits */
    if (!in_range(f, i)) return refuse_number(f, subject, (double)i);
    *p = i;
    return IDA_OK;
}

static ida_status set_real(const ida_field *f, double *p, const char *value, const char *subject) {
    double x;
    if (!parse_real(value, &x)) return refuse_number(f, subject, NAN);
    if (!(x >= f->lo && x <= f->hi)) return refuse_number(f, subject, x);
    *p = x;
    return IDA_OK;
}

static ida_status set_bool(bool *p, const char *value, const char *subject) {
    bool yes = strcmp(value, "true") == 0 || strcmp(value, "1") == 0,
         no = strcmp(value, "false") == 0 || strcmp(value, "0") == 0;
    IDA_FAIL_IF(!yes && !no, IDA_E_ARG, "%s is neither true nor false", subject);
    *p = yes;
    return IDA_OK;
}

static ida_status set_seed(uint64_t *p, const char *value, const char *subject) {
    const unsigned long long most = UINT64_MAX;
    IDA_FAIL_IF(!parse_seed(value, p), IDA_E_ARG, "%s is not a whole number from 0 to %llu", subject, most);
    return IDA_OK;
}

static ida_status set_value(const ida_field *f, void *base, const char *value, const char *subject) {
    void *p = at(f, base);
    int k = f->names ? ida_names_find(f->names, value) : 0;
    if (k < (int)f->lo && f->names) return refuse_name(f, subject);
    switch (f->type) {
    case IDA_FIELD_INT: return set_int(f, p, value, subject);
    case IDA_FIELD_REAL: return set_real(f, p, value, subject);
    case IDA_FIELD_BOOL: return set_bool(p, value, subject);
    case IDA_FIELD_ENUM: *(int *)p = k; return IDA_OK;
    case IDA_FIELD_TEXT: *(const char **)p = value; return IDA_OK;
    case IDA_FIELD_SEED: return set_seed(p, value, subject);
    case IDA_FIELD_LIST: break;
    }
    IDA_FAIL(IDA_E_ARG, "%s: the option is a list of texts", subject);
}

/* ---- the table */

static bool same_key(const char *key, const char *word) {
    for (; *key && (*key == *word || (*key == '_' && *word == '-')); key++) word++;
    return !*key && !*word;
}

const ida_field *ida_fields_find(const ida_fields *t, const char *key) {
    for (int64_t i = 0; i < t->n; i++)
        if (same_key(t->rows[i].key, key)) return &t->rows[i];
    return NULL;
}

void ida_fields_defaults(const ida_fields *t, void *base) {
    memset(base, 0, t->bytes);
    for (int64_t i = 0; i < t->n; i++) reset(&t->rows[i], base);
}

void ida_fields_reset(const ida_fields *t, void *base, const char *key) {
    const ida_field *f = ida_fields_find(t, key);
    if (f) reset(f, base);
}

static bool is_zero(const ida_field *f, const void *base) {
    if (f->type == IDA_FIELD_INT) return *(const int64_t *)at_const(f, base) == 0;
    return f->type == IDA_FIELD_TEXT && !*(const char *const *)at_const(f, base);
}

void ida_fields_resolve(const ida_fields *t, void *base) {
    for (int64_t i = 0; i < t->n; i++)
        if (t->rows[i].flags & IDA_FIELD_OR_DEFAULT && is_zero(&t->rows[i], base)) reset(&t->rows[i], base);
}

static ida_status unknown_key(const ida_fields *t, const char *key) {
    ida_buf list = {0};
    ida_status st = IDA_OK;
    for (int64_t i = 0; i < t->n && !st; i++) st = ida_buf_addf(&list, "%s%s", i ? ", " : "", t->rows[i].key);
    if (!st)
        st = ida_fail(IDA_E_ARG, __FILE__, __LINE__, "%s key \"%.60s\" is not known; known: %s", t->name, key,
                      list.data);
    ida_buf_free(&list);
    return st;
}

ida_status ida_fields_set(const ida_fields *t, void *base, const char *key, const char *value, const char *subject) {
    const ida_field *f = ida_fields_find(t, key);
    char own[200];
    if (!f) return unknown_key(t, key);
    IDA_FAIL_IF(f->flags & IDA_FIELD_OWNER, IDA_E_ARG, "%s cannot be set here", key);
    IDA_FAIL_IF(f->type == IDA_FIELD_TEXT && !*value, IDA_E_ARG, "%s: the value is empty; give %s", key, f->arg);
    snprintf(own, sizeof own, "%.60s: \"%.80s\"", key, value);
    bool none = f->flags & IDA_FIELD_DERIVED && strcmp(value, "auto") == 0;
    if (none) reset(f, base);
    else IDA_TRY(set_value(f, base, value, subject ? subject : own));
    set_given(f, !none, base);
    return IDA_OK;
}

ida_status ida_fields_set_list(const ida_fields *t, void *base, const char *key, const char *const *values, int64_t n) {
    const ida_field *f = ida_fields_find(t, key);
    if (!f) return unknown_key(t, key);
    IDA_FAIL_IF(f->type != IDA_FIELD_LIST || f->flags & IDA_FIELD_OWNER, IDA_E_ARG, "%s is not a list of texts", key);
    IDA_FAIL_IF(n < 0 || (n > 0 && !values), IDA_E_ARG, "%s: %lld texts without an array", key, (long long)n);
    *(const char *const **)at(f, base) = values;
    *count_of(f, base) = n;
    return IDA_OK;
}

/* ---- check */

static ida_status check_row(const ida_fields *t, const ida_field *f, const void *base) {
    const void *p = at_const(f, base);
    char range[80], note[96];
    if (f->flags & IDA_FIELD_OWNER || (f->flags & IDA_FIELD_OR_DEFAULT && is_zero(f, base))) return IDA_OK;
    say_note(f, note);
    if (f->type == IDA_FIELD_INT) {
        int64_t v = *(const int64_t *)p;
        say_range(f, (double)v, false, range);
        IDA_FAIL_IF(!in_range(f, v), IDA_E_ARG, "%s%s is %lld, must be %s%s", t->what, f->key, (long long)v, range,
                    note);
    } else if (f->type == IDA_FIELD_REAL) {
        double v = *(const double *)p;
        say_range(f, v, false, range);
        IDA_FAIL_IF(!(v >= f->lo && v <= f->hi) || isinf(v), IDA_E_ARG, "%s%s is %.10g, must be %s%s", t->what, f->key,
                    v, range, note);
    } else if (f->type == IDA_FIELD_ENUM) {
        int v = *(const int *)p, n = ida_names_count(f->names);
        IDA_FAIL_IF(v < (int)f->lo || v >= n, IDA_E_ARG, "%s%s is %d, not one of its %d values", t->what, f->key, v,
                    n - (int)f->lo);
    } else if (f->type == IDA_FIELD_TEXT && f->names) {
        const char *s = *(const char *const *)p;
        char subject[160];
        snprintf(subject, sizeof subject, "%s%s: \"%.60s\"", t->what, f->key, s ? s : "");
        if (s && ida_names_find(f->names, s) < 0) return refuse_name(f, subject);
    }
    return IDA_OK;
}

ida_status ida_fields_check(const ida_fields *t, const void *base) {
    for (int64_t i = 0; i < t->n; i++)
        if (!absent(&t->rows[i], base)) IDA_TRY(check_row(t, &t->rows[i], base));
    return IDA_OK;
}

ida_status ida_fields_check_one(const ida_fields *t, const void *base, const char *key) {
    const ida_field *f = ida_fields_find(t, key);
    return f ? check_row(t, f, base) : unknown_key(t, key);
}

/* ---- JSON */

static ida_status name_from_json(const ida_field *f, const json_t *o, const char *where, const char *key,
                                 const char **name, int *number) {
    IDA_TRY(ida_json_str(o, where, key, NULL, name));
    *number = f->names ? ida_names_find(f->names, *name) : 0;
    if (*number >= (int)f->lo) return IDA_OK;
    char list[256];
    ida_names_join(f->names, (int)f->lo, NULL, list, sizeof list);
    IDA_FAIL(IDA_E_FORMAT, "%s: %s is \"%.60s\", must be one of: %s", where, key, *name, list);
}

static ida_status seed_from_json(const json_t *o, const char *where, const char *key, uint64_t *seed) {
    const char *s;
    IDA_TRY(ida_json_str(o, where, key, NULL, &s));
    IDA_FAIL_IF(!parse_seed(s, seed), IDA_E_FORMAT, "%s: \"%s\" is \"%.60s\", must be a whole number as text", where,
                key, s);
    return IDA_OK;
}

ida_status ida_field_from_json(const ida_field *f, const json_t *o, const char *where, const char *key, void *base) {
    const json_t *v = json_object_get(o, key);
    const char *name = NULL;
    int number = 0;
    void *p = at(f, base);
    if (f->flags & IDA_FIELD_NULL && json_is_null(v)) {
        *(int64_t *)p = -1;
        return IDA_OK;
    }
    if (json_is_object(o) && (!v || json_is_null(v)) && !(f->flags & IDA_FIELD_REQUIRED)) return IDA_OK;
    switch (f->type) {
    case IDA_FIELD_INT: IDA_TRY(ida_json_i64(o, where, key, (int64_t)f->lo, (int64_t)f->hi, NULL, p)); break;
    case IDA_FIELD_REAL: IDA_TRY(ida_json_f64(o, where, key, f->lo, f->hi, NULL, p)); break;
    case IDA_FIELD_BOOL: IDA_TRY(ida_json_bool(o, where, key, NULL, p)); break;
    case IDA_FIELD_SEED: IDA_TRY(seed_from_json(o, where, key, p)); break;
    case IDA_FIELD_ENUM:
        IDA_TRY(name_from_json(f, o, where, key, &name, &number));
        *(int *)p = number;
        break;
    case IDA_FIELD_TEXT:
        IDA_TRY(name_from_json(f, o, where, key, &name, &number));
        *(const char **)p = name;
        break;
    case IDA_FIELD_LIST: IDA_FAIL(IDA_E_UNSUPPORTED, "%s: \"%s\": a list of texts is not read from JSON", where, key);
    }
    set_given(f, true, base);
    return IDA_OK;
}

static json_t *list_to_json(const ida_field *f, const void *base) {
    const char *const *list = *(const char *const *const *)at_const(f, base);
    int64_t n = *(const int64_t *)(const void *)((const char *)base + f->beside);
    json_t *a = json_array();
    bool bad = !a;
    for (int64_t i = 0; i < n && !bad; i++) bad = json_array_append_new(a, ida_json_string(list[i]));
    if (!bad) return a;
    json_decref(a);
    return NULL;
}

json_t *ida_field_to_json(const ida_field *f, const void *base) {
    const void *p = at_const(f, base);
    char digits[24];
    if (absent(f, base)) return json_null();
    switch (f->type) {
    case IDA_FIELD_INT: {
        int64_t i = *(const int64_t *)p;
        return f->flags & IDA_FIELD_NULL && i < 0 ? json_null() : json_integer(i);
    }
    case IDA_FIELD_REAL: return json_real(*(const double *)p);
    case IDA_FIELD_BOOL: return json_boolean(*(const bool *)p);
    case IDA_FIELD_ENUM: return json_string(f->names[*(const int *)p]);
    case IDA_FIELD_SEED:
        snprintf(digits, sizeof digits, "%llu", (unsigned long long)*(const uint64_t *)p);
        return json_string(digits);
    case IDA_FIELD_TEXT: return ida_json_string(*(const char *const *)p);
    case IDA_FIELD_LIST: break;
    }
    return list_to_json(f, base);
}

static bool wanted(const ida_field *f, unsigned flags) {
    return (f->flags & flags) == flags && !(f->flags & IDA_FIELD_OWNER);
}

ida_status ida_fields_from_json(const ida_fields *t, const json_t *o, const char *where, unsigned flags, void *base) {
    const char *key;
    json_t *v;
    IDA_FAIL_IF(!json_is_object(o), IDA_E_FORMAT, "%s: an object of options is needed", where);
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        const ida_field *f = ida_fields_find(t, key);
        IDA_FAIL_IF(!f || !wanted(f, flags), IDA_E_FORMAT, "%s: this build knows no %s option \"%.60s\"", where,
                    t->name, key);
    }
    for (int64_t i = 0; i < t->n; i++) {
        const ida_field *f = &t->rows[i];
        if (!wanted(f, flags)) continue;
        v = json_object_get(o, f->key);
        bool later = !v && f->flags & IDA_FIELD_LATER;
        IDA_FAIL_IF(!v && !later, IDA_E_FORMAT, "%s: key \"%s\" is missing", where, f->key);
        if (later) put(f, f->def, f->text, base);
        else IDA_TRY(ida_field_from_json(f, o, where, f->key, base));
    }
    return IDA_OK;
}

/* The wanted row whose member follows `last` in the struct. */
static const ida_field *next_member(const ida_fields *t, unsigned flags, const ida_field *last) {
    const ida_field *next = NULL;
    for (int64_t i = 0; i < t->n; i++) {
        const ida_field *f = &t->rows[i];
        if (wanted(f, flags) && (!last || f->offset > last->offset) && (!next || f->offset < next->offset)) next = f;
    }
    return next;
}

ida_status ida_fields_to_json(const ida_fields *t, const void *base, unsigned flags, json_t **out) {
    json_t *o = json_object();
    bool bad = !o;
    for (const ida_field *f = next_member(t, flags, NULL); f && !bad; f = next_member(t, flags, f))
        bad = json_object_set_new(o, f->key, ida_field_to_json(f, base));
    if (bad) json_decref(o);
    IDA_FAIL_IF(bad, IDA_E_NOMEM, "no memory for the options as JSON");
    *out = o;
    return IDA_OK;
}

/* ---- difference */

static bool equal(const ida_field *f, const void *a, const void *b) {
    const void *p = at_const(f, a), *q = at_const(f, b);
    if (absent(f, a) || absent(f, b)) return absent(f, a) == absent(f, b);
    switch (f->type) {
    case IDA_FIELD_INT: return *(const int64_t *)p == *(const int64_t *)q;
    case IDA_FIELD_REAL: return *(const double *)p == *(const double *)q;
    case IDA_FIELD_BOOL: return *(const bool *)p == *(const bool *)q;
    case IDA_FIELD_ENUM: return *(const int *)p == *(const int *)q;
    case IDA_FIELD_SEED: return *(const uint64_t *)p == *(const uint64_t *)q;
    case IDA_FIELD_TEXT: {
        const char *s = *(const char *const *)p, *r = *(const char *const *)q;
        return s == r || (s && r && strcmp(s, r) == 0);
    }
    case IDA_FIELD_LIST: break;
    }
    return true;
}

static void show(const ida_field *f, const void *base, char out[96]) {
    json_t *v = ida_field_to_json(f, base);
    char *s = v ? ida_json_dump(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    snprintf(out, 96, "%s", s ? s : "?");
    ida_free(s);
    json_decref(v);
}

bool ida_fields_differ(const ida_fields *t, const void *a, const void *b, unsigned flags, ida_difference *d) {
    for (int64_t i = 0; i < t->n; i++) {
        const ida_field *f = &t->rows[i];
        if (!wanted(f, flags) || equal(f, a, b)) continue;
        snprintf(d->key, sizeof d->key, "%s", f->key);
        show(f, a, d->a);
        show(f, b, d->b);
        return true;
    }
    return false;
}
