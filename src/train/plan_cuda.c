/* plan_cuda.c - what the CUDA backend takes beside what the model and the trainer ask it for: the workspace of matrix products,
 * tables of sequences, and the one block of scratch that all ops share, as large as the most that one of them needs, on a chip
 * that the tuned kernels are for. The layouts are those of src/ops/cuda. Doubles, since only the sum is checked.
 * Not counted: what the driver and the libraries keep for themselves (the context, kernels, some hundred MiB). Guessed: the
 * number of documents in a micro-batch. */
#include <math.h>

#include "train/plan.h"

enum { DOCUMENT = 512 /* tokens, on average */, CHUNK = 64, CHIP = 132 /* multiprocessors work is cut for */, MIB = 1 << 20 };

typedef struct sizes {
    double n, t, rows, docs; /* tokens of a micro-batch and of a row; rows; documents */
    double h, g, dh, m;
    bool bf16;
} sizes;

static sizes sizes_of(const ida_train_options *o) {
    const double rows = (double)o->micro_batch, t = (double)o->seq_len, n = rows * t;
    return (sizes){.n = n, .t = t, .rows = rows, .docs = fmin(n, rows + n / DOCUMENT), .bf16 = o->dtype == IDA_BF16};
}

/* attention.cu: two sums a row. cudnn_sdpa.c: the backward pass that gives the same bits every time keeps 2 bytes for each query,
 * key and head, where all documents are as long as a row; past a quarter of the GPU's memory our own kernels run. */
static double attention_bytes(const sizes *s, double memory_bytes) {
    static const double NOT_KNOWN = 80 * 1024.0 * MIB;
    const double most = (memory_bytes > 0 ? memory_bytes : NOT_KNOWN) / 4, cudnn = 2 * s->n * s->t * s->h;
    const bool suits = s->bf16 && (s->dh == 64 || s->dh == 128) && s->t >= 128 && s->n >= 2048 &&
                       s->t * s->h * s->dh <= INT32_MAX;
    return 8 * s->n * s->h + (suits && cudnn <= most ? cudnn : 0);
}

/* choose_chunk_runs of interdomain.cu: runs of chunks that the wide backward is cut into. */
static double chunk_runs(double chunks, double h) {
    double best = 0, runs = 1;
    for (double n = 1; n <= fmin(chunks, 528); n++) {
        const double cost = ceil(n * h / CHIP) * (ceil(chunks / n) + 3);
        if (n == 1 || cost < best) best = cost, runs = n;
    }
    return runs;
}

/* interdomain.cu, backward: the states before all chunks, in blocks of 64 modes and 64 columns; records of parameter gradients;
 * tables of every group; for more than one block (wide) what the kernels hand on for each chunk, and records of the scan; and
 * where rows are few and long, the states between their parts (at most PARTS of the shapes that were tried). The generic path has
 * the states of one head for each of CTAS blocks, in MOST bytes where that holds one; on the tuned path it stands by in the same
 * memory, and with a run of records for each of its tasks. */
static double interdomain_bytes(const sizes *s) {
    static const double CTAS = 264, TASKS = 528, SLOT = 32768, STATE = 65536, MOST = 4096.0 * MIB, PARTS = 64.0 * MIB;
    const bool tuned = s->bf16 && s->m <= 128 && s->dh <= 128 && fmod(s->dh, 8) == 0;
    const double mb = ceil(s->m / 64), heads = s->h * mb * ceil(s->dh / 64), m = tuned ? 64 * mb : s->m;
    const bool wide = tuned && heads > s->h, parts = tuned && s->t > 8 * CHUNK && s->rows * heads <= CHIP;
    const double record = 128 * m + 2 * m * m + 2 * m, chunks = s->n / CHUNK + s->docs;
    const double cut = fmin(parts ? chunks / 8 + s->docs : s->docs, ceil(TASKS / heads));
    const double runs = wide ? fmax(chunk_runs(chunks, s->h), fmin(s->docs, ceil(TASKS / s->h))) : cut;
    double bytes = 4 * runs * s->h * record + s->g * (8 * (161 + 2 * m) * m + 8 * record + 16 * m * m);
    if (s->h > s->g) bytes += 8 * s->n * s->h * s->dh;
    if (parts) bytes += fmin(PARTS * heads / s->h, 0.75 * chunks * heads * STATE);
    const double each = 4 * (4 * m * s->dh * (ceil(s->t / CHUNK) + 69) + CHUNK * (8 * s->dh + 3 * CHUNK + 8 * m));
    if (wide) bytes += (chunks + s->docs) * s->h * 16384 * (2 * mb + 1 + (mb > 1 ? 4 * mb : 0)) + cut * heads * 66560;
    if (tuned)
        return bytes + s->g * ((wide ? 0 : 32768) + 16384 * mb + 32768 * mb * mb) + fmax((chunks + s->docs) * heads * SLOT, each);
    return bytes + fmax(1, fmin(fmin(CTAS, s->h * s->docs), floor(MOST / each))) * each;
}

