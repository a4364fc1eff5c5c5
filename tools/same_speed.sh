#!/bin/sh
# Is a program as fast as another on the CPU of this machine, and how much does a change of a header rebuild?
# usage: tools/same_speed.sh [--mixers "KIND..."] [--isa NAME] [--reps N] [--counts | --clock] OLD_IDATTN NEW_IDATTN
# usage: tools/same_speed.sh --build [COMMIT]
#   --mixers  of the models measured [interdomain softmax s4d]
#   --isa     of the counts [base]: base, avx2. Valgrind runs FMA instructions in software, some 20 times slower
#   --reps    runs of each program by the clock; medians are shown [7]
#   --counts, --clock   that part only
#   --build   how long the build takes and what a header rebuilds, at HEAD and, beside it, at COMMIT
# Counts are instructions as callgrind sees them, on one thread: they differ by less than 0.2% from run to run. A step
# is a third of the difference of runs of 4 and of 1 steps (demo preset, one sequence), 64 tokens the difference of 65
# and of 1, a load that of 0 tokens and `version`. Clock times are of whole commands, with all threads, the two
# programs in turn. The build is timed from a fresh clone, without ccache; then each header is "touched" (make -W) and
# the objects are counted that make would build again.
# Lists of options are split on purpose:
# shellcheck disable=SC2086
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
mixers="interdomain softmax s4d" isa=base reps=7 part=all commit=
while [ $# -gt 0 ]; do
    case $1 in
    --mixers) mixers=$2; shift 2 ;;
    --isa) isa=$2; shift 2 ;;
    --reps) reps=$2; shift 2 ;;
    --counts | --clock) part=${1#--}; shift ;;
    --build) part=build commit=${2-}; break ;;
    -*) sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2; exit 2 ;;
    *) break ;;
    esac
done
if [ "$part" != build ]; then
    [ $# -eq 2 ] || { sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2; exit 2; }
    old=$(realpath "$1") new=$(realpath "$2")
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.4f", b / a }'; }

make_models() { # a model of each mixer with weights of the demo preset's size
    awk 'BEGIN { x = 12345; for (i = 0; i < 30000; i++) {
        x = (x * 1103515 + 12345) % 2147483; printf "w%d%s", x % 997, i % 300 == 299 ? "\n\n\n" : " " } }' >text.txt
    "$old" tokenizer train text.txt --vocab-size 512 --out tok.json -q
    "$old" data pack text.txt --tokenizer tok.json --out data --split-blank-lines --val-fraction 0.05 -q
    for m in $mixers; do "$old" train $TRAIN $ONE --mixer "$m" --steps 1 --out "model-$m"; done
}
TRAIN="--preset demo --set vocab_size=2048 --data data --eval-tokens 10 -q"
ONE="--batch 1 --micro-batch 1"

count() { # PROGRAM ARGUMENTS...: instructions
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" 2>count.txt >/dev/null </dev/null ||
        { cat count.txt >&2; exit 1; }
    sed -n 's/.*I *refs: *\([0-9,]*\)$/\1/p' count.txt | tr -d ,
}
count_train() { rm -rf "run-$3"; count "$1" train $TRAIN $ONE --mixer "$2" --steps "$3" --out "run-$3" --threads 1; }
count_decode() { count "$1" generate "model-$2" --prompt a -t 0 -n "$3" --ignore-eos --threads 1 -q; }
measure() { # WHAT PROGRAM MIXER
    case $1 in
    step) echo $((($(count_train "$2" "$3" 4) - $(count_train "$2" "$3" 1)) / 3)) ;;
    "64 tokens") echo $(($(count_decode "$2" "$3" 65) - $(count_decode "$2" "$3" 1))) ;;
    load) echo $(($(count_decode "$2" "$3" 0) - $(count "$2" version))) ;;
    esac
}
counts() {
    command -v valgrind >/dev/null || "$root/tools/setup.sh" callgrind valgrind
    export OPENBLAS_NUM_THREADS=1 IDA_ISA="$isa"
    [ "$isa" != base ] || export OPENBLAS_CORETYPE=Nehalem
    printf '%-14s %-12s %15s %15s %8s\n' "instructions" "$isa" old new new/old
    for m in $mixers; do
        for what in step "64 tokens" load; do
            a=$(measure "$what" "$old" "$m") b=$(measure "$what" "$new" "$m")
            printf '%-14s %-12s %15d %15d %8s\n' "$what" "$m" "$a" "$b" "$(ratio "$a" "$b")"
        done
    done
    unset OPENBLAS_NUM_THREADS IDA_ISA OPENBLAS_CORETYPE
}

