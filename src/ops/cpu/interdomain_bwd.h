/* interdomain_bwd.h - the chunked backward of the mixer core, between its two files: interdomain_bwd_chunk.c does one chunk,
 * interdomain_bwd.c walks over chunks, sequences and groups. Private to them; notation of mixer.h. */
#ifndef IDA_OPS_CPU_INTERDOMAIN_BWD_H
#define IDA_OPS_CPU_INTERDOMAIN_BWD_H

#include "ops/cpu/mixer.h"

enum { BWD_SCAN_BLOCK = 32 };

typedef struct bwd_call {
    const ida_interdomain_args *a;
    const ida_interdomain_grads *gr;
    mix_plan plan;
} bwd_call;

/* What a chunk leaves for the parameter gradients, complex rows [m2]: the E moment, the F~ moments of orders 0 and 1 of both
 * parts, the state moment by blocks of BWD_SCAN_BLOCK rows, and dgg folded to dG [m, m2]. */
typedef struct bwd_record { float *e, *local0, *local1, *state0, *state1, *x, *g; } bwd_record;

static inline int64_t bwd_scan_blocks(const mix_dims *n) { return (n->wp + BWD_SCAN_BLOCK - 1) / BWD_SCAN_BLOCK; }
static inline int64_t bwd_record_floats(const mix_dims *n) { return (5 + bwd_scan_blocks(n) + n->m) * n->m2; }
static inline bwd_record bwd_record_at(float *at, const mix_dims *n) {
    return (bwd_record){
        at, at + n->m2, at + 2 * n->m2, at + 3 * n->m2, at + 4 * n->m2, at + 5 * n->m2, at + (5 + bwd_scan_blocks(n)) * n->m2};
}

/* dK, dV of one chunk, [rows, ldr] and [rows, ldd], as they grow from the chunk's own part to the whole. */
typedef struct bwd_kv { float *dk, *dv; } bwd_kv;

static inline int64_t bwd_kv_floats(const mix_dims *n) { return n->rows * (n->ldr + n->ldd); }
static inline bwd_kv bwd_kv_at(float *at, const mix_dims *n) { return (bwd_kv){at, at + n->rows * n->ldr}; }

/* One worker's buffers for a chunk. kt [rp], vt [dp] rows of ldc, one after the other: K^T, V^T. xk, xv: the transpose of a
 * state, [m2, ldr] and [m2, ldd]. */
typedef struct bwd_work { float *kt, *vt, *k, *q, *o, *s, *p, *dp, *t, *b, *db, *df, *dgg, *dq, *xk, *xv; } bwd_work;

/* Lays the buffers out from `at`, returns their floats; with at = NULL only that. */
int64_t IDA_CPU(bwd_work_layout)(bwd_work *w, float *at, const mix_dims *n);

/* K^T and V^T of a chunk into w. */
void IDA_CPU(bwd_pack)(const bwd_work *w, const bwd_call *c, int64_t g, int64_t token, int64_t rows);
/* Asks for rows of K and V; with x also for all else that the chunk's backward reads: Q, dout and the state x before it. */
void IDA_CPU(bwd_prefetch)(const bwd_call *c, int64_t g, int64_t token, int64_t rows, const float *x);
/* All heads of group g in a packed chunk: dQ =, kv = the chunk's own part of dK and dV, loc = its part of dX~, the record's e,
 * local0, local1, g. x: X~ before the chunk, NULL = zero. loc NULL = not wanted. */
void IDA_CPU(bwd_local)(const bwd_work *w, const bwd_call *c, int64_t g, int64_t token, int64_t rows, const float *x, float *loc,
                        const bwd_record *rec, const bwd_kv *kv);
/* The part through the state after a packed chunk, hat = dX^: adds to kv; the record's state0, state1. */
void IDA_CPU(bwd_state)(const bwd_work *w, const bwd_call *c, int64_t g, int64_t rows, const float *hat, const bwd_record *rec,
                        const bwd_kv *kv);
/* kv to the caller's rows. */
void IDA_CPU(bwd_copy_kv)(const bwd_call *c, int64_t g, int64_t token, int64_t rows, const bwd_kv *kv);
/* part [wp, ldm] = (F~^T Z)^T of a packed chunk. */
void IDA_CPU(bwd_part)(float *part, const bwd_work *w, const bwd_call *c, int64_t g, int64_t rows);
/* after: holds the part on entry, X' = Lam^e (X + part) on exit; lam is the row of Lam^e. */
void IDA_CPU(bwd_state_scan)(float *after, const float *x, const float *lam, const mix_dims *n);
/* dx: gradient of X' = Lam^e X^. hat = conj(Lam^e) dx; moment [scan blocks, m2], by blocks of rows, = sum over a block's rows of
 * conj(X') dx; dx <- hat + loc (loc may be hat, or NULL = 0). */
void IDA_CPU(bwd_gradient_scan)(float *dx, float *hat, const float *loc, const float *x_after, const float *lam, float *moment,
                                const mix_dims *n);

/* Moments count exponents of a chunk from an origin k of their own, as if E were Lam^(i-k), F~ Bbar Lam^(k-j) and X~ Lam^(k+1) X:
 * the same sums in exact arithmetic. The middle of the rows keeps the terms that cancel small, also in a chunk of one token. */
static inline int64_t bwd_origin(const mix_table *t, int64_t rows) { return rows / 2 < t->centre ? rows / 2 : t->centre; }

#endif
