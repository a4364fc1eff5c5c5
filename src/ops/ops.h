/* ops.h - THE contract of every op: formula, shapes, "=" or "+=", determinism. Three implementations fill the table:
 *   ref  (src/ops/ref)  plain C, double accumulation: the readable truth. Compiled twice, for float and for double tensors.
 *   cpu  (src/ops/cpu)  vectors and threads, fp32; compiled once per instruction set, starts as a copy of ref.
 *   cuda (src/ops/cuda) one GPU, loaded at run time (ops/backend.h).
 *
 * Rules for all ops
 *  - Tensors are row-major, contiguous. `real` (float in the product, double in the truth chain): parameters that are not
 *    matrices, gradients of parameters, saved factors, losses and states. `ida_act`: activations and their gradients, of the
 *    device's type dev->act_type; ida_act is an incomplete type, so a place in such an array is named by ida_act_at only. On host
 *    devices they are real, and the ops of such a device read them through ida_act_real. Weights that are matrices are an
 *    ida_matrix, each of a type of its own. Host code never follows a pointer of a device: it copies (ops/device.h).
 *  - All pointers are to the device's memory unless they say host.
 *  - N tokens are the packed concatenation of S sequences (documents, batch rows): seqs.cu [S+1] in HOST memory,
 *    cu[0] = 0, non-decreasing, cu[S] = N; empty sequences are legal. Nothing passes from one sequence to another.
 *  - "=" overwrites, "+=" accumulates. Gradients are named d + name. Parameter gradients are "+=", activation gradients
 *    "=" unless the block says otherwise. Outputs may not alias inputs unless the block says so.
 *  - N = 0 is legal everywhere and writes nothing (final states: copies of the initial ones; parameter gradients: as they were).
 *  - All reductions have a fixed order, independent of thread count. Sums run in double (ref) or fp32 with double across
 *    blocks (cpu), so parameter gradients do not lose digits with N.
 *  - Shapes and ids were checked by the caller (model, public API): an op asserts, it does not report, a bad shape.
 *    IDA_E_NOMEM (scratch) is the usual failure; linear also gives IDA_E_UNSUPPORTED where a size is beyond INT_MAX.
 *  - On a CUDA device an op may queue its work and return: a failure of that work is then told by a later call (IDA_E_IO).
 */
#ifndef IDA_OPS_H
#define IDA_OPS_H

#include "core/status.h"
#include "ops/matrix.h"

#ifndef IDA_REAL
#define IDA_REAL float
#define IDA_REAL_IS_FLOAT 1
#endif
typedef IDA_REAL real;
#ifdef IDA_REAL_IS_FLOAT
#define IDA_TYPE_REAL IDA_TYPE_F32
#else
#define IDA_TYPE_REAL IDA_TYPE_F64
#endif

typedef struct ida_act ida_act; /* elements of a device's act_type; never complete */

typedef struct ida_seqs {
    int64_t n;             /* S */
    const int64_t *cu;     /* [S+1], host */
    const int64_t *pos0;   /* [S], host: position of each sequence's first token (RoPE, cache); NULL = all 0 */
} ida_seqs;

/* At least one sequence, and one token in each: a step. */
static inline bool ida_seqs_one_token_each(const ida_seqs *s) {
    for (int64_t i = 0; i < s->n; i++)
        if (s->cu[i + 1] - s->cu[i] != 1) return false;
    return s->n > 0;
}

typedef struct ida_ops ida_ops;
typedef struct ida_device_memory ida_device_memory; /* ops/device.h */

/* A place to run: an op table and its memory. */
typedef struct ida_device {
    const ida_ops *ops;
    const char *name;      /* "ref", "cpu-avx512", "cuda-bf16", ... */
    ida_type act_type;     /* of activations: IDA_TYPE_REAL on a host device */
    const ida_device_memory *memory; /* NULL: host memory */
} ida_device;

/* Bytes of n activations. */
static inline int64_t ida_act_bytes(const ida_device *dev, int64_t n) { return ida_type_bytes(dev->act_type, n); }
/* p + i elements. Like strchr, it does not keep const. */
static inline ida_act *ida_act_at(const ida_device *dev, const ida_act *p, int64_t i) {
    return (ida_act *)(uintptr_t)((const char *)p + ida_act_bytes(dev, i));
}
/* The same array as numbers, and numbers as such an array: on a host device only. */
static inline real *ida_act_real(const ida_act *p) { return (real *)(uintptr_t)p; }
static inline ida_act *ida_act_of(const real *p) { return (ida_act *)(uintptr_t)p; }
/* A weight that is stored in the type of the activations. */
static inline ida_matrix ida_matrix_of(const ida_device *dev, const void *data, int64_t rows, int64_t cols) {
    const ida_matrix m = {data, NULL, dev->act_type, rows, cols};
    return m;
}

