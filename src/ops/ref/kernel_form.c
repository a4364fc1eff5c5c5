/* kernel_form.c - the ideal form of the method (docs/method.md section 7): causal kernel attention of one head through a
 * HiPPO-LegS projection of its history, and the two sums it approaches. A study, forward only, double only; no layer uses it.
 * Invariant: after t tokens the state is the exact projection of the piecewise-constant history on the first m scaled Legendre
 * functions of [0, t]; the only approximation is that m is finite. */
#include "ops/ops.h"

#ifndef IDA_REAL_IS_FLOAT

#include <math.h>
#include "core/mem.h"
#include "core/rng.h"

/* Random Fourier features of exp(-|x-y|^2/2): sqrt(2/F) [cos(w_i.x) ; sin(w_i.x)], i < F/2, w_i standard normal. */
static void features(double *xi, const double *x, const double *freq, int64_t dim, int64_t n_feat) {
    const int64_t half = n_feat / 2;
    const double scale = sqrt(1.0 / (double)half);
    for (int64_t i = 0; i < half; i++) {
        double angle = 0;
        for (int64_t j = 0; j < dim; j++) angle += freq[i * dim + j] * x[j];
        xi[i] = scale * cos(angle);
        xi[half + i] = scale * sin(angle);
    }
}

static void frequencies(double *freq, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) freq[i] = ida_normal(seed, IDA_STREAM_STUDY, (uint64_t)i);
}

/* p[0..n] = Legendre P_0..P_n at y. */
static void legendre(double *p, int64_t n, double y) {
    p[0] = 1;
    if (n >= 1) p[1] = y;
    for (int64_t i = 1; i < n; i++) p[i + 1] = ((double)(2 * i + 1) * y * p[i] - (double)i * p[i - 1]) / (double)(i + 1);
}

/* Gauss-Legendre nodes and weights of order n on [-1, 1], by Newton. p has room for n+1. */
static void gauss_legendre(double *node, double *weight, double *p, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double y = cos(M_PI * ((double)i + 0.75) / ((double)n + 0.5)), slope = 1;
        for (int it = 0; it < 100; it++) {
            legendre(p, n, y);
            slope = (double)n * (p[n - 1] - y * p[n]) / (1 - y * y);
            const double step = p[n] / slope;
            y -= step;
            if (fabs(step) < 1e-15) break;
        }
        legendre(p, n, y);
        slope = (double)n * (p[n - 1] - y * p[n]) / (1 - y * y);
        node[i] = y;
        weight[i] = 2 / ((1 - y * y) * slope * slope);
    }
}

/* The step from t-1 to t tokens, c_t = E c_{t-1} + b f_t:
 *   E_ij = (1/t) int_0^{t-1} phi_i(x; t) phi_j(x; t-1) dx   exact with m Gauss nodes (degree i+j <= 2m-2), lower triangular
 *   b_i  = (1/t) int_{t-1}^t phi_i(x; t) dx                 closed form
 * phi_i(x; t) = sqrt(2i+1) P_i(2x/t - 1). old [m nodes, m] = phi_j(.; t-1) at the nodes; p has room for m+2. */
static void legs_step(double *e, double *b, const double *node, const double *weight, const double *old, double *p, int64_t m,
                      int64_t t) {
    const double shrink = (double)(t - 1) / (double)t, edge = 1 - 2 / (double)t;
    for (int64_t i = 0; i < m * m; i++) e[i] = 0;
    for (int64_t k = 0; k < m && t > 1; k++) {
        legendre(p, m, shrink * (node[k] + 1) - 1);
        for (int64_t i = 0; i < m; i++) {
            const double left = 0.5 * shrink * weight[k] * p[i] * sqrt((double)(2 * i + 1));
            for (int64_t j = 0; j <= i; j++) e[i * m + j] += left * old[k * m + j];
        }
    }
    legendre(p, m + 1, edge);
    for (int64_t i = 0; i < m; i++) /* int_edge^1 P_i = (P_{i-1} - P_{i+1})(edge) / (2i+1) */
        b[i] = i == 0 ? 1 / (double)t : 0.5 * (p[i - 1] - p[i + 1]) / sqrt((double)(2 * i + 1));
}

/* c = E c + b f^T on [m, width], rows from the last up: E is lower triangular. */
static void project(double *c, const double *e, const double *b, const double *f, int64_t m, int64_t width) {
    for (int64_t i = m - 1; i >= 0; i--) {
        for (int64_t n = 0; n < width; n++) c[i * width + n] = e[i * m + i] * c[i * width + n] + b[i] * f[n];
        for (int64_t j = 0; j < i; j++)
            for (int64_t n = 0; n < width; n++) c[i * width + n] += e[i * m + j] * c[j * width + n];
    }
}

enum { MAX_DIM = 1 << 20 };

static ida_status check_sizes(int64_t n, int64_t dk, int64_t dv, int64_t m, int64_t n_feat) {
    IDA_FAIL_IF(n < 0, IDA_E_ARG, "kernel form: %lld tokens, give at least 0", (long long)n);
    IDA_FAIL_IF(dk < 1 || dv < 1 || dk > MAX_DIM || dv > MAX_DIM, IDA_E_ARG,
                "kernel form: key size %lld, value size %lld, give 1 to %d", (long long)dk, (long long)dv, MAX_DIM);
    IDA_FAIL_IF(m < 1 || m > 4096, IDA_E_ARG, "kernel form: basis size %lld, give 1 to 4096", (long long)m);
    IDA_FAIL_IF(n_feat < 2 || n_feat % 2 || n_feat > MAX_DIM, IDA_E_ARG,
                "kernel form: %lld random features, give an even number from 2 to %d", (long long)n_feat, MAX_DIM);
    return IDA_OK;
}

