/* decode.c - the step form through sessions: its cost at far positions and the memory it takes; and prefill.
 * Positions are reached by really running the model. Sessions are kept at each mark and timed in turn, round after round, so that
 * a machine that gets slower or faster during the run does not look like a cost that depends on the position.
 * Memory is what the process takes while it decodes, as the allocator and the kernel see it, which do not see a GPU's; the copies
 * kept at the marks are left out. */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/rng.h"
#include "bench/bench.h"
#include "infer/session.h"

#define BURST 64

typedef struct options {
    const char *preset, *device;
    ida_mixer_kind mixer;
    ida_dtype dtype;
    int64_t tokens, reps; /* tokens: reached, or of the prompt */
} options;
static const ida_field decode_rows[] = {
    IDA_ROW_PRESET(options, "tiny", "the shape"),
    IDA_ROW_MIXER(options),
    IDA_ROW_INT(options, "tokens", tokens, 1000000, 1, IDA_ANY_INT,
                .help = "positions reached; for softmax 10000 is plenty"),
    IDA_ROW_REPS(options, 200, "rounds of " IDA_STR(BURST) " steps at each mark"),
    IDA_ROW_DEVICE(options),
    IDA_ROW_DTYPE(options, 0),
};
static const ida_field prefill_rows[] = {
    IDA_ROW_PRESET(options, "125m", "the shape"),
    IDA_ROW_MIXER(options),
    IDA_ROW_INT(options, "T", tokens, 4096, 1, 1 << 24, .help = "prompt tokens"),
    IDA_ROW_REPS(options, 10, "timed calls"),
    IDA_ROW_DEVICE(options),
    IDA_ROW_DTYPE(options, 0),
};

enum { MAX_MARKS = 8, DEVICE_CACHE = 128 << 20 /* bytes; more than the GPUs of 2026 have */ };

typedef struct decode {
    ida_model *model;
    ida_session *marks[MAX_MARKS];
    int64_t position[MAX_MARKS], n_marks;
    float *logits;
} decode;

static int64_t resident_bytes(void) {
    long long pages = 0, skip = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%lld %lld", &skip, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* Bytes that malloc has handed out; constant 0 where the C library does not tell. */
static int64_t heap_bytes(void) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
    struct mallinfo2 m = mallinfo2();
    return (int64_t)(m.uordblks + m.hblkhd);
#else
    return 0;
#endif
}

/* Of the last-level cache; 0 = not known. */
static int64_t cache_bytes(void) {
    long n = sysconf(_SC_LEVEL3_CACHE_SIZE);
    long long kib = 0;
    if (n > 0) return n;
    for (int level = 3; level >= 2 && kib <= 0; level--) {
        char path[64];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", level);
        FILE *f = fopen(path, "re");
        if (f && fscanf(f, "%lldK", &kib) != 1) kib = 0;
        if (f) fclose(f);
    }
    return kib * 1024;
}

static int32_t token(const ida_model *m, uint64_t i) {
    return (int32_t)(ida_uniform(5, IDA_STREAM_STUDY, i) * (double)ida_model_config(m)->vocab_size);
}

/* On the device of the keys, with random weights, ready to step. */
static ida_status make_model(ida_bench_run *b, int64_t T, ida_model **out) {
    ida_config cfg;
    const ida_device *dev = NULL;
    const options *o = b->options;
    IDA_TRY(ida_bench_config(o->preset, o->mixer, T, &cfg));
    IDA_TRY(ida_bench_device(o->device, o->dtype, &dev));
    json_object_set_new(b->top, "device", json_string(dev->name));
    return ida_model_create_on(&cfg, dev, 42, out);
}

/* Step by step against one call, over n ids from position 0: last logits. *good when they differ by what the sums of fp32, or the
 * rounding of every tensor on the way to bf16, explain. Asks before each step whether to go on: those of a large model take
 * long. */
static ida_status check_step(ida_bench_run *r, const ida_model *m, int64_t n, double *error, bool *good) {
    int64_t vocab = ida_model_config(m)->vocab_size;
    ida_session *a = NULL, *b = NULL;
    int32_t *ids = NULL;
    float *la = NULL;
    ida_status st;
    IDA_TRY_GOTO(IDA_ALLOC(ids, n, "token ids"));
    IDA_TRY_GOTO(IDA_ALLOC(la, 2 * vocab, "logits"));
    IDA_TRY_GOTO(ida_session_create(m, &a));
    IDA_TRY_GOTO(ida_session_create(m, &b));
    for (int64_t i = 0; i < n; i++) {
        if (r->progress && r->progress(r->user, "checking", i, n)) IDA_FAIL_GOTO(IDA_E_CANCELLED, "stopped");
        ids[i] = token(m, (uint64_t)i);
        IDA_TRY_GOTO(ida_session_feed(a, &ids[i], 1, la));
    }
    IDA_TRY_GOTO(ida_session_feed(b, ids, n, la + vocab));
    *error = ida_max_error(la, la + vocab, vocab);
    *good = *error < (ida_bench_rounds(m->dev) ? 5e-2 : 1e-4);
out:
    ida_session_free(a);
    ida_session_free(b);
    ida_free(ids);
    ida_free(la);
    return st;
}

