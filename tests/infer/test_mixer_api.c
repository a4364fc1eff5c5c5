/* test_mixer_api.c - the public doors to the mixer core: ida_mixer_forward, ida_mixer_backward, ida_mixer_file. Right answers are
 * proved by tests/ops/test_golden.c; here: the doors reach those answers, refuse everything that is wrong with a line that says
 * so, and leave no file behind when they fail. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "idattn.h"
#include "core/mem.h"
#include "core/rng.h"
#include "io/safetensors.h"

static char dir[] = "/tmp/ida_mixer_XXXXXX", in_path[64], out_path[64];

static int setup(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(in_path, sizeof in_path, "%s/in.safetensors", dir);
    snprintf(out_path, sizeof out_path, "%s/out.safetensors", dir);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    return ida_remove_tree(dir) == IDA_OK ? 0 : -1;
}

static void assert_error(ida_status got, ida_status want, const char *part) {
    if (got != want) fail_msg("status %s, wanted %s (%s)", ida_status_name(got), ida_status_name(want), ida_last_error());
    if (!strstr(ida_last_error(), part)) fail_msg("\"%s\" does not say \"%s\"", ida_last_error(), part);
    assert_null(strchr(ida_last_error(), '\n'));
}

/* ---- fp32 calls */

enum { T = 70, S = 3, H = 4, G = 2, R = 5, D = 3, M = 4, W = R + D };
typedef struct call {
    int64_t cu[S + 1];
    float q[T * H * R], k[T * G * R], v[T * G * D], log_dt[G], a_log[G * M], a_imag[G * M], c_real[G * M * M], c_imag[G * M * M];
    float state[2][S * G * M * W], o[T * H * D], final[2][S * G * M * W], grad_o[T * H * D], grad_final[2][S * G * M * W];
    float grad_q[T * H * R], grad_k[T * G * R], grad_v[T * G * D], grad_log_dt[G], grad_a_log[G * M], grad_a_imag[G * M];
    float grad_c_real[G * M * M], grad_c_imag[G * M * M], grad_state[2][S * G * M * W];
    ida_mixer_args a;
    ida_mixer_grads g;
} call;

static void fill(float *p, size_t bytes, uint64_t stream, double mean, double scale) {
    for (uint64_t i = 0; i < bytes / sizeof *p; i++) p[i] = (float)(mean + scale * ida_normal(stream, IDA_STREAM_TEST, i));
}

static call *new_call(void) {
    call *c = calloc(1, sizeof *c);
    assert_non_null(c);
    const int64_t cu[] = {0, 40, 40, T};
    memcpy(c->cu, cu, sizeof cu);
    fill(c->q, sizeof c->q, 1, 0, 0.5), fill(c->k, sizeof c->k, 2, 0, 0.5), fill(c->v, sizeof c->v, 3, 0, 0.5);
    fill(c->log_dt, sizeof c->log_dt, 4, -1.2, 0.3), fill(c->a_log, sizeof c->a_log, 5, -0.7, 0.3),
        fill(c->a_imag, sizeof c->a_imag, 6, 0, 1.5);
    fill(c->c_real, sizeof c->c_real, 7, 0, 0.5), fill(c->c_imag, sizeof c->c_imag, 8, 0, 0.5);
    fill(c->state[0], sizeof c->state[0], 9, 0, 0.5), fill(c->state[1], sizeof c->state[1], 10, 0, 0.5);
    fill(c->grad_o, sizeof c->grad_o, 11, 0, 1), fill(c->grad_final[0], sizeof c->grad_final[0], 12, 0, 1);
    fill(c->grad_final[1], sizeof c->grad_final[1], 13, 0, 1);
    c->a = (ida_mixer_args){T,
                            S,
                            H,
                            G,
                            R,
                            D,
                            M,
                            c->cu,
                            IDA_DISC_ZOH,
                            IDA_READOUT_HERMITIAN,
                            0,
                            c->q,
                            c->k,
                            c->v,
                            c->log_dt,
                            c->a_log,
                            c->a_imag,
                            c->c_real,
                            c->c_imag,
                            c->state[0],
                            c->state[1],
                            c->o,
                            c->final[0],
                            c->final[1]};
    c->g = (ida_mixer_grads){c->grad_o,      c->grad_final[0], c->grad_final[1], c->grad_q,      c->grad_k,
                             c->grad_v,      c->grad_log_dt,   c->grad_a_log,    c->grad_a_imag, c->grad_c_real,
                             c->grad_c_imag, c->grad_state[0], c->grad_state[1]};
    return c;
}

