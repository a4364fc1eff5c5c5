/* ops_rows.c - ops_check of the ops that work on rows: embed, linear, rmsnorm, project, headnorm, featmap, swiglu, casts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/bf16.h"
#include "ops_check.h"

typedef struct rows { int64_t n, d, v, h; bool add; } rows; /* v: vocabulary, or outputs of a product */

/* ---- embed */
static ida_status call_embed_fwd(const ida_device *dev, void *const *p, const void *args) {
    const rows *s = args;
    const ida_matrix table = ida_matrix_of(dev, p[2], s->v, s->d);
    return dev->ops->embed_fwd(dev, p[0], p[1], &table, s->n);
}
static ida_status call_embed_bwd(const ida_device *dev, void *const *p, const void *args) {
    const rows *s = args;
    return dev->ops->embed_bwd(dev, p[0], p[1], p[2], s->n, s->v, s->d);
}
static const rows embed_rows[] = {
    {.n = 0, .v = 5, .d = 7},        {.n = 1, .v = 5, .d = 1},        {.n = 33, .v = 5, .d = 64},
    {.n = 301, .v = 1000, .d = 7},   {.n = 2048, .v = 300, .d = 768}, {.n = 4099, .v = 1, .d = 32},
    {.n = 500, .v = 50257, .d = 64}, {.n = 129, .v = 32000, .d = 13}, {.n = 65, .v = 40, .d = 2048},
};
void check_embed_fwd(checker *c) {
    for (size_t i = 0; i < sizeof embed_rows / sizeof *embed_rows; i++) {
        const rows s = embed_rows[i];
        kase k;
        begin_case(&k, c, call_embed_fwd, &s, "n %d vocab %d d %d", (int)s.n, (int)s.v, (int)s.d);
        out(&k, "y", ACT, s.n * s.d)->exact = true;
        in_ints(&k, "ids", s.n, 0, s.v);
        in(&k, "table", ACT, s.v * s.d, 0, 1);
        run_case(&k);
    }
}
void check_embed_bwd(checker *c) {
    for (size_t i = 0; i < sizeof embed_rows / sizeof *embed_rows; i++) {
        const rows s = embed_rows[i];
        kase k;
        begin_case(&k, c, call_embed_bwd, &s, "n %d vocab %d d %d", (int)s.n, (int)s.v, (int)s.d);
        add(&k, "dtable", REAL, s.v * s.d);
        in_ints(&k, "ids", s.n, 0, s.v);
        in(&k, "dy", ACT, s.n * s.d, 0.1, 1);
        run_case(&k);
    }
}

