# eval, generate, report and bench on a tiny trained model.
. "$(dirname "$0")/lib.sh"
make_data || exit 1
train run --steps 40 --eval-every 20 -q && train soft --mixer softmax --steps 40 -q || exit 1

works "eval ppl" "$IDATTN" eval ppl run --data data --json
cp out.txt ppl.json
for k in protocol documents tokens bytes words loss perplexity bits_per_byte word_perplexity; do
    if [ -n "$(value ppl.json $k)" ] || grep -q "\"$k\": \"" ppl.json; then ok "ppl has $k"; else not_ok "ppl has $k" "$(cat ppl.json)"; fi
done
# every token but each document's first input: the manifest knows both counts
"$IDATTN" data inspect data --json >inspect.json
python3 - <<'PY' && ok "tokens scored = tokens - documents, bytes = the documents' bytes" || not_ok "tokens scored = tokens - documents, bytes = the documents' bytes" "$(head -n 20 ppl.json)"
import json, math, sys
p, m = json.load(open("ppl.json")), json.load(open("data/manifest.json"))["splits"]["val"]
good = p["tokens"] == m["tokens"] - m["documents"] and p["bytes"] == m["bytes"] and p["documents"] == m["documents"]
good = good and abs(p["perplexity"] - math.exp(p["loss"])) < 1e-9 * p["perplexity"]
good = good and abs(p["bits_per_byte"] - p["nats"] / p["bytes"] / math.log(2)) < 1e-9
sys.exit(0 if good else 1)
PY
# A window as long as the longest document scores the same numbers as carried state; a short one the same count.
"$IDATTN" eval ppl run --data data --window 100000 --json >w.json
near() { awk "BEGIN { d = ($2) - ($3); if (d < 0) d = -d; exit !(d <= $4) }" && ok "$1" || not_ok "$1" "$2 and $3 differ by more than $4"; }
near "one long window = carried state" "$(value ppl.json loss)" "$(value w.json loss)" 1e-5
for s in 1 7 16; do
    "$IDATTN" eval ppl soft --data data --window 16 --stride $s --json >w.json
    same "window 16 stride $s scores every token once" "$(value ppl.json tokens)" "$(value w.json tokens)"
done
"$IDATTN" eval ppl run --data data --max-tokens 100 --json >w.json
same "--max-tokens" 100 "$(value w.json tokens)"
works "eval ppl --text" "$IDATTN" eval ppl run --text text.txt --json
same "bytes of the text" "$(wc -c <text.txt | tr -d ' ')" "$(value out.txt bytes)"
works "eval ppl --train-split" "$IDATTN" eval ppl run --data data --train-split
works "eval length --save" "$IDATTN" eval length run --data data --multiple 4 --save --json
same "marks at 1x, 2x, 4x" "1 2 4" "$(python3 -c 'import json; print(*[r["multiple"] for r in json.load(open("out.txt"))["at"]])')"
works "eval ppl --save" "$IDATTN" eval ppl run --data data --save
python3 -c 'import json,sys; d=json.load(open("run/eval.json")); sys.exit(0 if d["ppl"]["tokens"] and d["length"]["buckets"] else 1)' && ok "eval.json holds both" || not_ok "eval.json holds both"
works "eval length of softmax" "$IDATTN" eval length soft --data data --multiple 4
refuses "longer than the data" 2 'multiple of at most' "$IDATTN" eval length run --data data --multiple 1000
refuses "stride over window" 2 'stride' "$IDATTN" eval ppl soft --data data --window 8 --stride 9
refuses "neither data nor text" 2 'one of the two' "$IDATTN" eval ppl run
refuses "an empty text" 1 'nothing to score' sh -c ': >e.txt; exec "$0" eval ppl run --text e.txt' "$IDATTN"