/* Runs a session to `tokens` in the step form and keeps a copy at 1K, 10K, ... and at the end. Growth is counted from the first
 * mark on, over the stretches between marks. */
static ida_status reach(ida_bench_run *b, decode *d, int64_t tokens) {
    ida_session *s = NULL;
    ida_status st = ida_session_create(d->model, &s);
    int64_t next = 1000 < tokens ? 1000 : tokens, heap = 0, resident = 0, heap_growth = 0, resident_growth = 0;
    for (int64_t i = 0; !st && i < tokens; i++) {
        int32_t id = token(d->model, (uint64_t)i);
        IDA_TRY_GOTO(ida_session_feed(s, &id, 1, NULL));
        if (i % 1000 == 999 && b->progress && b->progress(b->user, "decoding", i + 1, tokens))
            IDA_FAIL_GOTO(IDA_E_CANCELLED, "stopped");
        if (i + 1 != next) continue;
        if (d->n_marks > 0) {
            heap_growth += heap_bytes() - heap;
            resident_growth += resident_bytes() - resident;
        }
        IDA_TRY_GOTO(ida_session_clone(s, &d->marks[d->n_marks]));
        d->position[d->n_marks++] = next;
        heap = heap_bytes();
        resident = resident_bytes();
        next = next * 10 < tokens && d->n_marks < MAX_MARKS - 1 ? next * 10 : tokens;
    }
    if (st) goto out;
    ida_row_int(b->top, "session_bytes", ida_session_bytes(s));
    if (!ida_on_host(d->model->dev)) goto out;
    if (heap > 0) ida_row_int(b->top, "heap_growth_bytes", heap_growth);
    ida_row_int(b->top, "resident_growth_bytes", resident_growth);
out:
    ida_session_free(s);
    return st;
}

/* Seconds of one step at each mark: bursts in turn, the median burst. times [n_marks * reps]. */
static ida_status time_marks(ida_bench_run *b, decode *d, double *times, double *seconds) {
    for (int64_t r = -2; r < b->reps; r++) {
        for (int64_t k = 0; k < d->n_marks; k++) {
            int64_t who = (k + r + 2) % d->n_marks; /* another first one each round */
            double begun = ida_now();
            for (int i = 0; i < BURST; i++) {
                int32_t id = token(d->model, (uint64_t)i);
                IDA_TRY(ida_session_feed(d->marks[who], &id, 1, d->logits));
            }
            if (r >= 0) times[who * b->reps + r] = (ida_now() - begun) / BURST;
        }
        if (b->progress && b->progress(b->user, "timing steps", r + 3, b->reps + 2)) IDA_FAIL(IDA_E_CANCELLED, "stopped");
    }
    for (int64_t k = 0; k < d->n_marks; k++) seconds[k] = ida_median(times + k * b->reps, b->reps);
    return IDA_OK;
}

/* Bytes that one step must move: the weights once, but of an embedding table that is not the head's only one row; the state read
 * and written; a cache read. */
static double step_bytes(const ida_model *m, const ida_model_info *info, int64_t position) {
    const ida_config *c = &m->cfg;
    const double act_size = (double)ida_act_bytes(m->dev, 1);
    int64_t idle = c->tie_embeddings ? 0 : (c->vocab_size - 1) * c->d_model;
    return act_size * (double)(info->parameters - idle) + 2.0 * (double)info->state_bytes +
           act_size / sizeof(float) * (double)info->state_bytes_per_token * (double)position;
}

