# cases.sh - the fixtures of tests/data/d51f11d: what each run is and which texts are made with it. Sourced by
# compat.sh, which checks a program against them, and by tools/make_compat_fixture.sh, which made them. Every mixer,
# and every value of every model key at least once.

FIRST=200 LAST=206 # the step of the committed checkpoint, and of the one that the run ends with
EARLY=4 # the first steps, whose losses are kept too; later ones differ by 1e-3 from machine to machine with "unit"

CASES="softmax interdomain legs dual-linear single-query s4d hybrid"
case_keys() { # NAME: its model keys
    echo "hidden_size=$([ "$1" = hybrid ] && echo 8 || echo 16) intermediate_size=8 num_attention_heads=2 mixer.state_size=4"
    case $1 in
    softmax | legs) echo "num_key_value_heads=1" ;;
    *) echo "num_key_value_heads=2" ;;
    esac
    case $1 in
    hybrid) echo "num_hidden_layers=3 layer_mixers=interdomain,softmax,s4d" ;;
    *) echo "num_hidden_layers=1 mixer.kind=$([ "$1" = legs ] && echo interdomain || echo "$1")" ;;
    esac
    case $1 in
    softmax) ;; # a Llama: other names in config.json, the head is a tensor of its own
    *) echo "tie_word_embeddings=true" ;;
    esac
    case $1 in
    interdomain | hybrid) echo "mixer.gate=true mixer.output_norm=true" ;;
    legs) echo "mixer.basis=s4d-legs mixer.discretization=norm mixer.readout=bilinear mixer.c_init=identity mixer.rope=false" ;;
    dual-linear) echo "mixer.basis=s4d-inv mixer.discretization=euler mixer.c_init=whitened mixer.gate=true" ;;
    single-query) echo "mixer.discretization=unit mixer.output_norm=true" ;;
    s4d) echo "mixer.basis=s4d-inv rms_norm_eps=1e-6" ;;
    esac
}
train_options() { # NAME
    echo "--preset tiny"
    case_keys "$1" | tr ' ' '\n' | sed 's/^/--set /'
    echo "--steps $LAST --save-every 100 --eval-every 103 --seq-len 32 --batch 4 --micro-batch 2"
    echo "--lr 2e-2 --warmup-steps 10 --clip 0.5 --seed 7"
}
PACK_OPTIONS="--split-blank-lines --val-fraction 0.1 -q"
RESUME_OPTIONS="--resume --save-every 100 --eval-every 103 -q"

# The bits of a product and of a vector op depend on the processor: where AVX2 is, all machines take the same path.
fix_path() {
    case $("$IDATTN" doctor --json | tr -d ' \n') in
    *'"avx2"'*) export IDA_ISA=avx2 OPENBLAS_CORETYPE=Haswell ;;
    esac
}
# What the bits depend on: instruction set, compiler, BLAS and libm. FINGERPRINT is the program of
# tests/compat/fingerprint.c.
fingerprint() {
    "$IDATTN" doctor --json | sed -n 's/^ *"\(isa\|compiler\)": *"\(.*\)",*$/\1 \2/p'
    echo "numbers $("$FINGERPRINT")"
}

one_line() { tr '\n' '|'; } # the tokenizer has no such character
text() { "$IDATTN" generate "$@" -q | one_line; }
# texts MODEL STATE: what a model says, from a prompt and from a state file; one "name text" a line.
texts() {
    echo "greedy $(text "$1" --prompt "the old" -t 0 -n 40 --ignore-eos)"
    echo "seeded $(text "$1" --prompt "a quiet garden" -t 1.1 --seed 5 -n 60 --ignore-eos)"
    echo "top-k $(text "$1" --prompt "every" --top-k 9 --seed 6 -n 60 --ignore-eos)"
    echo "state-greedy $(text "$1" --state-in "$2" -t 0 -n 40 --ignore-eos)"
    echo "state-seeded $(text "$1" --state-in "$2" --prompt "the stone" --seed 7 -n 40 --ignore-eos)"
}
make_state() { # MODEL STATE
    "$IDATTN" generate "$1" --prompt "this teacher leaves the green river. every" -t 0 -n 8 --ignore-eos --state-out "$2" -q
}
log_losses() { # LOG: "step-N loss" and "eval-N loss"
    sed -n 's/.*"event":"\(step\|eval\)","step":\([0-9]*\),.*"loss":\([^,}]*\).*/\1-\2 \3/p' "$1"
}
early_losses() { log_losses "$1" | head -n $EARLY; }
# losses LOG MODEL DATA: of the steps after the committed checkpoint, of evaluation and along the context; one "name
# loss" a line.
losses() {
    log_losses "$1" | awk -F'[- ]' -v first=$FIRST '$2 > first'
    "$IDATTN" eval ppl "$2" --data "$3" --json -q | sed -n 's/^ *"loss": *\([^,]*\),*$/ppl \1/p'
    "$IDATTN" eval length "$2" --data "$3" --multiple 2 --buckets 1 --blocks 2 --json -q |
        sed -n 's/^ *"loss": *\([^,]*\),*$/length \1/p'
}
