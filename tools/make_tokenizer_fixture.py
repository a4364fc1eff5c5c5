#!/usr/bin/env python3
"""Makes tests/data/tokenizer: a corpus of our own, tokenizers that HF `tokenizers` trained on it, and ids that HF gives.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    python tools/make_tokenizer_fixture.py tests/data/tokenizer

corpus.txt      training text, one document
trained.json    HF BpeTrainer on it: 256 bytes, merges, <|endoftext|> as last id; min_frequency 2
flags.json      the same model, ids permuted, merges as pairs, add_prefix_space, ignore_merges, added tokens with every flag
*.ids           one line per string: special(0|1), hex of the UTF-8 bytes ("-" = empty), ids
llama3.json     its pattern, ignore_merges, NFC, a template with BOS; split.json: Split with every behaviour, Digits, a prefix blank
qwen.json       a digit at a time, NFC, added tokens that are not special; smollm.json: Digits before ByteLevel; falcon.json: steps behind
                ByteLevel; mistral.json: Metaspace at the first word; gemma.json: blanks replaced, then split; words.json: characters
                without byte fallback, Lowercase, Strip, Whitespace, Punctuation, CharDelimiterSplit
metaspace.json  Llama-2's family: normalizer, byte fallback, unknown token; sp.model: trained by sentencepiece, identity normalization
*.enc           flags (1 special tokens matched, 2 template added), hex, ids; for sp.model the ids of sentencepiece
*.dec           skip special (0|1), hex of HF's text, ids
pieces.txt      one line per string: hex of the bytes, lengths in bytes of the pieces HF's ByteLevel pre-tokenizer makes
"""
import json
import os
import random
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import check_tokenizer_oracle as families

VOCAB = 800
EOS = "<|endoftext|>"
SEED_TEXT = [
    "A state of fixed size follows the text, and every new token turns it a little further. Nothing is looked up again; "
    "what the model knows of the past is what the state still holds.",
    "The keys and the queries are maps into one basis. We read the state with the query, not with a softmax over all keys.",
    "It's a long way: they're tired, we've walked 12 miles, I'd say 13, and you'll see the 7th hill "
    "isn't far. He's sure. I'm not.",
    "Der Zustand wächst nicht mit der Länge. Größe und Maß bleiben gleich, auch für übermäßig lange Texte.",
    "L'état ne grandit pas. Où qu'on coupe le texte, la réponse est la même.",
    "Состояние не растёт с длиной текста, и ответ не зависит от того, где его разрезать.",
    "状態は長さによって大きくならない。文をどこで切っても答えは同じである。",
    "for (int i = 0; i < n; i++) {\n    sum += x[i] * y[i];\n}\n\nreturn sum / n;",
    "x = 3.14159; y = 2.71828; z = 100000; total = 1234567890",
    "-------- ======== ........ ________ aaaaaaaa bbbbbb cccccccccc    \t\t\n\n\n\n",
    "👩‍👩‍👧 🙂🙂🙂 🇩🇪 ½ ² ٣٤٥ Ⅷ",
]


def corpus():
    rnd = random.Random(7)
    words = sorted({w for t in SEED_TEXT for w in t.split(" ")})
    out = []
    for round_ in range(45):
        out.append(rnd.choice(SEED_TEXT))
        sentence = " ".join(rnd.choice(words) for _ in range(rnd.randrange(8, 60)))
        end = rnd.choice([".", "!", "?\n", ";", "\n\n"])
        out.append(sentence + end + rnd.choice(["-", "=", "a", "."]) * rnd.randrange(1, 23))
    return "\n".join(out) + "\n"


def byte_level(tok, prefix=False):
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tok.decoder = decoders.ByteLevel()
    return tok