/* -- embed (docs/method.md "backbone"): y_n = table[ids_n].  y [N,d] =; table [V,d]; ids [N], 0 <= id < V.
 *    bwd: dtable[ids_n] += dy_n, rows added in token order. */
typedef ida_status ida_embed_fwd_fn(const ida_device *dev, ida_act *y, const int32_t *ids, const ida_matrix *table,
                                     int64_t n);
typedef ida_status ida_embed_bwd_fn(const ida_device *dev, real *dtable, const int32_t *ids, const ida_act *dy, int64_t n,
                                    int64_t vocab, int64_t d);

/* -- linear: y = x W^T (+ c; NULL = none).  y [N,out]; x [N,in]; w [out,in]; c [N,out], may be y. out and in are w's.
 *    bwd: dx = dy W (+ dx when add; dx NULL = not wanted);  dw += dy^T x (dw NULL = not wanted). */
typedef ida_status ida_linear_fwd_fn(const ida_device *dev, ida_act *y, const ida_act *x, const ida_matrix *w, const ida_act *c,
                                     int64_t n);
typedef ida_status ida_linear_bwd_fn(const ida_device *dev, ida_act *dx, real *dw, const ida_act *dy, const ida_act *x,
                                     const ida_matrix *w, int64_t n, bool add);

/* -- rmsnorm: y = x * rstd * g, rstd_n = 1/sqrt(mean_i x_ni^2 + eps).  y [N,d] =, rstd [N] = (saved); x [N,d]; g [d].
 *    eps >= IDA_LEAST_EPS, here and in the ops below: a row of zeros gives zeros and a finite rstd, never 0/0. Configurations and
 *    training options with less are refused.
 *    bwd: dx += (the residual gradient is already there);  dg +=. */
#define IDA_LEAST_EPS 1e-30
typedef ida_status ida_rmsnorm_fwd_fn(const ida_device *dev, ida_act *y, real *rstd, const ida_act *x, const real *g, int64_t n,
                                      int64_t d, double eps);
typedef ida_status ida_rmsnorm_bwd_fn(const ida_device *dev, ida_act *dx, real *dg, const ida_act *dy, const ida_act *x,
                                      const real *g, const real *rstd, int64_t n, int64_t d);

/* -- project (method section 3, of one layer's half): products of rows that are normalised first, for a step, which keeps nothing
 *    for a gradient: with xn = rmsnorm(x; gain, eps), each y = xn w^T or, where gate_w is not NULL, SiLU(xn gate_w^T) * (xn w^T).
 *    y [N,out] =; x [N,in]; gain [in]; w, gate_w [out,in]. No y aliases x, another y or the work space: xn [N,in], rstd [N],
 *    gate [N,out] (NULL without gate_w; products may share one), whose content afterwards is undefined.
 *    1 <= n_products <= IDA_MOST_PRODUCTS; a product's bits do not depend on which others are asked for. */
enum { IDA_MOST_PRODUCTS = 4 };
typedef struct ida_product {
    ida_act *y, *gate;
    const ida_matrix *w, *gate_w;
} ida_product;
typedef struct ida_project_args {
    const ida_act *x;
    const real *gain;
    ida_act *xn;
    real *rstd;
    int64_t n;
    double eps;
} ida_project_args;
typedef ida_status ida_project_fn(const ida_device *dev, const ida_product *products, int n_products,
                                  const ida_project_args *a);

/* -- headnorm (method step 5): per token and head y = x * rstd * g + b[h].  y, x [N,H,D]; rstd [N,H] =; g [D]; b [H,D] or
 *    NULL.  bwd: dx =;  dg +=, db += (NULL with b). */
typedef ida_status ida_headnorm_fwd_fn(const ida_device *dev, ida_act *y, real *rstd, const ida_act *x, const real *g,
                                       const real *b, int64_t n, int64_t h, int64_t d, double eps);
typedef ida_status ida_headnorm_bwd_fn(const ida_device *dev, ida_act *dx, real *dg, real *db, const ida_act *dy,
                                       const ida_act *x, const real *g, const real *rstd, int64_t n, int64_t h, int64_t d);

