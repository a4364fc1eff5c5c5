/* tokenizer_use.h - what a tokenizer that loaded must stand: encoding its own file's bytes, decoding the ids. Frees the
 * tokenizer. */
#ifndef TESTS_FUZZ_TOKENIZER_USE_H
#define TESTS_FUZZ_TOKENIZER_USE_H

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "text/files.h"

static inline void use_tokenizer(ida_tokenizer *t, const uint8_t *data, size_t size) {
    size_t n = size < 512 ? size : 512; /* an expression of the file may take long on much text */
    ida_decoder *d = NULL;
    if (ida_decoder_create(t, false, &d)) abort();
    for (unsigned flags = 0; flags < 4; flags++) {
        int32_t *ids = NULL;
        int64_t k = 0;
        ida_buf at_once = {0}, in_steps = {0};
        const char *part;
        size_t m;
        ida_status st = ida_tokenizer_encode_as(t, (const char *)data + size - n, n, flags, &ids, &k);
        if (st == IDA_E_UNSUPPORTED) continue; /* the expression gave up */
        if (st) abort();
        for (int64_t i = 0; i < k; i++) {
            if (!ida_tokenizer_piece(t, ids[i], NULL, NULL)) abort();
            if (ida_decoder_push(d, ids + i, 1, &part, &m) || ida_buf_add(&in_steps, part, m)) abort();
        }
        if (ida_decoder_end(d, &part, &m) || ida_buf_add(&in_steps, part, m)) abort();
        if (ida_decoder_push(d, ids, k, &part, &m) || ida_buf_add(&at_once, part, m)) abort();
        if (ida_decoder_end(d, &part, &m) || ida_buf_add(&at_once, part, m)) abort();
        if (at_once.len != in_steps.len || memcmp(at_once.data, in_steps.data, (size_t)at_once.len) != 0) abort();
        ida_buf_free(&at_once);
        ida_buf_free(&in_steps);
        ida_ids_free(ids);
    }
    ida_decoder_free(d);
    ida_tokenizer_free(t);
}

#endif
