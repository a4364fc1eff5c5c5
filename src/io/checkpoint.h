/* checkpoint.h - training checkpoints: a folder that appears complete or not at all.
 * RUN/step-NNNNNNNN/{config.json, model.safetensors, optimizer.safetensors, trainer_state.json, tokenizer.json,
 * generation_config.json, manifest.json}. Written as "step-N.tmp", every file fsynced, manifest.json (sizes, XXH3) last, then
 * renamed; RUN/latest is a hint. Loading takes the newest folder whose manifest verifies; *.tmp and *.trash are ignored
 * and cleaned. A published folder is never changed. */
#ifndef IDA_IO_CHECKPOINT_H
#define IDA_IO_CHECKPOINT_H

#include "core/json.h"
#include "model/model.h"

typedef struct ida_checkpoint {
    const ida_model *model;        /* weights */
    const float *m, *v;            /* optimiser moments, blocks of the model's device laid out by its table */
    const json_t *state;           /* trainer_state.json: everything else (step, tokens, seed, options, ...) */
    const char *tokenizer_json;    /* path of a file copied into the folder, or NULL */
} ida_checkpoint;
/* Publishes RUN/step-N and prunes to the newest `keep` up to N (0 = all). A damaged step-N is replaced, a whole one with the
 * same files is left as it is, one with others is IDA_E_IO. On failure nothing of step N is left and older ones are untouched. */
ida_status ida_checkpoint_save(const char *run_dir, int64_t step, const ida_checkpoint *c, int64_t keep);
/* Newest whole checkpoint: *dir malloc'd, NULL with IDA_OK when there is none at all. Damaged ones are logged and passed over;
 * IDA_E_FORMAT when only damaged ones are there. A file that is there but cannot be read is IDA_E_IO, not damage. */
ida_status ida_checkpoint_find(const char *run_dir, char **dir, int64_t *step);
/* The newest published folder that has a config.json, whole or not: for readers that want no weights. *dir malloc'd, NULL with
 * IDA_OK when there is none. */
ida_status ida_checkpoint_with_config(const char *run_dir, char **dir);
/* Loads weights into the model and moments into m, v (blocks of its device, table->block floats), and the state JSON (caller
 * json_decref; NULL: not wanted). */
ida_status ida_checkpoint_load(const char *dir, ida_model *model, float *m, float *v, json_t **state);

#endif