static void assert_near(const float *a, const float *b, size_t n, double limit) {
    double diff = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        const double e = fabs((double)a[i] - (double)b[i]);
        if (!(e <= diff)) diff = e;
        top = fmax(top, fabs((double)b[i]));
    }
    if (!(diff <= limit * top)) fail_msg("off by %g of %g", diff, top);
}
#define NEAR(f) assert_near((const float *)c->f, (const float *)s->f, sizeof c->f / sizeof(float), 1e-4)

static void the_forms_agree_in_fp32(void **state) {
    (void)state;
    call *s = new_call();
    assert_int_equal(ida_mixer_forward(&s->a, IDA_FORM_SEQUENTIAL), IDA_OK);
    assert_int_equal(ida_mixer_backward(&s->a, &s->g, IDA_FORM_SEQUENTIAL), IDA_OK);
    for (int form = IDA_FORM_STEP; form <= IDA_FORM_CHUNKED; form++) {
        call *c = new_call();
        assert_int_equal(ida_mixer_forward(&c->a, (ida_form)form), IDA_OK);
        NEAR(o), NEAR(final[0]), NEAR(final[1]);
        if (form == IDA_FORM_CHUNKED) {
            memset(c->grad_c_real, 0x7f, sizeof c->grad_c_real); /* written, not accumulated */
            assert_int_equal(ida_mixer_backward(&c->a, &c->g, IDA_FORM_CHUNKED), IDA_OK);
            NEAR(grad_q), NEAR(grad_k), NEAR(grad_v), NEAR(grad_log_dt), NEAR(grad_a_log), NEAR(grad_a_imag), NEAR(grad_c_real),
                NEAR(grad_c_imag);
            NEAR(grad_state[0]), NEAR(grad_state[1]);
        }
        free(c);
    }
    free(s);
}

/* Every output and optional input may be absent; what is left does not change. */
static void optional_arrays_may_be_absent(void **state) {
    (void)state;
    for (int form = IDA_FORM_SEQUENTIAL; form <= IDA_FORM_CHUNKED; form++) {
        call *s = new_call(), *c = new_call();
        c->a.final_state_real = c->a.final_state_imag = NULL;
        assert_int_equal(ida_mixer_forward(&s->a, (ida_form)form), IDA_OK);
        assert_int_equal(ida_mixer_forward(&c->a, (ida_form)form), IDA_OK);
        assert_memory_equal(c->o, s->o, sizeof c->o);
        if (form != IDA_FORM_STEP) {
            c->g = (ida_mixer_grads){.grad_o = c->grad_o,
                                     .grad_final_state_real = c->grad_final[0],
                                     .grad_final_state_imag = c->grad_final[1],
                                     .grad_k = c->grad_k};
            assert_int_equal(ida_mixer_backward(&s->a, &s->g, (ida_form)form), IDA_OK);
            assert_int_equal(ida_mixer_backward(&c->a, &c->g, (ida_form)form), IDA_OK);
            assert_memory_equal(c->grad_k, s->grad_k, sizeof c->grad_k);
        }
        memset(s->state, 0, sizeof s->state);
        c->a.state_real = c->a.state_imag = NULL;
        assert_int_equal(ida_mixer_forward(&s->a, (ida_form)form), IDA_OK);
        assert_int_equal(ida_mixer_forward(&c->a, (ida_form)form), IDA_OK);
        assert_memory_equal(c->o, s->o, sizeof c->o);
        free(s), free(c);
    }
}