/* ---- linear: d = in, v = out */
static ida_status call_linear_fwd(const ida_device *dev, void *const *p, const void *args) {
    const rows *s = args;
    const ida_matrix w = ida_matrix_of(dev, p[2], s->v, s->d);
    return dev->ops->linear_fwd(dev, p[0], p[1], &w, p[3], s->n);
}
static ida_status call_linear_own(const ida_device *dev, void *const *p, const void *args) { /* c = y */
    const rows *s = args;
    const ida_matrix w = ida_matrix_of(dev, p[2], s->v, s->d);
    return dev->ops->linear_fwd(dev, p[0], p[1], &w, p[0], s->n);
}
static ida_status call_linear_bwd(const ida_device *dev, void *const *p, const void *args) {
    const rows *s = args;
    const ida_matrix w = ida_matrix_of(dev, p[4], s->v, s->d);
    return dev->ops->linear_bwd(dev, p[0], p[1], p[2], p[3], &w, s->n, s->add);
}
static const rows linear_rows[] = {
    {.n = 0, .d = 7, .v = 5},       {.n = 1, .d = 1, .v = 1},      {.n = 1, .d = 64, .v = 128},  {.n = 3, .d = 7, .v = 5},
    {.n = 129, .d = 64, .v = 192},  {.n = 37, .d = 768, .v = 257}, {.n = 512, .d = 256, .v = 256}, {.n = 64, .d = 2048, .v = 96},
    {.n = 1, .d = 2056, .v = 2049}, {.n = 2, .d = 520, .v = 33},   {.n = 3, .d = 264, .v = 17},  {.n = 4, .d = 24, .v = 40},
    {.n = 1, .d = 8, .v = 1},       {.n = 1, .d = 5504, .v = 65},  {.n = 4, .d = 5504, .v = 31}, {.n = 4, .d = 6152, .v = 9},
    {.n = 3, .d = 16, .v = 0},      {.n = 2, .d = 2304, .v = 8},   {.n = 4, .d = 20000, .v = 9}, {.n = 1, .d = 80000, .v = 5},
    {.n = 3, .d = 40000, .v = 9},   {.n = 5, .d = 72, .v = 100},
    /* of few rows of x: several rows of w a warp */
    {.n = 1, .d = 768, .v = 9001},  {.n = 2, .d = 2056, .v = 4801}, {.n = 3, .d = 520, .v = 9001}, {.n = 4, .d = 5504, .v = 8707},
    {.n = 1, .d = 8, .v = 5000},    {.n = 4, .d = 8, .v = 9001},
    {.n = 5, .d = 64, .v = 1000},   {.n = 127, .d = 40, .v = 24},  {.n = 4096, .d = 32, .v = 48}, {.n = 130, .d = 36, .v = 500},
};
void check_linear_fwd(checker *c) {
    for (size_t i = 0; i < sizeof linear_rows / sizeof *linear_rows; i++)
        for (int way = 0; way < 3; way++) {
            const rows s = linear_rows[i];
            kase k;
            begin_case(&k, c, way == 2 ? call_linear_own : call_linear_fwd, &s, "n %d in %d out %d, %s", (int)s.n, (int)s.d,
                       (int)s.v,
                       way == 0   ? "no c"
                       : way == 1 ? "c"
                                  : "c = y");
            if (way < 2) out(&k, "y", ACT, s.n * s.v);
            else inout(&k, "y", ACT, s.n * s.v, 0, sqrt((double)s.d));
            k.a[0].scale = sqrt((double)s.d);
            in(&k, "x", ACT, s.n * s.d, 0.1, 1);
            in(&k, "w", ACT, s.v * s.d, 0, 1);
            if (way == 1) in(&k, "c", ACT, s.n * s.v, 0, sqrt((double)s.d));
            else absent(&k);
            run_case(&k);
        }
}
void check_linear_bwd(checker *c) {
    for (size_t i = 0; i < sizeof linear_rows / sizeof *linear_rows; i++)
        for (int way = 0; way < 4; way++) { /* dx and dw; dx added; dw alone; dx alone */
            rows s = linear_rows[i];
            s.add = way == 1;
            kase k;
            begin_case(&k, c, call_linear_bwd, &s, "n %d in %d out %d, %s", (int)s.n, (int)s.d, (int)s.v,
                       way == 0 ? "dx, dw" : way == 1 ? "dx +=, dw" : way == 2 ? "dw" : "dx");
            if (way == 2) absent(&k);
            else if (s.add) add(&k, "dx", ACT, s.n * s.d);
            else out(&k, "dx", ACT, s.n * s.d);
            if (way == 3) absent(&k);
            else add(&k, "dw", REAL, s.v * s.d)->tol = s.n > 1000 ? 1e-4 : 1e-5;
            in(&k, "dy", ACT, s.n * s.v, 0.1, 1);
            in(&k, "x", ACT, s.n * s.d, 0.1, 1);
            in(&k, "w", ACT, s.v * s.d, 0, 1);
            run_case(&k);
        }
}

