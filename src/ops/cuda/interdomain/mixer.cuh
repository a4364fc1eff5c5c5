/* mixer.cuh - what the kernels of the mixer core share: sizes, tables of powers of Lam, the list of work. Private to ops/cuda.
 *
 * Notation of docs/method.md "chunk form": a group's chunk C and centre c = C/2 keep |Lam|^-c far from overflow. With
 * F~_j = Bbar Lam^(c-j), E_i = Lam^(i-c) and the scaled state X~ = Lam^(c+1) X, all that a chunk does is
 *     a = E (S F~ + Q X~_k)    o = tril(B F~^T) V + B X~_v, B = conj(c E)    X^ = X~ + F~^T Z    X~' = Lam^C X^
 * A row of complex numbers over the modes is [re (mp) | im (mp)]; mp = 64 mb on the tuned path, else M. Padding is zero.
 * Tuned heads are tiled: mb blocks of 64 modes, cb blocks of 64 columns of keys and values (the larger number). One block of
 * each: the narrow kernels (interdomain/fwd.cu, interdomain/bwd.cu); else the wide ones (interdomain_wide_*.cu). The state of a
 * head is mb cb states of 64 modes and 64 + 64 columns, each scanned by itself: virtual head v = (h mb + mode block) cb + column
 * block.
 *
 * Work is cut into tasks: a run of consecutive sequences and one query head. Heads that share keys and values each scan their own
 * copy of the state. Invariant: what a task leaves is a pure function of its inputs; sums over tasks are taken in order. */
#ifndef IDA_OPS_CUDA_MIXER_CUH
#define IDA_OPS_CUDA_MIXER_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "ops/cuda/interdomain/interdomain.h"

#define MIX_MAX_NATS 40.0
enum { MIX_CHUNK = 64, MIX_TILE = 64, MIX_POWERS = MIX_CHUNK + MIX_CHUNK / 2 + 1 };
/* Bytes of a virtual head's state as the tuned path keeps it: two panels [128 rows of re, im][64] of bf16, keys then values. */
enum { MIX_SLOT = 32768 };

typedef struct mix_tables {
    int *chunk; /* [G] */
    double *b;  /* Bbar [G, 2 mp] */
    float *pw;  /* Lam^n at row n + centre, n = -centre..C  [G, MIX_POWERS, 2 mp] */
    float *f;   /* F~ [G, 64, 2 mp] */
    float *gg;  /* real form of a -> conj(w(a) G), symmetric  [G, 2 mp, 2 mp] */
    float4 *e;  /* narrow: E in the order of accumulators, 2048 float4 a group: ((w*8 + 8 modes)*2 + row half)*32 + lane */
    unsigned char *f16, *gg16; /* tuned: a group's panels of F~ (2 mb of 64 rows) and gg (2 mb of 2 mp rows) */
} mix_tables;

/* What a task leaves for the parameter gradients: sums over its tokens of dF~ [64, 2 mp], of dG [2, mp, mp] (re, im), and of the
 * moments of log Lam [2 mp]. */
static inline __host__ __device__ int64_t mix_record_floats(int64_t mp) { return 128 * mp + 2 * mp * mp + 2 * mp; }

/* What a scan of one side (keys, values) of a virtual head adds to that: of dF~ [64, 128 of its modes], of moments [128]. */
enum { MIX_SCAN_RECORD = 64 * 128 + 128 };
/* Bytes that the wide backward's kernels hand on for a chunk and head, as links and halves: tiles of 8 KiB for each side, of
 * halves for each block of modes too. */
static constexpr __host__ __device__ int64_t mix_links_bytes(int64_t mb) { return 2 * (2 * mb + 1) * 8192; }
static constexpr __host__ __device__ int64_t mix_halves_bytes(int64_t mb) { return mb > 1 ? 2 * mb * 4 * 8192 : 0; }

/* The tuned path cuts long sequences into parts of whole chunks when there are too few sequences and heads to fill the chip. A
 * part that is not the last has full chunks only. slot: of the state before its first chunk. index, last: in its sequence.
 * States between parts are found by passes over pieces of the parts, small enough to fill the chip by themselves: a part of a
 * sequence that is cut has pre_per pieces, in the same form, index and last still of the sequence; whole: their part. */
typedef struct mix_part {
    int begin, end, seq, index, last, slot, whole;
} mix_part;
/* Floats of a virtual head's state between parts, in the order of accumulators (interdomain/fwd.cu, interdomain/bwd.cu). */
enum { MIX_STATE = 128 * 128 };

