/* rng.c - Philox4x32-10 draws, normals and a keyed permutation.
 * Invariant: every value is bit-equal on any machine. So log and cos are evaluated here by fixed polynomials with only
 * + - * / and sqrt, which IEEE 754 rounds one way, and the Makefile builds this file with -ffp-contract=off: libm and fused
 * operations differ between machines. */
#include "core/rng.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include <Random123/philox.h>

/* Draws of the permutation never meet draws of the same stream. */
#define PERMUTE_STREAM ((uint64_t)1 << 63)

void ida_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]) {
    philox4x32_ctr_t c = {{(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};
    philox4x32_key_t k = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    philox4x32_ctr_t r = philox4x32_R(10, c, k);
    memcpy(out, r.v, 4 * sizeof out[0]);
}

static uint64_t bits53(uint32_t lo, uint32_t hi) { return (((uint64_t)hi << 32) | lo) >> 11; }

double ida_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t r[4];
    ida_philox(seed, stream, index, r);
    return (double)bits53(r[0], r[1]) * 0x1p-53;
}

/* ln x of a positive normal number: x = m 2^e, m in [sqrt(1/2), sqrt 2), ln m = 2 atanh((m-1)/(m+1)). */
static double fixed_log(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    int e = (int)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    double m;
    memcpy(&m, &u, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double f = (m - 1.0) / (m + 1.0), s = f * f, p = 1.0 / 23.0;
    for (int k = 21; k >= 3; k -= 2) p = p * s + 1.0 / (double)k;
    return (double)e * 0.69314718055994530942 + (2.0 * f + 2.0 * f * (s * p));
}

/* cos(2 pi u), u in [0, 1): the quarter turn nearest to u is taken out exactly, the rest is at most an eighth of a turn. */
static double fixed_cos_turns(double u) {
    static const double cos_series[] = {-1.0 / 2.0, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40320.0, -1.0 / 3628800.0,
                                        1.0 / 479001600.0, -1.0 / 87178291200.0, 1.0 / 20922789888000.0};
    static const double sin_series[] = {-1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362880.0, -1.0 / 39916800.0,
                                        1.0 / 6227020800.0, -1.0 / 1307674368000.0, 1.0 / 355687428096000.0};
    int q = (int)(u * 4.0 + 0.5);
    double x = (u - 0.25 * (double)q) * 6.28318530717958647693, s = x * x;
    bool odd = (q & 1) != 0;
    const double *a = odd ? sin_series : cos_series;
    double p = a[7];
    for (int k = 6; k >= 0; k--) p = p * s + a[k];
    double v = odd ? x + x * (s * p) : 1.0 + s * p;
    return q == 1 || q == 2 ? -v : v;
}

double ida_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t r[4];
    ida_philox(seed, stream, index, r);
    double u1 = (double)(bits53(r[0], r[1]) + 1) * 0x1p-53; /* (0, 1]: the logarithm is finite */
    double u2 = (double)bits53(r[2], r[3]) * 0x1p-53;
    return sqrt(-2.0 * fixed_log(u1)) * fixed_cos_turns(u2);
}

/* Balanced Feistel network on 2*half bits; walks on until the value is below n (fewer than 4 steps on average). */
uint64_t ida_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t i) {
    if (n <= 1) return 0;
    int bits = 64 - __builtin_clzll(n - 1);
    int half = (bits + 1) / 2;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t v = i;
    do {
        uint64_t left = v >> half, right = v & mask;
        for (uint64_t round = 0; round < 8; round++) {
            uint32_t r[4];
            ida_philox(seed, stream ^ PERMUTE_STREAM, (round << 32) | right, r);
            uint64_t next = left ^ (r[0] & mask);
            left = right;
            right = next;
        }
        v = (left << half) | right;
    } while (v >= n);
    return v;
}
