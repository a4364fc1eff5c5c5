/* ops_scan.c - ops_check of the mixer cores: interdomain and s4d, forms seq, chunk and step.
 *
 * fp32: 1e-4. On a bf16 device the tensors are bf16. The seq and step forms have fp32 arithmetic inside: only outputs are
 * rounded. The chunk form of interdomain has bf16 operands: naive is the token-by-token program of naive.h. For s4d naive is what
 * rounding each of the operands once explains, 2^-9 each in the mean: three of them (kernel, state, coefficient) in outputs and
 * gradients of the inputs, one (powers of Lam) in the final state, six in gradients of parameters. d log_dt is one number a
 * group, a sum over the modes of Re A dRe + Im A dIm (log Lam = dt A) that cancels: what its terms may be off, as d a_log and d
 * a_imag show it, is what it may be off; and as it is one draw and no mean of many, of which twice the standard deviation is
 * exceeded once in 22, interdomain's is four times that.
 *
 * Where the gradient of the final state is given, the chunk form on tensor cores is allowed more in the gradient of log Lam. It
 * sums moments: every flow of gradient through a mode is counted where it enters a chunk and where it leaves it, with weights
 * measured from the chunk's centre c = 32, so that what goes in at token j and out at token i has the weight i - j. Readers and
 * writers of a chunk use the same rounded operands, and the parts that cancel do cancel. But the flow from the final gradient dX
 * enters as (rows-1-c) conj(X) dX and leaves as e conj(X~) dX~ to the state before the last chunk (e = 64, or c+1 in the first)
 * and as sum_j (c-j) conj(F~_j) z_j dX^ to its tokens, and X, X~ and dX^ are rounded to bf16 each on its own. naive has thus, for
 * each of the three terms, 2^-10 of it (the root mean square of a rounding to bf16), over the columns as independent errors add
 * up. In a sequence of one token the terms are 32 times their sum; in one of 64 and more they are no larger than it. */
#include <complex.h>
#include <math.h>
#include <stdlib.h>

#include "naive.h"
#include "ops_check.h"

enum { X_Q, X_K, X_V, X_LOG_DT, X_A_LOG, X_A_IMAG, X_C_RE, X_C_IM, X_S_RE, X_S_IM, N_X }; /* Q: w of s4d */
enum { Y_O = N_X, Y_F_RE, Y_F_IM, Z = N_X + 3 }; /* forward: outputs. Backward: their gradients, then at Z those of the inputs */
enum states { NO_STATE, STATE_IN, STATES, SHARED }; /* SHARED: the final state replaces the initial one */

typedef struct scan {
    const char *name;
    seq_set set;
    int64_t h, g, r, d, m, chunk;
    enum states states;
    int64_t gap;               /* elements between the states of two sequences */
    ida_discretization disc;
    ida_readout readout;
    double dt_top;             /* log dt runs from log 1e-3 to this over the groups */
    bool s4d, seq, backward;
} scan;

static int64_t state_stride(const scan *s) { return s->g * s->m * (s->r + s->d) + s->gap; }

/* ---- calls */
static ida_ssm ssm_of(const scan *s, void *const *p) {
    return (ida_ssm){p[X_LOG_DT], p[X_A_LOG], p[X_A_IMAG], p[X_C_RE], p[X_C_IM], s->disc};
}
static ida_ssm_grads grads_of(void *const *p) {
    return (ida_ssm_grads){p[Z + X_LOG_DT], p[Z + X_A_LOG], p[Z + X_A_IMAG], p[Z + X_C_RE], p[Z + X_C_IM]};
}
static ida_state_ref state_at(const scan *s, void *const *p, int re) {
    return (ida_state_ref){p[re], p[re + 1], state_stride(s)};
}

