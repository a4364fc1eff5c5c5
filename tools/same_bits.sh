#!/bin/sh
# Do two programs give the same bits on this machine? For every mixer and every option below, both train 20 steps on the
# same data, and all that they write is compared byte for byte: weights, moments, options of the run, losses of every
# step, evaluation, generated text, saved states. The second program also goes on from the first one's checkpoint of
# step 10. For changes that promise not to change results.
# usage: tools/same_bits.sh OLD NEW [WORK] [--device cpu|cuda] [--dtype f32|bf16] [--only PATTERN] [--list]
#   OLD, NEW  the programs
#   WORK      a folder for the runs; those that differ are kept there. Without it a temporary one
#   --device  cuda runs in bf16 and in f32. Each program needs its own backend beside it or in its ../lib
#   --dtype   one of them only
#   --only    cases whose name contains PATTERN
# On the CPU every instruction set of the machine is taken in turn. The last line is "N equal, M differ"; exit 1 when
# M > 0. Needs sh, awk and tests/cli/grammar.awk of the tree; takes about four minutes on two cores.
set -u
here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2; exit 2; }
old='' new='' work='' device=cpu dtypes='' only='' list=''
while [ $# -gt 0 ]; do
    case $1 in
    --device | --dtype | --only)
        [ $# -ge 2 ] || usage
        case $1 in --device) device=$2 ;; --dtype) dtypes=$2 ;; --only) only=$2 ;; esac
        shift ;;
    --list) list=1 ;;
    -*) usage ;;
    *)
        if [ -z "$old" ]; then old=$1
        elif [ -z "$new" ]; then new=$1
        elif [ -z "$work" ]; then work=$1
        else usage; fi ;;
    esac
    shift
done

