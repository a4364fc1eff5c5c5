/* ops_case.c - one case of ops_check: arrays, the two runs on the device, the comparison. */
#include "ops_check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bf16.h"
#include "core/rng.h"

/* Guard bytes before an array keep 32-byte alignment and no more. */
enum { FRONT = 256 + 32, BACK = 256, POISON = 0xff, SHOWN_FAILURES = 6, FEW = 8, THIN_FIRST = 24, THIN_STEP = 7 };

const seq_set seq_sets[] = {
    {"no sequence", 0, {0}, {0}},
    {"empty", 3, {0, 0, 0, 0}, {0, 4, 5}},
    {"one token", 1, {0, 1}, {1000000}},
    {"one token each", 5, {0, 1, 2, 3, 4, 5}, {7, 0, 1000000, 4095, 123456789}},
    {"one token or none", 4, {0, 1, 1, 2, 3}, {7, 3, 1000000, 0}},
    {"odd", 1, {0, 37}, {0}},
    {"several", 7, {0, 0, 1, 4, 4, 67, 131, 131}, {3, 1000000, 0, 9, 4095, 1000003, 1}},
    {"long", 3, {0, 129, 131, 390}, {123456789, 0, 1000000}},
};
const int n_seq_sets = sizeof seq_sets / sizeof *seq_sets;

void must(ida_status st) {
    if (st == IDA_OK) return;
    fprintf(stderr, "ops_check: %s\n", ida_last_error());
    exit(4);
}

void *must_alloc(int64_t n, size_t size) {
    void *p = calloc((size_t)n + 1, size);
    if (!p) {
        fprintf(stderr, "ops_check: no memory for %lld elements\n", (long long)n);
        exit(4);
    }
    return p;
}

double bf16_of(double x) { return (double)ida_bf16_to_f32(ida_f32_to_bf16((float)x)); }
double normal(checker *c) { return ida_normal(7, IDA_STREAM_TEST, c->seed++); }

static bool half(const kase *k, const array *a) { return k->c->bf16 && a->type == ACT; }
static size_t size_of(const kase *k, const array *a) {
    return a->type == HOST_F64 ? sizeof(double) : half(k, a) ? sizeof(uint16_t) : sizeof(float);
}

void begin_case(kase *k, checker *c, call_fn *call, const void *args, const char *label, ...) {
    va_list ap;
    memset(k, 0, sizeof *k);
    k->c = c, k->call = call, k->args = args;
    va_start(ap, label);
    vsnprintf(k->label, sizeof k->label, label, ap);
    va_end(ap);
}

static array *new_array(kase *k, const char *name, type t, role r, int64_t n) {
    if (k->n == MAX_ARRAYS) exit(4);
    array *a = &k->a[k->n++];
    *a = (array){.name = name, .type = t, .role = r, .n = n, .tol = t == HOST_F64 ? 1e-12 : 1e-5, .scale = n <= FEW ? 0.5 : 0};
    a->value = must_alloc(n, sizeof(float));
    a->ints = must_alloc(t == I32 ? n : 0, sizeof(int32_t));
    a->want = must_alloc(n, sizeof(double));
    if (r == OUT) memset(a->value, POISON, (size_t)n * sizeof(float));
    return a;
}

void set(const kase *k, array *a, int64_t i, double x) { a->value[i] = (float)(half(k, a) ? bf16_of(x) : x); }
void poison(array *a, int64_t i) { memset(&a->value[i], POISON, sizeof(float)); }
static bool is_poison(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u == 0xffffffffu;
}

static array *filled(kase *k, const char *name, type t, role r, int64_t n, double mean, double sd) {
    array *a = new_array(k, name, t, r, n);
    for (int64_t i = 0; i < n; i++) set(k, a, i, mean + sd * normal(k->c));
    return a;
}
array *in(kase *k, const char *name, type t, int64_t n, double mean, double sd) { return filled(k, name, t, IN, n, mean, sd); }
array *inout(kase *k, const char *name, type t, int64_t n, double mean, double sd) {
    return filled(k, name, t, INOUT, n, mean, sd);
}
array *out(kase *k, const char *name, type t, int64_t n) { return new_array(k, name, t, OUT, n); }
array *add(kase *k, const char *name, type t, int64_t n) { return new_array(k, name, t, ADD, n); }
array *in_ints(kase *k, const char *name, int64_t n, int64_t low, int64_t high) {
    array *a = new_array(k, name, I32, IN, n);
    for (int64_t i = 0; i < n; i++)
        a->ints[i] = (int32_t)(low + (int64_t)(ida_uniform(8, IDA_STREAM_TEST, k->c->seed++) * (double)(high - low)));
    return a;
}
void absent(kase *k) {
    if (k->n == MAX_ARRAYS) exit(4);
    k->a[k->n++] = (array){.name = NULL};
}

