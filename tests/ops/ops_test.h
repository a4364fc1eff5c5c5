/* ops_test.h - what the op tests share: repeatable random data, memory that ends at an unreadable page, and the rule that an
 * op gives ref's result on every instruction set and the same bits on one thread and on two. fp32 only. */
#ifndef IDA_TESTS_OPS_TEST_H
#define IDA_TESTS_OPS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/rng.h"
#include "core/threads.h"
#include "ops/ops.h"

#define EPS 5.97e-8 /* half a unit in the last place of 1.0f, rounded up */

/* ---- memory: every block ends where an unreadable page begins, and begins after one */
typedef struct block { char *base; size_t bytes; } block;
static block blocks[256];
static int n_blocks;

static inline void *guarded(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page;
    char *base = mmap(NULL, body + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(base != MAP_FAILED);
    assert_true(n_blocks < (int)(sizeof blocks / sizeof *blocks));
    assert_int_equal(mprotect(base, page, PROT_NONE), 0);
    assert_int_equal(mprotect(base + page + body, page, PROT_NONE), 0);
    blocks[n_blocks++] = (block){base, body + 2 * page};
    return base + page + body - (bytes + 3) / 4 * 4;
}
static inline void release_from(int mark) {
    while (n_blocks > mark) {
        n_blocks--;
        munmap(blocks[n_blocks].base, blocks[n_blocks].bytes);
    }
}
static inline float *floats(int64_t n, float value) {
    float *p = guarded((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = value;
    return p;
}
/* Uniform in [-1, 1), a pure function of stream and index. */
static inline void randomise(float *p, int64_t n, uint64_t stream) {
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t u[4];
        ida_philox(IDA_STREAM_TEST, stream, (uint64_t)i, u);
        for (int64_t j = i; j < n && j < i + 4; j++) p[j] = (float)((double)u[j - i] / 2147483648.0 - 1.0);
    }
}
static inline float *uniform(int64_t n, uint64_t stream) {
    float *p = guarded((size_t)n * sizeof *p);
    randomise(p, n, stream);
    return p;
}

/* ---- results of one run: named tensors, each with its own tolerance */
typedef struct tensor {
    const char *name;
    float *p;
    int64_t n;
    double tol, terms; /* error allowed, over the largest of |p| and `terms`: the size of what cancels in it */
} tensor;
typedef struct result { tensor t[12]; int n; } result;

/* An output that must be overwritten: NaN before. */
static inline float *out_set(result *r, const char *name, int64_t n, double tol) {
    float *p = floats(n, NAN);
    r->t[r->n++] = (tensor){name, p, n, tol, 0.0};
    return p;
}
/* An output that is added to: random before, so an overwrite is seen. */
static inline float *out_add(result *r, const char *name, int64_t n, double tol) {
    float *p = uniform(n, 900 + (uint64_t)r->n);
    r->t[r->n++] = (tensor){name, p, n, tol, 0.0};
    return p;
}

static inline float largest(const float *p, int64_t n) {
    float top = 0.0f;
    for (int64_t i = 0; i < n; i++) top = fmaxf(top, fabsf(p[i]));
    return top;
}

/* NULL when a is ref's result b within tolerance; else a description. */
static inline const char *differs(const tensor *a, const tensor *b) {
    static char text[256];
    double top = fmax((double)largest(b->p, b->n), b->terms), worst = 0.0;
    int64_t at = -1;
    for (int64_t i = 0; i < b->n; i++) {
        double e = fabs((double)a->p[i] - (double)b->p[i]);
        if (!(e <= worst)) {
            worst = e;
            at = i;
            if (!(e == e)) break;
        }
    }
    if (at < 0 || worst <= b->tol * top) return NULL;
    snprintf(text, sizeof text, "%s[%lld]: %.9g, ref %.9g, error %.3g of the largest value, allowed %.3g", a->name, (long long)at,
             (double)a->p[at], (double)b->p[at], worst / top, b->tol);
    return text;
}

static inline void assert_same_bits(const char *what, const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s[%lld]: %.9g and %.9g are not the same bits", what, (long long)i, (double)a[i], (double)b[i]);
}

typedef struct shape { int64_t n, d, h, g, variant; } shape;
/* Makes its inputs (the same at every call), runs one op, leaves the outputs in r. */
typedef void op_fn(const ida_device *dev, result *r, const shape *s);

static inline void check_op(const char *what, op_fn *fn, const shape *s) {
    result want = {0};
    int mark = n_blocks;
    fn(&ida_ref_device, &want, s);
    for (int isa = 0; isa < IDA_N_ISA; isa++) {
        const ida_device *dev = ida_cpu_device_for((ida_isa)isa);
        int inner = n_blocks;
        result one = {0}, two = {0};
        if (!dev) continue;
        assert_int_equal(ida_set_threads(1), IDA_OK);
        fn(dev, &one, s);
        assert_int_equal(ida_set_threads(2), IDA_OK);
        fn(dev, &two, s);
        for (int i = 0; i < want.n; i++) {
            assert_same_bits(want.t[i].name, one.t[i].p, two.t[i].p, one.t[i].n);
            const char *e = differs(&one.t[i], &want.t[i]);
            if (e)
                fail_msg("%s on %s, n %lld d %lld h %lld g %lld variant %lld: %s", what, dev->name, (long long)s->n,
                         (long long)s->d, (long long)s->h, (long long)s->g, (long long)s->variant, e);
        }
        release_from(inner);
    }
    release_from(mark);
}

/* Calls body for every instruction set this machine has, with one thread and then with two. */
static inline void on_every_isa(void (*body)(const ida_device *dev)) {
    for (int isa = 0; isa < IDA_N_ISA; isa++) {
        const ida_device *dev = ida_cpu_device_for((ida_isa)isa);
        for (int threads = 1; dev && threads <= 2; threads++) {
            int mark = n_blocks;
            assert_int_equal(ida_set_threads(threads), IDA_OK);
            body(dev);
            release_from(mark);
        }
    }
}

#endif
