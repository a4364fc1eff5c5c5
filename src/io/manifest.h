/* manifest.h - manifest.json of a checkpoint: the step, and size and XXH3 of every file beside it. */
#ifndef IDA_IO_MANIFEST_H
#define IDA_IO_MANIFEST_H

#include "core/json.h"

enum { IDA_STATE_JSON_BYTES = 16 << 20 }; /* of manifest.json and trainer_state.json */

/* The manifest of the files that are in `dir`; the caller json_decref. */
ida_status ida_manifest_make(const char *dir, int64_t step, json_t **out);
/* DIR/manifest.json; *files is its object of that name, inside *out (caller json_decref). */
ida_status ida_manifest_load(const char *dir, json_t **out, const json_t **files, int64_t *step);
/* Every file of a checkpoint is listed, there, and what the manifest says. IDA_E_FORMAT is damage; IDA_E_IO is a file that is there
 * and cannot be read. */
ida_status ida_manifest_verify(const char *dir, int64_t *step);
/* The same for a reader of the model alone: what is there of config.json, tokenizer.json and model.safetensors. The optimiser's
 * part, two thirds of the bytes, is not read and may be gone. A folder without a manifest of ours is a model folder: nothing to
 * check. Ours lists the weights with their xxh3, or stands, be it damaged, beside a trainer_state.json. */
ida_status ida_manifest_verify_model(const char *dir);
/* For who writes another model into the folder: removes that manifest, and with it the checkpoint; one of others stays. */
ida_status ida_manifest_dissolve(const char *dir);

#endif
