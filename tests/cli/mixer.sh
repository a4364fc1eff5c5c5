# mixer: every golden file through the program, in every form and dtype. Tolerances are those of the issue's contract: float64 1e-10 and
# float32 1e-4 relative, on every output and gradient; bf16 is 8 bits of mantissa, 2^-8 a rounding, over sums of both signs: 5e-2.
. "$(dirname "$0")/lib.sh"
: "${STDIFF:?set STDIFF to the comparer}"
G=$REPO/tests/data/golden

# Outputs a golden file has: o, two final states, 8 gradients and two state gradients.
agree() { # NAME GOLDEN TOLERANCE COUNT MIXER-OPTIONS...
    name=$1 file=$2 tol=$3 n=$4; shift 4
    if ! "$IDATTN" mixer "$G/$file.safetensors" out.safetensors "$@" >out.txt 2>err.txt; then not_ok "$name" "$(cat err.txt)"; return; fi
    if table=$("$STDIFF" "$G/$file.safetensors" out.safetensors "$tol" -n "$n" 2>&1); then ok "$name"; else not_ok "$name" "$table"; fi
    rm -f out.safetensors
}
for f in plain bilinear unit heads packed; do
    for form in sequential chunked; do
        agree "$f $form f64" $f 1e-10 13 --form $form --dtype f64
        agree "$f $form f32" $f 1e-4 13 --form $form --dtype f32
        agree "$f $form bf16" $f 5e-2 13 --form $form --dtype bf16
    done
    agree "$f step f64, no gradients" $f 1e-10 3 --form step --dtype f64
    agree "$f step f32" $f 1e-4 3 --form step --dtype f32
    for chunk in 1 2 7 33; do agree "$f chunk $chunk f32" $f 1e-4 13 --form chunked --dtype f32 --chunk $chunk; done
done
IDA_ISA=base agree "plain chunked f32, base instructions" plain 1e-4 13 --dtype f32
for t in 1 2; do "$IDATTN" mixer "$G/heads.safetensors" t$t.safetensors --dtype f32 --threads $t; done
same_file "1 and 2 threads give the same bytes" t1.safetensors t2.safetensors

refuses "--device cuda says that there is none" 1 'none.so' env IDA_CUDA_BACKEND=./none.so "$IDATTN" mixer "$G/plain.safetensors" no.safetensors --device cuda
refuses "a device that is not known" 2 'cpu, cuda and cuda:N' "$IDATTN" mixer "$G/plain.safetensors" no.safetensors --device gpu
refuses "float64 on a GPU" 1 'CPU only' "$IDATTN" mixer "$G/plain.safetensors" no.safetensors --device cuda:0 --dtype f64
absent "and writes nothing" no.safetensors
finish
