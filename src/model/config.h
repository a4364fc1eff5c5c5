/* config.h - the model configuration as text: config.json in, config.json out. Keys, defaults and refusals: docs/formats.md. */
#ifndef IDA_MODEL_CONFIG_H
#define IDA_MODEL_CONFIG_H

#include "idattn/config.h"
#include "core/fields.h"
#include "layers/layer.h"

/* Upper bound, in elements, of one model's parameters and of one sequence's state. */
#define IDA_MAX_ELEMENTS ((int64_t)1 << 46)

/* What a config.json may have at most. */
enum { IDA_CONFIG_BYTES = 1 << 20 };

/* The mixer of a shape that names none. */
#define IDA_MIXER_DEFAULT IDA_MIXER_INTERDOMAIN

/* Every key of config.json that is an option. layer_mixer has rows for their names alone (IDA_FIELD_OWNER). */
extern const ida_fields ida_config_fields, ida_shape_fields;
extern const char *const ida_preset_names[];

/* config.json text in memory, untrusted. `where` goes before every message. The result has passed ida_config_check. */
ida_status ida_config_parse(const char *text, size_t n, const char *where, ida_config *cfg);

ida_status ida_config_from_json(const json_t *j, const char *where, ida_config *cfg);

/* Whether two configs differ, and in what first. */
bool ida_config_differ(const ida_config *a, const ida_config *b, ida_difference *d);

/* ida_config_json as an edit of another config.json (NULL: of none): its keys keep their order, and those that are not ours
 * ("transformers_version") stay as they are. `old` has been through ida_config_parse. */
ida_status ida_config_json_over(const ida_config *cfg, const char *old, char **json);

/* ida_config_info of a config whose single fields are in range (ida_config_check uses it for the limit below). */
ida_status ida_config_count(const ida_config *cfg, ida_model_info *info);

/* Feed-forward width of the presets: 8d/3 rounded up, then up to a multiple of 128. */
int64_t ida_config_ffn(int64_t d_model);

#endif
