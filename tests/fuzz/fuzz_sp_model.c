/* fuzz_sp_model.c - any bytes as a SentencePiece model; what loads must be usable. */
#include <stdint.h>

#include "tokenizer_use.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ida_tokenizer *t = NULL;
    if (ida_sp_model_parse(data, size, "fuzz", &t)) return 0;
    use_tokenizer(t, data, size);
    return 0;
}
