/* call_api.c - the mixer core for embedding elsewhere, on fp32 arrays: ida_mixer_forward and ida_mixer_backward. It only checks;
 * the work is done by the CPU device (ops/mixer_run.h). The same on a file is in mixer_file.c.
 * Invariant: no size, pointer or offset of the caller reaches an op unchecked. Values are not looked at: NaN in gives NaN out. */
#include "core/mem.h"
#include "layers/call.h"
#include "ops/ops.h"

/* Scratch of the ops is below this many elements per state element and token; keeps their sizes far from overflow. */
enum { SCRATCH_FACTOR = 4096 };

static ida_status check_at_least(const char *name, int64_t value, int64_t least) {
    IDA_FAIL_IF(value < least, IDA_E_ARG, "mixer: %s is %lld, give at least %lld", name, (long long)value, (long long)least);
    return IDA_OK;
}

static ida_status check_product(const char *name, const int64_t *factor, int n) {
    int64_t p = SCRATCH_FACTOR;
    for (int i = 0; i < n; i++)
        IDA_FAIL_IF(factor[i] > 0 && !ida_mul64(p, factor[i], &p), IDA_E_ARG,
                    "mixer: the size of %s overflows 64 bits; check the sizes", name);
    return IDA_OK;
}

static ida_status check_offsets(const int64_t *cu, int64_t n_seq, int64_t n_tokens) {
    IDA_FAIL_IF(!cu, IDA_E_ARG, "mixer: cu_seqlens is NULL, give n_seq + 1 offsets from 0 to n_tokens");
    IDA_FAIL_IF(cu[0] != 0, IDA_E_ARG, "mixer: cu_seqlens[0] is %lld, must be 0", (long long)cu[0]);
    for (int64_t s = 0; s < n_seq; s++)
        IDA_FAIL_IF(cu[s + 1] < cu[s], IDA_E_ARG,
                    "mixer: cu_seqlens[%lld] = %lld is below cu_seqlens[%lld] = %lld; offsets must not decrease",
                    (long long)(s + 1), (long long)cu[s + 1], (long long)s, (long long)cu[s]);
    IDA_FAIL_IF(cu[n_seq] != n_tokens, IDA_E_ARG, "mixer: cu_seqlens ends at %lld, must end at the number of tokens, %lld",
                (long long)cu[n_seq], (long long)n_tokens);
    return IDA_OK;
}

ida_status ida_mixer_check(const ida_mixer_run *a, ida_form form) {
    IDA_FAIL_IF((int)form < IDA_FORM_SEQUENTIAL || form > IDA_FORM_CHUNKED, IDA_E_ARG, "mixer: unknown form %d", (int)form);
    IDA_FAIL_IF((int)a->discretization < IDA_DISC_ZOH || a->discretization > IDA_DISC_NORM, IDA_E_ARG,
                "mixer: unknown discretization %d", (int)a->discretization);
    IDA_FAIL_IF((int)a->readout < IDA_READOUT_HERMITIAN || a->readout > IDA_READOUT_BILINEAR, IDA_E_ARG,
                "mixer: unknown readout %d", (int)a->readout);
    IDA_TRY(check_at_least("n_tokens", a->n_tokens, 0));
    IDA_TRY(check_at_least("n_seq", a->n_seq, 0));
    IDA_TRY(check_at_least("n_heads", a->n_heads, 1));
    IDA_TRY(check_at_least("n_kv", a->n_kv, 1));
    IDA_TRY(check_at_least("key_dim", a->key_dim, 1));
    IDA_TRY(check_at_least("value_dim", a->value_dim, 1));
    IDA_TRY(check_at_least("state_size", a->state_size, 1));
    IDA_FAIL_IF(a->n_heads % a->n_kv, IDA_E_ARG,
                "mixer: %lld query heads cannot share %lld state groups evenly; n_heads must be a multiple of n_kv",
                (long long)a->n_heads, (long long)a->n_kv);
    IDA_FAIL_IF(a->chunk < 0 || a->chunk > IDA_MIXER_CHUNK, IDA_E_ARG,
                "mixer: chunk is %lld, give 1 to %d, or 0 for that", (long long)a->chunk, IDA_MIXER_CHUNK);
    int64_t width;
    IDA_FAIL_IF(!ida_add64(a->key_dim, a->value_dim, &width), IDA_E_ARG, "mixer: key_dim + value_dim overflows");
    IDA_TRY(check_product("q and o", (int64_t[]){a->n_tokens, a->n_heads, width}, 3));
    IDA_TRY(check_product("k and v", (int64_t[]){a->n_tokens, a->n_kv, width}, 3));
    IDA_TRY(check_product("c", (int64_t[]){a->n_kv, a->state_size, a->state_size}, 3));
    IDA_TRY(check_product("state", (int64_t[]){a->n_seq, a->n_kv, a->state_size, width}, 4));
    IDA_TRY(check_product("the states kept for gradients", (int64_t[]){a->n_tokens, a->state_size, width}, 3));
    return check_offsets(a->cu, a->n_seq, a->n_tokens);
}