# NAME: options of train. A case without --mixer is of interdomain. What a case does not give:
DEFAULTS="seq-len=96 batch=4 warmup-steps=3 lr=3e-3 eval-tokens=2000"
cases() {
    cat <<'END'
softmax: --mixer softmax
interdomain:
dual-linear: --mixer dual-linear
single-query: --mixer single-query
s4d: --mixer s4d
hybrid: --set num_hidden_layers=5 --set layer_mixers=interdomain,softmax,s4d,dual-linear,single-query
hybrid-gated: --set num_hidden_layers=2 --set layer_mixers=s4d,softmax --set mixer.gate=true --set mixer.output_norm=true
basis-inv: --set mixer.basis=s4d-inv
basis-lin: --set mixer.basis=s4d-lin
basis-legs: --set mixer.basis=s4d-legs
zoh: --set mixer.discretization=zoh
euler: --set mixer.discretization=euler
unit: --set mixer.discretization=unit
norm: --set mixer.discretization=norm
readout-hermitian: --set mixer.readout=hermitian
readout-bilinear: --set mixer.readout=bilinear
c-normal: --set mixer.c_init=normal
c-identity: --set mixer.c_init=identity
c-whitened: --set mixer.c_init=whitened
no-rope: --set mixer.rope=false
rope-theta: --set rope_theta=500000
gate: --set mixer.gate=true
output-norm: --set mixer.output_norm=true
gate-and-norm: --set mixer.gate=true --set mixer.output_norm=true
dt-range: --set mixer.dt_min=0.01 --set mixer.dt_max=0.5
l2-eps: --set mixer.l2_eps=1e-3
norm-eps: --set rms_norm_eps=1e-3
init-std: --set initializer_range=0.05
tied: --set tie_word_embeddings=true
grouped: --set num_attention_heads=4 --set num_key_value_heads=2
one-group: --set num_attention_heads=4 --set num_key_value_heads=1
heads-of-16: --set num_attention_heads=4 --set num_key_value_heads=4
heads-of-6: --set hidden_size=12 --set intermediate_size=20
heads-of-128: --set hidden_size=256 --set mixer.state_size=64 --set num_hidden_layers=1
states-5: --set mixer.state_size=5
states-96: --set mixer.state_size=96
one-layer: --set num_hidden_layers=1
ffn-odd: --set intermediate_size=77
softmax-grouped: --mixer softmax --set num_attention_heads=4 --set num_key_value_heads=2
softmax-gated: --mixer softmax --set mixer.gate=true --set mixer.output_norm=true
softmax-no-rope: --mixer softmax --set mixer.rope=false
softmax-tied: --mixer softmax --set tie_word_embeddings=true
softmax-heads-of-6: --mixer softmax --set hidden_size=12 --set intermediate_size=20
dual-linear-heads-of-16: --mixer dual-linear --set num_attention_heads=4 --set num_key_value_heads=4
dual-linear-bilinear: --mixer dual-linear --set mixer.readout=bilinear --set mixer.discretization=norm
dual-linear-gated: --mixer dual-linear --set mixer.gate=true --set mixer.output_norm=true
dual-linear-whitened: --mixer dual-linear --set mixer.c_init=whitened --set mixer.basis=s4d-legs
single-query-gated: --mixer single-query --set mixer.gate=true --set mixer.output_norm=true
single-query-unit: --mixer single-query --set mixer.discretization=unit --set mixer.basis=s4d-inv
single-query-bilinear: --mixer single-query --set mixer.readout=bilinear --set mixer.c_init=identity
s4d-gated: --mixer s4d --set mixer.gate=true --set mixer.output_norm=true
s4d-legs: --mixer s4d --set mixer.basis=s4d-legs --set mixer.discretization=euler
s4d-states-5: --mixer s4d --set mixer.state_size=5
checkpointing: --activation-checkpointing
hybrid-checkpointing: --set num_hidden_layers=3 --set layer_mixers=s4d,softmax,interdomain --activation-checkpointing
micro-batch: --micro-batch 1
one-sequence: --batch 1 --micro-batch 1
short: --seq-len 7
long: --seq-len 300 --batch 2
clip-off: --clip 0
clip-small: --clip 0.05
betas: --beta1 0.8 --beta2 0.99 --eps 1e-6
no-decay: --weight-decay 0
rates: --lr 1e-2 --min-lr 1e-3 --ssm-lr-max 1e-2 --warmup-steps 7
seed: --seed 123456789
eval-tokens: --eval-tokens 500
one-thread: --threads 1
END
}
if [ -n "$list" ]; then cases; exit 0; fi
[ -n "$new" ] || usage
for p in "$old" "$new"; do [ -x "$p" ] || { echo "same_bits.sh: $p is not a program" >&2; exit 2; }; done
absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
old=$(absolute "$old") new=$(absolute "$new")
[ -n "$dtypes" ] || case $device in cpu) dtypes=f32 ;; *) dtypes="bf16 f32" ;; esac
if [ -z "$work" ]; then
    work=$(mktemp -d) || exit 2
    trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work" && cd "$work" || exit 2

equal=0 differ=0
compare() { # NAME OLD NEW: two files
    if cmp -s "$2" "$3"; then equal=$((equal + 1)); else
        differ=$((differ + 1))
        echo "DIFFERS $1: $2 $3"
    fi
}
# A text of a small grammar, documents parted by blank lines: the same everywhere.
make_text() { awk -v docs=200 -v least=8 -v range=13 -f "$here/../tests/cli/grammar.awk"; }
# A line of the log tells also of the process: its time, speed and memory.
content() { sed '/"text":"memory: /d; s/"tokens_per_s":[^,}]*,*//; s/"time":[^,}]*//; s/"device_memory_[a-z_]*":[^,}]*,*//g' "$1"; }

