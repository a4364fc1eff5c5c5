# lib.sh - what the command-line tests share: TAP lines, a work folder, a small text. Sourced; needs IDATTN (the program).
# Every check prints one TAP line; finish prints the plan and sets the exit code.
set -u
: "${IDATTN:?set IDATTN to the program under test}"
REPO=$(cd "$(dirname "$0")/../.." && pwd)
base=${TMPDIR:-/tmp}; [ -w /dev/shm ] && base=/dev/shm # hundreds of fsyncs need no disk
WORK=$(mktemp -d "$base/idattn-test-XXXXXX")
trap 'rm -rf "$WORK"' EXIT
cd "$WORK" || exit 1
count=0 bad=0

ok() { count=$((count + 1)); echo "ok $count - $1"; }
not_ok() {
    count=$((count + 1)) bad=$((bad + 1))
    echo "not ok $count - $1"
    shift
    for line; do printf '%s\n' "$line" | sed 's/^/# /'; done
}
skip() { count=$((count + 1)); echo "ok $count - $1 # SKIP $2"; }
finish() { echo "1..$count"; [ "$bad" -eq 0 ]; exit; }

# works NAME COMMAND...: exit 0, nothing on standard error that looks like a failure.
works() {
    name=$1; shift
    "$@" >out.txt 2>err.txt; rc=$?
    if [ $rc -eq 0 ]; then ok "$name"; else not_ok "$name" "exit $rc, expected 0: $*" "$(tail -n 5 err.txt)"; fi
}
# refuses NAME RC PATTERN COMMAND...: that exit code, nothing on standard output, exactly one line on standard error that matches.
refuses() {
    name=$1 want=$2 pattern=$3; shift 3
    "$@" >out.txt 2>err.txt; rc=$?
    if [ $rc -ne "$want" ]; then not_ok "$name" "exit $rc, expected $want: $*" "$(tail -n 5 err.txt)"
    elif [ -s out.txt ]; then not_ok "$name" "standard output is not empty" "$(head -n 3 out.txt)"
    elif [ "$(wc -l <err.txt)" -ne 1 ]; then not_ok "$name" "not one line on standard error" "$(head -n 8 err.txt)"
    elif ! grep -qiE -e "$pattern" err.txt; then not_ok "$name" "the line does not match \"$pattern\"" "$(cat err.txt)"
    else ok "$name"; fi
}
same() { if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "expected: $2" "got:      $3"; fi; }
matches() { if printf '%s' "$3" | grep -qE -e "$2"; then ok "$1"; else not_ok "$1" "\"$2\" is not in: $3"; fi; }
same_file() { if cmp -s "$2" "$3"; then ok "$1"; else not_ok "$1" "$2 and $3 differ"; fi; }
absent() { if [ -e "$2" ]; then not_ok "$1" "$2 exists"; else ok "$1"; fi; }
# no_leftovers NAME DIR: no half-written file of any kind.
no_leftovers() {
    left=$(find "$2" -name '*.tmp*' 2>/dev/null)
    if [ -z "$left" ]; then ok "$1"; else not_ok "$1" "left behind: $left"; fi
}
# value FILE KEY: the number or string of a top-level key of our own JSON, which is written one key a line.
value() { sed -n "s/^ *\"$2\": *\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$1" | head -n 1; }

wait_for() { # FILE PATTERN: until the file has the pattern, at most 60 s
    i=0
    while ! grep -q "$2" "$1" 2>/dev/null; do
        i=$((i + 1))
        [ $i -gt 1200 ] && return 1
        sleep 0.05
    done
}

# A text of about 55 kB: words of a small grammar, documents separated by three newlines. The same everywhere.
make_text() { awk -v docs=120 -v least=8 -v range=13 -f "$REPO/tests/cli/grammar.awk" >text.txt; }
# Tokenizer in tok.json, packed set in data/.
make_data() {
    make_text
    "$IDATTN" tokenizer train text.txt --vocab-size 320 --out tok.json -q &&
        "$IDATTN" data pack text.txt --tokenizer tok.json --out data --split-blank-lines --val-fraction 0.1 -q
}
TRAIN_ARGS="--preset tiny --seq-len 64 --batch 4 --micro-batch 2 --warmup-steps 2 --lr 2e-3"
# train OUT MORE...: a tiny run on data/.
train() { out=$1; shift; "$IDATTN" train $TRAIN_ARGS --data data --out "$out" "$@"; }