/* ---- rmsnorm, headnorm: the saved rstd is what the forward pass gives */
static const double EPS = 1e-5;
static void fill_rstd(const kase *k, array *rstd, const array *x, int64_t d) {
    for (int64_t t = 0; t < rstd->n; t++) {
        double s = 0;
        for (int64_t i = 0; i < d; i++) s += (double)x->value[t * d + i] * (double)x->value[t * d + i];
        set(k, rstd, t, 1 / sqrt(s / (double)d + EPS));
    }
}
/* Rows of many sizes, one of zeros. */
static void scale_rows(const kase *k, array *x, int64_t d) {
    for (int64_t t = 0; t * d < x->n; t++)
        for (int64_t i = 0; i < d; i++)
            set(k, x, t * d + i, (double)x->value[t * d + i] * (t == 3 ? 0 : pow(4, (double)(t % 5) - 2)));
}
static ida_status call_rmsnorm_fwd(const ida_device *dev, void *const *p, const void *args) {
    const rows *s = args;
    return dev->ops->rmsnorm_fwd(dev, p[0], p[1], p[2], p[3], s->n, s->d, EPS);
}
static ida_status call_rmsnorm_bwd(const ida_device *dev, void *const *p, const void *args) {
    const rows *s = args;
    return dev->ops->rmsnorm_bwd(dev, p[0], p[1], p[2], p[3], p[4], p[5], s->n, s->d);
}
static const rows norm_rows[] = {
    {.n = 0, .d = 64},    {.n = 1, .d = 1},      {.n = 5, .d = 7},     {.n = 7, .d = 64},
    {.n = 301, .d = 768}, {.n = 67, .d = 2048},  {.n = 3001, .d = 64}, {.n = 9, .d = 4100},
    {.n = 33, .d = 1027}, {.n = 1030, .d = 256}, {.n = 2, .d = 16384}, {.n = 1, .d = 2048},
    {.n = 16, .d = 776},  {.n = 17, .d = 768},   {.n = 2, .d = 4096},
};
void check_rmsnorm_fwd(checker *c) {
    for (size_t i = 0; i < sizeof norm_rows / sizeof *norm_rows; i++) {
        const rows s = norm_rows[i];
        kase k;
        begin_case(&k, c, call_rmsnorm_fwd, &s, "n %d d %d", (int)s.n, (int)s.d);
        out(&k, "y", ACT, s.n * s.d);
        out(&k, "rstd", REAL, s.n)->per_element = true;
        scale_rows(&k, in(&k, "x", ACT, s.n * s.d, 0.1, 1.5), s.d);
        in(&k, "g", REAL, s.d, 1, 0.3);
        run_case(&k);
    }
}
void check_rmsnorm_bwd(checker *c) {
    for (size_t i = 0; i < sizeof norm_rows / sizeof *norm_rows; i++) {
        const rows s = norm_rows[i];
        kase k;
        begin_case(&k, c, call_rmsnorm_bwd, &s, "n %d d %d", (int)s.n, (int)s.d);
        add(&k, "dx", ACT, s.n * s.d)->scale = s.d == 1; /* terms of size 1 cancel */
        add(&k, "dg", REAL, s.d)->tol = s.n > 1000 ? 1e-4 : 1e-5;
        in(&k, "dy", ACT, s.n * s.d, 0.1, 1);
        array *x = in(&k, "x", ACT, s.n * s.d, 0.1, 1.5);
        in(&k, "g", REAL, s.d, 1, 0.3);
        fill_rstd(&k, in(&k, "rstd", REAL, s.n, 0, 0), x, s.d);
        run_case(&k);
    }
}

/* ---- project: d = in, v = out of each product, h = products, whose arrays lie one after another in one. REVERSED: they are
 * asked for from the last to the first, so that none follows another. */
