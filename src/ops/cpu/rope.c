/* rope.c - rotary position embedding. The angle of position p is formed from the block of 64 positions that holds p and the
 * place within: cos and sin of both in double, joined by the addition theorem, so a block costs one sin/cos per frequency.
 * Beyond EXACT the product position * frequency has itself lost digits; there each position takes its own sin/cos, as in ref. */
#include "ops/cpu/cpu_ops.h"

#include <assert.h>
#include <math.h>

#include "ops/cpu/simd.h"

enum { BLOCK = 64 };
#define EXACT ((int64_t)1 << 24)

typedef struct rope_args {
    float *y;
    const float *x;
    const ida_seqs *seqs;
    const int64_t *first;  /* [S+1] first task of each sequence */
    const double *freq;    /* [D/2] */
    const double *fine;    /* [BLOCK][2][D/2]: cos, sin of place * freq */
    float *tables;         /* per worker: cos, sin of one position */
    int64_t h, d;
    int sign;
} rope_args;

/* y = [a c - b s ; b c + a s] for the halves a, b of every head. */
static void rotate_token(float *y, const float *x, const float *c, const float *s, int64_t h, int64_t half) {
    for (int64_t j = 0; j < h; j++, x += 2 * half, y += 2 * half)
        for (int64_t i = 0; i < half; i += IDA_VL) {
            int64_t m = ida_min(IDA_VL, half - i);
            vf a = vf_load_n(x + i, m), b = vf_load_n(x + half + i, m), cv = vf_load_n(c + i, m), sv = vf_load_n(s + i, m);
            vf_store_n(y + i, a * cv - b * sv, m);
            vf_store_n(y + half + i, b * cv + a * sv, m);
        }
}

static void rotate_block(void *arg, int64_t task, int worker) {
    const rope_args *a = arg;
    int64_t half = a->d / 2, s = ida_find_seq(a->first, a->seqs->n, task);
    int64_t begin = (task - a->first[s]) * BLOCK, len = a->seqs->cu[s + 1] - a->seqs->cu[s], end = ida_min(len, begin + BLOCK);
    int64_t pos = (a->seqs->pos0 ? a->seqs->pos0[s] : 0) + begin;
    bool exact = pos + BLOCK > EXACT || end - begin == 1;
    double *base_c = (double *)(a->tables + worker * 6 * half), *base_s = base_c + half; /* [half] each, then floats */
    float *c = (float *)(base_s + half), *sn = c + half;
    for (int64_t i = 0; !exact && i < half; i++) {
        base_c[i] = cos((double)pos * a->freq[i]);
        base_s[i] = sin((double)pos * a->freq[i]);
    }
    for (int64_t t = begin; t < end; t++) {
        const double *fc = exact ? NULL : a->fine + (t - begin) * 2 * half;
        for (int64_t i = 0; i < half; i++) {
            double angle = exact ? (double)(pos + t - begin) * a->freq[i] : 0.0;
            double cv = exact ? cos(angle) : base_c[i] * fc[i] - base_s[i] * fc[half + i];
            double sv = exact ? sin(angle) : base_s[i] * fc[i] + base_c[i] * fc[half + i];
            c[i] = (float)cv;
            sn[i] = (float)(a->sign < 0 ? -sv : sv);
        }
        int64_t at = (a->seqs->cu[s] + t) * a->h * a->d;
        rotate_token(a->y + at, a->x + at, c, sn, a->h, half);
    }
}

/* fine[k] for k < BLOCK by the addition theorem on k/2 and k - k/2: six levels deep, so six roundings at most. */
static void fill_fine(double *fine, const double *freq, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        fine[i] = 1.0;
        fine[half + i] = 0.0;
        fine[2 * half + i] = cos(freq[i]);
        fine[3 * half + i] = sin(freq[i]);
    }
    for (int64_t k = 2; k < BLOCK; k++) {
        const double *p = fine + k / 2 * 2 * half, *q = fine + (k - k / 2) * 2 * half;
        double *r = fine + k * 2 * half;
        for (int64_t i = 0; i < half; i++) {
            r[i] = p[i] * q[i] - p[half + i] * q[half + i];
            r[half + i] = p[half + i] * q[i] + p[i] * q[half + i];
        }
    }
}

ida_status IDA_CPU(rope)(const ida_device *dev, ida_act *ya, const ida_act *xa, const ida_seqs *seqs, int64_t h, int64_t d,
                         double theta, int sign) {
    (void)dev;
    float *y = ida_act_real(ya);
    const float *x = ida_act_real(xa);
    assert(d % 2 == 0);
    int64_t half = d / 2;
    int64_t *first = NULL;
    double *trig = NULL;
    float *tables = NULL;
    ida_status st = IDA_OK;
    bool need_fine = false;
    IDA_TRY_GOTO(IDA_ALLOC(first, seqs->n + 1, "rope tasks"));
    first[0] = 0;
    for (int64_t s = 0; s < seqs->n; s++) {
        int64_t len = seqs->cu[s + 1] - seqs->cu[s];
        first[s + 1] = first[s] + ida_div_up(len, BLOCK);
        if (len > 1) need_fine = true;
    }
    IDA_TRY_GOTO(IDA_ALLOC(trig, half * (need_fine ? 1 + 2 * BLOCK : 1), "rope angles"));
    IDA_TRY_GOTO(IDA_ALLOC(tables, ida_workers() * 6 * half, "rope tables"));
    for (int64_t i = 0; i < half; i++) trig[i] = pow(theta, -2.0 * (double)i / (double)d);
    if (need_fine) fill_fine(trig + half, trig, half);
    rope_args a = {y, x, seqs, first, trig, trig + half, tables, h, d, sign};
    ida_parallel(first[seqs->n], rotate_block, &a);
out:
    ida_free(tables);
    ida_free(trig);
    ida_free(first);
    return st;
}
