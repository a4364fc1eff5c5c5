/* golden.h - the files of tests/data/golden: inputs of the mixer core and what an independent float64 program made of them. Read
 * without cmocka, so that the GPU checks can use it too. */
#ifndef IDA_TESTS_OPS_GOLDEN_H
#define IDA_TESTS_OPS_GOLDEN_H

#include <string.h>

#include "core/mem.h"
#include "io/safetensors.h"
#include "ops/mixer_run.h"

enum { N_IN = 13, N_OUT = 13, N_FWD = 3, GOLDEN_MAX_CU = 16 };
enum { Q, K, V, LOG_DT, A_LOG, A_IMAG, C_RE, C_IM, S_RE, S_IM, GO, GS_RE, GS_IM };
enum { O, F_RE, F_IM, DQ, DK, DV, D_LOG_DT, D_A_LOG, D_A_IMAG, D_C_RE, D_C_IM, DS_RE, DS_IM };
/* clang-format off */
static const char *const in_names[N_IN] = {
    "q", "k", "v", "log_dt", "a_log", "a_imag", "c_real", "c_imag", "state_real", "state_imag",
    "grad_o", "grad_final_state_real", "grad_final_state_imag"};
static const char *const out_names[N_OUT] = {
    "o", "final_state_real", "final_state_imag", "grad_q", "grad_k", "grad_v", "grad_log_dt", "grad_a_log", "grad_a_imag",
    "grad_c_real", "grad_c_imag", "grad_state_real", "grad_state_imag"};
/* clang-format on */
static const char *const golden_files[] = {"plain.safetensors", "bilinear.safetensors", "heads.safetensors", "packed.safetensors",
                                           "unit.safetensors"};

typedef struct golden {
    ida_mixer_run run; /* sizes and options; no array is set */
    int64_t cu[GOLDEN_MAX_CU], n_in[N_IN], n_out[N_OUT];
    double *in[N_IN], *want[N_OUT];
} golden;

/* Points r at arrays in the order of the names; an array may be NULL. */
static inline void golden_bind(ida_mixer_run *r, void *const *in, void *const *out) {
    r->q = in[Q], r->k = in[K], r->v = in[V], r->log_dt = in[LOG_DT], r->a_log = in[A_LOG], r->a_imag = in[A_IMAG];
    r->c_real = in[C_RE], r->c_imag = in[C_IM], r->state_real = in[S_RE], r->state_imag = in[S_IM];
    r->grad_o = in[GO], r->grad_final_state_real = in[GS_RE], r->grad_final_state_imag = in[GS_IM];
    r->o = out[O], r->final_state_real = out[F_RE], r->final_state_imag = out[F_IM];
    r->grad_q = out[DQ], r->grad_k = out[DK], r->grad_v = out[DV], r->grad_log_dt = out[D_LOG_DT], r->grad_a_log = out[D_A_LOG];
    r->grad_a_imag = out[D_A_IMAG], r->grad_c_real = out[D_C_RE], r->grad_c_imag = out[D_C_IM];
    r->grad_state_real = out[DS_RE], r->grad_state_imag = out[DS_IM];
}

static inline ida_status golden_array(const ida_st_file *f, const char *name, double **p, int64_t *n) {
    const ida_st_tensor *t = ida_st_find(f, name);
    IDA_FAIL_IF(!t, IDA_E_FORMAT, "%s lacks %s", f->path, name);
    *n = t->numel;
    IDA_TRY(IDA_ALLOC(*p, t->numel, name));
    return ida_st_read_f64(f, name, t->ndim, t->shape, *p);
}

static inline ida_status golden_read(const ida_st_file *f, golden *g) {
    const ida_st_tensor *q = ida_st_find(f, "q"), *v = ida_st_find(f, "v"), *a = ida_st_find(f, "a_log"),
                        *cu = ida_st_find(f, "cu_seqlens");
    const char *disc = ida_st_meta(f, "discretization"), *readout = ida_st_meta(f, "readout");
    IDA_FAIL_IF(!q || !v || !a || !cu || !disc || !readout || cu->dtype != IDA_ST_I64 || cu->numel > GOLDEN_MAX_CU, IDA_E_FORMAT,
                "%s is not a golden file", f->path);
    IDA_FAIL_IF(strcmp(disc, "zoh") && strcmp(disc, "unit"), IDA_E_FORMAT, "%s: discretization %s", f->path, disc);
    IDA_FAIL_IF(strcmp(readout, "hermitian") && strcmp(readout, "bilinear"), IDA_E_FORMAT, "%s: readout %s", f->path, readout);
    memcpy(g->cu, cu->data, (size_t)cu->bytes);
    g->run = (ida_mixer_run){.n_tokens = q->shape[0],
                             .n_seq = cu->numel - 1,
                             .n_heads = q->shape[1],
                             .n_kv = v->shape[1],
                             .key_dim = q->shape[2],
                             .value_dim = v->shape[2],
                             .state_size = a->shape[1],
                             .discretization = strcmp(disc, "zoh") ? IDA_DISC_UNIT : IDA_DISC_ZOH,
                             .readout = strcmp(readout, "bilinear") ? IDA_READOUT_HERMITIAN : IDA_READOUT_BILINEAR};
    for (int i = 0; i < N_IN; i++) IDA_TRY(golden_array(f, in_names[i], &g->in[i], &g->n_in[i]));
    for (int i = 0; i < N_OUT; i++) IDA_TRY(golden_array(f, out_names[i], &g->want[i], &g->n_out[i]));
    return IDA_OK;
}

static inline void golden_close(golden *g) {
    for (int i = 0; i < N_IN; i++) ida_free(g->in[i]);
    for (int i = 0; i < N_OUT; i++) ida_free(g->want[i]);
    *g = (golden){0};
}

/* golden_close whatever it returns. */
static inline ida_status golden_open(golden *g, const char *path) {
    ida_st_file *f;
    *g = (golden){0};
    IDA_TRY(ida_st_open(path, &f));
    const ida_status st = golden_read(f, g);
    ida_st_close(f);
    return st;
}

#endif
