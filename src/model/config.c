/* config.c - ida_config from and to text, from one table of fields. The text is untrusted: every value is checked against its
 * range here, every product in ida_config_check, so nothing later can overflow. Not here: presets (presets.c), counts (info.c),
 * keys of other models (foreign.c).
 * Invariant: what ida_config_json and ida_config_json_over write, ida_config_parse reads back to the same config. */
#include "model/config.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/mem.h"
#include "model/foreign.h"
#include "model/blocks.h"
#include "ops/ops.h"

static const char *const mixer_names[] = {"softmax", "interdomain", "dual-linear", "single-query", "s4d"};
static const char *const basis_names[] = {"s4d-inv", "s4d-lin", "s4d-legs"};
static const char *const disc_names[] = {"zoh", "euler", "unit", "norm"};
static const char *const readout_names[] = {"hermitian", "bilinear"};
static const char *const c_init_names[] = {"normal", "identity", "whitened"};
enum { N_MIXERS = 5 };

typedef enum field_type { F_INT, F_REAL, F_BOOL, F_ENUM } field_type;
typedef struct field {
    const char *key;                /* "mixer.x" lies in the object "mixer" */
    field_type type;
    size_t offset;
    double lo, hi;                  /* F_INT, F_REAL */
    const char *const *names;       /* F_ENUM: hi + 1 of them */
} field;

#define INT_(key, member, lo, hi) {key, F_INT, offsetof(ida_config, member), lo, hi, NULL}
#define REAL_(key, member, lo, hi) {key, F_REAL, offsetof(ida_config, member), lo, hi, NULL}
#define BOOL_(key, member) {key, F_BOOL, offsetof(ida_config, member), 0, 1, NULL}
#define ENUM_(key, member, names) {key, F_ENUM, offsetof(ida_config, member), 0, sizeof names / sizeof *names - 1, names}
/* In the order of the file. The first four must be given. */
static const field fields[] = {
    INT_("vocab_size", vocab_size, 1, 1 << 24),
    INT_("hidden_size", d_model, 1, 65536),
    INT_("num_hidden_layers", n_layers, 1, IDA_MAX_LAYERS),
    INT_("num_attention_heads", n_heads, 1, 65536),
    INT_("num_key_value_heads", n_kv_heads, 1, 65536),
    INT_("intermediate_size", ffn_hidden, 1, 1 << 20),
    INT_("max_position_embeddings", max_position, 1, 1 << 30),
    REAL_("rms_norm_eps", norm_eps, IDA_LEAST_EPS, 1),
    REAL_("rope_theta", rope_theta, 1, 1e18),
    REAL_("initializer_range", init_std, 0, 100),
    BOOL_("tie_word_embeddings", tie_embeddings),
    INT_("bos_token_id", bos_id, -1, (1 << 24) - 1),
    INT_("eos_token_id", eos_id, -1, (1 << 24) - 1),
    INT_("mixer.state_size", state_size, 1, 4096),
    ENUM_("mixer.basis", basis, basis_names),
    ENUM_("mixer.discretization", discretization, disc_names),
    ENUM_("mixer.readout", readout, readout_names),
    ENUM_("mixer.c_init", c_init, c_init_names),
    BOOL_("mixer.rope", rope),
    BOOL_("mixer.gate", gate),
    BOOL_("mixer.output_norm", output_norm),
    REAL_("mixer.l2_eps", l2_eps, IDA_LEAST_EPS, 1),
    REAL_("mixer.dt_min", dt_min, 1e-9, 100),
    REAL_("mixer.dt_max", dt_max, 1e-9, 100),
};
enum { N_FIELDS = sizeof fields / sizeof *fields, N_REQUIRED = 4 };

static const char *short_key(const field *f) { return strncmp(f->key, "mixer.", 6) == 0 ? f->key + 6 : f->key; }
static bool in_mixer(const field *f) { return short_key(f) != f->key; }
/* All enums of ida_config have the size of int; -fshort-enums is not supported. */
_Static_assert(sizeof(ida_basis) == sizeof(int) && sizeof(ida_c_init) == sizeof(int), "enum fields are read as int");
static void *at(ida_config *c, const field *f) { return (char *)c + f->offset; }
static const void *at_const(const ida_config *c, const field *f) { return (const char *)c + f->offset; }

static int name_index(const char *const *names, int n, const char *s) {
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], s) == 0) return i;
    return -1;
}

static void join_names(const char *const *names, int n, char *out, size_t size) {
    size_t len = 0;
    out[0] = 0;
    for (int i = 0; i < n && len < size; i++) {
        int w = snprintf(out + len, size - len, "%s%s", i ? ", " : "", names[i]);
        if (w > 0) len += (size_t)w;
    }
}

