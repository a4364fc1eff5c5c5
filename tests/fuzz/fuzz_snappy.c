/* fuzz_snappy.c - any bytes as a raw Snappy block, unpacked into exactly as many bytes as the first two say (u16), one more and
 * none. */
#include <stdint.h>
#include <stdlib.h>

#include "data/snappy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    int64_t n = data[0] | (int64_t)data[1] << 8;
    const int64_t sizes[] = {n, n + 1, 0};
    int good = 0;
    for (int i = 0; i < (n ? 3 : 2); i++) {
        uint8_t *out = malloc((size_t)sizes[i] + !sizes[i]); /* a sanitizer sees a byte beyond it */
        if (!out) return 0;
        good += ida_snappy_unpack(data + 2, (int64_t)size - 2, out, sizes[i]);
        free(out);
    }
    if (good > 1) abort(); /* a block has one size */
    return 0;
}
