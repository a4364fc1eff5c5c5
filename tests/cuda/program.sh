#!/bin/sh
# program.sh - the program on a GPU, from outside: golden vectors, training and resuming, models and sessions that move between GPU
# and CPU, evaluation, generation, and what it says when there is no GPU, no such GPU, or too little memory.
# usage: tests/cuda/program.sh IDATTN STDIFF    (program under test, comparer of tests/cli); TAP on standard output
# DEVICE=cuda:1 takes another GPU. DEVICE=cpu runs all that does not need a GPU on the CPU: a check of this script.
set -u
[ $# -eq 2 ] || { echo 'usage: tests/cuda/program.sh IDATTN STDIFF' >&2; exit 2; }
full() { printf '%s/%s\n' "$(cd "$(dirname "$1")" && pwd)" "$(basename "$1")"; }
IDATTN=$(full "$1") STDIFF=$(full "$2") here=$(cd "$(dirname "$0")" && pwd)
[ -n "${IDA_CUDA_BACKEND-}" ] && { IDA_CUDA_BACKEND=$(full "$IDA_CUDA_BACKEND"); export IDA_CUDA_BACKEND; }
DEVICE=${DEVICE:-cuda}
# shellcheck source=tests/cli/lib.sh
. "$here/../cli/lib.sh"
case $DEVICE in cpu) dtypes=f32 ;; *) dtypes='f32 bf16' ;; esac
make_data || exit 1

# near NAME A B TOLERANCE: |A - B| <= TOLERANCE |A|; nothing missing.
near() {
    if [ -n "$2" ] && [ -n "$3" ] && awk "BEGIN { a = $2; b = $3; d = a > b ? a - b : b - a; exit !(d <= $4 * (a < 0 ? -a : a)) }"
    then ok "$1"; else not_ok "$1" "\"$2\" and \"$3\" differ by more than $4"; fi
}

# ---- golden vectors. f32: 1e-4. bf16: 2^-8 a rounding over sums of both signs, 5e-2.
agree() { # NAME GOLDEN TOLERANCE COUNT OPTIONS...
    name=$1 file=$REPO/tests/data/golden/$2.safetensors tol=$3 n=$4; shift 4
    if ! "$IDATTN" mixer "$file" got.safetensors --device "$DEVICE" -q "$@" >out.txt 2>err.txt; then
        not_ok "$name" "$(cat err.txt)"
    elif table=$("$STDIFF" "$file" got.safetensors "$tol" -n "$n" 2>&1); then ok "$name"
    else not_ok "$name" "$table"
    fi
    rm -f got.safetensors
}
for f in plain bilinear unit heads packed; do
    for dtype in $dtypes; do
        [ $dtype = bf16 ] && tol=5e-2 || tol=1e-4
        for form in sequential chunked; do agree "golden $f, $form, $dtype" $f $tol 13 --form $form --dtype $dtype; done
        agree "golden $f, step, $dtype" $f $tol 3 --form step --dtype $dtype
    done
    agree "golden $f, chunk 7, f32" $f 1e-4 13 --form chunked --dtype f32 --chunk 7
done

