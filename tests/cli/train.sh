# train: the log, checkpoints, --plan; resume is exact after SIGTERM and after SIGKILL at any moment; signals exit 0 with a checkpoint.
. "$(dirname "$0")/lib.sh"
make_data || exit 1

works "a short run" train run --steps 20 --save-every 5 --eval-every 10
matches "progress without a terminal is JSON lines" '"event":"step"' "$(cat err.txt)"
same "steps in the log" 20 "$(grep -c '"event":"step"' run/log.jsonl)"
same "evaluations in the log" 2 "$(grep -c '"event":"eval"' run/log.jsonl)"
same "checkpoints" "step-00000005 step-00000010 step-00000015 step-00000020" "$(cd run && echo step-*)"
works "--json puts the events on standard output" train runj --steps 2 --json
python3 -c 'import json,sys; [json.loads(l) for l in open("out.txt")]; sys.exit(0 if sum("tokens_per_s" in l for l in open("out.txt"))==2 else 1)' && ok "one JSON object a line" || not_ok "one JSON object a line" "$(head -n 3 out.txt)"
works "--quiet" train runq --steps 2 --quiet
same "says nothing" 0 "$(cat out.txt err.txt | wc -c | tr -d ' ')"
works "--keep" train runk --steps 20 --save-every 5 --keep 2 -q
same "keeps the newest" "step-00000015 step-00000020" "$(cd runk && echo step-*)"
works "info on the run" "$IDATTN" info run --json
same "has the data's vocabulary" 320 "$(value out.txt vocab_size)"
for m in softmax s4d dual-linear single-query; do works "a run of $m" train run_$m --mixer $m --steps 3 -q; done
works "a hybrid" train run_hybrid --set layer_mixers=interdomain,softmax --steps 3 -q
works "--plan" train never --plan
absent "writes nothing" never
matches "and shows the sum" '^total +[0-9.]+ [KMG]?i?B' "$(cat out.txt)"

python3 - <<'PY' && ok "a run tells its peak, which was planned" || not_ok "a run tells its peak, which was planned" "$(grep -h '"step":20,' run/log.jsonl)"
import json
for line in map(json.loads, open("run/log.jsonl")):
    if line["event"] in ("step", "save"): assert 0.8 < line["device_memory_peak_bytes"] / line["device_memory_planned_bytes"] <= 1, line
PY

works "--plan for a GPU that is not there" env IDA_CUDA_BACKEND=./none.so "$IDATTN" train --preset 125m --mixer softmax --seq-len 4096 --device cuda --plan --json
cp out.txt gpu.json
"$IDATTN" train --preset 125m --mixer softmax --seq-len 4096 --device cuda --dtype f32 --plan --json >gpu32.json
"$IDATTN" train --preset 125m --mixer softmax --seq-len 4096 --device cuda --activation-checkpointing --plan --json >gpu_again.json
same "is in bf16 unless it is told otherwise" "bf16 f32" "$(sed -n 's/.*"dtype": "\(.*\)",*/\1/p' gpu.json gpu32.json | xargs)"
python3 - <<'PY' && ok "and its figures are those of such a run" || not_ok "and its figures are those of such a run" "$(cat gpu.json)"
import json
a, b, c = (json.load(open(n + ".json")) for n in ("gpu", "gpu32", "gpu_again"))
cudnn = 2 * 8 * 12 * 4096 ** 2  # bytes of cuDNN's backward pass that gives the same bits every time: two a query, key and head
assert cudnn < a["scratch_bytes"] < 1.2 * cudnn and b["scratch_bytes"] < cudnn / 4
assert a["parameter_bytes"] == b["parameter_bytes"] == 2 * a["bf16_copy_bytes"] and b["bf16_copy_bytes"] == 0
assert a["optimizer_bytes"] == b["optimizer_bytes"] == 2 * b["parameter_bytes"] and 4 < a["host_bytes"] / a["parameters"] < 5
for x in a, b, c:
    parts = "parameter bf16_copy gradient optimizer activation logit batch scratch".split()
    assert sum(x[k + "_bytes"] for k in parts) == x["total_bytes"]
assert 0.4 < a["activation_bytes"] / b["activation_bytes"] < 0.7 and c["activation_bytes"] < 0.5 * a["activation_bytes"]
PY
absent "nothing is written either" x

works "--activation-checkpointing" train again --steps 20 --save-every 5 --eval-every 10 --activation-checkpointing -q
for f in model optimizer; do same_file "gives the same $f, bit for bit" run/step-00000020/$f.safetensors again/step-00000020/$f.safetensors; done
losses() { grep -o '"event":"\(step\|eval\)".*"loss":[^,}]*' "$1" | sed 's/"tokens_per_s":[^,}]*,*//; s/"eta_s":[^,}]*,*//; s/"time":[^,}]*,*//'; }
same "and the same losses" "$(losses run/log.jsonl)" "$(losses again/log.jsonl)"
same "which are 22" 22 "$(losses again/log.jsonl | wc -l | tr -d ' ')"

# The same steps: once in one go with 1 thread, once stopped by SIGTERM, once killed twice. Weights and moments are the same bits.
works "20 steps on one thread" train one --steps 20 --save-every 5 --eval-every 10 --threads 1 -q
same_file "equal those on all threads" run/step-00000020/model.safetensors one/step-00000020/model.safetensors

