/* call_device.c - one call of the mixer core on a device: arrays go there, the op runs, results come back. Host devices take the
 * arrays as they are. Sizes were checked (mixer_api.c).
 * Invariant: everything taken from the device is in one list and goes back, whatever fails. */
#include <assert.h>

#include "core/mem.h"
#include "layers/call.h"
#include "ops/device.h"

enum { MAX_ARRAYS = 64 };

typedef struct table {
    const ida_device *dev;
    void *array[MAX_ARRAYS];
    int n;
} table;

static ida_status take(table *t, void **out, int64_t n, int64_t size) {
    assert(t->n < MAX_ARRAYS);
    IDA_TRY(ida_dev_alloc(t->dev, out, n, size, "mixer tensors"));
    t->array[t->n++] = *out;
    return IDA_OK;
}

static ida_status real_in(table *t, const real **out, const float *host, int64_t n) {
    void *p = NULL;
    *out = NULL;
    if (!host) return IDA_OK;
    IDA_TRY(take(t, &p, n, sizeof(real)));
    *out = p;
    return ida_dev_upload(t->dev, p, host, n * (int64_t)sizeof(real));
}

static ida_status act_in(table *t, const ida_act **out, const float *host, int64_t n) {
    const real *wide;
    void *p = NULL;
    *out = NULL;
    if (!host) return IDA_OK;
    IDA_TRY(real_in(t, &wide, host, n));
    IDA_TRY(take(t, &p, n, ida_act_bytes(t->dev, 1)));
    *out = p;
    return t->dev->ops->to_act(t->dev, p, wide, n);
}

static ida_status real_out(const table *t, float *host, const real *from, int64_t n) {
    return host ? ida_dev_download(t->dev, host, from, n * (int64_t)sizeof(real)) : IDA_OK;
}

static ida_status act_out(table *t, float *host, const ida_act *from, int64_t n) {
    void *wide = NULL;
    if (!host) return IDA_OK;
    IDA_TRY(take(t, &wide, n, sizeof(real)));
    IDA_TRY(t->dev->ops->from_act(t->dev, wide, from, n));
    return real_out(t, host, wide, n);
}

typedef struct sizes { int64_t q, k, v, o, gm, c, state; } sizes;

static sizes sizes_of(const ida_mixer_run *a) {
    const int64_t gm = a->n_kv * a->state_size;
    return (sizes){.q = a->n_tokens * a->n_heads * a->key_dim, .k = a->n_tokens * a->n_kv * a->key_dim,
                   .v = a->n_tokens * a->n_kv * a->value_dim, .o = a->n_tokens * a->n_heads * a->value_dim, .gm = gm,
                   .c = gm * a->state_size, .state = gm * (a->key_dim + a->value_dim)};
}

static ida_status inputs(table *t, const ida_mixer_run *a, const sizes *z, ida_interdomain_args *op) {
    *op = (ida_interdomain_args){.h = a->n_heads, .g = a->n_kv, .r = a->key_dim, .d = a->value_dim, .m = a->state_size,
                                 .chunk = a->chunk, .readout = a->readout};
    op->ssm.disc = a->discretization;
    IDA_TRY(act_in(t, &op->q, a->q, z->q));
    IDA_TRY(act_in(t, &op->k, a->k, z->k));
    IDA_TRY(act_in(t, &op->v, a->v, z->v));
    IDA_TRY(real_in(t, &op->ssm.log_dt, a->log_dt, a->n_kv));
    IDA_TRY(real_in(t, &op->ssm.a_log, a->a_log, z->gm));
    IDA_TRY(real_in(t, &op->ssm.a_imag, a->a_imag, z->gm));
    IDA_TRY(real_in(t, &op->ssm.c_re, a->c_real, z->c));
    IDA_TRY(real_in(t, &op->ssm.c_im, a->c_imag, z->c));
    const real *re, *im;
    IDA_TRY(real_in(t, &re, a->state_real, a->n_seq * z->state));
    IDA_TRY(real_in(t, &im, a->state_imag, a->n_seq * z->state));
    op->state_in = (ida_state_ref){(real *)(uintptr_t)re, (real *)(uintptr_t)im, z->state};
    return IDA_OK;
}

static ida_status states(table *t, ida_state_ref *s, int64_t n_seq, int64_t size) {
    *s = (ida_state_ref){.stride = size};
    IDA_TRY(take(t, (void **)&s->re, n_seq * size, sizeof(real)));
    IDA_TRY(take(t, (void **)&s->im, n_seq * size, sizeof(real)));
    IDA_TRY(ida_dev_zero(t->dev, s->re, n_seq * size * (int64_t)sizeof(real)));
    return ida_dev_zero(t->dev, s->im, n_seq * size * (int64_t)sizeof(real));
}

