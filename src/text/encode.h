/* encode.h - text to ids: an encoder is the scratch of one thread. */
#ifndef IDA_TEXT_ENCODE_H
#define IDA_TEXT_ENCODE_H

#include "text/ids.h"
#include "text/tables.h"

/* An encoder holds scratch and a bounded cache of short pieces; it borrows the tokenizer. One thread at a time; several encoders
 * of one tokenizer may run at once. Results do not depend on what was encoded before. */
ida_status ida_encoder_new(const ida_tokenizer *t, ida_encoder **out);
void ida_encoder_free(ida_encoder *e);
/* Appends the ids of one text to *ids (freed by the caller with ida_free). */
ida_status ida_encoder_add(ida_encoder *e, const char *text, size_t n, bool special, ida_ids *ids);

#endif