/* -- conv (method step 2, "SC"): causal depthwise, width 4: y_t[c] = b[c] + sum_k w[c,k] x_{t-3+k}[c]; w[c,3] meets the current
 *    token. Before a sequence's first token stand the rows of state_in [S,3,d] (oldest first; NULL = zeros).
 *    state_out [S,3,d] = the last 3 inputs (may be NULL; may alias state_in).
 *    `stride` = elements between sequences in all four state arrays (>= 3d).
 *    bwd: dx =; dw, db +=; dstate_out NULL = 0; dstate_in = (NULL = not wanted). */
typedef ida_status ida_conv_fwd_fn(const ida_device *dev, ida_act *y, real *state_out, const ida_act *x, const real *w,
                                   const real *b, const real *state_in, int64_t stride, const ida_seqs *seqs, int64_t d);
typedef struct ida_conv_bwd_args {
    ida_act *dx;
    real *dw, *db, *dstate_in;
    const ida_act *dy;
    const real *dstate_out;
    const ida_act *x;
    const real *w, *state_in;
    int64_t stride, d;
} ida_conv_bwd_args;
typedef ida_status ida_conv_bwd_fn(const ida_device *dev, const ida_conv_bwd_args *a, const ida_seqs *seqs);

/* -- rope (method step 3): rotates the pairs (i, i + D/2) of each head by sign * pos * theta^(-2i/D) (HF half-split form).
 *    y =, may alias x; [N,H,D], D even. Angles are formed and reduced in double at any position. sign -1 is the gradient. */
typedef ida_status ida_rope_fn(const ida_device *dev, ida_act *y, const ida_act *x, const ida_seqs *seqs, int64_t h, int64_t d,
                               double theta, int sign);

/* -- featmap (method step 4): xi(x) = s / r, s = SiLU(x), r = sqrt(sum_i s_i^2 + eps), per token and head.
 *    y, x [N,H,D]; rinv [N,H] = 1/r (saved).  bwd: dx =. */
typedef ida_status ida_featmap_fwd_fn(const ida_device *dev, ida_act *y, real *rinv, const ida_act *x, int64_t n, int64_t h,
                                      int64_t d, double eps);
typedef ida_status ida_featmap_bwd_fn(const ida_device *dev, ida_act *dx, const ida_act *dy, const ida_act *x, const real *rinv,
                                      int64_t n, int64_t h, int64_t d);

/* -- stream (method steps 2 to 5 of q, k, v, in one pass): y = headnorm(featmap(rope(conv(x)))), each part only where asked:
 *    conv: conv_w not NULL; rope: rope_theta > 0; featmap: l2_eps > 0; headnorm: gain not NULL (bias may be NULL). The parts and
 *    their arguments are those of the ops above. x, y [N,H,D].
 *    fwd: n streams of the same sequences, 1 <= n <= IDA_MOST_STREAMS, each of its own parts, H and D. Bit for bit what n calls
 *    with one each give. No y aliases an x or another y; a stream's states are no other's.
 *    bwd: of one; dx = from dy; everything between x and y is formed again from x. Parameter gradients "+=", NULL with their
 *    parameter. No gradient reaches state_in. */
enum { IDA_MOST_STREAMS = 3 };
typedef struct ida_stream_args {
    int64_t h, d;
    const ida_act *x;
    const real *conv_w, *conv_b, *state_in;
    real *state_out;
    int64_t stride;
    double rope_theta, l2_eps, norm_eps;
    const real *gain, *bias;
} ida_stream_args;
typedef struct ida_stream {
    ida_act *y;
    ida_stream_args args;
} ida_stream;
typedef struct ida_stream_grads { real *conv_w, *conv_b, *gain, *bias; } ida_stream_grads;
typedef ida_status ida_stream_fwd_fn(const ida_device *dev, const ida_stream *streams, int n, const ida_seqs *seqs);
typedef ida_status ida_stream_bwd_fn(const ida_device *dev, ida_act *dx, const ida_act *dy, const ida_stream_args *a,
                                     const ida_stream_grads *g, const ida_seqs *seqs);

/* -- swiglu: y = SiLU(g) * u, n elements (feed-forward, and the output gate).  y may alias g or u.
 *    bwd: dg =, du = (each may alias dy). */
