/* s4d.cuh - what the kernels of the mixers without a query share (ops.h "s4d"): sizes, tables, records. Private to ops/cuda.
 *
 * A chunk of C tokens, X the state before it, K_l = Re sum_m c_m Bbar_m Lam_m^l:
 *     y_i = sum_{j<=i} K_{i-j} z_j + Re sum_m c_m Lam_m^(i+1) X_m        X <- Lam^C X + sum_j Bbar Lam^(C-1-j) z_j^T
 * With real rows T_ij = K_{i-j}, D_i = conj(c Lam^(i+1)), F_j = Bbar Lam^(C-1-j) that is y = T z + D X, X <- Lam^C X + F^T z.
 * The gradient of z runs the other way through the same tables: dz = T^T dy + F G, G <- conj(Lam)^C G + D^T dy. One kernel
 * does both: "walk".
 *
 * Parameters need no adjoint: with x the state without Bbar (x <- Lam x + z), x' its derivative by log Lam, and U_i =
 * Lam^(i+1),
 *     dc = sum_i conj(Bbar x U_i) dy_i,  dBbar = sum_i conj(c x U_i) dy_i,  dlog Lam = sum_i conj(c Bbar (x' + (i+1) x) U_i) dy_i
 * and dK within the chunk. Those are the sums S, L and kernel of a record; what a final state's gradient adds is R, R1. An
 * initial state is a second run of the same kernel, from X and without z ("initial"). Its records follow those of the first.
 *
 * Few long sequences are cut into parts: a first pass finds what each part leaves from a zero state, "join" makes of that the
 * state before each part, and the second pass does the work.
 *
 * Only non-negative powers of Lam occur: nothing overflows, a vanished term is exactly 0. Columns of z never meet: a task is a
 * run of consecutive sequences, a head and a block of columns of one half. Invariant: what a task leaves is a pure function of
 * its inputs; sums over tasks are taken in order, in double. */
#ifndef IDA_OPS_CUDA_S4D_CUH
#define IDA_OPS_CUDA_S4D_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "ops/cuda/cuda_ops.h"

enum { S4D_CHUNK = 64, S4D_COLS = 32, S4D_TILE = 64, S4D_PANEL = 8192 };

/* Tables of a head for the tensor cores (sm_90, bf16, M <= 64): panels of 64 x 64 bf16 as in tiles.h, modes beyond M zero. T;
 * D and F, 2 panels each, whose columns are re, im of mode 0, re, im of mode 1, ..; and for each half of the modes the powers
 * that the sums need: Lam^(i+1), (i+1) Lam^(i+1), Lam^(63-i), (63-i) Lam^(63-i), a panel each, with 8 re, then 8 im of the
 * same modes, .. */
enum {
    S4D_T16 = 0,
    S4D_D16 = S4D_T16 + S4D_PANEL,
    S4D_F16 = S4D_D16 + 2 * S4D_PANEL,
    S4D_U16 = S4D_F16 + 2 * S4D_PANEL,
    S4D_HALF = 4 * S4D_PANEL, /* from one half of the modes to the other */
    S4D_TABLES16 = S4D_U16 + 2 * S4D_HALF
};

/* What of each sequence a walk does: all of it, or its whole chunks, or the tokens after those. */
enum { S4D_WHOLE, S4D_CHUNKS, S4D_TAIL };

/* Floats of a state in x_part: 64 a thread. */
enum { S4D_STATE = 64 * 128 };

/* Everything a kernel is told. A row of complex numbers over the modes is [re (M) | im (M)] in the fp32 tables. */
typedef struct s4d_params {
    int64_t n_seq, n_tokens, h, r, d, m;
    /* Tasks of a run and head are blocks of `cols` columns: k_blocks of k, then those of v. */
    int64_t n_runs, k_blocks, blocks, cols, n_tasks;
    int64_t record; /* doubles of a record */
    int chunk, span;
    /* > 0: a run is a part of a sequence, so many chunks (the last part: what is left), counted in the order of the walk.
     * x_part: the state before each task of a sequence with more than one part, as threads hold it [n_tasks, S4D_STATE]; the
     * sums take a sequence's first state from state_in. */
    int64_t part_chunks;
    float *x_part;
    const int64_t *cu;
    ida_ssm ssm;
    const float *w;
    const void *k, *v, *dy;
    void *y, *dk, *dv;
    ida_state_ref state_in, state_out, dstate_out, dstate_in;
    float *dw;
    ida_ssm_grads dssm;
    /* tables */
    double *coef;            /* Lam, Bbar, c  [H, 3, 2 M] */
    float *pw;               /* Lam^n, n = 0..C  [H, C+1, 2 M] */
    float *pw1;              /* n Lam^n */
    float *f;                /* Bbar Lam^n, n = 0..C-1 */
    float *out;              /* D */
    float *kernel;           /* T  [H, C, C] */
    unsigned char *tables16; /* tuned: [H, S4D_TABLES16]; else NULL */
    /* backward */
    double *records, *sums; /* [n_tasks or 2 n_tasks, record]; [H, 2, record] */
    float *work;            /* generic chunk form: each CTA's own */
    double *work64;         /* sequential form: the same */
    int64_t work_each;
} s4d_params;

