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
void ida_inputs_close(ida_inputs *in);

#endif