gen() { "$IDATTN" generate run "$@" </dev/null 2>err.txt; }
a=$(gen --prompt "the old" -n 30 --seed 7)
same "the same seed gives the same text" "$a" "$(gen --prompt "the old" -n 30 --seed 7)"
same "and on one thread" "$a" "$(gen --prompt "the old" -n 30 --seed 7 --threads 1)"
if [ "$a" != "$(gen --prompt "the old" -n 30 --seed 8)" ]; then ok "another seed gives another"; else not_ok "another seed gives another" "$a"; fi
same "greedy does not depend on the seed" "$(gen --prompt the -n 20 -t 0 --seed 1)" "$(gen --prompt the -n 20 -t 0 --seed 2)"
same "top-k 1 is greedy" "$(gen --prompt the -n 20 -t 0)" "$(gen --prompt the -n 20 --top-k 1)"
same "min-p 1 is greedy" "$(gen --prompt the -n 20 -t 0)" "$(gen --prompt the -n 20 --min-p 1)"
printf 'the old' >p.txt
same "--prompt-file" "$a" "$(gen --prompt-file p.txt -n 30 --seed 7)"
same "standard input" "$a" "$(printf 'the old' | "$IDATTN" generate run -n 30 --seed 7)"
same "--echo puts the prompt before" "the old$a" "$(gen --prompt "the old" -n 30 --seed 7 --echo)"
gen --prompt "the old" -n 30 --seed 7 --json >g.json
# an untrained model also emits bytes that are no characters; JSON has U+FFFD for them, so the ASCII part is compared
ascii() { LC_ALL=C tr -cd '\n -~'; }
same "--json has the same text" "$(printf '%s' "$a" | ascii)" "$(python3 -c 'import json; print(json.load(open("g.json"))["text"])' | ascii)"
same "finish reason: length" length "$(value g.json finish_reason)"
same "tokens counted" 30 "$(value g.json generated_tokens)"
stop=$(printf '%s' "$a" | head -n 1 | cut -c 6-9)
gen --prompt "the old" -n 30 --seed 7 --stop "$stop" --json >s.json
same "--stop ends before its text" "$(printf '%s' "$a" | head -n 1 | cut -c -5)" "$(python3 -c 'import json; print(json.load(open("s.json"))["text"])')"
same "finish reason: stop" stop "$(value s.json finish_reason)"

# 30 tokens = 12 + a saved session + 18, to the byte
gen --prompt "the old" -n 12 --seed 7 --state-out s.bin | head -c -1 >x.txt
gen -n 18 --seed 7 --state-in s.bin >>x.txt
same "a saved session goes on exactly" "$a" "$(cat x.txt)"
refuses "a session of another model" 2 'model' "$IDATTN" generate soft -n 3 --state-in s.bin
head -c 100 s.bin >cut.bin
refuses "a truncated session" 1 'cut.bin' "$IDATTN" generate run -n 3 --state-in cut.bin
refuses "a session file that is not there" 1 'no_such' "$IDATTN" generate run -n 3 --state-in no_such
refuses "an unwritable session file" 1 'no_dir' "$IDATTN" generate run --prompt the -n 0 --state-out no_dir/s.bin
works "generate far past the training length" sh -c '"$0" generate run --prompt the -n 2000 --ignore-eos --json >l.json' "$IDATTN"
matches "--ignore-eos reaches the length" '2000' "$(value l.json generated_tokens)"