static ida_status call_interdomain(const ida_device *dev, void *const *p, const void *args) {
    const scan *s = args;
    const ida_seqs seqs = {s->set.n, s->set.cu, NULL};
    ida_interdomain_args a = {.h = s->h, .g = s->g, .r = s->r, .d = s->d, .m = s->m, .chunk = s->chunk, .readout = s->readout,
                              .ssm = ssm_of(s, p), .q = p[X_Q], .k = p[X_K], .v = p[X_V], .state_in = state_at(s, p, X_S_RE)};
    if (!s->backward) {
        a.o = p[Y_O];
        a.state_out = s->states == SHARED ? a.state_in : state_at(s, p, Y_F_RE);
        return (s->seq ? dev->ops->interdomain_seq_fwd : dev->ops->interdomain_chunk_fwd)(dev, &a, &seqs);
    }
    const ida_interdomain_grads g = {.dout = p[Y_O],
                                     .dstate_out = state_at(s, p, Y_F_RE),
                                     .dstate_in = state_at(s, p, Z + X_S_RE),
                                     .dq = p[Z + X_Q],
                                     .dk = p[Z + X_K],
                                     .dv = p[Z + X_V],
                                     .dssm = grads_of(p)};
    return (s->seq ? dev->ops->interdomain_seq_bwd : dev->ops->interdomain_chunk_bwd)(dev, &a, &g, &seqs);
}
static ida_status call_s4d(const ida_device *dev, void *const *p, const void *args) {
    const scan *s = args;
    const ida_seqs seqs = {s->set.n, s->set.cu, NULL};
    ida_s4d_args a = {.h = s->h,
                      .r = s->r,
                      .d = s->d,
                      .m = s->m,
                      .chunk = s->chunk,
                      .ssm = ssm_of(s, p),
                      .k = p[X_K],
                      .v = p[X_V],
                      .w = p[X_Q],
                      .state_in = state_at(s, p, X_S_RE)};
    if (!s->backward) {
        a.y = p[Y_O];
        a.state_out = s->states == SHARED ? a.state_in : state_at(s, p, Y_F_RE);
        return (s->seq ? dev->ops->s4d_seq_fwd : dev->ops->s4d_chunk_fwd)(dev, &a, &seqs);
    }
    const ida_s4d_grads g = {.dy = p[Y_O], .dstate_out = state_at(s, p, Y_F_RE), .dstate_in = state_at(s, p, Z + X_S_RE),
                             .dk = p[Z + X_K], .dv = p[Z + X_V], .dw = p[Z + X_Q], .dssm = grads_of(p)};
    return (s->seq ? dev->ops->s4d_seq_bwd : dev->ops->s4d_chunk_bwd)(dev, &a, &g, &seqs);
}

/* ---- arrays */
static void mark_gaps(const scan *s, array *a) {
    const int64_t stride = state_stride(s);
    for (int64_t q = 0; q < s->set.n; q++)
        for (int64_t i = stride - s->gap; i < stride; i++) poison(a, q * stride + i);
}

static void add_inputs(kase *k, const scan *s) {
    const int64_t n = set_tokens(&s->set), gm = s->g * s->m, states = s->set.n * state_stride(s);
    const double c = sqrt(0.5 / (double)s->m);
    if (s->s4d) in(k, "w", REAL, s->h * s->m, 0, 1);
    else in(k, "q", ACT, n * s->h * s->r, 0.5 / sqrt((double)s->r), 1 / sqrt((double)s->r));
    in(k, "k", ACT, n * s->g * s->r, 0, 1);
    in(k, "v", ACT, n * s->g * s->d, 0, 1);
    array *log_dt = in(k, "log_dt", REAL, s->g, 0, 0);
    for (int64_t i = 0; i < s->g; i++)
        set(k, log_dt, i, log(1e-3) + (s->dt_top - log(1e-3)) * (s->g > 1 ? (double)i / (double)(s->g - 1) : 0.5));
    in(k, "a_log", REAL, gm, -0.7, 0.1);
    array *a_imag = in(k, "a_imag", REAL, gm, 0, 0.1);
    for (int64_t i = 0; i < gm; i++) set(k, a_imag, i, (double)a_imag->value[i] + 3.14159 * (double)(i % s->m));
    in(k, "c_re", REAL, gm * s->m, 0, c);
    in(k, "c_im", REAL, gm * s->m, 0, c);
    for (int part = 0; part < 2; part++) {
        const char *name = part ? "state_im" : "state_re";
        if (s->states == NO_STATE) absent(k);
        else
            mark_gaps(s, s->states == SHARED && !s->backward ? inout(k, name, REAL, states, 0, 1)
                                                                : in(k, name, REAL, states, 0, 1));
    }
}