static ida_status run_decode(ida_bench_run *b) {
    decode d = {0};
    const int64_t tokens = ((const options *)b->options)->tokens;
    double error = 0, copy = 0, *times = NULL, seconds[MAX_MARKS], worst = 0;
    bool check = false;
    ida_status st;
    IDA_TRY_GOTO(make_model(b, 0, &d.model));
    IDA_TRY_GOTO(IDA_ALLOC(times, MAX_MARKS * b->reps, "timings"));
    IDA_TRY_GOTO(IDA_ALLOC(d.logits, ida_model_config(d.model)->vocab_size, "logits"));
    IDA_TRY_GOTO(check_step(b, d.model, 200, &error, &check));
    IDA_TRY_GOTO(ida_bench_copy_rate(b, d.model->dev, &copy));
    ida_row_real(b->top, "copy_bytes_per_s", copy);
    IDA_TRY_GOTO(reach(b, &d, tokens));
    IDA_TRY_GOTO(time_marks(b, &d, times, seconds));
    ida_model_info info;
    IDA_TRY_GOTO(ida_config_info(&d.model->cfg, &info));
    double cache = ida_on_host(d.model->dev) ? (double)cache_bytes() : DEVICE_CACHE;
    for (int64_t k = 0; k < d.n_marks; k++) {
        char what[48];
        snprintf(what, sizeof what, "step at %lld", (long long)d.position[k]);
        /* the copy rate is that of memory: no floor for what a cache may hold, or where its size is not known */
        double bytes = step_bytes(d.model, &info, d.position[k]), floor = cache > 0 && bytes > cache ? bytes / copy : 0;
        json_t *row = ida_bench_row(b, what, check, error, seconds[k], floor);
        ida_row_real(row, "bytes", bytes);
        if (check) ida_row_real(row, "tokens_per_s", 1 / seconds[k]);
        if (check) ida_row_real(row, "against_first", seconds[k] / seconds[0]);
        worst = fmax(worst, fabs(seconds[k] / seconds[0] - 1));
    }
    if (check) ida_row_real(b->top, "max_deviation", worst);
out:
    for (int64_t k = 0; k < d.n_marks; k++) ida_session_free(d.marks[k]);
    ida_free(times);
    ida_free(d.logits);
    ida_model_free(d.model);
    return st;
}

typedef struct prefill {
    const ida_bench_run *run;
    ida_session *s;
    int32_t *ids;
    int64_t n, calls; /* calls: done, of which the first ones are the warm-up */
    bool stopped;
} prefill;

/* One call may take minutes: it asks before each piece, too. */
static bool stop_prefill(void *arg) {
    prefill *p = arg;
    const ida_bench_run *b = p->run;
    p->stopped = b->progress && b->progress(b->user, "prefill", p->calls, b->reps + ida_bench_warm_up(b));
    return p->stopped;
}

static ida_status prefill_body(void *arg) {
    prefill *p = arg;
    ida_session_reset(p->s);
    IDA_TRY(ida_session_feed_until(p->s, p->ids, p->n, stop_prefill, p));
    IDA_FAIL_IF(p->stopped, IDA_E_CANCELLED, "stopped");
    p->calls++;
    return IDA_OK;
}

static ida_status run_prefill(ida_bench_run *b) {
    ida_model *m = NULL;
    prefill p = {.run = b, .n = ((const options *)b->options)->tokens};
    ida_model_info info;
    double error = 0, rate = 0, seconds = 0;
    bool check = false;
    ida_status st;
    IDA_TRY_GOTO(make_model(b, p.n, &m));
    IDA_TRY_GOTO(ida_config_info(ida_model_config(m), &info));
    IDA_TRY_GOTO(IDA_ALLOC(p.ids, p.n, "token ids"));
    for (int64_t i = 0; i < p.n; i++) p.ids[i] = token(m, (uint64_t)i);
    IDA_TRY_GOTO(ida_session_create(m, &p.s));
    IDA_TRY_GOTO(check_step(b, m, p.n < 2 ? 2 : p.n < 100 ? p.n : 100, &error, &check));
    IDA_TRY_GOTO(ida_bench_product_rate(b, m->dev, &rate));
    IDA_TRY_GOTO(ida_bench_time(b, "prefill", prefill_body, &p, &seconds));
    /* the head is for the last token only */
    const double head = 2.0 * (double)(m->cfg.vocab_size * m->cfg.d_model),
                 flops = ((double)info.flops_per_token - head) * (double)p.n + head;
    json_t *row = ida_bench_row(b, "prefill", check, error, seconds, flops / rate);
    if (check) ida_row_real(row, "tokens_per_s", (double)p.n / seconds);
    ida_row_int(row, "session_bytes", ida_session_bytes(p.s));
out:
    ida_session_free(p.s);
    ida_free(p.ids);
    ida_model_free(m);
    return st;
}

IDA_BENCH(decode, "decode", options, decode_rows, run_decode);
IDA_BENCH(prefill, "prefill", options, prefill_rows, run_prefill);