gen --prompt the -n 20 >run/sample.txt
printf '<script>alert("x")</script>&' >>run/sample.txt
works "report" "$IDATTN" report run soft --out rep
matches "has a row for each run" 'soft' "$(cat out.txt)"
works "report --json" "$IDATTN" report run soft --out rep --json
python3 - <<'PY' && ok "report.json: every key; pictures are well-formed XML; the page escapes the sample and refers to nothing" || not_ok "report files"
import json, re, sys, xml.dom.minidom as x
d = json.load(open("rep/report.json"))
keys = "name parameters val_loss bits_per_byte tokens_per_s state_bytes_1k state_bytes_64k loss_1x loss_2x loss_4x loss_8x".split()
good = d == json.load(open("out.txt")) and len(d["runs"]) == 2 and all(k in r for r in d["runs"] for k in keys)
for f in "loss.svg", "length.svg": x.parse("rep/" + f)
page = open("rep/report.html").read()
refs = [u for u in re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?([^"\'> )]+)', page)]
good = good and "<script" not in page and "&lt;script&gt;" in page and page.count("<svg") == 2 and not refs
sys.exit(0 if good else 1)
PY
# a sample beyond 64 KiB is cut, a name that is not UTF-8 stays a row
odd=$(printf 'r\377n'); cp -R soft "$odd"
awk 'BEGIN { for (i = 0; i < 9000; i++) printf "sample %d ", i; print "THE-END" }' >"$odd/sample.txt"
works "report of odd runs" "$IDATTN" report run "$odd" --out rep3 --json
python3 - <<'PY' && ok "no run vanishes; the sample is cut; each loss says how it was measured" || not_ok "odd runs" "$(head -n 60 rep3/report.json)"
import json, sys
d, page = json.load(open("rep3/report.json"))["runs"], open("rep3/report.html", encoding="utf-8").read()
good = [r["name"] for r in d] == ["run", "r\ufffdn"] and [r["val_protocol"] for r in d] == ["carried", "in training"]
good = good and "sample 5000 " in page and "[cut]" in page and "THE-END" not in page and "<td>carried</td>" in page
sys.exit(0 if good else 1)
PY
# Names are whole, the lowest loss has its star, seeds of one cell their mean.
for s in 42 43; do cp -R run "a-cell-with-a-long-name-s$s"; done
works "report of two seeds" "$IDATTN" report a-cell-with-a-long-name-s* --out rep5 -q
matches "a long name, a star" '^a-cell-with-a-long-name-s42 .* [0-9.]+\* ' "$(cat out.txt)"
matches "mean of the seeds" '^a-cell-with-a-long-name +2 +[0-9.]+ +0\.0000  carried$' "$(cat out.txt)"
rm -r a-cell-with-a-long-name-s*
# Logs are enough: the folder without its weights, and one with nothing but the few small files in it.
mkdir bare flat flat/run; cp -R run bare/run; rm -f bare/run/step-*/*.safetensors bare/run/step-*/manifest.json
cp run/step-00000040/config.json run/step-00000040/trainer_state.json run/log.jsonl run/eval.json run/sample.txt flat/run
"$IDATTN" report run --out rep4 -q >whole.txt
for d in bare flat; do
    works "report without weights ($d)" sh -c 'cd "$1" && exec "$0" report run --out rep4 -q' "$IDATTN" $d
    same_file "the same table" whole.txt out.txt
    for f in loss.svg length.svg report.html; do same_file "the same $f" rep4/$f $d/rep4/$f; done
    python3 -c 'import json, sys; a, b = (json.load(open(f)) for f in sys.argv[1:]); sys.exit(a["runs"] != b["runs"] or a["cells"] != b["cells"])' \
        rep4/report.json $d/rep4/report.json && ok "the same runs in report.json" || not_ok "the same runs in report.json"
done
rm -f flat/run/config.json
(ulimit -f 1; "$IDATTN" report run --out rep6/deep -q) 2>&1 | cat >err.txt
matches "a page that cannot be written" 'cannot write rep6/deep/loss.svg' "$(cat err.txt)"
absent "leaves no folder" rep6
refuses "a run without its config" 1 'flat/run: no config.json' "$IDATTN" report flat/run --out rep2
refuses "report of no run" 1 'no_such' "$IDATTN" report no_such --out rep2
absent "writes nothing" rep2

works "bench kernel-form" "$IDATTN" bench kernel-form n=64 max_m=16 features=64 --out pic --json
same "its picture" "kernel-form.svg" "$(ls pic)"
(ulimit -f 1; "$IDATTN" bench kernel-form n=64 max_m=16 features=64 --out pic4/deep -q) 2>&1 | cat >err.txt
matches "a picture that cannot be written" 'cannot write pic4/deep/kernel-form.svg' "$(cat err.txt)"
absent "leaves no folder" pic4
python3 -c 'import json,sys; r=json.load(open("out.txt"))["rows"]; sys.exit(0 if r[-1]["error"] < 0.1 * r[0]["error"] and all(x["check"] for x in r) else 1)' && ok "the error falls as M grows" || not_ok "the error falls as M grows" "$(cat out.txt)"
for b in "gemm N=64 preset=tiny reps=2" "mixer T=200 heads=2 head_dim=16 state=16 reps=2" "train preset=tiny T=64 reps=2" "train preset=tiny T=64 reps=2 mixer=s4d" \
    "decode tokens=3000 reps=2" "prefill preset=tiny T=128 reps=2" "threads preset=tiny T=64 reps=2"; do
    # shellcheck disable=SC2086
    works "bench $b" "$IDATTN" bench $b --json
    python3 -c 'import json,sys; d=json.load(open("out.txt")); sys.exit(0 if d["rows"] and d["machine"]["isa"] and all(r["check"] and r["seconds"] > 0 for r in d["rows"]) else 1)' &&
        ok "rows are checked (${b%% *})" || not_ok "rows are checked (${b%% *})" "$(head -n 40 out.txt)"
done
# Memory while decoding, as the allocator and the kernel see it: a fixed state takes nothing more, a cache does. The pieces that a
# thread of glibc keeps for itself when they are freed count as in use, so it keeps none.
for m in interdomain:20000 s4d:20000 softmax:3000; do
    works "bench decode of $m tokens" env GLIBC_TUNABLES=glibc.malloc.tcache_count=0 "$IDATTN" bench decode tokens=${m#*:} reps=1 mixer=${m%:*} -q --json
    cp out.txt ${m%:*}.json
done
for m in interdomain s4d; do
    same "constant memory from 1000 to 20000 tokens: heap of $m" 0 "$(value $m.json heap_growth_bytes)"
    near "constant memory from 1000 to 20000 tokens: resident pages of $m" "$(value $m.json resident_growth_bytes)" 0 262144
done
python3 -c 'import json,sys; sys.exit(json.load(open("softmax.json"))["heap_growth_bytes"] < 1 << 19)' && ok "a cache is seen to grow" || not_ok "a cache is seen to grow" "$(value softmax.json heap_growth_bytes)"
CACHE=$(getconf LEVEL3_CACHE_SIZE 2>/dev/null) python3 - <<'PY' && ok "a floor is below what was measured, and absent where a cache may hold the bytes" || not_ok "floor of decoding" "$(cat interdomain.json)"
import json, os, sys
cache = int(os.environ["CACHE"]) if os.environ["CACHE"].isdigit() else 0
rows = json.load(open("interdomain.json"))["rows"]
sys.exit(0 if rows and all("ratio" not in r if r["bytes"] <= cache else r.get("ratio", 0) < 1 for r in rows) else 1)
PY
no_gpu() { # NAME COMMAND...: every command that runs a model names what is wrong with --device and --dtype
    name=$1; shift
    refuses "$name: a device that is not known" 2 'cpu, cuda and cuda:N' "$IDATTN" "$@" --device gpu
    refuses "$name: a device number that is none" 2 'number of a GPU' "$IDATTN" "$@" --device cuda:1x
    refuses "$name: bf16 on the CPU" 1 'f32 only' "$IDATTN" "$@" --dtype bf16
    refuses "$name: no CUDA backend" 1 'none.so' env IDA_CUDA_BACKEND=./none.so "$IDATTN" "$@" --device cuda:0 --dtype f32
}
no_gpu generate generate run --prompt the -n 3
no_gpu "eval ppl" eval ppl run --data data
no_gpu "eval length" eval length run --data data
for b in train decode prefill; do
    refuses "bench $b: a device that is not known" 2 'cpu, cuda and cuda:N' "$IDATTN" bench $b preset=tiny device=gpu
    refuses "bench $b: bf16 on the CPU" 1 'f32 only' "$IDATTN" bench $b preset=tiny dtype=bf16
    refuses "bench $b: no CUDA backend" 1 'none.so' env IDA_CUDA_BACKEND=./none.so "$IDATTN" bench $b preset=tiny device=cuda
done
refuses "bench train: a type that is not known" 2 'f32, bf16 or auto' "$IDATTN" bench train preset=tiny dtype=f16
refuses "bench train: no CUDA backend" 1 'none.so' env IDA_CUDA_BACKEND=./none.so "$IDATTN" bench train preset=tiny device=cuda
refuses "bench train: neither on nor off" 2 'activation_checkpointing=2' "$IDATTN" bench train preset=tiny activation_checkpointing=2
works "bench train with activation checkpointing" "$IDATTN" bench train preset=tiny T=64 B=2 reps=2 activation_checkpointing=1 --json
python3 -c 'import json; d=json.load(open("out.txt")); assert d["rows"] and all(r["check"] for r in d["rows"])' && ok "its rows are checked" || not_ok "its rows are checked" "$(head -n 40 out.txt)"
refuses "an unknown bench" 2 'kernel-form' "$IDATTN" bench speed
refuses "an unknown bench, with --out" 2 'bench "speed" is not known' "$IDATTN" bench speed --out pic2
refuses "an unknown key lists the keys" 2 'reps=' "$IDATTN" bench gemm tokens=5
refuses "a key given twice" 2 'gemm: N is given twice; give it once' "$IDATTN" bench gemm N=16 N=32
refuses "--out for a bench that draws nothing" 2 'bench: --out is for kernel-form' "$IDATTN" bench gemm N=16 --out pic
refuses "--out beside its key" 2 '--out and out= are the same' "$IDATTN" bench kernel-form n=64 max_m=4 features=64 out=pic2 --out pic3
absent "nothing is drawn" pic2
python3 - "$IDATTN" <<'PY' && ok "one SIGINT stops a long prefill soon" || not_ok "one SIGINT stops a long prefill soon"
import json, signal, subprocess, sys, threading
# no machine gets to the end of this call
p = subprocess.Popen([sys.argv[1], "bench", "prefill", "preset=tiny", "mixer=softmax", "T=4194304", "reps=1"],
                     stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
late = threading.Timer(120, p.kill)  # also of a first line that does not come
late.start()
for line in p.stderr:  # the check before it is over, the call is at work
    if line.startswith(b"{") and json.loads(line)["progress"] == "prefill": break
late.cancel()
p.send_signal(signal.SIGINT)
late = threading.Timer(30, p.kill)
late.start()
err = p.stderr.read().splitlines()
late.cancel()
sys.exit(0 if p.wait() == 1 and err and err[-1].startswith(b"idattn bench: stopped") else 1)
PY
refuses "a bad value" 2 'N=many' "$IDATTN" bench gemm N=many
finish
