/* folder.c - a model folder in HF layout: config.json, model.safetensors (or its shards), generation_config.json.
 * Not here: the tokenizer (text), checkpoints (checkpoint.c), which folder a path means (resolve.c). */
#include "io/folder.h"

#include <string.h>

#include "core/json.h"
#include "core/mem.h"
#include "io/manifest.h"
#include "io/weights.h"
#include "model/config.h"

ida_status ida_config_files_write(const char *dir, const ida_model *m) {
    const ida_config *cfg = &m->cfg;
    char *text = NULL;
    char *config = ida_path_join(dir, "config.json"), *generation = ida_path_join(dir, "generation_config.json");
    json_t *j = json_object();
    ida_status st = IDA_OK;
    if (!config || !generation || !j) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory while saving %s", dir);
    IDA_TRY_GOTO(ida_config_json_over(cfg, m->config_text, &text));
    IDA_TRY_GOTO(ida_write_file(config, text, strlen(text)));
    if (cfg->bos_id >= 0) json_object_set_new(j, "bos_token_id", json_integer(cfg->bos_id));
    if (cfg->eos_id >= 0) json_object_set_new(j, "eos_token_id", json_integer(cfg->eos_id));
    st = ida_json_save(j, generation, 2);
out:
    json_decref(j);
    ida_string_free(text);
    ida_free(config);
    ida_free(generation);
    return st;
}

ida_status ida_folder_save_model(const char *dir, const ida_model *m) {
    char *path = ida_path_join(dir, "model.safetensors");
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "out of memory for a path");
    const float *block = m->params;
    const char *prefix = "";
    ida_status st = ida_mkdirs(dir);
    if (st == IDA_OK) st = ida_manifest_dissolve(dir); /* first: a manifest is never of other files than are there */
    if (st == IDA_OK) st = ida_weights_write(path, &m->table, m->dev, &block, &prefix, 1);
    if (st == IDA_OK) st = ida_config_files_write(dir, m);
    ida_free(path);
    return st;
}

/* The files are compared with the config before memory for the weights is taken. */
ida_status ida_folder_load_model(const char *dir, const ida_device *dev, ida_model **out) {
    ida_config cfg;
    ida_weights w = {0};
    ida_param_table table = {0};
    ida_model *m = NULL;
    const char *prefix = "";
    char *config = ida_path_join(dir, "config.json"), *text = NULL;
    int64_t n_text;
    ida_status st = IDA_OK;
    if (!config) IDA_FAIL_GOTO(IDA_E_NOMEM, "out of memory for a path");
    IDA_TRY_GOTO(ida_read_file(config, IDA_CONFIG_BYTES, &text, &n_text));
    IDA_TRY_GOTO(ida_config_parse(text, (size_t)n_text, config, &cfg));
    IDA_TRY_GOTO(ida_weights_open(dir, &w));
    IDA_TRY_GOTO(ida_param_table_build(&cfg, &table));
    IDA_TRY_GOTO(ida_weights_check(&w, &table, &prefix, 1));
    IDA_TRY_GOTO(ida_model_new(&cfg, dev, NULL, &m));
    m->config_text = text;
    text = NULL;
    IDA_TRY_GOTO(ida_weights_read(&w, &m->table, prefix, dev, m->params));
    IDA_TRY_GOTO(ida_model_round(m));
    IDA_TRY_GOTO(ida_model_prepare(m));
    *out = m;
    m = NULL;
out:
    ida_model_free(m);
    ida_param_table_free(&table);
    ida_weights_close(&w);
    ida_free(text);
    ida_free(config);
    return st;
}
