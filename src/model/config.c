/* config.c - ida_config from and to text, from one table (core/fields.h). The text is untrusted: every value is
 * checked against its range there, every product in ida_config_check, so nothing later can overflow.
 * Not here: presets (presets.c), counts (info.c), keys of other models (foreign.c).
 * Invariant: what ida_config_json and ida_config_json_over write, ida_config_parse reads back to the same config. */
#include "model/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/names.h"
#include "model/foreign.h"
#include "model/blocks.h"
#include "ops/ops.h"

static const char *const basis_names[] = {
    [IDA_BASIS_S4D_INV] = "s4d-inv", [IDA_BASIS_S4D_LIN] = "s4d-lin", [IDA_BASIS_S4D_LEGS] = "s4d-legs", NULL};
static const char *const c_init_names[] = {
    [IDA_C_NORMAL] = "normal", [IDA_C_IDENTITY] = "identity", [IDA_C_WHITENED] = "whitened", NULL};

/* In the order of the file. Defaults are those of the presets; a Llama's are in set_defaults. */
#define C ida_config
static const ida_field rows[] = {
    IDA_ROW_INT(C, "vocab_size", vocab_size, 0, 1, 1 << 24, .flags = IDA_FIELD_REQUIRED, .help = "token ids"),
    IDA_ROW_INT(C, "hidden_size", d_model, 0, 1, 65536, .flags = IDA_FIELD_REQUIRED,
                .help = "width of the residual stream"),
    IDA_ROW_INT(C, "num_hidden_layers", n_layers, 0, 1, IDA_MAX_LAYERS, .flags = IDA_FIELD_REQUIRED, .help = "layers"),
    IDA_ROW_INT(C, "num_attention_heads", n_heads, 0, 1, 65536, .flags = IDA_FIELD_REQUIRED,
                .help = "query heads of a layer"),
    IDA_ROW_INT(C, "num_key_value_heads", n_kv_heads, 0, 1, 65536, .flags = IDA_FIELD_DERIVED,
                .help = "groups of heads that share keys, values and state [num_attention_heads]"),
    IDA_ROW_INT(C, "intermediate_size", ffn_hidden, 0, 1, 1 << 20, .flags = IDA_FIELD_DERIVED,
                .help = "width of the feed-forward layer [8/3 of hidden_size, rounded up to a multiple of 128]"),
    IDA_ROW_INT(C, "max_position_embeddings", max_position, 4096, 1, 1 << 30,
                .help = "training length; no mixer is limited to it"),
    IDA_ROW_REAL(C, "rms_norm_eps", norm_eps, 1e-5, IDA_LEAST_EPS, 1, .help = "under the root of RMSNorm"),
    IDA_ROW_REAL(C, "rope_theta", rope_theta, 10000, 1, 1e18, .help = "base of the rotary embedding"),
    IDA_ROW_REAL(C, "initializer_range", init_std, 0.02, 0, 100, .help = "standard deviation of initial matrices"),
    IDA_ROW_BOOL(C, "tie_word_embeddings", tie_embeddings, false, .help = "the head is the embedding table"),
    IDA_ROW_INT(C, "bos_token_id", bos_id, -1, -1, (1 << 24) - 1, .flags = IDA_FIELD_NULL,
                .help = "token that begins a text", .note = "-1 or null = none"),
    IDA_ROW_INT(C, "eos_token_id", eos_id, -1, -1, (1 << 24) - 1, .flags = IDA_FIELD_NULL,
                .help = "token that ends a text", .note = "-1 or null = none"),
    IDA_ROW_INT(C, "mixer.state_size", state_size, 64, 1, 4096, .help = "M: complex basis functions of a head"),
    IDA_ROW_ENUM(C, "mixer.basis", basis, IDA_BASIS_S4D_LIN, basis_names, .help = "initial poles"),
    IDA_ROW_ENUM(C, "mixer.discretization", discretization, IDA_DISC_ZOH, ida_disc_names,
                 .help = "from poles to decay"),
    IDA_ROW_ENUM(C, "mixer.readout", readout, IDA_READOUT_HERMITIAN, ida_readout_names,
                 .help = "product of query and key features"),
    IDA_ROW_ENUM(C, "mixer.c_init", c_init, IDA_C_NORMAL, c_init_names, .help = "initial C"),
    IDA_ROW_BOOL(C, "mixer.rope", rope, true, .help = "rotary embedding on q and k"),
    IDA_ROW_BOOL(C, "mixer.gate", gate, false, .help = "SiLU gate on the output"),
    IDA_ROW_BOOL(C, "mixer.output_norm", output_norm, false, .help = "RMSNorm of each head's output"),
    IDA_ROW_REAL(C, "mixer.l2_eps", l2_eps, 1e-6, IDA_LEAST_EPS, 1, .help = "under the root of the feature map"),
    IDA_ROW_REAL(C, "mixer.dt_min", dt_min, 1e-3, 1e-9, 100, .help = "least initial step"),
    IDA_ROW_REAL(C, "mixer.dt_max", dt_max, 1e-1, 1e-9, 100, .help = "largest initial step"),
    {.key = "mixer.kind", .type = IDA_FIELD_ENUM, .flags = IDA_FIELD_OWNER, .names = ida_mixer_names,
     .help = "of all layers"},
    {.key = "layer_mixers", .type = IDA_FIELD_LIST, .flags = IDA_FIELD_OWNER, .names = ida_mixer_names,
     .arg = "KIND,...", .help = "one for each layer"},
};
#undef C
const ida_fields ida_config_fields = IDA_FIELDS("config", "", ida_config, rows);

