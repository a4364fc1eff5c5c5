/* options.h - the options of a command: those of the library, from its own description of them (idattn/options.h),
 * and a short table of what is only the command's. Parsing, `--help` and the man page read the two as one list.
 * Not here: what a value means; ranges, defaults and names of the library's options.
 * Invariant: after options_parse every struct that options_of gives holds defaults and what was typed, each value in
 * its range. */
#ifndef IDATTN_CLI_OPTIONS_H
#define IDATTN_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum opt_type { OPT_FLAG, OPT_TEXT, OPT_LIST, OPT_GROUP } opt_type;

/* A command's own option, or the place of the library's. */
typedef struct option_spec {
    const char *name;      /* long name; OPT_GROUP: the group; NULL ends the table */
    char letter;           /* short form, 0 = none */
    opt_type type;         /* OPT_LIST is the library's alone */
    const char *arg;       /* argument's name in the help */
    const char *def;       /* default of OPT_TEXT; NULL = none */
    const char *help;
} option_spec;

/* The options of a group that have not come yet, up to the one with the key `last` (NULL: all). */
#define OPT_OF(group, last) {group, 0, OPT_GROUP, last, NULL, NULL}

/* In every table. */
#define OPT_JSON {"json", 0, OPT_FLAG, NULL, NULL, "print the result as JSON on standard output"}
#define OPT_THREADS OPT_OF("process", NULL)
#define OPT_QUIET {"quiet", 'q', OPT_FLAG, NULL, NULL, "no progress, notes or warnings; errors only"}
#define OPT_HELP {"help", 'h', OPT_FLAG, NULL, NULL, "this text"}
#define OPT_END {NULL, 0, OPT_FLAG, NULL, NULL, NULL}

typedef struct command command;

typedef struct opt {
    char name[40], def[40];     /* def: as the help shows it, "" = none */
    const char *arg, *help;
    char letter;
    opt_type type;
    int group;                  /* number in options.groups, -1 = the command's own */
    bool given;
    const char *text;           /* as typed; OPT_TEXT: or the default */
    const char **list;
    int64_t n;
} opt;

enum { MAX_GROUPS = 6 };
typedef struct option_group {
    const char *name;
    struct json_t *description; /* what arg and help of its options point into */
    void *block;                /* the group's struct */
    size_t bytes;
    size_t placed;              /* options that have come so far */
} option_group;

typedef struct options {
    const command *cmd;
    opt *all;                /* in the order of the help */
    int n, n_groups;
    option_group groups[MAX_GROUPS];
    const char *const *args;    /* what is not an opt */
    int64_t n_args;
} options;

struct command {
    const char *name;           /* "info", "tokenizer train" */
    const char *args;           /* usage line after the name, without the option list */
    /* In these two {group:key} is the list of an option's names, {bench} that of the benches. */
    const char *summary;        /* one line */
    const char *text;           /* paragraphs for --help and the man page; may be "" */
    const option_spec *options;
    int64_t min_args, max_args; /* max_args -1 = any number */
    int (*run)(const options *o);
};

/* Parses argv (without the command's own words). 0 = run it; -1 = --help was printed; else the exit code, after one
 * line on standard error. */
int options_parse(const command *cmd, int argc, char **argv, options *o);
void options_free(options *o);
/* The list alone, nothing typed (options_table.c). 0, or the exit code; options_free either way. */
int options_make(const command *cmd, options *o);

/* The command's own, by name; asking for a name that is not in the table is a bug (assert). */
const char *opt_str(const options *o, const char *name);
bool opt_flag(const options *o, const char *name);
/* Any option. */
bool opt_given(const options *o, const char *name);
/* The struct of a group that the command has options of: defaults and what was given. The command may change it. */
void *options_of(const options *o, const char *group);
/* Sets what was given of a group in another struct of it. */
void options_apply(const options *o, const char *group, void *to);
/* One that was given, of its group's struct: an ida_status. */
int option_set(const options *o, const opt *p, void *to);

void options_help(const command *cmd, FILE *f);
void options_man(const command *const *cmds, FILE *f); /* NULL-terminated list; the whole idattn.1 */
/* A command's summary or text with its lists of names put in; NULL = no memory. free(). */
char *with_names(const char *text);

/* Prints "idattn COMMAND: message" on one line of standard error and returns 2. */
int usage_error(const command *cmd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The name in a NULL-terminated list that is nearest to `word`, or NULL when none is near. */
const char *nearest_name(const char *word, const char *const *names);

#endif