/* s4d.cu, backward: records of parameter gradients; tables of every head; where rows are few and long, the states between their
 * parts; work space of the generic path. */
static double s4d_bytes(const sizes *s) {
    enum { MOST_TASKS = 4096, STATE = 32768 };
    const bool tuned = s->bf16 && s->m <= 64 && fmod(s->dh, 8) == 0;
    const double record = 8 * s->m + CHUNK, per = s->h * 2 * ceil(s->dh / (tuned ? 64 : 32));
    const double whole = fmin(s->docs, fmax(1, floor(MOST_TASKS / per))) * per;
    const double parts = tuned && s->t > 8 * CHUNK && s->rows * per < 2 * CHIP ? 4 * CHIP + 2 * per : 0;
    const double tasks = fmax(tuned ? 2 * whole : whole, parts);
    const double work = tuned ? 0 : fmin(whole, 4 * CHIP) * 4 * (4096 + 256 * s->m);
    return 8 * tasks * record + parts * STATE + work +
           s->h * (16 * record + 4 * (CHUNK * CHUNK + 516 * s->m) + 48 * s->m + (tuned ? 106496 : 0));
}

/* stream/bwd.cu: partial sums of parameter gradients; stream/any.cu (other widths): the forms between the parts too. */
static double stream_bytes(const sizes *s, double heads, double width) {
    const double n = s->n, lanes = width == 32 ? 4 : width == 64 ? 8 : width == 96 || width == 128 ? 16 : 32;
    if (width == 32 || width == 64 || width == 96 || width == 128 || width == 192 || width == 256) {
        const double room = CHIP * 256 / lanes, times = ceil(ceil(n / 512) * heads / room);
        return fmin(ceil(n / 3), fmax(1, times * room / heads)) * heads * width * 4 * 7;
    }
    return 4 * n * heads * ((s->bf16 ? 5 : 3) * width + 2) + fmin(256, ceil(n / 64)) * heads * width * 4 * 7;
}

/* The embedding's gradient: tokens sorted by id, sums of every 32. The gain's gradient of a norm. Sums of squares. */
static double small_bytes(const sizes *s, double d, double parameters) {
    const double embed = 24 * s->n + s->n / 4 * d + MIB, threads = ceil(d / (s->bf16 ? 8 : 4) / 32) * 32;
    const double norm = fmin(s->n / 4, CHIP * floor(1024 / fmin(threads, 512))) * d * 4;
    return fmax(fmax(embed, norm), parameters / 4096 + MIB);
}

double ida_plan_cuda_scratch(const ida_train_options *o, int64_t memory_bytes, const ida_train_plan *plan) {
    enum { STEP = 2 * MIB, PRODUCTS = 64 * MIB }; /* cuda_device.h */
    const ida_config *c = &o->config;
    sizes s = sizes_of(o);
    double most = small_bytes(&s, (double)c->d_model, (double)plan->parameters);
    for (int64_t i = 0; i < c->n_layers; i++) {
        const ida_plan_shape sh = ida_plan_shape_of(c, i);
        s.h = (double)sh.h, s.g = (double)sh.g, s.dh = (double)sh.dh, s.m = (double)sh.m;
        if (sh.softmax) most = fmax(most, attention_bytes(&s, (double)memory_bytes));
        else most = fmax(most, sh.linear ? s4d_bytes(&s) : interdomain_bytes(&s));
        most = fmax(most, stream_bytes(&s, s.h, s.dh));
        if (c->output_norm) most = fmax(most, stream_bytes(&s, s.h, (double)sh.hw));
    }
    return PRODUCTS + ceil(most / STEP) * STEP;
}

double ida_plan_cuda_tables(const ida_train_options *o) {
    enum { ENTRIES = 4 }; /* seqs.cu */
    const sizes s = sizes_of(o);
    return ENTRIES * 1.25 * (16 * (s.docs + 1) + 4 * s.n + 1024);
}
