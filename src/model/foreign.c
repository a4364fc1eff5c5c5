/* foreign.c - keys of other models' config.json (HF's Qwen, Mistral, OLMo, Gemma, Granite, Cohere and their like) that ask for
 * another function than ours. Such a key is often there with a value that changes nothing: that is taken, any other refused by
 * name. Not here: keys that are read (config.c); keys that change only training (dropout), speed or storage.
 * Invariant: what passes means the same with and without these keys. */
#include "model/foreign.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/mem.h"

/* The value that changes nothing. null is one under every rule. */
typedef enum rule {
    OFF,         /* false, or 0: no experts, no cap */
    ON,          /* true */
    SILU, ROPE,  /* that name */
    ONE,         /* 1 */
    HEAD_DIM,    /* hidden_size/num_attention_heads */
    SCORE_SCALE, /* 1/sqrt of that */
    THETA,       /* rope_theta */
    WINDOW,      /* one that no layer has, or that reaches over max_position_embeddings tokens */
    LAYER_TYPES, /* a list of layers that see the whole past */
    ALL_ONES,    /* a list of 1, not empty: HF fills an empty one by the interval */
    INTERVAL     /* any beside a list, which then tells */
} rule;

static const struct key { const char *name; rule rule; const char *why; } keys[] = {
    {"hidden_act", SILU, "the feed-forward layer is SwiGLU"},
    {"hidden_activation", SILU, "the feed-forward layer is SwiGLU"},
    {"attention_bias", OFF, "projections have no bias"},
    {"mlp_bias", OFF, "projections have no bias"},
    {"use_bias", OFF, "projections have no bias"},
    {"qkv_bias", OFF, "projections have no bias"},
    {"use_qkv_bias", OFF, "projections have no bias"},
    {"head_dim", HEAD_DIM, "heads are hidden_size/num_attention_heads wide"},
    {"query_pre_attn_scalar", HEAD_DIM, "scores are divided by the root of the head's width"},
    {"attention_multiplier", SCORE_SCALE, "scores are divided by the root of the head's width"},
    {"attn_temperature_tuning", OFF, "scores have one scale at all positions"},
    {"rope_parameters.llama_4_scaling_beta", OFF, "scores have one scale at all positions"},
    {"use_qk_norm", OFF, "softmax layers do not normalize queries and keys"},
    {"qk_norm", OFF, "softmax layers do not normalize queries and keys"},
    {"qk_layernorm", OFF, "softmax layers do not normalize queries and keys"},
    {"clip_qkv", OFF, "queries, keys and values are not clipped"},
    {"kv_lora_rank", OFF, "keys and values are not compressed"},
    {"attn_logit_softcapping", OFF, "scores are not capped"},
    {"final_logit_softcapping", OFF, "logits are not capped"},
    {"logit_softcapping", OFF, "logits are not capped"},
    {"logits_soft_cap", OFF, "logits are not capped"},
    {"logits_scaling", ONE, "logits are not scaled"},
    {"logit_scale", ONE, "logits are not scaled"},
    {"lm_head_multiplier", ONE, "logits are not scaled"},
    {"embedding_multiplier", ONE, "embeddings are not scaled"},
    {"scale_emb", ONE, "embeddings are not scaled"},
    {"residual_multiplier", ONE, "residuals are not scaled"},
    {"use_parallel_residual", OFF, "the feed-forward layer comes after the mixer, not beside it"},
    {"num_experts", OFF, "there are no mixtures of experts"},
    {"num_local_experts", OFF, "there are no mixtures of experts"},
    {"n_routed_experts", OFF, "there are no mixtures of experts"},
    {"moe_num_experts", OFF, "there are no mixtures of experts"},
    {"sliding_window", WINDOW, "softmax layers see the whole past"},
    {"attention_chunk_size", WINDOW, "softmax layers see the whole past"},
    {"layer_types", LAYER_TYPES, "softmax layers see the whole past, and mixers go into layer_mixers"},
    {"is_causal", ON, "every layer is causal"},
    {"use_bidirectional_attention", OFF, "every layer is causal"},
    {"is_encoder_decoder", OFF, "every layer is causal"},
    {"position_embedding_type", ROPE, "positions are told by RoPE"},
    {"alibi", OFF, "positions are told by RoPE"},
    {"no_rope_layers", ALL_ONES, "all layers have RoPE, or none (mixer.rope)"},
    {"no_rope_layer_interval", INTERVAL, "all layers have RoPE, or none (mixer.rope)"},
    {"rope_interleaved", OFF, "RoPE turns element i of a head with the one half a head further, not with its neighbour"},
    {"rope_interleave", OFF, "RoPE turns element i of a head with the one half a head further, not with its neighbour"},
    {"rope_local_base_freq", THETA, "all layers have one rope_theta"},
    {"rope_scaling.rope_theta", THETA, "write it as rope_theta beside rope_scaling"},
    {"partial_rotary_factor", ONE, "RoPE turns whole heads"},
    {"rope_scaling.partial_rotary_factor", ONE, "RoPE turns whole heads"},
    {"rope_parameters.partial_rotary_factor", ONE, "RoPE turns whole heads"},
    {"rotary_pct", ONE, "RoPE turns whole heads"},
    {"quantization_config", OFF, "convert the weights to bf16 or fp32 first"},
};

