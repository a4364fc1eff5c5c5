/* groups.h - every table of options, for those that go through all of them. */
#ifndef IDA_API_GROUPS_H
#define IDA_API_GROUPS_H

#include "core/fields.h"

/* Number i, the benches' behind the others. NULL behind the last. */
const ida_fields *ida_group_at(int64_t i);

#endif
