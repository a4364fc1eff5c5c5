/* fuzz_token_file.c - any bytes as a token file of others: llm.c, nanoGPT, Megatron with its index. First byte: the format
 * (0 = let it look); then u16: bytes of the .bin, which follow; the rest is the .idx. The files live in a folder of memory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/token_file.h"

static char folder[64], bin[96], idx[96];

static void remove_all(void) {
    unlink(bin);
    unlink(idx);
    rmdir(folder);
}

static int begin(void) {
    snprintf(folder, sizeof folder, "%s/idattn-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder)) return 0;
    snprintf(bin, sizeof bin, "%s/t.bin", folder);
    snprintf(idx, sizeof idx, "%s/t.idx", folder);
    atexit(remove_all);
    return 1;
}

static int put(const char *path, const uint8_t *p, size_t n) {
    FILE *f = fopen(path, "wb");
    int good = f && fwrite(p, 1, n, f) == n;
    if (f && fclose(f)) good = 0;
    return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3 || (!folder[0] && !begin())) return 0;
    ida_token_format format = (ida_token_format)(data[0] % 4);
    size_t n = data[1] | (size_t)data[2] << 8, left = size - 3;
    if (n > left) n = left;
    unlink(idx);
    if (!put(bin, data + 3, n) || (left > n && !put(idx, data + 3 + n, left - n))) return 0;
    ida_token_file t;
    if (ida_token_file_open(bin, &format, &t)) return 0;
    int32_t ids[256];
    for (int64_t at = 0; at < t.n; at += 256) {
        int64_t take = t.n - at < 256 ? t.n - at : 256;
        if (ida_token_file_read(&t, at, take, 50257, ids)) break;
    }
    for (int64_t k = 0, last = 0; k <= t.n_docs && t.doc_first; k++) { /* the promise: documents in order, within the tokens */
        int64_t first = ida_token_file_doc(&t, k);
        if (first < last || first > t.n) abort();
        last = first;
    }
    (void)ida_token_file_hash(&t);
    ida_token_file_close(&t);
    return 0;
}
