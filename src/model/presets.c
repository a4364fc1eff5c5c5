/* presets.c - the built-in configurations (docs/method.md section 3). presets/<name>.json holds the same; a test compares them.
 * A preset names no tokens: whoever has the tokenizer sets vocab_size, bos_id and eos_id. */
#include "model/config.h"

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
    IDA_FAIL_IF((int)mixer < 0 || (int)mixer >= ida_names_count(ida_mixer_names), IDA_E_ARG, "mixer number %d is not known",
                (int)mixer);
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