static const char *short_key(const ida_field *f) { return strncmp(f->key, "mixer.", 6) == 0 ? f->key + 6 : f->key; }
static bool in_mixer(const ida_field *f) { return short_key(f) != f->key; }

static int mixer_kinds(void) { return ida_names_count(ida_mixer_names); }

const char *ida_mixer_name(ida_mixer_kind kind) {
    return (int)kind >= 0 && (int)kind < mixer_kinds() ? ida_mixer_names[kind] : "unknown";
}

ida_status ida_mixer_parse(const char *name, ida_mixer_kind *kind) {
    IDA_NEED(name);
    IDA_NEED(kind);
    int i = ida_names_find(ida_mixer_names, name);
    if (i < 0) {
        char list[128];
        ida_names_join(ida_mixer_names, 0, NULL, list, sizeof list);
        IDA_FAIL(IDA_E_ARG, "mixer \"%.60s\" is not known; use one of: %s", name, list);
    }
    *kind = (ida_mixer_kind)i;
    return IDA_OK;
}

/* ---- check */

ida_status ida_config_check(const ida_config *c) {
    IDA_NEED(c);
    IDA_TRY(ida_fields_check(&ida_config_fields, c));
    /* derived rows: above, 0 is one that was not given */
    IDA_TRY(ida_fields_check_one(&ida_config_fields, c, "num_key_value_heads"));
    IDA_TRY(ida_fields_check_one(&ida_config_fields, c, "intermediate_size"));
    IDA_FAIL_IF(c->d_model % c->n_heads != 0, IDA_E_ARG, "hidden_size %lld is not a multiple of num_attention_heads %lld",
                (long long)c->d_model, (long long)c->n_heads);
    IDA_FAIL_IF(c->n_heads % c->n_kv_heads != 0, IDA_E_ARG,
                "num_attention_heads %lld is not a multiple of num_key_value_heads %lld", (long long)c->n_heads,
                (long long)c->n_kv_heads);
    IDA_FAIL_IF(c->rope && (c->d_model / c->n_heads) % 2 != 0, IDA_E_ARG,
                "the head width hidden_size/num_attention_heads is %lld; mixer.rope needs it even (or set mixer.rope to false)",
                (long long)(c->d_model / c->n_heads));
    IDA_FAIL_IF(c->dt_min > c->dt_max, IDA_E_ARG, "mixer.dt_min %g is above mixer.dt_max %g", c->dt_min, c->dt_max);
    IDA_FAIL_IF(c->bos_id >= c->vocab_size || c->eos_id >= c->vocab_size, IDA_E_ARG,
                "bos_token_id %lld or eos_token_id %lld is outside the vocabulary of %lld", (long long)c->bos_id,
                (long long)c->eos_id, (long long)c->vocab_size);
    IDA_TRY(ida_layers_check(c));
    ida_model_info info;
    IDA_TRY(ida_config_count(c, &info));
    IDA_FAIL_IF(info.parameters > IDA_MAX_ELEMENTS, IDA_E_ARG, "this config has %lld parameters; the limit is %lld",
                (long long)info.parameters, (long long)IDA_MAX_ELEMENTS);
    IDA_FAIL_IF(info.state_bytes / 4 > IDA_MAX_ELEMENTS, IDA_E_ARG,
                "this config has %lld bytes of state per sequence; the limit is %lld", (long long)info.state_bytes,
                (long long)IDA_MAX_ELEMENTS * 4);
    return IDA_OK;
}

