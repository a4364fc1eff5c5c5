#!/bin/sh
# study.sh - trains and evaluates the cells of docs/study-1.md: one small model a cell, the same tokens, order and state for all.
#   study.sh DATA OUT     DATA: a packed set of 16384 ids (tools/study_corpus.sh, `idattn tokenizer train`, `idattn data pack`)
#   CELLS=REGEX           only cells whose name matches (an extended regular expression; default all)
#   SEEDS="42 43"         of initial weights and sample order; the second seed only for cells marked so below
#   TOKENS=N              training tokens a cell (default 200 million)
#   MINUTES=N             no run begins later than that after the start
#   DEVICE=cuda           where to run
# A run that has its eval.json is not done again; one that was stopped goes on. Several of this script may work on one OUT, each with its
# own CUDA_VISIBLE_DEVICES: a run that another one has in hand (OUT/NAME.lock) is passed over.
set -eu
: "${IDATTN:=idattn}" "${CELLS:=.}" "${SEEDS:=42 43}" "${TOKENS:=200000000}" "${MINUTES:=}" "${DEVICE:=cuda}"
[ $# = 2 ] || { sed -n '2,10p' "$0" >&2; exit 2; }
data=$1 out=$2
rows=64 length=2048
steps=$((TOKENS / (rows * length)))

# name | seeds | mixer | settings. "both": the cell decides a default, so it gets every seed; "one": the first only. Names say basis, read-out
# and what else is not zoh, C normal, RoPE, no output norm.
cells() { cat <<'CELLS'
softmax|one|softmax|
lin-hermitian|both|interdomain|mixer.basis=s4d-lin mixer.readout=hermitian
lin-bilinear|both|interdomain|mixer.basis=s4d-lin mixer.readout=bilinear
inv-hermitian|both|interdomain|mixer.basis=s4d-inv mixer.readout=hermitian
inv-bilinear|one|interdomain|mixer.basis=s4d-inv mixer.readout=bilinear
legs-hermitian|both|interdomain|mixer.basis=s4d-legs mixer.readout=hermitian
legs-bilinear|one|interdomain|mixer.basis=s4d-legs mixer.readout=bilinear
lin-hermitian-disc-norm|both|interdomain|mixer.basis=s4d-lin mixer.readout=hermitian mixer.discretization=norm
lin-hermitian-output-norm|both|interdomain|mixer.basis=s4d-lin mixer.readout=hermitian mixer.output_norm=true
lin-hermitian-both-norms|both|interdomain|mixer.basis=s4d-lin mixer.readout=hermitian mixer.discretization=norm mixer.output_norm=true
lin-hermitian-c-identity|one|interdomain|mixer.basis=s4d-lin mixer.readout=hermitian mixer.c_init=identity
lin-hermitian-c-whitened|one|interdomain|mixer.basis=s4d-lin mixer.readout=hermitian mixer.c_init=whitened
lin-hermitian-no-rope|one|interdomain|mixer.basis=s4d-lin mixer.readout=hermitian mixer.rope=false
lin-bilinear-disc-norm|one|interdomain|mixer.basis=s4d-lin mixer.readout=bilinear mixer.discretization=norm
lin-bilinear-output-norm|one|interdomain|mixer.basis=s4d-lin mixer.readout=bilinear mixer.output_norm=true
lin-bilinear-c-identity|one|interdomain|mixer.basis=s4d-lin mixer.readout=bilinear mixer.c_init=identity
lin-bilinear-c-whitened|one|interdomain|mixer.basis=s4d-lin mixer.readout=bilinear mixer.c_init=whitened
lin-bilinear-no-rope|one|interdomain|mixer.basis=s4d-lin mixer.readout=bilinear mixer.rope=false
single-query-hermitian|one|single-query|mixer.basis=s4d-lin mixer.readout=hermitian
single-query-bilinear|one|single-query|mixer.basis=s4d-lin mixer.readout=bilinear
dual-linear|one|dual-linear|mixer.basis=s4d-lin
s4d|one|s4d|mixer.basis=s4d-lin mixer.rope=false
s4d-rope|one|s4d|mixer.basis=s4d-lin mixer.rope=true
CELLS
}

first=${SEEDS%% *}
runs() {
    for seed in $SEEDS; do
        cells | while IFS='|' read -r name seeds mixer settings; do
            printf '%s\n' "$name" | grep -Eq "$CELLS" || continue
            [ "$seeds" = both ] || [ "$seed" = "$first" ] || continue
            printf '%s|%s|%s|%s\n' "$name" "$seed" "$mixer" "$settings"
        done
    done
}

one_run() { # NAME SEED MIXER SETTINGS
    run="$out/$1-s$2" seed=$2 settings=$4
    set -- --preset study --mixer "$3"
    for s in $settings; do set -- "$@" --set "$s"; done
    [ ! -e "$run/log.jsonl" ] || set -- "$@" --resume # with the shape: a run that died before its first checkpoint begins again
    "$IDATTN" train "$@" --data "$data" --out "$run" --device "$DEVICE" --seed "$seed" --steps "$steps" --seq-len $length \
        --batch $rows --micro-batch $rows --lr 3e-3 --eval-every $((steps / 8)) --save-every 0 --keep 1 </dev/null
    "$IDATTN" eval length "$run" --data "$data" --device "$DEVICE" --multiple 8 --save --quiet </dev/null >/dev/null
}

# The shell reads this loop whole before it begins, so the file may change meanwhile.
mkdir -p "$out"
begun=$(date +%s)
runs | while IFS='|' read -r name seed mixer settings; do
    [ -z "$MINUTES" ] || [ $(($(date +%s) - begun)) -le $((MINUTES * 60)) ] || break
    [ ! -s "$out/$name-s$seed/eval.json" ] || continue
    exec 9>"$out/$name-s$seed.lock"
    flock -n 9 || continue
    [ -s "$out/$name-s$seed/eval.json" ] || one_run "$name" "$seed" "$mixer" "$settings"
done
