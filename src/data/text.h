/* text.h - streams documents out of .txt, .jsonl (also .gz, .zst) and .parquet files or standard input, in bounded memory. */
#ifndef IDA_DATA_TEXT_H
#define IDA_DATA_TEXT_H

#include <stdio.h>

#include "core/fields.h"

#define IDA_TEXT_KEY "text"
#define IDA_ROW_JSONL_KEY(T) \
    IDA_ROW_TEXT(T, "jsonl_key", jsonl_key, IDA_TEXT_KEY, "KEY", .flags = IDA_FIELD_OR_DEFAULT, \
                 .help = "the text's key in .jsonl rows")

typedef struct ida_text_reader ida_text_reader;
typedef struct ida_text_options {
    const char *jsonl_key;       /* NULL = IDA_TEXT_KEY */
    const char *column;          /* of Parquet files; NULL = jsonl_key */
    bool split_blank_lines;      /* plain text: a document ends at a form feed or at 3 newlines or more; blank ones are skipped */
    int64_t max_document_bytes;  /* 0 = 1 GiB. A longer plain document is IDA_E_UNSUPPORTED, a longer jsonl row a bad row */
    int64_t cut_bytes;           /* 0 = off. Plain text is handed out in pieces of about this size, cut where a word ends:
                                    joined they are the file, pre-tokenised apart they give the same.
                                    For counting words in huge files. */
    void (*on_bad)(void *user, const char *path, int64_t row, const char *why); /* told instead of the log; rows count from 1 */
    void *user;
} ida_text_options;

/* path "-" is standard input as plain text. The kind is taken from the name (.jsonl / .txt, then .gz / .zst; .parquet) and, for
 * compression and Parquet, from the magic bytes. */
ida_status ida_text_open(const char *path, const ida_text_options *o, ida_text_reader **out);
/* The same on an open stream, which the reader closes (also on failure; standard input stays open). */
ida_status ida_text_open_stream(FILE *file, const char *name, const ida_text_options *o, ida_text_reader **out);
/* Next document: *text is valid until the next call, *n its bytes (may be 0). *end at the end. A bad row (jsonl: not
 * an object with that string; Parquet: null, or longer than a document may be) is counted (ida_text_bad), told with path and row,
 * and passed over; a damaged compressed stream or Parquet file is IDA_E_FORMAT. */
ida_status ida_text_next(ida_text_reader *r, const char **text, int64_t *n, bool *end);
int64_t ida_text_bad(const ida_text_reader *r);
int64_t ida_text_consumed(const ida_text_reader *r);  /* bytes of the (compressed) file read so far */
void ida_text_close(ida_text_reader *r);

/* The last place in s[from+1 .. n) where a blank follows printable ASCII, or a newline an ASCII letter or digit: text cut there
 * pre-tokenises as if it were whole (text/pretokenize.h; some patterns take newlines along with a mark). 0 = none. */
int64_t ida_text_last_cut(const char *s, int64_t from, int64_t n);

#endif
