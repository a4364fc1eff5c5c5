/* session.h - the inside of ida_session: one sequence's state, work space for one step, and the logits of its last token. */
#ifndef IDA_INFER_SESSION_H
#define IDA_INFER_SESSION_H

#include "idattn/engine.h"
#include "model/model.h"

/* Tokens that run at once: on the CPU, on a device. */
enum { IDA_SESSION_PIECE = 512, IDA_SESSION_DEVICE_PIECE = 8192, IDA_SESSION_TAIL = 32 };

struct ida_session {
    const ida_model *model;
    ida_state *state;                  /* n_seq = 1 */
    ida_acts *step;                    /* work space for one token; longer pieces borrow theirs for the length of a call */
    float *logits;                     /* [vocab], after the last token; meaningless at position 0 */
    int32_t tail[IDA_SESSION_TAIL];    /* the last ids: id of position p is at p % IDA_SESSION_TAIL */
    uint64_t model_hash;               /* 0 = not asked for yet (state_file.c) */
};

/* ida_session_feed that asks before each piece whether to stop; then the session holds the pieces before it. */
typedef bool ida_stop_fn(void *user);
ida_status ida_session_feed_until(ida_session *s, const int32_t *ids, int64_t n, ida_stop_fn *stop, void *user);

#endif
