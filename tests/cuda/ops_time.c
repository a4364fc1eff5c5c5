/* ops_time.c - ops_check of the ops that look along a sequence: conv, rope, stream. */
#include <math.h>
#include <string.h>

#include "ops_check.h"

/* What of the states is there: none, the initial one, both, both in one array. */
enum states { NO_STATE, STATE_IN, STATE_BOTH, STATE_SHARED, STATE_OUT, N_STATES };
static const char *const states_name[N_STATES] = {"no state", "state in", "states", "one state array", "state out"};

typedef struct walk {
    const seq_set *set;
    int64_t h, d, stride;
    enum states states;
    double theta;
    int sign;
    bool shared, conv, rope, map, norm, bias;
} walk;

static ida_seqs seqs_of(const walk *w) { return (ida_seqs){w->set->n, w->set->cu, w->set->pos0}; }

/* Two arrays: state_in, state_out. The places between the sequences' states belong to nobody. */
static void states_of(kase *k, const walk *w, int64_t width) {
    const int64_t n = w->set->n * w->stride;
    array *first = NULL;
    if (w->states == STATE_IN || w->states == STATE_BOTH) first = in(k, "state_in", REAL, n, 0, 1);
    else if (w->states == STATE_SHARED) first = inout(k, "state", REAL, n, 0, 1);
    else absent(k);
    for (int64_t s = 0; first && s < w->set->n; s++)
        for (int64_t i = 3 * width; i < w->stride; i++) poison(first, s * w->stride + i);
    if (w->states == STATE_BOTH || w->states == STATE_OUT) out(k, "state_out", REAL, n)->exact = true;
    else absent(k);
}

/* ---- conv */
static ida_status call_conv_fwd(const ida_device *dev, void *const *p, const void *args) {
    const walk *w = args;
    const ida_seqs seqs = seqs_of(w);
    return dev->ops->conv_fwd(dev, p[0], w->states == STATE_SHARED ? p[4] : p[5], p[1], p[2], p[3], p[4], w->stride, &seqs, w->d);
}
static ida_status call_conv_bwd(const ida_device *dev, void *const *p, const void *args) {
    const walk *w = args;
    const ida_seqs seqs = seqs_of(w);
    const ida_conv_bwd_args a = {.dx = p[0],
                                 .dw = p[1],
                                 .db = p[2],
                                 .dstate_in = p[3],
                                 .dy = p[4],
                                 .x = p[5],
                                 .dstate_out = p[6],
                                 .w = p[7],
                                 .state_in = p[8],
                                 .stride = w->stride,
                                 .d = w->d};
    return dev->ops->conv_bwd(dev, &a, &seqs);
}
static const int64_t widths[] = {1, 7, 64, 192, 768};
void check_conv_fwd(checker *c) {
    for (int i = 0; i < n_seq_sets; i++)
        for (int j = 0; j < 5; j++)
            for (int st = 0; st < N_STATES; st++) {
                const walk w = {.set = &seq_sets[i],
                                .d = widths[j],
                                .stride = 3 * widths[j] + (st == STATE_BOTH ? 5 : 0),
                                .states = (enum states)st};
                const int64_t n = set_tokens(w.set);
                kase k;
                begin_case(&k, c, call_conv_fwd, &w, "%s, d %d, %s", w.set->name, (int)w.d, states_name[st]);
                out(&k, "y", ACT, n * w.d);
                in(&k, "x", ACT, n * w.d, 0.1, 1);
                in(&k, "w", REAL, w.d * 4, 0, 0.5);
                in(&k, "b", REAL, w.d, 0, 0.5);
                states_of(&k, &w, w.d);
                run_case(&k);
            }
}
void check_conv_bwd(checker *c) {
    for (int i = 0; i < n_seq_sets; i++)
        for (int j = 0; j < 5; j++)
            for (int st = 0; st < STATE_SHARED; st++) {
                const walk w = {.set = &seq_sets[i],
                                .d = widths[j],
                                .stride = 3 * widths[j] + (st == STATE_BOTH ? 5 : 0),
                                .states = (enum states)st};
                const int64_t n = set_tokens(w.set), states = w.set->n * w.stride;
                kase k;
                begin_case(&k, c, call_conv_bwd, &w, "%s, d %d, %s", w.set->name, (int)w.d, states_name[st]);
                out(&k, "dx", ACT, n * w.d);
                add(&k, "dw", REAL, w.d * 4);
                add(&k, "db", REAL, w.d);
                if (st != NO_STATE) out(&k, "dstate_in", REAL, states);
                else absent(&k);
                in(&k, "dy", ACT, n * w.d, 0.1, 1);
                in(&k, "x", ACT, n * w.d, 0.1, 1);
                if (st == STATE_BOTH) in(&k, "dstate_out", REAL, states, 0, 1);
                else absent(&k);
                in(&k, "w", REAL, w.d * 4, 0, 0.5);
                if (st != NO_STATE) in(&k, "state_in", REAL, states, 0, 1);
                else absent(&k);
                run_case(&k);
            }
}

