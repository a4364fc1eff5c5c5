/* info.c - `idattn info`: what a model is and takes, from its configuration alone where there is no need to read weights. */
#include <string.h>

#include "commands.h"
#include "common.h"

static int64_t state_at(const ida_model_info *in, int64_t tokens) { return in->state_bytes + in->state_bytes_per_token * tokens; }

static int load_config(const options *o, const char *path, ida_config *cfg) {
    char *dir = NULL;
    ida_status st = path_is_dir(path) ? ida_model_resolve(path, &dir) : IDA_OK;
    if (st) return fail(o, st, NULL);
    char *file = dir ? join_path(dir, "config.json") : strdup(path);
    ida_string_free(dir);
    if (!file) return fail_text(o, "out of memory");
    st = ida_config_load(file, cfg);
    free(file);
    return st ? fail(o, st, NULL) : 0;
}

/* "interdomain" or "interdomain x 8, softmax x 4". */
static void mixers_text(const ida_config *cfg, char *out, size_t size) {
    int64_t count[IDA_MIXER_S4D + 1] = {0};
    size_t at = 0;
    for (int64_t i = 0; i < cfg->n_layers; i++) count[cfg->layer_mixer[i]]++;
    *out = 0;
    for (int k = 0; k <= IDA_MIXER_S4D && at < size; k++) {
        if (!count[k]) continue;
        int n = count[k] == cfg->n_layers ? snprintf(out + at, size - at, "%s", ida_mixer_name((ida_mixer_kind)k))
                                          : snprintf(out + at, size - at, "%s%s x %lld", at ? ", " : "",
                                                     ida_mixer_name((ida_mixer_kind)k), (long long)count[k]);
        at += (size_t)n;
    }
}

static int run_info(const options *o) {
    progress p;
    ida_config cfg;
    ida_model_info in;
    ida_status st;
    char *text = NULL;
    int rc = begin(o, &p);
    if (rc) return rc;
    if (o->n_args && (opt_given(o, "preset") || opt_given(o, "config") || opt_given(o, "mixer") || opt_given(o, "set")))
        return usage_error(o->cmd, "MODEL and --preset, --config, --mixer, --set exclude each other");
    rc = o->n_args ? load_config(o, o->args[0], &cfg) : config_from_options(o, &cfg);
    if (rc) return rc;
    if ((st = ida_config_info(&cfg, &in)) || (st = ida_config_json(&cfg, &text))) return fail(o, st, &p);
    json_t *config = parse_library_json(text);
    if (opt_flag(o, "json"))
        return print_json(o, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "parameters", (json_int_t)in.parameters,
                                       "parameter_bytes", (json_int_t)(in.parameters * 4), "flops_per_token",
                                       (json_int_t)in.flops_per_token, "state_bytes", (json_int_t)in.state_bytes,
                                       "state_bytes_per_token", (json_int_t)in.state_bytes_per_token, "state_bytes_1k",
                                       (json_int_t)state_at(&in, 1024), "state_bytes_64k", (json_int_t)state_at(&in, 65536),
                                       "config", config ? config : json_null()));
    json_decref(config);
    char mixers[128], weights[24], s1[24], s64[24], flops[16];
    mixers_text(&cfg, mixers, sizeof mixers);
    human_bytes(in.parameters * 4, weights);
    human_bytes(state_at(&in, 1024), s1);
    human_bytes(state_at(&in, 65536), s64);
    human_count((double)in.flops_per_token, flops);
    printf("mixer             %s\n", mixers);
    printf("shape             %lld layers, width %lld, %lld heads (%lld key/value), state size %lld, vocabulary %lld\n",
           (long long)cfg.n_layers, (long long)cfg.d_model, (long long)cfg.n_heads, (long long)cfg.n_kv_heads,
           (long long)cfg.state_size, (long long)cfg.vocab_size);
    printf("parameters        %lld (%s in fp32)\n", (long long)in.parameters, weights);
    printf("state a sequence  %s at 1K tokens, %s at 64K\n", s1, s64);
    printf("flops per token   %s forward, at %lld tokens\n", flops, (long long)cfg.max_position);
    return EXIT_OK;
}

const command command_info = {
    .name = "info",
    .args = "(MODEL | --preset NAME | --config FILE) [options]",
    .summary = "parameters, state bytes and flops of a model or a shape",
    .text = "MODEL is a model folder, a run folder or a config.json. No weights are allocated for a shape.",
    .max_args = 1,
    .run = run_info,
    .options = (const option_spec[]){OPT_MODEL_SHAPE, OPT_JSON, OPT_THREADS, OPT_QUIET, OPT_HELP, OPT_END}};
