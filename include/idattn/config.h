/* idattn/config.h - the shape of a model: presets, config.json, sizes. */
#ifndef IDATTN_CONFIG_H
#define IDATTN_CONFIG_H

#include "idattn/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define IDA_MAX_LAYERS 256

typedef enum ida_mixer_kind {   /* docs/method.md section 3 */
    IDA_MIXER_SOFTMAX = 0,
    IDA_MIXER_INTERDOMAIN = 1,
    IDA_MIXER_DUAL_LINEAR = 2,
    IDA_MIXER_SINGLE_QUERY = 3,
    IDA_MIXER_S4D = 4,
} ida_mixer_kind;

typedef enum ida_basis { IDA_BASIS_S4D_INV = 0, IDA_BASIS_S4D_LIN = 1, IDA_BASIS_S4D_LEGS = 2 } ida_basis;
typedef enum ida_c_init { IDA_C_NORMAL = 0, IDA_C_IDENTITY = 1, IDA_C_WHITENED = 2 } ida_c_init;

/* A model's shape. d_model = n_heads * head_dim; R = D = head_dim. Plain data: copy freely. */
typedef struct ida_config {
    int64_t vocab_size, d_model, n_layers, n_heads, n_kv_heads, ffn_hidden;
    int64_t state_size;          /* M: complex basis functions per head */
    int64_t max_position;        /* training length T; no mixer is limited to it */
    double rope_theta, norm_eps, l2_eps, init_std;
    double dt_min, dt_max;       /* initial steps dt are log-uniform in [dt_min, dt_max]: memories of about 2/dt tokens */
    bool tie_embeddings;
    bool rope;                   /* rotary embedding on q and k (on a for single-query and s4d) */
    bool gate;                   /* o <- SiLU(W_g x) * o before W_o */
    bool output_norm;            /* RMSNorm per head on o before gate and W_o */
    ida_basis basis;
    ida_discretization discretization;
    ida_readout readout;
    ida_c_init c_init;
    int64_t bos_id, eos_id;      /* -1 = none */
    uint8_t layer_mixer[IDA_MAX_LAYERS]; /* ida_mixer_kind of each layer */
} ida_config;

/* Fills *cfg from a built-in preset with the given mixer in all layers. IDA_E_ARG names the known presets. */
IDA_API ida_status ida_config_preset(const char *name, ida_mixer_kind mixer, ida_config *cfg);
/* Reads config.json (HF Llama keys plus a "mixer" object, docs/formats.md). */
IDA_API ida_status ida_config_load(const char *path, ida_config *cfg);
/* config.json text of a config; caller frees with ida_string_free. */
IDA_API ida_status ida_config_json(const ida_config *cfg, char **json);
/* Sets one field from text, by the key of config.json ("hidden_size", "mixer.readout", "layer_mixers"=
 * "interdomain,softmax,..."). Does not check the whole: ida_config_check does. */
IDA_API ida_status ida_config_set(ida_config *cfg, const char *key, const char *value);
IDA_API ida_status ida_config_check(const ida_config *cfg);
/* A shape as it is asked for: a preset or a config.json, its mixer, then fields by their keys. */
typedef struct ida_shape_options {
    const char *preset, *config; /* one of the two; config: a path */
    bool has_mixer;              /* else the file's own, or that of ida_options_json("shape") */
    ida_mixer_kind mixer;        /* in all layers */
    const char *const *set;      /* "key=value" as in ida_config_set, each key at most once */
    int64_t n_set;
} ida_shape_options;
IDA_API ida_status ida_config_make(const ida_shape_options *o, ida_config *cfg);
IDA_API const char *ida_mixer_name(ida_mixer_kind kind);
IDA_API ida_status ida_mixer_parse(const char *name, ida_mixer_kind *kind);

typedef struct ida_model_info {
    int64_t parameters;          /* exact count; nothing is allocated to find it */
    int64_t state_bytes;         /* fixed part of one sequence's state */
    int64_t state_bytes_per_token; /* growing part: the key/value cache of softmax layers */
    int64_t flops_per_token;     /* forward, matrix products and mixers, at sequence length max_position */
} ida_model_info;
IDA_API ida_status ida_config_info(const ida_config *cfg, ida_model_info *info);

#ifdef __cplusplus
}
#endif
#endif
