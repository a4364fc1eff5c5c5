/* ops_loss.c - ops_check of what the training loop calls beside the model: cross_entropy, sqsum, adamw. */
#include <math.h>
#include <stdio.h>

#include "ops_check.h"

/* ---- cross_entropy */
typedef struct loss { int64_t n, v; double scale; } loss;
static ida_status call_cross_entropy(const ida_device *dev, void *const *p, const void *args) {
    const loss *s = args;
    return dev->ops->cross_entropy(dev, p[0], p[1], p[2], s->n, s->v, s->scale);
}
/* Rows that are not numbers, or far from zero. */
static void odd_rows(const kase *k, array *x, array *targets, int64_t v) {
    for (int64_t r = 0; r < x->n / v && v > 2; r++)
        for (int64_t i = 0; i < v; i++) {
            const double old = (double)x->value[r * v + i];
            double y = old;
            if (r == 1) y = old + 1e4;
            if (r == 2) y = old - 1e4;
            if (r == 3 && i % 3 == 1) y = -INFINITY;
            if (r == 4) y = -INFINITY;
            if (r == 5 && i == v / 2) y = NAN;
            if (r == 6 && i == v - 1) y = INFINITY;
            if (r == 7) y = i == targets->ints[7] ? -100 : old * 40; /* a target of probability 1 would leave rounding alone */
            if (r == 8) y = 3;
            set(k, x, r * v + i, y);
        }
    if (v > 2 && targets->n > 3) targets->ints[3] = 1; /* a target of probability 0 */
}
void check_cross_entropy(checker *c) {
    static const int64_t shapes[][2] = {{0, 5},     {1, 5},     {3, 1},    {7, 1000},  {33, 32000},
                                        {5, 50257}, {130, 259}, {64, 512}, {3, 128256}};
    static const double scales[] = {0, 1, 1.0 / 4096};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int way = 0; way < 6; way++) { /* scales; the last three with odd rows or without losses */
            const loss s = {.n = shapes[i][0], .v = shapes[i][1], .scale = scales[way % 3]};
            const bool odd = way >= 3 && s.v > 2 && s.n > 3, losses = odd || way < 3;
            kase k;
            begin_case(&k, c, call_cross_entropy, &s, "n %d vocab %d scale %g%s%s", (int)s.n, (int)s.v, s.scale,
                       odd ? ", odd rows" : "", losses ? "" : ", no losses");
            if (losses) out(&k, "losses", REAL, s.n)->per_element = odd;
            else absent(&k);
            array *logits = s.scale == 0 ? in(&k, "logits", ACT, s.n * s.v, 0.5, 2) : inout(&k, "logits", ACT, s.n * s.v, 0.5, 2);
            logits->per_element = true;
            if (c->bf16) logits->tol = 1e-4;
            array *targets = in_ints(&k, "targets", s.n, 0, s.v);
            for (int64_t r = 0; r < s.n; r++)
                if (r % 7 == 5 && !odd) targets->ints[r] = -1;
            if (odd) odd_rows(&k, logits, targets, s.v);
            run_case(&k);
        }
}

/* ---- sqsum */
typedef struct sums { int64_t n, n_spans; ida_span spans[16]; } sums;
static ida_status call_sqsum(const ida_device *dev, void *const *p, const void *args) {
    const sums *s = args;
    return dev->ops->sqsum(dev, p[0], p[1], s->spans, s->n_spans);
}
void check_sqsum(checker *c) {
    static const sums list[] = {
        {0, 0, {{0, 0}}},
        {1, 1, {{0, 1}}},
        {1000, 5, {{0, 1000}, {1, 999}, {3, 0}, {500, 500}, {7, 13}}},
        {2000003, 6, {{0, 2000003}, {1, 1}, {17, 1000001}, {2000002, 1}, {1000, 65536}, {33, 4096}}},
        {4096, 3, {{0, 4096}, {16, 2048}, {4095, 1}}},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int odd = 0; odd < 2; odd++) {
            kase k;
            begin_case(&k, c, call_sqsum, &list[i], "n %d, %d spans%s", (int)list[i].n, (int)list[i].n_spans,
                       odd ? ", odd elements" : "");
            out(&k, "sums", HOST_F64, list[i].n_spans)->per_element = true;
            array *x = in(&k, "x", REAL, list[i].n, 0, 1);
            if (odd && x->n >= 1000) set(&k, x, 2, 1e30), set(&k, x, 700, NAN), set(&k, x, 999, INFINITY), set(&k, x, 10, 1e-30);
            run_case(&k);
        }
}

/* ---- adamw */
typedef struct step { int64_t n; ida_adamw_args a; bool w; } step;
static ida_status call_adamw(const ida_device *dev, void *const *p, const void *args) {
    step s = *(const step *)args;
    s.a.w = s.w ? p[4] : NULL;
    return dev->ops->adamw(dev, p[0], p[1], p[2], p[3], s.n, &s.a);
}
static const char *w_is_p_rounded(const kase *k, double *const *got) {
    static char text[120];
    for (int64_t i = 0; k->a[4].name && i < k->a[0].n; i++) {
        const double want = k->c->bf16 ? bf16_of(got[0][i]) : got[0][i];
        if (got[4][i] == want) continue;
        snprintf(text, sizeof text, "w[%lld] is %.9g, p is %.9g", (long long)i, got[4][i], got[0][i]);
        return text;
    }
    return NULL;
}
void check_adamw(checker *c) {
    static const int64_t lengths[] = {0, 1, 7, 1000, 4099, 100003};
    static const ida_adamw_args recipes[] = {
        {.lr = 0.3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .gscale = 1, .t = 1},
        {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0, .gscale = 0.01, .t = 1000},
        {.lr = 0.003, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-3, .weight_decay = 0.1, .gscale = 3, .t = 7},
        {.lr = 0, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .gscale = 1, .t = 100000},
    };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int way = 0; way < 8; way++) {
            const step s = {.n = lengths[i], .a = recipes[way / 2], .w = way % 2};
            kase k;
            begin_case(&k, c, call_adamw, &s, "n %d, t %lld%s", (int)s.n, (long long)s.a.t, s.w ? ", w" : "");
            k.extra = w_is_p_rounded;
            inout(&k, "p", REAL, s.n, 0, 1);
            inout(&k, "m", REAL, s.n, 0, s.a.t == 1 ? 0 : 0.1);
            array *v = inout(&k, "v", REAL, s.n, 0, s.a.t == 1 ? 0 : 0.1), *g = in(&k, "g", REAL, s.n, 0, 1);
            v->per_element = true;
            for (int64_t j = 0; j < s.n; j++) {
                set(&k, v, j, s.a.t == 1 ? 0 : pow(0.05 + fabs((double)v->value[j]), 2));
                if (j % 11 == 3) set(&k, g, j, 0);
                if (j % 11 == 4) set(&k, g, j, 1e-12);
            }
            if (s.w) {
                /* one p near a rounding edge of bf16 may fall to either side: w_is_p_rounded is exact */
                out(&k, "w", ACT, s.n)->tol = 1e-4;
            } else {
                absent(&k);
            }
            run_case(&k);
        }
}