static void add_outputs(kase *k, const scan *s) {
    const int64_t n = set_tokens(&s->set), states = s->set.n * state_stride(s), wide = s->s4d ? s->r + s->d : s->d;
    if (!s->backward) out(k, "o", ACT, n * s->h * wide);
    else in(k, "do", ACT, n * s->h * wide, 0, 1);
    for (int part = 0; part < 2; part++) {
        if (s->states != STATES) absent(k);
        else if (!s->backward) out(k, part ? "final_im" : "final_re", REAL, states);
        else mark_gaps(s, in(k, part ? "dfinal_im" : "dfinal_re", REAL, states, 0, 1));
    }
    if (!s->backward) return;
    static const char *const names[N_X] = {"dq",      "dk",    "dv",    "dlog_dt",   "da_log",
                                           "da_imag", "dc_re", "dc_im", "dstate_re", "dstate_im"};
    for (int i = 0; i < N_X; i++) {
        const array *x = &k->a[i];
        if (!x->name) absent(k);
        else if (x->type == REAL && i < X_S_RE) add(k, s->s4d && i == X_Q ? "dw" : names[i], REAL, x->n);
        else out(k, names[i], x->type, x->n);
    }
}

/* ---- tolerances */
/* Error of d log_dt that these errors of d a_log and d a_imag explain, over |d log_dt|. */
static double carried(const kase *k, const double *e_log, const double *e_imag) {
    const array *dt = &k->a[Z + X_LOG_DT];
    double sum = 0, size = 0;
    for (int64_t i = 0; i < dt->n; i++) size += pow(dt->want[i] - (double)dt->value[i], 2);
    for (int64_t i = 0; i < k->a[X_A_LOG].n; i++) sum += pow(e_log[i], 2) + pow((double)k->a[X_A_IMAG].value[i] * e_imag[i], 2);
    return size > 0 ? sqrt(sum / size) : 0;
}
/* Errors of `part` of each element's size. */
static double carried_part(const kase *k, double part) {
    const int64_t n = k->a[X_A_LOG].n;
    double *e = must_alloc(2 * n, sizeof *e);
    for (int w = 0; w < 2; w++) {
        const array *a = &k->a[Z + (w ? X_A_IMAG : X_A_LOG)];
        for (int64_t i = 0; i < n; i++) e[w * n + i] = part * (a->want[i] - (double)a->value[i]);
    }
    const double c = carried(k, e, e + n);
    free(e);
    return c;
}