static void no_tokens_and_no_sequences(void **state) {
    (void)state;
    const int64_t none[] = {0, 0, 0, 0};
    for (int form = IDA_FORM_SEQUENTIAL; form <= IDA_FORM_CHUNKED; form++) {
        call *c = new_call();
        c->a.n_tokens = 0, c->a.cu_seqlens = none, c->a.q = c->a.k = c->a.v = NULL, c->a.o = NULL;
        assert_int_equal(ida_mixer_forward(&c->a, (ida_form)form), IDA_OK);
        assert_memory_equal(c->final, c->state, sizeof c->state);
        c->a.n_seq = 0;
        assert_int_equal(ida_mixer_forward(&c->a, (ida_form)form), IDA_OK);
        free(c);
    }
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    call *c = new_call();
    const ida_mixer_args good = c->a;
    const ida_mixer_grads grads = c->g;
    const int64_t late[] = {1, 40, 40, T}, falls[] = {0, 40, 39, T}, ends[] = {0, 40, 40, T + 1};
#define REFUSED(change, part) \
    do { \
        c->a = good; \
        change; \
        assert_error(ida_mixer_forward(&c->a, IDA_FORM_CHUNKED), IDA_E_ARG, part); \
        assert_error(ida_mixer_backward(&c->a, &c->g, IDA_FORM_CHUNKED), IDA_E_ARG, part); \
    } while (0)
    REFUSED(c->a.n_tokens = -1, "n_tokens is -1");
    REFUSED(c->a.n_seq = -5, "n_seq is -5");
    REFUSED(c->a.n_heads = 0, "n_heads is 0");
    REFUSED(c->a.n_kv = 3, "4 query heads cannot share 3");
    REFUSED(c->a.n_kv = 8, "4 query heads cannot share 8");
    REFUSED(c->a.key_dim = 0, "key_dim is 0");
    REFUSED(c->a.value_dim = 0, "value_dim is 0");
    REFUSED(c->a.state_size = 0, "state_size is 0");
    REFUSED(c->a.state_size = INT64_MAX / 2, "overflows");
    REFUSED(c->a.key_dim = INT64_MAX, "overflows");
    REFUSED(c->a.chunk = 65, "chunk is 65");
    REFUSED(c->a.chunk = -1, "chunk is -1");
    REFUSED(c->a.discretization = (ida_discretization)9, "discretization 9");
    REFUSED(c->a.readout = (ida_readout)-1, "readout -1");
    REFUSED(c->a.cu_seqlens = NULL, "cu_seqlens is NULL");
    REFUSED(c->a.cu_seqlens = late, "cu_seqlens[0] is 1");
    REFUSED(c->a.cu_seqlens = falls, "cu_seqlens[2] = 39 is below cu_seqlens[1] = 40");
    REFUSED(c->a.cu_seqlens = ends, "ends at 71, must end at the number of tokens, 70");
    REFUSED(c->a.q = NULL, "q is NULL");
    REFUSED(c->a.c_imag = NULL, "c_imag is NULL, 32 numbers");
    REFUSED(c->a.state_imag = NULL, "give both or neither");
    REFUSED(c->a.final_state_real = NULL, "give both or neither");
    c->a = good;
    assert_error(ida_mixer_forward(NULL, IDA_FORM_CHUNKED), IDA_E_ARG, "NULL");
    assert_error(ida_mixer_forward(&c->a, (ida_form)7), IDA_E_ARG, "form 7");
    assert_error(ida_mixer_backward(&c->a, NULL, IDA_FORM_CHUNKED), IDA_E_ARG, "NULL");
    assert_error(ida_mixer_backward(&c->a, &c->g, IDA_FORM_STEP), IDA_E_ARG, "step form has no gradients");
    c->a.o = NULL;
    assert_error(ida_mixer_forward(&c->a, IDA_FORM_CHUNKED), IDA_E_ARG, "o is NULL");
    c->a = good;
    c->g.grad_o = NULL;
    assert_error(ida_mixer_backward(&c->a, &c->g, IDA_FORM_CHUNKED), IDA_E_ARG, "grad_o is NULL");
    c->g = grads, c->g.grad_state_imag = NULL;
    assert_error(ida_mixer_backward(&c->a, &c->g, IDA_FORM_CHUNKED), IDA_E_ARG, "give both or neither");
    free(c);
}

/* ---- files */

static const char *const golden[] = {"plain", "bilinear", "heads", "packed", "unit"};
static const char *const result_names[] = {"o",           "final_state_real", "final_state_imag", "grad_q",      "grad_k",
                                           "grad_v",      "grad_log_dt",      "grad_a_log",       "grad_a_imag", "grad_c_real",
                                           "grad_c_imag", "grad_state_real",  "grad_state_imag"};
static const char *golden_path(const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/golden/%s.safetensors", IDA_TEST_DATA, name);
    return path;
}

/* A copy of a golden file that a test may edit: tensors are in writable memory, outputs are dropped. */
typedef struct draft {
    ida_st_file *file;
    int64_t n;
    ida_st_out t[32];
    const char *keys[2], *values[2];
} draft;

