/* json.h - checked access to untrusted JSON (jansson): every getter names the file, the key and the range on failure.
 * `where` is the text put before the key in messages, usually the path. */
#ifndef IDA_CORE_JSON_H
#define IDA_CORE_JSON_H

#include <jansson.h>
#include "core/status.h"

/* Whole file; refuses duplicate keys, bad UTF-8, trailing data, more than max_bytes. Caller json_decref. */
ida_status ida_json_load(const char *path, int64_t max_bytes, json_t **out);
ida_status ida_json_parse(const char *text, size_t n, const char *where, json_t **out);
/* Atomic write, indented by 2, trailing newline. indent 0 = compact. */
ida_status ida_json_save(const json_t *j, const char *path, int indent);

/* json_dumps whose text ida_free, or a caller's ida_string_free, takes back. NULL: j is NULL, or out of memory. */
char *ida_json_dump(const json_t *j, size_t flags);

/* Indented, and read back as the same numbers. */
char *ida_json_dump_exact(const json_t *j);

/* A string of any bytes: U+FFFD stands for each that makes no character. NULL: out of memory. */
json_t *ida_json_text(const char *s, size_t n);
/* The same of a whole string; null of NULL. */
json_t *ida_json_string(const char *s);

/* Required when def is NULL, else *out = *def where the key is absent or null. Out of [lo, hi] is IDA_E_FORMAT. */
ida_status ida_json_i64(const json_t *o, const char *where, const char *key, int64_t lo, int64_t hi, const int64_t *def,
                        int64_t *out);
ida_status ida_json_f64(const json_t *o, const char *where, const char *key, double lo, double hi, const double *def,
                        double *out);
ida_status ida_json_bool(const json_t *o, const char *where, const char *key, const bool *def, bool *out);
/* Borrowed string, lives as long as o. */
ida_status ida_json_str(const json_t *o, const char *where, const char *key, const char *def, const char **out);

#endif