/* ---- parse */

static bool is_llama(const json_t *j) {
    const char *t = json_string_value(json_object_get(j, "model_type"));
    return t && strcmp(t, "llama") == 0;
}

/* Values of absent keys. A Llama config gets HF's own defaults; anything else those of the presets. */
static void set_defaults(ida_config *c, bool llama) {
    ida_fields_defaults(&ida_config_fields, c);
    memset(c->layer_mixer, llama ? IDA_MIXER_SOFTMAX : IDA_MIXER_DEFAULT, sizeof c->layer_mixer);
    if (!llama) return;
    c->max_position = 2048;
    c->norm_eps = 1e-6;
    c->bos_id = 1;
    c->eos_id = 2;
}

/* What depends on the rest of the shape and was not given. */
static void derive(ida_config *c, bool llama) {
    if (!c->n_kv_heads) c->n_kv_heads = c->n_heads;
    if (!c->ffn_hidden) c->ffn_hidden = llama ? 11008 : ida_config_ffn(c->d_model);
}

/* First of all, as other models have other names for the shape. */
static ida_status check_model_type(const json_t *j, const char *where) {
    const json_t *type = json_object_get(j, "model_type");
    const char *t = json_string_value(type);
    IDA_FAIL_IF(type && !json_is_null(type) && (!t || (strcmp(t, "idattn") != 0 && strcmp(t, "llama") != 0)), IDA_E_UNSUPPORTED,
                "%s: model_type is \"%s\"; this program reads \"idattn\" and \"llama\"", where, t ? t : "not a string");
    return IDA_OK;
}

/* HF allows a list of end-of-text ids: its first is ours. */
static ida_status parse_first_id(const json_t *list, const char *where, const ida_field *f, int64_t *id) {
    const json_t *first = json_array_get(list, 0);
    IDA_FAIL_IF(!json_is_integer(first), IDA_E_FORMAT, "%s: %s is a list that does not begin with an integer", where,
                f->key);
    *id = json_integer_value(first);
    IDA_FAIL_IF(*id < 0 || *id > (int64_t)f->hi, IDA_E_FORMAT, "%s: %s begins with %lld, must be 0..%lld", where,
                f->key, (long long)*id, (long long)f->hi);
    return IDA_OK;
}

static ida_status parse_field(const json_t *o, const char *where, const ida_field *f, ida_config *c) {
    const json_t *v = json_object_get(o, short_key(f));
    if (f->flags & IDA_FIELD_NULL && json_is_array(v))
        return parse_first_id(v, where, f, (int64_t *)(void *)((char *)c + f->offset));
    return ida_field_from_json(f, o, where, short_key(f), c);
}

