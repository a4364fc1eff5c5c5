# Options and usage errors: exit codes, one line, the nearest name; --help and the man page from the same tables.
# also under sanitizers
. "$(dirname "$0")/lib.sh"

refuses "an unknown command suggests the nearest" 2 'did you mean "train"' "$IDATTN" trian
refuses "an unknown command without a near name points to help" 2 'idattn help' "$IDATTN" xyzzy
refuses "a group without its sub-command lists them" 2 'pack, inspect' "$IDATTN" data
refuses "a wrong sub-command lists the right ones" 2 'train, encode, decode' "$IDATTN" tokenizer guess
refuses "an unknown option suggests the nearest" 2 'unknown option --stpes; did you mean --steps' "$IDATTN" train --stpes 5
refuses "an unknown option with a value too" 2 'did you mean --steps' "$IDATTN" train --stpes=5
refuses "an unknown option far from all points to --help" 2 'idattn info --help' "$IDATTN" info --qqqqqqqq
refuses "an unknown letter" 2 'unknown option -z' "$IDATTN" info -z
refuses "a missing value names option and argument" 2 '--steps needs a value: N' "$IDATTN" train --steps
refuses "a flag with a value" 2 'json takes no value' "$IDATTN" info --json=1
refuses "a number that is none names option, value and range" 2 'steps: "ten" is not a whole number of at least 1' "$IDATTN" train --steps ten
refuses "a number above all says where they end" 2 'steps: "10000000000000000" is not a whole number from 1 to 9007199254740992' \
    "$IDATTN" train --steps 10000000000000000
refuses "a number with a tail" 2 '"10x"' "$IDATTN" train --steps 10x
refuses "a number out of range" 2 'from 0 to 1' "$IDATTN" generate m --top-p 1.5
refuses "not a number at all" 2 'lr: "nan"' "$IDATTN" train --lr nan
refuses "an overflowing number" 2 'seed' "$IDATTN" train --seed 99999999999999999999
refuses "an empty value" 2 'out: the value is empty' "$IDATTN" train --out ''
refuses "a wrong choice lists the choices" 2 'f64\|f32\|bf16' "$IDATTN" mixer a b --dtype f16
refuses "an option given twice" 2 'given twice' "$IDATTN" train --steps 1 --steps 2
refuses "too many arguments" 2 'unexpected argument "c"' "$IDATTN" mixer a b c
refuses "too few arguments" 2 'usage: idattn mixer' "$IDATTN" mixer a
refuses "a bad IDA_THREADS" 2 'IDA_THREADS' env IDA_THREADS=many "$IDATTN" info --preset tiny
refuses "--set without =" 2 'KEY=VALUE' "$IDATTN" info --preset tiny --set foo
refuses "--set with one key twice" 2 'mixer.gate is given twice' "$IDATTN" info --preset tiny --set mixer.gate=true --set mixer.gate=false
refuses "--set with an unknown key" 2 'foo' "$IDATTN" info --preset tiny --set foo=1
refuses "two shapes at once" 2 'exclude' "$IDATTN" info --preset tiny --config x.json
refuses "no shape at all" 2 'preset' "$IDATTN" info
refuses "an unknown preset lists the known" 2 '125m' "$IDATTN" info --preset 124m
refuses "an unknown mixer" 2 'interdomain' "$IDATTN" info --preset tiny --mixer conv
refuses "help for an unknown command" 2 'no command' "$IDATTN" help xyzzy

"$IDATTN" >out.txt 2>err.txt; same "no command: usage on standard error, exit 2" "2 0" "$? $(wc -c <out.txt | tr -d ' ')"
works "--help" "$IDATTN" --help
works "--version" "$IDATTN" --version
matches "--version names the version" '^idattn [0-9]+\.[0-9]+\.[0-9]+$' "$(cat out.txt)"
works "help --man" "$IDATTN" help --man
cp out.txt man.txt
for c in info doctor mixer "tokenizer train" "tokenizer encode" "tokenizer decode" "data pack" "data inspect" train "eval ppl" "eval length" \
    generate bench report help version; do
    # shellcheck disable=SC2086
    works "$c --help" "$IDATTN" $c --help
    if grep -q "idattn $c " man.txt && grep -q -- '--help' out.txt; then ok "$c is in the man page"; else not_ok "$c is in the man page"; fi
done
if command -v man >/dev/null 2>&1; then
    same "the man page has no roff warning" "" "$(man --warnings=w -l man.txt 2>&1 >/dev/null | head -n 3)"
else
    skip "the man page has no roff warning" "no man program"
fi

# The table's defaults are the library's: what --help prints equals what a run without options uses.
"$IDATTN" train --help >help.txt
"$IDATTN" train --preset tiny --plan --json >plan.json 2>err.txt
for k in steps batch micro-batch lr min-lr ssm-lr-max warmup-steps weight-decay beta1 beta2 eps clip seed eval-every eval-tokens save-every keep max-skips; do
    shown=$(tr '\n' ' ' <help.txt | sed 's/  */ /g' | sed -n "s/.* --$k [A-Z]* [^[]*\[\([^]]*\)\].*/\1/p")
    used=$(value plan.json "$k")
    same "default of --$k" "$(awk "BEGIN { printf \"%.9g\", $used }")" "$(awk "BEGIN { printf \"%.9g\", $shown }")"
done
finish
