/* decoder.h - ids to text, for the rooms above; the public decoder is in idattn/text.h. */
#ifndef IDA_TEXT_DECODER_H
#define IDA_TEXT_DECODER_H

#include "text/tables.h"

/* Fills in what each token stands for (text, text_start, flags) from the pipeline's decoder: the last step of a build. */
ida_status ida_build_texts(ida_tokenizer *t);

/* A decoder that gives every byte at once and as it is, as ida_tokenizer_decode does. begun: the text goes on from an earlier
 * one. */
ida_status ida_decoder_create_bytes(const ida_tokenizer *t, bool skip_special, bool begun, ida_decoder **out);

#endif
