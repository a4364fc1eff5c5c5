/* own.h - options that one layer has of its own (ida_layer_own): as text, as JSON, compared. Not here: what a layer's options are
 * (the kind's table), what it takes where it has none of its own (blocks.c). */
#ifndef IDA_MODEL_OWN_H
#define IDA_MODEL_OWN_H

#include <jansson.h>

#include "idattn/config.h"
#include "core/fields.h"

bool ida_own_any(const ida_config *c);
/* key: "layers.N.KEY". Changing a layer's mixer afterwards leaves what it does not have; ida_config_check tells. IDA_E_ARG. */
ida_status ida_own_set(ida_config *c, const char *key, const char *value);
/* "layers" of config.json: NULL, null, or a list of n_layers objects {"kind": mixer, KEY: value, ...}; kind may be left out, else it
 * is what layer_mixers and mixer.kind say. IDA_E_FORMAT. */
ida_status ida_own_from_json(const json_t *list, const char *where, ida_config *c);
/* NULL = no memory. */
json_t *ida_own_to_json(const ida_config *c);
bool ida_own_differ(const ida_config *a, const ida_config *b, ida_difference *d);
/* Option i of layer `block` where it has one of its own, else NULL; *base: what the row's offset counts from. */
const ida_field *ida_own_row(const ida_config *c, int64_t block, int64_t i, const void **base);
/* No bit stands for an option that the layer's mixer does not have, and every value is in its range. IDA_E_ARG. */
ida_status ida_own_check(const ida_config *c);

#endif
