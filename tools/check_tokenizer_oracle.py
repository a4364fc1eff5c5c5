#!/usr/bin/env python3
"""Compares idattn's tokenizer with HF `tokenizers` (and `sentencepiece`) on random and adversarial strings. Not needed to build or test.

    pip install 'tokenizers==0.23.*' sentencepiece
    make build/release/tokenizer_pipe
    python tools/check_tokenizer_oracle.py --pipe build/release/tokenizer_pipe FAMILY... [--count 100000] [--text FILE...]

FAMILY is a tokenizer.json[.xz]; ENCODER.json[.xz]+VOCAB.bpe[.xz] (GPT-2's two files); a SentencePiece .model; or the name of a tokenizer
that is trained here on --text or a built-in corpus: qwen, smollm, falcon, split, lower, words, gemma, metaspace, metaspace-first,
metaspace-split, sp, sp-plain. `characters` is no tokenizer: every normalizer over every character there is, in five surroundings.

Ids must be equal with special tokens matched, with special tokens as text and with the template's tokens; text must be equal for the
ids of every string and for random ids, pushed one, three or all at a time. One TAP line a family; a family's first difference is printed.
`make test-oracle` runs all of it.
"""
import argparse
import functools
import io
import json
import lzma
import multiprocessing
import os
import random
import struct
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
ODD = r"(?<!x)[\p{Lu}\p{Lt}]?[\p{Ll}\p{M}]+(?i:'s|'ll)?|\p{N}{1,2}(?!\d)|[^\S\n]+|\n+|\w"


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    return (lzma.decompress(data) if path.endswith(".xz") else data).decode("utf-8")


def gpt2(encoder, bpe):
    vocab = json.loads(read(encoder))
    merges = [tuple(line.split(" ")) for line in read(bpe).split("\n")[1:] if line]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return tok


def byte_level(pre, corpus, normalizer=None, alphabet=True, vocab=2000):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    if normalizer:
        tok.normalizer = normalizer
    tok.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=vocab, show_progress=False, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else []))
    return tok


def metaspace(corpus, normalizer, pre, split_words=True, vocab=1500):
    """Trained on words, then given the pieces around it: byte tokens, unk, and Llama-2's decoder."""
    alphabet = "".join(sorted({c for t in corpus for c in t if c.isascii() or c in "\u00e9\u00df\u4e2d\u6587"}))
    tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=split_words)
    tok.train_from_iterator(["".join(c for c in t if c in alphabet) for t in corpus], trainers.BpeTrainer(
        vocab_size=vocab, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]))
    doc = json.loads(tok.to_str())
    doc["added_tokens"] = doc["added_tokens"][:3]
    doc["normalizer"] = json.loads(normalizer.__getstate__()) if normalizer else None
    doc["pre_tokenizer"] = json.loads(pre.__getstate__()) if pre else None
    tok = Tokenizer.from_str(json.dumps(doc))
    tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A $B", special_tokens=[("<s>", 1), ("</s>", 2)])
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tok.decoder = decoders.Sequence(parts + ([decoders.Strip(" ", 1, 0)] if normalizer or not pre else []))
    return tok


def words(corpus, vocab):
    """Characters without byte fallback: what is unknown is <unk>, and blanks are lost."""
    pre, norm = pre_tokenizers, normalizers
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.normalizer = norm.Sequence([norm.Strip(), norm.NFKC(), norm.Lowercase()])
    tok.pre_tokenizer = pre.Sequence([pre.Whitespace(), pre.CharDelimiterSplit("_"), pre.Punctuation("merged_with_next"), pre.Digits()])
    tok.decoder = decoders.Fuse()
    tok.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=vocab, show_progress=False, special_tokens=["<unk>", "<s>"]))
    return tok