seconds() { # COMMAND...: of one run
    a=$(date +%s%N)
    "$@" >/dev/null </dev/null
    b=$(date +%s%N)
    echo "$a $b" | awk '{ printf "%.6f\n", ($2 - $1) / 1e9 }'
}
timed() { # WHAT PROGRAM MIXER
    rm -rf timed
    case $1 in
    "4 steps") seconds "$2" train $TRAIN --mixer "$3" --steps 4 --out timed ;;
    "512 tokens") seconds "$2" generate "model-$3" --prompt a -t 0 -n 512 --ignore-eos -q ;;
    load) seconds "$2" generate "model-$3" --prompt a -n 0 -q ;;
    esac
}
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
clock() {
    printf '%-14s %-12s %15s %15s %8s\n' seconds "median of $reps" old new new/old
    for m in $mixers; do
        for what in "4 steps" "512 tokens" load; do
            : >a.txt
            : >b.txt
            for _ in $(seq "$reps"); do
                timed "$what" "$old" "$m" >>a.txt
                timed "$what" "$new" "$m" >>b.txt
            done
            a=$(median a.txt) b=$(median b.txt)
            printf '%-14s %-12s %15.4f %15.4f %8s\n' "$what" "$m" "$a" "$b" "$(ratio "$a" "$b")"
        done
    done
}

MAKE="make -j$(nproc) --no-print-directory NVCC= lib build/idattn"
# shares DIR: "objects-rebuilt header" a line, of the headers that are not of CUDA. -o: a dry run cannot bring these
# up to date.
shares() {
    (
        cd "$1"
        given="-o build/release/flags -o build/release/commit.h"
        for h in $(git ls-files 'include/*.h' 'src/*.h' | grep -v '^src/ops/cuda/'); do
            echo "$($MAKE -n $given -W "$h" 2>/dev/null | grep -c -e ' -c ') $h"
        done
    )
}
build_one() { # DIR COMMIT
    git clone -q "$root" "$1"
    git -C "$1" checkout -q "$2"
    mkdir -p "$1/build"
    touch "$1/build/.setup"
    a=$(date +%s)
    (cd "$1" && CCACHE_DISABLE=1 $MAKE >/dev/null)
    b=$(date +%s)
    objects=$(find "$1/build/release" -name '*.o' | wc -l)
    echo "make from clean, $(git -C "$1" rev-parse --short HEAD): $((b - a)) s on $(nproc) cores, $objects objects"
    shares "$1" | awk -v n="$objects" '{ printf "%5.1f%% %s\n", 100 * $1 / n, $2 }' | sort -rn >"$1.shares"
}
build() {
    build_one new HEAD
    [ -z "$commit" ] || build_one old "$commit"
    echo "objects rebuilt by touching a header${commit:+, and at $commit}:"
    if [ -z "$commit" ]; then cat new.shares; else
        awk 'NR == FNR { was[$2] = $1; next } { print $0, $2 in was ? was[$2] : "-" }' old.shares new.shares
    fi
    awk '$1 + 0 > 35 { n++ } END { printf "%d of %d headers rebuild more than 35%%\n", n, NR }' new.shares
}

if [ "$part" = build ]; then
    build
    exit
fi
make_models
[ "$part" = clock ] || counts
[ "$part" = counts ] || clock