enum { IN_ORDER, REVERSED, GATED, WAYS };
enum { P_Y, P_ALONE, P_X, P_GAIN, P_W, P_GATE_W };
typedef struct projection { rows s; int way; } projection;
/* Work space that starts as NaN. */
static ida_status work_space(const ida_device *dev, void **out, int64_t n, int64_t size) {
    IDA_TRY(ida_dev_alloc(dev, out, n, size, "work space"));
    void *nan = must_alloc(n, (size_t)size);
    memset(nan, 0xff, (size_t)(n * size));
    const ida_status st = ida_dev_upload(dev, *out, nan, n * size);
    free(nan);
    return st;
}
/* Rows [row, row + n) of all products, or of `only` one. */
static ida_status run_products(const ida_device *dev, void *const *p, const projection *c, ida_project_args *a, ida_act *y,
                               ida_act *gate, int64_t row, int only) {
    const rows *s = &c->s;
    ida_product products[IDA_MOST_PRODUCTS];
    ida_matrix w_of[IDA_MOST_PRODUCTS], gate_w_of[IDA_MOST_PRODUCTS];
    int n = 0;
    for (int64_t i = 0; i < s->h; i++) {
        const int64_t at = c->way == REVERSED ? s->h - 1 - i : i, w = at * s->v * s->d;
        if (only >= 0 && at != only) continue;
        w_of[n] = ida_matrix_of(dev, ida_act_at(dev, p[P_W], w), s->v, s->d);
        gate_w_of[n] = ida_matrix_of(dev, ida_act_at(dev, p[P_GATE_W], w), s->v, s->d);
        products[n] = (ida_product){.y = ida_act_at(dev, y, (at * s->n + row) * s->v), .w = &w_of[n]};
        if (c->way == GATED) products[n].gate = gate, products[n].gate_w = &gate_w_of[n];
        n++;
    }
    a->x = ida_act_at(dev, p[P_X], row * s->d);
    return dev->ops->project(dev, products, n, a);
}
/* All at once, then each row of each product alone. */
static ida_status call_project(const ida_device *dev, void *const *p, const void *args) {
    const projection *c = args;
    const rows *s = &c->s;
    void *xn = NULL, *rstd = NULL, *gate = NULL;
    ida_status st = work_space(dev, &xn, s->n * s->d, ida_act_bytes(dev, 1));
    if (st == IDA_OK) st = work_space(dev, &rstd, s->n, sizeof(real));
    if (st == IDA_OK) st = work_space(dev, &gate, s->n * s->v, ida_act_bytes(dev, 1));
    ida_project_args a = {.gain = p[P_GAIN], .xn = xn, .rstd = rstd, .n = s->n, .eps = EPS};
    if (st == IDA_OK) st = run_products(dev, p, c, &a, p[P_Y], gate, 0, -1);
    a.n = 1;
    for (int64_t row = 0; row < s->n && p[P_ALONE]; row++)
        for (int i = 0; i < s->h && st == IDA_OK; i++) st = run_products(dev, p, c, &a, p[P_ALONE], gate, row, i);
    ida_dev_free(dev, xn);
    ida_dev_free(dev, rstd);
    ida_dev_free(dev, gate);
    return st;
}
static const char *rows_as_alone(const kase *k, double *const *got) {
    return memcmp(got[P_Y], got[P_ALONE], (size_t)k->a[P_Y].n * sizeof(double)) ? "not the bits of each row and product alone"
                                                                                 : NULL;
}
/* Of bf16: the roundings of xn and y, and of gate and up. */
static void judge_project(kase *k) {
    for (int i = P_Y; i <= P_ALONE && k->c->bf16; i++)
        k->a[i].naive = 0x1p-9 * sqrt(((const projection *)k->args)->way == GATED ? 5 : 2);
}
/* Odd numbers of products: the two calls of a case take the kernel's sizes, which alternate, in another order. */
static const rows project_rows[] = {
    {.n = 1, .d = 2048, .v = 160, .h = 3}, {.n = 1, .d = 768, .v = 9001, .h = 3},  {.n = 2, .d = 520, .v = 33, .h = 3},
    {.n = 3, .d = 5504, .v = 17, .h = 1},  {.n = 4, .d = 264, .v = 9001, .h = 1},  {.n = 4, .d = 20000, .v = 9, .h = 1},
    {.n = 5, .d = 768, .v = 40, .h = 4},   {.n = 1, .d = 80000, .v = 5, .h = 3},   {.n = 1, .d = 9, .v = 7, .h = 2},
    {.n = 2, .d = 8, .v = 1, .h = 1},      {.n = 1, .d = 4104, .v = 5000, .h = 1}, {.n = 130, .d = 64, .v = 96, .h = 4},
    {.n = 3, .d = 24, .v = 40, .h = 3},    {.n = 2, .d = 2056, .v = 4801, .h = 1}, {.n = 0, .d = 64, .v = 8, .h = 2},
};
void check_project(checker *c) {
    for (size_t i = 0; i < sizeof project_rows / sizeof *project_rows; i++)
        for (int way = 0; way < WAYS; way++) {
            const projection s = {project_rows[i], way};
            const int64_t n = s.s.n, d = s.s.d, v = s.s.v, h = s.s.h;
            const bool few = c->bf16 && n <= 4 && d % 8 == 0;
            kase k;
            begin_case(&k, c, call_project, &s, "n %d in %d out %d x %d, %s", (int)n, (int)d, (int)h, (int)v,
                       way == GATED ? "gated" : way == REVERSED ? "reversed" : "in order");
            k.judge = judge_project;
            out(&k, "y", ACT, h * n * v);
            if (few) out(&k, "y alone", ACT, h * n * v), k.extra = rows_as_alone;
            else absent(&k);
            array *x = in(&k, "x", ACT, n * d, 0.1, 1.5);
            scale_rows(&k, x, d);
            if (n == 2) set(&k, x, d / 2, 1e30); /* whose square is no float */
            in(&k, "gain", REAL, d, 1, 0.3);
            in(&k, "w", ACT, h * v * d, 0, 1 / sqrt((double)d));
            if (way == GATED) in(&k, "gate_w", ACT, h * v * d, 0, 2 / sqrt((double)d));
            else absent(&k);
            run_case(&k);
        }
}

