/* plan_cpu.c - the most that one op of the CPU device, or the writing of a checkpoint, borrows for the length of a call; and an
 * allowance for small tables. The layouts are those of src/ops/cpu and src/io, which name what they allocate. Doubles, since only
 * the sum is checked.
 * Not counted: OpenBLAS's own buffers. Taken for granted: a sequence is as long as a row, chunks have their full length, and
 * documents may begin at every token. */
#include <math.h>

#include "core/threads.h"
#include "train/plan.h"

enum { CHUNK = 64, PARTIALS = 64 /* most blocks of a sum */, TABLE = 16 /* floats: the struct of a table */ };
/* What is held in small pieces: names and places of tensors, paths, the log; and malloc rounds large blocks up to pages. */
enum { TABLES = 64 << 10 };

typedef struct sizes {
    int64_t n, t, workers, vl, mr; /* tokens of a micro-batch, of a row; floats of a vector, rows of a tile */
    int64_t h, g, dh, m;
} sizes;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to; }
static int64_t pad(const sizes *s, int64_t n) { return up(n, s->vl) * s->vl; }
static int64_t ld(int64_t n) { return (up(n, 16) | 1) * 16; } /* smm_ld */

/* attention.c: blocks of one head per worker; backward with grouped keys also the gradients of every head. */
static double attention_bytes(const sizes *s) {
    enum { SPAN = 4 * CHUNK };
    const int64_t dp = pad(s, s->dh), t = up(s->t, CHUNK) * CHUNK;
    const int64_t fwd = (2 * SPAN + 2 * CHUNK) * dp + s->mr * CHUNK + 2 * SPAN;
    const int64_t bwd = 3 * t * dp + t + 5 * CHUNK * dp + 2 * CHUNK * CHUNK;
    const double heads = s->h > s->g ? 2.0 * (double)s->n * (double)(s->h * s->dh) : 0;
    const double forward = 4.0 * (double)(s->workers * fwd) + 8.0 * (double)(s->n + 1);
    return fmax(forward, 4.0 * ((double)s->workers * (double)bwd + heads));
}

/* mixer.c, interdomain_bwd.c (forward takes less): tables of every group; per worker, and once for sequences that are cut over
 * chunks, the states of a window of chunks (8 to 64, near 32 MiB) and of every window's start; records; sums in double. */
static double chunked_bytes(const sizes *s) {
    const int64_t mp = pad(s, s->m), m2 = 2 * mp, ldm = ld(m2), w = pad(s, s->dh), ldw = ld(w), rows = pad(s, least(s->t, CHUNK)),
                  ldc = ld(rows), state = 2 * w * ldm, record = (5 + up(2 * w, 32) + s->m) * m2, kv = 2 * rows * ldw;
    const int64_t share = s->n / 2 / s->workers * s->g, whole = s->workers == 1 ? s->t : most(share, 4 * CHUNK);
    const bool staged = s->t > whole;
    const int64_t chunks = up(s->t, CHUNK), window = least(chunks, most(8, least(64, (32 << 20) / 4 / state)));
    const double table = (double)((CHUNK + CHUNK / 2 + 1 + pad(s, CHUNK)) * ldm + m2 * ld(pad(s, CHUNK)) + m2 * ldm +
                                  ld(4 * s->m) + TABLE);
    const double building = (double)(s->workers * (2 * mp * ldm + ld(16 * s->m)));
    const double work = (double)(2 * w * ldc + 4 * rows * ldw + 3 * rows * ldc + 4 * rows * ldm + m2 * ldm + 2 * m2 * ldw);
    const double starts = (double)(up(least(s->t, whole), CHUNK) / window);
    const double each = work + ((double)(window + 3) + starts) * (double)state + (double)(record + kv + 4 * mp * ldm);
    const double cut = (double)(2 * window + 2 + chunks / window) * (double)state + (double)(window * (record + kv));
    const double sums = (double)(least(most(64, 4 * s->workers), s->n * s->g) + s->g) * (double)((2 + s->m) * m2);
    return 4 * ((double)s->g * table + building + (double)s->workers * each + (staged ? cut : 0)) + 8 * sums;
}