def add_flags(tok):
    tok.add_tokens([AddedToken("word", single_word=True), AddedToken("<a>", lstrip=True, normalized=False),
                    AddedToken("<a><b>", rstrip=True), AddedToken("gr\u00f6\u00dfe", single_word=True, lstrip=True),
                    AddedToken("two words", normalized=False), AddedToken("e\u0301x", normalized=True)])
    tok.add_special_tokens([AddedToken("<pad>", special=True, lstrip=True, rstrip=True)])
    return tok


def odd_split():
    pre = pre_tokenizers
    return pre.Sequence([
        pre.Split(" the", "merged_with_next"), pre.Split(Regex(ODD), "contiguous", invert=True), pre.Split("-", "merged_with_previous"),
        pre.Split(Regex("z+"), "removed"), pre.Digits(), pre.ByteLevel(add_prefix_space=True, use_regex=False)])


def with_regex(pattern):
    pre = pre_tokenizers
    return pre.Sequence([pre.Split(Regex(pattern), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama_normalizer():
    return normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])


def trained(name, corpus, vocab=1500):
    pre, norm = pre_tokenizers, normalizers

    def blanks(normalizer, pre_tokenizer, split_words=True):
        return metaspace(corpus, normalizer, pre_tokenizer, split_words, vocab)

    def bytes_(pre_tokenizer, normalizer=None, alphabet=True):
        return byte_level(pre_tokenizer, corpus, normalizer, alphabet, vocab)

    makers = {
        "qwen": lambda: bytes_(with_regex(QWEN), norm.NFC()),
        "smollm": lambda: bytes_(pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]),
                                 alphabet=False),
        "falcon": lambda: bytes_(pre.Sequence([
            pre.Punctuation("contiguous"), pre.ByteLevel(add_prefix_space=False), pre.Digits(individual_digits=False),
            pre.Split(Regex("[0-9][0-9][0-9]"), "isolated"), pre.Punctuation("merged_with_previous")])),
        "lower": lambda: bytes_(pre.Sequence([pre.BertPreTokenizer(), pre.ByteLevel(add_prefix_space=True, use_regex=False)]),
                                norm.Sequence([norm.NFD(), norm.Lowercase(), norm.StripAccents(), norm.Strip(left=False)])),
        "words": lambda: words(corpus, vocab),
        "split": lambda: bytes_(odd_split()),
        "gemma": lambda: blanks(norm.Replace(" ", "\u2581"), pre.Split(" ", "merged_with_previous")),
        "metaspace": lambda: blanks(llama_normalizer(), None),
        "metaspace-first": lambda: blanks(None, pre.Metaspace(prepend_scheme="first", split=False)),
        "metaspace-split": lambda: blanks(None, pre.Metaspace(prepend_scheme="always", split=True), split_words=False),
    }
    return add_flags(makers[name]())


class SentencePiece:
    """The little of HF's interface that is used below."""

    def __init__(self, path=None, corpus=None, plain=False, vocab=1200):
        import sentencepiece
        if path is None:
            out = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter([line for t in corpus for line in t.split("\n") if line]), model_writer=out, vocab_size=vocab,
                model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=not plain,
                add_dummy_prefix=not plain, character_coverage=0.995, hard_vocab_limit=False, minloglevel=2,
                allow_whitespace_only_pieces=True, split_digits=True, user_defined_symbols=[])
            self.bytes = out.getvalue()
        else:
            with open(path, "rb") as f:
                self.bytes = f.read()
        self.sp = sentencepiece.SentencePieceProcessor(model_proto=self.bytes)

    def words(self):
        return [self.sp.id_to_piece(i).replace("\u2581", " ") for i in range(self.sp.get_piece_size())]

    def ids(self, text):
        return self.sp.encode(text)