static double complex cx(double re, double im) { return re + im * I; }
/* Variance of d log Lam [G,M] by the roundings of X, X~ and dX^ in the last chunk of each sequence (top comment). */
static void moment_variance(const kase *k, const scan *s, double *out) {
    enum { CHUNK = 64, CENTRE = CHUNK / 2 };
    const int64_t w = s->r + s->d, m = s->m;
    void *p[N_X];
    double *lam = must_alloc(4 * m, sizeof *lam);
    for (int i = 0; i < N_X; i++) p[i] = k->a[i].value;
    const ida_ssm ssm = ssm_of(s, p);
    for (int64_t i = 0; i < s->set.n * s->g * m * w; i++) {
        const int64_t q = i / (s->g * m * w), g = i / (m * w) % s->g, mode = i / w % m, column = i % w;
        const int64_t begin = s->set.cu[q], len = s->set.cu[q + 1] - begin, rows = (len - 1) % CHUNK + 1;
        const int64_t state = q * state_stride(s) + i % (s->g * m * w);
        if (len == 0) continue;
        if (i % (m * w) == 0) ida_ref_ssm_discretize(&ssm, g, m, lam, lam + m, lam + 2 * m, lam + 3 * m);
        const double complex l = cx(lam[mode], lam[m + mode]), b = cx(lam[2 * m + mode], lam[3 * m + mode]);
        double complex old = cx((double)k->a[X_S_RE].value[state], (double)k->a[X_S_IM].value[state]), fresh = 0, weighed = 0;
        for (int64_t t = 0; t < len; t++) {
            const int64_t row = (begin + t) * s->g + g, j = t - (len - rows);
            const double complex bz = b * (double)(column < s->r ? k->a[X_K].value[row * s->r + column]
                                                                 : k->a[X_V].value[row * s->d + column - s->r]);
            old = l * old + (j < 0 ? bz : 0), fresh = l * fresh + (j < 0 ? 0 : bz);
            weighed = l * weighed + (j < 0 ? 0 : (double)(CENTRE - j) * bz);
        }
        const double enters = (double)(rows - 1 - CENTRE) * cabs(old + fresh),
                     leaves = (len > CHUNK ? CHUNK : CENTRE + 1) * cabs(old),
                     dx = hypot((double)k->a[Y_F_RE].value[state], (double)k->a[Y_F_IM].value[state]) * 0x1p-10;
        out[g * m + mode] += (pow(enters, 2) + pow(leaves, 2) + pow(cabs(weighed), 2)) * dx * dx;
    }
    free(lam);
}
/* Adds it to naive of the gradients of log_dt, a_log and a_imag: log Lam = dt (-exp(a_log) + i a_imag). */
static void allow_moments(kase *k, const scan *s) {
    array *to[3] = {&k->a[Z + X_LOG_DT], &k->a[Z + X_A_LOG], &k->a[Z + X_A_IMAG]};
    double *variance = must_alloc(s->g * s->m, sizeof *variance), sum[3] = {0};
    moment_variance(k, s, variance);
    for (int64_t i = 0; i < s->g * s->m; i++) {
        const double v = variance[i] * exp(2 * (double)k->a[X_LOG_DT].value[i / s->m]),
                     v_log = v * exp(2 * (double)k->a[X_A_LOG].value[i]), a_imag = (double)k->a[X_A_IMAG].value[i];
        sum[0] += v_log + v * a_imag * a_imag, sum[1] += v_log, sum[2] += v;
    }
    for (int o = 0; o < 3; o++) {
        double size = 0;
        for (int64_t i = 0; i < to[o]->n; i++) size += pow(to[o]->want[i] - (double)to[o]->value[i], 2);
        if (size > 0) to[o]->naive = sqrt(pow(to[o]->naive, 2) + sum[o] / size);
    }
    free(variance);
}

/* The values of an array without the gaps, as doubles; NULL when absent. */
static double *packed(const scan *s, const array *a, int64_t gap) {
    if (!a->name) return NULL;
    double *p = must_alloc(a->n, sizeof *p), *at = p;
    const int64_t stride = state_stride(s);
    for (int64_t i = 0; i < a->n; i++)
        if (gap == 0 || i % stride < stride - gap) *at++ = (double)a->value[i];
    return p;
}

