/* fuzz_tokenizer_json.c - any bytes as tokenizer.json; what loads must encode, decode and find its own ids. */
#include <stdint.h>
#include <stdlib.h>

#include "core/mem.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ida_tokenizer *t = NULL;
    if (ida_tokenizer_parse((const char *)data, size, "fuzz", &t)) return 0;
    size_t n = size < 2048 ? size : 2048;
    for (int special = 0; special < 2; special++) {
        int32_t *ids = NULL;
        int64_t k = 0;
        char *text = NULL;
        size_t m = 0;
        if (ida_tokenizer_encode(t, (const char *)data + size - n, n, special, &ids, &k)) abort();
        for (int64_t i = 0; i < k; i++)
            if (!ida_tokenizer_piece(t, ids[i], &m, NULL)) abort();
        if (ida_tokenizer_decode(t, ids, k, false, &text, &m)) abort();
        ida_string_free(text);
        ida_ids_free(ids);
    }
    ida_tokenizer_free(t);
    return 0;
}
