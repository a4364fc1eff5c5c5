/* options.h - one table per command is the only place its options are described: parsing, `--help` and the man page all read it.
 * Not here: what a value means. Invariant: after options_parse every option has a value, its default or the given one, checked
 * against the table's type and range. */
#ifndef IDATTN_CLI_OPTIONS_H
#define IDATTN_CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum opt_type { OPT_FLAG, OPT_INT, OPT_NUM, OPT_STR, OPT_CHOICE, OPT_LIST } opt_type;

typedef struct option_spec {
    const char *name;      /* long name; NULL ends the table */
    char letter;           /* short form, 0 = none */
    opt_type type;
    const char *arg;       /* argument's name in the help; OPT_CHOICE: the choices, "cpu|cuda" */
    const char *def;       /* default as text; NULL = none (number 0, string NULL) */
    double lo, hi;         /* OPT_INT and OPT_NUM: legal range, ends included */
    const char *help;
} option_spec;

/* In every table. */
#define OPT_JSON {"json", 0, OPT_FLAG, NULL, NULL, 0, 0, "print the result as JSON on standard output"}
#define OPT_QUIET {"quiet", 'q', OPT_FLAG, NULL, NULL, 0, 0, "no progress, notes or warnings; errors only"}
#define OPT_THREADS {"threads", 0, OPT_INT, "N", "0", 0, 256, "CPU threads; 0 = one per core (results do not depend on it)"}
#define OPT_HELP {"help", 'h', OPT_FLAG, NULL, NULL, 0, 0, "this text"}
#define OPT_END {NULL, 0, OPT_FLAG, NULL, NULL, 0, 0, NULL}

#define OPT_MAX_INT 9007199254740992.0 /* 2^53: the table's double range is exact up to here */

typedef struct command command;

typedef struct option_value {
    bool given;
    int64_t i;
    double d;
    const char *s;
    const char **list;
    int64_t n;
} option_value;

typedef struct options {
    const command *cmd;
    option_value *values;       /* in table order */
    const char *const *args;    /* what is not an option */
    int64_t n_args;
} options;

struct command {
    const char *name;           /* "info", "tokenizer train" */
    const char *args;           /* usage line after the name, without the option list */
    const char *summary;        /* one line */
    const char *text;           /* paragraphs for --help and the man page; may be "" */
    const option_spec *options;
    int64_t min_args, max_args; /* max_args -1 = any number */
    int (*run)(const options *o);
};

/* Parses argv (without the command's own words). 0 = run it; -1 = --help was printed; 2 = usage error, one line printed. */
int options_parse(const command *cmd, int argc, char **argv, options *o);
void options_free(options *o);

/* Values by name; asking for a name that is not in the table is a bug (assert). */
const char *opt_str(const options *o, const char *name);
int64_t opt_int(const options *o, const char *name);
double opt_num(const options *o, const char *name);
bool opt_flag(const options *o, const char *name);
bool opt_given(const options *o, const char *name);
const char *const *opt_list(const options *o, const char *name, int64_t *n);

void options_help(const command *cmd, FILE *f);
void options_man(const command *const *cmds, FILE *f); /* NULL-terminated list; the whole idattn.1 */

/* Prints "idattn COMMAND: message" on one line of standard error and returns 2. */
int usage_error(const command *cmd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The name in a NULL-terminated list that is nearest to `word`, or NULL when none is near. */
const char *nearest_name(const char *word, const char *const *names);

#endif
