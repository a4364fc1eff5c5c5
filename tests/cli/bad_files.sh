# Files that are missing, truncated, oversized, lying or poisoned: one line, the right exit code, nothing half-written.
# also under sanitizers
. "$(dirname "$0")/lib.sh"
make_data || exit 1
train run --steps 3 -q || exit 1
step=run/step-00000003
G=$REPO/tests/data/golden
# A model folder is a checkpoint without its manifest: so damage is found by the readers, not by the checksum.
model() { rm -rf m; mkdir m; cp $step/config.json $step/model.safetensors $step/tokenizer.json m/; }
poke() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null; } # FILE OFFSET BYTES
size() { wc -c <"$1" | tr -d ' '; }

model
works "the undamaged folder loads" "$IDATTN" generate m --prompt the -n 2
refuses "no such model" 1 'no_such' "$IDATTN" generate no_such --prompt a
mkdir empty_dir
refuses "an empty folder as model" 1 'empty_dir' "$IDATTN" generate empty_dir --prompt a
model; rm m/model.safetensors
refuses "no weights" 1 'model.safetensors' "$IDATTN" generate m --prompt a
model; rm m/tokenizer.json
refuses "no tokenizer" 1 'tokenizer' "$IDATTN" generate m --prompt a

n=$(size $step/model.safetensors)
for k in 0 4 8 100 $((n / 2)) $((n - 1)); do
    model; head -c "$k" $step/model.safetensors >m/model.safetensors
    refuses "weights cut to $k bytes" 1 'model.safetensors' "$IDATTN" generate m --prompt a
done
model; printf 'x' >>m/model.safetensors
refuses "weights with a byte too many" 1 'model.safetensors' "$IDATTN" generate m --prompt a
model; poke m/model.safetensors 0 '\377\377\377\377\377\377\377\177'
refuses "a header length of 2^63" 1 'model.safetensors' "$IDATTN" generate m --prompt a
model; poke m/model.safetensors 0 '\377\377\377\377\0\0\0\0'
refuses "a header longer than the file" 1 'model.safetensors' "$IDATTN" generate m --prompt a
model; poke m/model.safetensors 20 '}}}}}}'
refuses "a header that is not JSON" 1 'model.safetensors' "$IDATTN" generate m --prompt a
model; poke m/model.safetensors $((n - 4)) '\0\0\300\177'
refuses "a NaN weight" 1 'nan|finite' "$IDATTN" generate m --prompt a
refuses "a NaN weight, eval" 1 'nan|finite' "$IDATTN" eval ppl m --data data
model; poke m/model.safetensors $((n - 4)) '\0\0\200\377'
refuses "an infinite weight" 1 'finite' "$IDATTN" generate m --prompt a

# A checkpoint named by its own folder is held against its manifest: one bit of a weight, still finite.
rm -rf m; cp -r $step m; b=$(od -An -tu1 -j $((n - 4)) -N 1 m/model.safetensors); poke m/model.safetensors $((n - 4)) "\\$(printf %o $((b ^ 1)))"
for c in "generate m --prompt a" "eval ppl m --data data" "eval length m --data data --multiple 1"; do
    # shellcheck disable=SC2086
    refuses "a flipped bit beside a manifest: ${c% --*}" 1 'm/model.safetensors: checksum differs from the manifest.*remove manifest.json' "$IDATTN" $c
done
head -c $((n - 8)) $step/model.safetensors >m/model.safetensors
refuses "weights that are cut beside a manifest" 1 "m/model.safetensors: $((n - 8)) bytes, the manifest says $n" "$IDATTN" generate m --prompt a
cp $step/model.safetensors m; rm m/optimizer.safetensors
works "the optimizer's part need not be there" "$IDATTN" generate m --prompt the -n 2