/* A misspelt option would silently be its default: inside "mixer" every key must be known. */
static ida_status check_mixer_keys(const json_t *mixer, const char *where) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)mixer, key, value) {
        bool known = strcmp(key, "conv_width") == 0;
        for (int64_t i = 0; !known && i < IDA_COUNT(rows); i++)
            known = in_mixer(&rows[i]) && strcmp(short_key(&rows[i]), key) == 0;
        IDA_FAIL_IF(!known, IDA_E_FORMAT, "%s: mixer.%s is not an option of the mixer; correct or remove it", where, key);
    }
    return IDA_OK;
}

static ida_status parse_mixers(const json_t *j, const json_t *mixer, const char *where, ida_config *c) {
    const char *kind;
    ida_mixer_kind k;
    IDA_TRY(check_mixer_keys(mixer, where));
    IDA_TRY(ida_json_str(mixer, where, "kind", ida_mixer_names[c->layer_mixer[0]], &kind));
    if (ida_mixer_parse(kind, &k) != IDA_OK) return ida_fail_prefix(IDA_E_FORMAT, "%s: mixer.kind", where);
    memset(c->layer_mixer, (int)k, sizeof c->layer_mixer);
    int64_t width = 4;
    IDA_TRY(ida_json_i64(mixer, where, "conv_width", INT64_MIN, INT64_MAX, &width, &width));
    IDA_FAIL_IF(width != 4, IDA_E_UNSUPPORTED, "%s: mixer.conv_width is %lld; only 4 is implemented", where, (long long)width);

    const json_t *list = json_object_get(j, "layer_mixers");
    if (!list || json_is_null(list)) return IDA_OK;
    IDA_FAIL_IF(!json_is_array(list) || json_array_size(list) != (size_t)c->n_layers, IDA_E_FORMAT,
                "%s: layer_mixers must be a list of num_hidden_layers (%lld) mixer names", where, (long long)c->n_layers);
    for (size_t l = 0; l < json_array_size(list); l++) {
        const char *s = json_string_value(json_array_get(list, l));
        IDA_FAIL_IF(!s, IDA_E_FORMAT, "%s: layer_mixers[%zu] is not a string", where, l);
        if (ida_mixer_parse(s, &k) != IDA_OK) return ida_fail_prefix(IDA_E_FORMAT, "%s: layer_mixers[%zu]", where, l);
        c->layer_mixer[l] = (uint8_t)k;
    }
    return IDA_OK;
}

ida_status ida_config_from_json(const json_t *j, const char *where, ida_config *out) {
    IDA_FAIL_IF(!json_is_object(j), IDA_E_FORMAT, "%s: a model configuration is a JSON object", where);
    IDA_TRY(check_model_type(j, where));
    ida_config c;
    set_defaults(&c, is_llama(j));
    json_t *none = json_object();
    IDA_FAIL_IF(!none, IDA_E_NOMEM, "%s: out of memory", where);
    const json_t *mixer = json_object_get(j, "mixer");
    if (!mixer || json_is_null(mixer)) mixer = none;
    ida_status st = IDA_OK;
    if (!json_is_object(mixer)) IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: \"mixer\" must be an object", where);

    /* v5 of HF transformers keeps rope_theta inside rope_parameters; a v4 key beside it must agree. */
    const json_t *rope = json_object_get(j, "rope_parameters");
    if (json_is_object(rope))
        IDA_TRY_GOTO(
            ida_field_from_json(ida_fields_find(&ida_config_fields, "rope_theta"), rope, where, "rope_theta", &c));
    double theta = c.rope_theta;
    for (int64_t i = 0; i < IDA_COUNT(rows); i++)
        if (!(rows[i].flags & IDA_FIELD_OWNER))
            IDA_TRY_GOTO(parse_field(in_mixer(&rows[i]) ? mixer : j, where, &rows[i], &c));
    derive(&c, is_llama(j));
    if (json_is_object(rope) && json_object_get(rope, "rope_theta") && c.rope_theta != theta)
        IDA_FAIL_GOTO(IDA_E_FORMAT, "%s: rope_theta is %g, but rope_parameters.rope_theta is %g", where, c.rope_theta, theta);
    IDA_TRY_GOTO(parse_mixers(j, mixer, where, &c));
    if (ida_config_check(&c) != IDA_OK) { st = ida_fail_prefix(IDA_E_FORMAT, "%s", where); goto out; }
    IDA_TRY_GOTO(ida_config_refuse_foreign(j, where, &c));
    *out = c;
