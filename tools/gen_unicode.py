#!/usr/bin/env python3
"""Writes src/text/unicode_tables.h: character classes of Unicode 16.0, the version HF `tokenizers` classifies with.

    python3 -m venv /tmp/v && /tmp/v/bin/pip install unicodedata2==16.0.0 tokenizers==0.23.3
    /tmp/v/bin/python tools/gen_unicode.py > src/text/unicode_tables.h

Run it with Python 3.11, whose own unicodedata is of Unicode 14.0, as Debian 12's PCRE2 is: the characters that came later are
listed by category, and the expressions of tokenizer.json get them added. What StripAccents, Punctuation and the normal forms go
by is older than Unicode 16, so `tokenizers` itself is asked. Not needed to build: the output is committed. Bits: 1 = \\p{L},
2 = \\p{N}, 4 = White_Space, 8 = \\w (UTS 18 annex C).
"""
import sys
import unicodedata as old

import unicodedata2 as ucd
from tokenizers import normalizers, pre_tokenizers

VERSION = "16.0.0"
PCRE2_VERSION = "14.0.0"
LETTER, NUMBER, SPACE, WORD = 1, 2, 4, 8
# Other_Alphabetic characters that are not marks: circled and squared letters.
SYMBOL_LETTERS = ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))
BLOCK = 256


def char_class(c):
    kind = ucd.category(chr(c))
    bits = 0
    if kind[0] == "L":
        bits |= LETTER
    elif kind[0] == "N":
        bits |= NUMBER
    # White_Space is exactly the separators and these controls.
    elif kind in ("Zs", "Zl", "Zp") or 0x09 <= c <= 0x0D or c == 0x85:
        bits |= SPACE
    if kind[0] in "LM" or kind in ("Nd", "Nl", "Pc") or c in (0x200C, 0x200D):
        bits |= WORD
    elif any(lo <= c <= hi for lo, hi in SYMBOL_LETTERS):
        bits |= WORD
    return bits


def newer():
    """(category, first, last) of what PCRE2's Unicode lacks; ideographs also as Han."""
    found = []
    for c in range(0x110000):
        kind, was = ucd.category(chr(c)), old.category(chr(c))
        if was != "Cn" or kind == "Cn":
            continue
        kinds = [kind] + (["Han"] if ucd.name(chr(c), "").startswith("CJK UNIFIED IDEOGRAPH") else [])
        for k in kinds:
            last = next((r for r in reversed(found) if r[0] == k), None)
            if last and last[2] == c - 1:
                last[2] = c
            else:
                found.append([k, c, c])
    return sorted(found)


def ranges(holds):
    """(first, last) of the characters for which holds(character)."""
    found = []
    for c in range(0x110000):
        if 0xD800 <= c < 0xE000 or not holds(chr(c)):
            continue
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def unnormalized():
    """What `tokenizers` leaves alone in every normal form though Unicode 16 does not: later characters with a decomposition or a
    combining class, and the later ones that the former are composed of."""
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    found = set()
    for c in range(0x110000):
        if 0xD800 <= c < 0xE000:
            continue
        made = ucd.decomposition(chr(c))
        if made and nfkd.normalize_str(chr(c)) == chr(c):
            found.add(c)
            found.update(p for p in (int(x, 16) for x in made.split() if made[0] != "<") if p > 0xFFFF)
        # a mark of a class below 230 goes before U+0301, one above 1 behind U+0334
        texts = ("a\u0301" + chr(c), "a" + chr(c) + "\u0334")
        if ucd.combining(chr(c)) and all(nfd.normalize_str(t) == t for t in texts):
            found.add(c)
    return found


def table(name, found):
    print(f"const ida_uc_span {name}[{name.upper()}] = {{")
    print("\n".join(rows([f"{{0x{a:X}, 0x{b:X}}}" for a, b in found])))
    print("};")
    print(f'static_assert({name.upper()} == {len(found)}, "unicode.h has the number of rows");')


def rows(values, width=126):
    line = ""
    for v in values:
        item = f"{v},"
        if len(line) + len(item) > width:
            yield "    " + line
            line = ""
        line += item
    yield "    " + line


def main():
    if ucd.unidata_version != VERSION:
        sys.exit(f"need Unicode {VERSION}, this unicodedata2 has {ucd.unidata_version}: pip install unicodedata2=={VERSION}")
    if old.unidata_version != PCRE2_VERSION:
        sys.exit(f"need a Python whose unicodedata is {PCRE2_VERSION} (3.11), this one has {old.unidata_version}")
    classes = [char_class(c) for c in range(0x110000)]
    blocks, index = {}, []
    for base in range(0, len(classes), BLOCK):
        index.append(blocks.setdefault(tuple(classes[base:base + BLOCK]), len(blocks)))
    assert len(blocks) <= 256
    packed = [block[i] | block[i + 1] << 4 for block in blocks for i in range(0, BLOCK, 2)]
    print(f"/* unicode_tables.h - written by tools/gen_unicode.py from Unicode {VERSION}; do not edit.")
    print(" * Class of code point c: nibble c % 256 of block ida_ucd_index[c / 256], low nibble first. */")
    print(f"const uint8_t ida_ucd_index[{len(index)}] = {{")
    print("\n".join(rows(index)))
    print(f"}};\nconst uint8_t ida_ucd_blocks[{len(packed)}] = {{")
    print("\n".join(rows(packed)))
    print("};")
    late = newer()
    print(f"/* Later than Unicode {PCRE2_VERSION}. */")
    print(f"const ida_uc_range ida_ucd_newer[IDA_UCD_NEWER] = {{")
    print("\n".join(rows([f'{{"{k}", 0x{a:X}, 0x{b:X}}}' for k, a, b in late])))
    print("};")
    print(f"static_assert(IDA_UCD_NEWER == {len(late)}, \"unicode.h has the number of rows\");")
    strip, split = normalizers.StripAccents(), pre_tokenizers.Punctuation()
    print("/* What StripAccents takes away; where Punctuation splits; what no normal form changes. */")
    table("ida_ucd_accents", ranges(lambda c: not strip.normalize_str(c)))
    table("ida_ucd_punctuation", ranges(lambda c: len(split.pre_tokenize_str(f"a{c}b")) == 3))
    later = unnormalized()
    table("ida_ucd_unnormalized", ranges(lambda c: ord(c) in later))


if __name__ == "__main__":
    main()
