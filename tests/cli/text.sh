# tokenizer train|encode|decode and data pack|inspect: the good paths, by file, by --text, by standard input.
# also under sanitizers
. "$(dirname "$0")/lib.sh"
make_text

works "tokenizer train" "$IDATTN" tokenizer train text.txt --vocab-size 320 --out tok.json -q
works "the same with 1 thread" "$IDATTN" tokenizer train text.txt --vocab-size 320 --out tok1.json -q --threads 1
same_file "gives the same file" tok.json tok1.json
works "from standard input" sh -c '"$0" tokenizer train - --vocab-size 320 --out tok2.json -q <text.txt' "$IDATTN"
same_file "gives the same file too" tok.json tok2.json
works "--json describes it" "$IDATTN" tokenizer train text.txt --vocab-size 320 --out tok.json -q --json
same "with the vocabulary" 320 "$(value out.txt vocab_size)"

works "encode --text" "$IDATTN" tokenizer encode tok.json --text "the old house"
ids=$(cat out.txt)
matches "prints ids on one line" '^[0-9]+( [0-9]+)*$' "$ids"
# shellcheck disable=SC2086
works "decode from arguments" "$IDATTN" tokenizer decode tok.json $ids
same "gives the text back" "the old house" "$(cat out.txt)"
works "encode --json" "$IDATTN" tokenizer encode tok.json --text "the old house" --json
python3 -c 'import json,sys; d=json.load(open("out.txt")); sys.exit(0 if d["n"]==len(d["ids"]) and d["bytes"]==13 else 1)' && ok "is JSON with n, bytes, ids" || not_ok "is JSON with n, bytes, ids" "$(cat out.txt)"
cp out.txt ids.json
python3 -c 'import json; print(json.load(open("ids.json"))["ids"])' >list.txt
works "decode reads a JSON list" sh -c '"$0" tokenizer decode tok.json <list.txt' "$IDATTN"
same "to the same text" "the old house" "$(cat out.txt)"

# every byte value, and no newline at the end: exactly these bytes come back
python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)) + "héllo 漢字 🙂".encode())' >bytes.bin
"$IDATTN" tokenizer encode tok.json bytes.bin >ids.txt && "$IDATTN" tokenizer decode tok.json <ids.txt >back.bin
same_file "any bytes survive encode and decode" bytes.bin back.bin
"$IDATTN" tokenizer encode tok.json <text.txt >ids.txt && "$IDATTN" tokenizer decode tok.json <ids.txt >back.txt
same_file "a whole text survives" text.txt back.txt
: >empty.txt
works "an empty text is no ids" "$IDATTN" tokenizer encode tok.json empty.txt
same "an empty line" "" "$(cat out.txt)"
works "no ids are no text" sh -c '"$0" tokenizer decode tok.json </dev/null' "$IDATTN"
same "nothing" 0 "$(wc -c <out.txt | tr -d ' ')"
works "special text stays text" "$IDATTN" tokenizer encode tok.json --text "<|endoftext|>"
if [ "$(wc -w <out.txt)" -gt 1 ]; then ok "as several ids"; else not_ok "as several ids" "$(cat out.txt)"; fi
works "unless --special is given" "$IDATTN" tokenizer encode tok.json --text "<|endoftext|>" --special
same "then it is the last id" 319 "$(cat out.txt)"