out:
    json_decref(none);
    return st;
}

ida_status ida_config_parse(const char *text, size_t n, const char *where, ida_config *cfg) {
    json_t *j = NULL;
    IDA_TRY(ida_json_parse(text, n, where, &j));
    ida_status st = ida_config_from_json(j, where, cfg);
    json_decref(j);
    return st;
}

ida_status ida_config_load(const char *path, ida_config *cfg) {
    IDA_NEED(path);
    IDA_NEED(cfg);
    json_t *j = NULL;
    IDA_TRY(ida_json_load(path, IDA_CONFIG_BYTES, &j));
    ida_status st = ida_config_from_json(j, path, cfg);
    json_decref(j);
    return st;
}

/* ---- set one field */

static ida_status set_mixers(ida_config *c, const char *value) {
    ida_mixer_kind kinds[IDA_MAX_LAYERS];
    int64_t n = 0;
    for (const char *p = value;; n++) {
        size_t len = strcspn(p, ",");
        char name[32];
        IDA_FAIL_IF(len >= sizeof name, IDA_E_ARG, "layer_mixers: \"%.32s...\" is not a mixer", p);
        IDA_FAIL_IF(n == IDA_MAX_LAYERS, IDA_E_ARG, "layer_mixers: more than %d names", IDA_MAX_LAYERS);
        memcpy(name, p, len);
        name[len] = 0;
        if (ida_mixer_parse(name, &kinds[n]) != IDA_OK) return ida_fail_prefix(IDA_E_ARG, "layer_mixers[%lld]", (long long)n);
        if (!p[len]) { n++; break; }
        p += len + 1;
    }
    IDA_FAIL_IF(n != c->n_layers, IDA_E_ARG, "layer_mixers has %lld names, num_hidden_layers is %lld (set that first)",
                (long long)n, (long long)c->n_layers);
    for (int64_t l = 0; l < n; l++) c->layer_mixer[l] = (uint8_t)kinds[l];
    return IDA_OK;
}

ida_status ida_config_set(ida_config *c, const char *key, const char *value) {
    IDA_NEED(c);
    IDA_NEED(key);
    IDA_NEED(value);
    if (strcmp(key, "layer_mixers") == 0) return set_mixers(c, value);
    if (strcmp(key, "mixer.kind") == 0) {
        ida_mixer_kind k;
        IDA_TRY(ida_mixer_parse(value, &k));
        memset(c->layer_mixer, (int)k, sizeof c->layer_mixer);
        return IDA_OK;
    }
    IDA_TRY(ida_fields_set(&ida_config_fields, c, key, value, NULL));
    derive(c, false);
    return IDA_OK;
}

/* ---- write */

static bool uniform(const ida_config *c) {
    for (int64_t l = 1; l < c->n_layers; l++)
        if (c->layer_mixer[l] != c->layer_mixer[0]) return false;
    return true;
}

/* A softmax model without our additions is an HF Llama, tensor for tensor: say so, and HF loads it. */
static bool plain_llama(const ida_config *c) {
    return uniform(c) && c->layer_mixer[0] == IDA_MIXER_SOFTMAX && c->rope && !c->gate && !c->output_norm;
}

/* As ida_config_set takes them. */
static void show_mixers(const ida_config *c, char out[96]) {
    size_t len = 0;
    int64_t n = uniform(c) ? 1 : c->n_layers;
    for (int64_t l = 0; l < n && len < 96; l++)
        len += (size_t)snprintf(out + len, 96 - len, "%s%s", l ? "," : "",
                                ida_mixer_name((ida_mixer_kind)c->layer_mixer[l]));
}