static ida_status call_headnorm_fwd(const ida_device *dev, void *const *p, const void *args) {
    const rows *s = args;
    return dev->ops->headnorm_fwd(dev, p[0], p[1], p[2], p[3], p[4], s->n, s->h, s->d, EPS);
}
static ida_status call_headnorm_bwd(const ida_device *dev, void *const *p, const void *args) {
    const rows *s = args;
    return dev->ops->headnorm_bwd(dev, p[0], p[1], p[2], p[3], p[4], p[5], p[6], s->n, s->h, s->d);
}
static ida_status call_featmap_fwd(const ida_device *dev, void *const *p, const void *args) {
    const rows *s = args;
    return dev->ops->featmap_fwd(dev, p[0], p[1], p[2], s->n, s->h, s->d, 1e-6);
}
static ida_status call_featmap_bwd(const ida_device *dev, void *const *p, const void *args) {
    const rows *s = args;
    return dev->ops->featmap_bwd(dev, p[0], p[1], p[2], p[3], s->n, s->h, s->d);
}
static const rows head_rows[] = {
    {.n = 0, .h = 2, .d = 64},   {.n = 1, .h = 1, .d = 1},    {.n = 1, .h = 3, .d = 16},   {.n = 5, .h = 3, .d = 13},
    {.n = 67, .h = 12, .d = 64}, {.n = 33, .h = 4, .d = 96},  {.n = 21, .h = 2, .d = 128}, {.n = 1501, .h = 2, .d = 64},
    {.n = 9, .h = 1, .d = 256},  {.n = 40, .h = 32, .d = 48},
};
void check_headnorm_fwd(checker *c) {
    for (size_t i = 0; i < sizeof head_rows / sizeof *head_rows; i++)
        for (int bias = 0; bias < 2; bias++) {
            const rows s = head_rows[i];
            kase k;
            begin_case(&k, c, call_headnorm_fwd, &s, "n %d h %d d %d%s", (int)s.n, (int)s.h, (int)s.d, bias ? ", bias" : "");
            out(&k, "y", ACT, s.n * s.h * s.d);
            out(&k, "rstd", REAL, s.n * s.h)->per_element = true;
            scale_rows(&k, in(&k, "x", ACT, s.n * s.h * s.d, 0.1, 1.5), s.d);
            in(&k, "g", REAL, s.d, 1, 0.3);
            if (bias) in(&k, "b", REAL, s.h * s.d, 0, 0.5);
            else absent(&k);
            run_case(&k);
        }
}
void check_headnorm_bwd(checker *c) {
    for (size_t i = 0; i < sizeof head_rows / sizeof *head_rows; i++)
        for (int bias = 0; bias < 2; bias++) {
            const rows s = head_rows[i];
            const double tol = s.n > 1000 ? 1e-4 : 1e-5;
            kase k;
            begin_case(&k, c, call_headnorm_bwd, &s, "n %d h %d d %d%s", (int)s.n, (int)s.h, (int)s.d, bias ? ", bias" : "");
            out(&k, "dx", ACT, s.n * s.h * s.d)->scale = s.d == 1;
            add(&k, "dg", REAL, s.d)->tol = tol;
            if (bias) add(&k, "db", REAL, s.h * s.d)->tol = tol;
            else absent(&k);
            in(&k, "dy", ACT, s.n * s.h * s.d, 0.1, 1);
            array *x = in(&k, "x", ACT, s.n * s.h * s.d, 0.1, 1.5);
            in(&k, "g", REAL, s.d, 1, 0.3);
            fill_rstd(&k, in(&k, "rstd", REAL, s.n * s.h, 0, 0), x, s.d);
            run_case(&k);
        }
}
void check_featmap_fwd(checker *c) {
    for (size_t i = 0; i < sizeof head_rows / sizeof *head_rows; i++) {
        const rows s = head_rows[i];
        kase k;
        begin_case(&k, c, call_featmap_fwd, &s, "n %d h %d d %d", (int)s.n, (int)s.h, (int)s.d);
        out(&k, "y", ACT, s.n * s.h * s.d);
        out(&k, "rinv", REAL, s.n * s.h)->per_element = true;
        array *x = in(&k, "x", ACT, s.n * s.h * s.d, 0, 1.5);
        scale_rows(&k, x, s.d);
        if (x->n > 200) set(&k, x, 100, -1e4), set(&k, x, 150, 1e4);
        run_case(&k);
    }
}
void check_featmap_bwd(checker *c) {
    for (size_t i = 0; i < sizeof head_rows / sizeof *head_rows; i++) {
        const rows s = head_rows[i];
        kase k;
        begin_case(&k, c, call_featmap_bwd, &s, "n %d h %d d %d", (int)s.n, (int)s.h, (int)s.d);
        out(&k, "dx", ACT, s.n * s.h * s.d)->scale = s.d == 1;
        in(&k, "dy", ACT, s.n * s.h * s.d, 0.1, 1);
        array *x = in(&k, "x", ACT, s.n * s.h * s.d, 0, 1.5), *rinv = in(&k, "rinv", REAL, s.n * s.h, 0, 0);
        if (x->n > 200) set(&k, x, 100, -1e4);
        for (int64_t r = 0; r < rinv->n; r++) {
            double sum = 0;
            for (int64_t j = 0; j < s.d; j++) {
                const double v = (double)x->value[r * s.d + j], y = v / (1 + exp(-v));
                sum += y * y;
            }
            set(&k, rinv, r, 1 / sqrt(sum + 1e-6));
        }
        run_case(&k);
    }
}