# a tokenizer of Llama-2's family: template, exactly one BOS, text at once and as JSON
tiny=$REPO/tests/data/tokenizer/sp.model
works "encode with a SentencePiece model" "$IDATTN" tokenizer encode "$tiny" --text "the state"
plain=$(cat out.txt)
works "--template" "$IDATTN" tokenizer encode "$tiny" --text "the state" --template
same "puts BOS before the text" "1 $plain" "$(cat out.txt)"
works "a BOS typed in the text" "$IDATTN" tokenizer encode "$tiny" --text "<s>the state" --template --special
same "is not doubled (L32)" "1 $plain" "$(cat out.txt)"
matches "and warned of" 'not added again' "$(cat err.txt)"
works "it decodes" "$IDATTN" tokenizer decode "$tiny" --skip-special $(cat out.txt)
same "without the blank that encoding put there" "the state" "$(cat out.txt)"
works "decode --json of bytes that make no character" "$IDATTN" tokenizer decode "$tiny" 258 --json
same "has U+FFFD" "$(printf '\357\277\275')" "$(value out.txt text)"
long=1234567890123456789012345678901234567890
refuses "a long word that is no id" 2 "\"$long\" is not a token id" "$IDATTN" tokenizer decode "$tiny" "${long}x"
refuses "an id outside the vocabulary (L34)" 2 'not in the vocabulary' "$IDATTN" tokenizer decode "$tiny" 5 100000
works "bench tokenizer" "$IDATTN" bench tokenizer tokenizer="$tiny" text=text.txt reps=1 --json
matches "shows a speed where its check is green" 'MB_per_s' "$(cat out.txt)"
refuses "bench tokenizer without a text" 2 'text=FILE' "$IDATTN" bench tokenizer tokenizer="$tiny"
works "data pack with it" "$IDATTN" data pack text.txt --tokenizer "$tiny" --out dsp --split-blank-lines --val-fraction 0 -q

works "data pack" "$IDATTN" data pack text.txt --tokenizer tok.json --out data --split-blank-lines --val-fraction 0.1 -q --json
cp out.txt pack.json
works "data inspect" "$IDATTN" data inspect data
cp out.txt inspect.json
same "every document is counted" 120 "$(value pack.json documents)"
printf '{"text": "one"}\n{"text": "two\\nlines"}\nnot json\n{"other": 1}\n{"text": ""}\n' >rows.jsonl
works "jsonl with bad rows" "$IDATTN" data pack rows.jsonl --tokenizer tok.json --out rows --val-fraction 0 --json
same "good rows are taken, the empty one too" 3 "$(value out.txt documents)"
same "bad rows are counted" 2 "$(value out.txt bad_rows)"
matches "and reported with file and line" 'rows.jsonl.*3' "$(cat err.txt)"
gzip -k text.txt
works "gzip input" "$IDATTN" data pack text.txt.gz --tokenizer tok.json --out dataz --split-blank-lines --val-fraction 0.1 -q
same_file "gives the same shard" data/train_000000.bin dataz/train_000000.bin
works "standard input" sh -c '"$0" data pack - --tokenizer tok.json --out dataz2 --split-blank-lines --val-fraction 0.1 -q <text.txt' "$IDATTN"
same_file "gives the same shard too" data/train_000000.bin dataz2/train_000000.bin

refuses "a folder that is not empty" 2 'empty' "$IDATTN" data pack text.txt --tokenizer tok.json --out data
refuses "decode of an id beyond the vocabulary" 2 '320' "$IDATTN" tokenizer decode tok.json 5 320
refuses "decode of a word" 2 '"x1"' "$IDATTN" tokenizer decode tok.json x1
refuses "decode of a negative id" 2 '"-1"' sh -c 'echo -1 | "$0" tokenizer decode tok.json' "$IDATTN"
refuses "decode of an overflowing id" 2 'token id' "$IDATTN" tokenizer decode tok.json 99999999999
refuses "a text file that is not there" 1 'no_such' "$IDATTN" tokenizer encode tok.json no_such
refuses "training input that is not there" 1 'no_such' "$IDATTN" tokenizer train no_such.txt --out t.json -q
absent "and no tokenizer is written" t.json
refuses "vocabulary too small" 2 '257' "$IDATTN" tokenizer train text.txt --vocab-size 256 --out t.json
refuses "--out missing" 2 'out' "$IDATTN" tokenizer train text.txt
refuses "--tokenizer missing" 2 'tokenizer' "$IDATTN" data pack text.txt --out d
no_leftovers "nothing half-written" .
finish
