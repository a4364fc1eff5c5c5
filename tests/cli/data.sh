# data pack and inspect at work: Parquet, resume after a kill, duplicates, shards of others in training and evaluation.
# also under sanitizers
. "$(dirname "$0")/lib.sh"
make_text
works "tokenizer train" "$IDATTN" tokenizer train text.txt --vocab-size 320 --out tok.json -q

cp "$REPO/tests/data/parquet/zstd-v2-dn.parquet" fw.parquet
works "a Parquet file is packed" "$IDATTN" data pack fw.parquet --tokenizer tok.json --out pq --json
same "rows that hold text are documents" 86 "$(value out.txt documents)"
same "nulls are bad rows" 14 "$(value out.txt bad_rows)"
matches "told with file and row" 'fw.parquet:4: ' "$(cat err.txt)"
refuses "a column that is not there" 2 'no column "body"' "$IDATTN" data pack fw.parquet --column body --tokenizer tok.json --out x
refuses "a column of numbers" 1 'does not hold text' "$IDATTN" data pack fw.parquet --column id --tokenizer tok.json --out x
refuses "Parquet on standard input" 1 'standard input' sh -c '"$0" data pack - --tokenizer tok.json --out x <fw.parquet' "$IDATTN"
absent "nothing was begun" x.part
works "inspect for people" "$IDATTN" data inspect pq
matches "shows a bad row's place" 'fw.parquet:11: the text is null' "$(cat out.txt)"
matches "a histogram" '#####' "$(cat out.txt)"
matches "and documents" 'row 0 says' "$(cat out.txt)"
cp -r pq pq2
sed 's/"why": .*/"why": 7/; s/"file": .*/"file": null,/' pq/manifest.json >pq2/manifest.json
works "a list of bad rows that is not ours" "$IDATTN" data inspect pq2
matches "is shown as far as it goes" '  [?]:11: [?]' "$(cat out.txt)"
works "inspect as JSON" "$IDATTN" data inspect pq --json --samples 1
python3 - <<'PY' && ok "is JSON with lengths, histogram, samples" || not_ok "is JSON with lengths, histogram, samples" "$(head -n 30 out.txt)"
import json, sys
j = json.load(open("out.txt"))
t = j["splits"]["train"]
good = sum(b["documents"] for b in t["histogram"]) == t["documents"] and t["samples"][0]["text"].endswith("row 0 says é\n")
good = good and len(j["bad_row_list"]) == 14 and t["document_tokens"]["max"] >= t["document_tokens"]["p50"]
sys.exit(0 if good else 1)
PY

# Rows enough for several batches, some twice; killed again and again, then finished.
awk 'BEGIN { for (i = 0; i < 60000; i++) printf "{\"text\": \"row %d of a set, %d\"}\n", i % 50000, i % 50000 * 7 }' >rows.jsonl
PACK="data pack rows.jsonl --tokenizer tok.json --shard-tokens 60000 --dedup"
# shellcheck disable=SC2086
works "an unbroken run" "$IDATTN" $PACK --out whole --json
same "drops what came before" 10000 "$(value out.txt duplicates)"
for s in 0.05 0.1 0.15 0.2; do
    # shellcheck disable=SC2086
    "$IDATTN" $PACK --out broken --resume -q >out.txt 2>err.txt &
    pid=$!
    sleep $s
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null # gone, and its lock with it
    [ -e broken ] && break
done
# shellcheck disable=SC2086
[ -e broken ] || works "a killed run goes on" "$IDATTN" $PACK --out broken --resume -q --threads 1
if diff -r whole broken >diff.txt 2>&1; then ok "and gives the same bytes"; else not_ok "and gives the same bytes" "$(cat diff.txt)"; fi
absent "without a rest" broken.part

# The same shards without our manifest, as llm.c leaves them, give the same training and the same loss.
works "pack a text" "$IDATTN" data pack text.txt --tokenizer tok.json --out data --split-blank-lines --val-fraction 0.1 -q
mkdir llmc nano
cp data/*.bin llmc/
for s in train val; do tail -c +1025 data/${s}_000000.bin >nano/$s.bin; done
TRAIN="train --preset tiny --seq-len 32 --batch 2 --micro-batch 2 --steps 2 --seed 7 -q --set vocab_size=320 --set eos_token_id=319"
losses() { sed -n 's/.*"loss": *\([0-9.e-]*\).*/\1/p' "$1/log.jsonl"; }
# shellcheck disable=SC2086
works "train on the packed set" "$IDATTN" $TRAIN --data data --out r1
# shellcheck disable=SC2086
works "train on llm.c shards" "$IDATTN" $TRAIN --data llmc --separator 319 --out r2
same "gives the same losses" "$(losses r1)" "$(losses r2)"
# shellcheck disable=SC2086
works "train on nanoGPT files" "$IDATTN" $TRAIN --data nano/train.bin --val-data nano/val.bin --data-format nanogpt --separator 319 --out r3
same "gives the same losses too" "$(losses r1)" "$(losses r3)"
# shellcheck disable=SC2086
refuses "headerless files unnamed" 1 'nanogpt' "$IDATTN" $TRAIN --data nano --out r4
# shellcheck disable=SC2086
refuses "ids beyond the model's vocabulary" 1 'outside the vocabulary' "$IDATTN" train --preset tiny --seq-len 32 --batch 2 --micro-batch 2 --steps 2 -q --set vocab_size=300 --data llmc --separator 299 --out r4
works "eval ppl on the packed set" "$IDATTN" eval ppl r1 --data data --json
cp out.txt p1.json
works "eval ppl on llm.c shards" "$IDATTN" eval ppl r1 --data 'llmc/*.bin' --separator 319 --json
same "scores the same" "$(value p1.json loss)" "$(value out.txt loss)"
works "inspect llm.c shards" "$IDATTN" data inspect llmc --separator 319 --tokenizer tok.json
matches "knows the format" 'format llmc' "$(cat out.txt)"
finish