/* ---- swiglu; d: which argument the output shares memory with */
enum { ALONE, WITH_G, WITH_U };
static ida_status call_swiglu_fwd(const ida_device *dev, void *const *p, const void *args) {
    const rows *s = args;
    void *g = s->d == WITH_G ? p[0] : p[1], *u = s->d == WITH_U ? p[0] : p[2];
    return dev->ops->swiglu_fwd(dev, p[0], g, u, s->n);
}
static ida_status call_swiglu_bwd(const ida_device *dev, void *const *p, const void *args) {
    const rows *s = args;
    void *dy = s->d == WITH_G ? p[0] : s->d == WITH_U ? p[1] : p[2];
    return dev->ops->swiglu_bwd(dev, p[0], p[1], dy, p[3], p[4], s->n);
}
static const int64_t lengths[] = {0, 1, 7, 8, 1000, 4097, 100003};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };
void check_swiglu_fwd(checker *c) {
    for (int i = 0; i < N_LENGTHS; i++)
        for (int way = ALONE; way <= WITH_U; way++) {
            const rows s = {.n = lengths[i], .d = way};
            kase k;
            begin_case(&k, c, call_swiglu_fwd, &s, "n %d%s", (int)s.n,
                       way == WITH_G   ? ", y = g"
                       : way == WITH_U ? ", y = u"
                                       : "");
            if (way == ALONE) out(&k, "y", ACT, s.n);
            else inout(&k, "y", ACT, s.n, 0, 2);
            array *g = in(&k, "g", ACT, s.n, 0, 2);
            in(&k, "u", ACT, s.n, 0, 1);
            if (s.n > 100) set(&k, g, 50, -1e4), set(&k, g, 51, -89), set(&k, g, 52, 89);
            run_case(&k);
        }
}
void check_swiglu_bwd(checker *c) {
    for (int i = 0; i < N_LENGTHS; i++)
        for (int way = ALONE; way <= WITH_U; way++) {
            const rows s = {.n = lengths[i], .d = way};
            kase k;
            begin_case(&k, c, call_swiglu_bwd, &s, "n %d%s", (int)s.n,
                       way == WITH_G   ? ", dg = dy"
                       : way == WITH_U ? ", du = dy"
                                       : "");
            for (int o = 0; o < 2; o++) {
                if (way == o + 1) inout(&k, o ? "du" : "dg", ACT, s.n, 0.1, 1);
                else out(&k, o ? "du" : "dg", ACT, s.n);
            }
            if (way == ALONE) in(&k, "dy", ACT, s.n, 0.1, 1);
            else absent(&k);
            array *g = in(&k, "g", ACT, s.n, 0, 2);
            in(&k, "u", ACT, s.n, 0, 1);
            if (s.n > 100) set(&k, g, 50, -1e4), set(&k, g, 51, -89), set(&k, g, 52, 89);
            run_case(&k);
        }
}

