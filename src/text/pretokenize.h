/* pretokenize.h - cuts text into the pieces of the GPT-2 pattern
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * and of the Llama-3 pattern (Qwen-2: \p{N} in place of \p{N}{1,3})
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * by hand-written scanners. Every byte belongs to exactly one piece. An ill-formed UTF-8 byte counts as one character
 * that is neither letter, number nor blank (HF only ever sees well-formed strings, so there is nothing to be equal to).
 * Invariant of the GPT-2 pieces used by callers: between a non-blank and a blank there is always a cut, and what follows it does
 * not depend on what came before, so text may be cut there and scanned in parts. */
#ifndef IDA_TEXT_PRETOKENIZE_H
#define IDA_TEXT_PRETOKENIZE_H

#include <stddef.h>
#include <stdint.h>

/* Length (>= 1) of the piece that starts at s; n >= 1. */
size_t ida_pretokenize_next(const uint8_t *s, size_t n);
/* The same for the Llama-3 pattern; max_digits 3 or 1. Of its pieces the invariant about cuts does not hold. */
size_t ida_pretokenize_llama3(const uint8_t *s, size_t n, int max_digits);

#endif
