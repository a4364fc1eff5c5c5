#!/bin/sh
# Writes the fixtures of tests/compat: runs, states, texts and losses as a given program makes them. A later program
# must read them, say the same and go on with the same bits (tests/compat/compat.sh). Made once for each program whose
# files are promised to stay valid; the folder in the tree is named after its commit.
# usage: IDATTN=program FINGERPRINT=build/release/tests/compat/fingerprint tools/make_compat_fixture.sh OUT
set -eu
: "${IDATTN:?set IDATTN to the program whose files are kept}"
: "${FINGERPRINT:?set FINGERPRINT to the built tests/compat/fingerprint}"
cd "$(dirname "$0")/.."
. tests/compat/cases.sh
out=$1
mkdir -p "$out"
fix_path
fingerprint >"$out/fingerprint"

# Text of a small grammar with the symbols of a small tokenizer: a model of it has few weights outside its layers.
awk -v docs=24 -v least=4 -v range=7 -f tests/cli/grammar.awk >"$out/text.txt"
python3 - >"$out/tokenizer.json" <<'PY'
import json
vocab = ["<|endoftext|>", "?", "\n", " ", "."] + [chr(c) for c in range(ord("a"), ord("z") + 1)]
merges = [["t", "h"], ["th", "e"], ["e", " "], ["s", " "], ["i", "n"], ["e", "r"], ["a", "n"], ["o", "n"], ["r", "e"]]
vocab += [a + b for a, b in merges]
print(json.dumps({
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [{"id": 0, "content": vocab[0], "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True}],
    "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "dropout": None, "unk_token": "?", "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
              "vocab": {s: i for i, s in enumerate(vocab)}, "merges": merges}}, separators=(",", ":")))
PY
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$work/data
# shellcheck disable=SC2086
"$IDATTN" data pack "$out/text.txt" --tokenizer "$out/tokenizer.json" --out "$data" $PACK_OPTIONS
(cd "$data" && sha256sum -- *) >"$out/data.sha256"

for name in $CASES; do
    to=$out/$name
    first=step-$(printf %08d $FIRST) last=step-$(printf %08d $LAST)
    # shellcheck disable=SC2046,SC2086
    "$IDATTN" train $(train_options "$name") --data "$data" --out "$work/$name" -q
    mkdir -p "$to/run"
    cp -r "$work/$name/$first" "$to/run"
    printf '%s\n' "$first" >"$to/run/latest"
    # the log as it was when the run stood there, without most of its steps
    sed "/\"event\":\"save\",\"step\":$FIRST,/q" "$work/$name/log.jsonl" |
        awk '{ step = $0; sub(/.*"step":/, "", step); step += 0 }
             step < 5 || (step > 101 && step < 104) || step > 198' >"$to/run/log.jsonl"
    make_state "$to/run/$first" "$to/state" >"$to/texts.tmp"
    { echo "state $(one_line <"$to/texts.tmp")"; texts "$to/run" "$to/state"; } >"$to/texts"
    rm "$to/texts.tmp"
    { early_losses "$work/$name/log.jsonl"; losses "$work/$name/log.jsonl" "$work/$name/$last" "$data"; } >"$to/losses"
    (cd "$work/$name/$last" && sha256sum -- *) >"$to/last.sha256"
    at=$work/$name/$last
    python3 tests/compat/sums.py write "$at/model.safetensors" "$at/optimizer.safetensors" >"$to/last.sums"
done
du -sb "$out"
