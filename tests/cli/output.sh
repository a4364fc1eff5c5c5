# Standard output that cannot be written: a full disk is an error, a reader that had enough is not. Broken and hostile argument bytes.
. "$(dirname "$0")/lib.sh"
make_text
"$IDATTN" tokenizer train text.txt --vocab-size 300 --out tok.json -q || exit 1

full() { name=$1; shift; refuses "$name" 1 'standard output.*(space|write)' sh -c '"$@" >/dev/full' sh "$IDATTN" "$@"; }
full "info, disk full" info --preset tiny
full "info --json, disk full" info --preset tiny --json
full "tokenizer encode of a long text, disk full" tokenizer encode tok.json text.txt
full "tokenizer decode, disk full" tokenizer decode tok.json 1 2 3
full "doctor, disk full" doctor
full "help, disk full" help
full "the man page, disk full" help --man

"$IDATTN" tokenizer encode tok.json text.txt 2>err.txt | head -c 10 >out.txt
same "a reader that stops early is no error message" "" "$(cat err.txt)"
code=$( { "$IDATTN" tokenizer encode tok.json text.txt 2>/dev/null; echo $? >&2; } 2>&1 >/dev/null | head -n 1)
same "exit 0 with a reader" 0 "$code"
{ "$IDATTN" help --man; echo $? >code.txt; } 2>err.txt | true
same "a reader that is already gone: quiet" "" "$(cat err.txt)"
same "and exit 0" 0 "$(cat code.txt)"

odd=$(printf 'x\377y')
works "a set packed into a folder whose name is no UTF-8" "$IDATTN" data pack text.txt --tokenizer tok.json --out "$odd" --json
matches "shows it as far as it goes" '"path": "x.*y"' "$(cat out.txt)"
works "a tokenizer of such a name" "$IDATTN" tokenizer train text.txt --vocab-size 300 --out "$odd.json" --json
matches "too" '"path": "x.*y.json"' "$(cat out.txt)"
works "training on it" "$IDATTN" train --preset tiny --data "$odd" --out "run$odd" --steps 2 --seq-len 32 --batch 2 --json
cp text.txt "$odd.txt"
works "perplexity of a text of such a name" "$IDATTN" eval ppl "run$odd" --text "$odd.txt" --max-tokens 40 --json
matches "says so" '"text": "x.*y.txt"' "$(cat out.txt)"
works "tokens that are no text" "$IDATTN" tokenizer decode tok.json 200 --json

refuses "an error line stays one line whatever the argument holds" 2 'unknown command' "$IDATTN" "$(printf 'a\nb\rc')"
refuses "an option's value with newlines too" 2 'lr' "$IDATTN" train --lr "$(printf '1\n2')"
refuses "an option of 5000 characters" 2 'unknown option' "$IDATTN" info "--$(head -c 5000 /dev/zero | tr '\0' x)"
refuses "a path of 5000 characters" 1 '.' "$IDATTN" data inspect "$(head -c 5000 /dev/zero | tr '\0' x)"
finish