def train(text):
    tok = byte_level(Tokenizer(models.BPE()))
    tok.train_from_iterator([text], trainers.BpeTrainer(vocab_size=VOCAB - 1, min_frequency=2, show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    doc = json.loads(tok.to_str())
    doc["model"]["vocab"][EOS] = len(doc["model"]["vocab"])
    doc["added_tokens"] = [added(doc["model"]["vocab"][EOS], EOS, special=True)]
    return doc


def added(token_id, content, **flags):
    none = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": token_id, "content": content, **none, **flags}


def with_flags(doc):
    doc = json.loads(json.dumps(doc))
    vocab = doc["model"]["vocab"]
    order = list(vocab)
    random.Random(3).shuffle(order)
    doc["model"]["vocab"] = {w: i for i, w in enumerate(order)}
    doc["model"]["ignore_merges"] = True
    doc["model"]["merges"] = [list(m) if isinstance(m, list) else m.split(" ") for m in doc["model"]["merges"]]
    doc["pre_tokenizer"]["add_prefix_space"] = True
    n = len(order)
    doc["added_tokens"] = [
        added(doc["model"]["vocab"][EOS], EOS, special=True),
        added(n, "<pad>", special=True, lstrip=True, rstrip=True),
        added(n + 1, "word", single_word=True, normalized=True),
        added(n + 2, "<a>"),
        added(n + 3, "<a><b>", normalized=True),
        added(n + 4, "<a><b><c>", special=True),
        added(n + 5, "  ", rstrip=True),
        added(n + 6, "größe", single_word=True, lstrip=True),
        added(n + 7, "\n<x>", lstrip=True, normalized=True),
        added(n + 8, "状態", rstrip=True, normalized=True),
    ]
    return doc


def strings(text, contents):
    rnd = random.Random(11)
    blanks = [" ", "  ", "\n", "\t", "\u00a0", "\u3000", "\u2009", "\u180e", "\u200b", "\r\n", "\x1c"]
    marks = ["'", "’", "'s", "'S", "'ll", "''re", "é", "e\u0301", "中", "🙂", "٣", "½",
             "\ufeff", "\U00010400", "\u1c8a", "-", "...", "_", "0"]
    out = ["", " ", "\n", "a", "'", "'s", "word", " word ", "swordword", "größe", "  größe  ",
           "<a><b><c>", "<a><b>", "<pad>  <pad>", "  \n<x>", "\u200d"]
    for _ in range(190):
        parts = []
        for _ in range(rnd.randrange(1, 14)):
            kind = rnd.randrange(4)
            if kind == 0:
                at = rnd.randrange(len(text))
                parts.append(text[at:at + rnd.randrange(1, 12)])
            else:
                parts.append(rnd.choice([blanks, marks, contents][kind - 1]))
        out.append("".join(parts))
    out.append("a" * 300)
    out.append(text[:600])
    return out


def to_hex(s):
    return s.encode("utf-8").hex() or "-"


def write_ids(tok, texts, path):
    with open(path, "w", encoding="utf-8") as f:
        for special in (1, 0):
            tok.encode_special_tokens = not special
            for s in texts:
                f.write(f"{special} {to_hex(s)} {' '.join(map(str, tok.encode(s).ids))}\n".replace(" \n", "\n"))


LLAMA3 = families.QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def llama3(text):
    tok = families.byte_level(families.with_regex(LLAMA3), [text], normalizers.NFC(), vocab=480)
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|im_start|> $A", pair="<|im_start|> $A $B", special_tokens=[("<|im_start|>", 1)])])
    doc = json.loads(families.add_flags(tok).to_str())
    doc["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(doc))


def qwen(text):
    tok = families.byte_level(families.with_regex(families.QWEN), [text], normalizers.NFC(), vocab=480)
    tok.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return tok


def record(name, tok, texts, folder):
    rnd = random.Random(13)
    path = os.path.join(folder, name)
    with open(path + ".json", "w", encoding="utf-8") as f:
        json.dump(json.loads(tok.to_str()), f, ensure_ascii=False, separators=(",", ":"))
    valid = sorted(tok.get_vocab().values())
    lists = []
    with open(path + ".enc", "w", encoding="utf-8") as f:
        for i, text in enumerate(texts):
            tok.encode_special_tokens = i % 2 == 0
            ids = tok.encode(text, add_special_tokens=i % 4 > 1).ids
            around = tok.encode("", add_special_tokens=True).ids[:1]
            if i % 4 > 1 and around and ids[:2] == around * 2:  # exactly one BOS
                ids = ids[1:]
            f.write(f"{i % 4} {to_hex(text)} {' '.join(map(str, ids))}\n".replace(" \n", "\n"))
            lists.append(ids)
    with open(path + ".dec", "w", encoding="utf-8") as f:
        low = [i for i in valid if i < 300]  # where the byte tokens are
        for i, ids in enumerate(lists[:30] + [[rnd.choice(low if rnd.random() < 0.6 else valid) for _ in range(20)] for _ in range(40)]):
            text = tok.decode(ids, skip_special_tokens=i % 2 == 1)
            f.write(f"{i % 2} {to_hex(text)} {' '.join(map(str, ids))}\n".replace(" \n", "\n"))


def record_sentencepiece(text, texts, folder):
    sp = families.SentencePiece(corpus=[text], vocab=560)
    with open(os.path.join(folder, "sp.model"), "wb") as f:
        f.write(sp.bytes)
    with open(os.path.join(folder, "sp.enc"), "w", encoding="utf-8") as f:
        for t in texts:
            f.write(f"0 {to_hex(t)} {' '.join(map(str, sp.ids(t)))}\n".replace(" \n", "\n"))


def main():
    folder = sys.argv[1]
    text = corpus()
    plain = train(text)
    flags = with_flags(plain)
    texts = strings(text, [t["content"] for t in flags["added_tokens"]])
    with open(os.path.join(folder, "corpus.txt"), "w", newline="", encoding="utf-8") as f:
        f.write(text)
    for name, doc in (("trained", plain), ("flags", flags)):
        path = os.path.join(folder, name + ".json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(doc, f, ensure_ascii=False, separators=(",", ":"))
        write_ids(Tokenizer.from_file(path), texts, os.path.join(folder, name + ".ids"))
    contents = ["word", "<a>", "<a><b>", "gr\u00f6\u00dfe", "two words", "e\u0301x", "<pad>", "<s>", "<|im_start|>", "\u2581", "<0x41>",
                "'\u017f", "'LL", "!\n", "1234567", "zz", " the", "\u212b", "\ufb01"]
    odd = [t for t in strings(text, contents) if "\u1c8a" not in t and len(t) < 120][:100]
    record("llama3", llama3(text), odd, folder)
    record("split", families.add_flags(families.byte_level(families.odd_split(), [text], vocab=420)), odd, folder)
    record("metaspace", families.add_flags(families.metaspace([text], families.llama_normalizer(), None, vocab=520)), odd, folder)
    record("qwen", qwen(text), odd, folder)
    for name, family, vocab in (("smollm", "smollm", 420), ("falcon", "falcon", 420), ("mistral", "metaspace-first", 520),
                                ("gemma", "gemma", 520), ("words", "words", 420)):
        record(name, families.trained(family, [text], vocab), odd, folder)
    record_sentencepiece(text, odd, folder)
    pre = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with open(os.path.join(folder, "pieces.txt"), "w", encoding="utf-8") as f:
        for s in texts:
            lengths = " ".join(str(len(piece)) for piece, _ in pre.pre_tokenize_str(s))  # one printable character per byte
            f.write(f"{to_hex(s)} {lengths}\n".replace(" \n", "\n"))


if __name__ == "__main__":
    main()