static ida_status need(const char *name, const void *p, int64_t count) {
    IDA_FAIL_IF(!p && count > 0, IDA_E_ARG, "mixer: %s is NULL, %lld numbers are needed", name, (long long)count);
    return IDA_OK;
}

static ida_status need_pair(const char *name, const void *re, const void *im) {
    IDA_FAIL_IF(!re != !im, IDA_E_ARG, "mixer: of %s_real and %s_imag only one is given; give both or neither", name, name);
    return IDA_OK;
}

static ida_status run_from_args(const ida_mixer_args *a, ida_form form, ida_mixer_run *r) {
    IDA_FAIL_IF(!a, IDA_E_ARG, "mixer: arguments are NULL");
    *r = (ida_mixer_run){
        .n_tokens = a->n_tokens,
        .n_seq = a->n_seq,
        .n_heads = a->n_heads,
        .n_kv = a->n_kv,
        .key_dim = a->key_dim,
        .value_dim = a->value_dim,
        .state_size = a->state_size,
        .chunk = a->chunk,
        .cu = a->cu_seqlens,
        .discretization = a->discretization,
        .readout = a->readout,
        .q = a->q,
        .k = a->k,
        .v = a->v,
        .log_dt = a->log_dt,
        .a_log = a->a_log,
        .a_imag = a->a_imag,
        .c_real = a->c_real,
        .c_imag = a->c_imag,
        .state_real = a->state_real,
        .state_imag = a->state_imag,
        .o = a->o,
        .final_state_real = a->final_state_real,
        .final_state_imag = a->final_state_imag,
    };
    IDA_TRY(ida_mixer_check(r, form));
    const int64_t gm = r->n_kv * r->state_size;
    IDA_TRY(need("q", r->q, r->n_tokens));
    IDA_TRY(need("k", r->k, r->n_tokens));
    IDA_TRY(need("v", r->v, r->n_tokens));
    IDA_TRY(need("log_dt", r->log_dt, r->n_kv));
    IDA_TRY(need("a_log", r->a_log, gm));
    IDA_TRY(need("a_imag", r->a_imag, gm));
    IDA_TRY(need("c_real", r->c_real, gm * r->state_size));
    IDA_TRY(need("c_imag", r->c_imag, gm * r->state_size));
    IDA_TRY(need_pair("state", r->state_real, r->state_imag));
    return need_pair("final_state", r->final_state_real, r->final_state_imag);
}

ida_status ida_mixer_forward(const ida_mixer_args *a, ida_form form) {
    ida_mixer_run r;
    IDA_TRY(run_from_args(a, form, &r));
    IDA_TRY(need("o", r.o, r.n_tokens * r.n_heads * r.value_dim));
    return ida_ref_mixer_run(ida_cpu_device(), &r, form, false);
}

ida_status ida_mixer_backward(const ida_mixer_args *a, const ida_mixer_grads *g, ida_form form) {
    ida_mixer_run r;
    IDA_TRY(run_from_args(a, form, &r));
    IDA_FAIL_IF(form == IDA_FORM_STEP, IDA_E_ARG,
                "mixer: the step form has no gradients; use the chunked or the sequential form");
    IDA_FAIL_IF(!g, IDA_E_ARG, "mixer: the gradient arguments are NULL");
    IDA_TRY(need("grad_o", g->grad_o, r.n_tokens * r.n_heads * r.value_dim));
    IDA_TRY(need_pair("grad_final_state", g->grad_final_state_real, g->grad_final_state_imag));
    IDA_TRY(need_pair("grad_state", g->grad_state_real, g->grad_state_imag));
    r.grad_o = g->grad_o;
    r.grad_final_state_real = g->grad_final_state_real, r.grad_final_state_imag = g->grad_final_state_imag;
    r.grad_q = g->grad_q, r.grad_k = g->grad_k, r.grad_v = g->grad_v;
    r.grad_log_dt = g->grad_log_dt, r.grad_a_log = g->grad_a_log, r.grad_a_imag = g->grad_a_imag;
    r.grad_c_real = g->grad_c_real, r.grad_c_imag = g->grad_c_imag;
    r.grad_state_real = g->grad_state_real, r.grad_state_imag = g->grad_state_imag;
    return ida_ref_mixer_run(ida_cpu_device(), &r, form, true);
}
