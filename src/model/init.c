/* init.c - initial values (docs/method.md, end of section 3). Element j of tensor i is a pure function of (seed, i, j): the same
 * on every machine with the same libm and for any thread count. Not here: which tensors there are and how they begin (the rows of
 * layers/). */
#include "model/model.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "core/threads.h"

static const double PI = 3.14159265358979323846;

typedef struct fill { ida_start start; uint64_t seed, stream; real *out; int64_t n; } fill;

enum { FILL_BLOCK = 16384 }; /* a multiple of 4 */

/* Elements 4i .. 4i+3 of a stream: two Box-Muller pairs from the four words of one Philox block. */
static void normal4(uint64_t seed, uint64_t stream, uint64_t i, double z[4]) {
    uint32_t w[4];
    ida_philox(seed, stream, i, w);
    for (int k = 0; k < 4; k += 2) {
        double r = sqrt(-2 * log(((double)w[k] + 1) * 0x1p-32)), t = 2 * PI * 0x1p-32 * (double)w[k + 1];
        z[k] = r * cos(t);
        z[k + 1] = r * sin(t);
    }
}

static void fill_task(void *arg, int64_t task, int worker) {
    (void)worker;
    const fill *f = arg;
    int64_t begin = task * FILL_BLOCK, end = begin + FILL_BLOCK < f->n ? begin + FILL_BLOCK : f->n;
    if (f->start.law == IDA_LAW_NORMAL) {
        double z[4];
        for (int64_t j = begin; j < end; j += 4) {
            normal4(f->seed, f->stream, (uint64_t)j / 4, z);
            for (int64_t k = 0; k < 4 && j + k < end; k++) f->out[j + k] = (real)(f->start.a * z[k]);
        }
        return;
    }
    const ida_start s = f->start;
    for (int64_t j = begin; j < end; j++)
        f->out[j] = (real)(s.law == IDA_LAW_UNIFORM ? s.a + s.b * ida_uniform(f->seed, f->stream, (uint64_t)j) : s.a);
}

/* What the laws of the rows do not say. */
static ida_status init_layers(const ida_layers *all, const ida_param_table *t, real *block) {
    ida_reals_at at = {0};
    ida_status st = IDA_OK;
    IDA_TRY(IDA_ALLOC(at.parts, all->n, "initial values"));
    ida_reals_bind(t, block, &at);
    for (int64_t i = 0; i < all->n && st == IDA_OK; i++)
        if (all->at[i].kind->init) st = all->at[i].kind->init(&all->at[i], at.parts[i].w);
    ida_free(at.parts);
    return st;
}

ida_status ida_param_init(const ida_config *cfg, const ida_param_table *t, uint64_t seed, real *block) {
    for (int64_t i = 0; i < t->n; i++) {
        const ida_param *p = &t->params[i];
        const int64_t end = i + 1 < t->n ? t->params[i + 1].offset : t->block;
        real *out = block + p->offset;
        fill f = {.start = p->start, .seed = seed, .stream = (uint64_t)IDA_STREAM_INIT + (uint64_t)i, .out = out, .n = p->numel};
        if (p->start.law != IDA_LAW_OWN) ida_parallel((f.n + FILL_BLOCK - 1) / FILL_BLOCK, fill_task, &f);
        memset(out + p->numel, 0, (size_t)(end - p->offset - p->numel) * sizeof *out);
    }
    ida_layers all;
    IDA_TRY(ida_layers_build(cfg, &all));
    const ida_status st = init_layers(&all, t, block);
    ida_layers_free(&all);
    return st;
}