/* Everything a kernel is told. */
typedef struct mix_params {
    int64_t n_seq, h, g, per, r, d, m, mp;
    int chunk_limit, n_runs, tuned, hermitian, disc;
    int mb, cb, wide; /* tuned: blocks */
    int64_t vh;       /* tuned: virtual heads */
    const int64_t *cu, *run0; /* [S+1]; first sequence of a run [n_runs+1] */
    /* tuned: parts [n_parts] and the first part of a run [n_part_runs+1]; split: some sequence has more than one */
    const mix_part *parts;
    const int64_t *part_run0;
    int n_parts, n_part_runs, split;
    const mix_part *pieces; /* [n_pieces] */
    int64_t part_chunks;    /* longest part */
    int n_pieces, pre_per;
    int64_t n_chunks; /* of all sequences */
    int n_chunk_runs; /* wide: the stages that take chunks in any order are cut into so many runs of them */
    float *x_part,
        *dx_part; /* [n_parts, VH, MIX_STATE]: X~ before a part (index > 0); gradient of the state after it (not last) */
    float *x_piece;          /* [n_pieces, VH, MIX_STATE]: what a piece adds to either, from zero (or the sequence's own end) */
    int64_t *weights;        /* for the lists: of the sequences (their first slots) [S+1], of the parts [n_parts+1] before each */
    ida_ssm ssm;
    mix_tables t;
    const void *q, *k, *v, *dout;
    void *o, *dq, *dk, *dv;
    ida_state_ref state_in, state_out, dstate_out, dstate_in;
    ida_ssm_grads dssm;
    unsigned char *slots;               /* states before each chunk, and after the last, [slot, VH] */
    float *dk_head, *dv_head, *dx_head; /* per > 1: gradients by head [N,H,R], [N,H,D], [2,S,H,M,W] */
    float *records;                     /* [runs, H, record], runs of either kind */
    unsigned char *links, *halves;      /* wide: between the kernels of the backward [slot, H] (interdomain/wide_bwd.cu) */
    float *scan_records;                /* wide: [n_part_runs, VH, 2, MIX_SCAN_RECORD] */
    double *sums, *folded;              /* [G, record]; [G, 2 mp mp] */
    float *work;                        /* generic: each CTA's own */
    int64_t work_floats, work_blocks;
} mix_params;

/* A virtual head: its first mode and its first column of keys and of values. */
typedef struct mix_vhead {
    int64_t v, h, g;
    int m0, c0;
} mix_vhead;
static inline __host__ __device__ mix_vhead mix_vhead_of(const mix_params *p, int64_t v) {
    const int64_t h = v / (p->mb * p->cb);
    return mix_vhead{v, h, h / p->per, (int)(v / p->cb % p->mb) * MIX_TILE, (int)(v % p->cb) * MIX_TILE};
}

static inline __host__ __device__ int64_t mix_state_at(const ida_state_ref *ref, int64_t s, int64_t g, int64_t size) {
    return s * ref->stride + g * size;
}

/* Tensors [N, heads, width] of bf16 as the copy engine sees them: tiles of 64 rows of one head, swizzled as in tiles.h. */
typedef struct mix_maps {
    CUtensorMap q, k, v, dout;
} mix_maps;
cudaError_t mix_make_maps(mix_maps *maps, const mix_params *p, int64_t n_tokens);

/* Whether the tuned path takes group g, and the runs of its records. */
static inline __device__ bool mix_tuned(const mix_params *p, int64_t g) { return p->tuned && p->t.chunk[g] == MIX_CHUNK; }
static inline __device__ int64_t mix_record_runs(const mix_params *p, int64_t g) {
    return !mix_tuned(p, g) ? p->n_runs : p->wide ? p->n_chunk_runs : p->n_part_runs;
}

static inline __host__ __device__ int64_t mix_chunks(int64_t tokens) { return (tokens + MIX_CHUNK - 1) / MIX_CHUNK; }
/* Parts of a sequence of so many chunks; no part has fewer than half of part_chunks. */
static inline __host__ __device__ int64_t mix_parts_of(int64_t chunks, int64_t part_chunks) {
    return chunks > part_chunks ? (chunks + part_chunks - 1) / part_chunks : 1;
}

/* The kernels, launched. What fails without being returned is left for cudaGetLastError. */
void mix_launch_fwd64(const mix_params *p, cudaStream_t stream);
void mix_launch_parts64(const mix_params *p, cudaStream_t stream);  /* x_part */
void mix_launch_states64(const mix_params *p, cudaStream_t stream); /* slots, state_out */
cudaError_t mix_launch_out_wide(const mix_params *p, int64_t n_tokens, cudaStream_t stream);
cudaError_t mix_launch_bwd64(const mix_params *p, int64_t n_tokens, cudaStream_t stream);
cudaError_t mix_launch_bwd_wide(const mix_params *p, int64_t n_tokens, cudaStream_t stream);
void mix_launch_scan_wide(const mix_params *p, const mix_maps *maps, cudaStream_t stream);
void mix_launch_fwd_any(const mix_params *p, bool bf16, int ctas, cudaStream_t stream);
void mix_launch_bwd_any(const mix_params *p, bool bf16, int ctas, cudaStream_t stream);
/* x_part or dx_part from x_piece: which = 0 states, in order; 1 gradients, from the last piece. */
void mix_launch_join(const mix_params *p, int which, cudaStream_t stream);
/* state_in to copy [2, S, G, M, W]. */
void mix_launch_copy_states(const mix_params *p, float *copy, cudaStream_t stream);
/* The tables of the groups, and the lists of runs, parts and pieces. */
void mix_launch_tables(const mix_params *p, cudaStream_t stream);
void mix_launch_finish(const mix_params *p, bool bf16, int64_t n_tokens, cudaStream_t stream);
int64_t mix_any_work_floats(const mix_params *p, int64_t blocks, bool bwd);

#endif
