/* mixer_run.h - one call of the mixer core over any op table and either element type, for the public API, files and tests.
 * It maps the three forms to ops and supplies what a caller left out; it does not check sizes (the caller has). The arrays are
 * untyped here so that a float file can run doubles: float for ida_ref_mixer_run, double for ida_ref64_mixer_run. */
#ifndef IDA_OPS_MIXER_RUN_H
#define IDA_OPS_MIXER_RUN_H

#include "core/status.h"

struct ida_device;

/* Fields as in ida_mixer_args and ida_mixer_grads (idattn.h); grad_* outputs "=", NULL = not wanted. cu: [n_seq+1]. */
typedef struct ida_mixer_run {
    int64_t n_tokens, n_seq, n_heads, n_kv, key_dim, value_dim, state_size, chunk;
    const int64_t *cu;
    ida_discretization discretization;
    ida_readout readout;
    const void *q, *k, *v, *log_dt, *a_log, *a_imag, *c_real, *c_imag, *state_real, *state_imag;
    void *o, *final_state_real, *final_state_imag;
    const void *grad_o, *grad_final_state_real, *grad_final_state_imag;
    void *grad_q, *grad_k, *grad_v, *grad_log_dt, *grad_a_log, *grad_a_imag, *grad_c_real, *grad_c_imag;
    void *grad_state_real, *grad_state_imag;
} ida_mixer_run;

/* backward false: writes o and the final state. True: the gradients (form sequential or chunked). dev: a device whose table has
 * the element type of the function. */
ida_status ida_ref_mixer_run(const struct ida_device *dev, const ida_mixer_run *a, ida_form form, bool backward);
ida_status ida_ref64_mixer_run(const struct ida_device *dev, const ida_mixer_run *a, ida_form form, bool backward);
extern const struct ida_device ida_ref64_device;

#endif
