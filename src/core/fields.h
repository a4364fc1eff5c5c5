/* fields.h - an option is told once, as a row of a table: its key, its place in a struct, default, range, names,
 * help. From the rows come defaults, reading from text and from JSON, checks, writing as JSON, the difference of two
 * structs and a description for programs (include/idattn/options.h).
 * Not here: what binds two options, as "a divides b": that is code of the table's owner.
 * Invariant: what ida_fields_set and ida_fields_from_json take passes ida_fields_check, and what ida_field_to_json
 * writes is read back as the same value. */
#ifndef IDA_CORE_FIELDS_H
#define IDA_CORE_FIELDS_H

#include <jansson.h>

#include "core/mem.h"

typedef enum ida_field_type {
    IDA_FIELD_INT,   /* int64_t */
    IDA_FIELD_REAL,  /* double, finite */
    IDA_FIELD_BOOL,  /* bool */
    IDA_FIELD_ENUM,  /* an enum of int's size: an index into names, lo at least */
    IDA_FIELD_SEED,  /* uint64_t, any value; in JSON as text, since not every reader of numbers holds 64 bits */
    IDA_FIELD_TEXT,  /* const char *, borrowed; NULL = none; with names, one of them */
    IDA_FIELD_LIST,  /* const char *const *, borrowed, with an int64_t count `beside` */
} ida_field_type;

/* Flags of a row. */
enum {
    IDA_FIELD_REQUIRED = 1,    /* has no default: JSON must have it, a caller must give it */
    IDA_FIELD_RESULT = 2,      /* another value gives another result */
    IDA_FIELD_MAY_CHANGE = 4,  /* ... but a run may go on with another one */
    IDA_FIELD_LATER = 8,       /* files from before it have no such key and mean its default */
    IDA_FIELD_DERIVED = 16,    /* not given ("auto"): zero, or false in the bool `beside`; the rest tells then */
    IDA_FIELD_OR_DEFAULT = 32, /* zero in a struct stands for the default */
    IDA_FIELD_NULL = 64,       /* -1 is null in JSON */
    IDA_FIELD_OWNER = 128,     /* only described by the row: the table's owner reads, writes and checks it */
    IDA_FIELD_ARGUMENT = 256,  /* the program takes it as an argument, or finds it out: there is no option */
};

typedef struct ida_field {
    const char *key;             /* as in JSON; '-' may stand for '_' in text. "mixer.x" lies in the object "mixer" */
    ida_field_type type;
    size_t offset, beside;       /* in the struct; beside: LIST, DERIVED; 0 = none */
    double def, lo, hi;          /* whole numbers up to 2^53 are exact; hi infinite, or from 2^40 on: no end */
    const char *text;            /* default of TEXT */
    const char *const *names;    /* NULL-terminated; ENUM: must have them */
    unsigned flags;
    char letter;                 /* the program's short option, 0 = none */
    const char *arg;             /* word for the value in help; NULL: N, X or the names */
    const char *help;            /* "{names}" and "{default}" are put in */
    const char *note;            /* what a special value means, "0 = off"; ends the help, and a refusal */
} ida_field;

typedef struct ida_fields {
    const char *name;            /* of the group */
    const char *what;            /* before a key in the messages of checks: "training option "; may be "" */
    size_t bytes;                /* of the struct */
    const ida_field *rows;
    int64_t n;
} ida_fields;

/* Rows. T: the struct; more of ida_field follows as designators. A member of another type does not compile. */
#define IDA_MEMBER(T, member, type) (offsetof(T, member) + 0 * sizeof(_Generic(((T *)0)->member, type: 0)))
#define IDA_ENUM_MEMBER(T, member) \
    (offsetof(T, member) + 0 * sizeof(char[sizeof(((T *)0)->member) == sizeof(int) ? 1 : -1]))
#define IDA_ROW_INT(T, key_, member, def_, lo_, hi_, ...) \
    {.key = key_, .type = IDA_FIELD_INT, .offset = IDA_MEMBER(T, member, int64_t), \
     .def = def_, .lo = lo_, .hi = hi_, __VA_ARGS__}
#define IDA_ROW_REAL(T, key_, member, def_, lo_, hi_, ...) \
    {.key = key_, .type = IDA_FIELD_REAL, .offset = IDA_MEMBER(T, member, double), \
     .def = def_, .lo = lo_, .hi = hi_, __VA_ARGS__}
#define IDA_ROW_BOOL(T, key_, member, def_, ...) \
    {.key = key_, .type = IDA_FIELD_BOOL, .offset = IDA_MEMBER(T, member, bool), .def = def_, .hi = 1, __VA_ARGS__}
