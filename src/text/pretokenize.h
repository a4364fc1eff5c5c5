/* pretokenize.h - cuts text into the pieces of the GPT-2 pattern
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * by a hand-written scanner. Every byte belongs to exactly one piece. An ill-formed UTF-8 byte counts as one character
 * that is neither letter, number nor blank (HF only ever sees well-formed strings, so there is nothing to be equal to).
 * Invariant used by callers: between a non-blank and a blank there is always a cut, and what follows it does not depend
 * on what came before, so text may be cut there and scanned in parts. */
#ifndef IDA_TEXT_PRETOKENIZE_H
#define IDA_TEXT_PRETOKENIZE_H

#include <stddef.h>
#include <stdint.h>

/* Length (>= 1) of the piece that starts at s; n >= 1. */
size_t ida_pretokenize_next(const uint8_t *s, size_t n);

#endif