const char *ida_mixer_name(ida_mixer_kind kind) {
    return (int)kind >= 0 && (int)kind < N_MIXERS ? mixer_names[kind] : "unknown";
}

ida_status ida_mixer_parse(const char *name, ida_mixer_kind *kind) {
    IDA_NEED(name);
    IDA_NEED(kind);
    int i = name_index(mixer_names, N_MIXERS, name);
    if (i < 0) {
        char list[128];
        join_names(mixer_names, N_MIXERS, list, sizeof list);
        IDA_FAIL(IDA_E_ARG, "mixer \"%s\" is not known; use one of: %s", name, list);
    }
    *kind = (ida_mixer_kind)i;
    return IDA_OK;
}

/* ---- check */

static ida_status check_field(const ida_config *c, const field *f) {
    const void *p = at_const(c, f);
    if (f->type == F_INT) {
        int64_t v = *(const int64_t *)p;
        IDA_FAIL_IF(v < (int64_t)f->lo || v > (int64_t)f->hi, IDA_E_ARG, "%s is %lld, must be %lld..%lld", f->key, (long long)v,
                    (long long)f->lo, (long long)f->hi);
    } else if (f->type == F_REAL) {
        double v = *(const double *)p;
        IDA_FAIL_IF(!(v >= f->lo && v <= f->hi), IDA_E_ARG, "%s is %g, must be %g..%g", f->key, v, f->lo, f->hi);
    } else if (f->type == F_ENUM) {
        int v = *(const int *)p;
        IDA_FAIL_IF(v < 0 || v > (int)f->hi, IDA_E_ARG, "%s is %d, not one of its %d values", f->key, v, (int)f->hi + 1);
    }
    return IDA_OK;
}

ida_status ida_config_check(const ida_config *c) {
    IDA_NEED(c);
    for (int i = 0; i < N_FIELDS; i++) IDA_TRY(check_field(c, &fields[i]));
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
    *c = (ida_config){.max_position = llama ? 2048 : 4096,
                      .norm_eps = llama ? 1e-6 : 1e-5,
                      .rope_theta = 10000,
                      .init_std = 0.02,
                      .bos_id = llama ? 1 : -1,
                      .eos_id = llama ? 2 : -1,
                      .state_size = 64,
                      .basis = IDA_BASIS_S4D_LIN,
                      .rope = true,
                      .l2_eps = 1e-6,
                      .dt_min = 1e-3,
                      .dt_max = 1e-1};
    memset(c->layer_mixer, llama ? IDA_MIXER_SOFTMAX : IDA_MIXER_INTERDOMAIN, sizeof c->layer_mixer);
}

/* First of all, as other models have other names for the shape. */
static ida_status check_model_type(const json_t *j, const char *where) {
    const json_t *type = json_object_get(j, "model_type");
    const char *t = json_string_value(type);
    IDA_FAIL_IF(type && !json_is_null(type) && (!t || (strcmp(t, "idattn") != 0 && strcmp(t, "llama") != 0)), IDA_E_UNSUPPORTED,
                "%s: model_type is \"%s\"; this program reads \"idattn\" and \"llama\"", where, t ? t : "not a string");
    return IDA_OK;
}

static ida_status parse_field(const json_t *o, const char *where, const field *f, bool required, ida_config *c) {
    const char *key = short_key(f);
    void *p = at(c, f);
    if (f->type == F_INT)
        return ida_json_i64(o, where, key, (int64_t)f->lo, (int64_t)f->hi, required ? NULL : (const int64_t *)p, (int64_t *)p);
    if (f->type == F_REAL) return ida_json_f64(o, where, key, f->lo, f->hi, (const double *)p, (double *)p);
    if (f->type == F_BOOL) return ida_json_bool(o, where, key, (const bool *)p, (bool *)p);
    const char *s;
    IDA_TRY(ida_json_str(o, where, key, f->names[*(int *)p], &s));
    int i = name_index(f->names, (int)f->hi + 1, s);
    if (i < 0) {
        char list[128];
        join_names(f->names, (int)f->hi + 1, list, sizeof list);
        IDA_FAIL(IDA_E_FORMAT, "%s: %s is \"%s\", must be one of: %s", where, key, s, list);
    }
    *(int *)p = i;
    return IDA_OK;
}

