/* inputs.h - the documents of a list of files, one after the other, with byte counts for progress. */
#ifndef IDA_DATA_INPUTS_H
#define IDA_DATA_INPUTS_H

#include "data/text.h"

typedef struct ida_inputs ida_inputs;

/* Every path is checked before the first is read; "-" may be given once. The strings are borrowed. */
ida_status ida_inputs_open(const char *const *paths, int64_t n, const ida_text_options *o, ida_inputs **out);
/* As ida_text_next, over all files. */
ida_status ida_inputs_next(ida_inputs *in, const char **text, int64_t *n, bool *end);
int64_t ida_inputs_done(const ida_inputs *in);   /* file bytes read so far */
int64_t ida_inputs_total(const ida_inputs *in);  /* of all files; 0 when standard input is one of them */
int64_t ida_inputs_bad(const ida_inputs *in);
/* A plain file: it can be read again. */
bool ida_inputs_is_file(const ida_inputs *in, int64_t file);
/* What tells that a plain file is still what it was: size, time of the last change, XXH3 of its first and last 64 KiB. As it was
 * when it was first asked for or opened for reading. */
typedef struct ida_input_id { int64_t bytes, mtime_ns; uint64_t ends; } ida_input_id;
ida_status ida_inputs_identify(ida_inputs *in, int64_t file, ida_input_id *id);
/* Where the last document came from: the number of its file and how many documents that file has given. */
void ida_inputs_place(const ida_inputs *in, int64_t *file, int64_t *documents);
/* Before the first document: goes to such a place. Its file is read again up to there, without telling of its bad rows; *text is
 * the document at the place (NULL: none). IDA_E_FORMAT when the file has fewer. */
ida_status ida_inputs_go(ida_inputs *in, int64_t file, int64_t documents, ida_progress_fn *progress, void *user,
                         const char **text,
                         int64_t *n);
void ida_inputs_close(ida_inputs *in);

#endif