POOLS = [
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    " \t\n\r\v\f\u0085\u00a0\u1680\u180e\u2000\u2003\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff\x1c\x1d\x1e\x1f\x00",
    "0123456789\u00b2\u00bd\u0660\u0966\u2167\u3007\U0001d7d8",
    "'stremvldSTREMVLD'' ",
    "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\u00a1\u00ab\u2014\u2026\u20ac",
    "\u00e9\u00df\u0130\u0131\u01c5\u02b0\u0301\u0327\u1c89\u1c8a\u0e01\u0e31\u0e33"
    "\u4e2d\u6587\uac00\u3042\u30a2\u05d0\u0627\u0915\u093e\u094d",
    " \u2581\u2581 <0x41>  ",
    "\U0001f600\U0001f468\u200d\U0001f469\U0001f1e9\U0001f3fb\ufe0f"
    "\U00010400\U0001e900\U000e0100\U00030000\U0010ffff\ue000\ufffd",
]


def between(rnd):
    return rnd.choice(["", " ", " ", "\n", rnd.choice(POOLS[1]), rnd.choice(rnd.choice(POOLS))])


def strings(count, words, added, seed):
    rnd = random.Random(seed)
    pieces = words + ["'s", "'re", "'LL", "  ", "\n\n", " '", "'t", "''s", "'\u017f", "\u2581", "<0x0A>", "\r\n", "!\n"] + added * 3
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


def pipe(opt, path, *args, data):
    return subprocess.run([opt.pipe, path, *map(str, args)], input=data, stdout=subprocess.PIPE, check=True).stdout


def records(out, size):
    at = 0
    while at < len(out):
        (n,) = struct.unpack_from("<I", out, at)
        yield out[at + 4:at + 4 + n * size]
        at += 4 + n * size


def encode(opt, path, texts, flags):
    data = b"".join(struct.pack("<I", len(b)) + b for b in (t.encode("utf-8") for t in texts))
    return [list(struct.unpack(f"<{len(r) // 4}i", r)) for r in records(pipe(opt, path, "encode", flags, data=data), 4)]


def decode(opt, path, lists, skip, step):
    data = b"".join(struct.pack(f"<I{len(ids)}i", len(ids), *ids) for ids in lists)
    return [r.decode("utf-8") for r in records(pipe(opt, path, "decode", int(skip), step, data=data), 1)]


class Differs(Exception):
    pass


def compare(what, given, want, got):
    if len(want) != len(got):
        raise Differs(f"{what}: {len(got)} results for {len(want)} texts")
    for g, w, o in zip(given, want, got):
        if w != o:
            raise Differs(f"{what}: {g!r}\n  reference {w[:80]!r}\n  idattn    {o[:80]!r}")
    return sum(map(len, got))


def check_hf(opt, path, tok, texts, rnd):
    ids_of, n_ids, n_texts = {}, 0, 0
    for special in (True, False):
        tok.encode_special_tokens = not special
        for template in (False, True):
            want = [e.ids for e in tok.encode_batch(texts, add_special_tokens=template)]
            around = tok.encode("", add_special_tokens=True).ids
            if template and around:  # ours keeps a BOS that the text has: exactly one
                want = [w[1:] if w[:2] == around[:1] * 2 else w for w in want]
            got = encode(opt, path, texts, special + 2 * template)
            n_ids += compare(f"ids, special={special}, template={template}", texts, want, got)
            ids_of[special, template] = got
    valid = sorted(tok.get_vocab(with_added_tokens=True).values())
    odd = [i for i in valid if (tok.id_to_token(i) or "").startswith("<0x")] or valid
    lists = ids_of[True, True] + [[rnd.choice(odd if rnd.random() < 0.5 else valid) for _ in range(rnd.randrange(0, 40))] for _ in texts]
    for skip in (False, True):
        want = tok.decode_batch(lists, skip_special_tokens=skip)
        for step in (1, 3, 1 << 20):
            n_texts += len(lists)
            compare(f"text, skip={skip}, {step} at a time", lists, want, decode(opt, path, lists, skip, step))
    return f"{len(texts)} strings, {n_ids} ids and {n_texts} texts equal"


