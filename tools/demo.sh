#!/bin/sh
# demo.sh - from a text to a comparison of three token mixers: interdomain, softmax and s4d at equal width, tokens and seed.
# Called by `make demo`. Every stage is skipped when it was done with the same inputs and settings; training that was stopped goes on.
#   TEXT=FILE       your own text (.txt, or .jsonl with "text"; also .gz, .zst) in place of six novels from a Debian package; no network then
#   DEMO_STEPS=N    training steps of each model
# Everything is written below demo/.
set -eu
cd "$(dirname "$0")/.."
: "${IDATTN:=build/idattn}" "${RDB_TEXT:=build/release/rdb_text}" "${DEMO_STEPS:=400}" "${TEXT:=}"
mixers="interdomain softmax s4d"
train_settings="--preset demo --seed 42 --steps $DEMO_STEPS --batch 8 --micro-batch 8 --lr 3e-3"
D=demo
package=r-cran-janeaustenr

say() { printf 'demo: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
# done_with NAME KEY: true when stage NAME was finished with this KEY. mark NAME KEY says so.
done_with() { [ "$(cat "$D/.done-$1" 2>/dev/null)" = "$2" ]; }
mark() { printf '%s\n' "$2" >"$D/.done-$1"; }
sum() { cksum <"$1" | tr ' ' '-'; }

case $DEMO_STEPS in '' | *[!0-9]* | 0) die "DEMO_STEPS=$DEMO_STEPS is not a number of steps" ;; esac
mkdir -p "$D"

# ---- the text
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null 2>&1; then sudo -n "$@"; else false; fi; }
fetch() {
    command -v apt-get >/dev/null 2>&1 || die "no apt-get here to fetch $package with; give a text of your own: make demo TEXT=file"
    say "fetching $package (six novels, 2 MB)"
    rm -rf "$D/package" && mkdir "$D/package"
    (cd "$D/package" && apt-get download "$package" >apt.log 2>&1) ||
        { as_root apt-get update >"$D/package/update.log" 2>&1 && (cd "$D/package" && apt-get download "$package" >apt.log 2>&1); } ||
        die "apt-get cannot fetch $package ($(tail -n 1 "$D/package/apt.log")); give a text of your own: make demo TEXT=file"
    dpkg-deb -x "$D"/package/*.deb "$D/package/x"
    rdb=$(find "$D/package/x" -name '*.rdb' -size +500k | head -n 1)
    [ -n "$rdb" ] || die "$package does not hold the novels where they used to be; give a text of your own: make demo TEXT=file"
    "$RDB_TEXT" "$rdb" "$D/novels.txt"
    rm -rf "$D/package"
}
if [ -n "$TEXT" ]; then
    [ -r "$TEXT" ] || die "TEXT=$TEXT cannot be read"
    source=$TEXT
else
    [ -s "$D/novels.txt" ] || fetch
    source=$D/novels.txt
fi
key="$(sum "$source") $source"
if ! done_with text "$key"; then
    rm -f "$D"/text.txt "$D"/text.jsonl* "$D"/.done-*
    case $source in
    *.txt)
        # Documents of about 16 kB, cut between paragraphs, so that some can be kept for validation.
        awk '{ n += length($0) + 1; print } /^[ \t\r]*$/ && n > 16000 { print "\f"; n = 0 }' "$source" >"$D/text.txt.part"
        mv "$D/text.txt.part" "$D/text.txt"
        input=$D/text.txt ;;
    *.jsonl | *.jsonl.gz | *.jsonl.zst | *.txt.gz | *.txt.zst) input=$source ;;
    *) die "TEXT=$TEXT: the name must end in .txt or .jsonl, or these with .gz or .zst" ;;
    esac
    printf '%s\n' "$input" >"$D/input"
    mark text "$key"
fi
input=$(cat "$D/input")

# ---- tokenizer and shards
key="$key vocab 2048"
if ! done_with tokenizer "$key"; then
    say "training a tokenizer"
    "$IDATTN" tokenizer train "$input" --vocab-size 2048 --out "$D/tokenizer.json"
    mark tokenizer "$key"
fi
key="$(sum "$D/tokenizer.json") $key val 0.02"
if ! done_with pack "$key"; then
    say "packing tokens"
    rm -rf "$D/data"
    "$IDATTN" data pack "$input" --tokenizer "$D/tokenizer.json" --out "$D/data" --split-blank-lines --val-fraction 0.02
    mark pack "$key"
fi

# ---- three models. A run folder goes on where it was stopped, unless the settings are others.
eval_every=$(((DEMO_STEPS + 3) / 4))
save_every=$(((DEMO_STEPS + 9) / 10))
key="$(sum "$D/data/manifest.json") $train_settings"
for m in $mixers; do
    run=$D/$m
    if ! done_with "train-$m" "$key"; then
        done_with "begun-$m" "$key" || rm -rf "$run"
        mark "begun-$m" "$key"
        say "training $m"
        # shellcheck disable=SC2086
        "$IDATTN" train $train_settings --mixer "$m" --data "$D/data" --out "$run" --resume --eval-every $eval_every --eval-tokens 8192 \
            --save-every $save_every --keep 2
        # a signal ends training with a checkpoint and exit 0: then the run is not finished, and the next call goes on
        grep -q "\"event\":\"save\",\"step\":$DEMO_STEPS," "$run/log.jsonl" || die "stopped; \"make demo\" goes on from here"
        rm -f "$D/.done-eval-$m"
        mark "train-$m" "$key"
    fi
    if ! done_with "eval-$m" "$key"; then
        say "evaluating $m: perplexity, then 1x, 2x and 4x the training length"
        "$IDATTN" eval ppl "$run" --data "$D/data" --window 256 --save --json >/dev/null
        "$IDATTN" eval length "$run" --data "$D/data" --multiple 4 --save --json >/dev/null
        "$IDATTN" generate "$run" --prompt "The " --echo -n 160 --seed 1 >"$run/sample.txt"
        rm -f "$D/.done-report"
        mark "eval-$m" "$key"
    fi
done

# ---- the table, the pictures, the page
# shellcheck disable=SC2086
(cd "$D" && case $IDATTN in /*) p=$IDATTN ;; *) p=../$IDATTN ;; esac && "$p" report $mixers --out report --quiet)
printf '\nsample (interdomain, %s steps):\n' "$DEMO_STEPS"
sed 's/^/    /' "$D/interdomain/sample.txt"
printf '\n%s/report/report.html  (also loss.svg, length.svg, report.json)\n' "$D"
