# info: the fourteen parameter counts of docs/method.md section 3, exact and without allocating weights.
# also under sanitizers
. "$(dirname "$0")/lib.sh"

cell() {
    "$IDATTN" info --preset "$1" --mixer "$2" --json >out.json 2>err.txt
    same "parameters of $1 $2" "$3" "$(value out.json parameters)"
}
cell 125m softmax 134105856
cell 125m interdomain 135416208
cell 125m s4d 135425424
cell 125m dual-linear 135379344
cell 125m single-query 135462288
cell 350m softmax 373867520
cell 350m interdomain 377360768
cell 350m s4d 377385344
cell 760m softmax 777856512
cell 760m interdomain 781498752
cell 760m s4d 781523328
cell 1.3b softmax 1345423360
cell 1.3b interdomain 1352406784
cell 1.3b s4d 1352455936

# 1.3b in fp32 is 5.4 GB: in 1 GB of address space only a count that allocates nothing can work. Sanitizers reserve terabytes.
case $IDATTN in
*asan*) skip "counting allocates no weights" "address space limits do not go with sanitizers" ;;
*) works "counting allocates no weights" sh -c 'ulimit -v 1000000; exec "$0" info --preset 1.3b' "$IDATTN"
   works "the program ends though OpenBLAS has no memory for its thread" \
       sh -c 'ulimit -v 180000; OPENBLAS_NUM_THREADS=2 exec timeout 20 "$0" info --preset tiny --json' "$IDATTN"
   same "and its output is whole" "}" "$(tail -n 1 out.txt)"
   refuses "the BLAS rate is not asked of an OpenBLAS without memory" 1 'address space for OpenBLAS' \
       sh -c 'ulimit -v 180000; OPENBLAS_NUM_THREADS=2 exec timeout -k 1 20 "$0" bench gemm preset=tiny N=64 --threads 2 -q' "$IDATTN"
   refuses "a failure too" 1 'no_such' sh -c 'ulimit -v 180000; OPENBLAS_NUM_THREADS=2 exec timeout 20 "$0" info no_such' "$IDATTN" ;;
esac

# The state of method.md section 5: X of 24 layers is 48 MiB at 1.3b, at any length; softmax grows instead.
"$IDATTN" info --preset 1.3b --json >out.json
a=$(value out.json state_bytes_1k) b=$(value out.json state_bytes_64k)
same "interdomain state does not grow" "$a" "$b"
if [ "$a" -ge $((48 << 20)) ] && [ "$a" -lt $((52 << 20)) ]; then ok "interdomain state at 1.3b is 48 MiB and the convolutions' tails"; else not_ok "interdomain state at 1.3b" "$a"; fi
"$IDATTN" info --preset 125m --mixer softmax --json >out.json
same "softmax keeps keys and values: 2 * 12 layers * 768 * 4 bytes a token" $((2 * 12 * 768 * 4)) "$(value out.json state_bytes_per_token)"

works "--set changes a field" "$IDATTN" info --preset tiny --set hidden_size=128 --set mixer.readout=bilinear --json
matches "and shows it" '"readout": "bilinear"' "$(cat out.txt)"
works "hybrids" "$IDATTN" info --preset tiny --set layer_mixers=interdomain,softmax
matches "are described" 'softmax x 1, interdomain x 1|interdomain x 1, softmax x 1' "$(cat out.txt)"
refuses "a shape that does not fit together" 2 'head' "$IDATTN" info --preset tiny --set num_attention_heads=7

"$IDATTN" info --preset tiny --json >out.json
sed -n '/"config": {/,/^  }/p' out.json | sed '1s/.*/{/; $s/.*/}/' >config.json
works "a config.json as MODEL" "$IDATTN" info config.json --json
same_file "gives the same" out.json out.txt
works "--config" "$IDATTN" info --config config.json --json
same_file "gives the same too" out.json out.txt

works "doctor" "$IDATTN" doctor
works "doctor --json" "$IDATTN" doctor --json
matches "doctor names the instruction set" '"isa": "(base|avx2|avx512)"' "$(cat out.txt)"
IDA_ISA=base "$IDATTN" doctor --json >out.txt
matches "IDA_ISA lowers it" '"isa": "base"' "$(cat out.txt)"
IDA_CUDA_BACKEND=/no/such.so "$IDATTN" doctor >out.txt
matches "doctor says why there is no GPU" 'gpu.error .*IDA_CUDA_BACKEND names /no/such.so: No such file' "$(cat out.txt)"
# A backend that is cut short, by much or little; one that is a pipe.
size=$(wc -c <"$IDATTN")
for n in 100 5000 $((size / 2)) $((size - 1)); do
    head -c "$n" "$IDATTN" >cut.so
    IDA_CUDA_BACKEND=./cut.so timeout 20 "$IDATTN" doctor >out.txt
    matches "doctor goes on after a backend of $n bytes" 'gpu.error .*cut.so is cut short or damaged' "$(cat out.txt)"
done
mkfifo pipe.so
IDA_CUDA_BACKEND=./pipe.so timeout 20 "$IDATTN" doctor >out.txt
matches "doctor does not wait for a pipe" 'gpu.error .*pipe.so: it is a device or pipe' "$(cat out.txt)"
finish