typedef ida_status ida_swiglu_fwd_fn(const ida_device *dev, ida_act *y, const ida_act *g, const ida_act *u, int64_t n);
typedef ida_status ida_swiglu_bwd_fn(const ida_device *dev, ida_act *dg, ida_act *du, const ida_act *dy, const ida_act *g,
                                     const ida_act *u, int64_t n);

/* -- attention: causal softmax, o_i = sum_{j<=i} softmax_j(q_i.k_j / sqrt(D)) v_j.  o, q [N,H,D]; k, v [N,G,D], head h uses group
 *    h / (H/G). lse [N,H] = log-sum-exp (saved; NULL in inference). Never stores N x N.
 *    With a cache (inference): k_cache[s], v_cache[s] -> [cap >= pos0[s] + len, G, D]; the op appends the new rows at pos0[s] and
 *    attends to all of them. NULL arrays = no cache, pos0 ignored.
 *    bwd (no cache): dq =, dk =, dv =. */
typedef struct ida_attention_args {
    ida_act *o;
    real *lse;
    const ida_act *q, *k, *v;
    ida_act *const *k_cache, *const *v_cache; /* host arrays [S] of device pointers */
    int64_t h, g, d;
} ida_attention_args;
typedef ida_status ida_attention_fwd_fn(const ida_device *dev, const ida_attention_args *a, const ida_seqs *seqs);
typedef ida_status ida_attention_bwd_fn(const ida_device *dev, ida_act *dq, ida_act *dk, ida_act *dv, const ida_act *dout,
                                        const ida_attention_args *a, const ida_seqs *seqs);

/* -- The state-space parameters of one layer (method steps 6-7), G groups, M modes. fp32 or better in every mode.
 *    Lam_m = exp(dt A_m), dt = exp(log_dt), A_m = -exp(a_log_m) + i a_imag_m;  Bbar by `disc`:
 *    zoh (Lam-1)/A, euler dt, unit 1, norm sqrt(1-|Lam|^2). */
typedef struct ida_ssm {
    const real *log_dt, *a_log, *a_imag; /* [G] [G,M] [G,M] */
    const real *c_re, *c_im;             /* [G,M,M] */
    ida_discretization disc;
} ida_ssm;
typedef struct ida_ssm_grads { real *log_dt, *a_log, *a_imag, *c_re, *c_im; } ida_ssm_grads; /* all "+=" */

/* A state array: sequence s, part re/im at base + s*stride, layout [G,M,W]. re NULL = zero (input) or not wanted (output). */
typedef struct ida_state_ref { real *re, *im; int64_t stride; } ida_state_ref;

/* -- interdomain (method steps 6-7), W = R + D, z_t = [k_t ; v_t]:
 *      X_t = Lam (.) X_{t-1} + Bbar z_t^T;   U = C X[:, :R],  Gam = C X[:, R:];   o_t = Re sum_m w((U q_t)_m) Gam[m,:]
 *    w = conj (hermitian) or identity (bilinear). q [N,H,R]; k [N,G,R]; v [N,G,D]; o [N,H,D] =. Query head h uses group h/(H/G);
 *    the state is shared by the heads of a group. state_in: X before each sequence; state_out = X after it (may be one array).
 *    seq: token by token, the truth. chunk: the reassociated form of method section 4 (never U or Gam); `chunk` 1..64, 0 = 64;
 *    finite for any decay, a vanished term is exactly 0. Both: any N, M, R, D.
 *    bwd: from dout, dstate_out (re NULL = 0): dq =, dk =, dv =, dssm +=, dstate_in = (re NULL = not wanted).
 *    Each sequence of the chunk form is cut from its own start, so a sequence's result does not depend on its neighbours.
 *    Parameter gradients are summed over sequences in order. */
typedef struct ida_interdomain_args {
    int64_t h, g, r, d, m, chunk;
    ida_readout readout;
    ida_ssm ssm;
    const ida_act *q, *k, *v;
    ida_act *o;
    ida_state_ref state_in, state_out;
} ida_interdomain_args;
typedef struct ida_interdomain_grads {
    const ida_act *dout;
    ida_state_ref dstate_out, dstate_in;
    ida_act *dq, *dk, *dv;
    ida_ssm_grads dssm;
} ida_interdomain_grads;
typedef ida_status ida_interdomain_seq_fwd_fn(const ida_device *dev, const ida_interdomain_args *a, const ida_seqs *seqs);
typedef ida_status ida_interdomain_seq_bwd_fn(const ida_device *dev, const ida_interdomain_args *a,
                                              const ida_interdomain_grads *g, const ida_seqs *seqs);