ida_status ida_kernel_form_fwd(double *o, const double *q, const double *k, const double *v, int64_t n, int64_t dk, int64_t dv,
                               int64_t m, int64_t n_feat, uint64_t seed) {
    IDA_TRY(check_sizes(n, dk, dv, m, n_feat));
    const int64_t width = n_feat + dv;
    double *freq;
    IDA_TRY(IDA_ALLOC(freq, n_feat / 2 * dk + 2 * m + (m + 2) + 2 * m * m + m + 2 * width + m * width, "kernel form"));
    double *node = freq + n_feat / 2 * dk, *weight = node + m, *p = weight + m, *old = p + m + 2, *e = old + m * m,
           *b = e + m * m;
    double *f = b + m, *xi = f + width, *c = xi + width; /* f = [xi(k) ; v];  c = [u ; gamma], [m,width] */
    ida_status st = IDA_OK;
    frequencies(freq, n_feat / 2 * dk, seed);
    gauss_legendre(node, weight, p, m);
    for (int64_t i = 0; i < m; i++) {
        legendre(p, m, node[i]);
        for (int64_t j = 0; j < m; j++) old[i * m + j] = p[j] * sqrt((double)(2 * j + 1));
    }
    for (int64_t i = 0; i < m * width; i++) c[i] = 0;
    for (int64_t t = 0; t < n; t++) {
        features(f, k + t * dk, freq, dk, n_feat);
        for (int64_t j = 0; j < dv; j++) f[n_feat + j] = v[t * dv + j];
        legs_step(e, b, node, weight, old, p, m, t + 1);
        project(c, e, b, f, m, width);
        features(xi, q + t * dk, freq, dk, n_feat);
        double mass = 0; /* eta is the projection of 1, (1, 0, 0, ...): the denominator is xi(q).u_0 */
        for (int64_t j = 0; j < dv; j++) o[t * dv + j] = 0;
        for (int64_t i = 0; i < m; i++) {
            double score = 0;
            for (int64_t j = 0; j < n_feat; j++) score += xi[j] * c[i * width + j];
            if (i == 0) mass = score;
            for (int64_t j = 0; j < dv; j++) o[t * dv + j] += score * c[i * width + n_feat + j];
        }
        for (int64_t j = 0; j < dv; j++) {
            o[t * dv + j] /= mass;
            if (!isfinite(o[t * dv + j]))
                IDA_FAIL_GOTO(IDA_E_NUMERIC, "kernel form: the mean kernel at token %lld is %g; use more features or nearer keys",
                              (long long)t, mass);
        }
    }
out:
    ida_free(freq);
    return st;
}

ida_status ida_kernel_form_exact(double *o, const double *q, const double *k, const double *v, int64_t n, int64_t dk, int64_t dv,
                                 int64_t n_feat, uint64_t seed, bool exact_kernel) {
    IDA_TRY(check_sizes(n, dk, dv, 1, exact_kernel ? 2 : n_feat));
    const int64_t n_freq = exact_kernel ? 0 : n_feat / 2 * dk, row = exact_kernel ? 0 : n_feat;
    double *freq;
    int64_t room;
    IDA_FAIL_IF(!ida_mul64(n, row, &room), IDA_E_ARG, "kernel form: %lld tokens of %lld features overflow", (long long)n,
                (long long)row);
    IDA_TRY(IDA_ALLOC(freq, n_freq + row + room, "kernel form, exact"));
    double *xq = freq + n_freq, *xk = xq + row;
    ida_status st = IDA_OK;
    frequencies(freq, n_freq, seed);
    for (int64_t t = 0; t < n; t++) {
        double mass = 0;
        if (!exact_kernel) {
            features(xq, q + t * dk, freq, dk, n_feat);
            features(xk + t * row, k + t * dk, freq, dk, n_feat);
        }
        for (int64_t j = 0; j < dv; j++) o[t * dv + j] = 0;
        for (int64_t s = 0; s <= t; s++) {
            double weight = 0;
            if (exact_kernel) {
                for (int64_t j = 0; j < dk; j++) weight += (q[t * dk + j] - k[s * dk + j]) * (q[t * dk + j] - k[s * dk + j]);
                weight = exp(-0.5 * weight);
            } else {
                for (int64_t j = 0; j < n_feat; j++) weight += xq[j] * xk[s * row + j];
            }
            mass += weight;
            for (int64_t j = 0; j < dv; j++) o[t * dv + j] += weight * v[s * dv + j];
        }
        for (int64_t j = 0; j < dv; j++) {
            o[t * dv + j] /= mass;
            if (!isfinite(o[t * dv + j]))
                IDA_FAIL_GOTO(IDA_E_NUMERIC, "kernel attention: the kernel sum at token %lld is %g; use nearer keys",
                              (long long)t, mass);
        }
    }
out:
    ida_free(freq);
    return st;
}

#endif