/* ---- rope */
static ida_status call_rope(const ida_device *dev, void *const *p, const void *args) {
    const walk *w = args;
    ida_seqs seqs = seqs_of(w);
    if (w->bias) seqs.pos0 = NULL;
    return dev->ops->rope(dev, p[0], w->shared ? p[0] : p[1], &seqs, w->h, w->d, w->theta, w->sign);
}
void check_rope(checker *c) {
    static const int64_t heads[][2] = {{1, 2}, {3, 16}, {12, 64}, {2, 96}, {1, 128}, {5, 6}};
    for (int i = 0; i < n_seq_sets; i++)
        for (int j = 0; j < 6; j++)
            for (int way = 0; way < 4; way++) { /* gradient or not, in place or not; every second time without pos0 */
                const walk w = {.set = &seq_sets[i], .h = heads[j][0], .d = heads[j][1], .theta = j % 2 ? 10000 : 500000,
                                .sign = way % 2 ? -1 : 1, .shared = way / 2, .bias = (i + j + way) % 3 == 0};
                const int64_t n = set_tokens(w.set) * w.h * w.d;
                kase k;
                begin_case(&k, c, call_rope, &w, "%s, h %d d %d sign %d%s%s", w.set->name, (int)w.h, (int)w.d, w.sign,
                           w.shared ? ", in place" : "", w.bias ? ", no pos0" : "");
                if (w.shared) inout(&k, "y", ACT, n, 0, 1), absent(&k);
                else out(&k, "y", ACT, n), in(&k, "x", ACT, n, 0, 1);
                run_case(&k);
            }
}

/* ---- stream */
enum { S_Y, S_X, S_CW, S_CB, S_IN, S_OUT, S_GAIN, S_BIAS, S_FWD, S_DY = S_FWD, S_DCW, S_DCB, S_DGAIN, S_DBIAS };
static ida_stream_args stream_of(const walk *w, void *const *p) {
    return (ida_stream_args){.h = w->h,
                             .d = w->d,
                             .x = p[S_X],
                             .conv_w = p[S_CW],
                             .conv_b = p[S_CB],
                             .state_in = p[S_IN],
                             .state_out = w->states == STATE_SHARED ? p[S_IN] : p[S_OUT],
                             .stride = w->stride,
                             .rope_theta = w->rope ? w->theta : 0,
                             .l2_eps = w->map ? 1e-6 : 0,
                             .norm_eps = 1e-5,
                             .gain = p[S_GAIN],
                             .bias = p[S_BIAS]};
}
static ida_status call_stream_fwd(const ida_device *dev, void *const *p, const void *args) {
    const walk *w = args;
    const ida_seqs seqs = seqs_of(w);
    const ida_stream s = {p[S_Y], stream_of(w, p)};
    return dev->ops->stream_fwd(dev, &s, 1, &seqs);
}
/* A list: the arrays of one stream after those of another, then a y of each that is made alone, before them: a state may be read
 * and written. */
