/* foreign.h - what a config.json asks for that this program does not compute. */
#ifndef IDA_MODEL_FOREIGN_H
#define IDA_MODEL_FOREIGN_H

#include "idattn/config.h"
#include "core/json.h"

/* IDA_E_UNSUPPORTED at the first key of other models that would change what is computed. `c`: what was read from j, checked. */
ida_status ida_config_refuse_foreign(const json_t *j, const char *where, const ida_config *c);

#endif