def check_characters(opt, path):
    """Ids of bytes, so they are the normalized text."""
    norm = normalizers
    around = ("{}|", "a\u0301{}", "a{}\u0334\u0316 ", "\u1100{}\u11a8", "\U000113c2{}e\u0300")
    every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = ["".join(f.format(ch) for ch in every[i:i + 64]) for i in range(0, len(every), 64) for f in around]
    for form in (norm.NFC(), norm.NFD(), norm.NFKC(), norm.NFKD(), norm.Lowercase(), norm.StripAccents(), norm.Strip()):
        tok = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), [], form, vocab=259)
        tok.save(path)
        compare(type(form).__name__, texts, [e.ids for e in tok.encode_batch(texts)], encode(opt, path, texts, 0))
    return f"{len(every)} characters, 7 normalizers, {len(texts)} texts equal"


def check(opt, family, scratch):
    rnd = random.Random(opt.seed)
    corpus = [read(p) for p in opt.text] or [read(os.path.join(os.path.dirname(__file__), "../tests/data/tokenizer/corpus.txt"))]
    path = os.path.join(scratch, "tokenizer.json")
    if family == "characters":
        return check_characters(opt, path)
    if family.endswith(".model") or family in ("sp", "sp-plain"):
        sp = SentencePiece(family) if family.endswith(".model") else SentencePiece(corpus=corpus, plain=family == "sp-plain")
        path = os.path.join(scratch, "tokenizer.model")
        with open(path, "wb") as f:
            f.write(sp.bytes)
        texts = list(strings(opt.count, sp.words(), ["<s>", "</s>"], opt.seed)) + [read(p) for p in opt.text] + [""]
        texts = [t.replace("\0", "") for t in texts]  # sentencepiece ends a text there
        n_ids = compare("ids", texts, [sp.ids(t) for t in texts], encode(opt, path, texts, 0))
        return f"{len(texts)} strings, {n_ids} ids equal"
    if "+" in family:
        tok = gpt2(*family.split("+"))
    elif os.path.exists(family):
        tok = Tokenizer.from_str(read(family))
    else:
        tok = trained(family, corpus)
    if os.path.exists(family):
        with open(path, "w", encoding="utf-8") as f:
            f.write(read(family))
    else:
        tok.save(path)
    added = [t.content for t in tok.get_added_tokens_decoder().values()]
    vocab = sorted(tok.get_vocab())
    words = [w.replace("\u0120", " ").replace("\u2581", " ") for w in random.Random(opt.seed).sample(vocab, min(2000, len(vocab)))]
    texts = list(strings(opt.count, words, added, opt.seed)) + [read(p) for p in opt.text] + [""]
    return check_hf(opt, path, tok, texts, rnd)


def tap(opt, number):
    family, name = opt.family[number], opt.family[number].split("+")[0].replace("#", "")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            return f"ok {number + 1} - {name}: {check(opt, family, scratch)}", True
    except Exception as e:  # whatever goes wrong with one family is its result
        detail = "\n".join("# " + line for line in str(e).split("\n"))
        return f"not ok {number + 1} - {name}: {type(e).__name__}\n{detail}", False


def main():
    arg = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arg.add_argument("--pipe", required=True)
    arg.add_argument("--count", type=int, default=100000)
    arg.add_argument("--seed", type=int, default=1)
    arg.add_argument("--text", nargs="*", default=[])
    arg.add_argument("--jobs", type=int, default=1)
    arg.add_argument("family", nargs="+")
    opt = arg.parse_args()
    bad, numbers = 0, range(len(opt.family))
    print(f"1..{len(numbers)}", flush=True)
    with multiprocessing.Pool(opt.jobs) as pool:
        for line, good in pool.imap(functools.partial(tap, opt), numbers, chunksize=1):
            print(line, flush=True)
            bad += not good
    print(f"# {len(numbers)} families, {opt.count} random strings each: {len(numbers) - bad} equal, {bad} different")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
