#!/usr/bin/env python3
"""Writes the seed inputs of the fuzz targets tokenizer_json, shards and jsonl.

    python tools/make_text_corpus.py tests/fuzz/corpus      # needs the zstd program
"""
import gzip
import json
import os
import struct
import subprocess
import sys

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
VOCAB = {chr(c): i for i, c in enumerate(PRINTABLE + [256 + i for i in range(68)])}
for word in ("ab", "abc", "\u0120a"):
    VOCAB[word] = len(VOCAB)
N = len(VOCAB)


def tokenizer(merges, added, prefix=False, ignore=False, post=None):
    level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": ignore,
             "vocab": VOCAB, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": level, "post_processor": post, "decoder": level, "model": model}


def added(token_id, content, **flags):
    none = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": token_id, "content": content, **none, **flags}


def tokenizers():
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    yield "strings", tokenizer(["a b", "ab c", "\u0120 a"], [added(N, "<|endoftext|>", special=True)])
    yield "pairs", tokenizer([["a", "b"], ["ab", "c"], ["a", "b"]],
                             [added(N, "<x>", lstrip=True, rstrip=True), added(N + 1, "ab c", single_word=True, normalized=True),
                              added(N + 9, "  ", special=True)],
                             prefix=True, ignore=True)
    yield "post", tokenizer([], [], post=level)
    yield "empty_model", {"model": {"vocab": {}, "merges": []}, "pre_tokenizer": {"type": "ByteLevel"},
                           "decoder": {"type": "ByteLevel"}}
    yield "refused", {"version": "1.0", "normalizer": {"type": "NFC"}, "model": {}}


def shard(magic, version, tokens, code):
    return struct.pack("<256i", magic, version, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}{code}", *tokens)


def manifest(first, separator):
    def split(shards):
        return {"tokens": sum(t for _, t in shards), "documents": 1, "bytes": 9,
                "shards": [{"name": n, "tokens": t, "xxh3": f"{t:016x}"} for n, t in shards]}
    return {"format": "idattn-shards", "version": 1, "tokenizer_hash": "00000000000000ff", "vocab_size": 300, "dtype": "uint16",
            "separator": separator, "split": "hash",
            "splits": {"train": split([(first, 4), ("train_000001.bin", 0)]), "val": split([("val_000000.bin", 3)])}}


def texts():
    rows = b'{"text":"one \\u00e9\\n"}\r\n\n{"id":3,"text":""}\nnot json\n{"text":5}\n[{"text":"x"}]\n{"text":"last"}'
    plain = b"one\n\ntwo\n\n\n\nthree\f four \r\n\r\n\r\nfive words and more words\n"
    for kind, (name, data) in enumerate([("jsonl", rows), ("text", plain), ("split", plain), ("cut", plain)]):
        yield name, bytes([kind]) + data
        yield name + "_gz", bytes([kind]) + gzip.compress(data, mtime=0) + gzip.compress(b"more\n", mtime=0)
        if kind < 2:
            packed = subprocess.run(["zstd", "-q", "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout
            yield name + "_zst", bytes([kind]) + packed
    yield "bom", b'\0\xef\xbb\xbf{"text":"a\\u0000b"}\n'


def put(folder, name, data):
    if not isinstance(data, bytes):
        data = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data)


def main():
    root = sys.argv[1]
    for name, doc in tokenizers():
        put(os.path.join(root, "tokenizer_json"), name, doc)
    shards = [("uint16", shard(20240520, 1, [5, 6, 7, 65535], "H")),
              ("uint32", shard(20240801, 7, [5, 70000], "I")),
              ("empty", shard(20240520, 1, [], "H")), ("short", shard(20240520, 1, [1, 2], "H")[:-1]),
              ("manifest", manifest("train_000000.bin", {"id": 299, "side": "before"})),
              ("manifest_path", manifest("../x", None))]
    for name, data in shards:
        put(os.path.join(root, "shards"), name, data)
    for name, data in texts():
        put(os.path.join(root, "jsonl"), name, data)


if __name__ == "__main__":
    main()