/* s4d.c, backward: tables of every head; per worker the states of a window of chunks and of every window's start; sums. */
static double s4d_bytes(const sizes *s) {
    enum { COLS = 32, LDX = COLS + 16, WINDOW = 64, WAVE = 256 };
    const int64_t m2 = 2 * pad(s, s->m), ldm = ld(m2), rows = pad(s, CHUNK), ldc = ld(rows), x = m2 * LDX;
    const int64_t blocks = 2 * up(s->dh, COLS);
    const double table = (double)((2 * CHUNK + 1 + s->mr + rows) * ldm + rows * ldc + ld(8 * s->m) + TABLE);
    const double starts = (double)(up(s->t, CHUNK) / WINDOW + 1);
    const double each = (double)(3 * rows * LDX + (COLS + rows) * ldc + 2 * rows * ldm + 2 * COLS * ldm) +
                        ((double)(2 + WINDOW) + starts) * (double)x;
    const double sums = (fmin(WAVE, (double)s->n * (double)(s->h * blocks)) + (double)s->h) * (double)(10 * s->m + CHUNK);
    return 4 * ((double)s->h * table + (double)s->workers * (each + (double)ld(16 * s->m))) + 8 * sums;
}

/* Blocks of a sum over tokens that leave partial sums of rows of `width` elements. */
static double partial_blocks(const sizes *s, int64_t width) {
    return (double)up(s->n, most(most(1, 16384 / width), up(s->n, PARTIALS)));
}

/* ref/stream.c, backward, for one of q, k, v: its forms between projection and core, and what its widest part borrows. */
static double stream_bytes(const sizes *s, int64_t heads, bool conv, bool rope, bool norm) {
    const int64_t width = heads * s->dh;
    const double blocks = partial_blocks(s, width), d = (double)width;
    double part = 0;
    if (norm) part = 4 * (blocks + 1) * 2 * d;
    if (conv) part = fmax(part, 4 * (9 + 5 * (blocks + 1)) * d);
    if (rope) part = fmax(part, (double)(8 * (s->n + 1) + 4 * s->dh * (1 + 2 * CHUNK) + 12 * s->workers * s->dh));
    return conv || rope || norm ? 4 * (double)s->n * (4 * d + 2 * (double)heads) + part : 0;
}

static double layer_bytes(const sizes *s, const ida_plan_shape *sh, bool rope) {
    const double core = sh->softmax ? attention_bytes(s) : sh->linear ? s4d_bytes(s) : chunked_bytes(s);
    const double q = sh->query ? stream_bytes(s, sh->h, sh->conv_q, rope, false) : 0;
    const double k = stream_bytes(s, sh->g, sh->conv_k, rope, !sh->softmax);
    const double v = stream_bytes(s, sh->g, sh->conv_v, false, !sh->softmax);
    const double output_norm = 4 * (partial_blocks(s, sh->ow) + 1) * 2 * (double)sh->ow;
    return fmax(fmax(core, q), fmax(fmax(k, v), output_norm));
}

double ida_plan_cpu_scratch(const ida_train_options *o, int64_t n_tensors) {
    const ida_config *c = &o->config;
    const ida_isa isa = ida_cpu_isa();
    sizes s = {.n = o->micro_batch * o->seq_len, .t = o->seq_len, .workers = ida_workers(),
               .vl = isa == IDA_ISA_AVX512 ? 16 : isa == IDA_ISA_AVX2 ? 8 : 4, .mr = isa == IDA_ISA_AVX512 ? 8 : 4};
    double bytes = 8.0 * ((double)s.n + (double)c->vocab_size); /* embed.c: lists of a batch's tokens */
    bytes = fmax(bytes, 4 * partial_blocks(&s, c->d_model) * (double)c->d_model);
    for (int64_t i = 0; i < c->n_layers; i++) {
        const ida_plan_shape sh = ida_plan_shape_of(c, i);
        s.h = sh.h, s.g = sh.g, s.dh = sh.dh, s.m = sh.m;
        bytes = fmax(bytes, layer_bytes(&s, &sh, c->rope));
    }
    return TABLES + 2.0 * sizeof(ida_config) + 512.0 * (double)n_tensors + fmax(bytes, ida_plan_save_buffers(n_tensors));
}