/* Runs naive.h on the case's inputs; sets naive of what the case compares. */
static void judge_naive(kase *k, const scan *s) {
    double *x[N_X + 3] = {NULL}, *y[3 + N_X] = {NULL};
    const int64_t width = s->g * s->m * (s->r + s->d) * s->set.n, n = set_tokens(&s->set);
    for (int i = 0; i < N_X; i++) x[i] = packed(s, &k->a[i], i >= X_S_RE ? s->gap : 0);
    for (int i = 0; i < 3 && s->backward; i++) x[N_X + i] = packed(s, &k->a[Y_O + i], i ? s->gap : 0);
    if (!s->backward) x[Y_O] = must_alloc(n * s->h * s->d, sizeof(double));
    for (int i = 0; i < 3; i++) y[i] = must_alloc(i ? width : n * s->h * s->d, sizeof(double));
    for (int i = 0; i < N_X; i++) y[3 + i] = must_alloc(i < X_S_RE ? k->a[i].n : width, sizeof(double));
    const bool st = s->states != NO_STATE;
    const ida_mixer_run r = {.n_tokens = n,
                             .n_seq = s->set.n,
                             .n_heads = s->h,
                             .n_kv = s->g,
                             .key_dim = s->r,
                             .value_dim = s->d,
                             .state_size = s->m,
                             .cu = s->set.cu,
                             .discretization = s->disc,
                             .readout = s->readout,
                             .q = x[X_Q],
                             .k = x[X_K],
                             .v = x[X_V],
                             .log_dt = x[X_LOG_DT],
                             .a_log = x[X_A_LOG],
                             .a_imag = x[X_A_IMAG],
                             .c_real = x[X_C_RE],
                             .c_imag = x[X_C_IM],
                             .state_real = x[X_S_RE],
                             .state_imag = x[X_S_IM],
                             .grad_o = x[Y_O],
                             .grad_final_state_real = x[Y_F_RE],
                             .grad_final_state_imag = x[Y_F_IM],
                             .o = y[0],
                             .final_state_real = st ? y[1] : NULL,
                             .final_state_imag = st ? y[2] : NULL,
                             .grad_q = y[3],
                             .grad_k = y[4],
                             .grad_v = y[5],
                             .grad_log_dt = y[6],
                             .grad_a_log = y[7],
                             .grad_a_imag = y[8],
                             .grad_c_real = y[9],
                             .grad_c_imag = y[10],
                             .grad_state_real = st ? y[11] : NULL,
                             .grad_state_imag = st ? y[12] : NULL};
    naive_bf16_run(&r);
    const double *e_log = NULL, *e_imag = NULL;
    for (int i = 0; i < (s->backward ? N_X : 1); i++) { /* the final state is exact in naive */
        array *a = &k->a[s->backward ? Z + i : Y_O];
        double *mine = y[s->backward ? 3 + i : 0], sum = 0, size = 0;
        const int64_t gap = i >= X_S_RE ? s->gap : 0, stride = state_stride(s);
        for (int64_t j = 0, at = 0; a->name && j < a->n; j++) {
            if (gap && j % stride >= stride - gap) continue;
            const double want = a->want[j] - (a->role == ADD ? (double)a->value[j] : 0);
            mine[at] -= want;
            sum += mine[at] * mine[at], size += want * want, at++;
        }
        a->naive = size > 0 ? sqrt(sum / size) : 0;
        if (i == X_A_LOG) e_log = mine;
        if (i == X_A_IMAG) e_imag = mine;
    }
    if (s->backward) k->a[Z + X_LOG_DT].naive = carried(k, e_log, e_imag);
    if (s->backward && s->states == STATES && s->chunk == 0) allow_moments(k, s);
    if (s->backward) k->a[Z + X_LOG_DT].naive *= 2; /* one draw */
    for (int i = 0; i < N_X + 3; i++) free(x[i]), free(y[i]);
}

static void judge(kase *k) {
    const scan *s = k->args;
    const double unit = 0x1p-9;
    for (int i = 0; i < k->n; i++) k->a[i].tol = 1e-4;
    if (s->backward) k->a[Z + X_LOG_DT].tol = fmax(1e-4, carried_part(k, 1e-4));
    if (!k->c->bf16 || s->seq) return;
    for (int i = Y_O; i < k->n; i++) k->a[i].tol += unit; /* for what naive happens to hit */
    if (s->states == SHARED) k->a[X_S_RE].tol += unit, k->a[X_S_IM].tol += unit;
    if (!s->s4d) {
        judge_naive(k, s);
        return;
    }
    k->a[Y_O].naive = unit * sqrt(3);
    for (int i = Y_F_RE; i <= Y_F_IM && !s->backward; i++) k->a[i].naive = unit;
    if (s->states == SHARED) k->a[X_S_RE].naive = k->a[X_S_IM].naive = unit;
    for (int i = Z; i < k->n; i++) k->a[i].naive = unit * sqrt(i == Z + X_K || i == Z + X_V || i >= Z + X_S_RE ? 3 : 6);
    if (s->backward) k->a[Z + X_LOG_DT].naive = carried_part(k, unit * sqrt(6));
}

