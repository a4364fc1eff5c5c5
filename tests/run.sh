#!/bin/sh
# Runs the tests that `make` built. Each program in its own process with a time limit; a crash or a time-out counts as one failure.
# usage: tests/run.sh [--fast] [--filter PATTERN] [--list]
#   --fast     release build only, and only the quick scripts
#   --filter   only programs and scripts whose name contains PATTERN
#   --list     print the names and stop
# The last line is "N passed, M failed" (", K skipped" when there are any); exit 1 when something failed.
set -u
cd "$(dirname "$0")/.." || exit 2
fast= filter= list=
while [ $# -gt 0 ]; do
    case $1 in
    --fast) fast=1 ;;
    --list) list=1 ;;
    --filter) shift; filter=${1?--filter needs a pattern} ;;
    --one) break ;;
    *) echo "run.sh: unknown option $1; usage: tests/run.sh [--fast] [--filter PATTERN] [--list]" >&2; exit 2 ;;
    esac
    shift
done
limit=${TEST_LIMIT:-300}
root=$PWD
rel=build/release asan=build/asan

# One program: --one RESULTS NAME. Writes RESULTS/N.{out,sum}; sum = "passed failed skipped seconds".
if [ "${1-}" = --one ]; then
    results=$2 name=$3
    key=$(printf '%s' "$name" | tr '/ ' '__')
    out=$results/$key.out
    kind=${name%%:*} what=${name#*:}
    begun=$(date +%s)
    case $kind in
    release) CMOCKA_MESSAGE_OUTPUT=TAP timeout -k 5 "$limit" "$rel/$what" >"$out" 2>&1 ;;
    asan) CMOCKA_MESSAGE_OUTPUT=TAP ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
              timeout -k 5 "$limit" "$asan/$what" >"$out" 2>&1 ;;
    fuzz) base=${what##*/}
          ASAN_OPTIONS=allocator_may_return_null=1 timeout -k 5 "$limit" "$asan/$what" "tests/fuzz/corpus/${base#fuzz_}" >"$out" 2>&1 ;;
    script) IDATTN=$root/$rel/idattn STDIFF=$root/$rel/tests/cli/stdiff FINGERPRINT=$root/$rel/tests/compat/fingerprint \
              timeout -k 5 "$limit" sh "$what" >"$out" 2>&1 ;;
    script-asan) IDATTN=$root/$asan/idattn STDIFF=$root/$asan/tests/cli/stdiff ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 \
              timeout -k 5 "$limit" sh "$what" >"$out" 2>&1 ;;
    esac
    rc=$?
    if [ "$kind" = fuzz ]; then
        [ $rc -eq 0 ] && p=1 f=0 s=0 || p=0 f=1 s=0
    else
        # TAP; a test program that dies leaves fewer lines than its plan says
        s=$(grep -acE '^(not )?ok .*# SKIP' "$out") # cmocka calls a skipped test not ok
        p=$(grep -a '^ok ' "$out" | grep -avc '# SKIP')
        f=$(grep -a '^not ok ' "$out" | grep -avc '# SKIP')
        plan=$(sed -n 's/^1\.\.\([0-9]*\).*/\1/p' "$out" | awk '{ n += $1 } END { print n + 0 }')
        ran=$((p + f + s))
        if [ "$f" -eq 0 ] && { [ $rc -ne 0 ] || [ "$ran" -eq 0 ] || { [ "$plan" -gt 0 ] && [ "$ran" -lt "$plan" ]; }; }; then f=1; fi
    fi
    echo "$p $f $s $rc" >"$results/$key.sum"
    seconds=$(($(date +%s) - begun))
    if [ "$f" -eq 0 ]; then
        printf 'ok    %-46s %4d tests %4d s\n' "$name" "$p" "$seconds"
    else
        [ $rc -eq 124 ] && why=" (stopped after $limit s)" || why=" (exit $rc)"
        # one write, so that two failures do not mix
        { printf 'FAIL  %s%s\n' "$name" "$why"; grep -av '^ok ' "$out" | tail -n 40 | sed 's/^/      /'; } >"$results/$key.msg"
        cat "$results/$key.msg"
    fi
    exit 0
fi

# From the sources, so that a program whose source is gone is not run.
names() {
    for f in tests/*/test_*.c; do [ -e "$f" ] && echo "release:${f%.c}"; done
    for f in tests/cli/*.sh tests/compat/*.sh tests/install/*.sh tests/oracle/*.sh; do
        case $f in */lib.sh | */cases.sh | *'*'*) continue ;; esac
        if [ -n "$fast" ] && grep -q '^# slow' "$f"; then continue; fi
        echo "script:$f"
    done
    [ -n "$fast" ] && return
    for f in tests/*/test_*.c; do [ -e "$f" ] && echo "asan:${f%.c}"; done
    for f in tests/fuzz/fuzz_*.c; do [ -e "$f" ] && echo "fuzz:${f%.c}"; done
    for f in tests/cli/*.sh; do [ -e "$f" ] && grep -q '^# also under sanitizers' "$f" && echo "script-asan:$f"; done
}

all=$(names | grep -F -e "$filter")
if [ -n "$list" ]; then
    printf '%s\n' "$all"
    exit 0
fi
if [ -z "$all" ]; then
    echo "run.sh: no test matches \"$filter\"" >&2
    exit 2
fi
results=$(mktemp -d) || exit 2
trap 'rm -rf "$results"' EXIT
trap 'exit 130' INT TERM
# The machine's cores are shared by the programs that run at once.
jobs=$(nproc 2>/dev/null || echo 2)
[ "$jobs" -gt 8 ] && jobs=8
printf '%s\n' "$all" | TEST_LIMIT=$limit xargs -P "$jobs" -I NAME sh tests/run.sh --one "$results" NAME
cat "$results"/*.sum 2>/dev/null | awk -v want="$(printf '%s\n' "$all" | wc -l)" '
    { p += $1; f += $2; s += $3; n++ }
    END { f += want - n; printf "%d passed, %d failed%s\n", p, f, s ? ", " s " skipped" : ""; exit f > 0 }'
