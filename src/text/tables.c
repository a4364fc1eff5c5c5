/* tables.c - the byte alphabet and the look-up of tokens by their bytes. */
#include "text/tables.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Printable Latin-1 stands for itself, the other 68 bytes in order for U+0100 onwards (GPT-2's table). */
#define SHIFTED(b) ((b) <= 0x20 ? 0x100 + (b) : (b) <= 0xA0 ? 0xA2 + (b) : 0x143)
#define P(b) (((b) >= 0x21 && (b) <= 0x7E) || ((b) >= 0xA1 && (b) != 0xAD) ? (b) : SHIFTED(b))
#define P4(b) P(b), P((b) + 1), P((b) + 2), P((b) + 3)
#define P16(b) P4(b), P4((b) + 4), P4((b) + 8), P4((b) + 12)
#define P64(b) P16(b), P16((b) + 16), P16((b) + 32), P16((b) + 48)
const uint16_t ida_byte_char[256] = {P64(0), P64(64), P64(128), P64(192)};

int ida_char_byte(uint32_t cp) {
    if (cp < 256) return ida_byte_char[cp] == cp ? (int)cp : -1;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0xA2);
    return cp == 0x143 ? 0xAD : -1;
}

uint64_t ida_word_hash(const char *bytes, size_t n) { return XXH3_64bits(bytes, n); }

int32_t ida_tokenizer_find(const ida_tokenizer *t, const char *bytes, size_t n) {
    for (uint64_t i = ida_word_hash(bytes, n) & t->word_mask;; i = (i + 1) & t->word_mask) {
        int32_t id = t->words[i];
        if (id < 0) return -1;
        if ((size_t)(t->start[id + 1] - t->start[id]) == n && memcmp(t->bytes + t->start[id], bytes, n) == 0) return id;
    }
}