/* HF allows a list of end-of-text ids: its first is ours. */
static ida_status parse_token_id(const json_t *o, const char *where, const field *f, ida_config *c) {
    const json_t *v = json_object_get(o, f->key);
    int64_t *p = at(c, f);
    if (json_is_null(v)) { *p = -1; return IDA_OK; }
    if (!json_is_array(v)) return parse_field(o, where, f, false, c);
    IDA_FAIL_IF(json_array_size(v) == 0 || !json_is_integer(json_array_get(v, 0)), IDA_E_FORMAT,
                "%s: %s is a list that does not begin with an integer", where, f->key);
    *p = json_integer_value(json_array_get(v, 0));
    IDA_FAIL_IF(*p < 0 || *p > (int64_t)f->hi, IDA_E_FORMAT, "%s: %s begins with %lld, must be 0..%lld", where, f->key,
                (long long)*p, (long long)f->hi);
    return IDA_OK;
}

/* A misspelt option would silently be its default: inside "mixer" every key must be known. */
static ida_status check_mixer_keys(const json_t *mixer, const char *where) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)mixer, key, value) {
        bool known = strcmp(key, "kind") == 0 || strcmp(key, "conv_width") == 0;
        for (int i = 0; !known && i < N_FIELDS; i++) known = in_mixer(&fields[i]) && strcmp(short_key(&fields[i]), key) == 0;
        IDA_FAIL_IF(!known, IDA_E_FORMAT, "%s: mixer.%s is not an option of the mixer; correct or remove it", where, key);
    }
    return IDA_OK;
}