typedef ida_status ida_interdomain_chunk_fwd_fn(const ida_device *dev, const ida_interdomain_args *a, const ida_seqs *seqs);
typedef ida_status ida_interdomain_chunk_bwd_fn(const ida_device *dev, const ida_interdomain_args *a,
                                                const ida_interdomain_grads *g, const ida_seqs *seqs);

/* -- step (decode, method section 6): one token for each of S sequences (N = S), state_in updated in place (state_out ignored).
 *    O(M(R+D) + M^2) per head. `prep` holds Lam, Bbar and G = C^H C (or C^T C), made once per model by ida_ssm_prepare. */
typedef struct ida_ssm_prep {
    real *lam_re, *lam_im, *b_re, *b_im; /* [G,M] each */
    real *g_re, *g_im;                   /* interdomain: [G,M,M]; s4d: effective read-out c_m = sum_n w_n C_nm, [H,M] */
} ida_ssm_prep;
typedef ida_status ida_interdomain_step_fn(const ida_device *dev, const ida_interdomain_args *a, const ida_ssm_prep *prep,
                                           int64_t n_seq);

/* -- s4d (method section 3: s4d, dual-linear): the same recurrence, linear read-out without query:
 *      y_t = Re sum_m w_m (C X_t)[m,:],  y [N,H,R+D] =: k half first;  w [H,M] real; here G = H.
 *    k [N,H,R], v [N,H,D] are the two halves of z. dw +=. The chunk form uses the scalar kernel
 *    K_l = Re sum_m c_m Bbar_m Lam_m^l. */
typedef struct ida_s4d_args {
    int64_t h, r, d, m, chunk;
    ida_ssm ssm;
    const ida_act *k, *v;
    const real *w;
    ida_act *y;
    ida_state_ref state_in, state_out;
} ida_s4d_args;
typedef struct ida_s4d_grads {
    const ida_act *dy;
    ida_state_ref dstate_out, dstate_in;
    ida_act *dk, *dv;
    real *dw;
    ida_ssm_grads dssm;
} ida_s4d_grads;
typedef ida_status ida_s4d_seq_fwd_fn(const ida_device *dev, const ida_s4d_args *a, const ida_seqs *seqs);
typedef ida_status ida_s4d_seq_bwd_fn(const ida_device *dev, const ida_s4d_args *a, const ida_s4d_grads *g,
                                      const ida_seqs *seqs);
typedef ida_status ida_s4d_chunk_fwd_fn(const ida_device *dev, const ida_s4d_args *a, const ida_seqs *seqs);
typedef ida_status ida_s4d_chunk_bwd_fn(const ida_device *dev, const ida_s4d_args *a, const ida_s4d_grads *g,
                                        const ida_seqs *seqs);
typedef ida_status ida_s4d_step_fn(const ida_device *dev, const ida_s4d_args *a, const ida_ssm_prep *prep, int64_t n_seq);

/* -- cross_entropy: losses_n = lse(logits_n) - logits_n[target_n], 0 where target_n < 0.  losses [N] = (NULL = not wanted).
 *    scale != 0: logits are replaced by scale * (softmax - onehot), 0 where target_n < 0. logits [N,V]; targets [N]. */
typedef ida_status ida_cross_entropy_fn(const ida_device *dev, real *losses, ida_act *logits, const int32_t *targets, int64_t n,
                                        int64_t vocab, double scale);

/* -- sqsum: sums[i] = sum of x_j^2, j in [at_i, at_i + n_i), in double, fixed order. NaN or infinity in x gives a non-finite sum.
 *    sums, spans [n_spans]: host. Waits for the device. */
typedef struct ida_span { int64_t at, n; } ida_span;
typedef ida_status ida_sqsum_fn(const ida_device *dev, double *sums, const real *x, const ida_span *spans, int64_t n_spans);

/* -- adamw: g' = gscale * g;  m = b1 m + (1-b1) g';  v = b2 v + (1-b2) g'^2;
 *    p = p - lr * (m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + wd * p).  One pass. w not NULL: w = p rounded to act.
 *    eps >= IDA_LEAST_EPS: where m and v are zero (a parameter that never had a gradient) only wd changes p. (PyTorch takes
 *    eps = 0 and makes NaN of such a parameter.) */
