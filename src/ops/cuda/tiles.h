/* tiles.h - Hopper building blocks of the mixer core: shared-memory tiles, wgmma, barriers, copies.
 *
 * A tile is a row-major panel of 64 bf16 columns (128 bytes a row), any multiple of 8 rows, 1024-byte aligned, its 16-byte pieces
 * swizzled by the row: piece p of row r lies at r*128 + ((p ^ (r & 7)) * 16). Such a panel serves wgmma both ways: "k" operands
 * have the summed index along the columns, "mn" operands along the rows. A wider matrix is several panels, one after the other.
 *
 * An accumulator of 64 rows by N columns over a warpgroup: thread (warp w, lane l) holds of each 8-column block j the elements
 * d[4j+0,1] at row 16w + l/4, columns 8j + 2(l%4) + {0,1}, and d[4j+2,3] eight rows below. Packed to bf16 pairs in that order,
 * it is an A operand, and four pairs are what stmatrix and ldmatrix move. Compiled for sm_90a only. */
#ifndef IDA_OPS_CUDA_TILES_H
#define IDA_OPS_CUDA_TILES_H

#include <cuda_bf16.h>
#include <stdint.h>

#include "ops/cuda/ptx.cuh"
#include "ops/cuda/vec.cuh"

#define IDA_DEV static __device__ __forceinline__

/* ---- wgmma descriptors. u: base of shared memory in units of 16 bytes (1024-byte aligned, uniform); at: byte offset from it, a
 * multiple of 16. The address stays far below 2^14 units, so that a descriptor is one addition. */
IDA_DEV uint64_t desc_of(uint32_t lo) {
    uint64_t d;
    asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(lo), "r"(64u | 1u << 30));
    return d;
}
IDA_DEV uint64_t desc_k(uint32_t u, int at) { return desc_of(u + (uint32_t)(at / 16 + (1 << 16))); }
/* panel: bytes from one panel to the next, for N > 64 */
IDA_DEV uint64_t desc_mn(uint32_t u, int at, int panel) { return desc_of(u + (uint32_t)(at / 16 + (panel / 16 << 16))); }
enum { K_STEP = 32, MN_STEP = 2048 }; /* bytes from one slice of 16 along the sum to the next */

IDA_DEV void wg_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
IDA_DEV void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> IDA_DEV void wg_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
/* Keeps reads and writes of accumulators on their side of a fence or wait. */
template <int N> IDA_DEV void touch(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* d (+)= A B, N = 32; A and B in shared memory. TA, TB: 1 = mn operand. */
template <int TA, int TB> IDA_DEV void mma_ss(float (&d)[16], uint64_t a, uint64_t b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, %16, %17, p, 1, 1, %19, %20; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
}

/* d (+)= A B, N = 64; A and B in shared memory. TA, TB: 1 = mn operand. */
template <int TA, int TB> IDA_DEV void mma_ss(float (&d)[32], uint64_t a, uint64_t b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
                 "%23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, %32, %33, p, 1, 1, %35, %36; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
                   "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
}
/* The same with A in registers. */
template <int TB> IDA_DEV void mma_rs(float (&d)[32], const uint32_t *a, uint64_t b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
                 "%23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
                   "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TB));
}

/* d (+)= A B, N = 128; A and B in shared memory. TA, TB: 1 = mn operand. */
template <int TA, int TB> IDA_DEV void mma_ss(float (&d)[64], uint64_t a, uint64_t b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
                 "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
                 "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, p, 1, 1, %67, %68; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
                   "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
                   "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
                   "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
                   "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
                   "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
}
/* The same with A in registers. */
template <int TB> IDA_DEV void mma_rs(float (&d)[64], const uint32_t *a, uint64_t b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
                 "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
                 "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
                   "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
                   "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
                   "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
                   "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
                   "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TB));
}

/* Hides where a number came from: what is formed from it inside a loop is not moved out of the loop, to fill registers there. */
IDA_DEV void opaque(uint32_t &x) { asm volatile("" : "+r"(x)); }

/* ---- shared memory */
IDA_DEV void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
IDA_DEV void bar_sync(int id, int n) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory"); }
IDA_DEV float2 unpack2(uint32_t v) { return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)); }
/* The bits of a number that bf16 leaves out, as a signed byte: x ~ bits(bf16(x)) * 2^16 + byte * 2^8. Four of them from two
 * pairs. */
