/* ids.h - a list of token ids that grows. */
#ifndef IDA_TEXT_IDS_H
#define IDA_TEXT_IDS_H

#include <stdint.h>

#include "core/mem.h"

/* The ids are freed with ida_free. */
typedef struct ida_ids { int32_t *id; int64_t n, cap; } ida_ids;

static inline ida_status ida_push_id(ida_ids *ids, int32_t id) {
    if (ids->n == ids->cap) IDA_TRY(IDA_GROW(ids->id, &ids->cap, ids->n + 1, "token ids"));
    ids->id[ids->n++] = id;
    return IDA_OK;
}

#endif
