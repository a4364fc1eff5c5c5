#!/usr/bin/env python3
"""Compares idattn's tokenizer with HF `tokenizers` on random and adversarial strings. Not needed to build or test.

    pip install tokenizers
    make build/release/tokenizer_pipe
    python tools/check_tokenizer_oracle.py --pipe build/release/tokenizer_pipe --tokenizer tokenizer.json [--text FILE...]
    python tools/check_tokenizer_oracle.py --pipe ... --encoder encoder.json[.xz] --bpe vocab.bpe[.xz]   # GPT-2's two files

Ids must be equal with special tokens matched and with special tokens as text. Exit code 1 on the first difference,
which is printed.
"""
import argparse
import json
import lzma
import random
import struct
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def read(path):
    data = open(path, "rb").read()
    return (lzma.decompress(data) if path.endswith(".xz") else data).decode("utf-8")


def gpt2(encoder, bpe):
    vocab = json.loads(read(encoder))
    merges = [tuple(line.split(" ")) for line in read(bpe).split("\n")[1:] if line]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return tok


POOLS = [
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    " \t\n\r\v\f\u0085\u00a0\u1680\u180e\u2000\u2003\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff\x1c\x1d\x1e\x1f\x00",
    "0123456789\u00b2\u00bd\u0660\u0966\u2167\u3007\U0001d7d8",
    "'stremvldSTREMVLD'' ",
    "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\u00a1\u00ab\u2014\u2026\u20ac",
    "\u00e9\u00df\u0130\u0131\u01c5\u02b0\u0301\u0327\u1c89\u1c8a\u0e01\u0e31\u0e33"
    "\u4e2d\u6587\uac00\u3042\u30a2\u05d0\u0627\u0915\u093e\u094d",
    "\U0001f600\U0001f468\u200d\U0001f469\U0001f1e9\U0001f3fb\ufe0f"
    "\U00010400\U0001e900\U000e0100\U00030000\U0010ffff\ue000\ufffd",
]


def between(rnd):
    return rnd.choice(["", " ", " ", "\n", rnd.choice(POOLS[1]), rnd.choice(rnd.choice(POOLS))])


def strings(count, words, added, seed):
    rnd = random.Random(seed)
    pieces = words + ["'s", "'re", "'LL", "  ", "\n\n", " '", "'t", "''s"] + added * 3
    for _ in range(count):
        kind = rnd.random()
        if kind < 0.35:
            pool = rnd.choice(POOLS)
            yield "".join(rnd.choice(pool) for _ in range(rnd.randrange(0, 40)))
        elif kind < 0.6:
            yield "".join(rnd.choice(rnd.choice(POOLS)) for _ in range(rnd.randrange(0, 60)))
        elif kind < 0.9:
            yield "".join(rnd.choice(pieces) + between(rnd) for _ in range(rnd.randrange(0, 30)))
        elif kind < 0.97:
            while True:
                points = [rnd.randrange(0x110000) for _ in range(rnd.randrange(1, 20))]
                if not any(0xD800 <= c < 0xE000 for c in points):
                    break
            yield "".join(map(chr, points))
        else:
            yield rnd.choice(["a", "ab", "=", "-", " ", "\n", "\u00e9", "the", "0"]) * rnd.randrange(1, 3000)


def ours(pipe, path, texts, special):
    data = b"".join(struct.pack("<I", len(b)) + b for b in (t.encode("utf-8") for t in texts))
    out = subprocess.run([pipe, path, "1" if special else "0"], input=data, stdout=subprocess.PIPE, check=True).stdout
    at, ids = 0, []
    for _ in texts:
        (n,) = struct.unpack_from("<I", out, at)
        ids.append(list(struct.unpack_from(f"<{n}i", out, at + 4)))
        at += 4 + 4 * n
    assert at == len(out)
    return ids


def main():
    arg = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arg.add_argument("--pipe", required=True)
    arg.add_argument("--tokenizer")
    arg.add_argument("--encoder")
    arg.add_argument("--bpe")
    arg.add_argument("--count", type=int, default=100000)
    arg.add_argument("--seed", type=int, default=1)
    arg.add_argument("--text", nargs="*", default=[])
    opt = arg.parse_args()
    if opt.tokenizer:
        path, tok = opt.tokenizer, Tokenizer.from_file(opt.tokenizer)
    elif opt.encoder and opt.bpe:
        tok = gpt2(opt.encoder, opt.bpe)
        path = tempfile.NamedTemporaryFile(suffix=".json").name
        tok.save(path)
    else:
        arg.error("give --tokenizer, or --encoder and --bpe")
    added = [t.content for t in tok.get_added_tokens_decoder().values()]
    vocab = sorted(tok.get_vocab())
    words = [w.replace("\u0120", " ") for w in random.Random(opt.seed).sample(vocab, min(2000, len(vocab)))]
    texts = list(strings(opt.count, words, added, opt.seed)) + [read(p) for p in opt.text] + [""]
    for special in (True, False):
        tok.encode_special_tokens = not special
        mine = ours(opt.pipe, path, texts, special)
        for text, got in zip(texts, mine):
            want = tok.encode(text, add_special_tokens=False).ids
            if want != got:
                sys.exit(f"special={special} text={text!r}\n  HF     {want[:60]}\n  idattn {got[:60]}")
        print(f"special={special}: {len(texts)} strings, {sum(map(len, mine))} ids, all equal")


if __name__ == "__main__":
    main()
