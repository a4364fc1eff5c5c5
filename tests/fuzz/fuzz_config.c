/* fuzz_config.c - any bytes as config.json: refused with a message, or a config that passes its own check and survives a
 * round trip through text. */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "model/config.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok) {
    if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ida_config cfg;
    ida_status st = ida_config_parse((const char *)data, size, "fuzz", &cfg);
    if (st != IDA_OK) {
        must(*ida_last_error() != '\0');
        return 0;
    }
    must(ida_config_check(&cfg) == IDA_OK);
    ida_model_info info;
    must(ida_config_info(&cfg, &info) == IDA_OK && info.parameters > 0 && info.state_bytes >= 0);
    ida_param_table t = {0};
    must(ida_param_table_build(&cfg, &t) == IDA_OK && t.numel == info.parameters && t.block >= t.numel);
    ida_param_table_free(&t);
    char *once = NULL, *twice = NULL;
    ida_config again;
    must(ida_config_json(&cfg, &once) == IDA_OK);
    must(ida_config_parse(once, strlen(once), "again", &again) == IDA_OK);
    must(ida_config_json(&again, &twice) == IDA_OK);
    must(strcmp(once, twice) == 0);
    ida_string_free(twice);
    char *old = calloc(size + 1, 1), *over = NULL;
    must(old != NULL);
    memcpy(old, data, size);
    must(ida_config_json_over(&cfg, old, &over) == IDA_OK);
    must(ida_config_parse(over, strlen(over), "over", &again) == IDA_OK);
    must(ida_config_json(&again, &twice) == IDA_OK);
    must(strcmp(once, twice) == 0);
    free(old);
    ida_string_free(over);
    ida_string_free(once);
    ida_string_free(twice);
    return 0;
}