/* NULL: not there. */
static const json_t *find(const json_t *j, const char *name) {
    const char *dot = strchr(name, '.');
    char object[32];
    if (!dot) return json_object_get(j, name);
    snprintf(object, sizeof object, "%.*s", (int)(dot - name), name);
    return json_object_get(json_object_get(j, object), dot + 1);
}

/* ---- rules */

static bool is_text(const json_t *v, const char *text) { return json_is_string(v) && strcmp(json_string_value(v), text) == 0; }

/* A root is written with as many digits as pleased its writer. */
static bool is_number(const json_t *v, double x) { return json_is_number(v) && fabs(json_number_value(v) - x) <= 1e-6 * x; }

static bool is_off(const json_t *v) { return json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0); }

static double number_of(rule r, const ida_config *c) {
    const double dh = (double)(c->d_model / c->n_heads);
    switch (r) {
    case HEAD_DIM: return dh;
    case SCORE_SCALE: return 1 / sqrt(dh);
    case THETA: return c->rope_theta;
    default: return 1;
    }
}

static const char *layer_type(const char *window) {
    return strcmp(window, "sliding_window") == 0 ? "sliding_attention" : "chunked_attention";
}

/* Would layers with that window see less than the whole past? A window that is not there may be of any size. */
static bool narrow(const json_t *j, const char *window, const ida_config *c) {
    const json_t *w = json_object_get(j, window);
    if (strcmp(window, "sliding_window") == 0 && json_is_false(json_object_get(j, "use_sliding_window"))) return false;
    return !(json_is_number(w) && json_number_value(w) >= (double)c->max_position);
}

/* As in HF: layer_types tells, where it is; else Qwen's max_window_layers, the number of first layers without the window. */
static bool has_layers(const json_t *j, const char *window, const ida_config *c) {
    const json_t *types = json_object_get(j, "layer_types"), *without = json_object_get(j, "max_window_layers");
    if (json_is_array(types)) {
        for (size_t i = 0; i < json_array_size(types); i++)
            if (is_text(json_array_get(types, i), layer_type(window))) return true;
        return false;
    }
    return strcmp(window, "sliding_window") != 0 || !json_is_integer(without) || json_integer_value(without) < c->n_layers;
}

static bool whole_past(const json_t *types, const json_t *j, const ida_config *c) {
    static const char *const windows[] = {"sliding_window", "attention_chunk_size"};
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->n_layers) return false;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *t = json_array_get(types, i);
        bool whole = is_text(t, "full_attention");
        for (int k = 0; k < 2; k++) whole = whole || (is_text(t, layer_type(windows[k])) && !narrow(j, windows[k], c));
        if (!whole) return false;
    }
    return true;
}

static bool all_ones(const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_true(json_array_get(list, i)) && !is_number(json_array_get(list, i), 1)) return false;
    return json_array_size(list) > 0;
}

