/* utf8.h - whole characters out of a byte stream, for printing text token by token. */
#ifndef IDA_TEXT_UTF8_H
#define IDA_TEXT_UTF8_H

#include <stddef.h>

/* How many bytes at the front of [s, n) can be shown now: all but a last, so far well-formed, unfinished character (at most 3
 * bytes). Bytes that no continuation can make valid are counted as showable. At the end of the stream show the rest too. */
size_t ida_utf8_whole(const char *s, size_t n);

#endif
