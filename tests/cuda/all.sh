#!/bin/sh
# all.sh - every check that needs a GPU: ops against the reference, attention by our own kernels, the model, the mixer core against the
# golden vectors, the program from outside, and all ops under compute-sanitizer. `make test-cuda` runs it.
# usage: tests/cuda/all.sh BUILD    (the folder that has idattn, libidattn_cuda.so and tests/cuda/*)
# SIDE=1 runs the parts side by side: a third of the time on 16 cores, and 80 GB of GPU memory. PARTS="model program" runs only these.
# One line a part; the whole text of one that fails. Exit 1 when one does.
set -u
[ $# -eq 1 ] || { sed -n '4,6p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd) B=$(cd "$1" && pwd) || exit 2
checks=$B/tests/cuda
export IDA_CUDA_BACKEND="${IDA_CUDA_BACKEND-$B/libidattn_cuda.so}"
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
: >"$work/parts"

part() { # NAME COMMAND...
    name=$1; shift
    case " ${PARTS-$name} " in *" $name "*) ;; *) return ;; esac
    echo "$name" >>"$work/parts"
    { "$@" >"$work/$name.txt" 2>&1; echo $? >"$work/$name.rc"; } &
    [ -n "${SIDE-}" ] || wait
}
own_attention() {
    for op in attention_fwd attention_bwd; do IDA_ATTENTION=own "$checks/ops_check" --only $op --dtype bf16 || return 1; done
}
sanitize() { # 2: no sanitizer here
    "$here/sanitize.sh" "$checks/ops_check"
    rc=$?
    [ $rc -ne 2 ] || return 0
    return $rc
}
large() {
    "$checks/ops_check" --list | grep '^large_' >"$work/large" || return 1
    while read -r op; do "$checks/ops_check" --only "$op" || return 1; done <"$work/large"
}
part ops-f32 "$checks/ops_check" --no-large --dtype f32
part ops-bf16 "$checks/ops_check" --no-large --dtype bf16
part ops-large large
part attention-own own_attention
part model "$checks/model_check"
part mixer-core "$checks/interdomain_check" "$here/../data/golden"
part program "$here/program.sh" "$B/idattn" "$B/tests/cli/stdiff"
wait
part sanitize sanitize
wait

for name in ${PARTS-}; do
    grep -qx -e "$name" "$work/parts" || { echo "there is no part $name"; exit 2; }
done
bad=0
while read -r name; do
    if [ "$(cat "$work/$name.rc")" = 0 ]; then echo "ok      $name: $(tail -n 1 "$work/$name.txt")"
    else bad=1; echo "FAILED  $name:"; grep -v '^ok' "$work/$name.txt" | sed 's/^/    /'
    fi
done <"$work/parts"
[ $bad -eq 0 ] || { echo 'test-cuda: FAILED'; exit 1; }
echo 'test-cuda: all passed'