typedef struct ida_adamw_args { double lr, beta1, beta2, eps, weight_decay, gscale; int64_t t; ida_act *w; } ida_adamw_args;
typedef ida_status ida_adamw_fn(const ida_device *dev, real *p, real *m, real *v, const real *g, int64_t n,
                                const ida_adamw_args *a);

/* -- cast: y = x, rounded to nearest even.  to_act: x real, y act; from_act: x act, y real. */
typedef ida_status ida_to_act_fn(const ida_device *dev, ida_act *y, const real *x, int64_t n);
typedef ida_status ida_from_act_fn(const ida_device *dev, real *y, const ida_act *x, int64_t n);

struct ida_ops {
#define IDA_OP(name) ida_##name##_fn *name;
#include "ops/ops.def"
#undef IDA_OP
};

/* -- Helpers shared by implementations; defined once per element type in ref/ssm.c. */
#ifdef IDA_REAL_IS_FLOAT
#define IDA_REF(name) ida_ref_##name
#else
#define IDA_REF(name) ida_ref64_##name
#endif
extern const ida_ops IDA_REF(ops);
extern const ida_device IDA_REF(device);
#define IDA_OP(name) ida_##name##_fn IDA_REF(name);
#include "ops/ops.def"
#undef IDA_OP

/* Lam and Bbar of one group in double: arrays [M]. */
void IDA_REF(ssm_discretize)(const ida_ssm *s, int64_t group, int64_t m, double *lam_re, double *lam_im, double *b_re,
                             double *b_im);
/* Chain rule of the above: given d loss/d Re, Im of Lam and Bbar ([M], double), adds to log_dt, a_log, a_imag gradients. */
void IDA_REF(ssm_discretize_bwd)(const ida_ssm *s, int64_t group, int64_t m, const double *dlam_re, const double *dlam_im,
                                 const double *db_re, const double *db_im, const ida_ssm_grads *g);
/* log Lam of one group: log|Lam| = Re(dt A) <= 0 and the angle Im(dt A) reduced to [-pi, pi]. A power Lam^p is the
 * exponential of p times this (ref), or a running product in double of at most 64 of them (cpu, about 2^-46 relative) rounded
 * once to fp32. Powers in fp32 are never multiplied. */
void IDA_REF(ssm_log_lam)(const ida_ssm *s, int64_t group, int64_t m, double *log_abs, double *angle);
/* ssm_discretize_bwd with the gradient of log Lam (= conj(Lam) dLam) in place of dLam: what the chunked forms gather, and
 * well defined where Lam itself has vanished. */
void IDA_REF(ssm_log_bwd)(const ida_ssm *s, int64_t group, int64_t m, const double *dlog_re, const double *dlog_im,
                          const double *db_re, const double *db_im, const ida_ssm_grads *g);
/* prep for step. Interdomain: w NULL, fills g = C^H C or C^T C. s4d: w [H,M], fills c. All arrays given by the caller. */
void IDA_REF(ssm_prepare)(const ida_ssm *s, int64_t groups, int64_t m, ida_readout readout, const real *w,
                          const ida_ssm_prep *prep);

/* -- kernel (method section 7, the ideal form; a study, forward only, double): causal kernel attention of one head by
 *    projection. Features xi: random Fourier features of the Gaussian kernel exp(-|q-k|^2/2) (n_feat even, frequencies from
 *    seed); basis: HiPPO-LegS of order m over [0, t]; read-out o = sum_m (xi(q).u_m) gam_m / sum_m (xi(q).u_m) eta_m.
 *    q, k [n,dk], v [n,dv], o [n,dv].  In ref/kernel_form.c, double only. */
ida_status ida_kernel_form_fwd(double *o, const double *q, const double *k, const double *v, int64_t n, int64_t dk, int64_t dv,
                               int64_t m, int64_t n_feat, uint64_t seed);
/* Its limit: the same features, sums over tokens (no basis). exact: the Gaussian kernel itself. */
ida_status ida_kernel_form_exact(double *o, const double *q, const double *k, const double *v, int64_t n, int64_t dk,
                                 int64_t dv, int64_t n_feat, uint64_t seed, bool exact_kernel);

#ifdef IDA_REAL_IS_FLOAT
#include "core/cpu.h"
/* The CPU device of an instruction set this machine has (NULL when it has not). */
const ida_device *ida_cpu_device_for(ida_isa isa);
/* The one the product uses: ida_cpu_isa(). */
const ida_device *ida_cpu_device(void);
#endif

#endif