# one PROGRAM DIR CASE_OPTIONS...: everything a program makes of a case.
one() {
    program=$1 dir=$2
    shift 2
    mkdir -p "$dir"
    defaults=
    for d in $DEFAULTS; do
        case " $* " in *" --${d%%=*} "*) ;; *) defaults="$defaults --${d%%=*} ${d#*=}" ;; esac
    done
    # shellcheck disable=SC2086
    "$program" train --preset tiny $defaults --steps 20 --save-every 10 --eval-every 10 --data data --out "$dir/run" \
        --device "$device" --dtype "$dtype" "$@" -q 2>"$dir/errors" || return
    content "$dir/run/log.jsonl" >"$dir/log"
    run="--device $device --dtype $dtype -q"
    # shellcheck disable=SC2086
    {
        "$program" generate "$dir/run" --prompt "the old" -t 0 -n 40 --ignore-eos $run
        "$program" generate "$dir/run" --prompt "a quiet garden" --seed 5 -n 60 --ignore-eos --state-out "$dir/state" $run
        "$program" generate "$dir/run" --state-in "$dir/state" --prompt " a river" -t 0 -n 40 --ignore-eos $run
    } >"$dir/text" 2>>"$dir/errors"
    # shellcheck disable=SC2086
    {
        "$program" eval ppl "$dir/run" --data data --max-tokens 2000 --json $run
        "$program" eval ppl "$dir/run" --data data --max-tokens 1000 --window 64 --stride 32 --json $run
        "$program" eval length "$dir/run" --data data --multiple 3 --blocks 2 --json $run
    } >"$dir/eval" 2>>"$dir/errors"
}
# What must not be missing from both.
made_all() {
    for f in run/step-00000020/model.safetensors text eval state; do [ -s "$1/$f" ] || return 1; done
}

case_of() { # NAME OPTIONS...
    name=$1
    shift
    one "$old" "$at/old" "$@"
    if ! made_all "$at/old"; then
        differ=$((differ + 1))
        echo "FAILS $name with $old: $(head -n 1 "$at/old/errors")"
        return
    fi
    one "$new" "$at/new" "$@"
    for step in 10 20; do
        for f in model.safetensors optimizer.safetensors config.json trainer_state.json; do
            compare "$name" "$at/old/run/step-000000$step/$f" "$at/new/run/step-000000$step/$f"
        done
    done
    for f in log text eval state; do compare "$name" "$at/old/$f" "$at/new/$f"; done
    # The new program goes on from the old one's checkpoint, with the options of the run.
    mkdir "$at/on"
    cp -r "$at/old/run/step-00000010" "$at/on"
    again=
    for a; do
        [ "$a" != --activation-checkpointing ] || again=$a # the only one that a checkpoint does not name
    done
    # shellcheck disable=SC2086
    "$new" train --data data --out "$at/on" --resume --save-every 10 --eval-every 10 --device "$device" --dtype "$dtype" \
        $again -q 2>>"$at/new/errors"
    for f in model optimizer; do
        compare "$name, resumed" "$at/old/run/step-00000020/$f.safetensors" "$at/on/step-00000020/$f.safetensors"
    done
}

make_text >text.txt
for p in old new; do
    eval "program=\$$p"
    "$program" tokenizer train text.txt --vocab-size 320 --out "$p.json" -q || exit 2
    rm -rf "$p.data"
    "$program" data pack text.txt --tokenizer "$p.json" --out "$p.data" --split-blank-lines --val-fraction 0.1 -q ||
        exit 2
done
compare tokenizer old.json new.json
for f in old.data/*; do compare data "$f" "new.data/${f#*/}"; done
rm -rf data && mv old.data data

isas=$("$old" doctor --json | tr -d ' \n' | sed 's/.*"isas":\[\([^]]*\)\].*/\1/; s/"//g; s/,/ /g')
[ "$device" = cpu ] || isas=default
for isa in $isas; do
    [ "$isa" = default ] || export IDA_ISA="$isa"
    for dtype in $dtypes; do
        cases >list
        while IFS= read -r line <&3; do
            name="$isa $dtype ${line%%:*}"
            case $name in *"$only"*) ;; *) continue ;; esac
            at=run-$isa-$dtype-${line%%:*}
            rm -rf "$at"
            mkdir "$at"
            before=$differ
            # shellcheck disable=SC2086
            case_of "$name" ${line#*:}
            [ "$differ" -gt "$before" ] || rm -rf "$at"
        done 3<list
    done
done
echo "$equal equal, $differ differ"
[ "$differ" -eq 0 ]