typedef struct walks {
    walk w[IDA_MOST_STREAMS];
    int n;
} walks;
static ida_status call_streams_fwd(const ida_device *dev, void *const *p, const void *args) {
    const walks *l = args;
    const ida_seqs seqs = seqs_of(&l->w[0]);
    ida_stream s[IDA_MOST_STREAMS];
    for (int i = 0; i < l->n; i++) {
        s[i] = (ida_stream){p[i * S_FWD + S_Y], stream_of(&l->w[i], p + i * S_FWD)};
        ida_stream alone = {p[l->n * S_FWD + i], s[i].args};
        alone.args.state_out = NULL;
        IDA_TRY(dev->ops->stream_fwd(dev, &alone, 1, &seqs));
    }
    return dev->ops->stream_fwd(dev, s, l->n, &seqs);
}
static const char *as_alone(const kase *k, double *const *got) {
    const walks *l = k->args;
    for (int i = 0; i < l->n; i++) {
        const int y = i * S_FWD + S_Y;
        if (memcmp(got[y], got[l->n * S_FWD + i], (size_t)k->a[y].n * sizeof(double)) != 0)
            return "not the bits of a call of its own";
    }
    return NULL;
}
static ida_status call_stream_bwd(const ida_device *dev, void *const *p, const void *args) {
    const walk *w = args;
    const ida_seqs seqs = seqs_of(w);
    ida_stream_args a = stream_of(w, p);
    const ida_stream_grads g = {p[S_DCW], p[S_DCB], p[S_DGAIN], p[S_DBIAS]};
    a.state_out = NULL;
    return dev->ops->stream_bwd(dev, p[S_Y], p[S_DY], &a, &g, &seqs);
}
static void maybe_in(kase *k, bool there, const char *name, int64_t n, double mean, double sd) {
    if (there) in(k, name, REAL, n, mean, sd);
    else absent(k);
}
static void maybe_add(kase *k, bool there, const char *name, int64_t n) {
    if (there) add(k, name, REAL, n)->tol = 1e-4;
    else absent(k);
}

static void stream_arrays(kase *k, const walk *w, bool backward) {
    const int64_t width = w->h * w->d, all = set_tokens(w->set) * width;
    out(k, backward ? "dx" : "y", ACT, all);
    in(k, "x", ACT, all, 0.1, 1);
    maybe_in(k, w->conv, "conv_w", 4 * width, 0, 0.5);
    maybe_in(k, w->conv, "conv_b", width, 0, 0.5);
    states_of(k, w, width);
    maybe_in(k, w->norm, "gain", w->d, 1, 0.3);
    maybe_in(k, w->bias, "bias", width, 0, 0.5);
}
static void stream_case(checker *c, const walk *w, bool backward) {
    const int64_t width = w->h * w->d;
    kase k;
    begin_case(&k, c, backward ? call_stream_bwd : call_stream_fwd, w, "%s, h %d d %d,%s%s%s%s%s, %s", w->set->name, (int)w->h,
               (int)w->d, w->conv ? " conv" : "", w->rope ? " rope" : "", w->map ? " map" : "", w->norm ? " norm" : "",
               w->bias ? " bias" : "", states_name[w->states]);
    stream_arrays(&k, w, backward);
    if (backward) {
        in(&k, "dy", ACT, set_tokens(w->set) * width, 0.1, 1);
        maybe_add(&k, w->conv, "dconv_w", 4 * width);
        maybe_add(&k, w->conv, "dconv_b", width);
        maybe_add(&k, w->norm, "dgain", w->d);
        maybe_add(&k, w->bias, "dbias", width);
    }
    run_case(&k);
}

