/* json.c - checked JSON access on top of jansson, which already refuses bad UTF-8, lone surrogates, NaN and trailing data. */
#include "core/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/mem.h"

ida_status ida_json_parse(const char *text, size_t n, const char *where, json_t **out) {
    json_error_t e;
    bool nul = n > 0 && memchr(text, 0, n); /* jansson skips it */
    IDA_FAIL_IF(nul, IDA_E_FORMAT, "%s: not valid JSON: it holds a NUL byte", where);
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    IDA_FAIL_IF(!j && json_error_code(&e) == json_error_out_of_memory, IDA_E_NOMEM,
                "%s: out of memory while reading JSON of %zu bytes",
                where, n);
    IDA_FAIL_IF(!j, IDA_E_FORMAT, "%s: not valid JSON at line %d, column %d: %s", where, e.line, e.column, e.text);
    *out = j;
    return IDA_OK;
}

ida_status ida_json_load(const char *path, int64_t max_bytes, json_t **out) {
    char *text = NULL;
    int64_t n = 0;
    IDA_TRY(ida_read_file(path, max_bytes, &text, &n));
    ida_status st = ida_json_parse(text, (size_t)n, path, out);
    ida_free(text);
    return st;
}

ida_status ida_json_save(const json_t *j, const char *path, int indent) {
    size_t flags = JSON_REAL_PRECISION(17) | (indent > 0 ? JSON_INDENT((size_t)indent) : JSON_COMPACT);
    char *text = ida_json_dump(j, flags);
    IDA_FAIL_IF(!text, IDA_E_NOMEM, "%s: out of memory while making JSON text", path);
    ida_buf b = {0};
    ida_status st = ida_buf_add(&b, text, strlen(text));
    ida_free(text);
    if (st == IDA_OK) st = ida_buf_add(&b, "\n", 1);
    if (st == IDA_OK) st = ida_write_file(path, b.data, (size_t)b.len);
    ida_buf_free(&b);
    return st;
}

char *ida_json_dump(const json_t *j, size_t flags) { return ida_adopt(json_dumps(j, flags)); }

/* 15 digits read well (1e-05, not 1.0000000000000001e-05) and are exact for what people type; else 17. */
static int digits_needed(const json_t *j) {
    int most = 15;
    size_t i;
    const char *key;
    json_t *v;
    if (json_is_real(j)) {
        char s[40];
        snprintf(s, sizeof s, "%.15g", json_real_value(j));
        if (strtod(s, NULL) != json_real_value(j)) most = 17;
    }
    json_array_foreach(j, i, v) if (digits_needed(v) > most) most = 17;
    json_object_foreach((json_t *)(uintptr_t)j, key, v) if (digits_needed(v) > most) most = 17;
    return most;
}

char *ida_json_dump_exact(const json_t *j) {
    return ida_json_dump(j, JSON_INDENT(2) | JSON_REAL_PRECISION((size_t)digits_needed(j)));
}

static const char *type_name(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: break;
    }
    return "null";
}

json_t *ida_json_text(const char *s, size_t n) {
    json_t *whole = json_stringn(s, n);
    if (whole) return whole;
    ida_buf b = {0};
    ida_status st = ida_buf_add(&b, "", 0);
    for (size_t at = 0; at < n && !st;) {
        json_t *one = NULL;
        size_t take = 0;
        while (!one && take < 4 && at + take < n) one = json_stringn(s + at, ++take);
        st = one ? ida_buf_add(&b, s + at, take) : ida_buf_add(&b, "\xEF\xBF\xBD", 3);
        at += one ? take : 1;
        json_decref(one);
    }
    whole = st ? NULL : json_stringn(b.data, (size_t)b.len);
    ida_buf_free(&b);
    return whole;
}

json_t *ida_json_string(const char *s) { return s ? ida_json_text(s, strlen(s)) : json_null(); }

/* *v = NULL means: absent, take the default. */
static ida_status lookup(const json_t *o, const char *where, const char *key, bool has_default, const json_t **v) {
    IDA_FAIL_IF(!json_is_object(o), IDA_E_FORMAT, "%s: an object that holds \"%s\" is needed, found %s", where, key,
                o ? type_name(o) : "nothing");
    const json_t *x = json_object_get(o, key);
    if (x && json_is_null(x)) x = NULL;
    IDA_FAIL_IF(!x && !has_default, IDA_E_FORMAT, "%s: key \"%s\" is missing", where, key);
    *v = x;
    return IDA_OK;
}

ida_status ida_json_i64(const json_t *o, const char *where, const char *key, int64_t lo, int64_t hi, const int64_t *def,
                        int64_t *out) {
    const json_t *v;
    IDA_TRY(lookup(o, where, key, def != NULL, &v));
    if (!v) {
        *out = *def;
        return IDA_OK;
    }
    IDA_FAIL_IF(!json_is_integer(v), IDA_E_FORMAT, "%s: \"%s\" must be an integer, found %s", where, key, type_name(v));
    int64_t x = json_integer_value(v);
    IDA_FAIL_IF(x < lo || x > hi, IDA_E_FORMAT, "%s: \"%s\" is %lld, must be in %lld..%lld", where, key, (long long)x,
                (long long)lo,
                (long long)hi);
    *out = x;
    return IDA_OK;
}

ida_status ida_json_f64(const json_t *o, const char *where, const char *key, double lo, double hi, const double *def,
                        double *out) {
    const json_t *v;
    IDA_TRY(lookup(o, where, key, def != NULL, &v));
    if (!v) {
        *out = *def;
        return IDA_OK;
    }
    IDA_FAIL_IF(!json_is_number(v), IDA_E_FORMAT, "%s: \"%s\" must be a number, found %s", where, key, type_name(v));
    double x = json_number_value(v);
    IDA_FAIL_IF(!(x >= lo && x <= hi), IDA_E_FORMAT, "%s: \"%s\" is %.17g, must be in %g..%g", where, key, x, lo, hi);
    *out = x;
    return IDA_OK;
}

ida_status ida_json_bool(const json_t *o, const char *where, const char *key, const bool *def, bool *out) {
    const json_t *v;
    IDA_TRY(lookup(o, where, key, def != NULL, &v));
    if (!v) {
        *out = *def;
        return IDA_OK;
    }
    IDA_FAIL_IF(!json_is_boolean(v), IDA_E_FORMAT, "%s: \"%s\" must be true or false, found %s", where, key, type_name(v));
    *out = json_is_true(v);
    return IDA_OK;
}

ida_status ida_json_str(const json_t *o, const char *where, const char *key, const char *def, const char **out) {
    const json_t *v;
    IDA_TRY(lookup(o, where, key, def != NULL, &v));
    if (!v) {
        *out = def;
        return IDA_OK;
    }
    IDA_FAIL_IF(!json_is_string(v), IDA_E_FORMAT, "%s: \"%s\" must be a string, found %s", where, key, type_name(v));
    *out = json_string_value(v);
    return IDA_OK;
}
