/* interdomain/wide_bwd.cuh - what the stages of the wide backward share (interdomain/wide_bwd.cu, interdomain/wide_scan.cu):
 * where states and links lie, tiles at the end of a sequence. side: 0 keys, 1 values. */
#ifndef IDA_OPS_CUDA_INTERDOMAIN_WIDE_BWD_CUH
#define IDA_OPS_CUDA_INTERDOMAIN_WIDE_BWD_CUH

#include "ops/cuda/interdomain/wide.cuh"

enum { THREADS = 256 };
/* A link: of each block of modes dT | B (re, im), then dS | P. */
template <int MB> struct wide_link {
    enum { LOW = 2 * MB * TILE, BYTES = LOW + TILE };
    static_assert(2 * BYTES == mix_links_bytes(MB), "mixer.cuh gives a chunk and head its two links");
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <int MB> IDA_DEV unsigned char *link_at(const mix_params *p, int slot, int64_t h, int side) {
    return p->links + ((slot * p->h + h) * 2 + side) * wide_link<MB>::BYTES;
}
/* A panel of X~ of virtual head v. */
IDA_DEV unsigned char *slot_at(const mix_params *p, int slot, int64_t v, int side) {
    return p->slots + (slot * p->vh + v) * MIX_SLOT + side * PANEL;
}
#endif
#endif