double distance(const double *x, const double *truth, int64_t n) {
    double diff = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        diff += (x[i] - truth[i]) * (x[i] - truth[i]);
        size += truth[i] * truth[i];
    }
    return sqrt(diff / (size > 0 ? size : 1));
}

/* ---- the reference */
static ida_status reference(kase *k) {
    void *p[MAX_ARRAYS] = {NULL};
    for (int i = 0; i < k->n; i++) {
        array *a = &k->a[i];
        if (!a->name) continue;
        p[i] = a->ints;
        if (a->type == I32) continue;
        p[i] = must_alloc(a->n, size_of(k, a) == sizeof(double) ? sizeof(double) : sizeof(float));
        if (a->type != HOST_F64) memcpy(p[i], a->value, (size_t)a->n * sizeof(float));
    }
    const ida_status st = k->call(&ida_ref_device, p, k->args);
    for (int i = 0; i < k->n; i++) {
        array *a = &k->a[i];
        if (!a->name || a->type == I32) continue;
        double sum = 0;
        for (int64_t j = 0; j < a->n; j++) {
            a->want[j] = a->type == HOST_F64 ? ((double *)p[i])[j] : (double)((float *)p[i])[j];
            if (a->type != HOST_F64 && is_poison(((float *)p[i])[j])) memset(&a->want[j], POISON, sizeof(double));
            sum += a->want[j] * a->want[j];
        }
        for (int64_t j = 0; j < a->n && a->role == ADD; j++) {
            set(k, a, j, (sum > 0 ? sqrt(sum / (double)a->n) : 1) * normal(k->c));
            a->want[j] += (double)a->value[j];
        }
        free(p[i]);
    }
    return st;
}

/* ---- the device */
static double element(const kase *k, const array *a, const unsigned char *image, int64_t i) {
    const unsigned char *p = image + FRONT + (size_t)i * size_of(k, a);
    uint16_t h;
    float f;
    double d;
    if (a->type == HOST_F64) return memcpy(&d, p, sizeof d), d;
    if (half(k, a)) return memcpy(&h, p, sizeof h), (double)ida_bf16_to_f32(h);
    return memcpy(&f, p, sizeof f), (double)f;
}

static void set_image(const kase *k, array *a, unsigned char *image, int64_t i, float x) {
    unsigned char *p = image + FRONT + (size_t)i * size_of(k, a);
    const uint16_t h = ida_f32_to_bf16(x);
    if (is_poison(x)) memset(p, POISON, size_of(k, a));
    else if (half(k, a)) memcpy(p, &h, sizeof h);
    else memcpy(p, &x, sizeof x);
}

static int64_t image_bytes(const kase *k, const array *a) { return FRONT + BACK + a->n * (int64_t)size_of(k, a); }

static void make_images(kase *k) {
    for (int i = 0; i < k->n; i++) {
        array *a = &k->a[i];
        if (!a->name) continue;
        a->image = must_alloc(image_bytes(k, a), 1), a->got = must_alloc(image_bytes(k, a), 1);
        memset(a->image, POISON, (size_t)image_bytes(k, a));
        if (a->type == I32 && a->n > 0) memcpy(a->image + FRONT, a->ints, (size_t)a->n * sizeof(int32_t));
        for (int64_t j = 0; j < a->n && a->type != I32 && a->type != HOST_F64; j++) set_image(k, a, a->image, j, a->value[j]);
    }
}

/* The reference on the images: unpacked to float, run, packed again. */
static ida_status emulate(kase *k) {
    void *p[MAX_ARRAYS] = {NULL};
    for (int i = 0; i < k->n; i++) {
        array *a = &k->a[i];
        if (!a->name) continue;
        memcpy(a->got, a->image, (size_t)image_bytes(k, a));
        p[i] = a->got + FRONT;
        if (a->type == I32 || a->type == HOST_F64) continue;
        float *f = p[i] = must_alloc(a->n, sizeof(float));
        for (int64_t j = 0; j < a->n; j++) {
            f[j] = (float)element(k, a, a->image, j);
            if (is_poison(a->value[j])) memset(&f[j], POISON, sizeof *f);
        }
    }
    const ida_status st = k->call(&ida_ref_device, p, k->args);
    for (int i = 0; i < k->n; i++) {
        array *a = &k->a[i];
        if (!a->name || a->type == I32 || a->type == HOST_F64) continue;
        for (int64_t j = 0; j < a->n; j++) set_image(k, a, a->got, j, ((float *)p[i])[j]);
        free(p[i]);
    }
    return st;
}

