/* resolve.c - the public calls that take a path: a model folder as it is, a run folder as its newest whole checkpoint. */
#include <string.h>

#include "core/file.h"
#include "core/mem.h"
#include "io/checkpoint.h"
#include "io/folder.h"
#include "io/manifest.h"
#include "ops/backend.h"

ida_status ida_model_resolve(const char *path, char **dir) {
    IDA_NEED(path);
    IDA_NEED(dir);
    *dir = NULL;
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

ida_status ida_model_load(const char *path, ida_model **out) { return ida_model_load_on(path, "cpu", IDA_F32, out); }

ida_status ida_model_load_on(const char *path, const char *device, ida_dtype dtype, ida_model **out) {
    IDA_NEED(path);
    IDA_NEED(device);
    IDA_NEED(out);
    *out = NULL;
    char *dir = NULL;
    const ida_device *dev = NULL;
    IDA_TRY(ida_device_open(device, dtype, &dev));
    IDA_TRY(ida_model_resolve(path, &dir));
    /* What was found in a run folder has just been checked, and all of it. */
    ida_status st = strcmp(dir, path) == 0 ? ida_manifest_verify_model(dir) : IDA_OK;
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