/* Token by token, one sequence after another, in the state of op->state_out. */
static ida_status run_step(table *t, const ida_mixer_run *a, const sizes *z, ida_interdomain_args op) {
    const ida_device *dev = t->dev;
    float *host = NULL;
    real *p = NULL;
    const int64_t n = 4 * z->gm + 2 * z->c, bytes = a->n_seq * z->state * (int64_t)sizeof(real);
    if (op.state_in.re) {
        IDA_TRY(ida_dev_copy(dev, op.state_out.re, op.state_in.re, bytes));
        IDA_TRY(ida_dev_copy(dev, op.state_out.im, op.state_in.im, bytes));
    }
    IDA_TRY(take(t, (void **)&p, n, sizeof(real)));
    IDA_TRY(IDA_ALLOC(host, n, "step form of the mixer"));
    const ida_ssm ssm = {a->log_dt, a->a_log, a->a_imag, a->c_real, a->c_imag, a->discretization};
    const int64_t gm = z->gm;
    const ida_ssm_prep on_host = {host, host + gm, host + 2 * gm, host + 3 * gm, host + 4 * gm, host + 4 * gm + z->c},
                       prep = {p, p + gm, p + 2 * gm, p + 3 * gm, p + 4 * gm, p + 4 * gm + z->c};
    ida_ref_ssm_prepare(&ssm, a->n_kv, a->state_size, a->readout, NULL, &on_host);
    ida_status st = ida_dev_upload(dev, p, host, n * (int64_t)sizeof(real));
    ida_free(host);
    const ida_interdomain_args all = op;
    for (int64_t s = 0; s < a->n_seq; s++)
        for (int64_t i = a->cu[s]; i < a->cu[s + 1] && st == IDA_OK; i++) {
            op.state_in = (ida_state_ref){all.state_out.re + s * z->state, all.state_out.im + s * z->state, z->state};
            op.q = ida_act_at(dev, (ida_act *)(uintptr_t)all.q, i * op.h * op.r);
            op.k = ida_act_at(dev, (ida_act *)(uintptr_t)all.k, i * op.g * op.r);
            op.v = ida_act_at(dev, (ida_act *)(uintptr_t)all.v, i * op.g * op.d);
            op.o = ida_act_at(dev, all.o, i * op.h * op.d);
            st = dev->ops->interdomain_step(dev, &op, &prep, 1);
        }
    return st;
}

static ida_status forward(table *t, const ida_mixer_run *a, const sizes *z, ida_form form, ida_interdomain_args *op) {
    const ida_device *dev = t->dev;
    const ida_seqs seqs = {.n = a->n_seq, .cu = a->cu};
    IDA_TRY(take(t, (void **)&op->o, z->o, ida_act_bytes(dev, 1)));
    IDA_TRY(states(t, &op->state_out, a->n_seq, z->state));
    IDA_TRY(form == IDA_FORM_STEP      ? run_step(t, a, z, *op)
            : form == IDA_FORM_CHUNKED ? dev->ops->interdomain_chunk_fwd(dev, op, &seqs)
                                       : dev->ops->interdomain_seq_fwd(dev, op, &seqs));
    IDA_TRY(act_out(t, a->o, op->o, z->o));
    IDA_TRY(real_out(t, a->final_state_real, op->state_out.re, a->n_seq * z->state));
    return real_out(t, a->final_state_imag, op->state_out.im, a->n_seq * z->state);
}

static ida_status backward(table *t, const ida_mixer_run *a, const sizes *z, ida_form form, const ida_interdomain_args *op) {
    const ida_device *dev = t->dev;
    const ida_seqs seqs = {.n = a->n_seq, .cu = a->cu};
    const real *re, *im;
    ida_interdomain_grads g = {0};
    real *param = NULL;
    const int64_t n[5] = {a->n_kv, z->gm, z->gm, z->c, z->c};
    int64_t at[6] = {0};
    for (int i = 0; i < 5; i++) at[i + 1] = at[i] + n[i];
    IDA_TRY(act_in(t, &g.dout, a->grad_o, z->o));
    IDA_TRY(real_in(t, &re, a->grad_final_state_real, a->n_seq * z->state));
    IDA_TRY(real_in(t, &im, a->grad_final_state_imag, a->n_seq * z->state));
    g.dstate_out = (ida_state_ref){(real *)(uintptr_t)re, (real *)(uintptr_t)im, z->state};
    IDA_TRY(states(t, &g.dstate_in, a->n_seq, z->state));
    IDA_TRY(take(t, (void **)&g.dq, z->q, ida_act_bytes(dev, 1)));
    IDA_TRY(take(t, (void **)&g.dk, z->k, ida_act_bytes(dev, 1)));
    IDA_TRY(take(t, (void **)&g.dv, z->v, ida_act_bytes(dev, 1)));
    IDA_TRY(take(t, (void **)&param, at[5], sizeof(real)));
    IDA_TRY(ida_dev_zero(dev, param, at[5] * (int64_t)sizeof(real)));
    g.dssm = (ida_ssm_grads){param, param + at[1], param + at[2], param + at[3], param + at[4]};
    IDA_TRY(form == IDA_FORM_CHUNKED ? dev->ops->interdomain_chunk_bwd(dev, op, &g, &seqs)
                                     : dev->ops->interdomain_seq_bwd(dev, op, &g, &seqs));
    IDA_TRY(act_out(t, a->grad_q, g.dq, z->q));
    IDA_TRY(act_out(t, a->grad_k, g.dk, z->k));
    IDA_TRY(act_out(t, a->grad_v, g.dv, z->v));
    float *const host[5] = {a->grad_log_dt, a->grad_a_log, a->grad_a_imag, a->grad_c_real, a->grad_c_imag};
    for (int i = 0; i < 5; i++) IDA_TRY(real_out(t, host[i], param + at[i], n[i]));
    IDA_TRY(real_out(t, a->grad_state_real, g.dstate_in.re, a->n_seq * z->state));
    return real_out(t, a->grad_state_imag, g.dstate_in.im, a->n_seq * z->state);
}

ida_status ida_mixer_run_on(const ida_device *dev, const ida_mixer_run *a, ida_form form, bool back) {
    if (ida_on_host(dev)) return ida_ref_mixer_run(dev, a, form, back);
    table t = {.dev = dev};
    const sizes z = sizes_of(a);
    ida_interdomain_args op;
    ida_status st = inputs(&t, a, &z, &op);
    if (st == IDA_OK) st = back ? backward(&t, a, &z, form, &op) : forward(&t, a, &z, form, &op);
    while (t.n > 0) ida_dev_free(dev, t.array[--t.n]);
    return st;
}