# ---- training
on() { # OUT DEVICE DTYPE MIXER MORE...: 20 steps, checkpoints at 10 and 20
    out=$1 device=$2 dtype=$3 mixer=$4; shift 4
    train "$out" --device "$device" --dtype "$dtype" --mixer "$mixer" --steps 20 --save-every 10 -q "$@"
}
from_10() { mkdir "$2" && cp -r "$1/step-00000010" "$1/log.jsonl" "$2/"; } # RUN NEW: NEW is RUN as it was, stopped after 10 steps
same_checkpoint() { # NAME A B
    for f in model optimizer; do
        cmp -s "$2/step-00000020/$f.safetensors" "$3/step-00000020/$f.safetensors" && continue
        not_ok "$1" "$f.safetensors of $2 and $3 differ, or is not there"
        return
    done
    ok "$1"
}
# The last loss logged for each of the steps 11 to 20, one a line.
late_losses() {
    sed -n 's/.*"event":"step".*"step":\([0-9]*\),.*"loss":\([-+.eE0-9]*\).*/\1 \2/p' "$1/log.jsonl" |
        awk '$1 > 10 { x[$1] = $2 } END { for (i = 11; i <= 20; i++) print x[i] }'
}
# close_losses NAME A B TOLERANCE: step by step, relative; ten of them.
close_losses() {
    late_losses "$2" >a.txt
    late_losses "$3" >b.txt
    if paste a.txt b.txt | awk -v tol="$4" '
        NF == 2 && $1 > 0 { d = $1 > $2 ? $1 - $2 : $2 - $1; good += d <= tol * $1 }
        END { exit good != 10 }'
    then ok "$1"; else not_ok "$1" "not all within $4:" "$(paste a.txt b.txt)"; fi
}
for mixer in interdomain softmax s4d; do
    works "train $mixer on the CPU" on cpu_$mixer cpu f32 $mixer
    for dtype in $dtypes; do
        run=${mixer}_$dtype
        # f32: sums in another order. bf16: what storage in bf16 does to a step of this model, which ten steps of training do not
        # multiply; the first step after the move, with the same weights, has 1e-3.
        [ $dtype = bf16 ] && tol=5e-3 || tol=1e-3
        works "train $mixer, $dtype" on $run "$DEVICE" $dtype $mixer
        from_10 $run ${run}_resumed
        works "resume, $run" on ${run}_resumed "$DEVICE" $dtype $mixer --resume
        same_checkpoint "stopped and resumed has the same bits, $run" $run ${run}_resumed
        works "with --activation-checkpointing, $run" on ${run}_recomputed "$DEVICE" $dtype $mixer --activation-checkpointing
        same_checkpoint "which has the same bits, $run" $run ${run}_recomputed
        close_losses "and losses as on the CPU, $run" cpu_$mixer $run $tol
        from_10 $run ${run}_to_cpu
        works "its checkpoint resumed on the CPU, $run" on ${run}_to_cpu cpu f32 $mixer --resume
        close_losses "goes on as on the GPU, $run" $run ${run}_to_cpu $tol
        near "from the same loss, $run" "$(late_losses $run | head -n 1)" "$(late_losses ${run}_to_cpu | head -n 1)" 1e-3
        from_10 cpu_$mixer ${run}_from_cpu
        works "a CPU checkpoint resumed, $run" on ${run}_from_cpu "$DEVICE" $dtype $mixer --resume
        close_losses "goes on as on the CPU, $run" cpu_$mixer ${run}_from_cpu $tol
        near "from the same loss, $run" "$(late_losses cpu_$mixer | head -n 1)" "$(late_losses ${run}_from_cpu | head -n 1)" 1e-3
        no_leftovers "nothing half-written, $run" ${run}_from_cpu
    done
done

# ---- memory: the peak of a run is at most its plan and near it. One document, so that every sequence is as long as a row, which is
# what the plan of softmax in bf16 takes for granted (cuDNN).
planned() { # NAME DTYPE MIXER MORE...
    name=$1 dtype=$2 mixer=$3; shift 3
    run=memory_${mixer}_${dtype}$#
    works "$name" "$IDATTN" train --preset 125m --mixer "$mixer" --set vocab_size=320 --seq-len 512 --batch 8 --micro-batch 4 \
        --data data/train_000000.bin --out "$run" --device "$DEVICE" --dtype "$dtype" --steps 2 -q "$@"
    if tail -n 1 "$run/log.jsonl" | sed 's/.*_peak_bytes":\([0-9]*\),.*_planned_bytes":\([0-9]*\).*/\1 \2/' |
        awk '{ good = NF == 2 && $1 > 0 && $1 <= $2 && $1 >= 0.85 * $2 } END { exit !good }'
    then ok "peak and plan agree, $name"; else not_ok "peak and plan agree, $name" "$(tail -n 1 "$run/log.jsonl")"; fi
    rm -rf "$run"
}
[ "$DEVICE" = cpu ] || for mixer in interdomain softmax s4d; do
    for dtype in $dtypes; do
        planned "a run of 125m, $mixer $dtype" $dtype $mixer
        planned "the same with --activation-checkpointing, $mixer $dtype" $dtype $mixer --activation-checkpointing
    done
done