/* Uploads the images, runs, fills got. */
static ida_status on_device(kase *k) {
    const ida_device *dev = k->c->dev;
    void *p[MAX_ARRAYS] = {NULL};
    if (k->c->emulated) return emulate(k);
    for (int i = 0; i < k->n; i++) {
        array *a = &k->a[i];
        if (!a->name) continue;
        if (a->type == HOST_F64) {
            memcpy(a->got, a->image, (size_t)image_bytes(k, a));
            p[i] = a->got + FRONT;
            continue;
        }
        if (!a->at) IDA_TRY(ida_dev_alloc(dev, &a->at, image_bytes(k, a), 1, a->name));
        IDA_TRY(ida_dev_upload(dev, a->at, a->image, image_bytes(k, a)));
        p[i] = (char *)a->at + FRONT;
    }
    IDA_TRY(k->call(dev, p, k->args));
    IDA_TRY(ida_dev_sync(dev));
    for (int i = 0; i < k->n; i++) {
        array *a = &k->a[i];
        if (a->name && a->type != HOST_F64) IDA_TRY(ida_dev_download(dev, a->got, a->at, image_bytes(k, a)));
    }
    return IDA_OK;
}

/* ---- the comparison */
static void complain(kase *k, const char *name, const char *fmt, ...) IDA_PRINTF(3, 4);
static void complain(kase *k, const char *name, const char *fmt, ...) {
    va_list ap;
    if (k->c->failures++ >= SHOWN_FAILURES) return;
    printf("  %s %s, %s, %s: ", k->c->op, k->c->bf16 ? "bf16" : "f32", k->label, name);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
}

static void note(checker *c, const char *label, const char *name, double error, double limit) {
    const double part = limit > 0 ? error / limit : error > 0 ? INFINITY : 0;
    if (c->worst_at[0] && !(part > c->worst)) return;
    c->worst = part, c->worst_error = error, c->worst_limit = limit;
    snprintf(c->worst_at, sizeof c->worst_at, "%s [%s]", name, label);
}

void report(checker *c, const char *label, double error, double limit) {
    c->cases++;
    note(c, label, c->op, error, limit);
    if (error <= limit) return;
    c->failures++;
    printf("  %s %s, %s: error %.3e, limit %.3e\n", c->op, c->bf16 ? "bf16" : "f32", label, error, limit);
}

static bool want_is_poison(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u == ~(uint64_t)0;
}

static bool guards_are_whole(const kase *k, const array *a) {
    const int64_t end = image_bytes(k, a);
    for (int64_t i = 0; i < FRONT; i++)
        if (a->got[i] != POISON) return false;
    for (int64_t i = end - BACK; i < end; i++)
        if (a->got[i] != POISON) return false;
    return true;
}

/* Everything that is not a matter of size: unwritten or overwritten places, NaN and infinities. true when the finite rest is
 * worth comparing. */
static bool compare_kinds(kase *k, array *a, const double *got) {
    for (int64_t i = 0; i < a->n; i++) {
        const double w = a->want[i], x = got[i];
        const unsigned char *p = a->got + FRONT + (size_t)i * size_of(k, a);
        bool untouched = true;
        for (size_t b = 0; b < size_of(k, a); b++) untouched = untouched && p[b] == POISON;
        if (want_is_poison(w) != untouched) {
            complain(k, a->name, untouched ? "[%lld] was not written" : "[%lld] is not an output, but was written", (long long)i);
            return false;
        }
        if (want_is_poison(w) || (isnan(w) && isnan(x)) || (isinf(w) && x == w) || (isfinite(w) && isfinite(x))) continue;
        if (half(k, a) && isfinite(w) && bf16_of(w) == x) continue; /* past the largest bf16 */
        if (a->type == HOST_F64 && !isfinite(w) && !isfinite(x)) continue; /* sqsum: any of them */
        complain(k, a->name, "[%lld] is %g, reference %g", (long long)i, x, w);
        return false;
    }
    return true;
}

typedef struct gauge { double sum, size, scale; int64_t n; bool per_element; } gauge;
static void gauge_add(gauge *g, double x, double want, double size) {
    const double e = x - want, own = fmax(fabs(want), 1e-30); /* below that fp32 loses digits */
    g->n++;
    g->sum += g->per_element ? e * e / (own * own) : e * e;
    g->size += size * size;
}
static double gauge_value(const gauge *g) {
    if (g->per_element) return g->n ? sqrt(g->sum / (double)g->n) : 0;
    const double size = fmax(g->size, g->scale * g->scale * (double)g->n);
    return sqrt(g->sum / (size > 0 ? size : 1));
}