static ida_status parse_mixers(const json_t *j, const json_t *mixer, const char *where, ida_config *c) {
    const char *kind;
    ida_mixer_kind k;
    IDA_TRY(check_mixer_keys(mixer, where));
    IDA_TRY(ida_json_str(mixer, where, "kind", mixer_names[c->layer_mixer[0]], &kind));
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

static ida_status parse_object(const json_t *j, const char *where, ida_config *out) {
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
    double theta = c.rope_theta;
    if (json_is_object(rope)) {
        IDA_TRY_GOTO(ida_json_f64(rope, where, "rope_theta", 1, 1e18, &theta, &theta));
        c.rope_theta = theta;
    }
    for (int i = 0; i < N_FIELDS; i++) {
        const field *f = &fields[i];
        if (i == N_REQUIRED) { /* defaults that depend on what was given */
            c.n_kv_heads = c.n_heads;
            c.ffn_hidden = is_llama(j) ? 11008 : ida_config_ffn(c.d_model);
        }
        if (f->type == F_INT && f->lo < 0) IDA_TRY_GOTO(parse_token_id(j, where, f, &c));
        else IDA_TRY_GOTO(parse_field(in_mixer(f) ? mixer : j, where, f, i < N_REQUIRED, &c));
    }
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
    ida_status st = parse_object(j, where, cfg);
    json_decref(j);
    return st;
}

ida_status ida_config_load(const char *path, ida_config *cfg) {
    IDA_NEED(path);
    IDA_NEED(cfg);
    json_t *j = NULL;
    IDA_TRY(ida_json_load(path, IDA_CONFIG_BYTES, &j));
    ida_status st = parse_object(j, path, cfg);
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

static ida_status set_number(const field *f, const char *value, void *p) {
    json_error_t e;
    json_t *v = json_loads(value, JSON_DECODE_ANY, &e); /* numbers as in JSON: no locale, no hex, nothing after them */
    ida_status st = IDA_OK;
    if (f->type == F_INT ? !json_is_integer(v) : !json_is_number(v))
        IDA_FAIL_GOTO(IDA_E_ARG, "%s=%s: %s is needed", f->key, value, f->type == F_INT ? "a whole number" : "a number");
    double d = json_number_value(v);
    if (!(d >= f->lo && d <= f->hi)) {
        if (f->type == F_INT)
            IDA_FAIL_GOTO(IDA_E_ARG, "%s=%s: must be %lld..%lld", f->key, value, (long long)f->lo, (long long)f->hi);
        IDA_FAIL_GOTO(IDA_E_ARG, "%s=%s: must be %g..%g", f->key, value, f->lo, f->hi);
    }
    if (f->type == F_INT) *(int64_t *)p = json_integer_value(v);
    else *(double *)p = d;
out:
    json_decref(v);
    return st;
}

ida_status ida_config_set(ida_config *c, const char *key, const char *value) {
    IDA_NEED(c);
    IDA_NEED(key);
    IDA_NEED(value);
    if (strcmp(key, "mixer.kind") == 0) {
        ida_mixer_kind k;
        IDA_TRY(ida_mixer_parse(value, &k));
        memset(c->layer_mixer, (int)k, sizeof c->layer_mixer);
        return IDA_OK;
    }
    if (strcmp(key, "layer_mixers") == 0) return set_mixers(c, value);
    for (int i = 0; i < N_FIELDS; i++) {
        const field *f = &fields[i];
        if (strcmp(f->key, key) != 0) continue;
        void *p = at(c, f);
        if (f->type == F_INT || f->type == F_REAL) return set_number(f, value, p);
        if (f->type == F_BOOL) {
            bool yes = strcmp(value, "true") == 0;
            IDA_FAIL_IF(!yes && strcmp(value, "false") != 0, IDA_E_ARG, "%s=%s: must be true or false", key, value);
            *(bool *)p = yes;
            return IDA_OK;
        }
        int k = name_index(f->names, (int)f->hi + 1, value);
        char list[128];
        join_names(f->names, (int)f->hi + 1, list, sizeof list);
        IDA_FAIL_IF(k < 0, IDA_E_ARG, "%s=%s: must be one of: %s", key, value, list);
        *(int *)p = k;
        return IDA_OK;
    }
    const char *keys[N_FIELDS + 2];
    for (int i = 0; i < N_FIELDS; i++) keys[i] = fields[i].key;
    keys[N_FIELDS] = "mixer.kind";
    keys[N_FIELDS + 1] = "layer_mixers";
    char list[640];
    join_names(keys, N_FIELDS + 2, list, sizeof list);
    IDA_FAIL(IDA_E_ARG, "configuration key \"%s\" is not known; known: %s", key, list);
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

static json_t *field_json(const ida_config *c, const field *f) {
    const void *p = at_const(c, f);
    switch (f->type) {
    case F_INT: return f->lo < 0 && *(const int64_t *)p < 0 ? json_null() : json_integer(*(const int64_t *)p);
    case F_REAL: return json_real(*(const double *)p);
    case F_BOOL: return json_boolean(*(const bool *)p);
    case F_ENUM: break;
    }
    return json_string(f->names[*(const int *)p]);
}

/* 15 digits read well (1e-05, not 1.0000000000000001e-05) and are exact for what people type; else 17. */
static int digits_needed(const json_t *j) {
    int most = 15;
    size_t i;
    const char *key;
    json_t *v;
    if (json_is_real(j)) {
        char s[40];
        snprintf(s, sizeof s, "%.15g", json_real_value(j));
        if (strtod(s, NULL) != json_real_value(j)) most = 17;
    }
    json_array_foreach(j, i, v) if (digits_needed(v) > most) most = 17;
    json_object_foreach((json_t *)(uintptr_t)j, key, v) if (digits_needed(v) > most) most = 17;
    return most;
}

static char *dump(const json_t *j) { return ida_json_dump(j, JSON_INDENT(2) | JSON_REAL_PRECISION((size_t)digits_needed(j))); }

/* NULL = no memory. */
static json_t *config_object(const ida_config *c) {
    bool llama = plain_llama(c);
    json_t *mixer = json_pack("{s:s}", "kind", mixer_names[c->layer_mixer[0]]);
    json_t *j =
        json_pack("{s:[s], s:s, s:s, s:b, s:b, s:I, s:s}", "architectures", llama ? "LlamaForCausalLM" : "IdattnForCausalLM",
                  "model_type", llama ? "llama" : "idattn", "hidden_act", "silu", "attention_bias", 0, "mlp_bias", 0, "head_dim",
                  (json_int_t)(c->d_model / c->n_heads), "torch_dtype", "float32");
    int bad = !mixer || !j;
    for (int i = 0; i < N_FIELDS && !bad; i++)
        bad = json_object_set_new(in_mixer(&fields[i]) ? mixer : j, short_key(&fields[i]), field_json(c, &fields[i]));
    if (!bad) bad = json_object_set_new(mixer, "conv_width", json_integer(4));
    if (!bad) bad = json_object_set(j, "mixer", mixer);
    if (!bad && !uniform(c)) {
        json_t *list = json_array();
        for (int64_t l = 0; l < c->n_layers && !bad; l++)
            bad = json_array_append_new(list, json_string(mixer_names[c->layer_mixer[l]]));
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
    *text = bad ? NULL : dump(all);
    json_decref(all);
    if (!*text || strlen(*text) < IDA_CONFIG_BYTES) return IDA_OK;
    ida_log("config.json: its other keys are not kept: with them it would be over the %d bytes that are read", IDA_CONFIG_BYTES);
    ida_free(*text);
    *text = dump(ours);
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
    else if (ours) text = dump(ours);
    json_decref(ours);
    IDA_TRY(st);
    IDA_FAIL_IF(!text, IDA_E_NOMEM, "out of memory while writing the model configuration");
    *json = text;
    return IDA_OK;
}

ida_status ida_config_json(const ida_config *c, char **json) { return ida_config_json_over(c, NULL, json); }