# ---- evaluation and generation, of a model trained on the CPU
length_losses() { tr ',{}' '\n\n\n' <"$1" | sed -n 's/^ *"loss": *\([-+.eE0-9]*\).*/\1/p'; }
gen() { model=$1; shift; "$IDATTN" generate "$model" -t 0 "$@" </dev/null 2>err.txt; }
for mixer in interdomain softmax s4d; do
    model=cpu_$mixer
    "$IDATTN" eval ppl $model --data data --json >ppl.json
    "$IDATTN" eval length $model --data data --multiple 4 --json >length.json
    length_losses length.json >a.txt
    for dtype in $dtypes; do
        [ $dtype = bf16 ] && tol=5e-3 || tol=1e-5
        works "eval ppl, $mixer $dtype" "$IDATTN" eval ppl $model --data data --device "$DEVICE" --dtype $dtype --json
        near "has the CPU's loss, $mixer $dtype" "$(value ppl.json loss)" "$(value out.txt loss)" $tol
        same "and its number of tokens, $mixer $dtype" "$(value ppl.json tokens)" "$(value out.txt tokens)"
        works "eval length, $mixer $dtype" "$IDATTN" eval length $model --data data --multiple 4 --device "$DEVICE" --dtype $dtype --json
        length_losses out.txt >b.txt
        if [ -s a.txt ] && [ "$(wc -l <a.txt)" -eq "$(wc -l <b.txt)" ] && paste a.txt b.txt | awk -v tol=$tol '
            { d = $1 > $2 ? $1 - $2 : $2 - $1; if (!(d <= 4 * tol * $1)) exit 1 }'
        then ok "has the CPU's losses, $mixer $dtype"; else not_ok "has the CPU's losses, $mixer $dtype" "$(paste a.txt b.txt)"; fi
        works "generate, $mixer $dtype" "$IDATTN" generate $model --prompt the -n 40 --device "$DEVICE" --dtype $dtype
    done
    text=$(gen $model --prompt "the old" -n 40)
    same "greedy text in f32 is the CPU's, $mixer" "$text" "$(gen $model --prompt "the old" -n 40 --device "$DEVICE" --dtype f32)"
    # the line end that generate adds is not text
    gen $model --prompt "the old" -n 15 --device "$DEVICE" --dtype f32 --state-out s.bin | head -c -1 >x.txt
    gen $model -n 25 --state-in s.bin >>x.txt
    same "a session saved on the GPU goes on on the CPU, $mixer" "$text" "$(cat x.txt)"
    gen $model --prompt "the old" -n 15 --state-out s.bin | head -c -1 >x.txt
    gen $model -n 25 --state-in s.bin --device "$DEVICE" --dtype f32 >>x.txt
    same "and one saved on the CPU on the GPU, $mixer" "$text" "$(cat x.txt)"
done

# ---- benches: no row without its check
for dtype in $dtypes; do
    for bench in "train preset=tiny T=64 B=2" "decode tokens=1200" "decode tokens=300 mixer=softmax" \
        "prefill preset=tiny T=200" "prefill preset=tiny T=200 mixer=s4d"; do
        # shellcheck disable=SC2086
        works "bench $bench, $dtype" "$IDATTN" bench $bench reps=2 device="$DEVICE" dtype=$dtype --json -q
        if grep -q '"check": true' out.txt && ! grep -q '"check": false' out.txt
        then ok "its rows are checked, $dtype"; else not_ok "its rows are checked, $dtype" "$(cat out.txt)"; fi
    done
done

# ---- heads beyond the tuned sizes: they work, and the log says once that they are slower
for dtype in $dtypes; do
    wide="--set hidden_size=160 --set num_attention_heads=1 --set num_key_value_heads=1"
    # shellcheck disable=SC2086
    works "heads of 160, $dtype" "$IDATTN" train $TRAIN_ARGS --data data --out wide_$dtype --device "$DEVICE" --dtype $dtype --steps 3 $wide
    [ "$DEVICE" = cpu ] || same "say once that they are slower, $dtype" 1 "$(grep -c 'generic path' err.txt)"
done

# ---- bad cases
refuses "an unknown device" 2 'device' train never --steps 3 --device tpu -q
absent "writes nothing" never
refuses "no backend" 1 'none.so' env IDA_CUDA_BACKEND=./none.so "$IDATTN" generate cpu_softmax --prompt a --device cuda
if [ "$DEVICE" != cpu ]; then
    refuses "no GPU to be seen" 1 'no CUDA device' env CUDA_VISIBLE_DEVICES= "$IDATTN" generate cpu_softmax --prompt a --device cuda
    refuses "nor for training" 1 'no CUDA device' env CUDA_VISIBLE_DEVICES= "$IDATTN" train $TRAIN_ARGS --data data --out never --device cuda -q
    absent "which writes nothing" never
    refuses "a GPU that is not there" 2 'cuda:99' train never --steps 3 --device cuda:99 -q
    absent "writes nothing either" never
fi
# 2^24 tokens of a 125m model in one pass. What an allocation says that fails all the same, model_check proves.
refuses "too little memory: how much, for what, what to lower" 1 'needs [0-9.]+ TiB, the device has [0-9.]+ .iB available \(most of it activations: [0-9.]+ TiB\): choose a smaller micro_batch' \
    "$IDATTN" train --preset 125m --seq-len 64 --batch 262144 --micro-batch 262144 --data data --out never --steps 3 --device "$DEVICE" -q
absent "leaves nothing" never
works "and the next run trains" train after --steps 3 --device "$DEVICE" -q
finish
