/* presets.c - the built-in configurations (docs/method.md section 3). presets/<name>.json holds the same; a test compares them.
 * A preset names no tokens: whoever has the tokenizer sets vocab_size, bos_id and eos_id. */
#include "model/config.h"

#include <stdio.h>
#include <string.h>

typedef struct preset { const char *name; int64_t vocab, d, layers, heads, modes, position; } preset;

static const preset presets[] = {
    {"125m", 32000, 768, 12, 12, 64, 4096},
    {"350m", 32000, 1024, 24, 16, 64, 4096},
    {"760m", 32000, 1536, 24, 16, 64, 4096},
    {"1.3b", 32000, 2048, 24, 32, 64, 4096},
    {"tiny", 257, 64, 2, 2, 16, 256},
    {"demo", 2048, 128, 4, 4, 32, 256},
    {"study", 16384, 384, 8, 6, 64, 2048},
};
enum { N_PRESETS = sizeof presets / sizeof *presets };

int64_t ida_config_ffn(int64_t d_model) {
    int64_t f = (8 * d_model + 2) / 3;
    return (f + 127) / 128 * 128;
}

ida_status ida_config_preset(const char *name, ida_mixer_kind mixer, ida_config *cfg) {
    IDA_NEED(name);
    IDA_NEED(cfg);
    IDA_FAIL_IF((int)mixer < 0 || mixer > IDA_MIXER_S4D, IDA_E_ARG, "mixer number %d is not known", (int)mixer);
    for (int i = 0; i < N_PRESETS; i++) {
        const preset *p = &presets[i];
        if (strcmp(p->name, name) != 0) continue;
        ida_config c = {.vocab_size = p->vocab,
                        .d_model = p->d,
                        .n_layers = p->layers,
                        .n_heads = p->heads,
                        .n_kv_heads = p->heads,
                        .ffn_hidden = ida_config_ffn(p->d),
                        .state_size = p->modes,
                        .max_position = p->position,
                        .rope_theta = 10000,
                        .norm_eps = 1e-5,
                        .l2_eps = 1e-6,
                        .dt_min = 1e-3,
                        .dt_max = 1e-1,
                        .init_std = 0.02,
                        .rope = true,
                        .basis = IDA_BASIS_S4D_LIN,
                        .discretization = IDA_DISC_ZOH,
                        .readout = IDA_READOUT_HERMITIAN,
                        .c_init = IDA_C_NORMAL,
                        .bos_id = -1,
                        .eos_id = -1};
        memset(c.layer_mixer, (int)mixer, sizeof c.layer_mixer);
        *cfg = c;
        return IDA_OK;
    }
    char list[128];
    size_t len = 0;
    for (int i = 0; i < N_PRESETS; i++) {
        int w = snprintf(list + len, sizeof list - len, "%s%s", i ? ", " : "", presets[i].name);
        if (w < 0 || (len += (size_t)w) >= sizeof list) break;
    }
    IDA_FAIL(IDA_E_ARG, "preset \"%s\" is not known; use one of: %s", name, list);
}
