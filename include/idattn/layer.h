/* idattn/layer.h - the core of a layer as a call of its own, for embedding elsewhere. */
#ifndef IDATTN_LAYER_H
#define IDATTN_LAYER_H

#include "idattn/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* docs/method.md section 2 steps 6-7. All arrays row-major, fp32. H query heads, G = n_kv groups (H % G == 0);
 * documents are packed: cu_seqlens [n_seq+1] int64, non-decreasing, from 0 to n_tokens; empty documents are legal. */
typedef struct ida_mixer_args {
    int64_t n_tokens, n_seq, n_heads, n_kv, key_dim, value_dim, state_size; /* T, S, H, G, R, D, M */
    const int64_t *cu_seqlens;
    ida_discretization discretization;
    ida_readout readout;
    int64_t chunk;               /* chunked form: its length; 0 = the longest, which ida_options_json("mixer") tells */
    const float *q, *k, *v;      /* [T,H,R] [T,G,R] [T,G,D] */
    const float *log_dt, *a_log, *a_imag, *c_real, *c_imag; /* [G] [G,M] [G,M] [G,M,M] [G,M,M] */
    const float *state_real, *state_imag;         /* [S,G,M,R+D] before each document; NULL = zero */
    float *o;                                     /* [T,H,D] */
    float *final_state_real, *final_state_imag;   /* [S,G,M,R+D]; NULL = not wanted */
} ida_mixer_args;
/* Gradients of sum(o*grad_o) + sum(Re X grad_re) + sum(Im X grad_im). Written ("="), not accumulated. NULL = not wanted. */
typedef struct ida_mixer_grads {
    const float *grad_o, *grad_final_state_real, *grad_final_state_imag; /* the last two may be NULL = 0 */
    float *grad_q, *grad_k, *grad_v, *grad_log_dt, *grad_a_log, *grad_a_imag, *grad_c_real, *grad_c_imag;
    float *grad_state_real, *grad_state_imag;
} ida_mixer_grads;
IDA_API ida_status ida_mixer_forward(const ida_mixer_args *a, ida_form form);
IDA_API ida_status ida_mixer_backward(const ida_mixer_args *a, const ida_mixer_grads *g, ida_form form); /* not step */

/* Options of ida_mixer_file by name. */
typedef struct ida_mixer_options {
    const char *device;
    ida_form form;
    ida_dtype dtype;
    int64_t chunk;
} ida_mixer_options;
/* The same on a safetensors file of float64 tensors named as above, out to another (docs/formats.md). Gradients are
 * written when grad_o is present (the step form has none: it says so and writes the outputs). bf16: q, k, v, grad_o and o,
 * grad_q/k/v are rounded to bf16; on the CPU the core runs in fp32, on a GPU as in training. device: as ida_model_load_on, NULL =
 * "cpu"; IDA_F64 is for the CPU. */
IDA_API ida_status ida_mixer_file(const char *in_path, const char *out_path, ida_form form, ida_dtype dtype, int64_t chunk,
                                  const char *device);

#ifdef __cplusplus
}
#endif
#endif
