/* ops_check.h - the frame of ops_check: an op is run by the reference and by the device under test on the same arrays, and what
 * came out is compared. A check (one per line of ops.def, named check_<op>) lists arrays in the order its call function takes
 * them.
 *
 * What every case proves, beside the values: outputs "=" are written whole (they start as NaN) and only where the reference
 * writes;
 * "+=" adds to what was there (the start has the size of the gradient); inputs and 256 bytes on either side of every array are
 * untouched (and are NaN on the outside, so that reading them shows); a second run gives the same bits. Arrays are aligned to 32
 * bytes and no more, as in the product.
 *
 * Tolerance. The error of an array is |ours - reference| / |reference| (Euclidean norms) or, where `per_element`, the root mean
 * square of the elements' own relative errors. Allowed: `tol` (fp32 arithmetic, 1e-5 unless said) and, on a bf16 device, twice
 * what bf16 explains: the rounding of the reference's output, measured on the array (acts only), or, where that is more, `naive`,
 * the error of the plain implementation that rounds the operands of its products and its output. No element may be further off
 * than 16 times that, times the larger of its own size and the array's root mean square: one wrong element among many shows.
 * `scale`: the size that the array's elements count for at least, where terms larger than the result cancel; 0.5 for arrays of up
 * to 8 elements, one of which may be near zero by chance. */
#ifndef IDA_TESTS_CUDA_OPS_CHECK_H
#define IDA_TESTS_CUDA_OPS_CHECK_H

#include "ops/device.h"

typedef enum type { ACT, REAL, I32, HOST_F64 } type; /* HOST_F64: double in host memory on every device */
/* IN; OUT "="; ADD "+="; INOUT: read and overwritten. */
typedef enum role { IN, OUT, ADD, INOUT } role;

typedef struct array {
    const char *name;
    type type;
    role role;
    int64_t n;
    bool exact;           /* ours is the reference's value, rounded once */
    bool per_element;
    double tol, naive, scale;
    float *value;         /* IN, INOUT: content, representable in the type. ADD: made by run_case */
    int32_t *ints;        /* of I32 */
    double *want;
    unsigned char *image, *got; /* content of the device's memory, guards included: before, after */
    void *at;             /* the device's memory */
} array;

enum { MAX_ARRAYS = 32, MAX_LABEL = 120 };
typedef struct kase kase;
/* p[i]: array i, in float arrays for the reference and in the device's types on the device; NULL for one that is absent. */
typedef ida_status call_fn(const ida_device *dev, void *const *p, const void *args);
/* More to prove about what came out: got[i] are array i's values on the device (NULL where it is no output). NULL = fine. */
typedef const char *extra_fn(const kase *k, double *const *got);
/* Sets tol and naive of arrays when their wanted values are known. */
typedef void judge_fn(kase *k);

typedef struct checker {
    const ida_device *dev;
    bool bf16,
        emulated; /* emulated: the reference behind the device's types, so that the frame itself can be tried without a GPU */
    const char *op;
    int64_t cases, failures;
    double worst;         /* error / limit */
    double worst_error, worst_limit;
    char worst_at[MAX_LABEL + 40];
    bool broken;          /* the device no longer answers: what follows needs a new process */
    bool thin;            /* leaves out cases as ops_check.c says */
    int64_t most;         /* and those whose arrays have more elements; 0: any */
    int64_t met;          /* cases, with those left out */
    uint64_t seed;
} checker;

struct kase {
    checker *c;
    call_fn *call;
    const void *args;
    extra_fn *extra;
    judge_fn *judge;
    int n;
    array a[MAX_ARRAYS];
    char label[MAX_LABEL];
};

/* A case: begin_case, arrays, run_case (which frees them). */
void begin_case(kase *k, checker *c, call_fn *call, const void *args, const char *label, ...) IDA_PRINTF(5, 6);
/* mean + sd * normal, rounded to bf16 where an act is. */
array *in(kase *k, const char *name, type t, int64_t n, double mean, double sd);
array *in_ints(kase *k, const char *name, int64_t n, int64_t low, int64_t high); /* uniform in [low, high) */
array *out(kase *k, const char *name, type t, int64_t n);
array *add(kase *k, const char *name, type t, int64_t n);
array *inout(kase *k, const char *name, type t, int64_t n, double mean, double sd);
void absent(kase *k);
void run_case(kase *k);

/* Sets an element of an IN or INOUT array, rounded as the type is. */
void set(const kase *k, array *a, int64_t i, double x);
/* Element that nobody may read or write: the pattern that OUT arrays start with. */
void poison(array *a, int64_t i);
double normal(checker *c);
double bf16_of(double x);
/* |x - truth| / |truth|. */
double distance(const double *x, const double *truth, int64_t n);
void *must_alloc(int64_t n, size_t size);
void must(ida_status st);

/* Sequences: empty ones first, inside and last, lengths around the chunk, starts at odd tokens. pos0 is up to 10^6 and beyond. */
typedef struct seq_set { const char *name; int64_t n; int64_t cu[12], pos0[12]; } seq_set;
extern const seq_set seq_sets[];
extern const int n_seq_sets;
static inline int64_t set_tokens(const seq_set *s) { return s->cu[s->n]; }

#define IDA_OP(name) void check_##name(checker *c);
#include "ops/ops.def"
#undef IDA_OP
/* Tensors past 2^31 elements (ops_large.c): only on a device with memory of its own. */
extern const int n_large_checks;
const char *large_name(int i);
void large_check(checker *c, int i);
/* One result of a large check. */
void report(checker *c, const char *label, double error, double limit);

#endif