static bool harmless(const struct key *k, const json_t *v, const json_t *j, const ida_config *c) {
    if (!v || json_is_null(v)) return true;
    switch (k->rule) {
    case OFF: return is_off(v);
    case ON: return json_is_true(v);
    case SILU: return is_text(v, "silu");
    case ROPE: return json_is_string(v) && strcasecmp(json_string_value(v), "rope") == 0;
    case WINDOW: return is_off(v) || !narrow(j, k->name, c) || !has_layers(j, k->name, c);
    case LAYER_TYPES: return whole_past(v, j, c);
    case ALL_ONES: return all_ones(v);
    case INTERVAL: return is_off(v) || json_is_array(json_object_get(j, "no_rope_layers"));
    default: return is_number(v, number_of(k->rule, c));
    }
}

static void say_harmless(rule r, const ida_config *c, char *out, size_t size) {
    switch (r) {
    case OFF:
    case INTERVAL: snprintf(out, size, "null, false or 0"); return;
    case ON: snprintf(out, size, "true"); return;
    case SILU: snprintf(out, size, "\"silu\""); return;
    case ROPE: snprintf(out, size, "\"rope\""); return;
    case WINDOW: snprintf(out, size, "null or max_position_embeddings (%lld) and more", (long long)c->max_position); return;
    case LAYER_TYPES: snprintf(out, size, "num_hidden_layers (%lld) times \"full_attention\"", (long long)c->n_layers); return;
    case ALL_ONES: snprintf(out, size, "a list of 1"); return;
    default: snprintf(out, size, "%.9g", number_of(r, c));
    }
}

/* ---- RoPE's type: a missing key, an object per kind of layer and a scaling are three mistakes, with three remedies */

static ida_status refuse_scaled_rope(const json_t *j, const char *where, const char *name) {
    const json_t *o = json_object_get(j, name);
    if (!o || json_is_null(o)) return IDA_OK;
    IDA_FAIL_IF(!json_is_object(o), IDA_E_UNSUPPORTED, "%s: %s is not an object; leave it out for unscaled RoPE", where, name);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
        IDA_FAIL_IF(json_is_object(v), IDA_E_UNSUPPORTED,
                    "%s: %s.%.40s is an object; RoPE is one for all layers here: its keys must be those of %s itself", where,
                    name, key, name);
    const json_t *type = json_object_get(o, "rope_type");
    if (!type) type = json_object_get(o, "type");
    if (!type) { /* HF takes rope_parameters without one: they are there for rope_theta too */
        IDA_FAIL_IF(strcmp(name, "rope_scaling") == 0, IDA_E_UNSUPPORTED,
                    "%s: rope_scaling has no rope_type; only \"default\" is implemented, the same as no rope_scaling", where);
        return IDA_OK;
    }
    const char *t = json_string_value(type);
    IDA_FAIL_IF(!t, IDA_E_UNSUPPORTED, "%s: %s.rope_type (or type) is not a string, must be \"default\"", where, name);
    if (strcmp(t, "default") == 0 || (strcmp(t, "linear") == 0 && is_number(json_object_get(o, "factor"), 1))) return IDA_OK;
    IDA_FAIL(IDA_E_UNSUPPORTED, "%s: %s asks for RoPE type \"%.40s\"; only unscaled RoPE (\"default\") is implemented", where,
             name, t);
}

ida_status ida_config_refuse_foreign(const json_t *j, const char *where, const ida_config *c) {
    IDA_TRY(refuse_scaled_rope(j, where, "rope_scaling"));
    IDA_TRY(refuse_scaled_rope(j, where, "rope_parameters"));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct key *k = &keys[i];
        const json_t *v = find(j, k->name);
        if (harmless(k, v, j, c)) continue;
        char only[96], *given = ida_json_dump(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
        IDA_FAIL_IF(!given, IDA_E_NOMEM, "%s: out of memory", where);
        say_harmless(k->rule, c, only, sizeof only);
        (void)ida_fail(IDA_E_UNSUPPORTED, __FILE__, __LINE__,
                       "%s: %s is %.60s%s; only %s can be taken: %s; set it to null if the model does without", where, k->name,
                       given, strlen(given) > 60 ? "..." : "", only, k->why);
        ida_free(given);
        return IDA_E_UNSUPPORTED;
    }
    return IDA_OK;
}