static void check_stream(checker *c, bool backward) {
    /* q of interdomain, k, v, the two of s4d, plain k and v, q of softmax, nothing at all */
    static const struct {
        bool conv, rope, map, norm, bias;
    } parts[] = {{1, 1, 1, 0, 0}, {1, 1, 1, 1, 1}, {0, 0, 0, 1, 1}, {1, 1, 0, 1, 1}, {1, 0, 0, 1, 1},
                 {1, 0, 1, 0, 0}, {0, 1, 0, 0, 0}, {1, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {0, 0, 1, 1, 0}};
    static const int64_t heads[][2] = {{1, 2}, {3, 64}, {2, 96}, {1, 128}, {12, 16}, {3, 13}, {2, 192}, {1, 256}, {1, 70}};
    for (int i = 0; i < n_seq_sets; i++)
        for (int j = 0; j < (int)(sizeof heads / sizeof *heads); j++)
            for (size_t l = 0; l < sizeof parts / sizeof *parts; l++) {
                walk w = {.set = &seq_sets[i],
                          .h = heads[j][0],
                          .d = heads[j][1],
                          .theta = 10000,
                          .conv = parts[l].conv,
                          .rope = parts[l].rope && heads[j][1] % 2 == 0,
                          .map = parts[l].map,
                          .norm = parts[l].norm,
                          .bias = parts[l].bias};
                w.states = parts[l].conv ? (enum states)((size_t)(i + j) + l) % (backward ? 2 : N_STATES) : NO_STATE;
                w.stride = 3 * w.h * w.d + (w.states == STATE_BOTH || w.states == STATE_SHARED ? 5 : 0);
                stream_case(c, &w, backward);
            }
}

static void streams_case(checker *c, const walks *l, const char *name) {
    kase k;
    begin_case(&k, c, call_streams_fwd, l, "%s, %s, %d of h %d d %d and h %d d %d, %s", name, l->w[0].set->name, l->n,
               (int)l->w[0].h, (int)l->w[0].d, (int)l->w[l->n - 1].h, (int)l->w[l->n - 1].d, states_name[l->w[0].states]);
    k.extra = as_alone;
    for (int i = 0; i < l->n; i++) stream_arrays(&k, &l->w[i], false);
    for (int i = 0; i < l->n; i++) out(&k, "y alone", ACT, k.a[i * S_FWD + S_Y].n);
    run_case(&k);
}
/* q, k and v in one call: steps and not. */
static void check_streams(checker *c) {
    /* heads of q, of k and v, width: whole blocks of rows and not; one that no tuned kernel and no step takes */
    static const int64_t heads[][3] = {{12, 12, 64}, {4, 1, 64}, {3, 3, 128}, {6, 2, 96}, {2, 1, 256}, {5, 1, 6}, {3, 1, 13}};
    for (int i = 0; i < n_seq_sets; i++)
        for (int j = 0; j < (int)(sizeof heads / sizeof *heads); j++) {
            const enum states st = (enum states)((i + j) % N_STATES);
            const int64_t d = heads[j][2];
            const walk q = {.set = &seq_sets[i], .h = heads[j][0], .d = d, .stride = 3 * heads[j][0] * d + 5, .states = st,
                            .theta = 10000, .conv = true, .rope = d % 2 == 0, .map = true};
            walk k = q, v, wide, none;
            k.h = heads[j][1], k.stride = 3 * k.h * d + 2, k.norm = k.bias = true;
            v = k;
            v.rope = v.map = v.bias = false;
            streams_case(c, &(walks){{q, k, v}, 3}, "q, k, v");
            streams_case(c, &(walks){{k, v}, 2}, "k, v");
            /* Of another width, base of RoPE and choice of states. */
            wide = v;
            wide.h = 2, wide.d = 192, wide.stride = 3 * 2 * 192, wide.states = STATE_SHARED;
            wide.rope = true, wide.theta = 500000;
            streams_case(c, &(walks){{q, wide, k}, 3}, "of two widths");
            streams_case(c, &(walks){{wide, q}, 2}, "the wide one first");
            /* One that is no step among those that are. */
            none = k;
            none.conv = none.rope = none.map = none.norm = none.bias = false, none.states = NO_STATE;
            streams_case(c, &(walks){{q, none, v}, 3}, "one of no parts");
        }
}
void check_stream_fwd(checker *c) {
    check_stream(c, false);
    check_streams(c);
}
void check_stream_bwd(checker *c) { check_stream(c, true); }
