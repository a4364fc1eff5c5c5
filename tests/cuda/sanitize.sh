#!/bin/sh
# sanitize.sh - compute-sanitizer over the checks of every op, in both dtypes: memcheck and initcheck, and racecheck where kernels
# use shared memory. Parallel; some minutes on 16 cores. Cases are thinned (ops_check --thin) and tensors past 2^31 elements left
# out; of the chunked scans the tools that take longest there run what is small (up to 150 tokens, two heads of 64) on the tuned
# path and on the generic one. memcheck has them all.
# usage: tests/cuda/sanitize.sh OPS_CHECK [OP...]
# One line per tool and op; exit 1 when one of them is not clean. SANITIZER=path, JOBS=N, LIMIT=seconds for each.
# Attention runs our own kernels: cuDNN's are not ours to mend. Nor are cuBLAS's, in some of which racecheck sees hazards: a run
# of which all hazards are there counts as clean.
set -u
if [ "${1-}" = --one ]; then # --one CHECK FOLDER TOOL OP
    check=$2 out=$3/$4.$5.txt tool=$4 op=$5
    case $tool.$op in
    memcheck.*) most=0 ;;
    *.interdomain_chunk_fwd) most=100000 ;;
    *.interdomain_chunk_bwd | initcheck.s4d_chunk_bwd) most=160000 ;; # twice the arrays
    *) most=0 ;;
    esac
    begun=$(date +%s)
    IDA_ATTENTION=own timeout -k 10 "$LIMIT" "$SANITIZER" --tool "$tool" --print-limit 100 --error-exitcode 99 \
        "$check" --here --thin --most "$most" --no-large --only "$op" >"$out" 2>&1
    rc=$?
    # "ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
    summary=$(sed -n 's/^=* *\(ERROR\|RACECHECK\) SUMMARY: //p' "$out" | tail -n 1)
    where=$(grep -o 'access at .*' "$out" | grep -v 'access at \(void \)\?\(nvjet\|cublas\|cutlass\)' | head -n 1)
    if [ $rc -eq 124 ] || [ $rc -eq 137 ]; then verdict="not done after $LIMIT s"
    elif [ $rc -eq 0 ] && case $summary in '0 errors'* | '0 hazards'*) true ;; *) false ;; esac; then verdict=clean
    elif [ -z "$summary" ]; then verdict="no summary, exit $rc"
    elif [ "$tool" = racecheck ] && [ $rc -eq 99 ] && [ -z "$where" ] && grep -q 'access at' "$out" && grep -q '^all passed' "$out"; then
        verdict="clean, but for cuBLAS: $summary"
    elif [ $rc -ne 99 ] && case $summary in '0 errors'* | '0 hazards'*) true ;; *) false ;; esac; then verdict="clean, but the check failed (exit $rc)"
    else verdict=$summary
    fi
    text=$(printf '%-9s %-22s %3d s  %s' "$tool" "$op" $(($(date +%s) - begun)) "$verdict")
    if case $verdict in clean | 'clean, but for cuBLAS'*) true ;; *) false ;; esac; then
        printf '%s\n' "$text"
    else
        : >"$out.bad"
        # one write, so that two failures do not mix
        printf '%s\n%s\n' "$text" "$(grep -v '^=* *$' "$out" | head -n 25 | cut -c1-200 | sed 's/^/    /')"
    fi
    exit 0
fi

[ $# -ge 1 ] || { echo 'usage: tests/cuda/sanitize.sh OPS_CHECK [OP...]' >&2; exit 2; }
check=$1; shift
SANITIZER=${SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer /usr/local/cuda/compute-sanitizer/compute-sanitizer 2>/dev/null | head -n 1)}
LIMIT=${LIMIT:-400} JOBS=${JOBS:-$(nproc 2>/dev/null || echo 2)}
[ -n "$SANITIZER" ] || { echo 'sanitize.sh: no compute-sanitizer here: it comes with the CUDA toolkit; or set SANITIZER' >&2; exit 2; }
export SANITIZER LIMIT
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

ops=${*:-$("$check" --list | grep -v '^large_')}
[ -n "$ops" ] || exit 2
# The longest first, so that none of them begins last.
heavy='interdomain_chunk_bwd interdomain_chunk_fwd s4d_chunk_bwd attention_bwd linear_fwd s4d_chunk_fwd attention_fwd stream_bwd linear_bwd interdomain_seq_bwd'
for op in $ops; do
    rank=9
    case " $heavy " in *" $op "*) rank=1 ;; esac
    for tool in memcheck initcheck racecheck; do
        case $tool.$op in
        # kernels without shared memory: elementwise, or a warp a row
        racecheck.embed_fwd | racecheck.swiglu_* | racecheck.rope | racecheck.adamw | racecheck.to_act | racecheck.from_act) continue ;;
        racecheck.*) echo "$((rank - 1)) $tool $op" ;;
        *) echo "$rank $tool $op" ;;
        esac
    done
done | sort -n -s -k1,1 | while read -r _ tool op; do echo "$tool $op"; done >"$work/list"
xargs -P "$JOBS" -L 1 sh "$0" --one "$check" "$work" <"$work/list"
planned=$(wc -l <"$work/list") n=$(find "$work" -name '*.txt' | wc -l) bad=$(find "$work" -name '*.bad' | wc -l)
echo "$n of $planned runs, $bad not clean"
[ "$n" -eq "$planned" ] && [ "$bad" -eq 0 ]