/* ---- cases: seq runs the small ones (the reference is slow there) */
/* Names for the table. SLOW: the range of the initial values. */
#define SLOW -2.302585
#define HERM IDA_READOUT_HERMITIAN
#define BILI IDA_READOUT_BILINEAR
#define ZOH IDA_DISC_ZOH
#define NORM IDA_DISC_NORM
#define EULER IDA_DISC_EULER
#define UNIT IDA_DISC_UNIT
#define S(n, ...) {"", n, {__VA_ARGS__}, {0}}
#define ROW(...) {__VA_ARGS__, 0, 0, 0}
/* clang-format off */
static const scan list[] = {
    /*  name               sequences: how many, cu                          h g  r   d   m chunk states gap disc readout dt_top */
    ROW("plain",           S(1, 0, 200),                                    2,2, 64, 64, 64,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("no state",        S(1, 0, 130),                                    1,1, 64, 64, 64,  0, NO_STATE,  0, ZOH,   HERM, SLOW),
    ROW("packed",          S(9, 0, 0, 1, 64, 128, 193, 323, 323, 523, 523), 2,2, 64, 64, 64,  0, STATES,   16, ZOH,   BILI, SLOW),
    ROW("packed alone",    S(5, 0, 0, 3, 131, 131, 350),                    2,2, 64, 64, 64,  0, NO_STATE,  0, ZOH,   HERM, SLOW),
    ROW("long",            S(1, 0, 900),                                    1,1, 64, 64, 64,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("parts",           S(3, 0, 70, 1900, 2200),                         1,1, 64, 64, 64,  0, STATES,   16, ZOH,   HERM, SLOW),
    ROW("grouped",         S(2, 0, 70, 200),                                4,2, 64, 64, 64,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("one state array", S(3, 0, 70, 70, 200),                            2,2, 64, 64, 64,  0, SHARED,   16, ZOH,   HERM, SLOW),
    ROW("state in",        S(2, 0, 33, 100),                                2,1, 64, 64, 64,  0, STATE_IN,  0, ZOH,   HERM, SLOW),
    ROW("wide small",      S(2, 0, 1, 66),                                  1,1,  8, 72,  8,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("modes small",     S(2, 0, 1, 66),                                  1,1, 72,  8, 65,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("small sizes",     S(2, 0, 61, 150),                                3,3, 40, 24, 21,  0, STATES,    0, NORM,  HERM, SLOW),
    ROW("fast decay",      S(2, 0, 20, 150),                                3,3, 64, 64, 64,  0, STATES,    0, ZOH,   HERM, 2.0),
    ROW("odd sizes",       S(4, 0, 0, 20, 149, 150),                        4,2, 12,  7, 20, 16, STATES,    5, EULER, HERM, 1.0),
    ROW("96",              S(1, 0, 140),                                    1,1, 96, 96, 96,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("128",             S(1, 0, 130),                                    1,1,128,128, 64,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("wide packed",     S(9, 0, 0, 1, 64, 128, 193, 323, 323, 523, 523), 2,2,128, 72, 64,  0, STATES,   16, ZOH,   BILI, SLOW),
    ROW("wide parts",      S(3, 0, 70, 70, 4150),                           1,1, 72, 72, 64,  0, STATES,   16, ZOH,   HERM, SLOW),
    ROW("wide groups",     S(3, 0, 70, 70, 200),                            4,2, 40,128, 65,  0, SHARED,   16, ZOH,   HERM, SLOW),
    ROW("many modes",      S(2, 0, 130, 270),                               2,2, 64, 64,128,  0, NO_STATE,  0, ZOH,   BILI, SLOW),
    ROW("modes in parts",  S(2, 0, 30, 3330),                               2,1, 40, 24, 96,  0, SHARED,   16, NORM,  HERM, SLOW),
    ROW("all 128",         S(2, 0, 137, 330),                               2,2,128,128,128,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("136",             S(1, 0, 140),                                    1,1,136, 96,130,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("wide heads",      S(3, 0, 600, 601, 1900),                       33,33,  8, 72,  8,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("wide runs",       S(8, 0, 0, 65, 66, 130, 131, 131, 200, 262),   48,48,  8, 72,  8,  0, STATES,   16, ZOH,   HERM, SLOW),
    ROW("all runs",        S(8, 0, 0, 65, 66, 130, 131, 131, 200, 262),   48,48, 72,  8, 65,  0, STATES,   16, ZOH,   BILI, SLOW),
    ROW("modes runs",      S(8, 0, 0, 65, 66, 130, 131, 131, 200, 262),   48,48,  8,  8, 65,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("wide in place",   S(3, 0, 70, 70, 200),                            2,2, 96, 40, 72,  0, SHARED,   16, ZOH,   HERM, SLOW),
    ROW("wide fast groups", S(2, 0, 20, 150),                               6,3,  8,128, 65,  0, STATES,    0, ZOH,   HERM, 2.0),
    ROW("wide, fast",      S(2, 0, 20, 150),                                3,3, 96, 72, 96,  0, STATES,    0, ZOH,   HERM, 2.0),
    ROW("unit, chunk 33",  S(2, 0, 100, 131),                               2,2, 16, 32, 16, 33, STATES,    0, UNIT,  BILI, SLOW),
    ROW("chunk 1",         S(2, 0, 5, 9),                                   2,2, 16, 16, 16,  1, STATES,    0, ZOH,   BILI, SLOW),
    ROW("one token",       S(1, 0, 1),                                      2,2, 64, 64, 64,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("empty",           S(2, 0, 0, 0),                                   2,2, 64, 64, 64,  0, STATES,   16, ZOH,   HERM, SLOW),
    ROW("no sequence",     S(0, 0),                                         2,2, 64, 64, 64,  0, STATES,    0, ZOH,   HERM, SLOW),
    ROW("shared in parts", S(2, 0, 30, 1330),                               2,1, 64, 64, 64,  0, SHARED,   16, ZOH,   HERM, SLOW),
};
/* clang-format on */

static void check_scan(checker *c, bool s4d, bool seq, bool backward) {
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        scan s = list[i];
        s.s4d = s4d, s.seq = seq, s.backward = backward;
        if (s4d) s.g = s.h;
        if (backward && s.states == SHARED) s.states = STATES;
        if (seq && set_tokens(&s.set) * s.h * s.m * s.m * (s.r + s.d) > 70000000) continue;
        kase k;
        begin_case(&k, c, s4d ? call_s4d : call_interdomain, &s, "%s", s.name);
        k.judge = judge;
        add_inputs(&k, &s);
        add_outputs(&k, &s);
        run_case(&k);
    }
}
void check_interdomain_seq_fwd(checker *c) { check_scan(c, false, true, false); }
void check_interdomain_seq_bwd(checker *c) { check_scan(c, false, true, true); }
void check_interdomain_chunk_fwd(checker *c) { check_scan(c, false, false, false); }
void check_interdomain_chunk_bwd(checker *c) { check_scan(c, false, false, true); }
void check_s4d_seq_fwd(checker *c) { check_scan(c, true, true, false); }
void check_s4d_seq_bwd(checker *c) { check_scan(c, true, true, true); }
void check_s4d_chunk_fwd(checker *c) { check_scan(c, true, false, false); }
void check_s4d_chunk_bwd(checker *c) { check_scan(c, true, false, true); }

/* ---- step: one token for each sequence; what ssm_prepare makes is an input */
enum { P_O, P_Q, P_K, P_V, P_S_RE, P_S_IM, P_LAM_RE, P_LAM_IM, P_B_RE, P_B_IM, P_G_RE, P_G_IM };
static ida_status call_step(const ida_device *dev, void *const *p, const void *args) {
    const scan *s = args;
    const ida_ssm_prep prep = {p[P_LAM_RE], p[P_LAM_IM], p[P_B_RE], p[P_B_IM], p[P_G_RE], p[P_G_IM]};
    const ida_state_ref x = {p[P_S_RE], p[P_S_IM], state_stride(s)};
    if (s->s4d) {
        const ida_s4d_args a = {.h = s->h, .r = s->r, .d = s->d, .m = s->m, .k = p[P_K], .v = p[P_V], .w = p[P_Q], .y = p[P_O],
                                .state_in = x};
        return dev->ops->s4d_step(dev, &a, &prep, s->set.n);
    }
    const ida_interdomain_args a = {.h = s->h,
                                    .g = s->g,
                                    .r = s->r,
                                    .d = s->d,
                                    .m = s->m,
                                    .readout = s->readout,
                                    .q = p[P_Q],
                                    .k = p[P_K],
                                    .v = p[P_V],
                                    .o = p[P_O],
                                    .state_in = x};
    return dev->ops->interdomain_step(dev, &a, &prep, s->set.n);
}

static void step_case(checker *c, const scan *s) {
    const int64_t n = s->set.n, gm = s->g * s->m, ro = s->s4d ? gm : gm * s->m;
    kase k, params; /* the parameters are only for ssm_prepare */
    begin_case(&params, c, NULL, s, "%s", s->name);
    add_inputs(&params, s);
    begin_case(&k, c, call_step, s, "%s, %d sequences, h %d g %d r %d d %d m %d", s->name, (int)n, (int)s->h, (int)s->g,
               (int)s->r, (int)s->d, (int)s->m);
    out(&k, "o", ACT, n * s->h * (s->s4d ? s->r + s->d : s->d))->tol = 1e-4;
    if (s->s4d) in(&k, "w", REAL, s->h * s->m, 0, 1);
    else in(&k, "q", ACT, n * s->h * s->r, 0.1, 1 / sqrt((double)s->r));
    in(&k, "k", ACT, n * s->g * s->r, 0, 1);
    in(&k, "v", ACT, n * s->g * s->d, 0, 1);
    for (int part = 0; part < 2; part++) mark_gaps(s, inout(&k, part ? "state_im" : "state_re", REAL, n * state_stride(s), 0, 1));
    static const char *const names[] = {"lam_re", "lam_im", "b_re", "b_im", "g_re", "g_im"};
    for (int i = 0; i < 6; i++) in(&k, names[i], REAL, i < 4 ? gm : ro, 0, 0);
    void *p[N_X];
    for (int i = 0; i < N_X; i++) p[i] = params.a[i].value;
    const ida_ssm ssm = ssm_of(s, p);
    const ida_ssm_prep prep = {k.a[P_LAM_RE].value, k.a[P_LAM_IM].value, k.a[P_B_RE].value, k.a[P_B_IM].value, k.a[P_G_RE].value,
                               k.a[P_G_IM].value};
    ida_ref_ssm_prepare(&ssm, s->g, s->m, s->readout, s->s4d ? k.a[P_Q].value : NULL, &prep);
    for (int i = 0; i < params.n; i++) {
        array *a = &params.a[i];
        if (a->name) free(a->value), free(a->ints), free(a->want);
    }
    run_case(&k);
}

static void check_step(checker *c, bool s4d) {
    static const int64_t sizes[][6] = {{1, 1, 64, 64, 64, 1}, {4, 2, 64, 64, 64, 5},    {3, 3, 12, 7, 20, 3},
                                       {2, 2, 96, 96, 96, 2}, {12, 12, 64, 64, 64, 11}, {2, 1, 128, 128, 64, 2},
                                       {2, 2, 64, 64, 64, 0}, {6, 1, 16, 32, 33, 4}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int readout = 0; readout < (s4d ? 1 : 2); readout++) {
            scan s = {.name = readout ? "bilinear" : "hermitian",
                      .h = sizes[i][0],
                      .g = s4d ? sizes[i][0] : sizes[i][1],
                      .r = sizes[i][2],
                      .d = sizes[i][3],
                      .m = sizes[i][4],
                      .s4d = s4d,
                      .states = NO_STATE,
                      .gap = i % 2 ? 16 : 5,
                      .dt_top = SLOW,
                      .readout = readout ? IDA_READOUT_BILINEAR : IDA_READOUT_HERMITIAN};
            s.set.n = sizes[i][5];
            step_case(c, &s);
        }
}
void check_interdomain_step(checker *c) { check_step(c, false); }
void check_s4d_step(checker *c) { check_step(c, true); }
