# slow
# Ids and texts against the packages themselves: HF `tokenizers` and `sentencepiece` from PyPI, in a virtual environment under
# build/, on random and adversarial strings. TAP; everything is skipped, with the reason, when the packages cannot be had.
# usage: oracle.sh [COUNT [FOLDER]]   COUNT strings for each family (2000); FOLDER of real tokenizers (`make test-oracle`)
set -u
cd "$(dirname "$0")/../.." || exit 1
count=${1:-2000} folder=${2-}
venv=build/oracle pipe=$PWD/build/release/tokenizer_pipe data=tests/data/tokenizer
packages='tokenizers==0.23.3 sentencepiece==0.2.3'

skip_all() {
    echo "ok 1 - tokenizers against HF # SKIP $1"
    echo "1..1"
    exit 0
}

# A line of the log that tells why, or its last one.
reason() { { grep -iE 'error|could not|refused|unreachable|not available' "$1" || cat "$1"; } | tail -n 1 | tr -d '#' | cut -c1-160; }

install_packages() {
    python3 -m venv "$venv" || { tools/setup.sh "the tokenizer oracle" python3-venv && python3 -m venv "$venv"; } || return 1
    # shellcheck disable=SC2086
    "$venv/bin/pip" install --disable-pip-version-check --no-deps --timeout 15 --retries 1 --only-binary :all: $packages
}

if [ "$(cat "$venv/installed" 2>/dev/null)" != "$packages" ]; then
    command -v python3 >/dev/null || skip_all "no python3"
    mkdir -p build
    rm -rf "$venv"
    install_packages >build/oracle.log 2>&1 || skip_all "$packages cannot be installed (build/oracle.log): $(reason build/oracle.log)"
    echo "$packages" >"$venv/installed"
fi

set -- "$data"/trained.json "$data"/flags.json "$data"/llama3.json "$data"/qwen.json "$data"/smollm.json "$data"/falcon.json \
    "$data"/split.json "$data"/words.json "$data"/metaspace.json "$data"/mistral.json "$data"/gemma.json "$data"/sp.model
if [ "$count" -ge 100000 ]; then
    set -- "$@" characters qwen smollm falcon split lower words gemma metaspace metaspace-first metaspace-split sp sp-plain
fi
if [ -n "$folder" ]; then
    for f in "$folder"/*; do
        case $f in
        *encoder.json*) bpe=$(ls "${f%encoder.json*}"vocab.bpe* 2>/dev/null | head -n 1); [ -z "$bpe" ] || set -- "$@" "$f+$bpe" ;;
        *tokenizer*.json | *tokenizer*.json.xz | *.model) set -- "$@" "$f" ;;
        esac
    done
fi
"$venv/bin/python" tools/check_tokenizer_oracle.py --pipe "$pipe" --count "$count" --jobs "$(nproc 2>/dev/null || echo 2)" "$@"
