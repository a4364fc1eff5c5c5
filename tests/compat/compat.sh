# What earlier programs wrote stays valid: checkpoints load, say the same text and go on to the same bits; state files
# go on; a run with the same options is the same run. The fixtures of tests/data/d51f11d were made by commit d51f11d
# (tools/make_compat_fixture.sh; cases.sh says what each is). Bits depend on the instruction set, the compiler, the
# BLAS and libm: where all of these are as they were then, bits are compared; elsewhere losses to 1e-4, tensors to a
# tolerance and texts. The first line says which of the two is done.
. "$(dirname "$0")/../cli/lib.sh"
. "$REPO/tests/compat/cases.sh"
OLD=$REPO/tests/data/d51f11d
# After six steps from the same checkpoint, of a tensor's norm. Other instruction sets and BLAS kernels (IDA_ISA=base,
# OPENBLAS_CORETYPE=Nehalem, Sandybridge, Prescott) come to 6e-6 at most. The six steps themselves change weights by
# 4e-4 and moments by 1.
TENSOR_TOLERANCE=2e-5
LOSS_TOLERANCE=1e-4

fix_path
exact=
if [ -x "${FINGERPRINT:-}" ]; then
    fingerprint >now.txt
    cmp -s now.txt "$OLD/fingerprint" && exact=1
else
    echo "FINGERPRINT is not set" >now.txt
fi
if [ -n "$exact" ]; then
    echo "# compared: bits, since the fingerprint of this machine is that of the fixtures"
else
    echo "# compared: losses to $LOSS_TOLERANCE, tensors to $TENSOR_TOLERANCE of their norm, texts; the fingerprints differ:"
    paste "$OLD/fingerprint" now.txt | sed 's/^/# /'
fi

# near NAME OLD NEW: lines "key number", the same keys; equal, or within the tolerance of losses.
near() {
    if [ -n "$exact" ]; then same_file "$1, to the last digit" "$2" "$3"; return; fi
    if paste -d ' ' "$2" "$3" | awk -v tol=$LOSS_TOLERANCE '
        NF != 4 || $1 != $3 || !(($2 - $4) ^ 2 <= tol ^ 2) { bad = 1 }
        END { exit bad || NR == 0 }'
    then ok "$1, within $LOSS_TOLERANCE"
    else not_ok "$1, within $LOSS_TOLERANCE" "$(paste -d ' ' "$2" "$3")"; fi
}
TENSOR_FILES='s/^[0-9a-f]* \( model.safetensors\| optimizer.safetensors\| manifest.json\)$/-\1/'
# hashes NAME LIST DIR: the files of DIR are those of LIST; with the same content where that is no matter of bits, or
# bits are compared.
hashes() {
    (cd "$3" && sha256sum -- *) >hashes.txt
    if [ -n "$exact" ]; then same_file "$1: every file, byte for byte" "$2" hashes.txt; return; fi
    sed "$TENSOR_FILES" "$2" >old.txt
    sed "$TENSOR_FILES" hashes.txt >new.txt
    same_file "$1: every file, byte for byte but for those of tensors" old.txt new.txt
}

# shellcheck disable=SC2086
works "the text is packed" "$IDATTN" data pack "$OLD/text.txt" --tokenizer "$OLD/tokenizer.json" --out data $PACK_OPTIONS
(cd data && sha256sum -- *) >data.sha256
same_file "to the same set, byte for byte" "$OLD/data.sha256" data.sha256

for which in $CASES; do
    old=$OLD/$which
    first=step-$(printf %08d $FIRST) last=step-$(printf %08d $LAST)

    # the model: what it says, from a prompt and from the old state file
    { echo "state $(make_state "$old/run/$first" state | one_line)"; texts "$old/run" "$old/state"; } >texts.txt
    same "$which: the same texts" "$(cat "$old/texts")" "$(cat texts.txt)"
    for f in "$old/state" state; do head -c 192 "$f" | cksum; done >headers.txt
    same "$which: a state file has the same header, model hash and position in it" 1 "$(uniq headers.txt | wc -l | tr -d ' ')"
    [ -z "$exact" ] || same_file "$which: and the same bits" "$old/state" state

    # the run goes on
    mkdir "$which" && cp -r "$old/run/." "$which"
    # shellcheck disable=SC2086
    works "$which: the run goes on" "$IDATTN" train --data data --out "$which" $RESUME_OPTIONS
    hashes "$which: after $((LAST - FIRST)) more steps" "$old/last.sha256" "$which/$last"
    if [ -z "$exact" ]; then
        sums=$REPO/tests/compat/sums.py
        python3 "$sums" write "$which/$last"/model.safetensors "$which/$last"/optimizer.safetensors >sums.txt
        works "$which: every tensor" python3 "$sums" compare $TENSOR_TOLERANCE "$old/last.sums" sums.txt
        sed 's/^/# /' out.txt
    fi
    sed '$d' "$old/run/log.jsonl" >old.txt # but the line of its save, which is written anew
    head -n "$(wc -l <old.txt)" "$which/log.jsonl" >new.txt
    same_file "$which: the log is kept" old.txt new.txt
    tail -n +$((EARLY + 1)) "$old/losses" >old.txt
    losses "$which/log.jsonl" "$which" data >new.txt
    near "$which: the same losses" old.txt new.txt

    # the same run from its start
    # shellcheck disable=SC2046,SC2086
    works "$which: a run with the same options" "$IDATTN" train $(train_options "$which") --data data --out again -q
    head -n $EARLY "$old/losses" >old.txt
    early_losses again/log.jsonl >new.txt
    near "$which: begins with the same losses" old.txt new.txt
    (cd "$old/run/$first" && sha256sum -- *) >first.sha256
    hashes "$which: and comes to the same checkpoint" first.sha256 "again/$first"
    rm -r again
done
# shellcheck disable=SC2086
works "a report of all of them" "$IDATTN" report $CASES --out report -q
finish