IDA_DEV uint32_t low_bytes(const float *x, const uint32_t *p) {
    const uint32_t r0 = __float_as_uint(x[0]) - (p[0] << 16), r1 = __float_as_uint(x[1]) - (p[0] & 0xffff0000u);
    const uint32_t r2 = __float_as_uint(x[2]) - (p[1] << 16), r3 = __float_as_uint(x[3]) - (p[1] & 0xffff0000u);
    return __byte_perm(__byte_perm(r0, r1, 0x0051), __byte_perm(r2, r3, 0x0051), 0x5410);
}
/* Number n (0..3) of a word of low bytes put back on its bf16, which stands in the upper half of `high`. */
template <int N> IDA_DEV float with_low(uint32_t high, uint32_t word) {
    uint32_t add;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(add) : "r"(word), "n"((8 | N) << 12 | (8 | N) << 8 | N << 4 | 4));
    return __uint_as_float(high + add);
}
/* A thread's place for stmatrix/ldmatrix x4 in a panel: rows 16 warp.., column blocks 0 and 1; blocks j and j+1 (j even) are at
 * frag_at of it. */
IDA_DEV uint32_t frag_place(int warp, int lane) {
    const int row = lane & 7, mat = lane >> 3;
    return (uint32_t)((16 * warp + 8 * (mat & 1) + row) * 128 + (((mat >> 1) ^ row) * 16));
}
IDA_DEV uint32_t frag_at(uint32_t panel, uint32_t place, int j) { return panel + (place ^ (uint32_t)(j * 16)); }
IDA_DEV void st_frag(uint32_t at, const uint32_t *p) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(p[0]), "r"(p[1]), "r"(p[2]),
                 "r"(p[3])
                 : "memory");
}
/* The A operand of a slice of 16 whose sum runs along the rows of a panel: slice kk is at panel + kk * MN_STEP + place. */
IDA_DEV uint32_t frag_t_place(int warp, int lane) {
    const int row = lane & 7, mat = lane >> 3;
    return (uint32_t)((8 * (mat >> 1) + row) * 128 + (((2 * warp + (mat & 1)) ^ row) * 16));
}
/* Transposed: the pairs 2j..2j+3 of a 64 x 64 accumulator (j even) to panel + j * 1024 + frag_t_place, its rows being the panel's
 * columns. A warp writes its own 16 columns, those that it reads by ldsm_t. */
IDA_DEV void st_frag_t(uint32_t at, const uint32_t *p) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(p[0]), "r"(p[1]),
                 "r"(p[2]), "r"(p[3])
                 : "memory");
}
/* A 64 x 64 accumulator in bf16 to a panel, or from registers already packed. */
IDA_DEV void st_packed(uint32_t panel, uint32_t place, const uint32_t *p) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) st_frag(frag_at(panel, place, j), p + 2 * j);
}
template <int N> IDA_DEV void pack_acc(uint32_t *p, const float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) p[i] = bf16_pair(d[2 * i], d[2 * i + 1]);
}
/* tril: elements right of the diagonal become 0. */
IDA_DEV void pack_tril(uint32_t *p, const float (&d)[32], int warp, int lane) {
    const int row = 16 * warp + lane / 4;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int col = 8 * j + 2 * (lane & 3);
        p[2 * j] = bf16_pair(col <= row ? d[4 * j] : 0.0f, col + 1 <= row ? d[4 * j + 1] : 0.0f);
        p[2 * j + 1] = bf16_pair(col <= row + 8 ? d[4 * j + 2] : 0.0f, col + 1 <= row + 8 ? d[4 * j + 3] : 0.0f);
    }
}

template <int N> IDA_DEV void regs_more() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> IDA_DEV void regs_less() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

/* ---- copies */
/* Rows of N neighbouring panels of 64 rows from `rows` on are another sequence's: zeros instead. By `threads` threads, before a
 * barrier. */
