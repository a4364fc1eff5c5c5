/* fuzz_jsonl.c - any bytes as a text file. The first byte picks the kind (jsonl, text, split text, cut text); gzip and zstd are
 * known by their magic bytes. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    static const char *const names[] = {"a.jsonl", "a.txt", "a.txt", "a.txt"};
    int kind = data[0] & 3;
    ida_text_options o = {.split_blank_lines = kind == 2, .cut_bytes = kind == 3 ? 16 : 0, .max_document_bytes = 1 << 22};
    FILE *f = fmemopen((void *)(uintptr_t)(data + 1), size - 1, "rb");
    ida_text_reader *r = NULL;
    if (!f || ida_text_open_stream(f, names[kind], &o, &r)) return 0;
    for (bool end = false; !end;) {
        const char *text;
        int64_t n;
        if (ida_text_next(r, &text, &n, &end) || end) break;
        if (n < 0 || n > o.max_document_bytes) abort();
        for (int64_t i = 0; i < n; i += 512) {
            volatile char c = text[i];
            (void)c;
        }
    }
    ida_text_close(r);
    return 0;
}
