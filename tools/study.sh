#!/bin/sh
# study.sh - trains and evaluates the cells of docs/study-1.md: one small model a cell, the same tokens, order and state for all.
#   study.sh DATA OUT     DATA: a packed set of 16384 ids (tools/study_corpus.sh, `idattn tokenizer train`, `idattn data pack`)
#   CELLS=REGEX           only cells whose name matches (an extended regular expression; default all)
#   SEEDS="42 43"         of initial weights and sample order; the second seed only for cells marked so below
#   TOKENS=N              training tokens a cell (default 200 million)
#   PART=I/N              every N-th run from the I-th on, counting from 0: for several GPUs, each with its own CUDA_VISIBLE_DEVICES
#   DEVICE=cuda           where to run
# A run that has its eval.json is not done again; one that was stopped goes on.
set -eu
: "${IDATTN:=idattn}" "${CELLS:=.}" "${SEEDS:=42 43}" "${TOKENS:=200000000}" "${PART:=0/1}" "${DEVICE:=cuda}"
[ $# = 2 ] || { sed -n '2,9p' "$0" >&2; exit 2; }
data=$1 out=$2
rows=64 length=2048
steps=$((TOKENS / (rows * length)))

# name | seeds | mixer | settings. "both": the cell decides a default, so it gets every seed; "one": the first only. What is not named
# is zoh, C normal, RoPE, no output norm. Each setting is varied around lin-bilinear, the winner at 100 million tokens.
cells() { cat <<'CELLS'
lin-bilinear|both|interdomain|mixer.basis=s4d-lin mixer.readout=bilinear
softmax|one|softmax|
lin-hermitian|both|interdomain|mixer.basis=s4d-lin mixer.readout=hermitian
disc-norm|both|interdomain|mixer.basis=s4d-lin mixer.readout=bilinear mixer.discretization=norm
output-norm|both|interdomain|mixer.basis=s4d-lin mixer.readout=bilinear mixer.output_norm=true
legs-bilinear|both|interdomain|mixer.basis=s4d-legs mixer.readout=bilinear
inv-bilinear|both|interdomain|mixer.basis=s4d-inv mixer.readout=bilinear
c-identity|both|interdomain|mixer.basis=s4d-lin mixer.readout=bilinear mixer.c_init=identity
c-whitened|both|interdomain|mixer.basis=s4d-lin mixer.readout=bilinear mixer.c_init=whitened
no-rope|one|interdomain|mixer.basis=s4d-lin mixer.readout=bilinear mixer.rope=false
single-query|one|single-query|mixer.basis=s4d-lin mixer.readout=bilinear
dual-linear|one|dual-linear|mixer.basis=s4d-lin
s4d|one|s4d|mixer.basis=s4d-lin mixer.rope=false
s4d-rope|one|s4d|mixer.basis=s4d-lin mixer.rope=true
inv-hermitian|one|interdomain|mixer.basis=s4d-inv mixer.readout=hermitian
legs-hermitian|one|interdomain|mixer.basis=s4d-legs mixer.readout=hermitian
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

mkdir -p "$out"
runs | awk -v part="$PART" 'BEGIN { split(part, p, "/") } (NR - 1) % p[2] == p[1]' | while IFS='|' read -r name seed mixer settings; do
    run="$out/$name-s$seed"
    [ ! -s "$run/eval.json" ] || continue
    set -- --preset study --mixer "$mixer"
    for s in $settings; do set -- "$@" --set "$s"; done
    [ ! -e "$run/log.jsonl" ] || set -- "$@" --resume # with the shape: a run that died before its first checkpoint begins again
    "$IDATTN" train "$@" --data "$data" --out "$run" --device "$DEVICE" --seed "$seed" --steps "$steps" --seq-len $length \
        --batch $rows --micro-batch $rows --lr 3e-3 --eval-every $((steps / 8)) --save-every 0 --keep 1 </dev/null
    "$IDATTN" eval length "$run" --data "$data" --device "$DEVICE" --multiple 8 --save --quiet </dev/null >/dev/null
done
