/* emitter.h - text out of token pieces: stops before stop strings, never shows part of one, never splits a character.
 * What is shown depends on the bytes alone, not on how they are cut into tokens. */
#ifndef IDA_INFER_EMITTER_H
#define IDA_INFER_EMITTER_H

#include "idattn/engine.h"
#include "core/status.h"

typedef struct ida_emitter ida_emitter;

/* stop strings are copied; an empty one is IDA_E_ARG. max_piece: the longest piece that will be put (a longer one is an error
 * of ours). emit may be NULL. */
ida_status ida_emitter_new(const char *const *stop, int64_t n_stop, int64_t max_piece, ida_text_fn *emit, void *user,
                           ida_emitter **out);
/* Takes a piece and emits, in one call of `emit`, what may be shown. A stop string is found where it is first complete (the
 * longest, when several end there): the text before it is emitted and the emitter is finished. */
void ida_emitter_put(ida_emitter *e, const char *piece, size_t n);
/* Asks `emit` with no bytes whether to go on; the answer is in ida_emitter_cancelled. */
void ida_emitter_poll(ida_emitter *e);
/* End of the text: emits what was held back. */
void ida_emitter_flush(ida_emitter *e);
bool ida_emitter_stopped(const ida_emitter *e);    /* a stop string was found */
bool ida_emitter_cancelled(const ida_emitter *e);  /* emit returned non-zero; nothing more is emitted */
void ida_emitter_free(ida_emitter *e);

#endif
