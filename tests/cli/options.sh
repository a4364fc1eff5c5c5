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
refuses "a number above all says where they end" 2 'steps: "10000000000000000" is not a whole number from 1 to 1099511627776' \
    "$IDATTN" train --steps 10000000000000000
refuses "a number with a tail" 2 '"10x"' "$IDATTN" train --steps 10x
refuses "a number out of range" 2 'from 0 to 1' "$IDATTN" generate m --top-p 1.5
refuses "not a number at all" 2 'lr: "nan"' "$IDATTN" train --lr nan
refuses "an overflowing number" 2 'seed' "$IDATTN" train --seed 99999999999999999999
refuses "an empty value" 2 'out: the value is empty' "$IDATTN" train --out ''
refuses "a wrong choice lists the choices" 2 'f64, f32 or bf16' "$IDATTN" mixer a b --dtype f16
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

# What the library tells of its options is what the program takes: every option, its default, and a value beyond each end.
works "help --json describes every group" "$IDATTN" help --json
cp out.txt groups.json
works "help --json GROUP describes one" "$IDATTN" help --json train
refuses "an unknown group lists the groups" 2 'known: config, .*bench.gemm' "$IDATTN" help --json trian
works "a plan with no options" "$IDATTN" train --preset tiny --plan --json
cp out.txt plan.json
cat >check.py <<'PY'
import json, subprocess, sys
program, what = sys.argv[1:]
groups = {g["group"]: g for g in json.load(open("groups.json"))}
commands = {"train": "train", "sample": "generate", "ppl": "eval ppl", "length": "eval length", "pack": "data pack", "inspect": "data inspect",
            "bpe": "tokenizer train", "mixer": "mixer", "cost": "info", "shape": "info", "place": "generate", "process": "doctor", "recipe": "train"}
def run(*words): return subprocess.run([program, *words], capture_output=True, text=True)
def options(g): return [o for o in groups[g]["options"] if not o.get("argument")]
def legal(o, v):
    if v is None: return o["type"] == "text"
    if "names" in o: return v in o["names"]
    return o.get("min", v) <= v <= o.get("max", v)
if what == "ranges":
    for g in groups.values():
        keys = [o["key"] for o in g["options"]]
        assert len(keys) == len(set(keys)), keys
        for o in g["options"]:
            assert o["help"] and ("default" not in o or legal(o, o["default"])), o
if what == "help":
    for g, c in commands.items():
        text = " ".join(run(*c.split(), "--help").stdout.split())
        for o in options(g):
            head = "--" + o["key"].replace("_", "-") + (" " + o["arg"] if "arg" in o else "") + (", -" + o["letter"] if "letter" in o else "")
            d = o.get("default")
            tail = "" if d is None or d is False else " [%s]" % (d if isinstance(d, str) else "%.15g" % d)
            assert head + " " + o["help"] + (" (may be repeated)" if o["type"] == "list" else "") + tail in text, (c, head, o["help"] + tail)
if what == "used":
    used = json.load(open("plan.json"))["options"]
    told = {o["key"].replace("_", "-"): o for o in options("train")}
    assert set(used) <= set(told) and len(used) >= 20, used
    for k, v in used.items():
        if "default" in told[k]: assert v == (int(told[k]["default"]) if told[k]["type"] == "seed" else told[k]["default"]), k
if what == "ends":
    for g, c in commands.items():
        for o in options(g):
            bad = ["no"] if "names" in o or o["type"] in ("int", "real") else []
            for end, step in ("min", -1), ("max", 1):
                if end in o: bad.append(repr(o[end] + step) if o["type"] == "int" else repr(o[end] + step * abs(o[end]) / 4 + step * 1e-9))
            for value in bad:
                p = run(*c.split(), "--" + o["key"].replace("_", "-") + "=" + value)
                line = 'idattn %s: --%s: "%s" is not' % (c, o["key"].replace("_", "-"), value)
                assert p.returncode == 2 and not p.stdout and p.stderr.count("\n") == 1 and p.stderr.startswith(line), (o, p)
PY
check() { python3 check.py "$IDATTN" "$2" 2>err.txt && ok "$1" || not_ok "$1" "$(tail -n 3 err.txt)"; }
check "defaults are in their ranges, keys are told once, each with its help" ranges
check "--help of each command shows the library's options, letters and defaults" help
check "a run without options has the defaults that are told" used
check "a value beyond either end is refused by every command in one line" ends
finish
