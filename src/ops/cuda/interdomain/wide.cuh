/* interdomain/wide.cuh - what the kernels of wide heads share (mixer.cuh): a ring of stages through which tiles stream to the
 * warpgroups that use them, and a walk over chunks of any sequences.
 *
 * One thread fills the stages in an order that everybody knows; item `at` of that order lies in stage at % N. Who uses an item
 * waits for it, and `users` warps give it back. No deadlock: users take items in the order of filling, and never hold more than N
 * that follow one another. A barrier's parity tells apart only this filling of a stage and the one before, and a user may be
 * further ahead than that: it first waits until the item is on its way, which the filling thread counts. */
#ifndef IDA_OPS_CUDA_INTERDOMAIN_WIDE_CUH
#define IDA_OPS_CUDA_INTERDOMAIN_WIDE_CUH

#include "ops/cuda/interdomain/bwd.cuh"

enum { RING_STAGE = 2 * TILE };
template <int N> constexpr int ring_bars_bytes() { return 16 * N + 16; }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Addresses in shared memory: of the stages, and of two barriers for each (filled, empty) and the count. */
template <int N> struct ring {
    uint32_t stages, bars;
};
template <int N> IDA_DEV void ring_init(ring<N> r, int users) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(r.bars + 16 * N), "r"(0) : "memory");
    for (int i = 0; i < N; i++) {
        mbar_init(r.bars + 16 * i, 1);
        mbar_init(r.bars + 16 * i + 8, users);
    }
}
template <int N> IDA_DEV uint32_t ring_stage(ring<N> r, int at) { return r.stages + (uint32_t)(at % N * RING_STAGE); }
template <int N> IDA_DEV uint32_t ring_bar(ring<N> r, int at) { return r.bars + (uint32_t)(at % N * 16); }
/* The filling thread: the stage of item `at` once it is free, with so many bytes promised to ring_bar. */
template <int N> IDA_DEV uint32_t ring_open(ring<N> r, int at, int bytes) {
    if (at >= N) mbar_wait(ring_bar(r, at) + 8, (at / N - 1) & 1);
    mbar_expect(ring_bar(r, at), bytes);
    asm volatile("red.release.cta.shared.add.u32 [%0], 1;" ::"r"(r.bars + 16 * N) : "memory");
    return ring_stage(r, at);
}
/* For a warp: item `at`, once it is there, in units of 16 bytes (desc_of). issued: the count as the warp last saw it, at first
 * 0. */
template <int N> IDA_DEV uint32_t ring_tile(ring<N> r, int at, int *issued, int lane) {
    while (*issued <= at) {
        if (lane == 0)
            asm volatile("atom.acquire.cta.shared.add.u32 %0, [%1], 0;" : "=r"(*issued) : "r"(r.bars + 16 * N) : "memory");
        __syncwarp();
        *issued = __shfl_sync(~0u, *issued, 0);
    }
    mbar_wait(ring_bar(r, at), (at / N) & 1);
    return ring_stage(r, at) >> 4;
}
/* For a warp, once its reads are done. */
template <int N> IDA_DEV void ring_give(ring<N> r, int at, int lane) { warp_arrive(ring_bar(r, at) + 8, lane); }

/* Chunks of all sequences in order. slot: of the state before the chunk. */
typedef struct chunk_walk {
    int64_t seq;
    int token, end, rows, slot;
} chunk_walk;

IDA_DEV void chunk_size(chunk_walk *w) { w->rows = w->end - w->token < MIX_CHUNK ? w->end - w->token : MIX_CHUNK; }
/* weights[s] - s: chunks of the sequences before s. */
IDA_DEV chunk_walk chunk_open(const mix_params *p, int64_t at) {
    int64_t low = 0, high = p->n_seq - 1;
    while (low < high) {
        const int64_t s = (low + high) / 2;
        if (p->weights[s + 1] - (s + 1) > at) high = s;
        else low = s + 1;
    }
    const int64_t i = at - (p->weights[low] - low);
    chunk_walk w = {low, (int)(p->cu[low] + i * MIX_CHUNK), (int)p->cu[low + 1], 0, (int)(p->weights[low] + i)};
    chunk_size(&w);
    return w;
}
IDA_DEV void chunk_next(const mix_params *p, chunk_walk *w) {
    if (w->token + MIX_CHUNK < w->end) {
        w->token += MIX_CHUNK;
        w->slot++;
    } else {
        do
            if (++w->seq >= p->n_seq) return;
        while (p->cu[w->seq] == p->cu[w->seq + 1]);
        w->token = (int)p->cu[w->seq], w->end = (int)p->cu[w->seq + 1], w->slot = (int)p->weights[w->seq];
    }
    chunk_size(w);
}

/* A run's first chunk, and the one after its last. */
IDA_DEV int64_t chunk_run(const mix_params *p, int64_t run) { return p->n_chunks * run / p->n_chunk_runs; }

#endif
#endif