/* Of a record of the chunk form: offsets of S, L, R, R1 (2 M each) and of the kernel's gradient (C). The sequential form's
 * record is the gradients of c, Bbar and log Lam (2 M each). */
static inline __host__ __device__ int64_t s4d_record_doubles(int64_t m) { return 8 * m + S4D_CHUNK; }

/* A task's place. half: of the modes, where each block of columns is `halves` tasks. */
typedef struct s4d_task {
    int64_t run, h, from, at, n, half_width; /* column in its half of z, in W, count; width of that half */
    int half;
    bool key;
} s4d_task;
static inline __device__ s4d_task s4d_task_of(const s4d_params *p, int64_t task, int halves = 1) {
    s4d_task t;
    const int64_t block = task / halves % (p->blocks / halves);
    t.half = (int)(task % halves);
    t.h = task / p->blocks % p->h;
    t.run = task / p->blocks / p->h;
    t.key = block < p->k_blocks;
    t.from = (t.key ? block : block - p->k_blocks) * p->cols;
    t.half_width = t.key ? p->r : p->d;
    t.at = t.key ? t.from : p->r + t.from;
    t.n = t.half_width - t.from < p->cols ? t.half_width - t.from : p->cols;
    return t;
}
/* First sequence of a run: one sequence each when there are as many runs, else those that start in its share of the tokens. */
static inline __device__ int64_t s4d_run_begin(const s4d_params *p, int64_t run) {
    if (run >= p->n_runs) return p->n_seq;
    if (p->n_runs == p->n_seq || run == 0) return run;
    const int64_t token = p->n_tokens * run / p->n_runs;
    int64_t lo = 0, hi = p->n_seq; /* the first s with cu[s] >= token */
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (p->cu[mid] < token) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}
/* Chunks of a sequence, and its parts. */
static inline __host__ __device__ int64_t s4d_chunks(int64_t len, int span) {
    return (len + (span == S4D_WHOLE ? S4D_CHUNK - 1 : 0)) / S4D_CHUNK;
}
static inline __host__ __device__ int64_t s4d_parts(int64_t len, int span, int64_t part_chunks) {
    const int64_t n = s4d_chunks(len, span);
    return n > part_chunks ? (n + part_chunks - 1) / part_chunks : 1;
}
/* Sequence of a part, number of the part in it and of its parts. Parts are few where there are any: sequences are looked
 * through. */
typedef struct s4d_part {
    int64_t s, index, n;
} s4d_part;
static inline __device__ s4d_part s4d_part_of(const s4d_params *p, int64_t part) {
    s4d_part r = {0, part, 0};
    for (;; r.s++) {
        r.n = s4d_parts(p->cu[r.s + 1] - p->cu[r.s], p->span, p->part_chunks);
        if (r.index < r.n) return r;
        r.index -= r.n;
    }
}
/* Offset of a task's first column in a state array, and that of (token t, first column) in z's half and in y. */
static inline __device__ int64_t s4d_state_at(const s4d_params *p, const ida_state_ref *ref, const s4d_task *t, int64_t s) {
    return s * ref->stride + t->h * p->m * (p->r + p->d) + t->at;
}
static inline __device__ int64_t s4d_z_at(const s4d_params *p, const s4d_task *t, int64_t token) {
    return (token * p->h + t->h) * t->half_width + t->from;
}
static inline __device__ int64_t s4d_y_at(const s4d_params *p, const s4d_task *t, int64_t token) {
    return (token * p->h + t->h) * (p->r + p->d) + t->at;
}

/* The kernels, launched. bf16: element type. */
void s4d_launch_tables(const s4d_params *p, cudaStream_t stream);
void s4d_launch_walk_any(const s4d_params *p, bool bf16, bool reverse, int ctas, cudaStream_t stream);
void s4d_launch_sums_any(const s4d_params *p, bool bf16, bool initial, int ctas, cudaStream_t stream);
int64_t s4d_any_work_floats(int64_t m, bool bwd);
/* The same on tensor cores: blocks of S4D_TILE columns; the sums have two tasks for each, half of the modes each. */
cudaError_t s4d_launch_walk64(const s4d_params *p, bool reverse, cudaStream_t stream);
cudaError_t s4d_launch_sums64(const s4d_params *p, bool initial, cudaStream_t stream);
/* Between the two passes over parts: what each part left in x_part becomes the state before the next. */
enum { S4D_JOIN_FORWARDS, S4D_JOIN_BACKWARDS, S4D_JOIN_SUMS };
void s4d_launch_join(const s4d_params *p, int which, cudaStream_t stream);
void s4d_launch_seq(const s4d_params *p, bool bf16, bool backward, int ctas, cudaStream_t stream);
int64_t s4d_seq_work_doubles(int64_t m, bool bwd);
/* From records to "+=" of the parameters' gradients. runs 2: records of the initial state are there too. */
void s4d_launch_finish(const s4d_params *p, bool sequential, int runs, cudaStream_t stream);

#endif
