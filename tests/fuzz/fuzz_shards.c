/* fuzz_shards.c - any bytes as manifest.json (first byte '{') or as a token shard. */
#include <stdint.h>

#include "core/json.h"
#include "data/shard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size && data[0] == '{') {
        json_t *root = NULL;
        if (ida_json_parse((const char *)data, size, "fuzz", &root)) return 0;
        static const char *const splits[] = {"train", "val"};
        for (int i = 0; i < 2; i++) {
            ida_manifest *m = NULL;
            if (!ida_manifest_read(root, "fuzz", splits[i], &m)) ida_manifest_free(m);
        }
        json_decref(root);
        return 0;
    }
    for (int width = 2; width <= 4; width += 2) {
        int64_t tokens;
        if (ida_shard_check(data, (int64_t)size, "fuzz", width, &tokens)) continue;
        volatile uint8_t last = data[1024 + tokens * width - 1]; /* the promise: all of them are there */
        (void)last;
    }
    return 0;
}
