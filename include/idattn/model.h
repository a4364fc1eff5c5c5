/* idattn/model.h - a model: random, loaded or saved; its tensors. */
#ifndef IDATTN_MODEL_H
#define IDATTN_MODEL_H

#include "idattn/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ida_model ida_model;

/* Random weights (docs/method.md section 3) from `seed`, the same for any thread count. The random numbers are the same on every
 * machine; what is made of them goes through the C library's mathematics, so equal bits need the same binary and library. */
IDA_API ida_status ida_model_create(const ida_config *cfg, uint64_t seed, ida_model **out);
/* A model folder (config.json, model.safetensors) or a training run folder (its newest whole checkpoint). Every weight is
 * checked to be finite, and a checkpoint's folder against its manifest.json (docs/formats.md): remove that from a model that you
 * change. */
IDA_API ida_status ida_model_load(const char *path, ida_model **out);
/* The same on a device; "cpu" with IDA_F32 is ida_model_load. Sessions of the model run there and keep their states there.
 * IDA_E_ARG: no such device name or GPU; IDA_E_UNSUPPORTED: no backend, or a type the device does not compute in. */
IDA_API ida_status ida_model_load_on(const char *path, const char *device, ida_dtype dtype, ida_model **out);
/* The folder that ida_model_load reads for this path: a model folder itself, or the newest whole checkpoint of a run folder (its
 * config.json, tokenizer.json and trainer_state.json belong together). Caller frees *dir with ida_string_free. */
IDA_API ida_status ida_model_resolve(const char *path, char **dir);
/* The same of a model that was loaded, without looking again; lives as long as the model. NULL: it was not loaded. */
IDA_API const char *ida_model_folder(const ida_model *m);
/* Writes config.json, model.safetensors, generation_config.json into `dir` (created), each file atomically. In a checkpoint's
 * folder its manifest.json, which is of the files before, is removed first: a model folder then, and no checkpoint any more. */
IDA_API ida_status ida_model_save(const ida_model *m, const char *dir);
IDA_API void ida_model_free(ida_model *m);
IDA_API const ida_config *ida_model_config(const ida_model *m);
/* Parameter i in storage order, i < ida_model_n_tensors. *data points into the model: fp32, row-major, valid until
 * the model is freed; a model on a GPU gives IDA_E_UNSUPPORTED when data is asked for. shape has room for 4. Any output may be
 * NULL. */
IDA_API int64_t ida_model_n_tensors(const ida_model *m);
IDA_API ida_status ida_model_tensor(const ida_model *m, int64_t i, const char **name, int *ndim, int64_t shape[4],
                                       const float **data);

#ifdef __cplusplus
}
#endif
#endif