static void draft_open(draft *d, const char *name) {
    assert_int_equal(ida_st_open(golden_path(name), &d->file), IDA_OK);
    d->n = 0;
    for (int64_t i = 0; i < d->file->n; i++) {
        const ida_st_tensor *t = &d->file->tensors[i];
        bool output = false;
        for (size_t j = 0; j < sizeof result_names / sizeof *result_names; j++) output |= !strcmp(t->name, result_names[j]);
        if (output) continue;
        ida_st_out *o = &d->t[d->n++];
        *o = (ida_st_out){.name = t->name, .dtype = t->dtype, .ndim = t->ndim};
        memcpy(o->shape, t->shape, sizeof o->shape);
        void *copy = malloc((size_t)t->bytes + 1);
        assert_non_null(copy);
        memcpy(copy, t->data, (size_t)t->bytes);
        o->data = copy;
    }
    d->keys[0] = "discretization", d->keys[1] = "readout";
    d->values[0] = ida_st_meta(d->file, d->keys[0]), d->values[1] = ida_st_meta(d->file, d->keys[1]);
}
static ida_st_out *draft_find(draft *d, const char *name) {
    for (int64_t i = 0; i < d->n; i++)
        if (!strcmp(d->t[i].name, name)) return &d->t[i];
    fail_msg("no %s", name);
    return NULL;
}
static void draft_drop(draft *d, const char *name) {
    ida_st_out *t = draft_find(d, name);
    free((void *)(uintptr_t)t->data);
    *t = d->t[--d->n];
}
/* The size that folding conjugate pairs would give. */
static void draft_halve_state(draft *d) { draft_find(d, "state_real")->shape[2] = draft_find(d, "state_imag")->shape[2] = 2; }
static double *draft_data(draft *d, const char *name) { return (double *)(uintptr_t)draft_find(d, name)->data; }
static void draft_save(draft *d) { assert_int_equal(ida_st_write(in_path, d->t, d->n, d->keys, d->values, 2), IDA_OK); }
static void draft_close(draft *d) {
    for (int64_t i = 0; i < d->n; i++) free((void *)(uintptr_t)d->t[i].data);
    ida_st_close(d->file);
}

/* Worst error of the results in out_path against the golden file, over the tensors that are there. */
static double worst_error(const char *name, int64_t *seen) {
    ida_st_file *got, *want;
    double worst = 0;
    assert_int_equal(ida_st_open(out_path, &got), IDA_OK);
    assert_int_equal(ida_st_open(golden_path(name), &want), IDA_OK);
    *seen = got->n;
    for (int64_t i = 0; i < got->n; i++) {
        const ida_st_tensor *a = &got->tensors[i], *b = ida_st_find(want, a->name);
        assert_non_null(b);
        assert_true(a->dtype == IDA_ST_F64 && a->ndim == b->ndim && a->numel == b->numel);
        assert_memory_equal(a->shape, b->shape, (size_t)a->ndim * sizeof(int64_t));
        double diff = 0, top = 0;
        for (int64_t e = 0; e < a->numel; e++) {
            double x, y;
            memcpy(&x, (const char *)a->data + 8 * e, 8);
            memcpy(&y, (const char *)b->data + 8 * e, 8);
            diff = fmax(diff, fabs(x - y)), top = fmax(top, fabs(y));
        }
        worst = fmax(worst, diff / top);
    }
    assert_string_equal(ida_st_meta(got, "readout"), ida_st_meta(want, "readout"));
    assert_string_equal(ida_st_meta(got, "discretization"), ida_st_meta(want, "discretization"));
    ida_st_close(got), ida_st_close(want);
    return worst;
}

static void files_give_the_golden_results(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        int64_t seen;
        for (int form = IDA_FORM_SEQUENTIAL; form <= IDA_FORM_CHUNKED; form += 2) {
            assert_int_equal(ida_mixer_file(golden_path(golden[i]), out_path, (ida_form)form, IDA_F64, 0, NULL), IDA_OK);
            assert_true(worst_error(golden[i], &seen) <= 1e-10);
            assert_int_equal(seen, 13);
            assert_int_equal(ida_mixer_file(golden_path(golden[i]), out_path, (ida_form)form, IDA_F32, 16, NULL), IDA_OK);
            assert_true(worst_error(golden[i], &seen) <= 1e-4);
            assert_int_equal(ida_mixer_file(golden_path(golden[i]), out_path, (ida_form)form, IDA_BF16, 0, NULL), IDA_OK);
            const double bf16 =
                worst_error(golden[i], &seen); /* rounding q, k, v, dO to 8 bits: up to 2^-9 each, amplified by sums */
            assert_true(bf16 > 1e-4 && bf16 < 0.05);
        }
        draft d;
        draft_open(&d, golden[i]);
        draft_drop(&d, "grad_o"), draft_drop(&d, "grad_final_state_real"), draft_drop(&d, "grad_final_state_imag");
        draft_save(&d);
        draft_close(&d);
        for (int form = IDA_FORM_SEQUENTIAL; form <= IDA_FORM_CHUNKED; form++) {
            assert_int_equal(ida_mixer_file(in_path, out_path, (ida_form)form, IDA_F64, 0, NULL), IDA_OK);
            assert_true(worst_error(golden[i], &seen) <= 1e-10);
            assert_int_equal(seen, 3);
        }
    }
}

