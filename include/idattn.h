/* idattn.h - the public header of libidattn, all parts of it: train, evaluate, run and save language models built on
 * Interdomain Attention (arXiv 2605.24330), with softmax attention and S4D as baselines.
 *
 * A complete program:
 *
 *     ida_model *model = NULL; ida_session *s = NULL;
 *     if (ida_model_load("run/", &model) || ida_session_create(model, &s)) { puts(ida_last_error()); return 1; }
 *     ida_session_feed(s, ids, n_ids, logits);          // logits [vocab_size] after the last id
 *     ida_session_free(s); ida_model_free(model);
 *
 * Rules that hold for every function here:
 *  - The return value is an ida_status; 0 is IDA_OK. The library never exits, aborts or prints. After a failure
 *    ida_last_error() gives one line: what, where, how to mend it. Output arguments are then unchanged or NULL.
 *  - Objects are opaque. `*_free` accepts NULL. A session borrows its model: free sessions first.
 *  - Sizes are element counts in int64_t; a name ending in _bytes is in bytes.
 *  - Different objects may be used from different threads; one object from one thread at a time.
 *  - Weights, token shards and states are read through maps. A file that another program cuts short meanwhile is a SIGBUS, as
 *    with any map; handlers are the program's.
 *  - Pointers named `const` are only read during the call unless the comment says otherwise.
 */
#ifndef IDATTN_H
#define IDATTN_H

#include "idattn/base.h"
#include "idattn/options.h"
#include "idattn/config.h"
#include "idattn/model.h"
#include "idattn/text.h"
#include "idattn/data.h"
#include "idattn/engine.h"
#include "idattn/train.h"
#include "idattn/eval.h"
#include "idattn/layer.h"

#endif