/* What an error in an element is measured against. What an ADD array held and what is added to it may all but cancel. */
static double size_at(const array *a, int64_t i) {
    const double start = a->role == ADD ? (double)a->value[i] : 0;
    return hypot(start, a->want[i] - start);
}

static void compare_values(kase *k, array *a, const double *got) {
    gauge ours = {.per_element = a->per_element, .scale = a->scale}, rounding = ours;
    double square = 0;
    int64_t n = 0, far = -1;
    for (int64_t i = 0; i < a->n; i++) {
        const double w = a->want[i], r = half(k, a) ? bf16_of(w) : w, size = size_at(a, i);
        if (!isfinite(w) || !isfinite(got[i])) continue;
        gauge_add(&ours, got[i], a->exact ? r : w, size);
        gauge_add(&rounding, r, w, size);
        square += size * size, n++;
    }
    const double rms = fmax(n ? sqrt(square / (double)n) : 0, a->scale), round = gauge_value(&rounding);
    const double limit = a->exact ? 0 : a->tol + (k->c->bf16 ? 2 * fmax(round, a->naive) : 0);
    const double error = gauge_value(&ours);
    note(k->c, k->label, a->name, error, limit);
    if (!(error <= limit)) complain(k, a->name, "error %.3e, limit %.3e", error, limit);
    for (int64_t i = 0; i < a->n && far < 0 && !a->exact; i++)
        if (isfinite(a->want[i]) && fabs(got[i] - a->want[i]) >
                                        16 * limit * fmax(size_at(a, i), a->per_element ? 1e-30 : rms))
            far = i;
    if (far >= 0) complain(k, a->name, "[%lld] is %.9g, reference %.9g, size %.3g", (long long)far, got[far], a->want[far], rms);
}

static void compare(kase *k) {
    double *got[MAX_ARRAYS] = {NULL};
    for (int i = 0; i < k->n; i++) {
        array *a = &k->a[i];
        if (!a->name) continue;
        if (!guards_are_whole(k, a)) complain(k, a->name, "memory next to the array was written");
        if (a->role == IN && memcmp(a->got, a->image, (size_t)image_bytes(k, a)))
            complain(k, a->name, "is an input, but was written");
        if (a->role == IN) continue;
        got[i] = must_alloc(a->n, sizeof(double));
        for (int64_t j = 0; j < a->n; j++) got[i][j] = element(k, a, a->got, j);
        if (compare_kinds(k, a, got[i])) compare_values(k, a, got[i]);
    }
    const char *text = k->extra ? k->extra(k, got) : NULL;
    if (text) complain(k, "all", "%s", text);
    for (int i = 0; i < k->n; i++) free(got[i]);
}

static void run_again(kase *k) {
    unsigned char *first[MAX_ARRAYS] = {NULL};
    for (int i = 0; i < k->n; i++) {
        array *a = &k->a[i];
        if (!a->name) continue;
        first[i] = must_alloc(image_bytes(k, a), 1);
        memcpy(first[i], a->got, (size_t)image_bytes(k, a));
    }
    if (on_device(k)) complain(k, "second run", "%s", ida_last_error());
    for (int i = 0; i < k->n; i++) {
        array *a = &k->a[i];
        if (a->name && memcmp(first[i], a->got, (size_t)image_bytes(k, a))) complain(k, a->name, "a second run gives other bits");
        free(first[i]);
    }
}

static bool left_out(const kase *k) {
    const checker *c = k->c;
    int64_t elements = 0;
    for (int i = 0; i < k->n; i++) elements += k->a[i].n;
    return (c->thin && c->met >= THIN_FIRST && c->met % THIN_STEP) || (c->most && elements > c->most);
}

void run_case(kase *k) {
    checker *c = k->c;
    const bool skipped = left_out(k);
    c->met++;
    if (!skipped && reference(k)) complain(k, "reference", "%s", ida_last_error());
    if (!skipped && !c->broken) {
        if (k->judge) k->judge(k);
        make_images(k);
        c->cases++;
        if (on_device(k)) {
            complain(k, "device", "%s", ida_last_error());
            c->broken = !c->emulated && ida_dev_sync(c->dev) != IDA_OK;
        } else {
            compare(k);
            run_again(k);
        }
    }
    for (int i = 0; i < k->n; i++) {
        array *a = &k->a[i];
        free(a->value), free(a->ints), free(a->want), free(a->image), free(a->got);
        if (!c->emulated && !c->broken) ida_dev_free(c->dev, a->at);
    }
}