static void absent_state_means_zero_and_absent_offsets_one_document(void **state) {
    (void)state;
    draft d;
    draft_open(&d, "plain");
    memset(draft_data(&d, "state_real"), 0, 8 * 2 * 4 * 8), memset(draft_data(&d, "state_imag"), 0, 8 * 2 * 4 * 8);
    draft_save(&d);
    char *first, *second;
    int64_t n_first, n_second;
    assert_int_equal(ida_mixer_file(in_path, out_path, IDA_FORM_CHUNKED, IDA_F64, 0, NULL), IDA_OK);
    assert_int_equal(ida_read_file(out_path, 1 << 20, &first, &n_first), IDA_OK);
    draft_drop(&d, "state_real"), draft_drop(&d, "state_imag"), draft_drop(&d, "cu_seqlens");
    draft_save(&d);
    draft_close(&d);
    assert_int_equal(ida_mixer_file(in_path, out_path, IDA_FORM_CHUNKED, IDA_F64, 0, NULL), IDA_OK);
    assert_int_equal(ida_read_file(out_path, 1 << 20, &second, &n_second), IDA_OK);
    assert_int_equal(n_first, n_second);
    assert_memory_equal(first, second, (size_t)n_first);
    ida_free(first), ida_free(second);
}

#define FILE_REFUSED(name, change, form, dtype, status, part) \
    do { \
        draft d; \
        draft_open(&d, name); \
        change; \
        draft_save(&d); \
        draft_close(&d); \
        unlink(out_path); \
        assert_error(ida_mixer_file(in_path, out_path, form, dtype, 0, NULL), status, part); \
        assert_false(ida_exists(out_path)); \
    } while (0)

static void L03_wrong_state_size_shows_both_numbers(void **state) {
    (void)state;
    FILE_REFUSED("plain", draft_halve_state(&d), IDA_FORM_CHUNKED, IDA_F64, IDA_E_FORMAT,
                 "\"state_real\" has shape [1,2,2,8], must be [1,2,4,8]");
    assert_non_null(strstr(ida_last_error(), in_path));
}

