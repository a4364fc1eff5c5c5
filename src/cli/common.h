/* common.h - what several commands share: exit codes, failure lines, signals, output, and how a model is opened.
 * The program includes idattn.h and nothing below it. */
#ifndef IDATTN_CLI_COMMON_H
#define IDATTN_CLI_COMMON_H

#include <idattn.h>
#include <jansson.h>
#include <stdlib.h>

#include "options.h"
#include "progress.h"

enum { EXIT_OK = 0, EXIT_FAIL = 1, EXIT_USAGE = 2 };

/* Exit code of a status: IDA_E_ARG is a usage error. */
int exit_code(ida_status st);
/* Prints "idattn COMMAND: <last error>" and returns the exit code. `progress` (may be NULL) is closed first. */
int fail(const options *o, ida_status st, progress *p);
/* The same for what the program itself finds wrong; returns EXIT_FAIL. */
int fail_text(const options *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Sets --threads and the warning lines; call first in every command that has the options. 0, or the exit code. */
int begin(const options *o, progress *p);

/* SIGINT and SIGTERM (and SIGUSR1, which batch systems send before the time limit) only set a flag; a second SIGINT ends the
 * program. */
void catch_signals(void);
int interrupted(void);

/* From here on a mapped file that is cut short ends the program with one line, not by SIGBUS (cut_file.c). */
void catch_cut_files(void);

/* Prints JSON (indented) and consumes the reference; text forms print a library string and free it. Return an exit code. */
int print_json(const options *o, json_t *j);
json_t *parse_library_json(char *text);
/* Any bytes as a JSON string: each that is not part of a valid UTF-8 character becomes U+FFFD. NULL = no memory. */
json_t *json_text(const char *s, size_t n);

/* Whole file, "-" = standard input, at most max_bytes. NULL after printing the failure. Freed with free(). */
char *read_all(const options *o, const char *path, size_t max_bytes, size_t *n);
/* Replaces a file atomically. 0, or the exit code after printing the failure. */
int write_atomic(const options *o, const char *path, const char *text, size_t n);
/* a/b in fresh memory, or NULL. */
char *join_path(const char *a, const char *b);
bool path_exists(const char *path);
bool path_is_dir(const char *path);

/* --device and --dtype of a command that runs a model. */
#define OPT_PLACE OPT_OF("place", NULL)
ida_place_options place_from_options(const options *o);

#define OPT_TOKENIZER {"tokenizer", 0, OPT_TEXT, "FILE", NULL, "tokenizer.json [the model's own]"}

/* Model and tokenizer of MODEL, both from the one folder that ida_model_folder names. --tokenizer replaces the model's own; *t
 * stays NULL when there is none and none is required. The model goes where --device says: `o` has OPT_PLACE. 0, or
 * the exit code after printing the failure; the caller frees both. */
int open_model(const options *o, const char *path, bool tokenizer_required, ida_model **m, ida_tokenizer **t);

#define OPT_SHAPE OPT_OF("shape", NULL)

/* A seed as JSON: a text where a number would not hold it. */
json_t *json_seed(uint64_t seed);

#endif
