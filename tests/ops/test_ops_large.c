/* L16: tensors of just over 2^31 elements, where a 32-bit offset gives finite but wrong results. The memory is not there: one
 * small file is mapped over and over along a range of more than 8.6 GB, so the data repeat every PERIOD rows, and the results
 * too. The last rows must have the bits of a small run. Not under ASan, whose shadow of the range would be touched for real. */
#include "ops/ops_test.h"

enum { D = 1024, PERIOD = 1024, SPAN = D * PERIOD, REPEATS = 2049 };
#define N ((int64_t)PERIOD * REPEATS)
_Static_assert((int64_t)SPAN * REPEATS > INT64_C(1) << 31, "the tensors must be larger than 2^31 elements");

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#endif
#endif

static void ok(ida_status st) {
    if (st != IDA_OK) fail_msg("%s", ida_last_error());
}

/* SPAN floats of memory, visible REPEATS times in a row. */
static float *repeated(const char *name) {
    size_t bytes = SPAN * sizeof(float);
    int fd = memfd_create(name, MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    char *base = mmap(NULL, bytes * REPEATS, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(base != MAP_FAILED);
    for (size_t i = 0; i < REPEATS; i++)
        assert_true(mmap(base + i * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
    close(fd);
    return (float *)base;
}

static float *x, *y;             /* the two large tensors */
static float *want;              /* [SPAN] of a small run */
static const ida_device *dev;
static int64_t cu[REPEATS + 1];  /* each repeat is a sequence */

static int set_up(void **state) {
    (void)state;
#ifdef UNDER_ASAN
    return 0;
#endif
    dev = ida_cpu_device();
    x = repeated("x");
    y = repeated("y");
    want = floats(SPAN, NAN);
    randomise(x, SPAN, 1);
    for (int64_t i = 0; i <= REPEATS; i++) cu[i] = i * PERIOD;
    return ida_set_threads(0) == IDA_OK ? 0 : -1;
}
static void begin(void) {
#ifdef UNDER_ASAN
    print_message("skipped: an 8.6 GB range does not go with the address sanitizer\n");
    skip();
#else
    for (int64_t i = 0; i < SPAN; i++) y[i] = NAN;
#endif
}

static void L16_rmsnorm(void **state) {
    (void)state;
    begin();
    int mark = n_blocks;
    float *g = uniform(D, 2), *rstd = floats(N, NAN), *rstd_small = floats(PERIOD, NAN);
    ok(dev->ops->rmsnorm_fwd(dev, ida_act_of(want), rstd_small, ida_act_of(x), g, PERIOD, D, 1e-5));
    ok(dev->ops->rmsnorm_fwd(dev, ida_act_of(y), rstd, ida_act_of(x), g, N, D, 1e-5));
    assert_same_bits("y", y + (N - PERIOD) * D, want, SPAN);
    assert_same_bits("rstd", rstd + N - PERIOD, rstd_small, PERIOD);
    release_from(mark);
}
static void L16_swiglu(void **state) {
    (void)state;
    begin();
    ok(dev->ops->swiglu_fwd(dev, ida_act_of(want), ida_act_of(x), ida_act_of(x), SPAN));
    ok(dev->ops->swiglu_fwd(dev, ida_act_of(y), ida_act_of(x), ida_act_of(x), N * D));
    assert_same_bits("y just over 2^31", y + (N - PERIOD) * D, want, SPAN);
    memset(y, 0xFF, SPAN * sizeof *y);
    int64_t under = (INT64_C(1) << 31) - 1;
    ok(dev->ops->swiglu_fwd(dev, ida_act_of(y), ida_act_of(x), ida_act_of(x), under));
    assert_same_bits("y just under 2^31", y + under + 1 - SPAN, want, SPAN - 1);
}
static void L16_conv_and_rope(void **state) {
    (void)state;
    begin();
    int mark = n_blocks;
    float *w = uniform(4 * D, 2), *b = uniform(D, 3);
    ida_seqs one = {1, cu, NULL}, all = {REPEATS, cu, NULL};
    ok(dev->ops->conv_fwd(dev, ida_act_of(want), NULL, ida_act_of(x), w, b, NULL, 0, &one, D));
    ok(dev->ops->conv_fwd(dev, ida_act_of(y), NULL, ida_act_of(x), w, b, NULL, 0, &all, D));
    assert_same_bits("conv", y + (N - PERIOD) * D, want, SPAN);
    ok(dev->ops->rope(dev, ida_act_of(want), ida_act_of(x), &one, D / 64, 64, 10000.0, 1));
    ok(dev->ops->rope(dev, ida_act_of(y), ida_act_of(x), &all, D / 64, 64, 10000.0, 1));
    assert_same_bits("rope", y + (N - PERIOD) * D, want, SPAN);
    release_from(mark);
}
/* 64 inputs, 4 outputs: x has 2^31 elements and more; 4 inputs, 64 outputs: y has. One thread: BLAS clears its output before it adds
 * up, and every piece of y is the same memory, so a second thread would clear what the first has just written. */
static void L16_linear(void **state) {
    (void)state;
    begin();
    int mark = n_blocks, threads = ida_get_threads();
    assert_int_equal(ida_set_threads(1), IDA_OK);
    const float *numbers = uniform(64 * 4, 2);
    const ida_matrix down = ida_matrix_of(dev, numbers, 4, 64), up = ida_matrix_of(dev, numbers, 64, 4);
    int64_t rows = SPAN / 64, all = rows * REPEATS, tail = 4096;
    ok(dev->ops->linear_fwd(dev, ida_act_of(want), ida_act_of(x), &down, NULL, rows));
    ok(dev->ops->linear_fwd(dev, ida_act_of(y), ida_act_of(x), &down, NULL, all));
    assert_same_bits("y of 64 -> 4", y + (all - tail) * 4, want + (rows - tail) * 4, tail * 4);
    ok(dev->ops->linear_fwd(dev, ida_act_of(want), ida_act_of(x), &up, NULL, rows));
    ok(dev->ops->linear_fwd(dev, ida_act_of(y), ida_act_of(x), &up, NULL, all));
    assert_int_equal(ida_set_threads(threads), IDA_OK);
    assert_same_bits("y of 4 -> 64", y + (all - tail) * 64, want + (rows - tail) * 64, tail * 64);
    release_from(mark);
}
/* A table of 2^31 elements and more, its last row used. */
static void L16_embed(void **state) {
    (void)state;
    begin();
    int mark = n_blocks;
    const int32_t ids[] = {(int32_t)(N - 1), 5, (int32_t)(N - 1)};
    float *rows = floats(3 * D, NAN), *dy = uniform(3 * D, 4);
    const ida_matrix table = ida_matrix_of(dev, x, N, D);
    ok(dev->ops->embed_fwd(dev, ida_act_of(rows), ids, &table, 3));
    assert_same_bits("last row", rows, x + SPAN - D, D);
    memset(y, 0, SPAN * sizeof *y);
    ok(dev->ops->embed_bwd(dev, y, ids, ida_act_of(dy), 3, N, D));
    for (int64_t i = 0; i < D; i++) want[i] = (float)((double)dy[i] + (double)dy[2 * D + i]);
    assert_same_bits("gradient of the last row", y + (N - 1) * D, want, D);
    assert_same_bits("gradient of row 5", y + 5 * D, dy + D, D);
    release_from(mark);
}
static void L16_sqsum(void **state) {
    (void)state;
    begin();
    double one = NAN, all = NAN;
    ok(dev->ops->sqsum(dev, &one, x, &(ida_span){0, SPAN}, 1));
    ok(dev->ops->sqsum(dev, &all, x, &(ida_span){0, N * D}, 1));
    assert_true(fabs(all - one * REPEATS) <= 1e-12 * all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(L16_rmsnorm), cmocka_unit_test(L16_swiglu), cmocka_unit_test(L16_conv_and_rope),
        cmocka_unit_test(L16_linear),  cmocka_unit_test(L16_embed),  cmocka_unit_test(L16_sqsum),
    };
    return cmocka_run_group_tests_name("ops_large", tests, set_up, NULL);
}
