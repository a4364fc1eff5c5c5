/* presets.c - the built-in configurations (docs/method.md section 3), and a configuration from what a caller asks
 * for. presets/<name>.json holds the same; a test compares them. A preset names no tokens: whoever has the tokenizer
 * sets vocab_size, bos_id and eos_id. */
#include "model/config.h"

#include <stdio.h>
#include <string.h>

typedef struct preset { int64_t vocab, d, layers, heads, modes, position; } preset;

#define PRESETS(P) \
    P("125m", 32000, 768, 12, 12, 64, 4096) \
    P("350m", 32000, 1024, 24, 16, 64, 4096) \
    P("760m", 32000, 1536, 24, 16, 64, 4096) \
    P("1.3b", 32000, 2048, 24, 32, 64, 4096) \
    P("tiny", 257, 64, 2, 2, 16, 256) \
    P("demo", 2048, 128, 4, 4, 32, 256) \
    P("study", 16384, 384, 8, 6, 64, 2048)
#define NAME(name, ...) name,
#define SHAPE(name, ...) {__VA_ARGS__},
const char *const ida_preset_names[] = {PRESETS(NAME) NULL};
static const preset presets[] = {PRESETS(SHAPE)};

int64_t ida_config_ffn(int64_t d_model) {
    int64_t f = (8 * d_model + 2) / 3;
    return (f + 127) / 128 * 128;
}

ida_status ida_config_preset(const char *name, ida_mixer_kind mixer, ida_config *cfg) {
    IDA_NEED(name);
    IDA_NEED(cfg);
    IDA_FAIL_IF((int)mixer < 0 || (int)mixer >= ida_names_count(ida_mixer_names), IDA_E_ARG,
                "mixer number %d is not known", (int)mixer);
    int i = ida_names_find(ida_preset_names, name);
    if (i < 0) {
        char list[128];
        ida_names_join(ida_preset_names, 0, NULL, list, sizeof list);
        IDA_FAIL(IDA_E_ARG, "preset \"%.40s\" is not known; use one of: %s", name, list);
    }
    const preset *p = &presets[i];
    ida_fields_defaults(&ida_config_fields, cfg);
    cfg->vocab_size = p->vocab;
    cfg->d_model = p->d;
    cfg->n_layers = p->layers;
    cfg->n_heads = cfg->n_kv_heads = p->heads;
    cfg->ffn_hidden = ida_config_ffn(p->d);
    cfg->state_size = p->modes;
    cfg->max_position = p->position;
    memset(cfg->layer_mixer, (int)mixer, sizeof cfg->layer_mixer);
    return IDA_OK;
}

/* ---- a shape as it is asked for */

#define T ida_shape_options
static const ida_field rows[] = {
    IDA_ROW_TEXT(T, "preset", preset, NULL, "NAME", .names = ida_preset_names, .help = "a built-in shape: {names}"),
    IDA_ROW_TEXT(T, "config", config, NULL, "FILE", .help = "a config.json instead of a preset"),
    IDA_ROW_ENUM(T, "mixer", mixer, IDA_MIXER_DEFAULT, ida_mixer_names, .arg = "KIND", .flags = IDA_FIELD_DERIVED,
                 .beside = IDA_MEMBER(T, has_mixer, bool), .help = "{names}; all layers [{default}]"),
    IDA_ROW_LIST(T, "set", set, n_set, "KEY=VALUE",
                 .help = "sets a field by its key in config.json, as in mixer.readout=bilinear"),
};
#undef T
const ida_fields ida_shape_fields = IDA_FIELDS("shape", "", ida_shape_options, rows);

static ida_status set_field(ida_config *c, const ida_shape_options *o, int64_t i) {
    const char *eq = strchr(o->set[i], '=');
    char key[64];
    IDA_FAIL_IF(!eq || eq == o->set[i] || (size_t)(eq - o->set[i]) >= sizeof key, IDA_E_ARG,
                "set: \"%.80s\" is not KEY=VALUE", o->set[i]);
    snprintf(key, sizeof key, "%.*s", (int)(eq - o->set[i]), o->set[i]);
    for (int64_t j = 0; j < i; j++)
        IDA_FAIL_IF(strncmp(o->set[j], o->set[i], strlen(key) + 1) == 0, IDA_E_ARG,
                    "set: %s is given twice; give it once", key);
    return ida_config_set(c, key, eq + 1);
}

ida_status ida_config_make(const ida_shape_options *o, ida_config *cfg) {
    IDA_NEED(o);
    IDA_NEED(cfg);
    ida_config c;
    IDA_FAIL_IF(o->preset && o->config, IDA_E_ARG, "preset and config exclude each other; give one");
    IDA_FAIL_IF(!o->preset && !o->config, IDA_E_ARG, "no model shape; give a preset or a config");
    ida_mixer_kind kind = o->has_mixer ? o->mixer : IDA_MIXER_DEFAULT;
    IDA_TRY(ida_fields_check(&ida_shape_fields, o));
    if (o->preset) IDA_TRY(ida_config_preset(o->preset, kind, &c));
    else IDA_TRY(ida_config_load(o->config, &c));
    if (o->has_mixer) memset(c.layer_mixer, (int)kind, sizeof c.layer_mixer);
    for (int64_t i = 0; i < o->n_set; i++) IDA_TRY(set_field(&c, o, i));
    IDA_TRY(ida_config_check(&c));
    *cfg = c;
    return IDA_OK;
}
