/* fuzz_tokenizer_json.c - any bytes as tokenizer.json; what loads must encode, decode alike at once and in steps, and find its
 * own ids. */
#include <stdint.h>

#include "tokenizer_use.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ida_tokenizer *t = NULL;
    if (ida_tokenizer_parse((const char *)data, size, "fuzz", &t)) return 0;
    use_tokenizer(t, data, size);
    return 0;
}