static void wrong_files_are_refused(void **state) {
    (void)state;
    const ida_form chunked = IDA_FORM_CHUNKED;
    FILE_REFUSED("plain", draft_data(&d, "v")[7] = NAN, chunked, IDA_F64, IDA_E_NUMERIC, "\"v\" has nan at element 7");
    FILE_REFUSED("plain", draft_data(&d, "a_log")[1] = INFINITY, chunked, IDA_F32, IDA_E_NUMERIC,
                 "\"a_log\" has inf at element 1");
    FILE_REFUSED("plain", draft_data(&d, "k")[0] = 1e300, chunked, IDA_F32, IDA_E_NUMERIC, "more than the data type holds");
    FILE_REFUSED("plain", draft_data(&d, "q")[0] = 3.4e38, chunked, IDA_BF16, IDA_E_NUMERIC, "more than the data type holds");
    FILE_REFUSED("plain", draft_data(&d, "k")[0] = draft_data(&d, "q")[0] = 1e250, chunked, IDA_F64, IDA_E_NUMERIC,
                 "only finite numbers");
    FILE_REFUSED("plain", draft_drop(&d, "k"), chunked, IDA_F64, IDA_E_FORMAT, "no tensor \"k\"");
    FILE_REFUSED("plain", draft_drop(&d, "c_imag"), chunked, IDA_F64, IDA_E_FORMAT, "c_imag");
    FILE_REFUSED("plain", draft_drop(&d, "state_imag"), chunked, IDA_F64, IDA_E_FORMAT, "give both or neither");
    FILE_REFUSED("plain", draft_drop(&d, "grad_final_state_real"), chunked, IDA_F64, IDA_E_FORMAT, "give both or neither");
    FILE_REFUSED("plain", draft_drop(&d, "grad_o"), chunked, IDA_F64, IDA_E_FORMAT, "no grad_o");
    FILE_REFUSED("plain", d.values[1] = "sideways", chunked, IDA_F64, IDA_E_FORMAT,
                 "\"sideways\"; known are hermitian or bilinear");
    FILE_REFUSED("plain", d.values[0] = "foh", chunked, IDA_F64, IDA_E_FORMAT, "known are zoh, euler, unit or norm");
    FILE_REFUSED("plain", ((int64_t *)(void *)draft_data(&d, "cu_seqlens"))[1] = 36, chunked, IDA_F64, IDA_E_FORMAT,
                 "ends at 36, must end at the number of tokens, 37");
    FILE_REFUSED("plain", draft_find(&d, "cu_seqlens")->dtype = IDA_ST_F64, chunked, IDA_F64, IDA_E_FORMAT, "I64 or I32");
    FILE_REFUSED("packed", ((int64_t *)(void *)draft_data(&d, "cu_seqlens"))[1] = -3, chunked, IDA_F64, IDA_E_FORMAT, "-3");
    FILE_REFUSED("plain", draft_find(&d, "q")->ndim = 2;
                 draft_find(&d, "q")->shape[1] = 10, chunked, IDA_F64, IDA_E_FORMAT, "2 dimensions, must have 3");
    FILE_REFUSED("plain", draft_find(&d, "k")->shape[1] = 1;
                 draft_find(&d, "k")->shape[2] = 10, chunked, IDA_F64, IDA_E_FORMAT, "\"k\"");
    assert_error(ida_mixer_file(in_path, out_path, chunked, IDA_F64, 65, NULL), IDA_E_ARG, "chunk is 65");
    assert_error(ida_mixer_file(in_path, out_path, chunked, (ida_dtype)5, 0, NULL), IDA_E_ARG, "data type 5");
    assert_error(ida_mixer_file(in_path, out_path, (ida_form)5, IDA_F64, 0, NULL), IDA_E_ARG, "form 5");
    assert_error(ida_mixer_file(NULL, out_path, chunked, IDA_F64, 0, NULL), IDA_E_ARG, "NULL");
    assert_int_equal(ida_mixer_file("/dev/null/in.safetensors", out_path, chunked, IDA_F64, 0, NULL), IDA_E_IO);
    assert_int_equal(ida_mixer_file(golden_path("plain"), "/dev/null/out.safetensors", chunked, IDA_F64, 0, NULL), IDA_E_IO);
    assert_false(ida_exists(out_path));
}

static void count_step(void *user, const char *line) { *(int *)user += strstr(line, "step form has no gradients") != NULL; }

static void step_form_writes_outputs_and_says_that_gradients_are_left_out(void **state) {
    (void)state;
    int lines = 0;
    ida_st_file *f = NULL;
    unlink(out_path);
    ida_set_log(count_step, &lines);
    assert_int_equal(ida_mixer_file(golden_path("plain"), out_path, IDA_FORM_STEP, IDA_F64, 0, NULL), IDA_OK);
    ida_set_log(NULL, NULL);
    assert_int_equal(lines, 1);
    assert_int_equal(ida_st_open(out_path, &f), IDA_OK);
    assert_int_equal(f->n, 3);
    assert_non_null(ida_st_find(f, "o"));
    ida_st_close(f);
}

static void count_line(void *user, const char *line) { *(int *)user += strstr(line, "\"grad_out\" is not one") != NULL; }

static void unknown_tensors_are_reported(void **state) {
    (void)state;
    int lines = 0;
    draft d;
    draft_open(&d, "plain");
    draft_drop(&d, "grad_final_state_real"), draft_drop(&d, "grad_final_state_imag");
    draft_find(&d, "grad_o")->name = "grad_out";
    draft_save(&d);
    draft_close(&d);
    ida_set_log(count_line, &lines);
    assert_int_equal(ida_mixer_file(in_path, out_path, IDA_FORM_CHUNKED, IDA_F64, 0, NULL), IDA_OK);
    ida_set_log(NULL, NULL);
    assert_int_equal(lines, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_forms_agree_in_fp32),
        cmocka_unit_test(optional_arrays_may_be_absent),
        cmocka_unit_test(no_tokens_and_no_sequences),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(files_give_the_golden_results),
        cmocka_unit_test(absent_state_means_zero_and_absent_offsets_one_document),
        cmocka_unit_test(L03_wrong_state_size_shows_both_numbers),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(step_form_writes_outputs_and_says_that_gradients_are_left_out),
        cmocka_unit_test(unknown_tensors_are_reported),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