bool ida_config_differ(const ida_config *a, const ida_config *b, ida_difference *d) {
    if (ida_fields_differ(&ida_config_fields, a, b, 0, d)) return true;
    if (memcmp(a->layer_mixer, b->layer_mixer, (size_t)a->n_layers) == 0) return false;
    snprintf(d->key, sizeof d->key, "%s", uniform(a) && uniform(b) ? "mixer.kind" : "layer_mixers");
    show_mixers(a, d->a);
    show_mixers(b, d->b);
    return true;
}

/* NULL = no memory. */
static json_t *config_object(const ida_config *c) {
    bool llama = plain_llama(c);
    json_t *mixer = json_pack("{s:s}", "kind", ida_mixer_names[c->layer_mixer[0]]);
    json_t *j =
        json_pack("{s:[s], s:s, s:s, s:b, s:b, s:I, s:s}", "architectures", llama ? "LlamaForCausalLM" : "IdattnForCausalLM",
                  "model_type", llama ? "llama" : "idattn", "hidden_act", "silu", "attention_bias", 0, "mlp_bias", 0, "head_dim",
                  (json_int_t)(c->d_model / c->n_heads), "torch_dtype", "float32");
    int bad = !mixer || !j;
    for (const ida_field *f = rows; f < rows + IDA_COUNT(rows) && !bad; f++)
        if (!(f->flags & IDA_FIELD_OWNER))
            bad = json_object_set_new(in_mixer(f) ? mixer : j, short_key(f), ida_field_to_json(f, c));
    if (!bad) bad = json_object_set_new(mixer, "conv_width", json_integer(4));
    if (!bad) bad = json_object_set(j, "mixer", mixer);
    if (!bad && !uniform(c)) {
        json_t *list = json_array();
        for (int64_t l = 0; l < c->n_layers && !bad; l++)
            bad = json_array_append_new(list, json_string(ida_mixer_names[c->layer_mixer[l]]));
        if (json_object_set_new(j, "layer_mixers", list)) bad = 1;
    }
    json_decref(mixer);
    if (!bad) return j;
    json_decref(j);
    return NULL;
}

/* Ours over `old`. What would contradict ours and is not written goes: "dtype" is torch_dtype's later name. */
static ida_status merge(const ida_config *c, const json_t *ours, const char *old, char **text) {
    json_t *all = NULL, *v;
    const char *key;
    bool bad = false;
    IDA_TRY(ida_json_parse(old, strlen(old), "config.json", &all));
    json_object_del(all, "dtype");
    if (uniform(c)) json_object_del(all, "layer_mixers");
    json_object_foreach((json_t *)(uintptr_t)ours, key, v) bad = json_object_set(all, key, v) || bad;
    *text = bad ? NULL : ida_json_dump_exact(all);
    json_decref(all);
    if (!*text || strlen(*text) < IDA_CONFIG_BYTES) return IDA_OK;
    ida_log("config.json: its other keys are not kept: with them it would be over the %d bytes that are read", IDA_CONFIG_BYTES);
    ida_free(*text);
    *text = ida_json_dump_exact(ours);
    return IDA_OK;
}

ida_status ida_config_json_over(const ida_config *c, const char *old, char **json) {
    IDA_NEED(c);
    IDA_NEED(json);
    IDA_TRY(ida_config_check(c));
    json_t *ours = config_object(c);
    char *text = NULL;
    ida_status st = IDA_OK;
    if (ours && old) st = merge(c, ours, old, &text);
    else if (ours) text = ida_json_dump_exact(ours);
    json_decref(ours);
    IDA_TRY(st);
    IDA_FAIL_IF(!text, IDA_E_NOMEM, "out of memory while writing the model configuration");
    *json = text;
    return IDA_OK;
}

ida_status ida_config_json(const ida_config *c, char **json) { return ida_config_json_over(c, NULL, json); }
