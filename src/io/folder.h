/* folder.h - a model folder in HF layout: config.json + model.safetensors [+ index for shards], generation_config.json. */
#ifndef IDA_IO_FOLDER_H
#define IDA_IO_FOLDER_H

#include "model/model.h"

/* Loads into a fresh model on dev. All tensors must be there with their exact shapes, none may be left over, all values finite.
 * A manifest is not looked at. */
ida_status ida_folder_load_model(const char *dir, const ida_device *dev, ida_model **out);
/* Removes a manifest of ours first: what it says would be of other files. */
ida_status ida_folder_save_model(const char *dir, const ida_model *m);
/* config.json and generation_config.json of a model. */
ida_status ida_config_files_write(const char *dir, const ida_model *m);

#endif
