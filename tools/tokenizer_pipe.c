/* tokenizer_pipe.c - encodes many strings in one run, for tools/check_tokenizer_oracle.py. Not installed.
 * usage: tokenizer_pipe TOKENIZER encode FLAGS < strings > ids    FLAGS: 1 special tokens matched, 2 template added
 *        tokenizer_pipe TOKENIZER decode SKIP STEP < ids > strings  STEP ids at a time through the decoder
 * Strings: u32 byte count, bytes. Ids: u32 count, int32s. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "idattn.h"

static int fail(const char *what) {
    fprintf(stderr, "tokenizer_pipe: %s\n", what);
    return 1;
}

static void put(const void *p, uint32_t n, size_t size) {
    fwrite(&n, sizeof n, 1, stdout);
    fwrite(p, size, n, stdout);
}

static int encode(const ida_tokenizer *t, const char *s, uint32_t n, unsigned flags) {
    int32_t *ids;
    int64_t n_ids;
    if (ida_tokenizer_encode_as(t, s, n, flags, &ids, &n_ids)) return fail(ida_last_error());
    put(ids, (uint32_t)n_ids, sizeof *ids);
    ida_ids_free(ids);
    return 0;
}

static int decode(ida_decoder *d, const int32_t *ids, uint32_t n, uint32_t step) {
    size_t len = 0, k;
    char *text = NULL;
    for (uint32_t i = 0; i <= n; i += step) {
        const char *part;
        bool end = i + step > n;
        for (int last = 0; last <= end; last++) {
            uint32_t take = i + step < n ? step : n - i;
            if (last ? ida_decoder_end(d, &part, &k) : ida_decoder_push(d, ids + i, take, &part, &k))
                return fail(ida_last_error());
            char *grown = realloc(text, len + k + 1);
            if (!grown) return fail("out of memory");
            text = grown;
            memcpy(text + len, part, k);
            len += k;
        }
    }
    put(text, (uint32_t)len, 1);
    free(text);
    return 0;
}

int main(int argc, char **argv) {
    ida_tokenizer *t = NULL;
    ida_decoder *d = NULL;
    int rc = 0;
    if (argc < 4) return fail("usage: tokenizer_pipe TOKENIZER encode FLAGS | decode SKIP STEP");
    bool decoding = strcmp(argv[2], "decode") == 0;
    if (ida_tokenizer_load(argv[1], &t) || (decoding && ida_decoder_create(t, argv[3][0] == '1', &d)))
        return fail(ida_last_error());
    uint32_t step = argc > 4 ? (uint32_t)atoi(argv[4]) : 1;
    for (uint32_t n; !rc && fread(&n, sizeof n, 1, stdin) == 1;) {
        size_t size = decoding ? sizeof(int32_t) : 1;
        char *s = malloc(size * n + 1);
        if (!s || fread(s, size, n, stdin) != n) return fail("short input");
        rc = decoding ? decode(d, (const int32_t *)(const void *)s, n, step) : encode(t, s, n, (unsigned)atoi(argv[3]));
        free(s);
    }
    ida_decoder_free(d);
    ida_tokenizer_free(t);
    return rc || fflush(stdout) ? fail("failed") : 0;
}