#define IDA_ROW_ENUM(T, key_, member, def_, names_, ...) \
    {.key = key_, .type = IDA_FIELD_ENUM, .offset = IDA_ENUM_MEMBER(T, member), \
     .def = def_, .names = names_, __VA_ARGS__}
#define IDA_ROW_SEED(T, key_, member, def_, ...) \
    {.key = key_, .type = IDA_FIELD_SEED, .offset = IDA_MEMBER(T, member, uint64_t), .def = def_, __VA_ARGS__}
#define IDA_ROW_TEXT(T, key_, member, text_, arg_, ...) \
    {.key = key_, .type = IDA_FIELD_TEXT, .offset = IDA_MEMBER(T, member, const char *), \
     .text = text_, .arg = arg_, __VA_ARGS__}
#define IDA_ROW_LIST(T, key_, member, count, arg_, ...) \
    {.key = key_, .type = IDA_FIELD_LIST, .offset = IDA_MEMBER(T, member, const char *const *), \
     .beside = IDA_MEMBER(T, count, int64_t), .arg = arg_, __VA_ARGS__}
#define IDA_FIELDS(name_, what_, T, rows_) \
    {.name = name_, .what = what_, .bytes = sizeof(T), .rows = rows_, .n = IDA_COUNT(rows_)}
#define IDA_COUNT(array) ((int64_t)(sizeof(array) / sizeof *(array)))
#define IDA_ANY_INT 9007199254740992.0 /* 2^53: hi of a whole number that has no end of its own */
#define IDA_STR_(x) #x
#define IDA_STR(x) IDA_STR_(x) /* a number of the code in a note */

/* ---- lists of names, NULL-terminated */

int ida_names_count(const char *const *names);
int ida_names_find(const char *const *names, const char *word); /* -1 = not there */
/* Those from number `first` on and, when it is not NULL, one more, as "a, b or c"; cut where `size` ends. */
void ida_names_join(const char *const *names, int first, const char *more, char *out, size_t size);

/* ---- the whole struct, which `base` points to */

/* NULL when there is none. */
const ida_field *ida_fields_find(const ida_fields *t, const char *key);
/* Every byte: zero, then the defaults. */
void ida_fields_defaults(const ida_fields *t, void *base);
/* One option back to its default. */
void ida_fields_reset(const ida_fields *t, void *base, const char *key);
/* Puts defaults where zero stands for them (IDA_FIELD_OR_DEFAULT). */
void ida_fields_resolve(const ida_fields *t, void *base);
/* Reads one option from text; a text stays the caller's and must outlive the struct. `subject` begins the message of
 * a refusal; NULL: key: "value". IDA_E_ARG; *base is then as it was. */
ida_status ida_fields_set(const ida_fields *t, void *base, const char *key, const char *value, const char *subject);
ida_status ida_fields_set_list(const ida_fields *t, void *base, const char *key, const char *const *values, int64_t n);
/* Every value in its range, those that are DERIVED and not given passed over. IDA_E_ARG names key, value and range. */
ida_status ida_fields_check(const ida_fields *t, const void *base);
/* One of them, which must be given. */
ida_status ida_fields_check_one(const ida_fields *t, const void *base, const char *key);

/* ---- JSON and differences; `flags`: rows that have them all */

/* Of an object that has no other keys. A row that is not LATER must be there. `where` begins messages. Texts are
 * borrowed. */
ida_status ida_fields_from_json(const ida_fields *t, const json_t *o, const char *where, unsigned flags, void *base);
/* An object, in the order of the struct's members: files keep their order when rows move in the help. */
ida_status ida_fields_to_json(const ida_fields *t, const void *base, unsigned flags, json_t **o);
/* The first row that differs: its key and both values as text. Texts are compared by content, lists and OWNER rows
 * not at all. */
typedef struct ida_difference { char key[64], a[96], b[96]; } ida_difference;
bool ida_fields_differ(const ida_fields *t, const void *a, const void *b, unsigned flags, ida_difference *d);
/* {"group", "bytes", "options": [...]} as include/idattn/options.h tells. */
ida_status ida_fields_describe(const ida_fields *t, json_t **o);

/* ---- one row */

/* Under the name `key`. Absent or null: *base stays, unless the row is REQUIRED. */
ida_status ida_field_from_json(const ida_field *f, const json_t *o, const char *where, const char *key, void *base);
/* null: not given. NULL: out of memory. */
json_t *ida_field_to_json(const ida_field *f, const void *base);

#endif
