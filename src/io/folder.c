/* folder.c - a model folder in HF layout: config.json, model.safetensors (or its shards), generation_config.json.
 * Not here: the tokenizer (text), checkpoints (checkpoint.c). */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "io/checkpoint.h"
#include "io/weights.h"
#include "model/config.h"
#include "ops/backend.h"

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
    if (st == IDA_OK) st = ida_checkpoint_dissolve(dir); /* first: a manifest is never of other files than are there */
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

ida_status ida_resolve_model_dir(const char *path, char **dir) {
    IDA_FAIL_IF(!ida_exists(path), IDA_E_IO, "%s: no such model folder or training run", path);
    IDA_FAIL_IF(!ida_is_dir(path), IDA_E_ARG, "%s is a file; give the folder that holds config.json and model.safetensors", path);
    char *config = ida_path_join(path, "config.json");
    IDA_FAIL_IF(!config, IDA_E_NOMEM, "out of memory for a path");
    bool is_model = ida_exists(config);
    ida_free(config);
    char *found = NULL;
    int64_t step;
    if (is_model) {
        found = ida_strdup(path);
        IDA_FAIL_IF(!found, IDA_E_NOMEM, "out of memory for a path");
    } else {
        IDA_TRY(ida_checkpoint_find(path, &found, &step));
        IDA_FAIL_IF(!found, IDA_E_FORMAT,
                    "%s: neither a model folder (config.json) nor a training run with a checkpoint (step-N)", path);
    }
    *dir = found;
    return IDA_OK;
}

ida_status ida_model_resolve(const char *path, char **dir) {
    IDA_NEED(path);
    IDA_NEED(dir);
    *dir = NULL;
    return ida_resolve_model_dir(path, dir);
}

ida_status ida_model_load(const char *path, ida_model **out) { return ida_model_load_on(path, "cpu", IDA_F32, out); }

ida_status ida_model_load_on(const char *path, const char *device, ida_dtype dtype, ida_model **out) {
    IDA_NEED(path);
    IDA_NEED(device);
    IDA_NEED(out);
    *out = NULL;
    char *dir = NULL;
    const ida_device *dev = NULL;
    IDA_TRY(ida_device_open(device, dtype, &dev));
    IDA_TRY(ida_resolve_model_dir(path, &dir));
    /* What was found in a run folder has just been checked, and all of it. */
    ida_status st = strcmp(dir, path) == 0 ? ida_checkpoint_verify_model(dir) : IDA_OK;
    if (st == IDA_OK) st = ida_folder_load_model(dir, dev, out);
    if (st == IDA_OK) (*out)->folder = dir;
    else ida_free(dir);
    return st;
}

const char *ida_model_folder(const ida_model *m) { return m ? m->folder : NULL; }

ida_status ida_model_save(const ida_model *m, const char *dir) {
    IDA_NEED(m);
    IDA_NEED(dir);
    return ida_folder_save_model(dir, m);
}