for sig in TERM INT USR1; do
    # a background job of a non-interactive shell ignores SIGINT, and an ignored signal stays ignored: start it through env
    python3 -c 'import os,signal,sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])' "$IDATTN" train $TRAIN_ARGS --data data --out stop_$sig --steps 100000 >out.txt 2>err.txt &
    pid=$!
    wait_for stop_$sig/log.jsonl '"step":3,'
    kill -$sig $pid
    wait $pid
    same "SIG$sig exits 0" 0 $?
    works "and leaves a checkpoint that loads (SIG$sig)" "$IDATTN" generate stop_$sig --prompt the -n 3
    no_leftovers "and nothing half-written (SIG$sig)" stop_$sig
done

kill_run() { # OUT PATTERN [--resume]: SIGKILL when the log has the pattern
    out=$1 pattern=$2; shift 2
    # shellcheck disable=SC2086
    "$IDATTN" train $TRAIN_ARGS --data data --out "$out" --steps 400 --save-every 5 --eval-every 100 --keep 3 -q "$@" >/dev/null 2>&1 &
    pid=$!
    wait_for "$out/log.jsonl" "$pattern" || not_ok "killed at $pattern" "the log never had it"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    same "really killed at $pattern" 137 $?
}
works "400 steps, so that a kill comes long before the end" train long --steps 400 --save-every 5 --eval-every 100 --keep 3 -q
kill_run killed '"step":7,'
kill_run killed '"step":63,' --resume
works "resume after two kill -9, with no option repeated but data and folder" "$IDATTN" train --data data --out killed --resume --save-every 5 --eval-every 100 --keep 3 -q
for f in model optimizer; do same_file "$f equals that of an uninterrupted run, bit for bit" long/step-00000400/$f.safetensors killed/step-00000400/$f.safetensors; done
works "resume with the preset repeated keeps the run's other options" "$IDATTN" train --preset tiny --data data --out killed --resume -q
# The newest checkpoint damaged: the library goes on from the one before, and so do the tokenizer and the options.
cp -r run broken && rm broken/step-00000020/tokenizer.json
works "generate without the newest tokenizer.json" "$IDATTN" generate broken --prompt the -n 3
works "eval on a text too" "$IDATTN" eval ppl broken --text text.txt --max-tokens 50 -q
: >broken/step-00000020/trainer_state.json
works "resume from the older checkpoint with its own options" "$IDATTN" train --data data --out broken --resume --save-every 5 --eval-every 10 -q
same_file "ends as the run did" run/step-00000020/model.safetensors broken/step-00000020/model.safetensors
strip() { sed 's/"tokens_per_s":[^,}]*//; s/"time":[^,}]*//; s/"device_memory_[a-z_]*":[^,}]*//g' "$1" | grep -v '"event":"note"'; }
same "so does the log, but for times" "$(strip long/log.jsonl | cksum)" "$(strip killed/log.jsonl | cksum)"
works "resume of a finished run is nothing to do" "$IDATTN" train --data data --out killed --resume -q

refuses "a run folder that is in use as one, without --resume" 2 'resume' train run --steps 20 -q
refuses "resume with another learning rate" 2 'lr' train run --steps 20 --resume --lr 1e-4 -q
refuses "resume with fewer steps" 2 'steps was 20 in this run, now 10' train run --steps 10 --resume -q
refuses "and fewer than the warm-up: still the steps" 2 'train: run: --steps was 20 in this run, now 1: .*old value' train run --steps 1 --resume -q
refuses "the same with no other option" 2 'train: run: --steps was 20 in this run, now 1: ' "$IDATTN" train --data data --out run --steps 1 --resume -q
refuses "resume with another shape" 2 'shape' "$IDATTN" train --data data --out run --resume --set mixer.gate=true
refuses "--data missing" 2 'data' "$IDATTN" train --preset tiny --out x
refuses "--out missing" 2 'out' "$IDATTN" train --preset tiny --data data
refuses "data that is not there" 1 'no_such' "$IDATTN" train --preset tiny --data no_such --out x
refuses "a vocabulary smaller than the data's" 2 'vocab' train small --set vocab_size=100 --steps 2
refuses "a micro-batch that does not divide" 2 'divide' "$IDATTN" train --preset tiny --data data --out x --batch 4 --micro-batch 3
: >file
refuses "a device that is not known" 2 'cpu, cuda and cuda:N' train x --device gpu
refuses "nor by the plan" 2 'cpu, cuda and cuda:N' "$IDATTN" train --preset tiny --plan --device gpu
refuses "a device number that is none" 2 'number of a GPU' train x --device cuda:-1
refuses "bf16 on the CPU" 1 'f32 only' train x --dtype bf16
refuses "no CUDA backend" 1 'none.so' env IDA_CUDA_BACKEND=./none.so "$IDATTN" train --preset tiny --data data --out x --device cuda
absent "no run folder is begun" x
# A run that cannot begin takes back the folders it made: here the log cannot be written, not even to its first line or its second.
for blocks in 0 1; do
    (ulimit -f $blocks; train deep/$blocks/run --steps 2 -q) 2>&1 | cat >err.txt
    matches "a log that cannot be written ($blocks)" 'cannot append to deep/' "$(cat err.txt)"
    absent "leaves no folder" deep
done
mkdir mine; (ulimit -f 0; train mine --steps 2 -q) >/dev/null 2>&1
same "but one that was there" mine "$(ls -d mine)"
same "and it is still empty" "" "$(ls -A mine)"
works "so that the next try begins" train mine --steps 2 -q
refuses "a name that is too long" 1 'cannot create the folder' train "deep/$(printf '%0300d' 1)" --steps 2 -q
absent "leaves no parent" deep
refuses "a run folder under a file" 1 'file' train file/run --steps 2 -q
refuses "a folder that cannot be written" 1 '/proc' train /proc/run --steps 2 -q
finish