template <int N> IDA_DEV void clear_rows(uint32_t panels, int rows, int thread, int threads) {
    for (int i = rows * 8 + thread; i < 512; i += threads)
#pragma unroll
        for (int k = 0; k < N; k++)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(panels + (uint32_t)(k * 8192 + i * 16)), "r"(0)
                         : "memory");
    fence_async();
}
/* A warp loads rows of `cols` bf16, `stride` elements apart, into a panel of 64 rows; the rest zeros. */
IDA_DEV void load_tile(uint32_t panel, const __nv_bfloat16 *from, int64_t stride, int rows, int cols, int lane) {
    const int row = lane >> 3, piece = lane & 7;
    const uint32_t even = panel + (uint32_t)(row * 128 + ((piece ^ row) * 16)),
                   odd = panel + (uint32_t)((row + 4) * 128 + ((piece ^ (row + 4)) * 16));
    const int valid_rows = piece * 8 < cols ? rows : 0;
    const __nv_bfloat16 *at = from + row * stride + piece * 8;
#pragma unroll
    for (int i = 0; i < 16; i++, at += 4 * stride) {
        const bool valid = row + 4 * i < valid_rows;
        cp_async<16>((i & 1 ? odd : even) + (uint32_t)(i / 2 * 1024), valid ? at : from, valid);
    }
}
IDA_DEV uint4 ld_piece(uint32_t panel, int row, int piece) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(panel + (uint32_t)(row * 128 + ((piece ^ (row & 7)) * 16)))
                 : "memory");
    return x;
}
/* A warp's 16 rows of a panel, PIECES pieces from `first`, to global memory. */
template <int PIECES>
IDA_DEV void store_rows(__nv_bfloat16 *to, int64_t stride, uint32_t panel, int first, int rows, int cols, int warp, int lane) {
    const int row = 16 * warp + lane / PIECES, piece = first + lane % PIECES, step = 32 / PIECES;
    uint4 x[16 / step];
#pragma unroll
    for (int i = 0; i < 16 / step; i++) x[i] = ld_piece(panel, row + i * step, piece);
    __nv_bfloat16 *at = to + row * stride + piece * 8;
#pragma unroll
    for (int i = 0; i < 16 / step; i++, at += step * stride)
        if (row + i * step < rows && piece * 8 < cols) *reinterpret_cast<uint4 *>(at) = x[i];
}
IDA_DEV void mbar_init(uint32_t bar, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
IDA_DEV void mbar_arrive(uint32_t bar) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory"); }
IDA_DEV void mbar_expect(uint32_t bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
IDA_DEV void mbar_wait(uint32_t bar, int parity) {
    asm volatile(
        "{ .reg .pred p;\nAGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE: }" ::"r"(bar),
        "r"(parity)
        : "memory");
}
IDA_DEV bool mbar_test(uint32_t bar, int parity) {
    uint32_t done;
    asm volatile("{ .reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}
/* One arrival for a warp, after all its lanes. */
IDA_DEV void warp_arrive(uint32_t bar, int lane) {
    __syncwarp();
    if (lane == 0) mbar_arrive(bar);
}
IDA_DEV void bulk_load(uint32_t to, const void *from, int bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(bar)
                 : "memory");
}
/* 64 rows from `row` on and 64 columns from `col` on of one head of a tensor [N, heads, width] into a panel (mix_maps in
 * mixer.cuh); zeros outside the tensor. */
IDA_DEV void tensor_load(uint32_t panel, const void *map, int col, int head, int row, uint32_t bar) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
            panel),
        "l"(map), "r"(col), "r"(head), "r"(row), "r"(bar)
        : "memory");
}
IDA_DEV void tensor_prefetch(const void *map, int col, int head, int row) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map), "r"(col), "r"(head), "r"(row)
                 : "memory");
}
IDA_DEV void bulk_prefetch(const void *from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
IDA_DEV void bulk_store(void *to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
IDA_DEV void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> IDA_DEV void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
IDA_DEV void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

IDA_DEV void copy16(unsigned char *to, const void *from, int bytes, int thread, int n) {
    for (int i = thread; i < bytes / 16; i += n) reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
}

/* ---- tables */
/* pairs <- t E or t conj(E), in bf16. */
template <bool CONJ> IDA_DEV void times_e(uint32_t *pairs, const float (&t)[64], const float4 *e, int warp, int lane) {
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float4 w = e[((warp * 8 + j) * 2 + half) * 32 + lane];
            const float s = CONJ ? -1.0f : 1.0f;
            const float xr = t[4 * j + 2 * half], yr = t[4 * j + 2 * half + 1];
            const float xi = t[4 * (j + 8) + 2 * half], yi = t[4 * (j + 8) + 2 * half + 1];
            pairs[2 * j + half] = bf16_pair(xr * w.x - s * xi * w.y, yr * w.z - s * yi * w.w);
            pairs[2 * (j + 8) + half] = bf16_pair(xi * w.x + s * xr * w.y, yi * w.z + s * yr * w.w);
        }
}

#endif