for edit in 's/"hidden_size": 64/"hidden_size": 65/' 's/"hidden_size": 64/"hidden_size": -64/' 's/"hidden_size": 64/"hidden_size": 1e30/' \
    's/"hidden_size": 64/"hidden_size": "64"/' 's/"num_hidden_layers": 2/"num_hidden_layers": 99999/' 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' \
    's/"hermitian"/"sideways"/' 's/"vocab_size": 320/"vocab_size": 9223372036854775807/' 's/{/[/' 's/"hidden_size"/"hidden_sise"/'; do
    model; sed "0,/$(printf '%s' "$edit" | sed 's|^s/||; s|/.*||; s|[[]|\\[|')/$edit" $step/config.json >m/config.json
    if cmp -s m/config.json $step/config.json; then not_ok "config.json: $edit changes something"; continue; fi
    refuses "config.json: $edit" 1 'config.json|shape|tensor|model.safetensors' "$IDATTN" generate m --prompt a
done
model; : >m/config.json
refuses "an empty config.json" 1 'config.json' "$IDATTN" info m
model; head -c 60 $step/config.json >m/config.json
refuses "a cut config.json" 1 'config.json' "$IDATTN" info m

for k in 0 10 1000; do
    head -c $k tok.json >t.json
    refuses "a tokenizer cut to $k bytes" 1 't.json' "$IDATTN" tokenizer encode t.json --text a
done
sed 's/"type": "BPE"/"type": "Unigram"/' tok.json >t.json
refuses "a tokenizer of another type" 1 't.json' "$IDATTN" tokenizer encode t.json --text a
head -c 100000 /dev/urandom >t.json
refuses "noise as tokenizer" 1 't.json' "$IDATTN" tokenizer encode t.json --text a

# A damaged checkpoint is passed over; a run without a whole one is an error.
cp -r run r2; poke r2/step-00000003/model.safetensors 5000 'xxxx'
refuses "a run whose only checkpoint is damaged" 1 'checkpoint|r2' "$IDATTN" generate r2 --prompt a -q
rm -rf r2

set_copy() { rm -rf d; cp -r data d; }
set_copy; head -c 2000 data/train_000000.bin >d/train_000000.bin
refuses "a cut shard, inspect" 1 'train_000000.bin' "$IDATTN" data inspect d
refuses "a cut shard, train" 1 'train_000000.bin' "$IDATTN" train $TRAIN_ARGS --steps 2 --data d --out x -q
set_copy; printf 'zz' >>d/train_000000.bin
refuses "a shard with bytes too many" 1 'train_000000.bin' "$IDATTN" data inspect d
set_copy; poke d/train_000000.bin 0 'XXXX'
refuses "a shard that is none" 1 'train_000000.bin' "$IDATTN" data inspect d
set_copy; poke d/val_000000.bin 1040 '\377\377'
refuses "an id beyond the vocabulary, inspect" 1 'val_000000.bin' "$IDATTN" data inspect d
refuses "an id beyond the vocabulary, eval" 1 'val_000000.bin' "$IDATTN" eval ppl run --data d -q
set_copy; rm d/val_000000.bin
refuses "a shard that is missing" 1 'val_000000.bin' "$IDATTN" data inspect d
set_copy; sed 's|train_000000.bin|../data/train_000000.bin|' data/manifest.json >d/manifest.json
refuses "a shard name that leaves the folder" 1 'manifest.json|name' "$IDATTN" data inspect d
set_copy; : >d/manifest.json
refuses "an empty manifest" 1 'manifest.json' "$IDATTN" data inspect d
set_copy; rm d/manifest.json d/*.bin
refuses "no manifest" 1 'manifest.json' "$IDATTN" data inspect d
absent "no run folder was begun" x/step-00000002

: >zero.txt
"$IDATTN" data pack zero.txt --tokenizer tok.json --out dz --val-fraction 0 -q >out.txt 2>err.txt; rc=$?
if [ $rc -ne 0 ]; then
    refuses "zero-length data" 1 'zero.txt|empty|no ' "$IDATTN" data pack zero.txt --tokenizer tok.json --out dz2 --val-fraction 0 -q
else
    refuses "training on zero-length data" 1 'token|empty' "$IDATTN" train $TRAIN_ARGS --steps 2 --data dz --out xz -q
    absent "begins no checkpoint" xz/step-00000002
fi

# In use: the training data is mapped for the whole run.
set_copy
"$IDATTN" train $TRAIN_ARGS --steps 1000000 --eval-every 1000000 --save-every 1000000 --data d --out xc -q >out.txt 2>err.txt &
pid=$!
wait_for xc/log.jsonl '"step":2,'
: >d/train_000000.bin
wait $pid
same "data cut short while it is in use: exit 1" 1 $?
same "one line" 1 "$(wc -l <err.txt | tr -d ' ')"
matches "that names the file" 'd/train_000000.bin: cannot be read any more' "$(cat err.txt)"

for k in 0 8 300 20000; do
    head -c $k "$G/plain.safetensors" >p.safetensors
    refuses "mixer input cut to $k bytes" 1 'p.safetensors' "$IDATTN" mixer p.safetensors o.safetensors
done
refuses "no mixer input" 1 'no_such' "$IDATTN" mixer no_such o.safetensors
refuses "mixer output in a folder that is not there" 1 'no_dir' "$IDATTN" mixer "$G/plain.safetensors" no_dir/o.safetensors
absent "no mixer output" o.safetensors
refuses "tokenizer into a folder that is not there" 1 'no_dir' "$IDATTN" tokenizer train text.txt --vocab-size 300 --out no_dir/t.json -q
cp text.txt own.txt
refuses "a tokenizer over its own input" 2 'also an input' "$IDATTN" tokenizer train own.txt --vocab-size 300 --out own.txt -q
same_file "the input is still there" text.txt own.txt
set_copy; sed 's/"id": 299/"id": 299/; s/<|endoftext|>/<|endoftexT|>/' tok.json >d/tokenizer.json
refuses "another tokenizer beside the data" 1 'tokenizer' "$IDATTN" train $TRAIN_ARGS --steps 2 --data d --out xt -q
"$IDATTN" train $TRAIN_ARGS --steps 2 --data data --out xm -q >out.txt 2>err.txt
mkdir -p cfg && sed 's/"readout"/"readuot"/' xm/step-00000002/config.json >cfg/config.json
refuses "a misspelt mixer key" 1 'mixer.readuot' "$IDATTN" info cfg/config.json -q
: >file
refuses "packing under a file" 1 'file' "$IDATTN" data pack text.txt --tokenizer tok.json --out file/d -q
printf '\037\213\010\0\0\0\0\0\0\003garbage' >bad.txt.gz
refuses "damaged gzip" 1 'bad.txt.gz' "$IDATTN" data pack bad.txt.gz --tokenizer tok.json --out dg -q
no_leftovers "nothing half-written" .
finish