/* ---- casts: exact, with ties, subnormals, infinities, NaN and what rounds to infinity */
static ida_status call_to_act(const ida_device *dev, void *const *p, const void *args) {
    return dev->ops->to_act(dev, p[0], p[1], ((const rows *)args)->n);
}
static ida_status call_from_act(const ida_device *dev, void *const *p, const void *args) {
    return dev->ops->from_act(dev, p[0], p[1], ((const rows *)args)->n);
}
static void fill_special(const kase *k, array *x) {
    static const uint32_t bits[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0x00000001, 0x00008000, 0x00018000,
                                    0x007fffff, 0x7f7fffff, 0x7f7f8000, 0x7f7f7fff, 0x7f800000, 0xff800000, 0x7f800001,
                                    0x7fc00000, 0xffc12345, 0x80000000, 0xbf808000, 0x80008001};
    for (int64_t i = 0; i < x->n && i < (int64_t)(sizeof bits / sizeof *bits); i++) {
        float f;
        memcpy(&f, &bits[i], sizeof f);
        set(k, x, i, (double)f);
    }
}
static void check_cast(checker *c, call_fn *call, type from, type to) {
    for (int i = 0; i < N_LENGTHS; i++) {
        const rows s = {.n = lengths[i]};
        kase k;
        begin_case(&k, c, call, &s, "n %d", (int)s.n);
        out(&k, "y", to, s.n)->exact = true;
        fill_special(&k, in(&k, "x", from, s.n, 0, 100));
        run_case(&k);
    }
}
void check_to_act(checker *c) { check_cast(c, call_to_act, REAL, ACT); }
void check_from_act(checker *c) { check_cast(c, call_from_act, ACT, REAL); }
